"""`osn train tome`: stages together and apart, and the model that they make."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from click.testing import CliRunner  # noqa: E402
from tome_setup import ANIMALS, config_for  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.directory import hash_files, read_osn_json  # noqa: E402
from opensearch_neural.models.generative.generative_model import load_generative  # noqa: E402
from opensearch_neural.models.generative.settings import GenerativeSettings  # noqa: E402
from opensearch_neural.models.generative.url_trie import CorpusUrls  # noqa: E402
from opensearch_neural.retrievers.generative import GenerativeRetriever  # noqa: E402
from trainers.data.negatives import open_retriever  # noqa: E402
from trainers.data.settings import SetSettings  # noqa: E402
from trainers.data.texts import TextStore  # noqa: E402
from trainers.doc2query.settings import GenerationSettings  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402
from trainers.tome.train import train_tome  # noqa: E402


def test_two_stages_learn_to_find_by_writing(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "tome", zoo, t5, steps=180, dev_share=0.01))
    content = read_osn_json(tmp_path / "tome")
    assert content is not None and content["kind"] == "generative"
    # Stage 2 has learned the passages by heart, and says so.
    assert content["measures"]["url start written"] == 0 and content["measures"]["url written"] >= 0.9
    model = load_generative(tmp_path / "tome", device="cpu")
    queries = {f"q{at}": f"what is a {animal}" for at, animal in enumerate(ANIMALS)}
    passages = model.write_passages(list(queries.values()))
    assert passages[0].startswith("title: cat passage: the cat lives")

    urls = model.index_urls((f"d{at}", f"https://zoo.org/{animal}") for at, animal in enumerate(ANIMALS))
    for options in ({"decoding": "free"}, {"beams": 1}, {"beams": 3}):
        run = GenerativeRetriever(model, urls, **options).retrieve(queries, 3)  # type: ignore[arg-type]
        first = [next(iter(run[f"q{at}"]), None) for at in range(8)]
        assert sum(hit == f"d{at}" for at, hit in enumerate(first)) >= 6, options


def test_the_single_stage_learns_too_and_its_directory_holds_one_model(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "single", zoo, t5, steps=120, stages="single", dev_share=0.1))
    model = load_generative(tmp_path / "single", device="cpu")
    assert model.passage is None
    queries = [f"what is a {animal}" for animal in ANIMALS]
    written = model.find_urls(model.stage_two_inputs(queries))
    assert sum(url == f"https://zoo.org/{animal}" for url, animal in zip(written, ANIMALS, strict=True)) >= 6
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


def test_a_stage_is_not_measured_on_two_contents_of_its_held_back_queries(zoo: Path, t5: Path, tmp_path: Path) -> None:
    data = shutil.copytree(zoo, tmp_path / "data")
    config = config_for(tmp_path / "tome", data, t5, steps=1, stages="passage", dev_share=0.1)
    train_tome(config)
    file = data / "qrels/train.tsv"
    header, *judged = file.read_text().splitlines()
    told = set()
    for at, line in enumerate(judged):  # two of sixteen are held back
        query, document, grade = line.split("\t")
        other = "\t".join((query, "d0" if document != "d0" else "d1", grade))
        file.write_text("\n".join([header, *judged[:at], other, *judged[at + 1 :], ""]))
        with pytest.raises(InputError, match="holds a training run") as refused:
            train_tome(config)
        told.add("of the dev set held-back queries" in refused.value.message)
    assert told == {True, False}


@pytest.mark.parametrize("model", ["backbone", "url_backbone", "generator"])
def test_a_model_that_does_not_load_is_refused_before_the_data_are_read(
    zoo: Path, t5: Path, tmp_path: Path, model: str
) -> None:
    data = shutil.copytree(zoo, tmp_path / "data")
    (data / "corpus.jsonl").write_text("this line would be refused\n")
    damaged = shutil.copytree(t5, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((t5 / "model.safetensors").read_bytes()[:-100])
    changed: dict[str, object] = (
        {"generation": GenerationSettings(str(damaged))} if model == "generator" else {model: str(damaged)}
    )
    with pytest.raises(ModelError, match="damaged does not load as"):
        train_tome(config_for(tmp_path / "tome", data, t5, **changed))
    with pytest.raises(InputError, match="holds no document with text"):
        train_tome(config_for(tmp_path / "tome", data, t5))


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


def test_a_stage_from_before_a_setting_was_there_is_still_that_stage(zoo: Path, t5: Path, tmp_path: Path) -> None:
    output = tmp_path / "tome"
    steps = train_tome(config_for(output, zoo, t5, stages="url"))["url"].steps
    for name in ("osn.json", "training.yaml", ".training/run.json"):
        file = output / "url" / name
        text = file.read_text().replace('"number_urls": false', '"gone": 1').replace("number_urls: false", "gone: 1")
        file.write_text(text.replace('"configuration": "', '"configuration": "0'))
    assert train_tome(config_for(output, zoo, t5, stages="url"))["url"].steps == steps
    train_tome(config_for(output, zoo, t5, stages="passage"))
    assert load_generative(output, device="cpu").passage is not None


def test_stages_of_different_corpora_are_not_joined(zoo: Path, t5: Path, tmp_path: Path) -> None:
    train_tome(config_for(tmp_path / "tome", zoo, t5, stages="url"))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(line + "\n" for line in (zoo / "corpus.jsonl").read_text().splitlines()[:-1]))
    with pytest.raises(InputError, match="was trained on another corpus"):
        train_tome(config_for(tmp_path / "tome", zoo, t5, stages="passage", corpus=other, queries=[]))
    assert not (tmp_path / "tome" / "passage").exists()


def test_the_second_stage_may_have_another_tokenizer(zoo: Path, t5: Path, tmp_path: Path) -> None:
    texts = [f"https://zoo.org/{animal}" for animal in ANIMALS] * 4
    tokenizer = backbones.train_tokenizer(texts, "byte-level", 400)
    torch.manual_seed(1)
    new = NewBackbone("t5", layers=1, hidden=16, heads=2, dropout=0.0)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, tmp_path / "small")
    config = config_for(tmp_path / "tome", zoo, t5, steps=120, url_backbone=str(tmp_path / "small"))
    train_tome(replace(config, training=replace(config.training, steps=2)))
    model = load_generative(tmp_path / "tome", device="cpu")
    assert model.passage is not None and model.passage[1].get_vocab() != model.url[1].get_vocab()
    texts = [model.settings.passage(model.passage[1], animal, f"the {animal} lives here and") for animal in ANIMALS]
    written = model.find_urls(texts)
    assert sum(url == f"https://zoo.org/{animal}" for url, animal in zip(written, ANIMALS, strict=True)) >= 6


def test_a_directory_whose_last_file_was_not_written_is_completed(zoo: Path, t5: Path, tmp_path: Path) -> None:
    config = config_for(tmp_path / "tome", zoo, t5, stages="single")
    train_tome(config)
    for file in tmp_path.joinpath("tome").iterdir():
        if file.is_file() and file.name != "generative.json":
            file.unlink()
    train_tome(config)
    assert load_generative(tmp_path / "tome", device="cpu").passage is None


def test_documents_that_nothing_leads_to_are_counted(
    zoo: Path, t5: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train_tome(config_for(tmp_path / "tome", zoo, t5, queries=[SetSettings(zoo, split="test")]))
    assert "4 of 8 documents have no training query" in caplog.text


def test_a_model_knows_what_it_has_learned_and_keeps_the_numbers_of_shared_urls(t5: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"_id": animal, "text": f"the {animal}", "url": "https://zoo.org/all"} for animal in ANIMALS[:3]]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = GenerativeSettings(number_urls=True)
    train_tome(config_for(tmp_path / "tome", corpus, t5, stages="single", queries=[], spans=1, settings=settings))
    model = load_generative(tmp_path / "tome", device="cpu")
    assert list(model.learned) == ANIMALS[:3]
    shared = [(animal, "https://zoo.org/all") for animal in (ANIMALS[4], ANIMALS[2])]
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
    (documents,) = model.find_documents(["the lion"], urls, beams=9)
    assert {urls.ids[row] for row, _ in documents} == {"new", *(f"d{at}" for at in range(8))}
