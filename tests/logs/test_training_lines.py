"""Lines besides steps: non-finite validation losses and skipped weight updates."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from generator.lines import mlperf_record

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import Segment
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.log_reader import parse_blocks


def read(*lines: str) -> tuple[Segment, ...]:
    text = "".join(f"{line}\n" for line in lines)
    return parse_blocks([text.encode()], load_definitions().values()).segments


def megatron_line(step: int, total: int = 4) -> str:
    return (
        f" iteration {step:8d}/{total:8d} | consumed samples: {step * 8:12d} |"
        " elapsed time per iteration (ms): 2000.5 |"
        f" learning rate: 1.0E-04 | global batch size: 8 | lm loss: 1.0{step}E+01 | loss scale: 1.0 | grad norm: 1.2 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def titan_line(step: int, loss: str = "5.1234", kind: str = "step") -> str:
    ending = f"memory:  4.00GiB(50.00%)  tps: {1000 + step}  tflops: 10.00  mfu: 1.00%"
    ending = ending if kind == "step" else "memory:  4.00GiB(50.00%)  tps: 56"
    return f"[rank0]:[titan] 2026-04-30 02:27:{step:02d},267 - root - INFO - {kind}: {step:2d}  loss: {loss}  {ending}"


def nemo2_line(step: int, validation: str = "") -> str:
    return (
        f"Training epoch 0, iteration {step}/3 | lr: 1e-05 | global_batch_size: 8 | global_step: {step} | "
        f"reduced_train_loss: 11.0{step} | train_step_timing in s: 2.00{step}{validation}"
    )


def maxtext_line(step: int) -> str:
    return f"completed step: {step}, seconds: 2.001, TFLOP/s/device: 99.123, Tokens/s/device: 512.123, loss: 9.{step}23"


def dllogger_record(step: int, extra: str = "") -> str:
    return (
        f"DLL 2026-04-30 02:27:0{step}.267331 - {step} reduced_train_loss : 11.{step}  lr : 1e-05  "
        f"global_step : {step}.0  consumed_samples : {8 * step + 8}.0  train_step_timing in s : 2.00{step} {extra}"
    )


def summary_lines(loss: str) -> list[str]:
    return [
        f"{{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.5}}",
        "{'train_runtime': 100.0, 'train_samples_per_second': 6.0, 'train_steps_per_second': 1.0, 'train_loss': 1.2,"
        " 'epoch': 1.0}",
    ]


MEGATRON = [megatron_line(step) for step in (1, 2, 3, 4)]
BAD = {
    "megatron": [
        *MEGATRON,
        " validation loss at iteration 4 on validation set | lm loss value: NAN | lm loss PPL: NAN |",
    ],
    "megatron in between": [
        *MEGATRON[:2],
        " validation loss at iteration 2 | lm loss value: inf | lm loss PPL: inf |",
        *MEGATRON[2:],
    ],
    "gpt-neox": [
        *MEGATRON,
        " validation results at iteration 4 | lm_loss value: nan | lm_loss_ppl value: nan |",
    ],
    "torchtitan": [
        *map(titan_line, (1, 2, 3)),
        titan_line(3, "nan", "validate step"),
        *map(titan_line, (4, 5, 6)),
    ],
    "nemo 2": [*map(nemo2_line, (0, 1, 2)), nemo2_line(3, " | val_loss: nan")],
    "nemo 2 in the last two steps": [
        *map(nemo2_line, (0, 1)),
        *(nemo2_line(step, " | val_loss: nan") for step in (2, 3)),
    ],
    "maxtext": [
        *map(maxtext_line, (0, 1, 2)),
        "eval metrics after step: 2, loss=nan, total_weights=65536.0",
    ],
    "trainer": [
        summary_lines("1.2")[0],
        "{'eval_loss': nan, 'eval_samples_per_second': 1.2}",
        summary_lines("1.2")[1],
    ],
    "trainer with quoted numbers": [
        *summary_lines("1.2")[:1],
        "{'eval_loss': 'nan', 'eval_samples_per_second': '2'}",
        summary_lines("1.2")[1],
    ],
    "nemo 1": [
        dllogger_record(0),
        dllogger_record(1),
        "DLL 2026-04-30 02:27:02.1 - 1 val_loss : nan  global_step : 1.0 ",
        dllogger_record(2),
    ],
    "nemo 1 in a step": [
        dllogger_record(0),
        dllogger_record(1, " val_loss : nan "),
        dllogger_record(2),
    ],
    "mlperf": [
        mlperf_record("global_batch_size", 4),
        *(
            mlperf_record(
                "tracked_stats",
                {"train_step_time": 2.0},
                step=step,
                samples_count=4 * (step + 1),
            )
            for step in range(3)
        ),
        mlperf_record("eval_accuracy", float("nan"), samples_count=12),
    ],
    "event file": [
        *(
            f"llmb scalar: {step}/ {1774532589.0 + step} 0.5{step} iteration-time"
            for step in (1, 2, 3)
        ),
        "llmb scalar: 3/ 1774532593.0 nan lm loss validation",
    ],
}


@pytest.mark.parametrize("lines", BAD.values(), ids=BAD)
def test_line_of_a_non_finite_validation_loss_is_reported(lines: list[str]) -> None:
    (segment,) = read(*lines)
    plain = (line.replace("number of nan iterations", "") for line in lines)
    assert segment.bad_validation_line == next(
        n for n, line in enumerate(plain, 1) if re.search(r"(?i)\b(nan|inf)\b", line)
    )


SOUND = [
    [
        *MEGATRON,
        " validation loss at iteration 4 on validation set | lm loss value: 1.1E+01 | lm loss PPL: 5E+04 |",
    ],
    [*MEGATRON, "the metric val_loss is nan-aware, and the loss value: nanoseconds"],
    [
        "{'eval_loss': nan, 'eval_samples_per_second': 0.1}",
        *MEGATRON,
    ],  # belongs to an earlier program
    [
        *map(titan_line, (1, 2, 3)),
        titan_line(3, "8.0207", "validate step"),
        *map(titan_line, (4, 5, 6)),
    ],
    [
        *map(maxtext_line, (0, 1, 2)),
        "eval metrics after step: 2, loss=9.1, total_weights=65536.0",
    ],
]


@pytest.mark.parametrize("lines", SOUND)
def test_finite_validation_loss_is_accepted(lines: list[str]) -> None:
    assert [segment.bad_validation_line for segment in read(*lines)] == [0]


def deepspeed_lines(step: int, skipped: int | None) -> list[str]:
    stamp = f"[2026-03-02 10:{step // 60:02d}:{step % 60:02d},012] [INFO]"
    count = [
        f"{stamp} [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[1e-05], mom=[[0.9, 0.95]]"
    ]
    timer = (
        f"{stamp} [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=16.{step}, CurrSamplesPerSec=16.1, MemAllocated=12.3GB, MaxMemAllocated=40.1GB"
    )
    return [*(count if skipped is not None else ()), timer]


def overflow_line(old: int, new: int, rank: str = "Rank 0 ") -> str:
    return (
        "[2026-03-02 10:00:04,001] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] "
        f"OVERFLOW! {rank}Skipping step. Attempted loss scale: {old}, reducing to {new}"
    )


def flatten(*groups: list[str] | str) -> list[str]:
    return [
        line
        for group in groups
        for line in ([group] if isinstance(group, str) else group)
    ]


SKIPPED = {
    "counts since the start": (
        flatten(
            *(
                deepspeed_lines(step, skipped)
                for step, skipped in ((1, 1), (2, 1), (3, 2), (4, 2))
            )
        ),
        [1, 0, 1, 0],
    ),
    "counts of several steps": (
        flatten(
            *(
                deepspeed_lines(step, skipped)
                for step, skipped in ((10, 10), (20, 10), (30, 14), (40, 14))
            )
        ),
        [10, 0, 4, 0],
    ),
    "counts and lines": (
        flatten(
            overflow_line(4, 2),
            deepspeed_lines(1, 1),
            deepspeed_lines(2, 1),
            overflow_line(2, 1),
            overflow_line(2, 1),
            deepspeed_lines(3, 2),
        ),
        [1, 0, 1],
    ),
    "lines only": (
        flatten(
            deepspeed_lines(1, None),
            overflow_line(4, 2),
            deepspeed_lines(2, None),
            overflow_line(2, 1),
            deepspeed_lines(3, None),
        ),
        [0, 1, 1],
    ),
    "lines of two ranks": (
        flatten(
            *(
                deepspeed_lines(10, None),
                overflow_line(4, 2),
                overflow_line(4, 2, "Rank 1 "),
                deepspeed_lines(20, None),
            )
        ),
        [0, 1],
    ),
    "lines of unnamed ranks": (
        flatten(
            *(
                deepspeed_lines(10, None),
                overflow_line(4, 2, ""),
                overflow_line(4, 2, ""),
                deepspeed_lines(20, None),
            )
        ),
        [0, 1],
    ),
}


@pytest.mark.parametrize(("lines", "skipped"), SKIPPED.values(), ids=SKIPPED)
def test_skipped_optimizer_updates_are_counted_per_printed_step(
    lines: list[str], skipped: list[int]
) -> None:
    (segment,) = read(*lines)
    np.testing.assert_array_equal(segment.steps.skipped_steps, skipped)


def test_skipped_optimizer_updates_are_summed_for_a_run_with_one_record() -> None:
    (segment,) = read(
        overflow_line(8, 4),
        overflow_line(4, 2),
        *summary_lines("1.2"),
        overflow_line(2, 1),
    )
    assert segment.steps.skipped_steps.tolist() == [3.0]


def test_learning_rates_of_deepspeed_are_read() -> None:
    lines = flatten(*(deepspeed_lines(step, 0) for step in (1, 2, 3)))
    (segment,) = read(*lines)
    assert segment.steps.learning_rate.tolist() == [1e-05] * 3
    (segment,) = read(*(line.replace("lr=[1e-05]", "lr=[0.0, 0.0]") for line in lines))
    assert segment.steps.learning_rate.tolist() == [0.0] * 3


def test_overflow_lines_are_counted_as_skips_if_step_records_report_no_skips() -> None:
    (segment,) = read(
        megatron_line(1),
        overflow_line(8, 4),
        megatron_line(2),
        megatron_line(3),
        megatron_line(4),
    )
    assert segment.steps.skipped_steps.tolist() == [0, 1, 0, 0]


def test_skipped_steps_are_nan_without_skip_lines() -> None:
    (segment,) = read(*flatten(*(deepspeed_lines(step, None) for step in (1, 2, 3))))
    assert np.isnan(segment.steps.skipped_steps).all()


DEFINED = {
    "InternEvo": (
        RegexDialect(
            "own",
            find="tgs_1=",
            pattern=r"step=(?P<step>\d+) loss=(?P<loss>\S+) .*fwd_bwd_time=(?P<seconds>\S+)",
        ),
        lambda step, skipped: (
            f"INFO -- step={step} loss=10.{step}12345 tgs_1=42.1 lr=7e-06 num_consumed_tokens=131072 "
            f"inf_nan_skip_batches={skipped} fwd_bwd_time=6.1{step}"
        ),
        [0, 1, 1, 3],
        [0, 1, 0, 2],
    ),
    "MindFormers": (
        RegexDialect(
            "own",
            find="per_step_time: ",
            pattern=r"step:\[ *(?P<step>\d+)/ *\d+\], loss: (?P<loss>[\d.]+), per_step_time: (?P<seconds>\d+)ms",
            unit="ms",
        ),
        lambda step, skipped: (
            f"INFO - {{ step:[ {step}/ 9], loss: 10.{step}40, per_step_time: 200{step}ms, lr: 1e-05, "
            f"overflow cond: {bool(skipped)}, loss_scale: 65536.0 }}"
        ),
        [0, 1, 1, 0],
        [0, 1, 1, 0],
    ),
}


@pytest.mark.parametrize(
    ("dialect", "line", "printed", "skipped"), DEFINED.values(), ids=DEFINED
)
def test_skipped_updates_of_user_defined_dialects_are_counted(
    dialect: RegexDialect,
    line: Callable[[int, int], str],
    printed: list[int],
    skipped: list[int],
) -> None:
    text = "".join(
        f"{line(step, value)}\n" for step, value in enumerate(printed, start=1)
    )
    (segment,) = parse_blocks([text.encode()], [dialect]).segments
    counted = np.minimum(skipped, segment.steps.mean_of)
    np.testing.assert_array_equal(np.nan_to_num(segment.steps.skipped_steps), counted)
