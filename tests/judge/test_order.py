"""Another run may be the newest: only positive evidence counts, and only a different
result fails the item."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import KEY, NOW, evidence, measurement, run

from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.run_records import (
    Acknowledgement,
    AttemptFiles,
    Clock,
    Measurement,
    Problem,
    StartCandidate,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.order import find_order_doubts, with_order_doubt
from pytest_llmbench.report.wording import phrase

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
RED = (Verdict.REGRESSION, Verdict.INVALID)
GOOD, SLOW = 7.325, 8.2
PATH = "llama_8b/slurm-{}.out"


def make_run(
    job: str | int,
    ago: timedelta,
    *,
    seconds: float = GOOD,
    written: timedelta | None = None,
    launched: timedelta | None = None,
    stamped: bool = True,
    place: str = PATH,
    attempt: int = 0,
) -> Measurement:
    """Make a run that started `ago` before NOW according to its log.

    `written` and `launched` are the ages of its file and of its launch.
    """
    start_candidates = (
        [StartCandidate(Clock.METADATA, NOW - launched, "", zoned=True)]
        if launched is not None
        else []
    )
    start_candidates += (
        [StartCandidate(Clock.LOG, NOW - ago, "", zoned=False)] if stamped else []
    )
    fields: dict[str, Any] = {"id": f"run-{job}", "job_id": str(job)}
    fields["modified"] = None if written is None else NOW - written
    made_run = run(started=NOW - ago, **fields)
    path = Path("/logs") / place.format(job)
    files = AttemptFiles(attempt, str(path.parent), path.name)
    found = replace(made_run.found, attempts=(files,), folder_text=str(path.parent))
    clock = Clock.LOG if stamped else Clock.METADATA
    made = replace(
        made_run,
        found=found,
        start_candidates=tuple(start_candidates),
        order_source=clock,
    )
    return measurement(
        seconds,
        run=replace(made, attempts=(replace(made_run.attempts[0], files=files),)),
    )


def decide(*runs: Measurement, **fields: Any) -> Judgement:
    runs_evidence = evidence(*runs, **fields)
    return with_order_doubt(judge(runs_evidence), runs_evidence)


def list_rivals(*runs: Measurement) -> list[str]:
    return [doubt.rival.run.found.job_id for doubt in find_order_doubts(runs[0], runs)]


def list_codes(judgement: Judgement) -> set[NoteCode]:
    return {note.code for note in judgement.notes}


# --- positive evidence ----------------------------------------------------------------

CONTRADICTIONS = {
    "a job id": (make_run(10, HOUR), make_run(11, DAY)),
    "a job id of a clock that was never set": (
        make_run(1010, HOUR),
        make_run(1011, 9000 * DAY),
    ),
    "a job id with files of one copy": (
        make_run(10, HOUR, written=MINUTE),
        make_run(11, DAY, written=MINUTE),
    ),
    "a job id in folders of days": (
        make_run(10, HOUR, place="2025-11-20/slurm-{}.out"),
        make_run(11, DAY, place="2025-11-19/slurm-{}.out"),
    ),
    "a job in the name of a folder": (
        make_run("", HOUR, place="job_10/train.log"),
        make_run("", DAY, place="job_11/train.log"),
    ),
    "a file of a clock that is a day behind": (
        make_run("", DAY, written=DAY - 10 * MINUTE),
        make_run("", 29 * HOUR, written=10 * MINUTE),
    ),
    "a file of a clock that is a day behind, later": (
        make_run("", DAY, written=DAY - 10 * MINUTE),
        make_run("", DAY + 21 * HOUR, written=21 * HOUR - 10 * MINUTE),
    ),
    "a file in UTC and a log in local time": (
        make_run("", 20 * HOUR, written=20 * HOUR - 10 * MINUTE),
        make_run("", 21 * HOUR, written=19 * HOUR - 10 * MINUTE),
    ),
    "a file of a job that waited, without stamps": (
        make_run("", DAY, launched=DAY, stamped=False, written=DAY - HOUR),
        make_run("", 2 * DAY, launched=2 * DAY, stamped=False, written=HOUR),
    ),
    "a launch after the first stamp": (
        make_run("", 5 * HOUR, launched=5 * HOUR + MINUTE),
        make_run("", 6 * HOUR, launched=4 * HOUR + MINUTE),
    ),
}


@pytest.mark.parametrize("runs", CONTRADICTIONS.values(), ids=list(CONTRADICTIONS))
def test_runs_with_contradictory_order_are_invalid_if_their_step_times_differ(
    runs: tuple[Measurement, Measurement],
) -> None:
    newest, rival = runs
    slow = replace(rival, statistic_seconds=SLOW, window_seconds=(SLOW,) * 34)
    red = decide(newest, slow)
    assert (red.verdict, red.reason) == (Verdict.INVALID, Reason.ORDER_AMBIGUOUS)
    assert phrase(red).count("run-") >= 2
    assert phrase(red).count("2025-11-") + phrase(red).count("2001-") >= 2
    green = decide(newest, rival)
    assert (green.verdict, NoteCode.ORDER_AMBIGUOUS in list_codes(green)) == (
        Verdict.PASS,
        True,
    )


def test_regression_with_ambiguous_run_order_stays_a_regression_with_a_note() -> None:
    red = decide(make_run(10, HOUR, seconds=SLOW), make_run(11, DAY))
    assert (red.verdict, NoteCode.ORDER_AMBIGUOUS in list_codes(red)) == (
        Verdict.REGRESSION,
        True,
    )
    assert "ambiguous: run-10 (job 10, 2025-11-20 05:00" in phrase(red)


# --- ordinary runs --------------------------------------------------------------------

ORDINARY = {
    "ascending ids": (make_run(11, HOUR), make_run(10, DAY)),
    "ids that were reset": (
        make_run(57, HOUR),
        make_run(100123, DAY),
        make_run(100122, 2 * DAY),
    ),
    "ids that reach old values again": (
        make_run(100100, HOUR),
        make_run(90000, DAY),
        make_run(57, 300 * DAY),
        make_run(100123, 400 * DAY),
    ),
    "two clusters": (
        make_run(10, HOUR, place="eos/slurm-{}.out"),
        make_run(11, DAY, place="viking/slurm-{}.out"),
    ),
    "two numbered clusters": (
        make_run(10, HOUR, place="c1/slurm-{}.out"),
        make_run(11, DAY, place="c2/slurm-{}.out"),
        make_run(9, 2 * DAY, place="c1/slurm-{}.out"),
        make_run(8, 3 * DAY, place="c2/slurm-{}.out"),
    ),
    "two clusters of one name pattern": tuple(
        make_run(base + k // 2, k * DAY + HOUR) for k, base in enumerate((400, 500) * 4)
    ),
    "another kind of id": (make_run("10_3", HOUR), make_run("11_2", DAY)),
    "a requeued job": (make_run(10, HOUR, attempt=1), make_run(14, DAY)),
    "jobs that started together": (make_run(10, HOUR), make_run(11, HOUR + 5 * MINUTE)),
    "a queue that the files confirm": (
        make_run(10, HOUR, written=50 * MINUTE),
        make_run(11, DAY, written=DAY - 10 * MINUTE),
    ),
    "files of one copy": (
        make_run("", HOUR, written=2 * MINUTE),
        make_run("", DAY, written=MINUTE),
    ),
    "files of a slow copy": (
        make_run("", HOUR, written=50 * MINUTE),
        make_run("", DAY, written=MINUTE),
    ),
    "an old file that was rewritten": (
        make_run("", DAY, written=DAY - 10 * MINUTE),
        make_run("", 9 * DAY, written=HOUR),
    ),
    "files that are older than their logs": (
        make_run("", HOUR, written=90 * DAY),
        make_run("", DAY, written=80 * DAY),
    ),
    "files without a time": (make_run("", HOUR), make_run("", DAY)),
    "two zones of launches": (
        make_run("", 5 * HOUR, launched=7 * HOUR),
        make_run("", 6 * HOUR, launched=8 * HOUR),
    ),
    "all logs before their launches": (
        make_run("", 5 * HOUR, launched=3 * HOUR),
        make_run("", 6 * HOUR, launched=4 * HOUR),
    ),
}


@pytest.mark.parametrize("runs", ORDINARY.values(), ids=list(ORDINARY))
def test_run_order_is_certain_despite_reset_job_ids_or_copied_files(
    runs: tuple[Measurement, ...],
) -> None:
    assert list_rivals(*runs) == []


def test_launched_run_is_the_newest_despite_a_higher_job_id_on_disk() -> None:
    newest = make_run(10, HOUR)
    found = replace(newest.run.found, launch="x")
    launched = replace(newest, run=replace(newest.run, found=found))
    assert decide(launched, make_run(11, DAY, seconds=SLOW)).verdict is Verdict.PASS


def test_job_without_a_log_is_compared_with_older_runs_of_higher_job_ids() -> None:
    """The newest job died before it wrote a log; ids of two schedulers are mixed."""
    made = make_run(10, HOUR)
    newest = replace(
        made,
        run=replace(made.run, attempts=()),
        statistic_seconds=None,
        problems=(Problem(Reason.NO_STEPS, "no log"),),
    )
    runs = newest, make_run(5, DAY), make_run(11, 3 * DAY)
    assert decide(*runs).verdict is Verdict.INVALID


def test_acknowledgement_accepts_an_ambiguous_run_order() -> None:
    today = NOW.date()
    entry = Acknowledgement(
        KEY.id,
        0.0,
        date(2025, 11, 1),
        today + DAY,
        "a clock",
        "ann",
        "f:1",
        Reason.ORDER_AMBIGUOUS,
    )
    passed = decide(
        make_run(10, HOUR), make_run(11, DAY, seconds=SLOW), accepted=(entry,)
    )
    assert passed.verdict is Verdict.PASS
    assert [
        note.acknowledgement
        for note in passed.notes
        if note.code is NoteCode.ACKNOWLEDGED
    ] == [entry]


def test_run_older_than_max_age_still_makes_the_order_ambiguous() -> None:
    runs = make_run(1010, HOUR), make_run(1011, 9000 * DAY, seconds=SLOW)
    assert decide(*runs, max_age=DAY).reason is Reason.ORDER_AMBIGUOUS


def test_each_run_that_may_be_the_newest_is_judged() -> None:
    """The highest job id has the same result, the latest file a different one."""
    newest = make_run(10, DAY, written=DAY - 10 * MINUTE)
    by_job = make_run(11, 2 * DAY)
    by_file = make_run(9, 29 * HOUR, written=HOUR, seconds=SLOW)
    assert list_rivals(newest, by_file, by_job) == ["9", "11"] or list_rivals(
        newest, by_file, by_job
    ) == ["11", "9"]
    assert decide(newest, by_file, by_job).reason is Reason.ORDER_AMBIGUOUS


def test_certain_run_order_leaves_the_verdict_unchanged() -> None:
    ordered = evidence(make_run(11, HOUR), make_run(10, DAY))
    judgement = judge(ordered)
    assert with_order_doubt(judgement, ordered) is judgement


@pytest.mark.parametrize(
    ("number", "rivals"), [("4712", ["run-4712"]), ("4710", []), ("", [])]
)
def test_number_in_a_name_orders_runs_without_job_ids(
    number: str, rivals: list[str]
) -> None:
    """`train-4711.out` and `train-4712.out`: the second is stamped a day earlier."""

    def name(measured: Measurement, number: str) -> Measurement:
        return replace(
            measured,
            run=replace(
                measured.run,
                found=replace(measured.run.found, job_id="", number=number),
            ),
        )

    newest = name(make_run("4711", HOUR, place="llama/train-{}.out"), "4711")
    other = name(make_run("4712", DAY, place="llama/train-{}.out"), number)
    doubts = [
        doubt.rival.run.id for doubt in find_order_doubts(newest, [newest, other])
    ]
    assert doubts == rivals
