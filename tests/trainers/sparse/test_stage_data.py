"""A stage's hard negatives and teachers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tiny import tiny_beir
from tiny_sparse import configuration

from opensearch_neural.errors import InputError
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder
from trainers.data.candidates import candidate_rows
from trainers.data.loading import load_training
from trainers.data.negatives import open_retriever
from trainers.data.settings import DevSettings
from trainers.data.teach import teach
from trainers.data.teacher_scores import PairTeacher, open_teacher
from trainers.doc2query.question_sets import QuestionSet
from trainers.sparse.settings import BM25Settings, SparseCandidates, SparseObjective
from trainers.sparse.stage_data import check_known, mined, teachers
from trainers.sparse.train import prepared_sets


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


def test_the_filter_is_not_blamed_if_no_question_was_left_before_it(tmp_path: Path, backbone: Path, beir: Path) -> None:
    for consistency, left, message in (
        (None, 0, "nothing is left to train on"),
        (1, 0, "nothing is left to train on"),
        (1, 1, "the consistency filter keeps no query: bm25 finds no positive in its top 1"),
    ):
        candidates = SparseCandidates(negatives=1, mine="bm25", consistency=consistency)
        config = configuration(backbone, beir, tmp_path, candidates=candidates)
        data = QuestionSet(beir).load()
        run = open_retriever("bm25", data.documents).retrieve(data.query_texts(), 1)
        lost = next(at for at, one in enumerate(data.examples) if next(iter(run[one.query_id])) not in one.positives)
        with pytest.raises(InputError, match=message):
            mined(config, [data.take([lost][:left])])


def test_a_limit_counts_what_the_consistency_filter_leaves(tmp_path: Path, backbone: Path, beir: Path) -> None:
    candidates = SparseCandidates(negatives=1, mine="bm25", consistency=1)
    whole = configuration(backbone, beir, tmp_path / "whole", candidates=candidates)
    (left,) = mined(whole, prepared_sets(whole).train)
    config = replace(whole, output=tmp_path / "limited", train=[QuestionSet(beir, limit=6)])
    (first,) = mined(config, prepared_sets(config).train)
    assert QuestionSet(beir).load().take(range(6)).query_texts() != left.take(range(6)).query_texts()
    assert [example.query_id for example in first.examples] == [example.query_id for example in left.examples[:6]]
    assert [example.negatives for example in first.examples] == [example.negatives for example in left.examples[:6]]


def test_what_is_mined_of_held_back_documents_is_mined_anew_without_them(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    candidates = SparseCandidates(negatives=2, depth=10, mine="bm25")
    config = configuration(
        backbone, beir, tmp_path, candidates=candidates, selection=DevSettings(hold_back=0.2), cache=tmp_path / "cache"
    )
    prepared = prepared_sets(config)
    (train,), (held,) = prepared.train, prepared.measured
    answers = set(held.positives.values.tolist())
    (before,) = mined(config, [replace(train, withheld=train.withheld[:0])])
    (after,) = mined(config, [train])
    assert answers & set(before.negatives.values.tolist())
    assert not answers & set(after.negatives.values.tolist())
    assert len(list((tmp_path / "cache/negatives").glob("*.jsonl"))) == 2


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


def test_bm25_mines_with_the_analyzer_of_the_index(tmp_path: Path, backbone: Path) -> None:
    """Houses are Häuser: German stems find the plural, the rules for English do not."""
    beir = tmp_path / "german"
    documents = {"d1": "ein Bericht", "d2": "viele Häuser", "d3": "sonst etwas"}
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in documents.items())
    )
    (beir / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "Haus"}) + "\n")
    (beir / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    found = {}
    for analyzer in ("english", "german"):
        config = configuration(
            backbone, beir, tmp_path, candidates=SparseCandidates(negatives=1, mine="bm25"), bm25=BM25Settings(analyzer)
        )
        (data,) = mined(config, [QuestionSet(beir).load()])
        found[analyzer] = data.examples[0].negatives
    assert found == {"english": (), "german": ("d2",)}


def test_a_cross_encoder_that_scored_other_negatives_is_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, candidates=SparseCandidates(negatives=2, depth=4, mine="bm25"))
    (data,) = mined(config, [QuestionSet(beir).load()])
    pairs = [(data.queries.row(one.query_id), data.documents.row(one.negatives[0])) for one in data.examples]
    indptr = np.zeros(len(data.queries) + 1, dtype=np.int64)
    for query, _ in pairs:
        indptr[query + 1 :] += 1
    documents = np.array([row for _, row in sorted(pairs)], dtype=np.int32)
    few = PairTeacher("cross", data, "", indptr, documents, np.ones(len(pairs), np.float32))
    check_known(few, data, replace(config.candidates, depth=1))
    with pytest.raises(InputError, match=r"cross scored 45 of the 163 hard negatives"):
        check_known(few, data, config.candidates)


def test_a_teacher_encodes_what_queries_are_compared_with_and_not_the_whole_corpus(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 documents are asked for, 20 with a negative each; 60 others are only there.
    data = load_training(tiny_beir(tmp_path / "beir", documents=120)).take(range(20))
    everyone = range(len(data))
    negatives = [[(int(data.positives[index][0]) + 1) % 120] for index in everyone]
    data = data.take(everyone, negatives=negatives)
    encoded: list[int] = []
    original = TorchDenseEncoder.encode_documents

    def noted(self: Any, texts: Any, **named: Any) -> Any:
        encoded.append(len(texts))
        return original(self, texts, **named)

    monkeypatch.setattr(TorchDenseEncoder, "encode_documents", noted)
    objective = SparseObjective(kl=1.0, teachers=[str(backbone)])
    config = configuration(backbone, tmp_path / "beir", tmp_path / "out", objective=objective)
    ((few,),) = teachers(config, [data])
    assert sum(encoded) == len({*(row for of in negatives for row in of), *data.positives.values.tolist()})
    whole = open_teacher(teach(backbone, data, output=tmp_path / "whole"), data)
    queries = [data.examples[index].query_id for index in everyone]
    candidates = [
        each for index in everyone for each in (*data.examples[index].positives, *data.examples[index].negatives)
    ]
    np.testing.assert_allclose(few.scores(queries, candidates), whole.scores(queries, candidates), rtol=1e-3)
    assert np.isnan(few.scores(queries[:1], ["d119", candidates[0]])).tolist() == [[True, False]]
    # A query that is filled up at random may be compared with any document.
    more = replace(config, candidates=replace(config.candidates, negatives=2))
    encoded.clear()
    teachers(more, [data])
    assert sum(encoded) == 120


def test_a_cache_without_the_documents_that_are_drawn_is_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    data = QuestionSet(beir).load()
    data = data.take(range(10), negatives=[[40 + index] for index in range(10)])
    cache = teach("lexical", data, output=tmp_path / "cache", candidates=candidate_rows(data))
    config = configuration(
        backbone,
        beir,
        tmp_path / "out",
        train=[QuestionSet(beir, teachers=[cache])],
        objective=SparseObjective(kl=1.0),
        candidates=SparseCandidates(negatives=1),
    )
    assert teachers(config, [data])
    with pytest.raises(InputError, match=r"lexical encoded \d+ of the 60 documents of .*10 queries have fewer than 2"):
        teachers(replace(config, candidates=SparseCandidates(negatives=2)), [data])
