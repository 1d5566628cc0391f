"""The cache of parsed logs: unchanged logs are not read again, changed logs always are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.cached_folders import CachedFolder
from support.log_folders import read_runs

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.reading import cache as log_cache
from pytest_llmbench.logs.reading.cache import LogCache, hash_parser
from pytest_llmbench.logs.reading.run_reader import start_reading_ahead
from pytest_llmbench.logs.sources.zstd import zstd
from pytest_llmbench.session.settings import cache_folder

DEFINITION = RegexDialect(
    "regex:mine-1.0", "mystep", r"mystep (?P<step>\d+) (?P<seconds>[\d.]+)"
)


@pytest.mark.slow
def test_unchanged_folder_is_read_once(cached_folder: CachedFolder) -> None:
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.again() == []
    assert (
        cached_folder.folder.stat().st_mode & 0o777,
        cached_folder.file.stat().st_mode & 0o777,
    ) == (0o700, 0o600)


def test_cache_contains_no_secret(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_53cr3t-of-m1ne")
    log, error = cached_folder.logs[0], cached_folder.logs[0].with_suffix(".err")
    text = (
        "Traceback (most recent call last):\nRuntimeError: 401 for hf_53cr3t-of-m1ne\n"
    )
    log.write_text(log.read_text().rpartition("\n")[0][:-200] + "\n" + text)
    error.write_text(text)
    for hidden in (
        False,
        True,
    ):  # the first time they are read, then the cache has them
        reading = read_runs(cached_folder.runs, cache=cached_folder.cache())
        for ending in (reading.get_log(log).ending, reading.get_ending(error)):
            assert ending is not None
            assert ("***" in ending.quote, "53cr3t" in ending.quote) == (
                hidden,
                not hidden,
            )


def test_unreadable_log_is_read_again(cached_folder: CachedFolder) -> None:
    cached_folder.logs[0].write_bytes(
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + b"damaged" * 99
    )
    for _ in range(2):
        result = read_runs(cached_folder.runs, cache=cached_folder.cache())
        with pytest.raises(LogError, match="damaged"):
            result.get_log(cached_folder.logs[0])
    assert cached_folder.read.count(cached_folder.logs[0]) == 2
    assert cached_folder.read.count(cached_folder.logs[1]) == 1


@pytest.mark.slow
def test_cache_is_ignored_after_a_change_of_parser_or_log_definition(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("re2")
    cached_folder.again()
    assert cached_folder.again((DEFINITION,)) == sorted(cached_folder.logs)
    assert cached_folder.again((DEFINITION,)) == []
    assert cached_folder.again((replace(DEFINITION, unit="ms"),)) == sorted(
        cached_folder.logs
    )
    assert cached_folder.again() == []
    monkeypatch.setattr(log_cache, "_get_parser_hash", lambda **_: "another")
    assert cached_folder.again() == sorted(cached_folder.logs)


@pytest.mark.slow
def test_parser_version_covers_every_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pytest_llmbench"
    shutil.copytree(
        Path(log_cache.__file__).parents[2],
        package,
        ignore=shutil.ignore_patterns("*.pyc", "baselines"),
    )
    monkeypatch.setattr(
        log_cache, "__file__", str(package / "ingest" / "reading" / "cache.py")
    )
    versions = {hash_parser(with_definitions=False)}
    for name in (
        "logs/scan.py",
        "logs/dialects/nemo2.py",
        "logs/sources/compressed.py",
        "logs/sources/files.py",
        "logs/reading/codec.py",
        "core/log_records.py",
        "core/robust.py",
    ):
        path = package / name
        path.write_text(path.read_text() + "# changed\n")
        versions.add(hash_parser(with_definitions=False))
    assert len(versions) == 8
    shutil.rmtree(package)
    assert hash_parser(with_definitions=False) != hash_parser(
        with_definitions=False
    )  # versions without source cannot be distinguished


Tampering = Callable[[CachedFolder], object]


def rewrite_file(change: Callable[[bytes], bytes]) -> Tampering:
    return lambda cached_folder: cached_folder.file.write_bytes(
        change(cached_folder.file.read_bytes())
    )


def flip_bit(offset: int) -> Tampering:
    return rewrite_file(
        lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
    )


def edit_dialect(data: bytes) -> bytes:
    """Change the contents of a cache file, keeping its header."""
    start = len(log_cache.MAGIC) + 32
    text = zstd.decompress(data[start:])
    return data[:start] + zstd.compress(text.replace(b"nemo1", b"nemo2"))


def rewrite_key(key: bytes) -> Tampering:
    return lambda cached_folder: (cached_folder.folder / log_cache.KEY).write_bytes(key)


def copy_from_elsewhere(cached_folder: CachedFolder) -> None:
    """Replace the cache file by that of another user or machine, with another key."""
    elsewhere = cached_folder.folder.with_name("elsewhere")
    read_runs(cached_folder.runs, cache=LogCache(elsewhere, [cached_folder.runs], ()))
    shutil.copy2(elsewhere / cached_folder.file.name, cached_folder.file)


def exchange_places(cached_folder: CachedFolder) -> None:
    """Replace the cache file by that of other paths."""
    own = cached_folder.file
    read_runs(
        cached_folder.runs,
        cache=LogCache(cached_folder.folder, [cached_folder.folder], ()),
    )
    (other,) = set(cached_folder.folder.glob("*.logs")) - {own}
    other.replace(own)


TAMPERINGS: dict[str, Tampering] = {
    "magic": flip_bit(0),
    "signature": flip_bit(25),
    "content": flip_bit(1000),
    "half": rewrite_file(lambda data: data[: len(data) // 2]),
    "empty": rewrite_file(lambda _data: b""),
    "longer": rewrite_file(lambda data: data + b"x"),
    "edited": rewrite_file(edit_dialect),
    "lost key": lambda cached_folder: (cached_folder.folder / log_cache.KEY).unlink(),
    "short key": rewrite_key(b"short"),
    "long key": rewrite_key(bytes(33)),
    "another key": copy_from_elsewhere,
    "other paths": exchange_places,
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS)
def test_tampered_cache_is_ignored_and_rewritten(
    cached_folder: CachedFolder, tamper: Tampering
) -> None:
    cached_folder.again()
    tamper(cached_folder)
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.again() == []
    key = (cached_folder.folder / log_cache.KEY).stat()
    assert (key.st_size, key.st_mode & 0o777) == (log_cache.KEY_BYTES, 0o600)


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"no readings", bytes(1 << 20)], ids=["text", "zeros"]
)
def test_signed_cache_with_invalid_content_is_ignored(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """The files are signed, so only their contents are wrong. The last one would need
    too much memory."""
    with monkeypatch.context() as patch:
        patch.setattr(log_cache, "pack", lambda _readings: content)
        cached_folder.again()
    monkeypatch.setattr(log_cache, "UNPACKED", 1 << 19)
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.again() == []


@pytest.mark.slow
def test_cache_is_ignored_if_memory_is_exhausted(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_data: object) -> None:
        raise MemoryError

    cached_folder.again()
    for name in ("unpack", "pack"):
        with monkeypatch.context() as patch:
            patch.setattr(log_cache, name, fail)
            patch.setattr(log_cache, "unpack", fail)
            assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.again() == []


@pytest.mark.slow
def test_cache_writable_by_others_is_not_trusted(cached_folder: CachedFolder) -> None:
    cached_folder.again()
    for path in (cached_folder.file, cached_folder.folder):
        path.chmod(path.stat().st_mode | 0o020)
        assert cached_folder.again() == sorted(cached_folder.logs)
        path.chmod(path.stat().st_mode & ~0o022)
        cached_folder.again()
        assert cached_folder.again() == []
    file = cached_folder.file
    file.rename(cached_folder.folder / "elsewhere")
    file.symlink_to(cached_folder.folder / "elsewhere")
    assert cached_folder.again() == sorted(cached_folder.logs)


@pytest.mark.slow
def test_cache_of_another_user_is_not_trusted(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_folder.again()
    stranger = os.geteuid() + 1
    monkeypatch.setattr(
        log_cache, "os", SimpleNamespace(**{**vars(os), "geteuid": lambda: stranger})
    )
    before = cached_folder.file.read_bytes()
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", ["a file in its place", "no room", "cannot be renamed"]
)
def test_unwritable_cache_raises_no_error(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    if problem == "a file in its place":
        cached_folder.folder.parent.write_text("")
    elif problem == "no room":
        monkeypatch.setattr(os, "fdopen", fails)
    else:
        monkeypatch.setattr(os, "replace", fails)
    assert cached_folder.again() == sorted(cached_folder.logs)
    monkeypatch.undo()
    assert problem == "a file in its place" or not list(cached_folder.folder.iterdir())


@pytest.mark.slow
def test_cache_is_not_written_for_few_logs(
    cached_folder: CachedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cache, "WORTH_FILES", 4)
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert not cached_folder.folder.exists()
    monkeypatch.setattr(log_cache, "WORTH_BYTES", 1)
    cached_folder.again()
    assert cached_folder.again() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 300, "nul\0"])
def test_cache_folder_that_cannot_be_examined_counts_as_empty(
    tmp_path: Path, name: str
) -> None:
    cache = LogCache(tmp_path / name, [tmp_path], ())
    assert not cache.exists()
    assert start_reading_ahead((), cache) is not None


def test_deleted_logs_are_dropped_from_the_cache(cached_folder: CachedFolder) -> None:
    cached_folder.again()
    size = cached_folder.file.stat().st_size
    cached_folder.logs[0].unlink()
    with cached_folder.logs[1].open("ab") as file:
        file.write(b"one more line\n")
    assert cached_folder.again() == [cached_folder.logs[1]]
    assert cached_folder.file.stat().st_size < size


@pytest.mark.slow
def test_least_recently_used_cache_files_are_removed(
    cached_folder: CachedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_folder.again()
    size = cached_folder.file.stat().st_size
    for name, days in (
        ("old.logs", 31),
        ("older.logs", 20),
        ("newer.logs", 10),
        ("foreign.txt", 99),
    ):
        path = cached_folder.folder / name
        path.write_bytes(bytes(size))
        os.utime(path, (path.stat().st_mtime - days * 86400,) * 2)
    monkeypatch.setattr(log_cache, "LARGEST", size * 2 + size // 2)
    read_runs(
        cached_folder.runs, cache=LogCache(cached_folder.folder, [tmp_path], ())
    ).get_log(cached_folder.logs[0])
    assert {path.name for path in cached_folder.folder.iterdir()} >= {"foreign.txt"}
    assert (
        len(list(cached_folder.folder.iterdir())) == 4
    )  # two caches, their key, and another file
    assert cached_folder.again() == []


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/pytest-llmbench"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/pytest-llmbench"),
        ({"HOME": "/h"}, "/h/.cache/pytest-llmbench"),
        ({}, None),
    ],
)
def test_default_cache_folder_belongs_to_the_user(
    environment: dict[str, str], folder: str | None
) -> None:
    assert cache_folder(environment) == (folder and Path(folder))
