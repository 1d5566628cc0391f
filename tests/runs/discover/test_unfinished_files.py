"""Names of logs that are still being transferred, or were renamed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.runs.discover.unfinished_files import (
    find_unfinished,
    get_final_name,
)


@pytest.mark.parametrize(
    ("name", "final"),
    [
        (".slurm-1051.out.X1y2Z3", "slurm-1051.out"),
        (".slurm-1051.out.abcdef", "slurm-1051.out"),
        ("slurm-1051.out.part", "slurm-1051.out"),
        ("slurm-1051.out.filepart", "slurm-1051.out"),
        ("slurm-1051.out.crdownload", "slurm-1051.out"),
        ("slurm-1051.out~", "slurm-1051.out"),
        ("slurm-1051.out.tmp", "slurm-1051.out"),
        ("slurm-1051.out.6eF5a5b2", "slurm-1051.out"),
        ("slurm-1051.out_.gstmp", "slurm-1051.out"),
        ("slurm-1051.out.ab12cd34.partial", "slurm-1051.out"),
        (".syncthing.train.log.tmp", "syncthing.train.log"),
        ("slurm-1051.out.gz.part", "slurm-1051.out.gz"),
        ("night.tar.gz.part", "night.tar.gz"),
        (".trainer_log.jsonl.Q9w8E7", "trainer_log.jsonl"),
        (
            ".events.out.tfevents.1793900000.node12.1.0.X1y2Z3",
            "events.out.tfevents.1793900000.node12.1.0",
        ),
        ("slurm-1051.out.inprogress", "slurm-1051.out"),
        ("slurm-1051.out._COPYING_", "slurm-1051.out"),
        (".slurm-1051.out", "slurm-1051.out"),
        ("slurm-1051.out.lz4", "slurm-1051.out"),
        ("slurm-1051.out.1", "slurm-1051.out"),
        ("slurm-1051.out.bak", "slurm-1051.out"),
    ],
)
def test_log_name_is_derived_from_the_name_of_a_partial_or_renamed_copy(
    name: str, final: str
) -> None:
    assert get_final_name(name) == final


@pytest.mark.parametrize(
    "name",
    [
        *(
            "slurm-1051.out",
            "slurm-1051.out.gz",
            "train.log",
            "events.out.tfevents.1793900000.node1.1.0",
        ),
        *(
            "metrics.csv",
            "night.tar.gz",
            "slurm-1051.err",
            "train.log.json",
            "config.yaml",
            "config.yaml.bak",
        ),
        *("._slurm-1051.out", "slurm-1051.out.md5"),
        *(
            "model.pt.tmp",
            "__0_0.distcp",
            "core.12345",
            "notes.txt~",
            ".bashrc",
            ".train.log",
            "a",
            ".",
            "~",
            "",
        ),
    ],
)
def test_complete_or_unrelated_file_is_no_partial_copy_of_a_log(name: str) -> None:
    assert get_final_name(name) == ""


def test_existing_log_hides_its_renamed_files() -> None:
    names = [
        "slurm-1.out",
        "slurm-1.out.1",
        "slurm-1.out~",
        ".slurm-1.out.X1y2Z3",
        "slurm-2.out.gz",
        "slurm-2.out.part",
    ]
    assert find_unfinished(names, names) == []
    assert find_unfinished(names, names[1:4]) == [*names[1:4], names[5]]


def test_partial_log_and_broken_link_are_reported_as_possible_newer_logs(
    tmp_path: Path,
) -> None:
    when = datetime(2026, 11, 22, tzinfo=UTC)
    for name in ("slurm-1.out", "slurm-1.out.part", "slurm-2.out.part"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when.timestamp(), when.timestamp()))
    (tmp_path / "latest").symlink_to(tmp_path / "gone")
    hidden = {
        path.name: (modified, description)
        for path, modified, description in find_runs([tmp_path]).hidden
    }
    assert hidden.keys() == {"slurm-2.out.part", "latest"}
    assert hidden["slurm-2.out.part"][0] == when
    assert hidden["latest"][1] == "a broken link"
    assert find_runs([tmp_path / "slurm-1.out"]).hidden == ()
