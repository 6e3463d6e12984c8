"""What a passage is paired with, and how a batch keeps pairs together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from query_as_context_setup import (  # noqa: E402
    MASK,
    batch_of,
    model_of,
    pairs_of,
    settings,
    with_queries,
    write_corpus,
    write_queries,
)
from tiny import WORDS  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from trainers.common.batches import IGNORED  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.data.loading import text_store  # noqa: E402
from trainers.query_as_context.context_models import build  # noqa: E402
from trainers.query_as_context.pairs import ContextPairs, usable_rows  # noqa: E402
from trainers.query_as_context.passages import read_passages, write_passages  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings, MaskingSettings, QueryAsContextConfig  # noqa: E402


def test_a_random_passage_is_another_one_of_the_same_article(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    passages = read_passages(config)
    pairs = ContextPairs(passages, build(config).tokenizer, config, usable_rows(passages, config)[0])
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
    with pytest.raises(InputError, match="needs queries for c, but no generator"):
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
    texts = text_store(file)
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
    names = [id.partition("/")[2] for id in batch.ids]
    assert [text for _, text in sorted(seen["passage"])] == [texts.text_at(texts.row(name)) for name in names]
    assert [text for _, text in sorted(seen["context"])] == [queries[name] for name in names]
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


def test_the_two_sides_are_masked_at_their_own_rates(tmp_path: Path, backbone: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", articles=60)
    for variant, passage, context in (("cocondenser", 0.15, 0.15), ("cot-mae", 0.3, 0.45)):
        config = settings(corpus, backbone, tmp_path / variant, variant=variant, dev_share=0.0)
        pairs = pairs_of(config, build(config))
        items = [pairs[Visit(at, 0, 0, 0)] for at in range(len(pairs))]
        # 10 words each: of 1.5 two are masked, of 4.5 four (the nearest even number).
        shares = [
            float(np.mean([np.sum(labels != IGNORED) / 10 for _, labels in side]))
            for side in ([item.passage for item in items], [item.context for item in items if item.context is not None])
        ]
        assert shares == pytest.approx([round(10 * passage) / 10, round(10 * context) / 10])
