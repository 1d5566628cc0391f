"""Recording of baselines: from the valid runs of a session to baseline files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

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
    VerdictStatement,
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

UNSTABLE = "not recorded: the step time of {} is not stable: {}; record runs with a stable window"

SHAPE_NOTES = (NoteCode.WARM_UP, NoteCode.DRIFT, NoteCode.TWO_LEVELS)
"""Notes on unusual steps in the window, added to recorded values."""

LOST_TIME_NOTES = (
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


class RecordedBaselines(Struct, frozen=True):
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
    stored in the files. `catalog` contains the rules that the user waived, and the
    baselines of all folders: drift is also counted from values in other folders, and a
    file that is written again keeps the name of its recipe. Raises RecordError if the
    files cannot be written.
    """
    if settings.record is None:
        raise ValueError("settings.record is not set")
    selected_results = [
        invalidate_if_newer_unmatched(
            results.configurations[identifier], results.unmatched, settings
        )
        for identifier in selected
    ]
    # Collect the runs to record, the changes and the nodes behind them.
    valid_results = [result for result in selected_results if not _is_invalid(result)]
    valid_runs: dict[Key, list[Measurement]] = {}
    for key in dict.fromkeys(result.case.key for result in valid_results):
        runs = _select_recordable(results, selected_results, key, settings, now)
        if runs:
            valid_runs[key] = runs
    changes = {
        result.case.key: result.judgement.changes
        for result in valid_results
        if result.judgement.changes
    }
    nodes = _collect_nodes(valid_results)
    # The entries of the file of --llmb-acknowledged that waive a rule today.
    waivers = [
        entry
        for entry in catalog.accepted_recordings
        if _is_in_force(entry, now.date())
    ]
    # Refuse runs that disagree or are unstable, and measure the others.
    measured: dict[Key, tuple[Baseline, Recording]] = {}
    refusals: dict[Key, Refusal] = {}
    for key, runs in valid_runs.items():
        levels = _describe_levels(runs, changes.get(key, ()), settings)
        waiver = _find_waiver(key, RecordingRule.LEVELS, waivers) if levels else None
        refusal = _find_refusal(runs, "" if waiver else levels, settings)
        if refusal:
            refusals[key] = refusal
            continue
        reason = waiver.reason if waiver else ""
        recording = make_recording(runs, now, author, nodes, reason)
        measured[key] = (add_logged_work(runs[0]), recording)
    # Write the measured values, unless they drifted.
    recipes = (*catalog.recipes, *results.drafted)
    written = _write_recorded(measured, settings.record, settings, recipes, waivers)
    written = replace(written, refused={**refusals, **written.refused})
    outcomes = tuple(
        _add_recording(outcome, written, valid_runs, settings)
        for outcome in _list_outcomes(selected_results, written, guarded=guarded)
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
    selected_results: Sequence[ConfigurationResult],
    written: _WrittenBaselines,
    *,
    guarded: bool,
) -> list[Outcome]:
    """Return the outcome of each item.

    An item fails if its newest run is invalid, if its value is refused, or (unless
    `guarded`) if no item has a valid run.
    """
    explanation: tuple[str, ...] = ()
    if not written.recorded and not written.refused:
        explanation = ("nothing was recorded: no valid run was found",)
    # A check fails in place of the items if `guarded`.
    all_fail = bool(explanation) and not guarded
    outcomes = []
    for result in selected_results:
        refusal = written.refused.get(result.case.key)
        failed = refusal is not None or all_fail or _is_invalid(result)
        judgement = _explain_not_recorded(result.judgement, refusal)
        outcomes.append(
            Outcome(
                ConfigurationResult(result.case, judgement, jobs=result.jobs),
                Status.FAILED if failed else Status.SKIPPED,
                context=() if refusal else explanation,
            )
        )
    return outcomes


def _add_recording(
    outcome: Outcome,
    written: _WrittenBaselines,
    valid_runs: Mapping[Key, Sequence[Measurement]],
    settings: Settings,
) -> Outcome:
    """Add the recorded value and the baseline folders for later sessions to an outcome.

    Returns an outcome without a recorded value unchanged.
    """
    key = outcome.case.key
    if outcome.failed or key not in written.recorded:
        return outcome
    baseline, recording = written.recorded[key]
    remarks = (
        *_list_remarks(baseline, recording, written.replaced.get(key, "")),
        *_note_shapes(valid_runs[key]),
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


class _WrittenBaselines(Struct, frozen=True):
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
    waivers: Sequence[AcceptedRecording],
) -> _WrittenBaselines:
    """Write the measured values that the drift budget allows.

    The result also contains the refused values. `waivers` are the entries in force.
    """
    if not measured:
        return _WrittenBaselines()
    with lock_folder(directory):
        baselines = [baseline for recipe in recipes for baseline in recipe.baselines]
        before = find_recorded(directory, measured, baselines)
        separated = _separate_by_drift(measured, before, settings, waivers)
        written_files = write_recorded(
            directory, list(separated.recorded.values()), recipes
        )
    replaced: dict[Key, str] = {}
    for _, replaced_in_file in written_files:
        replaced |= replaced_in_file
    files = tuple(path for path, _ in written_files)
    return replace(separated, files=files, replaced=replaced)


def _separate_by_drift(
    measured: Recorded,
    before: Mapping[Key, Baseline],
    settings: Settings,
    waivers: Sequence[AcceptedRecording],
) -> _WrittenBaselines:
    """Separate the values to record from the values that are refused.

    A value is recorded if it is within the drift budget, or if an entry of `waivers`
    accepts its drift. `before` contains the recorded baselines that the values replace.
    Each value to record gets the earlier values of its baseline.
    """
    recorded: dict[Key, tuple[Baseline, Recording]] = {}
    refusals: dict[Key, Refusal] = {}
    cautions = []
    for key, (baseline, recording) in measured.items():
        recorded_baseline = before.get(key)
        previous = recorded_baseline.recording if recorded_baseline else None
        budget = select_drift_budget(settings, recorded_baseline or baseline)
        refusal_text = tolerance.explain_refusal(recording, previous, budget)
        waiver = None
        if refusal_text and previous:
            # An entry accepts one move only: a used entry is mentioned, not applied.
            unused = [entry for entry in waivers if not is_used(entry, previous)]
            waiver = _find_waiver(key, RecordingRule.DRIFT, unused)
            if waiver is None:
                used_entry = _find_waiver(key, RecordingRule.DRIFT, waivers)
                remedy = USED.format(used_entry.reason) if used_entry else ""
                text = f"not recorded: {refusal_text}{remedy}"
                refusals[key] = Verdict.REGRESSION, Reason.DRIFTED, text
                continue
            text = f"drift of {key.id} is accepted: {waiver.reason}"
            cautions.append(Caution(CautionCode.DRIFT_ACCEPTED, text))
        reason = waiver.reason if waiver else ""
        with_earlier = tolerance.follow_recording(recording, previous, budget, reason)
        recorded[key] = (baseline, with_earlier)
    return _WrittenBaselines(recorded, refusals, tuple(cautions))


def _is_in_force(entry: AcceptedRecording, today: date) -> bool:
    """True from the day `since` of an entry until the day on which it expires."""
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
    key: Key, rule: RecordingRule, waivers: Sequence[AcceptedRecording]
) -> AcceptedRecording | None:
    """Return the first entry that waives a rule for a configuration."""
    for entry in waivers:
        if entry.accepts is rule and fnmatchcase(key.id, entry.configuration):
            return entry
    return None


def _explain_not_recorded(judgement: Judgement, refusal: Refusal | None) -> Judgement:
    """Replace the verdict by the refusal of the recording, if any.

    A session that records does not report the verdict on the runs.
    """
    if refusal is None:
        return judgement
    verdict, reason, text = refusal
    return replace(judgement, verdict=verdict, reason=reason, statements=(text,))


def _is_invalid(result: ConfigurationResult) -> bool:
    """True if the newest run is invalid for another reason than a missing baseline."""
    judgement = result.judgement
    return (
        judgement.verdict is Verdict.INVALID
        and judgement.reason is not Reason.NO_BASELINE
    )


def _find_refusal(
    runs: Sequence[Measurement], levels: str, settings: Settings
) -> Refusal | None:
    """Return the reason to refuse runs as a baseline, or None.

    `levels` describes levels that the user did not accept.
    """
    trimmed_means = trim_windows(runs)
    allowed_spread = _get_allowed_spread(runs)
    if max(trimmed_means) > min(trimmed_means) * (1 + allowed_spread):
        return (
            Verdict.INVALID,
            Reason.REPEATS_DISAGREE,
            CONTRADICTORY.format(allowed_spread * 100, _format_range(trimmed_means)),
        )
    means = [compute_mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    # A few very slow steps raise the mean, but not the trimmed mean.
    if any(
        mean > trimmed_seconds * STALLS
        for mean, trimmed_seconds in zip(means, trimmed_means, strict=True)
    ):
        return Verdict.INVALID, Reason.FEW_STEPS_DECIDE, STALLED
    unstable = _find_unstable(runs, settings)
    if unstable:
        return unstable
    if levels:
        return Verdict.INVALID, Reason.REPEATS_DISAGREE, f"not recorded: {levels}"
    return None


def _find_unstable(runs: Sequence[Measurement], settings: Settings) -> Refusal | None:
    """Return a refusal if at least half of the runs warm up or drift in their window.

    Only changes larger than the tolerance count. Such a run would be INCONCLUSIVE, or
    its mean would represent none of its steps. Periodically slow steps occur in every
    part of the window, and are no drift.
    """
    limit = select_tolerance(settings, runs[0].baseline).factor - 1
    warming_runs: list[tuple[Measurement, Sequence[VerdictStatement]]] = []
    drifting_runs: list[tuple[Measurement, Sequence[VerdictStatement]]] = []
    for run in runs:
        shape = find_shape(run)
        if shape.kind is ShapeKind.PERIODIC:
            continue
        if shape.warming_up and shape.warm_up > limit:
            warming_runs.append((run, (shape.warming_up,)))
        if shape.drift is not None and abs(shape.drift) > limit:
            drifting_runs.append((run, shape.statements))
    for reason, unstable_runs in (
        (Reason.WARMING_UP, warming_runs),
        (Reason.CANNOT_TELL, drifting_runs),
    ):
        if unstable_runs and 2 * len(unstable_runs) >= len(runs):
            run, statements = unstable_runs[0]
            text = UNSTABLE.format(run.run.id, phrase_all(statements))
            return Verdict.INVALID, reason, text
    return None


def _note_shapes(runs: Sequence[Measurement]) -> tuple[Note, ...]:
    """Return notes on unusual steps of the recorded runs, the first of each kind."""
    notes: dict[NoteCode, Note] = {}
    for run in runs:
        shape = find_shape(run)
        warm_up = [shape.warming_up] if shape.warming_up else []
        lost_time = [note for note in run.notes if note.code in LOST_TIME_NOTES]
        prefix = f"{run.run.id}: " if len(runs) > 1 else ""
        for note in (*warm_up, *shape.notes, *lost_time):
            if note.code in (*SHAPE_NOTES, *LOST_TIME_NOTES) and note.code not in notes:
                notes[note.code] = replace(note, statement=f"{prefix}{phrase(note)}")
    return tuple(notes.values())


def _describe_levels(
    runs: Sequence[Measurement], changes: Sequence[LevelChange], settings: Settings
) -> str:
    """Describe the levels of runs that are not on one level; "" otherwise.

    The mean of two levels would hide a regression as large as its distance from the
    faster level. `changes` are the level shifts that the trend found over the days.
    """
    trimmed_means = trim_windows(runs)
    # Levels between days: a shift of the daily runs that lies between two of the runs.
    shifts = [
        shift
        for shift in changes
        if shift.kind is ChangeKind.STEP
        and abs(shift.difference) >= FAILS
        and _is_between(shift, runs)
    ]
    if shifts:
        last_shift = shifts[-1]
        day = last_shift.started.date()
        change = formatting.format_fraction(last_shift.difference)
        return CHANGED.format(change, day, day, _format_range(trimmed_means), ACCEPT)
    # Levels among the runs themselves, in the order of their starts if all are known. A
    # baseline file with a larger tolerance allows proportionally more noise.
    noise = expect_noise(
        runs, settings.assumed_cv * _get_allowed_spread(runs) / LARGEST_SPREAD
    )
    dated_seconds = [
        (run.started, seconds)
        for run, seconds in zip(runs, trimmed_means, strict=True)
        if run.started is not None
    ]
    if len(dated_seconds) == len(runs):
        by_start = [seconds for _, seconds in sorted(dated_seconds)]
        levels = find_run_levels(by_start, noise, ordered=True)
    else:
        levels = find_run_levels(trimmed_means, noise, ordered=False)
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
        _format_range(trimmed_means),
        ACCEPT,
    )


def _get_allowed_spread(runs: Sequence[Measurement]) -> float:
    """Return the difference of runs that is allowed, as a fraction of the fastest.

    This is LARGEST_SPREAD, or a larger tolerance of the baseline file.
    """
    tolerated = (
        tolerance.fraction
        for tolerance in runs[0].baseline.tolerances
        if get_metric_name(tolerance) == TIME
    )
    return max((LARGEST_SPREAD, *tolerated))


def _format_range(seconds: Sequence[float]) -> str:
    return f"{formatting.format_seconds(min(seconds))} to {formatting.format_seconds(max(seconds))}"


def _is_between(change: LevelChange, runs: Sequence[Measurement]) -> bool:
    """True if runs started both before and after a change."""
    starts = [run.started for run in runs if run.started is not None]
    return any(start < change.started for start in starts) and any(
        start >= change.started for start in starts
    )


def _select_recordable(
    results: SessionResults,
    selected_results: Sequence[ConfigurationResult],
    key: Key,
    settings: Settings,
    now: datetime,
) -> list[Measurement]:
    """Return the selected valid runs of a configuration that are not too old.

    If a launch made some of them, returns only those.
    """
    selected_ids = {
        result.case.run_id for result in selected_results if result.case.key == key
    }
    is_any_selected = "" in selected_ids  # the item of the configuration: every run
    runs = results.measurements.get(key, ())
    launched_runs = [run for run in runs if run.run.found.launch]

    def is_recent(started: datetime | None) -> bool:
        if settings.max_age is None:
            return True
        return started is not None and now - started <= settings.max_age

    return [
        run
        for run in launched_runs or runs
        if run.valid
        and (is_any_selected or run.run.id in selected_ids)
        and is_recent(run.run.started)
    ]


def _describe(recording: Recording, remarks: Sequence[Note]) -> str:
    """Return the line about a recorded value with all remarks."""
    runs_text = formatting.count_noun(recording.runs, "valid run")
    if recording.runs > 1:
        runs_text += f" ({_format_range(recording.run_seconds)})"
    measured = formatting.format_seconds(recording.trimmed_mean_seconds)
    mean = formatting.format_seconds(recording.mean_seconds)
    line = f"recorded {measured} (trimmed mean; the mean is {mean}) from {runs_text}, not judged"
    return phrase_all((line, *remarks))


def _list_remarks(
    baseline: Baseline, recording: Recording, replaced: str
) -> Iterator[Note]:
    """Yield notes on a recorded value.

    They compare it with the replaced and the published value, and report several levels
    and the number of independent runs.
    """
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
    """Yield a note on the number of independent runs.

    Runs of one day on one set of nodes count as one.
    """
    groups = recording.groups or 1
    if groups > 1:
        summary = f"k0 = {groups}: {groups} days or sets of nodes"
    else:
        summary = f"k0 = {groups}: one day on one set of nodes"
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
