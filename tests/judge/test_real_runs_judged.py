"""Real runs, complete and damaged, from the log to the verdict.

Slower runs never pass, and equal runs never fail.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, evidence, log, run
from support.shared_data import shared

from pytest_llmbench.baseline.write import make_recorded_baseline
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.log_records import Segment
from pytest_llmbench.core.robust import compute_mean, compute_trimmed_mean
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.judge.agreement import STALLS
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.runs.measure.window import (
    find_missing_steps,
    get_first_steps,
    mask_window,
)
from pytest_llmbench.session.recordings import make_recording

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

FEWEST = 30

KNOWN = {
    "evo2_slow_after_checkpoint_excerpt.out",
    "geneformer_500_steps.out",
    "cpu_2024_12_50_steps.out",
    "llama2_commented_excerpt.out",
    "nan_loss.out",
    "2624605.out",
    "four_clock_runs.out",
    "resumed_killed.out",
    # not real training; the same lines in 8 logs count once
    "log-fakecfg_6_0.out",
}

STEADY = [("nan_loss.out", 1), ("log-fakecfg_6_0.out", 1)]
"""Runs whose steps differ by less than 1 % in steps 11 to 44."""

EVO2 = ("evo2_slow_after_checkpoint_excerpt.out", 1)
DOCUMENTED = Window(11, 44)
SIGMAS = {"no history": 0.0, "quiet history": 0.003, "noisy history": 0.015}
KINDS = ("recorded", "mean")

Runs = dict[tuple[str, int], Segment]


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Read the first segment with at least 30 steps of every shared log.

    Equal segments are used once. Further segments of a log are runs of the same
    program.
    """
    segments: Runs = {}
    seen = set()
    for path in sorted(path for path in shared("logs").rglob("*") if path.is_file()):
        for number, segment in enumerate(read_log(path).segments, start=1):
            times = segment.steps.seconds.tobytes()
            if len(segment.steps) >= FEWEST and times not in seen:
                seen.add(times)
                segments[path.name, number] = repair_segment(segment)
                break
    return segments


def repair_segment(segment: Segment) -> Segment:
    """Repair everything that makes a run invalid, but keep its step times.

    A NaN or constant loss, a missing end, and statements of another configuration.
    """
    steps, count = segment.steps, len(segment.steps)
    unknown = np.full(count, np.nan)
    learning = {
        "loss": np.linspace(11.0, 10.0, count),
        "has_loss": np.ones(count, dtype=bool),
        "grad_norm": np.ones(count),
    }
    repaired = dataclasses.replace(
        steps, **learning, target_tokens=unknown, consumed_samples=unknown
    )
    return replace(segment, steps=repaired, finished=True, stated=())


def slow_down(segment: Segment, factors: Floats | float) -> Segment:
    """Multiply the step times by one factor, or by one each.

    Rates in the log change accordingly.
    """
    steps = segment.steps
    return replace(
        segment,
        steps=dataclasses.replace(
            steps,
            seconds=steps.seconds * factors,
            tflops_per_gpu=steps.tflops_per_gpu / factors,
            tokens_per_second_per_gpu=steps.tokens_per_second_per_gpu / factors,
        ),
    )


def list_windows(segment: Segment) -> list[Window]:
    """List the documented window, the last third and the whole run.

    Only windows whose steps were all measured.
    """
    begin, end = get_first_steps(segment.steps), segment.steps.index
    first, last = int(begin[0]), int(end[-1])
    windows = []
    for earliest, latest in (
        DOCUMENTED[:2],
        (last - (last - first + 1) // 3 + 1, last),
        (first, last),
    ):
        inside = (begin >= earliest) & (end <= latest)
        if (
            np.count_nonzero(inside) > 1
            and not segment.steps.asynchronous[inside].any()
        ):
            window = Window(int(begin[inside].min()), int(end[inside].max()))
            if window not in windows and not find_missing_steps(segment.steps, window):
                windows.append(window)
    return windows


def fit_baseline(segment: Segment, window: Window) -> Baseline:
    """Make a published baseline that agrees with the run.

    Batch, tokens and TFLOP/s are equal, and no step is implausible.
    """
    steps, counted = segment.steps, mask_window(segment.steps, window)
    batch = int(compute_present_median(steps.global_batch_size) or 1)
    tokens = compute_present_median(
        (steps.tokens_per_second_per_gpu * steps.seconds)[counted]
    )
    before = BASELINE.configuration
    configuration = replace(
        before,
        key=replace(before.key, gpus=1),
        architecture=replace(
            before.architecture, sequence_length=round(tokens / batch) or 1024
        ),
        global_batch_size=batch,
    )
    work = compute_present_median((steps.tflops_per_gpu * steps.seconds)[counted])
    return replace(
        BASELINE,
        configuration=configuration,
        window=window,
        steps=int(steps.index[-1]) + 1,
        peak_tflops=1e15,
        logged_tflops_factor=work
        / metric_definitions.compute_tflops_per_gpu(configuration, 1.0)
        if work
        else None,
    )


def compute_present_median(values: Floats) -> float:
    """Return the median of the printed values, or 0 without any."""
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else 0.0


def measure_segment(segment: Segment, baseline: Baseline) -> Measurement:
    """Measure the run in its window; it must be valid."""
    measurement = measure(run(log(segment)), baseline, NOW)
    # Steps outside the window are not tested here.
    measurement = replace(
        measurement,
        problems=tuple(
            problem
            for problem in measurement.problems
            if problem.reason is not Reason.SLOW_OUTSIDE_WINDOW
        ),
    )
    assert measurement.valid, measurement.problems
    return measurement


def make_baselines(segment: Segment, window: Window) -> dict[str, Baseline]:
    """Make baselines from this run.

    A recorded baseline, and published ones with its mean and its median step time.
    """
    published = fit_baseline(segment, window)
    measured_run = measure_segment(segment, published)
    seconds = np.array(measured_run.window_seconds)
    return {
        "recorded": make_recorded_baseline(
            published, make_recording([measured_run], NOW)
        ),
        "mean": replace(
            published, step_seconds=compute_mean(seconds, measured_run.mean_of)
        ),
        "median": replace(published, step_seconds=float(np.median(seconds))),
    }


def make_baseline(segment: Segment, window: Window, kind: str) -> Baseline:
    return make_baselines(segment, window)[kind]


def make_history(
    measured_run: Measurement, sigma: float, days: int = 12
) -> list[Measurement]:
    """Make earlier daily runs from the same run, with random factors."""
    wobble = (
        np.exp(sigma * np.random.default_rng(11).standard_normal(days)).tolist()
        if sigma
        else []
    )
    return [
        replace(
            measured_run,
            run=replace(measured_run.run, started=NOW - timedelta(days=day, hours=3)),
            statistic_seconds=(measured_run.statistic_seconds or math.nan) * factor,
            window_seconds=tuple(
                value * factor for value in measured_run.window_seconds
            ),
        )
        for day, factor in enumerate(wobble, start=1)
    ]


def judge_segment(
    segment: Segment, baseline: Baseline, sigma: float, before: Segment | None = None
) -> Judgement:
    """Judge a run after daily runs made from `before`, or from itself."""
    normal = measure_segment(segment if before is None else before, baseline)
    return judge_measured(
        measure_segment(segment, baseline), make_history(normal, sigma), baseline
    )


def judge_measured(
    measured_run: Measurement, before: list[Measurement], baseline: Baseline
) -> Judgement:
    judgement = judge(evidence(measured_run, *before, baseline=baseline))
    estimate = judgement.estimate
    assert estimate is not None
    numbers = (
        estimate.difference,
        estimate.standard_error,
        estimate.low,
        estimate.high,
        estimate.detectable,
    )
    assert all(map(math.isfinite, numbers)), estimate
    return judgement


class Case(NamedTuple):
    """A real run with a window and a baseline made from it."""

    name: str
    segment: Segment
    baseline: Baseline
    measurement: Measurement
    nights: dict[str, list[Measurement]]
    """Earlier daily runs, by the name of the history."""

    def judge(self, found: Measurement) -> Iterator[tuple[str, Judgement]]:
        """Yield the verdict on a measurement for every history, with a name."""
        for history_name, before in self.nights.items():
            yield (
                f"{self.name}, {history_name}",
                judge_measured(found, before, self.baseline),
            )


def list_histories(measured_run: Measurement) -> dict[str, list[Measurement]]:
    return {name: make_history(measured_run, sigma) for name, sigma in SIGMAS.items()}


def make_case(name: str, segment: Segment, baseline: Baseline) -> Case:
    measured_run = measure_segment(segment, baseline)
    return Case(name, segment, baseline, measured_run, list_histories(measured_run))


def list_cases(runs: Runs, kinds: tuple[str, ...]) -> list[Case]:
    """List every run with every window and kind of baseline."""
    return [
        make_case(
            f"{name} part {number}, {window}, {kind} baseline", segment, baselines[kind]
        )
        for (name, number), segment in runs.items()
        for window in list_windows(segment)
        for baselines in [make_baselines(segment, window)]
        for kind in kinds
    ]


@pytest.fixture(scope="module")
def cases(runs: Runs) -> list[Case]:
    return list_cases(runs, KINDS)


def format_verdict(name: str, judgement: Judgement) -> str:
    """Format an unexpected verdict."""
    return f"{name}: {judgement.verdict} ({judgement.reason}): {phrase(judgement)}"


def is_forgiven(judgement: Judgement) -> bool:
    """True if a transient stall was forgiven.

    A mean that contains a stall too leaves room for an equal slowdown, and whether a
    document's mean contains stalls is unknown (docs/explanation/statistics.md).
    """
    return any(note.code == "hiccup" for note in judgement.notes)


@pytest.mark.slow
def test_known_real_runs_are_tested_with_at_least_two_windows_each(runs: Runs) -> None:
    assert {name for name, _ in runs} >= KNOWN
    assert all(len(list_windows(segment)) >= 2 for segment in runs.values())


# --- a real slow stretch --------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sigma", SIGMAS.values(), ids=SIGMAS)
@pytest.mark.parametrize("window", [Window(11, 99), Window(50, 83)], ids=str)
def test_slow_stretch_is_distinguished_from_uniform_slowdown(
    runs: Runs, window: Window, sigma: float, kind: str
) -> None:
    """By eye: 0.685 s at step 50 (line 214), 0.4226 s at step 62, then 0.25 s again as
    in steps 2 to 49."""
    real = runs[EVO2]
    steps = real.steps
    normal = np.where(
        steps.index < 50, steps.seconds, np.resize(steps.seconds[11:50], len(steps))
    )
    even = replace(real, steps=dataclasses.replace(steps, seconds=normal))
    baseline = make_baseline(even, window, kind)
    stretch = judge_segment(real, baseline, sigma, even)
    uniform = judge_segment(slow_down(even, 1.1), baseline, sigma, even)

    assert stretch.verdict in (Verdict.INCONCLUSIVE, Verdict.REGRESSION)
    assert not stretch.meets_point
    (note,) = [note for note in stretch.notes if note.code == "two-levels"]
    assert phrase(note).startswith("slow stretch: steps 50 to 62 at 0.6")
    assert note.line == 214
    assert "uniform" not in phrase(stretch)

    assert not uniform.meets_point
    assert not {"two-levels", "stragglers", "drift"} & {
        note.code for note in uniform.notes
    }
    assert "stretch" not in phrase(uniform)
    if sigma < 0.01:
        assert uniform.verdict is Verdict.REGRESSION
        assert "all steps shifted uniformly" in phrase(uniform)


# --- recurring slow steps -------------------------------------------------------------


@pytest.mark.slow
def test_real_run_meets_its_recorded_value(cases: list[Case]) -> None:
    """Stalls, warm-up and drift belong to these runs: PASS, or INCONCLUSIVE if the
    steps decide nothing."""
    wrong = []
    for case in cases:
        recording = case.baseline.recording
        refused = (
            recording is not None
            and recording.mean_seconds > recording.trimmed_mean_seconds * STALLS
        )
        for name, judgement in case.judge(case.measurement):
            passes = (
                judgement.verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)
                and judgement.meets_point
            )
            if not passes and not refused:
                wrong.append(format_verdict(name, judgement))
    assert wrong == []


@pytest.mark.parametrize("name", STEADY, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steady_run_passes_against_its_recorded_value(
    runs: Runs, name: tuple[str, int], kind: str
) -> None:
    assert (
        judge_segment(
            runs[name], make_baseline(runs[name], DOCUMENTED, kind), 0.003
        ).verdict
        is Verdict.PASS
    )


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "period"), [(1.35, 7), (5.0, 17)])
def test_periodic_slow_steps_are_no_regression(
    runs: Runs, period: int, factor: float
) -> None:
    """Pause every 7th to 17th step, as checkpoints do; no shared log has such pauses.

    The baselines are one that contains the pauses as well, and the median step, which
    does not.
    """
    wrong = []
    for (name, number), segment in runs.items():
        paused = slow_down(
            segment, np.where(segment.steps.index % period == 0, factor, 1.0)
        )
        for window in list_windows(paused):
            # Other slow steps, at the start or in evo2's stretch, would be more than a
            # fifth of the steps together with the pauses.
            if window.first < DOCUMENTED.first or (
                (name, number) == EVO2 and window != DOCUMENTED
            ):
                continue
            for kind, baseline in make_baselines(paused, window).items():
                case = make_case(
                    f"{name} part {number}, {window}, {kind} baseline", paused, baseline
                )
                for case_name, judgement in case.judge(case.measurement):
                    if judgement.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
                        wrong.append(format_verdict(case_name, judgement))
    assert wrong == []


# --- injected slowdowns ---------------------------------------------------------------


@pytest.mark.slow
def test_seven_percent_slowdown_of_real_runs_never_passes(cases: list[Case]) -> None:
    """The history is not a baseline: equally slow daily runs make no difference."""
    wrong = []
    for case in cases:
        lasting = make_case(case.name, slow_down(case.segment, 1.07), case.baseline)
        after_fast, after_slow = (
            case.judge(lasting.measurement),
            lasting.judge(lasting.measurement),
        )
        for name, judgement in (*after_fast, *after_slow):
            passes = (
                judgement.verdict not in (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
                or judgement.meets_point
            )
            if passes and not is_forgiven(judgement):
                wrong.append(format_verdict(name, judgement))
    assert wrong == []


@pytest.mark.parametrize("name", [*STEADY, EVO2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_seven_percent_after_quiet_history_is_a_regression(
    runs: Runs, name: tuple[str, int], kind: str
) -> None:
    segment = runs[name]
    judgement = judge_segment(
        slow_down(segment, 1.07),
        make_baseline(segment, DOCUMENTED, kind),
        0.003,
        segment,
    )
    assert judgement.verdict is Verdict.REGRESSION
    assert phrase(judgement).endswith(
        "all steps shifted uniformly; no single step stands out"
    ), phrase(judgement)


def make_partial_factors(index: Integers, window: Window) -> dict[str, Floats]:
    """Return factors per step for slowdowns in a part of the window.

    3.5 to 7 % on average, except for the warm-up.
    """
    late = index >= (window.first + window.last + 1) // 2
    return {
        "14 % from the middle on": np.where(late, 1.14, 1.0),
        "rising to 14 %": 1
        + 0.14 * np.clip((index - window.first) / (window.last - window.first), 0, 1),
        "70 % every tenth step": np.where(index % 10 == 0, 1.7, 1.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", make_partial_factors(np.arange(1), DOCUMENTED))
def test_partial_slowdown_beyond_the_bound_never_passes(
    cases: list[Case], part: str
) -> None:
    wrong = []
    for case in cases:
        factors = make_partial_factors(case.segment.steps.index, case.baseline.window)[
            part
        ]
        after = measure_segment(slow_down(case.segment, factors), case.baseline)
        values = [
            (np.array(measured_run.window_seconds), measured_run.mean_of)
            for measured_run in (case.measurement, after)
        ]
        largest = max(
            statistic(*values[1]) / statistic(*values[0])
            for statistic in (compute_mean, compute_trimmed_mean)
        )
        for name, judgement in case.judge(after):
            passes = judgement.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)
            if (
                passes
                and largest > 1 + judgement.tolerance.fraction
                and not is_forgiven(judgement)
            ):
                wrong.append(
                    format_verdict(f"{name}, a mean by {largest - 1:.1%}", judgement)
                )
    assert wrong == []
