"""Configurations that cannot be meant are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from opensearch_neural.errors import InputError  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings, QueryAsContextConfig  # noqa: E402


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["variant=simcse"], "expected one of cocondenser, cot-mae"),
        (["variant=cot-mae", "condenser={steps: 5}"], "CoT-MAE has no Condenser head"),
        (["corpora=[]"], "corpora names no corpus"),
        (["passage_length=4"], "at least 8"),
        (["masking.passage=1.5"], "shares between 0 and 1"),
        (["retriever={output: out, train: [{path: x}]}"], "retriever.output and output must be different"),
        (["retriever={output: out/retriever, train: [{path: x}]}"], "neither inside the other"),
        (["cache=out/passages"], "cache must not be inside output"),
        (["cache=out"], "cache must not be inside output"),
        (["candidates=6"], "candidates is 6, but generation.candidates 5"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(changes: list[str], message: str) -> None:
    from trainers.common.config import load_config

    given = ["output=out", "backbone=b", "corpora=[{path: c}]", *changes]
    with pytest.raises(InputError, match=message):
        load_config(QueryAsContextConfig, None, given)


@pytest.mark.parametrize("cache", ["work", "work/passages", "work/model/.stages"])
def test_passages_may_lie_where_the_model_does_not(cache: str) -> None:
    config = QueryAsContextConfig(
        output=Path("work/model"), corpora=[CorpusSettings(Path("c"))], backbone="b", cache=Path(cache)
    )
    assert config.folder == Path(cache)
