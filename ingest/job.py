"""One ingest from its settings: prepare it, run the pipeline, complete it.

`osn ingest`, the demo and the benchmarks all ingest through here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.corpus import CorpusSource, Records, everything, ignore, spooled
from ingest.corpus_from_index import (
    PARTS,
    check_alike,
    check_source,
    is_index,
    long_fields,
    mappings_of,
    plain_fields,
    warn_of_queries,
)
from ingest.counted_idf import check_continued
from ingest.dead_letters import is_dead_letter_file, letters_path
from ingest.index_content import Content, content_by_models, content_of_files
from ingest.model_request import ModelRequest
from ingest.preflight import (
    FIELD_LIMIT,
    check_fields,
    count_fields,
    fields_of_other_kinds,
    open_objects,
    warn_of_parts,
)
from ingest.settings import Models, NewIndex, Writing
from ingest.stored_query_data import keep_encoder, keep_measures, keep_table, raising
from ingest.vectorizers import NotingLargest, for_index
from ingest.vectors.stored_vectors import StoredVectors, find_manifest
from ingest.versions.builds import build_record, note_waiting, open_build, serve, serving_index, warn_of_running
from ingest.versions.swap import Gate, check_swap, check_vectors
from ingest.versions.tunings import carry_tunings
from ingest.writing import pipeline
from ingest.writing.lease import Lease
from ingest.writing.pipeline import Completion, CorpusOfRun, Report
from ingest.writing.stored_documents import Counts, is_empty
from ingest.writing.target import Target, open_target, own_name
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.patience import patience
from opensearch_neural.corpus.documents import FieldNames
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.files import file_stem
from opensearch_neural.index.mapping import FLAT_OBJECT_RELEASE, FLAT_OBJECTS, read_field_mappings
from opensearch_neural.index.record import NAMES, check_counted, read_record, write_record

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """The settings of one ingest."""

    corpus: CorpusSource | None
    """None, or one whose path is empty: the corpus of `vectors`."""
    index: str = ""
    """The index to write; empty if there is an alias."""
    alias: str | None = None
    """Build a new index, and move this alias from the old one to it once it is complete."""
    swap: bool = True
    """Whether the alias is moved; if not, `osn index serve` does it later."""
    models: Models = field(default_factory=Models)
    """The models that encode, unless there are `vectors`."""
    vectors: Path | None = None
    """A folder that `osn encode` wrote; replaces models."""
    new_index: NewIndex = field(default_factory=NewIndex)
    """Mapping and settings, if the index is created."""
    writing: Writing = field(default_factory=Writing)
    """Batches, retries, and how many documents may be rejected."""
    gate: Gate = field(default_factory=Gate)
    """The checks before the alias is moved to the new index."""
    dead_letters: Path | None = None
    """The file for rejected documents. None: INDEX.dead-letters.jsonl."""


def run_job(client: OpenSearch, job: Job, *, show_progress: bool = True) -> Report:
    """Ingest a corpus.

    Raises ModelError if the models are not those of the existing index, InputError if the corpus cannot be read,
    ClusterError if the cluster refuses a request, and the errors of `pipeline.ingest`.
    """
    if bool(job.index) == bool(job.alias):
        raise InputError(
            "an ingest writes either to an index or to a new index under an alias", "give --index or --alias"
        )
    if not job.alias and not job.swap:
        raise InputError("--no-swap is for the build of an alias", "give --alias in place of --index, or leave it out")
    if not (job.alias and job.swap) and job.gate != Gate():
        raise InputError(
            "--require, --allow-shrink, --least-share and --wait-for-replicas are for the moment when an alias moves to a "
            "new index, and this ingest moves none",
            f"give {'them to `osn index serve`' if job.alias else '--alias in place of --index'}, or leave them out",
        )
    stored = None if job.vectors is None else StoredVectors(*find_manifest(job.vectors))
    corpus = corpus_of(job, stored)
    check_whole(job, corpus, corpus.path)
    if job.alias is None:
        return _write(client, job, corpus, stored, show_progress=show_progress)
    with translate_errors(), patience(job.writing.retry.patience), Lease(client, f"alias:{job.alias}") as lease:
        index = open_build(client, job.alias, corpus.name, restart=job.writing.restart)
        if stored is None:
            check_vectors(client, job.alias, index, job.models)
        job = replace(job, index=index)
        return _write(client, job, corpus, stored, alias_lease=lease, show_progress=show_progress)


def _write(
    client: OpenSearch,
    job: Job,
    corpus: CorpusSource,
    stored: StoredVectors | None,
    *,
    alias_lease: Lease | None = None,
    show_progress: bool,
) -> Report:
    """Write the corpus into the index of the job, under a lease of the index. alias_lease: that of the job's alias."""
    letters = letters_path(job.dead_letters, file_stem(job.alias or job.index), corpus.path)
    with ExitStack() as stack:
        stack.enter_context(translate_errors())
        stack.enter_context(patience(job.writing.retry.patience))
        known = read_record(client, job.index)  # refuses a pattern, and an index that `osn` did not write
        names = {} if known is None or stored is not None else known.names
        place = stack.enter_context(spooled(corpus.path, client, id_field=corpus.id_field, usual_id=names.get("id")))
        check_whole(job, corpus, place)
        from_letters = is_dead_letter_file(Path(place))
        corpus_of_run = CorpusOfRun(
            corpus.name,
            corpus.reading,
            letters,
            letters_named=job.dead_letters is not None or from_letters,
            whole_documents=not from_letters,
            whole=None
            if from_letters or corpus.limit is not None
            else FieldNames.of(FieldNames.of_index(names), **corpus.named),
        )
        with Lease(client, f"index:{own_name(client, job.index)}") as lease:
            prepared = prepare(client, job, corpus, stored, place)
            leases = [lease] if alias_lease is None else [lease, alias_lease]
            completion = JobCompletion(client, job, prepared, leases)
            report = pipeline.ingest(
                client,
                prepared.target,
                prepared.content,
                corpus_of_run,
                writing=job.writing,
                alone=bool(job.alias),
                completion=completion,
                show_progress=show_progress,
            )
        return completion.reported(report)


@dataclass(frozen=True)
class PreparedJob:
    """What a job writes, and the index that is open for it."""

    content: Content
    """The records, their vectors, and the index's record."""
    target: Target
    """The index, created or checked."""
    created: bool
    """Whether the index did not exist before."""
    largest: NotingLargest
    """The vectorizer of the content, which notes the largest weights that it makes."""


def prepare(
    client: OpenSearch, job: Job, corpus: CorpusSource, stored: StoredVectors | None, place: str
) -> PreparedJob:
    """Check the first records, find the models, and open the index. place: the file where the corpus is now.

    Raises as `run_job` does, before a document is written.
    """
    meta = read_record(client, job.index)  # another ingest may have ended while this one waited for the lease
    if meta is not None:
        check_continued(job.index, meta, corpus.name)
    fields = {} if job.new_index.mapping is None else read_field_mappings(job.new_index.mapping)
    usual = None if meta is None or stored is not None else FieldNames.of_index(meta.names)
    records = corpus.reader(place, usual)
    longs: list[str] = []
    flat_objects = meta is None and _maps_flat_objects(client)
    if meta is None:
        mapped = {name.partition(".")[0] for name in fields}
        longs_there: set[str] = set()
        other_kinds: set[str] = set()
        plain: dict[str, Any] = {}
        warn_of_parts(corpus.named, fields)
        if is_index(corpus.path):
            mappings = mappings_of(client, corpus.path)
            longs_there = long_fields(mappings)
            other_kinds = fields_of_other_kinds(mappings)
            plain = plain_fields(client, corpus.path, mappings, corpus.names)
            check_source(mappings, corpus.names)
            check_alike(corpus.path, mappings, corpus.names, fields)
            warn_of_queries(corpus.path, mappings, corpus.names, fields, plain)
            fields = {name: mapping for name, mapping in plain.items() if name not in mapped} | fields
        limit = job.new_index.field_limit or FIELD_LIMIT
        paths: set[str] = set()
        objects: set[str] = set()
        open_objects(fields, mapped=paths, objects=objects)
        longs += check_fields(
            records(ignore),
            mapped=paths,
            objects=objects,
            doubles=[name for name in plain.keys() - mapped if fields[name].get("type") == "double"],
            longs=longs_there,
            other_kinds=other_kinds,
            mapped_fields=count_fields(fields) - len(fields.keys() & {*PARTS}),  # which are fields of every index
            limit=limit,
            limit_known=job.new_index.field_limit is not None,
            flat_objects=flat_objects,
            named=corpus.named,
            read_by_model=stored is not None or job.models.encoding,
            of_table=corpus.is_table(place),
        )
        fields |= {name: {**fields[name], "type": "long"} for name in longs if name in fields}
    else:
        fields |= _new_longs(client, job.index, records, fields, corpus.named, of_table=corpus.is_table(place))
    request = ModelRequest(job.models, meta, job.index, records, corpus.name, client, counts_while_writing=True)
    content = _content(job, corpus, stored, request)
    if meta is None:
        if next(everything(records, lambda rejected, records: True), None) is None:
            raise pipeline.holds_nothing(corpus.name)  # before an index is created that this corpus would complete
    elif content.table is None:
        check_counted(job.index, meta)
    target = open_target(
        client,
        job.index,
        content.meta,
        job.new_index,
        corpus_name=corpus.name,
        fields=fields,
        flat_objects=flat_objects,
        longs=longs,
        extra={NAMES: corpus.named or None, **(build_record(job.index, job.alias, corpus.name) if job.alias else {})},
        patience=min(60.0, job.writing.retry.patience),
    )
    if meta is not None:
        target = _with_names(client, target, corpus)
    if job.alias:  # now, before hours of work, and once more at the swap
        warn_of_running(client, serving_index(client, job.alias), target.meta, target.index)
    if content.query is not None and content.meta.sparse is not None:
        keep_encoder(client, target.index, content.query, content.meta.sparse.name)
    vectorizer = for_index(content.vectorizer, target.meta, content.query)
    largest = NotingLargest(vectorizer, raising(client, target.index, target.meta))
    return PreparedJob(replace(content, vectorizer=largest), target, meta is None, largest)


def _maps_flat_objects(client: OpenSearch) -> bool:
    """Whether the cluster's release has flat objects; False if this user may not know it.

    Raises ClusterError if the cluster did not tell in time: a mapping stays as it is made."""
    known = quick_capabilities(client)
    if not known.version and (untold := {"version", "plugins"} & known.notes.keys()):
        reason = known.notes[min(untold)]
        raise ClusterError(
            f"the cluster did not tell its release, which decides how objects are mapped: {reason}",
            "try again when it answers",
        )
    return known.version_number >= FLAT_OBJECT_RELEASE


def _new_longs(
    client: OpenSearch,
    index: str,
    records: Records,
    fields: Mapping[str, Any],
    named: Mapping[str, str],
    *,
    of_table: bool,
) -> dict[str, Any]:
    """{field: its mapping} of fields that an existing index lacks, and whose whole numbers a double does not tell apart.

    It warns of values of such fields as for a new index.
    fields: the mappings of `--mapping`. named: {part of a document: the field that was named for it}
    of_table: whether the corpus is a csv or tsv
    """
    (answer,) = client.indices.get_mapping(index=index).values()
    mappings = answer["mappings"]
    mapped: set[str] = set()
    objects: set[str] = set()
    open_objects({**mappings.get("properties", {}), **fields}, mapped=mapped, objects=objects)
    longs = check_fields(
        records(ignore),
        mapped=mapped,
        objects=objects,
        limit=sys.maxsize,  # the cluster counts fields itself
        flat_objects=any(FLAT_OBJECTS[0] in template for template in mappings.get("dynamic_templates", ())),
        named=named,
        of_table=of_table,
    )
    # An index template may say that other fields are not mapped.
    return {} if mappings.get("dynamic") in ("false", "strict") else {name: {"type": "long"} for name in longs}


def _with_names(client: OpenSearch, target: Target, corpus: CorpusSource) -> Target:
    """The target, after the names of fields that this ingest is given are recorded, if the index holds no other documents.

    If it does, it keeps its names, and a warning says so of each that later documents will not be read by.
    """
    meta = target.meta
    known = FieldNames.of_index(meta.names)
    new = {part: name for part, name in corpus.named.items() if name != meta.names.get(part)}
    if not new:
        return target
    if target.loading_corpus == corpus.name or is_empty(client, target.index):
        meta = meta.with_extra(**{NAMES: {**meta.names, **new}})
        write_record(client, target.index, meta)
        return replace(target, meta=meta)
    for part, name in new.items():
        if name not in (names := getattr(known, part)):
            log.warning(
                "--%s-field %s is for this ingest alone: `osn documents`, and ingests without it, read the %s of documents "
                "of %r as %s",
                part,
                name,
                part,
                target.index,
                " or ".join(names),
            )
    return target


def _content(job: Job, corpus: CorpusSource, stored: StoredVectors | None, request: ModelRequest) -> Content:
    """The content to write, with the stored vectors or with those of the requested models."""
    if stored is None:
        content = content_by_models(request, job.new_index)
    else:
        content = content_of_files(job.models, job.new_index, stored, request.records, request.meta)
        if corpus.limit != stored.manifest.corpus.limit:
            content = replace(content, total=None)  # documents are limited, and records counted
    if job.new_index.dense_type != "float" and content.meta.dense is None:
        raise InputError(
            f"--dense-type {job.new_index.dense_type} needs dense vectors, and this ingest writes none",
            "give --dense MODEL, or leave the option out",
        )
    return content


class JobCompletion(Completion):
    """Keeps what searches use, checks the new index, and moves the alias to it.

    leases: that of the index and, if there is one, that of the alias
    """

    def __init__(self, client: OpenSearch, job: Job, prepared: PreparedJob, leases: Sequence[Lease]) -> None:
        self.client = client
        self.job = job
        self.prepared = prepared
        self.leases = leases
        self._counts: Counts | None = None
        self._replaced: str | None = None

    def still_ours(self) -> None:
        for lease in self.leases:
            lease.check()

    def when_written(self) -> None:
        job, table = self.job, self.prepared.content.table
        if table is not None:
            keep_table(self.client, self.prepared.target.index, table)
        if job.alias:
            self._counts = check_swap(
                self.client, job.alias, job.index, job.gate if job.swap else Gate(allow_shrink=True)
            )

    def when_complete(self, skipped: int) -> None:
        job, content = self.job, self.prepared.content
        query = content.query if content.table is None else content.table.query
        if query is not None:
            target, all_seen = self.prepared.target, self.prepared.created and not skipped
            keep_measures(self.client, target, query, self.prepared.largest, everything=all_seen)
        if not job.alias:
            return
        carry_tunings(self.client, job.alias, job.index, store=job.swap)
        if job.swap:
            wait = job.gate.replica_patience
            self._replaced = serve(self.client, job.alias, job.index, patience=wait, still_ours=self.still_ours)
        else:
            note_waiting(self.client, job.index)

    def reported(self, report: Report) -> Report:
        """The report, with the alias and what its move has changed."""
        alias, waits_for = (self.job.alias, None) if self.job.swap else (None, self.job.alias)
        return replace(report, alias=alias, waits_for=waits_for, replaced=self._replaced, counts=self._counts)


def check_whole(job: Job, corpus: CorpusSource, place: str) -> None:
    """Raise InputError for --remove-others with only a part of a corpus. place: the file where the corpus is now."""
    if job.writing.remove_others and (corpus.limit is not None or is_dead_letter_file(Path(place))):
        raise InputError(
            "--remove-others with a part of a corpus would remove the documents of the other parts",
            "give the whole corpus, or leave the option out",
        )


def corpus_of(job: Job, stored: StoredVectors | None) -> CorpusSource:
    """The named corpus, else the corpus of the stored vectors, read in the same way as by `osn encode`.

    Raises InputError for options that contradict each other.
    """
    if stored is None:
        if job.corpus is None or not job.corpus.path:
            raise InputError("no corpus is named", "osn ingest CORPUS …, or give --vectors")
        return job.corpus
    # --pq is allowed: its model encodes queries, and this machine may not know it.
    models = job.models
    if models.sparse or models.dense or models.tokenizer or models.passages or models.dtype != Models.dtype:
        raise InputError(
            "--vectors holds finished vectors: --sparse, --dense, --tokenizer, --passages and --dtype have no effect",
            "leave them out, or encode again with `osn encode`; only --pq and --dense-from-codes go with --vectors",
        )
    encoded = stored.manifest.corpus
    requested = job.corpus or CorpusSource("")
    if not requested.path and encoded.path == "stdin":
        raise InputError("the corpus was read from standard input when it was encoded", "osn ingest CORPUS --vectors …")
    for part in ("id_field", "title_field", "text_field", "url_field"):
        if getattr(requested, part) not in (None, getattr(encoded, part)):
            used = "the default" if getattr(encoded, part) is None else repr(getattr(encoded, part))
            raise InputError(
                f"--{part.replace('_', '-')} {getattr(requested, part)}: the vectors were encoded with {used}",
                "leave the option out, or encode again with `osn encode`",
            )
    if encoded.limit is not None and (requested.limit or 0) > encoded.limit:
        raise InputError(
            f"--limit {requested.limit}: only the first {encoded.limit} documents were encoded",
            "leave the option out, or encode again with `osn encode`",
        )
    return replace(
        encoded,
        path=requested.path or encoded.path,
        format=requested.format or encoded.format,
        limit=requested.limit or encoded.limit,
    )
