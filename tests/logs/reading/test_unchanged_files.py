"""Detecting unchanged logs: small logs by their contents, large ones by samples and
timestamps."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cached_folders import CachedFolder
from support.log_folders import read_runs, write_runs

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.reading import cache as log_cache
from pytest_llmbench.logs.reading import file_reader
from pytest_llmbench.logs.reading.codec import ReadResult
from pytest_llmbench.logs.sources import files

MEMORY = Path("/dev/shm")  # noqa: S108 (a file system in memory, of which a folder of this test is used)


def preserved(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file and restore its timestamps."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def find_digit(data: bytes | mmap.mmap) -> int:
    """Return the offset of a digit of a step's time that no sample of a large log
    covers."""
    return data.find(b"train_step_timing in s: ", len(data) // 2) + len(
        b"train_step_timing in s: "
    )


def change_digit(data: bytearray | mmap.mmap) -> None:
    offset = find_digit(bytes(data))
    data[offset] = ord("9") if data[offset] != ord("9") else ord("8")


def in_place(path: Path) -> None:
    """Increase one time in the middle of a log, keeping its size."""
    data = bytearray(path.read_bytes())
    change_digit(data)
    with path.open("r+b") as file:
        file.write(data)


def replaced(path: Path) -> None:
    """Replace a log by another one of the same size, as `mv` does."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    in_place(other)
    other.replace(path)


def overwritten(path: Path) -> None:
    """Write another log of the same size into the file."""
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"train_step_timing in s: ", b"train_step_timing in s: 9")[
            : len(data)
        ]
    )


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


@pytest.fixture(params=["small", "large"])
def sized(request: pytest.FixtureRequest, cached_folder: CachedFolder) -> CachedFolder:
    """The runs, with logs treated as small and as large."""
    if request.param == "large":
        request.getfixturevalue("large")
    return cached_folder


@pytest.mark.slow
@pytest.mark.parametrize("change", [in_place, replaced, shortened])
def test_changed_log_with_old_timestamps_is_read_again(
    sized: CachedFolder, change: Callable[[Path], object]
) -> None:
    sized.again()
    preserved(sized.logs[1], change)
    assert sized.again() == [sized.logs[1]]
    assert sized.again() == []


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a log whose pages were all written, as by a process that keeps writing."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for index in range(0, len(memory), mmap.PAGESIZE):
            memory[index] = memory[index]
        yield memory


def write_late(memory: mmap.mmap, path: Path) -> bool:
    """Change a step's time in a mapped log. Returns True if size, inode and timestamps
    stayed the same."""
    before = path.stat()
    change_digit(memory)
    after = path.stat()
    return all(
        getattr(before, name) == getattr(after, name)
        for name in ("st_size", "st_ino", "st_mtime_ns", "st_ctime_ns")
    )


@pytest.fixture(params=["disk", "memory"])
def anywhere(
    request: pytest.FixtureRequest, cached_folder: CachedFolder
) -> Iterator[CachedFolder]:
    """The runs on a disk, and on an in-memory file system if available."""
    if request.param == "memory":
        if not os.access(MEMORY, os.W_OK) or not files.is_in_memory(MEMORY.stat()):
            pytest.skip(f"no file system in memory at {MEMORY}")
        cached_folder.runs = MEMORY / f"llmbench-test-{os.getpid()}"
        cached_folder.logs = write_runs(cached_folder.runs, 3)
    yield cached_folder
    if request.param == "memory":
        shutil.rmtree(cached_folder.runs)


@pytest.mark.slow
def test_write_through_a_memory_mapping_after_caching_is_detected(
    anywhere: CachedFolder,
) -> None:
    """It changes no timestamp: on a disk while the page waits for write-back, in memory
    never."""
    for _ in range(5):  # once in a while the page was just written back
        with mapped(anywhere.logs[1]) as memory:
            anywhere.again()
            assert anywhere.again() == []
            hidden = write_late(memory, anywhere.logs[1])
            assert anywhere.again() == [anywhere.logs[1]]
        if hidden:
            return
    pytest.skip("every write moves a time on this file system")


@pytest.mark.slow
def test_large_log_is_not_cached_while_memory_mapped_writes_may_be_pending(
    anywhere: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as a page may wait for write-back; later only on a disk."""
    monkeypatch.setattr(files, "COMPARED_WHOLE", 999)
    with mapped(anywhere.logs[1]) as memory:
        anywhere.again()
        assert not anywhere.folder.exists()
        write_late(memory, anywhere.logs[1])
        assert anywhere.again() == sorted(anywhere.logs)
    later = SimpleNamespace(
        time_ns=lambda: time.time_ns() + files.LATE_WRITES_NS, time=time.time
    )
    for module in (file_reader, log_cache):
        monkeypatch.setattr(module, "time", later)
    anywhere.again()
    assert anywhere.again() == (
        sorted(anywhere.logs) if files.is_in_memory(anywhere.runs.stat()) else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("old_seconds", [-3600, 3000])
def test_large_log_with_recent_time_is_read_again(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch, old_seconds: int
) -> None:
    """Also if a session with a fast clock cached it: the timestamp is checked on use,
    too."""
    monkeypatch.setattr(files, "COMPARED_WHOLE", 999)
    monkeypatch.setattr(files, "IN_MEMORY", frozenset())
    times = {"now": time.time_ns() + 2 * files.LATE_WRITES_NS}
    for module in (file_reader, log_cache):
        monkeypatch.setattr(
            module,
            "time",
            SimpleNamespace(time_ns=lambda: times["now"], time=time.time),
        )
    cached_folder.again()
    assert cached_folder.again() == []
    times["now"] = time.time_ns() + old_seconds * 10**9
    assert cached_folder.again() == sorted(cached_folder.logs)


@pytest.mark.slow
def test_large_log_on_unknown_file_system_is_read_again(
    cached_folder: CachedFolder, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOUNTS", str(cached_folder.runs / "absent"))
    cached_folder.again()
    assert cached_folder.again() == sorted(cached_folder.logs)


def test_changed_samples_of_a_large_log_with_equal_timestamps_are_detected(
    cached_folder: CachedFolder, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a user-space file system, after a clock was set back, or with timestamps of
    two seconds."""
    fstat = os.fstat

    def coarse(handle: int) -> Any:
        status = fstat(handle)
        same = dict.fromkeys(("st_ino", "st_mtime_ns", "st_ctime_ns"), 7)
        return SimpleNamespace(
            st_mode=status.st_mode, st_size=status.st_size, st_dev=status.st_dev, **same
        )

    cached_folder.again()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", coarse)
        first = files.read_state(str(cached_folder.logs[1]), time.time_ns())
        preserved(cached_folder.logs[1], overwritten)
        assert files.read_state(str(cached_folder.logs[1]), time.time_ns()) != first


@pytest.mark.slow
def test_log_that_changes_during_reading_is_read_again(
    sized: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = file_reader.parse

    def growing(source: Any, definitions: Any, **options: Any) -> ReadResult:
        result = parse(source, definitions, **options)
        with getattr(source, "path", source).open("ab") as file:
            file.write(b"one more line\n")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(file_reader, "parse", growing)
        read_runs(sized.runs, cache=sized.cache())
    sized.read.clear()
    assert sized.again() == sorted(sized.logs)


@pytest.mark.slow
def test_log_swapped_during_parsing_is_read_again_in_the_next_session(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log is at the path before and after the read, as a writer with a mapping
    may cause."""
    log = cached_folder.logs[1]
    now = log.read_bytes()
    parse = file_reader.parse

    def swapped(source: Any, definitions: Any, **options: Any) -> ReadResult:
        in_place(log)
        result = parse(source, definitions, **options)
        log.write_bytes(now)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(file_reader, "parse", swapped)
        read_runs(cached_folder.runs, cache=cached_folder.cache())
    cached_folder.read.clear()
    assert log in cached_folder.again()


@pytest.mark.slow
def test_removed_file_counts_as_changed(cached_folder: CachedFolder) -> None:
    log = cached_folder.logs[1]
    log.write_bytes(b"")
    cached_folder.again()
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(LogError, match="not a regular file"):
        read_runs(cached_folder.runs, cache=cached_folder.cache()).get_log(log)
