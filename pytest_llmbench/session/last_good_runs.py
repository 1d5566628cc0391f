"""The last good run of each red result: which run is green under the settings of this
session, and its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pytest_llmbench.core.baseline_records import Key, Window
from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.judgement_records import Evidence, Look, PreviousRun
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.run_records import Measurement, StoredDetails, StoredRun
from pytest_llmbench.judge.last_good import add_stored, find_last_good
from pytest_llmbench.judge.run_selection import list_valid_runs
from pytest_llmbench.session.outcomes import (
    ConfigurationResult,
    JudgedConfigurations,
    SessionResults,
    decide_item_status,
    judge_evidence,
)
from pytest_llmbench.session.settings import Settings

# Verdicts that may be green; NOT_ASSERTED and TEST_FAILED are those of a user's own
# test.
GREEN = (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE)
ABSENT = (Verdict.MISSING, Verdict.NOT_COMPARABLE)


def with_last_good(
    judged: JudgedConfigurations,
    settings: Settings,
    past: Mapping[Key, Sequence[StoredRun]],
) -> JudgedConfigurations:
    """Return the results, the red ones with the last good run that is known."""

    def add_last_good(
        result: ConfigurationResult, of_baselines: tuple[Evidence, ...]
    ) -> ConfigurationResult:
        judgement = result.judgement
        red = (
            decide_item_status(judgement, required=True, settings=settings)
            is Status.FAILED
        )
        if not red or judgement.verdict in ABSENT:
            return result
        evidence = result.pick_deciding(of_baselines)
        stored = past.get(result.case.key, ())
        last = find_last_good(
            judgement,
            evidence,
            lambda run: _find_green(run, evidence, settings, stored),
        )
        return replace(result, judgement=replace(judgement, last_good=last))

    return judged.map(add_last_good)


def _find_green(
    run: PreviousRun, evidence: Evidence, settings: Settings, past: Sequence[StoredRun]
) -> str:
    """Return the verdict of a run that is green, empty for any other.

    Of a run in the folder that is what would have been said of it with the runs before
    it, and what was said of it where the history knows that: both have to be green.
    """
    if isinstance(run, StoredRun):
        return run.verdict if _was_green(run) else ""
    marks = run.run.same_run_keys
    same = [
        stored
        for stored in past
        if stored.window == run.baseline.window and _is_same(stored, marks)
    ]
    if not all(map(_was_green, same)):
        return ""
    judgement = judge_evidence(_take_back(evidence, run), settings, alone=True)
    green = (
        decide_item_status(judgement, required=True, settings=settings) is Status.PASSED
    )
    return str(judgement.verdict) if green else ""


def _is_same(stored: StoredRun, marks: frozenset[tuple[str, str | datetime]]) -> bool:
    return not marks.isdisjoint(
        ((stored.job_id, stored.logs), (stored.job_id, stored.started))
    )


def _was_green(stored: StoredRun) -> bool:
    return stored.verdict in GREEN and stored.status == Status.PASSED


def _take_back(evidence: Evidence, run: Measurement) -> Evidence:
    """Return what was known when a run was the newest one."""
    before = [
        other
        for other in list_valid_runs(evidence)
        if other.started and run.started and other is not run
    ]
    earlier = [other for other in before if other.started <= run.started]  # type: ignore[operator]
    measured = tuple(
        other for other in reversed(earlier) if isinstance(other, Measurement)
    )
    return replace(
        evidence,
        measurements=(run, *measured),
        stored_runs=tuple(other for other in earlier if isinstance(other, StoredRun)),
        excluded_by_since=(),
        max_age=None,
        look=Look(),
    )


# --- what the store holds of it -------------------------------------------------------


def list_places(
    results: SessionResults,
) -> dict[str, tuple[str, str, datetime, Window]]:
    """Return by item id what finds its last good run in the store."""
    return {
        name: (
            result.case.key.id,
            last.job_id,
            last.started,
            result.judgement.baseline.window,
        )
        for name, result in results.configurations.items()
        if (last := result.judgement.last_good) is not None
    }


def add_details(
    results: SessionResults, details: Mapping[str, StoredDetails]
) -> SessionResults:
    """Return results, by item id with what the store holds of their last good runs."""
    changed = {
        name: _add_details(results.configurations[name], of_result)
        for name, of_result in details.items()
    }
    return replace(results, configurations={**results.configurations, **changed})


def _add_details(
    result: ConfigurationResult, details: StoredDetails
) -> ConfigurationResult:
    judgement = result.judgement
    if judgement.last_good is None:
        return result
    last = add_stored(
        judgement.last_good, details, judgement.measurement, _list_nodes(result)
    )
    return replace(result, judgement=replace(judgement, last_good=last))


def _list_nodes(result: ConfigurationResult) -> tuple[str, ...]:
    """Return the nodes of the runs behind a verdict, of a job that left none its own;
    empty where none is known."""
    own = {run.run.found.job_id for run in result.judgement.runs}
    jobs = [job for job in result.jobs if job.job_id in own] or result.jobs[-1:]
    return tuple(sorted({node for job in jobs for node in job.nodes}))
