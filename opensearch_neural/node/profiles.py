"""The nodes that `osn node` can start: which OpenSearch, from which parts, on which Java."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import InputError


@dataclass(frozen=True)
class Profile:
    """One OpenSearch version with the plugins that are published for it."""

    name: str
    version: str
    java: int
    """The oldest Java that this version runs on."""
    plugins: tuple[str, ...]
    """Plugin classes, in the order in which they depend on one another."""

    @property
    def pom(self) -> Path:
        return Path(__file__).parent / f"{self.name}.xml"

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "full",
            "2.19.1",
            17,
            ("org.opensearch.knn.plugin.KNNPlugin", "org.opensearch.neuralsearch.plugin.NeuralSearch"),
        ),
        # No neural-search is published for 3.x, and the k-NN that is needs a module that is not: BM25, rank_features,
        # rescore and painless only.
        Profile("core", "3.5.0", 21, ()),
    )
}


def profile_named(name: str) -> Profile:
    try:
        return PROFILES[name]
    except KeyError:
        raise InputError(f"there is no profile {name!r}", f"profiles: {', '.join(PROFILES)}") from None
