from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from click.testing import CliRunner  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.corpus.documents import Document  # noqa: E402
from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.directory import hash_files, read_osn_json  # noqa: E402
from opensearch_neural.models.generative import GenerativeSettings, load_generative  # noqa: E402
from opensearch_neural.models.url_trie import CorpusUrls  # noqa: E402
from opensearch_neural.retrievers.generative import GenerativeRetriever  # noqa: E402
from trainers.common.config import load_config, recipe  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.data.negatives import open_retriever  # noqa: E402
from trainers.data.sets import SetSettings  # noqa: E402
from trainers.data.texts import TextStore  # noqa: E402
from trainers.doc2query.sampling import SamplingSettings  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.tome import data as tome_data  # noqa: E402
from trainers.tome import train as tome  # noqa: E402
from trainers.tome.data import Queries, gather, split, tome_corpus  # noqa: E402
from trainers.tome.settings import TomeConfig  # noqa: E402
from trainers.tome.stages import ToPassage, ToUrl, span  # noqa: E402
from trainers.tome.train import train_tome  # noqa: E402

ANIMALS = ["cat", "dog", "bird", "fish", "snake", "horse", "goat", "mouse"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    texts = [f"title: {one} passage: the {one} lives here https://zoo.org/{one} what is a" for one in ANIMALS] * 3
    tokenizer = backbones.train_tokenizer(texts, "byte-level", 440)
    torch.manual_seed(0)
    new = backbones.NewBackbone("t5", layers=1, hidden=32, heads=2, dropout=0.0)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: eight animals with a URL each, two questions for each, and one test question for the first four."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "qrels").mkdir()
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for at, one in enumerate(ANIMALS):
            text = f"the {one} lives here and eats what it finds in the garden"
            line = {"_id": f"d{at}", "title": one, "text": text, "url": f"https://zoo.org/{one}"}
            corpus.write(json.dumps(line) + "\n")
            for number, query in enumerate((f"what is a {one}", f"where does the {one} live", f"{one} food")):
                queries.write(json.dumps({"_id": f"q{at}-{number}", "text": query}) + "\n")
    for split_name, numbers, animals in (("train", (0, 1), 8), ("test", (2,), 4)):
        lines = [f"q{at}-{number}\td{at}\t1" for at in range(animals) for number in numbers]
        (folder / "qrels" / f"{split_name}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(f"{line}\n" for line in lines)
        )
    return folder


def config_for(output: Path, zoo: Path, t5: Path, steps: int = 2, **changes: object) -> TomeConfig:
    training = TrainingSettings(steps=steps, batch_size=16, learning_rate=1e-2, warmup=5, evaluate_every=1000)
    return replace(
        TomeConfig(
            output=output,
            corpus=zoo,
            backbone=str(t5),
            queries=[SetSettings(zoo)],
            settings=GenerativeSettings(query_length=16, passage_length=8, title_length=4, url_length=24),
            dev_share=0.0,
            training=training,
            url_training=training,
        ),
        **changes,  # type: ignore[arg-type]
    )


def test_two_stages_learn_to_find_by_writing(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "tome", zoo, t5, steps=180, dev_share=0.01))
    content = read_osn_json(tmp_path / "tome")
    assert content is not None and content["kind"] == "generative"
    # Stage 2 has learned the passages by heart, and says so.
    assert content["measures"]["url start written"] == 0 and content["measures"]["url written"] >= 0.9
    model = load_generative(tmp_path / "tome", device="cpu")
    queries = {f"q{at}": f"what is a {one}" for at, one in enumerate(ANIMALS)}
    passages = model.write_passages(list(queries.values()))
    assert passages[0].startswith("title: cat passage: the cat lives")

    urls = model.index_urls((f"d{at}", f"https://zoo.org/{one}") for at, one in enumerate(ANIMALS))
    for options in ({"decoding": "free"}, {"beams": 1}, {"beams": 3}):
        run = GenerativeRetriever(model, urls, **options).retrieve(queries, 3)  # type: ignore[arg-type]
        first = [next(iter(run[f"q{at}"]), None) for at in range(8)]
        assert sum(hit == f"d{at}" for at, hit in enumerate(first)) >= 6, options


def test_the_single_stage_learns_too_and_its_directory_holds_one_model(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "single", zoo, t5, steps=120, stages="single", dev_share=0.1))
    model = load_generative(tmp_path / "single", device="cpu")
    assert model.passage is None
    queries = [f"what is a {one}" for one in ANIMALS]
    written = model.find_urls(model.stage_two_inputs(queries))
    assert sum(url == f"https://zoo.org/{one}" for url, one in zip(written, ANIMALS, strict=True)) >= 6
    measures = (read_osn_json(tmp_path / "single") or {})["measures"]
    assert measures["url log_likelihood"] > measures["url start log_likelihood"]
    # Of two questions held back.
    assert measures["url start written"] == 0 and measures["url written"] in (0, 0.5, 1)


def test_stages_trained_apart_make_the_model_that_both_together_make(zoo: Path, t5: Path, tmp_path: Path) -> None:
    together, apart = tmp_path / "together" / "tome", tmp_path / "apart" / "tome"
    train_tome(config_for(together, zoo, t5))
    train_tome(config_for(apart, zoo, t5, stages="url"))
    with pytest.raises(ModelError, match="is not complete: a stage is missing"):
        load_generative(apart)
    train_tome(config_for(apart, zoo, t5, stages="passage"))
    assert hash_files(apart) == hash_files(together)
    # All is done: the same call only looks.
    before = (apart / "url" / "model.safetensors").stat().st_mtime_ns
    train_tome(config_for(apart, zoo, t5))
    assert (apart / "url" / "model.safetensors").stat().st_mtime_ns == before


def test_another_configuration_is_refused(zoo: Path, t5: Path, tmp_path: Path) -> None:
    output = tmp_path / "tome"
    train_tome(config_for(output, zoo, t5, stages="url"))
    with pytest.raises(InputError, match=r"settings.passage_length: 8 there, 9 now"):
        train_tome(config_for(output, zoo, t5, stages="url", settings=GenerativeSettings(16, 9, 4, 24)))
    other = GenerativeSettings(16, 9, 4, 24)
    with pytest.raises(InputError, match="both stages need the same"):
        train_tome(config_for(output, zoo, t5, stages="passage", settings=other))
    with pytest.raises(InputError, match=r"another configuration \(stage: 'url' there, 'single' now\)"):
        train_tome(config_for(output, zoo, t5, stages="single"))
    with pytest.raises(ValueError, match="written needs both stages"):
        config_for(output, zoo, t5, stages="url", written=5)


def test_stage_two_reads_what_stage_one_wrote_where_asked(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    tokenizer = backbones.load_tokenizer(t5)
    config = config_for(tmp_path / "tome", zoo, t5, written=5)
    own = config.settings.passage(tokenizer, "dog", "the dog lives here and eats what it finds in the garden")

    def write(model: object, tokenizer: object, texts: list[str], settings: object) -> list[str]:
        asked.extend(texts)
        return ["title: cat", "", own] + ["title: x"] * (len(texts) - 3)

    read: list[int] = []
    train_stage = tome._train_stage

    def trained(config: TomeConfig, stage: str, *others: Any) -> Any:
        if stage == "url":
            read.append(len(others[2].queries.pairs))
        return train_stage(config, stage, *others)

    monkeypatch.setattr(tome, "write_passages", write)
    monkeypatch.setattr(tome, "_train_stage", trained)
    train_tome(config)
    assert len(asked) == 5
    train_tome(config)
    assert len(asked) == 5  # kept beside the model
    # Of nothing nothing is learned, and a document's own passage leads to that document, whoever asked.
    assert read == [3, 3]


def test_stages_of_different_corpora_are_not_joined(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "tome", zoo, t5, stages="url"))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(line + "\n" for line in (zoo / "corpus.jsonl").read_text().splitlines()[:-1]))
    with pytest.raises(InputError, match="was trained on another corpus"):
        train_tome(config_for(tmp_path / "tome", zoo, t5, stages="passage", corpus=other, queries=[]))
    assert not (tmp_path / "tome" / "passage").exists()


def test_what_the_configuration_says_of_sampling_counts_also_where_it_is_the_default(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = tmp_path / "generator"
    generator.mkdir()
    trained = {"training": {"query_length": 9, "prefix": "ask: "}, "measures": {"copying": 8.0}}
    (generator / "osn.json").write_text(json.dumps({"format": 1, "kind": "doc2query", **trained}))
    found: list[Any] = []

    def write(model: object, documents: TextStore, *, output: Path, sampling: Any) -> None:
        found.append(sampling)
        raise KeyboardInterrupt

    monkeypatch.setattr(tome_data, "generate_queries", write)
    told = SamplingSettings(candidates=3, copying=0.0, prefix="")
    for sampling in (SamplingSettings(candidates=3), told):
        config = config_for(tmp_path / "tome", zoo, t5, queries=[], generator=str(generator), sampling=sampling)
        with pytest.raises(KeyboardInterrupt):
            train_tome(config)
    assert [(one.candidates, one.query_length, one.copying, one.prefix) for one in found] == [
        (3, 9, 8.0, "ask: "),
        (3, 9, 0.0, ""),
    ]


def test_documents_that_share_a_url_are_refused(zoo: Path, t5: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = (zoo / "corpus.jsonl").read_text().splitlines()
    corpus.write_text("\n".join([*lines, lines[2].replace('"d2"', '"again"')]) + "\n")
    with pytest.raises(InputError, match=r"'d2' and 'again' have the same URL 'https://zoo\.org/bird'"):
        train_tome(config_for(tmp_path / "tome", zoo, t5, corpus=corpus, queries=[]))


def test_queries_of_other_documents_are_refused(zoo: Path) -> None:
    data = load_training(zoo)
    with pytest.raises(InputError, match="the document 'd0' of query 'q0-0' is not in the corpus"):
        gather([data], TextStore([("d9", "another")]))


def test_questions_of_the_test_split_are_left_out_where_asked(zoo: Path, t5: Path, tmp_path: Path) -> None:
    config = config_for(tmp_path, zoo, t5, unseen=[SetSettings(zoo, name="same")])
    assert [len(one) for one in tome_data.read_sets(config)] == [0]


def test_questions_of_the_test_split_are_left_out_of_what_a_generator_writes(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(model: object, documents: TextStore, *, output: Path, sampling: object) -> None:
        output.parent.mkdir(parents=True)
        header = {"osn": "generated-queries", "format": 1, "documents": documents.hash}
        lines = [header, {"_id": "d0", "queries": [{"text": "Cat food"}, {"text": "cats at home"}]}]
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))

    trained: list[list[str]] = []

    def stage(config: TomeConfig, stage: str, *others: Any) -> Any:
        trained.append([text for _, text in others[2].queries.texts.items()])
        raise KeyboardInterrupt

    monkeypatch.setattr(tome_data, "generate_queries", write)
    monkeypatch.setattr(tome_data, "sampling_for", lambda *_, **__: None)
    monkeypatch.setattr(tome, "_train_stage", stage)
    test = SetSettings(zoo, split="test")
    config = config_for(tmp_path / "tome", zoo, t5, queries=[], generator="some", unseen=[test])
    with pytest.raises(KeyboardInterrupt):
        train_tome(config)
    assert trained == [["cats at home"]], "'cat food' is a question of the test split"


def test_the_second_stage_may_have_another_tokenizer(zoo: Path, t5: Path, tmp_path: Path) -> None:
    texts = [f"https://zoo.org/{one}" for one in ANIMALS] * 4
    tokenizer = backbones.train_tokenizer(texts, "byte-level", 400)
    torch.manual_seed(1)
    new = backbones.NewBackbone("t5", layers=1, hidden=16, heads=2, dropout=0.0)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, tmp_path / "small")
    train_tome(config_for(tmp_path / "tome", zoo, t5, steps=120, url_backbone=str(tmp_path / "small")))
    model = load_generative(tmp_path / "tome", device="cpu")
    assert model.passage is not None and model.passage[1].get_vocab() != model.url[1].get_vocab()
    texts = [model.settings.passage(model.passage[1], one, f"the {one} lives here and") for one in ANIMALS]
    written = model.find_urls(texts)
    assert sum(url == f"https://zoo.org/{one}" for url, one in zip(written, ANIMALS, strict=True)) >= 6


def test_a_directory_whose_last_file_was_not_written_is_completed(zoo: Path, t5: Path, tmp_path: Path) -> None:
    config = config_for(tmp_path / "tome", zoo, t5, stages="single")
    train_tome(config)
    for file in tmp_path.joinpath("tome").iterdir():
        if file.is_file() and file.name != "generative.json":
            file.unlink()
    train_tome(config)
    assert load_generative(tmp_path / "tome", device="cpu").passage is None


def test_so_many_generated_queries_of_a_document_and_no_more(zoo: Path, t5: Path, tmp_path: Path) -> None:
    path, labelled = tmp_path / "queries.jsonl", tmp_path / "labelled"
    queries = [{"text": f"question {number}"} for number in range(5)]
    path.write_text("".join(json.dumps({"_id": f"d{at}", "queries": queries}) + "\n" for at in range(3)))
    # A person's questions may be numbered as generated ones are.
    (labelled / "qrels").mkdir(parents=True)
    shutil.copy(zoo / "corpus.jsonl", labelled)
    asked = {f"d0#{number}": f"what is it, {number}" for number in range(3)}
    lines = [json.dumps({"_id": query, "text": text}) for query, text in asked.items()]
    (labelled / "queries.jsonl").write_text("\n".join(lines) + "\n")
    judged = ["query-id\tcorpus-id\tscore", *(f"{query}\td0\t1" for query in asked)]
    (labelled / "qrels" / "train.tsv").write_text("\n".join(judged) + "\n")

    sets = [SetSettings(labelled), SetSettings(path, corpus=zoo)]
    config = config_for(tmp_path, zoo, t5, queries=sets)
    assert [len(one) for one in tome_data.read_sets(config)] == [3, 15]
    data = tome_data.read_sets(replace(config, candidates=2))
    assert [len(one) for one in data] == [3, 6]
    kept = gather(data, data[0].documents)
    assert len(kept.pairs) == 9 and kept.texts.ids[-1] == "queries/d2#1"


def test_dev_queries_do_not_train_and_their_documents_do(zoo: Path) -> None:
    data = load_training(zoo)
    queries = gather([data], data.documents)
    train, dev = split(queries, 0.25, seed=1)
    assert len(dev.pairs) == 4 and len(train.pairs) == 12
    assert not set(dev.pairs[:, 0]) & set(train.pairs[:, 0])
    assert np.array_equal(split(queries, 0.25, seed=1)[1].pairs, dev.pairs)
    assert len(split(queries, 0.0, seed=1)[1].pairs) == 0


def test_spans_are_parts_of_their_document_drawn_anew_at_each_visit(t5: Path) -> None:
    words = " ".join(f"word{at}" for at in range(60))
    drawn = [span(words, Visit(3, epoch, 0, 42)) for epoch in range(20)]
    assert all(one in words and 4 <= len(one.split()) <= 24 for one in drawn)
    assert len(set(drawn)) > 10
    assert span("two words", Visit(3, 0, 0, 42)) == "two words"

    tokenizer = backbones.load_tokenizer(t5)
    corpus = tome_corpus([Document("a", words, "", "u/a"), Document("b", "a b", "", "u/b")], tokenizer, SMALL)
    data = ToPassage(gather([], corpus.contents), corpus, tokenizer, SMALL, spans=2)
    assert len(data) == 4
    name, inputs, target = data[Visit(3, 0, 0, 42)]
    assert name == "span of b" and tokenizer.decode(inputs, skip_special_tokens=True) == "a b"
    assert tokenizer.decode(target, skip_special_tokens=True) == "passage: a b"


SMALL = GenerativeSettings(query_length=16, passage_length=8, title_length=4, url_length=24)


def test_long_texts_and_urls_are_cut_at_their_lengths(t5: Path) -> None:
    tokenizer = backbones.load_tokenizer(t5)
    long = Document("a", "cat " * 100, "dog " * 50, "https://zoo.org/" + "x" * 200)
    corpus = tome_corpus([long], tokenizer, SMALL)
    queries = Queries(TextStore([("q", "bird " * 100)]), np.array([[0, 0]]))
    (_, inputs, target) = ToPassage(queries, corpus, tokenizer, SMALL)[Visit(0, 0, 0, 0)]
    assert len(inputs) == SMALL.query_length and inputs[-1] == tokenizer.eos_token_id
    assert len(target) <= SMALL.written_length and target[-1] == tokenizer.eos_token_id
    url = ToUrl(queries, corpus, tokenizer, SMALL)[Visit(0, 0, 0, 0)][2]
    assert len(url) == SMALL.url_length and url[-1] == tokenizer.eos_token_id
    assert corpus.urls.trie.find(url) == 0


def test_documents_that_nothing_leads_to_are_counted(
    zoo: Path, t5: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train_tome(config_for(tmp_path / "tome", zoo, t5, queries=[SetSettings(zoo, split="test")]))
    assert "no query leads to 4 of 8 documents" in caplog.text


def test_urls_that_a_tokenizer_changes_are_told_apart_from_those_that_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lower = backbones.train_tokenizer(["https zoo org cat dog : / ."] * 3, "wordpiece", 60)
    lower.eos_token, lower.pad_token = "[SEP]", "[PAD]"
    with caplog.at_level(logging.WARNING):
        tome_corpus([Document("a", "x", "", "zoo/Cat"), Document("b", "y", "", "zoo/dog")], lower, SMALL)
    assert "2 of 2 URLs do not come back from their tokens" in caplog.text
    with pytest.raises(InputError, match=r"'a' and 'b' have URLs that the tokenizer of .* cannot tell apart"):
        tome_corpus([Document("a", "x", "", "zoo/Cat"), Document("b", "y", "", "zoo/cat")], lower, SMALL)


# ------------------------------------------------------------------------------------------------ commands


def test_the_recipe_takes_two_steps_a_stage(zoo: Path, t5: Path, tmp_path: Path) -> None:
    config = load_config(TomeConfig, recipe("tome"))
    assert (config.settings.query_length, config.settings.passage_length, config.settings.url_length) == (32, 32, 80)
    overrides = [f"corpus={zoo}", f"backbone={t5}", f"url_backbone={t5}", f"generator={_generator(t5, tmp_path)}"]
    arguments = ["train", "tome", "--config", "tome", "--dry-run", "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(
        osn, arguments + [word for one in overrides for word in ("--set", one)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "passage: 2 steps" in result.stdout and "url: 2 steps" in result.stdout
    assert not (tmp_path / "model").exists()


def _generator(t5: Path, folder: Path) -> Path:
    from opensearch_neural.models.directory import write_osn_json

    model, tokenizer = backbones.sequence_to_sequence(t5)
    backbones.save(model, tokenizer, folder / "generator")
    write_osn_json(folder / "generator", "doc2query")
    return folder / "generator"


def test_a_model_knows_what_it_has_learned_and_keeps_the_numbers_of_shared_urls(t5: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"_id": one, "text": f"the {one}", "url": "https://zoo.org/all"} for one in ANIMALS[:3]]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = GenerativeSettings(number_urls=True)
    train_tome(config_for(tmp_path / "tome", corpus, t5, stages="single", queries=[], spans=1, settings=settings))
    model = load_generative(tmp_path / "tome", device="cpu")
    assert list(model.learned) == ANIMALS[:3]
    shared = [(one, "https://zoo.org/all") for one in (ANIMALS[4], ANIMALS[2])]
    urls = model.index_urls(shared)
    assert dict(urls.documents()) == {ANIMALS[4]: "https://zoo.org/all#4", ANIMALS[2]: "https://zoo.org/all#3"}
    assert model.unlearned(urls) == 1
    # A model from before this was kept says nothing; its hash, by which the URLs know it, is the same.
    (tmp_path / "tome" / "learned.jsonl").write_text("{")
    with pytest.raises(ModelError, match=r"learned\.jsonl cannot be read"):
        load_generative(tmp_path / "tome", device="cpu")
    (tmp_path / "tome" / "learned.jsonl").unlink()
    older = load_generative(tmp_path / "tome", device="cpu")
    assert (older.info.hash, older.learned, older.unlearned(urls)) == (model.info.hash, {}, 0)


def test_the_command_makes_urls_and_adds_to_them(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    train_tome(config_for(tmp_path / "tome", zoo, t5, stages="single"))
    arguments = ["urls", "--model", str(tmp_path / "tome"), "--out", str(tmp_path / "urls"), "--json", "--corpus"]
    result = CliRunner().invoke(osn, [*arguments, str(zoo)], catch_exceptions=False)
    made = json.loads(result.stdout)
    assert (made["documents"], made["unlearned"], result.stderr.count("was not trained")) == (8, 0, 0)
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"_id": "new", "text": "the lion", "url": "https://zoo.org/lion"}) + "\n")
    result = CliRunner().invoke(
        osn, [*arguments, str(more), "--extend", str(tmp_path / "urls")], catch_exceptions=False
    )
    made = json.loads(result.stdout)
    assert (made["documents"], made["unlearned"]) == (9, 1)
    assert "was not trained on 1 of these documents" in result.stderr
    urls = CorpusUrls.load(tmp_path / "urls")
    model = load_generative(tmp_path / "tome", device="cpu")
    by_name = open_retriever(f"tome:{tmp_path / 'urls'}", TextStore(), device="cpu")
    found_by_name = by_name.retrieve({"q": "the lion"}, 9)["q"]
    assert model.info.hash in by_name.name and len(found_by_name) == 9
    (found,) = model.find_documents(["the lion"], urls, beams=9)
    assert {urls.ids[row] for row, _ in found} == {"new", *(f"d{at}" for at in range(8))}
