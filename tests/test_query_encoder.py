"""Queries as token weights, and what it costs to import that."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from opensearch_neural import QueryEncoder, files
from opensearch_neural.errors import ModelError
from opensearch_neural.models.sparse.word_pieces import train_word_pieces
from opensearch_neural.models.tokenizer import load_tokenizer

SENTENCE = "what causes a rainbow in the sky when it rains and sun shines café 東 京 . , 12 unrelated"
WORDS = SENTENCE.split()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_word_pieces(WORDS * 3, vocabulary=400)


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> QueryEncoder:
    return QueryEncoder(tokenizer, {"rainbow": 7.5, "the": 0.25, "a": 0.0, "[SEP]": 3.0})


def test_a_query_is_its_distinct_tokens_in_order_of_appearance(encoder: QueryEncoder) -> None:
    weights = encoder.encode("The rainbow in the rainbow")
    assert list(weights.items()) == [("the", 0.25), ("rainbow", 7.5), ("in", 1.0)]


@pytest.mark.parametrize("text", [SENTENCE, "[MASK] a\nrainbow", "sky " * 2000 + "café", "\ud800 sun", ""])
def test_the_tokens_in_a_text_are_all_that_the_tokenizer_finds(encoder: QueryEncoder, text: str) -> None:
    tokens = encoder.tokenizer.encode(text.replace("\ud800", "\ufffd"), add_special_tokens=False).tokens
    assert encoder.tokens_in(text) == encoder.tokens_in(text) == set(tokens)


def test_a_token_that_the_table_does_not_list_weighs_one(encoder: QueryEncoder) -> None:
    assert encoder.encode("sky") == {"sky": 1.0}


def test_a_token_that_the_table_lists_with_zero_is_ignored(encoder: QueryEncoder) -> None:
    assert encoder.encode("a sky") == {"sky": 1.0}


@pytest.mark.parametrize("text", ["[SEP]", "[CLS] [MASK][PAD]", "", "   ", "\U0001f642", "[UNK]"])
def test_special_and_unknown_tokens_weigh_nothing_also_by_name(encoder: QueryEncoder, text: str) -> None:
    assert encoder.encode(text) == {}


def test_tokens_past_the_maximum_length_are_not_read(tokenizer: Tokenizer) -> None:
    encoder = QueryEncoder(tokenizer, {"sky": 2.0}, max_length=3)
    assert encoder.encode("a a a sky") == {"a": 1.0}
    assert encoder.encode("a a sky a") == {"a": 1.0, "sky": 2.0}
    assert QueryEncoder(tokenizer, {"sky": 2.0}).encode("a " * 511 + "sky the") == {"a": 1.0, "sky": 2.0}


def test_the_tokenizers_own_padding_and_truncation_are_not_used_and_not_changed(tokenizer: Tokenizer) -> None:
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_truncation(2)
    padded.enable_padding(length=8)
    assert list(QueryEncoder(padded, {"sky": 2.0}).encode("a the sky")) == ["a", "the", "sky"]
    assert len(padded.encode("a the sky").ids) == 8


@given(texts=st.lists(st.text() | st.sampled_from(WORDS), max_size=5))
@settings(max_examples=50)
def test_a_batch_is_encoded_as_its_texts_one_by_one(encoder: QueryEncoder, texts: list[str]) -> None:
    assert encoder.encode_batch(texts) == [encoder.encode(text) for text in texts]


@given(
    text=st.lists(
        st.text(max_size=6) | st.sampled_from([*WORDS, "[SEP]", "\u0301", "\x1c", "\u00a0", "\u3000", "ΑΣ"]),
        max_size=12,
    ).map(" ".join)
)
def test_remembered_words_are_the_tokens_of_the_whole_text(tokenizer: Tokenizer, text: str) -> None:
    """The second time nothing is asked of the tokenizer."""
    encoder = QueryEncoder(tokenizer, {"sky": 2.0}, max_length=9)
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:9]
    tokens = [encoder.vocabulary[id_] for id_ in dict.fromkeys(ids)]
    expected = [token for token in tokens if encoder.weights[token]]
    assert list(encoder.encode(text)) == list(encoder.encode(text)) == expected


def test_words_are_remembered_in_bounded_number(encoder: QueryEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opensearch_neural.models.sparse.table_encoder.WORDS_KEPT", 10)
    for number in range(100):
        encoder.encode(f"the{number} {'x' * 100}")
        encoder.heaviest(f"the{number}")
    encoder.heaviest("x" * 100)
    assert len(encoder._ids_of_word) <= 10
    assert len(encoder._heaviest_of_word) <= 10 and "x" * 100 not in encoder._heaviest_of_word


@given(
    word=st.text(st.characters(exclude_categories=("Z", "Cc")), max_size=6)
    | st.sampled_from([*WORDS, "[SEP]", "\ud83d"])
)
def test_a_word_is_as_heavy_as_its_heaviest_token_asked_once_or_twice(tokenizer: Tokenizer, word: str) -> None:
    encoder = QueryEncoder(tokenizer, {"sky": 2.0, "rainbow": 7.5, "the": 0.25})
    expected = max(encoder.encode(word).values(), default=0.0)
    assert encoder.heaviest(word) == encoder.heaviest(word) == expected


def test_the_prompt_adds_nothing_to_the_weight_of_a_word(tokenizer: Tokenizer) -> None:
    prompted = QueryEncoder(tokenizer, {"sky": 2.0, "rainbow": 7.5}, prompt="rainbow ")
    assert prompted.heaviest("sky") == 2.0 and prompted.encode("sky") == {"rainbow": 7.5, "sky": 2.0}


def test_a_tokenizer_that_marks_words_by_the_space_before_them_is_not_asked_word_by_word() -> None:
    from tokenizers import models, pre_tokenizers

    marked = Tokenizer(models.Unigram([("▁the", -1.0), ("▁sky", -1.0), ("the", -2.0), ("▁", -3.0)], unk_id=3))
    marked.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    encoder = QueryEncoder(marked, {"▁sky": 2.0})
    assert encoder.encode("the sky") == {"the": 1.0, "▁sky": 2.0}


@given(text=st.text())
def test_every_weight_is_finite_and_positive_for_any_text(encoder: QueryEncoder, text: str) -> None:
    assert all(weight > 0 and math.isfinite(weight) for weight in encoder.encode(text).values())


def test_half_a_surrogate_pair_is_read_as_an_unknown_character(encoder: QueryEncoder) -> None:
    assert encoder.encode("the \ud83d rainbow") == {"the": 0.25, "rainbow": 7.5}
    assert encoder.encode_batch(["the \ud83d rainbow"]) == [{"the": 0.25, "rainbow": 7.5}]


def test_threads_that_share_an_encoder_get_what_one_gets(encoder: QueryEncoder) -> None:
    texts = [" ".join(WORDS[i % 7 : i % 11 + 7]) for i in range(400)]
    alone = [encoder.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encoder.encode, texts)) == alone


def test_a_copy_of_two_files_is_a_query_encoder(encoder: QueryEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    copied = tmp_path / "query"
    copied.mkdir()
    for name in ("tokenizer.json", "idf.json"):
        shutil.copy(tmp_path / "model" / name, copied)
    loaded = QueryEncoder.load(copied)
    assert loaded.encode("the rainbow in a sky") == encoder.encode("the rainbow in a sky")
    assert loaded.hash == encoder.hash
    assert loaded.name == "query"


@pytest.mark.parametrize("limit", [None, 7])
def test_the_maximum_length_is_saved_with_the_encoder(tokenizer: Tokenizer, tmp_path: Path, limit: int | None) -> None:
    encoder = QueryEncoder(tokenizer, {"sky": 2.0}, max_length=limit)
    encoder.save(tmp_path)
    assert QueryEncoder.load(tmp_path).max_length == limit


def test_the_hash_changes_with_a_weight_the_length_or_the_splitting(tokenizer: Tokenizer) -> None:
    hashes = {
        QueryEncoder(tokenizer, {"sky": 2.0}).hash,
        QueryEncoder(tokenizer, {"sky": 2.001}).hash,
        QueryEncoder(tokenizer, {"sky": 2.0}, max_length=64).hash,
    }
    cased = Tokenizer.from_str(tokenizer.to_str().replace('"lowercase":true', '"lowercase":false'))
    hashes.add(QueryEncoder(cased, {"sky": 2.0}).hash)
    assert len(hashes) == 4
    # A table that says explicitly what is so anyway encodes alike.
    assert QueryEncoder(tokenizer, {"sky": 2.0, "the": 1.0, "[SEP]": 0.0}).hash in hashes


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_an_unusable_weight_is_refused(tokenizer: Tokenizer, weight: float) -> None:
    with pytest.raises(ModelError, match="token 'sky'"):
        QueryEncoder(tokenizer, {"sky": weight})


def test_a_table_of_another_models_tokens_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="no token of the table"):
        QueryEncoder(tokenizer, {"▁sky": 2.0, "▁the": 1.0})


def test_each_missing_or_broken_file_is_named(encoder: QueryEncoder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model directory at"):
        QueryEncoder.load(tmp_path / "absent" / "model")
    with pytest.raises(ModelError, match=r"no idf\.json"):
        QueryEncoder.load(tmp_path)
    encoder.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        QueryEncoder.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        QueryEncoder.load(tmp_path)


def test_a_router_path_that_leaves_the_directory_is_refused(encoder: QueryEncoder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    encoder.save(outside)
    model = tmp_path / "model"
    model.mkdir()
    (model / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "x.Router"}]')
    router = {"types": {"../outside": "x.SparseStaticEmbedding"}, "structure": {"query": ["../outside"]}}
    (model / "router_config.json").write_text(json.dumps(router))
    with pytest.raises(ModelError, match="leaves the model directory"):
        QueryEncoder.load(model)


def test_importing_the_package_and_encoding_a_query_imports_no_torch(encoder: QueryEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    script = (
        "import sys, opensearch_neural\n"
        "from opensearch_neural import QueryEncoder, queries\n"
        "weights = QueryEncoder.load(sys.argv[1]).encode('the rainbow')\n"
        "queries.neural_sparse(weights)\n"
        "print(weights, *{'torch', 'transformers', 'scipy', 'sentence_transformers', 'numpy'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str({"the": 0.25, "rainbow": 7.5})


def test_word_pieces_are_the_same_for_the_same_texts() -> None:
    """The library numbers characters in the order of a randomly seeded hash table; an index must not depend on that."""
    vocabularies = [train_word_pieces(WORDS * 3, vocabulary=300).get_vocab() for _ in range(4)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": True}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}]
)
def test_a_tokenizers_configuration_counts_as_in_transformers(
    tmp_path: Path, lowercase: bool, kind: str, config: dict[str, bool]
) -> None:
    """A cased model whose tokenizer.json was written with lower case, and the reverse."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [encode]")
    from tokenizers import models, normalizers, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "berlin", "Berlin", "cafe", "café", "Café"]
    written = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    written.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    written.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    written.save(str(tmp_path / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, **special, "tokenizer_class": kind}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Berlin", "Café", "berlin café Berlin"):
        ours = load_tokenizer(tmp_path).encode(text, add_special_tokens=False).tokens
        assert ours == theirs.tokenize(text), text


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("kind", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}])
def test_the_space_before_a_text_is_put_as_in_transformers(
    tmp_path: Path, spaced: bool, kind: str, config: dict[str, bool]
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [encode]")
    from tokenizers import models, pre_tokenizers

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "Ġ", "Ġa"]
    written = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, [("Ġ", "a")]))
    written.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    written.save(str(tmp_path / "tokenizer.json"))
    special = {
        "cls_token": "<s>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, **special, "tokenizer_class": kind}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).encode("a a", add_special_tokens=False).tokens == theirs.tokenize("a a")


def test_bytes_hold_all_that_encoding_needs(encoder: QueryEncoder) -> None:
    again = QueryEncoder.from_bytes(encoder.to_bytes(), name="a model")
    assert again.hash == encoder.hash and again.encode(SENTENCE) == encoder.encode(SENTENCE)
    assert encoder.to_bytes() == again.to_bytes()


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"weights": [1.0]}, {"weights": None}, {"tokenizer": {"model": "?"}}, {"max_length": "long"}],
    ids=str,
)
def test_bytes_that_are_no_query_side_are_refused_by_the_models_name(
    encoder: QueryEncoder, change: dict[str, object]
) -> None:
    held = {**files.unpacked_json(encoder.to_bytes()), **change}
    for content in (files.packed_json(held), encoder.to_bytes()[:-9], b"no gzip"):
        with pytest.raises(ModelError, match="the query encoder of a model that the cluster stores cannot be read"):
            QueryEncoder.from_bytes(content, name="a model")


def test_bytes_that_unpack_to_too_much_are_refused(encoder: QueryEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED", 1000)
    with pytest.raises(ModelError, match="too large"):
        QueryEncoder.from_bytes(encoder.to_bytes(), name="a model")
