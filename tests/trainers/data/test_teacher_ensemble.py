"""What several teachers say together."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny import tiny_beir  # noqa: E402

from trainers.common.sampling import Visit  # noqa: E402
from trainers.data.candidates import RetrievalData  # noqa: E402
from trainers.data.teach import teach  # noqa: E402
from trainers.data.teacher_ensemble import TeacherEnsemble  # noqa: E402
from trainers.data.teacher_scores import open_teacher  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    SparseObjective,
)


def test_what_is_no_candidate_takes_no_part_in_the_normalization(tmp_path: Path) -> None:
    """A known positive that a teacher scores highest would press all candidates together."""
    data = QuestionSet(tiny_beir(tmp_path / "beir")).load()
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
