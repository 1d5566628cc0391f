"""Baselines of one's own: from the valid runs of a session to recorded baseline files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import numpy as np

from pytest_llmbench import wording
from pytest_llmbench.models import Baseline, Measurement, Outcome, Recording, Status, Verdict
from pytest_llmbench.pipeline import Batch
from pytest_llmbench.settings import Settings


def record(batch: Batch, selected: Collection[str], settings: Settings, now: datetime) -> tuple[Outcome, ...]:
    """Write a recorded baseline for each selected item with valid runs to `settings.record`; judge nothing.

    Items with a valid run are skipped, those whose newest run is invalid fail, and without any valid run all fail.
    Raises RecordError where the files cannot be written.
    """
    from pytest_llmbench.baseline.write import write_recorded

    if settings.record is None:
        raise ValueError("settings.record is not set")
    chosen = [batch.results[identifier] for identifier in selected]
    keys = dict.fromkeys(result.case.key for result in chosen)
    valid = {key: [one for one in batch.measurements.get(key, ()) if one.valid] for key in keys}
    recorded = {key: (runs[0].baseline, recording_of(runs, now)) for key, runs in valid.items() if runs}
    changes = [change for _, changed in write_recorded(settings.record, list(recorded.values())) for change in changed]
    nothing = "" if recorded else "nothing was recorded: no valid run was found"
    outcomes = []
    for result in chosen:
        key = result.case.key
        told = (
            _told(*recorded[key], [change for change in changes if change.startswith(f"{key.id}: ")])
            if key in recorded
            else ""
        )
        failed = nothing or result.judgement.verdict is Verdict.INVALID
        status = Status.FAILED if failed else Status.SKIPPED
        outcomes.append(Outcome(result.case, status, result.judgement, (), nothing, told))
    return tuple(outcomes)


def recording_of(runs: Sequence[Measurement], now: datetime) -> Recording:
    """Return what valid runs of one configuration measured: means over runs, and the spread within a run, pooled."""
    from scipy import stats

    windows = [np.array(run.window_seconds) for run in runs]
    trimmed = [float(stats.trim_mean(window, 0.2)) for window in windows]
    return Recording(
        date=now.date().isoformat(),
        runs=len(runs),
        mean_seconds=float(np.mean([window.mean() for window in windows])),
        trimmed_mean_seconds=float(np.mean(trimmed)),
        standard_deviation_seconds=float(np.sqrt(np.mean([window.var(ddof=1) for window in windows]))),
        run_seconds=tuple(trimmed),
        log_sha256=tuple(_judged_hash(run) for run in runs),
    )


def _judged_hash(measurement: Measurement) -> str:
    judged = (attempt for attempt in measurement.run.attempts if attempt.files.log == measurement.log)
    return next(judged).log.sha256


def _told(baseline: Baseline, recording: Recording, changes: Sequence[str]) -> str:
    runs = wording.counted(recording.runs, "valid run")
    text = f"recorded {wording.seconds(recording.trimmed_mean_seconds)} from {runs}, not judged"
    return f"{text}; replaced {changes[0]}" if changes else text
