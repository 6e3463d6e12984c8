"""Multi-layer representations: which layers, what the loss compares, and directories with the same vectors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from osn_train import osn_train  # noqa: E402
from tiny import WORDS, tiny_backbone  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.evaluation.measures import rank  # noqa: E402
from opensearch_neural.models.dense.multi_layer import (  # noqa: E402
    Selection,
    StackedEncoder,
    load_multi_layer,
    load_single_or_several,
)
from opensearch_neural.models.dense.onnx_encoder import OnnxDenseEncoder, export_onnx  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import load_dense  # noqa: E402
from opensearch_neural.models.directory import write_osn_json  # noqa: E402
from opensearch_neural.retrievers import Run  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import EncoderSettings, ObjectiveSettings, TrainingSettings  # noqa: E402
from trainers.data.candidates import RetrievalData, unique_documents  # noqa: E402
from trainers.data.examples import TrainingData  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.data.negatives import open_retriever  # noqa: E402
from trainers.data.retrieval_batches import DrawnTexts, RetrievalCollate  # noqa: E402
from trainers.data.settings import CandidateSettings, SetSettings  # noqa: E402
from trainers.dense import train as dense  # noqa: E402
from trainers.dense.settings import TwoStageSettings  # noqa: E402
from trainers.dense.train import train_dense  # noqa: E402
from trainers.encoders import bi_encoder  # noqa: E402
from trainers.encoders.bi_encoder import BiEncoder  # noqa: E402
from trainers.encoders.tower import read_start  # noqa: E402
from trainers.multi_layer import multi_layer_model  # noqa: E402
from trainers.multi_layer.multi_layer_model import MIX_LEARNING_RATE, MultiLayerModel  # noqa: E402
from trainers.multi_layer.settings import MlrConfig, RepresentationSettings, chosen_layers  # noqa: E402
from trainers.multi_layer.train import build  # noqa: E402

TEXTS = ["bab dek", "fin gol kuz lab mek nin pol ruz", "sab", " ".join(WORDS[:50])]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("t5") / "tiny", kind="t5", layers=3)


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> MlrConfig:
    representation = RepresentationSettings(
        **{
            name: changes.pop(name)
            for name in ("source", "layers", "count", "pooling", "regularization")
            if name in changes
        }
    )
    encoder = EncoderSettings(**{"tied": False, "query_length": 16, "document_length": 32} | changes.pop("encoder", {}))
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [SetSettings(beir)],
        "encoder": encoder,
        "representation": representation,
        "training": TrainingSettings(steps=6, batch_size=8, learning_rate=3e-3, evaluate_every=3, log_every=1),
    }
    return MlrConfig(**(plain | changes))


def built(backbone: Path, beir: Path, **changes: Any) -> MultiLayerModel:
    """The model with every weight moved, so that a weight that export forgets, or two equal towers, show."""
    model = build(configuration(backbone, beir, Path("unused"), **changes))
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


# ------------------------------------------------ layers


def test_the_layers_of_the_papers_table_1() -> None:
    assert chosen_layers("last:4", 12) == (9, 10, 11, 12)
    assert chosen_layers("first:4", 12) == (1, 2, 3, 12)
    assert chosen_layers("uniform:4", 12) == (3, 6, 9, 12)
    assert chosen_layers("uniform:4", 6) == (2, 3, 4, 6)
    assert chosen_layers("all", 3) == chosen_layers("last:3", 3) == (1, 2, 3)
    assert chosen_layers("first:1", 6) == (6,)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2, 5], "the backbone's last, 6, must be among them\n  layers: 2,5,6"),
        ([0, 6], "from 1"),
        ([6, 7], "the backbone has 6"),
        ([6, 6], "each once"),
        ("last:9", "the backbone has 6"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen_layers(layers, 6)


def test_the_last_layer_is_found_by_its_number_in_whatever_order_the_layers_were_given() -> None:
    assert chosen_layers([6, 2, 4], 6) == (2, 4, 6)
    assert Selection("layers", "cls", 6, (2, 4, 6)).last == 2
    assert Selection("first-tokens", "cls", 6, count=4).last == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": "middle:3"},
        {"source": "tokens", "pooling": "scalar-mix"},
        {"count": 0},
        {"regularization": math.nan},
        {"regularization": math.inf},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"middle:3|scalar-mix|count 0|regularization (nan|inf)"):
        RepresentationSettings(**wrong)


# ------------------------------------------------ vectors


def test_a_documents_vectors_are_the_cls_of_its_layers_and_the_querys_its_last(backbone: Path, beir: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    model = build(
        configuration(backbone, beir, Path("unused"), layers=[1, 3], pooling="multi-vector", encoder={"pooling": "cls"})
    ).eval()
    tokenizer, plain = AutoTokenizer.from_pretrained(backbone), AutoModel.from_pretrained(backbone).eval()
    with torch.no_grad():
        states = plain(**tokenizer(TEXTS[1], return_tensors="pt"), output_hidden_states=True).hidden_states
    document = model.document_vectors([TEXTS[1]])
    np.testing.assert_allclose(document[0], torch.stack([states[1][0, 0], states[3][0, 0]]), atol=1e-5)
    np.testing.assert_allclose(model.vectors("query", [TEXTS[1]])[0], states[3][0, 0], atol=1e-5)


def test_a_mean_pooled_document_is_the_mean_of_each_layers_tokens_padding_left_out(t5: Path, beir: Path) -> None:
    model = build(configuration(t5, beir, Path("unused"), layers=[2, 3], pooling="multi-vector")).eval()
    together, alone = model.document_vectors(TEXTS), [model.document_vectors([text]) for text in TEXTS]
    for at, documents in enumerate(alone):
        np.testing.assert_allclose(together[at], documents[0], atol=1e-5)
    assert together.stacked().shape == (4, 2, 32)


def test_a_t5_has_no_cls(t5: Path, beir: Path) -> None:
    with pytest.raises(InputError, match="no CLS"):
        built(t5, beir, encoder={"pooling": "cls"})


def test_the_first_tokens_and_all_tokens_are_the_rivals_vectors(backbone: Path, beir: Path) -> None:
    def vectors(**changes: Any) -> Any:
        changes = {"pooling": "multi-vector", **changes}
        return build(configuration(backbone, beir, Path("unused"), **changes)).eval().document_vectors(TEXTS)

    cls = {"encoder": {"pooling": "cls"}}
    tokens, first = vectors(source="tokens", **cls), vectors(source="first-tokens", count=5, **cls)
    # [CLS], the words, [SEP]: 4, 10, 3, and 32 where the text is cut
    assert tokens.counts.tolist() == [4, 10, 3, 32] and first.counts.tolist() == [4, 5, 3, 5]
    for at in range(4):
        np.testing.assert_allclose(first[at], tokens[at][:5], atol=1e-5)
    # Mean-pooled, what a single vector would be comes first.
    meaned = vectors(source="first-tokens", count=3)
    for at in range(4):
        np.testing.assert_allclose(meaned[at][0], tokens[at].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(meaned[at][1:], tokens[at][:2], atol=1e-5)


# ------------------------------------------------ the loss


def batch_of(
    model: MultiLayerModel, beir: Path, *, chunk_size: int | None = None, rank: int = 0, world: int = 1
) -> Any:
    data = RetrievalData([load_training(beir)], negatives=1, depth=5)
    items = [data[Visit(index, 0, 0, 1)] for index in range(6)]
    texts = DrawnTexts(data.parts, model, ObjectiveSettings(), chunk_size=chunk_size, overhead=0)
    return RetrievalCollate(texts)(items, rank, world)


@pytest.mark.parametrize("source", ["layers", "first-tokens", "tokens"])
def test_the_self_contrastive_loss_is_l_con_and_lambda_times_l_reg(backbone: Path, beir: Path, source: str) -> None:
    chosen: dict[str, Any] = {"layers": {"layers": "all"}, "first-tokens": {"count": 4}}.get(source, {})
    model = built(backbone, beir, source=source, regularization=10.0, **chosen)
    data = load_training(beir)
    batch = batch_of(model, beir)
    losses = model(batch)
    # By hand: every document encoded alone, every pair of vectors compared.
    rows = RetrievalData([data], negatives=1, depth=5)
    drawn = [rows[Visit(index, 0, 0, 1)] for index in range(6)]
    model.document.strategy = "multi-vector"  # which gives all vectors
    columns = unique_documents(drawn)
    vectors = model.document_vectors([data.documents.text_at(row) for row in columns])
    queries = model.vectors("query", [data.queries.text_at(example.query) for example in drawn])
    last, contrastive, regularization = model.document.selection.last, [], []
    for example, query, excluded in zip(drawn, queries, batch.targets.excluded.numpy(), strict=True):
        own = columns.index(example.positive)
        of_positive = vectors[own] @ query
        scores = [float((vectors[at] @ query).max()) for at in range(len(columns)) if not excluded[at] and at != own]
        exponents = np.exp(np.array([of_positive[last], *scores]) - of_positive[last])
        contrastive.append(np.log(exponents.sum()))
        regularization.append(np.log(np.exp(of_positive - of_positive[last]).sum()))
    assert losses.terms["info_nce"].item() == pytest.approx(np.mean(contrastive), rel=1e-4)
    assert losses.terms["regularization"].item() == pytest.approx(10 * np.mean(regularization), rel=1e-4)
    assert 0 <= losses.measures["last_layer_wins"].item() <= 1


@pytest.mark.parametrize("pooling", ["multi-vector", "self-contrastive", "average", "scalar-mix"])
def test_one_layer_is_the_plain_dual_encoder_under_every_pooling(backbone: Path, beir: Path, pooling: str) -> None:
    model = built(backbone, beir, layers="last:1", pooling=pooling, regularization=0.5)
    plain = BiEncoder(
        {"query": model.query, "document": _plain(model)}, model.tokenizers, model.encoder_settings, model.objective
    )
    batch = batch_of(model, beir)
    assert model(batch).total.item() == pytest.approx(plain.eval()(batch).total.item(), rel=1e-5)


def _plain(model: MultiLayerModel) -> Any:
    from trainers.encoders.tower import Encoder

    tower = model.document
    return Encoder(tower.backbone, pooling=tower.pooling, normalize=tower.normalize)


@pytest.mark.parametrize(
    ("kind", "source", "pooling"),
    [
        (kind, source, pooling)
        for kind, source in (("bert", "layers"), ("bert", "first-tokens"), ("bert", "tokens"), ("t5", "layers"))
        for pooling in ("multi-vector", "self-contrastive", "average", "scalar-mix")
        if (source, pooling) != ("tokens", "scalar-mix")
    ],
)
def test_chunks_have_the_gradient_of_the_whole_batch(
    backbone: Path, t5: Path, beir: Path, kind: str, source: str, pooling: str
) -> None:
    gradients = []
    for chunk_size in (None, 4):
        count = {"count": 3} if source == "first-tokens" else {}
        model = built(backbone if kind == "bert" else t5, beir, source=source, pooling=pooling, **count)
        batch = batch_of(model, beir, chunk_size=chunk_size)
        if chunk_size is None:
            model(batch).total.backward()
        else:
            assert len(batch.parts["document"]) > 1
            cached_backward(model, batch)
        gradients.append(
            {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    if pooling == "scalar-mix":
        assert gradients[0]["document.mix"].abs().max() > 1e-4, "the data would show nothing"
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("source", ["layers", "first-tokens", "tokens"])
def test_two_processes_see_the_loss_of_one(
    backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    model = built(backbone, beir, source=source, regularization=1.0)
    alone = model(batch_of(model, beir)).total
    shares = [batch_of(model, beir, rank=rank, world=2) for rank in (0, 1)]

    def joined(share: Any, role: str) -> Any:
        parts = share.parts[role]
        vectors = torch.cat([model.encode(role, part).vectors for part in parts])
        return vectors[torch.argsort(torch.cat([part.position for part in parts]))]

    counts = torch.cat([model.document.selection.counts(share.targets.lengths) for share in shares])
    everyone = {role: torch.cat([joined(share, role) for share in shares]) for role in ("query", "document")}

    def gather(rows: Any) -> Any:
        # What these rows are is told by their shape: queries are never gathered here.
        return counts if rows.dim() == 1 else everyone["document"]

    for module in (bi_encoder, multi_layer_model):
        monkeypatch.setattr(module, "gather", gather)
    each = [
        model.loss_terms({role: joined(share, role) for role in ("query", "document")}, share.targets).total
        for share in shares
    ]
    assert ((each[0] + each[1]) / 2).item() == pytest.approx(alone.item(), rel=1e-5)


# ------------------------------------------------ the directory


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_self_contrastive_model_is_a_plain_dual_encoder_file_by_file(
    tmp_path: Path, backbone: Path, t5: Path, beir: Path, kind: str
) -> None:
    model = built(backbone if kind == "bert" else t5, beir, layers="all", regularization=1.0)
    plain = BiEncoder(
        {"query": model.query, "document": _plain(model)}, model.tokenizers, model.encoder_settings, model.objective
    )
    for name, exported in (("mlr", model), ("plain", plain)):
        (tmp_path / name).mkdir()
        exported.export(tmp_path / name)
    files = [
        {
            path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
            if path.is_file()
        }
        for name in ("mlr", "plain")
    ]
    # The same configuration, modules and weights: the same graph, so the same vectors at the same cost.
    assert files[0] == files[1] and model.kind == "dense"
    assert load_dense(tmp_path / "mlr").encode_documents(TEXTS[:1]).shape == (1, 32)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bert", {"pooling": "average", "layers": [1, 3]}),
        ("t5", {"pooling": "average", "layers": "all"}),
        ("bert", {"pooling": "scalar-mix", "layers": [2, 3], "encoder": {"pooling": "cls", "normalize": True}}),
        ("bert", {"pooling": "average", "layers": "last:2", "encoder": {"tied": True, "document_prompt": "bab "}}),
        ("bert", {"pooling": "average", "source": "tokens", "encoder": {"pooling": "cls"}}),
    ],
    ids=["average", "average of T5", "scalar mix", "average, tied", "tokens averaged"],
)
def test_a_pooled_model_loads_in_sentence_transformers_with_the_same_vectors(
    tmp_path: Path, backbone: Path, t5: Path, beir: Path, settings: dict[str, Any], kind: str
) -> None:
    from sentence_transformers import SentenceTransformer

    model = built(backbone if kind == "bert" else t5, beir, **settings)
    if model.document.mix is not None:
        with torch.no_grad():
            model.document.mix.copy_(torch.tensor([0.0, 1.0]))
    model.export(tmp_path)
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(loaded.encode_query(TEXTS[:3]), model.vectors("query", TEXTS[:3]), atol=1e-5)
    np.testing.assert_allclose(loaded.encode_document(TEXTS), model.vectors("document", TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bert", {"layers": [1, 3]}),
        (
            "bert",
            {"layers": "last:2", "encoder": {"normalize": True, "document_prompt": "bab ", "query_prompt": "dek "}},
        ),
        ("bert", {"source": "first-tokens", "count": 4, "encoder": {"pooling": "cls"}}),
        ("bert", {"source": "first-tokens", "count": 4}),
        ("bert", {"source": "tokens", "encoder": {"tied": True}}),
        ("t5", {"layers": "all"}),
        ("t5", {"source": "tokens"}),
    ],
    ids=[
        "layers",
        "layers normalized, with prompts",
        "first tokens",
        "mean and first tokens",
        "tokens, tied",
        "layers of T5",
        "tokens of T5",
    ],
)
def test_a_multi_vector_directory_encodes_as_the_model_does(
    tmp_path: Path, backbone: Path, t5: Path, beir: Path, settings: dict[str, Any], kind: str
) -> None:
    model = built(backbone if kind == "bert" else t5, beir, pooling="multi-vector", **settings)
    model.export(tmp_path)
    loaded = load_multi_layer(tmp_path)
    ours, theirs = model.document_vectors(TEXTS), loaded.encode_documents(TEXTS, batch_size=3)
    assert ours.offsets.tolist() == theirs.offsets.tolist() and model.kind == "multi-layer"
    np.testing.assert_allclose(theirs.values, ours.values, atol=1e-5)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS[:3]), model.vectors("query", TEXTS[:3]), atol=1e-5)
    assert loaded.normalized == model.document.normalize
    assert len(loaded.encode_documents([])) == 0


def test_a_t5_directory_has_the_layers_it_names_and_the_last_one_after_the_final_norm(
    tmp_path: Path, t5: Path, beir: Path
) -> None:
    model = built(t5, beir, pooling="multi-vector", layers=[1, 3])
    model.export(tmp_path)
    assert json.loads((tmp_path / "multi_layer.json").read_text())["layers"] == [1, 3]
    vectors = load_multi_layer(tmp_path).encode_documents(TEXTS).stacked()
    backbone: Any = model.document.backbone
    stack, blocks = backbone.encoder, []
    for block in stack.block:
        block.register_forward_hook(lambda _, __, output: blocks.append(output[0]))
    for text, (first, last) in zip(TEXTS, vectors, strict=True):
        blocks.clear()
        tokens = model.tokenizers["document"](text, truncation=True, max_length=32, return_tensors="pt")
        with torch.no_grad():
            backbone(input_ids=tokens["input_ids"])
            expected = [
                states[0].mean(dim=0).numpy() for states in (blocks[0], stack.final_layer_norm(blocks[2]), blocks[2])
            ]
        np.testing.assert_allclose(first, expected[0], atol=1e-5)
        np.testing.assert_allclose(last, expected[1], atol=1e-5)
        assert np.abs(expected[1] - expected[2]).max() > 1e-2, "without the norm it would be another vector"


@pytest.mark.parametrize("pooling", ["average", "scalar-mix"])
def test_first_tokens_pooled_into_one_vector_are_read_back(
    tmp_path: Path, backbone: Path, beir: Path, pooling: str
) -> None:
    model = built(backbone, beir, source="first-tokens", count=5, pooling=pooling, encoder={"pooling": "cls"})
    model.export(tmp_path)
    vectors = load_multi_layer(tmp_path).encode_documents(TEXTS)
    assert vectors.counts.tolist() == [1, 1, 1, 1]
    # "sab" has three tokens only: [CLS], it, [SEP].
    np.testing.assert_allclose(vectors.values, model.vectors("document", TEXTS), atol=1e-5)


def test_where_one_vector_is_expected_several_are_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    built(backbone, beir, pooling="multi-vector").export(tmp_path)
    write_osn_json(tmp_path, "multi-layer")
    for read, remedy in ((load_dense, f"multi-layer:{tmp_path}"), (read_start, f"start from {tmp_path}/document")):
        with pytest.raises(ModelError, match="several vectors") as refused:
            read(tmp_path)
        assert remedy in str(refused.value.remedy)
    assert read_start(tmp_path / "document").folders["document"].is_dir()


def test_queries_of_a_multi_vector_model_need_their_tower_alone(tmp_path: Path, backbone: Path, beir: Path) -> None:
    model = built(backbone, beir, pooling="multi-vector")
    model.export(tmp_path)
    loaded = load_multi_layer(tmp_path)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS[:3]), model.vectors("query", TEXTS[:3]), atol=1e-5)
    assert "document" not in vars(loaded)


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({"pooling": "multi-vector"}, "query/onnx/model.onnx"),
        ({"pooling": "average", "source": "first-tokens", "count": 3}, "query/onnx/model.onnx"),
        (
            {"pooling": "scalar-mix", "encoder": {"tied": True, "normalize": True}},
            "query_0_Transformer/onnx/model.onnx",
        ),
    ],
    ids=["multi-vector", "first tokens averaged", "scalar mix, tied"],
)
def test_an_application_encodes_queries_without_torch(
    tmp_path: Path, backbone: Path, beir: Path, settings: dict[str, Any], file: str
) -> None:
    model = built(backbone, beir, onnx=True, **settings)
    model.export(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.onnx")] == [file]
    script = (
        "import json, sys\n"
        "from opensearch_neural.models.dense.multi_layer import load_single_or_several\n"
        "encoder = load_single_or_several(sys.argv[1], backend='onnx', threads=1)\n"
        "vectors = encoder.encode_queries(json.loads(sys.argv[2]))\n"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & sys.modules.keys()\n"
        "print(json.dumps(vectors.tolist()))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), json.dumps(TEXTS[:3])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(done.stdout), model.vectors("query", TEXTS[:3]), atol=1e-4)
    if settings["pooling"] == "multi-vector" or "source" in settings:
        several = load_single_or_several(tmp_path, backend="onnx", threads=3)
        assert isinstance(several, StackedEncoder) and isinstance(several.encoder.query, OnnxDenseEncoder)
        assert several.encoder.query.query.session.get_session_options().intra_op_num_threads == 3
    else:
        with pytest.raises(ModelError, match="a document's vector"):
            load_dense(tmp_path, backend="onnx").encode_documents(TEXTS)


def test_a_model_that_mixes_layers_for_queries_too_is_not_exported(tmp_path: Path, backbone: Path, beir: Path) -> None:
    built(backbone, beir, pooling="average").export(tmp_path)
    document = next(path for path in tmp_path.iterdir() if path.name.startswith("document_1"))
    router = tmp_path / "router_config.json"
    router = router if router.exists() else tmp_path / "config.json"
    content = json.loads(router.read_text())
    content["structure"]["query"].insert(1, document.name)
    router.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="cannot mix layers"):
        export_onnx(tmp_path)


def test_a_directory_that_is_none_is_named(tmp_path: Path, backbone: Path, beir: Path) -> None:
    with pytest.raises(ModelError, match=r"no multi_layer\.json"):
        load_multi_layer(backbone)
    built(backbone, beir, pooling="multi-vector").export(tmp_path)
    file = tmp_path / "multi_layer.json"
    content = json.loads(file.read_text())
    mixes = [{"mix": mix} for mix in ("heavy", [1.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0])]
    for wrong in ({"source": "sentences"}, {"layers": [3, 2]}, {"format": 9}, {"depth": 9}, *mixes):
        file.write_text(json.dumps(content | wrong))
        with pytest.raises(ModelError, match="multi_layer"):
            load_multi_layer(tmp_path).encode_documents(TEXTS)


# ------------------------------------------------ training


@pytest.mark.parametrize("tied", [False, True])
def test_a_mix_has_a_rate_of_its_own_and_every_trainable_weight_is_in_one_group(
    backbone: Path, beir: Path, tied: bool
) -> None:
    model = build(configuration(backbone, beir, Path("unused"), pooling="scalar-mix", encoder={"tied": tied}))
    # A BERT's pooler is in no vector, and learns nothing.
    trainable = sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)
    assert len(trainable) < len(list(model.parameters()))
    for learning_rate, of_mix in ((1e-5, MIX_LEARNING_RATE), (0.5, 0.5)):
        settings = TrainingSettings(learning_rate=learning_rate, weight_decay=0.1)
        groups = model.parameter_groups(settings) or []
        assert sorted(id(parameter) for group in groups for parameter in group["params"]) == trainable
        (mix,) = (group for group in groups if any(parameter is model.document.mix for parameter in group["params"]))
        assert (len(mix["params"]), mix["lr"], mix["weight_decay"]) == (1, of_mix, 0)
        for group in groups:
            # What has no rate of its own has the training's; biases and norms do not decay, with any rate.
            assert group is mix or "lr" not in group
            assert all((parameter.ndim > 1) == ("weight_decay" not in group) for parameter in group["params"])
    plain = build(configuration(backbone, beir, Path("unused"), pooling="average"))
    assert plain.parameter_groups(TrainingSettings()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--layers", "2,9"], "the backbone has 3"),
        (["--layers", "last:4"], "the backbone has 3 layers"),
        (["--layers", "2"], "the backbone's last, 3, must be among them"),
        (["--set", "representation.layers=2"], "the backbone's last, 3, must be among them"),
        (["--layers", "2,3", "--set", "representation.source=tokens"], "uses the last layer's tokens only"),
    ],
)
def test_layers_are_refused_before_any_data_is_read(
    tmp_path: Path, backbone: Path, settings: list[str], message: str
) -> None:
    from opensearch_neural.cli import osn

    arguments = ["train", "mlr", "--set", f"start={backbone}", "--set", "train=[{path: nowhere}]"]
    result = CliRunner().invoke(osn, [*arguments, "--output", str(tmp_path / "model"), *settings])
    assert isinstance(result.exception, InputError) and message in str(result.exception)
    assert not (tmp_path / "model").exists()


def test_a_start_that_is_no_transformer_is_named_in_one_line(tmp_path: Path) -> None:
    from opensearch_neural.cli import osn

    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "config.json").write_text("{}")
    arguments = ["train", "mlr", "--backbone", str(tmp_path / "nothing"), "--set", "train=[{path: nowhere}]"]
    result = CliRunner().invoke(osn, [*arguments, "--output", str(tmp_path / "model")])
    assert isinstance(result.exception, ModelError)
    message = str(result.exception)
    assert f"{tmp_path / 'nothing'} does not load as a transformer" in message and len(message.splitlines()) == 1


@pytest.mark.parametrize("pooling", ["self-contrastive", "multi-vector"])
def test_the_command_raises_dev_ndcg_and_leaves_a_model_directory(
    tmp_path: Path, backbone: Path, beir: Path, pooling: str
) -> None:
    output = tmp_path / "model"
    settings = (
        f"start={backbone}",
        f"train=[{{path: {beir}}}]",
        f"dev=[{{path: {beir}, split: dev, name: dev}}]",
        "encoder={query_length: 16, document_length: 32, normalize: true}",
        "training={steps: 40, batch_size: 16, learning_rate: 5e-3, evaluate_every: 40, chunk_size: 24}",
    )
    osn_train("mlr", output, settings, "--layers", "2,3", "--pooling", pooling)
    content = json.loads((output / "osn.json").read_text())
    measures = content["measures"]
    assert measures["nDCG@10"] > measures["start nDCG@10"] + 0.1, measures
    assert content["kind"] == ("dense" if pooling == "self-contrastive" else "multi-layer")
    assert content["training"]["representation"]["layers"] == [2, 3]
    assert content["training"]["encoder"]["tied"] is False
    if pooling == "multi-vector":
        assert load_multi_layer(output).encode_documents(TEXTS).stacked().shape == (4, 2, 32)


@pytest.mark.parametrize("pooling", ["self-contrastive", "multi-vector"])
def test_two_stages_mine_with_the_first_retriever_and_start_anew(
    tmp_path: Path, backbone: Path, beir: Path, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        pooling=pooling,
        candidates=CandidateSettings(negatives=1, depth=10, mine="bm25"),
        two_stage=TwoStageSettings(depth=10, keep=4),
        training=TrainingSettings(steps=3, batch_size=8, learning_rate=1e-2),
    )
    starts: list[dict[str, Any]] = []
    sets: list[TrainingData] = []
    train = dense.train

    def watched(model: Any, data: Any, *arguments: Any, **named: Any) -> Any:
        starts.append({name: weight.clone() for name, weight in model.state_dict().items()})
        sets.append(data.parts[0])
        return train(model, data, *arguments, **named)

    monkeypatch.setattr(dense, "train", watched)
    train_dense(config, build)
    output, first = tmp_path / "model", tmp_path / "model/.stages/retriever-1"
    kind = "dense" if pooling == "self-contrastive" else "multi-layer"
    assert json.loads((first / "osn.json").read_text())["kind"] == kind
    # The same weights before the first step of both, which the first retriever no longer has.
    assert len(starts) == 2 and starts[0].keys() == starts[1].keys()
    assert all(torch.equal(weight, starts[1][name]) for name, weight in starts[0].items())
    # What the second learns from is what the first retriever ranks high, beside what BM25 had found.
    data = sets[0]
    by_bm25, both = ({one.query_id: one.negatives for one in of_stage.examples} for of_stage in sets)
    asked, documents = data.query_texts(), dict(zip(data.documents.ids, data.documents.values(), strict=True))

    def wrong(run: Run) -> dict[str, set[str]]:
        ranked = {query: [one for one, _ in rank(hits)[:10]] for query, hits in run.items()}
        return {
            query: set([one for one in of if one not in data.known_positives(query)][:4])
            for query, of in ranked.items()
        }

    mined = wrong(open_retriever(f"{kind}:{first}", data.documents).retrieve(asked, 10))
    assert {query: set(of) for query, of in both.items()} == {
        query: {*by_bm25[query][:4], *mined[query]} for query in asked
    }
    assert any({*of} - {*by_bm25[query]} for query, of in both.items()), "the data shows nothing"
    assert mined != wrong(build(config).eval().retrieve(asked, documents)), "the data shows nothing"
    assert (output / "osn.json").exists()


def test_plain_settings_are_separate_towers() -> None:
    assert MlrConfig(Path("x"), [SetSettings(Path("y"))]).encoder.tied is False
    assert EncoderSettings().tied is True
