"""`osn model average`: the network halfway between models that began alike, and precise words for those that did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="needs the extra [encode]")
pytest.importorskip("sentence_transformers", reason="needs the extra [encode]")
from tiny_splade import write_two_networks  # noqa: E402
from transformers import AutoModelForMaskedLM  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.errors import OsnError  # noqa: E402
from opensearch_neural.models import directory  # noqa: E402
from opensearch_neural.models.sparse.averaging import write_average  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_sparse  # noqa: E402
from opensearch_neural.models.sparse.hub_export import export_for_hub  # noqa: E402
from opensearch_neural.models.sparse.inference_free import write_inference_free  # noqa: E402
from opensearch_neural.query_encoder import QueryEncoder  # noqa: E402

from .test_encoder import TEXTS, masked_lm  # noqa: E402


@pytest.fixture
def start(tmp_path: Path, tokenizer_folder: Path) -> Path:
    return masked_lm(tmp_path / "start", tokenizer_folder)


@pytest.fixture
def trained(tmp_path: Path, start: Path) -> Path:
    """A Router of a network that went a step away from its start, with a table of its own."""
    network = AutoModelForMaskedLM.from_pretrained(start)
    torch.manual_seed(3)
    with torch.no_grad():
        for weights in network.parameters():
            weights += 0.02 * torch.randn_like(weights)
    moved = tmp_path / "moved"
    network.save_pretrained(moved)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (moved / name).write_bytes((start / name).read_bytes())
    write_inference_free(moved, tmp_path / "trained", {"water": 2.5})
    directory.write_osn_json(
        tmp_path / "trained",
        "sparse",
        training={"train": [{"path": "/home/somebody/squad-mix"}]},
        measures={"dev nDCG@10": 0.5},
    )
    (tmp_path / "trained" / "training.yaml").write_text("training: {steps: 9}\n")
    return tmp_path / "trained"


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForMaskedLM.from_pretrained(folder).state_dict())


def average(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(osn, ["model", "average", *map(str, arguments)])
    if isinstance(result.exception, OsnError):  # `main` prints it
        return 1, str(result.exception)
    assert not result.exception, result.output
    return 0, result.output


@pytest.mark.parametrize(("shares", "of_trained"), [((), 0.5), (("--shares", "3,1"), 0.75), (("--shares", "0,2"), 0.0)])
def test_every_weight_lies_between_the_models_and_the_table_is_the_firsts(
    trained: Path, start: Path, tmp_path: Path, shares: tuple[str, ...], of_trained: float
) -> None:
    out = tmp_path / "averaged"
    assert average(trained, start, *shares, "--output", out)[0] == 0

    first, second, made = (
        weights_of(f) for f in (trained / "document_0_Transformer", start, out / "document_0_Transformer")
    )
    assert made.keys() == first.keys() and any(not torch.equal(first[name], second[name]) for name in first)
    for name, weights in made.items():
        torch.testing.assert_close(weights, of_trained * first[name] + (1 - of_trained) * second[name])
    assert QueryEncoder.load(out).weights == QueryEncoder.load(trained).weights
    (row,) = load_sparse(out, device="cpu").encode_documents(TEXTS[:1]).rows()
    assert row
    written = directory.read_osn_json(out)
    assert written is not None and not written["measures"]
    assert [part["share"] for part in written["training"]["average"]] == [of_trained, 1 - of_trained]
    assert written["training"]["average"][0]["hash"] == directory.hash_files(trained)
    assert not (out / "training.yaml").exists(), "how the first came about is not how the average did"
    card = export_for_hub(out, tmp_path / "upload", licence="mit").read_text()
    assert "Data: squad-mix." in card and f"the average of trained ({of_trained:.2g}, `" in card
    assert all(
        file.stat().st_mode == (start / "config.json").stat().st_mode for file in out.rglob("*.*") if file.is_file()
    )


def test_an_average_of_a_model_with_itself_is_the_model(trained: Path, tmp_path: Path) -> None:
    write_average([trained, trained, trained], tmp_path / "averaged")
    same = [load_sparse(folder, device="cpu").encode_documents(TEXTS) for folder in (trained, tmp_path / "averaged")]
    for mine, its in zip(*(vectors.rows() for vectors in same), strict=True):
        assert its == pytest.approx(mine, rel=1e-4)


def test_a_start_of_more_rows_than_tokens_is_averaged_with_what_was_trained_from_it(
    trained: Path, start: Path, tmp_path: Path
) -> None:
    """A trained model is written with one row for each token."""
    network = AutoModelForMaskedLM.from_pretrained(start)
    network.resize_token_embeddings(network.config.vocab_size + 7)
    network.save_pretrained(start)
    for name, models in (("one", [trained, start]), ("other", [start, trained])):
        write_average(models, tmp_path / name)
    one, other = (weights_of(folder) for folder in (tmp_path / "one" / "document_0_Transformer", tmp_path / "other"))
    assert one.keys() == other.keys()
    for name, weights in one.items():
        torch.testing.assert_close(weights, other[name])


def test_what_belonged_to_the_first_models_weights_is_left_out(trained: Path, start: Path, tmp_path: Path) -> None:
    left = ["README.md", "document_0_Transformer/onnx/model.onnx", "document_0_Transformer/pytorch_model.bin"]
    for name in left:
        (trained / name).parent.mkdir(exist_ok=True)
        (trained / name).write_bytes(b"of the first")
    write_average([trained, start], tmp_path / "averaged")
    assert not [name for name in left if (tmp_path / "averaged" / name).exists()]


def test_the_shards_of_the_first_models_weights_are_left_out(trained: Path, start: Path, tmp_path: Path) -> None:
    """Before, their index stayed, and named files that were not there."""
    network = trained / "document_0_Transformer"
    AutoModelForMaskedLM.from_pretrained(network).save_pretrained(network, max_shard_size="50KB")
    assert len(list(network.glob("*.safetensors"))) > 1
    write_average([trained, start], tmp_path / "averaged")
    written = tmp_path / "averaged" / "document_0_Transformer"
    assert [file.name for file in written.glob("*safetensors*")] == ["model.safetensors"]
    assert load_sparse(tmp_path / "averaged", device="cpu").encode_documents(TEXTS[:1]).row(0)


def test_a_card_names_the_data_of_an_average_of_averages(trained: Path, start: Path, tmp_path: Path) -> None:
    write_average([trained, start], tmp_path / "one")
    write_average([tmp_path / "one", start], tmp_path / "two")
    card = export_for_hub(tmp_path / "two", tmp_path / "upload", licence="mit").read_text()
    assert "Data: squad-mix." in card and "/home/somebody" not in card


def other_start(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    folder = masked_lm(tmp_path / "other", tokenizer)
    network = AutoModelForMaskedLM.from_pretrained(folder)
    torch.manual_seed(9)
    with torch.no_grad():
        for weights in network.parameters():
            weights.copy_(0.1 * torch.randn_like(weights))
    network.save_pretrained(folder)
    return [trained, folder]


def other_heads(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    folder = masked_lm(tmp_path / "heads", tokenizer)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4')
    )
    return [trained, folder]


def other_tokens(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    folder = masked_lm(tmp_path / "tokens", tokenizer)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = (token for token, at in vocabulary.items() if at in (20, 21))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return [trained, folder]


def other_kind(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    folder = masked_lm(tmp_path / "kind", tokenizer)
    directory.write_osn_json(folder, "jpq")
    return [trained, folder]


def other_network(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    return [trained, masked_lm(tmp_path / "distil", tokenizer, "DistilBert")]


def other_pooling(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    write_inference_free(tmp_path / "start", tmp_path / "double", {}, activation="log1p_relu")
    return [trained, tmp_path / "double"]


def two_networks(trained: Path, tokenizer: Path, tmp_path: Path) -> list[object]:
    write_two_networks(tmp_path / "two", documents=tmp_path / "start", queries=tmp_path / "moved")
    return [tmp_path / "two", trained]


REFUSED: list[tuple[Callable[..., list[object]], str]] = [
    (lambda trained, *_: [trained], "an average needs two models"),
    (lambda trained, *_: [trained, trained, "--shares", "1"], "1 shares for 2 models"),
    (lambda trained, *_: [trained, trained, "--shares", "1,-1"], "the shares are 1, -1"),
    (lambda trained, *_: [trained, trained, "--shares", "0,0"], "at least one above 0"),
    (lambda trained, *_: [trained, trained, "--shares", "nan,1"], "the shares are nan, 1"),
    (lambda trained, *_: [trained, trained, "--shares", "1;1"], "is not a list of numbers"),
    (lambda trained, *_: [trained, "no/such/model"], "no/such/model"),
    (other_network, "are networks of different architectures"),
    (other_heads, "are networks of different architectures"),
    (other_start, "have different starts"),
    (other_tokens, "has other tokens than"),
    (other_kind, "is a jpq model"),
    (two_networks, "encodes queries by a network of their own"),
    (other_pooling, "pools logits differently from"),
]


@pytest.mark.parametrize(("models", "message"), REFUSED)
def test_what_cannot_be_averaged_is_named_and_nothing_is_written(
    trained: Path, tokenizer_folder: Path, tmp_path: Path, models: Callable[..., list[object]], message: str
) -> None:
    code, output = average(*models(trained, tokenizer_folder, tmp_path), "--output", tmp_path / "averaged")
    assert code != 0 and message in output, output
    assert not (tmp_path / "averaged").exists() and not list(tmp_path.glob(".averaged*"))


def test_a_folder_that_is_there_stays(trained: Path, start: Path, tmp_path: Path) -> None:
    (tmp_path / "averaged").mkdir()
    (tmp_path / "averaged" / "mine.txt").write_text("mine")
    code, output = average(trained, start, "--output", tmp_path / "averaged")
    assert code != 0 and "exists already" in output
    assert [file.name for file in (tmp_path / "averaged").iterdir()] == ["mine.txt"]


def test_without_a_folder_to_write_it_says_which_option_is_missing(trained: Path, start: Path) -> None:
    code, output = average(trained, start)
    assert code != 0 and "--output" in output
