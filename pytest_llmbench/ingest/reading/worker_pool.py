"""Reading files in several processes.

What a worker does not answer for is read by this process.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, TypeAlias

from pytest_llmbench.ingest.reading.reader import FileToRead, ReadResult, read_file
from pytest_llmbench.ingest.sources.local import FileState

if TYPE_CHECKING:
    from pytest_llmbench.core.models import RegexDialect

Batch: TypeAlias = Sequence[FileToRead]
Answers: TypeAlias = Sequence[tuple[ReadResult, FileState | None]]

READY = b"+"  # a worker's first answer: its interpreter and its imports work
_SIZE = struct.Struct("=Q")
# Each worker is a new interpreter that runs this module and nothing else: no fork, since the session may have threads,
# and no import of the main program, which may not expect it. It ends when its standard input does: none outlives us.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from pytest_llmbench.ingest.reading.worker_pool import serve; serve()"
)


def read_batches(
    batches: Sequence[Batch],
    definitions: Sequence[RegexDialect],
    workers: int,
    done: Callable[[Batch, Answers], None],
    *,
    keep: bool,
) -> None:
    """Read batches of files here and in so many workers, as `read_file` does; `done` is called here for each of them,
    in any order."""
    from pytest_llmbench.ingest.reading.codec import pack

    waiting: SimpleQueue[Batch] = SimpleQueue()
    answered: SimpleQueue[tuple[Batch, bytes]] = SimpleQueue()
    for batch in batches:
        waiting.put(batch)
    with _start_workers(workers, pack((definitions, keep)), waiting, answered):
        for _ in batches:
            batch, data = _take_next(waiting, answered)
            done(batch, _unpack_answers(data, batch) or [read_file(file, definitions, keep=keep) for file in batch])


def _take_next(waiting: SimpleQueue[Batch], answered: SimpleQueue[tuple[Batch, bytes]]) -> tuple[Batch, bytes]:
    """Return a batch with its answer; else one that is to be read here; else wait for an answer."""
    with suppress(Empty):
        return answered.get_nowait()
    with suppress(Empty):
        return waiting.get_nowait(), b""
    return answered.get()


def _unpack_answers(data: bytes, batch: Batch) -> Answers:
    """Return what a worker says of a batch, empty where it does not: it was killed, or cannot read a file."""
    from pytest_llmbench.core.errors import LogError
    from pytest_llmbench.ingest.reading.codec import unpack

    answers: Answers = unpack(data) if data else ()
    # Why a file cannot be read is told by this process alone: a worker may have other limits.
    failed = len(answers) != len(batch) or any(isinstance(result, LogError) for result, _ in answers)
    return () if failed else answers


@contextmanager
def _start_workers(
    count: int,
    rules: bytes,
    waiting: SimpleQueue[Batch],
    answered: SimpleQueue[tuple[Batch, bytes]],
) -> Iterator[None]:
    """Start workers, each with a thread that gives it batches; end them all."""
    processes: list[subprocess.Popen[bytes]] = []
    threads: list[Thread] = []
    try:
        for _ in range(count):
            with suppress(OSError, RuntimeError):  # no more processes, or threads, for this user
                processes.append(_start_process())
                thread = Thread(target=_feed, args=(processes[-1], rules, waiting, answered), daemon=True)
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


def _start_process() -> subprocess.Popen[bytes]:
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else []), "-X", f"utf8={sys.flags.utf8_mode}"]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # noqa: S603 (this interpreter, and a constant)
        [sys.executable, *flags, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one_thread},
    )


def _feed(
    process: subprocess.Popen[bytes],
    rules: bytes,
    waiting: SimpleQueue[Batch],
    answered: SimpleQueue[tuple[Batch, bytes]],
) -> None:
    """Give a worker batch after batch until none is left or it answers no more."""
    from pytest_llmbench.ingest.reading.codec import pack

    requests, answers = process.stdin, process.stdout
    if requests is None or answers is None:
        raise ValueError("a worker without pipes")
    with suppress(OSError, Empty):
        requests.write(json.dumps([entry for entry in sys.path if isinstance(entry, str)]).encode() + b"\n")
        _send(requests, rules)
        alive = answers.read(len(READY)) == READY
        while alive:
            batch = waiting.get_nowait()
            data = b""
            try:
                _send(requests, pack(batch))
                data = _receive(answers)
            finally:
                answered.put((batch, data))
            alive = bool(data)


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(_SIZE.pack(len(data)))
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    """Return what was sent, empty where the other side ended before it was sent."""
    head = file.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return b""
    (size,) = _SIZE.unpack(head)
    data = file.read(size)
    return data if len(data) == size else b""


def serve() -> None:
    """Read the files of each request, as a worker, until there is none."""
    from pytest_llmbench.ingest.reading.codec import pack, unpack

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets between answers
    definitions, keep = unpack(_receive(sys.stdin.buffer))
    answers.write(READY)
    answers.flush()
    while request := _receive(sys.stdin.buffer):
        batch = [FileToRead(*file) for file in unpack(request)]
        _send(answers, pack([read_file(file, definitions, keep=keep) for file in batch]))
