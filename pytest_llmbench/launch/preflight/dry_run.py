"""Format the plan of a launch: every job, and the GPU-hours."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import fill

from msgspec import Struct

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


class Reruns(Struct, frozen=True):
    """The jobs that may follow the first run of each configuration."""

    repeats: int = 1
    retries: int = 0
    # GPU-hours of one profile per configuration, if regressions are profiled
    profile_hours: float = 0.0
    node_checks: bool = False  # True if slow nodes are checked
    suspect_hours: float = 0.0  # GPU-hours of runs on suspect nodes of the history


# by configuration id: the number of requested runs, if more than one
Runs = Mapping[str, int]

NO_RERUNS = Reruns()
ONCE: Runs = {}  # one run of each configuration


def format_plan(
    planned: Sequence[PlannedJob],
    problems: Sequence[LaunchProblem],
    limit: float | None = None,
    reruns: Reruns = NO_RERUNS,
    runs: Runs = ONCE,
    *,
    shown: Sequence[PlannedJob] = (),
) -> str:
    """Format the jobs that would be submitted, the GPU-hours, and the problems.

    Shows the jobs of `shown` if it is not empty. Secrets are replaced by `***`. The
    environment of a job is shown as the difference from the previous job with the same
    recipe, launcher and purpose.
    """
    # the environment of the newest job, by recipe, release, launcher and purpose
    previous_environments: dict[tuple[str, ...], dict[str, str]] = {}
    sections = []
    for job in shown or planned:
        environment = dict(mask_environment(job.spec.environment, job.spec.secrets))
        group = (job.facts.recipe, job.facts.release, job.spec.via, job.spec.purpose)
        previous = previous_environments.get(group)
        sections.append(_format_job(job.spec, environment, previous))
        previous_environments[group] = environment
    budget = format_budget(planned, limit, reruns, runs)
    sections.append("\n".join([*budget, "Nothing was submitted."]))
    if problems:
        sections.append(describe_problems(problems))
    return "\n\n".join(sections)


def format_budget(
    planned: Sequence[PlannedJob],
    limit: float | None = None,
    reruns: Reruns = NO_RERUNS,
    runs: Runs = ONCE,
) -> list[str]:
    """Format the number of jobs and their GPU-hours, as a list of lines.

    Lists each recipe, the total, the maximum with all reruns, and the limit. A
    configuration with several requested runs counts once per run.
    """
    all_jobs: list[PlannedJob] = []
    for job in planned:
        all_jobs += [job] * runs.get(job.spec.case_id, 1)
    specs = [job.spec for job in all_jobs]
    hours = sum(spec.gpu_hours for spec in specs)
    max_hours = estimate_most((job.spec for job in planned), reruns)
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
    if max_hours > hours:
        # only measured runs are repeated
        has_measured = any(job.spec.purpose is Purpose.MEASURE for job in planned)
        repeated = reruns.repeats > 1 and has_measured
        kinds = ", ".join(_list_reruns(reruns, repeated=repeated))
        lines.append(fill(f"at most {max_hours:,.1f} GPU-hours: {kinds}", WIDTH))
    if limit is not None and max_hours > max(hours, limit):
        lines.append(
            f"jobs beyond the limit of {limit:,.10g} GPU-hours are not started"
        )
    return lines


def _list_recipes(jobs: Sequence[PlannedJob]) -> Iterator[str]:
    """Yield the jobs and GPU-hours of each recipe if there are several recipes."""
    specs_by_recipe: dict[str, list[JobSpec]] = {}
    for job in jobs:
        recipe = f"{job.facts.recipe} {job.facts.release}"
        specs_by_recipe.setdefault(recipe, []).append(job.spec)
    if len(specs_by_recipe) > 1:
        for recipe, specs in specs_by_recipe.items():
            yield f"{recipe}: {_format_hours(specs)}"


def _list_reruns(reruns: Reruns, *, repeated: bool) -> Iterator[str]:
    """Yield the follow-up jobs that the settings allow, with their numbers.

    `repeated` is True if runs are repeated.
    """
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
    job_hours = sum(_estimate_max_hours_of_job(spec, reruns) for spec in specs)
    return reruns.profile_hours + reruns.suspect_hours + job_hours


def _estimate_max_hours_of_job(spec: JobSpec, reruns: Reruns) -> float:
    """Return the most GPU-hours of a job with all repeats, retries and node checks."""
    # only measured runs are repeated
    runs = reruns.repeats if spec.purpose is Purpose.MEASURE else 1
    stall_retries = 1 if reruns.retries else 0  # of all runs together
    confirmations = 1 if runs > 1 else 0  # a run on slow nodes, never retried
    # each run is started once, and again after each failure of the infrastructure
    starts = runs * (1 + reruns.retries) + stall_retries + confirmations
    check_hours = 0.0
    if reruns.node_checks:
        # the nodes of all runs except one fast run may be checked
        check_hours = spec.occupied_gpus * (runs - 1) * CHECK_MINUTES / 60
    return spec.gpu_hours * starts + check_hours


def _format_hours(specs: Sequence[JobSpec]) -> str:
    """Format the number of jobs and their GPU-hours, as far as known."""
    jobs = count_noun(len(specs), "job")
    hours = sum(spec.gpu_hours for spec in specs)
    unknown_count = sum(not spec.gpu_hours for spec in specs)
    if not unknown_count:
        return f"{jobs}, {hours:,.1f} GPU-hours of steps"
    if unknown_count == len(specs):
        return f"{jobs} of unknown duration"
    unknown_jobs = count_noun(unknown_count, "job")
    return f"{jobs}, {hours:,.1f} GPU-hours of steps and {unknown_jobs} of unknown duration"


def _format_build(spec: JobSpec) -> list[str]:
    """Format the command that builds a job's checkout, if any."""
    if not spec.build:
        return []
    checkout = quote_word(str(spec.checkout))
    command = redact(shlex.join(spec.build), spec)
    return [f"  first, unless built before: (cd {checkout} && {command})"]


def _format_job(
    spec: JobSpec, environment: dict[str, str], previous: dict[str, str] | None
) -> str:
    """Format a planned job: size, folder, command, options and environment.

    `environment` is the masked environment of the job, `previous` that of the previous
    job in the same group, or None.
    """
    nodes, gpus = count_noun(spec.nodes, "node"), count_noun(spec.gpus, "GPU")
    hours = "GPU-hours unknown"
    if spec.gpu_hours:
        hours = f"{spec.gpu_hours:,.2f} GPU-hours"
    purpose = ""
    if spec.purpose is not Purpose.MEASURE:
        purpose = f", {spec.purpose}: not judged for speed"
    launcher = f"{spec.via} {spec.variant}" if spec.variant else spec.via
    lines = [
        f"{spec.case_id}  ({launcher})",
        f"  {nodes}, {gpus}, {hours}{purpose}",
        *_format_build(spec),
        f"  cd {quote_word(redact(str(spec.directory), spec))}",
        f"  {format_command(spec)}",
        *_format_options(spec),
    ]
    if spec.exclude:
        lines.append(f"  excluded nodes: {','.join(spec.exclude)}")
    for line in _format_environment(environment, previous):
        lines.append(f"    {line}")
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
        for name, value in sorted(environment.items()):
            yield f"{name}={quote_word(value)}"
        return
    changed = {
        name: value
        for name, value in environment.items()
        if previous.get(name) != value
    }
    removed = previous.keys() - environment.keys()
    if not changed and not removed:
        yield "same environment as the job above"
        return
    yield "same environment as the job above, except:"
    for name, value in sorted(changed.items()):
        yield f"{name}={quote_word(value)}"
    for name in sorted(removed):
        yield f"without {name}"


def quote_word(text: str) -> str:
    """Quote a word for a shell, on one line.

    Characters that cannot be printed are escaped as in bash's $'...'. The mask of a
    secret (***) is not quoted.
    """
    if text.isprintable():
        return text if text == "***" else shlex.quote(text)
    escaped = (_escape(character) for character in text)
    return "$'" + "".join(escaped) + "'"


def _escape(character: str) -> str:
    """Escape a character for bash's $'...': a newline becomes `\\x0a`."""
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    encoded = character.encode(errors="surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)
