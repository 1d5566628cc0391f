"""Walking the given paths: which files stand in which folder. No log is opened, nothing
raises, the order is fixed."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from errno import EFBIG, ELOOP, ENOENT
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from pytest_llmbench.core.userfile import leads_up
from pytest_llmbench.logs.sources.archive import SCRIPT
from pytest_llmbench.logs.sources.listing import FolderEntry, describe_limit
from pytest_llmbench.logs.sources.stores import Stores, is_called_archive
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.metrics_files import is_metrics
from pytest_llmbench.runs.discover.unfinished_files import find_unfinished
from pytest_llmbench.runs.layouts.trial_markers import TrialMarkers, is_marker

# Folders of a run whose files are no logs, whatever their names; the profiler's reports
# in them are evidence all the same. Elsewhere (`code/experiments/...`) such a name says
# nothing.
CLOSED = ("configs", "code", "checkpoints", "nsys_profile", ".git")

# Folders that hold runs: what holds one of them is no part of a run.
LAYOUTS = ("results", "experiments", "workloads")

# Of a closed folder that holds nothing else nobody has to be told.
NO_LOGS = (".yaml", ".yml", ".json")

REPORT = ".nsys-rep"
# What the names of folders begin with that recipes write the profiler's reports into
# (`nsys`, `nsys_profile`).
PROFILES = "nsys"

LOGS = (".out", ".log", ".err", ".txt", ".yaml", ".yml")
KEPT = (
    *LOGS,
    ".gz",
    ".zst",
    ".xz",
    ".bz2",
    ".zip",
    ".7z",
    ".rar",
    ".tar",
    ".tgz",
    ".tzst",
    ".txz",
    ".tbz",
    ".tbz2",
)

# How nearly all files end that are read: they are no logs under other names.
READ_ENDS = (*LOGS, ".gz")

# Logs that are put away (`.out.lz4`, `.out.1`, `.out.bak`): not read, and told.
RENAMED = re.compile(r".+\.(?:out|log)\.\w{1,9}", re.IGNORECASE | re.DOTALL)

# Folders that are read; a walk of as many takes a minute, and half a gigabyte of
# memory.
MOST_FOLDERS = 1_000_000

Notes = list[tuple[Path, str]]
FileId = tuple[int, int]


class WalkedFile(NamedTuple):
    """One file: when it was last written (epoch seconds), its device and inode, and
    whether it is reached by a link."""

    name: str
    modified: float
    identity: FileId
    link: bool = False


@dataclass(eq=False)
class Folder:
    """One folder and its files."""

    # The whole path as a text, and the names in it: of thousands of folders, few are
    # ever asked for as a Path.
    text: str
    parts: tuple[str, ...]
    given_path: Path  # the path among those given that led to it
    files: list[WalkedFile] = field(default_factory=list)
    unnamed: list[str] = field(
        default_factory=list
    )  # files that may be logs although they are not called so
    chosen: frozenset[str] = frozenset()  # the files that were given by name
    only_chosen: bool = False  # nothing else in it was asked for

    @property
    def name(self) -> str:
        """Its own name."""
        return self.parts[-1] if self.parts else ""

    @property
    def relative_names(self) -> tuple[str, ...]:
        """The names from the given folder's on."""
        return (self.given_path.name, *self.parts[len(self.given_path.parts) :])

    @cached_property
    def path(self) -> Path:
        """The path under which it is known."""
        return Path(self.text)

    def get_file(self, name: str) -> WalkedFile:
        """Return the file of a name; once one was looked up, `files` must not
        change."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, WalkedFile]:
        return {file.name: file for file in self.files}


@dataclass(slots=True)
class Walk:
    """What a walk has met: folders, links and archives last, and what it left out or
    could not read, with reasons."""

    stores: Stores = field(default_factory=Stores)
    opens_archives: bool = False  # else they are files like others
    folders: list[Folder] = field(default_factory=list)
    ignored: Notes = field(default_factory=list)
    unreadable: Notes = field(default_factory=list)
    # The profiler's reports by their whole paths, and when each was last written (epoch
    # seconds).
    reports: dict[str, float] = field(default_factory=dict)
    # logs under names that are not read, and links that lead nowhere: when each was
    # written (epoch seconds), what it is
    hidden: list[tuple[Path, float, str]] = field(default_factory=list)
    marks: TrialMarkers = field(init=False)
    linked: set[Path] = field(
        default_factory=set
    )  # given paths, or the folders of given files, that lie behind a link
    _chosen: dict[FileId, tuple[Path, set[str]]] = field(default_factory=dict)
    _seen: set[FileId] = field(default_factory=set)
    _inside_runs: set[str] = field(default_factory=set)
    _archives: dict[Path, Path] = field(default_factory=dict)
    _opened: set[FileId] = field(default_factory=set)
    _passed_over: list[FolderEntry] = field(
        default_factory=list
    )  # files that may be logs under another name
    _full: bool = False  # not all folders were read

    def __post_init__(self) -> None:
        self.marks = TrialMarkers(self.stores)

    def run(self, paths: Sequence[Path]) -> Walk:
        """Read every folder under the paths once, and the folder of every given file;
        return itself."""
        absolute = {self.stores.resolve_path(path) for path in paths}
        self.linked = {
            place
            for path in absolute
            for place in (path, path.parent)
            if _is_linked(place)
        }
        links = []
        for root in self._find_roots(
            sorted(
                absolute, key=lambda path: (path in self.linked, len(path.parts), path)
            )
        ):
            links += self._read_tree(_make_folder(root, root))
        while links:  # links come last: a run is known by the names of its real folders
            links = self._follow(links)
        for path, given_path in self._archives.items():
            self._unpack(path, given_path)
        for identity, (path, _) in self._chosen.items():
            if identity not in self._seen:
                folder = _make_folder(path, path)
                folder.chosen, folder.only_chosen = self._find_chosen(identity), True
                self._scan(folder)
        return self

    def _find_roots(self, paths: Sequence[Path]) -> list[Path]:
        """Return the paths that are folders; remember those that are files."""
        roots = []
        for path in paths:
            try:
                if S_ISDIR(self.stores.stat(path).st_mode):
                    roots.append(path)
                elif self.opens_archives and self.stores.is_archive(path):
                    self._archives[path] = path
                else:
                    identity = _identify(self.stores.stat(path.parent))
                    self._chosen.setdefault(identity, (path.parent, set()))[1].add(
                        path.name
                    )
            except OSError as error:
                self.unreadable.append((path, _explain(error)))
        return roots

    def _follow(self, links: Sequence[Path]) -> list[Path]:
        """Read the folders that links lead to, those that hold others first; return the
        links that were met there."""
        further = []
        for link in sorted(
            links, key=lambda link: (len(Path(os.path.realpath(link)).parts), link)
        ):
            target = Path(os.path.realpath(link))
            if leads_up(link):
                self.ignored.append(
                    (link, "a link to a folder that holds the link itself")
                )
            elif self._is_seen(target):
                self.ignored.append((link, "a link to a folder that is read already"))
            else:
                self._inside_runs |= (
                    {str(target)} if str(link.parent) in self._inside_runs else set()
                )
                further += self._read_tree(_make_folder(target, target))
        return further

    def _is_seen(self, path: Path) -> bool:
        try:
            return _identify(self.stores.stat(path)) in self._seen
        except OSError:  # reading it says why
            return False

    def _read_tree(self, root: Folder) -> list[Path]:
        """Read a folder and all below it; return the links to folders that were met."""
        links = []
        waiting = [root]
        while waiting and not self._full:
            folder = waiting.pop()
            try:
                identity = _identify(self.stores.stat(folder.text))
            except OSError as error:
                self._note_unread(folder, error)
                continue
            if identity not in self._seen:
                self._seen.add(identity)
                folder.chosen = self._find_chosen(identity)
                below, linking = self._scan(folder)
                waiting += reversed(below)
                links += linking
        return links

    def _note_unread(self, folder: Folder, error: OSError) -> None:
        """Note a folder that cannot be read, and for all that lie beyond the limit of
        folders the first alone."""
        self._full = self._full or error.errno == EFBIG
        self.unreadable.append(
            (
                folder.path,
                str(error.strerror) if error.errno == EFBIG else _explain(error),
            )
        )

    def _scan(self, folder: Folder) -> tuple[list[Folder], list[Path]]:
        """Take stock of one folder; return the folders and the links to folders in
        it."""
        below: list[Folder] = []
        links: list[Path] = []
        try:
            if len(self.folders) >= MOST_FOLDERS:
                raise OSError(EFBIG, describe_limit(MOST_FOLDERS, "folders"))
            entries = self.stores.scan(folder.text)
        except OSError as error:
            self._note_unread(folder, error)
            return [], []
        self.folders.append(folder)
        self.marks.note(
            folder.text, (entry.path for entry in entries if is_marker(entry.name))
        )
        folder_names = [entry.name for entry in entries]
        if self._is_inside_run(folder, folder_names):
            self._inside_runs.add(folder.text)
        for entry in entries:
            try:
                if not entry.is_dir():
                    self._add_file(folder, entry)
                elif not (
                    _is_special(entry.name) and self._close(folder, Path(entry.path))
                ):
                    if entry.is_symlink():
                        links.append(Path(entry.path))
                    else:
                        below.append(
                            Folder(
                                entry.path,
                                (*folder.parts, entry.name),
                                folder.given_path,
                            )
                        )
            except OSError as error:
                if folder.only_chosen and entry.name not in folder.chosen:
                    continue  # nobody asked for what stands beside a given file
                dead = error.errno in (ENOENT, ELOOP) and not _is_kept(entry.name)
                (self.ignored if dead else self.unreadable).append(
                    (Path(entry.path), _explain(error))
                )
                self.hidden += [
                    (
                        Path(entry.path),
                        _read_own_time(entry.path),
                        "a link that leads nowhere",
                    )
                ] * dead
        self._note_unfinished(folder, folder_names)
        return below, links

    def _pass_over(self, path: str, why: str) -> None:
        """Note something that is no file in the place of one: the log of a newer run
        may have been meant."""
        self.ignored.append((Path(path), why))
        self.hidden.append((Path(path), _read_own_time(path), why))

    def _note_unfinished(self, folder: Folder, folder_names: Collection[str]) -> None:
        """Remember the logs of a folder whose transfer has not ended, or that are put
        away, and a folder for a log."""
        if (
            not folder_names
            and _is_mentioned(folder.name)
            and folder.path not in self._archives
        ):
            self._pass_over(
                folder.text, "an empty folder in the place of a file"
            )  # as containers make one to mount it
        entries = {
            entry.name: entry
            for entry in self._passed_over
            if not is_marker(entry.name)
        }
        self._passed_over.clear()
        if entries and not folder.only_chosen:
            for name in find_unfinished(entries, folder_names):
                entry = entries[name]
                self.hidden.append(
                    (
                        Path(entry.path),
                        _read_modified(entry),
                        "a log by its name, but for its end",
                    )
                )

    def _unpack(self, path: Path, given_path: Path) -> None:
        """Read an archive and all folders in it as if they stood at its path."""
        try:
            identity = _identify(self.stores.stat(path))
        except OSError as error:
            self.unreadable.append((path, _explain(error)))
            return
        if identity in self._opened:
            self.ignored.append(
                (path, "another name of an archive that is read already")
            )
            return
        self._opened.add(identity)
        archive, top = self.stores.open_archive(path, _is_listed, names.may_be_log)
        self.ignored += archive.ignored
        self.unreadable += archive.unreadable
        self._read_tree(_make_folder(top, top if given_path == path else given_path))

    def _remember_archive(self, folder: Folder, path: Path) -> None:
        """Remember an archive that was met in a folder, unless it cannot be one of
        runs."""
        if folder.text in self._inside_runs:
            self.ignored.append(
                (
                    path,
                    "an archive in a run's folder is its code; to read it, give its own path",
                )
            )
        elif self.stores.find_archive(folder.path) is not None:
            self.ignored.append(
                (
                    path,
                    "an archive in an archive is not opened; unpack it and give its own path",
                )
            )
        else:
            self._archives.setdefault(path, folder.given_path)

    def _add_file(self, folder: Folder, entry: FolderEntry) -> None:
        name = entry.name
        if _is_report(name):
            self.reports[entry.path] = _read_modified(entry)
            return
        chosen, mentioned, link = (
            name in folder.chosen,
            _is_mentioned(name),
            entry.is_symlink(),
        )
        if not mentioned and not folder.only_chosen and names.may_be_log(name):
            folder.unnamed.append(name)
        if not (chosen or mentioned or link):
            self._passed_over.append(entry)
            return
        if not (chosen or name.endswith(READ_ENDS)):
            self._passed_over.append(entry)
        status = entry.stat()
        if not S_ISREG(status.st_mode):
            if chosen:
                self.unreadable.append((Path(entry.path), "not a regular file"))
            elif not folder.only_chosen:
                self._pass_over(entry.path, "not a regular file")
        elif not chosen and self._is_opened(folder, name):
            self._remember_archive(folder, Path(entry.path))
        elif chosen or mentioned:
            folder.files.append(
                WalkedFile(name, status.st_mtime, _identify(status), link)
            )

    def _is_opened(self, folder: Folder, name: str) -> bool:
        return (
            self.opens_archives
            and not folder.only_chosen
            and is_called_archive(name)
            and _is_kept(name)
        )

    def _close(self, folder: Folder, path: Path) -> bool:
        """Take the profiler's reports of a folder that is called as one without logs;
        say whether it is closed."""
        entries = self.stores.scan(path)
        self.reports |= {
            entry.path: _read_modified(entry)
            for entry in entries
            if _is_report(entry.name)
        }
        if path.name.lower() not in CLOSED:
            return False
        inner = [entry.name for entry in entries]
        above = folder.parts[len(folder.given_path.parent.parts) :]
        holds_runs = any(name.lower() in LAYOUTS for name in inner) and not any(
            map(_is_layout, above)
        )
        closed = (
            folder.text in self._inside_runs and not holds_runs
        ) or path.name.lower() == ".git"
        silent = folder.only_chosen or all(
            entry.name.lower().endswith(NO_LOGS) for entry in entries
        )
        if closed and not silent:
            self.ignored.append(
                (
                    path,
                    "by its name a run's folder without logs; to read it, give its own path",
                )
            )
            logs = (entry for entry in entries if names.is_launched(entry.name))
            self.hidden += [
                (
                    Path(log.path),
                    _read_modified(log),
                    "a log in a folder that is not read",
                )
                for log in logs
            ]
        return closed

    def _is_inside_run(self, folder: Folder, files: Sequence[str]) -> bool:
        """Whether a folder is an experiment's, holds a launcher's log, or is below such
        a one and the given path."""
        if os.path.dirname(folder.text) in self._inside_runs and folder.text != str(
            folder.given_path
        ):
            return True
        typed = "".join(folder.parts[-2:-1]).lower() != "experiments"
        return names.read_experiment(folder.name, typed=typed) is not None or any(
            map(names.is_launched, files)
        )

    def _find_chosen(self, identity: FileId) -> frozenset[str]:
        return (
            frozenset(self._chosen[identity][1])
            if identity in self._chosen
            else frozenset()
        )


def _make_folder(path: Path, given_path: Path) -> Folder:
    return Folder(str(path), path.parts, given_path)


def _is_layout(name: str) -> bool:
    return name.lower() in LAYOUTS


def _is_kept(name: str) -> bool:
    return name.lower().endswith(KEPT) and not name.startswith(".")


def _is_mentioned(name: str) -> bool:
    if is_metrics(name):
        return True
    return _is_kept(name) or (
        RENAMED.fullmatch(name) is not None and not name.startswith(".")
    )


def _is_special(name: str) -> bool:
    """Whether a folder is called as one without logs, or as one of the profiler's
    reports."""
    return name.lower() in CLOSED or name.lower().startswith(PROFILES)


def _read_modified(entry: FolderEntry) -> float:
    """Return when a file was last written, 0 where that is not known: a report is
    evidence all the same."""
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _read_own_time(path: str) -> float:
    """Return when a link or a folder was written, 0 if unknown."""
    try:
        return os.lstat(path).st_mtime
    except (OSError, ValueError):  # a remote name may contain NUL
        return 0.0


def _is_listed(name: str) -> bool:
    """Whether a member of an archive is listed: what a folder is searched for, and
    scripts that may be a run's."""
    return (
        _is_mentioned(name)
        or _is_report(name)
        or name.endswith(SCRIPT)
        or is_marker(name)
    )


def _is_report(name: str) -> bool:
    return name.lower().endswith(REPORT)


def _identify(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _is_linked(path: Path) -> bool:
    return os.path.exists(path) and os.path.realpath(path) != str(
        path
    )  # which calls itself for each link of a chain


def _explain(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
