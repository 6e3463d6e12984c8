"""Inference-free learned sparse retrieval: documents become weighted word pieces, a query is its word pieces alone.

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`): a SPLADE-doc
student (section 3), IDF inside the matching function (4.1), an ensemble of heterogeneous teachers (4.2), pre-training
and fine-tuning (5.1).

    settings       what `osn train sparse` can be told
    train          the flow: data, warm-up, miner, pre-training, fine-tuning; the command
    stage_data     hard negatives and teachers of a stage
    start          from a backbone or a sparse model to an untrained student
    warm_up        how a backbone without a masked-LM head becomes one: masked LM, calibration, impacts
    calibration    the head's bias and scale before training
    lexicon        IDF and BM25 impacts: what word pieces say without a model
    batches        drawn examples to columns of the vocabulary and token ids
    student        the model and its loss
    tiled_head     the output layer, forward and backward, for all columns or a sample
    dev_measures   retrieval and sparsity while it trains
    export         the files of a model
"""
