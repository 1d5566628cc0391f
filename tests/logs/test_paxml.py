"""PaxML: step times without step numbers, which are counted."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, parse, steps

HEAD = "I0411 15:03:26.866614 140737350317184 "
INITIAL = HEAD + "executors.py:251] Model initial global_step={}\n"
LOOP = HEAD + "executors.py:258] [PAX STATUS]: Starting training loop.\n"
END = (
    HEAD
    + "py_utils.py:1021] [PAX STATUS]: E2E time: Elapsed time for <_main>: 531.2 seconds\n"
)


def step_line(seconds: str = "7.47", prefix: str = "") -> str:
    """Return the line of a step."""
    return f"{prefix}{HEAD}programs.py:366] [PAX STATUS]: train_step() took {seconds} seconds.\n"


def loss_line(step: int, value: str) -> str:
    """Return the loss line, printed every hundred steps."""
    return f"{HEAD}summary_utils.py:471] [PAX STATUS] step_i: {step}, training loss: {value}\n"


@pytest.mark.parametrize(
    ("seconds", "unit"), [("7.47", 0.01), ("38.727223", 1e-6), ("8", 1.0)]
)
def test_documented_line_gives_step_time(seconds: str, unit: float) -> None:
    log = parse(step_line(seconds))
    (segment,) = log.segments
    row = segment.steps
    assert (log.dialect, segment.first_step, segment.total_steps, segment.finished) == (
        "paxml",
        0,
        None,
        False,
    )
    assert (row.index[0], row.seconds[0], row.has_loss[0]) == (0, float(seconds), False)
    assert row.resolution_seconds[0] == pytest.approx(unit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (step_line() * 3, [[0, 1, 2]]),
        (INITIAL.format(400) + LOOP + step_line() * 2, [[400, 401]]),
        (
            INITIAL.format(0)
            + LOOP
            + step_line() * 2
            + INITIAL.format(2)
            + LOOP
            + step_line() * 2,
            [[0, 1], [2, 3]],
        ),
        (LOOP + step_line() * 3 + LOOP + step_line() * 2, [[0, 1, 2], [0, 1]]),
        (
            INITIAL.format(5) + LOOP + step_line() * 2 + LOOP + step_line() * 2,
            [[5, 6], [0, 1]],
        ),
    ],
    ids=[
        "no start",
        "resumed",
        "resumed in the log",
        "restarted",
        "restarted after a resumption",
    ],
)
def test_steps_are_counted_from_process_start(
    text: str, expected: list[list[int]]
) -> None:
    assert steps(parse(text)) == expected


def test_steps_after_end_begin_another_run() -> None:
    log = parse(INITIAL.format(0) + LOOP + step_line() * 3 + END + step_line("9.5") * 2)
    assert steps(log) == [[0, 1, 2], [0, 1]]
    assert [segment.finished for segment in log.segments] == [True, False]


def test_loss_after_end_belongs_to_last_step() -> None:
    (segment,) = parse(LOOP + step_line() * 3 + END + loss_line(2, "nan")).segments
    assert math.isnan(segment.steps.loss[-1])


def test_truncated_paxml_step_line_still_counts_as_a_step() -> None:
    log = parse(
        step_line("7.1").rstrip("\n")
        + step_line("7.2").replace("7.2 seconds", "7.")
        + step_line("7.3", prefix="foreign")
    )
    assert steps(log) == [[0, 2]]
    assert log.segments[0].steps.seconds.tolist() == [7.1, 7.3]
    assert dropped(log) == {"torn": 1}


def test_steps_are_counted_per_rank() -> None:
    log = parse(
        "".join(step_line(prefix=f"{rank}: ") for _ in range(3) for rank in (0, 1))
    )
    assert steps(log) == [[0, 1, 2]]
    assert dropped(log) == {"other-rank": 3}


def test_steps_of_several_unlabelled_processes_are_dropped() -> None:
    """Otherwise the eight lines of each step would become eight steps."""
    log = parse((INITIAL.format(0) + LOOP) * 8 + step_line() * 80)
    assert log.segments == ()
    assert dropped(log) == {"unknown-step": 80}
    assert "8 processes" in log.dropped[0].shown
    assert steps(parse(INITIAL.format(0) * 2 + step_line() * 4)) == []


def test_non_finite_loss_belongs_to_previous_step() -> None:
    columns = (
        parse(step_line() * 3 + loss_line(3, "nan") + step_line()).segments[0].steps
    )
    assert columns.has_loss.tolist() == [False, False, True, False]
    assert math.isnan(columns.loss[2])
    assert (
        parse(step_line() * 3 + loss_line(3, "6.3584294")).segments[0].steps.loss[2]
        == 6.3584294
    )


@pytest.mark.parametrize(
    "text",
    ["train_step() took 0.5s\n", "grep 'train_step() took' *.out | tail -1\n", "step_i: 5, eval loss: nan\n",
     "Model initial global_step=5\n", LOOP, loss_line(100, "6.3"), loss_line(100, "nan")],
)  # fmt: skip
def test_lines_similar_to_step_lines_are_not_read_as_steps(text: str) -> None:
    log = parse(text)
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


def test_impossible_time_is_kept_as_printed() -> None:
    columns = (
        parse(step_line("0.0") + step_line("nan") + step_line("7.5")).segments[0].steps
    )
    assert columns.seconds.tolist() == pytest.approx([0.0, math.nan, 7.5], nan_ok=True)
