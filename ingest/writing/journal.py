"""The journal: records which batches of a corpus are in the index, so that an interrupted run can be continued.

The corpus is read in order and written in batches. When OpenSearch has acknowledged a batch (which is then in its
translog), one line is appended and synced:

    {"from": 512, "to": 1024, "digest": "…", "written": 511, "letters": 1}

`from` and `to` count the corpus's records, rejected ones included. `digest` covers their contents, so that a changed corpus
is noticed instead of partly skipped. After a kill, only the batches in flight are encoded again. A document that is written
twice is in the index once, since its id is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ingest.writing.target import Target
from opensearch_neural.errors import ClusterError, ModelError
from opensearch_neural.files import file_stem, read_json_object, write_json, write_text
from opensearch_neural.home import home
from opensearch_neural.index.record import LONGEST_NAME
from opensearch_neural.locks import acquire


@dataclass(frozen=True)
class Identity:
    """The identity of a journal: the index as it was created, the corpus, and how it is read and encoded."""

    index_uuid: str
    """The index's own id, which another index of the same name does not have."""
    corpus: str
    """The name of the corpus."""
    sparse: str | None
    """The hash of the sparse model or, with a corpus's table, of its SPLADE."""
    dense: str | None
    """The hash of the dense model."""
    reader: str = ""
    """How records are read: `CorpusSource.reading`."""
    quantized: str | None = None
    """The hash of the quantized model."""

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]


def journal_path(target: Target, identity: Identity) -> Path:
    """The journal's file. Raises ClusterError for a name or uuid, both from the server, that could name another folder."""
    index, uuid = checked_name(target.index), checked_name(target.uuid)
    return home() / "ingest" / f"{file_stem(index)}-{uuid}-{identity.hash}.journal"


def checked_name(name: str) -> str:
    """`name`, if it is possible as an index's name or uuid in OpenSearch. Raises ClusterError otherwise."""
    forbidden = re.search(r'[\\/*?"<>| ,#:\x00-\x1f\x7f]', name)
    if forbidden or not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME or name in (".", ".."):
        raise ClusterError(
            f"the server names an index {name[:80]!r}, which is not a possible name",
            "is the server OpenSearch? no file with such a name is written",
        )
    return name


@dataclass(frozen=True)
class WrittenBatch:
    """Records [start, end) of the corpus, written."""

    start: int
    """The number of its first record in the corpus."""
    end: int
    """The number after its last record."""
    digest: str
    """The digest of the records' contents."""
    written: int
    """How many documents OpenSearch acknowledged."""
    letters: int
    """How many records and documents were rejected."""
    refused: tuple[int, ...] = ()
    """Places of the refused documents among those to write; empty in journals of earlier versions."""


class Journal:
    """Opens the journal at `path`. With `restart`, or if it has another identity, a new journal replaces it.

    batches: {number of the first record: batch} that an earlier run wrote
    notes: further facts that this run stored beside the journal
    Raises ClusterError if another process on this machine is writing the same corpus into the same index.
    """

    def __init__(self, path: Path, identity: Identity, *, restart: bool = False) -> None:
        self.path = path
        self.batches: dict[int, WrittenBatch] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        header = {"journal": 2, **asdict(identity)}
        lines = [] if restart else _read(path)
        if lines and lines[0] == header:
            self.batches = {line["from"]: _batch(line) for line in lines[1:]}
            self._rewrite([header, *lines[1:]])  # an incomplete last line is dropped
        else:
            self._rewrite([header])
            self._notes_path.unlink(missing_ok=True)
        self.notes = _read_notes(self._notes_path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def done(self, batch: WrittenBatch) -> None:
        self._file.write(json.dumps(_line(batch)) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    @property
    def _notes_path(self) -> Path:
        return self.path.with_suffix(".json")

    def note(self, **entries: Any) -> None:
        """Store facts beside the journal; they are removed with it."""
        self.notes |= entries
        write_json(self._notes_path, self.notes)

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def remove(self) -> None:
        """Remove the journal after a complete and verified run, since there is nothing to continue."""
        self.path.unlink(missing_ok=True)
        self._notes_path.unlink(missing_ok=True)
        Path(self._lock.name).unlink(missing_ok=True)
        self.close()

    def _rewrite(self, lines: list[dict]) -> None:
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def _locked(path: Path) -> IO[str]:
    """A lock file beside the journal, locked while it is open. (The journal itself is replaced by renaming.)"""
    lock = acquire(path.with_suffix(".lock"), None)
    if lock is None:
        raise ClusterError(
            "another process on this machine is writing this corpus into this index", "wait for it, or stop it"
        )
    return lock


def _read(path: Path) -> list[dict]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break  # cut off by a crash; nothing after it can be trusted
    return lines


def _read_notes(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except ModelError:  # missing or damaged
        return {}


def _line(batch: WrittenBatch) -> dict:
    return {
        "from": batch.start,
        "to": batch.end,
        "digest": batch.digest,
        "written": batch.written,
        "letters": batch.letters,
        **({"refused": list(batch.refused)} if batch.refused else {}),
    }


def _batch(line: dict) -> WrittenBatch:
    refused = tuple(line.get("refused", ()))
    return WrittenBatch(line["from"], line["to"], line["digest"], line["written"], line["letters"], refused)
