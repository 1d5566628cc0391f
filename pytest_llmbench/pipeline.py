"""The order of the stages: discover, parse, identify, measure, judge. The only module that knows all of them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmbench import wording
from pytest_llmbench.catalogue import Catalogue, is_required, tolerance_of
from pytest_llmbench.errors import LogError
from pytest_llmbench.models import (
    Attempt,
    AttemptFiles,
    Baseline,
    Case,
    Ending,
    Evidence,
    FoundRun,
    Judgement,
    Key,
    Measurement,
    Metric,
    Outcome,
    ParsedLog,
    Reason,
    Run,
    Status,
    Stray,
)
from pytest_llmbench.settings import Settings

UNREADABLE = "unreadable"
"""The code of the ending of a log that could not be opened."""


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict that decides an item, and the verdicts against further baselines."""

    case: Case
    judgement: Judgement
    others: tuple[Judgement, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one session found and judged, before it is known which items were selected.

    `results` is by item id. `measurements` holds, newest first, every run of a configuration against the baseline that
    decides; it stays with the process that read the logs.
    """

    results: Mapping[str, Result]
    strays: tuple[Stray, ...]
    runs_found: int
    runs_before_since: int
    ignored: tuple[str, ...]
    measurements: Mapping[Key, tuple[Measurement, ...]]


def gather(settings: Settings, catalogue: Catalogue, now: datetime) -> Batch:
    """Discover, read and judge everything under the given paths."""
    runs, unreadable, ignored = read_runs(settings, catalogue)
    current = [run for run in runs if settings.since is None or (run.started and run.started >= settings.since)]
    measured = _measured(current, catalogue, now)
    return Batch(
        results=_judged(measured, settings, catalogue, now),
        strays=(*_strays(current), *unreadable),
        runs_found=len(runs),
        runs_before_since=len(runs) - len(current),
        ignored=ignored,
        measurements={key: measurements[0] for key, measurements in measured.items()},
    )


def read_runs(settings: Settings, catalogue: Catalogue) -> tuple[tuple[Run, ...], tuple[Stray, ...], tuple[str, ...]]:
    """Return the runs under the given paths, newest first, what could not be read, and what is no run, with reasons."""
    from pytest_llmbench.discover.find import find_runs

    discovery = find_runs(settings.logs)
    ignored = [f"{path.name}: {why}" for path, why in discovery.ignored]
    runs = []
    for found in discovery.runs:
        attempts = tuple(Attempt(files, _parsed(files)) for files in found.attempts)
        if _is_run(found, attempts):
            runs.append(_identified(found, attempts, settings, catalogue))
        else:
            ignored.append(f"{found.id}: no training step in it, and no benchmark's name")
    runs.sort(key=_recency, reverse=True)
    unreadable = (Stray(f"unreadable-{path.name}", Reason.UNREADABLE, why, path) for path, why in discovery.unreadable)
    return tuple(runs), tuple(unreadable), tuple(ignored)


def settle(batch: Batch, selected: Collection[str], settings: Settings) -> tuple[Outcome, ...]:
    """Return what becomes of each selected item id; if none of them has a valid run, none of them is green."""
    from pytest_llmbench.judge.consequence import JUDGED, consequence

    chosen = [batch.results[identifier] for identifier in selected]
    context = ""
    if all(result.judgement.verdict not in JUDGED for result in chosen):
        context = _nothing_judged(batch, len(chosen))
    outcomes = []
    for result in chosen:
        required = is_required(result.case.key, settings.require)
        status = Status.FAILED if context else consequence(result.judgement, required=required)
        outcomes.append(Outcome(result.case, status, result.judgement, result.others, context))
    return tuple(outcomes)


def _nothing_judged(batch: Batch, selected: int) -> str:
    """Say why nothing is green: which runs were found, and what would match them."""
    told = f"nothing was judged: no valid run for any of the {wording.counted(selected, 'selected configuration')}."
    if not batch.runs_found:
        others = wording.counted(len(batch.ignored), "other file")
        return f"{told} No training run was found under the given paths ({others})."
    found = [stray.id for stray in batch.strays]
    found += [result.judgement.measurement.run.id for result in batch.results.values() if result.judgement.measurement]
    return f"{told} {wording.counted(batch.runs_found, 'run')} found: {wording.listed(found)}."


def _parsed(files: AttemptFiles) -> ParsedLog:
    from pytest_llmbench.parse.read import read_ending, read_log

    try:
        log = read_log(files.log)
        ending = read_ending(files.err) if files.err and log.ending is None else None
    except LogError as error:
        return ParsedLog(dialect=None, segments=(), ending=Ending(UNREADABLE, str(error), 0))
    if ending is None or files.err is None:
        return log
    told = dataclasses.replace(ending, text=f"{ending.text} ({files.err.name}:{ending.line})", line=0)
    return dataclasses.replace(log, ending=told)


def _is_run(found: FoundRun, attempts: Sequence[Attempt]) -> bool:
    """Whether files are a training run: they hold steps, could not be read, or names and metadata say so."""
    named = {"recipe", "size"} <= {clue.field for clue in found.clues}
    logs = [attempt.log for attempt in attempts]
    return named or any(log.segments or (log.ending and log.ending.code == UNREADABLE) for log in logs)


def _identified(found: FoundRun, attempts: tuple[Attempt, ...], settings: Settings, catalogue: Catalogue) -> Run:
    from pytest_llmbench.discover.identify import identify
    from pytest_llmbench.measure.derive import tflops_per_gpu

    def expected_tflops(baseline: Baseline, step_seconds: float) -> float:
        return tflops_per_gpu(baseline.configuration, step_seconds) * (baseline.logged_tflops_factor or 1.0)

    logs = [attempt.log for attempt in attempts]
    identity = identify(
        found,
        logs,
        catalogue.recipes,
        release=settings.release,
        gpu=settings.gpu,
        baseline_release=settings.baseline_release,
        expected_tflops=expected_tflops,
    )
    return Run(found, attempts, identity, *_start(found, logs))


def _start(found: FoundRun, logs: Sequence[ParsedLog]) -> tuple[datetime | None, str]:
    """Return when a run started and what says so: metadata or a name, else the log, the time of the file last."""
    if found.started is not None:
        return found.started, found.started_from
    logged = next((log.started for log in logs if log.started is not None), None)
    if logged is not None:
        return logged.astimezone(UTC), "the log's first time stamp"
    return found.modified, "the time of the file"


def _recency(run: Run) -> tuple[datetime, str]:
    return run.started or datetime.min.replace(tzinfo=UTC), run.id


def _measured(
    runs: Sequence[Run], catalogue: Catalogue, now: datetime
) -> dict[Key, tuple[tuple[Measurement, ...], ...]]:
    """Return for each key and each of its baselines the measurements of its runs, newest first."""
    from pytest_llmbench.measure.measurement import measure

    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        if run.identity.key is not None:
            by_key[run.identity.key].append(run)
    measured = {
        key: tuple(tuple(measure(run, baseline, now) for run in by_key[key]) for baseline in baselines)
        for key, baselines in catalogue.baselines.items()
    }
    return _with_scaling(measured, catalogue)


def _with_scaling(
    measured: dict[Key, tuple[tuple[Measurement, ...], ...]], catalogue: Catalogue
) -> dict[Key, tuple[tuple[Measurement, ...], ...]]:
    """Add the weak-scaling efficiency to the newest valid run of each member of a family."""
    from pytest_llmbench.measure.scaling import families, weak_scaling_efficiency

    newest = {key: next((one for one in of_key[0] if one.valid), None) for key, of_key in measured.items()}
    seconds = {key: one.statistic_seconds for key, one in newest.items() if one and one.statistic_seconds}
    scaled = dict(measured)
    for family in families([baselines[0].configuration for baselines in catalogue.baselines.values()]):
        for key, efficiency in weak_scaling_efficiency([member.key for member in family], seconds).items():
            metric = Metric("weak_scaling_efficiency", efficiency)
            first = tuple(
                dataclasses.replace(one, metrics=(*one.metrics, metric)) if one is newest[key] else one
                for one in measured[key][0]
            )
            scaled[key] = (first, *measured[key][1:])
    return scaled


def _judged(
    measured: Mapping[Key, tuple[tuple[Measurement, ...], ...]], settings: Settings, catalogue: Catalogue, now: datetime
) -> dict[str, Result]:
    from pytest_llmbench.judge.consequence import worst
    from pytest_llmbench.judge.decide import judge, judge_alone

    results = {}
    for key, of_key in measured.items():
        for case, chosen in _cases(key, of_key, settings.runs):
            decide = judge_alone if case.run_id else judge
            verdicts = [
                decide(Evidence(baseline, measurements, tolerance_of(settings, baseline), now, settings.max_age))
                for baseline, measurements in zip(catalogue.baselines[key], chosen, strict=True)
            ]
            results[case.id] = Result(case, *worst(verdicts))
    return results


def _cases(
    key: Key, of_key: tuple[tuple[Measurement, ...], ...], runs: str
) -> Iterator[tuple[Case, tuple[tuple[Measurement, ...], ...]]]:
    """Yield one item a configuration, or one a run with what that run measured against each baseline."""
    if runs == "newest" or not of_key[0]:
        yield Case(key.id, key), of_key
        return
    labels = [one.run.found.job_id or "run" for one in of_key[0]]
    for position, label in enumerate(labels):
        unique = label if labels.count(label) == 1 else f"{label}-{position + 1}"
        run_id = of_key[0][position].run.id
        yield Case(f"{key.id}-{unique}", key, run_id), tuple((measurements[position],) for measurements in of_key)


def _strays(runs: Sequence[Run]) -> Iterator[Stray]:
    for run in runs:
        if run.identity.key is None:
            reason = Reason.AMBIGUOUS if run.identity.candidates else Reason.UNMATCHED
            path: Path = run.attempts[-1].files.log if run.attempts else run.found.folder
            yield Stray(run.id, reason, run.identity.because, path)
