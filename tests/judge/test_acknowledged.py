"""An accepted change moves the level that a run is compared with, and is reported."""

from __future__ import annotations

import math
from datetime import date, timedelta

import pytest
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    HISTORY,
    KEY,
    NOW,
    at,
    evidence,
    measurement,
    nights,
    run,
)

from pytest_llmbench.core.baseline_records import BaselineKind, Recording, Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Evidence, Judgement, SessionRules
from pytest_llmbench.core.run_records import (
    Acknowledgement,
    Measurement,
    Problem,
    StoredRun,
)
from pytest_llmbench.judge.acknowledged import accept_reasons, apply_acknowledgements
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.wording import phrase

TODAY = NOW.date()
SLOWER = Acknowledgement(
    KEY.id,
    0.06,
    TODAY - timedelta(days=1),
    TODAY + timedelta(days=30),
    "the security fix",
    "A. Person",
    "a.yaml:3",
)
TEXT = f"acknowledged: +6.0 % by A. Person until {SLOWER.expires}: the security fix"
RECORDED = Recording("2025-11-01", 3, 7.325, 7.325, 0.01, (7.3, 7.325, 7.35), ())


def acknowledge(**fields: object) -> Acknowledgement:
    return replace(SLOWER, **fields)


def make_current(factor: float) -> Measurement:
    return measurement(7.325 * factor)


def judge_run(
    factor: float,
    *entries: Acknowledgement,
    older: tuple[Measurement, ...] = HISTORY,
    certify: bool = False,
) -> Judgement:
    return judge(
        apply_acknowledgements(
            evidence(make_current(factor), *older, rules=SessionRules(certify=certify)),
            entries,
        )
    )


def test_accepted_change_passes_and_names_who_accepted_it() -> None:
    assert judge_run(1.06).verdict is Verdict.REGRESSION
    judgement = judge_run(1.06, SLOWER)
    assert judgement.verdict is Verdict.PASS
    assert phrase(judgement).endswith(TEXT)
    assert (judgement.notes[0].code, phrase(judgement.notes[0])) == (
        "acknowledged",
        TEXT,
    )
    assert judgement.baseline.step_seconds == pytest.approx(7.325 * 1.06)
    assert judgement.bound_seconds == pytest.approx(7.325 * 1.06 * 1.05)


def test_further_change_of_the_same_size_fails() -> None:
    judgement = judge_run(1.06 * 1.06, SLOWER)
    assert judgement.verdict is Verdict.REGRESSION
    assert TEXT in phrase(judgement)


@pytest.mark.parametrize(("accepted", "first"), [(0.06, 13), (0.2, 17)])
def test_larger_slowdown_never_turns_a_failure_into_a_pass(
    accepted: float, first: int
) -> None:
    """The first percentage that is a REGRESSION: 1.06 x 1.05 is 1.113, plus the
    uncertainty of one run. At most 10 % can be accepted."""
    entry = acknowledge(fraction=accepted)
    failing = [
        judge_run(1 + percent / 100, entry).verdict is Verdict.REGRESSION
        for percent in range(31)
    ]
    assert failing == sorted(failing)
    assert failing.index(True) == first


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            acknowledge(expires=TODAY - timedelta(days=1)),
            f"no effect, expired on {TODAY - timedelta(days=1)}",
        ),
        (acknowledge(since=TODAY + timedelta(days=1)), ""),
        (acknowledge(configuration="llama*"), ""),
    ],
    ids=["expired", "not yet", "another configuration"],
)
def test_inapplicable_acknowledgement_has_no_effect(
    entry: Acknowledgement, text: str
) -> None:
    judgement = judge_run(1.06, entry)
    assert judgement.verdict is Verdict.REGRESSION
    assert text in phrase(judgement)
    assert [
        note.code for note in judgement.notes if phrase(note) in phrase(judgement)
    ] == ["acknowledgement-expired"] * bool(text)
    assert judgement.baseline is BASELINE


def test_acknowledgement_is_valid_on_its_first_and_last_day() -> None:
    assert (
        judge_run(
            1.06, acknowledge(since=(NOW - timedelta(hours=3)).date(), expires=TODAY)
        ).verdict
        is Verdict.PASS
    )


def test_certify_option_ignores_acknowledged_slowdowns() -> None:
    judgement = judge_run(1.06, SLOWER, certify=True)
    assert judgement.verdict is Verdict.REGRESSION
    assert "no effect under --llmb-certify" in phrase(judgement)


@pytest.mark.parametrize(
    ("since", "newest_run", "expected"),
    [
        (date(2025, 11, 2), "", 1.06),
        (date(2025, 10, 31), "", 1.0),
        (date(2025, 10, 31), "2025-10-31", 1.0),
        (date(2025, 10, 31), "2025-10-30", 1.06),
    ],
    ids=[
        "change after recording",
        "change before recording",
        "recorded on its day",
        "recorded from earlier runs",
    ],
)
def test_acknowledgement_never_moves_a_baseline_recorded_after_the_change(
    since: date, newest_run: str, expected: float
) -> None:
    recording = replace(RECORDED, newest_run=newest_run)
    recorded = at(BASELINE, kind=BaselineKind.RECORDED, recording=recording)
    slow = evidence(measurement(7.325 * 1.06, baseline=recorded), baseline=recorded)
    moved = apply_acknowledgements(slow, [acknowledge(since=since)])
    assert moved.baseline.step_seconds == pytest.approx(7.325 * expected)
    assert moved.baseline.recording is not None
    assert moved.baseline.recording.trimmed_mean_seconds == pytest.approx(
        7.325 * expected
    )
    assert ("may include it already" in phrase(moved.remarks[0])) is (expected == 1.0)


def test_acknowledged_slowdown_counts_from_the_faster_level_before_the_change() -> None:
    """Six percent faster than the document, then six percent slower: the level is that
    of the document."""
    before = nights(*[7.325 * 0.94] * 8, first=3)
    entry = acknowledge(since=TODAY - timedelta(days=2))
    assert judge_run(1.0, entry, older=before).baseline.step_seconds == pytest.approx(
        7.325
    )
    assert judge_run(1.06, entry, older=before).verdict is not Verdict.PASS
    slower = nights(*[7.325 * 1.03] * 8, first=3)
    assert judge_run(1.09, entry, older=slower).baseline.step_seconds == pytest.approx(
        7.325 * 1.06
    )


def test_level_before_an_acknowledged_change_is_computed_from_stored_runs() -> None:
    stored = tuple(
        StoredRun(
            day.started, "1", "", BASELINE.window, {}, True, day.statistic_seconds
        )
        for day in nights(*[7.325 * 0.94] * 8, first=3)
        if day.started
    )
    entry = acknowledge(since=TODAY - timedelta(days=2))
    moved = apply_acknowledgements(
        evidence(make_current(1.06), stored_runs=stored), [entry]
    )
    assert moved.baseline.step_seconds == pytest.approx(7.325)


def test_unneeded_acknowledgement_is_reported() -> None:
    judgement = judge_run(1.0, SLOWER)
    assert (judgement.verdict, judgement.baseline) == (Verdict.PASS, BASELINE)
    assert "remove the entry: " in phrase(judgement)


def test_run_at_the_baseline_fails_after_an_acknowledged_improvement() -> None:
    faster = acknowledge(fraction=-0.10)
    assert judge_run(0.9).verdict is Verdict.IMPROVEMENT
    assert judge_run(0.9, faster).verdict is Verdict.PASS
    assert judge_run(1.0).verdict is Verdict.PASS
    assert judge_run(1.0, faster).verdict is Verdict.REGRESSION


def test_sum_of_acknowledged_changes_is_capped_at_ten_percent() -> None:
    """Ten entries of 6 % would otherwise allow a slowdown of 79 %."""
    days = (60, 50, 40, 30, 20, 1)
    entries = [acknowledge(since=TODAY - timedelta(days=ago)) for ago in days]
    # without runs before each change, none counts as reverted
    judgement = judge_run(1.06**4, *entries, older=())
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.baseline.step_seconds == pytest.approx(7.325 * 1.1)
    assert "changes add up to +41.9 %; only +10.0 % of it is accepted" in phrase(
        judgement
    )
    assert judge_run(1.14, *entries, older=()).meets_point


@pytest.mark.parametrize(
    ("accepted", "factor", "tolerance"), [(0.1, 1.05, 0.025), (-0.06, 0.86, 0.05)]
)
def test_run_faster_than_an_acknowledged_level_passes_without_improvement_verdict(
    accepted: float, factor: float, tolerance: float
) -> None:
    """Otherwise the message would advise recording a slower baseline."""
    known = replace(
        evidence(make_current(factor), *HISTORY), tolerance=Tolerance(tolerance)
    )
    judgement = judge(apply_acknowledgements(known, [acknowledge(fraction=accepted)]))
    assert judgement.verdict is Verdict.PASS
    assert "faster than the acknowledged level by more than the tolerance" in phrase(
        judgement
    )
    assert "refresh the baseline" not in phrase(judgement)


def test_run_faster_than_the_baseline_is_an_improvement() -> None:
    assert judge_run(0.9, SLOWER).verdict is Verdict.IMPROVEMENT
    known = apply_acknowledgements(
        replace(evidence(make_current(0.7), *HISTORY), plausible=0.15),
        [acknowledge(fraction=-0.06)],
    )
    assert (
        judge(known).reason is Reason.IMPLAUSIBLY_FAST
    )  # more likely another configuration


@pytest.mark.parametrize(
    ("before", "expected"), [(1.0, 1.06), (1.03, 1.03 * 1.06), (1.05, 1.03 * 1.06)]
)
def test_second_acknowledged_change_counts_from_the_measured_level_before_it(
    before: float, expected: float
) -> None:
    """Changes that were reverted or never happened give the second entry no further
    room."""
    entries = [acknowledge(since=TODAY - timedelta(days=40), fraction=0.03), SLOWER]
    moved = apply_acknowledgements(
        evidence(make_current(1.09), *nights(*[7.325 * before] * 8, first=3)), entries
    )
    assert moved.baseline.step_seconds == pytest.approx(7.325 * expected)
    assert len(moved.remarks) == 2


def test_expected_metrics_follow_the_accepted_level() -> None:
    from pytest_llmbench.core.run_records import Metric

    expected = (
        Metric("step_time_seconds", 7.325),
        Metric("mfu", 0.4, larger_is_better=True),
    )
    moved = apply_acknowledgements(
        evidence(measurement(7.76, expected=expected)), [SLOWER]
    )
    assert [metric.value for metric in moved.measurements[0].expected] == pytest.approx(
        [7.325 * 1.06, 0.4 / 1.06]
    )
    assert moved.measurements[0].baseline is moved.baseline


@pytest.mark.parametrize(
    "undated",
    [evidence(), evidence(measurement(7.76, run=run(started=None)))],
    ids=["no run", "undated run"],
)
def test_undated_run_keeps_the_baseline(undated: Evidence) -> None:
    assert apply_acknowledgements(undated, [SLOWER]) is undated


def test_baseline_without_a_recorded_value_stays_empty() -> None:
    none = at(BASELINE, step_seconds=math.nan, kind=BaselineKind.RECIPE)
    moved = apply_acknowledgements(
        evidence(measurement(7.0, baseline=none), baseline=none), [SLOWER]
    )
    assert math.isnan(moved.baseline.step_seconds)


# --- accepted reasons to fail ---------------------------------------------------------


WALL = acknowledge(fraction=0.0, accepts=Reason.WALL_CLOCK)
WALL_PROBLEM = Problem(
    Reason.WALL_CLOCK, "the wall clock advanced by 130 s in 100 s of steps", 7
)


def judge_accepted(
    *entries: Acknowledgement, problem: Problem = WALL_PROBLEM, certify: bool = False
) -> Judgement:
    run = replace(make_current(1.0), problems=(problem,))
    return judge(
        accept_reasons(
            evidence(run, *HISTORY, rules=SessionRules(certify=certify)), entries
        )
    )


def test_invalid_run_with_accepted_reason_is_judged_by_its_step_time() -> None:
    judged = judge_accepted(WALL)
    assert judged.verdict is Verdict.PASS
    expected = f"{WALL_PROBLEM.text} (accepted: wall-clock by A. Person until {WALL.expires}: the security fix)"
    assert [
        (phrase(note), note.line)
        for note in judged.notes
        if note.code == "acknowledged"
    ] == [(expected, 7)]


@pytest.mark.parametrize(
    "entry",
    [
        SLOWER,
        replace(WALL, accepts=Reason.LESS_WORK),
        replace(WALL, configuration="other*"),
        replace(WALL, expires=TODAY - timedelta(days=1)),
        replace(WALL, since=TODAY + timedelta(days=1)),
    ],
)
def test_acknowledgement_of_another_reason_configuration_or_day_is_ignored(
    entry: Acknowledgement,
) -> None:
    assert judge_accepted(entry).reason is Reason.WALL_CLOCK


def test_certify_option_ignores_accepted_reasons() -> None:
    assert judge_accepted(WALL, certify=True).verdict is Verdict.INVALID


def test_accepting_one_reason_hides_no_other_problem_of_the_run() -> None:
    assert (
        judge_accepted(
            WALL, problem=Problem(Reason.WINDOW_INCOMPLETE, "half is missing")
        ).verdict
        is Verdict.INVALID
    )


def test_accepted_reason_does_not_change_the_expected_level() -> None:
    assert judge_run(1.06, WALL).verdict is Verdict.REGRESSION
