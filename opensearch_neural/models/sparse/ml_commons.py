"""A sparse model in the format of ml-commons, OpenSearch's own model framework: zip files, each with its configuration.

The document encoder, SPARSE_ENCODING, is TorchScript with `tokenizer.json`: ml-commons passes input_ids and attention_mask,
and reads {"output": (batch, vocabulary)}. The query side, SPARSE_TOKENIZE, is `tokenizer.json` with `idf.json`. A model
without a query table has no such side: ml-commons encodes queries by SPARSE_ENCODING, too. Format: ml-commons 2.11 to 3.x,
SparseEncodingTranslator.java and SparseTokenizerModel.java; run on 2.19.1 by `make test-ml-commons`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.errors import ModelError
from opensearch_neural.files import replaced, write_json
from opensearch_neural.models import directory
from opensearch_neural.models.sparse import head as sparse_head
from opensearch_neural.models.sparse.corpus_statistics import queries_by_network
from opensearch_neural.models.sparse.table_encoder import QUERY_FILES, TableEncoder

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from opensearch_neural.models.sparse.encoder import SparseNetwork

logger = logging.getLogger(__name__)

SMALLEST_WEIGHT = 1e-6
"""Replaces 0 in idf.json: OpenSearch rejects a query with a token of weight 0, and a token left out would weigh 1."""
_EXAMPLE = "The traced model takes any number of texts of any length."


@dataclass(frozen=True)
class Exported:
    """A model in the format of ml-commons."""

    zip: Path
    """The archive with the model's files."""
    config: Path
    """The JSON body that registers it."""
    largest_difference: float | None = None
    """Between weights of the traced encoder and of the model; None for a query tokenizer."""


def export(
    model: str | Path,
    out: Path,
    *,
    name: str | None = None,
    version: str = "1.0.0",
    queries_only: bool = False,
    trust_remote_code: bool = False,
) -> list[Exported]:
    """Write the document encoder and the query tokenizer of a sparse model to the folder `out`.

    Of a model whose queries a network encodes, only the document encoder is written, which ml-commons runs for queries too;
    and the encoder of queries, if it is another one (a Router with two networks), or if the model prunes documents.

    name: the models' name in OpenSearch; default: the directory's name
    queries_only: write only the query tokenizer, which needs neither torch nor a network
    trust_remote_code: whether the model's own code may run

    Warns of a limit of tokens, which ml-commons does not apply to queries of a table, and of queries that need a network.
    Raises ModelError if `queries_only` is given and queries have no table of weights, if the model uses a prompt, which
    ml-commons cannot add, and, for an encoder, if the model is not a masked language model (the lexical model needs the
    text).
    """
    called = name or Path(directory.display_name(model)).name
    if queries_only:
        _refuse_without_table(model)
        query = TableEncoder.load(model)
        _check_queries(model, query)
        out.mkdir(parents=True, exist_ok=True)
        return [_export_queries(query, out, f"{called}-tokenizer", version)]
    from opensearch_neural.models.sparse.encoder import TorchSparseEncoder, load_sparse

    if queries_by_network(directory.locate(model, code=trust_remote_code)):
        return _export_networks(model, out, called, version, trust_remote_code)
    encoder = load_sparse(model, device="cpu", trust_remote_code=trust_remote_code)
    if not isinstance(encoder, TorchSparseEncoder):
        raise ModelError(
            f"{model}: its documents' weights are BM25 impacts, which TorchScript cannot compute",
            "ingest with osn ingest, which encodes them; --queries-only exports the query tokenizer",
        )
    _check_prompt(model, "documents", encoder.prompt)
    _check_queries(model, encoder.query)
    out.mkdir(parents=True, exist_ok=True)
    return [
        _export_encoder(encoder, "documents", out, f"{called}-doc", version),
        _export_queries(encoder.query, out, f"{called}-tokenizer", version),
    ]


def _export_networks(
    model: str | Path, out: Path, called: str, version: str, trust_remote_code: bool
) -> list[Exported]:
    """The encoder of documents and, if it is another one, that of queries."""
    from opensearch_neural.models.sparse.encoder import load_network, network_modules

    folder = directory.locate(model, code=trust_remote_code)
    same = network_modules(folder, "document") == network_modules(folder, "query")
    documents = load_network(model, device="cpu", trust_remote_code=trust_remote_code)
    queries = None if same else load_network(model, "query", device="cpu", trust_remote_code=trust_remote_code)
    if queries is not None and queries.vocabulary != documents.vocabulary:
        raise ModelError(
            f"{model}: its networks for queries and documents have different tokens, so their weights have no product"
        )
    _check_prompt(model, "documents", documents.prompt)
    _check_prompt(model, "queries", directory.prompt(folder, "query"))
    logger.warning(
        "%s has no table of query weights: ml-commons runs a network for each query, that of %s-%s",
        *(model, called, "doc" if same else "query"),
    )
    out.mkdir(parents=True, exist_ok=True)
    encodes = "documents and queries" if same else "documents"
    exported = [_export_encoder(documents, encodes, out, f"{called}-doc", version)]
    if queries is not None:
        exported.append(_export_encoder(queries, "queries", out, f"{called}-query", version))
    return exported


def _refuse_without_table(model: str | Path) -> None:
    """Raise ModelError for a sparse model whose queries a network encodes."""
    folder = directory.locate(model, files=QUERY_FILES)
    if queries_by_network(folder):
        directory.refuse_other_kinds(folder)
        raise ModelError(
            f"{folder}: its queries are encoded by a network, not by a tokenizer and a table of weights, so there is no "
            "query side to export alone",
            "without --queries-only its encoder is exported, which ml-commons runs for queries too; or "
            f"`osn model idf --corpus CORPUS --model {model} --output FOLDER` writes the model with your corpus's table",
        )


def _check_queries(model: str | Path, query: TableEncoder) -> None:
    _check_prompt(model, "queries", query.prompt)
    if query.max_active is not None:
        most = query.max_active
        logger.warning("%s: queries keep their %d heaviest tokens here; ml-commons searches with all", model, most)


def _check_prompt(model: str | Path, texts: str, prompt: str) -> None:
    if prompt:
        raise ModelError(f"{model}: {texts} are encoded after the prompt {prompt!r}, which ml-commons cannot add")


def _export_encoder(encoder: SparseNetwork, encodes: str, out: Path, name: str, version: str) -> Exported:
    """encodes: which texts, for the description"""
    import io

    import torch

    eager = _module(encoder)
    tokenizer = encoder.tokenizer
    short = _batch(tokenizer, [_EXAMPLE])
    with torch.inference_mode(), warnings.catch_warnings():
        # torch warns that TorchScript, which ml-commons reads, is deprecated, and that BERT's checks become constants.
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(eager, (short,), strict=False, check_trace=False)
        # Traced on one short text, compared on others: longer ones, several at once, padded, at the length limit.
        differences: list[float] = []
        truncation: Any = tokenizer.truncation
        limit = int(truncation["max_length"])  # words of the example: more than the limit in tokens
        for texts in ([_EXAMPLE, "word"], ["word"], [_EXAMPLE * limit, _EXAMPLE, ""]):
            batch = _batch(tokenizer, texts)
            differences.append(float((traced(batch)["output"] - eager(batch)["output"]).abs().max()))
        script = io.BytesIO()
        torch.jit.save(traced, script)
    # np.max keeps the NaN of a broken model; Python's `max` may drop it.
    largest = float(np.max(differences))
    if not largest <= 1e-4:
        raise ModelError(
            f"{encoder.info.name}: the traced model differs from the model by {largest:.2g}; nothing was written"
        )
    files = {f"{name}.pt": script.getvalue(), "tokenizer.json": tokenizer.to_str().encode()}
    described = f"Sparse encoder for the {encodes} of {encoder.info.name}, {encoder.info.hash}."
    return _write(out, name, version, "SPARSE_ENCODING", described, files, largest)


def _module(encoder: SparseNetwork) -> torch.nn.Module:
    """The encoder as one module, {"input_ids", "attention_mask"}: (batch, length) -> {"output": (batch, vocabulary)}.

    The head is the plain formula, since a trace would fix the number of loops over tiles.
    """
    import torch

    model, pooling, width = encoder.model, encoder.pooling, len(encoder.vocabulary)
    body: Any = model.body
    # The fast kernels check whether a mask is all ones, and a trace would keep its example's answer.
    body.set_attn_implementation("eager")
    kept = torch.ones(width)
    kept[torch.from_numpy(encoder.special_ids)] = 0

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            # Buffers, so that they are saved with the module.
            for named, tensor in {"weight": model.weight[:width], "bias": model.bias[:width], "kept": kept}.items():
                self.register_buffer(named, tensor)

        weight: torch.Tensor
        bias: torch.Tensor
        kept: torch.Tensor

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            mask = batch["attention_mask"]
            hidden = self.body(input_ids=batch["input_ids"], attention_mask=mask).logits
            logits = torch.nn.functional.linear(hidden, self.weight, self.bias)
            valid = mask.unsqueeze(-1).to(logits.dtype)
            if pooling.strategy == "sum":
                weights = sparse_head.activated(logits.relu(), double_log=pooling.double_log) * valid
                weights = weights.sum(dim=1)
            else:
                weights = sparse_head.activated((logits.relu() * valid).amax(dim=1), double_log=pooling.double_log)
            weights = weights * self.kept
            if pooling.max_active is not None and pooling.max_active < width:
                weights = weights * (weights >= weights.topk(pooling.max_active, dim=1).values[:, -1:])
            if pooling.prune is not None:
                weights = pooling.prune.dense(weights)
            return {"output": weights}

    return Encoder().eval().requires_grad_(False)


def _batch(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """Texts as ml-commons passes them: (texts, length of the longest), padded with 0."""
    import torch
    from tokenizers import Tokenizer

    padding = Tokenizer.from_str(tokenizer.to_str())
    padding.enable_padding(pad_id=0)
    encodings = padding.encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
        "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
    }


def _export_queries(query: TableEncoder, out: Path, name: str, version: str) -> Exported:
    table = {token: max(weight, SMALLEST_WEIGHT) for token, weight in query.weights.items()}
    files = {"idf.json": json.dumps(table).encode(), "tokenizer.json": query.tokenizer.to_str().encode()}
    described = f"Tokenizer and IDF table for the queries of {query.name}, {query.hash}."
    return _write(out, name, version, "SPARSE_TOKENIZE", described, files, None)


def _write(
    out: Path, name: str, version: str, function: str, described: str, files: Mapping[str, bytes], largest: float | None
) -> Exported:
    archive, config = out / f"{name}.zip", out / f"{name}.json"
    with replaced(archive) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as zipped:
        for member, content in files.items():
            # Without a fixed date, every export would have another hash.
            zipped.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
    content = archive.read_bytes()
    fields = {
        "name": name,
        "version": version,
        "description": described,
        "model_format": "TORCH_SCRIPT",
        "function_name": function,
        "model_content_size_in_bytes": len(content),
        "model_content_hash_value": hashlib.sha256(content).hexdigest(),
    }
    write_json(config, fields)
    return Exported(archive, config, largest)
