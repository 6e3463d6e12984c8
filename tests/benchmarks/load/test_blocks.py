"""How a run goes: turns, pace, and the blocks on disk that it continues from; and whose cluster it may load."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from runs import block

from benchmarks.load.blocks import BlockLog, Level, Pace, Turn, round_of
from benchmarks.load.measurement import LoadSettings
from benchmarks.load.workload import allowed_target
from opensearch_neural.cluster.authentication import authorization
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError
from opensearch_neural.index.contents import Contents

LEVELS = [Level("closed", 5), Level("closed", 80), Level("open", 20)]


def test_every_round_gives_every_engine_one_turn_at_every_level() -> None:
    turns = round_of(0, LEVELS, ["a", "b", "c"], seed=1)
    assert Counter((turn.level, turn.variant) for turn in turns) == {
        (level, name): 1 for level in LEVELS for name in "abc"
    }
    # Engines that are compared at a level are neighbours in time.
    assert [turn.level for turn in turns] == [
        level for level in dict.fromkeys(turn.level for turn in turns) for _ in "abc"
    ]


def test_turns_come_in_random_order_that_the_seed_decides() -> None:
    first = [round_of(number, LEVELS, ["a", "b", "c"], seed=1) for number in range(60)]
    assert first == [round_of(number, LEVELS, ["a", "b", "c"], seed=1) for number in range(60)]
    begins = Counter(turns[0].variant for turns in first)
    assert min(begins.values()) >= 8  # nobody is always first


def test_windows_are_as_long_as_the_requests_need() -> None:
    pace = Pace(requests=10_000, rounds=20, shortest=1.0, longest=60.0)
    turn = Turn(0, Level("closed", 20), "slow")
    assert pace.length(turn) == 1.0
    pace.learn(block(0, "slow", np.ones(50), level=Level("closed", 5), seconds=1.0))
    assert pace.length(turn) == pytest.approx(1.05 * 500 / 50)  # as fast as at the nearest level
    pace.learn(block(0, "slow", np.ones(1), level=Level("closed", 20), seconds=1.0))
    assert pace.length(turn) == 60.0
    assert pace.length(Turn(0, Level("open", 100.0), "slow")) == pytest.approx(1.05 * 500 / 100)


def test_more_clients_than_connections_are_refused() -> None:
    with pytest.raises(InputError, match="more than the generator has connections for: 800"):
        LoadSettings(clients=(5, 1000), processes=2).validate()
    LoadSettings(clients=(5, 1000), processes=3).validate()


def test_a_killed_run_continues_after_the_last_level_that_is_whole(tmp_path: Path) -> None:
    journal = BlockLog.open(tmp_path, {"a": 1}, engines=2)
    for number, name in ((0, "bm25"), (0, "fast"), (1, "fast"), (1, "bm25"), (2, "bm25")):
        journal.add(block(number, name, np.ones(3)))
    with (tmp_path / "blocks.jsonl").open("a") as file:
        file.write('{"round": 2, "varia')  # the process died while it wrote
    again = BlockLog.open(tmp_path, {"a": 1}, engines=2)
    assert [(each.round, each.variant) for each in again.blocks] == [(0, "bm25"), (0, "fast"), (1, "fast"), (1, "bm25")]
    assert again.blocks == journal.blocks[:4]
    again.add(block(2, "fast", np.ones(3)))
    assert len(BlockLog.open(tmp_path, {"a": 1}, engines=1).blocks) == 5


def test_a_run_that_goes_on_knows_what_the_index_held_before_its_first_block(tmp_path: Path) -> None:
    def contents(documents: int) -> dict[str, Contents | None]:
        return {"docs": {"docs-1": (documents, 9.0)}, "other": {"other": (documents, 1.0)}}

    unknown: dict[str, Contents | None] = {**contents(3), "other": None}
    assert BlockLog.open(tmp_path, {}, engines=1, contents=unknown).contents == unknown
    # Nothing was measured yet.
    journal = BlockLog.open(tmp_path, {}, engines=1, contents={**contents(4), "other": None})
    journal.add(block(0, "bm25", np.ones(3)))
    for _ in range(2):
        continued = BlockLog.open(tmp_path, {}, engines=1, contents=contents(5)).contents
        assert continued == {"docs": contents(4)["docs"], "other": contents(5)["other"]}
    # As earlier versions wrote it.
    lines = journal.path.read_text().splitlines(keepends=True)
    head = {name: value for name, value in json.loads(lines[0]).items() if name != "contents"}
    journal.path.write_text(json.dumps(head) + "\n" + "".join(lines[1:]))
    assert BlockLog.open(tmp_path, {}, engines=1, contents=contents(6)).contents == contents(6)


def test_blocks_survive_their_journey_through_the_file(tmp_path: Path) -> None:
    whole = block(3, "fast", np.array([1.0, 2.0]), failures={"timeout": 1}, level=Level("open", 2.5))
    BlockLog.open(tmp_path, {"a": 1}, engines=1).add(whole)
    assert BlockLog.open(tmp_path, {"a": 1}, engines=1).blocks == [whole]


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    BlockLog.open(tmp_path, {"queries": "a", "seed": 1}, engines=1).add(block(0, "bm25", np.ones(3)))
    with pytest.raises(InputError, match=r"another run \(differs in queries\)"):
        BlockLog.open(tmp_path, {"queries": "b", "seed": 1}, engines=1)
    assert BlockLog.open(tmp_path, {"queries": "b", "seed": 1}, engines=1, restart=True).blocks == []
    # Format 1 had latencies of closed loops that left out a part of the wait.
    path = tmp_path / "blocks.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text().splitlines()[0]), "format": 1}) + "\n")
    with pytest.raises(InputError, match="has format 1"):
        BlockLog.open(tmp_path, {"queries": "b", "seed": 1}, engines=1)
    assert BlockLog.open(tmp_path, {"queries": "b", "seed": 1}, engines=1, restart=True).blocks == []
    (tmp_path / "blocks.jsonl").write_text("not a journal\n")
    with pytest.raises(InputError, match="line 1: not the journal"):
        BlockLog.open(tmp_path, {}, engines=1)


def test_load_goes_to_this_machine_unless_the_user_owns_the_other() -> None:
    here = ConnectionSettings(urls=("http://localhost:9200", "http://127.0.0.1:9201", "http://[::1]:9202"))
    assert allowed_target(here, owned=False).addresses[2].host == "::1"
    elsewhere = ConnectionSettings(urls=("http://127.0.0.1:9200", "https://search.example.org"))
    with pytest.raises(InputError, match=r"another machine: https://search\.example\.org"):
        allowed_target(elsewhere, owned=False)
    assert allowed_target(elsewhere, owned=True).addresses[1].tls


def test_credentials_are_sent_and_never_shown() -> None:
    target = allowed_target(ConnectionSettings(user="ann", password="pässword"), owned=False)
    assert authorization(target.settings)["authorization"].startswith("Basic ") and "pässword" not in repr(target)
    with pytest.raises(InputError, match="sign requests for AWS"):
        allowed_target(ConnectionSettings(aws_region="eu-west-1"), owned=False)
