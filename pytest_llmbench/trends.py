"""Changes of each configuration over its nights: found, compared with what was acknowledged, and an item for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_llmbench import wording
from pytest_llmbench.across import Older, judged_runs, newest_of
from pytest_llmbench.batch import Judged, Result
from pytest_llmbench.models import (
    JUDGED,
    Acknowledgement,
    Change,
    Check,
    Evidence,
    Judgement,
    Key,
    Night,
    Status,
)
from pytest_llmbench.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.judge.nights import EarlierNights

FAILS = 0.01
"""A smaller change to slower, as a fraction, is told and fails nothing; several that come to it together do."""


def with_changes(judged: Judged, older: Older, acknowledged: Sequence[Acknowledgement], now: datetime) -> Judged:
    """Return the results, the newest of each configuration with the changes in its nights."""
    changed = {}
    for key, (result, evidence) in newest_of(judged).items():
        judgement = _with_changes(result.judgement, evidence, older[key], acknowledged, now)
        changed[result.case.id] = replace(result, judgement=judgement)
    return {name: (changed.get(name, result), evidence) for name, (result, evidence) in judged.items()}


def _with_changes(
    judgement: Judgement,
    evidence: Evidence,
    older: EarlierNights,
    acknowledged: Sequence[Acknowledgement],
    now: datetime,
) -> Judgement:
    from pytest_llmbench.judge.acknowledged import covering
    from pytest_llmbench.judge.changes import FEWEST
    from pytest_llmbench.judge.estimate import noise_of
    from pytest_llmbench.judge.seen import as_night, as_nights, coarse
    from pytest_llmbench.judge.series import changes_of

    tonight = judged_runs(judgement)
    before = as_nights(older)
    nights = (*before, *as_night(tonight))
    judgement = replace(judgement, nights=tuple([one for one in before if isinstance(one, Night)]))
    if len(nights) < FEWEST:
        return judgement
    known = covering(evidence.baseline.key, acknowledged)
    unit = coarse((*older, *tonight))
    return replace(judgement, changes=changes_of(nights, noise_of(evidence, older), known, now.date(), coarse=unit))


def unneeded(judged: Judged, acknowledged: Sequence[Acknowledgement]) -> Iterator[str]:
    """Yield a remark for each acknowledgement that says nothing of any run that was judged, or whose change was taken
    back: until it goes, the next one has its room."""
    from pytest_llmbench.judge.acknowledged import covering, described

    said = [(result.case.key, note.text) for result, _ in judged.values() for note in result.judgement.notes]
    changes = [change for result, _ in judged.values() for change in result.judgement.changes]
    for one in acknowledged:
        stand = [change.stands for change in changes if change.acknowledged == one]
        if not any(covering(key, [one]) and described(one) in text for key, text in said):
            yield f"{one.place}: no run needs it ({one.configuration}): {described(one)}"
        elif stand and not any(stand):
            yield f"{one.place}: taken back since, it can go ({one.configuration}): {described(one)}"


def trend_checks(judged: Judged, settings: Settings, acknowledged: Sequence[Acknowledgement]) -> Iterator[Check]:
    """Yield an item for each configuration whose level stands changed.

    It fails only if `settings.trend` is "fail", for a change to slower of 1 % or more, or several that come to it
    together, that nobody acknowledged, or whose acknowledgement expired.
    """
    for result, _ in newest_of(judged).values():
        standing = [one for one in result.judgement.changes if one.stands]
        if standing:
            yield _check(result, standing, settings, acknowledged)


def _check(
    result: Result, standing: Sequence[Change], settings: Settings, acknowledged: Sequence[Acknowledgement]
) -> Check:
    bad = _unaccepted(standing)
    good = [one for one in standing if one.acknowledged is not None]
    way = "SLOWER" if standing[-1].difference > 0 else "FASTER"
    asked, changes = settings.trend == "fail", result.judgement.changes
    several = [f"  {one.text}" for one in changes] if len(changes) > 1 else []
    entry = _entry(result.case.key, standing, acknowledged) if bad and asked else ()
    return Check(
        kind="trend",
        id=result.case.key.id,
        status=Status.FAILED if bad and asked else Status.PASSED,
        verdict="SLOWER" if bad else "ACKNOWLEDGED" if good else way,
        text=bad or (good or standing)[-1].text,
        lines=(*several, *entry),
        decides=asked and result.judgement.verdict in JUDGED,  # old nights alone make no session green
        about=(result.case.key,),
    )


def _entry(key: Key, standing: Sequence[Change], acknowledged: Sequence[Acknowledgement]) -> tuple[str, ...]:
    """Return the lines of a file that accept the last standing change, but for what a person has to say, or which entry
    to change: the one that has expired, or one so near that the file could not hold both. Nothing of several changes,
    where one entry would not do."""
    from pytest_llmbench.acknowledged import SAME
    from pytest_llmbench.judge.acknowledged import covering

    slower = _slower(standing)
    if len(slower) != 1:
        return ()
    if slower[0].expired is not None:
        return (f"to accept it for longer, give a later day in `expires`: {slower[0].expired.place}",)
    since = slower[0].started.date()
    for one in covering(key, acknowledged):
        if abs(one.since - since) <= SAME:
            told = "it begins within a week of this, and a second one is refused"
            return f"to accept it, change the entry of {one.place}:", told
    percent = math.ceil(slower[0].difference * 1000) / 10
    return (
        "to accept it, below `acknowledged:` in the file:",
        f"  - configuration: {key.id}",
        f"    slower: {percent}%",
        f"    since: {since}",
        "    expires: DAY",
        "    reason: WHY",
        "    by: WHO",
    )


def _slower(standing: Sequence[Change]) -> list[Change]:
    """Return the changes to slower that nobody accepted."""
    return [one for one in standing if one.difference > 0 and one.acknowledged is None]


def _unaccepted(standing: Sequence[Change]) -> str:
    """Return what is said of standing changes to slower that nobody accepted; empty where they are too small."""
    slower = _slower(standing)
    large = [one.text for one in slower if one.difference >= FAILS]
    if large:
        return large[-1]
    together = math.prod(1 + one.difference for one in slower)
    if together < 1 + FAILS:
        return ""
    return f"{wording.difference(together)} in {len(slower)} changes, the last: {slower[-1].text}"
