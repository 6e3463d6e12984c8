"""`osn --help` lists the commands without importing them, and says of them what importing them would."""

from __future__ import annotations

import configparser
import inspect
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from opensearch_neural.commands import groups
from opensearch_neural.commands.groups import docstring_of, missing_module

GROUPS = ("osn.commands", "osn.model", "osn.data", "osn.train", "osn.bench", "osn.paper")
ENTRIES = [entry for group in GROUPS for entry in entry_points(group=group)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.group}:{entry.name}")
def test_a_command_says_in_its_source_what_it_says_when_imported(entry) -> None:
    try:
        command = entry.load()
    except ModuleNotFoundError as error:
        assert missing_module(entry.module, entry.attr) is not None, error
        return
    assert docstring_of(entry) == inspect.cleandoc(command.callback.__doc__)
    assert missing_module(entry.module, entry.attr) is None


def test_the_commands_of_setup_cfg_are_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg", encoding="utf-8")
    asked = {
        (group, name.strip())
        for group in GROUPS
        for name in re.findall(r"^(.+?)=", setup["options.entry_points"][group], re.MULTILINE)
    }
    installed = {(entry.group, entry.name) for entry in ENTRIES}
    assert asked == installed, "entry points are read when the package is installed: run `make install`"


def test_listing_commands_imports_no_network_library() -> None:
    script = """
import sys
from opensearch_neural.cli import osn
for arguments in (["--help"], ["train", "--help"], ["data", "--help"], ["bench", "--help"]):
    osn(arguments, standalone_mode=False)
print(sorted({"torch", "transformers", "faiss", "scipy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Train an inference-free sparse model" in done.stdout
    assert "Find hard negatives" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_help_of_no_command_imports_a_network_library() -> None:
    script = """
import sys
from importlib.metadata import entry_points
from click.testing import CliRunner
for group in sys.argv[1:]:
    for entry in entry_points(group=group):
        try:
            command = entry.load()
        except ModuleNotFoundError:  # An extra that is not installed.
            continue
        assert CliRunner().invoke(command, ["--help"]).exit_code == 0, entry
        loaded = {"torch", "transformers", "sentence_transformers"} & set(sys.modules)
        assert not loaded, f"{entry.value} loads {loaded}"
"""
    done = subprocess.run([sys.executable, "-c", script, *GROUPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_whose_library_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_is_installed", lambda package: package != "torch")
    assert missing_module("trainers.sparse.train") == "torch"
    assert missing_module("trainers.command") is None, (
        "the group itself needs nothing: its commands are listed one by one"
    )
    assert missing_module("opensearch_neural.commands.search") is None, "imports inside functions are not its own"
    assert missing_module("trainers.sparse.command") is None, "its help can be shown"
    assert missing_module("trainers.sparse.command", "sparse_command") == "torch", "but it cannot run"


def test_a_command_of_another_package_is_imported() -> None:
    (entry,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "pytest"]
    assert docstring_of(entry) is None


def test_a_misspelled_command_names_the_similar_one() -> None:
    asked = "from opensearch_neural.cli import main; import sys; sys.argv = ['osn', *sys.argv[1:]]; main()"
    for words, message in (
        (["serch", "x"], "No such command 'serch'. Did you mean 'search'?"),
        (["data", "mien"], "No such command 'mien'. Did you mean 'mine'?"),
        (["data", "qqqq"], "No such command 'qqqq'.\n"),
    ):
        done = subprocess.run([sys.executable, "-c", asked, *words], capture_output=True, text=True)
        assert done.returncode == 2
        assert message in done.stderr


def test_encode_promises_no_defaults_of_an_index() -> None:
    """It writes files; `osn ingest` has the same options, and follows the index."""
    for command, follows in (("encode", False), ("ingest", True)):
        (entry,) = [entry for entry in entry_points(group="osn.commands") if entry.name == command]
        shown = entry.load().get_help(click.Context(entry.load()))
        assert ("existing index" in " ".join(shown.split())) == follows


def test_a_command_without_its_extra_is_named_whole() -> None:
    script = "import sys; sys.modules['torch'] = None\n"
    script += "sys.argv = ['osn', 'train', 'sparse', '--set', 'train=[{path: docs}]']\n"
    script += "from opensearch_neural.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "error: `osn train sparse` needs the module 'torch'" in done.stderr
