"""Cautions about missing or ignored runs; each caution names them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.outcome_records import (
    Caution,
    CautionCode,
    ConfigurationResult,
    Status,
)
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.session.outcomes import SessionResults

if TYPE_CHECKING:
    from pytest_llmbench.report.outcome_documents import ConfigurationOutcome
    from pytest_llmbench.session.settings import Settings

MOST_NAMES = 3
"""Maximum number of names in a line."""

SAME_DAY = timedelta(hours=12)
"""Runs within this time before the judged run count as runs of the same day."""


def list_absence_cautions(
    results: SessionResults, selected: Sequence[ConfigurationResult]
) -> Iterator[Caution]:
    """Yield cautions about missing, ignored and retried runs of the selected
    configurations."""
    yield from _caution_silent(results, selected)
    yield from _caution_not_judged(results, selected)
    yield from _caution_newer_stored(results, selected)
    yield from _caution_retried(results, selected)


def caution_without_verdict(
    outcomes: Sequence[ConfigurationOutcome], absences: Mapping[str, str]
) -> Iterator[Caution]:
    """Yield one caution that names the user's configurations without a verdict.

    `absences` maps the id of each configuration without a verdict to the reason.
    """
    user_ids = [outcome.id for outcome in outcomes if outcome.own]
    labels = [f"{name} ({absences[name]})" for name in user_ids if name in absences]
    if labels:
        text = f"no verdict on {formatting.join_first(labels, MOST_NAMES)}"
        yield Caution(
            CautionCode.WITHOUT_VERDICT,
            f"{text}, {len(labels)} of your {len(user_ids)} configurations",
        )


def _caution_silent(
    results: SessionResults, selected: Sequence[ConfigurationResult]
) -> Iterator[Caution]:
    """Yield one caution that names the judged configurations whose next run is overdue.

    A configuration is overdue if others of a similar rhythm ran in the meantime.
    """
    judged_keys = {
        result.case.key
        for result in selected
        if result.judgement.measurement is not None
    }
    judged_silences = [
        silence for silence in results.silences if silence.key in judged_keys
    ]
    if judged_silences:
        labels = [
            f"{silence.key.id} (last {silence.last:%Y-%m-%d})"
            for silence in judged_silences
        ]
        newest_start = max(silence.others for silence in judged_silences)
        text = f"no run of {formatting.join_first(labels, MOST_NAMES)}, although others ran on {newest_start:%Y-%m-%d}"
        yield Caution(CautionCode.SILENT, text)


def _caution_not_judged(
    results: SessionResults, selected: Sequence[ConfigurationResult]
) -> Iterator[Caution]:
    """Yield cautions about newer runs that a marker file excludes from the verdict, and
    about newer files that were not read."""
    names_by_reason: dict[str, list[str]] = {}
    for result in selected:
        runs = results.measurements.get(result.case.key, ())
        for run in _list_newer(result, runs):
            # A marker file lists the runs of an A/B test, which are not judged. Any job
            # may write such a file and list a regular job in it. Only the runs that this
            # session launched certainly belong to an A/B.
            if (
                run.excluded is not None
                and run.excluded.reason is Reason.VARIANT
                and not run.run.found.launch
            ):
                names_by_reason.setdefault(run.excluded.text, []).append(run.run.id)
    for text, names in names_by_reason.items():
        names_text = formatting.join_first(names, MOST_NAMES)
        yield Caution(
            CautionCode.NEWER_RUN,
            formatting.escape(f"newer, but not judged: {names_text}: {text}"),
        )
    if results.hidden:
        names_text = formatting.join_first(
            [f"{file.name} ({file.reason})" for file in results.hidden], MOST_NAMES
        )
        yield Caution(
            CautionCode.NEWER_RUN,
            formatting.escape(f"not read, possibly newer: {names_text}"),
        )


def select_citable(
    result: ConfigurationResult, runs: Sequence[Measurement]
) -> tuple[Measurement, ...]:
    """Return the runs of a configuration that cautions may name, in their order.

    These are the judged run, newer runs, and runs of the same day. `runs` are sorted,
    newest first. A session with thousands of older runs need not keep these.
    """
    judged_run = result.judgement.measurement
    kept = {run.run.id for run in _list_newer(result, runs)}
    if judged_run is not None:
        kept.add(judged_run.run.id)
        if judged_run.started is not None:
            same_day = _list_same_day_runs(judged_run, judged_run.started, runs)
            kept |= {run.run.id for run in same_day}
    return tuple([run for run in runs if run.run.id in kept])


def _list_newer(
    result: ConfigurationResult, runs: Sequence[Measurement]
) -> Iterator[Measurement]:
    """Yield the runs of a configuration that are newer than the judged run.

    Yields all runs if none was judged, or if the judgement is about an excluded run.
    """
    judged_run = result.judgement.measurement
    # The runs are sorted, newest first.
    for run in runs:
        if (
            judged_run is not None
            and run.run is judged_run.run
            and judged_run.excluded is None
        ):
            return
        yield run


def _caution_newer_stored(
    results: SessionResults, selected: Sequence[ConfigurationResult]
) -> Iterator[Caution]:
    """Yield one caution that names the newer runs that only the history contains,
    failed runs first."""
    keys = {result.case.key for result in selected}
    newer_runs = [
        (key, stored) for key, stored in results.newer_stored.items() if key in keys
    ]
    newer_runs.sort(key=lambda pair: pair[1].status == Status.PASSED)
    if newer_runs:
        runs = formatting.join_first(
            [f"{key.id} ({_describe_stored(stored)})" for key, stored in newer_runs],
            MOST_NAMES,
        )
        yield Caution(
            CautionCode.NEWER_RUN,
            formatting.escape(f"newer in the history, but not judged: {runs}"),
        )


def _describe_stored(stored: StoredRun) -> str:
    job = f"job {stored.job_id}" if stored.job_id else "run"
    return f"{job} of {stored.started:%Y-%m-%d %H:%M}, {stored.verdict}"


def _caution_retried(
    results: SessionResults, selected: Sequence[ConfigurationResult]
) -> Iterator[Caution]:
    """Yield a caution for each good run if most runs of the same day are bad.

    Runs of a launch are ignored: a launch reports its own retries.
    """
    for result in selected:
        judged_run = result.judgement.measurement
        is_good = result.judgement.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)
        if (
            is_good
            and judged_run is not None
            and judged_run.started is not None
            and not judged_run.run.found.launch
        ):
            same_day = [
                judged_run,
                *_list_same_day_runs(
                    judged_run,
                    judged_run.started,
                    results.measurements.get(result.case.key, ()),
                ),
            ]
            bad = [
                run.run.id
                for run in same_day
                if _is_bad(run, result.judgement.bound_seconds)
            ]
            if len(bad) > len(same_day) / 2:
                text = f"{result.case.id}: {len(bad)} of {len(same_day)} runs of a day are bad, but the last one is good"
                yield Caution(
                    CautionCode.RETRIED,
                    formatting.escape(
                        f"{text}: {formatting.join_first(bad, MOST_NAMES)}"
                    ),
                )


def _list_same_day_runs(
    judged: Measurement, started: datetime, runs: Collection[Measurement]
) -> Iterator[Measurement]:
    """Yield the other comparable runs that started within SAME_DAY before `started`."""
    for run in runs:
        is_comparable = run.run is not judged.run and run.excluded is None
        if (
            is_comparable
            and run.started is not None
            and timedelta(0) <= started - run.started < SAME_DAY
        ):
            yield run


def _is_bad(run: Measurement, bound: float) -> bool:
    """True if a run cannot be judged or its step time exceeds `bound`."""
    from pytest_llmbench.judge.run_selection import find_unusable

    return find_unusable(run) is not None or (run.statistic_seconds or 0.0) > bound


def advise_no_judged_run(
    results: SessionResults, settings: Settings, directory: Path
) -> str:
    """Advise what to do next if a session judged no run.

    The advice depends on whether no run was found, all runs are unmatched, or other
    runs were found.
    """
    from pytest_llmbench.report.advice import (
        FOUND,
        LOST,
        RECORD_OWN,
        make_record_command,
    )

    logs, baselines = (
        [formatting.format_path(path, directory) for path in paths]
        for paths in (settings.logs, settings.baselines)
    )
    if not results.runs_found:
        return LOST
    if results.runs_found == sum(
        run.reason is Reason.UNMATCHED for run in results.unmatched
    ):
        return RECORD_OWN.format(command=make_record_command(logs))
    return FOUND.format(
        baselines="".join(f" --baselines {folder}" for folder in baselines)
    )
