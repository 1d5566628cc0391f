"""The order of the stages: ingest (discover, parse, identify), measure, judge; and what follows for the items."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytest_llmbench import wording
from pytest_llmbench.catalogue import Catalogue, is_required, tolerance_of
from pytest_llmbench.ingest import ingest
from pytest_llmbench.models import (
    JUDGED,
    Case,
    Evidence,
    Identity,
    Judgement,
    Key,
    Measurement,
    Outcome,
    Reason,
    Run,
    Status,
    Stray,
    Verdict,
)
from pytest_llmbench.settings import Settings


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
    found = ingest(settings, catalogue, now)
    since = settings.since
    current = [run for run in found.runs if since is None or run.started is None or run.started >= since]
    measured = _measured(current, catalogue, now)
    return Batch(
        results=_judged(measured, settings, catalogue, now),
        strays=(*_strays(current, settings, now), *found.unreadable),
        runs_found=len(found.runs),
        runs_before_since=len(found.runs) - len(current),
        ignored=found.ignored,
        measurements={key: measurements[0] for key, measurements in measured.items()},
    )


def settle(batch: Batch, selected: Collection[str], settings: Settings) -> tuple[Outcome, ...]:
    """Return what becomes of each selected item id; if none of them has a valid run, none of them is green."""
    from pytest_llmbench.judge.consequence import consequence

    found = [batch.results[identifier] for identifier in selected]
    judged = {result.case.key for result in found if result.judgement.verdict in JUDGED}
    chosen = [unshadowed(result, batch.strays, settings) for result in found]
    nothing = "" if judged else _nothing_judged(batch, len(chosen))
    outcomes = []
    for result in chosen:
        key = result.case.key
        required = is_required(key, settings.require) and key not in judged
        status = Status.FAILED if nothing else consequence(result.judgement, required=required)
        outcomes.append(Outcome(result.case, status, result.judgement, result.others, nothing))
    return tuple(outcomes)


def unshadowed(result: Result, strays: Sequence[Stray], settings: Settings) -> Result:
    """Return a result, INVALID where a newer run may be of its configuration: an older one must not stand for it."""
    measurement = result.judgement.measurement
    if measurement is None or result.case.run_id or settings.unmatched == "list":
        return result
    started = measurement.run.started
    for stray in strays:
        newer = stray.started is None or started is None or stray.started > started
        if newer and result.case.key in stray.candidates:
            text = f"a newer run may be of this configuration: {stray.id}: {stray.text}"
            invalid = dataclasses.replace(result.judgement, verdict=Verdict.INVALID, reason=Reason.AMBIGUOUS, text=text)
            return dataclasses.replace(result, judgement=invalid)
    return result


def _nothing_judged(batch: Batch, selected: int) -> str:
    """Say why nothing is green: which runs were found, and what would match them."""
    told = f"nothing was judged: no valid run of the {wording.counted(selected, 'selected configuration')}."
    if batch.runs_found and batch.runs_found == batch.runs_before_since:
        return f"{told} All of the {wording.counted(batch.runs_found, 'run')} started before --llmb-since."
    if not batch.runs_found:
        others = f", only {wording.counted(len(batch.ignored), 'other file')}" if batch.ignored else ""
        return f"{told} There is no training log (.out or .log) under the given paths{others}."
    found = [f"{stray.id} ({stray.text.partition('; ')[0]}{_near(stray)})" for stray in batch.strays]
    judgements = [result.judgement for result in batch.results.values()]
    found += [
        f"{one.measurement.run.id} ({one.baseline.key.id}: {one.verdict})" for one in judgements if one.measurement
    ]
    return f"{told} {wording.counted(batch.runs_found, 'run')} found: {wording.listed(found)}."


def _near(stray: Stray) -> str:
    """Return the nearest configuration, and the option that would match the run."""
    option = next((part for part in stray.text.split("; ")[1:] if "--llmb-" in part), "")
    near = f"nearest {stray.nearest[0].id}" if stray.nearest else ""
    return "".join(f"; {part}" for part in (near, option) if part)


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
    from pytest_llmbench.measure.metrics import metric
    from pytest_llmbench.measure.scaling import families, weak_scaling_efficiency

    newest = {key: next((one for one in of_key[0] if one.valid), None) for key, of_key in measured.items()}
    seconds = {key: one.statistic_seconds for key, one in newest.items() if one and one.statistic_seconds}
    scaled = dict(measured)
    for family in families([baselines[0].configuration for baselines in catalogue.baselines.values()]):
        for key, efficiency in weak_scaling_efficiency([member.key for member in family], seconds).items():
            scaling = metric("weak_scaling_efficiency", efficiency)
            first = tuple(
                dataclasses.replace(one, metrics=(*one.metrics, scaling)) if one is newest[key] else one
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


def _strays(runs: Sequence[Run], settings: Settings, now: datetime) -> Iterator[Stray]:
    known = {hash_ for run in runs if run.identity.key for hash_ in _hashes(run)}
    for run in runs:
        identity = run.identity
        old = settings.max_age is not None and run.started is not None and now - run.started > settings.max_age
        if identity.key is None and not old:
            reason = Reason.AMBIGUOUS if identity.candidates else Reason.UNMATCHED
            path: Path = run.attempts[-1].files.log if run.attempts else run.found.folder
            copied = bool(_hashes(run)) and _hashes(run) <= known
            serious = run.found.excluded is None and not copied and _nearly_identified(identity)
            candidates = identity.candidates if serious else ()
            yield Stray(run.id, reason, identity.because, path, candidates, identity.nearest, run.started)


def _hashes(run: Run) -> set[str]:
    """Return the hashes of a run's logs that hold steps: empty and unreadable logs are all alike."""
    return {attempt.log.sha256 for attempt in run.attempts if attempt.log.segments}


def _nearly_identified(identity: Identity) -> bool:
    """Whether a run is so nearly of one configuration that an older run must not stand for it.

    Its candidates differ in GPU type and release, which an option decides, or in what its sources contradict each other
    about. A log that could be almost anything puts nothing in doubt.
    """
    decided = {"gpu", "release", *identity.contradicted}
    fields = (field.name for field in dataclasses.fields(Key) if field.name not in decided)
    return all(len({getattr(key, name) for key in identity.candidates}) == 1 for name in fields)
