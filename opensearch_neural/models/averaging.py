"""One sparse model of several that began alike: their networks' weights averaged, nothing trained.

The average of a trained model and its start keeps more of what the start knew about other corpora (Wortsman and others,
"Robust fine-tuning of zero-shot models", 2022, section 3: half of each where there is nothing to choose by); that of several
trainings is a model soup (Wortsman and others, "Model soups", 2022). A document costs what it did with one of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError, MissingExtra, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.pretrained import load_model, quiet
from opensearch_neural.models.sparse import document_modules
from opensearch_neural.query_encoder import load_tokenizer, vocabulary_of

AVERAGE = "average"
"""In the training that `osn.json` records: the models that were averaged, by name, hash, share and own training."""


def write_average(models: Sequence[str | Path], out: Path, shares: Sequence[float] | None = None) -> None:
    """Write the sparse model directory `out`: the first of `models`, its network's weights averaged with the others'.

    All but the network is the first's: what weighs queries, what is kept of a document. shares: of each model, in any unit;
    None: all alike. Raises InputError where `out` is there already or models and shares do not fit together, ModelError for
    a model that is not sparse, and for two whose tokens, networks or pooling differ.
    """
    shares = [1.0] * len(models) if shares is None else list(shares)
    if len(models) < 2:
        raise InputError("an average needs two models", "name the trained model and its start, or several trained ones")
    if len(shares) != len(models) or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise InputError(
            f"{len(shares)} shares for {len(models)} models: {', '.join(f'{share:g}' for share in shares)}",
            "give each model a share from 0, and one of them more than 0",
        )
    if out.exists():
        raise InputError(f"{out} is there already", "name a folder that is not, or remove it")
    folders = [directory.locate(model) for model in models]
    (first, pooling), *others = [document_modules(folder) for folder in folders]
    for folder, (_, its) in zip(folders[1:], others, strict=True):
        if (its.strategy, its.double_log) != (pooling.strategy, pooling.double_log):
            raise ModelError(f"{folder} makes weights of logits in another way than {folders[0]}")
        if _vocabulary(folder) != _vocabulary(folders[0]):
            raise ModelError(f"{folder} has other tokens than {folders[0]}")
    network = _network(first.path)
    mean = {name: shares[0] / sum(shares) * tensor for name, tensor in _weights(network).items()}
    for (module, _), share in zip(others, shares[1:], strict=True):
        weights = _weights(_network(module.path))
        if {name: each.shape for name, each in weights.items()} != {name: each.shape for name, each in mean.items()}:
            raise ModelError(f"{module.path} is another network than {first.path}", "average models of one start")
        for name, tensor in weights.items():
            mean[name] += share / sum(shares) * tensor
    network.load_state_dict(mean, strict=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        written = Path(temporary) / "model"
        shutil.copytree(folders[0], written, ignore=shutil.ignore_patterns(".*", "training.yaml", "learned.jsonl"))
        with quiet():
            network.save_pretrained(written / first.path.relative_to(folders[0]))
        made_of = [
            {
                "model": directory.display_name(model),
                "hash": directory.hash_files(folder),
                "share": share / sum(shares),
                "training": (directory.read_osn_json(folder) or {}).get("training"),
            }
            for model, folder, share in zip(models, folders, shares, strict=True)
        ]
        directory.write_osn_json(written, "sparse", training={AVERAGE: made_of})
        written.rename(out)


def _vocabulary(folder: Path) -> list[str]:
    network = document_modules(folder)[0].path
    return vocabulary_of(load_tokenizer(network if (network / "tokenizer.json").exists() else folder))


def _network(folder: Path) -> Any:
    try:
        from transformers import AutoModelForMaskedLM
    except ModuleNotFoundError:
        raise MissingExtra("averaging models", "encode") from None

    network, missing = load_model(AutoModelForMaskedLM, folder, what="a masked language model")
    if missing:
        raise ModelError(f"{folder}: the weights lack {', '.join(missing[:3])}, so this is no masked language model")
    return network


def _weights(network: Any) -> dict[str, Any]:
    """{name: tensor} of what is learned; counts and positions are left as the first model has them."""
    return {name: each for name, each in network.state_dict().items() if each.is_floating_point()}
