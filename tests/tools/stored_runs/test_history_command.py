"""`llmbench history`: list, show, export, prune and add."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace
from support import builders
from support.remembered import ID, START, document, nights, outcome, session

from pytest_llmbench.cli import main as cli
from pytest_llmbench.history.prune import prune
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.session.unsaved import write_unsaved
from pytest_llmbench.tools.history_options import find_history_name
from pytest_llmbench.tools.stored_runs.history_command import parse_days

pytestmark = pytest.mark.wheel

FP8 = replace(builders.KEY, dtype="fp8")

Command = Callable[..., str]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    """A history of three days with two configurations, and a missing run."""
    monkeypatch.chdir(tmp_path)
    location = StoreLocation("history.db", tmp_path / "history.db")
    write(location, document(*nights([7.4, 7.5]), began=START + timedelta(days=1)))
    slow = {
        **outcome(8.0, 2, job="77"),
        "verdict": "REGRESSION",
        "environment": {"driver": "580.1"},
    }
    write(
        location,
        document(
            slow, outcome(5.0, 2, key=FP8), environment={"CI_COMMIT_SHA": "abc1234"}
        ),
    )
    write(location, document(outcome(None)))
    return location


@pytest.fixture
def command(history: StoreLocation, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `llmbench history`, checks the exit code, returns the output."""

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["-k", "not BF16"], ["4"]),
        (["-k", "llama or fp8 and not bf16"], ["4"]),
        (["--limit", "1"], ["3", "4"]),
        (["--since", "2025-11-02T02:00+00:00", "-k", "bf16"], ["2", "3"]),
    ],
)
def test_list_filters_runs(
    command: Command, arguments: list[str], numbers: list[str]
) -> None:
    lines = command("list", *arguments).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(" ")] == numbers


@pytest.mark.slow
def test_list_without_a_run_suggests_removing_filters(
    command: Command, history: StoreLocation
) -> None:
    assert "no run matches -k and --since; leave them out to list all" in command(
        "list", "-k", "llama", code=2
    )
    prune(history, datetime.now(UTC), dry_run=False)
    assert "it contains no run" in command("list", code=2)


@pytest.mark.slow
def test_show_accepts_configuration_or_run_number(command: Command) -> None:
    output = command("show", ID)
    assert output == command("show", "3")
    for message in (
        "REGRESSION",
        "job 77",
        "environment driver",
        "580.1",
        "mean of steps 11 to 44",
        "commit abc",
    ):
        assert message in output
    assert repr(outcome(8.0, 2)["window_seconds"][0]) in output
    assert "7.400 s" in command("show", "1")


@pytest.mark.slow
def test_history_show_prints_log_hashes_and_omits_unknown_step_times(
    command: Command, history: StoreLocation
) -> None:
    """A log without a known hash is listed; sessions of older versions have no hashes."""
    assert "expected_seconds" in command("show", "3")
    hashed = {**outcome(8.0, 2, job="77"), "log_sha256": ["0123456789abcdef" * 4, None]}
    write(
        history, document({**hashed, "expected_seconds": None, "bound_seconds": None})
    )
    lines = command("show", "3").splitlines()
    assert lines[-2:] == [
        f"    sha256 {'0123456789abcdef' * 4}",
        "    sha256 not known",
    ]
    assert sum("sha256" in line for line in lines) == 2
    assert not [line for line in lines if line.endswith("None")]


@pytest.mark.slow
def test_show_suggests_the_nearest_configuration(command: Command) -> None:
    message = command("show", ID.replace("314b", "314"), code=2)
    assert f"(did you mean {ID!r}?)" in message


@pytest.mark.slow
def test_export_formats_have_equal_rows(
    command: Command, history: StoreLocation, tmp_path: Path
) -> None:
    """Covers runs, missing runs, metrics, hashes, and steps with all digits."""
    write(history, document({**outcome(7.4), "log_sha256": ["ab" * 32, None]}))
    rows = json.loads(command("export", "--format", "json"))
    verdicts = ["PASS", "PASS", "REGRESSION", "IMPROVEMENT", "MISSING", "PASS"]
    assert [row["verdict"] for row in rows] == verdicts
    assert [row["log_sha256"] for row in rows] == [[]] * 5 + [["ab" * 32, None]]
    assert rows[0]["started"] == START.isoformat()
    command("export", "-o", "h.csv")
    command("export", "--format", "parquet", "-o", "h.parquet")
    csv, parquet = (
        pd.read_csv(tmp_path / "h.csv"),
        pd.read_parquet(tmp_path / "h.parquet"),
    )
    for name in (
        "configuration",
        "verdict",
        "job_id",
        "expected_seconds",
        "session",
        "host",
    ):
        written = [row[name] for row in rows]
        assert [
            None if pd.isna(value) else value for value in parquet[name]
        ] == written, name
    assert csv["run_seconds"].dropna().tolist() == [
        row["run_seconds"] for row in rows if row["run_seconds"]
    ]
    assert list(parquet["number"].dropna()) == [
        row["number"] for row in rows if row["number"]
    ]
    assert (
        "1,2025" in (tmp_path / "h.csv").read_text()
    )  # not 1.0, which `show` does not accept
    for name in ("started", "judged"):  # timestamps, not texts
        assert str(parquet[name].dtype) == "datetime64[us, UTC]"
        times = [
            None if pd.isna(timestamp) else timestamp.isoformat()
            for timestamp in parquet[name]
        ]
        assert times == [row[name] for row in rows]
    for name in ("step_seconds", "log_sha256"):
        assert [json.loads(text) for text in csv[name]] == [row[name] for row in rows]
    assert [list(steps) for steps in parquet["step_seconds"]] == [
        row["step_seconds"] for row in rows
    ]


@pytest.mark.slow
def test_export_format_follows_the_file_suffix_unless_an_option_sets_it(
    command: Command,
) -> None:
    for name in ("h.parquet", "h.JSON", "h.jsonl", "h.txt"):
        command("export", "-o", name)
    rows = json.loads(Path("h.JSON").read_text())
    assert [
        json.loads(line) for line in Path("h.jsonl").read_text().splitlines()
    ] == rows
    assert Path("h.parquet").read_bytes()[:4] == b"PAR1"
    command("export", "--format", "csv", "-o", "other.json")
    assert Path("other.json").read_text() == Path("h.txt").read_text()
    assert len(pd.read_csv("h.txt")) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h.csv", "h.parquet"])
def test_history_export_replaces_no_file_except_an_earlier_export(
    command: Command, history: StoreLocation, tmp_path: Path, name: str
) -> None:
    """Exports of an empty store are replaced, too."""
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
    message = command("export", "--format", format_name, "-o", "mine", code=2)
    assert (
        "mine: cannot be written: an existing file of another kind (expected: export of a history) is not replaced"
        in message
    )
    assert "a link to the file" in command("export", "-o", f"link-{name}", code=2)
    assert "this file is the history" in command(
        "export", "-o", f"../{tmp_path.name}/history.db", code=2
    )
    assert "nowhere/h.csv: cannot be written" in command(
        "export", "-o", "nowhere/h.csv", code=2
    )
    assert "job 1000" in command("list")
    assert (tmp_path / "mine").read_text() == "a table of mine\n"


@pytest.mark.slow
def test_parquet_export_requires_pyarrow_and_an_output_file(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give a file with -o FILE" in command(
        "export", "--format", "parquet", code=2
    )
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "pyarrow" else name
    )
    message = command("export", "--format", "parquet", "-o", "h.parquet", code=2)
    assert "pip install 'pytest-llmbench[parquet]'" in message


def test_prune_creates_no_store_for_a_mistyped_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "histroy.db"
    assert cli.main(["history", "prune", "--keep", "4d", "--history", str(path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.slow
def test_prune_prints_the_deleted_counts(command: Command) -> None:
    keep = ("--keep", f"{_days_since_the_first()}d")
    message = "2 verdicts, 1 session, 2 runs\n  of 2025-11-02; 2 sessions stay"
    assert command("prune", *keep, "--dry-run") == f"would remove {message}\n"
    assert len(command("list").splitlines()) == 6
    assert command("prune", *keep, "--yes") == f"removed {message}\n"
    assert len(command("list").splitlines()) == 4
    assert command("prune", *keep, "--yes").startswith(
        "nothing to remove: no session from before "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "rows"), [("YES\n", 4), ("n\n", 6), ("\n", 6), ("no terminal", 6)]
)
def test_prune_asks_for_confirmation(
    command: Command, monkeypatch: pytest.MonkeyPatch, answer: str, rows: int
) -> None:
    """Without a terminal, --yes is required."""
    stdin = StringIO("y\n" if answer == "no terminal" else answer)
    stdin.isatty = lambda: answer != "no terminal"  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    output = command(
        "prune", "--keep", f"{_days_since_the_first()}d", code=0 if rows == 4 else 2
    )
    assert "2 verdicts, 1 session, 2 runs" in output
    assert "of 2025-11-02; 2 sessions stay" in output
    assert len(command("list").splitlines()) == rows


@pytest.mark.slow
def test_prune_never_empties_a_store(command: Command) -> None:
    """All sessions may be old because the cluster was idle or a clock is wrong."""
    message = command("prune", "--keep", "1mo", "--yes", code=2)
    assert (
        "this would remove every session: 5 verdicts, 3 sessions, 4 runs, of 2025-11-02 to 2025-11-20; 0 sessions stay"
        in message
    )
    assert len(command("list").splitlines()) == 6
    assert "would remove 5 verdicts, 3 sessions" in command(
        "prune", "--keep", "1mo", "--dry-run"
    )


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["1m", "20 hours"])
def test_prune_refuses_to_keep_only_minutes_or_hours(
    command: Command,
    history: StoreLocation,
    capsys: pytest.CaptureFixture[str],
    keep: str,
) -> None:
    """`m` means minutes in other options; read as months it removed everything."""
    with pytest.raises(SystemExit):
        cli.main(
            ["history", "prune", f"--keep={keep}", "--yes", "--history", history.shown]
        )
    message = " ".join(capsys.readouterr().err.split())
    assert (
        "is shorter than a day or ambiguous: write 30d, 4w, 1mo (a month) or 1y"
        in message
    )
    assert len(command("list").splitlines()) == 6


@pytest.mark.parametrize("text", ["1M", "7", "0.0y", "1e3d", "\u0663d"])
def test_invalid_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number above 0 with d, w, mo"):
        parse_days(text)


@pytest.mark.parametrize(
    ("text", "days"),
    [("1 day", 1), ("8w", 56), ("6mo", 186), ("1.5y", 549)],
)
def test_retention_period_in_months_or_years_is_rounded_up_to_days(
    text: str, days: int
) -> None:
    assert parse_days(text) == timedelta(days=days)


def _days_since_the_first() -> int:
    """Return an age in days between the first session and the others."""
    return (datetime.now(UTC) - START - timedelta(days=8)).days


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["prune", "--keep", "0d"],
        ["list", "--limit", "0"],
        ["list", "--since", "May"],
        ["list", "-k", "(grok1)"],
    ],
)
def test_invalid_option_values_are_refused(
    history: StoreLocation, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["history", *arguments, "--history", history.shown])
    assert f"found {arguments[-1]!r}" in capsys.readouterr().err


@pytest.mark.slow
def test_history_add_stores_a_session_file_once_if_added_twice(
    command: Command, tmp_path: Path
) -> None:
    message = session(outcome(7.6, 5))
    file = write_unsaved(message, [tmp_path / "nowhere", tmp_path])
    assert "1 verdict stored" in command("add", file.name)
    assert "already stored" in command("add", file.name)
    assert len(command("list", "-k", "bf16").splitlines()) == 5


@pytest.mark.slow
def test_history_add_reads_session_files_of_versions_without_log_hashes(
    command: Command,
) -> None:
    """The file was written by an earlier version."""
    earlier = Path(__file__).parents[2] / "history" / "earlier"
    file = Path("earlier.json")
    file.write_bytes((earlier / "unsaved_20261122.json").read_bytes())
    assert "1 verdict stored" in command("add", str(file))
    row = json.loads(command("export", "--format", "json"))[-1]
    assert (row["job_id"], row["run_seconds"], row["log_sha256"]) == ("1002", 7.5, [])


DEEP = "maximum recursion depth" if sys.version_info < (3, 14) else "Stack overflow"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("verdicts: none", "not JSON"),
        ("[]", "no key 'schema'"),
        ('{"schema": 2, "session": {}, "verdicts": []}', "schema 2, expected 1"),
        (
            '{"schema": 1, "session": {}, "verdicts": [{}]}',
            "missing required field `id` - at `$.session`: nothing was stored",
        ),
        pytest.param(
            f'{{"schema": {"9" * 5000}}}',
            "not JSON (Exceeds the limit",
            id="5000-digits",
        ),
        pytest.param("[" * 100_000, f"not JSON ({DEEP}", id="deep"),
    ],
)
def test_add_refuses_invalid_files(
    command: Command, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "other.json").write_text(content)
    assert message in command("add", "other.json", code=2)
    assert "No such file" in command("add", "nothing.json", code=2)


@pytest.mark.slow
def test_add_refuses_pipes_and_devices(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "/dev/zero"):
        assert "not a regular file" in command("add", name, code=2)


# --- which history --------------------------------------------------------------------


@pytest.fixture
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMB_HISTORY", raising=False)


@pytest.mark.usefixtures("_no_variable")
def test_history_option_overrides_environment_variable_and_ini_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\nllmb_history = ini.db\n")
    of_ini = ("ini.db", f"llmb_history in {ini}")
    assert find_history_name(None, tmp_path) == of_ini
    monkeypatch.setenv("LLMB_HISTORY", "variable.db")
    assert find_history_name(None, tmp_path) == ("variable.db", "LLMB_HISTORY")
    assert find_history_name("typed.db", tmp_path) == ("typed.db", "")
    monkeypatch.setenv("LLMB_HISTORY", "")
    assert find_history_name(None, tmp_path) == of_ini


@pytest.mark.usefixtures("_no_variable")
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "pyproject.toml",
            '[tool.pytest.ini_options]\nllmb_history = "inner.db"\n',
            "inner.db",
        ),
        ("tox.ini", "[pytest]\nllmb_history = inner.db\n", "inner.db"),
        ("tox.ini", "[other]\nllmb_history = inner.db\n", "outer.db"),
        ("pytest.ini", "", None),
    ],
)
def test_history_path_is_read_from_the_nearest_pytest_configuration(
    tmp_path: Path, name: str, text: str, expected: str | None
) -> None:
    """As in pytest, files without a pytest section are skipped."""
    folder = tmp_path / "below"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nllmb_history = outer.db\n")
    (folder / name).write_text(text)
    assert (find_history_name(None, folder) or (None,))[0] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("_no_variable")
def test_history_command_prints_which_configuration_file_named_the_history(
    history: StoreLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["history", "list"]) == 2
    assert (
        "no history is named: give --history, set the environment variable LLMB_HISTORY, or set llmb_history"
        in capsys.readouterr().err
    )
    ini = tmp_path / "pytest.ini"
    ini.write_text(f"[pytest]\nllmb_history = {history.shown}\n")
    assert cli.main(["history", "list"]) == 0
    assert capsys.readouterr().err == f"history: history.db (llmb_history in {ini})\n"
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options\n")
    ini.unlink()
    assert cli.main(["history", "list"]) == 2
    assert f"{tmp_path / 'pyproject.toml'}: " in capsys.readouterr().err
