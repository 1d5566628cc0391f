"""The documented layouts of folders: what the names of the folders above a log say of
its run.

A layout is a function of `LAYOUTS`. Only the folders inside the innermost layout speak
of a run; what stands above it (`/ci/profile-results/...`) is somebody's filing. Of
that, a GPU type or a release is used if nothing else names one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pytest_llmbench.core.run_records import Hint
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp

_RELEASE = re.compile(
    r"(?<![\d.])(\d\d\.\d\d[-_.\w]*?)(?:[-_]nccl[-_]?trace)?$", re.IGNORECASE
)
_RELEASE_FOLDER = re.compile(
    r"(?:v|llmb[-_]|release[-_]|gsw[-_])?(\d\d\.\d\d(?:\.\d+)*)", re.IGNORECASE
)
_PRECISION = re.compile(names.PRECISION, re.IGNORECASE)
_SIZE = re.compile(names.SIZE, re.IGNORECASE)
_GPU_WORD = re.compile(rf"(?<![a-z0-9])({names.GPU})(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the folders of a run say."""

    name: str  # results, experiments, workloads; empty where they form none
    hints: tuple[Hint, ...]
    inside: tuple[
        str, ...
    ]  # the names of the folders that belong to the run, outermost first

    @property
    def experiment(self) -> tuple[str, ...]:
        """The names of the experiment's folder and of those below it; none where no
        folder is an experiment's."""
        places = (
            place
            for place, name in enumerate(self.inside)
            if names.read_experiment(name, typed=False)
        )
        return self.inside[next(places, len(self.inside)) :]


def read_path_hints(parts: Sequence[str]) -> tuple[Hint, ...]:
    """Return what the names of an absolute path say of the run that stands there, which
    may be all that is known of it: folders, file, and of the surroundings what nothing
    else says."""
    name = parts[-1]
    of_file = names.read_log_name(
        names.strip_suffix(names.strip_compression(name))
    ).pairs
    hints = (
        *find_layout(parts).hints,
        *(Hint(field, value, f"file {name}") for field, value in of_file),
    )
    fields = {hint.field for hint in hints}
    return (
        *hints,
        *(
            hint
            for hint in find_surroundings(tuple(parts[:-1]))
            if hint.field not in fields
        ),
    )


@lru_cache(1024)
def find_surroundings(parts: tuple[str, ...]) -> tuple[Hint, ...]:
    """Return the GPU type and the release that the nearest folder of a path names, for
    where nothing else does."""
    nearest: dict[str, Hint] = {}
    for part in reversed(parts):
        for hint in _read_surrounding(part):
            nearest.setdefault(hint.field, hint)
    return tuple(nearest.values())


@lru_cache(1024)
def _read_surrounding(part: str) -> tuple[Hint, ...]:
    gpus = {word.lower() for word in _GPU_WORD.findall(part)}
    release = _RELEASE_FOLDER.fullmatch(part)
    return (
        *(Hint("gpu", gpu, f"folder {part}") for gpu in gpus if len(gpus) == 1),
        *((Hint("release", release[1], f"folder {part}"),) if release else ()),
    )


# --- layouts ---------------------------------------------------------------------------

ReadLayout = Callable[[Sequence[str], int], Layout | None]
"""Reads the layout whose innermost named folder is at an index of the parts of a path;
None if the names are not those of the layout."""


def _read_results(parts: Sequence[str], place: int) -> Layout | None:
    """Read `results/<release>[-nccl-trace]/<precision>/<size>/<GPUs>`, of which the
    first two may be missing."""
    start = place - 2
    if start < 0 or not (
        parts[place].isdecimal()
        and _PRECISION.fullmatch(parts[start])
        and _SIZE.fullmatch(parts[start + 1])
    ):
        return None
    above = [""] * (3 - start) + list(parts[max(start - 2, 0) : start])
    rooted = "results" in (name.lower() for name in above[-2:])
    release = _RELEASE.search(above[-1])
    versioned = release is not None or (rooted and above[-1].lower() != "results")
    inside = tuple(parts[start - versioned :])
    source = f"folder {'/'.join(inside[: 3 + versioned])}"
    values = dict(zip(("dtype", "size", "gpus"), parts[start : place + 1], strict=True))
    if release:
        values["release"] = release[1]
    hints = tuple(Hint(field, value, source) for field, value in values.items())
    return Layout("results" if rooted or release else "", hints, inside)


def _read_experiment_layout(parts: Sequence[str], place: int) -> Layout | None:
    """Read `[workloads/<workload>/]experiments/<experiment>/...`."""
    if parts[place - 1].lower() != "experiments" or not names.read_experiment(
        parts[place], typed=False
    ):
        return None
    name = "workloads" if _is_workload(parts, place - 2) else "experiments"
    hints = tuple(_read_experiments(parts[place:], typed=False))
    return Layout(name, hints, tuple(parts[place:]))


def _read_workload(parts: Sequence[str], place: int) -> Layout | None:
    """Read `workloads/<workload>/...`."""
    if not _is_workload(parts, place):
        return None
    pairs = names.read_workload(parts[place])
    hints = tuple(Hint(*pair, f"folder {parts[place]}") for pair in pairs)
    return Layout("workloads", hints, tuple(parts[place:]))


def _is_workload(parts: Sequence[str], place: int) -> bool:
    """Whether a workload's folder stands here, below `workloads` or an unpacked
    archive."""
    above = parts[place - 1].lower() if place > 0 else ""
    return (above == "workloads" or above.startswith("llmb-archive-")) and bool(
        names.read_workload(parts[place])
    )


LAYOUTS: tuple[ReadLayout, ...] = (
    _read_results,
    _read_experiment_layout,
    _read_workload,
)
"""The layouts, in the order in which they are tried at each folder."""


def _read_experiments(folders: Sequence[str], *, typed: bool) -> Iterator[Hint]:
    """Yield what the names of folders say; a folder that says the same as the one above
    it says nothing new."""
    last: names.NamePairs = ()
    for name in folders:
        experiment = names.read_experiment(name, typed=typed)
        if experiment and experiment.pairs != last:
            last = experiment.pairs
            yield from _list_folder_hints(name, last)


@lru_cache(1024)
def _list_folder_hints(name: str, pairs: names.NamePairs) -> tuple[Hint, ...]:
    return tuple(Hint(field, value, f"folder {name}") for field, value in pairs)


def find_layout(parts: Sequence[str]) -> Layout:
    """Return the innermost layout that the folders of an absolute path form; its name
    is empty if they form none."""
    for place in range(len(parts) - 1, 0, -1):
        for read_layout in LAYOUTS:
            if layout := read_layout(parts, place):
                return layout
    return _read_loose(parts)


def _read_loose(parts: Sequence[str]) -> Layout:
    """Read folders that form no layout: an experiment's own folder may have been copied
    to any place."""
    start = next(
        (place for place, name in enumerate(parts) if names.read_experiment(name)),
        len(parts) - 1,
    )
    return Layout("", tuple(_read_experiments(parts, typed=True)), tuple(parts[start:]))


# --- launchers -------------------------------------------------------------------------

SBATCH, NEMO_RUN, LOCAL = "sbatch", "nemo-run", "nemo-run-local"
CONFIGURED = "configured-sbatch"

# What the metadata's `launcher_type` means; any other word stands for itself.
STATED = {"nemo": NEMO_RUN, "configured_sbatch": CONFIGURED, "sbatch": SBATCH}

_STREAMS = ("combined.log", "stdout.log", "stderr.log")


def find_launcher(stated: str, logs: Sequence[str], folder: str, where: Layout) -> str:
    """Return what started a run: sbatch, nemo-run, nemo-run-local, configured-sbatch,
    another word that its metadata states, or nothing where nothing tells.

    `stated` is what the metadata says, `logs` are the names of the run's logs, `folder`
    the name of theirs.
    """
    if stated:
        return STATED.get(stated.lower(), re.sub(r"[^\w.+-]+", "-", stated.lower()))
    if logs and all(log in _STREAMS for log in logs) and "nemo_run" in where.inside:
        return LOCAL
    launched = any(names.is_launched(log) for log in logs)
    if launched and where.name == "results":
        return SBATCH
    if launched and where.name in ("experiments", "workloads"):
        return _tell_experiment(logs, folder, where)
    return ""


def _tell_experiment(logs: Sequence[str], folder: str, where: Layout) -> str:
    """Tell `<name>/<name>_<time>/<task>/log-*`, which NeMo-Run makes, from
    `<name>/<time>/log-*`, and from Slurm's own file in the folder of a workload."""
    inside = where.experiment
    if len(inside) > 2 and inside[1].startswith(f"{inside[0]}_"):
        return NEMO_RUN
    if len(inside) == 2 and folder.isdecimal() and read_stamp(folder) is not None:
        return CONFIGURED
    slurm_only = all(log.lower().startswith("slurm-") for log in logs)
    return SBATCH if slurm_only and not inside else ""
