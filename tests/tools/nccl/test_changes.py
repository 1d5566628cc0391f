"""Changes between two NCCL traces."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.nccl_traces import record, run

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.tools.nccl.nccl_changes import (
    TraceChange,
    TraceComparison,
    compare,
    format_bytes,
)
from pytest_llmbench.tools.nccl.nccl_records import Counts, count_records
from pytest_llmbench.tools.nccl.nccl_trace import Trace, sum_counts


def make_trace(lines: Iterable[str]) -> Trace:
    counts = Counts()
    counts.files = 1
    count_records(["".join(lines).encode()], counts)
    return sum_counts(counts)


OTHER = make_trace(run())


def list_changes(lines: Iterable[str]) -> list[TraceChange]:
    return list(compare(make_trace(lines), OTHER).changes)


def test_equal_traces_have_no_changes() -> None:
    assert compare(OTHER, OTHER) == TraceComparison((), 1.0, 0.01)


@pytest.mark.parametrize("steps", [5, 30])
def test_nccl_traces_of_different_numbers_of_steps_are_equal(steps: int) -> None:
    comparison = compare(make_trace(run(steps)), OTHER)
    assert comparison.changes == ()
    assert comparison.scale == pytest.approx(steps / 10)


def replace_in_run(old: str, new: str) -> Iterable[str]:
    return (line.replace(old, new) for line in run())


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [*run(), record("Send", gpu=0, comm="0x1")],
            [TraceChange("operation", "Send", "new, 1 records")],
        ),
        (
            (line for line in run() if "AllGather" not in line),
            [TraceChange("operation", "AllGather", "gone, had 20 records")],
        ),
        (
            [*run(), *(line for line in run() if "AllGather" in line)],
            [TraceChange("count", "AllGather", "+100.0 % for each rank (20 -> 40)")],
        ),
        (
            (
                line.replace("[nranks=2]", "[nranks=4]")
                if "AllReduce" in line
                else line
                for line in run()
            ),
            [
                TraceChange(
                    "communicator",
                    "AllReduce",
                    "communicators of 2: gone, had 100.0 % of its records",
                ),
                TraceChange(
                    "communicator",
                    "AllReduce",
                    "communicators of 4: new, 100.0 % of its records",
                ),
            ],
        ),
        (
            replace_in_run("count 1024 datatype 7", "count 2048 datatype 9"),
            [
                TraceChange(
                    "datatype", "AllReduce", "float32: gone, had 100.0 % of its records"
                ),
                TraceChange(
                    "datatype", "AllReduce", "bfloat16: new, 100.0 % of its records"
                ),
            ],
        ),
        (
            replace_in_run("count 1024 ", "count 1536 "),
            [TraceChange("size", "AllReduce", "6 KiB on average, was 4 KiB (+50.0 %)")],
        ),
        (
            replace_in_run("count 1024 ", "count 512 "),
            [
                TraceChange(
                    "size",
                    "AllReduce",
                    "4 KiB to 8 KiB: gone, had 100.0 % of its records",
                ),
                TraceChange(
                    "size", "AllReduce", "2 KiB to 4 KiB: new, 100.0 % of its records"
                ),
                TraceChange(
                    "size", "AllReduce", "2 KiB on average, was 4 KiB (-50.0 %)"
                ),
            ],
        ),
    ],
    ids=[
        "operation-new",
        "operation-gone",
        "count",
        "communicator",
        "datatype",
        "size-within",
        "size",
    ],
)
def test_each_change_is_listed_once(
    lines: Iterable[str], expected: list[TraceChange]
) -> None:
    assert list_changes(lines) == expected


def test_records_are_compared_per_rank() -> None:
    comparison = compare(
        make_trace(line.replace("nranks=4", "nranks=2") for line in run(ranks=4)), OTHER
    )
    assert comparison.changes == (TraceChange("ranks", "", "4 ranks, was 2"),)
    assert comparison.scale == 1.0


def test_changed_nccl_record_count_is_listed_relative_to_the_trace_lengths() -> None:
    sends = "".join(
        line.replace("AllGather", "Send") for line in run(20) if "AllGather" in line
    )
    base = make_trace(
        [
            *run(10),
            *(
                line.replace("AllGather", "Send")
                for line in run(10)
                if "AllGather" in line
            ),
        ]
    )
    comparison = compare(make_trace([*run(20), sends, sends]), base)
    assert comparison.scale == 2.0
    assert comparison.changes == (
        TraceChange("count", "Send", "+100.0 % for each rank at this scale (20 -> 80)"),
    )


def test_damaged_nccl_trace_lines_are_not_listed_as_changes() -> None:
    """A fifth of the lines is truncated, including all records of one rare size."""
    rare = record("AllReduce", count=1, gpu=0, comm="0x1")
    whole = [*run(100), rare]
    damaged = [
        line[:90] + "\n" if number % 5 == 0 or line == rare else line
        for number, line in enumerate(whole)
    ]
    comparison = compare(make_trace(damaged), make_trace(whole))
    assert comparison.changes == ()
    assert comparison.tolerance == pytest.approx(121 / 601)
    assert compare(make_trace(whole[:-1]), make_trace(whole)).changes


def test_comparing_nccl_call_lines_with_collective_records_is_refused() -> None:
    calls = make_trace(
        ["n1:7:7 NCCL CALL ncclSend(602000000,0,3,2,0,1,0x5573,0x5573)\n"]
    )
    assert compare(calls, calls).changes == ()
    with pytest.raises(LogError, match="NCCL CALL"):
        compare(calls, OTHER)


def test_sizes_are_formatted_with_binary_units() -> None:
    texts = [
        format_bytes(size)
        for size in (0, 512, 1023, 1024, 1536, 96 << 20, 1 << 50, 5 << 60, 5000 << 60)
    ]
    assert texts == [
        "0 B",
        "512 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "96 MiB",
        "1 PiB",
        "5 EiB",
        "5000 EiB",
    ]
