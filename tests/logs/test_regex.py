"""User-defined dialects: matching lines, complete numbers, and dialect choice."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace
from support.written_logs import dropped, nemo2_run, steps

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf
from pytest_llmbench.core.log_records import ParsedLog, Quote, Unread
from pytest_llmbench.logs.log_reader import parse_blocks
from pytest_llmbench.logs.scan import REACH, REACH_BACK

MINE = RegexDialect(
    "regex:mine-1.0",
    find=" ms",
    pattern=r"step (?P<step>\d+) loss (?P<loss>\S+) .*?(?P<seconds>[\d.,]+) ms",
    unit="ms",
)


def parse(text: str | bytes, *definitions: RegexDialect) -> ParsedLog:
    return parse_blocks(
        [text.encode() if isinstance(text, str) else text], definitions or (MINE,)
    )


def step_line(step: int, milliseconds: str = "512.25", *, loss: str = "2.5") -> str:
    return f"step {step} loss {loss} took {milliseconds} ms\n"


def step_lines(first: int, last: int, prefix: str = "") -> str:
    return "".join(prefix + step_line(step) for step in range(first, last + 1))


def parse_pattern(pattern: str, text: str, **fields: object) -> ParsedLog:
    """Parse a text with a pattern; `find` defaults to "step"."""
    find = str(fields.pop("find", "step"))
    return parse(text, RegexDialect("regex:mine-1.0", find, pattern, **fields))  # type: ignore[arg-type]


def list_seconds(log: ParsedLog) -> list[float]:
    return [
        value for segment in log.segments for value in segment.steps.seconds.tolist()
    ]


def test_line_gives_step_time_and_loss() -> None:
    log = parse(f"hello\n{step_lines(0, 2)}bye\n")
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "regex:mine-1.0"
    assert (columns.index.tolist(), columns.line.tolist()) == ([0, 1, 2], [2, 3, 4])
    row = (
        columns.seconds[0],
        columns.resolution_seconds[0],
        columns.loss[0],
        columns.mean_of[0],
    )
    assert row == pytest.approx((0.51225, 1e-5, 2.5, 1))


def test_every_group_of_a_pattern_fills_its_column() -> None:
    log = parse_pattern(
        r"step (?P<step>\d+)/(?P<total>\d+) (?P<seconds>\S+)s tf (?P<tflops>\S+) tok (?P<tokens>\S+) "
        r"gbs (?P<batch>\d+) norm (?P<grad_norm>\S+) mem (?P<memory_bytes>\d+)",
        "step 7/50 1.25s tf 412.5 tok 2,110.5 gbs 128 norm 0.75 mem 1024\n",
    )
    (segment,) = log.segments
    steps = segment.steps
    assert (steps.index[0], segment.total_steps, steps.seconds[0]) == (7, 50, 1.25)
    assert (steps.tflops_per_gpu[0], steps.tokens_per_second_per_gpu[0]) == (
        412.5,
        2110.5,
    )
    assert (
        steps.global_batch_size[0],
        steps.grad_norm[0],
        steps.peak_memory_bytes[0],
    ) == (128, 0.75, 1024)
    assert not steps.has_loss[0]


@pytest.mark.parametrize(
    ("unit", "printed", "expected", "resolution"),
    [
        ("s", "1.25e+01", 12.5, 0.1),
        ("ms", "7,325.5", 7.3255, 1e-4),
        ("us", "250000", 0.25, 1e-6),
        ("min", "0.5", 30.0, 6.0),
        ("1/s", "2.50", 0.4, 0.01 * 0.4**2),
        ("1/s", "0.00", math.inf, 0.0),
    ],
)
def test_units_and_rates_become_seconds(
    unit: str, printed: str, expected: float, resolution: float
) -> None:
    log = parse_pattern(
        r"step (?P<step>\d+) (?P<seconds>\S+) it", f"step 1 {printed} it\n", unit=unit
    )
    assert list_seconds(log) == pytest.approx([expected])
    assert log.segments[0].steps.resolution_seconds.tolist() == pytest.approx(
        [resolution]
    )


@pytest.mark.parametrize(
    ("unit", "printed", "resolutions"),
    [
        pytest.param(
            "ms", ["2K", "1.99K", "2.01K"], [0.01, 0.01, 0.01], id="three digits"
        ),
        pytest.param(
            "ms", ["999", "1K", "1.01K"], [0.001, 0.01, 0.01], id="over a power of ten"
        ),
        pytest.param(
            "s", ["2.0", "1.9873", "2.02"], [1e-4, 1e-4, 1e-4], id="zeros at the end"
        ),
        pytest.param("min", ["2", "1.95"], [0.6, 0.6], id="minutes"),
        pytest.param(
            "1/s",
            ["2", "2.05", "1.9"],
            [0.01 / 4, 0.01 / 2.05**2, 0.01 / 1.9**2],
            id="rates",
        ),
        pytest.param("ms", ["2K", "3K"], [1.0, 1.0], id="equally coarse"),
        pytest.param("s", ["2", "1.95", "0"], [0.01, 0.01, 1.0], id="next to a zero"),
    ],
)
def test_resolution_of_times_is_the_finest_printed_one(
    unit: str, printed: list[str], resolutions: list[float]
) -> None:
    text = "".join(f"step {step} {value} it\n" for step, value in enumerate(printed, 1))
    log = parse_pattern(r"step (?P<step>\d+) (?P<seconds>\S+) it", text, unit=unit)
    assert log.segments[0].steps.resolution_seconds.tolist() == pytest.approx(
        resolutions
    )


def test_non_finite_loss_is_kept_and_placeholder_ignored() -> None:
    log = parse(
        step_line(0, loss="nan") + step_line(1, loss="N/A") + step_line(2, loss="-inf")
    )
    columns = log.segments[0].steps
    assert columns.has_loss.tolist() == [True, False, True]
    assert math.isnan(columns.loss[0])
    assert columns.loss[2] == -math.inf


PART_OF_A_NUMBER = [
    (r"step (?P<step>\d+) .*(?P<seconds>[\d.]+)s", "step 1 took 12.39s"),  # greedy: 9
    (r"step (?P<step>\d+) took (?P<seconds>\d+)", "step 1 took 1,239 ms"),  # 1
    (r"step (?P<step>\d+) .*? (?P<seconds>[\d.]+)", "step 1 took 1.2e+03 s"),  # 1.2
    (r"step (?P<step>\d+).*?(?P<seconds>[\d.]+) ms", "step 1 took -5 ms"),  # 5
    (r"step (?P<step>\d+).*?(?P<seconds>\d+) ms", "step 1 took .5 ms"),  # 5
    (r"(?P<step>\d) took (?P<seconds>[\d.]+) ms", "step 12 took 5 ms"),  # 2
    (r"step (?P<step>\S+) took (?P<seconds>[\d.]+) ms", "step 1.5 took 5 ms"),
    (r"step (?P<step>\d+) took (?P<seconds>\S+) ms", "step 1 took N/A ms"),
    (r"step (?P<step>\d+)( took (?P<seconds>\S+) ms)?", "step 1 is over"),
    (
        r"step (?P<step>\d+) (?P<seconds>[\d.]+)s loss (?P<loss>\S+)",
        "step 1 5s loss 2.5!?",
    ),
]


@pytest.mark.parametrize(("pattern", "text"), PART_OF_A_NUMBER)
def test_regex_dialect_never_reads_a_part_of_a_number(pattern: str, text: str) -> None:
    log = parse_pattern(pattern, f"{text}\n")
    assert (log.segments, dropped(log)) == ((), {"torn": 1})


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (
            r"^(?P<step>\d+),(?P<loss>[\d.]+),(?P<seconds>[\d.]+)",
            "17,512,2.39 step",
            (17, 2.39),
        ),
        (r"step-(?P<step>\d+)-(?P<seconds>[\d.]+)s", "step-3-1.5s", (3, 1.5)),
        (r"step (?P<step>[\d,]+): (?P<seconds>\S+)", "step 12,510: 1.5,", (12510, 1.5)),
        (r"(?i)STEP (?P<step>\d+)\D+(?P<seconds>\d+\.\d+)", "step 3: ✓ 1.5", (3, 1.5)),
    ],
)
def test_regex_dialect_reads_numbers_next_to_punctuation(
    pattern: str, text: str, expected: object
) -> None:
    log = parse_pattern(pattern, f"{text}\n")
    assert (log.segments[0].steps.index[0], list_seconds(log)[0]) == expected


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("step 1 2.5", False),
        ("step 1 2.5\n", True),
        ("step 1 2.5\r", True),
        ("step 1 2.5 s", True),
        ("step 1 2,34", False),
        ("step 1 2e", False),
        ("step 1 2.5\n39\nnext", False),
        ("step 1 2.5\n39 steps to go", True),
        ("step 1 2.\x1b[0m5\n", False),
        ("step 1 \x1b[31m2.5\x1b[0m\n", True),
    ],
)
def test_number_is_read_only_if_a_following_character_ends_it(
    text: str, complete: bool
) -> None:
    log = parse_pattern(r"step (?P<step>\d+) (?P<seconds>[\d.]+)", text)
    assert bool(log.segments) is complete
    assert dropped(log) == ({} if complete else {"torn": 1})


def test_log_without_steps_reports_first_unmatched_line() -> None:
    twin, absent = (
        replace(MINE, name="regex:twin-1.0"),
        RegexDialect("regex:other-1.0", "never there", MINE.pattern),
    )
    log = parse(
        "hello\nstep=5 took 4 ms\nstep=6 took 4 ms, or 5 ms\n", MINE, twin, absent
    )
    assert log.unread == (
        Unread("regex:mine-1.0", " ms", 2, 2, Quote("step=5 took 4 ms"), "step"),
        Unread("regex:twin-1.0", " ms", 2, 2, Quote("step=5 took 4 ms"), "step"),
        Unread("regex:other-1.0", "never there"),
    )
    assert parse("x" * REACH_BACK + step_line(1)).unread == (
        Unread("regex:mine-1.0", " ms", 1),
    )
    assert parse(step_line(1) + "took 5 ms\n", MINE, absent).unread == ()


GREEDY = replace(MINE, pattern=r"step (?P<step>\d+) .* (?P<seconds>[\d.]+) ms")


def test_records_on_one_line_are_never_mixed() -> None:
    two_lines = parse(step_line(1).strip() + step_line(2))
    assert (steps(two_lines), dropped(two_lines)) == ([[1, 2]], {})
    truncated = parse("step 1 loss 2.5 tostep 2 loss 2.5 took 512 ms\n")
    assert (steps(truncated), dropped(truncated)) == ([], {"torn": 1})
    greedy = parse(step_line(1).strip() + " " + step_line(2, "99.5"), GREEDY)
    assert (steps(greedy), dropped(greedy)) == ([], {"torn": 1})


def test_greedy_pattern_never_reads_the_time_of_another_line() -> None:
    log = parse(
        step_lines(0, 2)
        + step_line(3).strip()
        + " loss 2.5 took 99 ms\n"
        + step_lines(4, 6),
        GREEDY,
    )
    assert (steps(log), dropped(log)) == ([[0, 1, 2, 4, 5, 6]], {"torn": 1})
    several = parse(
        "".join(f"step {step} waited 3 ms took 512 ms\n" for step in range(4)), GREEDY
    )
    assert (steps(several), dropped(several)) == ([[0, 1, 2, 3]], {})


def test_line_with_several_occurrences_of_the_search_text_gives_one_step() -> None:
    log = parse(
        "".join(f"5 ms ago: {step_line(step).strip()} and 7 ms\n" for step in range(3))
    )
    assert (steps(log), dropped(log)) == ([[0, 1, 2]], {})


def test_step_record_too_far_from_the_line_start_is_dropped_as_truncated() -> None:
    far = parse("x" * REACH_BACK + step_line(1))
    assert (far.segments, dropped(far)) == ((), {"torn": 1})
    log = parse(f"first\n{step_line(1).strip()}{' .' * REACH} ms\n{step_line(2)}")
    assert steps(log) == [[1, 2]]


def test_carriage_returns_end_a_line() -> None:
    bars = RegexDialect(
        "regex:mine-1.0",
        "it/s",
        r"(?P<step>\d+)/(?P<total>\d+) \[.*, *(?P<seconds>[\d.]+)it/s",
        "1/s",
    )
    log = parse(
        "".join(f"\r {step}/50 [00:0{step}<01:00,  2.50it/s]" for step in range(3)),
        bars,
    )
    assert (steps(log), log.segments[0].total_steps) == ([[0, 1, 2]], 50)


def test_rank_labels_are_not_step_numbers() -> None:
    both = parse(
        "".join(
            "3: " + step_line(step) + "8: " + step_line(step, "99") for step in range(3)
        )
    )
    assert (steps(both), dropped(both)) == ([[0, 1, 2]], {"other-rank": 3})
    log = parse_pattern(
        r"(?P<step>\d+): (?P<seconds>[\d.]+) ms",
        "".join(f"{n}: 5.5 ms\n" for n in range(5)),
        find=" ms",
    )
    assert steps(log) == [[0, 1, 2, 3, 4]]


def test_start_and_end_lines_delimit_runs() -> None:
    marked = replace(MINE, start="Starting training", end="Training finished")
    log = parse(
        f"Starting training\n{step_lines(0, 2)}Starting training\n{step_lines(3, 4)}Training finished\n",
        marked,
    )
    assert [
        (segment.steps.index.tolist(), segment.finished) for segment in log.segments
    ] == [
        ([0, 1, 2], False),
        ([3, 4], True),
    ]


@pytest.mark.parametrize(
    ("printed", "first_step", "mean_of"),
    [
        ([9, 19, 29], 0, [10, 10, 10]),
        ([1, 10, 20, 30], 1, [1, 9, 10, 10]),
        (
            [10, 20, 40, 50],
            1,
            [10, 10, 10, 10],
        ),  # the line of step 30 is lost: steps 21 to 30 are not covered
        ([10, 20, 30, 35], 1, [10, 10, 10, 5]),
        (
            [10, 20, 40],
            1,
            [10, 10, 10],
        ),  # the usual gap is unknown: the smaller one is safer
        ([8010, 8020, 8030], 1, [10, 10, 10]),  # resumed
        ([50], 1, [1]),
    ],
)
def test_interval_average_covers_the_steps_since_the_previous_line(
    printed: list[int], first_step: int, mean_of: list[int]
) -> None:
    mean = replace(MINE, averages=TimesOf.INTERVAL, first_step=first_step)
    (segment,) = parse("".join(map(step_line, printed)), mean).segments
    assert (segment.steps.mean_of.tolist(), segment.first_step) == (mean_of, first_step)


def test_definition_precedes_built_in_dialect_with_equal_steps() -> None:
    definition = RegexDialect(
        "regex:mine-1.0",
        "global_step",
        r"global_step: (?P<step>\d+) .*timing in s: (?P<seconds>[\d.]+) ",
    )
    log = parse(nemo2_run(0, 9), definition)
    assert [reading.dialect for reading in (log, *log.readings)] == [
        "regex:mine-1.0",
        "nemo2",
    ]
    more = parse(nemo2_run(0, 9).replace("in s: 6.061", "in s: 6.061x", 3), definition)
    assert more.dialect == "regex:mine-1.0"
    fewer = parse(
        nemo2_run(0, 10),
        replace(definition, pattern=definition.pattern.replace(r"\d+", r"\d", 1)),
    )
    assert fewer.dialect == "nemo2"
    assert fewer.read_as("regex:mine-1.0").dialect == "regex:mine-1.0"


def test_log_can_be_read_with_another_definition() -> None:
    seconds_, twin = (
        replace(MINE, name="regex:mine-2.0", unit="s"),
        replace(MINE, name="regex:mine-1.1"),
    )
    log = parse(step_lines(0, 4), MINE, seconds_, twin)
    assert log.dialects == {"regex:mine-1.0", "regex:mine-2.0", "regex:mine-1.1"}
    assert list_seconds(log) == pytest.approx([0.51225] * 5)
    assert list_seconds(log.read_as("regex:mine-2.0")) == [512.25] * 5
    assert list_seconds(log.read_as("regex:mine-1.1")) == list_seconds(log)
    assert log.read_as("regex:mine-2.0").readings == ()
    assert log.read_as("nemo2").dialect == "regex:mine-1.0"


def map_seconds_by_step(log: ParsedLog) -> dict[int, float]:
    """Return the times of a log with at most one attempt, by step."""
    return (
        dict(zip(*steps(log), list_seconds(log), strict=True)) if log.segments else {}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "end"),
    [
        (r"step (?P<step>\d+) took (?P<seconds>[\d.,e+]+) ms", " ms"),
        (r"step (?P<step>\d+) took (?P<seconds>[\d.,e+]+)", ""),
        (r".*step (?P<step>\d+) took (?P<seconds>\S+).*", " of 9"),
    ],
)
def test_truncated_log_gives_no_new_times(pattern: str, end: str) -> None:
    definition = RegexDialect("regex:mine-1.0", "step", pattern)
    text = "".join(
        f"step {step} took {time}{end}\n"
        for step, time in enumerate(["1,239.5", "1.25e+03", "12", "1,300"])
    )
    complete = map_seconds_by_step(parse(text, definition))
    assert complete == {0: 1239.5, 1: 1250.0, 2: 12.0, 3: 1300.0}
    for length in range(len(text)):
        assert (
            map_seconds_by_step(parse(text[:length], definition)).items()
            <= complete.items()
        )


def test_pattern_with_exponential_backtracking_finishes() -> None:
    """Python's `re` would backtrack practically forever."""
    definition = replace(
        MINE, pattern=r"(.*)*(.*)*(.*)*=.*step (?P<step>\d+) (?P<seconds>\d+) ms"
    )
    assert parse("5 ms " + "1" * 6000 + "\n", definition).segments == ()


# --- time stamps, elapsed times, rates and units --------------------------------------


def parse_at_lines(pattern: str, text: str, **fields: object) -> ParsedLog:
    """Parse the lines of a log with a pattern that follows `at STEP `."""
    full_pattern = rf"at (?P<step>\d+) {pattern}"
    return parse(
        text,
        RegexDialect("regex:mine-1.0", find="at ", pattern=full_pattern, **fields),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        (("2026-05-04 06:05:54,392", "2026-05-04 06:05:56,392"), 0.001),
        (("2026-05-04T23:59:59.392000Z", "2026-05-05T00:00:01.392000Z"), 1e-6),
        (("02/28/2024 23:59:59", "02/29/2024 00:00:01"), 1.0),
    ],
)
def test_step_time_is_the_difference_of_the_timestamps_of_two_lines(
    stamps: tuple[str, str], unit: float
) -> None:
    log = parse_at_lines(
        r"\[(?P<stamp>[^\]]+)\]",
        "".join(
            f"at {10 * number} [{text}]\n" for number, text in enumerate(stamps, 1)
        ),
    )
    columns = log.segments[0].steps
    assert math.isnan(columns.seconds[0])
    assert columns.seconds[1] == pytest.approx(0.2)
    assert columns.resolution_seconds[1] == pytest.approx(unit / 10)
    assert columns.mean_of.tolist() == [10, 10]


@pytest.mark.parametrize(
    "stamp",
    ["2026-13-04 06:05:54", "yesterday", "2026-05-04 06:05:54+02:00", "06:05:54"],
)
def test_invalid_stamp_is_counted_as_truncated(stamp: str) -> None:
    log = parse_at_lines(r"\[(?P<stamp>[^\]]+)\]", f"at 1 [{stamp}]\n")
    assert (log.segments, dropped(log)) == ((), {"torn": 1})


def test_step_time_is_the_difference_of_the_elapsed_times_of_two_lines() -> None:
    text = "at 1 after 500ms\nat 2 after 750ms\nat 3 after 1,750ms\nat 4 after 100ms\n"
    columns = (
        parse_at_lines(r"after (?P<elapsed>[\d,]+)ms", text, unit="ms", first_step=1)
        .segments[0]
        .steps
    )
    assert columns.seconds[:3].tolist() == [0.5, 0.25, 1.0]
    assert math.isnan(columns.seconds[3])  # the clock restarted
    resumed = parse_at_lines(
        r"after (?P<elapsed>[\d,]+)ms",
        text.replace("at ", "at 10"),
        unit="ms",
        first_step=1,
    )
    assert math.isnan(
        resumed.segments[0].steps.seconds[0]
    )  # 101 steps in half a second


def test_step_time_after_a_restart_of_the_elapsed_time_counts_from_zero() -> None:
    ends = {10: 20, 20: 40, 30: 60, 40: 80, 50: 21, 60: 41}
    text = "".join(
        f"at {step} after {list_seconds}s\n" for step, list_seconds in ends.items()
    )
    log = parse_at_lines(r"after (?P<elapsed>\d+)s", text, unit="s", first_step=1)
    assert log.segments[0].steps.seconds.tolist() == [2.0, 2.0, 2.0, 2.0, 2.1, 2.0]
    assert dropped(log) == {"clock-restarted": 1}


def test_samples_divided_by_their_rate_give_the_step_time() -> None:
    columns = (
        parse_at_lines(
            r"(?P<amount>\d+) at (?P<rate>[\d.]+)/s",
            "at 1 64 at 128.0/s\nat 2 64 at 0.0/s\n",
        )
        .segments[0]
        .steps
    )
    assert columns.seconds.tolist() == [0.5, math.inf]
    assert columns.resolution_seconds[0] == pytest.approx(0.5 * 0.1 / 128)


def test_line_may_print_the_unit_of_its_time() -> None:
    text = "at 1 980 ms\nat 2 1.5 s\nat 3 2 min\n"
    columns = (
        parse_at_lines(r"(?P<seconds>[\d.]+) (?P<unit>\w+)", text).segments[0].steps
    )
    assert columns.seconds.tolist() == [0.98, 1.5, 120.0]
    assert dropped(
        parse_at_lines(r"(?P<seconds>[\d.]+) (?P<unit>\w+)", "at 1 980 apples\n")
    ) == {"torn": 1}
