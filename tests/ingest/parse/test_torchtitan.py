"""torchtitan: no seconds are printed, so that a step's time is the time between two lines."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pytest
from shared_data import shared
from written_logs import dropped, parse, steps

from pytest_llmbench.core.models import ParsedLog, Segment
from pytest_llmbench.ingest.parse.read import read_log

BEGIN = datetime(2026, 5, 4, 6, 5, 54, 392000, tzinfo=UTC)
PLAIN = "loss:  5.97670  grad_norm:  2.2500  memory: 28.18GiB(89.87%)  tps: 2,110  tflops: 12.83  mfu: 4.11%"


def stamp(seconds: float) -> str:
    """A time stamp, `seconds` after the first."""
    return f"{BEGIN + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S,%f}"[:-3]


def line(step: int, seconds: float, *, prefix: str = "[rank0]:[titan] ", fields: str = PLAIN) -> str:
    """A line of torchtitan, without colours."""
    return f"{prefix}{stamp(seconds)} - root - INFO - step: {step:2}  {fields}\n"


def validation(step: int, seconds: float) -> str:
    """A validation, which prints rates of its own."""
    return (
        f"[rank0]:[titan] {stamp(seconds)} - root - INFO - \x1b[33mvalidate step: {step:2}  \x1b[32mloss:  3.3315  "
        "\x1b[38;2;54;234;195mmemory: 26.01GiB(82.96%)  \x1b[34mtps: 6,995\x1b[39m\n"
    )


def run(first: int, last: int, *, begin: float = 0.0, prefix: str = "[rank0]:[titan] ", every: int = 1) -> str:
    """Lines of steps that take two seconds each."""
    numbers = range(first, last + 1, every)
    return "".join(line(number, begin + 2.0 * (number - first), prefix=prefix) for number in numbers)


def only(log: ParsedLog) -> Segment:
    """The one segment of a log."""
    (segment,) = log.segments
    return segment


COLOURED = (
    "[rank4]:[titan] 2026-05-04 06:05:54,392 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  5.97670  "
    "\x1b[38;2;180;60;0mgrad_norm: 19203.0469  \x1b[38;2;54;234;195mmemory: 28.18GiB(89.87%)  \x1b[34mtps: 2,110  "
    "\x1b[36mtflops: 47,210.56  \x1b[35mmfu: 15131.59%\x1b[39m\n"
)


@pytest.mark.parametrize("ending", ["\n", "", "[rank1]: foreign text\n", "\r"])
def test_colours_and_thousands_are_no_part_of_a_number(ending: str) -> None:
    segment = only(parse(COLOURED.rstrip("\n") + ending))
    columns = segment.steps
    assert (columns.index.tolist(), segment.rank) == ([2], "rank4")
    assert (columns.loss.tolist(), columns.grad_norm.tolist()) == ([5.9767], [19203.0469])
    assert (columns.tokens_per_second_per_gpu.tolist(), columns.tflops_per_gpu.tolist()) == ([2110], [47210.56])
    assert columns.peak_memory_bytes.tolist() == [28.18 * 2**30]
    assert math.isnan(columns.seconds[0])
    assert segment.first_step == 1


@pytest.mark.parametrize(
    ("fields", "loss", "norm", "tflops"),
    [
        ("loss:  8.1661  memory:  2.47GiB(3.12%)  tps: 3,502  mfu: 0.19%", 8.1661, None, None),
        ("loss:  8.1661  memory:  2.47GiB(3.12%)  tps: 3,502  tflops: 1.90  mfu: N/A", 8.1661, None, 1.9),
        ("loss:      nan  grad_norm:     inf  memory:  2.47GiB(3.12%)  tps: 13,502  tflops: 1.90  mfu: 0.19%",
         math.nan, math.inf, 1.9),
        ("loss:  8.1661  aux:  0.25  memory:  2.47GiB(3.12%)  tps: 502  tflops: 1.90  mfu: 0.19%  more: 1",
         8.1661, None, 1.9),
    ],
)  # fmt: skip
def test_the_variants_of_the_line(fields: str, loss: float, norm: float | None, tflops: float | None) -> None:
    log = parse(line(3, 0.0, fields=fields))
    columns = only(log).steps
    assert columns.loss.tolist() == pytest.approx([loss], nan_ok=True)
    assert columns.has_loss.tolist() == [True]
    assert columns.has_grad_norm.tolist() == [norm is not None]
    assert columns.grad_norm.tolist() == pytest.approx([math.nan if norm is None else norm], nan_ok=True)
    assert columns.tflops_per_gpu.tolist() == pytest.approx([tflops or math.nan], nan_ok=True)
    assert log.dropped == ()


def test_a_step_takes_the_time_since_the_line_before() -> None:
    columns = only(parse(line(1, 0.0) + line(2, 1.25) + line(3, 1.75) + line(4, 4.0))).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, 1.25, 0.5, 2.25], nan_ok=True)
    assert columns.resolution_seconds.tolist() == [0.0, 0.001, 0.001, 0.001]
    assert columns.mean_of.tolist() == [1, 1, 1, 1]


def test_a_line_for_every_tenth_step_shows_the_mean_of_ten() -> None:
    columns = only(parse(line(1, 0.0) + line(10, 18.0) + line(20, 40.0) + line(30, 62.5))).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0, 2.2, 2.25], nan_ok=True)
    assert columns.mean_of.tolist() == [1, 9, 10, 10]
    assert columns.resolution_seconds[2] == pytest.approx(0.0001)


def test_the_rates_of_the_first_line_after_a_resumption_are_of_as_many_steps_as_between_the_others() -> None:
    columns = only(parse(run(12510, 12540, every=10))).steps
    assert columns.mean_of.tolist() == [10, 10, 10, 10]


def test_a_lost_line_makes_the_next_one_a_mean_of_two() -> None:
    columns = only(parse(line(1, 0.0) + line(2, 2.0) + line(4, 6.5) + line(5, 8.5))).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0, 2.25, 2.0], nan_ok=True)
    assert columns.mean_of.tolist() == [1, 1, 2, 1]


@pytest.mark.parametrize(
    "changed",
    [
        line(3, -60.0),
        line(3, 2.0),
        f"step:  3  {PLAIN}\n",
        line(3, 4.0).replace(",392", ",39"),
        line(3, 4.0).replace("2026-05-04", "2026-13-04"),
        line(3, 4.0).replace(" - root", " foreign - root"),
    ],
)
def test_without_a_later_time_stamp_there_is_no_time(changed: str) -> None:
    columns = only(parse(line(1, 0.0) + line(2, 2.0) + changed)).steps
    assert columns.index.tolist() == [1, 2, 3]
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0, math.nan], nan_ok=True)


def test_the_time_of_a_validation_is_no_part_of_the_next_step() -> None:
    """As in the rates that torchtitan prints: it begins to count anew after a validation."""
    log = parse(run(980, 1000, every=10) + validation(1000, 140.0) + line(1010, 160.5) + line(1020, 180.5))
    columns = only(log).steps
    assert columns.index.tolist() == [980, 990, 1000, 1010, 1020]
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0, 2.0, 2.05, 2.0], nan_ok=True)
    assert log.dropped == ()


def test_after_a_validation_whose_step_is_lost_the_steps_count_from_the_validation() -> None:
    columns = only(parse(line(990, 0.0) + validation(1000, 90.0) + line(1010, 110.0))).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0], nan_ok=True)
    assert columns.mean_of.tolist()[1] == 10


@pytest.mark.parametrize("text", [validation(13000, 0.0), "evaluation:  step:  5  " + PLAIN + "\n",
    "https: //example.org\n", "a service with tps: 1,234\n", "step: 5 | loss: 1.0 | tps: 100 | mfu: 3%\n"])  # fmt: skip
def test_look_alikes_are_no_steps(text: str) -> None:
    log = parse(text)
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step:  2", "step:  2foreign"),
        ("step:  2  ", "\n"),
        ("5.97670", "5.9foreign7670"),
        ("5.97670", "5.97670  loss:  5.97670"),
        ("memory: 28.18GiB(89.87%)  ", ""),
        ("28.18GiB", "28.1\nforeign8GiB"),
        ("2,110", "2,foreign110"),
        ("12.83", "12.8"),
        ("4.11%", "4.11"),
        ("mfu: 4.11%", ""),
        ("INFO - step", "INFO - foreignstep"),
    ],
)
def test_a_torn_record_is_dropped_and_counted(old: str, new: str) -> None:
    log = parse(line(2, 0.0).replace(old, new))
    assert log.segments == ()
    assert dropped(log) == {"torn": 1}


def test_records_glued_to_each_other_are_all_read() -> None:
    log = parse(line(1, 0.0).rstrip() + line(2, 2.0).rstrip() + line(3, 4.5, prefix="[rank0]:"))
    assert steps(log) == [[1, 2, 3]]
    assert only(log).steps.seconds.tolist()[1:] == [2.0, 2.5]


def test_each_rank_has_its_own_clock() -> None:
    pairs = ((line(n, 2.0 * n), line(n, 2.0 * n + 0.7 * (n % 2), prefix="[rank1]:[titan] ")) for n in range(1, 6))
    log = parse("".join(one + other for one, other in pairs))
    assert only(log).rank == "rank0"
    assert only(log).steps.seconds.tolist()[1:] == [2.0] * 4
    assert dropped(log) == {"other-rank": 5}


STARTED = (
    "[rank0]:[titan] 2026-05-04 06:05:50,000 - root - INFO - Trainer is initialized with local batch size 8, global "
    "batch size 16, gradient accumulation steps 1, sequence length 2048, total steps 20 (warmup 2)\n"
    "[rank0]:[titan] 2026-05-04 06:05:51,000 - root - INFO - Training starts at step 1\n"
)
COMPLETED = "[rank{}]:[titan] 2026-05-04 06:05:54,392 - root - INFO - Training completed\n"


def test_a_log_says_how_many_steps_there_are() -> None:
    whole, part = only(parse(STARTED + run(1, 20))), only(parse(STARTED + run(1, 19)))
    assert (whole.total_steps, whole.finished) == (20, True)
    assert (part.total_steps, part.finished) == (20, False)
    older = (
        "INFO - Training starts at step 1, with local batch size 4, global batch size 32, total steps 20 (warmup 2)\n"
    )
    assert only(parse(older + run(1, 20))).total_steps == 20


def test_training_is_completed_where_the_last_step_is_not_printed() -> None:
    text = STARTED.replace("total steps 20", "total steps 25") + run(10, 20, every=10)
    assert not only(parse(text)).finished
    assert only(parse(text + COMPLETED.format(0))).finished


def test_another_rank_that_completes_first_divides_nothing() -> None:
    log = parse(STARTED + run(1, 19) + COMPLETED.format(1) + line(20, 38.0) + COMPLETED.format(0))
    assert len(only(log).steps) == 20
    assert only(log).finished


def test_a_restart_is_no_slow_step() -> None:
    """After a resumption the step goes on where it was, an hour later."""
    restarted = STARTED.replace("step 1\n", "step 21\n")
    log = parse(run(1, 20) + restarted + run(21, 30, begin=3600.0))
    assert steps(log) == [list(range(1, 21)), list(range(21, 31))]
    assert math.isnan(log.segments[1].steps.seconds[0])
    assert np.nanmax(log.segments[1].steps.seconds) == 2.0


class Truth(NamedTuple):
    """What an undamaged log prints: the values of each step, and when each step or validation was printed."""

    values: dict[int, tuple[float, ...]]
    stamps: dict[int, list[float]]


DAMAGED = (
    STARTED
    + COLOURED.replace("rank4", "rank0").replace("step:  2", "step:  1")
    + line(2, 2.031).rstrip("\n")
    + line(12, 23.5, fields=PLAIN.replace("2,110", "12,110").replace("5.97670", "nan"))
    + validation(12, 40.25)
    + line(13, 42.125, fields=PLAIN.replace("12.83", "1,012.83"))
    + line(14, 45.0)
)
TRUTH = Truth(
    {
        1: (5.9767, 19203.0469, 2110, 47210.56, 28.18 * 2**30),
        2: (5.9767, 2.25, 2110, 12.83, 28.18 * 2**30),
        12: (math.nan, 2.25, 12110, 12.83, 28.18 * 2**30),
        13: (5.9767, 2.25, 2110, 1012.83, 28.18 * 2**30),
        14: (5.9767, 2.25, 2110, 12.83, 28.18 * 2**30),
    },
    {1: [0.0], 2: [2.031], 12: [23.5, 40.25], 13: [42.125], 14: [45.0]},
)


def check(data: bytes) -> int:
    """Return how many steps have a time; fail where a step has a number that was not printed for it, or a time that
    is not between two lines. A number that is missing is no harm."""
    found = 0
    for segment in parse(data).segments:
        columns = segment.steps
        for row, step in enumerate(columns.index.tolist()):
            values = (
                columns.loss,
                columns.grad_norm,
                columns.tokens_per_second_per_gpu,
                columns.tflops_per_gpu,
                columns.peak_memory_bytes,
            )
            for column, printed in zip(values, TRUTH.values[step], strict=True):
                assert math.isnan(column[row]) or column[row] == pytest.approx(printed)
            if not math.isnan(columns.seconds[row]):
                steps_between = int(columns.mean_of[row])
                gaps = [TRUTH.stamps[step][0] - begin for begin in TRUTH.stamps[step - steps_between]]
                assert any(columns.seconds[row] * steps_between == pytest.approx(gap) for gap in gaps)
                found += 1
    return found


def test_the_log_is_read_in_full() -> None:
    assert check(DAMAGED.encode()) == 4
    assert only(parse(DAMAGED)).steps.mean_of.tolist() == [1, 1, 10, 1, 1]


@pytest.mark.slow
def test_a_log_cut_off_or_begun_at_any_byte() -> None:
    data = DAMAGED.encode()
    for place in range(0, len(data), 2):
        check(data[:place])
        check(data[place + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("foreign", ["\nforeign\n", "foreign", "e", "[rank1]:[titan] ", "\x1b[31m\n"])
def test_foreign_text_at_any_byte(foreign: str) -> None:
    data = DAMAGED.encode()
    for place in range(len(foreign) % 3, len(data) + 1, 3):
        check(data[:place] + foreign.encode() + data[place:])


@pytest.mark.slow
def test_a_line_of_the_same_log_written_into_another() -> None:
    data = DAMAGED.encode()
    for number, each in enumerate(data.splitlines(keepends=True)):
        for place in range(number, len(data) + 1, 13):
            check(data[:place] + each + data[place:])


@pytest.mark.parametrize(
    ("name", "segment", "tokens", "tolerance"),
    [  # local batch size x gradient accumulation x sequence length, as the log or its command says
        ("cpu_0_3_0_50_steps.out", 0, 4 * 256, 0.004),
        ("mfu_not_available.out", 0, 168 * 128, 0.001),
        ("resumed_killed.out", 0, 3 * 8 * 2048, 0.0003),
        ("two_ranks_print.out", 0, 8 * 2048, 0.005),
        ("four_runs_excerpt.out", 2, 16384, 0.0003),
        ("four_runs_excerpt.out", 3, 16384, 0.0003),
    ],
)
def test_times_agree_with_the_tokens_per_second_of_real_logs(
    name: str, segment: int, tokens: int, tolerance: float
) -> None:
    columns = read_log(shared(f"logs/torchtitan/{name}")).segments[segment].steps
    products = (columns.seconds * columns.tokens_per_second_per_gpu)[1:]
    assert products.tolist() == pytest.approx([tokens] * len(products), rel=tolerance)
