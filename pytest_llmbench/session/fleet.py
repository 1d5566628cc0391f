"""What only the whole session shows of its results: shifts that are shared, warnings
counted together, changes over the daily runs, scaling efficiencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pytest_llmbench.core.baseline_records import Configuration, Key
from pytest_llmbench.core.codes import JUDGED, NoteCode, Verdict
from pytest_llmbench.core.judgement_records import (
    DailyRun,
    DailyRuns,
    Evidence,
    Judgement,
    LevelChange,
)
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.run_records import Acknowledgement, Measurement, Metric, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.acknowledged import select_covering
from pytest_llmbench.judge.change_points import FEWEST
from pytest_llmbench.judge.estimate import estimate_noise
from pytest_llmbench.judge.level_changes import find_changes, find_flips
from pytest_llmbench.judge.noise import estimate_fleet_correlation
from pytest_llmbench.judge.run_selection import (
    average_current_runs,
    find_quantisation_unit,
    list_daily_runs,
    list_previous_daily_runs,
)
from pytest_llmbench.judge.shared_shift import (
    LEVEL,
    adjust_p_values,
    find_shared_shift,
    measure_shift,
)
from pytest_llmbench.runs.measure.run_metrics import (
    compute_efficiency,
    group_families,
    make_metric,
)
from pytest_llmbench.session.outcomes import JudgedConfigurations

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import PreviousRun
    from pytest_llmbench.core.statements import SharedShift

PreviousByKey: TypeAlias = "Mapping[Key, tuple[PreviousRun, ...]]"
"""For each key the daily runs before the current ones, oldest first."""


def find_fleet_shift(
    judged: JudgedConfigurations, older: PreviousByKey
) -> SharedShift | None:
    """Return the shift that most configurations share since their last runs, or against
    their baselines."""
    shifts = [
        measure_shift(result.judgement, older[key])
        for key, (result, _) in judged.newest.items()
    ]
    return find_shared_shift([shift for shift in shifts if shift is not None])


def with_shift(
    judged: JudgedConfigurations, shift: SharedShift | None
) -> JudgedConfigurations:
    """Return the results with the shared shift, named in each regressed one; it still
    fails."""
    judged = replace(judged, shift=shift)
    # A shift to faster explains no regression.
    if shift is None or shift.shift < 0:
        return judged

    def name_shift(judgement: Judgement, _: Evidence) -> Judgement:
        if judgement.verdict is not Verdict.REGRESSION:
            return judgement
        return judgement.add_statements(shift)

    return judged.map_newest(name_shift)


def list_judged_runs(judgement: Judgement) -> tuple[Measurement, ...]:
    """Return the runs that a verdict rests on; empty where they gave none."""
    return judgement.runs if judgement.verdict in JUDGED else ()


def find_previous_runs(judged: JudgedConfigurations) -> PreviousByKey:
    """Return for each key the daily runs before the current ones, oldest first: all
    where nothing was judged."""
    newest = judged.newest
    return {
        key: list_previous_daily_runs(list_judged_runs(result.judgement), evidence)
        for key, (result, evidence) in newest.items()
    }


def with_warnings(judged: JudgedConfigurations) -> JudgedConfigurations:
    """Return the results, with a note in each that is not red though slower than its
    baseline beyond chance."""
    estimates = {
        key: result.judgement.estimate for key, (result, _) in judged.newest.items()
    }
    adjusted = adjust_p_values(
        {
            key: estimate.p_slower
            for key, estimate in estimates.items()
            if estimate is not None
        }
    )

    def warn(judgement: Judgement, _: Evidence) -> Judgement:
        probability = adjusted.get(judgement.baseline.key, 1.0)
        if (
            probability >= LEVEL
            or judgement.verdict is not Verdict.PASS
            or judgement.measurement is None
        ):
            return judgement
        slower = CodedStatement(
            StatementCode.SLOWER_BEYOND_CHANCE, p=probability, count=len(adjusted)
        )
        note = Note(NoteCode.SLOWER_THAN_BASELINE, slower)
        return judgement.add_notes(note)

    return judged.map_newest(warn)


# --- changes over the daily runs ------------------------------------------------------


def with_changes(
    judged: JudgedConfigurations,
    previous: PreviousByKey,
    acknowledged: Sequence[Acknowledgement],
    now: datetime,
) -> JudgedConfigurations:
    """Return the results, the newest of each configuration with the changes in its
    daily runs, and whether those since the last change flip about its bound."""
    before = {key: list_daily_runs(runs) for key, runs in previous.items()}
    series: dict[Key, DailyRuns] = {
        key: (*before[key], *average_current_runs(list_judged_runs(result.judgement)))
        for key, (result, _) in judged.newest.items()
    }
    correlation = estimate_fleet_correlation(
        np.log(np.array([run.statistic_seconds for run in runs]))
        for runs in series.values()
    )

    def add_changes(judgement: Judgement, evidence: Evidence) -> Judgement:
        key = judgement.baseline.key
        changes: tuple[LevelChange, ...] = ()
        if len(series[key]) >= FEWEST:
            changes = find_changes(
                series[key],
                estimate_noise(evidence, previous[key]),
                select_covering(key.id, acknowledged),
                now.date(),
                quantisation_unit=find_quantisation_unit(
                    (*previous[key], *list_judged_runs(judgement))
                ),
                correlation=correlation,
            )
        since = max((change.first_run for change in changes), default=0)
        return replace(
            judgement,
            daily_runs=tuple([run for run in before[key] if isinstance(run, DailyRun)]),
            changes=changes,
            on_bound=find_flips(series[key], judgement.bound_seconds, since)
            if judgement.verdict in JUDGED
            else None,
        )

    return judged.map_newest(add_changes)


def find_unneeded(
    judged: JudgedConfigurations, acknowledged: Sequence[Acknowledgement]
) -> Iterator[str]:
    """Yield a remark for each acknowledgement that says nothing of any run that was
    judged, or whose change was taken back."""
    from pytest_llmbench.report.wording import phrase

    # Until such an entry goes, the next regression has its room.
    judgements = [result.judgement for result, _ in judged.by_id.values()]
    mentioned = {
        note.acknowledgement for judgement in judgements for note in judgement.notes
    }
    changes = [change for judgement in judgements for change in judgement.changes]
    for entry in acknowledged:
        stand = [change.stands for change in changes if change.acknowledged == entry]
        if entry not in mentioned:
            yield f"{entry.place}: no run needs it ({entry.configuration}): {phrase(entry)}"
        elif stand and not any(stand):
            yield f"{entry.place}: taken back since, it can go ({entry.configuration}): {phrase(entry)}"


# --- the efficiency as a metric -------------------------------------------------------


def compute_efficiencies(
    newest: Mapping[Key, Measurement], configurations: Sequence[Configuration]
) -> Iterator[tuple[Key, Metric]]:
    """Yield the weak-scaling efficiency of each measured member of a family of which
    the smallest size was measured."""
    seconds = {
        key: measurement.statistic_seconds
        for key, measurement in newest.items()
        if measurement.statistic_seconds
    }
    for family in group_families(configurations):
        for key, efficiency in compute_efficiency(
            [member.key for member in family], seconds
        ).items():
            yield key, make_metric("weak_scaling_efficiency", efficiency)


def with_metric(measurement: Measurement, added: Metric) -> Measurement:
    """Return a measurement with one more metric."""
    return replace(measurement, metrics=(*measurement.metrics, added))


def with_efficiencies(
    judged: JudgedConfigurations, configurations: Sequence[Configuration]
) -> JudgedConfigurations:
    """Return the results of runs that were judged one by one, with the efficiencies
    that only all of them tell."""
    # Last of all, since the evidence holds the measurements without it. As for runs on
    # disk, those are compared that are valid, against the first baseline of their
    # configurations.
    measurements = {
        result.case.key: result.judgement.measurement
        for result, evidence in judged.by_id.values()
        if result.judgement.measurement is not None
        and result.judgement.measurement.valid
        and result.judgement.baseline is evidence[0].baseline
    }
    added = dict(compute_efficiencies(measurements, configurations))

    def add_efficiency(
        result: ConfigurationResult, _: tuple[Evidence, ...]
    ) -> ConfigurationResult:
        key = result.case.key
        if key not in added:
            return result
        measurement = with_metric(measurements[key], added[key])
        return replace(
            result, judgement=replace(result.judgement, measurement=measurement)
        )

    return judged.map(add_efficiency)
