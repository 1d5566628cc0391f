"""Name the pages of `llmbench site`, and write them to a folder."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.report.output_files import (
    FileKind,
    find_obstacle,
    write_atomically,
)
from pytest_llmbench.report.site_names import INDEX

CONFIGURATIONS, COMPARISONS = "configurations", "compare"
"""The subfolders of the pages that the index page links to."""

PAGE = FileKind(
    "page of llmbench site",
    compile_on_use(
        rb"\A\s*<!DOCTYPE html>.*?<title>[^<]* - llmbench site</title>", re.DOTALL
    ),
)

PLAIN = compile_on_use(r"[a-z0-9][a-z0-9._-]{0,119}", re.ASCII)
"""Configuration ids that are file names as they are."""


def name_page(configuration: str) -> str:
    """Return the file name for the page of a configuration.

    Each id has a stable name of its own, also on disks that ignore case: ids that are
    not PLAIN get a suffix of `~` and a digest.
    """
    if PLAIN.fullmatch(configuration):
        return f"{configuration}.html"
    content = configuration.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(content).hexdigest()
    readable = re.sub(r"[^a-z0-9._-]+", "-", configuration.lower(), flags=re.ASCII)
    return f"{readable[:80].strip('.-')}~{digest[:12]}.html"


def write_site(
    folder: Path, names: Iterable[str], pages: Iterable[tuple[str, str]]
) -> None:
    """Write pages to a folder, by their paths in it; make the folder if needed.

    `names` are the paths of all pages. `pages` yields each path with its page, and is
    read while the pages are written, so that one page is in memory at a time. Each page
    is written completely or not at all. The index page is written last, so that its
    links work. Raises OSError if a page cannot be written, and FileExistsError before
    writing anything if a page would replace a file of another kind.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR, "found a file, expected a folder", str(folder)
        )
    for name in names:
        obstacle = find_obstacle(folder / name, PAGE)
        if obstacle:
            raise FileExistsError(errno.EEXIST, obstacle, str(folder / name))
    index = ""
    for name, page in pages:
        if name == INDEX:
            index = page
        else:
            _write_page(folder / name, page)
    _write_page(folder / INDEX, index)


def _write_page(path: Path, page: str) -> None:
    """Write a page completely or not at all."""
    write_atomically(path, page.encode("utf-8", "backslashreplace"), PAGE)
