"""When requests of an open loop begin: users do not wait for each other."""

from __future__ import annotations

import random


def poisson(rate: float, seconds: float, random_: random.Random) -> list[int]:
    """Arrival times in nanoseconds from 0 to `seconds`, of a Poisson process with `rate` arrivals a second.

    Gaps are exponential and independent, so several processes with a part of the rate each are together one Poisson
    process of the whole rate.
    """
    times, at = [], 0.0
    while rate > 0:
        at += random_.expovariate(rate)
        if at >= seconds:
            break
        times.append(int(at * 1e9))
    return times
