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
    documents = list(read_corpus(corpus, limit=limit, on_reject=ignore))
    # {document id: (its first sentence, the document without it)}
    held_out = {document.id: split for document in documents if (split := by_first_sentence(document))}
    occurrences = Counter(sentence.lower() for sentence, _ in held_out.values())
    candidates = sorted(id_ for id_, (sentence, _) in held_out.items() if occurrences[sentence.lower()] == 1)
    if not candidates:
        raise InputError(
            f"no queries can be made of {corpus}: no document begins with a sentence of 4 to 40 words that no other has",
            "give a BEIR folder with queries.jsonl and qrels/test.tsv",
        )
    chosen = set(random.Random(0).sample(candidates, min(queries, len(candidates))))
    held_out = {id_: split for id_, split in held_out.items() if id_ in chosen}
    queries_of = {f"first:{id_}": sentence for id_, (sentence, _) in held_out.items()}
    remaining = (held_out[document.id][1] if document.id in held_out else document for document in documents)
    write_beir(out, remaining, queries_of, {"test": [f"first:{id_}\t{id_}\t1" for id_ in held_out]})
    return len(held_out)
