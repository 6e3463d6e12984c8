"""The encoding benchmark: what it compares is comparable, and its goals are judged by what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")
pytest.importorskip("ir_measures", reason="needs the extra [eval]")

from scipy.sparse import csr_matrix  # noqa: E402

from benchmarks.docs_tables import with_tables  # noqa: E402
from benchmarks.speed import encoding_speed  # noqa: E402
from benchmarks.speed.encoding_speed import (  # noqa: E402
    ARMS,
    BASELINE,
    BF16,
    FP32,
    LARGEST,
    MEMORY,
    NDCG,
    Sizes,
)
from benchmarks.turns import ratio, ratio_row  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation import results  # noqa: E402
from opensearch_neural.models.sparse.word_pieces import train_word_pieces  # noqa: E402

TEXTS = [f"Document {n} tells of {word} and of {word}s that are {n}." for n in range(4) for word in ("rain", "sun")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small masked language model with random weights, some of them above 0."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = BertTokenizerFast(tokenizer_object=train_word_pieces(TEXTS, 200), model_max_length=512)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    network = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), initializer_range=0.2, **sizes))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "idf.json").write_text(json.dumps({"rain": 2.0, "sun": 2.0}))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "weather"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": str(at), "title": "", "text": text} for at, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "rain"}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t0\t1\n")
    return folder


def test_a_run_measures_every_arm_and_finds_ours_equal_to_sentence_transformers(
    model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process each would load torch five times; that one does is tested below.
    monkeypatch.setattr(encoding_speed, "memory_in_a_process", encoding_speed.measure_memory)
    made = encoding_speed.measure(corpus, str(model), Sizes(block=3, blocks=2, memory=2), tmp_path / "scratch")
    summary = results.Summary.of_this_run(title="", rows=made, data=[], seeds=[0], goals=encoding_speed.goals(made))
    written = results.read(summary.write(tmp_path / "result"))
    rows = {(row.line, row.column): row.value for row in written.rows}
    assert {engine for engine, measure in rows if measure == "documents/s"} >= set(ARMS)
    assert {(arm, MEMORY) for arm in ARMS} <= rows.keys()
    assert rows[FP32, "largest difference of a weight"] < 1e-5
    assert rows[BF16, "largest difference of a weight"] > 1e-4
    assert 0 < rows[FP32, "nDCG@10"] <= 1
    # Each weight is a float and a token's number.
    assert rows[FP32, "bytes a document in shards"] > 8 * rows[FP32, "weights a document"] > 8
    assert rows[encoding_speed.READER, "documents/s"] > 100 and rows[encoding_speed.WRITER, "documents/s"] > 100
    assert [goal.target for goal in written.goals] == [1.5, 0.25, 1e-3, 3, 0.2]
    assert written.goals[2].met


PAGE = """
<!-- figure: ingest/encoding: core-hours bf16 -->999<!-- end -->,
<!-- figure: ingest/encoding: core-hours st32 -->none<!-- end -->
<!-- figure: ingest/encoding: GB -->
1<!-- end --> in <!-- figure: ingest/encoding: shards -->?<!-- end --> shards,
<!-- figure: ingest/encoding: ndcg bf16 -->0.9<!-- end -->
<!-- figure: ingest/encoding: share fp32 -->0<!-- end -->
"""


def test_the_page_computes_its_figures_from_the_result_file(tmp_path: Path) -> None:
    def row(engine: str, measure: str, value: float) -> results.Row:
        return results.Row("weather", engine, measure, value, None, None, 10)

    summary = results.Summary(
        command="osn bench encoding",
        code="0" * 40,
        machine={"cpu": "a processor", "cores": 2},
        data=[results.Data("weather", {"a": "0" * 64}), results.Data("tiny", {"b": "0" * 64})],
        seeds=[0],
        rows=[
            row(BF16, "documents/s", 50.0),
            results.Row(
                "weather", FP32, "documents/s", 0.876, None, None, 10, kind="ratio", baseline=encoding_speed.CEILING
            ),
            row(FP32, "bytes a document in shards", 1200.0),
        ],
    )
    # 100 million documents at 50/s take 2,000,000 s of two cores; 1200 bytes each are 120 GB; ⌈10⁸ / 4096⌉ = 24415.
    expected = """
<!-- figure: ingest/encoding: core-hours bf16 -->1,111<!-- end -->,
<!-- figure: ingest/encoding: core-hours st32 -->not measured yet<!-- end -->
<!-- figure: ingest/encoding: GB -->120.0<!-- end --> in <!-- figure: ingest/encoding: shards -->24,415<!-- end --> shards,
<!-- figure: ingest/encoding: ndcg bf16 -->not measured yet<!-- end -->
<!-- figure: ingest/encoding: share fp32 -->88%<!-- end -->
"""
    summary.write(tmp_path / "ingest" / "encoding")
    assert with_tables(PAGE, tmp_path) == expected
    with pytest.raises(InputError, match="no figure is called 'speed'"):
        with_tables("<!-- figure: ingest/encoding: speed -->1<!-- end -->", tmp_path)


def test_memory_is_measured_in_another_process(model: Path) -> None:
    assert 0 <= encoding_speed.memory_in_a_process(FP32, str(model), TEXTS) < 5e9


def test_peak_memory_sees_what_was_freed_again_and_not_what_was_before() -> None:
    before = np.ones(30_000_000)
    del before
    assert 70e6 < encoding_speed.peak_memory(lambda: np.ones(10_000_000).sum()) < 200e6


def test_differences_count_entries_that_either_has() -> None:
    expected = csr_matrix(np.array([[1.0, 0, 0.5, 0], [0, 2.0, 0, 0]], np.float32))
    found = csr_matrix(np.array([[1.0005, 0.25, 0, 0, 0], [0, 2.0, 0, 0, 0]], np.float32))
    largest = encoding_speed.largest_difference("weather", FP32, expected, found)
    assert largest.value == pytest.approx(0.5) and largest.n == 4
    none = encoding_speed.largest_difference("weather", FP32, expected, expected)
    assert (none.value, none.n) == (0.0, 3)


def test_ratios_pair_the_blocks() -> None:
    times = {"slow": [10.0, 30.0, 20.0], "fast": [5.0, 15.0, 10.0]}
    # Each block takes half as long, however much the blocks differ.
    assert ratio(times["slow"], times["fast"]) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    ("largest", "seconds", "ndcg", "met"),
    [
        (1e-5, 1.0, 0.699, [True, True, True, True, True]),
        (1e-2, 1.0, 0.699, [False, True, False, True, True]),  # fast, but not equal
        (1e-5, 5.0, 0.699, [False, True, True, False, True]),
        (1e-5, 2.67, 0.699, [False, True, True, False, True]),  # 1.498 times as fast is not 1.5
        (1e-5, 1.0, 0.690, [True, True, True, False, False]),  # fast, but worse
        (1e-5, 1.0, None, [True, True, True, False, False]),  # nDCG was not measured
    ],
)
def test_speed_counts_only_where_the_results_hold(
    largest: float, seconds: float, ndcg: float | None, met: list[bool]
) -> None:
    rows = [ratio_row("weather", arm, BASELINE, ratio([4.0], [seconds]), 1) for arm in (FP32, BF16)]
    values = {(BASELINE, MEMORY): 1000.0, (FP32, MEMORY): 250.0, (FP32, LARGEST): largest}
    if ndcg is not None:
        values |= {(FP32, NDCG): 0.7, (BF16, NDCG): ndcg}
    rows += [results.Row("weather", *of, value, None, None, 1) for of, value in values.items()]
    found = encoding_speed.goals(rows)
    assert [goal.met for goal in found] == met
