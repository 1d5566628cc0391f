"""Copied logs are invalid; runs that are similar by chance are not copies."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from generator import write_run
from generator.plan import STARTED
from support.sessions import Judge

from pytest_llmbench.core.baseline_records import Baseline

LLAMA = "llama3.1_8b-25.04-h100-bf16-16"
OTHER = "llama3.1_8b-25.04-h100-bf16-8"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-64"
GROK = "grok1_314b-25.05-gb200-bf16-128"
NEMO1 = "nemotron4_340b-25.01-h100-bf16-128"
OLD, NEW = "1530101", "1530222"


@pytest.fixture
def write_day(tmp_path: Path, baselines: dict[str, Baseline]) -> Any:
    """Write a run that started `day` days after the first run, and return its log."""

    def write(name: str, day: int, job: str, **options: Any) -> Path:
        return write_run(
            tmp_path,
            baselines[name],
            job_id=job,
            started=STARTED + timedelta(days=day),
            **options,
        )

    return write


def verdict(
    judged: Judge, folder: Path, name: str, *options: str
) -> tuple[str, str, str]:
    """Return verdict, reason and judged job of a configuration."""
    outcome = judged(f"--llmb-logs={folder}", *options).described[name]
    return (
        outcome["verdict"],
        outcome["reason"],
        (outcome["run"] or {}).get("job_id", ""),
    )


def copied(log: Path, onto: Path, change: Callable[[str], str] = str) -> Path:
    """Replace the text of a later run's log with that of an earlier log."""
    onto.write_text(change(log.read_text()))
    return onto


def redated(text: str) -> str:
    return text.replace("2025-06-02", "2025-06-03").replace(OLD, NEW)


def with_lines_added(text: str) -> str:
    return "".join(
        f"{line}\nstep done\n" if index % 9 == 3 else f"{line}\n"
        for index, line in enumerate(text.split("\n"))
    )


def without_its_end(text: str) -> str:
    """Cut behind the window: its last line is that of step 46 of 50."""
    return "\n".join(
        line
        for line in text.split("\n")
        if not re.search(r"(global_step|completed step): 4[789]", line)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (LLAMA, str),
        (LLAMA, redated),
        (MAXTEXT, with_lines_added),
        (GROK, without_its_end),
    ],
    ids=["as-it-is", "redated", "with-lines-added", "without-its-end"],
)
def test_copied_log_of_another_job_is_invalid(
    judged: Judge,
    tmp_path: Path,
    write_day: Any,
    name: str,
    change: Callable[[str], str],
) -> None:
    copied(write_day(name, 0, OLD), write_day(name, 1, NEW), change)
    outcome = judged(f"--llmb-logs={tmp_path}").described[name]
    assert (outcome["verdict"], outcome["reason"], outcome["run"]["job_id"]) == (
        "INVALID",
        "copied",
        NEW,
    )
    assert OLD in outcome["text"]
    assert NEW in outcome["text"]


@pytest.mark.slow
def test_copied_log_fails_as_duplicate_with_xdist_and_one_item_per_run(
    pytester: pytest.Pytester, tmp_path: Path, write_day: Any
) -> None:
    copied(write_day(LLAMA, 0, OLD), write_day(LLAMA, 1, NEW))
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "-n1",
        f"--llmb-logs={tmp_path}",
        "--llmb-runs=each",
        "-k",
        f"{OLD} or {NEW}",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([f"*job {NEW} (*) is a duplicate of job*"])


@pytest.mark.slow
def test_log_copied_to_another_configuration_is_invalid(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """One log cannot be of 8 and of 16 GPUs: here nothing in the text contradicts
    either but the batch size."""
    old = write_day(OTHER, 0, OLD)
    copy = copied(
        old,
        write_day(LLAMA, 1, NEW),
        lambda text: text.replace("global_batch_size: 128", "global_batch_size: 256"),
    )
    os.utime(copy, (STARTED.timestamp() + 200_000, STARTED.timestamp() + 200_000))
    session = judged(f"--llmb-logs={tmp_path}")
    assert session.verdicts[OTHER] == "PASS"
    assert (session.verdicts[LLAMA], session.described[LLAMA]["reason"]) == (
        "INVALID",
        "copied",
    )


@pytest.mark.slow
def test_copied_logs_are_excluded_from_earlier_runs(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """A copied earlier run is ignored, and the newest run is judged."""
    copied(write_day(LLAMA, 0, OLD), write_day(LLAMA, 1, NEW))
    write_day(LLAMA, 2, "1530333")
    assert verdict(judged, tmp_path, LLAMA) == ("PASS", "within-tolerance", "1530333")


@pytest.mark.slow
def test_second_log_of_a_job_is_not_a_copy(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """The same job, with edited dates and in another folder: one run, as old as it
    was."""
    old = write_day(LLAMA, 0, OLD)
    new = write_day(LLAMA, 5, OLD + "9")
    copied(
        old,
        new.with_name(new.name.replace(OLD + "9", OLD)),
        lambda text: text.replace("2025-06-02", "2025-06-07"),
    )
    new.unlink()
    outcome = judged(f"--llmb-logs={tmp_path}", "-v").described[LLAMA]
    assert (
        outcome["verdict"],
        outcome["run"]["job_id"],
        outcome["run"]["started"][:10],
    ) == (
        "PASS",
        OLD,
        str(STARTED.date()),
    )


@pytest.mark.slow
def test_copy_of_a_stored_run_is_invalid(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    old = write_day(LLAMA, 0, OLD)
    options = (f"--llmb-history={tmp_path / 'history.db'}", "-k", LLAMA)
    assert verdict(judged, tmp_path, LLAMA, *options)[0] == "PASS"
    copied(old, write_day(LLAMA, 1, NEW))
    shutil.rmtree(old.parents[1])
    assert verdict(judged, tmp_path, LLAMA, *options) == ("INVALID", "copied", NEW)


@pytest.mark.slow
def test_original_passes_after_its_stored_copy_was_removed(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """The history knows the copy, too: it was INVALID, and says nothing against the
    original."""
    options = (f"--llmb-history={tmp_path / 'history.db'}", "-k", LLAMA)
    new = copied(write_day(LLAMA, 0, OLD), write_day(LLAMA, 1, NEW))
    assert verdict(judged, tmp_path, LLAMA, *options)[0] == "INVALID"
    shutil.rmtree(new.parents[1])
    assert verdict(judged, tmp_path, LLAMA, *options) == (
        "PASS",
        "within-tolerance",
        OLD,
    )


def five_step_means(job: int, seconds: float) -> tuple[float, ...]:
    """Return five-step means with three digits, as NeMo 1 prints them."""
    single = seconds * (1 + 0.002 * np.random.default_rng(job).standard_normal(50))
    means = [single[max(0, step - 4) : step + 1].mean() for step in range(50)]
    return tuple(float(f"{value:.1f}") for value in means)


@pytest.mark.slow
def test_runs_of_two_days_with_equal_rounded_step_times_are_not_copies(
    judged: Judge, tmp_path: Path, write_day: Any, baselines: dict[str, Baseline]
) -> None:
    """Two days that print equal values are noted and pass."""
    expected = baselines[NEMO1].step_seconds
    printed = five_step_means(1, expected)
    write_day(NEMO1, 0, OLD, seconds=printed)
    write_day(NEMO1, 1, NEW, seconds=printed)
    outcome = judged(f"--llmb-logs={tmp_path}").described[NEMO1]
    assert (outcome["verdict"], outcome["run"]["job_id"]) == ("PASS", NEW)
    (note,) = [
        note["text"] for note in outcome["notes"] if note["code"] == "same-steps"
    ]
    assert OLD in note


@pytest.mark.slow
def test_log_with_the_same_dated_lines_as_another_is_a_copy(
    judged: Judge, tmp_path: Path, write_day: Any, baselines: dict[str, Baseline]
) -> None:
    printed = five_step_means(1, baselines[NEMO1].step_seconds)
    copied(write_day(NEMO1, 0, OLD, seconds=printed), write_day(NEMO1, 1, NEW))
    assert verdict(judged, tmp_path, NEMO1) == ("INVALID", "copied", NEW)


@pytest.mark.slow
def test_month_of_ordinary_runs_contains_no_copy(
    judged: Judge, tmp_path: Path, write_day: Any
) -> None:
    """NeMo 1 prints few digits."""
    for day in range(30):
        write_day(NEMO1, day, str(1530000 + day))
    session = judged(f"--llmb-logs={tmp_path}", "--llmb-runs=each", "-k", NEMO1)
    assert {outcome["verdict"] for outcome in session.described.values()} == {"PASS"}
