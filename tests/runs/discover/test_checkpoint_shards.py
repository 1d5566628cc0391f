"""The number of checkpoint files on disk, in the documented folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bad_files import nest_folders, remove_nested_folders
from support.written_trees import Tree

from pytest_llmbench.core.run_records import Shards
from pytest_llmbench.runs.discover import checkpoint_shards
from pytest_llmbench.runs.discover.checkpoint_shards import count_shards

NEMO = "code/nemo_experiments/default/checkpoints"


@pytest.mark.parametrize(
    ("files", "shards"),
    [
        (
            [
                "checkpoints/iter_0000050/__0_0.distcp",
                "checkpoints/iter_0000050/__0_1.distcp",
            ],
            Shards("checkpoints", 2),
        ),
        (
            [f"{NEMO}/default--None=0.0000-epoch=0/weights/__0_0.distcp"],
            Shards(NEMO, 1),
        ),
        (["checkpoints/latest.txt", f"{NEMO}/x/weights/__0_0.distcp"], Shards(NEMO, 1)),
        (["checkpoints/latest_checkpointed_iteration.txt"], Shards("checkpoints", 0)),
        (["checkpoints", "other/__0_0.distcp"], None),
        (["log-x_1_0.out"], None),
    ],
)
def test_shards_are_counted_in_documented_folders(
    tree: Tree, files: list[str], shards: Shards | None
) -> None:
    assert count_shards(tree(files)) == shards


def test_search_for_checkpoint_files_is_limited(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_shards, "ENTRIES", 10)
    root = tree(
        [
            f"checkpoints/{folder}/__{number}_0.distcp"
            for folder in "ab"
            for number in range(20)
        ]
    )
    shards = count_shards(root)
    assert shards is not None
    assert (shards.count, shards.partial) == (20, True)


@pytest.mark.slow
def test_shards_under_deep_folders_are_counted(tmp_path: Path) -> None:
    nest_folders(tmp_path / "checkpoints", 1000, "x.distcp")
    try:
        assert count_shards(tmp_path) == Shards("checkpoints", 1)
    finally:
        remove_nested_folders(tmp_path / "checkpoints")
