"""How a log says that it ended: lines of Slurm, of a crash or a time-out, tracebacks;
and which is the cause."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_llmbench.core.log_records import (
    Ending,
    EndingCode,
    ParsedLog,
    Quote,
    Segment,
)
from pytest_llmbench.logs.recognisers import ENDING_MARKERS, find_endings
from pytest_llmbench.logs.scan import REACH, REACH_BACK, ByteChunk, Hit, find_line_begin
from pytest_llmbench.logs.step_records import (
    COLOUR,
    find_line_stop,
    make_printable,
    read_rank,
)

HEAD = b"Traceback (most recent call last)"

# Lines of the process itself after a head in which its exception is looked for.
LONGEST = 1000

# Lines of all processes after a head in which its exception is looked for: the ranks of
# a large job write at once.
FARTHEST = 100_000

# As many tracebacks are kept, the latest, and as many are followed at once: no log
# fills the memory.
KEPT = 10_000

# As much is kept of the line of an exception.
EXCEPTION_BYTES = 1000

# The labels of a process before a line: `52: [rank52]: `, `train/0 [default3]:`,
# `(worker pid=7, ip=10.0.0.1) `.
LABEL = re.compile(
    rb"[ \t]*(?:(?:\d{1,9}:|[\w.-]{1,99}/\d{1,9}(?= )|\([^\n]{0,200}?pid=\d{1,9}[^()\n]{0,99}\)"
    rb"|\[(?:default|rank)\d{1,9}\]:?)[ \t]*)*"
)

KINDS = (
    rb"Error|Exception|Interrupt|Exit|Iteration|Expired|Failure|Failed|Warning|Group"
)
# How the line of an exception begins: a class with its module, or without one and with
# a name as exceptions have. Old classes are written small: `socket.gaierror`,
# `struct.error`.
EXCEPTION = re.compile(
    rb"(?:(?:[A-Za-z_]\w*\.){1,20}(?:_?[A-Z]\w*|\w*error)|(?=[A-Z_])\w*(?:%b))(?=:|\s*$)"
    % KINDS
)

# A logger writes a traceback as a warning, and the process goes on. Not so of INFO:
# launchers write what their children print, and what those died of, at that level.
WARNED = re.compile(
    rb"\b(?:WARN(?:ING)?|[Ww]arning)\b|\[NeMo W |(?:\A|[\s\]])W\d{4} \d\d:\d\d:\d\d|[A-Z]\w{0,99}Warning: "
)
# As many lines above a head may hold the warning that it belongs to.
LINES_ABOVE = 3

# Follows the head where a traceback is printed as a list, or as the text of one string.
LISTED = re.compile(rb":?(?:\\r)?\\n")
NEXT_LINE = re.compile(rb"(?:\\r)?\\n")
QUOTES = b" \t'\",[]"

# Stands before a line of the program in a traceback, and before the marks under it.
CODE_INDENT = b"    "

CHAIN = re.compile(
    rb"During handling of the above exception, another exception occurred"
    rb"|The above exception was the direct cause of the following exception"
)


@dataclass(slots=True)
class Traceback:
    """One traceback, or several that one exception led to."""

    head: int
    line: int  # of the first exception; of the head where the log does not show it
    rank: str
    first: bytes = (
        b""  # the exception that came first, empty where the log does not show it
    )
    last: bytes = b""  # the one that they ended with
    code: bytes = b""  # the line of the program that raised the first
    indented: int = 0
    lines: int = 0
    warned: bool = False  # its head is on the line of a warning
    below_warning: bool = (
        False  # a warning is right above it, which need not have to do with it
    )
    listed: bool = False  # its lines are texts of a list


class Tracebacks:
    """Collects tracebacks from chunks of one log in order; the lines of each process
    are told apart by its labels."""

    def __init__(self) -> None:
        self.latest: deque[Traceback] = deque(maxlen=KEPT)
        self._open: dict[bytes, Traceback] = {}
        self._ended: dict[bytes, Traceback] = {}

    @property
    def follows(self) -> bool:
        """Whether the exception of a traceback is still to come."""
        return bool(self._open)

    def take(self, chunk: ByteChunk, heads: Iterable[Hit]) -> None:
        """Read on in the new part of a chunk, in which these heads stand."""
        place, line = chunk.start, chunk.line
        for hit in heads:
            self._follow(chunk, place, hit.start, line)
            self._begin(hit)
            place, line = hit.start, hit.line
        self._follow(chunk, place, chunk.stop, line)
        self._open = {
            label: traceback
            for label, traceback in self._open.items()
            if chunk.next_line - traceback.head <= FARTHEST
        }

    def _begin(self, hit: Hit) -> None:
        label, before = split_label(get_line_before(hit))
        if (
            label in self._open
        ):  # two processes without labels: the next exception is told as that of the first
            return
        indented = len(before) - len(before.lstrip(b" "))
        traceback = self._ended.get(label)
        if traceback is None or not _goes_on(hit, label):
            traceback = Traceback(hit.line, hit.line, read_rank(hit))
            traceback.warned, traceback.below_warning = (
                bool(WARNED.search(before)),
                _is_below_warning(hit),
            )
            self.latest.append(traceback)
        traceback.indented, traceback.lines = indented, 0
        rest = hit.text[
            hit.start + len(HEAD) : find_line_stop(hit.text, hit.start, hit.end)
        ]
        traceback.listed = bool(LISTED.match(rest))
        if traceback.listed and _take_list(
            traceback, NEXT_LINE.split(rest)[1:], hit.line
        ):
            self._keep(label, traceback)
            return
        self._open[label] = traceback
        if len(self._open) > KEPT:
            del self._open[next(iter(self._open))]

    def _follow(self, chunk: ByteChunk, begin: int, end: int, line: int) -> None:
        """Read the lines that begin in a part of a chunk; `line` is the one that
        `begin` stands on."""
        if not self._open:
            return
        for number, text in _iterate_lines(chunk, begin, end, line):
            label, rest = split_label(text)
            traceback = self._open.get(label)
            if traceback is not None and self._ends(traceback, rest, number):
                del self._open[label]
                self._keep(label, traceback)
                if not self._open:
                    return

    def _ends(self, traceback: Traceback, rest: bytes, number: int) -> bool:
        """Whether a traceback ends with this line of its process."""
        traceback.lines += 1
        text = (
            rest
            if rest[: traceback.indented].strip(b" ")
            else rest[traceback.indented :]
        )
        if traceback.listed:
            text = NEXT_LINE.split(text.strip(QUOTES), maxsplit=1)[0]
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES].rstrip()
            if not traceback.first:
                traceback.first, traceback.line = traceback.last, number
            return True
        if not traceback.first and text.startswith(CODE_INDENT) and text.strip(b" ~^"):
            traceback.code = text[:EXCEPTION_BYTES].strip()
        return traceback.lines > LONGEST

    def _keep(self, label: bytes, traceback: Traceback) -> None:
        self._ended[label] = traceback
        if len(self._ended) > KEPT:
            del self._ended[next(iter(self._ended))]


def _is_below_warning(hit: Hit) -> bool:
    above = hit.text[max(0, hit.start - REACH_BACK) : hit.start].split(b"\n")[:-1]
    return any(WARNED.search(line) for line in above[-LINES_ABOVE:])


def _take_list(traceback: Traceback, texts: Sequence[bytes], line: int) -> bool:
    """Read the lines of a traceback that stand on one line of the log; tell whether its
    exception is among them."""
    for text in (text.strip(QUOTES) for text in texts):
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES]
            traceback.first, traceback.line = traceback.first or traceback.last, line
    return bool(traceback.last)


def split_label(line: bytes) -> tuple[bytes, bytes]:
    """Return the labels of a line, without the blanks that end them, and what the
    process wrote after them."""
    match = LABEL.match(line)
    label = match[0].rstrip(b" \t") if match else b""
    return label, line[len(label) :]


def get_line_before(hit: Hit) -> bytes:
    """Return what stands before a marker on its line, or after the last carriage return
    there."""
    return hit.text[
        find_line_begin(hit.text, max(0, hit.start - REACH_BACK), hit.start) : hit.start
    ]


def _goes_on(hit: Hit, label: bytes) -> bool:
    """Whether the same process said right before that this traceback follows from the
    one above it."""
    before = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    if CHAIN.search(before) is None:
        return False
    lines = (split_label(line) for line in before.split(b"\n"))
    return any(own == label and CHAIN.search(rest) for own, rest in lines)


def _iterate_lines(
    chunk: ByteChunk, begin: int, end: int, line: int
) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of the lines that begin in a part of a chunk, each as far
    as it can be seen."""
    text = chunk.text
    place = begin
    if begin + chunk.offset and text[begin - 1 : begin] != b"\n":
        place, line = text.find(b"\n", begin) + 1 or end, line + 1
    while place < end:
        stop = text.find(b"\n", place)
        stop = len(text) if stop < 0 else stop
        shown = text[place : min(stop, place + REACH)].rstrip(b"\r")
        # Python 3.13 colours its tracebacks if FORCE_COLOR is set.
        shown = COLOUR.sub(b"", shown) if b"\x1b" in shown else shown
        yield line, shown[shown.rfind(b"\r") + 1 :]
        place, line = stop + 1, line + 1


# --- endings, and the cause among them -------------------------------------------------


# What a log says, stronger causes first; of a crash, an exception and NCCL's time-out
# in one log the first counts.
CODES = tuple(
    code for code in EndingCode if code not in (EndingCode.CUT, EndingCode.UNREADABLE)
)

# Somebody ended the whole run.
DECISIONS = (
    EndingCode.TIME_LIMIT,
    EndingCode.NODE_FAILURE,
    EndingCode.PREEMPTED,
    EndingCode.REQUEUED,
    EndingCode.CANCELLED,
)

# A process died of itself; others can fail for that reason.
FAILURES = (
    EndingCode.GPU_FAILURE,
    EndingCode.OUT_OF_MEMORY,
    EndingCode.GPU_OUT_OF_MEMORY,
    EndingCode.DIVERGED,
    EndingCode.SEGFAULT,
    EndingCode.TRACEBACK,
)

# The program ended itself: of a run that finished it says nothing.
ORDERLY = (EndingCode.EXITED,)

CRASHES = (EndingCode.SEGFAULT, EndingCode.TRACEBACK, EndingCode.NCCL_TIMEOUT)

# The lower, the stronger.
PLACES: dict[EndingCode, int] = {code: place for place, code in enumerate(CODES)}


class EndingLine(NamedTuple):
    """A line or a traceback that says how a log ended."""

    ending: Ending
    # where it stands: the head of a traceback, whose ending is on the line of its
    # exception
    line: int
    kind: str = ""  # what a traceback raised, without the message
    unread: bool = False  # whether it is no more than the head of a traceback


def choose_cause(signs: Sequence[EndingLine]) -> Ending | None:
    """Return the cause among what a log says, with the most telling one of the others
    beside it."""
    if not signs:
        return None
    waited = min(
        (
            each.ending.line
            for each in signs
            if each.ending.code == EndingCode.NCCL_TIMEOUT
        ),
        default=0,
    )
    first: dict[EndingCode, Ending] = {}
    # What stands behind NCCL's time-out followed from it, and a head alone says less
    # than an exception.
    for each in sorted(
        signs,
        key=lambda each: (0 < waited < each.ending.line, each.unread, each.ending.line),
    ):
        first.setdefault(each.ending.code, each.ending)
    main = _find_cause(first)
    return replace(
        main, beside=_find_beside(main, first) or _find_last_raised(main, signs)
    )


def combine_endings(log: Ending | None, error: Ending | None) -> Ending | None:
    """Return the ending that a log and its standard error tell together; which line was
    first cannot be told.

    The failure of a process therefore counts before a time-out of NCCL in the other
    file.
    """
    if (
        log is None or error is None or log.code not in PLACES
    ):  # a cut log does not know how it ended
        return error if error is not None else log
    main, other = sorted(
        (log, error), key=lambda each: (each.went_on, _get_strength(each))
    )
    if _is_word_of_framework(main) and other.code == EndingCode.STEP_CANCELLED:
        main, other = other, main
    telling = (
        other.code in (*FAILURES, EndingCode.NCCL_TIMEOUT)
        and other.code != main.code
        and not other.went_on
    )
    beside = other if telling else None
    return replace(main, beside=main.beside or beside)


def add_error_ending(log: ParsedLog, error: Ending | None) -> ParsedLog:
    """Return a log with the ending that it and its standard error tell together.

    What happened before training began ended no run with steps.
    """
    if error is None or (error.before_training and log.segments):
        return log
    readings = tuple(
        replace(reading, ending=combine_endings(reading.ending, error))
        for reading in log.readings
    )
    return replace(log, ending=combine_endings(log.ending, error), readings=readings)


def _get_strength(ending: Ending) -> float:
    """Return a number that is lower for a stronger cause. A framework that is told to
    end calls any reason preemption: Slurm's words say more."""
    return (
        PLACES[EndingCode.CANCELLED] + 0.5
        if _is_word_of_framework(ending)
        else PLACES[ending.code]
    )


def _is_word_of_framework(ending: Ending) -> bool:
    return ending.code == EndingCode.PREEMPTED and "Preemption detected" in ending.quote


def _find_cause(first: Mapping[EndingCode, Ending]) -> Ending:
    strongest = min(first.values(), key=_get_strength)
    cancelled = first.get(EndingCode.STEP_CANCELLED)
    failed = first.get(EndingCode.TASK_FAILURE)
    if cancelled is not None:
        if _is_word_of_framework(strongest):
            return cancelled
        # Slurm cancels a step after a crash as well as by hand: its word counts where
        # all else is what follows from it.
        follows = (EndingCode.AFTERMATH, EndingCode.TASK_FAILURE)
        earliest = _find_earliest(first, follows)
        if strongest.code in follows and earliest and cancelled.line < earliest.line:
            return cancelled
    if strongest.code not in CRASHES:
        return strongest
    earliest = _find_earliest(first, CRASHES) or strongest
    if (
        earliest.code == EndingCode.NCCL_TIMEOUT
        and failed is not None
        and failed.line < earliest.line
    ):
        return failed
    return earliest


def _find_earliest(
    first: Mapping[EndingCode, Ending], codes: Iterable[EndingCode]
) -> Ending | None:
    endings = [first[code] for code in codes if code in first]
    return min(endings, key=lambda ending: ending.line, default=None)


def _find_last_raised(main: Ending, signs: Sequence[EndingLine]) -> Ending | None:
    """Return the last exception of another kind than that of the cause: the run may
    have survived the first."""
    if main.code != EndingCode.TRACEBACK:
        return None
    kinds = {"", *(each.kind for each in signs if each.ending is main)}
    later = [
        each.ending
        for each in signs
        if each.ending.code == main.code and each.kind not in kinds
    ]
    return max(
        (each for each in later if each.line > main.line),
        key=lambda each: each.line,
        default=None,
    )


def _find_beside(main: Ending, first: Mapping[EndingCode, Ending]) -> Ending | None:
    """Return what is worth telling with a cause: what failed before a decision, and
    what followed from a failure."""
    if main.code in DECISIONS:
        failure = _find_earliest(first, (*FAILURES, EndingCode.NCCL_TIMEOUT))
        return failure if failure and failure.line < main.line else None
    if main.code == EndingCode.NCCL_TIMEOUT:
        return _find_earliest(first, FAILURES)
    if main.code == EndingCode.STEP_CANCELLED:
        return None
    after = (
        EndingCode.PREEMPTED,
        EndingCode.REQUEUED,
        EndingCode.CANCELLED,
        EndingCode.NCCL_TIMEOUT,
    )
    return next((first[code] for code in after if code in first), None)


MARKERS = (*ENDING_MARKERS, HEAD)

# A line that goes on beyond what can be seen is read again as far back as this: a
# pattern may begin there.
LONGEST_PATTERN = 512

# The nodes that a line itself says failed. `ON n1` in `*** STEP 7.0 ON n1 CANCELLED` is
# only where Slurm wrote it.
_FAILED_NODES = re.compile(
    rb"srun: error: Node failure on ([\w.,\[\]-]{1,99})|(?:^|\s)([\w.-]{1,64}) kernel: .{0,99}NVRM: Xid"
)

SIGNALLED = re.compile(
    rb"(?:[\w.]+\.)?SignalException\b|.{1,99}killed by signal: Terminated"
)
# Exceptions of a process whose peer or child is gone, or that was told to end: another
# failure came first.
AFTERMATH = re.compile(
    rb"(?:[\w.]+\.)?(?:ChildFailedError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError|DistNetworkError"
    rb"|CalledProcessError|ProcessExitedException)\b"
    rb"|(?:[\w.]+\.)?(?:DistBackendError|RuntimeError): .{0,999}(?:remote process exited|onnection closed by peer"
    rb"|onnection reset by peer|Broken pipe|NCCL communicator was aborted)"
)

# Characters that are shown.
LINE_LENGTH = 160
EXCEPTION_LENGTH = 200

# So many steps can still be printed after the cause: another process prints them, or
# later than they were made.
LATE_STEPS = 2


class Decisive(NamedTuple):
    """From which line on an ending counts."""

    first: int = 0
    near: int = 0  # from here on no more steps follow it than are printed late
    finished: bool = (
        False  # whether the last attempt is, so that an orderly end says nothing
    )


_EVERY_LINE = Decisive()


class Endings:
    """Collects the lines that say how a log ended: the latest KEPT of each code, so
    that no log fills the memory."""

    def __init__(self) -> None:
        self._by_code: dict[EndingCode, deque[Ending]] = {}
        self._read_to = (0, 0)
        self._tracebacks = Tracebacks()

    def take(self, chunk: ByteChunk, hits: Iterable[Hit]) -> None:
        """Take the lines of markers in the new part of a chunk, and follow its
        tracebacks."""
        heads = []
        for hit in hits:
            if hit.marker == HEAD:
                heads.append(hit)
            else:
                self._add(hit)
        self._tracebacks.take(chunk, heads)

    @property
    def follows(self) -> bool:
        """Whether a traceback goes on, so that the next lines matter whatever they
        hold."""
        return self._tracebacks.follows

    def result(self, decisive: Decisive = _EVERY_LINE) -> Ending | None:
        """Return the cause of the ending, with the second finding `beside` it, or None.

        A finding that more than a few steps follow counts only without any other, and
        is marked as doubtful (`went_on`). The traceback of a warning does not count
        then.
        """
        signs = [
            EndingLine(ending, ending.line)
            for endings in self._by_code.values()
            for ending in endings
        ]
        raised = [each for each in self._tracebacks.latest if not each.warned]
        signs += map(_describe_traceback, raised)
        if decisive.finished:
            signs = [sign for sign in signs if sign.ending.code not in ORDERLY]
        near = choose_cause([sign for sign in signs if sign.line >= decisive.near])
        if near is not None:
            return near
        of_warnings = {each.head for each in raised if each.below_warning}
        early = choose_cause(
            [
                sign
                for sign in signs
                if sign.line >= decisive.first and sign.line not in of_warnings
            ]
        )
        return early and replace(early, went_on=True)

    def find_before_training(self) -> Ending | None:
        """Return what was found as something that happened before training began, or
        None."""
        ending = self.result()
        return ending and replace(ending, went_on=True, before_training=True)

    def _add(self, hit: Hit) -> None:
        """Take the line of a marker, unless it was taken for the marker before."""
        number, offset = self._read_to
        if number == hit.line and hit.offset < offset:
            return
        begin = hit.text.rfind(
            b"\n", max(0, hit.start - REACH_BACK), hit.start
        ) + 1 or max(0, hit.start - REACH_BACK)
        stop = find_line_stop(hit.text, hit.start, hit.end)
        shown_whole = stop < hit.end or stop == len(hit.text)
        self._read_to = (
            hit.line,
            hit.offset + stop - hit.start - (0 if shown_whole else LONGEST_PATTERN),
        )
        line = hit.text[begin:stop]
        code = next(find_endings(line), None)
        if code is not None:
            rank, named = _format_rank(read_rank(hit)), _FAILED_NODES.search(line)
            nodes = (named[1] or named[2]).decode() if named else ""
            ending = Ending(
                code,
                make_printable(line, LINE_LENGTH),
                hit.line,
                rank=rank,
                nodes=nodes,
            )
            self._by_code.setdefault(code, deque(maxlen=KEPT)).append(ending)


def name_file(ending: Ending, name: str) -> Ending:
    """Return an ending, and what happened beside it, as told by a file of this name."""
    beside = ending.beside and name_file(ending.beside, name)
    return replace(ending, file=name, beside=beside)


def find_decisive_lines(
    segments: Sequence[Segment], end_lines: Iterable[int]
) -> Decisive:
    """Return the lines from which on an ending counts: what came before the last
    attempt ended is no ending of it.

    That is the end mark or last step of a finished attempt, and the first step of an
    unfinished one.
    """
    if not segments:
        return Decisive()
    last = segments[-1]
    if last.finished:
        line = max(
            (line for line in end_lines if line >= last.first_line),
            default=last.last_line,
        )
        return Decisive(line, line, finished=True)
    late = len(last.steps) - 1 - LATE_STEPS
    return Decisive(
        last.first_line, int(last.steps.line[late]) if late > 0 else last.first_line
    )


def _describe_traceback(traceback: Traceback) -> EndingLine:
    """Return what a traceback says of the end."""
    text: str = make_printable(traceback.first or HEAD, EXCEPTION_LENGTH)
    if traceback.code and b" " not in traceback.first:  # it says no more than its name
        text += f" in `{make_printable(traceback.code, LINE_LENGTH)}`"
    if traceback.last != traceback.first:
        text += f", which led to {make_printable(traceback.last, EXCEPTION_LENGTH)}"
    ending = Ending(
        _read_code(traceback),
        Quote(text),
        traceback.line,
        rank=_format_rank(traceback.rank),
    )
    kind = re.split(r": | in `", text, maxsplit=1)[0] if traceback.first else ""
    return EndingLine(
        ending, traceback.head, kind, unread=not (traceback.first or traceback.code)
    )


def _read_code(traceback: Traceback) -> EndingCode:
    """Return what the exception of a traceback means."""
    if traceback.first.startswith(b"KeyboardInterrupt"):
        return EndingCode.STEP_CANCELLED
    if AFTERMATH.match(traceback.first) or any(
        SIGNALLED.match(text) for text in (traceback.first, traceback.last)
    ):
        return EndingCode.AFTERMATH
    codes = {
        code
        for text in (traceback.first, traceback.last)
        for code in find_endings(text)
    }
    return min(
        codes & {*FAILURES, EndingCode.NCCL_TIMEOUT},
        key=PLACES.__getitem__,
        default=EndingCode.TRACEBACK,
    )


def _format_rank(rank: str) -> str:
    """Return `rank 52` for the labels `52 rank52`, `task 9` for `9 default3`, other
    labels as they are."""
    match = re.search(r"\brank(\d+)", rank)
    if match:
        return f"rank {match[1]}"
    task = re.match(r"(\d+)(?: |$)", rank)
    return f"task {task[1]}" if task else rank
