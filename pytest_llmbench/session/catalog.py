"""The baselines that a session uses, and the options that only they can check."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import (
    MEGATRON_BRIDGE,
    Baseline,
    BaselineKind,
    Configuration,
    Contradiction,
    Key,
    Recipe,
    RegexDialect,
    TimedBy,
    Tolerance,
    ToleranceSource,
    Window,
)
from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.judgement_records import RequiredRuns
from pytest_llmbench.core.option import format_value
from pytest_llmbench.core.run_records import AcceptedRecording, Acknowledgement
from pytest_llmbench.core.tolerance import DRIFT_BUDGET, merge_tolerances
from pytest_llmbench.core.yamlfile import (
    Fields,
    Flag,
    Items,
    Names,
    Number,
    Report,
    Text,
    YamlMapping,
    read_document,
    read_entry,
)
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.session.settings import DEFAULT_TOLERANCE, Settings

LAST_STEP = "last_step"
"""What a baseline file calls it that its document timed the last step."""

# A run that saves a larger part of its baseline's time is more likely one of another
# configuration: a smaller batch, a shorter sequence, fewer layers, another precision,
# more GPUs. A log does not show all of them.
PLAUSIBLE = 0.15


@dataclass(frozen=True, slots=True)
class Catalog:
    """What was read, for each configuration the baselines that decide (never an empty
    tuple), and accepted changes."""

    recipes: tuple[Recipe, ...]
    baselines: Mapping[Key, tuple[Baseline, ...]]
    acknowledged: tuple[Acknowledgement, ...] = ()
    accepted_recordings: tuple[AcceptedRecording, ...] = ()
    last_repair: date | None = None  # of a node: what its runs said before is over
    required_runs: Mapping[Key, RequiredRuns] = field(default_factory=dict)
    tables: tuple[Recipe, ...] = ()
    """Shipped files of hundreds of configurations, which are read and are items only
    where something asks for them."""

    @property
    def on_demand(self) -> frozenset[Key]:
        """The configurations of tables alone: those of which a user's file holds
        something are items as all others."""
        others = (recipe for recipe in self.recipes if recipe not in self.tables)
        always = {baseline.key for recipe in others for baseline in recipe.baselines}
        return (
            frozenset(
                baseline.key for table in self.tables for baseline in table.baselines
            )
            - always
        )

    @property
    def own(self) -> frozenset[Key]:
        """The configurations that a file of the user holds."""
        from pytest_llmbench.baseline.read import find_shipped_baselines

        shipped = find_shipped_baselines()
        users = (
            recipe for recipe in self.recipes if not recipe.path.is_relative_to(shipped)
        )
        return frozenset(
            baseline.key for recipe in users for baseline in recipe.baselines
        )

    def select(self, keys: Iterable[Key | None], settings: Settings) -> Catalog:
        """Return a catalog without the configurations of tables but for these, and
        those that the settings ask for."""
        on_demand, asked = self.on_demand, {*keys, *self.required_runs}
        patterns = _list_asked(settings, self.baselines.keys() - on_demand)
        unasked = {
            key
            for key in on_demand
            if key not in asked and not _is_asked(key, patterns)
        }
        return replace(
            self,
            baselines={
                key: of_key
                for key, of_key in self.baselines.items()
                if key not in unasked
            },
        )

    def describe_unasked(self) -> str:
        """Return the line that stands for all configurations of tables of which nothing
        was asked and no run found."""
        left = len(self.on_demand - self.baselines.keys())
        what = (
            formatting.count_noun(left, "configuration")
            if left
            else "any configuration"
            if not self.tables
            else ""
        )
        return (
            f"no run of {what} of Megatron-Bridge's tables (docs/megatron-bridge.md)"
            if what
            else ""
        )

    @property
    def definitions(self) -> tuple[RegexDialect, ...]:
        """The dialects that baseline files define, each once, in the order of their
        paths, then those that ship."""
        own = dict.fromkeys(recipe.log for recipe in self.recipes if recipe.log)
        return (*own, *load_definitions().values())

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """What each key stands for."""
        return tuple(
            baselines[0].configuration for baselines in self.baselines.values()
        )

    def describe(self) -> str:
        """Return `82 configurations in 5 files`, with the number of recorded ones."""
        recorded = sum(
            each.kind is BaselineKind.RECORDED
            for chosen in self.baselines.values()
            for each in chosen
        )
        configurations = formatting.count_noun(
            len(self.baselines) - len(self.on_demand), "configuration"
        )
        text = f"{configurations} in {formatting.count_noun(len(self.recipes) - len(self.tables), 'file')}"
        return text + (f", {recorded} recorded here" if recorded else "")


def load(settings: Settings) -> Catalog:
    """Read the shipped baselines and the user's; raises BaselineError, or SettingsError
    for an option they rule out."""
    from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes

    recipes = read_recipes([*list_shipped_baselines(), *settings.baselines])
    catalog = Catalog(recipes, _choose(recipes, settings))
    if _needs_tables(settings, catalog):
        catalog = add_tables(catalog, read_tables(), settings)
    _check(settings, catalog)
    required_runs = (
        _read_required_runs(settings, catalog.recipes) if settings.suites else {}
    )
    return replace(catalog, required_runs=required_runs)


def read_tables() -> tuple[Recipe, ...]:
    """Return the shipped files whose configurations are items only where something asks
    for them."""
    from pytest_llmbench.baseline.read import find_shipped_tables, read_recipes

    return read_recipes([find_shipped_tables()])


def add_tables(
    catalog: Catalog, tables: tuple[Recipe, ...], settings: Settings
) -> Catalog:
    """Return a catalog with tables that it does not have."""
    if not tables or catalog.tables:
        return catalog
    recipes = (*catalog.recipes, *tables)
    chosen = {**catalog.baselines, **_choose(recipes, settings)}
    return replace(
        catalog, recipes=recipes, baselines=dict(sorted(chosen.items())), tables=tables
    )


def _needs_tables(settings: Settings, catalog: Catalog) -> bool:
    """Whether an option names what may be a configuration of the tables, or a user's
    file holds one."""
    keys = catalog.baselines.keys()
    releases, gpus = {key.release for key in keys}, {key.gpu for key in keys}
    unknown = {settings.release, settings.baseline_release} - {"", *releases} or {
        settings.gpu
    } - {"", *gpus}
    asked = _list_asked(settings, keys) or settings.suites or settings.acknowledged
    return bool(asked or unknown or any(key.recipe == MEGATRON_BRIDGE for key in keys))


def _choose(
    recipes: Sequence[Recipe], settings: Settings
) -> dict[Key, tuple[Baseline, ...]]:
    chosen = _choose_baselines(recipes, settings.against)
    if settings.timed != TimedBy.DOCUMENT:
        return chosen
    return {
        key: tuple(map(_time_as_documented, baselines))
        for key, baselines in chosen.items()
    }


def _read_required_runs(
    settings: Settings, recipes: Sequence[Recipe]
) -> dict[Key, RequiredRuns]:
    read = [read_suite(path, recipes, settings) for path in settings.suites]
    every = (pair for suite in read for pair in suite.items())
    return dict(
        sorted(every, key=lambda pair: pair[1].runs)
    )  # of several files the one that asks for the most counts


def is_required(key: Key, patterns: Iterable[str]) -> bool:
    """Whether a configuration is named: by `all`, its id or a shell pattern."""
    return any(
        pattern == "all" or fnmatch.fnmatchcase(key.id, pattern) for pattern in patterns
    )


def _list_asked(settings: Settings, others: Iterable[Key]) -> list[str]:
    """Return the ids and patterns by which configurations of the tables are asked for:
    what names others means these, and `all` are those that always are items."""
    ids = [key.id for key in others]
    selected = [
        text for text in settings.asked if text == "*" or not fnmatch.filter(ids, text)
    ]
    return [*selected, *(pattern for pattern in settings.require if pattern != "all")]


def _is_asked(key: Key, patterns: Iterable[str]) -> bool:
    """Whether an id of an item or a pattern names a configuration."""
    return any(key.id in text or fnmatch.fnmatchcase(key.id, text) for text in patterns)


def select_tolerance(settings: Settings, baseline: Baseline) -> Tolerance:
    """Return the tolerance that applies, the one with the smallest bound on the step
    time.

    For each metric the command line decides, else the ini file, else the baseline file,
    and where none limits the step time itself, 5 % of it: a tolerance on another metric
    narrows the bound and never widens it.
    """
    tolerances = merge_tolerances(
        [DEFAULT_TOLERANCE], baseline.tolerances, settings.tolerances
    )
    if settings.certify and not any(
        limit.source == ToleranceSource.OPTION for limit in settings.tolerances
    ):
        tolerances = (
            *tolerances,
            *baseline.tolerances,
        )  # a stricter file is not made looser by certifying
    return min(tolerances, key=lambda tolerance: tolerance.factor)


def select_drift_budget(settings: Settings, baseline: Baseline) -> float:
    """Return how far recorded values may move: the command line decides, else the ini
    file, else the baseline file."""
    return settings.drift_budget or baseline.drift_budget or DRIFT_BUDGET


def is_any_improvement(key: Key, settings: Settings, catalog: Catalog) -> bool:
    """Whether a run of this configuration may be faster than its baseline by any
    amount."""
    # Releases differ by up to 24 %.
    if settings.any_improvement or settings.baseline_release:
        return True
    # On this machine nobody knows what else it does.
    if settings.launch is not None and settings.launch.launcher == "local":
        return True
    kinds = (
        dict(recipe.launch).get("kind")
        for recipe in catalog.recipes
        if recipe.name == key.recipe
    )
    return "local" in kinds


def find_contradiction(baseline: Baseline, catalog: Catalog) -> Contradiction | None:
    """Return the number of a baseline that its step time contradicts, and no erratum of
    its file lists."""
    if not baseline.cells or not math.isfinite(baseline.step_seconds):
        return None
    from pytest_llmbench.baseline import lint

    recipes = (
        recipe for recipe in catalog.recipes if str(recipe.path) == baseline.source.file
    )
    errata = [erratum for recipe in recipes for erratum in recipe.errata]
    return lint.find_contradiction(baseline, errata)


def find_relatives(key: Key, catalog: Catalog) -> tuple[tuple[str, float], ...]:
    """Return the ids and step times of the other configurations of a model, in any
    release, size and precision."""
    others = (
        of_key[0]
        for other, of_key in catalog.baselines.items()
        if other.recipe == key.recipe and other != key
    )
    return tuple(
        (baseline.key.id, baseline.step_seconds)
        for baseline in others
        if baseline.step_seconds > 0
    )


def _choose_baselines(
    recipes: Sequence[Recipe], against: str
) -> dict[Key, tuple[Baseline, ...]]:
    by_key: dict[Key, list[Baseline]] = defaultdict(list)
    for recipe in recipes:
        for baseline in recipe.baselines:
            by_key[baseline.key].append(baseline)
    return {
        key: _select_kind(
            _with_published(_with_a_value(baselines)), against or "recorded"
        )
        for key, baselines in sorted(by_key.items())
    }


def _with_published(baselines: Sequence[Baseline]) -> Sequence[Baseline]:
    """Return the baselines of one configuration, the recorded one with what its
    document says."""
    published = next(
        (
            baseline.step_seconds
            for baseline in baselines
            if baseline.kind is BaselineKind.PUBLISHED
        ),
        None,
    )
    return [
        replace(baseline, published_seconds=published)
        if baseline.kind is BaselineKind.RECORDED
        else baseline
        for baseline in baselines
    ]


def _with_a_value(baselines: Sequence[Baseline]) -> Sequence[Baseline]:
    """Return the baselines that a run can be compared with; where there is none, the
    one that has no value yet."""
    return [
        baseline for baseline in baselines if baseline.kind is not BaselineKind.RECIPE
    ] or baselines


def _select_kind(baselines: Sequence[Baseline], kind: str) -> tuple[Baseline, ...]:
    """Return the baselines of a kind (or "both"), or those that there are."""
    # A configuration always has a baseline: without one its item, and with it a missing
    # run, would be gone.
    return (
        tuple(baselines)
        if kind == "both"
        else tuple(baseline for baseline in baselines if baseline.kind == kind)
        or tuple(baselines)
    )


def _time_as_documented(baseline: Baseline) -> Baseline:
    """Return a published baseline that is timed as its document does; others as they
    are.

    Which runs count stays what it is: those that finished, and whose usual window is
    whole.
    """
    if baseline.kind is not BaselineKind.PUBLISHED:
        return baseline
    if baseline.timed_window is not None:
        window = baseline.timed_window
        return replace(
            baseline,
            timed_by=TimedBy.DOCUMENT,
            window=window,
            required_window=baseline.window,
        )
    if baseline.timed != LAST_STEP:
        return replace(baseline, timed_by=TimedBy.DOCUMENT)
    last = _get_first_step(baseline) + baseline.steps - 1
    return replace(
        baseline,
        timed_by=TimedBy.DOCUMENT,
        window=Window(last, last),
        required_window=baseline.window,
    )


def _get_first_step(baseline: Baseline) -> int:
    return (
        baseline.log.first_step
        if baseline.log
        else DIALECTS[baseline.dialect].first_step
    )


def _check(settings: Settings, catalog: Catalog) -> None:
    """Refuse options that no baseline can satisfy."""
    # A typo must not select nothing.
    keys = list(catalog.baselines)
    releases = sorted({key.release for key in keys})
    for flag, value, valid in (
        ("--llmb-release", settings.release, releases),
        ("--llmb-baseline-release", settings.baseline_release, releases),
        ("--llmb-gpu", settings.gpu, sorted({key.gpu for key in keys})),
    ):
        of_unknown = (
            flag == "--llmb-gpu" and settings.record is not None
        )  # of runs that no baseline knows yet
        if value and value not in valid and not of_unknown:
            names = f"{', '.join(valid)}{did_you_mean(value, valid)}"
            raise SettingsError(
                f"{format_value(settings.origins, flag, value)}: no baseline has it; known: {names}"
            )
    recorded = any(recipe.kind is BaselineKind.RECORDED for recipe in catalog.recipes)
    if (
        settings.against in ("recorded", "both")
        and not recorded
        and settings.record is None
    ):
        what = format_value(settings.origins, "--llmb-against", settings.against)
        raise SettingsError(
            f"{what}: no recorded baseline was read; give their folder with --llmb-baselines"
        )
    for pattern in settings.require:
        if not any(is_required(key, [pattern]) for key in keys):
            part_of_some = any(pattern in key.id for key in keys)
            near = (
                f" (did you mean '*{pattern}*'?)"
                if part_of_some
                else did_you_mean(pattern, [key.id for key in keys])
            )
            stated = format_value(settings.origins, "--llmb-require", pattern)
            raise SettingsError(
                f"{stated}: neither a file nor a configuration{near}; see: llmbench baselines list"
            )


# --- suite files: the required configurations and their runs --------------------------

#     config: {scale: 512, repeats: 3, profile: true}
#     workloads:
#       h100:
#       - pretrain_grok1_314b:
#           dtypes: [bf16, fp8]

# What llmb-run takes for what the file leaves out: llmb_run/exemplar.py in
# NVIDIA/dgxc-benchmarking.
SCALE, REPEATS = 512, 3

_DTYPES = Fields({"dtypes": Items(Text("a precision such as bf16"))})
_WORKLOAD = Names(_DTYPES, Text("a workload such as pretrain_grok1_314b"))
_FILE = Fields(
    {
        "config": Fields(
            {},
            {
                "scale": Number(1, 10**7, whole=True),
                "repeats": Number(1, 1000, whole=True),
                "profile": Flag(),
            },
        ),
        "workloads": Names(Items(_WORKLOAD), Text("a GPU type such as h100")),
    }
)


def read_suite(
    path: Path, recipes: Sequence[Recipe], settings: Settings
) -> dict[Key, RequiredRuns]:
    """Return what a suite file asks for on the GPU type of `settings`, which may be
    left out where it names only one.

    Of several releases that document a configuration it is the newest, unless
    `settings` name one. Raises SettingsError with file, line and the nearest name for a
    workload, precision or scale that no baseline has: what cannot be judged must not be
    passed over.
    """
    asked: dict[Key, RequiredRuns] = {}

    def check(entry: YamlMapping, report: Report) -> None:
        gpu = _choose_gpu(entry["workloads"], settings.gpu, report)
        config: YamlMapping = entry["config"]
        scale, runs = config.get("scale", SCALE), config.get("repeats", REPEATS)
        for name, line, dtype in _list_wanted(entry["workloads"].get(gpu, ()), report):
            for key in _find_keys(
                name, (gpu, dtype, scale), recipes, settings, partial(report, line)
            ):
                asked[key] = RequiredRuns(runs, f"{path.name}:{line}")

    root = read_document(path, what="suite file", raises=SettingsError)
    read_entry(path, root, _FILE, check=check, raises=SettingsError)
    return asked


def _choose_gpu(workloads: YamlMapping, gpu: str, report: Report) -> str:
    names = list(workloads.values)
    if gpu in names or (not gpu and len(names) == 1):
        return gpu or names[0]
    listed = ", ".join(names)
    problem = (
        f"no workloads of --llmb-gpu={gpu}"
        if gpu
        else f"workloads of {len(names)} GPU types"
    )
    report(
        workloads.line,
        f"found {problem}, expected --llmb-gpu to be one of {listed}{did_you_mean(gpu, names)}",
    )
    return ""


def _list_wanted(
    workloads: Sequence[YamlMapping], report: Report
) -> Iterator[tuple[str, int, str]]:
    """Yield each workload with its line and each of its precisions."""
    names: set[str] = set()
    for workload in workloads:
        if len(workload.values) != 1 or names & workload.values.keys():
            report(
                workload.line,
                "found several workloads in one entry, or one again, expected each in an entry of its own",
            )
            continue
        ((name, of_workload),) = workload.values.items()
        names.add(name)
        for dtype in of_workload["dtypes"]:
            yield name, workload.lines[name], dtype


def _find_keys(
    name: str,
    cell: tuple[str, str, int],
    recipes: Sequence[Recipe],
    settings: Settings,
    wrong: Callable[[str], None],
) -> Iterator[Key]:
    """Yield the configurations that a workload means on a GPU type, in a precision, on
    a number of GPUs."""
    of_workload = [
        key
        for key, names in _find_known(recipes, settings.release)
        if name.casefold() in names
    ]
    if not of_workload:
        every = sorted(
            {
                f"pretrain_{key.recipe}_{key.size}"
                for key, _ in _find_known(recipes, settings.release)
            }
        )
        near = did_you_mean(name, every)
        wrong(
            f"found {name}, of which there is no baseline, expected a workload that has one{near}"
        )
        return
    gpu, dtype, scale = cell
    by_id = [
        key for key in of_workload if key.id.casefold() == name.casefold()
    ]  # which says its GPUs itself
    matching = [
        key
        for key in of_workload
        if (key.gpu, key.dtype, key.gpus if key not in by_id else scale) == cell
    ]
    if not matching:
        near = ", ".join(
            sorted(
                {
                    f"{key.dtype} on {key.gpus} {key.gpu}"
                    for key in of_workload
                    if key.gpu == gpu
                }
            )
        )
        wrong(
            f"found {name} in {dtype} on {scale} {gpu}, expected one that has a baseline: {near or 'none on these'}"
        )
        return
    newest = max((key.release for key in matching), key=_release)
    plain = [
        key
        for key in matching
        if key.release == newest and not (key.task or key.scaling or key.variant)
    ]
    yield from plain or [key for key in matching if key.release == newest]


def _find_known(
    recipes: Sequence[Recipe], release: str
) -> Iterator[tuple[Key, frozenset[str]]]:
    """Yield each configuration with its id and the names of its workload:
    `pretrain_grok1_314b`, with and without the task."""
    for recipe in recipes:
        for key in (
            baseline.key
            for baseline in recipe.baselines
            if release in ("", recipe.release)
        ):
            plain = {
                f"{name}_{key.size}".casefold() for name in (recipe.name, *recipe.names)
            }
            named = (
                f"{task}{name}"
                for task in ("", "pretrain_", "pretraining_")
                for name in plain
            )
            yield key, frozenset((key.id.casefold(), *named))


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
