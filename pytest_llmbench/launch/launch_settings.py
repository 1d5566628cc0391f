"""What a session launches, and how: the options of launches, once each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.job_records import PURPOSE_FLAGS, TRIALS, Purpose
from pytest_llmbench.core.option import OptionValues, name_destination, resolve_fields
from pytest_llmbench.core.options import LAUNCHING, LaunchOptions
from pytest_llmbench.core.runtime import describe_missing_proc
from pytest_llmbench.core.stall_limits import StallLimits

COMMITS = "git:"
"""Before a range of commits, where a file of variants could stand."""


class LaunchSettings(LaunchOptions):
    """What is launched, and how. 0 and empty text: not given."""

    purpose: Purpose = Purpose.MEASURE

    # Only in the journal of sessions that began before the cluster file had all of
    # this:
    recipes: tuple[tuple[str, Path], ...] = ()
    largest: int = 0
    gpus_per_node: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether it goes on with an earlier session."""
        return self.collect or self.resume

    def to_journal(self) -> dict[str, Any]:
        """Return what a session that goes on with this one has to know of it."""
        places = {
            "cluster": str(self.cluster.absolute()) if self.cluster else None,
            "ab": _make_absolute(self.ab),
            "bisect": _make_absolute(self.bisect),
            "recipes": [
                (name, str(folder.absolute())) for name, folder in self.recipes
            ],
        }
        limits = {
            "stall_limit": asdict(self.stall_limit),
            "pending_limit": self.pending_limit.total_seconds(),
        }
        return (
            {name: getattr(self, name) for name in (*KEPT, *DESCRIBING)}
            | limits
            | places
        )

    def restore_begun(self, noted: Mapping[str, Any]) -> LaunchSettings:
        """Return these settings with what was noted of the session that they go on
        with; its limits hold where none is set anew, or what was to live would be
        cancelled.

        ValueError, TypeError, LookupError, AttributeError or OverflowError for what no
        session noted.
        """
        standard = LaunchSettings()
        for name in (*KEPT[1:], *DESCRIBING):
            kinds = (
                (int, float, NoneType)
                if name == "gpu_hours"
                else (type(getattr(standard, name)),)
            )
            _require_type(name, noted.get(name, getattr(standard, name)), *kinds)
        kept = {name: noted[name] for name in KEPT if name in noted}
        kept |= {
            name: noted[name]
            for name in DESCRIBING
            if name in noted and not getattr(self, name)
        }
        if "stall_limit" in noted and self.stall_limit == standard.stall_limit:
            limits = StallLimits(**noted["stall_limit"])
            _require_type("tell_seconds", limits.tell_seconds, int, float, NoneType)
            _require_type("cancels", limits.cancels, bool)
            kept["stall_limit"] = limits
        if "pending_limit" in noted and self.pending_limit == standard.pending_limit:
            kept["pending_limit"] = timedelta(seconds=noted["pending_limit"])
        if noted.get("cluster") and self.cluster is None:
            kept["cluster"] = Path(noted["cluster"])
        if not self.recipes:
            kept["recipes"] = tuple(
                (name, Path(folder)) for name, folder in noted.get("recipes", ())
            )
            for name, _ in kept["recipes"]:
                _require_type("a recipe", name, str)
        return self.replace(
            **kept | {"purpose": Purpose(noted.get("purpose", self.purpose))}
        )

    def describe(self, directory: Path) -> Iterator[str]:
        """Yield what a session says of its launch before it starts."""
        from pytest_llmbench.launch.schedulers.registry import name_clusters

        here = (
            "the cluster of the session"
            if self.goes_on
            else f"this machine, or what its {name_clusters()} has"
        )
        cluster = (
            formatting.format_path(self.cluster, directory) if self.cluster else here
        )
        limits = f"up to {formatting.count_noun(self.repeats, 'run')} of each"
        if self.repeats > 2:
            limits += (
                ", all but the first at once"
                if self.repeats_at_once
                else ", one after the other"
            )
        yield (
            f"launch on: {cluster}; {limits}"
            if self.purpose is Purpose.MEASURE
            else f"launch on: {cluster}"
        )
        if self.journal:
            yield f"journal: {formatting.format_path(self.journal, directory)}"
        kept = self.goes_on and self.stall_limit == LaunchSettings().stall_limit
        yield f"stalls: {'as the session began' if kept else _describe_stall_limit(self.stall_limit)}"
        if self.purpose is not Purpose.MEASURE:
            yield f"for {self.purpose}: nothing is judged against a baseline"
        if self.ignored:
            yield f"preflight may be overruled: {', '.join(self.ignored)}"


def _make_absolute(text: str) -> str:
    """Return the file of variants so that another folder finds it; commits as they
    are."""
    return text if not text or text.startswith(COMMITS) else str(Path(text).absolute())


def _describe_stall_limit(limit: StallLimits) -> str:
    if limit.tell_seconds is not None:
        minutes = limit.tell_seconds / 60
        return f"told after {minutes:g} min, cancelled after {2 * minutes:g} min"
    begin = "told at 10 min or 20 gaps (first 30 min)"
    return (
        f"{begin}, cancelled at twice" if limit.cancels else f"{begin}, never cancelled"
    )


def resolve_launch(given: Mapping[str, Any], directory: Path) -> LaunchSettings | None:
    """Return what is launched, or None for a session that only judges runs on disk.

    Raises SettingsError.
    """
    if not any(given.get(name_destination(flag)) for flag in LAUNCHING):
        return None
    if problem := describe_missing_proc():
        raise SettingsError(f"--llmb-launch: {problem}")
    values = OptionValues.of(given)
    fields = resolve_fields(LaunchSettings, values, directory)
    settings = LaunchSettings(**fields, purpose=_choose_purpose(values))
    _refuse_contradicting_launch(settings)
    return settings


def _require_type(name: str, value: object, *kinds: type) -> None:
    if type(value) not in kinds:  # not isinstance: True is an int
        raise TypeError(f"{name} is {value!r:.40}")


# what a session does to its end, whatever the options of the one that goes on with it
KEPT = (
    "purpose",
    "profile",
    "checkpoint",
    "ab",
    "bisect",
    "repeats",
    "repeats_at_once",
    "node_checks",
    "retries",
    "launcher",
    "profile_on_regression",
)


# what describes its cluster, where the one that goes on with it says nothing: it may be
# started in another folder
DESCRIBING = ("largest", "gpus_per_node", "exclude", "nodelist", "gpu_hours")


def _choose_purpose(values: OptionValues) -> Purpose:
    asked = {
        flag: purpose
        for purpose, flag in PURPOSE_FLAGS.items()
        if values.get_text(flag) and values.get(name_destination(flag))
    }
    if len(asked) > 1:
        first, second, *_ = asked
        raise SettingsError(
            f"{first} and {second} exclude each other: one launch does one of them"
        )
    return next(iter(asked.values()), Purpose.MEASURE)


def _refuse_contradicting_launch(settings: LaunchSettings) -> None:
    modes = [
        name
        for name in ("dry_run", "submit_only", "collect", "resume")
        if getattr(settings, name)
    ]
    allowed = (
        ["dry_run", "resume"],
        ["submit_only", "resume"],
        ["dry_run", "submit_only"],
    )
    if len(modes) > 1 and modes not in allowed:
        first, second = (f"--llmb-{name.replace('_', '-')}" for name in modes[:2])
        raise SettingsError(f"{first} and {second} exclude each other")
    if settings.session and not settings.goes_on:
        raise SettingsError(
            "--llmb-session is for --llmb-resume and --llmb-collect: a new session gets a new id"
        )
    if settings.ignored and settings.goes_on and not settings.dry_run:
        raise SettingsError(
            "--llmb-ignore is for a new session: one that goes on was checked when it began"
        )
    if settings.submit_only and settings.purpose in TRIALS:
        flag = PURPOSE_FLAGS[settings.purpose]
        raise SettingsError(
            f"{flag} and --llmb-submit-only exclude each other: each run decides which one follows"
        )
    if settings.purpose is not Purpose.MEASURE and settings.profile_on_regression:
        raise SettingsError(
            "--llmb-profile-on-regression judges; it cannot stand beside another purpose of the launch"
        )
