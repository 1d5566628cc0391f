"""pytest sessions, forked from a process that has already imported all modules."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from subprocess import TimeoutExpired

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent
PLUGINS = (
    "pytest_llmbench",
    "hypothesis",
    "_hypothesis_globals",
    "_hypothesis_pytestplugin",
    "xdist",
)
PRELOADED = (
    "pytest",
    "pdb",
    "unittest",
    "yaml",
    "hypothesis",
    "hypothesis.internal.observability",
    "_hypothesis_pytestplugin",
    "xdist.plugin",
    "xdist.looponfail",
    *(
        ".".join(
            (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
        ).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "suite"
    ),
)
SUPPORT = Path(__file__).parents[1]

_FORKING = get_context("forkserver")
_FORKING.set_forkserver_preload(list(PRELOADED))


class ForkedSession:
    """A pytest session in a separate process, with a `subprocess.Popen`-like
    interface."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: Path,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start pytest in a folder and append its output to `output`.

        `prepare` runs in the new process before pytest.
        """
        target = (tuple(arguments), folder, dict(environment), output, prepare)
        self._process = _FORKING.Process(target=_run_session, args=target)
        self._process.start()
        self.arguments = tuple(arguments)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the session is running."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code (negative after a signal)."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.arguments, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the session only, not to its children."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the session only, not its children."""
        self._process.kill()


def run_session(
    folder: Path, environment: Mapping[str, str], *arguments: str
) -> tuple[int, str]:
    """Run a session that polls Slurm quickly. Returns (exit code, output)."""
    output = folder / "out.txt"
    output.unlink(missing_ok=True)
    session = ForkedSession(arguments, folder, environment, output, poll_quickly)
    try:
        code = session.wait(timeout=180)
    except TimeoutExpired:
        session.kill()
        raise
    return code, output.read_text(errors="replace")


def _run_session(
    arguments: tuple[str, ...],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    prepare: Callable[[], None] | None,
) -> None:
    """Run pytest in the forked process.

    The process gets the same environment as `python -Im pytest` in this folder.
    """
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.path[:] = [
        entry
        for entry in sys.path
        if entry and SUPPORT not in (Path(entry), *Path(entry).parents)
    ]
    for name in PLUGINS:
        if module := sys.modules.get(name):
            # avoids the warning that they were imported before pytest could rewrite them
            module.__doc__ = "PYTEST_DONT_REWRITE"
    if prepare:
        prepare()
    import pytest

    sys.argv = [str(Path(pytest.__file__).with_name("__main__.py")), *arguments]
    sys.exit(pytest.main(list(arguments)))


def poll_quickly(gone_seconds: float = 600.0) -> None:
    """Shorten all Slurm polling intervals of a session.

    `gone_seconds` is how long the session waits for lost nodes.
    """
    from pytest_llmbench.launch.jobs import job_engine as follow
    from pytest_llmbench.launch.jobs import progress, watch

    follow.PAUSES = 1
    watch.Limits = partial(watch.Limits, first_poll=0.1, longest_poll=0.5)  # type: ignore[misc, assignment]
    watch.BLOCKED_SECONDS = 1.0
    watch.GONE_SECONDS = gone_seconds
    progress.CHANGED_SECONDS = 1.0
