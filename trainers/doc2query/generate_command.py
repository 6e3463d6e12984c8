"""The command `osn data generate-queries`."""

from __future__ import annotations

from pathlib import Path

import click

from opensearch_neural.commands.option_groups import options_of, setting_options
from opensearch_neural.errors import InputError
from trainers.data.loading import GENERATED, text_store
from trainers.data.negatives import RETRIEVERS, check_spec, open_retriever
from trainers.data.resumable_chunks import summary
from trainers.doc2query.settings import GenerationSettings

generation_options = options_of(GenerationSettings, "generation", *setting_options(GenerationSettings).values())


@click.command("generate-queries")
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The file of queries (jsonl).")
@generation_options
@click.option(
    "--consistency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep a query only if it finds its passage among the first N.",
)
@click.option(
    "--retriever", default="bm25", show_default=True, metavar="NAME", help=f"Retriever for --consistency: {RETRIEVERS}."
)
@click.option("--shard", default="1/1", show_default=True, metavar="I/N", help="Generate only part I of N.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Only the first N documents; unreadable records do not count."
)
@click.option("--device", help="cpu, cuda, …  [default: a GPU if there is one]")
def generate_queries_command(
    corpus: Path,
    output: Path,
    generation: GenerationSettings,
    consistency: int | None,
    retriever: str,
    shard: str,
    limit: int | None,
    device: str | None,
) -> None:
    """Generate queries for every document of a corpus.

    If it is interrupted, run the same command again to continue. Several shards can write to the same folder at once; the
    last to end joins the parts. (Without a common folder, copy the parts, `.OUTPUT.parts/`, to one place and run the
    command there again, without --shard.)

    \b
    osn data generate-queries scifact --model models/doc2query --output queries.jsonl
    osn data generate-queries scifact --model models/doc2query --consistency 10 --output queries.jsonl
    osn data generate-queries big --model models/doc2query --shard 1/4 --output queries.jsonl
    """
    if consistency is not None:
        check_spec(retriever)  # before the long work
    documents = text_store(corpus, limit=limit)
    if not len(documents):
        raise InputError(f"{corpus} holds no document with text")
    part, separator, parts = shard.partition("/")
    if not (separator and part.isdigit() and parts.isdigit()):
        raise InputError(f"--shard {shard}: expected I/N, such as 1/4")
    from trainers.doc2query.generate import filter_generated, generate_queries

    generated = output if consistency is None else output.with_name(f"{output.stem}.unfiltered{output.suffix}")
    if not generate_queries(generation, documents, output=generated, shard=(int(part), int(parts)), device=device):
        return
    if consistency is not None:
        engine = open_retriever(retriever, documents, device=device)
        filter_generated(generated, documents, engine, top=consistency, output=output)
    click.echo(summary(output, GENERATED), err=True)
    click.echo(output)
