"""PaxML: times without step numbers, which are counted."""

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


def took(seconds: str = "7.47", prefix: str = "") -> str:
    """The line of a step."""
    return f"{prefix}{HEAD}programs.py:366] [PAX STATUS]: train_step() took {seconds} seconds.\n"


def loss(step: int, value: str) -> str:
    """The line that is printed every hundred steps."""
    return f"{HEAD}summary_utils.py:471] [PAX STATUS] step_i: {step}, training loss: {value}\n"


@pytest.mark.parametrize(
    ("seconds", "unit"), [("7.47", 0.01), ("38.727223", 1e-6), ("8", 1.0)]
)
def test_line_of_the_document_gives_its_time(seconds: str, unit: float) -> None:
    log = parse(took(seconds))
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
        (took() * 3, [[0, 1, 2]]),
        (INITIAL.format(400) + LOOP + took() * 2, [[400, 401]]),
        (
            INITIAL.format(0)
            + LOOP
            + took() * 2
            + INITIAL.format(2)
            + LOOP
            + took() * 2,
            [[0, 1], [2, 3]],
        ),
        (LOOP + took() * 3 + LOOP + took() * 2, [[0, 1, 2], [0, 1]]),
        (INITIAL.format(5) + LOOP + took() * 2 + LOOP + took() * 2, [[5, 6], [0, 1]]),
    ],
    ids=[
        "no start",
        "resumed",
        "resumed in the log",
        "restarted",
        "restarted after a resumption",
    ],
)
def test_steps_are_counted_from_the_start_of_a_process(
    text: str, expected: list[list[int]]
) -> None:
    assert steps(parse(text)) == expected


def test_steps_behind_the_end_are_of_another_run_whose_beginning_was_lost() -> None:
    log = parse(INITIAL.format(0) + LOOP + took() * 3 + END + took("9.5") * 2)
    assert steps(log) == [[0, 1, 2], [0, 1]]
    assert [segment.finished for segment in log.segments] == [True, False]


def test_a_loss_behind_the_end_is_that_of_the_last_step() -> None:
    (segment,) = parse(LOOP + took() * 3 + END + loss(2, "nan")).segments
    assert math.isnan(segment.steps.loss[-1])


def test_torn_line_keeps_its_number() -> None:
    log = parse(
        took("7.1").rstrip("\n")
        + took("7.2").replace("7.2 seconds", "7.")
        + took("7.3", prefix="foreign")
    )
    assert steps(log) == [[0, 2]]
    assert log.segments[0].steps.seconds.tolist() == [7.1, 7.3]
    assert dropped(log) == {"torn": 1}


def test_ranks_are_counted_apart() -> None:
    log = parse("".join(took(prefix=f"{rank}: ") for _ in range(3) for rank in (0, 1)))
    assert steps(log) == [[0, 1, 2]]
    assert dropped(log) == {"other-rank": 3}


def test_lines_of_several_processes_that_nothing_tells_apart_are_not_counted() -> None:
    """Eight lines a step would else be eight steps."""
    log = parse((INITIAL.format(0) + LOOP) * 8 + took() * 80)
    assert log.segments == ()
    assert dropped(log) == {"unknown-step": 80}
    assert "8 processes" in log.dropped[0].shown
    assert steps(parse(INITIAL.format(0) * 2 + took() * 4)) == []


def test_a_diverged_loss_is_carried_by_the_step_before_it() -> None:
    columns = parse(took() * 3 + loss(3, "nan") + took()).segments[0].steps
    assert columns.has_loss.tolist() == [False, False, True, False]
    assert math.isnan(columns.loss[2])
    assert (
        parse(took() * 3 + loss(3, "6.3584294")).segments[0].steps.loss[2] == 6.3584294
    )


@pytest.mark.parametrize(
    "text",
    ["train_step() took 0.5s\n", "grep 'train_step() took' *.out | tail -1\n", "step_i: 5, eval loss: nan\n",
     "Model initial global_step=5\n", LOOP, loss(100, "6.3"), loss(100, "nan")],
)  # fmt: skip
def test_what_is_no_step(text: str) -> None:
    log = parse(text)
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


def test_an_impossible_time_is_kept_as_printed() -> None:
    columns = parse(took("0.0") + took("nan") + took("7.5")).segments[0].steps
    assert columns.seconds.tolist() == pytest.approx([0.0, math.nan, 7.5], nan_ok=True)
