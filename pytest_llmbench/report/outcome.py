"""One outcome as a versioned, JSON-able dictionary: the only thing that reports are made from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.outcome_records import Check, ComparedConfiguration, Outcome, Status, UnmatchedRun
from pytest_llmbench.core.redaction import IDENTIFYING, Redactor
from pytest_llmbench.core.robust import find_stragglers
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report import judgement as of_judgement
from pytest_llmbench.report.gpu_hours import sum_configuration
from pytest_llmbench.report.wording import phrase_all

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Integers

SCHEMA = 1
"""Raised when a field of the dictionary changes its meaning."""

COUNTING = (*sorted(JUDGED), "RECORDED", "TEST_FAILED", "NOT_ASSERTED")
"""Verdicts whose step time and metrics mean something."""

SLOW = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
"""Verdicts that a run has for its step times alone."""

UNTRAINED = (Reason.DIVERGED, Reason.DID_NOT_TRAIN)
"""Problems that the loss of the steps tells of."""

MOST_STEPS = 2000
"""Steps that a report is given; of more, the slow ones and as many of the others, evenly apart."""


def describe(outcome: Outcome, now: datetime, directory: Path, commit: str = "") -> dict[str, Any]:
    """Return the outcome of a configuration as plain values; paths below `directory` are shown relative to it.

    `commit` is the one that the session tests, empty where nothing says it; a run that the history knows has its own.
    """
    judgement = outcome.judgement
    key = judgement.baseline.key
    return {
        "schema": SCHEMA,
        "kind": "configuration",
        "id": outcome.case.id,
        "suite": f"{key.recipe} {key.release} {key.gpu} {key.dtype}",
        "configuration": jobs.pick(key, "id", "recipe", "size", "release", "gpu", "dtype", "gpus"),
        "status": str(outcome.status),
        "context": formatting.join_sentences(outcome.context),
        "context_begin": next(iter(outcome.context), ""),
        "remainder": phrase_all(judgement.statements[1:]),
        **of_judgement.describe(judgement, now, directory),
        "environment": _describe_environment(judgement.measurement, commit),
        **_describe_recorded(outcome, directory),
        "others": [of_judgement.describe(other, now, directory) for other in outcome.others],
        **_describe_jobs(outcome, now, directory),
        "nodes": outcome.nodes,
        "slow_nodes": list(outcome.slow_nodes),
        "resume": jobs.describe_resumption(outcome.resumption),
        **_describe_trials(outcome),
        **_describe_steps_and_excerpt(outcome, directory),
        **of_judgement.describe_daily_runs(judgement),
    }


def _describe_jobs(outcome: Outcome, now: datetime, directory: Path) -> dict[str, Any]:
    described = {"jobs": [jobs.describe(job, now, directory) for job in outcome.jobs]}
    cost = sum_configuration(described)
    return {**described, **({"gpu_hours": cost} if cost else {})}


def _describe_trials(outcome: Outcome) -> dict[str, Any]:
    if outcome.trials is None:
        return {}
    from pytest_llmbench.report import trials

    return {"trials": trials.describe(outcome.trials)}


def _describe_steps_and_excerpt(outcome: Outcome, directory: Path) -> dict[str, Any]:
    """Return the steps of the judged attempt, and of a failure where the lines of its log stand that tell most: they
    are read only for the reports that show them."""
    measurement = outcome.judgement.measurement
    if measurement is None:
        return {}
    steps_and_excerpt = _describe_steps(measurement)
    line, what = _find_telling_line(measurement, outcome) if outcome.status is Status.FAILED else (0, "")
    if line and measurement.log:
        steps_and_excerpt |= {
            "excerpt": {"log": formatting.format_place(measurement.log, directory), "line": line, "what": what}
        }
    return steps_and_excerpt


def _find_telling_line(measurement: Measurement, outcome: Outcome) -> tuple[int, str]:
    """Return a line, and what it is where its own text does not say so: that of a problem, the last one of a log that
    ended too early, or a step of a run that is only slow; 0 where there is none."""
    if measurement.problems:
        attempts = measurement.run.attempts
        last = max((attempt.log.lines for attempt in attempts if attempt.files.log == measurement.log), default=0)
        return next((problem.line for problem in measurement.problems if problem.line), last), ""
    judgement = outcome.judgement
    # Over budget is a checkpoint, and none of its steps.
    slow = judgement.verdict in SLOW and judgement.reason is not Reason.OVER_BUDGET
    return _find_slow_line(measurement) if slow else (0, "")


def _describe_recorded(outcome: Outcome, directory: Path) -> dict[str, Any]:
    """Return what replaces the verdict in a session that records: what was recorded, where it is from now on, and no
    bound."""
    seconds = outcome.recorded_seconds
    if seconds is None:
        return {}
    return {
        "verdict": "RECORDED",
        "reason": "recorded",
        "text": outcome.recorded,
        "metrics": {"step_time_seconds": {"value": seconds, "standard_deviation": None, "unit": "s"}},
        "log_difference": formatting.make_finite(math.log(seconds / outcome.judgement.baseline.step_seconds)),
        "bound_seconds": None,
        "estimate": None,
        "problems": [],
        "baselines": [formatting.format_place(path, directory) for path in outcome.baselines],
    }


def describe_stray(stray: UnmatchedRun, directory: Path, logs: Sequence[Path] = ()) -> dict[str, Any]:
    """Return a run that matches no baseline, or an entry that could not be read, as plain values.

    `logs` are the places where runs were looked for.
    """
    return {
        "schema": SCHEMA,
        "kind": "stray",
        "id": stray.id,
        "suite": "unmatched runs",
        "status": "failed",
        "reason": str(stray.reason),
        "text": stray.text,
        "log": formatting.format_place(stray.path, directory),
        "logs": [formatting.format_place(path, directory) for path in logs],
    }


def describe_check(check: Check) -> dict[str, Any]:
    """Return what is said of several configurations together, or of the gate itself, as plain values."""
    return {
        "schema": SCHEMA,
        "kind": "check",
        "check": str(check.kind),
        "decides": check.decides,
        "id": check.id,
        "suite": check.kind.replace("-", " "),
        "status": str(check.status),
        "verdict": str(check.verdict),
        "reason": str(check.kind),
        "text": check.text,
        "lines": list(check.lines),
        "log": None,
        "members": [key.id for key in check.members],
        "compared": [_describe_compared(pair) for pair in check.compared],
        "timed": str(check.timed),
    }


def _describe_compared(pair: ComparedConfiguration) -> dict[str, Any]:
    return {
        "id": pair.key.id,
        "gpus": pair.key.gpus,
        "reference": pair.reference.id,
        "reference_gpus": pair.reference.gpus,
        "baseline": str(pair.baseline),  # xdist sends this to its controller, and knows plain types alone
        "measured": formatting.make_finite(pair.measured),
        "documented": formatting.make_finite(pair.documented),
        "verdict": str(pair.verdict),
    }


PATH_MASKED = "a path holds a secret, and is shown with *** in its place: the file lies under its own name"


def redact(described: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Return an outcome without secrets, and with a note of it where a path is not the one that it was."""
    own = IDENTIFYING if described["kind"] == "stray" else IDENTIFYING | {"id"}
    others = {name: value for name, value in described.items() if name not in own}
    redacted: dict[str, Any] = {**described, **redactor.redact_values(others, IDENTIFYING)}
    if _list_places(described) == _list_places(redacted):
        return redacted
    if "notes" not in redacted:  # as a run has none that matches no baseline
        return {**redacted, "text": f"{redacted['text']} ({PATH_MASKED})"}
    note = {"code": str(NoteCode.PATH_MASKED), "text": PATH_MASKED, "line": 0}
    return {**redacted, "notes": [*redacted["notes"], note]}


def _list_places(described: dict[str, Any]) -> list[Any]:
    jobs_files = [job["files"] for job in described.get("jobs", ())]
    logs = [attempt["log"] for attempt in described.get("tries", ())]
    return [described.get("log"), logs, jobs_files, described.get("baselines")]


def list_property_names() -> tuple[str, ...]:
    """Return the properties of a test case in --junitxml, in their order; those that a run does not have are left out.

    What was launched has those of `jobs` besides.
    """
    metrics = metric_definitions.list_property_names()
    return (
        *metrics[:1],  # the step time, beside what it is compared with
        "expected_seconds",
        "bound_seconds",
        *metrics[1:],
        *("last_step_seconds", "window", "timed", "verdict", "reason", "log", "launcher", "log_attempts"),
    )


def list_properties(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts for `item.user_properties`; values keep all their digits."""
    values = dict(described)
    if described.get("verdict") in COUNTING:  # a number that does not count is not published
        values |= {name: metric["value"] for name, metric in described.get("metrics", {}).items()}
    else:
        values.pop("last_step_seconds", None)
    values["launcher"] = (described.get("run") or {}).get("launcher") or None
    if described.get("window"):
        values["window"] = described["window"]["text"]
    values["log_attempts"] = jobs.format_log_attempts(described)
    texts = [(name, values.get(name)) for name in list_property_names()]
    properties_of_run = [
        # `repr` keeps all digits: a rounded step time could not be held against the bound again.
        (name, repr(value) if isinstance(value, float) else str(value))
        for name, value in texts
        if value is not None
    ]
    return [*properties_of_run, *jobs.list_properties(described).items()]


def _describe_environment(measurement: Measurement | None, commit: str) -> dict[str, str]:
    if measurement is None:
        return {}
    return dict(sorted({**({"commit": commit} if commit else {}), **measurement.environment}.items()))


# --- steps, for a report that draws them -------------------------------------------------------------------


def _describe_steps(measurement: Measurement) -> dict[str, Any]:
    """Return the step numbers and times of the attempt that was measured, also of those outside of the window.

    `slow` are the positions of the stragglers of the window. A time that no step can have is None. Empty where the
    attempt has no step, or is not there any more.
    """
    of_log = [attempt.log.segments for attempt in measurement.run.attempts if attempt.files.log == measurement.log]
    parts = of_log[-1] if of_log else ()
    if not 0 < measurement.segment <= len(parts):
        return {}
    segment = parts[measurement.segment - 1]
    # A hiccup that was forgiven is drawn as it was counted.
    counted = dict(zip(measurement.window_steps, measurement.window_seconds, strict=False))
    slow = np.isin(segment.steps.index, _find_slow_steps(measurement))
    # At most MOST_STEPS are told, the slow ones first of all.
    room = max(MOST_STEPS - int(np.count_nonzero(slow)), 1)
    regular = np.arange(len(slow)) % -(-len(slow) // room) == 0
    positions = np.flatnonzero(slow | regular)[:MOST_STEPS]
    numbers, printed = segment.steps.index[positions].tolist(), segment.steps.seconds[positions].tolist()
    values = [counted.get(number, value) for number, value in zip(numbers, printed, strict=True)]
    seconds = [formatting.make_finite(value) if value > 0 else None for value in values]
    columns = {"index": numbers, "seconds": seconds, "slow": np.flatnonzero(slow[positions]).tolist()}
    if any(problem.reason in UNTRAINED for problem in measurement.problems):
        columns |= _describe_loss(segment.steps, positions)
    return {"steps": columns}


def _describe_loss(steps: Steps, positions: Integers) -> dict[str, Any]:
    """Return the loss of each of these steps, None where none was printed or it is no finite number, and the places of
    the latter; nothing of a log without any."""
    printed, values = steps.has_loss[positions], steps.loss[positions]
    if not printed.any():
        return {}
    finite = printed & np.isfinite(values)
    losses = [value if is_finite else None for value, is_finite in zip(values.tolist(), finite.tolist(), strict=True)]
    return {"loss": losses, "no_loss": np.flatnonzero(printed & ~finite).tolist()}


def _find_slow_line(measurement: Measurement) -> tuple[int, str]:
    """Return the log line of the step that tells most of a slow run, and what it is: the slowest straggler of the
    window, without one its first step; 0 where no line is known."""
    lines, numbers, seconds = measurement.window_lines, measurement.window_steps, measurement.window_seconds
    if not lines:
        return 0, ""
    if not _find_slow_steps(measurement):
        return lines[0], f"step {numbers[0]}, the first of the window"
    place = int(np.argmax(seconds))  # a straggler is above all that is none
    slowest = formatting.format_seconds(seconds[place])
    return lines[place], f"step {numbers[place]}, the slowest of the window: {slowest}"


def _find_slow_steps(measurement: Measurement) -> list[int]:
    """Return the numbers of the steps of the window that stand out of it."""
    if not measurement.window_seconds:
        return []
    is_slow = find_stragglers(np.array(measurement.window_seconds), measurement.resolution_seconds)
    return [number for number, slow in zip(measurement.window_steps, is_slow.tolist(), strict=False) if slow]
