"""Files at URLs, with fsspec's in-memory and local file systems."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import LogError, SettingsError
from pytest_llmbench.core.formatting import is_remote, is_url, to_path, to_url
from pytest_llmbench.logs.sources.remote import Remote, check_url
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.discovery import find_runs

fsspec = pytest.importorskip("fsspec")

LOG = "experiments/pretrain_grok1_314b_bf16_256/1744407969/log-a-b.pretrain_grok1_314b_bf16_256_388660_0.out"


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty file system in memory."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/runs",
        "memory://a/b c",
        "simplecache::s3://b/x",
    ],
)
def test_url_round_trips_as_path(url: str) -> None:
    assert is_url(url)
    path = to_path(url)
    assert is_remote(path)
    assert to_url(path) == url
    assert to_url(path / "x.log") == f"{url}/x.log"


@pytest.mark.parametrize("text", ["/runs/a:b", "a:/b", "-", "C:\\x", "1://x"])
def test_text_without_protocol_is_not_a_url(text: str) -> None:
    assert not is_url(text)


@pytest.mark.parametrize(
    "path", [Path("/s3:/x"), Path("runs/s3:"), Path(), Path("<stdin>")]
)
def test_local_paths_are_not_remote(path: Path) -> None:
    assert not is_remote(path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://x", "fsspec does not know the protocol 'nope'; use one of s3,"),
        ("s3://bucket/x", "fsspec reads s3:// with another package: Install s3fs"),
        (
            "ftp://me:secret@host/x",
            "reports would show the password or signature in this URL",
        ),
    ],
)
def test_invalid_url_is_reported_before_reading(url: str, message: str) -> None:
    if url.startswith("s3") and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed here")
    with pytest.raises(SettingsError, match=message) as error:
        check_url("--llmb-logs", url)
    assert "secret" not in str(error.value)


def test_url_without_fsspec_names_the_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        SettingsError, match=r"needs fsspec: pip install 'pytest-llmbench\[remote\]'"
    ):
        check_url("--llmb-logs", "memory://x")


def test_remote_runs_are_found_as_in_a_folder(memory: Any, tmp_path: Path) -> None:
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_text("x")
    memory.pipe(f"/runs/{LOG}", b"x")
    (here,) = find_runs([tmp_path], Stores()).runs
    for url in ("memory://runs", f"file://{tmp_path}"):
        stores = Stores()
        (there,) = find_runs([to_path(url)], stores).runs
        assert (there.id, there.hints, there.job_id, there.started) == (
            here.id,
            here.hints,
            "388660",
            here.started,
        )
        assert there.attempts[0].log == to_path(url) / LOG
        assert b"".join(stores.stream(there.attempts[0].log)) == b"x"
        assert there.modified is not None


def test_remote_file_given_by_url_is_read_as_log_whatever_its_name(memory: Any) -> None:
    memory.pipe({"/runs/a.txt": b"x", "/runs/b.out": b"y"})
    (run,) = find_runs([to_path("memory://runs/a.txt")], Stores()).runs
    assert run.attempts[0].log == to_path("memory://runs/a.txt")


def test_missing_or_forbidden_remote_files_are_unreadable(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = find_runs([to_path("memory://absent")], Stores())
    assert result.unreadable == (
        (to_path("memory://absent"), "cannot be read: No such file or directory"),
    )
    memory.pipe("/runs/a/x.out", b"x")
    listing = type(memory).ls

    def ls(self: Any, path: str, *arguments: Any, **named: Any) -> Any:
        if path.endswith("/a"):
            raise PermissionError(13, "Access Denied", path)
        return listing(self, path, *arguments, **named)

    monkeypatch.setattr(type(memory), "ls", ls)
    result = find_runs([to_path("memory://runs")], Stores())
    assert result.unreadable == (
        (to_path("memory://runs/a"), "cannot be read: Access Denied"),
    )


def test_error_of_a_protocol_package_is_reported(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/runs/x.out", b"x")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(type(memory), "open", fail)
    with pytest.raises(
        LogError,
        match=r"cannot read memory://runs/x\.out: RuntimeError: no credentials",
    ):
        b"".join(Stores().stream(to_path("memory://runs/x.out")))
    monkeypatch.setattr(type(memory), "info", fail)
    result = find_runs([to_path("memory://runs")], Stores())
    assert [reason for _, reason in result.unreadable] == [
        "cannot be read: RuntimeError: no credentials"
    ]


@pytest.mark.parametrize("text", [b"shorter", b"y" * (3 << 20)])
def test_remote_file_that_changes_during_reading_is_refused(
    memory: Any, text: bytes
) -> None:
    memory.pipe("/runs/x.out", b"x" * (3 << 20))
    reading = Remote(-1).blocks(to_path("memory://runs/x.out"))
    next(reading)
    memory.pipe("/runs/x.out", text)
    with pytest.raises(
        LogError, match=r"memory://runs/x\.out: changed while it was read"
    ):
        b"".join(reading)


def test_remote_links_are_reported_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x.out").write_text("x")
    (tmp_path / "again").symlink_to(tmp_path)
    result = find_runs([to_path(f"file://{tmp_path}")], Stores())
    assert len(result.runs) == 1
    assert [reason for _, reason in result.ignored] == [
        "cannot be read: a link, which is not followed in a remote folder"
    ]


@pytest.mark.parametrize(
    ("told", "modified"),
    [
        ({}, 0.0),
        ({"mtime": 5.5}, 5.5),
        ({"LastModified": datetime(2025, 1, 1, tzinfo=UTC)}, 1735689600.0),
        ({"created": datetime(2025, 1, 1)}, 1735689600.0),  # noqa: DTZ001 - as some packages give it
        ({"updated": "2025-01-01T00:00:00Z"}, 1735689600.0),
        ({"updated": "yesterday"}, 0.0),
    ],
)
def test_modification_time_comes_from_the_protocol(
    memory: Any, told: Any, modified: float
) -> None:
    known = Remote(-1)._read_status(to_path("memory://x"), {"type": "file", **told})
    assert (known.st_dev, known.st_ino, known.st_mtime) == (-1, 0, modified)


def test_remote_name_with_nul_is_refused(memory: Any) -> None:
    memory.pipe("/runs/x.out", b"x")
    memory.pipe("/runs/y\0.out", b"x")
    result = find_runs([to_path("memory://runs")], Stores())
    assert [run.attempts[0].log.name for run in result.runs] == ["x.out"]
    assert [reason for _, reason in result.unreadable] == [
        "cannot be read: not a file name"
    ]
