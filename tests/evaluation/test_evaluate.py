"""Measures, comparisons and run files, against numbers worked out by hand."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation.evaluate import (
    Measured,
    averaged,
    compare,
    cutoff,
    interval,
    label,
    measure,
    parse_measures,
    rank,
    read_run,
    rows,
    write_run,
)
from opensearch_neural.evaluation.results import Engine, Key
from opensearch_neural.retrievers.bm25 import BM25Retriever
from opensearch_neural.retrievers.faiss import FaissRetriever

QRELS = {"q1": {"d1": 1, "d2": 1}, "q2": {"d3": 1}}


def test_measures_are_those_worked_out_by_hand() -> None:
    run = {"q1": {"x": 9.0, "d1": 8.0, "y": 7.0, "d2": 6.0}, "q2": {"d3": 1.0}}
    measured = measure(run, QRELS)
    # q1: relevant at ranks 2 and 4; the ideal has them at 1 and 2.
    ndcg = (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert measured.per_query["nDCG@10"] == pytest.approx({"q1": ndcg, "q2": 1.0})
    assert measured.per_query["RR@10"] == {"q1": 0.5, "q2": 1.0}
    assert measured.mean["RR@10"] == 0.75
    assert measured.mean["R@100"] == 1.0
    assert (measured.queries, measured.unanswered, measured.unjudged, measured.without_relevant) == (2, 0, 0, 0)


def test_grades_count_in_ndcg() -> None:
    qrels = {"q": {"good": 1, "best": 3, "bad": 0}}
    measured = measure({"q": {"good": 3.0, "bad": 2.0, "best": 1.0}}, qrels, ["nDCG@10"])
    # Gains are the grades: 1 at rank 1 and 3 at rank 3, against 3 at rank 1 and 1 at rank 2.
    assert measured.mean["nDCG@10"] == pytest.approx((1 + 3 / 2) / (3 + 1 / math.log2(3)))


@pytest.mark.parametrize("run", [{"q1": {"d1": 1.0, "d2": 0.5}}, {"q1": {"d1": 1.0, "d2": 0.5}, "q2": {}}])
def test_a_judged_query_without_hits_counts_as_zero(run: dict[str, dict[str, float]]) -> None:
    measured = measure(run, QRELS, ["nDCG@10", "RR@10", "R@100", "AP"])
    assert measured.mean == {"nDCG@10": 0.5, "RR@10": 0.5, "R@100": 0.5, "AP": 0.5}
    assert all(values["q2"] == 0.0 for values in measured.per_query.values())
    assert (measured.queries, measured.unanswered) == (2, 1)


def test_an_empty_run_measures_zero() -> None:
    measured = measure({}, QRELS)
    assert set(measured.mean.values()) == {0.0}
    assert measured.unanswered == 2


def test_queries_without_judgements_are_left_out_and_counted() -> None:
    run = {"q1": {"d1": 1.0}, "q2": {"d3": 1.0}, "q9": {"d1": 1.0}, "q8": {}}
    measured = measure(run, QRELS, ["RR@10"])
    assert measured.unjudged == 2
    assert measured.per_query["RR@10"].keys() == {"q1", "q2"}
    assert measured.mean["RR@10"] == 1.0


def test_queries_judged_without_a_relevant_document_are_left_out_and_counted() -> None:
    measured = measure(
        {"q1": {"d1": 1.0}, "none": {"d1": 1.0}}, {"q1": {"d1": 1}, "none": {"d1": 0, "d2": -2}}, ["RR@10"]
    )
    assert measured.per_query["RR@10"] == {"q1": 1.0}
    assert (measured.queries, measured.without_relevant, measured.unjudged) == (1, 1, 0)


def test_negative_grades_are_not_relevant() -> None:
    qrels = {"q": {"spam": -2, "good": 2}}
    measured = measure({"q": {"spam": 2.0, "good": 1.0}}, qrels, ["nDCG@10", "RR@10", "R@100"])
    assert measured.mean == pytest.approx({"nDCG@10": 1 / math.log2(3), "RR@10": 0.5, "R@100": 1.0})


@pytest.mark.parametrize("name", ["nDCG@1", "RR@10", "AP"])
def test_ties_are_broken_by_id_for_every_provider_of_measures(name: str) -> None:
    # trec_eval itself would put "b" first. The order in which the documents stand in the run makes no difference.
    for hits in ({"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0}):
        assert measure({"q": hits}, {"q": {"a": 1}}, [name]).mean[name] == 1.0
        assert measure({"q": hits}, {"q": {"b": 1}}, [name]).mean[name] < 1.0


def test_scores_that_differ_beyond_single_precision_are_no_ties() -> None:
    hits = {"a": 1.0, "b": 1.0 + 1e-12}
    assert measure({"q": hits}, {"q": {"b": 1}}, ["RR@10"]).mean["RR@10"] == 1.0


def test_a_score_that_is_not_a_number_is_refused_with_query_and_document() -> None:
    with pytest.raises(InputError, match=r"query q1.*document d7"):
        measure({"q1": {"d1": 1.0, "d7": math.nan}}, QRELS)
    with pytest.raises(InputError, match="query unjudged"):
        measure({"unjudged": {"d7": math.nan}}, QRELS)


@pytest.mark.parametrize("qrels", [{}, {"q1": {}}, {"q1": {"d1": 0}}])
def test_judgements_without_a_relevant_document_are_refused(qrels: dict[str, dict[str, int]]) -> None:
    with pytest.raises(InputError, match="no relevant document"):
        measure({"q1": {"d1": 1.0}}, qrels)


def test_any_measure_of_ir_measures_is_taken_and_usual_spellings_too() -> None:
    assert list(parse_measures(["MRR@10", "recall@100", " P(rel=2)@5", "NDCG@20", "AP"])) == [
        "RR@10",
        "R@100",
        "P(rel=2)@5",
        "nDCG@20",
        "AP",
    ]
    assert label("RR@10") == "MRR@10"
    assert label("R@100") == "R@100"
    assert (cutoff("nDCG@10"), cutoff("P(rel=2)@5"), cutoff("AP")) == (10, 5, None)


@pytest.mark.parametrize("name", ["bogus@10", "nDCG@", "nDCG@ten", "", "nDCG@10 + 1", "__import__('os')"])
def test_an_unknown_measure_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_measures([name])
    assert repr(name) in raised.value.message
    assert "nDCG@10" in str(raised.value.remedy)


def test_no_measures_are_refused() -> None:
    with pytest.raises(InputError, match="no measure"):
        parse_measures([])


def test_a_comparison_is_paired_by_query_whatever_the_order() -> None:
    comparison = compare({"a": 0.9, "b": 0.2, "c": 0.5}, {"c": 0.5, "b": 0.1, "a": 1.0})
    assert comparison.difference == pytest.approx(0.0, abs=1e-12)
    assert (comparison.wins, comparison.losses, comparison.ties) == (1, 1, 1)


def test_the_p_value_of_few_queries_is_exact() -> None:
    # All five differences are +0.1: of the 2^5 sign assignments, the two of equal signs are as extreme. p = 2/32.
    queries = [str(at) for at in range(5)]
    comparison = compare(dict.fromkeys(queries, 0.6), dict.fromkeys(queries, 0.5))
    assert comparison.p == pytest.approx(2 / 32)
    assert comparison.difference == pytest.approx(0.1)
    assert (comparison.low, comparison.high) == pytest.approx((0.1, 0.1))


def test_equal_runs_differ_by_nothing() -> None:
    values = {str(at): at / 10 for at in range(10)}
    comparison = compare(values, dict(values))
    assert (comparison.difference, comparison.low, comparison.high, comparison.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_real_difference_is_significant_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    base = {str(at): value for at, value in enumerate(rng.random(200))}
    better, same = (
        compare(dict(zip(base, np.array(list(base.values())) + rng.normal(shift, 0.1, 200), strict=True)), base)
        for shift in (0.05, 0)
    )
    assert better.p < 0.001 and better.low is not None and better.low > 0
    assert same.p > 0.05 and same.low is not None and same.high is not None and same.low < 0 < same.high
    assert better.low < better.difference < better.high  # type: ignore[operator]


def test_the_same_seed_gives_the_same_interval_and_p() -> None:
    rng = np.random.default_rng(2)
    one, other = ({str(at): value for at, value in enumerate(rng.random(60))} for _ in range(2))
    assert compare(one, other, seed=3) == compare(one, other, seed=3)
    assert compare(one, other, seed=3) != compare(one, other, seed=4)


def test_the_bootstrap_interval_is_near_the_normal_one_for_many_queries() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.2, 2000)
    low, high = interval(values) or (0, 0)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.001)
    assert high == pytest.approx(values.mean() + half, abs=0.001)


@pytest.mark.parametrize("successes", [True, False])
def test_many_queries_have_the_interval_and_p_that_drawing_each_query_gives(
    successes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    ranks, others = rng.integers(1, 12, (2, 2500)) - np.array([[1], [0]]) * (rng.random(2500) < 0.08)
    one, other = (1 / np.log2(1 + np.maximum(1, each)) for each in (ranks, others))
    if successes:
        one, other = (one > 0.4).astype(float), (other > 0.4).astype(float)
    values, baseline = ({str(at): float(value) for at, value in enumerate(each)} for each in (one, other))
    many = compare(values, baseline, resamples=4000)
    monkeypatch.setattr("opensearch_neural.evaluation.evaluate.MANY", 10**9)
    each = compare(values, baseline, resamples=4000)
    assert many != each, "counted as few queries are"
    for found, expected in ((many.low, each.low), (many.high, each.high)):
        assert found is not None and expected is not None
        assert abs(found - expected) < 0.002
    assert each.p > 0.01 and many.p == pytest.approx(each.p, abs=0.03)


def test_one_query_has_no_interval() -> None:
    comparison = compare({"q": 0.7}, {"q": 0.5})
    assert (comparison.low, comparison.high, comparison.p) == (None, None, 1.0)
    assert interval([0.5]) is None


def test_questions_about_one_article_count_as_one_where_clusters_are_given() -> None:
    rng = np.random.default_rng(7)
    of_article = rng.normal(0.02, 0.1, 30)
    # Ten questions of each article, all with its difference: there are thirty differences, not three hundred.
    values = {f"{at}-{number}": float(one) for at, one in enumerate(of_article) for number in range(10)}
    baseline, clusters = dict.fromkeys(values, 0.0), {query: query.partition("-")[0] for query in values}
    alone = compare({str(at): float(one) for at, one in enumerate(of_article)}, dict.fromkeys(map(str, range(30)), 0.0))
    clustered, free = compare(values, baseline, clusters=clusters), compare(values, baseline)
    assert clustered.difference == pytest.approx(alone.difference)
    for found, expected in ((clustered.low, alone.low), (clustered.high, alone.high)):
        assert found == pytest.approx(expected, abs=0.003)
    assert clustered.p == pytest.approx(alone.p, abs=0.02) and clustered.p > free.p
    assert free.high is not None and clustered.high is not None
    assert clustered.high - clustered.difference > 2 * (free.high - free.difference)
    measured = {
        name: Measured({"RR@10": of}, {"RR@10": 0.0}, 300, 0, 0, 0) for name, of in (("a", values), ("b", baseline))
    }
    (row,) = (row for row in rows("s", measured, baseline="b", clusters=clusters) if row.column == "MRR@10 - b")
    assert (row.value, row.low, row.high) == (clustered.difference, clustered.low, clustered.high)


def test_articles_of_unlike_size_weigh_as_much_as_they_have_questions() -> None:
    values = {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 0.0}
    clusters = {query: query[0] for query in values}
    # Samples: a and a (mean 1), b and b (0), one of each (3/4, half of all samples).
    assert interval(values.values(), clusters=clusters.values()) == (0.0, 1.0)
    assert interval(values.values(), level=0.4, clusters=clusters.values()) == (0.75, 0.75)
    assert interval(values.values(), clusters=["a"] * 4) is None


def test_the_mean_of_several_runs_is_taken_query_by_query() -> None:
    one, other = (Measured({"RR@10": {"q": value, "r": 0.0}}, {"RR@10": value / 2}, 2, 0, 0, 0) for value in (1.0, 0.5))
    found = averaged([one, other])
    assert found.per_query == {"RR@10": {"q": 0.75, "r": 0.0}} and found.mean == {"RR@10": 0.375}


def test_a_comparison_of_different_queries_is_refused() -> None:
    with pytest.raises(InputError, match="'q2'"):
        compare({"q1": 1.0, "q2": 1.0}, {"q1": 1.0})
    with pytest.raises(InputError, match="at least one"):
        compare({}, {})


def test_rows_hold_the_mean_the_difference_and_its_p_value() -> None:
    qrels = {str(at): {"d": 1} for at in range(8)}
    measured = {
        "bm25": measure({query: {"x": 2.0, "d": 1.0} for query in qrels}, qrels, ["RR@10"]),
        "sparse": measure({query: {"d": 1.0} for query in qrels}, qrels, ["RR@10"]),
    }
    by_name = {(row.line, row.column): row for row in rows("toy", measured)}
    assert by_name.keys() == {
        ("bm25", "MRR@10"),
        ("sparse", "MRR@10"),
        ("sparse", "MRR@10 - bm25"),
        ("sparse", "p(MRR@10 - bm25)"),
    }
    difference = by_name["sparse", "MRR@10 - bm25"]
    assert (difference.set, difference.value, difference.low, difference.high, difference.n) == (
        "toy",
        0.5,
        0.5,
        0.5,
        8,
    )
    assert by_name["sparse", "p(MRR@10 - bm25)"].value == pytest.approx(2 / 2**8)
    assert difference.key == Key("toy", "sparse", "MRR@10", "difference", "bm25")
    assert len(rows("toy", measured, baseline=None)) == 2


def test_engines_of_a_seed_are_compared_with_the_baseline_of_that_seed() -> None:
    qrels = {str(at): {"d": 1} for at in range(3)}
    scored = measure({query: {"d": 1.0} for query in qrels}, qrels, ["RR@10"])
    measured = {Engine("dual", 42): scored, Engine("MLR", 42, "nested"): scored, Engine("untrained"): scored}
    found = [row for row in rows("toy", measured, baseline=Engine("dual", 42)) if row.kind == "difference"]
    assert [(row.engine, row.seed, row.variant, row.baseline) for row in found] == [
        ("MLR", 42, "nested", "dual"),
        ("untrained", 42, "", "dual"),
    ]
    assert [row.line for row in found] == ["MLR, seed 42, nested", "untrained"]
    assert {row.column for row in found} == {"MRR@10 - dual, seed 42"}


def test_a_run_file_is_ranked_by_score_and_then_by_id(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "bm25.trec"
    write_run(path, {"q2": {"b": 1.0, "a": 1.0, "c": 2.5}, "q1": {"x": 0.1}, "nothing": {}}, "bm25")
    assert path.read_text() == ("q2 Q0 c 1 2.5 bm25\nq2 Q0 a 2 1.0 bm25\nq2 Q0 b 3 1.0 bm25\nq1 Q0 x 1 0.1 bm25\n")


IDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=8).filter(
    lambda text: text.split() == [text]
)
RUNS = st.dictionaries(
    IDS, st.dictionaries(IDS, st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), max_size=4
)


@given(RUNS)
def test_a_run_survives_its_file_with_every_digit(
    tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(path, run, "tag")
    again = read_run(path)
    assert again == run
    assert all(list(again[query]) == [document for document, _ in rank(run[query])] for query in run)


def test_a_gzipped_run_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.trec.gz"
    path.write_bytes(gzip.compress(b"q Q0 d 1 2.0 tag\n"))
    assert read_run(path) == {"q": {"d": 2.0}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 2.0", "line 2: 5 fields"),
        ("q Q0 d 1 high tag", "line 2: the score 'high'"),
        ("q Q0 d 1 nan tag", "line 2: the score 'nan'"),
        ("q Q0 d0 2 1.0 tag", "line 2: query q has the document d0 twice"),
    ],
)
def test_a_broken_run_file_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "run.trec"
    path.write_text(f"q Q0 d0 1 3.0 tag\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_run(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_run(tmp_path / "absent.trec")


def test_ids_that_a_run_file_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    for run in ({"q": {"two words": 1.0}}, {"q q": {"d": 1.0}}, {"q": {"": 1.0}}, {"q": {"d": math.nan}}):
        with pytest.raises(InputError):
            write_run(path, run, "tag")
    with pytest.raises(InputError, match="tag"):
        write_run(path, {"q": {"d": 1.0}}, "two words")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("ir_measures", lambda: measure({}, QRELS)),
        ("scipy.stats", lambda: compare({"a": 1.0, "b": 0.5}, {"a": 0.0, "b": 0.0})),
        ("bm25s", lambda: BM25Retriever(["a"], ["word"])),
        ("Stemmer", lambda: BM25Retriever(["a"], ["word"])),
        (
            "faiss",
            lambda: FaissRetriever(["a"], np.ones((1, 2), np.float32), lambda texts: np.ones((1, 2), np.float32)),
        ),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    module: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as raised:
        use()
    assert raised.value.remedy == 'pip install "opensearch-neural[eval]"'


def test_the_command_loads_nothing_heavy_until_it_runs() -> None:
    code = (
        "import sys, opensearch_neural.commands.evaluate, opensearch_neural.evaluation.side_by_side; "
        "heavy = ('torch', 'transformers', 'scipy', 'ir_measures', 'bm25s', 'faiss'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
