"""Whether a checkpoint is on disk: the documents look for *.distcp files in the folders that a run saves into."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_llmbench.core.models import Shards

FOLDERS = ("checkpoints", "code/nemo_experiments/default/checkpoints")
"""Where the documented runs save, below the folder of their log."""

SHARD = ".distcp"
ENTRIES = 50_000
"""How many entries of folders are looked at."""


def count_shards(folder: Path) -> Shards | None:
    """Return how many files of checkpoints a run left below the folder of its log; None where it has no such folder.

    The first folder that holds any is told, else the first one that is there. What cannot be read counts as empty.
    """
    counts = [_count(folder, name) for name in FOLDERS if (folder / name).is_dir()]
    return next((shards for shards in counts if shards.count), counts[0] if counts else None)


def _count(folder: Path, name: str) -> Shards:
    count = entries = 0
    for _, folders, files in os.walk(folder / name):
        folders.sort()
        count += sum(file.endswith(SHARD) for file in files)
        entries += len(folders) + len(files)
        if entries > ENTRIES:
            return Shards(name, count, partial=True)
    return Shards(name, count)
