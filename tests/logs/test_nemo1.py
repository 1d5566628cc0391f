"""NeMo 1: progress bars and DLLogger records."""

from __future__ import annotations

import math

import pytest
from support.written_logs import bar, dll, dropped, parse, steps


def test_documented_step_line_gives_step_time_and_loss() -> None:
    """The last line in the document of Grok 1."""
    log = parse(
        "Epoch 0: : 100%|██████████| 50/50 [23:22<00:00, reduced_train_loss=0.186, global_step=49.00, "
        "consumed_samples=51200.0, train_step_timing in s=24.00]\n"
    )
    (segment,) = log.segments
    row = segment.steps
    assert (log.dialect, segment.total_steps, segment.finished) == ("nemo1", 50, True)
    assert (
        row.index[0],
        row.seconds[0],
        row.loss[0],
        row.global_batch_size[0],
        row.line[0],
    ) == (
        49,
        24.0,
        0.186,
        1024,
        1,
    )


@pytest.mark.parametrize(
    ("printed", "unit"),
    [("24.00", 0.1), ("0.4567", 0.001), ("1.9e+3", 10.0), ("100.0", 1.0)],
)
def test_progress_bar_time_has_three_significant_digits(
    printed: str, unit: float
) -> None:
    columns = parse(bar(1, "0.000", printed)).segments[0].steps
    assert columns.seconds.tolist() == [float(printed)]
    assert columns.resolution_seconds.tolist() == pytest.approx([unit])


def test_progress_bar_printed_again_without_progress_counts_as_repeated() -> None:
    log = parse(
        "\r".join(
            [
                bar(1, "0.000", "52.30"),
                bar(2, "0.000", "52.30"),
                bar(2, "1.000", "39.90"),
            ]
        )
        + "\n"
    )
    assert steps(log) == [[0, 1]]
    assert log.segments[0].steps.seconds.tolist() == [52.3, 39.9]
    assert log.segments[0].steps.line.tolist() == [1, 1]
    assert dropped(log) == {"repeated": 1}


@pytest.mark.parametrize("glue", ["", "\n", " "], ids=["glued", "next line", "blank"])
def test_dllogger_record_replaces_the_progress_bar_of_its_step(glue: str) -> None:
    log = parse(
        bar(1, "0.000", "52.30")
        + glue
        + dll(0, "52.33449459075928")
        + "\n"
        + bar(2, "0.000", "52.30")
        + "\n"
    )
    columns = log.segments[0].steps
    assert (columns.seconds.tolist(), columns.resolution_seconds[0]) == (
        [52.33449459075928],
        0.0,
    )
    assert (columns.loss[0], columns.grad_norm[0]) == (
        12.94773006439209,
        14.857102394104004,
    )
    assert (columns.global_batch_size[0], log.segments[0].total_steps) == (512.0, 50)
    assert dropped(log) == {"repeated": 2}


@pytest.mark.parametrize(
    ("samples", "step", "batch"),
    [
        ("51200.0", "49.00", 1024.0),
        ("1.02e+5", "99.00", math.nan),
        ("99999.0", "49.00", math.nan),
    ],
)
def test_batch_size_is_unknown_unless_printed_samples_are_an_exact_multiple(
    samples: str, step: str, batch: float
) -> None:
    columns = parse(bar(50, step, "24.00", samples=samples)).segments[0].steps
    assert columns.global_batch_size.tolist() == pytest.approx([batch], nan_ok=True)


def test_rounded_step_number_is_recovered_from_the_progress_bar() -> None:
    line = (
        "Epoch 0: :   0%| | 2000/603000 [1:03:17<317:00:58, v_num=, reduced_train_loss=2.600, global_step=2e+3, "
        "consumed_samples=1.28e+6, train_step_timing in s=1.900, val_loss=2.800]\n"
    )
    (segment,) = parse(line).segments
    assert segment.steps.index.tolist() == [1999]
    assert segment.steps.seconds.tolist() == [1.9]
    assert math.isnan(segment.steps.global_batch_size[0])
    assert segment.total_steps == 603000


def test_rounded_step_number_in_later_epoch_is_recovered_from_an_exact_step() -> None:
    text = bar(95, "994.0", "2.000") + "\n" + bar(101, "1e+3", "2.100") + "\n"
    assert steps(parse(text.replace("Epoch 0", "Epoch 1"))) == [[994, 1000]]


@pytest.mark.parametrize(
    ("head", "step", "total"),
    [("Epoch 0", "4.000", 50), ("Epoch 1", "4.000", None), ("Epoch 0", "30.00", None)],
)
def test_total_is_known_if_the_progress_bar_counts_steps(
    head: str, step: str, total: int | None
) -> None:
    log = parse(bar(5, step, "2.000").replace("Epoch 0", head))
    assert log.segments[0].total_steps == total


def test_rounded_step_contradicting_count_is_dropped() -> None:
    log = parse(bar(7, "2e+3", "2.000"))
    assert log.segments == ()
    assert dropped(log) == {"unknown-step": 1}


def test_second_progress_bar_with_the_same_rounded_step_is_kept() -> None:
    text = ""
    for count in range(990, 1005):
        for step in (count - 2, count - 1):
            printed = f"{step}.0" if step < 1000 else "1e+3"
            text += bar(count, printed, f"1.{step % 1000 % 90 + 10}") + "\r"
    columns = parse(text).segments[0].steps
    assert columns.index.tolist() == list(range(988, 1004))
    assert columns.seconds.tolist() == [
        float(f"1.{step % 1000 % 90 + 10}") for step in range(988, 1004)
    ]


def test_nan_time_in_progress_bar_with_rounded_step_is_read_as_printed() -> None:
    text = (
        bar(1000, "999.0", "2.000")
        + "\r"
        + bar(1001, "1e+3", "nan", loss="nan")
        + "\r"
        + bar(1002, "1e+3", "2.000")
    )
    columns = parse(text).segments[0].steps
    assert columns.index.tolist() == [999, 1000, 1001]
    assert columns.seconds.tolist() == pytest.approx([2.0, math.nan, 2.0], nan_ok=True)
    assert math.isnan(columns.loss[1])


@pytest.mark.parametrize("printed", ["nan.0", "NaN", "-inf", "Infinity"])
def test_non_finite_value_is_kept(printed: str) -> None:
    value = float(printed.removesuffix(".0"))
    record = dll(0, printed, loss=printed).replace("14.857102394104004", printed)
    for text in (bar(1, "0.000", printed, loss=printed) + "\n", record):
        log = parse(text)
        columns = log.segments[0].steps
        assert [columns.seconds[0], columns.loss[0]] == pytest.approx(
            [value] * 2, nan_ok=True
        )
        assert columns.has_loss.tolist() == [True]
        assert log.dropped == ()
    assert columns.grad_norm.tolist() == pytest.approx([value], nan_ok=True)


def test_progress_bar_without_closing_bracket_is_truncated() -> None:
    log = parse(bar(1, "0.000", "24.00") + "\n" + bar(2, "1.000", "24.10")[:-3] + "\n")
    assert steps(log) == [[0]]
    assert dropped(log) == {"torn": 1}
    assert log.dropped[0].first_line == 2
    assert log.dropped[0].shown.startswith("Epoch 0: :  10%|█         | 2/50")


@pytest.mark.parametrize(
    "record",
    [
        dll(0, "52.334").removesuffix("  epoch : 0 "),
        dll(3, "52.334").replace("- 3 ", "- 4 "),
        dll(0, "52.334").replace("  train_step_timing in s : 52.334", ""),
        dll(0, "52.334").replace("  epoch", "  global_step : 7.0  epoch"),
    ],
)
def test_incomplete_dllogger_record_is_counted_as_truncated(record: str) -> None:
    log = parse(record + "\n")
    assert log.segments == ()
    assert dropped(log) == {"torn": 1}


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 0: :   0%|          | 0/20 [00:00<?]\rEpoch 0: :   5%|▌         | 1/20 [00:52<16:34]",
        "[NeMo I 2025-06-11 05:23:31 nemo_logging:393] train_step_timing in s: [52.33, 39.9, 35.75]",
        "DLL 2025-06-11 05:13:28.847927 - PARAMETER cfg/micro_batch_size : 1  cfg/global_batch_size : 512 ",
        "DLL 2025-06-11 05:13:28.847927 - 20 val_loss : 8.53  epoch : 0 ",
        '{"train_step_timing in s": 18.39, "step": 12}',
        "Epoch 3: global_step is printed from 0 on",
        "Epoch 0, global step 99: 'reduced_train_loss' reached 8.83520 (best 8.83520), saving model",
    ],
)
def test_lines_similar_to_step_lines_are_not_read_as_steps(line: str) -> None:
    log = parse(line + "\n")
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize("time", ["01:..", "9<", "00 [12<"])
def test_progress_bar_with_damaged_time_has_no_time_stamp(time: str) -> None:
    """The text `11:58<` at the end is not read as its time."""
    line = f"Epoch 0: :   0%|          | 5/4000 [{time}, reduced_train_loss=4.170, global_step=4.000, "
    line += "consumed_samples=2560.0, train_step_timing in s=13.70]\n"
    (segment,) = parse(line + "of 01:19<11:58\n").segments
    assert math.isnan(segment.steps.stamp[0])
