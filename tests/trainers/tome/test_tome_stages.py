"""What each stage of TOME reads and writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from tome_setup import SMALL  # noqa: E402

from opensearch_neural.corpus.documents import Document  # noqa: E402
from opensearch_neural.models.pretrained import load_tokenizer  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.data.texts import TextStore  # noqa: E402
from trainers.tome.data import Queries, gather, tome_corpus  # noqa: E402
from trainers.tome.stages import ToPassage, ToUrl, span  # noqa: E402


def test_spans_are_parts_of_their_document_drawn_anew_at_each_visit(t5: Path) -> None:
    words = " ".join(f"word{at}" for at in range(60))
    drawn = [span(words, Visit(3, epoch, 0, 42)) for epoch in range(20)]
    assert all(one in words and 4 <= len(one.split()) <= 24 for one in drawn)
    assert len(set(drawn)) > 10
    assert span("two words", Visit(3, 0, 0, 42)) == "two words"

    tokenizer = load_tokenizer(t5)
    corpus = tome_corpus([Document("a", words, "", "u/a"), Document("b", "a b", "", "u/b")], tokenizer, SMALL)
    data = ToPassage(gather([], corpus.contents), corpus, tokenizer, SMALL, spans=2)
    assert len(data) == 4
    name, inputs, target = data[Visit(3, 0, 0, 42)]
    assert name == "span of b" and tokenizer.decode(inputs, skip_special_tokens=True) == "a b"
    assert tokenizer.decode(target, skip_special_tokens=True) == "passage: a b"


def test_half_a_surrogate_pair_is_read_in_spans_and_passages(t5: Path) -> None:
    tokenizer = load_tokenizer(t5)
    corpus = tome_corpus([Document("a", "half \ud83d pair", "", "u/a")], tokenizer, SMALL)
    data = ToPassage(gather([], corpus.contents), corpus, tokenizer, SMALL, spans=1)
    _, inputs, _ = data[Visit(0, 0, 0, 42)]
    assert tokenizer.decode(inputs, skip_special_tokens=True).startswith("half")


def test_long_texts_and_urls_are_cut_at_their_lengths(t5: Path) -> None:
    tokenizer = load_tokenizer(t5)
    long = Document("a", "cat " * 100, "dog " * 50, "https://zoo.org/" + "x" * 200)
    corpus = tome_corpus([long], tokenizer, SMALL)
    queries = Queries(TextStore([("q", "bird " * 100)]), np.array([[0, 0]]))
    (_, inputs, target) = ToPassage(queries, corpus, tokenizer, SMALL)[Visit(0, 0, 0, 0)]
    assert len(inputs) == SMALL.query_length and inputs[-1] == tokenizer.eos_token_id
    assert len(target) <= SMALL.written_length and target[-1] == tokenizer.eos_token_id
    url = ToUrl(queries, corpus, tokenizer, SMALL)[Visit(0, 0, 0, 0)][2]
    assert len(url) == SMALL.url_length and url[-1] == tokenizer.eos_token_id
    trie = corpus.urls.trie
    opening, node = trie.opening(url[-1])
    _, _, (leaf,) = trie.children(np.array([node]))
    assert opening == list(url[:-1]) and trie.ends[leaf] == 0
