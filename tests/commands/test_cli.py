"""The `osn` command itself: its subcommands are there, and it ends well when it is interrupted or its pipe is closed."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

import opensearch_neural

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


@pytest.mark.parametrize("command", ["interrupted", "terminated"])
def test_ctrl_c_and_sigterm_end_with_130_and_no_traceback(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
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
