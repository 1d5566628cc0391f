"""Records of a judgement and of the daily runs before the judged run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline, Recording
from pytest_llmbench.core.judgement_records import (
    ComparedFacts,
    DailyRun,
    Estimate,
    Judgement,
    LastGoodRun,
    LevelChange,
)
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.run_records import (
    Acknowledgement,
    Measurement,
    Metric,
    Note,
    Problem,
    StoredRun,
)
from pytest_llmbench.core.tolerance import find_reference
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.job_text import pick
from pytest_llmbench.report.outcome_documents import (
    MOST_DAILY_RUNS,
    ComparedFactsOfRuns,
    ComparedNodes,
    DailyRuns,
    FirstRecorded,
    ReportedAcknowledgement,
    ReportedBaseline,
    ReportedChange,
    ReportedDay,
    ReportedEstimate,
    ReportedJudgement,
    ReportedLastGood,
    ReportedMetric,
    ReportedNoise,
    ReportedNote,
    ReportedRecording,
    ReportedRun,
    ReportedWindow,
    TimedWindow,
)
from pytest_llmbench.report.wording import phrase, phrase_all

NOT_JUDGED = "NOT_JUDGED"
"""The verdict of a daily run from --llmb-logs that was only used as evidence."""


def describe(judgement: Judgement, now: datetime, directory: Path) -> ReportedJudgement:
    """Convert a judgement into its record; paths in `directory` become relative to it."""
    baseline, window = judgement.baseline, judgement.baseline.window
    measured = _describe_measurement(judgement.measurement, now, directory)
    return ReportedJudgement(
        verdict=str(judgement.verdict),
        reason=str(judgement.reason),
        text=phrase(judgement),
        expected_seconds=formatting.make_finite(baseline.step_seconds),
        bound_seconds=formatting.make_finite(judgement.bound_seconds),
        tolerance=str(judgement.tolerance),
        tolerance_source=str(judgement.tolerance.source),
        log_difference=judgement.log_difference,
        estimate=_describe_estimate(judgement.estimate),
        repeats=tuple(repeat.run.id for repeat in judgement.repeats),
        meets_point=judgement.meets_point,
        window=ReportedWindow(
            **pick(window, "first", "last", "statistic"), text=str(window)
        ),
        timed=str(baseline.timed_by),
        baseline=_describe_baseline(baseline),
        notes=tuple(map(_describe_note, judgement.notes)),
        last_good=_describe_last_good(judgement.last_good),
        # With repeats, their average replaces the metrics of the newest run.
        **{**measured, **_average_metrics(judgement)},
    )


def _average_metrics(judgement: Judgement) -> dict[str, Any]:
    """Build the field `metrics` for the mean step time of all repeats.

    The verdict is about that mean. Metrics that do not depend on the step time keep the
    values of the newest run. Returns {} without repeats or a judged step time.
    """
    newest, difference = judgement.measurement, judgement.log_difference
    if (
        not judgement.repeats
        or newest is None
        or difference is None
        or not newest.statistic_seconds
    ):
        return {}
    mean_seconds = judgement.baseline.step_seconds * math.exp(difference)
    ratio = mean_seconds / newest.statistic_seconds
    metrics = {}
    for metric in newest.metrics:
        reported = _describe_metric(metric)
        if METRICS[metric.name].of_step_time:
            reported = replace(reported, value=_scale_metric(metric, ratio))
        metrics[metric.name] = reported
    return {"metrics": metrics}


def _scale_metric(metric: Metric, ratio: float) -> float:
    """Return the value of a metric if the step time were `ratio` times as long."""
    return metric.value / ratio if metric.larger_is_better else metric.value * ratio


def _describe_metric(metric: Metric) -> ReportedMetric:
    return ReportedMetric(
        value=formatting.make_finite(metric.value),
        standard_deviation=formatting.make_finite(metric.standard_deviation),
        unit=metric.unit,
    )


def _describe_estimate(estimate: Estimate | None) -> ReportedEstimate | None:
    """Convert an estimate into its record.

    Differences are fractions of the baseline's step time; slower is positive.
    """
    if estimate is None:
        return None
    logarithms = pick(estimate, "difference", "low", "high", "margin")
    fractions: dict[str, Any] = {
        name: formatting.compute_bounded_exp(logarithm) - 1
        for name, logarithm in logarithms.items()
    }
    noise = pick(estimate.noise, "sigma", "degrees_of_freedom", "source", "measured")
    unchanged_fields = pick(
        estimate,
        "level",
        "regression_level",
        "standard_error",
        "degrees_of_freedom",
        "runs",
        "within_run_error",
        "effective_sample_size",
        "detectable",
        "repeats_needed",
        "p_slower",
        "threshold_only",
    )
    return ReportedEstimate(
        **fractions,
        **unchanged_fields,
        run_to_run=ReportedNoise(**noise),
        baseline_rounding=estimate.rounding,
    )


def _describe_baseline(baseline: Baseline) -> ReportedBaseline:
    """Build the record of a baseline: source, file and values."""
    recording = baseline.recording
    return ReportedBaseline(
        kind=str(baseline.kind),
        timed=baseline.timed,
        **pick(baseline.source, "document", "table"),
        file=Path(baseline.source.file).name,
        line=baseline.source.line,
        published_seconds=baseline.published_seconds,
        cells=dict(baseline.cells),
        recorded=_describe_recording(recording) if recording else None,
    )


def _describe_recording(recording: Recording) -> ReportedRecording:
    """Convert the recording of a baseline into its record.

    `first` is the value from which drift is measured.
    """
    first = find_reference(recording)
    return ReportedRecording(
        **pick(recording, "date", "by"),
        environment=dict(recording.environment),
        reason=recording.reason,
        earlier=len(recording.earlier),
        **pick(recording, "runs", "groups", "levels"),
        first=FirstRecorded(**pick(first, "date", "seconds", "by", "reason")),
    )


def _describe_timed_window(measurement: Measurement) -> TimedWindow | UnsetType:
    """Return the steps that the document presumably timed; UNSET if unknown."""
    window = measurement.baseline.timed_window
    if window is None:
        return UNSET
    seconds = formatting.make_finite(measurement.timed_seconds)
    return TimedWindow(text=str(window), seconds=seconds)


def _describe_measurement(
    measurement: Measurement | None, now: datetime, directory: Path
) -> dict[str, Any]:
    """Build the fields of a judgement that depend on its measurement.

    Raises ValueError for a measurement with only a step time: older runs have no
    report.
    """
    if measurement is None:
        return {
            "metrics": {},
            "problems": (),
            "log": None,
            "run": None,
            "window_seconds": (),
        }
    if measurement.step_time_only:
        # The report would silently lack the metrics.
        raise ValueError(
            f"{measurement.run.id}: older runs have a step time only, and no report"
        )
    log, problems = measurement.log, measurement.problems
    return {
        "metrics": {
            metric.name: _describe_metric(metric) for metric in measurement.metrics
        },
        "expected_metrics": {
            metric.name: formatting.make_finite(metric.value)
            for metric in measurement.expected
        },
        "statistic_seconds": formatting.make_finite(measurement.statistic_seconds),
        "last_step_seconds": formatting.make_finite(measurement.last_step_seconds),
        "timed_window": _describe_timed_window(measurement),
        "window_seconds": tuple(
            map(formatting.make_finite, measurement.window_seconds)
        ),
        "window_mean_of": tuple(measurement.mean_of),
        "problems": tuple(map(_describe_note, problems)),
        "log": formatting.format_path(log, directory) if log else None,
        "line": next((problem.line for problem in problems if problem.line), 0),
        "run": _describe_run(measurement, now),
        "tries": tuple(
            jobs.describe_log_attempt(attempt, directory)
            for attempt in jobs.select_attempts(measurement)
        ),
    }


def _describe_run(measurement: Measurement, now: datetime) -> ReportedRun:
    """Build the record of a run: job, start, age and attempts."""
    run = measurement.run
    return ReportedRun(
        id=run.id,
        job_id=run.found.job_id,
        launcher=run.found.launcher,
        identified=run.identity.because,
        started=run.started.isoformat() if run.started else None,
        started_from=run.started_from,
        order_source=str(run.order_source),
        age=formatting.format_age(now - run.started) if run.started else "?",
        attempt=measurement.attempt,
        attempts=len(run.attempts),
        segment=measurement.segment,
        log_fingerprint=tuple(attempt.log.fingerprint for attempt in run.attempts),
    )


def _describe_last_good(last: LastGoodRun | None) -> ReportedLastGood | None:
    """Build the record of the last good run, or None."""
    if last is None:
        return None
    nodes, steps = None, None
    if last.nodes:
        nodes = ComparedNodes(
            before=tuple(last.nodes.before), now=tuple(last.nodes.now)
        )
    if last.steps:
        before, now = last.steps
        steps = phrase_all(before), phrase_all(now)
    return ReportedLastGood(
        started=last.started.isoformat(),
        **pick(last, "job_id", "verdict", "days"),
        source=str(last.source),
        step_time_seconds=last.seconds,
        difference=last.slower,
        software=_describe_facts(last.software),
        settings=_describe_facts(last.settings),
        nodes=nodes,
        steps=steps,
    )


def _describe_facts(facts: ComparedFacts) -> ComparedFactsOfRuns:
    """Convert the equal and differing facts of two runs into their record."""
    return ComparedFactsOfRuns(
        same=tuple(facts.same),
        differs={name: (before, now) for name, before, now in facts.differs},
    )


def _describe_note(note: Note | Problem) -> ReportedNote:
    """Convert a note or a problem, whose reason is its code, into its record."""
    code = note.code if isinstance(note, Note) else note.reason
    return ReportedNote(code=str(code), text=phrase(note), line=note.line)


# --- daily runs -----------------------------------------------------------------------


def describe_daily_runs(judgement: Judgement) -> DailyRuns:
    """Convert the daily runs and changes of a judgement into their record."""
    return join_daily_runs(
        map(_describe_daily_run, judgement.daily_runs),
        map(_describe_change, judgement.changes),
    )


def join_daily_runs(
    history: Iterable[ReportedDay], changes: Iterable[ReportedChange]
) -> DailyRuns:
    """Combine the last MOST_DAILY_RUNS of a history, oldest first, with its changes.

    Sets the position of each change within the daily runs.
    """
    # ISO times in the same time zone sort as text.
    oldest_first = sorted(history, key=attrgetter("started"))
    days = oldest_first[-MOST_DAILY_RUNS:]
    starts = [day.started for day in days]
    located_changes = (
        replace(change, night=bisect_left(starts, change.started)) for change in changes
    )
    return DailyRuns(history=tuple(days), changes=tuple(located_changes))


def describe_stored_run(past: StoredRun) -> ReportedDay:
    """Convert a daily run of the history into its record."""
    names = (
        "verdict",
        "reason",
        "step_time_seconds",
        "expected_seconds",
        "log_difference",
        "job_id",
        "environment",
    )
    return ReportedDay(started=past.started.isoformat(), **pick(past, *names))


def _describe_daily_run(day: DailyRun) -> ReportedDay:
    """Convert an earlier run from --llmb-logs into its record, without a verdict."""
    return ReportedDay(
        started=day.started.isoformat(),
        verdict=NOT_JUDGED,
        step_time_seconds=formatting.make_finite(day.statistic_seconds),
        environment=dict(day.environment),
    )


def _describe_change(change: LevelChange) -> ReportedChange:
    """Convert a level change into its record; `join_daily_runs` sets its position."""
    acknowledgement = None
    if change.acknowledged:
        acknowledgement = _describe_acknowledgement(change.acknowledged)
    return ReportedChange(
        kind=str(change.kind),
        started=change.started.isoformat(),
        **pick(change, "difference", "low", "high"),
        environment={
            name: (before, after) for name, before, after in change.environment
        },
        stands=change.stands,
        acknowledged=acknowledgement,
        text=phrase(change),
        night=0,
    )


def _describe_acknowledgement(
    acknowledgement: Acknowledgement,
) -> ReportedAcknowledgement:
    return ReportedAcknowledgement(
        **pick(acknowledgement, "reason", "by"),
        expires=acknowledgement.expires.isoformat(),
    )
