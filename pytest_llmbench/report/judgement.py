"""A judgement as plain values: what was decided, against what, and its run; and the
daily runs before that one."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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
    Measurement,
    Metric,
    Note,
    Problem,
    StoredRun,
)
from pytest_llmbench.core.tolerance import find_reference
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.job_text import pick
from pytest_llmbench.report.wording import phrase, phrase_all

MOST_DAILY_RUNS = 365
"""So many of a history stand in an outcome."""

NOT_JUDGED = "NOT_JUDGED"
"""Stands for the verdict of a night whose run lies in the folder: it only tells the
noise and the changes."""


def describe(judgement: Judgement, now: datetime, directory: Path) -> dict[str, Any]:
    """Return a judgement as plain values; paths below `directory` are shown relative to
    it."""
    baseline, window = judgement.baseline, judgement.baseline.window
    return {
        "verdict": str(judgement.verdict),
        "reason": str(judgement.reason),
        "text": phrase(judgement),
        "expected_seconds": formatting.make_finite(baseline.step_seconds),
        "bound_seconds": formatting.make_finite(judgement.bound_seconds),
        "tolerance": str(judgement.tolerance),
        "tolerance_source": str(judgement.tolerance.source),
        "log_difference": judgement.log_difference,
        "estimate": _describe_estimate(judgement.estimate),
        "repeats": [repeat.run.id for repeat in judgement.repeats],
        "meets_point": judgement.meets_point,
        "window": {**pick(window, "first", "last", "statistic"), "text": str(window)},
        "timed": str(baseline.timed_by),
        "baseline": _describe_baseline(baseline),
        "notes": [_describe_note(note) for note in judgement.notes],
        "last_good": _describe_last_good(judgement.last_good),
        **_describe_measurement(judgement.measurement, now, directory),
        **_average_metrics(judgement),
    }


def _average_metrics(judgement: Judgement) -> dict[str, Any]:
    """Return the metrics at the mean of repeats, in place of those of the newest run
    alone."""
    newest, difference = judgement.measurement, judgement.log_difference
    if (
        not judgement.repeats
        or newest is None
        or difference is None
        or not newest.statistic_seconds
    ):
        return {}
    # The verdict is on the mean of the repeats, so the numbers beside it are at that
    # mean, too.
    slower = (
        judgement.baseline.step_seconds
        * math.exp(difference)
        / newest.statistic_seconds
    )
    metrics = {
        metric.name: {**_describe_metric(metric), **_scale_metric(metric, slower)}
        for metric in newest.metrics
    }
    return {"metrics": metrics}


def _scale_metric(metric: Metric, slower: float) -> dict[str, float]:
    # What does not follow from the step time is that of the newest run.
    if not METRICS[metric.name].of_step_time:
        return {}
    return {
        "value": metric.value / slower
        if metric.larger_is_better
        else metric.value * slower
    }


def _describe_metric(metric: Metric) -> dict[str, Any]:
    return {
        "value": formatting.make_finite(metric.value),
        "standard_deviation": formatting.make_finite(metric.standard_deviation),
        "unit": metric.unit,
    }


def _describe_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    """Return the estimate with differences as fractions of the baseline's step time,
    slower is positive."""
    if estimate is None:
        return None
    logarithms = pick(estimate, "difference", "low", "high", "margin")
    return {
        **{
            name: formatting.compute_bounded_exp(logarithm) - 1
            for name, logarithm in logarithms.items()
        },
        **pick(
            estimate,
            "level",
            "regression_level",
            "standard_error",
            "degrees_of_freedom",
            "runs",
        ),
        "run_to_run": pick(
            estimate.noise, "sigma", "degrees_of_freedom", "source", "measured"
        ),
        **pick(estimate, "within_run_error", "effective_sample_size"),
        "baseline_rounding": estimate.rounding,
        **pick(estimate, "detectable", "repeats_needed", "p_slower", "threshold_only"),
    }


def _describe_baseline(baseline: Baseline) -> dict[str, Any]:
    return {
        "kind": str(baseline.kind),
        "timed": baseline.timed,
        **pick(baseline.source, "document", "table"),
        "file": Path(baseline.source.file).name,
        "line": baseline.source.line,
        "published_seconds": baseline.published_seconds,
        "cells": dict(baseline.cells),
        "recorded": _describe_recording(baseline.recording)
        if baseline.recording
        else None,
    }


def _describe_recording(recording: Recording) -> dict[str, Any]:
    """Return who recorded a baseline and when, and the value that its drift is counted
    from."""
    first = find_reference(recording)
    return {
        **pick(recording, "date", "by"),
        "environment": dict(recording.environment),
        "reason": recording.reason,
        "earlier": len(recording.earlier),
        **pick(recording, "runs", "groups", "levels"),
        "first": pick(first, "date", "seconds", "by", "reason"),
    }


def _describe_timed_window(measurement: Measurement) -> dict[str, Any]:
    """Return the mean of the steps that the document is believed to have timed; nothing
    where nothing says which."""
    window = measurement.baseline.timed_window
    if window is None:
        return {}
    return {
        "timed_window": {
            "text": str(window),
            "seconds": formatting.make_finite(measurement.timed_seconds),
        }
    }


def _describe_measurement(
    measurement: Measurement | None, now: datetime, directory: Path
) -> dict[str, Any]:
    if measurement is None:
        return {
            "metrics": {},
            "problems": [],
            "log": None,
            "run": None,
            "window_seconds": [],
        }
    if (
        measurement.step_time_only
    ):  # no verdict shows such a run: it would lack its metrics without a word
        raise ValueError(
            f"{measurement.run.id} was measured as an older run, of which only the step time is known"
        )
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
        **_describe_timed_window(measurement),
        "window_seconds": [
            formatting.make_finite(value) for value in measurement.window_seconds
        ],
        "window_mean_of": list(measurement.mean_of),
        "problems": [_describe_note(problem) for problem in measurement.problems],
        "log": formatting.format_place(measurement.log, directory)
        if measurement.log
        else None,
        "line": next(
            (problem.line for problem in measurement.problems if problem.line), 0
        ),
        "run": _describe_run(measurement, now),
        "tries": [
            jobs.describe_log_attempt(attempt, directory)
            for attempt in jobs.select_attempts(measurement)
        ],
    }


def _describe_run(measurement: Measurement, now: datetime) -> dict[str, Any]:
    run = measurement.run
    return {
        "id": run.id,
        "job_id": run.found.job_id,
        "launcher": run.found.launcher,
        "identified": run.identity.because,
        "started": run.started.isoformat() if run.started else None,
        "started_from": run.started_from,
        "order_source": str(run.order_source),
        "age": formatting.format_age(now - run.started) if run.started else "?",
        "attempt": measurement.attempt,
        "attempts": len(run.attempts),
        "segment": measurement.segment,
        "log_fingerprint": [attempt.log.fingerprint for attempt in run.attempts],
    }


def _describe_last_good(last: LastGoodRun | None) -> dict[str, Any] | None:
    if last is None:
        return None
    return {
        "started": last.started.isoformat(),
        **pick(last, "job_id", "verdict", "days"),
        "source": str(last.source),
        "step_time_seconds": last.seconds,
        "difference": last.slower,
        "software": _describe_facts(last.software),
        "settings": _describe_facts(last.settings),
        "nodes": last.nodes
        and {"before": list(last.nodes.before), "now": list(last.nodes.now)},
        "steps": last.steps and list(map(phrase_all, last.steps)),
    }


def _describe_facts(facts: ComparedFacts) -> dict[str, Any]:
    return {
        "same": list(facts.same),
        "differs": {name: [before, now] for name, before, now in facts.differs},
    }


def _describe_note(note: Note | Problem) -> dict[str, Any]:
    code = note.code if isinstance(note, Note) else note.reason
    return {"code": str(code), "text": phrase(note), "line": note.line}


# --- daily runs -----------------------------------------------------------------------


def describe_daily_runs(judgement: Judgement) -> dict[str, Any]:
    """Return the `history` and the `changes` that were judged with."""
    return join_daily_runs(
        [_describe_daily_run(change) for change in judgement.daily_runs],
        [_describe_change(change) for change in judgement.changes],
    )


def join_daily_runs(
    history: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the last NIGHTS of a history, oldest first, and its changes with their
    places in it."""
    nights = sorted(history, key=lambda night: str(night["started"]))[-MOST_DAILY_RUNS:]
    # ISO times of one zone sort as text.
    begins = [night["started"] for night in nights]
    return {
        "history": nights,
        "changes": [
            {**change, "night": bisect_left(begins, change["started"])}
            for change in changes
        ],
    }


def describe_stored_run(past: StoredRun) -> dict[str, Any]:
    """Return a night that the history knows, with what was said of it, as plain
    values."""
    names = (
        "verdict",
        "reason",
        "step_time_seconds",
        "expected_seconds",
        "log_difference",
        "job_id",
        "environment",
    )
    return {"started": past.started.isoformat(), **pick(past, *names)}


def _describe_daily_run(night: DailyRun) -> dict[str, Any]:
    return {
        "started": night.started.isoformat(),
        "verdict": NOT_JUDGED,
        "step_time_seconds": formatting.make_finite(night.statistic_seconds),
        "environment": dict(night.environment),
    }


def _describe_change(change: LevelChange) -> dict[str, Any]:
    accepted = change.acknowledged
    return {
        "kind": str(change.kind),
        "started": change.started.isoformat(),
        **pick(change, "difference", "low", "high"),
        "environment": {
            name: [before, after] for name, before, after in change.environment
        },
        "stands": change.stands,
        "acknowledged": accepted
        and {**pick(accepted, "reason", "by"), "expires": accepted.expires.isoformat()},
        "text": phrase(change),
    }
