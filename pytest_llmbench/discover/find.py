"""Finding runs: every training log under the given paths, with what its names and metadata say of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmbench.discover import names
from pytest_llmbench.discover.folders import Layout, layout, surroundings
from pytest_llmbench.discover.group import Draft, group
from pytest_llmbench.discover.metadata import Metadata, read_metadata
from pytest_llmbench.discover.stamps import stamp, started_by_name
from pytest_llmbench.discover.walk import Folder, Notes, Walk
from pytest_llmbench.errors import LogError
from pytest_llmbench.models import Clue, Discovery, FoundRun, Reason

_REPORT_JOB = re.compile(r"_\d+g_(\d+)_\d+_\d+\.nsys-rep$", re.IGNORECASE)
_LAYOUT_WORDS = ("experiments", "results", "workloads", "nemo_run")


def find_runs(paths: Sequence[Path]) -> Discovery:
    """Return the runs under the paths in the order of their folders, each once; nothing that is met raises.

    A folder is searched with all below it, links to folders are followed once. A path to a file makes that file a log,
    whatever its name. Times are UTC; what is written without a zone is taken as local time of this machine.
    """
    walk = Walk().run(paths)
    _drop_doubles(walk)
    runs: list[tuple[Folder, FoundRun]] = []
    for folder in walk.folders:
        runs += [(folder, run) for run in _runs(folder, walk)]
    return Discovery(tuple(_with_ids(runs)), tuple(walk.ignored), tuple(walk.unreadable))


def _drop_doubles(walk: Walk) -> None:
    """Keep each file once: a second name of one file (a link, a hard link of a snapshot) is no second run."""
    places = [(file.link, folder.path, file.name, file.identity, folder) for folder in walk.folders for file in folder.files]
    first: dict[tuple[int, int], Path] = {}
    for _, path, name, identity, folder in sorted(places, key=lambda place: place[:3]):
        known = first.setdefault(identity, path / name)
        if known != path / name:
            folder.files = [file for file in folder.files if file.name != name]
            walk.ignored.append((path / name, f"another name of the file {known}"))
