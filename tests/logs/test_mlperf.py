"""MLPerf records: single steps, block means, and steps that count samples or tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from generator.lines import mlperf_record, mlperf_step
from support.shared_data import shared
from support.written_logs import dropped, parse, steps

from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.logs.log_reader import read_log

BATCH = 8


def build_log(*records: str) -> str:
    """Return a log of one run."""
    return "\n".join(
        [
            mlperf_record("global_batch_size", BATCH),
            mlperf_record("run_start", None),
            *records,
            "",
        ]
    )


def statistics_record(value: Mapping[str, float], **metadata: float) -> str:
    return mlperf_record("tracked_stats", dict(value), **metadata)


STOP = mlperf_record("run_stop", None, samples_count=64, status="success")


def test_mlperf_record_of_each_step_gives_its_time_and_loss() -> None:
    run = build_log(
        *(mlperf_step(step, 0.5 + step / 8, 7.5, BATCH) for step in range(4))
    )
    log = parse(run + STOP + "\n")
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "mlperf"
    assert columns.index.tolist() == [0, 1, 2, 3]
    assert columns.seconds.tolist() == [0.5, 0.625, 0.75, 0.875]
    assert columns.consumed_samples.tolist() == [8, 16, 24, 32]
    row = (
        columns.resolution_seconds[0],
        columns.mean_of[0],
        columns.loss[0],
        columns.global_batch_size[0],
    )
    assert row == (0.0, 1, 7.5, BATCH)
    assert (segment.finished, parse(run).segments[0].finished) == (True, False)


@pytest.mark.parametrize(
    ("before", "step"),
    [("", float(BATCH)), (mlperf_record("max_sequence_length", 2048), BATCH * 2048)],
    ids=["samples", "tokens"],
)
def test_step_field_may_count_samples_or_tokens(before: str, step: float) -> None:
    """MLPerf 5.0 writes the samples so far as `step`."""
    records = [
        statistics_record({"train_step_time": 0.5}, step=step * count)
        for count in (1, 2, 3)
    ]
    assert steps(parse(build_log(before, *records))) == [[0, 1, 2]]


def test_records_may_have_rank_labels() -> None:
    batch = mlperf_record("global_batch_size", BATCH)
    assert steps(
        parse(
            f"3: {batch}\n0: {statistics_record({'train_step_time': 0.5}, step=16.0)}\n"
        )
    ) == [[1]]


@pytest.mark.parametrize("step", [7, 0.5, "3", True, [1], -8, 1e300, 0])
def test_mlperf_step_without_a_valid_sample_count_is_dropped(step: object) -> None:
    """A number that is not a multiple of the batch does not count samples.

    Without a batch size no number can be resolved.
    """
    record = mlperf_record("tracked_stats", {"train_step_time": 0.5}, step=step)
    assert dropped(parse(build_log(record))) == {"unknown-step": 1}
    assert dropped(
        parse(statistics_record({"train_step_time": 0.5}, step=768.0) + "\n")
    ) == {"unknown-step": 1}


def block_records(seconds: float, samples: int, last: int) -> list[str]:
    """Return the mean of a block, as printed by NVIDIA's code of 5.1.

    First the samples of the block, then the number of its last step.
    """
    return [
        statistics_record({"train_step_time": seconds}, samples_count=samples),
        mlperf_record("block_stop", None, samples_count=samples, step=last),
    ]


def test_block_means_replace_sampled_steps() -> None:
    """One step of 32 is only a sample: the slow steps may be missing."""
    sampled = [mlperf_step(step, 9.0, 7.0 - step / 64, BATCH) for step in (31, 63)]
    stop = mlperf_record("run_stop", None, samples_count=80 * BATCH)
    log = parse(
        build_log(
            *sampled,
            *block_records(0.5, 64 * BATCH, 64),
            *block_records(0.75, 16 * BATCH, 80),
            stop,
        )
    )
    columns = log.segments[0].steps
    assert columns.index.tolist() == [63, 79]
    assert columns.seconds.tolist() == [0.5, 0.75]
    assert columns.mean_of.tolist() == [64, 16]
    assert columns.loss.tolist()[0] == 7.0 - 63 / 64
    assert columns.has_loss.tolist() == [True, False]
    assert dropped(log) == {"other-records": 2}


def test_blocks_are_dropped_if_every_step_is_printed() -> None:
    single = [mlperf_step(step, 0.5, 7.0, BATCH) for step in range(8)]
    log = parse(build_log(*single, *block_records(0.5, 8 * BATCH, 8), STOP))
    assert log.segments[0].steps.mean_of.tolist() == [1] * 8
    assert dropped(log) == {"other-records": 1}


def test_missing_block_does_not_extend_next_block() -> None:
    columns = (
        parse(
            build_log(
                *block_records(0.5, 8 * BATCH, 8), *block_records(0.25, 8 * BATCH, 24)
            )
        )
        .segments[0]
        .steps
    )
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([7, 23], [8, 8])


def test_mlperf_throughput_of_a_block_is_the_rate_of_all_gpus() -> None:
    """The code of AMD and Cisco prints samples/s at the end of the block.

    `step` is the number of samples so far.
    """
    records = [
        mlperf_record("block_start", None, samples_count=0),
        statistics_record({"throughput": 32.0}, step=96),
        mlperf_record("block_start", None, samples_count=96),
        statistics_record({"throughput": 16.0}, step=128),
    ]
    columns = parse(build_log(*records)).segments[0].steps
    assert columns.index.tolist() == [11, 15]
    assert columns.seconds.tolist() == [BATCH / 32, BATCH / 16]
    assert columns.mean_of.tolist() == [12, 4]


def test_mlperf_rate_after_a_missing_rate_covers_one_block() -> None:
    """Only `block_start` shows that the rate of the first 96 samples is missing."""
    starts = [
        mlperf_record("block_start", None, samples_count=count) for count in (0, 96)
    ]
    columns = (
        parse(build_log(*starts, statistics_record({"throughput": 16.0}, step=128)))
        .segments[0]
        .steps
    )
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([15], [4])


@pytest.mark.parametrize(
    ("rate", "kept"), [(32.0, True), (20.0, True), (4.0, False), (256.0, False)]
)
def test_rate_contradicting_clock_is_dropped(rate: float, kept: bool) -> None:
    """96 samples in 3 s are 32 per second; 4 would be the rate of one GPU of eight."""
    begins = mlperf_record("block_start", None, samples_count=0)
    later = statistics_record({"throughput": rate}, step=96).replace(
        "1759985895027", "1759985898027"
    )
    log = parse(build_log(begins, later))
    assert steps(log) == ([[11]] if kept else [])
    assert dropped(log) == ({} if kept else {"unknown-step": 1})


def test_rate_of_whole_run_is_not_read_as_the_rate_of_a_block() -> None:
    """NVIDIA's code for GPT-3 prints tokens/s of all steps, and the tokens so far.

    The batch size happens to divide the tokens, too.
    """
    after_end = statistics_record({"throughput": 64.0}, step=BATCH * 4096)
    single = [mlperf_step(step, 0.5, 7.0, BATCH) for step in range(8)]
    log = parse(build_log(mlperf_record("run_start", None), *single, STOP, after_end))
    assert steps(log) == [list(range(8))]
    assert dropped(log) == {"unknown-step": 1}


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"throughput": 18785.0}, 1),
        ({"validation_step_time": 0.5}, 64),
        ({"validation_throughput": 1.5e6}, 64),
        (3, 64),
    ],
    ids=["rate of an epoch", "validation time", "validation rate", "number"],
)
def test_mlperf_statistics_of_other_kinds_are_not_steps(
    value: object, step: int
) -> None:
    log = parse(
        build_log(mlperf_record("tracked_stats", value, step=step, samples_count=step))
    )
    assert (log.segments, log.dropped) == ((), ())


def test_mlperf_record_with_time_and_rate_times_the_block_that_it_begins() -> None:
    """NVIDIA's code of 5.0 prints it so."""
    records = [
        statistics_record({"throughput": 32.0, "train_step_time": 0.25}, step=start)
        for start in (0, 48)
    ]
    columns = parse(build_log(*records, STOP)).segments[0].steps
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([5, 7], [6, 2])
    assert columns.seconds.tolist() == [0.25, 0.25]
    assert dropped(parse(build_log(*records))) == {
        "unknown-step": 1
    }  # the end of the last block is unknown


@pytest.mark.parametrize(
    ("value", "loss"),
    [(10**400, math.inf), (-(10**400), -math.inf), (math.nan, math.nan)],
    ids=["too large", "too small", "nan"],
)
def test_huge_number_becomes_infinite_loss(value: float, loss: float) -> None:
    record = statistics_record(
        {"train_step_time": 0.5, "reduced_train_loss": value}, step=8.0
    )
    assert parse(build_log(record)).segments[0].steps.loss.tolist() == pytest.approx(
        [loss], nan_ok=True
    )


def test_non_finite_loss_within_block_is_kept() -> None:
    losses = [
        statistics_record({"train_loss": value}, samples_count=8, step=1)
        for value in (2.5, math.nan, 2.0)
    ]
    assert math.isnan(
        parse(build_log(*losses, *block_records(0.5, 64, 8))).segments[0].steps.loss[0]
    )


def set_time(seconds: float, record: str) -> str:
    """Return a record with a time stamp in seconds."""
    return record.replace(
        '"time_ms": 1759985895027',
        f'"time_ms": {1759985895027 + round(1000 * seconds)}',
    )


def write_maxtext(
    seconds: Sequence[float], *, every: int = 0, stops: bool = True, ends: bool = True
) -> str:
    """Write the records of MaxText: each step is a block.

    The time of a block may follow the start of an evaluation.
    """
    records, clock = [], 0.0
    for index, time in enumerate(seconds):
        clock += time
        values = {"train_step_time": time, "reduced_train_loss": 7 - index / 64}
        step = set_time(
            clock, statistics_record(values, samples_count=BATCH * (index + 1))
        )
        begin = set_time(
            clock - time,
            mlperf_record("block_start", None, samples_count=BATCH, step=index),
        )
        stop = set_time(
            clock,
            mlperf_record("block_stop", None, samples_count=BATCH, step=index + 1),
        )
        records += (
            [begin, *([stop, step] if every and index % every == 0 else [step, stop])]
            if stops
            else [step]
        )
        if every and index % every == 0:
            samples = BATCH * (index + 1)
            records.insert(
                -1,
                set_time(
                    clock, mlperf_record("eval_start", None, samples_count=samples)
                ),
            )
            clock += 9.0
            records.append(
                set_time(clock, mlperf_record("eval_stop", None, samples_count=samples))
            )
    stop = mlperf_record(
        "run_stop", None, samples_count=BATCH * len(seconds), status="success"
    )
    return build_log(*records, *([set_time(clock, stop)] if ends else []))


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("every", [0, 1, 5, 7])
def test_steps_are_numbered_from_the_samples_since_the_start_of_the_run(
    every: int, ends: bool, stops: bool
) -> None:
    times = [0.5 + step % 3 / 64 for step in range(24)]
    log = parse(write_maxtext(times, every=every, stops=stops, ends=ends))
    columns = log.segments[0].steps
    assert columns.index.tolist() == list(range(24))
    assert columns.seconds.tolist() == times
    assert columns.mean_of.tolist() == [1] * 24
    assert columns.has_loss.all()
    assert (log.dropped, log.segments[0].finished) == ((), ends)


def test_two_runs_with_samples_since_start_are_two_attempts() -> None:
    run = write_maxtext([0.5] * 6, every=3)
    assert steps(parse(run + run)) == [list(range(6))] * 2


def test_mlperf_blocks_of_growing_length_remain_block_means() -> None:
    """Their samples add up to the whole run, so they do not count from its start."""
    records = [
        statistics_record({"train_step_time": 0.5}, samples_count=BATCH * steps)
        for steps in (4, 8, 12)
    ]
    stop = mlperf_record("run_stop", None, samples_count=BATCH * 24)
    columns = parse(build_log(*records, stop)).segments[0].steps
    assert (columns.index.tolist(), columns.mean_of.tolist()) == (
        [3, 11, 23],
        [4, 8, 12],
    )


def write_blocks(factor: float, *, first: float = 1.0, rates: bool = False) -> str:
    """Write four blocks of ten steps of 0.5 s, with times wrong by `factor`."""
    records, clock = [], 0.0
    for index in range(4):
        done = BATCH * 10 * index
        records.append(
            set_time(clock, mlperf_record("block_start", None, samples_count=done))
        )
        clock += 5.0 * (first if index == 0 else 1.0)
        if rates:
            records.append(
                set_time(
                    clock,
                    statistics_record(
                        {"throughput": BATCH / (0.5 * factor)}, step=done + 10 * BATCH
                    ),
                )
            )
        else:
            records.append(
                set_time(
                    clock,
                    statistics_record(
                        {"train_step_time": 0.5 * factor}, samples_count=10 * BATCH
                    ),
                )
            )
        records.append(
            set_time(
                clock,
                mlperf_record(
                    "block_stop", None, samples_count=10 * BATCH, step=10 * index + 10
                ),
            )
        )
        clock += 60.0  # an evaluation
    return build_log(*records)


@pytest.mark.parametrize("rates", [True, False])
def test_block_times_that_contradict_the_timestamps_are_reported(rates: bool) -> None:
    for factor in (0.95, 1.0, 1.05):
        assert dropped(parse(write_blocks(factor, rates=rates))) == {}
    for factor in (0.85, 1.2):
        assert dropped(parse(write_blocks(factor, rates=rates))) == {
            "times-disagree": 4
        }
    assert (
        dropped(parse(write_blocks(1.0, first=1.4, rates=rates))) == {}
    )  # the startup of a run


@pytest.mark.parametrize(
    ("printed", "expected"), [(0.5, {}), (0.8, {}), (500.0, {"times-disagree": 12})]
)
def test_step_times_that_contradict_the_timestamps_are_reported(
    printed: float, expected: dict[str, int]
) -> None:
    records = (
        set_time(0.5 * step, mlperf_step(step, printed, 7.5, BATCH))
        for step in range(12)
    )
    assert dropped(parse(build_log(*records))) == expected


def test_more_printed_steps_than_fit_the_sample_count_are_reported() -> None:
    records = (mlperf_step(step, 0.5, 7.5, BATCH) for step in range(12))
    assert dropped(parse(build_log(*records, STOP))) == {"times-disagree": 12}
    assert dropped(parse(build_log(*list(records)[:8], STOP))) == {}


def test_step_numbers_are_unknown_if_the_batch_size_changes() -> None:
    other = mlperf_record("global_batch_size", 16)
    records = [
        statistics_record({"train_step_time": 0.5}, step=float(BATCH * count))
        for count in (1, 2, 3)
    ]
    assert dropped(parse(build_log(records[0], other, *records[1:]))) == {
        "unknown-step": 3
    }


def test_step_numbers_are_unknown_if_the_printed_batch_size_is_zero() -> None:
    """A framework that does not know its batch size prints 0."""
    run = write_maxtext([0.5] * 4).replace(
        f'"global_batch_size", "value": {BATCH}', '"global_batch_size", "value": 0'
    )
    assert dropped(parse(run)) == {"unknown-step": 4}
    assert dropped(
        parse(
            mlperf_record("global_batch_size", 0)
            + "\n"
            + statistics_record({"throughput": 4.0}, step=8)
            + "\n"
        )
    ) == {"unknown-step": 1}


def test_two_runs_in_a_file_are_two_attempts() -> None:
    run = build_log(*block_records(0.5, 64, 8), STOP)
    assert steps(parse(run + run)) == [[7], [7]]


@pytest.mark.parametrize(
    "record",
    [
        mlperf_step(0, 0.5, 7.5, BATCH)[:-20],
        mlperf_step(0, 0.5, 7.5, BATCH).replace("0.5", "0.\x00"),
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": ' + "[" * 4000,
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": '
        + "1" * 5000
        + "}}",
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 1}, "metadata": 3}',
    ],
    ids=["cut", "hole", "nested", "long", "no metadata"],
)
def test_invalid_json_is_counted_as_truncated(record: str) -> None:
    log = parse(build_log(record))
    assert (log.segments, dropped(log)) == ((), {"torn": 1})


def test_model_sequence_length_and_batch_size_are_read_from_the_mlperf_log() -> None:
    stated = [
        mlperf_record("submission_benchmark", "llama31_8b"),
        mlperf_record("max_sequence_length", 8192),
    ]
    log = parse(build_log(*stated, mlperf_step(0, 0.5, 7.5, BATCH)))
    assert {
        statement.field: statement.value for statement in log.segments[0].stated
    } == {
        StatedField.MODEL: "llama31_8b",
        StatedField.SEQUENCE: "8192",
        StatedField.BATCH: str(BATCH),
    }


# --- real logs, counted by an independent reader --------------------------------------


def read_statistics(path: Path) -> list[dict[str, dict[str, float]]]:
    """Read the statistics of a log from the JSON of its lines."""
    records = [
        json.loads(match)
        for match in re.findall(
            r":::MLLOG (\{.*\})", path.read_text("utf-8", "replace")
        )
    ]
    return [record for record in records if record["key"] == "tracked_stats"]


def test_real_log_with_sampled_steps_gives_block_means() -> None:
    path = shared("logs/today/mlperf51_llama31_8b_dell.txt")
    means = [
        record["value"]["train_step_time"]
        for record in read_statistics(path)
        if "step" not in record["metadata"]
    ]
    log = read_log(path)
    (segment,) = log.segments
    assert segment.steps.seconds.tolist() == means
    # run_stop: "step": 6144, "samples_count": 196608, with a batch of 32
    assert segment.steps.mean_of.tolist() == [768] * 8
    assert (segment.steps.index[-1], segment.steps.consumed_samples[-1]) == (
        6143,
        196608,
    )
    assert segment.finished
    assert dropped(log) == {"other-records": 192}


@pytest.mark.parametrize(
    ("name", "batch", "samples"),
    [
        ("mlperf51_llama31_8b_amd.txt", 32, 172032),
        ("mlperf51_lora_cisco.txt", 16, 4224),
    ],
)
def test_real_log_with_rates_gives_step_times(
    name: str, batch: int, samples: int
) -> None:
    """Expected values come from the lines with "run_stop" and "global_batch_size".

    They contain the samples of the run and of a step.
    """
    path = shared(f"logs/today/{name}")
    rates = [
        record["value"]["throughput"]
        for record in read_statistics(path)
        if "throughput" in record["value"]
    ]
    (segment,) = read_log(path).segments
    assert segment.steps.seconds.tolist() == [batch / rate for rate in rates]
    assert int(segment.steps.mean_of.sum()) == samples // batch
    assert segment.finished
