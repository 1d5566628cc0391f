"""`llmbench replay`, run on the examples."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pytest_llmbench.cli.main import main
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.run_records import AttemptFiles
from pytest_llmbench.logs.reading.run_reader import Reading
from pytest_llmbench.session import collect_runs as find_runs

EXAMPLES = str(Path(__file__).resolve().parents[3] / "examples" / "experiments")


def replay(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> list[str]:
    assert main(["replay", *arguments, EXAMPLES]) == code
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_wider_tolerance_lists_items_that_no_longer_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = replay(capsys, "--tolerance=8%")
    assert lines[0] == "no longer fail:"
    assert "INCONCLUSIVE -> INCONCLUSIVE" in lines[1]
    assert "llama3.1_8b-25.04-h100-fp8-64" in lines[2]
    assert "REGRESSION -> PASS" in lines[2]
    assert (
        lines[-1] == "3 of 82 items would change: 2 no longer fail, 1 change otherwise"
    )
    assert all(len(line) < 80 for line in lines)


@pytest.mark.slow
def test_replay_with_certify_lists_tests_that_newly_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = replay(capsys, "--certify")
    assert lines[0] == "newly fail:"
    assert any(
        line.startswith("  55 without a run: grok1_314b-24.11-h100") for line in lines
    )


@pytest.mark.slow
def test_rejudging_with_the_same_settings_changes_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay(capsys, "--tolerance=5%") == ["0 of 82 items would change"]


@pytest.mark.slow
def test_replay_with_another_tolerance_reads_each_log_only_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    parse = find_runs._parse

    def count_parse(files: AttemptFiles, reading: Reading) -> ParsedLog:
        read.append(files.log)
        return parse(files, reading)

    monkeypatch.setattr(find_runs, "_parse", count_parse)
    lines = replay(capsys, "--tolerance=2%")
    assert lines[0] == "change otherwise (fail before and after, or neither):"
    assert "PASS -> INCONCLUSIVE" in lines[1]
    assert len(read) == len(set(read)) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no setting to change: give one of --tolerance, --inconclusive"),
        (["--tolerance=5"], "--tolerance=5: found '5', that is 500 %"),
        (
            ["--inconclusive=maybe"],
            "--inconclusive=maybe: expected literal, fail or skip",
        ),
        (["--against= "], "an option is empty: give it a value or leave it out"),
        (
            ["--certify", "--release="],
            "--release= is empty: give a value, or leave the option out",
        ),
        (
            ["--baseline-release=25.50"],
            "--baseline-release=25.50: no baseline has this value",
        ),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["replay", *arguments, EXAMPLES]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_message_is_printed_if_no_run_is_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["replay", "--tolerance=2%", str(tmp_path)]) == 1
    assert "nothing was judged" in capsys.readouterr().out


# --- the verdicts of a history --------------------------------------------------------


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the history of a session that judged the examples."""
    path = tmp_path_factory.mktemp("history") / "h.db"
    command = [
        f"--llmb-logs={EXAMPLES}",
        f"--llmb-history={path}",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=path.parent,
        capture_output=True,
        check=False,
    )
    return path


def rewrite(
    history: Path, folder: Path, verdict: str, reason: str, status: str
) -> tuple[Path, str]:
    """Copy a history and change one PASS. Returns the copy and the configuration."""
    path = folder / "h.db"
    shutil.copy(history, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        (name,) = connection.execute(
            "select configuration from llmb_verdict where verdict = 'PASS' limit 1"
        ).fetchone()
        change = "update llmb_verdict set verdict = ?, reason = ?, status = ? where configuration = ?"
        connection.execute(change, (verdict, reason, status, name))
    return path, name


@pytest.mark.slow
def test_replay_with_current_rules_reproduces_stored_verdicts(
    capsys: pytest.CaptureFixture[str], history: Path
) -> None:
    (line,) = replay(capsys, f"--history={history}")
    assert re.fullmatch(r"0 of \d\d stored verdicts would change", line)


@pytest.mark.slow
def test_changed_verdict_is_listed_with_both_reasons(
    capsys: pytest.CaptureFixture[str], history: Path, tmp_path: Path
) -> None:
    path, name = rewrite(history, tmp_path, "INVALID", "diverged", "failed")
    lines = replay(capsys, f"--history={path}")
    assert lines[0] == "no longer fail:"
    assert lines[1].endswith(name)
    assert lines[2] == "    INVALID (diverged) -> PASS (within-tolerance)"
    assert lines[-1].startswith("1 of ")
    assert all(len(line) < 80 for line in lines)


@pytest.mark.slow
def test_replay_lists_a_test_that_no_longer_fails_at_an_unchanged_verdict(
    capsys: pytest.CaptureFixture[str], history: Path, tmp_path: Path
) -> None:
    path, _ = rewrite(history, tmp_path, "PASS", "within-tolerance", "failed")
    lines = replay(capsys, f"--history={path}")
    assert (lines[0], lines[2]) == (
        "no longer fail:",
        "    PASS (within-tolerance) -> PASS (within-tolerance)",
    )


@pytest.mark.slow
def test_replay_fails_if_no_run_of_the_history_has_a_log(
    capsys: pytest.CaptureFixture[str], history: Path, tmp_path: Path
) -> None:
    assert main(["replay", f"--history={history}", str(tmp_path)]) == 1
    assert "nothing to compare" in capsys.readouterr().out
