"""The order of the stages: ingest (discover, parse, identify), measure, judge; and what follows for the items."""

from __future__ import annotations

import dataclasses
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_llmbench.across import comparisons, shared_shift, with_shift, with_warnings
from pytest_llmbench.batch import Batch, Judged, Result
from pytest_llmbench.catalogue import Catalogue, tolerance_of
from pytest_llmbench.ingest import Ingested, ingest
from pytest_llmbench.models import (
    Case,
    Check,
    Evidence,
    Judgement,
    Key,
    Measurement,
    Run,
    Status,
)
from pytest_llmbench.settings import Settings
from pytest_llmbench.settling import decided, status_of
from pytest_llmbench.strays import strays

if TYPE_CHECKING:
    from pytest_llmbench.judge.shift import SharedShift
    from pytest_llmbench.reading import Done

Measured = Mapping[Key, tuple[tuple[Measurement, ...], ...]]
"""For each key and each of its baselines the measurements of its runs, newest first."""


def gather(
    settings: Settings, catalogue: Catalogue, now: datetime, tell: Callable[[Done], None] | None = None
) -> Batch:
    """Discover, read and judge everything under the given paths; `tell` is called with how far reading is."""
    with _without_collector():
        return judge_found(ingest(settings, catalogue, now, tell), settings, catalogue, now)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Let Python's collector of cycles rest: what is made of thousands of runs is kept, and has no cycles, but the
    collector would look at all of it again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def judge_found(found: Ingested, settings: Settings, catalogue: Catalogue, now: datetime) -> Batch:
    """Measure and judge runs that were read; those before `settings.since` only tell the noise."""
    current = [run for run in found.runs if not _is_before(run, settings)]
    measured = measure_runs(found.runs, catalogue, now)
    judged = judge_measured(measured, settings, catalogue, now)
    shift = shared_shift(judged)
    judged = with_warnings(with_shift(judged, shift))
    return Batch(
        results={name: result for name, (result, _) in judged.items()},
        strays=(*strays(current, settings, now), *found.unreadable),
        runs_found=len(found.runs),
        runs_before_since=len(found.runs) - len(current),
        ignored=found.ignored,
        measurements={key: _current(measurements[0], settings) for key, measurements in measured.items()},
        checks=tuple(_checks(judged, shift, settings, catalogue)),
    )


def _checks(judged: Judged, shift: SharedShift | None, settings: Settings, catalogue: Catalogue) -> Iterator[Check]:
    from pytest_llmbench.selftest import selftests

    if settings.record is None:
        yield from comparisons(judged, shift, [one[0].configuration for one in catalogue.baselines.values()], settings)
    if settings.selftest:
        yield from selftests(judged, settings)


def _is_before(run: Run, settings: Settings) -> bool:
    return settings.since is not None and run.started is not None and run.started < settings.since


def _current(measurements: Sequence[Measurement], settings: Settings) -> tuple[Measurement, ...]:
    return tuple(one for one in measurements if not _is_before(one.run, settings))


def measure_runs(runs: Sequence[Run], catalogue: Catalogue, now: datetime) -> Measured:
    """Return what runs, newest first, measured against the baselines of their configurations."""
    from pytest_llmbench.measure.measurement import measure

    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        if run.identity.key is not None:
            by_key[run.identity.key].append(run)
    measured = {
        key: tuple(tuple(measure(run, baseline, now) for run in by_key[key]) for baseline in baselines)
        for key, baselines in catalogue.baselines.items()
    }
    return _with_scaling(measured, catalogue)


def _with_scaling(measured: Measured, catalogue: Catalogue) -> Measured:
    """Add the weak-scaling efficiency to the newest valid run of each member of a family."""
    from pytest_llmbench.measure.metrics import metric
    from pytest_llmbench.measure.scaling import families, weak_scaling_efficiency

    newest = {key: next((one for one in of_key[0] if one.valid), None) for key, of_key in measured.items()}
    seconds = {key: one.statistic_seconds for key, one in newest.items() if one and one.statistic_seconds}
    scaled = dict(measured)
    for family in families([baselines[0].configuration for baselines in catalogue.baselines.values()]):
        for key, efficiency in weak_scaling_efficiency([member.key for member in family], seconds).items():
            scaling = metric("weak_scaling_efficiency", efficiency)
            first = tuple(
                dataclasses.replace(one, metrics=(*one.metrics, scaling)) if one is newest[key] else one
                for one in measured[key][0]
            )
            scaled[key] = (first, *measured[key][1:])
    return scaled


def judge_measured(measured: Measured, settings: Settings, catalogue: Catalogue, now: datetime) -> Judged:
    """Return by item id the verdict, with what those against each of its baselines were reached from."""
    from pytest_llmbench.judge.consequence import worst

    def decide(case: Case, evidence: Evidence) -> Judgement:
        return decided(evidence, settings, alone=bool(case.run_id))

    def status(judgement: Judgement) -> Status:
        return status_of(judgement, required=False, settings=settings)

    return {
        case.id: (Result(case, *worst([decide(case, one) for one in chosen], status)), chosen)
        for key, of_key in evidence_of(measured, settings, catalogue, now).items()
        for case, chosen in _cases(key, of_key, settings.runs)
    }


def evidence_of(
    measured: Measured, settings: Settings, catalogue: Catalogue, now: datetime
) -> dict[Key, tuple[Evidence, ...]]:
    """Return for each key the evidence against each of its baselines; what is known of the noise uses all of them."""
    from pytest_llmbench.judge.noise import assumed
    from pytest_llmbench.judge.prior import prior

    evidence = {
        key: tuple(
            Evidence(
                baseline=baseline,
                measurements=_current(measurements, settings),
                tolerance=tolerance_of(settings, baseline),
                now=now,
                prior=assumed(settings.assumed_cv),
                max_age=settings.max_age,
                history=tuple(one for one in measurements if _is_before(one.run, settings)),
                repeat_window=settings.repeat_window,
                assumed_cv=settings.assumed_cv,
            )
            for baseline, measurements in zip(catalogue.baselines[key], of_key, strict=True)
        )
        for key, of_key in measured.items()
    }
    known = prior((of_key[0] for of_key in evidence.values()), settings.assumed_cv)
    return {key: tuple(dataclasses.replace(one, prior=known) for one in of_key) for key, of_key in evidence.items()}


def _cases(key: Key, of_key: tuple[Evidence, ...], runs: str) -> Iterator[tuple[Case, tuple[Evidence, ...]]]:
    """Yield one item a configuration, or one a run, for which the older ones are history."""
    found = of_key[0].measurements
    if runs == "newest" or not found:
        yield Case(key.id, key), of_key
        return
    labels = [one.run.found.job_id or "run" for one in found]
    for position, label in enumerate(labels):
        unique = label if labels.count(label) == 1 else f"{label}-{position + 1}"
        chosen = (dataclasses.replace(one, measurements=one.measurements[position:]) for one in of_key)
        yield Case(f"{key.id}-{unique}", key, found[position].run.id), tuple(chosen)
