"""Reading a whole corpus in a command: a bar while it is read, and a warning of what was left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.reader import read_corpus


@contextmanager
def reading(corpus: str, what: str) -> Iterator[tuple[Iterator[Document], list[Rejected]]]:
    """The documents of a corpus, under a bar that says `what` is done, and the records left out so far.

    If there were any, a warning at the end says so.
    """
    from tqdm import tqdm

    rejected: list[Rejected] = []
    documents = read_corpus(corpus, on_reject=rejected.append)
    # A terminal gets a bar that moves, a log a line now and then.
    interval = 0.1 if sys.stderr.isatty() else 10.0
    try:
        with tqdm(documents, unit=" documents", desc=what, mininterval=interval, maxinterval=interval) as shown:
            yield iter(shown), rejected
    finally:
        if rejected:
            print(f"warning: {len(rejected):,} records left out, the first in {rejected[0]}", file=sys.stderr)
