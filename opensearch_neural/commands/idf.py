"""`osn model idf`: the IDF table of a corpus, the query side of inference-free retrieval."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opensearch_neural.commands.option_groups import CORPUS, output_option
from opensearch_neural.errors import InputError


@click.command("idf")
@click.option("--corpus", help=f"{CORPUS}; streamed.")
@click.option("--merge", multiple=True, type=click.Path(path_type=Path), help="Counts of a shard; repeatable.")
@click.option("--tokenizer", help="Hub id, model directory or tokenizer.json; default: BERT's word pieces.")
@click.option(
    "--model", help="A sparse model, also a SPLADE: write it to --output with this corpus's table and its own weights."
)
@output_option("Where to write the table, {token: weight}; with --model, the model's folder.")
@click.option("--counts", type=click.Path(dir_okay=False, path_type=Path), help="Write the counts here, for --merge.")
@click.option("--trust-remote-code", is_flag=True, help="Run the code of --model. Read it first.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def idf(
    corpus: str | None,
    merge: tuple[Path, ...],
    tokenizer: str | None,
    model: str | None,
    out: Path | None,
    counts: Path | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Write the IDF table of a corpus in one pass. Shards of a corpus can be counted separately, then merged.

    \b
    osn model idf --corpus docs.jsonl.gz --output idf.json
    osn model idf --corpus shard-1.jsonl.gz --counts counts-1.json
    osn model idf --merge counts-1.json --merge counts-2.json --output idf.json
    osn model idf --corpus docs.jsonl.gz --model models/sparse --output models/sparse-docs
    osn model idf --corpus docs.jsonl.gz --model my-splade --output models/splade-docs

    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)); a token in no document has weight 1, special tokens have 0.
    """
    from opensearch_neural.commands.reading import reading
    from opensearch_neural.models.directory import minilm_directory
    from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of, write_with_statistics
    from opensearch_neural.models.sparse.idf import DocumentFrequencies, save_idf
    from opensearch_neural.models.sparse.lexical import count_documents, idf_table
    from opensearch_neural.models.tokenizer import load_tokenizer, vocabulary_of

    _check(corpus, merge, tokenizer, model, out, counts)
    source = model or tokenizer or minilm_directory()
    if source is None:
        raise InputError("the tokenizer is missing", "give --tokenizer, the model's own directory")
    pieces = load_tokenizer(source) if model is None else tokenizer_of(model, trust_remote_code=trust_remote_code)
    vocabulary = vocabulary_of(pieces)
    if corpus is not None:
        with reading(corpus, "counting") as (documents, rejected):
            frequencies = count_documents((document.contents for document in documents), pieces)
    else:
        rejected, frequencies = [], DocumentFrequencies(len(vocabulary))
        for path in merge:
            frequencies.merge(DocumentFrequencies.load(path, vocabulary))
    if counts is not None:
        frequencies.save(counts, vocabulary)
    if model is not None and out is not None:
        write_with_statistics(model, out, frequencies, trust_remote_code=trust_remote_code)
    elif out is not None:
        save_idf(out, idf_table(frequencies, pieces))
    result = {
        "documents": frequencies.n,
        "left_out": len(rejected),
        "average_length": frequencies.length / max(1, frequencies.n),
        "tokens": int((frequencies.counts > 0).sum()),
        "vocabulary": len(vocabulary),
    }
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{out or counts}: {frequencies.n:,} documents, {result['tokens']:,} of {len(vocabulary):,} tokens occur in them"
        )


def _check(
    corpus: str | None,
    merge: tuple[Path, ...],
    tokenizer: str | None,
    model: str | None,
    out: Path | None,
    counts: Path | None,
) -> None:
    """Raise InputError for options that do not fit together."""
    if (corpus is None) == (not merge):
        what = "nothing to count" if corpus is None else "--corpus and --merge exclude each other"
        raise InputError(what, "give --corpus, or the counts of shards as --merge")
    files = [path.resolve() for path in (*merge, out, counts) if path is not None]
    if len(set(files)) < len(files):
        raise InputError("a file is named twice", "give each shard once, and do not write over one")
    if out is None and counts is None:
        raise InputError("nothing to write", "give --output for the table, --counts for counts to be merged")
    if model is not None and (tokenizer is not None or out is None):
        raise InputError("--model has its own tokenizer, and needs --output", "give --model and --output")
    if out is not None and (out.is_dir() if model is None else out.exists()):
        raise InputError(f"{out} exists already", "name a file or, with --model, a new folder")
