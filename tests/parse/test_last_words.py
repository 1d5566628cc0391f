"""The words with which a run died."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.parse.last_words import exception, last_line

TRACEBACK = """step 1
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: the batch does not fit
srun: error: n1: task 0: Exited with exit code 1
"""
RANKS = """[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in <module>
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: of rank 0
[rank1]: torch.OutOfMemoryError: of rank 1
"""


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        (TRACEBACK, 2, ("ValueError: the batch does not fit", 5)),
        (RANKS, 1, ("torch.OutOfMemoryError: of rank 1", 6)),
        (RANKS, 2, ("RuntimeError: of rank 0", 5)),
        (TRACEBACK, 1, None),
        (TRACEBACK, 99, None),
        ("Traceback (most recent call last):\n  File", 1, None),
        ("", 1, None),
    ],
)
def test_the_exception_of_a_traceback(tmp_path: Path, text: str, line: int, found: tuple[str, int] | None) -> None:
    log = tmp_path / "log.out"
    log.write_text(text)
    assert exception(log, line) == found


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.out"
    log.write_bytes(b"x" * 9000 + b"\n\xff no such image\n\n  \n")
    assert last_line(log) == "\ufffd no such image"
    assert last_line(tmp_path / "none.out") == ""
    assert exception(tmp_path / "none.out", 1) is None
