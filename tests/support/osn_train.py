"""`osn train METHOD` with settings, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from click.testing import CliRunner, Result


def osn_train(method: str, output: Path, settings: Iterable[str], *options: str) -> Result:
    """The result of a command that succeeded, of whose settings each is a FIELD=VALUE."""
    from opensearch_neural.cli import osn

    told = [part for setting in settings for part in ("--set", setting)]
    arguments = ["train", method, "--output", str(output), *options, *told]
    result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def dry_run(method: str, recipe: str, folder: Path, settings: Iterable[str]) -> str:
    """What a dry run of a recipe prints; nothing is kept."""
    printed = osn_train(method, folder / "model", settings, "--config", recipe, "--dry-run").stdout
    assert not (folder / "model").exists()
    return printed
