"""The summary at the end of a session: a line for each configuration, made from outcome dictionaries."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench import wording
from pytest_llmbench.report import jobs

ORDER = (
    "TEST_FAILED",
    "NOT_ASSERTED",
    "REGRESSION",
    "INVALID",
    "INCONCLUSIVE",
    "IMPROVEMENT",
    "PASS",
    "RECORDED",
    "NOT_COMPARABLE",
    "MISSING",
)
"""The verdicts in the order in which a reader wants them."""

JUDGED = ("REGRESSION", "INCONCLUSIVE", "IMPROVEMENT", "PASS", "RECORDED")
"""Those that need no word of explanation under their line."""

TIMED = (*JUDGED, "TEST_FAILED", "NOT_ASSERTED")
"""Those with a step time that means something."""

QUIET = ("PASS", "MISSING")
"""The verdicts of checks that need no line of their own; a self-test tells what each run would have shown."""

DOUBTFUL = ("few-steps-decide", "warming-up", "repeats-disagree")
"""Reasons that stand under a line whatever its colour."""

ABSENT = {"not-on-cluster": "not on this cluster", "not-launched": "not launched"}
"""Why a configuration has no run, in words; other reasons stand as they are."""

INDENT = " " * 17

MOST_FILES = 5
"""Of the files that the jobs of a configuration left; reports name all."""

NOTEWORTHY = (
    "not-comparable",
    "repeats",
    "repeats-disagree",
    "repeat-lost",
    "build-unknown",
    "attempts",
    "segments",
    "steps",
    "other-release",
    "repeat-disagrees",
    "torn",
    "over-budget",
)
"""Notes that stand under a green line too: what was judged is not all that there was."""


def summary(described: Sequence[dict[str, Any]], remarks: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the summary, 80 columns wide: verdicts, remarks, and the count by verdict last."""
    described = worst(described)
    configurations = [one for one in described if one["kind"] == "configuration"]
    measured = [one for one in configurations if not _is_absent(one)]
    yield f"{'verdict':<14} {'configuration':<39} {'step time':>9} {'diff':>7} {'age':>5}"
    for one in sorted(measured, key=lambda one: (ORDER.index(one["verdict"]), one["id"])):
        yield from _lines(one)
    for why, ids in _absent(configurations).items():
        text = f"{'MISSING':<14} {len(ids)} {why}: {wording.listed(ids)}"
        yield from textwrap.wrap(text, 79, subsequent_indent=" " * 15, break_on_hyphens=False)
    for one in described:
        if one["kind"] == "stray":
            yield f"{one['reason'].upper():<14} {one['id']}"
    yield from _checks([one for one in described if one["kind"] == "check"])
    for remark in remarks:
        yield from textwrap.wrap(remark, 79, subsequent_indent="  ", break_on_hyphens=False)
    yield from textwrap.wrap(count(described), 79, subsequent_indent="  ", break_on_hyphens=False)


def _is_absent(one: dict[str, Any]) -> bool:
    """Whether nothing of it was seen, not even a job."""
    return one["verdict"] == "MISSING" and not one["run"] and not one.get("jobs")


def _absent(configurations: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the ids of what has neither a run nor a job, by the reason in words."""
    ids: dict[str, list[str]] = {}
    for one in filter(_is_absent, configurations):
        told = f"{ABSENT.get(one['reason'], one['reason'])} ({one['text']})"
        ids.setdefault("without a run" if one["reason"] == "no-run" else told, []).append(one["id"])
    return ids


def _checks(described: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each kind of check, and the texts of those that found something."""
    for kind in dict.fromkeys(one["check"] for one in described):
        of_kind = [one for one in described if one["check"] == kind]
        verdicts = Counter(one["verdict"] for one in of_kind)
        yield f"{kind}: " + ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items(), key=_rank))
        for one in of_kind:
            if one["verdict"] not in QUIET:
                yield from textwrap.wrap(
                    f"{one['id']}: {one['text']}", 79, initial_indent="  ", subsequent_indent=" " * 6
                )


def count(described: Sequence[dict[str, Any]]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 2 REGRESSION, 1 UNMATCHED; 4 skipped: 4 MISSING`."""
    checks = sum(one["kind"] == "check" and one["status"] == "passed" for one in described)
    parts, described = [], [one for one in worst(described) if one["kind"] != "check" or one["status"] == "failed"]
    for status, label in (("passed", "green"), ("failed", "red"), ("skipped", "skipped")):
        names = Counter(_counted_as(one) for one in described if one["status"] == status)
        if names:
            told = ", ".join(f"{number} {name}" for name, number in sorted(names.items(), key=_rank))
            parts.append(f"{names.total()} {label}: {told}")
    return "; ".join(parts) or (f"{wording.counted(checks, 'check')} passed" if checks else "nothing judged")


def _counted_as(one: dict[str, Any]) -> str:
    return one["reason"].upper() if one["kind"] != "configuration" else str(one["verdict"])


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return (ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)), item[0]


def worst(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one outcome for each id, the worst: several tests of a user may be about one configuration."""
    severity = ("passed", "skipped", "failed")
    by_id = {_name(one): one for one in sorted(described, key=lambda one: severity.index(one["status"]))}
    return [by_id[name] for name in dict.fromkeys(_name(one) for one in described)]


def _name(one: dict[str, Any]) -> tuple[str, str]:
    return one["suite"] if one["kind"] == "check" else "", one["id"]


def _lines(one: dict[str, Any]) -> Iterator[str]:
    timed = one["verdict"] in TIMED and not one["problems"]
    measured = one["metrics"].get("step_time_seconds", {}).get("value") if timed else None
    ratio = math.exp(one["log_difference"]) if timed and one["log_difference"] is not None else None
    age = one["run"]["age"] if one["run"] else "-"
    step_time, change = wording.seconds(measured), wording.difference(ratio)
    yield f"{one['verdict']:<14} {one['id']:<39} {step_time:>9} {change:>7} {age:>5}"
    remarks = [note["text"] for note in one["notes"] if note["code"] in NOTEWORTHY]
    if one["reason"] in DOUBTFUL:
        remarks.insert(0, one["text"].partition("; ")[2])
    if one["reason"] == "over-budget":  # its step time may be a good one
        remarks.insert(0, one["text"])
    told = [_clipped(remark, 120) for remark in (remarks if one["verdict"] in JUDGED else [one["text"]])]
    for remark in filter(None, (*told, jobs.brief(one), jobs.finding(one))):
        yield from textwrap.wrap(remark, 79, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    for file in jobs.files(one)[:MOST_FILES]:  # whole, to be copied
        yield f"{INDENT}{file}"


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
