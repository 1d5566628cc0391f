"""Parsed logs as bytes: what comes out is what went in, bit for bit, and nothing else is ever taken for it."""

from __future__ import annotations

import copy
import dataclasses
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import bits
from hypothesis import given
from hypothesis import strategies as some
from shared_data import shared

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import (
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ParsedLog,
    RegexDialect,
    Steps,
    Unread,
)
from pytest_llmbench.ingest.parse.read import read_ending, read_log
from pytest_llmbench.ingest.reading.codec import LazySteps, pack, pack_steps, unpack, unpack_steps

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"


@pytest.mark.parametrize("root", ["logs", EXAMPLES], ids=["real", "examples"])
def test_real_logs_come_out_as_they_went_in(root: str | Path) -> None:
    """All of them together: each gets its own part of the columns."""
    files = sorted(path for path in (Path(shared("logs")) if root == "logs" else EXAMPLES).rglob("*.out"))
    said = tuple(read(path) for path in files for read in (read_log, read_ending))
    assert sum(len(one.segments) for one in said if isinstance(one, ParsedLog)) > 5
    assert bits(unpack(pack(said))) == bits(said)


def test_everything_that_a_log_can_hold_comes_out() -> None:
    ending = Ending(
        EndingCode.TRACEBACK, "Ü\udcff\x00'", 3, rank="1", beside=Ending(EndingCode.CUT, "", 0), went_on=True
    )
    log = ParsedLog(
        dialect=None,
        segments=(),
        dropped=(DroppedRecords(DropReason.TORN, 2, 1, "é"), DroppedRecords(DropReason.TORN, 2**40, 1, "")),
        ending=ending,
        started=datetime(2025, 6, 1, 1, 2, 3, 456789),  # noqa: DTZ001 (a log says no zone)
        checkpoints=Checkpoints((CheckpointRecord("save", 1, float("inf")), CheckpointRecord("load", 2, 0.1))),
        prints_loss=False,
        unread=(Unread("regex:mine-1", "step"),),
    )
    log = dataclasses.replace(log, readings=(log, dataclasses.replace(log, started=datetime.now(UTC))))
    said = (log, ending, None, LogError("no"), RegexDialect("a", "b", "c"), (("x", True), ()), 2**62, 0.1, "")
    assert bits(unpack(pack(said))) == bits(said)
    assert unpack(pack(())) == ()


def test_nothing_else_is_packed() -> None:
    for value in (object(), (Path(),), (b"bytes",), ({1, 2},)):
        with pytest.raises(TypeError):
            pack(value)


def test_bytes_that_are_none_are_refused() -> None:
    data = pack((read_log(next(EXAMPLES.rglob("*.out"))), "text"))
    foreign = [
        '{"system":["id"]}',
        '{"Ending":[["cut"],["text"]]}',
        '{"Checkpoints":[[[]],[1,2]]}',
        '{"mixed":[[0,0],[["one"]]]}',
        '{"mixed":[[7],[["one"]]]}',
        '{"rows":[["one"],[]]}',
        '{"steps":[0,1],"rows":[]}',
        "[]",
    ]
    made = [f"[{told},[[],[]]]".encode() for told in foreign]
    wrong = [struct.pack("=Q", len(one)) + one for one in made]
    for damaged in (b"", data[:7], data[: len(data) // 2], data[:-1], b"\xff" * 99, *wrong):
        with pytest.raises((LookupError, TypeError, ValueError, struct.error)):
            unpack(damaged)


def test_texts_that_are_names_of_kinds_stay_texts() -> None:
    said = tuple(CheckpointRecord(name, 1, rank=name) for name in ("same", "mixed", "rows", "same"))
    assert bits(unpack(pack(said))) == bits(said)


def test_equal_numbers_of_other_types_are_told_apart() -> None:
    said = tuple((one,) for one in (1, True, 1.0, 0.0, -0.0, False, 0, float("nan"), None, "1", "", ()))
    assert bits(unpack(pack(said))) == bits(said)


def test_what_many_logs_share_is_kept_once() -> None:
    log = read_log(next(EXAMPLES.rglob("*.out")))
    logs = unpack(pack(tuple(dataclasses.replace(log, lines=number) for number in range(9))))
    assert len({id(one.segments) for one in logs}) == 1
    assert len(pack((log,) * 999)) < len(pack((log,))) + 100


# --- the columns of steps: every bit comes out, and a column is only made when somebody looks at it


FLOATS = [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("inf"), 5e-324]
INTEGERS = [0, 1, 2, 3, -(2**63), 2**63 - 1]


def steps_of(rows: list[tuple[float, int, bool]]) -> Steps:
    """Return steps whose columns of one type are equal, moved by a row each."""
    parts = {"Floats": 0, "Integers": 1, "Flags": 2}
    types = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
    columns = {}
    for number, one in enumerate(dataclasses.fields(Steps)):
        values: Any = np.array([row[parts[str(one.type)]] for row in rows], types[str(one.type)])
        columns[one.name] = np.roll(values, number)
    return Steps(**columns)


def evenly(count: int, first: int = 0) -> Steps:
    return steps_of([(1.5, number, True) for number in range(first, first + count)])


def again(steps: list[Steps]) -> list[Steps]:
    layout, data = pack_steps(steps)
    return unpack_steps(b"".join(data), 0, layout)


rows = some.tuples(some.sampled_from(FLOATS), some.sampled_from(INTEGERS), some.booleans())
repeated = some.lists(some.tuples(rows, some.integers(1, 60)), max_size=6).map(
    lambda runs: steps_of([row for row, times in runs for _ in range(times)])
)


@given(some.lists(repeated, max_size=5))
def test_all_columns_come_out_bit_for_bit(steps: list[Steps]) -> None:
    """Signed zeros, each NaN, and integers whose differences have no place in 64 bits; also unpacked ones."""
    first = again(steps)
    assert bits(tuple(first)) == bits(tuple(steps))
    assert bits(tuple(again(again(steps)))) == bits(tuple(steps))


def test_what_repeats_or_grows_evenly_takes_little_room() -> None:
    layout, data = pack_steps([evenly(5000)])
    assert layout[0] == [5000]
    assert sum(map(len, data)) < 1000


def test_a_column_is_cut_out_when_it_is_looked_at_and_only_once() -> None:
    first, second = again([evenly(50), evenly(40, first=7)])
    missing = object()
    taken = object.__getattribute__
    with pytest.raises(AttributeError):
        taken(second, "seconds")
    assert second.seconds is second.seconds
    assert taken(second, "seconds") is second.seconds
    assert (len(first), len(second)) == (50, 40)
    assert getattr(second, "second", missing) is missing
    with pytest.raises(ValueError, match="read-only"):
        second.seconds[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        second.seconds = first.seconds  # type: ignore[misc]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_copies_are_whole_and_can_be_packed(copied: Any) -> None:
    steps = again([evenly(50), evenly(40), evenly(30)])
    copies = [steps[0], copied(steps[1]), steps[2]]
    assert bits(tuple(again(copies))) == bits(tuple(steps))


def test_steps_are_packed_in_any_order() -> None:
    """Neighbours are packed as one piece: only those that follow each other are neighbours."""
    one, two, three = again([evenly(3), evenly(4, first=9), evenly(5, first=99)])
    (other,) = again([evenly(2, first=7)])
    for order in ([one, two, three], [three, two, one], [one, one], [two, other, three], [one, evenly(2), two]):
        assert bits(tuple(again(order))) == bits(tuple(order))
    assert isinstance(one, LazySteps)


def test_missing_bytes_are_an_error() -> None:
    layout, data = pack_steps(
        [evenly(50), steps_of([(float(number), number**3, number % 3 == 0) for number in range(50)])]
    )
    whole = b"".join(data)
    with pytest.raises(ValueError):  # noqa: PT011 (numpy's words)
        unpack_steps(whole[: len(whole) // 2], 0, layout)
    with pytest.raises(ValueError):  # noqa: PT011
        unpack_steps(whole, 0, (layout[0], layout[1][:-1]))
