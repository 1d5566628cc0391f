"""Python tracebacks, followed from their heads to their exceptions while a log passes
by."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.logs.scan import REACH, REACH_BACK, ByteChunk, Hit, find_line_begin
from pytest_llmbench.logs.step_records import find_line_stop, read_rank

HEAD = b"Traceback (most recent call last)"

# Lines of the process itself after a head in which its exception is looked for.
LONGEST = 1000

# Lines of all processes after a head in which its exception is looked for: the ranks of
# a large job write at once.
FARTHEST = 100_000

# As many tracebacks are kept, the latest, and as many are followed at once: no log
# fills the memory.
KEPT = 10_000

# As much is kept of the line of an exception.
EXCEPTION_BYTES = 1000

# The labels of a process before a line: `52: [rank52]: `, `train/0 [default3]:`,
# `(worker pid=7, ip=10.0.0.1) `.
LABEL = re.compile(
    rb"[ \t]*(?:(?:\d{1,9}:|[\w.-]{1,99}/\d{1,9}(?= )|\([^\n]{0,200}?pid=\d{1,9}[^()\n]{0,99}\)"
    rb"|\[(?:default|rank)\d{1,9}\]:?)[ \t]*)*"
)

KINDS = (
    rb"Error|Exception|Interrupt|Exit|Iteration|Expired|Failure|Failed|Warning|Group"
)
# How the line of an exception begins: a class with its module, or without one and with
# a name as exceptions have. Old classes are written small: `socket.gaierror`,
# `struct.error`.
EXCEPTION = re.compile(
    rb"(?:(?:[A-Za-z_]\w*\.){1,20}(?:_?[A-Z]\w*|\w*error)|(?=[A-Z_])\w*(?:%b))(?=:|\s*$)"
    % KINDS
)

# A logger writes a traceback as a warning, and the process goes on. Not so of INFO:
# launchers write what their children print, and what those died of, at that level.
WARNED = re.compile(
    rb"\b(?:WARN(?:ING)?|[Ww]arning)\b|\[NeMo W |(?:\A|[\s\]])W\d{4} \d\d:\d\d:\d\d|[A-Z]\w{0,99}Warning: "
)
# As many lines above a head may hold the warning that it belongs to.
LINES_ABOVE = 3

# Follows the head where a traceback is printed as a list, or as the text of one string.
LISTED = re.compile(rb":?(?:\\r)?\\n")
NEXT_LINE = re.compile(rb"(?:\\r)?\\n")
QUOTES = b" \t'\",[]"

# Stands before a line of the program in a traceback, and before the marks under it.
CODE_INDENT = b"    "

# Python 3.13 colours its tracebacks where FORCE_COLOR is set.
COLOUR = re.compile(rb"\x1b\[[\d;]*m")

CHAIN = re.compile(
    rb"During handling of the above exception, another exception occurred"
    rb"|The above exception was the direct cause of the following exception"
)


@dataclass(slots=True)
class Traceback:
    """One traceback, or several that one exception led to."""

    head: int
    line: int  # of the first exception; of the head where the log does not show it
    rank: str
    first: bytes = (
        b""  # the exception that came first, empty where the log does not show it
    )
    last: bytes = b""  # the one that they ended with
    code: bytes = b""  # the line of the program that raised the first
    indented: int = 0
    lines: int = 0
    warned: bool = False  # its head is on the line of a warning
    below_warning: bool = (
        False  # a warning is right above it, which need not have to do with it
    )
    listed: bool = False  # its lines are texts of a list


class Tracebacks:
    """Collects tracebacks from chunks of one log in order; the lines of each process
    are told apart by its labels."""

    def __init__(self) -> None:
        self.latest: deque[Traceback] = deque(maxlen=KEPT)
        self._open: dict[bytes, Traceback] = {}
        self._ended: dict[bytes, Traceback] = {}

    @property
    def follows(self) -> bool:
        """Whether the exception of a traceback is still to come."""
        return bool(self._open)

    def take(self, chunk: ByteChunk, heads: Iterable[Hit]) -> None:
        """Read on in the new part of a chunk, in which these heads stand."""
        place, line = chunk.start, chunk.line
        for hit in heads:
            self._follow(chunk, place, hit.start, line)
            self._begin(hit)
            place, line = hit.start, hit.line
        self._follow(chunk, place, chunk.stop, line)
        self._open = {
            label: traceback
            for label, traceback in self._open.items()
            if chunk.next_line - traceback.head <= FARTHEST
        }

    def _begin(self, hit: Hit) -> None:
        label, before = split_label(get_line_before(hit))
        if (
            label in self._open
        ):  # two processes without labels: the next exception is told as that of the first
            return
        indented = len(before) - len(before.lstrip(b" "))
        traceback = self._ended.get(label)
        if traceback is None or not _goes_on(hit, label):
            traceback = Traceback(hit.line, hit.line, read_rank(hit))
            traceback.warned, traceback.below_warning = (
                bool(WARNED.search(before)),
                _is_below_warning(hit),
            )
            self.latest.append(traceback)
        traceback.indented, traceback.lines = indented, 0
        rest = hit.text[
            hit.start + len(HEAD) : find_line_stop(hit.text, hit.start, hit.end)
        ]
        traceback.listed = bool(LISTED.match(rest))
        if traceback.listed and _take_list(
            traceback, NEXT_LINE.split(rest)[1:], hit.line
        ):
            self._keep(label, traceback)
            return
        self._open[label] = traceback
        if len(self._open) > KEPT:
            del self._open[next(iter(self._open))]

    def _follow(self, chunk: ByteChunk, begin: int, end: int, line: int) -> None:
        """Read the lines that begin in a part of a chunk; `line` is the one that
        `begin` stands on."""
        if not self._open:
            return
        for number, text in _iterate_lines(chunk, begin, end, line):
            label, rest = split_label(text)
            traceback = self._open.get(label)
            if traceback is not None and self._ends(traceback, rest, number):
                del self._open[label]
                self._keep(label, traceback)
                if not self._open:
                    return

    def _ends(self, traceback: Traceback, rest: bytes, number: int) -> bool:
        """Whether a traceback ends with this line of its process."""
        traceback.lines += 1
        text = (
            rest
            if rest[: traceback.indented].strip(b" ")
            else rest[traceback.indented :]
        )
        if traceback.listed:
            text = NEXT_LINE.split(text.strip(QUOTES), maxsplit=1)[0]
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES].rstrip()
            if not traceback.first:
                traceback.first, traceback.line = traceback.last, number
            return True
        if not traceback.first and text.startswith(CODE_INDENT) and text.strip(b" ~^"):
            traceback.code = text[:EXCEPTION_BYTES].strip()
        return traceback.lines > LONGEST

    def _keep(self, label: bytes, traceback: Traceback) -> None:
        self._ended[label] = traceback
        if len(self._ended) > KEPT:
            del self._ended[next(iter(self._ended))]


def _is_below_warning(hit: Hit) -> bool:
    above = hit.text[max(0, hit.start - REACH_BACK) : hit.start].split(b"\n")[:-1]
    return any(WARNED.search(line) for line in above[-LINES_ABOVE:])


def _take_list(traceback: Traceback, texts: Sequence[bytes], line: int) -> bool:
    """Read the lines of a traceback that stand on one line of the log; tell whether its
    exception is among them."""
    for text in (text.strip(QUOTES) for text in texts):
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES]
            traceback.first, traceback.line = traceback.first or traceback.last, line
    return bool(traceback.last)


def split_label(line: bytes) -> tuple[bytes, bytes]:
    """Return the labels of a line, without the blanks that end them, and what the
    process wrote after them."""
    match = LABEL.match(line)
    label = match[0].rstrip(b" \t") if match else b""
    return label, line[len(label) :]


def get_line_before(hit: Hit) -> bytes:
    """Return what stands before a marker on its line, or after the last carriage return
    there."""
    return hit.text[
        find_line_begin(hit.text, max(0, hit.start - REACH_BACK), hit.start) : hit.start
    ]


def _goes_on(hit: Hit, label: bytes) -> bool:
    """Whether the same process said right before that this traceback follows from the
    one above it."""
    before = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    if CHAIN.search(before) is None:
        return False
    lines = (split_label(line) for line in before.split(b"\n"))
    return any(own == label and CHAIN.search(rest) for own, rest in lines)


def _iterate_lines(
    chunk: ByteChunk, begin: int, end: int, line: int
) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of the lines that begin in a part of a chunk, each as far
    as it can be seen."""
    text = chunk.text
    place = begin
    if begin + chunk.offset and text[begin - 1 : begin] != b"\n":
        place, line = text.find(b"\n", begin) + 1 or end, line + 1
    while place < end:
        stop = text.find(b"\n", place)
        stop = len(text) if stop < 0 else stop
        shown = text[place : min(stop, place + REACH)].rstrip(b"\r")
        shown = COLOUR.sub(b"", shown) if b"\x1b" in shown else shown
        yield line, shown[shown.rfind(b"\r") + 1 :]
        place, line = stop + 1, line + 1
