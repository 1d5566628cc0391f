"""What a log states of its configuration, against the baseline's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.builders import BASELINE, NOW, at, log, run, segment, steps

from pytest_llmbench.core.baseline_records import Architecture, Recording
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import StatedField, Statement
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.runs.measure.measurement import measure

Judge = Callable[[], Measurement]

TOKENS = 8192 * 256
INDEX = np.arange(50)


def stating(
    *pairs: tuple[StatedField, str],
    recipe: str = "grok1",
    dtype: str = "bf16",
    gpu: str = "gb200",
    **columns: Any,
) -> Measurement:
    """Return what is measured of a run whose log states fields and values, one a
    line."""
    statements = tuple(
        Statement(*pair, line) for line, pair in enumerate(pairs, start=1)
    )
    configuration = BASELINE.configuration
    key = replace(configuration.key, recipe=recipe, dtype=dtype, gpu=gpu)
    baseline = at(BASELINE, configuration=replace(configuration, key=key))
    arrays: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(value, dtype=float), 50)
        for name, value in columns.items()
    }
    part = replace(segment(steps(**arrays)), stated=statements)
    return measure(run(log(part)), baseline, NOW)


OTHERS: dict[str, Judge] = {
    "gpu type": partial(stating, (StatedField.GPU_TYPE, "h100")),
    "form of the gpu": partial(stating, (StatedField.GPU_TYPE, "h100pcie"), gpu="h100"),
    "the other form": partial(stating, (StatedField.GPU_TYPE, "h100"), gpu="h100pcie"),
    "gpu type beside the own": partial(
        stating,
        (StatedField.GPU_TYPE, "h100"),
        (StatedField.GPU_TYPE, "h100nvl"),
        gpu="h100",
    ),
    "gpus": partial(stating, (StatedField.GPUS, "160")),
    "gpus, last": partial(stating, (StatedField.GPUS, "128"), (StatedField.GPUS, "64")),
    "fp8": partial(stating, (StatedField.QUANTIZATION, "fp8")),
    "not fp8": partial(stating, (StatedField.QUANTIZATION, "not fp8"), dtype="fp8"),
    "none": partial(stating, (StatedField.QUANTIZATION, "none"), dtype="fp8_mx"),
    "fp8 for nvfp4": partial(stating, (StatedField.QUANTIZATION, "fp8"), dtype="nvfp4"),
    "named fp8": partial(stating, (StatedField.NAMED, "pretrain_grok1_314b_fp8_128")),
    "model": partial(stating, (StatedField.MODEL, "/nemo_run/llama3.1_405b")),
    "size": partial(stating, (StatedField.MODEL, "/nemo_run/grok1_8b/")),
    "version": partial(stating, (StatedField.MODEL, "llama2_314b"), recipe="llama3.1"),
    "named model": partial(
        stating, (StatedField.NAMED, "pretrain_llama3.1_70b_bf16_128_tp4")
    ),
    "samples": partial(stating, consumed_samples=128.0 * (INDEX + 1)),
    "samples in the window": partial(
        stating, consumed_samples=np.cumsum(np.where(INDEX < 11, 256, 128))
    ),
    "fewer target tokens": partial(stating, target_tokens=TOKENS / 2),
    "half of them, padded": partial(stating, target_tokens=TOKENS / 2 + INDEX),
}


@pytest.mark.parametrize("judge", OTHERS.values(), ids=OTHERS)
def test_another_configuration_is_invalid(judge: Judge) -> None:
    assert {problem.reason for problem in judge().problems} == {
        Reason.WRONG_CONFIGURATION
    }


def printing(rate: float, digits: int, **columns: Any) -> Measurement:
    """Return what is measured of a run whose log prints rates of few significant
    digits."""
    noise = 1 + 0.01 * np.sin(INDEX)
    printed = [float(f"{rate * each:.{digits}g}") for each in noise]
    return stating(seconds=7.325 / noise, tokens_per_second_per_gpu=printed, **columns)


RATE = TOKENS / 128 / 7.325


@pytest.mark.parametrize(("digits", "factor", "wrong"), [
    (1, 1.0, False), (2, 1.0, False), (3, 1.0, False), (9, 1.0, False),
    (1, 1.05, False),  # one digit cannot show it
    (2, 1.5, True), (3, 1.05, True), (9, 1.05, True), (1, 2.0, True), (2, 0.5, True),
])  # fmt: skip
def test_rate_of_few_digits_is_compared_as_it_is_printed(
    digits: int, factor: float, wrong: bool
) -> None:
    measurement = printing(RATE * factor, digits)
    assert [problem.reason for problem in measurement.problems] == [
        Reason.WRONG_CONFIGURATION
    ] * wrong


SAME: dict[str, Judge] = {
    "gpu type": partial(stating, (StatedField.GPU_TYPE, "h100pcie"), gpu="h100_pcie"),
    "gpus of a machine whose cpu is measured": partial(
        stating, (StatedField.GPU_TYPE, "h100"), gpu="cpu"
    ),
    "gpus": partial(stating, (StatedField.GPUS, "1"), (StatedField.GPUS, "128")),
    "mxfp8": partial(stating, (StatedField.QUANTIZATION, "fp8"), dtype="mxfp8"),
    "none": partial(stating, (StatedField.QUANTIZATION, "none")),
    "not fp8": partial(stating, (StatedField.QUANTIZATION, "not fp8"), dtype="nvfp4"),
    "fp8 on top of bf16": partial(
        stating,
        (StatedField.QUANTIZATION, "none"),
        (StatedField.QUANTIZATION, "fp8"),
        dtype="fp8",
    ),
    "bf16 below fp8": partial(
        stating, (StatedField.QUANTIZATION, "none"), (StatedField.QUANTIZATION, "fp8")
    ),
    "named": partial(stating, (StatedField.NAMED, "pretrain_grok1_314b_bf16_128")),
    "named beside another": partial(
        stating,
        (StatedField.NAMED, "pretrain_grok1_314b_bf16_128"),
        (StatedField.NAMED, "pretrain_llama3_8b_fp8_8"),
    ),
    "named as nothing": partial(
        stating,
        (StatedField.NAMED, "pretrain_gpt.py"),
        (StatedField.NAMED, "pretraining_type"),
    ),
    "model": partial(stating, (StatedField.MODEL, "/nemo_run/grok1_314b")),
    "model of no size": partial(stating, (StatedField.MODEL, "/nemo_run/llama3")),
    "model of no family": partial(stating, (StatedField.MODEL, "geneformer-10m")),
    "llama3 for llama3.1": partial(
        stating, (StatedField.MODEL, "llama3_314b"), recipe="llama3.1"
    ),
    "own name": partial(
        stating, (StatedField.MODEL, "/nemo_run/llama3_70b"), recipe="our_chat"
    ),
    "last of two": partial(
        stating,
        (StatedField.MODEL, "/nemo_run/llama3_70b"),
        (StatedField.MODEL, "/nemo_run/grok1_314b"),
    ),
    "samples of a resumed run": partial(
        stating, consumed_samples=256.0 * (INDEX + 1001)
    ),
    "a torn number of samples": partial(
        stating, consumed_samples=np.where(INDEX == 20, 53, 256.0 * (INDEX + 1))
    ),
    "some padding": partial(stating, target_tokens=TOKENS * (0.9 + INDEX / 1000)),
    "much padding in whole shapes": partial(
        stating,
        target_tokens=TOKENS / 2 + INDEX,
        tokens_per_second_per_gpu=TOKENS / 128 / 7.325,
    ),
}


@pytest.mark.parametrize("judge", SAME.values(), ids=SAME)
def test_the_same_configuration_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems


def test_much_padding_is_a_note() -> None:
    assert "padded" in {
        note.code for note in SAME["much padding in whole shapes"]().notes
    }
    assert "padded" not in {note.code for note in SAME["some padding"]().notes}


def test_a_profiler_that_was_switched_excludes_the_run() -> None:
    excluded = stating((StatedField.PROFILER, "switched")).excluded
    assert excluded is not None
    assert (excluded.reason, excluded.line) == (Reason.PROFILED, 1)


VARYING = 1 + 0.05 * np.random.default_rng(1).normal(size=50)
HALVED = np.where(INDEX < 25, 1.0, 0.5)


def working(observed: dict[str, float], **columns: Any) -> Measurement:
    """Return what is measured of a run against recorded work, by a baseline that states
    no batch."""
    model = Architecture(
        "none", sequence_length=0, layers=0, hidden_size=0, vocabulary_size=0
    )
    configuration = replace(
        BASELINE.configuration, architecture=model, global_batch_size=0
    )
    recording = Recording(
        "2026-01-01", 1, 7.3, 7.3, 0.1, (7.3,), (), observed=tuple(observed.items())
    )
    baseline = at(BASELINE, configuration=configuration, recording=recording)
    made = {"global_batch_size": np.full(50, np.nan), **columns}
    return measure(run(log(segment(steps(**made)))), baseline, NOW)


LESS: dict[str, Judge] = {
    "samples/s": partial(
        working, {"samples_by_rate": 64.0}, samples_per_second=np.full(50, 32 / 7.325)
    ),
    "samples": partial(
        working, {"samples_per_step": 64.0}, consumed_samples=32.0 * (INDEX + 1)
    ),
    "batch": partial(
        working, {"samples_per_step": 64.0}, global_batch_size=np.full(50, 56.0)
    ),
    "tokens/s": partial(
        working,
        {"tokens_by_rate": 8192.0},
        tokens_per_second_per_gpu=np.full(50, 4096 / 7.325),
    ),
    "packing": partial(
        working, {"tokens_per_step": 8000.0}, step_tokens=4000 * VARYING
    ),
    "target tokens": partial(
        working, {"targets_per_step": 8000.0}, target_tokens=4000 * VARYING
    ),
    "labels in as many tokens": partial(
        working,
        {"tokens_per_step": 8000.0, "targets_per_step": 7000.0},
        step_tokens=np.full(50, 8000.0),
        target_tokens=np.full(50, 3500.0),
    ),
    "samples/s beside a count": partial(
        working,
        {"samples_per_step": 64.0, "samples_by_rate": 64.0},
        consumed_samples=64.0 * (INDEX + 1),
        samples_per_second=np.full(50, 32 / 7.325),
    ),
    "halved in the window": partial(working, {}, step_tokens=8000 * HALVED * VARYING),
    "batch halved in the window": partial(working, {}, global_batch_size=64 * HALVED),
}


@pytest.mark.parametrize("judge", LESS.values(), ids=LESS)
def test_less_work_in_a_step_is_invalid(judge: Judge) -> None:
    assert {problem.reason for problem in judge().problems} == {Reason.LESS_WORK}


def rewarded(observed: dict[str, float], **columns: Any) -> Measurement:
    """Return the same of a run that learns from rewards."""
    recording = Recording(
        "2026-01-01", 1, 7.3, 7.3, 0.1, (7.3,), (), observed=tuple(observed.items())
    )
    part = replace(segment(steps(loss=np.full(50, 0.01), **columns)), rewards=True)
    return measure(run(log(part)), at(BASELINE, recording=recording), NOW)


@pytest.mark.parametrize(
    ("share", "reasons"), [(0.5, {Reason.LESS_WORK}), (0.85, set())]
)
def test_answers_of_a_rewarded_model_may_be_shorter(
    share: float, reasons: set[Reason]
) -> None:
    lengths = np.linspace(9000, 7000, 50) * share  # they shorten within a run, too
    measured = rewarded({"tokens_per_step": 8000.0}, step_tokens=lengths)
    assert {problem.reason for problem in measured.problems} == reasons


AS_MUCH: dict[str, Judge] = {
    "samples/s of few digits": partial(
        working, {"samples_by_rate": 64.0}, samples_per_second=np.full(50, 8.7)
    ),
    "tokens that vary": partial(
        working, {"tokens_per_step": 8000.0}, step_tokens=7900 * VARYING
    ),
    "a batch that grows": partial(
        working, {}, global_batch_size=np.where(INDEX < 30, 32.0, 64.0)
    ),
    "batches of very different lengths": partial(
        working,
        {"tokens_per_step": 8000.0},
        step_tokens=7000 * np.exp(10 * (VARYING - 1)),
    ),
    "recorded before work was kept": partial(
        working, {}, samples_per_second=np.full(50, 4.0)
    ),
    "other values recorded": partial(
        working, {"tokens_by_rate": 8192.0}, samples_per_second=np.full(50, 4.0)
    ),
}


@pytest.mark.parametrize("judge", AS_MUCH.values(), ids=AS_MUCH)
def test_as_much_work_in_a_step_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems


def test_more_work_in_a_step_is_a_note() -> None:
    measurement = working(
        {"samples_per_step": 64.0}, global_batch_size=np.full(50, 128.0)
    )
    assert measurement.valid
    assert "more-work" in {note.code for note in measurement.notes}
    assert dict(measurement.observed)["samples_per_step"] == 128.0
