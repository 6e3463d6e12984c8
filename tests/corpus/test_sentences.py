"""Where the sentences of a text begin and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.corpus.sentences import LONGEST, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('He said "Go!" Then he left.', ['He said "Go!"', "Then he left."]),
        ("At 3.5 km e.g. here. Élan vital. Äpfel.", ["At 3.5 km e.g. here.", "Élan vital.", "Äpfel."]),
        ("彩虹是光。它有七种颜色。", ["彩虹是光。", "它有七种颜色。"]),
        ("a title\n\n  a line\n", ["a title", "a line"]),
        ("One.\n- two.\nthree", ["One.", "- two.", "three"]),
        ("  ", []),
    ],
)
def test_sentences_end_behind_a_full_stop_or_a_line(text: str, expected: list[str]) -> None:
    assert [text[slice(*span)] for span in sentences(text)] == expected


@given(st.text(alphabet=st.sampled_from("ab .!?\n。\"'A\ud800\x00é"), max_size=60) | st.text(max_size=60))
def test_sentences_follow_each_other_and_hold_all_but_white_space(text: str) -> None:
    text = text * (1 + 2 * LONGEST // max(1, len(text)))
    spans = sentences(text)
    assert "".join("".join(text[slice(*span)].split()) for span in spans) == "".join(text.split())
    assert all(0 < end - start <= LONGEST for start, end in spans)
    assert spans == sorted(spans)
