"""Start commands that outlive pytest, find them again, and stop them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import JOB_VARIABLES
from pytest_llmbench.core.redaction import MASK
from pytest_llmbench.core.userfile import path_exists

# the environment variable that identifies all descendants of a command, even those that
# left its session
MARK = "LLMBENCH_PROCESS"

# the exit code of a command that never ran, because its starter died first
NEVER_RAN = -1

# $0 is the file for the exit code, $1 mv, $2 the folder, the remaining arguments are the
# command. The wrapper waits for a line before it runs the command: the starter records
# the process first, and if it dies before that, nothing runs. Only MARK is assigned,
# because any other name could be a variable of the job. The trap, which the command
# does not inherit, keeps the shell alive until the command ends.
WRAPPER = f"""
trap : HUP INT QUIT TERM
leave() {{ printf '%s\\n' "$3" >"$1.part" && "$2" -f -- "$1.part" "$1"; }}
read -r {MARK} || {{ leave "$0" "$1" {NEVER_RAN}; exit 125; }}
command_of() {{ shift 2; "$@"; }}
cd -- "$2" && unset OLDPWD && command_of "$@" </dev/null
set -- "$1" "$?"
leave "$0" "$1" "$2"
exit "$2"
"""

KILL_SECONDS = 10.0
DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


@dataclass(frozen=True, slots=True)
class Process:
    """A started command."""

    pid: int
    # machine, boot, PID namespace and start time: distinguishes a reused process id
    started: str
    mark: str = ""  # the value of MARK in its environment


def start(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    output: Path,
    exit_file: Path,
    *,
    record: Callable[[Process], object] = lambda process: None,
) -> Process:
    """Start a command in a new session, with its output in the file `output`.

    `record` is called with the process before the command runs; if `record` raises, or
    this process dies in it, the command never runs. When the command ends, `exit_file`
    appears with its exit code. Paths may be relative to the folder of this process.

    Raises LaunchError if nothing was started: the program or folder does not exist,
    `output` or `exit_file` exists already (a command was started before), the disk is
    full, or the environment cannot be passed on.
    """
    exit_file, directory = exit_file.absolute(), directory.absolute()
    program = _find_program(command, directory, environment)
    _check_environment(environment)
    if path_exists(exit_file):
        raise LaunchError(
            f"{exit_file} exists: a command was already started here, and is not started again"
        )
    mark = secrets.token_hex(16)
    mover = shutil.which("mv", path=os.defpath) or "mv"
    shell = ["sh", "-c", WRAPPER, str(exit_file), mover, str(directory)]
    full_command = [program, *command[1:]]
    marked_environment = {**environment, MARK: mark}
    out = _open_output(output)
    try:
        # the wrapper runs the command as soon as it reads a line from the pipe `gate`
        process, gate = _start_wrapper(
            shell, full_command, marked_environment, out, mark
        )
    except BaseException:
        output.unlink()
        raise
    finally:
        os.close(out)
    try:
        record(process)
    except BaseException:
        os.close(gate)  # end of file: the wrapper ends, and the command never runs
        os.waitpid(process.pid, 0)
        output.unlink()
        exit_file.unlink(missing_ok=True)
        raise
    _release_wrapper(process, gate)
    return process


def _start_wrapper(
    shell: list[str],
    command: list[str],
    environment: Mapping[str, str],
    out: int,
    mark: str,
) -> tuple[Process, int]:
    """Start the wrapper, which waits before it runs the command.

    `shell` is the call of the wrapper, `out` the descriptor of its output. Returns the
    process, and the write end of the pipe that releases it. Raises LaunchError.
    """
    read_end, gate = os.pipe()
    try:
        pid = _spawn([*shell, *command], environment, read_end, out)
    except (OSError, ValueError) as error:
        os.close(gate)
        problem: str | None = "its arguments or environment contain invalid text"
        if isinstance(error, OSError):
            problem = error.strerror
        raise LaunchError(f"{command[0]} cannot be started: {problem}") from None
    finally:
        os.close(read_end)
    return make_process_record(pid, mark), gate


def make_process_record(pid: int, mark: str) -> Process:
    """Build the record of a child that was just started.

    `mark` is the value of the variable MARK in its environment.
    """
    stat = read_stat(pid)
    return Process(pid, identify(stat.ticks if stat else "-"), mark)


def _release_wrapper(process: Process, gate: int) -> None:
    """Let the wrapper run the command: write the line for which the wrapper waits.

    The line is the value of MARK. `gate` is closed. Raises LaunchError if the wrapper
    has ended.
    """
    try:
        os.write(gate, f"{process.mark}\n".encode())
    except OSError as error:
        raise LaunchError(
            f"process {process.pid} ended before its command was started: {error.strerror}"
        ) from None
    finally:
        os.close(gate)


def _spawn(
    arguments: list[str], environment: Mapping[str, str], read_end: int, out: int
) -> int:
    """Start a shell in a new session. Returns its process id.

    `read_end` is the descriptor of its input, `out` the descriptor of its output.
    """
    # not subprocess.Popen, which warns if the object is deleted while the child runs
    actions = [
        (os.POSIX_SPAWN_DUP2, read_end, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, out, 2),
    ]
    closes = [(os.POSIX_SPAWN_CLOSE, number) for number in list_inherited()]
    return os.posix_spawn(
        shutil.which("sh", path=os.defpath) or "/bin/sh",
        arguments,
        environment,
        file_actions=[*actions, *closes],
        setsid=True,
        setsigmask=(),
        setsigdef=DEFAULT_SIGNALS,
    )


def _find_program(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> str:
    """Return the path of the program of a command. Raises LaunchError.

    The path contains a slash, so that the shell never runs a builtin or function
    instead.
    """
    name = command[0] if command else ""
    if not name:
        raise LaunchError("the command is empty")
    if not directory.is_dir():
        raise LaunchError(f"{name} cannot be started in {directory}: no such folder")
    if any("\0" in argument for argument in command):
        raise LaunchError(
            f"an argument of {name!r} contains a NUL byte: no command accepts that"
        )
    if "/" in name:
        return _check_executable(name, directory)
    path = environment.get("PATH", os.defpath)
    # relative folders of PATH are resolved against the folder of the job
    folders = os.pathsep.join(
        str(directory / folder) for folder in path.split(os.pathsep)
    )
    program = shutil.which(name, path=folders)
    if program is None:
        raise LaunchError(
            f"{name}: no such program in PATH={path} of the job; install it, or set PATH for the job"
        )
    return program


def _check_executable(program: str, directory: Path) -> str:
    """Return `program` if it is an executable file. Raises LaunchError."""
    file = directory / program
    if not file.is_file():
        raise LaunchError(f"{file}: no such program; check the folder of the recipe")
    if not os.access(file, os.X_OK):
        raise LaunchError(f"{file} is not executable; chmod +x {file}")
    return program


def _check_environment(environment: Mapping[str, str]) -> None:
    """Refuse variables that a shell would drop or change, and redacted values.

    Messages omit the values. Raises LaunchError.
    """
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise LaunchError(
                f"environment variable {name!r}: the name must be letters, digits and underscores"
            )
        if "\0" in value:
            raise LaunchError(
                f"environment variable {name}: the value contains a NUL byte: no process accepts that"
            )
        if value == MASK:
            raise LaunchError(
                f"environment variable {name}: its value was redacted, not stored; set {name} again"
            )


def _open_output(output: Path) -> int:
    """Create the output file of a command.

    Raises LaunchError if the file exists, because a command must not be started twice.
    """
    try:
        return os.open(
            output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
        )
    except FileExistsError:
        text = f"{output} exists: a command was already started here, and is not started again"
        raise LaunchError(text) from None
    except OSError as error:
        raise LaunchError(
            f"{output} cannot be written: {error.strerror}; check that its folder exists and has space"
        ) from None


def is_alive(process: Process) -> bool:
    """True if the command runs.

    Its background processes may outlive it; `stop` ends them, too. Raises LaunchError
    if the process belongs to another machine or container.
    """
    check_machine(process.pid, process.started)
    stat = _read_own_stat(process)
    if stat is None:
        return False
    if stat.ended:  # a zombie
        _reap(process.pid)
    return not stat.ended


def read_exit_code(exit_file: Path) -> int | None:
    """Return the exit code of a command, or None if there is none (yet).

    The code is 128 + signal if a signal ended the command, or NEVER_RAN. If the command
    does not run any more, None means that its end is unknown: its wrapper was killed,
    or the machine went down.
    """
    try:
        text = exit_file.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{exit_file} cannot be read: {error.strerror}") from None
    return int(text) if re.fullmatch(rf"[0-9]{{1,3}}|{NEVER_RAN}", text) else None


def wait(
    process: Process, exit_file: Path, timeout: float, sleep: Callable[[float], object]
) -> int | None:
    """Wait for a command and return its exit code.

    None if it did not end within `timeout` seconds, or left no exit code.
    """
    waited, pause = 0.0, 0.002  # a submission takes some milliseconds, or minutes
    while waited < timeout and is_alive(process):
        pause = min(pause * 1.5, 1.0, timeout - waited)
        sleep(pause)
        waited += pause
    return read_exit_code(exit_file)


def stop(
    process: Process, grace_seconds: float, sleep: Callable[[float], object]
) -> None:
    """End a command and its descendants on this machine.

    Sends TERM, then KILL after `grace_seconds`. Other processes are not touched, in
    particular jobs that the command submitted to a scheduler on this machine. Raises
    LaunchError if a process survives KILL for 10 s, or belongs to another machine.
    """
    check_machine(process.pid, process.started)
    family = _find_family(process)
    _send_signal(family, signal.SIGTERM)
    remaining = _wait_for_family(process, family, grace_seconds, sleep)
    waited = 0.0
    while remaining and waited < KILL_SECONDS:
        _send_signal(remaining, signal.SIGKILL)
        remaining = _wait_for_family(process, remaining, 0.1, sleep)
        waited += 0.1
    if remaining:
        raise LaunchError(
            f"processes {sorted(remaining)} did not end after SIGKILL; inspect them with ps"
        )


def _wait_for_family(
    process: Process,
    family: dict[int, ProcessStat],
    seconds: float,
    sleep: Callable[[float], object],
) -> dict[int, ProcessStat]:
    """Wait until the processes of a command have ended.

    Returns the processes that are still alive after `seconds`.
    """
    waited, pause = 0.0, 0.01
    while family and waited < seconds:
        pause = min(pause * 1.5, 0.25, seconds - waited)
        sleep(pause)
        waited += pause
        family = _find_family(process, family)
    return family


def _send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, except those that ended or belong to another user."""
    for pid in pids:
        # `stop` reports the processes that do not end
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _find_family(
    process: Process, before: Mapping[int, ProcessStat] | None = None
) -> dict[int, ProcessStat]:
    """Find the living processes of a command.

    These are the processes with its mark, and the processes of its session, whose id is
    the process id of the wrapper (the leader). Another command may have reused the
    session id, but not while a member lives. So the session still belongs to the
    command if it contains the leader, a marked process, or a process of `before`, which
    an earlier call found.
    """
    stats = dict(read_stats())
    leader = stats.get(process.pid)
    if leader is not None and not is_same(leader, process.started):
        leader = None  # another process with a reused process id
    marked = set()
    if process.mark:
        marked = {pid for pid in stats if has_variable(pid, MARK, process.mark)}
    members = {pid for pid, stat in stats.items() if stat.session == process.pid}
    found_before = {  # equal start times: the process id was not reused
        pid
        for pid in members
        if before and pid in before and before[pid].ticks == stats[pid].ticks
    }
    is_own_session = leader is not None or members & marked or found_before
    family = marked | members if is_own_session else marked
    if leader is not None and leader.ended:
        _reap(process.pid)
    living = [pid for pid in family - {os.getpid()} if not stats[pid].ended]
    # parents first: a shell whose child ends before it would run its next command
    return {
        pid: stats[pid]
        for pid in sorted(living, key=lambda pid: (int(stats[pid].ticks), pid))
    }


def _read_own_stat(process: Process) -> ProcessStat | None:
    """Read the status of a process, or return None if its id was reused or is free."""
    stat = read_stat(process.pid)
    return stat if stat is not None and is_same(stat, process.started) else None


def _reap(pid: int) -> None:
    """Remove a zombie, unless an earlier session started the process."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class ProcessStat(Struct, frozen=True):
    """The kernel's status of one process."""

    state: str  # one letter
    session: int
    ticks: str  # the start time, in clock ticks since boot

    @property
    def ended(self) -> bool:
        """True if the process is a zombie or dead."""
        return self.state in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Read the status of a process, or return None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # `4711 (python) S 1 4711 4711 ...`: the name in parentheses may contain anything
    _, _, after_name = text.rpartition(")")
    fields = after_name.split()  # begins with the third field of proc_pid_stat(5)
    return ProcessStat(state=fields[0], session=int(fields[3]), ticks=fields[19])


def read_stats() -> Iterator[tuple[int, ProcessStat]]:
    """Yield the id and status of all processes."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        pid = int(name)
        stat = read_stat(pid)
        if stat is not None:
            yield pid, stat


def has_variable(pid: int, variable: str, value: str) -> bool:
    """True if a process was started with this variable, and is not a scheduler's job.

    Schedulers pass variables on to their jobs. False for processes of other users,
    whose environment cannot be read.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    if f"{variable}={value}".encode() not in variables:
        return False
    for entry in variables:
        name, _, _ = entry.partition(b"=")
        if name.decode(errors="replace") in JOB_VARIABLES:  # set by a scheduler
            return False
    return True


def identify(ticks: str) -> str:
    """Return host, boot, PID namespace and start time: a unique process identity."""
    return " ".join((*_identify_machine(), ticks))


def is_same(stat: ProcessStat, identified: str) -> bool:
    """True if a process of this machine has this identity.

    The host name is ignored, since it may have changed.
    """
    _host, _, actual = identify(stat.ticks).partition(" ")
    _host, _, expected = identified.partition(" ")
    return actual == expected


def check_machine(pid: int, identified: str) -> None:
    """Raise LaunchError if a process belongs to another machine or container.

    A process that this machine ran before a reboot is accepted: it has ended.
    """
    host, boot, namespace, _ = identified.split()
    here, this_boot, this_namespace = _identify_machine()
    rebooted = boot != this_boot and host == here
    if not rebooted and (boot, namespace) != (this_boot, this_namespace):
        raise LaunchError(
            f"process {pid} was started on {host}, but this is {here} or another container on it, so its state is "
            "unknown: continue where it was started"
        )


def list_inherited() -> Iterator[int]:
    """Yield the file descriptors above 2 that a child would inherit.

    For example the pipe of a CI system that waits until all its writers end.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and os.get_inheritable(number):
                yield number
        except OSError:  # the descriptor of the listing itself, closed by now
            continue


def _identify_machine() -> tuple[str, str, str]:
    """Return the host name, and the ids of the boot and of the PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname() or "?", boot, os.readlink("/proc/self/ns/pid")
