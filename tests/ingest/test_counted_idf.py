"""A SPLADE that encodes both sides by its network is ingested as an inference-free model, with the corpus's table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from corpora import job, records, snapshot, write_jsonl
from own_code import give_own_code
from safetensors.torch import load_file, save_file

pytest.importorskip("torch", reason="needs the extra [encode]")

from ingest.documents import Documents
from ingest.job import run_job
from opensearch_neural import queries
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index import hidden_index
from opensearch_neural.index.record import IndexMeta, existing_record
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


def test_documents_hold_what_the_network_says_and_queries_weigh_by_the_corpus(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(60))
    report = run_job(client, job(corpus, index_name, sparse=str(splade)), show_progress=False)
    assert report.documents == 60
    meta = existing_record(client, index_name)
    assert meta.sparse is not None and meta.sparse.name == "my-splade"

    query = QueryEncoder.load(registry.link_of(meta.sparse.hash))
    tokens = query.encode("rainbow rain bow")
    document = snapshot(client, index_name)["doc-0-000000"]
    assert set(document["sparse"]) - set(document["text"].split()), "the network adds words"
    # Of two tokens, the one in fewer documents weighs more.
    held = {word: sum(word in text["text"].split() for text in records(60)) for word in ("rain", "bow")}
    rarer, other = sorted(held, key=lambda word: held[word])
    assert held[rarer] == held[other] or tokens[rarer] > tokens[other]
    hits = client.search(index=index_name, body=queries.neural_sparse(tokens, size=5, plugin=False))["hits"]["hits"]
    scores = {
        identifier: sum(weight * source["sparse"].get(token, 0.0) for token, weight in tokens.items())
        for identifier, source in snapshot(client, index_name).items()
    }
    assert hits[0]["_id"] == max(scores, key=lambda identifier: scores[identifier])


def test_an_index_keeps_its_table_when_more_documents_come(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(40))
    run_job(client, job(corpus, index_name, sparse=str(splade)), show_progress=False)
    before = existing_record(client, index_name)
    write_jsonl(corpus, records(70))
    run_job(client, job(corpus, index_name, sparse=str(splade)), show_progress=False)
    assert existing_record(client, index_name) == before
    assert client.count(index=index_name)["count"] == 70


def leave_models_behind(client: OpenSearch, index: str, splade: Path, folder: Path, osn_home: Path) -> IndexMeta:
    """Write an index and go on as on another machine, which lacks its model; returns the index's record."""
    corpus = write_jsonl(folder / "a.jsonl", records(30))
    run_job(client, job(corpus, index, sparse=str(splade)), show_progress=False)
    (osn_home / "models").rename(folder / "another machine's")
    return existing_record(client, index)


def test_a_machine_without_the_table_of_an_index_takes_it_from_the_cluster(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    osn_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = leave_models_behind(client, index_name, splade, tmp_path, osn_home)
    # The other machine is offline and has other versions of the libraries, which they note in what they write.
    monkeypatch.setattr("transformers.tokenization_utils_base.is_offline_mode", lambda: True)
    monkeypatch.setattr("transformers.configuration_utils.__version__", "5.99.0")
    monkeypatch.setattr("sentence_transformers.base.model.__version__", "6.99.0")
    other = write_jsonl(tmp_path / "b.jsonl", records(30, seed=5))
    another = Path(shutil.copytree(splade, tmp_path / "another"))
    weights = load_file(another / "model.safetensors")
    save_file({name: weight * 1.01 for name, weight in weights.items()}, another / "model.safetensors")
    with monkeypatch.context() as patched:
        patched.setattr("opensearch_neural.models.sparse.lexical.count_documents", None)  # it is refused before that
        with pytest.raises(ModelError, match=r"was written with the sparse model my-splade .*, but another \(\w+\) is"):
            run_job(client, job(other, index_name, sparse=str(another)), show_progress=False)
        with pytest.raises(ModelError, match=r"was written with the sparse model my-splade .*, but another \(\w+\) is"):
            Documents(client, index_name, sparse=str(another))
    assert before.sparse is not None and not registry.link_of(before.sparse.hash).exists()
    assert run_job(client, job(other, index_name, sparse=str(splade)), show_progress=False).documents == 30
    assert existing_record(client, index_name).sparse == before.sparse
    assert client.count(index=index_name)["count"] == 60
    # Documents are added one by one, too, and from then on the machine knows the model.
    shutil.rmtree(osn_home / "models")
    document = {"_id": "more", "text": "rain bow light"}
    with pytest.raises(ModelError, match="not on this machine"):
        Documents(client, index_name)
    assert Documents(client, index_name, sparse=str(splade)).add([document]).created == 1
    Documents(client, index_name).add([{**document, "_id": "again"}])
    stored = snapshot(client, index_name)
    assert stored["more"]["sparse"] == stored["again"]["sparse"]
    assert registry.link_of(before.sparse.hash).is_dir()  # type: ignore[union-attr]


def test_the_model_of_an_index_that_an_older_osn_wrote_is_made_again_with_the_same_libraries(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    osn_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older osn left the versions of the libraries in the model, and so in its hash."""
    with monkeypatch.context() as older:
        older.setattr("ingest.counted_idf._remove_versions", lambda model: None)
        before = leave_models_behind(client, index_name, splade, tmp_path, osn_home)
    other = write_jsonl(tmp_path / "b.jsonl", records(30, seed=5))
    assert run_job(client, job(other, index_name, sparse=str(splade)), show_progress=False).documents == 30
    assert existing_record(client, index_name).sparse == before.sparse


def test_another_corpus_makes_another_model_which_an_index_refuses(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, osn_home: Path
) -> None:
    run_job(
        client,
        job(write_jsonl(tmp_path / "a.jsonl", records(30)), index_name, sparse=str(splade)),
        show_progress=False,
    )
    # Where neither the machine nor the cluster has the index's table, it is counted anew, and is another one.
    (osn_home / "models").rename(tmp_path / "another machine's")
    query_hash = existing_record(client, index_name).sparse.query_hash  # type: ignore[union-attr]
    client.delete(index=hidden_index.INDEX, id=f"encoder-{query_hash}")
    other = write_jsonl(tmp_path / "b.jsonl", records(30, seed=5))
    with pytest.raises(ModelError, match="my-splade"):
        run_job(client, job(other, index_name, sparse=str(splade)), show_progress=False)


def test_an_index_of_another_model_takes_no_lexical_one(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(30))
    run_job(client, job(corpus, index_name, sparse=str(splade)), show_progress=False)
    with pytest.raises(ModelError, match="written with the sparse model my-splade, which is not a lexical one"):
        run_job(client, job(corpus, index_name, sparse="lexical", tokenizer=None), show_progress=False)
    with pytest.raises(InputError, match="--tokenizer applies to --sparse lexical"):
        run_job(client, job(corpus, index_name, sparse=None, tokenizer=str(splade)), show_progress=False)


def test_a_corpus_without_text_is_named(client: OpenSearch, index_name: str, tmp_path: Path, splade: Path) -> None:
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text(json.dumps({"_id": "a", "text": "…"}) + "\n")
    with pytest.raises(InputError, match=r"no IDF table can be made from"):
        run_job(client, job(corpus, index_name, sparse=str(splade)), show_progress=False)
    assert not client.indices.exists(index=index_name)


@pytest.mark.parametrize("further", [{}, {"prune_postings": Pruning("alpha_mass", 0.6)}])
def test_a_corpus_without_a_record_that_can_be_read_says_why(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, further: dict[str, Pruning]
) -> None:
    """The table is counted while documents are written, or, for pruned postings, before."""
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text(json.dumps({"_id": "a", "description": "Rain and light."}) + "\n")
    with pytest.raises(
        InputError, match=r"no IDF table .*line 1: no text: expected a field text or .*description"
    ) as raised:
        run_job(client, job(corpus, index_name, sparse=str(splade), **further), show_progress=False)
    assert "--text-field" in (raised.value.remedy or "")


def test_a_splade_that_needs_its_own_code_is_ingested_where_it_is_trusted(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    model = give_own_code(Path(shutil.copytree(splade, tmp_path / "odd-splade")))
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(20))
    with pytest.raises(ModelError, match="has code of its own, which is not run"):
        run_job(client, job(corpus, index_name, sparse=str(model)), show_progress=False)
    assert not (model / ".ran").exists() and not client.indices.exists(index=index_name)
    trusting = job(corpus, index_name, sparse=str(model), trust_remote_code=True)
    run_job(client, trusting, show_progress=False)
    written = snapshot(client, index_name)
    write_jsonl(corpus, records(30))
    assert run_job(client, trusting, show_progress=False).documents == 30  # by the model with the table that was kept

    client.indices.delete(index=index_name)
    run_job(client, job(write_jsonl(corpus, records(20)), index_name, sparse=str(splade)), show_progress=False)
    assert snapshot(client, index_name) == written
