"""Inverse document frequency: one formula, one file format.

The table is the whole query side of inference-free retrieval ("Towards Competitive Search Relevance for
Inference-Free Learned Sparse Retrievers", section 4.1, eq. 5): a query is the set of its tokens, each weighing its IDF.
The file `idf.json` is a JSON object {token: weight}.

An application reads the table at every start, so numpy, which is slow to import, is imported only for counting.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json_object, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

UNLISTED = 1.0
"""The weight of a token that the table does not list or that no document holds, as in OpenSearch."""


def idf(df: ArrayLike, n: int) -> NDArray[np.float64]:
    """ln(1 + (n − df + 0.5) / (df + 0.5)): Lucene's BM25 form, positive for every df ≤ n.

    df: documents that hold the token, any shape; n: documents in all. The result has df's shape.
    """
    import numpy as np

    frequency = np.asarray(df, dtype=np.float64)
    return np.log1p((n - frequency + 0.5) / (frequency + 0.5))


class DocumentFrequencies:
    """The number of documents that hold each token. Documents can be added, and the counts of shards merged."""

    def __init__(self, vocabulary_size: int) -> None:
        import numpy as np

        self.counts: NDArray[np.int64] = np.zeros(vocabulary_size, dtype=np.int64)
        """By token id."""
        self.n = 0
        """Documents."""
        self.length = 0
        """Tokens in all documents, repeats included; 0 if they were not counted."""

    def add(self, token_ids: Iterable[int]) -> None:
        """Count one document; repeated ids count once."""
        import numpy as np

        ids = np.unique(np.fromiter(token_ids, dtype=np.int64))
        self.counts[ids] += 1
        self.n += 1

    def add_batch(self, token_ids: NDArray[np.integer[Any]], documents: int, *, length: int = 0) -> None:
        """Count `documents` documents at once, from their concatenated ids, each id once per document.

        length: the number of tokens in these documents, repeats included.
        """
        import numpy as np

        self.counts += np.bincount(token_ids, minlength=len(self.counts))
        self.n += documents
        self.length += length

    def merge(self, other: DocumentFrequencies) -> None:
        """Add the counts of other documents over the same vocabulary."""
        if len(other.counts) != len(self.counts):
            raise ValueError(f"vocabularies of {len(self.counts)} and {len(other.counts)} tokens do not merge")
        self.counts += other.counts
        self.n += other.n
        self.length += other.length

    def save(self, path: str | Path, vocabulary: Sequence[str]) -> None:
        """Write the counts as JSON: {"documents", "tokens", "vocabulary", "df": {token: documents}}, without zero counts.

        vocabulary: all tokens, by id. The file holds its hash, so that counts over another vocabulary are not merged.
        """
        counted = self.counts.nonzero()[0].tolist()
        content = {
            "documents": self.n,
            "tokens": self.length,
            "vocabulary": vocabulary_hash(vocabulary),
            "df": {vocabulary[at]: int(self.counts[at]) for at in counted},
        }
        write_json(Path(path), content, indent=0)

    @classmethod
    def load(cls, path: str | Path, vocabulary: Sequence[str]) -> DocumentFrequencies:
        """The counts that `save` wrote. Raises ModelError for another vocabulary, and for a file without valid counts."""
        content = read_json_object(Path(path))
        numbers = [content.get("documents"), content.get("tokens"), *_values(content.get("df"))]
        if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            raise ModelError(
                f"{path}: expected 'documents', 'tokens' and 'df' ({{token: documents}}), whole numbers of 0 or more",
                "counts are written by `osn model idf --counts`",
            )
        if content.get("vocabulary") != vocabulary_hash(vocabulary):
            raise ModelError(
                f"{path} was counted over another vocabulary than this tokenizer's",
                "count every shard with the same --tokenizer",
            )
        counts = cls(len(vocabulary))
        counts.n, counts.length = content["documents"], content["tokens"]
        ids = {token: at for at, token in enumerate(vocabulary)}
        for token, documents in content["df"].items():
            if token not in ids or documents > counts.n:
                raise ModelError(f"{path}: the token {token!r} in {documents} documents of {counts.n} is impossible")
            counts.counts[ids[token]] = documents
        return counts

    def idf_table(self, vocabulary: Sequence[str], *, special: Collection[str] = ()) -> dict[str, float]:
        """{token: weight} for every token of `vocabulary`, which is ordered by id.

        A token that no document holds weighs 1.0, not the formula's maximum. Special tokens are listed with 0.0, so that
        sentence-transformers, which reads the same file, ignores them too.
        """
        import numpy as np

        weights = np.where(self.counts > 0, idf(self.counts, self.n), UNLISTED)
        table = {token: in_seven_digits(weight) for token, weight in zip(vocabulary, weights.tolist(), strict=True)}
        table.update(dict.fromkeys((token for token in special if token in table), 0.0))
        return table


def in_seven_digits(weight: float) -> float:
    """Round to seven significant digits, which float32 keeps; this shrinks a table's file to a third."""
    return float(f"{weight:.7g}")


def vocabulary_hash(vocabulary: Sequence[str]) -> str:
    """16 hex digits over the tokens in their order."""
    return hashlib.sha256("\n".join(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _values(df: Any) -> list[Any]:
    return list(df.values()) if isinstance(df, dict) else [None]


def load_idf(path: str | Path) -> dict[str, float]:
    """The table in a JSON file {token: weight}.

    Raises ModelError, naming the token, unless every weight is finite and at least 0. Queries ignore a token of weight 0.
    """
    return check_idf(read_json_object(Path(path)), source=str(path))


def check_idf(table: Mapping[str, Any], *, source: str) -> dict[str, float]:
    """`table` with float weights, or a ModelError that names `source` and the first token whose weight is unusable."""
    if not table:
        raise ModelError(f"{source}: the table is empty", "expected a JSON object {token: weight}")
    for token, weight in table.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise ModelError(f"{source}: the weight of token {token!r} is {weight!r}; expected a number")
        if not 0 <= weight <= sys.float_info.max:
            raise ModelError(
                f"{source}: the weight of token {token!r} is {str(weight)[:40]}; "
                "expected a finite number that is not negative",
                "0 makes a query ignore the token",
            )
    return {token: float(weight) for token, weight in table.items()}


def save_idf(path: str | Path, table: Mapping[str, float]) -> None:
    """Write `table` as JSON, one token a line, after the checks of `load_idf`."""
    write_json(Path(path), check_idf(table, source=str(path)), indent=0)
