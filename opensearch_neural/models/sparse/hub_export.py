"""A sparse model as a folder that is ready for the Hugging Face hub: its files, and a model card.

The folder holds what `SparseEncoder(folder)` and `osn ingest --sparse` load. It does not hold the settings of the training
run, because they name folders of the training machine. The card lists what is recorded: names of the training data, measures
at the end of training, and the measurements that the caller gives.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ModelError
from opensearch_neural.files import new_folder, write_text
from opensearch_neural.models import directory
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.sparse.corpus_statistics import query_modules
from opensearch_neural.models.sparse.encoder import document_modules
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import network_tokenizer, vocabulary_of

LEFT_OUT = (*directory.OF_ITS_WEIGHTS, "osn.json", "*.py", "*.pyc")
WITH_TABLE = (
    "A sparse retrieval model without inference for queries: a network encodes documents into weights of {tokens:,} tokens, "
    "and a query is its tokens with the weights of a table."
)
BY_NETWORK = (
    "A sparse retrieval model: a network encodes documents and queries into weights of {tokens:,} tokens. "
    "opensearch-neural runs it for documents only; it weighs queries by a table, which it counts in the corpus."
)
PRUNED = "opensearch-neural prunes documents by `{pruning}` (`pruning.json`); sentence-transformers keeps all terms."


def export_for_hub(
    model: str | Path,
    out: Path,
    *,
    licence: str,
    name: str | None = None,
    language: str | None = None,
    base_model: str | None = None,
    measured: Sequence[str] = (),
    written_by: str = "opensearch-neural",
) -> Path:
    """Write the folder `out`; returns its card.

    licence: as the hub writes it, such as apache-2.0. name: the model's name in the card; None: the directory's name.
    base_model: a hub id. measured: the lines of a table of measurements (`evaluation.model_card`). written_by: the name and
    version of this program.

    Raises InputError if `out` exists; ModelError if the model is not sparse, not in the layout of sentence-transformers,
    encodes texts in another way than a sparse model, has code of its own, or is not safe to load.
    """
    folder = directory.locate(model)
    if directory.not_sparse(folder) is not None:
        raise ModelError(
            f"{folder} is not a sparse model, and the card is that of a sparse one",
            "upload that folder with a card of your own, without training.yaml, which names folders of this machine",
        )
    if directory.is_lexical(folder):
        raise ModelError(
            f"{folder} is the lexical model, which the hub's users cannot load",
            "it has no network: they build it from a corpus by `osn model lexical`",
        )
    if not any(directory.routes(folder).values()):
        raise ModelError(
            f"{folder} is not in the layout of sentence-transformers, which the hub's users load",
            f"`osn model idf --corpus CORPUS --model {model} --output FOLDER` writes a SPLADE in it, with a corpus's table",
        )
    refuse_unsafe(folder)
    if directory.has_own_code(folder):
        raise ModelError(
            f"{folder} has code of its own, and a card of ours would vouch for it",
            "upload that folder as it is, with a card that says what its code does",
        )
    # Without such a module, the hub's users run the network for queries, even if there is an idf.json for osn.
    query = TableEncoder.load(folder) if query_modules(folder) else None
    network, _ = document_modules(folder)
    vocabulary = query.vocabulary if query is not None else vocabulary_of(network_tokenizer(network.path, folder))
    tags = ["sparse-encoder", "sparse", "splade", *([] if query is None else ["inference-free"]), "opensearch"]
    head = {"license": licence, "language": language, "base_model": base_model}
    lines = [
        *["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items() if value)],
        *["library_name: sentence-transformers", "pipeline_tag: feature-extraction"],
        *[f"tags: [{', '.join(tags)}]", "---", ""],
        *[f"# {name or directory.display_name(model)}", ""],
        *_use((WITH_TABLE if query else BY_NETWORK).format(tokens=len(vocabulary)), Pruning.of_model(folder)),
        *_training_and_measures(directory.read_osn_json(folder) or {}, measured),
        f"Written by {written_by}.",
    ]
    with new_folder(out) as staged:
        shutil.copytree(folder, staged, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if query is not None and TableEncoder.load(staged).hash != query.hash:
            raise ModelError(f"a copy of {folder} is another model: one of its files is outside the folder")
        write_text(staged / "README.md", "\n".join(lines) + "\n")
    return out / "README.md"


def _use(sides: str, pruning: Pruning | None) -> list[str]:
    """The card's lines on how the model is used. sides: how it encodes queries and documents. pruning: the model's own."""
    return [
        *[sides, ""],
        "## Use",
        "",
        "```python",
        "from sentence_transformers import SparseEncoder",
        "",
        'model = SparseEncoder("THIS_MODEL")',
        'documents = model.encode_document(["…"])',
        'queries = model.encode_query(["…"])',
        "```",
        "",
        "With OpenSearch and [opensearch-neural](https://pypi.org/project/opensearch-neural/):",
        "",
        "    osn ingest docs.jsonl.gz --index docs --sparse THIS_MODEL",
        '    osn search --index docs "…"',
        "",
        *([] if pruning is None else [PRUNED.format(pruning=pruning), ""]),
    ]


def _training_and_measures(osn: Mapping[str, Any], measured: Sequence[str]) -> list[str]:
    """The card's lines on what is recorded. osn: the content of the model's `osn.json`, empty if there is none."""
    data = list(_data_names(osn.get("training") or {}))
    lines = ["## Training", "", f"Data: {', '.join(data)}." if data else "The training data are not recorded."]
    if parts := directory.averaged(osn.get("training")):
        names = [f"{part.get('model')} ({part.get('share'):.2g}, `{part.get('hash')}`)" for part in parts]
        lines.append(f"Its network is the average of {', '.join(names[:-1])} and {names[-1]}.")
    if osn.get("data_hash"):
        lines.append(f"Hash of the data: `{osn['data_hash']}`.")
    lines += ["", "## Measured", ""]
    measures = osn.get("measures") or {}
    if measures:
        lines += ["At the end of training, on its development sets:", "", "| measure | value |", "|---|---|"]
        lines += [f"| {measure} | {value:.4f} |" for measure, value in measures.items()] + [""]
    if measured:
        lines += [*measured, ""]
    if not (measures or measured):
        lines += ["Nothing is recorded.", ""]
    return lines


def _data_names(training: Any) -> Iterator[str]:
    """The names, never the paths, of the train sets: of the averaged models, of this training, and of its earlier stage."""
    names: dict[str, None] = {}
    for part in directory.averaged(training):
        names.update(dict.fromkeys(_data_names(part.get("training"))))
    stages = [training, training.get("pretraining")] if isinstance(training, Mapping) else []
    for stage in stages:
        sets = stage.get("train") if isinstance(stage, Mapping) else None
        for each in sets if isinstance(sets, list) else []:
            path = each.get("name") or each.get("path") if isinstance(each, Mapping) else each
            if path:
                names.setdefault(Path(str(path)).name.partition(".")[0])
    yield from names
