"""Selection of the last good run, and its details from the history."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, KEY, NOW, evidence, log, noisy, run, segment
from support.remembered import START, document, outcome

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.job_records import LaunchedJob, Purpose
from pytest_llmbench.core.judgement_records import (
    ComparedNodes,
    Evidence,
    LastGoodRun,
    RunSource,
)
from pytest_llmbench.core.outcome_records import Case, ConfigurationResult
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.session.last_good_runs import with_last_good
from pytest_llmbench.session.outcomes import (
    JudgedConfigurations,
    SessionResults,
    judge_case,
)
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.settings import Settings

OTHER = replace(KEY, dtype="fp8")


def make_folder_run(seconds: float, ago: int, **fields: Any) -> Measurement:
    """Return a run in the folder, `ago` days before NOW."""
    job = replace(log(segment()), fingerprint=f"{ago:x}-ff")
    return noisy(
        seconds,
        run=run(job, started=NOW - timedelta(days=ago), job_id=str(ago)),
        seed=ago,
        **fields,
    )


def make_stored_run(
    seconds: float, ago: int, verdict: str = "PASS", status: str = "passed"
) -> StoredRun:
    started = NOW - timedelta(days=ago)
    window, logs = BASELINE.window, f"{ago:x}-ff"
    return StoredRun(
        started, str(ago), logs, window, {}, True, seconds, verdict, status=status
    )


def judge_failed(
    collected: Evidence,
    settings: Settings | None = None,
    past: tuple[StoredRun, ...] = (),
) -> ConfigurationResult:
    settings = settings or Settings()
    case = Case(KEY.id, KEY)
    collected = replace(collected, rules=settings.rules)
    judged = JudgedConfigurations(
        {KEY.id: (judge_case(case, [collected]), (collected,))}
    )
    return with_last_good(judged, settings, {KEY: past}).results[KEY.id]


def find_last_good_run(
    collected: Evidence,
    settings: Settings | None = None,
    past: tuple[StoredRun, ...] = (),
) -> LastGoodRun | None:
    return judge_failed(collected, settings, past).judgement.last_good


FAILED_RUN = make_folder_run(8.2, 0)


@pytest.mark.parametrize(
    ("verdict", "status", "is_good"),
    [
        ("PASS", "passed", True),
        ("INCONCLUSIVE", "passed", True),
        ("REGRESSION", "failed", False),
        ("NOT_ASSERTED", "passed", False),
        ("TEST_FAILED", "failed", False),
    ],
)
def test_last_good_run_from_the_history_must_have_passed_with_its_verdict(
    verdict: str, status: str, is_good: bool
) -> None:
    """The speed is ignored, since the bound may have been narrower."""
    last = find_last_good_run(
        evidence(FAILED_RUN, stored_runs=(make_stored_run(7.3, 1, verdict, status),))
    )
    assert (last is not None and last.verdict == verdict) == is_good


def test_last_good_run_from_the_log_folder_must_pass_the_present_settings() -> None:
    """A run within the bound may still fail, for example with --llmb-inconclusive=fail."""
    collected = evidence(FAILED_RUN, make_folder_run(7.3, 1))
    last = find_last_good_run(collected)
    assert last is not None
    assert (last.verdict, last.source) == ("PASS", RunSource.FOLDER)
    near = evidence(FAILED_RUN, make_folder_run(7.68, 1))
    near_bound = find_last_good_run(near)
    assert near_bound is not None
    assert near_bound.verdict == "INCONCLUSIVE"
    assert find_last_good_run(near, Settings(inconclusive="fail")) is None


def test_run_with_a_stored_failure_is_not_the_last_good_run() -> None:
    """Its log may have been truncated later, or the baseline may have moved."""
    collected = evidence(FAILED_RUN, make_folder_run(7.3, 1), make_folder_run(7.3, 2))
    failed = (make_stored_run(7.3, 1, "INVALID", "failed"),)
    last = find_last_good_run(collected, past=failed)
    assert last is not None
    assert last.job_id == "2"
    assert (
        find_last_good_run(evidence(FAILED_RUN, make_folder_run(7.3, 1)), past=failed)
        is None
    )
    passed = find_last_good_run(collected, past=(make_stored_run(7.3, 1),))
    assert passed is not None
    assert passed.job_id == "1"


@pytest.mark.parametrize(
    "current",
    [
        pytest.param(FAILED_RUN, id="REGRESSION"),
        pytest.param(make_folder_run(7.70, 0), id="by the rule as written"),
        pytest.param(make_folder_run(7.3, 0), id="PASS"),
    ],
)
def test_only_failed_result_has_a_last_good_run(current: Measurement) -> None:
    result = judge_failed(evidence(current, make_folder_run(7.3, 1), plausible=0.15))
    is_red = result.judgement.verdict is not Verdict.PASS
    assert (result.judgement.last_good is not None) == is_red


def test_missing_run_has_no_last_good_run() -> None:
    """Its message already names the last valid run."""
    result = judge_failed(evidence(stored_runs=(make_stored_run(7.3, 1),)))
    assert result.judgement.verdict is Verdict.MISSING
    assert result.judgement.last_good is None


# --- details from the history ---------------------------------------------------------


def store_outcomes(folder: Path, *outcomes: dict[str, Any]) -> SessionHistory:
    location = StoreLocation("history.db", folder / "history.db")
    write(location, document(*outcomes))
    return SessionHistory(location, [KEY, OTHER])


def with_nodes(outcome_fields: dict[str, Any], *nodes: str) -> dict[str, Any]:
    job = {"job_id": outcome_fields["run"]["job_id"], "nodes": list(nodes)}
    return {**outcome_fields, "jobs": [{"job_id": "0", "nodes": ["n9"]}, job]}


def add_history_details(
    history: SessionHistory, failed: Measurement, *nodes: str, key: Key = KEY
) -> LastGoodRun | None:
    collected = evidence(failed, stored_runs=tuple(history.past.get(key, ())))
    result = judge_failed(collected, past=tuple(history.past.get(key, ())))
    job = LaunchedJob(
        failed.run.found.job_id, Purpose.MEASURE, 1, 1, "COMPLETED", nodes
    )
    results = SessionResults({KEY.id: replace(result, jobs=(job,))}, (), 1, 0, (), {})
    return history.with_details(results).configurations[KEY.id].judgement.last_good


def test_last_good_run_has_the_nodes_of_its_job(tmp_path: Path) -> None:
    history = store_outcomes(
        tmp_path,
        with_nodes(outcome(7.3, 3), "n1", "n2"),
        with_nodes(outcome(7.3, 2), "n7", "n8"),
    )
    last = add_history_details(history, FAILED_RUN, "n2", "n3")
    assert last is not None
    assert (last.source, last.started) == (RunSource.HISTORY, START + timedelta(days=3))
    assert last.nodes == ComparedNodes(("n1", "n2"), ("n2", "n3"))
    assert last.settings.same == ("launcher",)
    assert last.steps is not None
    unknown = add_history_details(history, FAILED_RUN)
    assert unknown is not None
    assert unknown.nodes is None


def test_stored_run_of_another_precision_is_ignored(tmp_path: Path) -> None:
    history = store_outcomes(tmp_path, with_nodes(outcome(7.3, 3, key=OTHER), "n1"))
    assert history.past[OTHER]
    assert add_history_details(history, FAILED_RUN, "n1") is None


def test_unreadable_history_keeps_the_verdict(tmp_path: Path) -> None:
    history = store_outcomes(tmp_path, with_nodes(outcome(7.3, 3), "n1", "n2"))
    (tmp_path / "history.db").write_bytes(b"no database any more" * 100)
    last = add_history_details(history, FAILED_RUN, "n2", "n3")
    assert last is not None
    assert last.nodes is None
