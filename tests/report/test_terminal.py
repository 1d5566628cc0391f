"""The terminal summary: verbosity, colours, width and next steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from support.outcomes import (
    check,
    incomplete,
    inconclusive,
    missing,
    slow,
    stray,
    told,
    with_fields,
)

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.text import count_columns
from pytest_llmbench.report.explain import explain, wrap
from pytest_llmbench.report.outcome_documents import (
    OutcomeDocument,
    make_plain,
    restore_outcome,
)
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.report.verdicts import (
    choose_colour,
    choose_common_colour,
    count_verdicts,
    format_counts,
)

MIXED: list[OutcomeDocument] = [
    told(),
    slow(),
    inconclusive(),
    missing(),
    stray(),
    check(),
    incomplete(),
]


def coloured(*described: OutcomeDocument) -> dict[str, str]:
    """Return the colour of each marked text."""
    return {
        line[: line.marked]: line.colour
        for line in render_summary(described, [])
        if line.colour
    }


def steps(*described: OutcomeDocument) -> list[str]:
    """Return the next steps, each joined to one line."""
    text = "\n".join(line for line in render_summary(described, [])).partition(
        "\nnext: "
    )[2]
    lines = text.splitlines()[: -len(wrap(format_counts(described), "  "))]
    return " ".join(line.strip() for line in lines).split(" next: ") if lines else []


# --- verbosity ------------------------------------------------------------------------


def test_quiet_summary_shows_failures_and_counts() -> None:
    lines = list(render_summary(MIXED, ["a report was not written"], -1))
    assert [line.split()[:2] for line in lines if line[:1].isupper()] == [
        ["REGRESSION", "slow"],
        ["INVALID", "killed"],
        ["UNMATCHED", "run_7"],
    ]
    assert "a report was not written" in lines
    assert " ".join(lines[-2:]).split()[:3] == ["2", "green:", "1"]
    assert not [
        line for line in lines if line.startswith(("next", "verdict", "weak-scaling"))
    ]


def test_quiet_summary_without_failures_contains_only_the_verdict_count() -> None:
    assert list(render_summary([told(), missing()], [], -1)) == [
        "1 green: 1 PASS; 1 skipped: 1 MISSING"
    ]


def test_quiet_summary_shows_a_failed_check() -> None:
    lines = list(render_summary([told(), check("failed", Verdict.REGRESSION)], [], -1))
    assert lines[:2] == [
        "weak-scaling: 1 REGRESSION",
        "  family: 93.1 % of the throughput",
    ]


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_documented_configurations_without_a_run_are_one_line(verbosity: int) -> None:
    """The user's own configuration is listed by name."""
    documented = [
        with_fields(missing(f"absent-{number}"), own=False) for number in range(9)
    ]
    own = [with_fields(told(), own=True), with_fields(missing("mine"), own=True)]
    text = " ".join(
        " ".join(render_summary([*documented, *own], [], verbosity)).split()
    )
    assert (
        "MISSING 1 without a run: mine MISSING 9 documented configurations have no run"
        in text
    ) is (verbosity >= 0)
    assert ("absent-8" in text) is (verbosity > 0)
    assert ("next: mine without a run: launch it with pytest -k mine" in text) is (
        verbosity >= 0
    )
    assert text.endswith("1 green: 1 PASS; 10 skipped: 10 MISSING")


def test_documented_configuration_that_must_run_is_listed_by_id_if_missing() -> None:
    described = [
        with_fields(missing("needed", "failed"), own=False),
        with_fields(missing("absent"), own=False),
        told(),
    ]
    text = " ".join(
        render_summary([*described, with_fields(told(identifier="mine"), own=True)], [])
    )
    assert "MISSING        1 without a run: needed" in text
    assert "MISSING        1 documented configuration has no run" in text


def test_verbose_summary_lists_all_missing_configurations() -> None:
    absent = [missing(f"absent-{number}") for number in range(9)]
    assert "absent-8" not in " ".join(render_summary(absent, []))
    text = " ".join(" ".join(render_summary([told(), *absent], [], 1)).split())
    assert (
        "MISSING 9 without a run: absent-0, absent-1, absent-2, absent-3, absent-4, absent-5, absent-6"
        in text
    )
    assert "absent-8" in text


def test_missing_configurations_that_fail_have_a_separate_summary_line() -> None:
    lines = [
        line
        for line in render_summary([missing("a"), missing("b", "failed"), told()], [])
        if "without a run:" in line
    ]
    assert lines == [
        "MISSING        1 without a run: b",
        "MISSING        1 without a run: a",
    ]


def test_inconclusive_line_explains_reasons_other_than_noise() -> None:
    described = told(
        verdict="INCONCLUSIVE", reason="warming-up", remainder="why it is no PASS"
    )
    lines = [line.strip() for line in render_summary([described], [])]
    assert lines[2] == "why it is no PASS"


@pytest.mark.parametrize("verdict", ["TEST_FAILED", "NOT_ASSERTED"])
def test_summary_line_of_an_invalid_run_shows_no_step_time(verdict: str) -> None:
    diverged = [{"code": "diverged", "text": "the loss is NaN", "line": 0}]
    row = list(
        render_summary([told("failed", "x", verdict=verdict, problems=diverged)], [])
    )[1]
    assert row.split()[:5] == [verdict, "x", "-", "-", "-"]


# --- colours --------------------------------------------------------------------------


def test_verdict_has_the_colour_of_its_status() -> None:
    found = coloured(told(), slow(), inconclusive(), missing(), stray())
    assert {
        word: found[word]
        for word in ("PASS", "REGRESSION", "INCONCLUSIVE", "MISSING", "UNMATCHED")
    } == {
        "PASS": "green",
        "REGRESSION": "red",
        "INCONCLUSIVE": "yellow",
        "MISSING": "yellow",
        "UNMATCHED": "red",
    }


def test_passed_verdict_whose_custom_test_failed_is_not_counted_as_green() -> None:
    assert coloured(told("failed"))["PASS"] == "red"


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([told()], "green"),
        ([told(), missing()], "green"),
        ([told(), inconclusive()], "yellow"),
        ([told(), inconclusive("failed")], "red"),
        ([missing()], "yellow"),
        ([], "yellow"),
        ([told(), stray()], "red"),
    ],
)
def test_verdict_count_line_is_green_only_without_inconclusive_or_failed_items(
    described: list[OutcomeDocument], expected: str
) -> None:
    assert choose_common_colour(described) == expected
    last = list(render_summary(described, []))[-1]
    assert (last.colour, last.marked) == (expected, len(last))


@pytest.mark.parametrize("verdict", ["REGRESSION", "SLOWER", "INCONCLUSIVE"])
def test_slowdown_that_fails_no_test_is_not_counted_as_green(verdict: str) -> None:
    told_only = with_fields(check(), verdict=verdict)
    assert coloured(told(), told_only)["weak-scaling:"] == "yellow"
    assert choose_colour(told_only.status, told_only.verdict) == "unclear"
    assert (
        coloured(told(), check())["weak-scaling:"],
        choose_colour(check().status, check().verdict),
    ) == (
        "green",
        "green",
    )


# --- counts ---------------------------------------------------------------------------


def test_unmatched_run_with_the_id_of_a_configuration_is_counted_in_addition() -> None:
    assert (
        format_counts([told(), stray(told().id)])
        == "1 green: 1 PASS; 1 red: 1 UNMATCHED"
    )


def test_verdict_count_uses_the_worst_outcome_of_each_id() -> None:
    assert asdict(count_verdicts([*MIXED, told("failed")])) == {
        "green": {"INCONCLUSIVE": 1},
        "red": {"REGRESSION": 1, "INVALID": 1, "PASS": 1, "UNMATCHED": 1},
        "skipped": {"MISSING": 1},
    }


# --- what to do next ------------------------------------------------------------------


def test_next_steps_list_failures_first_with_logs() -> None:
    found = steps(inconclusive(), told(), slow("b"), slow("a"), incomplete(), missing())
    assert found[0].startswith("a and 1 more: judge older runs of it as well")
    assert found[0].endswith("log: log-x_1_0.out")
    assert found[1].startswith("killed: run it again")
    assert found[2:] == [
        "to judge only the failed items again, add --lf to the same command"
    ]


def test_next_step_states_runs_needed_to_decide() -> None:
    (found,) = steps(told(), inconclusive())
    assert found.startswith(
        "doubtful: run it again, and set `llmb_repeat_window` to judge the runs together"
    )
    assert found.endswith("; about 5 runs would decide")
    assert "log:" not in found


def test_next_step_after_an_improvement_is_to_record_a_new_baseline() -> None:
    assert steps(told("passed", "fast", 6.5)) == [
        "fast: record a new baseline with --llmb-record=DIR"
    ]


def test_launching_missing_runs_is_the_last_next_step() -> None:
    assert steps(told(), missing("a"), missing("b")) == [
        "a and 1 more without a run: launch it with pytest -k a --llmb-launch; --llmb-dry-run shows what that takes"
    ]
    assert "launch it with" not in " ".join(steps(inconclusive(), missing("a")))
    assert (
        "launch it (pytest -k a --llmb-launch) if its baseline file describes how"
        in steps(told(), missing("a", "failed"))[0]
    )


def test_summary_of_a_session_without_runs_lists_no_next_steps() -> None:
    assert (
        steps(
            missing(
                "a",
                "failed",
                ("nothing was judged: no log below x", "Next: look there"),
            )
        )
        == []
    )


def test_green_session_has_no_next_steps() -> None:
    assert steps(told(), check()) == []


# --- width ----------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab-_. /,:語ｗ\u0301é"), max_size=150)
KEPT = {
    "status",
    "kind",
    "reason",
    "suite",
    "verdict",
    "check",
    "unit",
    "log",
    "files",
    "age",
}


def replaced(value: Any, words: Iterator[str], key: str = "") -> Any:
    """Return a copy in which every text is replaced by the next word."""
    if isinstance(value, dict):
        return {name: replaced(inner, words, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(inner, words) for inner in value]
    return next(words) if isinstance(value, str) and key not in KEPT else value


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5))
def test_summary_lines_fit_eighty_columns(drawn: list[str]) -> None:
    words = itertools.cycle(drawn)
    described = [
        restore_outcome(
            {**replaced(make_plain(outcome), words), "id": f"{number}{next(words)}"}
        )
        for number, outcome in enumerate(MIXED)
    ]
    for verbosity in (-1, 0, 1):
        lines = list(render_summary(described, [next(words)], verbosity))
        assert [line for line in lines if count_columns(line) > 80] == []
    for outcome in described:
        assert [
            line
            for line in explain(outcome, short=False).splitlines()
            if count_columns(line) > 80
        ] == []


def test_text_with_many_commands_is_wrapped() -> None:
    lines = wrap("Run " + "`pytest -k x`, or " * 3000, "  ", first="- ")
    assert lines[:4] == ["- Run", "  pytest -k x", ", or", "  pytest -k x"]
    assert len(lines) == 6001
