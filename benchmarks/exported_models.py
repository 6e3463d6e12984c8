"""Models with ONNX exports: ONNX Runtime encodes the queries of a benchmark."""

from __future__ import annotations

import shutil
from pathlib import Path

from opensearch_neural.files import replaced
from opensearch_neural.models import directory
from opensearch_neural.models.dense.onnx_encoder import INT8_FILE, export_onnx


def exported(model: str, out: Path) -> str:
    """A copy of a model's directory with ONNX exports, below `out`; the directory itself if it has them.

    The copy has the same hash, so an index accepts either.
    """
    folder = directory.locate(model)
    if any(folder.rglob(INT8_FILE)):
        return model
    copy = out / f"onnx-{directory.hash_files(folder)}"
    if not copy.is_dir():
        with replaced(copy) as beside:
            # Hidden files are for training only and no part of the model.
            shutil.copytree(folder, beside, ignore=shutil.ignore_patterns(".*"))
            export_onnx(beside, int8=True)
    return str(copy)
