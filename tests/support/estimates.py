"""Estimates of a difference from a baseline."""

from __future__ import annotations

import math
from typing import Any

from pytest_llmbench.core.judgement_records import Estimate, Noise
from pytest_llmbench.judge.distributions import compute_t_upper_tail

KNOWN = Noise(0.002, 30.0, "20 days", measured=True)


def make_estimate(difference: float, **fields: Any) -> Estimate:
    """Build the estimate of one run, by default with a small, well-known error."""
    values: dict[str, Any] = {
        "difference": difference,
        "standard_error": 0.002,
        "degrees_of_freedom": 30.0,
        "low": difference,
        "high": difference,
        "margin": math.log(1.05),
        "level": 0.05,
        "runs": 1,
        "noise": KNOWN,
        "within_run_error": 0.001,
        "effective_sample_size": 30.0,
        "rounding": 0.0,
        "detectable": 0.06,
        "repeats_needed": None,
        **fields,
    }
    error, freedom = values["standard_error"], values["degrees_of_freedom"]
    has_error = math.isfinite(error) and error > 0
    return Estimate(
        p_slower=compute_t_upper_tail(difference / error, freedom)
        if has_error
        else None,
        **values,
    )
