"""SHA-256 hashes of the judged logs."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace
from support.outcomes import check, missing, stray, told
from support.written_archives import archive

from pytest_llmbench.logs.log_reader import LARGE, WHOLE, read_log
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    LogAttempt,
    OutcomeDocument,
    get_set,
)
from pytest_llmbench.session.session_history import with_hashes

TEXT = b"Epoch 0: 1/50, train_step_timing in s: 7.4\n" * 9


def fingerprint_of(text: bytes) -> str:
    """Return the fingerprint that judging computes for a text."""
    return read_log(Stream([text], Path("log"))).fingerprint


def make_outcome(*logs: tuple[str, str]) -> ConfigurationOutcome:
    """Return the outcome of a run with these logs: path and fingerprint."""
    template = told()
    assert template.run is not None
    run = replace(
        template.run, log_fingerprint=tuple(fingerprint for _, fingerprint in logs)
    )
    return replace(
        template, run=run, tries=tuple(make_attempt(path) for path, _ in logs)
    )


def make_attempt(log: str) -> LogAttempt:
    return LogAttempt(
        number=1,
        log=log,
        line=1,
        first_step=0,
        last_step=9,
        finished=True,
        ended="finished",
        starts_over=False,
        judged=True,
    )


def compute_hashes(folder: Path, *logs: tuple[str, str]) -> Any:
    """Return the hashes of an outcome with these logs."""
    (with_them,) = with_hashes([make_outcome(*logs)], folder)
    assert isinstance(with_them, ConfigurationOutcome)
    digests = get_set(with_them.log_sha256)
    return None if digests is None else list(digests)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"").digest(size)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, LARGE + 5])
def test_run_hash_is_the_sha256_of_its_log_file(tmp_path: Path, size: int) -> None:
    """Also if several threads read the file to compute its fingerprint."""
    path = tmp_path / "log.out"
    path.write_bytes(noise(size))
    assert compute_hashes(tmp_path, ("log.out", read_log(path).fingerprint)) == [
        sha256(noise(size))
    ]


def test_hashes_of_a_run_are_in_the_order_of_its_logs(tmp_path: Path) -> None:
    """Also if a log has several attempts, and next to other outcomes."""
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() + TEXT)
    original = make_outcome(
        ("b", fingerprint_of(b"b" + TEXT)), ("a", fingerprint_of(b"a" + TEXT))
    )
    original = replace(original, tries=tuple(map(make_attempt, "bba")))
    others: list[OutcomeDocument] = [stray(), check(), missing()]
    with_them = with_hashes([original, *others], tmp_path)
    expected = (sha256(b"b" + TEXT), sha256(b"a" + TEXT))
    assert with_them == [replace(original, log_sha256=expected), *others]


def test_logs_with_the_same_path_have_no_hash(tmp_path: Path) -> None:
    """Two fingerprints for one path are ambiguous."""
    (tmp_path / "a").write_bytes(TEXT)
    assert (
        compute_hashes(
            tmp_path, ("a", fingerprint_of(TEXT)), ("a", fingerprint_of(TEXT))
        )
        is None
    )


# --- changed and missing logs ---------------------------------------------------------


@pytest.mark.parametrize(
    "now",
    [
        TEXT + b"more\n",
        TEXT[:-1],
        TEXT.replace(b"7.4", b"7.5", 1),
        b"",
        gzip.compress(TEXT)[:30],
    ],
    ids=["longer", "shorter", "edited", "empty", "damaged"],
)
def test_changed_log_has_no_hash(tmp_path: Path, now: bytes) -> None:
    """The other logs have their hashes."""
    (tmp_path / "log.out").write_bytes(now)
    (tmp_path / "other.out").write_bytes(b"other" + TEXT)
    digests = compute_hashes(
        tmp_path,
        ("log.out", fingerprint_of(TEXT)),
        ("other.out", fingerprint_of(b"other" + TEXT)),
    )
    assert digests == [None, sha256(b"other" + TEXT)]


def test_edit_inside_a_long_log_changes_its_hash_but_not_its_fingerprint(
    tmp_path: Path,
) -> None:
    """The fingerprint of a long log contains only samples of it."""
    path = tmp_path / "log.out"
    results = []
    for middle in (b"7.4", b"7.3"):
        path.write_bytes(bytes(WHOLE + 10_000) + middle + bytes(WHOLE))
        fingerprint = read_log(path).fingerprint
        results.append(
            (fingerprint, compute_hashes(tmp_path, ("log.out", fingerprint)))
        )
    (first, (first_hash,)), (second, (second_hash,)) = results
    assert first == second
    assert first_hash != second_hash


@pytest.mark.parametrize(
    "path",
    [
        "gone.out",
        "folder",
        "pipe",
        "file/log.out",
        "s3://bucket/log.out",
        "<stdin>",
        "x" * 5000,
        "a\0b",
    ],
    ids=["absent", "folder", "pipe", "under-a-file", "remote", "stdin", "long", "nul"],
)
def test_unreadable_log_has_no_hash(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(TEXT)
    os.mkfifo(tmp_path / "pipe")
    assert compute_hashes(tmp_path, (path, fingerprint_of(TEXT))) == [None]


# --- archives -------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_archived_log_has_the_hash_of_its_member(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """The last of several members with one name counts, as when judging."""
    packed = gzip.compress(TEXT)
    members = [
        ("./runs/a.out", b"old"),
        ("runs/b.out.gz", packed),
        ("c.out", b"c" + TEXT),
        ("runs/a.out", TEXT),
    ]
    (tmp_path / "x.tar").write_bytes(compress(archive(members)))
    logs = [
        ("x.tar/runs/a.out", fingerprint_of(TEXT)),
        ("x.tar/runs/b.out.gz", fingerprint_of(TEXT)),
        ("x.tar/c.out", fingerprint_of(TEXT)),
    ]
    assert compute_hashes(tmp_path, *logs, ("x.tar/d.out", fingerprint_of(TEXT))) == [
        sha256(TEXT),
        sha256(packed),
        None,
        None,
    ]


def test_complete_member_of_truncated_archive_has_a_hash(tmp_path: Path) -> None:
    whole = archive([("a.out", TEXT), ("b.out", TEXT)])
    (tmp_path / "x.tar").write_bytes(
        whole[: whole.index(TEXT, whole.index(TEXT) + 1) + 20]
    )
    assert compute_hashes(
        tmp_path,
        ("x.tar/a.out", fingerprint_of(TEXT)),
        ("x.tar/b.out", fingerprint_of(TEXT)),
    ) == [sha256(TEXT), None]


# --- interrupts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, RuntimeError]
)  # see StopSignals.keep_raised
def test_interrupt_stops_hashing_of_endless_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    hashed = Barrier(2)

    def endless(path: Path) -> Iterator[bytes]:
        hashed.wait()
        while True:
            yield b"more\n"

    def interrupted(
        pool: ThreadPoolExecutor, work: Callable[[Any], str], logs: Iterable[Any]
    ) -> None:
        for log in logs:
            pool.submit(work, log)
        hashed.wait()
        raise error

    (tmp_path / "a.out").touch()
    monkeypatch.setattr(files, "read_blocks", endless)
    monkeypatch.setattr(ThreadPoolExecutor, "map", interrupted)
    with pytest.raises(error):
        compute_hashes(tmp_path, ("a.out", fingerprint_of(TEXT)))
