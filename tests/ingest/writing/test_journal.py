"""The journal survives what a crash does to files, and serves only the run that it belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingest.writing.journal import Identity, Journal, WrittenBatch
from opensearch_neural.errors import ClusterError

RUN = Identity("uuid", "/corpus.jsonl", "model", None, "[]")
FIRST, SECOND = WrittenBatch(0, 50, "aa", 49, 1), WrittenBatch(50, 100, "bb", 50, 0)


def written(path: Path) -> bytes:
    journal = Journal(path, RUN)
    journal.done(FIRST)
    journal.done(SECOND)
    journal.close()
    return path.read_bytes()


def reopened(path: Path, identity: Identity = RUN, *, restart: bool = False) -> dict[int, WrittenBatch]:
    journal = Journal(path, identity, restart=restart)
    journal.close()
    return journal.batches


def test_what_is_done_is_known_to_the_next_run(tmp_path: Path) -> None:
    written(tmp_path / "j")
    assert reopened(tmp_path / "j") == {0: FIRST, 50: SECOND}


def test_torn_at_any_byte_it_says_nothing_that_was_not_done(tmp_path: Path) -> None:
    whole = written(tmp_path / "j")
    ends = [position for position, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        (tmp_path / "j").write_bytes(whole[:cut])
        found = reopened(tmp_path / "j")
        # A line without its end may be whole by chance; it is never taken for another.
        complete = sum(end <= cut for end in ends)
        assert list(found.values()) == [FIRST, SECOND][: max(0, complete - 1)]
        # And what is appended after the tear can be read.
        journal = Journal(tmp_path / "j", RUN)
        journal.done(WrittenBatch(100, 150, "cc", 50, 0))
        journal.close()
        assert WrittenBatch(100, 150, "cc", 50, 0) in reopened(tmp_path / "j").values()


@pytest.mark.parametrize(
    "change",
    [{"index_uuid": "other"}, {"corpus": "/b.jsonl"}, {"sparse": "m2"}, {"dense": "d"}, {"reader": '["csv"]'}],
)
def test_a_journal_of_another_run_says_nothing(tmp_path: Path, change: dict[str, str]) -> None:
    written(tmp_path / "j")
    assert reopened(tmp_path / "j", replace(RUN, **change)) == {}
    assert replace(RUN, **change).hash != RUN.hash


def test_restart_forgets(tmp_path: Path) -> None:
    written(tmp_path / "j")
    assert reopened(tmp_path / "j", restart=True) == {}


def test_only_one_process_writes_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", RUN)
    with pytest.raises(ClusterError, match="another process"):
        Journal(tmp_path / "j", RUN)
    journal.remove()
    assert list(tmp_path.iterdir()) == []
    Journal(tmp_path / "j", RUN).close()
