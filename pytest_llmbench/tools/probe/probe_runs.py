"""Make and read the runs of a build, and compare them with both ends of a bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.comparison.comparison_records import ComparedSide, SideRun
from pytest_llmbench.comparison.sides import SideRequest, read_paths
from pytest_llmbench.comparison.unpaired import average_error, average_rounding
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.trial_records import PairedEstimate, ProbeOutcome
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings
from pytest_llmbench.tools.probe.probe_decision import (
    MOST_RUNS,
    PrintedError,
    decide_probe,
)

GOOD, BAD, NEW = "good", "bad", "new"

MOST_UNUSABLE = 2
"""Starts without a valid run after which a build is given up."""

STOPPED = 128
"""Smallest exit code of a command that was stopped by a signal."""


class ProbeAnswer(Struct, frozen=True):
    """The answer for a build."""

    outcome: ProbeOutcome
    estimate: PairedEstimate | None
    """Distance of the build from the middle of the ends; None without a valid run."""

    configuration: str
    runs: int
    """Number of valid runs of the build."""

    no_data: tuple[str, ...]
    """The invalid runs of the build, each with the reason."""


class ProbeRequest(Struct, frozen=True):
    """The paths of the runs to compare."""

    good: Path
    bad: Path
    new: Path
    configuration: str = ""
    """The configuration to compare; "" for the only common one of both ends."""


def probe(
    request: ProbeRequest,
    settings: Settings,
    make_run: Callable[[int], int] | None,
    clock: Callable[[], datetime],
) -> ProbeAnswer:
    """Compare a build with the middle of both ends.

    `make_run(number)` starts one run in `request.new` and returns the exit code of the
    command. It is called until the comparison is decided or there are MOST_RUNS valid
    runs. Without `make_run`, only the existing runs in `request.new` are used.

    No more runs are started after a failed start without a valid run, or after
    MOST_UNUSABLE starts without a valid run; the outcome is DOES_NOT_RUN if the build
    has no valid run at all. STOPPED means that the command was stopped from outside.
    Raises SettingsError if the ends have no configuration in common.
    """
    answer = _judge(request, settings, clock())
    if make_run is None or answer.outcome is ProbeOutcome.ENDS_ALIKE:
        return answer
    unusable = 0  # starts that added no valid run
    # Enough starts for MOST_RUNS valid runs and one start less than MOST_UNUSABLE.
    for number in range(1, MOST_RUNS + MOST_UNUSABLE):
        runs_before = answer.runs
        code = make_run(number)
        answer = _judge(request, settings, clock())
        has_valid_run = answer.runs > runs_before
        if has_valid_run:
            is_decided = answer.outcome is not ProbeOutcome.CANNOT_TELL
            if is_decided or answer.runs >= MOST_RUNS:
                return answer
            continue
        if code < 0 or code >= STOPPED:  # stopped by a signal
            return replace(answer, outcome=ProbeOutcome.STOPPED)
        unusable += 1
        if code != 0 or unusable >= MOST_UNUSABLE:
            if answer.runs == 0:
                return replace(answer, outcome=ProbeOutcome.DOES_NOT_RUN)
            return answer
    return answer


def _judge(request: ProbeRequest, settings: Settings, now: datetime) -> ProbeAnswer:
    """Judge the new runs against the middle of the good and the bad runs."""
    paths = {GOOD: request.good, BAD: request.bad, NEW: request.new}
    requests = [
        SideRequest(label, str(path), path=path) for label, path in paths.items()
    ]
    sides = {
        side.label: side for side in read_paths(requests, settings, load(settings), now)
    }
    name, window = _choose_configuration(sides[GOOD], sides[BAD], request.configuration)
    runs_of_sides = [sides[label].runs.get((name, window), ()) for label in paths]
    good, bad, new = (
        [math.log(run.statistic_seconds) for run in runs] for runs in runs_of_sides
    )
    good_error, bad_error, new_error = map(_estimate_error, runs_of_sides)
    estimate: PairedEstimate | None
    if new:
        errors = (good_error, bad_error, new_error)
        outcome, estimate = decide_probe(good, bad, new, errors)
    else:
        # Without a run of the build, check only the ends: the good runs take its place.
        errors = (good_error, bad_error, good_error)
        outcome, _ = decide_probe(good, bad, good, errors)
        estimate = None
        if outcome is not ProbeOutcome.ENDS_ALIKE:
            outcome = ProbeOutcome.DOES_NOT_RUN
    no_data = []
    for run in sides[NEW].no_data:
        details = f": {run.text}" if run.text else ""
        no_data.append(f"{run.run}: {run.reason}{details}")
    return ProbeAnswer(outcome, estimate, name, len(new), tuple(no_data))


def _choose_configuration(
    good: ComparedSide, bad: ComparedSide, name: str
) -> tuple[str, Window]:
    """Choose the configuration and window to compare: both ends must have runs of them.

    `name` is the requested configuration, or "". Of several windows of a configuration,
    chooses the window with the most good runs. Raises SettingsError if both ends have no
    configuration in common, or several without a requested one.
    """

    def rank(key: tuple[str, Window]) -> tuple[str, int]:
        """Return the sort key: configuration, then number of good runs (most first)."""
        configuration, _ = key
        return configuration, -len(good.runs[key])

    shared = sorted(good.runs.keys() & bad.runs.keys(), key=rank)
    names = list(dict.fromkeys(configuration for configuration, _ in shared))
    if name and name not in names:
        raise SettingsError(
            f"--configuration={name}: --good and --bad do not both have valid runs of it{did_you_mean(name, names)}"
        )
    if not names:
        reason = ""
        invalid_runs = [*good.no_data, *bad.no_data]
        if invalid_runs:
            first = invalid_runs[0]
            reason = f" ({first.run}: {first.reason})"
        raise SettingsError(
            f"--good and --bad have no valid runs of a common configuration{reason}"
        )
    if len(names) > 1 and not name:
        raise SettingsError(
            f"--good and --bad have runs of several configurations: give --configuration=ID, one of {join_first(names)}"
        )
    chosen = name or names[0]
    return next(
        (configuration, window)
        for configuration, window in shared
        if configuration == chosen
    )


def _estimate_error(runs: Sequence[SideRun]) -> PrintedError:
    """Estimate the errors of the mean of runs; zero errors without a run."""
    if not runs:
        return PrintedError()
    groups = [[run] for run in runs]  # each run is its own group
    return PrintedError(average_error(groups), average_rounding(groups))
