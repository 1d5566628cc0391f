"""Properties that hold for the parsing result of any log."""

from __future__ import annotations

import math

import numpy as np

from pytest_llmbench.core.log_records import ParsedLog
from support.log_strategies import Written

STEP = tuple[int, float, float]
PLACES = 9
"""Decimal places to which times are compared. Only some readers divide milliseconds."""


def list_steps(log: ParsedLog) -> list[list[STEP]]:
    """List (number, seconds, loss) for each step of each segment. A missing loss is
    NaN."""
    columns = [
        (segment.steps.index, segment.steps.seconds, segment.steps.loss)
        for segment in log.segments
    ]
    return [
        list(zip(*(column.tolist() for column in segment_columns), strict=True))
        for segment_columns in columns
    ]


def require_printed(log: ParsedLog, written: Written) -> None:
    """Fail if a parsed step has a time or loss that was not printed for it.

    Missing numbers are accepted.
    """
    times = {(step, round(value, PLACES)) for step, value in written.times}
    losses = {(step, round(value, PLACES)) for step, value in written.losses}
    for step, seconds, loss in (step for run in list_steps(log) for step in run):
        for value, known in (
            (round(seconds, PLACES), times),
            (round(loss, PLACES), losses),
        ):
            assert (
                math.isnan(value) or (step, value) in known or (None, value) in known
            ), (step, value)


def find_problems(log: ParsedLog) -> list[str]:
    """List the inconsistencies of a parsed log."""
    laws = {
        "more lines than the log has": any(
            segment.last_line > log.lines for segment in log.segments
        ),
        "a segment without a step": any(
            not len(segment.steps) for segment in log.segments
        ),
        "steps out of order": any(
            (np.diff(segment.steps.index) <= 0).any() for segment in log.segments
        ),
        "a step outside its segment": any(
            not segment.first_line
            <= segment.steps.line.min()
            <= segment.steps.line.max()
            <= segment.last_line
            for segment in log.segments
        ),
        "a step that is the mean of none": any(
            (segment.steps.mean_of < 1).any() for segment in log.segments
        ),
        "an example that cannot be printed": any(
            not record.shown.isprintable() for record in log.dropped
        ),
        "something dropped no times or nowhere": any(
            rec.count < 1 or rec.first_line < 1 for rec in log.dropped
        ),
        "an ending outside the log": log.ending is not None
        and not 1 <= log.ending.line <= max(log.lines, 1),
    }
    return [problem for problem, broken in laws.items() if broken]
