"""`osn data from-clicks`: judgements and training pairs from a click log.

osn data from-clicks log.csv --output clicks --corpus corpus.jsonl
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import CORPUS, FiniteRange
from opensearch_neural.corpus.reader import format_of
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.query_segments import read_query_values
from opensearch_neural.evaluation.tables import table
from opensearch_neural.files import write_json_lines, write_text
from trainers.data.clicks.logs import ClickLog, LogRecords, index_records, read_records, read_rows, read_ubi
from trainers.data.clicks.position_bias import FEW_CLICKS, fit
from trainers.data.loading import read_documents
from trainers.data.texts import normalised

PREFIX = "opensearch:"
POSITIVE, NEGATIVE = 0.5, 0.1
"""Limits of grades in training pairs, as shares of a query's best grade: lowest of a positive, highest of a negative."""
DIGITS = 4
"""Decimals of a grade."""
FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class Judgements:
    """Grades from a click log, and the propensities that they rest on."""

    grades: dict[str, dict[str, float]]
    """{query: {document: grade}}, for queries with a clicked document"""
    looks: dict[tuple[str, str], float]
    """{(query, document): expected number of looks, by the propensities}"""
    places: list[dict[str, float | int | None]]
    """each position's propensity (None if not connected with the first), impressions and clicks"""
    frequencies: Mapping[str, int]
    """{query: number of searches}"""
    too_few: int
    """number of pairs of query and document with too few impressions, or shown only at places without a propensity"""


@click.command(name="from-clicks")
@click.argument("log", required=False, type=FILE)
@click.option("--ubi-queries", default=None, help="Queries in UBI's form: JSON lines, or opensearch:INDEX.")
@click.option("--ubi-events", default=None, help="Events in UBI's form: JSON lines, or opensearch:INDEX.")
@click.option("--click-action", default="click", show_default=True, help="UBI's action_name of a click.")
@click.option(
    "--impression-action", default="impression", show_default=True, help="UBI's action_name of an impression."
)
@click.option("--output", type=FILE, required=True, help="The folder to write.")
@click.option("--corpus", type=FILE, default=None, help=f"Texts of the documents, for training pairs. {CORPUS}.")
@click.option(
    "--depth", type=click.IntRange(1, 60), default=10, show_default=True, help="Positions to use, from the top."
)
@click.option(
    "--min-impressions",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Impressions that a document needs to be judged.",
)
@click.option("--propensities", type=FILE, default=None, help="A file of position and propensity, if they are known.")
@click.option(
    "--test-share",
    type=FiniteRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of the queries for testing.",
)
@connection_options
def from_clicks(
    connection: ConnectionSettings,
    log: Path | None,
    ubi_queries: str | None,
    ubi_events: str | None,
    click_action: str,
    impression_action: str,
    output: Path,
    corpus: Path | None,
    depth: int,
    min_impressions: int,
    propensities: Path | None,
    test_share: float,
) -> None:
    """Make judgements and training pairs from a click log.

    LOG is a csv or tsv of query, document, position (from 1), clicked (0 or 1), with a row for each shown document. For
    logs in UBI's format give --ubi-queries and --ubi-events.

    Users click on documents that are ranked high. The position-based model corrects for that: the chance of a click is the
    position's propensity times the document's attraction. Both are estimated from the log alone (EM; Wang et al., 2018),
    from documents that were shown at several positions for the same query. A grade is the attraction: the chance of a click
    at the first position, from 0 to 1. Each estimate begins with two impressions of mean attraction, so that one lucky
    click proves nothing. A document that was never clicked has grade 0.

    It writes queries.jsonl (with `frequency`), qrels/train.tsv and qrels/test.tsv (with different queries) and
    propensities.tsv. With --corpus it also writes pairs.jsonl for the train queries: positives have at least half of the
    best grade; negatives were seen, but have at most a tenth.

    \b
    osn data from-clicks log.csv --output clicks --corpus corpus.jsonl
    osn data from-clicks --ubi-queries opensearch:ubi_queries --ubi-events opensearch:ubi_events --output clicks
    osn eval --index docs --data clicks --segments head,torso,tail
    osn train sparse --set 'train=[{path: clicks/pairs.jsonl}]' --output models/clicks
    """
    if (log is None) == (ubi_queries is None) or (ubi_queries is None) != (ubi_events is None):
        raise click.UsageError("name one log: a csv or tsv, or both --ubi-queries and --ubi-events")

    def records(place: str) -> LogRecords:
        if place.startswith(PREFIX):
            return index_records(lambda: connect(settings=connection), place.removeprefix(PREFIX))
        return read_records(place)

    if corpus is not None:
        format_of(corpus, None)  # before the log is read, which may take long
    known = None if propensities is None else read_propensities(propensities, depth)
    depth = depth if known is None else len(known)
    if log is not None:
        read = read_rows(log, depth)
    elif ubi_queries is not None and ubi_events is not None:
        read = read_ubi(records(ubi_queries), records(ubi_events), depth, click_action, impression_action)
    judged = judgements(read, min_impressions, known)
    texts = None if corpus is None else read_texts(corpus, judged)  # before anything is written
    write(output, judged, test_share)
    _report(read, judged, output, min_impressions, estimated=known is None)
    _warn_of_empty_part(judged, test_share)
    if texts is not None:
        print(
            f"{write_pairs(output, judged, texts, test_share, min_impressions):,} training pairs in {output}/pairs.jsonl"
        )


def _report(log: ClickLog, judged: Judgements, output: Path, min_impressions: int, *, estimated: bool) -> None:
    """Print what was read, the propensities, and how many judgements they give."""
    for reason, count in log.left_out.items():
        click.echo(f"left out: {count:,} {reason}", err=True)
    searches, impressions = sum(judged.frequencies.values()), sum(log.shown.values())
    print(f"{searches:,} searches, {impressions:,} impressions, {sum(log.clicked.values()):,} clicks\n")
    print(table(["place", "propensity", "impressions", "clicks"], map(_cells, judged.places)))
    few = [
        str(place["place"])
        for place in judged.places
        if place["propensity"] is not None and (place["clicked"] or 0) < FEW_CLICKS
    ]
    if estimated and few:
        click.echo(
            f"warning: fewer than {FEW_CLICKS} clicks at place {', '.join(few)}: propensities and grades are rough there",
            err=True,
        )
    documents = sum(map(len, judged.grades.values()))
    print(
        f"\n{documents:,} judgements of {len(judged.grades):,} queries in {output}; {judged.too_few:,} documents of a query "
        f"were shown fewer than {min_impressions} times, or only at places without a propensity, and have no judgement"
    )


def _warn_of_empty_part(judged: Judgements, test_share: float) -> None:
    """Warn if no query is in the test part, or none in the train part, though the share leaves both some."""
    test = sum(is_test(query, test_share) for query in judged.grades)
    empty = "test" if not test else "train" if test == len(judged.grades) else None
    if empty is not None and 0 < test_share < 1:
        click.echo(
            f"warning: none of the {len(judged.grades):,} queries is in the {empty} part (qrels/{empty}.tsv): each query's "
            "words decide its part; take a longer log, or another --test-share",
            err=True,
        )


def _cells(place: Mapping[str, float | int | None]) -> list[str]:
    known = place["propensity"]
    return [
        str(place["place"]),
        "–" if known is None else f"{known:.3f}",
        f"{place['shown']:,}",
        f"{place['clicked']:,}",
    ]


def judgements(log: ClickLog, min_impressions: int, known: list[float] | None = None) -> Judgements:
    """Grades by the position-based click model. known: the propensities; None estimates them.

    Raises InputError if the log has no clicks or nothing but clicks, is too small, or no document in it changed its place.
    """
    if not log.clicked.total():
        left_out = [f"left out: {count:,} {reason}" for reason, count in log.left_out.items()]
        raise InputError("the log has no clicks", "; ".join(left_out) or None)
    numbers: dict[tuple[str, str], int] = {}
    keys = list(log.shown)
    pairs = np.array([numbers.setdefault((query, document), len(numbers)) for query, document, _ in keys])
    places = np.array([place - 1 for _, _, place in keys])
    shown = np.array([log.shown[key] for key in keys], float)
    clicked = np.array([log.clicked[key] for key in keys], float)
    inseparable = InputError(
        "no document was shown at the first and at another place for the same query, so that the effects of place and "
        "document cannot be separated",
        "take a log from before and after a change of the ranking, or give --propensities",
    )
    if known is None and not (places == 0).any():
        raise inseparable
    bias = fit(pairs, places, shown, clicked, propensity=None if known is None else np.array(known))
    if known is None and places.max() > 0 and np.isfinite(bias.propensity).sum() < 2:
        raise inseparable
    impressions = np.bincount(pairs, shown)
    clicks = np.bincount(pairs, clicked)
    looked = np.bincount(pairs, shown * np.nan_to_num(bias.propensity)[places])
    grades: dict[str, dict[str, float]] = {}
    looks = {}
    too_few = 0
    for (query, document), at in numbers.items():
        if impressions[at] < min_impressions or looked[at] == 0:
            too_few += 1
            continue
        grades.setdefault(query, {})[document] = (
            max(10**-DIGITS, round(float(bias.attraction[at]), DIGITS)) if clicks[at] else 0.0
        )
        looks[query, document] = float(looked[at])
    grades = {query: of_query for query, of_query in grades.items() if any(of_query.values())}
    if not grades:
        raise InputError(
            f"no query has a clicked document that was shown {min_impressions} times",
            "take a longer log, or lower --min-impressions",
        )
    if log.clicked.total() == log.shown.total():
        raise InputError(
            "every shown document was clicked: the log lacks what users passed over",
            "log the documents that were shown and not clicked, too",
        )
    places_shown = [
        {
            "place": place + 1,
            "propensity": float(propensity) if np.isfinite(propensity) else None,
            "shown": int(shown[places == place].sum()),
            "clicked": int(clicked[places == place].sum()),
        }
        for place, propensity in enumerate(bias.propensity)
    ]
    return Judgements(grades, looks, places_shown, log.searches, too_few)


def read_propensities(path: Path, depth: int) -> list[float]:
    """The propensity of each position from 1 on, from a file like `propensities.tsv`. Raises InputError for another file."""
    values = read_query_values(path, ["propensity"])
    try:
        known = [float(values[str(place)]) for place in range(1, min(depth, len(values)) + 1)]
        if not all(0 < value <= 10 for value in known):
            raise ValueError
    except (KeyError, ValueError):
        raise InputError(f"{path}: expected places from 1 on, each with a propensity above 0") from None
    return [value / known[0] for value in known]


def query_id(query: str) -> str:
    """An id that is the same in every log, and allowed in a TREC file."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def is_test(query: str, share: float) -> bool:
    """Whether a query is in the test part; only its words decide: "wi-fi" is in the part of "wi fi"."""
    return int(query_id(normalised(query)), 16) % 10_000 < share * 10_000


def write(folder: Path, judged: Judgements, test_share: float) -> None:
    """Write all files but pairs.jsonl, and remove that of an earlier log, which could hold queries of this test part."""
    (folder / "pairs.jsonl").unlink(missing_ok=True)
    queries = [
        {"_id": query_id(query), "text": query, "frequency": judged.frequencies[query]}
        for query in sorted(judged.grades)
    ]
    write_json_lines(folder / "queries.jsonl", queries)
    for split, of_test in (("train", False), ("test", True)):
        lines = [
            f"{query_id(query)}\t{document}\t{grade:g}\n"
            for query in sorted(judged.grades)
            if is_test(query, test_share) == of_test
            for document, grade in sorted(judged.grades[query].items(), key=lambda item: (-item[1], item[0]))
        ]
        write_text(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))
    known = [
        f"{place['place']}\t{place['propensity']:.6f}\n" for place in judged.places if place["propensity"] is not None
    ]
    write_text(folder / "propensities.tsv", "place\tpropensity\n" + "".join(known))


def read_texts(corpus: Path, judged: Judgements) -> dict[str, str]:
    """{document: title and text} of the judged documents that are in the corpus.

    Raises InputError if none is, or the corpus cannot be read.
    """
    documents = {document for grades in judged.grades.values() for document in grades}
    texts = {document.id: document.contents for document in read_documents(corpus) if document.id in documents}
    if not texts:
        raise InputError(f"{corpus} has none of the {len(documents):,} documents that were clicked or shown")
    if missing := len(documents) - len(texts):
        click.echo(f"left out of pairs: {missing:,} documents that are not in {corpus}", err=True)
    return texts


def write_pairs(folder: Path, judged: Judgements, texts: Mapping[str, str], test_share: float, min_looks: int) -> int:
    """Write pairs.jsonl, a line per positive, and return their number. texts: as `read_texts` returns them"""
    pairs = []
    for query, grades in sorted(judged.grades.items()):
        if is_test(query, test_share):
            continue
        best = max(grades.values())
        known = {document: grade for document, grade in grades.items() if document in texts}
        negatives = [
            texts[document]
            for document, grade in sorted(known.items())
            if grade <= NEGATIVE * best and judged.looks[query, document] >= min_looks
        ]
        pairs += [
            {"query": query, "positive": texts[document], "negatives": negatives}
            for document, grade in sorted(known.items(), key=lambda item: (-item[1], item[0]))
            if grade >= POSITIVE * best
        ]
    return write_json_lines(folder / "pairs.jsonl", pairs)
