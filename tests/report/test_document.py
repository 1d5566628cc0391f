"""The JSON document of a session: valid JSON that matches its schema."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.builders import KEY
from support.outcomes import (
    SCHEMA,
    check,
    incomplete,
    inconclusive,
    list_schema_errors,
    make_session,
    missing,
    slow,
    stray,
    told,
)

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.report.document import read, render_session
from pytest_llmbench.report.outcome_documents import OutcomeDocument, make_plain

MIXED: list[OutcomeDocument] = [
    told(),
    slow(),
    inconclusive(),
    incomplete(),
    missing(),
    stray(),
    check(),
    check("failed", Verdict.REGRESSION, "other"),
]


TONIGHT: dict[str, Any] = {
    "environment": {"nccl": "2.27.3", "commit": "1f", "driver": None},
    "history": [
        {
            "started": "2025-11-19T06:00:00+00:00",
            "verdict": "PASS",
            "reason": "within-tolerance",
            "step_time_seconds": 7.3,
            "expected_seconds": 7.325,
            "log_difference": -0.003,
            "job_id": "7",
            "environment": {"nccl": "2.26.2"},
        }
    ],
    "changes": [
        {
            "started": "2025-11-20T03:00:00+00:00",
            "kind": "step",
            "stands": True,
            "night": 1,
            "difference": 0.031,
            "low": 0.02,
            "high": 0.04,
            "environment": {"nccl": ["2.26.2", "2.27.3"]},
            "acknowledged": {"reason": "NCCL update", "by": "ops", "expires": None},
            "text": "3.1 % slower since the NCCL update",
        }
    ],
    "steps": {"index": [11, 12], "seconds": [7.3, None], "slow": [0]},
    "excerpt": {
        "log": "log-x_1_0.out",
        "line": 32,
        "what": "",
        "first_line": 31,
        "lines": ["step 31", "loss nan"],
    },
}
"""What other parts may add to the outcome of a configuration."""


def make_json(
    *described: OutcomeDocument, exit_code: int = 1, failures: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Parse the document as JSON."""
    session = make_session(*described, exit_code=exit_code, failures=failures)
    return dict(json.loads(render_session(session), parse_constant=pytest.fail))


# --- what it says ---------------------------------------------------------------------


def test_json_report_contains_exit_code_failures_and_all_outcomes() -> None:
    found = make_json(*MIXED, failures=("a report was not written",))
    assert {
        name: found[name]
        for name in ("schema", "started", "exit_code", "green", "failures")
    } == {
        "schema": 1,
        "started": "2025-11-20T06:00:00+00:00",
        "exit_code": 1,
        "green": False,
        "failures": ["a report was not written"],
    }
    ids = [outcome["id"] for outcome in found["outcomes"]]
    assert ids == [
        "family",
        "other",
        "doubtful",
        KEY.id,
        "killed",
        "missing",
        "slow",
        "run_7",
    ]
    assert all(without_parts(outcome) in found["outcomes"] for outcome in MIXED)
    assert found["counts"]["red"] == {
        "REGRESSION": 1,
        "INVALID": 1,
        "WEAK-SCALING": 1,
        "UNMATCHED": 1,
    }
    assert found["count"].startswith("2 green: 1 INCONCLUSIVE, 1 PASS; 4 red:")


def without_parts(outcome: OutcomeDocument) -> dict[str, Any]:
    """Return the plain values of an outcome without terminal-only sentences."""
    plain: dict[str, Any] = json.loads(json.dumps(make_plain(outcome)))
    return {
        name: value
        for name, value in plain.items()
        if name not in ("context_begin", "remainder")
    }


def test_documentation_lists_the_fields_in_order() -> None:
    page = (
        Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
    ).read_text(encoding="utf-8")
    (shown,) = re.findall("```json\n(.*?)```", page, re.DOTALL)
    assert list(json.loads(shown)) == list(make_json(told()))
    optional = {"session"}  # only in the document of a session that was not stored
    assert sorted(json.loads(shown)) == sorted(SCHEMA["properties"].keys() - optional)
    assert sorted(json.loads(shown)) == sorted(SCHEMA["required"])


@pytest.mark.parametrize(
    ("described", "exit_code", "failures", "green"),
    [
        ([told(), missing()], 0, (), True),
        ([told()], 1, (), False),
        ([slow()], 0, (), False),
        ([told()], 0, ("not written",), False),
    ],
)
def test_json_report_is_green_only_with_exit_code_zero_and_no_failure(
    described: list[OutcomeDocument],
    exit_code: int,
    failures: tuple[str, ...],
    green: bool,
) -> None:
    assert (
        make_json(*described, exit_code=exit_code, failures=failures)["green"] is green
    )


def test_document_does_not_depend_on_report_order() -> None:
    assert make_json(*MIXED) == make_json(*reversed(MIXED))


def test_document_has_the_worst_outcome_of_each_id() -> None:
    outcomes = make_json(told(), told("failed"), told("skipped"))["outcomes"]
    assert [outcome["status"] for outcome in outcomes] == ["failed"]


# --- the schema -----------------------------------------------------------------------


@pytest.mark.slow
def test_json_report_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "described",
    [
        MIXED,
        [],
        [told(**TONIGHT)],
        [told("failed", verdict="TEST_FAILED", overruled="PASS")],
    ],
)
def test_document_validates_against_its_schema(
    described: list[OutcomeDocument],
) -> None:
    assert list_schema_errors(make_json(*described)) == []


def test_daily_runs_state_their_environment_when_it_changes() -> None:
    ran_with = [
        {"nccl": "2.26"},
        {"nccl": "2.26"},
        {"nccl": "2.27"},
        {},
        {"nccl": "2.27"},
        {"nccl": "2.27"},
    ]
    days = [
        {"started": f"2025-10-0{day}", "verdict": "PASS", "environment": ran_with[day]}
        for day in range(6)
    ]
    told_of = make_json(told(history=days))
    outcomes = [day.get("environment") for day in told_of["outcomes"][0]["history"]]
    assert outcomes == [
        {"nccl": "2.26"},
        None,
        {"nccl": "2.27"},
        {},
        {"nccl": "2.27"},
        None,
    ]
    assert list_schema_errors(told_of) == []


# --- strict JSON ----------------------------------------------------------------------


def test_values_that_json_cannot_express_are_replaced() -> None:
    number = math.nan
    described = told(
        text="\ud800\x00",
        window_seconds=[7.3, number],
        log_difference=number,
        steps={"index": [1], "seconds": [number], "slow": []},
    )
    (outcomes,) = make_json(described)["outcomes"]
    assert (
        outcomes["window_seconds"],
        outcomes["log_difference"],
        outcomes["steps"]["seconds"],
    ) == ([7.3, None], None, [None])
    assert list_schema_errors(make_json(described)) == []


# --- reading it again -----------------------------------------------------------------


def test_written_document_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "llmb.json"
    session = make_session(*MIXED)
    path.write_bytes(render_session(session))
    assert read(path) == session


def test_unknown_key_is_ignored(tmp_path: Path) -> None:
    session, path = make_session(told()), tmp_path / "llmb.json"
    path.write_bytes(
        render_session(session).replace(
            b'"verdict": "PASS"', b'"verdict": "PASS", "newer": [1]'
        )
    )
    assert read(path) == session


def test_missing_key_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "llmb.json"
    path.write_bytes(
        render_session(make_session(told())).replace(b'"suite": ', b'"room": ')
    )
    with pytest.raises(ReportError, match="missing required field `suite`"):
        read(path)


def test_json_report_lists_window_seconds_after_run_even_for_a_missing_run() -> None:
    (outcome,) = make_json(missing())["outcomes"]
    names = list(outcome)
    assert names[names.index("run") + 1] == "window_seconds"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"schema": NaN}', "not JSON (found NaN)"),
        (b'{"schema": 1}', "missing required field `version`"),
        (
            render_session(make_session()).replace(b'"schema": 1', b'"schema": 2'),
            "schema 2, expected 1",
        ),
    ],
)
def test_file_that_is_no_json_report_is_reported_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "llmb.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
