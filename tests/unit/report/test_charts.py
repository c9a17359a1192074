import re
from xml.etree import ElementTree

import msgspec
import pytest

from stepprobe.model.report import Chart
from stepprobe.report import charts, html
from tests.fakes import reports

DRAWING = {"svg", "g", "path", "line", "text", "rect", "tspan", "defs", "clipPath"}


def chart(**changes):
    known = {"name": "c", "title": "t", "mark": "bar", "x": "a.b", "y": "[0]", "x_title": "x", "y_title": "y"}
    return Chart(**{**known, "values": ({"a.b": "one", "[0]": 1.5}, {"a.b": "two", "[0]": 3}), **changes})


def drawn(spec):
    root = ElementTree.fromstring(charts.svg(spec, "c"))
    return root, [(element.tag.rpartition("}")[2], element) for element in root.iter()]


def every_chart():
    for name, build in reports.REPORTS.items():
        report = build()
        yield from (pytest.param(charts.spec(held), id=f"{name}-{held.name}") for held in report.charts)


@pytest.mark.parametrize("spec", list(every_chart()))
def test_a_drawing_holds_shapes_and_text_alone(spec):
    _, elements = drawn(spec)
    assert {tag for tag, _ in elements} <= DRAWING
    names = {name.lower() for _, element in elements for name in element.attrib}
    assert not any(name.startswith("on") or "href" in name or name == "style" for name in names)


def test_hostile_labels_are_text():
    _, elements = drawn(charts.spec(reports.hostile().charts[0]))
    words = [element.text or "" for tag, element in elements if tag == "text"]
    assert any(text.startswith("</script>") for text in words)
    assert not any("\u202e" in text or "\x1b" in text for text in words)


def test_labels_of_a_picture_in_cells_do_not_run_into_each_other():
    places = [place * 131072 // 32 for place in range(32)]
    cells = tuple({"key": key, "query": query, "seen": 0.5} for query in places for key in places)
    root, _ = drawn(charts.spec(chart(mark="rect", x="key", y="query", color="seen", values=cells)))
    across, down = (
        [one for one in axis.iter() if one.tag.endswith("}text") and "translate(" in one.get("transform", "")]
        for axis in root.findall('.//*[@class="mark-text role-axis-label"]')
    )
    assert [one.text for one in across] == [one.text for one in down] == ["0", "32,768", "65,536", "98,304"]


def test_names_of_fields_are_not_read_as_paths():
    root, _ = drawn(charts.spec(chart()))
    bars = root.findall('.//*[@class="mark-rect role-mark marks"]/*')
    assert len(bars) == 2


def test_long_names_that_look_alike_stay_apart():
    alike = ("x" * 20 + middle + "y" * 20 for middle in "12")
    _, elements = drawn(charts.spec(chart(values=tuple({"a.b": name, "[0]": 1} for name in alike))))
    assert [element.text for _, element in elements].count("x" * 9 + "…" + "y" * 18) == 2


def test_ids_of_two_drawings_differ_and_are_found():
    spec = charts.spec(chart())
    one, other = charts.svg(spec, "one"), charts.svg(spec, "other")
    ids = [set(re.findall(r'<clipPath id="([^"]+)"', text)) for text in (one, other)]
    assert all(ids)
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#([^)]+)\)", one)) == ids[0]
    assert one == charts.svg(spec, "one")


def test_nothing_is_fetched():
    spec = charts.spec(chart()) | {"data": {"url": "http://127.0.0.1:9/values.json"}}
    with pytest.raises(ValueError, match="not allowed"):
        charts.svg(spec, "c")


def test_values_that_are_not_drawn_are_counted():
    gaps = chart(values=({"a.b": "one", "[0]": None}, {"a.b": "two", "[0]": float("nan")}, {}, {"a.b": "x", "[0]": 1}))
    assert charts.omitted(gaps) == 3
    report = msgspec.structs.replace(reports.clean(), charts=(gaps,))
    assert "3 of 4 values are not drawn" in html.render(report)
    many = chart(values=tuple({"a.b": step, "[0]": 1} for step in range(charts.MOST_VALUES + 7)), mark="line")
    assert charts.omitted(many) == 7


def test_without_vl_convert_the_page_says_so(monkeypatch):
    def absent(spec, name):
        raise ImportError

    monkeypatch.setattr(charts, "svg", absent)
    page = html.render(reports.data_bound())
    assert html.NO_CHARTS in page
    assert "<svg" not in page
    assert 'class="bar data"' in page


def test_dots_lie_on_the_lines_of_their_series():
    """A line of two places in each of two series, and three dots of two kinds."""
    lines = [("one", x, x, None) for x in (0, 10)] + [("two", x, 2 * x, None) for x in (0, 10)]
    dots = [("one", 5, 5, "measured"), ("two", 5, 10, "measured"), ("two", 7, 14, "held out")]
    values = tuple(dict(zip(("rows", "x", "y", "dot"), one, strict=True)) for one in (*lines, *dots))
    held = chart(mark="line", x="x", y="y", color="rows", dots="dot", values=values)
    root, elements = drawn(charts.spec(held))
    symbols = root.findall('.//*[@class="mark-symbol role-mark layer_1_marks"]/*')
    assert len(symbols) == 3
    colors = [one.attrib["fill"] for one in symbols]
    assert colors[1] == colors[2] != colors[0]
    shapes = [one.attrib["d"] for one in symbols]
    assert shapes[0] == shapes[1] != shapes[2]
    assert set(colors) <= {element.attrib.get("stroke") for tag, element in elements if tag == "path"}
    words = {element.text for tag, element in elements if tag == "text"}
    assert {"one", "two", "measured", "held out"} <= words
