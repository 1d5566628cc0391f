"""What a job finds on this machine: its script, folders, image, variables, programs, Python, and room on the disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.models.jobs import Purpose
from pytest_llmbench.launch.preflight.problems import Finding, Planned
from pytest_llmbench.launch.recipe.artifacts import checkpoint_problem
from pytest_llmbench.launch.recipe.environment import IMAGE, missing
from pytest_llmbench.launch.slurm.runner import Runner, run

STAGES = ("STAGE_PATH", "LLMB_INSTALL")
"""The variables of the folder that holds a recipe's image, and the results."""

GIGABYTE = 10**9


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the file system of a folder."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class Machine:
    """How this machine is asked: commands, free bytes of a folder's file system, and what may be done with a path."""

    run: Runner = run
    free_bytes: Callable[[Path], int] = free_bytes
    may: Callable[[Path, int], bool] = os.access


def stages(planned: Planned) -> dict[str, Path]:
    """Return the stage folders that a job's environment names."""
    environment = dict(planned.spec.environment)
    return {name: Path(environment[name]) for name in STAGES if environment.get(name)}


def documented_stages(planned: Planned) -> dict[str, Path]:
    """Return the stage folders that the recipe's document names: one cluster file may hold those of other recipes."""
    names = {name for name, _ in (*planned.facts.required, *planned.facts.optional)}
    return {name: folder for name, folder in stages(planned).items() if name in names}


def setup_command(planned: Planned) -> str:
    """Return the command that sets a recipe up."""
    return f"llmbench setup {planned.facts.recipe} --release {planned.facts.release}"


def script_of(planned: Planned) -> Path | None:
    """Return the script that a job runs: the command itself, or the first argument that is a *.sh; None: neither."""
    spec = planned.spec
    arguments = [word for word in spec.command[1:] if word.endswith(".sh")]
    name = spec.command[0] if "/" in spec.command[0] else next(iter(arguments), None)
    return None if name is None else spec.directory / name


# --- script, folders, image -------------------------------------------------------------------------------


def check_script(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield what is wrong with the folder of a job and with its script."""
    directory, script = planned.spec.directory, script_of(planned)
    where = f"set {_folder_of(planned)}"
    if unset := re.match(r"\$\{?(\w+)", str(directory)):
        if unset[1] not in missing(planned.spec, planned.facts):  # else it is told as a variable
            yield Finding(f"the recipe's folder is {directory}, and {unset[1]} is not set", where)
    elif not directory.is_dir():
        if directory not in documented_stages(planned).values():  # else it is told as a variable
            yield Finding(f"there is no folder {directory}", f"create it, or {where}")
    elif script and not script.is_file():
        yield _no_script(planned, script)
    elif script and script == directory / planned.spec.command[0] and not machine.may(script, os.X_OK):
        yield Finding(f"{script} cannot be executed", f"chmod +x {script}")
    elif script and not machine.may(script, os.R_OK):
        yield Finding(f"{script} cannot be read", "ask its owner for the permission")
    if planned.spec.via == "sbatch" and directory.is_dir() and not machine.may(directory, os.W_OK):
        what = f"the folder {directory} cannot be written, and Slurm writes the job's output there"
        yield Finding(what, "ask its owner for the permission, or copy the recipe and set its `folder`")
    if planned.spec.via == "llmb-run" and directory.is_dir() and not (directory / "cluster_config.yaml").is_file():
        what = f"llmb-run needs its cluster_config.yaml, and there is none in {directory}"
        yield Finding(what, "run the installer of the recipes, or set LLMB_INSTALL to where it put them")


def _folder_of(planned: Planned) -> str:
    name = f"{planned.facts.recipe}-{planned.facts.release}"
    return f"`folder` of {name} under `installed:` in the cluster file, or give --llmb-recipe={name}=DIR"


def _no_script(planned: Planned, script: Path) -> Finding:
    """Return that a script is not where it is looked for: where nothing says it, that is beside the baseline file."""
    facts, directory = planned.facts, planned.spec.directory
    if facts.file and directory == facts.file.absolute().parent:
        return Finding(
            f"nothing says where {facts.recipe} {facts.release} is: no folder with its {script.name}",
            f"set {_folder_of(planned)}",
        )
    setup = f"run `{setup_command(planned)}`, or " if directory in documented_stages(planned).values() else ""
    return Finding(f"there is no {script.name} in {script.parent}", f"{setup}set {_folder_of(planned)}")


def check_stage(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield what is wrong with the stage folders of a job."""
    for name, folder in documented_stages(planned).items():
        if not folder.is_absolute():
            yield Finding(
                f"{name} is {str(folder)!r}, which is another folder on another node",
                "give its full path; of variables ${NAME} is filled in",
            )
        elif not folder.is_dir():
            yield Finding(f"{name}={folder}: no such folder", f"create it, or correct {name}")
        elif not machine.may(_results(planned, folder), os.W_OK | os.X_OK):
            yield Finding(
                f"{name}: {_results(planned, folder)} cannot be written",
                "ask its owner for the permission, or use another one",
            )


def _results(planned: Planned, stage: Path) -> Path:
    """Return where results go: the recipe's own part of an installation that may be read-only, else the stage."""
    workload = dict(planned.spec.environment).get("LLMB_WORKLOAD", "")
    return Path(workload) if workload and Path(workload).is_dir() else stage


def check_image(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield whether the container image of a recipe is not there, or is empty as a broken import leaves it."""
    del machine
    wanted = images(planned.facts.image, stages(planned), dict(planned.spec.environment).get(IMAGE, ""))
    present = [path for path in wanted if path.is_file()]
    if wanted and not present:
        folders = " and ".join(str(path.parent) for path in wanted)
        yield Finding(f"no container image {wanted[0].name} in {folders}", f"run `{setup_command(planned)}`")
    elif present and not present[0].stat().st_size:
        yield Finding(f"the container image {present[0]} is empty", f"delete it and run `{setup_command(planned)}`")


def images(image: str, stages: dict[str, Path], override: str = "") -> list[Path]:
    """Return where the container image of a recipe may lie; nothing where it has none or there is no stage folder."""
    if override:
        return [Path(override)]
    usable = [folder for folder in stages.values() if folder.is_absolute() and folder.is_dir()]
    folders = [folder / below for folder in usable for below in ("", "images")]
    return [folder / image for folder in folders if image]


# --- variables, programs, Python --------------------------------------------------------------------------


def check_variables(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield the variables that a job needs and lacks, and those that it must not have. No value is ever shown."""
    del machine
    facts, meanings = planned.facts, {"HF_TOKEN": "Hugging Face access token", **dict(planned.facts.required)}
    for name in missing(planned.spec, facts):
        yield Finding(f"{name} is not set: {meanings[name]}", _set(name))
    for name, reason in facts.forbidden:
        if name in dict(planned.spec.environment):
            yield Finding(f"{name} must not be set for {facts.recipe} {facts.release}: {reason}", f"remove {name}")


def _set(name: str) -> str:
    where = {
        "SBATCH_ACCOUNT": "set `account` in the cluster file",
        "SBATCH_PARTITION": "set `partition` in the cluster file",
    }
    return where.get(name, f"export {name}=..., or give it under `environment:` in the cluster file")


def check_programs(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield the programs that a job's own PATH does not have; without sbatch what to do instead."""
    del machine
    path = dict(planned.spec.environment).get("PATH", "")
    wanted = dict.fromkeys([planned.spec.command[0], "bash"])
    for name in wanted:
        if "/" not in name and name != "sbatch" and not shutil.which(name, path=path):
            remedy = "install it, or add its folder to PATH under `environment:` in the cluster file"
            yield Finding(f"no program {name!r} on the job's PATH", remedy)


def check_python(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield where a recipe asks for another Python, or for a virtual environment. llmb-run brings its own."""
    facts, environment = planned.facts, dict(planned.spec.environment)
    virtual = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    if planned.spec.via == "llmb-run" and not virtual:
        return
    name = f"{facts.recipe} {facts.release}"
    remedy = f"python{_version_of(facts.python)} -m venv DIR, and `virtual_environment: DIR` in the cluster file"
    if virtual and not (Path(virtual) / "bin" / "python").exists():
        yield Finding(f"the virtual environment {virtual} has no bin/python", remedy)
    elif facts.virtual_environment and not virtual:
        yield Finding(f"{name} needs a virtual environment of its own", remedy)
    elif facts.python:
        yield from _python_version(name, facts.python, environment.get("PATH", ""), machine, remedy)


def _python_version(name: str, wanted: str, path: str, machine: Machine, remedy: str) -> Iterator[Finding]:
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if not python:
        yield Finding(f"{name} needs Python {wanted}, and there is no python on the job's PATH", remedy)
        return
    done = machine.run([python, "--version"], timeout=30.0, environment={"PATH": path})
    found = _version_of(done.out + done.err)
    if not suits(found, wanted):
        shown = f"Python {found}" if found else "something that does not tell its version"
        yield Finding(f"{name} needs Python {wanted}; {python} is {shown}", remedy)


def suits(found: str, wanted: str) -> bool:
    """Return whether a version is the wanted one: `3.12` is any 3.12.x, `3.10.12 or newer` what it says."""
    have, want = _numbers(found), _numbers(_version_of(wanted))
    if not have or not want:
        return False
    return have >= want if wanted.endswith("or newer") else have[: len(want)] == want


def _version_of(text: str) -> str:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number)


# --- checkpoints ------------------------------------------------------------------------------------------


def check_checkpoint(planned: Planned, machine: Machine) -> Iterator[Finding]:
    """Yield why the checkpoint that a job is to load cannot be loaded."""
    del machine
    if planned.spec.purpose is not Purpose.LOAD_CHECKPOINT or planned.facts.checkpoint is None:
        return
    environment = dict(planned.spec.environment)
    names = [name for name, value in planned.facts.checkpoint.load if "{checkpoint}" in value]
    for name in names:
        stage = next(iter(stages(planned).values()), None)
        if problem := checkpoint_problem(Path(environment.get(name, "")), stage):
            yield Finding(f"{name}={environment.get(name, '')}: {problem}", "correct --llmb-load-checkpoint")


def check_room(jobs: Sequence[Planned], machine: Machine) -> Iterator[tuple[Planned, Finding]]:
    """Yield the jobs whose checkpoints do not fit together on the disk of their stage folder."""
    for stage in {next(iter(stages(job).values()), None): None for job in jobs}:
        saving = [job for job in jobs if _saves(job) and next(iter(stages(job).values()), None) == stage]
        if stage is None or not saving or not os.path.isdir(stage):  # is_dir raises without permission
            continue
        needed, free = sum(map(_checkpoint_bytes, saving)), machine.free_bytes(stage)
        if needed > free:
            what = f"the checkpoints need {_size(needed)}, and {stage} has {_size(free)} free"
            for job in saving:
                yield job, Finding(what, "free some, or select fewer with -k", _size(_checkpoint_bytes(job)))


def _saves(planned: Planned) -> bool:
    return planned.spec.purpose is Purpose.SAVE_CHECKPOINT and planned.facts.checkpoint is not None


def _checkpoint_bytes(planned: Planned) -> int:
    checkpoint = planned.facts.checkpoint
    return dict(checkpoint.size_bytes).get(planned.spec.key.size, 0) if checkpoint else 0


def _size(count: int) -> str:
    return f"{count / GIGABYTE:,.0f} GB"
