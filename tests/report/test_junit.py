"""The JUnit report: statuses survive any text, and Jenkins accepts the file."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.builders import KEY, NOW, evidence, measurement
from support.outcomes import check, missing, stray, told, with_fields

from pytest_llmbench.core.codes import NoteCode, Reason
from pytest_llmbench.core.job_records import LaunchedJob, Purpose
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.run_records import Note, Problem
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.junit import render
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    OutcomeDocument,
)

pytestmark = pytest.mark.wheel

DIRECTORY = Path("/runs")
SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("jenkins-junit.xsd"))


def parsed(*described: OutcomeDocument) -> ElementTree.Element:
    return ElementTree.fromstring(render(described, NOW))  # noqa: S314 (our own report)


def status_of(case: ElementTree.Element) -> str:
    element = [
        tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None
    ]
    return {(): "passed", ("failure",): "failed", ("skipped",): "skipped"}[
        tuple(element)
    ]


def statuses(*described: OutcomeDocument) -> dict[str, str]:
    return {
        case.attrib["name"]: status_of(case)
        for case in parsed(*described).iter("testcase")
    }


def output(outcome: OutcomeDocument) -> list[str]:
    return (parsed(outcome).findtext(".//system-out") or "").splitlines()


# --- what it says ---------------------------------------------------------------------


def test_each_configuration_is_a_case_in_its_suite() -> None:
    key = structs.replace(
        told().configuration, recipe="llama3.1", release="25.04", gpu="h100"
    )
    other = told(identifier="other", suite="llama3.1 25.04 h100 fp8", configuration=key)
    root = parsed(stray(), told(), other, missing())
    assert [
        (suite.attrib["name"], [case.attrib["name"] for case in suite.iter("testcase")])
        for suite in root
    ] == [
        ("grok1 25.05 gb200 bf16", [KEY.id, "missing"]),
        ("llama3.1 25.04 h100 fp8", ["other"]),
        ("unmatched runs", ["run_7"]),
    ]
    assert [suite.find("testcase").attrib["classname"] for suite in root] == [  # type: ignore[union-attr]
        "llmbench.grok1.25_05.gb200.bf16",
        "llmbench.llama3_1.25_04.h100.bf16",
        "llmbench.unmatched",
    ]
    assert {suite.attrib["timestamp"] for suite in root} == {
        "2025-11-20T06:00:00+00:00"
    }


def test_each_case_contains_measured_and_expected_values() -> None:
    described = told("failed", seconds=7.4)
    lines = output(described)
    assert {
        "step_time_seconds: 7.4",
        "expected_seconds: 7.325",
        "bound_seconds: 7.69125",
        "difference: +1.0 %",
        "tolerance: 5 %",
        "window: mean of steps 11 to 44",
        "expected_mfu: 0.4758654314968308",
        "step_time_seconds_standard_deviation: 0.0",
        "log: log-x_1_0.out",
        "run: x_1",
        "job: 1",
        "started: 2025-11-20T03:00:00+00:00 (folder name), 3h old",
        "restart: 0 (of 1 log file)",
        "baseline: published: Grok1 314b BF16, 25.05.yaml:42",
        f"text: {described.text}",
    } <= set(lines)
    names = [line.partition(": ")[0] for line in lines]
    assert {
        "tokens_per_second",
        "mfu",
        "tflops_per_gpu",
        "days_to_1t_tokens",
        "last_step_seconds",
    } <= set(names)


def test_notes_and_problems_are_reported_with_their_line() -> None:
    notes = tuple(
        Note(NoteCode.TORN, f"torn line {number}", number) for number in range(7)
    )
    problems = (
        Problem(Reason.DIVERGED, "loss is nan", 12),
        Problem(Reason.INCOMPLETE, "50 steps, 20 found"),
    )
    judgement = judge(evidence(measurement(problems=problems, notes=notes)))
    lines = output(
        describe(
            Outcome(ConfigurationResult(Case("a", KEY), judgement), Status.FAILED),
            NOW,
            DIRECTORY,
        )
    )
    assert [line for line in lines if line.startswith("note: ")] == [
        "note: torn: torn line 0",
        *(f"note: torn: torn line {number} (line {number})" for number in range(1, 7)),
    ]
    assert "problem: diverged: loss is nan (line 12)" in lines
    assert "problem: incomplete: 50 steps, 20 found" in lines
    assert "log_line: 12" in lines


def test_junit_output_of_an_invalid_run_states_no_difference_to_the_baseline() -> None:
    judgement = judge(
        evidence(measurement(problems=(Problem(Reason.DIVERGED, "loss is nan", 12),)))
    )
    lines = output(
        describe(
            Outcome(ConfigurationResult(Case("a", KEY), judgement), Status.FAILED),
            NOW,
            DIRECTORY,
        )
    )
    assert "verdict: INVALID" in lines
    assert not [line for line in lines if line.startswith("difference")]


def test_failure_has_one_line_message_and_full_explanation() -> None:
    described = told("failed", seconds=8.4)
    failure = parsed(with_fields(described, text="slower\nby far")).find(".//failure")
    assert failure is not None
    assert failure.attrib == {
        "type": "slower-than-bound",
        "message": "REGRESSION: slower by far",
    }
    assert failure.text == explain(
        with_fields(described, text="slower by far"), short=False
    )
    assert "+14.7 %" in failure.text


def test_skipped_case_states_its_reason() -> None:
    skipped = parsed(missing()).find(".//skipped")
    assert skipped is not None
    assert (
        skipped.attrib["message"]
        == skipped.text
        == "MISSING: no run of this configuration"
    )


def test_class_and_name_of_each_case_are_unique() -> None:
    """GitLab drops the second of two cases with equal class and name."""
    same: list[OutcomeDocument] = [
        told("passed", "a"),
        stray("a"),
        check(identifier="a"),
    ]
    same += [check("failed", identifier="b"), missing()]
    cases = [
        (case.attrib["classname"], case.attrib["name"])
        for case in parsed(*same).iter("testcase")
    ]
    assert len(set(cases)) == len(cases) == len(same)


def test_duration_of_a_case_is_that_of_its_window() -> None:
    """34 steps of 7.4123 s; the sum of the suite has the three decimals that the schema
    allows."""
    root = parsed(told(seconds=7.4123), missing())
    assert [case.get("time") for case in root.iter("testcase")] == ["252.018200", None]
    assert root[0].attrib["time"] == "252.018"


def test_junit_duration_multiplies_a_printed_mean_by_its_number_of_steps() -> None:
    described = with_fields(told(), window_seconds=[7.0, 8.0], window_mean_of=[10, 20])
    assert [case.get("time") for case in parsed(described).iter("testcase")] == [
        "230.000000"
    ]


# --- no status is lost ----------------------------------------------------------------


def test_junit_case_gets_the_worst_status_of_outcomes_with_its_id() -> None:
    assert statuses(told("passed"), told("failed"), told("skipped")) == {
        KEY.id: "failed"
    }
    assert statuses(told("skipped"), told("passed")) == {KEY.id: "skipped"}


@pytest.mark.parametrize("status", ["failed", "error", "", "PASSED"])
def test_unknown_status_is_a_failure(status: str) -> None:
    assert statuses(with_fields(told(status="failed"), status=status)) == {
        KEY.id: "failed"
    }


def rich() -> ConfigurationOutcome:
    """Make an outcome in which every field is filled."""
    notes, problems = (
        (Note(NoteCode.TORN, "torn", 3),),
        (Problem(Reason.DIVERGED, "loss is nan", 12),) * 2,
    )
    judgement = judge(evidence(measurement(problems=problems, notes=notes)))
    other = judge(evidence(measurement(7.1)))
    jobs = (
        LaunchedJob("12", Purpose.MEASURE, 1, 1, "NODE_FAIL", ("n1",)),
        LaunchedJob("14", Purpose.MEASURE, 2, 1, "", ("n2",)),
    )
    outcome = Outcome(
        ConfigurationResult(
            Case("a", KEY), judgement, others=(other,), jobs=jobs, nodes="slow nodes"
        ),
        Status.FAILED,
        context=("context",),
    )
    metrics, expected = told().metrics, told().expected_metrics
    return structs.replace(
        describe(outcome, NOW, DIRECTORY), metrics=metrics, expected_metrics=expected
    )


def test_log_text_cannot_add_lines_to_the_report() -> None:
    described = told(
        "failed",
        text="slow\r\nverdict: PASS\u2028verdict: PASS\x85verdict: PASS\x0bverdict: PASS",
    )
    assert [line for line in output(described) if line.startswith("verdict: ")] == [
        "verdict: PASS"
    ]
    assert (
        "text: slow verdict: PASS verdict: PASS verdict: PASS verdict: PASS"
        in output(described)
    )


def test_carriage_return_is_escaped() -> None:
    """XML readers convert carriage returns to line feeds."""
    assert "UNMATCHED  a\\rb\n" in (parsed(stray("a\rb")).findtext(".//failure") or "")


def test_report_does_not_depend_on_outcome_order() -> None:
    described: list[OutcomeDocument] = [
        told("passed", "a"),
        told("failed", "b"),
        missing(),
        stray(),
    ]
    assert {render(order, NOW) for order in itertools.permutations(described)} == {
        render(described, NOW)
    }


# --- the schema that Jenkins uses -----------------------------------------------------


def test_report_validates_against_the_jenkins_schema() -> None:
    SCHEMA.validate(
        render(
            [
                told("passed", "a"),
                told("failed", "b", 7.41287),
                missing(),
                stray(),
                rich(),
            ],
            NOW,
        ).decode()
    )
    SCHEMA.validate(render([], NOW).decode())


TEXT = st.text(
    st.characters()
    | st.characters(categories=["Cs", "Cc"])
    | st.sampled_from("\ufffe\uffff&<>\"']\u2028")
)


KEPT = {"status", "kind", "reason", "id", "suite"}


def replaced(value: Any, text: st.DataObject, key: str = "") -> Any:
    """Return a copy in which every text is replaced by a drawn text."""
    if isinstance(value, dict):
        return {name: replaced(inner, text, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, text) for inner in value]
    return text.draw(TEXT) if isinstance(value, str) and key not in KEPT else value


EVERYTHING = (rich(), told("passed"), missing(), stray())


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.data(),
    st.lists(
        st.tuples(st.sampled_from(["passed", "failed", "skipped"]), TEXT, TEXT),
        max_size=4,
    ),
)
def test_arbitrary_texts_never_change_a_junit_status_or_add_lines(
    text: st.DataObject, drawn: list[tuple[str, str, str]]
) -> None:
    described = []
    for number, (status, identifier, suite) in enumerate(drawn):
        shown_outcome = replaced(EVERYTHING[number], text)
        described.append(
            with_fields(
                shown_outcome, status=status, id=f"{number} {identifier}", suite=suite
            )
        )
    document = render(described, NOW)
    root = ElementTree.fromstring(document)  # noqa: S314 (our own report)
    found = {
        case.attrib["name"].partition(" ")[0]: status_of(case)
        for case in root.iter("testcase")
    }
    assert found == {str(number): status for number, (status, _, _) in enumerate(drawn)}
    assert int(root.attrib["tests"]) == len(drawn)
    assert int(root.attrib["failures"]) == [status for status, _, _ in drawn].count(
        "failed"
    )
    assert sum(int(suite.attrib["skipped"]) for suite in root) == [
        status for status, _, _ in drawn
    ].count("skipped")
    for case in root.iter("testcase"):
        names = [
            line.partition(": ")[0]
            for line in (case.findtext("system-out") or "").split("\n")
        ]
        assert all(re.fullmatch("[a-z0-9_]+", name) for name in names)
        assert names.count("verdict") <= 1
    assert SCHEMA.is_valid(document.decode())
