"""What changed between two sets of baselines, and what of it moved MFU: the step time, or how FLOPs are counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from pytest_llmbench.baseline.lint import Arithmetic
from pytest_llmbench.core import formatting
from pytest_llmbench.core.accepted_values import find_reference
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.models import Baseline, Key, Recording

PARTS = ("step time", "FLOPs formula", "batch", "peak", "the documents' own sums")
"""What MFU = GBS x model FLOPs / step time / GPUs / peak can move by; the last is what none of the others explains."""

LOG = ("find", "pattern", "unit", "first_step", "averages", "start", "end")
"""What a file says of how its log is read."""

Name = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Utilization:
    """MFU of one configuration in both sets, as fractions, and the logarithm of its change by part.

    The parts add up to log(after / before). `printed`: both are the cells of the documents, whose own sums may differ
    from what follows from their step times; otherwise both are computed, and the last part is zero.
    """

    before: float
    after: float
    parts: Mapping[str, float]
    printed: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """One configuration in either set, None where it is not; `facts` are what was changed: name, before, after."""

    id: str
    before: Baseline | None
    after: Baseline | None
    facts: tuple[tuple[str, str, str], ...] = ()
    utilization: Utilization | None = None

    @property
    def step_time_ratio(self) -> float | None:
        """The step time after as a multiple of that before; None where either has none."""
        if self.before is None or self.after is None:
            return None
        ratio = self.after.step_seconds / self.before.step_seconds
        return ratio if math.isfinite(ratio) else None

    @property
    def is_change(self) -> bool:
        """Whether it is not the same in both."""
        if self.before is None or self.after is None:
            return True
        times = {one.step_seconds for one in (self.before, self.after) if math.isfinite(one.step_seconds)}
        untimed = math.isfinite(self.before.step_seconds) is not math.isfinite(self.after.step_seconds)
        moved = self.utilization is not None and abs(math.log(self.utilization.after / self.utilization.before)) > 1e-9
        return bool(self.facts) or len(times) > 1 or untimed or moved


def compare(before: Sequence[Baseline], after: Sequence[Baseline], arithmetic: Arithmetic) -> tuple[Difference, ...]:
    """Return every configuration of either set, in the order of their names.

    Configurations are matched without their release where that leaves one of each in both sets, else with it, else with
    their kind, too. Raises BaselineError where not even that tells two apart.
    """
    name = _naming(before, after)
    old, new = ({name(one): one for one in side} for side in (before, after))
    return tuple(_difference(_joined(key), old.get(key), new.get(key), arithmetic) for key in sorted({*old, *new}))


def _naming(before: Sequence[Baseline], after: Sequence[Baseline]) -> Callable[[Baseline], Name]:
    """Return the shortest name that stands for one baseline of each set."""
    namings: tuple[Callable[[Baseline], Name], ...] = (
        lambda one: _name(one.key, ""),
        lambda one: _name(one.key, one.key.release),
        lambda one: (*_name(one.key, one.key.release), one.kind),
    )
    for naming in namings:
        counts = [Counter(map(naming, side)) for side in (before, after)]
        if all(count == 1 for counter in counts for count in counter.values()):
            return naming
    twice = next(name for counter in counts for name, count in counter.items() if count > 1)
    raise BaselineError(f"found {_joined(twice)} twice on one side, expected it once; give a file or a smaller folder")


def _name(key: Key, release: str) -> Name:
    head = (f"{key.recipe}_{key.size}", release, key.gpu, key.dtype, key.gpus)
    return tuple(filter(None, (*head, key.task, key.scaling, key.variant)))


def _joined(name: Name) -> str:
    return "-".join(map(str, name))


def _difference(identifier: str, old: Baseline | None, new: Baseline | None, arithmetic: Arithmetic) -> Difference:
    if old is None or new is None:
        return Difference(identifier, old, new)
    before, after = _facts(old), _facts(new)
    changed = tuple((name, before[name], after[name]) for name in before if before[name] != after[name])
    return Difference(identifier, old, new, changed, _utilization(old, new, arithmetic))


def _facts(baseline: Baseline) -> dict[str, str]:
    """Return everything besides the step time that decides what a run of this configuration has to do, as text."""
    configuration = baseline.configuration
    budgets = ", ".join(f"{one.metric} {one.largest:g} s" for one in baseline.budgets)
    facts = {
        **{name.upper(): size for name, size in asdict(configuration.parallelism).items()},
        "GBS": configuration.global_batch_size,
        "MBS": configuration.micro_batch_size,
        "GA": configuration.gradient_accumulation,
        **{name.replace("_", " "): value for name, value in asdict(configuration.architecture).items()},
        "proxy": "yes" if configuration.proxy else "no",
        "window": f"{baseline.window} of {baseline.steps}",
        "timed": baseline.timed.replace("_", " "),
        "tolerance": ", ".join(map(str, baseline.tolerances)) or "the session's",
        "budgets": budgets or None,
        **_recorded(baseline.recording),
        "drift budget": baseline.drift_budget and f"{baseline.drift_budget * 100:.10g} %",
        "peak": "NA" if math.isnan(baseline.peak_tflops) else f"{baseline.peak_tflops:.10g}",
        "dialect": "regex" if baseline.log else baseline.dialect,
        **{f"log {name}": getattr(baseline.log, name, None) for name in LOG},
        "logged TFLOP/s": baseline.logged_tflops_factor and f"x {baseline.logged_tflops_factor:.6g}",
        "kind": baseline.kind,
    }
    return {name: "-" if value is None else str(value) for name, value in facts.items()}


def _recorded(recording: Recording | None) -> dict[str, str | None]:
    """Return what else of a recording holds a run to its baseline: the mean, and the value that drift is counted from.

    The mean in tenths of a percent above the trimmed mean, or every recording would differ.
    """
    if recording is None:
        return {"mean": None, "drift from": None, "levels": None}
    first = find_reference(recording)
    above = formatting.format_difference(recording.mean_seconds / recording.trimmed_mean_seconds)
    levels = recording.levels or None
    return {
        "mean": above,
        "drift from": f"{formatting.format_seconds(first.seconds)} of {first.date}",
        "levels": levels,
    }


def _utilization(old: Baseline, new: Baseline, arithmetic: Arithmetic) -> Utilization | None:
    """Return how MFU moved; None where a peak or a step time is not known, or the numbers of GPUs differ."""
    known = (old.step_seconds, new.step_seconds, old.peak_tflops, new.peak_tflops)
    if not all(math.isfinite(value) and value > 0 for value in known):
        return None
    printed = [_printed(one) for one in (old, new)]
    computed = [
        arithmetic.model_flops_utilization(one.configuration, one.step_seconds, one.peak_tflops) for one in (old, new)
    ]
    both = all(value is not None for value in printed)
    before, after = [value for value in printed if value is not None] if both else computed
    parts = {
        "step time": math.log(old.step_seconds / new.step_seconds),
        "FLOPs formula": math.log(_flops(new, arithmetic) / _flops(old, arithmetic)),
        "batch": math.log(new.configuration.global_batch_size / old.configuration.global_batch_size),
        "peak": math.log(old.peak_tflops / new.peak_tflops),
    }
    rest = math.log(after / before) - sum(parts.values())
    return Utilization(before, after, {**parts, PARTS[-1]: rest if both else 0.0}, both)


def _printed(baseline: Baseline) -> float | None:
    text = dict(baseline.cells).get("mfu", "")
    return float(text.rstrip("%")) / 100 if text.endswith("%") else None


def _flops(baseline: Baseline, arithmetic: Arithmetic) -> float:
    return arithmetic.model_flops(baseline.configuration.architecture)
