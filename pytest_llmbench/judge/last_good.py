"""Find the last good run before a failed one, and compare the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import ABSENT, MAY_PASS, Verdict
from pytest_llmbench.core.formatting import unify_fact
from pytest_llmbench.core.judgement_records import (
    ComparedFacts,
    ComparedNodes,
    DecisionRule,
    Evidence,
    Judgement,
    LastGoodRun,
    PreviousRun,
    RunSource,
)
from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.run_records import Measurement, StoredDetails, StoredRun
from pytest_llmbench.judge.estimate import EPSILON
from pytest_llmbench.judge.final_verdict import judge_evidence
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.judge.run_selection import get_job_id, list_valid_runs
from pytest_llmbench.judge.shape import MIN_STEPS, find_shape

if TYPE_CHECKING:
    from pytest_llmbench.core.run_records import VerdictStatement

# Verdicts without a usable step time.
UNTIMED = (Verdict.INVALID, *ABSENT)

# Statements of a log on how it was run. Model, GPUs and precision belong to the
# configuration.
COMPARED = (
    StatedField.LAYERS,
    StatedField.HIDDEN,
    StatedField.HEADS,
    StatedField.SEQUENCE,
    StatedField.BATCH,
    StatedField.MICRO_BATCH,
    StatedField.LAYOUT,
    StatedField.QUANTIZATION,
    StatedField.NUMBERS,
    StatedField.ENGINE,
)
KEY_FIELDS = frozenset(field.name for field in fields(Key))


def find_last_good(
    judgement: Judgement, evidence: Evidence, past: Sequence[StoredRun] = ()
) -> LastGoodRun | None:
    """Find the last passing run before a failed one.

    The run must be within the bound of the failed verdict and pass itself. `past`
    contains all stored runs. Runs of the same day count, because a good run may precede
    a bad one. None if no such run is known, or if the failed run is undated.
    """
    started = _find_start(judgement, evidence)
    if started is None:
        return None
    before = [
        run for run in list_valid_runs(evidence) if _is_before(run, started, judgement)
    ]
    later: list[PreviousRun] = []
    for run in reversed(before):
        seconds = run.statistic_seconds
        within = seconds is not None and seconds <= judgement.bound_seconds * (
            1 + EPSILON
        )
        if (
            seconds is not None
            and within
            and (verdict := _find_passing_verdict(run, evidence, past))
        ):
            return _describe(run, verdict, judgement, _count_days(later, started))
        later.append(run)
    return None


def _find_passing_verdict(
    run: PreviousRun, evidence: Evidence, past: Sequence[StoredRun]
) -> str:
    """Return the verdict of a passing run, or "" if it did not pass.

    A measured run passes if judging it as of its own start passes and, if the history
    contains its verdict, that verdict passed too.
    """
    if isinstance(run, StoredRun):
        return run.verdict if _has_passed(run) else ""
    keys = run.run.same_run_keys
    same = [
        stored
        for stored in past
        if stored.window == run.baseline.window and keys & stored.same_run_keys
    ]
    if not all(map(_has_passed, same)):
        return ""
    judgement = judge_evidence(_restore_evidence(evidence, run), alone=True)
    status = decide_status(judgement, evidence.rules, required=True)
    return str(judgement.verdict) if status is Status.PASSED else ""


def _has_passed(stored: StoredRun) -> bool:
    # User tests store other verdicts (NOT_ASSERTED, TEST_FAILED).
    return stored.verdict in MAY_PASS and stored.status == Status.PASSED


def _restore_evidence(evidence: Evidence, run: Measurement) -> Evidence:
    """Return the evidence as of the start of a run."""
    started = run.started or evidence.now
    earlier = [
        other
        for other in list_valid_runs(evidence)
        if other is not run and (other.started or started) <= started
    ]
    measured = tuple(
        other for other in reversed(earlier) if isinstance(other, Measurement)
    )
    return replace(
        evidence,
        measurements=(run, *measured),
        stored_runs=tuple(other for other in earlier if isinstance(other, StoredRun)),
        excluded_by_since=(),
        max_age=None,
        decision_rule=DecisionRule(),
    )


def _find_start(judgement: Judgement, evidence: Evidence) -> datetime | None:
    """Return the start of the failed run, or the present time if there is no run."""
    return (
        evidence.now if judgement.measurement is None else judgement.measurement.started
    )


def _is_before(run: PreviousRun, started: datetime, judgement: Judgement) -> bool:
    if run.started is None or run.started >= started:
        return False
    # Runs that this session launched belong to the failed verdict.
    is_current = isinstance(run, Measurement) and (
        run.run.found.launch or run in judgement.runs
    )
    return not (is_current or _is_other_hardware(run, judgement.measurement))


def _is_other_hardware(run: PreviousRun, red: Measurement | None) -> bool:
    """True if two runs report different kinds of machines."""
    if red is None:
        return False
    devices = [each_run.environment.get("device") for each_run in (run, red)]
    sizes = [_list_node_sizes(each_run) for each_run in (run, red)]
    return (None not in devices and devices[0] != devices[1]) or (
        all(sizes) and sizes[0] != sizes[1]
    )


def _list_node_sizes(run: PreviousRun) -> set[str]:
    """Return the stated numbers of GPUs per node; empty if unknown."""
    hints = run.run.found.hints if isinstance(run, Measurement) else ()
    return {hint.value for hint in hints if hint.field == "gpus_per_node"}


def _count_days(later: Iterable[PreviousRun], started: datetime) -> int:
    return len(
        {
            started.date(),
            *(run.started.date() for run in later if run.started is not None),
        }
    )


def _describe(
    run: PreviousRun, verdict: str, judgement: Judgement, days: int
) -> LastGoodRun:
    """Build the record of the last good run, compared with the failed run."""
    red, seconds = judgement.measurement, run.statistic_seconds
    if run.started is None or seconds is None:
        raise ValueError(f"{run} has no start or no step time")
    measured = (
        None if red is None or judgement.verdict in UNTIMED else red.statistic_seconds
    )
    last = LastGoodRun(
        run.started,
        get_job_id(run),
        RunSource.HISTORY if isinstance(run, StoredRun) else RunSource.FOLDER,
        verdict,
        seconds,
        measured / seconds - 1 if measured else None,
        days,
    )
    if red is None:
        return last
    last = replace(last, software=compare_facts(run.environment, red.environment))
    if isinstance(run, StoredRun):
        return last
    settings = compare_facts(list_settings(run), list_settings(red))
    return replace(last, settings=settings, steps=compare_steps(run, red))


def add_stored(
    last: LastGoodRun,
    details: StoredDetails,
    red: Measurement | None,
    nodes: tuple[str, ...],
) -> LastGoodRun:
    """Add stored nodes, settings and steps to the last good run.

    `nodes` are the nodes of the failed run.
    """
    if details.nodes and nodes:
        last = replace(last, nodes=ComparedNodes(details.nodes, nodes))
    # the folder has provided the other facts
    if red is None or last.source is RunSource.FOLDER:
        return last
    then = {"launcher": details.launcher} if details.launcher else {}
    settings = compare_facts(then, list_settings(red))
    if (
        len(details.step_seconds) != len(red.window_seconds)
        or details.mean_of != red.mean_of
    ):
        return replace(last, settings=settings)  # the stored steps are another window
    # How a log rounds or smooths its times is not stored; a configuration has one kind
    # of log.
    steps = compare_steps(replace(red, window_seconds=details.step_seconds), red)
    return replace(last, settings=settings, steps=steps)


def compare_facts(before: Mapping[str, str], now: Mapping[str, str]) -> ComparedFacts:
    """Compare the facts that both runs state.

    Returns the names with equal values, and the differing values with their names.
    """
    shared = [name for name in before if name in now]
    same = tuple(
        name
        for name in shared
        if unify_fact(name, before[name]) == unify_fact(name, now[name])
    )
    return ComparedFacts(
        same,
        tuple((name, before[name], now[name]) for name in shared if name not in same),
    )


def compare_steps(
    before: Measurement, now: Measurement
) -> tuple[tuple[VerdictStatement, ...], tuple[VerdictStatement, ...]] | None:
    """Return the shapes of two windows.

    None if either has too few steps for a shape.
    """
    windows = [run.window_seconds for run in (before, now)]
    if not all(
        len(window) >= MIN_STEPS and np.isfinite(window).all() and min(window) > 0
        for window in windows
    ):
        return None
    # A line number would be mistaken for one of the other log.
    first, second = (
        find_shape(replace(run, window_lines=())).statements for run in (before, now)
    )
    return first, second


def list_settings(measurement: Measurement) -> dict[str, str]:
    """Return the settings of a run by name.

    Collected from the names, metadata and log, without its configuration. A name with
    several values is ambiguous and left out.
    """
    values: dict[str, set[str]] = {}
    for name, value in _list_stated(measurement):
        values.setdefault(name, set()).add(value)
    return {
        name: next(iter(stated))
        for name, stated in sorted(values.items())
        if len(stated) == 1
    }


def _list_stated(measurement: Measurement) -> Iterable[tuple[str, str]]:
    """Yield (name, value) of each setting that the names and the log state."""
    files = measurement.run.found
    if files.launcher:
        yield "launcher", files.launcher
    for hint in files.hints:
        if hint.field not in KEY_FIELDS:
            yield hint.field.replace("_", " "), hint.value.lower()
    segment = measurement.measured_segment
    if segment is None:
        return
    for statement in segment.stated:
        name, _, value = statement.value.partition(": ")
        if statement.field is StatedField.LAYOUT and value:
            yield name.replace("_", " "), value.lower()
        elif statement.field in COMPARED:
            yield str(statement.field), statement.value.lower()
    batches = segment.steps.global_batch_size
    for batch in np.unique(batches[np.isfinite(batches)]).tolist():
        yield str(StatedField.BATCH), f"{batch:.10g}"
