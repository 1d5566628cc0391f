"""What is known of the noise of a configuration before its own runs are looked at."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.core.models import Evidence, Noise
from pytest_llmbench.judge import nights, noise
from pytest_llmbench.judge.estimate import own_noise


def prior(configurations: Iterable[Evidence], assumed_cv: float) -> Noise:
    """Return what the configurations say of each other's noise; where too few can, the assumed one.

    `assumed_cv` is the coefficient of variation from run to run. The runs that are judged tell nothing here, so that a
    regression does not widen its own interval.
    """
    measured = [own for one in configurations if (own := noise.pooled(own_noise(one.baseline, _older(one))))]
    return noise.of_others(measured) or noise.assumed(assumed_cv)


def _older(evidence: Evidence) -> nights.EarlierNights:
    """Return the nights before the newest valid run; where there is none but a history, all nights."""
    newest = next((one for one in evidence.measurements if one.valid), None)
    if newest is None and not evidence.recalled:
        return nights.EarlierNights()
    return nights.history([newest] if newest else [], evidence)
