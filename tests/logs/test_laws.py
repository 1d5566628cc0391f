"""Laws of parsing for logs of every dialect with known steps, whole and damaged."""

from __future__ import annotations

import math
import tracemalloc
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_damages import DAMAGES, ENCODINGS, HARMLESS
from support.log_laws import PLACES, STEP, find_problems, list_steps, require_printed
from support.log_strategies import FRAMEWORKS, NAMES, SUMMARIES, Written, write, written

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.log_reader import parse_blocks

EXAMPLES = settings(max_examples=10, derandomize=True)
DAMAGED = settings(max_examples=50, derandomize=True)

MEBIBYTE = 1 << 20
LONG_LINE = 8


def test_every_dialect_has_a_generator_of_logs() -> None:
    """A new dialect needs a row in FRAMEWORKS: a writer of its log, and the steps in
    the log."""
    assert {framework.dialect for framework in FRAMEWORKS.values()} | {
        SUMMARIES
    } == DIALECTS.keys()


def format_steps(runs: list[list[STEP]]) -> str:
    """Format steps as text, so that NaN equals NaN."""
    return repr(
        [
            [
                (step, round(seconds, PLACES), round(loss, PLACES))
                for step, seconds, loss in run
            ]
            for run in runs
        ]
    )


def format_truth(log: Written) -> str:
    """Format the steps of the whole log."""
    runs = [
        [
            (step.step, step.seconds, math.nan if step.loss is None else step.loss)
            for step in run
        ]
        for run in log.truth
    ]
    return format_steps(runs)


def collect_numbers(log: ParsedLog) -> set[int]:
    return {step for run in list_steps(log) for step, _, _ in run}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.data())
def test_log_read_at_once_gives_its_steps_with_line_numbers(
    name: str, data: st.DataObject
) -> None:
    log = data.draw(written(name))
    result = parse_blocks([log.data])
    assert result.dialect == log.dialect
    assert format_steps(list_steps(result)) == format_truth(log)
    lines = log.data.decode().split("\n")
    for segment, run in zip(result.segments, log.truth, strict=True):
        for line, step in zip(segment.steps.line.tolist(), run, strict=True):
            assert step.printed in lines[line - 1]


@pytest.mark.slow
@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("name", NAMES)
@settings(EXAMPLES, max_examples=5)
@given(data=st.data())
def test_text_inserted_between_step_records_changes_no_step(
    name: str, change: str, data: st.DataObject
) -> None:
    log = data.draw(written(name))
    assert format_steps(
        list_steps(parse_blocks([HARMLESS[change](log.data)]))
    ) == format_truth(log)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@DAMAGED
@given(data=st.data())
def test_damage_never_assigns_a_value_to_another_step(
    name: str, data: st.DataObject
) -> None:
    """The size of the blocks does not matter."""
    log = data.draw(written(name, lines_get_lost=True))
    damage = data.draw(st.sampled_from(sorted(DAMAGES)))
    damaged = data.draw(DAMAGES[damage](log))
    result = parse_blocks([damaged])
    require_printed(result, log)
    assert find_problems(result) == []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(damaged)), max_size=30)))
    blocks = [damaged[start:end] for start, end in pairwise([0, *cuts, len(damaged)])]
    assert repr(parse_blocks(blocks)) == repr(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.data())
def test_truncated_log_gives_no_additional_step(name: str, data: st.DataObject) -> None:
    log = data.draw(written(name))
    offset = data.draw(st.integers(0, len(log.data)))
    less, more = parse_blocks([log.data[:offset]]), parse_blocks([log.data])
    assert collect_numbers(less) <= collect_numbers(more)
    assert sum(map(len, list_steps(less))) <= sum(map(len, list_steps(more)))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", NAMES)
@settings(EXAMPLES, max_examples=5)
@given(data=st.data())
def test_log_in_another_encoding_gives_no_wrong_step(
    name: str, encoding: str, data: st.DataObject
) -> None:
    log = data.draw(written(name))
    require_printed(parse_blocks([ENCODINGS[encoding](log.data)]), log)


def write_run(name: str, first: int) -> Written:
    """Write a log of one run of four steps."""
    return write(
        FRAMEWORKS[name],
        first=first,
        lengths=(4,),
        prefixes=("",),
        starts=False,
        seed=7,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "filling", [b"x", b"1", b"\x00"], ids=["text", "numbers", "zeros"]
)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_memory_for_reading_a_log_does_not_grow_with_line_length(
    name: str, filling: bytes
) -> None:
    """Insert 8 MiB without a line feed between two runs in a log."""
    log = write_run(name, first=1)
    tracemalloc.start()
    try:
        result = parse_blocks(
            chain([log.data], repeat(filling * MEBIBYTE, LONG_LINE), [b"\n" + log.data])
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * MEBIBYTE
    assert result.lines == 2 * log.data.count(b"\n") + 1
    assert collect_numbers(result) >= collect_numbers(parse_blocks([log.data]))
    assert sum(map(len, list_steps(result))) == 2 * len(log.truth[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_log_with_a_zeroed_gap_merges_no_two_records(name: str) -> None:
    """Remove a piece as long as a line, at each offset: its two sides belong to
    different records."""
    log = write_run(name, first=min(FRAMEWORKS[name].first))
    length = max(map(len, log.lines))
    for index in range(0, len(log.data) - length, 7):
        data = log.data[:index] + bytes(length) + log.data[index + length :]
        require_printed(parse_blocks([data]), log)
