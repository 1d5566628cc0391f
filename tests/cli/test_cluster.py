"""`llmbench cluster`: a new file, whole or not at all; and where Slurm knows nothing, why."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_recipe import program

from pytest_llmbench.cli.main import main

FOUND = "partition batch: 8 h100 a node, 512 GPUs"


@pytest.fixture(autouse=True)
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that has one partition, and no accounts."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "sinfo", "#!/bin/sh\necho 'batch*|up|infinite|64|gpu:h100:8'\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)


def test_it_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster"]) == 0
    printed = capsys.readouterr().out
    assert "gpu: h100                    # sinfo: gres gpu:h100:8 on 64 nodes\n" in printed
    assert main(["cluster", "-o", "cluster.yaml"]) == 0
    assert capsys.readouterr().out.startswith(f"cluster.yaml: {FOUND}")
    assert (tmp_path / "cluster.yaml").read_text() == printed.removesuffix("\n")


def test_a_written_file_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "sinfo", "#!/bin/sh\necho 'queue-53cr3t-of-m1ne*|up|infinite|64|gpu:h100:8'\n")
    monkeypatch.setenv("HF_TOKEN", "queue-53cr3t-of-m1ne")
    assert main(["cluster", "-o", "cluster.yaml"]) == 0
    assert "partition: ***" in (tmp_path / "cluster.yaml").read_text()


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cluster.yaml").write_text("mine")
    assert main(["cluster", "-o", "cluster.yaml"]) == 2
    assert capsys.readouterr().err == "llmbench: cluster.yaml: there is one already, and it is not replaced\n"
    assert (tmp_path / "cluster.yaml").read_text() == "mine"


def test_an_empty_file_is_written_to_and_a_link_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "link.yaml").symlink_to("empty.yaml")
    assert main(["cluster", "-o", "link.yaml"]) == 2
    assert "link.yaml: there is one already" in capsys.readouterr().err
    assert main(["cluster", "-o", "empty.yaml"]) == 0
    assert "gpu: h100" in (tmp_path / "empty.yaml").read_text()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "-o", "no/cluster.yaml"]) == 2
    assert "no/cluster.yaml: cannot be written: No such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_type_that_there_is_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "--gpu=B200"]) == 2
    assert "Slurm knows no GPUs of type B200" in capsys.readouterr().err
