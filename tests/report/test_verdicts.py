"""What stands beside a green light: every report names it, first, and says nothing where there is nothing to say."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders import NOW
from support.outcomes import check, faults, missing, slow, told

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.outcome_records import Caution, CautionCode, Check, CheckKind, Finding, Status
from pytest_llmbench.report import notifications
from pytest_llmbench.report.document import SessionEnding, make_document, render
from pytest_llmbench.report.html import render as page
from pytest_llmbench.report.outcome import describe_check
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.report.verdicts import SessionState, format_findings, list_findings

ASKED = {"version": "0.1.0", "baselines": "", "tolerances": [], "header": []}
WIDE = Caution(CautionCode.TOLERANCE, "tolerance 40 % (llmb_tolerance in pytest.ini), not 5 %")


def trend(identifier: str = "x", verdict: str = "SLOWER", status: Status = Status.PASSED) -> dict[str, Any]:
    return describe_check(Check(CheckKind.TREND, identifier, status, Finding(verdict), "+3.1 % since 2025-11-02"))


def change(difference: float, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "stands": True, "difference": difference, "acknowledged": None, **fields}


def made(described: list[dict[str, Any]], cautions: tuple[Caution, ...], exit_code: int = 0) -> dict[str, Any]:
    return make_document(described, ASKED, SessionEnding(exit_code, cautions=cautions), NOW)


def in_quiet_terminal(described: list[dict[str, Any]], cautions: tuple[Caution, ...] = ()) -> str:
    return "\n".join(render_summary(described, [], -1, cautions))


def in_chat(described: list[dict[str, Any]], cautions: tuple[Caution, ...] = ()) -> str:
    return notifications.make_message(made(described, cautions))


def in_github(described: list[dict[str, Any]], cautions: tuple[Caution, ...] = ()) -> str:
    return html.unescape(notifications.render_job_summary(described, SessionEnding(0, cautions=cautions)))


def in_title(described: list[dict[str, Any]], cautions: tuple[Caution, ...] = ()) -> str:
    (title,) = map(str, re.findall("<title>(.*)</title>", page(described, NOW, cautions)))
    return title


def in_page(described: list[dict[str, Any]], cautions: tuple[Caution, ...] = ()) -> str:
    body = page(described, NOW, cautions).partition("<header>")[2]
    return html.unescape(re.sub("<[^>]*>", "", body))


EVERY = [in_quiet_terminal, in_chat, in_github, in_page]
SIX = [trend(f"x-{number}") for number in range(6)]


@pytest.mark.parametrize("report", [*EVERY, in_title])
def test_what_is_known_to_be_slower_is_named_before_anything_is_green(report: Callable[..., str]) -> None:
    text = report([told(), *SIX])
    good = min(text.index(word) for word in ("1 green", "1 PASS", "PASS:") if word in text)
    assert text.index("trend: 6 SLOWER") < good


def test_the_first_word_of_a_chat_is_no_bare_green() -> None:
    assert in_chat([told(), *SIX]) == ("llmbench GREEN, but trend: 6 SLOWER, 2025-11-20 06:00 UTC: 1 green: 1 PASS")


@pytest.mark.parametrize(
    ("outcomes", "texts"),
    [
        ([told(), check(), trend(verdict="FASTER"), trend("a", "ACKNOWLEDGED")], []),
        ([trend(status=Status.FAILED)], []),
        ([check(verdict=Verdict.REGRESSION), trend()], ["weak-scaling: 1 REGRESSION", "trend: 1 SLOWER"]),
        ([told(changes=[change(0.03)]), trend(told()["id"], "ACKNOWLEDGED")], []),
        ([told(changes=[change(0.03, stands=False), change(0.005), change(-0.2)])], []),
        ([told(changes=[change(0.03, acknowledged={"reason": "a fix"})])], []),
        ([told(changes=[change(0.006), change(0.006)])], ["trend: 1 SLOWER"]),
        ([told(verdict="NOT_ASSERTED", overruled="REGRESSION")], ["not asserted: 1 REGRESSION"]),
        ([told("skipped", verdict="NOT_ASSERTED", overruled="PASS")], []),
        ([{**trend(), "overruled": "SLOWER"}], ["not asserted: 1 SLOWER"]),
    ],
)
def test_a_finding_is_what_is_known_to_be_worse_and_fails_nothing(
    outcomes: list[dict[str, Any]], texts: list[str]
) -> None:
    assert [finding.text for finding in list_findings(outcomes)] == texts


def test_a_red_session_names_it_too() -> None:
    assert format_findings(SessionState.RED, SIX) == ", trend: 6 SLOWER"
    assert in_title([told(), slow(), *SIX]) == "1 red, trend: 6 SLOWER, 1 green - llmbench"
    assert notifications.make_message(made([told(), slow(), *SIX], (), 1)).startswith("llmbench RED, trend: 6 SLOWER, ")


@pytest.mark.parametrize("report", EVERY)
def test_every_report_shows_each_caution_once_and_before_the_count(report: Callable[..., str]) -> None:
    text = report([told()], (WIDE,))
    assert " ".join(text.split()).count(f"aution: {WIDE.text}") == 1
    if report is in_chat:
        assert text.splitlines()[1] == f"caution: {WIDE.text}"
    else:
        assert text.index(WIDE.text) < text.index("1 PASS")


@pytest.mark.parametrize("report", EVERY)
def test_an_ordinary_night_has_none(report: Callable[..., str]) -> None:
    assert "caution" not in report([told(), missing(), check()]).lower()


def test_a_finding_stands_once_though_it_is_among_the_cautions() -> None:
    among = tuple(list_findings(SIX))
    for report in EVERY:
        assert report([told(), *SIX], among).count("trend: 6 SLOWER") == 1


def test_the_document_has_codes_and_one_without_cautions_is_read() -> None:
    found = made([told(), *SIX], (*list_findings(SIX), WIDE))
    assert found["cautions"] == [
        {"code": "reported-only", "text": "trend: 6 SLOWER"},
        {"code": "tolerance", "text": WIDE.text},
    ]
    assert faults(found) == []
    assert render(found)
    old = {name: value for name, value in found.items() if name != "cautions"}
    assert notifications.make_message(old).startswith("llmbench GREEN, but trend: 6 SLOWER, ")


def test_github_lists_what_is_only_reported_and_warns_of_it() -> None:
    text = in_github([told(), *SIX])
    assert text.startswith("### llmbench: green, but trend: 6 SLOWER\n")
    assert "#### 6 only reported" in text
    assert len([line for line in notifications.list_workflow_commands(SIX, ()) if line.startswith("::warning ")]) == 6


def test_every_code_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    documented = page.partition("## Cautions")[2].partition("\n## ")[0]
    assert [code for code in CautionCode if f"`{code}`" not in documented] == []


def test_what_a_test_of_the_user_let_pass_is_named() -> None:
    """By the literal rule a run that cannot tell is red, too."""
    assert in_chat([told(verdict="NOT_ASSERTED", overruled="INCONCLUSIVE")]).startswith(
        "llmbench GREEN, but not asserted: 1 INCONCLUSIVE, "
    )
