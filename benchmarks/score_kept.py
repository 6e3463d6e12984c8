"""`osn bench score-kept`: the loss of two phases against one, by window and index size.

    osn bench score-kept --data data/scifact --documents 10000,100000 --record benchmarks/results/score-kept

It shows for each window how much of the exact score is kept as the index grows, and for how many queries the window proves
that its page is the exact one. The result helps to choose a window. It needs no judgements, which drawn documents do not
have; `osn bench load --data` on an index of the set itself shows the loss by judgements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.experiment import facts, publish, record_option
from benchmarks.grown.index import Growth, grown_to_sizes, set_of_size
from benchmarks.load.quality import nearness_rows
from benchmarks.load.variants import TWO_PHASE, Variant, page_of, parse_variants, with_options
from benchmarks.load.workload import LoadTarget, Workload, prepared
from benchmarks.options import NumberList, of_options, setting, setting_options
from benchmarks.turns import Search, Seconds, fastest, ratio, say
from opensearch_neural import queries
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import Renamed
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import Engines
from opensearch_neural.engines.engine import Engine
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.evaluation.engine_comparison import CERTIFIED, certified_queries
from opensearch_neural.evaluation.results import MeasuredEngine, Row
from opensearch_neural.models.sparse.pruning import Pruning

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

WIDENED, SEARCHED_WHOLE, LAST_WINDOW, TIME = "widened", "searched whole", "window until certain", "time until certain"
FILLED, FILL_TIME, WHOLE_TIME = "filled", "time to fill an empty page", "time of the whole search"
WIDENED_BY = 4
WIDEST = 1_000
"""Beyond this window all documents are searched."""


@dataclass(frozen=True)
class ScoreKeptOptions:
    """What `osn bench score-kept` measures."""

    data: Path = setting(None, "A folder in BEIR layout.", required=True, type=click.Path(path_type=Path))
    split: str = setting("train", "Split whose queries are searched.")
    limit_queries: int = setting(200, "Only the first N queries.")
    documents: tuple[int, ...] = setting(
        (10_000, 100_000), "Documents of each index.", shown="10000,100000", type=NumberList(int, distinct=True)
    )
    sparse: str = setting("lexical", "Sparse model, trained or lexical.")
    vectors: Path | None = setting(None, "A folder of `osn encode`.", type=click.Path(path_type=Path))
    prune_postings: str | None = setting(None, "Terms that postings hold, as for `osn ingest`.", type=str)
    engines: str = setting("windows", "Engines, as for `osn bench load`; the preset `processor` is a rival.")
    prefix: str = setting("osn-score-kept", "Indexes are called INDEX-SIZE.", option="--index")
    keep: bool = setting(False, "Keep the indexes for the next run.", option="--keep-indexes --keep", cls=Renamed)
    passes: int = setting(
        3,
        "How often each query is timed, to measure the cost of a certain page; 0: do not measure it.",
        type=click.IntRange(min=0),
    )
    seed: int = setting(0, "Seed of the drawn documents and the bootstrap.")


@click.command("score-kept")
@setting_options(ScoreKeptOptions)
@record_option()
@connection_options
def score_kept(connection: ConnectionSettings, record: Path | None, **values: Any) -> None:
    """How much of the exact score the first ten hits keep, and how many of the exact ten they are, by window and index size.

    The score kept is the sum of the exact scores of the ten returned hits, divided by that of the exact best ten. Certified
    is the share of queries whose window proves that the page is the exact one. Documents are drawn as in `osn bench grow`.

    Further rows measure a window that grows by a factor of 4 until its page is certain: the share of queries whose window
    grew, the share that searched all documents because a window of 1,000 was not enough, the mean window that was enough,
    and the time of all queries by one client (the fastest of --passes), as a ratio to the time of the first window and of
    the search of all documents (`osn search --exact`). The load benchmark measures all other times.

    With --prune-postings, `sparse` and `high-idf-first` have rows on such an index: the share of pages that need a second
    request to be filled, and the times of such a request for an empty page and of `osn search --exact`, both as ratios to
    the time of the page.
    """
    options = of_options(ScoreKeptOptions, values)
    variants, passes, seed = parse_variants(options.engines), options.passes, options.seed
    texts = dict(islice(BeirData.load(options.data, options.split).queries.items(), options.limit_queries))
    client = connect(settings=connection)
    rule = Pruning.parse(options.prune_postings) if options.prune_postings else None
    drawn: dict[str, Any] = {"sparse": options.sparse, "vectors": options.vectors, "prune_postings": rule, "seed": seed}
    first = Growth(str(options.data), options.prefix, min(options.documents, default=0), **drawn)
    rows: list[Row] = []
    for growth in grown_to_sizes(client, first, options.documents, say=say):
        with prepared(client, LoadTarget(connection), growth.index, variants, list(texts.values())) as workload:
            set_ = set_of_size(growth.documents)
            rows += nearness_rows(client, workload, texts, set_, seed=seed)
            rows += certified_rows(client, workload, list(texts.values()), set_, passes=passes, seed=seed)
            if rule is not None and passes:
                rows += pruned_rows(client, workload, list(texts.values()), set_, passes=passes, seed=seed)
            if not options.keep:
                client.indices.delete(index=growth.index)
    title = f"Score kept by window and documents: {options.data.name}, {Path(options.sparse).name}"
    publish(rows, [], title=title, data=[options.data], seeds=[seed], record=record)


def certified_rows(
    client: OpenSearch, workload: Workload, texts: list[str], set_: str, *, passes: int, seed: int
) -> list[Row]:
    """The share of queries whose page is proved to be the exact one, for each engine that can prove it.

    passes: if above 0, also the cost of widening the window until all pages are proved, see `certain_cost_rows`.
    """
    rows = []
    for variant, engines in windowed_variants(workload):
        certain = certified_queries(client, engines, variant.engine, texts)
        if not certain:
            continue
        rows += share(set_, variant.name, CERTIFIED, certain)
        if passes:
            windowed, page, searches = ways_to_search(client, engines, variant)
            assert isinstance(windowed, Windowed)
            until_certain = partial(window_until_certain, client, windowed, page, searches["whole"])
            last, seconds = fastest({"certain": until_certain, **searches}, texts, passes)
            rows += certain_cost_rows(set_, variant.name, windowed.window(), last["certain"], seconds, seed)
    return rows


def windowed_variants(workload: Workload) -> Iterator[tuple[Variant, Engines]]:
    """(variant, its engines with its options), without those that search all documents or by another's processor"""
    for variant in workload.variants:
        if not variant.whole and variant.engine != TWO_PHASE:
            yield variant, with_options(variant, workload.engines_of(variant))


def ways_to_search(
    client: OpenSearch, engines: Engines, variant: Variant
) -> tuple[Engine, dict[str, Any], dict[str, Search]]:
    """(the variant's engine, its page, {"window", "whole": a search with its window, and of all documents})"""
    windowed, page = engines.engine(variant.engine), engines.page(**page_of(variant))
    exact = engines.with_settings(exact=True).engine(variant.engine)
    searches: dict[str, Search] = {
        "window": lambda text: client.search(index=engines.index, body=windowed.body(text, page)),
        "whole": lambda text: client.search(index=engines.index, body=exact.body(text, page)),
    }
    return windowed, page, searches


def window_until_certain(
    client: OpenSearch, windowed: Windowed, page: dict[str, Any], whole: Search, text: str
) -> int | None:
    """Search with growing windows, from the engine's own, until the page is certified. Returns the window; None if it took
    a search of all documents."""
    window = windowed.window()
    largest: dict[str, float] = {}
    while window <= WIDEST:
        if windowed.certified(client, text, page, largest, window=window):
            return window
        window *= WIDENED_BY
    whole(text)
    return None


def certain_cost_rows(
    set_: str, engine: str, first: int, last: list[int | None], seconds: Seconds, seed: int
) -> list[Row]:
    """The shares of queries whose window grew, and that searched all documents; the mean window that was enough for the
    others; and the time of all queries until their page was certain, as ratios to other searches.

    first: the window that each query began with; last: the window whose page was certain, None if all documents were
    searched; seconds: of the ways "certain", "window" and "whole"
    """
    rows = [
        *share(set_, engine, WIDENED, [window != first for window in last]),
        *share(set_, engine, SEARCHED_WHOLE, [window is None for window in last]),
    ]
    if enough := [window for window in last if window is not None]:
        rows += facts(set_, MeasuredEngine(engine), {LAST_WINDOW: sum(enough) / len(enough)}, len(enough))
    for baseline, way in (("its window", "window"), ("the whole search", "whole")):
        rows.append(time_ratio(set_, engine, TIME, seconds["certain"], baseline, seconds[way], seed))
    return rows


def share(set_: str, engine: str, measure: str, of_queries: list[bool]) -> list[Row]:
    """A row of the share of queries for which something is so."""
    return facts(set_, MeasuredEngine(engine), {measure: sum(of_queries) / len(of_queries)}, len(of_queries))


def time_ratio(
    set_: str, engine: str, measure: str, seconds: list[float], baseline: str, of_baseline: list[float], seed: int
) -> Row:
    """The time of all queries as a ratio to that of the baseline, with the interval over queries."""
    estimate = ratio(seconds, of_baseline, seed)
    return Row(set_, engine, measure, *estimate, len(seconds), baseline=baseline, kind="ratio")


def pruned_rows(
    client: OpenSearch, workload: Workload, texts: list[str], set_: str, *, passes: int, seed: int
) -> list[Row]:
    """For engines whose pages may be short because of pruned postings: the share of pages that need a second request to be
    filled, and the times of such a request for an empty page and of a search of all documents, as ratios to the page's.

    Only queries with known tokens count.
    """
    rows = []
    for variant, engines in windowed_variants(workload):
        windowed, page, searches = ways_to_search(client, engines, variant)
        if not any(option.name == "exact" for option in windowed.options):
            continue  # it cannot search all documents
        known = [text for text in texts if queries.unsearched(windowed.body(text, page), 0) is not None]
        if not known:
            continue
        ways: dict[str, Search] = {"fill": partial(filled, client, windowed, page), **searches}
        answers, seconds = fastest(ways, known, passes)
        short = [len(answer["hits"]["hits"]) < variant.size for answer in answers["window"]]
        rows += share(set_, variant.name, FILLED, short)
        for measure, way in ((FILL_TIME, "fill"), (WHOLE_TIME, "whole")):
            rows.append(time_ratio(set_, variant.name, measure, seconds[way], "its window", seconds["window"], seed))
    return rows


def filled(client: OpenSearch, windowed: Engine, page: dict[str, Any], text: str) -> Any:
    """The answer to the second request that fills an empty page."""
    return client.search(index=windowed.opened.index, body=queries.unsearched(windowed.body(text, page), 0))
