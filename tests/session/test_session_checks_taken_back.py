"""Reverted changes stay reverted, and printed entries accept only the remaining change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import KEY, NOW, evidence, measurement, run

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.judgement_records import (
    DailyRun,
    Judgement,
    LevelChange,
    Noise,
)
from pytest_llmbench.core.outcome_records import Case, Check, ConfigurationResult
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.judge.acknowledged import apply_acknowledgements, select_covering
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.level_changes import find_changes
from pytest_llmbench.session.acknowledgements import read_acknowledged
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.fleet import find_unneeded_entries
from pytest_llmbench.session.outcomes import JudgedConfigurations
from pytest_llmbench.session.session_checks import check_trends
from pytest_llmbench.session.settings import Settings

DAYS_PER_LEVEL = 14
"""Days on each level, so that two changes are never within one week."""

NOISE = Noise(0.001, 100.0, "nights", measured=True)
TODAY = NOW.date()
EXPIRES = TODAY + timedelta(days=30)


class SessionFindings(NamedTuple):
    """The changes in a series, the checks on them, and the level that runs are judged
    by."""

    changes: tuple[LevelChange, ...]
    checks: tuple[Check, ...]
    level: float
    verdict: Verdict
    remarks: tuple[str, ...]


def make_nights(levels: Sequence[float], each: int = DAYS_PER_LEVEL) -> list[DailyRun]:
    """Return daily runs on these levels (logarithms over the baseline) with 0.1 %
    noise.

    The last run is that of the current session.
    """
    values = np.repeat(levels, each) + 0.001 * np.random.default_rng(3).standard_normal(
        len(levels) * each
    )
    first = NOW - timedelta(days=len(values) - 1)
    return [
        DailyRun(first + timedelta(days=day), 7.325 * math.exp(value))
        for day, value in enumerate(values.tolist())
    ]


def day(position: int, levels: Sequence[float]) -> date:
    """Return the first day on a level."""
    return (NOW - timedelta(days=(len(levels) - position) * DAYS_PER_LEVEL - 1)).date()


def make_entry(
    levels: Sequence[float], position: int, line: int = 3
) -> Acknowledgement:
    """Return the entry that accepts the change to a level, rounded up to 0.1 % as
    printed."""
    size = math.expm1(levels[position] - levels[position - 1])
    fraction = math.copysign(math.ceil(round(abs(size) * 1000, 6)) / 1000 + 0.001, size)
    return Acknowledgement(
        KEY.id,
        fraction,
        day(position, levels),
        EXPIRES,
        "a driver",
        "A",
        f"a.yaml:{line}",
    )


def judge_levels(
    levels: Sequence[float], entries: Sequence[Acknowledgement], factor: float = 1.0
) -> SessionFindings:
    """Judge a series of levels; the current run is slower than the last one by
    `factor`."""
    series = make_nights(levels)
    runs = [
        measurement(run_.statistic_seconds, run=run(started=run_.started))
        for run_ in reversed(series)
    ]
    current = measurement(series[-1].statistic_seconds * factor, run=run(started=NOW))
    judged_evidence = apply_acknowledgements(
        evidence(current, *runs[1:], prior=NOISE), entries
    )
    changes = find_changes(series, NOISE, select_covering(KEY.id, entries), TODAY)
    judgement = judge(judged_evidence)
    judged = JudgedConfigurations(
        {
            KEY.id: (
                ConfigurationResult(
                    Case(KEY.id, KEY), with_level_changes(judgement, changes)
                ),
                (judged_evidence,),
            )
        }
    )
    checks = tuple(
        check_trends(judged, Settings(trend="fail"), Catalog((), {}, tuple(entries)))
    )
    level = judged_evidence.baseline.step_seconds / 7.325
    return SessionFindings(
        changes,
        checks,
        level,
        judgement.verdict,
        tuple(find_unneeded_entries(judged, entries)),
    )


def with_level_changes(
    judgement: Judgement, changes: tuple[LevelChange, ...]
) -> Judgement:
    return replace(judgement, changes=changes)


def apply_printed_entry(
    check: Check, entries: Sequence[Acknowledgement], folder: Path
) -> list[Acknowledgement] | None:
    """Return the entries after a user followed the printed advice, or None without an
    entry."""
    lines = list(check.lines)
    begin = next(
        (index for index, line in enumerate(lines) if line.startswith("to accept it")),
        None,
    )
    if begin is None or not any("- configuration:" in line for line in lines[begin:]):
        return None
    text = "\n".join(line for line in lines[begin + 1 :])
    for word, value in (("DAY", str(EXPIRES)), ("WHY", "a driver"), ("WHO", "A")):
        text = text.replace(word, value)
    file = folder / "added.yaml"
    file.write_text(f"schema: 1\nacknowledged:\n{text}\n", encoding="utf-8")
    kept = [entry for entry in entries if entry.place not in lines[begin]]
    return [*kept, *read_acknowledged(file, [KEY.id], TODAY).changes]


def sum_fractions(entries: Sequence[Acknowledgement]) -> float:
    """Return the total of the accepted changes, as a logarithm."""
    return sum(math.log1p(entry.fraction) for entry in entries)


REVERTED_AND_REPEATED = [0.0, 0.05, 0.0, 0.05]


def test_slowdown_that_recurs_after_its_reversal_is_a_new_change() -> None:
    first, _, again = judge_levels(REVERTED_AND_REPEATED, []).changes
    assert (first.stands, again.stands) == (False, True)


def test_check_passes_if_the_recurrence_of_a_reverted_change_is_acknowledged() -> None:
    """The first change was reverted, so accepting the second one is sufficient."""
    findings = judge_levels(
        REVERTED_AND_REPEATED, [make_entry(REVERTED_AND_REPEATED, 3)]
    )
    (check,) = findings.checks
    assert (check.verdict, check.failed, findings.verdict) == (
        "ACKNOWLEDGED",
        False,
        Verdict.PASS,
    )


def test_acknowledgement_of_a_reverted_change_does_not_cover_its_recurrence(
    tmp_path: Path,
) -> None:
    """Both entries together would accept 10 % for a configuration that is 5 % slower."""
    entries = [make_entry(REVERTED_AND_REPEATED, 1)]
    findings = judge_levels(REVERTED_AND_REPEATED, entries)
    (check,) = findings.checks
    assert check.failed
    assert any(
        "the change was reverted, remove this entry" in remark
        for remark in findings.remarks
    )
    after = apply_printed_entry(check, entries, tmp_path)
    assert after is not None
    findings = judge_levels(REVERTED_AND_REPEATED, after)
    assert [result.verdict for result in findings.checks] == ["ACKNOWLEDGED"]
    assert findings.level == pytest.approx(1.05, abs=0.005)
    assert findings.verdict is Verdict.PASS
    assert (
        judge_levels(REVERTED_AND_REPEATED, after, factor=1.10).verdict
        is Verdict.REGRESSION
    )


def test_printed_acknowledgement_accepts_the_rest_of_a_partly_reverted_change(
    tmp_path: Path,
) -> None:
    levels = [0.0, 0.08, 0.03]
    (check,) = judge_levels(levels, []).checks
    assert "+3.1 % of it remains" in check.text
    after = apply_printed_entry(check, [], tmp_path)
    assert after is not None
    assert after[0].fraction == pytest.approx(0.031, abs=0.0021)
    assert judge_levels(levels, after).checks[0].verdict == "ACKNOWLEDGED"


def test_failed_check_asks_to_remove_the_acknowledgement_of_a_reverted_change() -> None:
    """Both entries together would accept 10 %, since the reverted change is ambiguous."""
    levels = [0.0, 0.05, 0.10, 0.05]
    (check,) = judge_levels(levels, [make_entry(levels, 2)]).checks
    assert check.failed
    assert check.lines[-2:] == (
        "to accept it, change the entry of a.yaml:3:",
        "its change was reverted, partly or completely: remove or reduce that entry first",
    )


CHANGES = st.sampled_from([0.05, 0.03, 0.08, -0.05, -0.03, -0.08])


@pytest.mark.slow
@given(st.lists(CHANGES, min_size=2, max_size=5), st.sets(st.integers(1, 5)))
@settings(max_examples=100, deadline=None)
def test_printed_acknowledgement_accepts_at_most_the_reported_slowdown(
    tmp_path_factory: pytest.TempPathFactory, changes: list[float], chosen: set[int]
) -> None:
    """For any series of changes and entries: a printed entry allows at most the current
    level, or the level that was allowed before."""
    levels = np.cumsum([0.0, *changes]).tolist()
    entries = [
        make_entry(levels, position, 10 * position)
        for position in sorted(chosen)
        if position < len(levels)
    ]
    for _ in range(3):
        before = judge_levels(levels, entries)
        failed = [check for check in before.checks if check.failed]
        after = (
            apply_printed_entry(failed[0], entries, tmp_path_factory.mktemp("file"))
            if failed
            else None
        )
        if after is None:
            return
        findings = judge_levels(levels, after)
        rounded_up = 1.002 ** (len(after) + 1)
        assert (
            findings.level <= max(before.level, math.exp(levels[-1]), 1.0) * rounded_up
        )
        (unaccepted,) = [
            change
            for change in before.changes
            if change.stands and change.acknowledged is None and change.difference > 0
        ]
        assert (
            sum_fractions(after)
            <= sum_fractions(entries) + math.log1p(unaccepted.lasting) + 0.003
        )
        entries = after
