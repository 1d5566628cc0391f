"""Step times of event files, checked against tokens, validations and wall times."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from support.event_files import event, event_file, scalar
from support.written_logs import dropped, steps

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.logs.sources.compressed import Stream

BEGAN = 1_790_000_000.0
STEP, TOKENS, LAST = 2.0, 4096.0, 60
TIME = "time_metrics/end_to_end(s)"
ALL = frozenset(("tokens", "validations", "walls"))


def read(*events: bytes) -> ParsedLog:
    return read_log(Stream([event_file(*events)], Path("events.out.tfevents.1.node")))


def write_torchtitan(
    interval: int,
    validations: Collection[int] = (),
    *,
    first: int = 1,
    sources: Collection[str] = ALL,
    tokens_of_step: Callable[[int], float] = lambda _: TOKENS,
) -> list[bytes]:
    """Write events with torchtitan's arithmetic.

    `sources` are the values that reveal when its clock restarted.
    """
    clock = since = BEGAN
    tokens = 0.0
    events = []
    for step in range(first, LAST + 1):
        clock += STEP
        tokens += tokens_of_step(step)
        stamp = clock if "walls" in sources else BEGAN
        if step == 1 or step % interval == 0:
            passed = clock - since
            values = [
                scalar(TIME, passed / interval),
                scalar("loss_metrics/global_avg_loss", 9 - step / 20),
            ]
            if "tokens" in sources:
                values.append(scalar("throughput(tps)", tokens / passed))
            events.append(event(step, *values, moment=stamp))
            since, tokens = clock, 0.0
        if step in validations:
            clock += 7.0
            if "validations" in sources:
                events.append(
                    event(
                        step,
                        scalar("validation_metrics/loss", 4.0),
                        moment=stamp + 7.0,
                    )
                )
            since, tokens = clock, 0.0
    return events


def list_wrong_times(log: ParsedLog) -> list[float]:
    """Return the times that differ from the true step time."""
    seconds = [
        value for segment in log.segments for value in segment.steps.seconds.tolist()
    ]
    return [
        value for value in seconds if not math.isnan(value) and abs(value - STEP) > 1e-3
    ]


VALIDATIONS: dict[str, tuple[int, Sequence[int]]] = {
    "every 24": (10, (24, 48)),
    "at the first step, too": (10, (1, 24, 48)),
    "at logged steps": (10, (20, 40)),
    "two in an interval": (10, (23, 27)),
    "more often than logged": (10, range(5, 61, 5)),
    "every second step": (10, range(2, 61, 2)),
    "every 7 of 25": (25, range(7, 61, 7)),
    "every 3 of 2": (2, range(3, 61, 3)),
    "every step logged": (1, (5, 24)),
    "none": (10, ()),
}


@pytest.mark.parametrize(
    "sources",
    [ALL, {"tokens"}, {"validations"}, {"tokens", "walls"}],
    ids=lambda sources: "+".join(sorted(sources)),
)
@pytest.mark.parametrize("name", VALIDATIONS)
def test_step_time_is_correct_after_validation(
    name: str, sources: Collection[str]
) -> None:
    interval, validations = VALIDATIONS[name]
    log = read(*write_torchtitan(interval, validations, sources=sources))
    assert list_wrong_times(log) == []
    assert set(dropped(log)) <= {"partly-timed"}


@pytest.mark.parametrize("name", VALIDATIONS)
def test_torchtitan_csv_rows_give_the_same_steps_as_its_events(name: str) -> None:
    """W&B exports rows with a time, and validations in separate rows."""
    interval, validations = VALIDATIONS[name]
    rows = []
    clock = since = BEGAN
    for step in range(1, LAST + 1):
        clock += STEP
        if step == 1 or step % interval == 0:
            passed = clock - since
            tokens = TOKENS * round(passed / STEP)
            rows.append(
                {
                    "step": step,
                    "_timestamp": clock,
                    TIME: passed / interval,
                    "throughput(tps)": tokens / passed,
                }
            )
            since = clock
        if step in validations:
            clock = since = clock + 7.0
            rows.append(
                {"step": step, "_timestamp": clock, "validation_metrics/loss": 4.0}
            )
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    log = read_log(Stream([text.encode()], Path("history.jsonl")))
    assert list_wrong_times(log) == []
    assert set(dropped(log)) <= {"partly-timed"}


def test_timestamps_of_rows_decide_the_unit_of_step_times() -> None:
    rows = (f"{step},{BEGAN + step / 2},{500 + step % 2}\n" for step in range(1, 13))
    text = "step,_timestamp,iteration-time\n" + "".join(rows)
    log = read_log(Stream([text.encode()], Path("metrics.csv")))
    assert dropped(log) == {"other-unit": 12}
    assert log.segments[0].steps.seconds.tolist() == pytest.approx([0.501, 0.5] * 6)


@pytest.mark.parametrize("first", [21, 25])
def test_step_time_is_correct_in_resumed_run(first: int) -> None:
    """The first interval of a resumed run may have fewer steps."""
    log = read(*write_torchtitan(10, (36,), first=first))
    assert list_wrong_times(log) == []
    assert steps(log) == [[30, 40, 50, 60]]


def test_interval_with_an_unknown_number_of_steps_is_detected_from_wall_times() -> None:
    """Without tokens and validations the steps of the time at step 30 are unknown."""
    log = read(*write_torchtitan(10, (24,), sources={"walls"}))
    assert dropped(log) == {"times-disagree": 1}
    assert log.dropped[0].first_line == log.dropped[0].last_line
    assert "step 30: the interval took 27 s" in log.dropped[0].example


def test_varying_tokens_per_step_are_not_used_to_count_steps() -> None:
    """With packed texts the tokens per step vary; then validations decide."""

    def count_tokens(step: int) -> float:
        return TOKENS * (1 + step * 7 % 13 / 100)

    log = read(*write_torchtitan(10, (24, 48), tokens_of_step=count_tokens))
    assert list_wrong_times(log) == []
    assert dropped(log) == {"partly-timed": 2}
    assert dropped(read(*write_torchtitan(10, tokens_of_step=count_tokens))) == {}


def test_token_count_shows_that_a_validation_is_not_in_the_step_time() -> None:
    """The clock ignores a validation at step 24.

    Its time remains one of ten steps, and is counted as contradicted.
    """
    late = event(24, scalar("validation_metrics/loss", 4.0), moment=BEGAN + 48)
    events = write_torchtitan(10)
    log = read(*events[:3], late, *events[3:])
    assert dropped(log) == {"times-disagree": 1}


# --- units ----------------------------------------------------------------------------


def write_times(
    seconds: Sequence[float], wall: Callable[[int], float], name: str = "iteration-time"
) -> list[bytes]:
    values = (
        (step, scalar(name, value), scalar("throughput", 2.0))
        for step, value in enumerate(seconds, 1)
    )
    return [
        event(step, *scalars, moment=BEGAN + wall(step)) for step, *scalars in values
    ]


def test_integer_milliseconds_become_seconds() -> None:
    """MindFormers: its throughput counts samples and is dropped."""
    log = read(*write_times([499.0, 501.0, 500.0] * 4, lambda step: step * 0.5))
    columns = log.segments[0].steps
    assert columns.seconds.tolist() == pytest.approx([0.499, 0.501, 0.5] * 4)
    assert columns.resolution_seconds.tolist() == [0.001] * 12
    assert all(map(math.isnan, columns.tflops_per_gpu.tolist()))
    assert dropped(log) == {"other-unit": 12}


@pytest.mark.parametrize(
    ("printed", "wall", "expected"),
    [
        (0.5, lambda step: step * 0.5, {}),
        (0.5, lambda step: step * 2.0, {}),  # each step has four micro-batches
        (0.5, lambda step: step * 0.5 + (step // 5) * 60, {}),  # with validations
        (500.25, lambda step: step * 0.7, {"other-unit": 20}),
        (150.0, lambda step: step * 0.15, {"other-unit": 20}),
        (500_000.0, lambda step: step * 0.5, {"other-unit": 20}),
        (0.05, lambda step: step * 3.0, {"times-disagree": 20}),
        (40.0, lambda step: step * 2.0, {"times-disagree": 20}),
        (0.5, lambda _: 0.0, {}),
        (0.5, lambda step: step * 0.0005, {}),  # written afterwards
        (30.0, lambda step: float(step // 10), {}),  # sent in batches of ten
    ],
)
def test_unit_of_step_times_is_corrected_only_if_wall_times_differ_by_a_factor_of_units(
    printed: float, wall: Callable[[int], float], expected: dict[str, int]
) -> None:
    for name in ("iteration-time", "perf/step_time_seconds", "train_step_timing in s"):
        assert dropped(read(*write_times([printed] * 20, wall, name))) == expected


def test_sample_counts_are_not_taken_for_step_numbers() -> None:
    """DeepSpeed counts samples under these names, Megatron in additional metrics."""
    names = (
        "Train/Samples/train_loss",
        "Train/Samples/elapsed_time_ms_step",
        "iteration-time vs samples",
    )
    log = read(
        *(
            event(8 * step, *(scalar(name, 0.5) for name in names))
            for step in range(1, 10)
        )
    )
    assert (log.segments, log.dropped) == ((), ())
    table = b"step,Train/Samples/train_loss\n8,2.5\n16,2.25\n"
    assert (
        read_log(Stream([table], Path("Train_Samples_train_loss.csv"))).segments == ()
    )
