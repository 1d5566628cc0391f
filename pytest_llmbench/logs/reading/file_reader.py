"""Read files one by one, in this process and in workers.

This process reads the batches that a worker did not answer.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import clip
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.logs.reading.codec import (
    FileReading,
    FileToRead,
    ReadResult,
    compress_log,
    pack,
    unpack,
)
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.files import HashedFile, read_state

LONGEST_MESSAGE = 200  # characters of an unexpected exception

# A worker's first reply: the interpreter started and the imports succeeded.
READY = b"+"
# Each worker is a new interpreter that runs only this module. It is not forked, since
# the session may have threads, and does not import the main program, which may not
# expect to be imported. It ends when its standard input closes, so no worker outlives
# the session.
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from pytest_llmbench.logs.reading.file_reader import serve; serve()"
)

Batch: TypeAlias = Sequence[FileToRead]
NO_MORE: Batch = ()
"""Ends the thread that feeds a worker."""

Answer: TypeAlias = tuple[Batch, bytes]
"""A batch and the reply of a worker, b"" without a reply."""


def read_file(
    file: FileToRead, definitions: Sequence[RegexDialect], *, with_state: bool
) -> FileReading:
    """Read one file.

    With `with_state`, the result also contains the state of the file (size, times and
    checksum), by which the cache detects changes. The state is None if the result must
    not be cached: the file changed meanwhile, or could not be read.
    """
    path = Path(file.path)
    if not with_state:
        return FileReading(file, parse(path, definitions, is_log=file.is_log), None)
    if read_size(file.path) > files.COMPARED_WHOLE:
        before = read_state(file.path, time.time_ns())
        result = parse(path, definitions, is_log=file.is_log)
        after = read_state(file.path, time.time_ns(), before)
        state = before if before == after else None
    else:
        # Hashed while it is read: the state is that of the parsed bytes, even if the
        # file changes meanwhile.
        hashed = HashedFile(path)
        result = parse(Stream(hashed, path), definitions, is_log=file.is_log)
        state = hashed.state
    return FileReading(file, result, None if isinstance(result, LogError) else state)


def parse(
    source: Path | Stream, definitions: Sequence[RegexDialect], *, is_log: bool
) -> ReadResult:
    """Parse a log or a standard error. Returns a LogError if it cannot be read."""
    from pytest_llmbench.logs.log_reader import read_ending, read_log

    try:
        return read_log(source, definitions) if is_log else read_ending(source)
    except LogError as error:
        return error
    # One bad file must not fail the session: an exception that no parser expects
    # becomes the reason why this file cannot be read.
    except (ArithmeticError, MemoryError, OSError, RecursionError, ValueError) as error:
        path = source.path if isinstance(source, Stream) else source
        return LogError(f"cannot read {path}: {_describe_failure(error)}")


def _describe_failure(error: Exception) -> str:
    """Describe the exception that prevented reading a file."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    return clip(f"{type(error).__name__}: {error}", LONGEST_MESSAGE)


def read_size(path: str) -> int:
    """Return the size of a file in bytes, 0 if it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:  # reading the file reports the reason
        return 0


class WorkerPool:
    """Worker processes that read batches of files while this process does other work.

    Must be closed, so that no worker remains.
    """

    def __init__(
        self, definitions: Sequence[RegexDialect] = (), *, with_state: bool = False
    ) -> None:
        """Results contain the states of the files if `with_state` is True."""
        self._definitions = definitions
        self._with_state = with_state
        self._setup = pickle.dumps((definitions, with_state))
        self._waiting: SimpleQueue[Batch] = SimpleQueue()
        self._answered: SimpleQueue[Answer] = SimpleQueue()
        self._unanswered = 0  # batches
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[Thread] = []

    def start_workers(self, count: int) -> None:
        """Start workers until there are `count`, each with a thread that feeds it.

        There are fewer if the user's limit of processes or threads is reached.
        """
        with suppress(OSError, RuntimeError):
            for _ in range(count - len(self._processes)):
                process = start_worker()
                self._processes.append(process)
                thread = Thread(
                    target=_feed,
                    args=(process, self._setup, self._waiting, self._answered),
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()

    def add_batch(self, batch: Batch) -> None:
        """Let a worker or `read_all` read a batch, which must not be empty."""
        self._waiting.put(batch)
        self._unanswered += 1

    def count_waiting(self) -> int:
        """Return the number of batches that no worker has begun to read."""
        return self._waiting.qsize()

    def take_unread(self) -> list[FileToRead]:
        """Remove the batches that no worker has begun to read; return their files."""
        files: list[FileToRead] = []
        with suppress(Empty):
            while batch := self._waiting.get_nowait():
                files += batch
                self._unanswered -= 1
        return files

    def read_all(self) -> Iterator[Sequence[FileReading]]:
        """Yield the results of each added batch, in any order.

        This process reads batches, too.
        """
        while self._unanswered:
            batch, data = next_batch(self._waiting, self._answered)
            self._unanswered -= 1
            readings = _unpack_answer(data)
            # with the paths of the batch: those of a worker's reply are copies
            yield [
                readings[file]._replace(file=file)
                if file in readings
                else self._read_here(file)
                for file in batch
            ]

    def _read_here(self, file: FileToRead) -> FileReading:
        """Read a file in this process.

        The result takes as little memory as the reply of a worker.
        """
        reading = read_file(file, self._definitions, with_state=self._with_state)
        if not isinstance(reading.result, ParsedLog):
            return reading
        return reading._replace(result=compress_log(reading.result))

    def close(self) -> None:
        """Stop the workers. Batches without results are dropped."""
        self.take_unread()
        for process in self._processes:
            process.kill()
        started = [thread for thread in self._threads if thread.ident is not None]
        for _ in started:
            self._waiting.put(NO_MORE)
        for thread in started:
            thread.join()
        for process in self._processes:
            # Fails if the killed worker had not read all of its input.
            with suppress(OSError):
                process.communicate()
        self._processes.clear()
        self._threads.clear()
        self._unanswered = 0


def next_batch(waiting: SimpleQueue[Batch], answered: SimpleQueue[Answer]) -> Answer:
    """Return a batch that a worker answered, with its reply, or an unread batch.

    An unread batch has the reply b"": this process has to read it. If there is neither,
    waits for the reply of a worker.
    """
    with suppress(Empty):
        return answered.get_nowait()
    with suppress(Empty):
        return waiting.get_nowait(), b""
    return answered.get()


def _unpack_answer(data: bytes) -> dict[FileToRead, FileReading]:
    """Unpack a worker's reply, except for the files that it could not read.

    This process may read a file that a worker cannot: its limits (of memory, for
    example) may differ.
    """
    readings = unpack(data) if data else ()
    return {
        reading.file: reading
        for reading in readings
        if not isinstance(reading.result, LogError)
    }


def start_worker() -> subprocess.Popen[bytes]:
    """Start a process that runs `serve`."""
    # isolated, and without site: `_START` sets `sys.path`
    flags = ["-I", "-S"]
    if sys.dont_write_bytecode:
        flags.append("-B")
    flags += ["-X", f"utf8={sys.flags.utf8_mode}"]
    # Each worker uses one processor: additional threads of numpy's libraries would only
    # wait.
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # noqa: S603 (this interpreter, and a constant)
        [sys.executable, *flags, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one_thread},
        # Ctrl-C at a terminal must reach the session only, which stops its workers.
        process_group=0,
    )


def _feed(
    process: subprocess.Popen[bytes],
    setup: bytes,
    waiting: SimpleQueue[Batch],
    answered: SimpleQueue[Answer],
) -> None:
    """Send batches to a worker until NO_MORE or until the worker stops replying."""
    requests, answers = process.stdin, process.stdout
    if requests is None or answers is None:
        raise ValueError("a worker without pipes")
    with suppress(OSError):
        search_path = [str(entry) for entry in sys.path if isinstance(entry, str)]
        requests.write(pickle.dumps(search_path) + setup)
        requests.flush()
        is_alive = answers.read(len(READY)) == READY
        while is_alive and (batch := waiting.get()):
            data = b""
            try:
                requests.write(pickle.dumps(batch))
                requests.flush()
                # The worker may end before it has replied.
                with suppress(EOFError, pickle.UnpicklingError):
                    data = pickle.load(answers)  # noqa: S301 (of a process that runs our own code)
            finally:
                answered.put((batch, data))
            is_alive = bool(data)


def serve() -> None:
    """Serve as a worker: read the batches requested on standard input until it closes.

    Writes READY, then one packed result for each batch, to standard output.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with the replies
    definitions, with_state = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the session that started this process)
    answers.write(READY)
    answers.flush()
    with suppress(EOFError):  # the session closed the pipe: no more requests
        while True:
            batch = pickle.load(sys.stdin.buffer)  # noqa: S301
            with pause_garbage_collection():
                readings = [
                    read_file(file, definitions, with_state=with_state)
                    for file in batch
                ]
                pickle.dump(pack(readings), answers)
            answers.flush()
