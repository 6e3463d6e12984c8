"""`osn train sparse`: the flow from settings to a model directory."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402
from tiny_sparse import SMALL, configuration, student  # noqa: E402
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration  # noqa: E402

from ingest.chosen_models import choose  # noqa: E402
from ingest.model_request import ModelRequest  # noqa: E402
from ingest.settings import Models  # noqa: E402
from opensearch_neural.corpus.documents import Document  # noqa: E402
from opensearch_neural.errors import InputError, OsnError  # noqa: E402
from opensearch_neural.models.directory import read_osn_json  # noqa: E402
from opensearch_neural.models.sparse.encoder import KIND, load_sparse  # noqa: E402
from opensearch_neural.models.sparse.idf import load_idf, save_idf  # noqa: E402
from opensearch_neural.models.sparse.ml_commons import export  # noqa: E402
from trainers.common.config import load_config, to_yaml  # noqa: E402
from trainers.common.run_folder import history  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.examples import TrainingData  # noqa: E402
from trainers.data.formats import read_header  # noqa: E402
from trainers.data.loading import NEGATIVES  # noqa: E402
from trainers.data.sets import PreparedSets  # noqa: E402
from trainers.data.settings import DevSettings  # noqa: E402
from trainers.data.teach import teach  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse import train as sparse  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    RegularizationSettings,
    SparseCandidates,
    SparseConfig,
    SparseObjective,
    StageSettings,
    StudentSettings,
    WarmUpSettings,
)
from trainers.sparse.train import prepared_sets, train_sparse  # noqa: E402


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": SparseCandidates(negatives=1, mine="student")}, "no pretraining is configured"),
        ({"objective": SparseObjective(info_nce=0.0, kl=1.0)}, "no teacher and no scores to distil"),
        ({"document_length": 100}, "document_length is 100, but the backbone has 64 positions"),
        ({"candidates": SparseCandidates(mine="bm52")}, "there is no retriever 'bm52'"),
        ({"student": replace(SMALL, idf="no.json")}, "no.json does not exist"),
    ],
)
def test_what_cannot_be_trained_is_said_before_it_begins(
    tmp_path: Path, backbone: Path, beir: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OsnError, match=message):
        train_sparse(configuration(backbone, beir, tmp_path / "model", **changes))


def test_a_model_is_not_measured_on_two_contents_of_a_dev_set(tmp_path: Path, backbone: Path, beir: Path) -> None:
    data = shutil.copytree(beir, tmp_path / "data")
    dev, training = [QuestionSet(data, split="dev", name="dev")], TrainingSettings(steps=1, batch_size=8)
    config = configuration(backbone, data, tmp_path / "model", dev=dev, training=training)
    assert train_sparse(config).steps == 1
    judged = (data / "qrels/dev.tsv").read_text().splitlines(keepends=True)
    (data / "qrels/dev.tsv").write_text("".join(judged[:-1]))
    with pytest.raises(InputError, match="another content of the dev set dev"):
        train_sparse(config)


def test_pre_training_alone_has_every_setting_of_its_stage(tmp_path: Path, backbone: Path, beir: Path) -> None:
    stage = StageSettings(
        train=[QuestionSet(beir, name="pairs")],
        objective=SparseObjective(info_nce=2.0),
        candidates=SparseCandidates(negatives=3),
        regularization=RegularizationSettings(weight=0.5),
        document_length=16,
        training=TrainingSettings(steps=7),
    )
    config = configuration(backbone, beir, tmp_path / "model", pretraining=stage)
    alone = config.pretraining_run("start", tmp_path / "pretrained")
    assert (alone.start, alone.output, alone.folder) == ("start", tmp_path / "pretrained", config.folder)
    names = [each.name for each in fields(StageSettings)]
    assert [name for name in names if getattr(config, name) == getattr(stage, name)] == []
    assert [name for name in names if getattr(alone, name) != getattr(stage, name)] == []


def test_one_set_may_stand_in_both_stages(tmp_path: Path, backbone: Path, worded: Path) -> None:
    def stage(questions: str) -> dict[str, Any]:
        return {
            "train": [QuestionSet(worded, questions=questions, name="corpus")],
            "objective": SparseObjective(info_nce=0.0, kl=1.0, teachers=["lexical"]),
            "candidates": SparseCandidates(negatives=1),
            "document_length": 16,
            "training": TrainingSettings(steps=1, batch_size=4),
        }

    config = configuration(
        backbone, worded, tmp_path / "model", **stage("title"), pretraining=StageSettings(**stage("first-sentence"))
    )
    assert train_sparse(config).steps == 1


def test_a_dry_run_reads_few_documents_and_leaves_nothing(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tiny_beir(tmp_path / "many", documents=300)
    taught: list[int] = []

    def teach_few(model: str, data: TrainingData, **options: Any) -> Path:
        taught.append(len(data.documents))
        return teach(model, data, **options)

    monkeypatch.setattr("trainers.sparse.stage_data.teach", teach_few)
    monkeypatch.setattr(sparse, "DRY_RUN_DOCUMENTS", 10)
    config = configuration(
        backbone, many, tmp_path / "model", objective=SparseObjective(info_nce=0.0, kl=1.0, teachers=["lexical"])
    )
    before = sorted(tmp_path.rglob("*"))
    assert sparse.rehearse(config).steps == 2
    assert 10 <= max(taught) <= 50
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_takes_a_sets_own_teachers(
    tmp_path: Path, backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "DRY_RUN_DOCUMENTS", 10)
    cache = teach("lexical", QuestionSet(beir).load(), output=tmp_path / "teacher")
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        train=[QuestionSet(beir, teachers=[cache])],
        objective=SparseObjective(info_nce=0.0, kl=1.0),
    )
    assert sparse.rehearse(config).steps == 2


def test_a_dry_run_without_hard_negatives_needs_no_miner(
    tmp_path: Path, backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "DRY_RUN_DOCUMENTS", 10)
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        train=[QuestionSet(beir, negatives=tmp_path / "negatives.jsonl")],
        candidates=SparseCandidates(negatives=0, consistency=10),
    )
    assert sparse.rehearse(config).steps == 2


def test_one_length_of_documents_holds_in_training_on_dev_and_in_use(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        student=StudentSettings(query_length=16, columns=16),
        document_length=16,
        training=TrainingSettings(steps=1, batch_size=4),
    )
    texts = [" ".join(["bab"] * 30), " ".join(["bab"] * 30 + ["dek"])]
    model = student(config)
    assert model.encoder_settings.document_length == 16
    short, long = model.vectors(texts).rows()
    assert short == long
    train_sparse(config)
    assert load_sparse(config.output, max_length=30).tokenizer.truncation["max_length"] == 16


def test_a_run_whose_lengths_were_named_goes_on_without_their_names(tmp_path: Path, backbone: Path, beir: Path) -> None:
    stage = StageSettings(
        train=[QuestionSet(beir)], document_length=32, training=TrainingSettings(steps=1, batch_size=4)
    )
    named = configuration(
        backbone, beir, tmp_path / "model", pretraining=stage, training=TrainingSettings(steps=1, batch_size=4)
    )
    trained = train_sparse(named)
    silent = replace(
        named, student=replace(named.student, document_length=None), pretraining=replace(stage, document_length=None)
    )
    assert train_sparse(silent).measures == trained.measures
    with pytest.raises(InputError, match="document_length: 32 there, 16 now"):
        train_sparse(replace(silent, pretraining=replace(stage, document_length=16)))


def test_what_is_trained_with_bm25_in_the_loss_is_told_from_what_was_trained_with_another_bm25(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """Earlier versions had another BM25. They wrote for both models the same hash of what was read."""

    def hashed(base: Literal["bm25"] | None) -> object:
        objective = SparseObjective(info_nce=1.0, kl=0.0, base=base)
        train_sparse(configuration(backbone, beir, tmp_path / f"{base}", objective=objective))
        made = read_osn_json(tmp_path / f"{base}")
        assert made is not None
        return made["data_hash"]

    assert hashed("bm25") != hashed(None)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="teachers are named, but kl and margin_mse are 0"):
        SparseObjective(teachers=["lexical"])
    with pytest.raises(ValueError, match="all_pairs works with kl only"):
        SparseObjective(kl=1.0, margin_mse=1.0, all_pairs=True)


def test_a_judged_corpus_without_text_is_called_that(tmp_path: Path, beir: Path) -> None:
    folder = tmp_path / "empty"
    shutil.copytree(beir, folder)
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({**line, "text": " "}) + "\n" for line in lines))
    with pytest.raises(InputError, match="the corpus holds no document with text"):
        QuestionSet(folder).load()


def test_training_learns_names_that_documents_do_not_hold_and_logs_what_it_costs(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """A question of the tiny set shares one word of four with its document: BM25 cannot see the other three."""
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        student=StudentSettings(document_length=32, query_length=16),
        objective=SparseObjective(info_nce=1.0, kl=0.0, base="bm25"),
        dev=[QuestionSet(beir, split="dev", name="dev")],
        training=TrainingSettings(
            steps=60, batch_size=15, learning_rate=1e-2, warmup=0.1, evaluate_every=20, log_every=20
        ),
    )
    trained = train_sparse(config)
    measures = trained.measures
    assert measures["nDCG@10"] > measures["BM25 nDCG@10"]
    assert measures["start nDCG@10"] == pytest.approx(measures["BM25 nDCG@10"], abs=0.2)
    assert measures["start nDCG@10"] > measures["start sparse alone nDCG@10"]
    assert measures["expansion terms"] > 0
    assert measures["active terms"] > measures["expansion terms"]
    assert measures["FLOPS"] > 0
    logged = [entry for entry in history(config.output) if "expansions" in entry]
    assert {"active", "flops", "lambda", "info_nce"} <= logged[-1].keys()
    assert load_sparse(tmp_path / "model").info.kind == KIND


def test_a_trained_table_is_written_and_weighs_queries_wherever_the_model_is_used(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    from sentence_transformers import SparseEncoder

    save_idf(tmp_path / "table.json", dict.fromkeys(WORDS, 1.0))
    settings = replace(SMALL, idf=str(tmp_path / "table.json"), idf_rate=20.0)
    model = tmp_path / "model"
    train_sparse(configuration(backbone, beir, model, student=settings, dev=[QuestionSet(beir, split="dev")]))
    table = load_idf(model / "idf.json")
    moved = [word for word in WORDS if table[word] != 1.0]
    # Words that no training question holds stay as they were.
    asked = {word for text in QuestionSet(beir).load().query_texts().values() for word in text.split()}
    assert moved and set(moved) <= asked and min(table[word] for word in WORDS) > 0
    assert table["[CLS]"] == 0

    # `osn ingest` counts no table beside it, and searches with it.
    documents = [Document("1", text=" ".join(moved))]
    request = ModelRequest(
        Models(sparse=str(model)), None, "docs", lambda _: iter(documents), "docs.jsonl", counts_while_writing=True
    )
    chosen = choose(request)
    assert chosen.table is None and chosen.encoders.sparse is not None
    assert chosen.encoders.sparse.query.encode(" ".join(moved)) == pytest.approx({word: table[word] for word in moved})
    (vector,) = SparseEncoder(str(model), device="cpu").encode_query([" ".join(moved)]).to_dense().tolist()
    weights = {chosen.encoders.sparse.vocabulary[at]: weight for at, weight in enumerate(vector) if weight}
    assert weights == pytest.approx({word: table[word] for word in moved})
    (exported,) = export(model, tmp_path / "ml-commons", queries_only=True)
    with zipfile.ZipFile(exported.zip) as files:
        written = json.loads(files.read("idf.json"))
    assert [written[word] for word in WORDS] == pytest.approx([table[word] for word in WORDS])


def test_a_table_that_pre_training_trained_is_trained_further(tmp_path: Path, backbone: Path, beir: Path) -> None:
    stage = StageSettings(train=[QuestionSet(beir)], training=TrainingSettings(steps=4, batch_size=8))
    still = TrainingSettings(steps=1, batch_size=8, learning_rate=1e-12)
    settings = replace(SMALL, idf="none", idf_rate=1000.0)
    model = tmp_path / "model"
    train_sparse(configuration(backbone, beir, model, student=settings, pretraining=stage, training=still))
    before = load_idf(model / ".stages" / "pretrained" / "idf.json")
    assert any(before[word] != 1.0 for word in WORDS)
    assert load_idf(model / "idf.json") == pytest.approx(before, rel=1e-5)


def test_questions_that_are_held_back_are_in_no_earlier_stage(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path / "model", selection=DevSettings(hold_back=4))
    last = prepared_sets(config)
    whole = replace(config, selection=DevSettings())
    before = prepared_sets(whole, other=last)
    held = {text for one in last.measured for text in one.query_texts().values()}
    assert held and not held & {text for one in before.train for text in one.query_texts().values()}
    assert held & {text for one in prepared_sets(whole).train for text in one.query_texts().values()}
    # Nor are the documents that answer them negatives there.
    (data,), (held_back,) = before.train, last.held_back
    answers = {held_back.documents.text_at(row) for row in held_back.positives.values.tolist()}
    assert answers and answers <= {data.documents.text_at(row) for row in data.withheld.tolist()}


def test_no_earlier_stage_is_trained_on_other_questions_of_documents_that_are_held_back(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path / "model", selection=DevSettings(hold_back=4))
    last = prepared_sets(config)
    asked_otherwise = shutil.copytree(beir, tmp_path / "data")
    questions = [json.loads(line) for line in (beir / "queries.jsonl").read_text().splitlines()]
    lines = [json.dumps(one | {"text": f"what about {one['text']}"}) for one in questions]
    (asked_otherwise / "queries.jsonl").write_text("\n".join(lines) + "\n")
    made = replace(config, train=[QuestionSet(asked_otherwise)], selection=DevSettings())
    (held_back,) = last.held_back
    answers = {held_back.documents.text_at(row) for row in held_back.positives.values.tolist()}

    def trained(prepared: PreparedSets) -> set[str]:
        return {data.documents.text_at(row) for data in prepared.train for row in data.positives.values.tolist()}

    assert answers <= trained(prepared_sets(made))
    assert not answers & trained(prepared_sets(made, other=last))


def test_warm_up_pre_training_and_fine_tuning_run_from_one_file_and_run_again_do_nothing(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    stage = StageSettings(
        train=[QuestionSet(beir, name="pairs"), QuestionSet(beir, questions="first-sentence", name="corpus")],
        objective=SparseObjective(info_nce=0.0, kl=1.0, teachers=["lexical"]),
        candidates=SparseCandidates(negatives=2, mine="student", consistency=50),
        document_length=16,
        training=TrainingSettings(steps=2, batch_size=4),
    )
    # Documents of six words give no first sentence: a corpus of its own.
    corpus = tmp_path / "corpus.jsonl"
    sentences = [f"{' '.join(WORDS[at : at + 4])}. {' '.join(WORDS[20 + at : 40 + at])}" for at in range(12)]
    corpus.write_text("".join(json.dumps({"_id": f"c{at}", "text": text}) + "\n" for at, text in enumerate(sentences)))
    stage.train[1].path = corpus
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        student=StudentSettings(document_length=32, query_length=16, columns=16),
        pretraining=stage,
        warm_up=WarmUpSettings(expansions=5),
        candidates=SparseCandidates(negatives=1, mine="bm25"),
        selection=DevSettings(hold_back=8, queries=8, documents=30),
    )
    path = tmp_path / "both.yaml"
    path.write_text(to_yaml(config))
    loaded = load_config(SparseConfig, path)
    assert loaded == config
    first = train_sparse(loaded)
    files = sorted(one.relative_to(tmp_path) for one in tmp_path.rglob("model.safetensors"))
    changed = {one: (tmp_path / one).stat().st_mtime_ns for one in files}
    assert len(files) >= 4
    assert train_sparse(loaded).steps == first.steps
    assert {one: (tmp_path / one).stat().st_mtime_ns for one in files} == changed

    stages = tmp_path / "model" / ".stages"
    (by_student,) = {read_header(one, NEGATIVES)["retriever"] for one in stages.glob("negatives/*.student-*.jsonl")}
    assert by_student.startswith("sparse miner ")
    # One table throughout, though pre-training has other documents.
    assert (stages / "pretrained" / "idf.json").read_bytes() == (tmp_path / "model" / "idf.json").read_bytes()

    # Brought to another place, it is the same run.
    (tmp_path / "model").rename(tmp_path / "moved")
    moved = train_sparse(replace(loaded, output=tmp_path / "moved"))
    assert moved.measures == first.measures
    assert {one: (tmp_path / "moved" / one.relative_to("model")).stat().st_mtime_ns for one in files} == changed


def test_a_generators_questions_are_kept_beside_the_model_and_made_once(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    generator = tmp_path / "generator"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_backbone(tmp_path / "words"))
    torch.manual_seed(0)
    size = len(tokenizer)
    small = T5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(small).save_pretrained(generator)
    tokenizer.save_pretrained(generator)
    corpus = tmp_path / "docs.jsonl"
    shutil.copy(beir / "corpus.jsonl", corpus)
    before = sorted(path for path in tmp_path.iterdir())
    config = configuration(backbone, corpus, tmp_path / "model", train=[QuestionSet(corpus, questions=str(generator))])
    assert train_sparse(config).steps == 4
    (queries,) = (tmp_path / "model" / ".stages").glob("*.queries.jsonl")
    assert sorted(set(tmp_path.iterdir()) - set(before)) == [tmp_path / "model"]
    # Another reading of the corpus is another file, not a refusal.
    fewer = replace(config, output=tmp_path / "other", cache=tmp_path / "model" / ".stages")
    train_sparse(replace(fewer, train=[replace(config.train[0], limit=20)]))
    assert len(list(queries.parent.glob("*.queries.jsonl"))) == 2


@pytest.mark.parametrize(
    "chosen",
    [
        ["train=[{path: beir}]", "selection.hold_back=0.1"],
        ["train=[{path: docs.jsonl, questions: first-sentence}]"],
        ["train=[{path: docs.jsonl, questions: title}]", "objective.base=bm25"],
    ],
)
def test_the_commands_of_the_documentation_need_no_other_settings(
    tmp_path: Path, backbone: Path, beir: Path, worded: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    from opensearch_neural.cli import osn

    monkeypatch.chdir(tmp_path)
    shutil.copytree(beir, "beir")
    assert worded == tmp_path / "docs.jsonl"
    # What a test must make smaller, and nothing else.
    small = [f"start={backbone}", "student.document_length=32", "document_length=32", "training.steps=2"]
    options = [part for one in [*chosen, *small] for part in ("--set", one)]
    result = CliRunner().invoke(osn, ["train", "sparse", *options, "--output", "model"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert load_sparse(Path("model")).info.kind == KIND


def test_the_command_says_what_it_reached(tmp_path: Path, backbone: Path, beir: Path) -> None:
    from opensearch_neural.cli import osn

    config = configuration(backbone, beir, tmp_path / "model", dev=[QuestionSet(beir, split="dev", name="dev")])
    path = tmp_path / "sparse.yaml"
    path.write_text(to_yaml(config))
    result = CliRunner().invoke(osn, ["train", "sparse", "--config", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for name in (
        "nDCG@10",
        "BM25 + sparse nDCG@10",
        "BM25 nDCG@10",
        "presence × idf nDCG@10",
        "word-piece BM25 nDCG@10",
        "expansion terms",
        "FLOPS",
    ):
        assert name in result.stdout
    lines = [line for line in result.stderr.splitlines() if " step " in line and "BM25 + sparse nDCG@10" in line]
    repeated = [line for line in lines if "  BM25 nDCG@10" in line or "presence × idf" in line]
    assert len(lines) > 1 and not repeated, "the baselines, which training does not change, stand in one line"
