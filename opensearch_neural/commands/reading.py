"""Reading a whole corpus in a command: a bar while it is read, and a warning of what was left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.progress import counted


@contextmanager
def reading(corpus: str, what: str) -> Iterator[tuple[Iterator[Document], list[Rejected]]]:
    """The documents of a corpus, counted under the title `what`, and the records left out so far.

    If there were any, a warning at the end says so.
    """
    rejected: list[Rejected] = []
    documents = read_corpus(corpus, on_reject=rejected.append)
    try:
        with closing(counted(documents, what, unit="documents")) as shown:
            yield shown, rejected
    finally:
        if rejected:
            print(f"warning: {len(rejected):,} records left out, the first in {rejected[0]}", file=sys.stderr)
