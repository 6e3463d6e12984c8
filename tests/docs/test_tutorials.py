"""The tutorials, command by command as they stand there, in an empty folder and on a real cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
from forked_osn import forked_osn

from opensearch_neural.engines import open_engines

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

pytestmark = pytest.mark.cluster

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The shell blocks of a page."""
    return BLOCK.findall((TUTORIALS / page).read_text(encoding="utf-8"))


def outputs(page: str) -> list[str]:
    """What a page shows as output: paragraphs that are indented by four."""
    text = BLOCK.sub("", (TUTORIALS / page).read_text(encoding="utf-8"))
    return ["\n".join(line[4:] for line in part.splitlines()) for part in text.split("\n\n") if part.startswith("    ")]


Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def programs() -> Iterator[str]:
    """The PATH of the shells. Its `python` is that of the tests."""
    with forked_osn() as folder:
        yield os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def shell(programs: str, cluster_url: str, tmp_path: Path) -> Shell:
    """What a script prints, in the test's folder."""
    environment = os.environ | {"PATH": programs, "OSN_URL": cluster_url, "OSN_HOME": str(tmp_path / "home")}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    return run


def judged(folder: Path, documents: dict[str, str], questions: dict[str, tuple[str, str]]) -> None:
    """`my-beir-folder`: {id: text} and {id: (question, the document that answers it)}."""
    (folder / "qrels").mkdir(parents=True)
    corpus = "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in documents.items())
    (folder / "corpus.jsonl").write_text(corpus)
    queries = "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, (text, _) in questions.items())
    (folder / "queries.jsonl").write_text(queries)
    rows = "".join(f"{id}\t{document}\t1\n" for id, (_, document) in questions.items())
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")


@pytest.mark.skipif(find_spec("cognition") is None, reason="the model of the page needs Python 3.11")
def test_a_first_search_finds_and_explains_what_the_page_shows(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    install, write, search, measure = commands("first-search.md")
    assert "pip install" in install and "osn node start" in install
    documents = {"attack": "Blood flow to a part of the heart stops.", "refund": "Returned goods are paid back."}
    judged(tmp_path / "my-beir-folder", documents, {"q1": ("heart attack", "attack"), "q2": ("money back", "refund")})
    named = [part.replace("--index first", f"--index {index_name}") for part in (write, search, measure)]
    named[2] = named[2].replace("--index mine", f"--index {index_name}-mine")
    written, found = outputs("first-search.md")
    printed = shell(named[0])
    assert printed.split(", verified")[0] == written.split(", verified")[0].replace("in first", f"in {index_name}")
    printed = shell(named[1])
    assert found.strip() in printed
    filtered = re.search(r"`(osn search [^`]*--filter[^`]*)`", (TUTORIALS / "first-search.md").read_text())
    assert filtered is not None
    assert "Trout" in shell(filtered[1].replace("--index first", f"--index {index_name}"))
    assert "bm25-sparse" in shell(named[2])


def test_documents_out_of_an_index_that_is_there(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    texts = {f"d{n}": f"the rainbow number {n} has colours" for n in range(50)} | {"trout": "a fish of rivers"}
    lines = []
    for id, text in texts.items():
        lines += [{"index": {"_id": id}}, {"title": id, "body": text, "lang": "en"}]
    articles = f"{index_name}-articles"
    client.bulk(index=articles, body=lines, refresh=True)
    judged(tmp_path / "my-beir-folder", texts, {"q1": ("fish in a river", "trout")})
    first, look, whole, later = commands("existing-index.md")
    connect, password, *rest = first.splitlines()
    assert connect.startswith("export OSN_URL=") and password.startswith("read -rs OSN_PASSWORD ")
    script = "\n".join([*rest, look, whole]).replace("articles", f"{index_name}-articles")
    printed = shell(script.replace("MODEL", "lexical"))
    assert f"51 documents in {articles}-sample, verified" in printed
    assert f"{articles}-pilot now names" in printed
    written, _, planned = outputs("existing-index.md")
    assert re.fullmatch(r"10000 documents in articles-sample, verified \(\d+\.\d s, \d+/s\)", written)
    shown = re.findall(r"^  \w[\w ]*?(?=  )|^300,000 documents, from ", planned, re.MULTILINE)
    assert len(shown) == 5 and all(part in printed for part in shown)
    assert "bm25-sparse" in printed.split("now names")[1]
    assert client.count(index=articles)["count"] == 51

    changed = {"title": "Salmon", "body": "a fish of the sea", "changed": "2026-03-14T10:00:00Z"}
    client.index(index=articles, id="salmon", body=changed, refresh=True)
    client.delete(index=articles, id="d7", refresh=True)
    (request,) = re.findall(
        r"^POST _aliases\n(.*?)^```", (TUTORIALS / "existing-index.md").read_text(), re.DOTALL | re.MULTILINE
    )
    client.indices.update_aliases(body=json.loads(request.replace('"articles', f'"{articles}')))
    printed = shell(later.replace("articles", articles))
    assert f"1 documents in {articles}-pilot" in printed
    assert client.count(index=f"{articles}-pilot")["count"] == 52
    (hit,) = client.search(index=f"{articles}-pilot", body={"query": {"match": {"text": "sea"}}})["hits"]["hits"]
    assert hit["_id"] == "salmon"
    everything = f"osn ingest opensearch:{articles} --index {articles}-pilot --remove-others"
    assert f"51 documents in {articles}-pilot" in shell(everything)
    assert client.count(index=f"{articles}-pilot")["count"] == 51


def test_an_application_keeps_its_query_and_adds_what_the_model_says(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    page = "../how-to/production-query.md"
    text = (TUTORIALS / page).read_text(encoding="utf-8").replace("articles", f"{index_name}-articles")
    lines = []
    for number in range(40):
        each = {
            "title": f"Page {number}",
            "body": "a rainbow in the rain",
            "published": "2026-01-01",
            "brand": "Red Brand",
            "sku": f"SKU-{number}",
        }
        lines += [{"index": {"_id": f"d{number}"}}, {**each, "public": number % 2 == 0}]
    folded: dict[str, Any] = {"normalizer": {"folded": {"type": "custom", "filter": ["lowercase"]}}}
    fields = {
        "title": {"type": "text", "copy_to": "all"},
        "all": {"type": "text"},
        "sku": {"type": "keyword", "normalizer": "folded", "copy_to": "all"},
    }
    client.indices.create(
        index=f"{index_name}-articles",
        body={"settings": {"analysis": folded}, "mappings": {"properties": fields}},
    )
    client.bulk(index=f"{index_name}-articles", body=lines, refresh=True)
    template = re.search(r"^   ```json\n(.*?)^   ```$", text, re.DOTALL | re.MULTILINE)
    request = re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    measure = re.findall(r"^   ```sh\n(.*?)^   ```$", text, re.DOTALL | re.MULTILINE)[1]
    assert template is not None and request is not None
    (tmp_path / "production.json").write_text(template[1])
    (tmp_path / "request.py").write_text(request[1])
    (tmp_path / "queries.tsv").write_text("q1\trainbow\nq2\train\n")
    (tmp_path / "judged.qrels").write_text("q1 0 d2 1\nq2 0 d4 1\n")
    ingest, old_mapping, weights = BLOCK.findall(text)
    shell(ingest.replace("MODEL", "lexical"))
    shell(measure)
    printed = shell(weights)
    assert "weight-0.8" in printed and "difference to production.top10" in printed
    runs = {weight: (tmp_path / f"weight-{weight}.trec").read_text().splitlines() for weight in ("0.8", "3.2")}
    for run in runs.values():
        assert len(run) == 20  # found by `body`, which is an alias
        assert all(int(line.split()[2][1:]) % 2 == 0 for line in run)  # and filtered
    assert float(runs["3.2"][0].split()[4]) > float(runs["0.8"][0].split()[4])
    brand = {"query": {"match": {"brand": "red"}}, "aggs": {"brands": {"terms": {"field": "brand.keyword"}}}}

    def brands(index: str) -> list[dict[str, Any]]:
        buckets: list[dict[str, Any]] = client.search(index=index, body=brand)["aggregations"]["brands"]["buckets"]
        return buckets

    assert brands(f"{index_name}-articles-pilot") == [{"key": "Red Brand", "doc_count": 40}]
    if which("jq") is None or which("curl") is None:
        return
    whole = f"{index_name}-articles-pilot-whole"
    try:
        assert '"acknowledged":true' in shell(old_mapping.replace('-u "$OSN_USER" ', ""))
        build = f"osn ingest opensearch:{index_name}-articles --index {whole} --replicas 0 --mapping mapping.json 2>&1"
        told = shell(build)
    finally:
        client.indices.delete_index_template(name=f"{index_name}-articles-pilot")
    assert "fields of" in told and ": body.keyword (called text.keyword there);" in told
    assert brands(whole) == [{"key": "Red Brand", "doc_count": 40}]
    for query in ({"match": {"body": "rainbow"}}, {"match": {"all": "rainbow page"}}, {"prefix": {"sku": "Sku"}}):
        assert client.count(index=whole, body={"query": query})["count"] == 40, query


def test_a_weekly_build_catches_up_before_it_serves(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    text = (TUTORIALS / "../how-to/weekly-reindex.md").read_text(encoding="utf-8")
    build, catch_up, look, swap, tidy = BLOCK.findall(text.replace("products", index_name).replace("MODEL", "lexical"))

    def ids() -> set[str]:
        client.indices.refresh(index=index_name)
        return {hit["_id"] for hit in client.search(index=index_name, body={"size": 99})["hits"]["hits"]}

    def dump(name: str, ids: set[str]) -> None:
        texts = {id: "what causes a rainbow" if id == "d1" else f"colours of number {id}" for id in sorted(ids)}
        (tmp_path / name).write_text(
            "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items())
        )

    old = {f"d{n}" for n in range(20)}
    dump("dump.jsonl", old)
    shell(build.replace("--no-swap", ""))
    for week, gone in (("a", "d19"), ("b", "d18")):
        held = ids()
        dump("dump.jsonl", held)
        dump("changed.jsonl", {week})
        (tmp_path / "deleted.txt").write_text(f"{gone}\n{week}\n")  # the document of the week was made again
        shell(build)
        shell(catch_up)
        named, _ = catch_up.split("\n", 1)
        looked = shell(f"{named}\n{look}")
        assert "passes the checks" in looked and "20 documents, before 20 (100.0%)" in looked
        assert ids() == held, "the alias names the old index"
        swapped = shell(f"{named}\n{swap}")
        assert swapped.partition("now names ")[2].split(",")[0] in looked
        assert ids() == held - {gone} | {week}, swapped
        tidied = shell(tidy)
    assert "nothing to delete" not in tidied and len(client.indices.get(index=f"{index_name}-*")) == 2


def test_an_analyzer_of_ones_own_comes_by_an_index_template(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    text = (TUTORIALS / "../how-to/production-query.md").read_text(encoding="utf-8").replace("articles", index_name)
    template, _ = re.findall(r"^PUT _index_template/\S+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (named,) = re.findall(r"`(--analyzer \S+)`", text)
    (tmp_path / "docs.jsonl").write_text(
        '{"_id": "rain", "text": "A bow after the rain."}\n{"_id": "sun", "text": "The sun shines."}\n'
    )
    client.indices.put_index_template(name=index_name, body=json.loads(template))
    try:
        shell(f"osn ingest docs.jsonl --alias {index_name}-pilot --sparse lexical {named}")
        assert "1." in shell(f"osn search --index {index_name}-pilot 'arcs'")
        for analyzer, found in (("ours", 1), ("whitespace", 0)):  # a query may name another one
            query = {"match": {"contents": {"query": "Arcs", "analyzer": analyzer}}}
            assert len(client.search(index=f"{index_name}-pilot", body={"query": query})["hits"]["hits"]) == found
    finally:
        client.indices.delete_index_template(name=index_name)


def test_synonyms_of_queries_alone_change_without_a_new_build(
    shell: Shell, client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    """Before, `osn` mapped the fields without a search analyzer, whatever the template said."""
    text = (TUTORIALS / "../how-to/production-query.md").read_text(encoding="utf-8").replace("articles", index_name)
    _, template = re.findall(r"^PUT _index_template/\S+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (named,) = re.findall(r"`(--search-analyzer \S+)`", text)
    change = re.compile(r"^POST \S+/_close\nPUT \S+/_settings\n(.*?)^POST \S+/_open\n```", re.DOTALL | re.MULTILINE)
    (settings,) = change.findall(text)
    (tmp_path / "docs.jsonl").write_text(
        '{"_id": "rain", "text": "A bow after the rain."}\n{"_id": "sun", "text": "The sun shines."}\n'
    )
    pilot, build = f"{index_name}-pilot", f"osn ingest docs.jsonl --alias {index_name}-pilot --sparse lexical"

    def found(words: str) -> list[str]:
        body = open_engines(client, pilot).body("bm25", words)
        return [hit["_id"] for hit in client.search(index=pilot, body=body)["hits"]["hits"]]

    client.indices.put_index_template(name=index_name, body=json.loads(template))
    try:
        shell(f"{build} {named}")
        assert (found("arc"), found("bows"), found("arch")) == (["rain"], ["rain"], [])
        client.indices.close(index=pilot)
        client.indices.put_settings(index=pilot, body=json.loads(settings))
        client.indices.open(index=pilot)
        client.cluster.health(index=pilot, wait_for_status="yellow")
        assert (found("arc"), found("arch")) == (["rain"], ["rain"])
        refused = f"! osn ingest docs.jsonl --index {pilot} --search-analyzer standard 2>&1"
        assert "--search-analyzer standard (it has in_queries)" in shell(refused)
        shell(f"osn ingest docs.jsonl --index {pilot} {named}")
        refused = f"! {build} --restart {named.replace('search-', '')} 2>&1"
        assert "not allowed to run in index time mode" in shell(refused)
    finally:
        client.indices.delete_index_template(name=index_name)
