"""Topics of TREC as queries: what people have on their disks, and what is left of it after damage."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from corpus_files import written

from opensearch_neural.corpus.judgements import JudgedQueries, read_queries
from opensearch_neural.errors import InputError

# As of ad hoc tracks: open tags, labels, a title on the line behind its tag, fields that are not asked for.
CLASSIC = b"""

<top>
<head> Tipster Topic Description
<num> Number: 301
<dom> Domain: International
<title> Topic: International
  Organized Crime

<desc> Description:
Identify organizations that participate in
<narr> Narrative:
A relevant document has x < y and <b>bold</b>.
</top>

<TOP>
<num> Number:  302
<title>
Poliomyelitis and R&amp;D
<desc>
</TOP>
"""
CLOSED = (
    b"<top><num>301</num><title>International Organized Crime</title><desc>no</desc></top>\n<top>\n<num>302</num>\n"
    + (b"<title>\nPoliomyelitis and R&D\n</title>\n</top>\n")
)
TITLES = {"301": "International Organized Crime", "302": "Poliomyelitis and R&D"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("topics.301-302", CLASSIC),
        ("topics.301-302.gz", gzip.compress(CLASSIC)),
        ("topics.txt", CLASSIC.replace(b"\n", b"\r\n")),
        ("topics.tsv", b"\xef\xbb\xbf" + CLOSED),
        ("topics.xml", CLOSED),
    ],
)
def test_numbers_and_titles_are_queries(name: str, data: bytes, tmp_path: Path) -> None:
    assert read_queries(written(tmp_path / name, data)) == TITLES


def test_a_title_may_hold_tags_that_are_no_fields_of_topics(tmp_path: Path) -> None:
    data = b"<top>\n<num> 1\n<title> H<sub>2</sub>O of <i>Salmo\n trutta</i>\n<con> water\n<desc> x\n</top>\n"
    titles = {"1": "H<sub>2</sub>O of <i>Salmo trutta</i>"}
    assert read_queries(written(tmp_path / "t", data)) == titles
    closed = b"<top><num>1</num><title>H<sub>2</sub>O of <i>Salmo trutta</i></title><desc>x</desc></top>\n"
    assert read_queries(written(tmp_path / "u", closed)) == titles


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<top>\n<num> 1\n<title> a\n<top>\n<num> 2\n", "line 4: a topic begins, and that of line 1 has no </top>"),
        (b"<top>\n<num> 1\n<title> a\n", "t ends within the topic that begins on line 1"),
        (b"<top>\n<num> 1\n<title> a lo", "line 3: the file ends within this record"),
        (b"<top>\n<num> 1\n<desc> a\n</top>\n", "line 1: the topic has no <title>"),
        (b"<top>\n<num> Number:\n<title> a\n</top>\n", "line 1: the <num> of the topic is empty"),
        (b"<top>\n<num> 1\n<title> Topic:\n</top>\n", "line 1: the <title> of the topic is empty"),
        (b"<top>\n<num> 1\n<num> 2\n", "line 3: the topic that begins on line 1 has a second <num>"),
        (b"<top></top>\n", "line 1: the topic has no <num>"),
        (b"<top><num>1<title>a</top>\n<num> 2\n", "line 2: expected <top>, found '<num>'"),
        (b"<top><num>1<title>a</top>\n2\tb\n", "line 2: expected <top>, found '2\\tb'"),
        (b"<top>\n<num> 1\n<title> caf\xe9\n</top>\n", "line 3: invalid UTF-8 at byte 12 of the line"),
        (
            b"<top><num>1<title>a</top>\n<top><num>1<title>b</top>\n",
            "line 2: the query id '1' occurs twice with different",
        ),
        (b"<top><num>" + b"1" * 600 + b"<title>a</top>\n", "line 1: the id (num) is 600 bytes long"),
    ],
)
def test_damage_is_named_with_its_line(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_queries(written(tmp_path / "t", data))
    assert message in raised.value.message


def test_judgements_that_number_topics_otherwise_are_told_of(tmp_path: Path) -> None:
    topics = written(tmp_path / "topics", b"<top><num>051<title>Airbus subsidies</top>\n")
    qrels = written(tmp_path / "qrels", b"51 0 d1 1\n")
    with pytest.raises(
        InputError, match=r"has the text of none of them, for instance '51'\n  the queries have ids like '051'"
    ):
        JudgedQueries.of_files(topics, qrels)
    qrels = written(tmp_path / "qrels", b"051 0 d1 1\n")
    assert JudgedQueries.of_files(topics, qrels).queries == {"051": "Airbus subsidies"}
