"""How values read in messages and tables, and paths and URLs in each other's place."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.log_records import EndingCode

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Ending, Unread

MANIFOLD = 10  # from here on a ratio reads better than a percentage

MANY = 100  # from this many runs on nobody would start them

# longer lists of nodes are folded, in quotes: a shell reads brackets as a pattern
SHORT_LIST = 40

COMMIT = 12  # letters of a commit: enough to find it

ENDINGS = {
    EndingCode.TIME_LIMIT: "it reached its time limit",
    EndingCode.NODE_FAILURE: "a node failed under it",
    EndingCode.GPU_FAILURE: "a GPU failed under it",
    EndingCode.OUT_OF_MEMORY: "a node ran out of host memory",
    EndingCode.GPU_OUT_OF_MEMORY: "a GPU ran out of memory",
    EndingCode.DIVERGED: "it stopped itself, as its loss or a gradient was no number",
    EndingCode.PREEMPTED: "it was preempted",
    EndingCode.REQUEUED: "it was put back into the queue",
    EndingCode.CANCELLED: "it was cancelled by hand (scancel)",
    EndingCode.SEGFAULT: "a process crashed",
    EndingCode.TRACEBACK: "a process died of an exception",
    EndingCode.NCCL_TIMEOUT: "NCCL gave up waiting for a collective operation",
    EndingCode.EXITED: "it ended itself before its last step",
    EndingCode.AFTERMATH: "a process ended because of another one, of whose end nothing is said",
    EndingCode.TASK_FAILURE: "a task of it failed",
    EndingCode.STEP_CANCELLED: "its step was cancelled, by hand (scancel) unless it failed without a word",
}
"""How a log ended, by the code of `models.Ending`; of another code its problem says
all."""


def describe_ending(ending: Ending, log: str) -> str:
    """Return how a run ended, in words, with the text that says so and its place; `log`
    is the name of the log.

    `it reached its time limit: error: *** STEP 7.2 ON n1 CANCELLED ... (x_7.err:559);
    before that ...`
    """
    if ending.code not in ENDINGS:
        return ending.problem
    follows = "training began after it" if ending.before_training else "steps follow it"
    doubt = f"; {follows}, so it may not be the cause" if ending.went_on else ""
    other = ending.beside
    return (
        _describe_end(ending, log)
        + doubt
        + (
            f"; {_describe_order(other, ending)} {_describe_end(other, log)}"
            if other
            else ""
        )
    )


def describe_unread(unread: Unread) -> str:
    """Return why the pattern of a baseline file finds no step in a log, with the first
    line that it should match."""
    if not unread.count:
        return f"no line of it holds {escape(unread.find)!r}, the `find` of {unread.dialect}"
    lines = f"{count_noun(unread.count, 'line')} with {escape(unread.find)!r}"
    if not unread.first_line:
        return f"{lines} ({unread.dialect}) could not be read"
    where = f"; it stops at the group {unread.group}" if unread.group else ""
    example = f"line {unread.first_line}: {unread.quote}"
    return f"the pattern of {unread.dialect} reads none of {lines}, such as {example}{where}"


def _describe_end(ending: Ending, log: str) -> str:
    place = ", ".join(
        filter(None, (f"{ending.file or log}:{ending.line}", ending.rank))
    )
    return f"{ENDINGS[ending.code]}: {ending.quote} ({place})"


def _describe_order(other: Ending, ending: Ending) -> str:
    if other.file != ending.file:
        return "also,"
    return "before that" if other.line < ending.line else "after that"


def format_age(elapsed: timedelta) -> str:
    """Return an age in its largest sensible unit: `12m`, `36h`, `9d`, `2.1y`; a time in
    the future is `0m`."""
    minutes = max(elapsed.total_seconds(), 0) / 60
    if minutes < 120:
        return f"{minutes:.0f}m"
    if minutes < 48 * 60:
        return f"{minutes / 60:.0f}h"
    days = minutes / 60 / 24
    return f"{days:.0f}d" if days < 500 else f"{days / 365.25:.1f}y"


def format_hours(hours: float) -> str:
    """Return GPU-hours as `1,234.5`, `0.25` or `0.0`."""
    return f"{hours:,.1f}" if hours >= 1 or hours < 0.0005 else f"{hours:.2g}"


def format_seconds(value: float | None) -> str:
    """Return a step time with four significant digits: `10.00 s`, `7.325 s`."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    return f"{value:#.4g} s" if abs(value) < 1000 else f"{value:.1f} s"


def format_difference(ratio: float | None) -> str:
    """Return a ratio as a signed percentage: 1.062 reads `+6.2 %`, and what rounds to
    nothing `0.0 %`; 12 is `x 12`."""
    if ratio is None:
        return "-"
    if ratio >= MANIFOLD:
        return f"x {ratio:.3g}"
    percent = round((ratio - 1) * 100, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def compute_bounded_exp(logarithm: float) -> float:
    """Return the exponential, for what is too large for a float the largest one."""
    return math.exp(min(logarithm, 700.0))  # from 710 on it overflows


def add_changes(fractions: Iterable[float]) -> float:
    """Return what several changes come to, all as fractions: +10 % and then -10 % are
    -1 %."""
    return math.expm1(sum(math.log1p(fraction) for fraction in fractions))


def make_finite(value: float | None) -> float | None:
    """Return a value that JSON can hold: one that is no number is None."""
    return value if value is not None and math.isfinite(value) else None


def shorten_setting(name: str, value: str) -> str:
    """Return a value of an environment, by its name: of a commit as much as finds
    it."""
    return value[:COMMIT] if name == "commit" else value


def get_item_id(nodeid: str) -> str:
    """Return what stands in the brackets of a node id: the id of a configuration or a
    check; empty without any."""
    return nodeid.partition("[")[2].removesuffix("]")


def join_first(items: Sequence[object], limit: int = 5) -> str:
    """Return the first items and a count of the rest: `1, 2, 3, 4, 5 and 9 more`."""
    shown = ", ".join(map(str, items[:limit]))
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def join_sentences(sentences: Iterable[str]) -> str:
    """Return what is said in several sentences, of which only the last may have its
    full stop."""
    return ". ".join(sentences)


def clip(text: str, longest: int) -> str:
    """Return a text of at most so many signs; a longer one ends with three dots."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def count_noun(number: int, noun: str) -> str:
    """Return `1 run` or `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `11th`."""
    ending = (
        "th"
        if number % 100 in (11, 12, 13)
        else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


def unify_fact(name: str, value: str) -> str:
    """Return a value by which facts of runs are compared: enroot and docker write one
    image in two ways."""
    return (
        value.removeprefix("docker://").replace("#", "/", 1)
        if name == "container"
        else value
    )


def fold_nodes(nodes: Iterable[str]) -> str:
    """Return names of nodes as Slurm writes them: `n[1-4,7]` for n1 n2 n3 n4 n7,
    `a1,rack2-n[08-10]`."""
    numbers: dict[tuple[str, str], set[str]] = {}
    whole = set()
    for name in nodes:
        match = re.match(
            r"([^.\[]*?)([0-9]+)([^.0-9]*(?:\..*)?)$", name
        )  # the last number of a host's own name
        if match:
            numbers.setdefault((match[1], match[3]), set()).add(match[2])
        else:
            whole.add(name)
    return ",".join(
        sorted(whole)
        + [_group(head, numbers[head, tail], tail) for head, tail in sorted(numbers)]
    )


def _group(head: str, numbers: Iterable[str], tail: str) -> str:
    rows: list[list[str]] = []
    # Slurm keeps leading zeros: n08, n09 and n10 are one range, and n9 is another node
    # than n09.
    for digits in sorted(numbers, key=lambda digits: (int(digits), len(digits))):
        if rows and digits == str(int(rows[-1][-1]) + 1).zfill(len(rows[-1][-1])):
            rows[-1].append(digits)
        else:
            rows.append([digits])
    folded = ",".join(
        row[0] if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows
    )
    return f"{head}{folded}{tail}" if folded.isdigit() else f"{head}[{folded}]{tail}"


def format_exclude_option(nodes: Collection[str]) -> str:
    """Return the option of a launch that leaves nodes out, whatever submits it:
    `--llmb-exclude=n1,n2`."""
    return format_nodes_option("--llmb-exclude", nodes)


def format_nodes_option(flag: str, nodes: Collection[str]) -> str:
    """Return an option with a list of nodes, folded and quoted where it is long."""
    plain = ",".join(nodes)
    return (
        f"{flag}={plain}"
        if len(plain) <= SHORT_LIST
        else f"{flag}='{fold_nodes(nodes)}'"
    )


def escape(text: str) -> str:
    """Return a text that every report, channel and terminal can carry: what does not
    print is escaped."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )


def escape_lines(text: str) -> str:
    """Return a text of several lines, each of which every terminal can carry."""
    return "\n".join(map(escape, text.split("\n")))


def escape_values(values: Any) -> Any:
    """Return nested dictionaries and lists with every text in them printable."""
    if isinstance(values, str):
        return escape(values)
    if isinstance(values, dict):
        return {name: escape_values(value) for name, value in values.items()}
    if isinstance(values, list | tuple):  # most are the columns of steps
        return [
            value if type(value) is float else escape_values(value) for value in values
        ]
    return values


# --- paths and URLs -------------------------------------------------------------------
#
# A remote path is kept as a Path whose first part is the protocol with its colon,
# `s3:/bucket/runs`; no path of this machine is, since those are absolute.

URL = re.compile(
    r"(?P<protocol>[A-Za-z][\w+.-]*(?:::[A-Za-z][\w+.-]*)*)://(?P<rest>.*)", re.DOTALL
)
_LOCAL = ("file", "local")


def is_url(text: str) -> bool:
    """Whether a text names a protocol."""
    return URL.fullmatch(text) is not None


def is_remote(path: Path) -> bool:
    """Whether a path is one of `to_path`."""
    return not path.is_absolute() and bool(path.parts) and path.parts[0].endswith(":")


def to_path(url: str) -> Path:
    """Return the path under which a URL is known here."""
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url} names no protocol")
    return Path(
        f"{match['protocol']}:", *(part for part in match["rest"].split("/") if part)
    )


def to_url(path: Path) -> str:
    """Return the URL of a remote path."""
    protocol = path.parts[0].removesuffix(":")
    rooted = "/" if protocol.rpartition("::")[2] in _LOCAL else ""
    return f"{protocol}://{rooted}{'/'.join(path.parts[1:])}"


def format_path(path: Path, directory: Path) -> str:
    """Return a path as a reader would type it from `directory`; bytes that are no text
    are escaped."""
    if is_remote(path):
        return escape(to_url(path))
    return escape(
        str(path.relative_to(directory))
        if path.is_relative_to(directory)
        else str(path)
    )
