"""Every `osn train METHOD` shows its help, prints a configuration and refuses a wrong one without loading torch."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from importlib import import_module
from click.testing import CliRunner

heavy = ("torch", "transformers", "sentence_transformers", "datasets", "pandas", "scipy")
answers = {}
for method, (module, attribute, calls) in json.loads(sys.argv[1]).items():
    command = getattr(import_module(module), attribute)
    answers[method] = {}
    for arguments in calls:
        answer = CliRunner().invoke(command, arguments)
        answers[method][" ".join(arguments)] = {
            "exit": answer.exit_code,
            "output": answer.output,
            "error": answer.exception and f"{type(answer.exception).__name__}: {answer.exception}",
            "loaded": [name for name in heavy if name in sys.modules],
        }
print(json.dumps(answers))
"""


def methods() -> dict[str, str]:
    """{method: "module:command"} of the entry points in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options.entry_points"]["osn.train"].strip().splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def recipes() -> dict[str, str]:
    """{method: one of its recipes}, by the command that each recipe names."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "trainers" / "recipes").glob("*.yaml")))
    return dict(re.findall(r"osn train (\S+) --config (\S+) ", "".join(texts)))


METHODS, RECIPES = methods(), recipes()
REFUSED = {
    "--set nothing=1": "InputError: --set nothing: there is no field 'nothing'",
    "--print-config --set training=5": "InputError: --set training: expected fields with values, found 5",
    "--print-config --set training.batch_size=many": "expected an integer, found 'many'",
    "--print-config --set training.batch_size=0": "training: batch_size must be at least 1, not 0",
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, dict[str, Any]]]:
    """{method: {arguments: what the command answers}}, all in one new interpreter."""

    def calls(method: str) -> list[list[str]]:
        shown = [["--help"], ["--print-config"]]
        shown += [["--print-config", "--config", RECIPES[method]]] if method in RECIPES else []
        return shown + [arguments.split() for arguments in REFUSED]

    asked = {method: (*value.split(":"), calls(method)) for method, value in METHODS.items()}
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(asked)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(done.stdout)
    return found


def test_methods_and_recipes_are_found() -> None:
    assert {"dense", "mlr", "mlm", "sparse", "jpq", "query-as-context", "doc2query", "tome"} <= METHODS.keys()
    assert RECIPES.keys() == METHODS.keys() - {"mlm"}


@pytest.mark.parametrize("method", METHODS)
def test_help_and_configuration_are_shown_without_torch(method: str, answers: Any) -> None:
    for arguments, answer in answers[method].items():
        if arguments not in REFUSED:
            assert (answer["exit"], answer["error"], answer["loaded"]) == (0, None, []), arguments
    assert answers[method]["--help"]["output"].startswith("Usage: ")
    assert "\n  batch_size: " in answers[method]["--print-config"]["output"]


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_configuration_is_refused_without_torch(method: str, answers: Any) -> None:
    for arguments, words in REFUSED.items():
        answer = answers[method][arguments]
        assert answer["exit"] == 1 and words in answer["error"], arguments
        assert answer["loaded"] == [], arguments
