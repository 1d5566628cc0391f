"""The end of a run appears in the problem of a run that cannot be judged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import BASELINE, NOW, log, run, segment, steps

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import NO_QUOTE, Ending, EndingCode, Quote
from pytest_llmbench.core.run_records import Problem, Run
from pytest_llmbench.runs.measure.measurement import measure

RAISED = Ending(EndingCode.TRACEBACK, Quote("ValueError: x"), 150, rank="rank 5")
WARNED = Ending(EndingCode.TRACEBACK, Quote("ValueError: x"), 120, went_on=True)
NOT_A_NUMBER = Ending(
    EndingCode.DIVERGED, Quote("RuntimeError: Unexpected result nan"), 150
)
IN_ERR = Ending(
    EndingCode.TIME_LIMIT,
    Quote("*** JOB 1 CANCELLED DUE TO TIME LIMIT ***"),
    559,
    file="x_1.err",
)
CUT = segment(steps([7.3] * 30), finished=False)


def find_first_problem(run: Run) -> Problem:
    """Return the first problem of a run."""
    return measure(run, BASELINE, NOW).problems[0]


@pytest.mark.parametrize(
    ("ending", "reason", "text", "line"),
    [
        (RAISED, Reason.INCOMPLETE, "a process died of an exception: ValueError: x (log-x_1_0.out:150, rank 5)", 150),
        (NOT_A_NUMBER, Reason.DIVERGED, "the run stopped itself because the loss or a gradient was NaN or infinite: Runt", 150),
        (IN_ERR, Reason.INCOMPLETE, "the job reached its time limit: *** JOB 1 CANCELLED DUE TO TIME LIMIT *** (x_1.err:",
         129),
        (WARNED, Reason.INCOMPLETE, "(log-x_1_0.out:120); steps follow this line, so this may not be the cause", 120),
    ],
)  # fmt: skip
def test_incomplete_run_reports_its_ending(
    ending: Ending, reason: Reason, text: str, line: int
) -> None:
    problem = find_first_problem(
        run(log(CUT, ending=ending), modified=NOW - timedelta(hours=2))
    )
    assert (problem.reason, problem.line) == (reason, line)
    assert text in problem.text


@pytest.mark.parametrize(
    ("ending", "reason", "line"),
    [
        (RAISED, Reason.NO_STEPS, 150),
        (NOT_A_NUMBER, Reason.DIVERGED, 150),
        (IN_ERR, Reason.NO_STEPS, 0),
    ],
)
def test_run_without_steps_reports_its_ending(
    ending: Ending, reason: Reason, line: int
) -> None:
    problem = find_first_problem(run(log(ending=ending)))
    assert (problem.reason, problem.line) == (reason, line)
    assert problem.text.startswith("no training step in the log: ")


def test_unreadable_log_is_not_reported_as_stepless() -> None:
    problem = find_first_problem(
        run(
            log(
                ending=Ending(
                    EndingCode.UNREADABLE,
                    NO_QUOTE,
                    0,
                    "x_1.out: changed while it was read",
                )
            )
        )
    )
    assert (problem.reason, problem.text) == (
        Reason.UNREADABLE,
        "x_1.out: changed while it was read",
    )


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (WARNED, Reason.STILL_RUNNING),
        (RAISED, Reason.INCOMPLETE),
        (IN_ERR, Reason.INCOMPLETE),
    ],
)
def test_incomplete_run_with_a_recent_log_is_running_unless_an_error_ended_it(
    ending: Ending, reason: Reason
) -> None:
    assert (
        find_first_problem(
            run(log(CUT, ending=ending), modified=NOW - timedelta(minutes=2))
        ).reason
        is reason
    )


@pytest.mark.parametrize(
    ("line", "problems"), [(149, [Reason.INCOMPLETE]), (151, []), (0, [])]
)
def test_run_is_invalid_if_a_process_started_after_its_last_step_fails(
    line: int, problems: list[Reason]
) -> None:
    measured = measure(
        run(log(segment(), ending=RAISED, begun_again_line=line)), BASELINE, NOW
    )
    assert [problem.reason for problem in measured.problems] == problems
    assert ("begun-again" in [note.code for note in measured.notes]) == (line > 0)
