"""Queries as this package encodes them, as sentence-transformers does, and as ml-commons does inside OpenSearch.

sentence-transformers must agree on every query. ml-commons differs in a few rules, each shown here by a test, and takes
too long to fetch: `as_ml_commons` follows its sources (SparseTokenizerModel.java of 2.19 to 3.3, DJL's
HuggingFaceTokenizer.java) on the `tokenizers` library that DJL wraps too. 1,500 of these queries were asked of
ml-commons 2.19.1, which answered as `as_ml_commons` does.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from opensearch_neural import QueryEncoder, queries
from opensearch_neural.errors import ModelError
from opensearch_neural.lint import lint
from opensearch_neural.models.directory import minilm_directory
from opensearch_neural.models.sparse import ml_commons
from opensearch_neural.models.sparse.idf import load_idf
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.sparse.word_pieces import train_word_pieces

QUERIES = 10_000

# fmt: off
WORDS = [
    "what", "causes", "a", "rainbow", "in", "the", "sky", "when", "it", "rains", "and", "sun", "shines", "how",
    "do",
]
# fmt: on
WORDS += ["I", "open", "file", "naïve", "café", "Zürich", "straße", "unbelievablyantidisestablishmentarian"]
WORDS += ["co-operate", "U.S.", "3.14", "1,000", "x_y", "don't", "can't"]
SCRIPTS = ["東京タワー", "서울", "ภาษาไทย", "Привет", "مرحبا", "שלום", "ελληνικά", "हिन्दी", "ﬁﬂ", "Ａｂｃ", "ＩＤＦ"]
SCRIPTS += ["İstanbul"]
EMOJI = ["🙂", "👩‍💻", "🏳️‍🌈", "👍🏽", "❤️", "©", "™", "🇫🇷"]
# fmt: off
CONTROLS = [
    "\x00", "\x07", "\t", "\n", "\r\n", "\x1b[0m", "\u200b", "\u00a0", "\u202e", "\ufeff", "\ufffd", "\u0301",
    "\x7f",
]
# fmt: on
SPECIALS = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "[sep]", "[SEP]s", "##ing", "<s>", "##"]


def many_queries(count: int, seed: int = 0) -> list[str]:
    """Every kind of query text: ordinary, mixed, empty, long, repeated, and of characters drawn at random."""
    draw = random.Random(seed)
    made = ["", " ", "\n", "[SEP]", " ".join(["word"] * 600), "a" * 2000, "東" * 700, "🙂" * 600, "é" * 600, ". " * 600]
    while len(made) < count:
        kind = draw.randrange(8)
        if kind == 0:
            parts = draw.choices(WORDS, k=draw.randint(1, 12))
        elif kind == 1:
            parts = draw.choices(WORDS + SCRIPTS + EMOJI + CONTROLS + SPECIALS, k=draw.randint(1, 20))
        elif kind == 2:
            parts = draw.choices(SPECIALS + WORDS[:4], k=draw.randint(1, 6))
        elif kind == 3:
            parts = [draw.choice(WORDS)] * draw.randint(2, 30)
        elif kind == 4:
            parts = ["".join(chr(draw.randint(1, 0x7F)) for _ in range(draw.randint(1, 40)))]
        elif kind == 5:
            parts = ["".join(_any_character(draw) for _ in range(draw.randint(1, 30)))]
        elif kind == 6 and draw.random() < 0.2:
            parts = draw.choices(WORDS + SCRIPTS, k=draw.randint(500, 540))
        else:
            parts = draw.choices(WORDS, k=draw.randint(1, 4))
        made.append(draw.choice([" ", " ", " ", "", "  ", "-", "."]).join(parts))
    return made


def _any_character(draw: random.Random) -> str:
    while True:
        code = draw.randrange(0x20, 0x2FA20)
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            return chr(code)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as `osn model lexical` writes it: idf.json lists every token, special ones with 0."""
    folder = tmp_path_factory.mktemp("parity") / "model"
    tokenizer = minilm_directory() or train_word_pieces([*WORDS, *SCRIPTS, "sun and rain"] * 3, vocabulary=2000)
    documents = [" ".join(WORDS), " ".join(SCRIPTS), "the sun shines", "rain and rainbows", "[SEP]"]
    build_lexical(documents, tokenizer=tokenizer).save(folder)
    return folder


def theirs(folder: Path, texts: list[str]) -> list[dict[str, float]]:
    """What a sentence-transformers SparseEncoder with the directory's tokenizer and table makes of queries."""
    pytest.importorskip("torch", reason="needs the extra [encode]")
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), model_max_length=512)
    module = SparseStaticEmbedding.from_json(str(folder / "idf.json"), tokenizer=tokenizer, frozen=True)
    model = SparseEncoder(modules=[module], similarity_fn_name="dot", device="cpu")
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    encoded: list[dict[str, float]] = [{}] * len(texts)
    # By length, for the least padding; 100 at a time, for a dense batch is (100, 30522) floats.
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for start in range(0, len(texts), 100):
        places = order[start : start + 100]
        batch = model.encode_query([texts[place] for place in places], batch_size=100, convert_to_sparse_tensor=False)
        for place, row in zip(places, np.asarray(batch), strict=True):
            (ids,) = row.nonzero()
            encoded[place] = {vocabulary[id_]: float(row[id_]) for id_ in ids}
    return encoded


def test_10_000_queries_have_the_tokens_and_weights_that_sentence_transformers_gives_them(model: Path) -> None:
    texts = many_queries(QUERIES)
    ours = QueryEncoder.load(model).encode_batch(texts)
    different = []
    for text, mine, other in zip(texts, ours, theirs(model, texts), strict=True):
        # Theirs are float32.
        if {token: np.float32(weight) for token, weight in mine.items()} != {
            t: np.float32(w) for t, w in other.items()
        }:
            different.append((text, mine, other))
    assert not different, different[:3]
    # The queries were what they are meant to be.
    tokenizer = QueryEncoder.load(model).tokenizer
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    assert sum(length > 512 for length in lengths) > 50
    assert sum(not query for query in ours) > 100
    assert sum(len(query) < length for query, length in zip(ours, lengths, strict=True)) > 3000


def test_a_table_that_does_not_list_every_token_parts_the_two(model: Path, tmp_path: Path) -> None:
    """Why `idf.json` lists every token: an unlisted one weighs 1 here and in OpenSearch, 0 in sentence-transformers."""
    encoder = QueryEncoder.load(model)
    encoder.save(tmp_path)
    (tmp_path / "idf.json").write_text(json.dumps({"rainbow": 5.0}))
    assert QueryEncoder.load(tmp_path).encode("rainbow sky") == {"rainbow": 5.0, "sky": 1.0}
    assert as_ml_commons(tmp_path, "rainbow sky") == {"rainbow": 5.0, "sky": 1.0}
    assert theirs(tmp_path, ["rainbow sky"]) == [{"rainbow": 5.0}]


# ------------------------------------------------------------------------------------------------------------ ml-commons


@functools.cache
def _djl_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.no_padding()
    return tokenizer


def as_ml_commons(folder: Path, text: str, table: dict[str, float] | None = None) -> dict[str, float]:
    """A query as ml-commons' sparse_tokenize model encodes it; `table` saves reading the folder's idf.json.

    DJL's tokenizer adds [CLS] and [SEP] and cuts off at 512 tokens with these two; each distinct id is decoded by itself
    with special tokens skipped; empty results are dropped; the table's weight, or 1, is looked up by that text.

    Raises ValueError for two ids of one text, where Java's Collectors.toMap throws IllegalStateException.
    """
    tokenizer = _djl_tokenizer(folder)
    table = load_idf(folder / "idf.json") if table is None else table
    weights: dict[str, float] = {}
    for id_ in dict.fromkeys(tokenizer.encode(text, add_special_tokens=True).ids):
        if token := tokenizer.decode([id_], skip_special_tokens=True):
            if token in weights:
                raise ValueError(f"duplicate key {token!r}")
            weights[token] = table.get(token, 1.0)
    return weights


def test_word_pieces_are_encoded_alike_up_to_510_tokens(model: Path) -> None:
    encoder, table = QueryEncoder.load(model), load_idf(model / "idf.json")
    compared = 0
    for text in many_queries(1500, seed=1):
        if len(encoder.tokenizer.encode(text, add_special_tokens=False).ids) <= 510:
            assert as_ml_commons(model, text, table) == encoder.encode(text), text
            compared += 1
    assert compared > 1400


def test_ml_commons_reads_two_tokens_less_of_a_long_query(model: Path) -> None:
    """512 with [CLS] and [SEP], which it adds and drops again: 510 of the query, where 512 are read here."""
    text = "the " * 510 + "rainbow sky sun"
    assert list(QueryEncoder.load(model).encode(text)) == ["the", "rainbow", "sky"]
    assert list(as_ml_commons(model, text)) == ["the"]


def test_the_query_side_alone_of_a_model_is_exported_as_ml_commons_reads_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any model with a table: this one has no network that could be traced, and torch is not needed."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match="--queries-only"):
        ml_commons.export(model, tmp_path)
    [written] = ml_commons.export(model, tmp_path, queries_only=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [written.config.name, written.zip.name]
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(written.zip) as archive:
        archive.extract("tokenizer.json", folder)
        archive.extract("idf.json", folder)
    encoder, table = QueryEncoder.load(model), load_idf(folder / "idf.json")
    compared = 0
    for text in many_queries(300, seed=2):
        if len(encoder.tokenizer.encode(text, add_special_tokens=False).ids) <= 510:
            assert as_ml_commons(folder, text, table) == encoder.encode(text), text
            compared += 1
    assert compared > 250


def test_ml_commons_passes_on_a_weight_of_0_which_opensearch_rejects(model: Path, tmp_path: Path) -> None:
    encoder = QueryEncoder.load(model)
    encoder.save(tmp_path)
    (tmp_path / "idf.json").write_text(json.dumps({**encoder.weights, "the": 0.0}))
    here, there = QueryEncoder.load(tmp_path).encode("the sky"), as_ml_commons(tmp_path, "the sky")
    assert list(here) == ["sky"]
    assert there == here | {"the": 0.0}
    assert [finding.rule for finding in lint(queries.neural_sparse(there))] == ["weight"]
    assert lint(queries.neural_sparse(here)) == []


def byte_level(folder: Path) -> Path:
    """A model whose tokenizer works on bytes, as those of RoBERTa and ModernBERT do; each byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "Ġs", "Ġsk"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "s"), ("Ġs", "k")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    QueryEncoder(tokenizer, dict.fromkeys(vocabulary, 2.0)).save(folder)
    return folder


def test_ml_commons_names_byte_level_tokens_by_their_text_and_finds_no_weight(tmp_path: Path) -> None:
    """Decoded, `Ġsk` is " sk", which neither the table nor a document's vector holds."""
    folder = byte_level(tmp_path)
    assert QueryEncoder.load(folder).encode("a sk") == {"a": 2.0, "Ġsk": 2.0}
    assert as_ml_commons(folder, "a sk") == {"a": 2.0, " sk": 1.0}


def test_ml_commons_fails_where_two_ids_have_one_text(tmp_path: Path) -> None:
    """Single bytes of a longer character all decode to U+FFFD."""
    folder = byte_level(tmp_path)
    assert len(QueryEncoder.load(folder).encode("é")) == 2
    with pytest.raises(ValueError, match="duplicate key '\ufffd'"):
        as_ml_commons(folder, "é")


@pytest.mark.cluster
def test_a_weight_of_0_from_ml_commons_would_cost_the_whole_query(client, index_name: str) -> None:
    from opensearchpy.exceptions import RequestError

    client.indices.create(index=index_name, body={"mappings": {"properties": {"sparse": {"type": "rank_features"}}}})
    with pytest.raises(RequestError, match=r"weight must be in \(0, 64"):
        client.search(index=index_name, body=queries.neural_sparse({"sky": 5.0, "the": 0.0}))
