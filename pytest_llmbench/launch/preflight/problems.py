"""What stands in the way of jobs: found for each, told once for all that share it."""

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

SHOWN = 5  # so many configurations are named; the rest is counted

WIDTH = 79


def read_free_bytes(folder: Path) -> int:
    """Return the free bytes on the file system of a folder."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """How this machine is asked: commands, free bytes of a folder's file system, and
    what may be done with a path."""

    run: Runner = run
    free_bytes: Callable[[Path], int] = read_free_bytes
    may: Callable[[Path, int], bool] = os.access


@dataclass(frozen=True, slots=True)
class JobProblem:
    """What is wrong with one job."""

    what: str
    remedy: str
    detail: str = ""  # what only this job says: `32 nodes`
    check: PreflightCheck | None = (
        None  # what found it; None: it stands for itself, as in `llmbench setup`
    )


@dataclass(frozen=True, slots=True)
class LaunchProblem:
    """What is wrong with several jobs in the same way."""

    what: str
    remedy: str
    cases: tuple[
        str, ...
    ]  # the configurations that it concerns, each once, with its detail
    check: PreflightCheck | None = None


def group_problems(
    problems: Iterable[tuple[PlannedJob, JobProblem]],
) -> tuple[LaunchProblem, ...]:
    """Return equal findings as one problem, in the order in which they were found
    first."""
    cases: dict[tuple[str, str, PreflightCheck | None], dict[str, None]] = {}
    for planned, finding in problems:
        case = planned.spec.case_id + (f" ({finding.detail})" if finding.detail else "")
        cases.setdefault((finding.what, finding.remedy, finding.check), {})[case] = None
    return tuple(
        LaunchProblem(what, remedy, tuple(names), check)
        for (what, remedy, check), names in cases.items()
    )


def describe_problems(problems: Sequence[LaunchProblem]) -> str:
    """Return all problems as one text of lines that fit a terminal, but for words that
    do not; empty without any."""
    if not problems:
        return ""
    head = f"{count_noun(len(problems), 'problem')} to solve first:"
    entries = (
        _describe_problem(number, problem) for number, problem in enumerate(problems, 1)
    )
    allowed = dict.fromkeys(
        problem.check
        for problem in problems
        if problem.check not in (None, *NEVER_IGNORED)
    )
    hint = (
        [f"overrule what is no problem here: --llmb-ignore={next(iter(allowed))}"]
        if allowed
        else []
    )
    return "\n".join((head, *entries, *hint))


def describe_overruled(problem: LaunchProblem) -> str:
    """Return a problem that does not count, since somebody overruled its check."""
    return _wrap(f"[{problem.check}] {problem.what}", "overruled: ")


def _describe_problem(number: int, problem: LaunchProblem) -> str:
    concerns = f"{count_noun(len(problem.cases), 'configuration')}: {join_first(problem.cases, SHOWN)}"
    name = f"[{problem.check}] " if problem.check else ""
    lines = [_wrap(name + problem.what, f"{number:>2}. "), _wrap(concerns, " " * 6)]
    return "\n".join([*lines, _wrap(f"do: {problem.remedy}", " " * 6)])


def _wrap(text: str, head: str) -> str:
    return fill(
        escape(text),
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
