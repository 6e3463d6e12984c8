"""What `osn tune` does: find the setting of an engine that is fast and keeps the quality, and store it in the index.

trials.py          try each setting on each query: its time, its quality
tuning.py          the base class of tunings, and the choice, which the index's record stores
bm25_sparse.py     bm25-sparse
high_idf_first.py  high-IDF-first, and `sparse` with pruned postings
cascade.py         the cascade
plot.py            the settings that were tried, as a plot and a table of characters

An engine that can be tuned has a dataclass in `engines.settings.TUNED` and a class in `TUNINGS`.
"""

from opensearch_neural.tune.bm25_sparse import Bm25SparseTuning
from opensearch_neural.tune.cascade import CascadeTuning
from opensearch_neural.tune.high_idf_first import HighIdfFirstTuning, PrunedSparseTuning
from opensearch_neural.tune.trials import Questions, Tried, pareto, share
from opensearch_neural.tune.tuning import Chosen, Tuned, Tuning, store

__all__ = ["TUNINGS", "Chosen", "Questions", "Tried", "Tuned", "Tuning", "pareto", "share", "store"]

TUNINGS: dict[str, type[Tuning]] = {
    tuning.setting.engine: tuning
    for tuning in (Bm25SparseTuning, HighIdfFirstTuning, PrunedSparseTuning, CascadeTuning)
}
"""{engine: the class that tunes it}; the first is what `osn tune` tunes by default."""
