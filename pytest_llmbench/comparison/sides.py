"""Read the two sides of a comparison.

A side is a path, a range of days of a history, or a session of a history.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

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
_DAYS = re.compile(rf"({_DAY})(?:\.\.({_DAY}))?")
_SESSION = re.compile(r"\d{8}-\d{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class SideRequest:
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

    days, is_session = _DAYS.fullmatch(text), _SESSION.fullmatch(text) is not None
    if (days or is_session) and history is None and not path_exists(directory / text):
        raise SettingsError(
            f"{label} {text}: needs a history: give --history=URL, or set LLMB_HISTORY"
        )
    if history is not None and is_session:
        return SideRequest(label, text, session=text)
    if history is not None and days:
        try:
            first, last = (date.fromisoformat(day or days[1]) for day in days.groups())
        except ValueError as error:
            raise SettingsError(f"{label} {text}: no such day ({error})") from None
        if last < first:
            raise SettingsError(f"{label} {text}: the last day is before the first")
        return SideRequest(label, text, first=first, last=last)
    return SideRequest(label, text, path=find_readable(label, text, directory))


def refuse_same(a: SideRequest, b: SideRequest) -> None:
    """Refuse to compare an input with itself. Raises SettingsError."""
    if a.path is not None and b.path is not None:
        same = a.path == b.path or (
            os.path.exists(a.path)
            and os.path.realpath(a.path) == os.path.realpath(b.path)
        )
    else:
        same = (a.path, a.first, a.last, a.session) == (
            b.path,
            b.first,
            b.last,
            b.session,
        )
    if same:
        raise SettingsError(
            f"A and B are the same ({redact_text(b.text)}): give two different paths, days or sessions"
        )


# --- runs under paths -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LocatedRuns:
    """Runs under the path of one side, before measurement."""

    request: SideRequest
    runs: tuple[Run, ...]
    no_data: tuple[NoData, ...] = ()


def read_paths(
    requests: Sequence[SideRequest], settings: Settings, catalog: Catalog, now: datetime
) -> tuple[ComparedSide, ...]:
    """Read and measure the sides that are paths.

    Runs on both sides, and duplicates of a run of the other side, are excluded.
    Unmatched runs form a configuration, as for drafted baselines, if they have the same
    path pattern and state the same facts.
    """
    located = []
    for request in requests:
        ingested = ingest(
            settings.replace(logs=(request.path or Path(),)), catalog, now
        )
        catalog = add_tables(catalog, ingested.tables, settings)
        located.append(_LocatedRuns(request, *_label_runs(request.label, ingested)))
    located = _mark_duplicates(_drop_shared_logs(located), now)
    drafts = draft_baselines(
        [run for side in located for run in side.runs], settings, catalog
    )
    drafted = drafts.add_to(catalog)
    keys = _unify_single_logs(requests, drafts)
    return tuple(
        _measure_side(side, _identify(side.runs, drafts, keys), drafted, now)
        for side in located
    )


def _label_runs(
    label: str, ingested: IngestedRuns
) -> tuple[tuple[Run, ...], tuple[NoData, ...]]:
    """Prefix run ids with the label of their side: `A/x_1`."""
    runs = tuple(
        dataclasses.replace(
            run, found=dataclasses.replace(run.found, id=f"{label}/{run.id}")
        )
        for run in ingested.runs
    )
    unreadable = (
        NoData(label, file.id, "", file.reason, file.text, str(file.path))
        for file in ingested.unreadable
    )
    copies = (
        dataclasses.replace(
            _make_no_data(
                label, duplicate, Reason.COPIED, f"a copy of {label}/{original.id}"
            ),
            run=f"{label}/{duplicate.id}",
        )
        for duplicate, original in ingested.copies
    )
    # A side without runs lists the files it contains.
    others = () if runs else ingested.ignored[:MOST_OTHERS]
    steps = (
        NoData(label, file.name, "", Reason.NO_STEPS, file.reason) for file in others
    )
    return runs, (*unreadable, *copies, *steps)


def _drop_shared_logs(located: Sequence[_LocatedRuns]) -> list[_LocatedRuns]:
    """Exclude the runs under both paths, before drafts are made."""
    keys = [
        {key for run in side.runs for key in _list_run_keys(run)} for side in located
    ]
    shared = set.intersection(*keys) if len(keys) == len(LABELS) else set()
    kept = []
    for side in located:
        kept_runs = [run for run in side.runs if shared.isdisjoint(_list_run_keys(run))]
        excluded = [
            _make_no_data(side.request.label, run, Reason.COPIED, ON_BOTH_SIDES)
            for run in side.runs
            if run not in kept_runs
        ]
        kept.append(
            _LocatedRuns(side.request, tuple(kept_runs), (*side.no_data, *excluded))
        )
    return kept


def _list_run_keys(run: Run) -> set[object]:
    """Return the keys of a run: its log fingerprint, and its job with start."""
    fingerprint = (
        join_fingerprints([attempt.log.fingerprint for attempt in run.attempts])
        if count_steps(run)
        else ""
    )
    job = (run.found.job_id, run.started) if run.found.job_id and run.started else None
    return {key for key in (fingerprint, job) if key}


def _mark_duplicates(
    located: Sequence[_LocatedRuns], now: datetime
) -> list[_LocatedRuns]:
    """Mark runs that duplicate a run of either side."""
    marked, left_out = mark_duplicates(
        order_runs([run for side in located for run in side.runs], now)
    )
    # Take only `duplicate_of` from the common order, whose clock may be less accurate
    # than that of a single side.
    duplicates = {run.id: run.duplicate_of for run in marked}
    sides = []
    for side in located:
        label = side.request.label
        marked_runs = tuple(
            dataclasses.replace(run, duplicate_of=duplicates[run.id])
            for run in side.runs
            if run.id in duplicates
        )
        copies = (
            _make_no_data(label, duplicate, Reason.COPIED, f"a copy of {original.id}")
            for duplicate, original in left_out
            if duplicate.id.startswith(f"{label}/")
        )
        sides.append(_LocatedRuns(side.request, marked_runs, (*side.no_data, *copies)))
    return sides


def _unify_single_logs(
    requests: Sequence[SideRequest], drafts: Drafts
) -> dict[str, Identity]:
    """Give two single logs the same configuration if they state the same facts.

    Only if each side is a single file: the user has named these files, so their names
    need not distinguish configurations. Returns identities by run id.
    """
    files = [
        request.path
        for request in requests
        if request.path and os.path.isfile(request.path)
    ]
    if len(files) != len(LABELS) or len(drafts.drafts) != len(LABELS):
        return {}
    first, second = (draft for draft in drafts.drafts)
    if (
        len(first.runs) != 1
        or len(second.runs) != 1
        or first.baseline.match is None
        or second.baseline.match is None
    ):
        return {}
    run = second.runs[0]
    same_facts = (
        first.baseline.match.says == second.baseline.match.says
        and first.baseline.dialect == second.baseline.dialect
    )
    if not same_facts or not is_identifiable(
        collect_facts(run.found, [attempt.log for attempt in run.attempts])
    ):
        return {}
    return {run.id: Identity(first.baseline.key, "both logs state the same facts")}


def _identify(
    runs: Sequence[Run], drafts: Drafts, identity_by_run_id: Mapping[str, Identity]
) -> tuple[Run, ...]:
    """Identify runs; given identities take precedence."""
    identified = drafts.assign(runs)
    return tuple(
        dataclasses.replace(run, identity=identity_by_run_id[run.id])
        if run.id in identity_by_run_id
        else run
        for run in identified
    )


def _measure_side(
    side: _LocatedRuns, runs: Sequence[Run], catalog: Catalog, now: datetime
) -> ComparedSide:
    """Measure the runs of a side by configuration and window, and list unusable runs."""
    label = side.request.label
    counted: dict[tuple[str, Window], list[SideRun]] = defaultdict(list)
    no_data = list(side.no_data)
    for run in runs:
        key = run.identity.key
        if key is None:
            reason, texts = explain_unmatched(run)
            no_data.append(_make_no_data(label, run, reason, texts[0]))
            continue
        measurement = measure(run, catalog.baselines[key][0], now, step_time_only=True)
        problem = find_unusable(measurement)
        if problem is not None:
            no_data.append(
                _make_no_data(label, run, problem.reason, problem.text, key.id)
            )
        else:
            counted[key.id, measurement.baseline.window].append(
                _make_side_run(measurement)
            )
    return ComparedSide(
        label,
        side.request.text,
        {name: tuple(side_runs) for name, side_runs in counted.items()},
        tuple(no_data),
    )


def _make_no_data(
    label: str, run: Run, reason: Reason, text: str, configuration: str = ""
) -> NoData:
    """Build the record of a run that cannot be compared, with the reason."""
    log = run.attempts[-1].files.log if run.attempts else run.found.folder
    return NoData(
        label,
        run.id,
        configuration or (run.identity.key.id if run.identity.key else ""),
        reason,
        text,
        str(log),
    )


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
    yield from (
        (name, value)
        for name, value in facts.items()
        if name not in (STEPS, BATCH_OF_STEPS)
    )
    described = describe_run(run)
    if batch := described.get_text("global_batch_size", ""):
        yield str(StatedField.BATCH), batch
    layout = {
        name: size
        for name, size in dataclasses.asdict(described.parallelism).items()
        if size
    }
    if layout and StatedField.LAYOUT not in facts:
        yield (
            str(StatedField.LAYOUT),
            ", ".join(f"{name} {size}" for name, size in layout.items()),
        )


# --- runs of a history ----------------------------------------------------------------


def read_stored_side(request: SideRequest, history: StoreLocation) -> ComparedSide:
    """Read the stored runs of a side, with their last verdict per window."""
    from pytest_llmbench.history.queries import list_days, list_session

    if request.first is not None and request.last is not None:
        begin, end = (
            datetime(day.year, day.month, day.day, tzinfo=UTC)
            for day in (request.first, request.last)
        )
        last_moment = datetime.max.replace(tzinfo=UTC)  # there is no later day
        entries = list_days(
            history,
            begin,
            end + timedelta(days=1) if end.date() < date.max else last_moment,
        )
    else:
        entries = list_session(history, request.session)
    last: dict[tuple[object, ...], StoredEntry] = {}
    for entry in entries:
        if entry.verdict != "MISSING":
            last[entry.number, entry.first_step, entry.last_step, entry.statistic] = (
                entry
            )
    counted: dict[tuple[str, Window], list[SideRun]] = defaultdict(list)
    no_data = {}
    for entry in last.values():
        if entry.counts:
            window = Window(entry.first_step, entry.last_step, entry.statistic)
            counted[entry.configuration, window].append(
                _make_stored_side_run(request.label, entry)
            )
        else:
            no_data[entry.number] = _make_stored_no_data(request.label, entry)
    return ComparedSide(
        request.label,
        request.text,
        {name: tuple(side_runs) for name, side_runs in counted.items()},
        tuple(no_data.values()),
    )


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

    The history does not store whether the steps are moving means.
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

    decimals = max(
        (
            len(f"{value:.{MOST_DECIMALS}f}".rstrip("0").partition(".")[2])
            for value in steps
        ),
        default=0,
    )
    if len(steps) and decimals < MOST_DECIMALS:
        return 10.0 ** min(
            -decimals, math.floor(math.log10(float(steps.max()))) - FEWEST_DIGITS + 1
        )
    gaps = np.diff(np.unique(steps))
    return float(gaps.min()) if len(gaps) else 0.0


def _make_stored_no_data(label: str, entry: StoredEntry) -> NoData:
    reasons = {reason.value: reason for reason in Reason}
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
