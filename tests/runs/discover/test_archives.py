"""Archives among the given paths and in folders: which are opened, and problems."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from support.written_trees import Tree

from pytest_llmbench.core.run_records import Discovery, LoglessJob
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.discovery import find_runs

NAME = "pretrain_grok1_314b_bf16_256"
RUN = f"workloads/pretrain_grok1/experiments/{NAME}/1744407969"
FILES = {
    f"{RUN}/log-a-b.{NAME}_388660_0.out": "one",
    f"{RUN}/log-a-b.{NAME}_388660_0.err": "two",
    f"{RUN}/llmb-config_388660.yaml": "job_info: {job_id: '388660'}\nworkload_info: {gsw_version: '25.05'}\n",
    f"{RUN}/code/log-x_8_0.out": "not a log",
    "results/24.11/bf16/314b/512/log-nemo_grok1_314b_512_41.out": "three",
    "results/24.11/bf16/314b/512/nsys_profile/p_512g_41_0_0.nsys-rep": "",
    "notes.txt": "none",
}


def pack(folder: Path, path: Path, top: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, top or ".")
    return path


def summarise(discovery: Discovery, root: Path) -> object:
    """Return everything that was found, relative to the root."""
    runs = [
        (
            run.id,
            run.hints,
            run.job_id,
            run.layout,
            run.started,
            run.modified,
            run.excluded,
            run.build,
        )
        for run in discovery.runs
    ]
    notes = [
        (str(path.relative_to(root)), reason)
        for path, reason in (*discovery.ignored, *discovery.unreadable)
    ]
    return (
        runs,
        sorted(notes),
        [len(run.attempts) for run in discovery.runs],
        [run.metadata is None for run in discovery.runs],
    )


@pytest.mark.parametrize("top", ["", "nightly"])
def test_archive_yields_runs_of_its_folder(
    tree: Tree, tmp_path: Path, top: str
) -> None:
    folder = tree(FILES)
    for path in folder.rglob("*"):
        os.utime(path, (1_750_000_000, 1_750_000_000))
    path = pack(folder, tmp_path / "x.tar.gz", top)
    discovery = find_runs([path], Stores())
    assert len(discovery.runs) == 2
    assert summarise(discovery, path / top) == summarise(find_runs([folder]), folder)
    assert discovery.runs[0].folder.is_relative_to(path / top)


def test_logless_launch_is_found_in_archive(tree: Tree, tmp_path: Path) -> None:
    folder = tree(FILES)
    name = f"{NAME}_1744999999"
    (folder / f"workloads/pretrain_grok1/experiments/{NAME}" / name / NAME).mkdir(
        parents=True
    )
    (discovery,) = [
        run
        for run in find_runs([pack(folder, tmp_path / "x.tar.gz")], Stores()).runs
        if run.logless_job
    ]
    assert (discovery.logless_job, discovery.folder.name, discovery.attempts) == (
        LoglessJob.FOLDER,
        name,
        (),
    )
    assert discovery.id == next(
        run.id for run in find_runs([folder]).runs if run.logless_job
    )


def test_archive_in_folder_is_read(tree: Tree, tmp_path: Path) -> None:
    pack(tree(FILES), tmp_path / "old.tgz")
    pack(tree({"a.out": ""}), tmp_path / "b.tar.gz")
    (tmp_path / "c.out").touch()
    discovery = find_runs([tmp_path], Stores())
    assert [
        str(run.attempts[0].log.relative_to(tmp_path)).split("/")[0]
        for run in discovery.runs
    ] == [
        "c.out",
        "b.tar.gz",
        "old.tgz",
        "old.tgz",
    ]
    assert len({run.id for run in discovery.runs}) == 4


def test_given_archive_is_recognised_by_content(tree: Tree, tmp_path: Path) -> None:
    path = pack(tree({"a.out": ""}), tmp_path / "download")
    assert [run.id for run in find_runs([path], Stores()).runs] == ["download/a"]
    assert find_runs([tmp_path], Stores()).runs == ()


def test_archive_in_run_folder_is_ignored(tree: Tree, tmp_path: Path) -> None:
    folder = tree({f"{NAME}/log-a-b.{NAME}_388660_0.out": ""})
    path = pack(tree(FILES), folder / NAME / "package.tar.gz")
    discovery = find_runs([folder], Stores())
    assert len(discovery.runs) == 1
    assert discovery.ignored == (
        (
            path,
            "an archive in a run's folder is taken for its code; to read it, give its own path",
        ),
    )
    assert len(find_runs([path], Stores()).runs) == 2


def test_nested_archive_is_not_opened(tree: Tree, tmp_path: Path) -> None:
    folder = tree({"a.out": ""})
    pack(tree(FILES), folder / "inner.tar.gz")
    discovery = find_runs([pack(folder, tmp_path / "x.tar")], Stores())
    assert len(discovery.runs) == 1
    assert [reason for _, reason in discovery.ignored] == [
        "an archive in an archive is not opened; unpack it and give its own path"
    ]


def test_archive_given_by_two_names_is_read_once(tree: Tree, tmp_path: Path) -> None:
    path = pack(tree({"a.out": ""}), tmp_path / "x.tar.gz")
    (tmp_path / "y.tar.gz").symlink_to(path)
    for given in ([tmp_path], [tmp_path, path], [path, tmp_path / "y.tar.gz"]):
        discovery = find_runs(given, Stores())
        assert len(discovery.runs) == 1, given
        if given != [tmp_path, path]:
            assert [reason for _, reason in discovery.ignored] == [
                "another name of an archive that is read already"
            ]


def test_damaged_archive_is_unreadable(tree: Tree, tmp_path: Path) -> None:
    path = pack(tree(FILES), tmp_path / "x.tar.gz")
    path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "y.tar").write_bytes(b"no archive")
    discovery = find_runs([tmp_path], Stores())
    assert len(discovery.runs) == 2
    assert {unreadable.name for unreadable, _ in discovery.unreadable} == {
        "x.tar.gz",
        "y.tar",
    }


def test_pipe_is_never_opened(tmp_path: Path) -> None:
    for name in ("x.tar.gz", "llmb-config_1.yaml", "x.out"):
        os.mkfifo(tmp_path / name)
    discovery = find_runs([tmp_path], Stores())
    assert {reason for _, reason in discovery.ignored} == {"not a regular file"}
    discovery = find_runs([tmp_path / "x.tar.gz"], Stores())
    assert [reason for _, reason in discovery.unreadable] == ["not a regular file"]
