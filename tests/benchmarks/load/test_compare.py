"""A change is told from noise: neither invented where there is none, nor missed where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from runs import simulated

from benchmarks.load import result
from benchmarks.load.command import compare as compare_command
from benchmarks.load.compare import compare, text
from opensearch_neural.errors import InputError


def test_two_runs_of_the_same_are_noise() -> None:
    """Fifteen pairs on machines of different speed: at 5%, one shows a change by chance."""
    false_alarms = sum(
        any(
            each.verdict != "no change shown"
            for each in compare(
                simulated(seed, requests=60), simulated(seed + 1000, requests=60, machine=1.3)
            ).differences
            if each.relative
        )
        for seed in range(15)
    )
    assert false_alarms <= 3


@pytest.mark.parametrize(("factor", "verdict"), [(1.15, "worse"), (0.85, "better")])
def test_a_change_of_fifteen_percent_is_found_whatever_the_machine(factor: float, verdict: str) -> None:
    found = compare(simulated(1), simulated(2, factor=factor, machine=0.8))
    verdicts = {each.measure: each.verdict for each in found.differences if each.relative and each.engine == "fast"}
    assert verdicts["P50 ms"] == verdicts["P90 ms"] == verdicts["requests/s"] == verdict
    # The machine alone made bm25 faster, which only the plain numbers show.
    assert all(each.engine == "fast" for each in found.differences if each.relative)
    (plain,) = [
        each for each in found.differences if not each.relative and (each.engine, each.measure) == ("bm25", "P50 ms")
    ]
    assert plain.change.ratio == pytest.approx(0.8, rel=0.15)


def test_a_slower_machine_is_no_change_for_the_worse_where_there_are_ratios() -> None:
    found = compare(simulated(1), simulated(2, machine=1.5))
    assert any(each.verdict == "worse" for each in found.differences if not each.relative)
    assert not found.worse


def test_what_was_not_the_same_is_named() -> None:
    after = simulated(2)
    after.queries_hash = "1" * 16
    after.partial = "the cluster stopped answering"
    after.variants["fast"] = "high-idf-first+window=50"
    found = compare(simulated(1), after).unlike
    assert any(line.startswith("queries: 0") for line in found)
    assert "the second run is partial: the cluster stopped answering" in found
    assert "the engine fast: fast → high-idf-first+window=50" in found


def test_runs_without_a_common_level_are_refused() -> None:
    other = simulated(2)
    other.blocks = [block for block in other.blocks if block.variant == "nothing"]
    with pytest.raises(InputError, match="nothing that can be compared"):
        compare(simulated(1), other)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="3 rounds or more"):
        compare(simulated(1, rounds=2), simulated(2, rounds=2))


def test_the_command_compares_folders_and_can_fail(tmp_path: Path) -> None:
    for name, run in (("before", simulated(1)), ("after", simulated(2, factor=1.4))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "load.json").write_text(json.dumps(result.to_json(run, command="osn bench load")))
    runner = CliRunner()
    arguments = [str(tmp_path / "before"), str(tmp_path / "after" / "load.json")]
    shown = runner.invoke(compare_command, arguments)
    assert shown.exit_code == 0 and "Ratios to bm25" in shown.output and "worse" in shown.output
    assert runner.invoke(compare_command, [*arguments, "--fail-if-worse"]).exit_code == 1
    assert runner.invoke(compare_command, [*reversed(arguments), "--fail-if-worse"]).exit_code == 0
    content = json.loads(runner.invoke(compare_command, [*arguments, "--json"]).output)
    assert {each["verdict"] for each in content["differences"]} >= {"worse", "no change shown"}


def test_what_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="is not the result of a load run"):
        result.read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        result.read(tmp_path / "nowhere")


def test_the_text_shows_what_could_have_been_found() -> None:
    assert "detectable" in text(compare(simulated(1), simulated(2)), "bm25")
