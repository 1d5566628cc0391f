"""The --llmb-junit report: a suite for each recipe, GPU type and precision, a test case for each configuration."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from pytest_llmbench.core import formatting
from pytest_llmbench.report import environment, jobs
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.outcome import COUNTING, PROPERTIES, properties
from pytest_llmbench.report.terminal import JUDGED, SEVERITY, worst

if TYPE_CHECKING:
    from junit_xml import TestCase

ILLEGAL = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 forbids, the other control characters, and carriage returns, which a reader takes for line feeds."""


def render(described: Sequence[dict[str, Any]], now: datetime) -> bytes:
    """Return the report as XML in UTF-8: as many failures and skipped cases as ids with that status, whatever the text.

    Suites and cases are sorted by name. The text of an outcome that cannot stand in XML is written as `\\x1b`.
    """
    from junit_xml import TestSuite

    cases = defaultdict(list)
    for one in sorted(worst(described), key=itemgetter("suite", "id")):
        cases[one["suite"]].append(_case(one))
    stamp = now.isoformat(timespec="seconds")
    suites = [TestSuite(name, of_suite, timestamp=stamp).build_xml_doc() for name, of_suite in cases.items()]
    totals = ("tests", "failures", "errors")
    root = ElementTree.Element("testsuites", {name: _total(suites, name) for name in totals})
    root.extend(suites)
    for element in root.iter():
        _make_valid(element)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(one: dict[str, Any]) -> TestCase:
    from junit_xml import TestCase

    values = one.get("window_seconds", ())
    steps = one.get("window_mean_of") or (1,) * len(values)
    seconds = sum(value * count for value, count in zip(values, steps, strict=True) if value is not None and value > 0)
    case = TestCase(one["id"], _classname(one), elapsed_sec=seconds, stdout=_system_out(one))
    # junit-xml drops a failure without message and output, and the case reads as passed: this is never empty.
    message = _one_line(f"{one.get('verdict') or one['reason'].upper()}: {one['text']}")
    if one["status"] not in SEVERITY:
        case.add_failure_info(message, explain(one, short=False), one["reason"])
    elif one["status"] == "skipped":
        case.add_skipped_info(message, message)  # GitLab shows the text, others the attribute
    return case


def _classname(one: dict[str, Any]) -> str:
    """Return `llmbench.grok1.25_05.gb200.bf16`: CI servers make a tree of its dots, and keep histories by it."""
    configuration = one.get("configuration")
    other = one.get("check", "unmatched")
    parts = [configuration[name] for name in ("recipe", "release", "gpu", "dtype")] if configuration else [other]
    return ".".join(["llmbench", *(part.replace(".", "_") for part in parts)])


def _system_out(one: dict[str, Any]) -> str:
    lines = ((name, _one_line(str(value))) for name, value in _lines(one) if value is not None)
    return "\n".join(f"{name}: {value}" for name, value in lines if value)


def _one_line(text: str) -> str:
    """Return the text without line breaks, so that a log cannot write lines of its own into the report."""
    return " ".join(text.split())


def _lines(one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; the properties of --junitxml first, since servers cut the output of passed cases."""
    yield from properties(one)
    yield "tolerance", one.get("tolerance")
    if one.get("log_difference") is not None and one["verdict"] in JUDGED:
        yield "difference", formatting.format_difference(math.exp(one["log_difference"]))
    yield "text", one["text"]
    yield "context", one.get("context")
    if one.get("run"):
        yield from _run(one["run"])
    yield "environment", environment.line(one.get("environment") or {})
    if one.get("line"):
        yield "log_line", one["line"]
    yield "node_finding", jobs.finding(one)
    for job in one.get("jobs", ()):
        yield "launched", jobs.line(one, job)
    for file in jobs.files(one):
        yield "file", file
    yield from _notes("problem", one.get("problems", ()))
    yield from _notes("note", one.get("notes", ()))
    for other in one.get("others", ()):
        yield "also", f"{other['verdict']} against the {other['baseline']['kind']} baseline: {other['text']}"
    yield from _metrics(one)
    if one.get("baseline"):
        source = one["baseline"]
        table = source["table"] or source["document"]
        yield "baseline", f"{source['kind']}: {table}, {source['file']}:{source['line']}"


def _metrics(one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if one.get("verdict") not in COUNTING:  # else it is among the properties
        yield "last_step_seconds", one.get("last_step_seconds")
    for name, metric in one.get("metrics", {}).items():
        if name not in PROPERTIES:
            yield name, metric["value"]
        yield f"{name}_standard_deviation", metric["standard_deviation"]
    for name, value in one.get("expected_metrics", {}).items():
        yield f"expected_{name}", value


def _run(run: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "run", run["id"]
    yield "job", run["job_id"]
    yield "started", f"{run['started'] or 'at an unknown time'} ({run['started_from']}), {run['age']} old"
    yield "restart", f"{run['attempt']} (of {formatting.count_noun(run['attempts'], 'log file')})"
    yield "identified", run["identified"]


def _notes(label: str, notes: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for note in notes:
        yield label, f"{note['code']}: {note['text']}" + (f" (line {note['line']})" if note["line"] else "")


def _total(suites: Sequence[ElementTree.Element], name: str) -> str:
    return str(sum(int(suite.attrib[name]) for suite in suites))


def _make_valid(element: ElementTree.Element) -> None:
    """Change what junit-xml 1.9 writes and XML or the schema of Jenkins refuses."""
    element.attrib.pop("disabled", None)  # unknown to the schema
    if element.tag == "testsuite":
        element.set("time", f"{float(element.attrib['time']):.3f}")  # the schema refuses more digits
    element.text = _legal(element.text or "") or None
    for name, value in element.attrib.items():
        element.set(name, _legal(value))


def _legal(text: str) -> str:
    return ILLEGAL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)
