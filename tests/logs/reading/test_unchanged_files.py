"""Which logs count as unchanged: small ones are compared whole, large ones by what no
late write leaves as it was."""

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
from support.cached_places import Places
from support.reading_places import reading_of, write_runs

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.reading import cache as log_cache
from pytest_llmbench.logs.reading import file_reader
from pytest_llmbench.logs.reading.codec import ReadResult
from pytest_llmbench.logs.sources import files

MEMORY = Path("/dev/shm")  # noqa: S108 (a file system in memory, of which a folder of this test is used)


def preserved(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file, and give it the times that it had."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def find_digit(data: bytes | mmap.mmap) -> int:
    """Return where a digit of a step's time stands, in the second half: in no sample of
    a large log."""
    return data.find(b"train_step_timing in s: ", len(data) // 2) + len(
        b"train_step_timing in s: "
    )


def change_digit(data: bytearray | mmap.mmap) -> None:
    place = find_digit(bytes(data))
    data[place] = ord("9") if data[place] != ord("9") else ord("8")


def in_place(path: Path) -> None:
    """Make one time in the middle of a log longer: the same size."""
    data = bytearray(path.read_bytes())
    change_digit(data)
    with path.open("r+b") as file:
        file.write(data)


def replaced(path: Path) -> None:
    """Put another log of the same size in the place of one, as `mv` does."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    in_place(other)
    other.replace(path)


def overwritten(path: Path) -> None:
    """Write another log of the same size into the same file."""
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"train_step_timing in s: ", b"train_step_timing in s: 9")[
            : len(data)
        ]
    )


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


@pytest.fixture(params=["small", "large"])
def sized(request: pytest.FixtureRequest, places: Places) -> Places:
    """The runs, with logs that count as small, and as large."""
    if request.param == "large":
        request.getfixturevalue("large")
    return places


@pytest.mark.slow
@pytest.mark.parametrize("change", [in_place, replaced, shortened])
def test_a_log_that_was_changed_with_its_times_kept_is_read_again(
    sized: Places, change: Callable[[Path], object]
) -> None:
    sized.again()
    preserved(sized.logs[1], change)
    assert sized.again() == [sized.logs[1]]
    assert sized.again() == []


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a log whose pages were all written, as a process does that goes on writing
    them."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = memory[place]
        yield memory


def write_late(memory: mmap.mmap, path: Path) -> bool:
    """Change a step's time in a mapped log; say whether size, inode and every time
    stayed as they were."""
    before = path.stat()
    change_digit(memory)
    after = path.stat()
    return all(
        getattr(before, name) == getattr(after, name)
        for name in ("st_size", "st_ino", "st_mtime_ns", "st_ctime_ns")
    )


@pytest.fixture(params=["disk", "memory"])
def anywhere(request: pytest.FixtureRequest, places: Places) -> Iterator[Places]:
    """The runs on a disk, and on a file system in memory where there is one."""
    if request.param == "memory":
        if not os.access(MEMORY, os.W_OK) or not files.is_in_memory(MEMORY.stat()):
            pytest.skip(f"no file system in memory at {MEMORY}")
        places.runs = MEMORY / f"llmbench-test-{os.getpid()}"
        places.logs = write_runs(places.runs, 3)
    yield places
    if request.param == "memory":
        shutil.rmtree(places.runs)


@pytest.mark.slow
def test_a_late_write_through_a_mapping_is_seen(anywhere: Places) -> None:
    """It moves no time, neither on a disk while its page waits for being written back,
    nor ever in memory."""
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
def test_a_large_log_that_a_late_write_could_change_is_never_kept(
    anywhere: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a page may be waiting; then on a disk only."""
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
def test_a_large_log_of_late_or_future_times_is_read_again(
    places: Places, monkeypatch: pytest.MonkeyPatch, old_seconds: int
) -> None:
    """Also where a session whose clock was ahead kept it: the time is looked at when it
    is used, too."""
    monkeypatch.setattr(files, "COMPARED_WHOLE", 999)
    monkeypatch.setattr(files, "IN_MEMORY", frozenset())
    times = {"now": time.time_ns() + 2 * files.LATE_WRITES_NS}
    for module in (file_reader, log_cache):
        monkeypatch.setattr(
            module,
            "time",
            SimpleNamespace(time_ns=lambda: times["now"], time=time.time),
        )
    places.again()
    assert places.again() == []
    times["now"] = time.time_ns() + old_seconds * 10**9
    assert places.again() == sorted(places.logs)


@pytest.mark.slow
def test_where_nothing_says_what_lies_in_memory_large_logs_are_read_again(
    places: Places, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOUNTS", str(places.runs / "absent"))
    places.again()
    assert places.again() == sorted(places.logs)


def test_where_every_time_is_the_same_the_samples_of_large_logs_tell(
    places: Places, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system in user space, a clock that was set back, or one of two
    seconds."""
    fstat = os.fstat

    def coarse(handle: int) -> Any:
        status = fstat(handle)
        same = dict.fromkeys(("st_ino", "st_mtime_ns", "st_ctime_ns"), 7)
        return SimpleNamespace(
            st_mode=status.st_mode, st_size=status.st_size, st_dev=status.st_dev, **same
        )

    places.again()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", coarse)
        first = files.read_state(str(places.logs[1]), time.time_ns())
        preserved(places.logs[1], overwritten)
        assert files.read_state(str(places.logs[1]), time.time_ns()) != first


@pytest.mark.slow
def test_a_log_that_changes_while_it_is_read_is_read_again(
    sized: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = file_reader.parse

    def growing(source: Any, definitions: Any, **options: Any) -> ReadResult:
        result = parse(source, definitions, **options)
        with getattr(source, "path", source).open("ab") as file:
            file.write(b"one more line\n")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(file_reader, "parse", growing)
        reading_of(sized.runs, cache=sized.cache())
    sized.read.clear()
    assert sized.again() == sorted(sized.logs)


@pytest.mark.slow
def test_what_is_kept_is_of_the_bytes_that_were_read(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log lies there before and after it is read, as a writer through a mapping
    may leave it."""
    log = places.logs[1]
    now = log.read_bytes()
    parse = file_reader.parse

    def swapped(source: Any, definitions: Any, **options: Any) -> ReadResult:
        in_place(log)
        result = parse(source, definitions, **options)
        log.write_bytes(now)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(file_reader, "parse", swapped)
        reading_of(places.runs, cache=places.cache())
    places.read.clear()
    assert log in places.again()


@pytest.mark.slow
def test_what_is_no_file_any_more_is_no_unchanged_one(places: Places) -> None:
    log = places.logs[1]
    log.write_bytes(b"")
    places.again()
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(LogError, match="not a regular file"):
        reading_of(places.runs, cache=places.cache()).get_log(log)
