"""The evidence for inference-free sparse retrieval: is the student better than BM25, and what makes it so?

    osn bench inference-free-sparse --data DIR --work DIR --part quality --record benchmarks/results/inference_free_sparse

`--data` holds the BEIR folders. Parts, each with a result file of its own below `--record`:
    quality        one student trained on the train splits of scifact, wikiqa-doc, tldr and squad-mix; nDCG@10 on their
                   test splits and on three sets that no training saw, beside BM25, presence × idf, BM25 over word pieces
                   and the dense teacher
    head           the sampled head against the full one and the plain formula: steps a second in both precisions, the
                   head alone, and quality after equal time
    flops          nDCG@10 against measured FLOPS for several λ, trained with and without IDF; IDF at retrieval from the
                   training or the target corpus (`inference-free-sparse`, table 5, figures 3 and 4)
    distillation   teachers alone and together, normalized or not, InfoNCE, no pre-training (table 6)
    high-idf-first the rare tokens first, then all: what it costs in nDCG@10 (section 5.3.2)

Documents are encoded in bfloat16, which the benchmark of encoding shows to be 0.05 points of nDCG@10 from float32.
Models and vectors stay in `--work`: interrupted, the same command goes on, and a model that is there is not trained again.
BM25 is OpenSearch's, of the cluster that OSN_URL or --url names or of a local node, with the best of two analyzers and of
k1 and b on train; k1 and b of the impacts over word pieces are chosen likewise. No test judgement chooses anything.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click
import numpy as np

from benchmarks.papers.cluster_bm25 import Bm25Settings, cluster_bm25
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings

if TYPE_CHECKING:
    import torch
    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from opensearch_neural.models.lexical import LexicalEncoder
    from opensearch_neural.models.sparse import SparseDocumentEncoder
    from opensearch_neural.queries import Rare
    from opensearch_neural.retrievers import Run
    from trainers.data.examples import TrainingData
    from trainers.sparse.lexicon import Lexicon
    from trainers.sparse.settings import SparseConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
TRAINED_ON = ("scifact", "wikiqa-doc", "tldr", "squad-mix")
UNSEEN = ("medquad-liveqa", "snopes-claims", "cranfield")
SMALL = ("wikiqa-doc", "tldr")
"""What the ablations train on."""
TESTED = ("wikiqa-doc", "cranfield")
"""What the ablations are tested on, one that they train on and one unseen: to encode tldr takes longer than a training."""
CLAIMED = ("scifact", "wikiqa-doc", "tldr")
MEASURES = ("nDCG@10", "R@100")
BM25, PRESENCE, PIECES, TEACHER, STUDENT = (
    "BM25",
    "presence × idf",
    "BM25 over word pieces",
    "dense teacher",
    "sparse student",
)
PLAIN = "plain"
ENSEMBLE = "ensemble"
TARGET = "target corpus"
OWN = "own IDF"
PARTS = ("quality", "head", "flops", "distillation", "high-idf-first")
GRID = ((0.6, 0.9, 1.2, 1.6, 2.0), (0.3, 0.5, 0.75, 0.9))  # k1, b
TUNING_QUERIES = 400
LAMBDAS = (0.0, 1e-3, 1e-2, 1e-1)
STUDENT_STEPS = 1500
ABLATION_STEPS = 240
WARM_UP_STEPS = 100
DENSE_TEACHER_STEPS = 70
"""Of the second dense teacher: half of the questions once."""
TIMED_STEPS = 8
TIMED_TURNS = 3
VOCABULARY = 30_522
HOLD_BACK = 100
"""Questions of each train set that select the state that is kept."""
DEPTH = 100


# ------------------------------------------------ what is trained


def configuration(data: Path, work: Path, name: str, *, steps: int, sets: Sequence[str] = ()) -> SparseConfig:
    """The student of part "quality", on `sets` or all of TRAINED_ON; settings were chosen on held-back parts of train."""
    from trainers.common.config import load_config, recipe
    from trainers.data.sets import QuestionSet
    from trainers.sparse.settings import SparseConfig

    made = load_config(SparseConfig, recipe("sparse-residual"))
    return replace(
        made,
        output=work / "models" / name,
        cache=work / "cache",
        start=START,
        train=[QuestionSet(data / one) for one in sets or TRAINED_ON],
        unseen=[QuestionSet(data / one, split="test", name=f"{one}-test") for one in sets or TRAINED_ON],
        selection=replace(made.selection, hold_back=HOLD_BACK, queries=HOLD_BACK),
        # Measured once, at the end.
        training=replace(made.training, steps=steps, set_weights=0.25, evaluate_every=steps),
    )


def ablation(data: Path, work: Path, name: str, *, steps: int) -> SparseConfig:
    """The paper's own student, without impacts that are added, small: what parts "flops" and "distillation" vary."""
    from trainers.sparse.settings import SparseObjective

    config = configuration(data, work, name, steps=steps, sets=SMALL)
    return replace(
        config,
        student=replace(config.student, residual=False, idf="train"),
        warm_up=replace(config.warm_up, impact_steps=WARM_UP_STEPS),
        objective=SparseObjective(
            info_nce=0.0, kl=1.0, teachers=[START, "lexical"], teacher_scale=10.0, all_pairs=True
        ),
    )


def trained(config: SparseConfig) -> SparseDocumentEncoder:
    """The model of `config`, trained where it is not yet; it reads as many tokens of a document as in training."""
    from opensearch_neural.models.sparse import load_sparse
    from trainers.common.precision import faster_in_bfloat16
    from trainers.sparse.train import train_sparse

    found = train_sparse(config)
    logger.info(
        "%s: %d steps, the state after %s kept: %s", config.output.name, found.steps, found.best_step, found.measures
    )
    dtype: Literal["fp32", "bf16"] = "bf16" if faster_in_bfloat16() else "fp32"
    return load_sparse(config.output, dtype=dtype, max_length=config.document_length)


# ------------------------------------------------ engines without a cluster


S = TypeVar("S", bound=tuple[Any, ...])


class Saturation(NamedTuple):
    """BM25's k1 and b."""

    k1: float
    b: float


@dataclass
class Test:
    """A test split with what the engines share: the statistics of its corpus, and where vectors are kept.

    qrels: {query id: {document id: grade}}; training data knows relevant documents only, not how relevant.
    """

    name: str
    data: TrainingData
    folder: Path
    qrels: Mapping[str, Mapping[str, int]]

    @classmethod
    def load(cls, data: Path, name: str, work: Path) -> Test:
        from opensearch_neural.corpus.judgements import BeirData
        from trainers.data.loading import load_training

        found = load_training(data / name, split="test", name=name)
        graded = BeirData.load(data / name, "test").qrels
        return cls(name, found, work / "vectors" / name, {query: graded[query] for query in found.query_texts()})

    def lexicon(self, pieces: Any, saturation: Saturation | None = None) -> Lexicon:
        """IDF and BM25 impacts of this corpus over the word pieces of `pieces`, a tokenizer."""
        from opensearch_neural.models.lexical import build_lexical

        encoder = build_lexical(self.data.documents.values(), tokenizer=pieces)
        return with_saturation(encoder, saturation or Saturation(encoder.k1, encoder.b))

    def measured(self, run: Run) -> Measured:
        from opensearch_neural.evaluation.measures import measure

        return measure(run, self.qrels, MEASURES)


def sparse_run(test: Test, matrix: Any, vocabulary: list[str], encode: Any) -> Run:
    """Exact search: matrix (documents, vocabulary) against queries as `encode` makes them."""
    from scipy.sparse import csr_matrix

    from opensearch_neural.models.vectors import SparseVectors
    from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever

    rows = csr_matrix(matrix)
    vectors = SparseVectors(rows.indptr, rows.indices, rows.data, vocabulary)
    return ExactSparseRetriever(test.data.documents.ids, vectors, encode).retrieve(test.data.query_texts(), DEPTH)


def on_target(encoder: Any, lexicon: Lexicon) -> Any:
    """A sparse model with the IDF, and the impacts, of another corpus: what its documents and queries are encoded with
    there. The learned weights stay."""
    from opensearch_neural.query_encoder import QueryEncoder

    query = QueryEncoder(
        encoder.query.tokenizer, lexicon.encoder.query.weights, encoder.query.max_length, name=encoder.query.name
    )
    lexical = encoder.lexical
    if lexical is not None:
        counted = lexicon.encoder
        lexical = replace(lexical, query=query, average_length=counted.average_length, k1=counted.k1, b=counted.b)
    return replace(encoder, query=query, lexical=lexical)


def document_matrix(encoder: Any, test: Test) -> Any:
    """The documents of a test set as the model encodes them: (documents, vocabulary), kept on disk."""
    from trainers.data.embedding_cache import sparse_vectors

    info = encoder.info
    if encoder.lexical is not None:  # The impacts are of this corpus: other vectors than the model's own.
        info = replace(info, hash=f"{info.hash}-{encoder.lexical.info.hash}")
    path = test.folder / f"{info.name}-{info.hash}"
    return sparse_vectors(
        encoder.encode_documents, test.data.documents, path, model=info, vocabulary=encoder.vocabulary
    ).to_scipy()


def student_run(encoder: Any, test: Test) -> tuple[Run, dict[str, float]]:
    """The student's run, and how sparse its documents are."""
    from trainers.sparse.dev_measures import measured_flops

    matrix = document_matrix(encoder, test)
    queries = [encoder.query.encode(text) for text in test.data.query_texts().values()]
    present = test.lexicon(encoder.query.tokenizer).impacts(list(test.data.documents.values()))
    outside = (matrix > 0).astype(int) - (matrix > 0).multiply(present > 0).astype(int)
    sparsity = {
        "active terms": float((matrix > 0).sum() / matrix.shape[0]),
        "expansion terms": float(outside.sum() / matrix.shape[0]),
        "FLOPS": measured_flops(queries, matrix, encoder.vocabulary),
    }
    return sparse_run(test, matrix, encoder.vocabulary, encoder.query.encode), sparsity


def tuned_bm25(client: OpenSearch, data: Path, work: Path) -> dict[str, Bm25Settings]:
    """The analyzer, k1 and b of the cluster's BM25, chosen on train."""

    def scores(name: str) -> dict[Bm25Settings, float]:
        with cluster_bm25(client, corpus_of(data, name)) as engine:
            return engine.scores(some_questions(data, name), GRID)

    return best_settings({name: kept(work / "bm25" / name, Bm25Settings, scores) for name in TRAINED_ON})


def tuned_pieces(data: Path, work: Path, pieces: Any) -> dict[str, Saturation]:
    """k1 and b of the impacts over word pieces, chosen as those of the rival are."""
    from opensearch_neural.evaluation.measures import measure
    from opensearch_neural.models.lexical import build_lexical

    def scores(name: str) -> dict[Saturation, float]:
        some = some_questions(data, name)
        encoder = build_lexical(some.documents.values(), tokenizer=pieces)
        test, found = Test(name, some, Path(), some.qrels()), {}
        for one in itertools.starmap(Saturation, itertools.product(*GRID)):
            impacts = with_saturation(encoder, one).impacts(list(some.documents.values()))
            run = sparse_run(test, impacts, encoder.vocabulary, encoder.query.encode)
            found[one] = measure(run, some.qrels(), ["nDCG@10"]).mean["nDCG@10"]
        return found

    return best_settings({name: kept(work / "word-pieces" / name, Saturation, scores) for name in TRAINED_ON})


def kept(path: Path, settings: Callable[..., S], scores: Callable[[str], dict[S, float]]) -> dict[S, float]:
    """The scores of settings on a set, measured once for this grid."""
    import json

    from opensearch_neural.files import write_json
    from trainers.common.config import fingerprint

    file = path.with_name(f"{path.name}-{fingerprint([GRID, TUNING_QUERIES])}.json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, [[one, score] for one, score in scores(path.name).items()])
    return {settings(*one): score for one, score in json.loads(file.read_text(encoding="utf-8"))}


def corpus_of(data: Path, name: str) -> Path:
    from opensearch_neural.corpus.judgements import BeirData

    return BeirData.load(data / name, "test").corpus_path


def with_saturation(encoder: LexicalEncoder, saturation: Saturation) -> Lexicon:
    from trainers.sparse.lexicon import Lexicon

    return Lexicon(replace(encoder, k1=saturation.k1, b=saturation.b), len(encoder.vocabulary))


def best_settings(scores: Mapping[str, Mapping[S, float]]) -> dict[str, S]:
    """For each set the settings that are best on its train questions, and under "" those best on average."""
    best = {name: max(found, key=lambda one: found[one]) for name, found in scores.items()}
    everywhere = next(iter(scores.values()))
    best[""] = max(everywhere, key=lambda one: sum(found[one] for found in scores.values()))
    logger.info("chosen on train: %s", best)
    return best


def some_questions(data: Path, name: str) -> TrainingData:
    """Of a train split, evenly: what BM25 is tuned on."""
    from trainers.data.loading import load_training

    train = load_training(data / name, split="train", name=name)
    return train.take(range(0, len(train), -(-len(train) // TUNING_QUERIES)))


# ------------------------------------------------ the parts


def quality(data: Path, work: Path, steps: int, connection: ConnectionSettings) -> tuple[list[Row], list[Goal]]:
    """Part 1: train together, test apart."""
    from benchmarks.local_cluster import cluster_or_node

    student = trained(configuration(data, work, "student", steps=steps))
    found: list[Row] = []
    pieces = tuned_pieces(data, work, student.query.tokenizer)
    with cluster_or_node(connection, "osn-bench-sparse") as client:
        chosen = tuned_bm25(client, data, work)
        for name in (*TRAINED_ON, *UNSEEN):
            settings = chosen.get(name, chosen[""])
            with cluster_bm25(client, corpus_of(data, name), [settings.analyzer]) as bm25:
                rival = partial(bm25.run, settings=settings)
                found += compared(student, Test.load(data, name, work), rival, pieces.get(name, pieces[""]))
    return found, quality_goals(found)


def compared(
    student: Any, test: Test, bm25: Callable[[Mapping[str, str], int], Run], saturation: Saturation
) -> list[Row]:
    """Rows of the student, the rival and the baselines on a test set."""
    from opensearch_neural.evaluation.result_rows import rows
    from trainers.data.negatives import open_retriever

    lexicon = test.lexicon(student.query.tokenizer, saturation)
    run, sparsity = student_run(on_target(student, lexicon), test)
    dense = open_retriever(f"dense:{START}", test.data.documents, cache=test.folder / "dense")
    queries = test.data.query_texts()
    measured = {
        BM25: test.measured(bm25(queries, DEPTH)),
        **untrained(test, lexicon),
        TEACHER: test.measured(dense.retrieve(queries, DEPTH)),
        STUDENT: test.measured(run),
    }
    return rows(test.name, measured, baseline=BM25) + sparsity_rows(test, STUDENT, sparsity)


def untrained(test: Test, lexicon: Lexicon) -> dict[str, Measured]:
    """What the student's own vocabulary gives without any learning: a lead has to be over these."""
    impacts, encoder = lexicon.impacts(list(test.data.documents.values())), lexicon.encoder
    presence = (impacts > 0).astype("float32")
    return {
        name: test.measured(sparse_run(test, matrix, encoder.vocabulary, encoder.query.encode))
        for name, matrix in ((PRESENCE, presence), (PIECES, impacts))
    }


def sparsity_rows(test: Test, engine: str, sparsity: Mapping[str, float]) -> list[Row]:
    from opensearch_neural.evaluation.results import Row

    count = len(test.data.documents)
    return [Row(test.name, engine, key, value, None, None, count) for key, value in sparsity.items()]


def quality_goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals of the issue, in its words."""
    from opensearch_neural.evaluation.results import Goal

    gains = {row.set: row for row in rows if row.line == STUDENT and row.column == f"nDCG@10 - {BM25}"}
    above = [name for name in CLAIMED if name in gains and (gains[name].low or 0) > 0]
    unseen = [gains[name].value for name in UNSEEN if name in gains]
    mean = sum(unseen) / len(unseen) if unseen else None
    return [
        Goal(
            "above BM25's nDCG@10, interval above zero, on at least two of scifact, wikiqa-doc, tldr",
            "2 of 3",
            f"{len(above)} of 3" + (f" ({', '.join(above)})" if above else ""),
            len(above) >= 2,
        ),
        Goal(
            "the mean over the unseen sets no more than 1 point below BM25",
            "at least -0.01",
            None if mean is None else round(mean, 4),
            mean is not None and mean >= -0.01,
        ),
    ]


def head(data: Path, work: Path, steps: int) -> tuple[list[Row], list[Goal]]:
    """The sampled head and the full one: the same steps timed in turns, then quality after equal time."""
    from opensearch_neural.evaluation.result_rows import mean_row
    from opensearch_neural.evaluation.results import Goal

    precisions: tuple[Literal["bfloat16", "float32"], ...] = ("bfloat16", "float32")
    rates = {precision: step_rates(data, work, precision) for precision in precisions}
    found = head_rows(head_seconds())
    for precision, kinds in rates.items():
        for kind, values in kinds.items():
            found.append(mean_row(" and ".join(SMALL), f"{kind} head, {precision}", "steps/s", values))
        for kind in ("full", PLAIN):
            engine = f"sampled head, {precision}"
            how = {"baseline": f"{kind} head, {precision}", "measure_label": f"steps/s ÷ {kind} head's"}
            found.append(mean_row(" and ".join(SMALL), engine, "steps/s", of_each(kinds, kind), kind="ratio", **how))
    models, slower = {}, fmean(of_each(rates["bfloat16"], "full"))
    for kind, count in (("full", max(1, round(steps / slower))), ("sampled", steps)):
        config = configuration(data, work, f"head-{kind}", steps=count, sets=SMALL)
        models[f"{kind} head, {count} steps"] = trained(with_head(config, kind))
    found += tested(data, work, {}, targeted=models, baseline=next(iter(models)))
    goals = []
    for kind, what in ((PLAIN, "the plain full head"), ("full", "the full head pooled tile by tile")):
        ratios = {precision: fmean(of_each(kinds, kind)) for precision, kinds in rates.items()}
        seen = ", ".join(f"{ratio:.2f} in {precision}" for precision, ratio in ratios.items())
        goal = f"the sampled head: at least 2.5× the steps per second of {what}, on 2 cores"
        goals.append(Goal(goal, "2.5", seen, min(ratios.values()) >= 2.5))
    return found, goals


def of_each(rates: Mapping[str, Sequence[float]], kind: str) -> list[float]:
    """How many times the steps a second of `kind` the sampled head does, turn by turn."""
    return [one / other for one, other in zip(rates["sampled"], rates[kind], strict=True)]


def plain_logits(
    hidden: torch.Tensor,
    mask: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    columns: torch.Tensor | None = None,
    *,
    revive: float = 0.0,
) -> torch.Tensor:
    """What `largest_logits` gives of all columns, by the formula: all logits at once."""
    from torch.nn.functional import linear

    assert columns is None
    logits = linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
    return (logits * mask[:, :, None]).relu().amax(dim=1)


def head_seconds(rounds: int = 7, documents: int = 32, length: int = 128, size: int = 384) -> dict[str, list[float]]:
    """Forward and backward of the head alone, on vectors that look like a trained model's: some hundred weights a
    document. {head: seconds of each round}, in turns; "plain" is the formula, all logits at once."""
    import time

    import torch

    from trainers.sparse.tiled_head import largest_logits, sample_columns

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(documents, length, size, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, size, generator=generator)
    # Products of such vectors have the standard deviation √size; some 200 columns reach 3.9 of them within 128 positions.
    bias = torch.full((VOCABULARY,), -3.9 * size**0.5).requires_grad_()
    mask = torch.ones(documents, length, dtype=torch.long)
    wanted = np.arange(0, VOCABULARY, 60)
    drawn = sample_columns(wanted, np.arange(VOCABULARY), 1024, np.random.default_rng(0))
    columns = torch.from_numpy(drawn.ids)
    heads: dict[str, Callable[[], torch.Tensor]] = {
        PLAIN: lambda: plain_logits(hidden, mask, weight, bias),
        "tiled": lambda: largest_logits(hidden, mask, weight, bias),
        "sampled": lambda: largest_logits(hidden, mask, weight, bias, columns),
    }
    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for number in range(rounds + 1):
        for name, head in heads.items():
            start = time.perf_counter()
            head().float().log1p().square().sum().backward()
            if number:  # The first round takes memory and chooses kernels.
                seconds[name].append(time.perf_counter() - start)
    return seconds


def head_rows(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    from opensearch_neural.evaluation.result_rows import mean_row

    found = []
    head_alone = f"head alone, 32 documents of 128 tokens, {VOCABULARY:,} columns"
    for name, values in seconds.items():
        what = f"{name} {head_alone}"
        found.append(mean_row("random vectors", what, "ms", [1000 * one for one in values]))
        of_plain = [one / other for one, other in zip(values, seconds[PLAIN], strict=True)]
        how = {"kind": "ratio", "baseline": f"{PLAIN} {head_alone}", "measure_label": "seconds ÷ plain"}
        found.append(mean_row("random vectors", what, "seconds", of_plain, **how))
    return found


def with_head(config: SparseConfig, kind: str) -> SparseConfig:
    return replace(config, student=replace(config.student, head=kind))  # type: ignore[arg-type]


def step_rates(data: Path, work: Path, precision: Literal["bfloat16", "float32"]) -> dict[str, list[float]]:
    """Steps a second of each head, one value a turn: the student's own training, short; "plain" trains with the formula."""
    from unittest.mock import patch

    rates: dict[str, list[float]] = {"sampled": [], "full": [], PLAIN: []}
    for turn, (kind, values) in itertools.product(range(TIMED_TURNS), rates.items()):
        config = configuration(data, work, f"timed-{precision}-{kind}-{turn}", steps=TIMED_STEPS, sets=SMALL)
        config = replace(config, training=replace(config.training, precision=precision))
        with patch("trainers.sparse.student.largest_logits", plain_logits) if kind == PLAIN else nullcontext():
            values.append(steps_per_second(with_head(config, "full" if kind == PLAIN else kind), work / "timed"))
    return rates


def steps_per_second(config: SparseConfig, folder: Path) -> float:
    """Of a short run, its first two steps and measuring on dev left out."""
    import json
    import shutil

    from trainers.sparse.train import train_sparse

    output = folder / config.output.name
    file = output.with_suffix(".json")
    if not file.exists():
        training = replace(config.training, log_every=1, evaluate_every=1000, save_every=1000)
        shutil.rmtree(output, ignore_errors=True)
        selection = replace(config.selection, hold_back=None)
        done = train_sparse(replace(config, output=output, training=training, selection=selection))
        seconds = [1 / entry["steps_per_second"] for entry in done.history if "steps_per_second" in entry][2:]
        file.write_text(json.dumps(len(seconds) / sum(seconds)))
        shutil.rmtree(output, ignore_errors=True)
    return float(json.loads(file.read_text()))


def flops(data: Path, work: Path, steps: int) -> tuple[list[Row], list[Goal]]:
    """Curves over λ, with and without IDF, and IDF at retrieval from either corpus."""
    own, targeted = {}, {}
    for idf, weight in itertools.product(("train", "none"), LAMBDAS):
        config = ablation(data, work, f"flops-{idf}-{weight:g}", steps=steps)
        config = replace(
            config,
            student=replace(config.student, idf=idf),
            regularization=replace(config.regularization, weight=weight),
        )
        engine = f"with{'' if idf == 'train' else 'out'} IDF, λ {weight:g}"
        model = trained(config)
        own[f"{engine}, {'training corpus' if idf == 'train' else 'no IDF'}"] = model
        targeted[f"{engine}, {TARGET}"] = model
    found = tested(data, work, own, targeted, baseline=PIECES, pairs=dict(zip(targeted, own, strict=True)))
    return found, flops_goals(found) + terms_goals(found) + idf_goals(found)


def tested(
    data: Path,
    work: Path,
    models: Mapping[str, Any],
    targeted: Mapping[str, Any],
    *,
    baseline: str,
    pairs: Mapping[str, str] | None = None,
) -> list[Row]:
    """Rows of the students on the ablations' test sets, with what needs no learning; `targeted` ones use their IDF.

    pairs: {engine: engine with the same model and its own IDF}, which are compared besides.
    """
    from opensearch_neural.evaluation.result_rows import only_differences, rows

    found: list[Row] = []
    pieces = next(iter({**models, **targeted}.values())).query.tokenizer
    for test in (Test.load(data, name, work) for name in TESTED):
        lexicon = test.lexicon(pieces)
        measured = untrained(test, lexicon)
        adapted = {engine: on_target(model, lexicon) for engine, model in targeted.items()}
        for engine, model in {**models, **adapted}.items():
            run, sparsity = student_run(model, test)
            measured[engine] = test.measured(run)
            found += sparsity_rows(test, engine, sparsity)
        found += rows(test.name, measured, baseline=baseline)
        for engine, own in (pairs or {}).items():
            both = {OWN: measured[own], engine: measured[engine]}
            found += only_differences(rows(test.name, both, baseline=OWN))
    return found


def curves(rows: Sequence[Row], name: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """{"with IDF", "without IDF": the students of a set, each searched as it was trained, as (x, y) by x}."""
    value = {(row.set, row.line, row.column): row.value for row in rows}
    found = {}
    for trained_with, retrieval in (("with IDF", "training corpus"), ("without IDF", "no IDF")):
        engines = [f"{trained_with}, λ {weight:g}, {retrieval}" for weight in LAMBDAS]
        found[trained_with] = sorted(
            (value[name, one, x], value[name, one, y]) for one in engines if (name, one, x) in value
        )
    return found


def flops_goals(rows: Sequence[Row]) -> list[Goal]:
    """The paper's direction (figure 4): at the FLOPS of each student without IDF, is the curve with it higher?"""
    from opensearch_neural.evaluation.results import Goal

    higher = compared = 0
    for name in TESTED:
        curve = curves(rows, name, "FLOPS", "nDCG@10")
        for cost, quality_without in curve["without IDF"]:
            affordable = [quality for other, quality in curve["with IDF"] if other <= cost]
            if affordable:
                compared += 1
                higher += max(affordable) >= quality_without
    return [
        Goal(
            "with IDF in the matching function nDCG@10 is higher at no more FLOPS (figure 4; each searched as trained)",
            "every point that compares",
            f"{higher} of {compared}",
            bool(compared) and higher == compared,
        )
    ]


def terms_goals(rows: Sequence[Row]) -> list[Goal]:
    """The paper's words (section 5.4.2): with as many terms a document, those trained with IDF cost fewer FLOPS.

    At the terms of each student with IDF, where the curve of those without it has been that far: between its points.
    """
    from opensearch_neural.evaluation.results import Goal

    ratios = []
    for name in TESTED:
        curve = curves(rows, name, "active terms", "FLOPS")
        terms, costs = [count for count, _ in curve["without IDF"]], [cost for _, cost in curve["without IDF"]]
        ratios += [
            cost / float(np.interp(count, terms, costs))
            for count, cost in curve["with IDF"]
            if terms and terms[0] <= count <= terms[-1]
        ]
    fewer = sum(ratio < 1 for ratio in ratios)
    spread = f", {min(ratios):.2f} to {max(ratios):.2f} times the FLOPS" if ratios else ""
    return [
        Goal(
            "with as many active terms a document, those trained with IDF cost fewer FLOPS (section 5.4.2)",
            "every point that compares",
            f"{fewer} of {len(ratios)}{spread}",
            bool(ratios) and fewer == len(ratios),
        )
    ]


def idf_goals(rows: Sequence[Row]) -> list[Goal]:
    """The paper's direction for students without pre-training (table 5): the searched corpus's IDF is the better one."""
    from opensearch_neural.evaluation.results import Goal

    gains = [row for row in rows if row.column == f"nDCG@10 - {OWN}" and row.line.startswith("with IDF")]
    above = sum(row.value > 0 for row in gains)
    clearly = sum(row.low is not None and row.low > 0 for row in gains)
    return [
        Goal(
            "at retrieval the searched corpus's IDF is better than that of training (table 5, no pre-training)",
            f"{len(gains)} of {len(gains)}",
            f"{above} of {len(gains)}, {clearly} with the interval above zero",
            above == len(gains),
        )
    ]


def plot(rows: Sequence[Row], folder: Path) -> None:
    """nDCG@10 against measured FLOPS, a curve for each way of training, a panel for each set."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    value = {(row.set, row.line, row.column): row.value for row in rows}
    sets = sorted({row.set for row in rows})
    figure, axes = plt.subplots(1, len(sets), figsize=(4 * len(sets), 3.2), squeeze=False)
    for axis, name in zip(axes[0], sets, strict=True):
        for trained_with in ("with IDF", "without IDF"):
            points = sorted(
                (cost, value[name, engine, "nDCG@10"])
                for (of, engine, measure), cost in value.items()
                if of == name and measure == "FLOPS" and engine.startswith(trained_with) and not engine.endswith(TARGET)
            )
            axis.plot(*zip(*points, strict=True), marker="o", label=f"trained {trained_with}")
        axis.set(title=name, xlabel="FLOPS, measured", ylabel="nDCG@10", xlim=(0, None))
    axes[0][0].legend()
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "flops.svg", metadata={"Date": None})
    plt.close(figure)


def distillation(data: Path, work: Path, steps: int) -> tuple[list[Row], list[Goal]]:
    """Table 6 in direction: what the first of two stages of equal length is trained with; the second is the same in all.

    The second dense teacher is MiniLM trained on the same questions; a second sparse one there is none of. The arm without
    pre-training is trained as many steps as both stages together.
    """
    from trainers.sparse.settings import SparseCandidates, StageSettings

    dense = trained_dense(data, work)
    arms: dict[str, dict[str, Any]] = {
        ENSEMBLE: {"teachers": [START, "lexical"]},
        "dense (MiniLM) alone": {"teachers": [START]},
        "dense (MiniLM trained) alone": {"teachers": [dense]},
        "sparse (BM25 over word pieces) alone": {"teachers": ["lexical"]},
        "dense pair": {"teachers": [START, dense]},
        "ensemble, no normalization": {
            "teachers": [START, "lexical"],
            "normalize_teachers": False,
            "teacher_scale": 1.0,
        },
        "InfoNCE": {"teachers": [], "kl": 0.0, "info_nce": 1.0, "all_pairs": False},
    }
    models = {}
    for engine, changes in arms.items():
        slug = "".join(letter if letter.isalnum() else "-" for letter in engine.lower())
        base = ablation(data, work, f"distillation-{slug}", steps=steps // 2)
        before = StageSettings(
            train=base.train,
            objective=replace(base.objective, **changes),
            candidates=SparseCandidates(negatives=1, depth=50, mine="bm25"),
            regularization=replace(base.regularization, weight=base.regularization.weight / 10),
            training=base.training,
        )
        models[engine] = trained(replace(base, pretraining=before))
    models["no pre-training"] = trained(ablation(data, work, "distillation-no-pre-training", steps=2 * (steps // 2)))
    found = tested(data, work, models, {}, baseline=ENSEMBLE)
    return found, distillation_goals(found)


def distillation_goals(rows: Sequence[Row]) -> list[Goal]:
    """The paper's direction (table 6): normalized, heterogeneous teachers above every other way to pre-train."""
    from opensearch_neural.evaluation.results import Goal

    others = [row for row in rows if row.column == f"nDCG@10 - {ENSEMBLE}" and row.line not in (PRESENCE, PIECES)]
    below = sum(row.value < 0 for row in others)
    clearly = sum(row.high is not None and row.high < 0 for row in others)
    return [
        Goal(
            "the normalized ensemble is above every other way to pre-train (table 6)",
            f"{len(others)} of {len(others)}",
            f"{below} of {len(others)}, {clearly} with the interval below zero",
            below == len(others),
        )
    ]


def trained_dense(data: Path, work: Path) -> str:
    """MiniLM trained by `osn train dense` on the ablations' sets."""
    from trainers.common.settings import TrainingSettings
    from trainers.data.sets import SetSettings
    from trainers.dense import DenseConfig, train_dense
    from trainers.encoders.tower import EncoderSettings

    output = work / "models" / "dense"
    train_dense(
        DenseConfig(
            output=output,
            train=[SetSettings(data / one) for one in SMALL],
            start=START,
            unseen=[SetSettings(data / one, split="test", name=f"{one}-test") for one in SMALL],
            encoder=EncoderSettings(query_length=64, document_length=128),
            training=TrainingSettings(steps=DENSE_TEACHER_STEPS, batch_size=64, learning_rate=5e-5, precision="auto"),
        )
    )
    return str(output)


def high_idf_first(data: Path, work: Path, steps: int) -> tuple[list[Row], list[Goal]]:
    """The student of part "quality", its rare tokens first: the best 100 by these, scored again with all."""
    from opensearch_neural.evaluation.result_rows import rows
    from opensearch_neural.queries import Rare

    student = trained(configuration(data, work, "student", steps=steps))
    pieces = tuned_pieces(data, work, student.query.tokenizer)
    found: list[Row] = []
    for name in (*TRAINED_ON, *UNSEEN):
        test = Test.load(data, name, work)
        adapted = on_target(student, test.lexicon(student.query.tokenizer, pieces.get(name, pieces[""])))
        matrix = document_matrix(adapted, test)
        encode = adapted.query.encode
        whole = sparse_run(test, matrix, adapted.vocabulary, encode)
        measured = {"all tokens": test.measured(whole)}
        for ratio in (0.4, 0.6, 0.8):
            encode_rare = partial(_rare, encode, Rare("ratio", ratio))
            first = sparse_run(test, matrix, adapted.vocabulary, encode_rare)
            run = rescored(test, first, matrix, adapted.vocabulary, encode)
            measured[f"rare first, idf from {ratio:g} of the highest"] = test.measured(run)
        found += rows(name, measured, baseline="all tokens")
    return found, []


def _rare(encode: Callable[[str], dict[str, float]], rare: Rare, text: str) -> dict[str, float]:
    from opensearch_neural.queries import rare_tokens

    return rare_tokens(encode(text), rare)


def rescored(test: Test, run: Run, matrix: Any, vocabulary: list[str], encode: Any) -> Run:
    """The documents of `run` with the scores that all tokens give."""
    ids = {token: at for at, token in enumerate(vocabulary)}
    result: Run = {}
    for query, text in test.data.query_texts().items():
        weights = {ids[token]: weight for token, weight in encode(text).items() if token in ids}
        hits = list(run[query])
        picked = matrix[[test.data.documents.row(one) for one in hits]][:, list(weights)]
        scores = picked @ list(weights.values()) if hits and weights else []
        result[query] = {hit: float(score) for hit, score in zip(hits, scores, strict=True)}
    return result


# ------------------------------------------------ the command


@click.command("inference-free-sparse")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Models and vectors are kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write PART/summary.json there.")
@click.option("--part", type=click.Choice(PARTS), required=True, help="Which evidence.")
@click.option("--steps", type=int, help="Optimizer steps of a training.  [default: 1500 of the student, 240 elsewhere]")
@connection_options
def inference_free_sparse(
    connection: ConnectionSettings, data: Path, work: Path, record: Path | None, part: str, steps: int | None
) -> None:
    """Train inference-free sparse models and measure them beside BM25, or what their parts contribute."""
    from benchmarks.publish import publish

    parts: dict[str, tuple[Callable[[Path, Path, int], tuple[list[Row], list[Goal]]], int, str]] = {
        "quality": (
            partial(quality, connection=connection),
            STUDENT_STEPS,
            "Inference-free sparse retrieval against BM25",
        ),
        "head": (head, ABLATION_STEPS, "The sampled head against the full one"),
        "flops": (flops, ABLATION_STEPS, "nDCG@10 against FLOPS, with and without IDF"),
        "distillation": (distillation, ABLATION_STEPS, "Teachers alone and together"),
        "high-idf-first": (high_idf_first, STUDENT_STEPS, "Rare tokens first, then all"),
    }
    run, default, title = parts[part]
    rows, goals = run(data, work, steps or default)
    used = {row.set for row in rows if (data / row.set).is_dir()} | set(SMALL)
    measures = [
        "nDCG@10",
        "active terms",
        "expansion terms",
        "FLOPS",
        "steps/s",
        "steps/s ÷ full head's",
        "steps/s ÷ plain head's",
        "ms",
        "seconds ÷ plain",
    ]
    present = {row.column for row in rows}
    measures[1:1] = sorted(one for one in present if one.startswith("nDCG@10 - "))
    if record and part == "flops":
        plot(rows, record / part)
    publish(
        rows,
        goals,
        title=title,
        data=[data / name for name in sorted(used)],
        seeds=[42],
        shown=[one for one in measures if one in present],
        record=record and record / part,
    )
