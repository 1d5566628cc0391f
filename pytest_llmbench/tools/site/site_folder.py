"""The folder of `llmbench site`: the names of its pages, and how they take the place of
those of an earlier one."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.report.html.site_names import INDEX
from pytest_llmbench.report.output_files import (
    FileKind,
    find_obstacle,
    write_atomically,
)

CONFIGURATIONS, COMPARISONS = "configurations", "compare"
"""The folders of the pages that the first one links to."""

PAGE = FileKind(
    "page of llmbench site",
    re.compile(
        rb"\A\s*<!DOCTYPE html>.*?<title>[^<]* - llmbench site</title>", re.DOTALL
    ),
)

PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,119}", re.ASCII)


def name_page(configuration: str) -> str:
    """Return the name of the page of a configuration (its id): the same for the same
    id, and no other id has it.

    Not even on a disk that takes `A` for `a`: what is not plain has a digest behind a
    `~`, which no plain name holds.
    """
    if PLAIN.fullmatch(configuration):
        return f"{configuration}.html"
    digest = hashlib.sha256(configuration.encode("utf-8", "surrogatepass")).hexdigest()[
        :12
    ]
    readable = re.sub(r"[^a-z0-9._-]+", "-", configuration.lower(), flags=re.ASCII)[
        :80
    ].strip(".-")
    return f"{readable}~{digest}.html"


def write_site(folder: Path, pages: Mapping[str, str]) -> None:
    """Write pages by their names below a folder, which is made; OSError where that is
    impossible.

    Nothing is written where one of them would replace a file that no site wrote. Each
    page is written whole or not at all, and the first one last: what it links to is
    there.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR, "a file, and no folder for a site", str(folder)
        )
    for path in (folder / name for name in pages):
        if obstacle := find_obstacle(path, PAGE):
            raise FileExistsError(errno.EEXIST, obstacle, str(path))
    for name in sorted(pages, key=lambda name: name == INDEX):
        write_atomically(
            folder / name, pages[name].encode("utf-8", "backslashreplace"), PAGE
        )
