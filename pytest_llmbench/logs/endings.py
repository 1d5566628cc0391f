"""Find how a run ended from its log, and choose the cause.

Reads lines of Slurm, lines of crashes and time-outs, and tracebacks.
"""

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

# Number of lines of the same process after a traceback's head that are searched for its
# exception.
LONGEST = 1000

# Number of lines of all processes after a traceback's head that are searched for its
# exception: the ranks of a large job write at once.
FARTHEST = 100_000

# Number of tracebacks that are kept (the latest), and that are followed at once. Bounds
# the memory.
KEPT = 10_000

# Length at which the line of an exception is truncated.
EXCEPTION_BYTES = 1000

# The labels of a process at the beginning of a line: `52: [rank52]: `, `train/0
# [default3]:`, `(worker pid=7, ip=10.0.0.1) `.
LABEL = re.compile(
    rb"[ \t]*(?:(?:\d{1,9}:|[\w.-]{1,99}/\d{1,9}(?= )|\([^\n]{0,200}?pid=\d{1,9}[^()\n]{0,99}\)"
    rb"|\[(?:default|rank)\d{1,9}\]:?)[ \t]*)*"
)

KINDS = (
    rb"Error|Exception|Interrupt|Exit|Iteration|Expired|Failure|Failed|Warning|Group"
)
# The beginning of an exception's line: a class with its module, or a class whose name
# ends like an exception's. Old exception classes are lower case: `socket.gaierror`,
# `struct.error`.
EXCEPTION = re.compile(
    rb"(?:(?:[A-Za-z_]\w*\.){1,20}(?:_?[A-Z]\w*|\w*error)|(?=[A-Z_])\w*(?:%b))(?=:|\s*$)"
    % KINDS
)

# The beginning of a warning. If a logger writes a traceback as a warning, the process
# continues. INFO does not count: launchers print the fatal errors of their children at
# that level.
WARNED = re.compile(
    rb"\b(?:WARN(?:ING)?|[Ww]arning)\b|\[NeMo W |(?:\A|[\s\]])W\d{4} \d\d:\d\d:\d\d|[A-Z]\w{0,99}Warning: "
)
# Number of lines above a traceback's head that are searched for a warning.
LINES_ABOVE = 3

# Follows the head of a traceback that is printed as a list or as one string.
LISTED = re.compile(rb":?(?:\\r)?\\n")
NEXT_LINE = re.compile(rb"(?:\\r)?\\n")
QUOTES = b" \t'\",[]"

# The indent of a source line in a traceback, and of the markers below it.
CODE_INDENT = b"    "

CHAIN = re.compile(
    rb"During handling of the above exception, another exception occurred"
    rb"|The above exception was the direct cause of the following exception"
)


@dataclass(slots=True)
class Traceback:
    """A traceback, or a chain of tracebacks."""

    head: int
    line: int  # line of the first exception, or of the head if the exception is missing
    rank: str
    first: bytes = b""  # the first exception, empty if the log does not contain it
    last: bytes = b""  # the last exception of the chain
    code: bytes = b""  # the source line that raised the first exception
    indented: int = 0
    lines: int = 0
    warned: bool = False  # True if the head is on the line of a warning
    below_warning: bool = (
        False  # True if a warning is right above the head; they may be unrelated
    )
    listed: bool = False  # True if the lines are printed as a list


class Tracebacks:
    """Collector of the tracebacks in a log. Labels distinguish the lines of processes."""

    def __init__(self) -> None:
        self.latest: deque[Traceback] = deque(maxlen=KEPT)
        self._open: dict[bytes, Traceback] = {}
        self._ended: dict[bytes, Traceback] = {}

    @property
    def has_open_traceback(self) -> bool:
        """True if the exception of a traceback is still to come."""
        return bool(self._open)

    def feed(self, chunk: ByteChunk, heads: Iterable[Hit]) -> None:
        """Read the new part of a chunk, which contains the heads `heads`."""
        offset, line = chunk.start, chunk.line
        for hit in heads:
            self._follow(chunk, offset, hit.start, line)
            self._begin(hit)
            offset, line = hit.start, hit.line
        self._follow(chunk, offset, chunk.stop, line)
        self._open = {
            label: traceback
            for label, traceback in self._open.items()
            if chunk.next_line - traceback.head <= FARTHEST
        }

    def _begin(self, hit: Hit) -> None:
        """Open a traceback at its head, or continue the chain of the last one."""
        label, before = split_label(get_line_before(hit))
        if (
            label in self._open
        ):  # two processes without labels: the next exception counts as the first one's
            return
        indented = len(before) - len(before.lstrip(b" "))
        traceback = self._ended.get(label)
        if traceback is None or not _is_chained(hit, label):
            traceback = Traceback(hit.line, hit.line, read_rank(hit))
            traceback.warned, traceback.below_warning = (
                bool(WARNED.search(before)),
                _is_below_warning(hit),
            )
            self.latest.append(traceback)
        traceback.indented, traceback.lines = indented, 0
        content = hit.text[
            hit.start + len(HEAD) : find_line_stop(hit.text, hit.start, hit.end)
        ]
        traceback.listed = bool(LISTED.match(content))
        if traceback.listed and _read_list(
            traceback, NEXT_LINE.split(content)[1:], hit.line
        ):
            self._remember_ended(label, traceback)
            return
        self._open[label] = traceback
        if len(self._open) > KEPT:
            del self._open[next(iter(self._open))]

    def _follow(self, chunk: ByteChunk, begin: int, end: int, line: int) -> None:
        """Read the lines that begin between two offsets of a chunk.

        `line` is the line number at `begin`.
        """
        if not self._open:
            return
        for number, text in _iterate_lines(chunk, begin, end, line):
            label, content = split_label(text)
            traceback = self._open.get(label)
            if traceback is not None and self._add_line(traceback, content, number):
                del self._open[label]
                self._remember_ended(label, traceback)
                if not self._open:
                    return

    def _add_line(self, traceback: Traceback, content: bytes, number: int) -> bool:
        """Add a line of the traceback's process. Returns True at its end."""
        traceback.lines += 1
        text = (
            content
            if content[: traceback.indented].strip(b" ")
            else content[traceback.indented :]
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

    def _remember_ended(self, label: bytes, traceback: Traceback) -> None:
        """Remember the last traceback of a process: a later one may be chained to it."""
        self._ended[label] = traceback
        if len(self._ended) > KEPT:
            del self._ended[next(iter(self._ended))]


def _is_below_warning(hit: Hit) -> bool:
    """True if one of the LINES_ABOVE lines above a head begins a warning."""
    above = hit.text[max(0, hit.start - REACH_BACK) : hit.start].split(b"\n")[:-1]
    return any(WARNED.search(line) for line in above[-LINES_ABOVE:])


def _read_list(traceback: Traceback, texts: Sequence[bytes], line: int) -> bool:
    """Read a traceback printed on one line. Returns True if it contains its exception."""
    for text in (text.strip(QUOTES) for text in texts):
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES]
            traceback.first, traceback.line = traceback.first or traceback.last, line
    return bool(traceback.last)


def split_label(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into the process's labels (without trailing blanks) and its text."""
    match = LABEL.match(line)
    label = match[0].rstrip(b" \t") if match else b""
    return label, line[len(label) :]


def get_line_before(hit: Hit) -> bytes:
    """Return the text before a marker on its line.

    Begins after the last carriage return, if there is one.
    """
    return hit.text[
        find_line_begin(hit.text, max(0, hit.start - REACH_BACK), hit.start) : hit.start
    ]


def _is_chained(hit: Hit, label: bytes) -> bool:
    """True if the traceback continues the chain of the process's last traceback.

    The lines before it contain Python's message for chained exceptions.
    """
    before = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    if CHAIN.search(before) is None:
        return False
    lines = (split_label(line) for line in before.split(b"\n"))
    return any(
        other_label == label and CHAIN.search(content) for other_label, content in lines
    )


def _iterate_lines(
    chunk: ByteChunk, begin: int, end: int, line: int
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, text) of the lines that begin between two offsets of a chunk.

    Each text is truncated to the visible context.
    """
    text = chunk.text
    offset = begin
    if begin + chunk.offset and text[begin - 1 : begin] != b"\n":
        offset, line = text.find(b"\n", begin) + 1 or end, line + 1
    while offset < end:
        stop = text.find(b"\n", offset)
        stop = len(text) if stop < 0 else stop
        visible = text[offset : min(stop, offset + REACH)].rstrip(b"\r")
        # Python 3.13 colours its tracebacks if FORCE_COLOR is set.
        visible = COLOUR.sub(b"", visible) if b"\x1b" in visible else visible
        yield line, visible[visible.rfind(b"\r") + 1 :]
        offset, line = stop + 1, line + 1


# --- endings, and the cause among them -------------------------------------------------


# The codes that a log can contain, strongest cause first. Of the codes in CRASHES, the
# earliest counts.
CODES = tuple(
    code for code in EndingCode if code not in (EndingCode.CUT, EndingCode.UNREADABLE)
)

# A user or Slurm ended the whole run.
DECISIONS = (
    EndingCode.TIME_LIMIT,
    EndingCode.NODE_FAILURE,
    EndingCode.PREEMPTED,
    EndingCode.REQUEUED,
    EndingCode.CANCELLED,
)

# A process failed on its own. Other processes can fail as a consequence.
FAILURES = (
    EndingCode.GPU_FAILURE,
    EndingCode.OUT_OF_MEMORY,
    EndingCode.GPU_OUT_OF_MEMORY,
    EndingCode.DIVERGED,
    EndingCode.SEGFAULT,
    EndingCode.TRACEBACK,
)

# The program ended itself, which is expected in a finished run.
ORDERLY = (EndingCode.EXITED,)

CRASHES = (EndingCode.SEGFAULT, EndingCode.TRACEBACK, EndingCode.NCCL_TIMEOUT)

# Lower is stronger.
PRIORITY: dict[EndingCode, int] = {code: rank for rank, code in enumerate(CODES)}


class EndingLine(NamedTuple):
    """A line or traceback that states how a log ended."""

    ending: Ending
    # The line number; of the head for a traceback, whose ending has the line of its
    # exception.
    line: int
    kind: str = ""  # the exception class of a traceback
    unread: bool = False  # True if only the head of a traceback is known


def choose_cause(findings: Sequence[EndingLine]) -> Ending | None:
    """Return the cause, with the most informative other finding as `beside`.

    Returns None without findings.
    """
    if not findings:
        return None
    timeout_line = min(
        (
            finding.ending.line
            for finding in findings
            if finding.ending.code == EndingCode.NCCL_TIMEOUT
        ),
        default=0,
    )
    first: dict[EndingCode, Ending] = {}
    # Findings after NCCL's time-out are consequences of it. A head alone is weaker than
    # an exception.
    for finding in sorted(
        findings,
        key=lambda finding: (
            0 < timeout_line < finding.ending.line,
            finding.unread,
            finding.ending.line,
        ),
    ):
        first.setdefault(finding.ending.code, finding.ending)
    main = _find_cause(first)
    return replace(
        main, beside=_find_related(main, first) or _find_last_raised(main, findings)
    )


def combine_endings(log: Ending | None, error: Ending | None) -> Ending | None:
    """Combine the endings of a log and its standard error.

    The order of lines in different files is unknown. The failure of a process in one
    file therefore takes precedence over a time-out of NCCL in the other.
    """
    if (
        log is None or error is None or log.code not in PRIORITY
    ):  # a truncated log does not contain its ending
        return error if error is not None else log
    main, other = sorted(
        (log, error), key=lambda ending: (ending.went_on, _get_strength(ending))
    )
    if _is_framework_preemption(main) and other.code == EndingCode.STEP_CANCELLED:
        main, other = other, main
    is_informative = (
        other.code in (*FAILURES, EndingCode.NCCL_TIMEOUT)
        and other.code != main.code
        and not other.went_on
    )
    related = other if is_informative else None
    return replace(main, beside=main.beside or related)


def add_error_ending(log: ParsedLog, error: Ending | None) -> ParsedLog:
    """Combine a log's ending with the ending on its standard error.

    Events before training started did not end a run with steps.
    """
    if error is None or (error.before_training and log.segments):
        return log
    readings = tuple(
        replace(reading, ending=combine_endings(reading.ending, error))
        for reading in log.readings
    )
    return replace(log, ending=combine_endings(log.ending, error), readings=readings)


def _get_strength(ending: Ending) -> float:
    """Return the rank of a cause; lower is stronger.

    A framework reports a preemption for any request to stop, so Slurm's own message is
    stronger.
    """
    return (
        PRIORITY[EndingCode.CANCELLED] + 0.5
        if _is_framework_preemption(ending)
        else PRIORITY[ending.code]
    )


def _is_framework_preemption(ending: Ending) -> bool:
    """True if the framework, not Slurm, reported a preemption."""
    return ending.code == EndingCode.PREEMPTED and "Preemption detected" in ending.quote


def _find_cause(first: Mapping[EndingCode, Ending]) -> Ending:
    """Return the cause among the first endings of each code.

    This is the strongest one, except that Slurm's cancellation of a step may precede
    its consequences, and the earliest of several crashes counts.
    """
    strongest = min(first.values(), key=_get_strength)
    cancelled = first.get(EndingCode.STEP_CANCELLED)
    failed = first.get(EndingCode.TASK_FAILURE)
    if cancelled is not None:
        if _is_framework_preemption(strongest):
            return cancelled
        # Slurm cancels a step after a crash too, not only on request. Its message
        # counts if all other findings are consequences.
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
    """Return the ending on the lowest line among those with one of these codes."""
    endings = [first[code] for code in codes if code in first]
    return min(endings, key=lambda ending: ending.line, default=None)


def _find_last_raised(main: Ending, findings: Sequence[EndingLine]) -> Ending | None:
    """Return the last exception of another class than the cause's.

    The run may have survived the first exception.
    """
    if main.code != EndingCode.TRACEBACK:
        return None
    kinds = {"", *(finding.kind for finding in findings if finding.ending is main)}
    later = [
        finding.ending
        for finding in findings
        if finding.ending.code == main.code and finding.kind not in kinds
    ]
    return max(
        (finding for finding in later if finding.line > main.line),
        key=lambda finding: finding.line,
        default=None,
    )


def _find_related(main: Ending, first: Mapping[EndingCode, Ending]) -> Ending | None:
    """Return the finding to report in addition to the cause `main`, or None.

    With a cause in DECISIONS this is an earlier failure, with a time-out of NCCL a
    failure, and with most other causes a consequence.
    """
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

# For a line longer than the visible context, the next search begins this many bytes
# earlier: a pattern may begin there.
LONGEST_PATTERN = 512

# The failed nodes in a line. The node in `*** STEP 7.0 ON n1 CANCELLED` is only where
# Slurm wrote the line.
_FAILED_NODES = re.compile(
    rb"srun: error: Node failure on ([\w.,\[\]-]{1,99})|(?:^|\s)([\w.-]{1,64}) kernel: .{0,99}NVRM: Xid"
)

SIGNALLED = re.compile(
    rb"(?:[\w.]+\.)?SignalException\b|.{1,99}killed by signal: Terminated"
)
# Exceptions of a process whose peer or child is gone, or that was asked to end: another
# failure came first.
AFTERMATH = re.compile(
    rb"(?:[\w.]+\.)?(?:ChildFailedError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError|DistNetworkError"
    rb"|CalledProcessError|ProcessExitedException)\b"
    rb"|(?:[\w.]+\.)?(?:DistBackendError|RuntimeError): .{0,999}(?:remote process exited|onnection closed by peer"
    rb"|onnection reset by peer|Broken pipe|NCCL communicator was aborted)"
)

# Maximum characters in messages.
LINE_LENGTH = 160
EXCEPTION_LENGTH = 200

# Number of steps that can be printed after the cause, by another process or with a
# delay.
LATE_STEPS = 2


class Decisive(NamedTuple):
    """Line numbers that decide if an ending concerns the last attempt."""

    first: int = 0
    near: int = 0  # at most LATE_STEPS steps follow an ending from this line on
    finished: bool = (
        False  # True if the last attempt finished, so an orderly exit is expected
    )


_EVERY_LINE = Decisive()


class Endings:
    """Collector of the lines that state how a log ended.

    Keeps the latest KEPT of each code, so that the memory is bounded.
    """

    def __init__(self) -> None:
        self._by_code: dict[EndingCode, deque[Ending]] = {}
        self._read_to = (0, 0)
        self._tracebacks = Tracebacks()

    def feed(self, chunk: ByteChunk, hits: Iterable[Hit]) -> None:
        """Add the hits in the new part of a chunk, and follow its tracebacks."""
        heads = []
        for hit in hits:
            if hit.marker == HEAD:
                heads.append(hit)
            else:
                self._add(hit)
        self._tracebacks.feed(chunk, heads)

    @property
    def has_open_traceback(self) -> bool:
        """True if a traceback is incomplete, so that all following lines matter."""
        return self._tracebacks.has_open_traceback

    def result(self, decisive: Decisive = _EVERY_LINE) -> Ending | None:
        """Return the cause of the ending, with another finding as `beside`, or None.

        An ending that more than LATE_STEPS steps follow is used only as a fallback and
        flagged `went_on`. Tracebacks below a warning are ignored in that case.
        """
        findings = [
            EndingLine(ending, ending.line)
            for endings in self._by_code.values()
            for ending in endings
        ]
        raised = [
            traceback for traceback in self._tracebacks.latest if not traceback.warned
        ]
        findings += map(_make_ending_line, raised)
        if decisive.finished:
            findings = [
                finding for finding in findings if finding.ending.code not in ORDERLY
            ]
        near = choose_cause(
            [finding for finding in findings if finding.line >= decisive.near]
        )
        if near is not None:
            return near
        heads_below_warnings = {
            traceback.head for traceback in raised if traceback.below_warning
        }
        early = choose_cause(
            [
                finding
                for finding in findings
                if finding.line >= decisive.first
                and finding.line not in heads_below_warnings
            ]
        )
        return early and replace(early, went_on=True)

    def find_before_training(self) -> Ending | None:
        """Return the ending, flagged as an event before training started, or None."""
        ending = self.result()
        return ending and replace(ending, went_on=True, before_training=True)

    def _add(self, hit: Hit) -> None:
        """Add the line of a marker, once per line."""
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
            rank, failed = _format_rank(read_rank(hit)), _FAILED_NODES.search(line)
            nodes = (failed[1] or failed[2]).decode() if failed else ""
            ending = Ending(
                code,
                make_printable(line, LINE_LENGTH),
                hit.line,
                rank=rank,
                nodes=nodes,
            )
            self._by_code.setdefault(code, deque(maxlen=KEPT)).append(ending)


def set_file_name(ending: Ending, name: str) -> Ending:
    """Set the file name of an ending and of its `beside`."""
    related = ending.beside and set_file_name(ending.beside, name)
    return replace(ending, file=name, beside=related)


def find_decisive_lines(
    segments: Sequence[Segment], end_lines: Iterable[int]
) -> Decisive:
    """Return the lines from which on an ending concerns the last attempt.

    Endings are considered from the end marker or last step of a finished attempt on, or
    from the first step of an unfinished attempt on.
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


def _make_ending_line(traceback: Traceback) -> EndingLine:
    """Convert a traceback to an ending."""
    text: str = make_printable(traceback.first or HEAD, EXCEPTION_LENGTH)
    if traceback.code and b" " not in traceback.first:  # an exception without a message
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
    """Classify the exception of a traceback."""
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
        key=PRIORITY.__getitem__,
        default=EndingCode.TRACEBACK,
    )


def _format_rank(rank: str) -> str:
    """Format the labels `52 rank52` as `rank 52`, and `9 default3` as `task 9`.

    Returns other labels unchanged.
    """
    match = re.search(r"\brank(\d+)", rank)
    if match:
        return f"rank {match[1]}"
    task = re.match(r"(\d+)(?: |$)", rank)
    return f"task {task[1]}" if task else rank
