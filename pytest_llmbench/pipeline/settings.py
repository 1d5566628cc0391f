"""Option and ini values, resolved once into frozen `Settings`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core import ci_environment
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.models import TimedBy, Tolerance
from pytest_llmbench.core.option_origins import Origins
from pytest_llmbench.core.options import destination
from pytest_llmbench.core.tolerance import merge_tolerances, parse_fraction, parse_tolerances
from pytest_llmbench.core.yamlfile.document import read_text_if_file
from pytest_llmbench.pipeline.document_timing import by_document
from pytest_llmbench.pipeline.launch.settings import LaunchSettings, resolve_launch
from pytest_llmbench.pipeline.option_values import (
    OptionValues,
    cache_folder,
    chosen,
    converted,
    existing,
    folder,
    history,
    layers,
    origins_of,
    output,
    parse_age,
    parse_moment,
    parse_window,
    readable,
    refuse_shared,
    stated_in,
    text,
    value,
    with_packages,
)

if TYPE_CHECKING:
    from pytest_llmbench.history.location import StoreLocation

_PERCENT = partial(parse_fraction, expected="a percentage such as 1% or 0.5%")

SUITES = (".yaml", ".yml")
"""The names of suite files, which no pattern ends in."""

ASSUMED_CV = 0.01
DEFAULT_TOLERANCE = Tolerance(0.05, source="default")
CERTIFIED = Tolerance(0.05, "performance", larger_is_better=True, source="--llmb-certify")
"""A certified cluster has at least 95 % of the published performance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one session was asked to do.

    `tolerances` are those of the command line and the ini file, one for each `tolerance.slot`; for the other slots the
    baseline files decide. `against` is empty for recorded baselines where there are any, `repeat_window` None for no
    repeats but those of one launch, `assumed_cv` a fraction, and so is `drift_budget`, None where the baseline files
    decide; `accept_drift` is why more may be recorded, `accept_levels` why runs of several levels may. `cache` is the
    folder of what was read before, None to read all. `any_improvement`: somebody said that a run may be faster by any
    amount. `github`: this is a job of GitHub Actions that is told what is red, in its `step_summary` too. `commit` is
    what a CI says that it tests, empty where none does. `history` is where verdicts are kept, None for nowhere, as in a
    session that records and judges nothing, or is `timed` as the documents do. `origins` says where what was given was
    written, `overridden` the options whose stricter value in the ini file does not count, since another was given.
    """

    logs: tuple[Path, ...] = ()
    baselines: tuple[Path, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()
    require: tuple[str, ...] = ()
    suites: tuple[Path, ...] = ()
    unmatched: str = "fail"
    release: str = ""
    gpu: str = ""
    runs: str = "newest"
    since: datetime | None = None
    max_age: timedelta | None = None
    against: str = ""
    timed: str = TimedBy.WINDOW
    baseline_release: str = ""
    record: Path | None = None
    accept_drift: str = ""
    accept_levels: str = ""
    drift_budget: float | None = None
    junit: Path | None = None
    json: Path | None = None
    github: bool = False
    step_summary: Path | None = None
    html: Path | None = None
    inconclusive: str = "literal"
    improvement: str = "pass"
    any_improvement: bool = False
    scaling: str = "report"
    trend: str = "report"
    acknowledged: Path | None = None
    repeat_window: timedelta | None = None
    assumed_cv: float = ASSUMED_CV
    certify: bool = False
    selftest: bool = False
    launch: LaunchSettings | None = None
    cache: Path | None = None
    commit: str = ""
    history: StoreLocation | None = None
    origins: Origins = field(default_factory=dict)
    overridden: tuple[str, ...] = ()


def resolve(values: Mapping[str, Any], directory: Path) -> Settings:
    """Build Settings from option values by `dest` (None or empty: not given); relative paths are below `directory`.

    `values` were typed; those of a ChainMap's first layer were, and those of its second stand in the ini file. Raises
    SettingsError for the first value that cannot be used.
    """
    typed, ini = layers(values)
    settings = Settings(
        logs=tuple(readable("--llmb-logs", one, directory) for one in values.get("llmb_logs") or ()),
        baselines=tuple(
            folder(stated_in(values, "--llmb-baselines", one), one, directory)
            for one in values.get("llmb_baselines") or ()
        ),
        tolerances=_tolerances(typed, ini),
        require=tuple(_patterns(values, directory)),
        suites=tuple(_suites(values, directory)),
        unmatched=chosen(values, "--llmb-unmatched", "fail"),
        release=text(values, "--llmb-release"),
        gpu=text(values, "--llmb-gpu").lower(),
        runs=chosen(values, "--llmb-runs", "newest"),
        since=converted(values, "--llmb-since", parse_moment),
        max_age=converted(values, "--llmb-max-age", parse_age),
        against=chosen(values, "--llmb-against", "recorded") if values.get("llmb_against") else "",
        timed=chosen(values, "--llmb-timed", TimedBy.WINDOW),
        baseline_release=text(values, "--llmb-baseline-release"),
        record=output(values, "--llmb-record", directory),
        accept_drift=text(values, "--llmb-accept-drift"),
        accept_levels=text(values, "--llmb-accept-levels"),
        drift_budget=converted(values, "--llmb-drift-budget", _PERCENT),
        junit=output(values, "--llmb-junit", directory),
        json=output(values, "--llmb-json", directory),
        **_github(values, os.environ),
        html=with_packages("--llmb-html", output(values, "--llmb-html", directory), "html", ("jinja2", "leather")),
        inconclusive=chosen(values, "--llmb-inconclusive", "literal"),
        improvement=chosen(values, "--llmb-improvement", "pass"),
        any_improvement=value(values, "--llmb-improvement") == "pass",
        scaling=chosen(values, "--llmb-scaling", "report"),
        trend=chosen(values, "--llmb-trend", "report"),
        acknowledged=_file(values, "--llmb-acknowledged", directory),
        repeat_window=converted(values, "--llmb-repeat-window", parse_window),
        assumed_cv=converted(values, "--llmb-assumed-cv", _PERCENT) or ASSUMED_CV,
        certify=bool(values.get("llmb_certify")),
        selftest=bool(values.get("llmb_selftest")),
        launch=resolve_launch(values, directory),
        cache=None if values.get("llmb_no_cache") else cache_folder(os.environ),
        commit=ci_environment.read_commit(os.environ),
        history=None if values.get("llmb_record") else history(values, directory),  # nothing is judged
        origins=origins_of(values),
        overridden=tuple(_overridden(typed, ini)),
    )
    settings = by_document(settings, typed) if settings.timed == TimedBy.DOCUMENT else settings
    _refuse_contradictions(settings, typed)
    _refuse_idle_trend(settings, typed)
    refuse_shared(_read(settings, values, directory), outputs(settings))
    return _certifying(settings, typed) if settings.certify else settings


def outputs(settings: Settings) -> dict[str, Path | None]:
    """Return the files that a session writes, by flag; None where one was not asked for."""
    reports = {f"--llmb-{name}": getattr(settings, name) for name in ("junit", "json", "html")}
    return {"--llmb-history": settings.history.file if settings.history else None, **reports}


def _read(settings: Settings, values: Mapping[str, Any], directory: Path) -> dict[str, Path | None]:
    """Return the files that a session reads and somebody wrote, by flag; of a folder of baselines those that the
    session would write there."""
    written = [path for path in outputs(settings).values() if path and path.suffix.lower() in SUITES]
    required = [directory / Path(str(one)).expanduser() for one in values.get("llmb_require") or ()]
    return {
        **{f"--llmb-logs={one}": one for one in settings.logs},
        **{f"--llmb-require={one}": one for one in required if os.path.isfile(one)},
        **{f"--llmb-baselines={one}": path for one in settings.baselines for path in written if one in path.parents},
        "--llmb-acknowledged": settings.acknowledged,
        "--llmb-cluster": settings.launch.cluster if settings.launch else None,
    }


def _github(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what is told to GitHub: nothing elsewhere, nor where it was switched off."""
    wanted = chosen(values, "--llmb-github", "auto") == "auto" and environment.get("GITHUB_ACTIONS") == "true"
    place = environment.get("GITHUB_STEP_SUMMARY", "")
    return {"github": wanted, "step_summary": Path(place) if wanted and place else None}


def _refuse_contradictions(settings: Settings, typed: Mapping[str, Any]) -> None:
    """Refuse what has to judge in a session that only records, and what a launch has no use for."""
    typed_history = value(typed, "--llmb-history") is not None
    for flag, given in (
        ("--llmb-certify", settings.certify),
        ("--llmb-selftest", settings.selftest),
        ("--llmb-history", typed_history),
    ):
        if given and settings.record is not None:
            raise SettingsError(f"{flag} with --llmb-record: a session that records judges nothing; run two sessions")
    for flag, reason in (("drift", settings.accept_drift), ("levels", settings.accept_levels)):
        if reason and settings.record is None:
            raise SettingsError(f"--llmb-accept-{flag} without --llmb-record: only what is recorded is accepted")
    if settings.launch is None:
        return
    for flag, useless in (
        ("--llmb-selftest", settings.selftest),
        ("--llmb-runs=each", settings.runs == "each"),
        ("--llmb-since", settings.since is not None),
        ("--llmb-max-age", settings.max_age is not None),
    ):
        if useless:
            raise SettingsError(f"{flag} with a launch: it is about runs on disk; judge them with --llmb-logs alone")


def _refuse_idle_trend(settings: Settings, typed: Mapping[str, Any]) -> None:
    """Refuse --llmb-trend=fail where it was typed and there is nothing to search for changes: it would never fail."""
    if value(typed, "--llmb-trend") != "fail":
        return
    if settings.record is not None:
        raise SettingsError("--llmb-trend=fail with --llmb-record: a session that records looks for no change")
    if settings.launch is not None and not settings.logs and settings.history is None:
        raise SettingsError(
            "--llmb-trend=fail with a launch that knows of no earlier night: add --llmb-history or --llmb-logs"
        )


def _certifying(settings: Settings, typed: Mapping[str, Any]) -> Settings:
    """Return what a certificate rests on: nothing untold, nothing missing, and the published performance.

    Only the command line and the ini file may say another tolerance or baseline, only the command line that a run may
    be faster by any amount, and nothing another `inconclusive`.
    """
    mode = value(typed, "--llmb-inconclusive")
    if mode not in (None, "fail"):
        raise SettingsError(
            f"--llmb-inconclusive={mode} with --llmb-certify: a certificate does not rest on a run that cannot tell; "
            "leave it out"
        )
    return replace(
        settings,
        tolerances=_at_most([CERTIFIED], settings.tolerances),
        require=(*settings.require, "all"),
        against=settings.against or "published",
        inconclusive="fail",
        any_improvement=value(typed, "--llmb-improvement") == "pass",
    )


def _at_most(weakest: Sequence[Tolerance], given: Sequence[Tolerance]) -> tuple[Tolerance, ...]:
    """Return tolerances for a certificate: what was typed counts, and what stands in a file only if it is stricter."""
    stricter = [one for one in given if one.source == "--llmb-tolerance" or one.factor < weakest[0].factor]
    return merge_tolerances(weakest, stricter)


def _tolerances(typed: OptionValues, ini: OptionValues) -> tuple[Tolerance, ...]:
    flag = "--llmb-tolerance"
    weaker = converted(ini, flag, partial(parse_tolerances, source="ini"))
    stronger = converted(typed, flag, partial(parse_tolerances, source=flag))
    return merge_tolerances(weaker or (), stronger or ())


def _overridden(given: Mapping[str, Any], ini: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that make less fail than their ini key would."""
    for flag in ("--llmb-trend", "--llmb-scaling", "--llmb-inconclusive"):
        if value(ini, flag) == "fail" and value(given, flag) not in (None, "fail"):
            yield flag
    required = given.get("llmb_require")
    if required and "all" not in required and not set(ini.get("llmb_require") or ()) <= set(required):
        yield "--llmb-require"


def _file(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    """Return a file that exists, None where none was given; an ini file may name one."""
    given = values.get(destination(flag))
    paths = given if isinstance(given, list) else [given] if given else []
    if len(paths) > 1:
        told = stated_in(values, flag, " ".join(map(str, paths)))
        raise SettingsError(f"{told}: found {len(paths)} paths, expected one")
    return existing(stated_in(values, flag, paths[0]), paths[0], directory) if paths else None


def _suites(values: Mapping[str, Any], directory: Path) -> list[Path]:
    """Return the suite files among what is required."""
    given = [one for one in values.get("llmb_require") or () if Path(str(one)).suffix.lower() in SUITES]
    return [existing(stated_in(values, "--llmb-require", one), one, directory) for one in given]


def _patterns(values: Mapping[str, Any], directory: Path) -> list[str]:
    """Expand files of patterns, one a line, `#` starts a comment; suite files are left to the catalog."""
    patterns: list[str] = []
    for one in map(str, values.get("llmb_require") or ()):
        what = stated_in(values, "--llmb-require", one)
        path = directory / Path(one).expanduser()
        if path.suffix.lower() in SUITES:
            continue
        if (text := read_text_if_file(path, what, SettingsError)) is not None:
            lines = (line.partition("#")[0].strip() for line in text.splitlines())
            found = [line for line in lines if line]
            if not found:
                raise SettingsError(f"{what}: the file names no configuration")
            patterns += found
        else:
            patterns.append(one.strip())
        if not patterns[-1]:
            raise SettingsError(f"{what} is empty: give an id, a pattern, a file or all")
    return patterns
