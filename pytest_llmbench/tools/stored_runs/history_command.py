"""`llmbench history`: list, show, export, prune and extend a history store."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.text import wrap
from pytest_llmbench.tools.command_line import (
    WIDTH,
    Output,
    Subparsers,
    print_to_stdout,
)
from pytest_llmbench.tools.history_options import (
    LARGEST_COUNT,
    add_history_option,
    locate_history,
    parse_count,
    print_future_sessions,
)
from pytest_llmbench.tools.stored_runs.export_command import (
    FORMATS,
    export,
)

if TYPE_CHECKING:
    from pytest_llmbench.history.prune import Extent
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.history.stored_entries import ListedRun, StoredEntry

Parsed = TypeVar("Parsed")


EMPTY_STORE_ERROR = (
    "nothing was removed, because this would remove every session: {}; to remove all, delete the store itself, else "
    "check the clock of this machine"
)
RUN_HELP = "The run: its number in `llmbench history list`, or the id of a configuration for its last run."
TEXTS = (
    "item",
    "text",
    "reason",
    "baseline",
    "tolerance",
    "name",
    "job_id",
    "launcher",
    "log",
    "attempts",
)


DAYS = {
    **dict.fromkeys(("d", "day", "days"), 1),
    **dict.fromkeys(("w", "week", "weeks"), 7),
    **dict.fromkeys(("mo", "month", "months"), 31),
    **dict.fromkeys(("y", "year", "years"), 366),
}
"""Days per unit of `--keep`; months and years are rounded up, to keep rather more."""

MINUTES_OR_HOURS = (
    "m",
    "min",
    "minute",
    "minutes",
    "h",
    "hour",
    "hours",
    "s",
    "second",
    "seconds",
)


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench history`."""
    parser = commands.add_parser(
        "history", help="List, show, export and prune the verdicts of earlier sessions."
    )
    parser.set_defaults(command=_run)
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing = actions.add_parser(
        "list",
        help="List runs with start, verdict, step time and difference from the baseline.",
    )
    listing.add_argument(
        "-k",
        metavar="WORDS",
        type=_parse_words,
        default="",
        help='Select configurations, as pytest\'s -k: "grok1 and not fp8".',
    )
    listing.add_argument(
        "--since",
        metavar="DATE",
        type=_parse_timestamp,
        help="Only runs that started on or after this date (default: all).",
    )
    listing.add_argument(
        "--limit",
        metavar="N",
        type=parse_count,
        default=10,
        help="List at most N runs of each configuration (default: 10).",
    )
    showing = actions.add_parser(
        "show", help="Print everything stored about a run, and all its verdicts."
    )
    showing.add_argument("run", metavar="RUN", help=RUN_HELP)
    exporting = actions.add_parser(
        "export", help="Write all verdicts, with their runs and sessions, as a table."
    )
    exporting.add_argument(
        "--format",
        choices=FORMATS,
        help="Format of the table (default: by the suffix of FILE, else csv).",
    )
    exporting.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Write the table to this file (default: print it).",
    )
    pruning = actions.add_parser(
        "prune",
        help="Delete the verdicts of old sessions, and runs left without a verdict.",
    )
    keep = "Keep the sessions of this period: 400d, 8w, 6mo (months), 2y; delete older."
    pruning.add_argument("--keep", metavar="AGE", type=_parse_age, help=keep)
    future = "Delete sessions dated more than a day in the future (by a wrong clock)."
    pruning.add_argument("--future", action="store_true", help=future)
    pruning.add_argument(
        "--dry-run",
        action="store_true",
        help="Print what would be deleted, and delete nothing.",
    )
    pruning.add_argument(
        "--yes",
        action="store_true",
        help="Delete without asking for confirmation, for scheduled jobs.",
    )
    adding = actions.add_parser(
        "add",
        help="Store sessions that could not be saved, from the files that they wrote instead.",
    )
    adding.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="Files named llmb-history-unsaved-*.json.",
    )
    for action in (listing, showing, exporting, pruning, adding):
        add_history_option(action)


def _run(arguments: argparse.Namespace) -> Output:
    """Run a command of `llmbench history`."""
    writes = arguments.action in ("prune", "add")
    adds = arguments.action == "add"
    # `_add` itself reports sessions dated in the future.
    store = locate_history(
        arguments.history, writes=writes, creates=adds, reports_future=not adds
    )
    if arguments.action == "export":
        return export(store, arguments)
    actions = {"list": _list, "show": _show, "prune": _prune, "add": _add}
    return Output(actions[arguments.action](store, arguments))


def _parse_timestamp(text: str) -> datetime:
    from pytest_llmbench.core.option import parse_timestamp

    return _convert(parse_timestamp, text)


def _parse_age(text: str) -> timedelta:
    return _convert(parse_days, text)


def parse_days(text: str) -> timedelta:
    """Parse a period: `400d`, `8w`, `6mo` (31 days each) or `2y` (366 days each).

    Raises ValueError.
    """
    match = re.fullmatch(
        r"(?P<number>\d{1,6}(?:\.\d{1,6})?)\s*(?P<unit>[a-z]+)", text, re.ASCII
    )
    unit = match["unit"] if match else ""
    # `m` is ambiguous (minutes or months), so a command that deletes refuses it.
    if unit in MINUTES_OR_HOURS:
        raise ValueError(
            f"the unit {unit!r} is shorter than a day or ambiguous: write 30d, 4w, 1mo (a month) or 1y"
        )
    if not match or unit not in DAYS or float(match["number"]) == 0:
        raise ValueError(
            "expected a number above 0 with d, w, mo (months) or y, such as 400d"
        )
    days = float(match["number"]) * DAYS[unit]
    if days > LARGEST_COUNT:
        raise ValueError(f"expected at most {LARGEST_COUNT:,} days")
    return timedelta(days=days)


def _convert(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse a text. Raises ArgumentTypeError, which argparse shows to the user."""
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"found {text!r}: {error}") from None


def _parse_words(text: str) -> str:
    """Return the value of -k unchanged; refuse parentheses."""
    if "(" in text or ")" in text:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected words joined by `and`, `or` and `not`, without parentheses"
        )
    return text


# --- list and show --------------------------------------------------------------------


def _list(store: StoreLocation, arguments: argparse.Namespace) -> str:
    """Format the stored runs by configuration. Raises HistoryError without a run."""
    from pytest_llmbench.history.queries import list_runs

    rows = list_runs(store, arguments.k, arguments.since, arguments.limit)
    if not rows:
        hint = "it contains no run"
        if arguments.k or arguments.since:
            hint = "no run matches -k and --since; leave them out to list all runs"
        raise HistoryError(f"{store.shown}: {hint}")
    lines = []
    for configuration, runs in groupby(rows, key=lambda row: row.configuration):
        lines += [formatting.escape(configuration), *map(_format_run, runs)]
    return "\n".join(lines)


def _format_run(row: ListedRun) -> str:
    """Format a run: number, start, verdict, step time, difference and job."""
    started = f"{row.started:%Y-%m-%d %H:%M}" if row.started else "start unknown"
    seconds = formatting.format_seconds(row.step_time_seconds)
    ratio = None
    if row.log_difference is not None:
        ratio = formatting.compute_bounded_exp(row.log_difference)
    difference = formatting.format_difference(ratio)
    job = f"job {row.job_id}" if row.job_id else ""
    line = f"{row.number:>7}  {started:<16}  {row.verdict:<14} {seconds:>9} {difference:>8}  {job}"
    return formatting.escape(line)[:WIDTH].rstrip()


def _show(store: StoreLocation, arguments: argparse.Namespace) -> str:
    """Format everything stored about a run, wrapped."""
    from pytest_llmbench.history.queries import list_verdicts

    rows = list_verdicts(store, arguments.run)
    lines: list[str] = []
    for line in _list_lines(rows):
        # Continuation lines begin below the values, after the 18 columns of a name.
        lines += wrap(formatting.escape(line), rest=" " * 21, whole_words=True)
    return "\n".join(lines)


def _list_lines(rows: Sequence[StoredEntry]) -> Iterator[str]:
    """Yield the stored values of a run, and a line for each of its verdicts.

    `rows` has one entry for each verdict; the values are those of the last.
    """
    last = rows[-1]
    yield last.configuration
    yield _format_run(last)
    for name in TEXTS:
        value = getattr(last, name)
        if value not in ("", None):
            yield f"  {name:<18} {value}"
    yield f"  {'window':<18} {last.statistic.replace('_', ' ')} of steps {last.first_step} to {last.last_step}"
    for name in ("expected_seconds", "bound_seconds"):
        seconds = getattr(last, name)
        if seconds is not None:
            yield f"  {name:<18} {seconds}"
    for name, (mean, deviation) in last.metrics.items():
        suffix = "" if deviation is None else f" (sd {deviation:.6g})"
        yield f"  {name:<30} {mean}{suffix}"
    for name, text in last.environment.items():
        yield f"  {f'environment {name}':<30} {text}"
    yield f"  {'nodes':<18} {formatting.fold_nodes(last.nodes) or '?'}"
    yield f"  {'logs':<18} {', '.join(last.log_fingerprints)}"
    yield f"  {'steps (seconds)':<18} {', '.join(map(str, last.step_seconds))}"
    for row in rows:
        commit = f", commit {row.git_commit}" if row.git_commit else ""
        yield f"  judged {row.judged:%Y-%m-%d %H:%M} {row.verdict} on {row.host}, {row.program}{commit}"
        yield f"    session {row.session}"
        if row.ci_url:
            yield f"    {row.ci_url}"
        yield from (f"    sha256 {digest or 'not known'}" for digest in row.log_sha256)


# --- prune and add --------------------------------------------------------------------


def _prune(store: StoreLocation, arguments: argparse.Namespace) -> str:
    """Delete sessions after confirmation. Raises HistoryError if none would remain."""
    from functools import partial

    from pytest_llmbench.history.prune import measure_extent, prune

    if not (arguments.keep or arguments.future):
        raise HistoryError(
            "prune: give --keep AGE or --future to select the sessions to remove"
        )
    before = datetime.now(UTC) - arguments.keep if arguments.keep else None
    extent = measure_extent(store, before, future=arguments.future)
    if not extent.sessions:
        criteria = []
        if before:
            criteria.append(f"from before {before:%Y-%m-%d}")
        if arguments.future:
            criteria.append("that begins later than now")
        return f"nothing to remove: no session {' or '.join(criteria)}"
    remove = partial(prune, store, before, future=arguments.future)
    # A dry run only counts.
    counts = _format_counts(remove(dry_run=True))
    days = _format_extent(extent)
    # The same text for output and, in one line, for errors.
    removal = f"{counts}\n  {days}"
    in_one_line = f"{counts}, {days}"
    if arguments.dry_run:
        return f"would remove {removal}"
    if not extent.stay:
        raise HistoryError(f"{store.shown}: {EMPTY_STORE_ERROR.format(in_one_line)}")
    if not (arguments.yes or _confirm(f"removes {removal}")):
        raise HistoryError(
            f"{store.shown}: nothing was removed: give --yes to remove {in_one_line}"
        )
    return f"removed {_format_counts(remove(dry_run=False))}\n  {days}"


def _format_counts(removed: Mapping[str, int]) -> str:
    """Format counts by plural noun: `{"sessions": 1, "runs": 2}` is `1 session, 2 runs`."""
    return ", ".join(
        formatting.count_noun(count, name.removesuffix("s"))
        for name, count in removed.items()
    )


def _format_extent(extent: Extent) -> str:
    """Format the deleted days: `of 2025-01-01 to 2025-03-02; 30 sessions stay`."""
    if extent.oldest is None or extent.newest is None:
        return "without dates"
    days = f"{extent.oldest:%Y-%m-%d}"
    newest_day = f"{extent.newest:%Y-%m-%d}"
    if newest_day != days:
        days += f" to {newest_day}"
    verb = "stays" if extent.stay == 1 else "stay"
    remaining = f"{formatting.count_noun(extent.stay, 'session')} {verb}"
    return f"of {days}; {remaining}"


def _confirm(question: str) -> bool:
    """Ask for confirmation at the terminal; False without a terminal."""
    # Scheduled jobs must give --yes.
    if not sys.stdin.isatty():
        return False
    print_to_stdout(f"{question}\ncontinue? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _add(store: StoreLocation, arguments: argparse.Namespace) -> str:
    """Store the sessions of files that could not be stored before."""
    from pytest_llmbench.history.record import write
    from pytest_llmbench.session.unsaved import read_unsaved

    # Read all files before the first is stored, because an invalid file raises an error.
    records = [(path, read_unsaved(path)) for path in arguments.files]
    added = 0
    for path, record in records:
        verdicts = write(store, record)
        added += verdicts
        result = "already stored"
        if verdicts:
            result = f"{formatting.count_noun(verdicts, 'verdict')} stored"
        print_to_stdout(f"{path}: {result}")
    print_future_sessions(store)
    return f"{formatting.count_noun(added, 'verdict')} added to {store.shown}; you can delete the files"
