"""Quoted lines: lines with a marker, and the last lines of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.logs.quoted_lines import DRIVER_ERROR, find_lines, read_last_lines
from pytest_llmbench.logs.sources import files

XID = "n7 kernel: NVRM: Xid (PCI:0000:0a:00): 63, pid=1, row remapping"


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_log_lines_found_by_a_pattern_have_correct_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    log = tmp_path / "x.out"
    log.write_text(f"step 1\n{XID}\nstep 2\n\n{XID} again\n{XID} at last")
    assert find_lines(log, DRIVER_ERROR, 9) == [
        (2, XID),
        (5, f"{XID} again"),
        (6, f"{XID} at last"),
    ]
    assert find_lines(log, DRIVER_ERROR, 2) == [
        (5, f"{XID} again"),
        (6, f"{XID} at last"),
    ]


def test_search_without_a_match_or_without_a_file_gives_no_lines(
    tmp_path: Path,
) -> None:
    log = tmp_path / "x.out"
    log.write_text("step 1\n")
    assert (
        find_lines(log, DRIVER_ERROR, 3)
        == find_lines(tmp_path / "none", DRIVER_ERROR, 3)
        == []
    )
    assert read_last_lines(tmp_path / "none", 3) == []


def test_last_lines_of_a_log_skip_blanks_and_escape_control_characters(
    tmp_path: Path,
) -> None:
    log = tmp_path / "x.out"
    log.write_bytes(b"first\nsecond\n\n  third\x1b[31m\n\n" + b"x" * 500 + b"\n")
    second, third, last = read_last_lines(log, 3)
    assert (second, last) == ("second", "x" * 200)
    assert "\x1b" not in third


def test_last_line_is_read_from_file_end(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_bytes(b"x" * 9000 + b"\n\xff no such image\n\n  \n")
    assert read_last_lines(log, 1) == ["\ufffd no such image"]
    log.write_bytes(b"y" * 9000)
    assert read_last_lines(log, 1) == ["y" * 200]
