"""`llmbench summary` and the gate say the same of a run: examples, real logs, and logs that were damaged."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import BASELINE
from generator import write_run
from generator.__main__ import shipped
from shared_data import shared

from pytest_llmbench.cli.main import main
from pytest_llmbench.cli.summary import make_rows
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.models import JUDGED, Baseline, Identity, Judgement, Key, Reason, Run, Steps, Verdict, Window
from pytest_llmbench.pipeline.catalog import Catalog, load
from pytest_llmbench.pipeline.evaluate import evaluate_runs
from pytest_llmbench.pipeline.find_runs import IngestedRuns, ingest
from pytest_llmbench.pipeline.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "experiments"

STARTED = datetime(2025, 11, 20, tzinfo=UTC)

CONFIGURATIONS = (
    "grok1_314b-24.11-h100-bf16-512",
    "maxtext_llama2_70b-24.11-h100-bf16-64",
    "llama3.1_8b-25.04-h100-bf16-8",
    "grok1_314b-25.05-gb200-bf16-128",
)
"""One of each format of a log: NeMo 1, MaxText, NeMo 2 without and with TFLOP/s."""

TIME = re.compile(r"((?:train_step_timing in s|seconds)[=:] ?)[0-9.e+-]+")
LOSS = re.compile(r"(loss[=:] ?)[0-9.]+")


def timed(value: str, *steps: int) -> Callable[[list[str]], list[str]]:
    """Return what prints another time for the steps of these numbers."""
    return lambda lines: [TIME.sub(rf"\g<1>{value}", line) if step_of(line) in steps else line for line in lines]


def losing(value: str, *steps: int) -> Callable[[list[str]], list[str]]:
    """Return what prints another loss for the steps of these numbers."""
    return lambda lines: [LOSS.sub(rf"\g<1>{value}", line) if step_of(line) in steps else line for line in lines]


def slower(factor: float) -> Callable[[list[str]], list[str]]:
    """Return what prints all times longer."""

    def longer(found: re.Match[str]) -> str:
        return f"{found[1]}{float(found[0].removeprefix(found[1])) * factor:.5g}"

    return lambda lines: [TIME.sub(longer, line) for line in lines]


def without(*steps: int) -> Callable[[list[str]], list[str]]:
    """Return what leaves these steps out."""
    return lambda lines: [line for line in lines if step_of(line) not in steps]


def step_of(line: str) -> int | None:
    """Return the number of the step of a line, None where it is of none."""
    if not TIME.search(line):
        return None
    found = re.search(r"(?:global_step[=:] ?|completed step: )(\d+)", line)
    return int(found[1]) if found else None


def up_to(step: int) -> Callable[[list[str]], list[str]]:
    """Return what cuts a log off behind a step."""
    return lambda lines: lines[: 1 + next(place for place, line in enumerate(lines) if step_of(line) == step)]


DAMAGES: dict[str, Callable[[list[str]], list[str]]] = {
    "whole": lambda lines: lines,
    "slower": slower(1.2),
    "faster": slower(0.93),
    "zero time in the window": timed("0.000", 20),
    "zero time before the window": timed("0.000", 3),
    "NaN time in the window": timed("nan", 20),
    "NaN time behind the window": timed("nan", 47),
    "infinite time": timed("inf", 30),
    "negative time": timed("-7.0", 30),
    "a time below 100 % MFU": timed("0.010", 30),
    "milliseconds": slower(1000.0),
    "NaN loss in the window": losing("nan", 30),
    "NaN loss in the last step": losing("nan", 49),
    "NaN loss in the first step": losing("nan", 0),
    "one step lost": without(25),
    "a step behind the window lost": without(46),
    "the last step lost": without(49),
    "the window lost": without(*range(11, 45)),
    "cut at 5": up_to(5),
    "cut at 30": up_to(30),
    "cut at 48": up_to(48),
    "no step": without(*range(50)),
    "started again, and dead": lambda lines: [*lines, *up_to(6)(lines)],
    "another batch": lambda lines: [re.sub(r"(global_batch_size: |total_weights: )\d+", r"\g<1>77", x) for x in lines],
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs: every damage done to a log of every format."""
    root, baselines = tmp_path_factory.mktemp("damaged"), shipped()
    names = [(name, damage) for name in CONFIGURATIONS for damage in DAMAGES]
    for number, (name, damage) in enumerate(names):
        started = STARTED + timedelta(hours=number)
        log = write_run(root, baselines[name], job_id=str(3_000_000 + number), started=started, noise=0.003)
        lines = re.split(r"(?<=[\r\n])", log.read_text())
        ended = log.stat().st_mtime
        log.write_text("".join(DAMAGES[damage](lines)), newline="")
        os.utime(log, (ended, ended))  # one that was written minutes ago may still be growing
    return root


def judged(found: IngestedRuns, settings: Settings, catalog: Catalog, now: datetime) -> dict[str, Judgement]:
    """Return the gate's verdict on each run, by its id."""
    results = evaluate_runs(found, settings, catalog, now)
    return {result.case.run_id: result.judgement for result in results.configurations.values() if result.case.run_id}


def in_words(judgement: Judgement) -> str:
    """Return the status that a verdict has to have in the summary; without a baseline a run may still be whole."""
    if judgement.verdict in JUDGED or judgement.reason is Reason.NO_BASELINE:
        return "Success"
    return judgement.reason.replace("-", " ").capitalize()


def of_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], dict[str, Judgement]]:
    """Return what the summary and the gate say of the runs in a folder, by their ids."""
    settings = Settings(logs=(folder,), runs="each")
    catalog, now = load(settings), datetime.now(UTC)
    verdicts = judged(ingest(settings, catalog, now), settings, catalog, now)
    assert main(["summary", str(folder), "--format", "csv"]) == 0
    listed = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {row["run"]: row["status"].partition(":")[0] for row in listed}, verdicts


@pytest.mark.slow
def test_the_summary_of_the_examples_says_what_the_gate_says(capsys: pytest.CaptureFixture[str]) -> None:
    statuses, verdicts = of_folder(EXAMPLES, capsys)
    assert len(verdicts) == 37
    assert {name: statuses[name] for name in verdicts} == {name: in_words(one) for name, one in verdicts.items()}


@pytest.mark.slow
def test_the_summary_of_damaged_logs_says_what_the_gate_says(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses, verdicts = of_folder(damaged, capsys)
    assert len(verdicts) == len(CONFIGURATIONS) * len(DAMAGES)
    assert {name: statuses[name] for name in verdicts} == {name: in_words(one) for name, one in verdicts.items()}
    reasons = {one.reason for one in verdicts.values() if one.verdict is Verdict.INVALID}
    assert reasons >= {
        *(Reason.DIVERGED, Reason.INCOMPLETE, Reason.IMPOSSIBLE_SAMPLE, Reason.WINDOW_INCOMPLETE),
        *(Reason.NO_STEPS, Reason.WRONG_CONFIGURATION),
    }
    assert sum(one.verdict in JUDGED for one in verdicts.values()) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("window", [Window(11, 44), Window(5, 9), Window(1, 2)], ids=str)
def test_the_summary_of_real_logs_says_what_the_gate_says(window: Window) -> None:
    """Each log as a run of a configuration of its own, so that the gate judges it."""
    settings = Settings(logs=(shared("logs"),), runs="each")
    catalog, now = load(settings), datetime.now(UTC)
    found = ingest(settings, catalog, now)
    pairs = [of_own_configuration(run, number, window) for number, run in enumerate(found.runs)]
    known = replace(found, runs=tuple(run for run, _ in pairs))
    own = replace(catalog, baselines={baseline.key: (baseline,) for _, baseline in pairs})
    verdicts = judged(known, settings, own, now)
    listed = {row.run: row.status.partition(":")[0] for row in make_rows(known, own, None, now)}
    assert len(verdicts) == len(found.runs) > 30
    assert {name: listed[name] for name in verdicts} == {name: in_words(one) for name, one in verdicts.items()}
    assert any(one.verdict in JUDGED for one in verdicts.values())


def of_own_configuration(run: Run, number: int, window: Window) -> tuple[Run, Baseline]:
    """Return a run as one of a configuration that its log does not contradict, and the baseline of that."""
    steps = next((part.steps for one in reversed(run.attempts) for part in reversed(one.log.segments)), None)
    key = Key("real", f"log{number}", "1", "h100", "bf16", 8)
    dialect = next((one.log.dialect for one in run.attempts if one.log.dialect), "nemo2")
    baseline = replace(
        BASELINE,
        configuration=replace(BASELINE.configuration, key=key, **batch_of(steps)),
        window=window,
        steps=50 if window.last > 40 else window.last + 1,
        peak_tflops=float("nan"),
        dialect=dialect,
    )
    work = np.nan if steps is None else middle(steps.tflops_per_gpu * steps.seconds)
    factor = None if np.isnan(work) else work / metric_definitions.compute_tflops_per_gpu(baseline.configuration, 1.0)
    return replace(run, identity=Identity(key, "as told")), replace(baseline, logged_tflops_factor=factor)


def batch_of(steps: Steps | None) -> dict[str, Any]:
    """Return the batch size and the model that a log speaks of."""
    if steps is None:
        return {}
    batch = middle(steps.global_batch_size)
    size = 256 if np.isnan(batch) else int(batch)
    tokens = middle(steps.tokens_per_second_per_gpu * steps.seconds) * 8 / size
    length = 8192 if np.isnan(tokens) else max(round(tokens), 1)
    architecture = replace(BASELINE.configuration.architecture, sequence_length=length)
    return {"global_batch_size": size, "architecture": architecture}


def middle(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the median of the finite values, NaN without any."""
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else float("nan")


def of_logs(*parts: str) -> Iterator[dict[str, str]]:
    """Yield the rows of real logs of no known configuration, as they read tomorrow.

    Where the logs were copied minutes ago, a run that stopped half-way would count as still running today.
    """
    settings = Settings(logs=tuple(shared(f"logs/{part}") for part in parts))
    catalog, now = load(settings), datetime.now(UTC) + timedelta(days=1)
    for row in make_rows(ingest(settings, catalog, now), catalog, None, now):
        yield {"status": row.status, "window": row.window, "from": row.window_from, "mean": f"{row.time_mean_s:.6g}"}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("nemo1/carriage_returns.out", {"status": "Success", "window": "10-19", "from": "last-half"}),
        ("torchtitan/mfu_not_available.out", {"status": "Success", "window": "6-10", "from": "last-half"}),
        ("megatron_bridge/llama_20_iterations.out", {"status": "Success", "window": "11-20", "from": "last-half"}),
        ("nemo2/geneformer_500_steps.out", {"status": "Success", "window": "11-44", "from": "default"}),
        ("maxtext/nan_loss.out", {"status": "Diverged", "window": "11-44", "from": "default"}),
        ("megatron/1861140.out", {"status": "Incomplete", "window": "11-44", "from": "default"}),
    ],
)
def test_a_run_without_a_baseline_is_whole_by_its_own_total_and_has_a_time(log: str, expected: dict[str, str]) -> None:
    (row,) = of_logs(log)
    assert {name: row[name] for name in expected} == expected
    assert float(row["mean"]) > 0
