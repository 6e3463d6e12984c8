"""A loss of one's own: every document that is not relevant should score a margin below the one that is.

    PYTHONPATH=examples osn train sparse --loss own_loss:hinge --config sparse-published-start --backbone MODEL \
        --set 'train=[{path: my-beir-folder}]' --output models/hinge

Run it in the clone, where PYTHONPATH leads to this file. `docs/tutorials/your-first-loss.md` goes through it.
`trainers.common.losses` has the losses of the papers, to build on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from trainers.common.own_loss import Targets

MARGIN = 1.0


def hinge(scores: Tensor, targets: Targets) -> Tensor:
    """Mean of max(0, margin − s(q, d⁺) + s(q, d⁻)) over a batch's queries and all documents that may be negatives.

    scores: (queries, documents), the documents of other queries included.
    """
    columns = targets.candidates[:, :1]  # (queries, 1): where each query's relevant document stands
    violations = (MARGIN - scores.gather(1, columns) + scores).relu()
    negatives = (~targets.excluded).scatter(1, columns, False)
    return violations[negatives].mean()
