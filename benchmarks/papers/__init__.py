"""The experiments of the papers (`osn paper NAME`): each method's gain on judged sets, with intervals.

command.py                         `osn paper`, the group of commands
inference_free_sparse.py           `osn paper inference-free-sparse`: the student against BM25
inference_free_sparse_ablations.py the contributions of IDF, λ and the teachers
inference_free_sparse_training.py  its trainings
sparse_search.py                   exact sparse search without a cluster
jpq.py                             `osn paper jpq`: quality and size of JPQ's codes
jpq_indexes.py                     the faiss indexes that JPQ is compared with
multi_layer.py                     `osn paper multi-layer`: vectors of layers other than the last
multi_layer_arms.py                the compared ways to represent a document
multi_layer_training.py            its trainings
multi_layer_winners.py             which layer's vector is nearest
multi_layer_plots.py               its plots
query_as_context.py                `osn paper query-as-context`: generated queries as contexts
query_as_context_training.py       its trainings
tome.py                            `osn paper tome`: two stages against one
tome_training.py                   its trainings
tome_decoding.py                   runs of each way to decode, and where quality is lost
"""
