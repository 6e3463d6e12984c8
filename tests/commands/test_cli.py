"""The `osn` command itself: its subcommands are there, and it ends well when it is interrupted or its pipe is closed."""

from __future__ import annotations

import ast
import configparser
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import opensearch_neural
from opensearch_neural.cli import SECTIONS, osn
from opensearch_neural.commands.option_groups import Renamed
from opensearch_neural.errors import InputError

ROOT = Path(__file__).parents[2]

# A command beside the others, run by the same `main`.
SCRIPT = """
import os, signal, sys, time
import click
from opensearch_neural import cli

@cli.osn.command("prints")
def prints():
    for _ in range(20_000):
        print("x" * 100)

@cli.osn.command("prints-late")
def prints_late():
    sys.stdin.read()
    print("x")

@cli.osn.command("prints-words")
def prints_words():
    print('"na\\u00efve \\u2192 \\U0001f600 \\ud83d"')

@cli.osn.command("interrupted")
def interrupted():
    # A shell may have had it ignored in what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)

@cli.osn.command("terminated")
def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)

@cli.osn.command("writes-a-model")
def writes_a_model():
    import numpy, resource
    from safetensors.numpy import save_file
    # Like a disk that is full after 100 bytes.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    save_file({"weight": numpy.zeros(1000)}, "model.safetensors")

sys.argv = ["osn", sys.argv[1]]
cli.main()
"""


def entry_points() -> list[tuple[str, str]]:
    """(name, "module:attribute") of every command that setup.cfg names."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = "\n".join(config["options.entry_points"].values()).splitlines()
    return [(name.strip(), value.strip()) for name, _, value in (line.partition("=") for line in lines) if value]


@pytest.mark.parametrize(("name", "value"), entry_points())
def test_every_command_is_where_setup_cfg_says(name: str, value: str) -> None:
    """One that is not would end the help of all its neighbours."""
    module, _, attribute = value.partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
                if isinstance(target, ast.Name)}  # fmt: skip
    assert attribute in defined


@pytest.mark.parametrize("command", ["prints", "prints-late"])
def test_a_pipe_that_is_closed_early_is_no_error(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        if command == "prints":
            assert process.stdout.readline()
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_cannot_show_is_written_as_json_reads_it(encoding: str) -> None:
    script = [sys.executable, "-c", SCRIPT, "prints-words"]
    done = subprocess.run(script, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout.decode(encoding)) == "naïve → 😀 \ud83d", done.stderr


def test_a_command_whose_output_is_closed_ends_well() -> None:
    shell = ["sh", "-c", 'exec "$0" -c "$1" prints-words >&- 2>&-', sys.executable, SCRIPT]
    assert subprocess.run(shell, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("command", ["interrupted", "terminated"])
def test_ctrl_c_and_sigterm_end_with_130_and_no_traceback(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_model_that_the_disk_has_no_room_for_is_no_traceback(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    script = [sys.executable, "-c", SCRIPT, "writes-a-model"]
    done = subprocess.run(
        script, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: a model cannot be written: ")
    assert "Traceback" not in done.stderr


def test_what_applications_import_is_listed_and_loaded_when_used() -> None:
    script = (
        "import sys, opensearch_neural\n"
        "assert not {'opensearchpy', 'tokenizers', 'numpy', 'torch'} & sys.modules.keys()\n"
        "assert set(opensearch_neural.__all__) <= set(dir(opensearch_neural))\n"
        "from opensearch_neural import *\n"
        "assert issubclass(OsnError, Exception) and callable(connect_async) and queries.bm25('x')\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = opensearch_neural.nothing


def every_command(command: click.Command, context: click.Context, *path: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below, context, *path, name)


def test_every_option_of_every_command_says_what_it_does() -> None:
    silent = [
        f"{path} {parameter.opts[0]}"
        for path, command in every_command(osn, click.Context(osn), "osn")
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help and not parameter.hidden
    ]
    assert silent == []


def test_help_shows_every_command_in_a_section() -> None:
    shown = CliRunner().invoke(osn, ["--help"]).output
    assert all(f"\n{title}:\n" in shown for title in SECTIONS)
    assert "\nMore:\n" not in shown, "a new command belongs into a section of opensearch_neural/cli.py"


@pytest.mark.parametrize(
    ("former", "now"),
    [("idf", "model idf"), ("models", "model list"), ("mine", "data mine"),
     ("corpus python-docs", "data corpus python-docs"), ("bench jpq", "paper jpq")],
)  # fmt: skip
def test_a_command_answers_to_its_former_name_which_is_not_listed(former: str, now: str) -> None:
    def options(command: str) -> str:
        done = CliRunner().invoke(osn, [*command.split(), "--help"])
        assert done.exit_code == 0, done.output
        return done.output.partition("\n")[2]

    assert options(former) == options(now)
    *groups, name = former.split()[:2] if former.startswith("bench") else former.split()[:1]
    assert f"\n  {name} " not in CliRunner().invoke(osn, [*groups, "--help"]).output


def test_a_shell_completes_commands_without_importing_them() -> None:
    script = (
        "import sys, click\n"
        "from opensearch_neural.cli import osn\n"
        "print([item.value for item in osn.shell_complete(click.Context(osn), 'e')])\n"
        "assert not {'torch', 'opensearchpy', 'numpy'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "['encode', 'eval']", done.stderr


def test_the_corpus_is_an_argument_and_its_former_option_still_works() -> None:
    runner = CliRunner()
    refused = runner.invoke(osn, ["ingest", "a.jsonl", "--corpus", "b.jsonl", "--index", "docs"])
    assert refused.exit_code == 2 and "name one" in refused.output
    refused = runner.invoke(osn, ["encode", "--out", "vectors"])
    assert refused.exit_code == 2 and "name a corpus" in refused.output
    for words in (["a.jsonl"], ["--corpus", "a.jsonl"]):
        failed = runner.invoke(osn, ["encode", *words, "--sparse", "lexical", "--out", "vectors"])
        assert isinstance(failed.exception, InputError) and "a.jsonl" in str(failed.exception), failed.output
    assert "--corpus" not in runner.invoke(osn, ["ingest", "--help"]).output


def test_one_name_means_one_thing_and_former_names_still_work(tmp_path: Path) -> None:
    """--json prints JSON, --keep is a share of quality, --timeout is that of a request. Former names are not lost."""
    kinds: dict[str, set[str]] = {}
    for _, command in every_command(osn, click.Context(osn), "osn"):
        for option in command.params:
            if isinstance(option, click.Option):
                for flag in option.opts:
                    kinds.setdefault(flag, set()).add("flag" if option.is_flag else option.type.name)
    assert kinds["--json"] == {"flag"} and kinds["--keep"] == {"float range"} and kinds["--timeout"] == {"float"}
    assert "--out" not in kinds and "--store" in kinds and "--wait" in kinds

    @click.command()
    @click.option("--output", "--out", "out", cls=Renamed, help="Where to write.")
    def write(out: str) -> None:
        click.echo(out)

    for flag in ("--out", "--output"):
        assert CliRunner().invoke(write, [flag, "there"]).output == "there\n"
    assert "--out " not in CliRunner().invoke(write, ["--help"]).output.replace("--output ", "")
