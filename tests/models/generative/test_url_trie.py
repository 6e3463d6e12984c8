from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.generative import url_trie
from opensearch_neural.models.generative.url_trie import OUTSIDE, CorpusUrls, Repeated, Trie, shortened

MODEL = {"name": "m", "hash": "0123456789abcdef"}


def as_bytes(url: str) -> list[int]:
    """Each byte a token from 1, and 0 as the end."""
    return [*(byte + 1 for byte in url.encode()), 0]


def number_of(trie: Trie, sequence: Sequence[int]) -> int:
    """The number of a sequence, `OUTSIDE` for one that is not in the trie."""
    node = 0
    for token in sequence:
        _, tokens, children = trie.children(np.array([node]))
        (node,) = children[tokens == token].tolist() or [OUTSIDE]
    return OUTSIDE if node == OUTSIDE else int(trie.ends[node])


def build(*documents: tuple[str, str | None], length: int = 1000) -> CorpusUrls:
    return CorpusUrls.build(documents, as_bytes, model=MODEL, length=length)


def walked(trie: Trie) -> dict[tuple[int, ...], int]:
    """Every sequence that the trie holds, found by following `children` from the root."""
    numbers: dict[tuple[int, ...], int] = {}
    at: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while at:
        node, tokens = at.pop()
        if trie.ends[node] != OUTSIDE:
            numbers[tokens] = int(trie.ends[node])
        _, continuations, children = trie.children(np.array([node]))
        for token, child in zip(continuations.tolist(), children.tolist(), strict=True):
            at.append((child, (*tokens, token)))
    return numbers


sequences = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=30, unique_by=tuple)


@settings(max_examples=60)
@given(sequences)
def test_a_trie_holds_its_sequences_and_no_others(given_sequences: list[list[int]]) -> None:
    trie = Trie.build(given_sequences)
    assert walked(trie) == {tuple(sequence): number for number, sequence in enumerate(given_sequences)}
    assert len(trie) == len({tuple(sequence[:end]) for sequence in given_sequences for end in range(len(sequence) + 1)})
    assert trie.depth == max(map(len, given_sequences))
    for number, sequence in enumerate(given_sequences):
        assert number_of(trie, sequence) == number
        assert number_of(trie, [*sequence, 7]) == OUTSIDE


@settings(max_examples=30)
@given(sequences, st.lists(st.integers(0, 9), max_size=8))
def test_find_knows_only_what_was_put_in(given_sequences: list[list[int]], other: list[int]) -> None:
    number = number_of(Trie.build(given_sequences), other)
    assert (number == OUTSIDE) == (other not in given_sequences)


def test_children_of_many_nodes_at_once() -> None:
    trie = Trie.build([[3, 1], [3, 2], [5]])
    three, five = trie.children(np.array([0]))[2].tolist()
    rows, tokens, children = trie.children(np.array([0, five, three, OUTSIDE, 0]))
    assert list(zip(rows.tolist(), tokens.tolist(), strict=True)) == [(0, 3), (0, 5), (2, 1), (2, 2), (4, 3), (4, 5)]
    assert children[[0, 1, 4, 5]].tolist() == [three, five] * 2
    assert trie.ends[children].tolist() == [OUTSIDE, 2, 0, 1, OUTSIDE, 2]


def test_the_opening_is_what_all_sequences_begin_with() -> None:
    assert Trie.build([[4, 2, 3, 0], [4, 2, 0]]).opening(0) == ([4, 2], 2)
    assert Trie.build([[4, 2, 3, 0]]).opening(0) == ([4, 2, 3], 3)
    assert Trie.build([[4, 0], [5, 0]]).opening(0) == ([], 0)


def test_alike_sequences_are_named() -> None:
    with pytest.raises(Repeated) as caught:
        Trie.build([[1, 2], [3], [1, 2]])
    assert {caught.value.first, caught.value.second} == {0, 2}
    with pytest.raises(ValueError, match="at least one token"):
        Trie.build([[1], []])


def test_two_documents_with_the_same_url_are_refused_with_both_ids() -> None:
    with pytest.raises(InputError, match="the documents 'a' and 'c' have the same URL 'https://x/1'"):
        build(("a", "https://x/1"), ("b", "https://x/2"), ("c", "https://x/1"))


def test_documents_that_share_a_url_are_numbered_where_asked(tmp_path: Path) -> None:
    shared = [("a", "https://x"), ("b", "https://x"), ("c", "https://x#2"), ("d", "https://x"), ("e", "https://y")]
    urls = CorpusUrls.build(shared, as_bytes, model=MODEL, length=80, numbered=True)
    assert urls.urls == ["https://x", "https://x#2", "https://x#2#2", "https://x#3", "https://y"]
    urls.save(tmp_path)
    more = CorpusUrls.load(tmp_path).extended([("f", "https://x"), ("e", "https://x")], as_bytes)
    assert dict(more.documents()) == dict(zip("abcd", urls.urls[:4], strict=True)) | {
        "e": "https://x#4",
        "f": "https://x#5",
    }
    assert more.numbered and not build(("a", "https://x")).numbered


def test_a_documents_number_stays_its_own_when_others_come_and_go() -> None:
    shared = [(id, "https://x") for id in "abc"]
    before = CorpusUrls.build(shared, as_bytes, model=MODEL, length=80, numbered=True)
    # What the model writes for a document, it writes for no other one: not without the first, nor in another order.
    learned = dict(before.documents())
    fewer = CorpusUrls.build(shared[1:], as_bytes, model=MODEL, length=80, numbered=True, learned=learned)
    assert dict(fewer.documents()) == {"b": "https://x#2", "c": "https://x#3"}
    turned = [("new", "https://x"), *shared[::-1]]
    more = CorpusUrls.build(turned, as_bytes, model=MODEL, length=80, numbered=True, learned=learned)
    assert dict(more.documents()) == {**learned, "new": "https://x#4"}
    # One that was left out and comes back is what it was.
    back = fewer.extended([("new", "https://x"), ("a", "https://x")], as_bytes, learned=learned)
    assert dict(back.documents()) == {**learned, "new": "https://x#4"}
    # One in the middle that got another URL leaves its number to nobody.
    moved = before.extended([("b", "https://y"), ("a", "https://x"), ("d", "https://x")], as_bytes)
    assert dict(moved.documents()) == {"a": "https://x", "b": "https://y", "c": "https://x#3", "d": "https://x#4"}
    # A document that got the URL of others is the one that gets a number.
    apart = [("a", "https://x"), ("b", "https://z"), ("c", "https://x")]
    come = CorpusUrls.build(apart, as_bytes, model=MODEL, length=80, numbered=True)
    assert dict(come.extended([("b", "https://x")], as_bytes).documents()) == {
        "a": "https://x",
        "b": "https://x#3",
        "c": "https://x#2",
    }


def test_urls_that_only_the_tokenizer_confuses_are_refused_with_both_ids() -> None:
    with pytest.raises(InputError, match=r"'a' and 'b' have URLs that the tokenizer of m cannot tell apart"):
        CorpusUrls.build([("a", "x/A"), ("b", "x/a")], lambda url: as_bytes(url.lower()), model=MODEL, length=80)


@pytest.mark.parametrize("url", [None, ""])
def test_a_document_without_a_url_is_named(url: str | None) -> None:
    with pytest.raises(InputError, match="the document 'b' has no URL"):
        build(("a", "https://x/1"), ("b", url))
    with pytest.raises(InputError, match="no document"):
        build()


def test_a_url_that_another_begins_with_is_there_too() -> None:
    urls = build(("a", "https://x/1"), ("b", "https://x/12"), ("c", "https://x/"))
    assert [number_of(urls.trie, as_bytes(url)) for url in ("https://x/1", "https://x/12", "https://x/")] == [0, 1, 2]


def test_long_urls_are_cut_off_unless_their_beginning_is_anothers_too() -> None:
    alone, short, long = "ab" + "x" * 50, "cd" + "y" * 50, "cd" + "y" * 51
    urls = build(("alone", alone), ("one", short), ("other", long), length=10)
    assert shortened(as_bytes(alone), 10) == (*as_bytes(alone)[:9], 0)
    assert number_of(urls.trie, shortened(as_bytes(alone), 10)) == 0
    assert number_of(urls.trie, as_bytes(alone)) == OUTSIDE
    assert [number_of(urls.trie, as_bytes(url)) for url in (short, long)] == [1, 2]
    assert urls.trie.depth == len(as_bytes(long))


def test_unicode_and_very_long_urls_come_back(tmp_path: Path) -> None:
    given_urls = ["https://例え.jp/パス?q=é", "https://x/" + "a/" * 4000, "https://x/%F0%9F%8C%88#🌈"]
    build(*((str(at), url) for at, url in enumerate(given_urls))).save(tmp_path / "urls")
    loaded = CorpusUrls.load(tmp_path / "urls")
    assert loaded.urls == given_urls


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    urls = build(("a", "https://x/1"), ("b", "https://x/12"))
    urls.save(tmp_path)
    loaded = CorpusUrls.load(tmp_path)
    assert (loaded.ids, loaded.urls, loaded.model, loaded.length, loaded.corpus) == (
        urls.ids,
        urls.urls,
        urls.model,
        urls.length,
        urls.corpus,
    )
    assert walked(loaded.trie) == walked(urls.trie)
    about = json.loads((tmp_path / "urls.json").read_text())
    assert (about["model"], about["corpus"], about["documents"]) == (MODEL, urls.corpus, 2)


def test_urls_are_not_written_among_something_else_and_others_may_read_them(tmp_path: Path) -> None:
    urls = build(("a", "https://x/1"), ("b", "https://x/12"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for folder in (tmp_path / "model", tmp_path / "model" / "config.json"):
        with pytest.raises(InputError, match=r"holds something else \(config.json\)|is a file"):
            urls.save(folder)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]
    before = os.umask(0o022)
    try:
        urls.save(tmp_path / "urls")
        build(("a", "https://x/1")).save(tmp_path / "urls")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "urls").iterdir()} == {0o644}


def test_added_documents_are_reached_and_changed_ones_replaced() -> None:
    urls = build(("a", "https://x/1"), ("b", "https://x/2"))
    more = urls.extended([("c", "https://x/3"), ("b", "https://y/2")], as_bytes)
    assert dict(more.documents()) == {"a": "https://x/1", "b": "https://y/2", "c": "https://x/3"}
    assert number_of(more.trie, as_bytes("https://x/2")) == OUTSIDE
    assert more.ids[number_of(more.trie, as_bytes("https://x/3"))] == "c"
    assert more.model == MODEL and more.corpus != urls.corpus
    with pytest.raises(InputError, match="'a' and 'd' have the same URL"):
        urls.extended([("d", "https://x/1")], as_bytes)
    with pytest.raises(InputError, match="two of the added documents have the id 'd'"):
        urls.extended([("d", "https://x/8"), ("d", "https://x/9")], as_bytes)


@pytest.mark.parametrize("killed_at", ["save_file", "write_json"])
def test_a_folder_that_is_written_anew_is_whole_until_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    urls = build(("a", "https://x/1"), ("b", "https://x/2"))
    urls.save(tmp_path)
    more = urls.extended([("c", "https://x/3")], as_bytes)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(url_trie, killed_at, killed)
        with pytest.raises(KeyboardInterrupt):
            more.save(tmp_path)
    assert CorpusUrls.load(tmp_path).ids == ["a", "b"]
    more.save(tmp_path)
    assert CorpusUrls.load(tmp_path).ids == ["a", "b", "c"]
    assert len(list(tmp_path.iterdir())) == 3, "nothing of the one before is left"


def test_what_is_learned_is_what_decoding_is_held_to() -> None:
    long = "https://x/" + "a" * 20
    given_urls = [f"{long}#1", f"{long}#2", "https://y/" + "b" * 20, "https://z"]
    urls = build(*((str(at), url) for at, url in enumerate(given_urls)), length=16)
    sequences = urls.sequences(as_bytes)
    assert [number_of(urls.trie, sequence) for sequence in sequences] == [0, 1, 2, 3]
    assert [len(sequence) for sequence in sequences] == [33, 33, 16, 10]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"urls\.json is missing"):
        CorpusUrls.load(tmp_path)
    build(("a", "https://x/1"), ("b", "https://x/2")).save(tmp_path)
    (file,) = tmp_path.glob("documents-*.jsonl")
    documents = file.read_text()
    file.write_text(documents.splitlines()[0] + "\n")
    with pytest.raises(ModelError, match="do not belong together"):
        CorpusUrls.load(tmp_path)
    file.write_text(documents)
    (trie,) = tmp_path.glob("trie-*.safetensors")
    trie.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        CorpusUrls.load(tmp_path)
