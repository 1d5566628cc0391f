"""What happens to logs: cut off, torn, lost, repeated, mixed with other text; each a
strategy for the bytes of a log.

Left out is what nobody can tell from a log that is whole: a number that lost digits in
its middle, and two records that were cut and glued at one column (see docs/reference/dialects.md,
"What cannot be told").
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from support.log_strategies import Written

Damage = Callable[[Written], st.SearchStrategy[bytes]]

PIECES = (
    b"\x00",
    b"\x00" * 512,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b[31m",
    b"\xe2\x96",
    b"\x02d",
    b"x" * 9000,
)
JUNK = st.one_of(
    st.sampled_from(PIECES),
    st.lists(st.integers(128, 255), min_size=1, max_size=20).map(bytes),
    st.lists(st.sampled_from([*range(9), *range(14, 32), 127]), min_size=1, max_size=20).map(bytes),
)  # fmt: skip
"""Bytes that are no text of a number."""

FOREIGN = st.sampled_from(
    [
        b"foreign\n",
        b"\nforeign\n",
        b"\nW0307 22:33:45 12 api.py:793] many words\nin two lines\n",
        b"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-04T06:05:54 DUE TO TIME LIMIT ***\n",
        b"Traceback (most recent call last):\n",
    ]
)


def _offsets(log: Written) -> st.SearchStrategy[int]:
    return st.integers(0, len(log.data))


def cut_off(log: Written) -> st.SearchStrategy[bytes]:
    """The job was killed, or the log is still being written."""
    return _offsets(log).map(lambda offset: log.data[:offset])


def begun_late(log: Written) -> st.SearchStrategy[bytes]:
    """The beginning was rotated away."""
    return _offsets(log).map(lambda offset: log.data[offset:])


@st.composite
def lost_lines(draw: st.DrawFn, log: Written) -> bytes:
    """Up to three blocks of whole lines are gone."""
    kept = list(log.lines)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(kept)))
        del kept[start : start + draw(st.integers(1, 12))]
    return b"".join(kept)


@st.composite
def repeated_lines(draw: st.DrawFn, log: Written) -> bytes:
    """A block of whole lines stands there again, at once or further down."""
    start = draw(st.integers(0, len(log.lines) - 1))
    end = draw(st.integers(start + 1, len(log.lines)))
    offset = draw(st.integers(end, len(log.lines)))
    return b"".join((*log.lines[:offset], *log.lines[start:end], *log.lines[offset:]))


@st.composite
def inserted(draw: st.DrawFn, log: Written, pieces: st.SearchStrategy[bytes]) -> bytes:
    """Up to two pieces stand somewhere inside the log, on lines that do not follow each
    other."""
    data = log.data
    for offset in sorted(
        {draw(_offsets(log)) for _ in range(draw(st.integers(1, 2)))}, reverse=True
    ):
        data = data[:offset] + draw(pieces) + data[offset:]
    return data


def junk(log: Written) -> st.SearchStrategy[bytes]:
    """Bytes that are no text, anywhere."""
    return inserted(log, JUNK)


def foreign(log: Written) -> st.SearchStrategy[bytes]:
    """Lines of another program, anywhere."""
    return inserted(log, FOREIGN)


@st.composite
def two_writers(draw: st.DrawFn, log: Written) -> bytes:
    """A line of the log stands inside another one: two processes wrote at once."""
    line = draw(st.sampled_from(log.lines))
    offset = draw(_offsets(log))
    return log.data[:offset] + line + log.data[offset:]


@st.composite
def zeroed(draw: st.DrawFn, log: Written) -> bytes:
    """A page of the file holds zeros, as after a crash of a file server."""
    offset = draw(_offsets(log))
    length = min(draw(st.sampled_from([1, 16, 512, 4096])), len(log.data) - offset)
    return log.data[:offset] + bytes(length) + log.data[offset + length :]


@st.composite
def glued(draw: st.DrawFn, log: Written) -> bytes:
    """The end of a line is gone, its line feed too: the next line goes on in it."""
    number = draw(st.integers(0, len(log.lines) - 1))
    line = log.lines[number]
    kept = line[: draw(st.integers(0, len(line) - 1))]
    return b"".join((*log.lines[:number], kept, *log.lines[number + 1 :]))


@st.composite
def split_lines(draw: st.DrawFn, log: Written) -> bytes:
    """A line feed stands inside a line."""
    offset = draw(_offsets(log))
    return (
        log.data[:offset]
        + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
        + log.data[offset:]
    )


DAMAGES: dict[str, Damage] = {
    "cut off": cut_off,
    "begun late": begun_late,
    "lost lines": lost_lines,
    "repeated lines": repeated_lines,
    "junk": junk,
    "foreign": foreign,
    "two writers": two_writers,
    "zeroed": zeroed,
    "glued": glued,
    "torn": split_lines,
}

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16, big end first": lambda data: data.decode().encode("utf-16-be"),
    "UTF-32": lambda data: data.decode().encode("utf-32"),
}
"""In these a log cannot be read as it is."""

HARMLESS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "BOM": lambda data: b"\xef\xbb\xbfstart\n" + data,
    "Latin-1": lambda data: data.decode().encode("latin-1", "replace"),
    "more after it": lambda data: data + b"x" * 20_000,
    "NULs before it": lambda data: b"\x00" * 20_000 + b"\n" + data,
}
"""What changes nothing that a log says."""
