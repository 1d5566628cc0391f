"""The baselines of a session, and the options that depend on them."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

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
"""Value of `timed` in a baseline file whose document timed only the last step."""

PLAUSIBLE = 0.15
"""The largest plausible speed-up, as a fraction of the baseline's time.

A faster run probably has another configuration: a smaller batch, a shorter sequence,
fewer layers, another precision or more GPUs. Not all of these appear in a log.
"""


class Catalog(Struct, frozen=True):
    """The baseline files of a session, the deciding baselines, and the accepted
    changes.

    `baselines` has at least one deciding baseline for each configuration.
    """

    recipes: tuple[Recipe, ...]
    baselines: Mapping[Key, tuple[Baseline, ...]]
    acknowledged: tuple[Acknowledgement, ...] = ()
    accepted_recordings: tuple[AcceptedRecording, ...] = ()
    last_repair: date | None = None
    """The day of the latest node repair; earlier runs do not count against nodes."""
    required_runs: Mapping[Key, RequiredRuns] = field(default_factory=dict)
    tables: tuple[Recipe, ...] = ()
    """Shipped files that were imported from tables with hundreds of configurations.

    The files are read, and their configurations become items, only on demand.
    """

    @property
    def keys_only_in_tables(self) -> frozenset[Key]:
        """Configurations that only imported tables (`self.tables`) contain.

        No other baseline file contains them.
        """
        other_recipes = [recipe for recipe in self.recipes if recipe not in self.tables]
        return _list_keys(self.tables) - _list_keys(other_recipes)

    @property
    def user_keys(self) -> frozenset[Key]:
        """Configurations in the user's files, even if a shipped file has them, too."""
        from pytest_llmbench.baseline.read import find_shipped_baselines

        shipped = find_shipped_baselines()
        user_recipes = (
            recipe for recipe in self.recipes if not recipe.path.is_relative_to(shipped)
        )
        return frozenset(
            baseline.key for recipe in user_recipes for baseline in recipe.baselines
        )

    def select(self, keys: Iterable[Key | None], settings: Settings) -> Catalog:
        """Return a catalog without the unneeded configurations of tables.

        Keeps those in `keys`, in suite files and in the options of `settings`.
        """
        keys_only_in_tables = self.keys_only_in_tables
        needed_keys = {*keys, *self.required_runs}
        patterns = _list_requested(
            settings, self.baselines.keys() - keys_only_in_tables
        )
        unrequested_keys = {
            key
            for key in keys_only_in_tables
            if key not in needed_keys and not _is_requested(key, patterns)
        }
        return replace(
            self,
            baselines={
                key: key_baselines
                for key, key_baselines in self.baselines.items()
                if key not in unrequested_keys
            },
        )

    def describe_unrequested(self) -> str:
        """Return a line about the table configurations that became no item, or ""."""
        count = len(self.keys_only_in_tables - self.baselines.keys())
        if count:
            subject = formatting.count_noun(count, "configuration")
        elif not self.tables:  # no run may belong to one, so the tables were not read
            subject = "any configuration"
        else:
            return ""
        return f"no run of {subject} of Megatron-Bridge's tables (docs/reference/megatron-bridge.md)"

    @property
    def definitions(self) -> tuple[RegexDialect, ...]:
        """The log formats that are defined by patterns.

        First those of the baseline files, in path order, then the shipped ones.
        """
        custom = dict.fromkeys(recipe.log for recipe in self.recipes if recipe.log)
        return (*custom, *load_definitions().values())

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configuration of each key."""
        return tuple(
            baselines[0].configuration for baselines in self.baselines.values()
        )

    def describe(self) -> str:
        """Return `82 configurations in 5 files, 3 recorded here`, without tables."""
        recorded_count = sum(
            baseline.kind is BaselineKind.RECORDED
            for key_baselines in self.baselines.values()
            for baseline in key_baselines
        )
        configurations = formatting.count_noun(
            len(self.baselines) - len(self.keys_only_in_tables), "configuration"
        )
        text = f"{configurations} in {formatting.count_noun(len(self.recipes) - len(self.tables), 'file')}"
        return text + (f", {recorded_count} recorded here" if recorded_count else "")


def _list_keys(recipes: Iterable[Recipe]) -> frozenset[Key]:
    """Return the keys of all baselines of recipes."""
    return frozenset(
        baseline.key for recipe in recipes for baseline in recipe.baselines
    )


def load(settings: Settings) -> Catalog:
    """Read the shipped and the user's baseline files, and the suite files.

    The shipped tables are read only if an option may need them. Raises BaselineError, or
    SettingsError for an option that no baseline satisfies.
    """
    from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes

    recipes = read_recipes([*list_shipped_baselines(), *settings.baselines])
    catalog = Catalog(recipes, _choose_baselines(recipes, settings))
    if _needs_tables(settings, catalog):
        catalog = add_tables(catalog, read_tables(), settings)
    _check_options(settings, catalog)
    required_runs = (
        _read_required_runs(settings, catalog.recipes) if settings.suites else {}
    )
    return replace(catalog, required_runs=required_runs)


def read_tables() -> tuple[Recipe, ...]:
    """Read the shipped tables (see `Catalog.tables`)."""
    from pytest_llmbench.baseline.read import find_shipped_tables, read_recipes

    return read_recipes([find_shipped_tables()])


def add_tables(
    catalog: Catalog, tables: tuple[Recipe, ...], settings: Settings
) -> Catalog:
    """Return a catalog with `tables`, unless it has tables already."""
    if not tables or catalog.tables:
        return catalog
    recipes = (*catalog.recipes, *tables)
    chosen_baselines = {**catalog.baselines, **_choose_baselines(recipes, settings)}
    return replace(
        catalog,
        recipes=recipes,
        baselines=dict(sorted(chosen_baselines.items())),
        tables=tables,
    )


def _needs_tables(settings: Settings, catalog: Catalog) -> bool:
    """True if an option may name a configuration of the tables, or a user's file
    contains one."""
    keys = catalog.baselines.keys()
    # A release or GPU type that no other baseline has may be in a table.
    releases, gpus = {key.release for key in keys}, {key.gpu for key in keys}
    unknown_releases = {settings.release, settings.baseline_release} - {"", *releases}
    unknown_gpus = {settings.gpu} - {"", *gpus}
    may_be_named = (
        _list_requested(settings, keys) or settings.suites or settings.acknowledged
    )
    return bool(
        may_be_named
        or unknown_releases
        or unknown_gpus
        or any(key.recipe == MEGATRON_BRIDGE for key in keys)
    )


def _choose_baselines(
    recipes: Sequence[Recipe], settings: Settings
) -> dict[Key, tuple[Baseline, ...]]:
    """Return the deciding baselines of each configuration, sorted by key.

    With --llmb-timed=document, their windows are those that the documents timed.
    """
    chosen_baselines = _choose_by_kind(recipes, settings.against)
    if settings.timed != TimedBy.DOCUMENT:
        return chosen_baselines
    return {
        key: tuple(map(_time_as_documented, baselines))
        for key, baselines in chosen_baselines.items()
    }


def _read_required_runs(
    settings: Settings, recipes: Sequence[Recipe]
) -> dict[Key, RequiredRuns]:
    """Read all suite files; the file that requires most runs of a key applies."""
    suites = [read_suite(path, recipes, settings) for path in settings.suites]
    all_required = (pair for suite in suites for pair in suite.items())
    # The last of several equal keys remains in the dict.
    return dict(sorted(all_required, key=lambda pair: pair[1].runs))


def is_required(key: Key, patterns: Iterable[str]) -> bool:
    """True if one of `patterns` (`all`, an id or a shell pattern) matches `key`."""
    return any(
        pattern == "all" or fnmatch.fnmatchcase(key.id, pattern) for pattern in patterns
    )


def _list_requested(settings: Settings, other_keys: Iterable[Key]) -> list[str]:
    """Return the ids and patterns that may select configurations of tables.

    An id or pattern of `settings.requested` that matches one of `other_keys` does not
    refer to tables. `all` never refers to tables.
    """
    ids = [key.id for key in other_keys]
    selected = [
        text
        for text in settings.requested
        if text == "*" or not fnmatch.filter(ids, text)
    ]
    return [*selected, *(pattern for pattern in settings.require if pattern != "all")]


def _is_requested(key: Key, patterns: Iterable[str]) -> bool:
    """True if an item id contains the configuration's id or a pattern matches it."""
    return any(key.id in text or fnmatch.fnmatchcase(key.id, text) for text in patterns)


def select_tolerance(settings: Settings, baseline: Baseline) -> Tolerance:
    """Return the tolerance that allows the smallest step time.

    The tolerance on a metric is that of the command line, else of the ini file, else of
    the baseline file; that on the step time is by default +5 %. A tolerance on another
    metric can only lower the limit. --llmb-certify also applies the baseline file's
    tolerances, unless a tolerance was given on the command line.
    """
    tolerances = merge_tolerances(
        [DEFAULT_TOLERANCE], baseline.tolerances, settings.tolerances
    )
    if settings.certify and not any(
        limit.source == ToleranceSource.OPTION for limit in settings.tolerances
    ):
        # An ini file must not loosen the tolerance of a stricter baseline file.
        tolerances = (*tolerances, *baseline.tolerances)
    return min(tolerances, key=lambda tolerance: tolerance.factor)


def select_drift_budget(settings: Settings, baseline: Baseline) -> float:
    """Return the drift budget: from an option, the baseline file, or the default."""
    return settings.drift_budget or baseline.drift_budget or DRIFT_BUDGET


def may_be_any_faster(key: Key, settings: Settings, catalog: Catalog) -> bool:
    """True if a run of this configuration may be faster by any amount."""
    if settings.any_improvement:
        return True
    # The run is judged against another release. The documented values of two releases
    # differ by up to 24 %.
    if settings.baseline_release:
        return True
    # Other processes may slow down a local run by an unknown amount.
    if settings.launch is not None and settings.launch.launcher == "local":
        return True
    launch_kinds = (
        dict(recipe.launch).get("kind")
        for recipe in catalog.recipes
        if recipe.name == key.recipe
    )
    return "local" in launch_kinds


def find_contradiction(baseline: Baseline, catalog: Catalog) -> Contradiction | None:
    """Return the contradiction between a number of a baseline and its step time.

    Numbers that are listed as errata are ignored. None without a contradiction.
    """
    if not baseline.cells or not math.isfinite(baseline.step_seconds):
        return None
    from pytest_llmbench.baseline import lint

    recipes = (
        recipe for recipe in catalog.recipes if str(recipe.path) == baseline.source.file
    )
    errata = [erratum for recipe in recipes for erratum in recipe.errata]
    return lint.find_contradiction(baseline, errata)


def find_relatives(key: Key, catalog: Catalog) -> tuple[tuple[Key, float], ...]:
    """Return (key, step time) of each other configuration of the same recipe.

    Configurations without a step time are left out.
    """
    relatives = (
        baselines[0]
        for other_key, baselines in catalog.baselines.items()
        if other_key.recipe == key.recipe and other_key != key
    )
    return tuple(
        (baseline.key, baseline.step_seconds)
        for baseline in relatives
        if baseline.step_seconds > 0
    )


def _choose_by_kind(
    recipes: Sequence[Recipe], against: str
) -> dict[Key, tuple[Baseline, ...]]:
    """Choose the baselines of each configuration by their kind.

    `against` is the preferred kind, or "both"; "" prefers recorded baselines.
    """
    by_key: dict[Key, list[Baseline]] = defaultdict(list)
    for recipe in recipes:
        for baseline in recipe.baselines:
            by_key[baseline.key].append(baseline)
    return {
        key: _select_kind(
            _with_published(_drop_without_value(baselines)), against or "recorded"
        )
        for key, baselines in sorted(by_key.items())
    }


def _with_published(baselines: Sequence[Baseline]) -> Sequence[Baseline]:
    """Add the published step time to the recorded baselines of a configuration."""
    published_seconds = next(
        (
            baseline.step_seconds
            for baseline in baselines
            if baseline.kind is BaselineKind.PUBLISHED
        ),
        None,
    )
    return [
        replace(baseline, published_seconds=published_seconds)
        if baseline.kind is BaselineKind.RECORDED
        else baseline
        for baseline in baselines
    ]


def _drop_without_value(baselines: Sequence[Baseline]) -> Sequence[Baseline]:
    """Return the baselines with a value, or all of them if none has one."""
    return [
        baseline for baseline in baselines if baseline.kind is not BaselineKind.RECIPE
    ] or baselines


def _select_kind(baselines: Sequence[Baseline], kind: str) -> tuple[Baseline, ...]:
    """Return the baselines of a kind (or "both"), or all of them if there are none."""
    # Every configuration needs a baseline: without one it would have no item, and a
    # missing run would not be reported.
    return (
        tuple(baselines)
        if kind == "both"
        else tuple(baseline for baseline in baselines if baseline.kind == kind)
        or tuple(baselines)
    )


def _time_as_documented(baseline: Baseline) -> Baseline:
    """Return a published baseline with the window that its document timed.

    A valid run must still have finished and contain the usual window
    (`required_window`). Baselines of another kind are returned unchanged.
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


def _check_options(settings: Settings, catalog: Catalog) -> None:
    """Raise SettingsError for options that no baseline satisfies."""
    # A misspelled value must not silently select no baseline.
    keys = list(catalog.baselines)
    releases = sorted({key.release for key in keys})
    for flag, value, valid in (
        ("--llmb-release", settings.release, releases),
        ("--llmb-baseline-release", settings.baseline_release, releases),
        ("--llmb-gpu", settings.gpu, sorted({key.gpu for key in keys})),
    ):
        # Runs to record may have a GPU type that is in no baseline yet.
        may_be_new = flag == "--llmb-gpu" and settings.record is not None
        if value and value not in valid and not may_be_new:
            names = f"{', '.join(valid)}{did_you_mean(value, valid)}"
            raise SettingsError(
                f"{format_value(settings.origins, flag, value)}: no baseline has this value; known: {names}"
            )
    recorded = any(recipe.kind is BaselineKind.RECORDED for recipe in catalog.recipes)
    if (
        settings.against in ("recorded", "both")
        and not recorded
        and settings.record is None
    ):
        option = format_value(settings.origins, "--llmb-against", settings.against)
        raise SettingsError(
            f"{option}: no recorded baseline was read; give their folder with --llmb-baselines"
        )
    for pattern in settings.require:
        if not any(is_required(key, [pattern]) for key in keys):
            is_substring = any(pattern in key.id for key in keys)
            hint = (
                f" (did you mean '*{pattern}*'?)"
                if is_substring
                else did_you_mean(pattern, [key.id for key in keys])
            )
            stated = format_value(settings.origins, "--llmb-require", pattern)
            raise SettingsError(
                f"{stated}: neither a file nor a configuration{hint}; see: llmbench baselines list"
            )


# --- suite files: the required configurations and their runs --------------------------

#     config: {scale: 512, repeats: 3, profile: true}
#     workloads:
#       h100:
#       - pretrain_grok1_314b:
#           dtypes: [bf16, fp8]

# The defaults of llmb-run: llmb_run/exemplar.py in NVIDIA/dgxc-benchmarking.
DEFAULT_SCALE, DEFAULT_REPEATS = 512, 3

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
    """Return the required runs in a suite file, for the GPU type of `settings`.

    The GPU type is optional if the file has only one. Uses the newest release that
    documents the configuration, unless `settings` names a release. Raises SettingsError
    with file, line and the nearest name for a workload, precision or scale without a
    baseline.
    """
    required_runs: dict[Key, RequiredRuns] = {}

    def collect_required(entry: YamlMapping, report: Report) -> None:
        """Add the required runs to `required_runs`, and report unknown names."""
        gpu = _choose_gpu(entry["workloads"], settings.gpu, report)
        config: YamlMapping = entry["config"]
        scale = config.get("scale", DEFAULT_SCALE)
        runs = config.get("repeats", DEFAULT_REPEATS)
        for name, line, dtype in _list_workloads(
            entry["workloads"].get(gpu, ()), report
        ):
            for key in _find_keys(
                name, (gpu, dtype, scale), recipes, settings, partial(report, line)
            ):
                required_runs[key] = RequiredRuns(runs, f"{path.name}:{line}")

    root = read_document(path, what="suite file", raises=SettingsError)
    read_entry(path, root, _FILE, check=collect_required, raises=SettingsError)
    return required_runs


def _choose_gpu(workloads: YamlMapping, gpu: str, report: Report) -> str:
    """Return `gpu`, or the only GPU type of a suite file.

    Reports a problem and returns "" if the file has no such GPU type, or has several
    and `gpu` is "".
    """
    names = list(workloads.values)
    if gpu in names or (not gpu and len(names) == 1):
        return gpu or names[0]
    expected = ", ".join(names)
    problem = (
        f"no workloads of --llmb-gpu={gpu}"
        if gpu
        else f"workloads of {len(names)} GPU types"
    )
    report(
        workloads.line,
        f"found {problem}, expected --llmb-gpu to be one of {expected}{did_you_mean(gpu, names)}",
    )
    return ""


def _list_workloads(
    workloads: Sequence[YamlMapping], report: Report
) -> Iterator[tuple[str, int, str]]:
    """Yield workload, line and precision for each precision of each workload."""
    names: set[str] = set()
    for workload in workloads:
        if len(workload.values) != 1 or names & workload.values.keys():
            report(
                workload.line,
                "found several workloads in one entry, or a repeated one, expected one entry for each workload",
            )
            continue
        ((name, contents),) = workload.values.items()
        names.add(name)
        for dtype in contents["dtypes"]:
            yield name, workload.lines[name], dtype


def _find_keys(
    name: str,
    cell: tuple[str, str, int],
    recipes: Sequence[Recipe],
    settings: Settings,
    report_line: Callable[[str], None],
) -> Iterator[Key]:
    """Yield the configurations of a workload in one cell of the suite file.

    `cell` is the GPU type, the precision and the number of GPUs. Uses the newest
    release. Configurations with a task, scaling or variant are yielded only if there
    are no others. Calls `report_line` if there is no baseline.
    """
    workload_keys = [
        key
        for key, names in _list_keys_with_names(recipes, settings.release)
        if name.casefold() in names
    ]
    if not workload_keys:
        known_names = sorted(
            {
                f"pretrain_{key.recipe}_{key.size}"
                for key, _ in _list_keys_with_names(recipes, settings.release)
            }
        )
        hint = did_you_mean(name, known_names)
        report_line(
            f"found {name}, which has no baseline, expected a workload with a baseline{hint}"
        )
        return
    gpu, dtype, scale = cell
    # An id includes the number of GPUs, so that the scale of the suite file is ignored.
    named_by_id = [key for key in workload_keys if key.id.casefold() == name.casefold()]
    matching_keys = [
        key
        for key in workload_keys
        if (key.gpu, key.dtype) == (gpu, dtype)
        and (key.gpus == scale or key in named_by_id)
    ]
    if not matching_keys:
        hint = ", ".join(
            sorted(
                {
                    f"{key.dtype} on {key.gpus} {key.gpu}"
                    for key in workload_keys
                    if key.gpu == gpu
                }
            )
        )
        report_line(
            f"found {name} in {dtype} on {scale} {gpu}, expected one with a baseline: {hint or 'there is none for this GPU type'}"
        )
        return
    newest_release = max((key.release for key in matching_keys), key=_parse_release)
    without_variant = [
        key
        for key in matching_keys
        if key.release == newest_release
        and not (key.task or key.scaling or key.variant)
    ]
    yield from without_variant or [
        key for key in matching_keys if key.release == newest_release
    ]


def _list_keys_with_names(
    recipes: Sequence[Recipe], release: str
) -> Iterator[tuple[Key, frozenset[str]]]:
    """Yield each key of a release ("": all) with its names in lower case.

    The names are the id, and `MODEL_SIZE` with and without `pretrain_`.
    """
    for recipe in recipes:
        for key in (
            baseline.key
            for baseline in recipe.baselines
            if release in ("", recipe.release)
        ):
            model_names = {
                f"{name}_{key.size}".casefold() for name in (recipe.name, *recipe.names)
            }
            workload_names = (
                f"{task}{name}"
                for task in ("", "pretrain_", "pretraining_")
                for name in model_names
            )
            yield key, frozenset((key.id.casefold(), *workload_names))


def _parse_release(text: str) -> tuple[int, ...]:
    """Return the numbers of a release, for sorting: `25.05.01` is (25, 5, 1)."""
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
