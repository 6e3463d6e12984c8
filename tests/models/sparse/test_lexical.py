"""The lexical model is BM25 over word pieces, each query token counted once."""

from __future__ import annotations

import ast
import gzip
import json
import logging
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.sparse import lexical
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.models.sparse.lexical import (
    DocumentCounter,
    LexicalEncoder,
    NoTokens,
    build_lexical,
    check_tokens,
    count_documents,
)
from opensearch_neural.models.sparse.word_pieces import train_word_pieces

SCIFACT = Path(__file__).parents[3] / "shared" / "data" / "scifact"


@pytest.fixture(scope="module")
def docstrings() -> list[str]:
    """Some hundred documentation strings of the standard library, read without importing it."""
    texts: list[str] = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-h]*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                texts.append(text)
    assert len(texts) > 500
    return texts[:600]


@pytest.fixture(scope="module")
def tokenizer(docstrings: list[str]) -> Tokenizer:
    return train_word_pieces(docstrings, vocabulary=3000)


def bm25_scores(encoder: LexicalEncoder, texts: list[str], queries: list[str]) -> np.ndarray:
    """What bm25s (Lucene's form) makes of the same token ids, each query token once: (queries, texts)."""
    import bm25s

    vocabulary = {token: i for i, token in enumerate(encoder.vocabulary)}
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

    def ids(text: str) -> list[int]:
        tokens = encoder.query.tokenizer.encode(text, add_special_tokens=False).tokens
        return [vocabulary[token] for token in tokens if token not in special]

    engine = bm25s.BM25(method="lucene", k1=encoder.k1, b=encoder.b)
    engine.index(([ids(text) for text in texts], vocabulary), show_progress=False)
    return np.stack([engine.get_scores(list(dict.fromkeys(ids(query)))) for query in queries])


def lexical_scores(encoder: LexicalEncoder, texts: list[str], queries: list[str]) -> np.ndarray:
    column = {token: i for i, token in enumerate(encoder.vocabulary)}
    weights = np.zeros((len(queries), len(column)))
    for i, query in enumerate(queries):
        for token, weight in encoder.query.encode(query).items():
            weights[i, column[token]] = weight
    return weights @ encoder.encode_documents(texts).to_scipy().T.toarray()


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (2.0, 0.0), (1.5, 1.0)])
def test_scores_are_bm25s_over_the_same_tokens(
    docstrings: list[str], tokenizer: Tokenizer, k1: float, b: float
) -> None:
    encoder = build_lexical(docstrings, tokenizer=tokenizer, k1=k1, b=b)
    # A sentence of every tenth document, repeats of tokens in it included.
    queries = [text.split(".")[0] for text in docstrings[::10] if text.split(".")[0].strip()]
    expected = bm25_scores(encoder, docstrings, queries)
    assert expected.max() > 5
    np.testing.assert_allclose(lexical_scores(encoder, docstrings, queries), expected, atol=1e-4)


@pytest.mark.skipif(not SCIFACT.exists(), reason="the scifact data set does not lie beside the project")
def test_scores_are_bm25s_on_scifact() -> None:
    with gzip.open(SCIFACT / "corpus.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(500), strict=False)]
    with gzip.open(SCIFACT / "queries.jsonl.gz", "rt") as lines:
        queries = [json.loads(line)["text"] for line, _ in zip(lines, range(100), strict=False)]
    encoder = build_lexical(texts)
    np.testing.assert_allclose(lexical_scores(encoder, texts, queries), bm25_scores(encoder, texts, queries), atol=1e-4)


def test_a_weight_worked_out_by_hand(tokenizer: Tokenizer) -> None:
    # Lengths 3 and 1, average 2. For "the" in the first: tf 2, 1.2 · (0.25 + 0.75 · 3 / 2) = 1.65, 2 / 3.65.
    encoder = build_lexical(["the the file", "file"], tokenizer=tokenizer)
    assert encoder.average_length == 2
    rows = list(encoder.encode_documents(["the the file", "file", ""]).rows())
    assert rows[0] == {"the": pytest.approx(2 / 3.65), "file": pytest.approx(1 / 2.65)}
    assert rows[1] == {"file": pytest.approx(1 / (1 + 1.2 * (0.25 + 0.375)))}
    assert rows[2] == {}


def test_special_tokens_are_neither_weighed_nor_counted(tokenizer: Tokenizer) -> None:
    encoder = build_lexical(["the file", "[SEP] [SEP] the file \U0001f642"], tokenizer=tokenizer)
    assert encoder.average_length == 2
    first, second = encoder.encode_documents(["the file", "[CLS] the file [SEP] \U0001f642"]).rows()
    assert first == second
    assert encoder.query.weights["[SEP]"] == 0


def test_half_a_surrogate_pair_costs_a_document_nothing_else(tokenizer: Tokenizer) -> None:
    encoder = build_lexical(["the file", "the \ud83d file"], tokenizer=tokenizer)
    assert set(encoder.encode_documents(["the \ud83d file"]).row(0)) == {"the", "file"}


def test_a_long_document_counts_whole(tokenizer: Tokenizer) -> None:
    encoder = build_lexical(["the " * 5000 + "file"], tokenizer=tokenizer)
    assert encoder.average_length == 5001
    assert set(encoder.encode_documents(["the " * 5000 + "file"]).row(0)) == {"the", "file"}


def test_batches_of_any_size_give_the_same_vectors(docstrings: list[str], tokenizer: Tokenizer) -> None:
    encoder = build_lexical(docstrings, tokenizer=tokenizer)
    whole = encoder.encode_documents(docstrings)
    parts = encoder.encode_documents(docstrings, batch_size=7)
    assert np.array_equal(whole.indptr, parts.indptr)
    assert np.array_equal(whole.token_ids, parts.token_ids)
    assert np.array_equal(whole.weights, parts.weights)
    assert len(encoder.encode_documents([])) == 0


def test_a_saved_model_is_loaded_with_the_same_vectors_and_identity(
    docstrings: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    encoder = build_lexical(docstrings, tokenizer=tokenizer, k1=0.9, b=0.4)
    encoder.save(tmp_path / "words")
    loaded = load_sparse(tmp_path / "words")
    assert loaded.info.name == "words"
    assert loaded.info.kind == "lexical"
    assert loaded.info.hash == encoder.info.hash
    assert list(loaded.encode_documents(docstrings[:9]).rows()) == list(encoder.encode_documents(docstrings[:9]).rows())
    assert loaded.query.encode("a file of the class") == encoder.query.encode("a file of the class")
    osn = directory.read_osn_json(tmp_path / "words")
    assert osn is not None
    assert osn["kind"] == "lexical"
    assert len(osn["data_hash"]) == 16
    assert LexicalEncoder.load(tmp_path / "words").data_hash == osn["data_hash"]


def test_another_corpus_is_another_model(docstrings: list[str], tokenizer: Tokenizer) -> None:
    one = build_lexical(docstrings[:300], tokenizer=tokenizer)
    other = build_lexical(docstrings[300:], tokenizer=tokenizer)
    assert one.info.hash != other.info.hash


def test_without_a_packaged_tokenizer_one_is_trained_and_said(
    docstrings: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory, "minilm_directory", lambda: None)
    monkeypatch.setattr(lexical, "TRAINING_SAMPLE", 400)
    with caplog.at_level(logging.INFO):
        encoder = build_lexical(iter(docstrings))
    assert "trained on the first 400 documents" in caplog.text
    assert encoder.documents == len(docstrings)
    assert encoder.data_hash == build_lexical(docstrings, tokenizer=encoder.query.tokenizer).data_hash
    assert "string" in encoder.query.encode("Returns a STRING")


def test_documents_counted_in_parts_are_counted_as_all_at_once(docstrings: list[str], tokenizer: Tokenizer) -> None:
    texts = docstrings[:50]
    counter = DocumentCounter(tokenizer)
    for part in ([], texts[:1], texts[1:20], texts[20:]):
        counter.add(part)
    whole = count_documents(texts, tokenizer)
    assert (counter.frequencies.counts == whole.counts).all() and whole.counts.any()
    assert (counter.frequencies.n, counter.frequencies.length) == (whole.n, whole.length) == (50, whole.length)


def test_a_corpus_is_read_to_its_first_token(tokenizer: Tokenizer) -> None:
    texts = iter(["", "[SEP]", "return", "more"])
    check_tokens(texts, tokenizer)
    assert list(texts) == ["more"]
    with pytest.raises(NoTokens, match="in 2 documents"):
        check_tokens(["", "[SEP]"], tokenizer)


@pytest.mark.parametrize("contents", [[], [""], ["\U0001f642", " "]])
def test_a_corpus_without_tokens_is_refused(tokenizer: Tokenizer, contents: list[str]) -> None:
    with pytest.raises(InputError, match="no token"):
        build_lexical(contents, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("key", "value"), [("k1", -1), ("b", 1.5), ("average_length", 0), ("documents", None), ("k1", "x"), ("b", True)]
)
def test_a_field_out_of_range_is_named(tokenizer: Tokenizer, tmp_path: Path, key: str, value: object) -> None:
    build_lexical(["the file"], tokenizer=tokenizer).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ModelError, match=f"config.json, field '{key}'"):
        LexicalEncoder.load(tmp_path)


def test_the_command_writes_a_model_that_loads(docstrings: list[str], tmp_path: Path) -> None:
    from click.testing import CliRunner

    from opensearch_neural.commands.lexical import lexical as command

    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(docstrings[:50])]
    corpus.write_text("\n".join([*lines, "no record", ""]))
    arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "model"), "--b", "0.5", "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["documents"] == 50
    assert "1 records left out, the first in" in result.stderr
    assert "line 51" in result.stderr
    loaded = load_sparse(tmp_path / "model")
    assert isinstance(loaded, LexicalEncoder)
    assert loaded.b == 0.5
    assert json.loads(result.stdout)["hash"] == loaded.info.hash
