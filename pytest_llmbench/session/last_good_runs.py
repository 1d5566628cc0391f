"""The last good run of each failed result, with details from the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key, Window
from pytest_llmbench.core.codes import ABSENT
from pytest_llmbench.core.judgement_records import Evidence
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.run_records import StoredDetails, StoredRun
from pytest_llmbench.judge.item_status import is_red
from pytest_llmbench.judge.last_good import add_stored, find_last_good
from pytest_llmbench.session.outcomes import JudgedConfigurations, SessionResults
from pytest_llmbench.session.settings import Settings


def with_last_good(
    judged: JudgedConfigurations,
    settings: Settings,
    past: Mapping[Key, Sequence[StoredRun]],
) -> JudgedConfigurations:
    """Add the last good run, if known, to each failed result.

    Results whose verdict is in ABSENT are unchanged.
    """

    def add_last_good(
        result: ConfigurationResult, per_baseline: tuple[Evidence, ...]
    ) -> ConfigurationResult:
        """Add the last good run to one result; `per_baseline` is its evidence."""
        judgement = result.judgement
        is_failed = is_red(judgement, settings.rules, required=True)
        if not is_failed or judgement.verdict in ABSENT:
            return result
        evidence = result.pick_deciding(per_baseline)
        last = find_last_good(judgement, evidence, past.get(result.case.key, ()))
        return replace(result, judgement=replace(judgement, last_good=last))

    return judged.map(add_last_good)


# --- details from the history ---------------------------------------------------------


def list_last_good_keys(
    results: SessionResults,
) -> dict[str, tuple[str, str, datetime, Window]]:
    """Return the values that identify each last good run in the history, by item id.

    These are the configuration's id, the job id, the start and the window.
    """
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
    """Add details from the history to the last good runs; `details` are by item id."""
    changed_results = {
        name: _add_details(results.configurations[name], stored)
        for name, stored in details.items()
    }
    return replace(
        results, configurations={**results.configurations, **changed_results}
    )


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
    """Return the nodes of the jobs whose runs were judged; empty if unknown.

    If the jobs of the runs are unknown, returns the nodes of the last job.
    """
    job_ids = {run.run.found.job_id for run in result.judgement.runs}
    jobs = [job for job in result.jobs if job.job_id in job_ids] or result.jobs[-1:]
    return tuple(sorted({node for job in jobs for node in job.nodes}))
