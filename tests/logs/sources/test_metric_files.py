"""Event files, tables and JSON lines: their values, and damage."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.event_files import (
    VERSION,
    argument,
    event,
    event_file,
    field,
    frame,
    run,
    scalar,
    tensor_scalar,
)
from support.shared_data import shared
from support.written_logs import dropped, steps

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import EndingCode, ParsedLog, StatedField
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.logs.sources.compressed import Stream, is_compressed

EVENTS = "events.out.tfevents.1.node"


def read(data: bytes, name: str = EVENTS, size: int = 0) -> ParsedLog:
    """Read a file in blocks of `size` bytes."""
    blocks = (
        [data[start : start + size] for start in range(0, len(data), size)]
        if size
        else [data]
    )
    return read_log(Stream(blocks, Path(name)))


def test_megatron_event_file_is_read() -> None:
    log = read(run([0.5, 0.25, 0.125], total=3))
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "metrics"
    assert (columns.index.tolist(), columns.seconds.tolist()) == (
        [1, 2, 3],
        [0.5, 0.25, 0.125],
    )
    assert columns.loss.tolist() == [7.5] * 3
    assert columns.tflops_per_gpu.tolist() == [400.0, 800.0, 1600.0]
    assert (segment.total_steps, segment.finished) == (3, True)
    assert {each.field: each.value for each in segment.stated} == {
        StatedField.SEQUENCE: "8192"
    }
    assert log.ending is None


def test_scalar_stored_as_tensor_is_read() -> None:
    log = read(
        event_file(
            event(1, tensor_scalar("perf/step_time_seconds", 0.5)),
            event(2, tensor_scalar("x", 1.0)),
        )
    )
    assert log.segments[0].steps.seconds.tolist() == [0.5]


def test_interval_time_is_the_mean_of_its_steps() -> None:
    """torchtitan divides each by ten. The first, of one step, is dropped; the second
    covers nine steps."""
    times = ((1, 2.0), (10, 1.8), (20, 2.0), (30, 2.0))
    log = read(
        event_file(
            *(
                event(step, scalar("time_metrics/end_to_end(s)", value))
                for step, value in times
            )
        )
    )
    columns = log.segments[0].steps
    assert columns.mean_of.tolist() == [1, 9, 10, 10]
    assert math.isnan(columns.seconds[0])
    assert columns.seconds[1:].tolist() == pytest.approx([2.0] * 3)


def test_slower_time_of_a_repeated_step_is_kept() -> None:
    log = read(
        event_file(
            *(
                event(step, scalar("iteration-time", value))
                for step, value in ((1, 0.5), (1, 0.25))
            )
        )
    )
    assert log.segments[0].steps.seconds.tolist() == [0.5]
    assert dropped(log) == {"repeat-disagrees": 1}


def test_nan_loss_of_a_repeated_step_is_kept() -> None:
    """Another process, or the same one after a restart, prints the step again."""
    losses = ((1, math.nan), (1, 7.5), (2, 7.5), (2, 7.25))
    events = [
        event(step, scalar("lm loss", value), scalar("iteration-time", 0.5))
        for step, value in losses
    ]
    first, second = read(event_file(*events)).segments[0].steps.loss.tolist()
    assert math.isnan(first)
    assert second == 7.25


def test_metric_files_do_not_depend_on_block_size() -> None:
    data = run([0.5, 0.25, 0.125], total=3)
    complete = read(data)
    for size in (1, 7, 64):
        assert repr(read(data, size=size)) == repr(complete)


@pytest.mark.slow
def test_too_large_event_record_is_skipped() -> None:
    """Images and histograms, also one that ends with a block."""
    data = event_file(frame(bytes(200_000)), event(1, scalar("iteration-time", 0.5)))
    for size in (0, 4096, 65_536):
        assert steps(read(data, size=size)) == [[1]]


@pytest.mark.parametrize("cut", [1, 60])
def test_truncated_event_file_is_flagged(cut: int) -> None:
    log = read(run([0.5, 0.25])[:-cut])
    assert log.ending is not None
    assert log.ending.code is EndingCode.CUT
    assert steps(log)[0][0] == 1


def test_changed_byte_in_an_event_file_never_changes_the_steps_silently() -> None:
    """Checksums protect each frame. The file name does not matter."""
    data = run([0.5, 0.25])
    complete = repr(read(data).segments)
    for index in range(len(VERSION), len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        try:
            same = repr(read(changed).segments) == complete
        except LogError as error:
            same = "checksum" in str(error) and EVENTS in str(error)
        assert same


def test_damage_is_reported_with_its_offset() -> None:
    data = run([0.5, 0.25])
    before_last = len(run([0.5]))
    changed = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(LogError, match=f"wrong checksum after byte {before_last}"):
        read(changed, size=7)


def test_giant_record_length_in_an_event_file_raises_an_error() -> None:
    length = struct.pack("<Q", 1 << 62)
    header = frame(length)[12:20] + frame(length)[-4:]
    with pytest.raises(
        LogError, match="states a size of 4611686018427387904 bytes, expected at most"
    ):
        read(VERSION + header + bytes(100))


@pytest.mark.parametrize("seed", range(10))
def test_invalid_events_raise_no_error(seed: int) -> None:
    """Complete frames with bytes that are not a valid event."""
    random = Random(seed)  # noqa: S311 (a test)
    good = bytearray(
        event(3, scalar("iteration-time", 0.5), argument("train_iters", "5"))[12:-4]
    )
    for _ in range(random.randrange(1, 6)):
        good[random.randrange(len(good))] = random.randrange(256)
    log = read(
        event_file(
            frame(bytes(good)),
            frame(random.randbytes(50)),
            event(1, scalar("iteration-time", 0.5)),
        )
    )
    assert 1 in steps(log)[-1] or len(log.segments) > 1


@pytest.mark.parametrize(
    "value",
    [
        field(1, b"iteration-time") + b"\x15\0\0",
        field(1, b"iteration-time") + field(2, 3),
        b"\xff" * 30,
    ],
)
def test_invalid_scalar_in_an_event_file_gives_no_step_time(value: bytes) -> None:
    log = read(event_file(event(1, value), event(2, scalar("iteration-time", 0.5))))
    times = [
        seconds
        for segment in log.segments
        for seconds in segment.steps.seconds.tolist()
    ]
    assert times[-1] == 0.5
    assert all(math.isnan(seconds) for seconds in times[:-1])


def test_name_in_an_event_file_cannot_add_a_line_to_the_log() -> None:
    log = read(
        event_file(
            event(0, argument("run_name", "x\nllmb scalar: 1/1 0 0.1 iteration-time")),
            event(2),
        )
    )
    assert (log.segments, log.dropped) == ((), ())


# --- tables and JSON lines ------------------------------------------------------------

TABLE = b"epoch,step,train_step_timing in s,reduced_train_loss\n0,0,9.5,12.0\n0,1,,\n0,1,0.5,11.0\r\n0,2,0.25,10.0\n"


@pytest.mark.parametrize("size", [0, 1, 9])
def test_csv_table_is_read(size: int) -> None:
    columns = read(TABLE, "metrics.csv", size).segments[0].steps
    assert (columns.index.tolist(), columns.seconds.tolist()) == (
        [0, 1, 2],
        [9.5, 0.5, 0.25],
    )
    assert columns.loss.tolist() == [12.0, 11.0, 10.0]


def test_appended_table_has_its_own_columns() -> None:
    """With the columns of the first table, the loss would be read as the time."""
    second = b"epoch,step,reduced_train_loss,train_step_timing in s\n0,0,2.0,9.5\n0,1,2.0,0.75\n"
    first, other = read(TABLE + second, "metrics.csv").segments
    assert first.steps.seconds.tolist() == [9.5, 0.5, 0.25]
    assert other.steps.seconds.tolist() == [9.5, 0.75]
    without = read(TABLE + b"epoch,step,grad_norm,lr\n0,3,2.0,9.5\n", "metrics.csv")
    assert steps(without) == [[0, 1, 2]]


def test_table_may_begin_with_byte_order_mark() -> None:
    log = read(b"\xef\xbb\xbfstep,iteration-time\n7,0.5\n", "metrics.csv")
    assert steps(log) == [[7]]


def test_json_lines_are_read() -> None:
    text = b'{"step": 3, "perf/step_time_seconds": 0.5, "learning/loss": 2.0}\n{"step": 4, "perf/step_time_seconds": 0.25}'
    columns = read(text, "metrics.jsonl").segments[0].steps
    assert (columns.index.tolist(), columns.seconds.tolist()) == ([3, 4], [0.5, 0.25])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("metrics.csv", b"step,loss\n1,2.0\n"),
        ("metrics.csv", b"epoch,iteration-time\n1,2.0\n"),
        ("metrics.csv", b'"' * 99),
        ("metrics.jsonl", b'{"step": 1, "loss": 2}\n'),
        ("metrics.jsonl", b"[" * 5000),
        ("metrics.txt", TABLE),
    ],
)
def test_file_without_step_and_time_is_not_a_table(name: str, data: bytes) -> None:
    log = read(data, name)
    assert (log.segments, log.dropped, log.lines) == (
        (),
        (),
        data.count(b"\n") or bool(data),
    )


@pytest.mark.parametrize(
    "row", [b"x,1,y", b"1,2", b"1e99,0.5,1", b"-1,0.5,1", b"1.5,0.5,1", b'"1,0.5']
)
def test_invalid_row_is_ignored(row: bytes) -> None:
    log = read(b"step,iteration-time,lm loss\n" + row + b"\n7,0.5,2.0\n", "metrics.csv")
    assert steps(log) == [[7]]


def test_rest_of_a_csv_row_longer_than_the_limit_is_ignored() -> None:
    log = read(
        b"step,iteration-time\n5," + b" " * (3 << 20) + b"6,0.25\n7,0.5\n",
        "metrics.csv",
        1 << 16,
    )
    assert steps(log) == [[7]]


def test_infinite_step_time_and_nan_loss_keep_their_steps() -> None:
    log = read(b"step,iteration-time,lm loss\n6,inf,1\n7,0.5,nan\n", "metrics.csv")
    columns = log.segments[0].steps
    assert columns.index.tolist() == [6, 7]
    assert math.isnan(columns.loss[1])


def test_metric_file_is_classified_as_compressed(tmp_path: Path) -> None:
    for name, data in ((EVENTS, run([0.5])), ("metrics.csv", TABLE)):
        path = tmp_path / name
        path.write_bytes(data)
        assert is_compressed(str(path))
    (tmp_path / "plain.csv").write_text("a,b\n")
    assert not is_compressed(str(tmp_path / "plain.csv"))


# --- real files: read here by a search for bytes --------------------------------------


@pytest.mark.parametrize(
    ("name", "tag", "count", "first"),
    [
        ("events.out.tfevents.1774532589.megatron", b"iteration-time", 14, 2),
        (
            "events.out.tfevents.1777776064.torchtitan",
            b"time_metrics/end_to_end(s)",
            50,
            1,
        ),
    ],
)
def test_real_event_files_are_read(
    name: str, tag: bytes, count: int, first: int
) -> None:
    """The value (0x15), a float of four bytes, follows the step (0x10) and the tag."""
    path = shared(f"logs/today/{name}")
    pattern = (
        rb"\x10([\x01-\x7f])\*.\x0a.\x0a"
        + bytes([len(tag)])
        + re.escape(tag)
        + rb"\x15(.{4})"
    )
    printed = [
        (match[1][0], struct.unpack("<f", match[2])[0])
        for match in re.finditer(pattern, path.read_bytes(), re.DOTALL)
    ]
    (segment,) = read_log(path).segments
    assert len(printed) == count
    assert printed[0][0] == first
    assert segment.steps.index.tolist() == [step for step, _ in printed]
    assert segment.steps.seconds.tolist() == [value for _, value in printed]
    assert np.isfinite(segment.steps.loss).all()
