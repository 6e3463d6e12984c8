"""The evidence for inference-free sparse retrieval: is the student better than BM25, and what makes it so?

    osn paper inference-free-sparse --start MODEL --data DIR --work DIR --record benchmarks/results/inference_free_sparse

`--data` holds BEIR folders. MODEL is a published SPLADE, which every student starts from; each arm is trained with each of
`--seeds`. Parts, each with its own result file below `--record`:
    quality        nDCG@10 of models of `osn bench bm25-sparse`, searched without BM25: as published, trained 10 minutes,
                   and averaged with the start; on every set with a test split, beside BM25, presence × idf and BM25 over
                   word pieces
    flops          nDCG@10 against measured FLOPS for several λ, trained with and without IDF and searched with and without
                   it: the shares of training and retrieval; terms a document, the paper's expansion rate
                   (`inference-free-sparse`, table 5, figures 3 and 4)
    distillation   teachers alone and together, normalized or not, InfoNCE, no pre-training (table 6)
    high-idf-first the models of part "quality", searched by rare tokens first, then scored by all: the loss in nDCG@10
                   (section 5.3.2)

`--teacher` names the teachers of the parts "flops" and "distillation"; all of them teach together unless the arm says
otherwise. By default they are MiniLM and the start itself, as a siamese SPLADE.

Parts "quality" and "high-idf-first" reuse models, vectors and the tuned BM25 of `osn bench bm25-sparse` in `--work`. BM25 is
OpenSearch's, on the cluster of OSN_URL or --url or on a local node, with the analyzer, k1 and b that are best on train; k1
and b of BM25 over word pieces are chosen likewise. All other searches are exact and need no cluster. No test judgement
chooses anything. Slow results are kept in `--work`; the same command continues, and several at once share the trainings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import click

from benchmarks import cluster_bm25
from benchmarks.bm25_sparse.engines import TUNED
from benchmarks.bm25_sparse.measures import MEASURES, rows_of_sets, sets_of_means, tuned_measured, tuned_settings
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment, check_models, start_option
from benchmarks.bm25_sparse.vectors import sparse_vectors, stored_sparse
from benchmarks.cluster_bm25 import tuned_on_train, tuning_questions
from benchmarks.experiment import (
    PaperPart,
    RowsAndGoals,
    Table,
    gain_goal,
    goal_of,
    kept_measured,
    paper_options,
    run_parts,
    slug,
)
from benchmarks.local_cluster import cluster_or_node
from benchmarks.options import part_option, setting_options
from benchmarks.papers.exact_sparse import DEPTH, PIECES, PRESENCE, Saturation, SparseTest, sparse_test, untrained
from benchmarks.papers.idf_and_teachers import SMALL, TESTED, Ablation, distillation, draw_flops, flops, idf_shares
from benchmarks.render import signed
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.evaluation.measures import Measured
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row
from opensearch_neural.models.directory import MINILM
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.queries import Rare, rare_tokens
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever

TABLES = {"idf-shares": idf_shares}
"""{mark of the pages in docs/: rows → table}"""
QUALITY = (PUBLISHED, "trained 10 minutes", "trained 10 minutes, averaged")
"""The models of part "quality", arms of `osn bench bm25-sparse`."""
PARTS = ("quality", "flops", "distillation", "high-idf-first")
ALL_TOKENS = "all tokens"
RATIOS = (0.4, 0.5, 0.6, 0.8)
"""A token is rare if its IDF is at least this share of the highest IDF."""
MOST_LOST = 0.005
"""The highest loss of nDCG@10 by searching rare tokens first."""


def quality(experiment: Experiment) -> RowsAndGoals:
    """Every model searched without BM25, and the engines without a model."""
    differences = [(engine, TUNED) for engine in (PRESENCE, PIECES, *experiment.arms)]
    with cluster_or_node(experiment.connection, "osn-bench-sparse") as client:
        tuned = tuned_measured(client, experiment, tuned_settings(client, experiment))
    pieces = tokenizer_of(experiment.start)
    saturations = tuned_pieces(experiment.with_train, experiment.work, pieces)

    def measured(name: str) -> dict[MeasuredEngine, Measured]:
        test = sparse_test(experiment.data, name, experiment.work)
        without = untrained(test, test.lexical(pieces, saturations.get(test.name, saturations[""])))
        engines = {MeasuredEngine(TUNED): tuned[test.name]}
        engines |= {MeasuredEngine(engine): values for engine, values in without.items()}
        return engines | {model: searched(experiment, model, test)[ALL_TOKENS] for model in experiment.models}

    rows = rows_of_sets(experiment, measured, differences, sets_of_means(experiment))
    return rows, quality_goals(experiment, rows)


def high_idf_first(experiment: Experiment) -> RowsAndGoals:
    """The best 100 by rare tokens, rescored with all tokens; a row's variant is the model."""

    def measured(name: str) -> dict[MeasuredEngine, Measured]:
        test = sparse_test(experiment.data, name, experiment.work)
        return {
            MeasuredEngine(engine, model.seed, model.name): values
            for model in experiment.models
            for engine, values in searched(experiment, model, test).items()
        }

    differences = [(rare_first_name(ratio), ALL_TOKENS) for ratio in RATIOS]
    rows = rows_of_sets(experiment, measured, differences, {experiment.mean_of_all: list(experiment.sets)})
    return rows, rare_goals(experiment, rows)


def rare_first_name(ratio: float) -> str:
    return f"rare first, idf from {ratio:g} of the highest"


def searched(experiment: Experiment, model: MeasuredEngine, test: SparseTest) -> dict[str, Measured]:
    """{engine: the model's measures}, searched with all tokens, and with rare tokens first for each of RATIOS."""
    manifest = sparse_vectors(experiment, model, test.name)
    place = experiment.work / "exact" / f"{test.name}-{slug(str(model))}-{manifest.stem}"

    @cache
    def loaded() -> tuple[list[str], SparseVectors, Callable[[str], Mapping[str, float]]]:
        ids, vectors = stored_sparse(experiment, model, test.name)
        return ids, vectors, TableEncoder.load(Path(experiment.on_corpus(model, test.name))).encode

    def run(rare: Rare | None) -> Measured:
        ids, vectors, encode = loaded()

        def search(encode: Callable[[str], Mapping[str, float]]) -> Run:
            return ExactSparseRetriever(ids, vectors, encode).retrieve(test.texts, DEPTH)

        if rare is None:
            return test.measure(search(encode), MEASURES)
        first = search(lambda text: rare_tokens(encode(text), rare))
        return test.measure(rescored(first, test.texts, ids, vectors, encode), MEASURES)

    ways = {ALL_TOKENS: None} | {rare_first_name(ratio): Rare("ratio", ratio) for ratio in RATIOS}
    return {name: kept_measured(place / f"{slug(name)}.json", partial(run, rare)) for name, rare in ways.items()}


def rescored(
    run: Run, texts: Mapping[str, str], ids: Sequence[str], vectors: SparseVectors, encode: Callable[[str], Any]
) -> Run:
    """The documents of `run`, with their scores by all tokens. vectors: of the documents `ids`."""
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


def tuned_pieces(folders: Mapping[str, Path], work: Path, pieces: Any) -> dict[str, Saturation]:
    """k1 and b of BM25 over word pieces, chosen on train as those of OpenSearch's BM25 are; see `tuned_on_train`."""

    def scores(folder: Path) -> dict[Saturation, float]:
        questions = tuning_questions(folder)
        test, of_settings = SparseTest(questions, questions.qrels(), folder=work), {}
        lexical = test.lexical(pieces)
        for tried in itertools.starmap(Saturation, itertools.product(*cluster_bm25.GRID)):
            impacts = replace(lexical, **tried._asdict()).encode_documents(test.contents)
            run = test.search(impacts, lexical.query.encode)
            of_settings[tried] = test.measure(run, ["nDCG@10"]).mean["nDCG@10"]
        return of_settings

    return tuned_on_train(folders, work / "word-pieces", Saturation, scores)


# ------------------------------------------------ goals


def quality_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's claim (table 3): the student alone is better than BM25, in the mean of sets that it did not see."""
    table, label = Table(rows, experiment.seeds), experiment.mean_of_unseen
    words = f"alone above tuned BM25's nDCG@10 in the {label}, interval above zero (table 3)"
    return [gain_goal(f"{arm}: {words}", table.difference(label, arm, TUNED, "nDCG@10")) for arm in experiment.arms]


def rare_goals(experiment: Experiment, rows: Iterable[Row]) -> list[Goal]:
    """The paper's "negligible impact on search relevance" (section 5.3.2): at most 0.5 points lost, interval included."""
    table, label = Table(rows, experiment.seeds), experiment.mean_of_all
    goals: list[Goal] = []
    for arm in experiment.arms:
        for ratio in RATIOS:
            row = table.difference(label, rare_first_name(ratio), ALL_TOKENS, "nDCG@10", variant=arm)
            words = (
                f"{arm}, {rare_first_name(ratio)}: nDCG@10 at most {MOST_LOST} below that of all tokens, {label}, "
                "interval included (section 5.3.2)"
            )
            is_kept = row is not None and row.low is not None and row.low >= -MOST_LOST
            goals.append(goal_of(words, f"at least -{MOST_LOST}", None if row is None else signed(row, 4), is_kept))
    return goals


# ------------------------------------------------ the command


@click.command("inference-free-sparse")
@start_option
@setting_options(Ablation)
@paper_options
@part_option(PARTS)
@connection_options
def inference_free_sparse(
    connection: ConnectionSettings,
    start: str,
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    **options: Any,
) -> None:
    """Train inference-free sparse models and compare them with BM25, or measure what their parts contribute.

    \b
    osn paper inference-free-sparse --start my-splade --data data --work work --record results
    osn paper inference-free-sparse --start my-splade --data data --work work --part flops --teacher my-dense
    """
    ablation = Ablation(data, work, start, **{**options, "teachers": options["teachers"] or (MINILM, start)})
    seeds = ablation.seeds
    experiment = Experiment(data=data, start=start, work=work, seeds=seeds, arms=QUALITY, connection=connection)
    check_models(experiment)
    small = [data / name for name in sorted({*SMALL, *TESTED})]

    every, facts = list(experiment.sets.values()), ("active terms", "expansion terms", "FLOPS")

    def part(title: str, run: Callable[[], RowsAndGoals], sets: Sequence[Path] = small, draw: Any = None) -> PaperPart:
        measures = (MEASURES[0], *(facts if sets is small else ()))

        def shown(row: Row) -> bool:
            return (row.seed is None or len(seeds) == 1) and row.kind != "p-value" and row.measure in measures

        return PaperPart(title, run, sets, seeds, shown, draw)

    curves = partial(draw_flops, seeds)
    parts = {
        "quality": part("Inference-free sparse retrieval against BM25", partial(quality, experiment), every),
        "flops": part("nDCG@10 against FLOPS, with and without IDF", partial(flops, ablation), draw=curves),
        "distillation": part("Teachers alone and together", partial(distillation, ablation)),
        "high-idf-first": part("Rare tokens first, then all", partial(high_idf_first, experiment), every),
    }
    run_parts(parts, record, chosen)
