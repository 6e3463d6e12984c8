"""The benchmark of query encoding: what is timed, and what the goal is judged by."""

from __future__ import annotations

from benchmarks.speed.query_encoding import first_lines, summarize, time_queries
from opensearch_neural.models.lexical import build_lexical

TEXTS = ["The sky shows a rainbow after rain.", "A file is opened for reading and closed again."]


def test_each_query_is_timed_when_it_is_met_first_and_again() -> None:
    encoder = build_lexical(TEXTS).query
    first, again = time_queries(encoder, TEXTS)
    assert len(first) == len(again) == 2
    assert min(first + again) > 0


def test_the_goal_is_judged_by_queries_that_are_met_first() -> None:
    slow_at_first = summarize("set", [50.0, 150.0, 250.0], [5.0, 5.0, 5.0], [0.1], []).validate()
    encoding, importing = slow_at_first.goals
    assert (encoding.value, encoding.met, importing.met) == (150.0, False, True)
    assert summarize("set", [50.0, 60.0, 250.0], [5.0], [0.4], []).goals[0].met


def test_queries_are_first_lines_of_the_length_of_a_query() -> None:
    assert first_lines(["Open a file for reading.\n\nMore.", "Too short", "Open a file for reading.\nOther."]) == [
        "Open a file for reading."
    ]
