"""Attempts in one log: restarts, ranks, repeats, end marks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from written_logs import bar, dll, dropped, maxtext, maxtext_run, nemo2, nemo2_run, parse, steps

START = "[NeMo I 2025-03-07 22:33:59 x] Copying Trainer's 'max_steps' (50) to LR scheduler's 'max_steps'.\n"
ELASTIC = "ining-demo/0   restart_count=1\n"
END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"


def spans(text: str) -> list[tuple[int, int]]:
    """The first and last step of each segment."""
    return [(numbers[0], numbers[-1]) for numbers in steps(parse(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(nemo2_run(0, 9), [(0, 9)], id="one"),
        pytest.param(nemo2_run(0, 3) + nemo2_run(7, 9), [(0, 9)], id="a gap is no restart"),
        pytest.param(nemo2_run(0, 15) + nemo2_run(10, 19), [(0, 15), (10, 19)], id="step falls"),
        pytest.param(nemo2_run(0, 9) + nemo2_run(0, 9), [(0, 9), (0, 9)], id="from the start"),
        pytest.param(nemo2_run(0, 1) + nemo2_run(0, 9), [(0, 1), (0, 9)], id="to the first step after two"),
        pytest.param(nemo2_run(0, 9) + nemo2(8) + nemo2_run(10, 12), [(0, 12)], id="a late repeat"),
        pytest.param(nemo2_run(0, 9) + nemo2_run(6, 12), [(0, 9), (6, 12)], id="three back"),
        pytest.param(nemo2_run(0, 5) + nemo2(7) + nemo2(6), [(0, 7)], id="the last two exchanged"),
        pytest.param(nemo2_run(0, 5) + nemo2(7) + nemo2(6) + nemo2_run(8, 9), [(0, 9)], id="two exchanged"),
        pytest.param(nemo2(1) + nemo2(0) + nemo2_run(2, 9), [(0, 9)], id="the first two exchanged"),
        pytest.param(nemo2_run(0, 5) + nemo2(8) + nemo2(7) + nemo2(6) + nemo2(9), [(0, 9)], id="three turned round"),
        pytest.param(nemo2_run(0, 5) + nemo2(8) + nemo2_run(6, 7) + nemo2(9), [(0, 9)], id="one two lines early"),
        pytest.param(
            nemo2_run(0, 5) + nemo2(7) + nemo2_run(6, 12), [(0, 7), (6, 12)], id="back to one not seen, and repeated"
        ),
        pytest.param(nemo2_run(0, 9) + nemo2(8) + nemo2(7) + nemo2(11) + nemo2(10), [(0, 11)], id="late and exchanged"),
        pytest.param(
            nemo2_run(0, 5) + nemo2(7) + START + nemo2(6) + nemo2(8), [(0, 7), (6, 8)], id="exchanged at a start mark"
        ),
        pytest.param(nemo2_run(0, 9) + START + nemo2_run(8, 12), [(0, 9), (8, 12)], id="start mark, step falls"),
        pytest.param(nemo2_run(0, 9) + START + nemo2_run(10, 12), [(0, 9), (10, 12)], id="start mark, goes on"),
        pytest.param(nemo2_run(0, 9) + ELASTIC + nemo2_run(20, 22), [(0, 9), (20, 22)], id="elastic restart"),
        pytest.param(START + ELASTIC + START + nemo2_run(0, 9) + START, [(0, 9)], id="start marks around"),
        pytest.param(nemo2_run(0, 9) + nemo2_run(10, 19, total=20), [(0, 9), (10, 19)], id="total changes"),
        pytest.param(nemo2_run(0, 9) + END + nemo2_run(10, 19), [(0, 9), (10, 19)], id="new step after the end"),
        pytest.param(nemo2_run(0, 9) + END + nemo2(9), [(0, 9)], id="repeat after the end"),
        pytest.param(
            maxtext_run(0, 3) + "Config param steps: 50\n" + maxtext_run(4, 6), [(0, 3), (4, 6)], id="maxtext"
        ),
    ],
)
def test_where_an_attempt_begins(text: str, expected: list[tuple[int, int]]) -> None:
    assert spans(text) == expected


def test_exchanged_lines_keep_their_times() -> None:
    lines = [nemo2(step, f"{6 + step / 100:.2f}") for step in range(50)]
    lines[20], lines[21] = lines[21], lines[20]
    (segment,) = parse("".join(lines)).segments
    assert segment.steps.seconds.tolist() == [round(6 + step / 100, 2) for step in range(50)]
    assert segment.steps.line.tolist()[19:23] == [20, 22, 21, 23]


def test_marks_count_by_their_place_even_on_one_line() -> None:
    text = "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(3)) + END.rstrip()
    text += "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(3, 6)) + "\n"
    first, second = parse(text).segments
    assert (first.finished, second.finished) == (True, False)
    assert (first.first_line, first.last_line, second.first_line) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        (nemo2_run(0, 49), [True]),
        (nemo2_run(0, 48), [False]),
        (nemo2_run(0, 30) + END, [True]),
        (nemo2_run(0, 30) + "`Trainer.fit` stopped: `max_epochs=1` reached.\n", [True]),
        (nemo2_run(0, 30) + "`Trainer.fit` stopped: something else\n", [False]),
        (END + nemo2_run(0, 30), [False]),
        (nemo2_run(0, 30) + START + END, [False]),
        (nemo2_run(0, 30) + START + nemo2_run(20, 40) + END, [False, True]),
        (nemo2_run(0, 30) + END + START + nemo2_run(20, 40), [True, False]),
        (nemo2_run(0, 30) + nemo2_run(20, 40) + END, [False, True]),
        (maxtext_run(0, 49), [False]),
        ("Config param steps: 50\n" + maxtext_run(0, 49), [True]),
    ],
)
def test_finished_is_what_the_log_says(text: str, finished: list[bool]) -> None:
    assert [segment.finished for segment in parse(text).segments] == finished


def interleaved(*prefixes: str, last: int = 9, first: int = 0) -> str:
    """The same steps, printed by several ranks that are not in step with each other."""
    lines = [
        (step + place * 0.7, prefix + nemo2(step))
        for place, prefix in enumerate(prefixes)
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
def test_ranks_that_print_the_same_steps_are_no_restarts(prefixes: tuple[str, ...], kept: str) -> None:
    log = parse(interleaved(*prefixes))
    assert steps(log) == [list(range(10))]
    assert log.segments[0].rank == kept
    assert dropped(log) == {"other-rank": 10 * (len(prefixes) - 1)}


def test_the_rank_with_most_steps_speaks_and_the_logging_rank_need_not_be_0() -> None:
    lines = interleaved("0: ", "7: ").splitlines(keepends=True)
    lines.remove("0: " + nemo2(5))
    log = parse("".join(lines))
    assert log.segments[0].rank == "7"
    assert len(log.segments[0].steps) == 10
    assert dropped(log) == {"other-rank": 9}


def test_of_ranks_that_contradict_each_other_the_slower_is_kept() -> None:
    both = [(nemo2(step), nemo2(step).replace("in s: 6", "in s: 7")) for step in range(20)]
    assert both[0][0] != both[0][1]
    for slow in ("0: ", "1: "):
        fast = {"0: ": "1: ", "1: ": "0: "}[slow]
        log = parse("".join(fast + first + slow + second for first, second in both))
        assert log.segments[0].rank == slow[0]
        assert dropped(log) == {"other-rank": 20}
    late = [second if step < 9 else first for step, (first, second) in enumerate(both)]
    log = parse("".join(f"0: {first}1: {second}" for (first, _), second in zip(both, late, strict=True)))
    assert log.segments[0].rank == "0", "few steps of another rank are late prints of it, or its own work"


def test_attempts_of_ranks_are_aligned() -> None:
    text = interleaved("0: ", "1: ", last=15) + interleaved("0: ", "1: ", first=10, last=19)
    log = parse(text)
    assert steps(log) == [list(range(16)), list(range(10, 20))]
    assert [segment.rank for segment in log.segments] == ["0", "0"]
    assert dropped(log) == {"other-rank": 26}


def test_another_rank_may_speak_for_the_next_attempt() -> None:
    log = parse(nemo2_run(0, 15, "3: ") + nemo2_run(10, 19, "5: "))
    assert steps(log) == [list(range(16)), list(range(10, 20))]
    assert [segment.rank for segment in log.segments] == ["3", "5"]
    assert log.dropped == ()


def test_a_line_that_lost_its_prefix_belongs_to_the_only_rank() -> None:
    log = parse(nemo2_run(0, 3, "9: [default3]: ") + nemo2(4) + nemo2_run(5, 9, "9: [default3]: "))
    assert steps(log) == [list(range(10))]
    assert log.segments[0].rank == "9 default3"


def test_a_stray_line_of_another_rank_does_not_join_two_attempts() -> None:
    text = nemo2_run(0, 9, "0: ") + "1: " + nemo2(9) + nemo2_run(10, 15, "0: ") + nemo2_run(0, 5, "0: ")
    text += "1: " + nemo2(30) + nemo2_run(6, 40, "0: ")
    log = parse(text)
    assert steps(log) == [list(range(16)), list(range(41))]
    assert dropped(log) == {"other-rank": 2}


def test_bars_of_one_line_keep_the_rank_of_its_beginning() -> None:
    bars = "\r".join(bar(step + 1, f"{step}.000", "2.000") for step in range(20))
    log = parse(f"before\n3: \r{bars}\n5: {bars}\n")
    assert [(segment.rank, len(segment.steps)) for segment in log.segments] == [("3", 20), ("5", 20)]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[default3]:cut off [default0]:", "default0"),
        ("(a, pid=1) cut off (b, pid=22) ", "pid=22"),
        ("2: [rank7]: ", "2 rank7"),
        ("ining-demo/0 [default0]:", "ining-demo/0 default0"),
        ("z" * 100 + "7: " + "y" * 509, ""),  # further on in a long line it is no label
        ("z 7: ", ""),
        ("7: \r8: ", "8"),
        ("12:30:59 ", ""),
        ("[default]: ", ""),
    ],
)
def test_the_rank_is_what_the_prefix_says(prefix: str, rank: str) -> None:
    for before in ("", "before\n"):
        assert parse(before + prefix + nemo2(3)).segments[0].rank == rank


@pytest.mark.parametrize(
    ("prints", "seconds", "repeats"),
    [
        (["6.000", "6.010"], 6.0, {"repeated": 1}),
        (["6.010", "6.000"], 6.01, {"repeated": 1}),
        (["6.000", "6.100"], 6.1, {"repeat-disagrees": 1}),
        (["6.100", "6.000"], 6.1, {"repeat-disagrees": 1}),
        (["6.000", "9.000", "6.100"], 9.0, {"repeat-disagrees": 2}),
        (["nan", "6.000"], 6.0, {"repeat-disagrees": 1}),
        (["6.000", "nan"], 6.0, {"repeat-disagrees": 1}),
        (["6.000", "inf"], 6.0, {"repeat-disagrees": 1}),
        (["-1", "6.000", "0"], 6.0, {"repeat-disagrees": 2}),
        (["nan", "NaN"], math.nan, {"repeated": 1}),
        (["-1", "-1"], -1.0, {"repeated": 1}),
        (["inf", "inf"], math.inf, {"repeated": 1}),
        (["0", "0"], 0.0, {"repeated": 1}),
    ],
)
def test_of_two_prints_that_disagree_the_slower_possible_one_counts(
    prints: list[str], seconds: float, repeats: dict[str, int]
) -> None:
    log = parse("".join(nemo2(0, each) for each in prints))
    assert log.segments[0].steps.seconds.tolist() == pytest.approx([seconds], nan_ok=True)
    assert dropped(log) == repeats


def test_a_disagreement_is_told_with_both_lines() -> None:
    log = parse(nemo2(0) + nemo2(1, "6.000") + nemo2(1, "6.100"))
    assert log.segments[0].steps.line.tolist() == [1, 3]
    (disagreement,) = log.dropped
    assert (disagreement.first_line, disagreement.shown) == (3, "step 1 again: 6.1 s, but 6 s in line 2")


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_print_that_diverged_is_enough(place: int, value: str) -> None:
    prints = [nemo2(3, "6.000", more=" | grad_norm: 1.5 | x: 1") for _ in range(3)]
    prints[place] = nemo2(3, "5.000", more=f" | grad_norm: {value} | x: 1").replace("11.96", value)
    columns = parse("".join(prints)).segments[0].steps
    assert columns.seconds.tolist() == [6.0]
    assert not np.isfinite([columns.loss[0], columns.grad_norm[0]]).any()
    assert (columns.has_loss.tolist(), columns.has_grad_norm.tolist()) == ([True], [True])


def test_a_precise_record_does_not_hide_a_bar_that_diverged() -> None:
    for text in (dll(0, "52.334") + "\n" + bar(1, "0.000", "52.30", loss="nan"), bar(1, "0.000", "52.30", loss="nan")
                 + dll(0, "52.334")):  # fmt: skip
        columns = parse(text + "\n").segments[0].steps
        assert columns.seconds.tolist() == [52.334]
        assert math.isnan(columns.loss[0])
        assert columns.grad_norm.tolist() == [14.857102394104004]


def test_a_bar_with_a_possible_time_wins_over_a_record_without() -> None:
    columns = parse(dll(0, "nan") + "\n" + bar(1, "0.000", "52.30") + "\n").segments[0].steps
    assert columns.seconds.tolist() == [52.3]


def test_a_rank_that_diverged_is_not_hidden_by_the_rank_that_is_kept() -> None:
    text = interleaved("0: ", "1: ").replace("1: " + nemo2(4), "1: " + nemo2(4).replace("11.96", "nan"))
    log = parse(text)
    columns = log.segments[0].steps
    assert log.segments[0].rank == "0"
    assert np.isnan(columns.loss).tolist() == [step == 4 for step in range(10)]
    assert columns.seconds.tolist() == [6.061] * 10
    assert dropped(log) == {"other-rank": 10}


def test_divergence_of_another_rank_belongs_to_the_attempt_it_stands_in() -> None:
    """Rank 1's two lines are one attempt beside both of rank 0; step 9 diverged in the first only."""
    text = nemo2_run(0, 9, "0: ") + "1: " + nemo2(9).replace("11.96", "nan") + nemo2_run(10, 15, "0: ")
    text += nemo2_run(0, 29, "0: ") + "1: " + nemo2(30) + nemo2_run(30, 40, "0: ")
    first, second = parse(text).segments
    assert np.isnan(first.steps.loss).tolist() == [step == 9 for step in range(16)]
    assert np.isfinite(second.steps.loss).all()


def test_a_rank_with_possible_times_speaks_for_one_without() -> None:
    text = interleaved("0: ", "1: ").replace("0: " + nemo2(9), "0: " + nemo2(9, "nan").replace("11.96", "inf"))
    log = parse(text)
    assert log.segments[0].rank == "1"
    assert log.segments[0].steps.seconds.tolist() == [6.061] * 10
    assert np.isinf(log.segments[0].steps.loss).tolist() == [step == 9 for step in range(10)]


def test_a_precise_record_wins_whichever_comes_first() -> None:
    for text in (dll(0, "52.334") + "\n" + bar(1, "0.000", "52.30"), bar(1, "0.000", "52.30") + dll(0, "52.334")):
        assert parse(text + "\n").segments[0].steps.seconds.tolist() == [52.334]


def test_steps_are_ordered_and_keep_their_lines() -> None:
    log = parse("x\n" + nemo2_run(0, 4) + "x\n" + nemo2(3) + nemo2_run(5, 6) + "x\n")
    (segment,) = log.segments
    assert segment.steps.index.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert segment.steps.line.tolist() == [2, 3, 4, 5, 6, 9, 10]
    assert (segment.first_line, segment.last_line) == (2, 10)


def test_impossible_samples_alone_are_a_segment() -> None:
    log = parse(maxtext(0, "0.000") + maxtext(1, "0.000"))
    assert (log.dialect, steps(log)) == ("maxtext", [[0, 1]])
    assert log.segments[0].steps.seconds.tolist() == [0.0, 0.0]
    assert log.dropped == ()


def test_a_start_behind_a_finished_run_is_told() -> None:
    start = "restart_count=1\n"
    assert parse(start + nemo2_run(0, 49) + start).begun_again_line == 52
    assert parse(start + nemo2_run(0, 49)).begun_again_line == 0
    assert parse(nemo2_run(0, 30) + start).begun_again_line == 0
    assert parse(nemo2_run(0, 49) + start + nemo2_run(0, 49)).begun_again_line == 0
