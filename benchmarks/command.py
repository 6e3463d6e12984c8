"""`osn bench` and `osn paper`: benchmarks and the experiments of the papers (entry points of the groups `osn.bench` and
`osn.paper`), and pages of their result files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from benchmarks.render import page, text
from opensearch_neural.commands.groups import EntryPointGroup
from opensearch_neural.evaluation.results import read_all
from opensearch_neural.files import write_text

MOVED = ("tome", "inference-free-sparse", "query-as-context", "jpq", "multi-layer")
"""Commands that moved from `osn bench` to `osn paper`; a new paper is only an entry point there (setup.cfg)."""
RESULTS = Path("benchmarks/results")


@click.group(cls=EntryPointGroup, group="osn.bench", moved=dict.fromkeys(MOVED, "paper"))
def bench() -> None:
    """Benchmarks, and pages of their results."""


@click.group(cls=EntryPointGroup, group="osn.paper")
def paper() -> None:
    """Run a paper's experiments, each with its goals, and record the results."""


@bench.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=RESULTS,
    show_default=True,
    help="Holds EXPERIMENT/summary.json.",
)
@click.option(
    "--html", type=click.Path(path_type=Path), default=None, help="The page to write.  [default: FOLDER/index.html]"
)
@click.option("--json", "as_json", is_flag=True, help="Print all result files as one JSON object instead of tables.")
def results(folder: Path, html: Path | None, as_json: bool) -> None:
    """Render all result files as one self-contained HTML page, and print them as tables.

    \b
    osn bench results
    osn bench results --folder my-results --html report.html
    """
    summaries = read_all(folder)
    target = html or folder / "index.html"
    write_text(target, page(summaries, folder))
    print(f"wrote {target}", file=sys.stderr)
    if as_json:
        print(
            json.dumps({name: summary.to_json() for name, summary in summaries.items()}, ensure_ascii=False, indent=1)
        )
    else:
        print(text(summaries))
