"""Count the checkpoint files of a run."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_llmbench.core.run_records import Shards
from pytest_llmbench.core.userfile import walk_folders

# Checkpoint folders of the documented recipes, relative to the folder of the log.
FOLDERS = ("checkpoints", "code/nemo_experiments/default/checkpoints")

SHARD = ".distcp"
# Limit of folder entries to examine.
ENTRIES = 50_000


def count_shards(folder: Path) -> Shards | None:
    """Count the checkpoint files in a run's checkpoint folders, None if there are none.

    Uses the first folder that contains checkpoint files, else the first existing
    folder. Unreadable folders count as empty.
    """
    existing = [
        _count(folder, name) for name in FOLDERS if os.path.isdir(folder / name)
    ]
    if not existing:
        return None
    return next((shards for shards in existing if shards.count), existing[0])


def _count(folder: Path, name: str) -> Shards:
    """Count the checkpoint files below a folder's subfolder.

    The count is partial if the subfolder has more than `ENTRIES` entries.
    """
    shard_count = entry_count = 0
    for _, folders, files in walk_folders(folder / name):
        folders.sort()  # a fixed order of the walk, for equal partial counts
        shard_count += sum(file.endswith(SHARD) for file in files)
        entry_count += len(folders) + len(files)
        if entry_count > ENTRIES:
            return Shards(name, shard_count, partial=True)
    return Shards(name, shard_count)
