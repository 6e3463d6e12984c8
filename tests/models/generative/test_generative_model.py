from __future__ import annotations

import copy
import random
import string
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import HealthCheck, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.directory import write_osn_json  # noqa: E402
from opensearch_neural.models.generative.generative_model import GenerativeModel, UrlTokenizer, load_generative  # noqa: E402
from opensearch_neural.models.generative.settings import KIND, GenerativeSettings, write_settings  # noqa: E402
from opensearch_neural.models.generative.url_trie import CorpusUrls  # noqa: E402
from opensearch_neural.retrievers.generative import GenerativeRetriever  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402

TEXTS = ["the cat lives in a house", "https://en.wikipedia.org/wiki/Cat", "title: passage: 0123456789"] * 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_t5(folder: Path, seed: int) -> None:
    tokenizer = backbones.train_tokenizer(TEXTS, "byte-level", 400)
    torch.manual_seed(seed)
    model = backbones.new_backbone(NewBackbone("t5", layers=1, hidden=16, heads=2, dropout=0.0), tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():  # So that an untrained model is not indifferent between tokens.
            parameter.mul_(1.5)
    backbones.save(model, tokenizer, folder)


def directory_of(folder: Path, *, single_stage: bool = False, **options: Any) -> Path:
    for seed, stage in enumerate(["url"] if single_stage else ["url", "passage"]):
        tiny_t5(folder / stage, seed)
    chosen = GenerativeSettings(**{"passage_length": 6, "title_length": 4, "url_length": 24, **options})
    write_settings(folder, chosen, single_stage=single_stage)
    write_osn_json(folder, KIND)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GenerativeModel:
    return load_generative(directory_of(tmp_path_factory.mktemp("models") / "tome"), device="cpu")


def indexed(model: GenerativeModel, *urls: str) -> CorpusUrls:
    return model.index_urls((f"d{at}", url) for at, url in enumerate(urls))


def score(model: GenerativeModel, text: str, tokens: Sequence[int]) -> float:
    """The log-probability of the tokens that stand for a document, all at once and without a cache."""
    network, tokenizer = model.url
    inputs = tokenizer(text, return_tensors="pt")
    target = torch.tensor([tokens])
    with torch.no_grad():
        logits = network(**inputs, labels=target, use_cache=False).logits
    return float(logits.log_softmax(-1).gather(-1, target[..., None]).sum())


# ------------------------------------------------------------------------------------------------ tokens


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_every_text_comes_back_from_its_tokens(model: GenerativeModel, text: str) -> None:
    codec = UrlTokenizer(model.url[1])
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize("url", ["https://x/</s>/a", "https://x/<pad>", "https://例え.jp/é?q=<extra_id_0>"])
def test_what_reads_like_a_special_token_is_text(model: GenerativeModel, url: str) -> None:
    codec = UrlTokenizer(model.url[1])
    assert codec.encode(url).count(codec.end) == 1
    assert codec.decode(codec.encode(url)) == url


def test_a_passage_is_title_and_text_each_cut_at_its_length(model: GenerativeModel) -> None:
    _, tokenizer = model.url
    chosen = GenerativeSettings(title_length=2, passage_length=3)
    pieces = [tokenizer.tokenize(text) for text in ("lives in a house", "the cat lives in a house")]
    title = tokenizer.convert_tokens_to_string(pieces[0][:2])
    text = tokenizer.convert_tokens_to_string(pieces[1][:3])
    passage = chosen.passage(tokenizer, " lives  in a house", "the\ncat lives in a house")
    assert passage == f"title: {title.strip()} passage: {text.strip()}"
    assert chosen.passage(tokenizer, "", "the") == "passage: the"
    assert GenerativeSettings(prompts=False).passage(tokenizer, "cat", "the") == "cat the"
    assert chosen.passage(tokenizer, "", "") == ""
    # Whatever the tokenizer was last told about lengths.
    tokenizer(["the cat", "the cat lives in a house"], truncation=True, max_length=2, padding=True)
    assert chosen.passage(tokenizer, " lives  in a house", "the\ncat lives in a house") == passage
    cut = tokenizer("the cat lives in a house", truncation=True, max_length=2)["input_ids"]
    assert len(cut) == 2, "and what it is told then"


def test_random_identifiers_are_digits_that_only_the_url_decides() -> None:
    chosen = GenerativeSettings(identifiers="random")
    assert chosen.identifier("https://x/1") == chosen.identifier("https://x/1") != chosen.identifier("https://x/2")
    assert len(chosen.identifier("https://x/1")) == 12 and chosen.identifier("https://x/1").isdigit()
    assert GenerativeSettings().identifier("https://x/1") == "https://x/1"


# ------------------------------------------------------------------------------------------------ held to the trie

url_sets = st.lists(
    st.text(string.ascii_lowercase + "/é🌈", min_size=1, max_size=8), min_size=1, max_size=12, unique=True
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(url_sets, st.integers(1, 5), st.lists(st.text(string.ascii_lowercase, max_size=6), min_size=1, max_size=3))
@example(["🌈" * 6, "🌈" * 7, "🌈" * 8 + "/"], 2, ["a"])  # Longer than what is written of a URL, and alike so far.
@example(["a", "ab", "abc"], 3, ["", "b"])
def test_decoding_never_leaves_the_trie(
    model: GenerativeModel, given_urls: list[str], beams: int, texts: list[str]
) -> None:
    urls = indexed(model, *given_urls)
    learned = urls.sequences(model.encode)
    documents = model.find_documents(texts, urls, beams=beams)
    assert len(documents) == len(texts)
    for text, hits in zip(texts, documents, strict=True):
        rows = [row for row, _ in hits]
        # At least one, each once, and none that is not a document.
        assert 1 <= len(rows) == len(set(rows)) <= beams
        assert set(rows) <= set(range(len(given_urls)))
        assert [value for _, value in hits] == sorted((value for _, value in hits), reverse=True)
        for row, value in hits:
            assert value == pytest.approx(score(model, text, learned[row]), abs=2e-3)


def test_as_many_beams_as_documents_give_all_of_them_in_the_order_of_their_probability(model: GenerativeModel) -> None:
    drawn = random.Random(3)
    given_urls = sorted({"".join(drawn.choices("abc", k=drawn.randint(1, 4))) for _ in range(12)})
    urls = indexed(model, *given_urls)
    (documents,) = model.find_documents(["the cat"], urls, beams=60)
    learned = urls.sequences(model.encode)
    expected = sorted(range(len(given_urls)), key=lambda row: -score(model, "the cat", learned[row]))
    assert [row for row, _ in documents] == expected


def beam_search(model: GenerativeModel, text: str, given_urls: list[str], beams: int) -> list[int]:
    """The same search, plainly: one beam after the other, each from its beginning."""
    network, tokenizer = model.url
    codec = UrlTokenizer(tokenizer)
    sequences = [tuple(codec.encode(url)) for url in given_urls]
    inputs = tokenizer(text, return_tensors="pt")
    going: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: dict[int, float] = {}
    while going:
        candidates = []
        for total, written in going:
            start = torch.tensor([[network.generation_config.decoder_start_token_id, *written]])
            with torch.no_grad():
                logs = network(**inputs, decoder_input_ids=start, use_cache=False).logits[0, -1].log_softmax(-1)
            for token in {beam[len(written)] for beam in sequences if beam[: len(written)] == written}:
                candidates.append((total + float(logs[token]), (*written, token)))
        candidates.sort(key=lambda beam: -beam[0])
        for total, written in candidates[:beams]:
            if written[-1] == codec.end:
                finished[sequences.index(written)] = total
        going = [beam for beam in candidates if beam[1][-1] != codec.end][:beams]
        best = sorted(finished.values(), reverse=True)[:beams]
        if going and len(best) == beams and going[0][0] <= best[-1]:
            break
    return sorted(finished, key=lambda row: -finished[row])[:beams]


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_the_search_is_beam_search(model: GenerativeModel, beams: int) -> None:
    drawn = random.Random(beams)
    for text in ("the cat", "a house", "wiki", "lives"):
        given_urls = sorted({"".join(drawn.choices("abc", k=drawn.randint(1, 4))) for _ in range(12)})
        (documents,) = model.find_documents([text], indexed(model, *given_urls), beams=beams)
        assert [row for row, _ in documents] == beam_search(model, text, given_urls, beams)


def test_one_url_that_another_begins_with_both_are_reached(model: GenerativeModel) -> None:
    urls = indexed(model, "https://x/1", "https://x/12")
    (documents,) = model.find_documents(["the cat"], urls, beams=2)
    assert sorted(row for row, _ in documents) == [0, 1]
    # Greedily, too: one ends where the other goes on, as the text says.
    learned = taught(model, {"a": "https://x/1", "the cat": "https://x/12"}, steps=200)
    documents = learned.find_documents(["a", "the cat"], urls, beams=1)
    assert [hits[0][0] for hits in documents] == [0, 1]
    assert learned.find_urls(["a", "the cat"]) == ["https://x/1", "https://x/12"]


def test_decoding_uses_nothing_that_transformers_is_to_drop(model: GenerativeModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        model.find_documents(["the cat"], indexed(model, "https://x/1", "https://y/2"), beams=2)
        model.find_urls(["the cat"])


@pytest.mark.parametrize("beams", [1, 3])
def test_a_single_url_is_all_that_can_be_found(model: GenerativeModel, beams: int) -> None:
    urls = indexed(model, "https://en.wikipedia.org/wiki/Cat")
    documents = model.find_documents(["the cat", "", "house"], urls, beams=beams)
    assert [[row for row, _ in hits] for hits in documents] == [[0], [0], [0]]


@pytest.mark.parametrize("beams", [1, 2])
def test_unicode_and_very_long_urls_are_reached(model: GenerativeModel, beams: int) -> None:
    for url in ("https://例え.jp/パス?q=é#🌈", "https://x/" + "a/" * 300):
        urls = indexed(model, url, "https://y/")
        assert urls.trie.depth <= model.settings.url_length
        learned = taught(model, {"a": url, "the cat": "https://y/"}, steps=200)
        documents = learned.find_documents(["a", "the cat"], urls, beams=beams)
        assert [hits[0][0] for hits in documents] == [0, 1]


def taught(
    model: GenerativeModel, known: dict[str, str], steps: int = 60, urls: CorpusUrls | None = None
) -> GenerativeModel:
    """A copy whose last stage has begun to learn {text: URL}, as all of `urls` are told apart."""
    network, tokenizer = copy.deepcopy(model.url[0]).train(), model.url[1]
    inputs = tokenizer(list(known), padding=True, return_tensors="pt")
    of_corpus = urls or indexed(model, *dict.fromkeys(known.values()))
    targets = dict(zip(of_corpus.urls, of_corpus.sequences(model.encode), strict=True))
    labels = [torch.tensor(targets[url]) for url in known.values()]
    labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        network(**inputs, labels=labels).loss.backward()
        optimizer.step()
    return replace(model, url=(network.eval(), tokenizer))


def test_free_decoding_finds_documents_whose_urls_are_longer_than_what_is_written(model: GenerativeModel) -> None:
    long = f"https://x/{string.ascii_lowercase}{string.digits}"
    known = {
        "a": f"https://y/{string.ascii_lowercase[::-1]}{string.digits}",
        "the cat": f"{long}#1",
        "house": f"{long}#2",
        "wiki": "https://z",
    }
    urls = indexed(model, *known.values())
    learned = taught(model, known, steps=250, urls=urls)
    assert learned.info.hash == model.info.hash
    queries = dict(zip(known, known, strict=True))
    single = replace(learned, passage=None)
    run = GenerativeRetriever(single, urls, decoding="free").retrieve(queries, 1)
    assert [list(run[query]) for query in known] == [["d0"], ["d1"], ["d2"], ["d3"]]
    # A document's URL is found by what was learned of it, and not by less.
    assert "https://y/" not in model.written(urls) and known["wiki"] in model.written(urls)


def test_greedy_is_the_free_choice_where_that_is_a_url(model: GenerativeModel) -> None:
    """So exact matches of free decoding are never lost by the constraint."""
    known = {f"the cat {at}": f"https://x/{at}" for at in range(8)}
    learned = taught(model, known)
    texts = [*known, "the house", "a cat in wiki"]
    written = learned.find_urls(texts)
    ended = [
        (text, url)
        for text, url in zip(texts, written, strict=True)
        if url and len(UrlTokenizer(model.url[1]).encode(url)) < 24
    ]
    assert len(ended) >= 5, "nothing that could show it"
    others = [url[:-1] + letter for url in written if url for letter in "ab"]
    urls = indexed(learned, *dict.fromkeys([*(url for _, url in ended), *known.values(), *others, "t"]))
    documents = learned.find_documents(texts, urls)
    for text, url in ended:
        assert documents[texts.index(text)][0][0] == urls.urls.index(url)


def test_batches_and_beams_of_others_change_nothing(model: GenerativeModel) -> None:
    drawn = random.Random(5)
    urls = indexed(model, *sorted({"".join(drawn.choices("abcd/", k=drawn.randint(2, 7))) for _ in range(30)}))
    texts = ["the cat", "a", "lives in a house with the cat", "wiki", ""]
    together = model.find_documents(texts, urls, beams=3)
    apart = [model.find_documents([text], urls, beams=3)[0] for text in texts]
    assert [[row for row, _ in hits] for hits in together] == [[row for row, _ in hits] for hits in apart]
    assert [[row for row, _ in hits] for hits in model.find_documents(texts, urls, beams=3, batch_size=2)] == [
        [row for row, _ in hits] for hits in apart
    ]


# ------------------------------------------------------------------------------------------------ the model directory


def test_an_empty_generated_passage_leaves_the_query_to_stage_two(
    model: GenerativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, tokenizer = model.passage or pytest.fail("two stages")
    nothing = torch.tensor([[tokenizer.pad_token_id, tokenizer.eos_token_id]])
    monkeypatch.setattr(network, "generate", lambda **_: nothing)
    assert model.write_passages(["the cat"]) == [""]
    assert model.stage_two_inputs(["the cat"]) == ["the cat"]
    assert model.find_documents([""], indexed(model, "https://x/1"))[0][0][0] == 0


def test_a_single_stage_model_reads_the_query(tmp_path: Path) -> None:
    single = load_generative(directory_of(tmp_path / "single", single_stage=True))
    assert single.stage_two_inputs(["the cat"]) == ["the cat"]
    with pytest.raises(ModelError, match="writes no passages"):
        single.write_passages(["the cat"])


def test_urls_of_another_model_are_refused(model: GenerativeModel, tmp_path: Path) -> None:
    other = load_generative(directory_of(tmp_path / "other", prompts=False))
    assert other.info.hash != model.info.hash  # the settings are a part of what it is known by
    with pytest.raises(ModelError, match=f"made for the model tome .{model.info.hash}., but this is other"):
        other.find_documents(["the cat"], indexed(model, "https://x/1"))
    with pytest.raises(InputError, match="beams must be at least 1"):
        model.find_documents(["the cat"], indexed(model, "https://x/1"), beams=0)


def test_added_documents_are_found_without_training(model: GenerativeModel) -> None:
    urls = indexed(model, "https://x/1")
    more = urls.extended([("new", "https://x/2")], model.encode)
    (documents,) = model.find_documents(["the cat"], more, beams=2)
    assert {more.ids[row] for row, _ in documents} == {"d0", "new"}


def test_incomplete_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    folder = directory_of(tmp_path / "tome")
    (folder / "passage").rename(folder / "away")
    with pytest.raises(ModelError, match="passage does not exist"):
        load_generative(folder)
    write_osn_json(folder, "dense")
    with pytest.raises(ModelError, match="is no generative model"):
        load_generative(folder)
    write_osn_json(folder, KIND)
    (folder / "generative.json").write_text('{"format": 1, "stages": ["passage"]}')
    with pytest.raises(ModelError, match=r"generative\.json cannot be read"):
        load_generative(folder)


def test_free_decoding_may_leave_the_corpus(model: GenerativeModel) -> None:
    learned = taught(model, {"the cat": "https://x/2", "the fish": "https://x/1"}, steps=200)
    written = learned.find_urls(["the cat", "the fish"])
    assert written == ["https://x/2", "https://x/1"]
    urls = indexed(model, "https://x/1", "https://y/")
    assert [url in urls.urls for url in written] == [False, True]
    held = learned.find_documents(["the cat"], urls, beams=2)
    assert {row for row, _ in held[0]} == {0, 1}, "under constraint it stays in the corpus"
