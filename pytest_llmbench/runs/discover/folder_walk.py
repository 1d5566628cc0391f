"""Walk the given paths and list the files in each folder.

Opens no log, never raises, and has a fixed order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from errno import EFBIG, ELOOP, ENOENT
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.userfile import links_to_ancestor
from pytest_llmbench.logs.sources.archive import SCRIPT
from pytest_llmbench.logs.sources.listing import FolderEntry, describe_limit
from pytest_llmbench.logs.sources.stores import Stores, has_archive_name
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.metrics_files import is_metrics
from pytest_llmbench.runs.discover.unfinished_files import find_unfinished
from pytest_llmbench.runs.layouts.trial_markers import TrialMarkers, is_marker

# Folders of a run that contain no logs; profiler reports in them are evidence, though.
# Outside of a run (`code/experiments/...`) these names have no meaning.
CLOSED = ("configs", "code", "checkpoints", "nsys_profile", ".git")

# Folders that contain runs: a folder that contains one of them is not part of a run.
LAYOUTS = ("results", "experiments", "workloads")

# A closed folder that contains only such files is not reported.
NO_LOGS = (".yaml", ".yml", ".json")

REPORT = ".nsys-rep"
# Prefix of the folders for profiler reports (`nsys`, `nsys_profile`).
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

# Suffixes of nearly all files that are read: these are not renamed logs.
READ_ENDS = (*LOGS, ".gz")

# Renamed logs (`.out.lz4`, `.out.1`, `.out.bak`): not read, but reported.
RENAMED = compile_on_use(r".+\.(?:out|log)\.\w{1,9}", re.IGNORECASE | re.DOTALL)

# Limit of folders to read; so many take a minute and half a gigabyte of memory.
MOST_FOLDERS = 1_000_000

Note = tuple[Path, str]
"""A path, with the reason for which it is not read."""

FileId = int
"""The device and inode of a file or folder, as one number."""

_INODE_BITS = 64


class WalkedFile(NamedTuple):
    """One file in a folder."""

    name: str
    modified: float  # epoch seconds
    identity: FileId


class _SortedNames(NamedTuple):
    """The files of one folder, sorted by their names."""

    files: list[WalkedFile]
    unnamed: list[str]  # files that may be logs despite their names
    links: list[str]  # those of `files` that are links

    def add_file(self, file: WalkedFile, *, is_link: bool) -> None:
        """Add a log, metadata, metrics or chosen file."""
        self.files.append(file)
        if is_link:
            self.links.append(file.name)


class _ChosenFiles(NamedTuple):
    """A folder, and the names of the files in it that were given by name."""

    folder: Path
    names: set[str]


_NO_NAMES: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Folder:
    """One folder and its files.

    A search keeps each folder, so its fields are slots, tuples and shared values.
    """

    # The path as text and as components: only few of thousands of folders need a Path.
    text: str
    parts: tuple[str, ...]
    given_path: Path  # the given path that led to the folder
    files: tuple[WalkedFile, ...] = ()
    # files that may be logs despite their names
    unnamed: tuple[str, ...] = ()
    links: frozenset[str] = _NO_NAMES  # those of `files` that are links
    chosen: frozenset[str] = _NO_NAMES  # the files that were given by name
    only_chosen: bool = False  # True if only the chosen files were requested
    _path: Path | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.parts[-1] if self.parts else ""

    @property
    def relative_names(self) -> tuple[str, ...]:
        """The names of the path, starting with the given folder's."""
        return (self.given_path.name, *self.parts[len(self.given_path.parts) :])

    @property
    def path(self) -> Path:
        """The folder's path."""
        if self._path is None:
            self._path = Path(self.text)
        return self._path


@dataclass(slots=True)
class Walk:
    """The result of a walk: folders (links and archives last), and skipped or
    unreadable paths."""

    stores: Stores = field(default_factory=Stores)
    opens_archives: bool = False  # if False, archives are ordinary files
    # called with the path and the size in bytes of each file named like a log, except
    # for links and for files in archives or on other machines
    on_log: Callable[[str, int], None] | None = None
    folders: list[Folder] = field(default_factory=list)
    ignored: list[Note] = field(default_factory=list)
    unreadable: list[Note] = field(default_factory=list)
    # Profiler reports by path, with their modification times (epoch seconds).
    reports: dict[str, float] = field(default_factory=dict)
    # logs under names that are not read, and broken links: modification time (epoch
    # seconds) and description
    hidden: list[tuple[Path, float, str]] = field(default_factory=list)
    trial_markers: TrialMarkers = field(init=False)
    # given paths, and folders of given files, that are reached by a link
    linked: set[Path] = field(default_factory=set)
    # given files, by the identity of their folder
    _chosen: dict[FileId, _ChosenFiles] = field(default_factory=dict)
    _seen: set[FileId] = field(default_factory=set)  # folders that were read
    _inside_runs: set[str] = field(default_factory=set)  # a run's folders and below
    # archives to open after the folders, with the given path that led to each
    _archives: dict[Path, Path] = field(default_factory=dict)
    _opened: set[FileId] = field(default_factory=set)  # archives that were opened
    # files that may be logs under another name
    _skipped_entries: list[FolderEntry] = field(default_factory=list)
    _full: bool = False  # True if the limit of folders was reached

    def __post_init__(self) -> None:
        self.trial_markers = TrialMarkers(self.stores)

    def run(self, paths: Sequence[Path]) -> Walk:
        """Read each folder under the paths once, and the folders of given files.

        Returns the walk itself.
        """
        absolute_paths = {self.stores.resolve_path(path) for path in paths}
        for path in absolute_paths:
            self.linked.update(filter(_is_linked, (path, path.parent)))
        # real folders first, and outer before inner folders
        ordered_paths = sorted(
            absolute_paths,
            key=lambda path: (path in self.linked, len(path.parts), path),
        )
        links = []
        for root in self._find_roots(ordered_paths):
            links += self._read_tree(_make_folder(root, root))
        while links:  # links come last: real folders name their runs
            links = self._follow(links)
        for path, given_path in self._archives.items():
            self._unpack(path, given_path)
        # given files in folders that were not read
        for identity, chosen in self._chosen.items():
            if identity not in self._seen:
                folder = _make_folder(chosen.folder, chosen.folder)
                folder.chosen = self._get_chosen_names(identity)
                folder.only_chosen = True
                self._scan(folder)
        # only the walk itself needs these
        self._seen.clear()
        self._inside_runs.clear()
        return self

    def _find_roots(self, paths: Sequence[Path]) -> list[Path]:
        """Return the given folders; remember the given files and archives.

        Records unreadable paths.
        """
        roots = []
        for path in paths:
            try:
                if S_ISDIR(self.stores.stat(path).st_mode):
                    roots.append(path)
                elif self.opens_archives and self.stores.is_archive(path):
                    self._archives[path] = path
                else:
                    identity = identify_file(self.stores.stat(path.parent))
                    chosen = self._chosen.setdefault(
                        identity, _ChosenFiles(path.parent, set())
                    )
                    chosen.names.add(path.name)
            except OSError as error:
                self.unreadable.append((path, _describe_error(error)))
        return roots

    def _follow(self, links: Sequence[Path]) -> list[Path]:
        """Read the folders that links lead to, outer folders first.

        Returns the links found in these folders. Records links to folders that are read
        already as ignored.
        """
        further_links = []
        targets = {link: Path(os.path.realpath(link)) for link in links}
        for link in sorted(links, key=lambda link: (len(targets[link].parts), link)):
            target = targets[link]
            if links_to_ancestor(link):
                self.ignored.append(
                    (link, "a link to a folder that contains the link itself")
                )
            elif self._is_seen(target):
                self.ignored.append((link, "a link to a folder that is read already"))
            else:
                # the target of a link in a run's folder belongs to the run, too
                if str(link.parent) in self._inside_runs:
                    self._inside_runs.add(str(target))
                further_links += self._read_tree(_make_folder(target, target))
        return further_links

    def _is_seen(self, path: Path) -> bool:
        """True if the folder at a path was read."""
        try:
            return identify_file(self.stores.stat(path)) in self._seen
        except OSError:  # reading it will report the error
            return False

    def _read_tree(self, root: Folder) -> list[Path]:
        """Read a folder recursively; return the links to folders in it."""
        links = []
        waiting = [root]
        while waiting and not self._full:
            folder = waiting.pop()
            try:
                identity = identify_file(self.stores.stat(folder.text))
            except OSError as error:
                self._record_unreadable_folder(folder, error)
                continue
            if identity not in self._seen:
                self._seen.add(identity)
                folder.chosen = self._get_chosen_names(identity)
                subfolders, folder_links = self._scan(folder)
                waiting += reversed(subfolders)
                links += folder_links
        return links

    def _record_unreadable_folder(self, folder: Folder, error: OSError) -> None:
        """Record an unreadable folder; end the walk at the limit of folders.

        The message about the limit is recorded for the first folder beyond it.
        """
        problem = _describe_error(error)
        if error.errno == EFBIG:  # the limit of folders
            self._full = True
            problem = str(error.strerror)
        self.unreadable.append((folder.path, problem))

    def _scan(self, folder: Folder) -> tuple[list[Folder], list[Path]]:
        """Read the entries of one folder; return its subfolders and its links to
        folders."""
        subfolders: list[Folder] = []
        links: list[Path] = []
        try:
            if len(self.folders) >= MOST_FOLDERS:
                raise OSError(EFBIG, describe_limit(MOST_FOLDERS, "folders"))
            entries = self.stores.scan(folder.text)
        except OSError as error:
            self._record_unreadable_folder(folder, error)
            return [], []
        self.folders.append(folder)
        self.trial_markers.add_folder(
            folder.text, (entry.path for entry in entries if is_marker(entry.name))
        )
        entry_names = [entry.name for entry in entries]
        if self._is_inside_run(folder, entry_names):
            self._inside_runs.add(folder.text)
        sorted_names = _SortedNames([], [], [])
        for entry in entries:
            try:
                if not entry.is_dir():
                    self._add_file(folder, entry, sorted_names)
                    continue
                is_closed = _is_special(entry.name) and self._collect_closed_folder(
                    folder, Path(entry.path)
                )
                if is_closed:
                    continue
                if entry.is_symlink():
                    links.append(Path(entry.path))
                else:
                    parts = (*folder.parts, entry.name)
                    subfolders.append(Folder(entry.path, parts, folder.given_path))
            except OSError as error:
                if folder.only_chosen and entry.name not in folder.chosen:
                    continue  # other files next to a given file were not requested
                self._record_unreadable_entry(entry, error)
        folder.files = tuple(sorted_names.files)
        folder.unnamed = tuple(sorted_names.unnamed)
        folder.links = frozenset(sorted_names.links) or _NO_NAMES
        self._record_unfinished_files(folder, entry_names)
        return subfolders, links

    def _record_unreadable_entry(self, entry: FolderEntry, error: OSError) -> None:
        """Record an entry of a folder as unreadable, or as ignored if it is a broken
        link without a log's name."""
        path = Path(entry.path)
        note = (path, _describe_error(error))
        if error.errno in (ENOENT, ELOOP) and not _is_kept(entry.name):
            self.ignored.append(note)
            self.hidden.append((path, _read_link_time(entry.path), "a broken link"))
        else:
            self.unreadable.append(note)

    def _hide_path(self, path: str, reason: str) -> None:
        """Record a path as ignored and hidden: named like a log, but not a file.

        The log of a newer run may be missing in its place.
        """
        self.ignored.append((Path(path), reason))
        self.hidden.append((Path(path), _read_link_time(path), reason))

    def _record_unfinished_files(
        self, folder: Folder, entry_names: Collection[str]
    ) -> None:
        """Record unfinished transfers, renamed logs, and an empty folder named like a
        log.

        Examines, then clears, the entries of the folder that `_add_file` skipped.
        """
        if (
            not entry_names
            and _is_notable(folder.name)
            and folder.path not in self._archives
        ):
            # containers create such a folder in order to mount a file
            self._hide_path(folder.text, "an empty folder in place of a file")
        entries = {
            entry.name: entry
            for entry in self._skipped_entries
            if not is_marker(entry.name)
        }
        self._skipped_entries.clear()
        if not entries or folder.only_chosen:
            return
        description = "a log by its name, except for its suffix"
        for name in find_unfinished(entries, entry_names):
            entry = entries[name]
            self.hidden.append((Path(entry.path), _read_modified(entry), description))

    def _unpack(self, path: Path, given_path: Path) -> None:
        """Read an archive as if its folders were at its path.

        `given_path` is the path of the archive, or of the given folder that contains
        the archive.
        """
        try:
            identity = identify_file(self.stores.stat(path))
        except OSError as error:
            self.unreadable.append((path, _describe_error(error)))
            return
        if identity in self._opened:
            self.ignored.append(
                (path, "another name of an archive that is read already")
            )
            return
        self._opened.add(identity)
        archive, root = self.stores.open_archive(path, _is_listed, names.may_be_log)
        self.ignored += archive.ignored
        self.unreadable += archive.unreadable
        is_given = given_path == path
        self._read_tree(_make_folder(root, root if is_given else given_path))

    def _remember_archive(self, folder: Folder, path: Path) -> None:
        """Remember an archive found in a folder, to open it after the folders.

        An archive of a run's code, or inside another archive, is recorded as ignored
        instead.
        """
        if folder.text in self._inside_runs:
            self.ignored.append(
                (
                    path,
                    "an archive in a run's folder is taken for its code; to read it, give its own path",
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

    def _add_file(
        self, folder: Folder, entry: FolderEntry, sorted_names: _SortedNames
    ) -> None:
        """Sort a file into logs, reports, archives, skipped and unreadable files.

        A chosen file was given by name and is always read. In a folder with
        `only_chosen`, other files are not read. A notable file has the name of a log,
        metadata, metrics file or archive, or of a renamed log. Raises OSError for a
        broken link, whatever its name.
        """
        name = entry.name
        if _is_report(name):
            self.reports[entry.path] = _read_modified(entry)
            return
        chosen = name in folder.chosen
        notable = _is_notable(name)
        link = entry.is_symlink()
        if not notable and not folder.only_chosen and names.may_be_log(name):
            sorted_names.unnamed.append(name)
        # skipped entries are searched for unfinished and renamed logs later
        if not (chosen or notable or link):
            self._skipped_entries.append(entry)
            return
        # a notable file without a log's suffix may be a renamed log, too
        if not (chosen or name.endswith(READ_ENDS)):
            self._skipped_entries.append(entry)
        status = entry.stat()
        if not S_ISREG(status.st_mode):
            if chosen:
                self.unreadable.append((Path(entry.path), "not a regular file"))
            elif not folder.only_chosen:
                self._hide_path(entry.path, "not a regular file")
        elif not chosen and self._is_archive_to_open(folder, name):
            self._remember_archive(folder, Path(entry.path))
        elif chosen or notable:
            file = WalkedFile(name, status.st_mtime, identify_file(status))
            sorted_names.add_file(file, is_link=link)
            self._report_log(entry, status.st_size)

    def _report_log(self, entry: FolderEntry, size: int) -> None:
        """Call `on_log` for a file of this machine that is named like a log.

        Links are left out: the file itself may be found, too.
        """
        if (
            self.on_log
            and not entry.is_symlink()
            and names.is_log_name(entry.name.lower())
            and self.stores.is_surely_local(entry.path)
        ):
            self.on_log(entry.path, size)

    def _is_archive_to_open(self, folder: Folder, name: str) -> bool:
        """True if a file is an archive that the walk opens."""
        return (
            self.opens_archives
            and not folder.only_chosen
            and has_archive_name(name)
            and _is_kept(name)
        )

    def _collect_closed_folder(self, folder: Folder, path: Path) -> bool:
        """Collect profiler reports from a folder that should contain no logs, by its
        name.

        Returns True if the folder is closed: the walk must not descend into it. Such a
        folder is part of a run and does not contain other runs. Records the folder as
        ignored, and logs in it as hidden.
        """
        entries = self.stores.scan(path)
        self.reports |= {
            entry.path: _read_modified(entry)
            for entry in entries
            if _is_report(entry.name)
        }
        if path.name.lower() not in CLOSED:
            return False
        contains_layout = any(_is_layout(entry.name) for entry in entries)
        # `code/experiments/...` is a folder of runs, unless it is in a layout already
        is_in_layout = any(map(_is_layout, folder.relative_names))
        contains_runs = contains_layout and not is_in_layout
        is_in_run = folder.text in self._inside_runs
        is_closed = path.name.lower() == ".git" or (is_in_run and not contains_runs)
        has_no_logs = all(entry.name.lower().endswith(NO_LOGS) for entry in entries)
        if is_closed and not (folder.only_chosen or has_no_logs):
            self.ignored.append(
                (
                    path,
                    "by its name a run's folder without logs; to read it, give its own path",
                )
            )
            for entry in entries:
                if names.is_launched(entry.name):
                    self.hidden.append(
                        (
                            Path(entry.path),
                            _read_modified(entry),
                            "a log in a folder that is not read",
                        )
                    )
        return is_closed

    def _is_inside_run(self, folder: Folder, entry_names: Sequence[str]) -> bool:
        """True if a folder is an experiment's, contains a launched log, or is inside
        such a folder.

        Parents of the given path do not count.
        """
        is_given = folder.text == str(folder.given_path)
        if not is_given and os.path.dirname(folder.text) in self._inside_runs:
            return True
        parent_name = folder.parts[-2] if len(folder.parts) > 1 else ""
        # below `experiments`, `pretrain_` is optional in an experiment's name
        typed = parent_name.lower() != "experiments"
        if names.read_experiment(folder.name, typed=typed) is not None:
            return True
        return any(map(names.is_launched, entry_names))

    def _get_chosen_names(self, identity: FileId) -> frozenset[str]:
        """Return the names of the given files in a folder."""
        chosen = self._chosen.get(identity)
        return frozenset(chosen.names) if chosen else _NO_NAMES


def _make_folder(path: Path, given_path: Path) -> Folder:
    return Folder(str(path), path.parts, given_path)


def _is_layout(name: str) -> bool:
    """True if a folder of this name contains runs."""
    return name.lower() in LAYOUTS


def _is_kept(name: str) -> bool:
    """True if a file has a suffix of logs, metadata or archives and is not hidden."""
    return name.lower().endswith(KEPT) and not name.startswith(".")


def _is_notable(name: str) -> bool:
    """True if a file is kept, a metrics file, or a renamed log."""
    if is_metrics(name) or _is_kept(name):
        return True
    return not name.startswith(".") and RENAMED.fullmatch(name) is not None


def _is_special(name: str) -> bool:
    """True if a folder may be log-free by its name, or contain profiler reports."""
    return name.lower() in CLOSED or name.lower().startswith(PROFILES)


def _read_modified(entry: FolderEntry) -> float:
    """Return the modification time of a file, 0 if unknown.

    A report without a time is evidence, too.
    """
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _read_link_time(path: str) -> float:
    """Return the modification time of a link or folder itself, 0 if unknown."""
    try:
        return os.lstat(path).st_mtime
    except (OSError, ValueError):  # remote names may contain NUL
        return 0.0


def _is_listed(name: str) -> bool:
    """True if the member of an archive is relevant: searched for, or possibly a run's
    script."""
    return (
        _is_notable(name)
        or _is_report(name)
        or name.endswith(SCRIPT)
        or is_marker(name)
    )


def _is_report(name: str) -> bool:
    return name.lower().endswith(REPORT)


def identify_file(status: os.stat_result) -> FileId:
    """Return the same id for all names of a file or folder."""
    return (status.st_dev << _INODE_BITS) + status.st_ino


def _is_linked(path: Path) -> bool:
    """True if a path exists and is, or leads through, a link."""
    # realpath recurses for each link of a chain
    return os.path.exists(path) and os.path.realpath(path) != str(path)


def _describe_error(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
