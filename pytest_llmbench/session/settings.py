"""Option and ini values, resolved once into frozen `Settings`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


# By the documents: one step is no verdict on a run, so nothing rests on it later: no
# baseline, no certificate, no night of a history.
BY_DOCUMENT = "--llmb-timed=document"

REFUSED_BY_DOCUMENT = {
    "--llmb-record": "a baseline is a mean of many steps, and never the last one",
    "--llmb-certify": "a certificate does not rest on one step",
}
"""What a session by the documents cannot do, wherever it was asked for."""

UNUSED_BY_DOCUMENT = {
    "--llmb-history": "one step is no night of a history",
    "--llmb-acknowledged": "the tables know of no acknowledged change",
}
"""What it has no use for: refused where it was typed, left out where it stands in the
ini file."""


ALWAYS_CAUTIONED = ("--llmb-improvement", "--llmb-unmatched")
"""Options whose lenient value is reported wherever it was written."""

ENDINGS = {"--llmb-json": "json", "--llmb-html": "html", "--llmb-history": "db"}
"""How files that are no logs may be called; JUnit reports are XML."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a judging session knows of its launch."""

    launcher: str = ""
    """The launcher that every job gets, or ""."""
    cluster: Path | None = None
    """The cluster file."""


class Settings(SessionOptions):
    """What one session was asked to do: its options, and what follows from them."""

    logs: tuple[Path, ...] = ()
    """The paths of `log_paths`; a URL is a path of `formatting.to_path`."""
    suites: tuple[Path, ...] = ()
    """The suite files in `require`."""
    asked: tuple[str, ...] = ()
    """Item ids and shell patterns of ids by which configurations of tables are
    requested."""
    in_github_job: bool = False
    """True in a job of GitHub Actions that gets annotations."""
    step_summary: Path | None = None
    """The file from which GitHub reads the summary of a job."""
    any_improvement: bool = False
    """True if the user allowed a run to be faster by any amount; the default of
    `improvement` does not."""
    launch: LaunchRequest | None = None
    cache: Path | None = None
    """The folder of cached readings; None to read every log."""
    commit: str = ""
    """The commit that a CI tests, or ""."""
    history: StoreLocation | None = None
    """The store of `history_url`; None also while recording, and with
    --llmb-timed=document."""
    origins: Origins = NO_ORIGINS
    """Where each value was written."""
    overridden: tuple[str, ...] = ()
    """The options whose stricter ini key another value replaced."""

    @property
    def rules(self) -> SessionRules:
        """The options that decide over verdicts."""
        return SessionRules(
            self.inconclusive,
            self.improvement,
            self.certify,
            self.against,
            records=self.record is not None,
        )


ASSUMED_CV = Settings().assumed_cv
"""The run-to-run variation that is assumed where nobody says another."""


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
    """Return the path of logs that exists, a URL as a path, or `<stdin>` for `-`.

    Raises SettingsError also for a protocol without its package, and for a standard
    input without a pipe.
    """
    from pytest_llmbench.core.formatting import is_url
    from pytest_llmbench.logs.sources import remote, stores

    if path.strip() == "-":
        return stores.check_input(stated, sys.stdin)
    if is_url(path):
        return remote.check_url(stated, path)
    return find_existing(f"{stated}={path}", path, directory)


def _locate_history(values: OptionValues, directory: Path) -> StoreLocation | None:
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
    """Return the files that a session writes, by flag; None where one was not asked
    for."""
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
    """Return the files that a session reads and somebody wrote, by flag; of a folder of
    baselines those that the session would write there."""
    written = [
        path
        for path in list_outputs(settings).values()
        if path and path.suffix.lower() in SUITES
    ]
    required = [
        directory / expand_home(str(text)) for text in values.get("llmb_require") or ()
    ]
    return {
        **{f"--llmb-logs={place}": place for place in settings.logs},
        **{
            f"--llmb-require={place}": place
            for place in required
            if os.path.isfile(place)
        },
        **{
            f"--llmb-baselines={place}": path
            for place in settings.baselines
            for path in written
            if place in path.parents
        },
        "--llmb-acknowledged": settings.acknowledged,
        "--llmb-cluster": settings.launch.cluster if settings.launch else None,
    }


def _choose_github(mode: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a job of GitHub Actions, if this is one and the mode allows
    it."""
    in_job = mode == "auto" and environment.get("GITHUB_ACTIONS") == "true"
    summary = environment.get("GITHUB_STEP_SUMMARY", "") if in_job else ""
    return {"in_github_job": in_job, "step_summary": Path(summary) if summary else None}


def _refuse_contradictions(settings: Settings, typed: OptionValues) -> None:
    """Refuse what has to judge in a session that only records, and what a launch has no
    use for."""
    typed_history = typed.get_text("--llmb-history") is not None
    for flag, count in (
        ("--llmb-certify", settings.certify),
        ("--llmb-selftest", settings.selftest),
        ("--llmb-history", typed_history),
    ):
        if count and settings.record is not None:
            raise SettingsError(
                f"{flag} with --llmb-record: a session that records judges nothing; run two sessions"
            )
    if settings.launch is None:
        return
    for flag, useless in (
        ("--llmb-selftest", settings.selftest),
        ("--llmb-runs=each", settings.runs == "each"),
        ("--llmb-since", settings.since is not None),
        ("--llmb-max-age", settings.max_age is not None),
    ):
        if useless:
            raise SettingsError(
                f"{flag} with a launch: it is about runs on disk; judge them with --llmb-logs alone"
            )


def _refuse_idle_trend(settings: Settings, typed: OptionValues) -> None:
    """Refuse --llmb-trend=fail where it was typed and there is nothing to search for
    changes."""
    # It would never fail. An ini file may say it for other sessions.
    if typed.get_text("--llmb-trend") != "fail":
        return
    if settings.record is not None:
        raise SettingsError(
            "--llmb-trend=fail with --llmb-record: a session that records looks for no change"
        )
    if settings.launch is not None and not settings.logs and settings.history is None:
        raise SettingsError(
            "--llmb-trend=fail with a launch that knows of no earlier night: add --llmb-history or --llmb-logs"
        )


def _time_by_document(settings: Settings, typed: OptionValues) -> Settings:
    """Return the settings of a session that judges by the documents: against published
    baselines, and without what would outlive it. Raises SettingsError for what
    contradicts that."""
    asked = {
        "--llmb-record": settings.record is not None,
        "--llmb-certify": settings.certify,
    }
    asked |= {
        flag: bool(typed.get(name_destination(flag))) for flag in UNUSED_BY_DOCUMENT
    }
    for flag, why in {**REFUSED_BY_DOCUMENT, **UNUSED_BY_DOCUMENT}.items():
        if asked[flag]:
            raise SettingsError(
                f"{BY_DOCUMENT} with {flag}: {why}; give --llmb-timed=window, or leave {flag} out"
            )
    against = str(typed.get("llmb_against") or "published")
    if against != "published":
        raise SettingsError(
            f"{BY_DOCUMENT} with --llmb-against={against}: only published baselines have a document"
        )
    return settings.replace(against="published", history=None, acknowledged=None)


def _restrict_to_certificate(settings: Settings, typed: OptionValues) -> Settings:
    """Return what a certificate rests on: nothing untold, nothing missing, and the
    published performance."""
    # Only the command line and the ini file may say another tolerance or baseline, only
    # the command line that a run may be faster by any amount, and nothing another
    # `inconclusive`.
    mode = typed.get_text("--llmb-inconclusive")
    if mode not in (None, "fail"):
        raise SettingsError(
            f"--llmb-inconclusive={mode} with --llmb-certify: a certificate does not rest on a run that cannot tell; "
            "leave it out"
        )
    return settings.replace(
        tolerances=_limit_tolerances([CERTIFIED], settings.tolerances),
        require=(*settings.require, "all"),
        against=settings.against or "published",
        inconclusive="fail",
        any_improvement=typed.get_text("--llmb-improvement") == "pass",
    )


def _limit_tolerances(
    weakest: Sequence[Tolerance], tolerances: Sequence[Tolerance]
) -> tuple[Tolerance, ...]:
    """Return tolerances for a certificate: what was typed counts, and what stands in a
    file only if it is stricter."""
    stricter = [
        tolerance
        for tolerance in tolerances
        if tolerance.source == ToleranceSource.OPTION
        or tolerance.factor < weakest[0].factor
    ]
    return merge_tolerances(weakest, stricter)


def _list_overridden(values: OptionValues, ini: OptionValues) -> Iterator[str]:
    """Yield the options that make less fail than their ini key would."""
    modes = [
        option.flag
        for option in list_rows(Settings).values()
        if "fail" in option.choices and option.flag not in ALWAYS_CAUTIONED
    ]
    for flag in modes:
        if ini.get_text(flag) == "fail" and values.get_text(flag) not in (None, "fail"):
            yield flag
    required = values.get("llmb_require")
    if (
        required
        and "all" not in required
        and not set(ini.get("llmb_require") or ()) <= set(required)
    ):
        yield "--llmb-require"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where this user's caches are: in $XDG_CACHE_HOME or ~/.cache; None where
    there is neither."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    above = stated if os.path.isabs(stated) else os.path.join(home, ".cache")
    return Path(above) / "pytest-llmbench" if os.path.isabs(above) else None


def _refuse_replacing(written: Mapping[str, Path | None]) -> None:
    """Refuse a report in the place of something else of the user's. Raises
    SettingsError."""
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
    """Refuse to write what is one of the logs, or would be read as one by the next
    session. Raises SettingsError."""
    from pytest_llmbench.runs.discover.job_folders import is_relevant

    refuse_shared({f"--llmb-logs={place}": place for place in logs}, written)
    folders = [Path(os.path.realpath(place)) for place in logs if os.path.isdir(place)]
    for flag, path in written.items():
        if path is None or is_stream(path) or not is_relevant(path.name):
            continue
        if not {
            Path(os.path.realpath(path.parent)),
            *Path(os.path.realpath(path)).parents,
        }.isdisjoint(folders):
            raise SettingsError(
                f"{flag}={path}: below --llmb-logs a file of this name is read as a log: give it another name, such as "
                f"{path.stem}.{ENDINGS.get(flag, 'xml')}, or another folder"
            )


def refuse_shared(
    read: Mapping[str, Path | None], written: Mapping[str, Path | None]
) -> None:
    """Refuse one file under two options where the session would write it: what is
    written last replaces the other.

    Devices and pipes may be shared. Both map flags to places, None where one was not
    given. Raises SettingsError.
    """
    seen = {
        os.path.realpath(path): flag for flag, path in read.items() if path is not None
    }
    for flag, path in written.items():
        if path is None or is_stream(path):
            continue
        other = seen.setdefault(
            os.path.realpath(path), flag
        )  # a loop of links is itself
        if other != flag:
            raise SettingsError(
                f"{flag}={path}: {other} is the same file, one would replace the other: give it another name"
            )
