"""`osn model lexical`: the sparse model that needs no training, from a corpus's term statistics."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opensearch_neural.commands.option_groups import CORPUS, output_option


@click.command()
@click.option("--corpus", required=True, help=f"{CORPUS}.")
@output_option("Model directory to write.", required=True, file_okay=False)
@click.option(
    "--tokenizer", help="Hub id or path; default: BERT's word pieces or, without them, one trained on the corpus."
)
@click.option("--k1", default=1.2, show_default=True, help="How fast repeats of a token saturate.")
@click.option("--b", default=0.75, show_default=True, help="How much long documents are discounted, 0 to 1.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def lexical(corpus: str, out: Path, tokenizer: str | None, k1: float, b: float, as_json: bool) -> None:
    """Write a sparse model of a corpus: BM25 as impact weights, no torch, no download.

    \b
    osn model lexical --corpus docs.jsonl.gz --output models/lexical
    osn ingest docs.jsonl.gz --index docs --sparse models/lexical
    """
    from opensearch_neural.commands.reading import reading
    from opensearch_neural.files import new_folder
    from opensearch_neural.models.sparse.lexical import build_lexical

    with new_folder(out) as written, reading(corpus, "counting") as (documents, rejected):
        contents = (document.contents for document in documents)
        encoder = build_lexical(contents, tokenizer=tokenizer, k1=k1, b=b, name=out.name)
        encoder.save(written)
    if as_json:
        result = {
            "model": str(out),
            "hash": encoder.info.hash,
            "documents": encoder.documents,
            "left_out": len(rejected),
            "average_length": encoder.average_length,
            "vocabulary": len(encoder.vocabulary),
        }
        print(json.dumps(result))
    else:
        print(
            f"{out}: {encoder.documents:,} documents of {encoder.average_length:.1f} tokens on average, "
            f"{len(encoder.vocabulary):,} tokens in the vocabulary"
        )
