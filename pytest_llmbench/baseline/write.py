"""Recorded baselines: what this cluster did, written as files that read back to the same numbers."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_llmbench.baseline.build import merged_budgets
from pytest_llmbench.baseline.fields import GROUPS, NO_PEAK
from pytest_llmbench.baseline.read import read_file, read_recipe
from pytest_llmbench.dialects import REGEX
from pytest_llmbench.errors import BaselineError, RecordError
from pytest_llmbench.models import (
    Baseline,
    Budget,
    Configuration,
    Key,
    Recipe,
    Recording,
    RegexDialect,
    Source,
    Tolerance,
)
from pytest_llmbench.tolerance import merged

STATISTIC = "trimmed_mean"
"""No single slow step moves it. The mean stands beside it in the file: only that tells where each sixth step stalls."""


class Shared(NamedTuple):
    """The limits that stand for a whole file."""

    tolerances: tuple[Tolerance, ...] = ()
    budgets: tuple[Budget, ...] = ()


Name = TypeVar("Name")
Value = TypeVar("Value")


def write_recorded(
    directory: Path, recorded: Sequence[tuple[Baseline, Recording]]
) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Write <directory>/<recipe>/<release>.yaml for every recipe and release among the recordings.

    Each file keeps the other configurations that it already holds, its tolerances and its budgets: those of the whole
    file apply to what is added, too, and one in the published file only where there is none. Returns the paths, each
    with a line for every configuration that it replaced (`id: 7.331 s -> 7.402 s`). Raises RecordError before anything
    is written where a file cannot be merged with (published, unreadable, measured another way), and where a place
    cannot be written.
    """
    files: list[tuple[Path, str, dict[Key, Baseline]]] = []
    changes: list[tuple[Path, tuple[str, ...]]] = []
    for path, baselines in sorted(_by_file(directory, recorded).items()):
        existing, shared = _existing(path)
        replaced = tuple(
            f"{baseline.key.id}: {existing[key].step_seconds:#.4g} s -> {baseline.step_seconds:#.4g} s"
            for key, baseline in sorted(baselines.items())
            if key in existing
        )
        together = {**existing, **{key: _kept(baseline, existing, shared) for key, baseline in baselines.items()}}
        files.append((path, _rendered(path, together, shared), together))
        changes.append((path, replaced))
    for path, text, together in files:
        _replace_file(path, text, together)
    return tuple(changes)


def recorded_baseline(published: Baseline, recording: Recording) -> Baseline:
    """Return the baseline that a recording makes of a published one: the trimmed mean over the same steps."""
    return replace(
        published,
        kind="recorded",
        step_seconds=float(recording.trimmed_mean_seconds),
        cells=(),
        window=replace(published.window, statistic=STATISTIC),
        timed=STATISTIC,
        tolerances=merged(published.tolerances),
        budgets=merged_budgets(published.budgets),
        recording=recording,
        resolution_seconds=0.0,
    )


def _by_file(directory: Path, recorded: Sequence[tuple[Baseline, Recording]]) -> dict[Path, dict[Key, Baseline]]:
    files: dict[Path, dict[Key, Baseline]] = {}
    for published, recording in recorded:
        key = published.key
        baselines = files.setdefault(directory / key.recipe / f"{key.release}.yaml", {})
        if key in baselines:
            raise RecordError(f"{key.id}: found two recordings of it, expected one")
        baselines[key] = recorded_baseline(published, recording)
    return files


def _existing(path: Path) -> tuple[dict[Key, Baseline], Shared]:
    """Return the configurations of a recorded file by key, and the limits that stand for the whole file."""
    if not os.path.lexists(path):
        return {}, Shared()
    try:
        file = read_file(path)
    except BaselineError as error:
        raise RecordError(f"{path} cannot be added to, move it away or record elsewhere:\n{error}") from error
    recipe = file.recipe
    if recipe.kind != "recorded":
        raise RecordError(f"{path}: found a {recipe.kind} baseline file, expected to record elsewhere")
    statistic = recipe.baselines[0].window.statistic
    if statistic != STATISTIC:
        found, expected = statistic.replace("_", " "), STATISTIC.replace("_", " ")
        raise RecordError(
            f"{path}: found baselines judged by the {found}, expected the {expected}, by which they are recorded now; "
            "move the file away or record elsewhere"
        )
    return {baseline.key: baseline for baseline in recipe.baselines}, Shared(file.tolerances, file.budgets)


def _kept(baseline: Baseline, existing: dict[Key, Baseline], shared: Shared) -> Baseline:
    """Return a new baseline with the tolerances and budgets that its file has for it."""
    own = existing.get(baseline.key, shared)
    return replace(
        baseline,
        tolerances=merged(baseline.tolerances, own.tolerances),
        budgets=merged_budgets(baseline.budgets, own.budgets),
    )


# --- text -----------------------------------------------------------------------------------------------


def _rendered(path: Path, baselines: dict[Key, Baseline], shared: Shared) -> str:
    import yaml

    ordered = [baselines[key] for key in sorted(baselines)]
    document = {
        **_head(path, ordered),
        **_tolerance(shared.tolerances),
        **_budgets(shared.budgets),
        "peak_tflops": _peaks(path, ordered),
        "models": _models(path, ordered),
        "configurations": [_row(baseline, shared) for baseline in ordered],
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return f"# Recorded by pytest --llmb-record; docs/baselines.md explains the keys.\n{text}"


def _head(path: Path, baselines: Sequence[Baseline]) -> dict[str, Any]:
    """Return what a file states once, and refuse configurations that were measured in different ways."""
    heads = [_facts(baseline) for baseline in baselines]
    for head, baseline in zip(heads, baselines, strict=True):
        for name, value in head.items():
            if name != "source" and value != heads[0][name]:
                raise RecordError(
                    f"{path}: found {name} {value} for {baseline.key.id} and {heads[0][name]} for "
                    f"{baselines[0].key.id}, expected one for the whole file; record into another folder"
                )
    return {name: value for name, value in heads[-1].items() if value is not None}


def _facts(baseline: Baseline) -> dict[str, Any]:
    window, key = baseline.window, baseline.key
    return {
        "schema": 1,
        "kind": "recorded",
        "recipe": key.recipe,
        "release": key.release,
        "dialect": REGEX if baseline.log else baseline.dialect,
        "log": _log(baseline.log) if baseline.log else None,
        "source": {"document": baseline.source.document},
        "timed": baseline.timed,
        "window": {"statistic": window.statistic, "first": window.first, "last": window.last},
        "steps": baseline.steps,
        "logged_tflops_factor": baseline.logged_tflops_factor,
    }


def _log(definition: RegexDialect) -> dict[str, Any]:
    """Return the definition of a dialect as its file states it."""
    stated = {name: value for name, value in asdict(definition).items() if name != "name"}
    return {name: value for name, value in stated.items() if value != ""}


def _tolerance(tolerances: Iterable[Tolerance]) -> dict[str, str]:
    """Return the key of these tolerances, `{"tolerance": "0.05, mfu:0.03"}`, or none."""
    prefixes = {"time": "", "performance": "perf:"}
    texts = [prefixes.get(one.of, f"{one.of}:") + _decimal(one.fraction) for one in tolerances]
    return {"tolerance": ", ".join(texts)} if texts else {}


def _budgets(budgets: Iterable[Budget]) -> dict[str, dict[str, float]]:
    largest = {one.metric: float(one.largest) for one in budgets}
    return {"budgets": largest} if largest else {}


def _decimal(number: float) -> str:
    """Return a float with every digit it has and no exponent: `989`, `0.05`."""
    return f"{Decimal(repr(float(number))):f}".removesuffix(".0")


def _peaks(path: Path, baselines: Sequence[Baseline]) -> dict[str, dict[str, str]]:
    pairs = (((base.key.gpu, base.key.dtype), _peak(base.peak_tflops)) for base in baselines)
    peaks: dict[str, dict[str, str]] = {}
    for (gpu, dtype), peak in _agreed(path, "peak TFLOP/s", pairs).items():
        peaks.setdefault(gpu, {})[dtype] = peak
    return peaks


def _peak(peak: float) -> str:
    return NO_PEAK if math.isnan(peak) else _decimal(peak)


def _models(path: Path, baselines: Sequence[Baseline]) -> dict[str, dict[str, Any]]:
    # A proxy's formula is not rounded: where the full model is in the file, its formula stands for both.
    full = sorted(baselines, key=lambda baseline: baseline.configuration.proxy)
    formulas: dict[str, str] = {}
    for baseline in full:
        name = baseline.configuration.architecture.formula
        first = formulas.setdefault(baseline.key.size, name)
        if baseline.configuration.proxy and first.partition(":")[0] == name:
            continue
        if first != name:
            raise RecordError(f"{path}: found FLOPs formulas {first} and {name} of {baseline.key.size}, expected one")
    pairs = ((base.key.size, _sizes(base.configuration)) for base in baselines)
    return {size: {"formula": formulas[size], **model} for size, model in _agreed(path, "model", pairs).items()}


def _sizes(configuration: Configuration) -> dict[str, int]:
    architecture = asdict(configuration.architecture)
    own = ("formula", "sequence_length", "layers")
    return {name: value for name, value in architecture.items() if name not in own and value is not None}


def _agreed(path: Path, what: str, pairs: Iterable[tuple[Name, Value]]) -> dict[Name, Value]:
    agreed: dict[Name, Value] = {}
    for name, value in pairs:
        if agreed.setdefault(name, value) != value:
            raise RecordError(f"{path}: found {what} {value} and {agreed[name]} for {name}, expected one")
    return agreed


def _row(baseline: Baseline, shared: Shared) -> dict[str, Any]:
    configuration, key = baseline.configuration, baseline.key
    row = {
        **{name: getattr(key, name) for name in ("size", "gpu", "dtype", "gpus", "task", "scaling", "variant")},
        "table": baseline.source.table,
        "sequence_length": configuration.architecture.sequence_length,
        "layers": configuration.architecture.layers,
        **{name: getattr(configuration.parallelism, name) for name in GROUPS},
        "mbs": configuration.micro_batch_size,
        "gbs": configuration.global_batch_size,
        "ga": configuration.gradient_accumulation,
        "proxy": configuration.proxy or None,
        **_tolerance(one for one in baseline.tolerances if one not in shared.tolerances),
        **_budgets(one for one in baseline.budgets if one not in shared.budgets),
        "recorded": _recording(baseline.recording),
    }
    return {name: value for name, value in row.items() if value not in (None, "")}


def _recording(recording: Recording | None) -> dict[str, Any] | None:
    if recording is None:
        return None
    seconds = ("mean_seconds", "trimmed_mean_seconds", "standard_deviation_seconds")
    return {
        "date": recording.date,
        "runs": int(recording.runs),
        **{name: float(getattr(recording, name)) for name in seconds},
        "run_seconds": [float(value) for value in recording.run_seconds],
        "log_sha256": list(recording.log_sha256),
    }


# --- file -----------------------------------------------------------------------------------------------


def _replace_file(path: Path, text: str, baselines: dict[Key, Baseline]) -> None:
    """Write beside the file, read that back, and only then put it in the file's place."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _verify(path, read_recipe(temporary), baselines)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}, expected a place that can be written") from error
    except BaselineError as error:
        raise RecordError(f"{path}: was not written, it would not read back:\n{error}") from error


def _verify(path: Path, written: Recipe, baselines: dict[Key, Baseline]) -> None:
    for found in written.baselines:
        meant = baselines[found.key]
        if _comparable(found) != _comparable(meant):
            raise RecordError(f"{path}: was not written, {found.key.id} would not read back to the same numbers")


def _comparable(baseline: Baseline) -> tuple[Baseline, str]:
    """No NaN equals another, so a peak that nothing states is compared as written."""
    return replace(baseline, source=Source(""), peak_tflops=0.0), _peak(baseline.peak_tflops)
