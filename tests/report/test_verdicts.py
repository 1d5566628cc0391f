"""Findings and cautions: every report shows them next to a green result."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders import NOW
from support.outcomes import (
    check,
    level_change,
    list_schema_errors,
    make_session,
    missing,
    slow,
    told,
    with_fields,
)

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.outcome_records import (
    Caution,
    CautionCode,
    Check,
    CheckKind,
    Finding,
    Status,
)
from pytest_llmbench.report import notifications
from pytest_llmbench.report.describe_outcome import describe_check
from pytest_llmbench.report.document import SessionEnding, read, render_session
from pytest_llmbench.report.html import render as page
from pytest_llmbench.report.outcome_documents import CheckOutcome, OutcomeDocument
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.report.verdicts import SessionState, format_findings, list_findings

WIDE = Caution(
    CautionCode.TOLERANCE, "tolerance 40 % (llmb_tolerance in pytest.ini), not 5 %"
)


def trend(
    identifier: str = "x", verdict: str = "SLOWER", status: Status = Status.PASSED
) -> CheckOutcome:
    return describe_check(
        Check(
            CheckKind.TREND,
            identifier,
            status,
            Finding(verdict),
            "+3.1 % since 2025-11-02",
        )
    )


def in_quiet_terminal(
    described: list[OutcomeDocument], cautions: tuple[Caution, ...] = ()
) -> str:
    return "\n".join(render_summary(described, [], -1, cautions))


def in_chat(
    described: list[OutcomeDocument], cautions: tuple[Caution, ...] = ()
) -> str:
    return notifications.make_message(
        make_session(*described, exit_code=0, cautions=cautions)
    )


def in_github(
    described: list[OutcomeDocument], cautions: tuple[Caution, ...] = ()
) -> str:
    return html.unescape(
        notifications.render_job_summary(described, SessionEnding(0, cautions=cautions))
    )


def in_title(
    described: list[OutcomeDocument], cautions: tuple[Caution, ...] = ()
) -> str:
    (title,) = map(
        str,
        re.findall(
            "<title>(.*)</title>",
            page(described, NOW, ending=SessionEnding(0, cautions=cautions)),
        ),
    )
    return title


def in_page(
    described: list[OutcomeDocument], cautions: tuple[Caution, ...] = ()
) -> str:
    body = page(described, NOW, ending=SessionEnding(0, cautions=cautions)).partition(
        "<header>"
    )[2]
    return html.unescape(re.sub("<[^>]*>", "", body))


EVERY = [in_quiet_terminal, in_chat, in_github, in_page]
SIX = [trend(f"x-{number}") for number in range(6)]


@pytest.mark.parametrize("report", [*EVERY, in_title])
def test_report_headline_lists_unfailed_slowdowns_before_the_green_count(
    report: Callable[..., str],
) -> None:
    text = report([told(), *SIX])
    good = min(
        text.index(word) for word in ("1 green", "1 PASS", "PASS:") if word in text
    )
    assert text.index("trend: 6 SLOWER") < good


def test_chat_message_lists_unfailed_slowdowns_after_the_word_green() -> None:
    assert in_chat([told(), *SIX]) == (
        "llmbench GREEN, but trend: 6 SLOWER, 2025-11-20 06:00 UTC: 1 green: 1 PASS"
    )


@pytest.mark.parametrize(
    ("outcomes", "texts"),
    [
        ([told(), check(), trend(verdict="FASTER"), trend("a", "ACKNOWLEDGED")], []),
        ([trend(status=Status.FAILED)], []),
        (
            [check(verdict=Verdict.REGRESSION), trend()],
            ["weak-scaling: 1 REGRESSION", "trend: 1 SLOWER"],
        ),
        ([told(changes=[level_change(0.03)]), trend(told().id, "ACKNOWLEDGED")], []),
        (
            [
                told(
                    changes=[
                        level_change(0.03, stands=False),
                        level_change(0.005),
                        level_change(-0.2),
                    ]
                )
            ],
            [],
        ),
        (
            [
                told(
                    changes=[
                        level_change(
                            0.03,
                            acknowledged={
                                "reason": "a fix",
                                "by": "ops",
                                "expires": None,
                            },
                        )
                    ]
                )
            ],
            [],
        ),
        (
            [told(changes=[level_change(0.006), level_change(0.006)])],
            ["trend: 1 SLOWER"],
        ),
        (
            [told(verdict="NOT_ASSERTED", overruled="REGRESSION")],
            ["not asserted: 1 REGRESSION"],
        ),
        ([told("skipped", verdict="NOT_ASSERTED", overruled="PASS")], []),
        ([with_fields(trend(), overruled="SLOWER")], ["not asserted: 1 SLOWER"]),
    ],
)
def test_finding_is_a_slowdown_that_did_not_fail(
    outcomes: list[OutcomeDocument], texts: list[str]
) -> None:
    assert [finding.text for finding in list_findings(outcomes)] == texts


def test_failed_session_also_lists_slowdowns_that_failed_no_test() -> None:
    assert format_findings(SessionState.RED, SIX) == ", trend: 6 SLOWER"
    assert (
        in_title([told(), slow(), *SIX]) == "1 red, trend: 6 SLOWER, 1 green - llmbench"
    )
    assert notifications.make_message(make_session(told(), slow(), *SIX)).startswith(
        "llmbench RED, trend: 6 SLOWER, "
    )


@pytest.mark.parametrize("report", EVERY)
def test_each_report_shows_cautions_once_before_the_count(
    report: Callable[..., str],
) -> None:
    text = report([told()], (WIDE,))
    assert " ".join(text.split()).count(f"aution: {WIDE.text}") == 1
    if report is in_chat:
        assert text.splitlines()[1] == f"caution: {WIDE.text}"
    else:
        assert text.index(WIDE.text) < text.index("1 PASS")


@pytest.mark.parametrize("report", EVERY)
def test_report_of_an_ordinary_session_contains_no_caution(
    report: Callable[..., str],
) -> None:
    assert "caution" not in report([told(), missing(), check()]).lower()


def test_slowdown_already_listed_among_the_cautions_is_shown_once() -> None:
    among = tuple(list_findings(SIX))
    for report in EVERY:
        assert report([told(), *SIX], among).count("trend: 6 SLOWER") == 1


def test_json_report_contains_caution_codes_and_is_readable_without_them(
    tmp_path: Path,
) -> None:
    session = make_session(
        told(), *SIX, exit_code=0, cautions=(*list_findings(SIX), WIDE)
    )
    document = json.loads(render_session(session))
    assert document["cautions"] == [
        {"code": "reported-only", "text": "trend: 6 SLOWER"},
        {"code": "tolerance", "text": WIDE.text},
    ]
    assert list_schema_errors(document) == []
    old = tmp_path / "old.json"
    old.write_text(
        json.dumps(
            {name: value for name, value in document.items() if name != "cautions"}
        )
    )
    assert notifications.make_message(read(old)).startswith(
        "llmbench GREEN, but trend: 6 SLOWER, "
    )


def test_github_lists_reported_findings_as_warnings() -> None:
    text = in_github([told(), *SIX])
    assert text.startswith("### llmbench: green, but trend: 6 SLOWER\n")
    assert "#### 6 only reported" in text
    assert (
        len(
            [
                line
                for line in notifications.list_workflow_commands(SIX, ())
                if line.startswith("::warning ")
            ]
        )
        == 6
    )


def test_verdict_ignored_by_a_custom_test_is_a_finding() -> None:
    """An inconclusive run fails under the literal rule as well."""
    assert in_chat([told(verdict="NOT_ASSERTED", overruled="INCONCLUSIVE")]).startswith(
        "llmbench GREEN, but not asserted: 1 INCONCLUSIVE, "
    )
