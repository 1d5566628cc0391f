"""Cost of a session while it launches: 200 jobs compared with 10, on a real Slurm.

    python -m benchmarks.speed.launching [--jobs 200] [--few 10] [--seconds 60]

Starts its own Slurm (tests/integration/slurm/cluster install) and takes about four
minutes. The jobs do not train: each prints some steps, waits until it is released, and
prints the remaining steps. Wrappers of Slurm's commands, early on PATH, count the
calls.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.clusters import Cluster, missing, running
from support.fake_recipe import write_recipe

PROGRAMS = ("sacct", "squeue", "sbatch", "scontrol", "scancel")
WRAPPER = """#!/bin/bash
# counts a call of pytest's; those of a job, which has the same PATH, do not count
[ -z "${{SLURM_JOB_ID:-}}" ] || exec {program} "$@"
begin=$EPOCHREALTIME
{program} "$@"
code=$?
printf '%s %s %s\\n' {name} "${{begin/,/.}}" "${{EPOCHREALTIME/,/.}}" >>{calls}
exit "$code"
"""
JOB = 'steps 1.0 0 20; flock --shared "$STAGE_PATH/gate" true; steps 1.0 21'
"""What a job does: it waits for a lock that this process has, which costs nothing
however many wait."""

TICKS = os.sysconf("SC_CLK_TCK")
SETTLED_SECONDS = 20.0
"""Polls so far apart show that nothing has changed for long."""

MOST_COMMANDS = 6.0
"""Slurm commands a minute while nothing changes."""

MOST_CPU = 0.05
"""Of a core, by pytest itself while it waits."""

MOST_SUBMITTING = 3.0
"""Seconds of a submission beside those of a plain sbatch with three writes to the disk,
as safe submitting needs."""

MOST_JUDGING = 2.0
"""CPU seconds of pytest from the last poll to the end, beside those of judging the same
logs from disk."""

WAITING_LINES = 4.0
"""Lines of output a minute while nothing changes."""


@dataclass(frozen=True)
class Call:
    """One call of a command, in seconds since the epoch."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Usage:
    """CPU seconds of a process, and of the children that it has waited for."""

    at: float
    own: float
    children: float


class Session:
    """A pytest session in its own folder, whose jobs wait until they are released."""

    def __init__(self, folder: Path, cluster: Cluster, jobs: int) -> None:
        self.folder, self.cluster, self.jobs = folder, cluster, jobs
        self.peak = 0.0
        self.samples: list[Usage] = []
        write_recipe(folder, {f"{number}b": JOB for number in range(1, jobs + 1)})
        file = folder / "cluster.yaml"
        file.write_text(
            file.read_text().replace("gres: gpu:8", "gres: gpu:1")
        )  # so that eight of them fit on a node
        self._wrap()
        self.gate = (folder / "stage" / "gate").open("w")
        fcntl.flock(self.gate, fcntl.LOCK_EX)

    def _wrap(self) -> None:
        (self.folder / "bin").mkdir()
        (self.folder / "calls").touch()
        for name in PROGRAMS:
            wrapper = self.folder / "bin" / name
            wrapper.write_text(
                WRAPPER.format(
                    name=name, program=shutil.which(name), calls=self.folder / "calls"
                )
            )
            wrapper.chmod(0o755)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start pytest, and stop everything at the end."""
        with (self.folder / "out.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [*_pytest(), "--llmb-launch"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        try:
            yield
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which its commands are counted."""
        path = os.pathsep.join((str(self.folder / "bin"), os.environ["PATH"]))
        return {**os.environ, **self.cluster.environment, "PATH": path, "COLUMNS": "80"}

    @property
    def calls(self) -> list[Call]:
        """Return the calls so far, ordered by their end."""
        rows = (
            line.split() for line in (self.folder / "calls").read_text().splitlines()
        )
        return [Call(name, float(begin), float(end)) for name, begin, end in rows]

    def polls(self) -> list[float]:
        """Return the start of each poll: each poll calls sacct once."""
        return [call.begin for call in self.calls if call.name == "sacct"]

    @property
    def lines(self) -> list[str]:
        """Return pytest's output so far."""
        return (self.folder / "out.txt").read_text().splitlines()

    def usage(self) -> Usage:
        """Return the CPU usage of pytest so far."""
        process = Path(f"/proc/{self.process.pid}")
        fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
        peak = re.search(r"VmHWM:\s*(\d+)", process.joinpath("status").read_text())
        self.peak = int(peak[1]) / 1024 if peak else self.peak
        ticks = [int(field) / TICKS for field in fields[11:15]]
        return Usage(time.time(), ticks[0] + ticks[1], ticks[2] + ticks[3])

    def wait_until(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a condition. The benchmark fails on a time-out or if pytest ends
        before."""
        end = time.monotonic() + seconds
        while not true():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(
                    "\n".join(
                        (*self.lines[-30:], f"{self.jobs} jobs: {what} did not happen")
                    )
                )
            time.sleep(0.2)

    def submitted(self) -> bool:
        """True if every job was submitted."""
        return sum(call.name == "sbatch" for call in self.calls) >= self.jobs

    def settled(self) -> bool:
        """True if nothing has changed for so long that polls are rare."""
        polls = self.polls()
        return len(polls) > 1 and polls[-1] - polls[-2] >= SETTLED_SECONDS

    def let_go(self) -> None:
        """Release the jobs, and wait for the end of pytest."""
        self.gate.close()
        end = time.monotonic() + 180
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise SystemExit(
                    "\n".join(
                        (*self.lines[-30:], f"{self.jobs} jobs: pytest does not end")
                    )
                )
            self._sample()
            time.sleep(0.1)
        self.ended = time.time()

    def _sample(self) -> None:
        try:
            self.samples.append(self.usage())
        except (OSError, IndexError):  # it has just ended
            return

    def used_since(self, moment: float) -> float:
        """Return the CPU seconds of pytest itself from a time to its end."""
        return self.samples[-1].own - max(
            one.own for one in self.samples if one.at <= moment
        )

    @property
    def submitting(self) -> float:
        """Return the seconds from the first submission to the end of the last."""
        submissions = [call for call in self.calls if call.name == "sbatch"]
        return submissions[-1].end - submissions[0].begin

    @property
    def last_job(self) -> float:
        """Return the end of the last job, after which its log no longer grows."""
        return max(
            log.stat().st_mtime for log in (self.folder / "stage").rglob("log-*")
        )

    @property
    def verdicts(self) -> int:
        """Return the number of passed configurations."""
        passed = re.search(r"(\d+) passed", self.lines[-1])
        return int(passed[1]) if passed else 0


@dataclass(frozen=True)
class Waiting:
    """Activity of a session while nothing changes: `commands` and `lines` per minute,
    CPU shares."""

    commands: float
    of_each: dict[str, int]
    own: float
    children: float
    lines: float


def waiting(session: Session, before: Usage, lines: int) -> Waiting:
    """Return the activity of a session since a time."""
    now = session.usage()
    seconds = now.at - before.at
    since = [call for call in session.calls if call.begin >= before.at]
    polls = [begin for begin in session.polls() if begin >= before.at - 60]
    gaps = [later - earlier for earlier, later in pairwise(polls)][-2:]
    names = [call.name for call in since]
    a_poll = len(names) / max(1, names.count("sacct"))
    return Waiting(
        commands=60
        * a_poll
        * len(gaps)
        / sum(gaps),  # of whole pauses, so that it does not matter when it was looked
        of_each={name: names.count(name) for name in PROGRAMS if name in names},
        own=(now.own - before.own) / seconds,
        children=(now.children - before.children) / seconds,
        lines=60 * (len(session.lines) - lines) / seconds,
    )


def plain_submissions(session: Session) -> float:
    """Return the seconds of as many plain submissions of the same job, one after
    another.

    Each has three writes to disk (the intent, its process, its id). The jobs are
    cancelled.
    """
    recipe = session.folder / "recipe"
    environment = {
        "STAGE_PATH": str(session.folder / "plain"),
        "DTYPE": "bf16",
        "MODEL_SIZE": "1b",
    }
    options = (
        "--hold",
        "--gres=gpu:1",
        "-N",
        "1",
        f"--output={session.folder}/plain-%j",
    )
    begin, submitted = time.monotonic(), []
    with closing(sqlite3.connect(session.folder / "plain.db")) as database:
        database.execute("CREATE TABLE job (said TEXT)")
        for _ in range(session.jobs):
            done = subprocess.run(
                ["sbatch", "--parsable", *options, "./launch.sh"],
                cwd=recipe,
                env={**session.environment, **environment, "JOB_TOTAL_GPUS": "8"},
                capture_output=True,
                text=True,
                check=True,
            )
            submitted.append(done.stdout.strip())
            for _write in range(3):
                with database:
                    database.execute("INSERT INTO job VALUES (?)", submitted[-1:])
    seconds = time.monotonic() - begin
    session.cluster.run("scancel", *submitted)
    (session.folder / "calls").write_text("")
    return seconds


def judged_from_disk(session: Session) -> float:
    """Return the CPU seconds of pytest for judging the same logs on disk."""
    command = [*_pytest(), f"--llmb-logs={session.folder / 'stage'}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=session.folder, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _pytest() -> list[str]:
    return [sys.executable, "-Im", "pytest", "-p", "no:cacheprovider", "-q"]


def measure(cluster: Cluster, folder: Path, arguments: argparse.Namespace) -> bool:
    """Run both sessions and print the table. Returns True if all limits are met."""
    few = Session(folder / "few", cluster, arguments.few)
    many = Session(folder / "many", cluster, arguments.jobs)
    plain = plain_submissions(many)
    with few.started(), many.started():
        for each in (few, many):
            each.wait_until(each.submitted, 120, "the submission of all jobs")
        for each in (few, many):
            each.wait_until(each.settled, 180, "a time without changes")
        before = [(each.usage(), len(each.lines)) for each in (few, many)]
        time.sleep(arguments.seconds)
        of_few, of_many = (
            waiting(each, *then) for each, then in zip((few, many), before, strict=True)
        )
        few.let_go()
        many.let_go()
    last_poll = max(call.end for call in many.calls if call.name in ("sacct", "squeue"))
    judging, from_disk = many.used_since(last_poll), judged_from_disk(many)
    rows: list[tuple[str, str, str, str, bool]] = [
        (
            "Slurm commands a minute while waiting",
            f"{of_few.commands:.1f}",
            f"{of_many.commands:.1f}",
            f"equal, at most {MOST_COMMANDS:g}",
            abs(of_many.commands / of_few.commands - 1) < 0.1
            and of_many.commands <= MOST_COMMANDS,
        ),
        (
            "pytest itself while waiting, of a core",
            f"{of_few.own:.2%}",
            f"{of_many.own:.2%}",
            f"under {MOST_CPU:.0%}",
            of_many.own < MOST_CPU,
        ),
        (
            "the commands that it started, of a core",
            f"{of_few.children:.2%}",
            f"{of_many.children:.2%}",
            "",
            True,
        ),
        (
            "lines of output a minute while waiting",
            f"{of_few.lines:.1f}",
            f"{of_many.lines:.1f}",
            f"at most {WAITING_LINES:g}",
            of_many.lines <= WAITING_LINES,
        ),
        (
            "submitting, of as many sbatch in a loop with three writes each",
            "",
            f"{many.submitting / plain:.2f} ({many.submitting:.1f} s)",
            f"under {MOST_SUBMITTING:g}",
            many.submitting < MOST_SUBMITTING * plain,
        ),
        (
            "from the end of the last job to the poll that sees it",
            "",
            f"{last_poll - many.last_job:.1f} s",
            "",
            True,
        ),
        (
            "CPU from that poll to the end, of judging the same logs from disk",
            "",
            f"{judging / from_disk:.2f} ({judging:.1f} s of {many.ended - last_poll:.1f} s)",
            f"under {MOST_JUDGING:g}",
            judging < MOST_JUDGING * from_disk,
        ),
        ("peak memory, MiB", f"{few.peak:.0f}", f"{many.peak:.0f}", "", True),
        (
            "passed",
            str(few.verdicts),
            str(many.verdicts),
            "all",
            (few.verdicts, many.verdicts) == (few.jobs, many.jobs),
        ),
    ]
    print(f"| | {few.jobs} jobs | {many.jobs} jobs | promised |\n|---|---|---|---|")
    for label, with_few, with_many, promised, kept in rows:
        print(
            f"| {label} | {with_few} | {with_many} | {promised}{'' if kept else ': BROKEN'} |"
        )
    spent = {
        name: [call.end - call.begin for call in many.calls if call.name == name]
        for name in PROGRAMS
    }
    reported = ", ".join(
        f"{len(times)} {name} ({sum(times):.1f} s)"
        for name, times in spent.items()
        if times
    )
    print(
        f"\n{many.jobs} jobs, all in all: {reported}; {len(many.lines)} lines of output"
    )
    return all(kept for *_, kept in rows)


def main() -> int:
    """Print a table. Exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="a new folder, which is kept")
    arguments = parser.parse_args()
    if absent := missing():
        raise SystemExit(absent)
    with ExitStack() as stack:
        folder = arguments.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        return 0 if measure(stack.enter_context(running()), folder, arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
