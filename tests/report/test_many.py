"""Reports of thousands of unmatched runs and attempts stay short, and state how many
they leave out."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import BASELINE, NOW, evidence, log, run, segment, steps
from support.growth import LINEAR, measure_growth
from support.outcomes import FOLDER, stray

from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report import html, terminal
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.html.page_tables import list_tables
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    OutcomeDocument,
)
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.runs.measure.measurement import measure


def many(count: int) -> list[OutcomeDocument]:
    """Return unmatched runs."""
    return [stray(f"run_{number:05}") for number in range(count)]


def page(outcomes: list[OutcomeDocument]) -> str:
    return html.render(outcomes, now=NOW)


def resumed(count: int) -> ConfigurationOutcome:
    """Create the outcome of a run whose log contains `count` attempts."""
    died = segment(steps([7.3] * 3), finished=False)
    measured = measure(
        run(log(*[died] * (count - 1), segment(steps(7.3)))), BASELINE, NOW
    )
    outcome = Outcome(
        ConfigurationResult(Case("resumed", BASELINE.key), judge(evidence(measured))),
        Status.PASSED,
    )
    return describe(outcome, NOW, FOLDER)


@pytest.mark.parametrize("verbosity", [-1, 0])
def test_summary_lists_the_first_unmatched_runs_and_counts_others(
    verbosity: int,
) -> None:
    lines = list(render_summary(many(terminal.MOST_UNMATCHED + 1234), [], verbosity))
    assert (
        sum("run_0" in line for line in lines if line.startswith("UNMATCHED"))
        == terminal.MOST_UNMATCHED
    )
    assert "...            1,234 UNMATCHED more; -v or --llmb-json lists all" in lines
    assert len(lines) < terminal.MOST_UNMATCHED + 20


def test_verbose_summary_lists_all_unmatched_runs() -> None:
    lines = list(render_summary(many(terminal.MOST_UNMATCHED + 5), [], 1))
    assert (
        sum(line.startswith("UNMATCHED") for line in lines)
        == terminal.MOST_UNMATCHED + 5
    )


@pytest.mark.slow
def test_page_limits_unmatched_runs_and_counts_those_not_shown() -> None:
    text = page(many(html.MOST_UNMATCHED + 77))
    assert text.count('<article class="card') == html.MOST_UNMATCHED
    assert "77 more are not shown" in text
    assert "Left out" not in page(many(3))


@pytest.mark.slow
def test_attempts_beyond_the_limit_are_counted() -> None:
    count = jobs.MOST_KEPT + 500
    outcome = resumed(count)
    tries = outcome.tries or ()
    numbers = [attempt.number for attempt in tries]
    assert numbers == [1, *range(count - jobs.MOST_KEPT + 1, count + 1)]
    assert str(jobs.format_log_attempts(tries)).startswith(
        "500 earlier ones, not judged; 501 stopped"
    )
    assert (
        jobs.list_log_attempts(tries)[0]
        == f"{count - jobs.MOST_TRIES} earlier ones, not judged"
    )
    (attempts,) = [
        rows
        for caption, _, rows in list_tables(outcome)
        if caption == "Attempts in the logs"
    ]
    assert attempts[-1] == ("others", "", "499 more, not judged and not listed", "")


@pytest.mark.slow
def test_time_to_render_the_page_grows_linearly_with_outcomes() -> None:
    def make(size: int) -> Any:
        outcomes = many(size)
        return lambda: page(outcomes)

    assert measure_growth(make, 60) < LINEAR
