"""Ctrl-C and SIGTERM at any time: exit code 2, and reports mention it."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from support.fake_recipe import WELL, write_recipe
from support.forked_processes import CLOSED_TERMINAL, UNREAD, Programs
from support.sessions import Function, Write, signal_at

from pytest_llmbench.baseline import write as baseline_write
from pytest_llmbench.history import queries, record
from pytest_llmbench.history.store import locate_store
from pytest_llmbench.logs.reading import run_reader as reader
from pytest_llmbench.plugin import outputs
from pytest_llmbench.plugin.session_state import Session
from pytest_llmbench.report import document, html, junit
from pytest_llmbench.session import (
    catalog,
    evaluate,
    outcomes,
    session_history,
    settings,
)

FP8 = "grok1_314b-25.05-gb200-fp8-128"

OLD = {
    "junitxml.xml": '<?xml version="1.0"?><testsuites><testsuite errors="0" failures="0"/></testsuites>',
    "llmb.xml": '<?xml version="1.0"?><testsuites tests="1" failures="0"/>',
    "llmb.html": "<!DOCTYPE html><html><head><title>1 green - llmbench</title></head></html>",
    "llmb.json": '{\n "schema": 1,\n "version": "0.1.0",\n "exit_code": 0,\n "green": true\n}',
}
"""Reports of the night before, which was green."""

BEFORE_VERDICTS: dict[str, Function] = {
    "the options are read": (settings, "refuse_logs"),
    "the baselines are read": (catalog, "load"),
    "the history is opened": (session_history, "SessionHistory"),
    "the logs are read": (reader, "make_batches"),
    "the runs are judged": (evaluate, "gather"),
    "the outcomes are decided": (outcomes, "decide_outcomes"),
    "an item runs": (Session, "get_outcome"),
}
AFTER_VERDICTS: dict[str, Function] = {
    "the reports begin": (outputs, "_complete_outcomes"),
    "the JUnit report is made": (junit, "render"),
    "the page is made": (html, "render"),
    "the document is made": (document, "render"),
    "logs are hashed": (session_history, "with_hashes"),
    "the session is stored": (record, "write"),
}


def arguments(folder: Path, logs: Path) -> list[str]:
    for name, text in OLD.items():
        (folder / name).write_text(text)
    reports = [
        "--junitxml=junitxml.xml",
        "--llmb-junit=llmb.xml",
        "--llmb-html=llmb.html",
        "--llmb-json=llmb.json",
    ]
    return [
        "-p",
        "no:cacheprovider",
        f"--llmb-logs={logs}",
        "-k",
        FP8,
        "--llmb-history=h.db",
        *reports,
    ]


def assert_interrupted(folder: Path) -> dict[str, Any]:
    """Check that no report is green or from an earlier session; return the document."""
    for name in ("junitxml.xml", "llmb.xml"):
        assert "<error" in (folder / name).read_text(), name
    assert re.search(r"<title>interrupted, ", (folder / "llmb.html").read_text())
    session: dict[str, Any] = json.loads((folder / "llmb.json").read_text())
    assert (session["exit_code"], session["green"]) == (2, False)
    assert session["failures"]
    assert not [
        path.name for path in folder.iterdir() if path.name.startswith(".llmb-")
    ]
    return session


@pytest.mark.slow
@pytest.mark.parametrize("when", BEFORE_VERDICTS)
def test_session_stopped_by_a_signal_before_its_verdicts_reports_no_outcome(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    when: str,
) -> None:
    number = signal.SIGINT if len(when) % 2 else signal.SIGTERM
    options = arguments(pytester.path, generated(FP8))
    signal_at(monkeypatch, BEFORE_VERDICTS[when], number)
    assert pytester.runpytest_inprocess(*options, no_reraise_ctrlc=True).ret == 2
    assert assert_interrupted(pytester.path)["outcomes"] == []
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("when", AFTER_VERDICTS)
def test_signal_after_verdicts_keeps_judged_outcomes(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    when: str,
) -> None:
    options = arguments(pytester.path, generated(FP8))
    announced = {
        "the JUnit report is made": 2,
        "the page is made": 1,
        "the document is made": 1,
    }
    calls = announced.get(when, 0) + 1
    signal_at(monkeypatch, AFTER_VERDICTS[when], signal.SIGTERM, calls)
    assert pytester.runpytest_inprocess(*options, no_reraise_ctrlc=True).ret == 2
    (outcome,) = assert_interrupted(pytester.path)["outcomes"]
    assert outcome["verdict"] == "PASS"
    (row,) = queries.list_verdicts(locate_store("h.db", pytester.path), FP8)
    assert row.verdict == "PASS"
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert "interrupted by SIGTERM" in printed


@pytest.mark.slow
def test_uninterrupted_session_replaces_old_reports_and_restores_signal_handlers(
    pytester: pytest.Pytester, generated: Write
) -> None:
    options = arguments(pytester.path, generated(FP8))
    handlers = [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    assert pytester.runpytest_inprocess(*options).ret == 0
    assert json.loads((pytester.path / "llmb.json").read_text())["green"]
    for name in ("junitxml.xml", "llmb.xml"):
        text = (pytester.path / name).read_text()
        assert text != OLD[name]
        assert "<error" not in text
    assert (
        "<title>1 green - llmbench</title>" in (pytester.path / "llmb.html").read_text()
    )
    assert [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ] == handlers


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--collect-only"], ["--help"]])
def test_informational_session_keeps_older_reports(
    pytester: pytest.Pytester, generated: Write, options: list[str]
) -> None:
    pytester.runpytest_inprocess(*arguments(pytester.path, generated(FP8)), *options)
    own = [
        name for name in OLD if name.startswith("llmb")
    ]  # pytest writes its own in any case
    assert {name: (pytester.path / name).read_text() for name in own} == {
        name: OLD[name] for name in own
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--llmb-tolerance=much"], ["--llmb-baselines=none"]]
)
def test_usage_error_replaces_older_reports(
    pytester: pytest.Pytester, generated: Write, options: list[str]
) -> None:
    assert (
        pytester.runpytest_inprocess(
            *arguments(pytester.path, generated(FP8)), *options
        ).ret
        == 4
    )
    told = json.loads((pytester.path / "llmb.json").read_text())
    assert (told["green"], told["exit_code"]) == (False, 4)
    assert options[0] in told["failures"][0]
    assert "<error" in (pytester.path / "llmb.xml").read_text()


@pytest.mark.slow
def test_reports_of_a_session_killed_by_sigkill_state_that_it_is_unfinished(
    programs: Programs, pytester: pytest.Pytester, generated: Write
) -> None:
    pytester.makeconftest("""
        import os, signal
        def pytest_collection_finish(session): os.kill(os.getpid(), signal.SIGKILL)
    """)
    options = arguments(pytester.path, generated(FP8))
    output = pytester.path / "output"
    assert (
        programs.run("pytest", options, pytester.path, output, output)
        == -signal.SIGKILL
    )
    assert "has not ended" in assert_interrupted(pytester.path)["failures"][0]


@pytest.mark.slow
def test_closed_terminal_does_not_stop_a_launch(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pytest.TerminalReporter.write_line

    def write_line(self: pytest.TerminalReporter, line: str, **markup: bool) -> None:
        if "fake_one" in line:
            raise OSError(errno.EIO, "Input/output error")
        original(self, line, **markup)

    write_recipe(pytester.path, {"one": WELL}, kind="local")
    monkeypatch.setattr(pytest.TerminalReporter, "write_line", write_line)
    assert pytester.runpytest_inprocess("-k", "fake", "--llmb-launch").ret == 0


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.3, 1)])
def test_closed_pipe_changes_no_verdict(
    programs: Programs,
    pytester: pytest.Pytester,
    generated: Write,
    factor: float,
    code: int,
) -> None:
    """As `| head -1` does."""
    options = [*arguments(pytester.path, generated(FP8, factor=factor)), "-v"]
    assert (
        programs.run("pytest", options, pytester.path, UNREAD, pytester.path / "errors")
        == code
    )
    assert (pytester.path / "errors").read_text() == ""
    session = json.loads((pytester.path / "llmb.json").read_text())
    assert (session["exit_code"], len(session["outcomes"])) == (code, 1)


@pytest.mark.slow
def test_sighup_of_a_closed_terminal_ends_the_session_with_exit_code_two(
    programs: Programs, pytester: pytest.Pytester, generated: Write
) -> None:
    pytester.makeconftest("""
        import signal
        def pytest_collection_finish(session): signal.raise_signal(signal.SIGHUP)
    """)
    options = arguments(pytester.path, generated(FP8))
    assert (
        programs.run(
            "pytest", options, pytester.path, CLOSED_TERMINAL, pytester.path / "errors"
        )
        == 2
    )
    assert (pytester.path / "errors").read_text() == ""
    assert_interrupted(pytester.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ((evaluate, "gather"), "nothing was recorded"),
        (
            (baseline_write, "write_atomically"),
            "each file in own is either unchanged or complete",
        ),
        (
            (Session, "get_outcome"),
            "recorded before it was interrupted: own/grok1/25.05.yaml",
        ),
    ],
)
def test_interrupted_recording_leaves_each_baseline_file_unchanged_or_complete(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    moment: Function,
    said: str,
) -> None:
    runs = generated(FP8)
    options = arguments(pytester.path, runs)
    recording = [
        *(word for word in options if "history" not in word),
        "--llmb-record=own",
    ]
    assert pytester.runpytest_inprocess(*recording).ret == 0
    path = pytester.path / "own" / "grok1" / "25.05.yaml"
    before = path.read_bytes()
    shutil.rmtree(runs)
    generated(FP8, factor=1.001)
    signal_at(monkeypatch, moment, signal.SIGTERM)
    assert pytester.runpytest_inprocess(*recording, no_reraise_ctrlc=True).ret == 2
    assert said in "".join(assert_interrupted(pytester.path)["failures"])
    assert (path.read_bytes() == before) is (moment[0] is not Session)
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.slow
def test_regression_is_reported_if_a_signal_arrives_during_an_exitfirst_stop(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = arguments(pytester.path, generated(FP8, factor=1.3))
    signal_at(monkeypatch, (outputs, "_complete_outcomes"), signal.SIGTERM)
    assert pytester.runpytest_inprocess(*options, "-x", no_reraise_ctrlc=True).ret == 2
    (outcome,) = assert_interrupted(pytester.path)["outcomes"]
    assert outcome["verdict"] == "REGRESSION"
