"""`osn data fetch`: data sets of ir_datasets become folders that training and ingest read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

ir_datasets = pytest.importorskip("ir_datasets")

from ir_datasets import formats  # noqa: E402
from ir_datasets.datasets.base import Dataset  # noqa: E402
from ir_datasets.util import LocalDownload  # noqa: E402

from opensearch_neural.corpus.judgements import BeirData  # noqa: E402
from opensearch_neural.corpus.reader import read_corpus  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from trainers.data.fetch import fetch, split_of, text_of  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A data set of three documents, in ir_datasets' own form and under its registry; two splits."""
    folder = tmp_path_factory.mktemp("ir")
    (folder / "docs.tsv").write_text("d1\tlight in drops of rain\nd2\ta fish\nd3\tthe heart\n")
    (folder / "train.tsv").write_text("q1\twhat causes a rainbow\n")
    (folder / "train.qrels").write_text("q1 0 d1 1\n")
    (folder / "dev.tsv").write_text("q2\ttrout\nq3\tchest pain\n")
    (folder / "dev.qrels").write_text("q2 0 d2 2\nq3 0 d3 1\nq3 0 d1 0\n")
    name = "osn-tiny"
    documents = formats.TsvDocs(LocalDownload(folder / "docs.tsv"))
    ir_datasets.registry.register(name, Dataset(documents))
    for split in ("train", "dev"):
        queries = formats.TsvQueries(LocalDownload(folder / f"{split}.tsv"))
        qrels = formats.TrecQrels(LocalDownload(folder / f"{split}.qrels"), {})
        ir_datasets.registry.register(f"{name}/{split}/small", Dataset(documents, queries, qrels))
    ir_datasets.registry.register("osn-other/test", ir_datasets.create_dataset(str(folder / "docs.tsv")))
    yield name


def test_splits_of_one_corpus_become_a_folder_that_training_and_evaluation_read(
    registered: str, tmp_path: Path
) -> None:
    from opensearch_neural.cli import osn

    out = tmp_path / "tiny"
    names = [f"ir:{registered}/train/small", f"ir:{registered}/dev/small"]
    result = CliRunner().invoke(osn, ["data", "fetch", *names, "--output", str(out)], catch_exceptions=False)
    assert "3 documents, 3 queries, 1 judgements of train, 3 judgements of dev" in result.output
    assert [document.text for document in read_corpus(out)] == ["light in drops of rain", "a fish", "the heart"]
    assert BeirData.load(out, "dev").qrels == {"q2": {"d2": 2}, "q3": {"d3": 1, "d1": 0}}
    data = load_training(out)
    assert len(data) == 1
    assert not list(out.rglob("*.part"))


def test_queries_of_a_split_that_is_there_are_not_lost(registered: str, tmp_path: Path) -> None:
    train, dev, out = f"ir:{registered}/train/small", f"ir:{registered}/dev/small", tmp_path / "tiny"
    fetch([train], out)
    for names in ([dev], [f"ir:{registered}"]):
        with pytest.raises(InputError, match="has judgements of train, whose queries would be lost"):
            fetch(names, out)
    assert len(load_training(out)) == 1
    fetch([dev, train], out)
    assert len(load_training(out)) == 1
    assert len(BeirData.load(out, "dev").qrels) == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ir:msmarco-passage/dev/small", ("msmarco-passage/dev/small", "dev")),
        ("ir:beir/nq", ("beir/nq", "test")),
        ("ir:msmarco-passage/trec-dl-2019/judged=dl19", ("msmarco-passage/trec-dl-2019/judged", "dl19")),
    ],
)
def test_the_name_says_the_split(given: str, expected: tuple[str, str]) -> None:
    assert split_of(given) == expected


def test_what_does_not_serve_is_named(registered: str, tmp_path: Path) -> None:
    for names, said in (
        (["ir:no-such-set"], "has no data set 'no-such-set'"),
        (["msmarco"], "is not the name of a data set"),
        ([f"ir:{registered}/dev/small", f"ir:{registered}/dev/small"], "would be a second split 'dev'"),
        ([f"ir:{registered}/dev/small", "ir:osn-other/test"], "have different corpora"),
    ):
        with pytest.raises(InputError, match=said):
            fetch(names, tmp_path / "out")


def registered_as(name: str, kind: Any, *documents: Any) -> str:
    """The name, under which ir_datasets has these documents now."""

    class Documents(formats.BaseDocs):  # type: ignore[misc]
        def docs_iter(self) -> Iterator[Any]:
            return iter(documents)

        def docs_cls(self) -> Any:
            return kind

        def docs_count(self) -> int:
            return len(documents)

        def docs_namespace(self) -> str:
            return name

    ir_datasets.registry.register(name, Dataset(Documents()))
    return f"ir:{name}"


def test_a_title_that_the_default_text_begins_with_is_written_once(tmp_path: Path) -> None:
    from ir_datasets.datasets.cord19 import Cord19Doc

    documents = [Cord19Doc("1", "Rain", "doi", "2020", "Light in drops."), Cord19Doc("2", "", "doi", "2020", "Sun.")]
    fetch([registered_as("osn-titles", Cord19Doc, *documents)], tmp_path / "out")
    read = [(document.title, document.text) for document in read_corpus(tmp_path / "out")]
    assert read == [("Rain", "Light in drops."), ("", "Sun.")]


def test_documents_whose_text_is_not_known_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    from ir_datasets.datasets.clinicaltrials import ClinicalTrialsDoc

    name = registered_as("osn-trials", ClinicalTrialsDoc, ClinicalTrialsDoc(*"123456"))
    with pytest.raises(
        InputError, match="which field of ir:osn-trials is the text; the fields are: doc_id, title, cond"
    ):
        fetch([name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_query_without_a_default_text_has_the_text_of_its_field() -> None:
    from ir_datasets.datasets.bright import BrightQuery

    assert text_of(BrightQuery("q", "rain", *"1234567")) == "rain"


def test_a_name_where_a_path_is_expected_says_how_to_fetch_it() -> None:
    with pytest.raises(InputError) as refused:
        list(read_corpus("ir:beir/nq"))
    assert "osn data fetch ir:beir/nq" in str(refused.value)
    with pytest.raises(InputError) as refused:
        load_training("ir:beir/nq")
    assert "osn data fetch ir:beir/nq" in str(refused.value)
