"""Baselines of one's own: from the valid runs of a session to recorded baseline files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from pytest_llmbench import wording
from pytest_llmbench.batch import Batch, Result
from pytest_llmbench.errors import LogError
from pytest_llmbench.files import local
from pytest_llmbench.files.compressed import Stream
from pytest_llmbench.models import Baseline, Judgement, Key, Measurement, Outcome, Reason, Recording, Status, Verdict
from pytest_llmbench.robust import mean, trimmed_mean
from pytest_llmbench.settings import Settings
from pytest_llmbench.strays import unshadowed
from pytest_llmbench.tolerance import TIME, slot

LARGEST_SPREAD = 0.1
"""Runs further apart than this, or than what the baseline's file tolerates if that is more, are not of one state."""

CONTRADICTORY = (
    "not recorded: its runs differ by more than {:.3g} %; record those of one state (--llmb-since, --llmb-max-age)"
)

STALLED = "not recorded: a few slow steps take more than a fifth of a run's time; look at its log, record another run"


def record(
    batch: Batch, selected: Collection[str], settings: Settings, now: datetime
) -> tuple[tuple[Outcome, ...], tuple[Path, ...]]:
    """Write a recorded baseline for each selected item with valid runs to `settings.record`; judge nothing.

    Returns the outcomes and the files that were written. Items with a valid run are skipped, one whose newest run is
    invalid fails, and without any valid run all fail. Raises RecordError where the files cannot be written.
    """
    from pytest_llmbench.baseline.write import write_recorded

    if settings.record is None:
        raise ValueError("settings.record is not set")
    chosen = [unshadowed(batch.results[identifier], batch.strays, settings) for identifier in selected]
    sound = [result for result in chosen if not _is_invalid(result)]
    valid = {result.case.key: _recordable(batch, chosen, result.case.key, settings, now) for result in sound}
    refused = {key: why for key, runs in valid.items() if runs and (why := _refused(runs))}
    recorded = {
        key: (runs[0].baseline, recording_of(runs, now)) for key, runs in valid.items() if runs and key not in refused
    }
    written = write_recorded(settings.record, list(recorded.values()))
    changes = [change for _, changed in written for change in changed]
    nothing = "" if recorded else "nothing was recorded: no valid run was found"
    outcomes = []
    for result in chosen:
        context = refused.get(result.case.key, nothing)
        failed = bool(context) or _is_invalid(result)
        told = "" if failed or result.case.key not in recorded else _told(*recorded[result.case.key], changes)
        status = Status.FAILED if failed else Status.SKIPPED
        seconds = recorded[result.case.key][1].trimmed_mean_seconds if told else None
        judgement = _not_recorded(result.judgement, refused.get(result.case.key, ""))
        outcomes.append(Outcome(result.case, status, judgement, (), context, told, seconds))
    return tuple(outcomes), tuple(path for path, _ in written)


def _not_recorded(judgement: Judgement, why: str) -> Judgement:
    """Return a judgement that does not ask for what was just tried: to record the run."""
    if not why or judgement.reason is not Reason.NO_BASELINE:
        return judgement
    reason = judgement.reason if why == STALLED else Reason.REPEATS_DISAGREE
    return replace(judgement, reason=reason, text=judgement.text.partition("; ")[0])


def _is_invalid(result: Result) -> bool:
    """Whether the newest run is; without a baseline to compare it with it may be as good as any."""
    judgement = result.judgement
    return judgement.verdict is Verdict.INVALID and judgement.reason is not Reason.NO_BASELINE


def _refused(runs: Sequence[Measurement]) -> str:
    """Return why runs are the baseline of nothing; empty where they are."""
    from pytest_llmbench.judge.agreement import STALLS

    trimmed = [trimmed_mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    tolerated = (one.fraction for one in runs[0].baseline.tolerances if slot(one) == TIME)
    spread = max((LARGEST_SPREAD, *tolerated))
    if max(trimmed) > min(trimmed) * (1 + spread):
        return CONTRADICTORY.format(spread * 100)
    means = [mean(np.array(run.window_seconds), run.mean_of) for run in runs]
    stalled = any(whole > one * STALLS for whole, one in zip(means, trimmed, strict=True))
    return STALLED if stalled else ""


def _recordable(
    batch: Batch, chosen: Sequence[Result], key: Key, settings: Settings, now: datetime
) -> list[Measurement]:
    """Return the valid runs of a configuration that were selected and are not too old."""
    selected = {result.case.run_id for result in chosen if result.case.key == key}
    youngest = settings.max_age
    return [
        one
        for one in batch.measurements.get(key, ())
        if one.valid
        and ("" in selected or one.run.id in selected)
        and (youngest is None or (one.run.started is not None and now - one.run.started <= youngest))
    ]


def recording_of(runs: Sequence[Measurement], now: datetime) -> Recording:
    """Return what valid runs of one configuration measured: means over runs, and the spread within a run, pooled."""
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
    )


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
    replaced = next((f"; replaced {change}" for change in changes if change.startswith(f"{baseline.key.id}: ")), "")
    measured, mean = wording.seconds(recording.trimmed_mean_seconds), wording.seconds(recording.mean_seconds)
    return f"recorded {measured} (trimmed mean; the mean is {mean}) from {runs}, not judged{replaced}"
