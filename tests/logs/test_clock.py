"""Clocks: time stamps of many formats, progress bars, and announced pauses."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.logs.clock import read_stamps
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.log_reader import parse_blocks

START = datetime(2026, 11, 2, 23, 59, 30, tzinfo=UTC)


def read(text: str, block: int = 1 << 20) -> Steps:
    data = text.encode()
    blocks = [data[start : start + block] for start in range(0, len(data), block)]
    return parse_blocks(blocks, load_definitions().values()).segments[0].steps


def nemo2_line(step: int, prefix: str = "") -> str:
    return (
        f"{prefix}Training epoch 0, iteration {step}/49 | lr: 1e-06 | global_batch_size: 128 | global_step: {step} | "
        f"reduced_train_loss: 11.{96 - step} | train_step_timing in s: 12.39 | consumed_samples: {128 * (step + 1)}\n"
    )


def maxtext_line(step: int, prefix: str = "") -> str:
    return f"{prefix}completed step: {step}, seconds: 12.390, TFLOP/s/device: 460.480, loss: 1{step % 10}.000\n"


def nanotron_line(step: int, prefix: str = "") -> str:
    return (
        f"{prefix}iteration: {step} / 50 | consumed_tokens: 1.05M | elapsed_time_per_iteration_ms: 12.4K | "
        "tokens_per_sec: 84.6K | tokens_per_sec_per_gpu: 10.6K | global_batch_size: 512 | lm_loss: 9.1 | lr: 0.0003 | "
        "model_tflops_per_gpu: 150 | hardware_tflops_per_gpu: 150 | grad_norm: 1.2\n"
    )


@pytest.mark.parametrize(
    ("line", "layout"),
    [
        (nemo2_line, "[NeMo I %Y-%m-%d %H:%M:%S nemo_logging:393] "),
        (nemo2_line, " 0: %Y-%m-%d %H:%M:%S,%f "),
        (nemo2_line, "%Y-%m-%dT%H:%M:%S.%fZ [default0]:"),
        (maxtext_line, "I%m%d %H:%M:%S.%f 125344476638336 metric_logger.py:181] "),
        (maxtext_line, "%Y/%m/%d %H:%M:%S - train - INFO - "),
        (maxtext_line, "INFO %m-%d %H:%M:%S [train.py:12] "),
        (maxtext_line, "Nov %d %H:%M:%S node1 train[12]: "),
        (maxtext_line, "[%H:%M:%S] INFO "),
        (nanotron_line, "%m/%d/%Y %H:%M:%S [INFO|DP=0|PP=0|TP=0]: "),
    ],
)
def test_timestamps_of_every_format_are_read_across_midnight(
    line: object, layout: str
) -> None:
    stamps = [
        START + timedelta(seconds=13 * step) for step in range(12)
    ]  # over midnight
    steps = read(
        "".join(
            line(step + 1, f"{stamp:{layout}}")  # type: ignore[operator]
            for step, stamp in enumerate(stamps)
        )
    )
    assert np.allclose(np.diff(steps.stamp), 13, atol=1)


@pytest.mark.parametrize("block", [150, 1 << 20])
def test_times_of_day_advance_over_several_midnights(block: int) -> None:
    times = [START + timedelta(hours=11 * step) for step in range(10)]
    other_line = "x" * 2000 + "\n"  # so that the steps are in separate blocks
    steps = read(
        "".join(
            maxtext_line(step + 1, f"[{time:%H:%M:%S}] INFO ") + other_line
            for step, time in enumerate(times)
        ),
        block,
    )
    assert np.diff(steps.stamp).tolist() == [11 * 3600] * 9


def test_timestamps_with_utc_offset_are_correct_across_a_daylight_saving_change() -> (
    None
):
    prefixes = [b"2026-10-25T02:59:58+02:00 ", b"2026-10-25T02:00:11+01:00 "]
    (first, second), _ = read_stamps(prefixes)
    assert second - first == 13


@pytest.mark.parametrize(
    "prefix", [b"", b"[default3]:", b"2026-13-45 02:00:00 ", b"eta: 00:12:10 "]
)
def test_line_without_time_stamp_has_no_time(prefix: bytes) -> None:
    assert all(map(math.isnan, read_stamps([prefix])[0]))


def test_progress_bars_give_the_elapsed_time() -> None:
    bars = "".join(
        f"Epoch 0: :  {2 * step}%|█| {step}/50 [{clock}<11:58, v_num=, reduced_train_loss=12.{step}0, "
        f"global_step={step - 1}.000, consumed_samples={512 * step}.0, train_step_timing in s=12.30]\n"
        for step, clock in ((1, "59:50"), (2, "1:00:02"), (3, "1:00:15"))
    )
    assert read(bars).stamp.tolist() == [3590, 3602, 3615]
    assert read(bars.replace("\n", "\r")).stamp.tolist() == [
        3590,
        3602,
        3615,
    ]  # read one by one


VALIDATION = "Validation: iteration 1/2\nValidation: iteration 2/2\n"


@pytest.mark.parametrize("block", [1 << 20, 97])
@pytest.mark.parametrize(
    "between",
    [
        VALIDATION,
        " validation loss at iteration 5 | lm loss value: 9\n",
        "saving x to y\n",
    ],
)
def test_pause_between_steps_is_marked_if_a_line_announces_it(
    between: str, block: int
) -> None:
    lines = [
        nemo2_line(
            step,
            f"[NeMo I {START + timedelta(seconds=13 * step + 60 * (step > 4)):%Y-%m-%d %H:%M:%S} x] ",
        )
        for step in range(9)
    ]
    steps = read("".join([*lines[:5], between, *lines[5:]]), block)
    assert np.flatnonzero(steps.paused).tolist() == [5]
    assert not read("".join(lines)).paused.any()  # no announcement
    assert not read("".join([*lines[:3], between, *lines[3:]])).paused.any()  # no gap


def test_pause_between_steps_is_marked_if_two_ranks_print_each_step() -> None:
    stamps = [
        START + timedelta(seconds=13 * step + 60 * (step > 4)) for step in range(9)
    ]
    lines = [
        "".join(
            nemo2_line(step, f"{stamp:%Y-%m-%d %H:%M:%S} [default{rank}]:")
            for rank in (0, 1)
        )
        for step, stamp in enumerate(stamps)
    ]
    steps = read("".join([*lines[:5], VALIDATION, *lines[5:]]))
    assert np.flatnonzero(steps.paused).tolist() == [5]


@pytest.mark.parametrize("block", [1 << 20, 97, 1000])
def test_pause_is_marked_if_another_rank_prints_between_validation_and_next_step(
    block: int,
) -> None:
    stamps = [
        START + timedelta(seconds=13 * step + 60 * (step > 4)) for step in range(60)
    ]
    ranks = [
        [
            nemo2_line(step, f"{stamp:%Y-%m-%d %H:%M:%S} [default{rank}]:")
            for step, stamp in enumerate(stamps)
        ]
        for rank in (0, 1)
    ]
    unread = "".join(f"a line of no step, number {number}\n" for number in range(400))
    lines = [first + second for first, second in zip(*ranks, strict=True)]
    text = "".join(
        [*lines[:4], ranks[0][4], VALIDATION, ranks[1][4], unread, *lines[5:]]
    )
    assert np.flatnonzero(read(text, block).paused).tolist() == [5]
