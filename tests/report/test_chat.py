"""The chat message: state, counts and failures in at most ten lines."""

from __future__ import annotations

import json

import pytest
from support.outcomes import (
    incomplete,
    inconclusive,
    make_session,
    missing,
    slow,
    stray,
    told,
    with_fields,
)

from pytest_llmbench.core.runtime import read_job_url
from pytest_llmbench.report.notifications import convert_to_slack, make_message
from pytest_llmbench.report.outcome_documents import OutcomeDocument


def test_message_of_a_green_session_is_one_line_and_link() -> None:
    assert make_message(
        make_session(told(), missing(), exit_code=0), "https://ci/7"
    ).splitlines() == [
        "llmbench GREEN, 2025-11-20 06:00 UTC: 1 green: 1 PASS; 1 skipped: 1 MISSING",
        "https://ci/7",
    ]


def test_message_names_failures_with_their_difference() -> None:
    lines = make_message(
        make_session(told(), stray(), incomplete(), slow(), inconclusive("failed"))
    ).splitlines()
    assert lines[1:] == [
        "REGRESSION slow: +20.0 % (8.790 s, expected 7.325 s, MFU 39.7 %)",
        "INVALID killed: stopped after step 27 of 50; the log shows no cause",
        "INCONCLUSIVE doubtful: +3.8 % (7.600 s, expected 7.325 s, MFU 45.9 %)",
        "UNMATCHED run_7: no baseline of release 26.01",
    ]


def test_message_lists_failed_runs_before_configurations_without_runs() -> None:
    context = "nothing was judged: no valid run of the 3 selected configurations."
    absent = [missing(f"absent-{number}", "failed", (context,)) for number in range(9)]
    stale = with_fields(
        told("failed", "stale"),
        verdict="MISSING",
        text="stale: the newest run is 2d old",
    )
    lines = make_message(make_session(*absent, stale), "https://ci/7").splitlines()
    assert lines[1:3] == [context, "MISSING stale: stale: the newest run is 2d old"]
    assert len(lines) <= 10


@pytest.mark.parametrize(
    ("described", "exit_code", "failures", "word"),
    [
        ([told()], 0, (), "GREEN,"),
        ([told()], 1, (), "RED,"),
        ([slow()], 0, (), "RED,"),
        ([told()], 0, ("x",), "RED,"),
        ([told()], 2, (), "INTERRUPTED,"),
        ([told()], 3, (), "ERROR (exit code 3),"),
        ([], 5, (), "ERROR (exit code 5),"),
    ],
)
def test_message_begins_with_the_state_of_the_session(
    described: list[OutcomeDocument],
    exit_code: int,
    failures: tuple[str, ...],
    word: str,
) -> None:
    text = make_message(
        make_session(*described, exit_code=exit_code, failures=failures)
    )
    assert text.startswith(f"llmbench {word} ")


def test_message_has_at_most_ten_short_lines() -> None:
    regression = slow("slow-0")
    many: list[OutcomeDocument] = [
        with_fields(regression, id=f"slow-{number}") for number in range(1000)
    ]
    many += [stray(f"{n}", "x\ny" * 500) for n in range(9)]
    lines = make_message(
        make_session(*many, failures=("nothing " * 90, "b", "c")), "https://ci/7"
    ).splitlines()
    assert len(lines) <= 10
    assert lines[-2:] == ["and 1004 more", "https://ci/7"]
    assert lines[1].endswith("... (and 2 more)")
    assert max(map(len, lines)) < 200


def test_slack_message_escapes_mentions_in_log_texts() -> None:
    text = make_message(make_session(stray("<!channel>", "a & b <@U1>")))
    sent = json.loads(convert_to_slack(text))
    assert list(sent) == ["text"]
    assert "&lt;!channel&gt;: a &amp; b &lt;@U1&gt;" in sent["text"]


@pytest.mark.parametrize(
    ("environment", "link"),
    [
        (
            {
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_REPOSITORY": "a/b",
                "GITHUB_RUN_ID": "7",
            },
            "https://github.com/a/b/actions/runs/7",
        ),
        ({"CI_JOB_URL": "https://gitlab/a/-/jobs/7"}, "https://gitlab/a/-/jobs/7"),
        ({"BUILD_URL": "https://jenkins/job/a/7/"}, "https://jenkins/job/a/7/"),
        ({}, ""),
    ],
)
def test_message_links_to_the_ci_job(environment: dict[str, str], link: str) -> None:
    assert read_job_url(environment) == link
