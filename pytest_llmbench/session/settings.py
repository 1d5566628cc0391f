"""The settings of a session, resolved once from options and ini values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pytest_llmbench.core import runtime
from pytest_llmbench.core.baseline_records import TimedBy, Tolerance, ToleranceSource
from pytest_llmbench.core.errors import HistoryError, SettingsError
from pytest_llmbench.core.judgement_records import SessionRules
from pytest_llmbench.core.option import (
    NO_ORIGINS,
    SUITES,
    OptionValues,
    Origins,
    find_existing,
    list_rows,
    name_destination,
    resolve_fields,
)
from pytest_llmbench.core.options import SessionOptions
from pytest_llmbench.core.tolerance import DEFAULT_FRACTION, merge_tolerances
from pytest_llmbench.core.userfile import expand_home, is_stream
from pytest_llmbench.report.output_files import REPORTS, find_obstacle

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation

DEFAULT_TOLERANCE = Tolerance(DEFAULT_FRACTION, source=ToleranceSource.DEFAULT)
# A certified cluster has at least 95 % of the published performance, so 5.26 % more
# time: 1 / 0.95.
CERTIFIED = Tolerance(
    0.05, "performance", larger_is_better=True, source=ToleranceSource.CERTIFICATE
)


# A single step, as timed by most documents, is not sufficient for a verdict on a run.
# Therefore it is not used for a baseline, a certificate or the history.
BY_DOCUMENT = "--llmb-timed=document"

REFUSED_BY_DOCUMENT = {
    "--llmb-record": "a baseline is a mean of many steps, never a single step",
    "--llmb-certify": "a certificate cannot be based on a single step",
}
"""Options that --llmb-timed=document always refuses, with the reason."""

UNUSED_BY_DOCUMENT = {
    "--llmb-history": "a history does not store times of single steps",
    "--llmb-acknowledged": "published tables contain no acknowledged changes",
}
"""Options that --llmb-timed=document does not use, with the reason.

They are refused if typed, and ignored in the ini file.
"""


ALWAYS_CAUTIONED = ("--llmb-improvement", "--llmb-unmatched")
"""Options whose lenient value is reported wherever it was written."""

ENDINGS = {"--llmb-json": "json", "--llmb-html": "html", "--llmb-history": "db"}
"""Recommended suffixes of output files that are not read as logs; JUnit reports use
xml."""


class LaunchRequest(Struct, frozen=True):
    """The launch settings that affect judging."""

    launcher: str = ""
    """The launcher of all jobs, or ""."""
    cluster: Path | None = None
    """The cluster file."""


class Settings(SessionOptions):
    """The settings of one session: its options and the values derived from them."""

    logs: tuple[Path, ...] = ()
    """The paths of `log_paths`; a URL is converted by `formatting.to_path`."""
    suites: tuple[Path, ...] = ()
    """The suite files in `require`."""
    requested: tuple[str, ...] = ()
    """Item ids and shell patterns of ids that select configurations of tables."""
    in_github_job: bool = False
    """True in a GitHub Actions job that gets annotations."""
    step_summary: Path | None = None
    """The file for the job summary of GitHub Actions."""
    any_improvement: bool = False
    """True if --llmb-improvement=pass was given: a run may be faster by any amount.

    By default an implausibly fast run fails.
    """
    launch: LaunchRequest | None = None
    cache: Path | None = None
    """The folder of cached readings, or None to read every log."""
    commit: str = ""
    """The commit tested by the CI, or ""."""
    history: StoreLocation | None = None
    """The store of `history_url`.

    None while recording and with --llmb-timed=document.
    """
    origins: Origins = NO_ORIGINS
    """The origin of each value."""
    overridden: tuple[str, ...] = ()
    """Options whose stricter ini key is overridden."""

    @property
    def rules(self) -> SessionRules:
        """The options that affect verdicts."""
        return SessionRules(
            self.inconclusive,
            self.improvement,
            self.certify,
            self.against,
            records=self.record is not None,
        )


ASSUMED_CV = Settings().assumed_cv
"""The default of `assumed_cv`."""


def resolve(
    given: Mapping[str, Any], directory: Path, launch: LaunchRequest | None = None
) -> Settings:
    """Build Settings from option values by `dest` (None or empty: not given).

    Paths are relative to `directory`. Raises SettingsError for the first invalid value.
    """
    values = OptionValues.of(given)
    typed, ini = values.split_layers()
    fields = resolve_fields(Settings, values, directory)
    settings = Settings(
        **fields,
        **_choose_github(fields["github"], os.environ),
        logs=tuple(
            find_readable("--llmb-logs", path, directory)
            for path in fields["log_paths"]
        ),
        history=None if fields["record"] else _locate_history(values, directory),
        suites=_list_suites(values, directory),
        any_improvement=values.get_text("--llmb-improvement") == "pass",
        launch=launch,
        cache=None if fields["no_cache"] else cache_folder(os.environ),
        commit=runtime.read_commit(os.environ),
        origins=values.origins,
        overridden=tuple(_list_overridden(typed, ini)),
    )
    settings = (
        _time_by_document(settings, typed)
        if settings.timed == TimedBy.DOCUMENT
        else settings
    )
    _refuse_contradictions(settings, typed)
    _refuse_idle_trend(settings, typed)
    outputs = list_outputs(settings)
    refuse_shared(_list_inputs(settings, values, directory), outputs)
    refuse_logs(settings.logs, outputs)
    _refuse_replacing(outputs)
    return _restrict_to_certificate(settings, typed) if settings.certify else settings


def find_readable(stated: str, path: str, directory: Path) -> Path:
    """Return an existing path of logs, a URL as a path, or `<stdin>` for `-`.

    Raises SettingsError if the path does not exist, if the package for a protocol is
    missing, or if standard input is not a pipe.
    """
    from pytest_llmbench.core.formatting import is_url
    from pytest_llmbench.logs.sources import remote, stores

    if path.strip() == "-":
        return stores.check_input(stated, sys.stdin)
    if is_url(path):
        return remote.check_url(stated, path)
    return find_existing(f"{stated}={path}", path, directory)


def _locate_history(values: OptionValues, directory: Path) -> StoreLocation | None:
    """Return the location of --llmb-history, or None; raises SettingsError."""
    text = values.get_text("--llmb-history")
    if not text:
        return None
    from pytest_llmbench.history.store import locate_store

    try:
        return locate_store(text, directory)
    except HistoryError as error:
        raise SettingsError(values.state("--llmb-history", error)) from None


def _list_suites(values: OptionValues, directory: Path) -> tuple[Path, ...]:
    """Return the suite files among the requirements."""
    required = map(str, values.get("llmb_require") or ())
    suites = [path for path in required if Path(path).suffix.lower() in SUITES]
    return tuple(
        find_existing(values.state("--llmb-require", path), path, directory)
        for path in suites
    )


def list_outputs(settings: Settings) -> dict[str, Path | None]:
    """Return the files that the session writes, by flag; None if not requested."""
    reports = {
        f"--llmb-{name}": getattr(settings, name) for name in ("junit", "json", "html")
    }
    return {
        "--llmb-history": settings.history.file if settings.history else None,
        **reports,
    }


def _list_inputs(
    settings: Settings, values: OptionValues, directory: Path
) -> dict[str, Path | None]:
    """Return the user's files that no output may overwrite, by flag.

    These are the files that the session reads. Outputs with a YAML suffix in a folder of
    baselines are returned, too: a later session would read them as baselines.
    """
    yaml_outputs = [
        output
        for output in list_outputs(settings).values()
        if output and output.suffix.lower() in SUITES
    ]
    required = [
        directory / expand_home(str(text)) for text in values.get("llmb_require") or ()
    ]
    return {
        **{f"--llmb-logs={path}": path for path in settings.logs},
        **{f"--llmb-require={path}": path for path in required if os.path.isfile(path)},
        **{
            f"--llmb-baselines={path}": output
            for path in settings.baselines
            for output in yaml_outputs
            if path in output.parents
        },
        "--llmb-acknowledged": settings.acknowledged,
        "--llmb-cluster": settings.launch.cluster if settings.launch else None,
    }


def _choose_github(mode: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for GitHub Actions, if this is such a job and `mode` is
    "auto"."""
    in_job = mode == "auto" and environment.get("GITHUB_ACTIONS") == "true"
    summary = environment.get("GITHUB_STEP_SUMMARY", "") if in_job else ""
    return {"in_github_job": in_job, "step_summary": Path(summary) if summary else None}


def _refuse_contradictions(settings: Settings, typed: OptionValues) -> None:
    """Raise SettingsError for options that contradict a recording or a launch."""
    typed_history = typed.get_text("--llmb-history") is not None
    for flag, is_given in (
        ("--llmb-certify", settings.certify),
        ("--llmb-selftest", settings.selftest),
        ("--llmb-history", typed_history),
    ):
        if is_given and settings.record is not None:
            raise SettingsError(
                f"{flag} with --llmb-record: a session that records does not judge; run two sessions"
            )
    if settings.launch is None:
        return
    for flag, is_given in (
        ("--llmb-selftest", settings.selftest),
        ("--llmb-runs=each", settings.runs == "each"),
        ("--llmb-since", settings.since is not None),
        ("--llmb-max-age", settings.max_age is not None),
    ):
        if is_given:
            raise SettingsError(
                f"{flag} with a launch: it applies only to runs on disk; judge them with --llmb-logs, without a launch"
            )


def _refuse_idle_trend(settings: Settings, typed: OptionValues) -> None:
    """Raise SettingsError if --llmb-trend=fail was typed but could never fail.

    An ini file may contain --llmb-trend=fail for other sessions.
    """
    if typed.get_text("--llmb-trend") != "fail":
        return
    if settings.record is not None:
        raise SettingsError(
            "--llmb-trend=fail with --llmb-record: a session that records does not search for changes"
        )
    if settings.launch is not None and not settings.logs and settings.history is None:
        raise SettingsError(
            "--llmb-trend=fail with a launch needs earlier runs: add --llmb-history or --llmb-logs"
        )


def _time_by_document(settings: Settings, typed: OptionValues) -> Settings:
    """Restrict the settings to --llmb-timed=document.

    The session judges against published baselines and stores nothing. Raises
    SettingsError for contradicting options.
    """
    is_requested = {
        "--llmb-record": settings.record is not None,
        "--llmb-certify": settings.certify,
    }
    is_requested |= {
        flag: bool(typed.get(name_destination(flag))) for flag in UNUSED_BY_DOCUMENT
    }
    for flag, reason in {**REFUSED_BY_DOCUMENT, **UNUSED_BY_DOCUMENT}.items():
        if is_requested[flag]:
            raise SettingsError(
                f"{BY_DOCUMENT} with {flag}: {reason}; give --llmb-timed=window, or leave {flag} out"
            )
    against = str(typed.get("llmb_against") or "published")
    if against != "published":
        raise SettingsError(
            f"{BY_DOCUMENT} with --llmb-against={against}: only published baselines have a document"
        )
    return settings.replace(against="published", history=None, acknowledged=None)


def _restrict_to_certificate(settings: Settings, typed: OptionValues) -> Settings:
    """Restrict the settings to the settings of --llmb-certify.

    Inconclusive and missing configurations fail, and the published performance is
    required.
    """
    # The command line and the ini file may set another tolerance or baseline. Only the
    # command line may allow improvements of any size. `inconclusive` cannot be changed.
    mode = typed.get_text("--llmb-inconclusive")
    if mode not in (None, "fail"):
        raise SettingsError(
            f"--llmb-inconclusive={mode} with --llmb-certify: a certificate cannot be based on inconclusive runs; "
            "leave the option out"
        )
    return settings.replace(
        tolerances=_limit_tolerances(CERTIFIED, settings.tolerances),
        require=(*settings.require, "all"),
        against=settings.against or "published",
        inconclusive="fail",
        any_improvement=typed.get_text("--llmb-improvement") == "pass",
    )


def _limit_tolerances(
    required: Tolerance, tolerances: Sequence[Tolerance]
) -> tuple[Tolerance, ...]:
    """Return the tolerances for a certificate that requires a tolerance.

    Typed tolerances apply; tolerances in files apply only if they are stricter.
    """
    applicable_tolerances = [
        tolerance
        for tolerance in tolerances
        if tolerance.source == ToleranceSource.OPTION
        or tolerance.factor < required.factor
    ]
    return merge_tolerances([required], applicable_tolerances)


def _list_overridden(values: OptionValues, ini: OptionValues) -> Iterator[str]:
    """Yield the options that are more lenient than their ini key."""
    flags_that_may_fail = [
        option.flag
        for option in list_rows(Settings).values()
        if "fail" in option.choices and option.flag not in ALWAYS_CAUTIONED
    ]
    for flag in flags_that_may_fail:
        if ini.get_text(flag) == "fail" and values.get_text(flag) not in (None, "fail"):
            yield flag
    required = set(values.get("llmb_require") or ())
    required_in_ini = set(ini.get("llmb_require") or ())
    drops_requirement = "all" not in required and not required_in_ini <= required
    if required and drops_requirement:
        yield "--llmb-require"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the user's cache folder, in $XDG_CACHE_HOME or ~/.cache, or None."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    root = stated if os.path.isabs(stated) else os.path.join(home, ".cache")
    return Path(root) / "pytest-llmbench" if os.path.isabs(root) else None


def _refuse_replacing(written: Mapping[str, Path | None]) -> None:
    """Raise SettingsError if a report would overwrite another kind of file."""
    for flag, path in written.items():
        if path is None or flag not in REPORTS:
            continue
        try:
            obstacle = find_obstacle(path, REPORTS[flag])
        except OSError as error:
            obstacle = f"cannot be read: {error.strerror}; give another name"
        if obstacle:
            raise SettingsError(f"{flag}={path}: {obstacle}")


def refuse_logs(logs: Sequence[Path], written: Mapping[str, Path | None]) -> None:
    """Raise SettingsError if an output is a log, or would be read as a log later."""
    from pytest_llmbench.runs.discover.job_folders import is_relevant

    refuse_shared({f"--llmb-logs={log_path}": log_path for log_path in logs}, written)
    log_folders = {
        Path(os.path.realpath(log_path)) for log_path in logs if os.path.isdir(log_path)
    }
    for flag, path in written.items():
        if path is None or is_stream(path) or not is_relevant(path.name):
            continue
        # The name of a link is read in its own folder, and its target in another one.
        link_folder = Path(os.path.realpath(path.parent))
        target_folders = Path(os.path.realpath(path)).parents
        if not log_folders.isdisjoint({link_folder, *target_folders}):
            raise SettingsError(
                f"{flag}={path}: the file is in a folder of --llmb-logs and would be read as a log: give it another name, such as "
                f"{path.stem}.{ENDINGS.get(flag, 'xml')}, or another folder"
            )


def refuse_shared(
    read: Mapping[str, Path | None], written: Mapping[str, Path | None]
) -> None:
    """Raise SettingsError if two options name the same file and it would be written.

    Devices and pipes may be shared. Both mappings are by flag; None means not given.
    """
    flags_by_path = {
        os.path.realpath(path): flag for flag, path in read.items() if path is not None
    }
    for flag, path in written.items():
        if path is None or is_stream(path):
            continue
        real_path = os.path.realpath(path)  # a loop of links stays as it is
        other_flag = flags_by_path.setdefault(real_path, flag)
        if other_flag != flag:
            raise SettingsError(
                f"{flag}={path}: {other_flag} is the same file, and one would overwrite the other: give it another name"
            )
