"""Whole logs: dialects, single facts, files that are not logs, and unreadable files."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from support.written_logs import dropped, maxtext, maxtext_run, nemo2_run, parse, steps

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_reader import load_reader
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.log_reader import parse_blocks, read_ending, read_log
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.zstd import zstd
from pytest_llmbench.logs.step_records import Tally


def test_dialect_with_most_steps_is_chosen() -> None:
    few, many = maxtext_run(0, 1), nemo2_run(0, 9)
    for text in (few + many, many + few):
        log = parse(text)
        assert (log.dialect, steps(log)) == ("nemo2", [list(range(10))])
        assert dropped(log) == {"other-dialect": 2}
        assert log.dropped[0].shown == "maxtext: step 0"


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_reader_can_be_loaded(name: str) -> None:
    reader = load_reader(name)
    assert reader.dialect is DIALECTS[name]
    assert (
        reader.merge_records([], Tally()),
        reader.resolve_steps([], Tally()),
        reader.time_steps([]),
    ) == ([], [], [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n" * 1000,
        b"\x00" * 5000,
        bytes(range(256)) * 50,
        b"\xff\xfe" + nemo2_run(0, 9).encode("utf-16-le"),
    ],
    ids=["empty", "line feeds", "zeros", "all bytes", "UTF-16"],
)
def test_bytes_without_a_log_give_no_steps(data: bytes) -> None:
    log = parse_blocks([data])
    assert (log.dialect, log.segments, log.dropped, log.ending) == (None, (), (), None)
    assert (log.started, log.nccl_line, log.checkpoints.records) == (None, 0, ())


TEXT = nemo2_run(0, 9).encode()
CHECKSUM: dict[int, int] = {
    zstd.CompressionParameter.checksum_flag: 1
}  # as the command `zstd` writes
METHODS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda data: zstd.compress(
        data, options={zstd.CompressionParameter.checksum_flag: 1}
    ),  # as the command `zstd` does
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@pytest.mark.parametrize("method", METHODS)
def test_compressed_log_equals_its_text_whatever_its_name(
    method: str, tmp_path: Path
) -> None:
    """The fingerprint is equal, so that duplicates are detected. The line numbers are
    equal, so that messages point to the right line."""
    path, plain = tmp_path / "log.out", tmp_path / "plain.out"
    path.write_bytes(METHODS[method](TEXT))
    plain.write_bytes(TEXT)
    log, expected = read_log(path), read_log(plain)
    assert (log.fingerprint, log.size_bytes, log.lines) == (
        expected.fingerprint,
        len(TEXT),
        expected.lines,
    )
    assert (log.dialect, steps(log), log.ending) == (
        "nemo2",
        steps(expected),
        expected.ending,
    )


@pytest.mark.parametrize("method", METHODS)
def test_truncated_compressed_log_is_read_to_its_end(
    method: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.out"
    path.write_bytes(METHODS[method](TEXT[:1000]) + METHODS[method](TEXT[1000:])[:-9])
    log = read_log(path)
    assert log.ending is not None
    assert (log.ending.code, log.ending.line) == ("cut", log.lines)
    assert f"the {method} data of log.out are truncated" in log.ending.problem
    assert log.size_bytes >= 1000


def test_time_limit_is_read_from_a_truncated_compressed_log(tmp_path: Path) -> None:
    text = (
        TEXT
        + b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-06-11T05:14:49 DUE TO TIME LIMIT ***\n"
    )
    path = tmp_path / "log.out"
    path.write_bytes(gzip.compress(text)[:-4])
    ending = read_log(path).ending
    assert ending is not None
    assert ending.code == "time-limit"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_damaged_compressed_log_is_unreadable(method: str, tmp_path: Path) -> None:
    data = bytearray(
        METHODS[method](
            b"".join(b"%d lines that differ\n" % number for number in range(20000))
        )
    )
    data[len(data) // 2] ^= 255
    path = tmp_path / "log.out"
    path.write_bytes(data)
    with pytest.raises(
        LogError,
        match=rf"the {method} data of .*log\.out are damaged after \d+ bytes of text",
    ):
        read_log(path)


@pytest.mark.parametrize(
    ("data", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\n", 2), (b"a\rb\n", 1)]
)
def test_lines_are_counted_as_editors_do(data: bytes, lines: int) -> None:
    assert parse_blocks([data]).lines == lines


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("DLL 2025-06-11 05:14:49.562847 - PARAMETER x", "2025-06-11 05:14:49.562847"),
        ("[titan] 2026-05-04 06:05:54,392 - root", "2026-05-04 06:05:54.392000"),
        ("[2026-08-18T04:17:57.018] error: x", "2026-08-18 04:17:57.018000"),
        (
            "--2025-06-11 05:11:24--  https://example.com/vocab.json",
            "2025-06-11 05:11:24",
        ),
        ("    \x1b[32m[2025-06-11 05:14:49] x", "2025-06-11 05:14:49"),
        ("bar\r9: [default3]: [2025-06-11 05:14:49 x", "2025-06-11 05:14:49"),
        (
            "(train, pid=41, ip=10.1.2.3) [NeMo W 2025-06-11 05:14:49",
            "2025-06-11 05:14:49",
        ),
        ("text cut off[NeMo I 2025-06-11 05:14:49 x]", "2025-06-11 05:14:49"),
        ("[before megatron-init] datetime: 2025-06-11 05:14:49", "2025-06-11 05:14:49"),
        ("NVIDIA Release 24.11 (built 2024-11-05 10:00:00)", "None"),
        ("x" * 8000 + " 2024-11-05 10:00:00", "None"),
        ("x" * 511 + "[2024-11-05 10:00:00]", "None"),
        (
            "slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 ***",
            "None",
        ),
        ("2025-13-45 99:00:00 and then 2025-06-11 05:14:49", "None"),
    ],
)
def test_log_starts_at_its_first_timestamp(line: str, started: str) -> None:
    assert str(parse("no time here\n" + line + "\n").started) == started
    after = parse("no time here\n" + line + "\n[NeMo I 2021-01-01 00:00:00 x]\n")
    assert str(after.started) == started.replace("None", "2021-01-01 00:00:00")


@pytest.mark.parametrize(
    ("times", "started"),
    [
        (
            ["2023-11-05 10:00:00", "2024-11-05 10:00:00", "2025-06-11 05:14:49"],
            "2025-06-11 05:14:49",
        ),
        (
            ["2025-05-12 05:14:49", "2025-06-11 05:14:49", "2026-06-11 05:14:49"],
            "2025-05-12 05:14:49",
        ),
        (["2025-05-12 05:14:48", "2025-06-11 05:14:49"], "2025-06-11 05:14:49"),
        (["2025-06-11 05:14:49", "2024-11-05 10:00:00"], "2025-06-11 05:14:49"),
        (["2024-11-05 10:00:00"], "2024-11-05 10:00:00"),
    ],
    ids=["two years", "30 days", "a second more", "backwards", "alone"],
)
def test_timestamp_30_days_before_the_next_is_not_the_start(
    times: list[str], started: str
) -> None:
    between = f"\n{'x' * 2_000_000}\nNVIDIA Release 24.11 (built 2020-11-05 10:00:00)\n"
    assert str(parse(between.join(f"[{time}] x" for time in times)).started) == started


@pytest.mark.parametrize(
    "line",
    [
        "NCCL INFO comm 0x55 rank 0 nranks 8",
        "NCCL version 2.25.1+cuda12.8",
        "NCCL_DEBUG=INFO",
        "count: opCount 2",
    ],
)
def test_other_nccl_log_lines_do_not_count_as_a_trace(line: str) -> None:
    assert parse(line + "\n").nccl_line == 0


def test_log_has_file_size_and_a_fingerprint_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "log.out"
    data = nemo2_run(0, 49).encode() + b"x" * (3 << 20)
    path.write_bytes(data)
    log = read_log(path)
    assert log.size_bytes == len(data)
    path.write_bytes(data.replace(b"iteration 7/", b"iteration 8/"))
    assert read_log(path).fingerprint != log.fingerprint


@pytest.mark.parametrize("read", [read_log, read_ending])
def test_error_for_an_unreadable_log_states_path_and_reason(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(
        LogError, match=r"cannot read .*absent\.out: No such file or directory"
    ):
        read(tmp_path / "absent.out")
    with pytest.raises(LogError, match="not a regular file"):
        read(tmp_path)


def test_last_nccl_trace_line_after_a_step_is_found() -> None:
    trace = b"[0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7ffb4713c200\n"
    for between in (b"", b"x" * 3_000_000 + b"\n"):
        data = trace * 3 + maxtext(0).encode() + between + trace
        log = parse_blocks([data])
        assert (log.nccl_line, log.nccl_last_line) == (1, data.count(b"\n"))


CUSTOM = (RegexDialect("regex 1", "step", r"step (?P<step>\d+) (?P<seconds>\S+)"),)


@pytest.mark.parametrize("shipped", [False, True])
def test_empty_log_equals_a_log_of_empty_blocks(shipped: bool) -> None:
    definitions = tuple(load_definitions().values()) if shipped else CUSTOM
    path = Path("log.out")
    log = read_log(Stream((), path), definitions)
    assert log == read_log(Stream((b"", b""), path), definitions)
    assert [unread.dialect for unread in log.unread] == [
        definition.name for definition in definitions if not definition.shipped
    ]


def test_truncated_compressed_log_without_text_is_cut() -> None:
    path = Path("log.out.gz")
    data = gzip.compress(b"")[:-1]
    log = read_log(Stream((data,), path))
    assert log.ending is not None
    assert log.ending.code == "cut"
    assert read_log(Stream((), path)).ending is None
