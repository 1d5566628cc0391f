"""The history in one session: what it knew at the start, and what is added at the end."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import Key, StoredRun, Window, exclude_same_runs, join_fingerprints, make_run_keys

if TYPE_CHECKING:
    from pytest_llmbench.history.location import StoreLocation

PAUSES = (0.5, 2.0)
"""Seconds before a server is asked again; SQLite has waited already."""


class SessionHistory:
    """What a store knows of the configurations in use; HistoryError where it cannot be read or could not be written."""

    def __init__(self, place: StoreLocation, keys: Iterable[Key]) -> None:
        """Open the store, which is made or brought to the newest version, and read the past."""
        from pytest_llmbench.history.stored_runs import read_stored_runs
        from pytest_llmbench.history.write import prepare

        self.place = place
        prepare(place)
        by_id = {key.id: key for key in keys}
        found = read_stored_runs(place, by_id.keys())
        self.past: Mapping[Key, Sequence[StoredRun]] = {by_id[name]: runs for name, runs in found.items()}
        self._by_id = found

    def describe(self) -> str:
        """Return where the store is and how much of it is in use: `history.db: 738 runs of 82 configurations`."""
        runs = sum(map(len, self._by_id.values()))
        told = f"{formatting.count_noun(runs, 'run')} of {formatting.count_noun(len(self._by_id), 'configuration')}"
        return f"{formatting.escape(self.place.shown)}: {told if runs else 'nothing yet'}"

    def with_nights(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of a configuration with the nights before its run, oldest first; others as they are.

        Of a night that lies in the folder, too, the history knows the verdict.
        """
        from pytest_llmbench.report.judgement import describe_stored_run, join_daily_runs

        if told["kind"] != "configuration":
            return told
        past = self._by_id.get(told["configuration"]["id"], ())
        window, run = told["window"], told["run"] or {}
        wanted = Window(window["first"], window["last"], window["statistic"])
        started = datetime.fromisoformat(run["started"]) if run.get("started") else None
        own = make_run_keys(run["job_id"], join_fingerprints(run["log_fingerprint"]), started) if run else frozenset()
        nights: dict[str, StoredRun] = {}
        for one in exclude_same_runs(past, own):
            if one.window == wanted and (started is None or one.started <= started):
                day = str(one.started.date())
                nights[day] = max(one, nights.get(day, one), key=attrgetter("valid"))
        found = {night["started"][:10]: night for night in told.get("history", ())}
        known = {day: describe_stored_run(one) for day, one in nights.items()}
        return {**told, **join_daily_runs(list((found | known).values()), told.get("changes", ()))}

    def store(
        self,
        described: Sequence[dict[str, Any]],
        now: datetime,
        command: Sequence[str],
        environment: Mapping[str, str],
        folders: Sequence[Path],
    ) -> tuple[str, str]:
        """Store the outcomes of the session, and return what is said of it and what of a failure; one is empty.

        What cannot be stored is kept in a file in the first of `folders` that takes it.
        """
        from pytest_llmbench.history import record

        name = f"{now:%Y%m%d-%H%M}-{uuid.uuid4().hex[:12]}"
        session = record.describe_session(
            name, now, host=socket.gethostname(), program=__version__, options=command, environment=environment
        )
        document = record.make_document(session, described)
        shown = formatting.escape(self.place.shown)
        if not document["verdicts"]:
            return "", ""
        verdicts = formatting.count_noun(len(document["verdicts"]), "verdict")
        try:
            self._write(document)
        except HistoryError as error:
            problem = f"history: {verdicts} not stored (no verdict depends on it): {formatting.escape(str(error))}"
            return "", f"{problem}; {_kept(document, folders, shown)}"
        return f"history: {verdicts} stored in {shown}", ""

    def _write(self, document: dict[str, Any]) -> None:
        from pytest_llmbench.history.write import write

        for pause in () if self.place.file else PAUSES:
            try:
                write(self.place, document)
            except HistoryError:
                time.sleep(pause)
            else:
                return
        write(self.place, document)


def _kept(document: dict[str, Any], folders: Sequence[Path], shown: str) -> str:
    from pytest_llmbench.history.record import write_unsaved

    try:
        path = write_unsaved(document, folders)
    except OSError as error:
        return f"they could not be kept in a file either ({error.strerror}), and are lost to it"
    told = formatting.format_place(path, folders[0])
    return f"they are kept: llmbench history add {told} --history {shown}"
