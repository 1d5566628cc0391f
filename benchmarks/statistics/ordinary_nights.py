"""False alarms in a month of ordinary days, with evaluations, saves, restarts and other
log levels.

    python -m benchmarks.statistics.ordinary_nights --months 2
        [--pytest /other/checkout/.venv/bin/pytest]

A fleet has 40 configurations of six frameworks, recorded from the runs of three days.
Nothing becomes slower. Each day every run differs by 0.7 % from the others, and one in
twenty is restarted, prints no arguments or more of them, or has a stalled step. Each
failed item is a false alarm. `--pytest` judges the same days with another version.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.own_runs import (
    ARGUMENTS,
    OwnRun,
    deepspeed,
    maxtext,
    megatron,
    nanotron,
    titan,
    trainer,
    write,
)

if TYPE_CHECKING:
    from support.own_runs import Text

FRAMEWORKS: tuple[Text, ...] = (
    megatron,
    megatron,
    megatron,
    titan,
    titan,
    maxtext,
    trainer,
    nanotron,
    deepspeed,
    megatron,
)
CONFIGURATIONS = 40
NIGHTS = 30
RECORDED = 3
RARE = 0.05
STALL = 0.02
"""The share of the whole run that a stalled step costs at most: more than the tolerance
is no ordinary night."""
BETWEEN = 0.007
"""How much the logarithm of a run's step time differs from run to run."""


@dataclass(frozen=True)
class Configuration:
    """The constants of a configuration: framework, step time, and intervals of
    evaluation and saving."""

    name: str
    framework: Text
    seconds: float
    steps: int
    evaluates: int
    saves: int


def draw_fleet(random: Random) -> list[Configuration]:
    """Draw the configurations of a fleet."""
    fleet = []
    for number in range(CONFIGURATIONS):
        framework = FRAMEWORKS[number % len(FRAMEWORKS)]
        fleet.append(
            Configuration(
                name=f"model-{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}",
                framework=framework,
                seconds=random.choice((0.4, 1.1, 2.0, 6.5, 18.0)),
                steps=random.choice((60, 100, 200, 400))
                if framework is not trainer
                else 300,
                evaluates=random.choice((0, 20, 50)) if framework is megatron else 0,
                saves=random.choice((0, 0, 50)) if framework is megatron else 0,
            )
        )
    return fleet


def draw_night(configuration: Configuration, start: datetime, random: Random) -> OwnRun:
    """Draw one day's run of a configuration."""
    seconds = configuration.seconds * 2.718281828 ** random.gauss(0, BETWEEN)
    run = OwnRun(
        seconds=seconds,
        steps=configuration.steps,
        seed=random.randrange(10**9),
        start=start,
    )
    gaps: dict[int, float] = {}
    lines: dict[int, str] = {}
    for every, text, longest in (
        (
            configuration.evaluates,
            " validation loss at iteration {} on validation set | lm loss value: 5.1E+00 |\n",
            60.0,
        ),
        (
            configuration.saves,
            "saving checkpoint at iteration {:7d} to /scratch/ckpt in torch_dist format\n",
            90.0,
        ),
    ):
        for step in range(every, run.steps, every) if every else ():
            gaps[step + 1] = (
                gaps.get(step + 1, 0.0) + random.uniform(0.3, 1.0) * longest
            )
            lines[step + 1] = lines.get(step + 1, "") + text.format(step)
    run = replace(run, gaps=gaps, lines=lines)
    if random.random() < RARE:
        run = replace(run, dump=False)
    if random.random() < RARE:
        run = replace(
            run,
            arguments={
                **ARGUMENTS,
                **{f"option_{number}": number for number in range(40)},
            },
        )
    if random.random() < RARE:
        stalled = random.randrange(2, run.steps)
        factor = 1 + random.uniform(0.2, 1.0) * STALL * run.steps
        run = replace(run, slower=lambda step: factor if step == stalled else 1.0)
    return run


def write_night(
    folder: Path, fleet: list[Configuration], night: int, random: Random
) -> None:
    """Write the runs of one day."""
    for number, configuration in enumerate(fleet):
        start = datetime.fromisoformat("2026-03-01T02:00:00+00:00") + timedelta(
            days=night, minutes=number
        )
        run = draw_night(configuration, start, random)
        path = write(
            folder,
            configuration.name,
            configuration.framework,
            run,
            10_000 + 100 * night + number,
        )
        if configuration.framework is megatron and random.random() < RARE:
            begun = "".join(
                path.read_text().splitlines(keepends=True)[: 60 if run.dump else 20]
            )
            again = megatron(replace(run, start=start + timedelta(minutes=20)))
            path.write_text(
                f"{begun}[torchrun] worker group failed, restarting 1/3\n{again}"
            )


def judge_month(program: str, seed: int) -> Counter[str]:
    """Return the reasons of all failed items of a month, with their numbers."""
    random, red = Random(seed), Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="llmb-ordinary-"))
    fleet = draw_fleet(random)
    for day in range(RECORDED):
        write_night(folder / "recorded", fleet, day, random)
    common = [
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "--llmb-no-cache",
        "--llmb-history=h.db",
    ]
    recording = [
        program,
        "-q",
        "-p",
        "no:cacheprovider",
        "--llmb-logs=recorded",
        "--llmb-record=own",
    ]
    subprocess.run(recording, cwd=folder, capture_output=True, check=True)
    for day in range(RECORDED, RECORDED + NIGHTS):
        shutil.rmtree(folder / "night", ignore_errors=True)
        write_night(folder / "night", fleet, day, random)
        command = [
            program,
            *common,
            "--llmb-logs=night",
            "--llmb-baselines=own",
            "--llmb-json=out.json",
        ]
        subprocess.run(command, cwd=folder, capture_output=True, check=False)
        for outcome in json.loads((folder / "out.json").read_text())["outcomes"]:
            if outcome["status"] == "failed":
                red[f"{outcome.get('verdict')} {outcome.get('reason')}"] += 1
    shutil.rmtree(folder)
    return red


def main() -> None:
    """Print the false alarms of each month."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--months",
        type=int,
        default=1,
        metavar="N",
        help="Fleets (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="Of the first one (default: %(default)s)",
    )
    parser.add_argument(
        "--pytest",
        default=str(Path(sys.executable).parent / "pytest"),
        help="The pytest that judges",
    )
    options = parser.parse_args()
    total = Counter[str]()
    for month in range(options.months):
        total += judge_month(options.pytest, options.seed + month)
    runs = options.months * CONFIGURATIONS * NIGHTS
    print(
        f"{total.total()} of {runs:,} ordinary runs are red, {total.total() / options.months:.1f} a fleet month"
    )
    for reason, count in total.most_common():
        print(f"  {count:4d}  {reason}")


if __name__ == "__main__":
    main()
