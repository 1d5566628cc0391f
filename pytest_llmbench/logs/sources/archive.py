"""One archive among the given files: what is in it, and its texts in one pass."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import TRIALS_FILE
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.listing import Listing
from pytest_llmbench.logs.sources.tar import (
    FOLDER,
    HARD_LINK,
    LINK,
    ArchiveMember,
    Reel,
)

# Names of archives that are opened where they are met in a folder.
NAME = re.compile(
    r".+\.(?:tar(?:\.(?:gz|zst|xz|bz2))?|tgz|tzst|txz|tbz2?)", re.IGNORECASE | re.DOTALL
)

# Bytes of the largest metadata file that is kept while the archive is listed.
SMALL = 1 << 20

# Bytes of all metadata files that are kept.
ALL_SMALL = 1 << 28

# Bytes of the beginning, the middle and the end of a file that may be a log under
# another name, and of all of them.
SAMPLE, ALL_SAMPLES = 1 << 15, 1 << 26

# Folders with logs or metadata that an archive may have.
FOLDERS = 200_000

# Characters of a member's name and of each folder in it, and folders: Linux has no
# longer ones, and no run lies deeper.
LONGEST, LONGEST_PART, DEPTH = 4096, 255, 64

SCRIPT = ".sh"
"""How the names of scripts end, of which those are kept that NeMo-Run submitted and
ran."""

_METADATA = (".yaml", ".yml", SCRIPT, TRIALS_FILE)

# What the name of a launch's folder holds, a time: it is listed although it may hold no
# file, since then its log is missing.
_LAUNCH = re.compile(r"\d{8}")

Notes = list[tuple[Path, str]]


@dataclass(slots=True)
class Archive:
    """An archive whose members stand below its own path, as if they were unpacked
    there."""

    path: Path
    open_blocks: Callable[
        [], Iterable[bytes]
    ]  # called once for the list, and once for all texts that are wanted
    listing: Listing
    wanted: Callable[[str], bool]  # by the name of a file: whether it is listed
    sampled: Callable[[str], bool] = lambda _: (
        False
    )  # by the name: whether its text shows whether it is a log
    ignored: Notes = field(default_factory=list)
    unreadable: Notes = field(default_factory=list)
    _numbers: dict[Path, int] = field(default_factory=dict)
    _launches: list[Path] = field(default_factory=list)
    _small: dict[Path, bytes] = field(default_factory=dict)
    _small_size: int = 0
    _samples: dict[Path, tuple[bytes, ...]] = field(default_factory=dict)
    _samples_size: int = 0
    _unnamed: dict[Path, ArchiveMember] = field(
        default_factory=dict
    )  # those that `sampled` alone names

    def list(self) -> Path:
        """List all members, and return the folder that represents the archive: its own
        path, or the only folder at its top.

        Problems are recorded in `unreadable`; members before them are listed.
        """
        stream = Stream(self.open_blocks(), self.path)
        try:
            reel = Reel(stream)  # which opens the file
        except LogError as error:
            self.unreadable.append((self.path, str(error)))
            return self.listing.root
        self._list_members(stream, reel)
        if (
            not self._numbers
        ):  # what has no known name makes the top only if nothing else is there
            self._list_unnamed()
        top = self.listing.find_top()
        self._list_unnamed()
        if not (self._numbers or self._launches or self.ignored or self.unreadable):
            self.ignored.append(
                (self.path, "an archive without a file that is called as a log")
            )
        for (
            folder
        ) in self._launches:  # behind the top: what holds no file does not make it
            self.listing.add_folder(folder)
        return top

    def _list_members(self, stream: Stream, reel: Reel) -> None:
        """List the members as far as the archive is whole, and note what is wrong with
        it."""
        last: ArchiveMember | None = None
        counts: Counter[Path] = Counter()
        try:
            for member in reel.read_members():
                self._take(last, counts)
                last = member
                self._keep(member, reel)
            self._take(last, counts)
            if reel.trailing:
                self.unreadable.append(
                    (
                        self.path,
                        "has more behind its end, which is not read: pack it again",
                    )
                )
            elif last is None:
                self.unreadable.append(
                    (
                        self.path,
                        "holds no member: it is empty, or zeros took the place of its data",
                    )
                )
        except LogError as error:
            why = (
                "the archive is cut or still being written"
                if stream.cut
                else "the archive is cut or damaged"
            )
            behind = f" behind {_shorten(last.name)}" if last else " at its beginning"
            consequence = (
                "what was whole before that counts" if last else "nothing of it is read"
            )
            self.unreadable.append(
                (self.path, f"{why}{behind}: {error}; {consequence}")
            )
        if stream.cut and not self.unreadable:
            self.unreadable.append(
                (
                    self.path,
                    f"the {stream.method} data end before their end: copy it again",
                )
            )
        for path, count in counts.items():
            if count > 1:
                self.ignored.append(
                    (
                        path,
                        f"stands {count} times in {self.path.name}: the last one counts",
                    )
                )

    def read_small(self, path: Path, limit: int) -> bytes:
        """Return the first bytes of a metadata file, at most `limit`; LogError where it
        is too large to be one."""
        if path not in self._small:
            raise LogError(
                f"cannot be read: larger than {SMALL} bytes, or too many of its kind in the archive"
            )
        return self._small[path][:limit]

    def read_samples(self, path: Path) -> tuple[bytes, ...]:
        """Return the beginning, the middle and the end of a file that may be a log;
        LogError if they were not kept."""
        if path not in self._samples:
            raise LogError(
                f"cannot be read: more than {ALL_SAMPLES} bytes of samples in the archive"
            )
        return self._samples[path]

    def read(self, wanted: Collection[Path]) -> Iterator[tuple[Path, Stream]]:
        """Yield the texts of the wanted files in the order of the archive, each to be
        read before the next.

        Raises LogError where the archive ends early or is another one than was listed.
        """
        by_number = {self._numbers[path]: path for path in wanted}
        if not by_number:
            return
        last = max(by_number)
        reel = Reel(Stream(self.open_blocks(), self.path))
        for member in reel.read_members():
            path = by_number.get(member.number)
            if path is not None and _place_below(self.path, member) != path:
                raise LogError(
                    f"{self.path}: changed while it was read (another member has the place of {path.name})"
                )
            if path is not None:
                yield path, Stream(reel.read_data(), path)
            if member.number == last:
                return

    def _keep(self, member: ArchiveMember, reel: Reel) -> None:
        """Keep the text of a metadata file, and samples of other names: they are needed
        before the logs are known."""
        place = _place_below(self.path, member)
        if place is None or not member.is_file:
            return
        if self.sampled(place.name):
            self._keep_samples(place, member.size, reel)
            return
        if not member.name.lower().endswith(_METADATA):
            return
        self._small.pop(place, None)
        self._small_size += member.size
        if member.size <= SMALL and self._small_size <= ALL_SMALL:
            self._small[place] = b"".join(reel.read_data())

    def _keep_samples(self, place: Path, size: int, reel: Reel) -> None:
        last = max(0, size - SAMPLE)
        samples = dict.fromkeys(sorted({0, last // 2, last}), b"")
        self._samples_size += min(size, len(samples) * SAMPLE)
        if self._samples_size > ALL_SAMPLES:
            return
        position = 0
        for block in reel.read_data():
            for begin, kept in samples.items():
                samples[begin] += block[
                    max(0, begin + len(kept) - position) : max(
                        0, begin + SAMPLE - position
                    )
                ]
            position += len(block)
        self._samples[place] = tuple(samples.values())

    def _list_unnamed(self) -> None:
        """List the files that may be logs under another name."""
        for place, member in self._unnamed.items():
            if len(self.listing) > FOLDERS:
                self.unreadable.append((self.path, _describe_folders()))
                break
            if self.listing.add(place, max(member.modified, 0.0)):
                self._numbers[place] = member.number
        self._unnamed.clear()

    def _take(self, member: ArchiveMember | None, counts: Counter[Path]) -> None:
        """List a member that was read to its end, or note why it is not."""
        if member is None or member.kind == "label":
            return
        place = _place_below(self.path, member)
        if member.kind == FOLDER:
            self._take_folder(place)
            return
        link = member.kind in (HARD_LINK, LINK)
        if place is None:
            named = self.path / "..." / _shorten(PurePosixPath(member.name).name)
            self._leave(
                named,
                member,
                "its name leads out of the archive, or is no name of a file",
            )
        elif not member.is_file:
            target = f" to {_shorten(member.target)}" if member.target else ""
            again = place in self._numbers
            reason = f"a {member.kind}{target} in an archive: not followed{', though it replaces a file' if again else ''}"
            self._leave(place, member, reason, ignored=link and not again)
        elif not self.wanted(place.name):
            if self.sampled(place.name):
                self._unnamed[place] = member
        elif len(self.listing) > FOLDERS:
            raise LogError(_describe_folders())
        elif not self.listing.add(place, max(member.modified, 0.0)):
            self._leave(place, member, "is a file and a folder in the archive")
        else:
            self._numbers[place] = member.number
            counts[place] += 1

    def _take_folder(self, place: Path | None) -> None:
        """Remember a folder that is called as a launch's."""
        if place is not None and _LAUNCH.search(place.name):
            if len(self._launches) >= FOLDERS:
                raise LogError(_describe_folders())
            self._launches.append(place)

    def _leave(
        self, place: Path, member: ArchiveMember, why: str, *, ignored: bool = False
    ) -> None:
        """Note a member that is not read: what could be a log is missed, of anything
        else it is enough to know."""
        missed = self.wanted(PurePosixPath(member.name).name) and not ignored
        (self.unreadable if missed else self.ignored).append((place, why))


def _describe_folders() -> str:
    return f"a newer run may lie beyond {FOLDERS:,} folders with files: give --llmb-logs a part of them"


def find_archive(place: Path) -> Path | None:
    """Return the archive on disk that a file lies in: what stands among the folders
    above it and is none."""
    nearest = next((folder for folder in place.parents if os.path.exists(folder)), None)
    return nearest if nearest is not None and os.path.isfile(nearest) else None


def read_unlisted(
    path: Path, blocks: Iterable[bytes], wanted: Collection[Path]
) -> Iterator[tuple[Path, Iterator[bytes]]]:
    """Yield the wanted files of an archive that was not listed, in its order, each with
    its bytes, to be read before the next file.

    `blocks` are the bytes of the archive, decompressed. A file that is in it several
    times is yielded each time; the last one counts. LogError if the archive ends early.
    """
    reel = Reel(blocks)
    for member in reel.read_members():
        place = _place_below(path, member)
        if place is not None and place in wanted and member.is_file:
            yield place, reel.read_data()


def _place_below(archive: Path, member: ArchiveMember) -> Path | None:
    """Return the path of a member below the archive's; None where its name leads
    elsewhere."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if (
        member.name.startswith("/")
        or ".." in parts
        or "\0" in member.name
        or not 0 < len(parts) <= DEPTH
    ):
        return None
    if len(member.name) > LONGEST or max(map(len, parts)) > LONGEST_PART:
        return None
    return archive.joinpath(*parts)


def _shorten(name: str) -> str:
    return name if len(name) <= 80 else f"...{name[-77:]}"
