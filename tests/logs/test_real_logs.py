"""Real logs: every expected value was derived with grep, awk or by eye, as noted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.shared_data import shared

from pytest_llmbench.core.log_records import ParsedLog, Steps
from pytest_llmbench.logs.log_reader import read_log

pytestmark = pytest.mark.wheel

# (file, [steps, number of steps and total of each segment])
COUNTS: list[tuple[str, list[str]]] = [
    # grep -oE 'DLL [0-9-]+ [0-9:.]+ - [0-9]+ ' | sort -u: steps 0 to 19; bars say N/20;
    # grep -c 'Trainer.fit. stopped': 1
    ("nemo1/carriage_returns.out", ["0-19: 20 of 20, finished"]),
    # the same commands, the same counts
    ("nemo1/stale_bars_dllogger.out", ["0-19: 20 of 20, finished"]),
    # grep -c 'Training epoch': 5; global_step 19, 29, 45, 46, 48; epochs 1 and 2 only,
    # so that N/999 is no total
    ("nemo2/awsome_ray_prefix_excerpt.out", ["19-48: 5 of ?"]),
    # grep -c 'Training epoch': 100, N/99; no end mark, but step 99 of 100
    ("nemo2/evo2_slow_after_checkpoint_excerpt.out", ["0-99: 100 of 100, finished"]),
    # grep -c 'Training epoch': 500, N/499; grep -c 'Trainer.fit. stopped': 1
    ("nemo2/geneformer_500_steps.out", ["0-499: 500 of 500, finished"]),
    # wc -l: 3, iterations 74 to 76 of N/99
    ("nemo2/memory_tflops_excerpt.out", ["74-76: 3 of 100"]),
    # wc -l: 5, iterations 45 to 49 of N/99
    ("nemo2/nemo2__tflops_memory_sci__doc39769813321.out", ["45-49: 5 of 100"]),
    # grep -nE 'Training epoch|Trainer.fit|restart_count' and by eye: five runs, the
    # second one restarts at step 10 after a crash at 15; 85 lines, N/19; end marks in
    # lines 237, 1030 and 1555
    (
        "nemo2/resiliency_five_runs.out",
        [
            "0-19: 20 of 20, finished",
            "0-15: 16 of 20",
            "10-19: 10 of 20, finished",
            "0-15: 16 of 20",
            "0-19: 20 of 20, finished",
            "0-2: 3 of 20",
        ],
    ),
    # by eye: steps 0 to 9, then 9, 8 and 9 once more (quoted again in the document)
    ("maxtext/async_dispatch_excerpt.out", ["0-9: 10 of ?"]),
    # grep -c 'completed step': 50; grep 'Config param steps:': 50
    ("maxtext/cpu_2024_12_50_steps.out", ["0-49: 50 of 50, finished"]),
    # grep -c 'completed step': 30, no configuration
    ("maxtext/llama2_commented_excerpt.out", ["0-29: 30 of ?"]),
    # by eye: one line each of seven logs, steps 9 49 | 1 99 | 5 18 | 0
    (
        "maxtext/maxtext__dialects_one_each.out",
        ["9-49: 2 of ?", "1-99: 2 of ?", "5-18: 2 of ?", "0-0: 1 of ?"],
    ),
    # grep -c 'completed step': 50; grep 'Config param steps:': 50
    ("maxtext/nan_loss.out", ["0-49: 50 of 50, finished"]),
    # megatron: grep -oE 'iteration +[0-9]+/ *[0-9]+ \|', split where the total changes
    # or the number falls; grep -cE '\[after training is done\]|\[exiting program at
    # iteration' grep -c: 344 of 500, no end mark
    ("megatron/1861140.out", ["1-344: 344 of 500"]),
    # grep -c: 1200, in lines 1982 to 5583, 8133 to 11743, 14607 to 18217 and 20957 to
    # 24567
    ("megatron/2624605.out", ["1-300: 300 of 300, finished"] * 4),
    # grep -c: 410, of them 2 of 2, then 408 of 18141
    ("megatron/3108456.out", ["1-2: 2 of 2, finished", "1-408: 408 of 18141"]),
    # by eye: 25 to 27 of one log, 1 to 3 of another
    ("megatron/awsome_gpt3_excerpt.out", ["25-27: 3 of 73242187", "1-3: 3 of 508626"]),
    # grep -c: 200, in lines 1568 to 1670, 3524 to 3626, 5480 to 5582 and 7332 to 7434;
    # four end marks
    ("megatron/four_clock_runs.out", ["1-50: 50 of 50, finished"] * 4),
    # grep -c: 49 of 1000
    ("megatron/lm_hyphen_loss.out", ["1-49: 49 of 1000"]),
    # by eye
    ("megatron/nan_grad_norm_excerpt.out", ["5426-5428: 3 of 250000"]),
    # grep -c: 40, of 20 steps, each twice; one end mark
    ("megatron/primus_instant_average.out", ["1-20: 20 of 20, finished"]),
    # grep -c: 20 of 20; one end mark
    ("megatron_bridge/llama_20_iterations.out", ["1-20: 20 of 20, finished"]),
    # grep -c 'Step Time': 20, without any number
    ("megatron_bridge/step_time_only_excerpt.out", ["1-20: 20 of ?"]),
    # torchtitan: grep -caE 'INFO - (.\[31m)?step:' and grep 'total steps'; grep -c
    # 'Training completed' grep -c: 50 of 50; one end mark
    ("torchtitan/cpu_0_3_0_50_steps.out", ["1-50: 50 of 50, finished"]),
    # grep -c: 45, no total; by eye: 1 to 10 twice, then 1, 10, 20, ... up to 100 and up
    # to 130
    (
        "torchtitan/four_runs_excerpt.out",
        ["1-10: 10 of ?", "1-10: 10 of ?", "1-100: 11 of ?", "1-130: 14 of ?"],
    ),
    # grep -c: 10 of 10; one end mark
    ("torchtitan/mfu_not_available.out", ["1-10: 10 of 10, finished"]),
    # grep -c: 152 of 30000, every tenth; grep -c 'validate step': 2; no end mark
    ("torchtitan/resumed_killed.out", ["12510-14020: 152 of 30000"]),
    # grep -c: 40, of 20 steps, from two ranks; two end marks
    ("torchtitan/two_ranks_print.out", ["1-20: 20 of 20, finished"]),
]

# dropped records: {file: {reason: count}}
DROPPED = {
    # grep -o 'global_step=' | wc -l: 41 bars with values, and 20 DLLogger records that
    # replace them
    "nemo1/carriage_returns.out": {"repeated": 41},
    "nemo1/stale_bars_dllogger.out": {"repeated": 41},
    "maxtext/async_dispatch_excerpt.out": {"repeated": 3},
    # grep -c 'utils.py:429.*iteration .*elapsed time': 20, and 20 of utils.py:425
    "megatron/primus_instant_average.out": {"repeated": 20},
    # grep -cE 'rank1.*INFO - .\[31mstep:'
    "torchtitan/two_ranks_print.out": {"other-rank": 20},
}


def describe_segments(log: ParsedLog) -> list[str]:
    """Describe each segment: steps, number of steps, total, finished or not."""
    descriptions = []
    for segment in log.segments:
        index, finished = segment.steps.index, ", finished" if segment.finished else ""
        descriptions.append(
            f"{index[0]}-{index[-1]}: {len(index)} of {segment.total_steps or '?'}{finished}"
        )
    return descriptions


@pytest.mark.slow
@pytest.mark.parametrize(("name", "segments"), COUNTS)
def test_real_log_is_split_into_the_expected_attempts(
    name: str, segments: list[str]
) -> None:
    log = read_log(shared(f"logs/{name}"))
    assert describe_segments(log) == segments
    assert log.dialect == name.partition("/")[0].removesuffix("_bridge")
    assert {record.reason: record.count for record in log.dropped} == DROPPED.get(
        name, {}
    )


def test_logs_of_the_llmb_launcher_have_all_their_steps_and_an_end() -> None:
    """grep -rc 'Training epoch': 50 in eight files, N/49, each with an end mark.

    'step: ' occurs 20 times in one other file.
    """
    logs = [read_log(path) for path in shared("logs/llmb_install").rglob("*.out")]
    trained = [log for log in logs if log.dialect]
    assert sorted(log.dialect for log in trained if log.dialect) == ["nemo2"] * 8 + [
        "torchtitan"
    ]
    for log in trained:
        (segment,) = log.segments
        assert segment.finished
        assert (
            len(segment.steps)
            == segment.total_steps
            == (50 if log.dialect == "nemo2" else 20)
        )
        assert (log.dropped, log.ending) == ((), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "megatron/2624217.out",
        "megatron/3108456.err",
        "nccl/torn_lines.out",
        "slurm/time_limit.out",
    ],
)
def test_logs_without_steps_have_no_dialect(name: str) -> None:
    log = read_log(shared(f"logs/{name}"))
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


def find_row(name: str, segment: int, step: int) -> tuple[Steps, int]:
    steps = read_log(shared(f"logs/{name}")).segments[segment].steps
    return steps, int(np.flatnonzero(steps.index == step)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "location", "line", "seconds", "unit"),  # location: segment and step
    [  # sed -n LINEp FILE
        ("nemo1/carriage_returns.out", (0, 1), 1227, 39.897690176963806, 0.0),
        ("nemo1/stale_bars_dllogger.out", (0, 19), 3038, 2.022152042388916, 0.0),
        ("nemo2/awsome_ray_prefix_excerpt.out", (0, 19), 2, 46.86, 0.01),
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", (0, 98), 278, 0.24, 0.0001),
        ("nemo2/resiliency_five_runs.out", (2, 10), 1018, 10.26, 0.01),
        ("maxtext/async_dispatch_excerpt.out", (0, 8), 9, 5.668, 0.001),
        ("maxtext/llama2_commented_excerpt.out", (0, 1), 3, 176.734, 0.001),
        ("megatron/2624605.out", (3, 300), 24567, 1.3484, 0.0001),
        ("megatron/lm_hyphen_loss.out", (0, 2), 950, 141.0968, 0.0001),
        ("megatron_bridge/llama_20_iterations.out", (0, 1), 8404, 12.953, 0.0001),
        ("megatron_bridge/step_time_only_excerpt.out", (0, 5), 5, 2.26, 0.01),
        # difference of the time stamps of two lines: 39.085 - 38.742; (79.762 - 65.301)
        # / 10
        ("torchtitan/cpu_0_3_0_50_steps.out", (0, 3), 33, 0.343, 0.001),
        ("torchtitan/four_runs_excerpt.out", (3, 110), 43, 1.4461, 0.0001),
        # (02:30:31.152 - 02:27:58.267) / 10: a validation ended in between
        ("torchtitan/resumed_killed.out", (0, 13010), 286, 15.2885, 0.0001),
    ],
)
def test_step_gives_expected_time_and_line(
    name: str, location: tuple[int, int], line: int, seconds: float, unit: float
) -> None:
    steps, index = find_row(name, *location)
    assert steps.seconds[index] == pytest.approx(seconds, rel=1e-12)
    assert steps.line[index] == line
    assert steps.resolution_seconds[index] == pytest.approx(unit)


@pytest.mark.parametrize(
    ("name", "step", "columns"),
    [
        ("nemo1/carriage_returns.out", 1, {"loss": 12.948076248168945, "grad_norm": 15.121691703796387}),
        (
            "nemo2/nemo2__tflops_memory_sci__doc39769813321.out", 45,
            {"tflops_per_gpu": 1249, "peak_memory_bytes": 115792977920, "global_batch_size": 128},
        ),
        (
            "megatron/primus_instant_average.out", 20,
            {"tflops_per_gpu": 239.6, "tokens_per_second_per_gpu": 14312.3, "loss": 5.12077, "global_batch_size": 896},
        ),
        (
            "torchtitan/mfu_not_available.out", 10,
            {"tflops_per_gpu": 1014.13, "tokens_per_second_per_gpu": 12036, "peak_memory_bytes": 165.10 * 2**30},
        ),
        ("today/gptneox_stdout.txt", 20, {"tflops_per_gpu": 44.9}),
    ],
)  # fmt: skip
def test_step_gives_expected_columns(
    name: str, step: int, columns: dict[str, float]
) -> None:
    steps, index = find_row(name, 0, step)
    assert {column: getattr(steps, column)[index] for column in columns} == columns


@pytest.mark.parametrize(
    ("name", "dispatched"),
    [  # by eye: 0.319 s before 5.658 s; 0.277 and 0.215 s before 0.434 s
        ("async_dispatch_excerpt.out", [1]),
        ("nan_loss.out", [1, 2]),
        ("cpu_2024_12_50_steps.out", []),
    ],
)
def test_dispatched_maxtext_steps_are_asynchronous(
    name: str, dispatched: list[int]
) -> None:
    (segment,) = read_log(shared(f"logs/maxtext/{name}")).segments
    assert segment.steps.index[segment.steps.asynchronous].tolist() == dispatched


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("megatron/1861140.out", 2),
        ("megatron/primus_instant_average.out", 2),
        ("megatron/lm_hyphen_loss.out", 1),
        ("megatron_bridge/llama_20_iterations.out", 1),
    ],
)
def test_second_printed_time_of_newer_megatron_covers_the_expected_number_of_steps(
    name: str, second: int
) -> None:
    """Checked manually: 12465.5 and 7331.4 ms, lines at 11:19:02.52 and 04.72.

    (12.4655 + 2.20) / 2 is 7.33 s.
    """
    (segment,) = read_log(shared(f"logs/{name}")).segments
    assert segment.steps.mean_of.tolist() == [1, second] + [1] * (
        len(segment.steps) - 2
    )


def test_omitted_loss_of_megatron_is_nan_unless_skipped() -> None:
    """By eye: three lines have `grad norm: nan` without a loss.

    The last three lines have `number of skipped iterations:   1`.
    """
    steps = (
        read_log(shared("logs/megatron/nan_grad_norm_excerpt.out")).segments[0].steps
    )
    assert steps.has_loss.all()
    assert np.isnan([steps.loss, steps.grad_norm]).all()
    overflowed = (
        read_log(shared("logs/megatron/awsome_gpt3_excerpt.out")).segments[1].steps
    )
    assert not overflowed.has_loss.any()
    assert not overflowed.has_grad_norm.any()


def test_diverged_run_keeps_nan_losses() -> None:
    """grep -c 'loss: nan' maxtext/nan_loss.out: 41, from step 9 on."""
    steps, _ = find_row("maxtext/nan_loss.out", 0, 9)
    assert steps.has_loss.all()
    assert np.isnan(steps.loss).tolist() == [False] * 9 + [True] * 41


@pytest.mark.parametrize(
    ("name", "load", "save", "nccl"),
    # grep -n -m1 'Global Checkpoint Load', 'Global Checkpoint Save', 'NCCL INFO .*:
    # opCount'
    [
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", 133, 32, 0),
        ("nccl/torn_lines.out", 0, 0, 254),
    ],
)
def test_log_gives_first_checkpoint_and_nccl_lines(
    name: str, load: int, save: int, nccl: int
) -> None:
    log = read_log(shared(f"logs/{name}"))
    assert (log.checkpoints.load_line, log.checkpoints.save_line, log.nccl_line) == (
        load,
        save,
        nccl,
    )


@pytest.mark.parametrize(
    ("name", "started"),
    [  # grep -nE -m1 '20[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}'
        ("nemo1/carriage_returns.out", "2025-06-11 05:11:24"),
        ("nemo2/resiliency_five_runs.out", "2025-03-07 22:33:41"),
        ("maxtext/cpu_2024_12_50_steps.out", "2026-11-20 22:34:02.785000"),
        ("maxtext/nan_loss.out", "None"),
    ],
)
def test_log_starts_at_first_timestamp(name: str, started: str) -> None:
    assert str(read_log(shared(f"logs/{name}")).started) == started


def test_every_shared_log_has_an_expected_step_count() -> None:
    root: Path = shared("logs")
    kinds = ("nemo1", "nemo2", "maxtext", "megatron", "megatron_bridge", "torchtitan")
    names = {
        path.relative_to(root).as_posix()
        for kind in kinds
        for path in (root / kind).iterdir()
    }
    without_steps = {"megatron/2624217.out", "megatron/3108456.err"}
    assert names - without_steps == {name for name, _ in COUNTS}


@pytest.mark.parametrize(
    ("name", "segments", "seconds", "losses"),
    [
        # grep -c 'iteration .*elapsed time': 5, every tenth, of two starts
        (
            "gptneox_stdout.txt",
            ["10-40: 4 of 11000", "10-10: 1 of 11000"],
            [1.5547, 1.2922, 1.2967, 1.2927, 1.5468],
            [10.8085, 8.854041, 7.819771, 7.652811, 10.80844],
        ),
        # 260/260 in the bar after it, 158.8 s
        (
            "axolotl_final_excerpt.log",
            ["260-260: 1 of 260, finished"],
            [158.8 / 260],
            [1.567],
        ),
        # each rank prints a record of two steps (273.01 s, 0.007/s), in lines 1567 to
        # 1582; none prints a loss
        (
            "hf_trainer_deepspeed_console.out",
            ["2-2: 1 of 2, finished"],
            [273.0148 / 2],
            [math.nan],
        ),
        # 857595.0988 s and "step": 2178 in the last record; 0.003 steps per second
        # would give 2573 steps
        (
            "hf_trainer_state_llamafactory.json",
            ["2178-2178: 1 of 2178, finished"],
            [857595.0988 / 2178],
            [1.9950996404180186],
        ),
    ],
)
def test_logs_of_2026_give_expected_steps(
    name: str, segments: list[str], seconds: list[float], losses: list[float]
) -> None:
    log = read_log(shared(f"logs/today/{name}"))
    assert describe_segments(log) == segments
    assert np.concatenate(
        [segment.steps.seconds for segment in log.segments]
    ).tolist() == pytest.approx(seconds)
    assert np.concatenate(
        [segment.steps.loss for segment in log.segments]
    ).tolist() == pytest.approx(losses, nan_ok=True)
    assert "torn" not in {record.reason for record in log.dropped}
