"""Trainer records with an elapsed time: `trainer_log.jsonl` and `logging.jsonl`.

LLaMA-Factory writes the former, ms-swift the latter.
"""

from __future__ import annotations

import math

import pytest
from support.shared_data import shared
from support.written_logs import dropped, parse, steps

from pytest_llmbench.logs.log_reader import read_log


def factory_record(
    step: int, elapsed: str, *, total: int = 40, loss: str = '"loss": 2.2, '
) -> str:
    """Return a record of LLaMA-Factory."""
    return f'{{"current_steps": {step}, "total_steps": {total}, {loss}"lr": 1e-06, "elapsed_time": "{elapsed}"}}\n'


def swift_record(
    step: int,
    elapsed: str,
    speed: str = '"train_speed(iter/s)": 0.2',
    *,
    total: int = 40,
) -> str:
    """Return a record of ms-swift."""
    return (
        f'{{"loss": 3.95, "grad_norm": 2.1, "learning_rate": 9e-05, "global_step/max_steps": "{step}/{total}", '
        f'"percentage": "1%", "elapsed_time": "{elapsed}", "memory(GiB)": 16.0, {speed}}}\n'
    )


def test_step_time_is_time_since_previous_record() -> None:
    ends = {10: "0:00:32", 20: "0:01:03", 30: "1:00:03", 40: "1 day, 1:00:03"}
    log = parse("".join(factory_record(*step) for step in ends.items()))
    (segment,) = log.segments
    columns = segment.steps
    assert (log.dialect, columns.index.tolist()) == ("trainer", [10, 20, 30, 40])
    assert columns.seconds.tolist() == [3.2, 3.1, 354.0, 8640.0]
    assert (columns.mean_of[0], columns.resolution_seconds[0]) == (10, 0.1)
    assert (segment.total_steps, segment.finished) == (40, True)


def test_resumed_run_ignores_earlier_steps() -> None:
    """The clock restarts, the step numbers do not.

    Otherwise a step of 3 s would take 0.03 s in the first record.
    """
    columns = (
        parse(
            factory_record(1010, "0:00:30", total=2000)
            + factory_record(1020, "0:01:00", total=2000)
        )
        .segments[0]
        .steps
    )
    assert math.isnan(columns.seconds[0])
    assert columns.seconds[1] == 3.0


def factory_records(ends: dict[int, int]) -> str:
    """Return records of LLaMA-Factory by step and elapsed seconds."""
    return "".join(
        factory_record(step, f"0:{elapsed // 60:02d}:{elapsed % 60:02d}", total=2000)
        for step, elapsed in ends.items()
    )


WHOLE = {step: 3 * step for step in range(10, 401, 10)}


@pytest.mark.parametrize(
    ("ends", "step", "seconds"),
    [
        pytest.param(WHOLE | {410: 30, 420: 60}, 410, 3.0, id="late"),
        pytest.param({10: 30, 20: 60, 30: 90, 40: 30, 50: 60}, 40, 3.0, id="early"),
        pytest.param({10: 30, 20: 60, 30: 31, 40: 61}, 30, 3.1, id="after two records"),
        pytest.param(WHOLE | {410: 75, 420: 105}, 410, 7.5, id="slow to start"),
        pytest.param(
            WHOLE | {410: 15, 420: 45},
            410,
            math.nan,
            id="resumed after the last record",
        ),
        pytest.param(
            WHOLE | {410: 1198, 420: 1228},
            410,
            math.nan,
            id="clock of the machine set back",
        ),
    ],
)
def test_step_time_is_correct_if_elapsed_time_restarts_in_a_resumed_run(
    ends: dict[int, int], step: int, seconds: float
) -> None:
    log = parse(factory_records(ends))
    (segment,) = log.segments
    times = dict(
        zip(segment.steps.index.tolist(), segment.steps.seconds.tolist(), strict=True)
    )
    assert times.pop(step) == pytest.approx(seconds, nan_ok=True)
    assert set(times.values()) == {3.0}
    assert dropped(log) == ({} if ends.get(410) == 1198 else {"clock-restarted": 1})


def test_resumed_run_after_a_start_line_continues_from_the_last_step() -> None:
    first, second = parse(
        factory_records(WHOLE)
        + "***** Running training *****\n"
        + factory_records({410: 30, 420: 60})
    ).segments
    assert (len(first.steps), second.steps.seconds.tolist()) == (40, [3.0, 3.0])


def test_trainer_record_of_the_first_step_covers_one_step() -> None:
    """ms-swift prints step 1, then every tenth step: the second record covers nine."""
    columns = (
        parse(
            swift_record(1, "6s", "").replace(", }", "}")
            + factory_record(10, "0:00:51")
        )
        .segments[0]
        .steps
    )
    assert (columns.seconds.tolist(), columns.mean_of.tolist()) == ([6.0, 5.0], [1, 9])


def test_step_time_excludes_previous_evaluation() -> None:
    evaluation = factory_record(20, "0:05:00", loss='"eval_loss": 1.5, ')
    columns = (
        parse(
            factory_record(10, "0:00:30")
            + factory_record(20, "0:01:00")
            + evaluation
            + factory_record(30, "0:05:30")
        )
        .segments[0]
        .steps
    )
    assert columns.seconds.tolist() == [3.0, 3.0, 3.0]


def test_last_trainer_record_may_repeat_the_last_step() -> None:
    log = parse(
        factory_record(10, "0:00:30")
        + factory_record(20, "0:01:00")
        + factory_record(20, "0:01:09", loss="")
    )
    assert steps(log) == [[10, 20]]
    assert log.dropped == ()


@pytest.mark.parametrize(
    ("speed", "unit"),
    [
        ('"train_speed(iter/s)": 0.4', 0.25),
        ('"train_speed(s/it)": 2.5', 0.1),
        ('"train_speed(iter/s)": 0.3', 0.1),  # 33.3 s contradicts the printed time
        ('"train_speed(iter/s)": 0', 0.1),
        ('"train_speed(iter/s)": null', 0.1),
    ],
)
def test_printed_speed_refines_time_if_consistent(speed: str, unit: float) -> None:
    """10 steps at 0.4 per second are 25 s, with a resolution of 6.25 s."""
    columns = (
        parse(swift_record(10, "25s", speed) + swift_record(20, "50s", speed))
        .segments[0]
        .steps
    )
    assert columns.seconds.tolist() == pytest.approx([2.5, 2.5])
    assert columns.resolution_seconds[0] >= unit


def test_trainer_record_gives_loss_gradient_norm_learning_rate_and_memory() -> None:
    text = swift_record(10, "25s")
    for record in (text, text.replace('"', "'")):
        columns = parse(record).segments[0].steps
        assert (columns.loss[0], columns.grad_norm[0], columns.learning_rate[0]) == (
            3.95,
            2.1,
            9e-05,
        )
        assert columns.peak_memory_bytes[0] == 16 * 2**30


@pytest.mark.parametrize("loss", ["NaN", '"nan"', "Infinity"])
def test_non_finite_loss_is_kept(loss: str) -> None:
    columns = (
        parse(factory_record(10, "0:00:30", loss=f'"loss": {loss}, ')).segments[0].steps
    )
    assert columns.has_loss.all()
    assert not math.isfinite(columns.loss[0])


def test_run_with_reward_fields_is_marked_as_reward_training() -> None:
    assert (
        parse(
            factory_record(10, "0:00:30", loss='"loss": 0.0, "rewards/chosen": 1.0, ')
        )
        .segments[0]
        .rewards
    )
    assert not parse(factory_record(10, "0:00:30")).segments[0].rewards


def test_record_of_whole_run_finishes_run() -> None:
    """The last step need not be a multiple of the log interval."""
    final = '{"train_runtime": 110.0, "train_steps_per_second": 0.4, "global_step/max_steps": "44/44"}\n'
    run = swift_record(10, "25s", total=44) + swift_record(40, "1m 40s", total=44)
    assert not parse(run).segments[0].finished
    assert parse(run + final).segments[0].finished


@pytest.mark.parametrize("loss", ["", '"loss": null, '])
def test_last_record_of_llama_factory_finishes_run(loss: str) -> None:
    """It has no loss, and its time includes saving."""
    last = f'{{"current_steps": 44, "total_steps": 44, {loss}"percentage": 100.0, "elapsed_time": "0:02:30"}}\n'
    run = factory_record(10, "0:00:30", total=44) + factory_record(
        40, "0:02:00", total=44
    )
    assert not parse(run).segments[0].finished
    log = parse(run + last)
    (segment,) = log.segments
    assert (segment.finished, segment.steps.index.tolist(), log.dropped) == (
        True,
        [10, 40],
        (),
    )


@pytest.mark.parametrize("end", [-2, -9, 30])
def test_truncated_trainer_record_is_reported_as_dropped(end: int) -> None:
    log = parse(factory_record(10, "0:00:30") + factory_record(20, "0:01:00")[:end])
    assert steps(log) == [[10]]
    assert dropped(log) == {"torn": 1}


@pytest.mark.parametrize(
    "text",
    [
        'the "current_steps": 4 of it\n',
        "current_steps: 4\n",
        'x{"current_steps": "a"}\n',
    ],
)
def test_field_names_without_record_are_ignored(text: str) -> None:
    assert parse(text).segments == ()


# --- real files, counted by an independent reader -------------------------------------


@pytest.mark.parametrize(
    ("name", "last", "count", "total", "seconds"),
    [
        # grep -c '"loss"': 675; elapsed_time of the last record, minus the time of the
        # evaluations
        ("llamafactory_trainer_log.jsonl", 6750, 675, 6750, 21606.0),
        # grep -c '"loss"': 44; in whole seconds, minus five evaluations of 140 to 150 s
        ("msswift_logging.jsonl", 430, 44, 438, 2175.0),
    ],
)
def test_real_log_gives_steps_and_time(
    name: str, last: int, count: int, total: int, seconds: float
) -> None:
    (segment,) = read_log(shared(f"logs/today/{name}")).segments
    columns = segment.steps
    assert (columns.index[-1], len(columns), segment.total_steps, segment.finished) == (
        last,
        count,
        total,
        True,
    )
    assert float((columns.seconds * columns.mean_of).sum()) == pytest.approx(
        seconds, abs=6
    )


def test_chat_log_named_like_a_trainer_log_is_not_a_run() -> None:
    log = read_log(shared("logs/today/not_a_run_logging.jsonl"))
    assert (log.dialect, log.dropped) == (None, ())
