"""`osn eval` of what others made: run files, production's own query on an index of its own, judgements without a corpus."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import opensearch_neural
from opensearch_neural.commands.evaluate import evaluate
from opensearch_neural.errors import ClusterError, InputError, MissingExtra, ModelError
from opensearch_neural.evaluation.query_segments import by_frequency, read_frequencies, read_query_values
from opensearch_neural.evaluation.results import Row, Summary
from opensearch_neural.evaluation.run_files import read_run
from opensearch_neural.retrievers.template import absent_count

QRELS = "q1 0 a 1\nq1 0 b 0\nq2 0 c 0.5\nq3 0 d 2\nq4 0 e 1\n"
BASE = "q1 Q0 b 1 9 x\nq1 Q0 a 2 8 x\nq2 Q0 c 1 5 x\nq4 Q0 new 1 2 x\n"
BETTER = "q1 Q0 a 1 9 x\nq1 Q0 b 2 8 x\nq2 Q0 c 1 5 x\nq3 Q0 d 1 3 x\nq4 Q0 e 1 2 x\nq9 Q0 e 1 2 x\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"base.trec": BASE, "better.trec": BETTER, "judged.qrels": QRELS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def runs(folder: Path, *options: str) -> Result:
    files = [str(folder / name) for name in ("base.trec", "better.trec", "judged.qrels")]
    arguments = ["runs", *files[:2], "--qrels", files[2], *options]
    return CliRunner().invoke(evaluate, arguments, catch_exceptions=False)


def values(result: Result) -> dict[tuple[str, str, str], Row]:
    rows = [Row(**row) for row in json.loads(result.stdout)["rows"]]
    return {(row.set, row.engine, row.column): row for row in rows}


def test_a_measure_may_have_several_parameters(folder: Path) -> None:
    rows = values(runs(folder, "--measures", "P(rel=2,judged_only=True)@1,RR@10,P(rel=2)@3", "--json"))
    measures = {measure for _, engine, measure in rows if engine == "base" and "@" in measure}
    assert measures == {"P(rel=2,judged_only=True)@1", "MRR@10", "P(rel=2)@3", "unjudged@10"}


def test_run_files_are_compared_without_a_cluster(folder: Path) -> None:
    result = runs(folder, "--measures", "RR@10", "--json")
    rows = values(result)
    # base: a at rank 2, c at rank 1, nothing for q3, an unjudged hit for q4.
    assert rows["judged", "base", "MRR@10"].value == (0.5 + 1 + 0 + 0) / 4
    assert rows["judged", "better", "MRR@10 - base"].value == 1 - 1.5 / 4
    assert rows["judged", "base", "unjudged@10"].value == 1 / 4
    assert rows["judged", "better", "unjudged@10"].value == 0
    assert rows["judged", "better", "detectable MRR@10 - base"].value > 0
    assert "better.trec: 1 queries have no judgement" in result.stderr
    assert "some grades are fractions: nDCG uses them as they are; RR@10 count any grade above 0" in result.stderr
    text = runs(folder).stdout
    assert "base found nothing for 1 queries; each counts as 0" in text
    assert "smallest difference that 4 queries detect with 80% probability" in text


def test_the_share_of_unjudged_hits_is_of_the_queries_that_are_measured(folder: Path) -> None:
    """q5 has no relevant document: no measure counts it, and so its hits do not count either."""
    (folder / "judged.qrels").write_text(QRELS + "q5 0 f 0\n")
    (folder / "base.trec").write_text(BASE + "".join(f"q5 Q0 new{at} {at} {9 - at} x\n" for at in range(1, 6)))
    unjudged = values(runs(folder, "--measures", "RR@10", "--json"))["judged", "base", "unjudged@10"]
    assert (unjudged.value, unjudged.n) == (1 / 4, 4)


def test_a_run_that_was_cut_is_named_with_the_measures_that_look_deeper(folder: Path) -> None:
    (folder / "base.trec").write_text(
        "".join(f"q{q} Q0 d{at} {at} {9 - at} x\n" for q in (1, 2, 3) for at in (1, 2, 3))
    )
    told = runs(folder, "--measures", "RR@3,R@100,AP").stderr
    assert f"{folder / 'base.trec'} ends at 3 hits a query: R@100, AP cannot count later hits" in told
    assert f"{folder / 'better.trec'} ends" not in told, "one query of four has two hits: there are no more"


def test_measures_that_do_not_count_every_grade_above_0_are_not_said_to(folder: Path) -> None:
    told = runs(folder, "--measures", "nDCG@10,P(rel=2)@5,Judged@10,R@5").stderr
    assert "nDCG uses them as they are; R@5 count any grade above 0 as relevant" in told


def test_queries_that_a_limit_leaves_out_are_not_called_unjudged(folder: Path) -> None:
    result = runs(folder, "--limit-queries", "2", "--measures", "RR@10")
    assert "judged: 2 runs, 2 queries" in result.stdout and "have no judgement" not in result.stderr


def test_a_limit_that_leaves_no_relevant_document_is_told_before_anything_is_searched(folder: Path) -> None:
    """Before, `osn eval --template` ended in an IndexError."""
    (folder / "judged.qrels").write_text("q0 0 a 0\n" + QRELS)
    (folder / "queries.tsv").write_text("q0\tsnow\nq1\train\n")
    (folder / "query.json").write_text(PRODUCTION)
    asked = ["--qrels", str(folder / "judged.qrels"), "--queries", str(folder / "queries.tsv"), "--limit-queries", "1"]
    asked += ["--index", "x", "--template", f"production={folder / 'query.json'}"]
    result = CliRunner().invoke(evaluate, asked)
    assert isinstance(result.exception, InputError)
    assert re.fullmatch(
        r"none of the first 1 queries of .*judged\.qrels has a relevant document", result.exception.message
    )


def test_judgements_may_come_through_a_pipe(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As from `--qrels <(zcat …)`. Before, all was measured, and then lost, because a pipe cannot be hashed."""
    end, writing = os.pipe()
    os.write(writing, QRELS.encode())
    os.close(writing)
    base = str(folder / "base.trec")
    asked = ["runs", base, "--qrels", f"/dev/fd/{end}", "--measures", "RR@10", "--json"]
    result = CliRunner().invoke(evaluate, asked, catch_exceptions=False)
    os.close(end)
    assert [data["name"] for data in json.loads(result.stdout)["data"]] == ["base.trec"]
    assert f"/dev/fd/{end} cannot be read again: the result has no hash of it" in caplog.text


def test_several_comparisons_are_corrected(folder: Path) -> None:
    (folder / "other.trec").write_text(BASE)
    files = [str(folder / f"{name}.trec") for name in ("base", "better", "other")]
    asked = ["runs", *files, "--qrels", str(folder / "judged.qrels"), "--measures", "RR@10", "--json"]
    result = CliRunner().invoke(evaluate, asked, catch_exceptions=False)
    rows = values(result)
    raw, corrected = (rows["judged", "better", f"{p}(MRR@10 - base)"].value for p in ("p", "Holm's p"))
    assert corrected == pytest.approx(min(1, 2 * raw)) and raw < corrected


def test_segments_have_rows_of_their_own(folder: Path) -> None:
    (folder / "segments.tsv").write_text("query-id\tsegment\nq1\tbrand\nq2\tbrand\nq3\tother\n")
    result = runs(folder, "--measures", "RR@10", "--segments", str(folder / "segments.tsv"), "--json")
    rows = values(result)
    assert rows["judged: brand", "base", "MRR@10"].value == 0.75 and rows["judged: brand", "base", "MRR@10"].n == 2
    assert rows["judged: other", "better", "MRR@10 - base"].value == 1.0
    assert "1 judged queries are in no segment" in result.stderr
    # brand: of base's b, a, and c none is unjudged; other: base has no hit, better's d is judged.
    assert rows["judged: brand", "base", "unjudged@10"].value == 0
    assert ("judged: other", "base", "unjudged@10") not in rows
    p = "p(MRR@10 - base)"
    raw = {name: rows[f"judged: {name}", "better", p].value for name in ("brand", "other")}
    corrected = {name: rows[f"judged: {name}", "better", f"Holm's {p}"].value for name in raw}
    assert corrected[min(raw, key=raw.__getitem__)] == pytest.approx(min(1, 2 * min(raw.values())))
    (folder / "searches.csv").write_text("q1,90\nq2,5\nq3,4\nq4,1\n")
    by_count = ["--segments", "head,tail", "--frequencies", str(folder / "searches.csv")]
    text = runs(folder, "--measures", "RR@10", *by_count).stdout
    assert "judged: head (1 queries)" in text and "judged: tail (3 queries)" in text
    assert "segments [95% interval], p corrected for 2 comparisons (Holm)" in text
    assert "Holm's p(MRR@10 - base)" in text[text.index("segments") :]


def test_a_segment_without_a_measured_query_is_named(folder: Path) -> None:
    (folder / "searches.csv").write_text("q1,900\nq2,5\nq3,4\nq4,1\n")
    result = runs(folder, "--segments", "head,torso,tail", "--frequencies", str(folder / "searches.csv"))
    assert f"warning: no query with a relevant document is in head ({folder / 'searches.csv'})" in result.stderr
    (folder / "segments.tsv").write_text("q1\tbrand\nq2\tbrand\nq3\tbrand\nq4\tbrand\nq7\tother\n")
    result = runs(folder, "--segments", str(folder / "segments.tsv"))
    assert "no query with a relevant document is in other" in result.stderr
    (folder / "segments.tsv").write_text("q1\tbrand\nq2\tother\nq3\tbrand\nq4\tbrand\n")
    assert "no query with" not in runs(folder, "--segments", str(folder / "segments.tsv")).stderr


def test_frequencies_and_names_that_split_nothing_are_refused(folder: Path) -> None:
    (folder / "searches.csv").write_text("q1,0\nq2,0\nq3,0\n")
    for names, what in (
        ("head,tail", "the frequency of every judged query is 0"),
        ("head,head", "names a segment twice"),
    ):
        with pytest.raises(InputError, match=what):
            runs(folder, "--segments", names, "--frequencies", str(folder / "searches.csv"))


def test_intervals_from_few_queries_are_said_to_be_too_narrow(folder: Path) -> None:
    told = "intervals from fewer than 20 queries"
    page = folder / "page.html"
    assert f"{told} (all) are too narrow" in runs(folder, "--measures", "RR@10", "--report", str(page)).stdout
    assert "Intervals from fewer than 20 queries (all)" in page.read_text() and "; go by p" in page.read_text()
    alone = ["runs", str(folder / "base.trec"), "--qrels", str(folder / "judged.qrels"), "--measures", "RR@10"]
    shown = CliRunner().invoke(evaluate, alone, catch_exceptions=False).stdout
    assert f"{told} (all) are too narrow" in shown and "go by p" not in shown, "there is no p of a single run"
    many = [f"m{at}" for at in range(20)]
    (folder / "judged.qrels").write_text("".join(f"{query} 0 a 1\n" for query in many))
    for name in ("base", "better"):
        hit = {"base": "b", "better": "a"}[name]
        (folder / f"{name}.trec").write_text("".join(f"{query} Q0 {hit} 1 1 x\n" for query in many))
    assert told not in runs(folder, "--measures", "RR@10").stdout
    (folder / "segments.tsv").write_text("".join(f"{query}\t{'ab'[at < 5]}\n" for at, query in enumerate(many)))
    shown = runs(folder, "--measures", "RR@10", "--segments", str(folder / "segments.tsv")).stdout
    assert f"{told} (b, a) are too narrow" in shown


def test_a_segment_is_named_even_if_it_is_the_only_one_with_judged_queries(folder: Path) -> None:
    (folder / "segments.tsv").write_text("q1\ttail\nq3\ttail\nq9\thead\n")
    table = runs(folder, "--measures", "RR@10", "--segments", str(folder / "segments.tsv")).stdout
    assert "| judged: tail (2 queries) |   base |" in table


def test_head_torso_and_tail_have_about_as_many_searches_each() -> None:
    frequencies = {"a": 40.0, "b": 30.0, "c": 12.0, "d": 10.0, "e": 8.0}
    assert by_frequency(frequencies, ["head", "torso", "tail"]) == {
        "a": "head", "b": "torso", "c": "tail", "d": "tail", "e": "tail",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--segments", "head,torso"], "needs the frequency of each query"),
        (["--segments", "no-such.tsv"], "is neither a file nor several names"),
        (["--baseline", "bm25"], "baseline 'bm25'"),
        (["--measures", "ERR@10"], "whole grades only"),
    ],
)
def test_what_cannot_be_compared_is_named(folder: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        runs(folder, *options)
    assert message in raised.value.message


def test_a_line_that_is_none_is_named_with_its_file(folder: Path) -> None:
    (folder / "better.trec").write_text(BETTER + "q1 Q0 z 3 high x\n")
    with pytest.raises(InputError, match=r"better\.trec, line 7: the score 'high' is not a finite number"):
        runs(folder)
    (folder / "better.trec").write_text("q77 Q0 z 1 1 x\n")
    with pytest.raises(InputError, match=r"better\.trec has hits for none of the 4 judged queries"):
        runs(folder)
    (folder / "segments.csv").write_text("query-id,segment\nq1\n")
    with pytest.raises(InputError, match=r"segments\.csv, line 2: expected a query id and its segment"):
        read_query_values(folder / "segments.csv", ["segment"])
    for line in (b"q\xe91,brand", b"q1\tbrand\tmore"):
        (folder / "segments.csv").write_bytes(b"query-id,segment\n" + line + b"\n")
        with pytest.raises(InputError, match=r"segments\.csv, line 2: "):
            read_query_values(folder / "segments.csv", ["segment"])
    for count in ("-1", "inf", "nan", "1_000", "many"):
        (folder / "searches.csv").write_text(f"query-id,count\nq2,5\nq1,{count}\n")
        with pytest.raises(InputError, match=rf"searches\.csv, line 3: the frequency of the query 'q1' .*'{count}'"):
            read_frequencies(folder / "searches.csv")


def test_judgements_come_from_one_place_and_options_stand_behind_the_subcommand(folder: Path) -> None:
    def refused(*arguments: str) -> str:
        result = CliRunner().invoke(evaluate, arguments)
        assert result.exit_code == 2
        return result.output

    run, qrels = str(folder / "base.trec"), str(folder / "judged.qrels")
    assert "give the judgements" in refused("runs", run)
    assert "write --seed after 'runs'" in refused("--seed", "3", "runs", run, "--qrels", qrels)
    assert "Missing option '--index'" in refused("--qrels", qrels)
    assert "--queries FILE" in refused("--index", "x", "--qrels", qrels)


def test_options_that_contradict_each_other_are_refused(folder: Path) -> None:
    def refused(*options: str) -> str:
        result = CliRunner().invoke(evaluate, ["runs", str(folder / "base.trec"), *options])
        assert result.exit_code == 2
        return result.output

    (folder / "counts.tsv").write_text("q1\t3\nq2\t1\n")
    (folder / "segments.tsv").write_text("q1\tbrand\n")
    qrels, counts = ["--qrels", str(folder / "judged.qrels")], ["--frequencies", str(folder / "counts.tsv")]
    assert "--queries has no effect with --data" in refused("--data", str(folder), "--queries", "q.tsv")
    assert "--split has no effect with --qrels" in refused(*qrels, "--split", "dev")
    assert "--frequencies has no effect" in refused(*qrels, *counts)
    assert "--frequencies has no effect" in refused(*qrels, *counts, "--segments", str(folder / "segments.tsv"))
    of_index = ["--index", "x", "--queries", "q.tsv", *qrels]
    for option in ("--id-field", "--template-index"):
        result = CliRunner().invoke(evaluate, [*of_index, option, "sku"])
        assert result.exit_code == 2 and f"{option} has no effect without --template" in result.output
    for command in (["runs", str(folder / "base.trec"), *qrels], of_index):
        result = CliRunner().invoke(evaluate, [*command, "--seed", "-1"])
        assert result.exit_code == 2 and "--seed" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--segments", "no-such.tsv"], "is neither a file nor several names"),
        (["--expect", "other:RR@10=0..1"], "other RR@10 is not measured"),
        (["--expect", "base:RR@10=0.7..0.6"], "0.7 is above 0.6"),
        (["--baseline", "other"], "baseline 'other'"),
        (["--record", "{folder}/base.trec"], "is a file"),
        (["--output", "{folder}/base.trec"], "is a file"),
        (["--report", "{folder}"], "is a folder"),
        (["--measures", "ERR@10"], "whole grades only"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr("opensearch_neural.commands.evaluate_runs.measure", None)  # would end in a TypeError
    asked = [each.format(folder=folder) for each in options]
    with pytest.raises(InputError, match=message):
        runs(folder, *(asked if "--measures" in asked else [*asked, "--measures", "RR@10"]))


def test_a_missing_extra_fails_before_anything_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("opensearch_neural.ui")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(opensearch_neural, "ui", raising=False)  # else it stays the one that is imported here
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("opensearch_neural.commands.evaluate_runs.measure", None)
    with pytest.raises(MissingExtra):
        runs(folder, "--report", str(folder / "report.html"))


def test_tables_are_printed_before_files_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Summary, "write", full)
    asked = ["runs", str(folder / "base.trec"), "--qrels", str(folder / "judged.qrels"), "--record", str(folder / "r")]
    result = CliRunner().invoke(evaluate, asked)
    assert isinstance(result.exception, OSError) and "| base" in result.stdout


def test_runs_of_one_name_are_written_into_the_folder_by_their_first_ten_hits(folder: Path) -> None:
    (folder / "x").mkdir()
    (folder / "y").mkdir()
    many = "".join(f"q1 Q0 d{at} {at} {99 - at} x\n" for at in range(15))
    for name in ("x", "y"):
        (folder / name / "r.trec").write_text(many + "q2 Q0 c 1 5 x\n")
    out, files = folder / "out", [str(folder / name / "r.trec") for name in ("x", "y")]
    asked = ["runs", *files, "--qrels", str(folder / "judged.qrels"), "--measures", "RR@10", "--output", str(out)]
    expected = ["--expect", f"{files[1]}:RR@10=0..1"]
    result = CliRunner().invoke(evaluate, [*asked, *expected], catch_exceptions=False)
    assert f"wrote per-query.tsv and 0 runs to {out}" in result.stderr and f"met: {files[1]} MRR@10" in result.stdout
    report = ["--report", str(folder / "report.html")]
    result = CliRunner().invoke(evaluate, [*asked, *report], catch_exceptions=False)
    assert f"wrote per-query.tsv and 2 runs to {out}" in result.stderr
    written = sorted(path for path in out.iterdir() if path.suffix == ".trec")
    assert [path.name for path in written] == [f"{file.replace('/', '_')}.top10.trec" for file in files]
    assert {query: len(hits) for query, hits in read_run(written[0]).items()} == {"q1": 10, "q2": 1}
    assert {path.name for path in (folder / "x").iterdir()} == {"r.trec"}


def test_a_segment_may_stand_in_quotes_and_null_is_none(tmp_path: Path) -> None:
    file = tmp_path / "segments.csv"
    file.write_text('"query-id","segment"\n"q1","brand, new"\nq2,other\n')
    assert read_query_values(file, ["segment"]) == {"q1": "brand, new", "q2": "other"}
    file.write_text('{"_id": "q1", "segment": null}\n')
    with pytest.raises(InputError, match="line 1: the segment is null"):
        read_query_values(file, ["segment"])


PRODUCTION = '{"size": 20, "query": {"match": {"body": "{{query}}"}}, "aggs": {"kinds": {"terms": {"field": "sku"}}}}'
NEWEST = '{"query": {"match": {"body": "{{query}}"}}, "sort": [{"year": "desc"}]}'


@pytest.fixture
def production(client: Any, index_name: str, tmp_path: Path) -> tuple[str, Path]:
    """An index that `osn` did not write, two queries, and judgements that name its documents by a field."""
    client.indices.create(
        index=index_name,
        body={"mappings": {"properties": {"sku": {"type": "keyword"}, "year": {"type": "integer"}}}},
    )
    for id, text, year in (("1", "rainbow in rain", 2001), ("2", "a rainbow", 2020), ("3", "cloud and sun", 2010)):
        document = {"body": text, "sku": f"sku-{id}", "year": year}
        client.index(index=index_name, id=id, body=document)
    client.indices.refresh(index=index_name)
    (tmp_path / "q.tsv").write_text('q1\train "rainbow"\nq2\tcloud\n')
    (tmp_path / "judged.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tsku-1\t1\nq2\tsku-3\t1\n")
    (tmp_path / "match.json").write_text(PRODUCTION)
    (tmp_path / "newest.json").write_text(NEWEST)
    return index_name, tmp_path


def test_productions_own_query_stands_in_the_table_and_can_be_the_baseline(
    cluster_url: str, production: tuple[str, Path]
) -> None:
    index, folder = production
    asked = [
        *("--url", cluster_url, "--index", index, "--queries", str(folder / "q.tsv"), "--timed", "1"),
        *("--qrels", str(folder / "judged.tsv"), "--measures", "RR@10", "--baseline", "match", "--json"),
        *("--template", f"match={folder}/match.json", "--template", f"newest={folder}/newest.json"),
    ]
    with pytest.raises(InputError, match="none of the 2 documents judged relevant is in"):
        CliRunner().invoke(evaluate, asked, catch_exceptions=False)
    result = CliRunner().invoke(evaluate, [*asked, "--id-field", "sku"], catch_exceptions=False)
    hashed = {name for data in json.loads(result.stdout)["data"] for name in data["files"]}
    assert hashed == {"q.tsv", "judged.tsv", "match.json", "newest.json"}
    rows = values(result)
    assert rows["judged", "match", "MRR@10"].value == 1.0
    assert rows["judged", "newest", "MRR@10"].value == 0.75, "by year the rainbow of 2020 comes first"
    assert rows["judged", "newest", "MRR@10 - match"].value == -0.25
    assert rows["judged", "match", "unjudged@10"].value == 1 / 3
    assert rows["judged", "match", "P50 ms"].value > 0
    assert f"warning: only templates are measured: the index {index!r} was not written by osn" in result.stderr
    assert "3 documents, 2 queries" in json.loads(result.stdout)["title"]
    absent = [*asked, "--id-field", "sku", "--index", "osn-test-absent", "--template-index", index]
    result = CliRunner().invoke(evaluate, absent, catch_exceptions=False)
    assert "warning: only templates are measured: there is no index 'osn-test-absent'" in result.stderr
    assert "3 documents, 2 queries" in json.loads(result.stdout)["title"]
    refused = CliRunner().invoke(evaluate, [*asked, "--id-field", "sku", "--window", "3"])
    assert refused.exit_code == 2 and "--window has no effect with templates" in refused.output
    with pytest.raises(ModelError, match="not written by osn"):
        CliRunner().invoke(evaluate, [*asked, "--engines", "bm25"], catch_exceptions=False)
    with pytest.raises(InputError, match="'bm25' is an engine already"):
        CliRunner().invoke(evaluate, [*asked, "--template", f"bm25={folder}/match.json"], catch_exceptions=False)


def test_a_document_counts_once_however_often_it_stands_there(
    client: Any, cluster_url: str, production: tuple[str, Path]
) -> None:
    """In variants of one `--id-field`, and in two indexes of an alias."""
    index, _ = production
    other = f"{index}-other"
    client.index(index=index, id="1b", body={"body": "rainbow", "sku": "sku-1"}, params={"refresh": "true"})
    client.index(index=other, id="1", body={"body": "rainbow"}, params={"refresh": "true"})
    try:
        assert absent_count(client, index, ["sku-1", "gone"], "sku") == 1
        assert absent_count(client, index, ["2001", "2020", "1999"], "year") == 1
        assert absent_count(client, f"{index}*", ["1", "gone"]) == 1
        assert absent_count(client, f"{index}*", ["1", "2"]) == 0
        with pytest.raises(ClusterError):
            absent_count(client, "osn-test-absent", ["1"])
    finally:
        client.indices.delete(index=other)
