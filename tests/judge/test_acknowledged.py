"""An accepted change moves the level that a run is compared with, by no more than was
accepted, and says so."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, timedelta

import pytest
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


def changed(**fields: object) -> Acknowledgement:
    return replace(SLOWER, **fields)  # type: ignore[arg-type]


def tonight(factor: float) -> Measurement:
    return measurement(7.325 * factor)


def verdict(
    factor: float,
    *entries: Acknowledgement,
    older: tuple[Measurement, ...] = HISTORY,
    certify: bool = False,
) -> Judgement:
    return judge(
        apply_acknowledgements(
            evidence(tonight(factor), *older, rules=SessionRules(certify=certify)),
            entries,
        )
    )


def test_accepted_change_passes_and_names_who_accepted_it() -> None:
    assert verdict(1.06).verdict is Verdict.REGRESSION
    told = verdict(1.06, SLOWER)
    assert told.verdict is Verdict.PASS
    assert phrase(told).endswith(TEXT)
    assert (told.notes[0].code, phrase(told.notes[0])) == ("acknowledged", TEXT)
    assert told.baseline.step_seconds == pytest.approx(7.325 * 1.06)
    assert told.bound_seconds == pytest.approx(7.325 * 1.06 * 1.05)


def test_further_change_of_the_same_size_fails() -> None:
    told = verdict(1.06 * 1.06, SLOWER)
    assert told.verdict is Verdict.REGRESSION
    assert TEXT in phrase(told)


@pytest.mark.parametrize(("accepted", "first"), [(0.06, 13), (0.2, 17)])
def test_more_slowdown_never_passes_a_failure(accepted: float, first: int) -> None:
    """Nor is a part of what was accepted a regression: 1.06 x 1.05 is 1.113, and what
    the run can show. More than 10 % is not accepted."""
    entry = changed(fraction=accepted)
    failing = [
        verdict(1 + percent / 100, entry).verdict is Verdict.REGRESSION
        for percent in range(31)
    ]
    assert failing == sorted(failing)
    assert failing.index(True) == first


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            changed(expires=TODAY - timedelta(days=1)),
            f"expired on {TODAY - timedelta(days=1)}, without effect",
        ),
        (changed(since=TODAY + timedelta(days=1)), ""),
        (changed(configuration="llama*"), ""),
    ],
    ids=["expired", "not yet", "another configuration"],
)
def test_inapplicable_acknowledgement_has_no_effect(
    entry: Acknowledgement, why: str
) -> None:
    told = verdict(1.06, entry)
    assert told.verdict is Verdict.REGRESSION
    assert why in phrase(told)
    assert [note.code for note in told.notes if phrase(note) in phrase(told)] == [
        "acknowledgement-expired"
    ] * bool(why)
    assert told.baseline is BASELINE


def test_first_and_last_day_of_acknowledgement_count() -> None:
    assert (
        verdict(
            1.06, changed(since=(NOW - timedelta(hours=3)).date(), expires=TODAY)
        ).verdict
        is Verdict.PASS
    )


def test_certificate_ignores_acknowledgements() -> None:
    told = verdict(1.06, SLOWER, certify=True)
    assert told.verdict is Verdict.REGRESSION
    assert "without effect under --llmb-certify" in phrase(told)


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
def test_baseline_recorded_after_the_change_contains_it(
    since: date, newest_run: str, expected: float
) -> None:
    recording = replace(RECORDED, newest_run=newest_run)
    recorded = at(BASELINE, kind=BaselineKind.RECORDED, recording=recording)
    slow = evidence(measurement(7.325 * 1.06, baseline=recorded), baseline=recorded)
    found = apply_acknowledgements(slow, [changed(since=since)])
    assert found.baseline.step_seconds == pytest.approx(7.325 * expected)
    assert found.baseline.recording is not None
    assert found.baseline.recording.trimmed_mean_seconds == pytest.approx(
        7.325 * expected
    )
    assert ("may hold it already" in phrase(found.remarks[0])) is (expected == 1.0)


def test_configuration_faster_than_baseline_gets_no_extra_room() -> None:
    """Six percent faster than the document, then six slower: it is where the document
    is, and not six above it."""
    before = nights(*[7.325 * 0.94] * 8, first=3)
    entry = changed(since=TODAY - timedelta(days=2))
    assert verdict(1.0, entry, older=before).baseline.step_seconds == pytest.approx(
        7.325
    )
    assert verdict(1.06, entry, older=before).verdict is not Verdict.PASS
    slower = nights(*[7.325 * 1.03] * 8, first=3)
    assert verdict(1.09, entry, older=slower).baseline.step_seconds == pytest.approx(
        7.325 * 1.06
    )


def test_stored_runs_show_the_level_before_the_change() -> None:
    stored = tuple(
        StoredRun(
            day.started, "1", "", BASELINE.window, {}, True, day.statistic_seconds
        )
        for day in nights(*[7.325 * 0.94] * 8, first=3)
        if day.started
    )
    entry = changed(since=TODAY - timedelta(days=2))
    found = apply_acknowledgements(evidence(tonight(1.06), stored_runs=stored), [entry])
    assert found.baseline.step_seconds == pytest.approx(7.325)


def test_unneeded_acknowledgement_is_reported() -> None:
    told = verdict(1.0, SLOWER)
    assert (told.verdict, told.baseline) == (Verdict.PASS, BASELINE)
    assert "it can go (a.yaml:3)" in phrase(told)


def test_accepted_improvement_makes_the_level_stricter() -> None:
    faster = changed(fraction=-0.10)
    assert verdict(0.9).verdict is Verdict.IMPROVEMENT
    assert verdict(0.9, faster).verdict is Verdict.PASS
    assert verdict(1.0).verdict is Verdict.PASS
    assert verdict(1.0, faster).verdict is Verdict.REGRESSION


def test_several_changes_are_capped_as_one() -> None:
    """Ten entries of 6 % would open the gate as far as one of 79 %."""
    days = (60, 50, 40, 30, 20, 1)
    entries = [changed(since=TODAY - timedelta(days=ago)) for ago in days]
    told = verdict(
        1.06**4, *entries, older=()
    )  # no run says that a change was taken back before the next one
    assert told.verdict is Verdict.REGRESSION
    assert told.baseline.step_seconds == pytest.approx(7.325 * 1.1)
    assert "of +41.9 % in all +10.0 % count" in phrase(told)
    assert verdict(1.14, *entries, older=()).meets_point


@pytest.mark.parametrize(
    ("accepted", "factor", "tolerance"), [(0.1, 1.05, 0.025), (-0.06, 0.86, 0.05)]
)
def test_no_run_improves_on_an_acknowledged_level(
    accepted: float, factor: float, tolerance: float
) -> None:
    """It would ask to record a baseline that is slower than the one it has."""
    known = replace(evidence(tonight(factor), *HISTORY), tolerance=Tolerance(tolerance))
    told = judge(apply_acknowledgements(known, [changed(fraction=accepted)]))
    assert told.verdict is Verdict.PASS
    assert "faster than the acknowledged level by more than the tolerance" in phrase(
        told
    )
    assert "refresh the baseline" not in phrase(told)


def test_run_faster_than_the_baseline_is_an_improvement() -> None:
    assert verdict(0.9, SLOWER).verdict is Verdict.IMPROVEMENT
    known = apply_acknowledgements(
        replace(evidence(tonight(0.7), *HISTORY), plausible=0.15),
        [changed(fraction=-0.06)],
    )
    assert (
        judge(known).reason is Reason.IMPLAUSIBLY_FAST
    )  # more likely another configuration


@pytest.mark.parametrize(
    ("before", "expected"), [(1.0, 1.06), (1.03, 1.03 * 1.06), (1.05, 1.03 * 1.06)]
)
def test_second_change_counts_from_the_level_before_it(
    before: float, expected: float
) -> None:
    """What was taken back, or never came, since the first entry gives the second one no
    further room."""
    entries = [changed(since=TODAY - timedelta(days=40), fraction=0.03), SLOWER]
    found = apply_acknowledgements(
        evidence(tonight(1.09), *nights(*[7.325 * before] * 8, first=3)), entries
    )
    assert found.baseline.step_seconds == pytest.approx(7.325 * expected)
    assert len(found.remarks) == 2


def test_expected_metrics_move_with_the_level() -> None:
    from pytest_llmbench.core.run_records import Metric

    expected = (
        Metric("step_time_seconds", 7.325),
        Metric("mfu", 0.4, larger_is_better=True),
    )
    found = apply_acknowledgements(
        evidence(measurement(7.76, expected=expected)), [SLOWER]
    )
    assert [metric.value for metric in found.measurements[0].expected] == pytest.approx(
        [7.325 * 1.06, 0.4 / 1.06]
    )
    assert found.measurements[0].baseline is found.baseline


@pytest.mark.parametrize(
    "of",
    [evidence(), evidence(measurement(7.76, run=run(started=None)))],
    ids=["no run", "a run that does not say when it started"],
)
def test_acknowledgement_without_a_dated_run_moves_nothing(of: Evidence) -> None:
    assert apply_acknowledgements(of, [SLOWER]) is of


def test_baseline_without_a_value_stays_empty() -> None:
    none = at(BASELINE, step_seconds=math.nan, kind=BaselineKind.RECIPE)
    found = apply_acknowledgements(
        evidence(measurement(7.0, baseline=none), baseline=none), [SLOWER]
    )
    assert math.isnan(found.baseline.step_seconds)


# --- accepted reasons to fail ---------------------------------------------------------


WALL = changed(fraction=0.0, accepts=Reason.WALL_CLOCK)
WALL_PROBLEM = Problem(
    Reason.WALL_CLOCK, "the wall clock advanced by 130 s in 100 s of steps", 7
)


def judge_accepted(
    *entries: Acknowledgement, problem: Problem = WALL_PROBLEM, certify: bool = False
) -> Judgement:
    run = replace(tonight(1.0), problems=(problem,))
    return judge(
        accept_reasons(
            evidence(run, *HISTORY, rules=SessionRules(certify=certify)), entries
        )
    )


def test_accepted_reason_leaves_step_time_to_decide() -> None:
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
def test_entry_accepts_no_other_reason_configuration_or_day(
    entry: Acknowledgement,
) -> None:
    assert judge_accepted(entry).reason is Reason.WALL_CLOCK


def test_certificate_accepts_no_reason() -> None:
    assert judge_accepted(WALL, certify=True).verdict is Verdict.INVALID


def test_accepted_reason_hides_no_other_problem() -> None:
    assert (
        judge_accepted(
            WALL, problem=Problem(Reason.WINDOW_INCOMPLETE, "half is missing")
        ).verdict
        is Verdict.INVALID
    )


def test_accepted_reason_moves_no_level() -> None:
    assert verdict(1.06, WALL).verdict is Verdict.REGRESSION
