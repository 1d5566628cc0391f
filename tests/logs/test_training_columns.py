"""Columns that show whether a run trained.

Learning rate, samples, target tokens, skipped steps and digits of the loss.
"""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np
import pytest
from generator import lines
from support.written_logs import dropped, maxtext_run, nemo2, parse, steps

from pytest_llmbench.logs.step_records import count_digits

START = datetime.fromisoformat("2026-07-01T02:00:00.000001")


@pytest.mark.parametrize(
    ("printed", "count"),
    [(b"0.000", 4), (b"1.258695E+01", 7), (b"-5.97670", 6), (b"nan", 0)],
)
def test_digits_of_the_exponent_are_not_counted_as_significant(
    printed: bytes, count: int
) -> None:
    assert count_digits(printed) == count


def megatron_line(step: int) -> str:
    return lines.megatron_line(START, step, 9, 1.5, batch=128, tflops=None, loss=9.5)


def test_megatron_lines_fill_all_columns_except_target_tokens() -> None:
    skipped = megatron_line(4).replace(
        "skipped iterations:   0", "skipped iterations:   1"
    )
    (segment,) = parse(
        "\n".join([*map(megatron_line, range(1, 4)), skipped, ""])
    ).segments
    columns = segment.steps
    assert columns.consumed_samples.tolist() == [128, 256, 384, 512]
    assert columns.learning_rate.tolist() == [3e-5] * 4
    assert columns.skipped_steps.tolist() == [0, 0, 0, 1]
    assert segment.loss_digits == 7
    assert np.isnan(columns.target_tokens).all()


@pytest.mark.parametrize(
    ("field", "diverged"),
    [
        ("mtp_1 loss: 1.0E+00", False),
        ("mtp_1 loss: inf", True),
        ("load_balancing_loss: 0.0E+00", False),
        ("load_balancing_loss: nan", True),
    ],
)
def test_nan_in_an_additional_megatron_loss_gives_the_step_nan_loss(
    field: str, diverged: bool
) -> None:
    log = parse(
        "\n".join(
            [
                megatron_line(1).replace("loss scale", f"{field} | loss scale"),
                megatron_line(2),
                "",
            ]
        )
    )
    assert dropped(log) == {}
    assert np.isnan(log.segments[0].steps.loss).tolist() == [diverged, False]


def test_invalid_optional_field_is_ignored() -> None:
    text = (
        megatron_line(1)
        .replace("learning rate: 3.0", "learning rate: ?")
        .replace("samples:          128", "samples: ?")
    )
    columns = parse(text + "\n").segments[0].steps
    assert np.isnan([columns.learning_rate[0], columns.consumed_samples[0]]).all()
    assert columns.seconds.tolist() == [1.5]


def test_first_nemo_2_step_has_no_samples() -> None:
    """In logs of equal lines, with another line between, and with carriage returns."""
    text = nemo2(0, more="") + "".join(
        nemo2(step, more=f" | consumed_samples: {512 * step}") for step in range(1, 4)
    )
    for log in (text, text.replace("\n", "\nother\n", 1), text.replace("\n", "\r\n")):
        (segment,) = parse(log).segments
        assert segment.steps.consumed_samples.tolist() == pytest.approx(
            [math.nan, 512, 1024, 1536], nan_ok=True
        )
        assert segment.steps.learning_rate.tolist() == [1.5e-7] * 4
        assert segment.loss_digits == 4


def test_maxtext_fills_target_tokens() -> None:
    text = maxtext_run(0, 3)
    for log in (
        text,
        text.replace("\n", " and more\n", 1),
        text.replace("524288", "524288.0"),
    ):
        (segment,) = parse(log).segments
        assert segment.steps.target_tokens.tolist() == [524288] * 4
        assert segment.loss_digits == 4


def test_maxtext_batch_ramp_up_is_dropped() -> None:
    ramp = maxtext_run(0, 2, "[Rampup Batch Size Phase], ")
    log = parse(ramp + maxtext_run(3, 5))
    assert (steps(log), dropped(log)) == ([[3, 4, 5]], {"ramped-up": 3})
    assert parse(ramp).segments == ()


def test_sample_rates_and_tokens_of_megatron_are_read() -> None:
    neox = "".join(
        f" samples/sec: 85.333 | iteration{megatron_line(step).partition('iteration')[2]}\n"
        for step in range(1, 5)
    )
    assert parse(neox).segments[0].steps.samples_per_second.tolist() == [85.333] * 4
    after = "".join(
        f"{megatron_line(step)} samples per second: 85.333 |\n" for step in range(1, 5)
    )
    assert parse(after).segments[0].steps.samples_per_second.tolist() == [85.333] * 4
    tokens = "".join(
        megatron_line(step).replace(
            "elapsed", f"consumed tokens: {step * 4096:12d} | elapsed"
        )
        + "\n"
        for step in range(1, 5)
    )
    assert parse(tokens).segments[0].steps.step_tokens.tolist() == pytest.approx(
        [math.nan, *[4096] * 3], nan_ok=True
    )
