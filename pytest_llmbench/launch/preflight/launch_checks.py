"""Everything that can be known to go wrong, before anything is submitted: all of it at
once, with the remedies."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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

NEWEST = 20  # the minor versions of Python that are looked for end here
SECONDS = 30.0

# prints the modules that cannot be found; the search imports none of them
FIND_MODULES = "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])"


def find_virtual_environment(planned: PlannedJob) -> str:
    """Return the virtual environment that is active in a job; empty for none."""
    environment = dict(planned.spec.environment)
    return environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX") or ""


def _brings_its_own(planned: PlannedJob) -> bool:
    """Whether the launcher brings the Python of its recipes."""
    in_recipe = load_scheduler(planned.spec.via).runs_in_recipe(planned.spec.via)
    return not in_recipe and not find_virtual_environment(planned)


def check_virtual_environment(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield that a recipe lacks the virtual environment that it asks for, or that it is
    none."""
    facts, folder = planned.facts, find_virtual_environment(planned)
    if _brings_its_own(planned):
        return
    if folder and not (Path(folder) / "bin" / "python").exists():
        yield JobProblem(
            f"the virtual environment {folder} has no bin/python",
            _advise_environment(planned, machine),
        )
    elif facts.virtual_environment and not folder:
        name = f"{facts.recipe} {facts.release}"
        yield JobProblem(
            f"{name} needs a virtual environment of its own",
            _advise_environment(planned, machine),
        )


def check_python_version(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield that a job would run another Python than its recipe asks for."""
    facts = planned.facts
    if not facts.python or _brings_its_own(planned):
        return
    name, python = f"{facts.recipe} {facts.release}", _find_python(planned)
    if not python:
        what = f"{name} needs Python {facts.python}, and there is no python on the job's PATH"
        yield JobProblem(what, _advise_environment(planned, machine))
        return
    version = _ask_version(python, planned, machine)
    if not is_required_version(version, facts.python):
        shown = (
            f"Python {version}"
            if version
            else "something that does not tell its version"
        )
        what = f"{name} needs Python {facts.python}; {python} is {shown}"
        yield JobProblem(what, _advise_environment(planned, machine))


def check_python_modules(
    planned: PlannedJob, machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield the modules that a recipe imports and the Python of a job on this machine
    does not have. What a compute node has nobody here can see."""
    facts, python = planned.facts, _find_python(planned)
    if not load_scheduler(planned.spec.via).here or not facts.modules or not python:
        return
    path = dict(planned.spec.environment).get("PATH", "")
    done = machine.run(
        [python, "-c", FIND_MODULES, *facts.modules],
        timeout=SECONDS,
        environment={"PATH": path},
    )
    missing = [name for name in done.out.split() if name in facts.modules]
    if missing:
        names = " and ".join(missing)
        remedy = (
            f"{python} -m pip install {' '.join(missing)}, or PYTHON=... with one that has it, under `environment:` in "
            "the cluster file"
        )
        yield JobProblem(
            f"{facts.recipe} {facts.release} needs {names}, and {python} has none",
            remedy,
        )


def _find_python(planned: PlannedJob) -> str | None:
    """Return the Python of a job: the one that it is told (`PYTHON`), else the first on
    its PATH."""
    environment = dict(planned.spec.environment)
    names = filter(None, (environment.get("PYTHON"), "python", "python3"))
    return next(
        filter(
            None,
            (shutil.which(name, path=environment.get("PATH", "")) for name in names),
        ),
        None,
    )


def _ask_version(python: str, planned: PlannedJob, machine: LocalMachine) -> str:
    path = dict(planned.spec.environment).get("PATH", "")
    done = machine.run(
        [python, "--version"], timeout=SECONDS, environment={"PATH": path}
    )
    return _read_version(done.out + done.err)


# --- which version, and where there is one --------------------------------------------


def is_required_version(version: str, wanted: str) -> bool:
    """Return whether a version is the wanted one: `3.12` is any 3.12.x, `3.10.12 or
    newer` what it says."""
    have, want = _split_version(version), _split_version(_read_version(wanted))
    if not have or not want:
        return False
    return have >= want if _takes_newer(wanted) else have[: len(want)] == want


def _takes_newer(wanted: str) -> bool:
    return wanted.endswith("or newer")


def _read_version(text: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+", text)
    return match[0] if match else ""


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number)


def _advise_environment(planned: PlannedJob, machine: LocalMachine) -> str:
    """Return how to get a virtual environment with the wanted Python, by a program that
    is on the PATH of the job."""
    wanted, path = planned.facts.python, dict(planned.spec.environment).get("PATH", "")
    least = _split_version(_read_version(wanted))[:2]
    last = "and `virtual_environment: DIR` in the cluster file"
    if not least:
        return f"python3 -m venv DIR, {last}"
    minors = range(NEWEST, least[1] - 1, -1) if _takes_newer(wanted) else [least[1]]
    names = ("python3", *(f"python{least[0]}.{minor}" for minor in minors))
    there = filter(None, (shutil.which(name, path=path) for name in names))
    fitting = (
        each
        for each in there
        if is_required_version(_ask_version(each, planned, machine), wanted)
    )
    if python := next(fitting, None):
        return f"{python} -m venv DIR, {last}"
    version = ".".join(map(str, least))
    if shutil.which("conda", path=path):
        return f"conda create -p DIR python={version}, {last}"
    return f"there is no Python {wanted} on the PATH: install one (with conda, say, python={version}), {last}"


# --- launch checks -------------------------------------------------------------------


GIGABYTE = 10**9


def find_stages(planned: PlannedJob) -> dict[str, Path]:
    """Return the stage folders that a job's environment names."""
    return list_stages(dict(planned.spec.environment))


def find_documented_stages(planned: PlannedJob) -> dict[str, Path]:
    """Return the stage folders that the recipe's document names: one cluster file may
    hold those of other recipes."""
    names = {name for name, _ in (*planned.facts.required, *planned.facts.optional)}
    return {
        name: folder for name, folder in find_stages(planned).items() if name in names
    }


def format_setup_command(planned: PlannedJob) -> str:
    """Return the command that sets a recipe up."""
    return f"llmbench setup {planned.facts.recipe} --release {planned.facts.release}"


def format_image_source(facts: LaunchFacts) -> str:
    """Return where the container image of a recipe comes from, as enroot takes it: #
    behind the registry."""
    return f"docker://{facts.image_source.replace('/', '#', 1)}"


def check_launch(
    planned: Sequence[PlannedJob],
    cluster: Cluster,
    schedulers: Schedulers,
    machine: LocalMachine | None = None,
) -> tuple[LaunchProblem, ...]:
    """Return what stands in the way of these jobs, nothing if nothing does.

    It writes nothing, and asks each scheduler at most once.
    """
    return group_problems(
        _run_checks(planned, cluster, schedulers, _run_once(machine or LocalMachine()))
    )


def _run_checks(
    planned: Sequence[PlannedJob],
    cluster: Cluster,
    schedulers: Schedulers,
    machine: LocalMachine,
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    for name, check in CHECKS.items():
        problems = (
            (job, problem)
            for job in planned
            for problem in _report_denied(check(job, machine))
        )
        yield from ((job, replace(problem, check=name)) for job, problem in problems)
    yield from check_disk_space(planned, machine)
    for scheduler, jobs in schedulers.group(planned).items():
        yield from scheduler.check_jobs(jobs, cluster)


def _report_denied(problems: Iterator[JobProblem]) -> Iterator[JobProblem]:
    """Yield problems, and as one of them a folder that this user may not enter: whether
    a file is there raises then."""
    try:
        yield from problems
    except PermissionError as error:
        remedy = "ask the owner of its folder for the permission to enter it"
        yield JobProblem(f"{error.filename}: {error.strerror}", remedy)


def _run_once(machine: LocalMachine) -> LocalMachine:
    """Return a machine that runs equal commands once."""
    outputs: dict[tuple[str, ...], CommandOutput] = {}

    def run_cached(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        words = tuple(arguments)
        if words not in outputs:  # two hundred jobs use one Python
            outputs[words] = machine.run(
                arguments, timeout=timeout, environment=environment
            )
        return outputs[words]

    return replace(machine, run=run_cached)


# --- script, folders, image -----------------------------------------------------------


def check_script(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield what is wrong with the folder of a job and with its script."""
    directory, script = planned.spec.directory, find_script(planned)
    where = f"set {_name_folder(planned)}"
    if unset := re.match(r"\$\{?(\w+)", str(directory)):
        if unset[1] not in list_missing(
            planned.spec, planned.facts
        ):  # else it is told as a variable
            yield JobProblem(
                f"the recipe's folder is {directory}, and {unset[1]} is not set", where
            )
    elif not directory.is_dir():
        if (
            directory not in find_documented_stages(planned).values()
        ):  # else it is told as a variable
            yield JobProblem(
                f"there is no folder {directory}", f"create it, or {where}"
            )
    elif script and not script.is_file():
        yield _report_missing_script(planned, script)
    elif (
        script
        and script == directory / planned.spec.command[0]
        and not machine.may(script, os.X_OK)
    ):
        yield JobProblem(f"{script} cannot be executed", f"chmod +x {script}")
    elif script and not machine.may(script, os.R_OK):
        yield JobProblem(f"{script} cannot be read", "ask its owner for the permission")
    yield from load_scheduler(planned.spec.via).check_script(planned, machine)


def _name_folder(planned: PlannedJob) -> str:
    name = f"{planned.facts.recipe}-{planned.facts.release}"
    return f"`folder` of {name} under `installed:` in the cluster file"


def _report_missing_script(planned: PlannedJob, script: Path) -> JobProblem:
    """Return that a script is not where it is looked for: where nothing says it, that
    is beside the baseline file."""
    facts, directory = planned.facts, planned.spec.directory
    if facts.file and directory == facts.file.absolute().parent:
        return JobProblem(
            f"nothing says where {facts.recipe} {facts.release} is: no folder with its {script.name}",
            f"set {_name_folder(planned)}",
        )
    setup = (
        f"run `{format_setup_command(planned)}`, or "
        if directory in find_documented_stages(planned).values()
        else ""
    )
    return JobProblem(
        f"there is no {script.name} in {script.parent}",
        f"{setup}set {_name_folder(planned)}",
    )


def check_stage(planned: PlannedJob, machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield what is wrong with the stage folders of a job."""
    for name, folder in find_documented_stages(planned).items():
        if not folder.is_absolute():
            yield JobProblem(
                f"{name} is {str(folder)!r}, which is another folder on another node",
                "give its full path; of variables ${NAME} is filled in",
            )
        elif not folder.is_dir():
            yield JobProblem(
                f"{name}={folder}: no such folder", f"create it, or correct {name}"
            )
        elif not machine.may(_find_results_folder(planned, folder), os.W_OK | os.X_OK):
            yield JobProblem(
                f"{name}: {_find_results_folder(planned, folder)} cannot be written",
                "ask its owner for the permission, or use another one",
            )


def _find_results_folder(planned: PlannedJob, stage: Path) -> Path:
    """Return where results go: the recipe's own part of an installation that may be
    read-only, else the stage."""
    workload = dict(planned.spec.environment).get("LLMB_WORKLOAD", "")
    return Path(workload) if workload and Path(workload).is_dir() else stage


def check_image(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield whether the container image of a recipe is not there, or is empty as a
    broken import leaves it."""
    wanted = find_images(
        planned.facts.image,
        find_stages(planned),
        dict(planned.spec.environment).get(IMAGE, ""),
    )
    present = [path for path in wanted if path.is_file()]
    if wanted and not present:
        folders = " and ".join(str(path.parent) for path in wanted)
        setup = format_setup_command(planned)
        if not planned.facts.setup and planned.facts.image_source:
            setup = f"enroot import --output {wanted[0]} {format_image_source(planned.facts)}"
        yield JobProblem(
            f"no container image {wanted[0].name} in {folders}", f"run `{setup}`"
        )
    elif present and not present[0].stat().st_size:
        yield JobProblem(
            f"the container image {present[0]} is empty",
            f"delete it and run `{format_setup_command(planned)}`",
        )


# --- variables, programs --------------------------------------------------------------


def check_variables(
    planned: PlannedJob, _machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield the variables that a job needs and lacks, but for secrets."""
    missing = list_missing(planned.spec, planned.facts)
    return _report_missing(planned, [name for name in missing if not _is_secret(name)])


def check_token(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the secrets that a job needs and lacks. No value is ever shown."""
    return _report_missing(
        planned, filter(_is_secret, list_missing(planned.spec, planned.facts))
    )


def _is_secret(name: str) -> bool:
    return bool(find_secret_names({name: ""}))


def _report_missing(planned: PlannedJob, names: Iterable[str]) -> Iterator[JobProblem]:
    meanings = dict(
        (
            ("HF_TOKEN", "Hugging Face access token"),
            *planned.facts.optional,
            *planned.facts.required,
        )
    )
    what = "an argument of its configuration names it"
    return (
        JobProblem(
            f"{name} is not set: {meanings.get(name, what)}", _advise_setting(name)
        )
        for name in names
    )


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
    for scheduler in list_schedulers():
        for key in ("account", "partition"):
            if name in scheduler.cluster_variables.get(key, ())[:1]:
                return f"set `{key}` in the cluster file"
    return f"export {name}=..., or give it under `environment:` in the cluster file"


def check_programs(planned: PlannedJob, _machine: LocalMachine) -> Iterator[JobProblem]:
    """Yield the programs that a job's own PATH does not have; the scheduler looks for
    its own."""
    path = dict(planned.spec.environment).get("PATH", "")
    scheduler = load_scheduler(planned.spec.via)
    wanted = dict.fromkeys([planned.spec.command[0], "bash"])
    for name in wanted:
        if (
            "/" not in name
            and not scheduler.find_via(name)
            and not shutil.which(name, path=path)
        ):
            remedy = "install it, or add its folder to PATH under `environment:` in the cluster file"
            yield JobProblem(f"no program {name!r} on the job's PATH", remedy)


# --- checkpoints ----------------------------------------------------------------------


def check_checkpoint(
    planned: PlannedJob, _machine: LocalMachine
) -> Iterator[JobProblem]:
    """Yield why the checkpoint that a job is to load cannot be loaded."""
    if (
        planned.spec.purpose is not Purpose.LOAD_CHECKPOINT
        or planned.facts.checkpoint is None
    ):
        return
    environment = dict(planned.spec.environment)
    names = [
        name for name, value in planned.facts.checkpoint.load if "{checkpoint}" in value
    ]
    for name in names:
        stage = next(iter(find_stages(planned).values()), None)
        if problem := explain_unloadable(Path(environment.get(name, "")), stage):
            yield JobProblem(
                f"{name}={environment.get(name, '')}: {problem}",
                "correct --llmb-load-checkpoint",
            )


def check_disk_space(
    jobs: Sequence[PlannedJob], machine: LocalMachine
) -> Iterator[tuple[PlannedJob, JobProblem]]:
    """Yield the jobs whose checkpoints do not fit together on the disk of their stage
    folder."""
    for stage in {next(iter(find_stages(job).values()), None): None for job in jobs}:
        saving = [
            job
            for job in jobs
            if _is_saving(job) and next(iter(find_stages(job).values()), None) == stage
        ]
        if (
            stage is None or not saving or not os.path.isdir(stage)
        ):  # is_dir raises without permission
            continue
        needed, free = sum(map(_estimate_checkpoint, saving)), machine.free_bytes(stage)
        if needed > free:
            what = f"the checkpoints need {_format_size(needed)}, and {stage} has {_format_size(free)} free"
            for job in saving:
                yield (
                    job,
                    JobProblem(
                        what,
                        "free some, or select fewer with -k",
                        _format_size(_estimate_checkpoint(job)),
                        PreflightCheck.DISK_SPACE,
                    ),
                )


def _is_saving(planned: PlannedJob) -> bool:
    return (
        planned.spec.purpose is Purpose.SAVE_CHECKPOINT
        and planned.facts.checkpoint is not None
    )


def _estimate_checkpoint(planned: PlannedJob) -> int:
    checkpoint = planned.facts.checkpoint
    return (
        dict(checkpoint.size_bytes).get(planned.spec.key.size, 0) if checkpoint else 0
    )


def _format_size(count: int) -> str:
    return f"{count / GIGABYTE:,.0f} GB"


# --- all of them ----------------------------------------------------------------------


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
"""What is asked of each job by itself; room on the disk and the scheduler are asked of all
together."""
