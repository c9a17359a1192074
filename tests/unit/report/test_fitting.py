"""Tables fitted to the width: nothing that a user has to type is cut, numbers stay in columns."""

import io

import msgspec
import pytest
from rich.console import Console

from stepprobe.model.report import Column, Table
from stepprobe.report import markdown
from stepprobe.report.fitting import BLOCKS_MOST, Drawn, blocks, heads, told_apart, wrapped
from stepprobe.report.terminal_tables import table
from tests.fakes import reports

LINES = ("F.linear_cross_entropy(…, options=LinearCrossEntropyOptions(batch_chunk_size=1024))", "num_chunks = 2", "x")
WIDTHS = (40, 60, 80, 100, 140)


def made(titles, *rows, code=(), units=None):
    units = units or {}
    columns = tuple(Column(title=title, unit=units.get(title, ""), code=title in code) for title in titles)
    return Table(name="t", title="T", columns=columns, rows=rows)


def drawn(shown, width):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    for element in table(shown, width):
        console.print(element, soft_wrap=not hasattr(element, "renderable"))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_line_to_copy_is_whole_at_any_width(width):
    rows = [("packing, whole set (best fit decreasing)", "LLaMA-Factory", line) for line in LINES]
    text = drawn(made(("strategy", "trainer", "line"), *rows, code=("line",)), width)
    assert [line for line in LINES if line not in text] == []
    assert "LLaMA-Factory" in text


def test_a_line_to_copy_stands_in_its_row_where_there_is_room():
    text = drawn(made(("where", "line"), ("TRL", "packing=True"), code=("line",)), 80)
    assert any(line.split() == ["TRL", "packing=True"] for line in text.splitlines())


def test_titles_wrap_before_a_column_of_numbers_is_stacked():
    titles = ("strategy", *(f"a long title number {number}" for number in range(7)))
    text = drawn(made(titles, ("random", *range(7))), 80)
    assert any(line.split() == ["random", *map(str, range(7))] for line in text.splitlines())


def test_columns_stand_in_blocks_with_the_first_column_in_each():
    titles = ("strategy", *(f"column{number}" for number in range(12)))
    text = drawn(made(titles, ("random", *range(12)), ("sorted", *range(12, 24))), 80)
    assert text.count("random") == text.count("sorted") == text.count("strategy") == 2
    assert [title for title in titles if title not in text] == []
    assert [str(number) for number in range(24) if str(number) not in text.split()] == []


def test_what_wants_more_blocks_is_a_list_of_records():
    titles = ("strategy", *(f"column{number}" for number in range(40)))
    text = drawn(made(titles, ("random", *range(40))), 80)
    assert text.count("random") == 1
    assert any(line.split() == ["column39", "39"] for line in text.splitlines())


@pytest.mark.parametrize("room", [40, 50, 78, 138])
def test_blocks_fit_and_hold_every_column_once(room):
    columns = [Drawn("key", ["a", "bb"], True)] + [Drawn(f"t{n} x", ["1" * (3 + n)], False) for n in range(9)]
    found = blocks(columns, room)
    assert found is not None
    assert len(found) <= BLOCKS_MOST
    assert [place for block in found for place, _ in block if place] == list(range(1, 10))
    for block in found:
        assert block[0][0] == 0
        assert sum(width for _, width in block) + 2 * (len(block) - 1) <= room
        assert all(width >= columns[place].narrowest for place, width in block)


def test_prose_wraps_and_a_place_or_a_long_word_is_cut():
    assert wrapped("no query sees the future", 12) == "no query\nsees the\nfuture"
    assert wrapped("src/data/dataset.py:88 __getitem__", 20).count("\n") == 0
    assert ":88" in wrapped("src/data/dataset.py:88 __getitem__", 20)
    assert len(wrapped("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64", 20)) == 20
    assert "…" in wrapped("one two three four five six seven eight nine ten", 10)  # more lines than a row may take


def test_different_texts_stay_different():
    """They differ in their middle, which is what is cut of a single one; the last two far behind it."""
    kernels = [f"elementwise_kernel<128, 4, {name}Functor<float>, std::array<char*, 3>>" for name in ("Mul", "Add")]
    kernels += [f"unrolled<{'x' * 200}{name}{'y' * 200}>" for name in "ab"] + ["short", "short"]
    for room in (20, 32, 50):
        cells = told_apart(kernels, room)
        assert len({*cells}) == 5
        assert cells[-2:] == ["short", "short"]
        assert all(len(line) <= room for cell in cells for line in cell.splitlines())
    assert "Mul" in told_apart(kernels, 32)[0]
    assert told_apart(kernels[:1], 32) == [wrapped(kernels[0], 32)]


def test_titles_stand_on_the_line_below():
    columns = [Drawn("rows", ["1"], False), Drawn("worst batch", ["1"], False)]
    assert heads(columns, ((0, 4), (1, 5))) == ["\nrows", "worst\nbatch"]


def test_markdown_sets_a_line_to_copy_as_code():
    held = made(("where", "line"), ("TRL", 'packing=True, packing_strategy="bfd"'), code=("line",))
    written = markdown.render(msgspec.structs.replace(reports.clean(), tables=(held,)))
    assert '`packing=True, packing_strategy="bfd"`' in written
