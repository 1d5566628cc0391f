"""Several attempts in one log or in several files: which is judged, and that the others
are told of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.builders import BASELINE, NOW, log, run, segment, steps

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import (
    Ending,
    EndingCode,
    ParsedLog,
    Quote,
    Segment,
)
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure.measurement import measure

KILLED = Ending(EndingCode.TIME_LIMIT, Quote("JOB 1 CANCELLED DUE TO TIME LIMIT"), 300)


def part(first: int, last: int, *, line: int, total: int | None = 50) -> Segment:
    """Return a part of a log with these steps, from this line on; it is finished where
    it reached its total."""
    columns = steps([7.325] * (last - first + 1), first=first)
    return replace(
        segment(columns, finished=last + 1 == total, total=total),
        first_line=line,
        last_line=line + 90,
    )


def measured(*logs: ParsedLog) -> Measurement:
    return measure(run(*logs), BASELINE, NOW)


def told(measurement: Measurement) -> list[tuple[str, str]]:
    return [
        (note.code, phrase(note))
        for note in measurement.notes
        if note.code in ("attempts", "segments")
    ]


WHOLE = part(0, 49, line=812)

CASES: list[tuple[str, tuple[ParsedLog, ...], tuple[str, str], list[str]]] = [
    (
        "runs one after the other",
        (
            log(
                part(0, 49, line=1), part(0, 49, line=203), part(0, 49, line=404), WHOLE
            ),
        ),
        ("segments", "4 runs in the log; the last, from line 812, is judged"),
        ["finished", "finished", "finished", "finished"],
    ),
    (
        "a restart in a file of its own",
        (log(part(0, 12, line=1), ending=KILLED), log(WHOLE)),
        (
            "attempts",
            "restarted: 2 attempts in 2 files; the last, from line 812 of file 2, is judged; "
            "1 stopped after step 12 (time limit)",
        ),
        ["stopped after step 12 (time limit)", "finished"],
    ),
    (
        "an attempt that died before its first step",
        (
            log(ending=KILLED),
            log(part(0, 12, line=5), part(13, 20, line=90), ending=KILLED),
            log(WHOLE),
        ),
        (
            "attempts",
            "restarted: 4 attempts in 3 files; the last, from line 812 of file 3, is judged; "
            "1 no step (time limit), 2 stopped after step 12, 3 stopped after step 20 (time limit)",
        ),
        [
            "no step (time limit)",
            "stopped after step 12",
            "stopped after step 20 (time limit)",
            "finished",
        ],
    ),
    (
        "a whole run and an attempt to go on after its end",
        (log(WHOLE, part(50, 52, line=950, total=100)),),
        (
            "attempts",
            "restarted: 2 attempts in the log; the first, from line 812, is judged; 2 stopped after step 52",
        ),
        ["finished", "stopped after step 52"],
    ),
]


@pytest.mark.parametrize(
    ("logs", "note", "ended"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_which_attempt_is_judged_is_told(
    logs: tuple[ParsedLog, ...], note: tuple[str, str], ended: list[str]
) -> None:
    measurement = measured(*logs)
    assert measurement.valid
    assert told(measurement) == [note]
    assert [one.ended for one in measurement.attempts] == ended
    assert [one.number for one in measurement.attempts] == list(
        range(1, len(ended) + 1)
    )
    (judged,) = [one for one in measurement.attempts if one.judged]
    assert (judged.line, judged.first_step, judged.last_step) == (812, 0, 49)


def test_a_good_run_does_not_hide_a_later_one_that_did_not_finish() -> None:
    measurement = measured(
        log(part(0, 49, line=1), part(0, 30, line=203), ending=KILLED)
    )
    assert not measurement.valid
    assert told(measurement) == [
        ("segments", "2 runs in the log; the last, from line 203, is judged")
    ]
    assert [(one.judged, one.starts_over) for one in measurement.attempts] == [
        (False, False),
        (True, True),
    ]


def timed(seconds: float, *, line: int, **columns: Any) -> Segment:
    """Return a finished run of 50 steps of so many seconds."""
    return replace(
        segment(steps([seconds] * 50, **columns)), first_line=line, last_line=line + 90
    )


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        ((log(timed(8.79, line=1), timed(7.325, line=203)),), 1),
        ((log(timed(8.79, line=1)), log(timed(7.325, line=5))), 1),
        (
            (log(timed(7.325, line=1), timed(8.79, line=203), timed(7.2, line=404)),),
            203,
        ),
    ],
)
def test_a_fast_attempt_does_not_hide_a_slow_one_that_finished(
    logs: tuple[ParsedLog, ...], line: int
) -> None:
    measurement = measured(*logs)
    (judged,) = [one for one in measurement.attempts if one.judged]
    assert (judged.line, measurement.valid) == (line, True)
    assert measurement.statistic_seconds == pytest.approx(8.79)
    notes = [
        phrase(note) for note in measurement.notes if note.code == "slowest-attempt"
    ]
    last = measurement.attempts[-1].judged
    assert len(notes) == (not last)
    assert all("8.790 s" in text and "the slowest is judged" in text for text in notes)


def test_an_attempt_that_cannot_be_judged_is_no_rival() -> None:
    """The one before it was of another batch size: it says nothing of this
    configuration."""
    other = timed(8.79, line=1, global_batch_size=np.full(50, 128.0))
    measurement = measured(log(other, timed(7.325, line=203)))
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.325)
    diverged = timed(7.2, line=203, loss=np.full(50, np.nan))
    measurement = measured(log(timed(8.79, line=1), diverged))
    assert [problem.reason for problem in measurement.problems] == [Reason.DIVERGED]


def test_one_attempt_is_not_worth_a_word() -> None:
    measurement = measured(log(WHOLE))
    assert told(measurement) == []
    assert [one.judged for one in measurement.attempts] == [True]


def test_attempts_without_a_step_are_told_too() -> None:
    found = measured(log(ending=KILLED), log()).attempts
    assert [(one.ended, one.line, one.last_step) for one in found] == [
        ("no step (time limit)", 300, None),
        ("no step", 0, None),
    ]
