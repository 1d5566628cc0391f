"""Seeds for fuzzing logs: small generated logs, and the texts that readers search for."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache

from generator import lines
from generator.metadata import LAUNCHERS, metadata_text
from generator.plan import Plan
from generator.runs import default_job
from support.log_strategies import FRAMEWORKS, write

from pytest_llmbench.baseline.read import (
    find_baseline_files,
    list_shipped_baselines,
    read_recipe,
)
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.logs.log_collector import STEP_MARKERS
from pytest_llmbench.logs.recognisers import TRACE

MOMENT = datetime(2026, 5, 4, 6, 5, 54, tzinfo=UTC)


# What the definitions that ship read, a line each, and a state of Trainer.
SHIPPED_LINES = (
    "step    2/32000 | loss 10.53 (+nanz)| norm 43.5 (+nanz)| lr 1.71e-06 | 2747.19 ms | 47.4% bf16 MFU | 381690 tok/s",
    "step 00001/200000 (0.00%) | loss: 8.96 | lrm: 0.03 | dt: 1343.33ms | tok/sec: 12,196 | bf16_mfu: 0.00 | epoch: 1",
    "step:1/1670 train_time:380ms step_avg:380.20ms",
    "step:2/1670 train_time:402ms step_avg:201.05ms",
    "(TaskRunner pid=12) step:3 - actor/entropy:0.36 - timing_s/step:161.07 - perf/throughput:413.3",
    "[2023-04-18 03:36:02,683] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, "
    "RunningAvgSamplesPerSec=265.3, CurrSamplesPerSec=265.4, MemAllocated=4.34GB, MaxMemAllocated=12.81GB",
    '{"epoch": 1.0, "step": 2178, "train_loss": 1.9, "train_runtime": 857595.0988, "train_steps_per_second": 0.003}',
)


@cache
def logs() -> list[bytes]:
    """Return a log of each framework, one with two ranks and restarts, and one with all
    other lines."""
    simple = [
        write(framework, first=1, lengths=(4,), prefixes=("",), starts=False, seed=3)
        for framework in FRAMEWORKS.values()
    ]
    ranks = [write(framework, first=1, lengths=(4, 5), prefixes=framework.prefixes[-1], starts=True, seed=4)
             for framework in FRAMEWORKS.values()]  # fmt: skip
    around = [
        lines.checkpoint_load(MOMENT, 1744407969.27, 9.712),
        lines.checkpoint_save(MOMENT, 50, 1744408121.151, 4.389),
        lines.nccl_collective(7, "AllReduce", 2, 1, 128),
        lines.fit_stopped(50),
        lines.huggingface_summary(2577.7505, 95.339, 0.745, 1.5),
        lines.slurm_cancelled("1999616", "r6i4n5", MOMENT, "TIME LIMIT"),
        "srun: error: node-1: task 3: Exited with exit code 1",
        "0: Traceback (most recent call last):\n0:   File 'a.py', line 1\n0: ValueError: no",
    ]
    shipped = "\n".join([*SHIPPED_LINES, lines.trainer_record(3, 4, 30.0, 2.5), ""])
    return [
        *(each.data for each in simple + ranks),
        "\n".join([*around, ""]).encode(),
        shipped.encode(),
    ]


@cache
def records() -> list[bytes]:
    """Return metadata as launchers write it."""
    recipes = [
        read_recipe(path) for path in find_baseline_files(list_shipped_baselines())
    ]
    plans = (
        Plan(recipe.baselines[0], **default_job(recipe.baselines[0]))
        for recipe in recipes
    )
    return [
        metadata_text(plan).encode() for plan in plans if plan.layout_name in LAUNCHERS
    ]


def list_words() -> list[bytes]:
    """Return the texts that log readers search for."""
    marks = [
        mark
        for dialect in DIALECTS.values()
        for mark in (*dialect.starts, *dialect.ends)
    ]
    return list(
        dict.fromkeys(
            [*STEP_MARKERS, *marks, *ENDING_MARKERS, *TRACE.markers, *_list_fields()]
        )
    )


def _list_fields() -> list[bytes]:
    """Return field names with the characters around them, taken from the logs."""
    text = b"".join(logs())
    return sorted(
        {
            match[0]
            for match in re.finditer(
                rb"[A-Za-z_][A-Za-z_/ ]{2,30} ?[:=] ?| \| |\]|\r|e\+", text
            )
        }
    )
