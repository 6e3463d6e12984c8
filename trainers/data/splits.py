"""Merges sets and splits them: `merge`, `hold_back`, `fewer_documents`.

train, dev = hold_back(data, share=0.05)                  dev shares no document with train's examples
train = withholding(train, [dev])                         nor with negatives that are mined or drawn for train
data = merge([a, b])                                      several sets; each batch comes from one set
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from opensearch_neural.errors import InputError
from trainers.common.set_range import SetRange
from trainers.data.examples import TrainingData
from trainers.data.settings import Apart
from trainers.data.texts import Ragged, TextStore, normalised


def fewer_documents(data: TrainingData, count: int) -> TrainingData:
    """`data`, before any merge, with only the documents that its examples name and the first `count` of its corpus."""
    queries = np.unique(data.query_rows)
    of_examples = [
        data.positives.values,
        data.negatives.values,
        data.scored.values,
        *(data.judged[row] for row in queries),
    ]
    first = np.arange(min(count, len(data.documents)))
    document_rows = np.unique(np.concatenate([*of_examples, first])).astype(np.int64)
    place = np.full(len(data.documents), -1, dtype=np.int64)
    place[document_rows] = np.arange(len(document_rows))

    def moved(rows: Iterable[npt.NDArray[np.int32]]) -> Ragged:
        return Ragged([at for at in place[row].tolist() if at >= 0] for row in rows)

    return replace(
        data,
        documents=data.documents.at(document_rows.tolist()),
        withheld=place[data.withheld][place[data.withheld] >= 0],
        positives=moved(data.positives),
        negatives=moved(data.negatives),
        judged=moved(data.judged),
        scored=moved(data.scored),
        sets=(),
        notes=list(data.notes),
    )


def merge(sets: Sequence[TrainingData]) -> TrainingData:
    """The examples of several sets as one set; every id is prefixed by its set's name and a slash. Sets with the same
    documents share them, under the first set's name.

    Raises InputError if two sets have the same name.
    """
    names = [data.name for data in sets]
    if len(set(names)) != len(names):
        raise InputError(f"two data sets have the same name: {', '.join(names)}", "give each its own name")
    queries, documents = TextStore(what="query"), TextStore()
    ranges: list[SetRange] = []
    notes: list[str] = []
    query_rows: list[npt.NDArray[np.int32]] = []
    rows: dict[str, list[list[int]]] = {"positives": [], "negatives": [], "judged": [], "scored": []}
    withheld: list[npt.NDArray[np.int64]] = []
    start = 0
    merged: dict[str, int] = {}  # {hash of documents: row of the first}
    for data in sets:
        query_base, document_base = len(queries), merged.setdefault(data.documents.hash, len(documents))
        new = [(data.queries, queries)]
        if document_base == len(documents):
            new.append((data.documents, documents))
        for source, target in new:
            for row, identifier in enumerate(source.ids):
                target.add(f"{data.name}/{identifier}", source.text_at(row))
        query_rows.append(data.query_rows + query_base)
        for part, target_rows in rows.items():
            target_rows.extend((rows_of_example + document_base).tolist() for rows_of_example in getattr(data, part))
        withheld.append(data.withheld + document_base)
        document_stop = document_base + len(data.documents)
        ranges.append(SetRange(data.name, start, start + len(data), document_base, document_stop))
        start += len(data)
        notes += data.notes
    return TrainingData(
        name="+".join(names),
        queries=queries,
        documents=documents,
        query_rows=np.concatenate(query_rows).astype(np.int32),
        **{part: Ragged(target_rows) for part, target_rows in rows.items()},
        score_values=np.concatenate([data.score_values for data in sets]),
        sets=tuple(ranges),
        notes=notes,
        withheld=np.unique(np.concatenate(withheld)),
    )


def hold_back(
    data: TrainingData,
    share: float | int = 0.1,
    *,
    seed: int = 0,
    apart: Apart = "documents",
    sets: Collection[str] | None = None,
) -> tuple[TrainingData, TrainingData]:
    """(train, dev), without a common query or document, by id or normalised text.

    share: dev's share of the examples, at least one of them, or their number per set. Examples with the same query text or
    positive's text stay together in one part. A negative is removed if it is a positive of the other part or, in dev, a
    negative of train (counted in the notes). To lose no negatives, split first and mine for `withholding(train, [dev])`:
    mining searches the whole corpus.
    apart: with "questions", only queries are kept apart and no negative is removed: dev has new questions, in part about
    documents that train asks about, too. sets: the names of the sets to hold examples back from, by default all.

    Raises InputError if examples share so many texts that no part can be held back.
    """
    part, room = _room(data, share, sets)
    groups = _groups(data, with_documents=apart == "documents")
    held_back = _drawn(groups, part, room, seed)
    if not groups:
        raise InputError(
            f"{data.name}: nothing is left to train on", "its questions are all in `unseen`, or there are none"
        )
    if not held_back:
        smallest = min(len(group) for group in groups)
        raise InputError(
            f"{data.name}: the smallest part that shares no {apart.removesuffix('s')} with the rest has {smallest} "
            "examples, more than should be held back",
            "raise the share, or use another set as dev",
        )
    # Examples outside `sets` that share texts with held-back examples are in neither part.
    dev = sorted(index for index in held_back if part[index] >= 0)
    train = [index for index in range(len(data)) if index not in held_back]
    if apart == "questions":
        return data.take(train), data.take(dev, name=dev_name(data.name))
    return _disjoint(data, train, dev)


def withholding(train: TrainingData, others: Iterable[TrainingData]) -> TrainingData:
    """`train`, where no document that is relevant to a question of `others` will be mined or drawn as a negative. Documents
    are compared by normalised text. Hard negatives that `train` already has stay."""
    withheld = [train.withheld]
    texts: set[str] = set()
    for other in others:
        rows = np.unique(other.positives.values)
        if other.documents is train.documents:
            withheld.append(train.documents.copies(rows))
        else:
            texts |= {normalised(other.documents.text_at(row)) for row in rows.tolist()}
    if texts:
        different = np.unique(train.documents.canonical).tolist()
        same = [row for row in different if normalised(train.documents.text_at(row)) in texts]
        withheld.append(train.documents.copies(np.array(same, np.int64)))
    return replace(train, withheld=np.unique(np.concatenate(withheld)))


def dev_name(train: str) -> str:
    """The name of the part that is held back of the set `train`."""
    return f"{train}-dev"


def _room(
    data: TrainingData, share: float | int, sets: Collection[str] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(each example's part, -1 if none of it is held back; how many examples each part holds back).

    The parts are the chosen sets if `share` is a number; if it is a share, they are one part together. Raises InputError
    for a part that would hold back nothing or everything.
    """
    chosen = [of_set for of_set in data.sets if of_set.stop > of_set.start and (sets is None or of_set.name in sets)]
    part = np.full(len(data), -1)
    for number, chosen_set in enumerate(chosen):
        part[chosen_set.start : chosen_set.stop] = 0 if isinstance(share, float) else number
    sizes = [int(size) for size in np.bincount(part[part >= 0], minlength=1)]
    room = np.array([_of_share(share, size) if isinstance(share, float) else share for size in sizes])
    for size, target, chosen_set in zip(sizes, room.tolist(), chosen, strict=False):
        if not 0 < target < size:
            what = data.name if isinstance(share, float) else chosen_set.name
            raise InputError(
                f"{what}: cannot hold back {target} of {size} examples",
                "hold back more or fewer, or leave the set out of train",
            )
    return part, room


def _of_share(share: float, size: int) -> int:
    """The number of examples in a share of `size`: at least one, unless the share is 0."""
    return max(round(share * size), int(share > 0))


def _drawn(
    groups: Sequence[Sequence[int]], part: npt.NDArray[np.int64], room: npt.NDArray[np.int64], seed: int
) -> set[int]:
    """The examples of groups in a random order, each taken whole if every part has room for it."""
    order = list(range(len(groups)))
    random.Random(f"{seed} hold back").shuffle(order)
    room = room.copy()
    drawn: set[int] = set()
    for number in order:
        inside = part[groups[number]]
        counts = np.bincount(inside[inside >= 0], minlength=len(room))
        if counts.any() and (counts <= room).all():
            drawn.update(groups[number])
            room -= counts
        if not room.any():
            break
    return drawn


def _groups(data: TrainingData, *, with_documents: bool) -> list[list[int]]:
    """The examples in groups that stay together: connected by equal query (and positive) texts, by first example."""
    examples, texts = np.arange(len(data)), data.queries.canonical[data.query_rows]
    if with_documents:
        of_positives = np.repeat(examples, np.diff(data.positives.offsets))
        examples = np.concatenate([examples, of_positives])
        texts = np.concatenate([texts, len(data.queries) + data.documents.canonical[data.positives.values]])
    # The nodes of the graph are the examples, the queries and the documents.
    nodes = len(data) + len(data.queries) + len(data.documents)
    edges = coo_array((np.ones(len(texts)), (examples, len(data) + texts)), shape=(nodes, nodes))
    groups: dict[int, list[int]] = {}
    for index, component in enumerate(connected_components(edges, directed=False)[1][: len(data)].tolist()):
        groups.setdefault(component, []).append(index)
    return list(groups.values())


def _disjoint(data: TrainingData, train: list[int], dev: list[int]) -> tuple[TrainingData, TrainingData]:
    canonical = data.documents.canonical

    def texts(ragged: Ragged, indices: list[int]) -> set[int]:
        return {int(canonical[row]) for index in indices for row in ragged[index]}

    def without(indices: list[int], excluded: set[int]) -> list[list[int]]:
        return [[row for row in data.negatives[i].tolist() if int(canonical[row]) not in excluded] for i in indices]

    train_negatives = without(train, texts(data.positives, dev))
    of_train = texts(data.positives, train) | {int(canonical[row]) for rows in train_negatives for row in rows}
    dev_negatives = without(dev, of_train)
    parts = (
        data.take(train, negatives=train_negatives),
        data.take(dev, negatives=dev_negatives, name=dev_name(data.name)),
    )
    for part, indices, other in zip(parts, (train, dev), ("dev", "train"), strict=True):
        if lost := sum(len(data.negatives[i]) for i in indices) - len(part.negatives.values):
            part.notes.append(f"{part.name}: {lost} hard negatives left out because {other} has them")
    return parts
