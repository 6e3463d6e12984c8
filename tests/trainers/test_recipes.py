"""Each recipe builds everything it names and takes two steps, on tiny data and a tiny backbone; its numbers stay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from osn_train import dry_run  # noqa: E402
from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402

from trainers.common.config import load_config, recipe, to_dict  # noqa: E402
from trainers.dense.settings import DenseConfig  # noqa: E402
from trainers.doc2query.settings import Doc2QueryConfig  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402
from trainers.jpq.settings import JpqConfig  # noqa: E402
from trainers.multi_layer.settings import MlrConfig  # noqa: E402
from trainers.query_as_context.settings import QueryAsContextConfig  # noqa: E402
from trainers.sparse.settings import SparseConfig  # noqa: E402
from trainers.tome.settings import TomeConfig  # noqa: E402

RECIPES = Path(backbones.__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class Recipe:
    """method: what `osn train` is told; stands: the paper's numbers, by dotted field."""

    method: str
    kind: type[Any]
    stands: dict[str, Any]


EXPECTED = {
    "dpr": Recipe(
        "dense",
        DenseConfig,
        {
            "training.learning_rate": 2e-5,
            "training.batch_size": 128,
            "training.epochs": 40.0,
            "training.warmup": 0.05,
            "training.max_gradient_norm": 2.0,
            "encoder.tied": False,
            "encoder.document_length": 256,
            "candidates.negatives": 1,
            "objective.temperature": 1.0,
        },
    ),
    "query-as-context": Recipe(
        "query-as-context",
        QueryAsContextConfig,
        {
            "variant": "cot-mae",
            "passage_length": 144,
            "titles": True,
            "generation.candidates": 5,
            "generation.top_k": 25,
            "generation.top_p": 0.95,
            "masking.passage": 0.3,
            "training.steps": 50_000,
            "training.batch_size": 16_384,
            "training.learning_rate": 4e-4,
            "training.warmup": 0.1,
            "retriever.training.learning_rate": 2e-5,
            "retriever.training.batch_size": 64,
            "retriever.candidates.negatives": 15,
            "retriever.two_stage.depth": 200,
            "retriever.objective.temperature": 1.0,
        },
    ),
    "query-as-context-cocondenser": Recipe(
        "query-as-context",
        QueryAsContextConfig,
        {
            "variant": "cocondenser",
            "titles": True,
            "temperature": 1.0,
            "training.steps": 120_000,
            "training.batch_size": 2048,
            "training.learning_rate": 1e-4,
            "training.weight_decay": 0.01,
            "retriever.candidates.mine": "bm25",
        },
    ),
    "query-as-context-retriever": Recipe(
        "dense",
        DenseConfig,
        {
            "training.learning_rate": 2e-5,
            "training.batch_size": 64,
            "training.weight_decay": 0.01,
            "encoder.document_length": 144,
            "candidates.negatives": 15,
            "candidates.depth": 200,
            "candidates.mine": "bm25",
            "objective.temperature": 1.0,
            "two_stage.depth": 200,
        },
    ),
    "multi-layer-two-stage": Recipe(
        "dense",
        DenseConfig,
        {
            "training.learning_rate": 5e-6,
            "training.epochs": 40.0,
            "two_stage.epochs": 20.0,
            "two_stage.keep": 50,
            "candidates.depth": 100,
            "training.select": "last",  # On Natural Questions (appendix D).
        },
    ),
    "multi-layer-representations": Recipe(
        "mlr",
        MlrConfig,
        {
            "representation.layers": [10, 12],
            "representation.pooling": "self-contrastive",
            "representation.regularization": 1.0,
            "training.learning_rate": 2e-5,
            "training.batch_size": 128,
            "training.epochs": 40.0,
            "training.warmup": 0.05,
            "training.max_gradient_norm": 2.0,
            "encoder.tied": False,
            "encoder.document_length": 256,
            "candidates.negatives": 1,
            "objective.temperature": 1.0,
        },
    ),
    # Beyond the paper: what the benchmark trains.
    "bm25-sparse": Recipe(
        "sparse",
        SparseConfig,
        {"objective.base": "bm25", "student.idf": "own", "regularization.weight": 0.05, "warm_up.weight": 0.2},
    ),
    "sparse-published-start": Recipe(
        "sparse",
        SparseConfig,
        {
            "objective.temperature": 3.0,
            "student.idf": "own",
            "regularization.weight": 0.02,
            "warm_up.expansions": None,
            "training.select": "BM25 + sparse nDCG@10",
        },
    ),
    "sparse-own-corpus": Recipe(
        "sparse",
        SparseConfig,
        {
            "objective.temperature": 3.0,
            "student.idf": "own",
            "regularization.weight": 0.02,
            "warm_up.expansions": None,
            "training.steps": 200,
            "training.select": "last",
        },
    ),
    "inference-free-sparse": Recipe(
        "sparse",
        SparseConfig,
        {
            "pretraining.training.steps": 150_000,
            "pretraining.training.batch_size": 48,
            "pretraining.training.learning_rate": 5e-5,
            "pretraining.candidates.negatives": 7,
            "pretraining.candidates.mine": "student",
            "pretraining.candidates.consistency": 10,
            "pretraining.regularization.weight": 1e-7,
            "pretraining.objective.teacher_scale": 10.0,
            "pretraining.objective.all_pairs": True,
            "pretraining.training.max_gradient_norm": None,
            "training.max_gradient_norm": None,
            "pretraining.document_length": 128,
            "training.steps": 50_000,
            "training.batch_size": 40,
            "training.learning_rate": 2e-5,
            "candidates.negatives": 10,
            "candidates.depth": 100,
            "regularization.weight": 0.02,
            "regularization.flops": "slot",
            "objective.teacher_scale": 30.0,
            "document_length": 256,
            "student.document_length": 512,
        },
    ),
    "splade": Recipe(
        "sparse",
        SparseConfig,
        {
            "student.queries": "network",
            "regularization.query_weight": 0.5,
            "regularization.weight": 0.2,  # .4 of the mean of two slots
            "regularization.flops": "slot",
            "objective.margin_mse": 1.0,
            "objective.normalize_teachers": False,
            "objective.teacher_scale": 1.0,
            "candidates.negatives": 1,
            "training.steps": 150_000,
            "training.batch_size": 128,
            "training.learning_rate": 2e-5,
            "training.warmup": 6000.0,
            "training.weight_decay": 0.01,
            "training.max_gradient_norm": None,
            "document_length": 256,
        },
    ),
    "jpq": Recipe(
        "jpq",
        JpqConfig,
        {
            "quantizer.subvectors": 96,  # 0.83 GB for 8.8 million passages: the paper's tables
            "quantizer.rotate": True,
            "training.learning_rate": 5e-6,
            "training.batch_size": 32,
            "negatives.depth": 200,
            "objective.scale": 1.0,
        },
    ),
    "jpq-token-table": Recipe(
        "jpq",
        JpqConfig,
        {"query_layers": 0, "objective.lambda_rank": 0.0, "training.steps": 2000, "training.batch_size": 256},
    ),
    "tome": Recipe(
        "tome",
        TomeConfig,
        {
            "backbone": "google-t5/t5-large",
            "url_backbone": "google-t5/t5-base",
            "generation.candidates": 20,
            "settings.query_length": 32,
            "settings.passage_length": 32,
            "settings.url_length": 80,
            "settings.number_urls": True,
            "training.learning_rate": 5e-5,
            "training.batch_size": 384,
            "training.warmup": 100_000.0,
            "url_training.batch_size": 128,
            "url_training.warmup": 10_000.0,
        },
    ),
    "tome-small": Recipe(
        "tome",
        TomeConfig,
        {
            "spans": 10,
            "training.learning_rate": 1e-3,
            "training.embedding_rate": 20.0,
            "url_training.embedding_rate": 20.0,
            "url_training.select": "last",
        },
    ),
    "doc2query": Recipe(
        "doc2query",
        Doc2QueryConfig,
        {"training.steps": 4000, "training.batch_size": 256, "training.learning_rate": 1e-4, "query_length": 64},
    ),
}


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny T5 with random weights."""
    folder = tmp_path_factory.mktemp("t5") / "tiny"
    tokenizer = backbones.train_tokenizer(WORDS, "byte-level", 400)
    new = NewBackbone("t5", layers=1, hidden=16, heads=2)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    return folder


def test_every_recipe_is_tested_and_says_its_command() -> None:
    recipes = list(RECIPES.glob("*.yaml"))
    assert {path.stem for path in recipes} == set(EXPECTED), "add a paper's numbers to EXPECTED"
    for path in recipes:
        assert f"osn train {EXPECTED[path.stem].method} --config {path.stem} " in path.read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_papers_numbers_stand_in_the_recipe(name: str) -> None:
    config = to_dict(load_config(EXPECTED[name].kind, recipe(name)))
    for field, value in EXPECTED[name].stands.items():
        actual = config
        for part in field.split("."):
            actual = actual[part]
        assert actual == value, field


@pytest.mark.parametrize("name", EXPECTED)
def test_ms_marcos_dev_questions_select_no_state(name: str) -> None:
    """They are the test set of every paper that trains on MS MARCO: training questions held back select the state."""
    whole = load_config(EXPECTED[name].kind, recipe(name))
    config = getattr(whole, "retriever", whole)
    trains_on = [getattr(settings, "path", None) for settings in getattr(config, "train", [])]
    if Path("data/msmarco") not in trains_on:
        pytest.skip("trains on other data")
    assert not whole.dev and not config.dev and config.selection.hold_back


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.method == "sparse"])
def test_a_sparse_model_reads_in_use_what_it_read_in_training(name: str) -> None:
    config = load_config(SparseConfig, recipe(name)).with_lengths()
    # The paper trains with 128 and 256 tokens (section 5.1.2), and indexes and evaluates with 512 (section 5.1.3).
    read = {"inference-free-sparse": 512}.get(name, config.document_length)
    assert config.student.document_length == read


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((expected.method, name) for name, expected in EXPECTED.items() if expected.method in ("dense", "mlr")),
        # What a dense recipe says, multi-layer representations take too.
        ("mlr", "multi-layer-two-stage"),
    ],
)
def test_a_dense_recipe_takes_two_steps_a_stage(method: str, name: str, tmp_path: Path, beir: Path) -> None:
    layers = 12 if name == "multi-layer-representations" else 2  # which it names
    start = tiny_backbone(tmp_path / "start", positions=512, layers=layers)
    overrides = [f"start={start}", f"train=[{{path: {beir}}}]", f"dev=[{{path: {beir}, split: dev, name: dev}}]"]
    printed = dry_run(method, name, tmp_path, overrides)
    assert "2 steps" in printed and "nDCG@10" in printed


def test_the_doc2query_recipe_takes_two_steps(tmp_path: Path, beir: Path, t5: Path) -> None:
    overrides = [f"backbone={t5}", f"data=[{beir}]", "dev_share=0.1"]
    dry_run("doc2query", "doc2query", tmp_path, overrides)


@pytest.mark.parametrize("name", ["tome", "tome-small"])
def test_the_tome_recipes_take_two_steps_a_stage(name: str, tmp_path: Path, beir: Path, t5: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    shared = 2 if name == "tome" else 1  # Passages of one page of MS MARCO have the same URL.
    written = [json.dumps({**line, "url": f"https://tiny.org/{at // shared}"}) for at, line in enumerate(lines)]
    corpus.write_text("\n".join(written) + "\n")
    overrides = [
        f"backbone={t5}",
        *([f"url_backbone={t5}", f"generation.model={t5}"] if name == "tome" else []),
        f"corpus={corpus}",
        f"queries=[{{path: {beir}}}]",
        "dev_share=0.1",
    ]
    printed = dry_run("tome", name, tmp_path, overrides)
    assert "passage: 2 steps" in printed and "url: 2 steps" in printed and "'written'" in printed


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "inference-free-sparse",
            [
                "student.idf=train",
                "pretraining.train=[{path: BEIR, name: pairs}]",
                "pretraining.objective.teachers=[lexical]",
                "objective.teachers=[lexical]",
                "pretraining.candidates.consistency=60",
                "selection.hold_back=null",
            ],
        ),
        ("bm25-sparse", ["student.frozen_layers=1", "selection.hold_back=null"]),
        ("splade", ["objective.teachers=[lexical]", "selection.hold_back=null"]),
    ],
)
def test_a_sparse_recipe_takes_two_steps_a_stage(name: str, changed: list[str], tmp_path: Path, beir: Path) -> None:
    start = tiny_backbone(tmp_path / "start", positions=512)
    overrides = [
        f"start={start}",
        f"train=[{{path: {beir}}}]",
        f"dev=[{{path: {beir}, split: dev, name: dev}}]",
        *(setting.replace("BEIR", str(beir)) for setting in changed),
    ]
    printed = dry_run("sparse", name, tmp_path, overrides)
    assert "2 steps" in printed and "nDCG@10" in printed


@pytest.mark.parametrize("name", ["jpq", "jpq-token-table"])
def test_a_jpq_recipe_takes_two_steps(name: str, tmp_path: Path) -> None:
    beir = tiny_beir(tmp_path / "tiny", documents=270)
    start = tiny_backbone(tmp_path / "start", positions=512)
    overrides = [
        f"start={start}",
        f"train=[{{path: {beir}}}]",
        f"dev=[{{path: {beir}, split: dev, name: dev}}]",
        "quantizer.subvectors=8",
    ]
    printed = dry_run("jpq", name, tmp_path, overrides)
    assert "2 steps" in printed and "nDCG@10" in printed


@pytest.mark.parametrize("name", ["query-as-context", "query-as-context-cocondenser"])
def test_the_query_as_context_recipes_go_from_documents_to_retriever_2(
    name: str, tmp_path: Path, beir: Path, t5: Path
) -> None:
    start = tiny_backbone(tmp_path / "start", positions=512)
    test = f"[{{path: {beir}, split: dev, name: dev}}]"
    overrides = [
        f"backbone={start}",
        f"corpora=[{{path: {beir}, article: document}}]",
        f"generation.model={t5}",
        "generation.query_length=8",
        f"dev={test}",
        f"test={test}",
        f"retriever.train=[{{path: {beir}}}]",
        f"retriever.dev={test}",
    ]
    printed = dry_run("query-as-context", name, tmp_path, overrides)
    assert "pre-trained: nothing kept" in printed and "nDCG@10" in printed and "retrievers" in printed
