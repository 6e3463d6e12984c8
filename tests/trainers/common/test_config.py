"""Configuration: what is in the file arrives typed, and what is wrong is named by file, line and field."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import click
import pytest
import yaml
from click.testing import CliRunner

from opensearch_neural.cli import osn
from opensearch_neural.errors import InputError
from trainers.common.config import (
    config_options,
    explained_yaml,
    fingerprint,
    load_config,
    recipe,
    save_config,
    to_dict,
)
from trainers.doc2query.question_sets import QuestionSet
from trainers.sparse.settings import SparseConfig


@dataclass
class Speed:
    learning_rate: float = 1e-3
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError("learning_rate must be above 0")


@dataclass
class Source:
    """A place to read from."""

    path: Path
    """a file, or
    a folder"""
    split: str = "train"


@dataclass
class Config:
    output: Path
    training: Speed = field(default_factory=Speed)
    train: list[Source] = field(default_factory=list)
    pooling: Literal["cls", "mean"] = "mean"
    share: float | int | None = None
    weights: list[float] = field(default_factory=list)
    tied: bool = True
    start: str | None = "a/model"


@dataclass
class Faster:
    training: Speed = field(default_factory=lambda: Speed(learning_rate=5.0))
    other: Speed | None = None


@dataclass
class Nested:
    """sources: where from. more: others."""

    sources: list[Source]
    more: list[Source] = field(default_factory=list)


TEXT = """\
output: models/x
training:
  learning_rate: 2e-5
train:
  - path: a
    split: dev
  - path: b
share: 3
weights: [1, 2.5e-1]
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_values_arrive_as_their_types(tmp_path: Path) -> None:
    config = load_config(Config, written(tmp_path))
    assert config.training.learning_rate == 2e-5  # YAML 1.1 reads 2e-5 as text
    assert config.train == [Source(Path("a"), "dev"), Source(Path("b"))]
    assert config.share == 3 and isinstance(config.share, int)
    assert config.weights == [1.0, 0.25]


def test_overrides_come_last_and_reach_into_what_is_nested(tmp_path: Path) -> None:
    overrides = ["training.steps=5", "pooling=cls", "train=[{path: c}]", "share=0.5", "training.steps=7", "weights=[1]"]
    config = load_config(Config, written(tmp_path), overrides)
    assert (config.training.steps, config.pooling, config.share) == (7, "cls", 0.5)
    assert config.training.learning_rate == 2e-5
    assert config.train == [Source(Path("c"))]
    assert config.weights == [1.0]
    assert load_config(Config, None, ["output=y"]).output == Path("y")


@pytest.mark.parametrize("value", [".nan", "nan", ".inf", "-.inf", "1e400", "1" + 400 * "0"])
def test_a_number_is_finite(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match=r"c\.yaml, line 3: training\.learning_rate: expected a number, found "):
        load_config(Config, written(tmp_path, TEXT.replace("2e-5", value)))
    with pytest.raises(InputError, match=r"--set weights: weights\[0\]: expected a number"):
        load_config(Config, written(tmp_path), [f"weights=[{value}]"])


def test_what_is_saved_is_read_back_equal(tmp_path: Path) -> None:
    config = load_config(Config, written(tmp_path))
    assert load_config(Config, save_config(config, tmp_path)) == config
    assert to_dict(config)["output"] == "models/x"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("output: x\ntraining:\n  learning_rat: 1", "line 3", "no field 'training.learning_rat'"),
        ("output: x\ntraining:\n  steps: many", "line 3", "training.steps: expected an integer, found 'many'"),
        ("output: x\ntraining:\n  steps: 1.5", "line 3", "expected an integer, found 1.5"),
        ("output: x\ntrain:\n  - split: a", "line 3", "'train[0].path' is missing"),
        ("output: x\npooling: max", "line 2", "pooling: expected one of cls, mean, found 'max'"),
        ("output: x\ntied: 1", "line 2", "tied: expected true or false, found 1"),
        ("output: x\ntraining: {learning_rate: 0}", "line 2", "learning_rate must be above 0"),
        ("output: x\noutput: y", "line 2", "'output' is given twice"),
        ("train: []", "line 1", "'output' is missing"),
        ("output: [", "line 1", "not valid YAML"),
        ("output: x\ntrian:\n  - a", "line 2", "no field 'trian'"),
        ("- 1", "line 1", "expected fields with values"),
        ("output: x\n? [a, b]\n: 1", "line 2", "a field's name must be a word"),
        ("output: x\ntraining:\n  steps: !!int abc", "line 3", "invalid literal"),
        ("output: x\ntraining:\n  steps: 2026-13-45", "line 3", "month must be in 1..12"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_field(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as failure:
        load_config(Config, path)
    assert str(failure.value).startswith(f"{path}, {place}")
    assert message in str(failure.value)


def test_the_training_of_an_earlier_version_is_read_with_settings_that_were_gone_meanwhile(tmp_path: Path) -> None:
    earlier = written(tmp_path, save_config(SparseConfig(train=[QuestionSet(Path("a"))]), tmp_path).read_text())
    config, named = load_config(SparseConfig, earlier), earlier.read_text()
    for line in ("  base_share: 1.0\n", "  idf_rate: null\n", "  least_terms: null\n"):
        assert named.count(line) == 1
        assert load_config(SparseConfig, written(tmp_path, named.replace(line, ""))) == config


def test_what_is_no_yaml_is_named_by_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, "output: x\x01")
    with pytest.raises(InputError, match="not valid YAML") as failure:
        load_config(Config, path)
    assert str(failure.value).startswith(str(path))
    for endless in ("output: &x [*x]", "output: {a: &x {b: *x}}", f"output: {'[' * 2000}{']' * 2000}"):
        with pytest.raises(InputError, match=r"c\.yaml: a value is nested too deeply, or holds itself"):
            load_config(Config, written(tmp_path, endless))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.stepz=1", "--set training.stepz: there is no field"),
        ("training.steps=a", "--set training.steps: expected an integer"),
        ("steps", "expected FIELD=VALUE"),
        ("train=[", "not valid YAML"),
        ("train=&x [*x]", "--set train=&x .*: a value is nested too deeply, or holds itself"),
    ],
)
def test_a_mistaken_override_is_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(Config, written(tmp_path), [override])


def test_what_is_not_given_keeps_the_default_of_where_it_stands() -> None:
    assert load_config(Faster, None, ["training.steps=7", "other.steps=3"]) == Faster(Speed(5.0, 7), Speed(1e-3, 3))


def test_a_value_that_does_not_fit_blames_no_other_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--set: training: learning_rate must be above 0"):
        load_config(Config, None, ["output=x", "training.steps=4", "training.learning_rate=0"])


def test_a_missing_file_and_a_missing_recipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_config(Config, tmp_path / "none.yaml")
    with pytest.raises(InputError, match="no recipe 'nothing'"):
        recipe("nothing")


def test_fingerprints_differ_where_a_value_does(tmp_path: Path) -> None:
    config = load_config(Config, written(tmp_path))
    other = load_config(Config, written(tmp_path), ["training.steps=5"])
    assert fingerprint(config) == fingerprint(load_config(Config, written(tmp_path)))
    assert fingerprint(config) != fingerprint(other)


def test_a_command_gets_its_configuration_and_can_print_it(tmp_path: Path) -> None:
    seen: list[tuple[Config, bool]] = []

    @click.command()
    @config_options(Config)
    def command(config: Config, dry_run: bool) -> None:
        seen.append((config, dry_run))

    arguments = ["--config", str(written(tmp_path)), "--set", "pooling=cls", "--output", "models/z"]
    assert CliRunner().invoke(command, [*arguments, "--dry-run"]).exit_code == 0
    config, dry_run = seen[0]
    assert (config.pooling, config.output, dry_run) == ("cls", Path("models/z"), True)
    printed = CliRunner().invoke(command, [*arguments, "--print-config"])
    (tmp_path / "printed.yaml").write_text(printed.stdout)
    assert load_config(Config, tmp_path / "printed.yaml") == config
    assert len(seen) == 1


@pytest.mark.parametrize(
    "text",
    ["models/run #2", "2026-11-28", "2024", "010", "@scope/model", "models/a: b", "[a]", "null", "true", "models/😀"],
)
def test_an_output_and_a_shortcut_are_taken_as_they_are(tmp_path: Path, text: str) -> None:
    seen: list[Config] = []

    @click.command()
    @config_options(Config, shortcuts={"start": ("start", "A model.")})
    def command(config: Config, dry_run: bool) -> None:
        seen.append(config)

    arguments = ["--config", str(written(tmp_path)), "--output", text, "--start", text]
    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    assert seen[0].output == Path(text)
    assert seen[0].start == (None if text == "null" else text)


@pytest.mark.parametrize(("text", "layers"), [("4", [4]), ("2, 4,6", [2, 4, 6]), ("last:2", "last:2")])
def test_numbers_of_layers_are_a_list(text: str, layers: list[int] | str) -> None:
    arguments = ["train", "mlr", "--layers", text, "--set", "train=[{path: x}]", "--output", "x", "--print-config"]
    result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
    assert yaml.safe_load(result.stdout)["representation"]["layers"] == layers


def test_what_is_printed_explains_each_part_once_and_shows_what_has_to_be_given() -> None:
    """As a user with nothing in hand, I ask for the fields and get a file to fill in."""

    shown = explained_yaml(load_config(Nested, fill=True))
    assert (
        shown
        == """\
# sources: where from. more: others.

# A place to read from.
#   path: a file, or a folder
sources:
- path: …
  split: train
more: []
"""
    )


@pytest.mark.parametrize("method", ["dense", "sparse", "mlr", "jpq", "mlm", "doc2query", "query-as-context", "tome"])
def test_every_training_prints_a_configuration_to_fill_in(method: str) -> None:
    printed = CliRunner().invoke(osn, ["train", method, "--print-config"], catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    assert "output: " in printed.stdout and "\n  batch_size: " in printed.stdout


def test_a_configuration_of_which_either_of_two_fields_is_given_is_printed_with_both() -> None:
    def printed(*overrides: str) -> str:
        arguments = ["train", "mlm", "--print-config", *(word for one in overrides for word in ("--set", one))]
        return CliRunner().invoke(osn, arguments, catch_exceptions=False).stdout

    assert "\nbackbone: …\n" in printed() and "\nnew:\n  architecture: bert\n" in printed()
    assert "\nbackbone: here\n" in printed("backbone=here") and "\nnew: null\n" in printed("backbone=here")
    assert "\nbackbone: null\n" in printed("new.layers=2") and "\n  layers: 2\n" in printed("new.layers=2")
    neither = CliRunner().invoke(osn, ["train", "mlm", "--output", "out", "--set", "corpus=[a]"])
    assert str(neither.exception).startswith("the configuration: expected either 'backbone'")


@pytest.mark.parametrize("method", ["dense", "sparse", "mlr", "mlm", "doc2query", "query-as-context", "tome"])
def test_whatever_starts_from_a_backbone_is_told_it_alike(method: str) -> None:
    arguments = ["train", method, "--output", "out", "--backbone", "a", "--set", "nothing=1"]
    result = CliRunner().invoke(osn, arguments)
    assert result.exit_code != 0 and "nothing" in str(result.exception or result.output)
    assert "No such option" not in result.output
