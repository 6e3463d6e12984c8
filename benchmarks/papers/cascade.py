"""The cascade against sparse alone, dense alone and hybrid: what it finds and what it costs, on judged sets.

    osn paper cascade --data data/scifact --pq models/jpq-scifact --data data/medquad-liveqa --pq models/jpq-medquad \\
        --tune data/scifact --record benchmarks/results/jpq/cascade

Each set is ingested into an index of its own: words, sparse vectors, the vectors of a dense model, and the codes of the
quantized model named beside it. The cascade scores rare tokens first, then all, then codes. It is tuned on judgements of one
set, if any, that are not its test's, and searches all sets so; `hybrid` weighs its parts as it does by default. Judgements
that the quantized model was trained on are refused: it ranks those too well, and too much weight would be given to it. Train
it without any (`questions: first-sentence`), or on others. Then the load benchmark measures all engines in random turns, the
encoding of queries included (ONNX Runtime in 8 bits unless told otherwise); `sparse` is the baseline of ratios and
differences. At last, what each field costs on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from benchmarks.experiment import Table, goal_of, is_above
from benchmarks.exported_models import exported
from benchmarks.grown.field_bytes import Alone, bytes_by_field
from benchmarks.load import report, result
from benchmarks.load.command import load_settings, measuring_options, queries_of, run
from benchmarks.load.measurement import Measurement
from benchmarks.load.variants import Variant, parse_variants
from benchmarks.load.workload import ModelChoice, allowed_target
from benchmarks.local_cluster import NODE, heap_option, reachable
from ingest.content import content_by_models
from ingest.corpus import CorpusSource, ignore, spooled
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex, Writing
from ingest.splade import Asked
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.writing.target import LOADING
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.renamed import output_option
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import Cascade, First
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Goal, Row, Summary, data_facts
from opensearch_neural.index.record import check_unchanged_models, read_record
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import Backend
from opensearch_neural.models.dense.quantized import load_quantized
from opensearch_neural.models.dense.torch_encoder import documents_alike, load_dense
from opensearch_neural.tune import Questions, store
from opensearch_neural.tune.cascade import CascadeTuning

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


SPARSE, CASCADE = "sparse", "cascade"
FIRST: First = "high-idf-first"
"""What the cascade scores further here: rare tokens first, then all, then codes."""
POINTS = 2.0  # of nDCG@10
MOST_P99 = 1.5
FIELD_SAMPLE = 1000
"""Documents by which fields are measured."""


@click.command()
@click.option("--data", required=True, multiple=True, type=click.Path(path_type=Path), help="A folder in BEIR layout.")
@click.option("--pq", required=True, multiple=True, help="The quantized model for each --data, in the same order.")
@click.option("--sparse", default="lexical", show_default=True, help="Sparse model, trained or lexical.")
@click.option("--dense", default=directory.MINILM, show_default=True, help="Dense model for `dense` and `hybrid`.")
@click.option(
    "--backend",
    type=click.Choice(["torch", "onnx", "onnx-int8"]),
    default="onnx-int8",
    show_default=True,
    help="Encoder of dense queries.",
)
@click.option("--tune", type=click.Path(path_type=Path), default=None, help="The set to tune on.")
@click.option("--tune-split", default="train", show_default=True, help="Split of --tune's judgements.")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1),
    default=0.99,
    show_default=True,
    help="Share of quality to keep, as for `osn tune`.",
)
@click.option("--engines", default="quantized", show_default=True, help="Engines, as for `osn bench load`.")
@output_option("Working folder.", default=Path("cascade"), show_default=True)
@click.option("--restart", is_flag=True, help="Start anew, with new indexes; vectors in --output stay.")
@heap_option("2g")
@click.option("--keep-indexes", is_flag=True, help="Keep the indexes osn-cascade-SET.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@measuring_options
@connection_options
def cascade(
    connection: ConnectionSettings,
    data: tuple[Path, ...],
    pq: tuple[str, ...],
    sparse: str,
    dense: str,
    backend: Backend,
    tune: Path | None,
    tune_split: str,
    keep: float,
    engines: str,
    out: Path,
    restart: bool,
    heap: str,
    keep_indexes: bool,
    record: Path | None,
    owned: bool,
    **options: Any,
) -> None:
    """Compare the cascade after rare tokens with sparse alone, dense alone and hybrid: nDCG@10, P99, throughput on each set.

    \b
    osn paper cascade --data data/scifact --pq models/jpq --tune data/scifact --clients 5,20 --requests 10000
    """
    settings, variants = load_settings({**options, "baseline": SPARSE}), rare_tokens_first(parse_variants(engines))
    check(data, pq, tune, tune_split, variants)
    out.mkdir(parents=True, exist_ok=True)
    if backend != "torch":
        dense, pq = exported(dense, out), tuple(exported(model, out) for model in pq)
    indexes = {folder: f"osn-cascade-{folder.resolve().name}" for folder in data}
    measured: list[Measurement] = []
    more: list[Row] = []
    with reachable(connection, NODE, keep=keep_indexes, goes_on=True, heap=heap) as chosen, translate_errors():
        client = connect(settings=chosen)
        target = allowed_target(chosen, owned=owned)
        try:
            for folder, model in zip(data, pq, strict=True):
                if restart:
                    client.indices.delete(index=indexes[folder], params={"ignore_unavailable": "true"})
                ingest(client, folder, indexes[folder], sparse, dense, model, out)
            if tune is not None:
                tuned = next(folder for folder in data if folder.resolve() == tune.resolve())
                tune_all(client, tuned, tune_split, indexes[tuned], indexes.values(), keep, backend, settings.seed)
            for folder, index in indexes.items():
                judged, texts = queries_of(None, folder, "test", None)
                models = ModelChoice(backend=backend)  # the index's record leads to the models that wrote it
                how = (variants, texts, models, settings, judged, out / index, restart)
                measured.append(run(client, target, index, *how))
                if measured[-1].partial:
                    break
            else:
                more += [row for index in indexes.values() for row in setting_rows(client, index, backend)]
                for folder, model in zip(data, pq, strict=True):
                    more += field_rows(client, folder, indexes[folder], sparse, dense, model)
        finally:
            if not keep_indexes:
                for index in indexes.values():
                    client.indices.delete(index=index, params={"ignore_unavailable": "true"})
    rows = [row for each in measured for row in result.rows(each)] + more
    summary = Summary.of_this_run(
        title="The cascade after rare tokens against sparse alone",
        machine=result.environment(measured[0]),
        data=[data_facts(folder) for folder in data[: len(measured)]],
        seeds=[settings.seed],
        rows=rows,
        goals=goals([each.index for each in measured], rows),
    )
    for each in measured:
        print(report.text(each))
    for goal in summary.goals:
        print(goal)
    if record is not None:
        print(f"wrote {summary.write(record)}")
    if any(each.partial for each in measured):
        sys.exit(1)


def rare_tokens_first(variants: Sequence[Variant]) -> list[Variant]:
    """The same variants, cascades with FIRST where they do not say what comes first."""
    return [replace(each, first=FIRST) if each.engine == CASCADE and not each.first else each for each in variants]


def check(
    data: Sequence[Path], pq: Sequence[str], tune: Path | None, tune_split: str, variants: Sequence[Variant]
) -> None:
    """Raise InputError for options that do not fit together, before anything is written."""
    if len(data) != len(pq):
        raise InputError(
            f"{len(data)} sets and {len(pq)} quantized models", "give --pq once for each --data, in its order"
        )
    if tune is not None and tune.resolve() not in {folder.resolve() for folder in data}:
        raise InputError(f"--tune {tune} is none of the sets", "name one of those given by --data")
    if click.get_current_context().get_parameter_source("baseline") is ParameterSource.COMMANDLINE:
        raise InputError("ratios are taken to sparse here", "leave --baseline out; `osn bench load` has it")
    if not {SPARSE, CASCADE} <= {variant.name for variant in variants}:
        raise InputError("the goals compare the cascade with sparse", "add both to --engines")
    if any(variant.name == CASCADE and variant.first != FIRST for variant in variants):
        raise InputError(f"what is called cascade here goes after {FIRST}", "give another one a name of its own")
    for folder, model in zip(data, pq, strict=True):
        if tune is not None and folder.resolve() == tune.resolve():
            check_unseen(model, folder, tune_split)


def ingest(client: OpenSearch, folder: Path, index: str, sparse: str, dense: str, pq: str, out: Path) -> None:
    """Write the set's corpus into its index; one that an earlier run has completed stays as it is.

    Vectors are kept in `out`, and the codes of another quantized model of the same dense one made of them. Raises ModelError
    where the index was written with other models.
    """
    source = CorpusSource(str(BeirData.load(folder, "test").corpus_path))
    letters = out / f"{index}.dead-letters.jsonl"
    wrote = read_record(client, index)
    if wrote is not None and LOADING not in wrote.extra:
        models = Models(sparse=sparse, dense=dense, pq=pq)
        with spooled(source.path) as place:
            content = content_by_models(Asked(models, wrote, index, source.reader(place), source.name), NewIndex())
        check_unchanged_models(index, wrote, content.meta)
        return
    alike = documents_alike(load_dense(dense), load_quantized(pq).dense)
    encoding = EncodeJob(source, out / "vectors", Models(sparse=sparse, dense=dense, pq=None if alike else pq))
    vectors = run_encode(encoding).manifest
    job = Job(
        source,
        index,
        models=Models(pq=pq),
        vectors=vectors,
        new_index=NewIndex(replicas=0),
        dead_letters=letters,
        writing=Writing(merge=True),
    )
    run_job(client, job)


def field_rows(client: OpenSearch, folder: Path, index: str, sparse: str, dense: str, pq: str) -> list[Row]:
    """What each field costs on disk, vectors that codes stand for among them, by some of the set's documents."""
    from benchmarks.grown.field_bytes import rows

    corpus = CorpusSource(str(BeirData.load(folder, "test").corpus_path))
    models = Models(sparse=sparse, dense=dense, pq=pq)
    reconstructing = Models(sparse="none", pq=pq, reconstruct=True)
    with spooled(corpus.path) as place:
        asked = Asked(models, None, index, corpus.reader(place), corpus.name)
        content = content_by_models(asked, NewIndex())
        documents = list(islice(content.records(ignore), FIELD_SAMPLE))
        of_codes = {}
        for dense_type in ("float", "byte"):
            other = content_by_models(replace(asked, models=reconstructing), NewIndex(dense_type=dense_type))
            of_codes[f"dense of the codes, {dense_type}"] = Alone("dense", other.meta, other.vectorizer)
        sizes = bytes_by_field(client, content.meta, documents, content.vectorizer, of_codes)
    return rows(f"{index}, by field", sizes, len(documents))


def check_unseen(model: str, folder: Path, split: str) -> None:
    """Raises InputError if the quantized model was trained on the judgements of this split."""
    training = (directory.read_osn_json(directory.locate(model)) or {}).get("training", {})
    if training.get("objective", {}).get("labels") == "ranking":
        return
    for settings in training.get("train", []):
        by_judgements = settings.get("questions") is None and settings.get("split", "train") == split
        if by_judgements and Path(settings["path"]).name == folder.resolve().name:
            raise InputError(
                f"{model} was trained on the {split} judgements of {folder.name}, and ranks these too well to tune by",
                "name another --tune-split, or a model trained on other judgements, or on none",
            )


def setting_rows(client: OpenSearch, index: str, backend: Backend) -> list[Row]:
    """What the cascade was measured with."""
    setting = Cascade.of(open_engines(client, index, backend=backend, first=FIRST))
    values = {"weight": setting.weight, "window": setting.window, "dense window": setting.dense_window}
    return [Row(index, CASCADE, name, float(value), None, None, 0)
            for name, value in values.items()]  # fmt: skip


def tune_all(
    client: OpenSearch,
    folder: Path,
    split: str,
    index: str,
    indexes: Iterable[str],
    keep: float,
    backend: Backend,
    seed: int,
) -> None:
    """Tune the cascade on one index, and have all of them search as was chosen."""
    indexes, measure = list(indexes), f"nDCG@10 of {folder.name} ({split})"
    stored = [open_engines(client, each, backend=backend).meta.extra.get(Cascade.key, {}) for each in indexes]
    if all((each.get("measure"), each.get("keep")) == (measure, keep) for each in stored):
        return
    engines = open_engines(client, index, backend=backend, first=FIRST)
    judged = BeirData.load(folder, split)
    questions = Questions(judged.queries, judged.qrels)
    tuned = CascadeTuning(client, engines).run(questions, keep, most=400, passes=1, seed=seed)
    chosen = tuned.chosen
    if chosen is None:
        print(
            "no cascade is better than all tokens on held-back queries: it stays as it is by default", file=sys.stderr
        )
        return
    print(f"cascade, tuned on {folder.name} ({split}): {chosen.setting}", file=sys.stderr)
    for each in indexes:
        store(client, each, chosen, keep=keep, measure=measure, queries=tuned.confirming)


def goals(indexes: Iterable[str], rows: Sequence[Row]) -> list[Goal]:
    """What the cascade gains on each set, and whether on one of them both goals are met."""
    table = Table(rows)
    p99 = {row.where: row.value for row in rows
           if (row.engine, row.kind, row.measure, row.baseline) == (CASCADE, "ratio", "P99", SPARSE)}  # fmt: skip
    made, best = [], []
    for index in indexes:
        gain = table.difference(index, CASCADE, SPARSE, "nDCG@10")
        value, gained = None, is_above(gain) and gain is not None and 100 * gain.value >= POINTS
        if gain is not None and gain.low is not None and gain.high is not None:
            value = f"{100 * gain.value:+.2f} [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}]"
        words = f"cascade: nDCG@10 at least {POINTS:g} points above sparse alone, interval above zero, on {index}"
        made.append(goal_of(words, POINTS, value, gained))
        levels = sorted({row.where for row in rows if (row.set, row.measure) == (index, "P50 ms")})
        ratios = [p99[level] for level in levels if level in p99]
        for level in levels:
            ratio = p99.get(level)
            words = f"cascade: P99 at most {MOST_P99:g} × that of sparse alone, on {level}"
            made.append(
                goal_of(words, MOST_P99, None if ratio is None else round(ratio, 3), (ratio or inf) <= MOST_P99)
            )
        if ratios:
            best.append(gained and max(ratios) <= MOST_P99)
    words = (
        "cascade: +2 nDCG@10 points with the interval above zero on one of the sets, at no more than 1.5 × sparse's P99"
    )
    made.append(goal_of(words, "on one set", f"on {sum(best)} of {len(best)} measured" if best else None, any(best)))
    return made
