"""The history during one session: stored runs at its start, new verdicts at its end."""

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
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from msgspec.structs import replace

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

PAUSES = (0.5, 2.0)  # not used for SQLite, which waits itself
"""Seconds to wait before further attempts to write to a server."""


class SessionHistory:
    """The stored runs of the configurations in use.

    Methods raise HistoryError if the store cannot be read or written.
    """

    def __init__(self, place: StoreLocation, keys: Iterable[Key]) -> None:
        """Open the store, creating or upgrading it if necessary, and read the stored
        runs."""
        from pytest_llmbench.history.store import check_meanwhile

        self.place = place
        # The file is checked in a thread during the import of SQLAlchemy, which takes as
        # long as reading a year of history.
        with check_meanwhile(place) as is_sound:
            from pytest_llmbench.history.queries import read_stored_runs
            from pytest_llmbench.history.record import prepare

            prepare(place, is_sound)
        self._read = read_stored_runs
        self.past: Mapping[Key, Sequence[StoredRun]] = {}
        self._by_id: Mapping[str, Sequence[StoredRun]] = {}
        self.read(keys)

    def read(self, keys: Iterable[Key]) -> None:
        """Read the stored runs of further configurations."""
        by_id = {key.id: key for key in keys}
        stored = self._read(self.place, by_id.keys())
        self.past = {
            **self.past,
            **{by_id[name]: runs for name, runs in stored.items()},
        }
        self._by_id = {**self._by_id, **stored}

    def describe(self) -> str:
        """Return the store and its size: `history.db: 738 runs of 82 configurations`."""
        store_name = formatting.escape(self.place.shown)
        number_of_runs = sum(map(len, self._by_id.values()))
        if not number_of_runs:
            return f"{store_name}: nothing yet"
        runs = formatting.count_noun(number_of_runs, "run")
        configurations = formatting.count_noun(len(self._by_id), "configuration")
        return f"{store_name}: {runs} of {configurations}"

    def add_daily_runs(self, outcome: ConfigurationOutcome) -> ConfigurationOutcome:
        """Add the earlier daily runs of the configuration to an outcome, oldest first.

        A stored run replaces a run of the same day in the folder, because it has a
        verdict.
        """
        from msgspec.structs import replace

        from pytest_llmbench.report.describe_judgement import (
            describe_stored_run,
            join_daily_runs,
        )

        from_outcome = {entry.started[:10]: entry for entry in outcome.history}
        from_store = {
            day: describe_stored_run(stored)
            for day, stored in self._list_days(outcome).items()
        }
        daily_runs = (from_outcome | from_store).values()
        daily = join_daily_runs(daily_runs, outcome.changes)
        return replace(outcome, history=daily.history, changes=daily.changes)

    def _list_days(self, outcome: ConfigurationOutcome) -> dict[str, StoredRun]:
        """Return one stored run for each day up to the run of an outcome, by day.

        Only runs measured over the same window count. The run of the outcome is left
        out. A valid run of a day is preferred to an invalid one.
        """
        past = self._by_id.get(outcome.configuration.id, ())
        window, run = outcome.window, outcome.run
        expected_window = Window(window.first, window.last, window.statistic)
        started = datetime.fromisoformat(run.started) if run and run.started else None
        run_keys = (
            make_run_keys(run.job_id, join_fingerprints(run.log_fingerprint), started)
            if run
            else frozenset()
        )
        by_day: dict[str, StoredRun] = {}
        for stored in exclude_same_runs(past, run_keys):
            if stored.window == expected_window and (
                started is None or stored.started <= started
            ):
                day = str(stored.started.date())
                # Of two valid or two invalid runs of a day, the later one counts.
                by_day[day] = max(
                    stored, by_day.get(day, stored), key=attrgetter("valid")
                )
        return by_day

    def read_noise(
        self, cluster: str, configurations: Collection[str]
    ) -> dict[str, Noise]:
        """Return the noise between runs on a cluster, by configuration id.

        It is pooled over the earlier A/B tests, which measured it.
        """
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
        """Add details from the store to the last good runs: nodes, launcher, step
        times."""
        from pytest_llmbench.history.details import read_details
        from pytest_llmbench.session.last_good_runs import (
            add_details,
            list_last_good_keys,
        )

        keys = list_last_good_keys(results)
        try:
            details = read_details(self.place, set(keys.values())) if keys else {}
        except HistoryError:  # the runs are judged already; the details are optional
            return results
        by_id = {name: details[key] for name, key in keys.items() if key in details}
        return add_details(results, by_id)

    def store(
        self, session: SessionDocument, folders: Sequence[Path]
    ) -> tuple[str, str]:
        """Store the verdicts of a session.

        Returns the line for the summary and the line for a problem; either may be "". A
        session that cannot be stored is saved to a file in the first writable folder of
        `folders`.
        """
        from pytest_llmbench.history.prune import describe_clock
        from pytest_llmbench.session.unsaved import make_record

        record = make_record(session)
        store_name = formatting.escape(self.place.shown)
        if not record.verdicts:
            return "", ""
        verdicts = formatting.count_noun(len(record.verdicts), "verdict")
        try:
            self._write(record)
        # No error may lose the results: neither an unexpected exception of a package, nor
        # Ctrl-C while waiting 20 s for a lock. All verdicts are decided, and the session
        # ends normally.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            reason = (
                str(error)
                if isinstance(error, HistoryError)
                else " ".join(repr(error).split())
            )
            problem = f"history: {verdicts} not stored (no verdict depends on it): {formatting.escape(reason)}"
            return "", f"{problem}; {_save_to_file(session, folders, store_name)}"
        clock_problem = ""
        # A later session, or a command, reports a store that cannot be read.
        with suppress(HistoryError):
            clock_problem = describe_clock(
                self.place, record.session.id, record.session.started
            )
        return (
            f"history: {verdicts} stored in {store_name}",
            f"history: {formatting.escape(clock_problem)}" if clock_problem else "",
        )

    def _write(self, record: SessionRecord) -> None:
        """Write a session; a server gets further attempts after pauses.

        Raises the HistoryError of the last attempt.
        """
        from pytest_llmbench.history.record import write

        # SQLite itself waits for a locked file, so a file gets only the last attempt.
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
    """Describe the session for its history; `command` is the typed command line."""
    from pytest_llmbench.report.outcome_documents import SessionOrigin

    return SessionOrigin(
        id=f"{now:%Y%m%d-%H%M}-{uuid.uuid4().hex[:12]}",
        host=formatting.escape(socket.gethostname()),
        options=tuple(map(hide_password_of, command)),
        git_commit=read_commit(environment),
        ci_url=formatting.escape(hide_tokens(read_job_url(environment))),
    )


def _save_to_file(
    session: SessionDocument, folders: Sequence[Path], store_name: str
) -> str:
    """Save a session that could not be written to the store `store_name`.

    Returns the path of the file and the command to store it later, as a sentence.
    """
    from pytest_llmbench.session.unsaved import write_unsaved

    try:
        path = write_unsaved(session, folders)
    except OSError as error:
        return (
            f"they could not be saved to a file either ({error.strerror}) and are lost"
        )
    shown_path = formatting.format_path(path, folders[0])
    return f"they were saved to a file, add it with: llmbench history add {shown_path} --history {store_name}"


# --- the sha256 of the logs behind verdicts -------------------------------------------

# A fingerprint distinguishes runs, a hash proves the exact bytes. A log is read again to
# hash it, and its fingerprint is computed from the same bytes. If that is not the
# fingerprint of the judged log, there is no hash.

JudgedLog = tuple[Path, str]
"""The path of a judged log, and its fingerprint."""


def with_hashes(
    outcomes: Sequence[OutcomeDocument], directory: Path
) -> list[OutcomeDocument]:
    """Add the hashes of the judged logs to each outcome (`log_sha256`), in their order.

    A hash is of the file or archive member as it is now. It is None if the file is
    missing, has changed, or is on another machine. Paths in the outcomes are relative
    to `directory`. Unreadable files are not an error; interrupts are raised.
    """
    from msgspec.structs import replace

    logs = [_list_logs(outcome, directory) for outcome in outcomes]
    hashes = _hash_logs({log for outcome_logs in logs for log in outcome_logs})
    return [
        replace(outcome, log_sha256=tuple(map(hashes.get, outcome_logs)))
        if outcome_logs
        else outcome
        for outcome, outcome_logs in zip(outcomes, logs, strict=True)
    ]


def _list_logs(outcome: OutcomeDocument, directory: Path) -> list[JudgedLog]:
    """Return the logs of the judged run with their fingerprints.

    Empty if the outcome has another number of logs than of fingerprints.
    """
    if outcome.kind != "configuration" or outcome.run is None:
        return []
    fingerprints = outcome.run.log_fingerprint
    # Several attempts may be in one log.
    paths = dict.fromkeys(attempt.log for attempt in outcome.tries or ())
    if len(paths) != len(fingerprints):
        return []
    pairs = zip(paths, fingerprints, strict=True)
    return [(directory / path, fingerprint) for path, fingerprint in pairs]


def _hash_logs(logs: Collection[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of the readable, unchanged logs.

    Files are hashed in parallel, the members of an archive in one pass.
    """
    files_on_disk = []
    members_by_archive: dict[Path, set[JudgedLog]] = defaultdict(set)
    for log in logs:
        path, _ = log
        if os.path.isfile(path):
            files_on_disk.append(log)
        elif archive := find_archive(path):
            members_by_archive[archive].add(log)
    hashes = _hash_files(files_on_disk)
    for archive, members in members_by_archive.items():
        hashes |= _hash_members(archive, members)
    return {log: digest for log, digest in hashes.items() if digest}


def _hash_files(logs: Sequence[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of files."""
    # Threads cannot be killed: after an interrupt, each finishes at most its block.
    stopped = Event()

    def hash_file(log: JudgedLog) -> str:
        path, fingerprint = log
        blocks = takewhile(lambda _: not stopped.is_set(), files.read_blocks(path))
        return _hash(blocks, path, fingerprint)

    with ThreadPoolExecutor(count_processors()) as pool:
        try:
            return dict(zip(logs, pool.map(hash_file, logs), strict=True))
        finally:  # an interrupt may arrive as RuntimeError: StopSignals.keep_raised
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _hash_members(archive: Path, logs: Collection[JudgedLog]) -> dict[JudgedLog, str]:
    """Return the hashes of archive members.

    The last of several members with one name counts. Members before a truncation count.
    """
    fingerprints = dict(logs)
    hashes: dict[JudgedLog, str] = {}
    stream = Stream(files.read_blocks(archive), archive)
    try:
        for path, data in read_unlisted(archive, stream, fingerprints):
            hashes[path, fingerprints[path]] = _hash(data, path, fingerprints[path])
    except LogError:
        pass  # the error was reported when the archive was read
    return hashes


def _hash(blocks: Iterable[bytes], path: Path, fingerprint: str) -> str:
    """Return the SHA-256 of a file's bytes, or "" if its text is not the judged one.

    `fingerprint` is that of the decompressed text that was judged. The hash and the
    fingerprint are computed from the same bytes. Unreadable files give "", too.
    """
    from pytest_llmbench.logs.log_reader import Fingerprint, hash_sample

    digest, sample, size = hashlib.sha256(), Fingerprint(), 0

    def update_hash() -> Iterator[bytes]:
        for block in blocks:
            digest.update(block)
            yield block

    try:
        for text in Stream(update_hash(), path):
            sample.update(hash_sample(size, text))
            size += len(text)
    except LogError:
        return ""
    return digest.hexdigest() if sample.digest(size) == fingerprint else ""
