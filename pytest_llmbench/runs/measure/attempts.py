"""Choose the attempt of a run to judge, and summarise the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.log_records import ArraySteps, Segment, StatedField, Steps
from pytest_llmbench.core.run_records import Attempt, AttemptSummary, Note, Run
from pytest_llmbench.runs.measure.window import (
    WARM_UP_STEPS,
    find_missing_steps,
    get_first_steps,
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

METRICS = "metrics"  # a dialect in which each process writes a new file

LISTED = 3  # how many failed attempts a note lists; reports list all


class Choice(Struct, frozen=True):
    """The chosen segment with its attempt and 1-based number.

    `others` counts the other segments with steps. `other_candidates` are other
    segments, in order, that finished, cover the window and may be judged instead.
    """

    attempt: Attempt
    number: int
    segment: Segment
    others: int
    other_candidates: tuple[Choice, ...] = ()


def choose_segment(
    attempts: Sequence[Attempt], window: Window, steps: int
) -> Choice | None:
    """Choose the segment to judge, and list the other candidates.

    1. The last finished segment that covers the window is chosen. Profiled and traced
       segments do not qualify.
    2. If a later segment started over, the last one is chosen instead.
    3. If no segment qualifies, the last segment is chosen. If it continues earlier
       segments, so that only all of them cover the window, they are joined.

    None if no segment has steps, or if the finished run has a newer metrics file
    without steps.
    """
    choices = [
        SegmentChoice(attempt, number, segment)
        for attempt in attempts
        for number, segment in enumerate(attempt.log.segments, start=1)
        if len(segment.steps)
    ]
    if not choices:
        return None
    if len(choices) == 1 and len(attempts) == 1:  # nothing to choose from
        return Choice(*choices[0], others=0)
    unprofiled = [
        candidate for candidate in choices if not is_profiled(candidate.segment)
    ]
    untraced = [
        candidate
        for candidate in unprofiled
        if not is_traced(candidate.attempt, candidate.number)
    ]
    complete = [
        candidate
        for candidate in untraced
        if is_finished(candidate.segment, steps)
        and _covers_window(candidate.segment, window)
    ]
    if complete:
        # A requeued job is judged by the attempt that finished.
        chosen = complete[-1]
        newer = untraced[untraced.index(chosen) + 1 :]
        # An older success must not hide a newer segment that started over.
        if any(
            get_first_steps(candidate.segment.steps)[0] <= window.last
            for candidate in newer
        ):
            chosen, complete = newer[-1], []
    else:  # the last segment, whose problems are reported
        chosen = (unprofiled or choices)[-1]
    # Only the last of all segments can continue the segments before it.
    is_last = bool(untraced) and untraced[-1] is chosen is choices[-1]
    if not complete and is_last and is_finished(chosen.segment, steps):
        chosen = join_resumed(untraced, window, steps) or chosen
    if is_finished(chosen.segment, steps) and _has_newer_failed_file(
        attempts, chosen.attempt
    ):
        return None
    others = len(choices) - 1
    other_candidates = tuple(
        Choice(*candidate, others=others)
        for candidate in complete
        if candidate is not chosen
    )
    return Choice(*chosen, others=others, other_candidates=other_candidates)


class SegmentChoice(NamedTuple):
    """A segment with steps, its attempt, and its 1-based number in the log."""

    attempt: Attempt
    number: int
    segment: Segment


def _covers_window(segment: Segment, window: Window) -> bool:
    """True if the log has a time for each step of the window."""
    return not find_missing_steps(segment.steps, window)


def join_resumed(
    segment_choices: Sequence[SegmentChoice], window: Window, steps: int
) -> SegmentChoice | None:
    """Join the last segment with the segments that it resumed.

    None if it resumed no segment, or if the joined steps do not cover the window. The
    result has the number of the segment that covers most of the window. If a step was
    made twice, the first time counts. The first steps after a resume count only inside
    the window.
    """
    chain = [segment_choices[-1]]  # resumed segments, oldest first
    for candidate in reversed(segment_choices[:-1]):
        oldest = chain[0]
        is_stopped = not is_finished(candidate.segment, steps)
        in_same_attempt = candidate.attempt is oldest.attempt
        if not (
            in_same_attempt
            and is_stopped
            and _resumes(before=candidate.segment.steps, after=oldest.segment.steps)
        ):
            break
        chain.insert(0, candidate)
    joined = chain[0].segment.steps
    for candidate in chain[1:]:
        joined = _append_resumed(joined, candidate.segment.steps, window)
    segments = [candidate.segment for candidate in chain]
    statements = tuple(
        statement for resumed in segments for statement in resumed.stated
    )
    doubts = (resumed.doubt for resumed in segments if resumed.doubt)
    bad_validation_lines = (
        resumed.bad_validation_line
        for resumed in segments
        if resumed.bad_validation_line
    )
    segment = replace(
        segments[-1],
        steps=joined,
        stated=statements,
        first_line=segments[0].first_line,
        doubt=next(doubts, ""),
        bad_validation_line=next(bad_validation_lines, 0),
    )
    if len(chain) == 1 or not _covers_window(segment, window):
        return None
    most = max(
        chain,
        key=lambda candidate: np.count_nonzero(
            mask_window(candidate.segment.steps, window)
        ),
    )
    return SegmentChoice(most.attempt, most.number, segment)


def _resumes(before: Steps, after: Steps) -> bool:
    """True if `after` continues `before`: it begins within its steps or just after."""
    begin, end = int(get_first_steps(before)[0]), int(before.index[-1]) + 1
    return begin < int(get_first_steps(after)[0]) <= end


def _append_resumed(before: Steps, after: Steps, window: Window) -> Steps:
    """Append the steps after a resume.

    Omits repeated steps, and the first steps after the resume unless they are in the
    window.
    """
    first = get_first_steps(after)
    is_warm = (first >= first[0] + WARM_UP_STEPS) | is_inside(after, window)
    is_new = first > before.index[-1]
    rows = np.flatnonzero(is_new & is_warm)
    columns = {
        column.name: np.append(
            getattr(before, column.name), getattr(after, column.name)[rows]
        )
        for column in fields(Steps)
    }
    # The first appended step did not start at the timestamp of the last step before the
    # resume, because the time of the restart lies between them.
    if len(rows):
        row = rows[0]
        if row:  # it started at the end of the omitted step before it
            start = after.stamp[row - 1]
        else:  # it started as long before its timestamp as it took
            start = after.stamp[0] - after.seconds[0] * after.mean_of[0]
        columns["since"][len(before)] = start
    return ArraySteps(**columns)


def _has_newer_failed_file(
    attempts: Sequence[Attempt], finished_attempt: Attempt
) -> bool:
    """True if a finished run has a newer, non-empty metrics file without steps.

    Finished runs are not requeued, so that file belongs to another run in the folder.
    """
    if finished_attempt.log.dialect != METRICS:
        return False
    newer = attempts[attempts.index(finished_attempt) + 1 :]
    return any(attempt.log.lines and not attempt.log.segments for attempt in newer)


def is_traced(attempt: Attempt, number: int) -> bool:
    """True if NCCL trace records lie within a segment, or between it and the previous
    one.

    `number` is the 1-based number of the segment.
    """
    segments, first_record = attempt.log.segments, attempt.log.nccl_line
    if not first_record:
        return False
    last_record = max(first_record, attempt.log.nccl_last_line)
    previous_end = segments[number - 2].last_line if number > 1 else 0
    # records after the last segment belong to that segment
    is_last_segment = number == len(segments)
    begins_before_end = (
        is_last_segment or first_record <= segments[number - 1].last_line
    )
    return last_record > previous_end and begins_before_end


def is_profiled(segment: Segment) -> bool:
    """True if a profiler was switched on or off within a segment."""
    return any(statement.field == StatedField.PROFILER for statement in segment.stated)


def is_finished(segment: Segment, steps: int) -> bool:
    """True if a segment reached its end.

    Decided by the total or end marker in the log, else by the baseline's `steps`.
    """
    if segment.finished or not len(segment.steps):
        return segment.finished
    return (
        segment.total_steps is None
        and int(segment.steps.index[-1]) + 1 - segment.first_step >= steps
    )


def list_attempts(
    run: Run, choice: Choice | None, steps: int
) -> tuple[AttemptSummary, ...]:
    """Summarise the attempts in the order of the logs.

    `steps` is the number of steps of a complete run, for logs that print no total.
    """
    attempts: list[AttemptSummary] = []
    previous: Segment | None = None  # None after an attempt without steps
    for attempt in run.attempts:
        if not any(len(segment.steps) for segment in attempt.log.segments):
            attempts.append(_make_empty_summary(len(attempts) + 1, attempt))
            previous = None
        for number, segment in enumerate(attempt.log.segments, start=1):
            if not len(segment.steps):
                continue
            judged = (
                choice is not None
                and attempt is choice.attempt
                and number == choice.number
            )
            starts_over = previous is not None and _starts_over(
                previous, segment, steps
            )
            attempts.append(
                _make_summary(
                    len(attempts) + 1,
                    attempt,
                    segment,
                    steps,
                    starts_over=starts_over,
                    judged=judged,
                )
            )
            previous = segment
    return tuple(attempts)


def make_attempt_notes(attempts: Sequence[AttemptSummary]) -> Iterator[Note]:
    """Yield a note on which of several attempts is judged, and which did not finish."""
    judged = next((attempt for attempt in attempts if attempt.judged), None)
    if len(attempts) < 2 or judged is None:
        return
    failed = [
        f"{attempt.number} {attempt.ended}"
        for attempt in attempts
        if not attempt.judged and not attempt.finished
    ]
    # "; 1 stopped after step 20", or "" if no other attempt failed
    failures = f"; {formatting.join_first(failed, LISTED)}" if failed else ""
    files = list(dict.fromkeys(attempt.log for attempt in attempts))
    sources, origin = "the log", f"line {judged.line}"
    if len(files) > 1:
        sources = f"{len(files)} files"
        origin = f"{origin} of file {files.index(judged.log) + 1}"
    judged_name = "last" if judged is attempts[-1] else name_ordinal(judged.number)
    code, head = NoteCode.ATTEMPTS, f"restarted: {len(attempts)} attempts in {sources}"
    if all(attempt.starts_over for attempt in attempts[1:]):
        code, head = NoteCode.SEGMENTS, f"{len(attempts)} runs in {sources}"
    # The judged attempt stopped, and was joined with the attempts that resumed it.
    if not judged.finished and attempts[-1].finished:
        judged_name = f"{judged_name} one"
        failures = f" with those that resumed it; it {judged.ended}{failures}"
    yield Note(code, f"{head}; the {judged_name}, from {origin}, is judged{failures}")


def make_slowest_attempt_note(
    seconds: Sequence[float], statistic: str
) -> Iterator[Note]:
    """Yield a note if a slower attempt is judged in place of the last.

    `seconds` contains the statistics of all candidates, or is empty if the last attempt
    is judged.
    """
    if seconds:
        listed = formatting.join_first(
            [formatting.format_seconds(value) for value in seconds]
        )
        text = (
            f"{len(seconds)} finished attempts cover the window ({statistic.replace('_', ' ')} {listed}): the slowest "
            "is judged, because a fast attempt does not cancel a slow one"
        )
        yield Note(NoteCode.SLOWEST_ATTEMPT, text)


def _make_summary(
    number: int,
    attempt: Attempt,
    segment: Segment,
    steps: int,
    *,
    starts_over: bool,
    judged: bool,
) -> AttemptSummary:
    """Summarise an attempt from one of its segments."""
    finished, last = is_finished(segment, steps), int(segment.steps.index[-1])
    ended = "finished"
    if not finished:
        ended = f"stopped after step {last}{_describe_cause(attempt, segment)}"
    return AttemptSummary(
        number=number,
        files=attempt.files,
        line=segment.first_line,
        first_step=int(get_first_steps(segment.steps)[0]),
        last_step=last,
        finished=finished,
        ended=ended,
        starts_over=starts_over,
        judged=judged,
    )


def _make_empty_summary(number: int, attempt: Attempt) -> AttemptSummary:
    """Summarise an attempt without steps."""
    ending = attempt.log.ending
    return AttemptSummary(
        number=number,
        files=attempt.files,
        # `ending.file` names another file than the log, such as standard error
        line=ending.line if ending and not ending.file else 0,
        first_step=None,
        last_step=None,
        finished=False,
        ended=f"no step{_describe_cause(attempt, None)}",
    )


def _describe_cause(attempt: Attempt, segment: Segment | None) -> str:
    """Return the cause of an attempt's end in brackets, or "".

    `segment` is None for an attempt without steps.
    """
    ending, segments = attempt.log.ending, attempt.log.segments
    # an ending belongs to the last segment
    if ending is None or (segment is not None and segment is not segments[-1]):
        return ""
    return f" ({ending.code.replace('-', ' ')})"


def _starts_over(previous: Segment, segment: Segment, steps: int) -> bool:
    """True if a segment is a new run: the previous one finished and is not continued."""
    first, previous_last = get_first_steps(segment.steps)[0], previous.steps.index[-1]
    return is_finished(previous, steps) and int(first) <= int(previous_last)


def name_ordinal(number: int) -> str:
    """Return the ordinal number: `first` to `tenth`, then `11th`."""
    if number <= len(ORDINALS):
        return ORDINALS[number - 1]
    return formatting.format_ordinal(number)
