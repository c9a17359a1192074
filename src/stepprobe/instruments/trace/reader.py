"""Reads one trace file into columns: streamed where its layout allows that, whole where not.

Kineto writes each event on lines of its own, indented alike. So the text can be cut between two events wherever a
closing brace, a comma and an opening brace stand at that indent, and each piece is decoded by itself: memory is the
kept columns and one chunk. Other layouts (compact JSON) are decoded whole.
"""

import gc
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepprobe.errors import NotObserved
from stepprobe.instruments.trace.canonical import finished
from stepprobe.instruments.trace.events import About, Event, ExactEvent, ExactWhole, Whole, lenient
from stepprobe.instruments.trace.gather import Gatherer, TooCoarse
from stepprobe.instruments.trace.source import Source, opened
from stepprobe.model.trace import Columns, Loss

CHUNK_BYTES = 1 << 20
"""Text that is decoded at a time: its events still fit the processor's cache, which halves the cost."""

_OPENING = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*(?:\[|\{(?:.*?)"traceEvents"\s*:\s*\[)', re.DOTALL)
_INDENT = re.compile(rb"\s*?\n([ \t]*)\{")
_EVENTS: dict[bool, msgspec.json.Decoder[Any]] = {
    False: msgspec.json.Decoder(list[Event]),
    True: msgspec.json.Decoder(list[ExactEvent]),
}
_REST: dict[bool, msgspec.json.Decoder[Any]] = {
    False: msgspec.json.Decoder(Whole),
    True: msgspec.json.Decoder(ExactWhole),
}
_ABOUT = msgspec.json.Decoder(About)
_CLOSE = ord("]")
_MARK = b"\xef\xbb\xbf"
_REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Columns:
    """Read a trace file.

    Raises:
        UsageError: It cannot be opened or decompressed.
        NotObserved: It holds no trace.
    """
    return _read(opened(path), chunk_bytes)


def read_bytes(name: str, content: bytes, chunk_bytes: int = CHUNK_BYTES) -> Columns:
    """Read a trace that is in memory.

    Raises:
        UsageError: It cannot be decompressed.
        NotObserved: It holds no trace.
    """
    return _read(Source(name, io.BytesIO(content)), chunk_bytes)


def _read(source: Source, chunk_bytes: int) -> Columns:
    reader = Reader(source.name)
    collecting = gc.isenabled()
    gc.disable()  # events come and go by the million, and none of them can be part of a cycle
    try:
        for chunk in source.chunks(chunk_bytes):
            reader.feed(chunk)
        return reader.finish(source)
    finally:
        if collecting:
            gc.enable()


class Reader:
    """Takes the text of a trace in pieces of any size."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._text = bytearray()
        self._head: bytes | None = None
        self._cut: tuple[bytes, int] | None = None
        """What stands between two events, and how much of it belongs to the first; None before the first event."""
        self._exact = False
        self._gatherer = Gatherer()
        self._about: list[About] = []
        self._began_ns = time.process_time_ns()
        self._bytes = self._lost_bytes = self._lost_events = self._mended = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next piece and decode the events that it completes."""
        self._bytes += len(chunk)
        if self._cut is None:
            self._text += chunk
            if self._head is None:
                self._open()
            return
        between, ours = self._cut
        text = bytearray().join((b"[", self._text, chunk))
        place = text.rfind(between)
        if place > 1:
            comma = place + ours
            text[comma] = _CLOSE
            self._decode(memoryview(text)[: comma + 1])
            self._text = text[comma + 1 :]
        else:
            self._text = text[1:]

    def finish(self, source: Source) -> Columns:
        """Decode what is left and return the columns.

        Raises:
            NotObserved: It holds no trace.
        """
        size, digest = source.finish()
        if self._head is None:
            raise NotObserved(f"{self._name}: {self._no_trace()}")
        self._finish_text()
        losses = [Loss(what=what, count=count, of=of) for what, count, of in self._losses(source.cut) if count]
        if not self._gatherer.events:
            why = f": {losses[0].what}" if losses else ""
            raise NotObserved(f"{self._name}: holds not one whole event{why}; record the trace again")
        return finished(
            self._gatherer,
            self._about,
            losses,
            name=self._name,
            source_bytes=size,
            source_sha256=digest,
            text_bytes=self._bytes,
            read_cpu_ns=time.process_time_ns() - self._began_ns,
            layout="streamed" if self._cut else "whole",
        )

    def _open(self) -> bool:
        """Find where the events begin and how they are laid out; False while more text is needed for that."""
        opening = _OPENING.match(self._text)
        if opening is None or not self._text[opening.end() :].strip():
            return False
        self._head = bytes(self._text[: opening.end()])
        del self._text[: opening.end()]
        if indent := _INDENT.match(self._text):
            self._cut = b"\n" + indent[1] + b"},\n" + indent[1] + b"{", len(indent[1]) + 2
        if b"{" in self._head:
            self._keep_about(self._head.removeprefix(_MARK) + b"]}")
        return True

    def _no_trace(self) -> str:
        start = bytes(self._text[:999]).removeprefix(_MARK).lstrip()[:1]
        if not start:
            return "the file is empty; record the trace again"
        if start not in b"{[":
            return "not JSON; export the trace with prof.export_chrome_trace(FILE)"
        return 'JSON without "traceEvents": no Kineto or Chrome trace; export one with prof.export_chrome_trace(FILE)'

    def _losses(self, cut: str) -> Iterator[tuple[str, int, int]]:
        gatherer = self._gatherer
        if cut:
            yield f"{cut}: what lies behind it is not in this report", 1, 1
        yield (
            "bytes at the end of the file that are no whole event (the file is cut off)",
            self._lost_bytes,
            self._bytes,
        )
        yield "events that are not valid JSON", self._lost_events, gatherer.events + self._lost_events
        yield "events that were mended (control characters, wrong types)", self._mended, gatherer.events
        yield "rows without a usable time or duration", gatherer.untimed, gatherer.events

    def _decode(self, text: memoryview) -> None:
        try:
            self._take(_EVENTS[self._exact].decode(text))
        except TooCoarse:
            self._exact = True
            self._decode(text)
        except _REFUSED:
            self._piecewise(bytes(text))

    def _take(self, events: list[Event] | list[ExactEvent]) -> None:
        self._gatherer.add(events, exact=self._exact)

    def _piecewise(self, text: bytes) -> None:
        """Decode a chunk event by event: one that is broken costs only itself."""
        between, ours = self._cut or (b"", 0)
        pieces = text[1:-1].split(between)
        for place, piece in enumerate(pieces):
            whole = (b"{" if place else b"") + piece + (between[:ours] if place < len(pieces) - 1 else b"")
            try:
                self._take(_EVENTS[self._exact].decode(b"[" + whole + b"]"))
            except TooCoarse:
                self._exact = True
                self._take(_EVENTS[True].decode(b"[" + whole + b"]"))
            except _REFUSED:
                self._mend(whole)

    def _mend(self, piece: bytes) -> None:
        try:
            event = lenient(json.loads(piece.decode("utf-8", "replace"), strict=False))
        except (ValueError, RecursionError):
            event = None
        if event is None:
            self._lost_events += 1
        else:
            self._mended += 1
            self._gatherer.add([event], exact=True)

    def _finish_text(self) -> None:
        """Decode the last events together with what stands behind them."""
        bare = b"{" not in (self._head or b"")
        text, self._text = bytes(self._text), bytearray()
        try:
            if bare:
                self._decode_last(b"[" + text)
            else:
                self._decode_rest(b'{"traceEvents":[' + text)
        except _REFUSED:
            self._salvage(text)

    def _decode_last(self, text: bytes) -> None:
        try:
            self._take(_EVENTS[self._exact].decode(text))
        except TooCoarse:
            self._exact = True
            self._take(_EVENTS[True].decode(text))

    def _decode_rest(self, text: bytes) -> None:
        rest = _REST[self._exact].decode(text)
        try:
            self._take(rest.events)
        except TooCoarse:
            self._exact = True
            rest = _REST[True].decode(text)
            self._take(rest.events)
        self._about.append(rest)

    def _salvage(self, text: bytes) -> None:
        """Take events one after the other as far as the text holds whole ones."""
        decoder = json.JSONDecoder(strict=False)
        words = text.decode("utf-8", "replace")
        place, events = _skip(words, 0), []
        while place < len(words) and words[place] != "]":
            try:
                item, place = decoder.raw_decode(words, place)
            except (ValueError, RecursionError):
                place = self._next_event(words, place)
                continue
            event = lenient(item)
            if event is None:
                self._lost_events += 1
            else:
                events.append(event)
            place = _skip(words, place)
        if place >= len(words):
            self._lost_bytes += max(1, place - len(words))
        else:
            self._keep_about(b'{"x":0' + _after(words[place + 1 :]).encode("utf-8", "replace"))
        self._mended += len(events)
        self._gatherer.add(events, exact=True)

    def _next_event(self, words: str, place: int) -> int:
        """Return where the next event may begin after one that is broken, or beyond the end where none does."""
        between = self._cut[0].decode() if self._cut else "},"
        found = words.find(between, place)
        if found < 0:
            return len(words) + len(words) - place
        self._lost_events += 1
        return _skip(words, found + between.index(",") + 1)

    def _keep_about(self, text: bytes) -> None:
        try:
            self._about.append(_ABOUT.decode(text))
        except _REFUSED:
            return


def _skip(words: str, place: int) -> int:
    """Return the place of the next character that is neither space nor comma."""
    while place < len(words) and words[place] in " \t\r\n,":
        place += 1
    return place


def _after(words: str) -> str:
    return words if words.lstrip()[:1] == "," else "}"
