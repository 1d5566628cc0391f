"""Walking the given paths: which files stand in which folder. No log is opened, nothing raises, the order is fixed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import ELOOP, ENOENT
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from pytest_llmbench.discover import names
from pytest_llmbench.files.listing import Entry, Status
from pytest_llmbench.files.stores import Stores, is_called_archive

CLOSED = ("configs", "code", "checkpoints", "nsys_profile", ".git")
"""Folders of a run whose files are no logs, whatever their names; the profiler's reports in them are evidence all the
same. Elsewhere (`code/experiments/...`) such a name says nothing."""

LAYOUTS = ("results", "experiments", "workloads")
"""Folders that hold runs: what holds one of them is no part of a run."""

REPORT = ".nsys-rep"
KEPT = (
    ".out",
    ".log",
    ".err",
    ".txt",
    ".yaml",
    ".yml",
    ".gz",
    ".zst",
    ".xz",
    ".bz2",
    ".zip",
    ".tar",
    ".tgz",
    ".tzst",
    ".txz",
    ".tbz",
    ".tbz2",
)

RENAMED = re.compile(r".+\.(?:out|log)\.\w{1,9}", re.IGNORECASE | re.DOTALL)
"""Logs that are put away (`.out.lz4`, `.out.1`, `.out.bak`): not read, and told."""

Notes = list[tuple[Path, str]]
_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class File:
    """One file: when it was last written (epoch seconds), its device and inode, and whether it is reached by a link."""

    name: str
    modified: float
    identity: _Identity
    link: bool = False


@dataclass(slots=True)
class Folder:
    """One folder: its files, the names of the profiler's reports in it, the given path that led to it, and the files
    that were given by name; `only_chosen` where nothing else in it was asked for."""

    path: Path
    given: Path
    files: list[File] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    chosen: frozenset[str] = frozenset()
    only_chosen: bool = False


@dataclass(slots=True)
class Walk:
    """What a walk has met: folders, links and archives last, and what it left out or could not read, with reasons.

    Archives are opened where `opens_archives`; elsewhere they are files like others.
    """

    stores: Stores = field(default_factory=Stores)
    opens_archives: bool = False
    folders: list[Folder] = field(default_factory=list)
    ignored: Notes = field(default_factory=list)
    unreadable: Notes = field(default_factory=list)
    _chosen: dict[_Identity, tuple[Path, set[str]]] = field(default_factory=dict)
    _seen: set[_Identity] = field(default_factory=set)
    _inside_runs: set[Path] = field(default_factory=set)
    _archives: dict[Path, Path] = field(default_factory=dict)
    _opened: set[_Identity] = field(default_factory=set)

    def run(self, paths: Sequence[Path]) -> Walk:
        """Read every folder under the paths once, and the folder of every given file; return itself."""
        absolute = {self.stores.absolute(path) for path in paths}
        links = []
        for root in self._roots(sorted(absolute, key=lambda path: (_is_linked(path), len(path.parts), path))):
            links += self._tree(root, root)
        while links:  # links come last: a run is known by the names of its real folders
            path, given = links.pop(0)
            links += self._tree(path, given, linked=True)
        for path, given in self._archives.items():
            self._unpack(path, given)
        for identity, (path, _) in self._chosen.items():
            if identity not in self._seen:
                self._scan(Folder(path, path, chosen=self._chosen_in(identity), only_chosen=True))
        return self

    def _roots(self, paths: Sequence[Path]) -> list[Path]:
        """Return the paths that are folders; remember those that are files."""
        roots = []
        for path in paths:
            try:
                if S_ISDIR(self.stores.stat(path).st_mode):
                    roots.append(path)
                elif self.opens_archives and self.stores.is_archive(path):
                    self._archives[path] = path
                else:
                    identity = _identity(self.stores.stat(path.parent))
                    self._chosen.setdefault(identity, (path.parent, set()))[1].add(path.name)
            except OSError as error:
                self.unreadable.append((path, _why(error)))
        return roots

    def _tree(self, root: Path, given: Path, *, linked: bool = False) -> list[tuple[Path, Path]]:
        """Read a folder and all below it; return the links to folders that were met, each with the given path."""
        links = []
        waiting = [root]
        while waiting:
            path = waiting.pop()
            try:
                identity = _identity(self.stores.stat(path))
            except OSError as error:
                self.unreadable.append((path, _why(error)))
                continue
            if identity not in self._seen:
                self._seen.add(identity)
                below, linking = self._scan(Folder(path, given, chosen=self._chosen_in(identity)))
                waiting += reversed(below)
                links += [(link, given) for link in linking]
            elif linked:
                self.ignored.append((path, "a link to a folder that is read already"))
        return links

    def _scan(self, folder: Folder) -> tuple[list[Path], list[Path]]:
        """Take stock of one folder; return the folders and the links to folders in it."""
        below: list[Path] = []
        links: list[Path] = []
        try:
            found = self.stores.scan(folder.path)
        except OSError as error:
            self.unreadable.append((folder.path, _why(error)))
            return [], []
        self.folders.append(folder)
        if self._is_inside_run(folder, [entry.name for entry in found]):
            self._inside_runs.add(folder.path)
        for entry in found:
            try:
                if not entry.is_dir():
                    self._file(folder, entry)
                elif not (entry.name.lower() in CLOSED and self._closed(folder, Path(entry.path))):
                    (links if entry.is_symlink() else below).append(Path(entry.path))
            except OSError as error:
                if folder.only_chosen and entry.name not in folder.chosen:
                    continue  # nobody asked for what stands beside a given file
                dead = error.errno in (ENOENT, ELOOP) and not _is_kept(entry.name)
                (self.ignored if dead else self.unreadable).append((Path(entry.path), _why(error)))
        return below, links

    def _unpack(self, path: Path, given: Path) -> None:
        """Read an archive and all folders in it as if they stood at its path."""
        try:
            identity = _identity(self.stores.stat(path))
        except OSError as error:
            self.unreadable.append((path, _why(error)))
            return
        if identity in self._opened:
            self.ignored.append((path, "another name of an archive that is read already"))
            return
        self._opened.add(identity)
        archive, top = self.stores.open_archive(path, lambda name: _is_told(name) or _is_report(name))
        self.ignored += archive.ignored
        self.unreadable += archive.unreadable
        self._tree(top, top if given == path else given)

    def _archive(self, folder: Folder, path: Path) -> None:
        """Remember an archive that was met in a folder, unless it cannot be one of runs."""
        if folder.path in self._inside_runs:
            self.ignored.append((path, "an archive in a run's folder is its code; to read it, give its own path"))
        elif self.stores.archive_of(folder.path) is not None:
            self.ignored.append((path, "an archive in an archive is not opened; unpack it and give its own path"))
        else:
            self._archives.setdefault(path, folder.given)

    def _file(self, folder: Folder, entry: Entry) -> None:
        chosen = entry.name in folder.chosen
        if _is_report(entry.name):
            folder.reports.append(entry.name)
        elif chosen or _is_told(entry.name) or entry.is_symlink():
            status = entry.stat()
            if not S_ISREG(status.st_mode) and (chosen or not folder.only_chosen):
                (self.unreadable if chosen else self.ignored).append((Path(entry.path), "not a regular file"))
            elif S_ISREG(status.st_mode) and self._is_opened(folder, entry.name):
                self._archive(folder, Path(entry.path))
            elif S_ISREG(status.st_mode) and (chosen or _is_told(entry.name)):
                folder.files.append(File(entry.name, status.st_mtime, _identity(status), entry.is_symlink()))

    def _is_opened(self, folder: Folder, name: str) -> bool:
        asked_for = self.opens_archives and not folder.only_chosen and name not in folder.chosen
        return asked_for and _is_kept(name) and is_called_archive(name)

    def _closed(self, folder: Folder, path: Path) -> bool:
        """Take the profiler's reports of a folder that is called as one without logs; say whether it is closed."""
        found = [entry.name for entry in self.stores.scan(path)]
        folder.reports += [name for name in found if _is_report(name)]
        above = folder.path.relative_to(folder.given.parent).parts
        holds_runs = any(name.lower() in LAYOUTS for name in found) and not any(map(_is_layout, above))
        closed = (folder.path in self._inside_runs and not holds_runs) or path.name.lower() == ".git"
        if closed and not folder.only_chosen:
            self.ignored.append((path, "by its name a run's folder without logs; to read it, give its own path"))
        return closed

    def _is_inside_run(self, folder: Folder, files: Sequence[str]) -> bool:
        """Whether a folder is an experiment's, holds a launcher's log, or is below such a one and the given path."""
        typed = folder.path.parent.name.lower() != "experiments"
        own = names.experiment(folder.path.name, typed=typed) is not None or any(map(names.is_launched, files))
        return own or (folder.path != folder.given and folder.path.parent in self._inside_runs)

    def _chosen_in(self, identity: _Identity) -> frozenset[str]:
        return frozenset(self._chosen[identity][1]) if identity in self._chosen else frozenset()


def _is_layout(name: str) -> bool:
    return name.lower() in LAYOUTS


def _is_kept(name: str) -> bool:
    return name.lower().endswith(KEPT) and not name.startswith(".")


def _is_told(name: str) -> bool:
    return _is_kept(name) or (RENAMED.fullmatch(name) is not None and not name.startswith("."))


def _is_report(name: str) -> bool:
    return name.lower().endswith(REPORT)


def _identity(status: Status) -> _Identity:
    return status.st_dev, status.st_ino


def _is_linked(path: Path) -> bool:
    return os.path.realpath(path) != str(path)


def _why(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
