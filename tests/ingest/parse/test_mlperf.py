"""MLPerf's records: single steps, means of blocks, samples or tokens in the place of steps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from generator.lines import mlperf_record, mlperf_step
from shared_data import shared
from written_logs import dropped, parse, steps

from pytest_llmbench.core.models import StatedField
from pytest_llmbench.ingest.parse.read import read_log

BATCH = 8


def log_of(*records: str) -> str:
    """A log of one run."""
    return "\n".join([mlperf_record("global_batch_size", BATCH), mlperf_record("run_start", None), *records, ""])


def stats(value: Mapping[str, float], **metadata: float) -> str:
    return mlperf_record("tracked_stats", dict(value), **metadata)


STOP = mlperf_record("run_stop", None, samples_count=64, status="success")


def test_a_step_has_its_printed_time() -> None:
    log = parse(log_of(*(mlperf_step(step, 0.5 + step / 8, 7.5, BATCH) for step in range(4)), STOP))
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "mlperf"
    assert columns.index.tolist() == [0, 1, 2, 3]
    assert columns.seconds.tolist() == [0.5, 0.625, 0.75, 0.875]
    assert columns.resolution_seconds.tolist() == [0.0] * 4
    assert columns.mean_of.tolist() == [1] * 4
    assert columns.loss.tolist() == [7.5] * 4
    assert columns.global_batch_size.tolist() == [BATCH] * 4
    assert columns.consumed_samples.tolist() == [8, 16, 24, 32]
    assert segment.finished


def test_a_log_without_run_stop_is_not_finished() -> None:
    assert not parse(log_of(mlperf_step(0, 0.5, 7.5, BATCH))).segments[0].finished


def test_samples_in_the_place_of_a_step() -> None:
    """MLPerf 5.0 writes the samples so far as `step`."""
    records = [stats({"train_step_time": 0.5}, step=float(BATCH * count)) for count in (1, 2, 3)]
    assert steps(parse(log_of(*records))) == [[0, 1, 2]]


def test_tokens_in_the_place_of_a_step() -> None:
    records = [stats({"train_step_timing in s": 0.5}, step=BATCH * 2048 * count) for count in (1, 2, 3)]
    assert steps(parse(log_of(mlperf_record("max_sequence_length", 2048), *records))) == [[0, 1, 2]]


@pytest.mark.parametrize("step", [7, 31.0, 0.5, "3", True, [1], -8, 1e300, 0])
def test_a_step_that_may_be_anything_has_no_number(step: object) -> None:
    """Without the samples beside it a number that is no multiple of the batch is none of samples."""
    log = parse(log_of(mlperf_record("tracked_stats", {"train_step_time": 0.5}, step=step)))
    assert log.segments == ()
    assert dropped(log) == {"unknown-step": 1}


def test_without_a_batch_samples_are_no_step() -> None:
    log = parse(stats({"train_step_time": 0.5}, step=768.0) + "\n")
    assert dropped(log) == {"unknown-step": 1}


def block(seconds: float, samples: int, last: int) -> list[str]:
    """The mean of a block, as NVIDIA's code of 5.1 prints it: its own samples, then the number of its last step."""
    return [
        stats({"train_step_time": seconds}, samples_count=samples),
        mlperf_record("block_stop", None, samples_count=samples, step=last),
    ]


def test_means_of_blocks_count_where_only_every_32nd_step_is_printed() -> None:
    """A single step in 32 is a sample: which steps were slow it cannot say."""
    sampled = [mlperf_step(step, 9.0, 7.0 - step / 64, BATCH) for step in (31, 63)]
    log = parse(log_of(*sampled, *block(0.5, 64 * BATCH, 64), *block(0.75, 16 * BATCH, 80), STOP))
    columns = log.segments[0].steps
    assert columns.index.tolist() == [63, 79]
    assert columns.seconds.tolist() == [0.5, 0.75]
    assert columns.mean_of.tolist() == [64, 16]
    assert columns.loss.tolist()[0] == 7.0 - 63 / 64
    assert columns.has_loss.tolist() == [True, False]
    assert dropped(log) == {"other-records": 2}


def test_every_step_counts_where_every_step_is_printed() -> None:
    single = [mlperf_step(step, 0.5, 7.0, BATCH) for step in range(8)]
    log = parse(log_of(*single, *block(0.5, 8 * BATCH, 8), STOP))
    assert log.segments[0].steps.mean_of.tolist() == [1] * 8
    assert dropped(log) == {"other-records": 1}


def test_a_lost_block_is_no_part_of_the_next_one() -> None:
    log = parse(log_of(*block(0.5, 8 * BATCH, 8), *block(0.25, 8 * BATCH, 24)))
    columns = log.segments[0].steps
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([7, 23], [8, 8])


def test_a_rate_of_samples_is_that_of_all_gpus_over_a_block() -> None:
    """AMD's and Cisco's code: samples/s, and the samples so far at the end of the block."""
    records = [
        mlperf_record("block_start", None, samples_count=0),
        stats({"throughput": 32.0}, step=96),
        mlperf_record("block_start", None, samples_count=96),
        stats({"throughput": 16.0}, step=128),
    ]
    columns = parse(log_of(*records)).segments[0].steps
    assert columns.index.tolist() == [11, 15]
    assert columns.seconds.tolist() == [BATCH / 32, BATCH / 16]
    assert columns.mean_of.tolist() == [12, 4]


@pytest.mark.parametrize(("rate", "kept"), [(32.0, True), (20.0, True), (4.0, False), (256.0, False)])
def test_a_rate_has_to_fit_the_clock(rate: float, kept: bool) -> None:
    """96 samples in 3 s are 32 a second; 4 would be the rate of one GPU of eight."""
    begins = mlperf_record("block_start", None, samples_count=0)
    later = stats({"throughput": rate}, step=96).replace("1759985895027", "1759985898027")
    log = parse(log_of(begins, later))
    assert steps(log) == ([[11]] if kept else [])
    assert dropped(log) == ({} if kept else {"unknown-step": 1})


def test_the_rate_of_the_whole_run_behind_its_end_is_no_block() -> None:
    """NVIDIA's code for GPT-3: tokens/s of all steps, and the tokens so far, which the batch divides as well."""
    behind = stats({"throughput": 64.0}, step=BATCH * 4096)
    single = [mlperf_step(step, 0.5, 7.0, BATCH) for step in range(8)]
    log = parse(log_of(mlperf_record("run_start", None), *single, STOP, behind))
    assert steps(log) == [list(range(8))]
    assert dropped(log) == {"unknown-step": 1}


def test_rates_of_epochs_say_nothing() -> None:
    log = parse(log_of(*(stats({"throughput": 18785.0}, step=epoch) for epoch in (1, 2, 3))))
    assert (log.segments, log.dropped) == ((), ())


def test_a_rate_behind_a_lost_one_is_of_its_own_block() -> None:
    records = [mlperf_record("block_start", None, samples_count=96), stats({"throughput": 16.0}, step=128)]
    assert parse(log_of(*records)).segments[0].steps.mean_of.tolist() == [4]


def test_a_time_with_a_rate_stands_where_its_block_begins() -> None:
    """NVIDIA's code of 5.0."""
    records = [stats({"throughput": 32.0, "train_step_time": 0.25}, step=begin) for begin in (0, 48)]
    columns = parse(log_of(*records, STOP)).segments[0].steps
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([5, 7], [6, 2])
    assert columns.seconds.tolist() == [0.25, 0.25]
    assert dropped(parse(log_of(*records))) == {"unknown-step": 1}  # nothing says where the last one ends


def test_a_loss_that_is_no_number_is_one_of_its_block() -> None:
    losses = [stats({"train_loss": value}, samples_count=8, step=1) for value in (2.5, math.nan, 2.0)]
    assert math.isnan(parse(log_of(*losses, *block(0.5, 64, 8))).segments[0].steps.loss[0])


@pytest.mark.parametrize(("value", "loss"), [(10**400, math.inf), (-(10**400), -math.inf), (math.nan, math.nan)])
def test_a_number_of_any_length_is_one(value: float, loss: float) -> None:
    record = stats({"train_step_time": 0.5, "reduced_train_loss": value}, step=8.0)
    assert repr(parse(log_of(record)).segments[0].steps.loss.tolist()) == repr([loss])


def test_a_batch_that_changes_makes_samples_uncertain() -> None:
    other = mlperf_record("global_batch_size", 16)
    records = [stats({"train_step_time": 0.5}, step=float(BATCH * count)) for count in (1, 2, 3)]
    assert dropped(parse(log_of(records[0], other, *records[1:]))) == {"unknown-step": 3}


@pytest.mark.parametrize("prefix", ["", "0: ", "  3: ", "[rank0]:"])
def test_labels_of_ranks(prefix: str) -> None:
    text = log_of(*(mlperf_step(step, 0.5, 7.5, BATCH) for step in range(4)))
    log = parse("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert steps(log) == [[0, 1, 2, 3]]


def test_another_rank_may_say_the_batch() -> None:
    said = "3: " + mlperf_record("global_batch_size", BATCH) + "\n"
    assert steps(parse(said + "0: " + stats({"train_step_time": 0.5}, step=16.0) + "\n")) == [[1]]


def test_two_runs_in_a_file_are_two_attempts() -> None:
    run = log_of(*block(0.5, 64, 8), STOP)
    assert steps(parse(run + run)) == [[7], [7]]


@pytest.mark.parametrize(
    "record",
    [
        mlperf_step(0, 0.5, 7.5, BATCH)[:-20],
        mlperf_step(0, 0.5, 7.5, BATCH).replace("0.5", "0.\x00"),
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": ' + "[" * 4000,
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": ' + "1" * 5000 + "}}",
        ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 1}, "metadata": 3}',
    ],
    ids=["cut", "hole", "nested", "long", "no-metadata"],
)
def test_a_record_that_is_no_json_is_torn(record: str) -> None:
    log = parse(log_of(record))
    assert log.segments == ()
    assert dropped(log) == {"torn": 1}


@pytest.mark.parametrize(
    "value",
    [{"validation_step_time": 0.5}, {"warmup_time": 99.0}, {"init_finished": 0.1}, {"validation_throughput": 1.5e6}, 3],
    ids=str,
)
def test_other_statistics_are_no_steps(value: object) -> None:
    log = parse(log_of(mlperf_record("tracked_stats", value, step=64, samples_count=64)))
    assert (log.segments, log.dropped) == ((), ())


def test_what_it_says_of_itself() -> None:
    said = [mlperf_record("submission_benchmark", "llama31_8b"), mlperf_record("max_sequence_length", 8192)]
    log = parse("\n".join([*said, log_of(mlperf_step(0, 0.5, 7.5, BATCH))]))
    stated = {(each.field, each.value) for each in log.segments[0].stated}
    assert stated == {
        (StatedField.MODEL, "llama31_8b"),
        (StatedField.SEQUENCE, "8192"),
        (StatedField.BATCH, str(BATCH)),
    }


# --- real logs: counted here by a reader of a few lines that knows nothing of ours -------------------------


def read_records(path: Path) -> list[dict[str, object]]:
    """Every record, by the lines' own JSON."""
    text = path.read_text("utf-8", "replace")
    return [json.loads(match) for match in re.findall(r":::MLLOG (\{.*\})", text)]


def test_a_real_log_with_every_32nd_step() -> None:
    path = shared("logs/today/mlperf51_llama31_8b_dell.txt")
    stats = [each for each in read_records(path) if each["key"] == "tracked_stats"]
    means = [each["value"]["train_step_time"] for each in stats if "step" not in each["metadata"]]  # type: ignore[index,operator]
    single = [each for each in stats if "reduced_train_loss" in each["value"]]  # type: ignore[operator]
    log = read_log(path)
    (segment,) = log.segments
    assert segment.steps.seconds.tolist() == means
    assert (len(means), len(single)) == (8, 192)
    # run_stop: "step": 6144, "samples_count": 196608, with a batch of 32
    assert segment.steps.mean_of.tolist() == [768] * 8
    assert int(segment.steps.index[-1]) == 6143
    assert segment.steps.consumed_samples[-1] == 196608
    assert segment.finished
    assert dropped(log) == {"other-records": 192}


@pytest.mark.parametrize(
    ("name", "batch", "samples"), [("mlperf51_llama31_8b_amd.txt", 32, 172032), ("mlperf51_lora_cisco.txt", 16, 4224)]
)
def test_a_real_log_of_rates(name: str, batch: int, samples: int) -> None:
    """grep '"run_stop"' shows the samples of the run, '"global_batch_size"' those of a step."""
    path = shared(f"logs/today/{name}")
    rates = [
        each["value"]["throughput"]  # type: ignore[index]
        for each in read_records(path)
        if each["key"] == "tracked_stats" and "throughput" in each["value"]  # type: ignore[operator]
    ]
    (segment,) = read_log(path).segments
    assert segment.steps.seconds.tolist() == [batch / rate for rate in rates]
    assert int(segment.steps.mean_of.sum()) == samples // batch
    assert segment.finished
