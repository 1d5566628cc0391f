"""Option and ini values, resolved once into frozen `Settings`."""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmbench.errors import SettingsError, did_you_mean
from pytest_llmbench.models import Tolerance
from pytest_llmbench.options import OPTIONS, destination
from pytest_llmbench.tolerance import merged, parse_fraction, parse_tolerances

Converted = TypeVar("Converted")

_PERCENT = partial(parse_fraction, expected="a percentage such as 1% or 0.5%")

ASSUMED_CV = 0.01
DEFAULT_TOLERANCE = Tolerance(0.05, source="default")
CERTIFIED = Tolerance(0.05, "performance", larger_is_better=True, source="--llmb-certify")
"""A certified cluster has at least 95 % of the published performance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one session was asked to do.

    `tolerances` are those of the command line and the ini file, one for each `tolerance.slot`; for the other slots the
    baseline files decide. `against` is empty for recorded baselines where there are any, `repeat_window` None for no
    repeats but those of one launch, `assumed_cv` a fraction.
    """

    logs: tuple[Path, ...] = ()
    baselines: tuple[Path, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()
    require: tuple[str, ...] = ()
    unmatched: str = "fail"
    release: str = ""
    gpu: str = ""
    runs: str = "newest"
    since: datetime | None = None
    max_age: timedelta | None = None
    against: str = ""
    baseline_release: str = ""
    record: Path | None = None
    junit: Path | None = None
    inconclusive: str = "literal"
    improvement: str = "pass"
    scaling: str = "report"
    repeat_window: timedelta | None = None
    assumed_cv: float = ASSUMED_CV
    certify: bool = False
    selftest: bool = False


def resolve(values: Mapping[str, Any], directory: Path) -> Settings:
    """Build Settings from option values by `dest` (None or empty: not given); relative paths are below `directory`.

    `values` were typed; those of a ChainMap's first layer were, and those of its second stand in the ini file. Raises
    SettingsError for the first value that cannot be used.
    """
    typed, ini = _layers(values)
    settings = Settings(
        logs=tuple(_existing("--llmb-logs", text, directory) for text in values.get("llmb_logs") or ()),
        baselines=tuple(_folder("--llmb-baselines", text, directory) for text in values.get("llmb_baselines") or ()),
        tolerances=_tolerances(typed, ini),
        require=tuple(_patterns(values.get("llmb_require") or (), directory)),
        unmatched=_chosen(values, "--llmb-unmatched", "fail"),
        release=_text(values, "--llmb-release"),
        gpu=_text(values, "--llmb-gpu").lower(),
        runs=_chosen(values, "--llmb-runs", "newest"),
        since=_converted(values, "--llmb-since", parse_moment),
        max_age=_converted(values, "--llmb-max-age", parse_age),
        against=_chosen(values, "--llmb-against", "recorded") if values.get("llmb_against") else "",
        baseline_release=_text(values, "--llmb-baseline-release"),
        record=_output(values, "--llmb-record", directory),
        junit=_output(values, "--llmb-junit", directory),
        inconclusive=_chosen(values, "--llmb-inconclusive", "literal"),
        improvement=_chosen(values, "--llmb-improvement", "pass"),
        scaling=_chosen(values, "--llmb-scaling", "report"),
        repeat_window=_converted(values, "--llmb-repeat-window", parse_window),
        assumed_cv=_converted(values, "--llmb-assumed-cv", _PERCENT) or ASSUMED_CV,
        certify=bool(values.get("llmb_certify")),
        selftest=bool(values.get("llmb_selftest")),
    )
    _refuse_judging_flags(settings)
    return _certifying(settings, typed) if settings.certify else settings


def parse_age(text: str) -> timedelta:
    """Read `90m`, `36h`, `1.5d` or `2w`; ValueError otherwise."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text)
    if not found or float(found[1]) == 0:
        raise ValueError("expected a number above 0 with m, h, d or w, such as 36h")
    return (
        float(found[1])
        * {
            "m": timedelta(minutes=1),
            "h": timedelta(hours=1),
            "d": timedelta(days=1),
            "w": timedelta(weeks=1),
        }[found[2]]
    )


def parse_window(text: str) -> timedelta | None:
    """Read an age as `parse_age` does, and `0` (`0h`) as None; ValueError otherwise."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_moment(text: str) -> datetime:
    """Read an ISO date or time; without a zone it is local time. ValueError otherwise."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError("expected a date such as 2025-11-20 or a time such as 2025-11-20T06:00") from None


def _refuse_judging_flags(settings: Settings) -> None:
    """Refuse what has to judge in a session that only records."""
    for flag, given in (("--llmb-certify", settings.certify), ("--llmb-selftest", settings.selftest)):
        if given and settings.record is not None:
            raise SettingsError(f"{flag} with --llmb-record: a session that records judges nothing; run two sessions")


def _certifying(settings: Settings, typed: Mapping[str, Any]) -> Settings:
    """Return what a certificate rests on: nothing untold, nothing missing, and the published performance.

    Only the command line and the ini file may say another tolerance or baseline, and nothing another `inconclusive`.
    """
    mode = _value(typed, "--llmb-inconclusive")
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
    )


def _at_most(weakest: Sequence[Tolerance], given: Sequence[Tolerance]) -> tuple[Tolerance, ...]:
    """Return tolerances for a certificate: what was typed counts, and what stands in a file only if it is stricter."""
    stricter = [one for one in given if one.source == "--llmb-tolerance" or one.factor < weakest[0].factor]
    return merged(weakest, stricter)


def _layers(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what was typed, and what stands in the ini file."""
    return (values.maps[0], values.parents) if isinstance(values, ChainMap) else (values, {})


def _tolerances(typed: Mapping[str, Any], ini: Mapping[str, Any]) -> tuple[Tolerance, ...]:
    flag = "--llmb-tolerance"
    weaker = _converted(ini, flag, partial(parse_tolerances, source="ini"))
    stronger = _converted(typed, flag, partial(parse_tolerances, source=flag))
    return merged(weaker or (), stronger or ())


def _value(values: Mapping[str, Any], flag: str) -> str | None:
    value = values.get(destination(flag))
    return None if value is None or value == "" else str(value).strip()


def _text(values: Mapping[str, Any], flag: str) -> str:
    return _value(values, flag) or ""


def _chosen(values: Mapping[str, Any], flag: str, default: str) -> str:
    choices = next(option.choices for option in OPTIONS if option.flag == flag)
    value = _value(values, flag) or default
    if value not in choices:
        raise SettingsError(
            f"{flag}={value}: expected {', '.join(choices[:-1])} or {choices[-1]}{did_you_mean(value, choices)}"
        )
    return value


def _converted(values: Mapping[str, Any], flag: str, convert: Callable[[str], Converted]) -> Converted | None:
    text = _value(values, flag)
    if text is None:
        return None
    try:
        return convert(text)
    except OverflowError:
        raise SettingsError(f"{flag}={text}: found a number that is too large") from None
    except ValueError as error:
        raise SettingsError(f"{flag}={text}: {error}") from None


def _path(flag: str, text: object, directory: Path) -> Path:
    if not str(text).strip():
        raise SettingsError(f"{flag}= is empty: give a path")
    return directory / Path(str(text)).expanduser()


def _existing(flag: str, text: object, directory: Path) -> Path:
    path = _path(flag, text, directory)
    if path.exists():
        return path
    if path.is_symlink():
        raise SettingsError(f"{flag}={text}: a broken link, to {os.readlink(path)}")
    parent = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(parent).parts[0]
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    raise SettingsError(f"{flag}={text} does not exist: {parent} has no {missing!r}{did_you_mean(missing, names)}")


def _folder(flag: str, text: object, directory: Path) -> Path:
    path = _existing(flag, text, directory)
    if not path.is_dir():
        raise SettingsError(f"{flag}={text}: {path} is a file; give the folder that holds it")
    return path


def _output(values: Mapping[str, Any], flag: str, directory: Path) -> Path | None:
    text = _value(values, flag)
    if text is None:
        return None
    path = _path(flag, text, directory)
    folder_wanted = flag == "--llmb-record"
    if path.exists() and path.is_dir() is not folder_wanted:
        raise SettingsError(f"{flag}={text}: {path} is a {'file' if folder_wanted else 'folder'}")
    parent = next(parent for parent in (path, *path.parents) if parent.exists() and (parent != path or folder_wanted))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{flag}={text}: cannot write below {parent}")
    return path


def _patterns(given: Sequence[object], directory: Path) -> list[str]:
    """Expand files of patterns, one a line, `#` starts a comment."""
    patterns: list[str] = []
    for text in map(str, given):
        path = directory / Path(text).expanduser()
        if text and path.is_file():
            lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
            found = [line for line in lines if line]
            if not found:
                raise SettingsError(f"--llmb-require={text}: the file names no configuration")
            patterns += found
        else:
            patterns.append(text.strip())
    if "" in patterns:
        raise SettingsError("--llmb-require= is empty: give an id, a pattern, a file or all")
    return patterns
