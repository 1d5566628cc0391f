"""No command of `llmbench` prints or writes a secret."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from generator import write_run
from support.nccl_traces import record, run
from support.outcomes import make_session
from support.remembered import ID, document, outcome, session

from pytest_llmbench.cli.main import main, make_parser
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.report.document import render_session
from pytest_llmbench.session.unsaved import write_unsaved
from pytest_llmbench.tools.command_line import read_shipped_and_custom_recipes

TOKEN = "hf_53cr3t-of-m1ne"
FOREIGN = "hf_" + "aB3" * 11
"""One that no variable holds: its form tells."""

BASELINES = {
    baseline.key.id: baseline
    for recipe in read_shipped_and_custom_recipes(())
    for baseline in recipe.baselines
}
GROK = "grok1_314b-25.05-gb200-bf16-128"

TEXT = f'password="a,b" of {TOKEN}, and https://u:12/p4ss@h.org with {FOREIGN}'
SECRETS = (TOKEN, FOREIGN, "a,b", "p4ss")
HIDDEN = 'password="***" of ***, and https://u:***@h.org with ***'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the command, in which HF_TOKEN is a secret; that what identifies
    something equals one changes nothing."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("OTHER_TOKEN", ID)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def history(folder: Path) -> StoreLocation:
    """A history written by an older version, with unredacted secrets."""
    location = StoreLocation("history.db", folder / "history.db")
    told = {
        **outcome(8.0),
        "text": TEXT,
        "tolerance": TOKEN,
        "environment": {"driver": TEXT},
    }
    write(
        location,
        document(
            told,
            options=[f"--llmb-html={TOKEN}"],
            environment={"CI_JOB_URL": f"https://ci/{TOKEN}"},
        ),
    )
    return location


def call(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command, check that its output has no secret, and return the output."""
    try:
        assert main(list(map(str, arguments))) == code
    except SystemExit as stopped:
        assert stopped.code == code  # noqa: PT017 (argparse ends that way)
    printed = "".join(capsys.readouterr())
    assert not [secret for secret in SECRETS if secret in printed]
    return printed


@pytest.mark.slow
def test_history_is_shown_without_secrets(
    capsys: pytest.CaptureFixture[str], history: StoreLocation
) -> None:
    history_option = ("--history", history.shown)
    assert "***" in call(capsys, "history", "show", "1", *history_option)
    call(capsys, "history", "list", *history_option)
    call(capsys, "history", "prune", "--keep=1d", "--dry-run", *history_option)
    assert "no run ***" in call(
        capsys, "history", "show", TOKEN, *history_option, code=2
    )


@pytest.mark.slow
def test_history_is_exported_without_secrets(
    capsys: pytest.CaptureFixture[str], history: StoreLocation
) -> None:
    history_option = ("--history", history.shown)
    (row,) = json.loads(
        call(capsys, "history", "export", "--format=json", *history_option)
    )
    assert (row["text"], row["environment"], row["tolerance"]) == (
        HIDDEN,
        {"driver": HIDDEN},
        "***",
    )
    assert row["configuration"] == ID
    assert (row["step_time_seconds"], row["number"]) == (8.0, 1)
    call(capsys, "history", "export", *history_option)
    for name in ("a.csv", "a.parquet", "a.json"):
        call(capsys, "history", "export", "-o", name, *history_option)
        assert not [
            secret for secret in SECRETS if secret.encode() in Path(name).read_bytes()
        ]
    assert pd.read_csv("a.csv")["text"].item() == HIDDEN
    assert pd.read_parquet("a.parquet")["text"].item() == HIDDEN


def test_added_sessions_are_stored_without_secrets(
    capsys: pytest.CaptureFixture[str], folder: Path, history: StoreLocation
) -> None:
    path = write_unsaved(session({**outcome(7.5), "text": TEXT}), [folder])
    Path("history.db").unlink()
    assert "1 verdict added" in call(
        capsys, "history", "add", path, "--history", history.shown
    )
    stored = Path("history.db").read_bytes()
    assert not [secret for secret in SECRETS if secret.encode() in stored]
    assert ID.encode() in stored


def test_trace_is_printed_and_saved_without_secrets(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "log.out").write_text("".join(run()) + record(TOKEN) + record(FOREIGN))
    assert "***" in call(capsys, "nccl", "log.out", "--save=a.json")
    assert TOKEN not in Path("a.json").read_text()
    assert "***" in str(
        json.loads(call(capsys, "nccl", "log.out", "--format=json"))["rows"]
    )
    (folder / "other.out").write_text("".join(run()))
    assert "***" in call(capsys, "nccl", "other.out", "--against=a.json", code=1)


@pytest.mark.slow
def test_runs_are_listed_and_judged_without_secrets(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    runs = folder / f"of-{TOKEN}"
    runs.mkdir()
    write_run(runs, BASELINES[GROK])
    (runs / "log-llama9_3_0_0.out").write_text(f"iteration no step in it {TEXT}\n")
    for form in ("table", "csv", "json"):
        call(capsys, "summary", runs, f"--format={form}")
    assert "items would change" in call(capsys, "replay", runs, "--tolerance=9%")
    assert "of-***" in call(capsys, "replay", runs / "none", "--tolerance=9%", code=2)


def test_chat_message_contains_no_secrets(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "a.json").write_bytes(render_session(make_session(failures=(TEXT,))))
    assert HIDDEN in call(capsys, "chat", "a.json")
    assert (
        HIDDEN
        in json.loads(
            call(
                capsys, "chat", "a.json", f"--link=https://ci/{TOKEN}", "--format=slack"
            )
        )["text"]
    )


@pytest.mark.slow
def test_drafts_and_differences_contain_no_secrets(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "README.md").write_text(
        f"# {TEXT}\n\n| {TOKEN} | GPUs | step time (s) |\n|---|---|---|\n| x | 8 | 1.0 |\n"
    )
    assert "'***': the row or column" in call(
        capsys, "baselines", "import", "README.md", "--release=25.05", code=2
    )
    call(capsys, "baselines", "diff", TOKEN, "25.05", code=2)
    assert json.loads(
        call(capsys, "baselines", "diff", "25.05", "25.05", "--format=json")
    )


def list_commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    """Return the command lines of all commands."""
    groups = [
        action
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    below = [
        found
        for group in groups
        for name, of in group.choices.items()
        for found in list_commands(of, (*words, name))
    ]
    return below or [words]


@pytest.mark.parametrize("words", list_commands(make_parser()), ids=" ".join)
def test_usage_errors_quote_no_secret(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    for strange in (f"--strange={TOKEN}", "--strange=postgresql://u:p4ss@h/d"):
        ends = ("--good=f", "--bad=g") if words == ("probe",) else ()
        words_after = (
            "a",
            "b",
            "--history=c",
            "--release=d",
            "--keep=9d",
            "-oe",
            *ends,
            strange,
        )
        assert "***" in call(capsys, *words, *words_after, code=129 if ends else 2)


def test_unexpected_value_is_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["history", "prune", f"--keep={TOKEN}"],
        ["summary", "a", f"--format={TOKEN}"],
        [TOKEN],
    ):
        assert "***" in call(capsys, *arguments, code=2)


@pytest.mark.slow
def test_output_without_secrets_is_unchanged(
    capsys: pytest.CaptureFixture[str],
    history: StoreLocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_TOKEN", "OTHER_TOKEN"):
        monkeypatch.delenv(name)
    Path("history.db").unlink()
    text = "at https://host:8080/path@v2, 7.5 s of /data/a@b:/c, hf_model and user@host"
    write(history, document({**outcome(7.5), "text": text}))
    rows = json.loads(
        call(capsys, "history", "export", "--format=json", "--history", history.shown)
    )
    assert rows[0]["text"] == text
    assert "***" not in call(capsys, "history", "show", "1", "--history", history.shown)
    assert os.environ.get("HF_TOKEN") is None
