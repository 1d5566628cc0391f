"""The --llmb-junit report: one test case for each configuration, grouped into suites."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pytest_llmbench.core import formatting
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

ILLEGAL = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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

    cases = defaultdict(list)
    for outcome in sorted(select_worst(outcomes), key=attrgetter("suite", "id")):
        cases[outcome.suite].append(_make_case(outcome))
    if problems:
        cases[SESSION].append(_make_session_case(problems))
    stamp = now.isoformat(timespec="seconds")
    suites = [
        TestSuite(name, of_suite, timestamp=stamp).build_xml_doc()
        for name, of_suite in cases.items()
    ]
    totals = ("tests", "failures", "errors")
    sums = {
        name: str(sum(int(suite.attrib[name]) for suite in suites)) for name in totals
    }
    root = ElementTree.Element("testsuites", sums)
    root.extend(suites)
    for element in root.iter():
        _make_valid(element)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _make_session_case(problems: Sequence[str]) -> TestCase:
    from junit_xml import TestCase

    case = TestCase("session", f"llmbench.{SESSION}")
    case.add_error_info(problems[0], "\n".join(problems), "session")
    return case


def _make_case(outcome: OutcomeDocument) -> TestCase:
    """Build the JUnit case of an outcome. The duration is that of the window."""
    from junit_xml import TestCase

    # The duration is that of the window, not of the test (milliseconds), so that the
    # duration graph of a CI server follows the step time.
    seconds = _sum_window(outcome) if isinstance(outcome, ConfigurationOutcome) else 0
    case = TestCase(
        outcome.id,
        _make_classname(outcome),
        elapsed_sec=seconds,
        stdout=_make_system_out(outcome),
    )
    # Must not be empty: junit-xml drops a failure without message and output, and the
    # case would count as passed.
    message = _join_lines(f"{name_verdict(outcome)}: {outcome.text}")
    if outcome.status not in SEVERITY:
        case.add_failure_info(message, explain(outcome, short=False), outcome.reason)
    elif outcome.status == "skipped":
        # GitLab shows the text, other servers the attribute.
        case.add_skipped_info(message, message)
    return case


def _sum_window(outcome: ConfigurationOutcome) -> float:
    """Sum the times of the steps in the window, in seconds."""
    values = outcome.window_seconds
    steps = outcome.window_mean_of or (1,) * len(values)
    return sum(
        value * count
        for value, count in zip(values, steps, strict=True)
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
    else:
        names = [outcome.check if isinstance(outcome, CheckOutcome) else "unmatched"]
    return ".".join(["llmbench", *(name.replace(".", "_") for name in names)])


def _make_system_out(outcome: OutcomeDocument) -> str:
    lines = (
        (name, _join_lines(str(value)))
        for name, value in _list_values(outcome)
        if value is not None
    )
    return "\n".join(f"{name}: {value}" for name, value in lines if value)


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
        yield from (
            ("timed", outcome.timed),
            ("verdict", outcome.verdict),
            ("reason", outcome.reason),
        )
        yield from (("log", outcome.log), ("text", outcome.text))


def _list_configuration_values(
    outcome: ConfigurationOutcome,
) -> Iterator[tuple[str, object]]:
    """Yield the JUnit properties of a configuration as (name, value)."""
    yield "tolerance", outcome.tolerance
    if outcome.log_difference is not None and outcome.verdict in JUDGED:
        yield (
            "difference",
            formatting.format_difference(math.exp(outcome.log_difference)),
        )
    yield "text", outcome.text
    yield "context", outcome.context
    if outcome.run:
        yield from _list_run_values(outcome.run)
    elif (job := jobs.find_age(outcome))[1]:
        yield "started", f"{job[1]} (its job), {job[0]} old"
    yield "environment", format_environment(outcome.environment)
    yield "last_good", "; ".join(text for _, text in list_last_good(outcome.last_good))
    if outcome.line:
        yield "log_line", outcome.line
    yield "node_finding", outcome.nodes
    yield from (("launched", jobs.format_job(outcome, job)) for job in outcome.jobs)
    yield from (("file", file) for file in jobs.list_files(outcome))
    for label, notes in (("problem", outcome.problems), ("note", outcome.notes)):
        yield from ((label, f"{note.code}: {format_note(note)}") for note in notes)
    yield from (("also", text) for text in list_other_baselines(outcome))
    yield from _list_metrics(outcome)
    yield "baseline", format_baseline(outcome.baseline)


def _list_metrics(outcome: ConfigurationOutcome) -> Iterator[tuple[str, object]]:
    if outcome.verdict not in COUNTING:  # otherwise a property contains it
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
    yield (
        "started",
        f"{run.started or 'at an unknown time'} ({run.started_from}), {run.age} old",
    )
    yield (
        "restart",
        f"{run.attempt} (of {formatting.count_noun(run.attempts, 'log file')})",
    )
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
    return ILLEGAL.sub(
        lambda match: match.group().encode("unicode_escape").decode("ascii"), text
    )
