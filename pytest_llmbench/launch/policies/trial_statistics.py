"""Runs side by side on the same nodes: the order in which they are made, and which of
them count.

All functions are pure: the same trials give the same next run and the same answer,
which is what resuming relies on. A session that resumes leaves out what infrastructure
lost in earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import NextTrial, Trial, TrialOutcome

# One-sided, after 2, 3 and 4 pairs: together they are wrong in 5 % of cases
# (docs/statistics.md).
LEVELS = (0.012, 0.024, 0.036)
# The same where earlier A/Bs tell the noise, which then moves less from look to look.
LEVELS_WITH_NOISE = (0.010, 0.020, 0.030)

FIRST_LOOK = 2
MOST_PAIRS = FIRST_LOOK + len(LEVELS) - 1

MOST_FAILURES = 2  # an arm that fails so often by itself does not run
# so many runs of one variant lost in a row: the infrastructure does not come back by
# itself
MOST_LOST = 2


class RunBounds(NamedTuple):
    """How many runs a procedure makes, whatever they say."""

    least: int
    most: int


class CountedRun(NamedTuple):
    """A run that counts."""

    place: int  # among the measured ones, warm-ups too
    variant: int
    logarithm: float  # of its step time
    # how far that may be off by the printed digits, in all runs of a variant alike
    rounding: float = 0.0


def list_measured(trials: Sequence[Trial]) -> list[CountedRun]:
    """Return the runs that count, in order."""
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    return [
        CountedRun(place, trial.variant, math.log(trial.step_time_ms), trial.rounding)
        for place, trial in enumerate(measured)
        if not trial.discarded and trial.step_time_ms
    ]


def is_measured(trial: Trial, variants: Collection[int]) -> bool:
    """Whether a trial is a run of one of these variants that counts."""
    return (
        trial.outcome is TrialOutcome.MEASURED
        and not trial.discarded
        and trial.variant in variants
    )


def count_failures(trials: Sequence[Trial], variant: int) -> int:
    """Return how often a variant failed by itself, as warm-up too."""
    return sum(
        trial.variant == variant and trial.outcome is TrialOutcome.DOES_NOT_RUN
        for trial in trials
    )


def is_lost(trials: Sequence[Trial], variant: int) -> bool:
    """Whether infrastructure failed a variant twice in a row."""
    last = [trial.outcome for trial in trials if trial.variant == variant][-MOST_LOST:]
    return len(last) == MOST_LOST and set(last) == {TrialOutcome.LOST}


# --- the order of pairs ---------------------------------------------------------------


def find_round_end(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int | None:
    """Return how many trials there were when each variant had so many runs; None where
    one has fewer."""
    left = dict.fromkeys(variants, rounds)
    for place, trial in enumerate(trials):
        if is_measured(trial, variants):
            left[trial.variant] -= 1
            if max(left.values()) <= 0:
                return place + 1
    return None if rounds else 0


def choose_in_round(
    trials: Sequence[Trial], variants: Sequence[int], rounds: int
) -> int:
    """Return the variant that is run next in a round that has not ended (from 1 on).

    Rounds go forward, back, back, forward (AB BA BA AB), which keeps a drift out of the
    difference. What was lost or failed is made again at the end of its round.
    """
    start = find_round_end(trials, variants, rounds - 1) or 0
    tried = {trial.variant for trial in trials[start:] if not trial.discarded}
    order = list(variants) if rounds % 4 in (0, 1) else list(reversed(variants))
    missing = [
        variant
        for variant in order
        if sum(is_measured(trial, (variant,)) for trial in trials) < rounds
    ]
    return next((variant for variant in missing if variant not in tried), missing[0])


def choose_warm_up(
    trials: Sequence[Trial], variants: Sequence[int], allocation: int | None
) -> NextTrial | None:
    """Return the warm-up that is due in a shared allocation, where the first run of
    each variant is discarded."""
    if allocation is None:
        return None
    warm = {
        trial.variant
        for trial in trials
        if trial.discarded
        and trial.allocation == allocation
        and trial.outcome is TrialOutcome.MEASURED
    }
    # what does not come up is left to the runs that count, whose failures end it
    given_up = {
        each
        for each in variants
        if count_failures(trials, each) >= MOST_FAILURES or is_lost(trials, each)
    }
    cold = (variant for variant in variants if variant not in warm | given_up)
    return next((NextTrial(variant, discarded=True) for variant in cold), None)


def get_level(pairs: int, earlier: Noise | None, arms: int = 1) -> float:
    """Return the one-sided level of the look after so many pairs; several arms share it
    (Bonferroni)."""
    return (LEVELS_WITH_NOISE if earlier else LEVELS)[pairs - FIRST_LOOK] / arms
