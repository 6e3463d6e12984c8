"""The engine tome: URLs that a generative model writes, as documents of an index."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ingest.corpus import CorpusSource  # noqa: E402
from ingest.job import Job, run_job  # noqa: E402
from ingest.settings import Models, NewIndex  # noqa: E402
from opensearch_neural import queries  # noqa: E402
from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.engines import open_engines  # noqa: E402
from opensearch_neural.engines.generative import Tome  # noqa: E402
from opensearch_neural.errors import ModelError  # noqa: E402
from opensearch_neural.index.record import PassageMeta  # noqa: E402
from opensearch_neural.models.directory import write_osn_json  # noqa: E402
from opensearch_neural.models.generative.generative_model import load_generative  # noqa: E402
from opensearch_neural.models.generative.settings import KIND, GenerativeSettings, write_settings  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402

ANIMALS = ["cat", "dog", "bird", "fish"]
TEXT = "The {0} lives in the garden of the house. The {0} sleeps. " * 6


class Written(NamedTuple):
    """An index, and what searches it; each document's URL by its id."""

    index: str
    model: Path
    urls: Path
    by_id: dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A single stage with random weights: with more beams than documents it writes the URLs of all, in some order."""
    folder = tmp_path_factory.mktemp("models") / "tome"
    tokenizer = backbones.train_tokenizer([f"https://zoo.org/{animal}" for animal in ANIMALS] * 3, "byte-level", 400)
    torch.manual_seed(0)
    new = NewBackbone("t5", layers=1, hidden=16, heads=2)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder / "url")
    write_settings(folder, GenerativeSettings(), single_stage=True)
    write_osn_json(folder, KIND)
    return folder


@pytest.fixture(scope="module", params=["documents", "passages"])
def written(
    client, model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp(f"zoo-{request.param}")
    corpus = folder / "docs.jsonl"
    by_id = {f"d{at}": f"https://zoo.org/{animal}" for at, animal in enumerate(ANIMALS)}
    lines = [
        {"_id": id, "title": url.rpartition("/")[2], "text": TEXT.format(url.rpartition("/")[2]), "url": url}
        for id, url in by_id.items()
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    passages = PassageMeta(32, 24) if request.param == "passages" else None
    name = f"osn-test-{folder.name.lower()}"
    job = Job(
        CorpusSource(str(corpus)),
        name,
        models=Models(sparse="lexical", passages=passages),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    load_generative(model).index_urls(by_id.items()).save(folder / "urls")
    yield Written(name, model, folder / "urls", by_id)
    client.indices.delete(index=name)


def searched(cluster_url: str, written: Written, *arguments: str) -> Result:
    command = ["search", "--url", cluster_url, "--index", written.index, "--engine", "tome"]
    command += ["--urls", str(written.urls), "--tome", str(written.model), *arguments]
    return CliRunner().invoke(osn, command)


@pytest.mark.cluster
def test_documents_come_in_the_order_in_which_their_urls_were_written(
    written: Written, cluster_url: str, client
) -> None:
    answer = searched(cluster_url, written, "--json", "the cat")
    assert answer.exit_code == 0, answer.output
    hits = json.loads(answer.stdout)["hits"]
    engines = open_engines(client, written.index, urls=written.urls, tome=str(written.model))
    expected = Tome(engines).load_retriever().find_urls("the cat", 10)
    assert [hit["url"] for hit in hits] == list(expected)
    assert [written.by_id[hit["id"]] for hit in hits] == list(expected)
    assert all(hit["title"] and hit["excerpt"] for hit in hits)
    assert any("<em>" in hit["excerpt"] for hit in hits)
    assert "any more" not in answer.stderr
    two = json.loads(searched(cluster_url, written, "--json", "--size", "2", "the cat").stdout)["hits"]
    assert [hit["id"] for hit in two] == [hit["id"] for hit in hits[:2]]


@pytest.mark.cluster
def test_a_document_deleted_since_is_reported(written: Written, cluster_url: str, client) -> None:
    first = json.loads(searched(cluster_url, written, "--json", "the cat").stdout)["hits"][0]
    query = {"term": {"url": first["url"]}}
    held = client.search(index=written.index, body={"query": query, "size": 100})["hits"]["hits"]
    client.delete_by_query(index=written.index, body={"query": query}, refresh=True)
    try:
        for size in ("10", "1"):
            answer = searched(cluster_url, written, "--json", "--size", size, "the cat")
            assert first["id"] not in [hit["id"] for hit in json.loads(answer.stdout)["hits"]]
            assert f"1 of the URLs that were written are in no document of {written.index!r} any more" in answer.stderr
            assert first["url"] in answer.stderr
            assert json.loads(answer.stdout)["unfound_urls"] == [first["url"]]
        if open_engines(client, written.index).plugin:
            fused = searched(cluster_url, written, "--engine", "tome-rrf", "--json", "the cat")
            assert json.loads(fused.stdout)["unfound_urls"] == [first["url"]]
            assert first["url"] in fused.stderr
        filtered = searched(cluster_url, written, "--json", "--filter", "url=https://zoo.org/none", "the cat")
        assert json.loads(filtered.stdout)["hits"] == [] and "any more" not in filtered.stderr
        assert "unfound_urls" not in json.loads(filtered.stdout), "a filter leaves out others, too"
    finally:
        for hit in held:
            client.index(index=written.index, id=hit["_id"], body=hit["_source"], refresh=True)


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["tome", "tome-rrf"])
def test_urls_are_called_unfound_only_where_the_whole_index_answered(written: Written, client, name: str) -> None:
    engines = open_engines(client, written.index, urls=written.urls, tome=str(written.model))
    engine = engines.engine(name)
    body = engine.counted(engine.body("the cat", engines.page()))
    nothing = {"query": {"match_none": {}}, **{part: body[part] for part in ("aggs",) if part in body}}
    answer = client.search(index=written.index, body=nothing)
    told = engine.missing(body, answer, filtered=False)
    assert set(told.facts["unfound_urls"]) == set(written.by_id.values())
    assert "has one of the 4 URLs" in " ".join(told.warnings)
    late = engine.missing(body, {**answer, "timed_out": True}, filtered=False)
    assert "unfound_urls" not in late.facts and "URLs that were written" not in " ".join(late.warnings)


@pytest.mark.cluster
def test_an_application_searches_as_the_page_shows(written: Written, client) -> None:
    page = Path(__file__).parents[2] / "docs" / "queries.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [code for code in examples if "load_generative" in code]
    for shown, here in (
        ("models/tome", str(written.model)),
        ("urls/docs", str(written.urls)),
        ('index="docs"', f'index="{written.index}"'),
    ):
        assert shown in example
        example = example.replace(shown, here)
    names: dict[str, Any] = {"client": client}
    exec(example, names)
    shown_urls = {hit["_source"]["url"] for hit in names["hits"]}
    # In an index of passages ten hits may be of fewer documents.
    assert shown_urls == set(names["found"]) or (shown_urls < set(names["found"]) and "passages" in written.index)
    assert names["deleted"] == []


@pytest.mark.cluster
def test_generated_and_sparse_hits_are_fused_by_rank(written: Written, client) -> None:
    engines = open_engines(client, written.index, urls=written.urls, tome=str(written.model))
    assert engines.serves("tome")
    if not engines.plugin:
        assert not engines.serves("tome-rrf")
        return
    body = engines.body_of("tome-rrf")("the fish", 10)
    hits = client.search(index=written.index, body=body)["hits"]["hits"]
    documents = queries.best_passages(body, hits) if engines.meta.passages else [(hit["_id"], hit) for hit in hits]
    assert {id for id, _ in documents} == set(written.by_id)
    assert "score-ranker-processor" in json.dumps(body)
    if engines.meta.passages:
        return  # There a document's rank is that of its best passage.
    expected: dict[str, float] = {}
    for engine in ("sparse", "tome"):
        ranked = client.search(index=written.index, body=engines.body_of(engine)("the fish", 10))["hits"]["hits"]
        for rank, hit in enumerate(ranked, start=1):
            expected[hit["_id"]] = expected.get(hit["_id"], 0.0) + 1 / (60 + rank)
    assert [hit["_score"] for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True), rel=1e-4)
    assert [expected[hit["_id"]] for hit in hits] == pytest.approx([hit["_score"] for hit in hits], rel=1e-4)


@pytest.mark.cluster
def test_documents_whose_urls_were_numbered_are_found_by_their_ids(
    written: Written, cluster_url: str, client, tmp_path: Path
) -> None:
    model = tmp_path / "tome"
    shutil.copytree(written.model, model)
    write_settings(model, GenerativeSettings(number_urls=True), single_stage=True)
    loaded = load_generative(model)
    urls = loaded.index_urls([*((id, "https://zoo.org/all") for id in written.by_id), ("gone", "https://zoo.org/all")])
    urls.save(tmp_path / "urls")
    numbered = Written(written.index, model, tmp_path / "urls", written.by_id)
    answer = searched(cluster_url, numbered, "--json", "the cat")
    (documents,) = loaded.find_documents(["the cat"], urls, beams=10)
    expected = [urls.ids[row] for row, _ in documents]
    assert [hit["id"] for hit in json.loads(answer.stdout)["hits"]] == [id for id in expected if id != "gone"]
    assert "1 of the documents whose URLs were written are not in" in answer.stderr


@pytest.mark.cluster
def test_an_index_of_other_documents_is_told_of(written: Written, cluster_url: str, client) -> None:
    other = f"{written.index}-other"
    mappings = client.indices.get_mapping(index=written.index)[written.index]["mappings"]
    client.indices.create(index=other, body={"mappings": mappings})
    try:
        answer = searched(cluster_url, written._replace(index=other), "the cat")
        assert f"no document of {other!r} has one of the 4 URLs that were written" in answer.stderr
        assert "any more" not in answer.stderr
    finally:
        client.indices.delete(index=other)


@pytest.mark.cluster
def test_scores_are_the_same_with_more_beams_and_an_empty_query_is_told_of(written: Written, cluster_url: str) -> None:
    answers = [json.loads(searched(cluster_url, written, "--json", "--beams", n, "the cat").stdout) for n in "124"]
    firsts = [answer["hits"][0] for answer in answers if answer["hits"][0]["id"] == answers[-1]["hits"][0]["id"]]
    assert len(firsts) > 1 and len({first["score"] for first in firsts}) == 1
    assert all(0 < hit["score"] <= 1 for hit in answers[-1]["hits"])
    assert "the query is empty" in searched(cluster_url, written, "").stderr


@pytest.mark.cluster
def test_beams_are_how_many_can_be_found(written: Written, cluster_url: str) -> None:
    answer = searched(cluster_url, written, "--json", "--beams", "1", "the cat")
    assert len(json.loads(answer.stdout)["hits"]) == 1
    assert "at most 1 URLs are written (--beams)" in answer.stderr
    assert "at most" not in searched(cluster_url, written, "--json", "--beams", "10", "the cat").stderr


@pytest.mark.cluster
def test_without_urls_the_engine_is_not_served_and_says_what_it_needs(written: Written, client) -> None:
    engines = open_engines(client, written.index)
    assert not engines.serves("tome")
    with pytest.raises(ModelError, match=r"searches by the URLs of a corpus\n.*--urls DIR"):
        engines.body_of("tome")


def test_what_the_index_lacks_is_known_as_far_as_the_page_tells() -> None:
    body = queries.listed({"a": -1.0, "b": -2.0, "c": -3.0}, field="url", size=2)
    assert queries.unfound_urls(body, ["a", "b"]) == []
    assert queries.unfound_urls(body, ["b", "c"]) == ["a"]
    assert queries.unfound_urls(body, ["b"]) == ["a", "c"]
    assert queries.unfound_urls(body, []) == ["a", "b", "c"]
    assert queries.unfound_urls(queries.listed({}, field="url"), []) == []
