"""The file of acknowledged changes (--llmb-acknowledged): who accepted which change of
step time, why, until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from pytest_llmbench.core.codes import ACCEPTABLE, Reason
from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.option import parse_nodes
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
)
from pytest_llmbench.judge.acknowledged import LARGEST
from pytest_llmbench.session.catalog import Catalog

LONGEST = timedelta(days=366)  # whoever still wants it after a year says so again
LONGEST_RECORDING = timedelta(
    days=31
)  # an entry that is forgotten would let each recording drift

INSTEAD = "record what is slower than that, with `accept: drift` in the file of --llmb-acknowledged"

# Two acknowledgements of one configuration that begin so near to each other are of one
# change, which counts once.
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
    }
)
_FILE = Fields(
    {"schema": Number(1, 1, whole=True), "acknowledged": Items(_ENTRY, least=0)},
    {"repaired": Items(_REPAIR, least=0), "recordings": Items(_RECORDING, least=0)},
)


def read_acknowledged(
    path: Path, names: Sequence[str], today: date, *, others: bool = False
) -> tuple[Acknowledgement, ...]:
    """Return the entries of a file; `names` are the ids of the known configurations,
    with `others` not of all.

    Raises SettingsError with file, line, what was found and what was expected: also for
    a configuration that there is not, a change that is accepted twice, and an expiry
    more than a year from `today`.
    """
    from pytest_llmbench.core.yamlfile import read_document, read_entry

    def check(entry: YamlMapping, report: Report) -> None:
        for position, acknowledged in enumerate(entry["acknowledged"]):
            if not others:
                _check_name(acknowledged, names, report)
            _check(acknowledged, today, report)
            _check_once(acknowledged, entry["acknowledged"][:position], names, report)

    root = read_document(
        path, what="file of acknowledged changes", raises=SettingsError
    )
    entry = read_entry(path, root, _FILE, check=check, raises=SettingsError)
    return tuple(
        _make_acknowledgement(acknowledged, path)
        for acknowledged in entry["acknowledged"]
    )


def read_last_repair(path: Path, today: date) -> date | None:
    """Return since when the node that was repaired last is sound, as a file says it;
    None without a repair.

    Raises SettingsError as `read_acknowledged` does, and for a repair that lies after
    `today`.
    """
    from pytest_llmbench.core.yamlfile import read_document, read_entry

    def check(entry: YamlMapping, report: Report) -> None:
        for repair in entry.get("repaired") or ():
            if repair["since"] > today:
                report(
                    repair.lines["since"],
                    f"found {repair['since']}, expected a day until today, {today}",
                )

    root = read_document(
        path, what="file of acknowledged changes", raises=SettingsError
    )
    entry = read_entry(path, root, _FILE, check=check, raises=SettingsError)
    return max(
        (repair["since"] for repair in entry.get("repaired") or ()), default=None
    )


def read_accepted_recordings(path: Path, today: date) -> tuple[AcceptedRecording, ...]:
    """Return the rules of recording that a file waives.

    Raises SettingsError as `read_acknowledged` does, and for an expiry more than a
    month from `today`.
    """
    from pytest_llmbench.core.redaction import redact_text
    from pytest_llmbench.core.yamlfile import read_document, read_entry

    def check(entry: YamlMapping, report: Report) -> None:
        latest = today + LONGEST_RECORDING
        for accepted in entry.get("recordings") or ():
            if accepted["expires"] > latest:
                found = f"found {accepted['expires']}, expected at most a month from now, {latest}"
                report(accepted.lines["expires"], found)

    root = read_document(
        path, what="file of acknowledged changes", raises=SettingsError
    )
    entry = read_entry(path, root, _FILE, check=check, raises=SettingsError)
    return tuple(
        AcceptedRecording(
            accepted["configuration"],
            RecordingRule(accepted["accept"]),
            accepted["expires"],
            redact_text(accepted["reason"]),
        )
        for accepted in entry.get("recordings") or ()
    )


def with_acknowledged(catalog: Catalog, path: Path | None, today: date) -> Catalog:
    """Return the catalog with what was acknowledged for its configurations; as it is
    without a file."""
    if path is None:
        return catalog
    acknowledged = read_acknowledged(path, [key.id for key in catalog.baselines], today)
    return replace(
        catalog,
        acknowledged=acknowledged,
        accepted_recordings=read_accepted_recordings(path, today),
        last_repair=read_last_repair(path, today),
    )


def _check_name(entry: YamlMapping, names: Sequence[str], report: Report) -> None:
    pattern = entry["configuration"]
    if not any(fnmatchcase(name, pattern) for name in names):
        near = did_you_mean(pattern, names)
        report(
            entry.lines["configuration"],
            f"found {pattern!r}, expected the id of a configuration or a pattern{near}",
        )


def _check(entry: YamlMapping, today: date, report: Report) -> None:
    if len({"slower", "faster", "accept"} & entry.lines.keys()) != 1:
        report(
            entry.line,
            "found no change or two, expected one of slower, faster and accept",
        )
    if entry["expires"] < entry["since"]:
        report(
            entry.lines["expires"],
            f"found {entry['expires']}, expected a day after {entry['since']}, the start",
        )
    if entry["expires"] > today + LONGEST:
        latest = today + LONGEST
        report(
            entry.lines["expires"],
            f"found {entry['expires']}, expected at most a year from now, {latest}",
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
        both = [
            name
            for name in names
            if all(
                fnmatchcase(name, entry["configuration"]) for entry in (later, other)
            )
        ]
        if (
            both
            and later.get("accept") == other.get("accept")
            and abs(later["since"] - other["since"]) <= SAME
        ):
            again = f"found {both[0]} again (first in line {other.line}), expected each change once"
            report(later.line, f"{again}: change the first, or its day in `expires`")
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
