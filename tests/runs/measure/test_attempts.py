"""Several attempts in one log or several files: which is judged, and the note on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
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


def make_segment(
    first: int, last: int, *, line: int, total: int | None = 50
) -> Segment:
    """Return a segment with these steps, starting at this line; finished if it has all
    steps."""
    columns = steps([7.325] * (last - first + 1), first=first)
    return replace(
        segment(columns, finished=last + 1 == total, total=total),
        first_line=line,
        last_line=line + 90,
    )


def measure_logs(*logs: ParsedLog) -> Measurement:
    return measure(run(*logs), BASELINE, NOW)


def list_attempt_notes(measurement: Measurement) -> list[tuple[str, str]]:
    return [
        (note.code, phrase(note))
        for note in measurement.notes
        if note.code in ("attempts", "segments")
    ]


WHOLE = make_segment(0, 49, line=812)

CASES: list[tuple[str, tuple[ParsedLog, ...], tuple[str, str], list[str]]] = [
    (
        "runs one after the other",
        (
            log(
                make_segment(0, 49, line=1),
                make_segment(0, 49, line=203),
                make_segment(0, 49, line=404),
                WHOLE,
            ),
        ),
        ("segments", "4 runs in the log; the last, from line 812, is judged"),
        ["finished", "finished", "finished", "finished"],
    ),
    (
        "a restart in a file of its own",
        (log(make_segment(0, 12, line=1), ending=KILLED), log(WHOLE)),
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
            log(
                make_segment(0, 12, line=5),
                make_segment(13, 20, line=90),
                ending=KILLED,
            ),
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
        "a complete run and an attempt to continue it",
        (log(WHOLE, make_segment(50, 52, line=950, total=100)),),
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
def test_note_names_the_judged_attempt(
    logs: tuple[ParsedLog, ...], note: tuple[str, str], ended: list[str]
) -> None:
    measurement = measure_logs(*logs)
    assert measurement.valid
    assert list_attempt_notes(measurement) == [note]
    assert [attempt.ended for attempt in measurement.attempts] == ended
    assert [attempt.number for attempt in measurement.attempts] == list(
        range(1, len(ended) + 1)
    )
    (judged,) = [attempt for attempt in measurement.attempts if attempt.judged]
    assert (judged.line, judged.first_step, judged.last_step) == (812, 0, 49)


def test_good_run_does_not_hide_later_failure() -> None:
    measurement = measure_logs(
        log(make_segment(0, 49, line=1), make_segment(0, 30, line=203), ending=KILLED)
    )
    assert not measurement.valid
    assert list_attempt_notes(measurement) == [
        ("segments", "2 runs in the log; the last, from line 203, is judged")
    ]
    assert [
        (attempt.judged, attempt.starts_over) for attempt in measurement.attempts
    ] == [
        (False, False),
        (True, True),
    ]


def make_timed_segment(seconds: float, *, line: int, **columns: Any) -> Segment:
    """Return a finished segment of 50 steps with this step time."""
    return replace(
        segment(steps([seconds] * 50, **columns)), first_line=line, last_line=line + 90
    )


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (
            (
                log(
                    make_timed_segment(8.79, line=1),
                    make_timed_segment(7.325, line=203),
                ),
            ),
            1,
        ),
        (
            (
                log(make_timed_segment(8.79, line=1)),
                log(make_timed_segment(7.325, line=5)),
            ),
            1,
        ),
        (
            (
                log(
                    make_timed_segment(7.325, line=1),
                    make_timed_segment(8.79, line=203),
                    make_timed_segment(7.2, line=404),
                ),
            ),
            203,
        ),
    ],
)
def test_slowest_attempt_is_judged(logs: tuple[ParsedLog, ...], line: int) -> None:
    measurement = measure_logs(*logs)
    (judged,) = [attempt for attempt in measurement.attempts if attempt.judged]
    assert (judged.line, measurement.valid) == (line, True)
    assert measurement.statistic_seconds == pytest.approx(8.79)
    notes = [
        phrase(note) for note in measurement.notes if note.code == "slowest-attempt"
    ]
    last = measurement.attempts[-1].judged
    assert len(notes) == (not last)
    assert all("8.790 s" in text and "the slowest is judged" in text for text in notes)


def test_invalid_attempt_does_not_replace_the_judged_attempt() -> None:
    """The previous attempt has another batch size: it does not measure this
    configuration."""
    other = make_timed_segment(8.79, line=1, global_batch_size=np.full(50, 128.0))
    measurement = measure_logs(log(other, make_timed_segment(7.325, line=203)))
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.325)
    diverged = make_timed_segment(7.2, line=203, loss=np.full(50, np.nan))
    measurement = measure_logs(log(make_timed_segment(8.79, line=1), diverged))
    assert [problem.reason for problem in measurement.problems] == [Reason.DIVERGED]


def test_run_with_a_single_attempt_has_no_note_on_attempts() -> None:
    measurement = measure_logs(log(WHOLE))
    assert list_attempt_notes(measurement) == []
    assert [attempt.judged for attempt in measurement.attempts] == [True]


def test_attempts_without_steps_are_listed_in_the_measurement_with_their_ending() -> (
    None
):
    attempts = measure_logs(log(ending=KILLED), log()).attempts
    assert [
        (attempt.ended, attempt.line, attempt.last_step) for attempt in attempts
    ] == [
        ("no step (time limit)", 300, None),
        ("no step", 0, None),
    ]
