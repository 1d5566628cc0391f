"""The message of one item: verdict, location, remedy and evidence, 80 columns wide."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.metric_definitions import list_rows
from pytest_llmbench.core.patterns import compile_on_use
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

MOST_NOTES = 5
"""Maximum number of notes in a message."""

COPIED = compile_on_use(r"`(pytest [^`]+)`")
"""Matches a pytest command that users copy from a text."""

COMMAND = compile_on_use(r"^ ?(?= *::)|(?<=#)(?=#\[)", re.MULTILINE)
"""Matches positions at which GitHub Actions would recognise a workflow command:
`::error::`, `##[error]`."""


def explain(outcome: OutcomeDocument, *, short: bool) -> str:
    """Write the message of an item.

    The message contains the verdict, the problem, the log with its line, the next step,
    and the evidence. With `short` it contains only the first three. The context of an
    outcome is the reason why the session judged nothing.
    """
    title = make_headline(outcome)
    fits = count_columns(title) <= WIDTH
    title_lines = [title] if fits else wrap(title, " " * 12)
    problem = outcome.text
    if short and outcome.context and outcome.reason == "no-run":
        # The summary prints the complete context once.
        problem = outcome.context_begin or ""
    lines = [*title_lines, *wrap(problem)]
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
        if label == "file":
            yield fact  # on one line, so that the file name can be copied
        else:
            yield from wrap(fact, " " * 12)


def _tabulate(outcome: ConfigurationOutcome) -> Iterator[str]:
    """Yield the table of metrics and an empty line, or nothing without metrics."""
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
    is_unjudged = (
        outcome.verdict in ("NOT_COMPARABLE", "MISSING")
        or outcome.reason == "nothing-left"
    )
    if outcome.problems or is_unjudged:
        return []
    rows = []
    for name, definition in list_rows():
        expected = baseline.get(name)
        if name not in metrics:
            continue
        # A metric that the log prints gets a row only next to a value of the baseline.
        # Without such a value, only the JSON report contains the printed metric.
        if definition.printed is not None and not expected:
            continue
        measured = metrics[name].value
        ratio = measured / expected if measured is not None and expected else None
        rows.append(
            (
                definition.label,
                definition.form.format(measured),
                definition.form.format(expected) if expected else "-",
                formatting.format_difference(ratio),
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
    """Return `9.954 s = 9.480 s x 1.05 (tolerance 5 %, baseline)`."""
    tolerance, source = outcome.tolerance, outcome.tolerance_source
    if source not in ("", "default"):
        tolerance += f", {source}"
    allowed = formatting.format_seconds(limit)
    baseline = formatting.format_seconds(expected)
    return f"{allowed} = {baseline} x {limit / expected:.6g} (tolerance {tolerance})"


def _format_window(outcome: ConfigurationOutcome, step_time: ReportedMetric) -> str:
    """Format the measured window: steps, spread and the last step's time."""
    value_count = len(outcome.window_seconds)
    # 0 if each value is the time of a single step, and not a mean of several steps.
    averaged_steps = sum(outcome.window_mean_of or ())
    if averaged_steps:
        means = formatting.count_noun(value_count, "mean")
        count = f"{means} of {averaged_steps} steps found"
    else:
        count = f"{value_count} found"
    deviation = step_time.standard_deviation
    spread = "" if deviation is None else f", sd {deviation:.3g} s"
    last = formatting.format_seconds(get_set(outcome.last_step_seconds))
    documented = outcome.timed_window
    # The steps that a document timed are an assumption, so both times are shown.
    if documented and documented.seconds is not None and outcome.timed == "window":
        seconds = formatting.format_seconds(documented.seconds)
        last += f"; {documented.text} (presumably timed by its document) {seconds}"
    other_statistic = _format_other_statistic(outcome)
    found = f"{count}{spread}{other_statistic}"
    return f"{outcome.window.text} ({found}); last step {last}"


def _list_past(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the last good run before a slow one, and the persisting level changes."""
    yield from list_last_good(outcome.last_good)
    for change in outcome.changes:
        if change.stands:
            yield "change", change.text


def _list_run_facts(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield job, start and age of the run, or of its job if there is no run."""
    run = outcome.run
    age, start = jobs.find_age(outcome)
    started = _format_minute(start) if start else "at an unknown time"
    if run:
        job = f"job {run.job_id}, " if run.job_id else ""
        yield "run", f"{job}started {started} ({run.started_from}), {age} old"
    elif start:
        yield "run", f"none; its job started {started}, {age} old"


def _format_minute(iso_time: str) -> str:
    """Return `2026-11-20 02:00` for `2026-11-20T02:00:31+00:00`."""
    return iso_time[:16].replace("T", " ")


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
    """Yield the facts about jobs: nodes, GPU-hours, results of several jobs, files."""
    for text in (jobs.format_nodes(outcome), outcome.nodes):
        if text:
            yield "nodes", text
    if cost := sum_configuration(outcome.jobs):
        yield "GPU-hours", format_cost(cost)
    if len(outcome.jobs) > 1:
        for job in outcome.jobs:
            yield "job", jobs.format_job(outcome, job)
    files = jobs.list_files(outcome)
    for file in files[: jobs.MOST_FILES]:
        yield "file", file
    if len(files) > jobs.MOST_FILES:
        yield "file", f"{len(files) - jobs.MOST_FILES} more"


def _list_statistics(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the rows (name, text) on the statistics of a verdict.

    These are the rule of the limit, the interval of the difference, the noise, and the
    detectable slowdown.
    """
    estimate = outcome.estimate
    if estimate is None:
        return
    comparison = "is met" if outcome.meets_point else "is not met"
    yield "rule", f"measured <= limit {comparison}"
    # The standard error is unknown, so there is neither an interval nor a noise.
    if estimate.threshold_only:
        return
    low, high = map(formatting.format_fraction, (estimate.low, estimate.high))
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
    noise = estimate.run_to_run
    within_run = (estimate.within_run_error or 0) * 100
    samples = estimate.effective_sample_size or 0
    sample_noun = "means" if outcome.window_mean_of else "steps"
    yield (
        "noise",
        f"{noise.sigma * 100:.2f} % between runs ({noise.source}), "
        f"{within_run:.2f} % within the run "
        f"({samples:.0f} independent {sample_noun})",
    )
    detectable = formatting.format_fraction(estimate.detectable)
    yield (
        "detects",
        f"a slowdown of {detectable} or more{advise_repeats(outcome)}",
    )


def _format_other_statistic(outcome: ConfigurationOutcome) -> str:
    """Format the mean if the trimmed mean decides, else the trimmed mean."""
    trimmed = outcome.window.statistic == "trimmed_mean"
    name, label = ("mean", "mean") if trimmed else ("trimmed_mean", "trimmed mean")
    metric = outcome.metrics.get(f"step_time_{name}_seconds")
    return f", {label} {formatting.format_seconds(metric.value)}" if metric else ""


def _list_notes(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the first notes of an outcome that the message does not contain yet."""
    notes = [note for note in outcome.notes if note.text not in outcome.text]
    if jobs.list_log_attempts(outcome.tries or ()):
        # The message has a line for each attempt, which replaces these notes.
        replaced = (NoteCode.ATTEMPTS, NoteCode.SEGMENTS)
        notes = [note for note in notes if note.code not in replaced]
    for note in notes[:MOST_NOTES]:
        yield "note", format_note(note)
    if len(notes) > MOST_NOTES:
        more = len(notes) - MOST_NOTES
        yield "note", f"{more} more notes in the JUnit report"


def list_last_good(last: ReportedLastGood | None) -> Iterator[tuple[str, str]]:
    """Yield the last good run and the differences since then, as labels and texts.

    The first text reads `2026-11-20 02:00, job 71 (folder): 9.480 s, +6.0 % for 1 day`.
    Yields nothing if `last` is None.
    """
    if last is None:
        return
    job = f", job {last.job_id}" if last.job_id else ""
    source = last.source
    if last.verdict != "PASS":
        source += f", {last.verdict}"
    when = f"{_format_minute(last.started)}{job} ({source})"
    seconds = formatting.format_seconds(last.step_time_seconds)
    since = ""
    if last.difference is not None:
        size = formatting.format_fraction(last.difference)
        days = formatting.count_noun(last.days, "day")
        since = f", {size} for {days}"
    yield "last good", f"{when}: {seconds}{since}"
    yield "since", "; ".join(_list_since(last))


def _list_since(last: ReportedLastGood) -> Iterator[str]:
    """Yield the differing, the equal and the unknown facts of two runs as texts."""
    changes = [
        f"{name_label(name)} {_format_change(name, before, now)}"
        for name, (before, now) in list_differences(last)
    ]
    same = [name_label(name) for name in (*last.software.same, *last.settings.same)]
    # Facts without any compared value are unknown.
    unknown = []
    if not (last.software.same or last.software.differs):
        unknown.append("software")
    if not (last.settings.same or last.settings.differs):
        unknown.append("settings")
    # Nodes differ only if the slow run has a node that the good run did not have.
    nodes = last.nodes
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
    """Return the software and settings that differ from the last good run.

    Each item is the name and the pair of values: then, now.
    """
    return [*last.software.differs.items(), *last.settings.differs.items()]


def _format_change(name: str, before: str, now: str) -> str:
    """Return `2.26.6 -> 2.27.3`; if `name` is "commit", the values are shortened."""
    old_value = formatting.shorten_setting(name, before)
    new_value = formatting.shorten_setting(name, now)
    return f"{old_value} -> {new_value}"


def _format_new_nodes(new_nodes: list[str], total: int) -> str:
    """Return `2 of 16 nodes (history): node3, node7`, or `all 16 nodes (history)`."""
    if len(new_nodes) == total:
        return f"all {formatting.count_noun(total, 'node')} (history)"
    names = formatting.join_first(new_nodes)
    return f"{len(new_nodes)} of {total} nodes (history): {names}"


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
    # `split` returns prose, command, prose, command, ..., prose.
    before, *segments = COPIED.split(text)
    if not segments:
        return _wrap_prose(text, indent, first)
    lines = _wrap_prose(before.rstrip(), indent, first)
    for command, after in zip(segments[::2], segments[1::2], strict=True):
        lines += [f"{indent}{command}", *_wrap_prose(after.strip(), indent, "")]
    return lines


def _wrap_prose(text: str, indent: str, first: str) -> list[str]:
    """Wrap a text that contains no command."""
    # An empty text is left to `wrap_text`.
    has_no_end_space = text != "" and text.rstrip() == text
    if (
        text.isprintable()
        and has_no_end_space
        and len(first) + count_columns(text) <= WIDTH
    ):
        return [f"{first}{text}"]  # fast path: most texts fit on one line
    # Keep a number and its unit (`7.3 s`) on one line.
    glued = re.sub(r"(?<=\d) (?=[%s](?!\w))", GLUE, text)
    return wrap_text(glued, first=first, rest=indent)


def escape_commands(text: str) -> str:
    """Insert a backslash before text that GitHub Actions would execute as a command.

    The backslash replaces a leading space if there is one, which keeps the width.
    """
    return COMMAND.sub(r"\\", text)
