"""Driver without dependencies: numbered, reproducible inputs in processes that may hang
or die."""

from __future__ import annotations

import hashlib
import mmap
import os
import resource
import shutil
import struct
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from fuzz.laws import Finding, find_home
from fuzz.mutate import mutate
from fuzz.targets import ROOT, TARGETS, Target

LONGEST_SECONDS = 10.0
MEMORY_KIB = 2 << 20
STUCK_SECONDS = 120.0
"""An input that takes this long without using the processor hangs."""

POLL_SECONDS = 0.2
LEAST_SECONDS = 2.0
"""Remaining time below this is not distributed."""

_BOARD = struct.Struct("=qddqqqdqqd")


@dataclass
class Board:
    """State of a worker process, in shared memory that outlives it."""

    number: int = -1  # number of the current input
    began: float = 0.0  # monotonic time, 0 between inputs
    spent: float = 0.0  # processor seconds until then
    tried: int = 0
    first_kib: int = 0
    peak_kib: int = 0
    slowest_seconds: float = 0.0  # processor seconds
    slowest: int = -1  # number of the slowest input
    broken: int = 0
    seconds: float = 0.0

    def write(self, memory: mmap.mmap) -> None:
        """Write the state to shared memory."""
        memory[: _BOARD.size] = _BOARD.pack(*vars(self).values())

    @classmethod
    def read(cls, memory: mmap.mmap) -> Board:
        """Read the last state from shared memory."""
        return cls(*_BOARD.unpack(memory[: _BOARD.size]))


@dataclass
class Tally:
    """Results of one target."""

    tried: int = 0
    seconds: float = 0.0
    broken: int = 0
    first_kib: int = 0
    peak_kib: int = 0
    slowest_seconds: float = 0.0
    slowest: int = -1
    kept: set[str] = field(default_factory=set)

    def add(self, board: Board) -> None:
        """Add the results of one process."""
        self.tried += board.tried
        self.broken += board.broken
        self.seconds += board.seconds
        self.first_kib = max(self.first_kib, board.first_kib)
        self.peak_kib = max(self.peak_kib, board.peak_kib)
        if board.slowest_seconds > self.slowest_seconds:
            self.slowest_seconds, self.slowest = board.slowest_seconds, board.slowest

    def describe(self, name: str) -> str:
        """Format the results in one line."""
        return (
            f"{name:<13}{self.tried:>9,} inputs {self.seconds:>7,.0f} s  "
            f"{len(self.kept)} findings ({self.broken} times)  "
            f"peak {self.peak_kib >> 10} MiB (+{self.peak_kib - self.first_kib >> 10})  "
            f"slowest {self.slowest_seconds:.2f} s (number {self.slowest})"
        )


@dataclass
class Share:
    """The next inputs of one target for one process."""

    target: Target
    begin: int
    end: int
    seconds: float


def make_input(target: Target, seed: int, number: int) -> bytes:
    """Return the input with this number. The first ones are the seeds."""
    if number < len(target.seeds):
        return target.seeds[number]
    return mutate(
        target.seeds,
        target.words,
        target.shape,
        Random(f"{seed}:{target.name}:{number}"),
    )


# --- one process ----------------------------------------------------------------------


def work(
    share: Share, seed: int, deadline: float, keep: Path, memory: mmap.mmap
) -> None:
    """Try the inputs of a share until a deadline (monotonic clock)."""
    target = share.target
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    limit = (_measure_data() + 2 * MEMORY_KIB) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    board = Board(first_kib=_measure_peak())
    started = time.monotonic()
    for number in range(share.begin, share.end):
        if time.monotonic() > deadline:
            break
        board.number, board.began, data = number, time.monotonic(), b""
        spent = board.spent = time.process_time()
        board.write(memory)
        try:
            data = make_input(target, seed, number)
            target.check(data)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is what is looked for)
            board.broken += 1
            keep_finding(keep, target.name, data, error)
        spent = time.process_time() - spent
        board.tried, board.began, board.peak_kib = board.tried + 1, 0.0, _measure_peak()
        if spent > board.slowest_seconds:
            board.slowest_seconds, board.slowest = spent, number
        board.seconds = time.monotonic() - started
        board.write(memory)
        if board.peak_kib - board.first_kib > MEMORY_KIB:
            keep_finding(
                keep, target.name, data, Finding("more memory than is allowed")
            )
            break


def _measure_data() -> int:
    """Return the KiB that count for RLIMIT_DATA: a forked process begins with those of
    its parent."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return int(status.partition("VmData:")[2].split()[0])


def _measure_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def keep_finding(keep: Path, name: str, data: bytes, error: BaseException) -> None:
    """Save the smallest input for each raising line, with its traceback."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if str(ROOT) in frame.filename
    ]
    where = (
        f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "driver"
    )
    key = (
        hashlib.sha256(str(error).encode("utf-8", "replace")).hexdigest()[:4]
        if isinstance(error, Finding)
        else ""
    )
    path = keep / f"{name}-{type(error).__name__}-{where}{key and f'-{key}'}.bin"
    if path.exists() and path.stat().st_size <= len(data):
        return
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(
        "".join(traceback.format_exception(error)), "utf-8", "backslashreplace"
    )


# --- all of them ----------------------------------------------------------------------


class Runner:
    """Runner of several targets in parallel."""

    def __init__(self, targets: list[Target], seed: int, keep: Path, jobs: int) -> None:
        """Findings are saved in `keep`."""
        self.targets, self.seed, self.keep, self.jobs = targets, seed, keep, jobs
        self.tallies = {target.name: Tally() for target in targets}
        self._next = dict.fromkeys(self.tallies, 0)

    def run(self, inputs: int, seconds: float | None) -> None:
        """Try this number of inputs of all targets together, within the time.

        Fast targets take over the inputs of slow ones.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while (
            left := inputs - sum(tally.tried for tally in self.tallies.values())
        ) > 0:
            room = float("inf") if deadline is None else deadline - time.monotonic()
            if room < LEAST_SECONDS:
                break
            each, time_of_each = (
                -(-left // len(self.targets)),
                room * self.jobs / len(self.targets),
            )
            shares = [Share(target, self._next[target.name], self._next[target.name] + each, time_of_each)
                      for target in self.targets]  # fmt: skip
            self._run_shares(shares)

    def _run_shares(self, shares: list[Share]) -> None:
        waiting = list(reversed(shares))
        running: list[Iterator[None]] = []
        while waiting or running:
            while waiting and len(running) < self.jobs:
                running.append(self._follow(waiting.pop()))
            time.sleep(POLL_SECONDS)
            running = [each for each in running if next(each, self) is not self]

    def _follow(self, share: Share) -> Iterator[None]:
        """Start processes until the share is done. Yields while one works, and stops
        one that hangs."""
        name, deadline = share.target.name, time.monotonic() + share.seconds
        begin, tally = share.begin, self.tallies[share.target.name]
        while begin < share.end and time.monotonic() < deadline:
            memory = mmap.mmap(-1, _BOARD.size)
            arguments = (
                replace(share, begin=begin),
                self.seed,
                deadline,
                self.keep,
                memory,
            )
            worker = get_context("fork").Process(target=work, args=arguments)
            worker.start()
            while worker.is_alive():
                yield
                self._end_hanging(worker, Board.read(memory), share.target)
            worker.join()
            board = Board.read(memory)
            if board.number < begin:
                raise RuntimeError(
                    f"a process for {name} ended with {worker.exitcode} before its first input"
                )
            if board.began and worker.exitcode not in (0, -9):
                data = make_input(share.target, self.seed, board.number)
                keep_finding(
                    self.keep,
                    name,
                    data,
                    Finding(f"the process ended with {worker.exitcode}"),
                )
            tally.add(board)
            begin = self._next[name] = board.number + 1
        tally.kept |= {path.name for path in self.keep.glob(f"{name}-*.bin")}

    def _end_hanging(self, worker: BaseProcess, board: Board, target: Target) -> None:
        """Stop a process whose input takes too long in processor time, or in total.

        A busy machine alone must not cause a finding.
        """
        if not board.began or time.monotonic() - board.began < LONGEST_SECONDS:
            return
        if (
            _measure_processor(worker.pid) - board.spent > LONGEST_SECONDS
            or time.monotonic() - board.began > STUCK_SECONDS
        ):
            worker.kill()
            data = make_input(target, self.seed, board.number)
            keep_finding(
                self.keep,
                target.name,
                data,
                Finding(f"more than {LONGEST_SECONDS:g} s"),
            )


def _measure_processor(pid: int | None) -> float:
    """Return the processor seconds of a process, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzz(
    names: list[str],
    inputs: int,
    seconds: float | None,
    *,
    jobs: int,
    seed: int,
    keep: Path,
) -> dict[str, Tally]:
    """Try inputs of targets and return the results of each. Removes temporary folders."""
    targets = [TARGETS[name] for name in names]
    for target in targets:
        make_input(
            target, seed, len(target.seeds)
        )  # makes seeds and words before the processes fork,
        with suppress(
            Exception
        ):  # and imports what a check needs; the processes report its findings
            target.check(target.seeds[1])
    before, folder = (
        tempfile.tempdir,
        tempfile.mkdtemp(prefix="fuzz-run-", dir=find_home()),
    )
    tempfile.tempdir = folder
    find_home.cache_clear()  # each process creates its own folder in it
    try:
        runner = Runner(targets, seed, keep, jobs)
        runner.run(inputs, seconds)
    finally:
        tempfile.tempdir = before
        find_home.cache_clear()
        shutil.rmtree(folder, ignore_errors=True)
    return runner.tallies
