"""Strategies that damage the bytes of a log: truncation, losses, repetitions, foreign
text.

Two kinds of damage are missing because they cannot be distinguished from a valid log: a
number that lost digits in its middle, and two records that were cut and joined at the
same column (see docs/reference/dialects.md, "What cannot be told").
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
"""Bytes that cannot be part of a number."""

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


def truncate(log: Written) -> st.SearchStrategy[bytes]:
    """Truncate the log: the job was killed, or the log is still growing."""
    return _offsets(log).map(lambda offset: log.data[:offset])


def drop_beginning(log: Written) -> st.SearchStrategy[bytes]:
    """Drop the beginning of the log, as log rotation does."""
    return _offsets(log).map(lambda offset: log.data[offset:])


@st.composite
def drop_lines(draw: st.DrawFn, log: Written) -> bytes:
    """Delete up to three blocks of whole lines."""
    kept = list(log.lines)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(kept)))
        del kept[start : start + draw(st.integers(1, 12))]
    return b"".join(kept)


@st.composite
def repeat_lines(draw: st.DrawFn, log: Written) -> bytes:
    """Repeat a block of whole lines, directly after itself or further down."""
    start = draw(st.integers(0, len(log.lines) - 1))
    end = draw(st.integers(start + 1, len(log.lines)))
    offset = draw(st.integers(end, len(log.lines)))
    return b"".join((*log.lines[:offset], *log.lines[start:end], *log.lines[offset:]))


@st.composite
def insert_pieces(
    draw: st.DrawFn, log: Written, pieces: st.SearchStrategy[bytes]
) -> bytes:
    """Insert up to two pieces at arbitrary offsets."""
    data = log.data
    for offset in sorted(
        {draw(_offsets(log)) for _ in range(draw(st.integers(1, 2)))}, reverse=True
    ):
        data = data[:offset] + draw(pieces) + data[offset:]
    return data


def insert_junk(log: Written) -> st.SearchStrategy[bytes]:
    """Insert non-text bytes at arbitrary offsets."""
    return insert_pieces(log, JUNK)


def insert_foreign_lines(log: Written) -> st.SearchStrategy[bytes]:
    """Insert lines of another program at arbitrary offsets."""
    return insert_pieces(log, FOREIGN)


@st.composite
def insert_line(draw: st.DrawFn, log: Written) -> bytes:
    """Insert a line of the log into another line, as two concurrent processes would."""
    line = draw(st.sampled_from(log.lines))
    offset = draw(_offsets(log))
    return log.data[:offset] + line + log.data[offset:]


@st.composite
def overwrite_with_zeros(draw: st.DrawFn, log: Written) -> bytes:
    """Overwrite part of the log with zeros, as after a file server crash."""
    offset = draw(_offsets(log))
    length = min(draw(st.sampled_from([1, 16, 512, 4096])), len(log.data) - offset)
    return log.data[:offset] + bytes(length) + log.data[offset + length :]


@st.composite
def join_lines(draw: st.DrawFn, log: Written) -> bytes:
    """Drop the end of a line with its line feed, so that the next line is appended."""
    number = draw(st.integers(0, len(log.lines) - 1))
    line = log.lines[number]
    kept = line[: draw(st.integers(0, len(line) - 1))]
    return b"".join((*log.lines[:number], kept, *log.lines[number + 1 :]))


@st.composite
def split_lines(draw: st.DrawFn, log: Written) -> bytes:
    """Insert a line break within a line."""
    offset = draw(_offsets(log))
    return (
        log.data[:offset]
        + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
        + log.data[offset:]
    )


DAMAGES: dict[str, Damage] = {
    "truncated": truncate,
    "missing beginning": drop_beginning,
    "lost lines": drop_lines,
    "repeated lines": repeat_lines,
    "junk": insert_junk,
    "foreign": insert_foreign_lines,
    "two writers": insert_line,
    "zeroed": overwrite_with_zeros,
    "joined lines": join_lines,
    "split lines": split_lines,
}

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16, big end first": lambda data: data.decode().encode("utf-16-be"),
    "UTF-32": lambda data: data.decode().encode("utf-32"),
}
"""Encodings in which a log cannot be read directly."""

HARMLESS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "BOM": lambda data: b"\xef\xbb\xbfstart\n" + data,
    "Latin-1": lambda data: data.decode().encode("latin-1", "replace"),
    "text after it": lambda data: data + b"x" * 20_000,
    "NULs before it": lambda data: b"\x00" * 20_000 + b"\n" + data,
}
"""Changes that do not affect the contents of a log."""
