"""Click logs become judgements: what users looked at is told from what they liked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opensearch_neural.corpus.judgements import JudgedQueries
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.query_segments import read_frequencies
from trainers.data.clicks.from_clicks import from_clicks, is_test, query_id
from trainers.data.clicks.logs import read_rows, same_words
from trainers.data.loading import load_training

DOCUMENTS = {"good": "a bow of seven colours", "bad": "how to boil rice", "new": "rain"}
# "good" stood second and is clicked half as often there as first; "bad" is clicked because it stands first.
ROWS = [("Rainbow", "bad", 1, 20, 200), ("rainbow ", "good", 2, 60, 200), ("rainbow", "good", 1, 60, 100)]
ROWS += [("rainbow", "bad", 2, 5, 100), ("rainbow", "new", 3, 1, 4), ("sun", "good", 1, 0, 50)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = ["query,doc_id,position,clicked"]
    for query, document, place, clicks, shown in ROWS:
        lines += [f'"{query}",{document},{place},{int(at < clicks)}' for at in range(shown)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    corpus = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in DOCUMENTS.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(corpus))
    return tmp_path / "log.csv"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(from_clicks, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_a_log_becomes_judgements_and_pairs_that_the_trainers_read(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(log, "--output", out, "--corpus", tmp_path / "corpus.jsonl", "--test-share", 0)
    judged = JudgedQueries.of_folder(out, "train")
    assert list(judged.queries.values()) == ["rainbow"], "case and blanks make no other query; sun has no click"
    grades = judged.qrels[query_id("rainbow")]
    assert grades == pytest.approx({"good": 0.6, "bad": 0.1}, abs=0.01), "as often as at the first place"
    assert read_frequencies(out / "queries.jsonl") == {query_id("rainbow"): 300}
    places = (out / "propensities.tsv").read_text().splitlines()
    assert places[1] == "1\t1.000000" and float(places[2].split("\t")[1]) == pytest.approx(0.5, abs=0.02)
    assert (
        "| 2     |      0.5" in result.stdout
        and "1 documents of a query were shown fewer than 10 times" in result.stdout
    )
    (example,) = load_training(out / "pairs.jsonl").examples
    assert example.query == "rainbow" and len(example.positives) == 1
    (pair,) = map(json.loads, (out / "pairs.jsonl").read_text().splitlines())
    assert pair == {"query": "rainbow", "positive": DOCUMENTS["good"], "negatives": []}
    run(log, "--output", out, "--test-share", 1)
    assert not (out / "pairs.jsonl").exists(), "its query is in the test part now"
    again = tmp_path / "again"
    run(log, "--output", again, "--propensities", out / "propensities.tsv", "--test-share", 1)
    held_back = JudgedQueries.of_folder(again, "test").qrels[query_id("rainbow")]
    assert held_back == pytest.approx(grades, abs=0.005)
    assert (again / "qrels" / "train.tsv").read_text() == "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("corpus", "told"),
    [
        ("opensearch:shop", "opensearch:shop is an index, and only files are read"),
        ("missing.jsonl", "missing.jsonl does not exist"),
        ("other.jsonl", "other.jsonl has none of the 2 documents"),
    ],
)
def test_a_corpus_that_cannot_serve_is_refused_before_anything_is_written(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.jsonl").write_text('{"_id": "another", "text": "t"}\n')
    with pytest.raises(InputError, match=told):
        run(log, "--output", "out", "--corpus", corpus)
    assert not Path("out").exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_a_query_is_warned_of_unless_it_was_asked_for(log: Path, tmp_path: Path, part: str) -> None:
    share = next(share / 100 for share in range(1, 100) if is_test("rainbow", share / 100))
    chosen = share if part == "train" else share - 0.01
    result = run(log, "--output", tmp_path / "out", "--test-share", chosen)
    assert f"warning: none of the 1 queries is in the {part} part (qrels/{part}.tsv)" in result.stderr
    assert (tmp_path / "out" / "qrels" / f"{part}.tsv").read_text() == "query-id\tcorpus-id\tscore\n"
    result = run(log, "--output", tmp_path / "out", "--test-share", {"train": 1, "test": 0}[part])
    assert "none of the" not in result.stderr


def test_a_quotation_mark_in_a_tsv_is_a_letter_and_swallows_no_impression(tmp_path: Path) -> None:
    """As people type them into a search box; the second row was a part of the first one's query."""
    header = "query\tdocument\tposition\tclicked\n"
    path = tmp_path / "log.tsv"
    path.write_text(header + '"new york" hotels\ta\t1\t0\n"red shoes"\ta\t1\t0\n"open\ta\t1\t1\nend"\tb\t2\t0\n')
    queries = [query for query, _, _ in read_rows(path, 10).shown]
    assert queries == ['"new york" hotels', '"red shoes"', '"open', 'end"']
    path.write_text('"query"\t"document"\t"position"\t"clicked"\n"a ""b"""\t"a"\t"1"\t"0"\n')
    assert list(read_rows(path, 10).shown) == [('a "b"', "a", 1)], "with a header in quotation marks it is a csv's"


def ubi(folder: Path) -> tuple[Path, Path]:
    """The same searches as UBI has them: impressions logged for some searches, ids of hits for all."""
    queries, events = [], []
    for at in range(60):
        order = ["good", "bad"] if at % 3 == 0 else ["bad", "good"]
        queries.append({"query_id": f"s{at}", "user_query": "rainbow", "query_response_hit_ids": order})
        if at % 2:
            attributes: dict[str, Any] = {"object": {"object_id": "good"}, "position": {"ordinal": 9}}
            events.append({"action_name": "click", "query_id": f"s{at}", "event_attributes": attributes})
            events.append({"action_name": "impression", "query_id": f"s{at}", "event_attributes": attributes})
    events.append({"action_name": "click", "query_id": "unknown", "event_attributes": {"object": {"object_id": "x"}}})
    events.append({"action_name": "page_exit"})
    for name, records in (("queries", queries), ("events", events)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "queries.jsonl", folder / "events.jsonl"


def test_ubi_is_read_from_files_and_from_the_cluster(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    queries, events = ubi(tmp_path)
    result = run("--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "files")
    # 30 searches with an impression of "good" alone, 30 with both documents shown.
    assert "60 searches, 90 impressions, 30 clicks" in result.stdout
    assert "left out: 1 events of an unknown query_id" in result.stderr
    assert "warning: fewer than 100 clicks at place 1, 2: propensities and grades are rough there" in result.stderr
    for name, file in (("queries", queries), ("events", events)):
        body = "".join(f'{{"index": {{}}}}\n{line}\n' for line in file.read_text().splitlines())
        client.bulk(index=f"{index_name}-{name}", body=body, refresh=True)
    from_cluster = [
        "--ubi-queries",
        f"opensearch:{index_name}-queries",
        "--ubi-events",
        f"opensearch:{index_name}-events",
    ]
    run(*from_cluster, "--url", cluster_url, "--output", tmp_path / "cluster")
    for name in ("queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "propensities.tsv"):
        assert (tmp_path / "cluster" / name).read_text() == (tmp_path / "files" / name).read_text()


def test_searches_of_ubi_whose_shown_documents_are_not_logged_are_left_out(tmp_path: Path) -> None:
    """Their clicks alone would say that every document that was shown was clicked."""
    queries, events = ubi(tmp_path)
    with queries.open("a") as asked, events.open("a") as clicked:
        for at in range(60):
            attributes = {"object": {"object_id": "bad"}, "position": {"ordinal": 1}}
            asked.write(json.dumps({"query_id": f"t{at}", "user_query": "rainbow"}) + "\n")
            clicked.write(
                json.dumps({"action_name": "click", "query_id": f"t{at}", "event_attributes": attributes}) + "\n"
            )
    result = run("--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "out")
    assert "120 searches, 90 impressions, 30 clicks" in result.stdout
    assert "left out: 60 searches with clicks, whose shown documents are not logged" in result.stderr
    alone = [line for line in events.read_text().splitlines() if '"t' in line]
    events.write_text("\n".join(alone) + "\n")
    with pytest.raises(InputError, match="the log has no clicks") as raised:
        run("--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "out")
    assert "60 searches with clicks" in (raised.value.remedy or "")


def test_a_search_of_ubi_without_a_query_is_left_out(tmp_path: Path) -> None:
    """As of a page of a category: it refused the whole log."""
    queries, events = ubi(tmp_path)
    with queries.open("a") as file:
        file.write('{"query_id": "t0"}\n{"query_id": "t1", "user_query": null, "query_response_hit_ids": ["good"]}\n')
    result = run("--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "out")
    assert "60 searches, 90 impressions, 30 clicks" in result.stdout
    assert "left out: 2 searches without words" in result.stderr


@pytest.mark.parametrize(
    "event",
    [
        {"query_id": "s1", "event_attributes": "a text"},
        {"query_id": "s1", "event_attributes": {"object": "good"}},
        {"query_id": "s1", "event_attributes": {"object": {"object_id": "x"}, "position": 3}},
        {"query_id": ["s1"], "event_attributes": {"object": {"object_id": "good"}}},
    ],
)
def test_an_event_of_another_shape_is_left_out(tmp_path: Path, event: dict[str, Any]) -> None:
    queries, events = ubi(tmp_path)
    with events.open("a") as file:
        file.write(json.dumps({"action_name": "click", **event}) + "\n")
    result = run("--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "out")
    assert "60 searches, 90 impressions, 30 clicks" in result.stdout
    assert sum(int(line.split()[2]) for line in result.stderr.splitlines() if line.startswith("left out: ")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,doc\na,b\n", "line 1: no column position or rank or place"),
        ("query,doc,rank,clicked\na,b,0,1\n", "line 2: the position must be a number from 1, found '0'"),
        (f"query,doc,rank,clicked\na,b,{'9' * 5000},1\n", "line 2: the position must be a number from 1, found '999"),
        ("query,doc,rank,clicked\na,b,1,maybe\n", "line 2: clicked must be 0 or 1, found 'maybe'"),
        ("query,doc,rank,clicked\na,b,1\n", "line 2: expected 4 columns, found 3"),
        ("query,doc,rank,clicked\n,b,1,1\n", "line 2: the query or the document is empty"),
        ("query,doc,rank,clicked\na,b,1,0\n", "the log has no clicks"),
        ("query,doc,rank,clicked\na,b,1,1\na,c,2,0\n", "no document was shown at the first and at another place"),
        ("query,doc,rank,clicked\na,b,2,1\na,c,3,0\n", "no document was shown at the first and at another place"),
        ("query,doc,rank,clicked\na,b,1,1\n", "no query has a clicked document that was shown 10 times"),
        ("query,doc,rank,clicked\n" + 10 * "a,b,1,1\na,b,2,1\n", "every shown document was clicked"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError) as raised:
        run(tmp_path / "log.csv", "--output", tmp_path / "out")
    assert message in raised.value.message
    assert not (tmp_path / "out").exists()


def test_what_is_no_ubi_is_named(tmp_path: Path) -> None:
    queries, events = ubi(tmp_path)
    events.write_text('{"query_id": "s1"}\n')
    asked = ["--ubi-queries", queries, "--ubi-events", events, "--output", tmp_path / "out"]
    with pytest.raises(InputError, match=r"events\.jsonl, line 1: expected action_name"):
        run(*asked)
    queries.write_text('{"query_id": "s1", "user_query": "x", "query_response_hit_ids": "a"}\n')
    with pytest.raises(InputError, match=r"queries\.jsonl, line 1: query_response_hit_ids must be a list"):
        run(*asked)
    result = CliRunner().invoke(from_clicks, ["--output", str(tmp_path / "out")])
    assert result.exit_code == 2 and "name one log" in result.output


def test_a_document_whose_id_judgements_cannot_hold_is_left_out(log: Path, tmp_path: Path) -> None:
    rows = "".join(f'rainbow,"{document}",1,1\n' for document in ("a\tb", "a\nb", "a\rb"))
    log.write_text(log.read_text() + rows)
    result = run(log, "--output", tmp_path / "out", "--test-share", 0)
    assert "left out: 3 impressions of a document whose id a file of judgements cannot hold" in result.stderr
    (grades,) = JudgedQueries.of_folder(tmp_path / "out", "train").qrels.values()
    assert grades.keys() == {"good", "bad"}


def test_a_query_keeps_the_letters_that_an_index_finds_it_by() -> None:
    assert same_words(" Große  Straße") == "große straße"
    assert same_words("ΛΌΓΟΣ") == same_words("λόγος") == "λόγος"


def test_a_query_stays_in_its_part_from_log_to_log() -> None:
    parts = [is_test(f"query {at}", 0.3) for at in range(1000)]
    assert 250 < sum(parts) < 350
    assert all(is_test(f"query {at}", 0.5) for at, part in enumerate(parts) if part)


def test_queries_of_the_same_words_are_in_the_same_part() -> None:
    """`osn data leaks` would find one in the other."""
    for at in range(100):
        assert len({is_test(query, 0.5) for query in (f"wi fi {at}", f"wi-fi {at}", f"wi fi {at}?")}) == 1
