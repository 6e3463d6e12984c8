"""Files that are never half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from opensearch_neural.files import replaced


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "vectors.npz"
    with replaced(file) as beside:
        beside.write_text("first")
        assert beside.suffix == ".npz" and not file.exists()
    with replaced(file) as beside:
        beside.write_text("second")
        assert file.read_text() == "first"
    assert file.read_text() == "second"
    assert list(file.parent.iterdir()) == [file]


def test_after_an_error_the_old_file_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for place in (tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(RuntimeError), replaced(place) as beside:
            beside.mkdir()
            (beside / "part").write_text("half")
            raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_a_folder_that_holds_something_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    with pytest.raises(OSError), replaced(tmp_path / "model") as beside:
        beside.mkdir()
    assert (tmp_path / "model" / "weights").read_text() == "old"
