"""coCondenser and CoT-MAE: each loss by hand, and what each part may see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from query_as_context_setup import MASK, batch_of, bert_of, model_of, pairs_of, settings  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny import WORDS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from trainers.common.batches import IGNORED  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.query_as_context import train as query_as_context  # noqa: E402
from trainers.query_as_context.context_models import HEAD_FILE, ContextModel, build, layers_of  # noqa: E402
from trainers.query_as_context.pairs import MaskedPart, PairTargets  # noqa: E402
from trainers.query_as_context.passages import read_passages  # noqa: E402
from trainers.query_as_context.settings import PretrainingVariant, QueryAsContextConfig  # noqa: E402
from trainers.query_as_context.train import train_query_as_context  # noqa: E402


def test_the_contrastive_target_is_the_pair_partner_by_hand(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    model = build(settings(corpus, backbone, tmp_path / "out"))
    vectors = {"passage": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "context": torch.tensor([[2.0, 0.0], [0.0, 1.0]])}
    losses = model.loss_terms(vectors, PairTargets(torch.tensor([[5, 0], [6, 1]])))
    # Pair 1: ⟨p, c⟩ = 2 against two negatives of 0, from both sides; pair 2: 1 against two of 0.
    expected = (math.log(1 + 2 * math.exp(-2)) + math.log(1 + 2 * math.exp(-1))) / 2
    assert losses.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    assert losses.measures["in_batch_accuracy"].item() == 1
    # Both of one article, or with the same question: neither is a negative of the other, only the partner is left.
    for same in ([[5, 0], [5, 1]], [[5, 0], [6, 0]]):
        assert model.loss_terms(vectors, PairTargets(torch.tensor(same))).terms["contrastive"].item() == 0
    # A number of one kind is none of the other.
    losses = model.loss_terms(vectors, PairTargets(torch.tensor([[5, 6], [6, 5]])))
    assert losses.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    swapped = {"passage": vectors["passage"], "context": vectors["context"].flip(0)}
    crossed = model.loss_terms(swapped, PairTargets(torch.tensor([[5, 0], [6, 1]])))
    # Partners score 0; p1 and c2 score 2 with each other, p2 and c1 score 1.
    expected = (math.log(2 + math.exp(2)) + math.log(2 + math.exp(1))) / 2
    assert crossed.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    assert crossed.measures["in_batch_accuracy"].item() == 0


def test_temperature_divides_the_raw_inner_products(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    model = build(settings(corpus, backbone, tmp_path / "out", temperature=2.0))
    vectors = {"passage": torch.tensor([[4.0], [0.0]]), "context": torch.tensor([[1.0], [0.0]])}
    # p1: 4/2 against two of 0; c1: the same; p2 and c2: 0 against two of 0.
    expected = (math.log(1 + 2 * math.exp(-2)) + math.log(3)) / 2
    loss = model.loss_terms(vectors, PairTargets(torch.tensor([[0, 0], [1, 1]]))).terms["contrastive"]
    assert loss.item() == pytest.approx(expected, rel=1e-6)


class Recorder(nn.Module):
    """A layer that keeps what it is given and gives it back."""

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.seen, self.mask = hidden, attention_mask
        return hidden


def test_the_condenser_head_gets_exactly_the_late_cls_and_the_middle_layers_tokens(
    backbone: Path, tmp_path: Path, corpus: Path
) -> None:
    model = build(settings(corpus, backbone, tmp_path / "out")).eval()
    recorder = Recorder()
    model.layers = nn.ModuleList([recorder])
    (part,) = batch_of(pairs_of(model.settings, model)).parts["passage"]
    encoded = model.encode("passage", part)
    hidden = bert_of(model)(part.input_ids, part.attention_mask, output_hidden_states=True).hidden_states
    torch.testing.assert_close(recorder.seen[:, 0], hidden[4][:, 0])
    torch.testing.assert_close(recorder.seen[:, 1:], hidden[2][:, 1:])
    torch.testing.assert_close(encoded.vectors, hidden[4][:, 0])
    # Through a head that does nothing the late masked LM is the cross-entropy of what was read.
    labels = part.labels
    logits = model_of(model).cls(recorder.seen).log_softmax(dim=-1)
    by_hand = [-logits[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
    assert encoded.sums["late_masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)
    assert encoded.counts["late_masked_lm"].item() == len(by_hand)
    early = model_of(model).cls(hidden[4]).log_softmax(dim=-1)
    by_hand = [-early[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
    assert encoded.sums["masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)


@pytest.fixture
def cot_mae(backbone: Path, tmp_path: Path, corpus: Path) -> ContextModel:
    model = build(settings(corpus, backbone, tmp_path / "out", variant="cot-mae")).eval()
    with torch.no_grad():  # An untrained model says nearly the same of everything: a louder one does not.
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(5)
    return model


def context_loss(model: ContextModel, part: MaskedPart) -> float:
    return model.encode("passage", part).sums["context_masked_lm"].item()


def changed(part: MaskedPart, name: str, where: Tensor) -> MaskedPart:
    """`part` with another word at each place of `where`."""
    ids = getattr(part, name)
    changes: dict[str, Any] = {name: torch.where(where, (ids - 5 + 1) % len(WORDS) + 5, ids)}
    return replace(part, **changes)


def test_the_decoder_reads_the_open_words_of_the_context(cot_mae: ContextModel) -> None:
    (part,) = batch_of(pairs_of(cot_mae.settings, cot_mae)).parts["passage"]
    before = context_loss(cot_mae, part)
    inputs, labels = part.context_input_ids, part.context_labels
    # The context's own first token gave way to the passage's CLS, and padding is not read.
    for unread in (inputs == 2, part.context_attention_mask == 0):
        assert unread.any()
        assert context_loss(cot_mae, changed(part, "context_input_ids", unread)) == pytest.approx(before, rel=1e-6)
    open_words = (labels == IGNORED) & (inputs > MASK)
    assert abs(context_loss(cot_mae, changed(part, "context_input_ids", open_words)) - before) > 1e-2


def test_the_decoder_cannot_see_the_masked_words_of_the_context(
    cot_mae: ContextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = pairs_of(cot_mae.settings, cot_mae)
    decoded: list[Tensor] = []
    through = cot_mae.through
    monkeypatch.setattr(cot_mae, "through", lambda *given: decoded.append(through(*given)) or decoded[-1])
    for index in range(8):
        visit = Visit(index, 0, 0, 1)
        item = pairs[visit]
        assert item.context is not None
        inputs, labels = item.context
        words = np.where(labels == IGNORED, inputs, labels)
        tokens = pairs.passage_tokens
        (row,) = (at for at in range(len(pairs.passages.texts)) if tokens.rows([at])[0].tolist() == words.tolist())
        hidden = labels != IGNORED
        assert (hidden & (inputs == MASK)).any() and ((inputs == MASK) <= hidden).all()
        # Other words under the masks: the batch is the same but for what is to be predicted.
        tokens._ids[row] = np.where(hidden, (words - 5 + 7) % len(WORDS) + 5, words).astype(np.int32)
        other = pairs[visit]
        tokens._ids[row] = words.astype(np.int32)
        (before,), (after,) = (pairs.collate([pair]).parts["passage"] for pair in (item, other))
        assert (after.context_labels != before.context_labels).any()
        for name in {field.name for field in fields(before)} - {"context_labels"}:
            assert torch.equal(getattr(after, name), getattr(before, name)), name
        assert context_loss(cot_mae, after) != context_loss(cot_mae, before), "other words are asked for"
        assert torch.equal(decoded[-1], decoded[-2]), "and the decoder has not read them"


def test_a_decoder_starts_from_scratch_and_a_condenser_head_does_not(
    backbone: Path, tmp_path: Path, corpus: Path
) -> None:
    def first_of(variant: str) -> tuple[Tensor, Tensor]:
        model = build(settings(corpus, backbone, tmp_path / variant, variant=variant))
        own, copied = (layers[-1].state_dict() for layers in (layers_of(model_of(model)), model.layers))
        (name,) = (name for name in own if name.endswith("attention.self.query.weight"))
        return own[name], copied[name]

    assert torch.equal(*first_of("cocondenser"))
    own, decoder = first_of("cot-mae")
    assert not torch.equal(own, decoder)
    assert decoder.std() == pytest.approx(0.02, rel=0.5), "BERT's initial weights"


def test_the_decoder_sees_no_passage_token_but_cls(cot_mae: ContextModel) -> None:
    (part,) = batch_of(pairs_of(cot_mae.settings, cot_mae)).parts["passage"]
    late: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        late.append(output.last_hidden_state)

    handle = bert_of(cot_mae).register_forward_hook(keep)
    before = cot_mae.encode("passage", part).sums["context_masked_lm"]
    before.backward()
    handle.remove()
    gradient = late[0].grad
    assert gradient is not None
    assert (gradient[:, 1:] == 0).all()
    assert (gradient[:, 0].abs().sum(dim=-1) > 0).all()

    def moved(cls: bool) -> Callable[[nn.Module, Any, Any], Any]:
        def replace_hidden(_: nn.Module, __: Any, output: Any) -> Any:
            noise = torch.randn(output.last_hidden_state.shape, generator=torch.Generator().manual_seed(0))
            noise[:, slice(1, None) if cls else slice(0, 1)] = 0
            output.last_hidden_state = output.last_hidden_state + noise
            return output

        return replace_hidden

    for cls in (False, True):
        handle = bert_of(cot_mae).register_forward_hook(moved(cls))
        after = context_loss(cot_mae, part)
        handle.remove()
        assert (abs(after - before.item()) > 1e-3) == cls


def test_the_decoders_loss_is_the_cross_entropy_of_what_it_made_of_cls_and_the_context(cot_mae: ContextModel) -> None:
    recorder = Recorder()
    cot_mae.layers = nn.ModuleList([recorder])
    (part,) = batch_of(pairs_of(cot_mae.settings, cot_mae)).parts["passage"]
    encoded = cot_mae.encode("passage", part)
    words = bert_of(cot_mae).embeddings(input_ids=part.context_input_ids)
    torch.testing.assert_close(recorder.seen[:, 0], encoded.vectors)
    torch.testing.assert_close(recorder.seen[:, 1:], words[:, 1:])
    labels = part.context_labels
    logits = model_of(cot_mae).cls(recorder.seen).log_softmax(dim=-1)
    by_hand = [-logits[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
    assert encoded.sums["context_masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    named = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return named


@pytest.mark.parametrize(
    ("variant", "context"), [("cocondenser", "random-passage"), ("cocondenser", "none"), ("cot-mae", "random-passage")]
)
def test_chunks_have_the_gradient_of_the_whole_batch(
    variant: Any, context: Any, backbone: Path, tmp_path: Path, corpus: Path
) -> None:
    config = settings(corpus, backbone, tmp_path / "out", variant=variant, context=context)
    model = build(config)
    whole = model(batch_of(pairs_of(config, model), 8))
    whole.total.backward()
    expected = gradients(model)
    small = replace(config, training=replace(config.training, chunk_size=3))
    parts = batch_of(pairs_of(small, model), 8)
    assert len(parts.parts["passage"]) == 3
    chunked = cached_backward(model, parts)
    by_chunks = gradients(model)
    assert by_chunks.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(by_chunks[name], gradient, atol=1e-5, rtol=1e-4)
    assert chunked.terms.keys() == whole.terms.keys()
    for name, term in whole.terms.items():
        assert chunked.terms[name].item() == pytest.approx(term.item(), rel=1e-4)
    wanted = {"cocondenser": {"masked_lm", "late_masked_lm"}, "cot-mae": {"masked_lm", "context_masked_lm"}}[variant]
    assert set(whole.terms) == wanted | ({"contrastive"} if model.compares else set())


def test_partners_are_found_among_the_rows_of_all_processes(
    backbone: Path, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over the processes' losses is the loss of one with all rows (gathering itself: test_grad_cache)."""
    model = build(settings(corpus, backbone, tmp_path / "out"))
    drawn = torch.Generator().manual_seed(0)
    whole = {role: torch.randn(6, 3, generator=drawn) for role in ("passage", "context")}
    keys = torch.tensor([[1, 0], [2, 1], [3, 2], [1, 3], [5, 1], [6, 4]])
    expected = model.loss_terms(whole, PairTargets(keys)).terms["contrastive"]
    monkeypatch.setattr("trainers.query_as_context.context_models.processes", lambda: 2)
    everything = {tuple(rows[half].flatten().tolist()): rows for rows in (*whole.values(), keys) for half in HALVES}
    monkeypatch.setattr(
        "trainers.query_as_context.context_models.gather", lambda rows: everything[tuple(rows.flatten().tolist())]
    )
    each = []
    for rank, half in enumerate(HALVES):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        own = {role: rows[half] for role, rows in whole.items()}
        each.append(model.loss_terms(own, PairTargets(keys[half])).terms["contrastive"])
    torch.testing.assert_close(torch.stack(each).mean(), expected)


HALVES = (slice(0, 3), slice(3, 6))


def pretrain_all(configs: list[QueryAsContextConfig]) -> None:
    for config in configs:
        query_as_context.pretrain(config, read_passages(config), [])


def test_two_processes_pre_train_alike_whole_and_in_chunks(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    """Both variants in the same two processes: to start them takes longer than to train."""
    variants: tuple[PretrainingVariant, ...] = ("cocondenser", "cot-mae")
    whole = [
        settings(corpus, backbone, tmp_path / variant, variant=variant, cache=tmp_path / "passages", dev_share=0.0)
        for variant in variants
    ]
    chunked = [
        replace(config, output=tmp_path / f"{config.variant}-chunked", training=replace(config.training, chunk_size=2))
        for config in whole
    ]
    in_two_processes(pretrain_all, [*whole, *chunked])
    start = load_file(backbone / "model.safetensors")
    for config, in_chunks in zip(whole, chunked, strict=True):
        expected, parts = (load_file(each.output / "model.safetensors") for each in (config, in_chunks))
        moved = 0.0
        for name, weight in expected.items():
            torch.testing.assert_close(parts[name], weight, atol=1e-5, rtol=1e-4)
            moved = max(moved, float((weight - start[name]).abs().max())) if name in start else moved
        assert moved > 1e-4, config.variant


def test_a_backbone_whose_layers_are_called_otherwise_is_refused(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    from transformers import AutoTokenizer, MPNetConfig, MPNetForMaskedLM

    tokenizer: Any = AutoTokenizer.from_pretrained(backbone)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    backbones.save(MPNetForMaskedLM(MPNetConfig(vocab_size=len(tokenizer), **sizes)), tokenizer, tmp_path / "mpnet")
    with pytest.raises(ModelError, match="MPNetForMaskedLM cannot be called like BERT's"):
        train_query_as_context(settings(corpus, tmp_path / "mpnet", tmp_path / "out"))


def test_the_condenser_head_is_warm(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "condenser", context="none", dev_share=0.0)
    # Where the backbone has no head yet, its own last layers are a start.
    copied = build(config).layers[0].state_dict()
    bare: Any = backbones.masked_language_model(backbone)[0]
    last = bare.bert.encoder.layer[-1].state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in last.items())
    train_query_as_context(config)
    head = load_file(config.output / HEAD_FILE)
    assert any(not torch.equal(head[f"0.{name}"], weight) for name, weight in last.items())
    further = settings(corpus, config.output, tmp_path / "further")
    assert all(torch.equal(head[name], weight) for name, weight in build(further).layers.state_dict().items())
    with pytest.raises(InputError, match="is not a Condenser head of 2 layers"):
        build(replace(further, layers=2))


def test_lengths_and_layers_beyond_the_backbone_are_refused(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    with pytest.raises(InputError, match="passage_length is 100, but the backbone has 64 positions"):
        build(settings(corpus, backbone, tmp_path / "out", passage_length=100))
    with pytest.raises(InputError, match="layers is 9, more than the 4"):
        build(settings(corpus, backbone, tmp_path / "out", layers=9))
