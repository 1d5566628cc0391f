"""Preflight problems, each reported once for all jobs that share it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from pytest_llmbench.core.commands import Runner, run
from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import NEVER_IGNORED, PreflightCheck
from pytest_llmbench.launch.plan.planned_job import PlannedJob

LISTED_CASES = 5  # configurations listed by name; further ones are counted

WIDTH = 79


def read_free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system that contains a folder."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """Access to this machine: commands, free disk space, file permissions."""

    run: Runner = run
    free_bytes: Callable[[Path], int] = read_free_bytes
    may: Callable[[Path, int], bool] = os.access


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A problem of one job."""

    text: str
    remedy: str
    detail: str = ""  # specific to this job: `32 nodes`
    check: PreflightCheck | None = (
        None  # None: found by no check of a launch, as in `llmbench setup`
    )


@dataclass(frozen=True, slots=True)
class LaunchProblem:
    """A problem that several jobs share."""

    text: str
    remedy: str
    cases: tuple[
        str, ...
    ]  # the affected configurations without duplicates, with their details
    check: PreflightCheck | None = None


def group_problems(
    problems: Iterable[tuple[PlannedJob, JobProblem]],
) -> tuple[LaunchProblem, ...]:
    """Merge equal problems of several jobs, in the order in which they were found."""
    cases: dict[tuple[str, str, PreflightCheck | None], dict[str, None]] = {}
    for planned, problem in problems:
        case = planned.spec.case_id + (f" ({problem.detail})" if problem.detail else "")
        cases.setdefault((problem.text, problem.remedy, problem.check), {})[case] = None
    return tuple(
        LaunchProblem(text, remedy, tuple(names), check)
        for (text, remedy, check), names in cases.items()
    )


def describe_problems(problems: Sequence[LaunchProblem]) -> str:
    """Format all problems as lines that fit a terminal; "" without problems."""
    if not problems:
        return ""
    heading = f"{count_noun(len(problems), 'problem')} to solve before the launch:"
    entries = (
        _describe_problem(number, problem) for number, problem in enumerate(problems, 1)
    )
    ignorable = dict.fromkeys(
        problem.check
        for problem in problems
        if problem.check not in (None, *NEVER_IGNORED)
    )
    hint = (
        [f"to launch anyway, ignore a check: --llmb-ignore={next(iter(ignorable))}"]
        if ignorable
        else []
    )
    return "\n".join((heading, *entries, *hint))


def describe_overruled(problem: LaunchProblem) -> str:
    """Format a problem that --llmb-ignore allows."""
    return _wrap(f"[{problem.check}] {problem.text}", "ignored: ")


def _describe_problem(number: int, problem: LaunchProblem) -> str:
    affected = f"{count_noun(len(problem.cases), 'configuration')}: {join_first(problem.cases, LISTED_CASES)}"
    check = f"[{problem.check}] " if problem.check else ""
    lines = [_wrap(check + problem.text, f"{number:>2}. "), _wrap(affected, " " * 6)]
    return "\n".join([*lines, _wrap(f"do: {problem.remedy}", " " * 6)])


def _wrap(text: str, prefix: str) -> str:
    return fill(
        escape(text),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
    )
