"""The benchmark of BM25 and what a model adds, on tiny data: quality, cost, goals and the plot come from one command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from quick_load import quick  # noqa: E402
from tiny import tiny_backbone, tiny_beir, tiny_splade  # noqa: E402

from benchmarks import cluster_bm25  # noqa: E402
from benchmarks.bm25_sparse import command, cost, measures, models  # noqa: E402
from benchmarks.bm25_sparse import weight as weights  # noqa: E402
from benchmarks.bm25_sparse.engines import (  # noqa: E402
    BM25,
    CASCADES,
    DENSE_ENGINES,
    HIGH_IDF_FIRST,
    HYBRID,
    RARE_CASCADE,
    SPARSE,
    SPARSE_ENGINES,
    SUM,
    SUM_CASCADE,
    TUNED,
    TUNED_SUM,
)
from benchmarks.bm25_sparse.measures import mean_rows, opened_index  # noqa: E402
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment  # noqa: E402
from benchmarks.experiment import slug  # noqa: E402
from benchmarks.grown.index import Growth  # noqa: E402
from benchmarks.render import gains, quality_and_cost  # noqa: E402
from opensearch_neural.cluster.settings import ConnectionSettings  # noqa: E402
from opensearch_neural.engines.settings import CascadeSetting  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.measures import Measured  # noqa: E402
from opensearch_neural.evaluation.results import MeasuredEngine, Row, Summary, read  # noqa: E402
from opensearch_neural.index import segments  # noqa: E402
from opensearch_neural.models import directory  # noqa: E402
from opensearch_neural.queries import Rare  # noqa: E402

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for at, name in enumerate(("one", "two")):
        beir = tiny_beir(tmp_path / "data" / name, seed=at)
        shutil.copy(beir / "qrels" / "dev.tsv", beir / "qrels" / "test.tsv")
    (tmp_path / "data" / "two" / "qrels" / "train.tsv").unlink()  # BM25 is then tuned on the other set
    return tmp_path / "data"


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return tiny_splade(tmp_path / "start")


@pytest.mark.usefixtures("nothing_is_refused")
def test_one_command_measures_quality_and_cost_of_the_same_models(
    data: Path, start: Path, tmp_path: Path, client: OpenSearch, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = "trained 10 minutes, averaged"
    monkeypatch.setattr(models, "STEPS", {"trained 10 minutes": 2})
    monkeypatch.setattr(models, "TRAINED_ON", ("one",))
    monkeypatch.setattr(models, "COST_SET", "two")
    monkeypatch.setattr(cost, "LOAD", quick(cost.LOAD))
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)  # it changes nothing but how long merging waits
    monkeypatch.setattr(cluster_bm25, "GRID", ((0.9, 1.2), (0.5,)))
    arguments = [
        "--url", cluster_url, "--start", str(start), "--data", str(data), "--work", str(tmp_path / "work"),
        "--arm", PUBLISHED, "--arm", arm, "--seeds", "1,2", "--documents", "200", "--clients", "1", "--minutes", "1",
        "--record", str(tmp_path / "results"),
    ]  # fmt: skip
    result = CliRunner().invoke(command.bm25_sparse, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / "results")
    differences = {(row.set, row.engine, row.variant, row.seeds) for row in summary.rows if row.kind == "difference"}
    for name in ("one", "two", "mean of 2 sets"):
        assert {(name, SUM, PUBLISHED, ()), (name, SUM, arm, (1, 2))} <= differences
    assert ("mean of 1 unseen sets", SUM, PUBLISHED, ()) in differences
    assert {(row.set, row.sets) for row in summary.rows if row.sets} == {
        ("mean of 2 sets", 2),
        ("mean of 1 unseen sets", 1),
    }
    assert {row.against for row in summary.rows if row.sets and row.baseline == BM25} == {BM25}
    taught = {row.set: row.line for row in summary.rows if (row.against, row.seeds) == (f"{SUM}, {PUBLISHED}", (1, 2))}
    assert taught.keys() >= {"one", "two", "mean of 2 sets"} and {*taught.values()} == {f"{SUM}, seeds 1 to 2, {arm}"}
    measured = {row.engine for row in summary.rows if row.set == "two" and row.measure == "nDCG@10"}
    assert measured >= {BM25, TUNED, SUM, TUNED_SUM}
    of_mean = [row for row in summary.rows if (row.engine, row.set) == (TUNED_SUM, "mean of 2 sets")]
    of_tuned = {(row.baseline, row.variant) for row in of_mean}
    assert of_tuned >= {(BM25, PUBLISHED), (TUNED, PUBLISHED), (BM25, arm), (TUNED, arm)}
    loaded = {
        (row.engine, row.variant) for row in summary.rows if row.set == "200 documents" and row.measure == "score kept"
    }
    assert {(SUM, PUBLISHED), (SUM, arm)} <= loaded
    under_load = {(row.engine, row.variant) for row in summary.rows if row.level and row.measure == "requests/s"}
    assert {(engine, model) for engine in SPARSE_ENGINES for model in (PUBLISHED, arm)} <= under_load
    assert any(row.measure == "active terms" and row.value > 0 for row in summary.rows)
    parts = directory.averaged(
        (directory.read_osn_json(tmp_path / "work/models" / slug(f"{arm}, seed 1")) or {})["training"]
    )
    assert [(part["model"], part["share"]) for part in parts] == [("trained-10-minutes-seed-1", 0.5), ("start", 0.5)]
    # The goals for quality speak of nine sets, and the cost of so few documents has none.
    assert summary.goals and all("score kept on 200 documents" in goal.goal for goal in summary.goals)
    assert "score kept, 200 documents" in quality_and_cost(summary.rows).splitlines()[0]
    facts = {(row.engine, row.variant, row.measure): row.value for row in summary.rows if row.set.startswith("two, ")}
    for engine in SPARSE_ENGINES:
        assert facts[engine, PUBLISHED, "bytes a document"] > facts[BM25, "", "bytes a document"] > 0
        assert facts[engine, arm, "documents encoded a second"] > 0
    assert not [
        name
        for name in client.indices.get(index="osn-one*,osn-two*,osn-as-published*,osn-trained*")
        if "osn-test" not in name
    ]
    assert not client.indices.exists_index_template(name="osn-*")
    again = CliRunner().invoke(command.bm25_sparse, arguments, catch_exceptions=False)
    assert again.exit_code == 0 and read(tmp_path / "results").rows == summary.rows, "what is kept is measured again"


def test_an_index_of_the_sum_can_have_a_tuned_bm25(
    client: OpenSearch, cluster_url: str, data: Path, start: Path, tmp_path: Path
) -> None:
    connection = ConnectionSettings(urls=(cluster_url,))
    experiment = Experiment(
        data=data, start=str(start), work=tmp_path, seeds=(1,), arms=(PUBLISHED,), connection=connection
    )
    tuned = cluster_bm25.Bm25Settings("standard", 0.6, 0.3)
    with opened_index(client, experiment, MeasuredEngine(PUBLISHED), "one", bm25=tuned) as engines:
        (made,) = client.indices.get(index=engines.index).values()
    similarity = made["settings"]["index"]["similarity"]["default"]
    assert similarity == {"type": "BM25", "k1": "0.6", "b": "0.3"}
    assert made["mappings"]["properties"]["text"]["analyzer"] == "standard"
    assert not client.indices.exists_index_template(name="osn-*")


def test_a_query_that_is_a_document_itself_is_left_out_of_its_own_hits(
    client: OpenSearch, cluster_url: str, data: Path, start: Path, tmp_path: Path
) -> None:
    """As in `osn eval`, and in BEIR's ArguAna and Quora."""
    document = json.loads((data / "one" / "corpus.jsonl").read_text().splitlines()[0])
    (data / "one" / "queries.jsonl").write_text(json.dumps(document) + "\n")
    judged = {"d0": {f"d{at}": 1.0 for at in range(1, 60)}}
    lines = [f"{query}\t{id}\t1\n" for query, relevant in judged.items() for id in relevant]
    (data / "one" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    connection = ConnectionSettings(urls=(cluster_url,))
    experiment = Experiment(
        data=data, start=str(start), work=tmp_path, seeds=(1,), arms=(PUBLISHED,), connection=connection
    )
    ways: dict[str, tuple[str, dict[str, Any]]] = {BM25: (BM25, {})}
    place = tmp_path / "measured"
    own = measures.kept_measures(client, experiment, MeasuredEngine(PUBLISHED), "one", ways, place, measures=["RR@10"])
    assert own[BM25].mean["RR@10"] == 1.0


def test_a_model_of_one_corpus_is_trained_on_no_judgement(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        file = data / name / "corpus.jsonl"
        documents = [json.loads(line) for line in file.read_text().splitlines()]
        rest = " ".join(document["text"] for document in documents[:9])
        for number, document in enumerate(documents):
            document["title"], document["text"] = f"title {number}", f"{document['text']} and {number}. {rest}"
        file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    settings = models.configuration_on_corpus

    def quick_settings(*given: Any) -> Any:
        made = settings(*given)
        return replace(made, training=replace(made.training, steps=2))

    monkeypatch.setattr(models, "configuration_on_corpus", quick_settings)
    experiment = models.Experiment(
        data=data, start=str(start), work=tmp_path / "work", seeds=(1,), arms=(models.ON_CORPUS,),
        connection=None,  # type: ignore[arg-type]
    )  # fmt: skip
    model = MeasuredEngine(models.ON_CORPUS, 1)
    folders = {name: Path(experiment.on_corpus(model, name)) for name in experiment.sets}
    assert len({(folder / "osn.json").read_text() for folder in folders.values()}) == 2
    for name in experiment.sets:
        trained = directory.read_osn_json(Path(experiment.folder(model, name))) or {}
        read_for_training = [
            (Path(each["path"]).parent.name, each["questions"]) for each in trained["training"]["train"]
        ]
        assert read_for_training == [(name, "title"), (name, "first-sentence")]


def test_a_model_of_one_corpus_asks_what_its_documents_have(data: Path) -> None:
    corpus = data / "one" / "corpus.jsonl"
    sentence = "A first sentence of seven words asks. "
    texts = {
        "both": ("title", sentence + "word " * 15),
        "sentence": ("", sentence + "word " * 15),
        "none": ("", "word"),
    }
    for name, (title, text) in texts.items():
        corpus.write_text(json.dumps({"_id": "1", "title": title, "text": text}) + "\n")
        if name == "none":
            with pytest.raises(InputError, match=r"corpus\.jsonl: no document gives a question: they need a title"):
                models.configuration_on_corpus("start", data / "one", 1)
        else:
            train = models.configuration_on_corpus("start", data / "one", 1).train
            expected = {"both": ["title", "first-sentence"], "sentence": ["first-sentence"]}
            assert [each.questions for each in train] == expected[name]


@pytest.mark.parametrize("command_of", [command.bm25_sparse, weights.sum_weight])
def test_models_of_one_corpus_are_measured_only_if_they_are_named(command_of: click.Command) -> None:
    def arms(*named: str) -> Any:
        options = ["--start", "s", "--data", ".", "--work", "w"]
        return command_of.make_context("name", [*options, *(f"--arm={arm}" for arm in named)]).params["arms"]

    steps = tuple(models.STEPS)
    assert arms() == (PUBLISHED, *steps, *(f"{arm}, averaged" for arm in steps))
    assert arms(models.ON_CORPUS, PUBLISHED) == (PUBLISHED, models.ON_CORPUS)


@pytest.mark.usefixtures("nothing_is_refused")
def test_hybrid_and_cascade_have_quality_and_cost_beside_what_was_measured_without_them(
    tmp_path: Path, client: OpenSearch, cluster_url: str, monkeypatch: pytest.MonkeyPatch, start: Path
) -> None:
    for at, (name, documents) in enumerate({"one": 60, "two": 300}.items()):
        beir = tiny_beir(tmp_path / "data" / name, documents=documents, seed=at)
        shutil.copy(beir / "qrels" / "dev.tsv", beir / "qrels" / "test.tsv")
    arm = "trained 10 minutes"
    monkeypatch.setattr(models, "STEPS", {arm: 2})
    monkeypatch.setattr(models, "TRAINED_ON", ("one",))
    monkeypatch.setattr(models, "COST_SET", "two")
    monkeypatch.setattr(cost, "LOAD", quick(cost.LOAD))
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
    monkeypatch.setattr(cluster_bm25, "GRID", ((0.9, 1.2), (0.5,)))
    work, sets = tmp_path / "work", "mean of 2 sets"
    dense = dense_model(tmp_path / "dense", tiny_backbone(tmp_path / "network", layers=1, positions=256))
    arguments = [
        "--url", cluster_url, "--start", str(start), "--data", str(tmp_path / "data"), "--work", str(work),
        "--arm", PUBLISHED, "--documents", "320", "--clients", "1", "--minutes", "1",
    ]  # fmt: skip

    def rows_of(name: str, *more: str) -> list[Row]:
        record = tmp_path / name
        result = CliRunner().invoke(
            command.bm25_sparse, [*arguments, *more, "--record", str(record)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return read(record).rows

    without = rows_of("without")
    before = {
        path: path.read_bytes()
        for path in work.rglob("*.json")
        if path.parent.name != "models" and path != work / "data.json"  # which notes the dense model then
    }
    rows = rows_of("with", "--dense", str(dense))
    assert all(path.read_bytes() == content for path, content in before.items()), "what was kept is measured again"
    assert not {*DENSE_ENGINES} & {row.engine for row in without} and {row.key for row in without} <= {
        row.key for row in rows
    }
    compared = {(row.set, row.engine) for row in rows if row.kind == "difference" and row.measure == "nDCG@10"}
    beside_hybrid = [row.set for row in rows if row.baseline == HYBRID and row.kind == "difference"]
    assert {"one", "two", sets} <= set(beside_hybrid)
    for engine in DENSE_ENGINES:
        assert {("one", engine), ("two", engine), (sets, engine)} <= compared
        under_load = {row.measure for row in rows if row.engine == engine and row.set == "320 documents"}
        assert "generator's ceiling, requests/s" in under_load, "so short a test may come to no more"
    assert (sets, SUM) in compared
    facts = {(row.engine, row.measure): row.value for row in rows if row.set.startswith("two, ")}
    weight = {engine: facts[engine, "bytes a document"] for engine in (BM25, SUM, HYBRID, *CASCADES)}
    assert weight[HYBRID] > weight[BM25] + 4 * 32, "the vectors alone are of 32 floats"
    assert weight[SUM] + 32 < weight[RARE_CASCADE] < weight[SUM] + weight[HYBRID]
    assert weight[RARE_CASCADE] == weight[SUM_CASCADE]
    assert facts[RARE_CASCADE, "documents encoded a second"] < facts[SUM, "documents encoded a second"]
    assert rows_of("again", "--dense", str(dense)) == rows
    recorded = str(tmp_path / "without")
    with_beside = ["--dense", str(dense), "--beside", recorded]
    costed: list[str] = []
    grow, load_sparse = cost.grow, cost.load_sparse
    with monkeypatch.context() as watched:
        watched.setattr(cost, "grow", lambda *args, **how: [costed.append(args[1].sparse), grow(*args, **how)])
        watched.setattr(cost, "load_sparse", lambda folder: [costed.append(folder), load_sparse(folder)][1])
        trained = rows_of("trained", *with_beside, "--arm", arm, "--seeds", "1,2")
    # Under load the model of the first seed, and nothing that is kept. Rates are measured anew, all in turns.
    trained_on_two = f"{slug(arm)}-seed-1-on-two"
    assert [Path(folder).name for folder in costed] == [trained_on_two, f"{slug(PUBLISHED)}-on-two", trained_on_two]
    beside = [row for row in trained if not row.variant.startswith(arm)]
    every = {row.key: row for row in rows}
    kept = [row for row in beside if row.kind in ("value", "difference", "ratio") and row.measure != cost.RATE]
    assert [row for row in kept if every[row.key] != row] == []
    assert {row.engine for row in beside} == {BM25, *DENSE_ENGINES} and sets in {row.set for row in beside}
    # Beside a trained model its cascade alone: hybrid, its rival, is that of the published one.
    of_arm = [row for row in trained if row.variant == arm]
    assert {row.engine for row in of_arm} == {SUM_CASCADE}
    assert {row.variant for row in trained if row.engine == HYBRID} == {PUBLISHED}
    assert {row.against for row in trained if row.baseline == HYBRID} == {f"{HYBRID}, {PUBLISHED}"}
    value = {
        (row.set, row.engine, row.seed, row.seeds): row.value
        for row in trained
        if (row.kind, row.measure) == ("value", "nDCG@10")
    }
    above = {
        (row.set, row.baseline, row.seed, row.seeds): row.value
        for row in of_arm
        if (row.kind, row.measure) == ("difference", "nDCG@10")
    }
    for name in ("one", "two", sets):
        for rival, seed in product((BM25, HYBRID), (1, 2)):
            gain = value[name, SUM_CASCADE, seed, ()] - value[name, rival, None, ()]
            assert above[name, rival, seed, ()] == pytest.approx(gain)
        for rival in (BM25, HYBRID):
            assert above[name, rival, None, (1, 2)] == pytest.approx(
                (above[name, rival, 1, ()] + above[name, rival, 2, ()]) / 2
            )
    heads = gains(trained, f"{HYBRID}, {PUBLISHED}").splitlines()[0]
    for model in (PUBLISHED, f"seeds 1 to 2, {arm}"):
        assert f"{SUM_CASCADE}, {model}: points above" in heads
    facts_of_arm = {row.measure: row.value for row in of_arm if row.level or row.set.startswith("two, ")}
    assert facts_of_arm["requests/s"] > 0 and facts_of_arm["documents encoded a second"] > 0
    assert facts_of_arm["bytes a document"] == pytest.approx(weight[SUM_CASCADE], rel=0.1), "two steps change few terms"
    # Without --beside the same, from what is kept, and what the sparse vectors cost and gain by themselves.
    whole = rows_of("whole", "--dense", str(dense), "--arm", arm, "--seeds", "1,2")
    every_one = {row.key: row for row in whole}
    once = [row for row in of_arm if row.measure != cost.RATE]  # rates are measured anew, all in turns
    assert [row for row in once if every_one.get(row.key) != row] == []
    assert {row.key for row in of_arm} <= every_one.keys()
    terms = {(row.engine, row.variant) for row in whole if row.measure == "active terms"}
    assert {(SUM_CASCADE, arm), (SUM_CASCADE, PUBLISHED), (RARE_CASCADE, PUBLISHED)} <= terms
    assert (RARE_CASCADE, arm) not in terms
    shutil.copytree(next((work / "models").glob("*-opq")), tmp_path / "codes")
    named = ["--dense", str(dense), "--pq", str(tmp_path / "codes"), "--beside", recorded]
    by_name = rows_of("named", *named)
    assert {row.kind for row in by_name if row.engine == HYBRID} == {"value"}
    of_codes = [row for row in by_name if row.engine not in (BM25, HYBRID)]
    assert {(row.engine, row.variant) for row in of_codes} == {(engine, f"{PUBLISHED}, codes") for engine in CASCADES}
    assert {row.set for row in of_codes if row.measure == "nDCG@10"} >= {"one", "two", sets}
    # Their rival is the hybrid that was measured before.
    both = [row for row in (*rows, *of_codes) if (row.kind, row.measure) == ("value", "nDCG@10")]
    values = {(row.set, row.line): row.value for row in both}
    of_hybrid = (SUM_CASCADE, HYBRID, "difference", "nDCG@10")
    again = {row.set: row for row in of_codes if (row.engine, row.baseline, row.kind, row.measure) == of_hybrid}
    for name in ("one", "two"):
        for engine in CASCADES:
            assert values[name, f"{engine}, {PUBLISHED}, codes"] == values[name, f"{engine}, {PUBLISHED}"], "same codes"
        own = values[name, f"{SUM_CASCADE}, {PUBLISHED}, codes"] - values[name, f"{HYBRID}, {PUBLISHED}"]
        assert again[name].value == pytest.approx(own)
    assert again[sets].value == pytest.approx((again["one"].value + again["two"].value) / 2)
    size = [row.value for row in of_codes if row.measure == "bytes a document"]
    assert size == pytest.approx([weight[RARE_CASCADE]] * 2, rel=0.02), "the codes are the same"
    assert "generator's ceiling, requests/s" in {row.measure for row in of_codes if row.set == "320 documents"}
    assert {row.engine for row in of_codes if row.level and row.measure in ("requests/s", "refused")} == {*CASCADES}
    table = quality_and_cost(rows)
    assert f"bytes a document (bm25: {weight[BM25]:,.0f})" in table and "documents encoded a second" in table
    # Costs alone need the vectors and codes of no other set.
    anew = tmp_path / "anew"
    costs = rows_of("costs", "--dense", str(dense), "--quality-of", str(tmp_path / "with"), "--work", str(anew))
    assert not [row for row in costs if row.measure in measures.MEASURES and row.set != "320 documents"]
    loaded = {row.engine for row in costs if row.level and row.measure in ("requests/s", "refused")}
    assert loaded >= {BM25, *SPARSE_ENGINES, *DENSE_ENGINES}
    assert [path.name for path in (anew / "models").glob("*-opq*")] == ["dense-opq-of-two"]
    assert not [*(anew / "vectors").glob("one-*")] and [*(anew / "vectors").glob("two-*")]
    weighed = [
        *arguments[:8], "--dense", str(dense), "--weights", "0.05,0.2", "--limit-queries", "7", "--record", str(work / "w"),
    ]  # fmt: skip
    assert CliRunner().invoke(weights.sum_weight, weighed, catch_exceptions=False).exit_code == 0
    weighed_in = {(row.set, row.engine) for row in read(work / "w").rows if row.kind == "difference"}
    assert {("one dev", f"{SUM_CASCADE}, weight {weight}") for weight in ("0.05", "0.2")} <= weighed_in
    assert not [name for name in client.indices.get(index="osn-one*,osn-two*,osn-as-published*,osn-trained*")
                if "osn-test" not in name]  # fmt: skip


def test_costs_alone_need_the_recorded_quality_of_their_arms(data: Path) -> None:
    gain = Row(
        "mean of 2 sets", SUM, "nDCG@10", 0.026, 0.02, 0.03, 9, BM25, kind="difference", variant=PUBLISHED, sets=2
    )
    recorded = Summary("osn", "c0ffee", {"cores": 2}, [], [0], [gain]).write(data / "recorded").parent
    experiment = experiment_of_nine_sets(data)
    command.check_quality(replace(experiment, quality_of=(recorded,)))
    with pytest.raises(InputError, match="has the quality of 'trained an hour' in a mean"):
        command.check_quality(replace(experiment, quality_of=(recorded,), arms=(PUBLISHED, "trained an hour")))
    # With --pq only cascades are measured, whose rows name its model.
    table = replace(experiment, quantized=data / "token-table")
    with pytest.raises(InputError, match="has the quality of 'as published, token-table' in a mean"):
        command.check_quality(replace(table, quality_of=(recorded,)))
    of_table = replace(gain, engine=SUM_CASCADE, variant="as published, token-table")
    named = Summary("osn", "c0ffee", {"cores": 2}, [], [0], [of_table]).write(data / "of-table").parent
    command.check_quality(replace(table, quality_of=(named,)))
    with pytest.raises(InputError, match=r"summary\.json"):
        command.check_quality(replace(experiment, quality_of=(data,)))
    # Only the model of the first seed is made.
    costs = replace(experiment, quality_of=(recorded,), arms=(PUBLISHED, "trained an hour"), seeds=(1, 2))
    assert [model.seed for model in costs.measured_models] == [None, 1]
    assert [model.seed for model in replace(costs, quality_of=()).measured_models] == [None, 1, 2]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--pq", "p"], "give --dense MODEL too"),
        (["--beside", "."], "give --dense MODEL too"),
        (["--dense", "d", "--arm", "trained an hour"], "add --arm 'as"),
        (["--quality-of", "."], "--documents names no size"),
        (["--dense", "d", "--beside", ".", "--quality-of", ".", "--documents", "100"], "leave one of them out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(data: Path, more: list[str], words: str) -> None:
    arguments = ["--start", "s", "--data", str(data), "--work", str(data / "work"), "--documents", "", *more]
    with pytest.raises((InputError, click.UsageError)) as error:
        CliRunner().invoke(command.bm25_sparse, arguments, catch_exceptions=False, standalone_mode=False)
    assert words in f"{error.value.message} {getattr(error.value, 'remedy', '')}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--clients", ""], "no load is given"),
        (["--clients", "0"], "must be above 0"),
        (["--clients", "20,20"], "given twice"),
        (["--minutes", "0"], "minutes must be above 0"),
        (["--documents", "0"], "below 1"),
        (["--url", "http://203.0.113.1:9200"], "--i-own-this-cluster"),
    ],
)
def test_load_tests_that_cannot_work_are_refused_before_anything_is_trained(
    data: Path, more: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, they were refused after all models were trained and all sets measured, which takes hours."""
    monkeypatch.setattr(models, "COST_SET", "two")
    monkeypatch.setattr(command, "check_models", lambda _: pytest.fail("it goes on"))
    arguments = ["--start", "s", "--data", str(data), "--work", str(data / "work"), *more]
    with pytest.raises((InputError, click.UsageError)) as error:
        CliRunner().invoke(command.bm25_sparse, arguments, catch_exceptions=False, standalone_mode=False)
    assert words in f"{error.value.message} {getattr(error.value, 'remedy', '')}"


def test_data_without_the_set_of_the_load_tests_are_refused_unless_quality_alone_is_measured(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "check_models", lambda _: 1 / 0)
    arguments = ["--start", "s", "--data", str(data), "--work", str(data / "work")]
    with pytest.raises(InputError, match="draw their documents from scifact"):
        CliRunner().invoke(command.bm25_sparse, arguments, catch_exceptions=False)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(command.bm25_sparse, [*arguments, "--documents", ""], catch_exceptions=False)


def dense_model(folder: Path, network: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(network), max_seq_length=64), Pooling(32)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def measured(of_query: dict[str, float]) -> Measured:
    mean = {"nDCG@10": float(np.mean(list(of_query.values())))}
    return Measured(per_query={"nDCG@10": of_query}, mean=mean, queries=len(of_query), unanswered=0, unjudged=0)


def test_the_mean_over_sets_weighs_each_set_alike_and_its_interval_holds_it() -> None:
    small = {MeasuredEngine(BM25): measured({"a": 0.0, "b": 0.0}), MeasuredEngine(SUM): measured({"a": 0.4, "b": 0.4})}
    large = {
        MeasuredEngine(BM25): measured({str(at): 0.5 for at in range(50)}),
        MeasuredEngine(SUM): measured({str(at): 0.5 + 0.1 * (at % 2) for at in range(50)}),
    }
    pairs = [(SUM, BM25), (HIGH_IDF_FIRST, SPARSE)]
    (gain,) = [row for row in mean_rows("mean of 2 sets", {"s": small, "l": large}, pairs) if row.kind == "difference"]
    assert gain.value == pytest.approx((0.4 + 0.05) / 2) and gain.n == 52
    assert gain.low is not None and gain.high is not None and gain.low < gain.value < gain.high
    # Of one model, the rare tokens first are compared with all tokens at once.
    model = {"seed": 1, "variant": "mine"}
    first, every = MeasuredEngine(HIGH_IDF_FIRST, **model), MeasuredEngine(SPARSE, **model)
    with_both = small | {first: measured({"a": 0.1, "b": 0.2}), every: measured({"a": 0.2, "b": 0.3})}
    (lost,) = [row for row in mean_rows("mean of 1 sets", {"s": with_both}, pairs) if row.baseline == SPARSE]
    assert lost.value == pytest.approx(-0.1)
    assert (lost.line, lost.against) == (f"{HIGH_IDF_FIRST}, seed 1, mine", f"{SPARSE}, seed 1, mine")
    # Recall has a mean of its own.
    recalls = {
        name: replace(of_engine, per_query={**of_engine.per_query, "R@100": dict.fromkeys("ab", recall)})
        for (name, of_engine), recall in zip(small.items(), (0.5, 0.75), strict=True)
    }
    above = {row.measure: row for row in mean_rows("mean of 1 sets", {"s": recalls}, pairs) if row.kind == "difference"}
    assert above["R@100"].value == pytest.approx(0.25) and above["nDCG@10"].value == pytest.approx(0.4)
    fewer = small | {MeasuredEngine(SUM): measured({"a": 0.4})}
    with pytest.raises(InputError, match="were not measured on the same queries"):
        mean_rows("mean of 1 sets", {"s": fewer}, pairs)


@pytest.mark.parametrize(
    ("trained_on", "expected"),
    [
        ((), {"mean of 2 sets": 0.15, "mean of 2 unseen sets": 0.15}),
        (("two",), {"mean of 2 sets": 0.15, "mean of 1 unseen sets": 0.1}),
        (("one", "two"), {"mean of 2 sets": 0.15}),
    ],
)
def test_engines_with_dense_vectors_have_the_means_of_all_sets_and_of_unseen_ones(
    data: Path, monkeypatch: pytest.MonkeyPatch, trained_on: tuple[str, ...], expected: dict[str, float]
) -> None:
    monkeypatch.setattr(models, "TRAINED_ON", trained_on)
    experiment = models.Experiment(
        data=data, start="", work=data, seeds=(1,), arms=(PUBLISHED,), dense="d", beside=(data,),
        connection=None,  # type: ignore[arg-type]
    )  # fmt: skip
    above = {"one": 0.1, "two": 0.2}

    def of_set(_client: object, _experiment: object, _model: object, name: str) -> dict[MeasuredEngine, Measured]:
        found = {MeasuredEngine(BM25): 0.3, MeasuredEngine(HYBRID, None, PUBLISHED): 0.3 + above[name]}
        return {engine: measured({"a": value, "b": value}) for engine, value in found.items()}

    monkeypatch.setattr(measures, "dense_measured", of_set)
    rows = measures.quality_rows(None, experiment)  # type: ignore[arg-type]
    means = {row.set: row.value for row in rows if row.sets and row.kind == "difference"}
    assert means == pytest.approx(expected)


def experiment_of_nine_sets(folder: Path) -> models.Experiment:
    for at in range(9):
        (folder / f"set{at}" / "qrels").mkdir(parents=True)
        (folder / f"set{at}" / "qrels" / "test.tsv").touch()
    return models.Experiment(
        data=folder, start="", work=folder, seeds=(1,), arms=(PUBLISHED,), dense=None, sizes=(100,), clients=(20,),
        minutes=1.0, heap="1g", connection=None, owned=False,  # type: ignore[arg-type]
    )  # fmt: skip


def test_quality_that_was_measured_with_other_defaults_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another weight, window or rare share was written as the quality of the new one, beside loads of the new one."""
    experiment, model = experiment_of_nine_sets(tmp_path), MeasuredEngine(PUBLISHED)
    as_they_are = measures.measured_with(experiment, model, "set0", with_dense=False)
    assert as_they_are == measures.measured_with(experiment, model, "set0", with_dense=False)
    heavier = partial(CascadeSetting, weight=0.5)
    for name, other in (
        ("CascadeSetting", heavier),
        ("RARE_WORDS", Rare("ratio", 0.1)),
        ("RARE_FIRST_WEIGHT", 0.5),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(measures, name, other)
            assert measures.measured_with(experiment, model, "set0", with_dense=False) != as_they_are, name


def test_a_folder_of_work_is_of_one_dense_model(tmp_path: Path, start: Path) -> None:
    """Two dense models whose folders have the same name shared what was measured."""
    places = [tmp_path / "one" / "minilm", tmp_path / "other" / "minilm"]
    for place in places:
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"of": place.parent.name}))
    (tmp_path / "work").mkdir()
    experiment = replace(experiment_of_nine_sets(tmp_path / "work"), start=str(start))
    first, second = (replace(experiment, dense=str(place)) for place in places)
    for each in (experiment, first, experiment, first):
        models.check_models(each)
    with pytest.raises(InputError, match=r"was begun with another dense than .*other/minilm"):
        models.check_models(second)


def test_each_kind_of_load_test_has_its_own_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a test with another heap was made of the blocks that were measured with the first one."""
    folders: list[Path] = []
    monkeypatch.setattr(models, "COST_SET", "set0")
    monkeypatch.setattr(cost, "growth_of", lambda *_, **how: Growth("corpus", "docs", 100))
    monkeypatch.setattr(cost, "grow", lambda *_, **how: None)
    monkeypatch.setattr(cost, "allowed_target", lambda *_, **how: None)
    monkeypatch.setattr(cost, "rows_under_load", lambda *asked: folders.append(asked[-1]) or [])
    experiment = experiment_of_nine_sets(tmp_path)
    model, nobody = MeasuredEngine(PUBLISHED), cast(Any, None)
    for other in ({}, {"heap": "2g"}, {"clients": (1,)}, {"minutes": 2.0}, {}):
        cost.load_rows(nobody, nobody, replace(experiment, **cast(Any, other)), 100, model, with_dense=False)
    assert len({*folders}) == 4 and folders[0] == folders[-1]


def test_the_encoders_of_all_arms_take_turns_and_their_rates_are_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each arm was timed alone, so a rate also told what else the machine did then."""
    called: list[str] = []

    class Encoder:
        def __init__(self, sparse: str) -> None:
            self.sparse = sparse

        def vectors(self, documents: list[int]) -> None:
            called.append(self.sparse)

    monkeypatch.setattr(models, "COST_SET", "set0")
    monkeypatch.setattr(cost, "TURN", 4)
    monkeypatch.setattr(cost, "Encoders", Encoder)
    monkeypatch.setattr(cost, "load_sparse", str)
    monkeypatch.setattr(cost, "corpus_of", str)
    monkeypatch.setattr(cost, "read_corpus", lambda corpus: iter(range(14)))
    monkeypatch.setattr(models.Experiment, "on_corpus", lambda self, model, name: model.name)
    experiment, arm = experiment_of_nine_sets(tmp_path), MeasuredEngine("trained 10 minutes", 1)
    both = [MeasuredEngine(PUBLISHED), arm]
    rows = cost.encoding_rates(experiment, both)
    # Once before, then three turns, each begun by another one.
    assert called == [PUBLISHED, arm.name] * 2 + [arm.name, PUBLISHED] + [PUBLISHED, arm.name]
    assert [(row.engine, row.variant) for row in rows] == [
        (engine, model.name) for model in both for engine in SPARSE_ENGINES
    ]
    assert all(row.set == "set0, encoding" and row.measure == "documents encoded a second" for row in rows)
    names = [cost.encoding_name(experiment, each) for each in (both, both[::-1], both[:1], both[1:])]
    assert names[0] == names[1] and len({*names}) == 3 and names[2] == f"encoding-{slug(PUBLISHED)}"


def test_a_goal_is_missed_where_one_set_is_below_or_too_few_are_above(tmp_path: Path) -> None:
    def gain(name: str, low: float, high: float) -> Row:
        return Row(
            name, SUM, "nDCG@10", (low + high) / 2, low, high, 9, kind="difference", baseline=BM25, variant=PUBLISHED
        )

    names = [f"set{at}" for at in range(9)]
    experiment = experiment_of_nine_sets(tmp_path)
    rows = [gain(name, 0.01, 0.03) for name in names[:7]] + [gain(name, -0.01, 0.02) for name in names[7:]]
    rows.append(
        Row("mean of 9 sets", SUM, "nDCG@10", 0.026, 0.02, 0.03, 9, kind="difference", baseline=BM25, variant=PUBLISHED)
    )
    assert [goal.met for goal in command.goals(experiment, rows)] == [True, True]
    almost = [*rows[:9], replace(rows[9], value=0.02499)]
    assert [goal.met for goal in command.goals(experiment, almost)] == [True, False], "2.499 points are not 2.5"
    below = [*rows[:8], gain("set8", -0.03, -0.01), rows[9]]
    assert [goal.met for goal in command.goals(experiment, below)] == [False, True]
    few = [*rows[:6], gain("set6", -0.01, 0.03), *rows[7:9]]
    assert [goal.met for goal in command.goals(experiment, few)] == [False, False]  # and no mean was measured


def test_a_cost_that_was_asked_for_and_not_measured_is_a_goal_that_is_not_met(tmp_path: Path) -> None:
    """Before, a load too short for a P99 left no goal behind."""
    experiment = replace(experiment_of_nine_sets(tmp_path), sizes=(100_000,))
    p50 = Row(
        "100,000 documents", SUM, "P50", 1.2, 1.1, 1.3, 9, BM25, kind="ratio", variant=PUBLISHED, level="20 clients"
    )
    made = {goal.goal: goal for goal in command.goals(experiment, [p50]) if "100,000" in goal.goal}
    of = "bm25-sparse as published: {} on 100,000 documents, 20 clients, in BM25's, at most"
    p50_goal, p99_goal = (made[of.format(measure)] for measure in ("P50", "P99"))
    assert (p50_goal.value, p50_goal.met) == (1.2, True) and (p99_goal.value, p99_goal.met) == (None, False)
    one_client = replace(experiment, clients=(1,))
    assert not [goal for goal in command.goals(one_client, [p50]) if "100,000" in goal.goal]


def test_the_plot_has_a_point_for_each_engine_with_a_p99_and_none_is_left_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of_nine_sets(tmp_path)
    gain = Row(
        "mean of 9 sets", SUM, "nDCG@10", 0.026, 0.02, 0.03, 9, BM25, kind="difference", variant=PUBLISHED, sets=9
    )
    loaded = Row(
        "100 documents", SUM, "P99", 1.3, 1.2, 1.4, 9, BM25, kind="ratio", variant=PUBLISHED, level="20 clients"
    )  # fmt: skip
    plot = tmp_path / "quality_and_cost.svg"
    command.draw(experiment, [gain, loaded], tmp_path)
    drawn = plot.read_text()
    assert "bm25-sparse" in drawn and "as published" in drawn and "high-idf-first" not in drawn
    command.draw(experiment, [gain], tmp_path)
    assert not plot.exists()
    # Costs measured anew stand beside recorded quality, in place of the recorded costs.
    recorded = Summary("osn", "c0ffee", {"cores": 2}, [], [0], [gain, loaded]).write(tmp_path / "recorded")
    drawn_points: list[Any] = []
    monkeypatch.setattr(command.plots, "quality_and_cost", lambda points, *_, **how: drawn_points.append(points))
    command.draw(replace(experiment, quality_of=(recorded,)), [replace(loaded, value=1.25)], tmp_path)
    ((of_sum,),) = [points.values() for points in drawn_points]
    assert [row.value for row in of_sum] == [1.25, pytest.approx(2.6)]
    # A load test with too few requests for a P99 leaves the recorded one.
    without = replace(loaded, measure="P50", value=1.1)
    milliseconds = replace(without, kind="value", baseline="")
    command.draw(replace(experiment, quality_of=(recorded,)), [without, milliseconds], tmp_path)
    ((of_sum,),) = [points.values() for points in drawn_points[1:]]
    assert [row.value for row in of_sum] == [1.3, pytest.approx(2.6)]


def test_the_weight_is_chosen_by_questions_that_are_neither_tested_nor_trained_on(
    data: Path, start: Path, tmp_path: Path, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "one" / "qrels" / "dev.tsv").unlink()
    monkeypatch.setattr(weights, "TRAINED_ON", ("one",))
    splits = {name: weights.split_of(data / name, PUBLISHED) for name in ("one", "two")}
    assert splits == {"one": "train", "two": "dev"}
    trained, of_corpus = "trained 10 minutes", models.ON_CORPUS  # which saw no judgement
    assert [weights.split_of(data / name, trained) for name in ("one", "two")] == [None, "dev"]
    assert [weights.split_of(data / name, of_corpus) for name in ("one", "two")] == ["train", "dev"]
    made: list[tuple[str, str]] = []
    options = ["--start", str(start), "--data", str(data), "--work", str(tmp_path / "other")]
    with monkeypatch.context() as patch:
        patch.setattr(models.Experiment, "folder", lambda self, model, name: made.append((model.name, name)))
        patch.setattr(
            weights, "reachable", lambda *given, **named: 1 / 0
        )  # models are made before a cluster is looked for
        trials = CliRunner().invoke(weights.sum_weight, [*options, "--arm", trained, "--arm", of_corpus])
        assert isinstance(trials.exception, ZeroDivisionError)
    assert made == [(trained, "two"), (of_corpus, "one"), (of_corpus, "two")], "models that nobody asks are trained"
    arguments = [
        "--url", cluster_url, "--start", str(start), "--data", str(data), "--work", str(tmp_path / "work"),
        "--arm", PUBLISHED, "--weights", "0.001,1", "--limit-queries", "7", "--record", str(tmp_path / "results"),
    ]  # fmt: skip
    for _ in range(2):  # the second time nothing is measured again
        result = CliRunner().invoke(weights.sum_weight, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    rows = [row for row in read(tmp_path / "results").rows if row.kind == "difference"]
    gains = {(row.set, row.engine): row.value for row in rows}
    light, heavy = "bm25-sparse, weight 0.001", "bm25-sparse, weight 1"
    assert gains.keys() == {
        (name, engine) for name in ("one train", "two dev", "mean of 2 sets") for engine in (light, heavy)
    }
    for engine in (light, heavy):
        of_sets = [gains[name, engine] for name in ("one train", "two dev")]
        assert gains["mean of 2 sets", engine] == pytest.approx(sum(of_sets) / 2)
    assert {row.n for row in rows if row.set != "mean of 2 sets"} <= set(range(1, 8))


def test_states_are_chosen_as_those_of_the_recorded_models_were() -> None:
    """The recipe chooses by the sum now, and results would be of other models."""
    assert models.configuration("m", [Path("set")], [], 900, 42).training.select is None
