"""What tells whether a run trained: learning rate, samples, target tokens, skipped steps, the digits of a loss."""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np
import pytest
from generator import lines
from written_logs import dropped, parse

from pytest_llmbench.ingest.parse.records import count_digits

MOMENT = datetime.fromisoformat("2026-07-01T02:00:00.000001")


@pytest.mark.parametrize(
    ("printed", "count"),
    [(b"11.03", 4), (b"0.000", 4), (b"1.258695E+01", 7), (b"-5.97670", 6), (b"12", 2), (b"nan", 0), (b"", 0)],
)
def test_digits_are_those_of_the_mantissa(printed: bytes, count: int) -> None:
    assert count_digits(printed) == count


def megatron(step: int) -> str:
    return lines.megatron_line(MOMENT, step, 9, 1.5, batch=128, tflops=None, loss=9.5)


def test_megatron_prints_all_but_target_tokens() -> None:
    skipped = megatron(4).replace("skipped iterations:   0", "skipped iterations:   1")
    (segment,) = parse("\n".join([*map(megatron, range(1, 4)), skipped, ""])).segments
    columns = segment.steps
    assert columns.consumed_samples.tolist() == [128, 256, 384, 512]
    assert columns.learning_rate.tolist() == [3e-5] * 4
    assert columns.skipped_steps.tolist() == [0, 0, 0, 1]
    assert segment.loss_digits == 7
    assert np.isnan(columns.target_tokens).all()


@pytest.mark.parametrize("field", ["mtp_1 loss", "load_balancing_loss"])
@pytest.mark.parametrize(("value", "diverged"), [("1.0E+00", False), ("0.0E+00", False), ("nan", True), ("inf", True)])
def test_another_loss_of_megatron_that_is_no_number_is_a_divergence(field: str, value: str, diverged: bool) -> None:
    log = parse("\n".join([megatron(1).replace("loss scale", f"{field}: {value} | loss scale"), megatron(2), ""]))
    assert dropped(log) == {}
    assert np.isnan(log.segments[0].steps.loss).tolist() == [diverged, False]


@pytest.mark.parametrize("field", ["learning rate", "consumed samples"])
def test_a_field_that_is_no_number_is_left_out_and_its_record_is_whole(field: str) -> None:
    text = megatron(1).replace("learning rate: 3.0", "learning rate: ?").replace("samples:          128", "samples: ?")
    (segment,) = parse(text + "\n").segments
    column = {"learning rate": segment.steps.learning_rate, "consumed samples": segment.steps.consumed_samples}[field]
    assert math.isnan(column[0])
    assert segment.steps.seconds.tolist() == [1.5]


def test_nemo_2_prints_rate_and_samples_but_for_the_first_step() -> None:
    def line(step: int) -> str:
        values = {"lr": 1e-6 * step, "global_step": step, "reduced_train_loss": 11.03, "train_step_timing in s": 1.5}
        return lines.nemo2_line(step, 4, values | ({"consumed_samples": 512 * (step + 1)} if step else {}))

    whole = "\n".join([*map(line, range(4)), ""])
    for text in (whole, whole.replace("\n", "\nother\n", 1).replace("11.03", "11.03", 1), whole.replace("\n", "\r\n")):
        (segment,) = parse(text).segments
        assert segment.steps.consumed_samples.tolist()[1:] == [1024, 1536, 2048]
        assert math.isnan(segment.steps.consumed_samples[0])
        assert segment.steps.learning_rate.tolist() == [0, 1e-6, 2e-6, 3e-6]
        assert segment.loss_digits == 4


def test_maxtext_prints_target_tokens() -> None:
    text = "".join(
        lines.maxtext_line(step, 1.5, tflops=1.0, tokens_per_second=1.0, total_weights=524288, loss=0.0) + "\n"
        for step in range(4)
    )
    for written in (text, text.replace("\n", " and more\n", 1), text.replace("524288", "524288.0")):
        (segment,) = parse(written).segments
        assert segment.steps.target_tokens.tolist() == [524288] * 4
        assert segment.loss_digits == 4


def test_maxtext_s_steps_of_a_growing_batch_are_no_steps() -> None:
    def line(step: int, before: str = "") -> str:
        told = lines.maxtext_line(step, 1.5, tflops=1.0, tokens_per_second=1.0, total_weights=64, loss=0.5)
        return f"{before}{told}\n"

    ramp = "[Rampup Batch Size Phase], "
    log = parse("".join(line(step, ramp if step < 3 else "") for step in range(6)))
    assert log.segments[0].steps.index.tolist() == [3, 4, 5]
    assert dropped(log) == {"ramped-up": 3}
    assert parse("".join(line(step, ramp) for step in range(6))).segments == ()
