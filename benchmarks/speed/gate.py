"""Decide whether counted jobs are slower than their recorded values allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from speed.counting import Count

TOLERANCE_PERCENT = 3.0
"""A job may take so many more instructions than its value without an accepted
slowdown."""

ACCEPTED_LIMIT_PERCENT = 45.0
"""The percentages of all accepted slowdowns may add up to so much."""


class ValuesError(Exception):
    """The file of values is invalid."""


class Slowdown(NamedTuple):
    """An accepted slowdown of one job: percentage, reason, and the change that will
    undo it."""

    job: str
    percent: float
    why: str
    until: str


@dataclass(frozen=True, slots=True)
class Values:
    """The recorded instructions of each job, their environment, and the accepted
    slowdowns."""

    environment: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Count] = field(default_factory=dict)
    accepted: Sequence[Slowdown] = ()

    def get_accepted_percent(self, job: str) -> float:
        """Return the sum of the accepted slowdowns of `job`, in percent."""
        return sum(
            slowdown.percent for slowdown in self.accepted if slowdown.job == job
        )


class Report(NamedTuple):
    """Result of the gate: output lines, failures, and jobs whose value may be lowered."""

    rows: list[str]
    faults: list[str]
    lower: list[str]


def read_values(path: Path) -> Values:
    """Read the file of values. Raises ValuesError if a key is missing or an entry has
    no reason."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        accepted = [Slowdown(**entry) for entry in document.get("accepted") or ()]
        jobs = {name: Count(**value) for name, value in document["jobs"].items()}
        environment = {
            name: str(value) for name, value in document["environment"].items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValuesError(f"{path}: {error}") from error
    for slowdown in accepted:
        if slowdown.job not in jobs:
            raise ValuesError(f"{path}: accepted: no job is named {slowdown.job!r}")
        if not slowdown.percent > 0 or not slowdown.why or not slowdown.until:
            raise ValuesError(
                f"{path}: accepted: {slowdown.job} needs a percent above 0, `why` and `until`"
            )
    return Values(environment, jobs, accepted)


def write_values(path: Path, values: Values) -> None:
    """Write the file of values, keeping its first comment."""
    comment = "".join(
        line
        for line in path.read_text(encoding="utf-8").splitlines(True)
        if line.startswith("#")
    )
    document: dict[str, Any] = {
        "environment": dict(values.environment),
        "jobs": {name: count._asdict() for name, count in values.jobs.items()},
        "accepted": [slowdown._asdict() for slowdown in values.accepted],
    }
    path.write_text(
        comment + yaml.safe_dump(document, sort_keys=False, width=120), encoding="utf-8"
    )


def compare(values: Values, counts: Mapping[str, Count]) -> Report:
    """Compare counted jobs with their values."""
    rows, faults, lower = [], [], []
    for name, count in counts.items():
        value = values.jobs.get(name)
        if value is None:
            faults.append(
                f"{name}: no value is recorded. Record it: python -m benchmarks.speed --record {name}"
            )
            continue
        accepted = values.get_accepted_percent(name)
        change = 100 * (count.instructions / value.instructions - 1)
        rows.append(
            f"{name:16}{count.instructions:15,}{value.instructions:15,}{change:+8.2f} %{accepted:8.1f} %"
        )
        if count.done != value.done:
            faults.append(f"{name}: did {count.done!r}; its value is of {value.done!r}")
        elif _exceeds_limit(values, name, count):
            faults.append(
                f"{name}: {change:.2f} % more instructions than its value; {TOLERANCE_PERCENT:g} % are allowed, "
                f"and {accepted:g} % are accepted. Make it faster, or add an entry to `accepted` of values.yaml with "
                "the reason (`why`) and the change that will take it back (`until`)."
            )
        elif change < -TOLERANCE_PERCENT:
            lower.append(name)
    total = sum(slowdown.percent for slowdown in values.accepted)
    rows.append(
        f"accepted slowdowns in all: {total:g} % (at most {ACCEPTED_LIMIT_PERCENT:g} %)"
    )
    if total > ACCEPTED_LIMIT_PERCENT:
        faults.append(
            f"the accepted slowdowns add up to {total:g} %, more than {ACCEPTED_LIMIT_PERCENT:g} %"
        )
    return Report(rows, faults, lower)


def _exceeds_limit(values: Values, name: str, count: Count) -> bool:
    """True if a job with a value takes more instructions than allowed."""
    accepted = 1 + values.get_accepted_percent(name) / 100
    tolerated = 1 + TOLERANCE_PERCENT / 100
    return count.instructions > values.jobs[name].instructions * accepted * tolerated


def list_slow_jobs(values: Values, counts: Mapping[str, Count]) -> list[str]:
    """Return the jobs that take more instructions than allowed."""
    return [
        name
        for name, count in counts.items()
        if name in values.jobs and _exceeds_limit(values, name, count)
    ]


def keep_lower(
    counts: Mapping[str, Count], repeated: Mapping[str, Count]
) -> dict[str, Count]:
    """Return the lower count of each job."""
    return {
        name: min(count, repeated.get(name, count)) for name, count in counts.items()
    }


def lower_values(values: Values, counts: Mapping[str, Count]) -> Values:
    """Return `values` with the values of faster jobs lowered and obsolete slowdowns
    removed."""
    faster = {
        name: count
        for name, count in counts.items()
        if name in values.jobs and count.instructions < values.jobs[name].instructions
    }
    accepted = [slowdown for slowdown in values.accepted if slowdown.job not in faster]
    return Values(values.environment, {**values.jobs, **faster}, accepted)
