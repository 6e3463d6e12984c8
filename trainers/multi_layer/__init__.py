"""Multi-layer representations: several layers' vectors represent a document.

    train.py              the whole flow (read this first)
    settings.py           the settings of `osn train mlr`
    multi_layer_model.py  the documents' tower, the model, its loss and its files
    command.py            the command

"Investigating Multi-layer Representations for Dense Passage Retrieval" (`multi-layer-representations`).
"""
