"""The table that users of the recipes know: a line for each run, with step time and TFLOP/s over a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_llmbench.catalogue import Catalogue
from pytest_llmbench.models import Run, Window
from pytest_llmbench.pipeline import read_runs
from pytest_llmbench.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_WINDOW = Window(11, 44)
DEFAULT_STEPS = 50

COLUMNS = (
    "run",
    "configuration",
    "started",
    "status",
    "steps",
    "time_mean_s",
    "time_std_s",
    "tflops_per_gpu_mean",
    "tflops_per_gpu_std",
    "log",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run: step time in seconds and logged TFLOP/s per GPU over the window, None where there is none."""

    run: str
    configuration: str
    started: datetime | None
    status: str
    steps: int
    time_mean_s: float | None
    time_std_s: float | None
    tflops_per_gpu_mean: float | None
    tflops_per_gpu_std: float | None
    log: str


def rows(settings: Settings, catalogue: Catalogue, window: Window | None) -> tuple[Row, ...]:
    """Return a row for each run under the given paths, newest first; `window` None takes the baseline's."""
    runs, unreadable, _ = read_runs(settings, catalogue)
    lost = (Row(stray.id, "", None, f"Unreadable: {stray.text}", 0, None, None, None, None, "") for stray in unreadable)
    return (*(_row(run, catalogue, window) for run in runs), *lost)


def table(found: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a data frame with the columns COLUMNS."""
    import pandas as pd

    return pd.DataFrame([[getattr(row, name) for name in COLUMNS] for row in found], columns=list(COLUMNS))


def _row(run: Run, catalogue: Catalogue, window: Window | None) -> Row:
    import numpy as np

    from pytest_llmbench.measure.metrics import spread
    from pytest_llmbench.measure.window import choose_segment, in_window, is_finished, missing_steps

    key = run.identity.key
    baseline = catalogue.baselines[key][0] if key else None
    counted = window or (baseline.window if baseline else DEFAULT_WINDOW)
    total = baseline.steps if baseline else DEFAULT_STEPS
    named = key.id if key else ""
    choice = choose_segment(run.attempts, counted, total)
    if choice is None:
        log = str(run.attempts[-1].files.log) if run.attempts else ""
        return Row(run.id, named, run.started, "No steps", 0, None, None, None, None, log)
    steps = choice.segment.steps
    mask = in_window(steps, counted)
    status = "Success" if is_finished(choice.segment, total) and not missing_steps(steps, counted) else "Incomplete"
    if bool((steps.has_loss & ~np.isfinite(steps.loss)).any()):
        status = "Diverged"
    values = []
    for column in (steps.seconds[mask], steps.tflops_per_gpu[mask]):
        present = column[np.isfinite(column)]
        values += [float(np.mean(present)), spread(present)] if len(present) else [None, None]
    return Row(run.id, named, run.started, status, len(steps), *values, str(choice.attempt.files.log))
