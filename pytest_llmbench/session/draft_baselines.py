"""Drafts of baselines for unmatched runs: one for each distinguishable configuration.

Runs belong to one configuration if they have the same path pattern and state the same
facts. A draft matches exactly such runs. A run with another path or other facts matches
no baseline, instead of being judged by a wrong one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.baseline.read import read_recipes
from pytest_llmbench.core.baseline_records import (
    MEGATRON_BRIDGE,
    USUAL_WINDOW,
    Architecture,
    Baseline,
    BaselineKind,
    Configuration,
    Key,
    Recipe,
    RunMatch,
    Source,
)
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.formatting import count_noun, join_first
from pytest_llmbench.core.gpus import find_peak
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.run_records import Identity, Run
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.runs.discover.path_patterns import make_pattern
from pytest_llmbench.runs.discover.run_facts import collect_facts, list_parts
from pytest_llmbench.runs.measure.attempts import Choice, choose_segment
from pytest_llmbench.runs.measure.validity import UNKNOWN_STEPS, count_expected_steps
from pytest_llmbench.runs.measure.window import choose_window
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.described_run import (
    NO_NAMES,
    UNKNOWN,
    StatedNames,
    StatedRun,
    describe_run,
    name_model,
)
from pytest_llmbench.session.settings import Settings

OWN = "own"
"""The release of drafted baselines."""


class Draft(Struct, frozen=True):
    """A drafted baseline without a value, with its runs and its description."""

    recipe: Recipe
    runs: tuple[Run, ...]
    lines: tuple[str, ...]

    @property
    def baseline(self) -> Baseline:
        """The only baseline of the recipe."""
        return self.recipe.baselines[0]


class Drafts(Struct, frozen=True):
    """The drafts of a session, and the runs without a draft, with the reasons."""

    drafts: tuple[Draft, ...]
    refused: tuple[str, ...]

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes of the drafts, as if read from baseline files."""
        return tuple(draft.recipe for draft in self.drafts)

    @property
    def lines(self) -> tuple[str, ...]:
        """The description of all drafts and refused runs."""
        draft_lines = [line for draft in self.drafts for line in draft.lines]
        return (*draft_lines, *self.refused)

    def group_by_file(self, directory: Path) -> dict[Path, list[Draft]]:
        """Group the drafts by the baseline file in `directory` that they belong to."""
        files: dict[Path, list[Draft]] = defaultdict(list)
        for draft in self.drafts:
            files[directory / draft.recipe.path].append(draft)
        return dict(sorted(files.items()))

    def add_to(self, catalog: Catalog) -> Catalog:
        """Return a catalog with the drafts added."""
        drafted = {draft.baseline.key: (draft.baseline,) for draft in self.drafts}
        return replace(
            catalog,
            recipes=(*catalog.recipes, *self.recipes),
            baselines={**catalog.baselines, **drafted},
        )

    def assign(self, runs: Iterable[Run]) -> tuple[Run, ...]:
        """Return `runs`; runs with a draft get the configuration of the draft."""
        identities: dict[int, Identity] = {}
        for draft in self.drafts:
            identity = Identity(draft.baseline.key, "a baseline was drafted from it")
            identities |= {id(run): identity for run in draft.runs}
        return tuple(
            replace(run, identity=identities.get(id(run), run.identity)) for run in runs
        )


def draft_baselines(
    runs: Sequence[Run],
    settings: Settings,
    catalog: Catalog,
    stated: StatedNames = NO_NAMES,
) -> Drafts:
    """Draft baselines for the unmatched runs.

    A run that may belong to an existing baseline gets no draft, unless the baseline is
    a row of a shipped table.
    """
    groups: dict[tuple[str, RunMatch], list[Run]] = defaultdict(list)
    refusals = []
    for run in runs:
        if run.identity.key is not None:
            continue
        reason = _explain_no_draft(run)
        if reason:
            refusals.append(f"{run.id}: no baseline was drafted: {reason}")
            continue
        logs = [attempt.log for attempt in run.attempts]
        groups[_find_dialect(logs), _make_match(run, logs, settings)].append(run)
    existing = {key: baselines[0] for key, baselines in catalog.baselines.items()}
    drafts = []
    for (dialect, match), group_runs in groups.items():
        facts = describe_run(group_runs[0], settings.gpu, stated)
        baseline = _make_baseline(
            group_runs, dialect, match, facts, _list_peaks(catalog)
        )
        baseline = _make_key_unique(baseline, facts, existing)
        existing[baseline.key] = baseline
        drafts.append(_make_draft(baseline, group_runs, facts))
    return Drafts(tuple(drafts), (*_list_similar_paths(drafts), *refusals))


def add_recorded(catalog: Catalog, directory: Path) -> Catalog:
    """Return a catalog with the baselines that were recorded from drafts in a folder.

    Further runs of these configurations are then recorded under the same names.
    """
    try:
        recipes = read_recipes([directory]) if directory.is_dir() else ()
    except BaselineError:
        # A folder with damaged files is reported when the session records into it.
        return catalog
    # Baselines that were drafted from runs have `match`.
    recorded = {
        baseline.key: (baseline,)
        for recipe in recipes
        for baseline in recipe.baselines
        if baseline.match and baseline.key not in catalog.baselines
    }
    added = tuple(
        recipe
        for recipe in recipes
        if any(baseline.key in recorded for baseline in recipe.baselines)
    )
    return replace(
        catalog,
        recipes=(*catalog.recipes, *added),
        baselines={**catalog.baselines, **recorded},
    )


def _list_similar_paths(drafts: Sequence[Draft]) -> Iterator[str]:
    """Yield a message for drafts whose paths differ only in numbers.

    Such a number may identify a run, like a job id, or a configuration.
    """
    ids_by_path: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for draft in drafts:
        match = draft.baseline.match
        if match is not None:
            ids_by_path[re.sub(r"\d+", "#", match.path), match.says].append(
                draft.baseline.key.id
            )
    for (path, _), ids in ids_by_path.items():
        if len(ids) > 1:
            yield f"{join_first(ids)} differ only in a number of their path: if they are one configuration, write `path: {path}`"


def _explain_no_draft(run: Run) -> str:
    """Return the reason to draft no baseline from a run, or ""."""
    # A run that may belong to several rows of a table still gets a draft, so that the
    # user need not decide on the row first.
    may_have_baseline = not run.identity.fits_none and any(
        key.recipe != MEGATRON_BRIDGE for key in run.identity.candidates
    )
    if may_have_baseline:
        return run.identity.because
    if run.found.excluded is not None:
        return run.found.excluded_because
    logs = [attempt.log for attempt in run.attempts]
    if not any(len(segment.steps) for log in logs for segment in log.segments):
        return "its log has no training step"
    if _find_dialect(logs) not in (*DIALECTS, *load_definitions()):
        return "a baseline file defines its log format: give the run the name of that file's recipe"
    return ""


def _find_dialect(logs: Sequence[ParsedLog]) -> str:
    """Return the dialect of the last log with steps, or ""."""
    return next(
        (log.dialect for log in reversed(logs) if log.dialect and log.segments), ""
    )


def _make_match(run: Run, logs: Sequence[ParsedLog], settings: Settings) -> RunMatch:
    """Return the path pattern and the facts that runs of the same configuration share.

    The pattern is relative to the path of `settings.logs` that contains the run, but
    contains at least the log's folder and name.
    """
    components = list_parts(run.found)
    folder = run.found.attempts[0].log.parent
    # A given path may contain `..` or links; folders are walked under their real path.
    roots = {*settings.logs, *(path.resolve() for path in settings.logs)}
    depth = max(
        (len(root.parts) for root in roots if root in (folder, *folder.parents)),
        default=len(components),
    )
    # A file name such as train.log is ambiguous, so the pattern includes its folder.
    relative = components[depth:] if len(components) - depth > 1 else components[-2:]
    facts = collect_facts(run.found, logs)
    path = make_pattern(relative, run.found.job_id)
    return RunMatch(path, tuple((fact.name, fact.text) for fact in facts))


def _list_peaks(catalog: Catalog) -> dict[tuple[str, str], float]:
    """Return the peak TFLOP/s in baseline files, by (GPU type, precision)."""
    stated = (
        (key, baselines[0].peak_tflops) for key, baselines in catalog.baselines.items()
    )
    return {(key.gpu, key.dtype): peak for key, peak in stated if not math.isnan(peak)}


def _make_baseline(
    runs: Sequence[Run],
    dialect: str,
    match: RunMatch,
    described: StatedRun,
    peaks: Mapping[tuple[str, str], float],
) -> Baseline:
    """Draft a baseline without a value for runs of one configuration."""
    choice = _choose_segment(runs)
    recipe, size = name_model(described, match.path, dialect)
    gpu, dtype = described.get_text("gpu"), described.get_text("dtype")
    key = Key(
        recipe,
        size,
        OWN,
        gpu,
        dtype,
        described.get_number("gpus") or 0,
        task=described.get_text("task", ""),
    )
    configuration = Configuration(
        key,
        Architecture(
            "none",
            described.get_number("sequence_length") or 0,
            described.get_number("layers") or 0,
        ),
        described.parallelism,
        described.get_number("global_batch_size") or 0,
        described.get_number("micro_batch_size"),
    )
    window, *_ = choose_window(choice.segment)
    return Baseline(
        configuration=configuration,
        kind=BaselineKind.RECIPE,
        step_seconds=math.nan,
        cells=(),
        window=window,
        timed="mean",
        steps=count_expected_steps(choice),
        dialect=dialect,
        peak_tflops=find_peak(gpu, dtype) or peaks.get((gpu, dtype), math.nan),
        source=Source(f"runs at {match.path}"),
        match=match,
    )


def _choose_segment(runs: Sequence[Run]) -> Choice:
    """Return the judged segment of the newest run with a known number of steps.

    If no run has one, returns that of the newest run.
    """
    candidates = (
        choose_segment(run.attempts, USUAL_WINDOW, UNKNOWN_STEPS) for run in runs
    )
    choices = [
        choice
        for choice in candidates
        if choice is not None and len(choice.segment.steps)
    ]
    return next(
        (choice for choice in choices if count_expected_steps(choice) != UNKNOWN_STEPS),
        choices[0],
    )


def _make_key_unique(
    baseline: Baseline, described: StatedRun, existing: Mapping[Key, Baseline]
) -> Baseline:
    """Give a drafted baseline a key that no existing baseline has.

    All baselines of one file have the same dialect, number of steps and window. A draft
    that differs in these gets another release, which is another file. Within a file,
    drafts are distinguished by their variant.
    """
    key, shared_values = baseline.key, _get_shared_values(baseline)
    numbers = range(2, len(existing) + 3)  # more numbers than baselines: one is free
    releases = [OWN, *[f"{OWN}-{number}" for number in numbers]]
    # The first release of the recipe whose file has the same values, or no file.
    others = [other for other in existing.values() if other.key.recipe == key.recipe]
    occupied_releases = {
        other.key.release
        for other in others
        if _get_shared_values(other) != shared_values
    }
    free_releases = [name for name in releases if name not in occupied_releases]
    key = replace(key, release=free_releases[0])
    # The first variant that no key of this release has.
    variants = ["", described.summarise(), *[f"v{number}" for number in numbers]]
    keys = [replace(key, variant=variant) for variant in variants]
    key = next(candidate for candidate in keys if candidate not in existing)
    return replace(baseline, configuration=replace(baseline.configuration, key=key))


def _get_shared_values(baseline: Baseline) -> tuple[object, ...]:
    """Return the values that all baselines of one file share: dialect, steps, window."""
    first_and_last = baseline.window[:2]
    return baseline.dialect, baseline.steps, first_and_last


def _make_draft(baseline: Baseline, runs: Sequence[Run], facts: StatedRun) -> Draft:
    """Put a drafted baseline into a recipe, and describe it in lines of text."""
    key = baseline.key
    recipe = Recipe(
        name=key.recipe,
        release=key.release,
        kind=BaselineKind.RECIPE,
        title=f"{key.recipe}, drafted from runs",
        framework=facts.get_text("framework", baseline.dialect),
        dialect=baseline.dialect,
        names=(key.recipe,),
        layout="",
        baselines=(baseline,),
        errata=(),
        launch=(),
        path=Path(key.recipe, f"{key.release}.yaml"),
    )
    match = baseline.match
    lines = [
        f"{key.id}: {count_noun(len(runs), 'run')} at {match.path if match else ''}"
    ]
    if facts.found:
        lines.append(f"  found {join_first(facts.found, 99)}")
    lines += [f"  conflicting values of {conflict}" for conflict in facts.conflicts]
    unknown = facts.list_unknown()
    if unknown:
        lines.append(
            f"  unknown: {', '.join(unknown)}; runs with other values cannot be distinguished"
        )
    return Draft(recipe, tuple(runs), tuple(lines))


__all__ = ["UNKNOWN", "Draft", "Drafts", "draft_baselines"]
