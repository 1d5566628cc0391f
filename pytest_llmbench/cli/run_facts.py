"""What a baseline file asks of a run, as far as its log, its names, or the configuration that it is of, say it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.core.models import Run
from pytest_llmbench.pipeline.catalog import Catalog

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Configuration
    from pytest_llmbench.measure.window import Choice


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The keys of a baseline file for one run, empty or None where nothing says them.

    `total_steps` is the log's own total, `framework` the recipe's, else the name of the log's dialect.
    """

    framework: str = ""
    dialect: str = ""
    recipe: str = ""
    size: str = ""
    release: str = ""
    gpu: str = ""
    dtype: str = ""
    gpus: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    sequence_length: int | None = None
    total_steps: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    vp: int | None = None
    fsdp: int | None = None


NOTHING_KNOWN = RunFacts()

TEXTS = ("framework", "dialect", "recipe", "size", "release", "gpu", "dtype")

WHOLE_NUMBERS = tuple(field.name for field in dataclasses.fields(RunFacts) if field.name not in TEXTS)


def collect_facts(run: Run, choice: Choice | None, catalog: Catalog) -> RunFacts:
    """Return what is known of a run: its log says it, else its names and metadata, else its configuration."""
    key = run.identity.key
    chosen = catalog.baselines[key][0] if key else None
    log = choice.attempt.log if choice else run.attempts[-1].log if run.attempts else None
    dialect = (log.dialect if log else None) or (chosen.dialect if chosen else "")
    recipe = next((candidate for candidate in catalog.recipes if chosen and chosen in candidate.baselines), None)
    values = _read_configuration(chosen.configuration) if chosen else {}
    values |= {name: value for name, value in _read_names(run).items() if name not in TEXTS or name not in values}
    values |= _read_log(choice) if choice else {}
    values |= {"framework": (recipe.framework if recipe else "") or dialect, "dialect": dialect}
    return RunFacts(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]


def _read_configuration(configuration: Configuration) -> dict[str, object]:
    key = configuration.key
    return {
        **{name: getattr(key, name) for name in ("recipe", "size", "release", "gpu", "dtype", "gpus")},
        **dataclasses.asdict(configuration.parallelism),
        "global_batch_size": configuration.global_batch_size,
        "micro_batch_size": configuration.micro_batch_size,
        "sequence_length": configuration.architecture.sequence_length,
    }


def _read_names(run: Run) -> dict[str, object]:
    """Return what names and metadata say; what they say in two ways nobody knows."""
    values_of: dict[str, set[str]] = {}
    for hint in run.found.hints:
        values_of.setdefault(hint.field, set()).add(hint.value)
    agreed = {name: values.pop() for name, values in values_of.items() if len(values) == 1}
    numbers = {name: int(agreed[name]) for name in WHOLE_NUMBERS if agreed.get(name, "").isdecimal()}
    return {**{name: agreed[name] for name in TEXTS if name in agreed}, **numbers}


def _read_log(choice: Choice) -> dict[str, object]:
    import numpy as np

    printed = choice.segment.steps.global_batch_size
    printed = printed[np.isfinite(printed)]
    batch = {"global_batch_size": int(printed[-1])} if len(printed) else {}
    return {**batch, "total_steps": choice.segment.total_steps}
