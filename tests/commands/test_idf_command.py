"""`osn model idf`: a table from a corpus, and the same table from its shards."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from opensearch_neural.cli import osn
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.sparse.idf import load_idf
from opensearch_neural.models.sparse.word_pieces import train_word_pieces

TEXTS = ["red apples and green pears", "red red wine", "green tea", "a cup of tea", "pears", "an apple a day"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_word_pieces(TEXTS * 3, vocabulary=200).save(str(path))
    return path


def corpus(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"_id": f"d{at}", "text": text}) + "\n" for at, text in enumerate(texts)))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(osn, ["idf", *map(str, arguments)], catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_token_of_two_documents_in_six_weighs_ln_of_1_plus_4_5_by_2_5(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "idf.json"
    said = json.loads(
        run("--corpus", corpus(tmp_path / "docs.jsonl", TEXTS), "--tokenizer", tokenizer, "--out", out, "--json")
    )
    table = load_idf(out)
    assert table["tea"] == pytest.approx(math.log(1 + 4.5 / 2.5))
    assert table["red"] == table["tea"]  # a repeated token counts once a document
    assert table["[CLS]"] == table["[UNK]"] == 0
    assert said["documents"] == 6


def test_shards_counted_apart_and_merged_give_the_table_of_the_whole(tmp_path: Path, tokenizer: Path) -> None:
    run("--corpus", corpus(tmp_path / "all.jsonl", TEXTS), "--tokenizer", tokenizer, "--out", tmp_path / "all.json")
    for at, part in enumerate((TEXTS[:2], TEXTS[2:])):
        shard = corpus(tmp_path / f"{at}.jsonl", part)
        run("--corpus", shard, "--tokenizer", tokenizer, "--counts", tmp_path / f"counts-{at}.json")
    merged = [word for at in (0, 1) for word in ("--merge", tmp_path / f"counts-{at}.json")]
    run(*merged, "--tokenizer", tokenizer, "--out", tmp_path / "merged.json")
    assert load_idf(tmp_path / "merged.json") == load_idf(tmp_path / "all.json")


def test_a_shard_counts_once(tmp_path: Path, tokenizer: Path) -> None:
    counts = tmp_path / "counts.json"
    run("--corpus", corpus(tmp_path / "c.jsonl", TEXTS), "--tokenizer", tokenizer, "--counts", counts)
    with pytest.raises(InputError, match="named twice"):
        run("--merge", counts, "--merge", counts, "--tokenizer", tokenizer, "--out", tmp_path / "idf.json")


def test_a_corpus_without_text_is_refused_with_what_was_left_out(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(InputError, match="holds no token to count"):
        run(
            "--corpus",
            corpus(tmp_path / "c.jsonl", ["", " "]),
            "--tokenizer",
            tokenizer,
            "--out",
            tmp_path / "idf.json",
        )


def test_counts_over_another_vocabulary_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    run("--corpus", corpus(tmp_path / "c.jsonl", TEXTS), "--tokenizer", tokenizer, "--counts", tmp_path / "counts.json")
    other = tmp_path / "other.json"
    train_word_pieces(["entirely different words"] * 5, vocabulary=60).save(str(other))
    with pytest.raises(ModelError, match="another vocabulary"):
        run("--merge", tmp_path / "counts.json", "--tokenizer", other, "--out", tmp_path / "idf.json")


def test_a_corpus_without_text_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(InputError):
        run("--corpus", corpus(tmp_path / "c.jsonl", [".", ""]), "--tokenizer", tokenizer, "--out", tmp_path / "i.json")
    assert not (tmp_path / "i.json").exists()


def test_nothing_to_count_or_nowhere_to_write_is_said(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(InputError, match="nothing to count"):
        run("--tokenizer", tokenizer, "--out", tmp_path / "i.json")
    with pytest.raises(InputError, match="nothing to write"):
        run("--corpus", tmp_path, "--tokenizer", tokenizer)


def test_what_is_written_overwrites_nothing_that_is_counted(tmp_path: Path, tokenizer: Path) -> None:
    counted = ["--corpus", corpus(tmp_path / "docs.jsonl", TEXTS), "--tokenizer", tokenizer]
    run(*counted, "--counts", tmp_path / "counts.json")
    before = (tmp_path / "counts.json").read_bytes()
    for arguments in (
        [*counted, "--counts", tmp_path / "counts.json", "--output", tmp_path / "." / "counts.json"],
        ["--merge", tmp_path / "counts.json", "--tokenizer", tokenizer, "--output", tmp_path / "counts.json"],
    ):
        with pytest.raises(InputError, match="named twice"):
            run(*arguments)
    assert (tmp_path / "counts.json").read_bytes() == before


def test_a_lexical_model_gets_no_half_of_another_corpus(tmp_path: Path, tokenizer: Path) -> None:
    """Before, its documents kept the average length of the first corpus, and queries got the IDF of the second."""
    named = ["--corpus", str(corpus(tmp_path / "docs.jsonl", TEXTS)), "--output"]
    lexical = ["model", "lexical", "--tokenizer", str(tokenizer), *named, str(tmp_path / "lexical")]
    assert not CliRunner().invoke(osn, lexical).exception
    with pytest.raises(ModelError, match="is the lexical model") as refused:
        run("--model", tmp_path / "lexical", *named, tmp_path / "other")
    assert "osn model lexical --corpus" in str(refused.value.remedy) and not (tmp_path / "other").exists()


def test_a_lexical_model_is_written_into_no_folder_that_is_there(tmp_path: Path, tokenizer: Path) -> None:
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "model.safetensors").write_text("hours of training")
    arguments = ["--corpus", str(corpus(tmp_path / "docs.jsonl", TEXTS)), "--tokenizer", str(tokenizer)]
    for out in (trained, tmp_path / "lexical"):
        result = CliRunner().invoke(osn, ["model", "lexical", *arguments, "--output", str(out)])
        assert isinstance(result.exception, InputError) == (out == trained), result.output
    assert [path.name for path in trained.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "lexical" / "osn.json").exists()
