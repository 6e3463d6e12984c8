"""What the commands that count a corpus share: a bar while it is read, and a word on what was left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from opensearch_neural.corpus import Rejected, read_corpus


@contextmanager
def counted(corpus: str) -> Iterator[tuple[Iterator[str], list[Rejected]]]:
    """The contents of a corpus's documents under a bar, and the records left out so far; a warning at the end where
    there were any."""
    from tqdm import tqdm

    rejected: list[Rejected] = []
    contents = (document.contents for document in read_corpus(corpus, on_reject=rejected.append))
    # A terminal gets a bar that moves, a log a line now and then.
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(contents, unit=" documents", desc="counting", mininterval=interval, maxinterval=interval) as documents:
        yield iter(documents), rejected
    if rejected:
        print(f"warning: {len(rejected):,} records left out, the first in {rejected[0]}", file=sys.stderr)
