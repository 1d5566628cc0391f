"""Whether a job finds the Python that its recipe asks for, its virtual environment, and
the modules that it imports."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.problems import JobProblem, LocalMachine
from pytest_llmbench.launch.schedulers import load_scheduler

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
    if not is_wanted_version(version, facts.python):
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


def is_wanted_version(version: str, wanted: str) -> bool:
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
        if is_wanted_version(_ask_version(each, planned, machine), wanted)
    )
    if python := next(fitting, None):
        return f"{python} -m venv DIR, {last}"
    version = ".".join(map(str, least))
    if shutil.which("conda", path=path):
        return f"conda create -p DIR python={version}, {last}"
    return f"there is no Python {wanted} on the PATH: install one (with conda, say, python={version}), {last}"
