"""Files that are not named like logs: which are examined, and which are runs."""

from __future__ import annotations

import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import BASELINE
from support.written_logs import maxtext, maxtext_run

from pytest_llmbench.core.baseline_records import BaselineKind, Recipe, RunMatch
from pytest_llmbench.core.run_records import UnnamedFiles
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs import unnamed_logs
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.path_patterns import generalise
from pytest_llmbench.runs.unnamed_logs import LogDetector
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LOG = maxtext_run(0, 19)
OTHER = "".join(maxtext(step, f"{3 + step / 1000:.3f}") for step in range(20))
NOISE = "starting on 1 node\n"


def read(
    root: Path, files: dict[str, str | bytes], catalog: Catalog | None = None
) -> IngestedRuns:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ingest(Settings(logs=(root,)), catalog or Catalog((), {}), NOW)


def list_logs(ingested: IngestedRuns, root: Path) -> list[str]:
    """Return the logs of all runs."""
    return sorted(
        str(attempt.files.log.relative_to(root))
        for run in ingested.runs
        for attempt in run.attempts
    )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x.o1234567",
            "x.e1234567",
            "x.o12.3",
            "workerlog.0",
            "stdout",
            "stderr",
            "stdout.txt",
            "nohup",
            "train_log",
        ),
        *(
            "train.log.2026-03-02",
            "titan_1234",
            "1234567",
            "1234567.pbs01.OU",
            "x.stdout",
            "x.error",
            "x.err",
            "job.3",
        ),
    ],
)
def test_file_with_steps_is_run_under_any_name(tmp_path: Path, name: str) -> None:
    assert list_logs(read(tmp_path, {f"exp/{name}": LOG}), tmp_path) == [f"exp/{name}"]


@pytest.mark.parametrize(
    "name",
    ["stdout", "x.o1234567", "titan_4811.err", "train.log.2026-03-02", "job.4811.e"],
)
@pytest.mark.parametrize(
    "beside", [{}, {"exp/hostfile": b"node1\n", "exp/core.77": b"\0" * 100}]
)
def test_file_in_archive_is_read_like_in_folder(
    tmp_path: Path, name: str, beside: dict[str, bytes]
) -> None:
    archive = tmp_path / "night.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for member, text in {f"exp/{name}": LOG.encode(), **beside}.items():
            header = tarfile.TarInfo(member)
            header.size = len(text)
            packed.addfile(header, io.BytesIO(text))
    assert list_logs(read(tmp_path, {}), archive) == [f"exp/{name}"]


def test_steps_are_found_anywhere_in_packed_file(
    tmp_path: Path,
) -> None:
    archive, noise = tmp_path / "night.tar", (NOISE * 9000).encode()
    with tarfile.open(archive, "w") as packed:
        for member, text in {
            "a/stdout": noise + LOG.encode() + noise,
            "b/stdout": noise + OTHER.encode(),
        }.items():
            header = tarfile.TarInfo(member)
            header.size = len(text)
            packed.addfile(header, io.BytesIO(text))
    assert list_logs(read(tmp_path, {}), archive) == ["a/stdout", "b/stdout"]


STREAMS = [
    ("x.o12", "x.e12"),
    ("stdout", "stderr"),
    ("x.stdout", "x.stderr"),
    ("7.stdout.txt", "7.stderr.txt"),
]


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize(
    ("printed", "error", "log"),
    [(LOG, NOISE, 0), (NOISE, LOG, 1), ("", LOG, 1), (LOG, LOG, 0)],
)
def test_two_streams_of_job_are_one_run(
    tmp_path: Path, streams: tuple[str, str], printed: str, error: str, log: int
) -> None:
    (run,) = read(tmp_path, dict(zip(streams, (printed, error), strict=True))).runs
    files = run.attempts[0].files
    assert (files.log.name, files.err and files.err.name) == (
        streams[log],
        streams[1 - log],
    )


@pytest.mark.parametrize(
    "files",
    [
        {"run/train.log": LOG, "run/train_log": LOG},
        {"run/train.log": LOG, "run/x.o12": OTHER},
        {"run/train.log": LOG, "x.o12": LOG},
        {"run/train.log": LOG, "nightly_output": OTHER},
        {"run/train.log": LOG, "run/ranks/workerlog.0": LOG},
        {"run/log-x_12_0.out": LOG, "pbs/x.o12": OTHER},
    ],
)
def test_second_output_file_near_a_log_is_ignored(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    """The first file is the log; the other is listed."""
    log, other = files
    ingested = read(tmp_path, files)
    assert list_logs(ingested, tmp_path) == [log]
    assert len(ingested.ignored) == 1
    assert Path(other).name.partition(".")[0] in str(
        ingested.ignored[0]
    ) or "12" in str(ingested.ignored[0])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("README", LOG),
            ("NOTES", LOG),
            ("notes.txt", LOG),
            ("x.md", LOG),
            ("x.json", LOG),
            ("core.12", LOG),
        ),
        *(
            ("data", b"\0" + LOG.encode()),
            ("x.o12", maxtext_run(0, 8)),
            ("x.o12", NOISE),
            ("model-00001", NOISE),
        ),
        *(
            ("train.out.1", LOG),
            (".stdout", LOG),
            ("core", LOG),
            ("CHANGELOG", LOG),
            ("fit.py", LOG),
            ("x.h5", LOG),
        ),
    ],
)
def test_document_data_or_source_file_is_no_run_even_if_it_contains_steps(
    tmp_path: Path, name: str, text: str | bytes
) -> None:
    assert read(tmp_path, {f"exp/{name}": text}).runs == ()


def test_job_output_without_steps_is_listed_among_the_ignored_files(
    tmp_path: Path,
) -> None:
    ignored = read(
        tmp_path, {"x.o12": NOISE, "x.o13": maxtext_run(0, 8), "data-7": NOISE}
    ).ignored
    assert [file.name for file in ignored] == ["x.o12", f"{tmp_path.name}/13"]


def test_outputs_of_different_jobs_are_runs_and_of_several_ranks_one_run(
    tmp_path: Path,
) -> None:
    files: dict[str, str | bytes] = {"a/x.o12": LOG, "a/x.o13": OTHER}
    files |= {
        f"b/workerlog.{rank}": OTHER.replace("seconds: 3", f"seconds: {4 + rank}")
        for rank in range(4)
    }
    assert list_logs(read(tmp_path, files), tmp_path) == [
        "a/x.o12",
        "a/x.o13",
        "b/workerlog.0",
    ]


def test_output_without_steps_at_the_path_of_a_baseline_is_a_run(
    tmp_path: Path,
) -> None:
    own = replace(BASELINE, match=RunMatch("exp/x.o#", ()))
    recipe = Recipe(
        *("x", "own", BaselineKind.RECIPE, "x", "x", "maxtext", ("x",), ""),
        (own,),
        (),
        (),
        path=Path("x.yaml"),
    )
    ingested = read(
        tmp_path, {"exp/x.o12": NOISE, "exp/x.e12": "Killed\n"}, Catalog((recipe,), {})
    )
    assert list_logs(ingested, tmp_path) == ["exp/x.o12"]


def test_job_number_in_output_name_is_generalised() -> None:
    assert [
        generalise(name) for name in ("x.o1234567", "x.e12", "x.o12.3", "x.o8b")
    ] == [
        "x.o#",
        "x.e#",
        "x.o#.#",
        "x.o8b",
    ]


def test_most_data_files_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examines a sample of names that differ in numbers, and a limited number of
    others."""
    examined = []

    def contains_steps(_: LogDetector, files: UnnamedFiles, name: str) -> bool:
        examined.append(name)
        return False

    monkeypatch.setattr(LogDetector, "contains_steps", contains_steps)
    monkeypatch.setattr(unnamed_logs, "MOST_EXAMINED", 100)
    shards = tuple(f"part-{number:05d}" for number in range(50_000))
    words = tuple(f"part{'x' * (number + 1)}" for number in range(2000))
    choice = LogDetector((), Stores()).choose(
        UnnamedFiles(tmp_path, shards + words, tmp_path)
    )
    assert len(examined) <= 110
    assert [reason for _, reason in choice.ignored if "not examined" in reason]


def test_steps_are_searched_in_samples_of_a_long_text(tmp_path: Path) -> None:
    path = tmp_path / "train_log"
    for place in range(3):
        noise = [b"x\n" * 100_000] * 4
        noise.insert(2 * place, LOG.encode())
        path.write_bytes(b"".join(noise))
        assert LogDetector((), Stores()).contains_steps(
            UnnamedFiles(tmp_path, (), tmp_path), path.name
        )
    os.truncate(path, 0)
    assert not LogDetector((), Stores()).contains_steps(
        UnnamedFiles(tmp_path, (), tmp_path), path.name
    )


@pytest.mark.parametrize(
    "name",
    ["a.safetensors", "b.pt", "c.py", "d.json", "README.en", "events.idx", "e.mp4"],
)
def test_data_or_document_name_is_no_log(name: str) -> None:
    assert not names.may_be_log(name) or name == "events.idx"


@pytest.mark.parametrize(
    ("name", "text", "hours", "named"),
    [
        ("x.o12", OTHER, 24, True),
        ("train.log.2026-03-02", OTHER, 24, True),
        ("train-12.err", OTHER, 24, True),
        ("train-12.err", "Killed\n", 24, True),
        ("monitor.err", "Killed\n", 24, False),
        ("x.o12", OTHER, 0, False),
        ("x.o12", NOISE, 24, False),
        ("data_12", OTHER, 24, False),
        ("checkpoints/slurm-12.out", OTHER, 24, True),
        ("checkpoints/notes.log", OTHER, 24, False),
        (".slurm-12.out", OTHER, 24, True),
    ],
)
def test_unread_file_that_may_be_a_newer_log_is_reported(
    tmp_path: Path, name: str, text: str, hours: float, *, named: bool
) -> None:
    folder = tmp_path / "exp"
    read(
        tmp_path,
        {
            "exp/train-11.out": LOG,
            "exp/slurm-11.out": OTHER.replace("seconds: 3", "seconds: 5"),
        },
    )
    read(tmp_path, {f"exp/{name}": text})
    for path, begun in (
        (folder / "train-11.out", 0.0),
        (folder / "slurm-11.out", 0.0),
        (folder / name, hours),
    ):
        os.utime(path, (1.79e9 + 3600 * begun, 1.79e9 + 3600 * begun))
    hidden = [file.name for file in read(tmp_path, {}).hidden]
    assert hidden == [Path(name).name] * named


@pytest.mark.parametrize(
    "copy",
    [".neptune/async/stdout.log", "ray/session_1/logs/driver.log", "exp2/console.log"],
)
def test_duplicate_below_log_folder_is_no_run(tmp_path: Path, copy: str) -> None:
    """Tools store process output in separate folders."""
    files: dict[str, str | bytes] = {
        "exp/slurm-7.out": LOG,
        f"exp/{copy}": LOG,
        f"other/{copy}": OTHER,
    }
    assert list_logs(read(tmp_path, files), tmp_path) == [
        "exp/slurm-7.out",
        f"other/{copy}",
    ]
