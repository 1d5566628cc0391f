"""Each forbidden effect of a failing call is detected."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faults.injector import ONCE, Call, Fault
from faults.judging import Ended, Reference
from fuzz.stores import make_session

from pytest_llmbench.history import record
from pytest_llmbench.history.store import locate_store
from pytest_llmbench.session.unsaved import make_record

FAULT = Fault(1, ONCE, "EIO")
STRUCK = Call("read", "/x", "logs/x")
ITEMS = {
    "good": ("PASS", "passed", "1"),
    "slow": ("REGRESSION", "failed", "2"),
    "absent": ("MISSING", "skipped", ""),
}
UNDISTURBED = Ended(1, ITEMS, "", whole=True)


def store_night(state: Path, number: int) -> None:
    record.write(locate_store("history.db", state), make_record(make_session(number)))


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Reference, Path]:
    """A session before (in `kept`) and after: a history with one more session, logs and
    a report."""
    state, kept = tmp_path / "night" / "state", tmp_path / "kept"
    state.mkdir(parents=True)
    (tmp_path / "night" / "logs").mkdir()
    (tmp_path / "night" / "logs" / "log.out").write_text("a log")
    store_night(state, 1)
    shutil.copytree(state, kept)
    store_night(state, 2)
    (state / "s.json").write_text("{}")
    return Reference(tmp_path / "night", kept, UNDISTURBED), tmp_path / "night"


def change(**items: tuple[str, str, str]) -> Callable[[Path, Ended], Ended]:
    """Return a function that replaces items."""
    return lambda _, session: replace(session, items={**session.items, **items})


def forget(folder: Path, session: Ended) -> Ended:
    """Restore the history from before the session."""
    (folder / "state" / "history.db").unlink()
    store_night(folder / "state", 1)
    return session


def damage(folder: Path, session: Ended) -> Ended:
    path = folder / "state" / "history.db"
    path.write_bytes(path.read_bytes()[:6000])
    return session


def write(path: str, text: str) -> Callable[[Path, Ended], Ended]:
    def write_it(folder: Path, session: Ended) -> Ended:
        (folder / path).write_text(text)
        return session

    return write_it


WRONG: dict[str, tuple[Callable[[Path, Ended], Ended], str]] = {
    "wrong green": (
        change(slow=("PASS", "passed", "2")),
        "wrong green: slow: PASS passed, undisturbed REGRESSION",
    ),
    "red no more": (change(slow=("MISSING", "skipped", "")), "red no more: slow"),
    "older run": (
        change(good=("PASS", "passed", "0")),
        "another run: good: PASS of 0, undisturbed PASS of 1",
    ),
    "exit code 0": (
        lambda _, session: replace(session, code=0),
        "exit code 0, undisturbed 1",
    ),
    "session not stored": (forget, "history: not stored, not kept, and not said"),
    "damaged history": (damage, "history damaged"),
    "half a report": (write("state/s.json", '{"half'), "not whole: s.json"),
    "changed log": (write("logs/log.out", "another log"), "the logs were changed"),
    "unexplained exit code": (
        lambda _, session: replace(session, code=4),
        "exit code 4 without a reason",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_fault_injection_reports_a_forbidden_effect_on_a_session(
    judged: tuple[Reference, Path], name: str
) -> None:
    reference, folder = judged
    spoil, expected = WRONG[name]
    found = reference.find_wrong(spoil(folder, UNDISTURBED), FAULT, STRUCK)
    assert any(text.startswith(expected) for text in found), found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _, session: session,
        change(good=("INVALID", "failed", "1")),
        change(slow=("PASS", "passed", "1"), unreadable=("UNREADABLE", "failed", "")),
        lambda folder, session: replace(
            forget(folder, session),
            output="the verdicts could not be saved and are lost",
        ),
    ],
    ids=["undisturbed", "redder item", "unreadable input is red", "loss is reported"],
)
def test_fault_injection_accepts_failed_or_lost_verdicts_that_are_reported(
    judged: tuple[Reference, Path], spoil: Callable[[Path, Ended], Ended]
) -> None:
    reference, folder = judged
    assert reference.find_wrong(spoil(folder, UNDISTURBED), FAULT, STRUCK) == []
