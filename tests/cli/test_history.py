"""`llmbench history`: what it prints, writes, removes and refuses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import builders
import pandas as pd
import pytest
from remembered import ID, START, document, nights, outcome

from pytest_llmbench.cli import main as cli
from pytest_llmbench.cli.history import parse_days
from pytest_llmbench.history.queries import prune
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.unsaved import write_unsaved

pytestmark = pytest.mark.wheel

FP8 = replace(builders.KEY, dtype="fp8")

Command = Callable[..., str]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    """A store with three nights, one of them of two configurations, and one that is missing."""
    monkeypatch.chdir(tmp_path)
    place = StoreLocation("history.db", tmp_path / "history.db")
    write(place, document(*nights([7.4, 7.5]), began=START + timedelta(days=1)))
    slow = {**outcome(8.0, 2, job="77"), "verdict": "REGRESSION", "environment": {"driver": "580.1"}}
    write(place, document(slow, outcome(5.0, 2, key=FP8), environment={"CI_COMMIT_SHA": "abc1234"}))
    write(place, document(outcome(None)))
    return place


@pytest.fixture
def command(history: StoreLocation, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `llmbench history` with these arguments and return what it prints; it has to end with this exit code."""

    def run(*arguments: str, code: int = 0) -> str:
        assert cli.main(["history", *arguments, "--history", history.shown]) == code
        out, err = capsys.readouterr()
        assert max(map(len, out.splitlines()), default=0) <= 79 or "export" in arguments
        return err if code else out

    return run


def test_list_shows_runs_by_configuration_oldest_first(command: Command) -> None:
    assert command("list").splitlines() == [
        "grok1_314b-25.05-gb200-bf16-128",
        "      1  2025-11-01 02:00  PASS             7.400 s   +1.0 %  job 1000",
        "      2  2025-11-02 02:00  PASS             7.500 s   +2.4 %  job 1001",
        "      3  2025-11-03 02:00  REGRESSION       8.000 s   +9.2 %  job 77",
        "grok1_314b-25.05-gb200-fp8-128",
        "      4  2025-11-03 02:00  IMPROVEMENT      5.000 s  -31.7 %  job 1002",
    ]


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["-k", "grok1 and bf16"], ["1", "2", "3"]),
        (["-k", "not BF16"], ["4"]),
        (["-k", "llama or fp8 and not bf16"], ["4"]),
        (["--limit", "1"], ["3", "4"]),
        (["--since", "2025-11-02T02:00+00:00", "-k", "bf16"], ["2", "3"]),
    ],
)
def test_list_shows_what_was_asked_for(command: Command, arguments: list[str], numbers: list[str]) -> None:
    lines = command("list", *arguments).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(" ")] == numbers


def test_list_says_that_nothing_fits(command: Command) -> None:
    assert "no run that fits; without -k and --since `list` shows all" in command("list", "-k", "llama", code=2)


def test_list_of_an_empty_history_asks_for_nothing_to_be_left_out(command: Command, history: StoreLocation) -> None:
    prune(history, datetime.now(UTC), dry_run=False)
    assert "no run in it" in command("list", code=2)


def test_show_tells_everything_of_the_last_run_or_of_a_number(command: Command) -> None:
    shown = command("show", ID)
    assert shown == command("show", "3")
    for told in ("REGRESSION", "job 77", "environment driver", "580.1", "mean of steps 11 to 44", "commit abc"):
        assert told in shown
    assert repr(outcome(8.0, 2)["window_seconds"][0]) in shown
    assert "7.400 s" in command("show", "1")


def test_show_leaves_out_what_a_run_without_a_baseline_does_not_have(command: Command, history: StoreLocation) -> None:
    write(history, document({**outcome(8.0, 2, job="77"), "expected_seconds": None, "bound_seconds": None}))
    shown = command("show", "3")
    assert not [line for line in shown.splitlines() if line.endswith("None")]
    assert "expected_seconds" in command("show", "1")


def test_show_tells_the_hash_of_each_log_behind_each_verdict(command: Command, history: StoreLocation) -> None:
    """With all its digits, and which could not be told; sessions before there were hashes say nothing of them."""
    hashed = {**outcome(8.0, 2, job="77"), "log_sha256": ["0123456789abcdef" * 4, None]}
    write(history, document(hashed))
    lines = command("show", "3").splitlines()
    assert lines[-2:] == [f"    sha256 {'0123456789abcdef' * 4}", "    sha256 not known"]
    assert sum("sha256" in line for line in lines) == 2


def test_show_names_the_nearest_configuration(command: Command) -> None:
    told = command("show", ID.replace("314b", "314"), code=2)
    assert f"(did you mean {ID!r}?)" in told


@pytest.mark.slow
def test_export_has_a_row_for_each_verdict(command: Command, tmp_path: Path) -> None:
    """The same from each format: runs, what is missing, all metrics, and the steps with all digits."""
    rows = json.loads(command("export", "--format", "json"))
    assert [row["verdict"] for row in rows] == ["PASS", "PASS", "REGRESSION", "IMPROVEMENT", "MISSING"]
    assert rows[0]["started"] == START.isoformat()
    command("export", "-o", "h.csv")
    command("export", "--format", "parquet", "-o", "h.parquet")
    csv, parquet = pd.read_csv(tmp_path / "h.csv"), pd.read_parquet(tmp_path / "h.parquet")
    for name in ("configuration", "verdict", "job_id", "expected_seconds", "session", "host"):
        written = [row[name] for row in rows]
        assert [None if pd.isna(one) else one for one in parquet[name]] == written, name
    assert csv["run_seconds"].dropna().tolist() == [row["run_seconds"] for row in rows if row["run_seconds"]]
    assert list(parquet["number"].dropna()) == [1, 2, 3, 4]
    assert "1,2025" in (tmp_path / "h.csv").read_text()  # and not 1.0, which `show` does not know
    assert [json.loads(text) for text in csv["step_seconds"]] == [row["step_seconds"] for row in rows]
    assert [list(steps) for steps in parquet["step_seconds"]] == [row["step_seconds"] for row in rows]


@pytest.mark.slow
def test_the_ending_of_the_file_says_which_format_is_meant(command: Command, tmp_path: Path) -> None:
    """A table of texts under a name that says Parquet is read by nothing."""
    for name in ("h.parquet", "h.JSON", "h.jsonl", "h.txt"):
        command("export", "-o", name)
    lines = (tmp_path / "h.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == json.loads((tmp_path / "h.JSON").read_text())
    assert (tmp_path / "h.parquet").read_bytes()[:4] == b"PAR1"
    assert len(json.loads((tmp_path / "h.JSON").read_text())) == len(pd.read_csv(tmp_path / "h.txt"))
    command("export", "--format", "csv", "-o", "other.json")
    assert (tmp_path / "other.json").read_text() == (tmp_path / "h.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h.csv", "h.json", "h.jsonl", "h.parquet"])
def test_an_export_takes_the_place_of_an_older_one_and_of_nothing_else(
    command: Command, history: StoreLocation, tmp_path: Path, name: str
) -> None:
    """Also that of a store that was still empty."""
    path = tmp_path / name
    path.touch()
    command("export", "-o", name)
    before = path.read_bytes()
    prune(history, datetime.now(UTC), dry_run=False)
    command("export", "-o", name)
    assert path.read_bytes() != before
    write(history, document(outcome(7.4)))
    command("export", "-o", name)
    assert len(path.read_bytes()) > 100
    (tmp_path / "mine").write_text("a table of mine\n")
    (tmp_path / f"link-{name}").symlink_to(path)
    format_name = name.partition(".")[2]
    told = command("export", "--format", format_name, "-o", "mine", code=2)
    assert "mine: cannot be written: a file that is no export of a history, and is not replaced" in told
    assert "a link to the file" in command("export", "-o", f"link-{name}", code=2)
    assert (tmp_path / "mine").read_text() == "a table of mine\n"


def test_times_are_timestamps_in_parquet(command: Command, tmp_path: Path) -> None:
    """They sort and subtract as they are; what has no run has no start."""
    rows = json.loads(command("export", "--format", "json"))
    command("export", "-o", "h.parquet")
    table = pd.read_parquet(tmp_path / "h.parquet")
    for name in ("started", "judged"):
        assert str(table[name].dtype) == "datetime64[us, UTC]"
        times = [None if pd.isna(moment) else moment.isoformat() for moment in table[name]]
        assert times == [row[name] for row in rows]
    assert table["started"].isna().tolist() == [False] * 4 + [True]


@pytest.mark.slow
def test_export_tells_the_hashes(command: Command, history: StoreLocation, tmp_path: Path) -> None:
    write(history, document({**outcome(7.4), "log_sha256": ["ab" * 32, None]}))
    rows = json.loads(command("export", "--format", "json"))
    assert [row["log_sha256"] for row in rows] == [[], [], [], [], [], ["ab" * 32, None]]
    command("export", "-o", "h.csv")
    command("export", "--format", "parquet", "-o", "h.parquet")
    for table in (pd.read_csv(tmp_path / "h.csv"), pd.read_parquet(tmp_path / "h.parquet")):
        assert [json.loads(text) for text in table["log_sha256"]] == [row["log_sha256"] for row in rows]


def test_parquet_without_its_package_or_a_file_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "give a file with -o FILE" in command("export", "--format", "parquet", code=2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else name)
    told = command("export", "--format", "parquet", "-o", "h.parquet", code=2)
    assert "pip install 'pytest-llmbench[parquet]'" in told


def test_export_says_where_it_cannot_write(command: Command) -> None:
    assert "nowhere/h.csv: cannot be written" in command("export", "-o", "nowhere/h.csv", code=2)


def test_export_never_replaces_the_history(command: Command, history: StoreLocation) -> None:
    assert "found the history itself" in command("export", "-o", "../" + Path.cwd().name + "/history.db", code=2)
    assert "job 1000" in command("list")


def test_prune_makes_no_store_of_a_mistyped_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "histroy.db"
    assert cli.main(["history", "prune", "--keep", "4d", "--history", str(path)]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not path.exists()


def test_prune_tells_what_it_removes(command: Command) -> None:
    keep = ("--keep", f"{_days_since_the_first()}d")
    told = "2 verdicts, 1 session, 2 runs\n  of 2025-11-02; 2 sessions stay"
    assert command("prune", *keep, "--dry-run") == f"would remove {told}\n"
    assert len(command("list").splitlines()) == 6
    assert command("prune", *keep, "--yes") == f"removed {told}\n"
    assert len(command("list").splitlines()) == 4
    assert command("prune", *keep, "--yes").startswith("nothing to remove: no session from before ")


@pytest.mark.parametrize(("answer", "rows"), [("y\n", 4), ("YES\n", 4), ("n\n", 6), ("\n", 6), ("", 6)])
def test_prune_shows_what_would_go_and_asks(
    command: Command, monkeypatch: pytest.MonkeyPatch, answer: str, rows: int
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    shown = command("prune", "--keep", f"{_days_since_the_first()}d", code=0 if rows == 4 else 2)
    assert "removes 2 verdicts, 1 session, 2 runs" in shown
    assert "of 2025-11-02; 2 sessions stay" in shown
    assert len(command("list").splitlines()) == rows


def test_prune_removes_nothing_where_nobody_can_be_asked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nightly job says --yes."""
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    told = command("prune", "--keep", f"{_days_since_the_first()}d", code=2)
    assert "nothing was removed: --yes removes 2 verdicts, 1 session, 2 runs" in told
    assert len(command("list").splitlines()) == 6


@pytest.mark.parametrize("keep", ["1d", "2w", "1mo"])
def test_prune_leaves_a_store_alone_of_which_nothing_would_stay(command: Command, keep: str) -> None:
    """The cluster stood still for long, or a clock is wrong."""
    told = command("prune", "--keep", keep, "--yes", code=2)
    assert "as all of it would go: 5 verdicts, 3 sessions, 4 runs, of 2025-11-02 to 2025-11-20; 0 sessions stay" in told
    assert len(command("list").splitlines()) == 6
    assert "would remove 5 verdicts, 3 sessions" in command("prune", "--keep", keep, "--dry-run")


@pytest.mark.parametrize("keep", ["1m", "90min", "36h", "20 hours", "3600s"])
def test_prune_takes_no_minutes_and_hours(
    command: Command, history: StoreLocation, capsys: pytest.CaptureFixture[str], keep: str
) -> None:
    """`m` is minutes elsewhere, and meant as months it removed everything."""
    with pytest.raises(SystemExit):
        cli.main(["history", "prune", f"--keep={keep}", "--yes", "--history", history.shown])
    told = " ".join(capsys.readouterr().err.split())
    assert "is no unit of a day or more: write 30d, 4w, 1mo (a month) or 1y" in told
    assert len(command("list").splitlines()) == 6


@pytest.mark.parametrize("text", ["1M", "d", "7", "0d", "0.0y", "1e3d", "\u0663d", "-1d", ""])
def test_what_is_no_time_to_keep_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number above 0 with d, w, mo"):
        parse_days(text)


@pytest.mark.parametrize(
    ("text", "days"),
    [("400d", 400), ("1 day", 1), ("8w", 56), ("2 weeks", 14), ("6mo", 186), ("1month", 31), ("1.5y", 549)],
)
def test_months_and_years_are_rather_too_long(text: str, days: int) -> None:
    assert parse_days(text) == timedelta(days=days)


def _days_since_the_first() -> int:
    """Return an age between those of the first session and the others."""
    return (datetime.now(UTC) - START - timedelta(days=8)).days


@pytest.mark.parametrize(
    "arguments",
    [
        ["prune", "--keep", "0d"],
        ["list", "--limit", "0"],
        ["list", "--since", "May"],
        ["list", "-k", "(grok1)"],
    ],
)
def test_what_is_no_age_number_date_or_words_is_refused(
    history: StoreLocation, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["history", *arguments, "--history", history.shown])
    assert f"found {arguments[-1]!r}" in capsys.readouterr().err


def test_add_stores_what_was_kept_once(command: Command, tmp_path: Path) -> None:
    told = document(outcome(7.6, 5))
    file = write_unsaved(told, [tmp_path / "nowhere", tmp_path])
    assert "1 verdict stored" in command("add", file.name)
    assert "stored before" in command("add", file.name)
    assert len(command("list", "-k", "bf16").splitlines()) == 5


def test_add_takes_what_a_version_without_hashes_left(command: Command) -> None:
    """A file as that version wrote it."""
    file = Path(__file__).parents[1] / "history" / "unsaved_1.json"
    assert "1 verdict stored" in command("add", str(file))
    row = json.loads(command("export", "--format", "json"))[-1]
    assert (row["job_id"], row["run_seconds"], row["log_sha256"]) == ("1002", 7.5, [])


DEEP = "maximum recursion depth" if sys.version_info < (3, 14) else "Stack overflow"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("verdicts: none", "no JSON"),
        ("[]", "no session with verdicts"),
        ('{"schema": 2, "session": {}, "verdicts": []}', "found schema 2, expected 1"),
        ('{"schema": 1, "session": {}, "verdicts": [{}]}', "session.id: not there: nothing of it was stored"),
        pytest.param(f'{{"schema": {"9" * 5000}}}', "no JSON (Exceeds the limit", id="5000-digits"),
        pytest.param("[" * 100_000, f"no JSON ({DEEP}", id="deep"),
    ],
)
def test_add_refuses_what_no_session_left(command: Command, tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "other.json").write_text(content)
    assert told in command("add", "other.json", code=2)
    assert "No such file" in command("add", "nothing.json", code=2)


def test_add_waits_for_nothing_and_reads_no_device(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "/dev/zero"):
        assert "no regular file" in command("add", name, code=2)


def test_a_number_that_no_database_takes_stores_nothing(command: Command) -> None:
    file = Path(__file__).parents[1] / "history" / "unsaved_1.json"
    document = json.loads(file.read_text())
    document["verdicts"][0]["window"]["first"] = 10**30
    Path("large.json").write_text(json.dumps(document))
    assert "nothing of it was stored" in command("add", "large.json", code=2)
    assert "1 verdict stored" in command("add", str(file))


# --- which history --------------------------------------------------------------------------------------------


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["history", "list", *arguments])
    return (code, *capsys.readouterr())


def test_the_option_comes_before_the_variable_and_the_ini_key_last(
    history: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody typed is named."""
    monkeypatch.delenv("LLMB_HISTORY", raising=False)
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\nllmb_history = history.db\n")
    code, out, err = ask(capsys)
    assert (code, err) == (0, f"history: history.db (llmb_history in {ini})\n")
    assert "job 77" in out
    monkeypatch.setenv("LLMB_HISTORY", "other.db")
    assert ask(capsys)[0] == 2
    assert ask(capsys, "--history", "history.db") == (0, out, "")
    monkeypatch.setenv("LLMB_HISTORY", f"sqlite:///{history.file}")
    assert ask(capsys)[2].endswith(" (LLMB_HISTORY)\n")
    monkeypatch.setenv("LLMB_HISTORY", "")
    assert ask(capsys) == (code, out, err)


@pytest.mark.parametrize(
    "case",
    [
        ("pyproject.toml", '[tool.pytest.ini_options]\nllmb_history = "history.db"\n', True),
        ("pytest.toml", '[pytest]\nllmb_history = "history.db"\n', True),
        ("tox.ini", "[pytest]\nllmb_history = history.db\n", True),
        ("setup.cfg", "[tool:pytest]\nllmb_history = history.db\n", True),
        ("tox.ini", "[other]\nllmb_history = history.db\n", False),
        ("pytest.ini", "", False),
        ("pytest.ini", "[pytest]\nllmb_tolerance = 2%\n", False),
    ],
)
def test_the_ini_key_counts_where_pytest_reads_it(
    history: StoreLocation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, bool],
) -> None:
    """The nearest file that is pytest's decides, as for pytest; those of other programs are passed over."""
    monkeypatch.delenv("LLMB_HISTORY", raising=False)
    (name, text, is_found), folder = case, tmp_path / "below"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nllmb_history = {history.file}\n")
    (folder / name).write_text(text.replace("history.db", "../history.db"))
    monkeypatch.chdir(folder)
    code, _, err = ask(capsys)
    of_other_program = name == "tox.ini" and not is_found
    assert (code == 0) == (is_found or of_other_program)
    assert (str(folder / name) in err) == is_found
    if code:
        assert "no history is known: give --history, set LLMB_HISTORY, or llmb_history in pytest's" in err


def test_a_configuration_file_that_cannot_be_read_is_named(
    history: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMB_HISTORY", raising=False)
    assert history.file
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options\n")
    code, _, err = ask(capsys)
    assert code == 2
    assert f"{tmp_path / 'pyproject.toml'}: " in err
