"""The user's own loss function: `osn train sparse --loss package:function`. It needs no registration.

    def loss(scores: Tensor, targets: Targets) -> Tensor: ...

It replaces the contrastive term and takes its weight (`objective.info_nce`). Errors name the module, the function, its
parameters, what it returned, and the line where it failed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = "expected package:function, such as my_losses:hinge for the function hinge in my_losses.py of this folder"
SIGNATURE = "it is called with scores, (queries, documents), and targets, and returns a scalar tensor"

LOSS = "loss"
"""In `made_from` of a training: the hash of the user's own loss."""
LOSS_OPTION = {"loss": ("objective.loss", "package:function, a loss of your own in place of the contrastive one.")}
"""The shortcut --loss of trainings with an objective."""


class Targets(Protocol):
    """The inputs of a loss besides the scores; "documents" are all documents of the batch, of all its queries."""

    candidates: Tensor
    """(queries, 1 + negatives) int64: columns of `scores`, each query's positive first, then its hard negatives"""
    excluded: Tensor
    """(queries, documents) bool: documents that must not count as negatives, other positives of the query for instance"""
    teacher: Any
    """`objective.TeacherScores` if the objective distils: `scores` and `known`, both (queries, candidates), or (queries,
    documents) with `all_pairs`; else None"""


Loss = Callable[["Tensor", Targets], "Tensor"]


@functools.cache
def load_loss(name: str) -> Loss:
    """The function with this name ("package.module:function"); the current folder is searched too.

    Raises InputError if the name is malformed, the module cannot be imported, or the function cannot be called as a loss.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise InputError(f"{name!r} is not the name of a function", EXPECTED)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InputError(f"{name}: there is no module {error.name!r}", f"looked in {folder}; {EXPECTED}") from None
        raise InputError(f"{name}: {module_name} imports {error.name!r}, which is not installed") from None
    except Exception as error:
        raise InputError(f"{name}: {module_name} cannot be imported: {failure(error)}") from error
    function = getattr(module, attribute, None)
    if function is None:
        own = [
            key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module_name
        ]
        raise InputError(f"{name}: {module_name} has no {attribute!r}", f"functions there: {', '.join(own) or 'none'}")
    if not callable(function):
        raise InputError(f"{name} is not a function but of type {type(function).__name__}", SIGNATURE)
    try:
        inspect.signature(function).bind("scores", "targets")
    except TypeError as error:
        raise InputError(f"{name}{inspect.signature(function)} cannot be called: {error}", SIGNATURE) from None
    loss: Loss = function
    return loss


def loss_hash(name: str | None) -> list[bytes]:
    """The source of the loss's module, for the fingerprint of a training: a changed source makes another training."""
    if name is None:
        return []
    path: str | None
    try:
        path = inspect.getsourcefile(inspect.unwrap(load_loss(name)))
    except TypeError:  # An object that can be called, one of torch's modules for instance: the module that makes it.
        path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return [] if path is None else [Path(path).read_bytes()]


def loss_noted(name: str | None) -> dict[str, str]:
    """{LOSS: a hash of `loss_hash`}, for `made_from` of a training; {} without a loss of the user's own."""
    source = loss_hash(name)
    return {LOSS: hashlib.sha256(source[0]).hexdigest()[:16]} if source else {}


def failure(error: Exception) -> str:
    """An exception in one line, with file and line in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # The first is ours, which called.
    own = [frame for frame in frames if not any(part in frame.filename for part in ("importlib", "site-packages"))]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
        return f"SyntaxError: {error.msg}{place}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}{place}"
