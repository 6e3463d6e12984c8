"""`osn model urls`: the URLs of a corpus as tokens of a generative model, which then writes no others."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opensearch_neural.commands.option_groups import CORPUS, output_option, warn


@click.command()
@click.option("--corpus", required=True, help=f"{CORPUS}.")
@click.option("--model", required=True, help="A model of `osn train tome`: directory or hub id.")
@output_option("Folder to write.", required=True, file_okay=False)
@click.option(
    "--extend",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of an earlier run whose URLs are kept; may be the same as --output.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def urls(corpus: str, model: str, out: Path, extend: Path | None, as_json: bool) -> None:
    """Write the URLs of a corpus into a trie of tokens: a generative model that searches with it writes no other URLs.

    Documents can be added without training (--extend, or a larger corpus); a document with the same id replaces the earlier
    one. The model has not learned added documents by heart: it finds them only if their passages and URLs resemble known
    ones. The command prints their number.

    \b
    osn model urls --corpus tldr --model models/tome --output urls/tldr
    osn model urls --corpus new.jsonl --model models/tome --extend urls/tldr --output urls/tldr
    osn search --index tldr --engine tome --urls urls/tldr "list files by size"
    """
    from opensearch_neural.commands.reading import reading
    from opensearch_neural.models import registry
    from opensearch_neural.models.generative.generative_model import load_generative
    from opensearch_neural.models.generative.url_trie import CorpusUrls, check_folder

    check_folder(out)
    loaded = load_generative(model, device="cpu")
    before = None if extend is None else CorpusUrls.load(extend)
    if before is not None:
        loaded.check_urls(before)
    with reading(corpus, "reading") as (documents, rejected):
        pairs = ((document.id, document.url) for document in documents)
        made = (
            loaded.index_urls(pairs)
            if before is None
            else before.extended(pairs, loaded.encode, learned=loaded.learned)
        )
    unlearned = loaded.unlearned(made)
    made.save(out)
    registry.remember(loaded.info.hash, loaded.info.path)
    if as_json:
        counts = {"documents": len(made), "nodes": len(made.trie), "depth": made.trie.depth, "left_out": len(rejected)}
        if loaded.learned:
            counts["unlearned"] = unlearned
        print(json.dumps({"urls": str(out), "model": made.model, "corpus": made.corpus, **counts}))
    else:
        print(
            f"{out}: {len(made):,} URLs, the longest of {made.trie.depth} tokens, for the model {made.model['name']} "
            f"({made.model['hash']})"
        )
    if unlearned:
        warn(
            f"{made.model['name']} was not trained on {unlearned:,} of these documents: it has not learned to find them"
        )
