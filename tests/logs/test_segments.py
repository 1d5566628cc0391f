"""Dividing a log into attempts: restarts, ranks, repeated steps and end markers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.written_logs import (
    bar,
    dll,
    dropped,
    maxtext_run,
    nemo2,
    nemo2_log,
    nemo2_run,
    parse,
    steps,
)

START = "[NeMo I 2025-03-07 22:33:59 x] Copying Trainer's 'max_steps' (50) to LR scheduler's 'max_steps'.\n"
ELASTIC = "ining-demo/0   restart_count=1\n"
END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"


def write(order: str) -> str:
    """Write steps in print order, with the lines START, ELASTIC and END."""
    return nemo2_log(order, START=START, ELASTIC=ELASTIC, END=END)


def format_spans(text: str) -> str:
    """Format the first and last step of each segment."""
    return " ".join(f"{numbers[0]}-{numbers[-1]}" for numbers in steps(parse(text)))


ATTEMPTS = {  # the steps as they are printed, and as attempts
    "a gap is no restart": ("0-3 7-9", "0-9"),
    "the step falls": ("0-15 10-19", "0-15 10-19"),
    "to the first step after two": ("0-1 0-9", "0-1 0-9"),
    "a late repeat": ("0-9 8 10-12", "0-12"),
    "three back": ("0-9 6-12", "0-9 6-12"),
    "the last two exchanged": ("0-5 7 6", "0-7"),
    "the first two exchanged": ("1 0 2-9", "0-9"),
    "three turned round": ("0-5 8 7 6 9", "0-9"),
    "one two lines early": ("0-5 8 6-7 9", "0-9"),
    "back to one not seen, and repeated": ("0-5 7 6-12", "0-7 6-12"),
    "late and exchanged": ("0-9 8 7 11 10", "0-11"),
    "exchanged at a start mark": ("0-5 7 START 6 8", "0-7 6-8"),
    "start mark, the step falls": ("0-9 START 8-12", "0-9 8-12"),
    "start mark, the steps continue": ("0-9 START 10-12", "0-9 10-12"),
    "elastic restart": ("0-9 ELASTIC 20-22", "0-9 20-22"),
    "start marks around": ("START ELASTIC START 0-9 START", "0-9"),
    "new step after the end": ("0-9 END 10-19", "0-9 10-19"),
    "repeat after the end": ("0-9 END 9", "0-9"),
}


@pytest.mark.parametrize(("order", "expected"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_attempt_begins_when_steps_restart(order: str, expected: str) -> None:
    assert format_spans(write(order)) == expected


def test_attempt_begins_at_another_total_or_configuration() -> None:
    assert format_spans(nemo2_run(0, 9) + nemo2_run(10, 19, total=20)) == "0-9 10-19"
    assert (
        format_spans(maxtext_run(0, 3) + "Config param steps: 50\n" + maxtext_run(4, 6))
        == "0-3 4-6"
    )


def test_steps_printed_in_the_wrong_order_are_sorted_with_their_lines() -> None:
    log = parse(
        "x\n" + write("0-3") + nemo2(5, "6.5") + nemo2(4) + "x\n" + write("6") + "x\n"
    )
    (segment,) = log.segments
    assert segment.steps.index.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert segment.steps.line.tolist() == [2, 3, 4, 5, 7, 6, 9]
    assert segment.steps.seconds.tolist() == [6.061] * 5 + [6.5, 6.061]
    assert (segment.first_line, segment.last_line) == (2, 9)


def test_boundaries_are_ordered_by_offset_within_a_line() -> None:
    text = (
        "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(3))
        + END.rstrip()
    )
    text += (
        "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(3, 6)) + "\n"
    )
    first, second = parse(text).segments
    assert (first.finished, second.finished) == (True, False)
    assert (first.first_line, first.last_line, second.first_line) == (1, 1, 1)


@pytest.mark.parametrize(
    ("order", "finished"),
    [
        ("0-49", [True]),
        ("0-48", [False]),
        ("0-30 END", [True]),
        ("END 0-30", [False]),
        ("0-30 START END", [False]),
        ("0-30 START 20-40 END", [False, True]),
        ("0-30 END START 20-40", [True, False]),
        ("0-30 20-40 END", [False, True]),
    ],
)
def test_attempt_is_finished_by_last_step_or_end(
    order: str, finished: list[bool]
) -> None:
    assert [segment.finished for segment in parse(write(order)).segments] == finished


def test_lightning_line_finishes_an_attempt_only_if_it_states_the_end() -> None:
    assert (
        parse(write("0-30") + END.replace("max_steps=50", "max_epochs=1"))
        .segments[0]
        .finished
    )
    assert (
        not parse(write("0-30") + "`Trainer.fit` stopped: something else\n")
        .segments[0]
        .finished
    )


def interleaved(*prefixes: str, last: int = 9, first: int = 0) -> str:
    """Write the same steps as several ranks that are not synchronised."""
    lines = [
        (step + index * 0.7, prefix + nemo2(step))
        for index, prefix in enumerate(prefixes)
        for step in range(first, last + 1)
    ]
    return "".join(line for _, line in sorted(lines))


@pytest.mark.parametrize(
    ("prefixes", "kept"),
    [
        (("0: ", "8: "), "0"),
        (("9: [default3]: ", "1: [default3]: ", "4: [default0]: "), "1 default3"),
        (("[rank4]:", "[rank12]:", "[rank3]:", "[rank31]:", "[rank30]:"), "rank3"),
        (("(pretraining, pid=4112) ", "(pretraining, pid=77) "), "pid=77"),
        (("train/0 ", "train/1 "), "train/0"),
    ],
)
def test_ranks_with_the_same_steps_are_not_restarts(
    prefixes: tuple[str, ...], kept: str
) -> None:
    log = parse(interleaved(*prefixes))
    assert steps(log) == [list(range(10))]
    assert log.segments[0].rank == kept
    assert dropped(log) == {"other-rank": 10 * (len(prefixes) - 1)}


def test_rank_with_most_steps_is_kept_whatever_its_number() -> None:
    lines = interleaved("0: ", "7: ").splitlines(keepends=True)
    lines.remove("0: " + nemo2(5))
    log = parse("".join(lines))
    assert log.segments[0].rank == "7"
    assert len(log.segments[0].steps) == 10
    assert dropped(log) == {"other-rank": 9}


def test_step_times_of_the_slower_of_two_contradicting_ranks_are_used() -> None:
    for slow, fast in (("0: ", "1: "), ("1: ", "0: ")):
        log = parse(
            "".join(
                fast + nemo2(step) + slow + nemo2(step, "7.061") for step in range(20)
            )
        )
        assert log.segments[0].rank == slow[0]
        assert dropped(log) == {"other-rank": 20}
    late = ["7.061" if step < 9 else "6.061" for step in range(20)]
    log = parse(
        "".join(
            f"0: {nemo2(step)}1: {nemo2(step, seconds)}"
            for step, seconds in enumerate(late)
        )
    )
    assert log.segments[0].rank == "0", (
        "few steps of another rank are late prints of it, or its own work"
    )


def test_each_attempt_with_interleaved_ranks_gives_the_steps_of_one_rank() -> None:
    log = parse(
        interleaved("0: ", "1: ", last=15)
        + interleaved("0: ", "1: ", first=10, last=19)
    )
    assert steps(log) == [list(range(16)), list(range(10, 20))]
    assert [segment.rank for segment in log.segments] == ["0", "0"]
    assert dropped(log) == {"other-rank": 26}
    another = parse(nemo2_run(0, 15, "3: ") + nemo2_run(10, 19, "5: "))
    assert [segment.rank for segment in another.segments] == ["3", "5"]
    assert another.dropped == ()


def test_line_without_prefix_belongs_to_the_only_rank() -> None:
    log = parse(
        nemo2_run(0, 3, "9: [default3]: ")
        + nemo2(4)
        + nemo2_run(5, 9, "9: [default3]: ")
    )
    assert steps(log) == [list(range(10))]
    assert log.segments[0].rank == "9 default3"


def test_attempts_are_not_joined_by_one_line_of_another_rank() -> None:
    text = (
        nemo2_run(0, 9, "0: ")
        + "1: "
        + nemo2(9)
        + nemo2_run(10, 15, "0: ")
        + nemo2_run(0, 5, "0: ")
    )
    text += "1: " + nemo2(30) + nemo2_run(6, 40, "0: ")
    log = parse(text)
    assert steps(log) == [list(range(16)), list(range(41))]
    assert dropped(log) == {"other-rank": 2}


def test_progress_bars_of_a_line_share_its_rank() -> None:
    bars = "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(20))
    log = parse(f"before\n3: \r{bars}\n5: {bars}\n")
    assert [(segment.rank, len(segment.steps)) for segment in log.segments] == [
        ("3", 20),
        ("5", 20),
    ]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[default3]:cut off [default0]:", "default0"),
        ("(a, pid=1) cut off (b, pid=22) ", "pid=22"),
        ("2: [rank7]: ", "2 rank7"),
        ("z" * 100 + "7: " + "y" * 509, ""),  # further on in a long line it is no label
        ("z 7: ", ""),
        ("7: \r8: ", "8"),
        ("12:30:59 ", ""),
        ("[default]: ", ""),
    ],
)
def test_rank_is_read_from_the_prefix_of_the_step_line(prefix: str, rank: str) -> None:
    for before in ("", "before\n"):
        assert parse(before + prefix + nemo2(3)).segments[0].rank == rank


@pytest.mark.parametrize(
    ("prints", "seconds", "repeats"),
    [
        ("6.000 6.010", 6.0, {"repeated": 1}),
        ("6.010 6.000", 6.01, {"repeated": 1}),
        ("6.000 6.100", 6.1, {"repeat-disagrees": 1}),
        ("6.000 9.000 6.100", 9.0, {"repeat-disagrees": 2}),
        ("nan 6.000", 6.0, {"repeat-disagrees": 1}),
        ("6.000 inf", 6.0, {"repeat-disagrees": 1}),
        ("-1 6.000 0", 6.0, {"repeat-disagrees": 2}),
        ("nan NaN", math.nan, {"repeated": 1}),
        ("0 0", 0.0, {"repeated": 1}),
    ],
)
def test_slower_time_of_a_repeated_step_is_used_unless_impossible(
    prints: str, seconds: float, repeats: dict[str, int]
) -> None:
    log = parse("".join(nemo2(0, each) for each in prints.split()))
    assert log.segments[0].steps.seconds.tolist() == pytest.approx(
        [seconds], nan_ok=True
    )
    assert dropped(log) == repeats


def test_disagreement_is_shown_with_both_lines() -> None:
    log = parse(nemo2(0) + nemo2(1, "6.000") + nemo2(1, "6.100"))
    assert log.segments[0].steps.line.tolist() == [1, 3]
    (disagreement,) = log.dropped
    assert (disagreement.first_line, disagreement.shown) == (
        3,
        "step 1 again: 6.1 s, but 6 s in line 2",
    )


@pytest.mark.parametrize(("offset", "value"), [(0, "nan"), (1, "inf"), (2, "nan")])
def test_non_finite_loss_in_any_record_of_a_repeated_step_is_used(
    offset: int, value: str
) -> None:
    prints = [nemo2(3, "6.000", more=" | grad_norm: 1.5 | x: 1")] * 3
    prints[offset] = nemo2(3, "5.000", more=f" | grad_norm: {value} | x: 1").replace(
        "11.96", value
    )
    columns = parse("".join(prints)).segments[0].steps
    assert columns.seconds.tolist() == [6.0]
    assert not np.isfinite([columns.loss[0], columns.grad_norm[0]]).any()
    assert (columns.has_loss.tolist(), columns.has_grad_norm.tolist()) == (
        [True],
        [True],
    )


def test_more_precise_record_of_a_step_takes_nan_loss_of_its_repeat() -> None:
    record, diverged = dll(0, "52.334"), bar(1, "0.000", "52.30", loss="nan")
    for text in (f"{record}\n{diverged}\n", f"{diverged}{record}\n"):
        columns = parse(text).segments[0].steps
        assert columns.seconds.tolist() == [52.334]
        assert math.isnan(columns.loss[0])
        assert columns.grad_norm.tolist() == [14.857102394104004]
    impossible = parse(dll(0, "nan") + "\n" + bar(1, "0.000", "52.30") + "\n")
    assert impossible.segments[0].steps.seconds.tolist() == [52.3]


def test_nan_loss_of_a_dropped_rank_is_copied_to_the_used_rank() -> None:
    text = interleaved("0: ", "1: ").replace(
        "1: " + nemo2(4), "1: " + nemo2(4).replace("11.96", "nan")
    )
    log = parse(text)
    columns = log.segments[0].steps
    assert log.segments[0].rank == "0"
    assert np.isnan(columns.loss).tolist() == [step == 4 for step in range(10)]
    assert columns.seconds.tolist() == [6.061] * 10
    assert dropped(log) == {"other-rank": 10}


def test_nan_loss_of_another_rank_is_assigned_to_the_attempt_of_its_step() -> None:
    """Both lines of rank 1 are one attempt, rank 0 has two. Step 9 diverged in the
    first attempt only."""
    text = (
        nemo2_run(0, 9, "0: ")
        + "1: "
        + nemo2(9).replace("11.96", "nan")
        + nemo2_run(10, 15, "0: ")
    )
    text += nemo2_run(0, 29, "0: ") + "1: " + nemo2(30) + nemo2_run(30, 40, "0: ")
    first, second = parse(text).segments
    assert np.isnan(first.steps.loss).tolist() == [step == 9 for step in range(16)]
    assert np.isfinite(second.steps.loss).all()


def test_rank_with_finite_step_times_is_preferred_to_rank_with_nan_time() -> None:
    text = interleaved("0: ", "1: ").replace(
        "0: " + nemo2(9), "0: " + nemo2(9, "nan").replace("11.96", "inf")
    )
    log = parse(text)
    assert log.segments[0].rank == "1"
    assert log.segments[0].steps.seconds.tolist() == [6.061] * 10
    assert np.isinf(log.segments[0].steps.loss).tolist() == [
        step == 9 for step in range(10)
    ]


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("ELASTIC 0-49 ELASTIC", 52),
        ("ELASTIC 0-49", 0),
        ("0-30 ELASTIC", 0),
        ("0-49 ELASTIC 0-49", 0),
    ],
)
def test_start_after_a_finished_run_is_reported(order: str, line: int) -> None:
    assert parse(write(order)).begun_again_line == line
