"""Recording of baselines: from the valid runs of a session to baseline files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.baseline.write import find_recorded, lock_folder, write_recorded
from pytest_llmbench.core import formatting, tolerance
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Key,
    Recipe,
    Recording,
)
from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import ChangeKind, Judgement, LevelChange
from pytest_llmbench.core.outcome_records import (
    Caution,
    CautionCode,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.robust import compute_mean
from pytest_llmbench.core.run_records import (
    AcceptedRecording,
    Measurement,
    Note,
    RecordingRule,
)
from pytest_llmbench.core.tolerance import TIME, get_metric_name
from pytest_llmbench.judge.agreement import STALLS
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.recorded_runs import (
    ENOUGH_GROUPS,
    FEWEST_GROUPS,
    expect_noise,
    find_run_levels,
)
from pytest_llmbench.judge.shape import find_shape
from pytest_llmbench.report.wording import phrase, phrase_all
from pytest_llmbench.runs.measure.run_metrics import add_logged_work
from pytest_llmbench.session.catalog import (
    Catalog,
    select_drift_budget,
    select_tolerance,
)
from pytest_llmbench.session.outcomes import (
    SessionResults,
    invalidate_if_newer_unmatched,
)
from pytest_llmbench.session.recordings import make_recording, trim_windows
from pytest_llmbench.session.session_checks import FAILS
from pytest_llmbench.session.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.core.commands import Runner

# Runs that differ by more than this, or by more than the baseline file's larger
# tolerance, do not have the same state.
LARGEST_SPREAD = 0.1

CONTRADICTORY = "not recorded: its runs differ by more than {:.3g} % ({}); record only runs of one state (--llmb-since, --llmb-max-age)"

ACCEPT = "or record their mean with `accept: levels` in the file of --llmb-acknowledged"

CHANGED = "its runs are on several levels, {} since {}; use --llmb-since={} to record the last level ({}), {}"

TWO_LEVELS = "its runs are on two levels, {} at {} and {} at {} ({}; {}); record the runs of one level (--llmb-since, --llmb-max-age), {}"

STALLED = "not recorded: a few slow steps take more than a fifth of a run's time; inspect its log and record another run"

UNSETTLED = "not recorded: the step time of {} is not stable: {}; record runs with a stable window"

OF_SHAPES = (NoteCode.WARM_UP, NoteCode.DRIFT, NoteCode.TWO_LEVELS)
"""Notes on unusual steps in the window, added to recorded values."""

LOST_TIME = (
    NoteCode.WALL_CLOCK,
    NoteCode.SLOW_OUTSIDE_WINDOW,
    NoteCode.SLOW_OUTSIDE_UNCOMPARED,
)
"""Notes on lost time that is not part of the recorded step time.

Later runs may lose as much time without failing.
"""

USED = (
    "; the entry {!r} accepted an earlier value, or is older than the value that drift is "
    "counted from: add an entry for this value, with a `since`"
)

GIT_SECONDS = 5  # git answers immediately unless its file system hangs

Recorded = Mapping[Key, tuple[Baseline, Recording]]
"""The baseline and the new measurement of each recorded configuration."""

Refusal = tuple[Verdict, Reason, str]
"""Verdict, reason and text for a configuration whose valid runs are not recorded."""


@dataclass(frozen=True, slots=True)
class RecordedBaselines:
    """The outcomes and files of a recording session."""

    outcomes: tuple[Outcome, ...]
    files: tuple[Path, ...]
    cautions: tuple[Caution, ...]  # the accepted drift


def record(
    results: SessionResults,
    selected: Collection[str],
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    *,
    author: str,
    guarded: bool,
) -> RecordedBaselines:
    """Write recorded baselines for the selected items to `settings.record`.

    Items with a valid run are skipped. An item fails if its newest run is invalid, or
    if its value would move beyond the drift budget without an accepted reason. Without
    any valid run all items fail, unless a check reports this (`guarded`). `author` is
    stored in the files. `catalog` contains the waived rules and the files that the
    session read, because drift is also counted from values recorded elsewhere, and a
    file keeps the name of its recipe. Raises RecordError if the files cannot be
    written.
    """
    if settings.record is None:
        raise ValueError("settings.record is not set")
    chosen = [
        invalidate_if_newer_unmatched(
            results.configurations[identifier], results.unmatched, settings
        )
        for identifier in selected
    ]
    valid_results = [result for result in chosen if not _is_invalid(result)]
    valid = {
        key: runs
        for key in dict.fromkeys(result.case.key for result in valid_results)
        if (runs := _select_recordable(results, chosen, key, settings, now))
    }
    changes = {
        result.case.key: result.judgement.changes
        for result in valid_results
        if result.judgement.changes
    }
    nodes = _collect_nodes(valid_results)
    waived = [
        entry
        for entry in catalog.accepted_recordings
        if _is_in_force(entry, now.date())
    ]
    measured: dict[Key, tuple[Baseline, Recording]] = {}
    refused: dict[Key, Refusal] = {}
    for key, runs in valid.items():
        levels = _describe_levels(runs, changes.get(key, ()), settings)
        waiver = _find_waiver(key, RecordingRule.LEVELS, waived) if levels else None
        refusal = _refuse(runs, "" if waiver else levels, settings)
        if refusal:
            refused[key] = refusal
            continue
        reason = waiver.reason if waiver else ""
        recording = make_recording(runs, now, author, nodes, reason)
        measured[key] = (add_logged_work(runs[0]), recording)
    recipes = (*catalog.recipes, *results.drafted)
    written = _write_recorded(measured, settings.record, settings, recipes, waived)
    written = replace(written, refused={**refused, **written.refused})
    outcomes = tuple(
        _record(outcome, written, valid, settings)
        for outcome in _list_outcomes(chosen, written, guarded=guarded)
    )
    return RecordedBaselines(outcomes, written.files, written.cautions)


def _collect_nodes(
    results: Sequence[ConfigurationResult],
) -> dict[str, frozenset[str]]:
    """Return the nodes of each job by its id."""
    return {
        job.job_id: frozenset(job.nodes)
        for result in results
        for job in result.jobs
        if job.job_id
    }


def _list_outcomes(
    chosen: Sequence[ConfigurationResult],
    written: _WrittenBaselines,
    *,
    guarded: bool,
) -> list[Outcome]:
    """Return the outcome of each item.

    It fails if its newest run is invalid, if its value is refused, or (unless
    `guarded`) if nothing was recorded.
    """
    explanation = (
        ()
        if written.recorded or written.refused
        else ("nothing was recorded: no valid run was found",)
    )
    outcomes = []
    for result in chosen:
        refusal = written.refused.get(result.case.key)
        failed = refusal or (explanation and not guarded) or _is_invalid(result)
        judgement = _explain_not_recorded(result.judgement, refusal)
        outcomes.append(
            Outcome(
                ConfigurationResult(result.case, judgement, jobs=result.jobs),
                Status.FAILED if failed else Status.SKIPPED,
                context=() if refusal else explanation,
            )
        )
    return outcomes


def _record(
    outcome: Outcome,
    written: _WrittenBaselines,
    valid: Mapping[Key, Sequence[Measurement]],
    settings: Settings,
) -> Outcome:
    """Add the recorded value and the baseline folders for later sessions to an outcome."""
    key = outcome.case.key
    if outcome.failed or key not in written.recorded:
        return outcome
    baseline, recording = written.recorded[key]
    remarks = (
        *_list_remarks(baseline, recording, written.replaced.get(key, "")),
        *_note_shapes(valid[key]),
    )
    folders = (*settings.baselines, settings.record)
    notes = tuple(dict.fromkeys((*outcome.judgement.notes, *remarks)))
    judgement = replace(outcome.judgement, notes=notes)
    return replace(
        outcome,
        result=replace(outcome.result, judgement=judgement),
        recorded=_describe(recording, remarks),
        recorded_seconds=recording.trimmed_mean_seconds,
        baselines=tuple(dict.fromkeys(filter(None, folders))),
    )


@dataclass(frozen=True, slots=True)
class _WrittenBaselines:
    """The recorded and refused configurations, and the written files."""

    recorded: Recorded = field(default_factory=dict)
    refused: Mapping[Key, Refusal] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    files: tuple[Path, ...] = ()
    replaced: Mapping[Key, str] = field(default_factory=dict)  # the earlier value


def _write_recorded(
    measured: Recorded,
    directory: Path,
    settings: Settings,
    recipes: Collection[Recipe],
    waived: Sequence[AcceptedRecording],
) -> _WrittenBaselines:
    """Write the measured values that may be recorded."""
    if not measured:
        return _WrittenBaselines()
    with lock_folder(directory):
        baselines = [baseline for recipe in recipes for baseline in recipe.baselines]
        before = find_recorded(directory, measured, baselines)
        accepted = _accept(measured, before, settings, waived)
        written = write_recorded(directory, list(accepted.recorded.values()), recipes)
    replaced: dict[Key, str] = {}
    for _, of_file in written:
        replaced |= of_file
    files = tuple(path for path, _ in written)
    return replace(accepted, files=files, replaced=replaced)


def _accept(
    measured: Recorded,
    before: Mapping[Key, Baseline],
    settings: Settings,
    waived: Sequence[AcceptedRecording],
) -> _WrittenBaselines:
    """Separate the values that may be recorded from the refused ones.

    Accepted recordings include the values that they replace.
    """
    recorded: dict[Key, tuple[Baseline, Recording]] = {}
    refused: dict[Key, Refusal] = {}
    cautions = []
    for key, (baseline, recording) in measured.items():
        last = before.get(key)
        previous = last.recording if last else None
        budget = select_drift_budget(settings, last or baseline)
        refusal_text = tolerance.explain_refusal(recording, previous, budget)
        waiver = None
        if refusal_text and previous:
            unused = [entry for entry in waived if not is_used(entry, previous)]
            waiver = _find_waiver(key, RecordingRule.DRIFT, unused)
            if waiver is None:
                used = _find_waiver(key, RecordingRule.DRIFT, waived)
                more = USED.format(used.reason) if used else ""
                text = f"not recorded: {refusal_text}{more}"
                refused[key] = Verdict.REGRESSION, Reason.DRIFTED, text
                continue
            text = f"drift of {key.id} is accepted: {waiver.reason}"
            cautions.append(Caution(CautionCode.DRIFT_ACCEPTED, text))
        reason = waiver.reason if waiver else ""
        following = tolerance.follow_recording(recording, previous, budget, reason)
        recorded[key] = (baseline, following)
    return _WrittenBaselines(recorded, refused, tuple(cautions))


def _is_in_force(entry: AcceptedRecording, today: date) -> bool:
    return (entry.since is None or entry.since <= today) and today <= entry.expires


def is_used(entry: AcceptedRecording, previous: Recording) -> bool:
    """True if an entry was used for an earlier value, or is older than the drift
    reference."""
    # An entry accepts one move; a second move while the entry is valid is unreviewed
    # drift. Entries without `since` were written for an earlier version, and are used if
    # any value has their reason.
    since = entry.since.isoformat() if entry.since else ""
    if since and tolerance.find_reference(previous).date > since:
        return True
    return any(
        value.reason == entry.reason and value.date >= since
        for value in tolerance.list_accepted(previous)
    )


def _find_waiver(
    key: Key, rule: RecordingRule, waived: Sequence[AcceptedRecording]
) -> AcceptedRecording | None:
    """Return the first entry that waives a rule for a configuration."""
    for entry in waived:
        if entry.accepts is rule and fnmatchcase(key.id, entry.configuration):
            return entry
    return None


def _explain_not_recorded(judgement: Judgement, refusal: Refusal | None) -> Judgement:
    """Return a judgement that explains the refusal, if any."""
    # The verdict on the runs themselves is irrelevant while recording.
    if refusal is None:
        return judgement
    verdict, reason, text = refusal
    return replace(judgement, verdict=verdict, reason=reason, statements=(text,))


def _is_invalid(result: ConfigurationResult) -> bool:
    """True if the newest run is invalid.

    A run without a baseline is not invalid here.
    """
    # Without a baseline there is no evidence against the run.
    judgement = result.judgement
    return (
        judgement.verdict is Verdict.INVALID
        and judgement.reason is not Reason.NO_BASELINE
    )


def _refuse(
    runs: Sequence[Measurement], levels: str, settings: Settings
) -> Refusal | None:
    """Return the reason to refuse runs as a baseline, or None.

    `levels` describes levels that the user did not accept.
    """
    trimmed, spread = trim_windows(runs), _find_largest_spread(runs)
    if max(trimmed) > min(trimmed) * (1 + spread):
        return (
            Verdict.INVALID,
            Reason.REPEATS_DISAGREE,
            CONTRADICTORY.format(spread * 100, _format_range(trimmed)),
        )
    means = [compute_mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    if any(
        mean > trimmed_seconds * STALLS
        for mean, trimmed_seconds in zip(means, trimmed, strict=True)
    ):
        return Verdict.INVALID, Reason.FEW_STEPS_DECIDE, STALLED
    if unsettled := _find_unsettled(runs, settings):
        return unsettled
    if levels:
        return Verdict.INVALID, Reason.REPEATS_DISAGREE, f"not recorded: {levels}"
    return None


def _find_unsettled(runs: Sequence[Measurement], settings: Settings) -> Refusal | None:
    """Return a refusal if half of the runs warm up or drift within their window.

    Only changes larger than the tolerance count.
    """
    # Such a run would be INCONCLUSIVE, or its mean represents none of its steps.
    limit = select_tolerance(settings, runs[0].baseline).factor - 1
    # Periodically slow steps occur in every part of the window, and are no drift.
    shapes_by_run = ((run, find_shape(run)) for run in runs)
    shapes = [
        (run, shape)
        for run, shape in shapes_by_run
        if shape.kind is not ShapeKind.PERIODIC
    ]
    warming = [
        (run, (shape.warming_up,))
        for run, shape in shapes
        if shape.warming_up and shape.warm_up > limit
    ]
    drifting = [
        (run, shape.statements)
        for run, shape in shapes
        if shape.drift is not None and abs(shape.drift) > limit
    ]
    for reason, unsettled in (
        (Reason.WARMING_UP, warming),
        (Reason.CANNOT_TELL, drifting),
    ):
        if unsettled and 2 * len(unsettled) >= len(runs):
            run, statements = unsettled[0]
            return (
                Verdict.INVALID,
                reason,
                UNSETTLED.format(run.run.id, phrase_all(statements)),
            )
    return None


def _note_shapes(runs: Sequence[Measurement]) -> tuple[Note, ...]:
    """Return notes on unusual steps of the recorded runs, the first of each kind."""
    notes: dict[NoteCode, Note] = {}
    for run in runs:
        shape = find_shape(run)
        lost_time = (note for note in run.notes if note.code in LOST_TIME)
        for note in (*filter(None, [shape.warming_up]), *shape.notes, *lost_time):
            if note.code in (*OF_SHAPES, *LOST_TIME) and note.code not in notes:
                prefix = f"{run.run.id}: " if len(runs) > 1 else ""
                notes[note.code] = replace(note, statement=f"{prefix}{phrase(note)}")
    return tuple(notes.values())


def _describe_levels(
    runs: Sequence[Measurement], changes: Sequence[LevelChange], settings: Settings
) -> str:
    """Describe the levels of runs that are not on one level; "" otherwise."""
    # The mean would hide a regression as large as its distance from the better level.
    trimmed = trim_windows(runs)
    steps = [
        level
        for level in changes
        if level.kind is ChangeKind.STEP
        and abs(level.difference) >= FAILS
        and _is_between(level, runs)
    ]
    if steps:
        day = steps[-1].started.date()
        change = formatting.format_difference(1 + steps[-1].difference)
        return CHANGED.format(change, day, day, _format_range(trimmed), ACCEPT)
    noise = expect_noise(
        runs, settings.assumed_cv * _find_largest_spread(runs) / LARGEST_SPREAD
    )
    dated = [
        (run.started, seconds)
        for run, seconds in zip(runs, trimmed, strict=True)
        if run.started is not None
    ]
    in_time = [seconds for _, seconds in sorted(dated)]
    ordered = len(dated) == len(runs)
    levels = find_run_levels(in_time if ordered else trimmed, noise, ordered=ordered)
    if levels is None:
        return ""
    fast = formatting.format_seconds(levels.fast_seconds)
    slow = formatting.format_seconds(levels.slow_seconds)
    change = formatting.format_difference(levels.slow_seconds / levels.fast_seconds)
    return TWO_LEVELS.format(
        levels.fast_runs,
        fast,
        levels.slow_runs,
        slow,
        change,
        _format_range(trimmed),
        ACCEPT,
    )


def _find_largest_spread(runs: Sequence[Measurement]) -> float:
    tolerated = (
        tolerance.fraction
        for tolerance in runs[0].baseline.tolerances
        if get_metric_name(tolerance) == TIME
    )
    return max((LARGEST_SPREAD, *tolerated))


def _format_range(seconds: Sequence[float]) -> str:
    return f"{formatting.format_seconds(min(seconds))} to {formatting.format_seconds(max(seconds))}"


def _is_between(change: LevelChange, runs: Sequence[Measurement]) -> bool:
    """True if there are runs on both sides of a change."""
    # Their mean would not represent any of the runs.
    return (
        len({run.started >= change.started for run in runs if run.started is not None})
        > 1
    )


def _select_recordable(
    results: SessionResults,
    chosen: Sequence[ConfigurationResult],
    key: Key,
    settings: Settings,
    now: datetime,
) -> list[Measurement]:
    """Return the selected valid runs of a configuration that are not too old.

    If a launch made some of them, returns only those.
    """
    selected = {result.case.run_id for result in chosen if result.case.key == key}
    runs = results.measurements.get(key, ())
    youngest = settings.max_age
    return [
        run
        for run in [run for run in runs if run.run.found.launch] or runs
        if run.valid
        and ("" in selected or run.run.id in selected)
        and (
            youngest is None
            or (run.run.started is not None and now - run.run.started <= youngest)
        )
    ]


def _describe(recording: Recording, remarks: Sequence[Note]) -> str:
    """Return the line about a recorded value with all remarks."""
    runs = formatting.count_noun(recording.runs, "valid run")
    if recording.runs > 1:
        runs += f" ({_format_range(recording.run_seconds)})"
    measured = formatting.format_seconds(recording.trimmed_mean_seconds)
    mean = formatting.format_seconds(recording.mean_seconds)
    line = f"recorded {measured} (trimmed mean; the mean is {mean}) from {runs}, not judged"
    return phrase_all((line, *remarks))


def _list_remarks(
    baseline: Baseline, recording: Recording, replaced: str
) -> Iterator[Note]:
    """Yield notes on the replaced value, the published value and doubts."""
    if replaced:
        yield Note(
            NoteCode.RECORDED_REPLACED,
            f"replaced {replaced}{_describe_since_first(recording)}",
        )
    published = (
        baseline.step_seconds
        if baseline.kind is BaselineKind.PUBLISHED
        else baseline.published_seconds
    )
    if published:
        change = formatting.format_difference(
            recording.trimmed_mean_seconds / published
        )
        yield Note(
            NoteCode.RECORDED_AGAINST_PUBLISHED,
            f"{change} against the published {_describe_prints(baseline, published)} s",
        )
    if recording.levels:
        yield Note(
            NoteCode.RECORDED_LEVELS,
            f"on several levels ({_format_range(recording.run_seconds)}): {recording.levels}",
        )
    yield from _note_independence(recording)


def _describe_prints(baseline: Baseline, published: float) -> str:
    """Return a published step time with the digits of its document, if available."""
    return dict(baseline.cells).get("step_time") or f"{published:.10g}"


def _note_independence(recording: Recording) -> Iterator[Note]:
    """Yield a note on the number of independent runs."""
    # Runs of one day on one set of nodes count as one.

    groups = recording.groups or 1
    summary = f"k0 = {groups}: " + (
        f"{groups} days or sets of nodes"
        if groups > 1
        else "one day on one set of nodes"
    )
    if groups >= FEWEST_GROUPS:
        yield Note(NoteCode.RECORDED_GROUPS, summary)
        return
    recommended = f"record {ENOUGH_GROUPS} runs on {ENOUGH_GROUPS} days or sets of nodes, at least {FEWEST_GROUPS}"
    yield Note(NoteCode.RECORDED_FEW_GROUPS, f"{summary}; {recommended}")


def _describe_since_first(recording: Recording) -> str:
    """Return the change since the first value, with its accepted reason."""
    if not recording.earlier:
        return ""
    first = recording.earlier[0]
    reason = f"; accepted: {recording.reason}" if recording.reason else ""
    change = formatting.format_difference(
        recording.trimmed_mean_seconds / first.seconds
    )
    return f"; {change} since {formatting.format_seconds(first.seconds)} of {first.date}{reason}"


def find_author(
    directory: Path, environment: Mapping[str, str], host: str, run: Runner
) -> str:
    """Return `alice@example.com on login1`.

    Uses git's e-mail address for this folder, else the user name.
    """
    answer = run(
        ["git", "-C", str(directory), "config", "user.email"], timeout=GIT_SECONDS
    )
    email = answer.out.strip() if answer.code == 0 else ""
    names = (email, environment.get("USER", ""), environment.get("LOGNAME", ""))
    author = next((name.strip() for name in names if name.strip()), "somebody")
    return redact_text(formatting.escape(f"{author} on {host}" if host else author))
