"""torchtitan: step times are the times between two lines."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from support.shared_data import shared
from support.written_logs import dropped, parse, steps

from pytest_llmbench.core.log_records import ParsedLog, Segment
from pytest_llmbench.logs.log_reader import read_log

BEGIN = datetime(2026, 5, 4, 6, 5, 54, 392000, tzinfo=UTC)
PLAIN = "loss:  5.97670  grad_norm:  2.2500  memory: 28.18GiB(89.87%)  tps: 2,110  tflops: 12.83  mfu: 4.11%"


def format_stamp(seconds: float) -> str:
    """Return a time stamp, `seconds` after the first."""
    return f"{BEGIN + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S,%f}"[:-3]


def step_line(
    step: int, seconds: float, *, prefix: str = "[rank0]:[titan] ", fields: str = PLAIN
) -> str:
    """Return a step line of torchtitan, without colours."""
    return f"{prefix}{format_stamp(seconds)} - root - INFO - step: {step:2}  {fields}\n"


def validation_line(step: int, seconds: float) -> str:
    """Return the line of a validation, which prints its own rates."""
    return (
        f"[rank0]:[titan] {format_stamp(seconds)} - root - INFO - \x1b[33mvalidate step: {step:2}  \x1b[32mloss:  3.3315  "
        "\x1b[38;2;54;234;195mmemory: 26.01GiB(82.96%)  \x1b[34mtps: 6,995\x1b[39m\n"
    )


def step_lines(
    first: int,
    last: int,
    *,
    start: float = 0.0,
    prefix: str = "[rank0]:[titan] ",
    every: int = 1,
) -> str:
    """Return the lines of steps that take two seconds each."""
    numbers = range(first, last + 1, every)
    return "".join(
        step_line(number, start + 2.0 * (number - first), prefix=prefix)
        for number in numbers
    )


def get_segment(log: ParsedLog) -> Segment:
    """Return the single segment of a log."""
    (segment,) = log.segments
    return segment


COLOURED = (
    "[rank4]:[titan] 2026-05-04 06:05:54,392 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  5.97670  "
    "\x1b[38;2;180;60;0mgrad_norm: 19203.0469  \x1b[38;2;54;234;195mmemory: 28.18GiB(89.87%)  \x1b[34mtps: 2,110  "
    "\x1b[36mtflops: 47,210.56  \x1b[35mmfu: 15131.59%\x1b[39m\n"
)


@pytest.mark.parametrize("ending", ["\n", "", "[rank1]: foreign text\n", "\r"])
def test_colours_and_separators_are_removed_from_numbers(ending: str) -> None:
    segment = get_segment(parse(COLOURED.rstrip("\n") + ending))
    columns = segment.steps
    assert (columns.index.tolist(), segment.rank) == ([2], "rank4")
    assert (columns.loss.tolist(), columns.grad_norm.tolist()) == (
        [5.9767],
        [19203.0469],
    )
    assert (
        columns.tokens_per_second_per_gpu.tolist(),
        columns.tflops_per_gpu.tolist(),
    ) == ([2110], [47210.56])
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
    ids=["no tflops", "no mfu", "diverged", "other fields"],
)  # fmt: skip
def test_variants_of_the_step_line_fill_the_same_columns(
    fields: str, loss: float, norm: float | None, tflops: float | None
) -> None:
    log = parse(step_line(3, 0.0, fields=fields))
    columns = get_segment(log).steps
    row = [columns.loss[0], columns.grad_norm[0], columns.tflops_per_gpu[0]]
    assert row == pytest.approx(
        [loss, norm or math.nan, tflops or math.nan], nan_ok=True
    )
    assert (columns.has_loss[0], columns.has_grad_norm[0]) == (True, norm is not None)
    assert log.dropped == ()


@pytest.mark.parametrize(
    ("ends", "seconds", "means"),  # seconds after the first line, by step
    [
        pytest.param(
            {1: 0.0, 2: 1.25, 3: 1.75, 4: 4.0},
            [1.25, 0.5, 2.25],
            [1, 1, 1, 1],
            id="every step",
        ),
        pytest.param(
            {1: 0.0, 10: 18.0, 20: 40.0, 30: 62.5},
            [2.0, 2.2, 2.25],
            [1, 9, 10, 10],
            id="every tenth",
        ),
        pytest.param(
            {12510: 0.0, 12520: 20.0, 12530: 40.0},
            [2.0, 2.0],
            [10, 10, 10],
            id="resumed",
        ),
        pytest.param(
            {1: 0.0, 2: 2.0, 4: 6.5, 5: 8.5},
            [2.0, 2.25, 2.0],
            [1, 1, 2, 1],
            id="a line lost",
        ),
    ],
)
def test_step_time_is_time_since_previous_line(
    ends: dict[int, float], seconds: list[float], means: list[int]
) -> None:
    columns = get_segment(
        parse("".join(step_line(*step) for step in ends.items()))
    ).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, *seconds], nan_ok=True)
    assert columns.mean_of.tolist() == means
    assert columns.resolution_seconds[1:].tolist() == pytest.approx(
        [0.001 / count for count in means[1:]]
    )


@pytest.mark.parametrize(
    "changed",
    [
        step_line(3, 2.0),
        f"step:  3  {PLAIN}\n",
        step_line(3, 4.0).replace(",392", ",39"),
        step_line(3, 4.0).replace("2026-05-04", "2026-13-04"),
        step_line(3, 4.0).replace(" - root", " foreign - root"),
    ],
    ids=["same time", "no stamp", "cut stamp", "no date", "words after the stamp"],
)
def test_step_time_is_nan_unless_timestamp_is_later_than_previous_one(
    changed: str,
) -> None:
    columns = get_segment(parse(step_line(1, 0.0) + step_line(2, 2.0) + changed)).steps
    assert columns.index.tolist() == [1, 2, 3]
    assert columns.seconds.tolist() == pytest.approx(
        [math.nan, 2.0, math.nan], nan_ok=True
    )


def test_step_time_excludes_previous_validation() -> None:
    """The rates of torchtitan exclude a validation, too."""
    log = parse(
        step_lines(980, 1000, every=10)
        + validation_line(1000, 140.0)
        + step_line(1010, 160.5)
        + step_line(1020, 180.5)
    )
    columns = get_segment(log).steps
    assert columns.index.tolist() == [980, 990, 1000, 1010, 1020]
    assert columns.seconds.tolist() == pytest.approx(
        [math.nan, 2.0, 2.0, 2.05, 2.0], nan_ok=True
    )
    assert log.dropped == ()


def test_step_time_counts_from_validation_line_if_its_step_line_is_missing() -> None:
    columns = get_segment(
        parse(
            step_line(990, 0.0) + validation_line(1000, 90.0) + step_line(1010, 110.0)
        )
    ).steps
    assert columns.seconds.tolist() == pytest.approx([math.nan, 2.0], nan_ok=True)
    assert columns.mean_of.tolist()[1] == 10


@pytest.mark.parametrize("text", [validation_line(13000, 0.0), "evaluation:  step:  5  " + PLAIN + "\n",
    "https: //example.org\n", "a service with tps: 1,234\n", "step: 5 | loss: 1.0 | tps: 100 | mfu: 3%\n"])  # fmt: skip
def test_lines_similar_to_step_lines_are_not_read_as_steps(text: str) -> None:
    log = parse(text)
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step:  2", "step:  2foreign"),
        ("step:  2  ", "\n"),
        ("5.97670", "5.97670  loss:  5.97670"),
        ("memory: 28.18GiB(89.87%)  ", ""),
        ("2,110", "2,foreign110"),
        ("12.83", "12.8"),
        ("4.11%", "4.11"),
        ("INFO - step", "INFO - foreignstep"),
    ],
)
def test_truncated_step_record_is_reported_as_dropped(old: str, new: str) -> None:
    log = parse(step_line(2, 0.0).replace(old, new))
    assert log.segments == ()
    assert dropped(log) == {"torn": 1}


def test_all_records_on_one_line_are_read() -> None:
    log = parse(
        step_line(1, 0.0).rstrip()
        + step_line(2, 2.0).rstrip()
        + step_line(3, 4.5, prefix="[rank0]:")
    )
    assert steps(log) == [[1, 2, 3]]
    assert get_segment(log).steps.seconds.tolist()[1:] == [2.0, 2.5]


def test_step_times_are_computed_from_the_timestamps_of_a_single_rank() -> None:
    pairs = (
        (
            step_line(n, 2.0 * n),
            step_line(n, 2.0 * n + 0.7 * (n % 2), prefix="[rank1]:[titan] "),
        )
        for n in range(1, 6)
    )
    log = parse("".join(first + second for first, second in pairs))
    assert get_segment(log).rank == "rank0"
    assert get_segment(log).steps.seconds.tolist()[1:] == [2.0] * 4
    assert dropped(log) == {"other-rank": 5}


STARTED = (
    "[rank0]:[titan] 2026-05-04 06:05:50,000 - root - INFO - Trainer is initialized with local batch size 8, global "
    "batch size 16, gradient accumulation steps 1, sequence length 2048, total steps 20 (warmup 2)\n"
    "[rank0]:[titan] 2026-05-04 06:05:51,000 - root - INFO - Training starts at step 1\n"
)
COMPLETED = (
    "[rank{}]:[titan] 2026-05-04 06:05:54,392 - root - INFO - Training completed\n"
)


OLDER_START = "INFO - Training starts at step 1, with local batch size 4, global batch size 32, total steps 20 (warmup 2)\n"


@pytest.mark.parametrize(
    ("text", "total", "finished"),
    [
        pytest.param(STARTED + step_lines(1, 20), 20, True, id="last step"),
        pytest.param(STARTED + step_lines(1, 19), 20, False, id="a step less"),
        pytest.param(OLDER_START + step_lines(1, 20), 20, True, id="older start line"),
        pytest.param(STARTED + step_lines(10, 15, every=5) + COMPLETED.format(0), 20, True, id="last step not printed"),
        pytest.param(
            STARTED + step_lines(1, 19) + COMPLETED.format(1) + step_line(20, 38.0) + COMPLETED.format(0), 20, True,
            id="another rank completes first",
        ),
    ],
)  # fmt: skip
def test_run_is_finished_by_last_step_or_end(
    text: str, total: int, finished: bool
) -> None:
    segment = get_segment(parse(text))
    assert (segment.total_steps, segment.finished) == (total, finished)


def test_time_before_a_restart_is_not_counted_as_step_time() -> None:
    """The resumed run continues at the next step, an hour later."""
    restarted = STARTED.replace("step 1\n", "step 21\n")
    log = parse(step_lines(1, 20) + restarted + step_lines(21, 30, start=3600.0))
    assert steps(log) == [list(range(1, 21)), list(range(21, 31))]
    assert log.segments[1].steps.seconds.tolist() == pytest.approx(
        [math.nan] + [2.0] * 9, nan_ok=True
    )


@pytest.mark.parametrize(
    ("name", "tokens", "tolerance"),
    # local batch size x gradient accumulation x sequence length, from the log or its
    # command
    [
        ("cpu_0_3_0_50_steps.out", 4 * 256, 0.004),
        ("mfu_not_available.out", 168 * 128, 0.001),
        ("resumed_killed.out", 3 * 8 * 2048, 0.0003),
        ("two_ranks_print.out", 8 * 2048, 0.005),
    ],
)
def test_step_times_of_real_logs_match_rates(
    name: str, tokens: int, tolerance: float
) -> None:
    columns = get_segment(read_log(shared(f"logs/torchtitan/{name}"))).steps
    products = (columns.seconds * columns.tokens_per_second_per_gpu)[1:]
    assert products.tolist() == pytest.approx([tokens] * len(products), rel=tolerance)


def test_time_since_a_validation_represents_its_interval() -> None:
    """Every tenth step is printed, with a validation after step 24.

    Only steps 25 to 30 are timed.
    """
    steps = (
        step_line(10, 20.0),
        step_line(20, 40.0),
        validation_line(24, 60.0),
        step_line(30, 72.0),
        step_line(40, 92.0),
        step_line(50, 112.0),
    )
    log = parse("".join(steps))
    columns = get_segment(log).steps
    assert columns.mean_of.tolist() == [10] * 5
    assert columns.seconds.tolist() == pytest.approx(
        [math.nan, 2.0, 2.0, 2.0, 2.0], nan_ok=True
    )
    assert columns.paused.tolist() == [False, False, True, False, False]
    assert dropped(log) == {"partly-timed": 1}


def test_mean_after_a_validation_excludes_steps_of_a_lost_earlier_line() -> None:
    steps = (
        step_line(10, 20.0),
        step_line(20, 40.0),
        validation_line(34, 60.0),
        step_line(40, 72.0),
        step_line(50, 92.0),
        step_line(60, 112.0),
    )
    columns = get_segment(parse("".join(steps))).steps
    assert columns.mean_of.tolist() == [10, 10, 6, 10, 10]
