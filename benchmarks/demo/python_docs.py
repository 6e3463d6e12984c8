"""The demo's corpus: the documentation strings of the standard library and of the installed Python packages.

    osn corpus python-docs --out python-docs --limit 8000        a subset for the demo
    osn corpus python-docs --out python-docs-all --all           all of it, to measure scale

Sources are parsed and never imported. Every documented public module, class, function and method whose docstring has
20 words or more is a document: its qualified name (title), its signature and its docstring (text). What a public module
imports from a private one is public under the public one's name (`scipy.optimize.minimize`).

Queries are held out: the first sentence of a docstring is taken out of its document, and that document is the one to be
found by it. A top-level module's queries are all in `train` or all in `test`, by a hash of its name alone, so that
neither another seed nor another limit ever moves what was tested on into training.

The same installation and the same options give the same bytes.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import json
import logging
import math
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from tqdm import tqdm

from opensearch_neural.corpus.documents import MAX_ID_BYTES, Document
from opensearch_neural.errors import InputError

log = logging.getLogger(__name__)

MIN_WORDS = 20  # of a docstring, and of what is left of one without its first sentence
QUERY_WORDS = range(4, 31)
TEST_SHARE = 0.3  # of top-level modules
DEMO_TRAIN_QUERIES, DEMO_TEST_QUERIES = 1500, 300
SIGNATURE_CHARACTERS = 400

_TESTS = re.compile(r"tests?|test_.*|.*_tests?|conftest")
_VENDORED = {
    "vendor",
    "vendored",
    "_vendor",
    "_vendored",
    "third_party",
    "thirdparty",
    "extern",
    "externals",
    "externs",
}
_NOT_LIBRARIES = {"site-packages", "dist-packages", "opensearch_neural", "trainers", "ingest", "benchmarks"}

# The standard library's modules that have no page of their own under docs.python.org/library.
_NO_PAGE = {
    *("antigravity", "encodings", "genericpath", "idlelib", "lib2to3", "ntpath", "nturl2path", "opcode"),
    *("posixpath", "pydoc_data", "sre_compile", "sre_constants", "sre_parse", "this", "turtledemo"),
}
# Its submodules that have one; the others are described on their package's.
_SUBMODULE_PAGES = {
    *("collections.abc", "concurrent.futures", "curses.ascii", "curses.panel", "curses.textpad", "email.charset"),
    *("email.contentmanager", "email.encoders", "email.errors", "email.generator", "email.header"),
    *("email.headerregistry", "email.iterators", "email.message", "email.mime", "email.parser", "email.policy"),
    *("email.utils", "html.entities", "html.parser", "http.client", "http.cookiejar", "http.cookies", "http.server"),
    *("importlib.metadata", "importlib.resources", "importlib.resources.abc", "logging.config", "logging.handlers"),
    *("multiprocessing.shared_memory", "tkinter.colorchooser", "tkinter.dnd", "tkinter.font", "tkinter.messagebox"),
    *("tkinter.scrolledtext", "tkinter.ttk", "unittest.mock", "urllib.error", "urllib.parse", "urllib.request"),
    *("urllib.robotparser", "xml.dom", "xml.dom.minidom", "xml.dom.pulldom", "xml.etree.ElementTree", "xml.sax"),
    *("xml.sax.handler", "xml.sax.saxutils", "xmlrpc.client", "xmlrpc.server"),
}


@dataclass(frozen=True)
class Source:
    """A folder of importable modules and packages."""

    folder: Path
    standard_library: bool = False


@dataclass(slots=True, frozen=True)
class Documented:
    """A public object and its docstring. `package` is its top-level module."""

    name: str
    kind: str
    module: str
    signature: str
    docstring: str
    standard_library: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def text(self) -> str:
        return _text(self.signature, self.docstring)


@dataclass
class Counts:
    """What `build` wrote, and what it passed over."""

    documents: int = 0
    train_queries: int = 0
    test_queries: int = 0
    packages: int = 0
    standard_library: int = 0
    files: int = 0
    unreadable: int = 0
    short: int = 0
    repeated: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


def installed_sources() -> list[Source]:
    """The standard library, and the folders that this Python's packages are installed in."""
    paths = sysconfig.get_paths()
    sites = dict.fromkeys([paths["purelib"], paths["platlib"]])
    return [Source(Path(paths["stdlib"]), True), *(Source(Path(site)) for site in sites)]


# ---------------------------------------------------------------- reading sources


@dataclass(slots=True, frozen=True)
class SourceFile:
    """A module's file. `public`: no part of the module's name begins with an underscore."""

    path: Path
    module: str
    public: bool
    is_package: bool
    standard_library: bool


@dataclass(slots=True)
class ParsedModule:
    """What one source file defines and what it takes from others."""

    objects: dict[str, list[Documented]]
    """By the name of the module's own class or function, with what is inside it; "" is the module itself."""
    imports: dict[str, tuple[str, str]]
    """{name here: (module, name there)} of `from … import …`."""
    stars: list[str]
    """The modules of `from … import *`."""
    exported: list[str] | None
    """`__all__`, where it is a plain list."""


def source_files(source: Source) -> list[SourceFile]:
    """The modules below a source, tests and vendored copies left out, sorted."""
    found = []
    for folder, folders, files in os.walk(source.folder):
        folders[:] = sorted(name for name in folders if _is_module(name))
        parts = Path(folder).relative_to(source.folder).parts
        for file in sorted(files):
            stem = file.removesuffix(".py")
            is_package = stem == "__init__"
            if stem == file or not _is_module(stem) or stem == "__main__" or (is_package and not parts):
                continue
            name = parts if is_package else (*parts, stem)
            public = not any(part.startswith("_") for part in name)
            found.append(SourceFile(Path(folder, file), ".".join(name), public, is_package, source.standard_library))
    return found


def _is_module(name: str) -> bool:
    return name.isidentifier() and not (_TESTS.fullmatch(name) or name in _VENDORED or name in _NOT_LIBRARIES)


def parse(file: SourceFile) -> ParsedModule:
    """Raises OSError, SyntaxError, ValueError, RecursionError or MemoryError for a source that is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's invalid escapes
        tree = ast.parse(file.path.read_bytes())
    parsed = ParsedModule({"": list(_documented(tree, file.module, "module", file))}, {}, [], None)
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            target = _absolute(node, file)
            for alias in node.names:
                if alias.name == "*":
                    parsed.stars.append(target)
                else:
                    parsed.imports[alias.asname or alias.name] = target, alias.name
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if found := list(_definitions(node, file.module, "function", file)):
                parsed.objects.setdefault(node.name, found)
        elif isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            try:
                parsed.exported = [str(name) for name in ast.literal_eval(node.value)]
            except (ValueError, TypeError):
                parsed.exported = None
    return parsed


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class; those for one platform or one version are as public as the others."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
        else:
            yield node


def _absolute(node: ast.ImportFrom, file: SourceFile) -> str:
    if not node.level:
        return node.module or ""
    parts = file.module.split(".")
    base = parts[: len(parts) - node.level + file.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _definitions(node: ast.stmt, owner: str, kind: str, file: SourceFile) -> Iterator[Documented]:
    """A public class with what is inside it, a public function (of kind `kind`), or nothing."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
        return
    name = f"{owner}.{node.name}"
    if isinstance(node, ast.ClassDef):
        yield from _documented(node, name, "class", file)
        for inner in _statements(node.body):
            yield from _definitions(inner, name, "method", file)
    else:
        yield from _documented(node, name, kind, file)


def _documented(node: Any, name: str, kind: str, file: SourceFile) -> Iterator[Documented]:
    docstring = _docstring(node)
    if docstring:
        yield Documented(name, kind, file.module, _signature(node), docstring, file.standard_library)


def _docstring(node: Any) -> str:
    """An object's docstring, cleaned; empty where it has none."""
    text = ast.get_docstring(node, clean=False)
    if not text:
        return ""
    # Half surrogate pairs and control characters, which a document cannot hold, are left out.
    text = inspect.cleandoc(text.encode("utf-8", "ignore").decode())
    return _CONTROL.sub("", text).strip()


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _signature(node: Any) -> str:
    if isinstance(node, ast.Module):
        return ""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        signature = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{start} {node.name}({ast.unparse(node.args)}){returns}"
    signature = " ".join(_CONTROL.sub("", signature.encode("utf-8", "ignore").decode()).split())
    return signature if len(signature) <= SIGNATURE_CHARACTERS else signature[: SIGNATURE_CHARACTERS - 1] + "…"


def _text(signature: str, docstring: str) -> str:
    return f"{signature}\n\n{docstring}" if signature else docstring


class Reader:
    """Parses source files once each, and counts those that cannot be."""

    def __init__(self, sources: Sequence[Source], counts: Counts) -> None:
        self.files: dict[str, SourceFile] = {}
        for source in sources:
            for file in source_files(source):
                self.files.setdefault(file.module, file)
        self.counts = counts
        self._parsed: dict[str, ParsedModule | None] = {}

    def module(self, name: str) -> ParsedModule | None:
        if name not in self._parsed:
            self._parsed[name] = self._parse(self.files[name]) if name in self.files else None
        return self._parsed[name]

    def _parse(self, file: SourceFile) -> ParsedModule | None:
        self.counts.files += 1
        try:
            return parse(file)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.counts.unreadable += 1
            log.info("%s passed over: %s", file.module, error)
            return None

    def is_private(self, module: str) -> bool:
        return module in self.files and not self.files[module].public

    def origin(self, module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> tuple[str, str] | None:
        """(private module, name there) of the definition that `from module import name` finds, or None."""
        parsed = self.module(module) if self.is_private(module) and (module, name) not in seen else None
        if parsed is None:
            return None
        if name in parsed.objects:
            return module, name
        seen |= {(module, name)}
        if name in parsed.imports:
            return self.origin(*parsed.imports[name], seen)
        return next((found for star in parsed.stars if (found := self.origin(star, name, seen))), None)

    def names(self, module: str, seen: frozenset[str] = frozenset()) -> list[str]:
        """What `from module import *` of a private module binds, as far as it can be told."""
        parsed = self.module(module) if self.is_private(module) and module not in seen else None
        if parsed is None:
            return []
        if parsed.exported is not None:
            return parsed.exported
        passed_on = [name for star in parsed.stars for name in self.names(star, seen | {module})]
        return [name for name in (*parsed.objects, *passed_on) if name and not name.startswith("_")]


def read_objects(sources: Sequence[Source], counts: Counts) -> list[Documented]:
    """All documented public objects of MIN_WORDS or more, each name and each docstring once, the first one kept."""
    reader = Reader(sources, counts)
    public = [file for file in reader.files.values() if file.public]
    found: list[Documented] = []
    taken: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    terminal = sys.stderr.isatty()
    for file in tqdm(
        # A terminal gets a bar that moves, a log a line every few seconds.
        public, desc="reading sources", unit="file", mininterval=0.1 if terminal else 10, dynamic_ncols=True
    ):  # fmt: skip
        parsed = reader.module(file.module)
        if parsed is None:
            continue
        found += (one for group in parsed.objects.values() for one in group)
        imports = [(name, *target) for name, target in parsed.imports.items()]
        imports += [(name, star, name) for star in parsed.stars for name in reader.names(star)]
        for name, module, there in imports:
            if not name.startswith("_") and (origin := reader.origin(module, there)):
                taken[origin].append((file.module.count("."), file.module, name))
        parsed.objects.clear()
    for (module, there), places in taken.items():
        _, owner, name = min(places)  # the shortest of its public names
        private = reader.module(module)
        found += (_renamed(one, owner, name) for one in private.objects[there]) if private else ()
    if counts.unreadable:
        log.warning("%d of %d source files could not be parsed and were passed over", counts.unreadable, counts.files)
    return _distinct(found, counts)


def _renamed(one: Documented, owner: str, name: str) -> Documented:
    """An object of a private module under the name that a public one gives it."""
    inside = one.name.removeprefix(f"{one.module}.").partition(".")[2]
    return replace(one, name=f"{owner}.{name}.{inside}" if inside else f"{owner}.{name}", module=owner)


def _distinct(found: Iterable[Documented], counts: Counts) -> list[Documented]:
    objects = []
    names: set[str] = set()
    docstrings: set[bytes] = set()
    for one in sorted(found, key=lambda one: (not one.standard_library, one.name)):
        words = one.docstring.split()
        digest = hashlib.sha256(" ".join(words).encode()).digest()
        if len(words) < MIN_WORDS or len(one.name.encode()) > MAX_ID_BYTES:
            counts.short += 1
        elif one.name in names or digest in docstrings:
            counts.repeated += 1
        else:
            names.add(one.name)
            docstrings.add(digest)
            objects.append(one)
    return objects


# ---------------------------------------------------------------- choosing

T = TypeVar("T")


def _fraction(*parts: str) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big") / 2**64


def split_of(package: str) -> str:
    """`train` or `test` for a top-level module."""
    return "test" if _fraction("split", package) < TEST_SHARE else "train"


def spread(items: Iterable[T], group: Callable[[T], str], name: Callable[[T], str], total: int, seed: int) -> list[T]:
    """At most `total` items, a group's share growing with the square root of its size: large ones do not drown small.

    Within a group the choice is by a hash of the name and the seed, so a smaller total is a subset of a larger one.
    """
    groups: dict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    ranked = []
    for members in groups.values():
        members.sort(key=lambda item: (_fraction(str(seed), name(item)), name(item)))
        ranked += [((rank + 0.5) / math.sqrt(len(members)), name(item), item) for rank, item in enumerate(members)]
    ranked.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in ranked[:total]]


def choose(objects: Sequence[Documented], limit: int | None, seed: int) -> list[Documented]:
    """At most `limit` objects; the standard library has half of them, or all that it has or the others leave it."""
    if limit is None or limit >= len(objects):
        return list(objects)
    library = [one for one in objects if one.standard_library]
    others = [one for one in objects if not one.standard_library]
    share = max(min(len(library), math.ceil(limit / 2)), limit - len(others))
    chosen = {
        one.name
        for part, total in ((library, share), (others, limit - share))
        for one in spread(part, lambda one: one.package, lambda one: one.name, total, seed)
    }
    return [one for one in objects if one.name in chosen]


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
    rest: str


def hold_out(one: Documented) -> HeldOut | None:
    """The first sentence of a docstring as a query, where it is prose and enough is left without it."""
    paragraph = one.docstring.partition("\n\n")[0]
    end = _SENTENCE_END.search(paragraph)
    sentence = paragraph[: end.end()] if end else paragraph
    query = _prose(sentence)
    words = query.split()
    if len(words) not in QUERY_WORDS or not _is_prose(sentence, words):
        return None
    telling = {word.lower() for word in _WORD.findall(query)} - _name_words(one.name) - _COMMON
    if len(telling) < 2:
        return None
    rest = one.docstring[len(sentence) :]
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
    """Whether a first sentence is one, and not a heading with its rule, a signature, a doctest, a field or a licence."""
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


def _name_words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_spaced(name))} | {word.lower() for word in _WORD.findall(name)}


def _key(text: str) -> str:
    """What is compared to tell whether two sentences are the same: words in lower case, a blank around each."""
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

    A sentence that several documents hold is no query, since it would have several answers of which one is judged; nor
    is one without which two documents would read the same.
    """
    holders = Counter(key for one in objects for key in _sentence_keys(one.docstring))
    candidates = {one.name: held for one in objects if (held := hold_out(one)) and holders[_key(held.query)] <= 1}
    texts = Counter(one.text for one in objects)
    texts.update(_text(one.signature, candidates[one.name].rest) for one in objects if one.name in candidates)
    queries = Counter(held.query.lower() for held in candidates.values())
    usable = [
        one
        for one in objects
        if (held := candidates.get(one.name))
        and queries[held.query.lower()] == 1
        and texts[_text(one.signature, held.rest)] == 1
    ]
    chosen = {}
    for split, wanted in (("train", train), ("test", test)):
        part = [one for one in usable if split_of(one.package) == split]
        total = len(part) if wanted is None else wanted
        for one in spread(part, lambda one: one.package, lambda one: one.name, total, seed):
            chosen[one.name] = (split, candidates[one.name])
    return chosen


# ---------------------------------------------------------------- writing


def documentation_url(one: Documented, version: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """The page of a standard library object on docs.python.org, with its anchor where the page is its module's own."""
    if not one.standard_library or one.package in _NO_PAGE:
        return None
    page = one.module
    while page not in _SUBMODULE_PAGES and "." in page:
        page = page.rpartition(".")[0]
    anchor = ""
    if page == one.module:
        anchor = f"#module-{one.module}" if one.kind == "module" else f"#{one.name}"
    return f"https://docs.python.org/{version[0]}.{version[1]}/library/{page.lower()}.html{anchor}"


def build(
    out: str | Path,
    limit: int | None = None,
    *,
    seed: int = 0,
    train_queries: int | None = None,
    test_queries: int | None = None,
    sources: Sequence[Source] | None = None,
) -> Counts:
    """Write the corpus, its queries and its judgements to the folder `out` in BEIR layout.

    limit: the most documents; None takes all
    train_queries, test_queries: the most of each; None takes all that can be held out
    sources: where to look; None looks where this Python finds its standard library and its packages

    The folder is written beside and renamed; a folder that is there is replaced if an earlier call wrote it.
    Raises InputError where `out` is something else, or where no documented object was found.
    """
    out = Path(out)
    if out.exists() and not _is_ours(out):
        raise InputError(f"{out} exists and was not written by `osn corpus python-docs`", "name another folder")
    counts = Counts()
    objects = choose(read_objects(installed_sources() if sources is None else sources, counts), limit, seed)
    if not objects:
        raise InputError("no documented Python object was found", "is this a Python without its library's sources?")
    queries = held_out_queries(objects, train_queries, test_queries, seed)
    splits = Counter(split for split, _ in queries.values())
    counts.documents = len(objects)
    counts.train_queries, counts.test_queries = splits["train"], splits["test"]
    counts.packages = len({one.package for one in objects if not one.standard_library})
    counts.standard_library = sum(one.standard_library for one in objects)
    counts.kinds = dict(sorted(Counter(one.kind for one in objects).items()))
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        _write(beside, objects, queries, counts, limit, seed)
        beside.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return counts


_MARK = "<!-- written by osn corpus python-docs -->"


def _is_ours(out: Path) -> bool:
    if not out.is_dir():
        return False
    readme = out / "README.md"
    return not any(out.iterdir()) or (readme.is_file() and _MARK in readme.read_text("utf-8", "replace"))


def _write(
    folder: Path,
    objects: Sequence[Documented],
    queries: dict[str, tuple[str, HeldOut]],
    counts: Counts,
    limit: int | None,
    seed: int,
) -> None:
    _write_lines(folder / "corpus.jsonl.gz", (_record(one, queries) for one in objects))
    asked = [(f"summary:{one.name}", one.name, *queries[one.name]) for one in objects if one.name in queries]
    _write_lines(folder / "queries.jsonl.gz", ({"_id": id, "text": held.query} for id, _, _, held in asked))
    (folder / "qrels").mkdir()
    for split in ("train", "test"):
        lines = [f"{id}\t{name}\t1\n" for id, name, of, _ in asked if of == split]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), "utf-8")
    (folder / "README.md").write_text(_readme(counts, limit, seed), "utf-8")


def _record(one: Documented, queries: dict[str, tuple[str, HeldOut]]) -> dict[str, Any]:
    text = _text(one.signature, queries[one.name][1].rest) if one.name in queries else one.text
    # The name in words too: a word of "json.JSONEncoder" or "read_csv" is one to a word-piece tokenizer and none to a text
    # analyzer, and a comparison in which BM25 cannot see half of the title would prove nothing.
    text = f"{' '.join(_WORD.findall(_spaced(one.name)))}\n\n{text}"
    fields = {"package": "python" if one.standard_library else one.package, "module": one.module, "kind": one.kind}
    return Document(one.name, text, one.name, documentation_url(one), fields).record()


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    # No file name and no time in the gzip header: the same records are the same bytes.
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _readme(counts: Counts, limit: int | None, seed: int) -> str:
    kinds = ", ".join(f"{number:,} of kind {kind}" for kind, number in counts.kinds.items())
    wanted = f"at most {limit:,}" if limit else "all"
    return f"""{_MARK}
# Python documentation strings

One document per documented public object of the standard library of Python {sys.version.split()[0]} and of the
packages installed with it; made by `osn corpus python-docs` with seed {seed} and {wanted} documents.

| | |
|---|---:|
| documents | {counts.documents:,} |
| of these from the standard library | {counts.standard_library:,} |
| packages beside it | {counts.packages:,} |
| train queries | {counts.train_queries:,} |
| test queries | {counts.test_queries:,} |
| source files read | {counts.files:,} |
| source files that could not be parsed | {counts.unreadable:,} |
| docstrings under {MIN_WORDS} words, left out | {counts.short:,} |
| repeated names or docstrings, left out | {counts.repeated:,} |

Documents: {kinds}.

A query is the first sentence of a docstring; it was taken out of its document, the one judged relevant. Sentences that
several documents hold are no queries. The queries of a top-level module are all in `train` or all in `test`.

The texts are their packages' authors', under the packages' licences: this folder is for measuring on the machine that
made it, not for passing on.
"""


@click.group()
def corpus() -> None:
    """Make a corpus to try things on."""


@corpus.command("python-docs")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write, in BEIR layout.")
@click.option("--limit", type=click.IntRange(min=1), help="The most documents.  [default: 8000]")
@click.option("--all", "everything", is_flag=True, help="All documents, and every query that can be held out.")
@click.option("--train-queries", type=click.IntRange(min=0), help="The most training queries.  [default: 1500]")
@click.option("--test-queries", type=click.IntRange(min=0), help="The most test queries.  [default: 300]")
@click.option("--seed", default=0, show_default=True, help="Another seed makes another choice of documents.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def python_docs(
    out: Path,
    limit: int | None,
    everything: bool,
    train_queries: int | None,
    test_queries: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """The documentation strings of the installed Python packages and of the standard library.

    Sources are parsed, never imported. Queries are first sentences, taken out of the documents they are to find.

    \b
    osn corpus python-docs --out python-docs
    osn corpus python-docs --out python-docs-all --all
    """
    if everything and limit is not None:
        raise click.UsageError("--all and --limit exclude each other")
    if not everything:
        limit = 8000 if limit is None else limit
        train_queries = DEMO_TRAIN_QUERIES if train_queries is None else train_queries
        test_queries = DEMO_TEST_QUERIES if test_queries is None else test_queries
    counts = build(out, limit, seed=seed, train_queries=train_queries, test_queries=test_queries)
    if as_json:
        click.echo(json.dumps(asdict(counts)))
    else:
        click.echo(
            f"{out}: {counts.documents:,} documents ({counts.standard_library:,} of the standard library, the others of "
            f"{counts.packages:,} packages), {counts.train_queries:,} train and {counts.test_queries:,} test queries"
        )
