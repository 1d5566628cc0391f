"""Reports of a slow rank in the logs of slow runs, quoted in their failed items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_llmbench.core.codes import NoteCode, Verdict
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.core.run_records import Measurement, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.item_status import is_red
from pytest_llmbench.session.outcomes import JudgedConfigurations
from pytest_llmbench.session.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.logs.slow_ranks import SlowRankLine

SLOW = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)

# The number of bytes of a log that are searched again, which takes about a second.
MOST = 1 << 30

Bounds = tuple[int, float]
"""The last line before the relevant part of a file, and the first line after it."""


def with_slow_ranks(
    judged: JudgedConfigurations, settings: Settings
) -> JudgedConfigurations:
    """Add the reports of a slow rank in their own logs to the failed slow results."""

    def quote(
        result: ConfigurationResult, _: tuple[Evidence, ...]
    ) -> ConfigurationResult:
        """Add the reports to one result if it failed and is slow."""
        judgement = result.judgement
        failed = is_red(judgement, settings.rules, required=True)
        is_slow = judgement.verdict in SLOW
        if not failed or not is_slow or judgement.measurement is None:
            return result
        return replace(result, judgement=_add_quotes(judgement, judgement.measurement))

    return judged.map(quote)


def _add_quotes(judgement: Judgement, measurement: Measurement) -> Judgement:
    """Add the note on a slow rank to a judgement, if the log contains a report."""
    note = find_slow_rank(measurement)
    if note is None:
        return judgement
    return replace(judgement.add_statements(note), notes=(note, *judgement.notes))


def find_slow_rank(measurement: Measurement) -> Note | None:
    """Return a note that quotes the reports of a slow rank, or None.

    Searches the measured part of the log and its standard error.
    """
    if measurement.log is None:
        return None
    redactor = make_redactor()
    for log, bounds in _list_places(measurement, measurement.log):
        reports = _read_reports(log, bounds)
        if reports:
            is_measured_log = log == measurement.log
            lines = tuple(
                (redactor.redact(report.text), report.line) for report in reports
            )
            quoted = CodedStatement(
                StatementCode.SLOW_RANK,
                log="" if is_measured_log else log.name,
                lines=lines,
            )
            return Note(
                NoteCode.SLOW_RANK, quoted, reports[0].line if is_measured_log else 0
            )
    return None


def _list_places(measurement: Measurement, log: Path) -> Iterator[tuple[Path, Bounds]]:
    """Yield the log with the bounds of the judged lines, then its standard error.

    The standard error has no bounds, and is omitted if the log contains several
    segments.
    """
    attempt = next(
        (attempt for attempt in measurement.run.attempts if attempt.files.log == log),
        None,
    )
    yield log, _find_bounds(measurement)
    if (
        attempt is not None
        and attempt.files.err is not None
        and len(attempt.log.segments) == 1
    ):
        everywhere = (0, math.inf)  # segments have no known lines in standard error
        yield attempt.files.err, everywhere


def _read_reports(log: Path, bounds: Bounds) -> tuple[SlowRankLine, ...]:
    """Return the reports in a file; empty if it can no longer be read."""
    from pytest_llmbench.logs.slow_ranks import find_slow_ranks
    from pytest_llmbench.logs.sources import files
    from pytest_llmbench.logs.sources.archive import find_archive, read_unlisted
    from pytest_llmbench.logs.sources.compressed import Stream

    archive = find_archive(log)
    reports: tuple[SlowRankLine, ...] = ()
    try:
        if archive is None:
            return find_slow_ranks(
                _read_within(Stream(files.read_blocks(log), log)), *bounds
            )
        blocks = _read_within(Stream(files.read_blocks(archive), archive))
        # If several members have the name of the log, the last one counts.
        for _, data in read_unlisted(archive, blocks, [log]):
            reports = find_slow_ranks(_read_within(Stream(data, log)), *bounds)
    except LogError:
        # The log was deleted after it was judged, or its archive is longer than MOST.
        return reports
    return reports


def _find_bounds(measurement: Measurement) -> Bounds:
    """Return the bounds of the measured segment of the log, in lines.

    They are the last line of the segment before and the first line of the next one.
    """
    log = measurement.measured_log
    segments = () if log is None else log.segments
    # Segments are numbered from 1; 0 means that no segment was measured.
    index = measurement.segment - 1
    has_previous, has_next = 0 < index <= len(segments), 0 <= index < len(segments) - 1
    begin = segments[index - 1].last_line if has_previous else 0
    end = segments[index + 1].first_line if has_next else math.inf
    return begin, end


def _read_within(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks until MOST bytes have been read."""
    bytes_read = 0
    for block in blocks:
        yield block
        bytes_read += len(block)
        if bytes_read > MOST:
            return
