"""Shipped dialect definitions: real lines of each framework, and their values."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np
import pytest
from support.shared_data import shared
from support.written_logs import nemo2_run

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs import definitions
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import GROUPS, find_groups, find_time_groups
from pytest_llmbench.logs.log_reader import parse_blocks, read_log
from pytest_llmbench.logs.sources.compressed import Stream

SHIPPED = tuple(load_definitions().values())

# Lines of the logs that the definition files name, with the expected steps and times.
LINES = {
    "llm_c": (
        "step    1/32000 | loss 11.133732 (+nanz)| norm 52.9732 (+nanz)| lr 8.57e-07 | 3056.36 ms | 42.6% bf16 MFU | "
        "343080 tok/s\n"
        "step    2/32000 | loss 10.539388 (+nanz)| norm 43.5996 (+nanz)| lr 1.71e-06 | 2747.19 ms | 47.4% bf16 MFU | "
        "381690 tok/s\n"
        "val loss 11.129390\n",
        [1, 2],
        [3.05636, 2.74719],
    ),
    "nanochat": (
        "Step 00000 | Validation bpb: 3.228247\n"
        "step 00000/200000 (0.00%) | loss: 9.012936 | lrm: 0.00 | dt: 1436.54ms | tok/sec: 11,405 | bf16_mfu: 0.00 | "
        "epoch: 1 pq: 0 rg: 1 | total time: 0.00m\n"
        "step 00001/200000 (0.00%) | loss: 8.966355 | lrm: 0.03 | dt: 1343.33ms | tok/sec: 12,196 | bf16_mfu: 0.00 | "
        "epoch: 1 pq: 0 rg: 3 | total time: 0.89m | eta: 4451.6m\n",
        [0, 1],
        [1.43654, 1.34333],
    ),
    "modded_nanogpt": (
        "step:0/1670 val_loss:10.8258 train_time:0ms step_avg:0.07ms\n"
        "step:1/1670 train_time:380ms step_avg:380.20ms\n"
        "step:2/1670 train_time:402ms step_avg:201.05ms\n"
        "step:3/1670 train_loss:10.4925 train_time:502ms step_avg:nanms\n",
        [1, 2, 3],
        [0.38, 0.022, 0.1],
    ),
    "olmo": (
        "2025-12-26 19:16:36.039\tripe-sun-crunches-fin-03:0\tolmo.train:990\tINFO\tPre-train system metrics\n"
        "2025-12-26 19:17:38.772\tripe-sun-crunches-fin-03:0\tolmo.train:990\tINFO\t[step=10/1000,epoch=0]\n"
        "    train/CrossEntropyLoss=9.051\n    throughput/device/batches_per_second=0.2153\n"
        "2025-12-26 19:18:25.112 ripe-sun-crunches-fin-03:0  olmo.train:990  INFO    [step=20/1000,epoch=0]\n",
        [10, 20],
        [nan, 4.634],
    ),
    "prime_rl": (
        "02:40:52 SUCCESS Step 0 | Time: 5.13s | Loss: 12.2500 | Grad. Norm: 28.2032 | LR: 1.00e-06 | Throughput: 0 "
        "tokens/s | MFU: 0.0% | Peak Mem.: 5.1/23.7 GiB (21.4%) | Max Vio: 1.0000\n"
        "02:40:53 SUCCESS Step 1 | Time: 0.60s | Loss: 12.3125 | Grad. Norm: 28.4812 | LR: 1.00e-06 | Throughput: 3324 "
        "tokens/s | MFU: 1.0% | Peak Mem.: 5.2/23.7 GiB (22.1%) | Max Vio: 0.9891\n"
        "02:40:54 SUCCESS SFT trainer finished!\n",
        [0, 1],
        [5.13, 0.6],
    ),
    "verl": (
        "(TaskRunner pid=1271585) step:3 - actor/entropy:0.36 - critic/grad_norm:np.float64(49.0375) - "
        "timing_s/values:32.795669596642256 - timing_s/step:161.0777970990166 - timing_per_token_ms/adv:0.0089\n"
        "(TaskRunner pid=1271585) step:4 - actor/entropy:0.37 - timing_s/gen:5.4 - timing_s/step:np.float64(150.5) - "
        "perf/throughput:413.38\n",
        [3, 4],
        [161.0777970990166, 150.5],
    ),
}


def parse(text: str) -> ParsedLog:
    return parse_blocks([text.encode()], SHIPPED)


@pytest.mark.parametrize("name", LINES)
def test_lines_of_each_framework_are_read(name: str) -> None:
    text, steps, seconds = LINES[name]
    log = parse(text)
    (segment,) = log.segments
    assert log.dialect == name
    assert segment.steps.index.tolist() == steps
    assert segment.steps.seconds.tolist() == pytest.approx(seconds, nan_ok=True)
    assert log.dropped == ()


def verl_line(step: int, seconds: float, before: str = "", after: str = "") -> str:
    """Return a step of verl, with further times before and after its own."""
    return f"step:{step} - timing_s/gen:74.0{before} - timing_s/step:{seconds} - perf/mfu:0.3{after}\n"


TEST, SAVE = (
    " - timing_s/testing:200.5",
    " - timing_s/save_checkpoint:np.float64(30.25)",
)


@pytest.mark.parametrize(
    ("last", "seconds", "left_out"),
    [
        pytest.param(verl_line(9, 300.5, before=TEST), 100.0, 1, id="test"),
        pytest.param(verl_line(9, 130.25, before=SAVE), 100.0, 1, id="checkpoint"),
        pytest.param(
            verl_line(9, 330.75, before=TEST + SAVE), 100.0, 1, id="test and checkpoint"
        ),
        pytest.param(
            verl_line(9, 330.75, before=SAVE + TEST), 100.0, 1, id="checkpoint and test"
        ),
        pytest.param(
            verl_line(9, 330.5, before=TEST), 130.0, 1, id="slow step with a test"
        ),
        pytest.param(verl_line(9, 100.0, after=TEST), 100.0, 0, id="printed after"),
        pytest.param(
            verl_line(9, 300.5, after=TEST), 300.5, 0, id="printed after, slow"
        ),
        pytest.param(verl_line(9, 100.0, before=TEST), 100.0, 0, id="not included"),
        pytest.param(
            verl_line(9, 100.0, before=SAVE), 100.0, 0, id="shorter, not included"
        ),
    ],
)
def test_step_time_excludes_evaluation_and_checkpoint(
    last: str, seconds: float, left_out: int
) -> None:
    log = parse("".join(verl_line(step, 100.0) for step in range(1, 9)) + last)
    times = log.segments[0].steps.seconds.tolist()
    assert (times[:8], times[8]) == ([100.0] * 8, pytest.approx(seconds))
    assert sum(dropped.count for dropped in log.dropped) == left_out


def test_evaluation_in_every_step_is_excluded() -> None:
    log = parse("".join(verl_line(step, 300.5, before=TEST) for step in range(1, 9)))
    assert log.segments[0].steps.seconds.tolist() == pytest.approx([100.0] * 8)
    outside = parse(
        "".join(verl_line(step, 100.0, before=TEST) for step in range(1, 9))
    )
    assert outside.segments[0].steps.seconds.tolist() == [100.0] * 8


@pytest.mark.parametrize("definition", SHIPPED, ids=lambda definition: definition.name)
def test_pattern_of_a_definition_needs_step_and_time_groups(
    definition: RegexDialect,
) -> None:
    names = [group.name for group in find_groups(definition.pattern)]
    assert {"step", *find_time_groups(names)} <= set(names) <= set(GROUPS)
    assert find_time_groups(names)
    assert len(definition.find) >= 3


def test_orchestrator_lines_of_prime_rl_are_ignored() -> None:
    """A log may contain its lines together with the lines of the trainer."""
    other = (
        "16:43:08 SUCCESS Step 1 | Time: 5.23s | Reward: 0.3498 | Throughput: 3500.7 tokens/s | Seq. Length: 142.7 "
        "tokens/sample | Async Level: 1 | Max. Off-Policy Level: 1\n"
    )
    assert parse(other).segments == ()
    (segment,) = parse(other + LINES["prime_rl"][0]).segments
    assert segment.steps.seconds.tolist() == [5.13, 0.6]
    assert segment.finished


def test_optional_loss_of_a_shipped_dialect_is_read_if_printed() -> None:
    """A missing loss is acceptable; a non-finite loss is not."""
    text = LINES["modded_nanogpt"][0]
    (segment,) = parse(text.replace("10.4925", "nan")).segments
    assert segment.steps.has_loss.tolist() == [False, False, True]
    assert math.isnan(segment.steps.loss[2])
    assert not parse(text).prints_loss
    assert parse(text.replace(" train_time", " train_loss:9.1 train_time")).prints_loss


def test_every_shipped_definition_file_is_in_the_list_of_definition_names() -> None:
    folder = Path(definitions.__file__).parent
    assert sorted(definitions.NAMES) == sorted(
        path.stem for path in folder.glob("*.toml")
    )


def test_shipped_log_definitions_are_ignored_if_a_built_in_dialect_finds_steps() -> (
    None
):
    text = (nemo2_run(0, 4) + LINES["llm_c"][0]).encode()
    log = read_log(Stream([text], Path("x")), SHIPPED)
    assert (log.dialect, log.readings, log.dropped) == ("nemo2", (), ())


def test_log_from_standard_input_gives_the_same_as_its_file(tmp_path: Path) -> None:
    text = LINES["llm_c"][0].encode()
    path = tmp_path / "x.log"
    path.write_bytes(text)
    streamed = read_log(Stream([text[:70], text[70:]], path), SHIPPED)
    assert repr(streamed) == repr(read_log(path, SHIPPED))
    assert (streamed.dialect, streamed.size_bytes) == ("llm_c", len(text))
    assert read_log(path).segments == ()


@pytest.mark.slow
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_large_log_is_read_again_to_try_the_shipped_definitions(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """Its text exceeds the part of a stream that is kept."""
    path = tmp_path / "x.log"
    path.write_bytes(
        pack(LINES["llm_c"][0].encode() + b"a line of another module\n" * 400_000)
    )
    assert read_log(path, SHIPPED).dialect == "llm_c"


def test_log_without_steps_reports_no_unmatched_line_of_a_shipped_definition(
    tmp_path: Path,
) -> None:
    """A line may contain the marker of a definition."""
    text = b"step: 4 of a script that is no training\n" * 3
    path = tmp_path / "x.log"
    path.write_bytes(text)
    assert (
        read_log(path, SHIPPED).unread
        == read_log(Stream([text], path), SHIPPED).unread
        == ()
    )


# --- real files, counted independently ------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dialect", "steps", "seconds"),
    [
        # every tenth step; 540.07 s between the time stamps of the first and last line,
        # and the rates agree within 1 %
        ("deepspeed_chat_reward.log", "deepspeed", range(10, 1850, 10), 540.069),
        # sum of tokens / rate of each step; the time stamps agree within 3 %
        ("automodel_llama31_8b.jsonl", "automodel", range(100), 130.361),
    ],
)
def test_real_log_gives_steps_and_time(
    name: str, dialect: str, steps: range, seconds: float
) -> None:
    log = read_log(shared(f"logs/today/{name}"), SHIPPED)
    (segment,) = log.segments
    columns = segment.steps
    assert (log.dialect, columns.index.tolist()) == (dialect, list(steps))
    assert float(np.nansum(columns.seconds * columns.mean_of)) == pytest.approx(
        seconds, abs=0.001
    )


def test_real_nanotron_log_is_read() -> None:
    path = shared("logs/today/nanotron_excerpt.log")
    printed = re.findall(r"elapsed_time_per_iteration_ms: (\S+)", path.read_text())
    log = read_log(path, SHIPPED)
    (segment,) = log.segments
    assert (log.dialect, len(printed), segment.total_steps, segment.finished) == (
        "nanotron",
        15,
        15,
        True,
    )
    seconds = [
        float(text.rstrip("K")) * (1000 if text.endswith("K") else 1) / 1000
        for text in printed
    ]
    assert segment.steps.seconds.tolist() == pytest.approx(seconds)
    assert set(segment.steps.global_batch_size.tolist()) == {2}


WORK: dict[str, tuple[list[str], dict[str, float]]] = {
    "nanotron": (
        [
            f"iteration: {step} / 200 | consumed_tokens: {step * 2.5:.3g}M | elapsed_time_per_iteration_ms: 2K | "
            "tokens_per_sec: 1.25M | tokens_per_sec_per_gpu: 156K | global_batch_size: 512 | lm_loss: 9.1 | lr: 0 | "
            "model_tflops_per_gpu: 150 | hardware_tflops_per_gpu: 150 | grad_norm: nan | memory_allocated: 1GB"
            for step in range(1, 201)
        ],
        {"learning_rate": 0.0, "step_tokens": 2.5e6, "grad_norm": nan},
    ),
    "automodel": (
        [
            f'{{"step": {step}, "epoch": 0, "timestamp": "2026-05-04T06:05:5{step}.392Z", "loss": 5.1, '
            '"grad_norm": 1.5, "lr": 0.0, "mem": 1.0, "tps": 4000.0, "tps_per_gpu": 500.0, "mfu": null, '
            '"num_tokens_per_step": 8192, "num_label_tokens": 4096}'
            for step in range(3)
        ],
        {
            "learning_rate": 0.0,
            "step_tokens": 8192,
            "target_tokens": 4096,
            "grad_norm": 1.5,
        },
    ),
    "verl": (
        [
            f"step:{step} - actor/grad_norm:np.float64(nan) - actor/lr:1e-06 - timing_s/step:40.5 - "
            "perf/total_num_tokens:500000 - perf/throughput:1543.2"
            for step in range(1, 4)
        ],
        {"learning_rate": 1e-6, "step_tokens": 500000, "grad_norm": nan},
    ),
    "prime_rl": (
        [
            f"02:40:5{step} SUCCESS Step {step} | Time: 5.13s | Loss: 0.0001 | Entropy: 0.5 | Grad. Norm: 0.25 | "
            "LR: 1.00e-06 | Throughput: 100 tokens/s"
            for step in range(3)
        ],
        {"learning_rate": 1e-6, "grad_norm": 0.25},
    ),
    "nanochat": (
        [
            f"step {step:05d}/00100 (1.00%) | loss: 9.012936 | lrm: 0.00 | dt: 500.00ms | tok/sec: 11,400 | epoch: 1"
            for step in range(3)
        ],
        {"step_tokens": 5700, "learning_rate": 0.0},
    ),
    "llm_c": (
        [
            f"step    {step}/10 | loss 11.133732 (+nanz)| norm 52.9732 (+nanz)| lr 0.00e+00 | 3000.00 ms | "
            "42.6% bf16 MFU | 343080 tok/s"
            for step in range(1, 4)
        ],
        {"step_tokens": 1029240, "learning_rate": 0.0},
    ),
}
"""Lines of each framework, and the work and update of the last step."""


@pytest.mark.parametrize("name", WORK)
def test_shipped_dialects_read_tokens_and_gradient_norms(name: str) -> None:
    lines, expected = WORK[name]
    log = parse_blocks(["".join(f"{line}\n" for line in lines).encode()], SHIPPED)
    columns = log.segments[0].steps
    assert (log.dialect, len(columns)) == (name, len(lines))
    values = {column: float(getattr(columns, column)[-1]) for column in expected}
    assert values == pytest.approx(expected, nan_ok=True, rel=0.01)


@pytest.mark.parametrize("name", ["verl", "prime_rl"])
def test_runs_of_reward_frameworks_are_marked_as_reward_training(name: str) -> None:
    lines, _ = WORK[name]
    assert (
        parse_blocks(["".join(f"{line}\n" for line in lines).encode()], SHIPPED)
        .segments[0]
        .rewards
    )


def test_step_with_an_invalid_optional_value_is_kept() -> None:
    lines, _ = WORK["automodel"]
    text = "".join(f"{line}\n" for line in lines).replace('"lr": 0.0', '"lr": null')
    log = parse_blocks([text.encode()], SHIPPED)
    assert (len(log.segments[0].steps), log.dropped) == (3, ())
    assert np.isnan(log.segments[0].steps.learning_rate).all()
