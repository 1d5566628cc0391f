"""List one archive, and read its texts in one pass."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import TRIALS_FILE
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.listing import Listing
from pytest_llmbench.logs.sources.tar import (
    FOLDER,
    HARD_LINK,
    LINK,
    ArchiveMember,
    TarReader,
)

# Names of archives that are opened when found in a folder.
NAME = compile_on_use(
    r".+\.(?:tar(?:\.(?:gz|zst|xz|bz2))?|tgz|tzst|txz|tbz2?)", re.IGNORECASE | re.DOTALL
)

# Size limit of a metadata file that is kept while the archive is listed, in bytes.
SMALL = 1 << 20

# Total size limit of the metadata files that are kept.
ALL_SMALL = 1 << 28

# Bytes per sample of a file that may be a log with another name, and of all samples.
# Samples are taken of the beginning, middle and end.
SAMPLE, ALL_SAMPLES = 1 << 15, 1 << 26

# Maximum number of folders with logs or metadata in an archive.
FOLDERS = 200_000

# Limits of a member's name: total characters, characters per component, and folders.
# Linux has no longer names, and runs are not nested deeper.
LONGEST, LONGEST_PART, DEPTH = 4096, 255, 64

SCRIPT = ".sh"
"""Suffix of scripts. Scripts that NeMo-Run submitted and ran are kept."""

_METADATA = (".yaml", ".yml", SCRIPT, TRIALS_FILE)

# A launch's folder has a time in its name. It is listed even if it contains no file,
# since its log is missing then.
_LAUNCH = compile_on_use(r"\d{8}")

Notes = list[tuple[Path, str]]


class Archive(Struct):
    """An archive whose members have paths under its own path.

    The paths are those of an archive unpacked in its place.
    """

    path: Path
    # Called once for the list, and once for all requested texts.
    open_blocks: Callable[[], Iterable[bytes]]
    listing: Listing
    # True if a file of this name is listed.
    is_wanted: Callable[[str], bool]
    # True if the text of a file of this name decides whether it is a log.
    is_sampled: Callable[[str], bool] = lambda _: False
    ignored: Notes = field(default_factory=list)
    unreadable: Notes = field(default_factory=list)
    # The member number of each listed file.
    _numbers: dict[Path, int] = field(default_factory=dict)
    _launch_folders: list[Path] = field(default_factory=list)
    # The texts of metadata files.
    _small: dict[Path, bytes] = field(default_factory=dict)
    _small_size: int = 0
    _samples: dict[Path, tuple[bytes, ...]] = field(default_factory=dict)
    _samples_size: int = 0
    # The files that only `is_sampled` selects.
    _possible_logs: dict[Path, ArchiveMember] = field(default_factory=dict)

    def list(self) -> Path:
        """List all members. Returns the folder that represents the archive.

        This is the archive's path, or the only folder at its top. Problems are recorded
        in `unreadable`; members before a problem are listed.
        """
        stream = Stream(self.open_blocks(), self.path)
        try:
            reader = TarReader(stream)  # opens the file
        except LogError as error:
            self.unreadable.append((self.path, str(error)))
            return self.listing.root
        self._list_members(stream, reader)
        # Possible logs determine the top folder only if there are no other files.
        if not self._numbers:
            self._list_possible_logs()
        top = self.listing.find_top()
        self._list_possible_logs()
        has_findings = (
            self._numbers or self._launch_folders or self.ignored or self.unreadable
        )
        if not has_findings:
            note = "an archive without a file named like a log"
            self.ignored.append((self.path, note))
        # After finding the top, which empty folders must not affect.
        for folder in self._launch_folders:
            self.listing.add_folder(folder)
        return top

    def _list_members(self, stream: Stream, reader: TarReader) -> None:
        """List the members up to the first damage; record damage and duplicates."""
        last: ArchiveMember | None = None
        last_path: Path | None = None
        counts: Counter[Path] = Counter()
        problem = ""
        try:
            for member in reader.read_members():
                # The member before is complete, since its end was reached.
                self._list_member(last, last_path, counts)
                last, last_path = member, _locate_member(self.path, member)
                self._keep_text(member, last_path, reader)
            self._list_member(last, last_path, counts)
            if reader.has_trailing_data:
                problem = (
                    "has data after its end, which are not read: pack the archive again"
                )
            elif last is None:
                problem = "contains no member: the archive is empty, or its data were replaced by zeros"
        except LogError as error:
            state = (
                "the archive is truncated or still being written"
                if stream.is_truncated
                else "the archive is truncated or damaged"
            )
            position = f" after {_shorten(last.name)}" if last else " at its beginning"
            consequence = (
                "the complete members before are read" if last else "nothing is read"
            )
            problem = f"{state}{position}: {error}; {consequence}"
        if problem:
            self.unreadable.append((self.path, problem))
        if stream.is_truncated and not self.unreadable:
            problem = f"the {stream.method} data are truncated: copy the archive again"
            self.unreadable.append((self.path, problem))
        for path, count in counts.items():
            if count > 1:
                note = f"occurs {count} times in {self.path.name}: the last copy counts"
                self.ignored.append((path, note))

    def read_metadata(self, path: Path, limit: int) -> bytes:
        """Return the first `limit` bytes of a metadata file.

        Raises LogError if the file was too large to be kept.
        """
        if path not in self._small:
            raise LogError(
                f"cannot be read: larger than {SMALL} bytes, or the archive contains too many metadata files"
            )
        return self._small[path][:limit]

    def read_samples(self, path: Path) -> tuple[bytes, ...]:
        """Return the beginning, middle and end of a file that may be a log.

        Raises LogError if the samples were not kept.
        """
        if path not in self._samples:
            raise LogError(
                f"cannot be read: more than {ALL_SAMPLES} bytes of samples in the archive"
            )
        return self._samples[path]

    def read(self, requested: Collection[Path]) -> Iterator[tuple[Path, Stream]]:
        """Yield the texts of the requested files in archive order.

        Read each text before requesting the next. Raises LogError if the archive is
        truncated or changed since it was listed.
        """
        by_number = {self._numbers[path]: path for path in requested}
        if not by_number:
            return
        last = max(by_number)
        reader = TarReader(Stream(self.open_blocks(), self.path))
        for member in reader.read_members():
            path = by_number.get(member.number)
            if path is not None:
                if _locate_member(self.path, member) != path:
                    raise LogError(
                        f"{self.path}: changed while it was read (another member replaced {path.name})"
                    )
                yield path, Stream(reader.read_data(), path)
            if member.number == last:
                return

    def _keep_text(
        self, member: ArchiveMember, path: Path | None, reader: TarReader
    ) -> None:
        """Keep the text of a metadata file, or samples of a possible log.

        The texts are needed before the logs are known. `path` is the member's path,
        None if unsafe.
        """
        if path is None or not member.is_file:
            return
        if self.is_sampled(path.name):
            self._keep_samples(path, member.size, reader)
            return
        if not member.name.lower().endswith(_METADATA):
            return
        self._small.pop(path, None)
        self._small_size += member.size
        if member.size <= SMALL and self._small_size <= ALL_SMALL:
            self._small[path] = b"".join(reader.read_data())

    def _keep_samples(self, path: Path, size: int, reader: TarReader) -> None:
        """Keep the beginning, middle and end of a file, unless all samples get too large.

        `size` is the size of the file in bytes.
        """
        last_begin = max(0, size - SAMPLE)
        # offset of each sample in the file to its bytes
        samples = dict.fromkeys(sorted({0, last_begin // 2, last_begin}), b"")
        self._samples_size += min(size, len(samples) * SAMPLE)
        if self._samples_size > ALL_SAMPLES:
            return
        offset = 0  # of the block in the file
        for block in reader.read_data():
            for begin, kept in samples.items():
                # the bytes of the block that this sample still lacks
                missing_begin = max(0, begin + len(kept) - offset)
                missing_end = max(0, begin + SAMPLE - offset)
                samples[begin] += block[missing_begin:missing_end]
            offset += len(block)
        self._samples[path] = tuple(samples.values())

    def _list_possible_logs(self) -> None:
        """Add to the listing the files that may be logs with an unusual name."""
        for path, member in self._possible_logs.items():
            if len(self.listing) > FOLDERS:
                self.unreadable.append((self.path, _describe_folder_limit()))
                break
            if self.listing.add(path, max(member.modified, 0.0)):
                self._numbers[path] = member.number
        self._possible_logs.clear()

    def _list_member(
        self, member: ArchiveMember | None, path: Path | None, counts: Counter[Path]
    ) -> None:
        """List a member that was read completely, or record why it is not listed.

        `path` is the member's path, None if unsafe. Counts the copies of a listed file
        in `counts`.
        """
        if member is None or member.kind == "label":
            return
        if member.kind == FOLDER:
            self._add_launch_folder(path)
            return
        is_link = member.kind in (HARD_LINK, LINK)
        if path is None:
            shown_path = self.path / "..." / _shorten(PurePosixPath(member.name).name)
            self._skip_member(
                shown_path,
                member,
                "the name points outside the archive, or is not a file name",
            )
        elif not member.is_file:
            target = f" to {_shorten(member.target)}" if member.target else ""
            reason = f"a {member.kind}{target} in an archive: not followed"
            replaces_file = path in self._numbers
            if replaces_file:
                reason += ", though it replaces a file"
            self._skip_member(
                path, member, reason, ignored=is_link and not replaces_file
            )
        elif not self.is_wanted(path.name):
            if self.is_sampled(path.name):  # listed later, see `list`
                self._possible_logs[path] = member
        elif len(self.listing) > FOLDERS:
            raise LogError(_describe_folder_limit())
        elif not self.listing.add(path, max(member.modified, 0.0)):
            self._skip_member(path, member, "is a file and a folder in the archive")
        else:
            self._numbers[path] = member.number
            counts[path] += 1

    def _add_launch_folder(self, path: Path | None) -> None:
        """Remember a folder that is named like a launch's folder."""
        if path is not None and _LAUNCH.search(path.name):
            if len(self._launch_folders) >= FOLDERS:
                raise LogError(_describe_folder_limit())
            self._launch_folders.append(path)

    def _skip_member(
        self, path: Path, member: ArchiveMember, reason: str, *, ignored: bool = False
    ) -> None:
        """Record a member that is not read, with the reason.

        A member that may be a log is recorded in `self.unreadable`, other members in
        `self.ignored`. With `ignored`, it is recorded there whatever its name.
        """
        may_be_log = self.is_wanted(PurePosixPath(member.name).name) and not ignored
        (self.unreadable if may_be_log else self.ignored).append((path, reason))


def _describe_folder_limit() -> str:
    """Describe why nothing more of an archive with too many folders is listed."""
    return f"more than {FOLDERS:,} folders with files, so the newest run may be missing: give --llmb-logs fewer"


def find_archive(path: Path) -> Path | None:
    """Return the nearest existing parent of a path if it is a file (an archive)."""
    for folder in path.parents:
        if os.path.exists(folder):
            return folder if os.path.isfile(folder) else None
    return None


def read_unlisted(
    path: Path, blocks: Iterable[bytes], wanted: Collection[Path]
) -> Iterator[tuple[Path, Iterator[bytes]]]:
    """Yield the wanted files of an archive that was not listed, in archive order.

    `blocks` are the decompressed bytes of the archive. Read each file's bytes before
    requesting the next file. A file that occurs several times is yielded each time; the
    last copy counts. Raises LogError if the archive is truncated.
    """
    reader = TarReader(blocks)
    for member in reader.read_members():
        member_path = _locate_member(path, member)
        if member_path is not None and member_path in wanted and member.is_file:
            yield member_path, reader.read_data()


def _locate_member(archive: Path, member: ArchiveMember) -> Path | None:
    """Return a member's path under the archive's path, None if unsafe."""
    components = [
        component for component in member.name.split("/") if component not in ("", ".")
    ]
    points_outside = member.name.startswith("/") or ".." in components
    if points_outside or "\0" in member.name or not 0 < len(components) <= DEPTH:
        return None
    if len(member.name) > LONGEST or max(map(len, components)) > LONGEST_PART:
        return None
    return archive.joinpath(*components)


def _shorten(name: str) -> str:
    """Return a name in at most 80 characters: a long name loses its beginning."""
    return name if len(name) <= 80 else f"...{name[-77:]}"
