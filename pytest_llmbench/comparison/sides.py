"""The two sides of a comparison: which runs lie under a path, or were kept of days or
of a session of a history."""

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

MOST_DECIMALS = 9  # a printed time has fewer
FEWEST_DIGITS = 3  # and no fewer digits than this

MOST_OTHERS = 5  # files of a side without a run that are told

_DAY = r"\d{4}-\d\d-\d\d"
_DAYS = re.compile(rf"({_DAY})(?:\.\.({_DAY}))?")
_SESSION = re.compile(r"\d{8}-\d{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class SideRequest:
    """What was given for a side: a path, the days of a history from one to another
    (both included), or a session."""

    label: str
    text: str
    path: Path | None = None
    first: date | None = None
    last: date | None = None
    session: str = ""


def parse_side(
    label: str, text: str, history: StoreLocation | None, directory: Path
) -> SideRequest:
    """Read what was given for a side; SettingsError for what is none.

    Days and the id of a session are those of the history, where there is one: a folder
    of such a name is `./NAME`.
    """
    from pytest_llmbench.core.userfile import is_there
    from pytest_llmbench.session.settings import find_readable

    days, is_session = _DAYS.fullmatch(text), _SESSION.fullmatch(text) is not None
    if (days or is_session) and history is None and not is_there(directory / text):
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
            raise SettingsError(
                f"{label} {text}: the last day lies before the first one"
            )
        return SideRequest(label, text, first=first, last=last)
    return SideRequest(label, text, path=find_readable(label, text, directory))


def refuse_same(a: SideRequest, b: SideRequest) -> None:
    """Refuse to compare a place with itself. Raises SettingsError."""
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
            f"A and B are the same ({redact_text(b.text)}): give two different places, days or sessions"
        )


# --- runs under paths -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LocatedRuns:
    """What lies under the path of a side: its runs, and what is no data before anything
    was measured."""

    request: SideRequest
    runs: tuple[Run, ...]
    no_data: tuple[NoData, ...] = ()


def read_paths(
    requests: Sequence[SideRequest], settings: Settings, catalog: Catalog, now: datetime
) -> tuple[ComparedSide, ...]:
    """Return the sides that are paths, with the runs under each measured.

    A run that lies on both sides, or is a copy of one of the other side, says nothing
    of a difference. Runs that match no baseline are of one configuration where drafts
    of baselines are: they lie at one place and say the same.
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
    """Return runs under names that are unique in both sides: `A/x_1`."""
    runs = tuple(
        dataclasses.replace(
            run, found=dataclasses.replace(run.found, id=f"{label}/{run.id}")
        )
        for run in ingested.runs
    )
    unreadable = (
        NoData(label, each.id, "", each.reason, each.text, str(each.path))
        for each in ingested.unreadable
    )
    copies = (
        dataclasses.replace(
            _make_no_data(
                label, copy, Reason.COPIED, f"a copy of {label}/{original.id}"
            ),
            run=f"{label}/{copy.id}",
        )
        for copy, original in ingested.copies
    )
    # A side without a run says what it has instead.
    others = () if runs else ingested.ignored[:MOST_OTHERS]
    steps = (
        NoData(label, each.name, "", Reason.NO_STEPS, each.reason) for each in others
    )
    return runs, (*unreadable, *copies, *steps)


def _drop_shared_logs(located: Sequence[_LocatedRuns]) -> list[_LocatedRuns]:
    """Drop the runs that lie under both paths, before drafts and copies are made of
    them."""
    marks = [
        {mark for run in side.runs for mark in _list_marks(run)} for side in located
    ]
    shared = set.intersection(*marks) if len(marks) == len(LABELS) else set()
    kept = []
    for side in located:
        own = [run for run in side.runs if shared.isdisjoint(_list_marks(run))]
        both = [
            _make_no_data(side.request.label, run, Reason.COPIED, ON_BOTH_SIDES)
            for run in side.runs
            if run not in own
        ]
        kept.append(_LocatedRuns(side.request, tuple(own), (*side.no_data, *both)))
    return kept


def _list_marks(run: Run) -> set[object]:
    """Return what tells a run from all others: its logs to the letter, and its job with
    its start."""
    logs = (
        join_fingerprints([attempt.log.fingerprint for attempt in run.attempts])
        if count_steps(run)
        else ""
    )
    job = (run.found.job_id, run.started) if run.found.job_id and run.started else None
    return {mark for mark in (logs, job) if mark}


def _mark_duplicates(
    located: Sequence[_LocatedRuns], now: datetime
) -> list[_LocatedRuns]:
    """Return sides whose runs know of which run of either side they are a copy."""
    marked, left_out = mark_duplicates(
        order_runs([run for side in located for run in side.runs], now)
    )
    # Ordered together runs are dated by one clock, which may be a worse one than that
    # of their own side.
    copy_of = {run.id: run.copy_of for run in marked}
    sides = []
    for side in located:
        label = side.request.label
        own = tuple(
            dataclasses.replace(run, copy_of=copy_of[run.id])
            for run in side.runs
            if run.id in copy_of
        )
        copies = (
            _make_no_data(label, copy, Reason.COPIED, f"a copy of {original.id}")
            for copy, original in left_out
            if copy.id.startswith(f"{label}/")
        )
        sides.append(_LocatedRuns(side.request, own, (*side.no_data, *copies)))
    return sides


def _unify_single_logs(
    requests: Sequence[SideRequest], drafts: Drafts
) -> dict[str, Identity]:
    """Return for runs, by their ids, the configuration of the run of the other side
    where both sides are one log each, which were named by who compares them: their
    names do not tell configurations apart if all that they say does."""
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
    alike = (
        first.baseline.match.says == second.baseline.match.says
        and first.baseline.dialect == second.baseline.dialect
    )
    if not alike or not is_identifiable(
        collect_facts(run.found, [attempt.log for attempt in run.attempts])
    ):
        return {}
    return {
        run.id: Identity(first.baseline.key, "both logs say the same of themselves")
    }


def _identify(
    runs: Sequence[Run], drafts: Drafts, keys: Mapping[str, Identity]
) -> tuple[Run, ...]:
    identified = drafts.identify(runs)
    return tuple(
        dataclasses.replace(run, identity=keys[run.id]) if run.id in keys else run
        for run in identified
    )


def _measure_side(
    side: _LocatedRuns, runs: Sequence[Run], catalog: Catalog, now: datetime
) -> ComparedSide:
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
        {name: tuple(of_one) for name, of_one in counted.items()},
        tuple(no_data),
    )


def _make_no_data(
    label: str, run: Run, reason: Reason, text: str, configuration: str = ""
) -> NoData:
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
    """Yield what log, metadata and names of a run say of it: batch, parallelism,
    overrides; the batch that its steps print rather than the one that is stated."""
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


def read_stored_side(request: SideRequest, place: StoreLocation) -> ComparedSide:
    """Return the runs of a side that a history keeps, each as it was judged last over
    each window."""
    from pytest_llmbench.history.queries import list_days, list_session

    if request.first is not None and request.last is not None:
        begin, end = (
            datetime(day.year, day.month, day.day, tzinfo=UTC)
            for day in (request.first, request.last)
        )
        last_moment = datetime.max.replace(tzinfo=UTC)  # no day follows that one
        entries = list_days(
            place,
            begin,
            end + timedelta(days=1) if end.date() < date.max else last_moment,
        )
    else:
        entries = list_session(place, request.session)
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
        {name: tuple(of_one) for name, of_one in counted.items()},
        tuple(no_data.values()),
    )


def _make_stored_side_run(label: str, entry: StoredEntry) -> SideRun:
    import numpy as np

    from pytest_llmbench.judge.estimate import bound_rounding

    window = Window(entry.first_step, entry.last_step, entry.statistic)
    seconds = entry.run_seconds or 0.0  # a number, since the run counts
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
    """Return the within-run error of a stored run; a store does not keep whether its
    steps are moving means."""
    from pytest_llmbench.judge.estimate import FEWEST_STEPS
    from pytest_llmbench.judge.noise import estimate_within_run

    if len(steps) < FEWEST_STEPS:
        return 0.0
    weights = entry.mean_of if len(entry.mean_of) == len(steps) else ()
    return estimate_within_run(steps, window.statistic, mean_of=weights).error


def _find_unit(steps: Floats) -> float:
    """Return a bound on the printed unit of stored step times, which a store does not
    keep.

    It is that of the most decimals that one of them has, or of three digits, which
    every dialect of ours prints (a zero at the end is not kept). Where decimals are
    many, as of a time that was made from a rate, no two times differ by less than a
    unit; equal ones of that kind tell none, and 0 is returned.
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
    """Return a name with the number by which `llmbench history show` knows the run."""
    return f"{label}/{entry.name} (run {entry.number})"
