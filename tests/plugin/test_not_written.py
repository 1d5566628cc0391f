"""Requested files that were not written are reported at any verbosity."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import Write

BF16 = "grok1_314b-25.05-gb200-bf16-128"

FLAGS = (
    *(
        (),
        ("-q",),
        ("-qq",),
        ("--no-header",),
        ("-rN", "--tb=no"),
        ("--no-summary",),
        ("-q", "--no-summary"),
    ),
    *(("-p", "no:terminal"), ("-n2",), ("-n2", "-q", "--no-summary")),
)

WHAT = {
    "--llmb-json=/dev/full": (
        1,
        "--llmb-json=/dev/full: the report was not written: No space left on device",
    ),
    "--llmb-html=/dev/full": (
        1,
        "--llmb-html=/dev/full: the report was not written: No space left on device",
    ),
    "--llmb-junit=/dev/full": (
        1,
        "--llmb-junit=/dev/full: the report was not written: No space left on device",
    ),
    "--junitxml=/dev/full": (
        1,
        "--junitxml=/dev/full: not written: No space left on device",
    ),
    "--llmb-history=h.db": (
        0,
        "history: 1 verdict not stored (no verdict depends on it): OSError(28, 'full')",
    ),
    "GITHUB_STEP_SUMMARY=/dev/full": (
        0,
        "GITHUB_STEP_SUMMARY=/dev/full: the job summary was not written",
    ),
}
"""What cannot be written, the exit code, and the words."""


@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
@pytest.mark.parametrize("what", WHAT)
def test_output_file_that_cannot_be_written_is_reported_once(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    flags: tuple[str, ...],
) -> None:
    """Reported in the summary, or on standard error without a summary."""

    def fail(*arguments: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr("pytest_llmbench.history.record.write", fail)
    option = [what] if what.startswith("--") else []
    if not option:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv(*what.split("="))
    code, words = WHAT[what]
    logs = f"--llmb-logs={generated(BF16)}"
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-k", BF16, logs, *option, *flags
    )
    assert result.ret == code
    shown, aside = (
        " ".join(stream.str().split()) for stream in (result.stdout, result.stderr)
    )
    assert (
        shown.count(f" {words}") + aside.count(f" {words}") == 1
    )  # an annotation of GitHub beside it
    assert (words in aside) == (
        "no:terminal" in flags or (not shown and "--no-summary" in flags)
    )


@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS[:8], ids=" ".join)
def test_full_disk_during_recording_is_a_usage_error(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if "own" in str(target):
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    logs = f"--llmb-logs={generated(BF16)}"
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-k", BF16, logs, "--llmb-record=own", *flags
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "No space left on device" in result.stderr.str()


@pytest.mark.slow
def test_paths_of_written_reports_are_printed_only_on_a_terminal(
    pytester: pytest.Pytester, generated: Write
) -> None:
    logs = f"--llmb-logs={generated(BF16)}"
    result = pytester.runpytest_inprocess(
        "-k", BF16, logs, "--llmb-json=o.json", "-p", "no:terminal"
    )
    assert result.ret == 0
    assert result.stderr.str() == ""
