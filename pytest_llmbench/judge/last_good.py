"""Find the last good run before a failed one, and compare the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

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
KEY_FIELDS = frozenset(Key.__struct_fields__)


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
    earlier_runs = [
        run for run in list_valid_runs(evidence) if _is_before(run, started, judgement)
    ]
    bound = judgement.bound_seconds * (1 + EPSILON)
    later_runs: list[PreviousRun] = []  # later than `run`; none of them was good
    for run in reversed(earlier_runs):
        seconds = run.statistic_seconds
        if seconds is not None and seconds <= bound:
            # is called last: it judges the run, which is slow
            verdict = _find_passing_verdict(run, evidence, past)
            if verdict:
                days = _count_days(later_runs, started)
                return _make_last_good(run, verdict, judgement, days)
        later_runs.append(run)
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
    stored_verdicts = [
        stored
        for stored in past
        if stored.window == run.baseline.window and keys & stored.same_run_keys
    ]
    if not all(map(_has_passed, stored_verdicts)):
        return ""
    judgement = judge_evidence(_restore_evidence(evidence, run), alone=True)
    status = decide_status(judgement, evidence.rules, required=True)
    return str(judgement.verdict) if status is Status.PASSED else ""


def _has_passed(stored: StoredRun) -> bool:
    """True if a stored run passed with a verdict of this program."""
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
    if judgement.measurement is None:
        return evidence.now
    return judgement.measurement.started


def _is_before(run: PreviousRun, started: datetime, judgement: Judgement) -> bool:
    """True if a run precedes the failed run, and is comparable with it."""
    if run.started is None or run.started >= started:
        return False
    # Runs that this session launched belong to the failed verdict.
    is_current = isinstance(run, Measurement) and (
        run.run.found.launch or run in judgement.runs
    )
    return not (is_current or _is_other_hardware(run, judgement.measurement))


def _is_other_hardware(run: PreviousRun, failed: Measurement | None) -> bool:
    """True if two runs report different kinds of machines."""
    if failed is None:
        return False
    device = run.environment.get("device")
    failed_device = failed.environment.get("device")
    if None not in (device, failed_device) and device != failed_device:
        return True
    sizes, failed_sizes = _list_node_sizes(run), _list_node_sizes(failed)
    return bool(sizes and failed_sizes) and sizes != failed_sizes


def _list_node_sizes(run: PreviousRun) -> set[str]:
    """Return the stated numbers of GPUs per node; empty if unknown."""
    hints = run.run.found.hints if isinstance(run, Measurement) else ()
    return {hint.value for hint in hints if hint.field == "gpus_per_node"}


def _count_days(later_runs: Iterable[PreviousRun], started: datetime) -> int:
    """Count the days without a good run, including the day of the failed run."""
    days = {run.started.date() for run in later_runs if run.started is not None}
    return len({started.date(), *days})


def _make_last_good(
    run: PreviousRun, verdict: str, judgement: Judgement, days: int
) -> LastGoodRun:
    """Build the record of the last good run, compared with the failed run."""
    failed, seconds = judgement.measurement, run.statistic_seconds
    if run.started is None or seconds is None:
        raise ValueError(f"{run} has no start or no step time")
    failed_seconds = None
    if failed is not None and judgement.verdict not in UNTIMED:
        failed_seconds = failed.statistic_seconds
    source = RunSource.HISTORY if isinstance(run, StoredRun) else RunSource.FOLDER
    change = failed_seconds / seconds - 1 if failed_seconds else None
    last = LastGoodRun(
        run.started, get_job_id(run), source, verdict, seconds, change, days
    )
    if failed is None:
        return last
    last = replace(last, software=compare_facts(run.environment, failed.environment))
    if isinstance(run, StoredRun):
        return last
    settings = compare_facts(list_settings(run), list_settings(failed))
    return replace(last, settings=settings, steps=compare_steps(run, failed))


def add_stored(
    last: LastGoodRun,
    details: StoredDetails,
    failed: Measurement | None,
    nodes: tuple[str, ...],
) -> LastGoodRun:
    """Add comparisons with the failed run from stored details of the last good run.

    Compares nodes, settings and steps. `nodes` are the nodes of the failed run.
    """
    if details.nodes and nodes:
        last = replace(last, nodes=ComparedNodes(details.nodes, nodes))
    # a last good run in the folder was compared already, except for its nodes
    if failed is None or last.source is RunSource.FOLDER:
        return last
    stored_settings = {"launcher": details.launcher} if details.launcher else {}
    settings = compare_facts(stored_settings, list_settings(failed))
    has_same_length = len(details.step_seconds) == len(failed.window_seconds)
    if not has_same_length or details.mean_of != failed.mean_of:
        return replace(last, settings=settings)  # the stored steps are another window
    # How a log rounds or smooths its times is not stored; a configuration has one kind
    # of log.
    stored_window = replace(failed, window_seconds=details.step_seconds)
    steps = compare_steps(before=stored_window, now=failed)
    return replace(last, settings=settings, steps=steps)


def compare_facts(before: Mapping[str, str], now: Mapping[str, str]) -> ComparedFacts:
    """Compare the facts that both runs state.

    Returns the names with equal values, and the differing values with their names.
    """
    equal: list[str] = []
    differing: list[tuple[str, str, str]] = []
    for name in before:
        if name not in now:
            continue
        if unify_fact(name, before[name]) == unify_fact(name, now[name]):
            equal.append(name)
        else:
            differing.append((name, before[name], now[name]))
    return ComparedFacts(tuple(equal), tuple(differing))


def compare_steps(
    before: Measurement, now: Measurement
) -> tuple[tuple[VerdictStatement, ...], tuple[VerdictStatement, ...]] | None:
    """Return the statements on the shapes of two windows: (before, now).

    None if either has too few steps for a shape, or a step without a usable time.
    """
    if not _has_shape(before) or not _has_shape(now):
        return None
    # The statements contain no line numbers: readers could look them up in the log of
    # the other run.
    shape_before = find_shape(replace(before, window_lines=()))
    shape_now = find_shape(replace(now, window_lines=()))
    return shape_before.statements, shape_now.statements


def _has_shape(run: Measurement) -> bool:
    """True if a window has enough steps for a shape, all with a usable time."""
    seconds = run.window_seconds
    if len(seconds) < MIN_STEPS:
        return False
    return bool(np.isfinite(seconds).all()) and min(seconds) > 0


def list_settings(measurement: Measurement) -> dict[str, str]:
    """Return the settings of a run by name.

    Collected from the names, metadata and log, without its configuration. A name with
    several values is ambiguous and left out.
    """
    values_by_name: dict[str, set[str]] = {}
    for name, value in _list_stated(measurement):
        values_by_name.setdefault(name, set()).add(value)
    settings = {}
    for name, values in sorted(values_by_name.items()):
        if len(values) == 1:
            (settings[name],) = values
    return settings


def _list_stated(measurement: Measurement) -> Iterable[tuple[str, str]]:
    """Yield (name, value) of each setting that the names and the log state."""
    found = measurement.run.found
    if found.launcher:
        yield "launcher", found.launcher
    for hint in found.hints:
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
