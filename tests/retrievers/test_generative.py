from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opensearch_neural.errors import InputError
from opensearch_neural.models.generative.settings import GenerativeSettings
from opensearch_neural.models.generative.url_trie import CorpusUrls
from opensearch_neural.retrievers.generative import GenerativeRetriever


class Writer:
    """A model that writes what it is told to: what is tested is what becomes of it."""

    def __init__(self, says: dict[str, str], identifiers: Any = "url") -> None:
        self.settings = GenerativeSettings(identifiers=identifiers)
        self.says = says
        self.beams = 0

        class Info:
            name, hash = "writer", "0123"

        self.info = Info()

    def check_urls(self, urls: CorpusUrls) -> None:
        assert urls.model["hash"] == self.info.hash

    def stage_two_inputs(self, queries: Sequence[str], *, batch_size: int = 32) -> list[str]:
        return [f"passage of {query}" for query in queries]

    def written(self, urls: CorpusUrls) -> list[str]:
        return [self.settings.identifier(url) for url in urls.urls]

    def find_urls(self, texts: Sequence[str], *, length: int | None = None, batch_size: int = 32) -> list[str]:
        return [self.says[text] for text in texts]

    def find_documents(
        self, texts: Sequence[str], urls: CorpusUrls, *, beams: int = 1, batch_size: int = 32
    ) -> list[list[tuple[int, float]]]:
        self.beams = beams
        return [[(row, -1.0 - row) for row in range(min(beams, len(urls)))] for _ in texts]


def urls_of(model: Writer, *urls: str) -> CorpusUrls:
    return CorpusUrls.build(
        ((f"d{at}", url) for at, url in enumerate(urls)),
        lambda url: [*model.settings.identifier(url).encode(), 0],
        model={"name": model.info.name, "hash": model.info.hash},
        length=80,
    )


def retriever(model: Writer, *urls: str, **options: Any) -> GenerativeRetriever:
    return GenerativeRetriever(model, urls_of(model, *urls), **options)  # type: ignore[arg-type]


def test_free_decoding_hits_by_an_exact_match_only() -> None:
    model = Writer({"passage of a": "https://x/1", "passage of b": "https://x/1/", "passage of c": ""})
    found = retriever(model, "https://x/0", "https://x/1", decoding="free").retrieve({"1": "a", "2": "b", "3": "c"}, 10)
    assert found == {"1": {"d1": 0.0}, "2": {}, "3": {}}


def test_free_decoding_matches_what_stands_for_the_url() -> None:
    digits = GenerativeSettings(identifiers="random").identifier("https://x/1")
    model = Writer({"passage of a": digits, "passage of b": "https://x/1"}, identifiers="random")
    found = retriever(model, "https://x/0", "https://x/1", decoding="free").retrieve({"1": "a", "2": "b"}, 10)
    assert found == {"1": {"d1": 0.0}, "2": {}}


def test_constrained_hits_are_the_best_k_of_the_beams() -> None:
    model = Writer({})
    three = retriever(model, "https://x/0", "https://x/1", "https://x/2", beams=3)
    assert three.retrieve({"1": "a", "2": "b"}, 2) == {q: {"d0": -1.0, "d1": -2.0} for q in ("1", "2")}
    assert model.beams == 3
    # Of an index positive: 1 / (1 − log p).
    assert three.find_urls("a", 2) == {"https://x/0": 1 / 2, "https://x/1": 1 / 3}
    assert three.retrieve({}, 2) == {}


def test_the_name_tells_engines_apart() -> None:
    model = Writer({})
    names = {
        retriever(model, "https://x/0", **options).name
        for options in ({"decoding": "free"}, {"beams": 1}, {"beams": 10})
    } | {retriever(model, "https://x/1").name}
    assert len(names) == 4


def test_what_cannot_be_is_refused() -> None:
    model = Writer({})
    with pytest.raises(InputError, match="decoding must be constrained or free, not 'greedy'"):
        retriever(model, "u", decoding="greedy")
    with pytest.raises(InputError, match="beams must be at least 1"):
        retriever(model, "u", beams=0)
    with pytest.raises(InputError, match="k must be at least 1"):
        retriever(model, "u").retrieve({"1": "a"}, 0)
