"""Markdown that reads well raw, and still means what the text says."""

import html.parser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from stepprobe.report import markdown
from stepprobe.report.text import visible
from tests.fakes import reports


class Words(html.parser.HTMLParser):
    """The text of an HTML document, and its elements."""

    def __init__(self, written):
        super().__init__()
        self.text, self.elements = "", set()
        self.feed(written)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)

    def handle_data(self, data):
        self.text += data


def rendered(written):
    return Words(MarkdownIt("gfm-like", {"linkify": False}).render(written))


@pytest.mark.parametrize("text", ["zero_grad(set_to_none=True)", "train.py:3", "1.5 ms", "-3", "0.25", "a -> b"])
def test_harmless_text_is_left_alone(text):
    assert markdown.prose(text) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1. first", "1\\. first"),
        ("- item", "\\- item"),
        ("---", "\\---"),
        ("> quoted", "\\> quoted"),
        ("__init__", "\\_\\_init\\_\\_"),
        ("_a_ b_c", "\\_a\\_ b_c"),
    ],
)
def test_markup_is_escaped(text, written):
    assert markdown.prose(text) == written


MEANT = st.text(st.sampled_from("ab1 _*`~#>-+=.)(<&|\\\\[]!:/"), min_size=1, max_size=24)


@given(MEANT)
def test_prose_reads_as_the_text(text):
    page = rendered(markdown.prose(text))
    assert " ".join(page.text.split()) == " ".join(visible(text).split())
    assert page.elements <= {"p"}


@given(MEANT.filter(str.strip))
def test_a_cell_reads_as_the_text(text):
    page = rendered(f"| a | b |\n| --- | --- |\n| {markdown.cell(text)} | end |")
    assert " ".join(page.text.split()) == " ".join(f"a b {visible(text)} end".split())
    assert page.elements <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


def test_places_in_tables_are_code():
    assert markdown.cell("transformers/trainer.py:1919 _run_epoch") == "`transformers/trainer.py:1919 _run_epoch`"
    assert markdown.cell("3.5") == "3.5"
    assert markdown.cell("steady steps per second") == "steady steps per second"


def test_a_report_reads_well_raw():
    written = markdown.render(reports.data_bound())
    assert "\\." not in written
    assert "\\_" not in written.replace("\\_\\_getitem\\_\\_", "")
