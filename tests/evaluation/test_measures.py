"""Measures against numbers worked out by hand."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation.measures import Measured, averaged, cutoff, label, measure, ndcg, parse_measures
from opensearch_neural.evaluation.significance import compare
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
    assert (measured.queries, measured.unanswered, measured.unjudged) == (2, 0, 0)


def test_grades_count_in_ndcg() -> None:
    qrels = {"q": {"good": 1, "best": 3, "bad": 0}}
    measured = measure({"q": {"good": 3.0, "bad": 2.0, "best": 1.0}}, qrels, ["nDCG@10"])
    # Gains are the grades: 1 at rank 1 and 3 at rank 3, against 3 at rank 1 and 1 at rank 2.
    assert measured.mean["nDCG@10"] == pytest.approx((1 + 3 / 2) / (3 + 1 / math.log2(3)))


def test_a_fraction_is_the_gain_that_it_is_and_relevant_where_grades_do_not_count() -> None:
    """Before, 0.75 and 0.25 were cut to 0, so that no document was relevant."""
    qrels = {"q": {"half": 0.5, "most": 0.75, "none": 0.0, "two": 2.5}}
    run = {"q": {"half": 4.0, "none": 3.0, "most": 2.0}}
    measured = measure(run, qrels, ["nDCG@3", "nDCG@1", "RR@10", "P(rel=2)@2", "R@10"])
    ideal = 2.5 + 0.75 / math.log2(3) + 0.5 / 2
    assert measured.mean["nDCG@3"] == pytest.approx((0.5 + 0.75 / 2) / ideal)
    assert measured.mean["nDCG@1"] == pytest.approx(0.5 / 2.5)
    assert (measured.mean["RR@10"], measured.mean["P(rel=2)@2"]) == (1.0, 0.0), "half is relevant, and nothing is twice"
    assert measured.mean["R@10"] == pytest.approx(2 / 3)
    assert measure({}, qrels, ["nDCG@10"]).mean["nDCG@10"] == 0


def test_ndcg_of_fractions_is_trec_evals_where_grades_are_whole() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        grades = {f"d{at}": int(grade) for at, grade in enumerate(generator.integers(-1, 4, 12))} | {"best": 1}
        run = {
            f"d{at}": float(score) for at, score in zip(generator.permutation(20), generator.random(20), strict=True)
        }
        expected = measure({"q": run}, {"q": grades}, ["nDCG@10", "nDCG"]).mean
        ranked = sorted(run, key=lambda document: -run[document])
        assert ndcg(ranked, grades, 10) == pytest.approx(expected["nDCG@10"], abs=1e-6)
        assert ndcg(ranked, grades) == pytest.approx(expected["nDCG"], abs=1e-6)


@pytest.mark.parametrize("name", ["ERR@10", "nDCG(dcg='exp-log2')@10"])
def test_a_measure_that_knows_no_fractions_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="defined for whole grades only"):
        measure({"q": {"d": 1.0}}, {"q": {"d": 0.5}}, [name])


@pytest.mark.parametrize("names", [("PLAIN-1", "PLAIN-2"), ("PLAIN-3", "TRAIN-3"), ("q1", "q 2")])
def test_measures_are_the_same_whatever_queries_and_documents_are_called(names: tuple[str, str]) -> None:
    """gdeval.pl, which computes these, takes numbers for queries' ids, and ids without blanks for documents."""
    measures = ["ERR@10", "nDCG(dcg='exp-log2')@10", "nDCG@10"]
    one, two = names
    measured = measure(
        {one: {"a b": 2.0, "a c": 1.0}, two: {"d": 1.0}}, {one: {"a c": 3, "a b": 1}, two: {"d": 4, "e": 4}}, measures
    )
    # A grade g satisfies with (2^g - 1) / 16: the first of a query's documents with 1/16, the second with 7/16.
    assert measured.per_query["ERR@10"] == pytest.approx({one: 1 / 16 + 15 / 16 * 7 / 16 / 2, two: 15 / 16}, abs=1e-5)
    expected = {one: (1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3)), two: 1 / (1 + 1 / math.log2(3))}
    assert measured.per_query["nDCG(dcg='exp-log2')@10"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["ERR@10", "nDCG(dcg='exp-log2')@10"])
def test_a_grade_above_those_that_a_measure_is_defined_for_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"the grade 5, and .* defined for grades up to 4"):
        measure({"q": {"d": 1.0}}, {"q": {"d": 5}}, [name])
    assert measure({"q": {"d": 1.0}}, {"q": {"d": 5}}, ["nDCG@10"]).mean["nDCG@10"] == 1.0


@pytest.mark.parametrize("name", ["nDCG@0", "P@0", "R@0", "AP@0", "Judged@0", "P@1e22", "RR@10001", "nDCG@-1", "P@2.5"])
def test_a_cut_off_that_no_search_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=re.escape(repr(name))):
        parse_measures([name])
    assert cutoff("MRR@10000") == 10_000


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


def test_queries_judged_without_a_relevant_document_are_left_out() -> None:
    measured = measure(
        {"q1": {"d1": 1.0}, "none": {"d1": 1.0}}, {"q1": {"d1": 1}, "none": {"d1": 0, "d2": -2}}, ["RR@10"]
    )
    assert measured.per_query["RR@10"] == {"q1": 1.0}
    assert (measured.queries, measured.unjudged) == (1, 0)


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


def test_the_mean_of_several_runs_is_taken_query_by_query() -> None:
    one, other = (Measured({"RR@10": {"q": value, "r": 0.0}}, {"RR@10": value / 2}, 2, 0, 0) for value in (1.0, 0.5))
    mean = averaged([one, other])
    assert mean.per_query == {"RR@10": {"q": 0.75, "r": 0.0}} and mean.mean == {"RR@10": 0.375}


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
