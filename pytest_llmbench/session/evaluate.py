"""The pipeline of a session: ingest (discover, parse, identify), measure, judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Evidence
from pytest_llmbench.core.outcome_records import Case, Check, Silence
from pytest_llmbench.core.run_records import (
    Measurement,
    Run,
    RunKeys,
    StoredRun,
    exclude_same_runs,
)
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.judge.acknowledged import accept_reasons, apply_acknowledgements
from pytest_llmbench.judge.estimate import estimate_prior
from pytest_llmbench.judge.noise import assume_noise
from pytest_llmbench.judge.run_selection import list_before_newest, list_starts
from pytest_llmbench.judge.silence import find_silences
from pytest_llmbench.runs.duplicates import mark_past_duplicates
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.older_runs import measure_older
from pytest_llmbench.session.absences import select_citable
from pytest_llmbench.session.catalog import (
    PLAUSIBLE,
    Catalog,
    add_tables,
    find_contradiction,
    find_relatives,
    may_be_any_faster,
    select_drift_budget,
    select_tolerance,
)
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.fleet import (
    compute_efficiencies,
    find_fleet_shift,
    find_previous_runs,
    find_unneeded_entries,
    with_changes,
    with_metric,
    with_shift,
    with_warnings,
)
from pytest_llmbench.session.last_good_runs import with_last_good
from pytest_llmbench.session.outcomes import (
    JudgedConfigurations,
    SessionResults,
    apply_requirements,
    judge_case,
)
from pytest_llmbench.session.session_checks import check_anything_judged, make_checks
from pytest_llmbench.session.settings import DEFAULT_TOLERANCE, Settings
from pytest_llmbench.session.slow_rank_notes import with_slow_ranks
from pytest_llmbench.session.unmatched import find_unmatched

if TYPE_CHECKING:
    from pytest_llmbench.logs.reading.run_reader import ReadCounts
    from pytest_llmbench.session.session_history import SessionHistory

Measured = Mapping[Key, tuple[tuple[Measurement, ...], ...]]
"""The measurements of each key, one tuple per baseline, newest first."""


Past = Mapping[Key, Sequence[StoredRun]]
"""The stored runs of each key, oldest first."""

NO_PAST: Past = {}

TRIAL_REASONS = (Reason.VARIANT, Reason.PURPOSE_MISSED)
"""Reasons of stored verdicts on runs of an A/B."""


def gather(
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    tell: Callable[[ReadCounts], None] | None,
    history: SessionHistory | None,
) -> SessionResults:
    """Discover, read and judge all runs under the given paths.

    `tell` is called with the progress of reading. If runs match shipped tables,
    `history` is read again for the configurations of these runs.
    """
    # Thousands of runs make many long-lived objects without cycles, which the collector
    # would traverse in vain.
    with pause_garbage_collection():
        if settings.record is not None:
            return _evaluate_recorded(settings.record, settings, catalog, now, tell)
        ingested = ingest(settings, catalog, now, tell)
        if ingested.tables and history is not None:
            keys = {run.identity.key for run in ingested.runs}
            unread_keys = keys.difference(catalog.baselines)
            history.read(key for key in unread_keys if key is not None)
        past = history.past if history else NO_PAST
        return evaluate_runs(ingested, settings, catalog, now, past)


def _evaluate_recorded(
    directory: Path,
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    tell: Callable[[ReadCounts], None] | None,
) -> SessionResults:
    """Evaluate the runs for a recording; unmatched runs get drafted baselines.

    `directory` is the folder of the recorded baselines.
    """
    from pytest_llmbench.session.draft_baselines import add_recorded, draft_baselines

    catalog = add_recorded(catalog, directory)
    ingested = ingest(settings, catalog, now, tell)
    drafts = draft_baselines(ingested.runs, settings, catalog)
    with_drafts = structs.replace(ingested, runs=drafts.assign(ingested.runs))
    results = evaluate_runs(with_drafts, settings, drafts.add_to(catalog), now)
    return structs.replace(results, remarks=drafts.lines, drafted=drafts.recipes)


def evaluate_runs(
    ingested: IngestedRuns,
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    past: Past = NO_PAST,
) -> SessionResults:
    """Measure and judge the ingested runs.

    Runs before `settings.since` are only used to estimate noise. Each configuration is
    first measured and judged alone. The results are then checked against suite files
    and compared with each other. `past` are the stored runs.
    """
    keys = (run.identity.key for run in ingested.runs)
    catalog = add_tables(catalog, ingested.tables, settings).select(keys, settings)
    # The copy of a run may be on disk while the run itself is only in the history.
    runs = mark_past_duplicates(ingested.runs, past)
    current = [run for run in runs if not _is_before_since(run, settings)]
    # A recording needs all metrics of each run, not only those of the newest run.
    judged_runs = settings.runs if settings.record is None else "each"
    measured = measure_runs(runs, catalog, now, judged_runs, settings)
    judged = judge_measured(measured, settings, catalog, now, past)
    judged = apply_requirements(judged, catalog.required_runs)
    judged, checks = add_fleet_findings(judged, settings, catalog, now, past)
    return SessionResults(
        configurations=judged.results,
        unmatched=(*find_unmatched(current, settings, now), *ingested.unreadable),
        runs_found=len(ingested.runs),
        runs_before_since=len(ingested.runs) - len(current),
        ignored=ingested.ignored,
        measurements=_select_kept(judged, measured, settings),
        checks=checks,
        required=frozenset(catalog.required_runs),
        remarks=tuple(_list_remarks(judged, settings, catalog))
        if settings.record is None
        else (),
        tables=ingested.tables,
        keys_only_in_tables=catalog.keys_only_in_tables,
        user_keys=catalog.user_keys,
        silences=_find_silences(judged, now),
        newer_stored=_find_newer_stored(judged, measured, ingested.copies, past),
        hidden=ingested.hidden,
    )


def _select_kept(
    judged: JudgedConfigurations, measured: Measured, settings: Settings
) -> dict[Key, tuple[Measurement, ...]]:
    """Return the runs that are still needed after the judgement, newest first.

    A recording needs all of them. Otherwise cautions name runs near the judged one,
    which is the only one of its configuration unless each run is judged.
    """
    runs = {
        key: _drop_before_since(per_baseline[0], settings)
        for key, per_baseline in measured.items()
    }
    if settings.record is not None or settings.runs != "newest":
        return runs
    return {
        key: select_citable(result, runs[key])
        for key, (result, _) in judged.newest.items()
    }


def _find_silences(judged: JudgedConfigurations, now: datetime) -> tuple[Silence, ...]:
    """Find the configurations that did not run when they were due."""
    return find_silences(
        {key: list_starts(evidence) for key, (_, evidence) in judged.newest.items()},
        now,
    )


def _find_newer_stored(
    judged: JudgedConfigurations,
    measured: Measured,
    copies: Sequence[tuple[Run, Run]],
    past: Past,
) -> dict[Key, StoredRun]:
    """Return the newest stored run of each key, if newer than the judged run.

    Stored runs whose logs were read or dropped as copies are ignored.
    """
    newest_stored = {}
    for key, (result, _) in judged.newest.items():
        judged_run = result.judgement.measurement
        if judged_run is None:
            continue
        later_runs = _list_later(judged_run.run, past.get(key, ()))
        if later_runs:
            dropped_copies = [copy for copy, _ in copies if copy.identity.key == key]
            # The runs are the same for each baseline.
            measured_runs = [measurement.run for measurement in measured[key][0]]
            read_keys = _list_run_keys([*dropped_copies, *measured_runs])
            only_stored = exclude_same_runs(later_runs, read_keys)
            if only_stored:
                newest_stored[key] = only_stored[0]
    return newest_stored


def _list_later(run: Run, past: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the stored runs that started after `run`, newest first, valid or not.

    Ignores runs of an A/B test and other logs of the job of `run`, which may have a
    later start.
    """
    started, job_id = run.started, run.found.job_id
    if started is None:
        return []
    later_runs = takewhile(lambda stored: stored.started > started, reversed(past))
    return [
        stored
        for stored in later_runs
        if stored.reason not in TRIAL_REASONS
        and (not job_id or stored.job_id != job_id)
    ]


def _list_remarks(
    judged: JudgedConfigurations, settings: Settings, catalog: Catalog
) -> Iterator[str]:
    """Yield lines on unneeded acknowledgements and on tables without runs."""
    yield from find_unneeded_entries(judged, catalog.acknowledged)
    if not settings.requested:  # a selection by name needs no remark on other tables
        yield from filter(None, [catalog.describe_unrequested()])


def add_fleet_findings(
    judged: JudgedConfigurations,
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    past: Past,
) -> tuple[JudgedConfigurations, tuple[Check, ...]]:
    """Add the findings that need the results of all configurations.

    Returns the results with these findings, and the checks of the session.
    """
    previous = find_previous_runs(judged)
    judged = with_warnings(with_shift(judged, find_fleet_shift(judged, previous)))
    # Acknowledged changes do not apply to a recording, which defines a new level, or to
    # a certificate, which refers to the published level.
    applies = settings.record is None and not settings.certify
    judged = with_changes(
        judged, previous, catalog.acknowledged if applies else (), now
    )
    if settings.record is None:
        judged = with_slow_ranks(with_last_good(judged, settings, past), settings)
    list_checks = make_checks if settings.record is None else check_anything_judged
    return judged, tuple(list_checks(judged, settings, catalog))


def _is_before_since(run: Run, settings: Settings) -> bool:
    return (
        settings.since is not None
        and run.started is not None
        and run.started < settings.since
    )


def _drop_before_since(
    measurements: Sequence[Measurement], settings: Settings
) -> tuple[Measurement, ...]:
    return tuple(
        measurement
        for measurement in measurements
        if not _is_before_since(measurement.run, settings)
    )


def measure_runs(
    runs: Sequence[Run],
    catalog: Catalog,
    now: datetime,
    judged: str = "newest",
    settings: Settings | None = None,
) -> Measured:
    """Measure runs, newest first, against all baselines of their configurations.

    If `judged` is "newest", runs older than the newest run that is not excluded are
    measured for their step time only. Without `settings`, the default tolerance applies. Also adds
    the weak-scaling efficiencies.
    """
    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        if run.identity.key is not None:
            by_key[run.identity.key].append(run)
    measured = {
        key: tuple(
            tuple(_measure_against(by_key[key], baseline, now, judged, settings))
            for baseline in baselines
        )
        for key, baselines in catalog.baselines.items()
    }
    return _with_efficiencies(measured, catalog)


def _measure_against(
    runs: Sequence[Run],
    baseline: Baseline,
    now: datetime,
    judged: str,
    settings: Settings | None,
) -> Iterator[Measurement]:
    """Measure runs, newest first, against one baseline (see `measure_runs`)."""
    tolerance = (
        DEFAULT_TOLERANCE.fraction
        if settings is None
        else select_tolerance(settings, baseline).factor - 1
    )
    for position, run in enumerate(runs):
        measurement = measure(run, baseline, now, tolerance=tolerance)
        yield measurement
        # The newest run that is not excluded is the judged one.
        if judged == "newest" and measurement.excluded is None:
            yield from measure_older(runs[position + 1 :], baseline, now)
            return


def _with_efficiencies(measured: Measured, catalog: Catalog) -> Measured:
    """Add the weak-scaling efficiency to the newest valid run of each key.

    Only runs against the first baseline of a key are compared and changed.
    """
    newest = {
        key: next((run for run in runs[0] if run.valid), None)
        for key, runs in measured.items()
    }
    valid = {key: run for key, run in newest.items() if run is not None}
    with_efficiency = dict(measured)
    for key, efficiency in compute_efficiencies(valid, catalog.configurations):
        first_baseline, *other_baselines = measured[key]
        with_added = tuple(
            with_metric(run, efficiency) if run is newest[key] else run
            for run in first_baseline
        )
        with_efficiency[key] = (with_added, *other_baselines)
    return with_efficiency


def judge_measured(
    measured: Measured,
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    past: Past = NO_PAST,
) -> JudgedConfigurations:
    """Judge all configurations.

    Returns the results by item id, each with the evidence for each baseline.
    """
    by_id = {}
    evidence_by_key = collect_evidence(measured, settings, catalog, now, past)
    for key, key_evidence in evidence_by_key.items():
        for case, case_evidence in _list_cases(key, key_evidence, settings.runs):
            evidence = apply_acknowledged_levels(case_evidence, settings, catalog)
            # The evidence is kept for the later comparisons between configurations.
            by_id[case.id] = (judge_case(case, evidence), evidence)
    return JudgedConfigurations(by_id)


def collect_evidence(
    measured: Measured,
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    past: Past,
) -> dict[Key, tuple[Evidence, ...]]:
    """Collect the evidence for each baseline of each key.

    The noise prior is estimated from the earlier runs of all configurations.
    """
    evidence_by_key = {}
    for key, without_commits in measured.items():
        stored_runs = past.get(key, ())
        per_baseline = _add_stored_commits(without_commits, stored_runs)
        stored = _list_only_stored(without_commits, stored_runs)
        evidence = [
            _build_evidence(baseline, measurements, stored, settings, now)
            for baseline, measurements in zip(
                catalog.baselines[key], per_baseline, strict=True
            )
        ]
        has_runs = any(per_baseline)
        if has_runs:  # without a run there is nothing to doubt
            evidence = [
                _add_doubts(baseline_evidence, settings, catalog)
                for baseline_evidence in evidence
            ]
        evidence_by_key[key] = tuple(evidence)
    # The prior pools all configurations, since one alone has too few runs.
    earlier_runs = (
        (first.baseline, list_before_newest(first))
        for first, *_ in evidence_by_key.values()
    )
    prior = estimate_prior(earlier_runs, settings.assumed_cv)
    return {
        key: tuple(
            structs.replace(baseline_evidence, prior=prior)
            for baseline_evidence in evidence
        )
        for key, evidence in evidence_by_key.items()
    }


def _add_doubts(evidence: Evidence, settings: Settings, catalog: Catalog) -> Evidence:
    """Add what can make a verdict doubtful.

    This is a contradiction in the baseline. Unless any speed-up is allowed, the largest
    plausible speed-up is added, with the step times of related configurations: a run
    may be faster because it is another configuration.
    """
    key, baseline = evidence.baseline.key, evidence.baseline
    with_contradiction = structs.replace(
        evidence, contradiction=find_contradiction(baseline, catalog)
    )
    if may_be_any_faster(key, settings, catalog):
        return with_contradiction
    relatives = find_relatives(key, catalog)
    return structs.replace(with_contradiction, plausible=PLAUSIBLE, relatives=relatives)


def apply_acknowledged_levels(
    per_baseline: Sequence[Evidence], settings: Settings, catalog: Catalog
) -> tuple[Evidence, ...]:
    """Move each baseline to its acknowledged level and drop accepted problems.

    A recording ignores acknowledgements.
    """
    entries = catalog.acknowledged if settings.record is None else ()
    return tuple(
        apply_acknowledgements(accept_reasons(baseline_evidence, entries), entries)
        for baseline_evidence in per_baseline
    )


def _build_evidence(
    baseline: Baseline,
    measurements: tuple[Measurement, ...],
    stored: Sequence[StoredRun],
    settings: Settings,
    now: datetime,
) -> Evidence:
    """Build the evidence for one baseline.

    The prior is the assumed noise, until `collect_evidence` has estimated a better one.
    """
    return Evidence(
        baseline=baseline,
        measurements=_drop_before_since(measurements, settings),
        tolerance=select_tolerance(settings, baseline),
        now=now,
        prior=assume_noise(settings.assumed_cv),
        max_age=settings.max_age,
        excluded_by_since=tuple(
            measurement
            for measurement in measurements
            if _is_before_since(measurement.run, settings)
        ),
        repeat_window=settings.repeat_window,
        assumed_cv=settings.assumed_cv,
        drift_budget=select_drift_budget(settings, baseline),
        stored_runs=tuple(run for run in stored if run.window == baseline.window),
        rules=settings.rules,
    )


def _list_only_stored(
    per_baseline: tuple[tuple[Measurement, ...], ...], past: Sequence[StoredRun]
) -> list[StoredRun]:
    """Return the valid stored runs that are not among the measured runs."""
    keys = _list_run_keys(measurement.run for measurement in per_baseline[0])
    return exclude_same_runs([stored for stored in past if stored.valid], keys)


def _add_stored_commits(
    per_baseline: tuple[tuple[Measurement, ...], ...], past: Sequence[StoredRun]
) -> tuple[tuple[Measurement, ...], ...]:
    """Add the commit of each run from the history, since logs do not contain it.

    The commit is that of the first session that judged the run.
    """
    keys = _list_run_keys(measurement.run for measurement in per_baseline[0])
    # Comparing the job ids first avoids computing the keys of most stored runs.
    jobs = {job_id for job_id, _ in keys}
    commits: dict[tuple[str, str | datetime], str] = {}
    for stored in past:
        if stored.job_id in jobs and "commit" in stored.environment:
            commit = stored.environment["commit"]
            commits.update(dict.fromkeys(stored.same_run_keys & keys, commit))
    if not commits:
        return per_baseline
    return tuple(
        tuple(_with_commit(run, commits) for run in runs) for runs in per_baseline
    )


def _list_run_keys(runs: Iterable[Run]) -> RunKeys:
    """Return the keys by which runs are recognised in the history."""
    return frozenset(key for run in runs for key in run.same_run_keys)


def _with_commit(
    measurement: Measurement, commits: Mapping[tuple[str, str | datetime], str]
) -> Measurement:
    """Add the stored commit of a run to its environment, if it is known."""
    run = measurement.run
    commit = next(
        (commits[run_key] for run_key in run.same_run_keys if run_key in commits), ""
    )
    if not commit:
        return measurement
    files = structs.replace(
        run.found, environment=(*run.found.environment, ("commit", commit))
    )
    return structs.replace(measurement, run=structs.replace(run, found=files))


def _list_cases(
    key: Key, per_baseline: tuple[Evidence, ...], runs: str
) -> Iterator[tuple[Case, tuple[Evidence, ...]]]:
    """Yield each case of a configuration with its evidence for each baseline.

    With `runs` "newest", there is one case. Otherwise each run is a case, whose evidence
    contains the run and all older ones.
    """
    measurements = per_baseline[0].measurements
    if runs == "newest" or not measurements:
        yield Case(key.id, key), per_baseline
        return
    labels = [measurement.run.found.job_id or "run" for measurement in measurements]
    for position, label in enumerate(labels):
        # Several runs may have the same job id or no job id, but ids must be unique.
        unique = label if labels.count(label) == 1 else f"{label}-{position + 1}"
        case_evidence = tuple(
            structs.replace(
                baseline_evidence,
                measurements=baseline_evidence.measurements[position:],
            )
            for baseline_evidence in per_baseline
        )
        yield (
            Case(f"{key.id}-{unique}", key, measurements[position].run.id),
            case_evidence,
        )
