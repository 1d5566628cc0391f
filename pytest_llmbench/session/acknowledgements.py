"""Parsing of the file of acknowledged changes (--llmb-acknowledged).

Each entry accepts a change of step time, with a name, a reason and an expiry date.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

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

LONGEST = timedelta(days=366)
"""Longest validity of an accepted change from today: it must be renewed each year."""

LONGEST_RECORDING = timedelta(days=31)
"""Longest validity of an accepted recording: if forgotten, it lets baselines drift."""

RECORD_INSTEAD = "record a new baseline for a larger change, with `accept: drift` in the file of --llmb-acknowledged"

SAME_CHANGE = timedelta(days=7)
"""Two entries of one configuration that start within this time accept the same change.

A change must be accepted only once.
"""


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"found {text!r}, expected a day such as 2025-11-20") from None


def _parse_slowdown(text: str) -> float:
    try:
        return parse_fraction(text, "a percentage such as 6%", LARGEST)
    except ValueError as error:
        raise ValueError(f"{error}; {RECORD_INSTEAD}") from None


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
        "slower": ConvertedScalar(_parse_slowdown),
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


class AcknowledgedFile(Struct, frozen=True):
    """The contents of a file of acknowledged changes."""

    changes: tuple[Acknowledgement, ...]
    recordings: tuple[AcceptedRecording, ...]  # waived recording rules
    last_repair: date | None  # the day of the latest node repair


def read_acknowledged(
    path: Path, names: Sequence[str], today: date, *, allow_unknown: bool = False
) -> AcknowledgedFile:
    """Read a file of acknowledged changes.

    `names` are the ids of the known configurations. Raises SettingsError with file,
    line, found and expected value. Refuses unknown configurations unless
    `allow_unknown`, changes that are accepted twice, expiry dates too far from `today`,
    and future repairs.
    """

    def report_problems(entry: YamlMapping, report: Report) -> None:
        """Report each problem of the file with its line."""
        changes = entry["acknowledged"]
        for position, change in enumerate(changes):
            if not allow_unknown:
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
    entry = read_entry(path, root, _FILE, check=report_problems, raises=SettingsError)
    repairs = [repair["since"] for repair in entry.get("repaired") or ()]
    return AcknowledgedFile(
        tuple(_make_acknowledgement(change, path) for change in entry["acknowledged"]),
        tuple(map(_make_recording, entry.get("recordings") or ())),
        max(repairs, default=None),
    )


def with_acknowledged(catalog: Catalog, path: Path, today: date) -> Catalog:
    """Return a catalog with the entries of a file of acknowledged changes."""
    file = read_acknowledged(path, [key.id for key in catalog.baselines], today)
    return replace(
        catalog,
        acknowledged=file.changes,
        accepted_recordings=file.recordings,
        last_repair=file.last_repair,
    )


def _check_name(entry: YamlMapping, names: Sequence[str], report: Report) -> None:
    """Report an entry whose id or pattern matches no known configuration."""
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
    entry: YamlMapping,
    earlier_entries: Sequence[YamlMapping],
    names: Sequence[str],
    report: Report,
) -> None:
    """Report an entry that accepts the same change as an earlier entry.

    Two such entries would move the level of a configuration twice.
    """
    for earlier in earlier_entries:
        in_both = [
            name
            for name in names
            if fnmatchcase(name, entry["configuration"])
            and fnmatchcase(name, earlier["configuration"])
        ]
        if (
            in_both
            and entry.get("accept") == earlier.get("accept")
            and abs(entry["since"] - earlier["since"]) <= SAME_CHANGE
        ):
            problem = f"found {in_both[0]} again (first in line {earlier.line}), expected each change once"
            report(
                entry.line,
                f"{problem}: edit the first entry, for example its `expires`",
            )
            return


def _get_signed_fraction(entry: YamlMapping) -> float:
    """Return the accepted change: positive if slower, negative if faster.

    0 for an entry that accepts a reason instead of a change.
    """
    if entry.get("accept"):
        return 0.0
    slower = entry.get("slower")
    return float(-entry["faster"] if slower is None else slower)


def _make_acknowledgement(entry: YamlMapping, path: Path) -> Acknowledgement:
    return Acknowledgement(
        configuration=entry["configuration"],
        fraction=_get_signed_fraction(entry),
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
