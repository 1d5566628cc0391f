"""What every command does where who reads its output goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nccl_traces import run
from remembered import document, nights

from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation

EXPERIMENTS = Path(__file__).resolve().parents[2] / "examples" / "experiments"
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As in a shell: what is left in the buffer fails when Python ends."""


@pytest.fixture
def unread() -> Iterator[int]:
    """Yield a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def call(words: str, folder: Path, out: int, err: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-Im", "pytest_llmbench.cli.main", *words.split()]
    return subprocess.run(command, cwd=folder, stdout=out, stderr=err, env=BUFFERED, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("baselines list", 0),
        (f"summary {EXPERIMENTS}", 0),
        ("history export --history h.db", 0),
        ("nccl trace.out", 0),
        ("nccl nothing.out", 2),
    ],
)
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path: Path, unread: int, words: str, code: int) -> None:
    (tmp_path / "trace.out").write_text("".join(run()))
    write(StoreLocation("h.db", tmp_path / "h.db"), document(*nights([7.4, 7.5])))
    done = call(words, tmp_path, unread, subprocess.PIPE)
    assert done.returncode == code
    assert "Error" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert call(words, tmp_path, unread, unread).returncode == code  # 2>&1 | head
