"""Commands that outlive pytest, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.sessions import wait_until

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.launch.schedulers.process import (
    MARK,
    NEVER_RAN,
    Process,
    identify,
    is_alive,
    read_exit_code,
    read_stat,
    start,
    stop,
    wait,
)

PATH = {"PATH": "/usr/bin:/bin"}


class Folder:
    """A folder in which commands are started; the test ends all that remain."""

    def __init__(self, path: Path) -> None:
        self.path, self.output, self.exit_file = path, path / "output", path / "exit"
        self.started: list[Process] = []

    def start(
        self,
        *command: str,
        environment: dict[str, str] | None = None,
        record: Callable[[Process], object] = lambda process: None,
    ) -> Process:
        process = start(
            command,
            self.path,
            PATH if environment is None else environment,
            self.output,
            self.exit_file,
            record=record,
        )
        self.started.append(process)
        return process

    def end(
        self, *command: str, environment: dict[str, str] | None = None
    ) -> int | None:
        return wait(
            self.start(*command, environment=environment),
            self.exit_file,
            180,
            time.sleep,
        )

    def said(self) -> str:
        return self.output.read_text()

    def says(self, *words: str) -> list[str]:
        """Wait until the output contains all words; return its words."""
        wait_until(
            lambda: (
                set(words)
                <= {
                    line.split()[0] for line in self.said().splitlines() if line.split()
                }
            )
        )
        return self.said().split()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    new_folder = Folder(tmp_path)
    yield new_folder
    for process in new_folder.started:
        stop(process, 0, time.sleep)


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.ended


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 125", 125), ("kill -SEGV $$", 139)]
)
def test_exit_code_and_output_of_a_command_are_saved(
    folder: Folder, script: str, code: int
) -> None:
    assert folder.end("sh", "-c", f"cat; echo out; echo err >&2; {script}") == code
    assert folder.said().startswith("out\nerr\n")
    assert not folder.exit_file.with_name("exit.part").exists()


HOSTILE = [
    "; touch owned",
    "$(touch owned)",
    "`touch owned`",
    "a b\tc",
    "\"'\\",
    "new\nline",
    "-rf",
    "*",
    "",
    "ä\udcff",
]


def test_arguments_with_shell_syntax_reach_the_command_unchanged(
    folder: Folder,
) -> None:
    names = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    script = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, [*sys.argv[1:], *(os.environ[f'V{n}'] for n in range(10))])))"  # noqa: E501
    assert (
        folder.end(sys.executable, "-c", script, *HOSTILE, environment=PATH | names)
        == 0
    )
    assert folder.output.read_bytes() == b"|".join(map(os.fsencode, HOSTILE * 2))
    assert not (folder.path / "owned").exists()


def test_command_gets_only_its_environment_and_an_identifying_variable(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLER", "secret")
    job_environment = PATH | {
        "directory": "mine",
        "move": "mine",
        "code": "mine",
        "go": "mine",
    }
    assert folder.end("env", environment=job_environment) == 0
    environment = dict(line.split("=", 1) for line in folder.said().splitlines())
    assert environment.pop(MARK) == folder.started[0].mark
    assert environment == job_environment | {"PWD": str(folder.path)}


def test_command_runs_in_its_folder_and_session(folder: Folder) -> None:
    signal_before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # as under nohup and in background jobs
    try:
        process = folder.start(
            "sh",
            "-c",
            "pwd; cut -d' ' -f6 /proc/self/stat; grep SigIgn /proc/self/status",
        )
    finally:
        signal.signal(signal.SIGINT, signal_before)
    assert wait(process, folder.exit_file, 180, time.sleep) == 0
    where, session, _, ignored = folder.said().split()
    assert (where, session) == (str(folder.path), str(process.pid))
    assert int(ignored, 16) & 0x7FFFFFFF == 0  # higher bits belong to the C library


def test_command_inherits_no_open_file_of_the_caller(folder: Folder) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = folder.start("sleep", "60")
    os.close(writer)
    assert (
        os.read(reader, 1) == b""
    )  # end of file: no other process can write, although the command runs
    os.close(reader)
    assert is_alive(process)


@pytest.mark.parametrize("name", ["exit", "."])
def test_shell_builtin_is_not_a_program(folder: Folder, name: str) -> None:
    with pytest.raises(LaunchError, match="no such program in PATH"):
        folder.start(name, "0")


def test_script_without_an_interpreter_runs_in_sh(folder: Folder) -> None:
    script = folder.path / "launch.sh"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert folder.end("./launch.sh", "a b") == 0
    assert folder.said() == "./launch.sh a b\n"


def test_relative_search_path_is_resolved_from_the_job_folder(folder: Folder) -> None:
    (folder.path / "bin").mkdir()
    (folder.path / "bin/sbatch").write_text("#!/bin/sh\necho mine\n")
    (folder.path / "bin/sbatch").chmod(0o755)
    assert folder.end("sbatch", environment={"PATH": "bin"}) == 0
    assert folder.said() == "mine\n"


@pytest.mark.parametrize(
    ("command", "environment", "message"),
    [
        ([], {}, "the command is empty"),
        (
            ["no-such-program"],
            PATH,
            "no-such-program: no such program in PATH=/usr/bin:/bin",
        ),
        (["./launch.sh"], PATH, "launch.sh: no such program; check the folder"),
        (["./plain"], PATH, "chmod"),
        (["echo", "a\0b"], PATH, "an argument of 'echo' contains a NUL"),
        (["echo", "x" * 3_000_000], PATH, "Argument list too long"),
        (["echo", "\ud800"], PATH, "contain invalid text"),
        (
            ["echo"],
            PATH | {"HF_TOKEN": "hf_\0secret"},
            "environment variable HF_TOKEN: the value contains a NUL",
        ),
        (
            ["echo"],
            PATH | {"HF_TOKEN": "***"},
            "HF_TOKEN: its value was redacted, not stored",
        ),
        (["echo"], PATH | {"A.B": "1"}, "environment variable 'A.B'"),
        (["echo"], PATH | {"A\n": "1"}, "letters, digits"),
        (["echo"], PATH | {"A=B": "1"}, "letters, digits"),
    ],
)
def test_impossible_command_is_refused_and_leaves_no_file(
    folder: Folder, command: list[str], environment: dict[str, str], message: str
) -> None:
    (folder.path / "plain").write_text("echo\n")
    with pytest.raises(LaunchError, match=message) as caught:
        folder.start(*command, environment=environment)
    assert "secret" not in str(caught.value).replace("is secret", "")
    assert [path.name for path in folder.path.iterdir()] == ["plain"]


def test_missing_folder_is_refused(folder: Folder) -> None:
    with pytest.raises(LaunchError, match="no such folder"):
        start(["echo"], folder.path / "missing", PATH, folder.output, folder.exit_file)
    with pytest.raises(LaunchError, match="has space"):
        start(
            ["echo"],
            folder.path,
            PATH,
            folder.path / "missing/output",
            folder.exit_file,
        )


@pytest.mark.parametrize("name", ["output", "exit"])
def test_command_is_not_started_twice_in_one_folder(folder: Folder, name: str) -> None:
    (folder.path / name).write_text("0\n")
    with pytest.raises(LaunchError, match="not started again"):
        folder.start("touch", "ran")
    assert [path.name for path in folder.path.iterdir()] == [name]


@pytest.mark.slow
def test_process_is_recorded_before_its_command_runs(folder: Folder) -> None:
    recorded: list[Process] = []

    def record(process: Process) -> None:
        time.sleep(0.2)
        assert not (folder.path / "ran").exists()
        assert is_alive(process)
        recorded.append(process)

    process = folder.start("touch", "ran", record=record)
    assert recorded == [process]
    assert wait(process, folder.exit_file, 180, time.sleep) == 0
    assert (folder.path / "ran").exists()


def test_unrecorded_command_never_runs(folder: Folder) -> None:
    recorded: list[Process] = []

    def record(process: Process) -> None:
        recorded.append(process)
        raise LaunchError("disk full")

    with pytest.raises(LaunchError, match="disk full"):
        folder.start("touch", "ran", record=record)
    assert not is_alive(recorded[0])
    assert list(folder.path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from pytest_llmbench.launch.schedulers.process import start
folder = Path(sys.argv[1])
def record(process):
    print(process.pid, process.started, process.mark, sep="|", flush=True)
    if sys.argv[2] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
start(["sh", "-c", "sleep 0.3; echo done"], folder, dict(PATH="/usr/bin:/bin"), folder / "output", folder / "exit", record=record)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "said", "code"), [("before", "", NEVER_RAN), ("after", "done\n", 0)]
)
def test_command_runs_completely_or_not_at_all_if_its_caller_is_killed(
    folder: Folder, when: str, said: str, code: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(folder.path), when]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, started, mark = done.stdout.strip().split("|")
    process = Process(int(pid), started, mark)
    assert wait(process, folder.exit_file, 180, time.sleep) == code
    wait_until(lambda: not is_alive(process))
    assert folder.said() == said


def test_wait_times_out_and_leaves_the_command_alone(folder: Folder) -> None:
    process = folder.start("sleep", "60")
    slept: list[float] = []
    assert wait(process, folder.exit_file, 30, slept.append) is None
    assert sum(slept) == pytest.approx(30)
    assert max(slept) == 1.0
    assert is_alive(process)


def test_ended_command_leaves_no_zombie(folder: Folder) -> None:
    process = folder.start("true")
    wait_until(lambda: gone(process.pid))
    assert not is_alive(process)
    assert read_stat(process.pid) is None


def test_reused_process_id_is_another_process(folder: Folder) -> None:
    process = folder.start("sleep", "60")
    host, boot, namespace, ticks = process.started.split()
    for other in (
        f"{host} {boot} {namespace} {int(ticks) - 1}",
        f"{host} before-the-boot {namespace} {ticks}",
    ):
        stale = Process(process.pid, other, "0" * 32)
        assert not is_alive(stale)
        stop(stale, 0, time.sleep)
    assert is_alive(process)
    assert is_alive(replace(process, started=f"renamed {boot} {namespace} {ticks}"))


@pytest.mark.parametrize("started", ["other other-boot {} 1", "{0} {1} pid:[1] 1"])
def test_process_of_another_machine_is_refused(started: str) -> None:
    host, boot, namespace, _ = identify("1").split()
    process = Process(
        1,
        started.format(namespace)
        if "{0}" not in started
        else started.format(host, boot),
    )
    for ask in (is_alive, lambda process: stop(process, 0, time.sleep)):
        with pytest.raises(LaunchError, match="continue where it was started"):
            ask(process)


FAMILY = """
trap 'echo asked' TERM
sleep 600 & echo child $!
env -i sleep 600 & echo unmarked $!
setsid sleep 600 & sleep 0.1; echo own-session $(cut -d' ' -f1 /proc/$!/stat)
while :; do sleep 0.05; done
"""


@pytest.mark.slow
def test_stop_terminates_then_kills_all_children(folder: Folder) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    slurm = subprocess.Popen(
        ["sleep", "600"], start_new_session=True, env={MARK: "", "SLURM_JOB_ID": "7"}
    )
    process = folder.start("sh", "-c", FAMILY)
    words = folder.says("child", "unmarked", "own-session")
    pids = [int(word) for word in words if word.isdecimal()]
    assert len(pids) == 3
    stop(process, 0.5, time.sleep)
    assert "asked" in folder.said()
    assert all(gone(pid) for pid in [*pids, process.pid])
    assert not is_alive(process)
    for other in (stranger, slurm):
        assert other.poll() is None
        other.kill()
        other.wait()


def test_stop_returns_once_a_command_has_ended(folder: Folder) -> None:
    process = folder.start("sh", "-c", "echo ready; sleep 600; echo never")
    folder.says("ready")
    before = time.monotonic()
    stop(process, 600, time.sleep)
    assert time.monotonic() - before < 300
    assert read_exit_code(folder.exit_file) == 143


STUBBORN = """
env -i sh -c 'trap "" TERM; echo pid $$; while :; do sleep 0.05; done' &
exec sleep 600
"""


@pytest.mark.slow
def test_stop_ends_stubborn_children_of_a_dead_wrapper(folder: Folder) -> None:
    process = folder.start("sh", "-c", STUBBORN)
    pid = int(folder.says("pid")[1])
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(process))
    assert read_exit_code(folder.exit_file) is None  # how it ends is unknown
    assert not gone(pid)
    stop(process, 0.5, time.sleep)
    assert gone(pid)


LEFT = """
import os, time
if os.fork() == 0:
    os._exit(0)
os.setsid()
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""


def test_unreaped_zombie_does_not_delay_stop(folder: Folder) -> None:
    process = folder.start("env", "-i", sys.executable, "-c", LEFT)
    pid = int(folder.says("pid")[1])
    stop(process, 0, time.sleep)
    assert not gone(
        pid
    )  # it left the session and dropped the mark, so its owner is unknown
    os.kill(pid, signal.SIGKILL)


def test_stopping_a_command_spares_slurm_jobs_that_the_command_submitted(
    folder: Folder,
) -> None:
    process = folder.start(
        "sh", "-c", "SLURM_JOB_ID=7 setsid sleep 600 & sleep 0.1; echo pid $!"
    )
    pid = int(folder.says("pid")[1])
    wait_until(lambda: not is_alive(process))
    stop(process, 0, time.sleep)
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_error_names_the_process_that_survives_sigkill(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = folder.start("sleep", "600")
    with monkeypatch.context() as patch:
        patch.setattr("pytest_llmbench.launch.schedulers.process.KILL_SECONDS", 0.5)
        patch.setattr(os, "kill", lambda pid, number: None)
        with pytest.raises(
            LaunchError, match=f"{process.pid}.*did not end after SIGKILL"
        ):
            stop(process, 0, lambda seconds: None)


@pytest.mark.parametrize("text", ["", "x\n", "99999\n"])
def test_unreadable_exit_code_is_unknown(folder: Folder, text: str) -> None:
    folder.exit_file.write_text(text)
    assert read_exit_code(folder.exit_file) is None
