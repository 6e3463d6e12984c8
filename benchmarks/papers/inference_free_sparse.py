"""The evidence for inference-free sparse retrieval: is the student better than BM25, and what makes it so?

    osn paper inference-free-sparse --data DIR --work DIR --part quality --record benchmarks/results/inference_free_sparse

`--data` holds the BEIR folders. Parts, each with a result file of its own below `--record`:
    quality        one student trained on the train splits of scifact, wikiqa-doc, tldr and squad-mix; nDCG@10 on their
                   test splits and on three sets that no training saw, alone and added to BM25, beside BM25, presence ×
                   idf, BM25 over word pieces and the dense teacher
    flops          nDCG@10 against measured FLOPS for several λ, trained with and without IDF; IDF at retrieval from the
                   training or the target corpus (`inference-free-sparse`, table 5, figures 3 and 4)
    distillation   teachers alone and together, normalized or not, InfoNCE, no pre-training (table 6)
    high-idf-first the rare tokens first, then all: what it costs in nDCG@10 (section 5.3.2)

Documents are encoded in bfloat16, which the benchmark of encoding shows to be 0.05 points of nDCG@10 from float32.
BM25 is OpenSearch's, of the cluster that OSN_URL or --url names or of a local node, with the best of two analyzers and of
k1 and b on train; k1 and b of the impacts over word pieces are chosen likewise. No test judgement chooses anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from benchmarks.experiment import (
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    goal_of,
    is_above,
    paper_options,
    part_option,
    run_parts,
    slug,
)
from benchmarks.papers import plots
from benchmarks.papers.cluster_bm25 import cluster_bm25, corpus_of, tuned_bm25
from benchmarks.papers.inference_free_sparse_training import (
    OWN,
    SMALL,
    START,
    TESTED,
    TRAINED_ON,
    ablation,
    configuration,
    rows_of,
    tested,
    trained,
    trained_dense,
)
from benchmarks.papers.sparse_search import (
    DEPTH,
    MEASURES,
    PIECES,
    PRESENCE,
    SparseTest,
    on_target,
    sparse_test,
    sparsity_rows,
    student_run,
    tuned_pieces,
    untrained,
)
from benchmarks.render import in_points, with_interval
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.evaluation.results import Goal, Row
from opensearch_neural.evaluation.tables import table as as_table

if TYPE_CHECKING:
    from opensearch_neural.queries import Rare
    from opensearch_neural.retrievers import Run

UNSEEN = ("medquad-liveqa", "snopes-claims", "cranfield")
CLAIMED = ("scifact", "wikiqa-doc", "tldr")
BM25, TEACHER, STUDENT, ENSEMBLE, ALL_TOKENS = "BM25", "dense teacher", "sparse student", "ensemble", "all tokens"
SUM = "BM25 + sparse student"
TARGET = "target corpus"
TRAINED_WITH = {"with IDF": "training corpus", "without IDF": "no IDF"}
"""{how a student was trained: how it is searched so}."""
PARTS = ("quality", "flops", "distillation", "high-idf-first")
LAMBDAS = (0.0, 1e-3, 1e-2, 1e-1)
STUDENT_STEPS, ABLATION_STEPS = 1500, 240
FIRST_STAGES: dict[str, dict[str, Any]] = {
    ENSEMBLE: {"teachers": ["MiniLM", "lexical"]},
    "dense (MiniLM) alone": {"teachers": ["MiniLM"]},
    "dense (MiniLM trained) alone": {"teachers": ["MiniLM trained"]},
    "sparse (BM25 over word pieces) alone": {"teachers": ["lexical"]},
    "dense pair": {"teachers": ["MiniLM", "MiniLM trained"]},
    "ensemble, no normalization": {
        "teachers": ["MiniLM", "lexical"],
        "normalize_teachers": False,
        "teacher_scale": 1.0,
    },
    "InfoNCE": {"teachers": [], "kl": 0.0, "info_nce": 1.0, "all_pairs": False},
}
"""{arm of part "distillation": what its first stage changes of the objective}."""
RATIOS = (0.4, 0.6, 0.8)
"""A token is rare from this share of the highest IDF on."""


# ------------------------------------------------ the parts


def quality(data: Path, work: Path, steps: int, connection: ConnectionSettings) -> RowsAndGoals:
    """Train together, test apart."""
    from benchmarks.local_cluster import cluster_or_node
    from trainers.data.negatives import open_retriever

    config = configuration(data, work, "student", steps=steps)
    student = trained(config)
    pieces = tuned_pieces(data, TRAINED_ON, work, student.query.tokenizer)
    rows: list[Row] = []
    with cluster_or_node(connection, "osn-bench-sparse") as client:
        chosen = tuned_bm25(client, {name: data / name for name in TRAINED_ON}, work / "bm25")
        for name in (*TRAINED_ON, *UNSEEN):
            test, settings = sparse_test(data, name, work), chosen.get(name, chosen[""])
            with cluster_bm25(client, corpus_of(data / name), [settings.analyzer]) as bm25:
                of_bm25 = bm25.run(test.texts, DEPTH, settings)
            lexicon = test.lexicon(student.query.tokenizer, pieces.get(name, pieces[""]))
            dense = open_retriever(f"dense:{START}", test.data.documents, cache=test.folder / "dense")
            adapted = on_target(student, lexicon)
            run, sparsity = student_run(adapted, test)
            added = rescored(test, of_bm25, test.documents(adapted), adapted.vocabulary, adapted.query.encode)
            weight = config.objective.sparse_weight
            summed = {
                query: {hit: score + weight * added[query][hit] for hit, score in hits.items()}
                for query, hits in of_bm25.items()
            }
            measured = {
                BM25: test.measure(of_bm25, MEASURES),
                **untrained(test, lexicon),
                TEACHER: test.measure(dense.retrieve(test.texts, DEPTH), MEASURES),
                STUDENT: test.measure(run, MEASURES),
                SUM: test.measure(summed, MEASURES),
            }
            rows += rows_of(name, measured, BM25) + sparsity_rows(test, STUDENT, sparsity)
    return rows, quality_goals(rows)


def flops(data: Path, work: Path, steps: int) -> RowsAndGoals:
    """Curves over λ, with and without IDF, and IDF at retrieval from either corpus."""
    own, targeted = {}, {}
    for idf, weight in itertools.product(("train", "none"), LAMBDAS):
        config = ablation(data, work, f"flops-{idf}-{weight:g}", steps=steps)
        config = replace(
            config,
            student=replace(config.student, idf=idf),
            regularization=replace(config.regularization, weight=weight),
        )
        trained_with = "with IDF" if idf == "train" else "without IDF"
        engine, model = f"{trained_with}, λ {weight:g}", trained(config)
        own[f"{engine}, {TRAINED_WITH[trained_with]}"] = model
        targeted[f"{engine}, {TARGET}"] = model
    rows = tested(data, work, own, targeted, baseline=PIECES, own_idf=dict(zip(targeted, own, strict=True)))
    return rows, [flops_goal(rows), terms_goal(rows), idf_goal(rows)]


def distillation(data: Path, work: Path, steps: int) -> RowsAndGoals:
    """Table 6 in direction: what the first of two stages of equal length is trained with; the second is the same in all.

    The second dense teacher is MiniLM trained on the same questions; a second sparse one there is none of. The arm without
    pre-training is trained as many steps as both stages together.
    """
    from trainers.sparse.settings import SparseCandidates, StageSettings

    teachers = {"MiniLM": START, "MiniLM trained": trained_dense(data, work), "lexical": "lexical"}
    models = {}
    for engine, changes in FIRST_STAGES.items():
        taught_by = [teachers[name] for name in changes["teachers"]]
        base = ablation(data, work, f"distillation-{slug(engine)}", steps=steps // 2)
        before = StageSettings(
            train=base.train,
            objective=replace(base.objective, **changes | {"teachers": taught_by}),
            candidates=SparseCandidates(negatives=1, depth=50, mine="bm25"),
            regularization=replace(base.regularization, weight=base.regularization.weight / 10),
            training=base.training,
        )
        models[engine] = trained(replace(base, pretraining=before))
    models["no pre-training"] = trained(ablation(data, work, "distillation-no-pre-training", steps=2 * (steps // 2)))
    rows = tested(data, work, models, {}, baseline=ENSEMBLE)
    return rows, [distillation_goal(rows)]


def high_idf_first(data: Path, work: Path, steps: int) -> RowsAndGoals:
    """The student of part "quality", its rare tokens first: the best 100 by these, scored again with all."""
    from opensearch_neural.queries import Rare, rare_tokens

    student = trained(configuration(data, work, "student", steps=steps))
    pieces = tuned_pieces(data, TRAINED_ON, work, student.query.tokenizer)
    rows: list[Row] = []
    for name in (*TRAINED_ON, *UNSEEN):
        test = sparse_test(data, name, work)
        adapted = on_target(student, test.lexicon(student.query.tokenizer, pieces.get(name, pieces[""])))
        matrix, vocabulary, encode = test.documents(adapted), adapted.vocabulary, adapted.query.encode

        def encode_rare(rare: Rare, text: str, encode: Callable[[str], dict[str, float]] = encode) -> dict[str, float]:
            return rare_tokens(encode(text), rare)

        measured = {ALL_TOKENS: test.measure(test.search(matrix, vocabulary, encode), MEASURES)}
        for ratio in RATIOS:
            first = test.search(matrix, vocabulary, partial(encode_rare, Rare("ratio", ratio)))
            run = rescored(test, first, matrix, vocabulary, encode)
            measured[f"rare first, idf from {ratio:g} of the highest"] = test.measure(run, MEASURES)
        rows += rows_of(name, measured, ALL_TOKENS)
    return rows, []


def rescored(test: SparseTest, run: Run, matrix: Any, vocabulary: list[str], encode: Any) -> Run:
    """The documents of `run` with the scores that all tokens give."""
    ids = {token: at for at, token in enumerate(vocabulary)}
    result: Run = {}
    for query, text in test.texts.items():
        weights = {ids[token]: weight for token, weight in encode(text).items() if token in ids}
        hits = list(run[query])
        picked = matrix[[test.data.documents.row(hit) for hit in hits]][:, list(weights)]
        scores = picked @ list(weights.values()) if hits and weights else []
        result[query] = {hit: float(score) for hit, score in zip(hits, scores, strict=True)}
    return result


# ------------------------------------------------ goals


def quality_goals(rows: Iterable[Row]) -> list[Goal]:
    table = Table(rows)
    gains = {name: table.difference(name, SUM, BM25, "nDCG@10") for name in (*CLAIMED, *UNSEEN)}
    above = [name for name in CLAIMED if is_above(gains[name])]
    unseen = [row.value for name in UNSEEN if (row := gains[name]) is not None]
    mean = round(fmean(unseen), 4) if unseen else None
    return [
        goal_of(
            "above BM25's nDCG@10, interval above zero, on at least two of scifact, wikiqa-doc, tldr",
            "2 of 3",
            f"{len(above)} of 3" + (f" ({', '.join(above)})" if above else ""),
            len(above) >= 2,
        ),
        goal_of(
            "the mean over the unseen sets no more than 1 point below BM25",
            "at least -0.01",
            mean,
            mean is not None and mean >= -0.01,
        ),
    ]


def curves(rows: Iterable[Row], name: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """{"with IDF", "without IDF": the students of a set, each searched as it was trained, as (x, y) by x}."""
    table = Table(rows)
    points: dict[str, list[tuple[float, float]]] = {}
    for trained_with, searched in TRAINED_WITH.items():
        engines = [f"{trained_with}, λ {weight:g}, {searched}" for weight in LAMBDAS]
        values = [(table.value(name, engine, x), table.value(name, engine, y)) for engine in engines]
        points[trained_with] = sorted((at.value, of.value) for at, of in values if at is not None and of is not None)
    return points


def flops_goal(rows: Sequence[Row]) -> Goal:
    """The paper's direction (figure 4): at the FLOPS of each student without IDF, is the curve with it higher?"""
    higher = points = 0
    for name in TESTED:
        curve = curves(rows, name, "FLOPS", "nDCG@10")
        for cost, quality_without in curve["without IDF"]:
            affordable = [quality for other, quality in curve["with IDF"] if other <= cost]
            points += bool(affordable)
            higher += max(affordable, default=float("-inf")) >= quality_without
    return goal_of(
        "with IDF in training and in search nDCG@10 is higher at no more FLOPS than with it in neither (figure 4; by the "
        "values, without intervals)",
        "every point that compares",
        f"{higher} of {points}" if points else None,
        higher == points,
    )


def terms_goal(rows: Sequence[Row]) -> Goal:
    """The paper's words (section 5.4.2): with as many terms a document, those trained with IDF cost fewer FLOPS.

    At the terms of each student with IDF, where the curve of those without it has been that far: between its points.
    """
    import numpy as np

    ratios: list[float] = []
    for name in TESTED:
        curve = curves(rows, name, "active terms", "FLOPS")
        terms, costs = [count for count, _ in curve["without IDF"]], [cost for _, cost in curve["without IDF"]]
        ratios += [
            cost / float(np.interp(count, terms, costs))
            for count, cost in curve["with IDF"]
            if terms and terms[0] <= count <= terms[-1]
        ]
    fewer = sum(ratio < 1 for ratio in ratios)
    return goal_of(
        "with as many active terms a document, those trained with IDF cost fewer FLOPS (section 5.4.2)",
        "every point that compares",
        f"{fewer} of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f} times the FLOPS" if ratios else None,
        fewer == len(ratios),
    )


def idf_goal(rows: Iterable[Row]) -> Goal:
    """The paper's direction for students without pre-training (table 5): the searched corpus's IDF is the better one."""
    gains = [
        row
        for row in rows
        if (row.kind, row.measure, row.baseline) == ("difference", "nDCG@10", OWN) and row.engine.startswith("with IDF")
    ]
    return all_goal(
        "at retrieval the searched corpus's IDF is better than that of training, interval above zero (table 5, no "
        "pre-training)",
        [is_above(row) for row in gains],
        f", {sum(row.value > 0 for row in gains)} without regard to the interval",
    )


def distillation_goal(rows: Iterable[Row]) -> Goal:
    """The paper's direction (table 6): normalized, heterogeneous teachers above every other way to pre-train."""
    others = [
        row
        for row in rows
        if (row.kind, row.measure, row.baseline) == ("difference", "nDCG@10", ENSEMBLE)
        and row.engine not in (PRESENCE, PIECES)
    ]
    return all_goal(
        "the normalized ensemble is above every other way to pre-train, interval of their differences below zero (table 6)",
        [row.high is not None and row.high < 0 for row in others],
        f", {sum(row.value < 0 for row in others)} without regard to the interval",
    )


def idf_shares(rows: Iterable[Row]) -> str:
    """A line for each set and λ: nDCG@10 of the student without IDF, by how many points the searched corpus's IDF raises it
    at retrieval, and by how many IDF in training then raises that. Of the last the values alone are recorded."""
    table, lines = Table(rows), []
    for name, weight in itertools.product(TESTED, LAMBDAS):
        neither, searched, both = (
            f"{how}, λ {weight:g}, {idf}"
            for how, idf in (("without IDF", "no IDF"), ("without IDF", TARGET), ("with IDF", TARGET))
        )
        values = [table.value(name, engine, "nDCG@10") for engine in (neither, searched, both)]
        at_retrieval = table.difference(name, searched, OWN, "nDCG@10")
        if at_retrieval is None or None in values:
            continue
        start, raised, whole = (row.value for row in values if row is not None)
        gained = 100 * (whole - raised)
        lines.append([name, f"{weight:g}", f"{start:.3f}", with_interval(in_points(at_retrieval)), f"{gained:.2f}"])
    return as_table(["", "λ", "no IDF: nDCG@10", "at retrieval: points", "in training, too: points more"], lines)


def draw_flops(rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, a curve for each way of training, a panel for each set."""
    panels = {
        name: {f"trained {how}": points for how, points in curves(rows, name, "FLOPS", "nDCG@10").items()}
        for name in sorted({row.set for row in rows})
    }
    plots.curves(panels, folder / "flops.svg", x="FLOPS, measured", y="nDCG@10", xlim=(0, None))


# ------------------------------------------------ the command


@click.command("inference-free-sparse")
@paper_options
@part_option(PARTS)
@click.option("--steps", type=int, help="Optimizer steps of a training.  [default: 1500 of the student, 240 elsewhere]")
@connection_options
def inference_free_sparse(
    connection: ConnectionSettings,
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    steps: int | None,
) -> None:
    """Train inference-free sparse models and compare them with BM25, or measure what their parts contribute."""
    every, small = (*TRAINED_ON, *UNSEEN), sorted({*SMALL, *TESTED})

    def part(
        title: str, run: Callable[..., RowsAndGoals], default: int, sets: Sequence[str], draw: Any = None
    ) -> PaperPart:
        def shown(row: Row) -> bool:
            return row.measure not in MEASURES[1:] and row.kind != "p-value"

        used = [data / name for name in sets]
        return PaperPart(title, partial(run, data, work, steps or default), used, [42], shown, draw)

    parts = {
        "quality": part(
            "Inference-free sparse retrieval against BM25",
            partial(quality, connection=connection),
            STUDENT_STEPS,
            every,
        ),
        "flops": part("nDCG@10 against FLOPS, with and without IDF", flops, ABLATION_STEPS, small, draw_flops),
        "distillation": part("Teachers alone and together", distillation, ABLATION_STEPS, small),
        "high-idf-first": part("Rare tokens first, then all", high_idf_first, STUDENT_STEPS, every),
    }
    run_parts({name: parts[name] for name in chosen or PARTS}, record)
