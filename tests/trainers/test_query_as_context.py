"""Query-as-context pre-training: each loss by hand, what each part may see, and the whole schedule on a tiny backbone."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from safetensors.torch import load_file  # noqa: E402
from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.schedules import TwoStageSettings  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.loading import read_documents  # noqa: E402
from trainers.data.sets import SetSettings  # noqa: E402
from trainers.data.texts import TextStore  # noqa: E402
from trainers.dense import DenseConfig  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.sequence_to_sequence import IGNORED  # noqa: E402
from trainers.query_as_context import train as query_as_context  # noqa: E402
from trainers.query_as_context.model import HEAD_FILE, CoCondenser, ContextModel, build, layers_of  # noqa: E402
from trainers.query_as_context.pairs import LabelledPart, Pairs, PairTargets, usable_rows  # noqa: E402
from trainers.query_as_context.passages import read_passages, write_passages  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings, GenerationSettings, MaskingSettings, QueryAsContextConfig  # noqa: E402
from trainers.query_as_context.train import held_back_loss, run  # noqa: E402

MASK = 4  # [MASK] of the tiny tokenizer; [PAD], [UNK], [CLS], [SEP] are 0 to 3


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a masked-LM head, four layers."""
    folder = tmp_path_factory.mktemp("backbone")
    model, tokenizer, _ = backbones.masked_language_model(tiny_backbone(folder / "bare", layers=4))
    backbones.save(model, tokenizer, folder / "mlm")
    return folder / "mlm"


def write_corpus(
    path: Path, *, articles: int = 12, passages: int = 3, seed: int = 0, words: Sequence[str] = WORDS
) -> Path:
    """Documents of one article each: `passages` sentences of 10 words, a line each, words that the article prefers."""
    drawn = random.Random(seed)
    with path.open("w") as file:
        for number in range(articles):
            own = drawn.sample(words, min(12, len(words)))
            text = "\n".join(" ".join(drawn.choices(own, k=10)) for _ in range(passages))
            file.write(json.dumps({"_id": f"d{number}", "title": f"Article {number}", "text": text}) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "articles.jsonl")


def settings(corpus: Path, backbone: Path, output: Path, **changes: Any) -> QueryAsContextConfig:
    config = QueryAsContextConfig(
        output=output,
        corpora=[CorpusSettings(corpus)],
        backbone=str(backbone),
        passage_length=12,
        query_length=8,
        layers=1,
        dev_share=0.2,
        context="random-passage",
        training=TrainingSettings(steps=4, batch_size=8, learning_rate=1e-3, device="cpu"),
    )
    return replace(config, **changes)


def write_queries(config: QueryAsContextConfig, path: Path, *, words: int = 3, candidates: int = 2) -> Path:
    """Queries of the passages' own words, as `osn generate-queries` writes them."""
    (file,) = write_passages(config)
    texts = TextStore((document.id, document.contents) for document in read_documents(file))
    with path.open("w") as target:
        target.write(json.dumps({"osn": "generated-queries", "format": 1, "documents": texts.hash}) + "\n")
        for identifier, text in texts.items():
            queries = [" ".join(text.split()[at : at + words]) for at in range(candidates)]
            line = {"_id": identifier, "queries": [{"text": one} for one in queries]}
            target.write(json.dumps(line) + "\n")
    return path


def with_queries(config: QueryAsContextConfig, path: Path) -> QueryAsContextConfig:
    file = write_queries(config, path)
    return replace(config, context="query", corpora=[replace(config.corpora[0], queries=file)])


def pairs_of(config: QueryAsContextConfig, model: ContextModel) -> Pairs:
    passages = read_passages(config)
    return Pairs(passages, model.tokenizer, config, usable_rows(passages, config)[0])


def batch_of(pairs: Pairs, count: int = 6) -> Any:
    return pairs.collate([pairs[Visit(at, 0, 0, 1)] for at in range(count)])


# ------------------------------------------------ passages and contexts


def test_passages_are_whole_sentences_that_fit(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    first, second, third = (" ".join(WORDS[at : at + 4]) for at in (0, 4, 8))
    long = " ".join(WORDS[20:33])
    corpus.write_text(json.dumps({"_id": "d", "title": "T", "text": "\n".join([first, second, third, long])}) + "\n")
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out"))
    texts = [document.contents.split() for document in read_documents(file)]
    # 12 tokens less [CLS] and [SEP]: two sentences of 4 fit, a sentence of 13 words is cut.
    assert texts == [WORDS[0:8], WORDS[8:12], WORDS[20:30], WORDS[30:33]]


def test_articles_of_fewer_passages_than_asked_for_are_not_written(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    texts = {"d1": WORDS[:14], "d2": WORDS[:9], "d3": WORDS[9:12]}
    titles = {"d1": "A", "d2": "B", "d3": "C"}
    lines = [{"_id": one, "title": titles[one], "text": " ".join(words)} for one, words in texts.items()]
    lines.append({"_id": "d4", "title": "C", "text": "bab"})
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out", least_passages=2))
    assert [document.id for document in read_documents(file)] == ["d1#0001", "d1#0002", "d3#0001", "d4#0001"]


def test_with_titles_a_passage_begins_with_its_documents(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out", titles=True))
    assert all(document.contents.startswith("Article ") for document in read_documents(file))


def test_articles_are_known_by_title_or_url_and_left_out_whole_where_they_are_tested_on(
    tmp_path: Path, backbone: Path
) -> None:
    beir = tiny_beir(tmp_path / "beir", documents=8)
    lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    for at, line in enumerate(lines):
        line |= {"title": f"Part {at // 2}", "url": f"https://x.org/{at // 4}#{at}"}
    (beir / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings(beir, backbone, tmp_path / "out", dev_share=0.0)
    assert read_passages(config).articles.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    by_url = replace(config, corpora=[CorpusSettings(beir, article="url")])
    assert read_passages(by_url).articles.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    alone = replace(config, corpora=[CorpusSettings(beir, article="document")])
    assert read_passages(alone).articles.tolist() == list(range(8))
    # d0 and d4 are dev's: with them go d1 and d5, the rest of their articles.
    unseen = replace(config, unseen=[SetSettings(beir, split="dev", name="dev")])
    assert [one.partition("#")[0] for one in read_passages(unseen).texts.ids] == [
        "beir/d2",
        "beir/d3",
        "beir/d6",
        "beir/d7",
    ]


def test_a_random_passage_is_another_one_of_the_same_article(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    passages = read_passages(config)
    pairs = Pairs(passages, build(config).tokenizer, config, usable_rows(passages, config)[0])
    tokens = [tuple(row.tolist()) for row in pairs.passage_tokens.rows(range(len(passages.texts)))]
    drawn = set()
    for epoch in range(20):
        item = pairs[Visit(4, epoch, 0, 0)]
        assert item.context is not None
        inputs, labels = item.context
        drawn.add(tokens.index(tuple(np.where(labels == IGNORED, inputs, labels).tolist())))
    assert drawn == {3, 5}


def test_one_of_the_first_candidates_is_drawn_at_each_visit(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = with_queries(settings(corpus, backbone, tmp_path / "out", dev_share=0.0), tmp_path / "q.jsonl")
    for candidates, expected in ((None, 2), (1, 1)):
        pairs = pairs_of(replace(config, candidates=candidates), build(config))
        drawn = set()
        for epoch in range(20):
            context = pairs[Visit(0, epoch, 0, 0)].context
            assert context is not None
            drawn.add(tuple(np.where(context[1] == IGNORED, context[0], context[1]).tolist()))
        assert len(drawn) == expected


def test_a_passage_with_the_same_text_is_no_other_one(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    words = " ".join(WORDS[:8])
    other = " ".join(WORDS[8:16])
    texts = [("a", words), ("a", words), ("a", other), ("b", words), ("b", words)]
    lines = [{"_id": f"d{at}", "title": title, "text": text} for at, (title, text) in enumerate(texts)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    model = build(config)
    pairs = pairs_of(config, model)
    assert pairs.rows == [0, 1, 2]  # The other article has one text only.
    for visit in range(20):
        assert pairs._context(0, np.random.default_rng(visit))[1] == len(pairs.same_query) + 2


def test_rows_that_share_an_article_or_a_text_have_a_key_in_common(tmp_path: Path, backbone: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", articles=3)
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    asked = with_queries(config, tmp_path / "q.jsonl")
    model = build(config)

    def keys(config: QueryAsContextConfig) -> list[tuple[int, int]]:
        pairs = pairs_of(config, model)
        return [pairs[Visit(at, visit, 0, 1)].keys for at in range(9) for visit in range(4)]

    # Passages of one article are each other's contexts: none is a negative. Of a query they are.
    assert [article for article, _ in keys(config)] == [at // 12 for at in range(36)]
    assert [passage for passage, _ in keys(asked)] == [at // 4 for at in range(36)]
    assert {passage for passage, _ in keys(replace(asked, context="mixed"))} == {0, 1, 2}
    # Contexts of the same text share a number, which no context of another text has.
    queries = 18
    assert all(context < queries for _, context in keys(asked))
    assert all(0 <= context < 9 for _, context in keys(config))
    mixed = [context for _, context in keys(replace(asked, context="mixed"))]
    assert {context < queries for context in mixed} == {True, False} and max(mixed) < queries + 9


def test_of_a_passage_the_first_queries_that_are_not_empty_count(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = with_queries(settings(corpus, backbone, tmp_path / "out", dev_share=0.0), tmp_path / "q.jsonl")
    header, *lines = map(json.loads, (tmp_path / "q.jsonl").read_text().splitlines())
    for line in lines:
        line["queries"][0]["text"] = " "
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [header, *lines]))
    passages = read_passages(replace(config, candidates=1))
    assert [len(of) for of in passages.candidates] == [1] * 36


def test_mixed_contexts_are_queries_and_passages(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = replace(with_queries(settings(corpus, backbone, tmp_path / "out"), tmp_path / "q.jsonl"), context="mixed")
    pairs = pairs_of(config, build(config))
    lengths = [len(context[0]) for at in range(20) if (context := pairs[Visit(at, 0, 0, 0)].context) is not None]
    # Queries have 3 words, passages 10; each with [CLS] and [SEP].
    assert sorted(set(lengths)) == [5, 12]
    assert 5 < lengths.count(5) < 15


def test_what_cannot_be_paired_is_left_out_or_refused(tmp_path: Path, backbone: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", passages=1)
    config = settings(corpus, backbone, tmp_path / "out")
    with pytest.raises(InputError, match=r"no passage has a context \(random-passage\)"):
        usable_rows(read_passages(config), config)
    with pytest.raises(InputError, match="nothing says where the queries of c come from"):
        read_passages(replace(config, context="query"))
    queries = write_queries(config, tmp_path / "q.jsonl")
    asked = replace(config, context="query", corpora=[CorpusSettings(corpus, queries=queries)])
    assert len(usable_rows(read_passages(asked), asked)[0]) > 5
    with pytest.raises(InputError, match="queries for other passages"):
        read_passages(replace(asked, titles=True))
    with pytest.raises(InputError, match="no passage has a context"):
        usable_rows(read_passages(asked), replace(asked, least_passages=2))


def test_a_masked_special_token_is_impossible(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    lines = [{"_id": f"{at}", "title": "A", "text": f"{WORDS[at]} unknown {WORDS[at + 1]} ?"} for at in range(20)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    masking = MaskingSettings(passage=0.9, context=0.9)
    for variant in ("cocondenser", "cot-mae"):
        config = settings(corpus, backbone, tmp_path / variant, variant=variant, masking=masking, dev_share=0.0)
        batch = batch_of(pairs_of(config, build(config)), 20)
        for parts in batch.parts.values():
            for part in parts:
                for prefix in ("", "context_") if part.context_labels is not None else ("",):
                    labels, inputs = getattr(part, f"{prefix}labels"), getattr(part, f"{prefix}input_ids")
                    assert not torch.isin(labels, torch.tensor([0, 1, 2, 3, MASK])).any()
                    assert (labels[inputs == 2] == IGNORED).all() and (inputs[:, 0] == 2).all()
                    assert (labels != IGNORED).any()


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("variant", ["cocondenser", "cot-mae"])
def test_rows_belong_together_whatever_their_lengths(
    tmp_path: Path, backbone: Path, variant: Any, chunk: int | None
) -> None:
    corpus = tmp_path / "c.jsonl"
    lines = [{"_id": f"{at}", "title": f"{at}", "text": " ".join(WORDS[at : at + 4 + at % 5])} for at in range(12)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings(corpus, backbone, tmp_path / "out", variant=variant, dev_share=0.0, query_length=20)
    config = replace(config, training=replace(config.training, chunk_size=chunk))
    # One query for each, of 1 to 17 of its words, in another order of length than the passages; parts are as long as eights.
    (file,) = write_passages(config)
    texts = TextStore((document.id, document.contents) for document in read_documents(file))
    queries = {
        identifier: " ".join((4 * text.split())[: 1 + 4 * (3 * at % 5)])
        for at, (identifier, text) in enumerate(texts.items())
    }
    header = {"osn": "generated-queries", "format": 1, "documents": texts.hash}
    written = [{"_id": identifier, "queries": [{"text": query}]} for identifier, query in queries.items()]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *written]))
    config = replace(config, context="query", corpora=[replace(config.corpora[0], queries=tmp_path / "q.jsonl")])
    pairs = pairs_of(config, build(config))

    def words_of(part: Any, row: int, prefix: str = "") -> str:
        inputs, labels = getattr(part, f"{prefix}input_ids")[row], getattr(part, f"{prefix}labels")[row]
        tokens = torch.where(labels == IGNORED, inputs, labels)[getattr(part, f"{prefix}attention_mask")[row] == 1]
        return str(pairs.tokenizer.decode(tokens[1:-1]))

    batch = batch_of(pairs, 12)
    seen: dict[str, list[tuple[int, str]]] = {"passage": [], "context": []}
    for role, parts in batch.parts.items():
        for part in parts:
            for row, position in enumerate(part.position.tolist()):
                seen[role].append((position, words_of(part, row)))
                if variant == "cot-mae":
                    seen["context"].append((position, words_of(part, row, "context_")))
    names = [one.partition("/")[2] for one in batch.ids]
    assert [text for _, text in sorted(seen["passage"])] == [texts.text_at(texts.row(one)) for one in names]
    assert [text for _, text in sorted(seen["context"])] == [queries[one] for one in names]
    assert len(batch.parts["passage"]) > 1


def test_masked_words_of_passages_and_contexts_count_alike(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    config = with_queries(settings(corpus, backbone, tmp_path / "out"), tmp_path / "q.jsonl")
    model = build(config).eval()
    batch = batch_of(pairs_of(config, model), 8)
    losses: list[Tensor] = []
    numbers: dict[str, int] = {}
    for role, parts in batch.parts.items():
        for part in parts:
            logits = model_of(model)(part.input_ids, attention_mask=part.attention_mask).logits
            chosen = part.labels != IGNORED
            losses.append(nn.functional.cross_entropy(logits[chosen], part.labels[chosen], reduction="none"))
            numbers[role] = numbers.get(role, 0) + int(chosen.sum())
    assert numbers["passage"] != numbers["context"]
    assert model(batch).terms["masked_lm"].item() == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)


def test_a_document_that_a_corpus_has_twice_is_one(tmp_path: Path, backbone: Path) -> None:
    once, twice = (write_corpus(tmp_path / f"{name}.jsonl") for name in ("once", "twice"))
    lines = twice.read_text().splitlines()
    twice.write_text("\n".join([lines[0], *lines]) + "\n")
    first, second = (read_passages(settings(one, backbone, tmp_path / one.stem)) for one in (once, twice))
    assert first.articles.tolist() == second.articles.tolist()
    assert len(second.texts) == len(second.articles) == len(second.candidates)


# ------------------------------------------------ losses


def test_the_contrastive_target_is_the_pair_partner_by_hand(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    model = build(settings(corpus, backbone, tmp_path / "out"))
    vectors = {"passage": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "context": torch.tensor([[2.0, 0.0], [0.0, 1.0]])}
    found = model.losses(vectors, PairTargets(torch.tensor([[5, 0], [6, 1]])))
    # Pair 1: ⟨p, c⟩ = 2 against two negatives of 0, from both sides; pair 2: 1 against two of 0.
    expected = (math.log(1 + 2 * math.exp(-2)) + math.log(1 + 2 * math.exp(-1))) / 2
    assert found.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    assert found.measures["in_batch_accuracy"].item() == 1
    # Both of one article, or with the same question: neither is a negative of the other, only the partner is left.
    for same in ([[5, 0], [5, 1]], [[5, 0], [6, 0]]):
        assert model.losses(vectors, PairTargets(torch.tensor(same))).terms["contrastive"].item() == 0
    # A number of one kind is none of the other.
    found = model.losses(vectors, PairTargets(torch.tensor([[5, 6], [6, 5]])))
    assert found.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    swapped = {"passage": vectors["passage"], "context": vectors["context"].flip(0)}
    crossed = model.losses(swapped, PairTargets(torch.tensor([[5, 0], [6, 1]])))
    # Partners score 0; p1 and c2 score 2 with each other, p2 and c1 score 1.
    expected = (math.log(2 + math.exp(2)) + math.log(2 + math.exp(1))) / 2
    assert crossed.terms["contrastive"].item() == pytest.approx(expected, rel=1e-6)
    assert crossed.measures["in_batch_accuracy"].item() == 0


def test_temperature_divides_the_raw_inner_products(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    model = build(settings(corpus, backbone, tmp_path / "out", temperature=2.0))
    vectors = {"passage": torch.tensor([[4.0], [0.0]]), "context": torch.tensor([[1.0], [0.0]])}
    # p1: 4/2 against two of 0; c1: the same; p2 and c2: 0 against two of 0.
    expected = (math.log(1 + 2 * math.exp(-2)) + math.log(3)) / 2
    found = model.losses(vectors, PairTargets(torch.tensor([[0, 0], [1, 1]]))).terms["contrastive"]
    assert found.item() == pytest.approx(expected, rel=1e-6)


def model_of(model: ContextModel) -> Any:
    return model.model


def bert_of(model: ContextModel) -> Any:
    return model.model.bert


class Recorder(nn.Module):
    """A layer that keeps what it is given and gives it back."""

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.seen, self.mask = hidden, attention_mask
        return hidden


def test_the_condenser_head_gets_exactly_the_late_cls_and_the_middle_layers_tokens(
    backbone: Path, tmp_path: Path, corpus: Path
) -> None:
    for middle, layer in ((None, 2), (1, 1)):
        model = build(settings(corpus, backbone, tmp_path / "out", middle=middle)).eval()
        recorder = Recorder()
        model.layers = nn.ModuleList([recorder])
        (part,) = batch_of(pairs_of(model.settings, model)).parts["passage"]
        found = model.encode("passage", part)
        hidden = bert_of(model)(part.input_ids, part.attention_mask, output_hidden_states=True).hidden_states
        torch.testing.assert_close(recorder.seen[:, 0], hidden[4][:, 0])
        torch.testing.assert_close(recorder.seen[:, 1:], hidden[layer][:, 1:])
        torch.testing.assert_close(found.vectors, hidden[4][:, 0])
        # Through a head that does nothing the late masked LM is the cross-entropy of what was read.
        labels = part.labels
        logits = model_of(model).cls(recorder.seen).log_softmax(dim=-1)
        by_hand = [-logits[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
        assert found.sums["late_masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)
        assert found.counts["late_masked_lm"].item() == len(by_hand)
        early = model_of(model).cls(hidden[4]).log_softmax(dim=-1)
        by_hand = [-early[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
        assert found.sums["masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)


@pytest.fixture
def cot_mae(backbone: Path, tmp_path: Path, corpus: Path) -> ContextModel:
    model = build(settings(corpus, backbone, tmp_path / "out", variant="cot-mae")).eval()
    with torch.no_grad():  # An untrained model says nearly the same of everything: a louder one does not.
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(5)
    return model


def context_loss(model: ContextModel, part: LabelledPart) -> float:
    return model.encode("passage", part).sums["context_masked_lm"].item()


def changed(part: LabelledPart, name: str, where: Tensor) -> LabelledPart:
    """`part` with another word at each place of `where`."""
    words = (getattr(part, name) - 5 + 1) % len(WORDS) + 5
    return replace(part, **{name: torch.where(where, words, getattr(part, name))})


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
        (before,), (after,) = (pairs.collate([one]).parts["passage"] for one in (item, other))
        assert (after.context_labels != before.context_labels).any()
        for name in vars(before).keys() - {"context_labels"}:
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
    found = cot_mae.encode("passage", part)
    words = bert_of(cot_mae).embeddings(input_ids=part.context_input_ids)
    torch.testing.assert_close(recorder.seen[:, 0], found.vectors)
    torch.testing.assert_close(recorder.seen[:, 1:], words[:, 1:])
    labels = part.context_labels
    logits = model_of(cot_mae).cls(recorder.seen).log_softmax(dim=-1)
    by_hand = [-logits[row, at, labels[row, at]].item() for row, at in (labels != IGNORED).nonzero().tolist()]
    assert found.sums["context_masked_lm"].item() == pytest.approx(sum(by_hand), rel=1e-5)


def test_the_two_sides_are_masked_at_their_own_rates(tmp_path: Path, backbone: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", articles=60)
    for variant, passage, context in (("cocondenser", 0.15, 0.15), ("cot-mae", 0.3, 0.45)):
        config = settings(corpus, backbone, tmp_path / variant, variant=variant, dev_share=0.0)
        pairs = pairs_of(config, build(config))
        items = [pairs[Visit(at, 0, 0, 0)] for at in range(len(pairs))]
        # 10 words each: of 1.5 two are masked, of 4.5 four (the nearest even number).
        shares = [
            float(np.mean([np.sum(labels != IGNORED) / 10 for _, labels in side]))
            for side in ([one.passage for one in items], [one.context for one in items if one.context is not None])
        ]
        assert shares == pytest.approx([round(10 * passage) / 10, round(10 * context) / 10])


# ------------------------------------------------ chunks, processes


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return found


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
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)
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
    expected = model.losses(whole, PairTargets(keys)).terms["contrastive"]
    monkeypatch.setattr("trainers.query_as_context.model.processes", lambda: 2)
    everything = {tuple(rows[half].flatten().tolist()): rows for rows in (*whole.values(), keys) for half in HALVES}
    monkeypatch.setattr(
        "trainers.query_as_context.model.gather", lambda rows: everything[tuple(rows.flatten().tolist())]
    )
    each = []
    for rank, half in enumerate(HALVES):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        own = {role: rows[half] for role, rows in whole.items()}
        each.append(model.losses(own, PairTargets(keys[half])).terms["contrastive"])
    torch.testing.assert_close(torch.stack(each).mean(), expected)


HALVES = (slice(0, 3), slice(3, 6))


def _process(rank: int, port: int, configs: list[QueryAsContextConfig]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    for config in configs:
        query_as_context.pretrain(config, read_passages(config), [])


@pytest.mark.parametrize("variant", ["cocondenser", "cot-mae"])
def test_two_processes_pre_train_alike_whole_and_in_chunks(
    variant: Any, tmp_path: Path, backbone: Path, corpus: Path
) -> None:
    import socket

    import torch.multiprocessing as multiprocessing

    first = settings(corpus, backbone, tmp_path / "whole", variant=variant, cache=tmp_path / "passages", dev_share=0.0)
    chunked = replace(first.training, chunk_size=2)
    configs = [first, replace(first, output=tmp_path / "chunked", training=chunked)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    multiprocessing.spawn(_process, args=(port, configs), nprocs=2)
    whole, parts, start = (
        load_file(folder / "model.safetensors") for folder in (first.output, configs[1].output, backbone)
    )
    moved = 0.0
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, atol=1e-5, rtol=1e-4)
        moved = max(moved, float((weight - start[name]).abs().max())) if name in start else moved
    assert moved > 1e-4


# ------------------------------------------------ training


def test_what_cannot_end_well_is_refused_before_anything_is_made(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    def refused(config: QueryAsContextConfig, words: str) -> None:
        with pytest.raises((InputError, ModelError), match=words):
            query_as_context.run(config)
        assert not (tmp_path / "cache").exists()

    fine = settings(corpus, backbone, tmp_path / "out", cache=tmp_path / "cache")
    missing = SetSettings(tmp_path / "nowhere", split="test")
    refused(replace(fine, test=[missing]), "nowhere does not exist")
    retriever = DenseConfig(output=tmp_path / "retriever", train=[missing])
    refused(replace(fine, retriever=retriever), "nowhere does not exist")
    refused(replace(fine, middle=9), "middle is 9")
    asking = replace(fine, context="query")
    refused(asking, "nothing says where the queries of articles come from")
    refused(
        replace(asking, corpora=[CorpusSettings(corpus, queries=tmp_path / "none.jsonl")]), "none.jsonl does not exist"
    )
    refused(replace(asking, generation=GenerationSettings(str(backbone))), "no sequence-to-sequence model")
    refused(replace(fine, layers=9), "layers is 9")
    (tmp_path / "retriever").mkdir()
    (tmp_path / "retriever" / "thesis.txt").touch()
    train = SetSettings(corpus)
    refused(replace(fine, retriever=replace(retriever, train=[train])), r"something else \(thesis.txt\)")


def measures(output: Path) -> dict[str, float]:
    return dict(json.loads((output / "osn.json").read_text())["measures"])


@pytest.mark.parametrize("variant", ["cocondenser", "cot-mae"])
def test_pre_training_beats_its_start(variant: Any, tmp_path: Path, backbone: Path) -> None:
    # Few words: to know them is soon learned.
    corpus = write_corpus(tmp_path / "c.jsonl", articles=40, words=WORDS[:8])
    training = TrainingSettings(
        steps=20,
        batch_size=16,
        chunk_size=16,
        learning_rate=5e-3,
        precision="bfloat16",
        evaluate_every=20,
        device="cpu",
    )
    config = settings(corpus, backbone, tmp_path / "pretrained", variant=variant, training=training)
    run(with_queries(config, tmp_path / "q.jsonl"))
    found = measures(config.output)
    assert found["objective"] > found["start objective"] + 1
    assert found["masked_lm"] > found["start masked_lm"] + 0.5
    assert query_as_context.steps_per_second(config.output)
    assert (config.output / HEAD_FILE).exists() == (variant == "cocondenser")


def test_the_checkpoint_is_a_backbone_that_every_trainer_takes(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    from opensearch_neural.cli import osn
    from opensearch_neural.models.dense import load_dense

    beir = tiny_beir(tmp_path / "beir", documents=24)
    training = TrainingSettings(steps=1, batch_size=8, device="cpu")
    dev = [SetSettings(beir, split="dev", name="dev")]
    config = settings(corpus, backbone, tmp_path / "pretrained", training=training, dev=dev)
    run(config)
    assert {"nDCG@10", "start nDCG@10"} <= measures(config.output).keys()
    model: Any
    model, tokenizer, fresh = backbones.masked_language_model(config.output)
    assert not fresh
    encoded = load_dense(config.output, device="cpu").encode_queries(["bab dek"])
    inputs = tokenizer("bab dek", return_tensors="pt")
    # As a dense model it is CLS, raw.
    expected = model.eval().bert(**inputs).last_hidden_state[0, 0].detach().numpy()
    np.testing.assert_allclose(encoded[0], expected, atol=1e-5)

    lengths = ["encoder.document_length=16", "encoder.query_length=16"]
    of_sparse = ["document_length=16", "student.document_length=16", "student.query_length=16", "student.idf=train"]
    of_sparse += ["objective.kl=0", "objective.info_nce=1"]
    for method, more in {"dense": lengths, "mlr": lengths, "sparse": of_sparse}.items():
        arguments = ["train", method, "--dry-run", "--output", str(tmp_path / method)]
        arguments += ["--backbone", str(config.output)]
        for one in (f"train=[{{path: {beir}}}]", "training.batch_size=4", *more):
            arguments += ["--set", one]
        result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output


def test_a_backbone_whose_layers_are_called_otherwise_is_refused(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    from transformers import AutoTokenizer, MPNetConfig, MPNetForMaskedLM

    tokenizer: Any = AutoTokenizer.from_pretrained(backbone)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    backbones.save(MPNetForMaskedLM(MPNetConfig(vocab_size=len(tokenizer), **sizes)), tokenizer, tmp_path / "mpnet")
    with pytest.raises(ModelError, match="MPNetForMaskedLM are not called as BERT's"):
        run(settings(corpus, tmp_path / "mpnet", tmp_path / "out"))


def test_a_rehearsal_does_without_the_documents_that_are_tested_on(
    tmp_path: Path, backbone: Path, corpus: Path
) -> None:
    corpus = write_corpus(tmp_path / "long.jsonl", articles=80)
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    documents = list(read_documents(corpus))
    (beir / "corpus.jsonl").write_text("".join(json.dumps(one.record()) + "\n" for one in documents))
    (beir / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{at}", "text": "bab"}) + "\n" for at in range(64))
    )
    judged = "".join(f"q{at}\t{one.id}\t1\n" for at, one in enumerate(documents[:64]))
    (beir / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    config = settings(corpus, backbone, tmp_path / "out", unseen=[SetSettings(beir, split="test")])
    query_as_context.rehearse(config)
    assert not config.output.exists()


def test_the_condenser_head_is_warm(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "condenser", context="none", dev_share=0.0)
    # Where the backbone has no head yet, its own last layers are a start.
    copied = build(config).layers[0].state_dict()
    bare: Any = backbones.masked_language_model(backbone)[0]
    last = bare.bert.encoder.layer[-1].state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in last.items())
    run(config)
    head = load_file(config.output / HEAD_FILE)
    assert any(not torch.equal(head[f"0.{name}"], weight) for name, weight in last.items())
    further = settings(corpus, config.output, tmp_path / "further")
    assert all(torch.equal(head[name], weight) for name, weight in build(further).layers.state_dict().items())
    with pytest.raises(InputError, match="no Condenser head of 2 layers"):
        build(replace(further, layers=2))


def test_an_interrupted_run_ends_in_the_same_weights(
    tmp_path: Path, backbone: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str) -> QueryAsContextConfig:
        training = TrainingSettings(
            steps=6, batch_size=8, chunk_size=4, gradient_accumulation=2, save_every=2, evaluate_every=6, device="cpu"
        )
        return settings(corpus, backbone, tmp_path / name, training=training, cache=tmp_path / "cache", dev_share=0.0)

    run(config("whole"))
    visits = 0
    original = Pairs.__getitem__

    def stopping(self: Pairs, visit: Visit) -> Any:
        nonlocal visits
        visits += 1
        if visits > 8 * 7:
            raise RuntimeError("killed")
        return original(self, visit)

    with monkeypatch.context() as patch:
        patch.setattr(Pairs, "__getitem__", stopping)
        with pytest.raises(RuntimeError, match="killed"):
            run(config("killed"))
    assert not (tmp_path / "killed" / "osn.json").exists()
    run(config("killed"))
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(resumed[name], weights) for name, weights in whole.items())


def test_held_back_loss_is_the_mean_over_masked_tokens_and_pairs(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    model = build(config).eval()
    pairs = pairs_of(config, model)
    with torch.no_grad():
        found = held_back_loss(model, pairs)
        # 36 passages: a batch of 32 and one of 4, in an order that mixes articles.
        assert len(pairs) == 36
        order = np.random.default_rng(0).permutation(36)
        batches = [pairs.collate([pairs[Visit(at, 0, 0, 0)] for at in rows]) for rows in (order[:32], order[32:])]
        terms = [model(batch).terms for batch in batches]
    expected = (32 * terms[0]["contrastive"] + 4 * terms[1]["contrastive"]).item() / 36
    assert found["contrastive"] == pytest.approx(expected, rel=1e-5)
    tokens = [sum(int((p.labels != IGNORED).sum()) for of in b.parts.values() for p in of) for b in batches]
    expected = sum(n * one["masked_lm"].item() for n, one in zip(tokens, terms, strict=True)) / sum(tokens)
    assert found["masked_lm"] == pytest.approx(expected, rel=1e-5)


# ------------------------------------------------ the whole paper


def tiny_generator(folder: Path) -> Path:
    tokenizer = backbones.train_tokenizer(WORDS, "byte-level", 400)
    torch.manual_seed(0)
    new = backbones.NewBackbone("t5", layers=1, hidden=16, heads=2)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    return folder


def schedule(tmp_path: Path, backbone: Path, beir: Path, **changes: Any) -> QueryAsContextConfig:
    """The paper's steps, two updates each, queries written by a tiny model."""
    two = TrainingSettings(steps=2, batch_size=8, device="cpu")
    retriever = DenseConfig(
        output=tmp_path / "retriever",
        train=[SetSettings(beir)],
        start="replaced by the checkpoint",
        training=two,
        two_stage=TwoStageSettings(depth=10),
    )
    retriever.encoder.document_length = retriever.encoder.query_length = 16
    return settings(
        write_corpus(tmp_path / "c.jsonl"),
        backbone,
        tmp_path / "pretrained",
        context="query",
        generation=GenerationSettings(str(tiny_generator(tmp_path / "t5")), candidates=2, query_length=6),
        training=two,
        retriever=retriever,
        **changes,
    )


def test_the_whole_paper_runs_and_repeats_nothing(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beir = tiny_beir(tmp_path / "beir", documents=24)
    tested = [SetSettings(beir, split="dev", name="tested")]
    config = schedule(tmp_path, backbone, beir, test=tested)
    config.condenser = config.training
    steps = run(config)
    assert [step.name for step in steps] == ["Condenser", "pre-trained", "retriever 1", "retriever 2"]
    assert all("nDCG@10" in step.measures["tested"] for step in steps)
    for start in (tmp_path / "retriever", tmp_path / "retriever" / ".stages" / "retriever-1"):
        assert json.loads((start / "osn.json").read_text())["training"]["start"] == str(config.output)
    condenser = json.loads((config.output / ".stages" / "condenser" / "osn.json").read_text())
    assert condenser["training"]["context"] == "none"
    assert json.loads((config.output / "osn.json").read_text())["training"]["backbone"].endswith("condenser")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("done already")

    monkeypatch.setattr("trainers.doc2query.generate.sample_queries", never)
    monkeypatch.setattr("trainers.common.trainer.LoopTrainer.train", never)
    monkeypatch.setattr(query_as_context, "corpus_measures", never)
    monkeypatch.setattr("trainers.query_as_context.passages.split", never)
    again = run(config)
    assert [step.measures for step in again] == [step.measures for step in steps]


def test_a_schedule_that_was_interrupted_between_steps_goes_on(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = schedule(tmp_path, backbone, tiny_beir(tmp_path / "beir", documents=24))

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("done already")

    done: list[str] = []
    for step in (
        "query_as_context.train.pretrain",
        "query_as_context.train.train_dense",
        "common.schedules.with_mined",
    ):
        with monkeypatch.context() as patch:
            for earlier in done:
                patch.setattr(earlier, never)
            patch.setattr(f"trainers.{step}", killed)
            with pytest.raises(KeyboardInterrupt):
                run(config)
        done = ["trainers.doc2query.generate.sample_queries"]
    steps = run(config)
    assert [step.name for step in steps] == ["pre-trained", "retriever 1", "retriever 2"]


def test_a_corpus_that_changed_is_cut_and_asked_about_anew(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out")
    (before,) = write_passages(config)
    (again,) = write_passages(config)
    assert again == before
    write_corpus(corpus, seed=1)
    (after,) = write_passages(config)
    assert after != before and after.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["variant=simcse"], "expected one of cocondenser, cot-mae"),
        (["variant=cot-mae", "condenser={steps: 5}"], "CoT-MAE has no Condenser head"),
        (["corpora=[]"], "corpora names no corpus"),
        (["passage_length=4"], "at least 8"),
        (["masking.passage=1.5"], "shares between 0 and 1"),
        (["retriever={output: out, train: [{path: x}]}"], "retriever.output must be another folder"),
        (["retriever={output: out/retriever, train: [{path: x}]}"], "neither inside the other"),
        (["cache=out/passages"], "cache must not be inside output"),
        (["cache=out"], "cache must not be inside output"),
        (["candidates=6"], "candidates is 6, but generation.candidates 5"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(changes: list[str], message: str) -> None:
    from trainers.common.config import load_config

    given = ["output=out", "backbone=b", "corpora=[{path: c}]", *changes]
    with pytest.raises(InputError, match=message):
        load_config(QueryAsContextConfig, None, given)


def test_lengths_and_layers_beyond_the_backbone_are_refused(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    with pytest.raises(InputError, match="passages of 100 tokens, but the backbone has 64 positions"):
        build(settings(corpus, backbone, tmp_path / "out", passage_length=100))
    with pytest.raises(InputError, match="layers is 9, more than the 4"):
        build(settings(corpus, backbone, tmp_path / "out", layers=9))
    model = build(settings(corpus, backbone, tmp_path / "out", middle=4))
    assert isinstance(model, CoCondenser)
    with pytest.raises(InputError, match="middle is 4, but the backbone has 4 layers"):
        _ = model.middle


@pytest.mark.parametrize("cache", ["work", "work/passages", "work/model/.stages"])
def test_passages_may_lie_where_the_model_does_not(cache: str) -> None:
    config = QueryAsContextConfig(
        output=Path("work/model"), corpora=[CorpusSettings(Path("c"))], backbone="b", cache=Path(cache)
    )
    assert config.folder == Path(cache)
