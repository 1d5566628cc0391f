"""Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge: iteration lines, step times, and both of one step."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import BASELINE, NOW, run
from hypothesis import given, settings
from hypothesis import strategies as st
from written_logs import dropped, parse, steps

from pytest_llmbench.core.models import ParsedLog, Reason, Steps
from pytest_llmbench.ingest.parse.dialects.megatron import find_interval
from pytest_llmbench.measure import measure

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
    more: str = "lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 10.275",
    skipped: int = 0,
    nan: int = 0,
) -> str:
    """A Megatron line."""
    return (
        f"{stamp} iteration {step:8d}/{total:8d} | consumed samples: {128 * step:12d} | elapsed time per iteration "
        f"(ms): {milliseconds:.1f} | learning rate: 3.0E-05 | global batch size:   128 | {more} | number of skipped "
        f"iterations: {skipped:3d} | number of nan iterations: {nan:3d} |\n"
    )


def step_time(seconds: float, tflops: float = 528.1) -> str:
    """A Megatron-Bridge line."""
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU\n"


def only(log: ParsedLog) -> Steps:
    """The columns of a log that is one segment."""
    (segment,) = log.segments
    return segment.steps


def means(log: ParsedLog) -> list[list[int]]:
    """How many steps each time is the mean of, of each segment."""
    return [segment.steps.mean_of.tolist() for segment in log.segments]


@pytest.mark.parametrize(
    ("text", "rank", "expected"),  # step, seconds, unit, loss, grad norm, TFLOP/s, tokens/s, batch size, total
    [
        (DOCUMENT_LINE, "", (1, 20.2891, 1e-4, 12.58695, 10.275, math.nan, math.nan, 128, 1)),
        (SECONDS_LINE, "default7", (31214, 106.46, 0.01, 2.101, 0.107, 147.29, math.nan, 2048, 115311)),
        ("55:  " + PAIRS_LINE, "55", (3, 32.0255, 1e-4, 11.5, 5.9, 239.8, 14324.6, 896, 20)),
        (
            "9: [default3]: " + HYPHEN_LINE,
            "9 default3",
            (25, 0.087, 1e-4, 12.44238, 0, math.nan, math.nan, 2, 73242187),
        ),
    ],
)
def test_lines_of_each_version(text: str, rank: str, expected: tuple[float, ...]) -> None:
    log = parse(text)
    (segment,) = log.segments
    row = segment.steps
    columns = (
        row.index, row.seconds, row.resolution_seconds, row.loss, row.grad_norm, row.tflops_per_gpu,
        row.tokens_per_second_per_gpu, row.global_batch_size,
    )  # fmt: skip
    found = [*(column.tolist()[0] for column in columns), segment.total_steps]
    assert found == pytest.approx(expected, nan_ok=True)
    assert (segment.rank, log.dialect, log.dropped) == (rank, "megatron", ())
    assert row.mean_of.tolist() == [1]
    assert row.has_loss.all()
    assert row.has_grad_norm.all()


@pytest.mark.parametrize(
    ("text", "seconds", "tflops"),
    [
        ("Step Time : 12.78s GPU utilization: 528.1 TFLOP/s/GPU\n", 12.78, 528.1),
        ("0: Step Time : 5.39s GPU utilization: 2347.0MODEL_TFLOP/s/GPU   # warm-up\n", 5.39, 2347.0),
        ("[rank3]: some warningStep Time : 2.20s GPU utilization: 1.0MODEL_TFLOP/s/GPU[rank1]: x\n", 2.2, 1.0),
    ],
)
def test_step_times_alone_are_counted_from_1(text: str, seconds: float, tflops: float) -> None:
    log = parse(text * 3)
    row = only(log)
    assert (row.index.tolist(), row.mean_of.tolist()) == ([1, 2, 3], [1, 1, 1])
    assert row.seconds.tolist() == [seconds] * 3
    assert row.tflops_per_gpu.tolist() == [tflops] * 3
    assert row.resolution_seconds.tolist() == pytest.approx([0.01] * 3)
    assert (log.segments[0].total_steps, log.dropped) == (None, ())
    assert not row.has_loss.any()


def test_step_times_are_counted_anew_after_a_start() -> None:
    run = step_time(12.78) + step_time(2.22) * 3
    log = parse(START + run + START + run)
    assert steps(log) == [[1, 2, 3, 4], [1, 2, 3, 4]]


@pytest.mark.parametrize("cut", ["Step Time : 2", "Step Time : 2.22s GPU uti[rank1]: warning", "Step Time : "])
def test_a_cut_step_time_keeps_its_number_and_has_no_time(cut: str) -> None:
    log = parse(START + step_time(9) + START + cut + "\n" + step_time(3) + step_time(4))
    row = log.segments[-1].steps
    assert row.index.tolist() == [1, 2, 3]
    assert row.seconds.tolist() == pytest.approx([math.nan, 3, 4], nan_ok=True)
    assert dropped(log) == {"torn": 1}


@pytest.mark.parametrize("order", ["iteration first", "step time first", "mixed"])
@pytest.mark.parametrize("prefixes", [("", ""), ("7: ", "0: ")])
def test_both_lines_of_a_step_are_one_record(order: str, prefixes: tuple[str, str]) -> None:
    times = [12.7834, 2.2214, 2.2231, 2.2249, 3.4512, 2.2198]
    text = ""
    for step, seconds in enumerate(times, start=1):
        both = [prefixes[0] + line(step, seconds * 1000), prefixes[1] + step_time(seconds, 1000 + step)]
        text += "".join(both if order == "iteration first" or (order == "mixed" and step % 2) else reversed(both))
    log = parse(text)
    row = only(log)
    assert row.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.seconds.tolist() == times
    assert row.tflops_per_gpu[[0, 4]].tolist() == [1001, 1005]
    assert sorted(row.tflops_per_gpu.tolist()) == [1001, 1002, 1003, 1004, 1005, 1006]
    assert row.has_loss.all()
    assert log.dropped == ()


@pytest.mark.parametrize("step_times_first", [True, False])
def test_the_lines_of_a_rank_may_come_in_a_block(step_times_first: bool) -> None:
    times = [12.7834, 2.2214, 3.4512, 2.2249, 2.2198, 2.2231]
    blocks = [
        "".join(step_time(seconds, 1000 + step) for step, seconds in enumerate(times, start=1)),
        "".join(line(step, seconds * 1000) for step, seconds in enumerate(times, start=1)),
    ]
    log = parse("".join(blocks if step_times_first else reversed(blocks)))
    assert only(log).seconds.tolist() == times
    assert only(log).tflops_per_gpu.tolist() == [1001, 1002, 1003, 1004, 1005, 1006]
    assert log.dropped == ()


def test_the_iteration_line_s_own_throughput_counts() -> None:
    more = "throughput per GPU (TFLOP/s/GPU): 64.9 | lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 1.0"
    assert only(parse(line(1, more=more) + step_time(2, 70))).tflops_per_gpu.tolist() == [64.9]


@pytest.mark.parametrize("slower", [True, False])
def test_of_two_lines_of_a_step_that_contradict_each_other_the_slower_counts(slower: bool) -> None:
    printed = 2.5 if slower else 1.5
    text = line(1) + step_time(2.0) + line(2) + step_time(printed, 7.0) + line(3) + step_time(2.0)
    log = parse(text)
    row = only(log)
    assert row.seconds.tolist() == [2.0, max(2.0, printed), 2.0]
    assert row.line.tolist() == [1, 3, 5]
    assert row.loss.tolist() == [11.0] * 3
    assert row.consumed_samples.tolist() == [128, 256, 384]
    assert row.learning_rate.tolist() == [3e-5] * 3
    assert row.skipped_steps.tolist() == [0] * 3
    assert dropped(log) == {"repeat-disagrees": 1}
    assert "step 2: 2 s in line 3" in log.dropped[0].shown


def test_a_step_time_without_its_iteration_line_is_of_an_unknown_step() -> None:
    text = line(1, 9000) + step_time(9) + step_time(5) + line(3, 2000) + step_time(2)
    log = parse(text)
    assert steps(log) == [[1, 3]]
    assert only(log).seconds.tolist() == [9, 2]
    assert dropped(log) == {"unknown-step": 1}


def test_a_cut_step_time_beside_iteration_lines_is_torn() -> None:
    log = parse(line(1, 9000) + "Step Time : 9\n" + line(2) + step_time(2))
    assert steps(log) == [[1, 2]]
    assert dropped(log) == {"torn": 1}


def test_a_later_run_of_step_times_alone_is_not_hidden_by_the_one_before() -> None:
    log = parse(line(1) + step_time(2) + line(2) + step_time(2) + START + step_time(5) * 3)
    assert steps(log) == [[1, 2], [1, 2, 3]]
    assert log.segments[1].steps.seconds.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("more", "skipped", "nan", "loss", "norm"),  # None: not there
    [
        ("loss scale: 1.0 | grad norm: nan", 0, 0, math.nan, math.nan),
        ("lm loss: NAN | loss scale: 1.0 | grad norm: nan", 0, 0, math.nan, math.nan),
        ("lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: inf", 0, 0, 11.0, math.inf),
        ("loss scale: 1.0 | grad norm: inf", 0, 0, math.nan, math.inf),
        ("loss scale: 4294967296.0", 1, 0, None, None),
        ("loss scale: 4294967296.0 | grad norm: inf", 1, 0, None, None),
        ("lm loss: 0.000000E+00 | loss scale: 65536.0", 1, 0, None, None),
        ("loss scale: 4294967296.0 | grad norm: 1.500", 1, 0, None, 1.5),
        ("loss scale: 1.0 | grad norm: nan", 1, 0, math.nan, math.nan),
        ("loss scale: 65536.0", 1, 1, math.nan, None),
        ("lm loss: 1.1E+01 | loss scale: 65536.0 | grad norm: 2.0", 1, 1, math.nan, 2.0),
        ("lm loss: 0.000000E+00 | loss scale: 1.0 | grad norm: 0.0", 0, 0, 0.0, 0.0),
        ("loss scale: 1.0 | grad norm: 1.5", 0, 0, None, 1.5),
    ],
)
def test_a_nan_loss_that_is_left_out_is_nan_and_a_skipped_step_has_none(
    more: str, skipped: int, nan: int, loss: float | None, norm: float | None
) -> None:
    row = only(parse(line(1, more=more, skipped=skipped, nan=nan)))
    found = [
        values.tolist()[0] if has.all() else None
        for values, has in ((row.loss, row.has_loss), (row.grad_norm, row.has_grad_norm))
    ]
    assert repr(found) == repr([loss, norm])


WHOLE = line(7)


@pytest.mark.parametrize(
    "text",
    [
        WHOLE[: WHOLE.index("learning")] + "\n",
        WHOLE[: WHOLE.index("number of nan")],
        WHOLE[: WHOLE.index("|", WHOLE.index("number of nan"))] + "\n",
        WHOLE[: WHOLE.index(" | consumed") + 2] + "\n",
        WHOLE[: WHOLE.index("mples:")] + "\n",
        " iteration        7/      5\n",
        WHOLE.replace("iteration        7/", "iteration 7/"),
        WHOLE.replace("iteration        7/", "iteration 10000000/"),
        WHOLE.replace("2000.0", "20[rank3]: warning00.0"),
        WHOLE.replace("2000.0", "20\n00.0"),
        WHOLE.replace("lm loss", "lm [rank3]: warning\n loss"),
        WHOLE.replace("lm loss:", "[rank3]: W1231 lm loss:"),
        WHOLE.replace("lm loss: 1.1E+01", "lm loss: 1.1E+01 | lm loss: 1.2E+01"),
        WHOLE.replace("lm loss: 1.1E+01", "lm loss: 1.1E+"),
        WHOLE.replace("lm loss: 1.1E+01", "lm loss: 1.1E[rank0]: x+01"),
        WHOLE.replace("(ms): 2000.0", "(ms): 2000.0 | elapsed time per iteration (s): 2.0"),
        WHOLE[WHOLE.index("consumed") :],
        "    50 | " + WHOLE[WHOLE.index("elapsed") :],
        WHOLE.replace("/      50 |", "/      \n50 |"),
        WHOLE.replace("iteration        7/", "iteration        0/"),
    ],
)
def test_a_cut_record_is_counted_once_and_gives_no_step(text: str) -> None:
    log = parse(text)
    assert steps(log) == []
    assert dropped(log) == {"torn": 1}


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
def test_look_alikes_are_nothing(text: str) -> None:
    log = parse(text)
    assert (log.segments, log.dropped) == ((), ())


def test_records_are_found_where_they_are_glued() -> None:
    text = "warning: slow" + line(1).rstrip("\n") + line(2).rstrip("\n") + "[default3]:\n" + line(3)
    log = parse(text)
    assert steps(log) == [[1, 2, 3]]
    assert log.dropped == ()


def test_a_record_cut_by_another_is_torn_and_the_other_is_read() -> None:
    log = parse(WHOLE[:90] + line(8))
    assert steps(log) == [[8]]
    assert dropped(log) == {"torn": 1}


def test_a_step_printed_twice_is_repeated() -> None:
    log = parse("".join(line(step) * 2 for step in range(1, 5)))
    assert steps(log) == [[1, 2, 3, 4]]
    assert dropped(log) == {"repeated": 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line(1) + line(2) + line(1), [[1, 2], [1]]),
        (line(1, total=2) + line(2, total=2) + line(1) + line(2) + line(3), [[1, 2], [1, 2, 3]]),
        (line(1) + line(2) + START + line(3), [[1, 2], [3]]),
        (line(1) + line(2) + f"{'-' * 24} arguments {'-' * 24}\n" + line(3), [[1, 2], [3]]),
        (line(1) + line(2) + "time to initialize megatron (seconds): 27.9\n" + line(3), [[1, 2], [3]]),
        (line(1) + line(2) + line(5), [[1, 2, 5]]),
        ("".join(f"{rank}: {line(step)}" for step in (1, 2, 3) for rank in (6, 7)), [[1, 2, 3]]),
    ],
)
def test_attempts(text: str, expected: list[list[int]]) -> None:
    assert steps(parse(text)) == expected


@pytest.mark.parametrize(
    ("end", "finished"),
    [
        ("0: [after training is done] datetime: 2026-06-26 15:10:26.816376 \n", True),
        ("0: [exiting program at iteration 40] datetime: 2026-06-26 15:10:26\n", True),
        ("0: [exiting program after receiving SIGTERM.] datetime: 2026-06-26 15:10:26\n", False),
        ("", False),
    ],
)
def test_a_run_is_finished_by_its_end_line(end: str, finished: bool) -> None:
    """Where every tenth step is printed, the last line need not be that of the last step."""
    text = "".join(line(step, total=55) for step in (10, 20, 30, 40, 50))
    assert parse(text + end).segments[0].finished is finished


def test_a_line_of_another_rank_after_the_end_line_is_no_restart() -> None:
    log = parse(f"7: {line(1)}7: {line(2)}0: [after training is done] datetime: 2026\n7: {line(3)}")
    assert steps(log) == [[1, 2, 3]]
    assert log.segments[0].finished


@pytest.mark.parametrize(
    ("printed", "every"),
    [
        ([10, 20, 30], 10),
        ([1, 10, 20, 30, 40], 10),
        ([8001, 8010, 8020, 8030, 8040], 10),
        ([8010, 8020, 8030, 8040], 10),
        ([10, 20, 40, 50, 60], 10),
        ([10, 20], 1),
        ([8010, 8020, 8030], 1),
        ([1, 10, 20], 1),
        ([1, 2, 3, 4], 1),
        ([1, 2, 4, 5, 7], 1),
        ([1, 3, 5, 7, 9], 1),
        ([7, 17, 27, 37, 47], 1),
        ([1, 2, 10, 20, 30, 40], 1),
        ([5], 1),
        ([5, 10], 1),
    ],
)
def test_an_interval_shows_by_regular_prints_of_its_multiples(printed: list[int], every: int) -> None:
    assert find_interval(printed) == every


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ([10, 20, 30, 40], [10, 10, 10, 10]),
        ([1, 10, 20, 30, 40], [1, 10, 10, 10, 10]),
        ([8004, 8010, 8020, 8030, 8040], [1, 7, 10, 10, 10]),
        ([8004, 8020, 8030, 8040, 8050], [1, 10, 10, 10, 10]),
        ([10, 20, 40, 50, 60], [10, 10, 10, 10, 10]),
        ([1, 2, 3, 5, 6], [1, 1, 1, 1, 1]),
    ],
)
def test_times_of_an_interval_are_means(printed: list[int], expected: list[int]) -> None:
    assert means(parse("".join(line(step, total=9000) for step in printed))) == [expected]


@pytest.mark.parametrize(
    ("first", "second", "stamps", "mean"),  # milliseconds printed; time stamps of the first two lines
    [
        (12000, 7000, ("06:03:51.272611", "06:03:53.272611"), 2),  # 2 s passed: (12 + 2) / 2
        (12000, 7000, ("06:03:51.272611", "06:03:58.272611"), 1),  # 7 s passed
        (12000, 7000, ("06:03:51", "06:03:53"), 2),
        (12000, 7000, ("06:03:51", "06:03:58"), 1),
        (2000, 2000, ("06:03:51.272611", "06:03:53.272611"), 2),  # either way; the newer format decides
        (2000, 2000, ("06:03:51", "06:03:53"), 1),
        (12000, 7000, ("06:03:51.272611", "06:05:00.272611"), 2),  # a checkpoint between them; the format decides
        (12000, 5000, ("06:03:51.272611", "06:05:00.272611"), 1),  # a mean would be 6 s at least
        (12000, 7000, ("", ""), 1),
        (12000, 7000, ("06:03:51.272611", ""), 1),
        (12000, 7000, ("06:99:51.272611", "06:03:53.272611"), 1),
    ],
)
@pytest.mark.parametrize("begin", [1, 8001])
def test_the_second_print_of_a_process_may_be_the_mean_of_two(
    begin: int, first: float, second: float, stamps: tuple[str, str], mean: int
) -> None:
    texts = [f" [2026-07-15 {stamp}]" if stamp else "" for stamp in stamps]
    text = line(begin, first, stamp=texts[0], total=9000) + line(begin + 1, second, stamp=texts[1], total=9000)
    assert means(parse(START + text + line(begin + 2, total=9000))) == [[1, mean, 1]]


def test_the_second_print_after_a_restart_is_the_mean_of_two_as_well() -> None:
    run = [
        line(step, milliseconds, stamp=f" [2026-07-15 06:03:{second}.250]")
        for step, milliseconds, second in ((4, 12000, 10), (5, 7000, 12), (6, 2000, 14))
    ]
    assert means(parse(line(3) + START + "".join(run))) == [[1], [1, 2, 1]]


def test_a_first_print_in_turn_begins_no_mean_of_one_step_more() -> None:
    """The first ten steps were slow, so that the time between the lines fits both; their line was no first step's."""
    minutes = {10: ("06:02:43.250", 16300), 20: ("06:04:45.950", 12270), 30: ("06:06:48.650", 12270)}
    run = [line(step, seconds, stamp=f" [2026-07-15 {at}]") for step, (at, seconds) in minutes.items()]
    assert means(parse(START + "".join(run))) == [[10, 10, 10]]


def test_a_lost_second_line_leaves_no_mean() -> None:
    stamps = " [2026-07-15 06:03:10.250]", " [2026-07-15 06:03:14.250]"
    assert means(parse(line(1, 12000, stamp=stamps[0]) + line(3, 2000, stamp=stamps[1]))) == [[1, 1]]


@pytest.mark.parametrize("seconds", ["nan", "inf", "0.0", "-3.5"])
def test_an_impossible_time_stays_as_it_is_printed(seconds: str) -> None:
    row = only(parse(WHOLE.replace("2000.0", seconds)))
    assert row.seconds.tolist() == pytest.approx([float(seconds) / 1000], nan_ok=True)
    assert np.isfinite(row.loss).all()


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(
    times=st.lists(st.sampled_from([2.2214, 2.2231, 2.2249, 3.4512, 12.7834]), min_size=4, max_size=20),
    swapped=st.lists(st.booleans(), min_size=20, max_size=20),
    lost=st.sets(st.integers(0, 39), max_size=4),
    prefixes=st.sampled_from([("", ""), ("7: ", "0: ")]),
)
def test_no_step_is_faster_than_its_iteration_line_whatever_order_and_lost_lines(
    times: list[float], swapped: list[bool], lost: set[int], prefixes: tuple[str, str]
) -> None:
    """Nothing lost: exactly what is printed, nothing dropped."""
    pairs = [
        (prefixes[0] + line(step, 1000 * seconds), prefixes[1] + step_time(seconds))
        for step, seconds in enumerate(times, start=1)
    ]
    printed = [pair[::-1] if swap else pair for pair, swap in zip(pairs, swapped, strict=False)]
    flat = [text for pair in printed for text in pair]
    log = parse("".join(text for place, text in enumerate(flat) if place not in lost))
    numbered = {step for step in range(1, len(times) + 1) if 2 * step - 2 + swapped[step - 1] not in lost}
    if not lost & set(range(len(flat))):
        assert only(log).seconds.tolist() == times
        assert log.dropped == ()
    if numbered:
        row = log.segments[0].steps
        assert set(row.index.tolist()) == numbered
        assert all(seconds >= times[step - 1] for step, seconds in zip(row.index, row.seconds, strict=True))


OVERFLOWED = {"more": "loss scale: 65536.0", "skipped": 1}
DIVERGED = {"more": "loss scale: 1.0 | grad norm: nan"}


@pytest.mark.parametrize(
    ("unusual", "expected"),  # the chunk is 11 to 44
    [
        ({}, []),
        ({1: OVERFLOWED, 2: OVERFLOWED, 10: OVERFLOWED}, []),
        ({11: OVERFLOWED}, [Reason.LOSS_MISSING]),
        ({3: DIVERGED}, [Reason.DIVERGED, Reason.DIVERGED]),
        ({50: DIVERGED}, [Reason.DIVERGED, Reason.DIVERGED]),
        ({2: {"more": "loss scale: 65536.0", "skipped": 1, "nan": 1}}, [Reason.DIVERGED]),
    ],
)
def test_steps_skipped_before_the_window_are_harmless_and_a_diverged_run_is_not(
    unusual: dict[int, dict[str, Any]], expected: list[Reason]
) -> None:
    def usual(step: int) -> dict[str, Any]:
        return {"more": f"lm loss: {11 - step / 50:.6E} | loss scale: 1.0 | grad norm: 10.275"}

    text = "".join(line(step, 7325.0, **usual(step) | unusual.get(step, {})) for step in range(1, 51))
    text = re.sub(r"samples: +(\d+)", lambda match: f"samples: {2 * int(match[1]):12d}", text)
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
    [("44.9TFLOPS", 44.9), ("1.2PFLOPS", 1200.0), ("900.5GFLOPS", 0.9005), ("0.0", math.nan), ("x", math.nan)],
)
def test_a_line_of_gpt_neox(flops: str, tflops: float) -> None:
    log = parse("".join(NEOX_LINE.format(step=step, flops=flops, loss="8.854041E+00", nan=0) for step in (10, 20, 30)))
    (segment,) = log.segments
    columns = segment.steps
    assert (log.dialect, segment.total_steps, dropped(log)) == ("megatron", 11000, {})
    assert (columns.seconds.tolist(), columns.mean_of.tolist()) == ([1.2922] * 3, [10] * 3)
    assert columns.loss.tolist() == [8.854041] * 3
    assert columns.tflops_per_gpu.tolist() == pytest.approx([tflops] * 3, nan_ok=True)


def test_a_run_of_gpt_neox_that_diverged() -> None:
    columns = parse(NEOX_LINE.format(step=10, flops="44.9TFLOPS", loss="1.0", nan=3)).segments[0].steps
    assert columns.has_loss.tolist() == [True]
    assert math.isnan(columns.loss[0])


@pytest.mark.parametrize("dashes", [20, 24])
def test_the_arguments_of_megatron_and_gpt_neox_begin_another_attempt(dashes: int) -> None:
    start = f"{'-' * dashes} arguments {'-' * dashes}\n"
    log = parse(start + line(1) + line(2) + start + line(3) + line(4))
    assert steps(log) == [[1, 2], [3, 4]]
