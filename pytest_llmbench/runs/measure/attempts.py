"""The attempts that the logs of a run tell of: which of them is judged, and what became
of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.log_records import Segment, StatedField, Steps
from pytest_llmbench.core.run_records import Attempt, AttemptSummary, Note, Run
from pytest_llmbench.runs.measure.window import (
    WARM_UP_STEPS,
    begins,
    find_missing_steps,
    is_inside,
    mask_window,
)

ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)

METRICS = "metrics"  # the dialect of files of which each process begins a new one

SHOWN = 3  # how many attempts that failed a note tells of; reports tell of all


@dataclass(frozen=True, slots=True)
class Choice:
    """The segment that is judged, where it stands, and how many other segments with
    steps the run holds.

    `rivals` are the other ones that finished, cover the window and may be judged in its
    place, in their order.
    """

    attempt: Attempt
    number: int
    segment: Segment
    others: int
    rivals: tuple[Choice, ...] = ()


def choose_segment(
    attempts: Sequence[Attempt], window: Window, steps: int
) -> Choice | None:
    """Choose the last finished segment that covers the window, with its rivals; None
    without steps.

    Where the last segment started over after a finished one, or none is finished, the
    last one is judged: None where that one has no steps.
    """
    choices = [
        Part(attempt, number, segment)
        for attempt in attempts
        for number, segment in enumerate(attempt.log.segments, start=1)
        if len(segment.steps)
    ]
    if not choices or (
        len(choices) == 1 and len(attempts) == 1
    ):  # there is nothing to choose
        return Choice(*choices[0], others=0) if choices else None
    unprofiled = [part for part in choices if not is_profiled(part.segment)]
    untraced = [part for part in unprofiled if not is_traced(part.attempt, part.number)]
    whole = [
        part
        for part in untraced
        if is_finished(part.segment, steps) and _covers(part.segment, window)
    ]
    # A requeued job is judged on the attempt that finished.
    chosen = whole[-1] if whole else (unprofiled or choices)[-1]
    after = untraced[untraced.index(chosen) + 1 :] if whole else []
    # What is newer must not be hidden by what went well before it.
    if any(begins(part.segment.steps)[0] <= window.last for part in after):
        chosen, whole = after[-1], []
    is_last = bool(untraced) and untraced[-1] is chosen is choices[-1]
    if not whole and is_last and is_finished(chosen.segment, steps):
        chosen = join_resumed(untraced, window, steps) or chosen
    if is_finished(chosen.segment, steps) and _has_died_since(attempts, chosen.attempt):
        return None
    others = len(choices) - 1
    rivals = tuple(Choice(*part, others=others) for part in whole if part is not chosen)
    return Choice(*chosen, others=others, rivals=rivals)


class Part(NamedTuple):
    """A segment with steps, and where it stands."""

    attempt: Attempt
    number: int
    segment: Segment


def _covers(segment: Segment, window: Window) -> bool:
    return not find_missing_steps(segment.steps, window)


def join_resumed(parts: Sequence[Part], window: Window, steps: int) -> Part | None:
    """Join the last part with those of its log that it resumed, if only together they
    cover the window.

    The joined part has the number of the one that covers most of the window. A step
    that was made twice counts as the first time; the first steps after a resume do not
    count outside the window.
    """
    chain = [parts[-1]]
    for part in reversed(parts[:-1]):
        is_resumed = part.attempt is chain[0].attempt and not is_finished(
            part.segment, steps
        )
        if not is_resumed or not _goes_on(part.segment.steps, chain[0].segment.steps):
            break
        chain.insert(0, part)
    joined = chain[0].segment.steps
    for part in chain[1:]:
        joined = _append(joined, part.segment.steps, window)
    segments = [part.segment for part in chain]
    segment = replace(
        segments[-1],
        steps=joined,
        stated=tuple(statement for each in segments for statement in each.stated),
        first_line=segments[0].first_line,
        doubt=next((each.doubt for each in segments if each.doubt), ""),
        bad_validation_line=next(
            (each.bad_validation_line for each in segments if each.bad_validation_line),
            0,
        ),
    )
    if len(chain) == 1 or not _covers(segment, window):
        return None
    most = max(
        chain,
        key=lambda part: np.count_nonzero(mask_window(part.segment.steps, window)),
    )
    return Part(most.attempt, most.number, segment)


def _goes_on(before: Steps, after: Steps) -> bool:
    """Whether steps begin at a checkpoint of those before them."""
    return int(begins(before)[0]) < int(begins(after)[0]) <= int(before.index[-1]) + 1


def _append(before: Steps, after: Steps, window: Window) -> Steps:
    """Append the steps behind those before, without the first ones after the resume
    unless they are of the window."""
    first = begins(after)
    is_warm = (first >= first[0] + WARM_UP_STEPS) | is_inside(after, window)
    rows = np.flatnonzero((first > before.index[-1]) & is_warm)
    columns = {
        column.name: np.append(
            getattr(before, column.name), getattr(after, column.name)[rows]
        )
        for column in fields(Steps)
    }
    if len(rows):  # the time until the resume is that of no step
        row = rows[0]
        begun = (
            after.stamp[row - 1]
            if row
            else after.stamp[0] - after.seconds[0] * after.mean_of[0]
        )
        columns["since"][len(before)] = begun
    return Steps(**columns)


def _has_died_since(attempts: Sequence[Attempt], finished: Attempt) -> bool:
    """Whether a newer file of metrics in the folder of a finished run says what it is
    of, and holds no step: nobody requeues a finished run, so that it is one of its
    own."""
    newer = (
        attempts[attempts.index(finished) + 1 :]
        if finished.log.dialect == METRICS
        else ()
    )
    return any(attempt.log.lines and not attempt.log.segments for attempt in newer)


def is_traced(attempt: Attempt, number: int) -> bool:
    """Whether NCCL trace records stand within a segment (1-based number), or between it
    and the one before."""
    parts, first = attempt.log.segments, attempt.log.nccl_line
    last = max(first, attempt.log.nccl_last_line)
    before = parts[number - 2].last_line if number > 1 else 0
    return (
        bool(first)
        and last > before
        and (first <= parts[number - 1].last_line or number == len(parts))
    )


def is_profiled(segment: Segment) -> bool:
    """Whether a profiler was switched on or off within a segment."""
    return any(statement.field == StatedField.PROFILER for statement in segment.stated)


def is_finished(segment: Segment, steps: int) -> bool:
    """Whether the segment reached its end: by the log's own total or end marker, else
    by the baseline's `steps`."""
    if segment.finished or not len(segment.steps):
        return segment.finished
    return (
        segment.total_steps is None
        and int(segment.steps.index[-1]) + 1 - segment.first_step >= steps
    )


def list_attempts(
    run: Run, choice: Choice | None, steps: int
) -> tuple[AttemptSummary, ...]:
    """Return the attempts in the order of the logs; `steps` are those of a complete run
    where the log says no total."""
    attempts: list[AttemptSummary] = []
    before: Segment | None = None
    for attempt in run.attempts:
        if not any(len(segment.steps) for segment in attempt.log.segments):
            attempts.append(_make_empty_summary(len(attempts) + 1, attempt))
            before = None
        for number, segment in enumerate(attempt.log.segments, start=1):
            if not len(segment.steps):
                continue
            judged = (
                choice is not None
                and attempt is choice.attempt
                and number == choice.number
            )
            over = before is not None and _starts_over(before, segment, steps)
            attempts.append(
                _make_summary(
                    len(attempts) + 1,
                    attempt,
                    segment,
                    steps,
                    starts_over=over,
                    judged=judged,
                )
            )
            before = segment
    return tuple(attempts)


def make_attempt_notes(attempts: Sequence[AttemptSummary]) -> Iterator[Note]:
    """Yield which of several attempts is judged, and which did not finish."""
    judged = next((attempt for attempt in attempts if attempt.judged), None)
    if len(attempts) < 2 or judged is None:
        return
    failed = [
        f"{attempt.number} {attempt.ended}"
        for attempt in attempts
        if not attempt.judged and not attempt.finished
    ]
    failures = "".join(
        f"; {text}" for text in filter(None, [formatting.join_first(failed, SHOWN)])
    )
    files = list(dict.fromkeys(attempt.log for attempt in attempts))
    where = f"line {judged.line}" + (
        f" of file {files.index(judged.log) + 1}" if len(files) > 1 else ""
    )
    which = "last" if judged is attempts[-1] else name_ordinal(judged.number)
    several = "the log" if len(files) == 1 else f"{len(files)} files"
    runs = all(attempt.starts_over for attempt in attempts[1:])
    head = (
        f"{len(attempts)} runs in {several}"
        if runs
        else f"restarted: {len(attempts)} attempts in {several}"
    )
    if not judged.finished and attempts[-1].finished:
        which, failures = (
            f"{which} one",
            f" with those that resumed it; it {judged.ended}{failures}",
        )
    yield Note(
        NoteCode.SEGMENTS if runs else NoteCode.ATTEMPTS,
        f"{head}; the {which}, from {where}, is judged{failures}",
    )


def make_slowest_attempt_note(
    seconds: Sequence[float], statistic: str
) -> Iterator[Note]:
    """Yield that a slower attempt decides than the last one; nothing without the times
    of several."""
    if seconds:
        shown = formatting.join_first(
            [formatting.format_seconds(value) for value in seconds]
        )
        text = f"{len(seconds)} finished attempts cover the window ({statistic.replace('_', ' ')} {shown}): the slowest"
        yield Note(
            NoteCode.SLOWEST_ATTEMPT,
            f"{text} is judged, for a fast one does not make good a slow one",
        )


def _make_summary(
    number: int,
    attempt: Attempt,
    segment: Segment,
    steps: int,
    *,
    starts_over: bool,
    judged: bool,
) -> AttemptSummary:
    finished, last = is_finished(segment, steps), int(segment.steps.index[-1])
    return AttemptSummary(
        number=number,
        log=attempt.files.log,
        line=segment.first_line,
        first_step=int(begins(segment.steps)[0]),
        last_step=last,
        finished=finished,
        ended="finished"
        if finished
        else f"stopped after step {last}{_describe_cause(attempt, segment)}",
        starts_over=starts_over,
        judged=judged,
    )


def _make_empty_summary(number: int, attempt: Attempt) -> AttemptSummary:
    line = (
        attempt.log.ending.line
        if attempt.log.ending and not attempt.log.ending.file
        else 0
    )
    return AttemptSummary(
        number,
        attempt.files.log,
        line,
        None,
        None,
        finished=False,
        ended=f"no step{_describe_cause(attempt, None)}",
    )


def _describe_cause(attempt: Attempt, segment: Segment | None) -> str:
    """Return why an attempt ended, in brackets."""
    ending, parts = attempt.log.ending, attempt.log.segments
    if ending is None or (
        segment is not None and segment is not parts[-1]
    ):  # an ending is of the last part
        return ""
    return f" ({ending.code.replace('-', ' ')})"


def _starts_over(before: Segment, segment: Segment, steps: int) -> bool:
    """Whether a segment is another run: the one before it had finished, and it does not
    go on after it."""
    return is_finished(before, steps) and int(begins(segment.steps)[0]) <= int(
        before.steps.index[-1]
    )


def name_ordinal(number: int) -> str:
    """Return `first` to `tenth`, then `11th`."""
    return (
        ORDINALS[number - 1]
        if number <= len(ORDINALS)
        else formatting.format_ordinal(number)
    )
