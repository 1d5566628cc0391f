"""Everything that can be known to go wrong, before anything is submitted: all of it at once, with the remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.core.models.jobs import Cluster
from pytest_llmbench.launch.preflight import check_files
from pytest_llmbench.launch.preflight.check_files import Machine
from pytest_llmbench.launch.preflight.check_slurm import Scheduler, check_slurm
from pytest_llmbench.launch.preflight.problems import Finding, Planned, Problem, grouped, told
from pytest_llmbench.launch.slurm.runner import Done, Runner

__all__ = ["Machine", "Planned", "Problem", "preflight", "told"]

CHECKS = (
    check_files.check_variables,
    check_files.check_stage,
    check_files.check_script,
    check_files.check_image,
    check_files.check_programs,
    check_files.check_python,
    check_files.check_checkpoint,
)


def preflight(
    planned: Sequence[Planned], cluster: Cluster, slurm: Scheduler | None, machine: Machine | None = None
) -> tuple[Problem, ...]:
    """Return what stands in the way of these jobs, nothing if nothing does; `slurm` None where this machine has none.

    It writes nothing, and asks Slurm at most once for its partitions and its accounts.
    """
    return grouped(_found(planned, cluster, slurm, _remembering(machine or Machine())))


def _found(
    planned: Sequence[Planned], cluster: Cluster, slurm: Scheduler | None, machine: Machine
) -> Iterator[tuple[Planned, Finding]]:
    for check in CHECKS:
        yield from ((job, finding) for job in planned for finding in _allowed(check(job, machine)))
    yield from check_files.check_room(planned, machine)
    yield from check_slurm(planned, cluster, slurm)


def _allowed(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, and as one of them a folder that this user may not enter: whether a file is there raises then."""
    try:
        yield from findings
    except PermissionError as error:
        yield Finding(
            f"{error.filename}: {error.strerror}", "ask the owner of its folder for the permission to enter it"
        )


def _remembering(machine: Machine) -> Machine:
    """Return a machine that runs equal commands once: two hundred jobs use one Python."""
    return replace(machine, run=_remembered(machine.run))


def _remembered(run: Runner) -> Runner:
    known: dict[tuple[str, ...], Done] = {}

    def remembered(arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> Done:
        words = tuple(arguments)
        if words not in known:
            known[words] = run(arguments, timeout=timeout, environment=environment)
        return known[words]

    return remembered
