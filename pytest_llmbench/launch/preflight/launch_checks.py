"""Check everything that could make a launch fail, before anything is submitted.

All problems are reported at once, each with its remedy.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.job_records import (
    Cluster,
    LaunchFacts,
    PreflightCheck,
    Purpose,
)
from pytest_llmbench.core.redaction import find_secret_names
from pytest_llmbench.launch.plan.fit import find_images
from pytest_llmbench.launch.plan.job_spec import IMAGE, list_missing, list_stages
from pytest_llmbench.launch.plan.planned_job import PlannedJob, find_script
from pytest_llmbench.launch.plan.purpose import explain_unloadable
from pytest_llmbench.launch.preflight.problems import (
    JobProblem,
    LaunchProblem,
    LocalMachine,
    group_problems,
)
from pytest_llmbench.launch.schedulers.registry import (
    Schedulers,
    list_schedulers,
    load_scheduler,
)

NEWEST_PYTHON_MINOR = 20  # the newest minor version of Python to search for
COMMAND_SECONDS = 30.0

# prints the missing modules, without importing any
FIND_MODULES = "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])"


def find_virtual_environment(planned: PlannedJob) -> str:
    """Return the virtual environment that is active in a job, or ""."""
    environment = dict(planned.spec.environment)
    return environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX") or ""


def _supplies_python(planned: PlannedJob) -> bool:
    """True if the launcher supplies the Python of its recipes.

    llmb-run does, with the environments that its installer made, unless a virtual
    environment is active in the job.
    """
    via = planned.spec.via
    runs_in_recipe = load_scheduler(via).runs_in_recipe(via)
    return not runs_in_recipe and not find_virtual_environment(planned)


def check_virtual_environment(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield a problem if the required virtual environment is missing or broken."""
    if _supplies_python(planned):
        return
    facts = planned.facts
    folder = find_virtual_environment(planned)
    if folder and not (Path(folder) / "bin" / "python").exists():
        yield JobProblem(
            f"the virtual environment {folder} has no bin/python",
            _advise_virtual_environment(planned, machine),
        )
    elif facts.virtual_environment and not folder:
        name = f"{facts.recipe} {facts.release}"
        yield JobProblem(
            f"{name} needs a virtual environment",
            _advise_virtual_environment(planned, machine),
        )


def check_python_version(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield a problem if a job would run another Python than its recipe requires."""
    facts = planned.facts
    if not facts.python or _supplies_python(planned):
        return
    name = f"{facts.recipe} {facts.release}"
    python = _find_python(planned)
    if not python:
        problem = f"{name} needs Python {facts.python}, but there is no python on the job's PATH"
        yield JobProblem(problem, _advise_virtual_environment(planned, machine))
        return
    version = _read_python_version(python, planned, machine)
    if not is_required_version(version, facts.python):
        actual = f"Python {version}" if version else "a program that prints no version"
        problem = f"{name} needs Python {facts.python}; {python} is {actual}"
        yield JobProblem(problem, _advise_virtual_environment(planned, machine))


def check_python_modules(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield the modules that a recipe imports and the job's Python lacks.

    Checks only jobs on this machine: the Python of a compute node is unknown.
    """
    facts = planned.facts
    python = _find_python(planned)
    if not load_scheduler(planned.spec.via).is_local or not facts.modules or not python:
        return
    output = machine.run(
        [python, "-c", FIND_MODULES, *facts.modules],
        timeout=COMMAND_SECONDS,
        environment={"PATH": _get_path(planned)},
    )
    missing = [name for name in output.out.split() if name in facts.modules]
    if missing:
        names = " and ".join(missing)
        remedy = (
            f"{python} -m pip install {' '.join(missing)}, or set PYTHON=... to a Python that has them, under `environment:` in "
            "the cluster file"
        )
        yield JobProblem(
            f"{facts.recipe} {facts.release} needs {names}, which {python} lacks",
            remedy,
        )


def _get_path(planned: PlannedJob) -> str:
    """Return the PATH of a job, or ""."""
    return dict(planned.spec.environment).get("PATH", "")


def _find_python(planned: PlannedJob) -> str | None:
    """Return the Python of a job, or None if there is none.

    Its variable `PYTHON` if that is a program, else `python` or `python3` on its PATH.
    """
    python = dict(planned.spec.environment).get("PYTHON")
    for name in (python, "python", "python3"):
        program = shutil.which(name, path=_get_path(planned)) if name else None
        if program:
            return program
    return None


def _read_python_version(
    python: str, planned: PlannedJob, machine: LocalMachine
) -> str:
    """Return the version that a Python prints, or ""."""
    output = machine.run(
        [python, "--version"],
        timeout=COMMAND_SECONDS,
        environment={"PATH": _get_path(planned)},
    )
    return _read_version(output.out + output.err)


# --- Python versions ------------------------------------------------------------------


def is_required_version(version: str, required: str) -> bool:
    """True if a Python version meets a requirement.

    `3.12` accepts any 3.12.x, `3.10.12 or newer` any version from 3.10.12 on.
    """
    version_numbers = _split_version(version)
    required_numbers = _split_version(_read_version(required))
    if not version_numbers or not required_numbers:
        return False
    if _accepts_newer(required):
        return version_numbers >= required_numbers
    return version_numbers[: len(required_numbers)] == required_numbers


def _accepts_newer(required: str) -> bool:
    return required.endswith("or newer")


def _read_version(text: str) -> str:
    """Return the first version number in a text such as `Python 3.12.4`, or ""."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return match[0] if match else ""


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number)


def _advise_virtual_environment(planned: PlannedJob, machine: LocalMachine) -> str:
    """Advise how to create a virtual environment with the required Python.

    Names the first suitable Python on the job's PATH, else conda.
    """
    required = planned.facts.python
    path = _get_path(planned)
    next_step = "then set `virtual_environment: DIR` in the cluster file"
    required_numbers = _split_version(_read_version(required))
    if not required_numbers:
        return f"python3 -m venv DIR, {next_step}"
    major, oldest_minor, *_ = required_numbers
    newest_minor = NEWEST_PYTHON_MINOR if _accepts_newer(required) else oldest_minor
    minors = range(newest_minor, oldest_minor - 1, -1)
    for name in ("python3", *(f"python{major}.{minor}" for minor in minors)):
        python = shutil.which(name, path=path)
        if python is None:
            continue
        version = _read_python_version(python, planned, machine)
        if is_required_version(version, required):
            return f"{python} -m venv DIR, {next_step}"
    version = f"{major}.{oldest_minor}"
    if shutil.which("conda", path=path):
        return f"conda create -p DIR python={version}, {next_step}"
    return f"there is no Python {required} on the PATH: install it (for example with conda: python={version}), {next_step}"


# --- launch checks -------------------------------------------------------------------


GIGABYTE = 10**9


def find_stages(planned: PlannedJob) -> dict[str, Path]:
    """Return the stage folders in a job's environment, by variable."""
    return list_stages(dict(planned.spec.environment))


def find_documented_stages(planned: PlannedJob) -> dict[str, Path]:
    """Return the stage folders that the recipe's document names, by variable.

    Omits other stage folders, which the cluster file may set for other recipes.
    """
    pairs = (*planned.facts.required, *planned.facts.optional)
    documented_variables = {name for name, _ in pairs}
    return {
        name: folder
        for name, folder in find_stages(planned).items()
        if name in documented_variables
    }


def format_setup_command(planned: PlannedJob) -> str:
    """Format the command that sets up a recipe."""
    return f"llmbench setup {planned.facts.recipe} --release {planned.facts.release}"


def format_image_source(facts: LaunchFacts) -> str:
    """Format the source of a recipe's container image for enroot.

    enroot separates the registry by #: `docker://nvcr.io#nvidia/nemo:25.04`.
    """
    return f"docker://{facts.image_source.replace('/', '#', 1)}"


def check_launch(
    planned: Sequence[PlannedJob],
    cluster: Cluster,
    schedulers: Schedulers,
    machine: LocalMachine | None = None,
) -> tuple[LaunchProblem, ...]:
    """Return the problems of these jobs; empty if there are none.

    Writes nothing, and queries each scheduler at most once.
    """
    cached_machine = _cache_commands(machine or LocalMachine())
    return group_problems(_run_checks(planned, cluster, schedulers, cached_machine))


def _run_checks(
    planned: Sequence[PlannedJob],
    cluster: Cluster,
    schedulers: Schedulers,
    machine: LocalMachine,
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    """Yield the problems of all preflight checks, each with its job."""
    for name, check in CHECKS.items():
        for job in planned:
            for problem in _report_denied(check(job, machine)):
                yield job, replace(problem, check=name)
    yield from check_disk_space(planned, machine)
    for scheduler, jobs in schedulers.group(planned).items():
        yield from scheduler.check_jobs(jobs, cluster)


def _report_denied(problems: Iterator[JobProblem]) -> Iterator[JobProblem]:
    """Yield problems; turn a PermissionError of a check into a problem.

    Testing for a file raises PermissionError in a folder that this user may not enter.
    """
    try:
        yield from problems
    except PermissionError as error:
        remedy = "ask the owner of its folder for permission to enter it"
        yield JobProblem(f"{error.filename}: {error.strerror}", remedy)


def _cache_commands(machine: LocalMachine) -> LocalMachine:
    """Return a machine that runs a command only once in equal environments.

    Many jobs use the same Python. Jobs with different search paths (PATH) may use
    different ones.
    """
    outputs: dict[object, CommandOutput] = {}

    def run_cached(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        """Run a command, or return its output if it ran before."""
        variables = frozenset(environment.items()) if environment is not None else None
        key = (tuple(arguments), variables)
        if key not in outputs:
            outputs[key] = machine.run(
                arguments, timeout=timeout, environment=environment
            )
        return outputs[key]

    return replace(machine, run=run_cached)


# --- script, folders, image -----------------------------------------------------------


def check_script(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the problems of a job's folder and its script."""
    directory, script = planned.spec.directory, find_script(planned)
    remedy = f"set {_name_folder_setting(planned)}"
    unset_variable = re.match(r"\$\{?(\w+)", str(directory))  # `${STAGE_PATH}/grok1`
    if unset_variable:
        variable = unset_variable[1]
        # check_variables reports required variables
        if variable not in list_missing(planned.spec, planned.facts):
            yield JobProblem(
                f"the recipe's folder is {directory}, but {variable} is not set", remedy
            )
    elif not directory.is_dir():
        # check_stage reports stage folders
        if directory not in find_documented_stages(planned).values():
            yield JobProblem(
                f"there is no folder {directory}", f"create it, or {remedy}"
            )
    elif script:
        yield from _check_script_file(planned, script, machine)
    yield from load_scheduler(planned.spec.via).check_script(planned, machine)


def _check_script_file(
    planned: PlannedJob, script: Path, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield a problem if the script is missing, not executable or not readable.

    Only a script that is itself the program of the job must be executable.
    """
    program, *_ = planned.spec.command
    is_program = script == planned.spec.directory / program
    if not script.is_file():
        yield _report_missing_script(planned, script)
    elif is_program and not machine.may(script, os.X_OK):
        yield JobProblem(f"{script} is not executable", f"chmod +x {script}")
    elif not machine.may(script, os.R_OK):
        yield JobProblem(f"{script} is not readable", "ask its owner for permission")


def _name_folder_setting(planned: PlannedJob) -> str:
    """Name the key of the cluster file that sets the recipe's folder."""
    name = f"{planned.facts.recipe}-{planned.facts.release}"
    return f"`folder` of {name} under `installed:` in the cluster file"


def _report_missing_script(planned: PlannedJob, script: Path) -> JobProblem:
    """Build the problem of a script that does not exist.

    Without a configured folder, the script is expected next to the baseline file.
    """
    facts, directory = planned.facts, planned.spec.directory
    if facts.file and directory == facts.file.absolute().parent:
        return JobProblem(
            f"the folder of {facts.recipe} {facts.release} is unknown: {script.name} was not found",
            f"set {_name_folder_setting(planned)}",
        )
    remedy = f"set {_name_folder_setting(planned)}"
    # the setup step of a recipe writes its script to a stage folder
    if directory in find_documented_stages(planned).values():
        remedy = f"run `{format_setup_command(planned)}`, or {remedy}"
    return JobProblem(f"there is no {script.name} in {script.parent}", remedy)


def check_stage(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the problems of a job's stage folders."""
    for name, folder in find_documented_stages(planned).items():
        if not folder.is_absolute():
            yield JobProblem(
                f"{name} is {str(folder)!r}, a relative path, which differs between nodes",
                "give its full path; variables are written ${NAME}",
            )
        elif not folder.is_dir():
            yield JobProblem(
                f"{name}={folder}: no such folder", f"create it, or correct {name}"
            )
        else:
            results_folder = _find_results_folder(planned, folder)
            if not machine.may(results_folder, os.W_OK | os.X_OK):
                yield JobProblem(
                    f"{name}: cannot write to {results_folder}",
                    "ask its owner for permission, or use another folder",
                )


def _find_results_folder(planned: PlannedJob, stage: Path) -> Path:
    """Return the folder for a job's results.

    The recipe's folder in an installation of llmb-run, because the stage folder above
    it may be read-only; without an installation, the stage folder.
    """
    workload = dict(planned.spec.environment).get("LLMB_WORKLOAD", "")
    return Path(workload) if workload and Path(workload).is_dir() else stage


def check_image(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield a problem if the container image is missing or empty.

    A broken import leaves an empty image.
    """
    override = dict(planned.spec.environment).get(IMAGE, "")
    candidates = find_images(planned.facts.image, find_stages(planned), override)
    if not candidates:
        return
    expected = candidates[0]
    setup = format_setup_command(planned)
    present = [path for path in candidates if path.is_file()]
    if not present:
        folders = " and ".join(str(path.parent) for path in candidates)
        command = setup
        if not planned.facts.setup and planned.facts.image_source:
            source = format_image_source(planned.facts)
            command = f"enroot import --output {expected} {source}"
        yield JobProblem(
            f"no container image {expected.name} in {folders}", f"run `{command}`"
        )
        return
    used = present[0]
    if not used.stat().st_size:
        yield JobProblem(
            f"the container image {used} is empty", f"delete it and run `{setup}`"
        )


# --- variables, programs --------------------------------------------------------------


def check_variables(
    planned: PlannedJob, _machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield the required variables that a job lacks, except secrets."""
    missing = list_missing(planned.spec, planned.facts)
    return _report_missing(planned, [name for name in missing if not _is_secret(name)])


def check_token(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the required secrets that a job lacks. Never shows a value."""
    missing = list_missing(planned.spec, planned.facts)
    return _report_missing(planned, [name for name in missing if _is_secret(name)])


def _is_secret(name: str) -> bool:
    """True if the name of a variable shows that its value is secret."""
    return bool(find_secret_names({name: ""}))


def _report_missing(planned: PlannedJob, names: Iterable[str]) -> Iterator[JobProblem]:
    """Yield a problem for each variable that is not set."""
    meanings = {
        "HF_TOKEN": "Hugging Face access token",
        **dict(planned.facts.optional),
        **dict(planned.facts.required),
    }
    for name in names:
        meaning = meanings.get(name, "an argument of its configuration uses it")
        yield JobProblem(f"{name} is not set: {meaning}", _advise_setting(name))


def check_forbidden(
    planned: PlannedJob, _machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield the variables that a job must not have."""
    facts = planned.facts
    for name, reason in facts.forbidden:
        if name in dict(planned.spec.environment):
            yield JobProblem(
                f"{name} must not be set for {facts.recipe} {facts.release}: {reason}",
                f"remove {name}",
            )


def _advise_setting(name: str) -> str:
    """Advise how to set a variable of a job."""
    for scheduler in list_schedulers():
        for key in ("account", "partition"):
            variables = scheduler.cluster_variables.get(key, ())
            # the first variable is the one that the submission command reads
            if variables and name == variables[0]:
                return f"set `{key}` in the cluster file"
    return f"export {name}=..., or set it under `environment:` in the cluster file"


def check_programs(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the programs missing from a job's PATH.

    Each scheduler checks its own programs.
    """
    path = _get_path(planned)
    scheduler = load_scheduler(planned.spec.via)
    command_program, *_ = planned.spec.command
    programs = dict.fromkeys([command_program, "bash"])
    for name in programs:
        is_path = "/" in name  # check_script checks the file
        is_of_scheduler = bool(scheduler.find_via(name))
        if is_path or is_of_scheduler:
            continue
        if shutil.which(name, path=path) is None:
            remedy = "install it, or add its folder to PATH under `environment:` in the cluster file"
            yield JobProblem(f"no program {name!r} on the job's PATH", remedy)


# --- checkpoints ----------------------------------------------------------------------


def check_checkpoint(
    planned: PlannedJob, _machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield a problem if the checkpoint that a job is to load cannot be loaded."""
    checkpoint = planned.facts.checkpoint
    if planned.spec.purpose is not Purpose.LOAD_CHECKPOINT or checkpoint is None:
        return
    environment = dict(planned.spec.environment)
    for name, template in checkpoint.load:
        if "{checkpoint}" not in template:
            continue
        folder = environment.get(name, "")
        stage = _find_first_stage(planned)
        if problem := explain_unloadable(Path(folder), stage):
            yield JobProblem(
                f"{name}={folder}: {problem}", "correct --llmb-load-checkpoint"
            )


def _find_first_stage(planned: PlannedJob) -> Path | None:
    """Return the stage folder that a job uses, or None without one."""
    return next(iter(find_stages(planned).values()), None)


def check_disk_space(
    jobs: Sequence[PlannedJob], machine: LocalMachine
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    """Yield the jobs whose checkpoints do not fit on the disk together."""
    jobs_by_stage: dict[Path, list[PlannedJob]] = {}
    for job in jobs:
        stage = _find_first_stage(job)
        if stage is not None and _is_saving(job):
            jobs_by_stage.setdefault(stage, []).append(job)
    for stage, saving_jobs in jobs_by_stage.items():
        if not os.path.isdir(stage):  # Path.is_dir raises without permission
            continue
        needed = sum(_estimate_checkpoint(job) for job in saving_jobs)
        free = machine.free_bytes(stage)
        if needed <= free:
            continue
        text = f"the checkpoints need {_format_size(needed)}, but {stage} has {_format_size(free)} free"
        for job in saving_jobs:
            problem = JobProblem(
                text=text,
                remedy="free disk space, or select fewer configurations with -k",
                detail=_format_size(_estimate_checkpoint(job)),
                check=PreflightCheck.DISK_SPACE,
            )
            yield job, problem


def _is_saving(planned: PlannedJob) -> bool:
    """True if a job saves a checkpoint."""
    return (
        planned.spec.purpose is Purpose.SAVE_CHECKPOINT
        and planned.facts.checkpoint is not None
    )


def _estimate_checkpoint(planned: PlannedJob) -> int:
    """Return the documented size of a job's checkpoint in bytes, or 0 if unknown."""
    checkpoint = planned.facts.checkpoint
    if checkpoint is None:
        return 0
    return dict(checkpoint.size_bytes).get(planned.spec.key.size, 0)


def _format_size(count: int) -> str:
    return f"{count / GIGABYTE:,.0f} GB"


# --- all checks -----------------------------------------------------------------------


CHECKS: dict[
    PreflightCheck, Callable[[PlannedJob, LocalMachine], Iterator[JobProblem]]
] = {
    PreflightCheck.VARIABLES: check_variables,
    PreflightCheck.TOKEN: check_token,
    PreflightCheck.FORBIDDEN_VARIABLES: check_forbidden,
    PreflightCheck.STAGE_FOLDER: check_stage,
    PreflightCheck.SCRIPT: check_script,
    PreflightCheck.IMAGE: check_image,
    PreflightCheck.PROGRAMS: check_programs,
    PreflightCheck.VIRTUAL_ENVIRONMENT: check_virtual_environment,
    PreflightCheck.PYTHON_VERSION: check_python_version,
    PreflightCheck.PYTHON_MODULES: check_python_modules,
    PreflightCheck.CHECKPOINT: check_checkpoint,
}
"""The checks of each single job. Disk space and schedulers are checked for all jobs
together."""
