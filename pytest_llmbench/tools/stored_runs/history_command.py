"""`llmbench history`: what a history holds, as text and as tables; and what is added to
it or removed."""

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
from pytest_llmbench.tools.command_line import Output, Subparsers, tell
from pytest_llmbench.tools.history_options import (
    MOST,
    add_history,
    open_history,
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


NOTHING_STAYS = "nothing was removed, as all of it would go: {}; remove the store itself if that is meant, or look at the clock"
ANYTHING = "a number of `list`, or the id of a configuration for its last run"
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
"""The units in which it is said how long something is kept, in days: rather too many
than too few."""

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
    """Declare `llmbench history`."""
    parser = commands.add_parser(
        "history", help="List, show, export and prune the verdicts of earlier sessions."
    )
    parser.set_defaults(command=_run)
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing = actions.add_parser(
        "list", help="A line for each run: when, verdict, step time, difference."
    )
    listing.add_argument(
        "-k",
        metavar="WORDS",
        type=_parse_words,
        default="",
        help='Such as "grok1 and not fp8".',
    )
    listing.add_argument(
        "--since",
        metavar="DATE",
        type=_parse_timestamp,
        help="Runs that started from then on (default: all).",
    )
    listing.add_argument(
        "--limit",
        metavar="N",
        type=parse_count,
        default=10,
        help="Of each configuration (default: 10).",
    )
    showing = actions.add_parser(
        "show", help="Everything that is kept of a run, and each verdict on it."
    )
    showing.add_argument(
        "wanted", metavar="RUN", help=f"{ANYTHING[0].upper()}{ANYTHING[1:]}."
    )
    exporting = actions.add_parser(
        "export", help="Every verdict, with its run and session, as a table."
    )
    exporting.add_argument(
        "--format", choices=FORMATS, help="Default: by the ending of FILE, else csv."
    )
    exporting.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="Default: printed."
    )
    pruning = actions.add_parser(
        "prune", help="Remove what old sessions said, and runs that nothing is said of."
    )
    keep = "Keep what is younger: 400d, 8w, 6mo (months), 2y."
    pruning.add_argument("--keep", metavar="AGE", type=_parse_age, help=keep)
    future = "Remove sessions that begin later than now, by more than a day: a clock was wrong."
    pruning.add_argument("--future", action="store_true", help=future)
    pruning.add_argument(
        "--dry-run",
        action="store_true",
        help="Tell what would be removed, and remove nothing.",
    )
    pruning.add_argument(
        "--yes",
        action="store_true",
        help="Remove without asking, as a nightly job has to.",
    )
    adding = actions.add_parser(
        "add", help="Store what a session could not, from the file that it left."
    )
    adding.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="llmb-history-unsaved-*.json",
    )
    for action in (listing, showing, exporting, pruning, adding):
        add_history(action)


def _run(arguments: argparse.Namespace) -> Output:
    writes = arguments.action in ("prune", "add")
    adds = (
        arguments.action == "add"
    )  # it reports afterwards which sessions begin later than now
    place = open_history(
        arguments.history, writes=writes, creates=adds, reports_future=not adds
    )
    if arguments.action == "export":
        return export(place, arguments)
    actions = {"list": _list, "show": _show, "prune": _prune, "add": _add}
    return Output(actions[arguments.action](place, arguments))


def _parse_timestamp(text: str) -> datetime:
    from pytest_llmbench.core.option import parse_timestamp

    return _convert(parse_timestamp, text)


def _parse_age(text: str) -> timedelta:
    return _convert(parse_days, text)


def parse_days(text: str) -> timedelta:
    """Read how long something is kept: `400d`, `8w`, `6mo` of 31 days, `2y` of 366;
    ValueError otherwise."""
    # Elsewhere `m` is minutes, and to many people it is months: what removes things
    # takes neither.
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([a-z]+)", text, re.ASCII)
    unit = match[2] if match else ""
    if unit in MINUTES_OR_HOURS:
        raise ValueError(
            f"{unit!r} is no unit of a day or more: write 30d, 4w, 1mo (a month) or 1y"
        )
    if not match or unit not in DAYS or float(match[1]) == 0:
        raise ValueError(
            "expected a number above 0 with d, w, mo (months) or y, such as 400d"
        )
    days = float(match[1]) * DAYS[unit]
    if days > MOST:
        raise ValueError(f"expected at most {MOST:,} days")
    return timedelta(days=days)


def _convert(convert: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return convert(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"found {text!r}: {error}") from None


def _parse_words(text: str) -> str:
    if set(text) & set("()"):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected words with and, or, not, and no parentheses"
        )
    return text


# --- list and show --------------------------------------------------------------------


def _list(place: StoreLocation, arguments: argparse.Namespace) -> str:
    from pytest_llmbench.history.queries import list_runs

    rows = list_runs(place, arguments.k, arguments.since, arguments.limit)
    if not rows:
        chosen = arguments.k or arguments.since
        hint = (
            "no run that fits; without -k and --since `list` shows all"
            if chosen
            else "no run in it"
        )
        raise HistoryError(f"{place.shown}: {hint}")
    lines = []
    for configuration, of_one in groupby(rows, key=lambda row: row.configuration):
        lines += [formatting.escape(configuration), *map(_format_run, of_one)]
    return "\n".join(lines)


def _format_run(row: ListedRun) -> str:
    started = f"{row.started:%Y-%m-%d %H:%M}" if row.started else "start unknown"
    seconds, difference = row.step_time_seconds, row.log_difference
    change = formatting.format_difference(
        formatting.compute_bounded_exp(difference) if difference is not None else None
    )
    numbers = f"{row.number:>7}  {started:<16}  {row.verdict:<14} {formatting.format_seconds(seconds):>9} {change:>8}"
    return formatting.escape(f"{numbers}  {'job ' if row.job_id else ''}{row.job_id}")[
        :79
    ].rstrip()


def _show(place: StoreLocation, arguments: argparse.Namespace) -> str:
    from pytest_llmbench.history.queries import list_verdicts

    rows = list_verdicts(place, arguments.wanted)
    lines = [
        wrap(formatting.escape(line), rest=" " * 21, whole_words=True)
        for line in _list_lines(rows)
    ]
    return "\n".join(part for parts in lines for part in parts)


def _list_lines(rows: Sequence[StoredEntry]) -> Iterator[str]:
    """Yield everything of one run as it was judged last, and a line for each verdict on
    it."""
    last = rows[-1]
    yield last.configuration
    yield _format_run(last)
    yield from (
        f"  {name:<18} {getattr(last, name)}"
        for name in TEXTS
        if getattr(last, name) not in ("", None)
    )
    yield f"  {'window':<18} {last.statistic.replace('_', ' ')} of steps {last.first_step} to {last.last_step}"
    yield from (
        f"  {name:<18} {seconds}"
        for name, seconds in (
            ("expected_seconds", last.expected_seconds),
            ("bound_seconds", last.bound_seconds),
        )
        if seconds is not None
    )
    for name, (value, deviation) in last.metrics.items():
        yield f"  {name:<30} {value}" + (
            "" if deviation is None else f" (sd {deviation:.6g})"
        )
    yield from (
        f"  {f'environment {name}':<30} {value}"
        for name, value in last.environment.items()
    )
    yield f"  {'nodes':<18} {formatting.fold_nodes(last.nodes) or '?'}"
    yield f"  {'logs':<18} {', '.join(last.log_fingerprints)}"
    yield f"  {'steps (seconds)':<18} {', '.join(map(str, last.step_seconds))}"
    for row in rows:
        commit = f", commit {row.git_commit}" if row.git_commit else ""
        yield f"  judged {row.judged:%Y-%m-%d %H:%M} {row.verdict} on {row.host}, {row.program}{commit}"
        yield f"    session {row.session}"
        yield from ([f"    {row.ci_url}"] if row.ci_url else [])
        yield from (f"    sha256 {digest or 'not known'}" for digest in row.log_sha256)


# --- prune and add --------------------------------------------------------------------


def _prune(place: StoreLocation, arguments: argparse.Namespace) -> str:
    """Show what goes, ask or be told not to, and remove it; a store of which nothing
    would stay is left alone."""
    from functools import partial

    from pytest_llmbench.history.prune import measure_extent, prune

    if not (arguments.keep or arguments.future):
        raise HistoryError(
            "prune: nothing to remove is named: give --keep AGE, or --future"
        )
    before = datetime.now(UTC) - arguments.keep if arguments.keep else None
    extent = measure_extent(place, before, future=arguments.future)
    if not extent.sessions:
        old = [f"from before {before:%Y-%m-%d}"] if before else []
        late = ["that begins later than now"] if arguments.future else []
        return f"nothing to remove: no session {' or '.join([*old, *late])}"
    remove = partial(prune, place, before, future=arguments.future)
    counts, days = _format_counts(remove(dry_run=True)), _format_extent(extent)
    removal, in_one_line = f"{counts}\n  {days}", f"{counts}, {days}"
    if arguments.dry_run:
        return f"would remove {removal}"
    if not extent.stay:
        raise HistoryError(f"{place.shown}: {NOTHING_STAYS.format(in_one_line)}")
    if not (arguments.yes or _is_agreed(f"removes {removal}")):
        raise HistoryError(
            f"{place.shown}: nothing was removed: --yes removes {in_one_line}"
        )
    return f"removed {_format_counts(remove(dry_run=False))}\n  {days}"


def _format_counts(removed: Mapping[str, int]) -> str:
    return ", ".join(
        formatting.count_noun(count, name.removesuffix("s"))
        for name, count in removed.items()
    )


def _format_extent(extent: Extent) -> str:
    """Return `of 2025-01-01 to 2025-03-02; 30 sessions stay`."""
    if extent.oldest is None or extent.newest is None:
        return "of no day"
    days = list(
        dict.fromkeys(f"{day:%Y-%m-%d}" for day in (extent.oldest, extent.newest))
    )
    remaining = f"{formatting.count_noun(extent.stay, 'session')} {'stays' if extent.stay == 1 else 'stay'}"
    return f"of {' to '.join(days)}; {remaining}"


def _is_agreed(question: str) -> bool:
    """Ask whoever sits at the terminal."""
    # Where nobody does, nobody agreed: a nightly job has to say --yes.
    if not sys.stdin.isatty():
        return False
    tell(f"{question}\ngo on? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _add(place: StoreLocation, arguments: argparse.Namespace) -> str:
    from pytest_llmbench.history.record import write
    from pytest_llmbench.session.unsaved import read_unsaved

    records = [(path, read_unsaved(path)) for path in arguments.files]
    added = 0
    for path, record in records:
        verdicts = write(place, record)
        added += verdicts
        tell(
            f"{path}: {formatting.count_noun(verdicts, 'verdict')} stored"
            if verdicts
            else f"{path}: stored before"
        )
    print_future_sessions(place)
    return f"{formatting.count_noun(added, 'verdict')} added to {place.shown}; the files may go"
