"""A recipe's own setup step, the documented way: what it is, whether it can run, and
its run to the end.

It is no job of the journal: its output is shown while it runs, and stopped it leaves
nothing behind to go on with.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.job_records import (
    Blame,
    Cluster,
    Command,
    InstalledRecipe,
    Job,
    JobSpec,
    JobStatus,
    LaunchFacts,
    Phase,
    Purpose,
)
from pytest_llmbench.core.redaction import find_secret_names, mask_environment
from pytest_llmbench.launch.job_secrets import redact
from pytest_llmbench.launch.jobs.watch import Limits, Watch
from pytest_llmbench.launch.plan.cluster_file import fill_references
from pytest_llmbench.launch.plan.fit import find_images, find_installed
from pytest_llmbench.launch.plan.job_spec import (
    STAGES,
    JobInputs,
    activate,
    build_arguments,
    fill,
    find_placeholders,
    name_settings,
)
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight import launch_checks
from pytest_llmbench.launch.preflight.dry_run import format_command
from pytest_llmbench.launch.preflight.launch_checks import (
    check_python_version,
    check_virtual_environment,
)
from pytest_llmbench.launch.preflight.problems import (
    JobProblem,
    LocalMachine,
    describe_problems,
    group_problems,
)
from pytest_llmbench.launch.schedulers import process
from pytest_llmbench.launch.schedulers.registry import HERE, find_via, load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler

LAST_LINES = 8
POLL_SECONDS = 5.0
LIMITS = Limits()
GRACE_SECONDS = 10.0
TOO_LONG = 124  # as timeout(1) has it

# pip ends with 0 all the same, and the recipes' documents say of these lines that they
# do no harm
RESOLVER = "pip's dependency resolver does not currently take into account"
HARMLESS = re.compile(
    rf"{RESOLVER}|This behaviour is the source of the following|tritonclient \S+ requires urllib3"
)
CONFLICT = re.compile(r"^\S+ \S+ requires .+ but you have .+ which is incompatible")

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def build_setup_step(
    facts: LaunchFacts,
    cluster: Cluster,
    caller: Mapping[str, str],
    folder: Path | None = None,
) -> PlannedJob:
    """Return the setup step of a recipe as a job, for the checks that all jobs go
    through.

    It runs as the document has it typed into a shell, so the caller's environment is
    its own (proxies, credentials of registries); the cluster file adds to it, and what
    the recipe forbids is removed. LaunchError where the recipe has none, or nothing
    says where its script lies.
    """
    name = f"{facts.recipe} {facts.release}"
    if not facts.setup:
        raise LaunchError(f"{name} has no setup step: nothing to do")
    words = shlex.split(facts.setup)
    assignments = list(takewhile(_ASSIGNMENT.match, words))
    words = words[len(assignments) :]
    key = Key(facts.recipe, "", facts.release, "", "", 0)
    installed = find_installed(key, cluster) or InstalledRecipe(
        facts.recipe, facts.release
    )
    untimed = replace(
        cluster, time_limit=""
    )  # that of the benchmarks: to import an image may take longer
    via = find_via(words[0]) if words else HERE
    parts = JobInputs(
        key, facts, untimed, Command("setup", via, shlex.join(words)), installed, caller
    )
    environment = _build_environment(parts)
    values = find_placeholders(parts, 1, environment)
    for assignment in assignments:
        variable, _, text = assignment.partition("=")
        if value := fill(parts, text, values, environment):
            environment[variable] = value
    command = build_arguments(parts, values, environment)
    if folder is None and installed.folder:
        folder = Path(
            fill_references(
                str(installed.folder), caller, "`folder` in the cluster file"
            )
        )
    spec = JobSpec(
        case_id=name,
        key=key,
        purpose=Purpose.MEASURE,
        via=via,
        command=command,
        directory=_check_directory(name, command, folder),
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, cluster.secrets),
        nodes=1,
        gpus=0,
        gpu_hours=0.0,
    )
    return PlannedJob(spec, facts)


def is_cluster_job(step: PlannedJob) -> bool:
    """Return True if a setup step is a job of a cluster; else it runs where it is
    started."""
    return not load_scheduler(step.spec.via).here


def check_setup(step: PlannedJob, machine: LocalMachine | None = None) -> str:
    """Return what is in the way of a setup step as one text, empty if nothing is."""
    facts = step.facts
    facts = replace(
        facts,
        virtual_environment=facts.virtual_environment
        or bool(facts.python),  # what it installs goes there
        needs_token=False,
        required=tuple(
            (name, meaning) for name, meaning in facts.required if name in STAGES
        ),
    )
    every = (
        launch_checks.check_variables,
        launch_checks.check_forbidden,
        launch_checks.check_stage,
        launch_checks.check_script,
        launch_checks.check_programs,
        check_virtual_environment,
        check_python_version,
    )
    on = machine or LocalMachine()
    problems = [
        problem for check in every for problem in check(replace(step, facts=facts), on)
    ]
    program, path = step.spec.command[0], dict(step.spec.environment).get("PATH", "")
    if is_cluster_job(step) and not shutil.which(program, path=path):
        name = load_scheduler(step.spec.via).name
        problems.append(
            JobProblem(
                f"there is no {name} on this machine: no {program} on the PATH",
                "use a login node",
            )
        )
    return describe_problems(group_problems((step, problem) for problem in problems))


# --- its environment and command ------------------------------------------------------


def _build_environment(parts: JobInputs) -> dict[str, str]:
    cluster, environment = parts.cluster, dict(parts.caller)
    environment |= name_settings(replace(cluster, gres="", time_limit=""))
    for name, value in (*cluster.environment, *parts.installed.environment):
        environment[name] = fill_references(
            value, parts.caller, f"{name} in the cluster file"
        )
    environment |= activate(parts, environment)
    forbidden = {name for name, _ in parts.facts.forbidden}
    return {name: value for name, value in environment.items() if name not in forbidden}


def _check_directory(name: str, command: Sequence[str], folder: Path | None) -> Path:
    """Return the folder if the script of the step lies in it; never the current one by
    chance."""
    script = next((word for word in command if word.endswith(".sh")), command[0])
    if folder and (folder / script).is_file():
        return folder.absolute()
    looked = f"there is none in {folder}" if folder else "nothing says where that is"
    raise LaunchError(
        f"{name} is set up by {script} in the folder of the recipe, and {looked}: "
        "give it with --folder=DIR, or as `folder` of the recipe under `installed:` in the cluster file"
    )


# --- running it -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetupHost:
    """Where a setup step runs."""

    tell: Callable[[str], None]  # gets what it prints line by line, with secrets masked
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    log: Path  # keeps the same lines
    seconds: float  # it may take so long
    scheduler: Scheduler | None = None  # of a step that is a job of a cluster


class SetupOutput:
    """The lines that a step has printed: masked, told at once, and kept for the message
    of a failure."""

    def __init__(self, step: PlannedJob, tell: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._spec, self._tell = step.spec, tell

    def take(self, line: str) -> str:
        """Take a line; return it as it may be shown."""
        self.lines.append(
            escape(redact(line.rstrip("\r\n"), self._spec).replace("\t", "    "))
        )
        self._tell(self.lines[-1])
        return self.lines[-1]

    def feed_new_lines(self, file: Path, *, ended: bool) -> None:
        """Take the lines of a file that came since the last time: whole ones, until
        nothing more is written."""
        try:
            whole = file.read_text(encoding="utf-8", errors="replace")
        except OSError:  # a job that has not started has no output
            return
        printed = whole.split("\n")
        for line in printed[len(self.lines) : None if ended and printed[-1] else -1]:
            self.take(line)

    def explain_failure(self, what: str, file: Path) -> str:
        """Return what went wrong with the last lines, and the file that has all of
        them."""
        telling = [
            line for line in self.lines if line.strip() and not HARMLESS.search(line)
        ]
        last = (f"  {line}" for line in telling[-LAST_LINES:])
        return "\n".join([f"setup failed: {what}", *last, f"all of it: {file}"])


def run_setup(step: PlannedJob, host: SetupHost) -> str:
    """Run a setup step and wait for its end; return what went wrong, with the last
    lines and their file, or nothing.

    Stopped (Ctrl-C) or out of time, it leaves nothing behind: what it started is ended,
    a job of it is cancelled.
    """
    host.log.parent.mkdir(parents=True, exist_ok=True)
    output = SetupOutput(step, host.tell)
    code = _run(step, host, output)
    if code:
        shown = (
            "ran out of time" if code is TOO_LONG else f"ended with exit code {code}"
        )
        return output.explain_failure(f"{format_command(step.spec)} {shown}", host.log)
    if is_cluster_job(step) and (problem := _follow_job(step, host, output)):
        return problem
    _tell_conflicts(output.lines, host.tell)
    return _explain_missing_image(step, output, host.log)


def _run(step: PlannedJob, host: SetupHost, output: SetupOutput) -> int:
    expired = threading.Event()
    mark = secrets.token_hex(16)
    with host.log.open("w", encoding="utf-8") as file, _start(step.spec, mark) as child:
        started = process.describe(child.pid, mark)

        def expire() -> None:
            expired.set()
            with suppress(LaunchError):  # what cannot be killed is waited for
                process.stop(started, GRACE_SECONDS, time.sleep)

        timer = threading.Timer(
            host.seconds, expire
        )  # the loop below waits for the next line, which may never come
        timer.daemon = True
        timer.start()
        try:
            for line in child.stdout or ():
                file.write(output.take(line) + "\n")
            code = child.wait()
        except BaseException:
            process.stop(started, GRACE_SECONDS, time.sleep)
            raise
        finally:
            timer.cancel()
    return TOO_LONG if expired.is_set() else code


def _start(spec: JobSpec, mark: str) -> subprocess.Popen[str]:
    # not process.start: the shell of its wrapper drops variables such as
    # BASH_FUNC_module%%, by which clusters hand on `module`, and its output would lie
    # in a file with all secrets
    try:
        return subprocess.Popen(  # noqa: S603 (an argument list from the recipe's file)
            spec.command,
            cwd=spec.directory,
            env={**dict(spec.environment), process.MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(
            f"{spec.command[0]} in {spec.directory} cannot be started: {error.strerror}"
        ) from error


def _follow_job(step: PlannedJob, host: SetupHost, output: SetupOutput) -> str:
    scheduler, program = host.scheduler, step.spec.command[0]
    submissions = (
        scheduler.read_submissions(step.spec.via, "\n".join(output.lines))
        if scheduler
        else ()
    )
    if len(submissions) != 1 or scheduler is None:
        return output.explain_failure(
            f"{program} printed no job id: nothing to wait for", host.log
        )
    submitted = JobStatus(Phase.UNKNOWN, "", submitted=host.now())
    job = Job(
        1,
        "",
        step.spec,
        host.log.parent,
        job_id=submissions[0].job_id,
        status=submitted,
    )
    file = scheduler.find_output(job)
    output.lines.clear()
    host.tell(f"waiting for job {job.job_id}; its output: {file}")
    try:
        problem = _wait_for_job(
            job, scheduler, host, lambda ended: output.feed_new_lines(file, ended=ended)
        )
    except BaseException:
        host.tell(f"cancelling job {job.job_id} {scheduler.cancel([job])}".rstrip())
        raise
    return (
        output.explain_failure(f"job {job.job_id}: {problem}", file) if problem else ""
    )


def _wait_for_job(
    job: Job, scheduler: Scheduler, host: SetupHost, show: Callable[[bool], None]
) -> str:
    """Wait for the end of a job; return what went wrong, or nothing. A scheduler that
    is away is waited for."""
    watch, submitted = Watch(LIMITS), host.now()
    while True:
        try:
            status = scheduler.poll([job]).get(job.number)
        except LaunchError:
            status = None  # if it stays away, the job is lost
        now = host.now()
        decision = watch.decide(job, status, now)
        show(decision.ended)
        if decision.ended:
            return _explain_end(job, decision.status)
        problem = ""
        if decision.cancel and status:
            problem = f"it will never start and was cancelled ({scheduler.explain_stuck(status)})"
        elif (now - submitted).total_seconds() > host.seconds:
            problem = f"it took longer than {host.seconds / 3600:g} h and was cancelled"
        if problem:
            return f"{problem} {scheduler.cancel([job])}".rstrip()
        host.sleep(POLL_SECONDS)


# --- how it ended ---------------------------------------------------------------------


def _explain_end(job: Job, status: JobStatus | None) -> str:
    scheduler = load_scheduler(job.spec.via)
    if status is None or status.phase is Phase.UNKNOWN:
        minutes, look = LIMITS.lost_seconds / 60, scheduler.format_inquiry(job.job_id)
        return f"{scheduler.name} has not known it for {minutes:.0f} minutes; `{look}` may tell more"
    end = scheduler.explain_end(status)
    return "" if end.blame is Blame.NONE else end.text


def _tell_conflicts(lines: Sequence[str], tell: Callable[[str], None]) -> None:
    """Say of pip's error whether it is the known one; exit code 0 is a success either
    way."""
    if not any(RESOLVER in line for line in lines):
        return
    others = [
        line for line in lines if CONFLICT.match(line) and not HARMLESS.search(line)
    ]
    if others:
        tell(
            "pip reports conflicts that the recipe's document does not know; a run may fail because of them:"
        )
        for line in others:
            tell(f"  {line}")
    else:
        tell(
            "pip's error about tritonclient and urllib3 is a known one and does no harm."
        )


def _explain_missing_image(step: PlannedJob, output: SetupOutput, file: Path) -> str:
    images = find_images(step.facts.image, launch_checks.find_stages(step))
    if not images or any(image.is_file() and image.stat().st_size for image in images):
        return ""
    if by_hand := _format_separate_import(step):
        name = images[0].name
        return f"the setup step ended well; the container image {name} is fetched separately:\n  {by_hand}"
    places = " or ".join(str(path.parent) for path in images)
    return output.explain_failure(
        f"it ended well and left no container image {images[0].name} in {places}", file
    )


def list_setup_variables(
    step: PlannedJob, caller: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the variables that a step gets and the caller's shell does not have so,
    and its stage folders; sorted, without the values of secrets."""
    shown = mask_environment(step.spec.environment, step.spec.secrets)
    values = dict(step.spec.environment)
    return sorted(
        pair
        for pair in shown
        if caller.get(pair[0]) != values[pair[0]] or pair[0] in STAGES
    )


def describe_import(step: PlannedJob) -> str:
    """Return where the container image comes from and lies then, and the command for it
    where the step does not fetch it; empty for a recipe without one."""
    images = find_images(step.facts.image, launch_checks.find_stages(step))
    if not images or not step.facts.image_source:
        return ""
    if by_hand := _format_separate_import(step):
        return f"the image is fetched separately:\n  {by_hand}"
    return f"imports {launch_checks.format_image_source(step.facts)} to {images[0]}"


def _format_separate_import(step: PlannedJob) -> str:
    """Return how the image is fetched where the setup script does not do it: in the
    recipes with LLMB_INSTALL."""
    environment, facts = dict(step.spec.environment), step.facts
    install = environment.get("LLMB_INSTALL")
    if not install or not facts.image_source:
        return ""
    target = Path(install) / "images" / facts.image
    command = (
        f"enroot import --output {target} {launch_checks.format_image_source(facts)}"
    )
    default = next(
        (command.via for command in facts.commands if command.name == facts.kind),
        step.spec.via,
    )
    return load_scheduler(default).format_on_node(command, environment)
