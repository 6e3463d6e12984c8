"""A SPLADE without a query table: queries are weighed by the corpus's IDF table.

The network encodes documents, so only queries need the table. Therefore it is counted while the documents are written
(`CorpusTable`), and recorded after the last document:

    1. the index is created; its record names the SPLADE, and says that the table is not counted yet (`IndexMeta.counting`)
    2. documents are counted as they are read, encoded and written. A run that continues another one reads the corpus from
       its beginning, and so counts all documents, even those written already: no counts are kept beside the journal
    3. the model with the table is saved on this machine, its query encoder on the cluster, then the record names it
       (`stored_query_data.keep_table`)

A kill before step 3 leaves an index without a table, and searches by sparse vectors refuse it. After step 3 the counts are
not needed any more.

The corpus is read twice, first only for the table (`with_corpus_table`), if the table is needed earlier:
    - for pruned postings: they hold the tokens that can add most to a score, which the table decides
    - for an index whose table is lost: only the hash of the model with the table shows whether it is the index's model
    - for `osn encode`: this hash names the manifest of its vectors and their folder
"""

from __future__ import annotations

import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.corpus import Records, as_passages
from ingest.model_request import ModelRequest
from ingest.settings import Models
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.index.hidden_index import read_encoder
from opensearch_neural.index.models import called
from opensearch_neural.index.record import IndexMeta, PassageMeta, SparseMeta, another_index
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse.corpus_statistics import tokenizer_of, write_with_table
from opensearch_neural.models.sparse.idf import in_seven_digits
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import vocabulary_of

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from tokenizers import Tokenizer

    from opensearch_neural.corpus.documents import Document, Rejected
    from opensearch_neural.models.sparse.encoder import SparseDocumentEncoder
    from opensearch_neural.models.sparse.idf import DocumentFrequencies

log = logging.getLogger(__name__)

SPLADE = "splade"
"""Key in osn.json's `training`: the hash of the SPLADE from which a model with a corpus's table was made."""
COUNTED_AT_ONCE = 64
"""Documents whose tokens are counted together; they stay in memory until then."""


@dataclass
class CorpusTable:
    """The IDF table of a corpus, counted while its documents are written, and the SPLADE's model with this table."""

    splade: Path
    """The folder of the SPLADE."""
    hash: str
    """Its hash."""
    name: str
    """The name of the model in the index's record."""
    tokenizer: Tokenizer
    """The SPLADE's tokenizer, which counts."""
    trust_remote_code: bool = False
    """Whether the SPLADE's own code may run."""
    _frequencies: DocumentFrequencies | None = field(default=None, repr=False)
    """None until the corpus has been read to its end."""

    @property
    def uncounted(self) -> SparseMeta:
        """The model in the index's record until the table is counted."""
        return SparseMeta(self.name, self.hash, query_hash="")

    def counting(self, records: Records) -> Records:
        """The same records, counted while they are read."""
        from opensearch_neural.models.sparse.lexical import DocumentCounter

        def read(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
            counter = DocumentCounter(self.tokenizer)
            waiting: list[str] = []
            for document in records(on_reject):
                waiting.append(document.contents)
                if len(waiting) == COUNTED_AT_ONCE:
                    counter.add(waiting)
                    waiting = []
                yield document
            counter.add(waiting)
            self._frequencies = counter.frequencies

        return read

    @cached_property
    def folder(self) -> Path:
        """The folder of the model with the table, below `home()`, where this machine finds it.

        Raises ModelError if the SPLADE has changed since the documents were encoded.
        """
        from opensearch_neural.models.sparse.lexical import idf_table

        assert self._frequencies is not None, "the corpus was not read to its end"
        if directory.hash_files(self.splade) != self.hash:
            raise ModelError(
                f"the model {self.name} in {self.splade} changed while the corpus was written",
                "restore the model, then run the same command again; or delete the index with `osn index abort`",
            )
        table = idf_table(self._frequencies, self.tokenizer)
        folder = _saved(self.splade, self.hash, table, self.trust_remote_code)
        assert folder is not None
        registry.remember(directory.hash_files(folder), folder)
        return folder

    @cached_property
    def query(self) -> TableEncoder:
        """The query encoder: the table with its tokenizer. Raises as `folder` does."""
        return TableEncoder.load(self.folder)

    @property
    def counted(self) -> SparseMeta:
        """The model with the table in the index's record. Raises as `folder` does."""
        return SparseMeta(self.name, directory.hash_files(self.folder), self.query.hash)


@dataclass(frozen=True)
class ChosenSparse:
    """A sparse model, with what was counted if it is made from the corpus."""

    encoder: SparseDocumentEncoder | None
    """None: no sparse vectors are written."""
    documents: int | None = None
    """The number of records; None if they were not counted."""
    table: CorpusTable | None = None
    """The table that is still to be counted; None for a model that has its table."""


def while_writing(splade: Path, request: ModelRequest, passages: PassageMeta | None) -> ChosenSparse:
    """A SPLADE that encodes documents before its table is counted, for a new index or an index of an interrupted run.

    Raises InputError for a corpus without any token, ModelError if the index's record names another SPLADE.
    """
    from opensearch_neural.models.sparse.encoder import TorchSparseEncoder
    from opensearch_neural.models.sparse.lexical import check_tokens

    models, hash = request.models, directory.hash_files(splade)
    sparse_meta = None if request.meta is None else request.meta.sparse
    name = directory.display_name(str(models.sparse or splade)) if sparse_meta is None else sparse_meta.name
    if request.meta is not None and sparse_meta is not None and sparse_meta.hash != hash:
        raise _another_model(request.index, sparse_meta, splade, hash, another_index(request.meta))
    tokenizer = tokenizer_of(splade, trust_remote_code=models.trust_remote_code)
    with last_rejected(f"no IDF table can be made from {request.corpus}") as on_reject:
        documents = as_passages(request.records, tokenizer, passages)(on_reject)
        check_tokens((document.contents for document in documents), tokenizer)
    log.info("the IDF table of the corpus is counted while it is written")
    # Load it in the layout with a table, so that vectors do not depend on when the table is counted.
    with _written(splade, {}, models.trust_remote_code) as folder:
        encoder = _loaded(folder, models, name)
    assert isinstance(encoder, TorchSparseEncoder)
    encoder = replace(encoder, info=replace(encoder.info, hash=hash, path=splade))
    return ChosenSparse(encoder, table=CorpusTable(splade, hash, name, tokenizer, models.trust_remote_code))


def with_corpus_table(splade: Path, request: ModelRequest, passages: PassageMeta | None) -> ChosenSparse:
    """A SPLADE with the IDF table of the corpus, saved under `home()`; a pass over the corpus counts the table now.

    An index that was written with this SPLADE keeps its table even if the corpus has changed, because another table would
    change the weights of query tokens. A machine that lacks the table reads it from the cluster.
    """
    from opensearch_neural.models.sparse.lexical import count_documents, idf_table

    models, sparse_meta = request.models, None if request.meta is None else request.meta.sparse
    name = directory.display_name(str(models.sparse))
    if request.meta is not None and sparse_meta is not None:
        another = another_index(request.meta)
        folder = with_kept_table(
            request.client, sparse_meta, splade, models.trust_remote_code, index=request.index, another=another
        )
        if folder is not None:
            return ChosenSparse(_loaded(folder, models, name))
    tokenizer = tokenizer_of(splade, trust_remote_code=models.trust_remote_code)
    log.info("reading the corpus once for its IDF table")
    with last_rejected(f"no IDF table can be made from {request.corpus}") as on_reject:
        counted = as_passages(request.records, tokenizer, passages)(on_reject)
        frequencies = count_documents((document.contents for document in counted), tokenizer)
    table = idf_table(frequencies, tokenizer)
    folder = _saved(splade, directory.hash_files(splade), table, models.trust_remote_code)
    assert folder is not None
    return ChosenSparse(_loaded(folder, models, name), frequencies.n)


def check_continued(index: str, meta: IndexMeta, corpus_name: str) -> None:
    """Raise InputError if an interrupted run was counting the table of an index, and this is another corpus."""
    if meta.counting and meta.loading != corpus_name:
        raise InputError(
            f"the index {index!r} has no IDF table yet: the ingest of {meta.loading}, which counts it, was interrupted",
            f"ingest {meta.loading} first, or give another --index; `osn index abort` deletes this index",
        )


def splade_of(model: Path) -> str | None:
    """The hash of the SPLADE from which a model with a corpus's table was made; None for other models."""
    training = (directory.read_osn_json(model) or {}).get("training")
    return training.get(SPLADE) if isinstance(training, dict) else None


def with_kept_table(
    client: OpenSearch | None,
    sparse_meta: SparseMeta,
    splade: Path,
    trust_remote_code: bool,
    *,
    index: str,
    another: str = "another --index",
) -> Path | None:
    """The model that wrote an index: from this machine, else made again from its SPLADE and the query table on the cluster.

    None if neither can be read. Raises ModelError if the table shows that another model wrote the index. another: how to
    write another index, for that error
    """
    link, hash = registry.link_of(sparse_meta.hash), directory.hash_files(splade)
    if link.is_dir() and splade_of(link) == hash:
        return link.resolve()
    if client is None:
        return None
    try:
        content = read_encoder(client, sparse_meta.query_hash)
        weights = {} if content is None else TableEncoder.from_bytes(content, name=sparse_meta.name).weights
    except ModelError as error:
        log.warning("%s", error.message)
        return None
    if not weights:
        return None
    table = {token: in_seven_digits(weight) for token, weight in weights.items()}  # encoders store weights as float32
    if table.keys() == set(vocabulary_of(tokenizer_of(splade, trust_remote_code=trust_remote_code))):
        folder = _saved(splade, hash, table, trust_remote_code, sparse_meta.hash)
        if folder is not None:
            registry.remember(sparse_meta.hash, folder)
            return folder
    # Even with the index's own table, this model has another hash, so it is another model.
    raise _another_model(index, sparse_meta, splade, hash, another)


def _another_model(index: str, sparse_meta: SparseMeta, splade: Path, hash: str, another: str) -> ModelError:
    return ModelError(
        f"the index {index!r} was written with the sparse model {sparse_meta.name} ({sparse_meta.hash}), "
        f"but {directory.display_name(splade)} ({hash}) is another model",
        f"use the same model as before, or {another}",
    )


@contextmanager
def last_rejected(failure: str, otherwise: str = "") -> Iterator[Callable[[Rejected], None]]:
    """Yield what takes rejected records, and make an InputError inside say why the last one was rejected.

    failure: what cannot be done, which the error names first. otherwise: what else helps if documents were read, but hold no
    token
    """
    from opensearch_neural.models.sparse.lexical import NoTokens

    rejected: deque[Rejected] = deque(maxlen=1)
    try:
        yield rejected.append
    except InputError as error:
        last = f"; the last rejected one: {rejected[0]}" if rejected else ""
        remedy = error.remedy
        if isinstance(error, NoTokens):
            if error.documents:
                remedy = f"{remedy}{otherwise}"
            elif rejected:
                remedy = "every record was rejected: mend them, or give --id-field, --text-field and --title-field"
        raise InputError(f"{failure}: {error.message}{last}", remedy) from None


def _saved(
    splade: Path, hash: str, table: Mapping[str, float], trust_remote_code: bool, expected: str | None = None
) -> Path | None:
    """The folder below `home()` of a SPLADE with this table. hash: the SPLADE's.

    expected: the hash that the folder must have; if it has another, this returns None and writes no folder.
    """
    with _written(splade, table, trust_remote_code) as made:
        directory.write_osn_json(made, "sparse", training={SPLADE: hash})
        if directory.hash_files(made) != expected:  # an older osn left the versions in the model
            _remove_versions(made)
        if (whole := directory.hash_files(made)) != (expected or whole):
            return None
        folder = registry.models_folder() / f"splade-{whole}"
        if not folder.is_dir():
            made.rename(folder)
    return folder


def _remove_versions(model: Path) -> None:
    """Remove the versions of the libraries that wrote a model: they do not belong to it, but would change its hash."""
    for name, key in (("config_sentence_transformers.json", "__version__"), ("config.json", "transformers_version")):
        for file in model.rglob(name):
            content = read_json_object(file)
            if content.pop(key, None) is not None:
                write_json(file, content)


@contextmanager
def _written(splade: Path, table: Mapping[str, float], trust_remote_code: bool) -> Iterator[Path]:
    """A temporary folder of a SPLADE with this table; it is deleted at the end unless it was renamed."""
    registry.models_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".splade-", dir=registry.models_folder(), ignore_cleanup_errors=True
    ) as temporary:
        made = Path(temporary) / "model"
        write_with_table(splade, made, table, trust_remote_code=trust_remote_code)
        yield made


def _loaded(folder: Path, models: Models, name: str) -> SparseDocumentEncoder:
    from opensearch_neural.models.sparse.encoder import load_sparse

    model = load_sparse(folder, device=models.device, dtype=models.dtype, trust_remote_code=models.trust_remote_code)
    return called(model, name)
