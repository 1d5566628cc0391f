"""Whole logs: dialects, facts that stand once, files that are none, files that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
from datetime import datetime
from pathlib import Path

import pytest
import zstandard
from written_logs import bar, dropped, maxtext, maxtext_run, nemo2, nemo2_run, parse, steps

from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.ingest.parse.dialect_reader import load_reader
from pytest_llmbench.ingest.parse.read import parse_blocks, read_ending, read_log
from pytest_llmbench.ingest.parse.records import Tally


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (bar(1, "0.000", "24.00"), "nemo1"),
        (nemo2(0), "nemo2"),
        (maxtext(0), "maxtext"),
        ("iteration        1/   15535 | elapsed time per iteration (ms): 20289.1 |\n", None),
    ],
)
def test_the_dialect_is_recognised_by_its_steps(text: str, dialect: str | None) -> None:
    assert parse(text).dialect == dialect


def test_of_two_dialects_the_one_with_more_steps_counts() -> None:
    few, many = maxtext_run(0, 1), nemo2_run(0, 9)
    for text in (few + many, many + few):
        log = parse(text)
        assert (log.dialect, steps(log)) == ("nemo2", [list(range(10))])
        assert dropped(log) == {"other-dialect": 2}
        assert log.dropped[0].shown == "maxtext: step 0"


@pytest.mark.parametrize("name", DIALECTS)
def test_every_entry_of_the_table_can_be_loaded(name: str) -> None:
    reader = load_reader(name)
    assert reader.dialect is DIALECTS[name]
    assert (reader.join([], Tally()), reader.settle([], Tally()), reader.time_steps([])) == ([], [], [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n" * 1000,
        b"\x00" * 5000,
        bytes(range(256)) * 50,
        b"\xff\xfe" + nemo2_run(0, 9).encode("utf-16-le"),
        "ünïcödé\u2028".encode() * 99,
        b"boom\n",
    ],
)
def test_what_is_no_log_has_no_dialect(data: bytes) -> None:
    log = parse_blocks([data])
    assert (log.dialect, log.segments, log.dropped, log.ending) == (None, (), (), None)
    assert (log.started, log.nccl_line, log.checkpoints.records) == (None, 0, ())


TEXT = nemo2_run(0, 9).encode()
METHODS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the command `zstd` does
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_compressed_log_is_read_as_its_text_whatever_its_name(method: str, tmp_path: Path) -> None:
    """The same fingerprint, so that it is known as a copy; the same lines, so that a message leads to one."""
    path, plain = tmp_path / "log.out", tmp_path / "plain.out"
    path.write_bytes(METHODS[method](TEXT))
    plain.write_bytes(TEXT)
    log, expected = read_log(path), read_log(plain)
    assert (log.fingerprint, log.size_bytes, log.lines) == (expected.fingerprint, len(TEXT), expected.lines)
    assert (log.dialect, steps(log), log.ending) == ("nemo2", steps(expected), expected.ending)


@pytest.mark.parametrize("method", METHODS)
def test_a_compressed_log_that_is_cut_counts_as_far_as_it_goes(method: str, tmp_path: Path) -> None:
    path = tmp_path / "log.out"
    path.write_bytes(METHODS[method](TEXT[:1000]) + METHODS[method](TEXT[1000:])[:-9])
    log = read_log(path)
    assert log.ending is not None
    assert (log.ending.code, log.ending.line) == ("cut", log.lines)
    assert f"the {method} data of log.out end before their end" in log.ending.problem
    assert log.size_bytes >= 1000


def test_a_cut_log_that_says_how_it_ended_is_believed(tmp_path: Path) -> None:
    text = TEXT + b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-06-11T05:14:49 DUE TO TIME LIMIT ***\n"
    path = tmp_path / "log.out"
    path.write_bytes(gzip.compress(text)[:-4])
    ending = read_log(path).ending
    assert ending is not None
    assert ending.code == "time-limit"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_damaged_compressed_log_cannot_be_read(method: str, tmp_path: Path) -> None:
    data = bytearray(METHODS[method](b"".join(b"%d lines that differ\n" % number for number in range(20000))))
    data[len(data) // 2] ^= 255
    path = tmp_path / "log.out"
    path.write_bytes(data)
    with pytest.raises(LogError, match=rf"the {method} data of .*log\.out are damaged after \d+ bytes of text"):
        read_log(path)


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [([], 0), ([b""], 0), ([b"a"], 1), ([b"a\n"], 1), ([b"a\n", b"b"], 2), ([b"a\n", b"\n"], 2), ([b"a\r", b"b\n"], 1)],
)
def test_lines_are_counted_as_editors_do(blocks: list[bytes], lines: int) -> None:
    assert parse_blocks(blocks).lines == lines


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("DLL 2025-06-11 05:14:49.562847 - PARAMETER x", datetime.fromisoformat("2025-06-11T05:14:49.562847")),
        ("[NeMo I 2025-04-11 14:48:45 nemo_logging:393] x", datetime.fromisoformat("2025-04-11T14:48:45")),
        ("[titan] 2026-05-04 06:05:54,392 - root", datetime.fromisoformat("2026-05-04T06:05:54.392")),
        ("[2026-08-18T04:17:57.018] error: x", datetime.fromisoformat("2026-08-18T04:17:57.018")),
        ("I0317 10:00:24.410596 125344476638336 metric_logger.py:181]", None),
        ("--2025-06-11 05:11:24--  https://example.com/vocab.json", datetime.fromisoformat("2025-06-11T05:11:24")),
        ("INFO:2026-11-20 22:34:02,785:jax: x", datetime.fromisoformat("2026-11-20T22:34:02.785")),
        ("2025-06-11 05:14:49 x", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("    \x1b[32m[2025-06-11 05:14:49] x", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("bar\r9: [default3]: [2025-06-11 05:14:49 x", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("[rank0]:[titan] 2026-05-04 06:05:54,392 - root", datetime.fromisoformat("2026-05-04T06:05:54.392")),
        ("(train, pid=41, ip=10.1.2.3) [NeMo W 2025-06-11 05:14:49", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("b_bf16_512/0 [default0]:[NeMo I 2025-06-11 05:14:49", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("text cut off[NeMo I 2025-06-11 05:14:49 x]", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("24.00]DLL 2025-06-11 05:14:49.562847 - 0 x", datetime.fromisoformat("2025-06-11T05:14:49.562847")),
        ("[before megatron-init] datetime: 2025-06-11 05:14:49", datetime.fromisoformat("2025-06-11T05:14:49")),
        ("NVIDIA Release 24.11 (built 2024-11-05 10:00:00)", None),
        ("built 2024-11-05 10:00:00", None),
        ("image: 2024-11-05 10:00:00", None),
        ("x" * 8000 + " 2024-11-05 10:00:00", None),
        ("x" + " " * 600 + "2024-11-05 10:00:00", None),
        ("x" * 511 + "[2024-11-05 10:00:00]", None),
        ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 ***", None),
        ("2025-13-45 99:00:00 and then 2025-06-11 05:14:49", None),
        ("2025-06-11", None),
    ],
)
def test_the_start_is_the_first_timestamp_as_printed(line: str, started: datetime | None) -> None:
    log = parse("no time here\n" + line + "\n")
    assert log.started == started
    assert log.started is None or log.started.tzinfo is None
    assert parse(line).started == started
    after = parse("no time here\n" + line + "\n[NeMo I 2021-01-01 00:00:00 x]\n")
    assert after.started == (started or datetime.fromisoformat("2021-01-01T00:00:00"))


@pytest.mark.parametrize(
    ("times", "started"),
    [
        (["2024-11-05 10:00:00", "2025-06-11 05:14:49"], "2025-06-11 05:14:49"),
        (["2024-11-05 10:00:00", "2025-06-11 05:14:49", "2025-06-11 05:14:50"], "2025-06-11 05:14:49"),
        (["2023-11-05 10:00:00", "2024-11-05 10:00:00", "2025-06-11 05:14:49"], "2025-06-11 05:14:49"),
        (["2025-05-12 05:14:49", "2025-06-11 05:14:49", "2026-06-11 05:14:49"], "2025-05-12 05:14:49"),
        (["2025-05-12 05:14:48", "2025-06-11 05:14:49"], "2025-06-11 05:14:49"),
        (["2025-06-11 05:14:49", "2024-11-05 10:00:00"], "2025-06-11 05:14:49"),
        (["2024-11-05 10:00:00"], "2024-11-05 10:00:00"),
    ],
)
@pytest.mark.parametrize("between", ["", "x" * 2_000_000])
def test_a_time_much_older_than_the_next_is_not_the_start(times: list[str], started: str, between: str) -> None:
    text = f"\n{between}\nNVIDIA Release 24.11 (built 2020-11-05 10:00:00)\n".join(f"[{time}] x" for time in times)
    assert str(parse(text).started) == started


def test_a_trace_and_checkpoints_are_told_by_their_first_lines() -> None:
    operation = (
        "[7] NCCL INFO AllReduce: opCount 2 sendbuff 0x7ffb4713c200 recvbuff 0x7ffb4713c200 count 1 datatype 1 op 0\n"
    )
    load = "[NeMo I 2025-04-11 14:46:18 x] Global Checkpoint Load : Rank : 0 : Start time : 1744407969.270s\n"
    save = "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] Global Checkpoint Save : Rank: 0 : Iteration: 50\n"
    log = parse("x\n" + load + "NCCL INFO Channel 00/16\nsomething: opCount 7\n" + (operation + save) * 3)
    assert (log.checkpoints.load_line, log.nccl_line, log.checkpoints.save_line) == (2, 5, 6)


@pytest.mark.parametrize(
    "line",
    ["NCCL INFO comm 0x55 rank 0 nranks 8", "NCCL version 2.25.1+cuda12.8", "NCCL_DEBUG=INFO", "count: opCount 2"],
)
def test_other_nccl_lines_are_no_trace(line: str) -> None:
    assert parse(line + "\n").nccl_line == 0


def test_read_log_adds_size_and_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "log.out"
    data = nemo2_run(0, 49).encode() + b"x" * (3 << 20)
    path.write_bytes(data)
    log = read_log(path)
    path.write_bytes(data.replace(b"iteration 7/", b"iteration 8/"))
    assert log.size_bytes == len(data)
    assert read_log(path).fingerprint != log.fingerprint
    assert steps(log) == [list(range(50))]
    assert parse_blocks([data]).size_bytes == 0


@pytest.mark.parametrize("read", [read_log, read_ending])
def test_what_cannot_be_read_is_named_with_the_reason(read: object, tmp_path: Path) -> None:
    assert callable(read)
    with pytest.raises(LogError, match=r"cannot read .*absent\.out: No such file or directory"):
        read(tmp_path / "absent.out")
    with pytest.raises(LogError, match="not a regular file"):
        read(tmp_path)


def test_dropped_examples_are_short_and_printable() -> None:
    log = parse(b"Training epoch 0, iteration 7/49 | \x1b[31m\x00\xff" + "ü".encode() * 200 + b"\n")
    (torn,) = parse(nemo2(0) + log.dropped[0].shown).dropped or log.dropped
    assert len(log.dropped[0].shown) == 80
    assert log.dropped[0].shown.isprintable()
    assert torn.reason == "torn"


def test_a_trace_that_goes_on_after_a_step_is_seen_again() -> None:
    trace = b"[0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7ffb4713c200\n"
    step = b"completed step: 0, seconds: 1.000, TFLOP/s/device: 1.000, loss: 1.000\n"
    for blocks in ([trace * 3, step, trace * 2], [trace * 3 + step + b"x" * 3_000_000 + b"\n" + trace]):
        log = parse_blocks(blocks)
        lines = b"".join(blocks).split(b"\n")
        assert log.nccl_line == 1
        assert lines[log.nccl_last_line - 1].startswith(b"[0] NCCL INFO")
        assert log.nccl_last_line > 4
