"""Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge: iteration and step time lines."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, NOW, run
from support.written_logs import dropped, parse, steps

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import ParsedLog, Steps
from pytest_llmbench.logs.dialects.megatron import find_interval
from pytest_llmbench.runs.measure.measurement import measure

START = "> building train, validation, and test datasets ...\n"

DOCUMENT_LINE = (
    "[2025-12-19 10:49:15] iteration        1/       1 | consumed samples:          128 | "
    "elapsed time per iteration (ms): 20289.1 | learning rate: 3.000000E-05 | global batch size:   128 | "
    "lm loss: 1.258695E+01 | loss scale: 1.0 | grad norm: 10.275 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |Number of parameters in transformer layers in billions:  6.98\n"
)
SECONDS_LINE = (
    "[default7]: iteration    31214/  115311 | consumed samples:     60000000 | consumed tokens: 122880000000 | "
    "elapsed time per iteration (s): 106.46 | learning rate: 6.000E-05 | global batch size:  2048 | "
    "lm loss: 2.101E+00 | loss scale: 1.0 | grad norm: 0.107 | num zeros: 0.0 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 | samples per second: 19.238 | TFLOPs: 147.29 |\n"
)
PAIRS_LINE = (
    "[2026-05-11 03:00:27.354] iteration        3/      20 | consumed samples:         2688 | elapsed time per "
    "iteration (ms): 32025.5/32117.1 | throughput per GPU (TFLOP/s/GPU): 239.8/239.1  | tokens per GPU (tokens/s/GPU): "
    "14324.6/14283.8 | learning rate: 9.9E-06 | global batch size:   896 | lm loss: 1.150000E+01 | loss scale: 1.0 | "
    "grad norm: 5.9 | number of skipped iterations:   0 | number of nan iterations:   0 | hip mem usage/free/total/"
    "usage_ratio: 232.82GB/55.17GB/287.98GB/80.84%  | rank-1 rocm max mem usage/usage_ratio: 248.37GB/86.25%\x1b[0m\n"
)
HYPHEN_LINE = (
    " iteration       25/73242187 | consumed samples:           50 | elapsed time per iteration (ms): 87.0 | learning "
    "rate: 1.638E-08 | global batch size:     2 | lm-loss: 1.244238E+01 | loss scale: -1.0 | grad norm: 0.000 | "
    "num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def line(
    step: int,
    milliseconds: float = 2000.0,
    *,
    total: int = 50,
    stamp: str = "",
    extra: str = "lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 10.275",
    skipped: int = 0,
    nan: int = 0,
) -> str:
    """Return an iteration line of Megatron."""
    return (
        f"{stamp} iteration {step:8d}/{total:8d} | consumed samples: {128 * step:12d} | elapsed time per iteration "
        f"(ms): {milliseconds:.1f} | learning rate: 3.0E-05 | global batch size:   128 | {extra} | number of skipped "
        f"iterations: {skipped:3d} | number of nan iterations: {nan:3d} |\n"
    )


def step_time(seconds: float, tflops: float = 528.1) -> str:
    """Return a step time line of Megatron-Bridge."""
    return (
        f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU\n"
    )


def get_columns(log: ParsedLog) -> Steps:
    """Return the columns of a log with a single segment."""
    (segment,) = log.segments
    return segment.steps


def list_means(log: ParsedLog) -> list[list[int]]:
    """Return `mean_of` of each segment."""
    return [segment.steps.mean_of.tolist() for segment in log.segments]


@pytest.mark.parametrize(
    (
        "text",
        "rank",
        "expected",
    ),  # step, seconds, unit, loss, grad norm, TFLOP/s, tokens/s, batch size
    [
        (
            DOCUMENT_LINE,
            "",
            (1, 20.2891, 1e-4, 12.58695, 10.275, math.nan, math.nan, 128),
        ),
        (
            SECONDS_LINE,
            "default7",
            (31214, 106.46, 0.01, 2.101, 0.107, 147.29, math.nan, 2048),
        ),
        (
            "55:  " + PAIRS_LINE,
            "55",
            (3, 32.0255, 1e-4, 11.5, 5.9, 239.8, 14324.6, 896),
        ),
        (
            "9: [default3]: " + HYPHEN_LINE,
            "9 default3",
            (25, 0.087, 1e-4, 12.44238, 0, math.nan, math.nan, 2),
        ),
    ],
    ids=["document", "seconds", "pairs", "hyphen"],
)
def test_line_of_each_version_fills_columns(
    text: str, rank: str, expected: tuple[float, ...]
) -> None:
    log = parse(text)
    (segment,) = log.segments
    row = segment.steps
    columns = (
        row.index, row.seconds, row.resolution_seconds, row.loss, row.grad_norm, row.tflops_per_gpu,
        row.tokens_per_second_per_gpu, row.global_batch_size,
    )  # fmt: skip
    assert [column[0] for column in columns] == pytest.approx(expected, nan_ok=True)
    assert (segment.rank, log.dialect, log.dropped) == (rank, "megatron", ())
    assert segment.total_steps == int(text.partition("/")[2].partition("|")[0])
    assert (row.mean_of[0], row.has_loss[0], row.has_grad_norm[0]) == (1, True, True)


@pytest.mark.parametrize(
    ("text", "seconds", "tflops"),
    [
        (
            "0: Step Time : 5.39s GPU utilization: 2347.0MODEL_TFLOP/s/GPU   # warm-up\n",
            5.39,
            2347.0,
        ),
        (
            "[rank3]: some warningStep Time : 2.20s GPU utilization: 1.0 TFLOP/s/GPU[rank1]: x\n",
            2.2,
            1.0,
        ),
    ],
    ids=["rank", "glued"],
)
def test_step_time_lines_without_iteration_numbers_are_numbered_from_1(
    text: str, seconds: float, tflops: float
) -> None:
    log = parse(START + text * 3 + START + text * 3)
    assert steps(log) == [[1, 2, 3], [1, 2, 3]]
    row = log.segments[1].steps
    assert (row.mean_of[0], row.seconds[0], row.tflops_per_gpu[0]) == (
        1,
        seconds,
        tflops,
    )
    assert row.resolution_seconds[0] == pytest.approx(0.01)
    assert (log.segments[0].total_steps, log.dropped) == (None, ())
    assert not row.has_loss.any()


@pytest.mark.parametrize(
    "cut",
    ["Step Time : 2", "Step Time : 2.22s GPU uti[rank1]: warning", "Step Time : "],
)
def test_truncated_step_time_line_still_counts_as_a_step(cut: str) -> None:
    log = parse(START + step_time(9) + START + cut + "\n" + step_time(3) + step_time(4))
    row = log.segments[-1].steps
    assert row.index.tolist() == [1, 2, 3]
    assert row.seconds.tolist() == pytest.approx([math.nan, 3, 4], nan_ok=True)
    assert dropped(log) == {"torn": 1}


TIMES = [12.7834, 2.2214, 3.4512, 2.2249, 2.2231, 2.2198]
ITERATIONS = [line(step, seconds * 1000) for step, seconds in enumerate(TIMES, 1)]
STEP_TIMES = [step_time(seconds, 1000 + step) for step, seconds in enumerate(TIMES, 1)]
PAIRS = list(zip(ITERATIONS, STEP_TIMES, strict=True))


@pytest.mark.parametrize(
    "lines",
    [
        [text for pair in PAIRS for text in pair],
        [text for pair in PAIRS for text in reversed(pair)],
        [
            text
            for step, pair in enumerate(PAIRS)
            for text in pair[:: -1 if step % 2 else 1]
        ],
        [
            f"{rank}: {text}"
            for pair in PAIRS
            for rank, text in zip((7, 0), pair, strict=True)
        ],
        [*STEP_TIMES, *ITERATIONS],
        [*ITERATIONS, *STEP_TIMES],
    ],
    ids=[
        "iteration first",
        "step time first",
        "mixed",
        "two ranks",
        "step times in a block",
        "iterations in a block",
    ],
)
def test_iteration_line_and_step_time_of_one_step_are_merged(lines: list[str]) -> None:
    log = parse("".join(lines))
    row = get_columns(log)
    assert row.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.seconds.tolist() == TIMES
    assert row.tflops_per_gpu[[0, 2]].tolist() == [1001, 1003]
    assert sorted(row.tflops_per_gpu.tolist()) == [1001, 1002, 1003, 1004, 1005, 1006]
    assert row.has_loss.all()
    assert log.dropped == ()


@pytest.mark.parametrize("printed", [2.5, 1.5], ids=["slower", "faster"])
def test_slower_of_two_contradicting_times_of_a_megatron_step_is_used(
    printed: float,
) -> None:
    log = parse(
        line(1)
        + step_time(2.0)
        + line(2)
        + step_time(printed, 7.0)
        + line(3)
        + step_time(2.0)
    )
    row = get_columns(log)
    assert row.seconds.tolist() == [2.0, max(2.0, printed), 2.0]
    assert (
        row.line[1],
        row.loss[1],
        row.consumed_samples[1],
        row.learning_rate[1],
    ) == (3, 11.0, 256, 3e-5)
    assert row.skipped_steps[1] == 0
    assert dropped(log) == {"repeat-disagrees": 1}
    assert "step 2: 2 s in line 3" in log.dropped[0].shown


def test_step_time_without_its_iteration_line_is_dropped() -> None:
    unknown = parse(
        line(1, 9000) + step_time(9) + step_time(5) + line(3, 2000) + step_time(2)
    )
    assert (steps(unknown), dropped(unknown)) == ([[1, 3]], {"unknown-step": 1})
    assert get_columns(unknown).seconds.tolist() == [9, 2]
    truncated = parse(line(1, 9000) + "Step Time : 9\n" + line(2) + step_time(2))
    assert (steps(truncated), dropped(truncated)) == ([[1, 2]], {"torn": 1})


def test_run_of_step_times_follows_another_run() -> None:
    log = parse(
        line(1) + step_time(2) + line(2) + step_time(2) + START + step_time(5) * 3
    )
    assert steps(log) == [[1, 2], [1, 2, 3]]
    assert log.segments[1].steps.seconds.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("extra", "skipped", "nan", "loss", "norm"),  # None: missing
    [
        ("loss scale: 1.0 | grad norm: nan", 0, 0, math.nan, math.nan),
        ("lm loss: NAN | loss scale: 1.0 | grad norm: nan", 0, 0, math.nan, math.nan),
        ("lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: inf", 0, 0, 11.0, math.inf),
        ("loss scale: 1.0 | grad norm: inf", 0, 0, math.nan, math.inf),
        ("loss scale: 4294967296.0 | grad norm: inf", 1, 0, None, None),
        ("lm loss: 0.000000E+00 | loss scale: 65536.0", 1, 0, None, None),
        ("loss scale: 4294967296.0 | grad norm: 1.500", 1, 0, None, 1.5),
        ("loss scale: 1.0 | grad norm: nan", 1, 0, math.nan, math.nan),
        (
            "lm loss: 1.1E+01 | loss scale: 65536.0 | grad norm: 2.0",
            1,
            1,
            math.nan,
            2.0,
        ),
        ("loss scale: 1.0 | grad norm: 1.5", 0, 0, None, 1.5),
    ],
)
def test_omitted_loss_is_nan_unless_step_was_skipped(
    extra: str, skipped: int, nan: int, loss: float | None, norm: float | None
) -> None:
    row = get_columns(parse(line(1, extra=extra, skipped=skipped, nan=nan)))
    assert (row.has_loss[0], row.has_grad_norm[0]) == (
        loss is not None,
        norm is not None,
    )
    expected = [math.nan if value is None else value for value in (loss, norm)]
    assert [row.loss[0], row.grad_norm[0]] == pytest.approx(expected, nan_ok=True)


WHOLE = line(7)


@pytest.mark.parametrize(
    "text",
    [
        WHOLE[: WHOLE.index("learning")] + "\n",
        WHOLE[: WHOLE.index("number of nan")],
        WHOLE[: WHOLE.index("|", WHOLE.index("number of nan"))] + "\n",
        WHOLE[: WHOLE.index("mples:")] + "\n",
        WHOLE[WHOLE.index("consumed") :],
        "    50 | " + WHOLE[WHOLE.index("elapsed") :],
    ],
    ids=[
        "in its middle",
        "before its last field",
        "in its last field",
        "in its first field",
        "head",
        "more of its head",
    ],
)
def test_truncated_megatron_record_is_reported_as_one_dropped_record(text: str) -> None:
    log = parse(text)
    assert (steps(log), dropped(log)) == ([], {"torn": 1})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("iteration        7/", "iteration 7/"),
        ("iteration        7/", "iteration        0/"),
        ("/      50 |", "/      \n50 |"),
        ("2000.0", "20[rank3]: warning00.0"),
        ("2000.0", "20\n00.0"),
        ("2000.0", "2000.0 | elapsed time per iteration (s): 2.0"),
        ("lm loss:", "[rank3]: W1231 lm loss:"),
        ("lm loss", "lm [rank3]: warning\n loss"),
        ("lm loss: 1.1E+01", "lm loss: 1.1E+01 | lm loss: 1.2E+01"),
        ("lm loss: 1.1E+01", "lm loss: 1.1E+"),
    ],
)
def test_damaged_megatron_record_is_reported_as_one_dropped_record(
    old: str, new: str
) -> None:
    log = parse(WHOLE.replace(old, new))
    assert (steps(log), dropped(log)) == ([], {"torn": 1})


@pytest.mark.parametrize(
    "text",
    [
        " validation loss at iteration 2500 | lm loss value: 2.1E+00 | lm loss PPL: 8.1E+00 |\n",
        "[Rank 0] (after 100 iterations) memory (MB) | allocated: 5728.25 | max allocated: 44117.03\n",
        "  successfully loaded checkpoint, starting from iteration 8000\n",
        "saving checkpoint at iteration     300 to /ckpt in torch_dist format\n",
        "AssertionError: OptimizerParamScheduler: class input value 300 and checkpointvalue 200 for total number of "
        "iterations do not match\n",
        "  train_iters ..................................... 300\n",
        "prints the elapsed time per iteration (ms) of each rank\n",
        "Epoch 0, iteration 49/49 | lr: 7.496e-06 | global_batch_size: 128\n",
        "Step Time : see above\n",
        "evaluated at iteration 5/50\n",
    ],
)
def test_lines_similar_to_step_lines_are_not_read_as_steps(text: str) -> None:
    log = parse(text)
    assert (log.segments, log.dropped) == ((), ())


def test_records_on_one_line_are_read_unless_truncated() -> None:
    joined = parse(
        "warning: slow"
        + line(1).rstrip("\n")
        + line(2).rstrip("\n")
        + "[default3]:\n"
        + line(3)
    )
    assert (steps(joined), joined.dropped) == ([[1, 2, 3]], ())
    truncated = parse(WHOLE[:90] + line(8))
    assert (steps(truncated), dropped(truncated)) == ([[8]], {"torn": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            line(1) + line(2) + START + line(3), [[1, 2], [3]], id="data sets"
        ),
        pytest.param(
            line(1) + "time to initialize megatron (seconds): 27.9\n" + line(2),
            [[1], [2]],
            id="initialized",
        ),
        pytest.param(
            f"{'-' * 24} arguments {'-' * 24}\n".join([line(1), line(2)]),
            [[1], [2]],
            id="arguments",
        ),
        pytest.param(
            f"{'-' * 20} arguments {'-' * 20}\n".join([line(1), line(2)]),
            [[1], [2]],
            id="GPT-NeoX",
        ),
        pytest.param(line(1, total=2) + line(2), [[1], [2]], id="another total"),
        pytest.param(line(1) + line(2) + line(5), [[1, 2, 5]], id="a gap"),
    ],
)
def test_attempt_begins_at_start_line_or_new_total(
    text: str, expected: list[list[int]]
) -> None:
    assert steps(parse(text)) == expected


@pytest.mark.parametrize(
    ("end", "finished"),
    [
        ("0: [after training is done] datetime: 2026-06-26 15:10:26.816376 \n", True),
        ("0: [exiting program at iteration 40] datetime: 2026-06-26 15:10:26\n", True),
        (
            "0: [exiting program after receiving SIGTERM.] datetime: 2026-06-26 15:10:26\n",
            False,
        ),
        ("", False),
    ],
)
def test_end_line_finishes_run(end: str, finished: bool) -> None:
    """With a log interval of ten, the last line need not be the last step."""
    text = "".join(line(step, total=55) for step in (10, 20, 30, 40, 50))
    assert parse(text + end).segments[0].finished is finished


def test_step_of_another_rank_after_end_is_not_restart() -> None:
    log = parse(
        f"7: {line(1)}7: {line(2)}0: [after training is done] datetime: 2026\n7: {line(3)}"
    )
    assert steps(log) == [[1, 2, 3]]
    assert log.segments[0].finished


@pytest.mark.parametrize(
    ("printed", "every"),
    [
        ([10, 20, 30], 10),
        ([1, 10, 20, 30, 40], 10),
        ([8010, 8020, 8030, 8040], 10),
        ([10, 20, 40, 50, 60], 10),
        ([10, 20], 1),
        ([8010, 8020, 8030], 1),
        ([1, 10, 20], 1),
        ([1, 2, 4, 5, 7], 1),
        ([7, 17, 27, 37, 47], 1),
        ([1, 2, 10, 20, 30, 40], 1),
    ],
)
def test_log_interval_needs_steps_at_regular_multiples(
    printed: list[int], every: int
) -> None:
    assert find_interval(printed) == every


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ([1, 10, 20, 30, 40], [1, 10, 10, 10, 10]),
        ([8004, 8010, 8020, 8030, 8040], [1, 7, 10, 10, 10]),
        ([8004, 8020, 8030, 8040, 8050], [1, 10, 10, 10, 10]),
    ],
)
def test_times_printed_at_intervals_are_means_of_their_steps(
    printed: list[int], expected: list[int]
) -> None:
    assert list_means(parse("".join(line(step, total=9000) for step in printed))) == [
        expected
    ]


@pytest.mark.parametrize(
    (
        "first",
        "second",
        "stamps",
        "mean",
    ),  # milliseconds printed; time stamps of the first two lines
    [
        (
            12000,
            7000,
            ("06:03:51.272611", "06:03:53.272611"),
            2,
        ),  # 2 s passed: (12 + 2) / 2
        (12000, 7000, ("06:03:51.272611", "06:03:58.272611"), 1),  # 7 s passed
        (12000, 7000, ("06:03:51", "06:03:53"), 2),
        (
            2000,
            2000,
            ("06:03:51.272611", "06:03:53.272611"),
            2,
        ),  # both fit; the newer format decides
        (2000, 2000, ("06:03:51", "06:03:53"), 1),
        (
            12000,
            7000,
            ("06:03:51.272611", "06:05:00.272611"),
            2,
        ),  # a checkpoint between them; the format decides
        (
            12000,
            5000,
            ("06:03:51.272611", "06:05:00.272611"),
            1,
        ),  # a mean would be 6 s at least
        (12000, 7000, ("06:03:51.272611", ""), 1),
        (12000, 7000, ("06:99:51.272611", "06:03:53.272611"), 1),
    ],
)
def test_second_printed_time_may_be_the_mean_of_two_steps(
    first: float, second: float, stamps: tuple[str, str], mean: int
) -> None:
    texts = [f" [2026-07-15 {stamp}]" if stamp else "" for stamp in stamps]
    text = START + line(8001, first, stamp=texts[0], total=9000)
    after = line(8003, total=9000)
    assert list_means(
        parse(text + line(8002, second, stamp=texts[1], total=9000) + after)
    ) == [[1, mean, 1]]
    assert list_means(parse(text + line(8003, second, stamp=texts[1], total=9000))) == [
        [1, 1]
    ], "a line is lost"


def test_second_printed_time_after_a_restart_is_the_mean_of_two_steps() -> None:
    lines = [
        line(step, milliseconds, stamp=f" [2026-07-15 06:03:{second}.250]")
        for step, milliseconds, second in ((4, 12000, 10), (5, 7000, 12), (6, 2000, 14))
    ]
    assert list_means(parse(line(3) + START + "".join(lines))) == [[1], [1, 2, 1]]


def test_times_are_means_of_ten_steps_if_first_printed_step_is_ten() -> None:
    """The first ten steps were slow, so the time between the lines fits both readings.

    Their line is not that of a first step.
    """
    minutes = {
        10: ("06:02:43.250", 16300),
        20: ("06:04:45.950", 12270),
        30: ("06:06:48.650", 12270),
    }
    lines = [
        line(step, milliseconds, stamp=f" [2026-07-15 {stamp}]")
        for step, (stamp, milliseconds) in minutes.items()
    ]
    assert list_means(parse(START + "".join(lines))) == [[10, 10, 10]]


@pytest.mark.parametrize("seconds", ["nan", "-3.5"])
def test_impossible_time_is_kept_as_printed(seconds: str) -> None:
    row = get_columns(parse(WHOLE.replace("2000.0", seconds)))
    assert row.seconds.tolist() == pytest.approx([float(seconds) / 1000], nan_ok=True)
    assert np.isfinite(row.loss).all()


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(
    swapped=st.lists(st.booleans(), min_size=len(PAIRS), max_size=len(PAIRS)),
    lost=st.sets(st.integers(0, 2 * len(PAIRS) - 1), max_size=4),
)
def test_lost_log_lines_never_make_megatron_steps_faster(
    swapped: list[bool], lost: set[int]
) -> None:
    printed = [
        pair[::-1] if swap else pair for pair, swap in zip(PAIRS, swapped, strict=True)
    ]
    texts = [text for pair in printed for text in pair]
    kept = [text for index, text in enumerate(texts) if index not in lost]
    log = parse("".join(kept))
    numbered = [step for step, text in enumerate(ITERATIONS, 1) if text in kept]
    if numbered:
        row = log.segments[0].steps
        assert row.index.tolist() == numbered
        assert all(
            seconds >= TIMES[step - 1]
            for step, seconds in zip(row.index, row.seconds, strict=True)
        )


OVERFLOWED = "loss scale: 65536.0"
DIVERGED = "loss scale: 1.0 | grad norm: nan"


@pytest.mark.parametrize(
    ("skipped", "diverged", "expected"),  # steps of 50; the window is 11 to 44
    [
        ((1, 2, 10), (), []),
        ((11,), (), [Reason.LOSS_MISSING]),
        ((), (3,), [Reason.DIVERGED, Reason.DIVERGED]),
        ((), (50,), [Reason.DIVERGED, Reason.DIVERGED]),
    ],
)
def test_skipped_updates_before_the_measured_window_keep_a_run_valid(
    skipped: tuple[int, ...], diverged: tuple[int, ...], expected: list[Reason]
) -> None:
    lines = [
        line(step, 7325.0, extra=f"lm loss: {11 - step / 50:.6E} | grad norm: 10.275")
        for step in range(1, 51)
    ]
    for step in skipped:
        lines[step - 1] = line(step, 7325.0, extra=OVERFLOWED, skipped=1)
    for step in diverged:
        lines[step - 1] = line(step, 7325.0, extra=DIVERGED)
    text = re.sub(
        r"samples: +(\d+)",
        lambda match: f"samples: {2 * int(match[1]):12d}",
        "".join(lines),
    )
    log = parse(text.replace("batch size:   128", "batch size:   256"))
    measurement = measure(run(log), replace(BASELINE, dialect="megatron"), NOW)
    assert [problem.reason for problem in measurement.problems] == expected


NEOX_LINE = (
    " samples/sec: 13.930 | iteration {step:8d}/   11000 | elapsed time per iteration (ms): 1292.2 | learning rate: "
    "3.000E-04 | approx flops per GPU: {flops} | lm_loss: {loss} | number of skipped iterations:   0 | "
    "number of nan iterations:   {nan} |\n"
)


@pytest.mark.parametrize(
    ("flops", "tflops"),
    [
        ("44.9TFLOPS", 44.9),
        ("1.2PFLOPS", 1200.0),
        ("900.5GFLOPS", 0.9005),
        ("x", math.nan),
    ],
)
def test_gpt_neox_line_fills_columns(flops: str, tflops: float) -> None:
    log = parse(
        "".join(
            NEOX_LINE.format(step=step, flops=flops, loss="8.85E+00", nan=0)
            for step in (10, 20, 30)
        )
    )
    (segment,) = log.segments
    columns = segment.steps
    assert (log.dialect, segment.total_steps, dropped(log)) == ("megatron", 11000, {})
    assert (columns.seconds[2], columns.mean_of[2], columns.loss[2]) == (
        1.2922,
        10,
        8.85,
    )
    assert columns.tflops_per_gpu[2] == pytest.approx(tflops, nan_ok=True)


def test_gpt_neox_line_with_nan_iterations_gives_a_nan_loss() -> None:
    columns = (
        parse(NEOX_LINE.format(step=10, flops="44.9TFLOPS", loss="1.0", nan=3))
        .segments[0]
        .steps
    )
    assert columns.has_loss.tolist() == [True]
    assert math.isnan(columns.loss[0])
