"""Average the weights of sparse models that were trained from the same start; nothing is trained.

The average of a trained model and its start keeps more of what the start knew about other corpora (Wortsman and others,
"Robust fine-tuning of zero-shot models", 2022, section 3: half of each if there is no data to choose by). The average of
several trainings is a model soup (Wortsman and others, "Model soups", 2022). It encodes as fast as each of its parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import new_folder
from opensearch_neural.models import directory
from opensearch_neural.models.pretrained import cut_to_tokens, quiet
from opensearch_neural.models.safety import PICKLED
from opensearch_neural.models.sparse.encoder import document_modules, whole_masked_lm
from opensearch_neural.models.tokenizer import network_tokenizer, vocabulary_of

if TYPE_CHECKING:
    import torch

LEAST_ALIKE = 0.5
"""Least cosine between the word embeddings of two networks with the same start: training moves them little, while the cosine
of different starts is near 0."""


def write_average(models: Sequence[str | Path], out: Path, shares: Sequence[float] | None = None) -> None:
    """Write the sparse model directory `out`: the first of `models`, its network's weights averaged with the others'.

    The query table, prompts and limits are the first model's. shares: the weight of each model; None: equal. Raises
    InputError if `out` exists or models and shares do not fit together, ModelError for a model that is not sparse, and if
    tokens, pooling, architecture or start of the models differ.
    """
    if len(models) < 2:
        raise InputError("an average needs two models", "name the trained model and its start, or several trained ones")
    shares = [1.0] * len(models) if shares is None else list(shares)
    if len(shares) != len(models):
        raise InputError(f"{len(shares)} shares for {len(models)} models", "give one share for each model")
    if min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        listed = ", ".join(f"{share:g}" for share in shares)
        raise InputError(f"the shares are {listed}", "give numbers from 0, and at least one above 0")
    folders = [directory.locate(model) for model in models]
    recorded = [directory.read_osn_json(folder) or {} for folder in folders]
    for folder, its_record in zip(folders, recorded, strict=True):
        if (kind := its_record.get("kind", "sparse")) != "sparse":
            raise ModelError(f"{folder} is a {kind} model", "only sparse models can be averaged")
    (first, pooling), *others = [document_modules(folder) for folder in folders]
    queries = directory.routes(folders[0]).get("query", [])
    if any(module.type == "SpladePooling" for module in queries) and queries[0].path != first.path:
        raise ModelError(
            f"{folders[0]} encodes queries by a network of their own, which an average would leave as it is",
            f"give it a table first: `osn model idf --corpus CORPUS --model {models[0]} --output FOLDER`",
        )
    vocabulary = vocabulary_of(network_tokenizer(first.path, folders[0]))
    with new_folder(out) as written:
        network = whole_masked_lm(first.path)
        cut_to_tokens(network, len(vocabulary))
        mean = {name: shares[0] / sum(shares) * weights for name, weights in _weights(network).items()}
        for folder, (module, its), share in zip(folders[1:], others, shares[1:], strict=True):
            if (its.strategy, its.double_log) != (pooling.strategy, pooling.double_log):
                raise ModelError(f"{folder} pools logits differently from {folders[0]}")
            if vocabulary_of(network_tokenizer(module.path, folder)) != vocabulary:
                raise ModelError(f"{folder} has other tokens than {folders[0]}")
            other = whole_masked_lm(module.path)
            cut_to_tokens(other, len(vocabulary))
            _refuse_another(network, other, f"{module.path} and {first.path}")
            for name, weights in _weights(other).items():
                mean[name] += share / sum(shares) * weights
        network.load_state_dict(mean, strict=False)
        _write(network, folders[0], first.path, written)
        made_of = [
            {
                "model": directory.display_name(model),
                "hash": directory.hash_files(folder),
                "share": share / sum(shares),
                "training": its_record.get("training"),
            }
            for model, folder, share, its_record in zip(models, folders, shares, recorded, strict=True)
        ]
        directory.write_osn_json(written, "sparse", training={directory.AVERAGE: made_of})


def _weights(network: Any) -> Mapping[str, torch.Tensor]:
    """{name: tensor} of the learned weights; integer buffers stay as in the first model."""
    return {name: each for name, each in network.state_dict().items() if each.is_floating_point()}


def _refuse_another(network: Any, other: Any, both: str) -> None:
    """Raises ModelError if the networks have different architectures or different starts."""
    import torch

    def shape(model: Any) -> dict[str, Any]:
        settings = model.config.to_dict()
        return {name: value for name, value in settings.items() if not _says_nothing_of_shape(name)}

    sizes = [{name: each.shape for name, each in _weights(model).items()} for model in (network, other)]
    if sizes[0] != sizes[1] or shape(network) != shape(other):
        raise ModelError(f"{both} are networks of different architectures", "average models with the same start")
    own, its = (model.get_input_embeddings().weight.detach().flatten() for model in (network, other))
    if torch.nn.functional.cosine_similarity(own, its, dim=0) < LEAST_ALIKE:
        raise ModelError(
            f"{both} have different starts: their word embeddings differ", "average models with the same start"
        )


def _says_nothing_of_shape(setting: str) -> bool:
    return setting.startswith("_") or "dropout" in setting or setting in (
        "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range"
    )  # fmt: skip


def _write(network: Any, folder: Path, transformer: Path, written: Path) -> None:
    """Copy `folder` to `written`, with `network` instead of the network in its subfolder `transformer`."""
    left_out = shutil.ignore_patterns(*directory.OF_ITS_WEIGHTS, *PICKLED)
    weights = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json")

    def ignored(where: str, names: list[str]) -> set[str]:
        return left_out(where, names) | (weights(where, names) if Path(where) == transformer else set())

    shutil.copytree(folder, written, ignore=ignored)
    with quiet():
        network.save_pretrained(written / transformer.relative_to(folder))
