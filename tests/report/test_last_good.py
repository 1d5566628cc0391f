"""The last good run before a failed one, in all reports."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from msgspec import to_builtins
from msgspec.structs import replace
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps
from support.outcomes import FOLDER, SCHEMA, make_session

from pytest_llmbench.core.judgement_records import (
    ComparedFacts,
    ComparedNodes,
    LastGoodRun,
    RunSource,
)
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.text import WIDTH
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.advice import advise
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.document import SessionEnding
from pytest_llmbench.report.explain import explain, list_last_good
from pytest_llmbench.report.junit import render
from pytest_llmbench.report.notifications import (
    list_workflow_commands,
    make_message,
    render_job_summary,
)
from pytest_llmbench.report.outcome_documents import ConfigurationOutcome
from pytest_llmbench.runs.measure.measurement import measure

EVEN = "no single step stands out"
SPIKE = "one spike: step 31 took 2 x the median"
STARTED = datetime(2025, 11, 17, 2, tzinfo=UTC)
BARE = LastGoodRun(STARTED, "71", RunSource.HISTORY, "PASS", 7.3, 0.2, 3)
RICH = replace(
    BARE,
    source=RunSource.FOLDER,
    software=ComparedFacts(("driver",), (("nccl", "2.26.6", "2.27.3"),)),
    settings=ComparedFacts(
        ("micro batch size",), (("launcher", "sbatch", "nemo-run"),)
    ),
    nodes=ComparedNodes(("n1", "n2", "n3", "n4"), ("n2", "n4", "n7", "n8")),
    steps=((EVEN,), (SPIKE,)),
)


def outcome(last: LastGoodRun | None) -> ConfigurationOutcome:
    judgement = judge(evidence(measure(run(log(segment(steps(8.79)))), BASELINE, NOW)))
    return describe(
        Outcome(
            ConfigurationResult(Case(KEY.id, KEY), replace(judgement, last_good=last)),
            Status.FAILED,
        ),
        NOW,
        FOLDER,
    )


def facts(last: LastGoodRun) -> dict[str, str]:
    reported = outcome(last).last_good
    assert reported is not None
    return dict(list_last_good(reported))


def test_last_good_run_lists_differences_and_their_sources() -> None:
    assert facts(RICH) == {
        "last good": "2025-11-17 02:00, job 71 (folder): 7.300 s, +20.0 % for 3 days",
        "since": (
            "differs: NCCL 2.26.6 -> 2.27.3, launcher sbatch -> nemo-run, 2 of 4 nodes (history): n7, n8; "
            f"same: driver, micro batch size; steps then: {EVEN}; now: {SPIKE}"
        ),
    }


def test_unknown_facts_are_not_listed_as_equal() -> None:
    assert facts(BARE) == {
        "last good": "2025-11-17 02:00, job 71 (history): 7.300 s, +20.0 % for 3 days",
        "since": "no known setting differs; unknown: software, settings, nodes, pattern of the steps",
    }


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (("a", "b"), ("c", "d"), "differs: all 2 nodes (history)"),
        (("a", "b"), ("a", "b"), "no known setting differs; same: nodes (history)"),
        (
            tuple(f"a{number}" for number in range(9)),
            ("a0", *(f"n{number}" for number in range(8))),
            "differs: 8 of 9 nodes (history): n0, n1, n2, n3, n4 and 3 more",
        ),
    ],
)
def test_changed_nodes_are_summarised(
    before: tuple[str, ...], now: tuple[str, ...], text: str
) -> None:
    since = facts(replace(BARE, nodes=ComparedNodes(before, now)))["since"]
    assert since == f"{text}; unknown: software, settings, pattern of the steps"


def test_last_good_run_line_shows_a_verdict_other_than_pass() -> None:
    last = facts(
        replace(BARE, verdict="INCONCLUSIVE", slower=None, steps=((EVEN,), (EVEN,)))
    )
    assert (
        last["last good"] == "2025-11-17 02:00, job 71 (history, INCONCLUSIVE): 7.300 s"
    )
    assert f"; steps then and now: {EVEN}; unknown" in last["since"]


def test_message_with_last_good_run_fits_80_columns() -> None:
    message = explain(outcome(RICH), short=False)
    assert max(map(len, message.splitlines())) <= WIDTH
    assert (
        "\n  last good 2025-11-17 02:00, job 71 (folder): 7.300 s, +20.0 % for 3 days\n  since     differs: "
        in message
    )
    assert "last good" not in explain(outcome(None), short=False).replace(
        "last good run", ""
    )


@pytest.mark.parametrize("last", [RICH, BARE, None])
def test_last_good_run_validates_against_the_schema(last: LastGoodRun | None) -> None:
    part = SCHEMA["$defs"]["ReportedJudgement"]["properties"]["last_good"]
    validator = Draft202012Validator({**part, "$defs": SCHEMA["$defs"]})
    described = json.loads(json.dumps(to_builtins(outcome(last).last_good)))
    assert [error.message for error in validator.iter_errors(described)] == []
    if described:
        assert list(validator.iter_errors({**described, "source": "hearsay"}))


def test_all_reports_show_the_last_good_run() -> None:
    told, head = outcome(RICH), "2025-11-17 02:00, job 71 (folder): 7.300 s"
    case = ElementTree.fromstring(render([told], NOW)).find(".//testcase")  # noqa: S314 (our own report)
    assert case is not None
    assert f"\nlast_good: {head}" in str(case.findtext("system-out"))
    assert head in str(case.findtext("failure"))
    ending = SessionEnding(1, ())
    assert f"last good: {head}" in html.unescape(render_job_summary([told], ending))
    assert any(
        f"last good: {head}" in command
        for command in list_workflow_commands([told], ())
    )
    assert ", last good 2025-11-17" in make_message(make_session(told))


def test_advice_mentions_known_differences_first() -> None:
    assert (
        "since the last good run: check the differences since then, or run"
        in advise(outcome(RICH))
    )
    assert "since the last good run: run both builds alternately" in advise(
        outcome(BARE)
    )
    assert "since the last good run" not in advise(outcome(None))
