"""Commands that outlive pytest: started in a session of their own, found again, stopped
with all that they started."""

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
from pytest_llmbench.core.userfile import is_there

# the variable by which whatever a command started is known, also after it left the
# session of the command
MARK = "LLMBENCH_PROCESS"

# the exit code of a command whose wrapper waited in vain: who started it died before it
# ran
NEVER_RAN = -1

# $0 is the file for the exit code, $1 mv, $2 the folder, the rest the command. It waits
# for a line before it starts: who started it writes the process down first, and if it
# dies before, nothing runs. Only MARK is assigned, because any other name could be a
# variable of the job. The trap, which the command does not inherit, keeps the shell to
# its end.
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
    # its machine, boot, PID namespace and start time, so that a number that is used
    # again is not taken for it
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
    """Start a command in a session of its own and return its process; standard output
    and error go to `output`.

    `record` gets the process before the command runs: where it raises, or this process
    dies in it, the command never runs. When the command has ended, `exit_file` appears
    with its exit code. LaunchError (nothing was started): no such program or folder, an
    `output` or `exit_file` that exists (a command was started there), a full disk, an
    environment that cannot be passed on. Paths may be relative to the folder of this
    process.
    """
    exit_file, directory = exit_file.absolute(), directory.absolute()
    program = _find_program(command, directory, environment)
    _check_environment(environment)
    if is_there(exit_file):
        raise LaunchError(
            f"{exit_file} exists: a command was started here before, and is not started again"
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
    """The wrapper, which waits, and the pipe on which it waits."""
    go, gate = os.pipe()
    try:
        pid = _spawn(arguments, environment, go, out)
    except (OSError, ValueError) as error:
        os.close(gate)
        problem = (
            error.strerror
            if isinstance(error, OSError)
            else "it holds text that no process can be given"
        )
        raise LaunchError(f"{arguments[6]} cannot be started: {problem}") from None
    finally:
        os.close(go)
    return describe(pid, mark), gate


def describe(pid: int, mark: str) -> Process:
    """Return the record of a child that was just started with MARK in its
    environment."""
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
    # not subprocess.Popen: it complains about a child that is still running when it is
    # let go
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
    """The program as the wrapper runs it: with a slash, so that the shell never takes
    it for a word of its own."""
    if not command or not command[0]:
        raise LaunchError("there is no command to start")
    if not directory.is_dir():
        raise LaunchError(
            f"{command[0]} cannot be started in {directory}: there is no such folder"
        )
    if any("\0" in argument for argument in command):
        raise LaunchError(
            f"an argument of {command[0]!r} holds a NUL byte, which no command can be given"
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
    """Refuse what would not arrive as it is (a shell drops variables with other names),
    without showing a value."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise LaunchError(
                f"environment variable {name!r}: the name must be letters, digits and underscores"
            )
        if "\0" in value:
            raise LaunchError(
                f"environment variable {name}: the value holds a NUL byte, which no process can be given"
            )
        if value == MASK:
            raise LaunchError(
                f"environment variable {name}: its value is secret and was not kept; set {name} again"
            )


def _open_output(output: Path) -> int:
    try:
        return os.open(
            output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
        )
    except FileExistsError:
        text = f"{output} exists: a command was started here before, and is not started again"
        raise LaunchError(text) from None
    except OSError as error:
        raise LaunchError(
            f"{output} cannot be written: {error.strerror}; see that its folder exists and has room"
        ) from None


def is_alive(process: Process) -> bool:
    """Whether the command runs. False leaves open what it started in the background:
    `stop` ends that too.

    LaunchError where the process belongs to another machine or container, of which
    nothing is known here.
    """
    check_machine(process.pid, process.started)
    stat = _find_own(process)
    if stat is not None and stat.ended:
        _reap(process.pid)
    return stat is not None and not stat.ended


def read_exit_code(exit_file: Path) -> int | None:
    """Return the exit code (128 + the signal that ended the command; NEVER_RAN), None
    while there is none.

    None of a process that is not alive: it was killed with its wrapper, or the machine
    went down, and how the command ended is not known.
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
    """Return the exit code once the command has ended, None after `timeout` seconds or
    where it left none."""
    waited, pause = 0.0, 0.002  # a submission takes some milliseconds, or minutes
    while waited < timeout and is_alive(process):
        pause = min(pause * 1.5, 1.0, timeout - waited)
        sleep(pause)
        waited += pause
    return read_exit_code(exit_file)


def stop(
    process: Process, grace_seconds: float, sleep: Callable[[float], object]
) -> None:
    """End a command and everything that it started here: TERM, and after
    `grace_seconds` KILL. Nothing else is touched, least of all a job of a scheduler on
    this machine that it submitted.

    LaunchError where something of it is still there 10 s later, or where it is of
    another machine.
    """
    check_machine(process.pid, process.started)
    left = _drain(
        process,
        _send_signal(_find_family(process), signal.SIGTERM),
        grace_seconds,
        sleep,
    )
    waited = 0.0
    while left and waited < KILL_SECONDS:
        left = _drain(process, _send_signal(left, signal.SIGKILL), 0.1, sleep)
        waited += 0.1
    if left:
        raise LaunchError(
            f"processes {sorted(left)} do not end although they were killed; look at them with ps"
        )


def _drain(
    process: Process,
    left: dict[int, ProcessStat],
    seconds: float,
    sleep: Callable[[float], object],
) -> dict[int, ProcessStat]:
    waited, pause = 0.0, 0.01
    while left and waited < seconds:
        pause = min(pause * 1.5, 0.25, seconds - waited)
        sleep(pause)
        waited += pause
        left = _find_family(process, left)
    return left


def _send_signal(
    family: dict[int, ProcessStat], number: signal.Signals
) -> dict[int, ProcessStat]:
    for pid in family:
        try:
            os.kill(pid, number)
        except (
            ProcessLookupError,
            PermissionError,
        ):  # what is left is counted, and named in the end
            continue
    return family


def _find_family(
    process: Process, before: Mapping[int, ProcessStat] | None = None
) -> dict[int, ProcessStat]:
    """What is left of a command: processes with its mark, and those of its session
    while the session is its own.

    The kernel does not use the number of a session again while one of its members
    lives, so the session is its own if its leader is there, a marked member, or one
    that was seen in it `before`.
    """
    stats = dict(read_stats())
    leader = stats.get(process.pid)
    marked = {
        pid for pid in stats if process.mark and has_variable(pid, MARK, process.mark)
    }
    members = {pid for pid, stat in stats.items() if stat.session == process.pid}
    familiar = {
        pid
        for pid in members
        if before and pid in before and before[pid].ticks == stats[pid].ticks
    }
    led = leader is not None and is_same(leader, process.started)
    family = marked | members if led or members & marked or familiar else marked
    if leader is not None and led and leader.ended:
        _reap(process.pid)
    left = [pid for pid in family - {os.getpid()} if not stats[pid].ended]
    # parents first: a shell whose child is ended before it would go on with its next
    # command
    return {
        pid: stats[pid]
        for pid in sorted(left, key=lambda pid: (int(stats[pid].ticks), pid))
    }


def _find_own(process: Process) -> ProcessStat | None:
    stat = read_stat(process.pid)
    return stat if stat is not None and is_same(stat, process.started) else None


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # started by a session before this one
        return


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What the kernel says of one process."""

    state: str  # one letter
    session: int
    ticks: str  # when it was started, in clock ticks since the boot

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
    """Whether a process was started with this variable, and not by a scheduler, which
    hands variables on to its jobs.

    False for a process of another user, which cannot be looked at.
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
    """Return the host, boot, PID namespace and start time, which make a process number
    unique."""
    return " ".join((*_identify_machine(), ticks))


def is_same(stat: ProcessStat, identified: str) -> bool:
    """Whether a process of this machine is the one of that identity; the host may have
    got another name meanwhile."""
    return identify(stat.ticks).split()[1:] == identified.split()[1:]


def check_machine(pid: int, identified: str) -> None:
    """LaunchError where nothing can be known here of a process: another machine, or
    another container on this one."""
    host, boot, namespace, _ = identified.split()
    here, this_boot, this_namespace = _identify_machine()
    rebooted = boot != this_boot and host == here
    if not rebooted and (boot, namespace) != (this_boot, this_namespace):
        raise LaunchError(
            f"process {pid} was started on {host}; this is {here}, or another container on it, where nobody can tell "
            "whether it still runs: go on where it was started"
        )


def list_inherited() -> Iterator[int]:
    """Yield the open files that a child would get, such as the pipe of a CI that waits
    for its end; not 0, 1 and 2."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and os.get_inheritable(number):
                yield number
        except OSError:  # the listing's own, closed by now
            continue


def _identify_machine() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname() or "?", boot, os.readlink("/proc/self/ns/pid")
