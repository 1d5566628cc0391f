"""Conversion of outcomes into documents, the only source of all reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType, convert
from msgspec.structs import asdict, replace

from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.outcome_records import (
    Check,
    ComparedConfiguration,
    Outcome,
    Status,
    UnmatchedRun,
)
from pytest_llmbench.core.redaction import IDENTIFYING, Redactor
from pytest_llmbench.core.robust import find_stragglers
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.report import describe_judgement as of_judgement
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.gpu_hours import sum_configuration
from pytest_llmbench.report.outcome_documents import (
    MOST_STEPS,
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedComparison,
    ReportedExcerpt,
    ReportedKey,
    ReportedMetric,
    ReportedNote,
    ReportedSteps,
    ReportedTrials,
    UnmatchedOutcome,
    get_set,
    make_plain,
)
from pytest_llmbench.report.wording import phrase_all

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Integers

COUNTING = (*sorted(JUDGED), "RECORDED", "TEST_FAILED", "NOT_ASSERTED")
"""Verdicts with a meaningful step time and metrics."""

SLOW = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
"""Verdicts that depend on the step times only."""

UNTRAINED = (Reason.DIVERGED, Reason.DID_NOT_TRAIN)
"""Problems that are visible in the loss of the steps."""


def describe(
    outcome: Outcome,
    now: datetime,
    directory: Path,
    commit: str = "",
    *,
    own: bool | UnsetType = UNSET,
) -> ConfigurationOutcome:
    """Convert the outcome of a configuration into its document.

    Paths in `directory` become relative to it. `commit` is the commit that the session
    tests, or "". `own` is true if a baseline file of the user has the configuration.
    """
    judgement = outcome.judgement
    key = judgement.baseline.key
    judged = of_judgement.describe(judgement, now, directory)
    launched = tuple(jobs.describe(job, now, directory) for job in outcome.result.jobs)
    recorded = _describe_recorded(outcome, directory)
    return ConfigurationOutcome(
        **{**asdict(judged), **recorded},
        **asdict(of_judgement.describe_daily_runs(judgement)),
        id=outcome.case.id,
        suite=f"{key.recipe} {key.release} {key.gpu} {key.dtype}",
        configuration=_describe_key(key),
        status=str(outcome.status),
        # The context explains why the session judged nothing; "" if it did.
        context=formatting.join_sentences(outcome.context),
        context_begin=next(iter(outcome.context), ""),
        # The first statement compares the step time with the baseline.
        remainder=phrase_all(judgement.statements[1:]),
        environment=_describe_environment(judgement.measurement, commit),
        # the verdicts against other baselines, which do not decide
        others=tuple(
            of_judgement.describe(other, now, directory)
            for other in outcome.result.others
        ),
        jobs=launched,
        gpu_hours=sum_configuration(launched),
        nodes=outcome.result.nodes,
        slow_nodes=tuple(outcome.result.slow_nodes),
        resume=jobs.describe_resumption(outcome.result.resumption),
        trials=_describe_trials(outcome),
        steps=_describe_steps(judgement.measurement),
        excerpt=_locate_excerpt(outcome, directory),
        own=own,
    )


def _describe_key(key: Key) -> ReportedKey:
    return ReportedKey(
        id=key.id,
        recipe=key.recipe,
        size=key.size,
        release=key.release,
        gpu=key.gpu,
        dtype=key.dtype,
        gpus=key.gpus,
    )


def _describe_trials(outcome: Outcome) -> ReportedTrials | None:
    if outcome.result.trials is None:
        return None
    from pytest_llmbench.report import describe_trials as trials

    return trials.describe(outcome.result.trials)


def _locate_excerpt(outcome: Outcome, directory: Path) -> ReportedExcerpt | None:
    """Locate the log line that best explains a failure.

    The text around it is read later, and only for reports that show it.
    """
    measurement = outcome.judgement.measurement
    if (
        measurement is None
        or outcome.status is not Status.FAILED
        or not measurement.log
    ):
        return None
    line, description = _find_relevant_line(measurement, outcome)
    if not line:
        return None
    return ReportedExcerpt(
        log=formatting.format_path(measurement.log, directory),
        line=line,
        what=description,
    )


def _find_relevant_line(measurement: Measurement, outcome: Outcome) -> tuple[int, str]:
    """Return the line number that best explains a failure, and a description of it.

    This is the line of the first problem, else the last line of an invalid log, or a
    step of a slow run. The description is "" if the text of the line is sufficient.
    Returns (0, "") without such a line.
    """
    if measurement.problems:
        log = measurement.measured_log
        last_line = 0 if log is None else log.lines
        lines = (problem.line for problem in measurement.problems if problem.line)
        return next(lines, last_line), ""
    judgement = outcome.judgement
    # A checkpoint over budget is not visible in the steps.
    if judgement.verdict in SLOW and judgement.reason is not Reason.OVER_BUDGET:
        return _find_slow_line(measurement)
    return 0, ""


def _describe_recorded(outcome: Outcome, directory: Path) -> dict[str, Any]:
    """Build the fields that replace the verdict in a session that records baselines.

    Returns {} if the session does not record.
    """
    seconds = outcome.recorded_seconds
    if seconds is None:
        return {}
    return {
        "verdict": "RECORDED",
        "reason": "recorded",
        "text": outcome.recorded,
        "metrics": {
            "step_time_seconds": ReportedMetric(
                value=seconds, standard_deviation=None, unit="s"
            )
        },
        "log_difference": formatting.make_finite(
            math.log(seconds / outcome.judgement.baseline.step_seconds)
        ),
        "bound_seconds": None,
        "estimate": None,
        "problems": (),
        "baselines": tuple(
            formatting.format_path(path, directory) for path in outcome.baselines
        ),
    }


def describe_unmatched_run(
    run: UnmatchedRun, directory: Path, logs: Sequence[Path] = ()
) -> UnmatchedOutcome:
    """Convert an unmatched run or an unreadable path into its document.

    `logs` are the paths that were searched for runs.
    """
    return UnmatchedOutcome(
        id=run.id,
        suite="unmatched runs",
        status="failed",
        reason=str(run.reason),
        text=run.text,
        log=formatting.format_path(run.path, directory),
        logs=tuple(formatting.format_path(path, directory) for path in logs),
    )


def describe_check(check: Check, advice: str = "") -> CheckOutcome:
    """Convert a check into its document.

    A check is about several configurations, or about the gate itself. `advice` is the
    next step, if that depends on the session.
    """
    return CheckOutcome(
        check=str(check.kind),
        decides=check.decides,
        id=check.id,
        suite=check.kind.replace("-", " "),
        status=str(check.status),
        verdict=str(check.verdict),
        reason=str(check.kind),
        text=check.text,
        lines=tuple(check.lines),
        log=None,
        members=tuple(key.id for key in check.members),
        compared=tuple(_describe_compared(pair) for pair in check.compared),
        timed=str(check.timed),
        next=advice,
    )


def _describe_compared(pair: ComparedConfiguration) -> ReportedComparison:
    return ReportedComparison(
        id=pair.key.id,
        gpus=pair.key.gpus,
        reference=pair.reference.id,
        reference_gpus=pair.reference.gpus,
        baseline=str(pair.baseline),
        measured=formatting.make_finite(pair.measured),
        documented=formatting.make_finite(pair.documented),
        verdict=str(pair.verdict),
    )


PATH_MASKED = (
    "a path contains a secret, which is shown as ***; the file keeps its real name"
)


_Outcome = TypeVar("_Outcome", ConfigurationOutcome, UnmatchedOutcome, CheckOutcome)


def redact(outcome: _Outcome, redactor: Redactor) -> _Outcome:
    """Redact secrets in an outcome and escape unprintable characters.

    Adds a note if a path is redacted.
    """
    plain: dict[str, Any] = redactor.redact_values(
        make_plain(outcome), IDENTIFYING, printable=True
    )
    if not isinstance(outcome, UnmatchedOutcome):
        # The id of a configuration or a check is not redacted.
        plain["id"] = formatting.escape(outcome.id)
    redacted: _Outcome = convert(plain, type(outcome))
    if formatting.escape_values(_list_paths(outcome)) == _list_paths(redacted):
        return redacted
    if isinstance(redacted, ConfigurationOutcome):
        note = ReportedNote(code=str(NoteCode.PATH_MASKED), text=PATH_MASKED, line=0)
        return replace(redacted, notes=(*redacted.notes, note))
    return replace(redacted, text=f"{redacted.text} ({PATH_MASKED})")


def redact_texts(outcome: _Outcome, redactor: Redactor) -> _Outcome:
    """Redact secrets in texts that were added after `redact`."""
    unredacted_fields = IDENTIFYING | {"id"}
    plain = redactor.redact_values(make_plain(outcome), unredacted_fields)
    return convert(plain, type(outcome))


def _list_paths(outcome: OutcomeDocument) -> list[str | None]:
    """Return the paths of logs, files and baselines; None for a missing log."""
    if not isinstance(outcome, ConfigurationOutcome):
        return [outcome.log]
    files = (file for job in outcome.jobs for file in job.files)
    logs = (attempt.log for attempt in outcome.tries or ())
    return [outcome.log, *logs, *files, *outcome.baselines]


def list_property_names() -> tuple[str, ...]:
    """Return the names of all properties of a --junitxml test case, in their order.

    Launched test cases also have the properties of `jobs`.
    """
    step_time, *other_metrics = metric_definitions.list_property_names()
    return (
        step_time,  # next to the values it is compared with
        "expected_seconds",
        "bound_seconds",
        *other_metrics,
        "last_step_seconds",
        "window",
        "timed",
        "verdict",
        "reason",
        "log",
        "launcher",
        "log_attempts",
    )


def list_properties(outcome: ConfigurationOutcome) -> list[tuple[str, str]]:
    """Return names and texts for `item.user_properties`, without unknown values.

    Numbers keep all their digits.
    """
    launcher = outcome.run.launcher if outcome.run else ""
    values: dict[str, object] = {
        "expected_seconds": outcome.expected_seconds,
        "bound_seconds": outcome.bound_seconds,
        "window": outcome.window.text,
        "timed": outcome.timed,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "log": outcome.log,
        "launcher": launcher or None,
        "log_attempts": jobs.format_log_attempts(outcome.tries or ()),
    }
    if outcome.verdict in COUNTING:  # other verdicts publish no metrics
        values |= {name: metric.value for name, metric in outcome.metrics.items()}
        values["last_step_seconds"] = get_set(outcome.last_step_seconds)
    properties = []
    for name in list_property_names():
        value = values.get(name)
        if isinstance(value, float):
            # A rounded step time may be on the other side of the limit.
            properties.append((name, repr(value)))
        elif value is not None:
            properties.append((name, str(value)))
    return [*properties, *jobs.list_properties(outcome).items()]


def _describe_environment(
    measurement: Measurement | None, commit: str
) -> dict[str, str | None]:
    """Return the environment of a run with its commit, sorted by name.

    The commit that the run states has priority over `commit`, that of the session.
    """
    if measurement is None:
        return {}
    environment = dict(measurement.environment)
    if commit:
        environment.setdefault("commit", commit)
    return dict(sorted(environment.items()))


# --- steps, for charts ----------------------------------------------------------------


def _describe_steps(measurement: Measurement | None) -> ReportedSteps | None:
    """Convert all steps of the measured attempt into their record.

    Steps outside the window are included. `slow` contains the indices of the window's
    stragglers within the reported steps. A step time that is not positive becomes None.
    Returns None if the attempt has no steps or its log is gone.
    """
    segment = None if measurement is None else measurement.measured_segment
    if measurement is None or segment is None:
        return None
    is_slow = np.isin(segment.steps.index, _find_slow_steps(measurement))
    # At most MOST_STEPS are reported: the slow steps, and others at equal distances.
    step_count, slow_count = len(is_slow), int(np.count_nonzero(is_slow))
    most_others = max(MOST_STEPS - slow_count, 1)
    distance = -(-step_count // most_others)  # rounded up
    is_regular = np.arange(step_count) % distance == 0
    positions = np.flatnonzero(is_slow | is_regular)[:MOST_STEPS]
    numbers = segment.steps.index[positions].tolist()
    printed_seconds = segment.steps.seconds[positions].tolist()
    # The judged time of a step with a transient stall is not the printed time.
    judged_seconds = dict(
        zip(measurement.window_steps, measurement.window_seconds, strict=False)
    )
    seconds = []
    for number, printed in zip(numbers, printed_seconds, strict=True):
        value = judged_seconds.get(number, printed)
        seconds.append(formatting.make_finite(value) if value > 0 else None)
    loss, no_loss = None, None
    if any(problem.reason in UNTRAINED for problem in measurement.problems):
        loss, no_loss = _describe_loss(segment.steps, positions)
    return ReportedSteps(
        index=tuple(numbers),
        seconds=tuple(seconds),
        slow=tuple(np.flatnonzero(is_slow[positions]).tolist()),
        loss=loss,
        no_loss=no_loss,
    )


def _describe_loss(
    steps: Steps, positions: Integers
) -> tuple[tuple[float | None, ...] | None, tuple[int, ...] | None]:
    """Return the losses at `positions`, and the indices of the non-finite losses.

    A missing or non-finite loss is None. Both values are None for a log without losses.
    """
    is_printed, values = steps.has_loss[positions], steps.loss[positions]
    if not is_printed.any():
        return None, None
    is_usable = is_printed & np.isfinite(values)
    losses = (
        value if usable else None
        for value, usable in zip(values.tolist(), is_usable.tolist(), strict=True)
    )
    non_finite = np.flatnonzero(is_printed & ~is_usable)
    return tuple(losses), tuple(non_finite.tolist())


def _find_slow_line(measurement: Measurement) -> tuple[int, str]:
    """Return the log line of the slowest straggler, and a description of the step.

    Without stragglers, returns the line of the first step of the window. Returns
    (0, "") if no line is known.
    """
    lines = measurement.window_lines
    step_numbers = measurement.window_steps
    seconds = measurement.window_seconds
    if not lines:
        return 0, ""
    if not _find_slow_steps(measurement):
        return lines[0], f"step {step_numbers[0]}, the first of the window"
    slowest = int(np.argmax(seconds))  # always a straggler
    step = step_numbers[slowest]
    time = formatting.format_seconds(seconds[slowest])
    return lines[slowest], f"step {step}, the slowest of the window: {time}"


def _find_slow_steps(measurement: Measurement) -> list[int]:
    """Return the numbers of the stragglers in the window."""
    if not measurement.window_seconds:
        return []
    is_slow = find_stragglers(
        np.array(measurement.window_seconds), measurement.resolution_seconds
    )
    flags = zip(measurement.window_steps, is_slow.tolist(), strict=False)
    return [number for number, slow in flags if slow]
