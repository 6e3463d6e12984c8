"""Search for many queries at once, a hundred in a request, and write a line of JSON a query.

    python examples/batch.py queries.jsonl --index docs > hits.jsonl

queries.jsonl has {"_id": …, "text": …} a line; tsv is read, too. Queries without text are left out. The hits are ids and
scores, best first. In an index of passages the ids are those of documents. If hits are missing, since shards failed or the
time was over, the line says so in "shards_failed" or "timed_out".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

from opensearch_neural import OsnError, connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.judgements import read_queries
from opensearch_neural.engines import open_engines
from opensearch_neural.queries import best_passages, partial_answer

AT_ONCE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries")
    parser.add_argument("--index", required=True)
    parser.add_argument("--engine", default="bm25-sparse")
    parser.add_argument("--size", type=int, default=10)
    try:
        with translate_errors():
            search(parser.parse_args())
    except OsnError as error:
        sys.exit(f"error: {error}")


def search(arguments: argparse.Namespace) -> None:
    client = connect()  # OSN_URL, OSN_USER, …
    engines = open_engines(client, arguments.index)
    body_of = engines.body_of(arguments.engine)
    for queries in batches(read_queries(arguments.queries).items()):
        bodies = [body_of(text, arguments.size) | {"_source": False} for _, text in queries]
        lines = [part for body in bodies for part in ({}, body)]
        answers = client.msearch(index=arguments.index, body=lines)["responses"]
        for (query, _), body, answer in zip(queries, bodies, answers, strict=True):
            if "error" in answer:
                sys.exit(f"query {query}: {answer['error']['reason']}")
            documents = [(hit["_id"], hit) for hit in answer["hits"]["hits"]]
            if engines.meta.passages:
                documents = best_passages(body, answer["hits"]["hits"], size=arguments.size)
            hits = [{"id": id, "score": hit["_score"]} for id, hit in documents]
            print(json.dumps({"_id": query, "hits": hits, **partial_answer(answer)}))


def batches(queries: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    remaining = iter(queries)
    while batch := list(islice(remaining, AT_ONCE)):
        yield batch


if __name__ == "__main__":
    main()
