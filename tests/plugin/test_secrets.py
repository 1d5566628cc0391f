"""Tokens in the environment never appear in output or files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (pytester forgets what a session imports)
from generator import write_run
from support.fake_recipe import write_recipe
from support.sessions import Judge

from pytest_llmbench.core.baseline_records import Baseline

TOKEN = "hf_53cr3t-of-m1ne"
FOREIGN = "hf_" + "aB3" * 11
"""One that no variable holds: its form tells."""

GROK = "grok1_314b-25.05-gb200-bf16-128"
REPORTS = (
    "--llmb-json=a.json",
    "--llmb-html=a.html",
    "--llmb-junit=a.xml",
    "--junitxml=b.xml",
    "--llmb-history=h.db",
)
FAILS = f"Traceback (most recent call last):\nRuntimeError: 401 for https://{TOKEN}@hub with {FOREIGN}\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "HF_TOKEN": TOKEN,
        "GITHUB_ACTIONS": "true",
        "MAX_TOKENS": "405b-25.05",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))


def find_leaks(folder: Path, *texts: str) -> list[str]:
    """Return the files and texts that contain a token."""
    secrets = (TOKEN, FOREIGN, "53cr3t-of-m1ne")
    files = {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("log-")
    }
    shown = {
        **files,
        **{f"text {index}": text.encode() for index, text in enumerate(texts)},
    }
    return [
        name
        for name, content in shown.items()
        if any(secret.encode() in content for secret in secrets)
    ]


def write_failed(root: Path, baseline: Baseline) -> None:
    """Write a run that died, with a token in its environment and in its last lines."""
    log = write_run(root, baseline)
    text = log.read_bytes().decode()
    head = f"llmb environment: driver: 550-{TOKEN}\n"
    log.write_text(
        head + text[: len(text) // 3].rpartition("\n")[0] + "\n" + FAILS, newline="\n"
    )


@pytest.mark.slow
def test_no_report_shows_a_token_from_logs_on_disk(
    pytester: pytest.Pytester,
    judged: Judge,
    baselines: dict[str, Baseline],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs" / f"of-{TOKEN}"
    runs.mkdir(parents=True)
    write_failed(runs, baselines[GROK])
    (runs / "log-llama9_3_0_0.out").write_text("no step in it\n" + FAILS)
    session = judged(f"--llmb-logs={runs}", "--llmb-unmatched=fail", *REPORTS, "-v")
    assert session.verdicts[GROK] == "INVALID"
    printed = capfd.readouterr()
    assert not find_leaks(pytester.path, printed.out, printed.err, str(session.reports))
    assert not find_leaks(pytester.path, (tmp_path / "summary.md").read_text())
    described = session.described[GROK]
    assert "path-masked" in [note["code"] for note in described["notes"]]
    assert "401 for https://***@hub with ***" in described["problems"][0]["text"]
    assert described["configuration"]["id"] == GROK
    assert "of-***" in described["log"]
    document = json.loads((pytester.path / "a.json").read_text())
    assert {item["id"] for item in document["outcomes"]} >= {GROK}


@pytest.mark.slow
def test_no_file_written_by_a_launch_shows_a_token(
    pytester: pytest.Pytester, judged: Judge, capfd: pytest.CaptureFixture[str]
) -> None:
    write_recipe(
        pytester.path,
        {"job": f"steps 1.0 0 20; printf '%s' '{FAILS}'; exit 1"},
        kind="local",
    )
    session = judged("-k", "fake", "--llmb-launch", "--llmb-retries=0", *REPORTS, "-v")
    printed = capfd.readouterr()
    assert set(session.verdicts.values()) == {"INVALID"}
    reports = [
        (pytester.path / path.partition("=")[2]).read_bytes().decode("latin-1")
        for path in REPORTS
    ]
    assert not find_leaks(
        pytester.path / ".llmbench",
        printed.out,
        printed.err,
        str(session.reports),
        *reports,
    )


@pytest.mark.slow
def test_recorded_baseline_and_custom_test_show_no_token(
    pytester: pytest.Pytester,
    judged: Judge,
    baselines: dict[str, Baseline],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    log = write_run(runs, baselines[GROK])
    log.write_bytes(
        f"llmb environment: driver: 550-{TOKEN}\n".encode() + log.read_bytes()
    )
    judged(f"--llmb-logs={runs}", "-k", GROK, "--llmb-record=recorded")
    recorded = "".join(
        path.read_text() for path in (pytester.path / "recorded").rglob("*.yaml")
    )
    assert "driver: 550-***" in recorded
    pytester.makepyfile("""
        def test_own(llmb_run):
            print("on", dict(llmb_run.found.environment))
            assert dict(llmb_run.found.environment) == {}, "quoted: " + str(llmb_run.found.environment)
    """)
    session = judged(
        f"--llmb-logs={runs}",
        "-k",
        GROK,
        *REPORTS,
        *map(str, pytester.path.glob("test_*.py")),
    )
    printed = capfd.readouterr()
    assert set(session.verdicts.values()) == {"TEST_FAILED"}
    (pytester.path / next(pytester.path.glob("test_*.py")).name).unlink()
    assert not find_leaks(
        pytester.path, printed.out, printed.err, recorded, str(session.reports)
    )


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        (
            "--llmb-history=postgresql:/u:pw-1s@h/d",
            "postgresql:/u:***@h/d: no scheme with ://",
        ),
        (
            "--llmb-history=host=h password=pw-1s",
            "host=h password=***: a connection string, not a URL",
        ),
        (
            "--llmb-history=mysql://u:a pw-1s@h/d",
            "mysql://u:***@h/d: found the scheme 'mysql'",
        ),
        (
            "--llmb-logs=zip://a::https://u:pw-1s@h",
            "reports would show the password or signature in this URL",
        ),
        (
            "--llmb-logs=https://h/a?X-Amz-Signature=pw-1s",
            "reports would show the password or signature in this URL",
        ),
    ],
)
def test_error_message_shows_no_password(
    pytester: pytest.Pytester,
    capfd: pytest.CaptureFixture[str],
    option: str,
    shown: str,
) -> None:
    logs = () if option.startswith("--llmb-logs") else ("--llmb-logs=.",)
    assert pytester.runpytest(*logs, option).ret == pytest.ExitCode.USAGE_ERROR
    printed = "".join(capfd.readouterr())
    assert shown in printed
    assert "pw-1s" not in printed
    assert not list(pytester.path.glob("host=*"))
