"""What the README and docs/ show is so: tables are those of the result files, Python runs, commands have these options."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from benchmarks.docs_tables import MARKS, PAGES, README, RENDERED, with_tables, without_single_seeds
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

APPLICATION = README.parent / "docs" / "how-to" / "search-from-an-application.md"

OWN = ("opensearch_neural", "ingest", "trainers", "benchmarks")

RECORDS = [
    {"_id": "r1", "title": "Rainbows", "text": "What causes a rainbow is light in drops of rain.", "lang": "en"},
    {"_id": "r2", "title": "Regenbogen", "text": "What causes a rainbow: Licht in Regentropfen.", "lang": "de"},
    {"_id": "r3", "title": "Trout", "text": "A fish of rivers.", "lang": "en"},
]


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """Every `osn …` that a page shows, with at least one word behind it. Those of results stand as they were given."""
    text = RENDERED.sub("", page.read_text(encoding="utf-8")).replace("\\\n", " ")
    shown = r"(?:^|[`|;(] ?)\s*(osn [a-z](?:'[^'`\n]*'|[^`;|#\n])*)"
    return [found.strip() for found in re.findall(shown, text, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_is_that_of_its_result_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.search(f"<!-- ({'|'.join(MARKS)}): ", text)
    assert shown or (page.parent.name != "evidence" and page.name not in ("evidence.md", "load.md", "ingest.md"))
    assert text.count("<!-- figure: ") > 40 or page.name != "encoding-at-scale.md"
    assert with_tables(text) == text, "python -m benchmarks.docs_tables writes the tables anew"


def test_a_table_may_be_of_some_measures_alone() -> None:
    shown = with_tables("<!-- table: published: R@100, MRR@10 -->\n<!-- end -->\n")
    header, _, *lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header.split("|")[1:-1]] == ["engine", "R@100", "MRR@10"]
    assert len(lines) >= 3 and all(len(line.split("|")) == 5 for line in lines)
    assert "`osn bench published" in shown and "- met:" not in shown
    assert with_tables(shown) == shown


def test_a_table_may_be_of_some_engines_in_several_indexes() -> None:
    what = "quality-and-cost: bm25_sparse, bm25_sparse_million: P50; 20 clients; bm25-sparse, sparse"
    shown = with_tables(f"<!-- {what} -->\n<!-- end -->\n")
    header, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if "|" in line]
    assert {line[0] for line in lines} == {"bm25-sparse", "sparse"}
    costs = [head for head in header if head.startswith("P50")]
    assert costs == ["P50, 100,000 documents, 20 clients", "P50, 1,000,000 documents, 20 clients"]
    both = [line for line in lines if all(line[header.index(cost)] != "–" for cost in costs)]
    assert {line[0] for line in both} == {"bm25-sparse", "sparse"}
    assert all(line[2] != "–" for line in lines) and shown.count("`osn bench bm25-sparse ") == 2
    assert with_tables(shown) == shown


def test_gains_may_be_of_some_engines_in_another_measure() -> None:
    header, *lines = lines_of("gains: bm25_sparse: bm25; sparse, high-idf-first; R@100")
    assert header[1] == "bm25: R@100" and "scifact" in {line[0] for line in lines}
    assert {head.split(",")[0] for head in header[2:]} == {"sparse", "high-idf-first"}


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("tabel: bm25_sparse", "there is no mark 'tabel'\n.*table, goals"),
        ("gains: bm25_sparse", "several baselines\n.*bm25 tuned"),
        ("gains: bm25_sparse: bm52", "no result has such differences in nDCG@10\n.*from bm25, bm25 tuned"),
        ("gains: bm25_sparse: bm25; ; P@5", r"no result has such differences in P@5\n.*in nDCG@10"),
    ],
)
def test_a_mark_of_what_there_is_not_says_what_there_is(mark: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        with_tables(f"# Page\n\n<!-- {mark} -->\n<!-- end -->\n")


def test_many_commands_below_a_table_are_folded_away() -> None:
    names = ["bm25_sparse", "bm25_sparse_million", "bm25_sparse_hour"]
    for count, folded in ((2, False), (3, True)):
        shown = with_tables(f"<!-- quality-and-cost: {', '.join(names[:count])}: P50 -->\n<!-- end -->\n")
        assert ("<details>" in shown) is folded and ("</details>" in shown) is folded
        assert shown.count("`osn bench bm25-sparse ") == count
        assert with_tables(shown) == shown


def test_a_table_may_be_of_some_means() -> None:
    what = "quality-and-cost: bm25_sparse: ; 20 clients; ; mean of 4 unseen sets"
    header, *_ = with_tables(f"<!-- {what} -->\n<!-- end -->\n").splitlines()[2:]
    assert [head.strip() for head in header.split("|") if "points" in head] == [
        "points over bm25, mean of 4 unseen sets"
    ]
    assert "P50, 100,000 documents, 20 clients" in header and "1 client " not in header and "active terms" in header
    with pytest.raises(InputError, match="no result has the mean of 5 sets"):
        with_tables(f"<!-- {what}, mean of 5 sets -->\n<!-- end -->\n")


def lines_of(mark: str) -> list[list[str]]:
    """The cells of the tables behind a mark, without rules."""
    shown = with_tables(f"<!-- {mark} -->\n<!-- end -->\n")
    assert with_tables(shown) == shown
    lines = [line for line in shown.splitlines() if line.startswith("|") and not line.startswith("| --")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_a_table_may_be_of_some_engines_and_sets() -> None:
    header, *lines = lines_of('table: bm25_sparse: nDCG@10; bm25, "bm25-sparse, window 20"; scifact, mean of 9 sets')
    assert header == ["set", "engine", "nDCG@10"]
    assert {line[0] for line in lines} == {"scifact", "mean of 9 sets"}
    assert {line[1].split(", ")[0] for line in lines} == {"bm25", "bm25-sparse"}
    assert all("window 20" in line[1] for line in lines if line[1] != "bm25")


def test_a_table_may_be_of_some_models() -> None:
    weight = '"bm25-sparse, weight 0.45", "bm25-sparse, weight 1"'
    _, *lines = lines_of(
        f'quality-and-cost: bm25_sparse_weight: ; ; {weight}; ; as published, "trained 10 minutes, averaged"'
    )
    assert [line[0][-3:] for line in lines] == [".45", ".45", "t 1", "t 1"]
    assert [line[1] for line in lines] == ["as published", "trained 10 minutes, averaged"] * 2


def test_ways_and_measures_may_be_left_out_of_costs() -> None:
    way = "pruned: documents alpha_mass:0.5, as they are"
    header, *lines = lines_of("kept-and-cost: large_sparse")
    assert "nDCG@10" in header and way in {line[0] for line in lines}
    header, *fewer = lines_of(f'kept-and-cost: large_sparse: nDCG@10; "{way}"')
    assert "nDCG@10" not in header and way not in {line[0] for line in fewer} and len(fewer) == len(lines) - 1
    assert "- met: " in with_tables("<!-- kept-and-cost: large_sparse: nDCG@10 -->\n<!-- end -->\n")


def test_goals_may_be_those_with_some_words() -> None:
    shown = with_tables("<!-- goals: bm25_sparse: as published, score kept -->\n<!-- end -->\n")
    goals = [line for line in shown.splitlines() if line.startswith("- ")]
    assert len(goals) == 7 and all("as published" in goal or "score kept" in goal for goal in goals)
    assert (
        "- missed: bm25-sparse as published: P99 on 100,000 documents, 20 clients, in BM25's, at most 1.25: 1.302"
        in goals
    )


def test_runs_have_the_code_of_each_result() -> None:
    lines = lines_of("runs: bm25_sparse, bm25_sparse_hour: bm25-sparse; bm25; mean of 9 sets")
    assert lines[0][:3] == ["result", "code", "as published"]
    assert [line[:3] for line in lines[1:]] == [
        ["bm25_sparse", "9f65e1a8", "4.12"],
        ["bm25_sparse_hour", "c3991e67", "4.12"],
    ]


def test_a_table_has_the_mean_of_several_seeds_and_not_each() -> None:
    one, two = (
        Row("s", "e", "m", value, None, None, 9, seed=seed, variant="arm") for value, seed in ((1.0, 1), (3.0, 2))
    )
    mean = Row("s", "e", "m", 2.0, None, None, 9, variant="arm", seeds=(1, 2))
    alone = Row("s", "e", "m", 4.0, None, None, 9, seed=1, variant="another arm")
    assert without_single_seeds([one, two, mean, alone]) == [mean, alone]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_are_python_and_import_what_there_is(page: Path) -> None:
    for example in python_of(page):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OWN):
                module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_readme_is_short_and_holds_no_list_of_goals() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "- met: " not in text and "- missed: " not in text


def test_the_applications_of_readme_and_how_to_find_what_was_ingested(
    client: OpenSearch, cluster_url: str, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from opensearchpy import AsyncOpenSearch

    from ingest.corpus import CorpusSource
    from ingest.job import Job, run_job
    from ingest.settings import Models, NewIndex
    from opensearch_neural.models.sparse.lexical import build_lexical

    corpus, model = tmp_path / "docs.jsonl", tmp_path / "model"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    build_lexical(f"{record['title']} {record['text']}" for record in RECORDS).save(model)
    dead_letters = tmp_path / "dead.jsonl"
    job = Job(
        CorpusSource(str(corpus)),
        index_name,
        models=Models(sparse=str(model)),
        new_index=NewIndex(replicas=0),
        dead_letters=dead_letters,
    )
    run_job(client, job, show_progress=False)

    (application,), (filtered, asynchronous, plain) = python_of(README), python_of(APPLICATION)
    names: dict[str, Any] = {}
    for example in (application, filtered, asynchronous, plain):
        for shown, here in (
            ("http://localhost:9200", cluster_url),
            ("models/my-model", str(model)),
            ('"docs"', f'"{index_name}"'),
            ("medications to treat obesity have unwanted side effects", "what causes a rainbow"),
        ):
            example = example.replace(shown, here)
        exec(example, names)
    printed = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == ["Rainbows", "Rainbows", "Regenbogen"]  # the second example has a filter
    assert {hit["_id"] for hit in names["answer"]["hits"]["hits"]} == {"r1", "r2"}
    assert "total" not in names["answer"]["hits"]

    async def search() -> list[dict[str, Any]]:
        async with AsyncOpenSearch(cluster_url) as connected:
            return await names["search"](connected, "what causes a rainbow")

    (hit,) = asyncio.run(search())
    assert hit["_id"] == "r1"
    assert "<em>" in str(hit["highlight"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_and_have_the_options_they_are_shown_with(page: Path) -> None:
    from opensearch_neural.cli import osn

    shown = commands_of(page)
    assert (
        shown
        or page.parent.name in ("evidence", "explanation", "reference")
        or page.name in ("index.md", "evidence.md")
    )
    for line in shown:
        command: click.Command = osn
        context = click.Context(osn)
        words = shlex.split(line)[1:]
        while isinstance(command, click.Group) and words:
            if command.invoke_without_command and words[0].startswith("-"):
                break
            found = command.get_command(context, words[0])
            assert found is not None, line
            command, words = found, words[1:]
        known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        asked = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z].*", word)}
        assert asked <= known | {"--help"}, line


def test_every_page_stands_in_the_table_of_contents() -> None:
    docs = README.parent / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = {name for block in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL) for name in block.splitlines()}
    pages = {page.relative_to(docs).with_suffix("").as_posix() for page in PAGES if page != README}
    assert pages - {"index"} <= listed, "docs/index.md lists every page in one of its tables of contents"


def test_messages_in_troubleshooting_are_messages_of_the_code() -> None:
    page = (README.parent / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    packages = ("opensearch_neural", "ingest")
    sources = [
        source.read_text(encoding="utf-8") for name in packages for source in (README.parent / name).rglob("*.py")
    ]
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) >= 8
    assert [message for message in messages if not any(message in source for source in sources)] == []
