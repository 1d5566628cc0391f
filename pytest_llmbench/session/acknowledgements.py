"""Parsing of the file of acknowledged changes (--llmb-acknowledged).

Each entry accepts a change of step time, with a name, a reason and an expiry date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from pytest_llmbench.core.codes import ACCEPTABLE, Reason
from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.option import parse_nodes
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.run_records import (
    AcceptedRecording,
    Acknowledgement,
    RecordingRule,
)
from pytest_llmbench.core.tolerance import parse_fraction
from pytest_llmbench.core.yamlfile import (
    ConvertedScalar,
    Fields,
    Items,
    Number,
    Report,
    Text,
    YamlMapping,
    read_document,
    read_entry,
)
from pytest_llmbench.judge.acknowledged import LARGEST
from pytest_llmbench.session.catalog import Catalog

LONGEST = timedelta(days=366)  # a longer acknowledgement must be renewed each year
# A forgotten entry would let every recording drift.
LONGEST_RECORDING = timedelta(days=31)

INSTEAD = "record a new baseline for a larger change, with `accept: drift` in the file of --llmb-acknowledged"

# Two acknowledgements of one configuration that start within this time are for the same
# change, which must be accepted only once.
SAME = timedelta(days=7)


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected a day such as 2025-11-20") from None


def _parse_slower(text: str) -> float:
    try:
        return parse_fraction(text, "a percentage such as 6%", LARGEST)
    except ValueError as error:
        raise ValueError(f"{error}; {INSTEAD}") from None


def _parse_reason(text: str) -> Reason:
    if text not in ACCEPTABLE:
        codes = sorted(map(str, ACCEPTABLE))
        raise ValueError(
            f"found {text!r}, expected one of {', '.join(codes)}{did_you_mean(text, codes)}"
        )
    return Reason(text)


_PERCENT = ConvertedScalar(partial(parse_fraction, expected="a percentage such as 6%"))
_ENTRY = Fields(
    {
        "configuration": Text("an id or a pattern such as grok1*"),
        "since": ConvertedScalar(_parse_day),
        "expires": ConvertedScalar(_parse_day),
        "reason": Text("the reason, in words"),
        "by": Text("a name"),
    },
    {
        "slower": ConvertedScalar(_parse_slower),
        "faster": _PERCENT,
        "accept": ConvertedScalar(_parse_reason),
    },
)
_REPAIR = Fields(
    {
        "nodes": ConvertedScalar(parse_nodes),
        "since": ConvertedScalar(_parse_day),
        "reason": Text("what was done, in words"),
        "by": Text("a name"),
    }
)
_RECORDING = Fields(
    {
        "configuration": Text("an id or a pattern such as grok1*"),
        "accept": Text(choices=tuple(map(str, RecordingRule))),
        "expires": ConvertedScalar(_parse_day),
        "reason": Text("the reason, in words"),
        "by": Text("a name"),
    },
    {"since": ConvertedScalar(_parse_day)},
)
_FILE = Fields(
    {"schema": Number(1, 1, whole=True), "acknowledged": Items(_ENTRY, least=0)},
    {"repaired": Items(_REPAIR, least=0), "recordings": Items(_RECORDING, least=0)},
)


@dataclass(frozen=True, slots=True)
class AcknowledgedFile:
    """The contents of a file of acknowledged changes."""

    changes: tuple[Acknowledgement, ...]
    recordings: tuple[AcceptedRecording, ...]  # waived recording rules
    last_repair: date | None  # the day of the latest node repair


def read_acknowledged(
    path: Path, names: Sequence[str], today: date, *, others: bool = False
) -> AcknowledgedFile:
    """Read a file of acknowledged changes.

    `names` are the ids of the known configurations; with `others`, there may be more.
    Raises SettingsError with file, line, found and expected value. Refuses unknown
    configurations, changes that are accepted twice, expiry dates too far from `today`,
    and future repairs.
    """

    def check(entry: YamlMapping, report: Report) -> None:
        changes = entry["acknowledged"]
        for position, change in enumerate(changes):
            if not others:
                _check_name(change, names, report)
            _check_change(change, today, report)
            _check_once(change, changes[:position], names, report)
        for recording in entry.get("recordings") or ():
            _check_recording(recording, today, report)
        for repair in entry.get("repaired") or ():
            _check_repair(repair, today, report)

    root = read_document(
        path, what="file of acknowledged changes", raises=SettingsError
    )
    entry = read_entry(path, root, _FILE, check=check, raises=SettingsError)
    repairs = [repair["since"] for repair in entry.get("repaired") or ()]
    return AcknowledgedFile(
        tuple(_make_acknowledgement(change, path) for change in entry["acknowledged"]),
        tuple(map(_make_recording, entry.get("recordings") or ())),
        max(repairs, default=None),
    )


def with_acknowledged(catalog: Catalog, path: Path, today: date) -> Catalog:
    """Add the entries of a file to a catalog."""
    file = read_acknowledged(path, [key.id for key in catalog.baselines], today)
    return replace(
        catalog,
        acknowledged=file.changes,
        accepted_recordings=file.recordings,
        last_repair=file.last_repair,
    )


def _check_name(entry: YamlMapping, names: Sequence[str], report: Report) -> None:
    pattern = entry["configuration"]
    if not any(fnmatchcase(name, pattern) for name in names):
        hint = did_you_mean(pattern, names)
        report(
            entry.lines["configuration"],
            f"found {pattern!r}, expected the id of a configuration or a pattern{hint}",
        )


def _check_change(entry: YamlMapping, today: date, report: Report) -> None:
    if len({"slower", "faster", "accept"} & entry.lines.keys()) != 1:
        report(
            entry.line,
            "found no change or several, expected exactly one of slower, faster and accept",
        )
    _check_days(entry, report)
    _check_expiry(entry, "a year", today + LONGEST, report)


def _check_recording(entry: YamlMapping, today: date, report: Report) -> None:
    if entry.get("since"):
        _check_days(entry, report)
    _check_expiry(entry, "a month", today + LONGEST_RECORDING, report)


def _check_repair(entry: YamlMapping, today: date, report: Report) -> None:
    if entry["since"] > today:
        report(
            entry.lines["since"],
            f"found {entry['since']}, expected a day not after today, {today}",
        )


def _check_days(entry: YamlMapping, report: Report) -> None:
    if entry["expires"] < entry["since"]:
        report(
            entry.lines["expires"],
            f"found {entry['expires']}, expected a day after {entry['since']}, the start",
        )


def _check_expiry(
    entry: YamlMapping, longest: str, latest: date, report: Report
) -> None:
    if entry["expires"] > latest:
        report(
            entry.lines["expires"],
            f"found {entry['expires']}, expected at most {longest} from now, {latest}",
        )


def _check_once(
    later: YamlMapping,
    others: Sequence[YamlMapping],
    names: Sequence[str],
    report: Report,
) -> None:
    """Report a change that is accepted twice."""
    # The level would move twice.
    for other in others:
        shared = [
            name
            for name in names
            if all(
                fnmatchcase(name, entry["configuration"]) for entry in (later, other)
            )
        ]
        if (
            shared
            and later.get("accept") == other.get("accept")
            and abs(later["since"] - other["since"]) <= SAME
        ):
            problem = f"found {shared[0]} again (first in line {other.line}), expected each change once"
            report(
                later.line,
                f"{problem}: edit the first entry, for example its `expires`",
            )
            return


def _read_fraction(entry: YamlMapping) -> float:
    if entry.get("accept"):
        return 0.0
    slower = entry.get("slower")
    return float(-entry["faster"] if slower is None else slower)


def _make_acknowledgement(entry: YamlMapping, path: Path) -> Acknowledgement:
    return Acknowledgement(
        configuration=entry["configuration"],
        fraction=_read_fraction(entry),
        since=entry["since"],
        expires=entry["expires"],
        reason=entry["reason"],
        by=entry["by"],
        place=f"{path.name}:{entry.line}",
        accepts=entry.get("accept"),
    )


def _make_recording(entry: YamlMapping) -> AcceptedRecording:
    return AcceptedRecording(
        entry["configuration"],
        RecordingRule(entry["accept"]),
        entry.get("since"),
        entry["expires"],
        redact_text(entry["reason"]),
    )
