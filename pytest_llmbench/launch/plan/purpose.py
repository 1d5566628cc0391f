"""What a job is started for besides its speed (profiles, traces, checkpoints), and what
it leaves on disk then."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.job_records import (
    PURPOSE_FLAGS,
    Checkpointing,
    LaunchFacts,
    Pairs,
    Profiling,
    Purpose,
)

EXAMPLE = "--llmb-profile=start:20,stop:30,ranks:0+1,gpu_metrics,cpu"
NUMBERS = ("start", "stop")
FLAGS = ("gpu_metrics", "cpu")
PARTS = (*NUMBERS, "ranks", *FLAGS)

# the settings of profiles in all releases, whether a recipe reads them or not
SETTING = re.compile(
    r"(?:RUN_CONF_)?PROFILE_(?:START_STEP|STOP_STEP|RANKS|GPU_METRICS|CPU)"
)

DEPTH = 12  # how deep a search for files goes
ENTRIES = 50_000  # of folders that it looks at
FILES = 1_000  # that it returns


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What of a run is profiled; None, empty or False leaves it to the recipe's
    default."""

    start: int | None = None
    stop: int | None = None
    ranks: tuple[int, ...] = ()
    gpu_metrics: bool = False
    cpu: bool = False


DEFAULT_PROFILE = ProfileRequest()


# --- what the options ask for ---------------------------------------------------------


def parse_profile(text: str) -> ProfileRequest:
    """Return what the value of --llmb-profile says; LaunchError for one that cannot be
    read. Empty: the defaults."""
    parts = [] if text.strip() in ("", "default") else text.split(",")
    values = dict(_split_part(part.strip()) for part in parts)
    if len(values) < len(parts):
        raise LaunchError(
            f"--llmb-profile={text}: a part stands there twice; expected such as {EXAMPLE}"
        )
    numbers = {
        name: _parse_whole(name, values[name]) for name in NUMBERS if name in values
    }
    ranks = values["ranks"].split("+") if "ranks" in values else ()
    request = ProfileRequest(
        start=numbers.get("start"),
        stop=numbers.get("stop"),
        ranks=tuple(dict.fromkeys(_parse_whole("ranks", rank) for rank in ranks)),
        gpu_metrics="gpu_metrics" in values,
        cpu="cpu" in values,
    )
    _check_order(request.start, request.stop, "--llmb-profile")
    return request


def _split_part(part: str) -> tuple[str, str]:
    name, colon, value = part.partition(":")
    if name not in PARTS:
        raise LaunchError(
            f"--llmb-profile: found {part!r}{did_you_mean(name, PARTS)}; expected such as {EXAMPLE}"
        )
    if bool(colon) is (name in FLAGS):
        expected = (
            f"{name} without a value" if name in FLAGS else f"{name}: and its value"
        )
        raise LaunchError(
            f"--llmb-profile: found {part!r}, expected {expected}, such as {EXAMPLE}"
        )
    return name, value


def _parse_whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LaunchError(
            f"--llmb-profile: {name} is {text!r}, expected a whole number, such as in {EXAMPLE}"
        )
    return int(text)


# --- variables of a job ---------------------------------------------------------------


def build_variables(
    facts: LaunchFacts,
    purpose: Purpose,
    key: Key,
    *,
    profile: ProfileRequest = DEFAULT_PROFILE,
    checkpoint: Path | None = None,
) -> Pairs:
    """Return the variables that make a run of this recipe do what it is for, as its
    document says; `checkpoint` is the folder to load.

    LaunchError where the document has no such thing, does not support this number of
    GPUs, or a checkpoint cannot be loaded. A profile that no option describes
    (`--llmb-profile-on-regression`) is the recipe's default.
    """
    match purpose:
        case Purpose.PROFILE:
            return _set_profiling(facts, profile, key.gpus)
        case Purpose.NCCL_TRACE:
            return _require_documented(
                facts, facts.nccl_trace, "NCCL trace", "--llmb-nccl-trace"
            )
        case Purpose.SAVE_CHECKPOINT:
            return _set_saving(facts, key)
        case Purpose.LOAD_CHECKPOINT:
            return _set_loading(facts, checkpoint, key)
    return ()


def _require_documented(
    facts: LaunchFacts, pairs: Pairs, noun: str, flag: str
) -> Pairs:
    if not pairs:
        raise LaunchError(
            f"{_name_recipe(facts)} documents no {noun}: leave {flag} out, or this recipe (-k 'not ...')"
        )
    return pairs


def _name_recipe(facts: LaunchFacts) -> str:
    return f"{facts.recipe} {facts.release}"


def _set_profiling(facts: LaunchFacts, request: ProfileRequest, gpus: int) -> Pairs:
    profiling = facts.profiling or Profiling(enable=())
    enable = _require_documented(facts, profiling.enable, "profiling", "--llmb-profile")
    start = profiling.default_start if request.start is None else request.start
    stop = profiling.default_stop if request.stop is None else request.stop
    _check_order(start, stop or None, f"--llmb-profile: {_name_recipe(facts)}")
    if too_large := [rank for rank in request.ranks if rank >= gpus]:
        raise LaunchError(
            f"--llmb-profile: there is no rank {too_large[0]} among {gpus} GPUs: 0 to {gpus - 1}"
        )
    asked = {
        "start": "" if request.start is None else str(request.start),
        "stop": "" if request.stop is None else str(request.stop),
        "ranks": ",".join(map(str, request.ranks)),
        "gpu_metrics": "true" if request.gpu_metrics else "",
        "cpu": "true" if request.cpu else "",
    }
    return (
        *enable,
        *(
            (_find_variable(facts, profiling, part), value)
            for part, value in asked.items()
            if value
        ),
    )


def _check_order(start: int | None, stop: int | None, where: str) -> None:
    if start is not None and stop is not None and start >= stop:
        raise LaunchError(
            f"{where}: profiling from step {start} to {stop}: stop has to be larger than start"
        )


def _find_variable(facts: LaunchFacts, profiling: Profiling, part: str) -> str:
    names = {part: getattr(profiling, part) for part in PARTS}
    if names[part]:
        return str(names[part])
    has = (
        ", ".join(f"{part} ({name})" for part, name in names.items() if name)
        or "none of its settings"
    )
    raise LaunchError(
        f"--llmb-profile: {_name_recipe(facts)} documents no variable for {part!r}; it has {has}"
    )


def list_switches(facts: LaunchFacts) -> dict[str, Purpose]:
    """Return the variables by which a recipe profiles, traces, saves and loads, each
    with its purpose; one that serves several is a profile's."""
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    pairs = {
        Purpose.LOAD_CHECKPOINT: checkpoint.load,
        Purpose.SAVE_CHECKPOINT: checkpoint.save,
        Purpose.NCCL_TRACE: facts.nccl_trace,
        Purpose.PROFILE: facts.profiling.enable if facts.profiling else (),
    }
    return {
        name: purpose for purpose, switches in pairs.items() for name, _ in switches
    }


def explain_ineffective(
    facts: LaunchFacts, purpose: Purpose, names: Iterable[str]
) -> Iterator[str]:
    """Yield which variables of profiles, traces and checkpoints change nothing although
    somebody set them (`names`), each with what does."""
    profiling, switches = facts.profiling or Profiling(enable=()), list_switches(facts)
    read = [name for name in (getattr(profiling, part) for part in PARTS) if name]
    for name in names:
        if name in switches:
            yield f"{name} has no effect: {PURPOSE_FLAGS[switches[name]]} sets it"
        elif SETTING.fullmatch(name) and name not in read:
            has = (
                f"it reads {', '.join(read)}"
                if read
                else "its document has no profiles"
            )
            yield f"{name} has no effect on {_name_recipe(facts)}: {has}"
        elif name in read and purpose is not Purpose.PROFILE:
            yield f"{name} has no effect without --llmb-profile"


def _set_saving(facts: LaunchFacts, key: Key) -> Pairs:
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    pairs = _require_documented(
        facts, checkpoint.save, "saving of checkpoints", "--llmb-save-checkpoint"
    )
    _check_scale(facts, key, checkpoint.save_gpus, "Saving a checkpoint")
    return pairs


def _set_loading(facts: LaunchFacts, folder: Path | None, key: Key) -> Pairs:
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    flag = "--llmb-load-checkpoint"
    pairs = _require_documented(facts, checkpoint.load, "loading of checkpoints", flag)
    _check_scale(facts, key, checkpoint.load_gpus, "Loading a checkpoint")
    if folder is None:
        raise LaunchError(
            f"{flag}: expected the folder of a checkpoint, the one that holds `weights`"
        )
    if problem := explain_unloadable(
        folder, None
    ):  # whether it lies below the stage is left to preflight
        raise LaunchError(f"{flag}={folder}: {problem}")
    return tuple(
        (name, value.replace("{checkpoint}", str(folder.absolute())))
        for name, value in pairs
    )


def _check_scale(
    facts: LaunchFacts,
    key: Key,
    scales: tuple[tuple[str, tuple[int, int | None]], ...],
    doing: str,
) -> None:
    sizes = dict(scales)
    if scales and key.size not in sizes:
        raise LaunchError(
            f"{key.id}: {_name_recipe(facts)} documents no scale for a checkpoint of {key.size}"
        )
    least, most = sizes.get(key.size, (1, None))
    if key.gpus < least or (most is not None and key.gpus > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise LaunchError(
            f"{key.id}: {doing} is documented for {key.size} on {allowed} GPUs, not on "
            f"{key.gpus}: select others with -k or -m"
        )


def explain_unloadable(folder: Path, stage: Path | None) -> str:
    """Return why a checkpoint cannot be loaded from this folder, with what to give
    instead; empty where it can."""
    if not folder.is_dir():
        return "no such folder"
    if folder.name == "weights" and _has_shards(folder):
        return f"this is the folder of the weights; give the one above: {folder.absolute().parent}"
    if not _has_shards(folder / "weights"):
        return _suggest_nearby(folder)
    if stage is not None and not folder.resolve().is_relative_to(stage.resolve()):
        return f"it has to lie below {stage}, since jobs see nothing else of the disk: move or copy it there"
    return ""


def _has_shards(folder: Path) -> bool:
    return next(folder.glob("*.distcp"), None) is not None


def _suggest_nearby(folder: Path) -> str:
    missing = (
        "its folder `weights` has no file *.distcp"
        if (folder / "weights").is_dir()
        else "no folder `weights`"
    )
    folders = [path.parent for path in _find_weights(folder)]
    if not folders:
        return f"{missing}: not a checkpoint, or one that was not saved to its end"
    others = (
        f" ({count_noun(len(folders), 'checkpoint')} below it)"
        if len(folders) > 1
        else ""
    )
    return f"{missing} in it; did you mean {folders[-1]}?{others}"


# --- what a purpose leaves ------------------------------------------------------------


def find_outputs(
    folder: Path,
    purpose: Purpose,
    facts: LaunchFacts,
    job_id: str = "",
    since: float | None = None,
) -> tuple[Path, ...]:
    """Return the files that a job left below a folder: profiles, or the folders with
    the weights of checkpoints.

    The old recipes use one folder for all jobs of a configuration: where names tell the
    job id, only those of `job_id`; and nothing that is older than `since` (seconds
    since the epoch). The search is bounded.
    """
    paths = []
    if purpose is Purpose.PROFILE and facts.profiling:
        paths = [
            path
            for path in sorted(islice(_find_profiles(folder), FILES))
            if _read_job_id(path) in ("", job_id)
        ]
    elif purpose is Purpose.SAVE_CHECKPOINT and facts.checkpoint:
        paths = _find_weights(folder)
    return tuple(
        path for path in paths if since is None or _read_modified(path) >= since
    )


def _read_job_id(profile: Path) -> str:
    """Return the job id in a documented name, `<model>_<gpus>g_<job>_<node>_<rank>`;
    empty where there is none."""
    named = re.search(r"g_(\d+)_\d+_\d+$", profile.stem)
    return named[1] if named else ""


def _find_profiles(folder: Path) -> Iterator[Path]:
    for path, _, files in _walk_bounded(folder):
        yield from (path / name for name in files if name.endswith(".nsys-rep"))


def _find_weights(folder: Path) -> list[Path]:
    """Return the folders with the weights of checkpoints, oldest first."""
    paths = (
        path
        for path, _, files in _walk_bounded(folder)
        if path.name == "weights" and any(name.endswith(".distcp") for name in files)
    )
    return sorted(islice(paths, FILES), key=lambda path: (_read_modified(path), path))


def _read_modified(path: Path) -> float:
    """Return when a path was changed; what has gone counts as old."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _walk_bounded(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    entries, depth = 0, len(folder.parts)
    for name, folders, files in os.walk(folder):
        path = Path(name)
        folders.sort()
        if len(path.parts) - depth >= DEPTH:
            folders.clear()
        entries += len(folders) + len(files)
        yield path, folders, files
        if entries > ENTRIES:
            return
