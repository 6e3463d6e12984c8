"""`--loss package:function`: a loss of the user's own trains, and what is wrong with one is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from tiny import tiny_backbone, tiny_beir  # noqa: E402
from tiny_dense import configuration  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from trainers.common import losses  # noqa: E402
from trainers.common.objective import objective_terms  # noqa: E402
from trainers.common.own_loss import load_loss, loss_hash  # noqa: E402
from trainers.common.settings import ObjectiveSettings  # noqa: E402
from trainers.data.retrieval_batches import RetrievalTargets  # noqa: E402
from trainers.dense.train import train_dense  # noqa: E402

INFO_NCE = """
import torch.nn.functional as F

def info_nce(scores, targets):
    return F.cross_entropy(scores.masked_fill(targets.excluded, float("-inf")), targets.candidates[:, 0])
"""

CALLED = """
import functools
import torch

class Module(torch.nn.Module):
    def forward(self, scores, targets):
        return info_nce(scores, targets)

module = Module()
part = functools.partial(info_nce)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def batch() -> tuple[torch.Tensor, RetrievalTargets]:
    torch.manual_seed(1)
    excluded = torch.zeros(3, 6, dtype=torch.bool)
    excluded[0, 4] = True
    targets = RetrievalTargets(torch.tensor([[0, 3], [1, 4], [2, 5]]), torch.ones(6, dtype=torch.long), excluded)
    return torch.randn(3, 6, requires_grad=True), targets


def test_info_nce_written_by_a_user_is_ours_with_its_weight(folder: Path) -> None:
    (folder / "written_losses.py").write_text(INFO_NCE)
    scores, targets = batch()
    objective = ObjectiveSettings(loss="written_losses:info_nce", info_nce=2.0)
    terms = objective_terms(objective, scores, targets, temperature=0.05)
    ours = losses.info_nce(scores, targets.candidates[:, 0], excluded=targets.excluded)
    assert terms.keys() == {"loss"}
    assert terms["loss"].item() == pytest.approx(2 * ours.item())


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("own_a", "", "is not the name of a function"),
        ("own_nowhere:f", None, "there is no module 'own_nowhere'"),
        ("own_b:f", "import not_there_at_all", "imports 'not_there_at_all', which is not installed"),
        ("own_c:f", "def f(:\n", "SyntaxError"),
        ("own_d:f", "1 / 0", r"own_d.py, line 1"),
        ("own_e:f", "def hinge(scores, targets): pass", "functions there: hinge"),
        ("own_f:f", "f = 3", "is not a function but of type int"),
        ("own_g:f", "def f(scores): pass", r"own_g:f\(scores\) cannot be called: too many positional"),
    ],
)
def test_a_name_that_does_not_serve_is_refused_before_anything_is_read(
    folder: Path, name: str, code: str | None, said: str
) -> None:
    if code is not None:
        (folder / f"{name.partition(':')[0]}.py").write_text(code)
    with pytest.raises(InputError, match=said):
        ObjectiveSettings(loss=name)


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("own_h", "return 3.0", "returned float, not a tensor"),
        ("own_i", "return scores.sum(dim=1)", r"returned a tensor of shape \(3,\)"),
        ("own_j", "return scores.detach().mean()", "without a gradient"),
        ("own_k", "return (scores[:, :2] - targets.excluded).mean()", r"own_k.py, line 2"),
    ],
)
def test_a_function_that_returns_no_loss_is_told_so(folder: Path, name: str, body: str, said: str) -> None:
    (folder / f"{name}.py").write_text(f"def f(scores, targets):\n    {body}\n")
    scores, targets = batch()
    with pytest.raises(InputError, match=said):
        objective_terms(ObjectiveSettings(loss=f"{name}:f"), scores, targets, temperature=1.0)


def test_another_text_of_the_loss_makes_another_training(folder: Path) -> None:
    (folder / "first_text.py").write_text(INFO_NCE)
    (folder / "second_text.py").write_text(INFO_NCE + "\n# changed\n")
    assert loss_hash(None) == []
    assert loss_hash("first_text:info_nce") != loss_hash("second_text:info_nce")
    assert load_loss("first_text:info_nce") is load_loss("first_text:info_nce")


def test_an_object_that_can_be_called_is_a_loss_too(folder: Path) -> None:
    code = INFO_NCE + CALLED
    (folder / "called_losses.py").write_text(code)
    scores, targets = batch()
    ours = losses.info_nce(scores, targets.candidates[:, 0], excluded=targets.excluded)
    for name in ("module", "part"):
        own = f"called_losses:{name}"
        terms = objective_terms(ObjectiveSettings(loss=own), scores, targets, temperature=1.0)
        assert terms["loss"].item() == pytest.approx(ours.item())
        assert loss_hash(own) == [code.encode()]


def test_a_dense_model_trains_with_it_as_with_ours_also_in_chunks(folder: Path) -> None:
    (folder / "trained_losses.py").write_text(INFO_NCE)
    backbone, beir = tiny_backbone(folder / "backbone" / "tiny"), tiny_beir(folder / "data" / "tiny")
    ours = configuration(backbone, beir, folder / "ours", objective=ObjectiveSettings(temperature=1.0))
    own = replace(
        configuration(backbone, beir, folder / "own", objective=ObjectiveSettings(loss="trained_losses:info_nce")),
        training=replace(ours.training, chunk_size=3),
    )
    expected, measured = train_dense(ours).measures, train_dense(own).measures
    assert measured == pytest.approx(expected, abs=1e-4)
    (folder / "trained_losses.py").write_text(INFO_NCE + "\n# changed\n")
    with pytest.raises(InputError, match="another text of the module of your loss"):
        train_dense(own)


def test_both_commands_take_the_option(folder: Path) -> None:
    from opensearch_neural.cli import osn

    for kind in ("dense", "sparse"):
        result = CliRunner().invoke(
            osn, ["train", kind, "--loss", "no_such:hinge", "--set", "train=[{path: x}]", "--output", "m"]
        )
        assert isinstance(result.exception, InputError), result.output
        assert "there is no module 'no_such'" in str(result.exception)
