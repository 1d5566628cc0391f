"""Times of user-defined dialects: units, averages and rates of samples."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, steps

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.log_reader import parse_blocks
from pytest_llmbench.logs.printed_times import (
    FEWEST_TIMES,
    is_running_average,
    read_timestamp,
    read_timestamps,
)
from pytest_llmbench.logs.step_records import RecordOrigin, StepRecord

OPEN = r"step (?P<step>[\d.]+) took (?P<seconds>[\d.]+)"


def parse(text: str, pattern: str = OPEN, **fields: str) -> ParsedLog:
    definition = RegexDialect("regex:mine-1.0", "step ", pattern, **fields)  # type: ignore[arg-type]
    return parse_blocks([text.encode()], [definition])


def list_seconds(log: ParsedLog) -> list[float]:
    return [
        value for segment in log.segments for value in segment.steps.seconds.tolist()
    ]


@pytest.mark.parametrize(
    "pattern",
    [OPEN, r"step (?P<step>\S+) took (?P<seconds>\S+)"],
    ids=["digits", "word"],
)
@pytest.mark.parametrize(
    ("printed", "unit", "expected"),
    [
        ("11.5K", "ms", 11.5),
        ("1.2M", "us", 1.2),
        ("11.5Kms", "ms", None),
        ("11.5x", "s", None),
        ("11.5sec", "s", 11.5),
        ("11.5s/it", "s", 11.5),
        ("980ms", "s", None),
        ("980\u00b5s", "us", 980e-6),
        ("1.5m", "s", None),
        ("2.50it/s", "1/s", 0.4),
        ("2.50s/it", "1/s", None),
    ],
)
def test_characters_directly_after_a_time_are_interpreted_or_the_step_is_dropped(
    pattern: str, printed: str, unit: str, expected: float | None
) -> None:
    log = parse(f"step 1 took {printed} and more\n", pattern, unit=unit)
    assert list_seconds(log) == pytest.approx([] if expected is None else [expected])
    assert dropped(log) == ({"torn": 1} if expected is None else {})


@pytest.mark.parametrize(
    ("pattern", "text", "column", "expected"),
    [
        (r"tok (?P<tokens>[\d.]+)", "tok 11.5K", "tokens_per_second_per_gpu", 11500.0),
        (r"tf (?P<tflops>[\d.]+)", "tf 412.5TFLOP/s/GPU", "tflops_per_gpu", 412.5),
        (r"tf (?P<tflops>[\d.]+)", "tf 1.2PFLOPS", "tflops_per_gpu", 1200.0),
        (
            r"mem (?P<memory_bytes>[\d.]+)",
            "mem 28.5GiB",
            "peak_memory_bytes",
            28.5 * 2**30,
        ),
        (r"mem (?P<memory_bytes>[\d.]+)", "mem 28.5GB", "peak_memory_bytes", 28.5e9),
        (r"loss (?P<loss>\S+)", "loss nan", "loss", math.nan),
        (r"loss (?P<loss>[\d.]+)", "loss 2.5x", "loss", None),
        (r"gbs (?P<batch>\d+)", "gbs 4K", "global_batch_size", None),
        (r"of (?P<total>\d+)", "of 10K", "index", None),
    ],
)
def test_unit_prefix_after_a_number_is_applied_or_the_record_is_dropped(
    pattern: str, text: str, column: str, expected: float | None
) -> None:
    log = parse(
        f"step 1 took 5 s, {text} .\n",
        rf"step (?P<step>\d+) took (?P<seconds>\d+) s, {pattern}",
    )
    values = [
        value
        for segment in log.segments
        for value in getattr(segment.steps, column).tolist()
    ]
    assert values == pytest.approx([] if expected is None else [expected], nan_ok=True)


@pytest.mark.parametrize(
    ("step", "expected"),
    [("31.0", [[31]]), ("31.", [[31]]), ("31.5", []), ("31K", []), ("3.1e1", [])],
)
@pytest.mark.parametrize("group", [r"[\d.]+", r"\d+"])
def test_step_printed_as_integral_float_is_read(
    group: str, step: str, expected: list[list[int]]
) -> None:
    assert (
        steps(
            parse(
                f"step {step} took 5 s\n",
                rf"step (?P<step>{group}).*? took (?P<seconds>\d+) s",
            )
        )
        == expected
    )


def test_truncated_record_names_invalid_group() -> None:
    log = parse("step 1 took 11.5x ms\n")
    assert log.dropped[0].shown == "group seconds reads 11.5: step 1 took 11.5x ms"
    log = parse(
        "step 12K took 5 ms\n", r"step (?P<step>\d+).*? took (?P<seconds>\d+) ms"
    )
    assert log.dropped[0].shown.startswith("group step reads 12: step 12K")
    log = parse("step 1 is over\n", r"step (?P<step>\d+)( took (?P<seconds>\S+) ms)?")
    assert log.dropped[0].shown == "group seconds is missing: step 1 is over"


@pytest.mark.parametrize(
    ("pattern", "text", "group"),
    [
        (
            r"step (?P<step>\d+) loss (?P<loss>\S+) took (?P<seconds>\S+) ms",
            "step 1 loss 2.5 needed 5 ms",
            "seconds",
        ),
        (
            r"step (?P<step>\d+) loss (?P<loss>\S+) took (?P<seconds>\S+) ms",
            "step 1 lost 2.5 took 5 ms",
            "loss",
        ),
        (
            r"step (?P<step>\d+)(?: loss (?P<loss>\S+))? took (?P<seconds>\S+) ms",
            "step x took 5 ms",
            "step",
        ),
        (r"step (?P<step>\d+) took (?P<seconds>\S+) ms$", "step 1 took 5 ms or so", ""),
    ],
)
def test_unmatched_line_names_missing_group(
    pattern: str, text: str, group: str
) -> None:
    (unread,) = parse(f"{text}\n", pattern).unread
    assert unread.group == group
    assert (
        f"it fails at the group {group}" in formatting.describe_unread(unread)
    ) == bool(group)


def step_lines(times: list[str], suffix: str = "") -> str:
    return "".join(
        f"step {step} took {time}{suffix}\n" for step, time in enumerate(times)
    )


TIMES = [f"{6 + step % 7 / 100:.2f}" for step in range(50)]


@pytest.mark.parametrize(
    ("printed", "suffix", "truncated"),
    [
        ("6.0", "", 1),
        ("6.", " s", 1),
        ("6", " | eta 5m", 1),
        ("6.05", " s, loss 2.5", 0),
        ("6.05", "", 0),
    ],
)
@pytest.mark.parametrize("index", [20, 49])
def test_time_with_fewer_digits_than_others_is_dropped_at_line_end(
    printed: str, suffix: str, truncated: int, index: int
) -> None:
    lines = step_lines(TIMES, suffix).splitlines(keepends=True)
    lines[index] = f"step {index} took {printed}\n"
    log = parse("".join(lines))
    assert dropped(log) == ({"torn": 1} if truncated else {})
    assert steps(log) == [
        [step for step in range(50) if not (truncated and step == index)]
    ]


def test_time_without_its_trailing_zeros_is_not_truncated() -> None:
    times = [f"{6 + step / 100:.4g}" for step in range(50)]
    assert {len(time) for time in times} == {1, 3, 4}
    assert steps(parse(step_lines(times))) == [list(range(50))]
    assert steps(parse(step_lines(times, " s"))) == [list(range(50))]


def test_step_lines_without_the_suffix_of_other_lines_are_complete() -> None:
    lines = step_lines(["6.25"] * 50).splitlines()
    lines[10::10] = [f"{line} | saved" for line in lines[10::10]]
    assert dropped(parse("\n".join(lines) + "\n")) == {}


def test_times_in_another_unit_are_dropped() -> None:
    """Some programs choose the unit by the size; the pattern reads the number only."""
    times = [f"{1.1 + step / 1000:.2f} s" for step in range(30)]
    times[7] = "980.00 ms"
    log = parse(step_lines(times, ","))
    assert steps(log) == [[step for step in range(30) if step != 7]]
    assert log.dropped[0].shown == "step 7: the time is in ms, other times in s"
    bars = [f"{1.1 + step / 1000:.2f}s/it" for step in range(30)]
    bars[3] = "1.02it/s"
    assert dropped(parse(step_lines(bars, "]"))) == {"torn": 1}


def test_running_average_is_reported() -> None:
    singles = [30.0, *(6 + (step * 37 % 11) / 200 for step in range(1, 50))]
    means = step_lines(
        [f"{sum(singles[:count]) / count:.3f}" for count in range(1, 51)]
    )
    log = parse(means)
    assert dropped(log) == {"running-average": 50}
    assert steps(log) == [list(range(50))]
    assert dropped(parse(means, averages="interval")) == {}
    assert dropped(parse(step_lines([f"{value:.3f}" for value in singles]))) == {}


@pytest.mark.parametrize(
    ("line", "fields", "reason"),
    [
        ("step {} avg took {:.2f} s", {}, "running-average"),
        (
            "step {} running average {:.2f} s",
            {"averages": "interval"},
            "running-average",
        ),
        ("step {} average time {:.2f} s", {"averages": "interval"}, ""),
        ("step {} train_speed(iter/s): {:.2f}", {"unit": "1/s"}, "running-average"),
        ("step {} speed {:.2f} samples/s", {"unit": "1/s"}, "rate-of-samples"),
        ("step {} RunningAvgSamplesPerSec={:.2f},", {"unit": "1/s"}, "rate-of-samples"),
        ("step {} speed {:.2f} it/s", {"unit": "1/s"}, ""),
        ("step {} loss avg 3 took {:.2f} s", {}, ""),
    ],
)
def test_time_field_named_like_an_average_or_sample_rate_is_reported(
    line: str, fields: dict[str, str], reason: str
) -> None:
    text = "".join(line.format(step, 6 + step % 7 / 100) + "\n" for step in range(30))
    log = parse(text, r"step (?P<step>\d+) .*?(?P<seconds>\d+\.\d\d)", **fields)
    assert dropped(log) == ({reason: 30} if reason else {})
    assert steps(log) == [list(range(30))]


def make_records(times: list[float]) -> list[StepRecord]:
    return [
        StepRecord(RecordOrigin(step, step + 1, ""), step, value, 0.01)
        for step, value in enumerate(times)
    ]


@pytest.mark.parametrize("count", [FEWEST_TIMES, 500])
def test_single_step_times_are_not_taken_for_a_running_average(count: int) -> None:
    for noise in (0.0, 0.2):
        assert not is_running_average(
            make_records(
                [30.0] + [6 + noise * (step * 7919 % 13) for step in range(count)]
            )
        )
    assert not is_running_average(make_records([6.0] * count))
    assert is_running_average(
        make_records([(30 + 6 * step) / (step + 1) for step in range(count)])
    )
    assert not is_running_average(make_records([6.0, 30.0] * (FEWEST_TIMES // 2 - 1)))


@pytest.mark.parametrize(
    "printed",
    [
        ["2026-11-24 10:00:01", "2026-11-24 10:00:01.5"],
        ["2026-11-24 10:00:01,562", "9999-12-31 23:59:59.999999"],
        ["2026-11-24 10:00:01", "2026-11-31 10:00:01"],
        ["2026-11-24 10:00:60"],
        ["0000-01-01 00:00:00", "1969-12-31 23:59:59.25", "1970-01-01 00:00:00"],
    ],
)
def test_time_stamps_are_read_alike_together_or_alone(printed: list[str]) -> None:
    texts = [text.encode() for text in printed]
    alone = list(map(read_timestamp, texts))
    assert list(map(repr, read_timestamps(texts))) == list(map(repr, alone))
