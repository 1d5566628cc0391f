"""What /proc says of the processes of this machine (proc(5))."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Of one process: its state (one letter), session, and start time in clock ticks since the boot."""

    state: str
    session: int
    ticks: str

    @property
    def ended(self) -> bool:
        """Whether it is a zombie or dead."""
        return self.state in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return what is known of a process, None where there is none of this number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return ProcessStat(state=fields[0], session=int(fields[3]), ticks=fields[19])


def read_stats() -> Iterator[tuple[int, ProcessStat]]:
    """Yield all processes that are there."""
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdecimal() else None
        if stat is not None:
            yield int(name), stat


def has_variable(pid: int, variable: str, value: str) -> bool:
    """Whether a process was started with this variable, and not by Slurm, which hands variables on to its jobs.

    False for a process of another user, which cannot be looked at.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = f"{variable}={value}".encode() in variables
    return ours and not any(entry.startswith(b"SLURM_JOB_ID=") for entry in variables)


def identify(ticks: str) -> str:
    """Return the host, boot, PID namespace and start time, which make a process number unique."""
    return " ".join((*_identify_machine(), ticks))


def is_same(stat: ProcessStat, identified: str) -> bool:
    """Whether a process of this machine is the one of that identity; the host may have got another name meanwhile."""
    return identify(stat.ticks).split()[1:] == identified.split()[1:]


def check_machine(pid: int, identified: str) -> None:
    """LaunchError where nothing can be known here of a process: another machine, or another container on this one."""
    host, boot, namespace, _ = identified.split()
    here, this_boot, this_namespace = _identify_machine()
    rebooted = boot != this_boot and host == here
    if not rebooted and (boot, namespace) != (this_boot, this_namespace):
        raise LaunchError(
            f"process {pid} was started on {host}; this is {here}, or another container on it, where nobody can tell "
            "whether it still runs: go on where it was started"
        )


def list_inherited() -> Iterator[int]:
    """Yield the open files that a child would get, such as the pipe of a CI that waits for its end; not 0, 1 and 2."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and os.get_inheritable(number):
                yield number
        except OSError:  # the listing's own, closed by now
            continue


def _identify_machine() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname() or "?", boot, os.readlink("/proc/self/ns/pid")
