"""The hashes of logs: of the bytes that were judged, or none."""

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


def mark(text: bytes) -> str:
    """Return the fingerprint of a text, as a session knows it when it judges."""
    return read_log(Stream([text], Path("log"))).fingerprint


def outcome(*logs: tuple[str, str]) -> ConfigurationOutcome:
    """Make the outcome of a run with these logs: path and fingerprint."""
    one = told()
    assert one.run is not None
    run = replace(
        one.run, log_fingerprint=tuple(fingerprint for _, fingerprint in logs)
    )
    return replace(one, run=run, tries=tuple(attempt(path) for path, _ in logs))


def attempt(log: str) -> LogAttempt:
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


def hashes(folder: Path, *logs: tuple[str, str]) -> Any:
    """Return the hashes that an outcome with these logs gets."""
    (with_them,) = with_hashes([outcome(*logs)], folder)
    assert isinstance(with_them, ConfigurationOutcome)
    found = get_set(with_them.log_sha256)
    return None if found is None else list(found)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"").digest(size)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, LARGE + 5])
def test_the_hash_is_that_of_the_file(tmp_path: Path, size: int) -> None:
    """Also where several threads read it, and its fingerprint came from them."""
    path = tmp_path / "log.out"
    path.write_bytes(noise(size))
    assert hashes(tmp_path, ("log.out", read_log(path).fingerprint)) == [
        sha256(noise(size))
    ]


def test_each_log_of_a_run_has_its_own_in_their_order(tmp_path: Path) -> None:
    """However many attempts one of them tells of, and with what else the session has to
    tell."""
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() + TEXT)
    one = outcome(("b", mark(b"b" + TEXT)), ("a", mark(b"a" + TEXT)))
    one = replace(one, tries=tuple(map(attempt, "bba")))
    others: list[OutcomeDocument] = [stray(), check(), missing()]
    with_them = with_hashes([one, *others], tmp_path)
    expected = (sha256(b"b" + TEXT), sha256(b"a" + TEXT))
    assert with_them == [replace(one, log_sha256=expected), *others]


def test_logs_that_cannot_be_told_apart_have_none(tmp_path: Path) -> None:
    """Two fingerprints and one place: which of them it is nobody knows."""
    (tmp_path / "a").write_bytes(TEXT)
    assert hashes(tmp_path, ("a", mark(TEXT)), ("a", mark(TEXT))) is None


# --- what changed, and what is not there ----------------------------------------------


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
def test_a_log_that_changed_since_it_was_read_has_none(
    tmp_path: Path, now: bytes
) -> None:
    """Its hash would be that of other bytes; the other logs have theirs."""
    (tmp_path / "log.out").write_bytes(now)
    (tmp_path / "other.out").write_bytes(b"other" + TEXT)
    found = hashes(
        tmp_path, ("log.out", mark(TEXT)), ("other.out", mark(b"other" + TEXT))
    )
    assert found == [None, sha256(b"other" + TEXT)]


def test_an_edit_in_the_middle_changes_the_hash_and_not_the_fingerprint(
    tmp_path: Path,
) -> None:
    """Which is what the hash is for: of a long log the fingerprint sees samples."""
    path = tmp_path / "log.out"
    found = []
    for middle in (b"7.4", b"7.3"):
        path.write_bytes(bytes(WHOLE + 10_000) + middle + bytes(WHOLE))
        fingerprint = read_log(path).fingerprint
        found.append((fingerprint, hashes(tmp_path, ("log.out", fingerprint))))
    (first, (one,)), (second, (other,)) = found
    assert first == second
    assert one != other


@pytest.mark.parametrize(
    "place",
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
def test_what_cannot_be_read_has_none_and_is_no_error(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(TEXT)
    os.mkfifo(tmp_path / "pipe")
    assert hashes(tmp_path, (place, mark(TEXT))) == [None]


# --- archives -------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_a_log_in_an_archive_has_the_hash_of_its_member(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """As its bytes are when it is unpacked; of several of one name the last one counts,
    as when it is judged."""
    packed = gzip.compress(TEXT)
    members = [
        ("./runs/a.out", b"old"),
        ("runs/b.out.gz", packed),
        ("c.out", b"c" + TEXT),
        ("runs/a.out", TEXT),
    ]
    (tmp_path / "x.tar").write_bytes(compress(archive(members)))
    logs = [
        ("x.tar/runs/a.out", mark(TEXT)),
        ("x.tar/runs/b.out.gz", mark(TEXT)),
        ("x.tar/c.out", mark(TEXT)),
    ]
    assert hashes(tmp_path, *logs, ("x.tar/d.out", mark(TEXT))) == [
        sha256(TEXT),
        sha256(packed),
        None,
        None,
    ]


def test_what_was_whole_before_an_archive_was_cut_has_a_hash(tmp_path: Path) -> None:
    whole = archive([("a.out", TEXT), ("b.out", TEXT)])
    (tmp_path / "x.tar").write_bytes(
        whole[: whole.index(TEXT, whole.index(TEXT) + 1) + 20]
    )
    assert hashes(
        tmp_path, ("x.tar/a.out", mark(TEXT)), ("x.tar/b.out", mark(TEXT))
    ) == [sha256(TEXT), None]


# --- what it costs --------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, RuntimeError]
)  # StopSignals.keep_raised says when it is which
def test_an_interrupt_ends_the_hashing_of_endless_logs(
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
        hashes(tmp_path, ("a.out", mark(TEXT)))
