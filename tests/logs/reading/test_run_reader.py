"""Reading many files in several processes gives the same results, even if processes
fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

import pytest
from support.exact_comparison import to_bits
from support.log_folders import read_runs, write_runs
from support.sessions import wait_until

from pytest_llmbench.logs import log_reader as read
from pytest_llmbench.logs.reading import file_reader
from pytest_llmbench.logs.reading import run_reader as reading
from pytest_llmbench.logs.reading.codec import FileToRead
from pytest_llmbench.logs.reading.file_reader import Answer, Batch, read_file
from pytest_llmbench.logs.reading.run_reader import ReadCounts
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover import discovery
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings


@pytest.fixture
def two_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Read with two workers, one file at a time. Yields the started workers, all of
    which must end."""
    started: list[subprocess.Popen[bytes]] = []
    start = file_reader.start_worker

    def kept() -> subprocess.Popen[bytes]:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(file_reader, "start_worker", kept)
    monkeypatch.setattr(reading, "count_workers", lambda _sizes, _batches: 2)
    monkeypatch.setattr(reading, "BATCH_FILES", 1)
    yield started
    assert all(one.returncode is not None for one in started)


def by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process wait for its workers instead of reading."""

    def wait(waiting: object, answered: SimpleQueue[Answer]) -> object:
        return answered.get()

    monkeypatch.setattr(file_reader, "next_batch", wait)


def said(logs: list[Path], reading_result: reading.Reading) -> list[object]:
    return [to_bits(reading_result.get_log(path)) for path in logs]


@pytest.mark.slow
def test_worker_processes_parse_logs_like_the_main_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    logs = write_runs(tmp_path, 12)
    (logs[0].parent / logs[0].name.replace(".out", ".err")).write_text(
        "slurmstepd: error: CANCELLED DUE TO TIME LIMIT\n"
    )
    expected = [
        to_bits(read_file(FileToRead(str(path), True), (), with_state=False).result)
        for path in logs
    ]
    by_workers(monkeypatch)
    assert said(logs, read_runs(tmp_path)) == expected
    assert len(two_workers) == 2


def replace_workers(
    monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[bytes]],
    *command: str,
) -> None:
    """Start a command instead of each worker."""

    def start() -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        return started[-1]

    monkeypatch.setattr(file_reader, "start_worker", start)


@pytest.mark.slow
def test_batch_of_a_dead_worker_is_read_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    """Each worker sends its first reply, then dies."""
    logs = write_runs(tmp_path, 6)
    expected = [
        to_bits(read_file(FileToRead(str(path), True), (), with_state=False).result)
        for path in logs
    ]
    greeting = f"head -c 1 >/dev/null; printf '{file_reader.READY.decode()}'"
    replace_workers(monkeypatch, two_workers, "/bin/sh", "-c", greeting)
    next_batch = file_reader.next_batch
    answers: list[bytes] = []

    def wait_for_one(
        waiting: SimpleQueue[Batch], answered: SimpleQueue[Answer]
    ) -> Answer:
        answer = next_batch(waiting, answered) if answers else answered.get(timeout=180)
        answers.append(answer[1])
        return answer

    monkeypatch.setattr(file_reader, "next_batch", wait_for_one)
    assert said(logs, read_runs(tmp_path)) == expected
    assert answers == [b""] * 6


@pytest.mark.slow
@pytest.mark.parametrize("command", ["/nonexistent", "/bin/false"])
def test_logs_are_read_without_workers_that_cannot_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
    command: str,
) -> None:
    logs = write_runs(tmp_path, 4)
    expected = [
        to_bits(read_file(FileToRead(str(path), True), (), with_state=False).result)
        for path in logs
    ]
    replace_workers(monkeypatch, two_workers, command)
    assert said(logs, read_runs(tmp_path)) == expected


@pytest.mark.slow
def test_few_or_small_files_are_read_without_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)))

    def count(files: int, size: int) -> int:
        return reading.count_workers(
            {FileToRead(str(path), True): size for path in range(files)}, files
        )

    assert count(1, 10**9) == 0
    assert count(100, 20_000) == 0
    assert 1 <= count(5000, 20_000) <= count(20_000, 20_000) == reading.MOST_WORKERS
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0})
    assert count(20_000, 20_000) == 0


@pytest.mark.slow
def test_large_files_are_read_by_the_main_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    """Large files use several processors, compressed ones only one."""
    logs = write_runs(tmp_path, 3)
    expected = [
        to_bits(read_file(FileToRead(str(path), True), (), with_state=False).result)
        for path in logs
    ]
    batches: list[Batch] = []
    monkeypatch.setattr(
        file_reader.WorkerPool, "add_batch", lambda _pool, batch: batches.append(batch)
    )
    monkeypatch.setattr(read, "LARGE", logs[0].stat().st_size)
    assert said(logs, read_runs(tmp_path)) == expected
    with closing(reading.ReadAhead()) as ahead:
        find_runs([tmp_path], Stores(), ahead.add_log)
    assert batches == []


@pytest.fixture
def early_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a worker for each log while runs are searched for."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2})
    monkeypatch.setattr(reading, "WORKER_SECONDS", 1e-9)


def read_ahead(folder: Path, ahead: reading.ReadAhead) -> reading.Reading:
    """Find the runs in a folder, then read their logs."""
    stores = Stores()
    runs = find_runs([folder], stores, ahead.add_log).runs
    return reading.Reading(stores, runs, ahead=ahead)


@pytest.mark.slow
@pytest.mark.usefixtures("early_workers")
def test_logs_are_read_while_runs_are_searched_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    """The workers read all of them, since this process only waits."""
    logs = write_runs(tmp_path, 7)
    expected = said(logs, read_runs(tmp_path))
    two_workers.clear()
    read_here: list[str] = []

    def wait_for_workers(
        waiting: SimpleQueue[Batch], answered: SimpleQueue[Answer]
    ) -> Answer:
        batch, data = answered.get(timeout=180)
        read_here.extend(file.path for file in batch if not data)
        return batch, data

    monkeypatch.setattr(file_reader, "next_batch", wait_for_workers)
    stores = Stores()
    ahead = reading.ReadAhead()
    runs = find_runs([tmp_path], stores, ahead.add_log).runs
    assert len(two_workers) == 2
    result = reading.Reading(stores, runs, ahead=ahead)
    assert said(logs, result) == expected
    assert read_here == []


@pytest.mark.slow
@pytest.mark.usefixtures("early_workers")
@pytest.mark.parametrize("command", ["/bin/false", "/bin/cat"])
def test_logs_are_read_after_workers_failed_during_the_search(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
    command: str,
) -> None:
    logs = write_runs(tmp_path, 5)
    expected = said(logs, read_runs(tmp_path))
    replace_workers(monkeypatch, two_workers, command)
    assert said(logs, read_ahead(tmp_path, reading.ReadAhead())) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("early_workers")
def test_logs_that_no_run_contains_are_dropped(
    tmp_path: Path,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    logs = write_runs(tmp_path / "runs", 3)
    ahead = reading.ReadAhead()
    for path in write_runs(tmp_path / "others", 4):
        ahead.add_log(str(path), path.stat().st_size)
    reported: list[ReadCounts] = []
    stores = Stores()
    runs = find_runs([tmp_path / "runs"], stores, ahead.add_log).runs
    result = reading.Reading(stores, runs, ahead=ahead, report=reported.append)
    assert said(logs, result) == said(logs, read_runs(tmp_path / "runs"))
    assert (reported[-1].files, reported[-1].total_files) == (3, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("early_workers")
def test_search_that_fails_leaves_no_worker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: list[subprocess.Popen[bytes]],
) -> None:
    write_runs(tmp_path, 3)

    def fail(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(discovery, "find_job_folders", fail)
    settings = Settings(logs=(tmp_path,))
    with pytest.raises(KeyboardInterrupt):
        ingest(settings, Catalog((), {}), datetime.now(UTC))
    assert len(two_workers) == 2


def test_only_logs_of_this_machine_are_reported_while_found(tmp_path: Path) -> None:
    """Links and files in archives are not: other files may have the same content."""
    (log, *_), found = write_runs(tmp_path / "runs", 2), []
    (tmp_path / "runs" / "linked.out").symlink_to(log)
    with tarfile.open(tmp_path / "runs" / "packed.tar", "w") as archive:
        archive.add(log, "packed/log-team.pretrain_x_77_0.out")
    find_runs([tmp_path], Stores(), lambda path, size: found.append((path, size)))
    expected = [
        (str(path), path.stat().st_size)
        for path in (tmp_path / "runs").rglob("*.out")
        if not path.is_symlink()
    ]
    assert sorted(found) == sorted(expected)
    assert len(found) == 2


PROGRAM = """
import os, sys, threading, time, warnings
from pathlib import Path
from pytest_llmbench.logs.reading import run_reader as reading
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.logs.sources.stores import Stores

print("started", flush=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
reading.count_workers = lambda sizes, batches: 2
reading.BATCH_FILES = 1
stores = Stores()
runs = find_runs([Path(sys.argv[1])], stores).runs
{more}
read = reading.Reading(stores, runs)
print(len([read.get_log(attempt.log) for run in runs for attempt in run.attempts]), flush=True)
"""


@pytest.mark.slow
def test_main_program_is_not_imported_by_workers(tmp_path: Path) -> None:
    """A thread in the program, with warnings as errors, does not prevent workers
    either."""
    write_runs(tmp_path / "runs", 4)
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(more=""))
    command = [sys.executable, "-W", "error", str(script), str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.stdout, process.stderr, process.returncode) == (
        "started\n4\n",
        "",
        0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_reader_process_outlives_its_session(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """The session hangs while reading, with its workers alive."""
    write_runs(tmp_path / "runs", 4)
    script = tmp_path / "script.py"
    waits = """
    from pytest_llmbench.logs.reading import file_reader
    def wait(waiting, answered):
        answered.get()
        print(*(child for child in open(f"/proc/self/task/{os.getpid()}/children").read().split()), flush=True)
        while True:
            time.sleep(0.1)  # a long wait could begin just after the signal
    file_reader.next_batch = wait
    """
    script.write_text(PROGRAM.format(more=textwrap.dedent(waits)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "started\n"
        children = session.stdout.readline().split()
        session.send_signal(ending)
        session.wait(30)
    assert len(children) == 2
    wait_until(
        lambda: (
            not any(
                Path(f"/proc/{child}/cmdline").exists() and _runs(child)
                for child in children
            )
        )
    )


def _runs(child: str) -> bool:
    try:
        return b"pytest_llmbench" in Path(f"/proc/{child}/cmdline").read_bytes()
    except OSError:
        return False


def test_progress_counts_all_files_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = write_runs(tmp_path, 5)
    size = sum(path.stat().st_size for path in logs)
    monkeypatch.setattr(reading, "BATCH_FILES", 2)
    reported: list[ReadCounts] = []
    read_runs(tmp_path, report=reported.append)
    assert reported[0] == ReadCounts(0, 5, 0, size)
    assert reported[-1] == ReadCounts(5, 5, size, size)
    assert [one.files for one in reported] == [0, 2, 4, 5]
