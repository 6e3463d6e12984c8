"""The demo's corpus: the documentation strings of the standard library and of the installed Python packages.

    osn data corpus python-docs --output python-docs --limit 8000        a subset for the demo
    osn data corpus python-docs --output python-docs-all --all           all of it, to measure scale

Sources are parsed and never imported. A document is a public class, function, method or module with a docstring of 20
words or more: its qualified name (title), its signature and its docstring (text).

Queries are held out: the first sentence of a docstring is taken out of its document, and must find this document. A
top-level module's queries are all in `train` or all in `test`, by a hash of its name alone, so that no other seed or limit
moves a test query into training.

The same installation and the same options give the same bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.demo.python_objects import (
    MIN_WORDS,
    Documented,
    ModuleFolder,
    installed_sources,
    read_objects,
)
from opensearch_neural.commands.option_groups import output_option, seed_option
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.judgements import write_beir
from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced

QUERY_WORDS = range(4, 31)
TEST_SHARE = 0.3  # of top-level modules
DEMO_TRAIN_QUERIES, DEMO_TEST_QUERIES = 1500, 300


# ---------------------------------------------------------------- choosing


def _fraction(*parts: str) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big") / 2**64


def split_of(package: str) -> str:
    """`train` or `test` for a top-level module."""
    return "test" if _fraction("split", package) < TEST_SHARE else "train"


def spread(objects: Iterable[Documented], total: int, seed: int) -> list[Documented]:
    """At most `total` objects; a package's share grows with the square root of its size, so that small ones are not lost.

    Within a package the choice is by a hash of the name and the seed, so a smaller total is a subset of a larger one.
    """
    packages: dict[str, list[Documented]] = defaultdict(list)
    for item in objects:
        packages[item.package].append(item)
    ranked = []
    for members in packages.values():
        members.sort(key=lambda item: (_fraction(str(seed), item.name), item.name))
        ranked += [((rank + 0.5) / math.sqrt(len(members)), item.name, item) for rank, item in enumerate(members)]
    ranked.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in ranked[:total]]


def choose(objects: Sequence[Documented], limit: int | None, seed: int) -> list[Documented]:
    """At most `limit` objects, half of them from the standard library; either half grows if the other has too few."""
    if limit is None or limit >= len(objects):
        return list(objects)
    library = [item for item in objects if item.standard_library]
    others = [item for item in objects if not item.standard_library]
    share = max(min(len(library), math.ceil(limit / 2)), limit - len(others))
    chosen = {item.name for item in (*spread(library, share, seed), *spread(others, limit - share, seed))}
    return [item for item in objects if item.name in chosen]


# ---------------------------------------------------------------- queries

# The end of a sentence, but not of "e.g." and its like.
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)(?<!\bal)[.!?](?=\s+[^a-z\s]|\s*$)")
_ROLE = re.compile(r":[a-zA-Z:]+:`[~!]?([^`<]*?)(?:\s*<[^>`]*>)?`")
_WORD = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be by can class for from function given has if in instance into is it its method module "
        "new object of on one or return returns self set sets that the this to true false use used using value when "
        "which with"
    )
)


@dataclass(slots=True, frozen=True)
class HeldOut:
    """A query made of an object's first sentence, and the object's docstring without it."""

    query: str
    """The first sentence."""
    rest: str
    """The docstring without it."""


def hold_out(item: Documented) -> HeldOut | None:
    """The first sentence of a docstring as a query, if it is prose and enough is left without it."""
    paragraph = item.docstring.partition("\n\n")[0]
    end = _SENTENCE_END.search(paragraph)
    sentence = paragraph[: end.end()] if end else paragraph
    query = _prose(sentence)
    words = query.split()
    if len(words) not in QUERY_WORDS or not _is_prose(sentence, words):
        return None
    named = {word.lower() for word in _WORD.findall(f"{_spaced(item.name)} {item.name}")}
    telling = {word.lower() for word in _WORD.findall(query)} - named - _COMMON
    if len(telling) < 2:
        return None
    rest = item.docstring[len(sentence) :]
    if _key(query) in _key(rest):
        copy = r"\s+".join(map(re.escape, sentence.rstrip(".!?").split()))
        rest = re.sub(copy + r"[.!?]?", "", rest, flags=re.IGNORECASE)
    rest = re.sub(r"\n{3,}", "\n\n", rest).strip()
    if len(rest.split()) < MIN_WORDS or _key(query) in _key(rest):
        return None
    return HeldOut(query, rest)


def _prose(sentence: str) -> str:
    """A sentence of a docstring without markup and without its full stop."""
    plain = _ROLE.sub(r"\1", sentence)
    plain = plain.replace("``", "").replace("`", "").replace("**", "")
    return " ".join(plain.split()).rstrip(".!: ")


def _is_prose(sentence: str, words: Sequence[str]) -> bool:
    """Whether a first sentence is prose, and not a heading with its rule, a signature, a doctest, a field or a licence."""
    if re.search(r"[=\-~*#^_]{4}|>>>|::|->|\w\(\w*[,=]|https?:", sentence) or sentence.startswith(
        (":", "@", ".. ", "#")
    ):
        return False
    if re.match(r"copyright|licensed|author", sentence, re.I) or re.search(r"\b(e\.g|i\.e)\W*$", sentence):
        return False
    plain = sum(bool(re.fullmatch(r"[(\"']*[A-Za-z][A-Za-z'’-]*[)\"',;:.]*", word)) for word in words)
    return plain >= 0.7 * len(words) and sentence.isascii()


def _spaced(name: str) -> str:
    """A name with its capitalized words apart: "JSONEncoder" is "JSON Encoder"."""
    return re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3 \2", name)


def _key(text: str) -> str:
    """The form in which sentences are compared: words in lower case, a blank around each."""
    words = _WORD.findall(_ROLE.sub(r"\1", text).lower())
    return f" {' '.join(words)} "


def _sentence_keys(docstring: str) -> set[str]:
    keys: set[str] = set()
    for paragraph in docstring.split("\n\n"):
        pieces = [*_SENTENCE_END.split(paragraph), *paragraph.split("\n")]
        keys.update(key for key in map(_key, pieces) if key.count(" ") > QUERY_WORDS.start)
    return keys


def held_out_queries(
    objects: Sequence[Documented], train: int | None, test: int | None, seed: int
) -> dict[str, tuple[str, HeldOut]]:
    """{object name: (split, what is held out)}: at most `train` and `test` of them, spread over the packages.

    A sentence is not used if several documents hold it, since only one of its answers would be judged, or if two documents
    would read the same without it.
    """
    holders = Counter(key for item in objects for key in _sentence_keys(item.docstring))
    candidates = {
        item.name: held_out for item in objects if (held_out := hold_out(item)) and holders[_key(held_out.query)] <= 1
    }
    texts = Counter(item.text() for item in objects)
    texts.update(item.text(candidates[item.name].rest) for item in objects if item.name in candidates)
    queries = Counter(held_out.query.lower() for held_out in candidates.values())

    def is_unique(item: Documented, held_out: HeldOut) -> bool:
        return queries[held_out.query.lower()] == 1 and texts[item.text(held_out.rest)] == 1

    usable = [item for item in objects if item.name in candidates and is_unique(item, candidates[item.name])]
    chosen = {}
    for split, most in (("train", train), ("test", test)):
        part = [item for item in usable if split_of(item.package) == split]
        for item in spread(part, len(part) if most is None else most, seed):
            chosen[item.name] = (split, candidates[item.name])
    return chosen


# ---------------------------------------------------------------- writing


@dataclass(frozen=True)
class CorpusCounts:
    """What the corpus holds."""

    documents: int
    """Objects that became documents."""
    standard_library: int
    """Documents of the standard library."""
    packages: int
    """Top-level modules beside the standard library."""
    train_queries: int
    """Judged queries of the split train."""
    test_queries: int
    """Judged queries of the split test."""


def build(
    out: str | Path,
    limit: int | None = None,
    *,
    seed: int = 0,
    train_queries: int | None = None,
    test_queries: int | None = None,
    sources: Sequence[ModuleFolder] | None = None,
) -> CorpusCounts:
    """Write the corpus, its queries and its judgements to the folder `out` in BEIR layout.

    limit: the most documents; None takes all
    train_queries, test_queries: the most of each; None takes all that can be held out
    sources: where to look; None looks where this Python finds its standard library and its packages

    The folder is written under another name and then renamed; a folder that an earlier call wrote is replaced.
    Raises InputError if `out` is anything else, or if no documented object was found.
    """
    out = Path(out)
    if out.exists() and not _is_ours(out):
        raise InputError(f"{out} exists and was not written by `osn data corpus python-docs`", "name another folder")
    objects = choose(read_objects(installed_sources() if sources is None else sources), limit, seed)
    if not objects:
        raise InputError("no documented Python object was found", "is this a Python without its library's sources?")
    queries = held_out_queries(objects, train_queries, test_queries, seed)
    splits = Counter(split for split, _ in queries.values())
    counts = CorpusCounts(
        len(objects),
        standard_library=sum(item.standard_library for item in objects),
        packages=len({item.package for item in objects if not item.standard_library}),
        train_queries=splits["train"],
        test_queries=splits["test"],
    )
    with replaced(out) as beside:
        _write(beside, objects, queries)
        (beside / "README.md").write_text(_readme(counts, limit, seed), "utf-8")
        if out.exists():
            shutil.rmtree(out)
    return counts


_MARK = "<!-- written by osn corpus python-docs -->"


def _is_ours(out: Path) -> bool:
    if not out.is_dir():
        return False
    readme = out / "README.md"
    return not any(out.iterdir()) or (readme.is_file() and _MARK in readme.read_text("utf-8", "replace"))


def _write(folder: Path, objects: Sequence[Documented], queries: dict[str, tuple[str, HeldOut]]) -> None:
    names = [item.name for item in objects if item.name in queries]
    splits = {
        split: [f"summary:{name}\t{name}\t1" for name in names if queries[name][0] == split]
        for split in ("train", "test")
    }
    documents = (_document(item, queries.get(item.name)) for item in objects)
    write_beir(folder, documents, {f"summary:{name}": queries[name][1].query for name in names}, splits)


def _document(item: Documented, query: tuple[str, HeldOut] | None) -> Document:
    text = item.text(query[1].rest) if query else item.text()
    # Add the name in words: a word-piece tokenizer splits "json.JSONEncoder" or "read_csv" into words, a text analyzer does
    # not, and a comparison in which BM25 cannot see half of the title would prove nothing.
    text = f"{' '.join(_WORD.findall(_spaced(item.name)))}\n\n{text}"
    fields = {"package": "python" if item.standard_library else item.package, "module": item.module, "kind": item.kind}
    return Document(item.name, text, item.name, None, fields)


def _readme(counts: CorpusCounts, limit: int | None, seed: int) -> str:
    rows = "\n".join(f"| {name.replace('_', ' ')} | {number:,} |" for name, number in asdict(counts).items())
    most = f"at most {limit:,}" if limit else "all"
    return f"""{_MARK}
# Python documentation strings

Made by `osn data corpus python-docs` from Python {sys.version.split()[0]} with seed {seed} and {most} documents. A query is
the first sentence of a docstring and was taken out of its document, the one judged relevant.

| | |
|---|---:|
{rows}

The texts are their packages' authors', under the packages' licences: this folder is for measuring on the machine that
made it, not for passing on.
"""


@click.group()
def corpus() -> None:
    """Make a corpus to try things on."""


@corpus.command("python-docs")
@output_option("The folder to write, in BEIR layout.", required=True)
@click.option("--limit", type=click.IntRange(min=1), help="Most documents to take.  [default: 8000]")
@click.option("--all", "everything", is_flag=True, help="All documents, and every query that can be held out.")
@seed_option("Another seed makes another choice of documents.")
def python_docs(out: Path, limit: int | None, everything: bool, seed: int) -> None:
    """The documentation strings of the installed Python packages and of the standard library.

    Sources are parsed, never imported. Queries are first sentences, taken out of the documents they are to find.

    \b
    osn data corpus python-docs --output python-docs
    osn data corpus python-docs --output python-docs-all --all
    """
    if everything and limit is not None:
        raise click.UsageError("--all and --limit exclude each other")
    if everything:
        counts = build(out, seed=seed)
    else:
        train, test = DEMO_TRAIN_QUERIES, DEMO_TEST_QUERIES
        counts = build(out, limit or 8000, seed=seed, train_queries=train, test_queries=test)
    click.echo(
        f"{out}: {counts.documents:,} documents ({counts.standard_library:,} of the standard library, the others of "
        f"{counts.packages:,} packages), {counts.train_queries:,} train and {counts.test_queries:,} test queries"
    )
