"""What is known of the noise of a configuration before its own runs are looked at."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.core.models import Evidence, Noise
from pytest_llmbench.judge import nights, noise
from pytest_llmbench.judge.estimate import list_own_noise


def estimate_prior(configurations: Iterable[Evidence], assumed_cv: float) -> Noise:
    """Return what the configurations say of each other's noise; where too few can, the assumed one.

    `assumed_cv` is the coefficient of variation from run to run. The runs that are judged tell nothing here, so that a
    regression does not widen its own interval.
    """
    measured = [
        own
        for evidence in configurations
        if (own := noise.pool(list_own_noise(evidence.baseline, _list_previous(evidence))))
    ]
    return noise.estimate_from_others(measured) or noise.assume_noise(assumed_cv)


def _list_previous(evidence: Evidence) -> nights.PreviousRuns:
    """Return the nights before the newest valid run; where there is none but a history, all nights."""
    newest = next((run for run in evidence.measurements if run.valid), None)
    if newest is None and not evidence.stored_runs:
        return ()
    return nights.previous_daily_runs([newest] if newest else [], evidence)
