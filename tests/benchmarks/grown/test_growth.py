"""Drawn documents are like the real ones, none twice, with vectors that belong to their text."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tiny_splade import write_splade

from benchmarks.grown import field_bytes
from benchmarks.grown.command import grow as grow_command
from benchmarks.grown.command import scale
from benchmarks.grown.index import Growth, grow, resampler_of
from benchmarks.grown.resampler import DrawnDocument, DrawnVectors, Resampler
from ingest.vectorizers import Vectors
from opensearch_neural.corpus.documents import Document
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import read
from opensearch_neural.index import segments
from opensearch_neural.index.record import RESAMPLED, SparseMeta
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.sparse.pruning import Pruning

DRAWN = 1500


@pytest.fixture(scope="module")
def model(texts: list[str]) -> LexicalEncoder:
    return build_lexical(texts)


@pytest.fixture(scope="module")
def resampler(texts: list[str], model: LexicalEncoder) -> Resampler:
    documents = [Document(f"d{at}", text) for at, text in enumerate(texts)]
    dense = np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    vectors = Vectors(model.encode_documents(texts), dense)
    return Resampler(documents, vectors, model.query, mix=0.3, seed=1)


@pytest.fixture(scope="module")
def drawn(resampler: Resampler) -> list[DrawnDocument]:
    return list(resampler.take(DRAWN))


def test_no_text_and_no_id_occurs_twice(drawn: list[DrawnDocument], texts: list[str]) -> None:
    assert len(drawn) == DRAWN
    assert len({document.text for document in drawn}) == len({document.id for document in drawn}) == DRAWN
    assert [document.text for document in drawn[: len(texts)]] == texts  # the real ones come first


def test_the_same_seed_draws_the_same_documents(resampler: Resampler, drawn: list[DrawnDocument]) -> None:
    again = list(resampler.take(700))
    assert [document.text for document in again] == [document.text for document in drawn[:700]]
    assert all((one.weights == other.weights).all() for one, other in zip(again, drawn, strict=False))
    other = Resampler(resampler.documents, resampler.vectors, resampler.query, mix=0.3, seed=2)
    assert other.draw(0).text != resampler.draw(0).text


def test_a_drawn_vector_holds_the_tokens_of_its_text_and_no_others(
    drawn: list[DrawnDocument], texts: list[str], model: LexicalEncoder
) -> None:
    """The lexical model has no expansions, so a document's tokens are those of its words."""
    for document in drawn[len(texts) : len(texts) + 200]:
        assert document.token_ids is not None and document.weights is not None
        own = {
            token
            for word in document.text.split()
            for token in model.query.tokenizer.encode(word, add_special_tokens=False).ids
        }
        unknown = model.query.tokenizer.token_to_id("[UNK]")
        assert set(document.token_ids.tolist()) == own - {unknown}
        assert len(set(document.token_ids.tolist())) == len(document.token_ids) and (document.weights > 0).all()


def test_lengths_weights_and_shares_of_tokens_stay_those_of_the_corpus(
    drawn: list[DrawnDocument], texts: list[str], resampler: Resampler
) -> None:
    real, new = drawn[: len(texts)], drawn[len(texts) :]

    def tokens(documents: list[DrawnDocument]) -> float:
        return float(np.mean([len(each.token_ids) for each in documents if each.token_ids is not None]))

    def words(documents: list[DrawnDocument]) -> float:
        return float(np.mean([len(each.text.split()) for each in documents]))

    assert words(new) == pytest.approx(words(real), rel=0.1)
    assert tokens(new) == pytest.approx(tokens(real), rel=0.15)

    def shares(documents: list[DrawnDocument]) -> np.ndarray:
        held = np.zeros(len(resampler.vectors.sparse.vocabulary))  # type: ignore[union-attr]
        for each in documents:
            held[each.token_ids] += 1
        return held / len(documents)

    common = shares(real) > 0.02
    assert common.sum() > 50
    assert np.corrcoef(shares(real)[common], shares(new)[common])[0, 1] > 0.97


def test_dense_vectors_are_mixed_like_the_text_and_stay_normalized(
    drawn: list[DrawnDocument], texts: list[str]
) -> None:
    vectors = np.stack([document.dense for document in drawn if document.dense is not None])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert len(np.unique(vectors, axis=0)) == len(drawn)


def test_pruning_keeps_the_heaviest_tokens(drawn: list[DrawnDocument], model: LexicalEncoder) -> None:
    kept = DrawnVectors(model.vocabulary, Pruning("top_k", 5)).vectors(drawn[:50]).sparse
    whole = DrawnVectors(model.vocabulary).vectors(drawn[:50]).sparse
    assert kept is not None and whole is not None
    for at, document in enumerate(drawn[:50]):
        row, full = kept.row(at), whole.row(at)
        assert len(row) == min(5, len(full)) and row.items() <= full.items()
        if row:
            assert min(row.values()) >= sorted(full.values())[-len(row)]
        assert len(full) == len(document.token_ids)  # type: ignore[arg-type]


def test_pruning_weighs_what_a_token_adds_to_a_score(model: LexicalEncoder) -> None:
    common, rare = model.vocabulary.index("the"), model.vocabulary.index("string")
    ids, weights = np.array([common, rare], dtype=np.int32), np.array([0.8, 0.5], dtype=np.float32)
    document = DrawnDocument("d", "the string", token_ids=ids, weights=weights)
    kept = DrawnVectors(model.vocabulary, Pruning("top_k", 1), {"the": 0.1, "string": 3.0}).vectors([document]).sparse
    assert kept is not None and kept.row(0) == {"string": 0.5}


def test_a_corpus_too_small_to_draw_from_is_named() -> None:
    documents = [Document("a", "one"), Document("b", "two")]
    with pytest.raises(InputError, match="too small to draw 100 different documents"):
        list(Resampler(documents, Vectors(), None, mix=0.3, seed=1).take(100))
    with pytest.raises(InputError, match="at least two documents"):
        Resampler(documents[:1], Vectors(), None, mix=0.3, seed=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prune", "top"], "is no pruning"),
        (["--prune-postings", "top"], "is no pruning"),
        (["--setting", "a"], "KEY=VALUE"),
    ],
)
def test_wrong_options_are_named(options: list[str], words: str) -> None:
    asked = ["--corpus", "corpus", "--index", "index", "--documents", "10"]
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(grow_command, [*asked, *options], catch_exceptions=False)


def test_a_splade_without_a_table_gets_that_of_the_corpus(corpus: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "osn-home")
    splade = write_splade(tmp_path / "my-splade")
    meta, resampler = resampler_of(Growth(str(corpus), "index", 10, sparse=str(splade), base=20))
    assert meta.sparse is not None and meta.sparse.name == "my-splade"
    assert len({round(weight, 3) for weight in resampler.query_weights.values()}) > 2


@pytest.mark.cluster
def test_an_index_grows_to_its_number_and_says_what_it_is(client, corpus: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Waiting makes an index smaller and changes nothing else, and takes half a minute.
    monkeypatch.setattr(segments, "LEASE_PATIENCE", 0.0)
    index = f"osn-test-grow-{uuid.uuid4().hex[:8]}"
    wanted = Growth(str(corpus), index, 700, settings={"search.idle.after": "10m", "sort.field": "url"})
    prepared = resampler_of(wanted)
    try:
        grow(client, wanted, prepared)
        assert client.count(index=index)["count"] == 700
        stats = client.indices.stats(index=index)["_all"]["primaries"]
        assert stats["segments"]["count"] == 1 and stats["docs"]["deleted"] == 0
        engines = open_engines(client, index)
        assert engines.meta.extra[RESAMPLED] == {"documents": 700, "mix": 0.3, "seed": 0, "prune": None, "of": 500}
        settings = client.indices.get_settings(index=index, params={"flat_settings": "true"})[index]["settings"]
        assert settings["index.search.idle.after"] == "10m" and settings["index.sort.field"] == "url"
        assert not client.indices.exists_index_template(name=f"osn-bench-{index}")
        for engine in ("bm25", "sparse"):
            assert len(engines.search(engine, "parse a string")["hits"]["hits"]) == 10, engine
        # What is whole is left as it is; what is other is not touched.
        before = client.indices.stats(index=index)["_all"]["primaries"]["indexing"]["index_total"]
        grow(client, wanted, prepared)
        assert client.indices.stats(index=index)["_all"]["primaries"]["indexing"]["index_total"] == before
        with pytest.raises(ClusterError, match="with other documents"):
            grow(client, Growth(str(corpus), index, 800), prepared)
        with pytest.raises(ClusterError, match=r"with 1 shard\(s\), and --shards says 2"):
            grow(client, replace(wanted, shards=2), prepared)
        other_model = replace(prepared[0], sparse=SparseMeta("lexical", "0" * 16, "0" * 16))
        with pytest.raises(ClusterError, match="with other documents"):
            grow(client, wanted, (other_model, prepared[1]))
        sizes = field_bytes.bytes_by_field(client, prepared[0], list(prepared[1].take(200)), prepared[1].vectorizer())
        assert set(sizes) == {"contents", "sparse", "sparse_forward", field_bytes.STORED} and min(sizes.values()) > 20
        stored = stats["store"]["size_in_bytes"] / 700
        assert 0.2 * stored < sum(sizes.values()) < 3 * stored
    finally:
        client.indices.delete(index=index, params={"ignore_unavailable": "true"})


@pytest.mark.parametrize(("documents", "words"), [("0", "below 1"), ("", "names no number of documents")])
def test_sizes_that_cannot_work_are_refused_before_a_corpus_is_made(
    documents: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, click.UsageError), match=words):
        CliRunner().invoke(scale, ["--documents", documents], catch_exceptions=False, standalone_mode=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.cluster
def test_the_command_measures_every_size_and_leaves_no_index(client, tmp_path: Path, measured) -> None:
    what = ["--documents", "400,800", "--engines", "bm25,sparse"]
    how = ["--requests", "300", "--rounds", "3", "--block-seconds", "0.2,1"]
    done = measured(scale, *how, *what)
    assert done.exit_code == 0, done.output
    levels = {(row.where, row.line) for row in read(tmp_path / "record").rows if row.measure == "P50 ms"}
    assert levels == {(f"osn-scale-{size}, 2 clients", name) for size in (400, 800) for name in ("bm25", "sparse")}
    for words in ("the first 400 of 500 real documents", "resampled from 500 real documents"):
        assert words in done.output
    assert not client.indices.get(index="osn-scale*")
