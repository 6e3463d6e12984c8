"""The URLs of a corpus as a trie of tokens: it gives the tokens that a generative model may write next.

    urls = CorpusUrls.build(documents, encode, model=info)     documents: (id, URL)
    urls.save("urls/tldr")
    urls = CorpusUrls.load("urls/tldr")
    urls.trie.children(nodes)                                  the tokens that continue each of these beginnings

A trie belongs to a corpus and a model, and names both by their hashes. `extended` adds documents by building it again. The
model is not trained again, so it has not learned the added documents: it finds them only by what its first stage writes, or
by the words of their URLs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, replaced, write_json

FORMAT = 2
OUTSIDE = -1
"""The node of a sequence that begins no URL, and the document of a node that ends no URL."""
FILE, TENSORS, DOCUMENTS = "urls.json", "trie-{}.safetensors", "documents-{}.jsonl"
"""`urls.json` names the other two files, whose names hold a hash of their content."""

Ids = NDArray[np.int64]
EncodeUrl = Callable[[str], Sequence[int]]


@dataclass(frozen=True, eq=False)
class Trie:
    """Sequences of tokens by their beginnings. Node 0 is the empty beginning; edge i leads to node i + 1.

    Nodes are numbered level by level, so the edges of a node are adjacent.
    """

    tokens: NDArray[np.int32]
    """(edges,), the token of each edge; node n has the edges [offsets[n]:offsets[n + 1]], with ascending tokens"""
    offsets: Ids
    """(nodes + 1,)"""
    ends: NDArray[np.int32]
    """(nodes,), the number of the sequence that ends at a node, or `OUTSIDE`"""
    depth: int
    """tokens of the longest sequence"""

    @classmethod
    def build(cls, sequences: Sequence[Sequence[int]]) -> Trie:
        """The trie of these sequences. Raises ValueError for an empty sequence, and `Repeated` for two equal sequences."""
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        if not len(lengths) or not lengths.min():
            raise ValueError("a trie needs sequences of at least one token")
        every = (token for sequence in sequences for token in sequence)
        flat = np.fromiter(every, dtype=np.int64, count=int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        size = int(flat.max()) + 1
        node = np.zeros(len(lengths), dtype=np.int64)  # the node that each sequence has reached
        parents: list[Ids] = []
        tokens: list[Ids] = []
        nodes = 1
        for depth in range(int(lengths.max())):
            longer = np.flatnonzero(lengths > depth)
            edges, edge_of = np.unique(node[longer] * size + flat[starts[longer] + depth], return_inverse=True)
            node[longer] = nodes + edge_of
            nodes += len(edges)
            parents.append(edges // size)
            tokens.append(edges % size)
        ends = np.full(nodes, OUTSIDE, dtype=np.int32)
        ends[node] = np.arange(len(node))
        if len(twice := np.flatnonzero(ends[node] != np.arange(len(node)))):
            raise Repeated(int(twice[0]), int(ends[node[twice[0]]]))
        offsets = np.searchsorted(np.concatenate(parents), np.arange(nodes + 1))
        return cls(np.concatenate(tokens).astype(np.int32), offsets.astype(np.int64), ends, int(lengths.max()))

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.ends)

    def children(self, nodes: Ids) -> tuple[Ids, Ids, Ids]:
        """All continuations of all nodes: (rows, tokens, children), each (continuations,); the token leads from nodes[row]
        to the child. `OUTSIDE` has none."""
        first = np.where(nodes == OUTSIDE, 0, self.offsets[nodes])
        counts = np.where(nodes == OUTSIDE, 0, self.offsets[nodes + 1] - first)
        rows = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = first[rows] + within
        return rows, self.tokens[edges].astype(np.int64), edges + 1

    def opening(self, end: int) -> tuple[list[int], int]:
        """(the tokens with which all sequences begin, without `end`; the node that they lead to)"""
        tokens: list[int] = []
        node = 0
        while self.offsets[node + 1] - self.offsets[node] == 1 and self.tokens[self.offsets[node]] != end:
            tokens.append(int(self.tokens[self.offsets[node]]))
            node = int(self.offsets[node]) + 1
        return tokens, node


class Repeated(ValueError):
    """Two sequences of a trie are equal: `first` and `second` are their numbers."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"sequences {first} and {second} are equal")
        self.first, self.second = first, second


@dataclass(frozen=True, eq=False)
class CorpusUrls:
    """The documents of a corpus, and the trie of the token sequences of their URLs."""

    ids: list[str]
    """of each document, in the corpus's order"""
    urls: list[str]
    """of each document, in the same order"""
    trie: Trie
    """a sequence's number is its document's position in `ids`"""
    model: dict[str, str]
    """"name" and "hash" of the model whose tokens these are"""
    length: int
    """tokens at which a URL is cut, its end token included"""
    corpus: str
    """a hash of ids and URLs"""
    numbered: bool = False
    """whether URLs that several documents share have a number behind them; an index does not know these numbers"""

    @classmethod
    def build(
        cls,
        documents: Iterable[tuple[str, str | None]],
        encode: EncodeUrl,
        *,
        model: dict[str, str],
        length: int,
        numbered: bool = False,
        learned: Mapping[str, str] | None = None,
    ) -> CorpusUrls:
        """The URLs of (id, URL) pairs, which are read once.

        encode: from a URL to its tokens, the end token last. model: {"name", "hash"}. numbered: if documents share a URL,
        the second gets "#2" behind it, and so on. learned: {id: URL with its number} that the model has learned; such a
        numbered URL stays with its document and is given to no other.

        A URL of more than `length` tokens is cut to its first length − 1 tokens and the end token, unless another URL would
        be cut to the same tokens. Raises InputError for a document without a URL, for two documents with the same URL (or
        with URLs that the tokenizer cannot distinguish), and if there is no document.
        """
        ids: list[str] = []
        urls: list[str] = []
        known: dict[str, int] = {}
        counts: Counter[str] = Counter()
        seen: set[str] = set()
        learned_urls = learned or {}
        reserved = frozenset(learned_urls.values()) if numbered else frozenset()
        digest = hashlib.sha256()
        for identifier, url in documents:
            if not url:
                raise InputError(f"the document {identifier!r} has no URL", "give every document its own URL")
            if numbered:
                name = learned_urls.get(identifier, "")
                url = name if _numbered(name, url) else _free(url, known, reserved, counts)
            if (other := known.setdefault(url, len(ids))) != len(ids):
                raise InputError(
                    f"the documents {ids[other]!r} and {identifier!r} have the same URL {url!r}",
                    "give each document its own URL (an anchor), or number them: "
                    "osn train tome --set settings.number_urls=true",
                )
            if identifier in seen:
                raise InputError(f"two documents have the id {identifier!r}", "give every document its own id")
            seen.add(identifier)
            ids.append(identifier)
            urls.append(url)
            digest.update(json.dumps([identifier, url]).encode())
        if not ids:
            raise InputError("the corpus holds no document, so there is no URL")
        try:
            trie = Trie.build(_kept(urls, encode, length))
        except Repeated as error:
            first, second = error.first, error.second
            raise InputError(
                f"the documents {ids[first]!r} and {ids[second]!r} have URLs that the tokenizer of {model['name']} cannot "
                f"tell apart: {urls[first]!r} and {urls[second]!r}",
                "a byte-level tokenizer distinguishes all URLs: osn train mlm --set new.architecture=t5",
            ) from None
        return cls(ids, urls, trie, dict(model), length, digest.hexdigest()[:16], numbered)

    def __len__(self) -> int:
        return len(self.ids)

    def documents(self) -> Iterator[tuple[str, str]]:
        """(id, URL) of each."""
        return zip(self.ids, self.urls, strict=True)

    def extended(
        self,
        documents: Iterable[tuple[str, str | None]],
        encode: EncodeUrl,
        *,
        learned: Mapping[str, str] | None = None,
    ) -> CorpusUrls:
        """These documents and the given ones; a given document replaces the document with the same id.

        The model stays the same, and URLs keep their numbers, both here and in `learned`. Raises InputError as `build`
        does, and if two given documents have the same id.
        """
        merged: dict[str, str | None] = dict(self.documents())
        added: set[str] = set()
        for identifier, url in documents:
            if identifier in added:
                raise InputError(f"two of the added documents have the id {identifier!r}")
            added.add(identifier)
            merged[identifier] = url
        return CorpusUrls.build(
            merged.items(),
            encode,
            model=self.model,
            length=self.length,
            numbered=self.numbered,
            learned={**(learned or {}), **dict(self.documents())},
        )

    def sequences(self, encode: EncodeUrl) -> list[tuple[int, ...]]:
        """The tokens of each document in the trie, which the model learns to write. encode: as given to `build`."""
        return _kept(self.urls, encode, self.length)

    def save(self, folder: Path) -> None:
        """Write the folder. `urls.json`, which names the other files, is written last, so an earlier version stays whole
        until then.

        Raises InputError as `check_folder` does.
        """
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(f"{self.model['hash']} {self.length} {self.corpus}".encode()).hexdigest()[:16]
        of_trie, of_documents = folder / TENSORS.format(digest), folder / DOCUMENTS.format(digest)
        tensors: dict[str, NDArray[Any]] = {
            "tokens": self.trie.tokens,
            "offsets": self.trie.offsets,
            "ends": self.trie.ends,
        }
        with replaced(of_trie) as beside:
            save_file(tensors, beside)
        with replaced(of_documents) as beside, beside.open("w", encoding="utf-8") as file:
            for identifier, url in self.documents():
                file.write(json.dumps([identifier, url], ensure_ascii=True) + "\n")
        about = {"format": FORMAT, "model": self.model, "corpus": self.corpus, "documents": len(self)}
        files = {"files": {"trie": of_trie.name, "documents": of_documents.name}}
        size = {"numbered": self.numbered, "length": self.length, "depth": self.trie.depth, "nodes": len(self.trie)}
        write_json(folder / FILE, about | size | files)
        for pattern in (TENSORS, DOCUMENTS):
            for other in folder.glob(pattern.format("*")):
                if other not in (of_trie, of_documents):
                    other.unlink()

    @classmethod
    def load(cls, folder: Path) -> CorpusUrls:
        """The URLs that `save` wrote. Raises ModelError, naming the folder, if a file is missing or files do not match."""
        if not (folder / FILE).is_file():
            raise ModelError(f"{folder} holds no URLs of a corpus ({FILE} is missing)", "`osn model urls` writes them")
        about = read_json_object(folder / FILE)
        try:
            if about["format"] != FORMAT:
                raise ModelError(
                    f"{folder / FILE}: format {about['format']}, expected {FORMAT}", "`osn model urls` again"
                )
            model = {key: str(about["model"][key]) for key in ("name", "hash")}
            tensors = load_file(folder / about["files"]["trie"])
            trie = Trie(tensors["tokens"], tensors["offsets"], tensors["ends"], int(about["depth"]))
            with (folder / about["files"]["documents"]).open(encoding="utf-8") as file:
                pairs: list[Any] = [json.loads(line) for line in file]
            ids, urls = [str(identifier) for identifier, _ in pairs], [str(url) for _, url in pairs]
            whole = len(trie) == len(trie.tokens) + 1 == len(trie.offsets) - 1
            if not whole or len(ids) != about["documents"] or int(trie.ends.max()) + 1 != len(ids):
                raise ValueError("its parts do not belong together")
            return cls(ids, urls, trie, model, int(about["length"]), str(about["corpus"]), bool(about["numbered"]))
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise ModelError(f"{folder} cannot be read: {error}", "`osn model urls` writes it again") from None


def check_folder(folder: Path) -> None:
    """Raises InputError for a file, and for a folder with other content, such as a model or a corpus."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file", "name a folder for the URLs")
    own = (FILE, TENSORS.format("*"), DOCUMENTS.format("*"))
    names = sorted(file.name for file in folder.iterdir()) if folder.exists() else []
    others = [name for name in names if not name.startswith(".") and not any(fnmatch(name, mine) for mine in own)]
    if others:
        raise InputError(f"{folder} holds something else ({others[0]})", "name another folder for the URLs")


def _kept(urls: Sequence[str], encode: EncodeUrl, length: int) -> list[tuple[int, ...]]:
    """The tokens of each URL, shortened unless another URL would be shortened to the same tokens."""
    whole = [tuple(encode(url)) for url in urls]
    short = [shortened(sequence, length) for sequence in whole]
    alike = Counter(short)
    return [sequence if alike[cut] > 1 else cut for sequence, cut in zip(whole, short, strict=True)]


def shortened(sequence: Sequence[int], length: int) -> tuple[int, ...]:
    """A sequence as a model learns it: if longer than `length`, its first length − 1 tokens and its last, the end token."""
    return tuple(sequence) if len(sequence) <= length else (*sequence[: length - 1], sequence[-1])


def _numbered(name: str, url: str) -> bool:
    """Whether `name` is this URL, with or without a number behind it."""
    number = name.removeprefix(f"{url}#")
    return name == url or (name != number and number.isdecimal())


def _free(url: str, known: Mapping[str, int], reserved: Collection[str], counts: Counter[str]) -> str:
    """The URL, with the lowest free number behind it if the URL is known or taken. counts: the last number of each URL."""
    free = url
    while free in known or free in reserved:
        counts[url] += 1
        free = f"{url}#{counts[url] + 1}"
    return free
