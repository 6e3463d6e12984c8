"""Inference-free learned sparse retrieval: a model turns documents into weighted word pieces; queries are only tokenized.

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`): a SPLADE-doc
student (section 3), IDF inside the matching function (4.1), an ensemble of heterogeneous teachers (4.2), pre-training
and fine-tuning (5.1).

    train.py             the whole flow (read this first): data, warm-up, miner, pre-training, fine-tuning
    settings.py          the settings of `osn train sparse`
    stage_data.py        hard negatives and teachers of a stage
    start.py             from a backbone or a sparse model to an untrained student
    warm_up.py           adds a calibrated masked-LM head to a backbone that has none
    lexicon.py           the IDF of a corpus and the BM25 impacts of texts
    batches.py           from drawn examples to vocabulary entries and token ids
    student.py           the model, its loss and its files
    tiled_head.py        the output layer, forward and backward, for the whole vocabulary or a sample
    student_measures.py  retrieval quality and sparsity during training
    leave_one_out.py     `--try`: chooses settings by training without each set in turn
    trials_table.py      the table of `--try`
    command.py           the command; `--try` first chooses settings
"""
