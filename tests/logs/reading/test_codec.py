"""Packing parsed logs is lossless, and invalid bytes are never unpacked."""

from __future__ import annotations

import copy
import dataclasses
import json
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs
from support.exact_comparison import to_bits
from support.shared_data import shared

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    ArraySteps,
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ParsedLog,
    Quote,
    Segment,
    StatedField,
    Statement,
    Steps,
    Unread,
    replace_columns,
)
from pytest_llmbench.logs.log_reader import read_ending, read_log
from pytest_llmbench.logs.reading.codec import (
    FileReading,
    FileToRead,
    ReadResult,
    _decode_column,
    _decode_own,
    _encode_column,
    compress_log,
    pack,
    unpack,
)
from pytest_llmbench.logs.sources.files import FileState

SAVE, LOAD = CheckpointAction
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"


STATE = FileState(1, "ab", (2, 3))


def round_trip(
    results: Sequence[ReadResult], state: FileState | None = STATE
) -> tuple[ReadResult, ...]:
    """Pack and unpack results."""
    readings = [
        FileReading(FileToRead(f"/{number}", True), result, state)
        for number, result in enumerate(results)
    ]
    unpacked = unpack(pack(readings))
    assert [reading[::2] for reading in unpacked] == [
        reading[::2] for reading in readings
    ]
    return tuple(reading.result for reading in unpacked)


@pytest.mark.slow
def test_packed_real_logs_are_unpacked_unchanged() -> None:
    """All logs together: each gets its own section of the columns."""
    files = sorted(Path(shared("logs")).rglob("*.out"))
    output = tuple(read(path) for path in files for read in (read_log, read_ending))
    assert sum(len(one.segments) for one in output if isinstance(one, ParsedLog)) > 5
    assert to_bits(round_trip(output)) == to_bits(output)


def test_every_field_of_a_packed_log_is_unpacked_unchanged() -> None:
    ending = Ending(
        EndingCode.TRACEBACK,
        Quote("Ü\udcff\x00'"),
        3,
        rank="1",
        beside=Ending(EndingCode.CUT, NO_QUOTE, 0, "é"),
        went_on=True,
    )
    log = ParsedLog(
        dialect=None,
        segments=(),
        dropped=(
            DroppedRecords(DropReason.TORN, 2, 1, "é"),
            DroppedRecords(DropReason.TORN, 2**40, 1, "", Quote("é")),
        ),
        ending=ending,
        started=datetime(2025, 6, 1, 1, 2, 3, 456789),  # noqa: DTZ001 (a log says no zone)
        checkpoints=Checkpoints(
            (CheckpointRecord(SAVE, 1, float("inf")), CheckpointRecord(LOAD, 2, 0.1))
        ),
        environment=(("torch", "2.4"), ("same", "")),
        prints_loss=False,
        unread=(Unread("regex:mine-1", "step"),),
    )
    log = structs.replace(
        log, readings=(log, structs.replace(log, started=datetime.now(UTC)))
    )
    output = (log, ending, None, LogError("no"), log)
    for state in (STATE, FileState(2**62, "", (2**64, 0, -1)), None):
        assert to_bits(round_trip(output, state)) == to_bits(output)
    assert unpack(pack(())) == []


def make_log(count: int, first: int = 0) -> ParsedLog:
    """Return a log of `count` steps, with shared, repeated and other columns."""
    random = np.random.default_rng(count)
    columns: dict[str, Any] = {
        "index": np.arange(first, first + count),
        "line": np.arange(100, 100 + count),
        "seconds": random.random(count),
        "learning_rate": np.linspace(0.0, 1.0, count),
        "asynchronous": random.random(count) < 0.5,
    }
    repeated: dict[str, Any] = {
        name: np.full(count, np.nan) for name in Steps.__dataclass_fields__
    }
    flags = {name: np.ones(count, bool) for name in ("has_loss", "has_grad_norm")}
    integers = {name: np.ones(count, np.int64) for name in ("mean_of", "paused")}
    steps = ArraySteps(**repeated | flags | integers | columns)
    facts = (Statement(StatedField.GPUS, "128", 3), Statement(StatedField.BITS, "b", 4))
    segment = Segment(steps, first_line=1, last_line=9, stated=facts)
    return ParsedLog(None, (segment,), environment=(("nccl", "2.25"),))


@pytest.mark.parametrize("count", [0, 1, 2, 50, 1000, 1001])
def test_compressed_log_equals_the_read_log(count: int) -> None:
    log = make_log(count)
    log = structs.replace(log, readings=(log, make_log(2 * count)))
    compressed = compress_log(log)
    assert to_bits(compressed) == to_bits(log)
    assert len(compressed.segments[0].steps) == count
    assert to_bits(compress_log(compressed)) == to_bits(log)
    assert to_bits(round_trip((compressed, log))) == to_bits((log, log))


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([7.2, 7.25, 7.311, 0.0, -32.767], 2),
        ([7.2, 7.25, 7.311, 0.0, 32.768], 4),
        ([2147.0, 7.123456, 0.000001, 1.0, 1.0], 4),
        ([2148.0, 1.0, 1.0, 1.0, 1.0], 8),
        ([7.1234567, 1.0, 1.0, 1.0, 1.0], 8),
        ([7.2, 7.25, 7.311, -0.0, 1.0], 8),
        ([7.2, 7.25, 7.311, float("nan"), 1.0], 8),
        ([7.2, 7.25, 7.311, float("inf"), 1.0], 8),
        ([1e308, 7.25, 7.311, 1.0, 1.0], 8),
        ([2147.4836475, 7.25, 7.311, 1.0, 1.0], 8),
        ([7.2, 7.25, 7.311, 5e-324, 1.0], 8),
        ([7.2, 7.25, 7.311, 1.0], 8),
    ],
)
def test_decimals_take_fewer_bytes_if_they_stay_exact(
    values: list[float], width: int
) -> None:
    whole = replace_columns(evenly(len(values)), seconds=np.array(values))
    (unpacked,) = steps_again([whole])
    assert to_bits(unpacked) == to_bits(whole)
    assert not unpacked.seconds.flags.writeable
    column = _encode_column(whole.seconds, "seconds", len(values))
    assert len(column) == width * len(values)


def test_columns_of_long_logs_are_not_kept_by_a_cache() -> None:
    before = _decode_column.cache_info(), _decode_own.cache_info()
    whole = evenly(1001)
    (unpacked,) = steps_again([whole])
    assert to_bits(unpacked) == to_bits(whole)
    assert unpacked.seconds is unpacked.seconds
    assert not unpacked.seconds.flags.writeable
    assert (_decode_column.cache_info(), _decode_own.cache_info()) == before


def test_unpacked_logs_share_equal_facts_and_columns() -> None:
    first, second, third = (
        log
        for log in (
            *round_trip((make_log(50), make_log(50))),
            compress_log(make_log(50)),
        )
        if isinstance(log, ParsedLog)
    )
    for other in (second, third):
        assert other.environment is first.environment
        (segment,), (other_segment,) = first.segments, other.segments
        assert other_segment.stated is segment.stated
        bases = [
            [one.steps.line.base, one.steps.learning_rate.base]
            for one in (segment, other_segment)
        ]
        assert all(one is other for one, other in zip(*bases, strict=True))


def test_changed_unpacked_steps_are_packed_with_the_change() -> None:
    (log,) = round_trip((make_log(50),))
    assert isinstance(log, ParsedLog)
    (segment,) = log.segments
    changed = replace_columns(segment.steps, seconds=np.full(50, 7.5))
    assert len(changed) == 50
    log = structs.replace(log, segments=(structs.replace(segment, steps=changed),))
    (unpacked,) = round_trip((log,))
    assert to_bits(unpacked) == to_bits(log)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lines", "7"),
        ("prints_loss", 1),
        ("readings", (Path(),)),
    ],
)
def test_packing_a_log_field_of_the_wrong_type_raises_an_error(
    field: str, value: object
) -> None:
    log = structs.replace(read_log(next(EXAMPLES.rglob("*.out"))), **{field: value})
    with pytest.raises((TypeError, AttributeError)):
        pack([FileReading(FileToRead("/log", True), log, None)])


def damaged_trees(
    tree: Any, place: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield a JSON tree for each of its values, with another value in its place."""
    wrong: list[Any] = [
        {"system": ["id"]},
        [],
        "text",
        None,
        7,
        -1,
        True,
        [[0, 0], ["one"]],
        [7],
        1e99,
        10**17,
        10**30,
    ]
    wrong.append({"same": tree})
    yield from (
        (place, other)
        for other in wrong
        if type(other) is not type(tree) or other != tree
    )
    for key in (
        range(len(tree))
        if isinstance(tree, list)
        else list(tree)
        if isinstance(tree, dict)
        else ()
    ):
        yield from damaged_trees(tree[key], (*place, key))


@pytest.mark.slow
def test_damaged_packed_log_is_refused_or_unpacked_with_the_declared_types() -> None:
    """With any value in any place, only records of the declared types are unpacked."""
    log = read_log(next(EXAMPLES.rglob("*.out")))
    data = pack(
        [
            FileReading(FileToRead("/log", True), log, STATE),
            FileReading(FileToRead("/err", False), None, None),
        ]
    )
    (size,) = struct.unpack_from("=Q", data)
    tree = json.loads(data[8 : 8 + size])
    refused = 0
    for place, other in damaged_trees(tree):
        changed: Any = [copy.deepcopy(tree)]
        inner = changed
        for key in (0, *place)[:-1]:
            inner = inner[key]
        inner[(0, *place)[-1]] = other
        text = json.dumps(changed[0]).encode()
        text += b" " * (-len(text) % 8)
        try:
            readings = unpack(struct.pack("=Q", len(text)) + text + data[8 + size :])
        except ValueError:
            refused += 1
        else:
            pack(readings)  # which refuses other types
    assert refused > 500
    for wrong in (
        b"",
        data[:7],
        data[: len(data) // 2],
        data[:-1],
        b"\xff" * 99,
        b"[" * 10**6,
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (the text is for nobody)
            unpack(wrong)


@pytest.mark.parametrize("count", [10**8, 10**30])
def test_packed_repeat_count_beyond_the_limit_is_refused(
    count: int,
) -> None:
    data = pack([FileReading(FileToRead("/err", False), None, None)])
    (size,) = struct.unpack_from("=Q", data)
    _, tree = json.loads(data[8 : 8 + size])
    text = json.dumps([count, {"same": tree}]).encode()
    with pytest.raises(ValueError, match=f"no {count} values"):
        unpack(struct.pack("=Q", len(text)) + text)


def test_strings_that_look_like_type_names_survive_packing_as_strings() -> None:
    records = tuple(
        CheckpointRecord(SAVE, 1, rank=name)
        for name in ("same", "Ending", "NaN", "null", "same")
    )
    output = (ParsedLog(None, (), checkpoints=Checkpoints(records)),)
    assert to_bits(round_trip(output)) == to_bits(output)


def test_values_shared_by_logs_are_stored_once() -> None:
    log = read_log(next(EXAMPLES.rglob("*.out")))
    logs = round_trip(tuple(structs.replace(log, lines=number) for number in range(9)))
    assert len({id(log.segments[0]) for log in logs if isinstance(log, ParsedLog)}) == 1
    reading = FileReading(FileToRead("/log", True), log, None)
    assert len(pack([reading] * 999)) < len(pack([reading])) + 100


# --- columns of steps: made only when looked at ---------------------------------------


FLOATS = [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("inf"), 5e-324]
INTEGERS = [0, 1, 2, 3, -(2**63), 2**63 - 1]


def steps_of(rows: list[tuple[float, int, bool]]) -> Steps:
    """Return steps whose columns of one type are equal, each shifted by a row."""
    pieces = {"Floats": 0, "Integers": 1, "Flags": 2}
    types = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
    columns = {}
    for number, field in enumerate(dataclasses.fields(Steps)):
        values: Any = np.array(
            [row[pieces[str(field.type)]] for row in rows], types[str(field.type)]
        )
        columns[field.name] = np.roll(values, number)
    return ArraySteps(**columns)


def evenly(count: int, first: int = 0) -> Steps:
    return steps_of([(1.5, number, True) for number in range(first, first + count)])


def steps_again(steps: Sequence[Steps]) -> list[Steps]:
    segments = tuple(Segment(piece, 1, 2) for piece in steps)
    (log,) = round_trip([ParsedLog(None, segments)])
    assert isinstance(log, ParsedLog)
    return [segment.steps for segment in log.segments]


rows = some.tuples(
    some.sampled_from(FLOATS), some.sampled_from(INTEGERS), some.booleans()
)
repeated = some.lists(some.tuples(rows, some.integers(1, 60)), max_size=6).map(
    lambda runs: steps_of([row for row, times in runs for _ in range(times)])
)


@pytest.mark.slow
@given(some.lists(repeated, max_size=5))
def test_all_columns_round_trip_bit_for_bit(steps: list[Steps]) -> None:
    """Covers signed zeros, every NaN, integers whose differences exceed 64 bits, and
    unpacked steps."""
    first = steps_again(steps)
    assert to_bits(tuple(first)) == to_bits(tuple(steps))
    assert to_bits(tuple(steps_again(steps_again(steps)))) == to_bits(tuple(steps))


def test_column_is_decoded_on_access_and_not_stored() -> None:
    first, second = steps_again([evenly(50), evenly(40, first=7)])
    missing = object()
    assert second.seconds is second.seconds  # one of the last decoded columns
    with pytest.raises(AttributeError):
        object.__getattribute__(second, "seconds")
    assert (len(first), len(second)) == (50, 40)
    assert getattr(second, "second", missing) is missing
    with pytest.raises(ValueError, match="read-only"):
        second.seconds[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        second.seconds = first.seconds  # type: ignore[misc]


def test_packed_steps_round_trip_in_any_order_of_the_logs() -> None:
    """Unpacked steps are packed from their bytes, together with new steps."""
    one, two, three = steps_again([evenly(3), evenly(4, first=9), evenly(5, first=99)])
    (other,) = steps_again([evenly(2, first=7)])
    for order in (
        [one, two, three],
        [three, two, one],
        [one, one],
        [two, other, three],
        [one, evenly(2), two],
    ):
        assert to_bits(tuple(steps_again(order))) == to_bits(tuple(order))
    assert not isinstance(one, ArraySteps)
