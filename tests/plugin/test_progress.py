"""Progress of log reading on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.logs.reading import run_reader as reading_progress


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["-n1"]], ids=["alone", "xdist"])
def test_reading_progress_is_shown_unless_quiet(
    pytester: pytest.Pytester,
    examples: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(reading_progress, "FIRST_SECONDS", 0)
    arguments = [
        *arguments,
        "-p",
        "no:cacheprovider",
        "--llmb-no-cache",
        f"--llmb-logs={examples}",
    ]
    result = pytester.runpytest_inprocess(*arguments)
    result.stdout.re_match_lines(
        [
            r"llmbench: read \d+ of \d+ logs, .* of .*",
            r"llmbench: read \d+ logs, .*, in \d+ s",
        ]
    )
    quiet = pytester.runpytest_inprocess("-q", *arguments)
    quiet.stdout.no_fnmatch_line("llmbench: read *")
