"""Batches of queries and documents: what is compared with what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tiny_dense import configuration  # noqa: E402

from trainers.common.batches import CachedBatch  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import ObjectiveSettings  # noqa: E402
from trainers.data.candidates import Drawn, RetrievalData  # noqa: E402
from trainers.data.examples import TrainingData  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.data.retrieval_batches import DrawnTexts, RetrievalCollate  # noqa: E402
from trainers.dense.train import build  # noqa: E402
from trainers.encoders import bi_encoder  # noqa: E402
from trainers.encoders.bi_encoder import BiEncoder  # noqa: E402


def write_beir(folder: Path, documents: dict[str, str], queries: dict[str, str], judged: list[tuple[str, str]]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": one, "title": "", "text": text}) for one, text in documents.items()]
    (folder / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    lines = [json.dumps({"_id": one, "text": text}) for one, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    table = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in judged)]
    (folder / "qrels/train.tsv").write_text("\n".join(table) + "\n")
    return folder


@pytest.fixture
def answers(tmp_path: Path) -> TrainingData:
    """q1 and q2 share the answer d1; d4 has d1's text; q3's answers are d2 and d3; d5 answers nobody."""
    documents = {"d1": "bab dek", "d2": "fin", "d3": "gol", "d4": "Bab, dek!", "d5": "kuz"}
    queries = {"q1": "lab", "q2": "mek", "q3": "nin"}
    judged = [("q1", "d1"), ("q2", "d1"), ("q3", "d2"), ("q3", "d3")]
    return load_training(write_beir(tmp_path / "answers", documents, queries, judged), name="answers")


def collate_of(data: TrainingData, backbone: Path, **objective: Any) -> RetrievalCollate:
    model = build(configuration(backbone, Path("unused"), Path("unused")))
    return RetrievalCollate(DrawnTexts([data], model, ObjectiveSettings(**objective), chunk_size=None, overhead=0))


def drawn(data: TrainingData, example: int, positive: str, *negatives: str) -> Drawn:
    row = data.documents.row
    return Drawn(0, example, int(data.query_rows[example]), row(positive), [row(one) for one in negatives])


def test_other_answers_and_second_copies_are_no_negatives(answers: TrainingData, backbone: Path) -> None:
    items = [
        drawn(answers, 0, "d1", "d5"),  # q1
        drawn(answers, 1, "d1", "d3"),  # q2, the same answer
        drawn(answers, 2, "d2", "d4"),  # q3
    ]
    batch = collate_of(answers, backbone)(items)
    # Documents: the positives d1, d2, then the negatives d5, d3, d4; d1 is encoded once for q1 and q2.
    assert [len(part.position) for part in batch.parts["document"]] == [5]
    assert batch.targets.candidates.tolist() == [[0, 2], [0, 3], [1, 4]]
    assert batch.targets.excluded.int().tolist() == [
        [0, 0, 0, 0, 1],  # q1: d4 says what its answer says
        [0, 0, 0, 0, 1],
        [0, 0, 0, 1, 1],  # q3: d3 answers it too; d4 is the second copy of d1, which counts as its negative once
    ]
    assert batch.ids == ["answers/q1", "answers/q2", "answers/q3"]


def test_a_query_s_own_document_is_no_negative_of_it(tmp_path: Path, backbone: Path) -> None:
    """As in ArguAna and Quora, where queries are documents: "a" is the query's own document, and answers another query."""
    documents = {"a": "bab dek", "b": "fin", "c": "gol"}
    queries = {"a": "bab dek", "q": "kuz"}
    data = load_training(write_beir(tmp_path / "own", documents, queries, [("a", "b"), ("q", "a")]), name="own")
    of_query = {data.queries.ids[int(row)]: number for number, row in enumerate(data.query_rows)}
    items = [drawn(data, of_query["a"], "b"), drawn(data, of_query["q"], "a")]
    assert collate_of(data, backbone)(items).targets.excluded.int().tolist() == [[0, 1], [0, 0]]
    # Nor is it drawn where there are too few hard negatives.
    visits = [RetrievalData([data], negatives=1, depth=5)[Visit(of_query["a"], epoch, 0, 1)] for epoch in range(20)]
    assert {data.documents.ids[row] for visit in visits for row in visit.negatives} == {"c"}


def joined(batch: CachedBatch, model: BiEncoder, role: str) -> torch.Tensor:
    parts = batch.parts[role]
    vectors = torch.cat([model.encode(role, part).vectors for part in parts])
    return vectors[torch.argsort(torch.cat([part.position for part in parts]))]


def test_two_processes_see_the_loss_of_one(backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = RetrievalData([load_training(beir)], negatives=2, depth=5)
    # The same example in both halves: its documents are columns of both processes, and must count once.
    items = [data[Visit(index, 0, 0, 1)] for index in (0, 1, 2, 3, 1, 5)]
    config = configuration(backbone, beir, Path("unused"))
    model = build(config).eval()
    collate = RetrievalCollate(DrawnTexts(data.parts, model, config.objective, chunk_size=None, overhead=0))
    alone = model(collate(items, 0, 1)).total
    shares = [collate(items, rank, 2) for rank in (0, 1)]
    everyone = {role: torch.cat([joined(share, model, role) for share in shares]) for role in ("query", "document")}

    def gather(rows: torch.Tensor) -> torch.Tensor:
        # Which role's rows these are: the one that holds them.
        return next(of_role for of_role in everyone.values() if (of_role == rows[0]).all(dim=1).any())

    monkeypatch.setattr(bi_encoder, "gather", gather)
    each = [
        model.loss_terms({role: joined(share, model, role) for role in ("query", "document")}, share.targets).total
        for share in shares
    ]
    assert ((each[0] + each[1]) / 2).item() == pytest.approx(alone.item(), rel=1e-5)


def test_chunks_have_the_gradient_of_the_whole_batch(backbone: Path, beir: Path) -> None:
    data = RetrievalData([load_training(beir)], negatives=1, depth=5)
    items = [data[Visit(index, 0, 0, 1)] for index in range(8)]
    config = configuration(backbone, beir, Path("unused"))
    gradients = []
    for chunk_size in (None, 3):
        model = build(config).eval()
        texts = DrawnTexts(data.parts, model, config.objective, chunk_size=chunk_size, overhead=0)
        batch = RetrievalCollate(texts)(items)
        if chunk_size is None:
            model(batch).total.backward()
        else:
            assert all(len(part.position) <= 3 for parts in batch.parts.values() for part in parts)
            cached_backward(model, batch)
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


def test_negatives_are_drawn_anew_at_each_visit_and_the_same_in_each_process(beir: Path) -> None:
    data = RetrievalData([load_training(beir)], negatives=3, depth=5)
    first, again = data[Visit(4, 0, 2, 1)], data[Visit(4, 0, 2, 1)]
    assert first == again
    assert any(data[Visit(4, epoch, 2, 1)].negatives != first.negatives for epoch in (1, 2, 3))
    assert first.positive not in first.negatives
