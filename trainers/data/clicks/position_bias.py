"""How likely a place is looked at, and a document clicked once it is: the position-based click model, fitted by EM.

    P(click | query, document, place) = propensity[place] * attraction[query, document]

A user looks at a place or not, whatever stands there, and clicks what they look at if it attracts them (Richardson et al.,
WWW 2007; Craswell et al., WSDM 2008). Both factors come from logs alone, without an experiment, by expectation
maximization (Chuklin et al., Click Models for Web Search, 2015, section 4.2; for search logs Wang et al., WSDM 2018). They
can be told apart only where some documents were shown for the same query at several places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PRIOR = 2.0
"""Impressions of mean attraction that each pair is given beforehand, so that one lucky click is not certainty."""
ROUNDS = 3_000
TOLERANCE = 1e-6
"""EM ends once no propensity moves by more."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PositionBias:
    """What EM found."""

    propensity: Floats
    """(places,), that of the first place is 1; NaN for a place that nothing connects with the first."""
    attraction: Floats
    """(pairs,), the chance of a click at the first place"""


def fit(pairs: Ints, places: Ints, shown: Floats, clicked: Floats, *, propensity: Floats | None = None) -> PositionBias:
    """The model of counted impressions: row i says that pair `pairs[i]` was shown `shown[i]` times at `places[i]` (from 0)
    and clicked `clicked[i]` times. propensity: where it is known, attraction alone is estimated.
    """
    count = int(pairs.max()) + 1
    known = propensity
    theta = 1.0 / (1.0 + np.arange(int(places.max()) + 1)) if known is None else known.astype(np.float64)
    reached = connected(pairs, places) if known is None else np.full(len(theta), True)
    kept = reached[places]
    pairs, places, shown, clicked = pairs[kept], places[kept], shown[kept], clicked[kept]
    impressions = np.bincount(pairs, shown, count)
    at_place = np.maximum(np.bincount(places, shown, len(theta)), 1e-9)
    gamma = np.full(count, clicked.sum() / max(1e-9, (shown * theta[places]).sum())).clip(1e-6, 0.999)
    for _ in range(ROUNDS):
        looked, attracted = theta[places], gamma[pairs]
        missed = np.maximum(1.0 - looked * attracted, 1e-12)
        # What an impression without a click was: looked at and not attractive, or attractive and not looked at.
        attractions = clicked + (shown - clicked) * attracted * (1.0 - looked) / missed
        looks = clicked + (shown - clicked) * looked * (1.0 - attracted) / missed
        gamma = (np.bincount(pairs, attractions, count) + PRIOR * gamma.mean()) / (impressions + PRIOR)
        if known is not None:
            moved = float(np.abs(gamma[pairs] - attracted).max())
        else:
            before = theta / theta[0]
            theta = np.where(reached, np.bincount(places, looks, len(theta)) / at_place, theta)
            moved = float(np.abs(theta / theta[0] - before)[reached].max())
        if moved < TOLERANCE:
            break
    return PositionBias(np.where(reached, theta / theta[0], np.nan), np.minimum(1.0, gamma * theta[0]))


def connected(pairs: Ints, places: Ints) -> npt.NDArray[np.bool_]:
    """(places,): whether pairs that were shown at several places connect a place with the first, maybe over others."""
    masks = np.zeros(int(pairs.max()) + 1, np.int64)
    np.bitwise_or.at(masks, pairs, np.int64(1) << places)
    reached, grows = 1, True
    while grows:
        joined = reached
        for mask in np.unique(masks).tolist():
            joined |= mask if mask & joined else 0
        grows, reached = joined != reached, joined
    return np.array([bool(reached >> place & 1) for place in range(int(places.max()) + 1)])
