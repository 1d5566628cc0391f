"""Names of logs that are not there yet: a transfer that still runs or was cut, or a log
that was put away."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable

from pytest_llmbench.logs.sources.stores import is_called_archive
from pytest_llmbench.runs.discover.metrics_files import is_metrics
from pytest_llmbench.runs.discover.names import (
    is_called_log,
    is_launched,
    strip_compression,
)

UNFINISHED = frozenset(
    (
        *(
            "part",
            "partial",
            "filepart",
            "crdownload",
            "opdownload",
            "download",
            "tmp",
            "temp",
            "incomplete",
            "gstmp",
        ),
        *(
            "inprogress",
            "in-progress",
            "copying",
            "_copying_",
            "uploading",
            "writing",
            "aria2",
        ),
    )
)
"""What programs append to the name of a file while they transfer it."""

PUT_AWAY = frozenset(
    (
        "bak",
        "old",
        "orig",
        "save",
        "lz4",
        "lzma",
        "lzo",
        "br",
        "z",
        "7z",
        "rar",
        *string.digits,
    )
)
"""What is appended to a log that is put away, or packed as nothing here unpacks it."""

RSYNC = 6  # random characters that rsync appends to a name with a dot before it
LONGEST = 12  # characters of what others append: `aws s3 cp` eight


def find_unfinished(names: Iterable[str], there: Iterable[str]) -> list[str]:
    """Return those of the names of files that are a log under another name, which is
    not among all that are there."""
    unfinished = {name: final for name in names if (final := find_final_name(name))}
    plain = set(map(strip_compression, there)) if unfinished else set()
    return [
        name
        for name, final in unfinished.items()
        if strip_compression(final) not in plain
    ]


def find_final_name(name: str) -> str:
    """Return the name that a log has before or after it bears this one; "" for a file
    of another kind."""
    bare = final = name.lstrip(".")
    if bare != name and is_launched(bare):  # hidden until it is whole
        return bare
    while (shorter := _strip(final, random=bare != name)) != final:
        final = shorter
        if _is_log(final):
            return (
                "" if _is_log(name) else final
            )  # the name of an event file may end with anything
    return ""


def _is_log(name: str) -> bool:
    return (
        is_called_log(strip_compression(name).lower())
        or is_metrics(name)
        or is_called_archive(name)
    )


def _strip(name: str, *, random: bool) -> str:
    """Return a name without what a program appended to it; as it is without such."""
    if name.endswith("~"):
        return name[:-1]
    stem, _, suffix = name.rpartition(".")
    if "." not in stem.strip("."):
        return name
    if (
        suffix.lower() in UNFINISHED
        or suffix.lower() in PUT_AWAY
        or _is_random(suffix, random=random)
    ):
        return stem.rstrip("_")
    return name


def _is_random(suffix: str, *, random: bool) -> bool:
    if not (RSYNC <= len(suffix) <= LONGEST and suffix.isascii() and suffix.isalnum()):
        return False
    drawn: Collection[str] = string.digits + string.ascii_uppercase
    return (random and len(suffix) == RSYNC) or any(sign in drawn for sign in suffix)
