"""The order of the stages: ingest (discover, parse, identify), measure, judge; and what follows for the items."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_llmbench.core.garbage_collection import pause_garbage_collection
from pytest_llmbench.core.models import (
    Baseline,
    Case,
    Check,
    Evidence,
    Key,
    Measurement,
    Run,
    StoredRun,
    exclude_same_runs,
)
from pytest_llmbench.ingest.duplicates import mark_past_copies
from pytest_llmbench.pipeline.catalog import (
    PLAUSIBLE,
    Catalog,
    drift_budget_of,
    is_any_improvement,
    relatives_of,
    tolerance_of,
)
from pytest_llmbench.pipeline.find_runs import IngestedRuns, ingest
from pytest_llmbench.pipeline.fleet import (
    comparisons,
    efficiencies,
    older_nights,
    shared_shift,
    with_metric,
    with_shift,
    with_warnings,
)
from pytest_llmbench.pipeline.outcomes import result_of
from pytest_llmbench.pipeline.requirements import apply_requirements
from pytest_llmbench.pipeline.results import Judged, SessionResults
from pytest_llmbench.pipeline.settings import Settings
from pytest_llmbench.pipeline.trends import trend_checks, unneeded, with_changes
from pytest_llmbench.pipeline.unmatched import find_unmatched

if TYPE_CHECKING:
    from pytest_llmbench.ingest.reading.reader import ReadCounts
    from pytest_llmbench.judge.shift import SharedShift

Measured = Mapping[Key, tuple[tuple[Measurement, ...], ...]]
"""For each key and each of its baselines the measurements of its runs, newest first."""


Past = Mapping[Key, Sequence[StoredRun]]
"""For each key the runs that the history knows, oldest first."""

NO_PAST: Past = {}


def gather(
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    tell: Callable[[ReadCounts], None] | None = None,
    past: Past = NO_PAST,
) -> SessionResults:
    """Discover, read and judge everything under the given paths; `tell` is called with how far reading is.

    The `past` only tells the noise.
    """
    with pause_garbage_collection():
        return judge_found(ingest(settings, catalog, now, tell), settings, catalog, now, past)


def judge_found(
    found: IngestedRuns, settings: Settings, catalog: Catalog, now: datetime, past: Past = NO_PAST
) -> SessionResults:
    """Measure and judge runs that were read; those before `settings.since` only tell the noise."""
    runs = mark_past_copies(found.runs, past)
    current = [run for run in runs if not _is_before(run, settings)]
    measured = measure_runs(runs, catalog, now)
    judged = judge_measured(measured, settings, catalog, now, past)
    judged, checks = add_fleet_findings(apply_requirements(judged, catalog.required_runs), settings, catalog, now)
    return SessionResults(
        configurations={name: result for name, (result, _) in judged.items()},
        unmatched=(*find_unmatched(current, settings, now), *found.unreadable),
        runs_found=len(found.runs),
        runs_before_since=len(found.runs) - len(current),
        ignored=found.ignored,
        measurements={key: _current(measurements[0], settings) for key, measurements in measured.items()},
        checks=checks,
        required=frozenset(catalog.required_runs),
        remarks=tuple(unneeded(judged, catalog.acknowledged)) if settings.record is None else (),
    )


def add_fleet_findings(
    judged: Judged, settings: Settings, catalog: Catalog, now: datetime
) -> tuple[Judged, tuple[Check, ...]]:
    """Return the results with what only all of them, and their nights, show; and the items that are about that."""
    older = older_nights(judged)
    shift = shared_shift(judged, older)
    accepts = settings.record is None and not settings.certify  # neither a recording nor a certificate does
    acknowledged = catalog.acknowledged if accepts else ()
    shown = with_changes(with_warnings(with_shift(judged, shift)), older, acknowledged, now)
    return shown, tuple(_checks(shown, shift, settings, catalog))


def _checks(judged: Judged, shift: SharedShift | None, settings: Settings, catalog: Catalog) -> Iterator[Check]:
    for check in _all_checks(judged, shift, settings, catalog):
        yield dataclasses.replace(check, timed=settings.timed)


def _all_checks(judged: Judged, shift: SharedShift | None, settings: Settings, catalog: Catalog) -> Iterator[Check]:
    from pytest_llmbench.pipeline.selftest import selftests

    if settings.record is None:
        yield from comparisons(judged, shift, catalog.configurations, settings)
        yield from trend_checks(judged, settings, catalog.acknowledged)
    if settings.selftest:
        yield from selftests(judged, settings)


def _is_before(run: Run, settings: Settings) -> bool:
    return settings.since is not None and run.started is not None and run.started < settings.since


def _current(measurements: Sequence[Measurement], settings: Settings) -> tuple[Measurement, ...]:
    return tuple(one for one in measurements if not _is_before(one.run, settings))


def measure_runs(runs: Sequence[Run], catalog: Catalog, now: datetime) -> Measured:
    """Return what runs, newest first, measured against the baselines of their configurations."""
    from pytest_llmbench.measure.measurement import measure

    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        if run.identity.key is not None:
            by_key[run.identity.key].append(run)
    measured = {
        key: tuple(tuple(measure(run, baseline, now) for run in by_key[key]) for baseline in baselines)
        for key, baselines in catalog.baselines.items()
    }
    return _with_scaling(measured, catalog)


def _with_scaling(measured: Measured, catalog: Catalog) -> Measured:
    """Add the weak-scaling efficiency to the newest valid run of each member of a family."""
    newest = {key: next((one for one in of_key[0] if one.valid), None) for key, of_key in measured.items()}
    valid = {key: one for key, one in newest.items() if one is not None}
    scaled = dict(measured)
    for key, efficiency in efficiencies(valid, catalog.configurations):
        first = tuple(with_metric(one, efficiency) if one is newest[key] else one for one in measured[key][0])
        scaled[key] = (first, *measured[key][1:])
    return scaled


def judge_measured(
    measured: Measured, settings: Settings, catalog: Catalog, now: datetime, past: Past = NO_PAST
) -> Judged:
    """Return by item id the verdict, with what those against each of its baselines were reached from."""
    return {
        case.id: (result_of(case, chosen, settings), chosen)
        for key, of_key in evidence_of(measured, settings, catalog, now, past).items()
        for case, unmoved in _cases(key, of_key, settings.runs)
        for chosen in (at_acknowledged_level(unmoved, settings, catalog),)
    }


def at_acknowledged_level(of_key: Sequence[Evidence], settings: Settings, catalog: Catalog) -> tuple[Evidence, ...]:
    """Return the evidence against each baseline, at the level that was acknowledged; a recording acknowledges none."""
    from pytest_llmbench.judge.acknowledged import apply_acknowledgements

    known = catalog.acknowledged if settings.record is None else ()
    return tuple(apply_acknowledgements(one, known, certify=settings.certify) for one in of_key)


def evidence_of(
    measured: Measured, settings: Settings, catalog: Catalog, now: datetime, past: Past = NO_PAST
) -> dict[Key, tuple[Evidence, ...]]:
    """Return for each key the evidence against each of its baselines; what is known of the noise uses all of them."""
    from pytest_llmbench.judge.prior import estimate_prior

    evidence = {}
    for key, of_key in measured.items():
        found, recalled = _with_past(of_key, past.get(key, ()))
        pairs = zip(catalog.baselines[key], found, strict=True)
        evidence[key] = tuple(_against(baseline, one, recalled, settings, now) for baseline, one in pairs)
        if any(found) and not is_any_improvement(key, settings, catalog):
            relatives = relatives_of(key, catalog)
            evidence[key] = tuple(
                dataclasses.replace(one, plausible=PLAUSIBLE, relatives=relatives) for one in evidence[key]
            )
    known = estimate_prior((of_key[0] for of_key in evidence.values()), settings.assumed_cv)
    return {key: tuple(dataclasses.replace(one, prior=known) for one in of_key) for key, of_key in evidence.items()}


def _against(
    baseline: Baseline,
    measurements: tuple[Measurement, ...],
    recalled: Sequence[StoredRun],
    settings: Settings,
    now: datetime,
) -> Evidence:
    """Return what is known of a configuration against a baseline, but for what others say of the noise."""
    from pytest_llmbench.judge.nights import Recalled
    from pytest_llmbench.judge.noise import assume_noise

    return Evidence(
        baseline=baseline,
        measurements=_current(measurements, settings),
        tolerance=tolerance_of(settings, baseline),
        now=now,
        prior=assume_noise(settings.assumed_cv),
        max_age=settings.max_age,
        excluded_by_since=tuple(one for one in measurements if _is_before(one.run, settings)),
        repeat_window=settings.repeat_window,
        assumed_cv=settings.assumed_cv,
        drift_budget=drift_budget_of(settings, baseline),
        stored_runs=Recalled([one for one in recalled if one.window == baseline.window]),
    )


def _with_past(
    of_key: tuple[tuple[Measurement, ...], ...], past: Sequence[StoredRun]
) -> tuple[tuple[tuple[Measurement, ...], ...], list[StoredRun]]:
    """Return the runs with the commit of the first session that judged each, which no log has and the history knows;
    and the valid runs that only the history knows."""
    here = frozenset(mark for one in of_key[0] for mark in one.run.same_run_keys)
    jobs = {job_id for job_id, _ in here}
    commits: dict[tuple[str, str | datetime], str] = {
        mark: one.environment["commit"]
        for one in past
        if one.job_id in jobs and "commit" in one.environment
        for mark in ((one.job_id, one.logs), (one.job_id, one.started))
        if mark in here
    }
    found = tuple(tuple(_with_commit(one, commits) for one in runs) for runs in of_key) if commits else of_key
    return found, exclude_same_runs([one for one in past if one.valid], here)


def _with_commit(one: Measurement, commits: Mapping[tuple[str, str | datetime], str]) -> Measurement:
    commit = next((commits[mark] for mark in one.run.same_run_keys if mark in commits), "")
    if not commit:
        return one
    told = dataclasses.replace(one.run.found, environment=(*one.run.found.environment, ("commit", commit)))
    return dataclasses.replace(one, run=dataclasses.replace(one.run, found=told))


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
