"""The files of checkpoints that a run left below the folder of its log."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_llmbench.core.run_records import Shards
from pytest_llmbench.core.userfile import walk_folders

# Where the documented runs save, below the folder of their log.
FOLDERS = ("checkpoints", "code/nemo_experiments/default/checkpoints")

SHARD = ".distcp"
# How many entries of folders are looked at.
ENTRIES = 50_000


def count_shards(folder: Path) -> Shards | None:
    """Return how many files of checkpoints a run left below the folder of its log; None
    where it has no such folder.

    The first folder that holds any is told, else the first one that is there. What
    cannot be read counts as empty.
    """
    counts = [_count(folder, name) for name in FOLDERS if os.path.isdir(folder / name)]
    return next(
        (shards for shards in counts if shards.count), counts[0] if counts else None
    )


def _count(folder: Path, name: str) -> Shards:
    count = entries = 0
    for _, folders, files in walk_folders(folder / name):
        folders.sort()
        count += sum(file.endswith(SHARD) for file in files)
        entries += len(folders) + len(files)
        if entries > ENTRIES:
            return Shards(name, count, partial=True)
    return Shards(name, count)
