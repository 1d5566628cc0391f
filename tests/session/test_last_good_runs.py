"""Which earlier run a session calls the last good one, and what its history adds to
it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
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


def read(seconds: float, ago: int, **fields: Any) -> Measurement:
    """Return a run in the folder, so many days before NOW."""
    job = replace(log(segment()), fingerprint=f"{ago:x}-ff")
    return noisy(
        seconds,
        run=run(job, started=NOW - timedelta(days=ago), job_id=str(ago)),
        seed=ago,
        **fields,
    )


def stored(
    seconds: float, ago: int, verdict: str = "PASS", status: str = "passed"
) -> StoredRun:
    started = NOW - timedelta(days=ago)
    window, logs = BASELINE.window, f"{ago:x}-ff"
    return StoredRun(
        started, str(ago), logs, window, {}, True, seconds, verdict, status=status
    )


def judge_red(
    known: Evidence, settings: Settings | None = None, past: tuple[StoredRun, ...] = ()
) -> ConfigurationResult:
    settings = settings or Settings()
    case = Case(KEY.id, KEY)
    known = replace(known, rules=settings.rules)
    judged = JudgedConfigurations({KEY.id: (judge_case(case, [known]), (known,))})
    return with_last_good(judged, settings, {KEY: past}).results[KEY.id]


def find(
    known: Evidence, settings: Settings | None = None, past: tuple[StoredRun, ...] = ()
) -> LastGoodRun | None:
    return judge_red(known, settings, past).judgement.last_good


RED = read(8.2, 0)


@pytest.mark.parametrize(
    ("verdict", "status", "named"),
    [
        ("PASS", "passed", True),
        ("INCONCLUSIVE", "passed", True),
        ("REGRESSION", "failed", False),
        ("NOT_ASSERTED", "passed", False),
        ("TEST_FAILED", "failed", False),
    ],
)
def test_a_stored_run_is_good_if_it_was_green(
    verdict: str, status: str, named: bool
) -> None:
    """However fast it was: it may have been judged by a narrower bound."""
    last = find(evidence(RED, stored_runs=(stored(7.3, 1, verdict, status),)))
    assert (last is not None and last.verdict == verdict) == named


def test_a_run_in_the_folder_is_judged_as_if_it_were_the_newest() -> None:
    """Within the bound and yet not green: its checkpoint, or what else the session asks
    for."""
    known = evidence(RED, read(7.3, 1))
    last = find(known)
    assert last is not None
    assert (last.verdict, last.source) == ("PASS", RunSource.FOLDER)
    near = evidence(RED, read(7.68, 1))
    told = find(near)
    assert told is not None
    assert told.verdict == "INCONCLUSIVE"
    assert find(near, Settings(inconclusive="fail")) is None


def test_a_run_in_the_folder_that_a_session_called_red_is_no_good_one() -> None:
    """Its log may have been cut since, or the baseline moved."""
    known = evidence(RED, read(7.3, 1), read(7.3, 2))
    red = (stored(7.3, 1, "INVALID", "failed"),)
    last = find(known, past=red)
    assert last is not None
    assert last.job_id == "2"
    assert find(evidence(RED, read(7.3, 1)), past=red) is None
    green = find(known, past=(stored(7.3, 1),))
    assert green is not None
    assert green.job_id == "1"


@pytest.mark.parametrize(
    "red",
    [
        pytest.param(RED, id="REGRESSION"),
        pytest.param(read(7.70, 0), id="by the rule as written"),
        pytest.param(read(7.3, 0), id="PASS"),
    ],
)
def test_what_is_red_names_it(red: Measurement) -> None:
    result = judge_red(evidence(red, read(7.3, 1), plausible=0.15))
    is_red = result.judgement.verdict is not Verdict.PASS
    assert (result.judgement.last_good is not None) == is_red


def test_what_has_no_run_names_none() -> None:
    """Its message says when the last valid one was."""
    result = judge_red(evidence(stored_runs=(stored(7.3, 1),)))
    assert result.judgement.verdict is Verdict.MISSING
    assert result.judgement.last_good is None


# --- what the history adds ------------------------------------------------------------


def remember(folder: Path, *outcomes: dict[str, Any]) -> SessionHistory:
    place = StoreLocation("history.db", folder / "history.db")
    write(place, document(*outcomes))
    return SessionHistory(place, [KEY, OTHER])


def ran_on(told: dict[str, Any], *nodes: str) -> dict[str, Any]:
    job = {"job_id": told["run"]["job_id"], "nodes": list(nodes)}
    return {**told, "jobs": [{"job_id": "0", "nodes": ["n9"]}, job]}


def add(
    history: SessionHistory, red: Measurement, *nodes: str, key: Key = KEY
) -> LastGoodRun | None:
    known = evidence(red, stored_runs=tuple(history.past.get(key, ())))
    result = judge_red(known, past=tuple(history.past.get(key, ())))
    job = LaunchedJob(red.run.found.job_id, Purpose.MEASURE, 1, 1, "COMPLETED", nodes)
    results = SessionResults({KEY.id: replace(result, jobs=(job,))}, (), 1, 0, (), {})
    return history.with_details(results).configurations[KEY.id].judgement.last_good


def test_the_nodes_are_those_of_the_job_of_the_run(tmp_path: Path) -> None:
    history = remember(
        tmp_path,
        ran_on(outcome(7.3, 3), "n1", "n2"),
        ran_on(outcome(7.3, 2), "n7", "n8"),
    )
    last = add(history, RED, "n2", "n3")
    assert last is not None
    assert (last.source, last.started) == (RunSource.HISTORY, START + timedelta(days=3))
    assert last.nodes == ComparedNodes(("n1", "n2"), ("n2", "n3"))
    assert last.settings.same == ("launcher",)
    assert last.steps is not None
    unknown = add(history, RED)
    assert unknown is not None
    assert unknown.nodes is None


def test_a_run_of_another_precision_in_the_store_is_none(tmp_path: Path) -> None:
    history = remember(tmp_path, ran_on(outcome(7.3, 3, key=OTHER), "n1"))
    assert history.past[OTHER]
    assert add(history, RED, "n1") is None


def test_a_store_that_cannot_be_read_any_more_loses_no_verdict(tmp_path: Path) -> None:
    history = remember(tmp_path, ran_on(outcome(7.3, 3), "n1", "n2"))
    (tmp_path / "history.db").write_bytes(b"no database any more" * 100)
    last = add(history, RED, "n2", "n3")
    assert last is not None
    assert last.nodes is None
