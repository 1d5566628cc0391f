"""The text of baseline files that are made from runs: recorded ones, and drafts that
nothing has timed yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.baseline.key_definition import KeyDefinition
from pytest_llmbench.baseline.schema import (
    CONFIGURATION,
    FILE,
    MODEL,
    NO_PEAK,
    RECORDED,
    format_decimal,
)
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Budget,
    Key,
    Recipe,
    Tolerance,
)
from pytest_llmbench.core.errors import RecordError
from pytest_llmbench.core.yamlfile import Fields, Items, Names, Number, Spec, Text


class SharedKeys(NamedTuple):
    """What stands for a whole file: its limits, and the text of the keys that its owner
    writes (names, launch)."""

    tolerances: tuple[Tolerance, ...] = ()
    budgets: tuple[Budget, ...] = ()
    drift_budget: float | None = None
    own: str = ""


def render_file(
    path: Path, baselines: Mapping[Key, Baseline], shared: SharedKeys
) -> str:
    """Return the text of a file with these configurations; RecordError where they were
    not measured in one way."""
    rows = _render_document(
        path, baselines, shared, lambda baseline: _render_row(baseline, shared), {}
    )
    return f"# Recorded by pytest --llmb-record; docs/baselines.md explains the keys.\n{rows}{shared.own}"


def render_draft(path: Path, recipes: Sequence[Recipe], remarks: Sequence[str]) -> str:
    """Return the text of a file of kind recipe: that of configurations which nothing
    has timed yet, all of one recipe and release. `remarks` stand above it as
    comments."""
    first, baselines = (
        recipes[0],
        {baseline.key: baseline for recipe in recipes for baseline in recipe.baselines},
    )
    head = {
        "title": first.title,
        "framework": first.framework,
        "names": list(first.names),
    }
    comments = "".join(
        f"# {line}\n" for remark in remarks for line in remark.splitlines()
    )
    rows = _render_document(
        path,
        baselines,
        SharedKeys(),
        lambda baseline: _render_keys(CONFIGURATION, baseline),
        head,
    )
    return f"# Drafted from runs; docs/own-runs.md explains it, docs/baselines.md the keys.\n{comments}{rows}"


def _render_document(
    path: Path,
    baselines: Mapping[Key, Baseline],
    shared: SharedKeys,
    render_row: Callable[[Baseline], dict[str, Any]],
    more: Mapping[str, Any],
) -> str:
    import yaml

    ordered = [baselines[key] for key in sorted(baselines)]
    peaks: dict[str, dict[str, str]] = {}
    pairs = (
        ((base.key.gpu, base.key.dtype), format_peak(base.peak_tflops))
        for base in ordered
    )
    for (gpu, dtype), peak in _agree(path, "peak TFLOP/s", pairs).items():
        peaks.setdefault(gpu, {})[dtype] = peak
    document = {
        "schema": 1,
        **_render_head(path, ordered, shared),
        **more,
        "peak_tflops": peaks,
        "models": _render_models(path, ordered),
        "configurations": [render_row(baseline) for baseline in ordered],
    }
    # `None` puts a mapping of plain values in one line, so that a diff shows rows; YAML
    # would sort the keys.
    text: str = yaml.safe_dump(
        document,
        sort_keys=False,
        allow_unicode=True,
        width=110,
        default_flow_style=None,
    )
    return text


def _render_head(
    path: Path, baselines: Sequence[Baseline], shared: SharedKeys
) -> dict[str, Any]:
    """Return what a file states once, and refuse configurations that were measured in
    different ways."""
    limited = (
        replace(base, tolerances=shared.tolerances, budgets=shared.budgets)
        for base in baselines
    )
    heads = [_render_keys(FILE, baseline) for baseline in limited]
    for head, baseline in zip(heads, baselines, strict=True):
        for name in {**heads[0], **head}:
            # Another window must not slip in under the configurations that are there
            # already.
            if name != "source" and head.get(name) != heads[0].get(name):
                raise RecordError(
                    f"{path}: found {name} {head.get(name)} for {baseline.key.id} and {heads[0].get(name)} for "
                    f"{baselines[0].key.id}, expected one for the whole file; record into another folder"
                )
    return heads[-1]


def _render_models(
    path: Path, baselines: Sequence[Baseline]
) -> dict[str, dict[str, Any]]:
    # A proxy's formula is not rounded: where the full model is in the file, its formula
    # stands for both.
    full = sorted(baselines, key=lambda baseline: baseline.configuration.proxy)
    formulas: dict[str, str] = {}
    for baseline in full:
        name = baseline.configuration.architecture.formula
        first = formulas.setdefault(baseline.key.size, name)
        if first != name and not (
            baseline.configuration.proxy and first.partition(":")[0] == name
        ):
            raise RecordError(
                f"{path}: found FLOPs formulas {first} and {name} of {baseline.key.size}, expected one"
            )
    pairs = (
        (baseline.key.size, _render_keys(MODEL, baseline)) for baseline in baselines
    )
    return {
        size: {"formula": formulas[size], **model}
        for size, model in _agree(path, "model", pairs).items()
    }


def _agree(path: Path, what: str, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the values by name; RecordError where one name has several."""
    agreed: dict[Any, Any] = {}
    for name, value in pairs:
        if agreed.setdefault(name, value) != value:
            raise RecordError(
                f"{path}: found {what} {value} and {agreed[name]} for {name}, expected one"
            )
    return agreed


def _render_row(baseline: Baseline, shared: SharedKeys) -> dict[str, Any]:
    own = replace(
        baseline,
        tolerances=tuple(
            limit for limit in baseline.tolerances if limit not in shared.tolerances
        ),
        budgets=tuple(
            budget for budget in baseline.budgets if budget not in shared.budgets
        ),
    )
    return {
        **_render_keys(CONFIGURATION, own),
        "recorded": _render_keys(RECORDED, baseline),
    }


def _render_keys(keys: Iterable[KeyDefinition], baseline: Baseline) -> dict[str, Any]:
    """Return what a recorded file states of a baseline, as far as there is something to
    state."""
    stated: dict[str, Any] = {}
    for key in keys:
        value = attrgetter(key.field)(baseline) if key.field else None
        if value is not None and BaselineKind.RECORDED in key.allowed_in:
            plain = key.write(value) if key.write else _to_plain(key.spec, value)
            stated |= {key.name: plain} if plain or key.required_in else {}
    return stated


def _to_plain(spec: Spec, value: Any) -> Any:
    """Return the value of a record in the types that YAML writes: a number may be one
    of numpy."""
    if isinstance(spec, Number):
        return int(value) if spec.whole else float(value)
    if isinstance(spec, Items):
        return [_to_plain(spec.item, item) for item in value]
    if isinstance(spec, Fields):
        specs = {**spec.required, **spec.optional}
        values = {name: getattr(value, name, None) for name in specs}
        return {
            name: _to_plain(specs[name], part)
            for name, part in values.items()
            if part not in ("", None)
        }
    if isinstance(spec, Names):
        return dict(value)
    return str(value) if isinstance(spec, Text) else value


def format_peak(peak: float) -> str:
    """Return a peak as a file states it."""
    return NO_PEAK if math.isnan(peak) else format_decimal(peak)
