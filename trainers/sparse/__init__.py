"""Inference-free learned sparse retrieval: documents become weighted word pieces, a query is its word pieces alone.

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`): a SPLADE-doc
student (section 3), IDF inside the matching function (4.1), an ensemble of heterogeneous teachers (4.2), pre-training
and fine-tuning (5.1).

    settings.py       the settings of `osn train sparse`
    train.py          the flow, start here: data, warm-up, miner, pre-training, fine-tuning
    stage_data.py     hard negatives and teachers of a stage
    start.py          from a backbone or a sparse model to an untrained student
    warm_up.py        gives a backbone without a masked-LM head one, calibrated
    calibration.py    the head's bias and scale before training
    lexicon.py        the IDF of a corpus and the BM25 impacts of texts
    batches.py        drawn examples to entries of the vocabulary and token ids
    student.py        the model and its loss
    tiled_head.py     the output layer, forward and backward, for all of the vocabulary or a sample
    dev_measures.py   retrieval and sparsity while it trains
    leave_one_out.py  `--try`: settings chosen by training without each set in turn
    export.py         the files of a model
"""
