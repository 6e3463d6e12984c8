"""Whose run a folder holds: settings that came later, or went, make no other run of it; settings that differ do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")

from opensearch_neural.errors import InputError
from opensearch_neural.files import write_json
from trainers.common import run_folder
from trainers.common.run_folder import RunFolder, history


@dataclass
class Loss:
    temperature: float = 1.0
    weight: float = 2.0


@dataclass
class Config:
    output: Path
    steps: int = 5
    names: list[str] = field(default_factory=list)
    loss: Loss = field(default_factory=Loss)


def stopped(folder: Path, saved: dict[str, object]) -> Path:
    """A folder in which training stopped, with the settings `saved` beside it."""
    run = RunFolder(folder, "kind", Config(folder, steps=9), "data")
    with run.started():
        pass  # As if the process had been killed.
    identity = {**run.identity, "configuration": "of another version"}
    write_json(run.folder / "run.json", identity)
    (folder / "training.yaml").write_text(yaml.safe_dump(saved))
    return folder


@pytest.mark.parametrize(
    "saved",
    [
        {"steps": 9, "names": [], "loss": {"temperature": 1.0, "weight": 2.0}},
        {"steps": 9, "loss": {"temperature": 1.0}},  # before `names` and `weight` were there
        {"steps": 9, "names": [], "loss": {"temperature": 1.0, "weight": 2.0, "gone": 3}},
        {"steps": 9, "names": [], "loss": {"temperature": 1.0, "weight": 2.0, "share": 1}},
    ],
)
def test_a_run_of_the_same_settings_goes_on(saved: dict[str, object], tmp_path: Path) -> None:
    folder = stopped(tmp_path / "model", saved)
    assert RunFolder(folder, "kind", Config(folder, steps=9), "data").ended() is None


@pytest.mark.parametrize(
    ("config", "field_"),
    [({"steps": 8}, "steps"), ({"loss": Loss(weight=3.0)}, "loss.weight"), ({"names": ["a"]}, "names")],
)
def test_a_run_of_other_settings_is_refused_by_their_names(
    config: dict[str, object], field_: str, tmp_path: Path
) -> None:
    folder = stopped(tmp_path / "model", {"steps": 9, "loss": {"temperature": 1.0}})
    changed: dict[str, object] = {"steps": 9, **config}
    with pytest.raises(InputError, match=f"another configuration \\({field_}: "):
        RunFolder(folder, "kind", Config(folder, **changed), "data").ended()  # type: ignore[arg-type]


def test_a_run_from_its_first_step_keeps_no_measures_of_one_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "model", "kind", Config(tmp_path / "model"), "data")
    names = ("history.jsonl", "questions.jsonl")
    with run.started():
        for name in names:
            (run.folder / name).write_text("{}\n")
    with run.started():
        assert [history(run.output, name) for name in names] == [[], []]


def test_a_configuration_of_several_dataclasses_may_lack_what_came_later(tmp_path: Path) -> None:
    def run(weight: float = 2.0) -> RunFolder:
        config = {"stage": "url", "settings": Loss(weight=weight)}
        return RunFolder(tmp_path / "model", "kind", config, "data")

    first = run()
    with first.started():
        pass
    write_json(first.folder / "run.json", {**first.identity, "configuration": "of another version"})
    saved = {"stage": "url", "settings": {"temperature": 1.0, "gone": 3}}  # before `weight` was there
    (first.output / "training.yaml").write_text(yaml.safe_dump(saved))
    assert run().ended() is None
    with pytest.raises(InputError, match=r"another configuration \(settings.weight: 2.0 there, 3.0 now\)"):
        run(weight=3.0).ended()


def test_a_start_may_lie_elsewhere_if_its_files_are_known_to_be_the_same(tmp_path: Path) -> None:
    def run(start: str, data: str = "data", made_from: dict[str, str] | None = None, steps: int = 1) -> RunFolder:
        config = {"start": start, "steps": steps}
        return RunFolder(tmp_path / "model", "kind", config, data, made_from, start_field="start")

    with run("here").started():
        pass
    assert run("there").ended() is None
    with pytest.raises(InputError, match=r"another configuration \(start: 'here' there, 'there' now\)"):
        run("there", "other data").ended()
    with pytest.raises(InputError, match=r"another configuration \(steps: 1 there, 2 now\)"):
        run("there", steps=2).ended()
    with pytest.raises(InputError, match="another configuration"):
        run("there", made_from={"start": "a"}).ended()
    with run("here", made_from={"start": "a"}).started():
        pass
    assert run("there", made_from={"start": "a"}).ended() is None
    with pytest.raises(InputError, match="another configuration"):
        run("there", made_from={"start": "b"}).ended()


def test_a_run_from_other_files_is_refused_and_one_that_did_not_note_them_goes_on(tmp_path: Path) -> None:
    def run(**made_from: str) -> RunFolder:
        return RunFolder(tmp_path / "model", "kind", Config(tmp_path / "model"), "data", made_from)

    with run(start="a", teachers="b").started():
        pass
    assert run(start="a", teachers="b").ended() is None
    with pytest.raises(InputError, match="holds a training run from another start"):
        run(start="c", teachers="b").ended()
    with pytest.raises(InputError, match="holds a training run with other teachers"):
        run(start="a", teachers="c").ended()
    with run().started():
        pass
    assert run(start="a", teachers="b").ended() is None


def test_a_failure_after_the_model_is_written_leaves_the_run_its_record(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "model", "kind", Config(tmp_path / "model"), "data")
    for ended in (False, True):
        with pytest.raises(KeyboardInterrupt), run.started():
            if ended:
                write_json(run.output / "osn.json", {"kind": "kind"})
            raise KeyboardInterrupt
        assert (run.folder / "run.json").exists() is ended


def test_a_folder_in_which_another_process_trains_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "WORKERS_END", 0.0)

    def run() -> RunFolder:
        return RunFolder(tmp_path / "model", "kind", Config(tmp_path / "model"), "data")

    first = run()
    with first.started():
        first.note({"step": 1})
        with pytest.raises(InputError, match="another process is training in"), run().started():
            pass
        assert history(first.output) == [{"step": 1}]
        assert (first.folder / "run.json").exists()
    with run().started():
        pass
    assert [path.name for path in first.folder.iterdir()] == ["run.json"], "a lock is left"


def test_a_line_of_the_log_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "model", "kind", Config(tmp_path / "model"), "data")
    with run.started():
        run.note({"step": 1})
        with (run.folder / "history.jsonl").open("a") as file:
            file.write('{"step": 2, "lo')
        run.note({"step": 3})
        run.note({"step": 4})
    assert [line["step"] for line in history(run.output)] == [1, 4]
