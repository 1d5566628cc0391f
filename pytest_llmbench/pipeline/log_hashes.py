"""The sha256 of the logs behind verdicts, for the history: a fingerprint tells runs apart, a hash proves which bytes.

A log is read once more for it, and its fingerprint is taken of the very bytes that are hashed: where it is not the one
that the log had when it was judged, there is no hash.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.ingest.parse.fingerprint import Fingerprint, take_sample
from pytest_llmbench.ingest.sources import local
from pytest_llmbench.ingest.sources.compressed import Stream
from pytest_llmbench.ingest.sources.packed import find_archive, read_unlisted

Log = tuple[Path, str]
"""A log as it was judged: where it lay, and its fingerprint."""


def with_hashes(outcomes: Sequence[dict[str, Any]], directory: Path) -> list[dict[str, Any]]:
    """Return outcomes, those of a run with `log_sha256`: in the order of its logs the hash of each, of the file or
    member as it lies there, or None where it is gone, changed since, or of another machine.

    Paths in the outcomes are relative to `directory`. What cannot be read is no error; an interrupt is one.
    """
    logs = [_logs(one, directory) for one in outcomes]
    known = _hashes({log for of_one in logs for log in of_one})
    return [
        {**one, "log_sha256": [known.get(log) for log in of_one]} if of_one else one
        for one, of_one in zip(outcomes, logs, strict=True)
    ]


def _logs(one: dict[str, Any], directory: Path) -> list[Log]:
    """Return the logs of the run that was judged; none where the outcome does not tell which is which."""
    marks = one["run"]["log_fingerprint"] if one["kind"] == "configuration" and one["run"] else []
    places = dict.fromkeys(told["log"] for told in one.get("tries", ()))
    both = zip(places, marks, strict=True) if len(places) == len(marks) else ()
    return [(directory / place, mark) for place, mark in both]


def _hashes(logs: Collection[Log]) -> dict[Log, str]:
    """Return the hashes of those that can be read and are unchanged; files side by side, an archive in one pass."""
    here = [log for log in logs if os.path.isfile(log[0])]
    of_archive: dict[Path, set[Log]] = defaultdict(set)
    for log in set(logs).difference(here):
        if archive := find_archive(log[0]):
            of_archive[archive].add(log)
    found = _of_files(here)
    for archive, wanted in of_archive.items():
        found |= _of_members(archive, wanted)
    return {log: digest for log, digest in found.items() if digest}


def _of_files(logs: Sequence[Log]) -> dict[Log, str]:
    """Return the hashes of files; whoever interrupts waits for a block of each at most."""
    stopped = Event()

    def of_file(log: Log) -> str:
        path, fingerprint = log
        return _hash(takewhile(lambda _: not stopped.is_set(), local.read_blocks(path)), path, fingerprint)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            return dict(zip(logs, pool.map(of_file, logs), strict=True))
        except KeyboardInterrupt:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def _of_members(archive: Path, wanted: Collection[Log]) -> dict[Log, str]:
    """Return the hashes of members, of several that have one name the last; what was whole before a cut counts."""
    fingerprints = dict(wanted)
    found: dict[Log, str] = {}
    try:
        for path, data in read_unlisted(archive, Stream(local.read_blocks(archive), archive), fingerprints):
            found[path, fingerprints[path]] = _hash(data, path, fingerprints[path])
    except LogError:
        pass  # it was told when it was read
    return found


def _hash(blocks: Iterable[bytes], path: Path, fingerprint: str) -> str:
    """Return the hash of the bytes of a file; empty where they cannot be read, or their text is another one now."""
    digest, found, size = hashlib.sha256(), Fingerprint(), 0

    def hashed() -> Iterator[bytes]:
        for block in blocks:
            digest.update(block)
            yield block

    try:
        for text in Stream(hashed(), path):
            found.take(take_sample(size, text))
            size += len(text)
    except LogError:
        return ""
    return digest.hexdigest() if found.digest(size) == fingerprint else ""
