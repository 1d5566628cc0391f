"""The saves of checkpoints that slow steps hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.log_records import CheckpointAction, CheckpointRecord
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import CodedStatement, StatementCode

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags

# Share of the extra time of a step that a save has to take to explain it.
SHARE = 0.5
# A save that takes longer than its step by more went on beside it.
ROUNDING = 1.02


class HeldSave(NamedTuple):
    """A slow step, and the save whose line was printed since the step before."""

    step: int
    seconds: float  # of the step, or of all steps that its time is the mean of
    save: CheckpointRecord


def find_save(measurement: Measurement, slow: Flags) -> CodedStatement | None:
    """Return the slowest slow step of the window that contains a save; None without
    one."""
    saves = [
        record
        for record in measurement.checkpoints.records
        if record.action is CheckpointAction.SAVE
    ]
    if not saves or measurement.moving_mean > 1 or not len(measurement.window_lines):
        return None
    held = list(_find_held(measurement, slow, saves))
    if not held:
        return None
    step, seconds, save = max(held, key=lambda each: each.seconds)
    return CodedStatement(
        StatementCode.SAVE_IN_STEP,
        step=step,
        seconds=seconds,
        save_seconds=save.seconds,
        line=save.line,
        held=len(held),
        slow=int(np.count_nonzero(slow)),
    )


def _find_held(
    measurement: Measurement, slow: Flags, saves: Sequence[CheckpointRecord]
) -> Iterator[HeldSave]:
    lines = (_find_line_before(measurement), *measurement.window_lines)
    means = measurement.mean_of or (1,) * len(measurement.window_seconds)
    median = compute_median(np.array(measurement.window_seconds))
    for row in np.flatnonzero(slow).tolist():
        seconds = measurement.window_seconds[row] * means[row]
        extra = seconds - median * means[row]
        held = [
            save
            for save in saves
            if lines[row] < save.line < lines[row + 1]
            and (
                save.seconds is None
                or SHARE * extra <= save.seconds <= ROUNDING * seconds
            )
        ]
        if held:
            longest = max(held, key=lambda save: save.seconds or 0.0)
            yield HeldSave(measurement.window_steps[row], seconds, longest)


def _find_line_before(measurement: Measurement) -> int:
    """Return the line of the last step before the window; that of the window's first
    step without one."""
    first = measurement.window_lines[0]
    logs = (
        attempt.log
        for attempt in measurement.run.attempts
        if attempt.files.log == measurement.log
    )
    parts = next((log.segments for log in logs), ())
    if not 0 < measurement.segment <= len(parts):
        return first
    lines = parts[measurement.segment - 1].steps.line
    return int(max(lines[lines < first], default=first))
