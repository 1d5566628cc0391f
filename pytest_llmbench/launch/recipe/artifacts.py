"""What the jobs of a purpose leave on disk: profiles and checkpoints. Searches are bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.models.jobs import LaunchFacts, Purpose

DEPTH = 12
ENTRIES = 50_000
FILES = 1_000
"""How deep a search for files goes, how many entries of folders it looks at and how many files it returns."""


def explain_unloadable(folder: Path, stage: Path | None) -> str:
    """Return why a checkpoint cannot be loaded from this folder, with what to give instead; empty where it can."""
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
    missing = "its folder `weights` has no file *.distcp" if (folder / "weights").is_dir() else "no folder `weights`"
    folders = [path.parent for path in _find_weights(folder)]
    if not folders:
        return f"{missing}: not a checkpoint, or one that was not saved to its end"
    others = f" ({count_noun(len(folders), 'checkpoint')} below it)" if len(folders) > 1 else ""
    return f"{missing} in it; did you mean {folders[-1]}?{others}"


# --- what a purpose leaves --------------------------------------------------------------------------------


def find_outputs(
    folder: Path, purpose: Purpose, facts: LaunchFacts, job_id: str = "", since: float | None = None
) -> tuple[Path, ...]:
    """Return the files that a job left below a folder: profiles, or the folders with the weights of checkpoints.

    The old recipes use one folder for all jobs of a configuration: where names tell the job id, only those of
    `job_id`; and nothing that is older than `since` (seconds since the epoch). The search is bounded.
    """
    paths = []
    if purpose is Purpose.PROFILE and facts.profiling:
        paths = [path for path in sorted(islice(_find_profiles(folder), FILES)) if _read_job_id(path) in ("", job_id)]
    elif purpose is Purpose.SAVE_CHECKPOINT and facts.checkpoint:
        paths = _find_weights(folder)
    return tuple(path for path in paths if since is None or _read_modified(path) >= since)


def _read_job_id(profile: Path) -> str:
    """Return the job id in a documented name, `<model>_<gpus>g_<job>_<node>_<rank>`; empty where there is none."""
    named = re.search(r"g_(\d+)_\d+_\d+$", profile.stem)
    return named[1] if named else ""


def _find_profiles(folder: Path) -> Iterator[Path]:
    for path, _, files in _walk_bounded(folder):
        yield from (path / name for name in files if name.endswith(".nsys-rep"))


def _find_weights(folder: Path) -> list[Path]:
    """Return the folders with the weights of checkpoints, oldest first."""
    paths = (path for path, _, files in _walk_bounded(folder) if path.name == "weights" and _has_shard(files))
    return sorted(islice(paths, FILES), key=lambda path: (_read_modified(path), path))


def _has_shard(files: list[str]) -> bool:
    return any(name.endswith(".distcp") for name in files)


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
