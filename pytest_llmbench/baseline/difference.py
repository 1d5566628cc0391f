"""What changed between two sets of baselines, and what of it moved MFU: the step time, or how FLOPs are counted."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_llmbench.baseline.schema import LOG
from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.metric_definitions import count_model_flops
from pytest_llmbench.core.models import Baseline, Key, Recording
from pytest_llmbench.core.tolerance import find_reference

PARTS = ("step time", "FLOPs formula", "batch", "peak", "the documents' own sums")
"""What MFU = GBS x model FLOPs / step time / GPUs / peak can move by; the last is what none of the others explains."""

ConfigurationName = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class UtilizationChange:
    """MFU of one configuration in both sets, as fractions."""

    before: float
    after: float
    parts: Mapping[str, float]
    """The logarithm of the change, by part; they add up to log(after / before)."""

    printed: bool
    """Whether both are the cells of the documents, whose own sums may differ from what follows from their step times;
    otherwise both are computed, and the last part is zero."""


@dataclass(frozen=True, slots=True)
class BaselineDifference:
    """One configuration in either set, None where it is not."""

    id: str
    before: Baseline | None
    after: Baseline | None
    facts: tuple[tuple[str, str, str], ...] = ()
    """What else was changed: name, before, after."""

    utilization: UtilizationChange | None = None

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
        # NaN equals nothing, so baselines without a value are told apart by whether they have one.
        times = {
            baseline.step_seconds for baseline in (self.before, self.after) if math.isfinite(baseline.step_seconds)
        }
        untimed = math.isfinite(self.before.step_seconds) is not math.isfinite(self.after.step_seconds)
        moved = self.utilization is not None and abs(math.log(self.utilization.after / self.utilization.before)) > 1e-9
        return bool(self.facts) or len(times) > 1 or untimed or moved


def compare_baselines(before: Sequence[Baseline], after: Sequence[Baseline]) -> tuple[BaselineDifference, ...]:
    """Return every configuration of either set, in the order of their names.

    Configurations are matched without their release where that leaves one of each in both sets, else with it, else with
    their kind, too. Raises BaselineError where not even that tells two apart.
    """
    name = _choose_naming(before, after)
    old, new = ({name(baseline): baseline for baseline in side} for side in (before, after))
    return tuple(_compare_pair(_join_name(key), old.get(key), new.get(key)) for key in sorted({*old, *new}))


def _choose_naming(before: Sequence[Baseline], after: Sequence[Baseline]) -> Callable[[Baseline], ConfigurationName]:
    """Return the shortest name that stands for one baseline of each set."""
    # Two releases of one recipe are what is compared most: the release is left out of names where it can be.
    namings: tuple[Callable[[Baseline], ConfigurationName], ...] = (
        lambda baseline: _make_name(baseline.key, ""),
        lambda baseline: _make_name(baseline.key, baseline.key.release),
        lambda baseline: (*_make_name(baseline.key, baseline.key.release), baseline.kind),
    )
    for naming in namings:
        counts = [Counter(map(naming, side)) for side in (before, after)]
        if all(count == 1 for counter in counts for count in counter.values()):
            return naming
    twice = next(name for counter in counts for name, count in counter.items() if count > 1)
    raise BaselineError(
        f"found {_join_name(twice)} twice on one side, expected it once; give a file or a smaller folder"
    )


def _make_name(key: Key, release: str) -> ConfigurationName:
    head = (f"{key.recipe}_{key.size}", release, key.gpu, key.dtype, key.gpus)
    return tuple(filter(None, (*head, key.task, key.scaling, key.variant)))


def _join_name(name: ConfigurationName) -> str:
    return "-".join(map(str, name))


def _compare_pair(identifier: str, old: Baseline | None, new: Baseline | None) -> BaselineDifference:
    if old is None or new is None:
        return BaselineDifference(identifier, old, new)
    before, after = _collect_facts(old), _collect_facts(new)
    changed = tuple((name, before[name], after[name]) for name in before if before[name] != after[name])
    return BaselineDifference(identifier, old, new, changed, _compare_utilization(old, new))


def _collect_facts(baseline: Baseline) -> dict[str, str]:
    """Return everything besides the step time that decides what a run of this configuration has to do, as text."""
    configuration = baseline.configuration
    budgets = ", ".join(f"{budget.metric} {budget.largest:g} s" for budget in baseline.budgets)
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
        **_collect_recorded_facts(baseline.recording),
        "drift budget": baseline.drift_budget and f"{baseline.drift_budget * 100:.10g} %",
        "peak": "NA" if math.isnan(baseline.peak_tflops) else f"{baseline.peak_tflops:.10g}",
        "dialect": "regex" if baseline.log else baseline.dialect,
        **{f"log {name}": getattr(baseline.log, name, None) for name in (key.name for key in LOG)},
        "logged TFLOP/s": baseline.logged_tflops_factor and f"x {baseline.logged_tflops_factor:.6g}",
        "kind": baseline.kind,
    }
    return {name: "-" if value is None else str(value) for name, value in facts.items()}


def _collect_recorded_facts(recording: Recording | None) -> dict[str, str | None]:
    """Return what else of a recording decides about a run: the mean, and the value that drift is counted from."""
    if recording is None:
        return {"mean": None, "drift from": None, "levels": None}
    # A recording whose mean allows more, or that forgot what drift is counted from, is another gate.
    first = find_reference(recording)
    # In tenths of a percent above the trimmed mean, or every recording would differ.
    above = formatting.format_difference(recording.mean_seconds / recording.trimmed_mean_seconds)
    origin = f"{formatting.format_seconds(first.seconds)} of {first.date}"
    return {"mean": above, "drift from": origin, "levels": recording.levels or None}


def _compare_utilization(old: Baseline, new: Baseline) -> UtilizationChange | None:
    """Return how MFU moved; None where a peak or a step time is not known, or the numbers of GPUs differ."""
    # It happened between two releases that the seconds stayed and MFU moved, by its formula alone.
    numbers = (old.step_seconds, new.step_seconds, old.peak_tflops, new.peak_tflops)
    if not all(math.isfinite(value) and value > 0 for value in numbers):
        return None
    printed = [_parse_printed_mfu(baseline) for baseline in (old, new)]
    computed = [
        metric_definitions.compute_model_flops_utilization(
            baseline.configuration, baseline.step_seconds, baseline.peak_tflops
        )
        for baseline in (old, new)
    ]
    # A printed MFU beside a computed one would show a change of method as a change of speed.
    both = all(value is not None for value in printed)
    before, after = [value for value in printed if value is not None] if both else computed
    parts = {
        "step time": math.log(old.step_seconds / new.step_seconds),
        "FLOPs formula": math.log(
            count_model_flops(new.configuration.architecture) / count_model_flops(old.configuration.architecture)
        ),
        "batch": math.log(new.configuration.global_batch_size / old.configuration.global_batch_size),
        "peak": math.log(old.peak_tflops / new.peak_tflops),
    }
    # Logarithms add up, percentages do not.
    rest = math.log(after / before) - sum(parts.values())
    return UtilizationChange(before, after, {**parts, PARTS[-1]: rest if both else 0.0}, both)


def _parse_printed_mfu(baseline: Baseline) -> float | None:
    text = dict(baseline.cells).get("mfu", "")
    return float(text.rstrip("%")) / 100 if text.endswith("%") else None


# --- as text of 80 columns and as JSON-able records -------------------------------------------------------


WIDE = 38
SMALLEST = 0.0005
"""Of the parts of MFU those that round to 0.1 % or more are told."""

ROUNDING = 0.005
"""A printed MFU is rounded: what it says beyond its step time is told from here on."""


def format_differences(differences: Sequence[BaselineDifference], before: str, after: str) -> str:
    """Return a line for each configuration that changed, with what moved its MFU and what else is another; what is on
    one side only; and a count. `before` and `after` are the names of the sides."""
    changed = [pair for pair in differences if pair.before and pair.after and pair.is_change]
    lines = [line for pair in changed for line in _format_lines(pair)]
    if lines:
        lines.insert(0, f"{'configuration':<{WIDE}} {'before':>10} {'after':>10} {'step time':>9} {'MFU':>8}")
    removed = [pair.id for pair in differences if pair.after is None]
    added = [pair.id for pair in differences if pair.before is None]
    for side, alone in ((before, removed), (after, added)):
        if alone:
            sentence = f"only in {side}: {len(alone)}: {formatting.join_first(alone)}"
            lines += textwrap.wrap(sentence, 79, subsequent_indent="  ", break_on_hyphens=False)
    shared = sum(pair.before is not None and pair.after is not None for pair in differences)
    lines.append(f"{formatting.count_noun(shared, 'configuration')} in both, {len(changed)} of them changed")
    return "\n".join(lines)


def make_records(differences: Sequence[BaselineDifference]) -> list[dict[str, Any]]:
    """Return every configuration of either side; times in seconds, MFU as a fraction, parts as log ratios."""
    return [_make_record(pair) for pair in differences]


def _format_lines(pair: BaselineDifference) -> Iterator[str]:
    moved = pair.utilization
    seconds = [formatting.format_seconds(side.step_seconds if side else None) for side in (pair.before, pair.after)]
    change = formatting.format_difference(pair.step_time_ratio)
    mfu = formatting.format_difference(moved.after / moved.before) if moved else "-"
    row = f"{seconds[0]:>10} {seconds[1]:>10} {change:>9} {mfu:>8}"
    yield from [pair.id, f"{'':<{WIDE}} {row}"] if len(pair.id) > WIDE else [f"{pair.id:<{WIDE}} {row}"]
    changes = [_format_utilization(moved)] if moved and (_format_parts(moved) or mfu != "0.0 %") else []
    changes += [f"{name}: {before} -> {after}" for name, before, after in pair.facts]
    for line in changes:
        yield from textwrap.wrap(line, 79, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _format_utilization(moved: UtilizationChange) -> str:
    """Return `MFU 41.5% -> 54.2%, by step time +30.7 %`."""
    parts = _format_parts(moved)
    how = "" if moved.printed else " (computed)"
    return f"MFU {moved.before:.2%} -> {moved.after:.2%}{how}, by {', '.join(parts) or 'rounding'}"


def _format_parts(moved: UtilizationChange) -> list[str]:
    return [
        f"{name} {formatting.format_difference(math.exp(share))}"
        for name, share in moved.parts.items()
        if abs(share) >= (ROUNDING if name == PARTS[-1] else SMALLEST)
    ]


def _make_record(pair: BaselineDifference) -> dict[str, Any]:
    sides = {"before": pair.before, "after": pair.after}
    moved = pair.utilization
    return {
        "id": pair.id,
        "changed": pair.is_change,
        **{name: None if side is None else side.key.id for name, side in sides.items()},
        "step_seconds": [
            None if side is None else formatting.make_finite(side.step_seconds) for side in sides.values()
        ],
        "step_time_change": None if pair.step_time_ratio is None else pair.step_time_ratio - 1,
        "mfu": None if moved is None else [moved.before, moved.after],
        "mfu_printed": None if moved is None else moved.printed,
        "mfu_log_parts": None if moved is None else dict(moved.parts),
        "facts": {name: [before, after] for name, before, after in pair.facts},
    }
