"""A trace in files, folders, archives and standard input, read by one process or
several."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pytest
from support.nccl_traces import record, run

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.tools.nccl import nccl_records as records
from pytest_llmbench.tools.nccl import nccl_trace as nccl
from pytest_llmbench.tools.nccl.nccl_records import Counts
from pytest_llmbench.tools.nccl.nccl_trace import count_share, read_trace, sum_counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as NCCL_DEBUG_FILE=%h.%p fills it: a file for each rank."""
    place = tmp_path / "traces"
    place.mkdir()
    for pid in (7, 8):
        Path(place, f"n1.{pid}").write_text("".join(run(ranks=1, pid=pid)))
    return place


def test_the_files_of_all_ranks_are_one_trace(folder: Path) -> None:
    trace = read_trace([folder])
    assert (trace.files, trace.traced, trace.records, trace.ranks) == (2, 2, 60, 2)
    assert read_trace([folder / "n1.7", folder, folder / "n1.8"]) == trace


def test_copies_of_a_launcher_and_hidden_files_below_a_folder_are_left_out(
    folder: Path,
) -> None:
    below = folder / "job"
    below.mkdir()
    for name in ("sbatch_train_7.out", ".n1.7.swp", "notes.txt"):
        Path(below, name).write_text(record() if name != "notes.txt" else "no trace")
    (below / "loop").symlink_to(folder)
    os.mkfifo(below / "pipe")
    trace = read_trace([folder])
    assert (trace.files, trace.traced, trace.records) == (3, 2, 60)
    assert read_trace([below / "sbatch_train_7.out"]).records == 1


def test_a_linked_folder_of_ranks_counts_once_and_one_above_does_not(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "n1.9").write_text("".join(run(ranks=1, pid=9)))
    for name in ("a", "b"):
        (folder / name).symlink_to(tmp_path / "other")
    (folder / "up").symlink_to(tmp_path)
    trace = read_trace([folder])
    assert (trace.files, trace.records) == (3, 90)


@pytest.mark.parametrize("name", ["all.tar.gz", "unnamed"])
def test_an_archive_and_compressed_files_hold_the_same(
    folder: Path, tmp_path: Path, name: str
) -> None:
    with tarfile.open(
        tmp_path / name, "w:gz" if name.endswith("gz") else "w"
    ) as archive:
        archive.add(folder, "traces")
    expected = read_trace([folder])
    assert read_trace([tmp_path / name]) == expected
    for path in folder.iterdir():
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace([folder]) == expected


def test_standard_input_holds_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (folder / "n1.7").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text))))
    assert read_trace([Path("<stdin>")]).records == 30


@pytest.mark.slow
def test_compressed_data_that_end_early_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(("".join(run(steps=2000))).encode())[:-1000])
    trace = read_trace([path])
    assert trace.cut == 1
    assert 0 < trace.records < 12_000


@pytest.mark.parametrize("shares", [2, 7])
def test_the_shares_of_several_processes_are_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shares: int
) -> None:
    monkeypatch.setattr(records, "PIECE", 900)
    Path(folder, "n1.9").write_text("".join(run(steps=40, ranks=3)) + record()[:80])
    counts = [count_share([folder], share, shares) for share in range(shares)]
    assert len({(one.files, one.size) for one in counts}) == 1
    for one in counts[1:]:
        counts[0].merge(one)
    assert sum_counts(counts[0]) == sum_counts(count_share([folder], 0, 1))


class AtOnce:
    """Calls in this process what others would."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Counts], *given: object) -> Future[Counts]:
        future: Future[Counts] = Future()
        future.set_result(function(*given))
        return future


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "LARGE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_started_processes_read_the_same(folder: Path) -> None:
    Path(folder, "n1.9").write_text("".join(run(steps=3000, ranks=3)))
    assert read_trace([folder]) == sum_counts(count_share([folder], 0, 1))


class Killed(AtOnce):
    """What others read is lost with them."""

    def submit(self, function: Callable[..., Counts], *given: object) -> Future[Counts]:
        future: Future[Counts] = Future()
        future.set_exception(BrokenExecutor("a process was terminated abruptly"))
        return future


@pytest.mark.usefixtures("two_cores")
def test_what_a_killed_process_had_to_read_is_read_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum_counts(count_share([folder], 0, 1))
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", Killed)
    assert read_trace([folder]) == whole


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_an_error_of_another_process_is_told(tmp_path: Path) -> None:
    Path(tmp_path, "x.gz").write_bytes(
        gzip.compress(record().encode() * 99)[:-5] + b"....."
    )
    with pytest.raises(LogError, match=r"gzip data of .* are damaged"):
        read_trace([tmp_path])


@pytest.mark.usefixtures("two_cores")
def test_a_file_that_grows_between_two_openings_is_read_again_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def grown(paths: list[Path], share: int, shares: int) -> Counts:
        asked.append(shares)
        counts = count_share(paths, share, shares)
        with open(folder / "n1.7", "a") as file:
            file.write(record(pid=7))
        return counts

    monkeypatch.setattr(nccl, "count_share", grown)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", AtOnce)
    assert read_trace([folder]).records == 62
    assert asked == [2, 2, 1]


def test_nothing_to_read_says_what_was_expected(tmp_path: Path) -> None:
    empty, log = tmp_path / "empty.out", tmp_path / "log.out"
    empty.touch()
    log.write_text("Training epoch 0\n")
    Path(tmp_path, "folder").mkdir()
    for path, told in (
        (empty, "empty; expected"),
        (log, "no NCCL trace in it"),
        (tmp_path / "folder", "no file below"),
    ):
        with pytest.raises(LogError, match=f"{path}: .*{told}.*NCCL_DEBUG_SUBSYS=COLL"):
            read_trace([path])
    with pytest.raises(LogError, match=r"cannot read .*nowhere: No such file"):
        read_trace([tmp_path / "nowhere"])


def test_a_damaged_archive_is_an_error(tmp_path: Path, folder: Path) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(folder, "traces")
    os.truncate(tmp_path / "all.tar", 4000)
    with pytest.raises(LogError, match=r"all\.tar"):
        read_trace([tmp_path / "all.tar"])
