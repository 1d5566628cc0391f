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
