"""Reading files one by one, here and in several processes.

What a worker does not answer for is read by this process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import clip
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.logs.reading.codec import (
    FileReading,
    FileToRead,
    ReadResult,
    pack,
    unpack,
)
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.files import UnchangedFile, read_state

LONGEST_MESSAGE = 200  # of what Python says of a file that no parser can read

READY = b"+"  # a worker's first answer: its interpreter and its imports work
# Each worker is a new interpreter that runs this module and nothing else: no fork,
# since the session may have threads, and no import of the main program, which may not
# expect it. It ends when its standard input does: none outlives us.
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from pytest_llmbench.logs.reading.file_reader import serve; serve()"
)

Batch: TypeAlias = Sequence[FileToRead]
Answer: TypeAlias = tuple[Batch, bytes]
"""Files, and what a worker said of them: nothing where it did not answer."""


def read_file(
    file: FileToRead, definitions: Sequence[RegexDialect], *, keep: bool
) -> FileReading:
    """Return what a file says; with `keep` also its state, if the result may be kept
    for the next time."""
    path = Path(file.path)
    if not keep:
        return FileReading(file, parse(path, definitions, is_log=file.is_log), None)
    if read_size(file.path) > files.COMPARED_WHOLE:
        before = read_state(file.path, time.time_ns())
        result = parse(path, definitions, is_log=file.is_log)
        state = (
            before if before == read_state(file.path, time.time_ns(), before) else None
        )
    else:  # hashed while it is read: what is kept is of these bytes, whoever writes others meanwhile
        whole = UnchangedFile(path)
        result = parse(Stream(whole, path), definitions, is_log=file.is_log)
        state = whole.state
    return FileReading(file, result, None if isinstance(result, LogError) else state)


def parse(
    source: Path | Stream, definitions: Sequence[RegexDialect], *, is_log: bool
) -> ReadResult:
    """Return what a log or a standard error says, or why it cannot be read."""
    from pytest_llmbench.logs.log_reader import read_ending, read_log

    try:
        return read_log(source, definitions) if is_log else read_ending(source)
    except LogError as error:
        return error
    # One bad file costs that file, never the session: what no parser foresaw is why
    # this one cannot be read.
    except (ArithmeticError, MemoryError, OSError, RecursionError, ValueError) as error:
        path = source.path if isinstance(source, Stream) else source
        return LogError(f"cannot read {path}: {_describe_failure(error)}")


def _describe_failure(error: Exception) -> str:
    """Return why a file could not be read, in words."""
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    return clip(f"{type(error).__name__}: {error}", LONGEST_MESSAGE)


def read_size(path: str) -> int:
    """Return the bytes of a file, 0 if it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:  # reading it says why
        return 0


def read_batches(
    batches: Sequence[Batch],
    definitions: Sequence[RegexDialect],
    workers: int,
    *,
    keep: bool,
) -> Generator[Sequence[FileReading]]:
    """Yield what the files of each batch say, in any order; they are read here and by
    so many workers."""
    waiting: SimpleQueue[Batch] = SimpleQueue()
    answered: SimpleQueue[Answer] = SimpleQueue()
    for batch in batches:
        waiting.put(batch)
    with _start_workers(workers, pickle.dumps((definitions, keep)), waiting, answered):
        for _ in batches:
            batch, data = next_batch(waiting, answered)
            yield _unpack_answer(batch, data) or [
                read_file(file, definitions, keep=keep) for file in batch
            ]


def next_batch(waiting: SimpleQueue[Batch], answered: SimpleQueue[Answer]) -> Answer:
    """Return a batch with its answer; else one that is to be read here; else wait for
    an answer."""
    with suppress(Empty):
        return answered.get_nowait()
    with suppress(Empty):
        return waiting.get_nowait(), b""
    return answered.get()


def _unpack_answer(batch: Batch, data: bytes) -> Sequence[FileReading]:
    """Return what a worker says of a batch, empty where it does not: it was killed, or
    cannot read a file."""
    readings = unpack(data) if data else []
    # Why a file cannot be read is told by this process alone: a worker may have other
    # limits.
    failed = len(readings) != len(batch) or any(
        isinstance(reading.result, LogError) for reading in readings
    )
    return [] if failed else readings


@contextmanager
def _start_workers(
    count: int, rules: bytes, waiting: SimpleQueue[Batch], answered: SimpleQueue[Answer]
) -> Iterator[None]:
    """Start workers, each with a thread that gives it batches; end them all."""
    processes: list[subprocess.Popen[bytes]] = []
    threads: list[Thread] = []
    try:
        for _ in range(count):
            with suppress(
                OSError, RuntimeError
            ):  # no more processes, or threads, for this user
                processes.append(start_worker())
                thread = Thread(
                    target=_feed,
                    args=(processes[-1], rules, waiting, answered),
                    daemon=True,
                )
                thread.start()
                threads.append(thread)
        yield
    finally:
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
        for process in processes:
            with suppress(OSError):  # what it had not taken when it was killed
                process.communicate()


def start_worker() -> subprocess.Popen[bytes]:
    """Start a process that reads what it is asked for on its standard input."""
    flags = [
        "-I",
        "-S",
        *(["-B"] if sys.dont_write_bytecode else []),
        "-X",
        f"utf8={sys.flags.utf8_mode}",
    ]
    # Each worker has a processor of its own; the threads that numpy's libraries start
    # for all others would only wait.
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # noqa: S603 (this interpreter, and a constant)
        [sys.executable, *flags, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one_thread},
        # Ctrl-C at a terminal is for the session, which ends its workers
        process_group=0,
    )


def _feed(
    process: subprocess.Popen[bytes],
    rules: bytes,
    waiting: SimpleQueue[Batch],
    answered: SimpleQueue[Answer],
) -> None:
    """Give a worker batch after batch until none is left or it answers no more."""
    requests, answers = process.stdin, process.stdout
    if requests is None or answers is None:
        raise ValueError("a worker without pipes")
    with suppress(OSError, Empty):
        requests.write(
            pickle.dumps([str(entry) for entry in sys.path if isinstance(entry, str)])
            + rules
        )
        requests.flush()
        alive = answers.read(len(READY)) == READY
        while alive:
            batch = waiting.get_nowait()
            data = b""
            try:
                requests.write(pickle.dumps(batch))
                requests.flush()
                with suppress(
                    EOFError, pickle.UnpicklingError
                ):  # it ended before it had answered
                    data = pickle.load(answers)  # noqa: S301 (of a process that runs our own code)
            finally:
                answered.put((batch, data))
            alive = bool(data)


def serve() -> None:
    """Read the files of each request, as a worker, until there is none."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets between answers
    definitions, keep = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the session that started this process)
    answers.write(READY)
    answers.flush()
    with suppress(EOFError):  # which is how the session says that it needs no more
        while True:
            batch = pickle.load(sys.stdin.buffer)  # noqa: S301
            with pause_garbage_collection():
                pickle.dump(
                    pack([read_file(file, definitions, keep=keep) for file in batch]),
                    answers,
                )
            answers.flush()
