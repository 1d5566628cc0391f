"""What stands in for the baseline of a run of no known configuration: it is whole by what its own log says."""

from __future__ import annotations

import math
import sys

from pytest_llmbench.core.models import Architecture, Baseline, Configuration, Key, Parallelism, Run, Source, Window

NO_CONFIGURATION = Key("", "", "", "", "", 1)
"""The key of a stand-in."""

UNKNOWN_STEPS = sys.maxsize
"""The number of steps of a recipe that nobody knows: only the log's own total, or its end, says that a run finished."""


def make_stand_in(run: Run, window: Window) -> Baseline:
    """Return a baseline that expects nothing of a run but that its window is whole; zeros are numbers nobody knows.

    Only what is wrong with the run may be asked of it: no metric follows from it.
    """
    dialects = (attempt.log.dialect for attempt in reversed(run.attempts) if attempt.log.dialect)
    model = Architecture("", sequence_length=0, layers=0, hidden_size=0, vocabulary_size=0)
    return Baseline(
        configuration=Configuration(NO_CONFIGURATION, model, Parallelism(), global_batch_size=0),
        kind="recipe",
        step_seconds=math.nan,
        cells=(),
        window=window,
        timed="mean",
        steps=UNKNOWN_STEPS,
        dialect=next(dialects, "any"),
        peak_tflops=math.nan,
        source=Source(""),
    )
