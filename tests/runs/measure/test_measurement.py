"""Invalid and excluded runs, with their problems, and the metrics of valid runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, log, run, segment, steps, without

from pytest_llmbench.core.baseline_records import BaselineKind, RunMatch, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    Quote,
)
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.run_records import Hint, Measurement, Run, Shards
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure import notes
from pytest_llmbench.runs.measure import run_metrics as metrics
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.validity import UNKNOWN_STEPS, make_default_baseline

KILLED = Ending(EndingCode.TIME_LIMIT, Quote("JOB 1 CANCELLED DUE TO TIME LIMIT"), 300)


def change_column(name: str, position: int, value: float) -> Any:
    """Return a column of 50 steps with one value replaced."""
    column = getattr(steps(), name).copy()
    column[position] = value
    return column


def measure_run(content: Run) -> Measurement:
    return measure(content, BASELINE, NOW)


def test_run_whose_step_times_contradict_its_progress_bar_is_invalid() -> None:
    measurement = measure_run(run(log(replace(segment(), doubt="the bar shows more"))))
    assert [
        (problem.reason, problem.text, problem.line) for problem in measurement.problems
    ] == [(Reason.TIMES_DISAGREE, "the bar shows more", 200)]


def test_complete_run_is_valid_with_documented_metrics() -> None:
    measurement = measure_run(run())
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.325)
    values = {metric.name: metric.value for metric in measurement.metrics}
    assert set(values) <= set(METRICS)
    assert values["tokens_per_second"] == pytest.approx(286300.61, abs=0.01)
    assert values["mfu"] == pytest.approx(0.4759, abs=5e-5)
    assert values["days_to_1t_tokens"] == pytest.approx(40.43, abs=0.005)
    assert values["tokens_per_second_per_gpu"] == pytest.approx(
        286300.61 / 128, abs=0.01
    )
    assert (measurement.expected[0].name, measurement.expected[0].value) == (
        "step_time_seconds",
        7.325,
    )


def test_environment_is_that_of_judged_attempt() -> None:
    complete_run = log(
        segment(), environment=(("container", "of the log"), ("nccl", "2.26.6"))
    )
    other = log(
        segment(steps([7.3] * 3), finished=False),
        environment=(("driver", "570"), ("nccl", "2.25.1")),
    )
    recorded = (("container", "of the record"), ("recipe", "25.05"))
    measurement = measure_run(run(other, complete_run, environment=recorded))
    assert measurement.attempt == 1
    assert measurement.environment == {
        "container": "of the record",
        "nccl": "2.26.6",
        "recipe": "25.05",
    }
    assert list(measurement.environment) == sorted(measurement.environment)
    assert measure_run(run()).environment == {}
    assert replace(measurement, files=None).environment == dict(recorded)


def test_each_metric_changes_in_declared_direction() -> None:
    """A metric with a wrong direction would let the gate pass slow runs."""
    fast, slow = (
        {one.name: one for one in metrics.derive_metrics(BASELINE, seconds)}
        for seconds in (7.0, 8.0)
    )
    compared = {name for name, one in fast.items() if one.larger_is_better is not None}
    throughput = {
        "tokens_per_second",
        "tokens_per_second_per_gpu",
        "mfu",
        "tflops_per_gpu",
    }
    assert compared == {"step_time_seconds", *throughput, "days_to_1t_tokens"}
    for name in compared:
        assert (slow[name].value < fast[name].value) is fast[name].larger_is_better, (
            name
        )
    assert METRICS["step_time_seconds"].larger_is_better is False


def make_checkpoints(*records: CheckpointRecord) -> Any:
    """Return the checkpoint records of a log with one segment."""
    return {
        "checkpoints": Checkpoints(
            tuple(replace(one, part=one.part or 1) for one in records)
        )
    }


def test_checkpoint_times_are_metrics() -> None:
    """Expected: the mean of 4 and 7 is 5.5, their sample deviation 1.5 x sqrt(2)."""
    saves = [
        CheckpointRecord(CheckpointAction.SAVE, line, seconds)
        for line, seconds in ((150, 4.0), (200, 7.0))
    ]
    load = CheckpointRecord(CheckpointAction.LOAD, 50, 9.712)
    result = {
        one.name: one
        for one in measure_run(
            run(log(segment(), **make_checkpoints(load, *saves)))
        ).metrics
    }
    assert result["checkpoint_save_seconds"].value == 5.5
    assert result["checkpoint_save_seconds"].standard_deviation == pytest.approx(
        1.5 * 2**0.5
    )
    assert result["checkpoint_saves"].value == 2
    assert (
        result["checkpoint_load_seconds"].value,
        result["checkpoint_load_seconds"].unit,
    ) == (9.712, "s")
    assert "checkpoint_save_dispatch_seconds" not in result


def test_dispatch_time_of_an_asynchronous_save_is_no_save_time() -> None:
    save = CheckpointRecord(CheckpointAction.SAVE, 150, 0.1, dispatched=True)
    result = {
        one.name: one.value
        for one in measure_run(run(log(segment(), **make_checkpoints(save)))).metrics
    }
    assert result["checkpoint_save_dispatch_seconds"] == 0.1
    assert "checkpoint_save_seconds" not in result


def test_saves_of_all_ranks_count_once() -> None:
    saves = [
        CheckpointRecord(CheckpointAction.SAVE, line, 4.0, rank=f"rank{line % 4}")
        for line in range(200, 208)
    ]
    assert (
        measure_run(run(log(segment(), **make_checkpoints(*saves))))
        .metric("checkpoint_saves")
        .value
        == 2
    )


def test_checkpoint_times_of_segments_that_are_not_judged_are_ignored() -> None:
    saves = [
        CheckpointRecord(CheckpointAction.SAVE, 90, 80.0, part=1),
        CheckpointRecord(CheckpointAction.SAVE, 290, 4.0, part=2),
    ]
    early = replace(segment(steps([7.0] * 5), total=5), last_line=90)
    result = measure_run(run(log(early, segment(), **make_checkpoints(*saves))))
    assert result.segment == 2
    assert result.metric("checkpoint_save_seconds").value == 4.0


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (Shards("checkpoints", 1), "checkpoint saved: 1 *.distcp file in checkpoints"),
        (
            Shards("checkpoints", 9, partial=True),
            "checkpoint saved: at least 9 *.distcp files in checkpoints",
        ),
        (
            Shards("checkpoints", 0),
            "the log reports a saved checkpoint, but there is no *.distcp file in checkpoints",
        ),
        (Shards("checkpoints", 0, partial=True), None),
        (None, None),
    ],
)
def test_saved_checkpoint_on_disk_is_noted(
    shards: Shards | None, expected: str | None
) -> None:
    content = log(
        segment(), **make_checkpoints(CheckpointRecord(CheckpointAction.SAVE, 150, 4.0))
    )
    result = measure_run(run(content, shards=shards))
    assert result.valid
    texts = [
        phrase(note) for note in result.notes if note.code.startswith("checkpoint-")
    ]
    assert texts == ([expected] if expected else [])


def test_unreadable_later_attempt_is_a_problem() -> None:
    for code, text in (
        (EndingCode.UNREADABLE, "cannot read it"),
        (EndingCode.CUT, "the gzip data of log are truncated"),
    ):
        (problem,) = measure_run(
            run(log(segment()), log(ending=Ending(code, NO_QUOTE, 0, text)))
        ).problems
        assert (problem.reason, problem.text) == (
            Reason.UNREADABLE,
            f"the later attempt 1 cannot be read: {text}",
        )


def test_run_of_another_release_than_the_requested_baseline_is_noted() -> None:
    notes = measure_run(
        run(hints=(Hint("release", "26.06.00", "llmb-config_1.yaml"),))
    ).notes
    assert [phrase(note) for note in notes] == [
        "a run of release 26.06.00, judged against 25.05 as requested"
    ]
    assert (
        measure_run(
            run(hints=(Hint("release", "25.05.04", "llmb-config_1.yaml"),))
        ).notes
        == ()
    )


def test_run_matched_by_path_ignores_its_release() -> None:
    """It counts as a daily run: releases change while a recorded baseline stays."""
    baseline = replace(BASELINE, match=RunMatch("run_#/train.log", (("gpus", "8"),)))
    assert (
        measure(
            run(hints=(Hint("release", "26.06.00", "llmb-config_1.yaml"),)),
            baseline,
            NOW,
        ).notes
        == ()
    )


def test_only_steps_of_the_window_are_averaged() -> None:
    seconds = [60.0] * 11 + [7.0] * 34 + [99.0] * 5
    measurement = measure_run(run(log(segment(steps(seconds)))))
    assert measurement.statistic_seconds == pytest.approx(7.0)
    assert measurement.last_step_seconds == 99.0
    assert len(measurement.window_seconds) == 34


def test_measurement_contains_step_numbers_and_log_lines_of_the_window() -> None:
    unit = np.full(50, 0.001)
    unit[[10, 20]] = 10.0, 0.01
    measurement = measure_run(run(log(segment(steps(resolution_seconds=unit)))))
    assert measurement.window_steps == tuple(range(11, 45))
    assert measurement.window_lines == tuple(range(111, 145))
    assert measurement.resolution_seconds == 0.001
    assert measure_run(run(log(segment(steps([7.0] * 5))))).resolution_seconds == 0.0


@pytest.mark.parametrize(
    ("first", "width", "leak"), [(5, 5, 0), (7, 5, 111), (0, 12, 111)]
)
def test_first_step_that_leaks_into_moving_means_of_the_window_is_noted(
    first: int, width: int, leak: int
) -> None:
    """Step k of means of w contains the first step of its segment if k < first + w."""
    single = np.array([60.0, *[7.0] * (49 - first)])
    seconds = [
        single[max(0, last - width) : last].mean() for last in range(1, len(single) + 1)
    ]
    measurement = measure_run(run(log(segment(steps(seconds, first=first)))))
    assert measurement.moving_mean == width
    assert [(note.code, note.line) for note in measurement.notes] == (
        [("moving-mean-warm-up", leak)] if leak else []
    )
    for note in measurement.notes:
        last = first + width - 1
        expected = f"the window contains warm-up: up to step {last} its values are means that include step {first}"
        assert phrase(note) == expected


CASES: list[tuple[str, Any, Reason, str, int]] = [
    (
        "a loss that is not finite, even outside the window",
        log(segment(steps(loss=change_column("loss", -1, np.nan)))),
        Reason.DIVERGED,
        "loss is nan from step 49 on",
        149,
    ),
    (
        "a gradient norm that is not finite",
        log(
            segment(
                steps(
                    grad_norm=change_column("grad_norm", 3, np.nan),
                    has_grad_norm=change_column("has_grad_norm", 3, True),
                )
            )
        ),
        Reason.DIVERGED,
        "grad norm is nan from step 3",
        103,
    ),
    (
        "a step of the window without its loss",
        log(segment(steps(has_loss=change_column("has_loss", 20, False)))),
        Reason.LOSS_MISSING,
        "first step 20",
        120,
    ),
    (
        "a lost step of the window",
        log(segment(without(steps(), 20))),
        Reason.WINDOW_INCOMPLETE,
        "1 of the steps 11 to 44 are missing: 20",
        0,
    ),
    (
        "an impossible step of the window",
        log(segment(steps(change_column("seconds", 20, 0.3)))),
        Reason.IMPOSSIBLE_SAMPLE,
        "step 20 took 0.3 s; 100 % MFU would be 3.486 s",
        120,
    ),
    (
        "a step time of the window that is not finite",
        log(segment(steps(change_column("seconds", 20, np.nan)))),
        Reason.WINDOW_INCOMPLETE,
        "1 of the steps 11 to 44 have no time: 20",
        120,
    ),
    (
        "only infinite step times",
        log(segment(steps(np.inf))),
        Reason.IMPOSSIBLE_SAMPLE,
        "step 11 took inf s",
        111,
    ),
    (
        "another batch size",
        log(segment(steps(global_batch_size=np.full(50, 128.0)))),
        Reason.WRONG_CONFIGURATION,
        "global batch size 128 in the log, 256 in the baseline",
        100,
    ),
    (
        "a run that was cut",
        log(segment(steps([7.3] * 47), finished=False)),
        Reason.INCOMPLETE,
        "stopped after step 46 of 50; the log shows no cause",
        146,
    ),
    (
        "a run that was cut, with its cause",
        log(segment(steps([7.3] * 47), finished=False), ending=KILLED),
        Reason.INCOMPLETE,
        "time limit: JOB 1 CANCELLED",
        300,
    ),
    (
        "a log without a step",
        log(),
        Reason.NO_STEPS,
        "no training step of dialect nemo2",
        0,
    ),
    (
        "a log without steps, but with a possible step record",
        log(dropped=(DroppedRecords(DropReason.TORN, 2, 7, "step 1 took 12"),)),
        Reason.NO_STEPS,
        "of dialect nemo2 in the log; 2 lines could not be read, the first is: step 1 took 12",
        7,
    ),
    (
        "a log without a step, with its cause",
        log(ending=KILLED),
        Reason.NO_STEPS,
        "TIME LIMIT",
        300,
    ),
]


@pytest.mark.parametrize(
    ("content", "reason", "text", "line"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_invalid_run_reports_problem_and_line(
    content: Any, reason: Reason, text: str, line: int
) -> None:
    measurement = measure_run(run(content))
    assert not measurement.valid
    problem = measurement.problems[0]
    assert problem.reason is reason
    assert text in problem.text
    assert problem.line == line


def test_job_without_log_does_not_pass() -> None:
    (problem,) = measure_run(replace(run(), attempts=())).problems
    assert (problem.reason, problem.text[:20]) == (
        Reason.NO_STEPS,
        "the job left no log:",
    )


def test_recent_incomplete_run_is_probably_running() -> None:
    cut = log(segment(steps([7.3] * 30), finished=False))
    fresh = measure_run(run(cut, modified=NOW - timedelta(minutes=2)))
    assert fresh.problems[0].reason is Reason.STILL_RUNNING
    assert (
        measure_run(run(cut, modified=NOW - timedelta(hours=2))).problems[0].reason
        is Reason.INCOMPLETE
    )
    killed = replace(cut, ending=KILLED)
    assert (
        measure_run(run(killed, modified=NOW)).problems[0].reason is Reason.INCOMPLETE
    )
    assert (
        measure_run(run(log(), modified=NOW)).problems[0].reason is Reason.STILL_RUNNING
    )


@pytest.mark.parametrize(
    ("hint", "valid"),
    [
        (Hint("tp", "8", "name"), False),
        (Hint("global_batch_size", "512", "name"), False),
        (Hint("micro_batch_size", "1", "name"), True),
    ],
)
def test_stated_facts_have_to_match_the_baseline(hint: Hint, valid: bool) -> None:
    measurement = measure_run(run(hints=(hint,)))
    assert measurement.valid is valid
    if not valid:
        assert measurement.problems[0].reason is Reason.WRONG_CONFIGURATION
        assert hint.value in measurement.problems[0].text


@pytest.mark.parametrize(
    ("ratio", "known", "valid"),
    [
        (1.04, 1.0, True),
        (1.06, 1.0, False),
        (1.06, None, True),
        (2.0, None, False),
        (0.5, None, False),
    ],
)
def test_mismatching_tflops_reveal_another_configuration(
    ratio: float, known: float | None, valid: bool
) -> None:
    at_baseline = 256 * 4.27e15 / 7.325 / 128 / 1e12
    content = run(log(segment(steps(tflops_per_gpu=np.full(50, at_baseline * ratio)))))
    measurement = measure(content, replace(BASELINE, logged_tflops_factor=known), NOW)
    assert measurement.valid is valid


@pytest.mark.parametrize(("ratio", "valid"), [(1.01, True), (0.5, False), (2.0, False)])
def test_mismatching_tokens_reveal_another_configuration(
    ratio: float, valid: bool
) -> None:
    tokens = 8192 * 256 / 7.325 / 128 * ratio
    measurement = measure_run(
        run(log(segment(steps(tokens_per_second_per_gpu=np.full(50, tokens)))))
    )
    assert measurement.valid is valid


def test_profiled_traced_and_checkpoint_load_runs_are_excluded_from_judgement() -> None:
    by_name = measure_run(
        run(excluded=Reason.PROFILED, excluded_because="_nsys in the name")
    )
    traced = measure_run(run(log(segment(), nccl_line=7)))
    loaded = measure_run(
        run(
            log(
                segment(steps([7.0], first=50), total=51),
                **make_checkpoints(CheckpointRecord(CheckpointAction.LOAD, 9)),
            )
        )
    )
    for measurement, reason in (
        (by_name, Reason.PROFILED),
        (traced, Reason.TRACED),
        (loaded, Reason.CHECKPOINT_LOAD),
    ):
        assert measurement.excluded is not None
        assert measurement.excluded.reason is reason
        assert not measurement.valid


def test_non_finite_loss_of_a_step_without_time_after_the_window_is_diverged() -> None:
    loss, seconds = (
        change_column("loss", 47, np.nan),
        change_column("seconds", 47, np.nan),
    )
    diverged = measure_run(run(log(segment(steps(seconds, loss=loss)))))
    assert [problem.reason for problem in diverged.problems] == [Reason.DIVERGED]


def test_incomplete_resumed_run_is_not_taken_for_a_checkpoint_load_test() -> None:
    resumed = segment(steps([7.0] * 2, first=10), finished=False)
    measurement = measure_run(
        run(
            log(resumed, **make_checkpoints(CheckpointRecord(CheckpointAction.LOAD, 9)))
        )
    )
    assert measurement.excluded is None
    assert measurement.problems[0].reason is Reason.INCOMPLETE


def test_impossible_steps_outside_window_are_noted() -> None:
    measurement = measure_run(
        run(log(segment(steps(change_column("seconds", 1, 0.2)))))
    )
    assert measurement.valid
    assert [(note.code, note.line) for note in measurement.notes] == [
        ("impossible-steps", 101)
    ]


def test_dropped_or_repeated_step_lines_of_the_log_are_noted() -> None:
    measurement = measure_run(
        run(
            log(
                segment(),
                dropped=(DroppedRecords(DropReason.TORN, 3, 17, "Training ep"),),
            )
        )
    )
    (note,) = measurement.notes
    assert (note.code, note.line, phrase(note)) == (
        "torn",
        17,
        "3 truncated records dropped; the first: Training ep",
    )
    measurement = measure_run(
        run(
            log(
                segment(),
                dropped=(DroppedRecords(DropReason.REPEAT_DISAGREES, 1, 17, "step 3"),),
            )
        )
    )
    (note,) = measurement.notes
    assert (
        phrase(note)
        == "1 step printed again with another time; the slower counts; the first: step 3"
    )


@pytest.mark.parametrize(
    ("first_line", "last_line", "valid"),
    [
        (101, 101, True),
        (101, 111, False),
        (120, 120, False),
        (144, 150, False),
        (145, 150, True),
        (90, 200, False),
    ],
)
def test_contradicted_step_times_make_a_run_invalid_only_if_in_the_window(
    first_line: int, last_line: int, valid: bool
) -> None:
    """Steps 11 to 44 are in lines 111 to 144."""
    dropped = DroppedRecords(
        DropReason.TIMES_DISAGREE, 2, first_line, "step 3", last_line=last_line
    )
    measurement = measure_run(run(log(segment(), dropped=(dropped,))))
    assert measurement.valid is valid
    (message,) = measurement.notes if valid else measurement.problems
    assert (message.line, phrase(message)[:25]) == (
        first_line,
        "2 step times that another",
    )
    assert valid or measurement.problems[0].reason is Reason.TIMES_DISAGREE


def test_trimmed_baseline_uses_trimmed_mean() -> None:
    spiky = log(segment(steps(change_column("seconds", 20, 70.0))))
    trimmed = replace(
        BASELINE, window=BASELINE.window._replace(statistic="trimmed_mean")
    )
    assert measure(run(spiky), trimmed, NOW).statistic_seconds == pytest.approx(7.325)


def test_only_mfu_is_missing_without_peak() -> None:
    """No peak is published for a CPU."""
    measurement = measure(run(), replace(BASELINE, peak_tflops=float("nan")), NOW)
    names = {metric.name for metric in measurement.metrics}
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.325)
    assert names == {metric.name for metric in measure_run(run()).metrics} - {"mfu"}
    assert "mfu" not in {metric.name for metric in measurement.expected}


def test_zero_step_time_is_invalid_even_if_the_gpu_peak_is_unknown() -> None:
    content = run(log(segment(steps(seconds=change_column("seconds", 20, 0.0)))))
    (problem,) = measure(
        content, replace(BASELINE, peak_tflops=float("nan")), NOW
    ).problems
    assert (problem.reason, problem.text) == (
        Reason.IMPOSSIBLE_SAMPLE,
        "step 20 took 0 s",
    )


def test_untimed_baseline_expects_no_metrics() -> None:
    untimed = replace(
        BASELINE, kind=BaselineKind.RECIPE, step_seconds=float("nan"), cells=()
    )
    measurement = measure(run(), untimed, NOW)
    assert measurement.valid
    assert measurement.expected == ()
    assert measurement.metrics == measure_run(run()).metrics


def test_total_in_the_log_decides_whether_an_unidentified_run_is_complete() -> None:
    """The placeholder baseline contradicts nothing, and its steps are not a recipe's."""
    window = Window(5, 9)
    for columns, finished, total, reason in (
        (steps(7.0), True, 50, None),
        (steps([7.0] * 10, tflops_per_gpu=np.full(10, 1.0)), True, 10, None),
        (steps([7.0] * 60), False, None, Reason.INCOMPLETE),
        (steps([7.0] * 7 + [0.0] * 3), True, 10, Reason.IMPOSSIBLE_SAMPLE),
        (
            steps([7.0] * 7 + [np.nan] * 3, tokens_per_second_per_gpu=np.full(10, 9.0)),
            True,
            10,
            Reason.WINDOW_INCOMPLETE,
        ),
    ):
        content = run(log(segment(columns, finished=finished, total=total)), key=None)
        result = measure(
            content,
            make_default_baseline(content, window, UNKNOWN_STEPS),
            NOW,
            step_time_only=True,
        )
        assert [one.reason for one in result.problems[:1]] == (
            [] if reason is None else [reason]
        )
    assert result.problems[0].text.startswith("3 of the steps 5 to 9 have no time")


def test_message_on_a_stopped_run_omits_an_unknown_number_of_steps() -> None:
    content = run(log(segment(steps([7.0] * 20), finished=False, total=None)), key=None)
    (problem,) = measure(
        content,
        make_default_baseline(content, Window(10, 19), UNKNOWN_STEPS),
        NOW,
        step_time_only=True,
    ).problems
    assert problem.text == "stopped after step 19; the log shows no cause"


def test_step_time_only_measurement_computes_no_metrics_and_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For thousands of older runs only the step time and the problems are needed."""
    complete_run = measure_run(run())
    for module, name in (
        (metrics, "compute_window_metrics"),
        (metrics, "expect_metrics"),
        (notes, "list_notes"),
    ):
        monkeypatch.delattr(module, name)
    older = measure(run(), BASELINE, NOW, step_time_only=True)
    assert older.valid
    assert (older.metrics, older.expected, older.notes) == ((), (), ())
    compared = (
        "statistic_seconds",
        "window_seconds",
        "moving_mean",
        "attempts",
        "problems",
        "checkpoints",
    )
    assert [getattr(older, name) for name in compared] == [
        getattr(complete_run, name) for name in compared
    ]


@pytest.mark.parametrize(
    ("window", "seconds"),
    [(Window(35, 44), 18.0), (Window(36, 43), 20.0), (Window(100, 110), None)],
)
def test_documented_window_includes_both_ends(
    window: Window, seconds: float | None
) -> None:
    inside = (np.arange(50) > 35) & (np.arange(50) < 44)
    baseline = replace(BASELINE, timed_window=window)
    content = segment(steps(np.where(inside, 20.0, 10.0).tolist()))
    assert measure(run(log(content)), baseline, NOW).timed_seconds == seconds
