"""Reading a log while it is written: its contents so far and its last step, each byte
once."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from generator import lines
from msgspec import structs
from support.exact_comparison import to_comparable
from support.written_logs import LONG, bar, maxtext_run, nemo2, nemo2_run

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.logs.growing import Growing, ReachedStep
from pytest_llmbench.logs.log_reader import parse_blocks
from pytest_llmbench.logs.scan import REACH, REACH_BACK
from pytest_llmbench.logs.sources.files import File

START = "Copying Trainer's 'max_steps' (50) to the optimizer\n"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "log-x_1_0.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def last_step(path: Path) -> ReachedStep | None:
    return Growing(path).find_last_step()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (nemo2_run(0, 49), ReachedStep(50, 50, 6.061)),
        (
            bar(11, "10.00", "24.00") + "\r" + bar(12, "11.00", "24.00"),
            ReachedStep(12, 50, 24.0),
        ),
        (maxtext_run(0, 6), ReachedStep(7, None, 7.908)),
        ("Config param steps: 30\n" + maxtext_run(0, 6), ReachedStep(7, 30, 7.908)),
        (nemo2_run(0, 30) + START + nemo2_run(0, 4), ReachedStep(5, 50, 6.061)),
        (nemo2(0, "0.0") + nemo2(1, "6.061"), ReachedStep(2, 50, 6.061)),
        (nemo2(0, "0.0"), None),
        ("", None),
        (b"\x00\xff" * 5000, None),
    ],
    ids=[
        "nemo2",
        "nemo1",
        "maxtext",
        "with a total",
        "requeued",
        "impossible time",
        "no time",
        "empty",
        "no text",
    ],
)
def test_last_step_of_a_growing_log_is_found(
    tmp_path: Path, text: str | bytes, expected: ReachedStep | None
) -> None:
    assert last_step(written(tmp_path, text)) == expected


@pytest.mark.slow
def test_incomplete_last_line_gives_no_partial_number(tmp_path: Path) -> None:
    complete = nemo2_run(0, 9)
    for cut in range(len(complete) - len(nemo2(9)), len(complete), 2):
        result = last_step(written(tmp_path, complete[:cut]))
        assert result in (ReachedStep(9, 50, 6.061), ReachedStep(10, 50, 6.061)), (
            complete[cut - 20 : cut]
        )


OWN = RegexDialect(
    name="regex:mine-1.0",
    find="mine ",
    pattern=r"mine (?P<step>\d+) took (?P<seconds>[\d.]+) s",
    first_step=0,
)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the number of bytes requested by each read of a file."""
    reads: list[int] = []
    original = File.read

    def counted(file: File, start: int, end: int) -> bytes:
        reads.append(end - start)
        return original(file, start, end)

    monkeypatch.setattr(File, "read", counted)
    return reads


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), (OWN,)])
def test_growing_log_is_read_incrementally_with_the_result_of_a_full_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: tuple[RegexDialect, ...]
) -> None:
    data = LONG + b"".join(b"mine %d took 2.5 s\n" % step for step in range(30)) + LONG
    path = written(tmp_path, b"")
    growing = Growing(path, extra)
    reads = count_reads(monkeypatch)
    looks = range(0, len(data) + 7001, 7001)
    for size in looks:
        path.write_bytes(data[:size])
        assert everything(growing.read()) == everything(
            parse_blocks([data[:size]], extra)
        ), size
    assert len(data) <= sum(reads) <= len(data) + len(looks) * (REACH + REACH_BACK)


def everything(log: ParsedLog) -> list[object]:
    return [
        to_comparable(structs.replace(reading, readings=()))
        for reading in (log, *log.readings)
    ]


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def rewrite(path: Path) -> None:
    path.write_text("another beginning\n" + nemo2_run(0, 40))


def replace(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_text(nemo2_run(0, 40))


@pytest.mark.parametrize("change", [truncate, rewrite, replace])
def test_replaced_log_is_read_from_its_beginning(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = written(tmp_path, nemo2_run(0, 20))
    growing = Growing(path)
    assert growing.find_last_step() == ReachedStep(21, 50, 6.061)
    change(path)
    assert to_comparable(growing.read()) == to_comparable(
        parse_blocks([path.read_bytes()])
    )


def test_unreadable_growing_log_raises_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.out", tmp_path):
        with pytest.raises(LogError):
            last_step(path)


# --- signs of life --------------------------------------------------------------------


def signs(path: Path) -> LogProgress:
    return Growing(path).find_life_signs()


def megatron(minute: int, step: int) -> str:
    time = datetime(2026, 5, 4, 6, minute)  # noqa: DTZ001 (logs name no zone)
    return (
        lines.megatron_line(time, step, 50, 6.0, batch=128, tflops=400.0, loss=11.0)
        + "\n"
    )


@pytest.mark.parametrize(
    ("text", "steps", "slowest", "taken"),
    [
        ("a line\n" * 5000, 0, 0.0, 0.0),
        (nemo2(0), 1, 0.0, 0.0),
        (nemo2(0, "99.0") + nemo2(1) + nemo2(2), 3, 6.061, 12.122),
        (nemo2(0) + nemo2(10) + nemo2(20), 3, 60.61, 121.22),
        (megatron(1, 1) + megatron(2, 11) + megatron(9, 21), 3, 420.0, 480.0),
        ("I0 [PAX STATUS]: Starting training loop\n", 0, 0.0, 0.0),
    ],
    ids=[
        "no step",
        "one step",
        "slow first step",
        "every tenth",
        "with time stamps",
        "no step yet",
    ],
)
def test_gaps_between_steps_are_measured(
    tmp_path: Path, text: str, steps: int, slowest: float, taken: float
) -> None:
    """From the timestamps of the lines, else from the step time and the number of steps
    between two lines."""
    result = signs(written(tmp_path, text))
    assert result.steps == steps
    assert [result.slowest_seconds, result.taken_seconds] == pytest.approx(
        [slowest, taken]
    )


@pytest.mark.parametrize(
    ("line", "lives"),
    [
        (nemo2(3), True),
        (
            "[NeMo I] Global Checkpoint Save : Rank: 0 : Iteration: 3 : Start time: 1s : Save duration: 9.1s\n",
            True,
        ),
        (" validation loss at iteration 2500 | lm loss value: 5.976700E+00 |\n", True),
        ("  50%|#####     | 10/20 [01:00<01:00,  6.00s/it]\n", True),
        (START, True),
        ("[rank3]:[W] ProcessGroupNCCL: heartbeat\n", False),
    ],
    ids=["step", "checkpoint", "validation", "bar", "start", "heartbeat"],
)
@pytest.mark.parametrize("far", [0, 3 * REACH])
def test_progress_line_shows_that_a_run_is_alive(
    tmp_path: Path, line: str, lives: bool, far: int
) -> None:
    path = written(tmp_path, nemo2_run(0, 2) + "." * far + "\n")
    growing = Growing(path)
    before = growing.find_life_signs()
    for more in (line, "something else\n" * 2000):
        with path.open("a") as log:
            log.write(more)
        assert (growing.find_life_signs().marks != before.marks) is lives
    assert growing.find_life_signs() == Growing(path).find_life_signs()


@pytest.mark.parametrize(
    ("text", "starting"),
    [
        (START + nemo2(0), False),
        (START + nemo2(0) + START, True),
        (START + nemo2(0) + START + nemo2(0), False),
        (START, False),
    ],
    ids=["running", "again", "running again", "never had a step"],
)
def test_restarted_process_is_detected(
    tmp_path: Path, text: str, starting: bool
) -> None:
    assert signs(written(tmp_path, text)).starting is starting


@pytest.mark.slow
def test_poll_reads_only_new_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, nemo2_run(0, 40) * 50)
    growing = Growing(path)
    growing.find_life_signs()
    reads = count_reads(monkeypatch)
    growing.find_life_signs()
    assert not sum(reads)
    with path.open("a") as log:
        log.write(nemo2(41))
    growing.find_life_signs()
    assert sum(reads) <= len(nemo2(41)) + REACH + REACH_BACK
