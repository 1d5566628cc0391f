"""A recipe's own setup step, the documented way: what it is, whether it can run, and its run to the end.

It is no job of the journal: its output is shown while it runs, and stopped it leaves nothing behind to go on with.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.models import Key
from pytest_llmbench.core.models.jobs import Blame, Cluster, InstalledRecipe, JobSpec, LaunchFacts, Phase, Purpose
from pytest_llmbench.launch.preflight import checks
from pytest_llmbench.launch.preflight.plan import (
    JobProblem,
    PlannedJob,
    describe_problems,
    format_command,
    group_problems,
)
from pytest_llmbench.launch.recipe.cluster import fill_references
from pytest_llmbench.launch.recipe.redaction import find_secret_names, redact
from pytest_llmbench.launch.slurm.statuses import explain_status, explain_stuck
from pytest_llmbench.launch.submit.submissions import read_sbatch

if TYPE_CHECKING:
    from pytest_llmbench.core.models.jobs import JobStatus
    from pytest_llmbench.launch.slurm.client import Slurm

LAST_LINES = 8
POLL_SECONDS = 5.0
LOST_SECONDS = 600.0  # a job that Slurm does not know for so long is lost
TOO_LONG = 124  # as timeout(1) has it

# pip ends with 0 all the same, and the recipes' documents say of these lines that they do no harm
RESOLVER = "pip's dependency resolver does not currently take into account"
HARMLESS = re.compile(rf"{RESOLVER}|This behaviour is the source of the following|tritonclient \S+ requires urllib3")
CONFLICT = re.compile(r"^\S+ \S+ requires .+ but you have .+ which is incompatible")

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPTIONAL = {"{account}": "-A", "{partition}": "-p"}  # may be empty: then the option is left out with its placeholder


def build_setup_step(
    facts: LaunchFacts, cluster: Cluster, caller: Mapping[str, str], folder: Path | None = None
) -> PlannedJob:
    """Return the setup step of a recipe as a job, for the checks that all jobs go through.

    It runs as the document has it typed into a shell, so the caller's environment is its own (proxies, credentials of
    registries); the cluster file adds to it, and what the recipe forbids is removed. LaunchError where the recipe has
    none, or nothing says where its script lies.
    """
    name = f"{facts.recipe} {facts.release}"
    if not facts.setup:
        raise LaunchError(f"{name} has no setup step: nothing to do")
    installed = _find_installed(facts, cluster)
    environment = _build_environment(facts, cluster, installed, caller)
    command = _build_command(facts.setup, cluster, environment)
    if folder is None and installed.folder:
        folder = Path(fill_references(str(installed.folder), caller, "`folder` in the cluster file"))
    spec = JobSpec(
        case_id=name,
        key=Key(facts.recipe, "", facts.release, "", "", 0),
        purpose=Purpose.MEASURE,
        via="sbatch" if command[0] == "sbatch" else "local",
        command=command,
        directory=_check_directory(name, command, folder),
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, cluster.secrets),
        nodes=1,
        gpus=0,
        gpu_hours=0.0,
    )
    return PlannedJob(spec, facts)


def is_slurm_job(step: PlannedJob) -> bool:
    """Whether a setup step is a job of Slurm; else it runs where it is started."""
    return step.spec.via == "sbatch"


def check_setup(step: PlannedJob, machine: checks.LocalMachine | None = None) -> str:
    """Return what is in the way of a setup step as one text, empty if nothing is."""
    facts = step.facts
    facts = replace(
        facts,
        virtual_environment=facts.virtual_environment or bool(facts.python),  # what it installs goes there
        needs_token=False,
        required=tuple((name, meaning) for name, meaning in facts.required if name in checks.STAGES),
    )
    every = (
        checks.check_variables,
        checks.check_stage,
        checks.check_script,
        checks.check_programs,
        checks.check_python,
    )
    on = machine or checks.LocalMachine()
    problems = [problem for check in every for problem in check(replace(step, facts=facts), on)]
    if is_slurm_job(step) and not shutil.which("sbatch", path=dict(step.spec.environment).get("PATH", "")):
        problems.append(JobProblem("there is no Slurm on this machine: no sbatch on the PATH", "use a login node"))
    return describe_problems(group_problems((step, problem) for problem in problems))


# --- its environment and command --------------------------------------------------------------------------


def _find_installed(facts: LaunchFacts, cluster: Cluster) -> InstalledRecipe:
    by_release = {entry.release: entry for entry in reversed(cluster.installed) if entry.recipe == facts.recipe}
    return by_release.get(facts.release) or by_release.get("") or InstalledRecipe(facts.recipe, facts.release)


def _build_environment(
    facts: LaunchFacts, cluster: Cluster, installed: InstalledRecipe, caller: Mapping[str, str]
) -> dict[str, str]:
    environment = dict(caller)
    for name, value in (("ACCOUNT", cluster.account), ("PARTITION", cluster.partition)):
        if value:  # sbatch reads the one, srun the other
            environment |= {f"SBATCH_{name}": value, f"SLURM_{name}": value}
    for name, value in (*cluster.environment, *installed.environment):
        environment[name] = fill_references(value, caller, f"{name} in the cluster file")
    if installed.virtual_environment:
        where = "`virtual_environment` in the cluster file"
        virtual = fill_references(str(installed.virtual_environment), caller, where)
        path = os.pathsep.join(filter(None, (f"{virtual}/bin", environment.get("PATH", ""))))
        environment |= {"VIRTUAL_ENV": virtual, "PATH": path}
    forbidden = {name for name, _ in facts.forbidden}
    return {name: value for name, value in environment.items() if name not in forbidden}


def _build_command(template: str, cluster: Cluster, environment: dict[str, str]) -> tuple[str, ...]:
    """Fill the template word by word, so that no value becomes two; leading assignments go to the environment."""
    values = {
        "{account}": cluster.account or environment.get("SBATCH_ACCOUNT", environment.get("SLURM_ACCOUNT", "")),
        "{partition}": cluster.partition or environment.get("SBATCH_PARTITION", environment.get("SLURM_PARTITION", "")),
        "{stage}": next((environment[name] for name in checks.STAGES if environment.get(name)), ""),
    }
    words: list[str] = []
    for word in shlex.split(template):
        if word in _OPTIONAL and not values[word] and words and words[-1] == _OPTIONAL[word]:
            words.pop()
        else:
            words.append(word)
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        words.pop(0)
        if value := _fill(assigned[2], values):
            environment[assigned[1]] = value
    program, *arguments = (_fill(word, values) for word in words)
    gres = [f"--gres={cluster.gres}"] if cluster.gres and program == "sbatch" else []
    return (program, *gres, *arguments)


def _fill(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(?:account|partition|stage)\}", lambda match: values[match[0]], word)


def _check_directory(name: str, command: Sequence[str], folder: Path | None) -> Path:
    """Return the folder if the script of the step lies in it; never the current one by chance."""
    script = next((word for word in command if word.endswith(".sh")), command[0])
    if folder and (folder / script).is_file():
        return folder.absolute()
    looked = f"there is none in {folder}" if folder else "nothing says where that is"
    raise LaunchError(
        f"{name} is set up by {script} in the folder of the recipe, and {looked}: "
        "give it with --folder=DIR, or as `folder` of the recipe under `installed:` in the cluster file"
    )


# --- running it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetupHost:
    """Where a setup step runs."""

    tell: Callable[[str], None]  # gets what it prints line by line, with secrets masked
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    log: Path  # keeps the same lines
    seconds: float  # it may take so long
    slurm: Slurm | None = None


class SetupOutput:
    """The lines that a step has printed: masked, told at once, and kept for the message of a failure."""

    def __init__(self, step: PlannedJob, tell: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._spec, self._tell = step.spec, tell

    def take(self, line: str) -> str:
        """Take a line; return it as it may be shown."""
        self.lines.append(escape(redact(line.rstrip("\r\n"), self._spec).replace("\t", "    ")))
        self._tell(self.lines[-1])
        return self.lines[-1]

    def take_new(self, file: Path, *, ended: bool) -> None:
        """Take the lines of a file that came since the last time: whole ones, until nothing more is written."""
        try:
            whole = file.read_text(encoding="utf-8", errors="replace")
        except OSError:  # a job that has not started has no output
            return
        printed = whole.split("\n")
        for line in printed[len(self.lines) : None if ended and printed[-1] else -1]:
            self.take(line)

    def explain_failure(self, what: str, file: Path) -> str:
        """Return what went wrong with the last lines, and the file that has all of them."""
        telling = [line for line in self.lines if line.strip() and not HARMLESS.search(line)]
        last = (f"  {line}" for line in telling[-LAST_LINES:])
        return "\n".join([f"setup failed: {what}", *last, f"all of it: {file}"])


def run_setup(step: PlannedJob, host: SetupHost) -> str:
    """Run a setup step and wait for its end; return what went wrong, with the last lines and their file, or nothing.

    Stopped (Ctrl-C) or out of time, it leaves nothing behind: what it started is ended, a job of it is cancelled.
    """
    host.log.parent.mkdir(parents=True, exist_ok=True)
    output = SetupOutput(step, host.tell)
    code = _run(step, host, output)
    if code:
        shown = "ran out of time" if code is TOO_LONG else f"ended with exit code {code}"
        return output.explain_failure(f"{format_command(step.spec)} {shown}", host.log)
    if is_slurm_job(step) and (problem := _follow_job(step, host, output)):
        return problem
    _tell_conflicts(output.lines, host.tell)
    return _explain_missing_image(step, output, host.log)


def _run(step: PlannedJob, host: SetupHost, output: SetupOutput) -> int:
    command, directory = step.spec.command, step.spec.directory
    try:
        process = subprocess.Popen(  # noqa: S603 (an argument list from the recipe's file)
            command,
            cwd=directory,
            env=dict(step.spec.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that all that it starts can be ended with it
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} in {directory} cannot be started: {error.strerror}") from error
    with _end_in_time(process, host.seconds) as expired, host.log.open("w", encoding="utf-8") as file:
        for line in process.stdout or ():
            file.write(output.take(line) + "\n")
        code = process.wait()
    return TOO_LONG if expired.is_set() else code


@contextmanager
def _end_in_time(process: subprocess.Popen[str], seconds: float) -> Iterator[threading.Event]:
    """End a command with all that it started when it takes too long, and in any case at the end."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end(process)

    timer = threading.Timer(seconds, expire)  # the caller waits for the next line, which may never come
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


def _follow_job(step: PlannedJob, host: SetupHost, output: SetupOutput) -> str:
    submissions = read_sbatch("\n".join(output.lines))
    if len(submissions) != 1 or host.slurm is None:
        return output.explain_failure("sbatch printed no job id: nothing to wait for", host.log)
    job_id = submissions[0].job_id
    file = step.spec.directory / f"slurm-{job_id}.out"
    output.lines.clear()
    host.tell(f"waiting for job {job_id}; its output: {file}")
    try:
        problem = _wait_for_job(job_id, host.slurm, host, lambda ended: output.take_new(file, ended=ended))
    except BaseException:
        host.tell(f"cancelling job {job_id} {host.slurm.cancel([job_id])}".rstrip())
        raise
    return output.explain_failure(f"job {job_id}: {problem}", file) if problem else ""


def _wait_for_job(job_id: str, slurm: Slurm, host: SetupHost, show: Callable[[bool], None]) -> str:
    """Wait for the end of a job; return what went wrong, or nothing. A Slurm that is away is waited for."""
    submitted = last_seen = host.now()
    stuck = ""
    while True:
        status = _poll_job(job_id, slurm, submitted)
        now = host.now()
        if status and status.phase is not Phase.UNKNOWN:
            last_seen = now
        ended = status is not None and status.phase is Phase.ENDED
        show(ended)
        if status and ended:
            end = explain_status(status)
            return "" if end.blame is Blame.NONE else end.text
        before, stuck = stuck, explain_stuck(status) if status else ""
        if stuck and stuck == before:  # seen once, a reason may be that of a moment
            return f"it will never start and was cancelled ({stuck}) {slurm.cancel([job_id])}".rstrip()
        if (now - last_seen).total_seconds() > LOST_SECONDS:
            return f"Slurm has not known it for {LOST_SECONDS / 60:.0f} minutes; `sacct -j {job_id}` may tell more"
        if (now - submitted).total_seconds() > host.seconds:
            problem = slurm.cancel([job_id])
            return f"it took longer than {host.seconds / 3600:g} h and was cancelled {problem}".rstrip()
        host.sleep(POLL_SECONDS)


def _poll_job(job_id: str, slurm: Slurm, submitted: datetime) -> JobStatus | None:
    try:
        return slurm.poll({job_id: submitted}).get(job_id)
    except LaunchError:  # away for now: `_wait_for_job` ends in any case
        return None


# --- how it ended -----------------------------------------------------------------------------------------


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


def _explain_missing_image(step: PlannedJob, output: SetupOutput, file: Path) -> str:
    images = checks.find_images(step.facts.image, checks.find_stages(step))
    if not images or any(image.is_file() and image.stat().st_size for image in images):
        return ""
    if by_hand := _format_import(step):
        name = images[0].name
        return f"the setup step ended well; the container image {name} is fetched separately:\n  {by_hand}"
    places = " or ".join(str(path.parent) for path in images)
    return output.explain_failure(f"it ended well and left no container image {images[0].name} in {places}", file)


def _format_import(step: PlannedJob) -> str:
    """Return how the image is fetched where the setup script does not do it: in the recipes with LLMB_INSTALL."""
    environment, facts = dict(step.spec.environment), step.facts
    install = environment.get("LLMB_INSTALL")
    if not install or not facts.image_source:
        return ""
    source = f"docker://{facts.image_source.replace('/', '#', 1)}"  # enroot wants # behind the registry
    target = Path(install) / "images" / facts.image
    account, partition = environment.get("SBATCH_ACCOUNT"), environment.get("SBATCH_PARTITION")
    options = [*(("--account", account) if account else ()), *(("--partition", partition) if partition else ())]
    return " ".join(["srun", *options, f'bash -c "enroot import --output {target} {source}"'])
