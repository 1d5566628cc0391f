"""Purposes of a job other than measuring: profiles, traces and checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

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
from pytest_llmbench.core.patterns import compile_on_use

# the settings of --llmb-profile
EXAMPLE = "--llmb-profile=start:20,stop:30,ranks:0+1,gpu_metrics,cpu"
STEP_SETTINGS = ("start", "stop")
FLAG_SETTINGS = ("gpu_metrics", "cpu")
PROFILE_SETTINGS = (*STEP_SETTINGS, "ranks", *FLAG_SETTINGS)

# the variables that configure profiles in any release, such as PROFILE_START_STEP and
# RUN_CONF_PROFILE_RANKS
PROFILE_VARIABLE = compile_on_use(
    r"(?:RUN_CONF_)?PROFILE_(?:START_STEP|STOP_STEP|RANKS|GPU_METRICS|CPU)"
)

# limits of a search for files
MAX_DEPTH = 12  # folder levels
MAX_ENTRIES = 50_000  # folder entries visited
MAX_FILES = 1_000  # files returned


class ProfileRequest(Struct, frozen=True):
    """The requested range and contents of a profile.

    None, empty and False keep the recipe's default.
    """

    start: int | None = None
    stop: int | None = None
    ranks: tuple[int, ...] = ()
    gpu_metrics: bool = False
    cpu: bool = False


DEFAULT_PROFILE = ProfileRequest()


# --- options --------------------------------------------------------------------------


def parse_profile(text: str) -> ProfileRequest:
    """Parse the value of --llmb-profile; an empty value means the recipe's defaults.

    Raises LaunchError for an invalid value.
    """
    items = [] if text.strip() in ("", "default") else text.split(",")
    # start:20,stop:30,cpu: {"start": "20", "stop": "30", "cpu": ""}
    values = dict(_split_setting(item.strip()) for item in items)
    if len(values) < len(items):
        raise LaunchError(
            f"--llmb-profile={text}: duplicate setting; expected for example {EXAMPLE}"
        )
    steps = {
        name: _parse_whole(name, values[name])
        for name in STEP_SETTINGS
        if name in values
    }
    ranks = values["ranks"].split("+") if "ranks" in values else ()
    request = ProfileRequest(
        start=steps.get("start"),
        stop=steps.get("stop"),
        ranks=tuple(dict.fromkeys(_parse_whole("ranks", rank) for rank in ranks)),
        gpu_metrics="gpu_metrics" in values,
        cpu="cpu" in values,
    )
    _check_order(request.start, request.stop, "--llmb-profile")
    return request


def _split_setting(item: str) -> tuple[str, str]:
    """Split a setting of --llmb-profile into name and value. Raises LaunchError."""
    name, colon, value = item.partition(":")
    if name not in PROFILE_SETTINGS:
        raise LaunchError(
            f"--llmb-profile: found {item!r}{did_you_mean(name, PROFILE_SETTINGS)}; expected for example {EXAMPLE}"
        )
    is_flag, has_value = name in FLAG_SETTINGS, bool(colon)
    if is_flag == has_value:
        expected = f"{name} without a value" if is_flag else f"{name}: with a value"
        raise LaunchError(
            f"--llmb-profile: found {item!r}, expected {expected}, for example {EXAMPLE}"
        )
    return name, value


def _parse_whole(name: str, text: str) -> int:
    """Parse a whole number of up to nine digits. Raises LaunchError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LaunchError(
            f"--llmb-profile: {name} is {text!r}, expected a whole number, for example {EXAMPLE}"
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
    """Build the variables that make a job serve its purpose, per its recipe's document.

    `checkpoint` is the folder to load. `profile` is ignored for other purposes; its
    default is the recipe's default profile, as for `--llmb-profile-on-regression`.
    Raises LaunchError if the document does not support the purpose for this number of
    GPUs, or if the checkpoint cannot be loaded.
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
    """Return `pairs`, the variables of a purpose. Raises LaunchError if there are none.

    `noun` names the purpose, and `flag` the option that requests it.
    """
    if not pairs:
        raise LaunchError(
            f"{_name_recipe(facts)} documents no {noun}: omit {flag}, or deselect this recipe (-k 'not ...')"
        )
    return pairs


def _name_recipe(facts: LaunchFacts) -> str:
    return f"{facts.recipe} {facts.release}"


def _set_profiling(facts: LaunchFacts, request: ProfileRequest, gpus: int) -> Pairs:
    """Return the variables that profile a run.

    Raises LaunchError if the recipe documents no such variable, or for invalid steps or
    ranks.
    """
    profiling = facts.profiling or Profiling(enable=())
    enable = _require_documented(facts, profiling.enable, "profiling", "--llmb-profile")
    start = profiling.default_start if request.start is None else request.start
    stop = profiling.default_stop if request.stop is None else request.stop
    # the default stop step is 0 if the document does not state one
    _check_order(start, stop or None, f"--llmb-profile: {_name_recipe(facts)}")
    for rank in request.ranks:
        if rank >= gpus:
            raise LaunchError(
                f"--llmb-profile: found rank {rank}, expected 0 to {gpus - 1}, since there are {gpus} GPUs"
            )
    settings = {
        "start": "" if request.start is None else str(request.start),
        "stop": "" if request.stop is None else str(request.stop),
        "ranks": ",".join(map(str, request.ranks)),
        "gpu_metrics": "true" if request.gpu_metrics else "",
        "cpu": "true" if request.cpu else "",
    }
    configure = [
        (_find_variable(facts, profiling, setting), value)
        for setting, value in settings.items()
        if value
    ]
    return (*enable, *configure)


def _check_order(start: int | None, stop: int | None, prefix: str) -> None:
    """Raise LaunchError, with `prefix`, unless the start step precedes the stop step."""
    if start is not None and stop is not None and start >= stop:
        raise LaunchError(
            f"{prefix}: profiling from step {start} to {stop}: stop must be larger than start"
        )


def _find_variable(facts: LaunchFacts, profiling: Profiling, setting: str) -> str:
    """Return the variable of a setting, such as `start`, in the recipe's document.

    Raises LaunchError, with the settings that have variables, if there is none.
    """
    names = _list_profile_variables(profiling)
    if setting in names:
        return names[setting]
    pairs = (f"{setting} ({name})" for setting, name in names.items())
    available = ", ".join(pairs) or "no such variables"
    raise LaunchError(
        f"--llmb-profile: {_name_recipe(facts)} documents no variable for {setting!r}; it has {available}"
    )


def _list_profile_variables(profiling: Profiling) -> dict[str, str]:
    """Return the variables that the recipe's document has, by setting."""
    variables = {name: getattr(profiling, name) for name in PROFILE_SETTINGS}
    return {setting: variable for setting, variable in variables.items() if variable}


def list_switches(facts: LaunchFacts) -> dict[str, Purpose]:
    """Return the variables that enable profiles, traces and checkpoints, by name.

    The value is the purpose. A variable that serves several purposes belongs to
    profiles.
    """
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    pairs = {
        Purpose.LOAD_CHECKPOINT: checkpoint.load,
        Purpose.SAVE_CHECKPOINT: checkpoint.save,
        Purpose.NCCL_TRACE: facts.nccl_trace,
        Purpose.PROFILE: facts.profiling.enable if facts.profiling else (),
    }
    # profiles come last and override the other purposes of the same variable
    return {
        name: purpose for purpose, switches in pairs.items() for name, _ in switches
    }


def explain_ineffective(
    facts: LaunchFacts, purpose: Purpose, names: Iterable[str]
) -> Iterator[str]:
    """Yield a message for each variable in `names` that has no effect.

    Covers variables of profiles, traces and checkpoints that the user set. The message
    names the option that has the effect, or the variables that the recipe reads.
    """
    switches = list_switches(facts)
    profiling = facts.profiling or Profiling(enable=())
    profile_variables = _list_profile_variables(profiling).values()
    for name in names:
        if name in switches:
            yield f"{name} has no effect: {PURPOSE_FLAGS[switches[name]]} sets it"
        elif PROFILE_VARIABLE.fullmatch(name) and name not in profile_variables:
            available = "the document of the recipe has no profiling"
            if profile_variables:
                available = f"the recipe reads {', '.join(profile_variables)}"
            yield f"{name} has no effect on {_name_recipe(facts)}: {available}"
        elif name in profile_variables and purpose is not Purpose.PROFILE:
            yield f"{name} has no effect without --llmb-profile"


def _set_saving(facts: LaunchFacts, key: Key) -> Pairs:
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    pairs = _require_documented(
        facts, checkpoint.save, "saving of checkpoints", "--llmb-save-checkpoint"
    )
    _check_scale(facts, key, checkpoint.save_gpus, "Saving a checkpoint")
    return pairs


def _set_loading(facts: LaunchFacts, folder: Path | None, key: Key) -> Pairs:
    """Return the variables that load a checkpoint.

    Raises LaunchError if the recipe, the scale or the folder does not allow it.
    """
    checkpoint = facts.checkpoint or Checkpointing(save=(), load=())
    flag = "--llmb-load-checkpoint"
    pairs = _require_documented(facts, checkpoint.load, "loading of checkpoints", flag)
    _check_scale(facts, key, checkpoint.load_gpus, "Loading a checkpoint")
    if folder is None:
        raise LaunchError(
            f"{flag}: expected the folder of a checkpoint, which contains `weights`"
        )
    # preflight checks that the folder is in the stage folder
    if problem := explain_unloadable(folder, None):
        raise LaunchError(f"{flag}={folder}: {problem}")
    return tuple(
        (name, value.replace("{checkpoint}", str(folder.absolute())))
        for name, value in pairs
    )


def _check_scale(
    facts: LaunchFacts,
    key: Key,
    scales: tuple[tuple[str, tuple[int, int | None]], ...],
    action: str,
) -> None:
    """Raise LaunchError if checkpoints are not documented for this number of GPUs.

    `scales` is the smallest and largest number of GPUs by model size, or empty if any
    number is documented.
    """
    limits_by_size = dict(scales)
    if scales and key.size not in limits_by_size:
        raise LaunchError(
            f"{key.id}: {_name_recipe(facts)} documents no scale for a checkpoint of {key.size}"
        )
    minimum, maximum = limits_by_size.get(key.size, (1, None))
    is_too_large = maximum is not None and key.gpus > maximum
    if key.gpus < minimum or is_too_large:
        allowed = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        raise LaunchError(
            f"{key.id}: {action} is documented for {key.size} on {allowed} GPUs, not on "
            f"{key.gpus}: select others with -k or -m"
        )


def explain_unloadable(folder: Path, stage: Path | None) -> str:
    """Return the reason a checkpoint cannot be loaded, with a remedy, or "".

    `stage` is the folder that jobs can access, or None to skip that check.
    """
    if not folder.is_dir():
        return "no such folder"
    if folder.name == "weights" and _has_shards(folder):
        return f"this is the folder of the weights; pass its parent: {folder.absolute().parent}"
    if not _has_shards(folder / "weights"):
        return _suggest_nearby(folder)
    if stage is not None and not folder.resolve().is_relative_to(stage.resolve()):
        return f"the checkpoint must be in {stage}, the only folder that jobs can access: move or copy it there"
    return ""


def _has_shards(folder: Path) -> bool:
    """True if a folder contains the shards of a distributed checkpoint."""
    return next(folder.glob("*.distcp"), None) is not None


def _suggest_nearby(folder: Path) -> str:
    """Explain why a folder is not a checkpoint, with the newest checkpoint under it."""
    reason = "no folder `weights`"
    if (folder / "weights").is_dir():
        reason = "the folder `weights` has no file *.distcp"
    checkpoints = [weights.parent for weights in _find_weights(folder)]
    if not checkpoints:
        return f"{reason}: not a checkpoint, or an incomplete one"
    newest = checkpoints[-1]
    count_text = ""
    if len(checkpoints) > 1:
        count_text = f" ({count_noun(len(checkpoints), 'checkpoint')} in it)"
    return f"{reason} in it; did you mean {newest}?{count_text}"


# --- output files ---------------------------------------------------------------------


def find_outputs(
    folder: Path,
    purpose: Purpose,
    facts: LaunchFacts,
    job_id: str = "",
    since: float | None = None,
) -> tuple[Path, ...]:
    """Find the profiles or checkpoint weights that a job wrote to a folder.

    Returns the files of profiles, or the folders of weights. Old recipes use one folder
    for all jobs of a configuration: files whose name contains another job id than
    `job_id` are omitted, and files modified before `since` (seconds since the epoch).
    The search is bounded.
    """
    paths = []
    if purpose is Purpose.PROFILE and facts.profiling:
        profiles = sorted(islice(_find_profiles(folder), MAX_FILES))
        paths = [path for path in profiles if _read_job_id(path) in ("", job_id)]
    elif purpose is Purpose.SAVE_CHECKPOINT and facts.checkpoint:
        paths = _find_weights(folder)
    if since is not None:
        paths = [path for path in paths if _read_modified(path) >= since]
    return tuple(paths)


def _read_job_id(profile: Path) -> str:
    """Return the job id in a profile's name, or "".

    Profiles are named `<model>_<gpus>g_<job>_<node>_<rank>`.
    """
    match = re.search(r"g_(\d+)_\d+_\d+$", profile.stem)  # grok1_256g_4711_0_8
    return match[1] if match else ""


def _find_profiles(folder: Path) -> Iterator[Path]:
    """Yield the profiles of Nsight Systems in a folder and its subfolders."""
    for path, _, files in _walk_bounded(folder):
        for name in files:
            if name.endswith(".nsys-rep"):
                yield path / name


def _find_weights(folder: Path) -> list[Path]:
    """Find up to MAX_FILES folders of checkpoint weights, oldest first."""
    folders = islice(_walk_weights(folder), MAX_FILES)
    return sorted(folders, key=lambda path: (_read_modified(path), path))


def _walk_weights(folder: Path) -> Iterator[Path]:
    """Yield the folders `weights` that contain shards of a checkpoint."""
    for path, _, files in _walk_bounded(folder):
        has_shards = any(name.endswith(".distcp") for name in files)
        if path.name == "weights" and has_shards:
            yield path


def _read_modified(path: Path) -> float:
    """Return the modification time of a path, or 0 if it no longer exists."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _walk_bounded(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield path, folders and files of each folder, as os.walk does, in order of name.

    Ends after MAX_ENTRIES entries, and omits folders deeper than MAX_DEPTH levels.
    """
    entries = 0
    for name, folders, files in os.walk(folder):
        path = Path(name)
        folders.sort()
        depth = len(path.parts) - len(folder.parts)
        if depth >= MAX_DEPTH:
            folders.clear()  # os.walk enters only the folders that remain
        entries += len(folders) + len(files)
        yield path, folders, files
        if entries > MAX_ENTRIES:
            return
