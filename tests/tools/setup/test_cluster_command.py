"""`llmbench cluster`: print or write a draft of the cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_recipe import program

from pytest_llmbench.cli.main import main

SUMMARY = "partition batch: 8 h100 a node, 512 GPUs"


@pytest.fixture(autouse=True)
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a fake Slurm with one partition and no accounts."""
    (tmp_path / "bin").mkdir()
    program(
        tmp_path / "bin" / "sinfo",
        "#!/bin/sh\necho 'batch*|up|infinite|64|gpu:h100:8'\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)


def test_cluster_file_is_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster"]) == 0
    printed = capsys.readouterr().out
    assert (
        "gpu: h100                    # sinfo: gres gpu:h100:8 on 64 nodes\n" in printed
    )
    assert main(["cluster", "-o", "cluster.yaml"]) == 0
    assert capsys.readouterr().out.startswith(f"cluster.yaml: {SUMMARY}")
    assert (tmp_path / "cluster.yaml").read_text() == printed.removesuffix("\n")


def test_written_file_contains_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path / "bin" / "sinfo",
        "#!/bin/sh\necho 'queue-53cr3t-of-m1ne*|up|infinite|64|gpu:h100:8'\n",
    )
    monkeypatch.setenv("HF_TOKEN", "queue-53cr3t-of-m1ne")
    assert main(["cluster", "-o", "cluster.yaml"]) == 0
    assert "partition: ***" in (tmp_path / "cluster.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.yaml", "mine.yaml: the file exists and is not replaced"),
        ("link.yaml", "link.yaml: the file exists and is not replaced"),
        (
            "no/cluster.yaml",
            "no/cluster.yaml: cannot be written: No such file or directory",
        ),
        ("empty.yaml", ""),
    ],
)
def test_cluster_file_is_written_only_to_a_new_or_empty_file(
    capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    Path("mine.yaml").write_text("mine")
    Path("empty.yaml").touch()
    Path("link.yaml").symlink_to("empty.yaml")
    assert main(["cluster", "-o", name]) == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert Path("mine.yaml").read_text() == "mine"
    assert ("gpu: h100" in Path("empty.yaml").read_text()) is (not message)
    assert not Path("no").exists()


def test_unknown_gpu_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "--gpu=B200"]) == 2
    assert "Slurm reports no GPUs of type B200" in capsys.readouterr().err
