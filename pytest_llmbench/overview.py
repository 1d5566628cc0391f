"""The table that users of the recipes know: a line for each run, with step time and TFLOP/s over a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import wording
from pytest_llmbench.catalogue import Catalogue
from pytest_llmbench.ingest import UNREADABLE, Ingested
from pytest_llmbench.models import Run, Window

if TYPE_CHECKING:
    import pandas as pd

    from pytest_llmbench.measure.window import Choice
    from pytest_llmbench.models import Floats, Integers

DEFAULT_WINDOW = Window(11, 44)
DEFAULT_STEPS = 50

COLUMNS = (
    "run",
    "job_id",
    "launcher",
    "configuration",
    "started",
    "status",
    "steps",
    "time_mean_s",
    "time_std_s",
    "tflops_per_gpu_mean",
    "tflops_per_gpu_std",
    "log",
    "attempts",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run: step time in seconds and logged TFLOP/s per GPU over the window, None where there is none.

    `attempts`: those that its logs tell of, and which of them the numbers are of; empty for a single one.
    """

    run: str
    job_id: str
    launcher: str
    configuration: str
    started: datetime | None
    status: str
    steps: int
    time_mean_s: float | None
    time_std_s: float | None
    tflops_per_gpu_mean: float | None
    tflops_per_gpu_std: float | None
    log: str
    attempts: str = ""


def rows(found: Ingested, catalogue: Catalogue, window: Window | None) -> tuple[Row, ...]:
    """Return a row for each run that was found, newest first; `window` None takes the baseline's."""
    lost = (
        Row(one.id, "", "", "", None, f"Unreadable: {one.text}", 0, None, None, None, None, "")
        for one in found.unreadable
    )
    return (*(_row(run, catalogue, window) for run in found.runs), *lost)


def table(found: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a data frame with the columns COLUMNS."""
    import pandas as pd

    cells = [[wording.printable_values(getattr(row, name)) for name in COLUMNS] for row in found]
    return pd.DataFrame(cells, columns=list(COLUMNS))


def as_text(found: Sequence[Row]) -> str:
    """Return rows as a table for a terminal, with the name of the configuration, or of a run that is none."""
    if not found:
        return "no training run was found"
    import pandas as pd

    names = [row.configuration or wording.printable(row.run) for row in found]
    width = max(map(len, names))
    shown = {
        "Run".ljust(width): [name.ljust(width) for name in names],
        "Job": [row.job_id for row in found],
        "Status": [row.status for row in found],
        "Time Mean (s)": [row.time_mean_s for row in found],
        "Time Std (s)": [row.time_std_s for row in found],
        "TFLOPS Mean": [row.tflops_per_gpu_mean for row in found],
        "TFLOPS Std": [row.tflops_per_gpu_std for row in found],
    }
    frame = pd.DataFrame(shown)
    numbers = {
        name: 3 if name.startswith("Time") else 2 for name in frame.columns if name.startswith(("Time", "TFLOPS"))
    }
    for name, digits in numbers.items():
        frame[name] = [f"{value:.{digits}f}" if pd.notna(value) else "-" for value in frame[name]]
    told = [f"{name.strip()}: attempt {row.attempts}" for name, row in zip(names, found, strict=True) if row.attempts]
    return "\n".join([frame.to_string(index=False, justify="right", max_colwidth=None), *told])


def skipped(ignored: Sequence[str]) -> str:
    """Return the files that are no runs, a line for each reason with the first of them; empty where there are none."""
    by_reason: dict[str, list[str]] = {}
    for one in ignored:
        name, _, why = wording.printable(one).partition(": ")
        by_reason.setdefault(why, []).append(name)
    lines = [f"{wording.listed(names)}: {why}" for why, names in by_reason.items()]
    return "\n  ".join([f"{wording.counted(len(ignored), 'file')} skipped:", *lines]) if ignored else ""


def _row(run: Run, catalogue: Catalogue, window: Window | None) -> Row:
    from pytest_llmbench.measure.window import choose_segment, in_window

    key = run.identity.key
    baseline = catalogue.baselines[key][0] if key else None
    counted = window or (baseline.window if baseline else DEFAULT_WINDOW)
    total = baseline.steps if baseline else DEFAULT_STEPS
    choice = choose_segment(run.attempts, counted, total)
    log = choice.attempt.files.log if choice else run.attempts[-1].files.log if run.attempts else run.found.folder
    found = run.found
    status = _status(run, choice, counted, total)
    head = (run.id, found.job_id, found.launcher, key.id if key else "", run.started, status)
    if choice is None:
        return Row(*head, 0, None, None, None, None, str(log))
    steps = choice.segment.steps
    mask = in_window(steps, counted) & ~steps.asynchronous
    weights = steps.mean_of[mask]
    times, tflops = _mean(steps.seconds[mask], weights), _mean(steps.tflops_per_gpu[mask], weights)
    return Row(*head, len(steps), *times, *tflops, str(log), _attempts(run, choice, total))


def _attempts(run: Run, choice: Choice, total: int) -> str:
    from pytest_llmbench.measure.tries import tries
    from pytest_llmbench.report.tries import describe, listed

    return listed({"tries": [describe(one, Path()) for one in tries(run, choice, total)]}) or ""


def _status(run: Run, choice: Choice | None, window: Window, total: int) -> str:
    """Return Success, or in a word why the numbers of a run may not count."""
    from pytest_llmbench.measure.checks import exclusion, not_finite
    from pytest_llmbench.measure.window import is_finished, missing_steps

    excluded = exclusion(run, choice)
    if excluded is not None:
        return excluded.reason.replace("-", " ").capitalize()
    unread = _unread(run, choice)
    if unread:
        return f"Unreadable: {unread}"
    if choice is None:
        return "No steps"
    if any(not_finite(choice.segment.steps)):
        return "Diverged"
    complete = is_finished(choice.segment, total) and not missing_steps(choice.segment.steps, window)
    return "Success" if complete else "Incomplete"


def _unread(run: Run, choice: Choice | None) -> str:
    """Return why a log that may be the one that counts could not be read; empty where all were."""
    later = run.attempts[run.attempts.index(choice.attempt) + 1 :] if choice else run.attempts
    endings = (attempt.log.ending for attempt in later)
    return next((ending.text for ending in endings if ending and ending.code == UNREADABLE), "")


def _mean(values: Floats, weights: Integers) -> tuple[float | None, float | None]:
    """Return mean and standard deviation of the values that are possible, None without any."""
    import numpy as np

    from pytest_llmbench.measure.metrics import spread
    from pytest_llmbench.robust import mean

    known = np.isfinite(values) & (values > 0)
    present = values[known]
    return (mean(present, weights[known].tolist()), spread(present)) if len(present) else (None, None)
