"""Format baselines for a terminal of 80 columns, and compare two sets of baselines.

There is a table of many baselines, a page for one baseline, and a list of changes. A
change of MFU is split into its causes: MFU = GBS x model FLOPs / step time / GPUs /
peak, so the logarithm of the change is a sum with one term for each factor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from pytest_llmbench.baseline.lint import (
    format_errata,
    recompute_cell,
    round_as_printed,
    wrap_text,
)
from pytest_llmbench.baseline.schema import CELLS, DERIVED, LOG, NOT_GIVEN
from pytest_llmbench.core import formatting, metric_definitions
from pytest_llmbench.core.baseline_records import (
    Baseline,
    Configuration,
    Key,
    Recipe,
    Recording,
)
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.flops import count_model_flops
from pytest_llmbench.core.text import wrap
from pytest_llmbench.core.tolerance import describe_move, find_reference


def format_table(baselines: Sequence[Baseline]) -> str:
    """Format a table: id, expected step time, printed MFU and kind of each baseline."""
    ids = [baseline.key.id for baseline in baselines]
    width = max(map(len, ["configuration", *ids]))
    lines = [f"{'configuration':<{width}}  {'step time':>10}  {'MFU':>7}  kind"]
    for baseline in baselines:
        cells = dict(baseline.cells)
        # Keep the digits that the document prints: they show the precision.
        seconds = cells.get("step_time")
        if not seconds:
            seconds = _format_number(baseline.step_seconds, "#.4g")
        step_time = seconds if seconds == "-" else f"{seconds} s"
        mfu = cells.get("mfu", "-")
        lines.append(
            f"{baseline.key.id:<{width}}  {step_time:>10}  {mfu:>7}  {baseline.kind}"
        )
    return "\n".join([*lines, formatting.count_noun(len(baselines), "configuration")])


def format_page(recipe: Recipe, baseline: Baseline, width: int) -> str:
    """Format one baseline completely: expected step time, model, metrics, errata."""
    errata = [
        erratum
        for erratum in recipe.errata
        if erratum.configuration in ("", baseline.key.id)
    ]
    facts = [
        *_describe_expectation(baseline),
        *_describe_shape(baseline),
        *_describe_origin(recipe, baseline),
    ]
    lines = [baseline.key.id]
    for label, text in facts:
        # An empty text gets no line.
        lines += wrap_text(text, width, f"  {label:<10} ", " " * 13)
    lines += ["", *_format_metrics(baseline)]
    if errata:
        lines += ["", "errata", *format_errata(errata, width)]
    return "\n".join(lines)


def _describe_expectation(baseline: Baseline) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of kind, step time, window, tolerance, budgets and recording."""
    yield "kind", baseline.kind
    expected = "no step time yet: record a baseline"
    if not math.isnan(baseline.step_seconds):
        expected = f"{baseline.step_seconds:.10g} s a step"
        if baseline.resolution_seconds:
            expected += f", printed to {baseline.resolution_seconds:g} s"
    yield "expected", expected
    yield "judged by", f"{baseline.window}, of {baseline.steps} steps"
    if baseline.timed == "last_step":
        yield "timed", "the last step of a run"
    else:
        yield "timed", str(baseline.timed_window or baseline.timed.replace("_", " "))
    yield "tolerance", _join_tolerances(baseline) or "the session's"
    yield "budgets", _join_budgets(baseline)
    if baseline.recording:
        yield from _describe_recording(baseline.recording)


def _describe_recording(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of the recorded runs, their author and environment, and drift."""
    spread = f"mean {recording.mean_seconds:.6g} s, standard deviation {recording.standard_deviation_seconds:.3g} s"
    runs = formatting.count_noun(recording.runs, "run")
    if recording.groups:
        groups = formatting.count_noun(recording.groups, "independent group")
        runs += f" from {groups} (days or node sets)"
    yield "recorded", f"{recording.date}, {runs}, {spread}"
    yield "runs", ", ".join(f"{seconds:.6g} s" for seconds in recording.run_seconds)
    yield "by", recording.by
    yield "ran in", _join_stated(dict(recording.environment))
    for value in recording.earlier:
        author = f", {value.by}" if value.by else ""
        reason = f": {value.reason}" if value.reason else ""
        yield "earlier", f"{value.seconds:.6g} s, {value.date}{author}{reason}"
    yield "accepted", recording.reason
    if recording.levels:
        yield "levels", f"several, accepted: {recording.levels}"
    if recording.earlier:
        reference = find_reference(recording)
        yield "drift", describe_move(recording.trimmed_mean_seconds, reference)


def _describe_shape(baseline: Baseline) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of model, parallelism, batch and peak FLOPS."""
    configuration = baseline.configuration
    proxy = " (a proxy: not the full model)" if configuration.proxy else ""
    yield "model", _join_stated(_list_sizes(configuration)) + proxy
    yield "groups", _join_stated(_list_parallelism(configuration)) or "not stated"
    yield "batch", _join_stated(_list_batch(configuration))
    peak = "not stated"
    if not math.isnan(baseline.peak_tflops):
        peak = f"{baseline.peak_tflops:.10g} TFLOP/s per GPU"
    yield "peak", peak
    if baseline.logged_tflops_factor:
        yield "logged", f"{baseline.logged_tflops_factor:.6g} x the computed TFLOP/s"


def _describe_origin(recipe: Recipe, baseline: Baseline) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of framework, document, baseline file and launch command."""
    source = baseline.source
    framework = recipe.framework or "not stated"
    yield "framework", f"{framework} (log dialect {baseline.dialect})"
    table = f", table {source.table}" if source.table else ""
    yield "document", f"{source.document}{table}"
    yield "file", f"{source.file}:{source.line}"
    launch: dict[str, Any] = dict(recipe.launch)
    if launch:
        commands = dict(launch["commands"])
        command: dict[str, Any] = dict(commands[launch["kind"]])
        variables = "".join(
            f"{name}={value} " for name, value in command.get("fixed", ())
        )
        yield "launch", f"{variables}{command['command']}"


def _format_metrics(baseline: Baseline) -> Iterator[str]:
    """Yield the lines of a table of metrics: each as printed and as recomputed.

    The recomputed value follows from the step time and the constants of the baseline.
    """
    printed = dict(baseline.cells)
    yield f"  {'metric':<22} {'printed':>12}  {'computed':>12}"
    for key in CELLS:
        cell = printed.get(key.name, "-")
        # Columns that only some documents have are left out if they are empty.
        if cell == "-" and key.name not in ("step_time", *DERIVED):
            continue
        computed = _format_computed(baseline, key.name, cell)
        yield f"  {key.meaning:<22} {cell:>12}  {computed:>12}"
    tflops = metric_definitions.compute_tflops_per_gpu(
        baseline.configuration, baseline.step_seconds
    )
    yield f"  {'TFLOP/s per GPU':<22} {'-':>12}  {_format_number(tflops, '.2f'):>12}"


def _format_computed(baseline: Baseline, name: str, cell: str) -> str:
    """Format the recomputed value of a metric with the digits of the printed `cell`."""
    if name == "step_time":
        return _format_number(baseline.step_seconds, ".10g")
    value = recompute_cell(baseline, name)
    if value is None:
        # The days are not computed for a proxy, because it is not the full model.
        is_proxy_days = name == "days_to_1t" and baseline.configuration.proxy
        return "none (proxy)" if is_proxy_days else "-"
    if cell != "-" and cell not in NOT_GIVEN:
        return round_as_printed(value, cell)
    return f"{value * 100:.2f}%" if name == "mfu" else f"{value:.2f}"


def _format_number(value: float, number_format: str) -> str:
    return "-" if math.isnan(value) else f"{value:{number_format}}"


def _list_sizes(configuration: Configuration) -> dict[str, Any]:
    return {
        name.replace("_", " "): value
        for name, value in asdict(configuration.architecture).items()
    }


def _list_parallelism(configuration: Configuration) -> dict[str, int | None]:
    return {
        name.upper(): size for name, size in asdict(configuration.parallelism).items()
    }


def _list_batch(configuration: Configuration) -> dict[str, int | None]:
    return {
        "GBS": configuration.global_batch_size,
        "MBS": configuration.micro_batch_size,
        "GA": configuration.gradient_accumulation,
    }


def _join_stated(facts: Mapping[str, Any]) -> str:
    """Join the facts that are not None: `TP 4, PP 2`."""
    return ", ".join(
        f"{name} {value}" for name, value in facts.items() if value is not None
    )


def _join_tolerances(baseline: Baseline) -> str:
    return ", ".join(map(str, baseline.tolerances))


def _join_budgets(baseline: Baseline) -> str:
    return ", ".join(
        f"{budget.metric} {budget.largest:g} s" for budget in baseline.budgets
    )


# --- comparing two sets of baselines --------------------------------------------------

CAUSES = ("step time", "FLOPs formula", "batch", "peak", "the documents' own sums")
"""The causes of a change of MFU; the last is the remainder after all others."""

ConfigurationName = tuple[str | int, ...]
"""The components of a configuration id, to match the configurations of two sets."""

NEGLIGIBLE_MFU_CHANGE = 1e-9
"""Largest log ratio of two equal MFU values, from floating-point rounding."""


class UtilizationChange(Struct, frozen=True):
    """The MFU of one configuration in both sets, as fractions."""

    before: float
    after: float
    log_ratios: Mapping[str, float]
    """The log ratio of each cause (CAUSES); all together add up to log(after / before)."""

    printed: bool
    """True if both values are printed in the documents, False if both are computed.

    A printed MFU may differ from the MFU that follows from the printed step time.
    """


class BaselineDifference(Struct, frozen=True):
    """One configuration in two sets of baselines."""

    id: str
    before: Baseline | None
    """The baseline of the configuration in the first set, or None."""

    after: Baseline | None
    """The baseline of the configuration in the second set, or None."""

    changed_facts: tuple[tuple[str, str, str], ...] = ()
    """The changed facts other than the step time: (name, before, after)."""

    utilization: UtilizationChange | None = None

    @property
    def step_time_ratio(self) -> float | None:
        """The step time after / before; None if either is unknown."""
        if self.before is None or self.after is None:
            return None
        ratio = self.after.step_seconds / self.before.step_seconds
        return ratio if math.isfinite(ratio) else None

    @property
    def has_changed(self) -> bool:
        """True if the two baselines differ, or if one of them is None."""
        if self.before is None or self.after is None:
            return True
        if self.changed_facts:
            return True
        # make_finite turns NaN into None, because NaN != NaN.
        before_seconds = formatting.make_finite(self.before.step_seconds)
        after_seconds = formatting.make_finite(self.after.step_seconds)
        if before_seconds != after_seconds:
            return True
        if self.utilization is None:
            return False
        mfu_ratio = self.utilization.after / self.utilization.before
        return abs(math.log(mfu_ratio)) > NEGLIGIBLE_MFU_CHANGE


def compare_baselines(
    before: Sequence[Baseline], after: Sequence[Baseline]
) -> tuple[BaselineDifference, ...]:
    """Compare all configurations of two sets, sorted by name.

    Configurations with equal names are compared. A name is the id without the release,
    so that two releases can be compared. If such names are not unique in each set, the
    names contain the release; if these are not unique either, release and kind. Raises
    BaselineError if even the longest names are not unique.
    """
    make_name = _choose_naming(before, after)
    old = {make_name(baseline): baseline for baseline in before}
    new = {make_name(baseline): baseline for baseline in after}
    return tuple(
        _compare_pair(_join_name(name), old.get(name), new.get(name))
        for name in sorted({*old, *new})
    )


def _choose_naming(
    before: Sequence[Baseline], after: Sequence[Baseline]
) -> Callable[[Baseline], ConfigurationName]:
    """Choose the function that makes the shortest names unique in each set.

    Raises BaselineError with the first duplicate if no function makes unique names.
    """
    # The shortest names first: without release, with release, with release and kind.
    namings: tuple[Callable[[Baseline], ConfigurationName], ...] = (
        lambda baseline: _make_name(baseline.key, ""),
        lambda baseline: _make_name(baseline.key, baseline.key.release),
        lambda baseline: (
            *_make_name(baseline.key, baseline.key.release),
            baseline.kind,
        ),
    )
    for naming in namings:
        counts_of_sides = [Counter(map(naming, side)) for side in (before, after)]
        duplicates = [
            name
            for counts in counts_of_sides
            for name, count in counts.items()
            if count > 1
        ]
        if not duplicates:
            return naming
    # The duplicates among the longest names.
    raise BaselineError(
        f"found {_join_name(duplicates[0])} twice on one side, expected it once; give a file or a smaller folder"
    )


def _make_name(key: Key, release: str) -> ConfigurationName:
    """Make a name from the components of a key that are not empty."""
    required = (f"{key.recipe}_{key.size}", release, key.gpu, key.dtype, key.gpus)
    optional = (key.task, key.scaling, key.variant)
    return tuple(filter(None, (*required, *optional)))


def _join_name(name: ConfigurationName) -> str:
    return "-".join(map(str, name))


def _compare_pair(
    identifier: str, old: Baseline | None, new: Baseline | None
) -> BaselineDifference:
    """Compare a configuration in two sets; None for a set without it."""
    if old is None or new is None:
        return BaselineDifference(identifier, old, new)
    before, after = _collect_facts(old), _collect_facts(new)
    changed = tuple(
        (name, before[name], after[name])
        for name in before
        if before[name] != after[name]
    )
    return BaselineDifference(
        identifier, old, new, changed, _compare_utilization(old, new)
    )


def _collect_facts(baseline: Baseline) -> dict[str, str]:
    """Return the compared facts of a baseline, without the step time, as texts by name."""
    configuration = baseline.configuration
    drift_budget: str | float | None = baseline.drift_budget
    if drift_budget:
        drift_budget = f"{drift_budget * 100:.10g} %"
    logged_factor: str | float | None = baseline.logged_tflops_factor
    if logged_factor:
        logged_factor = f"x {logged_factor:.6g}"
    peak = "NA"
    if not math.isnan(baseline.peak_tflops):
        peak = f"{baseline.peak_tflops:.10g}"
    facts = {
        **_list_parallelism(configuration),
        **_list_batch(configuration),
        **_list_sizes(configuration),
        "proxy": "yes" if configuration.proxy else "no",
        "window": f"{baseline.window} of {baseline.steps}",
        "timed": baseline.timed.replace("_", " "),
        "tolerance": _join_tolerances(baseline) or "the session's",
        "budgets": _join_budgets(baseline) or None,
        **_collect_recorded_facts(baseline.recording),
        "drift budget": drift_budget,
        "peak": peak,
        "dialect": "regex" if baseline.log else baseline.dialect,
        # `baseline.log` is None unless the baseline file defines its own log pattern.
        **{f"log {key.name}": getattr(baseline.log, key.name, None) for key in LOG},
        "logged TFLOP/s": logged_factor,
        "kind": baseline.kind,
    }
    return {name: "-" if value is None else str(value) for name, value in facts.items()}


def _collect_recorded_facts(recording: Recording | None) -> dict[str, str | None]:
    """Return the facts of a recording that affect verdicts: mean, drift origin, levels.

    The mean is formatted as its difference from the trimmed mean. All values are None
    without a recording.
    """
    if recording is None:
        return {"mean": None, "drift from": None, "levels": None}
    # A larger mean or another drift origin lets slower runs pass.
    reference = find_reference(recording)
    # Rounded to 0.1 % of the trimmed mean: exact means always differ.
    mean_over_trimmed = formatting.format_difference(
        recording.mean_seconds / recording.trimmed_mean_seconds
    )
    origin = f"{formatting.format_seconds(reference.seconds)} of {reference.date}"
    return {
        "mean": mean_over_trimmed,
        "drift from": origin,
        "levels": recording.levels or None,
    }


def _compare_utilization(old: Baseline, new: Baseline) -> UtilizationChange | None:
    """Split the change of MFU into its causes, such as another FLOPs formula.

    Uses the MFU values that the documents print, if both do, else computed values.
    Returns None if a peak, a step time or a FLOPs formula is unknown.
    """
    needed = (old.step_seconds, new.step_seconds, old.peak_tflops, new.peak_tflops)
    if not all(math.isfinite(value) and value > 0 for value in needed):
        return None
    before, after = recompute_cell(old, "mfu"), recompute_cell(new, "mfu")
    if before is None or after is None:  # no FLOPs formula for one of the models
        return None
    # Never mix printed and computed MFU: the change of method would look like a change
    # of speed.
    printed_before, printed_after = _parse_printed_mfu(old), _parse_printed_mfu(new)
    are_printed = False
    if printed_before is not None and printed_after is not None:
        before, after = printed_before, printed_after
        are_printed = True
    log_ratios = {
        "step time": math.log(old.step_seconds / new.step_seconds),
        "FLOPs formula": math.log(
            count_model_flops(new.configuration.architecture)
            / count_model_flops(old.configuration.architecture)
        ),
        "batch": math.log(
            new.configuration.global_batch_size / old.configuration.global_batch_size
        ),
        "peak": math.log(old.peak_tflops / new.peak_tflops),
    }
    # Logarithms add up, percentages do not. Printed values leave a remainder.
    remainder = math.log(after / before) - sum(log_ratios.values())
    # Computed values leave only a rounding error.
    log_ratios[CAUSES[-1]] = remainder if are_printed else 0.0
    return UtilizationChange(before, after, log_ratios, printed=are_printed)


def _parse_printed_mfu(baseline: Baseline) -> float | None:
    """Return the printed MFU as a fraction; None if it is not a percentage."""
    text = dict(baseline.cells).get("mfu", "")
    return float(text.rstrip("%")) / 100 if text.endswith("%") else None


NAME_WIDTH = 38
SMALLEST_CAUSE = 0.0005
"""Smallest cause of an MFU change that is printed, as a log ratio: 0.1 % if rounded."""

SMALLEST_REMAINDER = 0.005
"""Smallest remainder of an MFU change that is printed, as a log ratio.

Smaller remainders come from the rounding of printed MFU values.
"""


def format_differences(
    differences: Sequence[BaselineDifference], before: str, after: str
) -> str:
    """Format the changed configurations, the unmatched configurations and a count.

    `before` and `after` are the names of the two sides. Below each changed configuration
    are the causes of its MFU change and its changed facts.
    """
    changed = [
        pair for pair in differences if pair.before and pair.after and pair.has_changed
    ]
    lines = [line for pair in changed for line in _format_difference(pair)]
    if lines:
        lines.insert(
            0,
            f"{'configuration':<{NAME_WIDTH}} {'before':>10} {'after':>10} {'step time':>9} {'MFU':>8}",
        )
    removed = [pair.id for pair in differences if pair.after is None]
    added = [pair.id for pair in differences if pair.before is None]
    for side, ids in ((before, removed), (after, added)):
        if ids:
            sentence = f"only in {side}: {len(ids)}: {formatting.join_first(ids)}"
            lines += wrap(sentence, rest="  ")
    shared = sum(
        pair.before is not None and pair.after is not None for pair in differences
    )
    lines.append(
        f"{formatting.count_noun(shared, 'configuration')} in both, {len(changed)} of them changed"
    )
    return "\n".join(lines)


def make_records(differences: Sequence[BaselineDifference]) -> list[dict[str, Any]]:
    """Convert differences to JSON values.

    Times are in seconds, MFU values are fractions, the causes of a change of MFU are
    log ratios.
    """
    return [_make_record(pair) for pair in differences]


def _format_difference(pair: BaselineDifference) -> Iterator[str]:
    """Yield the table row of a changed configuration, and a line for each change."""
    mfu_change = pair.utilization
    before_seconds, after_seconds = (
        formatting.format_seconds(side.step_seconds if side else None)
        for side in (pair.before, pair.after)
    )
    change = formatting.format_difference(pair.step_time_ratio)
    mfu = "-"
    if mfu_change:
        mfu = formatting.format_difference(mfu_change.after / mfu_change.before)
    row = f"{before_seconds:>10} {after_seconds:>10} {change:>9} {mfu:>8}"
    if len(pair.id) > NAME_WIDTH:
        yield pair.id
        yield f"{'':<{NAME_WIDTH}} {row}"
    else:
        yield f"{pair.id:<{NAME_WIDTH}} {row}"
    changes = []
    # MFU may have large causes that cancel each other, or change without a large cause.
    if mfu_change and (_format_causes(mfu_change) or mfu != "0.0 %"):
        changes.append(_format_utilization(mfu_change))
    changes += [
        f"{name}: {before} -> {after}" for name, before, after in pair.changed_facts
    ]
    for line in changes:
        yield from wrap(line, first="  ", rest="    ")


def _format_utilization(change: UtilizationChange) -> str:
    """Format a change: `MFU 41.5% -> 54.2%, by step time +30.7 %`."""
    causes = ", ".join(_format_causes(change)) or "rounding"
    method = "" if change.printed else " (computed)"
    return f"MFU {change.before:.2%} -> {change.after:.2%}{method}, by {causes}"


def _format_causes(change: UtilizationChange) -> list[str]:
    """Format the causes that are large enough: `step time +30.7 %`."""
    remainder = CAUSES[-1]
    causes = []
    for name, log_ratio in change.log_ratios.items():
        smallest = SMALLEST_REMAINDER if name == remainder else SMALLEST_CAUSE
        if abs(log_ratio) >= smallest:
            ratio = math.exp(log_ratio)
            causes.append(f"{name} {formatting.format_difference(ratio)}")
    return causes


def _make_record(pair: BaselineDifference) -> dict[str, Any]:
    """Return a difference as a JSON object."""
    sides = (pair.before, pair.after)
    before_id, after_id = (None if side is None else side.key.id for side in sides)
    step_time_change = None
    if pair.step_time_ratio is not None:
        step_time_change = pair.step_time_ratio - 1
    mfu_change = pair.utilization
    return {
        "id": pair.id,
        "changed": pair.has_changed,
        "before": before_id,
        "after": after_id,
        "step_seconds": [
            None if side is None else formatting.make_finite(side.step_seconds)
            for side in sides
        ],
        "step_time_change": step_time_change,
        "mfu": None if mfu_change is None else [mfu_change.before, mfu_change.after],
        "mfu_printed": None if mfu_change is None else mfu_change.printed,
        "mfu_log_parts": None if mfu_change is None else dict(mfu_change.log_ratios),
        "facts": {name: [before, after] for name, before, after in pair.changed_facts},
    }
