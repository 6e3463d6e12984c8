"""Search for many queries at once, a hundred in a request, and write a line of JSON a query.

    python examples/batch.py queries.jsonl --index docs > hits.jsonl

queries.jsonl has {"_id": …, "text": …} a line. The hits are ids and scores, best first. In an index of passages
the ids are those of documents.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from opensearch_neural import connect
from opensearch_neural.engines import open_engines
from opensearch_neural.queries import best_passages

AT_ONCE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", type=argparse.FileType("r", encoding="utf-8"))
    parser.add_argument("--index", required=True)
    parser.add_argument("--engine", default="bm25-sparse")
    parser.add_argument("--size", type=int, default=10)
    arguments = parser.parse_args()

    client = connect()  # OSN_URL, OSN_USER, …
    engines = open_engines(client, arguments.index)
    body_of = engines.body_of(arguments.engine)
    for queries in batches(json.loads(line) for line in arguments.queries):
        bodies = [body_of(query["text"], arguments.size) | {"_source": False} for query in queries]
        lines = [part for body in bodies for part in ({}, body)]
        answers = client.msearch(index=arguments.index, body=lines)["responses"]
        for query, body, answer in zip(queries, bodies, answers, strict=True):
            if "error" in answer:
                sys.exit(f"query {query['_id']}: {answer['error']['reason']}")
            documents = [(hit["_id"], hit) for hit in answer["hits"]["hits"]]
            if engines.meta.passages:
                documents = best_passages(body, answer["hits"]["hits"], size=arguments.size)
            hits = [{"id": id, "score": hit["_score"]} for id, hit in documents]
            print(json.dumps({"_id": query["_id"], "hits": hits}))


def batches(queries: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(queries, AT_ONCE)):
        yield batch


if __name__ == "__main__":
    main()
