"""What the names of the folders above a log say: a documented layout and the run in it,
and times.

Only the folders inside the innermost layout speak of a run; what stands above it
(`/ci/profile-results/...`) is somebody's filing. Of that, a GPU type or a release is
used where nothing else names one. A time without a zone is local time of the machine
that reads it, as the launchers write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from pytest_llmbench.core.run_records import Clock, Dating, Hint
from pytest_llmbench.runs.discover import names

# Seconds of the years 2014 to 2033, with milliseconds or nanoseconds.
_EPOCH = re.compile(r"(?<!\d)(1[4-9]\d{8})(\d{9}|\d{3})?(?!\d)")
_WRITTEN = (
    re.compile(
        r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T ](\d\d)[-:_.h]?(\d\d)[-:_.m]?(\d\d)(?:\.\d+)?(Z|UTC)?(?!\d)"
    ),
    re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)?)?(Z|UTC)?(?!\d)"),
)
_DAY = re.compile(r"(?<!\d)(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?!\d)")


def read_start(experiment: Sequence[str]) -> Dating | None:
    """Return the moment in the innermost name of a run's own folders that holds one."""
    return _read_innermost(Clock.FOLDER_NAME, experiment, read_stamp)


def read_filing_date(folders: Sequence[str]) -> Dating | None:
    """Return the moment or day in the innermost folder name that holds one.

    That is weaker than a log's own time stamp: somebody may have filed the log there
    long after the run.
    """
    return _read_innermost(Clock.FOLDER_ABOVE, folders, _read_date)


def _read_innermost(
    clock: Clock, folders: Sequence[str], read: Callable[[str], datetime | None]
) -> Dating | None:
    dates = ((read(name), name) for name in reversed(folders))
    return next(
        (
            Dating(clock, date, f"the name of folder {name}", _is_zoned(name))
            for date, name in dates
            if date
        ),
        None,
    )


def read_stamp(name: str) -> datetime | None:
    """Return the moment that a name holds, in UTC: epoch seconds, milliseconds or
    nanoseconds, or a date with a time.

    Digits without separators are a moment from `YYYYMMDDHH` on; `YYYYMMDD` is a day.
    """
    text = _read_text(name)
    return _parse_moment(text) if isinstance(text, str) else text


def _is_zoned(name: str) -> bool:
    """Whether the moment that a name holds is the same everywhere: seconds of the
    epoch, or a time of a stated zone."""
    text = _read_text(name)
    return isinstance(text, datetime) or (text or "").endswith("Z")


@lru_cache(1024)
def _read_text(name: str) -> datetime | str | None:
    """Return the moment that a name holds, as text where its zone may be this
    machine's: that may change."""
    if match := _EPOCH.search(name):
        return datetime.fromtimestamp(int(match[1]), UTC) + timedelta(
            microseconds=int((match[2] or "").ljust(9, "0")) // 1000
        )
    if match := next(
        filter(None, (pattern.search(name) for pattern in _WRITTEN)), None
    ):
        year, month, day, hour, minute, second, zone = match.groups()
        return f"{year}-{month}-{day}T{hour}:{minute or '00'}:{second or '00'}{'Z' if zone else ''}"
    return None


def _read_date(name: str) -> datetime | None:
    return read_stamp(name) or _parse_moment(_read_day(name))


@lru_cache(1024)
def _read_day(name: str) -> str:
    match = _DAY.search(name)
    return f"{match[1]}-{match[3]}-{match[4]}" if match else ""


def _parse_moment(text: str) -> datetime | None:
    if "T24" in text:  # the midnight after it, for Python 3.14; a stamp has none
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None


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


def find_layout(parts: Sequence[str]) -> Layout:
    """Return the innermost layout that the folders of an absolute path form; its name
    is empty where they form none."""
    for place in range(len(parts) - 1, 0, -1):
        if _is_results(parts, place):
            return _read_results(parts, place)
        if parts[place - 1].lower() == "experiments" and names.read_experiment(
            parts[place], typed=False
        ):
            name = "workloads" if _is_workload(parts, place - 2) else "experiments"
            return Layout(
                name,
                tuple(_read_experiments(parts[place:], typed=False)),
                tuple(parts[place:]),
            )
        if _is_workload(parts, place):
            hints = (
                Hint(field, value, f"folder {parts[place]}")
                for field, value in names.read_workload(parts[place])
            )
            return Layout("workloads", tuple(hints), tuple(parts[place:]))
    return _read_loose(parts)


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


def _is_results(parts: Sequence[str], place: int) -> bool:
    """Whether `<precision>/<size>/<GPUs>` ends here."""
    if place < 2 or not parts[place].isdecimal():
        return False
    return bool(
        _PRECISION.fullmatch(parts[place - 2]) and _SIZE.fullmatch(parts[place - 1])
    )


def _read_results(parts: Sequence[str], place: int) -> Layout:
    """Read `results/<release>[-nccl-trace]/<precision>/<size>/<GPUs>`, of which the
    first two may be missing."""
    start = place - 2
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


def _is_workload(parts: Sequence[str], place: int) -> bool:
    """Whether a workload's folder stands here, below `workloads` or an unpacked
    archive."""
    above = parts[place - 1].lower() if place > 0 else ""
    return (above == "workloads" or above.startswith("llmb-archive-")) and bool(
        names.read_workload(parts[place])
    )


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


def _read_loose(parts: Sequence[str]) -> Layout:
    """Read folders that form no layout: an experiment's own folder may have been copied
    to any place."""
    start = next(
        (place for place, name in enumerate(parts) if names.read_experiment(name)),
        len(parts) - 1,
    )
    return Layout("", tuple(_read_experiments(parts, typed=True)), tuple(parts[start:]))


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
