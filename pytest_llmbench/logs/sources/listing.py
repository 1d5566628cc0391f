"""Folders and files that the operating system does not show: those of an archive, or of
standard input."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import Protocol


class FolderEntry(Protocol):
    """What stands in a folder; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    @property
    def path(self) -> str:
        """Its whole path."""

    def is_dir(self) -> bool:
        """Whether it is a folder, or a link to one."""

    def is_symlink(self) -> bool:
        """Whether it is a link."""

    def stat(self) -> os.stat_result:
        """Return what is known of it; OSError where nothing is."""


def describe_limit(most: int, what: str) -> str:
    """Return why nothing more is read."""
    return f"not read, nor what comes after it: a newer run may lie beyond {most:,} {what}; give --llmb-logs fewer"


def make_status(kind: int, device: int, number: int, modified: float) -> os.stat_result:
    """Return the status of what only this program knows, as the system gives those of
    its files; a time of 0 is unknown."""
    # the ten values that every system has, in whole seconds; times with a fraction are
    # no part of the sequence
    return os.stat_result(
        (kind, number, device, 1, 0, 0, 0, 0, 0, 0), {"st_mtime": modified}
    )


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry as it was once listed."""

    name: str
    path: str
    status: os.stat_result
    refused: str = ""  # why it cannot be looked at

    def is_dir(self) -> bool:
        """Whether it is a folder; OSError where it is refused."""
        if self.refused:
            raise OSError(errno.ELOOP, self.refused, self.path)
        return self.status.st_mode == S_IFDIR

    def is_symlink(self) -> bool:
        """Whether it is a link: none is followed here."""
        return False

    def stat(self) -> os.stat_result:
        """Return what is known of it."""
        return self.status


@dataclass(slots=True)
class Listing:
    """Folders below a root and what stands in them."""

    root: Path
    # below 0, as no device of the operating system; tells its files from those of other
    # listings
    device: int
    _items: dict[Path, ListedEntry] = field(default_factory=dict)
    _inside: dict[Path, dict[str, ListedEntry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with the empty root."""
        self._list_folder(self.root)

    def __len__(self) -> int:
        """Return the number of folders."""
        return len(self._inside)

    def add(self, path: Path, modified: float) -> bool:
        """Add a file with the folders above it, or put it in the place of an earlier
        one; False where a folder stands in its place or a file in that of a folder
        above it."""
        above = [
            folder
            for folder in path.parents
            if folder != self.root and self.root in folder.parents
        ]
        if path in self._inside or any(
            folder in self._items and folder not in self._inside for folder in above
        ):
            return False
        for folder in reversed(above):
            self._list_folder(folder)
        self._put(path, S_IFREG, modified)
        return True

    def add_folder(self, path: Path) -> None:
        """Add a folder, with those above it, unless a file stands in the place of one
        of them."""
        chain = [
            folder
            for folder in (*reversed(path.parents), path)
            if self.root in folder.parents
        ]
        if not any(
            folder in self._items and folder not in self._inside for folder in chain
        ):
            for folder in chain:
                self._list_folder(folder)

    def stat(self, path: Path) -> os.stat_result:
        """Return what is known of a path; FileNotFoundError where nothing is."""
        if path not in self._items:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._items[path].status

    def scan(self, path: Path) -> list[ListedEntry]:
        """Return what stands in a folder."""
        if path not in self._inside:
            raise NotADirectoryError(
                errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)
            )
        return list(self._inside[path].values())

    def find_top(self) -> Path:
        """Return the one folder that holds everything else, the root where there is
        none."""
        items = self.scan(self.root)
        return (
            Path(items[0].path) if len(items) == 1 and items[0].is_dir() else self.root
        )

    def _list_folder(self, path: Path) -> None:
        if path not in self._inside:
            self._inside[path] = {}
            self._put(path, S_IFDIR, 0.0)

    def _put(self, path: Path, kind: int, modified: float) -> None:
        number = (
            self._items[path].status.st_ino if path in self._items else len(self._items)
        )
        item = self._items[path] = ListedEntry(
            path.name, str(path), make_status(kind, self.device, number, modified)
        )
        if path != self.root:
            self._inside[path.parent][path.name] = item
