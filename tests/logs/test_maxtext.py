"""MaxText: one line per step, in fixed formats."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, maxtext, maxtext_run, parse, steps


def test_documented_step_line_gives_step_time_and_loss() -> None:
    log = parse(maxtext(49))
    (segment,) = log.segments
    row = segment.steps
    assert (log.dialect, segment.total_steps, segment.finished) == (
        "maxtext",
        None,
        False,
    )
    assert (row.index[0], row.seconds[0], row.resolution_seconds[0]) == (
        49,
        7.908,
        0.001,
    )
    assert (row.tflops_per_gpu[0], row.tokens_per_second_per_gpu[0]) == (
        460.48,
        1035.97,
    )
    assert (row.loss[0], row.has_loss[0]) == (0.0, True)
    assert math.isnan(row.global_batch_size[0])


@pytest.mark.parametrize(
    ("line", "seconds", "loss", "norm"),
    [
        ("# completed step: 1, seconds: 176.734, TFLOP/s/device: 5.846, loss: 2.008", 176.734, 2.008, math.nan),
        ("\x02dI0317 10:00:24.410596 1253 metric_logger.py:181] completed step: 26, seconds: 0.427, "
         "TFLOP/s/device: 240.728, Tokens/s/device: 9594.461, total_weights: 31056, loss: nan",
         0.427, math.nan, math.nan),
        ("(RayTrainWorker pid=21663, ip=10.12.3.6) completed step: 99, seconds: 1.100, TFLOP/s/device: 179.739, "
         "Tokens/s/device: 3725.218, total_weights: 65536, loss: 0.000 [repeated 3x across cluster]",
         1.1, 0.0, math.nan),
        ("completed step: 5, seconds: 20.585, TFLOP/s/device: 97.566, Tokens/s/device: 1989.820, "
         "total_weights: 31457280, loss: 12.409, lr: 3.000e-04, grad_norm: 1.234e+01", 20.585, 12.409, 12.34),
        ("completed step: 18, seconds: 11.716, TFLOP/s/device: 348.750, Tokens/s/device: 6760.245, "
         "Samples/s/device: 0.0854, Frames/s/device: 7.255, loss: 1.540", 11.716, 1.54, math.nan),
        ("completed step: 1, seconds: 0.631, TFLOP/s/device: 5688.282, Tokens/s/device: 311629.521, "
         "total_weights: 1572864, loss: 12.979, lm_loss: 12.979, perplexity: 433358.281", 0.631, 12.979, math.nan),
    ],
    ids=["commented", "diverged", "repeated", "gradient norm", "frames", "perplexity"],
)  # fmt: skip
def test_variants_of_the_step_line_fill_the_same_columns(
    line: str, seconds: float, loss: float, norm: float
) -> None:
    log = parse(line + "\n")
    row = log.segments[0].steps
    assert [row.seconds[0], row.loss[0], row.grad_norm[0]] == pytest.approx(
        [seconds, loss, norm], nan_ok=True
    )
    assert (row.has_loss[0], row.has_grad_norm[0]) == (True, not math.isnan(norm))
    assert log.dropped == ()


def test_loss_is_optional_in_a_step_line() -> None:
    assert parse(maxtext(3, loss="")).segments[0].steps.has_loss.tolist() == [False]


def test_each_run_of_a_log_has_its_total() -> None:
    config = "Config param learning_rate_schedule_steps: 20\nConfig param steps: {}\nConfig param warmup_steps: 7\n"
    text = (
        config.format(15) + maxtext_run(0, 14) + config.format(50) + maxtext_run(0, 48)
    )
    segments = parse(text).segments
    assert [
        (segment.total_steps, segment.finished, len(segment.steps))
        for segment in segments
    ] == [
        (15, True, 15),
        (50, False, 49),
    ]
    assert steps(parse(maxtext_run(0, 14) + maxtext_run(0, 49))) == [
        list(range(15)),
        list(range(50)),
    ]


def test_late_step_lines_of_other_processes_are_dropped_as_repetitions() -> None:
    numbers = [0, 0, 1, 2, 1, 2, 3, 3, 4, 2, 5, 4, 6]
    log = parse("".join(maxtext(number) for number in numbers))
    assert steps(log) == [[0, 1, 2, 3, 4, 5, 6]]
    assert dropped(log) == {"repeated": 6}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.000\n", "0.00"),  # at the end of the file
        ("0.000", "0.00"),
        ("460.480, ", "460.48\n"),
        ("7.908", "7."),
        ("7.908", "7foreign text"),
        ("Tokens/s/device: 1035.970", "Tok\nforeign"),
        ("loss: 0.000", "loss: 1.500, loss: 1.500"),
        ("loss: 0.000", "loss: 1.500, grad_norm: 1.234"),
    ],
)
def test_truncated_step_record_is_reported_as_dropped(old: str, new: str) -> None:
    log = parse("before\n" + maxtext(4).replace(old, new))
    assert (log.segments, dropped(log)) == ((), {"torn": 1})
    assert log.dropped[0].first_line == 2


def test_two_records_on_one_line_are_read() -> None:
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
def test_lines_similar_to_step_lines_are_not_read_as_steps(line: str) -> None:
    log = parse(line + "\n")
    assert (log.dialect, log.segments, log.dropped) == (None, (), ())


@pytest.mark.parametrize("value", ["0.000", "-1.500", "NaN", "-inf", "Infinity"])
def test_impossible_values_are_kept_as_printed(value: str) -> None:
    log = parse(
        maxtext(1, value, loss=f", loss: {value}, grad_norm: {float(value):.3e}")
        + maxtext(2)
    )
    row = log.segments[0].steps
    assert steps(log) == [[1, 2]]
    assert [row.seconds[0], row.loss[0], row.grad_norm[0]] == pytest.approx(
        [float(value)] * 3, nan_ok=True
    )
    assert (row.has_loss.tolist(), log.dropped) == ([True, True], ())


STEADY = ("5.600",) * 10


@pytest.mark.parametrize(
    ("seconds", "dispatched"),
    [
        (("44.923", "0.319", "0.215", *STEADY), [1, 2]),
        (("44.923", "40.100", "0.215", "0.200", "0.300", *STEADY), [2, 3, 4]),
        (("0.319", "0.215", *STEADY), [0, 1]),
        (("44.923", "4.190", *STEADY), [1]),
        (("44.923", "4.210", *STEADY), []),  # not fast enough
        (
            ("44.923", "0.319", "0.215", "0.200", "0.300", "0.300", *STEADY),
            [],
        ),  # too many
        # the usual time was reached before
        (("44.923", "5.600", "0.319", *STEADY), []),
        (("44.923", "0.319", "-1.000", *STEADY), []),
        (
            ("44.923", "0.319", "5.600", "5.600", "5.600", *STEADY[:4]),
            [],
        ),  # four later steps are too few
        (
            ("44.923", "3.000", "3.500", "4.000", "4.500", *STEADY),
            [],
        ),  # increasing times
        (("44.923", *STEADY, "0.319", *STEADY), []),
    ],
)
def test_fast_first_steps_are_marked_asynchronous(
    seconds: tuple[str, ...], dispatched: list[int]
) -> None:
    """Each attempt dispatches its own first steps."""
    attempt = "".join(maxtext(step, printed) for step, printed in enumerate(seconds))
    for segment in parse(f"Config param steps: 50\n{attempt}" * 2).segments:
        assert segment.steps.asynchronous.nonzero()[0].tolist() == dispatched
