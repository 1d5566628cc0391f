"""What only the whole session shows: shifts that are shared, warnings counted together, scaling and speed-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import (
    JUDGED,
    Check,
    ComparedConfiguration,
    Configuration,
    Evidence,
    Judgement,
    Key,
    Measurement,
    Metric,
    Note,
    NoteCode,
    Status,
    Verdict,
)
from pytest_llmbench.pipeline.results import ConfigurationResult, Judged, deciding
from pytest_llmbench.pipeline.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.judge.comparison import ComparisonRow, ConfigurationComparison
    from pytest_llmbench.judge.nights import EarlierNights
    from pytest_llmbench.judge.shift import SharedShift

Older: TypeAlias = "Mapping[Key, EarlierNights]"
"""For each key the nights before tonight, oldest first."""


def comparisons(
    judged: Judged, shift: SharedShift | None, configurations: Sequence[Configuration], settings: Settings
) -> Iterator[Check]:
    """Yield the shared shift, and weak scaling and speed-up of the families and pairs of which two were judged.

    They only report unless `settings.scaling` is "fail".
    """
    from pytest_llmbench.judge.scaling import compare_speed_ups, compare_weak_scaling
    from pytest_llmbench.measure.scaling import find_pairs, group_families

    if shift is not None:
        yield _shift_check(shift, settings.scaling)
    judgements = {key: (result.judgement, *result.others) for key, (result, _) in newest_of(judged).items()}
    found = [
        *compare_weak_scaling(group_families(configurations), judgements),
        *compare_speed_ups(find_pairs(configurations), judgements),
    ]
    for comparison in found:
        if comparison.verdict is not Verdict.MISSING:
            yield _comparison_check(comparison, settings.scaling)


def _shift_check(shift: SharedShift, scaling: str) -> Check:
    """Return the item that names a shift that most configurations share; each regressed one fails on its own."""
    slower = shift.shift > 0
    return Check(
        kind="cluster-change",
        id="slower" if slower else "faster",
        status=Status.FAILED if slower and scaling == "fail" else Status.PASSED,
        verdict="SLOWER" if slower else "FASTER",
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
        verdict=str(comparison.verdict),
        text=comparison.text,
        lines=tuple(map(_row, comparison.rows)),
        decides=scaling == "fail",
        members=comparison.members,
        about=comparison.members,
        compared=tuple(map(_compared, comparison.rows)),
    )


def _compared(row: ComparisonRow) -> ComparedConfiguration:
    return ComparedConfiguration(row.key, row.reference, row.baseline, row.measured, row.documented, row.verdict)


def _row(row: ComparisonRow) -> str:
    name = f"{row.key.dtype} on {row.key.gpus} GPUs"
    low, high = (formatting.format_difference(1 + part) for part in (row.low, row.high))
    interval = f"{formatting.format_difference(1 + row.difference)} ({low} to {high})"
    return f"  {name:<18} {row.measured:6.3f}, {row.baseline} {row.documented:6.3f}: {interval:<27} {row.verdict}"


def shared_shift(judged: Judged, older: Older) -> SharedShift | None:
    """Return the shift that most configurations share since their last runs, or against their baselines."""
    from pytest_llmbench.judge.shift import find_shared_shift, measure_shift

    told = [measure_shift(result.judgement, older[key]) for key, (result, _) in newest_of(judged).items()]
    return find_shared_shift([one for one in told if one is not None])


def with_shift(judged: Judged, shift: SharedShift | None) -> Judged:
    """Return the results with the shared shift named in each regressed one; it still fails."""
    if shift is None or shift.shift < 0:
        return judged
    newest = {result.case.id for result, _ in newest_of(judged).values()}
    return {
        name: (_named(result, shift) if name in newest else result, evidence)
        for name, (result, evidence) in judged.items()
    }


def _named(result: ConfigurationResult, shift: SharedShift) -> ConfigurationResult:
    judgement = result.judgement
    if judgement.verdict is not Verdict.REGRESSION:
        return result
    return replace(result, judgement=replace(judgement, text=f"{judgement.text}; {shift.text}"))


def newest_of(judged: Judged) -> dict[Key, tuple[ConfigurationResult, Evidence]]:
    """Return for each key the result of its newest run, and what its deciding verdict was reached from."""
    newest: dict[Key, tuple[ConfigurationResult, Evidence]] = {}
    for result, evidence in judged.values():
        newest.setdefault(result.case.key, (result, deciding(result, evidence)))
    return newest


def judged_runs(judgement: Judgement) -> tuple[Measurement, ...]:
    """Return the runs that a verdict rests on; empty where they gave none."""
    return judgement.runs if judgement.verdict in JUDGED else ()


def older_nights(judged: Judged) -> Older:
    """Return for each key its nights before tonight, oldest first: all of them where nothing was judged."""
    from pytest_llmbench.judge.nights import previous_daily_runs

    newest = newest_of(judged)
    return {
        key: previous_daily_runs(judged_runs(result.judgement), evidence) for key, (result, evidence) in newest.items()
    }


def with_warnings(judged: Judged) -> Judged:
    """Return the results, with a note in each that is not red though slower than its baseline beyond chance."""
    from pytest_llmbench.judge.shift import LEVEL, adjust_p_values

    newest = {result.case.id: result.judgement.estimate for result, _ in newest_of(judged).values()}
    adjusted = adjust_p_values({name: one.p_slower for name, one in newest.items() if one is not None})
    return {
        name: (_warned(result, adjusted[name], len(adjusted)), evidence)
        if adjusted.get(name, 1.0) < LEVEL
        else (result, evidence)
        for name, (result, evidence) in judged.items()
    }


def _warned(result: ConfigurationResult, probability: float, of: int) -> ConfigurationResult:
    judgement = result.judgement
    if judgement.verdict is not Verdict.PASS or judgement.measurement is None:
        return result
    text = f"slower than its baseline beyond chance, within the tolerance (p = {probability:.2g}, adjusted for {of})"
    notes = (*judgement.notes, Note(NoteCode.SLOWER_THAN_BASELINE, text))
    return replace(result, judgement=replace(judgement, notes=notes))


# --- the efficiency as a metric ---------------------------------------------------------------------------


def efficiencies(
    newest: Mapping[Key, Measurement], configurations: Sequence[Configuration]
) -> Iterator[tuple[Key, Metric]]:
    """Yield the weak-scaling efficiency of each measured member of a family of which the smallest size was measured."""
    from pytest_llmbench.measure.metrics import make_metric
    from pytest_llmbench.measure.scaling import compute_efficiency, group_families

    seconds = {key: one.statistic_seconds for key, one in newest.items() if one.statistic_seconds}
    for family in group_families(configurations):
        for key, efficiency in compute_efficiency([member.key for member in family], seconds).items():
            yield key, make_metric("weak_scaling_efficiency", efficiency)


def with_metric(measurement: Measurement, added: Metric) -> Measurement:
    """Return a measurement with one more metric."""
    return replace(measurement, metrics=(*measurement.metrics, added))


def with_efficiencies(judged: Judged, configurations: Sequence[Configuration]) -> dict[str, ConfigurationResult]:
    """Return the results of runs that were judged one by one, with the efficiencies that only all of them tell.

    Last of all, since the evidence holds the measurements without it. As for runs on disk, those are compared that are
    valid, against the first baseline of their configurations.
    """
    found = {
        result.case.key: (result, result.judgement.measurement)
        for result, evidence in judged.values()
        if result.judgement.measurement is not None
        and result.judgement.measurement.valid
        and result.judgement.baseline is evidence[0].baseline
    }
    results = {name: result for name, (result, _) in judged.items()}
    for key, efficiency in efficiencies({key: one for key, (_, one) in found.items()}, configurations):
        result, measurement = found[key]
        judgement = replace(result.judgement, measurement=with_metric(measurement, efficiency))
        results[result.case.id] = replace(result, judgement=judgement)
    return results
