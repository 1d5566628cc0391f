"""A process that runs a session repeatedly, each time in a fork in which a call fails."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from faults.injector import ALLOCATIONS, COUNT, ONCE, Call, Fault, Injector
from faults.judging import Ended, Reference
from faults.nights import SESSIONS, Night, run_command, use_environment

ROOT = Path(__file__).resolve().parents[3]
LONGEST_SECONDS = 60
LEFT_OUT = ("pytest_llmbench.suite", "conftest", "__main__", "server", "run")


class Outcomes:
    """A plugin that records the outcome of every item.

    `begin` is called after pytest has found its files.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self.items: dict[str, tuple[str, str, str]] = {}
        self._begin = begin

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Start to make calls fail."""
        self._begin()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record verdict, status and run of each item with an outcome."""
        outcome: dict[str, Any] | None = getattr(report, "llmb", None)
        if outcome is not None:
            run = outcome.get("run") if outcome["kind"] == "configuration" else None
            self.items[outcome["id"]] = (
                outcome.get("verdict") or outcome["reason"],
                report.outcome,
                run["id"] if run else "",
            )
        elif report.failed or report.when == "call":
            self.items[report.nodeid] = (report.outcome, report.outcome, "")


class Server:
    """Sessions of one kind, each in a restored folder."""

    def __init__(self, case: Night, folder: Path) -> None:
        self.night, self.folder = case, folder
        self.state, self.kept = (
            folder / "state",
            folder.with_name(f"{folder.name}-kept"),
        )
        self._result = folder.with_name(f"{folder.name}-result")
        self._output = folder.with_name(f"{folder.name}-output")
        for name in ("state/tmp", "state/home", "logs"):
            (folder / name).mkdir(parents=True)
        self.injector = Injector([f"{folder}/", f"{ROOT / 'baselines'}/"])
        use_environment(folder)
        from pytest_llmbench.logs.reading import cache

        cache.WORTH_FILES = 0  # as for a month of logs
        self._fork(lambda: case.prepare(folder, pytest.main))
        self._after = {entry.name for entry in folder.iterdir()}
        shutil.copytree(self.state, self.kept, symlinks=True)
        self._warm()

    def _warm(self) -> None:
        """Import the modules of a session, so that forks need not."""

        def list_modules() -> list[str]:
            run_command(self.night, self.night.arguments)
            return [name for name in sys.modules if not name.startswith(LEFT_OUT)]

        for name in self._fork(list_modules):
            with suppress(Exception):
                importlib.import_module(name)
        self.restore()

    def restore(self) -> None:
        """Restore the files from before the session."""
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.copytree(self.kept, self.state, symlinks=True)
        for entry in self.folder.iterdir():
            if entry.name not in self._after:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _fork(self, work: Callable[[], Any]) -> Any:
        """Return the result of a function in a forked process.

        An int if the process ended by itself, -1 if it hung.
        """
        self._result.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._work(work)
        deadline = time.monotonic() + LONGEST_SECONDS
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return -1
            time.sleep(0.005)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not self._result.exists():
            return os.waitstatus_to_exitcode(status) or 99
        return pickle.loads(self._result.read_bytes())  # noqa: S301

    def _work(self, work: Callable[[], Any]) -> NoReturn:
        """Run the function, and end the process."""
        os.setsid()
        output = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for handle in (1, 2):
            os.dup2(output, handle)
        sys.stdout, sys.stderr = (
            open(handle, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            for handle in (1, 2)
        )
        try:
            try:
                result = work()
            except SystemExit as error:  # argparse
                self.injector.disarm()
                result = error.code
            sys.stdout.flush()
            sys.stderr.flush()
            self._result.write_bytes(pickle.dumps(result))
        except BaseException:  # noqa: BLE001 (reported in the output, and by the exit code)
            self.injector.disarm()
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(99)
        os._exit(0)

    def run(self, fault: Fault) -> Ended:
        """Run a session in which a call fails."""
        outcomes = Outcomes(lambda: self.injector.arm(fault))

        def session() -> tuple[int, dict[str, tuple[str, str, str]], int]:
            if self.night.command != "pytest":
                self.injector.arm(fault)
            try:
                code = run_command(self.night, self.night.arguments, [outcomes])
            finally:
                allocations = self.injector.disarm()
            return code, outcomes.items, allocations

        result = self._fork(session)
        output = self._output.read_text(errors="replace")
        code, items, allocations = (
            result if isinstance(result, tuple) else (result, {}, 0)
        )
        return Ended(code, items, output, isinstance(result, tuple), allocations)


def serve(
    options: argparse.Namespace,
    plan: Callable[[Sequence[Call], int, argparse.Namespace], Iterator[Fault]],
) -> None:
    """Run the faults of this process's share, and write each result."""
    share, of = map(int, options.inside.split("/"))
    server = Server(SESSIONS[options.session], Path(os.environ["LLMB_FAULTS_FOLDER"]))
    allocating = bool(options.allocations)
    undisturbed = server.run(
        Fault(1 << 60, ONCE, "ENOMEM", ALLOCATIONS)
        if allocating
        else Fault(0, COUNT, "")
    )
    calls = [] if allocating else server.injector.list_calls()
    reference = Reference(server.folder, server.kept, undisturbed)
    if share == 0:
        print(
            f"{options.session}: {len(calls)} calls, {undisturbed.allocations} allocations",
            file=sys.stderr,
            flush=True,
        )
    if options.show and share == 0:
        sys.stderr.writelines(
            f"{number} {call.kind} {call.path}\n"
            for number, call in enumerate(calls, 1)
        )
        sys.stderr.write(
            f"{undisturbed.code} {undisturbed.items}\n{undisturbed.output}\n"
        )
    with open(os.environ["LLMB_FAULTS_OUTPUT"], "w", encoding="utf-8") as file:
        faults = list(plan(calls, undisturbed.allocations, options))
        if options.most and len(faults) > options.most:
            faults = [
                faults[index * len(faults) // options.most]
                for index in range(options.most)
            ]
        for number, fault in enumerate(faults):
            if number % of != share:
                continue
            server.restore()
            ended = server.run(fault)
            struck = None if allocating else server.injector.find_struck()
            wrong = reference.find_wrong(ended, fault, struck)
            record = {
                "fault": fault.describe(struck), "kind": struck.kind if struck else "".join(fault.kinds[:1]) or "none",
                "wrong": wrong, "memory": ended.lacked_memory, "code": ended.code,
            }  # fmt: skip
            if wrong or options.show:
                record["output"] = ended.output[-6000:]
            file.write(f"{json.dumps(record)}\n")
            file.flush()
