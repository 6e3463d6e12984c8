"""The evidence for TOME: do two stages find more than one, and in which stage are documents lost?

    osn paper tome --data DIR --work DIR --record benchmarks/results/tome

`--data` holds the BEIR folders tldr and wikiqa-doc, whose documents have URLs, and squad-mix, which also trains the query
generator. Everything is trained from scratch: a T5 (d = 256, 4 + 4 layers) by span corruption on the corpora and their
URLs, a query generator (it copies words with a weight fitted on pairs held back), and the arms of each set:
    two-stage              query → passage → URL, each stage has its own T5
    single-stage           query → URL: one T5 with as many parameters as both stages, trained for as many updates as both
    single-stage, one T5   the same with the T5 of one stage, trained for as many updates as both: the paper's comparison
    random ids             the single stage with 12 digits in place of a URL
    no prompts             the two stages without "title:" and "passage:"
    half the queries       stage 1 with half of the generated queries
    no spans               stage 1 without random spans of documents as queries
    gold passages          stage 2 alone, given the passage of the relevant document: shows the loss in stage 1
Each arm decodes freely (the paper's exact match), and restricted to the corpus's URLs, greedily and with 10 beams. All 10
hits of two stages come from one passage. The measure is Hits@k, the share of questions with a relevant document among the
first k, on the test splits; intervals resample relevant documents, since several questions may ask for one. Beside them:
BM25 (OpenSearch's, with analyzer, k1 and b chosen on train), the published all-MiniLM-L6-v2, and BM25 fused with two-stage.

Several copies of the command at once, with one thread each (OMP_NUM_THREADS=1), share the trainings; run it once more alone
to measure latencies. A GPU is used if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.beir_parts import check_data
from benchmarks.experiment import Table, goal_of, is_above, paper_options, publish, shared
from benchmarks.options import setting_options
from benchmarks.papers.tome.decoding import BEAM, BEAMS, FREE, GREEDY, SetExperiment, search_bm25
from benchmarks.papers.tome.training import (
    ARMS,
    PAIRS,
    SEED,
    SETS,
    SINGLE,
    SMALL,
    TWO,
    TomeScale,
    prepared_trainings,
    some_documents,
)
from benchmarks.render import signed
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, Row

# ------------------------------------------------ goals


def goals(rows: Iterable[Row]) -> list[Goal]:
    """A goal for each way to decode (first the paper's, free) and each rival (first the paper's). The smaller rival learns
    faster, so it is harder to beat with few updates."""
    table = Table(rows, [SEED])
    every: list[Goal] = []
    for words, way in (
        ("decoded freely, as in the paper", FREE),
        ("held to the corpus's URLs, greedily", GREEDY),
        (f"held to them, {BEAMS} beams", BEAM),
    ):
        for rival, which in (
            (SMALL, "the paper's comparison: one T5 as either stage is, as many updates"),
            (SINGLE, "of as many parameters and updates"),
        ):
            known = table.differences(table.sets, TWO, rival, "Hits@1", variant=way)
            above = sum(map(is_above, known.values()))
            shown = "; ".join(f"{name}: {signed(row)}" for name, row in known.items())
            every.append(
                goal_of(
                    f"two-stage above single-stage, {which}, on one set, interval over documents above zero (Hits@1, "
                    f"{words}; 1 seed)",
                    "above it on 1 set",
                    f"{above} of {len(table.sets)} ({shown})" if known else None,
                    above > 0,
                )
            )
    return every


# ------------------------------------------------ the command


@click.command("tome")
@paper_options
@click.option("--only", multiple=True, type=click.Choice(SETS), help="Data set; repeatable.  [default: all]")
@click.option(
    "--arm", "arms", multiple=True, type=click.Choice(ARMS), help="Arm of the experiment; repeatable.  [default: all]"
)
@setting_options(TomeScale)
@connection_options
def tome(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    only: tuple[str, ...],
    arms: tuple[str, ...],
    **sizes: Any,
) -> None:
    """Measure model-based retrieval in two stages against one, BM25 and a dense model.

    All arms on all documents need a GPU; on a CPU, choose fewer documents, arms and updates. Stage 1 first writes passages
    regardless of the query, and begins to use the query after it has seen each document about a hundred times (updates ×
    examples of an update / documents).

    \b
    osn paper tome --data DIR --work DIR --record benchmarks/results/tome
    osn paper tome --data DIR --work DIR --only tldr --documents 150 --batch 32 --pretraining-steps 300 \\
        --generator-steps 300 --steps 700 --url-steps 350 --candidates 20 --spans 10 \\
        --arm two-stage --arm single-stage --arm "single-stage, one T5"
    """
    scale = TomeScale(**sizes)
    if scale.candidates % 2:
        raise InputError(
            f"half of {scale.candidates} generated queries is not a whole number", "give --candidates an even number"
        )
    sets = [name for name in SETS if not only or name in only]
    check_data(work, [data / name for name in PAIRS])

    experiments = prepared(data, work, scale, sets, arms or ARMS, connection)
    shared({path: job for experiment in experiments for path, job in experiment.jobs.items()})
    rows: list[Row] = []
    for experiment in experiments:
        name = experiment.test.name + (f", {scale.documents:,} documents" if scale.documents else "")
        rows += [replace(row, set=name) for row in experiment.rows()]
    publish(
        rows,
        goals(rows),
        title="Retrieval by writing URLs: two stages, one, and a search",
        data=[data / name for name in sorted({*sets, *PAIRS})],
        seeds=[SEED],
        record=record,
        shown=lambda row: row.kind != "p-value",
    )


def prepared(
    data: Path, work: Path, scale: TomeScale, sets: Sequence[str], arms: Sequence[str], connection: ConnectionSettings
) -> list[SetExperiment]:
    """The sets, each with its part of the documents, BM25's searches, and all that comes before its arms."""
    folders = {name: data / name for name in sets}
    if scale.documents:
        part = work / f"{scale.documents}-documents"
        folders = {name: some_documents(whole, part, scale.documents) for name, whole in folders.items()}
    # First the searches, which need a cluster and no training.
    searched = {name: search_bm25(folder, work / name, connection) for name, folder in folders.items()}
    trainings = prepared_trainings(data, work, scale, folders, arms)
    ordered = [arm for arm in ARMS if arm in arms]
    return [SetExperiment(trainings[name], ordered, searched[name]) for name in sets]
