"""The documented folder layouts: facts in the names of the folders above a log.

`LAYOUTS` contains one function for each layout. Only folders inside the innermost
layout describe a run; folders above it (`/ci/profile-results/...`) are the user's. From
these only a GPU type or a release is used, if nothing else states one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import Hint, share_facts
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp

# at the end of a name: `25.05`, `release-24.11.1`, `25.05-nccl-trace`
_RELEASE = compile_on_use(
    r"(?<![\d.])(\d\d\.\d\d[-_.\w]*?)(?:[-_]nccl[-_]?trace)?$", re.IGNORECASE
)
# a whole name: `v25.05`, `llmb-25.05.04`
_RELEASE_FOLDER = compile_on_use(
    r"(?:v|llmb[-_]|release[-_]|gsw[-_])?(\d\d\.\d\d(?:\.\d+)*)", re.IGNORECASE
)
_PRECISION = compile_on_use(names.PRECISION, re.IGNORECASE)
_SIZE = compile_on_use(names.SIZE, re.IGNORECASE)
_GPU_WORD = compile_on_use(rf"(?<![a-z0-9])({names.GPU})(?![a-z0-9])", re.IGNORECASE)


class Layout(Struct, frozen=True, gc=False):
    """The layout of a run's folders."""

    name: str  # results, experiments or workloads; "" if there is no layout
    hints: tuple[Hint, ...]
    inside: tuple[str, ...]  # names of the run's folders, outermost first

    @property
    def experiment(self) -> tuple[str, ...]:
        """The names of the experiment's folder and those below it, () if there is none."""
        for index, name in enumerate(self.inside):
            if names.read_experiment(name, typed=False):
                return self.inside[index:]
        return ()


def read_path_hints(parts: Sequence[str]) -> tuple[Hint, ...]:
    """Return the hints in an absolute path: layout, file name and surroundings.

    Used if only the path of a run is known. The surroundings add only fields that
    layout and file name lack.
    """
    *folders, file = parts
    stem = names.strip_suffix(names.strip_compression(file))
    hints = list(find_layout(parts).hints)
    hints += [
        Hint(field, value, f"file {file}")
        for field, value in names.read_log_name(stem).pairs
    ]
    stated_fields = {hint.field for hint in hints}
    hints += [
        hint
        for hint in find_surroundings(tuple(folders))
        if hint.field not in stated_fields
    ]
    return tuple(hints)


@lru_cache(1024)
def find_surroundings(parts: tuple[str, ...]) -> tuple[Hint, ...]:
    """Return the GPU type and the release of the nearest folder that names them."""
    nearest: dict[str, Hint] = {}
    for folder in reversed(parts):
        for hint in _read_surrounding(folder):
            nearest.setdefault(hint.field, hint)
    return tuple(nearest.values())


@lru_cache(1024)
def _read_surrounding(folder: str) -> tuple[Hint, ...]:
    """Return the GPU type in a folder's name if it contains a single one, and the
    release."""
    hints = []
    gpu_types = {word.lower() for word in _GPU_WORD.findall(folder)}
    if len(gpu_types) == 1:
        [gpu_type] = gpu_types
        hints.append(Hint("gpu", gpu_type, f"folder {folder}"))
    release = _RELEASE_FOLDER.fullmatch(folder)
    if release:
        hints.append(Hint("release", release[1], f"folder {folder}"))
    return tuple(hints)


# --- layouts ---------------------------------------------------------------------------

ReadLayout = Callable[[Sequence[str], int], Layout | None]
"""Reads the layout whose innermost named folder is `parts[index]`; None if no match."""


def _read_results(parts: Sequence[str], index: int) -> Layout | None:
    """Read `results/<release>[-nccl-trace]/<precision>/<size>/<GPUs>`.

    The first two components are optional. `index` is the index of `<GPUs>`.
    """
    start = index - 2  # the index of `<precision>`
    if start < 0:
        return None
    dtype, size, gpus = parts[start : index + 1]
    if not (gpus.isdecimal() and _PRECISION.fullmatch(dtype) and _SIZE.fullmatch(size)):
        return None
    parent = parts[start - 1].lower() if start > 0 else ""
    grandparent = parts[start - 2].lower() if start > 1 else ""
    has_results_folder = "results" in (grandparent, parent)
    release = _RELEASE.search(parts[start - 1]) if start > 0 else None
    # In `results/<other name>/<precision>`, the name takes the place of the release.
    has_middle_folder = release is not None or (
        has_results_folder and parent != "results"
    )
    first = start - 1 if has_middle_folder else start  # first part of the layout
    source = f"folder {'/'.join(parts[first : index + 1])}"
    hints = [
        Hint("dtype", dtype, source),
        Hint("size", size, source),
        Hint("gpus", gpus, source),
    ]
    if release:
        hints.append(Hint("release", release[1], source))
    # Without `results` and a release, other layouts may have the same three folders.
    name = "results" if has_results_folder or release else ""
    return Layout(name, tuple(hints), inside=tuple(parts[first:]))


def _read_experiment_layout(parts: Sequence[str], index: int) -> Layout | None:
    """Read `[workloads/<workload>/]experiments/<experiment>/...`."""
    if parts[index - 1].lower() != "experiments" or not names.read_experiment(
        parts[index], typed=False
    ):
        return None
    name = "workloads" if _is_workload(parts, index - 2) else "experiments"
    hints = share_facts(tuple(_read_experiments(parts[index:], typed=False)))
    return Layout(name, hints, tuple(parts[index:]))


def _read_workload(parts: Sequence[str], index: int) -> Layout | None:
    """Read `workloads/<workload>/...`."""
    if not _is_workload(parts, index):
        return None
    pairs = names.read_workload(parts[index])
    hints = tuple(Hint(*pair, f"folder {parts[index]}") for pair in pairs)
    return Layout("workloads", hints, tuple(parts[index:]))


def _is_workload(parts: Sequence[str], index: int) -> bool:
    """True if a workload's folder is at `index`, below `workloads` or an unpacked
    archive."""
    parent = parts[index - 1].lower() if index > 0 else ""
    if parent != "workloads" and not parent.startswith("llmb-archive-"):
        return False
    return bool(names.read_workload(parts[index]))


LAYOUTS: tuple[ReadLayout, ...] = (
    _read_results,
    _read_experiment_layout,
    _read_workload,
)
"""The layouts, in the order in which they are tried at each folder."""


def _read_experiments(folders: Sequence[str], *, typed: bool) -> Iterator[Hint]:
    """Yield the hints in folder names.

    A name that states the same as the folder above, as in `X/X_<time>`, adds nothing.
    """
    previous_pairs: names.NamePairs = ()
    for name in folders:
        experiment = names.read_experiment(name, typed=typed)
        if experiment and experiment.pairs != previous_pairs:
            yield from _list_folder_hints(name, experiment.pairs)
            previous_pairs = experiment.pairs


@lru_cache(1024)
def _list_folder_hints(name: str, pairs: names.NamePairs) -> tuple[Hint, ...]:
    """Return the hints of a parsed folder name."""
    return tuple(Hint(field, value, f"folder {name}") for field, value in pairs)


def find_layout(parts: Sequence[str]) -> Layout:
    """Return the innermost layout of an absolute path; its name is "" if there is none."""
    for index in range(len(parts) - 1, 0, -1):
        for read_layout in LAYOUTS:
            if layout := read_layout(parts, index):
                return layout
    return _read_without_layout(parts)


def _read_without_layout(parts: Sequence[str]) -> Layout:
    """Read folders without a layout: an experiment's folder may have been moved
    anywhere.

    Without an experiment, only the last folder belongs to the run.
    """
    experiment_indices = (
        index for index, name in enumerate(parts) if names.read_experiment(name)
    )
    start = next(experiment_indices, len(parts) - 1)
    return Layout("", tuple(_read_experiments(parts, typed=True)), tuple(parts[start:]))


# --- launchers -------------------------------------------------------------------------

SBATCH, NEMO_RUN, LOCAL = "sbatch", "nemo-run", "nemo-run-local"
CONFIGURED = "configured-sbatch"

# Launchers by `launcher_type` in the metadata; other values are used unchanged.
LAUNCHERS_BY_NAME = {
    "nemo": NEMO_RUN,
    "configured_sbatch": CONFIGURED,
    "sbatch": SBATCH,
}

_STREAMS = ("combined.log", "stdout.log", "stderr.log")


def find_launcher(stated: str, logs: Sequence[str], folder: str, layout: Layout) -> str:
    """Return the launcher of a run, or "" if unknown.

    The result is sbatch, nemo-run, nemo-run-local, configured-sbatch, or another value
    from the metadata. `stated` is the value in the metadata, `logs` are the names of
    the run's logs, `folder` is the name of their folder.
    """
    if stated:
        name = stated.lower()
        return LAUNCHERS_BY_NAME.get(name) or re.sub(r"[^\w.+-]+", "-", name)
    if logs and all(log in _STREAMS for log in logs) and "nemo_run" in layout.inside:
        return LOCAL
    launched = any(names.is_launched(log) for log in logs)
    if launched and layout.name == "results":
        return SBATCH
    if launched and layout.name in ("experiments", "workloads"):
        return _distinguish_experiment_launcher(logs, folder, layout)
    return ""


def _distinguish_experiment_launcher(
    logs: Sequence[str], folder: str, layout: Layout
) -> str:
    """Distinguish the launchers of an experiment by its folders.

    NeMo-Run creates `<name>/<name>_<time>/<task>/log-*`, configured sbatch
    `<name>/<time>/log-*`; sbatch leaves Slurm's file in a workload's folder.
    """
    folders = layout.experiment
    if len(folders) > 2:
        experiment, launch, *_ = folders
        if launch.startswith(f"{experiment}_"):
            return NEMO_RUN
    if len(folders) == 2 and folder.isdecimal() and read_stamp(folder) is not None:
        return CONFIGURED
    if not folders and all(log.lower().startswith("slurm-") for log in logs):
        return SBATCH
    return ""
