"""Forbidden effects of a failing call on a session.

A session must not pass what failed before, lose data, or end without a clear message.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from faults.injector import ALLOCATIONS, Call, Fault
from faults.nights import JOB_SUMMARY

Items = dict[str, tuple[str, str, str]]
"""By id the verdict, the status and the run of an item."""

GREEN = ("PASS", "IMPROVEMENT", "INCONCLUSIVE")


@dataclass(frozen=True)
class Ended:
    """The end of a session: exit code (or signal), items, output; `whole` if it was
    complete."""

    code: int
    items: Items
    output: str
    whole: bool
    allocations: int = 0

    @property
    def lacked_memory(self) -> bool:
        """True if Python itself ran out of memory."""
        return "MemoryError" in self.output and self.code != 0


class Reference:
    """The undisturbed session, and the files before it."""

    def __init__(self, folder: Path, kept: Path, undisturbed: Ended) -> None:
        self.folder, self.kept, self.undisturbed = folder, kept, undisturbed
        self.logs = _list_tree(folder / "logs")
        self.files = _list_names(folder / "state")
        self.rows = _count_rows(kept / "history.db")
        self.stored = _count_rows(folder / "state" / "history.db")

    def find_wrong(
        self, session: Ended, fault: Fault, struck: Call | None
    ) -> list[str]:
        """List the forbidden effects; MemoryError may end a session, but must lose or
        pass nothing."""
        return [
            *self._find_better(session),
            *self._find_lost(session),
            *self._find_unclear(session, fault, struck),
        ]

    def _find_better(self, session: Ended) -> Iterator[str]:
        before = self.undisturbed
        if before.code != 0 and session.code == 0:
            yield f"exit code 0, undisturbed {before.code}"
        # a separate item fails for unreadable files
        said = any(
            status == "failed"
            for name, (_, status, _) in session.items.items()
            if name not in before.items
        )
        for name, (verdict, status, run) in session.items.items():
            if name not in before.items:
                continue
            was, had, of = before.items[name]
            if said:
                continue
            if status == "passed" and had != "passed":
                yield f"wrong green: {name}: {verdict} {status}, undisturbed {was} {had}"
            elif had == "failed" and status != "failed":
                yield f"red no more: {name}: {verdict} {status}, undisturbed {was} {had}"
            elif run != of and verdict in GREEN:
                yield f"another run: {name}: {verdict} of {run}, undisturbed {was} of {of}"
            elif (verdict, status) != (was, had) and session.code == 0:
                yield f"changed and exit code 0: {name}: {verdict} {status}, undisturbed {was} {had}"
        if session.code == 0 and session.items.keys() != before.items.keys():
            yield f"exit code 0 without {sorted(before.items.keys() - session.items.keys())}"

    def _find_lost(self, session: Ended) -> Iterator[str]:
        state = self.folder / "state"
        if _list_tree(self.folder / "logs") != self.logs:
            yield "the logs were changed"
        for path in sorted(self.kept.rglob("*")):
            name = path.relative_to(self.kept)
            if (
                path.is_file()
                and not (state / name).is_file()
                and name.parts[0] not in ("cache", "tmp")
            ):
                yield f"lost: {name}"
        for report, check in CHECKS.items():
            path, before = state / report, self.kept / report
            if path.is_file() and not (
                before.is_file() and path.read_bytes() == before.read_bytes()
            ):
                try:
                    check(path)
                except Exception as error:  # noqa: BLE001 (any error means that the file is incomplete)
                    if not self._is_void(path, session):
                        yield f"not whole: {report}: {error!r}"
        yield from self._find_lost_history(session)
        for path in sorted((state / "recorded").glob("**/*.yaml")):
            before = self.kept / path.relative_to(state)
            if lost := _read_recorded(before) - _read_recorded(path):
                yield f"lost in {path.name}: {sorted(lost)}"

    def _is_void(self, path: Path, session: Ended) -> bool:
        """True if an incomplete report is marked as incomplete."""
        words = " ".join(session.output.split())
        if path.name == "j.xml":  # pytest truncates its report before it writes it
            return "j.xml: not written" in words
        # without space for a notice, an older report is truncated
        return (
            not path.stat().st_size
            and f"{path.name}: the report was not written" in words
        )

    def _find_lost_history(self, session: Ended) -> Iterator[str]:
        path = self.folder / "state" / "history.db"
        if not path.is_file():
            return
        rows = _count_rows(path)
        if not isinstance(rows, int):
            yield f"history damaged: {rows}"
        elif isinstance(self.rows, int) and rows < self.rows:
            yield f"history: {rows} verdicts, there were {self.rows}"
        if session.items and session.whole and self.stored not in (rows, self.rows):
            offsets = [self.folder, self.folder / "state" / "tmp"]
            unsaved = [
                file
                for offset in offsets
                for file in offset.glob("llmb-history-unsaved-*.json")
            ]
            # Python takes another folder for temporary files if that of the session
            # cannot be used.
            named = re.findall(
                r"history add (/\S+/llmb-history-unsaved-\S+\.json)",
                " ".join(session.output.split()),
            )
            unsaved += [Path(name) for name in named if Path(name).is_file()]
            lost = (
                "and are lost" in session.output or "before any log" in session.output
            )
            if not unsaved and not lost and session.code in (0, 1):
                yield "history: not stored, not kept, and not said"
            for file in unsaved:
                json.loads(file.read_text())

    def _find_unclear(
        self, session: Ended, fault: Fault, struck: Call | None
    ) -> Iterator[str]:
        memory = fault.kinds == ALLOCATIONS
        if session.code == -1:
            yield "hang"
        elif session.code < 0:
            yield f"killed by signal {-session.code}"
        elif not memory and session.code in (3, 99):
            yield f"exit code {session.code}"
        elif memory and not session.whole and not session.lacked_memory:
            yield f"broke off with {session.code}"
        if not memory and re.search(
            r"INTERNALERROR|Traceback \(most recent|Exception ignored", session.output
        ):
            last = re.findall(
                r"^(?:INTERNALERROR> )?(\w*(?:Error|Exception)\b.*)$",
                session.output,
                re.M,
            )
            yield f"traceback: {(last or ['?'])[-1]}"
        if struck and not memory:
            yield from self._find_unsaid(session, fault)

    def _find_unsaid(self, session: Ended, fault: Fault) -> Iterator[str]:
        """Yield unreported differences from the undisturbed session."""
        number = getattr(errno, fault.error, 0)
        words = (
            os.strerror(number) if number else "",
            "disk",
            "I/O",
            "cannot",
            "unable",
            "readonly",
            "not written",
            "expected a",
            "lost",
            "lock",
        )
        said = session.code != self.undisturbed.code and any(
            word in session.output for word in words if word
        )
        missing = [
            name
            for name in self.files - _list_names(self.folder / "state")
            if not name.startswith(("cache", "tmp"))
        ]
        if missing and not any(word in session.output for word in words if word):
            yield f"not there, and nothing said: {missing}"
        if session.code != self.undisturbed.code and not said:
            yield f"exit code {session.code} without a reason"


def _list_tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def _list_names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }


def _count_rows(path: Path) -> int | str | None:
    """Return the number of verdicts; a text if the file is damaged, None if it is
    missing."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(path)) as database:
            problem = database.execute("PRAGMA integrity_check").fetchone()[0]
            if problem != "ok":
                return str(problem)
            tables = [
                row[0]
                for row in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            ]
            return (
                int(database.execute("SELECT count(*) FROM llmb_verdict").fetchone()[0])
                if "llmb_verdict" in tables
                else 0
            )
    except sqlite3.Error as error:
        return repr(error)


def _read_recorded(path: Path) -> set[str]:
    """Return the configurations of a recorded file; empty if it is unreadable."""
    from pytest_llmbench.baseline.read import read_recipe
    from pytest_llmbench.core.errors import LlmbenchError

    try:
        return {baseline.key.id for baseline in read_recipe(path).baselines}
    except LlmbenchError:
        return set()


def _check_page(path: Path) -> None:
    if not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("no end")


def _check_job_summary(path: Path) -> None:
    if os.path.getsize(path) and not path.read_text().startswith((JOB_SUMMARY, "#")):
        raise ValueError("not appended")


CHECKS: dict[str, Callable[[Path], object]] = {
    "s.json": lambda path: json.loads(path.read_text()),
    "j.xml": ET.parse,
    "l.xml": ET.parse,
    "p.html": _check_page,
    "summary.md": _check_job_summary,
}
