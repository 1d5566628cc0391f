"""Find how a run ended from its log, and choose the cause.

Reads lines of Slurm, lines of crashes and time-outs, and tracebacks.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.log_records import (
    Ending,
    EndingCode,
    ParsedLog,
    Quote,
    Segment,
)
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.recognisers import (
    ANY_ENDING,
    ENDING_MARKERS,
    ERROR,
    find_endings,
)
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
LABEL = compile_on_use(
    rb"[ \t]*(?:(?:\d{1,9}:|[\w.-]{1,99}/\d{1,9}(?= )|\([^\n]{0,200}?pid=\d{1,9}[^()\n]{0,99}\)"
    rb"|\[(?:default|rank)\d{1,9}\]:?)[ \t]*)*"
)

KINDS = (
    rb"Error|Exception|Interrupt|Exit|Iteration|Expired|Failure|Failed|Warning|Group"
)
# The beginning of an exception's line: a class with its module ("torch.cuda.Anything:"),
# or a class whose name ends like an exception's ("ValueError: ..."). Old exception classes are lower case: `socket.gaierror`,
# `struct.error`.
EXCEPTION = compile_on_use(
    rb"(?:(?:[A-Za-z_]\w*\.){1,20}(?:_?[A-Z]\w*|\w*error)|(?=[A-Z_])\w*(?:%b))(?=:|\s*$)"
    % KINDS
)

# A traceback as Python prints it, from its head to its first exception with a message:
# without colours, or lines that may be labels. Each line begins with the same label, if
# the head has one.
REGULAR = compile_on_use(
    rb"(?P<label>[^\n\r\x1b]{0,120}?)"
    + re.escape(HEAD)
    + rb":\n"
    + rb'(?:(?P=label)  File "[^\n\r\x1b]{1,999}\n'
    + rb"(?:(?P=label)    (?P<code>%b)\n(?:(?P=label) *[~^][~^ ]*\n)?)?){0,300}"
    % rb"(?![\w.-]{1,99}/\d)[A-Za-z_][^\n\r\x1b]{0,900}"
    + rb"(?P=label)(?P<exception>(?:%b)(?=:)[^\n\r\x1b]{0,4000})\n"
    % EXCEPTION.pattern.removesuffix(rb"(?=:|\s*$)")
)

# The beginning of a warning. If a logger writes a traceback as a warning, the process
# continues. INFO does not count: launchers print the fatal errors of their children at
# that level.
WARNED = compile_on_use(
    rb"\b(?:WARN(?:ING)?|[Ww]arning)\b|\[NeMo W |(?:\A|[\s\]])W\d{4} \d\d:\d\d:\d\d|[A-Z]\w{0,99}Warning: "
)
# Number of lines above a traceback's head that are searched for a warning.
LINES_ABOVE = 3

# Follows the head of a traceback that is printed as a list or as one string.
LISTED = compile_on_use(rb":?(?:\\r)?\\n")
NEXT_LINE = compile_on_use(rb"(?:\\r)?\\n")
QUOTES = b" \t'\",[]"

# The indent of a source line in a traceback, and of the markers below it.
CODE_INDENT = b"    "

CHAIN = compile_on_use(
    rb"During handling of the above exception, another exception occurred"
    rb"|The above exception was the direct cause of the following exception"
)


class Traceback(Struct):
    """A traceback, or a chain of tracebacks."""

    head: int  # the line of its HEAD
    line: int  # line of the first exception, or of the head if the exception is missing
    rank: str
    first: bytes = b""  # the first exception, empty if the log does not contain it
    last: bytes = b""  # the last exception of the chain
    code: bytes = b""  # the source line that raised the first exception
    indented: int = 0  # blanks before the head, after the label
    lines: int = 0  # number of lines of its process since the head
    warned: bool = False  # True if the head is on the line of a warning
    # True if a warning is right above the head; they may be unrelated
    below_warning: bool = False
    listed: bool = False  # True if the lines are printed as a list


class Tracebacks:
    """Collector of the tracebacks in a log. Labels distinguish the lines of processes."""

    def __init__(self) -> None:
        self.latest: deque[Traceback] = deque(maxlen=KEPT)
        # by the label of the process
        self._open: OrderedDict[bytes, Traceback] = OrderedDict()
        self._ended: OrderedDict[bytes, Traceback] = OrderedDict()

    @property
    def has_open_traceback(self) -> bool:
        """True if the exception of a traceback is still to come."""
        return bool(self._open)

    def feed(self, chunk: ByteChunk, heads: Sequence[Hit]) -> None:
        """Read the new part of a chunk, which contains the heads `heads`."""
        offset, line = chunk.start, chunk.line
        stops = (*(hit.start for hit in heads[1:]), chunk.stop)
        for hit, stop in zip(heads, stops, strict=False):
            self._follow(chunk, offset, hit.start, line)
            self._begin(hit, stop)
            offset, line = hit.start, hit.line
        self._follow(chunk, offset, chunk.stop, line)
        self._open = OrderedDict(
            (label, traceback)
            for label, traceback in self._open.items()
            if chunk.next_line - traceback.head <= FARTHEST
        )

    def _begin(self, hit: Hit, stop: int) -> None:
        """Open a traceback at its head, or continue the last one of the process.

        Its part before `stop` may end it.
        """
        label, before = split_label(get_line_before(hit))
        if label in self._open:
            # Two processes without labels: the next exception counts as that of the
            # first process.
            return
        traceback = self._ended.get(label)
        if traceback is None or not _is_chained(hit, label):
            traceback = Traceback(head=hit.line, line=hit.line, rank=read_rank(hit))
            traceback.warned = bool(WARNED.search(before))
            traceback.below_warning = _is_below_warning(hit)
            self.latest.append(traceback)
            if not self._open and _read_regular(traceback, hit, label, before, stop):
                self._remember_ended(label, traceback)
                return
        traceback.indented = len(before) - len(before.lstrip(b" "))
        traceback.lines = 0
        line_stop = find_line_stop(hit.text, hit.start, hit.end)
        after_head = hit.text[hit.start + len(HEAD) : line_stop]
        traceback.listed = bool(LISTED.match(after_head))
        if traceback.listed and _read_list(traceback, after_head, hit.line):
            self._remember_ended(label, traceback)
            return
        self._open[label] = traceback
        if len(self._open) > KEPT:
            self._open.popitem(last=False)

    def _follow(self, chunk: ByteChunk, begin: int, end: int, line: int) -> None:
        """Add the lines that begin between two offsets to the open tracebacks.

        `line` is the line number at `begin`. Closes each traceback whose exception is
        found.
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
        """Add a line of the traceback's process.

        `content` is the line without its label. Returns True if the traceback ends
        here: at its exception, or after LONGEST lines.
        """
        traceback.lines += 1
        # Remove the indent of the head, if the line has it, too.
        text = content
        if not content[: traceback.indented].strip(b" "):
            text = content[traceback.indented :]
        if traceback.listed:
            text = NEXT_LINE.split(text.strip(QUOTES), maxsplit=1)[0]
        if EXCEPTION.match(text):
            traceback.last = text[:EXCEPTION_BYTES].rstrip()
            if not traceback.first:
                traceback.first, traceback.line = traceback.last, number
            return True
        # a source line, not the markers `~~~^^^` below it
        if not traceback.first and text.startswith(CODE_INDENT) and text.strip(b" ~^"):
            traceback.code = text[:EXCEPTION_BYTES].strip()
        return traceback.lines > LONGEST

    def _remember_ended(self, label: bytes, traceback: Traceback) -> None:
        """Remember the last traceback of a process: a later one may be chained to it.

        Forgets the oldest of more than KEPT tracebacks.
        """
        self._ended[label] = traceback
        if len(self._ended) > KEPT:
            self._ended.popitem(last=False)


def _is_below_warning(hit: Hit) -> bool:
    """True if one of the LINES_ABOVE lines above a head begins a warning."""
    above = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    if b"W" not in above and b"warning" not in above:
        return False
    return any(WARNED.search(line) for line in above.split(b"\n")[:-1][-LINES_ABOVE:])


def _read_regular(
    traceback: Traceback, hit: Hit, label: bytes, before: bytes, stop: int
) -> bool:
    """Read a traceback that matches REGULAR and ends before `stop`.

    `label` and `before` are the parts of the text before the head on its line. Returns
    False if it does not match: its lines have to be read one by one.
    """
    repeated = label + before
    if before.strip(b" "):  # a logger wrote the beginning of the line
        if label or before.startswith(b" "):
            return False
        repeated = b""
    match = REGULAR.match(hit.text, hit.start - len(repeated), stop)
    if match is None:
        return False
    traceback.line += hit.text.count(b"\n", hit.start, match.end() - 1)
    traceback.first = match["exception"][:EXCEPTION_BYTES].rstrip()
    traceback.last = traceback.first
    traceback.code = (match["code"] or b"").strip()
    return True


def _read_list(traceback: Traceback, after_head: bytes, line: int) -> bool:
    """Read a traceback printed on one line. Returns True if it contains its exception.

    `after_head` is the text after the head on its line, with the lines of the traceback
    as printed in a list. `line` is the number of the log's line.
    """
    last = next(_find_exceptions(_split_backwards(after_head)), b"")
    if last:
        traceback.last, traceback.line = last, line
        first = traceback.first or next(_find_exceptions(_split_forwards(after_head)))
        traceback.first = first
    return bool(traceback.last)


def _find_exceptions(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the exceptions in the lines of a listed traceback."""
    for line in lines:
        text = line.strip(QUOTES)
        if EXCEPTION.match(text):
            yield text[:EXCEPTION_BYTES]


def _split_forwards(listed: bytes) -> Iterator[bytes]:
    """Yield the lines after each line break that is printed as `\n`."""
    begin = -1
    for line_break in NEXT_LINE.finditer(listed):
        if begin >= 0:
            yield listed[begin : line_break.start()]
        begin = line_break.end()
    yield listed[begin:]


def _split_backwards(listed: bytes) -> Iterator[bytes]:
    """Yield the same lines as `_split_forwards`, the last one first."""
    stop = len(listed)
    while (line_break := listed.rfind(rb"\n", 0, stop)) >= 0:
        yield listed[line_break + 2 : stop]
        stop = line_break - 2 * listed.endswith(rb"\r", 0, line_break)


def split_label(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into the process's labels (without trailing blanks) and its text."""
    match = LABEL.match(line)
    label = match[0].rstrip(b" \t") if match else b""
    return label, line[len(label) :]


def get_line_before(hit: Hit) -> bytes:
    """Return the text before a marker on its line.

    Begins after the last carriage return, if there is one.
    """
    earliest = max(0, hit.start - REACH_BACK)
    begin = find_line_begin(hit.text, earliest, hit.start)
    return hit.text[begin : hit.start]


def _is_chained(hit: Hit, label: bytes) -> bool:
    """True if the traceback continues the chain of the process's last traceback.

    The lines before it contain Python's message for chained exceptions.
    """
    before = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    if b"above exception" not in before or CHAIN.search(before) is None:
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
        # `begin` is within a line: skip to the beginning of the next one.
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

# The codes of exceptions with a known cause.
EXCEPTION_CODES = frozenset((*FAILURES, EndingCode.NCCL_TIMEOUT))

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
    """Return the cause of the ending, with another finding as its `beside`.

    See `_find_related` for the other finding. Returns None without findings.
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

    def get_order(finding: EndingLine) -> tuple[bool, bool, int]:
        """Return the sort key of a finding, by which the first of each code counts.

        Consequences of NCCL's time-out come last, and a traceback's head without its
        exception comes after a whole traceback.
        """
        is_after_timeout = 0 < timeout_line < finding.ending.line
        return is_after_timeout, finding.unread, finding.ending.line

    first_by_code: dict[EndingCode, Ending] = {}
    for finding in sorted(findings, key=get_order):
        first_by_code.setdefault(finding.ending.code, finding.ending)
    main = _find_cause(first_by_code)
    related = _find_related(main, first_by_code)
    return replace(main, beside=related or _find_last_raised(main, findings))


def combine_endings(log: Ending | None, error: Ending | None) -> Ending | None:
    """Combine the endings of a log and its standard error, the stronger as the cause.

    A failure in the weaker ending becomes the `beside` of the stronger one. The order
    of lines in different files is unknown. The failure of a process in one file
    therefore takes precedence over a time-out of NCCL in the other.
    """
    # A log with the code CUT or UNREADABLE does not contain its ending.
    if log is None or error is None or log.code not in PRIORITY:
        return error if error is not None else log
    main, weaker = sorted(
        (log, error), key=lambda ending: (ending.went_on, _get_strength(ending))
    )
    # The framework reports a preemption for any request to stop: Slurm's cancellation
    # of the step is the cause.
    if _is_framework_preemption(main) and weaker.code == EndingCode.STEP_CANCELLED:
        main, weaker = weaker, main
    is_informative = (
        weaker.code in (*FAILURES, EndingCode.NCCL_TIMEOUT)
        and weaker.code != main.code
        and not weaker.went_on
    )
    related = weaker if is_informative else None
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
    if _is_framework_preemption(ending):
        # just weaker than a cancellation by Slurm
        return PRIORITY[EndingCode.CANCELLED] + 0.5
    return PRIORITY[ending.code]


def _is_framework_preemption(ending: Ending) -> bool:
    """True if the framework, not Slurm, reported a preemption."""
    return ending.code == EndingCode.PREEMPTED and "Preemption detected" in ending.quote


def _find_cause(first_by_code: Mapping[EndingCode, Ending]) -> Ending:
    """Return the cause among the first endings of each code.

    This is the strongest ending, with two exceptions. If Slurm cancelled the step, the
    cancellation is preferred to the failures that it caused. Of several crashes, the
    earliest counts.
    """
    strongest = min(first_by_code.values(), key=_get_strength)
    cancelled = first_by_code.get(EndingCode.STEP_CANCELLED)
    failed = first_by_code.get(EndingCode.TASK_FAILURE)
    if cancelled is not None:
        if _is_framework_preemption(strongest):
            return cancelled
        # Slurm cancels a step after a crash too, not only on request. Its message
        # counts if all other findings are consequences.
        consequences = (EndingCode.AFTERMATH, EndingCode.TASK_FAILURE)
        earliest = _find_earliest(first_by_code, consequences)
        if (
            strongest.code in consequences
            and earliest is not None
            and cancelled.line < earliest.line
        ):
            return cancelled
    if strongest.code not in CRASHES:
        return strongest
    earliest = _find_earliest(first_by_code, CRASHES) or strongest
    # A failed task before NCCL's time-out made the other processes wait for it.
    if (
        earliest.code == EndingCode.NCCL_TIMEOUT
        and failed is not None
        and failed.line < earliest.line
    ):
        return failed
    return earliest


def _find_earliest(
    first_by_code: Mapping[EndingCode, Ending], codes: Iterable[EndingCode]
) -> Ending | None:
    """Return the ending on the lowest line with one of these codes, or None."""
    endings = [first_by_code[code] for code in codes if code in first_by_code]
    return min(endings, key=lambda ending: ending.line, default=None)


def _find_last_raised(main: Ending, findings: Sequence[EndingLine]) -> Ending | None:
    """Return the last exception after `main` whose class differs, or None.

    `main` is the cause. If it is the first exception of the log, the run may have
    survived it. Returns None if the cause is no traceback.
    """
    if main.code != EndingCode.TRACEBACK:
        return None
    ignored_kinds = {finding.kind for finding in findings if finding.ending is main}
    ignored_kinds.add("")  # a head without its exception
    other_exceptions = [
        finding.ending
        for finding in findings
        if finding.ending.code == main.code and finding.kind not in ignored_kinds
    ]
    last = max(other_exceptions, key=lambda ending: ending.line, default=None)
    return last if last is not None and last.line > main.line else None


def _find_related(
    main: Ending, first_by_code: Mapping[EndingCode, Ending]
) -> Ending | None:
    """Return the finding to report in addition to the cause `main`, or None.

    With a cause in DECISIONS this is an earlier failure, with a time-out of NCCL a
    failure, and with most other causes a consequence.
    """
    if main.code in DECISIONS:
        failure = _find_earliest(first_by_code, (*FAILURES, EndingCode.NCCL_TIMEOUT))
        return failure if failure and failure.line < main.line else None
    if main.code == EndingCode.NCCL_TIMEOUT:
        return _find_earliest(first_by_code, FAILURES)
    if main.code == EndingCode.STEP_CANCELLED:
        return None
    consequences = (
        EndingCode.PREEMPTED,
        EndingCode.REQUEUED,
        EndingCode.CANCELLED,
        EndingCode.NCCL_TIMEOUT,
    )
    return next(
        (first_by_code[code] for code in consequences if code in first_by_code), None
    )


MARKERS = (*ENDING_MARKERS, HEAD)

# For a line longer than the visible context, the next search begins this many bytes
# earlier: a pattern may begin there.
LONGEST_PATTERN = 512

# The failed nodes in a line: "srun: error: Node failure on n[1-2]", or "n7 kernel: ...
# NVRM: Xid (PCI:0000:18:00): 79". The node in `*** STEP 7.0 ON n1 CANCELLED` is only where
# Slurm wrote the line.
_FAILED_NODES = compile_on_use(
    rb"srun: error: Node failure on ([\w.,\[\]-]{1,99})|(?:^|\s)([\w.-]{1,64}) kernel: .{0,99}NVRM: Xid"
)

SIGNALLED = compile_on_use(
    rb"(?:[\w.]+\.)?SignalException\b|.{1,99}killed by signal: Terminated"
)
# Exceptions of a process whose peer or child is gone, or that was asked to end: another
# failure came first.
AFTERMATH = compile_on_use(
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

    first: int = 0  # endings before this line concern earlier attempts
    near: int = 0  # at most LATE_STEPS steps follow an ending from this line on
    # True if the last attempt finished, so an orderly exit is expected
    finished: bool = False


_EVERY_LINE = Decisive()


def drop_harmless_errors(
    text: bytes, matches: Iterable[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    """Drop the matches of ERROR whose whole line states no ending.

    These are the exceptions of most tracebacks, which their heads find.
    """
    return [
        (offset, marker)
        for offset, marker in matches
        if marker != ERROR or not _is_harmless(text, offset)
    ]


def _is_harmless(text: bytes, offset: int) -> bool:
    """True if the whole line around an offset is visible and states no ending."""
    earliest = max(0, offset - REACH_BACK)
    begin = text.rfind(b"\n", earliest, offset) + 1
    feed = text.find(b"\n", offset, offset + REACH)
    return begin > 0 < feed and not ANY_ENDING.search(text, begin, feed)


class Endings:
    """Collector of the lines that state how a log ended.

    Keeps the latest KEPT of each code, so that the memory is bounded.
    """

    def __init__(self) -> None:
        self._by_code: dict[EndingCode, deque[Ending]] = {}
        self._read_to = (0, 0)  # line, and the offset up to which it was read
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

        If more than LATE_STEPS steps follow an ending, the run survived it: it is used
        only if there is no other, and flagged `went_on`. Tracebacks below a warning are
        ignored in that case. `decisive` contains the lines that decide this.
        """
        findings = [
            EndingLine(ending, ending.line)
            for endings in self._by_code.values()
            for ending in endings
        ]
        tracebacks = [
            traceback for traceback in self._tracebacks.latest if not traceback.warned
        ]
        findings += map(_make_ending_line, tracebacks)
        if decisive.finished:  # an orderly exit is no cause then
            findings = [
                finding for finding in findings if finding.ending.code not in ORDERLY
            ]
        cause = choose_cause(
            [finding for finding in findings if finding.line >= decisive.near]
        )
        if cause is not None:
            return cause
        # The run survived all endings, or there are none.
        heads_below_warnings = {
            traceback.head for traceback in tracebacks if traceback.below_warning
        }
        survived_cause = choose_cause(
            [
                finding
                for finding in findings
                if finding.line >= decisive.first
                and finding.line not in heads_below_warnings
            ]
        )
        return survived_cause and replace(survived_cause, went_on=True)

    def find_before_training(self) -> Ending | None:
        """Return the ending, flagged as an event before training started, or None."""
        ending = self.result()
        return ending and replace(ending, went_on=True, before_training=True)

    def _add(self, hit: Hit) -> None:
        """Add the ending that the line of a marker states, once per line."""
        line_read, offset_read = self._read_to
        if line_read == hit.line and hit.offset < offset_read:
            return
        earliest = max(0, hit.start - REACH_BACK)
        begin = hit.text.rfind(b"\n", earliest, hit.start) + 1 or earliest
        stop = find_line_stop(hit.text, hit.start, hit.end)
        is_whole = stop < hit.end or stop == len(hit.text)
        stop_offset = hit.offset + stop - hit.start
        if not is_whole:  # a pattern may begin before the cut end of the line
            stop_offset -= LONGEST_PATTERN
        self._read_to = (hit.line, stop_offset)
        line = hit.text[begin:stop]
        code = next(find_endings(line), None)
        if code is not None:
            failed_node = _FAILED_NODES.search(line)
            nodes = b""
            if failed_node:  # group 1 is Slurm's list of nodes, group 2 a kernel's host
                nodes = failed_node[1] or failed_node[2]
            ending = Ending(
                code,
                make_printable(line, LINE_LENGTH),
                hit.line,
                rank=_format_rank(read_rank(hit)),
                nodes=nodes.decode(),
            )
            self._by_code.setdefault(code, deque(maxlen=KEPT)).append(ending)


def set_file_name(ending: Ending, name: str) -> Ending:
    """Set the file name of an ending, and of the related ending in `beside`."""
    related = ending.beside and set_file_name(ending.beside, name)
    return replace(ending, file=name, beside=related)


def find_decisive_lines(
    segments: Sequence[Segment], end_lines: Iterable[int]
) -> Decisive:
    """Return the lines from which on an ending concerns the last attempt.

    In a finished attempt these are the lines from its end marker on, or from its last
    step without one. In an unfinished attempt they are the lines from its first step
    on. `end_lines` are the lines of all end markers.
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
    near = last.first_line
    late_index = len(last.steps) - 1 - LATE_STEPS
    if late_index > 0:
        near = int(last.steps.line[late_index])
    return Decisive(last.first_line, near)


def _make_ending_line(traceback: Traceback) -> EndingLine:
    """Convert a traceback to an ending.

    The quote names the first exception, its source line if it has no message, and the
    last exception of the chain.
    """
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
    kind = ""
    if traceback.first:  # "ValueError: ...", or "ValueError in `raise error`"
        kind, *_ = re.split(r": | in `", text, maxsplit=1)
    is_unread = not (traceback.first or traceback.code)
    return EndingLine(ending, traceback.head, kind, unread=is_unread)


def _read_code(traceback: Traceback) -> EndingCode:
    """Classify the exceptions of a traceback, TRACEBACK if no other code matches."""
    exceptions = dict.fromkeys((traceback.first, traceback.last))
    if traceback.first.startswith(b"KeyboardInterrupt"):
        return EndingCode.STEP_CANCELLED
    if AFTERMATH.match(traceback.first) or any(map(SIGNALLED.match, exceptions)):
        return EndingCode.AFTERMATH
    codes = {code for exception in exceptions for code in find_endings(exception)}
    return min(
        codes & EXCEPTION_CODES,
        key=PRIORITY.__getitem__,
        default=EndingCode.TRACEBACK,
    )


def _format_rank(rank: str) -> str:
    """Format the labels `52 rank52` as `rank 52`, and `9 default3` as `task 9`.

    Returns other labels unchanged.
    """
    if not rank:
        return ""
    match = re.search(r"\brank(\d+)", rank)
    if match:
        return f"rank {match[1]}"
    task = re.match(r"(\d+)(?: |$)", rank)
    return f"task {task[1]}" if task else rank
