"""The errors a user can cause or meet: each says what happened and what to do about it."""

from __future__ import annotations

from typing import ClassVar


class OsnError(Exception):
    """An error with a message for the user, and a remedy if there is one.

    The command line prints both and exits with status 1; no traceback is shown.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  {self.remedy}"


class InputError(OsnError):
    """An invalid corpus, query, judgement or configuration file, or an invalid argument."""


class Unanswerable(OsnError):
    """A query that an engine cannot answer although model and cluster work."""

    why: ClassVar[str]
    """Why such queries get no hits, for a warning about several."""


class ZeroVector(Unanswerable, InputError):
    """A query whose vector is all zeros, so that it ranks nothing: a table of tokens' vectors knows none of its words."""

    why = "the model knows none of their words and their vectors are all zeros"

    def __init__(self, message: str = "the query's vector is all zeros: it would rank nothing") -> None:
        super().__init__(message, "the model knows none of its words: search for them with bm25 or bm25-sparse")


class ModelError(OsnError):
    """A model directory that is missing or incomplete, or another model than the index's."""


class NotFinite(ModelError):
    """A model returned NaN or infinity in a vector. row: the position of the first such text in the batch."""

    def __init__(self, message: str, remedy: str | None = None, *, row: int) -> None:
        super().__init__(message, remedy)
        self.row = row


class ClusterError(OsnError):
    """OpenSearch refused, is unreachable, or lacks a capability."""


class TooManyClauses(Unanswerable, ClusterError):
    """A query of more words or tokens than OpenSearch searches at once (indices.query.bool.max_clause_count)."""

    why = (
        "they make more clauses, a word each as a rule, than OpenSearch searches at once "
        "(indices.query.bool.max_clause_count)"
    )


class MissingExtra(OsnError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra [{extra}]", f'pip install "opensearch-neural[{extra}]"')
