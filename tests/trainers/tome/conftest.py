"""A tiny T5 and a corpus with URLs for TOME's tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from tome_setup import ANIMALS  # noqa: E402

from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    texts = [
        f"title: {animal} passage: the {animal} lives here https://zoo.org/{animal} what is a" for animal in ANIMALS
    ] * 3
    tokenizer = backbones.train_tokenizer(texts, "byte-level", 440)
    torch.manual_seed(0)
    new = NewBackbone("t5", layers=1, hidden=32, heads=2, dropout=0.0)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: eight animals with a URL each, two questions for each, and one test question for the first four."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "qrels").mkdir()
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for at, animal in enumerate(ANIMALS):
            text = f"the {animal} lives here and eats what it finds in the garden"
            line = {"_id": f"d{at}", "title": animal, "text": text, "url": f"https://zoo.org/{animal}"}
            corpus.write(json.dumps(line) + "\n")
            for number, query in enumerate((f"what is a {animal}", f"where does the {animal} live", f"{animal} food")):
                queries.write(json.dumps({"_id": f"q{at}-{number}", "text": query}) + "\n")
    for split_name, numbers, animals in (("train", (0, 1), 8), ("test", (2,), 4)):
        lines = [f"q{at}-{number}\td{at}\t1" for at in range(animals) for number in numbers]
        (folder / "qrels" / f"{split_name}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(f"{line}\n" for line in lines)
        )
    return folder
