"""Baselines of one's own: from the valid runs of a session to recorded baseline files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pytest_llmbench import acceptance, wording
from pytest_llmbench.batch import Batch, Result
from pytest_llmbench.catalogue import drift_budget_of
from pytest_llmbench.errors import LogError
from pytest_llmbench.files import local
from pytest_llmbench.files.compressed import Stream
from pytest_llmbench.models import (
    Baseline,
    Change,
    Judgement,
    Key,
    Measurement,
    Outcome,
    Reason,
    Recording,
    Status,
    Verdict,
)
from pytest_llmbench.robust import mean, trimmed_mean
from pytest_llmbench.settings import Settings
from pytest_llmbench.strays import unshadowed
from pytest_llmbench.tolerance import TIME, slot
from pytest_llmbench.trends import FAILS

LARGEST_SPREAD = 0.1
"""Runs further apart than this, or than what the baseline's file tolerates if that is more, are not of one state."""

CONTRADICTORY = (
    "not recorded: its runs differ by more than {:.3g} %; record those of one state (--llmb-since, --llmb-max-age)"
)

LEVELS = "not recorded: its runs are of several levels, {} since {}; --llmb-since={} takes the last one"

STALLED = "not recorded: a few slow steps take more than a fifth of a run's time; look at its log, record another run"

_NOWHERE: Mapping[str, frozenset[str]] = MappingProxyType({})

Recorded = Mapping[Key, tuple[Baseline, Recording]]
"""What is written for each configuration: the baseline that it is measured like, and what was measured."""

Written = tuple[tuple[Path, tuple[str, ...]], ...]
"""The files that were written, each with a line for every configuration that it replaced."""

Refusal = tuple[Verdict, Reason, str]
"""What is said of a configuration whose valid runs are not recorded, in place of what judging them would say."""


def record(
    batch: Batch,
    selected: Collection[str],
    settings: Settings,
    now: datetime,
    author: str = "",
    *,
    known: Collection[Baseline] = (),
) -> tuple[tuple[Outcome, ...], tuple[Path, ...]]:
    """Write a recorded baseline for each selected item with valid runs to `settings.record`; judge nothing.

    Returns the outcomes and the files that were written. Items with a valid run are skipped, one whose newest run is
    invalid fails, and so does one that would move beyond the drift budget without a reason; without any valid run all
    fail. Raises RecordError where the files cannot be written. `author` is who records, `known` the baselines
    that the session read: one that was recorded elsewhere is the beginning of drift, too.
    """
    if settings.record is None:
        raise ValueError("settings.record is not set")
    chosen = [unshadowed(batch.results[identifier], batch.strays, settings) for identifier in selected]
    sound = [result for result in chosen if not _is_invalid(result)]
    valid = {result.case.key: _recordable(batch, chosen, result.case.key, settings, now) for result in sound}
    changes = {result.case.key: result.judgement.changes for result in sound if result.judgement.changes}
    refused = {key: why for key, runs in valid.items() if runs and (why := _refused(runs, changes.get(key, ())))}
    nodes = {job.job_id: frozenset(job.nodes) for result in sound for job in result.jobs if job.job_id}
    measured = {
        key: (runs[0].baseline, recording_of(runs, now, author, nodes))
        for key, runs in valid.items()
        if runs and key not in refused
    }
    recorded, drifted, written = _written(measured, settings.record, settings, known)
    refused |= drifted
    replaced = [change for _, changed in written for change in changed]
    nothing = "" if recorded or refused else "nothing was recorded: no valid run was found"
    outcomes = []
    for result in chosen:
        refusal = refused.get(result.case.key)
        context = "" if refusal else nothing
        failed = bool(nothing or refusal) or _is_invalid(result)
        told = "" if failed or result.case.key not in recorded else _told(*recorded[result.case.key], replaced)
        status = Status.FAILED if failed else Status.SKIPPED
        seconds = recorded[result.case.key][1].trimmed_mean_seconds if told else None
        judgement = _not_recorded(result.judgement, refusal)
        outcomes.append(Outcome(result.case, status, judgement, (), context, told, seconds))
    return tuple(outcomes), tuple(path for path, _ in written)


def _written(
    measured: Recorded, directory: Path, settings: Settings, known: Collection[Baseline]
) -> tuple[Recorded, dict[Key, Refusal], Written]:
    """Return what was recorded, why the rest may not be, and the files with what they replaced."""
    from pytest_llmbench.baseline.write import alone, recorded_before, write_recorded

    if not measured:
        return {}, {}, ()
    with alone(directory):
        before = recorded_before(directory, measured, known)
        recorded, refused = _accepted(measured, before, settings)
        return recorded, refused, write_recorded(directory, list(recorded.values()))


def _accepted(
    measured: Recorded, before: Mapping[Key, Baseline], settings: Settings
) -> tuple[Recorded, dict[Key, Refusal]]:
    """Return what may be recorded, with the values that it replaces, and why the rest may not."""
    accepted: dict[Key, tuple[Baseline, Recording]] = {}
    refused: dict[Key, Refusal] = {}
    for key, (baseline, recording) in measured.items():
        last = before.get(key)
        previous = last.recording if last else None
        budget = drift_budget_of(settings, last or baseline)
        why = "" if settings.accept_drift else acceptance.refused(recording, previous, budget)
        if why:
            refused[key] = Verdict.REGRESSION, Reason.DRIFTED, f"not recorded: {why}"
        else:
            following = acceptance.following(recording, previous, budget, settings.accept_drift)
            accepted[key] = (baseline, following)
    return accepted, refused


def _not_recorded(judgement: Judgement, refusal: Refusal | None) -> Judgement:
    """Return a judgement that says why nothing was recorded: what the runs would be judged as is not the point."""
    if refusal is None:
        return judgement
    verdict, reason, text = refusal
    return replace(judgement, verdict=verdict, reason=reason, text=text)


def _is_invalid(result: Result) -> bool:
    """Whether the newest run is; without a baseline to compare it with it may be as good as any."""
    judgement = result.judgement
    return judgement.verdict is Verdict.INVALID and judgement.reason is not Reason.NO_BASELINE


def _refused(runs: Sequence[Measurement], changes: Sequence[Change]) -> Refusal | None:
    """Return why runs are the baseline of nothing; None where they are that of something."""
    from pytest_llmbench.judge.agreement import STALLS

    trimmed = [trimmed_mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    tolerated = (one.fraction for one in runs[0].baseline.tolerances if slot(one) == TIME)
    spread = max((LARGEST_SPREAD, *tolerated))
    if max(trimmed) > min(trimmed) * (1 + spread):
        return Verdict.INVALID, Reason.REPEATS_DISAGREE, CONTRADICTORY.format(spread * 100)
    levels = [one for one in changes if one.kind == "step" and abs(one.difference) >= FAILS and _parts(one, runs)]
    if levels:
        day = levels[-1].started.date()
        text = LEVELS.format(wording.difference(1 + levels[-1].difference), day, day)
        return Verdict.INVALID, Reason.REPEATS_DISAGREE, text
    means = [mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    stalled = any(whole > one * STALLS for whole, one in zip(means, trimmed, strict=True))
    return (Verdict.INVALID, Reason.FEW_STEPS_DECIDE, STALLED) if stalled else None


def _parts(change: Change, runs: Sequence[Measurement]) -> bool:
    """Whether runs lie on both sides of a change: their mean is the level of none of them."""
    return len({one.started >= change.started for one in runs if one.started is not None}) > 1


def _recordable(
    batch: Batch, chosen: Sequence[Result], key: Key, settings: Settings, now: datetime
) -> list[Measurement]:
    """Return the valid runs of a configuration that were selected and are not too old; of a launch what it launched."""
    selected = {result.case.run_id for result in chosen if result.case.key == key}
    found = batch.measurements.get(key, ())
    youngest = settings.max_age
    return [
        one
        for one in [one for one in found if one.run.found.launch] or found
        if one.valid
        and ("" in selected or one.run.id in selected)
        and (youngest is None or (one.run.started is not None and now - one.run.started <= youngest))
    ]


def recording_of(
    runs: Sequence[Measurement], now: datetime, author: str = "", nodes: Mapping[str, frozenset[str]] = _NOWHERE
) -> Recording:
    """Return what valid runs of one configuration measured: means over runs, and the spread within a run, pooled.

    `nodes` are those of each job, by its id; of other runs nothing says where they ran.
    """
    from pytest_llmbench.judge.recordable import Occasion, count_groups

    windows = [np.array(run.window_seconds) for run in runs]
    steps = [run.mean_of for run in runs]
    trimmed = [trimmed_mean(*one) for one in zip(windows, steps, strict=True)]
    return Recording(
        date=now.date().isoformat(),
        runs=len(runs),
        mean_seconds=float(np.mean([mean(*one) for one in zip(windows, steps, strict=True)])),
        trimmed_mean_seconds=float(np.mean(trimmed)),
        standard_deviation_seconds=float(np.sqrt(np.mean([np.var(one, ddof=min(1, len(one) - 1)) for one in windows]))),
        run_seconds=tuple(trimmed),
        log_sha256=tuple(hash_ for run in runs if run.log and (hash_ := _hash(run.log))),
        newest_run=_newest(runs),
        by=author,
        environment=_environment(runs),
        groups=count_groups(Occasion(run.started, nodes.get(run.run.found.job_id, frozenset())) for run in runs),
    )


def _newest(runs: Sequence[Measurement]) -> str:
    """Return the day on which the newest run started, empty where one does not say when: it may be the newest."""
    started = [run.run.started.date().isoformat() if run.run.started else "" for run in runs]
    return max(started) if all(started) else ""


def _environment(runs: Sequence[Measurement]) -> tuple[tuple[str, str], ...]:
    """Return names and values of what all the runs ran in; what they differ in, or do not all say, is left out."""
    first, *others = ({name: wording.printable(value) for name, value in run.environment.items()} for run in runs)
    return tuple((name, value) for name, value in first.items() if all(one.get(name) == value for one in others))


def _hash(log: Path) -> str:
    """Return the hash of a log's text, empty where the log is no file of this machine any more, or in an archive."""
    digest = hashlib.sha256()
    try:
        for block in Stream(local.blocks(log), log):
            digest.update(block)
    except LogError:
        return ""
    return digest.hexdigest()


def _told(baseline: Baseline, recording: Recording, changes: Sequence[str]) -> str:
    runs = wording.counted(recording.runs, "valid run")
    if recording.runs > 1:
        runs += f" ({wording.seconds(min(recording.run_seconds))} to {wording.seconds(max(recording.run_seconds))})"
    whose = f"{baseline.key.id}: "
    replaced = next((f"; replaced {one.removeprefix(whose)}" for one in changes if one.startswith(whose)), "")
    measured, mean = wording.seconds(recording.trimmed_mean_seconds), wording.seconds(recording.mean_seconds)
    told = f"recorded {measured} (trimmed mean; the mean is {mean}) from {runs}, not judged{replaced}"
    return told + (_since_first(recording) if replaced else "")


def _since_first(recording: Recording) -> str:
    """Return how far a value is from the first one, and why it may be."""
    if not recording.earlier:
        return ""
    first, why = recording.earlier[0], f"; accepted: {recording.reason}" if recording.reason else ""
    change = wording.difference(recording.trimmed_mean_seconds / first.seconds)
    return f"; {change} since {wording.seconds(first.seconds)} of {first.date}{why}"
