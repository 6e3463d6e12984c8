"""The options by which commands that search say which models and settings the engines are to use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from opensearch_neural.errors import InputError
from opensearch_neural.queries import Rare

Command = TypeVar("Command", bound=Callable[..., Any])


def models_options(command: Command) -> Command:
    """The options that name the models of an index: `sparse`, `dense`, `pq` and `backend`."""
    options = [
        click.option("--sparse", default=None, help="Sparse model, where it is not found by the index's record."),
        click.option("--dense", default=None, help="Dense model, likewise."),
        click.option("--pq", default=None, help="Quantized model, likewise."),
        click.option(
            "--backend",
            type=click.Choice(["torch", "onnx", "onnx-int8"]),
            default="torch",
            show_default=True,
            help="What encodes dense and quantized queries; onnx needs no torch, but an exported model; int8: faster.",
        ),
    ]
    decorated: Any = command
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def engine_options(command: Command) -> Command:
    """Those, and how the engines search; the command gets them as `how`, the settings of `open_engines`.

    Raises InputError for a threshold that is none.
    """
    tuned = "as `osn tune` chose, else"
    options = [
        click.option(
            "--rare",
            "osn_rare",
            default=None,
            help="high-idf-first, cascade: which tokens are rare: ratio:R, share:S or count:N.  "
            f"[default: {tuned} ratio:0.5]",
        ),
        click.option(
            "--window",
            "osn_window",
            type=click.IntRange(min=1),
            default=None,
            help=f"Of these: hits of each shard rescored with all tokens.  [default: {tuned} 30, or 100]",
        ),
        click.option(
            "--dense-window",
            "osn_dense_window",
            type=click.IntRange(min=1),
            default=None,
            help=f"cascade, jpq-rescore: hits of each shard rescored with their codes.  [default: {tuned} 50, or 100]",
        ),
        click.option(
            "--weight",
            "osn_weight",
            type=click.FloatRange(min=0, min_open=True),
            default=None,
            help=f"cascade: of the codes' scores, a share of the tokens' weights.  [default: {tuned} 0.025]",
        ),
        click.option(
            "--faiss",
            "osn_faiss",
            type=click.Path(path_type=Path),
            default=None,
            help="faiss: the file of codes that `osn encode --faiss` wrote.  [default: the codes of the index]",
        ),
        click.option(
            "--urls",
            "osn_urls_folder",
            type=click.Path(path_type=Path),
            default=None,
            help="tome: the folder that `osn urls` wrote for the corpus.",
        ),
        click.option(
            "--tome",
            "osn_tome",
            default=None,
            help="Generative model, where it is not found by the record of --urls.",
        ),
        click.option(
            "--beams",
            "osn_beams",
            type=click.IntRange(min=1),
            default=None,
            help="tome: URLs looked for side by side, and found at most; 1 is greedy.  [default: 10]",
        ),
    ]

    @functools.wraps(command)
    def with_settings(
        *args: Any,
        sparse: str | None,
        dense: str | None,
        pq: str | None,
        backend: str,
        osn_rare: str | None,
        osn_window: int | None,
        osn_dense_window: int | None,
        osn_weight: float | None,
        osn_faiss: Path | None,
        osn_urls_folder: Path | None,
        osn_tome: str | None,
        osn_beams: int | None,
        **kwargs: Any,
    ) -> Any:
        try:
            rare = Rare.parse(osn_rare) if osn_rare else None
        except ValueError as error:
            raise InputError(f"--rare: {error}") from None
        how = {
            "sparse_model": sparse,
            "dense_model": dense,
            "pq_model": pq,
            "backend": backend,
            "rare": rare,
            "window": osn_window,
            "dense_window": osn_dense_window,
            "weight": osn_weight,
            "faiss_index": osn_faiss,
            "urls": osn_urls_folder,
            "tome_model": osn_tome,
            "beams": osn_beams,
        }
        return command(*args, how=how, **kwargs)

    decorated: Any = with_settings
    for option in reversed(options):
        decorated = option(decorated)
    return models_options(decorated)
