"""Reading a whole corpus in a command, with a progress bar, and a warning if records were left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from opensearch_neural.commands.option_groups import warn
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.progress import counted


@contextmanager
def reading(corpus: str, what: str) -> Iterator[tuple[Iterator[Document], list[Rejected]]]:
    """(the documents of a corpus, the records left out so far); progress is shown under the title `what`.

    At the end it warns if records were left out.
    """
    rejected: list[Rejected] = []
    documents = read_corpus(corpus, on_reject=rejected.append)
    try:
        with closing(counted(documents, what, unit="documents")) as shown:
            yield shown, rejected
    finally:
        if rejected:
            warn(f"{len(rejected):,} records left out, the first in {rejected[0]}")
