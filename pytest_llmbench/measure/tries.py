"""All attempts that the logs of a run tell of, and in words which of them is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Attempt, Note, NoteCode, Run, Segment, Try
from pytest_llmbench.measure.window import Choice, begins, is_finished

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

SHOWN = 3
"""How many attempts that failed a note tells of; reports tell of all."""


def list_tries(run: Run, choice: Choice | None, steps: int) -> tuple[Try, ...]:
    """Return the attempts in the order of the logs; `steps` are those of a complete run where the log says no total."""
    tries: list[Try] = []
    before: Segment | None = None
    for attempt in run.attempts:
        parts = [segment for segment in attempt.log.segments if len(segment.steps)]
        if not parts:
            tries.append(_make_empty_try(len(tries) + 1, attempt))
            before = None
        for segment in parts:
            judged = choice is not None and segment is choice.segment
            over = before is not None and _starts_over(before, segment, steps)
            tries.append(_make_try(len(tries) + 1, attempt, segment, steps, starts_over=over, judged=judged))
            before = segment
    return tuple(tries)


def note_tries(tries: Sequence[Try]) -> Iterator[Note]:
    """Yield which of several attempts is judged, and which did not finish."""
    judged = next((attempt for attempt in tries if attempt.judged), None)
    if len(tries) < 2 or judged is None:
        return
    failed = [f"{attempt.number} {attempt.ended}" for attempt in tries if not attempt.judged and not attempt.finished]
    failures = "".join(f"; {text}" for text in filter(None, [formatting.join_first(failed, SHOWN)]))
    files = list(dict.fromkeys(attempt.log for attempt in tries))
    where = f"line {judged.line}" + (f" of file {files.index(judged.log) + 1}" if len(files) > 1 else "")
    which = "last" if judged is tries[-1] else name_ordinal(judged.number)
    several = "the log" if len(files) == 1 else f"{len(files)} files"
    runs = all(attempt.starts_over for attempt in tries[1:])
    head = f"{len(tries)} runs in {several}" if runs else f"restarted: {len(tries)} attempts in {several}"
    yield Note(
        NoteCode.SEGMENTS if runs else NoteCode.ATTEMPTS, f"{head}; the {which}, from {where}, is judged{failures}"
    )


def note_slowest(seconds: Sequence[float], statistic: str) -> Iterator[Note]:
    """Yield that a slower attempt decides than the last one; nothing without the times of several."""
    if seconds:
        shown = formatting.join_first([formatting.format_seconds(value) for value in seconds])
        text = f"{len(seconds)} finished attempts cover the window ({statistic.replace('_', ' ')} {shown}): the slowest"
        yield Note(NoteCode.SLOWEST_ATTEMPT, f"{text} is judged, for a fast one does not make good a slow one")


def _make_try(number: int, attempt: Attempt, segment: Segment, steps: int, *, starts_over: bool, judged: bool) -> Try:
    finished, last = is_finished(segment, steps), int(segment.steps.index[-1])
    return Try(
        number=number,
        log=attempt.files.log,
        line=segment.first_line,
        first_step=int(begins(segment.steps)[0]),
        last_step=last,
        finished=finished,
        ended="finished" if finished else f"stopped after step {last}{_describe_cause(attempt, segment)}",
        starts_over=starts_over,
        judged=judged,
    )


def _make_empty_try(number: int, attempt: Attempt) -> Try:
    line = attempt.log.ending.line if attempt.log.ending and not attempt.log.ending.file else 0
    return Try(
        number, attempt.files.log, line, None, None, finished=False, ended=f"no step{_describe_cause(attempt, None)}"
    )


def _describe_cause(attempt: Attempt, segment: Segment | None) -> str:
    """Return why an attempt ended, in brackets; what a log says of its end is about the last part of it."""
    ending, parts = attempt.log.ending, attempt.log.segments
    if ending is None or (segment is not None and segment is not parts[-1]):
        return ""
    return f" ({ending.code.replace('-', ' ')})"


def _starts_over(before: Segment, segment: Segment, steps: int) -> bool:
    """Whether a segment is another run: the one before it had finished, and it does not go on after it."""
    return is_finished(before, steps) and int(begins(segment.steps)[0]) <= int(before.steps.index[-1])


def name_ordinal(number: int) -> str:
    """Return `first` to `tenth`, then `11th`."""
    return ORDINALS[number - 1] if number <= len(ORDINALS) else formatting.format_ordinal(number)
