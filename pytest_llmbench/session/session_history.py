"""The history in one session: what it knew at the start, and what is added at the
end."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key, Window
from pytest_llmbench.core.errors import HistoryError, LogError
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.redaction import hide_password_of, hide_tokens
from pytest_llmbench.core.run_records import (
    StoredRun,
    exclude_same_runs,
    join_fingerprints,
    make_run_keys,
)
from pytest_llmbench.core.runtime import (
    count_processors,
    read_commit,
    read_job_url,
)
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.archive import find_archive, read_unlisted
from pytest_llmbench.logs.sources.compressed import Stream

if TYPE_CHECKING:
    from pytest_llmbench.history.session_record import SessionRecord
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.report.outcome_documents import (
        ConfigurationOutcome,
        OutcomeDocument,
        SessionDocument,
        SessionOrigin,
    )
    from pytest_llmbench.session.outcomes import SessionResults

PAUSES = (0.5, 2.0)  # SQLite has waited already
"""Seconds before a server is asked again."""


class SessionHistory:
    """What a store knows of the configurations in use; HistoryError where it cannot be
    read or could not be written."""

    def __init__(self, place: StoreLocation, keys: Iterable[Key]) -> None:
        """Open the store, which is made or brought to the newest version, and read the
        past."""
        from pytest_llmbench.history.store import check_meanwhile

        self.place = place
        with (
            check_meanwhile(place) as is_sound
        ):  # importing SQLAlchemy takes as long as a year of history is read
            from pytest_llmbench.history.queries import read_stored_runs
            from pytest_llmbench.history.record import prepare

            prepare(place, is_sound)
        self._read = read_stored_runs
        self.past: Mapping[Key, Sequence[StoredRun]] = {}
        self._by_id: Mapping[str, Sequence[StoredRun]] = {}
        self.read(keys)

    def read(self, keys: Iterable[Key]) -> None:
        """Read the past of further configurations."""
        by_id = {key.id: key for key in keys}
        stored = self._read(self.place, by_id.keys())
        self.past = {
            **self.past,
            **{by_id[name]: runs for name, runs in stored.items()},
        }
        self._by_id = {**self._by_id, **stored}

    def describe(self) -> str:
        """Return where the store is and how much of it is in use: `history.db: 738 runs
        of 82 configurations`."""
        runs = sum(map(len, self._by_id.values()))
        size = f"{formatting.count_noun(runs, 'run')} of {formatting.count_noun(len(self._by_id), 'configuration')}"
        return (
            f"{formatting.escape(self.place.shown)}: {size if runs else 'nothing yet'}"
        )

    def add_daily_runs(self, outcome: ConfigurationOutcome) -> ConfigurationOutcome:
        """Add the daily runs before its run to an outcome, oldest first.

        Of a night that lies in the folder, too, the history knows the verdict.
        """
        from msgspec.structs import replace

        from pytest_llmbench.report.describe_judgement import (
            describe_stored_run,
            join_daily_runs,
        )

        from_outcome = {night.started[:10]: night for night in outcome.history}
        from_store = {
            day: describe_stored_run(stored)
            for day, stored in self._list_days(outcome).items()
        }
        nights = (from_outcome | from_store).values()
        daily = join_daily_runs(nights, outcome.changes)
        return replace(outcome, history=daily.history, changes=daily.changes)

    def _list_days(self, outcome: ConfigurationOutcome) -> dict[str, StoredRun]:
        """List the stored runs before the run of an outcome by their day: of each day a
        valid one, if there is."""
        past = self._by_id.get(outcome.configuration.id, ())
        window, run = outcome.window, outcome.run
        wanted = Window(window.first, window.last, window.statistic)
        started = datetime.fromisoformat(run.started) if run and run.started else None
        own = (
            make_run_keys(run.job_id, join_fingerprints(run.log_fingerprint), started)
            if run
            else frozenset()
        )
        nights: dict[str, StoredRun] = {}
        for stored in exclude_same_runs(past, own):
            if stored.window == wanted and (
                started is None or stored.started <= started
            ):
                day = str(stored.started.date())
                nights[day] = max(
                    stored, nights.get(day, stored), key=attrgetter("valid")
                )
        return nights

    def read_noise(
        self, cluster: str, configurations: Collection[str]
    ) -> dict[str, Noise]:
        """Return by configuration (ids) what its earlier A/Bs on a cluster say of the
        noise from run to run."""
        from pytest_llmbench.history.paired_noise import read_noises
        from pytest_llmbench.judge.noise import pool

        noises: dict[str, Noise] = {}
        for name, stored in read_noises(self.place, cluster, configurations).items():
            source = formatting.count_noun(len(stored), "earlier A/B")
            pooled = pool([Noise(*noise, source, measured=True) for noise in stored])
            if pooled:
                noises[name] = replace(pooled, source=source)
        return noises

    def with_details(self, results: SessionResults) -> SessionResults:
        """Return results, those with a last good run with what the store holds of it:
        nodes, launcher, step times."""
        from pytest_llmbench.history.details import read_details
        from pytest_llmbench.session.last_good_runs import (
            add_details,
            list_last_good_keys,
        )

        places = list_last_good_keys(results)
        try:
            details = read_details(self.place, set(places.values())) if places else {}
        except HistoryError:  # all is judged by now, perhaps after hours of jobs: what is not known is said so
            return results
        by_id = {
            name: details[place] for name, place in places.items() if place in details
        }
        return add_details(results, by_id)

    def store(
        self, session: SessionDocument, folders: Sequence[Path]
    ) -> tuple[str, str]:
        """Store the verdicts of a session, and return the line for the summary, and the
        line for a failure or doubt.

        What cannot be stored is kept in a file in the first of `folders` that takes it.
        """
        from pytest_llmbench.history.prune import describe_clock
        from pytest_llmbench.session.unsaved import make_record

        record = make_record(session)
        shown = formatting.escape(self.place.shown)
        if not record.verdicts:
            return "", ""
        verdicts = formatting.count_noun(len(record.verdicts), "verdict")
        try:
            self._write(record)
        # Whatever it is, it must not take the night with it: a package that fails in
        # its own way, or who presses Ctrl-C in the 20 s of a lock. All is decided by
        # now, and the session ends as it would.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            why = (
                str(error)
                if isinstance(error, HistoryError)
                else " ".join(repr(error).split())
            )
            problem = f"history: {verdicts} not stored (no verdict depends on it): {formatting.escape(why)}"
            return "", f"{problem}; {_keep(session, folders, shown)}"
        doubt, stored = "", record.session
        with suppress(
            HistoryError
        ):  # a later session, or a command, reports a store that cannot be read
            doubt = describe_clock(self.place, stored.id, stored.started)
        return (
            f"history: {verdicts} stored in {shown}",
            f"history: {formatting.escape(doubt)}" if doubt else "",
        )

    def _write(self, record: SessionRecord) -> None:
        from pytest_llmbench.history.record import write

        for pause in () if self.place.file else PAUSES:
            try:
                write(self.place, record)
            except HistoryError:
                time.sleep(pause)
            else:
                return
        write(self.place, record)


def describe_origin(
    now: datetime, command: Sequence[str], environment: Mapping[str, str]
) -> SessionOrigin:
    """Describe the session for its history; `command` is what was typed."""
    from pytest_llmbench.report.outcome_documents import SessionOrigin

    return SessionOrigin(
        id=f"{now:%Y%m%d-%H%M}-{uuid.uuid4().hex[:12]}",
        host=formatting.escape(socket.gethostname()),
        options=tuple(map(hide_password_of, command)),
        git_commit=read_commit(environment),
        ci_url=formatting.escape(hide_tokens(read_job_url(environment))),
    )


def _keep(session: SessionDocument, folders: Sequence[Path], shown: str) -> str:
    from pytest_llmbench.session.unsaved import write_unsaved

    try:
        path = write_unsaved(session, folders)
    except OSError as error:
        return f"they could not be kept in a file either ({error.strerror}), and are lost to it"
    place = formatting.format_path(path, folders[0])
    return f"they are kept: llmbench history add {place} --history {shown}"


# --- the sha256 of the logs behind verdicts -------------------------------------------

# A fingerprint tells runs apart, a hash proves which bytes. A log is read once more for
# it, and its fingerprint is taken of the very bytes that are hashed: where it is not
# the one of the log that was judged, there is no hash.

JudgedLog = tuple[Path, str]
"""A log as it was judged: where it lay, and its fingerprint."""


def with_hashes(
    outcomes: Sequence[OutcomeDocument], directory: Path
) -> list[OutcomeDocument]:
    """Add the hashes of the logs of its run to each outcome (`log_sha256`), in the
    order of the logs.

    The hash is of the file or member as it lies there, None if it is gone, changed
    since, or of another machine. Paths in the outcomes are relative to `directory`.
    What cannot be read is no error; an interrupt is one.
    """
    from msgspec.structs import replace

    logs = [_list_logs(outcome, directory) for outcome in outcomes]
    hashes = _hash_logs({log for of_one in logs for log in of_one})
    return [
        replace(outcome, log_sha256=tuple(map(hashes.get, of_one)))
        if of_one
        else outcome
        for outcome, of_one in zip(outcomes, logs, strict=True)
    ]


def _list_logs(outcome: OutcomeDocument, directory: Path) -> list[JudgedLog]:
    """List the logs of the run that was judged; none if the outcome does not
    distinguish them."""
    if outcome.kind != "configuration" or outcome.run is None:
        return []
    fingerprints = outcome.run.log_fingerprint
    places = dict.fromkeys(attempt.log for attempt in outcome.tries or ())
    both = (
        zip(places, fingerprints, strict=True)
        if len(places) == len(fingerprints)
        else ()
    )
    return [(directory / place, fingerprint) for place, fingerprint in both]


def _hash_logs(logs: Collection[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of those that can be read and are unchanged; files side by
    side, an archive in one pass."""
    here = [log for log in logs if os.path.isfile(log[0])]
    of_archive: dict[Path, set[JudgedLog]] = defaultdict(set)
    for log in set(logs).difference(here):
        if archive := find_archive(log[0]):
            of_archive[archive].add(log)
    hashes = _hash_files(here)
    for archive, wanted in of_archive.items():
        hashes |= _hash_members(archive, wanted)
    return {log: digest for log, digest in hashes.items() if digest}


def _hash_files(logs: Sequence[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of files."""
    # Threads cannot be killed: whoever interrupts waits for a block of each at most.
    stopped = Event()

    def hash_file(log: JudgedLog) -> str:
        path, fingerprint = log
        return _hash(
            takewhile(lambda _: not stopped.is_set(), files.read_blocks(path)),
            path,
            fingerprint,
        )

    with ThreadPoolExecutor(count_processors()) as pool:
        try:
            return dict(zip(logs, pool.map(hash_file, logs), strict=True))
        finally:  # an interrupt may arrive as RuntimeError: StopSignals.keep_raised
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _hash_members(archive: Path, wanted: Collection[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of members, of several that have one name the last; what was
    whole before a cut counts."""
    fingerprints = dict(wanted)
    hashes: dict[JudgedLog, str] = {}
    try:
        for path, data in read_unlisted(
            archive, Stream(files.read_blocks(archive), archive), fingerprints
        ):
            hashes[path, fingerprints[path]] = _hash(data, path, fingerprints[path])
    except LogError:
        pass  # it was told when it was read
    return hashes


def _hash(blocks: Iterable[bytes], path: Path, fingerprint: str) -> str:
    """Return the hash of the bytes of a file; empty where they cannot be read, or their
    text is another one now."""
    from pytest_llmbench.logs.log_reader import Fingerprint, hash_sample

    digest, found, size = hashlib.sha256(), Fingerprint(), 0

    def update_hash() -> Iterator[bytes]:
        for block in blocks:
            digest.update(block)
            yield block

    try:
        for text in Stream(update_hash(), path):
            found.update(hash_sample(size, text))
            size += len(text)
    except LogError:
        return ""
    return digest.hexdigest() if found.digest(size) == fingerprint else ""
