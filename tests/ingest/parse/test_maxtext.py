"""MaxText: one line a step, in fixed formats."""

from __future__ import annotations

import math

import pytest
from written_logs import dropped, maxtext, maxtext_run, parse, steps


def test_the_line_of_the_document() -> None:
    log = parse(
        "completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, Tokens/s/device: 1035.970, "
        "total_weights: 524288, loss: 0.000\n"
    )
    (segment,) = log.segments
    columns = segment.steps
    assert log.dialect == "maxtext"
    assert (columns.index.tolist(), columns.seconds.tolist()) == ([49], [7.908])
    assert columns.resolution_seconds.tolist() == [0.001]
    assert columns.tflops_per_gpu.tolist() == [460.48]
    assert columns.tokens_per_second_per_gpu.tolist() == [1035.97]
    assert (columns.loss.tolist(), columns.has_loss.tolist()) == ([0.0], [True])
    assert math.isnan(columns.global_batch_size[0])
    assert segment.total_steps is None
    assert not segment.finished


@pytest.mark.parametrize(
    ("line", "step", "seconds", "loss", "norm"),
    [
        ("completed step: 0, seconds: 36.350, TFLOP/s/device: 28.423, loss: 1.966", 0, 36.35, 1.966, math.nan),
        ("# completed step: 1, seconds: 176.734, TFLOP/s/device: 5.846, loss: 2.008", 1, 176.734, 2.008, math.nan),
        ("\x02dI0317 10:00:24.410596 125344476638336 metric_logger.py:181] completed step: 26, seconds: 0.427, "
         "TFLOP/s/device: 240.728, Tokens/s/device: 9594.461, total_weights: 31056, loss: nan",
         26, 0.427, math.nan, math.nan),
        ("(RayTrainWorker pid=21663, ip=10.12.3.6) completed step: 99, seconds: 1.100, TFLOP/s/device: 179.739, "
         "Tokens/s/device: 3725.218, total_weights: 65536, loss: 0.000 [repeated 3x across cluster]",
         99, 1.1, 0.0, math.nan),
        ("completed step: 5, seconds: 20.585, TFLOP/s/device: 97.566, Tokens/s/device: 1989.820, "
         "total_weights: 31457280, loss: 12.409, lr: 3.000e-04, grad_norm: 1.234e+01", 5, 20.585, 12.409, 12.34),
        ("completed step: 18, seconds: 11.716, TFLOP/s/device: 348.750, Tokens/s/device: 6760.245, "
         "Samples/s/device: 0.0854, Frames/s/device: 7.255, loss: 1.540", 18, 11.716, 1.54, math.nan),
        ("I0811 metric_logger.py:226] completed step: 1, seconds: 0.631, TFLOP/s/device: 5688.282, "
         "Tokens/s/device: 311629.521, total_weights: 1572864, loss: 12.979, lm_loss: 12.979, perplexity: 433358.281",
         1, 0.631, 12.979, math.nan),
    ],
)  # fmt: skip
def test_the_variants_of_the_line(line: str, step: int, seconds: float, loss: float, norm: float) -> None:
    log = parse(line + "\n")
    columns = log.segments[0].steps
    assert (columns.index.tolist(), columns.seconds.tolist()) == ([step], [seconds])
    assert columns.loss.tolist() == pytest.approx([loss], nan_ok=True)
    assert columns.has_loss.tolist() == [True]
    assert columns.grad_norm.tolist() == pytest.approx([norm], nan_ok=True)
    assert columns.has_grad_norm.tolist() == [not math.isnan(norm)]
    assert log.dropped == ()


def test_a_line_without_a_loss_says_so() -> None:
    columns = parse(maxtext(3, loss="")).segments[0].steps
    assert columns.has_loss.tolist() == [False]
    assert math.isnan(columns.loss[0])


def test_the_total_stands_in_the_configuration() -> None:
    text = "Config param learning_rate_schedule_steps: 20\nConfig param steps: 50\nConfig param warmup_steps: 7\n"
    (whole,) = parse(text + maxtext_run(0, 49)).segments
    assert (whole.total_steps, whole.finished) == (50, True)
    (part,) = parse(text + maxtext_run(0, 48)).segments
    assert (part.total_steps, part.finished) == (50, False)


def test_the_recipe_writes_two_runs_into_one_log() -> None:
    text = "Config param steps: 15\n" + maxtext_run(0, 14) + "Config param steps: 50\n" + maxtext_run(0, 49)
    first, second = parse(text).segments
    assert (first.total_steps, first.finished, len(first.steps)) == (15, True, 15)
    assert (second.total_steps, second.finished, len(second.steps)) == (50, True, 50)
    assert steps(parse(maxtext_run(0, 14) + maxtext_run(0, 49))) == [list(range(15)), list(range(50))]


def test_late_lines_of_other_processes_are_repeats() -> None:
    numbers = [0, 0, 1, 2, 1, 2, 3, 3, 4, 2, 5, 4, 6]
    log = parse("".join(maxtext(number) for number in numbers))
    assert steps(log) == [[0, 1, 2, 3, 4, 5, 6]]
    assert dropped(log) == {"repeated": 6}


@pytest.mark.parametrize(
    "text",
    [
        maxtext(4)[:-1].removesuffix("0"),  # loss: 0.00 at the end of the file
        maxtext(4).replace("0.000", "0.00"),
        maxtext(4).replace("460.480, ", "460.48\n"),
        maxtext(4).replace("7.908, ", "7.908\n"),
        maxtext(4).replace("7.908", "7."),
        maxtext(4).replace("7.908", "7foreign text"),
        maxtext(4).replace("Tokens/s/device: 1035.970", "Tok\nforeign"),
        maxtext(4, loss=", loss: 1.500, loss: 1.500"),
        maxtext(4, loss=", loss: 1.500, grad_norm: 1.234"),
        maxtext(4, loss="")[:-1],
    ],
)
def test_a_torn_record_is_dropped_and_counted(text: str) -> None:
    log = parse("before\n" + text)
    assert log.segments == ()
    assert dropped(log) == {"torn": 1}
    assert log.dropped[0].first_line == 2


def test_records_glued_to_each_other_are_both_read() -> None:
    log = parse(maxtext(4, "7.908").rstrip() + maxtext(5, "8.125"))
    assert steps(log) == [[4, 5]]
    assert log.segments[0].steps.seconds.tolist() == [7.908, 8.125]


@pytest.mark.parametrize(
    "line",
    [
        "Completed eval after train step 500",
        "completed step: none yet",
        "validate step: 13000 loss: 3.3315",
        "Config param steps: 50",
        "starting from iteration 8000",
    ],
)
def test_look_alikes_are_no_steps(line: str) -> None:
    log = parse(line + "\n")
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize("seconds", ["0.000", "-1.500", "nan", "-inf", "NaN", "Infinity", "INF"])
def test_an_impossible_time_is_kept_as_printed_with_its_loss(seconds: str) -> None:
    log = parse(maxtext(1, seconds, loss=", loss: nan") + maxtext(2))
    columns = log.segments[0].steps
    assert steps(log) == [[1, 2]]
    assert columns.seconds.tolist() == pytest.approx([float(seconds), 7.908], nan_ok=True)
    assert columns.has_loss.tolist() == [True, True]
    assert math.isnan(columns.loss[0])
    assert log.dropped == ()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-inf", "INF", "-nan"])
def test_every_spelling_of_no_number_is_a_value(value: str) -> None:
    log = parse(maxtext(1, loss=f", loss: {value}, grad_norm: {value}"))
    columns = log.segments[0].steps
    assert columns.loss.tolist() == pytest.approx([float(value)], nan_ok=True)
    assert columns.grad_norm.tolist() == pytest.approx([float(value)], nan_ok=True)
    assert log.dropped == ()


def run_of(*seconds: str, first: int = 0) -> list[int]:
    """The steps of a run with these times that are marked as dispatched only."""
    log = parse("".join(maxtext(number, each) for number, each in enumerate(seconds, first)))
    return [int(step) for part in log.segments for step in part.steps.index[part.steps.asynchronous]]


STEADY = ("5.600",) * 10


@pytest.mark.parametrize(
    ("seconds", "dispatched"),
    [
        (("44.923", "0.319", *STEADY), [1]),
        (("44.923", "0.319", "0.215", *STEADY), [1, 2]),
        (("44.923", "40.100", "0.215", "0.200", "0.300", *STEADY), [2, 3, 4]),
        (("0.319", "0.215", *STEADY), [0, 1]),
        (("44.923", "4.190", *STEADY), [1]),
        (("44.923", "4.210", *STEADY), []),  # not as much faster
        (("44.923", "0.319", "0.215", "0.200", "0.300", "0.300", *STEADY), []),  # too many
        (("44.923", "5.600", "0.319", *STEADY), []),  # the level was reached before
        (("44.923", "0.319", "-1.000", *STEADY), []),
        (("44.923", "0.319", "5.600", "5.600", "5.600", *STEADY[:4]), []),  # four later steps tell no level
        (("44.923", "3.000", "3.500", "4.000", "4.500", *STEADY), []),  # slower and slower
        (("44.923", *STEADY, "0.319", *STEADY), []),
        (("44.923", *STEADY), []),
    ],
)
def test_only_fast_steps_before_the_level_is_reached_are_taken_for_dispatched(
    seconds: tuple[str, ...], dispatched: list[int]
) -> None:
    assert run_of(*seconds) == dispatched


def test_every_attempt_dispatches_its_own_first_steps() -> None:
    text = "Config param steps: 50\n" + "".join(
        maxtext(number, each) for number, each in enumerate(("44.923", "0.319", *STEADY))
    )
    first, second = parse(text + text).segments
    assert first.steps.asynchronous.nonzero()[0].tolist() == second.steps.asynchronous.nonzero()[0].tolist() == [1]
