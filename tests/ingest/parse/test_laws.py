"""The laws of parsing, for logs of every dialect that say what is known beforehand, whole and damaged."""

from __future__ import annotations

import math
import tracemalloc
from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_damages import DAMAGES, ENCODINGS, HARMLESS
from log_strategies import FRAMEWORKS, NAMES, SUMMARIES, Written, write, written

from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.core.models import ParsedLog
from pytest_llmbench.ingest.parse.read import parse_blocks

STEP = tuple[int, float, float]
EXAMPLES = settings(max_examples=10, derandomize=True)
DAMAGED = settings(max_examples=10, derandomize=True)

MEBIBYTE = 1 << 20
LONG_LINE = 8
PLACES = 9
"""Decimals to which times are compared: milliseconds are divided in one reader and not in another."""


def test_the_laws_hold_for_every_dialect() -> None:
    """A new dialect needs a row in FRAMEWORKS: how its framework writes, and what that says."""
    assert {framework.dialect for framework in FRAMEWORKS.values()} | {SUMMARIES} == DIALECTS.keys()


def said(log: ParsedLog) -> list[list[STEP]]:
    """The steps of each segment: number, seconds, loss (NaN where there is none)."""
    columns = [(one.steps.index, one.steps.seconds, one.steps.loss) for one in log.segments]
    return [list(zip(*(column.tolist() for column in each), strict=True)) for each in columns]


def rounded(runs: list[list[STEP]]) -> str:
    """Steps as text, in which a NaN equals a NaN."""
    return repr([[(step, round(seconds, PLACES), round(loss, PLACES)) for step, seconds, loss in run] for run in runs])


def truth(log: Written) -> list[list[STEP]]:
    """What a whole log says."""
    return [[(one.step, one.seconds, math.nan if one.loss is None else one.loss) for one in run] for run in log.truth]


def check(data: bytes, log: Written) -> ParsedLog:
    """Return what a damaged log says; fail if it gives a step a number that was not printed for it."""
    found = parse_blocks([data])
    times = {(step, round(value, PLACES)) for step, value in log.times}
    losses = {(step, round(value, PLACES)) for step, value in log.losses}
    for step, seconds, loss in (each for run in said(found) for each in run):
        for value, known in ((round(seconds, PLACES), times), (round(loss, PLACES), losses)):
            assert math.isnan(value) or (step, value) in known or (None, value) in known, (step, value)
    return found


def steps_of(log: ParsedLog) -> set[int]:
    return {step for run in said(log) for step, _, _ in run}


def count_of(log: ParsedLog) -> int:
    return sum(len(segment.steps) for segment in log.segments)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.data())
def test_a_whole_log_gives_exactly_what_it_says(name: str, data: st.DataObject) -> None:
    log = data.draw(written(name))
    found = parse_blocks([log.data])
    assert found.dialect == log.dialect
    assert rounded(said(found)) == rounded(truth(log))


@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("name", NAMES)
@settings(EXAMPLES, max_examples=5)
@given(data=st.data())
def test_what_does_not_touch_a_record_changes_no_step(name: str, change: str, data: st.DataObject) -> None:
    log = data.draw(written(name))
    assert rounded(said(parse_blocks([HARMLESS[change](log.data)]))) == rounded(truth(log))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.data())
def test_steps_point_to_the_line_of_their_record(name: str, data: st.DataObject) -> None:
    log = data.draw(written(name))
    lines = log.data.decode().split("\n")
    for segment, run in zip(parse_blocks([log.data]).segments, log.truth, strict=True):
        for line, step in zip(segment.steps.line.tolist(), run, strict=True):
            assert step.printed in lines[line - 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.data())
def test_the_blocks_that_a_log_comes_in_do_not_matter(name: str, data: st.DataObject) -> None:
    whole = data.draw(damaged(name))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=30))
    blocks = [whole[begin:end] for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True)]
    assert repr(parse_blocks(blocks)) == repr(parse_blocks([whole]))


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
@DAMAGED
@given(data=st.data())
def test_a_damaged_log_gives_no_step_a_number_that_was_not_printed_for_it(
    name: str, damage: str, data: st.DataObject
) -> None:
    log = data.draw(written(name, lines_get_lost=True))
    found = check(data.draw(DAMAGES[damage](log)), log)
    assert_consistent(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@DAMAGED
@given(data=st.data())
def test_cutting_a_log_off_adds_no_step(name: str, data: st.DataObject) -> None:
    log = data.draw(written(name))
    place = data.draw(st.integers(0, len(log.data)))
    less, more = parse_blocks([log.data[:place]]), parse_blocks([log.data])
    assert steps_of(less) <= steps_of(more)
    assert count_of(less) <= count_of(more)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", NAMES)
@settings(EXAMPLES, max_examples=5)
@given(data=st.data())
def test_a_log_in_another_encoding_is_no_error_and_gives_nothing_wrong(
    name: str, encoding: str, data: st.DataObject
) -> None:
    log = data.draw(written(name))
    check(ENCODINGS[encoding](log.data), log)


FILLINGS = {"text": b"x", "numbers": b"1", "zeros": b"\x00"}


@pytest.mark.parametrize("filling", FILLINGS.values(), ids=FILLINGS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_line_of_any_length_takes_no_more_memory_than_others(name: str, filling: bytes) -> None:
    """Eight MiB without a line feed stand between two logs of one run each."""
    log = write(FRAMEWORKS[name], first=1, lengths=(4,), prefixes=("",), starts=False, seed=1)
    block = (filling * (MEBIBYTE // len(filling) + 1))[:MEBIBYTE]
    tracemalloc.start()
    try:
        found = parse_blocks(chain([log.data], repeat(block, LONG_LINE), [b"\n" + log.data]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * MEBIBYTE
    assert found.lines == 2 * log.data.count(b"\n") + 1
    assert steps_of(found) >= steps_of(parse_blocks([log.data]))
    assert count_of(found) == 2 * len(log.truth[0])


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """A log with one damage or none."""
    log = draw(written(name))
    found: bytes = draw(st.one_of(st.just(log.data), *(damage(log) for damage in DAMAGES.values())))
    return found


def assert_consistent(log: ParsedLog) -> None:
    for segment in log.segments:
        steps = segment.steps
        assert len(steps) > 0
        assert (np.diff(steps.index) > 0).all()
        assert (steps.mean_of >= 1).all()
        assert segment.first_line <= steps.line.min() <= steps.line.max() <= segment.last_line <= log.lines
    for each in log.dropped:
        assert each.count > 0
        assert each.first_line >= 1
        assert each.shown.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_hole_over_two_records_makes_none_of_both(name: str) -> None:
    """A hole as long as a line, anywhere: its two sides are of different records."""
    first = min(FRAMEWORKS[name].first)
    log = write(FRAMEWORKS[name], first=first, lengths=(4,), prefixes=("",), starts=False, seed=7)
    length = max(map(len, log.lines))
    for place in range(0, len(log.data) - length, 7):
        check(log.data[:place] + bytes(length) + log.data[place + length :], log)
