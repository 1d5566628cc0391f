"""What would be submitted, as text: every job, and the GPU-hours that they may come
to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.job_records import JobSpec, Purpose
from pytest_llmbench.core.redaction import mask_environment
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.plan.fit import advise_hours
from pytest_llmbench.launch.plan.job_spec import CHECK_MINUTES
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.problems import (
    WIDTH,
    LaunchProblem,
    describe_problems,
)
from pytest_llmbench.launch.schedulers.registry import load_scheduler


@dataclass(frozen=True, slots=True)
class Reruns:
    """How often a session may run a configuration, start each of these runs again, and
    what may follow a verdict."""

    repeats: int = 1
    retries: int = 0
    # GPU-hours, where a profile follows a regression: one of each configuration
    profiles: float = 0.0
    node_checks: bool = False  # whether nodes that were slow are checked
    named: float = 0.0  # GPU-hours of runs on nodes that the history names


Runs = Mapping[
    str, int
]  # by configuration id how many runs are asked for, where that is more than one

ONCE: Runs = {}


def format_plan(
    planned: Sequence[PlannedJob],
    problems: Sequence[LaunchProblem],
    limit: float | None = None,
    reruns: Reruns = Reruns(),
    runs: Runs = ONCE,
    *,
    shown: Sequence[PlannedJob] = (),
) -> str:
    """Return every job as it would be submitted (those of `shown`, if any), the
    GPU-hours, and the problems; secrets read `***`.

    A later job of one recipe, launcher and purpose shows only where its environment
    differs from the one before it.
    """
    before: dict[tuple[str, ...], dict[str, str]] = {}
    parts = []
    for job in shown or planned:
        environment = dict(mask_environment(job.spec.environment, job.spec.secrets))
        kind = (job.facts.recipe, job.facts.release, job.spec.via, job.spec.purpose)
        parts.append(_format_job(job.spec, environment, before.get(kind)))
        before[kind] = environment
    parts.append(
        "\n".join(
            [*format_budget(planned, limit, reruns, runs), "Nothing was submitted."]
        )
    )
    return "\n\n".join([*parts, *filter(None, [describe_problems(problems)])])


def format_budget(
    planned: Sequence[PlannedJob],
    limit: float | None = None,
    reruns: Reruns = Reruns(),
    runs: Runs = ONCE,
) -> list[str]:
    """Return lines with the jobs and GPU-hours by recipe, the total, what they may come
    to, and the limit if any.

    A configuration of which several runs are asked for counts so many times.
    """
    most = estimate_most((job.spec for job in planned), reruns)
    repeated = reruns.repeats > 1 and any(
        job.spec.purpose is Purpose.MEASURE for job in planned
    )
    every = [job for job in planned for _ in range(runs.get(job.spec.case_id, 1))]
    specs = [job.spec for job in every]
    hours = sum(spec.gpu_hours for spec in specs)
    allowed = f"; {limit:,.10g} are allowed" if limit is not None else ""
    lines = [*_list_recipes(every), f"{_format_hours(specs)}{allowed}"]
    if limit is not None and hours > limit:
        lines.append(
            fill(
                f"more than allowed: {advise_hours(hours)}",
                WIDTH,
                break_on_hyphens=False,
            )
        )
    if most > hours:
        parts = ", ".join(_list_reruns(reruns, repeated=repeated))
        lines.append(fill(f"at most {most:,.1f} GPU-hours: {parts}", WIDTH))
    if limit is not None and most > max(hours, limit):
        lines.append(
            f"what would go beyond the {limit:,.10g} that are allowed is not started"
        )
    return lines


def _list_recipes(jobs: Sequence[PlannedJob]) -> Iterator[str]:
    """Yield the jobs and GPU-hours of each recipe, if there are several."""
    specs: dict[str, list[JobSpec]] = {}
    for job in jobs:
        specs.setdefault(f"{job.facts.recipe} {job.facts.release}", []).append(job.spec)
    if len(specs) > 1:
        yield from (f"{name}: {_format_hours(own)}" for name, own in specs.items())


def _list_reruns(reruns: Reruns, *, repeated: bool) -> Iterator[str]:
    """Yield what a session may start besides first runs."""
    if repeated:
        yield f"{reruns.repeats} runs of each"
    if reruns.retries:
        yield f"{reruns.retries + 1} starts of each {'run' if repeated else 'job'}"
        yield "1 after a standstill"
    if repeated:
        yield "1 on slow nodes"
    if repeated and reruns.node_checks:
        yield "checks of nodes"
    if reruns.profiles:
        yield "1 profile of each"
    if reruns.named:
        yield "1 on each node that the history names"


def estimate_most(specs: Iterable[JobSpec], reruns: Reruns) -> float:
    """Return the GPU-hours if every configuration is run as often as the settings
    allow, each of these runs fails as often as it may, and all that may follow a
    verdict does."""
    return (
        reruns.profiles
        + reruns.named
        + sum(_estimate_most_of(spec, reruns) for spec in specs)
    )


def _estimate_most_of(spec: JobSpec, reruns: Reruns) -> float:
    runs = reruns.repeats if spec.purpose is Purpose.MEASURE else 1
    standstill = min(reruns.retries, 1)
    confirmation = min(runs - 1, 1)  # it is not started again
    starts = runs * (1 + reruns.retries) + standstill + confirmation
    # of the nodes of all its runs, but for those of a fast one
    checked = (
        spec.occupied_gpus * (runs - 1) * CHECK_MINUTES / 60
        if reruns.node_checks
        else 0.0
    )
    return spec.gpu_hours * starts + checked


def _format_hours(specs: Sequence[JobSpec]) -> str:
    unknown, jobs = (
        sum(not spec.gpu_hours for spec in specs),
        count_noun(len(specs), "job"),
    )
    if unknown and unknown == len(specs):
        return f"{jobs} whose duration nothing says yet"
    rest = (
        f" and {count_noun(unknown, 'job')} whose duration nothing says yet"
        if unknown
        else ""
    )
    return (
        f"{jobs}, {sum(spec.gpu_hours for spec in specs):,.1f} GPU-hours of steps{rest}"
    )


def _format_build(spec: JobSpec) -> list[str]:
    """Return the line with the command that is run before a job is submitted, if there
    is one."""
    if not spec.build:
        return []
    where = quote_word(str(spec.checkout))
    return [
        f"  first, where it was not built before: (cd {where} && {redact(shlex.join(spec.build), spec)})"
    ]


def _format_job(
    spec: JobSpec, environment: dict[str, str], before: dict[str, str] | None
) -> str:
    purpose = (
        ""
        if spec.purpose is Purpose.MEASURE
        else f", {spec.purpose}: not judged for speed"
    )
    hours = (
        f"{spec.gpu_hours:,.2f} GPU-hours" if spec.gpu_hours else "GPU-hours unknown"
    )
    size = f"{count_noun(spec.nodes, 'node')}, {count_noun(spec.gpus, 'GPU')}, {hours}{purpose}"
    lines = [
        f"{spec.case_id}  ({' '.join(filter(None, (spec.via, spec.variant)))})",
        f"  {size}",
        *_format_build(spec),
        f"  cd {quote_word(redact(str(spec.directory), spec))}",
        f"  {format_command(spec)}",
        *_format_options(spec),
        *([f"  not on {','.join(spec.exclude)}"] if spec.exclude else []),
        *(f"    {line}" for line in _format_environment(environment, before)),
    ]
    return "\n".join(lines)


def _format_options(spec: JobSpec) -> list[str]:
    """Return the line with what a job gets besides its command, if there is
    anything."""
    if not spec.scheduler_options:
        return []
    program = load_scheduler(spec.via).program
    return [
        f"  {program} also gets {' '.join(map(quote_word, spec.scheduler_options))}"
    ]


def format_command(spec: JobSpec) -> str:
    """Return the command of a job as a shell would take it, without its secrets."""
    return " ".join(quote_word(redact(word, spec)) for word in spec.command)


def _format_environment(
    environment: dict[str, str], before: dict[str, str] | None
) -> Iterator[str]:
    if before is None:
        yield from (
            f"{name}={quote_word(value)}" for name, value in sorted(environment.items())
        )
        return
    changed = {
        name: value for name, value in environment.items() if before.get(name) != value
    }
    yield "the environment of the job above" + (
        ", but:" if changed or before.keys() - environment.keys() else ""
    )
    yield from (
        f"{name}={quote_word(value)}" for name, value in sorted(changed.items())
    )
    yield from (
        f"without {name}" for name in sorted(before.keys() - environment.keys())
    )


def quote_word(text: str) -> str:
    """Return a word as a shell reads it, on one line: what does not print is written as
    bash's $'...' has it."""
    if text.isprintable():
        return text if text == "***" else shlex.quote(text)
    escaped = (_escape(sign) for sign in text)
    return "$'" + "".join(escaped) + "'"


def _escape(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    return (
        sign
        if sign.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogatepass"))
    )
