"""The sparse student: a directory that others load, IDF in the match, columns sampled, stages in one configuration."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration  # noqa: E402

from opensearch_neural.commands.idf import idf  # noqa: E402
from opensearch_neural.errors import InputError, OsnError  # noqa: E402
from opensearch_neural.models.lexical import build_lexical  # noqa: E402
from opensearch_neural.models.sparse import load_sparse  # noqa: E402
from trainers.common.config import load_config, to_yaml  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.common.training_model import TrainingProgress  # noqa: E402
from trainers.data.candidates import RetrievalData, unique_documents  # noqa: E402
from trainers.data.examples import TrainingData  # noqa: E402
from trainers.data.formats import read_header  # noqa: E402
from trainers.data.negatives import open_retriever  # noqa: E402
from trainers.data.negatives_file import NEGATIVES  # noqa: E402
from trainers.data.sets import (  # noqa: E402
    DevSettings,
    QuestionSet,
)
from trainers.data.teach import teach  # noqa: E402
from trainers.data.teacher_ensemble import TeacherEnsemble  # noqa: E402
from trainers.data.teachers import PairTeacher, open_teacher  # noqa: E402
from trainers.data.unlabelled_questions import unlabelled  # noqa: E402
from trainers.sparse import train as sparse  # noqa: E402
from trainers.sparse.batches import collate  # noqa: E402
from trainers.sparse.calibration import calibrate  # noqa: E402
from trainers.sparse.dev_measures import measured_flops  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    RegularizationSettings,
    SparseCandidates,
    SparseConfig,
    SparseObjective,
    StageSettings,
    StudentSettings,
    WarmUpSettings,
)
from trainers.sparse.stage_data import check_known, mined, teachers  # noqa: E402
from trainers.sparse.start import build  # noqa: E402
from trainers.sparse.student import KIND, SparseBatch, SparseStudent  # noqa: E402
from trainers.sparse.tiled_head import sample_columns  # noqa: E402
from trainers.sparse.train import prepared_sets, train_sparse  # noqa: E402
from trainers.sparse.warm_up import _content, _corpora, warmed_up  # noqa: E402

SMALL = StudentSettings(document_length=32, query_length=16, columns=16)
TEXTS = ["bab dek fin", "gol kuz lab mek nin pol ruz", "sab sab sab", " ".join(WORDS[:50]), ""]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny")


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> SparseConfig:
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [QuestionSet(beir)],
        "student": StudentSettings(document_length=32, query_length=16, columns=16),
        "warm_up": WarmUpSettings(expansions=5),
        "objective": SparseObjective(info_nce=1.0, kl=0.0),
        "candidates": SparseCandidates(negatives=1, mine=None),
        "regularization": RegularizationSettings(weight=1e-3),
        "document_length": 32,
        "training": TrainingSettings(steps=4, batch_size=8, learning_rate=3e-3, evaluate_every=4, log_every=2),
    }
    return SparseConfig(**(plain | changes))


def student(config: SparseConfig, *, moved: bool = True) -> SparseStudent:
    """The untrained student, every weight moved so that one that export forgets shows, some hundred terms active."""
    model = build(config, [config.train[0].load().documents]).eval()
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if moved:
                parameter += 0.05 * torch.randn_like(parameter)
    calibrate(model, TEXTS[:2], expansions=10, weight=0.5)
    return model


def batch_of(config: SparseConfig, model: SparseStudent, size: int = 6) -> SparseBatch:
    sets = [config.train[0].load()]
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=10)
    made = collate(config, sets, model, teachers=teachers(config, sets))
    return made([data[Visit(index, 0, 0, 1)] for index in range(size)])


# ------------------------------------------------ the directory


@pytest.mark.parametrize("activation", ["log", "double-log"])
def test_the_directory_loads_in_sentence_transformers_with_the_same_vectors(
    tmp_path: Path, backbone: Path, beir: Path, activation: Any
) -> None:
    from sentence_transformers import SparseEncoder

    settings = StudentSettings(document_length=32, query_length=16, activation=activation)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    model.export(tmp_path)
    ours = model.vectors(TEXTS[:4]).to_scipy().toarray()
    loaded = SparseEncoder(str(tmp_path), device="cpu")
    theirs = loaded.encode_document(TEXTS[:4]).to_dense().numpy()
    assert (ours > 0).sum() > 20
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=2e-6)
    special = loaded.tokenizer.all_special_ids
    assert not theirs[:, special].any()
    encoder = load_sparse(tmp_path)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS[:4]).to_scipy().toarray(), ours, atol=2e-6)
    for query, vector in zip(
        ("bab bab sab", "unknown dek"), loaded.encode_query(["bab bab sab", "unknown dek"]).to_dense(), strict=True
    ):
        found = {encoder.vocabulary[at]: float(vector[at]) for at in vector.nonzero().flatten().tolist()}
        assert encoder.query.encode(query) == pytest.approx(found)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_a_residual_student_is_encoded_as_bm25_of_the_whole_text_plus_what_is_learned(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = StudentSettings(document_length=8, query_length=16, residual=True, k1=0.9, b=0.4)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    model.export(tmp_path)
    documents = configuration(backbone, beir, tmp_path).train[0].load().documents
    lexical = build_lexical(documents.values(), tokenizer=model.lexicon.encoder.query.tokenizer, k1=0.9, b=0.4)
    expected = lexical.encode_documents(TEXTS).to_scipy() + model.vectors(TEXTS).to_scipy()
    found = load_sparse(tmp_path)
    np.testing.assert_allclose(found.encode_documents(TEXTS).to_scipy().toarray(), expected.toarray(), atol=2e-6)
    # The text is longer than the head reads: its impacts count all the same.
    assert len(found.encode_documents([TEXTS[3]]).row(0).keys() & set(WORDS[:50])) == 50
    assert found.query.encode("bab sab") == lexical.query.encode("bab sab")


@pytest.mark.parametrize("residual", [False, True])
def test_a_model_gets_the_statistics_of_another_corpus_and_keeps_what_it_learned(
    tmp_path: Path, backbone: Path, beir: Path, residual: bool
) -> None:
    from sentence_transformers import SparseEncoder

    settings = StudentSettings(document_length=32, query_length=16, residual=residual)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    source, out = tmp_path / "source", tmp_path / "adapted"
    source.mkdir()
    model.export(source)
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "d", "text": "bab bab dek"}) + "\n")
    arguments = ["--corpus", str(tmp_path / "c.jsonl"), "--model", str(source), "--out", str(out)]
    saturation = ["--k1", "0.7", "--b", "0.2"]
    if not residual:
        with pytest.raises(InputError, match="k1 and b would change nothing"):
            CliRunner().invoke(idf, [*arguments, *saturation], catch_exceptions=False, standalone_mode=False)
    done = CliRunner().invoke(idf, [*arguments, *(saturation if residual else [])], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    adapted = load_sparse(out)
    lexical = build_lexical(["bab bab dek"], tokenizer=model.lexicon.encoder.query.tokenizer, k1=0.7, b=0.2)
    found = adapted.query.encode("bab fin")
    assert found == pytest.approx(lexical.query.encode("bab fin"), rel=1e-6)
    assert found != pytest.approx(load_sparse(source).query.encode("bab fin"), rel=1e-2)
    expected = model.vectors(TEXTS[:2]).to_scipy().toarray()
    if residual:
        expected = expected + lexical.encode_documents(TEXTS[:2]).to_scipy().toarray()
    else:
        (vector,) = SparseEncoder(str(out), device="cpu").encode_query(["bab fin"]).to_dense().tolist()
        assert {adapted.vocabulary[at]: weight for at, weight in enumerate(vector) if weight} == pytest.approx(found)
    np.testing.assert_allclose(adapted.encode_documents(TEXTS[:2]).to_scipy().toarray(), expected, atol=2e-6)
    with pytest.raises(InputError, match="there already"):
        CliRunner().invoke(idf, arguments, catch_exceptions=False, standalone_mode=False)


# ------------------------------------------------ batches and losses


def test_a_querys_score_is_the_sum_of_idf_times_weight_over_its_distinct_tokens(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config)
    batch = batch_of(config, model)
    part = batch.parts["document"][0]
    vectors = model.encode("document", part).vectors
    scores = batch.targets.query @ vectors.T
    data = config.train[0].load()
    idf = model.lexicon.encoder.query
    example = data.example(0)
    whole = model.vectors([data.documents[example.positives[0]]]).row(0)
    expected = sum(weight * whole.get(token, 0.0) for token, weight in idf.encode(example.query).items())
    row = int((part.position == batch.targets.candidates[0, 0]).nonzero())
    assert scores[0, row].item() == pytest.approx(expected, rel=1e-4)


def test_sampled_and_full_heads_agree_on_scores_and_a_sample_of_everything_on_flops(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    found = {}
    for head, columns in (("full", 1), ("sampled", 10_000)):
        settings = StudentSettings(document_length=32, query_length=16, head=head, columns=columns)  # type: ignore[arg-type]
        config = configuration(backbone, beir, tmp_path, student=settings)
        model = student(config)
        model.progress = TrainingProgress(4, 4)
        losses = model(batch_of(config, model))
        found[head] = {name: value.item() for name, value in {**losses.terms, **losses.measures}.items()}
    assert found["full"] == pytest.approx(found["sampled"], rel=1e-4)
    assert found["full"]["flops"] > 0
    assert 0 < found["full"]["expansions"] < found["full"]["active"]


def test_frozen_layers_and_embeddings_get_no_gradient_and_the_rest_does(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = StudentSettings(document_length=32, query_length=16, frozen_layers=1)
    config = configuration(backbone, beir, tmp_path, student=settings)
    model = student(config).train()
    model(batch_of(config, model)).total.backward()
    touched = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.abs().sum() > 0}
    assert "head.bias" in touched
    assert any(".layer.1." in name for name in touched)
    assert not any("embeddings" in name or ".layer.0." in name or name == "head.weight" for name in touched)
    with pytest.raises(InputError, match="has 2 layers"):
        build(replace(config, student=replace(settings, frozen_layers=3)), [config.train[0].load().documents])


def test_gradient_caching_has_the_gradient_of_the_whole_batch(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config).train()
    batch = batch_of(config, model)
    model(batch).total.backward()
    whole = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    halves = replace(config, training=replace(config.training, chunk_size=3))
    cached_backward(model, batch_of(halves, model))
    for name, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(one.grad, whole[name], atol=1e-5, rtol=1e-3)


def test_the_regularizer_waits_then_grows_quadratically() -> None:
    settings = RegularizationSettings(weight=0.8, delay=0.5, ramp=0.25)
    assert [settings.at(step, 40) for step in (0, 19, 20, 25, 30, 40)] == pytest.approx([0, 0, 0, 0.2, 0.8, 0.8])


def test_flops_a_slot_are_the_papers_and_larger_than_over_all_documents(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    values = {}
    for definition in ("batch", "slot"):
        config = configuration(
            backbone, beir, tmp_path,
            student=StudentSettings(document_length=32, query_length=16, head="full"),
            regularization=RegularizationSettings(flops=definition),  # type: ignore[arg-type]
        )  # fmt: skip
        model = student(config)
        values[definition] = float(model(batch_of(config, model)).measures["flops_unweighted"])
    assert values["batch"] < values["slot"]


def test_flops_count_the_chance_that_query_and_document_share_a_token() -> None:
    from scipy.sparse import csr_matrix

    # Of two queries both ask a and one asks b; of four documents one holds a and two hold b: 1 · 1/4 + 1/2 · 2/4.
    documents = csr_matrix(np.array([[1.0, 0.5], [0, 3], [0, 0], [0, 0]]))
    assert measured_flops([{"a": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}], documents, ["a", "b"]) == pytest.approx(0.5)


def test_estimated_flops_are_those_of_all_columns_on_average(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, head="full"))
    model = student(config)
    batch = batch_of(config, model)
    targets, (part,) = batch.targets, batch.parts["document"]
    learned = model.encode("document", part).vectors.detach()
    order = part.position.argsort()
    full = float(model._flops(learned[order], targets.candidates, targets.shares))
    rng = np.random.default_rng(3)
    wanted = model.columns[:4]
    estimates = []
    for _ in range(400):
        drawn = sample_columns(wanted, model.columns, 12, rng)
        some = learned[order][:, torch.from_numpy(drawn.ids)]
        estimates.append(float(model._flops(some, targets.candidates, torch.from_numpy(drawn.shares))))
    assert np.mean(estimates) == pytest.approx(full, rel=0.1)
    assert np.mean(estimates) > 2 * float(model._flops(some, targets.candidates, torch.ones(len(drawn.ids))))


def test_a_residual_students_scores_are_bm25s_while_nothing_is_learned(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, residual=True, columns=1))
    model = student(config)
    batch = batch_of(config, model)
    data = config.train[0].load()
    targets = batch.targets
    silent = torch.zeros(targets.present.shape)
    found = model.losses({"document": silent}, targets).terms["info_nce"]

    bm25 = build_lexical(data.documents.values(), tokenizer=model.lexicon.encoder.query.tokenizer)
    drawn = RetrievalData([data], negatives=1, depth=10)
    items = [drawn[Visit(index, 0, 0, 1)] for index in range(6)]
    texts = [data.documents.text_at(row) for row in unique_documents(items)]
    weights = list(bm25.encode_documents(texts).rows())
    scores = torch.tensor(
        [
            [sum(idf * row.get(token, 0.0) for token, idf in bm25.query.encode(one.query).items()) for row in weights]
            for one in (data.example(index) for index in range(6))
        ]
    )
    scores = scores.masked_fill(targets.excluded, -torch.inf)
    expected = torch.nn.functional.cross_entropy(scores, targets.candidates[:, 0])
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    assert float(scores[scores.isfinite()].max()) > 0


def test_special_tokens_are_silent_in_training(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, head="full"))
    model = build(config, [config.train[0].load().documents])
    with torch.no_grad():
        model.head.bias += 20.0  # Every word is active.
    (part,) = batch_of(config, model).parts["document"]
    weights = model.encode("document", part).vectors
    assert not weights[:, :5].any()
    assert bool((weights[:, 5:] > 0).all())


def test_idf_is_of_all_sets_of_each_or_of_none(tmp_path: Path, backbone: Path, beir: Path) -> None:
    other = tiny_beir(tmp_path / "other", seed=5)
    table = tmp_path / "idf.json"
    table.write_text(json.dumps(dict.fromkeys(WORDS, 3.0)))
    seen = {}
    for source in ("train", "own", "none", str(table)):
        config = configuration(
            backbone, beir, tmp_path, student=replace(SMALL, idf=source), train=[QuestionSet(beir), QuestionSet(other)]
        )
        sets = [one.load() for one in config.train]
        model = build(config, [one.documents for one in sets])
        made = collate(config, sets, model, teachers=teachers(config, sets))
        assert len(made.lexicons) == 2
        seen[source] = [one.idf[5:] for one in made.lexicons]
    assert np.array_equal(*seen["train"])
    assert not np.array_equal(*seen["own"])
    assert {float(one) for two in seen["none"] for one in two} == {1.0}
    assert {float(one) for two in seen[str(table)] for one in two} == {3.0}
    own = build_lexical(config.train[1].load().documents.values(), tokenizer=model.lexicon.encoder.query.tokenizer)
    assert seen["own"][1].tolist() == pytest.approx(list(own.query.weights.values())[5:])


def test_teachers_of_a_batch_are_normalized_weighed_and_added(tmp_path: Path, backbone: Path, beir: Path) -> None:
    data = QuestionSet(beir).load()
    presence = tmp_path / "presence"
    build_lexical(data.documents.values(), k1=0.0).save(presence)
    config = configuration(
        backbone, beir, tmp_path,
        objective=SparseObjective(
            info_nce=0.0, kl=1.0, teachers=["lexical", str(presence)], teacher_weights=[0.75, 0.25], teacher_scale=8.0
        ),
        candidates=SparseCandidates(negatives=5, mine=None),
    )  # fmt: skip
    model = student(config)
    (folders,) = teachers(config, [data])
    items = [RetrievalData([data], negatives=5, depth=10)[Visit(index, 0, 0, 1)] for index in range(6)]
    expected = np.zeros((6, 6))
    for teacher, weight in zip(folders, (0.75, 0.25), strict=True):
        for row, one in enumerate(items):
            candidates = [data.documents.ids[at] for at in (one.positive, *one.negatives)]
            scores = teacher.scores([data.queries.ids[one.query]], candidates)[0]
            expected[row] += 8.0 * weight * (scores - scores.min()) / np.ptp(scores)
    np.testing.assert_allclose(batch_of(config, model).targets.teacher.scores, expected, rtol=1e-5)


# ------------------------------------------------ negatives, and what is left out


def test_queries_whose_positive_the_miner_does_not_find_are_left_out(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    data = QuestionSet(beir).load()
    run = open_retriever("bm25", data.documents).retrieve(data.query_texts(), 1)
    lost = {one.query_id for one in data.examples if next(iter(run[one.query_id]), None) not in one.positives}
    assert 0 < len(lost) < len(data)
    config = configuration(
        backbone, beir, tmp_path, candidates=SparseCandidates(negatives=1, mine="bm25", consistency=1)
    )
    (left,) = mined(config, [data])
    assert set(left.query_texts()) == set(data.query_texts()) - lost


def test_one_judged_negative_does_not_end_mining_for_the_others(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, candidates=SparseCandidates(negatives=3, depth=10, mine="bm25"))
    (alone,) = mined(config, [QuestionSet(beir).load()])
    found_for = {one.query_id: set(one.negatives) for one in alone.examples}
    # One that the miner does not find.
    judged = next(one for one in alone.documents if one not in found_for["q1"] | {"d1"})
    folder = tmp_path / "judged"
    shutil.copytree(beir, folder)
    with (folder / "qrels" / "train.tsv").open("a") as qrels:
        qrels.write(f"q1\t{judged}\t0\n")
    (found,) = mined(config, [QuestionSet(folder).load()])
    assert set(found.examples[0].negatives) == found_for["q1"] | {judged}
    assert [one.negatives for one in found.examples[1:]] == [one.negatives for one in alone.examples[1:]]
    assert min(len(one.negatives) for one in alone.examples) >= 3


def test_a_cross_encoder_that_scored_other_negatives_is_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, candidates=SparseCandidates(negatives=2, depth=4, mine="bm25"))
    (data,) = mined(config, [QuestionSet(beir).load()])
    pairs = [(data.queries.row(one.query_id), data.documents.row(one.negatives[0])) for one in data.examples]
    indptr = np.zeros(len(data.queries) + 1, dtype=np.int64)
    for query, _ in pairs:
        indptr[query + 1 :] += 1
    documents = np.array([row for _, row in sorted(pairs)], dtype=np.int32)
    few = PairTeacher("cross", data, indptr, documents, np.ones(len(pairs), np.float32), "nan")
    check_known(few, data, replace(config.candidates, depth=1))
    with pytest.raises(InputError, match=r"cross scored 45 of the 163 hard negatives"):
        check_known(few, data, config.candidates)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": SparseCandidates(negatives=1, mine="student")}, "there is no pretraining"),
        ({"objective": SparseObjective(info_nce=0.0, kl=1.0)}, "no teacher and no scores to distil"),
        ({"document_length": 100}, "document_length is 100, the backbone has 64 positions"),
        ({"candidates": SparseCandidates(mine="bm52")}, "there is no retriever 'bm52'"),
        ({"student": replace(SMALL, idf="no.json")}, "no.json does not exist"),
    ],
)
def test_what_cannot_be_trained_is_said_before_it_begins(
    tmp_path: Path, backbone: Path, beir: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OsnError, match=message):
        train_sparse(configuration(backbone, beir, tmp_path / "model", **changes))


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


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="teachers are named, but kl and margin_mse are 0"):
        SparseObjective(teachers=["lexical"])
    with pytest.raises(ValueError, match="all_pairs is for kl"):
        SparseObjective(kl=1.0, margin_mse=1.0, all_pairs=True)


def test_a_judged_corpus_without_text_is_called_that(tmp_path: Path, beir: Path) -> None:
    folder = tmp_path / "empty"
    shutil.copytree(beir, folder)
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({**line, "text": " "}) + "\n" for line in lines))
    with pytest.raises(InputError, match="the corpus holds no document with text"):
        QuestionSet(folder).load()


# ------------------------------------------------ the start


def test_a_damaged_start_is_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = build(config, [config.train[0].load().documents])
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="outputs that are not numbers"):
        calibrate(model, TEXTS[:2], expansions=7, weight=None)


def test_expansions_are_alive_after_calibration(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = build(config, [config.train[0].load().documents]).eval()
    calibrate(model, TEXTS[:2], expansions=7, weight=0.25)
    vectors = model.vectors(TEXTS[:2])
    outside = [
        {token: w for token, w in row.items() if token not in text.split()}
        for row, text in zip(vectors.rows(), TEXTS, strict=False)
    ]
    assert sum(map(len, outside)) / 2 == pytest.approx(7, abs=1)
    assert np.mean([max(row.values()) for row in outside]) == pytest.approx(0.25, rel=0.3)


# ------------------------------------------------ training


def test_training_learns_names_that_documents_do_not_hold_and_logs_what_it_costs(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """A question of the tiny set shares one word of four with its document: BM25 cannot see the other three."""
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        student=StudentSettings(document_length=32, query_length=16, residual=True),
        dev=[QuestionSet(beir, split="dev", name="dev")],
        training=TrainingSettings(
            steps=60, batch_size=15, learning_rate=1e-2, warmup=0.1, evaluate_every=20, log_every=20
        ),
    )
    trained = train_sparse(config)
    measures = trained.measures
    assert measures["nDCG@10"] > measures["word-piece BM25 nDCG@10"]
    assert measures["start nDCG@10"] == pytest.approx(measures["word-piece BM25 nDCG@10"], abs=0.2)
    assert measures["expansion terms"] > 0
    assert measures["active terms"] > measures["expansion terms"]
    assert measures["FLOPS"] > 0
    logged = [entry for entry in trained.history if "expansions" in entry]
    assert {"active", "flops", "lambda", "info_nce"} <= logged[-1].keys()
    assert load_sparse(tmp_path / "model").info.kind == KIND


def test_a_warm_up_teaches_impacts_where_nothing_else_adds_them(tmp_path: Path, backbone: Path, beir: Path) -> None:
    warm_up = WarmUpSettings(impact_steps=30, impact_learning_rate=1e-2, batch_size=8, length=32, expansions=5)
    config = configuration(backbone, beir, tmp_path / "model", warm_up=warm_up)
    texts = list(config.train[0].load().documents.values())[:20]

    def error(start: str) -> float:
        model = build(replace(config, start=start), [config.train[0].load().documents]).eval()
        impacts = model.lexicon.impacts(texts).toarray()
        learned = model.vectors(texts).to_scipy().toarray()
        present = impacts > 0
        return float(np.square(learned - impacts[:, : learned.shape[1]])[present[:, : learned.shape[1]]].mean())

    assert error(warmed_up(config, prepared_sets(config, config))) < 0.7 * error(config.start)
    with pytest.raises(ValueError, match="BM25 would count twice"):
        replace(config, student=replace(config.student, residual=True))
    with pytest.raises(ValueError, match=r"name it in candidates\.mine"):
        SparseCandidates(mine=None, consistency=5)


def test_a_corpus_without_judgements_is_what_a_masked_language_model_warms_up_on(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(f'{{"_id": "{at}", "title": "{WORDS[at]}", "text": "{WORDS[at + 1]}"}}\n' for at in range(12))
    )
    config = configuration(backbone, beir, tmp_path / "model", train=[QuestionSet(corpus, questions="title")])
    assert _corpora(config) == [corpus]
    assert _corpora(replace(config, warm_up=WarmUpSettings(corpus=[beir]))) == [beir]
    # Another content under the same name is another warm-up.
    first = _content(corpus)
    corpus.write_text(corpus.read_text() + '{"_id": "more", "title": "a", "text": "b"}\n')
    assert _content(corpus) != first


def test_questions_that_are_held_back_are_in_no_earlier_stage(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path / "model", selection=DevSettings(hold_back=4))
    last = prepared_sets(config, config)
    whole = replace(config, selection=DevSettings())
    before = prepared_sets(whole, whole, held=last.held)
    held = {text for one in last.held for text in one.query_texts().values()}
    assert held and not held & {text for one in before.train for text in one.query_texts().values()}
    assert held & {text for one in prepared_sets(whole, whole).train for text in one.query_texts().values()}


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
        # BM25 is in it: the miner finds positives after two steps, so the filter leaves queries.
        student=StudentSettings(document_length=32, query_length=16, columns=16, residual=True),
        pretraining=stage,
        warm_up=WarmUpSettings(masked_lm_steps=2, batch_size=4, length=16, expansions=5),
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


def test_all_pairs_of_the_batch_can_teach(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone, beir, tmp_path, objective=SparseObjective(kl=1.0, teachers=["lexical"], all_pairs=True),
        candidates=SparseCandidates(negatives=0),
    )  # fmt: skip
    model = student(config)
    batch = batch_of(config, model)
    targets = batch.targets
    assert targets.teacher is not None
    assert targets.teacher.scores.shape == targets.teacher.known.shape == targets.excluded.shape
    assert bool(model(batch).total.isfinite())


def test_what_is_no_candidate_takes_no_part_in_the_normalization(tmp_path: Path, beir: Path) -> None:
    """A known positive that a teacher scores highest would press all candidates together."""
    data = QuestionSet(beir).load()
    objective = SparseObjective(kl=1.0, teachers=["lexical"], all_pairs=True, teacher_scale=1.0)
    teacher = open_teacher(teach("lexical", data, output=tmp_path / "lexical"), data)
    ensemble = TeacherEnsemble([data], [[teacher]], objective)
    own = [RetrievalData([data], negatives=0, depth=1)[Visit(0, 0, 0, 1)]]
    raw = torch.from_numpy(teacher.scores([data.queries.ids[own[0].query]], data.documents.ids))
    excluded = raw == raw.max()
    taught = ensemble.of_documents(own, data.documents.ids, excluded=excluded)
    assert torch.equal(taught.known, ~excluded)
    assert taught.scores[~excluded].max() == 1.0 and raw[~excluded].max() > 0
    assert (taught.scores[excluded] == 0).all()


# ------------------------------------------------ questions of unlabelled corpora


@pytest.fixture
def titled(tmp_path: Path) -> Path:
    path = tmp_path / "titled.jsonl"
    rest = "and then " * 10  # A first sentence is a question where enough is left.
    records = [
        {"_id": "a", "title": "How apples grow", "text": f"Apples grow on trees of some size. {rest}"},
        {"_id": "b", "title": "", "text": f"Short. {rest}"},
        {"_id": "c", "title": "Wine", "text": f"Wine is made of grapes in most places. {rest}"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def worded(tmp_path: Path) -> Path:
    """A corpus without judgements, of words that the tiny backbone knows."""
    path = tmp_path / "docs.jsonl"
    records = [
        {
            "_id": f"w{at}",
            "title": " ".join(WORDS[at : at + 3]),
            "text": f"{' '.join(WORDS[at : at + 5])}. {' '.join(WORDS[20 + at : 40 + at])}",
        }
        for at in range(16)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_title_asks_for_its_text_and_a_first_sentence_for_the_rest(tmp_path: Path, titled: Path) -> None:
    titles = unlabelled(titled, "title", name="titles")
    assert [example.query for example in titles.examples] == ["How apples grow", "Wine"]
    assert titles.documents["a"].startswith("Apples grow")
    assert len(titles.documents) == 3  # the others are searched, too
    sentences = unlabelled(titled, "first-sentence", name="sentences")
    assert [example.query for example in sentences.examples] == [
        "Apples grow on trees of some size.",
        "Wine is made of grapes in most places.",
    ]
    assert "Apples grow" not in sentences.documents["a"]
    assert sentences.examples[0].positives == ("a",)


def test_a_corpus_that_gives_no_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"_id": "a", "text": "too short"}) + "\n")
    with pytest.raises(InputError, match="none of 1 documents gives a question: a first sentence needs 4 to 40 words"):
        unlabelled(path, "first-sentence", name="short")


def test_questions_that_are_no_kind_and_no_model_are_named(titled: Path) -> None:
    with pytest.raises(InputError, match="'titel' is neither title nor first-sentence"):
        QuestionSet(titled, questions="titel").load(titled.parent)
    with pytest.raises(InputError, match="a document, where a question and what answers it were expected") as failure:
        QuestionSet(titled).load()
    assert "questions: title" in str(failure.value)


def test_documents_without_a_question_are_counted(titled: Path) -> None:
    assert unlabelled(titled, "title", name="titles").notes == [
        "1 of 3 documents give no question: they need a title, and a text beside it"
    ]


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
        ["train=[{path: docs.jsonl, questions: title}]", "student.residual=true"],
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
    for name in ("nDCG@10", "presence × idf nDCG@10", "word-piece BM25 nDCG@10", "expansion terms", "FLOPS"):
        assert name in result.stdout
