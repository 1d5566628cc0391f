"""One build beside the two ends of a bisect: the runs of all three, made or read, and
on which side the build is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

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

MOST_UNUSABLE = 2  # starts of which none leaves a run that counts

# an exit code from here on is that of a command which did not come to its own end
STOPPED = 128


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What is said of a build."""

    outcome: ProbeOutcome
    estimate: (
        PairedEstimate | None
    )  # how far it is from the middle of the ends; None without a run of it
    configuration: str
    runs: int  # so many of the build count
    no_data: tuple[str, ...]  # its runs that do not, with the reason


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The places of the runs, and of which configuration they are (empty: of the only
    one that both ends have)."""

    good: Path
    bad: Path
    new: Path
    configuration: str = ""


def probe(
    request: ProbeRequest,
    settings: Settings,
    make_run: Callable[[int], int] | None,
    clock: Callable[[], datetime],
) -> ProbeAnswer:
    """Return on which side of the middle of both ends a build is.

    `make_run(number)` makes a run of it below `request.new` and returns the exit code
    of what it started; it is called until the answer is there, at most four times.
    Without it the runs that lie there are all. A start that failed and left no run that
    counts, or two that left none, are the last: DOES_NOT_RUN where no run counts at
    all. STOPPED: one was ended from outside. Raises SettingsError where the ends are of
    no common configuration.
    """
    answer = _judge(request, settings, clock())
    if make_run is None or answer.outcome is ProbeOutcome.ENDS_ALIKE:
        return answer
    unusable = 0
    for number in range(1, MOST_RUNS + MOST_UNUSABLE):
        before = answer.runs
        code = make_run(number)
        answer = _judge(request, settings, clock())
        if answer.runs > before:
            if (
                answer.outcome is not ProbeOutcome.CANNOT_TELL
                or answer.runs >= MOST_RUNS
            ):
                return answer
            continue
        if code < 0 or code >= STOPPED:
            return replace(answer, outcome=ProbeOutcome.STOPPED)
        unusable += 1
        if code or unusable >= MOST_UNUSABLE:
            return (
                answer
                if answer.runs
                else replace(answer, outcome=ProbeOutcome.DOES_NOT_RUN)
            )
    return answer


def _judge(request: ProbeRequest, settings: Settings, now: datetime) -> ProbeAnswer:
    places = {GOOD: request.good, BAD: request.bad, NEW: request.new}
    requests = [
        SideRequest(label, str(path), path=path) for label, path in places.items()
    ]
    sides = {
        side.label: side for side in read_paths(requests, settings, load(settings), now)
    }
    name, window = _choose_configuration(sides[GOOD], sides[BAD], request.configuration)
    runs = [sides[label].runs.get((name, window), ()) for label in places]
    good, bad, new = (
        [math.log(run.statistic_seconds) for run in of_side] for of_side in runs
    )
    errors = [_estimate_error(of_side) for of_side in runs]
    if new:
        outcome, estimate = decide_probe(
            good, bad, new, (errors[0], errors[1], errors[2])
        )
    else:
        alike = (
            decide_probe(good, bad, good, (errors[0], errors[1], errors[0]))[0]
            is ProbeOutcome.ENDS_ALIKE
        )
        outcome, estimate = (
            ProbeOutcome.ENDS_ALIKE if alike else ProbeOutcome.DOES_NOT_RUN,
            None,
        )
    no_data = (
        f"{run.run}: {run.reason}" + (f": {run.text}" if run.text else "")
        for run in sides[NEW].no_data
    )
    return ProbeAnswer(outcome, estimate, name, len(new), tuple(no_data))


def _choose_configuration(
    good: ComparedSide, bad: ComparedSide, name: str
) -> tuple[str, Window]:
    """Return which configuration is looked at, over which window: one that both ends
    have. Raises SettingsError."""
    both = sorted(
        good.runs.keys() & bad.runs.keys(),
        key=lambda key: (key[0], -len(good.runs[key])),
    )
    names = list(dict.fromkeys(each for each, _ in both))
    if name and name not in names:
        raise SettingsError(
            f"--configuration={name}: --good and --bad have no runs of it{did_you_mean(name, names)}"
        )
    if not names:
        why = next(
            (
                f" ({run.run}: {run.reason})"
                for side in (good, bad)
                for run in side.no_data
            ),
            "",
        )
        raise SettingsError(
            f"--good and --bad have no configuration in common of which runs count{why}"
        )
    if len(names) > 1 and not name:
        raise SettingsError(
            f"--good and --bad have runs of several configurations: give --configuration=ID, one of {join_first(names)}"
        )
    return next(key for key in both if key[0] == (name or names[0]))


def _estimate_error(runs: Sequence[SideRun]) -> PrintedError:
    groups = [[run] for run in runs]
    return (
        PrintedError(average_error(groups), average_rounding(groups))
        if runs
        else PrintedError()
    )
