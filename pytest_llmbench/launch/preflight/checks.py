"""Everything that can be known to go wrong, before anything is submitted: all of it at once, with the remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.core.models.jobs import Cluster
from pytest_llmbench.launch.preflight import check_files
from pytest_llmbench.launch.preflight.check_files import LocalMachine
from pytest_llmbench.launch.preflight.check_slurm import ClusterLimits, check_slurm
from pytest_llmbench.launch.preflight.problems import (
    JobProblem,
    LaunchProblem,
    PlannedJob,
    group_problems,
)
from pytest_llmbench.launch.slurm.client import CommandOutput, Runner

CHECKS = (
    check_files.check_variables,
    check_files.check_stage,
    check_files.check_script,
    check_files.check_image,
    check_files.check_programs,
    check_files.check_python,
    check_files.check_checkpoint,
)


def check_launch(
    planned: Sequence[PlannedJob], cluster: Cluster, slurm: ClusterLimits | None, machine: LocalMachine | None = None
) -> tuple[LaunchProblem, ...]:
    """Return what stands in the way of these jobs, nothing if nothing does; `slurm` None where this machine has none.

    It writes nothing, and asks Slurm at most once for its partitions and its accounts.
    """
    return group_problems(_run_checks(planned, cluster, slurm, _remembering(machine or LocalMachine())))


def _run_checks(
    planned: Sequence[PlannedJob], cluster: Cluster, slurm: ClusterLimits | None, machine: LocalMachine
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    for check in CHECKS:
        yield from ((job, finding) for job in planned for finding in _report_denied(check(job, machine)))
    yield from check_files.check_room(planned, machine)
    yield from check_slurm(planned, cluster, slurm)


def _report_denied(findings: Iterator[JobProblem]) -> Iterator[JobProblem]:
    """Yield findings, and as one of them a folder that this user may not enter: whether a file is there raises then."""
    try:
        yield from findings
    except PermissionError as error:
        yield JobProblem(
            f"{error.filename}: {error.strerror}", "ask the owner of its folder for the permission to enter it"
        )


def _remembering(machine: LocalMachine) -> LocalMachine:
    """Return a machine that runs equal commands once: two hundred jobs use one Python."""
    return replace(machine, run=_remember_outputs(machine.run))


def _remember_outputs(run: Runner) -> Runner:
    outputs: dict[tuple[str, ...], CommandOutput] = {}

    def remember(
        arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
    ) -> CommandOutput:
        words = tuple(arguments)
        if words not in outputs:
            outputs[words] = run(arguments, timeout=timeout, environment=environment)
        return outputs[words]

    return remember
