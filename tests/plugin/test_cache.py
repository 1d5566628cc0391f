"""The cache of parsed logs, and how often a session opens a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.forked_processes import Programs

from pytest_llmbench.logs.reading import cache as log_cache
from pytest_llmbench.logs.reading import file_reader

OPENED = """
import os, sys

def opened(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".out"):
        line = f"{os.getpid()} {arguments[0]}" + chr(10)
        handle = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)

sys.addaudithook(opened)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all caches of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(log_cache, "WORTH_FILES", 1)
    return tmp_path / "cache" / "pytest-llmbench"


def session(pytester: pytest.Pytester, *arguments: str) -> Sequence[str]:
    """Return the output of a session without its durations."""
    lines = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:xdist", *arguments
    ).outlines
    return [line for line in lines if " in " not in line]


@pytest.mark.slow
def test_second_session_parses_no_log_again(
    pytester: pytest.Pytester,
    examples: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = f"--llmb-logs={examples}"
    first = session(pytester, logs)
    assert len(list(cache.glob("*.logs"))) == 1
    monkeypatch.setattr(file_reader, "parse", None)  # reading anything fails
    assert session(pytester, logs) == first


@pytest.mark.slow
def test_session_without_a_cache_reads_and_stores_no_cached_logs(
    pytester: pytest.Pytester, examples: Path, cache: Path
) -> None:
    pytester.makeini("[pytest]\nllmb_no_cache = true\n")
    session(pytester, f"--llmb-logs={examples}")
    assert not cache.exists()


@pytest.mark.slow
def test_workers_open_no_log_twice(
    programs: Programs,
    pytester: pytest.Pytester,
    examples: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by what every process of the session opens, and all of it in one process.

    The log of a slow red run is read once more, for what it reports of slow ranks.
    """
    pytest.importorskip("xdist")
    monkeypatch.setenv("OPENED", str(pytester.path / "opened"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    pytester.makeconftest(OPENED)
    options = [f"--llmb-logs={examples}", "-n2", "--llmb-no-cache"]
    output = pytester.path / "output"
    assert (
        programs.run("pytest", options, pytester.path, output, output)
        == pytest.ExitCode.TESTS_FAILED
    )
    opened = [
        line.split(maxsplit=1)
        for line in (pytester.path / "opened").read_text().splitlines()
    ]
    counts = Counter(path for _, path in opened)
    assert len(counts) >= 40
    again = {
        Path(path).name.rsplit("_", 2)[-2]
        for path, times in counts.items()
        if times != 1
    }
    assert again == {"1561150", "1561210"}  # the INCONCLUSIVE one, and the REGRESSION
    assert set(counts.values()) == {1, 2}
    assert len({process for process, _ in opened}) == 1
