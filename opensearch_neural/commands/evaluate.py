"""`osn eval`: engines of one index against judged queries, side by side, compared with BM25."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import (
    engine_options,
    read_templates,
    refuse_options_without_effect,
    template_paths,
)
from opensearch_neural.commands.evaluate_runs import runs_command
from opensearch_neural.commands.evaluation_options import Evaluation, chosen_baseline, evaluation_options
from opensearch_neural.commands.headings import HeadedGroup
from opensearch_neural.commands.option_groups import warn
from opensearch_neural.corpus.judgements import JudgedQueries
from opensearch_neural.engines import ENGINES, BodyOf, Engines, open_engines
from opensearch_neural.engines.dense import Hybrid
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.errors import ClusterError, InputError, ModelError, Unanswerable
from opensearch_neural.evaluation import engine_comparison
from opensearch_neural.evaluation.engine_comparison import EngineResult
from opensearch_neural.evaluation.measures import relevant_documents
from opensearch_neural.evaluation.provenance import machine_facts
from opensearch_neural.evaluation.unanswered import unanswered_sentences
from opensearch_neural.index.contents import change, contents_of
from opensearch_neural.index.models import models_by_kind, models_with_hashes
from opensearch_neural.progress import Progress
from opensearch_neural.queries import MOST_HITS
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.retrievers.template import absent_count, effects_on_measures, filters_of, template_retriever

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

BASELINE = "bm25"


@click.group(
    name="eval",
    invoke_without_command=True,
    cls=HeadedGroup,
    first="index data split queries qrels engines template baseline measures segments per-query output report json",
)
@click.option("--index", help="The index to search.")
@click.option(
    "--engines",
    help=f"Comma-separated: {','.join(ENGINES)}.  [default: all that the index supports, without "
    f"{', '.join(name for name, engine in ENGINES.items() if not engine.compared)}]",
)
@click.option(
    "--template",
    "template_files",
    multiple=True,
    metavar="NAME=FILE",
    help="A query of your own as one more engine: a JSON body with {{query}} in it, for any index. Repeatable.",
)
@click.option("--template-index", help="The index that templates search.  [default: the --index]")
@click.option("--id-field", help="Field of the templates' index with the ids that judgements use.  [default: _id]")
@click.option(
    "--timed", type=click.IntRange(min=0), default=200, show_default=True, help="How many queries to time; 0: none."
)
@engine_options
@evaluation_options
@connection_options
def evaluate(
    connection: ConnectionSettings,
    index: str | None,
    evaluation: Evaluation,
    engines: str | None,
    template_files: tuple[str, ...],
    template_index: str | None,
    id_field: str | None,
    how: dict[str, Any],
    timed: int,
) -> None:
    """Measure the engines of an index on judged queries, against BM25.

    Measures up to @10 come from searches for 10 hits, as on a results page; deeper measures from deeper searches. Intervals
    are 95% bootstrap intervals over queries. p-values are from a paired randomization test, with Holm's correction if
    several engines are compared. Latencies are of single requests for 10 hits, one at a time, measured at this client;
    encoding is shown separately. `osn eval runs` compares run files, without a cluster.

    \b
    osn eval --index scifact --data data/scifact
    osn eval --index scifact --data data/scifact --engines bm25,high-idf-first --per-query
    osn eval --index articles-pilot --template production=query.json --template-index articles --baseline production \\
        --queries queries.tsv --qrels judged.qrels --segments head,torso,tail --frequencies searches.tsv
    osn eval --index scifact --data data/scifact --engines bm25 --expect bm25:nDCG@10=0.66..0.70 --record results/scifact
    osn eval --index scifact --data data/scifact --report report.html
    osn eval runs bm25.trec mine.trec --qrels judged.qrels
    """
    if index is None:
        raise click.UsageError("Missing option '--index'.")
    templates = read_templates(template_files)
    for option, value in (("--template-index", template_index), ("--id-field", id_field)):
        if value is not None and not templates:
            raise click.UsageError(f"{option} has no effect without --template")
    for name, template in templates.items():
        for part, effect in effects_on_measures(name, template).items():
            warn(f"the template {name} has {part}: {effect}")
    chosen = chosen_engines(engines, templates)
    judged = evaluation.judged()
    segment_of = evaluation.segment_of(judged)
    client = connect(settings=connection)
    with translate_errors():
        opened = opened_index(client, index, how, optional=bool(templates and not chosen))
        if opened is not None and engines is None:
            chosen = available_engines(opened)
        refuse_options_without_effect(chosen)
        warn_of_filters(chosen, templates)
        names = [*chosen, *templates]
        against = chosen_baseline(evaluation.baseline, names, BASELINE)
        expectations = evaluation.expected(names)
        compared = Compared(client, index, opened, chosen, template_index or index, templates, id_field, judged)
        own = check_documents(compared)
        documents = document_count(compared)
        version = quick_capabilities(client).version  # empty for a user who may not ask
        before = {name: contents_of(client, name) for name in compared.indexes}
        results = searched(compared, evaluation.names, own, timed)
        changes = [told for name in before if (told := change(name, before[name], contents_of(client, name)))]
        for told in changes:
            warn(told)
        counted = f"{documents:,} documents, {results[0].measured.queries:,} queries"
        what = "; ".join(filter(None, (counted, models_of(opened), fused_in(opened, chosen), *changes)))
        machine = machine_facts() | ({"opensearch": version} if version else {})
        read = template_paths(template_files)
        summary = evaluation.summary(
            judged, segment_of, results, against, expectations, read, what,
            machine=machine, notes=how_measured(opened, chosen),
        )  # fmt: skip
        titles = functools.partial(engine_comparison.titles, client, index) if opened is not None else None
        evaluation.tell(summary, results, judged, against, titles)


evaluate.add_command(runs_command)


@dataclass(frozen=True)
class Compared:
    """Engines of an index, and the user's own queries as templates, compared on judged queries."""

    client: OpenSearch
    index: str
    """The index of the engines."""
    opened: Engines | None
    """None: only templates are compared."""
    engines: Sequence[str]
    template_index: str
    """The index, alias or pattern that templates search."""
    templates: Mapping[str, BodyTemplate]
    """{name: template}"""
    id_field: str | None
    """The field of templates' hits with the ids that judgements use; None: `_id`."""
    judged: JudgedQueries

    @property
    def indexes(self) -> list[str]:
        """What is searched: the index of the engines, and that of the templates."""
        engines = [self.opened.index] if self.opened is not None and self.engines else []
        return list(dict.fromkeys([*engines, *([self.template_index] if self.templates else [])]))

    @property
    def in_passages(self) -> bool:
        """Whether the index of the engines holds documents in passages."""
        return self.opened is not None and self.opened.meta.passages is not None


def opened_index(client: OpenSearch, index: str, how: Mapping[str, Any], *, optional: bool) -> Engines | None:
    """The engines of the index.

    optional: warn and return None if `osn` did not write the index, if it is an alias of several, or if it does not exist.
    """
    try:
        return open_engines(client, index, **how)
    except (ModelError, ClusterError) as error:
        if not optional:
            raise
        warn(f"only templates are measured: {error.message}")
        return None


def models_of(opened: Engines | None) -> str:
    """The models of an index, in words; empty without any."""
    models = {} if opened is None else models_by_kind(opened.meta)
    return ", ".join(f"{kind} {model.name}" for kind, model in models.items())


def fused_in(opened: Engines | None, engines: Sequence[str]) -> str:
    """What the hybrid engines among these fuse, in words; empty if there are none."""
    hybrids = [name for name in engines if issubclass(ENGINES[name], Hybrid)]
    if opened is None or not hybrids:
        return ""
    (second,) = opened.engine(hybrids[0]).needs()
    return f"{', '.join(hybrids)} of bm25 and {second}"


def how_measured(opened: Engines | None, engines: Sequence[str]) -> list[str]:
    """The models of an index, and the setting of each engine that has one, in words."""
    if opened is None:
        return []
    hows = {engine: opened.engine(engine).how() for engine in engines if not opened.settings.get("exact")}
    return [
        *models_with_hashes(opened.meta),
        *(f"{engine}: {how}" for engine, how in hows.items() if how is not None),
    ]


def document_count(compared: Compared) -> int:
    """The number of documents that are searched; a document split into passages counts once."""
    index = compared.index if compared.engines else compared.template_index
    in_passages = compared.in_passages and index == compared.index
    body = {"query": {"term": {"passage.number": 1}}} if in_passages else None
    return int(compared.client.count(index=index, body=body)["count"])


def chosen_engines(names: str | None, templates: Collection[str] = ()) -> list[str]:
    """The engines named on the command line, each once. Raises InputError for an unknown name, or if none is named."""
    chosen = list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))
    if names is not None and not chosen:
        raise InputError(f"--engines {names!r} names no engine", f"engines: {', '.join([*ENGINES, *templates])}")
    for name in chosen:
        if name not in ENGINES and name not in templates:
            raise InputError(f"there is no engine {name!r}", f"engines: {', '.join([*ENGINES, *templates])}")
    return [name for name in chosen if name in ENGINES]


def available_engines(opened: Engines) -> list[str]:
    """The engines that this index and cluster can serve."""
    return [name for name, engine in ENGINES.items() if engine.compared and opened.serves(name)]


def check_documents(compared: Compared) -> Collection[str]:
    """Warn of relevant documents that an index lacks, and of queries that are documents themselves; returns these queries.

    Raises InputError if an index holds no relevant document.
    """
    client, judged = compared.client, compared.judged
    own: Collection[str] = ()
    if compared.engines:
        remedy = "ingest the corpus of these judgements first; their documents have ids like {id}"
        warn_of_absent(client, compared.index, judged, "parent" if compared.in_passages else None, remedy)
    if compared.opened is not None:
        own = engine_comparison.own_documents(client, compared.index, judged.queries, judged.qrels)
        if own:
            warn(
                f"{len(own):,} queries are documents of the index too, with the same id and text; "
                "each is left out of its own hits, as in BEIR"
            )
    if compared.templates:
        remedy = "judgements have ids like {id}; give the field with such ids as --id-field"
        warn_of_absent(client, compared.template_index, judged, compared.id_field, remedy)
    return own


def warn_of_absent(client: OpenSearch, index: str, judged: JudgedQueries, id_field: str | None, remedy: str) -> None:
    """Warn of relevant documents that the index lacks. Raises InputError if it holds none of them.

    id_field: the field with the ids that judgements use; None: `_id`. remedy: for that error, with {id} for one of the ids
    """
    relevant = relevant_documents(judged.qrels)
    absent = absent_count(client, index, relevant, id_field)
    if relevant and absent == len(relevant):
        what = f"none of the {absent:,} documents judged relevant is in the index {index!r}"
        raise InputError(what, remedy.format(id=repr(relevant[0])))
    if absent:
        warn(
            f"{absent:,} of the {len(relevant):,} documents judged relevant are not in the index {index!r}; "
            "no engine can find these"
        )


def warn_of_filters(engines: Sequence[str], templates: Mapping[str, BodyTemplate]) -> None:
    """Warn of templates that filter their hits, if they are compared with engines, which search all documents."""
    for name, template in templates.items():
        if engines and (filters := filters_of(template)):
            warn(
                f"the template {name} filters its hits ({', '.join(filters)}), and the engines of osn do not: a part of "
                "their difference may come from the filter alone (docs/how-to/production-query.md)"
            )


def warn_of_engines(opened: Engines, engines: Collection[str]) -> None:
    for engine in engines:
        for warning in opened.engine(engine).warnings():
            warn(warning)


def refuse_without_answers(engine: str, unanswered: Mapping[str, Unanswerable], queries: Sequence[str]) -> None:
    """Raise the first query's reason if an engine could answer none: its zeros would be measured like an engine's hits."""
    if queries and len(unanswered) == len(queries):
        reason = unanswered[queries[0]]
        reason.message = f"{engine} can answer none of the {len(queries):,} queries; {queries[0]!r}: {reason.message}"
        raise reason


def searched(
    compared: Compared, measures: Sequence[str], own_documents: Collection[str], timed: int
) -> list[EngineResult]:
    """The result of each engine and template. If an engine searches only a part of the documents, its result says which of
    its pages are proved exact.

    A query that an engine cannot answer gets no hits from it, with a warning, and is not timed.
    """
    client, opened, templates = compared.client, compared.opened, compared.templates
    queries, qrels = compared.judged.queries, compared.judged.qrels
    bodies: dict[str, BodyOf] = {}
    indexes = dict.fromkeys(templates, compared.template_index)
    if opened is not None:
        bodies = {engine: opened.body_of(engine) for engine in compared.engines}
        indexes |= dict.fromkeys(compared.engines, opened.index)
        warn_of_engines(opened, compared.engines)
    bodies |= {name: template.body for name, template in templates.items()}
    passes = len(bodies) * len(engine_comparison.sizes_of(measures))
    passes += sum(issubclass(ENGINES[engine], Windowed) for engine in compared.engines)
    total = len(queries) * passes + len(bodies) * min(timed, len(queries))
    unanswered: dict[str, dict[str, Unanswerable]] = {name: {} for name in bodies}
    with Progress("eval", total=total, unit="queries") as shown:
        advance = shown.update

        def retriever(name: str) -> OpenSearchRetriever:
            how: dict[str, Any] = {"progress": advance, "unanswered": unanswered[name].__setitem__}
            if name in templates:
                how["id_field"] = compared.id_field
                return template_retriever(client, indexes[name], name, templates[name], **how)
            return OpenSearchRetriever(client, indexes[name], name, bodies[name], **how)

        results = []
        for name, without in unanswered.items():
            most = MOST_HITS if name in templates else ENGINES[name].most_hits
            result = engine_comparison.run_retriever(
                retriever(name), queries, qrels, measures, own_documents=own_documents, most=most
            )
            refuse_without_answers(name, without, list(queries))
            if opened is not None and name not in templates:
                answered = [text for query, text in queries.items() if query not in without]
                certain = engine_comparison.certified_queries(client, opened, name, answered, progress=advance)
                if certain is not None:
                    shown.update(len(queries) - len(answered), skipped=True)
                result = replace(result, certified=certain or None)
            results.append(result)
        for line in unanswered_sentences(unanswered, list(queries), "get no hits from {engines} and are not timed"):
            warn(line)
        answered = [text for query, text in queries.items() if not any(query in of for of in unanswered.values())]
        texts = answered[:timed]
        shown.update(len(unanswered) * (min(timed, len(queries)) - len(texts)), skipped=True)
        if texts:
            times = engine_comparison.time_engines(client, indexes, bodies, texts, progress=advance)
            results = [
                replace(result, latency=times[result.engine][0], encode_ms=times[result.engine][1])
                for result in results
            ]
        return results
