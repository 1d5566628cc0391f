"""Counting the records in the text of a trace."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nccl_traces import record, run
from support.shared_data import shared

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.tools.nccl import nccl_records as records
from pytest_llmbench.tools.nccl.nccl_records import (
    Counts,
    Kind,
    count_records,
    cut_pieces,
)
from pytest_llmbench.tools.nccl.nccl_trace import Trace, sum_counts


def count_text(text: str | bytes) -> Trace:
    counts = Counts()
    count_records(
        cut_pieces([text if isinstance(text, bytes) else text.encode()]), counts
    )
    return sum_counts(counts)


def rows(text: str) -> dict[Kind, tuple[int, int]]:
    return {row.kind: (row.records, row.bytes) for row in count_text(text).rows}


def test_real_trace_with_interleaved_lines_has_all_ranks() -> None:
    trace = count_text(shared("logs/nccl/torn_lines.out").read_bytes())
    assert (trace.records, trace.damaged) == (490, (("AllReduce", 68),))
    assert (trace.ranks, trace.hosts, trace.communicators) == (4, 1, ((4, 4),))
    assert trace.damage == pytest.approx(68 / 558)


@pytest.mark.parametrize(
    ("operation", "changed", "kind", "size"),
    [
        (
            "AllReduce",
            {"count": 1000, "datatype": 9},
            Kind("AllReduce", 2, "bfloat16", 1024),
            2000,
        ),
        (
            "AllGather",
            {"count": 1000, "datatype": 9, "nranks": 8},
            Kind("AllGather", 8, "bfloat16", 8192),
            16_000,
        ),
        (
            "ReduceScatter",
            {"count": 1, "datatype": 8, "nranks": 6},
            Kind("ReduceScatter", 6, "float64", 32),
            48,
        ),
        (
            "AlltoAll",
            {"count": 3, "datatype": 10, "nranks": 4},
            Kind("AlltoAll", 4, "float8e4m3", 8),
            12,
        ),
        (
            "Broadcast",
            {"count": 3, "datatype": 0, "nranks": 4},
            Kind("Broadcast", 4, "int8", 2),
            3,
        ),
        ("Send", {"datatype": 12}, Kind("Send", 2, "type 12", -1), 0),
        (
            "Later",
            {"acc": "acc (nil) ", "count": 2**60},
            Kind("Later", 2, "float32", 2**62),
            2**62,
        ),
    ],
)
def test_volume_is_the_size_of_the_whole_buffer(
    operation: str, changed: dict[str, Any], kind: Kind, size: int
) -> None:
    assert rows(record(operation, **changed) * 3) == {kind: (3, 3 * size)}


@pytest.mark.parametrize(
    ("line", "damaged"),
    [
        (record()[:-60] + "\n", {"AllReduce": 1}),
        (
            record().replace(" recvbuff", "stone:7:7 [1] NCCL INFO recvbuff"),
            {"AllReduce": 1},
        ),
        (record("AllGather")[:60] + record(), {"AllGather": 1}),
        (record().replace("INFO AllReduce", "INFduce"), {"other": 1}),
        (record().replace(" comm ", " comm\n"), {"AllReduce": 1}),
        ("n1:7:7 [0] NCCL INFO AllReduce: opCount", {"AllReduce": 1}),
    ],
)
def test_incomplete_record_counts_as_damaged(
    line: str, damaged: dict[str, int]
) -> None:
    trace = count_text(line + record("Send"))
    assert dict(trace.damaged) == damaged
    assert {
        row.kind.operation: row.records
        for row in trace.rows
        if row.kind.operation != "AllReduce"
    } == {"Send": 1}


@pytest.mark.parametrize(
    "line",
    [
        "n1:7:7 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.2\n",
        "n1:7:7 [0] NCCL INFO comm 0x55 rank 1 nranks 2 cudaDev 0 - Init COMPLETE\n",
    ],
)
def test_nccl_lines_of_other_kinds_are_not_records(line: str) -> None:
    assert count_text(line).begun == 0


def test_ranks_and_communicators_are_distinguished_by_process() -> None:
    """Pointers are unique only within a process; each GPU of a process is a rank."""
    text = (
        record()
        + record(gpu=1, comm="0x1")
        + record(pid=8)
        + record(host="n2", nranks=4)
    )
    trace = count_text(
        text
        + record(before="0", gpu=1)
        + record("Send", before="(RayTrainWorker pid=6, ip=10.1.1.1) ")
    )
    assert (trace.ranks, trace.hosts, trace.communicators, trace.unnamed) == (
        4,
        2,
        ((2, 3), (4, 1)),
        0,
    )


def test_nccl_records_without_host_and_process_are_counted_as_unnamed() -> None:
    trace = count_text("".join(line[line.index("[") :] for line in run(ranks=2)))
    assert (trace.ranks, trace.hosts, trace.unnamed) == (2, 0, 60)


def test_nccl_line_with_a_truncated_prefix_adds_no_rank() -> None:
    text = (
        record()
        + record()[4:]
        + record().replace(":7 [0]", "")
        + record().replace("[0]", "[")
    )
    trace = count_text(text)
    assert (
        trace.records,
        trace.ranks,
        trace.hosts,
        trace.communicators,
        trace.unnamed,
    ) == (4, 1, 1, ((2, 1),), 3)


def test_timestamp_printed_by_rccl_is_skipped() -> None:
    trace = count_text(record().replace("] NCCL", "] 1558545003174220 NCCL"))
    assert (trace.records, trace.ranks, trace.hosts) == (1, 1, 1)


def test_nccl_call_lines_are_counted_only_in_a_trace_without_collective_lines() -> None:
    call = "n1:7:7 NCCL CALL ncclSend(602000000,0,33554432,2,0,1,0x5573665adda0,0x557365a69470)\n"
    alone, mixed = count_text(call * 2), count_text(call * 2 + record())
    assert [(row.kind, row.records, row.bytes) for row in alone.rows] == [
        (Kind("Send", 0, "int32", 1 << 27), 2, 1 << 28)
    ]
    assert (alone.from_calls, mixed.from_calls, mixed.calls, mixed.records) == (
        True,
        False,
        2,
        1,
    )


def test_nccl_trace_with_too_many_different_operations_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "KINDS", 20)
    assert (
        count_text("".join(record(f"Op{number}") for number in range(20))).records == 20
    )
    with pytest.raises(LogError, match="more than 20 different operations"):
        count_text("".join(record(f"Op{number}") for number in range(21)))


def test_trace_with_too_many_ranks_is_marked_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "MEMBERS", 20)
    monkeypatch.setattr("pytest_llmbench.tools.nccl.nccl_trace.MEMBERS", 20)
    assert not count_text("".join(record(pid=number) for number in range(20))).limited
    trace = count_text("".join(record(pid=number) for number in range(30)))
    assert (trace.limited, trace.records) == (True, 30)


LINES = [
    record(),
    record("Send")[:90],
    record()[:70] + record("Recv"),
    "step 1\n",
    "\n",
    "x" * 40,
    record(pid=8),
]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(LINES), max_size=30),
    st.lists(st.integers(1, 400), min_size=1),
    st.integers(150, 4000),
)
def test_trace_lines_do_not_depend_on_block_sizes(
    text: list[str], cuts: list[int], size: int
) -> None:
    whole = "".join(text).encode()
    blocks: list[bytes] = []
    start = 0
    while start < len(whole):
        blocks.append(whole[start : start + cuts[len(blocks) % len(cuts)]])
        start += len(blocks[-1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "PIECE", size)
        pieces = [list(cut_pieces(blocks)), list(cut_pieces([whole]))]
    assert pieces[0] == pieces[1]
    assert b"".join(pieces[0]) == whole
    assert all(piece.endswith(b"\n") or len(piece) == size for piece in pieces[0][:-1])


def test_folding_long_trace_lines_loses_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(run(steps=50, ranks=3))
    expected = count_text(text)
    assert expected.records == len(re.findall("opCount", text)) == 450
    monkeypatch.setattr(records, "FOLD", 1000)
    monkeypatch.setattr(records, "PIECE", 700)
    assert count_text(text) == expected
