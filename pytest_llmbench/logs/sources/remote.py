"""Read files at URLs (`s3://bucket/runs`) through fsspec, which is imported on first
use."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import Any

from msgspec import Struct, field

from pytest_llmbench.core.errors import LogError, SettingsError
from pytest_llmbench.core.formatting import URL, to_path, to_url
from pytest_llmbench.core.redaction import hide_password_of
from pytest_llmbench.logs.sources.listing import (
    ListedEntry,
    describe_limit,
    make_status,
)

BLOCK = 1 << 20
# The maximum number of listed files and folders.
ENTRIES = 1_000_000

# Names of the modification time in the records of different protocols.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_KINDS = {"directory": S_IFDIR, "file": S_IFREG}
# Fields that stay equal while a file is unchanged.
_VERSION_FIELDS = ("size", "ETag", "etag", "VersionId", "generation", *_TIMES)


def check_url(flag: str, url: str) -> Path:
    """Return the path for a URL that fsspec can open.

    Raises SettingsError if a package is missing or the URL is invalid. Does not connect
    to the server.
    """
    match = URL.fullmatch(url)
    if match and hide_password_of(url) != url:
        raise SettingsError(
            f"{flag}={match['protocol']}://...: reports would show the password or signature in this URL; "
            "set it in fsspec's configuration or in the protocol's environment variables"
        )
    try:
        import fsspec
    except ImportError:
        raise SettingsError(
            f"{flag}={url} needs fsspec: pip install 'pytest-llmbench[remote]'"
        ) from None
    for protocol in match["protocol"].split("::") if match else ():
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise SettingsError(
                f"{flag}={url}: fsspec reads {protocol}:// with another package: {error}"
            ) from None
        except ValueError:
            known_protocols = ("s3", "gs", "abfs", "hdfs", "ssh", "https")
            protocols = ", ".join(name for name in known_protocols if name != protocol)
            raise SettingsError(
                f"{flag}={url}: fsspec does not know the protocol {protocol!r}; use one of {protocols}"
            ) from None
    return to_path(url)


class Remote(Struct):
    """The remote files of a session."""

    device: int  # device number of all remote files
    _numbers: dict[Path, int] = field(default_factory=dict)

    def stat(self, path: Path) -> os.stat_result:
        """Return the status of a path. Raises OSError with the reason if it is unknown."""
        with _unify_errors(path):
            system, remote_path = _open_filesystem(path)
            return self._read_status(path, system.info(remote_path))

    def scan(self, path: Path) -> list[ListedEntry]:
        """Return the entries of a folder. Raises OSError with the reason if it cannot
        be listed."""
        with _unify_errors(path):
            system, remote_path = _open_filesystem(path)
            records = system.ls(remote_path, detail=True)
        items = {}
        for record in records:
            record_path = str(record["name"])
            name = record_path.rstrip("/").rpartition("/")[2]
            # Object stores list an empty folder as an object with the folder's name.
            is_folder_marker = record_path.strip("/") == remote_path.strip("/")
            if not name or is_folder_marker:
                continue
            kind = record.get("type")
            refused = ""
            if kind == "link" or (record.get("islink") and kind != "file"):
                refused = "a link, which is not followed in a remote folder"
            if "\0" in name:
                refused = "not a file name"
            status = self._read_status(path / name, record)
            items[name] = ListedEntry(name, str(path / name), status, refused)
        return list(items.values())

    def blocks(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of a file. Raises LogError if it is unreadable or changed
        meanwhile."""
        try:
            with _unify_errors(path):
                system, remote_path = _open_filesystem(path)
                before = system.info(remote_path)
                with system.open(remote_path, "rb") as file:
                    # None if the size is unknown or 0: then read to the end.
                    remaining = int(before.get("size") or 0) or None
                    limit = BLOCK if remaining is None else min(BLOCK, remaining)
                    while block := file.read(limit):
                        yield block
                        if remaining is not None:
                            remaining -= len(block)
                            if remaining == 0:
                                break
                            limit = min(BLOCK, remaining)
                system.invalidate_cache(remote_path)
                after = system.info(remote_path)
        except OSError as error:
            raise LogError(
                f"cannot read {to_url(path)}: {error.strerror or error}"
            ) from error
        is_shortened = bool(remaining)  # the file ended before its size was reached
        if is_shortened or _get_version(before) != _get_version(after):
            raise LogError(
                f"{to_url(path)}: changed while it was read: read it again when nothing writes to it"
            )

    def _read_status(self, path: Path, record: Mapping[str, Any]) -> os.stat_result:
        """Convert a record of fsspec. Raises OSError after ENTRIES different paths."""
        number = self._numbers.setdefault(path, len(self._numbers))
        if number >= ENTRIES:
            raise OSError(errno.EFBIG, describe_limit(ENTRIES, "files and folders"))
        return make_status(
            _KINDS.get(str(record.get("type")), 0),
            self.device,
            number,
            _read_modified(record),
        )


def _open_filesystem(path: Path) -> tuple[Any, str]:
    """Return the file system of fsspec for a path, and the path within it."""
    import fsspec.core

    system, remote_path = fsspec.core.url_to_fs(to_url(path))
    return system, str(remote_path)


@contextmanager
def _unify_errors(path: Path) -> Iterator[None]:
    """Convert any exception of a protocol's package to an OSError."""
    try:
        yield
    except FileNotFoundError as error:  # its message is often only the path
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), to_url(path)
        ) from error
    except (OSError, LogError, GeneratorExit):
        raise
    except Exception as error:
        raise OSError(
            errno.EIO, f"{type(error).__name__}: {error}", to_url(path)
        ) from error


def _read_modified(record: Mapping[str, Any]) -> float:
    """Return the modification time in epoch seconds, 0 if unknown."""
    value = next((record[name] for name in _TIMES if record.get(name)), 0.0)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return 0.0
    if isinstance(value, datetime):
        with_zone = value if value.tzinfo else value.replace(tzinfo=UTC)
        return with_zone.timestamp()
    return float(value) if isinstance(value, int | float) else 0.0


def _get_version(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a record that differ if the file was changed."""
    return tuple(str(record.get(name)) for name in _VERSION_FIELDS)
