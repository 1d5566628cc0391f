"""Format the plan of a launch: every job, and the GPU-hours."""

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
    """The jobs that may follow the first run of each configuration."""

    repeats: int = 1
    retries: int = 0
    # GPU-hours of one profile per configuration, if regressions are profiled
    profile_hours: float = 0.0
    node_checks: bool = False  # True if slow nodes are checked
    suspect_hours: float = 0.0  # GPU-hours of runs on suspect nodes of the history


Runs = Mapping[
    str, int
]  # by configuration id: the number of requested runs, if more than one

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
    """Format the jobs that would be submitted, the GPU-hours, and the problems.

    Shows the jobs of `shown` if it is not empty. Secrets are replaced by `***`. The
    environment of a job is shown as the difference from the previous job with the same
    recipe, launcher and purpose.
    """
    previous: dict[tuple[str, ...], dict[str, str]] = {}
    sections = []
    for job in shown or planned:
        environment = dict(mask_environment(job.spec.environment, job.spec.secrets))
        group = (job.facts.recipe, job.facts.release, job.spec.via, job.spec.purpose)
        sections.append(_format_job(job.spec, environment, previous.get(group)))
        previous[group] = environment
    sections.append(
        "\n".join(
            [*format_budget(planned, limit, reruns, runs), "Nothing was submitted."]
        )
    )
    return "\n\n".join([*sections, *filter(None, [describe_problems(problems)])])


def format_budget(
    planned: Sequence[PlannedJob],
    limit: float | None = None,
    reruns: Reruns = Reruns(),
    runs: Runs = ONCE,
) -> list[str]:
    """Format the number of jobs and their GPU-hours, as a list of lines.

    Lists each recipe, the total, the maximum with all reruns, and the limit. A
    configuration with several requested runs counts once per run.
    """
    maximum = estimate_most((job.spec for job in planned), reruns)
    repeated = reruns.repeats > 1 and any(
        job.spec.purpose is Purpose.MEASURE for job in planned
    )
    all_jobs = [job for job in planned for _ in range(runs.get(job.spec.case_id, 1))]
    specs = [job.spec for job in all_jobs]
    hours = sum(spec.gpu_hours for spec in specs)
    limit_text = f"; limit {limit:,.10g}" if limit is not None else ""
    lines = [*_list_recipes(all_jobs), f"{_format_hours(specs)}{limit_text}"]
    if limit is not None and hours > limit:
        lines.append(
            fill(
                f"over the limit: {advise_hours(hours)}",
                WIDTH,
                break_on_hyphens=False,
            )
        )
    if maximum > hours:
        kinds = ", ".join(_list_reruns(reruns, repeated=repeated))
        lines.append(fill(f"at most {maximum:,.1f} GPU-hours: {kinds}", WIDTH))
    if limit is not None and maximum > max(hours, limit):
        lines.append(
            f"jobs beyond the limit of {limit:,.10g} GPU-hours are not started"
        )
    return lines


def _list_recipes(jobs: Sequence[PlannedJob]) -> Iterator[str]:
    """Yield the jobs and GPU-hours of each recipe if there are several recipes."""
    specs: dict[str, list[JobSpec]] = {}
    for job in jobs:
        specs.setdefault(f"{job.facts.recipe} {job.facts.release}", []).append(job.spec)
    if len(specs) > 1:
        yield from (
            f"{name}: {_format_hours(recipe_specs)}"
            for name, recipe_specs in specs.items()
        )


def _list_reruns(reruns: Reruns, *, repeated: bool) -> Iterator[str]:
    """Yield the follow-up jobs that the settings allow, with their numbers."""
    if repeated:
        yield f"{reruns.repeats} runs of each configuration"
    if reruns.retries:
        yield f"{reruns.retries + 1} starts of each {'run' if repeated else 'job'}"
        yield "1 retry after a stall"
    if repeated:
        yield "1 run on slow nodes"
    if repeated and reruns.node_checks:
        yield "node checks"
    if reruns.profile_hours:
        yield "1 profile of each configuration"
    if reruns.suspect_hours:
        yield "1 run on each suspect node of the history"


def estimate_most(specs: Iterable[JobSpec], reruns: Reruns) -> float:
    """Estimate the maximum GPU-hours of a session.

    Assumes that every configuration is repeated and retried as often as the settings
    allow, and that every follow-up job is started.
    """
    return (
        reruns.profile_hours
        + reruns.suspect_hours
        + sum(_estimate_maximum_of(spec, reruns) for spec in specs)
    )


def _estimate_maximum_of(spec: JobSpec, reruns: Reruns) -> float:
    """Return the most GPU-hours of a job with all repeats, retries and node checks."""
    runs = reruns.repeats if spec.purpose is Purpose.MEASURE else 1
    stall_retries = min(reruns.retries, 1)
    confirmation = min(runs - 1, 1)  # never retried
    starts = runs * (1 + reruns.retries) + stall_retries + confirmation
    # the nodes of all runs except one fast run may be checked
    node_checks = (
        spec.occupied_gpus * (runs - 1) * CHECK_MINUTES / 60
        if reruns.node_checks
        else 0.0
    )
    return spec.gpu_hours * starts + node_checks


def _format_hours(specs: Sequence[JobSpec]) -> str:
    unknown = sum(not spec.gpu_hours for spec in specs)
    jobs = count_noun(len(specs), "job")
    if unknown and unknown == len(specs):
        return f"{jobs} of unknown duration"
    unknown_text = (
        f" and {count_noun(unknown, 'job')} of unknown duration" if unknown else ""
    )
    return f"{jobs}, {sum(spec.gpu_hours for spec in specs):,.1f} GPU-hours of steps{unknown_text}"


def _format_build(spec: JobSpec) -> list[str]:
    """Format the command that builds a job's checkout, if any."""
    if not spec.build:
        return []
    checkout = quote_word(str(spec.checkout))
    return [
        f"  first, unless built before: (cd {checkout} && {redact(shlex.join(spec.build), spec)})"
    ]


def _format_job(
    spec: JobSpec, environment: dict[str, str], previous: dict[str, str] | None
) -> str:
    """Format a planned job: size, folder, command, options and environment."""
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
        *([f"  excluded nodes: {','.join(spec.exclude)}"] if spec.exclude else []),
        *(f"    {line}" for line in _format_environment(environment, previous)),
    ]
    return "\n".join(lines)


def _format_options(spec: JobSpec) -> list[str]:
    """Format the scheduler options of a job, if any."""
    if not spec.scheduler_options:
        return []
    program = load_scheduler(spec.via).program
    return [
        f"  with {program} options: {' '.join(map(quote_word, spec.scheduler_options))}"
    ]


def format_command(spec: JobSpec) -> str:
    """Format the command of a job as a shell would read it, with masked secrets."""
    return " ".join(quote_word(redact(word, spec)) for word in spec.command)


def _format_environment(
    environment: dict[str, str], previous: dict[str, str] | None
) -> Iterator[str]:
    """Yield the variables of a job, or those that differ from the previous job."""
    if previous is None:
        yield from (
            f"{name}={quote_word(value)}" for name, value in sorted(environment.items())
        )
        return
    changed = {
        name: value
        for name, value in environment.items()
        if previous.get(name) != value
    }
    yield "same environment as the job above" + (
        ", except:" if changed or previous.keys() - environment.keys() else ""
    )
    yield from (
        f"{name}={quote_word(value)}" for name, value in sorted(changed.items())
    )
    yield from (
        f"without {name}" for name in sorted(previous.keys() - environment.keys())
    )


def quote_word(text: str) -> str:
    """Quote a word for a shell, on one line.

    Characters that cannot be printed are escaped as in bash's $'...'.
    """
    if text.isprintable():
        return text if text == "***" else shlex.quote(text)
    escaped = (_escape(character) for character in text)
    return "$'" + "".join(escaped) + "'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return (
        character
        if character.isprintable()
        else "".join(
            f"\\x{byte:02x}" for byte in character.encode(errors="surrogatepass")
        )
    )
