"""Recognise unfinished transfers of logs, and renamed logs, by their names."""

from __future__ import annotations

import string
from collections.abc import Iterable

from pytest_llmbench.logs.sources.stores import has_archive_name
from pytest_llmbench.runs.discover.metrics_files import is_metrics
from pytest_llmbench.runs.discover.names import (
    is_launched,
    is_log_name,
    strip_compression,
)

UNFINISHED = frozenset(
    (
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
        "inprogress",
        "in-progress",
        "copying",
        "_copying_",
        "uploading",
        "writing",
        "aria2",
    )
)
"""Suffixes that programs append to a file name during a transfer."""

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
"""Suffixes of renamed logs, and of compression formats that are not supported."""

_DIGITS_AND_CAPITALS = frozenset(string.digits + string.ascii_uppercase)
RSYNC = 6  # random characters that rsync appends to a name, after a leading dot
LONGEST = 12  # longest random suffix of other programs: `aws s3 cp` appends eight


def find_unfinished(names: Iterable[str], existing: Iterable[str]) -> list[str]:
    """Return the names of unfinished or renamed logs whose final name does not exist."""
    final_names = {name: get_final_name(name) for name in names}
    unfinished = {name: final for name, final in final_names.items() if final}
    if not unfinished:
        return []
    existing_plain_names = set(map(strip_compression, existing))
    return [
        name
        for name, final in unfinished.items()
        if strip_compression(final) not in existing_plain_names
    ]


def get_final_name(name: str) -> str:
    """Return the log name that a name was derived from, or "" for other files.

    `.log-x_12_0.out.Ab3dEf` (rsync), `log-x_12_0.out.part` and `log-x_12_0.out.1.bak`
    yield `log-x_12_0.out`.
    """
    without_dot = name.lstrip(".")
    is_hidden = without_dot != name
    if is_hidden and is_launched(without_dot):  # hidden until complete
        return without_dot
    # remove one suffix after another, until a log's name remains or no suffix is known
    final = without_dot
    while True:
        stripped = _strip_suffix(final, accept_letters_only=is_hidden)
        if stripped == final:
            return ""
        final = stripped
        if _is_log(final):
            # an event file may have any suffix
            return "" if _is_log(name) else final


def _is_log(name: str) -> bool:
    """True if a file is named like a log, a metrics file or an archive."""
    return (
        is_log_name(strip_compression(name).lower())
        or is_metrics(name)
        or has_archive_name(name)
    )


def _strip_suffix(name: str, *, accept_letters_only: bool) -> str:
    """Return a name without the suffix that a program appended, else unchanged."""
    if name.endswith("~"):  # an editor's backup
        return name[:-1]
    stem, _, suffix = name.rpartition(".")
    if "." not in stem.strip("."):  # `train.log` has no further suffix
        return name
    if (
        suffix.lower() in UNFINISHED
        or suffix.lower() in PUT_AWAY
        or _is_random_suffix(suffix, accept_letters_only=accept_letters_only)
    ):
        return stem.rstrip("_")
    return name


def _is_random_suffix(suffix: str, *, accept_letters_only: bool) -> bool:
    """True if a program generated a suffix: it has a digit or a capital letter.

    With `accept_letters_only` (for rsync), also if it has the length of rsync's
    suffixes.
    """
    if not (suffix.isascii() and suffix.isalnum()):
        return False
    if not RSYNC <= len(suffix) <= LONGEST:
        return False
    if accept_letters_only and len(suffix) == RSYNC:
        return True
    return not _DIGITS_AND_CAPITALS.isdisjoint(suffix)
