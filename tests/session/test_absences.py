"""Cautions about missing or ignored runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, KEY, NOW, evidence, log, measurement, run
from support.outcomes import told

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.outcome_records import Case, CautionCode, Silence
from pytest_llmbench.core.run_records import (
    IgnoredFile,
    Measurement,
    Problem,
    StoredRun,
)
from pytest_llmbench.session.absences import (
    caution_without_verdict,
    list_absence_cautions,
    select_citable,
)
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import IngestedRuns
from pytest_llmbench.session.evaluate import evaluate_runs
from pytest_llmbench.session.outcomes import SessionResults, judge_case
from pytest_llmbench.session.settings import Settings

CASE = Case(KEY.id, KEY)
HOUR = timedelta(hours=1)
TRUNCATED = Problem(Reason.INCOMPLETE, "stopped after step 27 of 50")
PENDING_TRIAL = Problem(
    Reason.VARIANT, "logs/.llmbench-ab has a run of an A/B without its job"
)


def make_run(hours_ago: float, seconds: float = 7.325, **fields: Any) -> Measurement:
    return measurement(
        seconds,
        run=run(id=f"job_{hours_ago:g}", started=NOW - hours_ago * HOUR),
        **fields,
    )


def make_pending_run(hours_ago: float) -> Measurement:
    """Return a run that may be the A/B job with an unknown id."""
    excluded_run = make_run(hours_ago, excluded=PENDING_TRIAL)
    files = replace(excluded_run.run.found, trial_pending_since=NOW)
    return replace(excluded_run, run=replace(excluded_run.run, found=files))


def list_texts(*measurements: Measurement, **fields: Any) -> list[str]:
    result = judge_case(CASE, [evidence(*measurements)])
    results = SessionResults(
        {KEY.id: result},
        unmatched=(),
        runs_found=len(measurements),
        runs_before_since=0,
        ignored=(),
        measurements={KEY: measurements},
        **fields,
    )
    texts = [caution.text for caution in list_absence_cautions(results, [result])]
    citable = replace(results, measurements={KEY: select_citable(result, measurements)})
    cautions = list_absence_cautions(citable, [result])
    assert [caution.text for caution in cautions] == texts
    return texts


def test_only_runs_near_the_judged_run_are_citable() -> None:
    runs = [make_pending_run(1), *(make_run(hours) for hours in (2, 3, 30, 60))]
    result = judge_case(CASE, [evidence(*runs)])
    citable = select_citable(result, runs)
    assert [run.run.id for run in citable] == ["job_1", "job_2", "job_3"]


@pytest.mark.parametrize(
    "measurements",
    [
        (),
        (make_run(1),),
        (make_run(1), make_run(2)),
        (make_run(1), make_run(2, problems=(TRUNCATED,))),
        (make_run(1), make_run(2, 9.0)),
        (make_run(1), *(make_run(24 * days, 9.0) for days in range(1, 6))),
        (make_run(1), make_run(2), make_run(3, problems=(TRUNCATED,))),
        (make_run(1, 9.0), make_run(2, 9.0), make_run(3, 9.0)),
        (make_run(1), make_pending_run(2)),
        (make_run(1), make_run(2, excluded=Problem(Reason.VARIANT, "names its job"))),
        (make_run(1, excluded=Problem(Reason.PROFILED, "profiled")), make_run(2)),
    ],
)
def test_day_without_hidden_failures_has_no_absence_caution(
    measurements: tuple[Measurement, ...],
) -> None:
    assert list_texts(*measurements) == []


@pytest.mark.parametrize("bad", [{"problems": (TRUNCATED,)}, {"seconds": 9.0}])
def test_caution_names_bad_runs_of_a_day_whose_last_run_is_good(
    bad: dict[str, Any],
) -> None:
    same_day = [
        make_run(1),
        *(make_run(hours, **bad) for hours in (2, 3, 4, 5)),
        make_run(25),
    ]
    assert list_texts(*same_day) == [
        f"{KEY.id}: 4 of 5 runs of a day are bad, but the last one is good: job_2, job_3, job_4 and 1 more"
    ]


def test_caution_names_newer_runs_that_an_ab_marker_without_job_id_excludes() -> None:
    assert list_texts(make_pending_run(1), make_pending_run(2), make_run(30)) == [
        f"newer, but not judged: job_1, job_2: {PENDING_TRIAL.text}"
    ]
    assert list_texts(make_pending_run(1)) == [
        f"newer, but not judged: job_1: {PENDING_TRIAL.text}"
    ]


def test_caution_names_a_newer_run_that_an_ab_test_marker_excludes() -> None:
    """Any job may write a marker that names a regular run."""
    newer = make_run(
        1,
        excluded=Problem(
            Reason.VARIANT, "logs/.llmbench-ab lists its job: a run of an A/B"
        ),
    )
    text = f"newer, but not judged: job_1: {newer.excluded.text}"  # type: ignore[union-attr]
    assert list_texts(newer, make_run(30)) == [text]
    launched = replace(
        newer, run=replace(newer.run, found=replace(newer.run.found, launch="abc"))
    )
    assert list_texts(launched, make_run(30)) == []


def test_caution_names_an_unread_file_that_resembles_a_log() -> None:
    hidden = (
        IgnoredFile(".slurm-7.out.X1y2Z3", "a log by its name, except for its suffix"),
    )
    assert list_texts(make_run(1), hidden=hidden) == [
        "not read, possibly newer: .slurm-7.out.X1y2Z3 (a log by its name, except for its suffix)"
    ]


def make_stored_run(hours_ago: float, job_id: str = "7", **fields: Any) -> StoredRun:
    made = {"verdict": "REGRESSION", "valid": True, "status": "failed", **fields}
    return StoredRun(
        NOW - hours_ago * HOUR,
        job_id,
        f"{hours_ago:g}-ff",
        environment={},
        statistic_seconds=7.4,
        **{"window": BASELINE.window, **made},
    )


def find_newer(*past: StoredRun, copies: Any = (), **judged: Any) -> StoredRun | None:
    """Return the newer stored run next to a judged run that started 30 hours ago."""
    judged_run = run(**{"started": NOW - 30 * HOUR, **judged})
    ingested = IngestedRuns((judged_run,), (), (), copies=copies)
    catalog = Catalog(baselines={KEY: (BASELINE,)}, recipes=())
    results = evaluate_runs(ingested, Settings(), catalog, NOW, {KEY: past})
    return results.newer_stored.get(KEY)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"valid": False, "verdict": "INVALID"},
        {"window": BASELINE.window._replace(first=12)},
        {"job_id": ""},
    ],
)
def test_newest_stored_run_after_the_judged_run_is_found(
    fields: dict[str, Any],
) -> None:
    newest = make_stored_run(2, **fields)
    assert (
        find_newer(make_stored_run(40, "5"), make_stored_run(6, "6"), newest) == newest
    )


@pytest.mark.parametrize(
    "past",
    [
        make_stored_run(31),
        make_stored_run(30),
        make_stored_run(2, job_id="1"),  # another log of the judged job
        make_stored_run(2, reason=Reason.VARIANT),
        make_stored_run(
            2, reason=Reason.PURPOSE_MISSED, valid=False, verdict="INVALID"
        ),
    ],
)
def test_older_stored_runs_and_ab_test_runs_are_not_reported_as_newer(
    past: StoredRun,
) -> None:
    assert find_newer(past) is None


def test_stored_run_with_the_log_of_the_judged_run_is_not_newer() -> None:
    """The log is that of the judged run or of a dropped copy.

    An undated judged run counts as the newest.
    """
    nameless = run(replace(log(), fingerprint="2-ff"), job_id="", started=NOW)
    past = make_stored_run(2, job_id="")
    assert find_newer(past, copies=((nameless, run()),)) is None
    unidentified = replace(nameless, identity=replace(nameless.identity, key=None))
    assert find_newer(past, copies=((unidentified, run()),)) == past
    assert find_newer(past, started=None) is None
    assert find_newer() is None


def test_caution_lists_newer_stored_runs_with_failed_runs_first() -> None:
    other_key = replace(KEY, recipe="other")
    passed = make_stored_run(2, "", verdict="PASS", status="passed")
    passed_text = f"{KEY.id} (run of {passed.started:%Y-%m-%d %H:%M}, PASS)"
    text = "newer in the history, but not judged"
    newer = {KEY: passed, other_key: make_stored_run(3)}
    assert list_texts(make_run(30), newer_stored=newer) == [f"{text}: {passed_text}"]
    results = [judge_case(Case(key.id, key), [evidence(make_run(30))]) for key in newer]
    results_of_both = SessionResults({}, (), 2, 0, (), {}, newer_stored=newer)
    (caution,) = list_absence_cautions(results_of_both, results)
    failed_text = (
        f"{other_key.id} (job 7 of {NOW - 3 * HOUR:%Y-%m-%d %H:%M}, REGRESSION)"
    )
    assert caution.code is CautionCode.NEWER_RUN
    assert caution.text == f"{text}: {failed_text}, {passed_text}"


def test_caution_names_a_judged_configuration_without_a_run_on_the_last_day() -> None:
    silences = (Silence(KEY, NOW - 48 * HOUR, NOW),)
    assert list_texts(make_run(48), silences=silences) == [
        f"no run of {KEY.id} (last {NOW - 48 * HOUR:%Y-%m-%d}), although others ran on {NOW:%Y-%m-%d}"
    ]
    assert list_texts(silences=silences) == []  # it is MISSING, and named as such
    other_key = replace(KEY, recipe="other")
    assert (
        list_texts(make_run(48), silences=(replace(silences[0], key=other_key),)) == []
    )


def test_caution_names_local_configurations_without_a_verdict() -> None:
    outcomes = [told(identifier="a", own=True), told(identifier="b", own=True)]
    outcomes += [told(identifier="shipped", own=False), told(identifier="old")]
    absences = {"a": "MISSING", "shipped": "MISSING", "old": "MISSING"}
    (caution,) = caution_without_verdict(outcomes, absences)
    assert caution.code is CautionCode.WITHOUT_VERDICT
    assert caution.text == "no verdict on a (MISSING), 1 of your 2 configurations"
    assert list(caution_without_verdict(outcomes[2:], absences)) == []
