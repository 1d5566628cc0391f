"""The reports of a slow rank that the logs of slow runs contain themselves, quoted in their red items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Evidence, Judgement, Measurement, Note, NoteCode, Status, Verdict
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.pipeline.outcomes import ConfigurationResult, JudgedConfigurations, decide_item_status
from pytest_llmbench.pipeline.settings import Settings

SLOW = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)

# Bytes of a log that are searched once more: about a second.
MOST = 1 << 30


def with_slow_ranks(judged: JudgedConfigurations, settings: Settings) -> JudgedConfigurations:
    """Return the results, those of slow runs with what their own log reports of a slow rank."""

    def quote(result: ConfigurationResult, _: tuple[Evidence, ...]) -> ConfigurationResult:
        judgement = result.judgement
        red = decide_item_status(judgement, required=True, settings=settings) is Status.FAILED
        if not red or judgement.verdict not in SLOW or judgement.measurement is None:
            return result
        return replace(result, judgement=_add_quotes(judgement, judgement.measurement))

    return judged.map(quote)


def _add_quotes(judgement: Judgement, measurement: Measurement) -> Judgement:
    note = find_slow_rank(measurement)
    if note is None:
        return judgement
    return replace(judgement, sentences=(*judgement.sentences, note.text), notes=(note, *judgement.notes))


def find_slow_rank(measurement: Measurement) -> Note | None:
    """Return the note that quotes the measured part of a log on a slow rank, None if it reports none."""
    from pytest_llmbench.ingest.parse.slow_ranks import find_slow_ranks
    from pytest_llmbench.ingest.sources import files
    from pytest_llmbench.ingest.sources.compressed import Stream
    from pytest_llmbench.ingest.sources.packed import find_archive

    log = measurement.log
    if log is None or find_archive(log) is not None:
        return None
    try:
        blocks = _read_within(Stream(files.read_blocks(log), log))
        reports = find_slow_ranks(blocks, *_find_bounds(measurement))
    except LogError:
        return None  # it was there when it was judged
    if not reports:
        return None
    redactor = make_redactor()
    quoted = ", ".join(f'"{redactor.redact(report.text)}" (line {report.line})' for report in reports)
    return Note(NoteCode.SLOW_RANK, f"the log reports a slow rank: {quoted}", reports[0].line)


def _find_bounds(measurement: Measurement) -> tuple[int, float]:
    """Return the last line before the measured part of a log, and the first line after it."""
    logs = (attempt.log for attempt in measurement.run.attempts if attempt.files.log == measurement.log)
    parts = next((log.segments for log in logs), ())
    number = measurement.segment - 1
    begin = parts[number - 1].last_line if 0 < number <= len(parts) else 0
    end = parts[number + 1].first_line if 0 <= number < len(parts) - 1 else math.inf
    return begin, end


def _read_within(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of the first MOST bytes."""
    passed = 0
    for block in blocks:
        yield block
        passed += len(block)
        if passed > MOST:
            return
