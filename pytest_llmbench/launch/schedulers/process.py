"""Start commands that outlive pytest, find them again, and stop them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    arguments = [
        "sh",
        "-c",
        WRAPPER,
        str(exit_file),
        mover,
        str(directory),
        program,
        *command[1:],
    ]
    out = _open_output(output)
    try:
        process, gate = _start_held(arguments, {**environment, MARK: mark}, out, mark)
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
    _let_go(process, gate)
    return process


def _start_held(
    arguments: list[str], environment: Mapping[str, str], out: int, mark: str
) -> tuple[Process, int]:
    """Start the wrapper, which waits before it runs the command.

    Returns the process, and the write end of the pipe that releases it.
    """
    read_end, gate = os.pipe()
    try:
        pid = _spawn(arguments, environment, read_end, out)
    except (OSError, ValueError) as error:
        os.close(gate)
        problem = (
            error.strerror
            if isinstance(error, OSError)
            else "its arguments or environment contain invalid text"
        )
        raise LaunchError(f"{arguments[6]} cannot be started: {problem}") from None
    finally:
        os.close(read_end)
    return make_process_record(pid, mark), gate


def make_process_record(pid: int, mark: str) -> Process:
    """Build the record of a child that was just started.

    `mark` is the value of the variable MARK in its environment.
    """
    stat = read_stat(pid)
    return Process(pid, identify(stat.ticks if stat else "-"), mark)


def _let_go(process: Process, gate: int) -> None:
    try:
        os.write(gate, f"{process.mark}\n".encode())
    except OSError as error:
        raise LaunchError(
            f"process {process.pid} ended before its command was started: {error.strerror}"
        ) from None
    finally:
        os.close(gate)


def _spawn(
    arguments: list[str], environment: Mapping[str, str], go: int, out: int
) -> int:
    """Start a shell in a new session. Returns its process id.

    `go` is the descriptor of its input, `out` the descriptor of its output.
    """
    # not subprocess.Popen, which warns if the object is deleted while the child runs
    actions = [
        (os.POSIX_SPAWN_DUP2, go, 0),
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
    """Return the path of the program.

    It contains a slash, so that the shell never runs a builtin or function instead.
    """
    if not command or not command[0]:
        raise LaunchError("the command is empty")
    if not directory.is_dir():
        raise LaunchError(
            f"{command[0]} cannot be started in {directory}: no such folder"
        )
    if any("\0" in argument for argument in command):
        raise LaunchError(
            f"an argument of {command[0]!r} contains a NUL byte: no command accepts that"
        )
    if "/" in command[0]:
        return _check_executable(command[0], directory)
    path = environment.get("PATH", os.defpath)
    folders = os.pathsep.join(
        str(directory / folder) for folder in path.split(os.pathsep)
    )
    program = shutil.which(command[0], path=folders)
    if program is None:
        raise LaunchError(
            f"{command[0]}: no such program in PATH={path} of the job; install it, or set PATH for the job"
        )
    return program


def _check_executable(program: str, directory: Path) -> str:
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
    stat = _find_own(process)
    if stat is not None and stat.ended:
        _reap(process.pid)
    return stat is not None and not stat.ended


def read_exit_code(exit_file: Path) -> int | None:
    """Return the exit code of a command, or None if there is none (yet).

    The code is 128 + signal if a signal ended the command, or NEVER_RAN. None for a
    process that is not alive means that its wrapper was killed or the machine went
    down: its end is unknown.
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
    remaining = _drain(
        process,
        _send_signal(_find_family(process), signal.SIGTERM),
        grace_seconds,
        sleep,
    )
    waited = 0.0
    while remaining and waited < KILL_SECONDS:
        remaining = _drain(process, _send_signal(remaining, signal.SIGKILL), 0.1, sleep)
        waited += 0.1
    if remaining:
        raise LaunchError(
            f"processes {sorted(remaining)} did not end after SIGKILL; inspect them with ps"
        )


def _drain(
    process: Process,
    remaining: dict[int, ProcessStat],
    seconds: float,
    sleep: Callable[[float], object],
) -> dict[int, ProcessStat]:
    """Wait until the remaining processes have ended.

    Returns the processes that are still alive after `seconds`.
    """
    waited, pause = 0.0, 0.01
    while remaining and waited < seconds:
        pause = min(pause * 1.5, 0.25, seconds - waited)
        sleep(pause)
        waited += pause
        remaining = _find_family(process, remaining)
    return remaining


def _send_signal(
    family: dict[int, ProcessStat], number: signal.Signals
) -> dict[int, ProcessStat]:
    for pid in family:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            # remaining processes are counted and reported by `stop`
            continue
    return family


def _find_family(
    process: Process, before: Mapping[int, ProcessStat] | None = None
) -> dict[int, ProcessStat]:
    """Find the living processes of a command, by its mark and its session.

    Another command may have reused the session id. The session is that of the command
    if it contains the leader, a marked process or a process of `before`: the kernel
    does not reuse a session id while a member lives.
    """
    stats = dict(read_stats())
    leader = stats.get(process.pid)
    marked = {
        pid for pid in stats if process.mark and has_variable(pid, MARK, process.mark)
    }
    members = {pid for pid, stat in stats.items() if stat.session == process.pid}
    seen_before = {
        pid
        for pid in members
        if before and pid in before and before[pid].ticks == stats[pid].ticks
    }
    has_leader = leader is not None and is_same(leader, process.started)
    family = (
        marked | members if has_leader or members & marked or seen_before else marked
    )
    if leader is not None and has_leader and leader.ended:
        _reap(process.pid)
    living = [pid for pid in family - {os.getpid()} if not stats[pid].ended]
    # parents first: a shell whose child ends before it would run its next command
    return {
        pid: stats[pid]
        for pid in sorted(living, key=lambda pid: (int(stats[pid].ticks), pid))
    }


def _find_own(process: Process) -> ProcessStat | None:
    stat = read_stat(process.pid)
    return stat if stat is not None and is_same(stat, process.started) else None


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # started by an earlier session
        return


@dataclass(frozen=True, slots=True)
class ProcessStat:
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
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return ProcessStat(state=fields[0], session=int(fields[3]), ticks=fields[19])


def read_stats() -> Iterator[tuple[int, ProcessStat]]:
    """Yield the id and status of all processes."""
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdecimal() else None
        if stat is not None:
            yield int(name), stat


def has_variable(pid: int, variable: str, value: str) -> bool:
    """True if a process was started with this variable, and is not a scheduler's job.

    Schedulers pass variables on to their jobs. False for processes of other users,
    whose environment cannot be read.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = f"{variable}={value}".encode() in variables
    is_job = any(
        entry.partition(b"=")[0].decode(errors="replace") in JOB_VARIABLES
        for entry in variables
    )
    return ours and not is_job


def identify(ticks: str) -> str:
    """Return host, boot, PID namespace and start time: a unique process identity."""
    return " ".join((*_identify_machine(), ticks))


def is_same(stat: ProcessStat, identified: str) -> bool:
    """True if a process of this machine has this identity.

    The host name is ignored, since it may have changed.
    """
    return identify(stat.ticks).split()[1:] == identified.split()[1:]


def check_machine(pid: int, identified: str) -> None:
    """Raise LaunchError if a process belongs to another machine or container."""
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
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname() or "?", boot, os.readlink("/proc/self/ns/pid")
