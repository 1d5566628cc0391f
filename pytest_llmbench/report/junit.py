"""The --llmb-junit report: one test case for each configuration, grouped into suites."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pytest_llmbench.core import formatting
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.describe_outcome import (
    COUNTING,
    list_properties,
    list_property_names,
)
from pytest_llmbench.report.explain import (
    explain,
    format_baseline,
    format_environment,
    format_note,
    list_last_good,
    list_other_baselines,
)
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedRun,
    get_set,
)
from pytest_llmbench.report.verdicts import JUDGED, SEVERITY, name_verdict, select_worst

if TYPE_CHECKING:
    from junit_xml import TestCase

SESSION = "session"
"""The suite of the test case that reports problems of the session."""

ILLEGAL = compile_on_use(
    "[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""Matches characters that XML 1.0 forbids, control characters, and carriage returns,
which XML readers convert to line feeds."""


def render(
    outcomes: Sequence[OutcomeDocument], now: datetime, problems: Sequence[str] = ()
) -> bytes:
    """Render the report as XML in UTF-8.

    Each id is one case with its worst outcome. `problems` of the session become one
    error in a separate suite, so that the report of an interrupted session never
    passes. Suites and cases are sorted by name. Characters that are illegal in XML are
    written as `\\x1b`.
    """
    from junit_xml import TestSuite

    cases_by_suite = defaultdict(list)
    for outcome in sorted(select_worst(outcomes), key=attrgetter("suite", "id")):
        cases_by_suite[outcome.suite].append(_make_case(outcome))
    if problems:
        cases_by_suite[SESSION].append(_make_session_case(problems))
    timestamp = now.isoformat(timespec="seconds")
    suites = [
        TestSuite(name, cases, timestamp=timestamp).build_xml_doc()
        for name, cases in cases_by_suite.items()
    ]
    totals = {}
    for name in ("tests", "failures", "errors"):
        totals[name] = str(sum(int(suite.attrib[name]) for suite in suites))
    root = ElementTree.Element("testsuites", totals)
    root.extend(suites)
    for element in root.iter():
        _make_valid(element)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _make_session_case(problems: Sequence[str]) -> TestCase:
    """Build the JUnit case of the session, which is an error with all problems."""
    from junit_xml import TestCase

    case = TestCase("session", f"llmbench.{SESSION}")
    case.add_error_info(problems[0], "\n".join(problems), "session")
    return case


def _make_case(outcome: OutcomeDocument) -> TestCase:
    """Build the JUnit case of an outcome, with the duration of the window.

    So the duration graph of a CI server follows the step time. The test itself takes
    only milliseconds.
    """
    from junit_xml import TestCase

    seconds = _sum_window(outcome) if isinstance(outcome, ConfigurationOutcome) else 0
    case = TestCase(
        outcome.id,
        _make_classname(outcome),
        elapsed_sec=seconds,
        stdout=_make_system_out(outcome),
    )
    # junit-xml drops a failure without message and output, and the case would count as
    # passed. So the message must not be empty.
    message = _join_lines(f"{name_verdict(outcome)}: {outcome.text}")
    if outcome.status not in SEVERITY:  # neither passed nor skipped
        case.add_failure_info(message, explain(outcome, short=False), outcome.reason)
    elif outcome.status == "skipped":
        # GitLab shows the text, other servers the attribute.
        case.add_skipped_info(message, message)
    return case


def _sum_window(outcome: ConfigurationOutcome) -> float:
    """Sum the times of the steps in the window, in seconds."""
    values = outcome.window_seconds
    # A value is the time of one step, or the mean of several steps.
    step_counts = outcome.window_mean_of or (1,) * len(values)
    return sum(
        value * step_count
        for value, step_count in zip(values, step_counts, strict=True)
        if value is not None and value > 0
    )


def _make_classname(outcome: OutcomeDocument) -> str:
    """Build the class name of a case: `llmbench.grok1.25_05.gb200.bf16`.

    CI servers show its components as a tree. GitLab and Jenkins use it as the key of a
    case's history, so it contains neither the machine nor the date.
    """
    if isinstance(outcome, ConfigurationOutcome):
        key = outcome.configuration
        names = [key.recipe, key.release, key.gpu, key.dtype]
    elif isinstance(outcome, CheckOutcome):
        names = [outcome.check]
    else:
        names = ["unmatched"]
    return ".".join(["llmbench", *(name.replace(".", "_") for name in names)])


def _make_system_out(outcome: OutcomeDocument) -> str:
    """Return the output of a case: a line `name: value` for each known value."""
    lines = []
    for name, value in _list_values(outcome):
        text = "" if value is None else _join_lines(str(value))
        if text:
            lines.append(f"{name}: {text}")
    return "\n".join(lines)


def _join_lines(text: str) -> str:
    """Remove line breaks from a text, so that a log cannot add lines to the report."""
    return " ".join(text.split())


def _list_values(outcome: OutcomeDocument) -> Iterator[tuple[str, object]]:
    """Yield the names and values of a case's output, --junitxml properties first.

    Jenkins keeps only 1,000 characters of the output of a passed case.
    """
    if isinstance(outcome, ConfigurationOutcome):
        yield from list_properties(outcome)
        yield from _list_configuration_values(outcome)
    else:
        yield "timed", outcome.timed
        yield "verdict", outcome.verdict
        yield "reason", outcome.reason
        yield "log", outcome.log
        yield "text", outcome.text


def _list_configuration_values(
    outcome: ConfigurationOutcome,
) -> Iterator[tuple[str, object]]:
    """Yield the JUnit properties of a configuration as (name, value)."""
    yield "tolerance", outcome.tolerance
    if outcome.log_difference is not None and outcome.verdict in JUDGED:
        ratio = math.exp(outcome.log_difference)
        yield "difference", formatting.format_difference(ratio)
    yield "text", outcome.text
    yield "context", outcome.context
    age, started = jobs.find_age(outcome)
    if outcome.run:
        yield from _list_run_values(outcome.run)
    elif started:
        yield "started", f"{started} (its job), {age} old"
    yield "environment", format_environment(outcome.environment)
    yield "last_good", "; ".join(text for _, text in list_last_good(outcome.last_good))
    if outcome.line:
        yield "log_line", outcome.line
    yield "node_finding", outcome.nodes
    for job in outcome.jobs:
        yield "launched", jobs.format_job(outcome, job)
    for file in jobs.list_files(outcome):
        yield "file", file
    for problem in outcome.problems:
        yield "problem", f"{problem.code}: {format_note(problem)}"
    for note in outcome.notes:
        yield "note", f"{note.code}: {format_note(note)}"
    for text in list_other_baselines(outcome):
        yield "also", text
    yield from _list_metrics(outcome)
    yield "baseline", format_baseline(outcome.baseline)


def _list_metrics(outcome: ConfigurationOutcome) -> Iterator[tuple[str, object]]:
    """Yield the metrics that `list_properties` omits, and the baseline's metrics."""
    # For the verdicts in COUNTING, `list_properties` contains this time.
    if outcome.verdict not in COUNTING:
        yield "last_step_seconds", get_set(outcome.last_step_seconds)
    published = list_property_names()
    for name, metric in outcome.metrics.items():
        if name not in published:
            yield name, metric.value
        yield f"{name}_standard_deviation", metric.standard_deviation
    for name, value in (outcome.expected_metrics or {}).items():
        yield f"expected_{name}", value


def _list_run_values(run: ReportedRun) -> Iterator[tuple[str, object]]:
    """Yield the JUnit properties of a run as (name, value)."""
    yield "run", run.id
    yield "job", run.job_id
    started = run.started or "at an unknown time"
    yield "started", f"{started} ({run.started_from}), {run.age} old"
    log_files = formatting.count_noun(run.attempts, "log file")
    yield "restart", f"{run.attempt} (of {log_files})"
    yield "identified", run.identified


def _make_valid(element: ElementTree.Element) -> None:
    """Fix output of junit-xml 1.9 that XML or the Jenkins schema does not allow."""
    element.attrib.pop("disabled", None)  # unknown to the schema
    if element.tag == "testsuite":
        # The schema allows at most three decimals.
        element.set("time", f"{float(element.attrib['time']):.3f}")
    element.text = _escape_illegal(element.text or "") or None
    for name, value in element.attrib.items():
        element.set(name, _escape_illegal(value))


def _escape_illegal(text: str) -> str:
    """Write characters that are illegal in XML as escapes, such as `\\x1b`."""
    return ILLEGAL.sub(
        lambda match: match.group().encode("unicode_escape").decode("ascii"), text
    )
