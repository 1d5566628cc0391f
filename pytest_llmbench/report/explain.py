"""The text of one item: what a reader of a red test needs to know, on one screen of 80
columns."""

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
"""Names that are written otherwise; the others stand as they are."""

LONGEST_ENVIRONMENT = 200
"""Letters of the line: three lines of a message."""

COPIED = re.compile(r"`(pytest [^`]+)`")
"""A command in a text."""

COMMAND = re.compile(r"^ ?(?= *::)|(?<=#)(?=#\[)", re.MULTILINE)
"""Where GitHub Actions, which reads the output, would take what follows for a command:
`::error::`, `##[error]`."""


def explain(outcome: OutcomeDocument, *, short: bool) -> str:
    """Write the message of an item: one screen, or three lines if many items fail."""
    title = make_headline(outcome)
    head = [title] if count_columns(title) <= WIDTH else wrap(title, " " * 12)
    rows = outcome.lines if isinstance(outcome, CheckOutcome) and not short else ()
    lines = [*head, *wrap(outcome.text), *rows]
    if short and outcome.context and outcome.reason == "no-run":
        lines = [
            *head,
            *wrap(outcome.context_begin or ""),
        ]  # the summary has all of it, once
    if not short and isinstance(outcome, ConfigurationOutcome):
        lines += _explain_configuration(outcome)
    if outcome.log:
        lines.append(f"log: {locate_log(outcome)}")
    if not short:
        lines += wrap(f"next: {advise(outcome)}", "      ")
    return escape_commands("\n".join(lines))


def _explain_configuration(outcome: ConfigurationOutcome) -> Iterator[str]:
    yield from wrap(outcome.context)
    yield from _tabulate(outcome)
    for label, text in (*list_facts(outcome), *_list_notes(outcome)):
        fact = f"  {label:<10}{text}"
        yield from (
            [fact] if label == "file" else wrap(fact, " " * 12)
        )  # a file is whole, to be copied


def _tabulate(outcome: ConfigurationOutcome) -> Iterator[str]:
    rows = compare_metrics(outcome)
    if rows:
        yield ""
        yield f"  {'':<18}{'measured':>16}{'baseline':>16}{'difference':>13}"
    for label, measured, wanted, change in rows:
        yield f"  {label:<18}{measured:>16}{wanted:>16}{change:>13}"
    if rows:
        yield ""


def compare_metrics(described: ConfigurationOutcome) -> list[tuple[str, str, str, str]]:
    """Return of each metric its label, what was measured, the baseline's value and the
    difference, as texts.

    Nothing where the step time means nothing: it is not shown beside one that does.
    """
    metrics, expected = described.metrics, described.expected_metrics or {}
    unjudged = (
        described.verdict in ("NOT_COMPARABLE", "MISSING")
        or described.reason == "nothing-left"
    )
    if described.problems or unjudged:
        return []
    rows = []
    for name, definition in list_rows():
        # A number of the log that no baseline expects stands in JSON: the computed one
        # has the row.
        if name in metrics and (definition.printed is None or expected.get(name)):
            measured, wanted, form = (
                metrics[name].value,
                expected.get(name),
                definition.form,
            )
            change = formatting.format_difference(
                measured / wanted if measured is not None and wanted else None
            )
            rows.append(
                (
                    definition.label,
                    form.format(measured),
                    form.format(wanted) if wanted else "-",
                    change,
                )
            )
    return rows


def list_facts(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield label and text of what the verdict rests on: bound, statistics, baseline,
    window, run, jobs, attempts."""
    if outcome.bound_seconds is not None and outcome.expected_seconds is not None:
        yield (
            "bound",
            _format_bound(outcome, outcome.bound_seconds, outcome.expected_seconds),
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
    if ran_on := format_environment(outcome.environment):
        yield "software", ran_on
    yield from _list_past(outcome)
    yield from _list_job_facts(outcome)
    for line in jobs.list_log_attempts(outcome.tries or ()):
        yield "attempt", line
    for problem in outcome.problems[1:]:
        yield "also", format_note(problem)
    for text in list_other_baselines(outcome):
        yield "also", text


def _format_bound(outcome: ConfigurationOutcome, bound: float, expected: float) -> str:
    source = outcome.tolerance_source
    tolerance = outcome.tolerance + (
        f", {source}" if source not in ("", "default") else ""
    )
    seconds, of_baseline = (
        formatting.format_seconds(bound),
        formatting.format_seconds(expected),
    )
    return f"{seconds} = {of_baseline} x {bound / expected:.6g} (tolerance {tolerance})"


def _format_window(outcome: ConfigurationOutcome, step_time: ReportedMetric) -> str:
    values, steps = len(outcome.window_seconds), sum(outcome.window_mean_of or ())
    count = (
        f"{formatting.count_noun(values, 'mean')} of {steps} steps found"
        if steps
        else f"{values} found"
    )
    deviation = step_time.standard_deviation
    spread = "" if deviation is None else f", sd {deviation:.3g} s"
    last = formatting.format_seconds(get_set(outcome.last_step_seconds))
    of_document = outcome.timed_window
    # Which steps a document timed is assumed: both are shown.
    if of_document and of_document.seconds is not None and outcome.timed == "window":
        last += f"; {of_document.text} (assumed of its document) {formatting.format_seconds(of_document.seconds)}"
    return f"{outcome.window.text} ({count}{spread}{_format_other_statistic(outcome)}); last step {last}"


def _list_past(described: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield the last good run before a slow one, and the changes of level that
    stand."""
    yield from list_last_good(described.last_good)
    for change in described.changes:
        if change.stands:
            yield "change", change.text


def _list_run_facts(described: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    run, (age, begun) = described.run, jobs.find_age(described)
    started = begun[:16].replace("T", " ") if begun else "at an unknown time"
    if run:
        job = f"job {run.job_id}, " if run.job_id else ""
        yield "run", f"{job}started {started} ({run.started_from}), {age} old"
    elif begun:
        yield "run", f"none; its job started {started}, {age} old"


def format_baseline(baseline: ReportedBaseline) -> str:
    """Return where a baseline stands: `published: Table 3, 25.05.yaml:31`."""
    return f"{baseline.kind}: {baseline.table or baseline.document}, {baseline.file}:{baseline.line}"


def format_note(note: ReportedNote) -> str:
    """Return the text of a note or problem, and its line where it has one."""
    return note.text + (f" (line {note.line})" if note.line else "")


def list_other_baselines(described: ConfigurationOutcome) -> list[str]:
    """Return the verdicts against the other baselines of the configuration."""
    return [
        f"{other.verdict} against the {other.baseline.kind} baseline: {other.text}"
        for other in described.others
    ]


def _format_recording(recorded: ReportedRecording | None) -> str:
    """Return `, of 2025-11-20 by alice on login1` for a recorded baseline."""
    if not recorded:
        return ""
    return f", of {recorded.date}" + (f" by {recorded.by}" if recorded.by else "")


def _list_job_facts(described: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield where the runs were, what that tells of the nodes, each job where there are
    several, and their files."""
    for text in filter(None, (jobs.format_nodes(described), described.nodes)):
        yield "nodes", text
    if cost := sum_configuration(described.jobs):
        yield "GPU-hours", format_cost(cost)
    launched, files = described.jobs, jobs.list_files(described)
    for job in launched if len(launched) > 1 else ():
        yield "job", jobs.format_job(described, job)
    for file in files[: jobs.MOST_FILES]:
        yield "file", file
    if len(files) > jobs.MOST_FILES:
        yield "file", f"{len(files) - jobs.MOST_FILES} more"


def _list_statistics(described: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    """Yield how well the difference is known, and what the rule as written says."""
    estimate = described.estimate
    if estimate is None:
        return
    meets = "holds" if described.meets_point else "does not hold"
    yield "rule", f"as written, measured <= bound: {meets}"
    if estimate.threshold_only:
        return
    low, high = map(_format_fraction, (estimate.low, estimate.high))
    below, above = (
        f"{(1 - level) * 100:.3g} %"
        for level in (estimate.regression_level, estimate.level)
    )
    sure = (
        f"{above} sure of each end"
        if below == above
        else f"{below} and {above} sure of its ends"
    )
    yield (
        "interval",
        f"{low} to {high} from {formatting.count_noun(estimate.runs, 'run')}, {sure}",
    )
    noise, within = estimate.run_to_run, estimate.within_run_error
    yield (
        "noise",
        f"run to run {noise.sigma * 100:.2f} % ({noise.source}), within the run {(within or 0) * 100:.2f} % "
        f"({estimate.effective_sample_size or 0:.0f} independent {'means' if described.window_mean_of else 'steps'})",
    )
    detectable = _format_fraction(estimate.detectable)
    yield (
        "power",
        f"such a run shows a slowdown of {detectable} or more{advise_repeats(described)}",
    )


def _format_fraction(difference: float | None) -> str:
    return formatting.format_difference(None if difference is None else 1 + difference)


def _format_other_statistic(described: ConfigurationOutcome) -> str:
    """Return the mean beside a trimmed mean, and the other way round."""
    trimmed = described.window.statistic == "trimmed_mean"
    name, label = ("mean", "mean") if trimmed else ("trimmed_mean", "trimmed mean")
    metric = described.metrics.get(f"step_time_{name}_seconds")
    return f", {label} {formatting.format_seconds(metric.value)}" if metric else ""


def _list_notes(described: ConfigurationOutcome) -> Iterator[tuple[str, str]]:
    # Each attempt has a line of its own then.
    listed = (
        (NoteCode.ATTEMPTS, NoteCode.SEGMENTS)
        if jobs.list_log_attempts(described.tries or ())
        else ()
    )
    text = described.text  # may say it already
    notes = [
        note
        for note in described.notes
        if note.code not in listed and note.text not in text
    ]
    for note in notes[:5]:
        yield "note", format_note(note)
    if len(notes) > 5:
        yield "note", f"{len(notes) - 5} more notes in the JUnit report"


def list_last_good(last: ReportedLastGood | None) -> Iterator[tuple[str, str]]:
    """Yield label and text: `2026-11-20 02:00, job 71 (folder): 9.480 s, +6.0 % for 1
    day`, then what differs since; nothing without such a run."""
    if last is None:
        return
    job = f", job {last.job_id}" if last.job_id else ""
    source = ", ".join(
        [last.source, *([last.verdict] if last.verdict != "PASS" else [])]
    )
    when = f"{last.started[:16].replace('T', ' ')}{job} ({source})"
    seconds, since = formatting.format_seconds(last.step_time_seconds), ""
    if last.difference is not None:
        size, days = (
            formatting.format_difference(1 + last.difference),
            formatting.count_noun(last.days, "day"),
        )
        since = f", {size} for {days}"
    yield "last good", f"{when}: {seconds}{since}"
    yield "since", "; ".join(_list_since(last))


def _list_since(last: ReportedLastGood) -> Iterator[str]:
    """Yield what differs between the last good run and a red one, what does not, and
    what one of them does not say."""
    nodes, groups = last.nodes, {"software": last.software, "settings": last.settings}
    changes = [
        f"{name_label(name)} {_format_change(name, *pair)}"
        for name, pair in list_differences(last)
    ]
    same = [name_label(name) for of in groups.values() for name in of.same]
    unknown = [name for name, of in groups.items() if not (of.same or of.differs)]
    if nodes is None:
        unknown.append("nodes")
    elif others := [node for node in nodes.now if node not in nodes.before]:
        changes.append(_format_others(others, len(nodes.now)))
    else:
        same.append("nodes (history)")
    yield (
        f"differs: {formatting.join_first(changes)}"
        if changes
        else "nothing known differs"
    )
    if same:
        yield f"the same: {formatting.join_first(same)}"
    if last.steps:
        before, now = last.steps
        yield (
            f"steps then and now: {now}"
            if before == now
            else f"steps then: {before}; now: {now}"
        )
    else:
        unknown.append("the shape of the steps")
    if unknown:
        yield f"not known: {', '.join(unknown)}"


def list_differences(last: ReportedLastGood) -> list[tuple[str, tuple[str, str]]]:
    """Return what the last good run and a red one say of software and settings that is
    not the same."""
    return [*last.software.differs.items(), *last.settings.differs.items()]


def _format_change(name: str, before: str, now: str) -> str:
    return f"{formatting.shorten_setting(name, before)} -> {formatting.shorten_setting(name, now)}"


def _format_others(others: list[str], number: int) -> str:
    if len(others) == number:
        return f"all {formatting.count_noun(number, 'node')} (history)"
    verb = "is another" if len(others) == 1 else "are others"
    return f"{len(others)} of {number} nodes {verb} (history): {formatting.join_first(others)}"


def format_environment(environment: Mapping[str, str | None]) -> str:
    """Return `driver 570.133.20, framework nemo2 25.04, NCCL 2.26.6`; empty where
    nothing is known."""
    values = (
        f"{name_label(name)} {formatting.shorten_setting(name, str(text))}"
        for name, text in environment.items()
    )
    return textwrap.shorten(", ".join(values), LONGEST_ENVIRONMENT, placeholder=" ...")


def name_label(name: str) -> str:
    """Return a name as people write it."""
    return LABELS.get(name, name.replace("_", " "))


# --- text in columns ------------------------------------------------------------------


def wrap(text: str, indent: str = "", *, first: str = "") -> list[str]:
    """Return the text in lines of `WIDTH` columns, those after the first indented;
    words are broken where they must. A command of pytest gets a line of its own, whole,
    to be copied."""
    before, *others = COPIED.split(text)
    if not others:
        return _wrap_prose(text, indent, first)
    lines = _wrap_prose(before.rstrip(), indent, first)
    for command, behind in zip(others[::2], others[1::2], strict=True):
        lines += [f"{indent}{command}", *_wrap_prose(behind.strip(), indent, "")]
    return lines


def _wrap_prose(text: str, indent: str, first: str) -> list[str]:
    """Return lines of a text without a command."""
    # `7.3` at the end of a line and `s` at the beginning of the next is read as two
    # things.
    glued = re.sub(r"(?<=\d) (?=[%s](?!\w))", GLUE, text)
    if (
        text.isprintable()
        and "" != text.rstrip() == text
        and len(first) + count_columns(text) <= WIDTH
    ):
        return [f"{first}{text}"]  # as most are: textwrap would take them to pieces
    return wrap_text(glued, first=first, rest=indent)


def escape_commands(text: str) -> str:
    """Return lines with a backslash where what a log says would be a command to the CI
    server that reads them; it takes the place of a blank where there is one."""
    return COMMAND.sub(r"\\", text)
