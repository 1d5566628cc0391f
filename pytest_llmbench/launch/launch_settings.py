"""The settings of a launch, from the options that only launches have."""

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
"""The prefix of a range of commits, given in place of a file of variants."""


class LaunchSettings(LaunchOptions):
    """What to launch, and how. 0 and empty text mean: not given."""

    purpose: Purpose = Purpose.MEASURE

    # Only in journals of sessions that are older than the cluster file:
    recipes: tuple[tuple[str, Path], ...] = ()
    largest: int = 0
    gpus_per_node: int = 0

    @property
    def continues(self) -> bool:
        """True if this session continues an earlier session."""
        return self.collect or self.resume

    def to_journal(self) -> dict[str, Any]:
        """Return the settings that a later session needs to continue this session."""
        paths = {
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
            {name: getattr(self, name) for name in (*FIXED_SETTINGS, *CLUSTER_SETTINGS)}
            | limits
            | paths
        )

    def restore_recorded(self, recorded: Mapping[str, Any]) -> LaunchSettings:
        """Return these settings, completed by those recorded when the session began.

        The recorded limits are kept unless new limits are given: with the defaults,
        jobs that were allowed to wait would be cancelled. Raises ValueError, TypeError,
        LookupError, AttributeError or OverflowError if no session could have recorded
        `recorded`.
        """
        standard = LaunchSettings()
        for name in (*FIXED_SETTINGS[1:], *CLUSTER_SETTINGS):
            kinds = (
                (int, float, NoneType)
                if name == "gpu_hours"
                else (type(getattr(standard, name)),)
            )
            _require_type(name, recorded.get(name, getattr(standard, name)), *kinds)
        restored = {name: recorded[name] for name in FIXED_SETTINGS if name in recorded}
        restored |= {
            name: recorded[name]
            for name in CLUSTER_SETTINGS
            if name in recorded and not getattr(self, name)
        }
        if "stall_limit" in recorded and self.stall_limit == standard.stall_limit:
            limits = StallLimits(**recorded["stall_limit"])
            _require_type("tell_seconds", limits.tell_seconds, int, float, NoneType)
            _require_type("cancels", limits.cancels, bool)
            restored["stall_limit"] = limits
        if "pending_limit" in recorded and self.pending_limit == standard.pending_limit:
            restored["pending_limit"] = timedelta(seconds=recorded["pending_limit"])
        if recorded.get("cluster") and self.cluster is None:
            restored["cluster"] = Path(recorded["cluster"])
        if not self.recipes:
            restored["recipes"] = tuple(
                (name, Path(folder)) for name, folder in recorded.get("recipes", ())
            )
            for name, _ in restored["recipes"]:
                _require_type("a recipe", name, str)
        return self.replace(
            **restored | {"purpose": Purpose(recorded.get("purpose", self.purpose))}
        )

    def describe(self, directory: Path) -> Iterator[str]:
        """Yield the lines that describe the launch in the session's header."""
        from pytest_llmbench.launch.schedulers.registry import name_clusters

        default = (
            "the cluster of the session"
            if self.continues
            else f"this machine, or the cluster of its {name_clusters()}"
        )
        cluster = (
            formatting.format_path(self.cluster, directory) if self.cluster else default
        )
        limits = (
            f"up to {formatting.count_noun(self.repeats, 'run')} of each configuration"
        )
        if self.repeats > 2:
            limits += (
                ", all but the first run at once"
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
        is_kept = self.continues and self.stall_limit == LaunchSettings().stall_limit
        yield f"stalls: {'as when the session began' if is_kept else _describe_stall_limit(self.stall_limit)}"
        if self.purpose is not Purpose.MEASURE:
            yield f"purpose: {self.purpose}, not judged against a baseline"
        if self.ignored:
            yield f"ignored preflight checks: {', '.join(self.ignored)}"


def _make_absolute(text: str) -> str:
    """Make the path of a file of variants absolute; a range of commits is unchanged."""
    return text if not text or text.startswith(COMMITS) else str(Path(text).absolute())


def _describe_stall_limit(limit: StallLimits) -> str:
    if limit.tell_seconds is not None:
        minutes = limit.tell_seconds / 60
        return f"warn after {minutes:g} min, cancel after {2 * minutes:g} min"
    warning = "warn after 10 min or 20 step times (before the first step: 30 min)"
    return (
        f"{warning}, cancel after twice that"
        if limit.cancels
        else f"{warning}, never cancel"
    )


def resolve_launch(
    option_values: Mapping[str, Any], directory: Path
) -> LaunchSettings | None:
    """Resolve the launch settings, or return None for a session without a launch.

    Raises SettingsError.
    """
    if not any(option_values.get(name_destination(flag)) for flag in LAUNCHING):
        return None
    if problem := describe_missing_proc():
        raise SettingsError(f"--llmb-launch: {problem}")
    values = OptionValues.of(option_values)
    fields = resolve_fields(LaunchSettings, values, directory)
    settings = LaunchSettings(**fields, purpose=_choose_purpose(values))
    _refuse_contradicting_launch(settings)
    return settings


def _require_type(name: str, value: object, *kinds: type) -> None:
    if type(value) not in kinds:  # not isinstance: True is an int
        raise TypeError(
            f"{name}: found {value!r:.40}, expected {' or '.join(kind.__name__ for kind in kinds)}"
        )


# settings that a session keeps to its end, whatever the options of a session that
# continues it
FIXED_SETTINGS = (
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


# settings of the cluster, taken from the journal unless given again: the continuing
# session may be started in another folder
CLUSTER_SETTINGS = ("largest", "gpus_per_node", "exclude", "nodelist", "gpu_hours")


def _choose_purpose(values: OptionValues) -> Purpose:
    """Return the purpose that an option requests.

    Raises SettingsError if several options request one.
    """
    requested = {
        flag: purpose
        for purpose, flag in PURPOSE_FLAGS.items()
        if values.get_text(flag) and values.get(name_destination(flag))
    }
    if len(requested) > 1:
        first, second, *_ = requested
        raise SettingsError(
            f"{first} and {second} exclude each other. Give only one of them for a launch"
        )
    return next(iter(requested.values()), Purpose.MEASURE)


def _refuse_contradicting_launch(settings: LaunchSettings) -> None:
    """Raise SettingsError if two launch options contradict each other."""
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
    if settings.session and not settings.continues:
        raise SettingsError(
            "--llmb-session needs --llmb-resume or --llmb-collect. A new session gets a new id"
        )
    if settings.ignored and settings.continues and not settings.dry_run:
        raise SettingsError(
            "--llmb-ignore cannot be used with a resumed or collected session: its checks ran when it began"
        )
    if settings.submit_only and settings.purpose in TRIALS:
        flag = PURPOSE_FLAGS[settings.purpose]
        raise SettingsError(
            f"{flag} and --llmb-submit-only exclude each other: each run decides the next one"
        )
    if settings.purpose is not Purpose.MEASURE and settings.profile_on_regression:
        raise SettingsError(
            "--llmb-profile-on-regression needs a launch that is judged. Remove it, or the option with the other purpose"
        )
