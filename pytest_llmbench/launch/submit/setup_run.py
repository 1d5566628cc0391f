"""Run a setup step to its end, show what it prints, and say how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.models.jobs import Blame, JobStatus, Phase
from pytest_llmbench.launch.preflight.plan import format_command
from pytest_llmbench.launch.recipe.redaction import redact
from pytest_llmbench.launch.slurm.states import explain_status, explain_stuck
from pytest_llmbench.launch.submit.setup_step import SetupStep
from pytest_llmbench.launch.submit.submissions import read_sbatch

LAST_LINES = 8
POLL_SECONDS = 5.0
LOST_SECONDS = 600.0
"""A job that Slurm does not know for so long is lost."""

RESOLVER = "pip's dependency resolver does not currently take into account"
HARMLESS = re.compile(rf"{RESOLVER}|This behaviour is the source of the following|tritonclient \S+ requires urllib3")
CONFLICT = re.compile(r"^\S+ \S+ requires .+ but you have .+ which is incompatible")


class Queue(Protocol):
    """What following a job asks of Slurm."""

    def poll(self, jobs: Mapping[str, datetime]) -> Mapping[str, JobStatus]:
        """Return what is known of jobs."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> str:
        """Cancel jobs; return what went wrong, or nothing."""
        ...


@dataclass(frozen=True, slots=True)
class SetupHost:
    """Where a setup step runs: what it prints goes to `tell` line by line, secrets masked, and to the file `log`."""

    tell: Callable[[str], None]
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    log: Path
    seconds: float
    slurm: Queue | None = None


def run_setup(step: SetupStep, world: SetupHost) -> str:
    """Run a setup step and wait for its end; return what went wrong, with the last lines and their file, or nothing.

    Stopped (Ctrl-C) or out of time, it leaves nothing behind: what it started is ended, a job of it is cancelled.
    """
    world.log.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    code = _run(step, world, lines)
    if code:
        shown = "ran out of time" if code is TOO_LONG else f"ended with exit code {code}"
        return _explain_failure(f"{format_command(step.planned.spec)} {shown}", lines, world.log)
    if step.submits and (problem := _follow_job(step, world, lines)):
        return problem
    _tell_conflicts(lines, world.tell)
    return _explain_missing_image(step, lines, world.log)


TOO_LONG = 124


def _run(step: SetupStep, world: SetupHost, lines: list[str]) -> int:
    try:
        process = subprocess.Popen(  # noqa: S603 (an argument list from the recipe's file)
            step.command,
            cwd=step.directory,
            env=dict(step.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"{step.command[0]} in {step.directory} cannot be started: {error.strerror}") from error
    with _end_in_time(process, world.seconds) as expired, world.log.open("w", encoding="utf-8") as file:
        for line in process.stdout or ():
            _take(line, step, world, lines)
            file.write(lines[-1] + "\n")
        code = process.wait()
    return TOO_LONG if expired.is_set() else code


@contextmanager
def _end_in_time(process: subprocess.Popen[str], seconds: float) -> Iterator[threading.Event]:
    """End a command with all that it started when it takes too long, and in any case at the end."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end(process)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        if process.poll() is None:
            _end(process)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _take(line: str, step: SetupStep, world: SetupHost, lines: list[str]) -> None:
    lines.append(escape(redact(line.rstrip("\r\n"), step.planned.spec).replace("\t", "    ")))
    world.tell(lines[-1])


# --- a job of Slurm ---------------------------------------------------------------------------------------


def _follow_job(step: SetupStep, world: SetupHost, lines: list[str]) -> str:
    submitted = read_sbatch("\n".join(lines))
    if len(submitted) != 1 or world.slurm is None:
        return _explain_failure("sbatch printed no job id: nothing to wait for", lines, world.log)
    job_id = submitted[0].job_id
    output = step.directory / f"slurm-{job_id}.out"
    lines.clear()
    world.tell(f"waiting for job {job_id}; its output: {output}")
    try:
        problem = _wait_for_job(
            job_id, world.slurm, world, lambda ended: _show_new_output(output, ended, step, world, lines)
        )
    except BaseException:
        world.tell(f"cancelling job {job_id} {world.slurm.cancel([job_id])}".rstrip())
        raise
    if problem:
        return _explain_failure(f"job {job_id}: {problem}", lines, output)
    return ""


def _wait_for_job(job_id: str, slurm: Queue, world: SetupHost, show: Callable[[bool], None]) -> str:
    """Wait for the end of a job; return what went wrong, or nothing. A Slurm that is away is waited for."""
    submitted = last_seen = world.now()
    stuck = ""
    while True:
        status = _poll_job(job_id, slurm, submitted)
        now = world.now()
        if status and status.phase is not Phase.UNKNOWN:
            last_seen = now
        ended = status is not None and status.phase is Phase.ENDED
        show(ended)
        if status and ended:
            end = explain_status(status)
            return "" if end.blame is Blame.NONE else end.text
        before, stuck = stuck, explain_stuck(status) if status else ""
        if stuck and stuck == before:
            return f"it will never start and was cancelled ({stuck}) {slurm.cancel([job_id])}".rstrip()
        if (now - last_seen).total_seconds() > LOST_SECONDS:
            return f"Slurm has not known it for {LOST_SECONDS / 60:.0f} minutes; `sacct -j {job_id}` may tell more"
        if (now - submitted).total_seconds() > world.seconds:
            problem = slurm.cancel([job_id])
            return f"it took longer than {world.seconds / 3600:g} h and was cancelled {problem}".rstrip()
        world.sleep(POLL_SECONDS)


def _poll_job(job_id: str, slurm: Queue, submitted: datetime) -> JobStatus | None:
    try:
        return slurm.poll({job_id: submitted}).get(job_id)
    except LaunchError:  # away for now: `_wait_for_job` ends in any case
        return None


def _show_new_output(output: Path, ended: bool, step: SetupStep, world: SetupHost, lines: list[str]) -> None:
    """Show the lines that came since the last time: whole ones, until the job has ended."""
    try:
        whole = output.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    printed = whole.split("\n")
    for line in printed[len(lines) : None if ended and printed[-1] else -1]:
        _take(line, step, world, lines)


# --- how it ended -----------------------------------------------------------------------------------------


def _explain_failure(what: str, lines: Sequence[str], file: Path) -> str:
    telling = [line for line in lines if line.strip() and not HARMLESS.search(line)]
    return "\n".join([f"setup failed: {what}", *(f"  {line}" for line in telling[-LAST_LINES:]), f"all of it: {file}"])


def _tell_conflicts(lines: Sequence[str], tell: Callable[[str], None]) -> None:
    """Say of pip's error whether it is the known one; exit code 0 is a success either way."""
    if not any(RESOLVER in line for line in lines):
        return
    others = [line for line in lines if CONFLICT.match(line) and not HARMLESS.search(line)]
    if others:
        tell("pip reports conflicts that the recipe's document does not know; a run may fail because of them:")
        for line in others:
            tell(f"  {line}")
    else:
        tell("pip's error about tritonclient and urllib3 is a known one and does no harm.")


def _explain_missing_image(step: SetupStep, lines: Sequence[str], file: Path) -> str:
    wanted = step.images
    if not wanted or any(image.is_file() and image.stat().st_size for image in wanted):
        return ""
    by_hand = _format_import(step)
    places = " or ".join(str(path.parent) for path in wanted)
    if by_hand:
        return f"the setup step ended well; the container image {wanted[0].name} is fetched separately:\n  {by_hand}"
    return _explain_failure(f"it ended well and left no container image {wanted[0].name} in {places}", lines, file)


def _format_import(step: SetupStep) -> str:
    """Return how the image is fetched where the setup script does not do it: in the recipes with LLMB_INSTALL."""
    environment, facts = dict(step.environment), step.facts
    install = environment.get("LLMB_INSTALL")
    if not install or not facts.image_source:
        return ""
    source = f"docker://{facts.image_source.replace('/', '#', 1)}"
    target = Path(install) / "images" / facts.image
    account, partition = environment.get("SBATCH_ACCOUNT"), environment.get("SBATCH_PARTITION")
    options = [*(("--account", account) if account else ()), *(("--partition", partition) if partition else ())]
    return " ".join(["srun", *options, f'bash -c "enroot import --output {target} {source}"'])
