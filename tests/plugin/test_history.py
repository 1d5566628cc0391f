"""Sessions with a history: storing, using stored runs, and write errors."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from generator import write_run
from support.sessions import Judge, JudgedSession, Write

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import queries, store
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.report import junit
from pytest_llmbench.report.document import read
from pytest_llmbench.report.outcome_documents import select_configurations
from pytest_llmbench.session import evaluate
from pytest_llmbench.session import session_history as remembering

pytestmark = pytest.mark.wheel

GROK = "grok1_314b-25.05-gb200-bf16-128"
LLAMA = "llama3.1_8b-25.04-h100-bf16-8"
FIRST = datetime(2025, 7, 1, 2, tzinfo=UTC)
WOBBLE = (0, 1, -1, 2, 0, -2, 1, 0, -1, 1)
"""Per mille of the step time, night by night."""

HISTORY = "--llmb-history=h.db"

Night = Callable[..., JudgedSession]


@pytest.fixture
def written(baselines: dict[str, Baseline], tmp_path: Path) -> Callable[..., Path]:
    """Write the run of a day into its own folder, or into `name`; return the folder."""

    def write(number: int, name: str = "", **options: Any) -> Path:
        folder = tmp_path / (name or f"night-{number}")
        folder.mkdir(exist_ok=True)
        fields = {
            "factor": 1 + 0.001 * WOBBLE[number % 10],
            "noise": 0.0003,
            "job_id": str(5000 + number),
            **options,
        }
        write_run(
            folder, baselines[GROK], started=FIRST + timedelta(days=number), **fields
        )
        return folder

    return write


@pytest.fixture
def judge_day(judged: Judge, written: Callable[..., Path]) -> Night:
    """Judge the run of one day alone in its folder."""

    def run(number: int, *arguments: str, **options: Any) -> JudgedSession:
        return judged(
            f"--llmb-logs={written(number, **options)}", "-k", GROK, HISTORY, *arguments
        )

    return run


@pytest.fixture
def before(judged: Judge, written: Callable[..., Path]) -> Callable[[range], None]:
    """Judge the runs of these days separately, then delete their folders."""

    def run(numbers: range) -> None:
        folder = next(iter([written(number, "before") for number in numbers]))
        judged(f"--llmb-logs={folder}", "-k", GROK, HISTORY, "--llmb-runs=each")
        shutil.rmtree(folder)

    return run


def locate_history(pytester: pytest.Pytester) -> StoreLocation:
    return StoreLocation("h.db", pytester.path / "h.db")


def noise(judged: JudgedSession) -> dict[str, Any]:
    found: dict[str, Any] = judged.described[GROK]["estimate"]["run_to_run"]
    return found


@pytest.mark.slow
def test_noise_is_estimated_from_stored_runs_whose_folders_were_deleted(
    judge_day: Night,
    before: Callable[[range], None],
    judged: Judge,
    written: Callable[..., Path],
    pytester: pytest.Pytester,
) -> None:
    """A run alone in its folder is judged with the noise of nine stored days."""
    assert noise(judge_day(-1))["measured"] is False
    before(range(9))
    tonight = judge_day(9)
    assert noise(tonight)["source"] == "10 days of history"
    for number in range(-1, 10):
        folder = written(number, "together")
    together = judged(f"--llmb-logs={folder}", "-k", GROK)
    assert noise(together) == {**noise(tonight), "source": "10 days"}
    estimates = [
        session.described[GROK]["estimate"] | {"run_to_run": None}
        for session in (tonight, together)
    ]
    assert estimates[0] == estimates[1]
    session = judged(f"--llmb-logs={folder}", "-k", GROK, HISTORY)
    assert noise(session) == noise(together)  # no run counts twice
    assert len(queries.list_runs(locate_history(pytester), "", None, 100)) == 11


@pytest.mark.slow
def test_stored_runs_are_never_judged(
    judge_day: Night, judged: Judge, tmp_path: Path
) -> None:
    """A good stored run does not replace the bad or missing run of the session."""
    assert judge_day(0).verdicts == {GROK: "PASS"}
    assert judge_day(3, factor=1.2).verdicts == {GROK: "REGRESSION"}
    (tmp_path / "empty").mkdir()
    session = judged(f"--llmb-logs={tmp_path / 'empty'}", "-k", GROK, HISTORY)
    assert (session.verdicts, session.ret) == (
        {GROK: "MISSING"},
        pytest.ExitCode.TESTS_FAILED,
    )


@pytest.mark.slow
def test_caution_names_a_stored_run_newer_than_the_judged_run(
    judge_day: Night, judged: Judge, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    """The transfer of the newest run failed: only an older folder was judged."""

    def list_cautions(*folders: str) -> list[str]:
        logs = [f"--llmb-logs={tmp_path / folder}" for folder in folders]
        judged(*logs, "-k", GROK, HISTORY, "--llmb-json=out.json")
        return [
            caution.text
            for caution in read(pytester.path / "out.json").cautions
            if caution.code == "newer-run-not-judged"
        ]

    judge_day(0)
    assert judge_day(3, factor=1.2).verdicts == {GROK: "REGRESSION"}
    named = (
        f"{GROK} (job 5003 of {FIRST + timedelta(days=3):%Y-%m-%d %H:%M}, REGRESSION)"
    )
    assert list_cautions("night-0") == [
        f"newer in the history, but not judged: {named}"
    ]
    assert list_cautions("night-0", "night-3") == list_cautions("night-3") == []


@pytest.mark.slow
def test_undated_run_counts_as_the_newest(
    judge_day: Night, before: Callable[[range], None]
) -> None:
    """The clock of the node was ahead: without the nights a change to slower in them
    would not fail any more."""
    before(range(10))
    outcome = judge_day(2000, "--llmb-trend=fail").described[GROK]
    assert outcome["run"]["started"] is None
    assert outcome["estimate"]["run_to_run"]["source"] == "10 days of history"


@pytest.mark.slow
def test_terminal_prints_the_number_of_stored_runs_and_verdicts(
    judge_day: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    judge_day(0)
    first = capsys.readouterr().out
    assert "llmbench: history in h.db: nothing yet" in first
    assert "history: 1 verdict stored in h.db" in first
    judge_day(1)
    assert (
        "llmbench: history in h.db: 1 run of 1 configuration" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_history_can_be_set_in_the_ini_file(
    judged: Judge,
    generated: Write,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables of the CI are stored as well."""
    pytester.makeini("[pytest]\nllmb_history = sqlite:///h.db\n")
    monkeypatch.setenv("GITHUB_SHA", "abc1234")
    for name, value in (
        ("SERVER_URL", "https://git.example"),
        ("REPOSITORY", "a/b"),
        ("RUN_ID", "7"),
    ):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    judged(f"--llmb-logs={generated(GROK)}", "-k", GROK)
    (row,) = queries.list_everything(locate_history(pytester))
    assert (row["git_commit"], row["ci_url"]) == (
        "abc1234",
        "https://git.example/a/b/actions/runs/7",
    )
    assert row["options"][-2:] == ["-k", GROK]


@pytest.mark.slow
def test_only_the_xdist_controller_stores_runs(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    generated(LLAMA)
    folder = generated(GROK, restarts=1, cut=22)
    session = judged(f"--llmb-logs={folder}", "-n1", HISTORY, "--llmb-json=out.json")
    rows = queries.list_everything(locate_history(pytester))
    assert session.ret == pytest.ExitCode.OK
    assert len({row["session"] for row in rows}) == 1
    assert sorted(row["verdict"] for row in rows) == ["MISSING"] * 80 + ["PASS"] * 2
    (row,) = (row for row in rows if row["configuration"] == GROK)
    assert row["log_sha256"] == files_of(next(folder.rglob("*grok1*")))
    assert len(set(row["log_sha256"])) == len(row["log_fingerprints"]) == 2
    assert (
        "sha256"
        not in repr(session.described[GROK]) + (pytester.path / "out.json").read_text()
    )


# --- the hashes of logs ---------------------------------------------------------------


def files_of(folder: Path) -> list[str]:
    """Return the sha256 of the logs of a folder, in the order of their attempts."""
    return [
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("log-*.out"))
    ]


@pytest.mark.slow
def test_session_with_a_locked_history_database_ends_without_a_retry(
    written: Callable[..., Path],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        raise HistoryError("h.db: locked")

    monkeypatch.setattr(evaluate, "gather", fail)
    result = pytester.runpytest_inprocess(f"--llmb-logs={written(0)}", HISTORY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len(calls) == 1
    result.stderr.fnmatch_lines(["*h.db: locked*"])


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_hashing_loses_no_verdict(
    judge_day: Night,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[BaseException],
) -> None:
    """Also where the interrupt arrives as another error: StopSignals.keep_raised says
    when."""

    def interrupted(*arguments: Any) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr(remembering, "with_hashes", interrupted)
    session = judge_day(0)
    (row,) = queries.list_verdicts(locate_history(pytester), GROK)
    assert (session.ret, row.verdict, row.log_sha256) == (
        pytest.ExitCode.INTERRUPTED,
        "PASS",
        [],
    )
    assert "the sha256 of this session's logs are not stored" in capsys.readouterr().out


# --- what is stored -------------------------------------------------------------------


@pytest.mark.slow
def test_several_tests_of_one_configuration_store_one_verdict_the_worst(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    """The worst of them, as in the summary."""
    pytester.makepyfile("""
        def test_one(llmb_measurement): pass
        def test_two(llmb_measurement): assert llmb_measurement is None
    """)
    judged(f"--llmb-logs={generated(GROK)}", HISTORY, "-k", GROK, str(pytester.path))
    (row,) = queries.list_everything(locate_history(pytester))
    assert (row["verdict"], row["counts"]) == ("TEST_FAILED", True)


@pytest.mark.slow
def test_informational_session_creates_no_history(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    judged(f"--llmb-logs={generated(GROK)}", HISTORY, "--collect-only")
    assert not (pytester.path / "h.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--llmb-history=sqlit:///h.db"],
            "--llmb-history=sqlit:///h.db: found the scheme 'sqlit' (did you mean",
        ),
        (["--llmb-history=h.txt"], "--llmb-history=h.txt: the file is not a database"),
        (
            ["--llmb-history=h.db", "--llmb-record=own"],
            "--llmb-history with --llmb-record: a session that records",
        ),
    ],
)
def test_wrong_history_option_is_refused_before_reading(
    pytester: pytest.Pytester, tmp_path: Path, arguments: list[str], message: str
) -> None:
    pytester.path.joinpath("h.txt").write_text("no database at all")
    (tmp_path / "broken.out").write_bytes(
        b"\x1f\x8b broken"
    )  # reading it would be told
    result = pytester.runpytest(f"--llmb-logs={tmp_path}", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{re.escape(message).replace(chr(92), '')}*"])
    assert "broken" not in result.stdout.str()


# --- what cannot be stored ------------------------------------------------------------


def unsaved(pytester: pytest.Pytester) -> list[Path]:
    return sorted(pytester.path.glob("llmb-history-unsaved-*.json"))


def held_while_it_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another connection hold the store whenever a session would write."""
    storing = remembering.SessionHistory.store

    def while_it_is_held(self: Any, *arguments: Any) -> Any:
        with store.connect(self.place, writes=True):
            return storing(self, *arguments)

    monkeypatch.setattr(remembering.SessionHistory, "store", while_it_is_held)


@pytest.mark.slow
def test_locked_store_changes_no_verdict(
    judge_day: Night,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file keeps the verdict, and `llmbench history add` stores it later, once."""
    monkeypatch.setattr(
        store, "PATIENCE_SECONDS", 0.1
    )  # before the first connection, whose engine is kept
    judge_day(0)
    held_while_it_stores(monkeypatch)
    capsys.readouterr()
    ended = judge_day(1, "--llmb-junit=junit.xml", factor=1.2)
    output = " ".join(capsys.readouterr().out.split())
    (file,) = unsaved(pytester)
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    assert (
        "history: 1 verdict not stored (no verdict depends on it): h.db: database is locked (SQLITE_BUSY)"
        in output
    )
    assert (
        f"they were saved to a file, add it with: llmbench history add {file.name} --history h.db"
        in output
    )
    assert (pytester.path / "junit.xml").exists()
    assert [
        row.job_id for row in queries.list_runs(locate_history(pytester), "", None, 9)
    ] == ["5000"]
    for expected in ("1 verdict added to h.db", "0 verdicts added to h.db"):
        assert cli.main(["history", "add", str(file), "--history", "h.db"]) == 0
        assert expected in capsys.readouterr().out
    assert [
        row.job_id for row in queries.list_runs(locate_history(pytester), "", None, 9)
    ] == [
        "5000",
        "5001",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [TypeError("an argument\nof another version"), KeyboardInterrupt()],
    ids=["fault", "interrupt"],
)
def test_verdicts_that_cannot_be_stored_are_saved_to_a_file_for_import(
    judge_day: Night,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    """And the session ends as it would have."""

    def fail(self: Any, document: Any) -> None:
        raise error

    monkeypatch.setattr(remembering.SessionHistory, "_write", fail)
    assert judge_day(0).ret == pytest.ExitCode.OK
    (file,) = unsaved(pytester)
    output = " ".join(capsys.readouterr().out.split())
    assert (
        f"history: 1 verdict not stored (no verdict depends on it): {type(error).__name__}("
        in output
    )
    assert cli.main(["history", "add", str(file), "--history", "h.db"]) == 0
    assert len(queries.list_everything(locate_history(pytester))) == 1


@pytest.mark.slow
def test_verdict_is_stored_although_writing_the_junit_report_crashes(
    judge_day: Night, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, written = junit.render, []

    def fail(*arguments: Any, **options: Any) -> Any:
        written.append(arguments)
        if len(written) == 1:  # that the session has not ended
            return render(*arguments, **options)
        raise LookupError("a report with a fault")

    monkeypatch.setattr(junit, "render", fail)
    with pytest.raises(LookupError):
        judge_day(0, "--llmb-junit=junit.xml")
    assert [
        row["verdict"] for row in queries.list_everything(locate_history(pytester))
    ] == ["PASS"]


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A folder on a file system of 300 kB; skipped where root may not mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.getuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(folder)],
            check=False,
        ).returncode
    ):
        pytest.skip("needs a root that may mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_full_disk_changes_no_verdict_and_keeps_the_store(
    judged: Judge,
    generated: Write,
    small: Path,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = generated(GROK)
    arguments = (
        f"--llmb-logs={folder}",
        "-k",
        GROK,
        f"--llmb-history={small / 'h.db'}",
    )
    assert judged(*arguments).ret == pytest.ExitCode.OK
    with suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    capsys.readouterr()
    session = judged(f"--llmb-logs={folder}", f"--llmb-history={small / 'h.db'}")
    output = " ".join(capsys.readouterr().out.split())
    assert (session.verdicts[GROK], session.ret) == ("PASS", pytest.ExitCode.OK)
    assert "history: 82 verdicts not stored" in output
    assert "make room" in output
    (file,) = unsaved(pytester)
    assert len(select_configurations(read(file).outcomes)) == 82
    (small / "filler").unlink()
    assert len(queries.list_everything(StoreLocation("h.db", small / "h.db"))) == 1
    assert (
        cli.main(["history", "add", str(file), "--history", str(small / "h.db")]) == 0
    )
    assert len(queries.list_everything(StoreLocation("h.db", small / "h.db"))) == 83


@pytest.mark.slow
def test_verdicts_lost_because_neither_history_nor_file_is_writable_are_reported(
    judge_day: Night,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No folder takes the file either: files may not grow here any more."""

    def refused(self: Any, document: Any) -> None:
        raise HistoryError("h.db: gone")

    monkeypatch.setattr(remembering.SessionHistory, "_write", refused)
    storing = remembering.SessionHistory.store

    def limited(self: Any, *arguments: Any) -> Any:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            return storing(self, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(remembering.SessionHistory, "store", limited)
    assert judge_day(0).ret == pytest.ExitCode.OK
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "h.db: gone; they could not be saved to a file either (File too large) and are lost"
        in output
    )
    assert unsaved(pytester) == []
