"""NeMo 2: one line per step."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, nemo2, parse, steps

DOCUMENT_LINE = (
    "Training epoch 0, iteration 49/49 | lr: 7.496e-06 | global_batch_size: 128 | global_step: 49 | "
    "peak_memory_usage: 70833405952 | memory_allocated: 44271689728 | reduced_train_loss: 11.96 | "
    "train_step_timing in s: 12.39 | consumed_samples: 6400\n"
)
NEWER_LINE = (
    "Training epoch 0, iteration 45/99 | lr: 6.897e-06 | global_batch_size: 128 | global_step: 45 | "
    "max_memory_reserved: 127785762816 | max_memory_allocated: 115792977920 | reduced_train_loss: 11.96 | "
    "train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 | consumed_samples: 5888\n"
)
REORDERED_LINE = (
    "ining-demo/0 [default0]:Training epoch 0, iteration 10/19 | lr: 1.649e-06 | consumed_samples: 5632 | "
    "global_batch_size: 512 | global_step: 10 | reduced_train_loss: 11.03 | train_step_timing in s: 10.26\n"
)


@pytest.mark.parametrize(
    ("line", "expected"),  # step, seconds, peak memory, TFLOP/s, batch size, total
    [
        (DOCUMENT_LINE, (49, 12.39, 70833405952, math.nan, 128, 50)),
        (NEWER_LINE, (45, 6.08, 115792977920, 1249, 128, 100)),
        (REORDERED_LINE, (10, 10.26, math.nan, math.nan, 512, 20)),
    ],
    ids=["document", "newer", "reordered"],
)
def test_line_of_each_release_fills_columns(
    line: str, expected: tuple[float, ...]
) -> None:
    log = parse(line)
    (segment,) = log.segments
    row = segment.steps
    columns = (
        row.index,
        row.seconds,
        row.peak_memory_bytes,
        row.tflops_per_gpu,
        row.global_batch_size,
    )
    assert log.dialect == "nemo2"
    assert [*(column[0] for column in columns), segment.total_steps] == pytest.approx(
        expected, nan_ok=True
    )
    assert (row.has_loss[0], row.has_grad_norm[0]) == (True, False)


@pytest.mark.parametrize(
    ("printed", "unit"),
    [
        ("12.39", 0.01),
        ("6.08", 0.001),
        ("6", 0.001),
        ("10.000", 0.001),
        ("1.25e+03", 1.0),
        ("0.24", 0.0001),
    ],
)
def test_resolution_of_a_time_assumes_four_significant_digits(
    printed: str, unit: float
) -> None:
    columns = parse(nemo2(1, printed)).segments[0].steps
    assert columns.seconds.tolist() == [float(printed)]
    assert columns.resolution_seconds.tolist() == pytest.approx([unit])


@pytest.mark.parametrize("value", ["nan", "-inf", "Infinity"])
def test_non_finite_loss_or_norm_is_kept(value: str) -> None:
    log = parse(nemo2(3, more=f" | grad_norm: {value}").replace("11.96", value))
    columns = log.segments[0].steps
    assert [columns.loss[0], columns.grad_norm[0]] == pytest.approx(
        [float(value)] * 2, nan_ok=True
    )
    assert (columns.has_loss[0], columns.has_grad_norm[0]) == (True, True)
    assert log.dropped == ()


def test_loss_is_optional_in_a_step_line() -> None:
    columns = (
        parse(nemo2(3).replace("reduced_train_loss: 11.96", "grad_norm: 1.234"))
        .segments[0]
        .steps
    )
    assert (columns.has_loss[0], columns.has_grad_norm[0], columns.grad_norm[0]) == (
        False,
        True,
        1.234,
    )


@pytest.mark.parametrize(
    ("head", "total"),
    [
        ("epoch 0, iteration 7/99", 100),
        ("epoch 1, iteration 7/99", None),
        ("epoch 0, iteration 6/99", None),
    ],
)
def test_total_is_known_if_iteration_equals_global_step(
    head: str, total: int | None
) -> None:
    line = nemo2(7).replace("epoch 0, iteration 7/49", head)
    assert parse(line).segments[0].total_steps == total


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        (" 9: [default3]: ", ""),
        ("[rank4]:", "\r"),
        ("(pretraining, pid=4112) ", "  "),
        ("2025-06-11 05:14:49 ", ""),
        ("\x1b[31m", "\x1b[0m"),
        ("\x02d", ""),
        ("\r", ""),
        ("ümläut ", ""),
    ],
)
def test_record_may_begin_anywhere_in_a_line(prefix: str, suffix: str) -> None:
    log = parse(
        "first line\n" + prefix + nemo2(7, more="").rstrip("\n") + suffix + "\n"
    )
    assert (steps(log), log.dropped) == ([[7]], ())
    assert (log.segments[0].steps.seconds[0], log.segments[0].steps.line[0]) == (
        6.061,
        2,
    )


def test_all_records_on_one_line_are_read() -> None:
    log = parse(
        nemo2(7).rstrip() + nemo2(8, "7.5").rstrip() + " [default0]:" + nemo2(9, "8.5")
    )
    assert steps(log) == [[7, 8, 9]]
    assert log.segments[0].steps.seconds.tolist() == [6.061, 7.5, 8.5]


@pytest.mark.parametrize(
    "text",
    [
        nemo2(7, "12.39", more="").rstrip(
            "\n"
        ),  # the end of the file may truncate the number
        nemo2(7, "12.39", more="W0307 22:33:45 foreign text"),
        nemo2(7, "12.39", more="").rstrip("\n")
        + nemo2(8, more=""),  # on one line: the number has no delimiter
        nemo2(7, "12.3", more="") + "foreign\n" + "9 | consumed_samples: 6400\n",
        nemo2(7, "12.3", more="") + "foreign\nand more\n" + "9\n",
        nemo2(7, "1.249", more="") + "foreign\n" + "e+03 | consumed_samples: 6400\n",
        nemo2(7, "12.3e", more=""),
        nemo2(7).replace("global_step: 7", "global_step: 7 | global_step: 8"),
        nemo2(7).replace("iteration 7/49", "iter"),
        nemo2(7)[:60] + "\n",
    ],
)
def test_truncated_step_record_is_reported_as_dropped(text: str) -> None:
    log = parse("before\n" + text)
    assert not log.segments or 7 not in steps(log)[0]
    assert dropped(log) == {"torn": 1}
    assert log.dropped[0].first_line == 2
    assert log.dropped[0].shown.startswith("Training epoch 0, iter")


@pytest.mark.parametrize(
    "after",
    [
        "",
        "foreign\n",
        "0 | module | DDP  | 4.9 B  | train\n",
        "5.2 B     Trainable params\n",
        nemo2(8) + "42\n",
    ],
    ids=["nothing", "words", "table", "number with a unit", "record"],
)
def test_number_at_line_end_is_kept_unless_the_next_line_continues_it(
    after: str,
) -> None:
    log = parse(nemo2(7, "12.39", more="") + after)
    assert 7 in steps(log)[0]
    assert "torn" not in dropped(log)


def test_step_record_truncated_after_its_time_is_read_without_later_fields() -> None:
    for more in (
        " | consumed_samples: 64",
        " | consumed_sam",
        " | TFLOPS_per_GPU: 1.2",
    ):
        columns = parse(nemo2(7, "12.39", more=more).rstrip("\n")).segments[0].steps
        assert columns.seconds.tolist() == [12.39]
        assert math.isnan(columns.tflops_per_gpu[0])


@pytest.mark.parametrize(
    "line",
    [
        "[NeMo I 2025-06-11 05:23:31 nemo_logging:393] train_step_timing in s: [52.33, 39.9, 35.75]",
        "Validation: iteration 1/20",
        "Training epoch 3 begins",
        "Completed eval after train step 500",
        '{"namespace": "", "key": "tracked_stats", "value": {"train_step_timing in s": 18.39, "step": 12}}',
        "saved at global_step: 12 | train_step_timing in s: 12.39 | ",
        "AssertionError: Training epoch is not set",
    ],
)
def test_lines_similar_to_step_lines_are_not_read_as_steps(line: str) -> None:
    log = parse(line + "\n")
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize("seconds", ["0.0", "-1.5", "nan", "-inf"])
def test_impossible_time_is_kept_as_printed(seconds: str) -> None:
    log = parse(nemo2(0) + nemo2(1, seconds).replace("11.96", "nan") + nemo2(2))
    columns = log.segments[0].steps
    assert columns.seconds.tolist() == pytest.approx(
        [6.061, float(seconds), 6.061], nan_ok=True
    )
    assert (
        columns.resolution_seconds[1],
        columns.has_loss[1],
        math.isnan(columns.loss[1]),
    ) == (0, True, True)
    assert log.dropped == ()


def test_huge_numbers_raise_no_error() -> None:
    huge = "9" * 400
    huge_steps = nemo2(7).replace(": 7 |", f": {huge} |") + nemo2(7).replace(
        "7/49", f"7/{huge}"
    )
    log = parse(
        huge_steps + nemo2(7, huge) + nemo2(8, "1.000e+999") + nemo2(9, "1.000e-999")
    )
    assert steps(log) == [[8, 9]]
    assert log.segments[0].steps.seconds.tolist() == [math.inf, 0.0]
    assert dropped(log) == {"torn": 3}


SAMPLES = " | consumed_samples: 640"


@pytest.mark.parametrize(
    ("printed", "prefix", "last"),
    [
        ("6.06", "", 10),
        ("6.", "3: ", 49),
        ("6", "", 30),
        ("60.61", "train/0 [default0]:", 10),
        ("1.249e+0", "", 49),
    ],
)
def test_step_record_with_fewer_fields_than_the_others_is_dropped_as_truncated(
    printed: str, prefix: str, last: int
) -> None:
    """The file is truncated, or another process inserted a line.

    The number may be incomplete.
    """
    lines = [prefix + nemo2(step, more=SAMPLES if step else "") for step in range(50)]
    lines[last] = prefix + nemo2(last, printed, more="")
    log = parse("".join(lines))
    assert steps(log) == [[step for step in range(50) if step != last]]
    assert dropped(log) == {"torn": 1}
    assert log.dropped[0].first_line == last + 1


@pytest.mark.parametrize("after", [" | consumed_sam", " | consumed_samples: 6", " |x"])
def test_number_followed_by_text_is_not_taken_as_truncated(after: str) -> None:
    log = parse(nemo2(0, more="") + nemo2(1) + nemo2(2, "6.06", more=after) + nemo2(3))
    assert steps(log) == [[0, 1, 3] if after == " |x" else [0, 1, 2, 3]]


def test_step_record_without_fields_of_later_records_is_complete() -> None:
    """The first record of a process prints no samples.

    A validation adds a field to all later records.
    """
    validated = " | consumed_samples: 640 | val_loss: 2.5"
    run = [
        nemo2(0, more=""),
        *(nemo2(step) for step in range(1, 5)),
        *(nemo2(step, more=validated) for step in (5, 6)),
    ]
    log = parse(
        "".join(run)
        + "restart_count=1\n"
        + nemo2(4, more="")
        + nemo2(5)
        + nemo2(6, more="")
    )
    assert steps(log) == [list(range(7)), [4, 5]]
    ending = [
        nemo2(0, more=""),
        nemo2(1, more=""),
        nemo2(2, more=" | val_loss: 2.5"),
        nemo2(3, more=" | val_loss: 2"),
    ]
    assert steps(parse("".join(ending))) == [[0, 1, 2, 3]]
