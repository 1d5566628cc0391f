"""Preflight problems, each reported once for all jobs that share it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import fill

from msgspec import Struct

from pytest_llmbench.core.commands import Runner, run
from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import NEVER_IGNORED, PreflightCheck
from pytest_llmbench.launch.plan.planned_job import PlannedJob

LISTED_CASES = 5  # configurations listed by name; further ones are counted

WIDTH = 79


def read_free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system that contains a folder."""
    return shutil.disk_usage(folder).free


class LocalMachine(Struct, frozen=True):
    """Access to this machine: commands, free disk space, file permissions."""

    run: Runner = run
    free_bytes: Callable[[Path], int] = read_free_bytes
    may: Callable[[Path, int], bool] = os.access


class JobProblem(Struct, frozen=True):
    """A problem of one job."""

    text: str
    remedy: str
    detail: str = ""  # specific to this job: `32 nodes`
    # None: found by no check of a launch, as in `llmbench setup`
    check: PreflightCheck | None = None


class LaunchProblem(Struct, frozen=True):
    """A problem that several jobs share."""

    text: str
    remedy: str
    # the affected configurations without duplicates, with their details
    cases: tuple[str, ...]
    check: PreflightCheck | None = None


def group_problems(
    problems: Iterable[tuple[PlannedJob, JobProblem]],
) -> tuple[LaunchProblem, ...]:
    """Merge equal problems of several jobs, in the order in which they were found."""
    cases_by_problem: dict[tuple[str, str, PreflightCheck | None], list[str]] = {}
    for planned, problem in problems:
        case = planned.spec.case_id
        if problem.detail:
            case += f" ({problem.detail})"
        key = (problem.text, problem.remedy, problem.check)
        cases_by_problem.setdefault(key, []).append(case)
    return tuple(
        LaunchProblem(text, remedy, tuple(dict.fromkeys(cases)), check)
        for (text, remedy, check), cases in cases_by_problem.items()
    )


def describe_problems(problems: Sequence[LaunchProblem]) -> str:
    """Format all problems as lines that fit a terminal; "" without problems."""
    if not problems:
        return ""
    heading = f"{count_noun(len(problems), 'problem')} to solve before the launch:"
    lines = [heading]
    for number, problem in enumerate(problems, start=1):
        lines.append(_describe_problem(number, problem))
    ignorable = [
        problem.check
        for problem in problems
        if problem.check not in (None, *NEVER_IGNORED)
    ]
    if ignorable:
        example = f"--llmb-ignore={ignorable[0]}"
        lines.append(f"to launch anyway, ignore a check: {example}")
    return "\n".join(lines)


def describe_overruled(problem: LaunchProblem) -> str:
    """Format a problem that --llmb-ignore allows."""
    return _wrap(f"[{problem.check}] {problem.text}", "ignored: ")


def _describe_problem(number: int, problem: LaunchProblem) -> str:
    """Format a problem: its number, check and text, its configurations, its remedy."""
    count = count_noun(len(problem.cases), "configuration")
    affected = f"{count}: {join_first(problem.cases, LISTED_CASES)}"
    check = f"[{problem.check}] " if problem.check else ""
    indent = " " * 6
    return "\n".join(
        [
            _wrap(check + problem.text, f"{number:>2}. "),
            _wrap(affected, indent),
            _wrap(f"do: {problem.remedy}", indent),
        ]
    )


def _wrap(text: str, prefix: str) -> str:
    """Wrap a text to the terminal.

    The first line begins with `prefix`, the others with as many spaces.
    """
    return fill(
        escape(text),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
    )
