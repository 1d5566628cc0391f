"""Formatting of values for messages and tables, and conversion of paths and URLs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.log_records import EndingCode
from pytest_llmbench.core.patterns import compile_on_use

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Ending, Unread

MANIFOLD = 10  # from this ratio on, a factor is clearer than a percentage

MANY = 100  # a number of further runs that is too large to be practical

# Longer lists of nodes are compressed and quoted, since a shell expands brackets.
SHORT_LIST = 40

COMMIT = 12  # characters of a shortened commit, which are enough to identify it

ENDINGS = {
    EndingCode.TIME_LIMIT: "the job reached its time limit",
    EndingCode.NODE_FAILURE: "a node of the job failed",
    EndingCode.GPU_FAILURE: "a GPU of the job failed",
    EndingCode.OUT_OF_MEMORY: "a node ran out of host memory",
    EndingCode.GPU_OUT_OF_MEMORY: "a GPU ran out of memory",
    EndingCode.DIVERGED: "the run stopped itself because the loss or a gradient was NaN or infinite",
    EndingCode.PREEMPTED: "the job was preempted",
    EndingCode.REQUEUED: "the job was put back into the queue",
    EndingCode.CANCELLED: "the job was cancelled manually (scancel)",
    EndingCode.SEGFAULT: "a process crashed",
    EndingCode.TRACEBACK: "a process died of an exception",
    EndingCode.NCCL_TIMEOUT: "NCCL gave up waiting for a collective operation",
    EndingCode.EXITED: "the process exited before the last step of the run",
    EndingCode.AFTERMATH: "a process ended because another one had failed, for a reason that is not in the log",
    EndingCode.TASK_FAILURE: "a task of the job failed",
    EndingCode.STEP_CANCELLED: "the job step was cancelled, manually (scancel) or after a failure that is not in the log",
}
"""The text for each ending of a log.

Endings with other codes are described by their `problem`.
"""


def describe_ending(ending: Ending, log: str) -> str:
    """Describe how a run ended, with the quoted line and its location.

    `log` is the name of the log. For example: `the job reached its time limit: error:
    *** STEP 7.2 ON n1 CANCELLED ... (x_7.err:559); before that ...`
    """
    if ending.code not in ENDINGS:
        return ending.problem
    text = _describe_end(ending, log)
    if ending.went_on:  # the run continued, so the quoted line may be a warning
        evidence = (
            "training began after this line"
            if ending.before_training
            else "steps follow this line"
        )
        text += f"; {evidence}, so this may not be the cause"
    other_ending = ending.beside
    if other_ending:
        order = _describe_order(other_ending, ending)
        text += f"; {order} {_describe_end(other_ending, log)}"
    return text


def describe_unread(unread: Unread) -> str:
    """Explain why a custom dialect finds no step in a log.

    Quotes the first line that the pattern should match.
    """
    if not unread.count:
        return (
            f"no line contains {escape(unread.find)!r}, the `find` of {unread.dialect}"
        )
    lines = f"{count_noun(unread.count, 'line')} with {escape(unread.find)!r}"
    if not unread.first_line:
        return f"{lines} ({unread.dialect}) could not be parsed"
    detail = f"; it fails at the group {unread.group}" if unread.group else ""
    example = f"line {unread.first_line}: {unread.quote}"
    return f"the pattern of {unread.dialect} matches none of {lines}, such as {example}{detail}"


def _describe_end(ending: Ending, log: str) -> str:
    """Describe one ending, with its quoted line, location and rank."""
    location = f"{ending.file or log}:{ending.line}"
    if ending.rank:
        location += f", {ending.rank}"
    return f"{ENDINGS[ending.code]}: {ending.quote} ({location})"


def _describe_order(other_ending: Ending, ending: Ending) -> str:
    """Return the position of another ending relative to `ending`, if known."""
    if other_ending.file != ending.file:
        return "also,"
    return "before that" if other_ending.line < ending.line else "after that"


def format_age(elapsed: timedelta) -> str:
    """Format an age in its largest sensible unit: `12m`, `36h`, `9d`, `2.1y`.

    A negative age is formatted as `0m`.
    """
    minutes = max(elapsed.total_seconds(), 0) / 60
    if minutes < 120:
        return f"{minutes:.0f}m"
    if minutes < 48 * 60:
        return f"{minutes / 60:.0f}h"
    days = minutes / 60 / 24
    return f"{days:.0f}d" if days < 500 else f"{days / 365.25:.1f}y"


def format_hours(hours: float) -> str:
    """Format GPU-hours: `1,234.5`, `0.25` or `0.0`."""
    return f"{hours:,.1f}" if hours >= 1 or hours < 0.0005 else f"{hours:.2g}"


def format_seconds(value: float | None) -> str:
    """Format a step time with four significant digits: `10.00 s`, `7.325 s`.

    From 1000 s on with one decimal place. None is `-`.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    return f"{value:#.4g} s" if abs(value) < 1000 else f"{value:.1f} s"


def format_fraction(difference: float | None) -> str:
    """Format a fraction as a signed percentage: 0.062 is `+6.2 %`; `-` for None."""
    return format_difference(None if difference is None else 1 + difference)


def format_difference(ratio: float | None) -> str:
    """Format a ratio as a signed percentage: 1.062 is `+6.2 %`.

    Ratios that round to no change are `0.0 %`; ratios from MANIFOLD on are factors: `x
    12`.
    """
    if ratio is None:
        return "-"
    if ratio >= MANIFOLD:
        return f"x {ratio:.3g}"
    percent = round((ratio - 1) * 100, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def compute_bounded_exp(logarithm: float) -> float:
    """Return the exponential, limited to a value that fits a float."""
    return math.exp(min(logarithm, 700.0))  # exp(710) overflows


def add_changes(fractions: Iterable[float]) -> float:
    """Return the total of successive relative changes: +10 % and then -10 % are -1 %.

    All values are fractions.
    """
    return math.expm1(sum(math.log1p(fraction) for fraction in fractions))


def make_finite(value: float | None) -> float | None:
    """Return a value that JSON can represent: None for NaN and infinities."""
    return value if value is not None and math.isfinite(value) else None


def shorten_setting(name: str, value: str) -> str:
    """Shorten the value of a setting for display; only commits are shortened."""
    return value[:COMMIT] if name == "commit" else value


def get_item_id(nodeid: str) -> str:
    """Return the id in the brackets of a pytest node id, or "" without brackets."""
    _, _, bracketed = nodeid.partition("[")
    return bracketed.removesuffix("]")


def join_clauses(*clauses: str) -> str:
    """Join the clauses that are not empty with "; "."""
    return "; ".join(filter(None, clauses))


def join_first(items: Sequence[object], limit: int = 5) -> str:
    """Join the first items and a count of the others: `1, 2, 3, 4, 5 and 9 more`."""
    text = ", ".join(map(str, items[:limit]))
    return f"{text} and {len(items) - limit} more" if len(items) > limit else text


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences; only the last one may end with a full stop."""
    return ". ".join(sentences)


def clip(text: str, longest: int) -> str:
    """Truncate a text to at most `longest` characters, ending in three dots."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def count_noun(number: int, noun: str) -> str:
    """Return `1 run` or `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `11th`."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def unify_fact(name: str, value: str) -> str:
    """Return the value of an environment fact in the form used for comparisons.

    Only the fact `container` changes: enroot and docker write image names differently.
    """
    if name != "container":
        return value
    # "docker://nvcr.io#nvidia/nemo:25.04" is "nvcr.io/nvidia/nemo:25.04".
    return value.removeprefix("docker://").replace("#", "/", 1)


def fold_nodes(nodes: Iterable[str]) -> str:
    """Compress node names to Slurm's notation.

    For example `n[1-4,7]` for n1 n2 n3 n4 n7, or `a1,rack2-n[08-10]`.
    """
    numbers_by_name: dict[tuple[str, str], set[str]] = {}
    unnumbered = set()
    for name in nodes:
        # The last number of the host name without its domain: "rack2-n08.site" is
        # "rack2-n", "08" and ".site".
        match = re.match(r"([^.\[]*?)([0-9]+)([^.0-9]*(?:\..*)?)$", name)
        if match:
            head, number, tail = match.groups()
            numbers_by_name.setdefault((head, tail), set()).add(number)
        else:
            unnumbered.add(name)
    folded = [
        _fold_numbers(head, numbers, tail)
        for (head, tail), numbers in sorted(numbers_by_name.items())
    ]
    return ",".join([*sorted(unnumbered), *folded])


def _fold_numbers(head: str, numbers: Iterable[str], tail: str) -> str:
    """Fold node names that differ only in their number, as Slurm writes them.

    `head` and `tail` surround the number of each name.
    """
    ranges: list[tuple[str, str]] = []  # (first, last)
    # Slurm keeps leading zeros: n08, n09 and n10 are a range, and n9 is not n09.
    for digits in sorted(numbers, key=lambda digits: (int(digits), len(digits))):
        if ranges:
            first, last = ranges[-1]
            if digits == str(int(last) + 1).zfill(len(last)):
                ranges[-1] = first, digits
                continue
        ranges.append((digits, digits))
    folded = ",".join(
        first if first == last else f"{first}-{last}" for first, last in ranges
    )
    # A single number needs no brackets.
    return f"{head}{folded}{tail}" if folded.isdigit() else f"{head}[{folded}]{tail}"


def format_exclude_option(nodes: Collection[str]) -> str:
    """Return the launch option that excludes nodes: `--llmb-exclude=n1,n2`.

    It works with all launchers.
    """
    return format_nodes_option("--llmb-exclude", nodes)


def format_nodes_option(flag: str, nodes: Collection[str]) -> str:
    """Return an option with a list of nodes, such as `--exclude=n1,n2`.

    A long list is compressed and quoted.
    """
    plain = ",".join(nodes)
    if len(plain) <= SHORT_LIST:
        return f"{flag}={plain}"
    return f"{flag}='{fold_nodes(nodes)}'"


def escape(text: str) -> str:
    """Escape the characters of a text that are not printable."""
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def escape_lines(text: str) -> str:
    """Escape each line of a text with several lines."""
    return "\n".join(map(escape, text.split("\n")))


def escape_values(values: Any) -> Any:
    """Escape every text in nested dictionaries and lists.

    Keys are not escaped. Tuples become lists.
    """
    if isinstance(values, str):
        return escape(values)
    if isinstance(values, dict):
        return {name: escape_values(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        # Most lists are columns of steps, so numbers skip the call.
        return [
            value if type(value) is float else escape_values(value) for value in values
        ]
    return values


# --- paths and URLs -------------------------------------------------------------------
#
# A remote path is represented as a Path whose first component is the protocol and a
# colon, `s3:/bucket/runs`. Local paths are absolute and thus cannot be confused with it.

URL = compile_on_use(
    r"(?P<protocol>[A-Za-z][\w+.-]*(?:::[A-Za-z][\w+.-]*)*)://(?P<rest>.*)", re.DOTALL
)
"""A URL such as `s3://bucket/runs`, or with chained protocols `simplecache::s3://bucket`."""

_LOCAL = ("file", "local")
"""Protocols whose paths begin with a slash: `file:///lustre/runs`."""


def is_url(text: str) -> bool:
    """True if a text begins with a protocol."""
    return URL.fullmatch(text) is not None


def is_remote(path: Path) -> bool:
    """True if a path represents a URL: `s3:/bucket/runs`, the result of `to_path`."""
    return not path.is_absolute() and bool(path.parts) and path.parts[0].endswith(":")


def to_path(url: str) -> Path:
    """Return the Path that represents a URL. Raises ValueError without a protocol."""
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url} contains no protocol")
    components = [part for part in match["rest"].split("/") if part]
    return Path(f"{match['protocol']}:", *components)


def to_url(path: Path) -> str:
    """Return the URL of a remote path."""
    first, *components = path.parts
    protocol = first.removesuffix(":")
    # The last of chained protocols reads the files.
    _, _, last_protocol = protocol.rpartition("::")
    root = "/" if last_protocol in _LOCAL else ""
    return f"{protocol}://{root}{'/'.join(components)}"


def format_path(path: Path, directory: Path) -> str:
    """Format a path relative to `directory`, as a user would type it.

    Undecodable bytes are escaped.
    """
    if is_remote(path):
        return escape(to_url(path))
    with suppress(ValueError):  # a path outside of `directory` remains absolute
        path = path.relative_to(directory)
    return escape(str(path))
