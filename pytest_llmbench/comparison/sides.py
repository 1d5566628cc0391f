"""Read the two sides of a comparison.

A side is a path, a range of days of a history, or a session of a history.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pytest_llmbench.comparison.comparison_records import (
    ON_BOTH_SIDES,
    ComparedSide,
    NoData,
    SideRun,
)
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.run_records import (
    Identity,
    Measurement,
    Run,
    join_fingerprints,
    make_run_keys,
)
from pytest_llmbench.judge.estimate import split_within_error
from pytest_llmbench.judge.run_selection import find_unusable
from pytest_llmbench.runs.discover.run_facts import (
    BATCH_OF_STEPS,
    STEPS,
    collect_facts,
    is_identifiable,
)
from pytest_llmbench.runs.duplicates import count_steps, mark_duplicates
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.ordering import order_runs
from pytest_llmbench.session.catalog import Catalog, add_tables
from pytest_llmbench.session.collect_runs import IngestedRuns, ingest
from pytest_llmbench.session.described_run import describe_run
from pytest_llmbench.session.draft_baselines import Drafts, draft_baselines
from pytest_llmbench.session.settings import Settings
from pytest_llmbench.session.unmatched import explain_unmatched

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.history.stored_entries import StoredEntry

LABELS = ("A", "B")

MOST_DECIMALS = 9  # times with more decimals are computed, not printed
FEWEST_DIGITS = 3  # every log dialect prints at least this many digits

MOST_OTHERS = 5  # number of listed files of a side without runs

_DAY = r"\d{4}-\d\d-\d\d"
# `2025-11-20` or `2025-11-20..2025-11-24`
_DAYS = compile_on_use(rf"({_DAY})(?:\.\.({_DAY}))?")
# `20251120-0200-0123456789ab`
_SESSION = compile_on_use(r"\d{8}-\d{4}-[0-9a-f]{12}")


class SideRequest(Struct, frozen=True):
    """Parsed input of one side.

    A path, a range of days of a history (`last` included), or a session id.
    """

    label: str
    text: str
    path: Path | None = None
    first: date | None = None
    last: date | None = None
    session: str = ""


def parse_side(
    label: str, text: str, history: StoreLocation | None, directory: Path
) -> SideRequest:
    """Parse the input of one side.

    With a history, text that looks like days or a session id refers to the history; use
    `./NAME` for a folder with such a name. Raises SettingsError for invalid input.
    """
    from pytest_llmbench.core.userfile import path_exists
    from pytest_llmbench.session.settings import find_readable

    days = _DAYS.fullmatch(text)
    is_session = _SESSION.fullmatch(text) is not None
    if (days or is_session) and history is None and not path_exists(directory / text):
        raise SettingsError(
            f"{label} {text}: needs a history: give --history=URL, or set LLMB_HISTORY"
        )
    if history is not None and is_session:
        return SideRequest(label, text, session=text)
    if history is not None and days:
        try:
            first_text, last_text = days.groups()
            first = date.fromisoformat(first_text)
            last = date.fromisoformat(last_text or first_text)
        except ValueError as error:
            raise SettingsError(f"{label} {text}: no such day ({error})") from None
        if last < first:
            raise SettingsError(f"{label} {text}: the last day is before the first")
        return SideRequest(label, text, first=first, last=last)
    return SideRequest(label, text, path=find_readable(label, text, directory))


def refuse_same(a: SideRequest, b: SideRequest) -> None:
    """Refuse to compare an input with itself. Raises SettingsError."""
    if _is_same_input(a, b):
        raise SettingsError(
            f"A and B are the same ({redact_text(b.text)}): give two different paths, days or sessions"
        )


def _is_same_input(a: SideRequest, b: SideRequest) -> bool:
    """True if both inputs are the same path, days or session."""
    if a.path is not None and b.path is not None:
        if a.path == b.path:
            return True
        if not os.path.exists(a.path):
            return False
        return os.path.realpath(a.path) == os.path.realpath(b.path)
    stored_a = a.path, a.first, a.last, a.session
    stored_b = b.path, b.first, b.last, b.session
    return stored_a == stored_b


# --- runs under paths -----------------------------------------------------------------


class _LocatedRuns(Struct, frozen=True):
    """Runs under the path of one side, before measurement."""

    request: SideRequest
    runs: tuple[Run, ...]
    no_data: tuple[NoData, ...] = ()


def read_paths(
    requests: Sequence[SideRequest], settings: Settings, catalog: Catalog, now: datetime
) -> tuple[ComparedSide, ...]:
    """Read and measure the sides that are paths.

    Runs on both sides, and duplicates of a run of the other side, are excluded.
    Runs that match no baseline are compared, too: runs with the same path pattern and
    facts form a configuration, for which a baseline is drafted.
    """
    # Find the runs of each side, with the baseline tables that each folder contains.
    located = []
    for request in requests:
        logs = (request.path or Path(),)
        ingested = ingest(settings.replace(logs=logs), catalog, now)
        catalog = add_tables(catalog, ingested.tables, settings)
        runs, no_data = _label_runs(request.label, ingested)
        located.append(_LocatedRuns(request, runs, no_data))
    located = _mark_duplicates(_drop_shared_logs(located), now)
    # Draft baselines for the unmatched runs of both sides together.
    all_runs = [run for side in located for run in side.runs]
    drafts = draft_baselines(all_runs, settings, catalog)
    catalog_with_drafts = drafts.add_to(catalog)
    identity_by_run_id = _unify_single_logs(requests, drafts)
    # Measure each side.
    sides = []
    for side in located:
        identified = _identify(side.runs, drafts, identity_by_run_id)
        sides.append(_measure_side(side, identified, catalog_with_drafts, now))
    return tuple(sides)


def _label_runs(
    label: str, ingested: IngestedRuns
) -> tuple[tuple[Run, ...], tuple[NoData, ...]]:
    """Prefix run ids with the label of their side: `A/x_1`.

    Returns the runs, and the files and copies that contain no run to compare.
    """
    runs = tuple(
        structs.replace(run, found=structs.replace(run.found, id=f"{label}/{run.id}"))
        for run in ingested.runs
    )
    unreadable = (
        NoData(label, file.id, "", file.reason, file.text, str(file.path))
        for file in ingested.unreadable
    )
    copies = []
    for duplicate, original in ingested.copies:
        text = f"a copy of {label}/{original.id}"
        no_data = _make_no_data(label, duplicate, Reason.COPIED, text)
        copies.append(structs.replace(no_data, run=f"{label}/{duplicate.id}"))
    # A side without runs lists the files it contains.
    listed_files = () if runs else ingested.ignored[:MOST_OTHERS]
    without_steps = (
        NoData(label, file.name, "", Reason.NO_STEPS, file.reason)
        for file in listed_files
    )
    return runs, (*unreadable, *copies, *without_steps)


def _drop_shared_logs(located: Sequence[_LocatedRuns]) -> list[_LocatedRuns]:
    """Exclude the runs that both paths contain.

    So no baseline is drafted for such a run.
    """
    keys_by_side = [
        {key for run in side.runs for key in _list_run_keys(run)} for side in located
    ]
    shared_keys: set[object] = set()
    # If only one side is a path, the other side is read from a history.
    if len(located) == len(LABELS):
        shared_keys = set.intersection(*keys_by_side)
    sides = []
    for side in located:
        kept_runs, excluded = [], []
        for run in side.runs:
            if shared_keys.isdisjoint(_list_run_keys(run)):
                kept_runs.append(run)
            else:
                label = side.request.label
                excluded.append(_make_no_data(label, run, Reason.COPIED, ON_BOTH_SIDES))
        no_data = (*side.no_data, *excluded)
        sides.append(_LocatedRuns(side.request, tuple(kept_runs), no_data))
    return sides


def _list_run_keys(run: Run) -> set[object]:
    """Return the keys of a run: its log fingerprint, and its job with start."""
    keys: set[object] = set()
    if count_steps(run):  # logs without steps may be equal by chance
        fingerprints = [attempt.log.fingerprint for attempt in run.attempts]
        keys.add(join_fingerprints(fingerprints))
    if run.found.job_id and run.started:
        keys.add((run.found.job_id, run.started))
    return keys - {""}  # the fingerprint "" is unknown


def _mark_duplicates(
    located: Sequence[_LocatedRuns], now: datetime
) -> list[_LocatedRuns]:
    """Mark the runs that contain steps of another run, and exclude copies of a log.

    Marked runs have `duplicate_of`. Searches both sides together.
    """
    all_runs = [run for side in located for run in side.runs]
    marked, excluded = mark_duplicates(order_runs(all_runs, now))
    # Take only `duplicate_of` from the common order, whose clock may be less accurate
    # than that of a single side.
    duplicate_of = {run.id: run.duplicate_of for run in marked}
    sides = []
    for side in located:
        label = side.request.label
        marked_runs = tuple(
            structs.replace(run, duplicate_of=duplicate_of[run.id])
            for run in side.runs
            if run.id in duplicate_of
        )
        copies = (
            _make_no_data(label, duplicate, Reason.COPIED, f"a copy of {original.id}")
            for duplicate, original in excluded
            if duplicate.id.startswith(f"{label}/")
        )
        sides.append(_LocatedRuns(side.request, marked_runs, (*side.no_data, *copies)))
    return sides


def _unify_single_logs(
    requests: Sequence[SideRequest], drafts: Drafts
) -> dict[str, Identity]:
    """Give two single logs the same configuration if they state the same facts.

    Only if each side is a single file: the user has named these files, so their names
    need not distinguish configurations. Returns the identity for the run of side B by
    its run id, or {}.
    """
    # Each side is a file, and each file has its own draft with a single run.
    files = [
        request.path
        for request in requests
        if request.path and os.path.isfile(request.path)
    ]
    if len(files) != len(LABELS) or len(drafts.drafts) != len(LABELS):
        return {}
    first, second = drafts.drafts
    if len(first.runs) != 1 or len(second.runs) != 1:
        return {}
    if first.baseline.match is None or second.baseline.match is None:
        return {}
    has_same_facts = (
        first.baseline.match.says == second.baseline.match.says
        and first.baseline.dialect == second.baseline.dialect
    )
    (run,) = second.runs
    facts = collect_facts(run.found, [attempt.log for attempt in run.attempts])
    # Logs that state too few facts may be different models.
    if not has_same_facts or not is_identifiable(facts):
        return {}
    return {run.id: Identity(first.baseline.key, "both logs state the same facts")}


def _identify(
    runs: Sequence[Run], drafts: Drafts, identity_by_run_id: Mapping[str, Identity]
) -> tuple[Run, ...]:
    """Identify runs; given identities take precedence."""
    identified = drafts.assign(runs)
    return tuple(
        structs.replace(run, identity=identity_by_run_id[run.id])
        if run.id in identity_by_run_id
        else run
        for run in identified
    )


def _measure_side(
    side: _LocatedRuns, runs: Sequence[Run], catalog: Catalog, now: datetime
) -> ComparedSide:
    """Measure the runs of a side, by configuration and window; list unusable runs."""
    label = side.request.label
    usable_runs: dict[tuple[str, Window], list[SideRun]] = defaultdict(list)
    no_data = list(side.no_data)
    for run in runs:
        key = run.identity.key
        if key is None:
            reason, (first_text, *_) = explain_unmatched(run)
            no_data.append(_make_no_data(label, run, reason, first_text))
            continue
        measurement = measure(run, catalog.baselines[key][0], now, step_time_only=True)
        problem = find_unusable(measurement)
        if problem is not None:
            no_data.append(
                _make_no_data(label, run, problem.reason, problem.text, key.id)
            )
        else:
            window = measurement.baseline.window
            usable_runs[key.id, window].append(_make_side_run(measurement))
    return ComparedSide(
        label,
        side.request.text,
        {key_and_window: tuple(group) for key_and_window, group in usable_runs.items()},
        tuple(no_data),
    )


def _make_no_data(
    label: str, run: Run, reason: Reason, text: str, configuration: str = ""
) -> NoData:
    """Build the record of a run that cannot be compared, with the reason."""
    log = run.attempts[-1].files.log if run.attempts else run.found.folder
    if not configuration and run.identity.key:
        configuration = run.identity.key.id
    return NoData(label, run.id, configuration, reason, text, str(log))


def _make_side_run(measurement: Measurement) -> SideRun:
    """Build the compared run from a measurement."""
    run = measurement.run
    within_error, rounding = split_within_error(measurement)
    return SideRun(
        id=run.id,
        statistic_seconds=measurement.statistic_seconds or 0.0,
        within_error=within_error,
        rounding=rounding,
        started=run.started,
        facts={**dict(_list_facts(run)), **measurement.environment},
        job_id=run.found.job_id,
        log=str(measurement.log or ""),
        same_run_keys=run.same_run_keys,
    )


def _list_facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the facts that log, metadata and names of a run state.

    The batch size that its steps print takes precedence over the stated one.
    """
    facts = {
        fact.name: fact.text
        for fact in collect_facts(run.found, [attempt.log for attempt in run.attempts])
    }
    for name, value in facts.items():
        if name not in (STEPS, BATCH_OF_STEPS):
            yield name, value
    described = describe_run(run)
    batch = described.get_text("global_batch_size", "")
    if batch:  # replaces a stated batch size
        yield str(StatedField.BATCH), batch
    sizes = structs.asdict(described.parallelism)
    layout = ", ".join(f"{name} {size}" for name, size in sizes.items() if size)
    if layout and StatedField.LAYOUT not in facts:
        yield str(StatedField.LAYOUT), layout


# --- runs of a history ----------------------------------------------------------------


def read_stored_side(
    request: SideRequest,
    history: StoreLocation,
    configurations: Collection[str] | None = None,
) -> ComparedSide:
    """Read the stored runs of a side, with their last verdict per window.

    `configurations` (ids) restricts a side of days to these.
    """
    from pytest_llmbench.history.queries import list_days, list_session

    if request.first is not None and request.last is not None:
        end = datetime.max.replace(tzinfo=UTC)
        if request.last < date.max:  # else there is no next day
            end = _start_day(request.last + timedelta(days=1))
        first = _start_day(request.first)
        entries = list_days(history, first, end, configurations)
    else:
        entries = list_session(history, request.session)
    last_entries: dict[tuple[int | None, Window], StoredEntry] = {}
    for entry in entries:
        if entry.verdict != "MISSING":
            window = Window(entry.first_step, entry.last_step, entry.statistic)
            last_entries[entry.number, window] = entry
    usable_runs: dict[tuple[str, Window], list[SideRun]] = defaultdict(list)
    no_data = {}
    for (number, window), entry in last_entries.items():
        if entry.counts:  # the run is valid
            run = _make_stored_side_run(request.label, entry)
            usable_runs[entry.configuration, window].append(run)
        else:
            no_data[number] = _make_stored_no_data(request.label, entry)
    return ComparedSide(
        request.label,
        request.text,
        {key_and_window: tuple(group) for key_and_window, group in usable_runs.items()},
        tuple(no_data.values()),
    )


def _start_day(day: date) -> datetime:
    """Return the beginning of a day in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _make_stored_side_run(label: str, entry: StoredEntry) -> SideRun:
    """Build the compared run from an entry of the history."""
    import numpy as np

    from pytest_llmbench.judge.estimate import bound_rounding

    window = Window(entry.first_step, entry.last_step, entry.statistic)
    seconds = entry.run_seconds or 0.0  # not None, since the run is usable
    steps = np.array(
        [value for value in entry.step_seconds if value is not None], dtype=float
    )
    return SideRun(
        id=_name_stored(label, entry),
        statistic_seconds=seconds,
        within_error=_estimate_stored_error(entry, window, steps),
        rounding=bound_rounding(steps, _find_unit(steps), seconds),
        started=entry.started,
        nodes=frozenset(entry.nodes),
        facts=dict(entry.environment),
        job_id=entry.job_id,
        log=entry.log,
        same_run_keys=make_run_keys(
            entry.job_id, join_fingerprints(entry.log_fingerprints), entry.started
        ),
    )


def _estimate_stored_error(entry: StoredEntry, window: Window, steps: Floats) -> float:
    """Return the within-run error of a stored run.

    The steps are assumed not to be moving means: the history does not store this.
    """
    from pytest_llmbench.judge.estimate import FEWEST_STEPS
    from pytest_llmbench.judge.noise import estimate_within_run

    if len(steps) < FEWEST_STEPS:
        return 0.0
    weights = entry.mean_of if len(entry.mean_of) == len(steps) else ()
    return estimate_within_run(steps, window.statistic, mean_of=weights).error


def _find_unit(steps: Floats) -> float:
    """Estimate the printed unit of stored step times, which is not stored.

    It is the last place of the time with most decimals. Trailing zeros are not stored,
    so at least three digits are assumed, which every dialect prints. Times with too
    many decimals were computed from a rate: their unit is bounded by the smallest
    difference between two times, or 0 if all are equal.
    """
    import numpy as np

    most_decimals = max(map(_count_decimals, steps), default=0)
    if len(steps) and most_decimals < MOST_DECIMALS:
        # Exponents of ten of the first digit, and of the last of at least three digits.
        first_digit = math.floor(math.log10(float(steps.max())))
        third_digit = first_digit - FEWEST_DIGITS + 1
        return 10.0 ** min(-most_decimals, third_digit)
    gaps = np.diff(np.unique(steps))
    return float(gaps.min()) if len(gaps) else 0.0


def _count_decimals(seconds: float) -> int:
    """Count the decimals of a time without trailing zeros, at most MOST_DECIMALS."""
    _, _, decimals = f"{seconds:.{MOST_DECIMALS}f}".rstrip("0").partition(".")
    return len(decimals)


def _make_stored_no_data(label: str, entry: StoredEntry) -> NoData:
    """Build the record of a stored run that cannot be compared."""
    reasons = {reason.value: reason for reason in Reason}
    # The version that stored the run may have had other reasons.
    reason = reasons.get(entry.reason, Reason.UNMATCHED)
    return NoData(
        label,
        _name_stored(label, entry),
        entry.configuration,
        reason,
        entry.text,
        entry.log,
    )


def _name_stored(label: str, entry: StoredEntry) -> str:
    """Return a display name with the run number of `llmbench history show`."""
    return f"{label}/{entry.name} (run {entry.number})"
