"""The message of one item: verdict, location, remedy and evidence, 80 columns wide."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.metric_definitions import list_rows
from pytest_llmbench.core.text import GLUE, WIDTH, count_columns
from pytest_llmbench.core.text import wrap as wrap_text
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.advice import advise, advise_repeats
from pytest_llmbench.report.gpu_hours import format_cost, sum_configuration
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedBaseline,
    ReportedLastGood,
    ReportedMetric,
    ReportedNote,
    ReportedRecording,
    get_set,
)
from pytest_llmbench.report.verdicts import locate_log, make_headline

LABELS = {
    "cuda": "CUDA",
    "cuda_driver": "CUDA of the driver",
    "jax": "JAX",
    "nccl": "NCCL",
    "nvidia_release": "NVIDIA Release",
    "pytorch": "PyTorch",
}
"""Spellings of software names; other names are shown unchanged."""

LONGEST_ENVIRONMENT = 200
"""Maximum number of characters for the software of a run: three lines."""

COPIED = re.compile(r"`(pytest [^`]+)`")
"""Matches a pytest command that users copy from a text."""

COMMAND = re.compile(r"^ ?(?= *::)|(?<=#)(?=#\[)", re.MULTILINE)
"""Matches positions at which GitHub Actions would recognise a workflow command:
`::error::`, `##[error]`."""


def explain(outcome: OutcomeDocument, *, short: bool) -> str:
    """Write the message of an item.

    The message contains the verdict, the problem, the log with its line, the next step,
    and the evidence. With `short` it contains only the first three.
    """
    title = make_headline(outcome)
    head = [title] if count_columns(title) <= WIDTH else wrap(title, " " * 12)
    lines = [*head, *wrap(outcome.text)]
    if short and outcome.context and outcome.reason == "no-run":
        # The summary prints the complete context once.
        lines = [*head, *wrap(outcome.context_begin or "")]
    if not short and isinstance(outcome, ConfigurationOutcome):
        lines += wrap(outcome.context)
    if outcome.log:
        lines.append(f"log: {locate_log(outcome)}")
    if not short:
        lines += wrap(f"next: {advise(outcome)}", "      ")
        lines += _list_evidence(outcome)
    return escape_commands("\n".join(lines))


def _list_evidence(outcome: OutcomeDocument) -> Iterator[str]:
    """Yield the lines below the next step: metrics, facts and notes of an outcome."""
    if isinstance(outcome, CheckOutcome):
        yield from outcome.lines
    if not isinstance(outcome, ConfigurationOutcome):
        return
    yield ""
    yield from _tabulate(outcome)
    for label, text in (*list_facts(outcome), *_list_notes(outcome)):
        fact = f"  {label:<10}{text}"
        # A file name stays on one line, so that it can be copied.
        yield from ([fact] if label == "file" else wrap(fact, " " * 12))


def _tabulate(outcome: ConfigurationOutcome) -> Iterator[str]:
    rows = compare_metrics(outcome)
    if rows:
        yield f"  {'':<18}{'measured':>16}{'baseline':>16}{'difference':>13}"
    for label, measured, expected, difference in rows:
        yield f"  {label:<18}{measured:>16}{expected:>16}{difference:>13}"
    if rows:
        yield ""


def compare_metrics(outcome: ConfigurationOutcome) -> list[tuple[str, str, str, str]]:
    """Return a row of texts for each metric: label, measured, baseline, difference.

    Returns no rows if the run is invalid or was not judged, since its metrics are
    meaningless.
    """
    metrics, baseline = outcome.metrics, outcome.expected_metrics or {}
    unjudged = (
        outcome.verdict in ("NOT_COMPARABLE", "MISSING")
        or outcome.reason == "nothing-left"
    )
    if outcome.problems or unjudged:
        return []
    rows = []
    for name, definition in list_rows():
        # The log may print a metric that no baseline contains: only JSON has it, and
        # the row shows the computed value.
        if name in metrics and (definition.printed is None or baseline.get(name)):
            measured = metrics[name].value
            expected = baseline.get(name)
            form = definition.form
            difference = formatting.format_difference(
                measured / expected if measured is not None and expected else None
            )
            rows.append(
                (
                    definition.label,
                    form.format(measured),
                    form.format(expected) if expected else "-",
                    difference,
                )
            )
    return rows


def list_facts(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the evidence for a verdict as labels and texts.

    The facts are limit, statistics, baseline, window, run, software, last good run,
    level changes, jobs, attempts, further problems and other baselines.
    """
    if outcome.bound_seconds is not None and outcome.expected_seconds is not None:
        yield (
            "limit",
            _format_limit(outcome, outcome.bound_seconds, outcome.expected_seconds),
        )
        yield from _list_statistics(outcome)
        yield (
            "baseline",
            format_baseline(outcome.baseline)
            + _format_recording(outcome.baseline.recorded),
        )
    step_time = outcome.metrics.get("step_time_seconds")
    if step_time and outcome.window_seconds:
        yield "window", _format_window(outcome, step_time)
    yield from _list_run_facts(outcome)
    if software := format_environment(outcome.environment):
        yield "software", software
    yield from _list_past(outcome)
    yield from _list_job_facts(outcome)
    for line in jobs.list_log_attempts(outcome.tries or ()):
        yield "attempt", line
    for problem in outcome.problems[1:]:
        yield "also", format_note(problem)
    for text in list_other_baselines(outcome):
        yield "also", text


def _format_limit(outcome: ConfigurationOutcome, limit: float, expected: float) -> str:
    source = outcome.tolerance_source
    tolerance = outcome.tolerance + (
        f", {source}" if source not in ("", "default") else ""
    )
    allowed = formatting.format_seconds(limit)
    baseline = formatting.format_seconds(expected)
    return f"{allowed} = {baseline} x {limit / expected:.6g} (tolerance {tolerance})"


def _format_window(outcome: ConfigurationOutcome, step_time: ReportedMetric) -> str:
    """Format the measured window: steps, spread and the last step's time."""
    values, steps = len(outcome.window_seconds), sum(outcome.window_mean_of or ())
    count = (
        f"{formatting.count_noun(values, 'mean')} of {steps} steps found"
        if steps
        else f"{values} found"
    )
    deviation = step_time.standard_deviation
    spread = "" if deviation is None else f", sd {deviation:.3g} s"
    last = formatting.format_seconds(get_set(outcome.last_step_seconds))
    documented = outcome.timed_window
    # The steps that a document timed are an assumption, so both times are shown.
    if documented and documented.seconds is not None and outcome.timed == "window":
        seconds = formatting.format_seconds(documented.seconds)
        last += f"; {documented.text} (presumably timed by its document) {seconds}"
    return f"{outcome.window.text} ({count}{spread}{_format_other_statistic(outcome)}); last step {last}"


def _list_past(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the last good run before a slow one, and the persisting level changes."""
    yield from list_last_good(outcome.last_good)
    for change in outcome.changes:
        if change.stands:
            yield "change", change.text


def _list_run_facts(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    run, (age, start) = outcome.run, jobs.find_age(outcome)
    started = start[:16].replace("T", " ") if start else "at an unknown time"
    if run:
        job = f"job {run.job_id}, " if run.job_id else ""
        yield "run", f"{job}started {started} ({run.started_from}), {age} old"
    elif start:
        yield "run", f"none; its job started {started}, {age} old"


def format_baseline(baseline: ReportedBaseline) -> str:
    """Format kind and location of a baseline: `published: Table 3, 25.05.yaml:31`."""
    return f"{baseline.kind}: {baseline.table or baseline.document}, {baseline.file}:{baseline.line}"


def format_note(note: ReportedNote) -> str:
    """Return the text of a note or problem, followed by its log line if known."""
    return note.text + (f" (line {note.line})" if note.line else "")


def list_other_baselines(outcome: ConfigurationOutcome) -> list[str]:
    """Describe the verdicts against the other baselines of the configuration."""
    return [
        f"{other.verdict} against the {other.baseline.kind} baseline: {other.text}"
        for other in outcome.others
    ]


def _format_recording(recorded: ReportedRecording | None) -> str:
    """Return `, of 2025-11-20 by alice on login1` for a recorded baseline."""
    if not recorded:
        return ""
    return f", of {recorded.date}" + (f" by {recorded.by}" if recorded.by else "")


def _list_job_facts(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield nodes, node evidence, GPU-hours, jobs (if several) and files of the runs."""
    for text in filter(None, (jobs.format_nodes(outcome), outcome.nodes)):
        yield "nodes", text
    if cost := sum_configuration(outcome.jobs):
        yield "GPU-hours", format_cost(cost)
    launched, files = outcome.jobs, jobs.list_files(outcome)
    for job in launched if len(launched) > 1 else ():
        yield "job", jobs.format_job(outcome, job)
    for file in files[: jobs.MOST_FILES]:
        yield "file", file
    if len(files) > jobs.MOST_FILES:
        yield "file", f"{len(files) - jobs.MOST_FILES} more"


def _list_statistics(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the literal comparison, the interval of the difference, and its noise."""
    estimate = outcome.estimate
    if estimate is None:
        return
    comparison = "is met" if outcome.meets_point else "is not met"
    yield "rule", f"measured <= limit {comparison}"
    if estimate.threshold_only:
        return
    low, high = map(_format_fraction, (estimate.low, estimate.high))
    low_confidence, high_confidence = (
        f"{(1 - level) * 100:.3g} %"
        for level in (estimate.regression_level, estimate.level)
    )
    confidence = (
        f"{high_confidence} confidence at each end"
        if low_confidence == high_confidence
        else f"{low_confidence} and {high_confidence} confidence at its ends"
    )
    yield (
        "interval",
        f"{low} to {high} from {formatting.count_noun(estimate.runs, 'run')}, {confidence}",
    )
    noise, within = estimate.run_to_run, estimate.within_run_error
    yield (
        "noise",
        f"{noise.sigma * 100:.2f} % between runs ({noise.source}), {(within or 0) * 100:.2f} % within the run "
        f"({estimate.effective_sample_size or 0:.0f} independent {'means' if outcome.window_mean_of else 'steps'})",
    )
    detectable = _format_fraction(estimate.detectable)
    yield (
        "detects",
        f"a slowdown of {detectable} or more{advise_repeats(outcome)}",
    )


def _format_fraction(difference: float | None) -> str:
    return formatting.format_difference(None if difference is None else 1 + difference)


def _format_other_statistic(outcome: ConfigurationOutcome) -> str:
    """Format the mean if the trimmed mean decides, else the trimmed mean."""
    trimmed = outcome.window.statistic == "trimmed_mean"
    name, label = ("mean", "mean") if trimmed else ("trimmed_mean", "trimmed mean")
    metric = outcome.metrics.get(f"step_time_{name}_seconds")
    return f", {label} {formatting.format_seconds(metric.value)}" if metric else ""


def _list_notes(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the first notes of an outcome that the message does not contain yet."""
    # Several attempts have one line each, which replace these notes.
    listed = (
        (NoteCode.ATTEMPTS, NoteCode.SEGMENTS)
        if jobs.list_log_attempts(outcome.tries or ())
        else ()
    )
    text = outcome.text
    notes = [
        note
        for note in outcome.notes
        if note.code not in listed and note.text not in text
    ]
    for note in notes[:5]:
        yield "note", format_note(note)
    if len(notes) > 5:
        yield "note", f"{len(notes) - 5} more notes in the JUnit report"


def list_last_good(last: ReportedLastGood | None) -> Iterator[tuple[str, str]]:
    """Yield the last good run and the differences since then, as labels and texts.

    The first text reads `2026-11-20 02:00, job 71 (folder): 9.480 s, +6.0 % for 1 day`.
    Yields nothing if `last` is None.
    """
    if last is None:
        return
    job = f", job {last.job_id}" if last.job_id else ""
    source = ", ".join(
        [last.source, *([last.verdict] if last.verdict != "PASS" else [])]
    )
    when = f"{last.started[:16].replace('T', ' ')}{job} ({source})"
    seconds, since = formatting.format_seconds(last.step_time_seconds), ""
    if last.difference is not None:
        size = formatting.format_difference(1 + last.difference)
        days = formatting.count_noun(last.days, "day")
        since = f", {size} for {days}"
    yield "last good", f"{when}: {seconds}{since}"
    yield "since", "; ".join(_list_since(last))


def _list_since(last: ReportedLastGood) -> Iterator[str]:
    """Yield the differing, the equal and the unknown facts of two runs as texts."""
    nodes, groups = last.nodes, {"software": last.software, "settings": last.settings}
    changes = [
        f"{name_label(name)} {_format_change(name, *pair)}"
        for name, pair in list_differences(last)
    ]
    same = [name_label(name) for of in groups.values() for name in of.same]
    unknown = [name for name, of in groups.items() if not (of.same or of.differs)]
    if nodes is None:
        unknown.append("nodes")
    elif new_nodes := [node for node in nodes.now if node not in nodes.before]:
        changes.append(_format_new_nodes(new_nodes, len(nodes.now)))
    else:
        same.append("nodes (history)")
    yield (
        f"differs: {formatting.join_first(changes)}"
        if changes
        else "no known setting differs"
    )
    if same:
        yield f"same: {formatting.join_first(same)}"
    if last.steps:
        before, now = last.steps
        yield (
            f"steps then and now: {now}"
            if before == now
            else f"steps then: {before}; now: {now}"
        )
    else:
        unknown.append("pattern of the steps")
    if unknown:
        yield f"unknown: {', '.join(unknown)}"


def list_differences(last: ReportedLastGood) -> list[tuple[str, tuple[str, str]]]:
    """Return the software and settings that differ from the last good run."""
    return [*last.software.differs.items(), *last.settings.differs.items()]


def _format_change(name: str, before: str, now: str) -> str:
    return f"{formatting.shorten_setting(name, before)} -> {formatting.shorten_setting(name, now)}"


def _format_new_nodes(new_nodes: list[str], total: int) -> str:
    if len(new_nodes) == total:
        return f"all {formatting.count_noun(total, 'node')} (history)"
    return f"{len(new_nodes)} of {total} nodes (history): {formatting.join_first(new_nodes)}"


def format_environment(environment: Mapping[str, str | None]) -> str:
    """Format the software of a run: `driver 570.133.20, NCCL 2.26.6`; "" if unknown."""
    values = (
        f"{name_label(name)} {formatting.shorten_setting(name, str(text))}"
        for name, text in environment.items()
    )
    return textwrap.shorten(", ".join(values), LONGEST_ENVIRONMENT, placeholder=" ...")


def name_label(name: str) -> str:
    """Return the usual spelling of a software name."""
    return LABELS.get(name, name.replace("_", " "))


# --- text in columns ------------------------------------------------------------------


def wrap(text: str, indent: str = "", *, first: str = "") -> list[str]:
    """Wrap a text to `WIDTH` columns.

    `first` precedes the first line, `indent` all other lines. Long words are broken if
    necessary. A pytest command in backticks gets a separate unbroken line, so that it
    can be copied.
    """
    before, *segments = COPIED.split(text)
    if not segments:
        return _wrap_prose(text, indent, first)
    lines = _wrap_prose(before.rstrip(), indent, first)
    for command, after in zip(segments[::2], segments[1::2], strict=True):
        lines += [f"{indent}{command}", *_wrap_prose(after.strip(), indent, "")]
    return lines


def _wrap_prose(text: str, indent: str, first: str) -> list[str]:
    """Wrap a text that contains no command."""
    # Keep a number and its unit (`7.3 s`) on one line.
    glued = re.sub(r"(?<=\d) (?=[%s](?!\w))", GLUE, text)
    if (
        text.isprintable()
        and "" != text.rstrip() == text
        and len(first) + count_columns(text) <= WIDTH
    ):
        return [f"{first}{text}"]  # fast path: most texts fit on one line
    return wrap_text(glued, first=first, rest=indent)


def escape_commands(text: str) -> str:
    """Insert a backslash before text that GitHub Actions would execute as a command.

    The backslash replaces a leading space if there is one.
    """
    return COMMAND.sub(r"\\", text)
