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
    """A folder with one file per rank, as written by NCCL_DEBUG_FILE=%h.%p."""
    traces = tmp_path / "traces"
    traces.mkdir()
    for pid in (7, 8):
        Path(traces, f"n1.{pid}").write_text("".join(run(ranks=1, pid=pid)))
    return traces


def test_files_of_all_ranks_form_one_trace(folder: Path) -> None:
    trace = read_trace([folder])
    assert (trace.files, trace.traced, trace.records, trace.ranks) == (2, 2, 60, 2)
    assert read_trace([folder / "n1.7", folder, folder / "n1.8"]) == trace


def test_hidden_files_and_launcher_copies_of_an_nccl_trace_are_skipped(
    folder: Path,
) -> None:
    subfolder = folder / "job"
    subfolder.mkdir()
    for name in ("sbatch_train_7.out", ".n1.7.swp", "notes.txt"):
        Path(subfolder, name).write_text(
            record() if name != "notes.txt" else "no trace"
        )
    (subfolder / "loop").symlink_to(folder)
    os.mkfifo(subfolder / "pipe")
    trace = read_trace([folder])
    assert (trace.files, trace.traced, trace.records) == (3, 2, 60)
    assert read_trace([subfolder / "sbatch_train_7.out"]).records == 1


def test_trace_folder_linked_twice_is_read_once_and_parent_links_are_skipped(
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
def test_archives_and_compressed_files_are_read(
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


def test_standard_input_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (folder / "n1.7").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text))))
    assert read_trace([Path("<stdin>")]).records == 30


@pytest.mark.slow
def test_truncated_gzip_trace_is_read_and_reported_as_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(("".join(run(steps=2000))).encode())[:-1000])
    trace = read_trace([path])
    assert trace.cut == 1
    assert 0 < trace.records < 12_000


@pytest.mark.parametrize("shares", [2, 7])
def test_counts_of_several_reader_processes_add_up_to_the_whole_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shares: int
) -> None:
    monkeypatch.setattr(records, "PIECE", 900)
    Path(folder, "n1.9").write_text("".join(run(steps=40, ranks=3)) + record()[:80])
    counts = [count_share([folder], share, shares) for share in range(shares)]
    assert len({(other.files, other.size) for other in counts}) == 1
    for other in counts[1:]:
        counts[0].merge(other)
    assert sum_counts(counts[0]) == sum_counts(count_share([folder], 0, 1))


class InlineExecutor:
    """An executor that runs its functions in this process."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(
        self, function: Callable[..., Counts], *arguments: object
    ) -> Future[Counts]:
        future: Future[Counts] = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "LARGE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_several_reader_processes_count_the_same_trace_records(folder: Path) -> None:
    Path(folder, "n1.9").write_text("".join(run(steps=3000, ranks=3)))
    assert read_trace([folder]) == sum_counts(count_share([folder], 0, 1))


class KilledExecutor(InlineExecutor):
    """An executor whose processes are killed."""

    def submit(
        self, function: Callable[..., Counts], *arguments: object
    ) -> Future[Counts]:
        future: Future[Counts] = Future()
        future.set_exception(BrokenExecutor("a process was terminated abruptly"))
        return future


@pytest.mark.usefixtures("two_cores")
def test_whole_trace_is_read_again_if_a_reader_process_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum_counts(count_share([folder], 0, 1))
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", KilledExecutor)
    assert read_trace([folder]) == whole


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_error_in_a_reader_process_is_raised(tmp_path: Path) -> None:
    Path(tmp_path, "x.gz").write_bytes(
        gzip.compress(record().encode() * 99)[:-5] + b"....."
    )
    with pytest.raises(LogError, match=r"gzip data of .* are damaged"):
        read_trace([tmp_path])


@pytest.mark.usefixtures("two_cores")
def test_growing_file_is_read_again_by_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_counts = []

    def count_and_append(paths: list[Path], share: int, shares: int) -> Counts:
        share_counts.append(shares)
        counts = count_share(paths, share, shares)
        with open(folder / "n1.7", "a") as file:
            file.write(record(pid=7))
        return counts

    monkeypatch.setattr(nccl, "count_share", count_and_append)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", InlineExecutor)
    assert read_trace([folder]).records == 62
    assert share_counts == [2, 2, 1]


def test_input_without_nccl_trace_is_refused_with_the_required_nccl_settings(
    tmp_path: Path,
) -> None:
    empty, log = tmp_path / "empty.out", tmp_path / "log.out"
    empty.touch()
    log.write_text("Training epoch 0\n")
    Path(tmp_path, "folder").mkdir()
    for path, message in (
        (empty, "empty; expected"),
        (log, "it contains no NCCL trace"),
        (tmp_path / "folder", "it contains no file"),
    ):
        with pytest.raises(
            LogError, match=f"{path}: .*{message}.*NCCL_DEBUG_SUBSYS=COLL"
        ):
            read_trace([path])
    with pytest.raises(LogError, match=r"cannot read .*nowhere: No such file"):
        read_trace([tmp_path / "nowhere"])


def test_damaged_archive_is_refused(tmp_path: Path, folder: Path) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(folder, "traces")
    os.truncate(tmp_path / "all.tar", 4000)
    with pytest.raises(LogError, match=r"all\.tar"):
        read_trace([tmp_path / "all.tar"])
