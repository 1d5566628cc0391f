"""Configurations stated in a log, compared with the baseline's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, at, log, run, segment, steps

from pytest_llmbench.core.baseline_records import Architecture, Recording
from pytest_llmbench.core.codes import NoteCode, Reason
from pytest_llmbench.core.log_records import StatedField, Statement
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.runs.measure.measurement import measure

Judge = Callable[[], Measurement]

TOKENS = 8192 * 256
INDEX = np.arange(50)


def measure_statements(
    *pairs: tuple[StatedField, str],
    recipe: str = "grok1",
    dtype: str = "bf16",
    gpu: str = "gb200",
    **columns: Any,
) -> Measurement:
    """Measure a run whose log contains these statements, one per line."""
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
    content = replace(segment(steps(**arrays)), stated=statements)
    return measure(run(log(content)), baseline, NOW)


DIFFERENT: dict[str, Judge] = {
    "gpu type": partial(measure_statements, (StatedField.GPU_TYPE, "h100")),
    "gpu that older recordings stated, too": partial(
        measure_statements, (StatedField.GPU_TYPE, "h100"), gpu="unknown"
    ),
    "form of the gpu": partial(
        measure_statements, (StatedField.GPU_TYPE, "h100pcie"), gpu="h100"
    ),
    "the other form": partial(
        measure_statements, (StatedField.GPU_TYPE, "h100"), gpu="h100pcie"
    ),
    "additional gpu type": partial(
        measure_statements,
        (StatedField.GPU_TYPE, "h100"),
        (StatedField.GPU_TYPE, "h100nvl"),
        gpu="h100",
    ),
    "gpus": partial(measure_statements, (StatedField.GPUS, "160")),
    "gpus, last": partial(
        measure_statements, (StatedField.GPUS, "128"), (StatedField.GPUS, "64")
    ),
    "fp8": partial(measure_statements, (StatedField.QUANTIZATION, "fp8")),
    "not fp8": partial(
        measure_statements, (StatedField.QUANTIZATION, "not fp8"), dtype="fp8"
    ),
    "none": partial(
        measure_statements, (StatedField.QUANTIZATION, "none"), dtype="fp8_mx"
    ),
    "fp8 for nvfp4": partial(
        measure_statements, (StatedField.QUANTIZATION, "fp8"), dtype="nvfp4"
    ),
    "named fp8": partial(
        measure_statements, (StatedField.NAMED, "pretrain_grok1_314b_fp8_128")
    ),
    "model": partial(
        measure_statements, (StatedField.MODEL, "/nemo_run/llama3.1_405b")
    ),
    "size": partial(measure_statements, (StatedField.MODEL, "/nemo_run/grok1_8b/")),
    "version": partial(
        measure_statements, (StatedField.MODEL, "llama2_314b"), recipe="llama3.1"
    ),
    "named model": partial(
        measure_statements, (StatedField.NAMED, "pretrain_llama3.1_70b_bf16_128_tp4")
    ),
    "samples": partial(measure_statements, consumed_samples=128.0 * (INDEX + 1)),
    "samples in the window": partial(
        measure_statements, consumed_samples=np.cumsum(np.where(INDEX < 11, 256, 128))
    ),
    "fewer target tokens": partial(measure_statements, target_tokens=TOKENS / 2),
    "half of them, padded": partial(
        measure_statements, target_tokens=TOKENS / 2 + INDEX
    ),
}


@pytest.mark.parametrize("judge", DIFFERENT.values(), ids=DIFFERENT)
def test_run_of_a_different_configuration_is_invalid(judge: Judge) -> None:
    assert {problem.reason for problem in judge().problems} == {
        Reason.WRONG_CONFIGURATION
    }


def measure_rates(rate: float, digits: int, **columns: Any) -> Measurement:
    """Measure a run whose log prints rates with few significant digits."""
    noise = 1 + 0.01 * np.sin(INDEX)
    printed = [float(f"{rate * factor:.{digits}g}") for factor in noise]
    return measure_statements(
        seconds=7.325 / noise, tokens_per_second_per_gpu=printed, **columns
    )


RATE = TOKENS / 128 / 7.325


@pytest.mark.parametrize(("digits", "factor", "wrong"), [
    (1, 1.0, False), (2, 1.0, False), (3, 1.0, False), (9, 1.0, False),
    (1, 1.05, False),  # not visible with one digit
    (2, 1.5, True), (3, 1.05, True), (9, 1.05, True), (1, 2.0, True), (2, 0.5, True),
])  # fmt: skip
def test_tokens_per_second_reveal_another_batch_size_beyond_their_rounding(
    digits: int, factor: float, wrong: bool
) -> None:
    measurement = measure_rates(RATE * factor, digits)
    assert [problem.reason for problem in measurement.problems] == [
        Reason.WRONG_CONFIGURATION
    ] * wrong


SAME: dict[str, Judge] = {
    "gpu type": partial(
        measure_statements, (StatedField.GPU_TYPE, "h100pcie"), gpu="h100_pcie"
    ),
    "gpu that older recordings could not state": partial(
        measure_statements, (StatedField.GPU_TYPE, "tpuv6e"), gpu="unknown"
    ),
    "gpu of a similar name": partial(
        measure_statements, (StatedField.GPU_TYPE, "mi300x"), gpu="mi300"
    ),
    "gpus of a machine whose cpu is measured": partial(
        measure_statements, (StatedField.GPU_TYPE, "h100"), gpu="cpu"
    ),
    "gpus": partial(
        measure_statements, (StatedField.GPUS, "1"), (StatedField.GPUS, "128")
    ),
    "mxfp8": partial(
        measure_statements, (StatedField.QUANTIZATION, "fp8"), dtype="mxfp8"
    ),
    "none": partial(measure_statements, (StatedField.QUANTIZATION, "none")),
    "not fp8": partial(
        measure_statements, (StatedField.QUANTIZATION, "not fp8"), dtype="nvfp4"
    ),
    "fp8 on top of bf16": partial(
        measure_statements,
        (StatedField.QUANTIZATION, "none"),
        (StatedField.QUANTIZATION, "fp8"),
        dtype="fp8",
    ),
    "bf16 below fp8": partial(
        measure_statements,
        (StatedField.QUANTIZATION, "none"),
        (StatedField.QUANTIZATION, "fp8"),
    ),
    "named": partial(
        measure_statements, (StatedField.NAMED, "pretrain_grok1_314b_bf16_128")
    ),
    "named in addition to another": partial(
        measure_statements,
        (StatedField.NAMED, "pretrain_grok1_314b_bf16_128"),
        (StatedField.NAMED, "pretrain_llama3_8b_fp8_8"),
    ),
    "name without a model": partial(
        measure_statements,
        (StatedField.NAMED, "pretrain_gpt.py"),
        (StatedField.NAMED, "pretraining_type"),
    ),
    "model": partial(measure_statements, (StatedField.MODEL, "/nemo_run/grok1_314b")),
    "model of no size": partial(
        measure_statements, (StatedField.MODEL, "/nemo_run/llama3")
    ),
    "model of no family": partial(
        measure_statements, (StatedField.MODEL, "geneformer-10m")
    ),
    "llama3 for llama3.1": partial(
        measure_statements, (StatedField.MODEL, "llama3_314b"), recipe="llama3.1"
    ),
    "same name": partial(
        measure_statements,
        (StatedField.MODEL, "/nemo_run/llama3_70b"),
        recipe="our_chat",
    ),
    "last of two": partial(
        measure_statements,
        (StatedField.MODEL, "/nemo_run/llama3_70b"),
        (StatedField.MODEL, "/nemo_run/grok1_314b"),
    ),
    "samples of a resumed run": partial(
        measure_statements, consumed_samples=256.0 * (INDEX + 1001)
    ),
    "a torn number of samples": partial(
        measure_statements,
        consumed_samples=np.where(INDEX == 20, 53, 256.0 * (INDEX + 1)),
    ),
    "some padding": partial(
        measure_statements, target_tokens=TOKENS * (0.9 + INDEX / 1000)
    ),
    "much padding in whole shapes": partial(
        measure_statements,
        target_tokens=TOKENS / 2 + INDEX,
        tokens_per_second_per_gpu=TOKENS / 128 / 7.325,
    ),
}


@pytest.mark.parametrize("judge", SAME.values(), ids=SAME)
def test_run_of_the_stated_configuration_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems


def test_run_with_many_padding_tokens_is_noted() -> None:
    assert "padded" in {
        note.code for note in SAME["much padding in whole shapes"]().notes
    }
    assert "padded" not in {note.code for note in SAME["some padding"]().notes}


def test_run_whose_log_says_that_a_profiler_was_switched_on_is_excluded() -> None:
    excluded = measure_statements((StatedField.PROFILER, "switched")).excluded
    assert excluded is not None
    assert (excluded.reason, excluded.line) == (Reason.PROFILED, 1)


VARYING = 1 + 0.05 * np.random.default_rng(1).normal(size=50)
HALVED = np.where(INDEX < 25, 1.0, 0.5)


def measure_work(observed: dict[str, float], **columns: Any) -> Measurement:
    """Measure a run against recorded work, with a baseline that states no batch size."""
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


LESS_WORK: dict[str, Judge] = {
    "samples/s": partial(
        measure_work,
        {"samples_by_rate": 64.0},
        samples_per_second=np.full(50, 32 / 7.325),
    ),
    "samples": partial(
        measure_work, {"samples_per_step": 64.0}, consumed_samples=32.0 * (INDEX + 1)
    ),
    "batch": partial(
        measure_work, {"samples_per_step": 64.0}, global_batch_size=np.full(50, 56.0)
    ),
    "tokens/s": partial(
        measure_work,
        {"tokens_by_rate": 8192.0},
        tokens_per_second_per_gpu=np.full(50, 4096 / 7.325),
    ),
    "packing": partial(
        measure_work, {"tokens_per_step": 8000.0}, step_tokens=4000 * VARYING
    ),
    "target tokens": partial(
        measure_work, {"targets_per_step": 8000.0}, target_tokens=4000 * VARYING
    ),
    "labels in as many tokens": partial(
        measure_work,
        {"tokens_per_step": 8000.0, "targets_per_step": 7000.0},
        step_tokens=np.full(50, 8000.0),
        target_tokens=np.full(50, 3500.0),
    ),
    "samples/s in addition to a count": partial(
        measure_work,
        {"samples_per_step": 64.0, "samples_by_rate": 64.0},
        consumed_samples=64.0 * (INDEX + 1),
        samples_per_second=np.full(50, 32 / 7.325),
    ),
    "halved in the window": partial(
        measure_work, {}, step_tokens=8000 * HALVED * VARYING
    ),
    "batch halved in the window": partial(
        measure_work, {}, global_batch_size=64 * HALVED
    ),
}


@pytest.mark.parametrize("judge", LESS_WORK.values(), ids=LESS_WORK)
def test_run_with_less_work_per_step_is_invalid(judge: Judge) -> None:
    assert {problem.reason for problem in judge().problems} == {Reason.LESS_WORK}


def measure_rewarded_work(observed: dict[str, float], **columns: Any) -> Measurement:
    """Like `measure_work`, for a run that learns from rewards."""
    recording = Recording(
        "2026-01-01", 1, 7.3, 7.3, 0.1, (7.3,), (), observed=tuple(observed.items())
    )
    content = replace(segment(steps(loss=np.full(50, 0.01), **columns)), rewards=True)
    return measure(run(log(content)), at(BASELINE, recording=recording), NOW)


@pytest.mark.parametrize(
    ("share", "reasons"), [(0.5, {Reason.LESS_WORK}), (0.85, set())]
)
def test_shorter_answers_of_a_model_trained_on_rewards_are_valid(
    share: float, reasons: set[Reason]
) -> None:
    lengths = np.linspace(9000, 7000, 50) * share  # they shorten within a run, too
    measured = measure_rewarded_work({"tokens_per_step": 8000.0}, step_tokens=lengths)
    assert {problem.reason for problem in measured.problems} == reasons


SAME_WORK: dict[str, Judge] = {
    "samples/s of few digits": partial(
        measure_work, {"samples_by_rate": 64.0}, samples_per_second=np.full(50, 8.7)
    ),
    "tokens that vary": partial(
        measure_work, {"tokens_per_step": 8000.0}, step_tokens=7900 * VARYING
    ),
    "a batch that grows": partial(
        measure_work, {}, global_batch_size=np.where(INDEX < 30, 32.0, 64.0)
    ),
    "batches of very different lengths": partial(
        measure_work,
        {"tokens_per_step": 8000.0},
        step_tokens=7000 * np.exp(10 * (VARYING - 1)),
    ),
    "recorded before work was kept": partial(
        measure_work, {}, samples_per_second=np.full(50, 4.0)
    ),
    "other values recorded": partial(
        measure_work, {"tokens_by_rate": 8192.0}, samples_per_second=np.full(50, 4.0)
    ),
}


@pytest.mark.parametrize("judge", SAME_WORK.values(), ids=SAME_WORK)
def test_same_work_per_step_is_valid(judge: Judge) -> None:
    measurement = judge()
    assert measurement.valid, measurement.problems


def test_run_with_more_work_per_step_is_noted() -> None:
    measurement = measure_work(
        {"samples_per_step": 64.0}, global_batch_size=np.full(50, 128.0)
    )
    assert measurement.valid
    assert "more-work" in {note.code for note in measurement.notes}
    assert dict(measurement.observed)["samples_per_step"] == 128.0


@pytest.mark.parametrize(
    ("gpu", "own_peak", "assumed", "text"),
    [
        (
            "h100",
            989,
            "1979",
            "the logged MFU assumes 1979 TFLOP/s; h100 has 989: multiply the logged MFU by 2",
        ),
        (
            "l40s",
            math.nan,
            "312",
            "the logged MFU assumes 312 TFLOP/s, the peak of a100; l40s has 362.05: multiply the logged MFU by 0.862",
        ),
        (
            "h200nvl",
            835,
            "989",
            "the logged MFU assumes 989 TFLOP/s, the peak of h100; h200nvl has 835: multiply the logged MFU by 1.18",
        ),
        (
            "a40",
            math.nan,
            "312",
            "the logged MFU assumes 312 TFLOP/s, the peak of a100; a40 has an unknown peak",
        ),
        (
            "a40",
            149.7,
            "312",
            "the logged MFU assumes 312 TFLOP/s, the peak of a100; a40 has 149.7: multiply the logged MFU by 2.08",
        ),
        (
            "h100",
            989,
            "1234",
            "the logged MFU assumes 1234 TFLOP/s; h100 has 989: multiply the logged MFU by 1.25",
        ),
        ("gb200", 2450, "2500", ""),  # sources differ
        ("a40", 312, "312", ""),  # the baseline file takes precedence
        ("a40", math.nan, "299", ""),
        ("cpu", math.nan, "312", ""),
        ("unknown", math.nan, "312", ""),
    ],
)
def test_peak_behind_the_logged_mfu_is_compared_with_the_gpu(
    gpu: str, own_peak: float, assumed: str, text: str
) -> None:
    configuration = BASELINE.configuration
    key = replace(configuration.key, gpu=gpu)
    baseline = at(
        BASELINE,
        configuration=replace(configuration, key=key),
        peak_tflops=own_peak,
    )
    stated = (
        Statement(StatedField.MFU_PEAK, "1", 2),
        Statement(StatedField.MFU_PEAK, assumed, 7),
    )
    content = replace(segment(steps()), stated=stated)
    notes = measure(run(log(content)), baseline, NOW).notes
    found = [
        (note.statement, note.line) for note in notes if note.code == NoteCode.MFU_PEAK
    ]
    assert found == ([(text, 7)] if text else [])


@pytest.mark.parametrize(
    ("assumed", "text"),
    [
        ("989", ""),
        (
            "2250",
            "the logged MFU assumes 2250 TFLOP/s, the peak of b200; h200 has 989: multiply the logged MFU by 2.28",
        ),
    ],
)
def test_peak_behind_the_logged_mfu_is_that_of_bf16(assumed: str, text: str) -> None:
    """Frameworks divide by it in runs of FP8, too."""
    configuration = BASELINE.configuration
    key = replace(configuration.key, gpu="h200", dtype="fp8")
    baseline = at(
        BASELINE, configuration=replace(configuration, key=key), peak_tflops=1979
    )
    stated = (Statement(StatedField.MFU_PEAK, assumed, 7),)
    notes = measure(
        run(log(replace(segment(steps()), stated=stated))), baseline, NOW
    ).notes
    found = [note.statement for note in notes if note.code == NoteCode.MFU_PEAK]
    assert found == ([text] if text else [])
