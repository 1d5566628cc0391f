"""What this process runs in: a system with processors, a job of a CI or none, Python
with its collector and imports."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder

SYSTEM = sys.platform

PROCESS = "/proc/self/stat"
"""What Linux says of this process; macOS has no such files."""

COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "GIT_COMMIT",  # Jenkins
    "BUILDKITE_COMMIT",
    "BUILD_SOURCEVERSION",  # Azure
    "CIRCLE_SHA1",
    "BITBUCKET_COMMIT",
)
"""The variables with the commit."""

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2

ADDRESSES = (
    "CI_JOB_URL",
    "CI_PIPELINE_URL",
    "BUILD_URL",
    "BUILDKITE_BUILD_URL",
    "CIRCLE_BUILD_URL",
)


def describe_unfit_system() -> str:
    """Return why nothing can be read or launched on this system, empty where it can."""
    if SYSTEM != "win32":
        return ""
    return "pytest-llmbench reads runs on Linux and macOS, and not on Windows: use it in WSL"


def describe_missing_proc() -> str:
    """Return why nothing can be launched on this system, empty where it can."""
    if os.path.exists(PROCESS):
        return ""
    return f"a launch follows its processes in /proc, and {PROCESS} is not there: launch on Linux"


def count_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_commit(environment: Mapping[str, str]) -> str:
    """Return the commit that is tested; empty for none, and for a name of one such as
    HEAD."""
    named = (environment.get(variable, "").strip() for variable in COMMITS)
    return next((name for name in named if re.fullmatch("[0-9a-fA-F]{7,64}", name)), "")


def read_job_url(environment: Mapping[str, str]) -> str:
    """Return where the CI system shows this job, empty elsewhere."""
    # GitHub gives it in three parts.
    parts = [
        environment.get(name, "")
        for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    ]
    if all(parts):
        return "{}/{}/actions/runs/{}".format(*parts)
    return next((environment[name] for name in ADDRESSES if environment.get(name)), "")


def discard_output(number: int = STANDARD_OUTPUT) -> None:
    """Let standard output, or standard error, go nowhere from now on, since who read it
    has gone."""
    # Python flushes it again at exit, and would print the error there.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed: else it gives each block of a log back to
    Linux and asks for it anew.

    glibc gives back what is larger than the largest piece that was mapped for itself
    and freed, of at most 32 MiB (mallopt(3), M_MMAP_THRESHOLD); other libraries take no
    notice.
    """
    bytes(31 << 20)  # never written, so that it takes no memory


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Let Python's collector of cycles rest."""
    # What is made of thousands of runs is kept, and has no cycles, but it would look at
    # all of it again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class PlainImports:
    """Finds the modules of this package as Python itself does, while it is the first of
    `sys.meta_path`.

    pytest rewrites the assertions of a plugin, and this one has none: it would load
    each module in six times the time.
    """

    def __init__(self, package: str, test_package: str) -> None:
        """Take the package, and the part of it that holds tests: those are pytest's."""
        self._package, self._tests = f"{package}.", test_package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return how a module of the package is loaded, None for all others."""
        is_ours = name.startswith(self._package) and not name.startswith(self._tests)
        return PathFinder.find_spec(name, path) if is_ours else None

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Let modules be found as before; what was loaded stays."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
