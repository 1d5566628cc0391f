"""The text of a recorded baseline file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.baseline.schema import CONFIGURATION, LOG, NO_PEAK, RECORDED
from pytest_llmbench.core.dialects import REGEX
from pytest_llmbench.core.errors import RecordError
from pytest_llmbench.core.models import Baseline, Budget, Key, Tolerance
from pytest_llmbench.core.yamlfile import Fields, Items, Names, Number, Spec


class SharedKeys(NamedTuple):
    """What stands for a whole file: its limits, and the text of the keys that its owner writes (names, launch)."""

    tolerances: tuple[Tolerance, ...] = ()
    budgets: tuple[Budget, ...] = ()
    drift_budget: float | None = None
    own: str = ""


def render_baselines(path: Path, baselines: Mapping[Key, Baseline], shared: SharedKeys) -> str:
    """Return the text of a file with these configurations; RecordError where they were not measured in one way."""
    import yaml

    ordered = [baselines[key] for key in sorted(baselines)]
    document = {
        **_make_head(path, ordered),
        **_render_tolerance(shared.tolerances),
        **_render_budgets(shared.budgets),
        **({"drift_budget": _format_decimal(shared.drift_budget)} if shared.drift_budget else {}),
        "peak_tflops": _render_peaks(path, ordered),
        "models": _render_models(path, ordered),
        "configurations": [_render_row(baseline, shared) for baseline in ordered],
    }
    # `None` puts a mapping of plain values in one line, so that a diff shows rows; YAML would sort the keys.
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return f"# Recorded by pytest --llmb-record; docs/baselines.md explains the keys.\n{text}{shared.own}"


def _make_head(path: Path, baselines: Sequence[Baseline]) -> dict[str, Any]:
    """Return what a file states once, and refuse configurations that were measured in different ways."""
    heads = [_collect_facts(baseline) for baseline in baselines]
    for head, baseline in zip(heads, baselines, strict=True):
        for name, value in head.items():
            # Another window must not slip in under the configurations that are there already.
            if name != "source" and value != heads[0][name]:
                raise RecordError(
                    f"{path}: found {name} {value} for {baseline.key.id} and {heads[0][name]} for "
                    f"{baselines[0].key.id}, expected one for the whole file; record into another folder"
                )
    return {name: value for name, value in heads[-1].items() if value is not None}


def _collect_facts(baseline: Baseline) -> dict[str, Any]:
    window, key = baseline.window, baseline.key
    return {
        "schema": 1,
        "kind": "recorded",
        "recipe": key.recipe,
        "release": key.release,
        "dialect": REGEX if baseline.log else baseline.dialect,
        "log": _to_plain(LOG, baseline.log) if baseline.log else None,
        "source": {"document": baseline.source.document},
        "timed": baseline.timed,
        "window": {"statistic": window.statistic, "first": window.first, "last": window.last},
        "steps": baseline.steps,
        "logged_tflops_factor": baseline.logged_tflops_factor,
    }


def _render_tolerance(tolerances: Iterable[Tolerance]) -> dict[str, str]:
    """Return the key of these tolerances, `{"tolerance": "0.05, mfu:0.03"}`, or none."""
    # As --llmb-tolerance takes them: a file states what a command line would.
    prefixes = {"time": "", "performance": "perf:"}
    texts = [prefixes.get(limit.of, f"{limit.of}:") + _format_decimal(limit.fraction) for limit in tolerances]
    return {"tolerance": ", ".join(texts)} if texts else {}


def _render_budgets(budgets: Iterable[Budget]) -> dict[str, dict[str, float]]:
    largest = {budget.metric: float(budget.largest) for budget in budgets}
    return {"budgets": largest} if largest else {}


def _format_decimal(number: float) -> str:
    """Return a float with every digit it has and no exponent: `989`, `0.05`."""
    # The schema takes digits and a point only.
    return f"{Decimal(repr(float(number))):f}".removesuffix(".0")


def _render_peaks(path: Path, baselines: Sequence[Baseline]) -> dict[str, dict[str, str]]:
    pairs = (((base.key.gpu, base.key.dtype), format_peak(base.peak_tflops)) for base in baselines)
    peaks: dict[str, dict[str, str]] = {}
    for (gpu, dtype), peak in _agree(path, "peak TFLOP/s", pairs).items():
        peaks.setdefault(gpu, {})[dtype] = peak
    return peaks


def format_peak(peak: float) -> str:
    """Return a peak as a file states it."""
    return NO_PEAK if math.isnan(peak) else _format_decimal(peak)


def _render_models(path: Path, baselines: Sequence[Baseline]) -> dict[str, dict[str, Any]]:
    # A proxy's formula is not rounded: where the full model is in the file, its formula stands for both.
    full = sorted(baselines, key=lambda baseline: baseline.configuration.proxy)
    formulas: dict[str, str] = {}
    for baseline in full:
        name = baseline.configuration.architecture.formula
        first = formulas.setdefault(baseline.key.size, name)
        if first != name and not (baseline.configuration.proxy and first.partition(":")[0] == name):
            raise RecordError(f"{path}: found FLOPs formulas {first} and {name} of {baseline.key.size}, expected one")
    own = ("formula", "sequence_length", "layers")
    sizes = (
        {name: value for name, value in asdict(base.configuration.architecture).items() if name not in own and value}
        for base in baselines
    )
    pairs = zip((base.key.size for base in baselines), sizes, strict=True)
    return {size: {"formula": formulas[size], **model} for size, model in _agree(path, "model", pairs).items()}


def _agree(path: Path, what: str, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the values by name; RecordError where one name has several."""
    agreed: dict[Any, Any] = {}
    for name, value in pairs:
        if agreed.setdefault(name, value) != value:
            raise RecordError(f"{path}: found {what} {value} and {agreed[name]} for {name}, expected one")
    return agreed


def _render_row(baseline: Baseline, shared: SharedKeys) -> dict[str, Any]:
    row = {
        **{key.name: attrgetter(key.field)(baseline) for key in CONFIGURATION if key.field},
        **_render_tolerance(limit for limit in baseline.tolerances if limit not in shared.tolerances),
        **_render_budgets(budget for budget in baseline.budgets if budget not in shared.budgets),
    }
    if baseline.recording:
        values = [(key, getattr(baseline.recording, key.name)) for key in RECORDED]
        row["recorded"] = {key.name: _to_plain(key.spec, value) for key, value in values if value or key.required_in}
    return {name: value for name, value in row.items() if value}


def _to_plain(spec: Spec, value: Any) -> Any:
    """Return the value of a record in the types that YAML writes: a number may be one of numpy."""
    if isinstance(spec, Number):
        return int(value) if spec.whole else float(value)
    if isinstance(spec, Items):
        return [_to_plain(spec.item, item) for item in value]
    if isinstance(spec, Fields):
        names = (*spec.required, *spec.optional)
        return {name: getattr(value, name) for name in names if getattr(value, name) not in ("", None)}
    return dict(value) if isinstance(spec, Names) else value
