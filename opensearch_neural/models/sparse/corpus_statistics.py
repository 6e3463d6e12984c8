"""Adapt a trained sparse model to another corpus: its weights stay, and its IDF table is counted on the new corpus.

`inference-free-sparse`, section 5.4.1 and table 5: for a model without pre-training the IDF of the searched corpus works
better than that of the training corpus (SPLADE-doc-distill: 49.13 over 48.61 nDCG@10, mean of BEIR), but for one that was
pre-trained with a fixed IDF it works worse (50.01 under 50.35). So measure both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opensearch_neural.errors import ModelError
from opensearch_neural.files import new_folder, read_json_object, write_json
from opensearch_neural.models import directory
from opensearch_neural.models.directory import Module
from opensearch_neural.models.sparse.encoder import document_modules, load_masked_lm
from opensearch_neural.models.sparse.idf import DocumentFrequencies, save_idf
from opensearch_neural.models.sparse.inference_free import write_inference_free
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import (
    load_tokenizer,
    lower_cases,
    network_tokenizer,
    special_tokens,
    vocabulary_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def write_with_statistics(
    model: str | Path, out: Path, frequencies: DocumentFrequencies, *, trust_remote_code: bool = False
) -> None:
    """Write the sparse model directory `out`: `model` with the IDF of a corpus.

    A model without a module that looks up queries (a SPLADE whose network encodes both sides, or a plain masked language
    model, also with an `idf.json`) becomes inference-free: its network encodes documents, the table weighs the tokens of
    queries.

    frequencies: of the corpus, counted with the model's own tokenizer. trust_remote_code: whether the model's own code may
    run; the network's code is then written too. Raises InputError if `out` exists, ModelError if the model does not fit.
    """
    folder = directory.locate(model, code=trust_remote_code)
    tokenizer = tokenizer_of(folder, trust_remote_code=trust_remote_code)
    vocabulary = vocabulary_of(tokenizer)
    if len(frequencies.counts) != len(vocabulary):
        raise ModelError(f"{folder}: {len(vocabulary)} tokens, but {len(frequencies.counts)} were counted")
    table = frequencies.idf_table(vocabulary, special=special_tokens(tokenizer))
    if not query_modules(folder):
        write_with_table(folder, out, table, trust_remote_code=trust_remote_code)
        return
    with new_folder(out) as written:
        shutil.copytree(folder, written, ignore=shutil.ignore_patterns(".*"))
        save_idf(written / "idf.json", table)
        for module in query_modules(written):
            _write_static_weights(module.path, table, vocabulary)


def write_with_table(splade: Path, out: Path, table: Mapping[str, float], *, trust_remote_code: bool = False) -> None:
    """Write a SPLADE without a query table as the inference-free model `out`, with this table {token: weight}.

    trust_remote_code and errors: as in `write_with_statistics`.
    """
    network, pooling = document_modules(splade)
    with new_folder(out) as written:
        write_inference_free(
            network.path,
            written,
            table,
            strategy=pooling.strategy,
            activation="log1p_relu" if pooling.double_log else "relu",
            max_active=pooling.max_active,
            max_length=directory.configured_length(network.path),
            # The query prompt is left out: it instructs a network, but a table would look up its words.
            document_prompt=directory.prompt(splade, "document"),
            trust_remote_code=trust_remote_code,
        )
        if pooling.prune is not None:
            pooling.prune.save(written)


def tokenizer_of(model: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a sparse model's module that looks up queries or, without one, of its network.

    trust_remote_code: whether the model's own code may run. Raises ModelError if such a network cannot encode documents or
    get a table, and for the lexical model, so that the error comes before a corpus is read.
    """
    folder = directory.locate(model, code=trust_remote_code)
    if directory.is_lexical(folder):
        raise ModelError(
            f"{folder} is the lexical model: its documents are weighed by the statistics of a corpus, too",
            f"`osn model lexical --corpus CORPUS --tokenizer {folder / 'tokenizer.json'} --output FOLDER` counts them all",
        )
    if query_modules(folder):
        return TableEncoder.load(folder).tokenizer
    network, _ = document_modules(folder)
    load_masked_lm(network.path, "cpu", trust_remote_code=trust_remote_code)
    tokenizer = network_tokenizer(network.path, folder)
    if directory.lower_cases(network.path) and not lower_cases(load_tokenizer(network.path)):
        raise ModelError(
            f"{network.path}: do_lower_case lower-cases texts for a tokenizer that does not",
            "set do_lower_case in tokenizer_config.json: a table of queries has no other setting",
        )
    if len(tokens := vocabulary_of(tokenizer)) != tokenizer.get_vocab_size():
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.get_vocab_size()} tokens, but ids up to {len(tokens) - 1}",
            "add tokens for the ids between: sentence-transformers' table of queries has one weight for each token",
        )
    return tokenizer


def query_modules(folder: Path) -> list[Module]:
    """The modules by which sentence-transformers, too, looks up a sparse model's queries in a table."""
    routes = directory.routes(folder)
    return [module for module in routes.get("query", routes.get("", [])) if module.type == "SparseStaticEmbedding"]


def has_query_table(folder: Path) -> bool:
    """Whether a sparse model has its own table of query weights: an `idf.json`, or a module."""
    return (folder / "idf.json").exists() or bool(query_modules(folder))


def queries_by_network(folder: Path) -> bool:
    """Whether a network encodes the queries of a sparse model, as in a SPLADE without a query table."""
    return not has_query_table(folder)


def _write_static_weights(module: Path, table: dict[str, float], vocabulary: list[str]) -> None:
    """Write the table into a SparseStaticEmbedding: into its tensor, also if its config named a file with a table."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    weights = np.array([table[token] for token in vocabulary], dtype=np.float32)
    config = read_json_object(module / "config.json", missing_ok=True)
    if isinstance(table_file := config.pop("path", None), str) and table_file.endswith(".json"):
        # sentence-transformers would read the old table, at the place where the model was built.
        (module / Path(table_file).name).unlink(missing_ok=True)
        write_json(module / "config.json", config)
    else:
        present = load_file(module / "model.safetensors")["weight"].copy()
        present[: len(vocabulary)] = weights
        weights = present
    save_file({"weight": weights}, module / "model.safetensors")
