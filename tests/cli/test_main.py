"""Commands that are interrupted or whose output pipe is closed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from support.forked_processes import UNREAD, Programs
from support.nccl_traces import run as trace
from support.remembered import document, nights, outcome, session
from support.sessions import Function, signal_at

from pytest_llmbench.cli.main import main
from pytest_llmbench.history import queries, record
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.logs.reading import run_reader as reader
from pytest_llmbench.session.unsaved import write_unsaved

pytestmark = pytest.mark.wheel

EXPERIMENTS = Path(__file__).resolve().parents[2] / "examples" / "experiments"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("baselines list", 0),
        (f"summary {EXPERIMENTS}", 0),
        ("history export --history h.db", 0),
        ("nccl trace.out", 0),
        ("nccl nothing.out", 2),
    ],
)
def test_closed_pipe_changes_no_exit_code(
    programs: Programs, tmp_path: Path, words: str, code: int
) -> None:
    (tmp_path / "trace.out").write_text("".join(trace()))
    write(StoreLocation("h.db", tmp_path / "h.db"), document(*nights([7.4, 7.5])))
    errors = tmp_path / "errors"
    assert programs.run("llmbench", words.split(), tmp_path, UNREAD, errors) == code
    assert "Error" not in errors.read_text()
    assert "Exception ignored" not in errors.read_text()
    assert (
        programs.run("llmbench", words.split(), tmp_path, UNREAD, UNREAD) == code
    )  # 2>&1 | head


# --- signals --------------------------------------------------------------------------

TABLE = """## Oak 8b

| Oak 8b FP8 | 8x H100 GPUs |
|---|---|
| Step time (s) | 9.33 |
"""

WRITTEN = {
    "history export --history h.db -o out.json": "out.json",
    "baselines import README.md --release 25.05 --recipe mine -o own --force": "own/mine/25.05.yaml",
    "nccl trace.out --save out.json": "out.json",
}
"""Commands that write a file, with its name."""


def test_internal_error_exits_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 would mean that a side is slower, or a node was identified."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("pytest_llmbench.comparison.sides.parse_side", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "a", "b"]) == 2
    output = capsys.readouterr().err
    assert "RuntimeError: a fault" in output
    assert "internal error; this is a bug of llmbench" in output


def test_closed_standard_output_changes_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    write(StoreLocation("h.db", tmp_path / "h.db"), document(outcome(7.4)))
    assert main(["history", "list", f"--history={tmp_path / 'h.db'}"]) == 0
    sys.stdout.close()  # what the command opened in its place


@pytest.fixture
def folder(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Go to a folder with a history, a document and a trace. No cache knows a log
    already: it would not be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    write(StoreLocation("h.db", tmp_path / "h.db"), document(*nights([7.4, 7.5])))
    (tmp_path / "README.md").write_text(TABLE)
    (tmp_path / "trace.out").write_text("".join(trace()))
    return tmp_path


def interrupt(moment: Function, number: int, words: str, calls: int = 1) -> int:
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, moment, number, calls)
        return main(words.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "moment"),
    [
        (f"summary {EXPERIMENTS}", (reader, "make_batches")),
        (f"compare {EXPERIMENTS} . --json=new.json", (reader, "make_batches")),
        ("history list --history h.db", (queries, "connect")),
    ],
)
def test_interrupted_command_prints_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    moment: Function,
    number: signal.Signals,
) -> None:
    assert interrupt(moment, number, words) == 128 + number
    assert capsys.readouterr() == ("", "llmbench: interrupted\n")
    assert not [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and path.name.startswith(".")
    ]
    assert not (folder / "new.json").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("words", WRITTEN)
def test_interrupted_command_leaves_the_old_file(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    path = folder / WRITTEN[words]
    assert main(words.split()) == 0
    before, names = path.read_bytes(), sorted(path.parent.iterdir())
    write(StoreLocation("h.db", folder / "h.db"), document(outcome(7.6, 5)))
    (folder / "README.md").write_text(TABLE.replace("9.33", "9.40"))
    (folder / "trace.out").write_text("".join(trace(20)))
    capsys.readouterr()
    assert interrupt((Path, "replace"), signal.SIGTERM, words) == 143
    assert capsys.readouterr() == ("", "llmbench: interrupted\n")
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (before, names)
    assert main(words.split()) == 0
    assert path.read_bytes() != before


@pytest.mark.slow
def test_interrupted_addition_stores_only_complete_sessions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_unsaved(session(outcome(7.6, 5)), [folder])
    second = write_unsaved(session(outcome(7.7, 6)), [folder])
    words = f"history add {first.name} {second.name} --history h.db"
    assert interrupt((record, "drop_digests"), signal.SIGTERM, words, calls=2) == 143
    assert capsys.readouterr() == (
        f"{first.name}: 1 verdict stored\n",
        "llmbench: interrupted\n",
    )
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert (
        f"{first.name}: already stored\n{second.name}: 1 verdict stored\n1 verdict added"
        in out
    )
