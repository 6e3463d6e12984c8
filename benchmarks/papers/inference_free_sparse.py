"""The evidence for inference-free sparse retrieval: is the student better than BM25, and what makes it so?

    osn paper inference-free-sparse --start MODEL --data DIR --work DIR --record benchmarks/results/inference_free_sparse

`--data` holds BEIR folders. MODEL is a published SPLADE, which every student starts from; each is trained with every one of
`--seeds`. Parts, each with a result file of its own below `--record`:
    quality        nDCG@10 of models of `osn bench bm25-sparse` alone: as published, trained 10 minutes, and that averaged
                   with its start; on every set with a test split, beside BM25, presence × idf and BM25 over word pieces
    flops          nDCG@10 against measured FLOPS for several λ, trained with and without IDF and searched with and without
                   it: training's share and retrieval's; terms a document, the paper's expansion rate
                   (`inference-free-sparse`, table 5, figures 3 and 4)
    distillation   teachers alone and together, normalized or not, InfoNCE, no pre-training (table 6)
    high-idf-first the students of part "quality", the rare tokens first, then all: what it costs in nDCG@10 (section 5.3.2)

`--teacher` names the models that teach in the parts "flops" and "distillation", all of them together unless the arm says
otherwise; by default MiniLM and the start itself, as the siamese SPLADE that it is.

Parts "quality" and "high-idf-first" take models, vectors and the tuned BM25 from `--work` if `osn bench bm25-sparse` left
them there. BM25 is OpenSearch's, of the cluster that OSN_URL or --url names or of a local node, with the best of two
analyzers and of k1 and b on train; k1 and b of the impacts over word pieces are chosen likewise. All else is exact search
without a cluster. No test judgement chooses anything. Everything that takes long is kept in `--work`; the same command goes
on, and several at once do different trainings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks import plots
from benchmarks.bm25_sparse import dense
from benchmarks.bm25_sparse.measures import TUNED, mean_rows, tuned_measured
from benchmarks.bm25_sparse.models import MOST_REPEATED, PUBLISHED, STEPS, Experiment, start_option
from benchmarks.experiment import (
    PaperPart,
    RowsAndGoals,
    Table,
    all_goal,
    compared,
    goal_of,
    is_above,
    kept_measured,
    means,
    paper_options,
    part_option,
    run_parts,
    slug,
)
from benchmarks.load.command import NumberList
from benchmarks.local_cluster import cluster_or_node
from benchmarks.papers.inference_free_sparse_training import (
    OWN,
    SMALL,
    TARGET,
    TESTED,
    Ablation,
    trained_dense,
)
from benchmarks.papers.sparse_search import (
    DEPTH,
    MEASURES,
    PIECES,
    PRESENCE,
    SparseTest,
    sparse_test,
    tuned_pieces,
    untrained,
)
from benchmarks.render import in_points, signed, with_interval
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.evaluation.tables import table as as_table
from opensearch_neural.models.directory import MINILM

if TYPE_CHECKING:
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.models.vectors import SparseVectors
    from opensearch_neural.queries import Rare
    from opensearch_neural.retrievers import Run
    from trainers.sparse.settings import SparseConfig

TRAINED = tuple(arm for arm, steps in STEPS.items() if steps <= MOST_REPEATED)
QUALITY = (PUBLISHED, *TRAINED, *(f"{arm}, averaged" for arm in TRAINED))
"""The models of part "quality", arms of `osn bench bm25-sparse`."""
PARTS = ("quality", "flops", "distillation", "high-idf-first")
STEPS_OF_ABLATIONS = 240
LAMBDAS = (0.0, 0.01, 0.1, 0.5)
WITH, WITHOUT = "with IDF", "without IDF"
TRAINED_WITH = {WITH: ("train", "training corpus"), WITHOUT: ("none", "no IDF")}
"""{how a student was trained: (its `student.idf`, what its own weights of query tokens are called)}"""
CURVES = {
    "IDF in training and search": (WITH, TARGET),
    "IDF in search alone": (WITHOUT, TARGET),
    "no IDF": (WITHOUT, TRAINED_WITH[WITHOUT][1]),
}
"""{what is drawn and compared: (how the student was trained, how it is searched)}"""
BOTH, SEARCH_ALONE, NEITHER = CURVES
ENSEMBLE, NO_PRETRAINING = "dense + sparse, normalized", "no pre-training"
DENSE, DENSE_TRAINED, SPARSE, LEXICAL = "dense", "dense, trained further", "sparse", "BM25 over word pieces"
FIRST_STAGES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    ENSEMBLE: ((DENSE, SPARSE), {}),
    "dense + sparse, added as they are": ((DENSE, SPARSE), {"normalize_teachers": False, "teacher_scale": 1.0}),
    f"{DENSE} alone": ((DENSE,), {}),
    f"{DENSE_TRAINED}, alone": ((DENSE_TRAINED,), {}),
    "two dense": ((DENSE, DENSE_TRAINED), {}),
    f"{SPARSE} alone": ((SPARSE,), {}),
    f"{LEXICAL} alone": ((LEXICAL,), {}),
    "two sparse": ((SPARSE, LEXICAL), {}),
    "InfoNCE": ((), {"kl": 0.0, "info_nce": 1.0, "all_pairs": False}),
}
"""{arm of part "distillation": (who teaches its first stage, what else that changes of the objective)}"""
ALL_TOKENS = "all tokens"
RATIOS = (0.4, 0.5, 0.6, 0.8)
"""A token is rare from this share of the highest IDF on."""
MOST_LOST = 0.005
"""The most nDCG@10 that rare tokens first may lose."""


# ------------------------------------------------ the models of bm25-sparse, searched alone


def quality(experiment: Experiment) -> RowsAndGoals:
    """Every model alone, and what needs no model."""
    from opensearch_neural.models.corpus_statistics import tokenizer_of

    differences = [(engine, TUNED) for engine in (PRESENCE, PIECES, *experiment.arms)]
    with cluster_or_node(experiment.connection, "osn-bench-sparse") as client:
        tuned = tuned_measured(client, experiment)
    pieces = tokenizer_of(experiment.start)
    with_train = [name for name, folder in experiment.sets.items() if (folder / "qrels" / "train.tsv").exists()]
    saturations = tuned_pieces(experiment.data, with_train, experiment.work, pieces)
    of_sets: dict[str, dict[MeasuredEngine, Measured]] = {}
    rows: list[Row] = []
    for name in experiment.sets:
        test = sparse_test(experiment.data, name, experiment.work)
        without = untrained(test, test.lexicon(pieces, saturations.get(name, saturations[""])))
        measured = {MeasuredEngine(TUNED): tuned[name], **{MeasuredEngine(key): own for key, own in without.items()}}
        for model in experiment.models:
            measured[model] = searched(experiment, model, test)[ALL_TOKENS]
        of_sets[name] = measured | means(measured, experiment.seeds)
        rows += compared(name, of_sets[name], differences, seeds=experiment.seeds)
    rows += mean_rows(f"mean of {len(of_sets)} sets", of_sets, differences)
    rows += mean_rows(unseen(experiment), {name: of_sets[name] for name in experiment.unseen}, differences)
    return rows, quality_goals(experiment, rows)


def unseen(experiment: Experiment) -> str:
    """What the mean of the sets that no training saw is called."""
    return f"mean of {len(experiment.unseen)} unseen sets"


def high_idf_first(experiment: Experiment) -> RowsAndGoals:
    """The best 100 by the rare tokens, scored again with all; the variant of a row is the model."""
    differences = [(of_ratio(ratio), ALL_TOKENS) for ratio in RATIOS]
    rows: list[Row] = []
    of_sets: dict[str, dict[MeasuredEngine, Measured]] = {}
    for name in experiment.sets:
        test = sparse_test(experiment.data, name, experiment.work)
        measured = {
            MeasuredEngine(engine, model.seed, model.name): own
            for model in experiment.models
            for engine, own in searched(experiment, model, test).items()
        }
        of_sets[name] = measured | means(measured, experiment.seeds)
        rows += compared(name, of_sets[name], differences, seeds=experiment.seeds)
    rows += mean_rows(f"mean of {len(of_sets)} sets", of_sets, differences)
    return rows, rare_goals(experiment, rows)


def of_ratio(ratio: float) -> str:
    return f"rare first, idf from {ratio:g} of the highest"


def searched(experiment: Experiment, model: MeasuredEngine, test: SparseTest) -> dict[str, Measured]:
    """{all tokens, or the rare ones of each of RATIOS first: what the model finds}"""
    from opensearch_neural.queries import Rare, rare_tokens
    from opensearch_neural.query_encoder import QueryEncoder
    from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever

    manifest = dense.sparse_vectors(experiment, model, test.name)
    place = experiment.work / "exact" / f"{test.name}-{slug(str(model))}-{manifest.stem}"
    loaded: list[Any] = []

    def run(rare: Rare | None) -> Measured:
        if not loaded:
            encoder = QueryEncoder.load(Path(experiment.on_corpus(model, test.name)))
            loaded.extend((*dense.stored_sparse(experiment, model, test.name), encoder.encode))
        ids, vectors, encode = loaded

        def search(encode: Callable[[str], Mapping[str, float]]) -> Run:
            return ExactSparseRetriever(ids, vectors, encode).retrieve(test.texts, DEPTH)

        if rare is None:
            return test.measure(search(encode), MEASURES)
        first = search(lambda text: rare_tokens(encode(text), rare))
        return test.measure(rescored(first, test.texts, ids, vectors, encode), MEASURES)

    ways = {ALL_TOKENS: None} | {of_ratio(ratio): Rare("ratio", ratio) for ratio in RATIOS}
    return {name: kept_measured(place / f"{slug(name)}.json", partial(run, rare)) for name, rare in ways.items()}


def rescored(
    run: Run, texts: Mapping[str, str], ids: Sequence[str], vectors: SparseVectors, encode: Callable[[str], Any]
) -> Run:
    """The documents of `run` with the scores that all tokens give. vectors: of the documents `ids`."""
    rows, columns = ({key: at for at, key in enumerate(keys)} for keys in (ids, vectors.vocabulary))
    matrix = vectors.to_scipy()
    result: Run = {}
    for query, text in texts.items():
        weights = {columns[token]: weight for token, weight in encode(text).items() if token in columns}
        hits = list(run[query])
        picked = matrix[[rows[hit] for hit in hits]][:, list(weights)]
        scores = picked @ list(weights.values()) if hits and weights else []
        result[query] = {hit: float(score) for hit, score in zip(hits, scores, strict=True)}
    return result


# ------------------------------------------------ small trainings


def flops(ablation: Ablation) -> RowsAndGoals:
    """Curves over λ, trained with IDF and without, searched with either corpus's and without."""
    base = ablation.student()
    arms: dict[str, SparseConfig] = {}
    names: dict[tuple[str, str], str] = {}
    for how, (idf, own) in TRAINED_WITH.items():
        for weight in LAMBDAS:
            arm = f"{how}, λ {weight:g}"
            arms[arm] = replace(
                base,
                student=replace(base.student, idf=idf),
                regularization=replace(base.regularization, weight=weight),
            )
            names |= {(arm, OWN): of_curve(how, weight, own), (arm, TARGET): of_curve(how, weight, TARGET)}
    differences = [(engine, PIECES) for engine in (PRESENCE, *names.values())]
    for weight in LAMBDAS:
        both, search, neither = (of_curve(how, weight, idf) for how, idf in CURVES.values())
        own = of_curve(WITH, weight, TRAINED_WITH[WITH][1])
        differences += [(both, search), (search, neither), (both, neither), (both, own)]
    rows = ablation.rows(ablation.searched(arms), names, differences)
    table = Table(rows, ablation.seeds)
    return rows, [
        flops_goal(table, NEITHER),
        flops_goal(table, SEARCH_ALONE),
        *share_goals(table),
        terms_goal(table),
        idf_goal(table),
    ]


def of_curve(how: str, weight: float, idf: str) -> str:
    """The engine of part "flops": how it is trained, λ, and whose IDF weighs its queries."""
    return f"{how}, λ {weight:g}, {idf}"


def distillation(ablation: Ablation) -> RowsAndGoals:
    """Table 6 in direction: what the first of two stages of equal length is trained with; the second is the same in all.

    The second dense teacher is the first, trained on the same questions; the second sparse one BM25 over word pieces. The
    arm without pre-training is trained as many steps as both stages together.
    """
    from trainers.data.teachers import LEXICAL as LEXICAL_TEACHER
    from trainers.sparse.settings import SparseCandidates, StageSettings

    dense_teacher, sparse_teacher = ablation.of_kind("dense"), ablation.of_kind("sparse")
    teachers = {DENSE: dense_teacher, SPARSE: sparse_teacher, LEXICAL: LEXICAL_TEACHER}
    if any(DENSE_TRAINED in taught_by for taught_by, _ in FIRST_STAGES.values()):
        teachers[DENSE_TRAINED] = trained_dense(ablation, dense_teacher)
    base = ablation.student()
    half = replace(base.training, steps=ablation.steps // 2)
    arms: dict[str, SparseConfig] = {}
    for arm, (taught_by, changes) in FIRST_STAGES.items():
        before = StageSettings(
            train=base.train,
            objective=replace(base.objective, teachers=[teachers[name] for name in taught_by], **changes),
            candidates=SparseCandidates(negatives=1, depth=50, mine="bm25"),
            regularization=replace(base.regularization, weight=base.regularization.weight / 10),
            training=half,
        )
        arms[arm] = replace(base, pretraining=before, training=half)
    arms[NO_PRETRAINING] = replace(base, training=replace(base.training, steps=2 * (ablation.steps // 2)))
    names = {(arm, OWN): arm for arm in arms}
    others = [arm for arm in arms if arm != ENSEMBLE]
    rows = ablation.rows(ablation.searched(arms), names, [(other, ENSEMBLE) for other in others])
    return rows, [distillation_goal(Table(rows, ablation.seeds))]


# ------------------------------------------------ goals


def quality_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's claim (table 3): the student alone is above BM25, in the mean of sets that it did not see."""
    table, label = Table(rows, experiment.seeds), unseen(experiment)
    goals: list[Goal] = []
    for arm in experiment.arms:
        row = table.difference(label, arm, TUNED, "nDCG@10")
        words = f"{arm}: alone above tuned BM25's nDCG@10 in the {label}, interval above zero (table 3)"
        goals.append(goal_of(words, "low above 0", None if row is None else signed(row), is_above(row)))
    return goals


def rare_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's "negligible impact on search relevance" (section 5.3.2): half a point at most, interval included."""
    table, label = Table(rows, experiment.seeds), f"mean of {len(experiment.sets)} sets"
    goals: list[Goal] = []
    for arm in experiment.arms:
        for ratio in RATIOS:
            row = table.difference(label, of_ratio(ratio), ALL_TOKENS, "nDCG@10", variant=arm)
            words = (
                f"{arm}, {of_ratio(ratio)}: nDCG@10 at most {MOST_LOST} below that of all tokens, {label}, "
                "interval included (section 5.3.2)"
            )
            kept = row is not None and row.low is not None and row.low >= -MOST_LOST
            goals.append(goal_of(words, f"at least -{MOST_LOST}", None if row is None else signed(row, 4), kept))
    return goals


def curve(table: Table, name: str, which: str, x: str, y: str) -> list[tuple[float, float]]:
    """The students of a set on one of CURVES, as (x, y) by x."""
    how, idf = CURVES[which]
    engines = [of_curve(how, weight, idf) for weight in LAMBDAS]
    values = [(table.value(name, engine, x), table.value(name, engine, y)) for engine in engines]
    return sorted((at.value, of.value) for at, of in values if at is not None and of is not None)


def flops_goal(table: Table, rival: str) -> Goal:
    """The paper's direction (figure 4): at the FLOPS of each student of the rival curve, is the one with IDF higher?"""
    higher = points = 0
    for name in TESTED:
        ours = curve(table, name, BOTH, "FLOPS", "nDCG@10")
        for cost, quality_of_rival in curve(table, name, rival, "FLOPS", "nDCG@10"):
            affordable = [quality for other, quality in ours if other <= cost]
            points += bool(affordable)
            higher += max(affordable, default=float("-inf")) >= quality_of_rival
    rival_words = {NEITHER: "with it in neither (figure 4", SEARCH_ALONE: "with it in search alone (training's share"}
    return goal_of(
        f"with IDF in training and in search nDCG@10 is higher at no more FLOPS than {rival_words[rival]}; by the values, "
        "without intervals)",
        "every point that compares",
        f"{higher} of {points}" if points else None,
        higher == points,
    )


def share_goals(table: Table) -> list[Goal]:
    """Table 5 told apart, at equal λ: what IDF in search brings a student without it, and what IDF in training adds."""
    goals = []
    for words, ours, rival in (("training's", BOTH, SEARCH_ALONE), ("search's", SEARCH_ALONE, NEITHER)):
        gains = []
        for name in TESTED:
            for weight in LAMBDAS:
                engine, baseline = (of_curve(how, weight, idf) for how, idf in (CURVES[ours], CURVES[rival]))
                if (row := table.difference(name, engine, baseline, "nDCG@10")) is not None:
                    gains.append(row)
        points = [100 * row.value for row in gains]
        goals.append(
            all_goal(
                f"{words} share of what IDF brings ({ours}, less {rival}, at equal λ), interval above zero (table 5)",
                [is_above(row) for row in gains],
                f", {min(points):.1f} to {max(points):.1f} points of nDCG@10" if points else "",
            )
        )
    return goals


def terms_goal(table: Table) -> Goal:
    """The paper's words (section 5.4.2): with as many terms a document, those trained with IDF cost fewer FLOPS.

    At the terms of each student with IDF, where the curve of those without it has been that far: between its points.
    """
    import numpy as np

    ratios: list[float] = []
    for name in TESTED:
        without = curve(table, name, NEITHER, "active terms", "FLOPS")
        terms, costs = [count for count, _ in without], [cost for _, cost in without]
        ratios += [
            cost / float(np.interp(count, terms, costs))
            for count, cost in curve(table, name, BOTH, "active terms", "FLOPS")
            if terms and terms[0] <= count <= terms[-1]
        ]
    fewer = sum(ratio < 1 for ratio in ratios)
    return goal_of(
        "with as many active terms a document, those trained with IDF cost fewer FLOPS (section 5.4.2)",
        "every point that compares",
        f"{fewer} of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f} times the FLOPS" if ratios else None,
        fewer == len(ratios),
    )


def idf_goal(table: Table) -> Goal:
    """The paper's direction for students without pre-training (table 5): the searched corpus's IDF is the better one."""
    gains = [
        row
        for name in TESTED
        for weight in LAMBDAS
        if (row := table.difference(
            name, of_curve(WITH, weight, TARGET), of_curve(WITH, weight, TRAINED_WITH[WITH][1]), "nDCG@10"
        )) is not None
    ]  # fmt: skip
    return all_goal(
        "at retrieval the searched corpus's IDF is better than that of training, interval above zero (table 5, no "
        "pre-training)",
        [is_above(row) for row in gains],
        f", {sum(row.value > 0 for row in gains)} without regard to the interval",
    )


def distillation_goal(table: Table) -> Goal:
    """The paper's direction (table 6): normalized, heterogeneous teachers above every other way to pre-train."""
    gains = [
        row
        for name in TESTED
        for other in (*FIRST_STAGES, NO_PRETRAINING)
        if (row := table.difference(name, other, ENSEMBLE, "nDCG@10")) is not None
    ]
    return all_goal(
        "the normalized ensemble is above every other way to pre-train, interval of their differences below zero (table 6)",
        [row.high is not None and row.high < 0 for row in gains],
        f", {sum(row.value < 0 for row in gains)} without regard to the interval",
    )


def idf_shares(rows: Sequence[Row]) -> str:
    """A line for each set and λ: nDCG@10 of the student without IDF, by how many points the searched corpus's IDF raises it
    at retrieval, and by how many IDF in training then raises that."""
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    table, lines = Table(rows, seeds), []
    weights = dict.fromkeys(
        float(row.engine.split(", ")[1][2:]) for row in rows if row.engine.startswith(f"{WITHOUT}, λ ")
    )
    for name, weight in itertools.product(table.sets, weights):
        both, search, neither = (of_curve(how, weight, idf) for how, idf in CURVES.values())
        whole, raised, start = (table.value(name, engine, "nDCG@10") for engine in (both, search, neither))
        # A result of a single seed has another name for the baseline, and of training's share the values alone.
        at_retrieval = table.difference(name, search, neither, "nDCG@10") or table.difference(
            name, search, "own IDF", "nDCG@10"
        )
        if not (whole and raised and start and at_retrieval):
            continue
        in_training = table.difference(name, both, search, "nDCG@10") or replace(
            whole, value=whole.value - raised.value, low=None, high=None
        )
        shares = [with_interval(in_points(share)) for share in (at_retrieval, in_training)]
        lines.append([name, f"{weight:g}", f"{start.value:.3f}", *shares])
    return as_table(["", "λ", "no IDF: nDCG@10", "at retrieval: points", "in training, too: points more"], lines)


def draw_flops(seeds: Sequence[int], rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, and FLOPS against the expansion rate, a panel for each set."""
    table = Table(rows, seeds)
    for file, which, x, y in (
        ("flops.svg", tuple(CURVES), ("FLOPS", "FLOPS, measured"), ("nDCG@10", "nDCG@10")),
        ("expansion.svg", (BOTH, NEITHER), ("active terms", "terms a document"), ("FLOPS", "FLOPS, measured")),
    ):
        panels = {name: {key: curve(table, name, key, x[0], y[0]) for key in which} for name in TESTED}
        plots.curves(panels, folder / file, x=x[1], y=y[1], xlim=(0, None))


# ------------------------------------------------ the command


@click.command("inference-free-sparse")
@start_option
@click.option("--seeds", type=NumberList(int), default="42,43,44", show_default=True, help="Training seeds.")
@click.option(
    "--teacher",
    "teachers",
    multiple=True,
    help="A dense or sparse model, or lexical; repeatable.  [default: all-MiniLM-L6-v2 and the start]",
)
@paper_options
@part_option(PARTS)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=STEPS_OF_ABLATIONS,
    show_default=True,
    help='Optimizer steps of each training of "flops" and "distillation".',
)
@connection_options
def inference_free_sparse(
    connection: ConnectionSettings,
    start: str,
    seeds: tuple[int, ...],
    teachers: tuple[str, ...],
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    steps: int,
) -> None:
    """Train inference-free sparse models and compare them with BM25, or measure what their parts contribute.

    \b
    osn paper inference-free-sparse --start my-splade --data data --work work --record results
    osn paper inference-free-sparse --start my-splade --data data --work work --part flops --teacher my-dense
    """
    experiment = Experiment(data=data, start=start, work=work, seeds=seeds, arms=QUALITY, connection=connection)
    ablation = Ablation(data, work, start, teachers or (MINILM, start), seeds, steps)
    small = [data / name for name in sorted({*SMALL, *TESTED})]

    def part(
        title: str,
        run: Callable[[], RowsAndGoals],
        sets: Sequence[Path],
        measures: Sequence[str] = (),
        draw: Any = None,
    ) -> PaperPart:
        def shown(row: Row) -> bool:
            of_mean = row.seed is None or len(seeds) == 1
            return of_mean and row.kind != "p-value" and row.measure in (MEASURES[0], *measures)

        return PaperPart(title, run, sets, seeds, shown, draw)

    every, facts = list(experiment.sets.values()), ("active terms", "expansion terms", "FLOPS")
    parts = {
        "quality": part("Inference-free sparse retrieval against BM25", partial(quality, experiment), every),
        "flops": part(
            "nDCG@10 against FLOPS, with and without IDF",
            partial(flops, ablation),
            small,
            facts,
            partial(draw_flops, seeds),
        ),
        "distillation": part("Teachers alone and together", partial(distillation, ablation), small, facts),
        "high-idf-first": part("Rare tokens first, then all", partial(high_idf_first, experiment), every),
    }
    run_parts({name: parts[name] for name in chosen or PARTS}, record)
