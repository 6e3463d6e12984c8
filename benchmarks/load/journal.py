"""Finished blocks on disk, so that nothing measured is lost to a crash, and an interrupted run goes on.

`blocks.jsonl`: a first line with what identifies the run, then a line a block. A run whose identity is the same
continues; of a round that was cut off it keeps the levels at which every engine had its turn. A run that differs is not
mixed with it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.load.blocks import Block
from opensearch_neural.errors import InputError
from opensearch_neural.files import write_text

FILE_NAME = "blocks.jsonl"
FORMAT = 1


class Journal:
    """The blocks of one run, in the order in which they were measured."""

    def __init__(self, path: Path, identity: dict[str, Any], blocks: list[Block]) -> None:
        self.path = path
        self.identity = identity
        self.blocks = blocks

    @classmethod
    def open(cls, folder: Path, identity: dict[str, Any], *, engines: int, restart: bool = False) -> Journal:
        """The run's journal: continued where it is the same run's, begun anew where there is none, or `restart`.

        Raises InputError where the folder holds another run.
        """
        path = Path(folder) / FILE_NAME
        blocks: list[Block] = []
        if path.exists() and not restart:
            found, blocks = read(path)
            if found != identity:
                differs = sorted(key for key in {*found, *identity} if found.get(key) != identity.get(key))
                raise InputError(
                    f"{path} holds the blocks of another run (differs in {', '.join(differs)})",
                    "give another --out, or --restart to begin anew",
                )
            blocks = whole_levels(blocks, engines)
        journal = cls(path, identity, blocks)
        journal._rewrite()
        return journal

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(block.to_json()) + "\n")

    def _rewrite(self) -> None:
        lines = [json.dumps({"format": FORMAT, "identity": self.identity})]
        lines += [json.dumps(block.to_json()) for block in self.blocks]
        write_text(self.path, "".join(line + "\n" for line in lines))


def read(path: Path) -> tuple[dict[str, Any], list[Block]]:
    """(identity, blocks). A last line that a crash cut off is left out. Raises InputError for another file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        head = json.loads(lines[0])
        identity = head["identity"]
        if head["format"] != FORMAT:
            raise InputError(f"{path} is of format {head['format']}, and this version reads format {FORMAT}")
    except (ValueError, KeyError, IndexError, TypeError):
        raise InputError(f"{path}, line 1: not the journal of a load run") from None
    blocks = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            blocks.append(Block.from_json(json.loads(line)))
        except ValueError:
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: not valid JSON") from None
    return identity, blocks


def whole_levels(blocks: list[Block], engines: int) -> list[Block]:
    """The blocks of those levels of a round at which all of so many engines were measured; broken ones do not count."""
    fine = [block for block in blocks if block.broken is None]
    sizes = Counter((block.round, block.level) for block in fine)
    return [block for block in fine if sizes[block.round, block.level] >= engines]
