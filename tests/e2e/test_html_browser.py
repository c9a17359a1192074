"""The HTML report in a real browser: two widths, light and dark, no error, no request, nothing cut off."""

import base64
import json
import os
import shutil
import subprocess
import sys

import pytest

from stepprobe.report import html
from tests.fakes.reports import REPORTS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the HTML report is not opened in a browser"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-default-apps", "--no-default-browser-check", "--remote-debugging-pipe"),
)
SCHEMES = ("light", "dark")
WIDTHS = (375, 1280)

FACTS = """(() => {
  const under = e => {
    const color = getComputedStyle(e).backgroundColor;
    return e.parentElement && color === "rgba(0, 0, 0, 0)" ? under(e.parentElement) : color;
  };
  const written = [...document.querySelectorAll("body *")]
    .filter(e => [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim()))
    .map(e => [getComputedStyle(e)[e.closest("svg") ? "fill" : "color"], under(e), e.tagName + "." + e.className]);
  const reach = [...document.querySelectorAll("body *")]
    .filter(e => !e.closest(".scroll, .skip, .unseen, details:not([open]), svg"))
    .map(e => [e.getBoundingClientRect().right, e.tagName + "." + e.className]);
  return {
    width: innerWidth, overflow: document.documentElement.scrollWidth,
    beyond: reach.filter(([right]) => right > innerWidth + 0.5).map(([, name]) => name),
    written, paper: under(document.body), dark: matchMedia("(prefers-color-scheme: dark)").matches,
    scripts: document.scripts.length, loaded: performance.getEntriesByType("resource").map(e => e.name),
    headings: [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].map(e => +e.tagName[1]),
    unlabelled: [...document.querySelectorAll(".scroll")].filter(
      e => e.tabIndex !== 0 || !(e.ariaLabel || document.getElementById(e.getAttribute("aria-labelledby")))).length,
    dangling: [...document.querySelectorAll('a[href^="#"]')].filter(
      a => !document.getElementById(a.getAttribute("href").slice(1))).length,
    h1: document.querySelector("h1").textContent,
    small: Math.min(...[...document.querySelectorAll("svg.marks text")].map(t => t.getBoundingClientRect().height)),
  };
})()"""


class Browser:
    """Chromium over the DevTools pipe: messages are JSON, each ended by a NUL byte."""

    def __init__(self, profile):
        commands, self._send = os.pipe()
        self._receive, events = os.pipe()
        # The DevTools pipe is fixed to descriptors 3 (commands) and 4 (events).
        wire = f"import os,sys; os.dup2({commands},13); os.dup2({events},14); os.dup2(13,3); os.dup2(14,4);"
        wire += "os.execv(sys.argv[1], sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", wire, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self._rest, self._count, self.events, self._session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def wait(self, method):
        while not any(event["method"] == method for event in self.events):
            self._message()

    def open(self, path, width, scheme):
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")
        return self.value(FACTS)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path.read_bytes()

    def complaints(self):
        """Console messages, exceptions and log entries since the page was opened."""
        named = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event["method"] in named]

    def requests(self):
        sent = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith("data:")]

    def close(self):
        try:
            os.write(self._send, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._send)
            os.close(self._receive)

    def _message(self):
        while b"\0" not in self._rest:
            read = os.read(self._receive, 1 << 20)
            assert read, "chromium ended"
            self._rest += read
        head, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(head)
        if "method" in message:
            self.events.append(message)
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, build in REPORTS.items():
        (folder / f"{name}.html").write_text(html.render(build()), encoding="utf-8")
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_report_opens_silently_and_fits(browser, pages, tmp_path, name, width, scheme):
    page = pages / f"{name}.html"
    seen = browser.open(page, width, scheme)
    browser.screenshot(tmp_path / f"{name}-{width}-{scheme}.png")

    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert seen["loaded"] == []
    assert seen["scripts"] == 0
    assert (seen["overflow"], seen["beyond"]) == (width, [])
    assert seen["dark"] == (scheme == "dark")
    assert len(seen["written"]) > 5
    assert pale(seen) == []
    assert luminance(seen["paper"]) < 0.1 if scheme == "dark" else luminance(seen["paper"]) > 0.8
    assert seen["headings"][0] == 1
    assert all(after <= before + 1 for before, after in zip(seen["headings"], seen["headings"][1:], strict=False))
    assert (seen["unlabelled"], seen["dangling"]) == (0, 0)
    assert seen["small"] is None or seen["small"] >= 9


@pytest.mark.parametrize("name", REPORTS)
def test_light_and_dark_differ(browser, pages, tmp_path, name):
    shots = set()
    for scheme in SCHEMES:
        browser.open(pages / f"{name}.html", 375, scheme)
        shots.add(browser.screenshot(tmp_path / f"{scheme}.png"))
    assert len(shots) == 2


def test_a_narrow_ledger_still_leads_to_its_findings(browser, pages):
    browser.open(pages / "data_bound.html", 375, "light")
    seen = browser.value(
        "[...document.querySelectorAll('.ledger .found .advice a')].map(a => [a.querySelector('.ordinal').textContent,"
        " a.querySelector('.ordinal').getBoundingClientRect().width > 8,"
        " a.querySelector('.said').getBoundingClientRect().width <= 1])"
    )
    assert seen == [[number, True, True] for number in "123"]


def test_every_stop_of_the_tab_key_is_visible(browser, pages):
    browser.open(pages / "data_bound.html", 375, "light")
    stops = []
    for _ in range(40):
        browser.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stop = browser.value(
            "(e => [e.tagName, e.className, getComputedStyle(e).outlineStyle, e.getBoundingClientRect().right > 0])"
            "(document.activeElement)"
        )
        if stop[0] == "BODY":
            break
        stops.append(stop)
    assert stops[0][:2] == ["A", "skip"]
    assert {"SUMMARY", "DIV"} <= {tag for tag, *_ in stops}
    assert all(outline != "none" and on_screen for _, _, outline, on_screen in stops)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("<script>console.error(1)</script>", lambda browser, seen: browser.complaints() and seen["scripts"]),
        ('<img src="http://127.0.0.1:9/x.png">', lambda browser, seen: browser.complaints()),
        ('<p style="width:500px">wide</p>', lambda browser, seen: seen["overflow"] > 375 and seen["beyond"]),
        (
            '<p style="color:#777">pale</p>',
            lambda browser, seen: min(contrast(*text[:2]) for text in seen["written"]) < 4.5,
        ),
        ("<h5>deep</h5>", lambda browser, seen: seen["headings"][-1] == 5),
    ],
)
def test_a_planted_fault_is_seen(browser, pages, fault, caught):
    """What the tests above look for does show when it is there."""
    page = pages / "planted.html"
    page.write_text((pages / "data_bound.html").read_text("utf-8").replace("</main>", f"{fault}</main>"), "utf-8")
    assert caught(browser, browser.open(page, 375, "light"))


def test_a_request_is_seen_where_no_policy_stops_it(browser, pages):
    page = pages / "requesting.html"
    page.write_text('<h1>x</h1><img src="http://127.0.0.1:9/x.png">', "utf-8")
    browser.open(page, 375, "light")
    assert browser.requests() == [page.as_uri(), "http://127.0.0.1:9/x.png"]


def pale(seen):
    """Text whose contrast is below what WCAG asks for (AA)."""
    return [name for ink, paper, name in seen["written"] if contrast(ink, paper) < 4.5]


def luminance(color):
    """Relative luminance (WCAG) of ``rgb(r, g, b)``."""
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Contrast ratio (WCAG) of two colours."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
