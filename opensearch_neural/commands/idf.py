"""`osn idf`: the query side of inference-free retrieval, from a corpus."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command("idf")
@click.option("--corpus", help="Folder, file or data set of any kind that `osn ingest` reads; streamed.")
@click.option("--merge", multiple=True, type=click.Path(path_type=Path), help="Counts of a shard; repeatable.")
@click.option("--tokenizer", help="Hub id, model directory or tokenizer.json; default: BERT's word pieces.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The table to write, {token: weight}.")
@click.option("--counts", type=click.Path(dir_okay=False, path_type=Path), help="Write the counts, to be merged.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def idf(
    corpus: str | None,
    merge: tuple[Path, ...],
    tokenizer: str | None,
    out: Path | None,
    counts: Path | None,
    as_json: bool,
) -> None:
    """Write the IDF table of a corpus, in one pass over it; or of a corpus in shards, counted apart and merged.

    \b
    osn idf --corpus docs.jsonl.gz --out idf.json
    osn idf --corpus shard-1.jsonl.gz --counts counts-1.json
    osn idf --merge counts-1.json --merge counts-2.json --out idf.json

    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)); a token that no document holds weighs 1, special tokens 0.
    """
    from tqdm import tqdm

    from opensearch_neural.corpus import Rejected, read_corpus
    from opensearch_neural.errors import InputError
    from opensearch_neural.idf import DocumentFrequencies, save_idf
    from opensearch_neural.models.directory import minilm_directory
    from opensearch_neural.models.lexical import count_documents, idf_table
    from opensearch_neural.tokens import load_tokenizer, vocabulary_of

    if (corpus is None) == (not merge):
        what = "nothing to count" if corpus is None else "--corpus and --merge exclude each other"
        raise InputError(what, "give --corpus, or the counts of shards as --merge")
    if out is None and counts is None:
        raise InputError("nothing to write", "give --out for the table, --counts for counts to be merged")
    source = tokenizer or minilm_directory()
    if source is None:
        raise InputError("which word pieces are to be counted?", "give --tokenizer, the model's own directory")
    pieces = load_tokenizer(source)
    vocabulary = vocabulary_of(pieces)
    rejected: list[Rejected] = []
    if corpus is not None:
        contents = (document.contents for document in read_corpus(corpus, on_reject=rejected.append))
        # A terminal gets a bar that moves, a log a line now and then.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        with tqdm(contents, unit=" documents", desc="counting", mininterval=interval, maxinterval=interval) as stream:
            frequencies = count_documents(stream, pieces)
    else:
        frequencies = DocumentFrequencies(len(vocabulary))
        for path in merge:
            frequencies.merge(DocumentFrequencies.load(path, vocabulary))
    if rejected:
        first = rejected[0]
        print(f"warning: {len(rejected):,} records left out, the first in {first}", file=sys.stderr)
    if counts is not None:
        frequencies.save(counts, vocabulary)
    if out is not None:
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
