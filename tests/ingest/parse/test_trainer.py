"""Trainer's records with the time so far: LLaMA-Factory's `trainer_log.jsonl`, ms-swift's `logging.jsonl`."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import pytest
from shared_data import shared
from written_logs import dropped, parse, steps

from pytest_llmbench.ingest.parse.read import read_log


def factory(step: int, elapsed: str, *, total: int = 40, loss: str = '"loss": 2.2, ') -> str:
    """A record of LLaMA-Factory."""
    return f'{{"current_steps": {step}, "total_steps": {total}, {loss}"lr": 1e-06, "elapsed_time": "{elapsed}"}}\n'


def swift(step: int, elapsed: str, speed: str = '"train_speed(iter/s)": 0.2', *, total: int = 40) -> str:
    """A record of ms-swift."""
    return (
        f'{{"loss": 3.95, "grad_norm": 2.1, "learning_rate": 9e-05, "global_step/max_steps": "{step}/{total}", '
        f'"percentage": "1%", "elapsed_time": "{elapsed}", "memory(GiB)": 16.0, {speed}}}\n'
    )


def test_the_time_of_a_step_is_that_since_the_record_before_it() -> None:
    log = parse(
        factory(10, "0:00:32") + factory(20, "0:01:03") + factory(30, "1:00:03") + factory(40, "1 day, 1:00:03")
    )
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "trainer"
    assert columns.index.tolist() == [10, 20, 30, 40]
    assert columns.seconds.tolist() == [3.2, 3.1, 354.0, 8640.0]
    assert columns.mean_of.tolist() == [10] * 4
    assert columns.resolution_seconds.tolist() == [0.1] * 4
    assert (segment.total_steps, segment.finished) == (40, True)


def test_a_resumed_run_does_not_count_the_steps_before_it() -> None:
    """The clock begins anew, the steps do not: the first record would make 0.03 s of a step of 3."""
    columns = parse(factory(1010, "0:00:30", total=2000) + factory(1020, "0:01:00", total=2000)).segments[0].steps
    assert math.isnan(columns.seconds[0])
    assert columns.seconds[1] == 3.0


def test_the_first_step_alone_is_one_step() -> None:
    """ms-swift prints step 1, then every tenth: the second record stands for nine steps."""
    columns = parse(swift(1, "6s", "").replace(", }", "}") + factory(10, "0:00:51")).segments[0].steps
    assert (columns.seconds.tolist(), columns.mean_of.tolist()) == ([6.0, 5.0], [1, 9])


def test_an_evaluation_is_no_part_of_the_next_step() -> None:
    evaluation = factory(20, "0:05:00", loss='"eval_loss": 1.5, ')
    columns = (
        parse(factory(10, "0:00:30") + factory(20, "0:01:00") + evaluation + factory(30, "0:05:30")).segments[0].steps
    )
    assert columns.seconds.tolist() == [3.0, 3.0, 3.0]


def test_the_last_record_repeats_the_last_step() -> None:
    log = parse(factory(10, "0:00:30") + factory(20, "0:01:00") + factory(20, "0:01:09", loss=""))
    assert steps(log) == [[10, 20]]
    assert log.dropped == ()


@pytest.mark.parametrize(
    ("speed", "seconds", "unit"),
    [
        ('"train_speed(iter/s)": 0.4', [2.5, 2.5], 0.25),
        ('"train_speed(s/it)": 2.5', [2.5, 2.5], 0.1),
        ('"train_speed(iter/s)": 0.3', [2.5, 2.5], 0.1),  # 33.3 s: not what is printed beside it
        ('"train_speed(iter/s)": 0', [2.5, 2.5], 0.1),
        ('"train_speed(iter/s)": null', [2.5, 2.5], 0.1),
    ],
)
def test_the_printed_speed_says_the_time_so_far_in_more_digits(speed: str, seconds: list[float], unit: float) -> None:
    """10 steps at 0.4 a second are 25 s, one unit of which is 6.25 s; the speed counts where both agree."""
    columns = parse(swift(10, "25s", speed) + swift(20, "50s", speed)).segments[0].steps
    assert columns.seconds.tolist() == pytest.approx(seconds)
    assert columns.resolution_seconds[0] >= unit


def test_what_else_a_record_says() -> None:
    columns = parse(swift(10, "25s") + swift(20, "50s")).segments[0].steps
    assert columns.loss.tolist() == [3.95, 3.95]
    assert columns.grad_norm.tolist() == [2.1, 2.1]
    assert columns.learning_rate.tolist() == [9e-05, 9e-05]
    assert columns.peak_memory_bytes.tolist() == [16 * 2**30] * 2


def test_a_dictionary_reads_the_same() -> None:
    text = swift(10, "25s") + swift(20, "50s")
    assert repr(parse(text.replace('"', "'")).segments) == repr(parse(text).segments)


@pytest.mark.parametrize("loss", ["NaN", '"nan"', "Infinity"])
def test_a_diverged_loss_is_data(loss: str) -> None:
    columns = parse(factory(10, "0:00:30", loss=f'"loss": {loss}, ')).segments[0].steps
    assert columns.has_loss.all()
    assert not math.isfinite(columns.loss[0])


def test_rewards_are_told() -> None:
    assert parse(factory(10, "0:00:30", loss='"loss": 0.0, "rewards/chosen": 1.0, ')).segments[0].rewards
    assert not parse(factory(10, "0:00:30")).segments[0].rewards


def test_the_record_of_the_whole_run_ends_it() -> None:
    """The last steps are no multiple of what is printed."""
    whole = '{"train_runtime": 110.0, "train_steps_per_second": 0.4, "global_step/max_steps": "44/44"}\n'
    run = swift(10, "25s", total=44) + swift(40, "1m 40s", total=44)
    assert not parse(run).segments[0].finished
    assert parse(run + whole).segments[0].finished


@pytest.mark.parametrize("loss", ["", '"loss": null, '])
def test_the_last_record_of_llama_factory_ends_a_run(loss: str) -> None:
    """It has no loss, and no time of its own: what it took stands for saving, too."""
    last = f'{{"current_steps": 44, "total_steps": 44, {loss}"percentage": 100.0, "elapsed_time": "0:02:30"}}\n'
    run = factory(10, "0:00:30", total=44) + factory(40, "0:02:00", total=44)
    assert not parse(run).segments[0].finished
    log = parse(run + last)
    (segment,) = log.segments
    assert (segment.finished, segment.steps.index.tolist(), log.dropped) == (True, [10, 40], ())


@pytest.mark.parametrize("end", [-2, -9, 30])
def test_a_cut_record_is_torn(end: int) -> None:
    log = parse(factory(10, "0:00:30") + factory(20, "0:01:00")[:end])
    assert steps(log) == [[10]]
    assert dropped(log) == {"torn": 1}


@pytest.mark.parametrize("text", ['the "current_steps": 4 of it\n', "current_steps: 4\n", 'x{"current_steps": "a"}\n'])
def test_words_alone_are_no_record(text: str) -> None:
    assert parse(text).segments == ()


# --- real files: counted here by a reader of a few lines that knows nothing of ours ------------------------


def clock(text: str) -> int:
    """Seconds of `9 days, 22:13:15`, `6:48:06` and `43m 41s`."""
    if ":" in text:
        days, _, rest = text.rpartition(" days, ")
        hours, minutes, seconds = rest.split(":")
        return ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return sum(
        int(number) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)(\w)", text)
    )


def test_a_real_log_of_llama_factory() -> None:
    path = shared("logs/today/llamafactory_trainer_log.jsonl")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    (segment,) = read_log(path).segments
    trained = [each for each in records if "loss" in each]
    assert segment.steps.index.tolist() == [each["current_steps"] for each in trained]
    assert (len(segment.steps), segment.total_steps, segment.finished) == (675, 6750, True)
    # all the time but that of evaluations, each from the record of its step to its own
    evaluated = sum(
        clock(each["elapsed_time"]) - clock(before["elapsed_time"])
        for before, each in pairwise(records)
        if "eval_loss" in each
    )
    trained_seconds = float((segment.steps.seconds * segment.steps.mean_of).sum())
    assert trained_seconds == pytest.approx(clock(trained[-1]["elapsed_time"]) - evaluated)


def test_a_real_log_of_ms_swift() -> None:
    path = shared("logs/today/msswift_logging.jsonl")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    trained = [each for each in records if "loss" in each]
    (segment,) = read_log(path).segments
    columns = segment.steps
    assert columns.index.tolist() == [int(each["global_step/max_steps"].split("/")[0]) for each in trained]
    assert (len(columns), segment.total_steps, segment.finished) == (44, 438, True)
    # by whole seconds each of ten steps is off by 0.1 s at most; five evaluations took 140 to 150 s each
    ends = [clock(each["elapsed_time"]) for each in records if "loss" in each or "eval_loss" in each]
    gaps = [after - before for before, after in pairwise(ends)]
    assert sorted(gaps)[-5:] > [140] * 5
    assert float((columns.seconds * columns.mean_of).sum()) == pytest.approx(ends[-1] - sum(sorted(gaps)[-5:]), abs=6)


def test_a_chat_protocol_of_the_same_name_is_no_run() -> None:
    log = read_log(shared("logs/today/not_a_run_logging.jsonl"))
    assert (log.dialect, log.dropped) == (None, ())
