"""Whether an answer is whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def partial_answer(answer: Mapping[str, Any]) -> dict[str, str]:
    """What an answer lacks because shards failed or were absent, or time was up: {"shards_failed", "timed_out": in words}.

    A whole answer lacks nothing.
    """
    lacking = {}
    shards = answer.get("_shards", {})
    if failed := shards.get("failed", 0):
        reasons = [str(failure.get("reason", {}).get("reason")) for failure in shards.get("failures", [])]
        lacking["shards_failed"] = f"{failed} of {shards['total']} shards failed, and their hits are missing" + (
            f": {reasons[0]}" if reasons else ""
        )
    elif absent := shards.get("total", 0) - shards.get("successful", 0):
        # OpenSearch counts a shard that no node holds neither as failed nor as successful.
        lacking["shards_failed"] = (
            f"no node answers for {absent} of {shards['total']} shards, and their hits are missing"
        )
    if answer.get("timed_out"):
        lacking["timed_out"] = "the search timed out, and hits are missing"
    return lacking
