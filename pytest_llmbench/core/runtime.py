"""The environment of this process: system, CI job, Python's garbage collector and
imports."""

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
"""The state of this process on Linux; macOS has no such file."""

COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "GIT_COMMIT",  # Jenkins
    "BUILDKITE_COMMIT",
    "BUILD_SOURCEVERSION",  # Azure
    "CIRCLE_SHA1",
    "BITBUCKET_COMMIT",
)
"""Variables with the tested commit."""

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2

OPENBLAS_PATIENCE = "OPENBLAS_THREAD_TIMEOUT"
"""Environment variable: log2 of the clock cycles that an idle OpenBLAS thread spins
before it sleeps."""

ADDRESSES = (
    "CI_JOB_URL",
    "CI_PIPELINE_URL",
    "BUILD_URL",
    "BUILDKITE_BUILD_URL",
    "CIRCLE_BUILD_URL",
)
"""Variables with the URL of the CI job."""


def describe_unfit_system() -> str:
    """Return the reason this system (Windows) is not supported, or ""."""
    if SYSTEM != "win32":
        return ""
    return "pytest-llmbench supports Linux and macOS, but not Windows: use it in WSL"


def describe_missing_proc() -> str:
    """Return the reason this system cannot launch jobs, or ""."""
    if os.path.exists(PROCESS):
        return ""
    return f"a launch follows its processes in /proc, but {PROCESS} does not exist: launch on Linux"


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_commit(environment: Mapping[str, str]) -> str:
    """Return the tested commit, or "" if it is unknown or a name such as HEAD."""
    for variable in COMMITS:
        value = environment.get(variable, "").strip()
        if re.fullmatch("[0-9a-fA-F]{7,64}", value):
            return value
    return ""


def read_job_url(environment: Mapping[str, str]) -> str:
    """Return the URL of this CI job, or "" outside of a known CI system."""
    # GitHub has three variables for it.
    server = environment.get("GITHUB_SERVER_URL", "")
    repository = environment.get("GITHUB_REPOSITORY", "")
    run_id = environment.get("GITHUB_RUN_ID", "")
    if server and repository and run_id:
        return f"{server}/{repository}/actions/runs/{run_id}"
    return next((environment[name] for name in ADDRESSES if environment.get(name)), "")


def discard_output(descriptor: int = STANDARD_OUTPUT) -> None:
    """Discard all further output to standard output or standard error.

    Used after the reader of the output has exited.
    """
    # Otherwise Python flushes the stream at exit and prints an error.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory instead of returning it to Linux.

    Otherwise each block of a log needs new memory from Linux. glibc only returns blocks
    above a threshold, which rises to the size of the largest mapped block that was
    freed, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD). Allocating and freeing such a
    block therefore raises the threshold. Other C libraries ignore this.
    """
    bytes(31 << 20)  # never written, so that it takes no memory


def return_freed_memory() -> None:
    """Return the freed memory that `keep_freed_memory` keeps to Linux, once it is not
    needed any more.

    Does nothing unless the C library is glibc.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collector in the context."""
    # Thousands of runs make many long-lived objects without cycles, which the collector
    # would traverse again and again.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def let_idle_threads_sleep() -> Iterator[None]:
    """Keep numpy's idle threads from spinning if numpy is imported in this context.

    When numpy is imported, OpenBLAS starts a thread for each further processor, and
    each spins for about 0.05 s before it sleeps: as long as the import takes. Programs
    that are started after the context do not inherit the setting.
    """
    if OPENBLAS_PATIENCE in os.environ:
        yield
        return
    # Less than a millisecond, but enough for the threads to serve small matrices.
    os.environ[OPENBLAS_PATIENCE] = "20"
    try:
        yield
    finally:
        os.environ.pop(OPENBLAS_PATIENCE, None)


class PlainImports:
    """Imports this package's modules without pytest's assertion rewriting.

    pytest rewrites the assertions of a plugin, which takes six times as long to load
    each module. This package has no assertions to rewrite. The finder works while it is
    the first entry of `sys.meta_path`.
    """

    def __init__(self, package: str, test_package: str) -> None:
        """`test_package` is the subpackage with tests, which pytest rewrites."""
        self._package = f"{package}."
        self._test_package = test_package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the package, or None for other modules."""
        is_test = name.startswith(self._test_package)
        if is_test or not name.startswith(self._package):
            return None
        return PathFinder.find_spec(name, path)

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop finding modules; loaded modules stay loaded."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
