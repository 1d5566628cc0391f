"""Write baseline files that are made from runs.

Recorded files read back to the same numbers. Drafts have no times yet.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from pytest_llmbench.baseline.lint import correct_columns
from pytest_llmbench.baseline.read import merge_budgets, read_file, read_recipe
from pytest_llmbench.baseline.schema import (
    CONFIGURATION,
    FILE,
    MODEL,
    NO_PEAK,
    RECORDED,
    KeyDefinition,
    format_decimal,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Budget,
    Key,
    Recipe,
    Recording,
    Source,
    Tolerance,
)
from pytest_llmbench.core.errors import BaselineError, RecordError
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.tolerance import merge_tolerances
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.core.yamlfile import Fields, Items, Names, Number, Spec, Text

PATIENCE_SECONDS = 60.0
"""Seconds to wait for another session that records into the same folder, which takes
much less than a second."""

_OWNED = "|".join(key.name for key in FILE if key.is_owned)

# Matched as text: a YAML library would drop comments, blank lines and quotes.
_OWNER_KEYS = compile_on_use(
    rf"^(?:{_OWNED}):[^\n]*\n(?:(?:[ \t#\-][^\n]*)?\n)*", re.MULTILINE | re.ASCII
)
"""Keys of a recorded file that recording never changes, with their lines.

A key such as `launch:` extends over all following lines that are empty, indented, a
comment or a list item.
"""

_KEY = compile_on_use(r"^(\w+):", re.MULTILINE | re.ASCII)

STATISTIC = "trimmed_mean"
"""Recorded statistic, which no single slow step moves. The file also states the mean,
which shows regular stalls."""


class SharedKeys(NamedTuple):
    """Limits and other keys of a whole file.

    `owner_text` contains the keys that the file's owner writes (names, launch).
    """

    tolerances: tuple[Tolerance, ...] = ()
    budgets: tuple[Budget, ...] = ()
    drift_budget: float | None = None
    owner_text: str = ""


def write_recorded(
    directory: Path,
    recorded: Sequence[tuple[Baseline, Recording]],
    recipes: Iterable[Recipe] = (),
) -> tuple[tuple[Path, dict[Key, str]], ...]:
    """Write <directory>/<recipe>/<release>.yaml for every recorded recipe and release.

    A file keeps its other configurations, tolerances, budgets and the keys of its owner
    (names, launch). Missing keys of the owner (title, framework, names) are taken from
    the `recipes` of the session. Limits of the whole file also apply to added
    configurations; limits of the published file are used only if there are none.

    Returns the paths, each with the change of every replaced value (`7.331 s -> 7.402 s
    (+1.0 %)`). Raises RecordError, before writing anything, if a file cannot be merged
    with (published, unreadable, measured differently) or a path cannot be written.
    """
    # Render all files before writing the first, so that an error leaves none half done.
    files = []
    errata = [erratum for recipe in recipes for erratum in recipe.errata]
    corrected = [
        (correct_columns(published, errata), recording)
        for published, recording in recorded
    ]
    for path, baselines in sorted(_group_by_file(directory, corrected).items()):
        existing, shared = _read_existing(path)
        # All keys have the recipe and release of the file.
        first_key = next(iter(baselines))
        shared = _add_names(shared, first_key, recipes)
        shared = _add_drift_budget(shared, baselines.values())
        # The replaced values, for the caller.
        changes = {
            key: _format_change(
                old_seconds=existing[key].step_seconds,
                new_seconds=baseline.step_seconds,
            )
            for key, baseline in sorted(baselines.items())
            if key in existing
        }
        # A wider tolerance of an added configuration must not affect existing ones.
        with_limits = {
            key: _apply_shared_limits(baseline, existing, shared)
            for key, baseline in baselines.items()
        }
        merged = {
            key: replace(baseline, drift_budget=shared.drift_budget)
            for key, baseline in {**existing, **with_limits}.items()
        }
        text = render_file(path, merged, shared)
        files.append((path, text, merged, changes))
    for path, text, merged, _ in files:
        _write_checked(path, text, merged)
    return tuple((path, changes) for path, _, _, changes in files)


def find_recorded(
    directory: Path, keys: Collection[Key], baselines: Iterable[Baseline]
) -> dict[Key, Baseline]:
    """Find the recorded baselines of the configurations `keys`.

    Searches the files that `write_recorded` would write, then all `baselines` of the
    session, also those that it does not judge against. Raises RecordError for a file
    that cannot be extended.
    """
    # Recording into another folder must not restart the drift budget.
    recorded = {
        baseline.key: baseline
        for baseline in baselines
        if baseline.recording is not None and baseline.key in keys
    }
    for path in sorted({_make_path(directory, key) for key in keys}):
        existing, _ = _read_existing(path)
        recorded |= {key: baseline for key, baseline in existing.items() if key in keys}
    return recorded


def make_recorded_baseline(published: Baseline, recording: Recording) -> Baseline:
    """Make a recorded baseline from a published one.

    It uses the trimmed mean over the same steps.
    """
    return replace(
        published,
        kind=BaselineKind.RECORDED,
        step_seconds=float(recording.trimmed_mean_seconds),
        # The cells belong to the document and stay in its file.
        cells=(),
        configuration=replace(published.configuration, arguments=()),
        window=published.window._replace(statistic=STATISTIC),
        timed=STATISTIC,
        timed_window=None,
        tolerances=merge_tolerances(published.tolerances),
        budgets=merge_budgets(published.budgets),
        recording=recording,
        resolution_seconds=0.0,
    )


def _make_path(directory: Path, key: Key) -> Path:
    """Return the path of the recorded file for a configuration."""
    return directory / key.recipe / f"{key.release}.yaml"


def _format_change(old_seconds: float, new_seconds: float) -> str:
    """Return `7.331 s -> 7.402 s (+1.0 %)`."""
    change = formatting.format_difference(new_seconds / old_seconds)
    return f"{old_seconds:#.4g} s -> {new_seconds:#.4g} s ({change})"


def _add_drift_budget(shared: SharedKeys, baselines: Iterable[Baseline]) -> SharedKeys:
    """Add the smallest drift budget of the added baselines.

    Only if the file has none.
    """
    budgets = [
        baseline.drift_budget
        for baseline in baselines
        if baseline.drift_budget is not None
    ]
    if shared.drift_budget is not None or not budgets:
        return shared
    # The smallest: recording must not loosen the limit of another file.
    return shared._replace(drift_budget=min(budgets))


def _add_names(shared: SharedKeys, key: Key, recipes: Iterable[Recipe]) -> SharedKeys:
    """Copy names, title, framework and `dp_excludes_ep` from the matching `recipes`.

    Only keys that the file to be written lacks are copied. Without the names, runs
    would match nothing once this is the only file of the recipe.
    """
    import yaml

    matching = [
        recipe
        for recipe in recipes
        if (recipe.name, recipe.release) == (key.recipe, key.release)
    ]
    titles = [recipe.title for recipe in matching if recipe.title]
    frameworks = [recipe.framework for recipe in matching if recipe.framework]
    names = list(dict.fromkeys(name for recipe in matching for name in recipe.names))
    # `launch` is not taken from another file, because its folders are relative to that
    # file.
    values: dict[str, object] = {
        "title": titles[0] if titles else "",
        "framework": frameworks[0] if frameworks else "",
        # Without names, runs are named like the recipe.
        "names": names if names != [key.recipe] else [],
        "dp_excludes_ep": any(recipe.dp_excludes_ep for recipe in matching),
    }
    stated_keys = set(_KEY.findall(shared.owner_text))
    added_lines = []
    for name, value in values.items():
        if not value or name in stated_keys:
            continue
        # Only the list is written in one line (`names: [a, b]`); None would also write
        # `{title: A}`.
        flow_style = None if name == "names" else False
        added_lines.append(
            yaml.safe_dump(
                {name: value},
                allow_unicode=True,
                width=110,
                default_flow_style=flow_style,
            )
        )
    return shared._replace(owner_text=f"{''.join(added_lines)}{shared.owner_text}")


def _group_by_file(
    directory: Path, recorded: Sequence[tuple[Baseline, Recording]]
) -> dict[Path, dict[Key, Baseline]]:
    """Make the recorded baselines, grouped by the file that they are written to.

    Raises RecordError for two recordings of one configuration.
    """
    files: dict[Path, dict[Key, Baseline]] = {}
    for published, recording in recorded:
        key = published.key
        baselines = files.setdefault(_make_path(directory, key), {})
        if key in baselines:
            raise RecordError(f"{key.id}: found two recordings, expected one")
        baselines[key] = make_recorded_baseline(published, recording)
    return files


def _read_existing(path: Path) -> tuple[dict[Key, Baseline], SharedKeys]:
    """Read the configurations of a recorded file, and its shared values.

    Both are empty if there is no file. Raises RecordError for a file that cannot be
    extended.
    """
    # A dangling symlink counts as existing: refuse it instead of replacing it.
    try:
        if not path_exists(path, follow_links=False):
            return {}, SharedKeys()
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror}, expected a readable and writable path"
        ) from error
    if path.is_symlink() and path.exists():
        raise RecordError(
            f"{path}: this is a link to {os.path.realpath(path)}; record into the folder of that file"
        )
    try:
        file = read_file(path)
    except BaselineError as error:
        raise RecordError(
            f"{path}: cannot add to this file; move it away or record elsewhere:\n{error}"
        ) from error
    recipe = file.recipe
    if recipe.kind is not BaselineKind.RECORDED:
        raise RecordError(
            f"{path}: found a {recipe.kind} baseline file, expected a recorded one; record into another folder"
        )
    # A file has one statistic. Older files that use the mean stay readable but cannot
    # be extended.
    statistic = recipe.baselines[0].window.statistic
    if statistic != STATISTIC:
        found, expected = statistic.replace("_", " "), STATISTIC.replace("_", " ")
        raise RecordError(
            f"{path}: the baselines in this file use the {found}, but this session records the {expected}; "
            "move the file away, or record into another folder"
        )
    # Add a line break in case the last line has none.
    text = path.read_text(encoding="utf-8") + "\n"
    owner_lines = "".join(_OWNER_KEYS.findall(text)).rstrip("\n")
    shared = SharedKeys(
        file.tolerances,
        file.budgets,
        file.drift_budget,
        owner_text=f"{owner_lines}\n" if owner_lines else "",
    )
    return {baseline.key: baseline for baseline in recipe.baselines}, shared


def _apply_shared_limits(
    baseline: Baseline, existing: dict[Key, Baseline], shared: SharedKeys
) -> Baseline:
    """Apply the tolerances and budgets of the file to a new baseline.

    A baseline that replaces an `existing` one takes the limits of that one.
    """
    limits = existing.get(baseline.key, shared)
    return replace(
        baseline,
        tolerances=merge_tolerances(baseline.tolerances, limits.tolerances),
        budgets=merge_budgets(baseline.budgets, limits.budgets),
    )


# --- file -----------------------------------------------------------------------------


@contextmanager
def lock_folder(directory: Path) -> Iterator[None]:
    """Create and lock a folder.

    Sessions that record concurrently read, merge and write one after the other, so that
    none overwrites the additions of another. Raises RecordError if the folder cannot be
    created, or if another session holds the lock for too long.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise RecordError(
            f"{directory}: {error.strerror}, expected a writable path"
        ) from error
    try:
        _acquire_lock(handle, directory)
        yield
    finally:
        os.close(handle)


def _acquire_lock(handle: int, directory: Path) -> None:
    """Wait for the lock of a folder. Raises RecordError after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise RecordError(
                    f"{directory}: another session has been recording here for {PATIENCE_SECONDS:g} s: nothing was "
                    "written; end that session (find it with `fuser`) and record again"
                ) from None
            time.sleep(0.05)
        except OSError:
            # Some network file systems have no locks. Each file is still replaced
            # atomically.
            return


def write_atomically(
    path: Path, text: str, verify: Callable[[Path], None] = lambda path: None
) -> None:
    """Write a temporary file in the same folder, verify it, then replace `path`.

    Creates the folder. If `verify` raises an error, `path` stays as it was.
    """
    # In the same folder, because a file cannot be replaced atomically across file
    # systems.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        verify(temporary)
        temporary.replace(path)
    except BaseException:
        # The first error is reported, not a failure to remove the temporary file.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _write_checked(path: Path, text: str, baselines: dict[Key, Baseline]) -> None:
    """Write a file and verify that it reads back to these baselines."""

    def verify(written: Path) -> None:
        """Raise RecordError if a baseline reads back differently."""
        for baseline in read_recipe(written).baselines:
            expected = baselines[baseline.key]
            if _make_comparable(baseline) != _make_comparable(expected):
                raise RecordError(
                    f"{path}: not written: {baseline.key.id} would not read back to the same numbers"
                )

    try:
        write_atomically(path, text, verify)
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror or error}, expected a writable path"
        ) from error
    except BaselineError as error:
        raise RecordError(
            f"{path}: not written: it would not read back:\n{error}"
        ) from error


def _make_comparable(baseline: Baseline) -> tuple[Baseline, str]:
    """Return the part of a baseline that must read back equal."""
    # NaN is never equal, so an unknown peak is compared as text. The published value is
    # stored in another file.
    comparable = replace(
        baseline, source=Source(""), peak_tflops=0.0, published_seconds=None
    )
    return comparable, format_peak(baseline.peak_tflops)


# --- text -----------------------------------------------------------------------------


def render_file(
    path: Path, baselines: Mapping[Key, Baseline], shared: SharedKeys
) -> str:
    """Render a recorded file.

    Raises RecordError if the configurations were measured differently.
    """
    document = _render_document(
        path,
        baselines,
        shared,
        render_row=lambda baseline: _render_row(baseline, shared),
        owner_keys={},
    )
    title = "# Recorded by pytest --llmb-record; docs/reference/baseline-files.md explains the keys."
    return f"{title}\n{document}{shared.owner_text}"


def render_draft(path: Path, recipes: Sequence[Recipe], remarks: Sequence[str]) -> str:
    """Render a draft: a file of kind recipe, whose configurations have no times yet.

    All recipes have the same name and release. `remarks` become comments at the top.
    """
    first_recipe = recipes[0]
    baselines = {
        baseline.key: baseline for recipe in recipes for baseline in recipe.baselines
    }
    owner_keys = {
        "title": first_recipe.title,
        "framework": first_recipe.framework,
        "names": list(first_recipe.names),
    }
    remark_lines = [line for remark in remarks for line in remark.splitlines()]
    comments = "".join(f"# {line}\n" for line in remark_lines)
    document = _render_document(
        path,
        baselines,
        SharedKeys(),
        render_row=lambda baseline: _render_keys(CONFIGURATION, baseline),
        owner_keys=owner_keys,
    )
    title = "# Drafted from runs: see docs/how-to/record-your-own-runs.md"
    return f"{title}\n{comments}{document}"


def _render_document(
    path: Path,
    baselines: Mapping[Key, Baseline],
    shared: SharedKeys,
    *,
    render_row: Callable[[Baseline], dict[str, Any]],
    owner_keys: Mapping[str, Any],
) -> str:
    """Render the YAML of a file.

    `render_row` returns the keys of one configuration. `owner_keys` are further keys of
    the whole file. Raises RecordError if the configurations were measured differently.
    """
    import yaml

    ordered = [baselines[key] for key in sorted(baselines)]
    stated_peaks = (
        ((baseline.key.gpu, baseline.key.dtype), format_peak(baseline.peak_tflops))
        for baseline in ordered
    )
    peak_by_type = _map_unambiguous(path, "peak TFLOP/s", stated_peaks)
    peaks: dict[str, dict[str, str]] = {}
    for (gpu, dtype), peak in peak_by_type.items():
        peaks.setdefault(gpu, {})[dtype] = peak
    document = {
        "schema": 1,
        **_render_head(path, ordered, shared),
        **owner_keys,
        "peak_tflops": peaks,
        "models": _render_models(path, ordered),
        "configurations": [render_row(baseline) for baseline in ordered],
    }
    # `None` writes a mapping of scalars in one line, so that a diff shows rows. YAML
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
    """Render the keys of the whole file, with the source of the last baseline.

    Raises RecordError if configurations were measured differently.
    """
    # The keys of the file state the limits of the file, not those of one baseline.
    with_limits = [
        replace(baseline, tolerances=shared.tolerances, budgets=shared.budgets)
        for baseline in baselines
    ]
    heads = [_render_keys(FILE, baseline) for baseline in with_limits]
    first_head, last_head = heads[0], heads[-1]
    first_id = baselines[0].key.id
    for head, baseline in zip(heads, baselines, strict=True):
        for name in {**first_head, **head}:
            value, first_value = head.get(name), first_head.get(name)
            # Another window must not affect the configurations that exist already.
            if name != "source" and value != first_value:
                raise RecordError(
                    f"{path}: found {name} {value} for {baseline.key.id} and {first_value} for "
                    f"{first_id}, expected one for the whole file; record into another folder"
                )
    return last_head


def _render_models(
    path: Path, baselines: Sequence[Baseline]
) -> dict[str, dict[str, Any]]:
    """Render the models by size. Raises RecordError if a size has several models."""
    # A proxy's formula is not rounded. If the file contains the full model, its formula
    # is used for both: "llama:3" of the model, although the proxy states "llama".
    proxies_last = sorted(baselines, key=lambda baseline: baseline.configuration.proxy)
    formulas: dict[str, str] = {}
    for baseline in proxies_last:
        formula = baseline.configuration.architecture.formula
        first = formulas.setdefault(baseline.key.size, formula)
        unrounded, _, _ = first.partition(":")
        is_unrounded_proxy = baseline.configuration.proxy and formula == unrounded
        if formula != first and not is_unrounded_proxy:
            raise RecordError(
                f"{path}: found FLOPs formulas {first} and {formula} of {baseline.key.size}, expected one"
            )
    stated_models = (
        (baseline.key.size, _render_keys(MODEL, baseline)) for baseline in baselines
    )
    models = _map_unambiguous(path, "model", stated_models)
    return {
        size: {"formula": formulas[size], **sizes} for size, sizes in models.items()
    }


def _map_unambiguous(
    path: Path, quantity: str, pairs: Iterable[tuple[Any, Any]]
) -> dict[Any, Any]:
    """Map each name to its value. Raises RecordError if a name has several values.

    `quantity` describes the values in the message.
    """
    value_by_name: dict[Any, Any] = {}
    for name, value in pairs:
        first_value = value_by_name.setdefault(name, value)
        if first_value != value:
            raise RecordError(
                f"{path}: found {quantity} {value} and {first_value} for {name}, expected one"
            )
    return value_by_name


def _render_row(baseline: Baseline, shared: SharedKeys) -> dict[str, Any]:
    """Render a recorded configuration, without the limits of the whole file."""
    specific = replace(
        baseline,
        tolerances=tuple(
            limit for limit in baseline.tolerances if limit not in shared.tolerances
        ),
        budgets=tuple(
            budget for budget in baseline.budgets if budget not in shared.budgets
        ),
    )
    return {
        **_render_keys(CONFIGURATION, specific),
        "recorded": _render_keys(RECORDED, baseline),
    }


def _render_keys(keys: Iterable[KeyDefinition], baseline: Baseline) -> dict[str, Any]:
    """Render the keys that a recorded file states for a baseline.

    Empty values are omitted unless required.
    """
    rendered: dict[str, Any] = {}
    for key in keys:
        if not key.field or BaselineKind.RECORDED not in key.allowed_in:
            continue
        value = attrgetter(key.field)(baseline)
        if value is None:
            continue
        plain = key.write(value) if key.write else _to_yaml_types(key.spec, value)
        if plain or key.required_in:
            rendered[key.name] = plain
    return rendered


def _to_yaml_types(spec: Spec, value: Any) -> Any:
    """Convert a value to the types that YAML writes, such as numpy numbers."""
    if isinstance(spec, Number):
        return int(value) if spec.whole else float(value)
    if isinstance(spec, Items):
        return [_to_yaml_types(spec.item, item) for item in value]
    if isinstance(spec, Fields):
        # The value is a record, such as `AcceptedValue`.
        specs = {**spec.required, **spec.optional}
        stated = {name: getattr(value, name, None) for name in specs}
        return {
            name: _to_yaml_types(specs[name], field)
            for name, field in stated.items()
            if field not in ("", None)
        }
    if isinstance(spec, Names):
        return dict(value)
    return str(value) if isinstance(spec, Text) else value


def format_peak(peak: float) -> str:
    """Format a peak as in a file."""
    return NO_PEAK if math.isnan(peak) else format_decimal(peak)
