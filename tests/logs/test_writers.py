"""Two processes that write into one file without labels are told as that, in one
line."""

from __future__ import annotations

import pytest
from support.builders import BASELINE, NOW, log, run, segment, steps
from support.written_logs import dropped, nemo2, nemo2_log, parse
from support.written_logs import steps as steps_of

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import DroppedRecords, DropReason
from pytest_llmbench.runs.measure.measurement import measure


def together(
    late: int, mine: str = "6.061", other: str = "6.261", *, last: int = 49
) -> str:
    """Two processes of the same steps, the other one so many steps late."""
    lines = []
    for now in range(last + 1 + late):
        lines += [nemo2(now, mine)] if now <= last else []
        lines += [nemo2(now - late, other)] if now >= late else []
    return "".join(lines)


@pytest.mark.parametrize("late", [3, 40])
def test_writers_at_different_steps_are_reported(late: int) -> None:
    log = parse(together(late))
    assert dropped(log) == {"interleaved": 100}
    assert (
        log.dropped[0].shown == f"step 0 after step {late}, and back to step {late + 1}"
    )
    assert log.dropped[0].first_line == late + 2


@pytest.mark.parametrize("late", [0, 2])
def test_writers_at_the_same_step_are_reported(late: int) -> None:
    log = parse(together(late))
    assert dropped(log).keys() == {"two-writers"}
    assert dropped(log)["two-writers"] >= 45
    assert set(log.segments[-1].steps.seconds.tolist()[3:]) == {6.261}


ALL_EXCHANGED = "".join(
    nemo2(step) for pair in range(0, 50, 2) for step in (pair + 1, pair)
)


@pytest.mark.parametrize(
    "text",
    [
        together(0, other="6.08"),
        together(2, other="6.08"),
        nemo2_log("0-15 10-25 20-35 30-45"),
        nemo2_log("0-20 15 21-30 25 31-40"),
        "".join(
            f"{rank}: {nemo2(step, f'6.{rank}')}"
            for step in range(50)
            for rank in (1, 3)
        ),
        ALL_EXCHANGED,
    ],
    ids=[
        "ranks without labels",
        "late ranks",
        "requeued often",
        "repeated twice",
        "ranks",
        "all lines exchanged",
    ],
)
def test_one_run_is_not_taken_for_two(text: str) -> None:
    assert not dropped(parse(text)).keys() & {"two-writers", "interleaved"}


def test_exchanged_lines_are_one_run() -> None:
    assert steps_of(parse(ALL_EXCHANGED)) == [list(range(50))]


TOLD = (
    DroppedRecords(
        DropReason.INTERLEAVED, 100, 7, "step 0 after step 5, and back to step 6"
    ),
)


def test_a_run_that_lacks_steps_says_that_two_wrote_and_a_whole_one_notes_it() -> None:
    lacking = measure(
        run(log(segment(steps([7.3] * 30), finished=False), dropped=TOLD)),
        BASELINE,
        NOW,
    )
    assert lacking.problems[0].reason is Reason.WINDOW_INCOMPLETE
    assert (lacking.problems[0].line, lacking.problems[0].text) == (
        7,
        "two processes write their steps into this file at once: step 0 after step 5, and back to step 6",
    )
    whole = measure(run(log(segment(), dropped=TOLD)), BASELINE, NOW)
    assert whole.problems == ()
    assert "interleaved" in [note.code for note in whole.notes]
