"""Rows of Hugging Face data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corpus_files import RECORDS, ids, read

from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError


def test_a_data_set_names_its_splits_where_the_one_asked_for_is_missing(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    folder = tmp_path / "saved"
    rows = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"corpus": rows, "extra": rows.select([0])}).save_to_disk(str(folder))
    assert ids(f"hf:{folder}:extra") == ["a"]
    assert len(ids(f"hf:{folder}:corpus")) == 3
    with pytest.raises(InputError, match="has no split 'train': corpus, extra"):
        read(f"hf:{folder}:train")
    with pytest.raises(InputError, match="has several splits: corpus, extra"):
        read(folder)


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"hf:nobody/nothing: cannot be loaded"):
        read("hf:nobody/nothing")
    with pytest.raises(InputError, match="names no data set"):
        read("hf:")


def test_a_stream_that_breaks_off_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a connection that is lost in the middle of a streamed data set: an error out of the iterator."""
    datasets = pytest.importorskip("datasets", reason="data sets need the extra [corpora]")

    def breaking(*args: Any, **options: Any) -> Any:
        def rows() -> Any:
            yield from RECORDS[:2]
            raise ConnectionError("Read timed out.\nmore")

        return datasets.IterableDataset.from_generator(rows)

    monkeypatch.setattr("datasets.load_dataset", breaking)
    documents: list[str] = []
    with pytest.raises(InputError, match=r"hf:some/set, row 3: the data set breaks off: Read timed out\.\n") as raised:
        for document in read_corpus("hf:some/set", on_reject=print):
            documents.append(document.id)
    assert documents == ["a", "b"] and raised.value.remedy
