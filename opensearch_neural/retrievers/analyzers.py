"""What analyzers of OpenSearch make of a text, without a cluster: those of ANALYZERS, as `osn ingest --analyzer` names them.

    analyzer("german")("Die Häuser der Städte") == ["haus", "stadt"]

A text is cut as Lucene's StandardTokenizer cuts it (at Unicode's word boundaries) and put in lower case. Stop words are the
lists of bm25s, corrected where Lucene's differ. Stems are by Snowball (PyStemmer), where Lucene's are, too. German has a
stemmer of Lucene's own, which is short enough to be written here: the light stemmer of Savoy, "Light stemming approaches for
the French, Portuguese, German and Hungarian languages", 2006.

Compared with OpenSearch 3.5 on the 12,000 most frequent words of each language: the terms of English, German, Dutch and
Russian words are the same, of Norwegian all but 6. Of Swedish 178 differ: PyStemmer cuts the ending of livet or huset, which
the older Snowball of Lucene keeps. OpenSearch 2.19 has the same terms but for one Swedish stop word, sitta, where 3.5 has
sitt. In all languages, Chinese and Japanese are cut into runs of letters here, ½ and m² are words of their own, and emoji
are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.index.mapping import ENGLISH_STOP_WORDS

Analyzer = Callable[[str], list[str]]
"""A text → its terms in their order, repeated ones too."""

_LETTER = r"[^\W\d_]"
_RUN = r"\w[\w\u0300-\u036f\u00ad\u200c\u200d]*"
"""Letters, digits and underscores, with combining accents, soft hyphens and joiners after them."""
_WORD = re.compile(rf"{_RUN}(?:(?:(?<={_LETTER})['’.:·](?={_LETTER})|(?<=\d)['’.,;](?=\d)){_RUN})*")
"""A word: a run, or several with a point or apostrophe between two letters, or a comma between two digits."""


class Language(NamedTuple):
    """How Lucene analyzes a language that Snowball stems."""

    stop_words: str
    """bm25s's list"""
    stemmers: tuple[str, ...]
    """PyStemmer's names of the stemmer; the first that it has counts"""
    added: str = ""
    """Lucene's stop words that bm25s's list lacks"""
    removed: str = ""
    """what is no stop word in Lucene"""
    kept: tuple[tuple[str, str], ...] = ()
    """words with terms that are not by the stemmer"""


LANGUAGES = {
    "dutch": Language(
        # What PyStemmer 3 calls dutch is another stemmer.
        "DUTCH",
        ("dutch_porter", "dutch"),
        kept=(("fiets", "fiets"), ("bromfiets", "bromfiets"), ("ei", "eier"), ("kind", "kinder")),
    ),
    "norwegian": Language("NORWEGIAN", ("norwegian",)),
    "russian": Language("RUSSIAN", ("russian",), "говорил жизнь кажется сегодня сказал сказала сказать человек"),
    "swedish": Language("SWEDISH", ("swedish",), "sitt", "sitta"),
}
GERMAN = Language("GERMAN", (), "unse unsem unsen unses", "dass unsere unserem unseren unseres")
ANALYZERS = ("standard", "english", "german", *LANGUAGES)
"""The analyzers of OpenSearch that are followed here."""


def check_analyzer(name: str) -> None:
    """Raises ValueError for an analyzer that is not among ANALYZERS."""
    if name not in ANALYZERS:
        raise ValueError(
            f"the analyzer {name!r} of an index cannot be followed without a cluster: expected {', '.join(ANALYZERS)}"
        )


def analyzer(name: str) -> Analyzer:
    """The analyzer of ANALYZERS with this name. Raises InputError for another name, MissingExtra without bm25s."""
    try:
        check_analyzer(name)
    except ValueError as error:
        raise InputError(str(error)) from None
    if name == "standard":
        return _words
    stopped, stem = _english() if name == "english" else _of_language(name)
    return partial(_terms, stopped=stopped, stem=stem, possessive=name == "english")


def german_stem(word: str) -> str:
    """The stem of a word in lower case by Lucene's filters german_normalization and light_german."""
    word = _UMLAUT.sub(r"\1", word).translate(_ACCENTS)
    for ending in _LIGHT_ENDINGS:
        word = ending.sub("", word)
    return word


_UMLAUT = re.compile(r"([ao]|(?<![aeiouqyäöü])u)e")
"""An umlaut in two letters; the u of neue or Quelle is none."""
_ACCENTS = str.maketrans("àáâäòóôöìíîïùúûü", "aaaaooooiiiiuuuu") | {ord("ß"): "ss"}
_LIGHT_ENDINGS = (
    re.compile(r"(?<=.{3})(?:ern|e[mnrs]|e|(?<=[bdfghklmnt])s)$"),
    re.compile(r"(?<=.{3})(?:est|e[nr]|(?<=[bdfghklmnt])st)$"),
)
_LATER_PORTER = re.compile(r"^(.*[aeiouy][^aeiouy].*)(log|bl)(?:y|ies)$")
"""technology, possibly: Lucene has two rules that Porter added to his algorithm later (logi → log, bli → ble), and leaves
words of one or two letters alone."""
_POSSESSIVE = re.compile(r"['’＇]s$")


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _terms(text: str, *, stopped: frozenset[str], stem: Callable[[str], str], possessive: bool) -> list[str]:
    words = _words(text)
    if possessive:
        words = [_POSSESSIVE.sub("", word) for word in words]
    return [stem(word) for word in words if word not in stopped]


def _english() -> tuple[frozenset[str], Callable[[str], str]]:
    porter = _stemmer("porter")

    def stem(word: str) -> str:
        return porter(_LATER_PORTER.sub(r"\1\2e", word)) if len(word) > 2 else word

    return ENGLISH_STOP_WORDS, stem


def _of_language(name: str) -> tuple[frozenset[str], Callable[[str], str]]:
    try:
        from bm25s import stopwords
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the analyzer {name}", "eval") from error
    language = LANGUAGES.get(name, GERMAN)
    words = {*getattr(stopwords, f"STOPWORDS_{language.stop_words}"), *language.added.split()}
    stopped = frozenset(words.difference(language.removed.split()))
    if language is GERMAN:
        return stopped, german_stem
    kept, stem = dict(language.kept), _stemmer(*language.stemmers)
    return stopped, lambda word: kept.get(word) or stem(word)


def _stemmer(*names: str) -> Callable[[str], str]:
    try:
        import Stemmer
    except ModuleNotFoundError as error:
        raise MissingExtra("BM25's stems", "eval") from error
    stem: Callable[[str], str] = Stemmer.Stemmer(next(name for name in names if name in Stemmer.algorithms())).stemWord
    return stem
