"""Another run may be the newest: only positive evidence tells it, and only another
result fails the item."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.builders import KEY, NOW, evidence, measurement, run

from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.run_records import (
    Acknowledgement,
    AttemptFiles,
    Clock,
    Measurement,
    StartCandidate,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.order import find_order_doubts, with_order_doubt
from pytest_llmbench.report.wording import phrase

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
RED = (Verdict.REGRESSION, Verdict.INVALID)
GOOD, SLOW = 7.325, 8.2
PLACE = "llama_8b/slurm-{}.out"


def night(
    job: str | int,
    ago: timedelta,
    *,
    seconds: float = GOOD,
    written: timedelta | None = None,
    launched: timedelta | None = None,
    stamped: bool = True,
    place: str = PLACE,
    attempt: int = 0,
) -> Measurement:
    """Return a run that began so long before NOW by its log, with the time of its file
    and of its launch."""
    datings = (
        [StartCandidate(Clock.METADATA, NOW - launched, "", zoned=True)]
        if launched is not None
        else []
    )
    datings += (
        [StartCandidate(Clock.LOG, NOW - ago, "", zoned=False)] if stamped else []
    )
    fields: dict[str, Any] = {"id": f"run-{job}", "job_id": str(job)}
    fields["modified"] = None if written is None else NOW - written
    one = run(started=NOW - ago, **fields)
    path = Path("/logs") / place.format(job)
    files = AttemptFiles(attempt, path)
    found = replace(one.found, attempts=(files,), folder=path.parent)
    clock = Clock.LOG if stamped else Clock.METADATA
    made = replace(one, found=found, datings=tuple(datings), order_source=clock)
    return measurement(
        seconds, run=replace(made, attempts=(replace(one.attempts[0], files=files),))
    )


def decided(*runs: Measurement, **fields: Any) -> Judgement:
    of_runs = evidence(*runs, **fields)
    return with_order_doubt(judge(of_runs), of_runs)


def doubted(*runs: Measurement) -> list[str]:
    return [doubt.rival.run.found.job_id for doubt in find_order_doubts(runs[0], runs)]


def codes(judgement: Judgement) -> set[NoteCode]:
    return {note.code for note in judgement.notes}


# --- positive evidence ----------------------------------------------------------------

CONTRADICTIONS = {
    "a job id": (night(10, HOUR), night(11, DAY)),
    "a job id of a clock that was never set": (
        night(1010, HOUR),
        night(1011, 9000 * DAY),
    ),
    "a job id beside files of one copy": (
        night(10, HOUR, written=MINUTE),
        night(11, DAY, written=MINUTE),
    ),
    "a job id in folders of days": (
        night(10, HOUR, place="2025-11-20/slurm-{}.out"),
        night(11, DAY, place="2025-11-19/slurm-{}.out"),
    ),
    "a job in the name of a folder": (
        night("", HOUR, place="job_10/train.log"),
        night("", DAY, place="job_11/train.log"),
    ),
    "a file of a clock that is a day behind": (
        night("", DAY, written=DAY - 10 * MINUTE),
        night("", 29 * HOUR, written=10 * MINUTE),
    ),
    "a file of a clock that is a day behind, hours later": (
        night("", DAY, written=DAY - 10 * MINUTE),
        night("", DAY + 21 * HOUR, written=21 * HOUR - 10 * MINUTE),
    ),
    "a file of UTC beside local time": (
        night("", 20 * HOUR, written=20 * HOUR - 10 * MINUTE),
        night("", 21 * HOUR, written=19 * HOUR - 10 * MINUTE),
    ),
    "a file of a job that waited, without stamps": (
        night("", DAY, launched=DAY, stamped=False, written=DAY - HOUR),
        night("", 2 * DAY, launched=2 * DAY, stamped=False, written=HOUR),
    ),
    "a launch after the first stamp": (
        night("", 5 * HOUR, launched=5 * HOUR + MINUTE),
        night("", 6 * HOUR, launched=4 * HOUR + MINUTE),
    ),
}


@pytest.mark.parametrize("runs", CONTRADICTIONS.values(), ids=list(CONTRADICTIONS))
def test_contradicted_order_fails_where_results_differ(
    runs: tuple[Measurement, Measurement],
) -> None:
    newest, rival = runs
    slow = replace(rival, statistic_seconds=SLOW, window_seconds=(SLOW,) * 34)
    red = decided(newest, slow)
    assert (red.verdict, red.reason) == (Verdict.INVALID, Reason.ORDER_AMBIGUOUS)
    assert phrase(red).count("run-") >= 2
    assert phrase(red).count("2025-11-") + phrase(red).count("2001-") >= 2
    green = decided(newest, rival)
    assert (green.verdict, NoteCode.ORDER_AMBIGUOUS in codes(green)) == (
        Verdict.PASS,
        True,
    )


def test_regression_stays_with_a_word_of_the_other_run() -> None:
    red = decided(night(10, HOUR, seconds=SLOW), night(11, DAY))
    assert (red.verdict, NoteCode.ORDER_AMBIGUOUS in codes(red)) == (
        Verdict.REGRESSION,
        True,
    )
    assert "ambiguous: run-10 (job 10, 2025-11-20 05:00" in phrase(red)


# --- ordinary nights ------------------------------------------------------------------

ORDINARY = {
    "ascending ids": (night(11, HOUR), night(10, DAY)),
    "ids that were reset": (
        night(57, HOUR),
        night(100123, DAY),
        night(100122, 2 * DAY),
    ),
    "ids that came back to old ones": (
        night(100100, HOUR),
        night(90000, DAY),
        night(57, 300 * DAY),
        night(100123, 400 * DAY),
    ),
    "two clusters": (
        night(10, HOUR, place="eos/slurm-{}.out"),
        night(11, DAY, place="viking/slurm-{}.out"),
    ),
    "two numbered clusters": (
        night(10, HOUR, place="c1/slurm-{}.out"),
        night(11, DAY, place="c2/slurm-{}.out"),
        night(9, 2 * DAY, place="c1/slurm-{}.out"),
        night(8, 3 * DAY, place="c2/slurm-{}.out"),
    ),
    "two clusters of one name pattern": tuple(
        night(base + k // 2, k * DAY + HOUR) for k, base in enumerate((400, 500) * 4)
    ),
    "another kind of id": (night("10_3", HOUR), night("11_2", DAY)),
    "a job that was queued again": (night(10, HOUR, attempt=1), night(14, DAY)),
    "jobs that began together": (night(10, HOUR), night(11, HOUR + 5 * MINUTE)),
    "a queue that the files confirm": (
        night(10, HOUR, written=50 * MINUTE),
        night(11, DAY, written=DAY - 10 * MINUTE),
    ),
    "files of one copy": (
        night("", HOUR, written=2 * MINUTE),
        night("", DAY, written=MINUTE),
    ),
    "files of a slow copy": (
        night("", HOUR, written=50 * MINUTE),
        night("", DAY, written=MINUTE),
    ),
    "an old file that was written anew": (
        night("", DAY, written=DAY - 10 * MINUTE),
        night("", 9 * DAY, written=HOUR),
    ),
    "files that are older than their logs": (
        night("", HOUR, written=90 * DAY),
        night("", DAY, written=80 * DAY),
    ),
    "files without a time": (night("", HOUR), night("", DAY)),
    "two zones of launches": (
        night("", 5 * HOUR, launched=7 * HOUR),
        night("", 6 * HOUR, launched=8 * HOUR),
    ),
    "all logs behind their launches": (
        night("", 5 * HOUR, launched=3 * HOUR),
        night("", 6 * HOUR, launched=4 * HOUR),
    ),
}


@pytest.mark.parametrize("runs", ORDINARY.values(), ids=list(ORDINARY))
def test_ordinary_night_has_no_doubt(runs: tuple[Measurement, ...]) -> None:
    assert doubted(*runs) == []


def test_launched_runs_have_no_doubt() -> None:
    newest = night(10, HOUR)
    found = replace(newest.run.found, launch="x")
    launched = replace(newest, run=replace(newest.run, found=found))
    assert decided(launched, night(11, DAY, seconds=SLOW)).verdict is Verdict.PASS


def test_ambiguous_order_is_accepted_by_an_entry() -> None:
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
    passed = decided(night(10, HOUR), night(11, DAY, seconds=SLOW), accepted=(entry,))
    assert passed.verdict is Verdict.PASS
    assert [
        note.acknowledgement
        for note in passed.notes
        if note.code is NoteCode.ACKNOWLEDGED
    ] == [entry]


def test_age_of_the_rival_does_not_hide_it() -> None:
    runs = night(1010, HOUR), night(1011, 9000 * DAY, seconds=SLOW)
    assert decided(*runs, max_age=DAY).reason is Reason.ORDER_AMBIGUOUS


def test_each_rival_is_judged() -> None:
    """The highest id has the same result, and the latest file another one."""
    newest = night(10, DAY, written=DAY - 10 * MINUTE)
    by_job = night(11, 2 * DAY)
    by_file = night(9, 29 * HOUR, written=HOUR, seconds=SLOW)
    assert doubted(newest, by_file, by_job) == ["9", "11"] or doubted(
        newest, by_file, by_job
    ) == ["11", "9"]
    assert decided(newest, by_file, by_job).reason is Reason.ORDER_AMBIGUOUS


def test_evidence_stays_as_it_was_for_the_newest() -> None:
    of_runs = evidence(night(11, HOUR), night(10, DAY))
    judgement = judge(of_runs)
    assert with_order_doubt(judgement, of_runs) is judgement


@pytest.mark.parametrize(
    ("number", "rivals"), [("4712", ["run-4712"]), ("4710", []), ("", [])]
)
def test_number_in_a_name_orders_runs_without_job_ids(
    number: str, rivals: list[str]
) -> None:
    """`train-4711.out` and `train-4712.out`: the second is stamped a day earlier."""

    def name(one: Measurement, number: str) -> Measurement:
        return replace(
            one,
            run=replace(
                one.run, found=replace(one.run.found, job_id="", number=number)
            ),
        )

    newest = name(night("4711", HOUR, place="llama/train-{}.out"), "4711")
    other = name(night("4712", DAY, place="llama/train-{}.out"), number)
    doubts = [
        doubt.rival.run.id for doubt in find_order_doubts(newest, [newest, other])
    ]
    assert doubts == rivals
