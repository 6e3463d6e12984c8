"""The experiments of the papers (`osn paper NAME`): what each method gains, by judged sets, with intervals.

command.py                         `osn paper`, the group of commands
inference_free_sparse.py           `osn paper inference-free-sparse`: the student against BM25
inference_free_sparse_ablations.py what IDF, λ and the teachers contribute
inference_free_sparse_training.py  its trainings
sparse_search.py                   exact sparse search without a cluster
jpq.py                             `osn paper jpq`: quality and size of JPQ's codes
jpq_indexes.py                     faiss's indexes that JPQ is compared with
multi_layer.py                     `osn paper multi-layer`: vectors of other layers than the last
multi_layer_arms.py                the ways to represent a document that are compared
multi_layer_training.py            its trainings
multi_layer_winners.py             which layer's vector is the nearest
multi_layer_plots.py               its plots
query_as_context.py                `osn paper query-as-context`: generated queries as contexts
query_as_context_training.py       its trainings
tome.py                            `osn paper tome`: two stages against one
tome_training.py                   its trainings
tome_decoding.py                   runs of each way to decode, and where stage 1 loses
"""
