"""The settings of a launch, from the options that only launches have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any

from msgspec.structs import asdict

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
        names = (*FIXED_SETTINGS, *CLUSTER_SETTINGS)
        values = {name: getattr(self, name) for name in names}
        return values | limits | paths

    def restore_recorded(self, recorded: Mapping[str, Any]) -> LaunchSettings:
        """Return these settings, completed by those recorded when the session began.

        The recorded limits are kept unless new limits are given: with the defaults,
        jobs that were allowed to wait would be cancelled. Raises ValueError, TypeError,
        LookupError, AttributeError or OverflowError if no session could have recorded
        `recorded`.
        """
        defaults = LaunchSettings()
        # the first, the purpose, is an enum, and is checked at the end
        _, *settings_of_basic_types = FIXED_SETTINGS
        for name in (*settings_of_basic_types, *CLUSTER_SETTINGS):
            default = getattr(defaults, name)
            types: tuple[type, ...] = (type(default),)
            if name == "gpu_hours":  # its default is None
                types = (int, float, NoneType)
            _require_type(name, recorded.get(name, default), *types)
        restored = {name: recorded[name] for name in FIXED_SETTINGS if name in recorded}
        # everything else is restored only if no option gives it now
        restored |= {
            name: recorded[name]
            for name in CLUSTER_SETTINGS
            if name in recorded and not getattr(self, name)
        }
        if "stall_limit" in recorded and self.stall_limit == defaults.stall_limit:
            limits = StallLimits(**recorded["stall_limit"])
            _require_type("tell_seconds", limits.tell_seconds, int, float, NoneType)
            _require_type("cancels", limits.cancels, bool)
            restored["stall_limit"] = limits
        if "pending_limit" in recorded and self.pending_limit == defaults.pending_limit:
            restored["pending_limit"] = timedelta(seconds=recorded["pending_limit"])
        if recorded.get("cluster") and self.cluster is None:
            restored["cluster"] = Path(recorded["cluster"])
        if not self.recipes:
            restored["recipes"] = tuple(
                (name, Path(folder)) for name, folder in recorded.get("recipes", ())
            )
            for name, _ in restored["recipes"]:
                _require_type("a recipe", name, str)
        restored["purpose"] = Purpose(recorded.get("purpose", self.purpose))
        return self.replace(**restored)

    def describe(self, directory: Path) -> Iterator[str]:
        """Yield the lines that describe the launch in the session's header."""
        from pytest_llmbench.launch.schedulers.registry import name_clusters

        if self.cluster:
            cluster = formatting.format_path(self.cluster, directory)
        elif self.continues:
            cluster = "the cluster of the session"
        else:
            cluster = f"this machine, or the cluster of its {name_clusters()}"
        repeats = ""
        if self.purpose is Purpose.MEASURE:
            most_runs = formatting.count_noun(self.repeats, "run")
            repeats = f"; up to {most_runs} of each configuration"
            if self.repeats > 2 and self.repeats_at_once:
                repeats += ", all but the first run at once"
            elif self.repeats > 2:
                repeats += ", one after the other"
        yield f"launch on: {cluster}{repeats}"
        if self.journal:
            yield f"journal: {formatting.format_path(self.journal, directory)}"
        stalls = _describe_stall_limit(self.stall_limit)
        # the recorded limit is used unless a new one is given
        if self.continues and self.stall_limit == LaunchSettings().stall_limit:
            stalls = "as when the session began"
        yield f"stalls: {stalls}"
        if self.purpose is not Purpose.MEASURE:
            yield f"purpose: {self.purpose}, not judged against a baseline"
        if self.ignored:
            yield f"ignored preflight checks: {', '.join(self.ignored)}"


def _make_absolute(text: str) -> str:
    """Make the path of a file of variants absolute.

    A range of commits (`git:v1..v2`) and "" are unchanged.
    """
    if not text or text.startswith(COMMITS):
        return text
    return str(Path(text).absolute())


def _describe_stall_limit(limit: StallLimits) -> str:
    """Describe when stalled jobs are reported and cancelled."""
    if limit.tell_seconds is not None:
        minutes = limit.tell_seconds / 60
        return f"warn after {minutes:g} min, cancel after {2 * minutes:g} min"
    warning = "warn after 10 min or 20 step times (before the first step: 30 min)"
    cancelling = "cancel after twice that" if limit.cancels else "never cancel"
    return f"{warning}, {cancelling}"


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


def _require_type(name: str, value: object, *types: type) -> None:
    """Raise TypeError if the type of the recorded setting `name` is not in `types`."""
    if type(value) not in types:  # not isinstance: True is an int
        expected = " or ".join(allowed.__name__ for allowed in types)
        raise TypeError(f"{name}: found {value!r:.40}, expected {expected}")


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
    """Return the purpose that an option requests; default: MEASURE.

    Raises SettingsError if several options request one.
    """
    # the first condition is false for an empty text, the second for an unset switch
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
    allowed_pairs = (
        ["dry_run", "resume"],
        ["submit_only", "resume"],
        ["dry_run", "submit_only"],
    )
    if len(modes) > 1 and modes not in allowed_pairs:
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
            f"{flag} cannot be used with --llmb-submit-only: it chooses each run by the result of the run before"
        )
    if settings.purpose is not Purpose.MEASURE and settings.profile_on_regression:
        raise SettingsError(
            "--llmb-profile-on-regression needs a launch that is judged. Remove it, or the option with the other purpose"
        )
