"""All renderers over all reports: none fails, none lets foreign text act, all say the same."""

import html.parser
import json as plain_json
import re
import subprocess
import sys

import msgspec
import pytest
from markdown_it import MarkdownIt

from stepprobe import probes
from stepprobe.model.accounts import LABELS
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Control, Remedy
from stepprobe.model.report import Column, Report, Table
from stepprobe.report import html as page
from stepprobe.report import json, markdown, terminal
from stepprobe.report.fitting import WORD_MOST
from stepprobe.report.numbers import NBSP
from stepprobe.report.text import visible
from tests.fakes.reports import REPORTS

RENDERERS = {"terminal": terminal.render, "html": page.render, "markdown": markdown.render, "json": json.render}
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")

both = pytest.mark.parametrize("name", REPORTS)
every_renderer = pytest.mark.parametrize("renderer", RENDERERS)


class Page(html.parser.HTMLParser):
    """Elements, attributes and text of an HTML document."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.text = set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def words(text):
    """The text as it is read: one kind of space."""
    return " ".join(text.replace(NBSP, " ").split())


def read(renderer, report):
    """What a person reads in the rendered report."""
    written = RENDERERS[renderer](report)
    if renderer == "html":
        return words(" ".join(Page(written).text))
    if renderer == "markdown":
        return words(" ".join(Page(MarkdownIt("gfm-like", {"linkify": False}).render(written)).text))
    return words(written)


@every_renderer
@both
def test_it_renders_the_same_text_twice_and_hides_nothing(name, renderer):
    report = REPORTS[name]()
    written = RENDERERS[renderer](report)
    assert written == RENDERERS[renderer](REPORTS[name]())
    assert written.endswith("\n")
    assert UNSEEN.findall(written) == []
    assert written.encode().decode() == written
    assert (NBSP in written) <= (renderer == "html")


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
@both
def test_all_say_the_same(name, renderer):
    report = REPORTS[name]()
    shown = read(renderer, report)
    spaceless = shown.replace(" ", "")
    said = [report.headline, report.title, *report.notes]
    said += [text for finding in report.findings for text in (finding.title, finding.where)]
    said += [remedy.action for finding in report.findings for remedy in finding.remedies]
    said += [text for table in report.tables for text in (table.title, table.caption)]
    # A terminal breaks long words, so spaces are left out of the comparison.
    assert [text for text in said if visible(text).replace(" ", "") not in spaceless] == []
    if report.ledger:
        wall = report.figures["step.wall"].value
        assert f"wall {wall:.{2 if wall == 10 else 3 if wall < 10 else 1}f} 100.0" in shown
        assert "unattributed" in shown
        assert all(LABELS[row.account] in shown for row in report.ledger if row.share >= 0.0005)


@pytest.mark.parametrize("name", ["data_bound", "undecided", "ranks"])
def test_gains_are_the_same_everywhere(name):
    said = re.compile(r"per step, (−\d+ % ± \d+)|(undecided: \S+ ms per)")
    gains = {renderer: said.findall(read(renderer, REPORTS[name]())) for renderer in RENDERERS}
    assert gains["terminal"]
    assert gains["terminal"] == gains["html"] == gains["markdown"]


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
def test_a_gain_that_cannot_be_predicted_or_is_only_bounded_is_said_in_words(renderer):
    report = REPORTS["data_bound"]()
    finding = report.findings[0]
    ceiling = Estimate(value=60.0, unit="ms", low=0.0, high=131.0, n=9, method="between 0 and all", bound=True)
    open_low = Estimate(value=65.0, unit="ms", low=0.0, high=131.0, n=9, method="half as often")
    remedies = tuple(Remedy(action="a", predicted=predicted) for predicted in (None, ceiling, open_low))
    finding = msgspec.structs.replace(finding, remedies=remedies)
    shown = read(renderer, msgspec.structs.replace(report, findings=(finding,)))
    assert "cannot be predicted from this run" in shown
    assert "would save at most 131.0 ms per step, up to −30 %" in shown
    assert "would save 65.0 ms per step" in shown
    assert msgspec.json.decode(json.render(msgspec.structs.replace(report, findings=(finding,))), type=Report)


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
def test_of_a_bound_cost_the_ends_are_said_and_no_middle(renderer):
    report = REPORTS["data_bound"]()
    cost = Estimate(value=65.9, unit="ms", low=0.0, high=131.8, n=9, method="between 0 and all", bound=True)
    remedies = (Remedy(action="a", predicted=cost, fixed=exact(0.0, "ms", 9)),)
    finding = msgspec.structs.replace(report.findings[0], cost=cost, remedies=remedies)
    shown = read(renderer, msgspec.structs.replace(report, findings=(finding,)))
    assert "costs between 0 and 132 ms per step (how much of it, this run cannot tell)" in shown
    assert "65.9" not in shown
    assert "stay either way" not in shown


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (exact(3, "count", 9, "below 0"), "3 below 0"),
        (exact(28, "layers", 28, "counted"), "concerns 28 layers, 50.0 % of all"),
        (exact(0.5, "1", 9, "rows"), "concerns 50.0 % of all"),
    ],
)
def test_a_finding_that_is_no_matter_of_time_speaks_of_none(renderer, cost, said):
    report = REPORTS["data_bound"]()
    remedies = (Remedy(action="pad with another id", predicted=None),)
    finding = msgspec.structs.replace(report.findings[0], title="T", cost=cost, share=0.5, remedies=remedies)
    shown = read(renderer, msgspec.structs.replace(report, findings=(finding,)))
    assert said in shown
    assert not re.search("costs|cannot be predicted|expensive", shown)


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
@pytest.mark.parametrize(("others", "said"), [((2,), "finding 2"), ((1, 3), "findings 1 and 3")])
def test_findings_that_may_hold_the_same_time_are_named_by_number(renderer, others, said):
    report = REPORTS["data_bound"]()
    finding = msgspec.structs.replace(report.findings[0], overlaps=others)
    shown = read(renderer, msgspec.structs.replace(report, findings=(finding,)))
    also = ", and its changes may save the same time"  # this one has two
    assert f"may hold the same time as {said}{also}: do not add up what they cost or save" in shown


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
def test_gains_that_may_be_of_the_same_time_are_named_under_the_ledger(renderer):
    """Of three findings the first and the third share time, and each save some; so do a fourth and a fifth."""
    report = REPORTS["data_bound"]()
    plain = "Gains do not add up"
    assert plain not in read(renderer, report)
    first, second, third = report.findings

    def shown(*overlaps):
        five = (first, second, third, second, third)
        found = (msgspec.structs.replace(one, overlaps=shared) for one, shared in zip(five, overlaps, strict=True))
        return read(renderer, msgspec.structs.replace(report, findings=tuple(found)))

    assert f"{plain}: findings 1 and 3 may save the same time." in shown((3,), (), (1,), (), ())
    assert f"{plain}: findings 1, 2 and 3 may save the same time." in shown((3,), (3,), (1, 2), (), ())
    two = "findings 1 and 3 may save the same time, and so may findings 4 and 5."
    assert f"{plain}: {two}" in shown((3,), (), (1,), (5,), (4,))
    untold = msgspec.structs.replace(third, remedies=(), overlaps=(1,))
    found = (msgspec.structs.replace(first, overlaps=(3,)), second, untold)
    assert plain not in read(renderer, msgspec.structs.replace(report, findings=found)), "only one of them gains"


@pytest.mark.parametrize("renderer", ["terminal", "html", "markdown"])
def test_changes_to_one_finding_are_not_to_be_added_up(renderer):
    report = REPORTS["data_bound"]()
    said = "its changes may save the same time: do not add up what they save"
    assert read(renderer, report).count(said) == 1, "only the first finding has two changes"
    one = msgspec.structs.replace(report.findings[0], remedies=report.findings[0].remedies[:1])
    assert said not in read(renderer, msgspec.structs.replace(report, findings=(one,)))


@pytest.mark.parametrize("renderer", ["html", "markdown"])
def test_controls_are_folded_away_unless_one_failed(renderer):
    def controls(*held):
        return RENDERERS[renderer](msgspec.structs.replace(REPORTS["data_bound"](), controls=held))

    exact_one = Control(name="a", expected=120.0, recovered=120.0, ok=True, tolerance=1e-9)
    close = Control(name="b", expected=120.0, recovered=118.9, ok=True, tolerance=0.05)
    lost = Control(name="c", expected=120.0, recovered=90.0, ok=False, tolerance=0.05)
    assert "<details open>" not in controls(exact_one, close)
    assert "<details open>" in controls(exact_one, lost)
    shown = words(controls(exact_one, close).replace("\\", ""))
    assert "2 of 2 recovered" in shown
    assert "b: expected 120, recovered 118.9 (±5 % allowed)" in shown
    assert shown.count("allowed") == 1


def test_no_line_of_the_page_begins_with_a_dot():
    written = page.render(REPORTS["data_bound"]())
    headings = re.findall(r"<h1>.*?</h1>|<th scope=.row.>[^<]*", written)
    assert [text for text in headings if " · " in text] == []
    assert [line for line in terminal.render(REPORTS["data_bound"](), width=40).splitlines() if line[:2] == "· "] == []


def test_the_ledger_is_drawn_once():
    assert page.render(REPORTS["data_bound"]()).count("<svg") == len(REPORTS["data_bound"]().charts)


def test_no_html_element_or_attribute_comes_from_foreign_text():
    tame, ranks, hostile = (Page(page.render(REPORTS[name]())) for name in ("data_bound", "ranks", "hostile"))
    assert hostile.elements <= tame.elements | ranks.elements
    assert "script" not in hostile.elements
    assert not any(name.startswith("on") for name, _ in hostile.attributes)
    outside = [value for name, value in hostile.attributes if name in ("href", "src", "action", "xlink:href")]
    assert all(value.startswith(("#", "data:,")) for value in outside)
    assert "7 * 7" in "".join(hostile.text)


def test_code_in_a_sentence_or_a_cell_is_marked_and_nothing_of_it_acts():
    report, hostile = REPORTS["data_bound"](), "</code><img src=x_y onerror=a_b(1)>"
    finding = msgspec.structs.replace(
        report.findings[0],
        title="item() at train.py:30 says <b>max_length=512</b> of layers (softmax)",
        remedies=(Remedy(action=f"DataLoader(num_workers=2): {hostile}", predicted=None),),
    )
    columns = (Column(title="a"), Column(title="what to set", code=True))
    rows = (("train.py:30 main", f"f(x) {hostile}"), (f"one word {hostile}", ""))
    table = Table(name="t", title="t", columns=columns, rows=rows, caption="name it with --max-length.")
    written = page.render(msgspec.structs.replace(report, findings=(finding,), tables=(table,), notes=("see a_b",)))
    assert (
        "<code>item()</code> at <code>train.py:30</code> says &lt;b&gt;<code>max_length=512</code>&lt;/b&gt;" in written
    )
    assert "<code>DataLoader(num_workers=2)</code>: &lt;/code&gt;&lt;img " in written
    assert "of layers (softmax)</h3>" in written
    assert "<td><code>train.py:30 main</code></td>" in written
    assert '<td><code class="line">f(x) &lt;/code&gt;&lt;img' in written
    assert "name it with <code>--max-length</code>." in written
    assert "<li>see <code>a_b</code></li>" in written
    assert "img" not in Page(written).elements


def test_no_markdown_markup_comes_from_foreign_text():
    rendered = Page(MarkdownIt("gfm-like", {"linkify": False}).render(markdown.render(REPORTS["hostile"]())))
    assert rendered.elements <= {
        *("h3", "h4", "p", "code", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li", "br"),
        *("details", "summary"),
    }
    assert "@everyone" not in markdown.render(REPORTS["hostile"]())


def test_a_markdown_table_keeps_its_columns():
    parsed = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render(REPORTS["hostile"]()))
    rows, cells = [], 0
    for token in parsed:
        cells += token.type in ("td_open", "th_open")
        if token.type == "tr_close":
            rows.append(cells)
            cells = 0
    assert set(rows) == {5, 2, 6}


@both
def test_json_keeps_the_contract(name):
    report = REPORTS[name]()
    held = plain_json.loads(json.render(report), parse_constant=pytest.fail)
    assert list(held)[:7] == ["schema", "command", "verdict", "figures", "findings", "controls", "run"]
    assert set(held) == {field.name for field in msgspec.structs.fields(Report)}
    assert held["schema"] == report.schema
    if name not in ("hostile", "not_measured"):
        assert msgspec.json.decode(json.render(report), type=Report) == report


def test_json_text_is_exact():
    report = REPORTS["hostile"]()
    held = plain_json.loads(json.render(report))
    assert held["title"] == report.title.replace("\udcff", "‹U+DCFF›")
    assert held["figures"]["hostile"]["value"] is None


def test_the_schema_describes_what_is_written():
    schema = plain_json.loads(json.schema())
    defined = schema["$defs"]
    assert defined["Report"]["required"] == list(json.FIELDS) == list(defined["Report"]["properties"])
    for build in REPORTS.values():
        faults = list(mismatches(plain_json.loads(json.render(build())), schema, defined))
        assert faults == []
    broken = plain_json.loads(json.render(REPORTS["clean"]())) | {"verdict": "fine", "notes": [3]}
    assert len(list(mismatches(broken, schema, defined))) == 2


def mismatches(value, schema, defined):
    """Where ``value`` departs from the part of JSON Schema that msgspec writes."""
    if "$ref" in schema:
        schema = defined[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(any(mismatches(value, choice, defined)) for choice in schema["anyOf"]):
            yield value
        return
    if "enum" in schema and value not in schema["enum"]:
        yield value
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds["null"] = type(None)
    allowed = schema.get("type", [])
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if allowed and not any(isinstance(value, kinds[kind]) for kind in allowed):
        yield value
        return
    if isinstance(value, list):
        for item in value:
            yield from mismatches(item, schema.get("items", {}) or {}, defined)
    if isinstance(value, dict):
        yield from (name for name in schema.get("required", ()) if name not in value)
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            yield from mismatches(item, inner if isinstance(inner, dict) else {}, defined)


def test_renderers_load_late():
    code = "import sys; from stepprobe.report import html, json, markdown, terminal, charts;"
    code += "print([m for m in ('rich', 'jinja2', 'vl_convert', 'numpy', 'torch') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("name", ["padding", "bucket", "check", "mask", "trace"])
def test_tables_of_the_probes_cut_nothing_at_usual_widths(name, width):
    probe = probes.load(name)
    evidence, _ = probe.control()
    report = probe.derive(evidence)
    assert any(codes(table) for table in report.tables) is (name == "bucket")
    for table in report.tables:
        alone = msgspec.structs.replace(report, tables=(table,), findings=(), notes=(), ledger=())
        shown = terminal.render(alone, width=width)
        assert [row[place] for row in table.rows for place in codes(table) if row[place] not in shown] == []
        cells = [cell for row in table.rows for cell in row if isinstance(cell, str)]
        long = [cell for cell in cells if max(map(len, cell.split()), default=0) > WORD_MOST]  # kernels of a trace
        said = "".join([*cells, table.caption, table.title, report.title, report.headline])
        assert shown.count("…") <= said.count("…") + len(long), shown


def codes(table):
    return [place for place, head in enumerate(table.columns) if head.code]
