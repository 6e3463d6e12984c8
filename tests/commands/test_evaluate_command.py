"""`osn eval` end to end: a corpus ingested into a real cluster, its engines measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from cluster_servers import Answer, Request, forbidden, forbidding_proxy

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural import queries
from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.cluster.connect import connect
from opensearch_neural.commands.evaluate import chosen_engines, evaluate
from opensearch_neural.commands.evaluation_options import chosen_baseline
from opensearch_neural.commands.search import search
from opensearch_neural.engines import ENGINES
from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.errors import InputError, TooManyClauses, ZeroVector
from opensearch_neural.evaluation import engine_comparison as experiment
from opensearch_neural.evaluation.engine_report import difference
from opensearch_neural.evaluation.expectations import parse_expectation
from opensearch_neural.evaluation.measures import measure
from opensearch_neural.evaluation.results import Row, read
from opensearch_neural.evaluation.run_files import read_run
from opensearch_neural.index.record import PassageMeta, existing_record, write_record
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.retrievers.template import filters_of

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# Of the query "zebra river", "zebra" is rare (one document) and "river" common (nine): its 9 other documents hold common
# tokens only. "lion" and "moon" are as rare as each other, so nothing of "lion moon" is common.
DOCUMENTS = {
    "z": "zebra by the river",
    "l": "lion",
    "m": "moon over a lion",
    **{f"r{at}": f"river number{at}" for at in range(8)},
    **{f"x{at}": f"something else{at}" for at in range(9)},
}
QUERIES = {"q1": "zebra river", "q2": "lion moon", "q3": "nothing of this kind", "unjudged": "zebra", "empty": "lion"}
# BM25 knows "lions" by its stem, and no document has such a token.
QUERIES["stemmed"] = "lions"
QUERY = {"match": {"contents": "{{query}}"}}
QRELS = [("q1", "z", 2), ("q1", "r3", 1), ("q2", "l", 1), ("q3", "x1", 1), ("empty", "z", 0)]


@dataclass(frozen=True)
class Toy:
    url: str
    index: str
    data: Path


@pytest.fixture(scope="module")
def toy(cluster_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """A collection small enough to know every answer, in an index with lexical sparse vectors."""
    data = tmp_path_factory.mktemp("toy")
    write_jsonl(data / "corpus.jsonl", [{"_id": id, "title": "", "text": text} for id, text in DOCUMENTS.items()])
    write_jsonl(data / "queries.jsonl", [{"_id": id, "text": text} for id, text in QUERIES.items()])
    write_qrels(data, "test", QRELS)
    write_qrels(data, "stemmed", [("stemmed", "l", 1), ("q3", "x1", 1)])
    index = f"osn-test-{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSN_HOME", str(tmp_path_factory.mktemp("home")))
        client = connect(cluster_url)
        job = Job(
            CorpusSource(str(data)),
            index,
            models=Models(sparse="lexical", dense="none"),
            new_index=NewIndex(replicas=0),
            dead_letters=data.parent / "dead",
        )
        run_job(client, job, show_progress=False)
        yield Toy(cluster_url, index, data)
        client.indices.delete(index=index)
        client.close()


def write_jsonl(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_qrels(data: Path, split: str, qrels: list[tuple[str, str, int]]) -> None:
    (data / "qrels").mkdir(exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, judged)) for judged in qrels)]
    (data / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


Osn = Callable[..., Result]


@pytest.fixture
def osn_eval(toy: Toy) -> Osn:
    def run(*options: str, **arguments: Any) -> Result:
        arguments_ = ["--index", toy.index, "--data", str(toy.data), "--url", toy.url, *options]
        return CliRunner().invoke(evaluate, arguments_, **arguments)

    return run


def values(summary: dict[str, Any]) -> dict[tuple[str, str], float]:
    rows = [Row(**row) for row in summary["rows"]]
    return {(row.line, row.column): row.value for row in rows}


def test_the_measures_are_those_worked_out_by_hand(osn_eval: Osn, toy: Toy) -> None:
    result = osn_eval("--json", "--timed", "3", "--measures", "RR@10,R@100", catch_exceptions=False)
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    measured = values(summary)
    # q1 finds z first; q2 finds m (both words) before l; q3 finds nothing; "empty" has no relevant document.
    for engine in ("bm25", "sparse", "high-idf-first"):
        assert measured[engine, "MRR@10"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    # r3 holds the common token of q1 only: high-idf-first fills up with it.
    for engine in ("bm25", "sparse", "high-idf-first"):
        assert measured[engine, "R@100"] == pytest.approx((1 + 1 + 0) / 3)
    assert measured["high-idf-first", "R@100 - bm25"] == 0
    assert measured["sparse", "p(R@100 - bm25)"] == 1.0
    assert all(measured[engine, "P50 ms"] > 0 for engine in ("bm25", "sparse", "high-idf-first"))
    assert {row["n"] for row in summary["rows"] if row["measure"] == "MRR@10"} == {3}
    # All 20 documents lie within the window of 30.
    assert measured["high-idf-first", "certified"] == 1.0
    assert 0 <= measured["bm25-sparse", "certified"] <= 1 and ("bm25", "certified") not in measured
    assert summary["title"].startswith(f"{toy.data.name} (test): 20 documents, 3 queries; sparse lexical")
    assert [data["name"] for data in summary["data"]] == [toy.data.name]
    assert summary["data"][0]["files"].keys() == {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}
    assert "1 judged queries have no relevant document" in result.stderr


def test_what_hybrid_fuses_stands_above_the_measures(osn_eval: Osn) -> None:
    """In an index without dense vectors it is another engine than in one that has them."""
    told = {engines: osn_eval("--engines", engines, "--timed", "0").stdout for engines in ("bm25", "hybrid,hybrid-rrf")}
    assert "3 queries; sparse lexical; hybrid, hybrid-rrf of bm25 and sparse\n" in told["hybrid,hybrid-rrf"]
    assert "3 queries; sparse lexical\n" in told["bm25"]


def test_documents_that_change_meanwhile_are_told_with_the_numbers(
    client: OpenSearch, toy: Toy, osn_eval: Osn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second engine searches a document that the first one did not have."""
    measured, written = experiment.run_retriever, []

    def meanwhile(*arguments: Any, **options: Any) -> experiment.EngineResult:
        if not written:
            written.append(client.index(index=toy.index, id="new", body={"title": "", "text": "lion"}, refresh=True))
        return measured(*arguments, **options)

    asked = ("--engines", "bm25,sparse", "--timed", "0")
    assert "changed while it was measured" not in osn_eval(*asked).output
    monkeypatch.setattr(experiment, "run_retriever", meanwhile)
    try:
        result = osn_eval(*asked)
    finally:
        client.delete(index=toy.index, id="new", refresh=True)
    what = f"{toy.index!r} changed while it was measured (20 documents before, 21 after)"
    assert what in result.stderr and what in result.stdout.splitlines()[0]


def test_every_page_of_exact_engines_is_certain(osn_eval: Osn) -> None:
    shares = {}
    for how in ((), ("--exact",), ("--tokens", "count:1")):
        engines = ("--engines", "bm25-sparse,high-idf-first", "--window", "1", "--timed", "0", "--json")
        measured = values(json.loads(osn_eval(*engines, *how, catch_exceptions=False).stdout))
        shares[how] = [measured[engine, "certified"] for engine in ("bm25-sparse", "high-idf-first")]
    assert shares["--exact",] == [1.0, 1.0] and 0 < max(shares[()]) < 1
    assert all(of_one <= of_all for of_one, of_all in zip(shares["--tokens", "count:1"], shares[()], strict=True))


def test_the_tables_name_engines_measures_and_differences(osn_eval: Osn) -> None:
    asked = ("--timed", "2", "--per-query", "--engines", "high-idf-first,bm25", "--split", "stemmed")
    result = osn_eval(*asked, catch_exceptions=False)
    lines = result.stdout.splitlines()
    header = next(line for line in lines if line.startswith("| engine"))
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "engine", "nDCG@10", "MRR@10", "R@100", "R@1000", "unjudged@10", "P50 ms", "P99 ms", "encode P50 ms",
    ]  # fmt: skip
    assert "difference to bm25 [95% interval], p" in result.stdout
    assert "ms: 2 requests, one at a time; a P99 to decide by: osn bench load" in result.stdout
    assert "high-idf-first found nothing for 2 queries; each counts as 0" in result.stdout
    losses = lines[next(at for at, line in enumerate(lines) if line.startswith("high-idf-first against bm25")) :]
    assert losses[0] == "high-idf-first against bm25, nDCG@10: 0 wins, 1 losses"
    # BM25 has l, the shorter of two, at rank 1.
    assert losses[1].split() == ["-1.000", "1.000", "→", "0.000", "stemmed", "lions"]


def test_runs_and_per_query_values_are_written_and_give_the_same_measures(osn_eval: Osn, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    result = osn_eval("--json", "--timed", "0", "--engines", "bm25,sparse", "--out", str(out), catch_exceptions=False)
    assert sorted(path.name for path in out.iterdir()) == [
        "bm25.top10.trec", "bm25.top1000.trec", "per-query.tsv", "sparse.top10.trec", "sparse.top1000.trec",
    ]  # fmt: skip
    qrels: dict[str, dict[str, int]] = {}
    for query, document, grade in QRELS:
        qrels.setdefault(query, {})[document] = grade
    again = measure(read_run(out / "bm25.top10.trec"), qrels, ["nDCG@10"])
    assert again.mean["nDCG@10"] == values(json.loads(result.stdout))["bm25", "nDCG@10"]
    lines = [line.split("\t") for line in (out / "per-query.tsv").read_text().splitlines()]
    assert lines[0] == ["query", "engine", "measure", "value"]
    assert ["q2", "bm25", "RR@10", "0.5"] in lines and len(lines) == 1 + 2 * 4 * 3


def test_nothing_is_written_unless_asked_for(osn_eval: Osn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    osn_eval("--timed", "0", "--engines", "bm25", catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_user_who_may_not_ask_for_the_release_loses_nothing(toy: Toy, osn_eval: Osn) -> None:
    """Before, this optional request was sent after all searches, and its refusal was the end."""

    def machine(*forbidden_paths: str) -> dict[str, Any]:
        def refused(request: Request) -> Answer | None:
            path = request.path.partition("?")[0]
            return forbidden("cluster:monitor/main") if path in forbidden_paths else None

        with forbidding_proxy(toy.url, refused) as url:
            asked = ["--index", toy.index, "--data", str(toy.data), "--url", url, "--timed", "0", "--json"]
            result = CliRunner().invoke(evaluate, [*asked, "--engines", "bm25,sparse"], catch_exceptions=False)
        told: dict[str, Any] = json.loads(result.stdout)["machine"]
        return told

    assert "opensearch" not in machine("/", "/_nodes/plugins")
    release = json.loads(osn_eval("--engines", "bm25", "--timed", "0", "--json").stdout)["machine"]["opensearch"]
    assert machine("/")["opensearch"] == release, "the nodes tell it, too"


def test_a_record_holds_the_models_and_the_settings_of_the_engines(
    client: OpenSearch, toy: Toy, osn_eval: Osn, tmp_path: Path
) -> None:
    """Before and after `osn tune` the records differed in their figures alone."""
    before = existing_record(client, toy.index)
    options = ["--engines", "bm25,bm25-sparse", "--timed", "0", "--record", str(tmp_path)]
    osn_eval(*options, catch_exceptions=False)
    assert before.sparse is not None
    model = f"sparse: {before.sparse.name} ({before.sparse.hash})"
    assert read(tmp_path).notes == [model, "bm25-sparse: weight 0.8, window 30"]
    try:
        tuned = before.with_extra(**{Bm25SparseSetting.key: Bm25SparseSetting(1.1, 20).record})
        write_record(client, toy.index, tuned)
        osn_eval(*options, catch_exceptions=False)
    finally:
        write_record(client, toy.index, before)
    assert read(tmp_path).notes == [model, "bm25-sparse: weight 1.1, window 20"]


def test_a_goal_that_is_missed_is_recorded_and_fails_the_command(osn_eval: Osn, tmp_path: Path) -> None:
    options = ["--engines", "bm25", "--timed", "0", "--record", str(tmp_path)]
    kept = osn_eval(*options, "--expect", "bm25:MRR@10=0.4..0.6", catch_exceptions=False)
    assert kept.exit_code == 0 and [goal.met for goal in read(tmp_path).goals] == [True]
    missed = osn_eval(*options, "--expect", "bm25:RR@10=0.9..1", "--expect", "bm25:R@100=0..1", catch_exceptions=False)
    assert missed.exit_code == 1
    assert [(goal.goal, goal.met) for goal in read(tmp_path).goals] == [
        ("bm25 MRR@10 between 0.9 and 1", False),
        ("bm25 R@100 between 0 and 1", True),
    ]
    assert "MISSED: bm25 MRR@10 between 0.9 and 1: 0.5000" in missed.stdout


def test_judged_documents_that_the_index_lacks_are_counted(toy: Toy, osn_eval: Osn) -> None:
    write_qrels(toy.data, "partial", [*QRELS, ("q1", "gone", 1), ("q2", "gone", 1), ("q2", "gone too", 1)])
    result = osn_eval("--split", "partial", "--engines", "bm25", "--timed", "0", catch_exceptions=False)
    assert "2 of the 6 documents judged relevant are not in the index" in result.stderr
    write_qrels(toy.data, "foreign", [("q1", "other-1", 1), ("q2", "other-2", 1)])
    with pytest.raises(InputError, match="none of the 2 documents judged relevant is in the index"):
        osn_eval("--split", "foreign", "--engines", "bm25", "--timed", "0", catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engines", "bm25,turbo"], "there is no engine 'turbo'"),
        (["--engines", "dense"], "holds no dense vectors"),
        (["--engines", ","], "names no engine"),
        (["--split", "dev"], "'dev'"),
        (["--measures", "nDCG@10,bogus"], "'bogus'"),
        (["--rare", "most:1"], "--rare"),
        (["--baseline", "sparse", "--engines", "bm25"], "baseline 'sparse'"),
        (["--expect", "bm25:nDCG@10=high"], "--expect"),
        (["--index", "no-such-index"], "no-such-index"),
        (["--data", "no-such-folder"], "no-such-folder"),
    ],
)
def test_bad_input_is_named(osn_eval: Osn, options: list[str], message: str) -> None:
    from opensearch_neural.errors import OsnError

    with pytest.raises(OsnError) as raised:
        osn_eval(*options, catch_exceptions=False)
    assert message in raised.value.message


def test_judgements_without_a_relevant_document_are_refused(toy: Toy, osn_eval: Osn) -> None:
    write_qrels(toy.data, "zero", [("q1", "z", 0)])
    write_qrels(toy.data, "none", [])
    for split, why in (("zero", "have no relevant document"), ("none", r"none\.tsv holds no judgement")):
        with pytest.raises(InputError, match=why):
            osn_eval("--split", split, catch_exceptions=False)


def test_per_query_text_and_json_exclude_each_other(osn_eval: Osn) -> None:
    assert osn_eval("--json", "--per-query").exit_code == 2


def test_each_measure_comes_from_a_request_as_deep_as_it_looks(client: OpenSearch, toy: Toy) -> None:
    assert experiment.sizes_of(["nDCG@10", "R@100", "R@1000"]) == {10: ["nDCG@10"], 1000: ["R@100", "R@1000"]}
    assert experiment.sizes_of(["RR@10", "P@5"]) == {10: ["RR@10", "P@5"]}
    assert experiment.sizes_of(["AP"]) == {1000: ["AP"]}
    sizes = []

    def body(text: str, size: int) -> dict[str, Any]:
        sizes.append(size)
        return queries.bm25(text, size=size)

    retriever = OpenSearchRetriever(client, toy.index, "bm25", body)
    how: dict[str, Any] = {"queries": {"q1": "river"}, "qrels": {"q1": {"z": 1}}, "own_documents": ()}
    result = experiment.run_retriever(retriever, **how, measures=["R@100", "RR@10"])
    assert sorted(sizes) == [10, 100]
    assert list(result.measured.mean) == ["R@100", "RR@10"], "in the order asked for"
    with pytest.raises(InputError, match="'R@20000' is not a whole number from 1 to 10,000"):
        experiment.run_retriever(retriever, **how, measures=["R@20000"])


def test_a_query_that_is_a_document_itself_is_left_out_of_its_own_hits(toy: Toy, osn_eval: Osn) -> None:
    """As in BEIR's ArguAna and Quora. A number that is an id of both by chance, or a known item, is not left out."""
    data = toy.data.parent / "arguana"
    data.mkdir()
    (data / "corpus.jsonl").write_text((toy.data / "corpus.jsonl").read_text())
    write_jsonl(
        data / "queries.jsonl",
        [
            {"_id": "m", "text": "moon over a  lion"},
            {"_id": "r1", "text": "lion"},
            {"_id": "z", "text": "zebra by the river"},
        ],
    )
    write_qrels(data, "test", [("m", "l", 1), ("r1", "l", 1), ("z", "z", 1)])
    options = ["--data", str(data), "--engines", "bm25", "--timed", "0", "--measures", "RR@10,R@100", "--json"]
    result = osn_eval(*options, "--out", str(data / "out"), catch_exceptions=False)
    assert values(json.loads(result.stdout))["bm25", "MRR@10"] == 1.0
    assert "1 queries are documents of the index too" in result.stderr
    run = read_run(data / "out" / "bm25.top10.trec")
    assert "m" not in run["m"] and "l" in run["m"] and "z" in run["z"]
    own = data / "own.json"
    own.write_text('{"query": {"match": {"contents": "{{query}}"}}}')
    alone = ["--template", f"own={own}", "--engines", "own", "--data", str(data), "--timed", "0", "--json"]
    result = osn_eval(*alone, "--measures", "RR@10", catch_exceptions=False)
    assert values(json.loads(result.stdout))["own", "MRR@10"] == 1.0, "a template alone, too"


def test_parts_of_a_template_that_exclude_hits_are_told_with_the_measures(osn_eval: Osn, tmp_path: Path) -> None:
    def asked(**more: Any) -> Result:
        body = {"query": {"match": {"contents": "{{query}}"}}, **more}
        (tmp_path / "own.json").write_text(json.dumps(body))
        own = ["--template", f"own={tmp_path}/own.json", "--engines", "own", "--timed", "0", "--json"]
        return osn_eval(*own, "--measures", "RR@10")

    whole = asked()
    assert "warning: the template" not in whole.stderr
    for part, value, told in (
        ("terminate_after", 1, "each shard stops after that many matches"),
        ("min_score", 1000, "hits below this score are left out"),
        ("timeout", "1m", "a query that takes longer ends the measurement"),
    ):
        result = asked(**{part: value})
        assert result.exit_code == 0, result.output
        assert f"warning: the template own has {part}: {told}" in result.stderr
        measured, of_all = (values(json.loads(each.stdout))["own", "MRR@10"] for each in (result, whole))
        assert (measured != of_all) is (part != "timeout"), part
    assert "warning: the template" not in asked(terminate_after=0, timeout="-1", min_score=0).stderr
    refused = asked(search_after=[1.0], sort=["_score"])
    assert isinstance(refused.exception, InputError) and "has search_after" in refused.exception.message


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ({"query": {"bool": {"must": QUERY, "filter": {"term": {"lang": "en"}}}}}, "filter"),
        (
            {"query": {"bool": {"must": [{"bool": {"must": QUERY, "must_not": [{"term": {"lang": "de"}}]}}]}}},
            "must_not",
        ),
        (
            {"query": {"bool": {"should": QUERY, "filter": [{"match_all": {}}]}}, "post_filter": {"match_all": {}}},
            "filter, post_filter",
        ),
        ({"query": {"bool": {"must": QUERY, "filter": []}}}, None),
        ({"query": {"match": {"filter": "{{query}}"}}}, None),
    ],
)
def test_a_template_with_a_filter_is_not_compared_with_engines_without_a_warning(
    osn_eval: Osn, tmp_path: Path, filters: dict[str, Any], told: str | None
) -> None:
    """The engines search without its filter, so that they find documents that it leaves out, and others count as gain."""
    (tmp_path / "own.json").write_text(json.dumps(filters))
    own = ["--template", f"own={tmp_path}/own.json", "--timed", "0", "--json", "--measures", "RR@10"]
    result = osn_eval(*own, "--engines", "bm25,own", catch_exceptions=False)
    warning = f"warning: the template own filters its hits ({told}), and the engines of osn do not"
    assert (warning in result.stderr) if told else ("warning: the template" not in result.stderr)
    alone = osn_eval(*own, "--engines", "own", catch_exceptions=False)
    assert "warning: the template" not in alone.stderr


def test_filters_of_dense_and_hybrid_queries_are_a_template_s_filters() -> None:
    clause = {"term": {"lang": "en"}}
    knn = {"knn": {"vector": {"vector": [1], "k": 1, "filter": clause}}}
    for query, told in [
        ({"bool": {"should": [QUERY, knn]}}, ["knn.filter"]),
        (
            {"bool": {"should": [{"neural": {"vector": {"query_text": "{{query}}", "filter": clause}}}]}},
            ["neural.filter"],
        ),
        ({"hybrid": {"queries": [QUERY, knn], "filter": clause}}, ["hybrid.filter", "knn.filter"]),
        ({"hybrid": {"queries": [QUERY]}}, []),
    ]:
        assert filters_of(BodyTemplate.of({"query": query})) == told


def test_beside_engines_a_template_is_still_judged_by_its_id_field(
    client: OpenSearch, toy: Toy, osn_eval: Osn, index_name: str, tmp_path: Path
) -> None:
    """Before, --id-field had no effect if engines were measured too."""
    client.indices.create(index=index_name, body={"mappings": {"properties": {"sku": {"type": "keyword"}}}})
    lines = [line for id, text in DOCUMENTS.items() for line in ({"index": {}}, {"body": text, "sku": id})]
    client.bulk(index=index_name, body=lines, params={"refresh": "true"})
    (tmp_path / "own.json").write_text('{"query": {"match": {"body": "{{query}}"}}}')
    named = ["--engines", "bm25", "--template", f"own={tmp_path}/own.json", "--template-index", index_name]
    options = [*named, "--id-field", "sku", "--timed", "0", "--measures", "RR@10", "--json"]
    measured = values(json.loads(osn_eval(*options, catch_exceptions=False).stdout))
    assert measured["own", "MRR@10"] == measured["bm25", "MRR@10"] > 0


def test_a_query_that_is_a_document_in_passages_is_left_out_of_its_own_hits(toy: Toy, osn_eval: Osn) -> None:
    """Before, no judged document was said to be in such an index, and nothing was measured."""
    data = toy.data.parent / "arguana-passages"
    data.mkdir()
    long = "moon over a lion and zebra by the river"
    documents = {"long": long, "half": "moon over a lion and", "near": "a lion and a moon over a lion", "w": "zebra"}
    write_jsonl(data / "corpus.jsonl", [{"_id": id, "text": text} for id, text in documents.items()])
    queries = {"long": long.replace(" ", "  "), "half": long, "w": "river"}
    write_jsonl(data / "queries.jsonl", [{"_id": id, "text": text} for id, text in queries.items()])
    write_qrels(data, "test", [("long", "near", 1), ("half", "long", 1), ("w", "long", 1)])
    client, index = connect(toy.url), f"{toy.index}-passages"
    letters, split = data / "dead", PassageMeta(4, 3)
    job = Job(
        CorpusSource(str(data)),
        index,
        models=Models(sparse="lexical", passages=split),
        new_index=NewIndex(replicas=0),
        dead_letters=letters,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSN_HOME", str(data / "home"))
        run_job(client, job, show_progress=False)
        assert client.count(index=index)["count"] > 5 > len(documents)
        options = ["--index", index, "--data", str(data), "--engines", "bm25,sparse,high-idf-first", "--timed", "0"]
        result = osn_eval(*options, "--measures", "RR@10", "--json", "--out", str(data / "out"), catch_exceptions=False)
    client.indices.delete(index=index)
    assert "1 queries are documents of the index too" in result.stderr
    run = read_run(data / "out" / "bm25.top10.trec")
    assert "4 documents, 3 queries" in json.loads(result.stdout)["title"]
    assert "long" not in run["long"] and set(run["long"]) == {"half", "near", "w"}
    assert "half" in run["half"], "its text is another one"


def test_a_run_with_blanks_in_its_ids_is_written_and_measured_again(toy: Toy, osn_eval: Osn, tmp_path: Path) -> None:
    data = tmp_path / "blanks"
    data.mkdir()
    (data / "corpus.jsonl").write_text((toy.data / "corpus.jsonl").read_text())
    write_jsonl(data / "queries.jsonl", [{"_id": "q 1", "text": "lion"}])
    write_qrels(data, "test", [("q 1", "l", 1)])
    out = tmp_path / "out"
    options = ["--data", str(data), "--engines", "bm25", "--timed", "0", "--measures", "RR@10", "--out", str(out)]
    result = osn_eval(*options, "--record", str(out), catch_exceptions=False)
    assert result.exit_code == 0 and "1.000" in result.stdout
    assert [path.name for path in sorted(out.iterdir())] == ["bm25.top10.trec", "per-query.tsv", "summary.json"]
    assert "ids are percent-encoded in such runs (`a b` is a%20b" in result.stderr
    run = ["runs", str(out / "bm25.top10.trec"), "--data", str(data), "--measures", "RR@10"]
    again = CliRunner().invoke(evaluate, run, catch_exceptions=False)
    assert again.exit_code == 0 and "1.000" in again.stdout, again.stderr


def test_a_query_without_a_vector_gets_no_hits_and_the_evaluation_goes_on(
    client: OpenSearch, toy: Toy, osn_eval: Osn, index_name: str, tmp_path: Path
) -> None:
    """A table of tokens' vectors has zeros for a query of unknown words, and OpenSearch refuses a cosine with zeros."""
    model = tmp_path / "table"
    table_of_tokens(model, [word for text in DOCUMENTS.values() for word in text.split()])
    data = tmp_path / "data"
    data.mkdir()
    (data / "corpus.jsonl").write_text((toy.data / "corpus.jsonl").read_text())
    texts = {"unknown": "☃ ☂", "known": "zebra river", "other": "☃"}
    write_jsonl(data / "queries.jsonl", [{"_id": id, "text": text} for id, text in texts.items()])
    write_qrels(data, "test", [("unknown", "z", 1), ("known", "z", 1), ("other", "l", 1)])
    models = Models(dense=str(model))
    run_job(client, Job(CorpusSource(str(data)), index_name, models=models), show_progress=False)

    named = ["--index", index_name, "--data", str(data), "--measures", "RR@10"]
    result = osn_eval(*named, "--engines", "bm25,dense,hybrid", "--json", catch_exceptions=False)
    assert values(json.loads(result.stdout))["dense", "MRR@10"] == pytest.approx(1 / 3)
    assert json.loads(result.stdout)["title"].endswith("; hybrid of bm25 and dense")
    assert (
        "2 of 3 queries get no hits from dense, hybrid and are not timed, because the model knows none of their words and "
        "their vectors are all zeros: unknown, other" in result.stderr
    )
    times = [row for row in json.loads(result.stdout)["rows"] if row["measure"] == "P50 ms"]
    assert {row["engine"]: row["n"] for row in times} == {"bm25": 1, "dense": 1, "hybrid": 1}
    assert "eval: 18 of 18 queries" in result.stderr, "those that are not timed are done, too"
    assert "all zeros" not in osn_eval(*named, "--engines", "bm25", catch_exceptions=False).stderr

    alone = CliRunner().invoke(search, ["--index", index_name, "--url", toy.url, "--engine", "dense", "☃"])
    assert isinstance(alone.exception, ZeroVector) and "search for them with bm25" in str(alone.exception)


def test_a_query_of_too_many_words_gets_no_hits_and_the_evaluation_goes_on(
    toy: Toy, osn_eval: Osn, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "corpus.jsonl").write_text((toy.data / "corpus.jsonl").read_text())
    document = " ".join(f"word{at}" for at in range(1100))
    write_jsonl(data / "queries.jsonl", [{"_id": "short", "text": "zebra"}, {"_id": "whole", "text": document}])
    write_qrels(data, "test", [("short", "z", 1), ("whole", "z", 1)])
    production = tmp_path / "production.json"
    production.write_text('{"query": {"match": {"contents": "{{query}}"}}}')

    named = ["--index", toy.index, "--data", str(data), "--measures", "RR@10", "--engines", "bm25,bm25-sparse"]
    result = osn_eval(*named, "--template", f"ours={production}", "--json", catch_exceptions=False)
    assert values(json.loads(result.stdout))["bm25", "MRR@10"] == pytest.approx(1 / 2)
    assert (
        "1 of 2 queries get no hits from bm25, bm25-sparse, ours and are not timed, because they make more clauses, a word "
        "each as a rule, than OpenSearch searches at once (indices.query.bool.max_clause_count): whole" in result.stderr
    )
    assert "all zeros" not in result.stderr
    times = [row for row in json.loads(result.stdout)["rows"] if row["measure"] == "P50 ms"]
    assert {row["engine"]: row["n"] for row in times} == {"bm25": 1, "bm25-sparse": 1, "ours": 1}
    assert "eval: 14 of 14 queries" in result.stderr, "those that are not timed or certified are done, too"


def test_an_engine_that_can_answer_no_query_ends_the_evaluation(toy: Toy, osn_eval: Osn, tmp_path: Path) -> None:
    """A template may have too many clauses of its own: zeros for every query would be measured like hits."""
    document = " ".join(f"word{at}" for at in range(1100))
    production = tmp_path / "production.json"
    production.write_text(json.dumps({"query": {"match": {"contents": "{{query}} " + document}}}))
    named = ("--index", toy.index, "--data", str(toy.data), "--engines", "bm25", "--template", f"ours={production}")
    result = osn_eval(*named)
    assert isinstance(result.exception, TooManyClauses)
    assert re.match(r"ours can answer none of the \d+ queries; 'q1': .*max", str(result.exception))


def test_a_query_of_too_many_words_is_named_where_it_ends_a_run(client: OpenSearch, toy: Toy) -> None:
    retriever = OpenSearchRetriever(client, toy.index, "bm25", lambda text, k: queries.bm25(text, size=k))
    document = " ".join(f"word{at}" for at in range(1100))
    with pytest.raises(TooManyClauses, match=r"query 'whole': .*max") as refused:
        retriever.retrieve({"short": "zebra", "whole": document}, 10)
    assert "shorten it" in str(refused.value)


def table_of_tokens(folder: Path, words: list[str]) -> None:
    """Write a dense model that is the mean of its tokens' vectors, for these words alone."""
    pytest.importorskip("sentence_transformers")
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(dict.fromkeys(words))}, unk_token=words[0]))
    tokenizer.pre_tokenizer = Split(Regex("[^a-z0-9]+"), "removed")
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 16)).astype(np.float32)
    table = StaticEmbedding(tokenizer, vectors)
    SentenceTransformer(modules=[table, Normalize()], device="cpu").save_pretrained(str(folder))


def test_engines_are_timed_on_the_same_queries_in_turns(client: OpenSearch, toy: Toy) -> None:
    asked: list[tuple[str, str]] = []

    def body_of(engine: str) -> Callable[[str, int], dict[str, Any]]:
        def body(text: str, size: int) -> dict[str, Any]:
            asked.append((engine, text))
            return queries.bm25(text, size=size)

        return body

    texts = [f"river {at}" for at in range(45)]
    done: list[int] = []
    times = experiment.time_engines(
        client, toy.index, {"a": body_of("a"), "b": body_of("b")}, texts, progress=done.append
    )
    assert sum(done) == 90
    assert {engine: (len(search.ms), len(encode.ms)) for engine, (search, encode) in times.items()} == {
        "a": (45, 45),
        "b": (45, 45),
    }
    assert {text for engine, text in asked if engine == "b"} == set(texts)


def test_an_option_that_no_measured_engine_has_is_refused(osn_eval: Osn) -> None:
    refused = osn_eval("--engines", "bm25,sparse", "--weight", "5")
    assert refused.exit_code == 2 and "--weight has no effect with bm25, sparse: it is an option of" in refused.output


def test_no_more_hits_are_asked_for_than_a_retriever_finds() -> None:
    """The engine faiss lists at most 1,000, and one more would be asked for where queries are documents themselves."""
    asked = []

    class Limited:
        name = "limited"

        def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
            asked.append(k)
            return {query: {"d": 1.0} for query in queries}

    how: dict[str, Any] = {"queries": {"q": "x"}, "qrels": {"q": {"d": 1}}, "measures": ["nDCG@10", "R@1000"]}
    experiment.run_retriever(Limited(), **how, own_documents={"q"}, most=ENGINES["faiss"].most_hits)
    assert asked == [11, 1000]


def test_engine_names_are_taken_once_and_checked() -> None:
    assert chosen_engines(" bm25, sparse,bm25 ,") == ["bm25", "sparse"]
    assert chosen_engines(None) == []
    with pytest.raises(InputError) as raised:
        chosen_engines("bm52")
    assert "high-idf-first" in str(raised.value.remedy)


def test_the_baseline_is_bm25_where_it_is_measured() -> None:
    assert chosen_baseline(None, ["sparse", "bm25"], "bm25") == "bm25"
    assert chosen_baseline(None, ["sparse", "dense"], "bm25") is None
    assert chosen_baseline("dense", ["sparse", "dense"], "bm25") == "dense"


@pytest.mark.parametrize(
    "text",
    [
        "bm25",
        "bm25:RR@10",
        "bm25:RR@10=1",
        "bm25:RR@10=0.5..",
        "bm25:RR@10=0..1..2",
        "bm25:RR@10=0.7..0.6",
        "sparse:RR@10=0..1",
        "bm25:AP=0..1",
        "bm25:xx=0..1",
    ],
)
def test_a_goal_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_expectation(text, ["bm25"], ["RR@10"])
    assert parse_expectation("bm25:MRR@10=0.5..0.7", ["bm25"], ["RR@10"]).goal(0.5).met


def test_a_difference_shows_sign_interval_and_p() -> None:
    row = Row("s", "e", "m", 0.0123, -0.0031, 0.0279, 10)
    assert difference(row, replace(row, value=0.1204)) == "+0.012 [-0.003, +0.028] p=0.120"
    assert difference(replace(row, low=None, high=None), replace(row, value=0.0002)) == "+0.012 p<0.001"


def test_the_command_loads_nothing_heavy_until_it_runs() -> None:
    code = (
        "import sys, opensearch_neural.commands.evaluate, opensearch_neural.evaluation.engine_comparison; "
        "heavy = ('torch', 'transformers', 'scipy', 'ir_measures', 'bm25s', 'faiss'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
