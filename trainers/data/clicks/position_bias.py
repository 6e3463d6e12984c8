"""The position-based click model, fitted by EM.

    P(click | query, document, place) = propensity[place] * attraction[query, document]

A user looks at a place or not, whatever document is there, and clicks a document that they look at if it attracts them
(Richardson et al., WWW 2007; Craswell et al., WSDM 2008). Both factors are estimated from logs alone, without an
experiment, by expectation maximization (Chuklin et al., Click Models for Web Search, 2015, section 4.2; for search logs
Wang et al., WSDM 2018). They can be separated only if some documents were shown for the same query at several places;
propensities are estimated from these documents alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PRIOR = 2.0
"""Each pair starts with this many impressions of mean attraction, so that one lucky click does not give certainty."""
ROUNDS = 3_000
"""EM ends after this many rounds at most."""
TOLERANCE = 1e-6
"""EM ends when no propensity changes by more."""

FEW_CLICKS = 100
"""With this many clicks, the standard error of a propensity is at least a tenth of it."""
AS_MUCH = 0.99
"""A place with a propensity above this may be looked at more than the first."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PositionBias:
    """The result of EM."""

    propensity: Floats
    """(places,), 1 for the first place; NaN for a place that is not connected with the first (see `connected`)"""
    attraction: Floats
    """(pairs,), the chance of a click at the first place"""


def fit(pairs: Ints, places: Ints, shown: Floats, clicked: Floats, *, propensity: Floats | None = None) -> PositionBias:
    """Fits the model to counted impressions: row i says that pair `pairs[i]` was shown `shown[i]` times at `places[i]`
    (from 0) and clicked `clicked[i]` times. propensity: (places,), if known; then only attraction is estimated.
    """
    if propensity is None:
        reached = connected(pairs, places)
        several = np.bincount(pairs, minlength=int(pairs.max()) + 1) > 1
        # Only documents shown at several places show the effect of a place. With the prior, the others would bias it.
        moved = reached[places] & several[pairs]
        theta = np.full(len(reached), np.nan)
        theta[0] = 1.0
        if moved.any():
            ratios = _ratios(pairs[moved], places[moved], shown[moved], clicked[moved])
            theta[: len(ratios)] = ratios / ratios[0]
            theta[~reached] = np.nan
    else:
        theta = propensity.astype(np.float64)
    estimated = np.isfinite(theta[places])
    scale = 1 / max(1.0, float(np.nanmax(theta)))  # keeps probabilities below 1 if a lower place is looked at more
    _, gamma = _em(
        pairs[estimated], places[estimated], shown[estimated], clicked[estimated], theta * scale, PRIOR, known=True
    )
    attraction = np.full(int(pairs.max()) + 1, np.nan)
    attraction[: len(gamma)] = gamma * scale
    return PositionBias(theta, attraction)


def _ratios(pairs: Ints, places: Ints, shown: Floats, clicked: Floats) -> Floats:
    """Propensities of greatest likelihood, up to a common factor. They begin with the first place's, which is 1.

    EM never lowers a propensity of 1, so no other place gets more than the first. If one gets as much, a run from a lower
    start shows which place is looked at most, and EM begins again with 1 for that place. If the first place has no click,
    its propensity stays 1, since no click shows a lower one. A place with few clicks gets no more than the first.
    """
    start = (1.0 / (1.0 + np.arange(int(places.max()) + 1))).astype(np.float64)
    theta, _ = _em(pairs, places, shown, clicked, start, 0.0)
    enough = np.bincount(places, clicked, len(theta)) >= FEW_CLICKS
    if theta[1:].max(initial=0.0, where=enough[1:]) > AS_MUCH and clicked[places == 0].any():
        lower, _ = _em(pairs, places, shown, clicked, start / 2, 0.0)
        most = lower.max(where=enough, initial=float(lower[0]))
        theta, _ = _em(pairs, places, shown, clicked, np.minimum(lower / most, 1.0), 0.0)
        theta = np.where(enough, theta, np.minimum(theta, theta[0]))
    return theta


def _em(
    pairs: Ints, places: Ints, shown: Floats, clicked: Floats, theta: Floats, prior: float, *, known: bool = False
) -> tuple[Floats, Floats]:
    """(propensities, attractions) of greatest likelihood. theta: propensities to begin with; known: to keep fixed"""
    count = int(pairs.max()) + 1
    impressions = np.bincount(pairs, shown, count)
    at_place = np.bincount(places, shown, len(theta))
    gamma: Floats = np.full(count, 0.5)
    for _ in range(ROUNDS):
        looked, attracted = theta[places], gamma[pairs]
        missed = np.maximum(1.0 - looked * attracted, 1e-12)
        # Without a click, a document was looked at but not attractive, or attractive but not looked at.
        attractions = clicked + (shown - clicked) * attracted * (1.0 - looked) / missed
        looks = clicked + (shown - clicked) * looked * (1.0 - attracted) / missed
        mean = gamma[impressions > 0].mean()
        weighted = np.bincount(pairs, attractions, count) + prior * mean
        gamma = (weighted / np.maximum(impressions + prior, 1e-9)).astype(np.float64)
        if known:
            step = float(np.abs(gamma[pairs] - attracted).max())
        else:
            before = theta
            seen = np.bincount(places, looks, len(theta)) / np.maximum(at_place, 1e-9)
            theta = np.where(at_place > 0, seen, theta).astype(np.float64)
            step = float(np.abs(theta / theta[0] - before / before[0]).max())
        if step < TOLERANCE:
            break
    return theta, gamma


def connected(pairs: Ints, places: Ints) -> npt.NDArray[np.bool_]:
    """(places,): whether a place is connected with the first, by pairs shown at several places, maybe via other places."""
    masks = np.zeros(int(pairs.max()) + 1, np.int64)
    np.bitwise_or.at(masks, pairs, np.int64(1) << places)
    reached, grows = 1, True
    while grows:
        joined = reached
        for mask in np.unique(masks).tolist():
            joined |= mask if mask & joined else 0
        grows, reached = joined != reached, joined
    return np.array([bool(reached >> place & 1) for place in range(int(places.max()) + 1)])
