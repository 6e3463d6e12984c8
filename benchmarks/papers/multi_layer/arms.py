"""The ways to represent documents that `osn paper multi-layer` compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainers.multi_layer.settings import chosen_layers

LAMBDAS = (0.01, 0.1, 1.0, 10.0)
CHOICES, COUNTS = ("last", "first", "uniform"), (2, 4, 6, 8)
"""Which layers, and how many; if two choices give the same layers, only the first is trained."""


@dataclass(frozen=True)
class Arm:
    """A way to represent documents."""

    name: str
    """Its name in results."""
    representation: Mapping[str, Any] | None = None
    """Fields of `RepresentationSettings`; None: the plain dual encoder."""
    two_stage: bool = False
    """Whether a second training uses the hard negatives that the first one mined."""
    repeated: bool = False
    """Whether it is also trained with the seeds that judge; if not, only with the first."""
    layers: str = ""
    """Its layers, if it has several, without their pooling: "MLR last:2"."""

    @property
    def is_rival(self) -> bool:
        return self.representation is not None and not self.layers


def mlr(layers: str | list[int], pooling: str, *, weight: float = 1.0, **more: Any) -> Arm:
    """Multi-layer representations. weight: λ; in the paper 1 for two layers and 0.1 for all (appendix A)."""
    named = layers if isinstance(layers, str) else ",".join(map(str, layers))
    name = f"MLR {named}, {pooling}" + (f", λ {weight:g}" if pooling == "self-contrastive" else "")
    representation = {"layers": layers, "pooling": pooling, "regularization": weight}
    return Arm(name, representation, layers=f"MLR {named}", **more)


def me_bert(count: int, pooling: str) -> Arm:
    settings = {"source": "first-tokens", "count": count, "pooling": pooling, "regularization": 1.0}
    return Arm(f"ME-BERT {count}, {pooling}", settings)


def colbert(pooling: str) -> Arm:
    return Arm(f"token vectors, {pooling}", {"source": "tokens", "pooling": pooling, "regularization": 0.01})


def in_two_stages(arm: Arm) -> Arm:
    return replace(arm, name=f"{arm.name}, two stages", two_stage=True, repeated=False)


DUAL = Arm("dual encoder", repeated=True)
SELF_CONTRASTIVE = mlr("last:2", "self-contrastive", repeated=True)
"""With the paper's λ; `best_on_dev` chooses the one that is used."""
MULTI_VECTOR = mlr("last:2", "multi-vector", repeated=True)


def of_lambdas() -> list[Arm]:
    return [mlr("last:2", "self-contrastive", weight=weight, repeated=True) for weight in LAMBDAS]


def layer_choices(depth: int) -> dict[tuple[int, ...], str]:
    """{layers: the first choice that gives them}, for all CHOICES and COUNTS possible at this depth of a backbone."""
    named: dict[tuple[int, ...], str] = {}
    for choice in (f"{choice}:{count}" for count in COUNTS if count <= depth for choice in CHOICES):
        named.setdefault(chosen_layers(choice, depth), choice)
    return named


def layer_arms(depth: int) -> list[Arm]:
    """m = 2, 4, 6, 8 of the last, first and uniform layers, if the backbone has as many; the counterpart of the paper's
    {10, 12} of 12 layers; and ME-BERT with 2, 4 and 8 vectors. Choices of the same layers occur once."""
    arms = {layers: mlr(name, "multi-vector") for layers, name in layer_choices(depth).items()}
    if depth >= 4:
        arms.setdefault((depth - 2, depth), mlr([depth - 2, depth], "multi-vector"))
    return [*arms.values(), *(me_bert(count, "multi-vector") for count in (2, 4, 8))]


def layer_points(depth: int, choice: str) -> list[tuple[int, str]]:
    """(number of layers, arm) for `choice`; layers that another choice gives too were trained under its name."""
    names = layer_choices(depth)
    chosen = {count: names[chosen_layers(f"{choice}:{count}", depth)] for count in COUNTS if count <= depth}
    return [(count, mlr(layers, "multi-vector").name) for count, layers in chosen.items()]
