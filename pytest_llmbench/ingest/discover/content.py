"""What the logs themselves say of a run's configuration, as facts that confirm or contradict a baseline.

The precision leaves no trace in a log: FP8 and BF16 differ in speed alone, and speed is what is judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.models import Baseline, ParsedLog, Segment

ExpectedTflops = Callable[[Baseline, float], float]
"""What a framework should log per GPU for a baseline at a step time in seconds."""

FACTS = ("dialect", "global_batch_size", "total_steps", "tflops")
TFLOPS_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What a run's logs say: dialects, batch sizes, totals of steps, work of a step per GPU in TFLOP (0: unsaid)."""

    dialects: frozenset[str]
    batch_sizes: frozenset[float]
    totals: frozenset[int]
    tflop_per_step: float


def summarise_logs(logs: Sequence[ParsedLog]) -> LogSummary:
    """Collect what the logs of a run say. TFLOP/s times seconds is the same for a fast step and a slow one."""
    segments = [segment for log in logs for segment in log.segments]
    batches = {value for segment in segments for value in segment.steps.global_batch_size.tolist()}
    work = [value for segment in segments for value in _compute_work(segment)]
    return LogSummary(
        dialects=frozenset(log.dialect for log in logs if log.dialect),
        batch_sizes=frozenset(value for value in batches if not math.isnan(value)),
        totals=frozenset(segment.total_steps for segment in segments if segment.total_steps is not None),
        tflop_per_step=statistics.median(work) if work else 0.0,
    )


def check_facts(summary: LogSummary, baseline: Baseline, expected_tflops: ExpectedTflops | None) -> dict[str, bool]:
    """Return the facts that the logs state, each with whether it fits the baseline."""
    fits = {}
    if summary.dialects:
        fits["dialect"] = summary.dialects == {baseline.dialect}
    if summary.batch_sizes:
        fits["global_batch_size"] = summary.batch_sizes == {baseline.configuration.global_batch_size}
    if summary.totals:
        fits["total_steps"] = baseline.steps in summary.totals
    if summary.tflop_per_step and expected_tflops:
        ratio = summary.tflop_per_step / expected_tflops(baseline, 1.0)  # that of a step of one second is its work
        fits["tflops"] = abs(ratio - 1) <= TFLOPS_MARGIN
    return fits


def _compute_work(segment: Segment) -> Iterator[float]:
    steps = segment.steps
    for seconds, tflops in zip(steps.seconds.tolist(), steps.tflops_per_gpu.tolist(), strict=True):
        if 0 < seconds < math.inf and 0 < tflops < math.inf:
            yield seconds * tflops
