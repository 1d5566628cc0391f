"""The sessions during which calls fail: folders with runs, earlier results, and
commands."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.__main__ import shipped
from generator.plan import STARTED
from support.fake_recipe import write_recipe

BF16, FP8 = "grok1_314b-25.05-gb200-bf16-{}", "llama3.1_8b-25.04-h100-fp8-{}"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-64"

REPORTS = (
    "--llmb-json=state/s.json",
    "--junitxml=state/j.xml",
    "--llmb-junit=state/l.xml",
    "--llmb-html=state/p.html",
)
HISTORY = "--llmb-history=state/history.db"
SELECTED = ("-k", f"gb200-bf16 or llama3.1_8b or {MAXTEXT}")
RECORDED = ("-k", "llama3.1_8b and fp8-8")
JOB_SUMMARY = "text of an earlier step\n"

ENVIRONMENT = {
    "TZ": "UTC",
    "GITHUB_ACTIONS": "true",
    "GITHUB_STEP_SUMMARY": "state/summary.md",
    "XDG_CACHE_HOME": "state/cache",
    "TMPDIR": "state/tmp",
    "HOME": "state/home",
    "COLUMNS": "200",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONWARNINGS": "ignore::pytest.PytestAssertRewriteWarning",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Relative places are below the folder of a session."""

Run = Callable[..., Any]


@dataclass(frozen=True)
class Night:
    """A session: its command, its requirements, and the files below `state` that it may
    change."""

    arguments: Sequence[str]
    prepare: Callable[[Path, Run], None]
    command: str = "pytest"


def pytest_arguments(*arguments: str) -> list[str]:
    """Return the arguments of a session without user configuration and third-party
    plugins."""
    return [
        "-p",
        "pytest_llmbench.plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--color=no",
        "--tb=line",
        "-s",
        *arguments,
    ]


def write_logs(folder: Path) -> None:
    """Write runs of every verdict, some compressed; an older good run precedes each bad
    run."""
    baselines = shipped()
    logs = folder / "logs"

    def write(name: str, path: Path = logs, **options: Any) -> Path:
        return write_run(path, baselines[name], **options)

    later = {"started": STARTED + timedelta(days=100), "job_id": "1900000"}
    bad: dict[str, dict[str, Any]] = {
        BF16.format(128): {"factor": 1.15},
        BF16.format(256): {"ending": "killed"},
        BF16.format(512): {"ending": "diverged"},
        FP8.format(8): {"ending": "time-limit"},
        MAXTEXT: {"factor": 1.2},
    }
    for name, options in bad.items():
        write(name)
        write(name, **{**later, **options})
    write(FP8.format(16), restarts=1)
    plain = write(FP8.format(32), factor=1.1)
    plain.with_name(f"{plain.name}.gz").write_bytes(
        gzip.compress(plain.read_bytes(), mtime=0)
    )
    plain.unlink()
    write(FP8.format(64))
    packed = folder / "packed"
    write(FP8.format(128), packed, factor=1.3)
    write("llama3.1_8b-25.04-h100-bf16-8", packed)
    with tarfile.open(logs / "packed.tar.gz", "w:gz") as archive:
        archive.add(packed, "packed")
    shutil.rmtree(packed)
    for number in range(3):
        write(
            FP8.format(8), folder / "good", started=STARTED + timedelta(hours=number), job_id=f"160{number}",
            factor=1.01 + 0.002 * number,
        )  # fmt: skip


def prepare_night(folder: Path, run: Run) -> None:
    """Write the results of an earlier session: history, reports and a page with other
    content."""
    write_logs(folder)
    (folder / "state" / "summary.md").write_text(JOB_SUMMARY)
    # the same commands, with the good runs only
    run(pytest_arguments("--llmb-logs=good", HISTORY, *REPORTS))
    (folder / "state" / "summary.md").write_text(JOB_SUMMARY)


def prepare_again(folder: Path, run: Run) -> None:
    """Write the cache of an earlier session over the same logs, too."""
    prepare_night(folder, run)
    run(pytest_arguments("--llmb-logs=logs"))
    (folder / "state" / "summary.md").write_text(JOB_SUMMARY)


def prepare_recording(folder: Path, run: Run) -> None:
    """Write baselines recorded from some of the runs."""
    write_logs(folder)
    (folder / "state" / "recorded").mkdir()
    for run_folder in sorted((folder / "good").glob("experiments/*/*"))[:2]:
        shutil.copytree(
            run_folder, folder / "first" / run_folder.relative_to(folder / "good")
        )
    write_run(folder / "first", shipped()[FP8.format(16)])
    run(
        pytest_arguments(
            "--llmb-logs=first", "-k", "fp8-8 or fp8-16", "--llmb-record=state/recorded"
        )
    )


def prepare_unsaved(folder: Path, run: Run) -> None:
    """Write a history, and a file with the results that a session could not store."""
    prepare_night(folder, run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_llmbench.history.record.write", _refuse)
        run(pytest_arguments("--llmb-logs=logs", HISTORY))
    [unsaved] = folder.glob("llmb-history-unsaved-*.json")
    unsaved.rename(folder / "state" / "llmb-history-unsaved-1.json")


def _refuse(*_: object) -> None:
    raise OSError("the history is away")


def prepare_launch(folder: Path, run: Run) -> None:
    """Write a recipe whose jobs need no training."""
    write_recipe(
        folder, {"ok": "steps 1.0", "slow": "steps 1.3", "bad": "exit 3"}, kind="local"
    )


SESSIONS = {
    "night": Night(pytest_arguments("--llmb-logs=logs", *SELECTED, HISTORY, *REPORTS), prepare_night),
    "again": Night(pytest_arguments("--llmb-logs=logs", *SELECTED, HISTORY), prepare_again),
    "record": Night(
        pytest_arguments(
            "--llmb-logs=good", *RECORDED, "--llmb-record=state/recorded", "--llmb-baselines=state/recorded"
        ),
        prepare_recording,
    ),
    "add": Night(
        ["history", "add", "state/llmb-history-unsaved-1.json", "--history", "state/history.db"],
        prepare_unsaved, "llmbench",
    ),
    "export": Night(
        ["history", "export", "--history", "state/history.db", "-o", "state/out.csv"], prepare_night, "llmbench"
    ),
    "summary": Night(["summary", "logs"], prepare_night, "llmbench"),
    "chat": Night(["chat", "state/s.json"], prepare_night, "llmbench"),
    "launch": Night(
        pytest_arguments(
            "--llmb-launch", "-k", "fake", "--llmb-repeats=1", "--llmb-retries=0", "--llmb-journal=state/journal",
            HISTORY, *REPORTS,
        ),
        prepare_launch,
    ),
}  # fmt: skip


def use_environment(folder: Path) -> None:
    """Set the variables and the working folder of a session."""
    os.environ.update(
        {
            name: str(folder / value) if value.startswith("state/") else value
            for name, value in ENVIRONMENT.items()
        }
    )
    time.tzset()
    os.chdir(folder)


def run_command(
    case: Night, arguments: Sequence[str], plugins: Sequence[object] = ()
) -> int:
    """Run a command in this process and return its exit code."""
    if case.command == "pytest":
        return int(pytest.main(list(arguments), plugins))
    from pytest_llmbench.cli.main import main

    return main(list(arguments))
