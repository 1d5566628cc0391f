"""The choice of a job's log among standard output, standard error and metrics."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import BASELINE
from support.written_logs import maxtext as step_line

from pytest_llmbench.core.baseline_records import Baseline, Recipe, RunMatch
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = 24 * 3600


def make_maxtext_log(steps: int = 20, seconds: float = 2.0) -> str:
    """Return a MaxText console log with a time and a loss for each step."""
    return "".join(
        step_line(step, f"{seconds + step / 1000:.3f}", loss=", loss: 3.100")
        for step in range(steps)
    )


def make_trainer_log(steps: int = 20, seconds: float = 2.0) -> str:
    """Return a console log of Hugging Face's Trainer: one record of the whole run."""
    return f"{{'train_runtime': {steps * seconds}, 'train_steps_per_second': {1 / seconds}, 'epoch': 1.0}}\n"


def make_lightning_csv(steps: int = 20, seconds: float = 2.0, loss: float = 3.1) -> str:
    """Return Lightning's metrics table."""
    rows = (f"{step},{loss},{seconds + step / 1000}\n" for step in range(steps))
    return "step,reduced_train_loss,train_step_timing in s\n" + "".join(rows)


def make_llamafactory_jsonl(steps: int = 20, seconds: float = 2.0) -> str:
    """LLaMA-Factory's records: of each second step, with the time since the
    beginning."""
    rows = (
        f'{{"current_steps": {step}, "total_steps": {steps}, "loss": 3.1, "percentage": {100 * step / steps}, '
        f'"elapsed_time": "0:{int(step * seconds) // 60:02d}:{int(step * seconds) % 60:02d}"}}\n'
        for step in range(2, steps + 1, 2)
    )
    return "".join(rows)


def read(
    root: Path, files: dict[str, str], catalog: Catalog | None = None
) -> IngestedRuns:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ingest(Settings(logs=(root,)), catalog or Catalog((), {}), NOW)


def list_logs(ingested: IngestedRuns, root: Path) -> dict[str, str]:
    """Return the log of each run with its standard error."""
    attempts = [attempt.files for run in ingested.runs for attempt in run.attempts]
    return {
        str(files.log.relative_to(root)): files.err.name if files.err else ""
        for files in attempts
    }


NOISE = "NCCL version 2.26.2+cuda12.8\nstarting on 1 node\n"


@pytest.mark.parametrize(
    ("out", "err"),
    [
        ("x_12.out", "x_12.err"),
        ("slurm-12.out", "slurm-12.err"),
        ("log-a.x_12_0.out", "log-a.x_12_0.err"),
        ("stdout.log", "stderr.log"),
        ("train.log", "train.err"),
    ],
)
@pytest.mark.parametrize("printed", ["", NOISE])
def test_standard_error_becomes_the_log_if_standard_output_has_no_steps(
    tmp_path: Path, out: str, err: str, printed: str
) -> None:
    assert list_logs(
        read(tmp_path, {out: printed, err: make_maxtext_log()}), tmp_path
    ) == {err: out}


@pytest.mark.parametrize(
    "error", ["", "UserWarning: x\n", make_maxtext_log(), make_maxtext_log(60)]
)
def test_standard_output_with_steps_stays_log(tmp_path: Path, error: str) -> None:
    assert list_logs(
        read(tmp_path, {"x_1.out": make_maxtext_log(), "x_1.err": error}), tmp_path
    ) == {"x_1.out": "x_1.err"}


def test_job_end_is_read_from_both_streams(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-03-02T10:00:00 DUE TO TIME LIMIT ***\n"
    (run,) = read(
        tmp_path, {"x_12.out": cancelled, "x_12.err": make_maxtext_log()}
    ).runs
    assert run.attempts[0].log.ending is not None


@pytest.mark.parametrize(
    ("console", "metrics", "text"),
    [
        ("run/train.log", "run/logs/version_0/metrics.csv", make_lightning_csv()),
        ("train.log", "run/logs/version_0/metrics.csv", make_lightning_csv()),
        ("run/gpu_monitor.log", "run/metrics.csv", make_lightning_csv()),
        ("run/logs/train.log", "run/metrics.csv", make_lightning_csv()),
        ("run/train.log", "run/trainer_log.jsonl", make_llamafactory_jsonl()),
    ],
)
def test_metrics_file_replaces_a_console_log_without_steps(
    tmp_path: Path, console: str, metrics: str, text: str
) -> None:
    assert list(
        list_logs(read(tmp_path, {console: NOISE, metrics: text}), tmp_path)
    ) == [metrics]


@pytest.mark.parametrize(
    ("console", "winner"),
    [(make_trainer_log(), "trainer_log.jsonl"), (make_maxtext_log(), "train.log")],
)
def test_log_or_metrics_file_with_more_step_times_is_read(
    tmp_path: Path, console: str, winner: str
) -> None:
    ingested = read(
        tmp_path,
        {"run/train.log": console, "run/trainer_log.jsonl": make_llamafactory_jsonl()},
    )
    assert list(list_logs(ingested, tmp_path)) == [f"run/{winner}"]
    assert len(ingested.ignored) == 1


def test_metrics_of_an_earlier_launch_replace_no_log(tmp_path: Path) -> None:
    files = {
        "run/train.log": make_trainer_log(),
        "run/trainer_log.jsonl": make_llamafactory_jsonl(),
    }
    read(tmp_path, files)
    os.utime(tmp_path / "run/trainer_log.jsonl", (1.0 * DAY, 1.0 * DAY))
    ingested = ingest(Settings(logs=(tmp_path,)), Catalog((), {}), NOW)
    assert list(list_logs(ingested, tmp_path)) == ["run/train.log"]


CRASH = 'Traceback (most recent call last):\n  File "fit.py", line 1, in <module>\nValueError: no data\n'


@pytest.mark.parametrize(
    ("hours", "printed", "died"),
    [(20, CRASH, True), (0, CRASH, False), (20, NOISE, False), (-20, CRASH, False)],
)
def test_crashed_launch_becomes_the_newest_run_if_all_metrics_files_are_older(
    tmp_path: Path, hours: int, printed: str, *, died: bool
) -> None:
    """The newest run failed before it wrote metrics; older metrics must not replace it."""
    own = replace(
        BASELINE, match=RunMatch("logs/version_#/metrics.csv", (("steps", "20"),))
    )
    own = replace(own, dialect="metrics")
    catalog = Catalog((make_recipe(own),), {})
    versions = [f"logs/version_{number}/metrics.csv" for number in (0, 1)]
    read(
        tmp_path,
        {
            "train.log": printed,
            versions[0]: make_lightning_csv(),
            versions[1]: make_lightning_csv(seconds=2.1),
        },
    )
    for path, hour in ((versions[0], 0), (versions[1], 24), ("train.log", 24 + hours)):
        os.utime(tmp_path / path, (DAY + 3600.0 * hour, DAY + 3600.0 * hour))
    runs = ingest(Settings(logs=(tmp_path,)), catalog, NOW).runs
    assert [run.attempts[0].files.log.name for run in runs][: 1 + died] == [
        "train.log",
        "metrics.csv",
    ][1 - died :]
    assert {run.identity.key for run in runs} == {own.key}


@pytest.mark.parametrize(
    ("seconds", "console", "runs"),
    [
        (3.0, "b/train.log", ["a/train.log", "b/metrics.csv"]),  # a separate run
        (2.0, "b/train.log", ["a/train.log"]),  # same run as the log
        (3.0, "train.log", ["a/train.log"]),  # may be of any run below the silent log
        (3.0, "", ["a/train.log"]),
    ],
)
def test_metrics_file_is_a_run_if_the_log_beside_it_has_no_steps(
    tmp_path: Path, seconds: float, console: str, runs: list[str]
) -> None:
    files = {
        "a/train.log": make_maxtext_log(),
        "b/metrics.csv": make_lightning_csv(seconds=seconds),
    } | ({console: NOISE} if console else {})
    assert sorted(list_logs(read(tmp_path, files), tmp_path)) == runs


@pytest.mark.parametrize(
    ("seconds", "runs"),
    [(3.0, ["a/train.log", "b/metrics.csv"]), (2.0, ["a/train.log"])],
)
def test_metrics_in_a_folder_without_a_log_are_a_run(
    tmp_path: Path, seconds: float, runs: list[str]
) -> None:
    """No baseline exists for their path yet; metrics with the steps of a log are its
    run's."""
    read(
        tmp_path,
        {
            "a/train.log": make_maxtext_log(),
            "b/metrics.csv": make_lightning_csv(seconds=seconds),
        },
    )
    ingested = ingest(
        Settings(logs=(tmp_path,), record=tmp_path / "own"), Catalog((), {}), NOW
    )
    assert sorted(list_logs(ingested, tmp_path)) == runs


def test_metrics_file_with_other_losses_than_the_log_is_recorded_as_a_run(
    tmp_path: Path,
) -> None:
    read(
        tmp_path,
        {
            "a/train.log": make_maxtext_log(),
            "b/metrics.csv": make_lightning_csv(loss=2.7),
        },
    )
    ingested = ingest(
        Settings(logs=(tmp_path,), record=tmp_path / "own"), Catalog((), {}), NOW
    )
    assert sorted(list_logs(ingested, tmp_path)) == ["a/train.log", "b/metrics.csv"]


@pytest.mark.parametrize(
    ("metrics", "hours", "named"),
    [
        ("run/tb/metrics.csv", 24, True),
        ("run/metrics.csv", 2, True),
        ("other/metrics.csv", 24, True),
        ("run/tb/metrics.csv", 0.5, False),
        ("run/tb/metrics.csv", -24, False),
        ("other/metrics.csv", 0, False),
    ],
)
def test_metrics_newer_than_all_logs_are_reported(
    tmp_path: Path, metrics: str, hours: float, *, named: bool
) -> None:
    read(
        tmp_path,
        {"run/train.log": make_maxtext_log(), metrics: make_lightning_csv(seconds=3.0)},
    )
    os.utime(tmp_path / "run/train.log", (1.0 * DAY, 1.0 * DAY))
    os.utime(tmp_path / metrics, (DAY + 3600 * hours, DAY + 3600 * hours))
    ingested = ingest(Settings(logs=(tmp_path,)), Catalog((), {}), NOW)
    assert [file.name for file in ingested.hidden] == ["metrics.csv"] * named


@pytest.mark.parametrize(
    ("log", "path", "runs"),
    [
        ("b/train.out", "elm/metrics.csv", ["b/train.out", "elm/metrics.csv"]),
        ("b/train.out", "other/metrics.csv", ["b/train.out"]),
        ("elm/train.out", "elm/metrics.csv", ["elm/train.out"]),
        ("elm/logs/train.out", "elm/metrics.csv", ["elm/logs/train.out"]),
        ("train.out", "elm/metrics.csv", ["train.out"]),
    ],
)
def test_metrics_at_baseline_path_are_read_despite_logs(
    tmp_path: Path, log: str, path: str, runs: list[str]
) -> None:
    """A judged run must not disappear because another run leaves a log elsewhere."""
    own = replace(BASELINE, match=RunMatch(path, ()))
    recipe = replace(make_recipe(own), baselines=(own,))
    ingested = read(
        tmp_path,
        {"elm/metrics.csv": make_lightning_csv(), log: make_maxtext_log()},
        Catalog((recipe,), {}),
    )
    assert sorted(list_logs(ingested, tmp_path)) == runs


def make_recipe(baseline: Baseline) -> Recipe:
    """Return a recipe with one baseline."""
    key = baseline.key
    return Recipe(
        *(
            key.recipe,
            key.release,
            baseline.kind,
            "title",
            "framework",
            baseline.dialect,
            (key.recipe,),
            "",
        ),
        baselines=(baseline,),
        errata=(),
        launch=(),
        path=Path("own.yaml"),
    )


def make_tee_output(log: str) -> str:
    """Return torchrun's tee of a log, mixed with progress bars from standard error."""
    bar = "[default0]:100%|####| 20/20 [00:40<00:00,  2.00s/it]\n"
    return bar + "".join(f"[default0]:{line}" for line in log.splitlines(keepends=True))


LAUNCH = "elog/none_ab12_d9z/attempt_0"
WANDB = "wandb/offline-run-20261127_020000-a1b2c3d4/files/output.log"


@pytest.mark.parametrize(
    ("console", "copies"),
    [
        (make_maxtext_log(), {f"{LAUNCH}/0/stdout.log": make_maxtext_log()}),
        (
            make_maxtext_log(),
            {
                f"{LAUNCH}/0/stdout.log": "",
                f"{LAUNCH}/0/stderr.log": make_maxtext_log(),
            },
        ),
        (make_maxtext_log(), {WANDB: make_maxtext_log(15)}),
        (make_maxtext_log(15), {WANDB: make_maxtext_log()}),
        (make_maxtext_log(), {f"wandb/{WANDB}": make_maxtext_log()}),
        (
            make_tee_output(make_trainer_log()),
            {f"{LAUNCH}/0/stdout.log": make_trainer_log()},
        ),
        (
            make_maxtext_log(12)
            + "Config param steps: 20\n"
            + make_maxtext_log(20, 3.0),
            {
                f"{LAUNCH}/0/stdout.log": make_maxtext_log(12),
                f"{LAUNCH[:-1]}1/0/stdout.log": make_maxtext_log(20, 3.0),
            },
        ),
    ],
)
@pytest.mark.parametrize("path", ["train.log", "logs/slurm-7.out"])
def test_torchrun_or_wandb_log_that_repeats_the_console_log_is_a_duplicate(
    tmp_path: Path, console: str, copies: dict[str, str], path: str
) -> None:
    ingested = read(tmp_path, {path: console, **copies})
    assert list(list_logs(ingested, tmp_path)) == [path]
    assert sum("a copy of" in file.reason for file in ingested.ignored) == sum(
        map(bool, copies.values())
    )


@pytest.mark.parametrize("path", [WANDB, f"{LAUNCH}/0/stdout.log"])
@pytest.mark.parametrize(
    "console", [make_maxtext_log(seconds=3.0), make_trainer_log(seconds=2.5), NOISE]
)
def test_torchrun_or_wandb_log_whose_steps_the_console_log_lacks_is_a_run(
    tmp_path: Path, console: str, path: str
) -> None:
    assert path in list_logs(
        read(tmp_path, {"train.log": console, path: make_maxtext_log()}), tmp_path
    )
