"""Verdicts on real logs of twelve frameworks: recorded, next day, 8 % slower and 12 %
slower.

    python -m benchmarks.statistics.nights

Prints a table of verdicts, wall times and the output of the two commands, in the order
of `LOGS`. Needs the logs in ../shared/logs, from which the days are made
(tests/support/next_day.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from speed.environment import ENVIRONMENT
from support.next_day import make_next_day, rename

SHARED = Path(__file__).resolve().parents[3] / "shared" / "logs"
LOGS = {
    "Megatron-LM": ("megatron/2624605.out", "gdn/slurm-2624605.out"),
    "Megatron-Bridge": (
        "megatron_bridge/llama_20_iterations.out",
        "mbridge/llama/out1.log",
    ),
    "NeMo 2": ("nemo2/geneformer_500_steps.out", "geneformer/slurm-881234.out"),
    "torchtitan": ("torchtitan/four_runs_excerpt.out", "titan/llama3/slurm-881235.out"),
    "MaxText": ("maxtext/llama2_commented_excerpt.out", "maxtext/run_1/train.log"),
    "Primus": ("megatron/primus_instant_average.out", "primus/train.log"),
    "LLaMA-Factory": (
        "today/llamafactory_trainer_log.jsonl",
        "factory/trainer_log.jsonl",
    ),
    "ms-swift": ("today/msswift_logging.jsonl", "swift/logging.jsonl"),
    "MLPerf": ("today/mlperf51_llama31_8b_dell.txt", "dell/result_0.txt"),
    "DeepSpeed": ("today/deepspeed_chat_reward.log", "reward/training.log"),
    "NeMo 1": (
        "nemo1/stale_bars_dllogger.out",
        "qwen3/qwen3-30b-32gpu-tp1-pp1-cp1-vp1-ep8-gbs256-mbs4.log",
    ),
    "torchtitan, CPU": (
        "torchtitan/cpu_0_3_0_50_steps.out",
        "titan/debug/2026-11-20/train.log",
    ),
    "Axolotl": ("today/axolotl_final_excerpt.log", "axolotl/train.log"),
}
COMMANDS = (
    "pytest --llmb-logs=experiments/ --llmb-record=own",
    "pytest --llmb-logs=experiments/ --llmb-baselines=own",
)
NIGHTS = (1.0, 1.0, 1.08, 1.12)
"""How much slower the steps of each night are; the first one is recorded."""


def judge(project: Path, command: str) -> tuple[str, str, float]:
    """Return the verdict of a session's only run, True if it failed, and the session's
    seconds."""
    words = [*command.split()[1:], "--llmb-json=out.json"]
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=project,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    took = time.perf_counter() - began
    outcomes = json.loads((project / "out.json").read_text())["outcomes"]
    (run,) = (
        each
        for each in outcomes
        if each["kind"] != "check" and each["verdict"] != "MISSING"
    )
    return run["verdict"], "red" if run["status"] == "failed" else "green", took


def judge_nights(project: Path, log: str, name: str) -> list[tuple[str, str, float]]:
    """Return the result of each day's run, which is alone in the folder."""
    text = (SHARED / log).read_text(encoding="utf-8", errors="surrogateescape")
    found = []
    for days, slower in enumerate(NIGHTS):
        place = project.joinpath(
            "experiments", *(rename(part, days) for part in name.split("/"))
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        changed = make_next_day(text, slower, days) if days else text
        place.write_text(changed, encoding="utf-8", errors="surrogateescape")
        found.append(judge(project, COMMANDS[min(days, 1)]))
        place.unlink()
    return found


def main() -> None:
    """Print the table."""
    print(f"words: {' + '.join(str(len(command.split())) for command in COMMANDS)}")
    print(
        "| framework | log | night 1 | night 2 | 8 % slower | 12 % slower | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for framework, (log, name) in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = judge_nights(Path(folder), log, name)
        verdicts = [
            found[0][0],
            *(
                verdict if color == "green" else f"{verdict}, red"
                for verdict, color, _ in found[1:]
            ),
        ]
        cells = [
            framework,
            f"`{log}`",
            *verdicts,
            ", ".join(f"{took:.1f}" for *_, took in found),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
