"""Known-item queries for a corpus without judgements: a document's first sentence, taken out of it, must find the document.

Such queries say which engine copes with this corpus's words; they do not replace the questions of users.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from ingest.corpus import ignore
from opensearch_neural.corpus.judgements import write_beir
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from trainers.data.unlabelled_questions import by_first_sentence


def hold_out_sentences(corpus: str, out: Path, *, queries: int = 300, limit: int | None = None) -> int:
    """Write a BEIR folder `out`: the corpus, `queries` of its documents without their first sentence, and the judgements.

    Returns the number of queries. A sentence that begins several documents is not used. Documents that cannot be read
    are left out. Raises InputError if no document has a first sentence of 4 to 40 words and 15 more words behind it.
    """
    read = [(document, by_first_sentence(document)) for document in read_corpus(corpus, limit=limit, on_reject=ignore)]
    occurrences = Counter(held[0].lower() for _, held in read if held)
    candidates = sorted(document.id for document, held in read if held and occurrences[held[0].lower()] == 1)
    if not candidates:
        raise InputError(
            f"no queries can be made of {corpus}: no document begins with a sentence of 4 to 40 words that no other has",
            "give a BEIR folder with queries.jsonl and qrels/test.tsv",
        )
    chosen = set(random.Random(0).sample(candidates, min(queries, len(candidates))))
    asked = {document.id: held for document, held in read if held and document.id in chosen}
    queries_of = {f"first:{document}": sentence for document, (sentence, _) in asked.items()}
    documents = (asked[document.id][1] if document.id in asked else document for document, _ in read)
    write_beir(out, documents, queries_of, {"test": [f"first:{document}\t{document}\t1" for document in asked]})
    return len(asked)
