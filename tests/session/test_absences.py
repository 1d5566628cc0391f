"""Cautions about runs that are missing or that nobody looked at: each names them, and
honest nights have none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
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
from pytest_llmbench.session.absences import list_absence_cautions, name_without_verdict
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import IngestedRuns
from pytest_llmbench.session.evaluate import evaluate_runs
from pytest_llmbench.session.outcomes import SessionResults, judge_case
from pytest_llmbench.session.settings import Settings

CASE = Case(KEY.id, KEY)
HOUR = timedelta(hours=1)
CUT = Problem(Reason.INCOMPLETE, "stopped after step 27 of 50")
MARK = Problem(Reason.VARIANT, "logs/.llmbench-ab has a run of an A/B without its job")


def at(hours_ago: float, seconds: float = 7.325, **fields: Any) -> Measurement:
    return measurement(
        seconds,
        run=run(id=f"job_{hours_ago:g}", started=NOW - hours_ago * HOUR),
        **fields,
    )


def pending(hours_ago: float) -> Measurement:
    """Return a run that may be the unknown job of an A/B."""
    kept_out = at(hours_ago, excluded=MARK)
    found = replace(kept_out.run.found, trial_pending_since=NOW)
    return replace(kept_out, run=replace(kept_out.run, found=found))


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
    return [caution.text for caution in list_absence_cautions(results, [result])]


@pytest.mark.parametrize(
    "measurements",
    [
        (),
        (at(1),),
        (at(1), at(2)),
        (at(1), at(2, problems=(CUT,))),
        (at(1), at(2, 9.0)),
        (at(1), *(at(24 * night, 9.0) for night in range(1, 6))),
        (at(1), at(2), at(3, problems=(CUT,))),
        (at(1, 9.0), at(2, 9.0), at(3, 9.0)),
        (at(1), pending(2)),
        (at(1), at(2, excluded=Problem(Reason.VARIANT, "names its job"))),
        (at(1, excluded=Problem(Reason.PROFILED, "profiled")), at(2)),
    ],
)
def test_honest_night_names_no_run(measurements: tuple[Measurement, ...]) -> None:
    assert list_texts(*measurements) == []


@pytest.mark.parametrize("bad", [{"problems": (CUT,)}, {"seconds": 9.0}])
def test_night_with_a_good_last_run_names_the_bad_ones(bad: dict[str, Any]) -> None:
    night = [at(1), *(at(hours, **bad) for hours in (2, 3, 4, 5)), at(25)]
    assert list_texts(*night) == [
        f"{KEY.id}: 4 of 5 runs of a night are not good, and the last is: job_2, job_3, job_4 and 1 more"
    ]


def test_pending_mark_names_the_newer_runs() -> None:
    assert list_texts(pending(1), pending(2), at(30)) == [
        f"not judged, and newer: job_1, job_2: {MARK.text}"
    ]
    assert list_texts(pending(1)) == [f"not judged, and newer: job_1: {MARK.text}"]


def test_mark_that_names_a_newer_run_is_named() -> None:
    """A mark of any job may name the run of a night."""
    named = at(
        1,
        excluded=Problem(
            Reason.VARIANT, "logs/.llmbench-ab lists its job: a run of an A/B"
        ),
    )
    text = f"not judged, and newer: job_1: {named.excluded.text}"  # type: ignore[union-attr]
    assert list_texts(named, at(30)) == [text]
    launched = replace(
        named, run=replace(named.run, found=replace(named.run.found, launch="abc"))
    )
    assert list_texts(launched, at(30)) == []


def test_unread_file_is_named() -> None:
    hidden = (
        IgnoredFile(".slurm-7.out.X1y2Z3", "a log by its name, except for its suffix"),
    )
    assert list_texts(at(1), hidden=hidden) == [
        "unread, perhaps newer: .slurm-7.out.X1y2Z3 (a log by its name, except for its suffix)"
    ]


def stored(hours_ago: float, job_id: str = "7", **fields: Any) -> StoredRun:
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
    """Return the newer run of a history beside a run that began 30 hours ago."""
    found = run(**{"started": NOW - 30 * HOUR, **judged})
    ingested = IngestedRuns((found,), (), (), copies=copies)
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
def test_newest_stored_run_after_the_judged_is_found(fields: dict[str, Any]) -> None:
    newest = stored(2, **fields)
    assert find_newer(stored(40, "5"), stored(6, "6"), newest) == newest


@pytest.mark.parametrize(
    "past",
    [
        stored(31),
        stored(30),
        stored(2, job_id="1"),  # another log of the judged job
        stored(2, reason=Reason.VARIANT),
        stored(2, reason=Reason.PURPOSE_MISSED, valid=False, verdict="INVALID"),
    ],
)
def test_stored_run_that_is_no_newer_one_is_passed_over(past: StoredRun) -> None:
    assert find_newer(past) is None


def test_stored_run_among_the_logs_is_not_newer() -> None:
    """As itself, or as a copy that was left out; a run without a start is the
    newest."""
    nameless = run(replace(log(), fingerprint="2-ff"), job_id="", started=NOW)
    past = stored(2, job_id="")
    assert find_newer(past, copies=((nameless, run()),)) is None
    other = replace(nameless, identity=replace(nameless.identity, key=None))
    assert find_newer(past, copies=((other, run()),)) == past
    assert find_newer(past, started=None) is None
    assert find_newer() is None


def test_newer_stored_runs_are_named_failed_ones_first() -> None:
    other = replace(KEY, recipe="other")
    good = stored(2, "", verdict="PASS", status="passed")
    named = f"{KEY.id} (run of {good.started:%Y-%m-%d %H:%M}, PASS)"
    text = "not judged, and newer in the history"
    newer = {KEY: good, other: stored(3)}
    assert list_texts(at(30), newer_stored=newer) == [f"{text}: {named}"]
    results = [judge_case(Case(key.id, key), [evidence(at(30))]) for key in newer]
    both = SessionResults({}, (), 2, 0, (), {}, newer_stored=newer)
    (caution,) = list_absence_cautions(both, results)
    red = f"{other.id} (job 7 of {NOW - 3 * HOUR:%Y-%m-%d %H:%M}, REGRESSION)"
    assert caution.code is CautionCode.NEWER_RUN
    assert caution.text == f"{text}: {red}, {named}"


def test_silent_configuration_is_named_if_it_is_judged() -> None:
    silences = (Silence(KEY, NOW - 48 * HOUR, NOW),)
    assert list_texts(at(48), silences=silences) == [
        f"no run of {KEY.id} (last {NOW - 48 * HOUR:%Y-%m-%d}), though others ran on {NOW:%Y-%m-%d}"
    ]
    assert list_texts(silences=silences) == []  # it is MISSING, and named as such
    other = replace(KEY, recipe="other")
    assert list_texts(at(48), silences=(replace(silences[0], key=other),)) == []


def test_own_configurations_without_a_verdict_are_named() -> None:
    outcomes = [told(identifier="a", own=True), told(identifier="b", own=True)]
    outcomes += [told(identifier="shipped", own=False), told(identifier="old")]
    absences = {"a": "MISSING", "shipped": "MISSING", "old": "MISSING"}
    (caution,) = name_without_verdict(outcomes, absences)
    assert caution.code is CautionCode.WITHOUT_VERDICT
    assert caution.text == "no verdict on a (MISSING), 1 of your 2 configurations"
    assert list(name_without_verdict(outcomes[2:], absences)) == []
