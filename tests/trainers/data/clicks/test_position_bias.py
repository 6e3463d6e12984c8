"""How often users look at each place of a result page, learned from clicks."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.data.clicks.position_bias import connected, fit

PROPENSITIES = np.array([1.0, 0.65, 0.45, 0.3, 0.2])


@pytest.mark.parametrize(("queries", "impressions", "error"), [(400, 100, 0.03), (3000, 4, 0.12)])
def test_known_propensities_and_attractions_are_recovered(queries: int, impressions: int, error: float) -> None:
    """Queries of 8 documents, ranked by a noisy quality that changes: good documents stand high, as in a real log.

    Few impressions of many pairs say as much: a prior over all pairs gave places what documents that never moved earn.
    """
    generator = np.random.default_rng(0)
    shown: dict[tuple[int, int], float] = {}
    attraction = generator.beta(1, 4, size=queries * 8)
    for query in range(queries):
        documents = np.arange(query * 8, query * 8 + 8)
        for _ in range(4):
            ranking = documents[np.argsort(-(attraction[documents] + generator.normal(0, 0.15, 8)))][
                : len(PROPENSITIES)
            ]
            for place, document in enumerate(ranking.tolist()):
                shown[document, place] = shown.get((document, place), 0) + impressions
    used = {document: at for at, document in enumerate(dict.fromkeys(document for document, _ in shown))}
    pairs = np.array([used[document] for document, _ in shown])
    places, counts = np.array([place for _, place in shown]), np.array(list(shown.values()))
    true = attraction[list(used)]
    clicked = generator.binomial(counts.astype(int), PROPENSITIES[places] * true[pairs]).astype(float)
    bias = fit(pairs, places, counts, clicked)
    assert bias.propensity == pytest.approx(PROPENSITIES, rel=0.08)
    assert np.abs(bias.attraction - true).mean() < error
    share = np.bincount(places, clicked) / np.bincount(places, counts)
    naive = share / share[0]
    assert np.abs(naive - PROPENSITIES).max() > 0.1, "clicks by place alone take good documents for eager users"
    known = fit(pairs, places, counts, clicked, propensity=PROPENSITIES)
    assert np.abs(known.attraction - true).mean() < error and known.propensity == pytest.approx(PROPENSITIES)


@pytest.mark.parametrize("looks", [(0.5, 1.0, 0.25), (0.3, 0.6, 0.9), (0.9, 0.9, 0.3)])
def test_a_place_may_be_looked_at_more_than_the_first(looks: tuple[float, ...]) -> None:
    """Before, no propensity was above that of the first place, and those of all other places were wrong, too."""
    generator = np.random.default_rng(0)
    attraction = generator.beta(1, 6, size=400)
    pairs = np.repeat(np.arange(400), 3)
    places, shown = np.tile(np.arange(3), 400), np.full(1200, 60.0)
    clicked = generator.binomial(60, np.array(looks)[places] * attraction[pairs]).astype(float)
    bias = fit(pairs, places, shown, clicked)
    assert bias.propensity == pytest.approx(np.array(looks) / looks[0], rel=0.08)
    assert np.abs(bias.attraction - looks[0] * attraction).mean() < 0.02, "the chance of a click at the first place"


def test_a_lucky_click_at_a_place_that_is_rarely_shown_changes_no_other_place() -> None:
    generator = np.random.default_rng(0)
    looks, attraction = np.array([1.0, 0.6, 0.4]), generator.beta(2, 4, size=60)
    pairs, places, shown = np.repeat(np.arange(60), 3), np.tile(np.arange(3), 60), np.full(180, 50.0)
    clicked = generator.binomial(50, looks[places] * attraction[pairs]).astype(float)
    plain = fit(pairs, places, shown, clicked)
    lucky = fit(np.append(pairs, 7), np.append(places, 3), np.append(shown, 1.0), np.append(clicked, 1.0))
    assert lucky.propensity[3] <= 1
    assert lucky.propensity[:3] == pytest.approx(plain.propensity, rel=0.01)
    assert np.abs(lucky.attraction - plain.attraction).max() < 0.02


def test_places_that_nothing_connects_with_the_first_are_not_guessed() -> None:
    pairs, places = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 1, 1, 2, 3, 4, 0])
    assert connected(pairs, places).tolist() == [True, True, True, False, False]
    bias = fit(pairs, places, np.full(7, 1e4), np.array([50.0, 25, 40, 20, 9, 3, 10]) * 100)
    assert np.isnan(bias.propensity).tolist() == [False, False, False, True, True]
    assert bias.propensity[:3] == pytest.approx([1, 0.5, 0.25], rel=0.06)
