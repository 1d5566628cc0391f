"""What stands in the way of a launch: found for each job, told once for all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.models.jobs import JobSpec, LaunchFacts

WIDTH = 79
SHOWN = 5
"""So many configurations are named; the rest is counted."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that is to be submitted, and what its recipe's document says of launching."""

    spec: JobSpec
    facts: LaunchFacts


@dataclass(frozen=True, slots=True)
class JobProblem:
    """What is wrong with one job, and the remedy; `detail` is what only this job says (`32 nodes`)."""

    what: str
    remedy: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LaunchProblem:
    """What is wrong, the remedy, and the configurations that it concerns (each with its detail), each once."""

    what: str
    remedy: str
    cases: tuple[str, ...]


def group_problems(problems: Iterable[tuple[PlannedJob, JobProblem]]) -> tuple[LaunchProblem, ...]:
    """Return equal findings as one problem, in the order in which they were found first."""
    cases: dict[tuple[str, str], dict[str, None]] = {}
    for planned, finding in problems:
        case = planned.spec.case_id + (f" ({finding.detail})" if finding.detail else "")
        cases.setdefault((finding.what, finding.remedy), {})[case] = None
    return tuple(LaunchProblem(what, remedy, tuple(names)) for (what, remedy), names in cases.items())


def describe_problems(problems: Sequence[LaunchProblem], width: int = WIDTH) -> str:
    """Return all problems as one text of lines no longer than `width`, but for words that are; empty without any."""
    if not problems:
        return ""
    head = f"{count_noun(len(problems), 'problem')} to solve first:"
    entries = (_describe_problem(number, problem, width) for number, problem in enumerate(problems, 1))
    return "\n".join((head, *entries))


def _describe_problem(number: int, problem: LaunchProblem, width: int) -> str:
    concerns = f"{count_noun(len(problem.cases), 'configuration')}: {join_first(problem.cases, SHOWN)}"
    lines = [_wrap(problem.what, f"{number:>2}. ", width), _wrap(concerns, " " * 6, width)]
    return "\n".join([*lines, _wrap(f"do: {problem.remedy}", " " * 6, width)])


def _wrap(text: str, head: str, width: int) -> str:
    return textwrap.fill(
        escape(text),
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
