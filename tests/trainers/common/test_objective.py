"""The loss of retrieval training: one term for each weight."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trainers.common.objective import TeacherScores, objective_terms  # noqa: E402
from trainers.common.settings import TERMS, ObjectiveSettings  # noqa: E402
from trainers.data.retrieval_batches import RetrievalTargets  # noqa: E402


@pytest.mark.parametrize("name", TERMS)
def test_a_weight_makes_the_term_of_its_name_and_no_other(name: str) -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 1.0]])
    teacher = TeacherScores(torch.tensor([[5.0, 4.0], [2.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool))
    targets = RetrievalTargets(
        torch.tensor([[0, 2], [1, 3]]), torch.ones(4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool), teacher
    )
    values = []
    for weight in (1.0, 3.0):
        objective = ObjectiveSettings(**(dict.fromkeys(TERMS, 0.0) | {name: weight}))
        terms = objective_terms(objective, scores, targets, temperature=1.0)
        assert terms.keys() == {name}, f"objective_terms must make a term {name} for the weight objective.{name}"
        values.append(terms[name].item())
    assert values[1] == pytest.approx(3 * values[0]) and values[0] > 0


def test_a_loss_without_a_weight_or_with_a_negative_one_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{', '.join(TERMS)} are weights"):
        ObjectiveSettings(**dict.fromkeys(TERMS, 0.0))
    for name in TERMS:
        with pytest.raises(ValueError, match="none may be below 0"):
            ObjectiveSettings(**{"info_nce": 1.0, name: -0.5})
