"""What only the whole session shows: shifts that are shared, warnings counted together, scaling and speed-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import (
    JUDGED,
    Check,
    CheckKind,
    ComparedConfiguration,
    Configuration,
    Evidence,
    Finding,
    Judgement,
    Key,
    Measurement,
    Metric,
    Note,
    NoteCode,
    Status,
    Verdict,
)
from pytest_llmbench.pipeline.results import ConfigurationResult, JudgedConfigurations
from pytest_llmbench.pipeline.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.judge.comparison import ComparisonRow, ConfigurationComparison
    from pytest_llmbench.judge.nights import PreviousRun
    from pytest_llmbench.judge.shift import SharedShift

PreviousRuns: TypeAlias = "Mapping[Key, tuple[PreviousRun, ...]]"
"""For each key the nights before tonight, oldest first."""


def compare_configurations(
    judged: JudgedConfigurations, shift: SharedShift | None, configurations: Sequence[Configuration], settings: Settings
) -> Iterator[Check]:
    """Yield the shared shift, and weak scaling and speed-up of the families and pairs of which two were judged.

    They only report unless `settings.scaling` is "fail".
    """
    from pytest_llmbench.judge.comparison import compare_speed_ups, compare_weak_scaling
    from pytest_llmbench.measure.metrics import find_pairs, group_families

    if shift is not None:
        yield _shift_check(shift, settings.scaling)
    judgements = {key: (result.judgement, *result.others) for key, (result, _) in judged.newest.items()}
    compared = [
        *compare_weak_scaling(group_families(configurations), judgements),
        *compare_speed_ups(find_pairs(configurations), judgements),
    ]
    for comparison in compared:
        if comparison.verdict is not Verdict.MISSING:
            yield _comparison_check(comparison, settings.scaling)


def _shift_check(shift: SharedShift, scaling: str) -> Check:
    """Return the item that names a shift that most configurations share; each regressed one fails on its own."""
    slower = shift.shift > 0
    return Check(
        kind=CheckKind.CLUSTER_CHANGE,
        id="slower" if slower else "faster",
        status=Status.FAILED if slower and scaling == "fail" else Status.PASSED,
        verdict=Finding.SLOWER if slower else Finding.FASTER,
        text=shift.text,
        lines=(f"  {formatting.join_first([key.id for key in shift.configurations])}",),
        decides=scaling == "fail",
        about=shift.configurations,
    )


def _comparison_check(comparison: ConfigurationComparison, scaling: str) -> Check:
    failed = scaling == "fail" and comparison.verdict is Verdict.REGRESSION
    return Check(
        kind=comparison.kind,
        id=comparison.id,
        status=Status.FAILED if failed else Status.PASSED,
        verdict=comparison.verdict,
        text=comparison.text,
        lines=tuple(map(_row, comparison.rows)),
        decides=scaling == "fail",
        members=comparison.members,
        about=comparison.members,
        compared=tuple(map(_list_compared, comparison.rows)),
    )


def _list_compared(row: ComparisonRow) -> ComparedConfiguration:
    return ComparedConfiguration(row.key, row.reference, row.baseline, row.measured, row.documented, row.verdict)


def _row(row: ComparisonRow) -> str:
    name = f"{row.key.dtype} on {row.key.gpus} GPUs"
    low, high = (formatting.format_difference(1 + part) for part in (row.low, row.high))
    interval = f"{formatting.format_difference(1 + row.difference)} ({low} to {high})"
    return f"  {name:<18} {row.measured:6.3f}, {row.baseline} {row.documented:6.3f}: {interval:<27} {row.verdict}"


def find_fleet_shift(judged: JudgedConfigurations, older: PreviousRuns) -> SharedShift | None:
    """Return the shift that most configurations share since their last runs, or against their baselines."""
    from pytest_llmbench.judge.shift import find_shared_shift, measure_shift

    shifts = [measure_shift(result.judgement, older[key]) for key, (result, _) in judged.newest.items()]
    return find_shared_shift([shift for shift in shifts if shift is not None])


def with_shift(judged: JudgedConfigurations, shift: SharedShift | None) -> JudgedConfigurations:
    """Return the results with the shared shift named in each regressed one; it still fails."""
    if shift is None or shift.shift < 0:
        return judged

    def name_shift(judgement: Judgement, _: Evidence) -> Judgement:
        if judgement.verdict is not Verdict.REGRESSION:
            return judgement
        return replace(judgement, text=f"{judgement.text}; {shift.text}")

    return judged.map_newest(name_shift)


def list_judged_runs(judgement: Judgement) -> tuple[Measurement, ...]:
    """Return the runs that a verdict rests on; empty where they gave none."""
    return judgement.runs if judgement.verdict in JUDGED else ()


def find_previous_runs(judged: JudgedConfigurations) -> PreviousRuns:
    """Return for each key its nights before tonight, oldest first: all of them where nothing was judged."""
    from pytest_llmbench.judge.nights import previous_daily_runs

    newest = judged.newest
    return {
        key: previous_daily_runs(list_judged_runs(result.judgement), evidence)
        for key, (result, evidence) in newest.items()
    }


def with_warnings(judged: JudgedConfigurations) -> JudgedConfigurations:
    """Return the results, with a note in each that is not red though slower than its baseline beyond chance."""
    from pytest_llmbench.judge.shift import LEVEL, adjust_p_values

    estimates = {key: result.judgement.estimate for key, (result, _) in judged.newest.items()}
    adjusted = adjust_p_values({key: estimate.p_slower for key, estimate in estimates.items() if estimate is not None})

    def warn(judgement: Judgement, _: Evidence) -> Judgement:
        probability = adjusted.get(judgement.baseline.key, 1.0)
        if probability >= LEVEL or judgement.verdict is not Verdict.PASS or judgement.measurement is None:
            return judgement
        chance = f"(p = {probability:.2g}, adjusted for {len(adjusted)})"
        note = Note(
            NoteCode.SLOWER_THAN_BASELINE, f"slower than its baseline beyond chance, within the tolerance {chance}"
        )
        return replace(judgement, notes=(*judgement.notes, note))

    return judged.map_newest(warn)


# --- the efficiency as a metric ---------------------------------------------------------------------------


def compute_efficiencies(
    newest: Mapping[Key, Measurement], configurations: Sequence[Configuration]
) -> Iterator[tuple[Key, Metric]]:
    """Yield the weak-scaling efficiency of each measured member of a family of which the smallest size was measured."""
    from pytest_llmbench.measure.metrics import compute_efficiency, group_families, make_metric

    seconds = {
        key: measurement.statistic_seconds for key, measurement in newest.items() if measurement.statistic_seconds
    }
    for family in group_families(configurations):
        for key, efficiency in compute_efficiency([member.key for member in family], seconds).items():
            yield key, make_metric("weak_scaling_efficiency", efficiency)


def with_metric(measurement: Measurement, added: Metric) -> Measurement:
    """Return a measurement with one more metric."""
    return replace(measurement, metrics=(*measurement.metrics, added))


def with_efficiencies(judged: JudgedConfigurations, configurations: Sequence[Configuration]) -> JudgedConfigurations:
    """Return the results of runs that were judged one by one, with the efficiencies that only all of them tell.

    Last of all, since the evidence holds the measurements without it. As for runs on disk, those are compared that are
    valid, against the first baseline of their configurations.
    """
    measurements = {
        result.case.key: result.judgement.measurement
        for result, evidence in judged.by_id.values()
        if result.judgement.measurement is not None
        and result.judgement.measurement.valid
        and result.judgement.baseline is evidence[0].baseline
    }
    added = dict(compute_efficiencies(measurements, configurations))

    def add_efficiency(result: ConfigurationResult, _: tuple[Evidence, ...]) -> ConfigurationResult:
        key = result.case.key
        if key not in added:
            return result
        measurement = with_metric(measurements[key], added[key])
        return replace(result, judgement=replace(result.judgement, measurement=measurement))

    return judged.map(add_efficiency)
