"""Recorded baselines: what this cluster did, as the text of files that read back to the
same numbers."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.baseline.lint import correct_columns
from pytest_llmbench.baseline.read import merge_budgets, read_file, read_recipe
from pytest_llmbench.baseline.render import SharedKeys, format_peak, render_file
from pytest_llmbench.baseline.schema import (
    FILE,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Key,
    Recipe,
    Recording,
    Source,
)
from pytest_llmbench.core.errors import BaselineError, RecordError
from pytest_llmbench.core.tolerance import merge_tolerances
from pytest_llmbench.core.userfile import is_there

PATIENCE_SECONDS = 60.0
"""So long a session waits for another one that records into the same folder, which
takes much less than a second."""

_OWNED = "|".join(key.name for key in FILE if key.is_owned)

# As text, not as values: comments, blank lines and quotes of the owner would not
# survive a YAML library.
_OWN = re.compile(
    rf"^(?:{_OWNED}):[^\n]*\n(?:(?:[ \t#\-][^\n]*)?\n)*", re.MULTILINE | re.ASCII
)
"""The keys of a recorded file that no recording changes, with their lines: they stay as
they are."""

_KEY = re.compile(r"^(\w+):", re.MULTILINE | re.ASCII)

STATISTIC = "trimmed_mean"
"""No single slow step moves it. The mean stands beside it in the file: only that tells
where each sixth step stalls."""


def write_recorded(
    directory: Path,
    recorded: Sequence[tuple[Baseline, Recording]],
    recipes: Iterable[Recipe] = (),
) -> tuple[tuple[Path, dict[Key, str]], ...]:
    """Write <directory>/<recipe>/<release>.yaml for every recipe and release among the
    recordings.

    Each file keeps the other configurations that it already holds, the keys that only
    its owner writes (names, launch) or else what the `recipes` that the session read
    call it (title, framework, names), its tolerances and its budgets: those of the
    whole file apply to what is added, too, and one in the published file only where
    there is none. Returns the paths, each with what became of every value that it
    replaced (`7.331 s -> 7.402 s (+1.0 %)`). Raises RecordError before anything is
    written where a file cannot be merged with (published, unreadable, measured another
    way), and where a place cannot be written.
    """
    # All files are rendered before the first is written: what cannot be merged leaves
    # none half done.
    files = []
    errata = [erratum for recipe in recipes for erratum in recipe.errata]
    corrected = [
        (correct_columns(published, errata), recording)
        for published, recording in recorded
    ]
    for path, baselines in sorted(_group_by_file(directory, corrected).items()):
        existing, shared = _read_existing(path)
        shared = _add_drift_budget(
            _add_names(shared, next(iter(baselines)), recipes), baselines.values()
        )
        replaced = {
            key: _format_change(existing[key].step_seconds, baseline.step_seconds)
            for key, baseline in sorted(baselines.items())
            if key in existing
        }
        # A wider tolerance of what is added must not slip in under configurations that
        # are there already.
        limited = {
            key: _keep_limits(baseline, existing, shared)
            for key, baseline in baselines.items()
        }
        together = {
            key: replace(baseline, drift_budget=shared.drift_budget)
            for key, baseline in {**existing, **limited}.items()
        }
        files.append((path, render_file(path, together, shared), together, replaced))
    for path, text, together, _ in files:
        _write_checked(path, text, together)
    return tuple((path, replaced) for path, _, _, replaced in files)


def find_recorded(
    directory: Path, wanted: Collection[Key], baselines: Iterable[Baseline]
) -> dict[Key, Baseline]:
    """Return what is recorded of these configurations, in the files that
    `write_recorded` would write or, where they have none, among the baselines that are
    `known` to the session, whichever of them it judges against. Raises RecordError for
    a file that cannot be added to."""
    # Recording to another folder does not begin the count of drift anew.
    recorded = {
        baseline.key: baseline
        for baseline in baselines
        if baseline.recording is not None and baseline.key in wanted
    }
    for path in sorted({_make_path(directory, key) for key in wanted}):
        existing, _ = _read_existing(path)
        recorded |= {
            key: baseline for key, baseline in existing.items() if key in wanted
        }
    return recorded


def make_recorded_baseline(published: Baseline, recording: Recording) -> Baseline:
    """Return the baseline that a recording makes of a published one: the trimmed mean
    over the same steps."""
    return replace(
        published,
        kind=BaselineKind.RECORDED,
        step_seconds=float(recording.trimmed_mean_seconds),
        # They are the document's, and stay in its file.
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
    return directory / key.recipe / f"{key.release}.yaml"


def _format_change(before: float, after: float) -> str:
    return f"{before:#.4g} s -> {after:#.4g} s ({formatting.format_difference(after / before)})"


def _add_drift_budget(shared: SharedKeys, baselines: Iterable[Baseline]) -> SharedKeys:
    """Return the limits of a file with the smallest drift budget of what is added,
    where it has none itself."""
    # The smallest: recording must not loosen a gate that one of the files holds
    # tighter.
    stated = [
        baseline.drift_budget
        for baseline in baselines
        if baseline.drift_budget is not None
    ]
    return (
        shared._replace(drift_budget=min(stated))
        if shared.drift_budget is None and stated
        else shared
    )


def _add_names(shared: SharedKeys, key: Key, recipes: Iterable[Recipe]) -> SharedKeys:
    """Return the limits of a file with what its recipe is called, as far as it does not
    say it itself: without its names nothing would match the runs of a recipe that only
    its owner's file describes."""
    import yaml

    same = [
        recipe
        for recipe in recipes
        if (recipe.name, recipe.release) == (key.recipe, key.release)
    ]
    names = list(dict.fromkeys(name for recipe in same for name in recipe.names))
    facts: dict[str, object] = {
        "title": next((recipe.title for recipe in same if recipe.title), ""),
        "framework": next(
            (recipe.framework for recipe in same if recipe.framework), ""
        ),
        "names": [name for name in names if names != [key.recipe]],
        "dp_excludes_ep": any(recipe.dp_excludes_ep for recipe in same),
    }
    # `launch` is not copied from another file: its folders are relative to that one.
    own = set(_KEY.findall(shared.own))
    # A list stands in one line, which YAML would also make of a mapping that holds
    # none.
    text = "".join(
        yaml.safe_dump(
            {name: value},
            allow_unicode=True,
            width=110,
            default_flow_style=None if name == "names" else False,
        )
        for name, value in facts.items()
        if value and name not in own
    )
    return shared._replace(own=f"{text}{shared.own}")


def _group_by_file(
    directory: Path, recorded: Sequence[tuple[Baseline, Recording]]
) -> dict[Path, dict[Key, Baseline]]:
    files: dict[Path, dict[Key, Baseline]] = {}
    for published, recording in recorded:
        key = published.key
        baselines = files.setdefault(_make_path(directory, key), {})
        if key in baselines:
            raise RecordError(f"{key.id}: found two recordings of it, expected one")
        baselines[key] = make_recorded_baseline(published, recording)
    return files


def _read_existing(path: Path) -> tuple[dict[Key, Baseline], SharedKeys]:
    """Return the configurations of a recorded file by key, and the limits that stand
    for the whole file."""
    # A link that leads nowhere is something: it is read, and refused, and never
    # replaced.
    try:
        if not is_there(path, follow_links=False):
            return {}, SharedKeys()
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror}, expected a place that can be read and written"
        ) from error
    if path.is_symlink() and path.exists():
        raise RecordError(
            f"{path}: a link to the file {os.path.realpath(path)}: record into the folder of that file"
        )
    try:
        file = read_file(path)
    except BaselineError as error:
        raise RecordError(
            f"{path} cannot be added to, move it away or record elsewhere:\n{error}"
        ) from error
    recipe = file.recipe
    if recipe.kind is not BaselineKind.RECORDED:
        raise RecordError(
            f"{path}: found a {recipe.kind} baseline file, expected to record elsewhere"
        )
    # One file has one statistic: files of the time when the mean decided are read and
    # judged, and not added to.
    statistic = recipe.baselines[0].window.statistic
    if statistic != STATISTIC:
        judge, expected = statistic.replace("_", " "), STATISTIC.replace("_", " ")
        raise RecordError(
            f"{path}: found baselines judged by the {judge}, expected the {expected}, by which they are recorded now; "
            "move the file away or record elsewhere"
        )
    # A line break is added for a file whose last line has none.
    lines = "".join(_OWN.findall(path.read_text(encoding="utf-8") + "\n")).rstrip("\n")
    shared = SharedKeys(
        file.tolerances, file.budgets, file.drift_budget, f"{lines}\n" if lines else ""
    )
    return {baseline.key: baseline for baseline in recipe.baselines}, shared


def _keep_limits(
    baseline: Baseline, existing: dict[Key, Baseline], shared: SharedKeys
) -> Baseline:
    """Return a new baseline with the tolerances and budgets that its file has for
    it."""
    own = existing.get(baseline.key, shared)
    return replace(
        baseline,
        tolerances=merge_tolerances(baseline.tolerances, own.tolerances),
        budgets=merge_budgets(baseline.budgets, own.budgets),
    )


# --- file -----------------------------------------------------------------------------


@contextmanager
def lock_folder(directory: Path) -> Iterator[None]:
    """Make the folder and hold it: sessions that record side by side read, merge and
    write one after the other, or the last one would put its file in the place of what
    the others added. Raises RecordError for one that cannot be made, and where another
    session does not come to an end.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise RecordError(
            f"{directory}: {error.strerror}, expected a place that can be written"
        ) from error
    try:
        _take_lock(handle, directory)
        yield
    finally:
        os.close(handle)


def _take_lock(handle: int, directory: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise RecordError(
                    f"{directory}: another session has been recording here for {PATIENCE_SECONDS:g} s: nothing is "
                    "written; end that one (`fuser` names it) and record again"
                ) from None
            time.sleep(0.05)
        except OSError:
            # some network file systems have no locks: each file is still written as a
            # whole
            return None


def write_beside(
    path: Path, text: str, verify: Callable[[Path], None] = lambda path: None
) -> None:
    """Write beside a file, let `verify` read that, and only then put it in the file's
    place."""
    # In the same folder, or it could be another file system, where nothing is moved in
    # one step.
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
        with suppress(
            OSError
        ):  # it stays, where the disk is gone; what failed before is told
            temporary.unlink(missing_ok=True)
        raise


def _write_checked(path: Path, text: str, baselines: dict[Key, Baseline]) -> None:
    """Write a file that reads back to these baselines."""

    def verify(written: Path) -> None:
        for baseline in read_recipe(written).baselines:
            if _make_comparable(baseline) != _make_comparable(baselines[baseline.key]):
                raise RecordError(
                    f"{path}: was not written, {baseline.key.id} would not read back to the same numbers"
                )

    try:
        write_beside(path, text, verify)
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror or error}, expected a place that can be written"
        ) from error
    except BaselineError as error:
        raise RecordError(
            f"{path}: was not written, it would not read back:\n{error}"
        ) from error


def _make_comparable(baseline: Baseline) -> tuple[Baseline, str]:
    """Return what a file has to read back to."""
    # No NaN equals another, so a peak that nothing states is compared as written.
    # What a document says beside a recorded value stands in another file.
    comparable = replace(
        baseline, source=Source(""), peak_tflops=0.0, published_seconds=None
    )
    return comparable, format_peak(baseline.peak_tflops)
