"""The models of an index: what wrote it is loaded, another is refused."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from opensearchpy import OpenSearch

from opensearch_neural.errors import ModelError
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta, SparseMeta
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    build_lexical(["rain and sun make a rainbow", "flour and sugar make a cake"]).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def meta(saved: Path) -> IndexMeta:
    model = LexicalEncoder.load(saved)
    return IndexMeta(sparse=SparseMeta("lexical", model.info.hash, model.query.hash))


def test_the_model_that_wrote_the_index_is_loaded_once(saved: Path, meta: IndexMeta) -> None:
    models = IndexModels("docs", meta, sparse=str(saved))
    assert meta.sparse is not None
    assert models.query_encoder is models.query_encoder and models.query_encoder.hash == meta.sparse.query_hash
    assert models.sparse.info.hash == meta.sparse.hash


def test_it_is_found_by_its_hash(saved: Path, meta: IndexMeta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    with pytest.raises(ModelError, match="is not on this machine"):
        _ = IndexModels("docs", meta).query_encoder
    assert meta.sparse is not None
    registry.remember(meta.sparse.hash, saved)
    assert IndexModels("docs", meta).sparse.info.name == "lexical", "not by the folder in which it is kept"


def test_the_query_encoder_on_the_cluster_serves_where_the_folder_holds_another_model_by_now(
    saved: Path, meta: IndexMeta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    assert meta.sparse is not None
    registry.remember(meta.sparse.hash, saved)
    wrote, cluster = LexicalEncoder.load(saved).query, cast("OpenSearch", object())
    monkeypatch.setattr("opensearch_neural.index.models.read_encoder", lambda client, hash: wrote.to_bytes())
    build_lexical(["another corpus altogether"]).save(saved)
    assert IndexModels("docs", meta, client=cluster).query_encoder.hash == wrote.hash
    (saved / "idf.json").write_text("damaged")
    assert IndexModels("docs", meta, client=cluster).query_encoder.hash == wrote.hash
    with pytest.raises(ModelError, match=r"idf\.json"):
        _ = IndexModels("docs", meta).query_encoder


@pytest.mark.parametrize("home", [None, f"/{'x' * 300}"], ids=["none", "unreadable"])
def test_the_query_encoder_on_the_cluster_serves_a_user_whose_home_folder_cannot_be_read(
    saved: Path, meta: IndexMeta, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """Before: RuntimeError, and PermissionError in a service that gave up root's rights and kept HOME=/root. A name that is
    too long stands for that folder, because root may read all others."""
    for name in ("OSN_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is None:
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    wrote, cluster = LexicalEncoder.load(saved).query, cast("OpenSearch", object())
    monkeypatch.setattr("opensearch_neural.index.models.read_encoder", lambda client, hash: wrote.to_bytes())
    assert IndexModels("docs", meta, client=cluster).query_encoder.hash == wrote.hash
    with pytest.raises(ModelError, match="is not on this machine"):
        _ = IndexModels("docs", meta).query_encoder


def test_another_model_is_refused_with_both_names(meta: IndexMeta, tmp_path: Path) -> None:
    build_lexical(["another corpus altogether"]).save(tmp_path / "other")
    for side in ("sparse", "query_encoder"):
        models = IndexModels("docs", meta, sparse=str(tmp_path / "other"), remedy="name the right one")
        with pytest.raises(
            ModelError, match=r"was written with the sparse model lexical .*, and this is .*other"
        ) as error:
            getattr(models, side)
        assert error.value.remedy == "name the right one"


def test_an_index_without_such_vectors_has_no_model_for_them(meta: IndexMeta) -> None:
    models = IndexModels("docs", meta)
    for kind, message in (("dense", "dense"), ("quantized", "quantized"), ("reconstructed", "reconstructed")):
        with pytest.raises(ModelError, match=f"the index 'docs' holds no {message} vectors"):
            getattr(models, kind)
    for kind, message in (("dense", "dense"), ("quantized", "quantized")):
        with pytest.raises(ModelError, match=f"the index 'docs' holds no {message} vectors"):
            IndexModels("docs", meta, **{kind: "anything"})


def test_an_index_that_is_not_there_yet_takes_any_model_that_is_named(saved: Path) -> None:
    assert IndexModels("docs", None, sparse=str(saved)).sparse.info.path == saved
    with pytest.raises(ModelError, match="no sparse model is named"):
        _ = IndexModels("docs", None).sparse


def test_a_model_that_is_held_is_not_loaded(meta: IndexMeta, saved: Path) -> None:
    encoder = LexicalEncoder.load(saved)
    models = IndexModels("docs", meta, sparse="/nowhere")
    assert models.holding(sparse=encoder).sparse is encoder
    with pytest.raises(ModelError):
        _ = models.sparse
