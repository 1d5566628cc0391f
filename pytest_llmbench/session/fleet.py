"""Findings that need the results of all configurations.

These are shared shifts, jointly adjusted warnings, changes over the daily runs and
scaling efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec.structs import replace

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
"""The daily runs of each key before the current ones, oldest first."""


def find_fleet_shift(
    judged: JudgedConfigurations, previous: PreviousByKey
) -> SharedShift | None:
    """Return the change of step time that most configurations share, or None.

    A configuration is compared with its previous runs, else with its baseline.
    """
    shifts = [
        measure_shift(result.judgement, previous[key])
        for key, (result, _) in judged.newest.items()
    ]
    return find_shared_shift([shift for shift in shifts if shift is not None])


def with_shift(
    judged: JudgedConfigurations, shift: SharedShift | None
) -> JudgedConfigurations:
    """Add a shared shift to the session, and to the text of each regression.

    The regressions still fail.
    """
    judged = replace(judged, shift=shift)
    # A speed-up does not explain a regression.
    if shift is None or shift.shift < 0:
        return judged

    def add_shift(judgement: Judgement, _: Evidence) -> Judgement:
        if judgement.verdict is not Verdict.REGRESSION:
            return judgement
        return judgement.add_statements(shift)

    return judged.map_newest(add_shift)


def list_judged_runs(judgement: Judgement) -> tuple[Measurement, ...]:
    """Return the runs behind a verdict; empty if nothing was judged."""
    return judgement.runs if judgement.verdict in JUDGED else ()


def find_previous_runs(judged: JudgedConfigurations) -> PreviousByKey:
    """Return the daily runs of each key before the judged runs, oldest first.

    For a key without a judged run, returns all daily runs.
    """
    newest = judged.newest
    return {
        key: list_previous_daily_runs(list_judged_runs(result.judgement), evidence)
        for key, (result, evidence) in newest.items()
    }


def with_warnings(judged: JudgedConfigurations) -> JudgedConfigurations:
    """Add a note to each passed result that is significantly slower than its baseline.

    The p-values are adjusted for the number of configurations.
    """
    estimates = {
        key: result.judgement.estimate for key, (result, _) in judged.newest.items()
    }
    adjusted_p_values = adjust_p_values(
        {
            key: estimate.p_slower
            for key, estimate in estimates.items()
            if estimate is not None
        }
    )

    def warn(judgement: Judgement, _: Evidence) -> Judgement:
        """Add a note to a judgement if its adjusted p-value is below LEVEL."""
        probability = adjusted_p_values.get(judgement.baseline.key, 1.0)
        if (
            probability >= LEVEL
            or judgement.verdict is not Verdict.PASS
            or judgement.measurement is None
        ):
            return judgement
        slower = CodedStatement(
            StatementCode.SLOWER_BEYOND_CHANCE,
            p=probability,
            count=len(adjusted_p_values),
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
    """Add the level changes in each configuration's daily runs to its newest result.

    Also adds the earlier daily runs from the folder (the history adds its own later),
    and flips of the verdict around the limit since the last change.
    """
    earlier_days = {key: list_daily_runs(runs) for key, runs in previous.items()}
    series: dict[Key, DailyRuns] = {
        key: (
            *earlier_days[key],
            *average_current_runs(list_judged_runs(result.judgement)),
        )
        for key, (result, _) in judged.newest.items()
    }
    correlation = estimate_fleet_correlation(
        np.log(np.array([run.statistic_seconds for run in runs]))
        for runs in series.values()
    )

    def add_changes(judgement: Judgement, evidence: Evidence) -> Judgement:
        """Search the daily runs of one configuration for changes and flips."""
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
            # The other daily runs are stored runs.
            daily_runs=tuple(
                [run for run in earlier_days[key] if isinstance(run, DailyRun)]
            ),
            changes=changes,
            on_bound=find_flips(series[key], judgement.bound_seconds, since)
            if judgement.verdict in JUDGED
            else None,
        )

    return judged.map_newest(add_changes)


def find_unneeded_entries(
    judged: JudgedConfigurations, acknowledged: Sequence[Acknowledgement]
) -> Iterator[str]:
    """Yield a remark for each acknowledgement that no run needs, or whose change was
    reverted.

    Unless removed, such an entry would hide the next regression.
    """
    from pytest_llmbench.report.wording import phrase

    judgements = [result.judgement for result, _ in judged.by_id.values()]
    mentioned_entries = {
        note.acknowledgement for judgement in judgements for note in judgement.notes
    }
    changes = [change for judgement in judgements for change in judgement.changes]
    for entry in acknowledged:
        accepted_changes = [
            change for change in changes if change.acknowledged == entry
        ]
        still_slower = any(change.stands for change in accepted_changes)
        if entry not in mentioned_entries:
            yield f"{entry.place}: not needed by any run ({entry.configuration}): {phrase(entry)}"
        elif accepted_changes and not still_slower:
            yield f"{entry.place}: the change was reverted, remove this entry ({entry.configuration}): {phrase(entry)}"


# --- the efficiency as a metric -------------------------------------------------------


def compute_efficiencies(
    newest: Mapping[Key, Measurement], configurations: Sequence[Configuration]
) -> Iterator[tuple[Key, Metric]]:
    """Yield (key, weak-scaling efficiency) of the measured configurations.

    A family consists of configurations that differ in the number of GPUs. Its smallest
    configuration must be measured.
    """
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
    """Return a measurement with an additional metric."""
    return replace(measurement, metrics=(*measurement.metrics, added))


def with_efficiencies(
    judged: JudgedConfigurations, configurations: Sequence[Configuration]
) -> JudgedConfigurations:
    """Add the weak-scaling efficiencies to results that were judged one by one.

    Only valid runs that the first baseline of their configuration judged are compared,
    as in `measure_runs`. Call this last: the evidence still has the measurements without
    the efficiencies.
    """
    measurements = {
        result.case.key: result.judgement.measurement
        for result, evidence in judged.by_id.values()
        if result.judgement.measurement is not None
        and result.judgement.measurement.valid
        and result.judgement.baseline is evidence[0].baseline
    }
    efficiencies = dict(compute_efficiencies(measurements, configurations))

    def add_efficiency(
        result: ConfigurationResult, _: tuple[Evidence, ...]
    ) -> ConfigurationResult:
        """Add the efficiency of one configuration to its measurement."""
        key = result.case.key
        if key not in efficiencies:
            return result
        measurement = with_metric(measurements[key], efficiencies[key])
        return replace(
            result, judgement=replace(result.judgement, measurement=measurement)
        )

    return judged.map(add_efficiency)
