"""An index that `osn` wrote: its mapping, its record, and what searches read from it.

mapping.py          mapping and settings of a new index
record.py           `_meta.osn`: which models and settings wrote the index, and which models it refuses
models.py           the models of an index, loaded when first needed
hidden_index.py     the hidden index that stores sparse models' query encoders and the tokens' largest weights
sparse_scale.py     how large sparse scores are relative to BM25's
shard_documents.py  how many documents a shard holds, which determines the default windows
result_window.py    how many hits a request may ask for
contents.py         whether its documents changed while it was measured
segments.py         refreshing, and merging segments
health.py           whether all shards are available
"""
