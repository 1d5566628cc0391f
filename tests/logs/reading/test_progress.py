"""Progress messages while logs are read."""

from __future__ import annotations

import pytest

from pytest_llmbench.logs.reading.run_reader import ReadCounts, ReadingProgress


class Screen:
    r"""A terminal that stores its output, with `\r` before a rewritten line."""

    def __init__(self, isatty: bool) -> None:
        self.isatty = isatty
        self.lines: list[str] = []
        self.flushed = 0

    def rewrite(self, line: str, *, erase: bool) -> None:
        assert erase
        self.lines.append(f"\r{line}")

    def write_line(self, line: str) -> None:
        self.lines.append(line)

    def flush(self) -> None:
        self.flushed = len(self.lines)


def watched(isatty: bool, seconds: int, every: float) -> list[str]:
    """Return the output while a hundred files of 1 GB are read in `seconds`."""
    screen, clock = Screen(isatty), [1000.0]
    progress = ReadingProgress(lambda: screen, lambda: clock[0])
    count = int(seconds / every)
    for step in range(count + 1):
        clock[0] = 1000 + step * every
        done = 100 * step // count
        progress(ReadCounts(done, 100, done * 10**9, 100 * 10**9))
    assert screen.flushed == len(screen.lines)
    return screen.lines


def test_reading_progress_in_a_file_has_few_lines_and_the_total_time() -> None:
    lines = watched(isatty=False, seconds=7200, every=1)
    assert lines[0] == "llmbench: read 0 of 100 logs, 0 kB of 100 GB"
    assert lines[1] == "llmbench: read 0 of 100 logs, 0 kB of 100 GB"
    assert lines[
        4
    ] == "llmbench: read 2 of 100 logs, 2 GB of 100 GB, about 125 min left".replace(
        "125 min", "2.1 h"
    )
    assert lines[-1] == "llmbench: read 100 logs, 100 GB, in 2.0 h"
    assert len(lines) < 35


def test_progress_line_is_rewritten_on_a_terminal() -> None:
    lines = watched(isatty=True, seconds=60, every=0.1)
    assert lines[0] == "\rllmbench: read 3 of 100 logs, 3 GB of 100 GB, about 65 s left"
    assert all(
        line.startswith("\rllmbench: ") and len(line) <= 80 for line in lines[:-1]
    )
    assert lines[-2:] == ["\rllmbench: read 100 logs, 100 GB, in 60 s", ""]
    assert 100 <= len(lines) <= 130


@pytest.mark.parametrize("isatty", [True, False])
def test_fast_reading_prints_no_progress(isatty: bool) -> None:
    assert watched(isatty, seconds=1, every=0.01) == []
