"""A change that was taken back stays so whatever comes later, and the entry that an
item prints accepts no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from pytest_llmbench.session.fleet import find_unneeded
from pytest_llmbench.session.outcomes import JudgedConfigurations
from pytest_llmbench.session.session_checks import check_trends
from pytest_llmbench.session.settings import Settings

EACH = 14
"""Nights of one level: two changes are no two of one week."""

KNOWN = Noise(0.001, 100.0, "nights", measured=True)
TODAY = NOW.date()
EXPIRES = TODAY + timedelta(days=30)


class Seen(NamedTuple):
    """What a session says of a series: its changes, the items about them, and the level
    that runs are held against."""

    changes: tuple[LevelChange, ...]
    checks: tuple[Check, ...]
    level: float
    verdict: Verdict
    remarks: tuple[str, ...]


def nights(levels: Sequence[float], each: int = EACH) -> list[DailyRun]:
    """Return nights at these levels (logarithms over the baseline), with a spread of
    0.1 %; the last one is tonight."""
    values = np.repeat(levels, each) + 0.001 * np.random.default_rng(3).standard_normal(
        len(levels) * each
    )
    first = NOW - timedelta(days=len(values) - 1)
    return [
        DailyRun(first + timedelta(days=day), 7.325 * math.exp(value))
        for day, value in enumerate(values.tolist())
    ]


def day(position: int, levels: Sequence[float]) -> date:
    """Return the first day of a level."""
    return (NOW - timedelta(days=(len(levels) - position) * EACH - 1)).date()


def accepted(levels: Sequence[float], position: int, line: int = 3) -> Acknowledgement:
    """Return the entry that accepts the change to a level, rounded up to 0.1 % as an
    item prints it."""
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


def seen(
    levels: Sequence[float], entries: Sequence[Acknowledgement], factor: float = 1.0
) -> Seen:
    """Return what is said of these levels, with tonight's run slower by a further
    factor than the last night."""
    series = nights(levels)
    runs = [
        measurement(one.statistic_seconds, run=run(started=one.started))
        for one in reversed(series)
    ]
    tonight = measurement(series[-1].statistic_seconds * factor, run=run(started=NOW))
    of = apply_acknowledgements(evidence(tonight, *runs[1:], prior=KNOWN), entries)
    found = find_changes(series, KNOWN, select_covering(KEY.id, entries), TODAY)
    judgement = judge(of)
    judged = JudgedConfigurations(
        {
            KEY.id: (
                ConfigurationResult(Case(KEY.id, KEY), _with(judgement, found)),
                (of,),
            )
        }
    )
    checks = tuple(
        check_trends(judged, Settings(trend="fail"), Catalog((), {}, tuple(entries)))
    )
    level = of.baseline.step_seconds / 7.325
    return Seen(
        found, checks, level, judgement.verdict, tuple(find_unneeded(judged, entries))
    )


def _with(judgement: Judgement, changes: tuple[LevelChange, ...]) -> Judgement:
    return replace(judgement, changes=changes)


def followed(
    check: Check, entries: Sequence[Acknowledgement], folder: Path
) -> list[Acknowledgement] | None:
    """Return the entries of a file in which somebody did what an item prints; None
    where it prints no entry."""
    lines = list(check.lines)
    begin = next(
        (place for place, line in enumerate(lines) if line.startswith("to accept it")),
        None,
    )
    if begin is None or not any("- configuration:" in line for line in lines[begin:]):
        return None
    text = "\n".join(line for line in lines[begin + 1 :])
    for word, said in (("DAY", str(EXPIRES)), ("WHY", "a driver"), ("WHO", "A")):
        text = text.replace(word, said)
    file = folder / "added.yaml"
    file.write_text(f"schema: 1\nacknowledged:\n{text}\n", encoding="utf-8")
    kept = [one for one in entries if one.place not in lines[begin]]
    return [*kept, *read_acknowledged(file, [KEY.id], TODAY).changes]


def total(entries: Sequence[Acknowledgement]) -> float:
    """Return what entries accept together, as a logarithm."""
    return sum(math.log1p(one.fraction) for one in entries)


BACK_AND_AGAIN = [0.0, 0.05, 0.0, 0.05]


def test_a_change_that_was_taken_back_stays_so_when_it_comes_again() -> None:
    first, _, again = seen(BACK_AND_AGAIN, []).changes
    assert (first.stands, again.stands) == (False, True)


def test_a_later_change_that_was_accepted_makes_no_earlier_one_red() -> None:
    """The first was taken back; accepting the second must not ask to accept the first,
    too."""
    told = seen(BACK_AND_AGAIN, [accepted(BACK_AND_AGAIN, 3)])
    (check,) = told.checks
    assert (check.verdict, check.failed, told.verdict) == (
        "ACKNOWLEDGED",
        False,
        Verdict.PASS,
    )


def test_an_entry_whose_change_was_taken_back_gives_the_next_one_no_room(
    tmp_path: Path,
) -> None:
    """Both added up would accept 10 % of a configuration that is 5 % slower."""
    entries = [accepted(BACK_AND_AGAIN, 1)]
    told = seen(BACK_AND_AGAIN, entries)
    (check,) = told.checks
    assert check.failed
    assert any("taken back since, it can go" in remark for remark in told.remarks)
    after = followed(check, entries, tmp_path)
    assert after is not None
    told = seen(BACK_AND_AGAIN, after)
    assert [one.verdict for one in told.checks] == ["ACKNOWLEDGED"]
    assert told.level == pytest.approx(1.05, abs=0.005)
    assert told.verdict is Verdict.PASS
    assert seen(BACK_AND_AGAIN, after, factor=1.10).verdict is Verdict.REGRESSION


def test_what_is_left_of_a_change_is_all_that_an_entry_accepts(tmp_path: Path) -> None:
    levels = [0.0, 0.08, 0.03]
    (check,) = seen(levels, []).checks
    assert "+3.1 % of it remains" in check.text
    after = followed(check, [], tmp_path)
    assert after is not None
    assert after[0].fraction == pytest.approx(0.031, abs=0.0021)
    assert seen(levels, after).checks[0].verdict == "ACKNOWLEDGED"


def test_an_entry_of_a_later_change_that_was_taken_back_has_to_go_first() -> None:
    """With both the gate would accept 10 %: nothing says which of the two changes went
    back."""
    levels = [0.0, 0.05, 0.10, 0.05]
    (check,) = seen(levels, [accepted(levels, 2)]).checks
    assert check.failed
    assert check.lines[-2:] == (
        "to accept it, change the entry of a.yaml:3:",
        "what it accepts was taken back since, in part or as a whole: it has to go, or to be smaller, first",
    )


CHANGES = st.sampled_from([0.05, 0.03, 0.08, -0.05, -0.03, -0.08])


@pytest.mark.slow
@given(st.lists(CHANGES, min_size=2, max_size=5), st.sets(st.integers(1, 5)))
@settings(max_examples=100, deadline=None)
def test_no_printed_entry_opens_the_gate_wider_than_its_own_change(
    tmp_path_factory: pytest.TempPathFactory, changes: list[float], chosen: set[int]
) -> None:
    """Whatever went up and down, and whichever of it was accepted: accepting what an
    item asks for allows what the configuration does now, or what was allowed before."""
    levels = np.cumsum([0.0, *changes]).tolist()
    entries = [
        accepted(levels, place, 10 * place)
        for place in sorted(chosen)
        if place < len(levels)
    ]
    for _ in range(3):
        before = seen(levels, entries)
        asked = [check for check in before.checks if check.failed]
        after = (
            followed(asked[0], entries, tmp_path_factory.mktemp("file"))
            if asked
            else None
        )
        if after is None:
            return
        told = seen(levels, after)
        rounded_up = 1.002 ** (len(after) + 1)
        assert told.level <= max(before.level, math.exp(levels[-1]), 1.0) * rounded_up
        (asked_for,) = [
            one
            for one in before.changes
            if one.stands and one.acknowledged is None and one.difference > 0
        ]
        assert total(after) <= total(entries) + math.log1p(asked_for.lasting) + 0.003
        entries = after
