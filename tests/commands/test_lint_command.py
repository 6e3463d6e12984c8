"""`osn lint`, and what `osn search` warns of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from osn_command import osn_command as osn

from opensearch_neural import queries


def test_a_body_is_read_from_standard_input_and_the_status_tells(tmp_path: Path) -> None:
    wrong = osn("lint", input=json.dumps(queries.neural_sparse({"rain": 65.0})))
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("rejected: query.neural_sparse.sparse.query_tokens.rain: the weight 65.0 is outside")
    fine = tmp_path / "body.json"
    fine.write_text(json.dumps(queries.neural_sparse({"rain": 6.0})))
    done = osn("lint", str(fine))
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", "")
    as_json = osn("lint", "--json", "-", input='{"query": {"match_all": {}}, "size": -1}')
    assert [finding["rule"] for finding in json.loads(as_json.stdout)] == ["page"]
    misspelled = osn("lint", input='{"querry": {"match_all": {}}}')
    assert misspelled.returncode == 1
    assert misspelled.stdout == "rejected: querry: OpenSearch knows no member 'querry' [member]\n  write query\n"


PRODUCTION = """{"query": {"match": {"title": {{query}}}}, "size": {{size}}, "from": "{{from}}", "rescore":
    {"window_size": 10, "query": {"rescore_query": {"match_phrase": {"title": "{{{query}}}"}}}}}"""


def test_a_template_is_checked_with_its_placeholders_filled() -> None:
    done = osn("lint", input=PRODUCTION)
    assert (done.returncode, done.stdout) == (0, "nothing found\n"), done.stderr
    written_out = osn("lint", input=PRODUCTION.replace("{{size}}", "24"))
    assert (
        written_out.returncode == 1 and "[rescore-window]" in written_out.stdout
    )  # 24 hits are asked for, 10 rescored
    unknown = osn("lint", input=PRODUCTION.replace("{{size}}", "{{rows}}"))
    assert unknown.returncode == 1 and "standard input: {{rows}} is not a known placeholder" in unknown.stderr
    text = osn("lint", input='{"query": {"match": {"title": "{{size}} of Mustache"}}}')
    assert (text.returncode, text.stdout) == (
        0,
        "nothing found\n",
    )  # without {{query}} it is a body, and braces are text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": {"match_all": {}}\n,}', "standard input, line 2, column 2: not valid JSON"),
        ("", "line 1, column 1: not valid JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"query": ' + '{"bool": {"must": ' * 400 + '{"match_all": {}}' + "}}" * 400 + "}", "nested deeper"),
        ('{"query": {"match_all": {}}, "query": {}}', "standard input: the member 'query' occurs twice in an object"),
        ('{"query": {"term": {"a": NaN}}}', "standard input: NaN is not JSON"),
        ('{"size": ' + "1" * 5000 + "}", "standard input: not valid JSON (Exceeds the limit"),
        (
            '{"query": {"match": {"title": "x"}}, "size": {{rows}}}',
            "standard input: {{rows}} is not a known placeholder",
        ),
    ],
)
def test_what_is_no_json_is_named_by_line(text: str, message: str) -> None:
    done = osn("lint", input=text)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_the_cluster_is_asked_for_what_the_index_allows(client, cluster_url: str, index_name: str) -> None:
    settings = {"number_of_replicas": 0, "index.max_result_window": 50}
    mapping = {"properties": {"sparse": {"type": "rank_features"}, "text": {"type": "text"}}}
    client.indices.create(index=index_name, body={"settings": settings, "mappings": mapping})
    body = json.dumps({"query": {"neural_sparse": {"text": {"query_tokens": {"rain": 1.0}}}}, "size": 60})
    assert osn("lint", input=body).returncode == 0
    done = osn("lint", "--url", cluster_url, "--index", index_name, "--json", input=body)
    assert done.returncode == 1
    assert {finding["rule"] for finding in json.loads(done.stdout)} == {"page", "field"}
    absent = osn("lint", "--url", cluster_url, "--index", f"{index_name}-absent", input=body)
    assert absent.returncode == 1
    assert f"there is no index '{index_name}-absent'" in absent.stderr
    pattern = osn("lint", "--url", cluster_url, "--index", f"{index_name}-absent-*", input=body)
    assert (pattern.returncode, "Traceback" in pattern.stderr) == (1, False)
    assert f"there is no index '{index_name}-absent-*'" in pattern.stderr


@pytest.mark.cluster
def test_osn_search_warns_of_the_body_that_it_sends(client, cluster_url: str, index_name: str, tmp_path: Path) -> None:
    from ingest.corpus import CorpusSource
    from ingest.job import Job, run_job
    from ingest.settings import Models, NewIndex

    corpus = tmp_path / "docs.jsonl"
    corpus.write_text('{"_id": "1", "text": "a rainbow in the sky"}\n')
    job = Job(
        CorpusSource(str(corpus)),
        index=index_name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=tmp_path / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    quiet = osn("search", "--url", cluster_url, "--index", index_name, "rainbow")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    warned = osn("search", "--url", cluster_url, "--index", index_name, "--engine", "bm25", "is it the")
    assert warned.returncode == 0
    assert "warning: bends: query.match: no term is left of 'is it the': it finds nothing" in warned.stderr
    assert "warning" not in warned.stdout
