"""What a session that launches was asked to do, resolved once into frozen `LaunchSettings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.models.jobs import Purpose
from pytest_llmbench.core.options import LAUNCHING, destination
from pytest_llmbench.pipeline.option_values import converted, existing, parse_age, path_of, stated_in, text, value

LARGEST_SEQUENCE = 3
"""The sequence of looks is calibrated for one run, and three: docs/statistics.md."""

DEFAULT_PENDING = timedelta(hours=24)

PURPOSES = {
    "--llmb-profile": Purpose.PROFILE,
    "--llmb-nccl-trace": Purpose.NCCL_TRACE,
    "--llmb-save-checkpoint": Purpose.SAVE_CHECKPOINT,
    "--llmb-load-checkpoint": Purpose.LOAD_CHECKPOINT,
}


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """What is launched, and how. `cluster` is a file or folder that exists, None for none; `recipes` are names of
    recipes (with or without release) and their folders; 0 and empty text are "nothing says it"; `gpu_hours` None is the
    cluster's limit. `profile` is the text of its option, `checkpoint` the folder to load."""

    cluster: Path | None = None
    recipes: tuple[tuple[str, Path], ...] = ()
    largest: int = 0
    gpus_per_node: int = 0
    launcher: str = ""
    gpu_hours: float | None = None
    max_jobs: int = 0
    repeats: int = LARGEST_SEQUENCE
    retries: int = 1
    pending_limit: timedelta = DEFAULT_PENDING
    keep_jobs: bool = False
    dry_run: bool = False
    submit_only: bool = False
    collect: bool = False
    resume: bool = False
    session: str = ""
    purpose: Purpose = Purpose.MEASURE
    profile: str = ""
    checkpoint: str = ""
    profile_on_regression: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it goes on with an earlier session."""
        return self.collect or self.resume

    def to_note(self) -> dict[str, Any]:
        """Return what a session that goes on with this one has to know of it."""
        return {name: getattr(self, name) for name in _KEPT}

    def as_begun(self, noted: Mapping[str, Any]) -> LaunchSettings:
        """Return these settings with what was noted of the session that they go on with."""
        kept = {name: noted[name] for name in _KEPT if name in noted}
        return replace(self, **kept | {"purpose": Purpose(noted.get("purpose", self.purpose))})

    def told(self, directory: Path) -> Iterator[str]:
        """Yield what a session says of its launch before it starts."""
        cluster = formatting.format_place(self.cluster, directory) if self.cluster else "this machine"
        limits = f"up to {formatting.count_noun(self.repeats, 'run')} of each"
        yield f"launch on: {cluster}; {limits}" if self.purpose is Purpose.MEASURE else f"launch on: {cluster}"
        if self.purpose is not Purpose.MEASURE:
            yield f"for {self.purpose}: nothing is judged for speed"


def resolve_launch(values: Mapping[str, Any], directory: Path) -> LaunchSettings | None:
    """Return what is launched, None for a session that only judges runs on disk; raises SettingsError."""
    if not any(values.get(destination(flag)) for flag in LAUNCHING):
        return None
    retries = _count(values, "--llmb-retries", smallest=0, largest=10)
    settings = LaunchSettings(
        cluster=_cluster(values, directory),
        recipes=tuple(_recipe(one, directory) for one in values.get("llmb_recipe") or ()),
        largest=_count(values, "--llmb-max-gpus") or 0,
        gpus_per_node=_count(values, "--llmb-gpus-per-node") or 0,
        launcher=text(values, "--llmb-launcher"),
        gpu_hours=converted(values, "--llmb-gpu-hours", _hours),
        max_jobs=_count(values, "--llmb-max-jobs") or 0,
        repeats=_count(values, "--llmb-repeats", largest=LARGEST_SEQUENCE) or LARGEST_SEQUENCE,
        retries=1 if retries is None else retries,
        pending_limit=converted(values, "--llmb-pending-limit", parse_age) or DEFAULT_PENDING,
        **{name: bool(values.get(f"llmb_{name}")) for name in _FLAGS},
        session=text(values, "--llmb-session"),
        purpose=_purpose(values),
        profile=text(values, "--llmb-profile"),
        checkpoint=text(values, "--llmb-load-checkpoint"),
    )
    _refuse_contradictions(settings)
    return settings


_KEPT = ("purpose", "profile", "checkpoint", "repeats", "retries", "launcher", "profile_on_regression")
"""What a session does to its end, whatever the options of the one that goes on with it."""

_FLAGS = ("keep_jobs", "dry_run", "submit_only", "collect", "resume", "profile_on_regression")


def _cluster(values: Mapping[str, Any], directory: Path) -> Path | None:
    given = values.get("llmb_cluster")
    if isinstance(given, Sequence) and not isinstance(given, str):  # an ini value is a list of paths
        given = given[-1] if given else None
    if given:
        return existing(stated_in(values, "--llmb-cluster", given), given, directory)
    default = directory / "cluster.yaml"
    there = default.exists() or default.is_symlink()  # a link to nothing is a mistake, and told
    return existing(f"--llmb-cluster={default}", default, directory) if there else None


def _recipe(given: object, directory: Path) -> tuple[str, Path]:
    name, equals, folder = str(given).partition("=")
    if not (name and equals and folder):
        raise SettingsError(f"--llmb-recipe={given}: expected NAME=DIR, such as grok1-25.05=/lustre/recipes/grok1")
    return name, path_of(f"--llmb-recipe={given}", folder, directory)


def _count(values: Mapping[str, Any], flag: str, smallest: int = 1, largest: int = 10**6) -> int | None:
    return converted(values, flag, partial(_whole, smallest=smallest, largest=largest))


def _whole(given: str, smallest: int, largest: int) -> int:
    if not (given.isascii() and given.isdecimal() and smallest <= int(given) <= largest):
        raise ValueError(f"expected a whole number from {smallest} to {largest}")
    return int(given)


def _hours(given: str) -> float:
    number = float(given) if given.replace(".", "", 1).isdecimal() and given.isascii() else 0.0
    if not 0 < number < 1e9:
        raise ValueError("expected a number of GPU-hours above 0, such as 200")
    return number


def _purpose(values: Mapping[str, Any]) -> Purpose:
    given = [flag for flag in PURPOSES if value(values, flag) and values.get(destination(flag))]
    if len(given) > 1:
        raise SettingsError(f"{given[0]} and {given[1]} exclude each other: one launch does one of them")
    return PURPOSES[given[0]] if given else Purpose.MEASURE


def _refuse_contradictions(settings: LaunchSettings) -> None:
    modes = [name for name in ("dry_run", "submit_only", "collect", "resume") if getattr(settings, name)]
    allowed = (["dry_run", "resume"], ["submit_only", "resume"], ["dry_run", "submit_only"])
    if len(modes) > 1 and modes not in allowed:
        first, second = (f"--llmb-{name.replace('_', '-')}" for name in modes[:2])
        raise SettingsError(f"{first} and {second} exclude each other")
    if settings.session and not settings.goes_on:
        raise SettingsError("--llmb-session is for --llmb-resume and --llmb-collect: a new session gets a new id")
    if settings.purpose is not Purpose.MEASURE and settings.profile_on_regression:
        raise SettingsError("--llmb-profile-on-regression judges; it cannot stand beside another purpose of the launch")
