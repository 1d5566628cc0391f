"""Output files never overwrite other files and are never read as runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from support.sessions import Judge, Write

GROK = "grok1_314b-25.05-gb200-bf16-128"


def log_of(folder: Path) -> Path:
    (log,) = folder.rglob("log-*.out")
    return log


@pytest.mark.slow
@pytest.mark.parametrize(
    "flag", ["--llmb-json", "--llmb-html", "--llmb-junit", "--junitxml", "--log-file"]
)
def test_log_is_never_overwritten(
    pytester: pytest.Pytester, generated: Write, flag: str
) -> None:
    """Also by what pytest writes itself; and by no file that the next session would
    read as a log."""
    folder = generated(GROK)
    log = log_of(folder)
    before = log.read_bytes()
    for path in (log, log.with_name("log-new_7_0.out")):
        result = pytester.runpytest(
            f"--llmb-logs={folder}", "-k", GROK, f"{flag}={path}"
        )
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [
                f"*{flag}={path}: the file is in a folder of --llmb-logs and would be read as a log*"
            ]
        )
    result = pytester.runpytest(f"--llmb-logs={log}", "-k", GROK, f"{flag}={log}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{flag}={log}: --llmb-logs={log} is the same file*"])
    assert log.read_bytes() == before
    assert log_of(folder) == log


@pytest.mark.slow
def test_reports_in_the_log_folder_are_not_read_as_logs(
    judged: Judge, generated: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reports, the store, and what pytest writes: each may stand there, and is replaced
    by the next one."""
    folder = generated(GROK)
    names = {
        "--llmb-json": "n.json",
        "--llmb-html": "n.html",
        "--llmb-junit": "n.xml",
        "--llmb-history": "n.db",
    }
    written = [
        f"{flag}={folder / name}"
        for flag, name in {**names, "--junitxml": "pytest.xml"}.items()
    ]
    for _ in range(3):
        session = judged(f"--llmb-logs={folder}", "-k", GROK, "-v", *written)
        assert (session.ret, session.verdicts) == (pytest.ExitCode.OK, {GROK: "PASS"})
        assert "skipped " not in capsys.readouterr().out
    assert json.loads((folder / "n.json").read_text())["count"] == "1 green: 1 PASS"


@pytest.mark.slow
def test_report_does_not_overwrite_a_file_created_during_the_session(
    judged: Judge,
    generated: Write,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A launched job may write its log where the report was to be: the session is red,
    and the log is there."""
    path = pytester.path / "night.json"
    pytester.makepyfile(f"""
        from pathlib import Path
        def test_one(llmb_measurement):
            Path({str(path)!r}).write_text("step 1")
    """)
    session = judged(
        f"--llmb-logs={generated(GROK)}",
        "-k",
        GROK,
        f"--llmb-json={path}",
        str(pytester.path),
    )
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "the report was not written: an existing file of another kind (expected: JSON document of llmbench) is not replaced"
        in output
    )
    assert path.read_text() == "step 1"


@pytest.mark.slow
def test_json_document_on_standard_output_precedes_the_verdict_summary(
    generated: Write, pytester: pytest.Pytester
) -> None:
    """Where that goes to a file, neither takes the place of the other."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--llmb-logs={generated(GROK)}",
        "-k",
        GROK,
        "--llmb-json=/dev/stdout",
    ]
    path = pytester.path / "out.txt"
    with path.open("w") as file:
        subprocess.run(command, check=True, stdout=file, cwd=pytester.path)
    said = path.read_text()
    start, end = said.index('{\n "schema"'), said.index("\n}\n") + 3
    assert json.loads(said[start:end])["green"] is True
    assert said.startswith("=")
    assert "1 green: 1 PASS" in said[end:]
