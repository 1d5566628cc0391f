"""Runs that are of no known configuration, and what they put in doubt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.models import Identity, Key, Reason, Run, UnmatchedRun, Verdict
from pytest_llmbench.pipeline.results import ConfigurationResult
from pytest_llmbench.pipeline.settings import Settings


def find_unmatched(runs: Sequence[Run], settings: Settings, now: datetime) -> Iterator[UnmatchedRun]:
    """Yield the runs that no baseline fits, but for those too old to matter."""
    known = {one for run in runs if run.identity.key for one in _fingerprints(run)}
    for run in runs:
        identity = run.identity
        old = settings.max_age is not None and run.started is not None and now - run.started > settings.max_age
        if identity.key is None and not old:
            reason = Reason.AMBIGUOUS if identity.candidates else Reason.UNMATCHED
            path: Path = run.attempts[-1].files.log if run.attempts else run.found.folder
            copied = bool(_fingerprints(run)) and _fingerprints(run) <= known
            serious = run.found.excluded is None and not copied and _nearly_identified(identity)
            candidates = identity.candidates if serious else ()
            about = identity.may_be
            yield UnmatchedRun(
                run.id, reason, identity.because, path, candidates, identity.nearest, run.started, about=about
            )


def _fingerprints(run: Run) -> set[str]:
    """Return the fingerprints of a run's logs that hold steps: empty and unreadable logs are all alike."""
    return {attempt.log.fingerprint for attempt in run.attempts if attempt.log.segments}


def _nearly_identified(identity: Identity) -> bool:
    """Whether a run is so nearly of one configuration that an older run must not stand for it.

    Its candidates differ in GPU type and release, which an option decides, or in what its sources contradict each other
    about. A log that could be almost anything puts nothing in doubt.
    """
    decided = {"gpu", "release", *identity.contradicted}
    fields = (field.name for field in dataclasses.fields(Key) if field.name not in decided)
    return all(len({getattr(key, name) for key in identity.candidates}) == 1 for name in fields)


def briefly(because: str) -> list[str]:
    """Return of why a run is of no configuration the head, and what nothing says of it."""
    head, *rest = because.split("; ")
    return [head, *(part for part in rest if part.startswith("nothing says"))]


def invalidate_if_newer_unmatched(
    result: ConfigurationResult, unmatched: Sequence[UnmatchedRun], settings: Settings
) -> ConfigurationResult:
    """Return a result, INVALID where a newer run may be of its configuration: an older one must not stand for it."""
    measurement = result.judgement.measurement
    if measurement is None or result.case.run_id or settings.unmatched == "list":
        return result
    started = measurement.run.started
    for stray in unmatched:
        newer = stray.started is None or started is None or stray.started > started
        if newer and result.case.key in stray.candidates:
            text = f"a newer run may be of this configuration: {stray.id}: {stray.text}"
            invalid = dataclasses.replace(result.judgement, verdict=Verdict.INVALID, reason=Reason.AMBIGUOUS, text=text)
            return dataclasses.replace(result, judgement=invalid)
    return result
