"""The words with which a run died."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.ingest.parse.endings import read_last_line


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_bytes(b"x" * 9000 + b"\n\xff no such image\n\n  \n")
    assert read_last_line(log) == "\ufffd no such image"
    log.write_bytes(b"y" * 9000)
    assert read_last_line(log) == "y" * 200
    assert read_last_line(tmp_path / "none.out") == ""
