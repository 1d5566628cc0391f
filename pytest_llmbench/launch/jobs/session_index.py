"""In which folders sessions lie: a file in the caches of a user, so that a session is
found from another folder.

It is a help and no more: where it is lost, or cannot be written, everything works, and
only the hint is missing.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.launch.jobs.journal_file import FOLDER, NAME

MOST = 50  # the newest sessions that are looked at for one that is unfinished
READ_BYTES = 1 << 16  # of the file, from its end: hundreds of sessions


def note_session(index: Path | None, session: str, folder: Path) -> None:
    """Add a session to the file, if it can be written."""
    if index is None:
        return
    line = json.dumps([session, str(folder.absolute())])
    with suppress(OSError):
        index.parent.mkdir(parents=True, exist_ok=True)
        with index.open(
            "a", encoding="utf-8"
        ) as file:  # one short write at the end, which no other process parts
            file.write(f"\n{line}\n")  # behind one that was cut, too


def require_journal(index: Path | None, session: str, folder: Path) -> None:
    """Raise LaunchError for a folder without a journal, with what helps to find the
    right one."""
    if (folder / NAME).exists():
        return
    problem = (
        f"there is no journal in {folder}"
        if folder.is_dir()
        else f"{folder} does not exist"
    )
    wanted = f"session {session} is not here" if session else "no session here"
    raise LaunchError(
        f"{wanted}: {problem}\n{explain_elsewhere(index, session, folder)}"
    )


def explain_elsewhere(index: Path | None, session: str, folder: Path) -> str:
    """Return how another folder is named, and which one it probably is: one below this,
    or one of this user."""
    lines = ["--llmb-journal=DIR names another folder; --llmb-submit-only prints which"]
    if (folder / FOLDER / NAME).exists():
        lines.append(
            f"did you mean --llmb-journal={shlex.quote(str(folder / FOLDER))}?"
        )
    elsewhere = next(_list_elsewhere(index, session, folder), None)
    if elsewhere is not None:
        lines += [
            f"session {elsewhere[0]} lies in",
            f"  --llmb-journal={shlex.quote(str(elsewhere[1]))}",
        ]
    return "\n".join(f"  {line}" for line in lines)


def _list_elsewhere(
    index: Path | None, session: str, folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the session that is looked for, else those that are unfinished, newest
    first, with their folders."""
    printed = {folder.absolute(), folder.absolute() / FOLDER}
    entries = [entry for entry in _read_index(index) if entry[1] not in printed]
    for name, place in reversed(entries if session else entries[-MOST:]):
        if name == session or (not session and _is_unfinished(place, name)):
            yield name, place


def _read_index(index: Path | None) -> list[tuple[str, Path]]:
    entries: list[tuple[str, Path]] = []
    lines: list[bytes] = []
    if index is not None:
        with suppress(OSError), index.open("rb") as file:
            file.seek(max(0, index.stat().st_size - READ_BYTES))
            lines = file.read().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            session, folder = json.loads(line)
            if Path(folder).is_absolute():  # as it was written
                entries.append((str(session), Path(folder)))
    return entries


def _is_unfinished(folder: Path, session: str) -> bool:
    # ValueError: no file system holds the name of that folder
    with (
        suppress(sqlite3.Error, ValueError),
        closing(
            sqlite3.connect(f"{(folder / NAME).as_uri()}?mode=ro", uri=True)
        ) as database,
    ):
        query = "SELECT 1 FROM session WHERE id = ? AND finished IS NULL"
        return database.execute(query, (session,)).fetchone() is not None
    return False
