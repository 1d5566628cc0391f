"""Run the documented setup step of a recipe, after checking that it can run.

A setup step is not a job of the journal: its output is shown while it runs, and an
interrupted step leaves nothing to continue.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

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
from pytest_llmbench.core.patterns import compile_on_use
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
from pytest_llmbench.launch.schedulers.submission import Submission

LAST_LINES = 8  # lines of the output that an error message quotes
POLL_SECONDS = 5.0
LIMITS = Limits()
GRACE_SECONDS = 10.0  # between asking a process to end and killing it

# pip exits with 0 despite these lines, and the recipes' documents call them harmless
RESOLVER = "pip's dependency resolver does not currently take into account"
HARMLESS = compile_on_use(
    rf"{RESOLVER}|This behaviour is the source of the following|tritonclient \S+ requires urllib3"
)
# `torch 2.8.0 requires numpy<2, but you have numpy 2.1.0 which is incompatible.`
CONFLICT = compile_on_use(r"^\S+ \S+ requires .+ but you have .+ which is incompatible")

# `GPU_TYPE=h100`, before the program of a command
_ASSIGNMENT = compile_on_use(r"[A-Za-z_]\w*=")


def build_setup_step(
    facts: LaunchFacts,
    cluster: Cluster,
    caller: Mapping[str, str],
    folder: Path | None = None,
) -> PlannedJob:
    """Build the setup step of a recipe as a job, for the same checks as other jobs.

    It runs as if typed into a shell, with the environment `caller` (proxies, registry
    credentials). The cluster file adds variables, and variables that the recipe forbids
    are removed. `folder` contains the script; default: the folder in the cluster file.
    Raises LaunchError if the recipe has no setup step, or the folder of
    its script is unknown.
    """
    name = f"{facts.recipe} {facts.release}"
    if not facts.setup:
        raise LaunchError(f"{name} has no setup step")
    # `GPU_TYPE=h100 ./setup.sh`: assignments, then the command
    words = shlex.split(facts.setup)
    assignments = list(takewhile(_ASSIGNMENT.match, words))
    words = words[len(assignments) :]
    # a setup step belongs to the recipe, not to a configuration of it
    key = Key(facts.recipe, "", facts.release, "", "", 0)
    installed = find_installed(key, cluster) or InstalledRecipe(
        facts.recipe, facts.release
    )
    # the time limit is meant for benchmarks: importing an image may take longer
    untimed = replace(cluster, time_limit="")
    via = find_via(words[0]) if words else HERE
    inputs = JobInputs(
        key, facts, untimed, Command("setup", via, shlex.join(words)), installed, caller
    )
    environment = _build_environment(inputs)
    nodes = 1
    values = find_placeholders(inputs, nodes, environment)
    # an assignment without a value, such as that of an unknown account, is dropped
    for assignment in assignments:
        variable, _, text = assignment.partition("=")
        if value := fill(inputs, text, values, environment):
            environment[variable] = value
    command = build_arguments(inputs, values, environment)
    if folder is None and installed.folder:
        source = "`folder` in the cluster file"
        folder = Path(fill_references(str(installed.folder), caller, source))
    spec = JobSpec(
        case_id=name,
        key=key,
        purpose=Purpose.MEASURE,
        via=via,
        command=command,
        directory=_check_directory(name, command, folder),
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, cluster.secrets),
        nodes=nodes,
        gpus=0,
        gpu_hours=0.0,
    )
    return PlannedJob(spec, facts)


def is_cluster_job(step: PlannedJob) -> bool:
    """True if the setup step is a cluster job; else it runs on this machine."""
    return not load_scheduler(step.spec.via).is_local


def check_setup(step: PlannedJob, machine: LocalMachine | None = None) -> str:
    """Return the problems of a setup step as text, or "".

    Applies the preflight checks of a job, except those of things that only a run needs,
    such as a token.
    """
    facts = step.facts
    # a step that needs a certain Python installs into a virtual environment
    needs_virtual_environment = facts.virtual_environment or bool(facts.python)
    facts = replace(
        facts,
        virtual_environment=needs_virtual_environment,
        needs_token=False,
        required=tuple(
            (name, meaning) for name, meaning in facts.required if name in STAGES
        ),
    )
    checks = (
        launch_checks.check_variables,
        launch_checks.check_forbidden,
        launch_checks.check_stage,
        launch_checks.check_script,
        launch_checks.check_programs,
        check_virtual_environment,
        check_python_version,
    )
    checked_step = replace(step, facts=facts)
    checked_machine = machine or LocalMachine()
    problems: list[JobProblem] = []
    for check in checks:
        problems += check(checked_step, checked_machine)
    program, *_ = step.spec.command
    path = dict(step.spec.environment).get("PATH", "")
    if is_cluster_job(step) and not shutil.which(program, path=path):
        name = load_scheduler(step.spec.via).name
        problems.append(
            JobProblem(
                f"no {name} on this machine: {program} is not on the PATH",
                "use a login node",
            )
        )
    return describe_problems(group_problems((step, problem) for problem in problems))


# --- environment and command ----------------------------------------------------------


def _build_environment(inputs: JobInputs) -> dict[str, str]:
    """Build the environment of a setup step.

    It consists of the caller's environment, the settings and variables of the cluster
    file, and the virtual environment, without the variables that the recipe forbids.
    """
    cluster, environment = inputs.cluster, dict(inputs.caller)
    # the step needs no GPU, and has no time limit
    environment |= name_settings(replace(cluster, gres="", time_limit=""))
    for name, value in (*cluster.environment, *inputs.installed.environment):
        environment[name] = fill_references(
            value, inputs.caller, f"{name} in the cluster file"
        )
    environment |= activate(inputs, environment)
    forbidden = {name for name, _ in inputs.facts.forbidden}
    return {name: value for name, value in environment.items() if name not in forbidden}


def _check_directory(name: str, command: Sequence[str], folder: Path | None) -> Path:
    """Return `folder` if it contains the script of the step, else raise LaunchError.

    The current folder is never used implicitly.
    """
    script = next((word for word in command if word.endswith(".sh")), command[0])
    if folder and (folder / script).is_file():
        return folder.absolute()
    problem = f"{folder} does not contain it" if folder else "that folder is unknown"
    raise LaunchError(
        f"{name} is set up by {script} in the folder of the recipe, but {problem}. "
        "Pass --folder=DIR, or set `folder` of the recipe under `installed:` in the cluster file"
    )


# --- execution ------------------------------------------------------------------------


class SetupHost(Struct, frozen=True):
    """The environment in which a setup step runs."""

    tell: Callable[[str], None]  # prints one line of output, with masked secrets
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    log: Path  # gets the same lines
    seconds: float  # the time limit
    scheduler: Scheduler | None = None  # only for a cluster job


class SetupOutput:
    """The lines printed by a setup step: masked, shown at once, and kept for errors."""

    def __init__(self, step: PlannedJob, tell: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._spec, self._tell = step.spec, tell

    def add(self, line: str) -> str:
        """Add a line, print it, and return it with masked secrets."""
        masked = redact(line.rstrip("\r\n"), self._spec)
        printed = escape(masked.replace("\t", "    "))
        self.lines.append(printed)
        self._tell(printed)
        return printed

    def add_new_lines(self, file: Path, *, ended: bool) -> None:
        """Add the lines of a file that are new since the last call.

        `lines` must contain the earlier lines of this file only. An incomplete last line
        is added only when the job has `ended`.
        """
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:  # the job has not started
            return
        # the text after the last line break is an incomplete line, or empty
        *lines, incomplete_line = text.split("\n")
        if ended and incomplete_line:
            lines.append(incomplete_line)
        for line in lines[len(self.lines) :]:
            self.add(line)

    def explain_failure(self, problem: str, file: Path) -> str:
        """Describe a failure, with the last lines and the path of the whole output."""
        relevant = [
            line for line in self.lines if line.strip() and not HARMLESS.search(line)
        ]
        last_lines = [f"  {line}" for line in relevant[-LAST_LINES:]]
        return "\n".join(
            [f"setup failed: {problem}", *last_lines, f"full output: {file}"]
        )


def run_setup(step: PlannedJob, host: SetupHost) -> str:
    """Run a setup step to its end; return the error text, or "".

    If it is interrupted (Ctrl-C) or out of time, its processes are ended and its
    cluster job is cancelled.
    """
    host.log.parent.mkdir(parents=True, exist_ok=True)
    output = SetupOutput(step, host.tell)
    exit_code = _run(step, host, output)
    if exit_code != 0:
        outcome = (
            "ran out of time"
            if exit_code is None
            else f"ended with exit code {exit_code}"
        )
        return output.explain_failure(
            f"{format_command(step.spec)} {outcome}", host.log
        )
    if is_cluster_job(step):  # the command has only submitted a job
        problem = _follow_job(step, host, output)
        if problem:
            return problem
    _print_conflicts(output.lines, host.tell)
    return _explain_missing_image(step, output, host.log)


def _run(step: PlannedJob, host: SetupHost, output: SetupOutput) -> int | None:
    """Run the setup command, and write its output to `output` and `host.log`.

    Returns the exit code, or None if the command was stopped at the time limit.
    """
    expired = threading.Event()
    mark = secrets.token_hex(16)  # identifies the processes of the command
    with host.log.open("w", encoding="utf-8") as file, _start(step.spec, mark) as child:
        started = process.make_process_record(child.pid, mark)

        def expire() -> None:
            """Stop the command, which ends the loop below."""
            expired.set()
            with suppress(LaunchError):  # wait for a process that cannot be killed
                process.stop(started, GRACE_SECONDS, time.sleep)

        # a timer, because the loop below may wait for a line forever
        timer = threading.Timer(host.seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            for line in child.stdout or ():
                file.write(output.add(line) + "\n")
            exit_code = child.wait()
        except BaseException:
            process.stop(started, GRACE_SECONDS, time.sleep)
            raise
        finally:
            timer.cancel()
    return None if expired.is_set() else exit_code


def _start(spec: JobSpec, mark: str) -> subprocess.Popen[str]:
    """Start the setup command. Raises LaunchError if it cannot be started."""
    # not process.start: its wrapper shell drops variables such as BASH_FUNC_module%%, which
    # define `module` on clusters, and would write the output with all secrets to a file
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
            f"cannot start {spec.command[0]} in {spec.directory}: {error.strerror}"
        ) from error


def _follow_job(step: PlannedJob, host: SetupHost, output: SetupOutput) -> str:
    """Follow the job that the setup command submitted.

    Returns the reason if it failed, or "". If it is interrupted, cancels the job.
    """
    scheduler = host.scheduler
    submissions: Sequence[Submission] = ()
    if scheduler:
        printed = "\n".join(output.lines)
        submissions = scheduler.read_submissions(step.spec.via, printed)
    if len(submissions) != 1 or scheduler is None:
        program, *_ = step.spec.command
        return output.explain_failure(f"{program} printed no job id", host.log)
    (submission,) = submissions
    job = Job(  # not a job of a journal
        number=1,
        token="",
        spec=step.spec,
        folder=host.log.parent,
        job_id=submission.job_id,
        status=JobStatus(Phase.UNKNOWN, "", submitted=host.now()),
    )
    file = scheduler.find_output(job)
    output.lines.clear()  # from here on, the lines of the job
    host.tell(f"waiting for job {job.job_id}, which writes to {file}")

    def show_output(ended: bool) -> None:
        """Print the new lines of the job's output file."""
        output.add_new_lines(file, ended=ended)

    try:
        problem = _wait_for_job(job, scheduler, host, show_output)
    except BaseException:
        cancel_problem = scheduler.cancel([job])
        host.tell(f"cancelling job {job.job_id} {cancel_problem}".rstrip())
        raise
    if problem:
        return output.explain_failure(f"job {job.job_id}: {problem}", file)
    return ""


def _wait_for_job(
    job: Job, scheduler: Scheduler, host: SetupHost, show_output: Callable[[bool], None]
) -> str:
    """Wait for the end of a job; return the error text, or "".

    `show_output` prints the new lines of the job after each poll; its argument is True
    if the job has ended. A job that can never start, or exceeds the time limit, is
    cancelled. Keeps waiting if the scheduler does not answer.
    """
    watch, submitted = Watch(LIMITS), host.now()
    while True:
        try:
            status = scheduler.poll([job]).get(job.number)
        except LaunchError:
            status = None  # after a while, the job is given up as lost
        now = host.now()
        decision = watch.decide(job, status, now)
        show_output(decision.ended)
        if decision.ended:
            return _explain_end(job, decision.status)
        problem = ""
        if decision.cancel and status:
            problem = f"it could never start and was cancelled ({scheduler.explain_stuck(status)})"
        elif (now - submitted).total_seconds() > host.seconds:
            problem = (
                f"it exceeded the limit of {host.seconds / 3600:g} h and was cancelled"
            )
        if problem:
            return f"{problem} {scheduler.cancel([job])}".rstrip()
        host.sleep(POLL_SECONDS)


# --- outcome --------------------------------------------------------------------------


def _explain_end(job: Job, status: JobStatus | None) -> str:
    """Return the reason a job failed, or "". A job without a record has failed."""
    scheduler = load_scheduler(job.spec.via)
    if status is None or status.phase is Phase.UNKNOWN:
        minutes = LIMITS.lost_seconds / 60
        inquiry = scheduler.format_inquiry(job.job_id)
        return f"{scheduler.name} has had no record of it for {minutes:.0f} minutes. Try `{inquiry}`"
    end = scheduler.explain_end(status)
    return "" if end.blame is Blame.NONE else end.text


def _print_conflicts(lines: Sequence[str], tell: Callable[[str], None]) -> None:
    """Print the conflicts between packages that pip reports in its output `lines`.

    If the recipe's document calls all of them harmless, prints only that. Conflicts are
    no failure: pip exits with 0.
    """
    if not any(RESOLVER in line for line in lines):
        return
    unknown_conflicts = [
        line for line in lines if CONFLICT.match(line) and not HARMLESS.search(line)
    ]
    if unknown_conflicts:
        tell(
            "pip reports conflicts that the recipe's document does not mention. Runs may fail because of them:"
        )
        for line in unknown_conflicts:
            tell(f"  {line}")
    else:
        tell("pip's error about tritonclient and urllib3 is known and harmless.")


def _explain_missing_image(step: PlannedJob, output: SetupOutput, file: Path) -> str:
    """Explain how to get the container image if the setup step did not.

    Returns "" if the image exists or none is needed.
    """
    # the paths where the image may be: the same name in several folders
    images = find_images(step.facts.image, launch_checks.find_stages(step))
    has_image = any(image.is_file() and image.stat().st_size for image in images)
    if not images or has_image:
        return ""
    name = images[0].name
    if import_command := _format_separate_import(step):
        return f"the setup step succeeded. Fetch the container image {name} separately:\n  {import_command}"
    folders = " or ".join(str(path.parent) for path in images)
    return output.explain_failure(
        f"the setup step ended without an error, but left no container image {name} in {folders}",
        file,
    )


def list_setup_variables(
    step: PlannedJob, caller: Mapping[str, str]
) -> list[tuple[str, str]]:
    """List the variables that a step adds or changes, and its stage folders.

    Returns sorted (name, value) pairs with masked secrets. `caller` is the caller's
    environment.
    """
    masked = mask_environment(step.spec.environment, step.spec.secrets)
    values = dict(step.spec.environment)
    return sorted(
        (name, masked_value)
        for name, masked_value in masked
        if caller.get(name) != values[name] or name in STAGES
    )


def describe_import(step: PlannedJob) -> str:
    """Describe the source and target of the container image.

    If the step does not fetch the image, returns the command that fetches the image, returns the command that does instead.
    Returns "" for a recipe without an image.
    """
    images = find_images(step.facts.image, launch_checks.find_stages(step))
    if not images or not step.facts.image_source:
        return ""
    if import_command := _format_separate_import(step):
        return f"fetch the image separately:\n  {import_command}"
    return f"imports {launch_checks.format_image_source(step.facts)} to {images[0]}"


def _format_separate_import(step: PlannedJob) -> str:
    """Format the command to fetch the image, if the setup script does not fetch it.

    That is the case for recipes with LLMB_INSTALL. Returns "" for other recipes.
    """
    environment, facts = dict(step.spec.environment), step.facts
    install = environment.get("LLMB_INSTALL")
    if not install or not facts.image_source:
        return ""
    target = Path(install) / "images" / facts.image
    command = (
        f"enroot import --output {target} {launch_checks.format_image_source(facts)}"
    )
    # fetch the image on a node of the scheduler that launches the recipe
    launch_vias = (
        documented.via for documented in facts.commands if documented.name == facts.kind
    )
    launch_via = next(launch_vias, step.spec.via)
    return load_scheduler(launch_via).format_on_node(command, environment)
