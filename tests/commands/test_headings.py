"""The help of commands with many options: what one needs first on top, and nothing lost."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from opensearch_neural.cli import osn
from opensearch_neural.commands.headings import Headed

MANY = ("ingest", "encode", "search", "eval", "eval runs", "tune", "ui", "bench load", "documents add", "doctor")


def sections(command: str) -> dict[str, list[str]]:
    """{heading: flags as listed} of a command's help."""
    shown = CliRunner().invoke(osn, [*command.split(), "--help"])
    assert shown.exit_code == 0, shown.output
    parts = re.split(r"^(\w+):\n", shown.output, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE) for name, text in texts.items()}


@pytest.mark.parametrize("command", MANY)
def test_each_option_is_listed_once_and_few_come_first(command: str) -> None:
    listed = sections(command)
    assert 1 < len(listed["Options"]) <= 16
    context, group = click.Context(osn), osn
    for name in command.split():
        group = group.get_command(context, name)  # type: ignore[assignment, attr-defined]
    assert isinstance(group, Headed)
    wanted = [each.opts[-1] for each in group.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    flags = [flag for name in ("Options", "Advanced", "Connection") for flag in listed.get(name, [])]
    assert sorted(flags) == sorted(wanted)


def test_an_ingest_begins_with_the_index_and_ends_with_the_connection() -> None:
    listed = sections("ingest")
    assert list(listed) == ["Options", "Advanced", "Connection"]
    assert listed["Options"][:3] == ["--index", "--alias", "--sparse"] and listed["Options"][-1] == "--help"
    assert "--writers" in listed["Advanced"]
    assert listed["Connection"][0] == "--url"


def test_a_heading_that_names_no_option_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="x has no option --nothing"):
        Headed("x", first="nothing")
