"""Real logs: every count was derived with grep, awk or by eye, as noted beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared

from pytest_llmbench.models import Steps
from pytest_llmbench.parse.read import read_log

# (file, [(first step, last step, steps, total, finished) of each segment])
COUNTS = [
    # grep -oE 'DLL [0-9-]+ [0-9:.]+ - [0-9]+ ' | sort -u: steps 0 to 19; bars say N/20;
    # grep -c 'Trainer.fit. stopped': 1
    ("nemo1/carriage_returns.out", [(0, 19, 20, 20, True)]),
    # the same commands, the same counts
    ("nemo1/stale_bars_dllogger.out", [(0, 19, 20, 20, True)]),
    # grep -c 'Training epoch': 5; global_step 19, 29, 45, 46, 48; epochs 1 and 2 only, so that N/999 is no total
    ("nemo2/awsome_ray_prefix_excerpt.out", [(19, 48, 5, None, False)]),
    # grep -c 'Training epoch': 100, N/99; no end mark, but step 99 of 100
    ("nemo2/evo2_slow_after_checkpoint_excerpt.out", [(0, 99, 100, 100, True)]),
    # grep -c 'Training epoch': 500, N/499; grep -c 'Trainer.fit. stopped': 1
    ("nemo2/geneformer_500_steps.out", [(0, 499, 500, 500, True)]),
    # wc -l: 3, iterations 74 to 76 of N/99
    ("nemo2/memory_tflops_excerpt.out", [(74, 76, 3, 100, False)]),
    # wc -l: 5, iterations 45 to 49 of N/99
    ("nemo2/nemo2__tflops_memory_sci__doc39769813321.out", [(45, 49, 5, 100, False)]),
    # grep -nE 'Training epoch|Trainer.fit|restart_count' and by eye: five runs, the second one restarts at step 10
    # after a crash at 15; 85 lines, N/19; end marks in lines 237, 1030 and 1555
    (
        "nemo2/resiliency_five_runs.out",
        [
            (0, 19, 20, 20, True),
            (0, 15, 16, 20, False),
            (10, 19, 10, 20, True),
            (0, 15, 16, 20, False),
            (0, 19, 20, 20, True),
            (0, 2, 3, 20, False),
        ],
    ),
    # by eye: steps 0 to 9, then 9, 8 and 9 once more (quoted again in the document)
    ("maxtext/async_dispatch_excerpt.out", [(0, 9, 10, None, False)]),
    # grep -c 'completed step': 50; grep 'Config param steps:': 50
    ("maxtext/cpu_2024_12_50_steps.out", [(0, 49, 50, 50, True)]),
    # grep -c 'completed step': 30, no configuration
    ("maxtext/llama2_commented_excerpt.out", [(0, 29, 30, None, False)]),
    # by eye: one line each of seven logs, steps 9 49 | 1 99 | 5 18 | 0
    (
        "maxtext/maxtext__dialects_one_each.out",
        [(9, 49, 2, None, False), (1, 99, 2, None, False), (5, 18, 2, None, False), (0, 0, 1, None, False)],
    ),
    # grep -c 'completed step': 50; grep 'Config param steps:': 50
    ("maxtext/nan_loss.out", [(0, 49, 50, 50, True)]),
]

# what is dropped: (file, {reason: count})
DROPPED = {
    # grep -o 'global_step=' | wc -l: 41 bars with values, and 20 DLLogger records that win over them
    "nemo1/carriage_returns.out": {"repeated": 41},
    "nemo1/stale_bars_dllogger.out": {"repeated": 41},
    "maxtext/async_dispatch_excerpt.out": {"repeated": 3},
}


@pytest.mark.parametrize(("name", "segments"), COUNTS)
def test_steps_and_segments(name: str, segments: list[tuple[int, int, int, int | None, bool]]) -> None:
    log = read_log(shared(f"logs/{name}"))
    found = [
        (int(part.steps.index[0]), int(part.steps.index[-1]), len(part.steps), part.total_steps, part.finished)
        for part in log.segments
    ]
    assert found == segments
    assert log.dialect == name.partition("/")[0]
    assert {each.reason: each.count for each in log.dropped} == DROPPED.get(name, {})


def test_every_nemo2_log_of_the_launchers_tree() -> None:
    """grep -rc 'Training epoch': 50 in eight files, N/49, and the end mark in each; 0 in all others."""
    root = shared("logs/llmb_install")
    logs = {path: read_log(path) for path in root.rglob("*.out")}
    trained = {path: log for path, log in logs.items() if log.segments}
    assert sorted(path.name for path in trained) == [
        "log-fakecfg_3_0.out",
        "log-fakecfg_5_0.out",
        "log-fakecfg_6_0.out",
        "log-fakecfg_7_0.out",
        "log-fakecfg_8_0.out",
        "log-root-root.pretrain_faketrain_8b_bf16_1nodes_15_0.out",
        "log-root-root.pretrain_faketrain_8b_bf16_2nodes_2_0.out",
        "slurm-4.out",
    ]
    for log in trained.values():
        (segment,) = log.segments
        assert (len(segment.steps), segment.total_steps, segment.finished) == (50, 50, True)
        assert log.dropped == ()
        assert log.ending is None
    failed = next(log for path, log in logs.items() if path.name == "slurm-11.out")
    assert failed.ending is not None
    assert failed.ending.code == "task-failure"


@pytest.mark.parametrize(
    "name",
    ["megatron/1861140.out", "megatron/2624217.out", "megatron_bridge/llama_20_iterations.out", "nccl/torn_lines.out",
     "torchtitan/resumed_killed.out", "torchtitan/two_ranks_print.out", "slurm/time_limit.out"],
)  # fmt: skip
def test_logs_of_other_dialects_have_no_steps(name: str) -> None:
    log = read_log(shared(f"logs/{name}"))
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


def row(name: str, segment: int, step: int) -> tuple[Steps, int]:
    steps = read_log(shared(f"logs/{name}")).segments[segment].steps
    return steps, int(np.flatnonzero(steps.index == step)[0])


@pytest.mark.parametrize(
    ("name", "place", "line", "seconds", "unit"),  # place: segment and step
    [  # sed -n LINEp FILE
        ("nemo1/carriage_returns.out", (0, 0), 1226, 52.33449459075928, 0.0),
        ("nemo1/carriage_returns.out", (0, 1), 1227, 39.897690176963806, 0.0),
        ("nemo1/stale_bars_dllogger.out", (0, 1), 2984, 11.282238841056824, 0.0),
        ("nemo1/stale_bars_dllogger.out", (0, 19), 3038, 2.022152042388916, 0.0),
        ("nemo2/awsome_ray_prefix_excerpt.out", (0, 19), 2, 46.86, 0.01),
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", (0, 1), 139, 2.262, 0.001),
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", (0, 98), 278, 0.24, 0.0001),
        ("nemo2/geneformer_500_steps.out", (0, 100), 458, 0.1193, 0.0001),
        ("nemo2/nemo2__tflops_memory_sci__doc39769813321.out", (0, 45), 1, 6.08, 0.001),
        ("nemo2/resiliency_five_runs.out", (1, 10), 408, 7.589, 0.001),
        ("nemo2/resiliency_five_runs.out", (2, 10), 1018, 10.26, 0.01),
        ("nemo2/resiliency_five_runs.out", (4, 19), 1553, 7.73, 0.001),
        ("maxtext/async_dispatch_excerpt.out", (0, 1), 2, 0.319, 0.001),
        ("maxtext/async_dispatch_excerpt.out", (0, 8), 9, 5.668, 0.001),
        ("maxtext/cpu_2024_12_50_steps.out", (0, 0), 310, 1.768, 0.001),
        ("maxtext/llama2_commented_excerpt.out", (0, 1), 3, 176.734, 0.001),
        ("maxtext/nan_loss.out", (0, 26), 823, 0.427, 0.001),
    ],
)
def test_single_values(name: str, place: tuple[int, int], line: int, seconds: float, unit: float) -> None:
    steps, at = row(name, *place)
    assert steps.seconds[at] == seconds
    assert steps.line[at] == line
    assert steps.resolution_seconds[at] == pytest.approx(unit)


def test_other_columns() -> None:
    steps, place = row("nemo1/carriage_returns.out", 0, 1)
    assert steps.loss[place] == 12.948076248168945
    assert steps.grad_norm[place] == 15.121691703796387
    assert (steps.global_batch_size == 512).all()
    steps, _ = row("nemo1/stale_bars_dllogger.out", 0, 1)
    assert (steps.global_batch_size == 256).all()
    assert not steps.has_grad_norm.any()
    steps, place = row("nemo2/nemo2__tflops_memory_sci__doc39769813321.out", 0, 45)
    assert (steps.tflops_per_gpu[place], steps.peak_memory_bytes[place]) == (1249, 115792977920)
    assert steps.global_batch_size[place] == 128
    steps, place = row("maxtext/maxtext__dialects_one_each.out", 0, 49)
    assert (steps.tflops_per_gpu[place], steps.tokens_per_second_per_gpu[place]) == (460.48, 1035.97)


def test_a_diverged_run_keeps_its_nan_losses() -> None:
    """grep -c 'loss: nan' maxtext/nan_loss.out: 41, from step 9 on."""
    steps, _ = row("maxtext/nan_loss.out", 0, 9)
    assert steps.has_loss.all()
    assert np.isnan(steps.loss).tolist() == [False] * 9 + [True] * 41


@pytest.mark.parametrize(
    ("name", "load", "save", "nccl"),
    [  # grep -n -m1 'Global Checkpoint Load', 'Global Checkpoint Save', 'NCCL INFO .*: opCount'
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", 133, 32, 0),
        ("nemo2/geneformer_500_steps.out", 0, 441, 0),
        ("nemo1/carriage_returns.out", 0, 0, 0),
        ("nccl/nccl_tests.out", 0, 0, 523),
        ("nccl/torn_lines.out", 0, 0, 254),
    ],
)
def test_facts(name: str, load: int, save: int, nccl: int) -> None:
    log = read_log(shared(f"logs/{name}"))
    assert (log.checkpoint_load_line, log.checkpoint_save_line, log.nccl_line) == (load, save, nccl)


@pytest.mark.parametrize(
    ("name", "started"),
    [  # grep -nE -m1 '20[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}'
        ("nemo1/carriage_returns.out", "2025-06-11 05:11:24"),
        ("nemo1/stale_bars_dllogger.out", "2025-06-23 17:59:37"),
        ("nemo2/awsome_ray_prefix_excerpt.out", "2025-05-22 20:08:53"),
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", "2025-06-18 15:55:18"),
        ("nemo2/geneformer_500_steps.out", "2025-05-21 01:45:41"),
        ("nemo2/memory_tflops_excerpt.out", "None"),
        ("nemo2/resiliency_five_runs.out", "2025-03-07 22:33:41"),
        ("maxtext/cpu_2024_12_50_steps.out", "2026-11-20 22:34:02.785000"),
        ("maxtext/nan_loss.out", "None"),
    ],
)
def test_starts(name: str, started: str) -> None:
    assert str(read_log(shared(f"logs/{name}")).started) == started


def test_the_examples_start_with_their_first_time() -> None:
    """grep -m1 the time: no example holds one that is not its own."""
    root = Path(__file__).parents[2] / "examples" / "experiments"
    logs = {path: read_log(path) for path in sorted(root.rglob("log-*.out"))}
    trained = {path: log for path, log in logs.items() if log.segments}
    assert len(trained) > 20
    for path, log in trained.items():
        first = re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", path.read_text(errors="replace"))
        assert log.started is not None
        assert first is not None
        assert f"{log.started:%Y-%m-%d %H:%M:%S}" == first[0], path


def test_a_recovered_crash_is_not_the_ending() -> None:
    """The crash of lines 415 to 869 was followed by finished runs; the last run was preempted in line 1729."""
    ending = read_log(shared("logs/nemo2/resiliency_five_runs.out")).ending
    assert ending is not None
    assert (ending.code, ending.line) == ("preempted", 1729)


def test_all_shared_logs_are_listed_here() -> None:
    root: Path = shared("logs")
    names = {
        path.relative_to(root).as_posix() for kind in ("nemo1", "nemo2", "maxtext") for path in (root / kind).iterdir()
    }
    assert names == {name for name, _ in COUNTS}
