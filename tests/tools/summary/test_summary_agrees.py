"""`llmbench summary` agrees with the gate: on examples, real logs and damaged logs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from generator import write_run
from generator.__main__ import shipped
from support.shared_data import shared

from pytest_llmbench.cli.main import main
from pytest_llmbench.core.codes import JUDGED, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.session.catalog import Catalog, load
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.draft_baselines import draft_baselines
from pytest_llmbench.session.evaluate import evaluate_runs
from pytest_llmbench.session.settings import Settings
from pytest_llmbench.tools.summary.summary_command import make_rows

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"

STARTED = datetime(2025, 11, 20, tzinfo=UTC)

CONFIGURATIONS = (
    "grok1_314b-24.11-h100-bf16-512",
    "maxtext_llama2_70b-24.11-h100-bf16-64",
    "llama3.1_8b-25.04-h100-bf16-8",
    "grok1_314b-25.05-gb200-bf16-128",
)
"""One of each format of a log: NeMo 1, MaxText, NeMo 2 without and with TFLOP/s."""

FIELDS = {
    "time": re.compile(r"((?:train_step_timing in s|seconds)[=:] ?)[0-9.e+-]+"),
    "loss": re.compile(r"(loss[=:] ?)[0-9.]+"),
    "batch": re.compile(r"((?:global_batch_size|total_weights): )\d+"),
}
EVERY = range(50)
DAMAGES: dict[str, tuple[str, str, Sequence[int]]] = {
    "whole": ("time", "", ()),
    "zero time in the window": ("time", "0.000", [20]),
    "NaN time in the window": ("time", "nan", [20]),
    "NaN time after the window": ("time", "nan", [47]),
    "negative time": ("time", "-7.0", [30]),
    "a time below 100 % MFU": ("time", "0.010", [30]),
    "a time of milliseconds": ("time", "9000.0", EVERY),
    "NaN loss in the window": ("loss", "nan", [30]),
    "NaN loss in the last step": ("loss", "nan", [49]),
    "one step lost": ("lost", "", [25]),
    "a step after the window lost": ("lost", "", [46]),
    "the last step lost": ("lost", "", [49]),
    "no step": ("lost", "", EVERY),
    "cut at 30": ("lost", "", range(31, 50)),
    "cut at 48": ("cut", "", [49]),
    "another batch": ("batch", "77", EVERY),
}
"""By name: the damaged field, its new value, and the damaged steps."""


def find_step(line: str) -> int | None:
    """Return the step number of a line, or None."""
    match = re.search(r"(?:global_step[=:] ?|completed step: )(\d+)", line)
    return int(match[1]) if match and FIELDS["time"].search(line) else None


def damage(text: str, field: str, value: str, steps: Sequence[int]) -> str:
    damaged = []
    for line in re.split(r"(?<=[\r\n])", text):
        if find_step(line) not in steps:
            damaged.append(line)
        elif field == "cut":
            break
        elif field != "lost":
            damaged.append(FIELDS[field].sub(rf"\g<1>{value}", line))
    return "".join(damaged)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with every damage in a log of every format."""
    root, baselines = tmp_path_factory.mktemp("damaged"), shipped()
    for number, (name, change) in enumerate(product(CONFIGURATIONS, DAMAGES.values())):
        started = STARTED + timedelta(hours=number)
        log = write_run(
            root,
            baselines[name],
            job_id=str(3_000_000 + number),
            started=started,
            noise=0.003,
        )
        ended = log.stat().st_mtime
        log.write_text(damage(log.read_text(), *change), newline="")
        os.utime(
            log, (ended, ended)
        )  # a log written minutes ago counts as still growing
    return root


def judge_runs(
    ingested: IngestedRuns, settings: Settings, catalog: Catalog, now: datetime
) -> dict[str, Judgement]:
    """Return the judgement of each run, by run id."""
    results = evaluate_runs(ingested, settings, catalog, now)
    return {
        result.case.run_id: result.judgement
        for result in results.configurations.values()
        if result.case.run_id
    }


def expected_status(judgement: Judgement) -> str:
    """Return the expected status in the summary; a run without baseline may succeed."""
    if judgement.verdict in JUDGED or judgement.reason is Reason.NO_BASELINE:
        return "Success"
    return judgement.reason.replace("-", " ").capitalize()


def summarize_and_judge(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, str], dict[str, Judgement]]:
    """Return the summary's statuses and the judgements of a folder, by run id."""
    settings = Settings(logs=(folder,), runs="each")
    catalog, now = load(settings), datetime.now(UTC)
    verdicts = judge_runs(ingest(settings, catalog, now), settings, catalog, now)
    assert main(["summary", str(folder), "--format", "csv"]) == 0
    listed = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {row["run"]: row["status"].partition(":")[0] for row in listed}, verdicts


@pytest.mark.slow
def test_summary_of_examples_agrees_with_the_gate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    statuses, verdicts = summarize_and_judge(EXAMPLES, capsys)
    assert len(verdicts) == 37
    assert {name: statuses[name] for name in verdicts} == {
        name: expected_status(judgement) for name, judgement in verdicts.items()
    }


@pytest.mark.slow
def test_summary_of_damaged_logs_agrees_with_the_gate(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses, verdicts = summarize_and_judge(damaged, capsys)
    assert len(verdicts) == len(CONFIGURATIONS) * len(DAMAGES)
    assert {name: statuses[name] for name in verdicts} == {
        name: expected_status(judgement) for name, judgement in verdicts.items()
    }
    reasons = {
        judgement.reason
        for judgement in verdicts.values()
        if judgement.verdict is Verdict.INVALID
    }
    assert reasons >= {
        *(
            Reason.DIVERGED,
            Reason.INCOMPLETE,
            Reason.IMPOSSIBLE_SAMPLE,
            Reason.WINDOW_INCOMPLETE,
        ),
        *(Reason.NO_STEPS, Reason.WRONG_CONFIGURATION),
    }
    assert sum(judgement.verdict in JUDGED for judgement in verdicts.values()) >= len(
        CONFIGURATIONS
    )


def summarize_logs(*names: str) -> Iterator[dict[str, str]]:
    """Yield the summary rows of real logs without a baseline, dated tomorrow.

    If the log files were written minutes ago, an incomplete run would count as still
    running today.
    """
    settings = Settings(logs=tuple(shared(f"logs/{name}") for name in names))
    catalog, now = load(settings), datetime.now(UTC) + timedelta(days=1)
    for row in make_rows(ingest(settings, catalog, now), catalog, None, now):
        yield {
            "status": row.status,
            "window": row.window,
            "from": row.window_from,
            "mean": f"{row.time_mean_s:.6g}",
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "nemo1/carriage_returns.out",
            {"status": "Success", "window": "10-19", "from": "last-half"},
        ),
        (
            "nemo2/geneformer_500_steps.out",
            {"status": "Success", "window": "250-499", "from": "last-half"},
        ),
        (
            "maxtext/nan_loss.out",
            {"status": "Diverged", "window": "11-44", "from": "default"},
        ),
        (
            "megatron/1861140.out",
            {"status": "Incomplete", "window": "173-344", "from": "last-half"},
        ),
    ],
)
def test_run_without_baseline_is_complete_at_its_printed_total_of_steps(
    log: str, expected: dict[str, str]
) -> None:
    (row,) = summarize_logs(log)
    assert {name: row[name] for name in expected} == expected
    assert float(row["mean"]) > 0


@pytest.mark.parametrize("every", [10, 50])
def test_summary_of_a_long_log_uses_the_window_of_a_recorded_baseline(
    tmp_path: Path, every: int
) -> None:
    """This includes logs of means over several steps, which the usual window splits."""
    lines = [
        {"current_steps": step, "total_steps": 600, "loss": 2 - step / 600}
        for step in range(every, 601, every)
    ]
    times = (
        {"elapsed_time": str(timedelta(seconds=3 * line["current_steps"]))}
        for line in lines
    )
    records = (
        json.dumps({**line, **time}) for line, time in zip(lines, times, strict=True)
    )
    (tmp_path / "trainer_log.jsonl").write_text("\n".join(records) + "\n")
    settings, now = Settings(logs=(tmp_path,)), datetime.now(UTC)
    catalog = load(settings)
    ingested = ingest(settings, catalog, now)
    (row,) = make_rows(ingested, catalog, None, now)
    (draft,) = draft_baselines(ingested.runs, settings, catalog).recipes
    window = draft.baselines[0].window
    assert (
        (row.status, row.window)
        == ("Success", f"{window.first}-{window.last}")
        == ("Success", "301-600")
    )
