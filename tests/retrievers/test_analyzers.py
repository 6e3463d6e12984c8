"""The terms of OpenSearch's analyzers without OpenSearch: worked out by hand, and those of a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unicodedata import normalize

import pytest

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.analyzers import ANALYZERS, analyzer, german_stem

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

TEXTS = {
    "standard": "It's 3.5 kg: foo@bar.com, e-mail x_y 1,234.5 don't O’Neil U.S.A. naïve Straße 1'000 C++ 'quoted' it",
    "english": "The dog's owners weren't there; technologies possibly fly. Theology, ability, ably: us, as, is ponies! "
    "Relational conditional rationally hopping Bob’s apologies assembly biology flying days",
    "german": "Die Häuser der Städte waren größer als unsere neuen Straßen, weil es dass Quelle Goethe Mueller heißeste "
    "gab. Rasenmähern, Kindern, Autos, schönste Blumen, kleiner, Quallen, Zuege und Feuer",
    "dutch": "De kinderen van het kind reden op een fiets en aten een ei, terwijl mogelijkheden werkelijk gelopen",
    "norwegian": "Husene i byen var større enn båtene, og alle menneskene hadde mulighetene sine",
    "russian": "Сегодня человек сказал, что большие дома городов были красивыми и новыми",
    "swedish": "Flickorna i städerna sade att deras vänner hade möjligheter, och såg sina båtar",
}


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        ("standard", "The U.S.A.'s 3.5 apples, and X_y", ["the", "u.s.a", "s", "3.5", "apples", "and", "x_y"]),
        # Stop words: the. The possessive goes first; Porter: ponies → poni, technologies → technolog.
        ("english", "The dog’s ponies, US technologies", ["dog", "poni", "us", "technolog"]),
        ("german", "Die Häuser der neuen Städte", ["haus", "neu", "stadt"]),
        ("dutch", "het kind en de fiets", ["kinder", "fiets"]),
        ("swedish", "sitt hus", ["hus"]),
        ("english", "", []),
    ],
)
def test_terms_worked_out_by_hand(name: str, text: str, terms: list[str]) -> None:
    assert analyzer(name)(text) == terms


@pytest.mark.parametrize(
    ("word", "stem"),
    # An umlaut may be two letters, but not after a vowel or q; an ending leaves three letters; s needs a letter before it.
    [("mueller", "mull"), ("neue", "neu"), ("quelle", "quell"), ("ern", "ern"), ("autos", "autos"), ("parks", "park")],
)
def test_german_stems_are_light(word: str, stem: str) -> None:
    assert german_stem(word) == stem


@pytest.mark.parametrize("name", ANALYZERS)
def test_terms_are_those_of_opensearch(client: OpenSearch, name: str) -> None:
    # Decomposed accents, soft hyphens and joiners are within words.
    for text in (TEXTS[name], TEXTS[name].upper(), normalize("NFD", TEXTS[name]), "soft\u00adhyphen zero\u200cwidth"):
        asked = client.indices.analyze(body={"analyzer": name, "text": text})
        assert analyzer(name)(text) == [token["token"] for token in asked["tokens"]]


def test_another_analyzer_is_refused_with_those_that_can_be_followed() -> None:
    with pytest.raises(
        InputError, match="'french' of an index cannot be followed without a cluster: expected standard, eng"
    ):
        analyzer("french")
