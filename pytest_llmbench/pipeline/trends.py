"""Changes of each configuration over its nights: found, compared with what was acknowledged, and an item for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import (
    JUDGED,
    Acknowledgement,
    Check,
    CheckKind,
    DailyRun,
    DailyRuns,
    Evidence,
    Finding,
    Judgement,
    Key,
    LevelChange,
    OnBound,
    Status,
)
from pytest_llmbench.pipeline.fleet import PreviousRuns, list_judged_runs
from pytest_llmbench.pipeline.results import ConfigurationResult, JudgedConfigurations
from pytest_llmbench.pipeline.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.judge.nights import PreviousRun

FAILS = 0.01
"""A smaller change to slower, as a fraction, is told and fails nothing; several that come to it together do."""


def with_changes(
    judged: JudgedConfigurations, previous: PreviousRuns, acknowledged: Sequence[Acknowledgement], now: datetime
) -> JudgedConfigurations:
    """Return the results, the newest of each configuration with the changes in its nights."""
    daily = {key: _list_daily_runs(result.judgement, previous[key]) for key, (result, _) in judged.newest.items()}
    correlation = _correlate(daily.values())

    def add_changes(judgement: Judgement, evidence: Evidence) -> Judgement:
        key = judgement.baseline.key
        before, _ = daily[key]
        judgement = replace(judgement, daily_runs=tuple([run for run in before if isinstance(run, DailyRun)]))
        changes = _find_changes(
            judgement,
            evidence,
            previous[key],
            daily[key],
            acknowledged=acknowledged,
            today=now.date(),
            correlation=correlation,
        )
        return replace(judgement, changes=changes, on_bound=_on_bound(judgement, daily[key], changes))

    return judged.map_newest(add_changes)


def _on_bound(
    judgement: Judgement, nights: tuple[DailyRuns, DailyRuns], changes: Sequence[LevelChange]
) -> OnBound | None:
    """Return how the nights since the last change lie about the bound of a configuration that was judged."""
    from pytest_llmbench.judge.seen import find_flips

    if judgement.verdict not in JUDGED:
        return None
    since = max((change.first_run for change in changes), default=0)
    return find_flips((*nights[0], *nights[1]), judgement.bound_seconds, since)


def _list_daily_runs(judgement: Judgement, previous: tuple[PreviousRun, ...]) -> tuple[DailyRuns, DailyRuns]:
    """Return the nights of a configuration before tonight, and tonight as one or none."""
    from pytest_llmbench.judge.seen import average_current_runs, list_daily_runs

    return list_daily_runs(previous), average_current_runs(list_judged_runs(judgement))


def _correlate(nights: Iterable[tuple[DailyRuns, DailyRuns]]) -> float:
    """Return the correlation of a night with the next over all configurations."""
    import numpy as np

    from pytest_llmbench.judge.correlation import NIGHTS, estimate_fleet_correlation

    long = [(*before, *tonight) for before, tonight in nights if len(before) + len(tonight) >= NIGHTS]
    return estimate_fleet_correlation(np.log(np.array([run.statistic_seconds for run in series])) for series in long)


def _find_changes(
    judgement: Judgement,
    evidence: Evidence,
    previous: tuple[PreviousRun, ...],
    daily: tuple[DailyRuns, DailyRuns],
    *,
    acknowledged: Sequence[Acknowledgement],
    today: date,
    correlation: float,
) -> tuple[LevelChange, ...]:
    """Return the changes in the nights of one configuration."""
    from pytest_llmbench.judge.acknowledged import select_covering
    from pytest_llmbench.judge.changes import FEWEST
    from pytest_llmbench.judge.estimate import estimate_noise
    from pytest_llmbench.judge.seen import find_coarse_unit
    from pytest_llmbench.judge.series import find_changes

    series = (*daily[0], *daily[1])
    if len(series) < FEWEST:
        return ()
    own = select_covering(evidence.baseline.key, acknowledged)
    unit = find_coarse_unit((*previous, *list_judged_runs(judgement)))
    noise = estimate_noise(evidence, previous)
    return find_changes(series, noise, own, today, coarse=unit, correlation=correlation)


def find_unneeded(judged: JudgedConfigurations, acknowledged: Sequence[Acknowledgement]) -> Iterator[str]:
    """Yield a remark for each acknowledgement that says nothing of any run that was judged, or whose change was taken
    back: until it goes, the next one has its room."""
    from pytest_llmbench.judge.acknowledged import describe_acknowledgement, select_covering

    remarks = [(result.case.key, note.text) for result, _ in judged.by_id.values() for note in result.judgement.notes]
    changes = [change for result, _ in judged.by_id.values() for change in result.judgement.changes]
    for entry in acknowledged:
        stand = [change.stands for change in changes if change.acknowledged == entry]
        if not any(select_covering(key, [entry]) and describe_acknowledgement(entry) in text for key, text in remarks):
            yield f"{entry.place}: no run needs it ({entry.configuration}): {describe_acknowledgement(entry)}"
        elif stand and not any(stand):
            text = describe_acknowledgement(entry)
            yield f"{entry.place}: taken back since, it can go ({entry.configuration}): {text}"


def make_trend_checks(
    judged: JudgedConfigurations, settings: Settings, acknowledged: Sequence[Acknowledgement]
) -> Iterator[Check]:
    """Yield an item for each configuration whose level stands changed, or that sits on its bound.

    It fails only if `settings.trend` is "fail", for a change to slower of 1 % or more, or several that come to it
    together, that nobody acknowledged, or whose acknowledgement expired.
    """
    for result, _ in judged.newest.values():
        standing = [change for change in result.judgement.changes if change.stands]
        if standing:
            yield _check(result, standing, settings, acknowledged)
        elif result.judgement.on_bound:
            text = _flipping(result.judgement)
            yield Check(CheckKind.TREND, result.case.key.id, Status.PASSED, verdict=Finding.ON_BOUND, text=text)


def _flipping(judgement: Judgement) -> str:
    """Return `sits on its bound (7.691 s): 5 of the last 10 nights passed`; empty for one that does not."""
    flips = judgement.on_bound
    if flips is None:
        return ""
    bound = formatting.format_seconds(judgement.bound_seconds)
    return f"sits on its bound ({bound}): {flips.passed} of the last {flips.runs} nights passed"


def _check(
    result: ConfigurationResult,
    standing: Sequence[LevelChange],
    settings: Settings,
    acknowledged: Sequence[Acknowledgement],
) -> Check:
    bad = _find_unaccepted(standing)
    good = [change for change in standing if change.acknowledged is not None]
    way = Finding.SLOWER if standing[-1].difference > 0 else Finding.FASTER
    asked, changes = settings.trend == "fail", result.judgement.changes
    several = [f"  {change.text}" for change in changes] if len(changes) > 1 else []
    entry = _entry(result.case.key, changes, acknowledged) if bad and asked else ()
    return Check(
        kind=CheckKind.TREND,
        id=result.case.key.id,
        status=Status.FAILED if bad and asked else Status.PASSED,
        verdict=Finding.SLOWER if bad else Finding.ACKNOWLEDGED if good else way,
        text="; ".join(filter(None, (bad or (good or standing)[-1].text, _flipping(result.judgement)))),
        lines=(*several, *entry),
        decides=asked and result.judgement.verdict in JUDGED,  # old nights alone make no session green
        about=(result.case.key,),
    )


def _entry(key: Key, changes: Sequence[LevelChange], acknowledged: Sequence[Acknowledgement]) -> tuple[str, ...]:
    """Return the lines of a file that accept what is left of the last standing change, but for what a person has to
    say, or which entry to change: the one that has expired, one so near that the file could not hold both, or one whose
    change was taken back. Nothing of several changes, where one entry would not do."""
    from pytest_llmbench.judge.acknowledged import LARGEST, select_covering
    from pytest_llmbench.pipeline.acknowledgements import INSTEAD, SAME

    slower = _slower([change for change in changes if change.stands])
    if len(slower) != 1:
        return ()
    if slower[0].expired is not None:
        return (f"to accept it for longer, give a later day in `expires`: {slower[0].expired.place}",)
    since = slower[0].started.date()
    for acknowledgement in select_covering(key, acknowledged):
        if abs(acknowledgement.since - since) <= SAME:
            reason = "it begins within a week of this, and a second one is refused"
            return f"to accept it, change the entry of {acknowledgement.place}:", reason
    # The gate knows what was taken back before this day from the runs before it; of a later entry it cannot.
    gone = {change.acknowledged for change in changes if change.partly_taken_back}
    later = [
        acknowledgement.place
        for acknowledgement in select_covering(key, acknowledged)
        if acknowledgement in gone and acknowledgement.since > since
    ]
    if later:
        reason = "what it accepts was taken back since, in part or as a whole: it has to go, or to be smaller, first"
        return f"to accept it, change the entry of {formatting.join_first(later)}:", reason
    percent = math.ceil(slower[0].lasting * 1000) / 10
    if percent > LARGEST * 100:
        return (f"it is more than the {LARGEST * 100:g} % that an entry may accept; {INSTEAD}",)
    return (
        "to accept it, below `acknowledged:` in the file:",
        f"  - configuration: {key.id}",
        f"    slower: {percent}%",
        f"    since: {since}",
        "    expires: DAY",
        "    reason: WHY",
        "    by: WHO",
    )


def _slower(standing: Sequence[LevelChange]) -> list[LevelChange]:
    """Return the changes to slower that nobody accepted."""
    return [change for change in standing if change.difference > 0 and change.acknowledged is None]


def _find_unaccepted(standing: Sequence[LevelChange]) -> str:
    """Return what is said of standing changes to slower that nobody accepted; empty where they are too small."""
    slower = _slower(standing)
    large = [change.text for change in slower if change.difference >= FAILS]
    if large:
        return large[-1]
    together = math.prod(1 + change.difference for change in slower)
    if together < 1 + FAILS:
        return ""
    return f"{formatting.format_difference(together)} in {len(slower)} changes, the last: {slower[-1].text}"
