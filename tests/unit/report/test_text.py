import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprobe.report.text import pinched, shortened, visible

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain /path.py:3", "plain /path.py:3"),
        ("a\u202eb", "a‹U+202E›b"),
        ("a\u200fb\u2066c", "a‹U+200F›b‹U+2066›c"),
        ("a\nb\r\nc\td", "a↵b↵c d"),
        ("\x00\x1b[31m\x7f\x9b", "‹U+0000›‹U+001B›[31m‹U+007F›‹U+009B›"),
        ("\udcff", "‹U+DCFF›"),
        ("naïve · 日本 −1 €", "naïve · 日本 −1 €"),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown


@given(ANY_TEXT)
def test_visible_text_hides_nothing_and_can_be_encoded(text):
    shown = visible(text)
    shown.encode()
    assert not {"Cc", "Cf", "Cs", "Zl", "Zp"} & {unicodedata.category(character) for character in shown}
    assert visible(shown) == shown


@given(ANY_TEXT, st.integers(1, 60))
def test_cut_text_fits(text, width):
    for cut in (pinched, shortened):
        assert len(cut(text, width)) <= width
        assert cut(text, width) == text or "…" in cut(text, width)


def test_a_pinched_path_keeps_its_file_and_line():
    assert pinched("/home/user/project/src/dataset.py:88", 20) == "/home/…dataset.py:88"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (46, "…masking_utils.py:282 _ignore_causal_mask_sdpa"),
        (45, "masking_utils.py:282 _ignore_causal_mask_sdp…"[:45]),
        (30, "masking_utils.py:282 _ignore_…"[:30]),
        (24, "masking_utils.py:282"),
        (12, "ma…ls.py:282"),
        (5, "…:282"),
    ],
)
def test_a_place_keeps_its_line(width, shown):
    assert pinched("transformers/masking_utils.py:282 _ignore_causal_mask_sdpa", width) == shown


def test_shortened_text_ends_at_a_word():
    assert shortened("the dataset tokenises every row", 24) == "the dataset tokenises…"
