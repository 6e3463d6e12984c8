"""A field of a dataclass is an option with its default, and takes what fits the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks.options import NumberList, part_option, setting, setting_options


@dataclass(frozen=True)
class Sizes:
    steps: int = setting(6, "Steps.")
    spans: int = setting(0, "Spans, none by default.")
    documents: int | None = setting(None, "Documents.  [default: all]")
    rate: float = setting(1e-3, "Learning rate.")
    model: str = setting("mine", "The model.")
    pooling: str = setting("mean", "Pooling.", type=click.Choice(["mean", "cls"]))
    cosine: bool = setting(True, "How to compare.", option="--cosine/--inner-products")
    seeds: tuple[int, ...] = setting((42,), "Seeds.", type=NumberList(int, distinct=True, least=0))
    writer: str = ""


@click.command()
@part_option(("one", "two"))
@setting_options(Sizes)
def command(chosen: tuple[str, ...], **sizes: Any) -> None:
    print(chosen, Sizes(**sizes))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_without_options_the_fields_have_their_defaults() -> None:
    assert run() == f"() {Sizes()}"


def test_each_setting_is_an_option_and_other_fields_are_none() -> None:
    given = ["--steps=1", "--spans=2", "--documents=3", "--rate=0.5", "--model=x", "--pooling=cls", "--inner-products"]
    assert run("--part=two", *given) == f"('two',) {Sizes(1, 2, 3, 0.5, 'x', 'cls', False)}"
    shown = run("--help")
    assert (
        "--writer" not in shown and "Steps.  [default: 6" in shown and shown.index("--steps") < shown.index("--spans")
    )
    assert "Documents.  [default: all]" in shown and "[default: cosine]" in shown


@pytest.mark.parametrize(
    "refused",
    [
        *("--steps=0", "--spans=-1", "--documents=0", "--rate=0", "--pooling=max", "--part=three"),
        *("--seeds=1,-1", "--seeds=1,1", "--seeds=one"),
    ],
)
def test_what_does_not_fit_is_refused(refused: str) -> None:
    assert CliRunner().invoke(command, [refused]).exit_code == 2
