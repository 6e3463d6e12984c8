"""More documents of the same kind: resampled from real, encoded ones, so that cost can be measured at any size.

A new document takes most of its words from one document and the rest from another; its vectors are drawn together with
its text, by the same choice of words: a token whose words went goes too, a token whose words came brings its weight from
the document it came from, and dense vectors are mixed in the same proportion. Lengths, weights and the share of documents
that hold a token stay those of the corpus. No two documents have the same title and text.

What this cannot show: a vocabulary that grows with the corpus. A token held by one document in a thousand is held by one
in a thousand at any size, where in a real corpus of that size new rare tokens would appear. Judgements do not carry over.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.load.measurement import RESAMPLED
from ingest.content import Content, content_by_models, content_of_files
from ingest.corpus import CorpusSource, ignore
from ingest.job import Job
from ingest.pipeline import ingest as run_pipeline
from ingest.settings import Writing
from ingest.stored_vectors import StoredVectors, find_manifest
from ingest.target import LOADING, count, open_target
from ingest.vectorizers import Vectors
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.record import IndexMeta, read_record
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.models import registry
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.queries import Rare, rare_tokens
from opensearch_neural.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

BATCH = 256


@dataclass(slots=True)
class Drawn(Document):
    """A document with its vectors. token_ids, weights: (tokens,); dense: (dimension,)."""

    token_ids: NDArray[np.int32] | None = None
    weights: NDArray[np.float32] | None = None
    dense: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Growth:
    """What to write.

    documents: how many; the corpus's own come first, once each
    mix: share of a document's distinct words that are taken from another document
    prune: which tokens of a document's sparse vector are kept, by what they add to a score (document weight × query
        weight), as `queries.Rare` says it: ratio:0.1 those of at least a tenth of the highest, count:100 the hundred
        highest, share:0.9 the highest that hold 90% of the sum
    weight_bits: significant bits that sparse weights are rounded to; None leaves them as they are
    segments: to merge to; None leaves them as they come
    settings: of the index, from its creation on
    """

    corpus: str
    index: str
    documents: int
    sparse: str | None = None
    dense: str | None = None
    vectors: Path | None = None
    base: int | None = None
    mix: float = 0.3
    prune: Rare | None = None
    weight_bits: int | None = None
    segments: int | None = 1
    shards: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    seed: int = 0

    def validate(self) -> Growth:
        if not 0 < self.mix <= 0.5:
            raise InputError(f"mix is {self.mix:g}, and must be above 0 and at most 0.5")
        if self.documents < 1:
            raise InputError("the number of documents must be 1 or more")
        return self

    @property
    def described(self) -> dict[str, Any]:
        """What `_meta.osn` says of it."""
        prune = None if self.prune is None else f"{self.prune.by}:{self.prune.value:g}"
        said = {"documents": self.documents, "mix": self.mix, "seed": self.seed, "prune": prune}
        return said if self.weight_bits is None else {**said, "weight_bits": self.weight_bits}


class Resampler:
    """Draws documents from real ones. Document `number` depends on the seed alone, not on those drawn before it, but for
    being drawn again where its text is already there."""

    def __init__(
        self,
        documents: Sequence[Document],
        vectors: Vectors,
        tokenizer: Tokenizer | None,
        *,
        mix: float,
        seed: int,
        query_weights: Mapping[str, float] | None = None,
    ) -> None:
        """vectors: of the documents, in their order; query_weights: {token: its weight in a query}, for pruning.

        Raises InputError for fewer than two documents.
        """
        if len(documents) < 2:
            raise InputError("at least two documents are needed to draw others from")
        self.documents = documents
        self.vectors = vectors
        self.mix = mix
        self.seed = seed
        self.query_weights = query_weights or {}
        self._tokenizer = tokenizer
        self._words = [document.text.split() for document in documents]
        self._of_word: dict[str, tuple[int, ...]] = {}

    def real(self, number: int) -> Drawn:
        """One of the real documents, with its vectors."""
        document = self.documents[number]
        row = self._row(number)
        dense = self.vectors.dense
        return Drawn(
            document.id,
            document.text,
            document.title,
            document.url,
            dict(document.fields),
            token_ids=None if row is None else row[0],
            weights=None if row is None else row[1],
            dense=None if dense is None else dense[number],
        )

    def draw(self, number: int, attempt: int = 0) -> Drawn:
        """A new document."""
        random_ = random.Random(f"{self.seed}/{number}/{attempt}")
        first, second = random_.sample(range(len(self.documents)), 2)
        words, others = self._words[first], self._words[second]
        distinct = dict.fromkeys(words)
        gone = {word for word in distinct if random_.random() < self.mix}
        coming = {word for word in dict.fromkeys(others) if random_.random() < self.mix}
        donors = [word for word in others if word in coming] or others
        text, came, at = [], set(), 0
        for word in words:
            if word in gone and donors:
                word = donors[at % len(donors)]
                came.add(word)
                at += 1
            text.append(word)
        real = self.documents[first]
        made = Drawn(f"drawn-{number:09d}", " ".join(text), real.title, real.url, dict(real.fields))
        if self.vectors.sparse is not None:
            kept = [word for word in distinct if word not in gone] + real.title.split()
            made.token_ids, made.weights = self._mixed(first, second, kept, gone, came, random_)
        if self.vectors.dense is not None:
            # Around the share of the words, so that the same two documents do not give the same vector again.
            share = self.mix * random_.uniform(0.5, 1.5)
            mixed = (1 - share) * self.vectors.dense[first] + share * self.vectors.dense[second]
            # As long as the first one was, so that normalized vectors stay normalized.
            length = np.linalg.norm(self.vectors.dense[first]) / max(float(np.linalg.norm(mixed)), 1e-12)
            made.dense = (mixed * length).astype(np.float32)
        return made

    def take(self, count: int) -> Iterator[Drawn]:
        """`count` documents: the real ones, then drawn ones; no text twice."""
        seen: set[int] = set()
        taken = 0
        for number in range(len(self.documents)):
            if taken == count:
                return
            if self._is_new(self.documents[number], seen):
                taken += 1
                yield self.real(number)
        number = 0
        while taken < count:
            attempt = 0
            made = self.draw(number)
            while not self._is_new(made, seen):
                attempt += 1
                if attempt > 100:
                    raise InputError(
                        f"the corpus is too small to draw {count:,} different documents from it",
                        "take a larger corpus, or fewer documents",
                    )
                made = self.draw(number, attempt)
            taken += 1
            number += 1
            yield made

    @staticmethod
    def _is_new(document: Document, seen: set[int]) -> bool:
        digest = hashlib.blake2b(document.contents.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        key = int.from_bytes(digest, "big")
        if key in seen:
            return False
        seen.add(key)
        return True

    def _row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        sparse = self.vectors.sparse
        if sparse is None:
            return None
        start, end = sparse.indptr[number], sparse.indptr[number + 1]
        return sparse.token_ids[start:end], sparse.weights[start:end]

    def _mixed(
        self, first: int, second: int, kept: list[str], gone: set[str], came: set[str], random_: random.Random
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The sparse vector that goes with the words. A token of no word (a learned expansion) goes or comes by chance."""
        ours, theirs = self._row(first), self._row(second)
        assert ours is not None and theirs is not None
        stays, leaves, arrives = self._tokens(kept), self._tokens(gone), self._tokens(came)
        other_words = self._tokens(self._words[second]) | self._tokens(self.documents[second].title.split())
        row: dict[int, float] = {}
        for token, weight in zip(ours[0].tolist(), ours[1].tolist(), strict=True):
            if token in stays or (token not in leaves and random_.random() >= self.mix):
                row[token] = weight
        for token, weight in zip(theirs[0].tolist(), theirs[1].tolist(), strict=True):
            if token not in row and (token in arrives or (token not in other_words and random_.random() < self.mix)):
                row[token] = weight
        return np.array(list(row), dtype=np.int32), np.array(list(row.values()), dtype=np.float32)

    def _tokens(self, words: Sequence[str] | set[str]) -> set[int]:
        found: set[int] = set()
        for word in words:
            ids = self._of_word.get(word)
            if ids is None:
                assert self._tokenizer is not None
                ids = self._of_word[word] = tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
            found.update(ids)
        return found


@dataclass(frozen=True)
class DrawnVectors:
    """Gives documents the vectors that they were drawn with; a `Vectorizer`.

    prune: keeps of a document's tokens those that can add most to a score: document weight × query weight.
    weight_bits: significant bits that weights are rounded to.
    """

    vocabulary: list[str]
    prune: Rare | None = None
    query_weights: Mapping[str, float] = field(default_factory=dict)
    weight_bits: int | None = None

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        drawn = [document for document in documents if isinstance(document, Drawn)]
        sparse = dense = None
        if drawn and drawn[0].token_ids is not None:
            rows = [self._pruned(document) for document in drawn]
            sparse = SparseVectors(
                np.cumsum([0, *(len(ids) for ids, _ in rows)]).astype(np.int64),
                np.concatenate([ids for ids, _ in rows]),
                rounded(np.concatenate([weights for _, weights in rows]), self.weight_bits),
                self.vocabulary,
            )
        if drawn and drawn[0].dense is not None:
            dense = np.stack([document.dense for document in drawn if document.dense is not None])
        return Vectors(sparse, dense)

    def _pruned(self, document: Drawn) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        assert document.token_ids is not None and document.weights is not None
        if self.prune is None or not len(document.token_ids):
            return document.token_ids, document.weights
        row = dict(zip(document.token_ids.tolist(), document.weights.tolist(), strict=True))
        names, factors = self.vocabulary, self.query_weights
        added = {names[token]: weight * factors.get(names[token], 1.0) for token, weight in row.items()}
        best = rare_tokens(added, self.prune)
        kept = {token: weight for token, weight in row.items() if names[token] in best}
        return np.array(list(kept), dtype=np.int32), np.array(list(kept.values()), dtype=np.float32)


def rounded(weights: NDArray[np.float32], bits: int | None) -> NDArray[np.float32]:
    """weights, (n,), rounded to so many significant bits; None leaves them as they are."""
    if bits is None:
        return weights
    mantissa, exponent = np.frexp(weights)
    return np.ldexp(np.rint(mantissa * 2**bits) / 2**bits, exponent).astype(np.float32)


def base_of(growth: Growth) -> tuple[IndexMeta, list[Document], Vectors, list[str]]:
    """(what the index records, the real documents, their vectors, the vocabulary of the sparse ones).

    Raises what reading the corpus, finding and loading the models raise.
    """
    corpus = CorpusSource(growth.corpus, limit=growth.base)
    job = Job(corpus, growth.index, sparse=growth.sparse, dense=growth.dense, vectors=growth.vectors)
    content: Content
    if growth.vectors is not None:
        stored = StoredVectors(*find_manifest(growth.vectors))
        content = content_of_files(job, stored, stored.manifest.corpus.reader(growth.corpus))
    else:
        content = content_by_models(job, None, growth.index, corpus.reader(growth.corpus), corpus.name)
    documents = list(content.records(ignore))
    parts = [content.vectorizer.vectors(documents[at : at + BATCH]) for at in range(0, len(documents), BATCH)]
    sparse_parts = [part.sparse for part in parts if part.sparse is not None]
    dense_parts = [part.dense for part in parts if part.dense is not None]
    sparse = SparseVectors.concat(sparse_parts) if sparse_parts else None
    vectors = Vectors(sparse, np.concatenate(dense_parts) if dense_parts else None)
    return content.meta, documents, vectors, sparse.vocabulary if sparse is not None else []


def resampler_of(growth: Growth) -> tuple[IndexMeta, Resampler, list[str]]:
    """(what the index records, where its documents come from, the vocabulary). Raises as `base_of`."""
    meta, documents, vectors, vocabulary = base_of(growth)
    if meta.sparse is None:
        return meta, Resampler(documents, vectors, None, mix=growth.mix, seed=growth.seed), vocabulary
    place = growth.sparse if growth.sparse not in (None, "lexical") else None
    encoder = QueryEncoder.load(place or registry.find(meta.sparse.hash, meta.sparse.name, "sparse"))
    resampler = Resampler(
        documents,
        vectors,
        encoder.tokenizer,
        mix=growth.mix,
        seed=growth.seed,
        query_weights=encoder.weights,
    )
    return meta, resampler, vocabulary


def grow(
    client: OpenSearch,
    growth: Growth,
    prepared: tuple[IndexMeta, Resampler, list[str]] | None = None,
    *,
    show_progress: bool = True,
    say: Callable[[str], object] = log.info,
) -> None:
    """Write the index. The same call again continues an interrupted one; an index that is whole is left as it is.

    prepared: what `resampler_of` gave, where several sizes are drawn from one corpus. Raises as `pipeline.ingest`.
    """
    growth.validate()
    meta, resampler, vocabulary = prepared or resampler_of(growth)
    wanted = replace(meta, extra={**meta.extra, RESAMPLED: {**growth.described, "of": len(resampler.documents)}})
    with translate_errors():
        wrote = read_record(client, growth.index)
        if wrote is not None and _facts(wrote) != _facts(wanted):
            raise ClusterError(
                f"there is an index {growth.index!r} with other documents",
                "delete it, or give another --index",
            )

        whole = wrote is not None and LOADING not in wrote.extra
        if not (whole and count(client, growth.index) == growth.documents):
            _write(client, growth, wanted, resampler, vocabulary, show_progress)
        if growth.segments is not None and _segments(client, growth.index) > growth.segments * growth.shards:
            say(f"merging {growth.index} to {growth.segments} segment(s) a shard")
            merge_segments(client, growth.index, growth.segments, least=0)
        if lacking := _lacking(client, growth):
            client.indices.put_settings(index=growth.index, body={"index": lacking})


def _lacking(client: OpenSearch, growth: Growth) -> dict[str, str]:
    """The settings that the index has otherwise, or not at all."""
    ((_, found),) = client.indices.get_settings(index=growth.index, params={"flat_settings": "true"}).items()
    has = found["settings"]
    return {key: value for key, value in growth.settings.items() if has.get(f"index.{key}") != value}


@contextmanager
def _created_with(client: OpenSearch, growth: Growth) -> Iterator[None]:
    """Meanwhile, an index of that name is created with the wanted settings: some, as its sorting, cannot be set later."""
    if not growth.settings:
        yield
        return
    name = f"osn-bench-{growth.index}"
    body = {"index_patterns": [growth.index], "priority": 1000, "template": {"settings": {"index": growth.settings}}}
    client.indices.put_index_template(name=name, body=body)
    try:
        yield
    finally:
        client.indices.delete_index_template(name=name, params={"ignore": 404})


def _facts(meta: IndexMeta) -> tuple[Any, ...]:
    """What tells one drawn index from another; a lexical model's hash is that of its corpus's statistics."""
    return meta.extra.get(RESAMPLED), meta.sparse, meta.dense


def _write(
    client: OpenSearch,
    growth: Growth,
    meta: IndexMeta,
    resampler: Resampler,
    vocabulary: list[str],
    show_progress: bool,
) -> None:
    def records(_: Callable[[Rejected], None]) -> Iterator[Document]:
        return resampler.take(growth.documents)

    with _created_with(client, growth):
        target = open_target(client, growth.index, meta, corpus_name=growth.corpus, shards=growth.shards, replicas=0)
    vectors = DrawnVectors(vocabulary, growth.prune, resampler.query_weights, growth.weight_bits)
    run_pipeline(
        client,
        target,
        Content(meta, records, vectors, growth.documents),
        corpus_name=growth.corpus,
        dead_letters=Path(f"{growth.index}.dead-letters.jsonl"),
        reader=f"{growth.described}",
        writing=Writing(merge=False),
        show_progress=show_progress,
    )


def _segments(client: OpenSearch, index: str) -> int:
    stats = client.indices.stats(index=index, metric="segments")
    return int(stats["_all"]["primaries"]["segments"]["count"])
