"""Runs that match no baseline, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import is_too_old
from pytest_llmbench.core.log_records import EndingCode
from pytest_llmbench.core.outcome_records import UnmatchedRun
from pytest_llmbench.core.run_records import Identity, Run
from pytest_llmbench.session.settings import Settings

JOINED = "other-unmatched-runs"
"""Id of the item for all unmatched runs without their own item."""


def find_unmatched(
    runs: Sequence[Run], settings: Settings, now: datetime
) -> Iterator[UnmatchedRun]:
    """Yield the runs that match no baseline, except runs that are too old."""
    matched_fingerprints: set[str] = set()
    for run in runs:
        if run.identity.key:
            matched_fingerprints |= _list_fingerprints(run)
    for run in runs:
        is_old = is_too_old(run.started, now, settings.max_age)
        if run.identity.key is None and not is_old:
            yield _make_unmatched(run, matched_fingerprints)


def _make_unmatched(run: Run, matched_fingerprints: set[str]) -> UnmatchedRun:
    """Build the record of a run that matches no baseline.

    The run has candidates (configurations whose verdict it prevents) only if it almost
    certainly belongs to one of them, is to be judged, and is no copy of a run that
    matches a baseline (`matched_fingerprints`).
    """
    identity = run.identity
    reason, texts = explain_unmatched(run)
    path: Path = run.attempts[-1].files.log if run.attempts else run.found.folder
    fingerprints = _list_fingerprints(run)
    is_copy = bool(fingerprints) and fingerprints <= matched_fingerprints
    prevents_verdict = (
        run.found.excluded is None and not is_copy and _is_nearly_identified(identity)
    )
    summary, advice = identity.summary, identity.advice
    if reason is Reason.UNREADABLE:
        summary = texts[0].partition("; ")[0]
        advice = ""
    return UnmatchedRun(
        run.id,
        reason,
        text="; ".join(texts),
        path=path,
        candidates=identity.candidates if prevents_verdict else (),
        nearest=identity.nearest,
        started=run.started,
        about=identity.may_be,
        summary=summary,
        advice=advice,
    )


def join_unmatched(runs: Sequence[UnmatchedRun]) -> UnmatchedRun:
    """Join unmatched runs to one item that concerns the configurations of all of them."""
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
    """Return all keys once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(keys)))


def explain_unmatched(run: Run) -> tuple[Reason, list[str]]:
    """Return why no baseline matches: the reason, and texts with the root cause first.

    If the logs of a run cannot be read, only its names may be known.
    """
    identity = run.identity
    first_error = _list_unreadable(run)[:1]  # empty if all logs were read
    has_steps = any(attempt.log.segments for attempt in run.attempts)
    if first_error and not has_steps:
        return Reason.UNREADABLE, [*first_error, identity.because]
    reason = Reason.AMBIGUOUS if identity.candidates else Reason.UNMATCHED
    return reason, [identity.because, *first_error]


def _list_unreadable(run: Run) -> list[str]:
    """Return the errors of the logs that could not be read."""
    endings = (attempt.log.ending for attempt in run.attempts)
    return [
        ending.problem
        for ending in endings
        if ending and ending.code is EndingCode.UNREADABLE
    ]


def _list_fingerprints(run: Run) -> set[str]:
    """Return the fingerprints of the logs that contain steps."""
    # Empty and unreadable logs have equal fingerprints, but are not copies.
    return {attempt.log.fingerprint for attempt in run.attempts if attempt.log.segments}


def _is_nearly_identified(identity: Identity) -> bool:
    """True if a run almost certainly belongs to one configuration.

    An older run must not be judged in its place.
    """
    # The candidates may differ only in GPU type and release, which options can set, and
    # in fields with contradicting values. A log with more candidates does not affect
    # other configurations.
    ignored_fields = {"gpu", "release", *identity.contradicted}
    names = (name for name in Key.__struct_fields__ if name not in ignored_fields)
    return all(
        len({getattr(key, name) for key in identity.candidates}) == 1 for name in names
    )
