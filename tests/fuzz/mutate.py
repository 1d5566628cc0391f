"""Mutate seeds: bytes, lines, numbers and words, or the elements of structured seeds."""

from __future__ import annotations

import copy
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from random import Random
from typing import Any

import yaml

LARGEST = 1 << 18
"""Maximum size of an input in bytes."""

NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
NUMBERS = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1",
        b"2",
        b"255",
        b"256",
        b"65536",
        b"2147483647",
        b"2147483648",
        b"9223372036854775807",
    ),
    *(
        b"9223372036854775808",
        b"18446744073709551616",
        b"1e308",
        b"1e-320",
        b"1e999",
        b"-1e999",
        b"nan",
        b"inf",
    ),
    *(
        b"0.1",
        b"1_000",
        b"0x10",
        b"0o7",
        b"1e",
        b"00",
        b"\xd9\xa3",
        b"\xc2\xb2",
        b"9" * 40,
        b"9" * 400,
        b"9" * 5000,
    ),
)
SIGNS = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\x1b[31m",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
        b"\xe2\x80\xae",
    ),
    *(
        b"'",
        b'"',
        b"\\",
        b"|",
        b"/",
        b"..",
        b"~",
        b"$",
        b"`",
        b"%s",
        b"{}",
        b"[",
        b"]",
        b"*",
        b" ",
        b"\t",
        b",",
    ),
)

MOST_YAML_LEVELS = 5000
"""Maximum number of characters that begin a level. Two mutations of 500 levels each can
make more."""

DIGITS, NESTED = "@@digits@@", "@@nested@@"
"""Stand for what no library writes: a number of 5,000 digits, and lists in lists."""

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        0.5,
        -0.5,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
        2**31,
        2**63,
        2**64,
    ),
    *(
        10**400,
        "",
        " ",
        "x",
        "\0",
        "\n",
        "\x1b[31m",
        "\ud800",
        "é",
        "nan",
        "1",
        "0001-01-01T00:00:00+14:00",
        "a" * 5000,
    ),
    *(
        "9999-12-31T23:59:59-12:00",
        "2026-05-04",
        "2026-05-04T06:05:54",
        "12:30:45",
        "../../x",
        "/",
        "${HOME}",
        "*",
    ),
    *([], {}, [[]], [None], {"": ""}, {"a": {"b": []}}, DIGITS, NESTED),
)


class Shape(StrEnum):
    """The structure of an input."""

    BYTES = "bytes"
    JSON = "JSON"
    YAML = "YAML"
    SQLITE = "SQLite"


def mutate(
    seeds: Sequence[bytes], words: Sequence[bytes], shape: Shape, random: Random
) -> bytes:
    """Return a seed with one or more changes."""
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        changed = (
            _STRUCTURES[shape](data, seeds, random) if random.random() < 0.6 else None
        )
        data = (
            random.choice(_CHANGES)(data, [*seeds, *words], random)
            if changed is None
            else changed
        )
    return data[:LARGEST]


# --- bytes ----------------------------------------------------------------------------


def _cut(data: bytes, random: Random) -> tuple[int, int]:
    """Return begin and end of a random piece; short pieces are more frequent."""
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + int(2 ** (random.random() * 12)) - 1)


def _flip(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _remove(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    begin, end = _cut(data, random)
    return data[:begin] + data[end:]


def _repeat(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    begin, end = _cut(data, random)
    times = random.choice((1, 1, 2, 20, 200))
    return (
        data[:end]
        + data[begin:end] * min(times, LARGEST // (end - begin + 1))
        + data[end:]
    )


def _insert(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    begin, end = _cut(data, random)
    piece = random.choice((SIGNS, NUMBERS, others))
    return (
        data[:begin]
        + random.choice(piece)[: 1 << 12]
        + data[random.choice((begin, end)) :]
    )


def _splice(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(others)
    return (
        data[: random.randrange(len(data) + 1)]
        + other[random.randrange(len(other) + 1) :]
    )


def _change_number(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    numbers = list(NUMBER.finditer(data))
    if not numbers:
        return data + random.choice(NUMBERS)
    number = random.choice(numbers)
    return data[: number.start()] + random.choice(NUMBERS) + data[number.end() :]


def _change_lines(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    lines = data.split(b"\n")
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    strange = random.choice(random.choice(others).split(b"\n"))
    new = random.choice(
        (
            [],
            [lines[other]],
            [lines[place]] * 2,
            [b"  " + lines[place]],
            [strange],
            [strange, lines[place]],
        )
    )
    return b"\n".join([*lines[:place], *new, *lines[place + 1 :]])


def _change_value(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the text after a separator of name and value."""
    places = [match.end() for match in re.finditer(rb"[:=|] ?", data)]
    if not places:
        return _splice(data, others, random)
    begin = random.choice(places)
    end = (
        next(
            (match.start() for match in re.finditer(rb"[\n|,}]", data[begin:])),
            len(data) - begin,
        )
        + begin
    )
    return (
        data[:begin]
        + random.choice(random.choice((SIGNS, NUMBERS, (b"", b"null", b"[]", b"yes"))))
        + data[end:]
    )


_CHANGES = (
    _flip,
    _remove,
    _repeat,
    _insert,
    _splice,
    _change_number,
    _change_lines,
    _change_value,
)


# --- trees ----------------------------------------------------------------------------


def _change_json(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes | None:
    try:
        tree = _change_tree(
            json.loads(data), lambda: json.loads(random.choice(seeds)), random
        )
        text = json.dumps(tree)
    except (ValueError, OverflowError, RecursionError):
        return None
    return (
        text.replace(f'"{DIGITS}"', "9" * 5000)
        .replace(f'"{NESTED}"', "[" * 3000 + "]" * 3000)
        .encode()
    )


def _change_yaml(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes | None:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        tree = _change_tree(
            _load_yaml(data), lambda: _load_yaml(random.choice(seeds)), random
        )
        text = yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True)
        return (
            text.replace(f"'{DIGITS}'", "9" * 5000)
            .replace(f"'{NESTED}'", "[" * 500 + "]" * 500)
            .encode()
        )
    except (ValueError, OverflowError, RecursionError, TypeError, yaml.YAMLError):
        return None


def _load_yaml(data: bytes) -> Any:
    if sum(map(data.count, b"[{-?")) > MOST_YAML_LEVELS:
        raise ValueError(
            "nested so deep that libyaml may end the process; such inputs are changed byte by byte"
        )
    return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)


def _change_tree(tree: Any, other: Callable[[], Any], random: Random) -> Any:
    """Return a tree with one element changed, removed, duplicated or replaced by
    another."""
    root = [tree]
    places = list(_list_places(root))
    holder, key = random.choice(places)
    kind = random.randrange(8)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 2 and isinstance(holder, dict):
        holder[random.choice((*list(holder), "", "x", "\ud800"))] = holder.pop(key)
    elif kind == 3:
        source, place = random.choice(list(_list_places([other()])))
        holder[key] = copy.deepcopy(source[place])
    elif kind == 4 and isinstance(holder[key], int | float):
        holder[key] = random.choice(
            (
                -holder[key],
                holder[key] + 1,
                holder[key] * 1000,
                holder[key] * 1.0,
                str(holder[key]),
            )
        )
    elif kind == 5 and isinstance(holder[key], str):
        text, place = holder[key], random.randrange(len(holder[key]) + 1)
        holder[key] = (
            text[:place]
            + random.choice(("", "\0", "\n", "\x1b", "9", "é", "\ud800", "'"))
            + text[place + 1 :]
        )
    else:
        holder[key] = copy.deepcopy(
            random.choice((*VALUES, [holder[key]], {"x": holder[key]}))
        )
    return root[0]


def _list_places(holder: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _list_places(holder[key])


# --- databases ------------------------------------------------------------------------

CELLS: tuple[Any, ...] = (
    *(
        None,
        0,
        -1,
        1,
        2**31,
        2**62,
        -0.5,
        1e308,
        float("inf"),
        1e-320,
        "",
        "x",
        "nan",
        "[]",
        "{}",
        "null",
        "[1]",
        "\n",
    ),
    *(
        '{"a": [1, null]}',
        '{"a": [1]}',
        '{"a": 1}',
        '["\\ud800"]',
        "a\0b",
        "\x1b[31m",
        "PASS",
        "1e999",
        "[" * 3000,
    ),
    *(
        "2025-11-20 06:00:00.000000",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59",
        "2025-11-20",
        b"",
        b"\xff",
        bytes(8),
    ),
)
SCHEMAS = (
    *(
        "DROP TABLE {table}",
        "DELETE FROM {table}",
        "ALTER TABLE {table} RENAME TO other",
        "DROP INDEX {index}",
    ),
    *(
        "ALTER TABLE {table} DROP COLUMN {column}",
        "ALTER TABLE {table} ADD COLUMN strange",
        "PRAGMA user_version = {n}",
    ),
    "ALTER TABLE {table} RENAME COLUMN {column} TO strange",
)


def _change_database(
    data: bytes, _seeds: Sequence[bytes], random: Random
) -> bytes | None:
    """Change a cell, a row or, less often, the schema of a database. None for other
    data."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        try:
            database.deserialize(data)
            names = [
                row[0]
                for row in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
                )
            ]
            table = random.choice(
                [name for name in names if not name.startswith("sqlite_")]
            )
            columns = [
                row[1] for row in database.execute(f"PRAGMA table_info({table})")
            ]
            _change_rows(database, table, random.choice(columns), random)
            return database.serialize()
        except (
            sqlite3.Error,
            MemoryError,
            IndexError,
            TypeError,
            ValueError,
            OverflowError,
        ):
            return None


def _change_rows(
    database: sqlite3.Connection, table: str, column: str, random: Random
) -> None:
    rows = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")]
    kind = random.randrange(10)
    if kind == 0:
        indexes = [
            row[0]
            for row in database.execute(
                "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE INDEX%'"
            )
        ]
        words = {
            "table": table,
            "column": column,
            "index": random.choice(indexes),
            "n": random.choice((0, 2, 9, -1)),
        }
        database.execute(random.choice(SCHEMAS).format(**words))
        return
    where, row = f"WHERE rowid = {random.choice(rows)}", random.choice(rows)
    if kind == 1:
        database.execute(f"DELETE FROM {table} {where}")
    elif kind == 2:
        database.execute(
            f"UPDATE {table} SET {column} = (SELECT {column} FROM {table} WHERE rowid = {row}) {where}"
        )
    elif kind == 3:
        text = database.execute(f"SELECT {column} FROM {table} {where}").fetchone()[0]
        changed = _change_json(
            str(text).encode("utf-8", "replace"), [b"{}", b"[]"], random
        )
        changed = changed or _insert(
            str(text).encode("utf-8", "replace"), [b"x"], random
        )
        database.execute(
            f"UPDATE {table} SET {column} = ? {where}",
            (changed.decode("utf-8", "replace"),),
        )
    else:
        database.execute(
            f"UPDATE {table} SET {column} = ? {where}", (random.choice(CELLS),)
        )


_STRUCTURES: dict[Shape, Callable[[bytes, Sequence[bytes], Random], bytes | None]] = {
    Shape.BYTES: lambda *_: None,
    Shape.JSON: _change_json,
    Shape.YAML: _change_yaml,
    Shape.SQLITE: _change_database,
}
