"""Listings of folders that the operating system does not show: archives and standard
input."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import Protocol

from msgspec import Struct, field


class FolderEntry(Protocol):
    """An entry of a folder. `os.DirEntry` satisfies this protocol."""

    @property
    def name(self) -> str:
        """File name, without the folder."""

    @property
    def path(self) -> str:
        """Full path."""

    def is_dir(self) -> bool:
        """True for a folder or a link to a folder."""

    def is_symlink(self) -> bool:
        """True for a symbolic link."""

    def stat(self) -> os.stat_result:
        """Return the status. Raises OSError if it is unknown."""


def describe_limit(limit: int, items: str) -> str:
    """Describe why nothing after the first `limit` items is read."""
    return f"not read, like everything after it: more than {limit:,} {items}, so the newest run may be missing; give --llmb-logs fewer"


def make_status(kind: int, device: int, number: int, modified: float) -> os.stat_result:
    """Build an `os.stat_result` for an entry that the system does not know.

    `modified` is in seconds since 1970, 0 if unknown.
    """
    # The ten values of every system, whose times are whole seconds. The time with
    # fractions is only an attribute.
    return os.stat_result(
        (kind, number, device, 1, 0, 0, 0, 0, 0, 0), {"st_mtime": modified}
    )


class ListedEntry(Struct, frozen=True):
    """An entry of a listing."""

    name: str
    path: str
    status: os.stat_result
    refused: str = ""  # the reason why the entry cannot be read

    def is_dir(self) -> bool:
        """True for a folder. Raises OSError if the entry is refused."""
        if self.refused:
            raise OSError(errno.ELOOP, self.refused, self.path)
        return self.status.st_mode == S_IFDIR  # a listing has no permission bits

    def is_symlink(self) -> bool:
        """False: links are not followed here."""
        return False

    def stat(self) -> os.stat_result:
        """Return the status."""
        return self.status


class Listing(Struct):
    """Folders under a root, and their entries."""

    root: Path
    # A negative number, unlike the system's devices. Distinguishes the files of
    # different listings.
    device: int
    _entries: dict[Path, ListedEntry] = field(default_factory=dict)
    # The entries of each folder, by name.
    _entries_of: dict[Path, dict[str, ListedEntry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the empty root."""
        self._add_one_folder(self.root)

    def __len__(self) -> int:
        """Return the number of folders."""
        return len(self._entries_of)

    def add(self, path: Path, modified: float) -> bool:
        """Add a file and its parent folders, or replace an earlier file.

        Returns False if the path is a folder, or one of its parents is a file.
        """
        if path in self._entries_of:
            return False
        if path.parent not in self._entries_of:
            parents = [
                folder
                for folder in path.parents
                if folder != self.root and self.root in folder.parents
            ]
            if any(map(self._is_file, parents)):
                return False
            for folder in reversed(parents):
                self._add_one_folder(folder)
        self._put(path, S_IFREG, modified)
        return True

    def add_folder(self, path: Path) -> None:
        """Add a folder and its parents, unless one of them is a file."""
        folders = [
            folder
            for folder in (*reversed(path.parents), path)
            if self.root in folder.parents
        ]
        if not any(map(self._is_file, folders)):
            for folder in folders:
                self._add_one_folder(folder)

    def stat(self, path: Path) -> os.stat_result:
        """Return the status of a path. Raises FileNotFoundError if it is not listed."""
        if path not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._entries[path].status

    def scan(self, path: Path) -> list[ListedEntry]:
        """Return the entries of a folder. Raises NotADirectoryError for other paths."""
        if path not in self._entries_of:
            raise NotADirectoryError(
                errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)
            )
        return list(self._entries_of[path].values())

    def find_top(self) -> Path:
        """Return the root's only entry if it is a folder, else the root."""
        entries = self.scan(self.root)
        if len(entries) == 1 and entries[0].is_dir():
            return Path(entries[0].path)
        return self.root

    def _is_file(self, path: Path) -> bool:
        """True if a path is listed as a file."""
        return path in self._entries and path not in self._entries_of

    def _add_one_folder(self, path: Path) -> None:
        """Add an empty folder, whose parent is listed, unless it is already listed."""
        if path not in self._entries_of:
            self._entries_of[path] = {}
            self._put(path, S_IFDIR, 0.0)

    def _put(self, path: Path, kind: int, modified: float) -> None:
        """Add or replace an entry, whose parent is listed; the entry keeps its number."""
        number = len(self._entries)
        if path in self._entries:
            number = self._entries[path].status.st_ino
        status = make_status(kind, self.device, number, modified)
        entry = ListedEntry(path.name, str(path), status)
        self._entries[path] = entry
        if path != self.root:
            self._entries_of[path.parent][path.name] = entry
