"""Real runs, whole and damaged, from the log to the verdict: what is slower never
passes, what is not never fails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
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
    # a stand-in for training; the same lines in 8 logs count once
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
    """Return the first part with 30 times or more of every log that can be read, equal
    ones once.

    Further parts of a log are runs of the same program.
    """
    found: Runs = {}
    known = set()
    for path in sorted(one for one in shared("logs").rglob("*") if one.is_file()):
        for number, segment in enumerate(read_log(path).segments, start=1):
            times = segment.steps.seconds.tobytes()
            if len(segment.steps) >= FEWEST and times not in known:
                known.add(times)
                found[path.name, number] = sound(segment)
                break
    return found


def sound(segment: Segment) -> Segment:
    """Return the part with what makes a run invalid repaired: a NaN or constant loss, a
    missing end, and what it states of another configuration than the tests'. Its step
    times stay."""
    steps, count = segment.steps, len(segment.steps)
    unknown = np.full(count, np.nan)
    learning = {
        "loss": np.linspace(11.0, 10.0, count),
        "has_loss": np.ones(count, dtype=bool),
        "grad_norm": np.ones(count),
    }
    sounder = replace(
        steps, **learning, target_tokens=unknown, consumed_samples=unknown
    )
    return replace(segment, steps=sounder, finished=True, stated=())


def slowed(segment: Segment, factors: Floats | float) -> Segment:
    """Return the part with all step times, or each, multiplied; what the log derives
    from them follows."""
    steps = segment.steps
    return replace(
        segment,
        steps=replace(
            steps,
            seconds=steps.seconds * factors,
            tflops_per_gpu=steps.tflops_per_gpu / factors,
            tokens_per_second_per_gpu=steps.tokens_per_second_per_gpu / factors,
        ),
    )


def list_windows(segment: Segment) -> list[Window]:
    """List the documented window, the last third, and the whole run, as far as all
    their steps were measured."""
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


def fitted(segment: Segment, window: Window) -> Baseline:
    """Return a published baseline for this run: its batch, tokens and TFLOP/s agree,
    and no step is impossible."""
    steps, counted = segment.steps, mask_window(segment.steps, window)
    batch = int(middle(steps.global_batch_size) or 1)
    tokens = middle((steps.tokens_per_second_per_gpu * steps.seconds)[counted])
    before = BASELINE.configuration
    configuration = replace(
        before,
        key=replace(before.key, gpus=1),
        architecture=replace(
            before.architecture, sequence_length=round(tokens / batch) or 1024
        ),
        global_batch_size=batch,
    )
    work = middle((steps.tflops_per_gpu * steps.seconds)[counted])
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


def middle(values: Floats) -> float:
    """Return the median of what is printed, 0 where nothing is."""
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else 0.0


def measured(segment: Segment, baseline: Baseline) -> Measurement:
    """Return what the run measured in its window, which has to be valid."""
    found = measure(run(log(segment)), baseline, NOW)
    # Steps outside the window are no part of these tests.
    found = replace(
        found,
        problems=tuple(
            each
            for each in found.problems
            if each.reason is not Reason.SLOW_OUTSIDE_WINDOW
        ),
    )
    assert found.valid, found.problems
    return found


def make_baselines(segment: Segment, window: Window) -> dict[str, Baseline]:
    """Make a recorded baseline of this run, and a document's with its mean and with its
    median step."""
    published = fitted(segment, window)
    found = measured(segment, published)
    seconds = np.array(found.window_seconds)
    return {
        "recorded": make_recorded_baseline(published, make_recording([found], NOW)),
        "mean": replace(published, step_seconds=compute_mean(seconds, found.mean_of)),
        "median": replace(published, step_seconds=float(np.median(seconds))),
    }


def own(segment: Segment, window: Window, kind: str) -> Baseline:
    return make_baselines(segment, window)[kind]


def history(found: Measurement, sigma: float, nights: int = 12) -> list[Measurement]:
    """Return the same run in the nights before, each as a whole faster or slower by
    chance."""
    wobble = (
        np.exp(sigma * np.random.default_rng(11).standard_normal(nights)).tolist()
        if sigma
        else []
    )
    return [
        replace(
            found,
            run=replace(found.run, started=NOW - timedelta(days=night, hours=3)),
            statistic_seconds=(found.statistic_seconds or math.nan) * factor,
            window_seconds=tuple(value * factor for value in found.window_seconds),
        )
        for night, factor in enumerate(wobble, start=1)
    ]


def judged(
    segment: Segment, baseline: Baseline, sigma: float, before: Segment | None = None
) -> Judgement:
    """Return the verdict on the run; the nights before it were as `before`, or as
    itself."""
    usual = measured(segment if before is None else before, baseline)
    return judge_measured(measured(segment, baseline), history(usual, sigma), baseline)


def judge_measured(
    found: Measurement, before: list[Measurement], baseline: Baseline
) -> Judgement:
    judgement = judge(evidence(found, *before, baseline=baseline))
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
    """A real run with a window and a baseline made of it."""

    name: str
    segment: Segment
    baseline: Baseline
    measurement: Measurement
    nights: dict[str, list[Measurement]]
    """The run in the nights before, by the name of the history."""

    def judge(self, found: Measurement) -> Iterator[tuple[str, Judgement]]:
        """Yield the verdict on a measurement after every history, and a name for it."""
        for told, before in self.nights.items():
            yield f"{self.name}, {told}", judge_measured(found, before, self.baseline)


def list_histories(found: Measurement) -> dict[str, list[Measurement]]:
    return {told: history(found, sigma) for told, sigma in SIGMAS.items()}


def make_case(name: str, segment: Segment, baseline: Baseline) -> Case:
    found = measured(segment, baseline)
    return Case(name, segment, baseline, found, list_histories(found))


def list_cases(runs: Runs, kinds: tuple[str, ...]) -> list[Case]:
    """Return every run with every window and kind of baseline."""
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


def said(name: str, judgement: Judgement) -> str:
    """Return a line for the table of what should not be."""
    return f"{name}: {judgement.verdict} ({judgement.reason}): {phrase(judgement)}"


def is_forgiven(judgement: Judgement) -> bool:
    """Whether a hiccup was: against a mean that holds it, too, what is forgiven hides
    as much of a slowdown. Nothing tells whether a document's does
    (docs/statistics.md)."""
    return any(note.code == "hiccup" for note in judgement.notes)


@pytest.mark.slow
def test_real_runs_of_thirty_steps_take_part(runs: Runs) -> None:
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
    usual = np.where(
        steps.index < 50, steps.seconds, np.resize(steps.seconds[11:50], len(steps))
    )
    even = replace(real, steps=replace(steps, seconds=usual))
    baseline = own(even, window, kind)
    stretch = judged(real, baseline, sigma, even)
    uniform = judged(slowed(even, 1.1), baseline, sigma, even)

    assert stretch.verdict in (Verdict.INCONCLUSIVE, Verdict.REGRESSION)
    assert not stretch.meets_point
    (note,) = [one for one in stretch.notes if one.code == "two-levels"]
    assert phrase(note).startswith("slow stretch: steps 50 to 62 at 0.6")
    assert note.line == 214
    assert "uniform" not in phrase(stretch)

    assert not uniform.meets_point
    assert not {"two-levels", "stragglers", "drift"} & {
        one.code for one in uniform.notes
    }
    assert "stretch" not in phrase(uniform)
    if sigma < 0.01:
        assert uniform.verdict is Verdict.REGRESSION
        assert "uniform shift" in phrase(uniform)


# --- what is slow in every run --------------------------------------------------------


@pytest.mark.slow
def test_real_run_meets_its_recorded_value(cases: list[Case]) -> None:
    """Stalls, warm-up and drift belong to these runs: PASS, or INCONCLUSIVE where their
    steps say too little."""
    wrong = []
    for case in cases:
        recording = case.baseline.recording
        refused = (
            recording is not None
            and recording.mean_seconds > recording.trimmed_mean_seconds * STALLS
        )
        for name, judgement in case.judge(case.measurement):
            green = (
                judgement.verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)
                and judgement.meets_point
            )
            if not green and not refused:
                wrong.append(said(name, judgement))
    assert wrong == []


@pytest.mark.parametrize("name", STEADY, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steady_run_passes_against_its_recorded_value(
    runs: Runs, name: tuple[str, int], kind: str
) -> None:
    assert (
        judged(runs[name], own(runs[name], DOCUMENTED, kind), 0.003).verdict
        is Verdict.PASS
    )


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "period"), [(1.35, 7), (5.0, 17)])
def test_periodic_slow_steps_are_no_regression(
    runs: Runs, period: int, factor: float
) -> None:
    """No shared log has a regular pause, so every 7th to 17th step of the real ones
    gets it: a checkpoint, say.

    Against the baseline that holds the pauses too, and against the median step, which
    does not.
    """
    wrong = []
    for (name, number), segment in runs.items():
        paused = slowed(
            segment, np.where(segment.steps.index % period == 0, factor, 1.0)
        )
        for window in list_windows(paused):
            # what is slow besides, at the start or in evo2's stretch, would be more
            # than a fifth of the steps with it
            if window.first < DOCUMENTED.first or (
                (name, number) == EVO2 and window != DOCUMENTED
            ):
                continue
            for kind, baseline in make_baselines(paused, window).items():
                case = make_case(
                    f"{name} part {number}, {window}, {kind} baseline", paused, baseline
                )
                for told, judgement in case.judge(case.measurement):
                    if judgement.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
                        wrong.append(said(told, judgement))
    assert wrong == []


# --- injected slowdowns ---------------------------------------------------------------


@pytest.mark.slow
def test_seven_percent_slowdown_of_real_runs_never_passes(cases: list[Case]) -> None:
    """The history is no baseline: daily runs that were as slow as this run change
    nothing."""
    wrong = []
    for case in cases:
        lasting = make_case(case.name, slowed(case.segment, 1.07), case.baseline)
        after_fast, after_slow = (
            case.judge(lasting.measurement),
            lasting.judge(lasting.measurement),
        )
        for name, judgement in (*after_fast, *after_slow):
            green = (
                judgement.verdict not in (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
                or judgement.meets_point
            )
            if green and not is_forgiven(judgement):
                wrong.append(said(name, judgement))
    assert wrong == []


@pytest.mark.parametrize("name", [*STEADY, EVO2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_seven_percent_after_quiet_history_is_a_regression(
    runs: Runs, name: tuple[str, int], kind: str
) -> None:
    segment = runs[name]
    judgement = judged(
        slowed(segment, 1.07), own(segment, DOCUMENTED, kind), 0.003, segment
    )
    assert judgement.verdict is Verdict.REGRESSION
    assert phrase(judgement).endswith("uniform shift; no single step stands out"), (
        phrase(judgement)
    )


def in_part(index: Integers, window: Window) -> dict[str, Floats]:
    """Return factors for each step: slowdowns of a part of the window, 3.5 to 7 % on
    average, but for the warm-up."""
    late = index >= (window.first + window.last + 1) // 2
    return {
        "14 % from the middle on": np.where(late, 1.14, 1.0),
        "rising to 14 %": 1
        + 0.14 * np.clip((index - window.first) / (window.last - window.first), 0, 1),
        "70 % every tenth step": np.where(index % 10 == 0, 1.7, 1.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", in_part(np.arange(1), DOCUMENTED))
def test_partial_slowdown_beyond_the_bound_never_passes(
    cases: list[Case], part: str
) -> None:
    wrong = []
    for case in cases:
        factors = in_part(case.segment.steps.index, case.baseline.window)[part]
        after = measured(slowed(case.segment, factors), case.baseline)
        values = [
            (np.array(found.window_seconds), found.mean_of)
            for found in (case.measurement, after)
        ]
        largest = max(
            change(*values[1]) / change(*values[0])
            for change in (compute_mean, compute_trimmed_mean)
        )
        for name, judgement in case.judge(after):
            green = judgement.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)
            if (
                green
                and largest > 1 + judgement.tolerance.fraction
                and not is_forgiven(judgement)
            ):
                wrong.append(said(f"{name}, a mean by {largest - 1:.1%}", judgement))
    assert wrong == []
