"""Two processes that write into one log without rank labels are reported."""

from __future__ import annotations

import pytest
from support.builders import BASELINE, NOW, log, run, segment, steps
from support.written_logs import dropped, nemo2, nemo2_log, parse
from support.written_logs import steps as steps_of

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import DroppedRecords, DropReason
from pytest_llmbench.runs.measure.measurement import measure


def write_two_processes(
    late: int, mine: str = "6.061", other: str = "6.261", *, last: int = 49
) -> str:
    """Write the steps of two processes, the second one `late` steps behind."""
    lines = []
    for step in range(last + 1 + late):
        lines += [nemo2(step, mine)] if step <= last else []
        lines += [nemo2(step - late, other)] if step >= late else []
    return "".join(lines)


@pytest.mark.parametrize("late", [3, 40])
def test_two_jobs_writing_different_steps_are_reported(late: int) -> None:
    log = parse(write_two_processes(late))
    assert dropped(log) == {"interleaved": 100}
    assert (
        log.dropped[0].shown == f"step 0 after step {late}, and back to step {late + 1}"
    )
    assert log.dropped[0].first_line == late + 2


@pytest.mark.parametrize("late", [0, 2])
def test_two_jobs_writing_the_same_steps_are_reported(late: int) -> None:
    log = parse(write_two_processes(late))
    assert dropped(log).keys() == {"two-writers"}
    assert dropped(log)["two-writers"] >= 45
    assert set(log.segments[-1].steps.seconds.tolist()[3:]) == {6.261}


ALL_SWAPPED = "".join(
    nemo2(step) for pair in range(0, 50, 2) for step in (pair + 1, pair)
)


@pytest.mark.parametrize(
    "text",
    [
        write_two_processes(0, other="6.08"),
        write_two_processes(2, other="6.08"),
        nemo2_log("0-15 10-25 20-35 30-45"),
        nemo2_log("0-20 15 21-30 25 31-40"),
        "".join(
            f"{rank}: {nemo2(step, f'6.{rank}')}"
            for step in range(50)
            for rank in (1, 3)
        ),
        ALL_SWAPPED,
    ],
    ids=[
        "ranks without labels",
        "late ranks",
        "requeued often",
        "repeated twice",
        "ranks",
        "all lines swapped",
    ],
)
def test_log_of_one_run_reports_no_second_writer(text: str) -> None:
    assert not dropped(parse(text)).keys() & {"two-writers", "interleaved"}


def test_log_with_swapped_lines_is_one_run() -> None:
    assert steps_of(parse(ALL_SWAPPED)) == [list(range(50))]


INTERLEAVED = (
    DroppedRecords(
        DropReason.INTERLEAVED, 100, 7, "step 0 after step 5, and back to step 6"
    ),
)


def test_run_with_two_writers_is_invalid_only_if_incomplete() -> None:
    """A problem of an incomplete run, a note of a complete run."""
    incomplete = measure(
        run(log(segment(steps([7.3] * 30), finished=False), dropped=INTERLEAVED)),
        BASELINE,
        NOW,
    )
    assert incomplete.problems[0].reason is Reason.WINDOW_INCOMPLETE
    assert (incomplete.problems[0].line, incomplete.problems[0].text) == (
        7,
        "two processes write their steps into this file at once: step 0 after step 5, and back to step 6",
    )
    complete = measure(run(log(segment(), dropped=INTERLEAVED)), BASELINE, NOW)
    assert complete.problems == ()
    assert "interleaved" in [note.code for note in complete.notes]
