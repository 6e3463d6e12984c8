"""The demo's corpus: what becomes a document, what a query, and that nothing of a query is left where it is sought."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.demo import python_docs
from benchmarks.demo.python_docs import build, hold_out, split_of, spread
from benchmarks.demo.python_objects import Documented, ModuleFolder, installed_sources
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError

LONG = " ".join(f"word{n}" for n in range(24))


def tree(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return folder


def records(folder: Path) -> dict[str, dict[str, Any]]:
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        return {record["_id"]: record for record in map(json.loads, lines)}


def documented(summary: str, name: str = "f", rest: str = LONG) -> str:
    return f'def {name}(a, b=1) -> int:\n    """{summary}\n\n    {rest} {name}\n    """\n'


def built(tmp_path: Path, files: dict[str, str | bytes], **options: Any) -> dict[str, dict[str, Any]]:
    build(tmp_path / "out", sources=[ModuleFolder(tree(tmp_path / "site", files))], **options)
    return records(tmp_path / "out")


def test_public_objects_with_long_docstrings_become_documents_named_as_they_are_used(tmp_path: Path) -> None:
    source = f'''"""Module of the test. {LONG} 1"""
class Shape(Base, metaclass=M):
    """A shape. {LONG} 2"""
    def area(self, *, unit: str = "m") -> float:
        """The area. {LONG} 3"""
    class Edge:
        """An edge. {LONG} 4"""
    def short(self):
        """Too short to be found by anything."""
    def _hidden(self):
        """Private. {LONG} 5"""
if sys.platform == "linux":
    async def wait(seconds):
        """Waits. {LONG} 6"""
else:
    def wait(seconds):
        """Waits otherwise. {LONG} 7"""
class _Hidden:
    """Private. {LONG} 8"""
    def method(self):
        """Inside a private class. {LONG} 9"""
def outer():
    def inner():
        """Nobody can call it. {LONG} 10"""
'''
    documents = built(tmp_path, {"geo/__init__.py": "", "geo/shapes.py": source}, train_queries=0, test_queries=0)
    assert sorted(documents) == [
        "geo.shapes",
        "geo.shapes.Shape",
        "geo.shapes.Shape.Edge",
        "geo.shapes.Shape.area",
        "geo.shapes.wait",
    ]
    assert documents["geo.shapes.Shape.area"] == {
        "_id": "geo.shapes.Shape.area",
        "title": "geo.shapes.Shape.area",
        "text": f"geo shapes Shape area\n\ndef area(self, *, unit: str='m') -> float\n\nThe area. {LONG} 3",
        "package": "geo",
        "module": "geo.shapes",
        "kind": "method",
    }
    assert documents["geo.shapes.Shape"]["text"].startswith("geo shapes Shape\n\nclass Shape(Base)\n\n")
    assert documents["geo.shapes"]["text"] == f"geo shapes\n\nModule of the test. {LONG} 1"
    assert documents["geo.shapes.wait"]["text"].endswith("6")


def test_tests_vendored_copies_and_this_project_are_left_out(tmp_path: Path) -> None:
    source = documented("Does it.")
    places = ["tests", "test", "test_more", "more_tests", "_vendor", "vendor", "third_party", "externals", "not-a-name"]
    files: dict[str, str | bytes] = {f"pkg/{place}/m.py": source.replace("word1 ", f"{place} ") for place in places}
    files |= {"pkg/test_x.py": source, "pkg/conftest.py": source, "pkg/__main__.py": source, "trainers/m.py": source}
    files["pkg/kept.py"] = source
    assert list(built(tmp_path, files)) == ["pkg.kept.f"]


def test_a_repeated_docstring_is_one_document_the_standard_librarys_first(tmp_path: Path) -> None:
    library = ModuleFolder(tree(tmp_path / "lib", {"zlib2.py": documented("Does it.")}), standard_library=True)
    fork = ModuleFolder(tree(tmp_path / "site", {"afork.py": documented("Does  it."), "b.py": documented("Other.")}))
    counts = build(tmp_path / "out", sources=[library, fork])
    assert sorted(records(tmp_path / "out")) == ["b.f", "zlib2.f"]
    assert (counts.documents, counts.standard_library, counts.packages) == (2, 1, 1)


def test_sources_that_cannot_be_parsed_are_counted_and_cost_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files: dict[str, str | bytes] = {
        "a.py": "def broken(:\n",
        "b.py": b"x = '\xff'\n",
        "c.py": b"\0",
        "d.py": "# -*- coding: no-such-encoding -*-\n",
        "e.py": "(" * 5000,
        "f.py": b"# -*- coding: latin-1 -*-\n" + documented("Straße ist lang.").encode("latin-1"),
        "g.py": 'def g():\n    "' + LONG + '\\ud800\\0 half\\x1b"\n',
    }
    counts = build(tmp_path / "out", sources=[ModuleFolder(tree(tmp_path / "site", files))])
    assert counts.documents == 2 and "5 of 7 source files" in caplog.text
    documents = records(tmp_path / "out")
    assert "Straße" in documents["f.f"]["text"]
    assert documents["g.g"]["text"].endswith("word23 half")


def test_sources_are_not_imported(tmp_path: Path) -> None:
    source = documented("Does it.") + f"\nopen({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit\n"
    assert list(built(tmp_path, {"evil.py": source})) == ["evil.f"]
    assert not (tmp_path / "imported").exists()


# ---------------------------------------------------------------- queries


def held(docstring: str, name: str = "pkg.module.thing") -> tuple[str, str] | None:
    item = Documented(name, "function", "pkg.module", "def thing()", docstring, False)
    parts = hold_out(item)
    return parts and (parts.query, parts.rest)


def test_the_first_sentence_becomes_the_query_and_leaves_its_document() -> None:
    assert held(f"Split the path into\nits ``head`` and :class:`~os.tail`. More of it.\n\n{LONG}") == (
        "Split the path into its head and os.tail",
        f"More of it.\n\n{LONG}",
    )
    # The full stop of an abbreviation ends no sentence.
    assert held(f"Parse formats, e.g. ISO dates, quickly!\n\n{LONG}") == (
        "Parse formats, e.g. ISO dates, quickly",
        LONG,
    )


def test_copies_of_the_query_leave_the_document_too() -> None:
    query, rest = held(f"Split the long path.\n\n{LONG}\n\nNote: split the\nlong path. The end.") or ("", "")
    assert query == "Split the long path"
    assert "long" not in rest
    assert rest.endswith("The end.")
    # A copy that cannot be cut out word by word makes the object no query.
    assert held(f"Split the long path.\n\n{LONG}\n\nsplit *the* long path") is None


@pytest.mark.parametrize(
    "docstring",
    [
        f"Too short a\n\n{LONG}",
        f"{'very ' * 31}long sentence.\n\n{LONG}",
        "Nothing much is left without this sentence.\n\nJust a few words.",
        f"thing(a, b=None) -> list of values here\n\n{LONG}",
        f"The Title of It\n===============\n\n{LONG}",
        f">>> print this and that one\n\n{LONG}",
        f":param a: the first of the parameters\n\n{LONG}",
        f"Copyright of the authors of this\n\n{LONG}",
        f"Return the thing of the module.\n\n{LONG}",
        f"x1 y2 z3 a4 words here\n\n{LONG}",
        f"Wörter sind hier keine englischen\n\n{LONG}",
    ],
)
def test_first_sentences_that_are_no_prose_or_only_the_name_are_no_queries(docstring: str) -> None:
    assert held(docstring) is None


def queries(tmp_path: Path, files: dict[str, str | bytes]) -> dict[str, str]:
    built(tmp_path, files)
    out = tmp_path / "out"
    texts = {}
    for split in ("train", "test"):
        if len((out / "qrels" / f"{split}.tsv").read_text().splitlines()) == 1:
            continue  # a header alone
        data = BeirData.load(out, split)
        texts |= {document: data.queries[query] for query, judged in data.qrels.items() for document in judged}
    return texts


def test_a_sentence_that_several_documents_hold_is_no_query(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a.py": documented("Fit the model quickly.", rest=LONG + " a"),
        "b.py": documented("Fit the model: quickly!", rest=LONG + " b"),
        "c.py": documented("Draw lines between points.", rest=LONG + " c"),
        "d.py": documented("Something else is done here.", rest=LONG + " d\n\n    It can draw lines between points.\n"),
        "e.py": documented("Something more is done there.", rest=LONG + " e\n\n    Draw lines between points\n"),
    }
    assert queries(tmp_path, files) == {"d.f": "Something else is done here", "e.f": "Something more is done there"}


def test_documents_that_would_read_the_same_without_their_summaries_keep_them(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a.py": documented("Fit a linear model."),
        "b.py": documented("Fit a quadratic model."),
        "c.py": documented("Predict with any model.", "g"),
    }
    assert queries(tmp_path, files) == {"c.g": "Predict with any model"}
    texts = [record["text"] for record in records(tmp_path / "out").values()]
    assert len(set(texts)) == 3


def test_an_installation_of_many_packages_splits_without_a_leak(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        f"p{package}/m{module}.py": documented(
            f"Compute quantity number p{package} of module m{module} from given data of shape value.",
            f"f{module}",
            f"{LONG} p{package} m{module}",
        ).replace("number", "by counting")
        for package in range(20)
        for module in range(4)
    }
    counts = build(tmp_path / "out", sources=[ModuleFolder(tree(tmp_path / "site", files))])
    train, test = (BeirData.load(tmp_path / "out", split) for split in ("train", "test"))
    assert (len(train.queries), len(test.queries)) == (counts.train_queries, counts.test_queries)
    assert counts.train_queries + counts.test_queries == 80
    packages = [
        {document.partition(".")[0] for judged in data.qrels.values() for document in judged} for data in (train, test)
    ]
    assert packages[0] and packages[1] and not packages[0] & packages[1]
    documents = records(tmp_path / "out")
    for data in (train, test):
        for query, judged in data.qrels.items():
            (document,) = judged
            assert data.queries[query] not in documents[document]["text"]
    # The choice of the seed and of the limit moves no package across.
    build(tmp_path / "other", 30, seed=7, sources=[ModuleFolder(tmp_path / "site")])
    for split, own in (("train", packages[0]), ("test", packages[1])):
        judged = BeirData.load(tmp_path / "other", split).qrels.values()
        assert {document.partition(".")[0] for documents in judged for document in documents} <= own


def test_packages_are_split_by_their_name_alone() -> None:
    # printf 'split\0json' | sha256sum begins with 0736, as a fraction 0.028: below TEST_SHARE; torch's with 661e (0.399),
    # scipy's with ea7a (0.916).
    assert [split_of(name) for name in ("json", "torch", "scipy")] == ["test", "train", "train"]


# ---------------------------------------------------------------- choosing and writing


def test_large_packages_do_not_drown_small_ones_and_smaller_choices_are_parts_of_larger() -> None:
    sizes = {"big": 900, "small": 100}
    objects = [
        Documented(f"{package}.{n}", "function", package, "", "", False)
        for package, size in sizes.items()
        for n in range(size)
    ]
    chosen = spread(objects, 40, 0)
    # Shares as the square roots of 900 and 100: 30 to 10.
    assert [sum(item.package == package for item in chosen) for package in sizes] == [30, 10]
    assert set(spread(objects, 20, 0)) < set(chosen)
    assert set(spread(objects, 40, 1)) != set(chosen)
    assert len(spread(objects, 5000, 0)) == 1000


def test_the_standard_library_has_half_of_a_limited_corpus_or_what_is_there(tmp_path: Path) -> None:
    def functions(module: str, count: int) -> str:
        return "".join(documented(f"Does {n}.", f"f{n}", f"{LONG} {module}") for n in range(count))

    library = ModuleFolder(tree(tmp_path / "lib", {"std.py": functions("std", 10)}), standard_library=True)
    site = ModuleFolder(tree(tmp_path / "site", {"big.py": functions("big", 50), "tiny.py": functions("tiny", 1)}))
    sizes = [build(tmp_path / "out", limit, sources=[library, site]) for limit in (10, 30, 60, 1000)]
    assert [(counts.documents, counts.standard_library) for counts in sizes] == [(10, 5), (30, 10), (60, 10), (61, 10)]


def test_the_same_installation_gives_the_same_bytes(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"m{n}.py": documented(f"Does task {n} in some way.", f"f{n}") for n in range(9)}
    site = ModuleFolder(tree(tmp_path / "site", files))
    for name in ("one", "two"):
        build(tmp_path / name, 5, sources=[site])
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_only_what_it_wrote_itself_is_replaced(tmp_path: Path) -> None:
    site = ModuleFolder(tree(tmp_path / "site", {"m.py": documented("Does it.")}))
    mine = tree(tmp_path / "mine", {"thesis.txt": "years of work"})
    with pytest.raises(InputError, match=r"mine exists and was not written by"):
        build(mine, sources=[site])
    assert (mine / "thesis.txt").read_text() == "years of work"
    (tmp_path / "out").mkdir()
    for _ in range(2):
        build(tmp_path / "out", sources=[site])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out", "site"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    build(tmp_path / "out", sources=[ModuleFolder(tree(tmp_path / "site", {"m.py": documented("Does it.")}))])
    with pytest.raises(InputError, match="no documented Python object was found"):
        build(tmp_path / "out", sources=[ModuleFolder(tmp_path / "empty")])
    assert list(records(tmp_path / "out")) == ["m.f"]


def test_the_readme_states_the_counts(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"m{n}.py": documented(f"Does task {n} in some way.", f"f{n}") for n in range(3)}
    built(tmp_path, files)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "| documents | 3 |" in readme
    assert "| packages | 3 |" in readme
    assert str(tmp_path) not in readme


def test_the_standard_library_of_this_python_makes_a_corpus_that_our_readers_take(tmp_path: Path) -> None:
    library = [source for source in installed_sources() if source.standard_library]
    counts = build(tmp_path / "out", 600, train_queries=100, test_queries=50, sources=library)
    documents = list(read_corpus(tmp_path / "out"))
    assert len(documents) == counts.documents == 600
    assert (counts.train_queries, counts.test_queries) == (100, 50)
    assert len({document.text for document in documents}) == 600
    assert all(len(document.contents.split()) > 20 for document in documents)
    assert not any(part.startswith("_") for document in documents for part in document.id.split("."))
    for split in ("train", "test"):
        data = BeirData.load(tmp_path / "out", split)
        assert len(set(data.queries.values())) == len(data.queries)
        assert all(len(query.split()) >= 4 for query in data.queries.values())
        assert all(
            split_of(document.partition(".")[0]) == split for judged in data.qrels.values() for document in judged
        )


def test_the_command_prints_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = ModuleFolder(tree(tmp_path / "site", {"m.py": documented("Does it.")}))
    monkeypatch.setattr(python_docs, "installed_sources", lambda: [site])
    arguments = ["python-docs", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(python_docs.corpus, arguments)
    assert result.stdout.startswith(f"{tmp_path / 'out'}: 1 documents (0 of the standard library")
    result = CliRunner().invoke(python_docs.corpus, [*arguments, "--all", "--limit", "5"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_osn_finds_the_command() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "opensearch_neural.cli", "corpus", "python-docs", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "parsed, never imported" in out.stdout
