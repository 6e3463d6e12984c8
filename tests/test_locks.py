from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opensearch_neural.locks import locked


def test_never_two_are_at_the_same_thing_and_no_file_stays(tmp_path: Path) -> None:
    made, inside, most = tmp_path / "new" / "thing", [], []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for _ in range(30):
            with locked(made) as held:
                assert held
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.0002)
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert (max(most), len(most)) == (1, 180)
    assert list(made.parent.iterdir()) == []


def test_who_does_not_wait_is_told_and_what_is_done_is_not_locked(tmp_path: Path) -> None:
    made, done = tmp_path / "thing", tmp_path / "thing.json"
    with locked(made), locked(made, wait=False) as second:
        assert not second
        done.touch()
        with locked(made, done=done) as third:
            assert third
    with locked(made, wait=False) as alone:
        assert alone


def test_a_folder_that_cannot_be_made_is_an_error_and_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError), locked(Path("new/thing")):
        pass
