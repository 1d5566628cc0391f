"""Runs of no known configuration, and why no baseline fits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import is_too_old
from pytest_llmbench.core.log_records import EndingCode
from pytest_llmbench.core.outcome_records import UnmatchedRun
from pytest_llmbench.core.run_records import Identity, Run
from pytest_llmbench.session.settings import Settings

JOINED = "other-unmatched-runs"
"""The id of the item of all unmatched runs without an item of their own."""


def find_unmatched(
    runs: Sequence[Run], settings: Settings, now: datetime
) -> Iterator[UnmatchedRun]:
    """Yield the runs that no baseline fits, but for those too old to matter."""
    identified = {
        mark for run in runs if run.identity.key for mark in _list_fingerprints(run)
    }
    for run in runs:
        identity = run.identity
        old = is_too_old(run.started, now, settings.max_age)
        if identity.key is None and not old:
            reason, texts = explain_unmatched(run)
            path: Path = (
                run.attempts[-1].files.log if run.attempts else run.found.folder
            )
            copied = (
                bool(_list_fingerprints(run)) and _list_fingerprints(run) <= identified
            )
            serious = (
                run.found.excluded is None
                and not copied
                and _is_nearly_identified(identity)
            )
            yield UnmatchedRun(
                run.id,
                reason,
                "; ".join(texts),
                path,
                identity.candidates if serious else (),
                identity.nearest,
                run.started,
                about=identity.may_be,
                summary=texts[0].partition("; ")[0]
                if reason is Reason.UNREADABLE
                else identity.summary,
                advice="" if reason is Reason.UNREADABLE else identity.advice,
            )


def join_unmatched(runs: Sequence[UnmatchedRun]) -> UnmatchedRun:
    """Join unmatched runs into one, whose item fails wherever an item of any of them
    would."""
    first = runs[0]
    return replace(
        first,
        id=JOINED,
        text=f"{len(runs):,} more unmatched runs, {first.id} ({first.text}) among them",
        candidates=_join_keys(run.candidates for run in runs),
        nearest=(),
        about=_join_keys(run.about for run in runs),
        started=None,
        advice="",
    )


def _join_keys(keys: Iterable[tuple[Key, ...]]) -> tuple[Key, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(keys)))


def explain_unmatched(run: Run) -> tuple[Reason, list[str]]:
    """Return why no baseline fits a run, the cause of the rest first: of a run whose
    logs cannot be read nothing more may be known than its names."""
    identity, unreadable = run.identity, _list_unreadable(run)[:1]
    if unreadable and not any(attempt.log.segments for attempt in run.attempts):
        return Reason.UNREADABLE, [*unreadable, identity.because]
    return Reason.AMBIGUOUS if identity.candidates else Reason.UNMATCHED, [
        identity.because,
        *unreadable,
    ]


def _list_unreadable(run: Run) -> list[str]:
    """Return why logs of a run could not be read."""
    endings = (attempt.log.ending for attempt in run.attempts)
    return [
        ending.problem
        for ending in endings
        if ending and ending.code is EndingCode.UNREADABLE
    ]


def _list_fingerprints(run: Run) -> set[str]:
    """Return the fingerprints of a run's logs that hold steps."""
    # Empty and unreadable logs are all alike, and no copies of each other.
    return {attempt.log.fingerprint for attempt in run.attempts if attempt.log.segments}


def _is_nearly_identified(identity: Identity) -> bool:
    """Whether a run is so nearly of one configuration that an older run must not stand
    for it."""
    # Its candidates differ in GPU type and release, which an option decides, or in what
    # its sources contradict each other about. A log that could be almost anything puts
    # nothing in doubt.
    decided = {"gpu", "release", *identity.contradicted}
    names = (field.name for field in fields(Key) if field.name not in decided)
    return all(
        len({getattr(key, name) for key in identity.candidates}) == 1 for name in names
    )
