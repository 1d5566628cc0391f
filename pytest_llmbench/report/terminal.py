"""The summary at the end of a session: a line for each configuration, made from outcome dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Caution, NoteCode
from pytest_llmbench.report import jobs
from pytest_llmbench.report.cautions import all_texts
from pytest_llmbench.report.columns import WIDTH, Line, width, wrapped
from pytest_llmbench.report.explain import named
from pytest_llmbench.report.next_steps import next_steps

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

SEVERITY = {"passed": 0, "skipped": 1}
"""The least severe first; a status that is not listed is a failure."""

DOUBTFUL = ("few-steps-decide", "warming-up", "repeats-disagree", "implausibly-fast")
"""Reasons that stand under a line whatever its colour."""

ABSENT = {"not-on-cluster": "not on this cluster", "not-launched": "not launched"}
"""Why a configuration has no run, in words; other reasons stand as they are."""

INDENT = " " * 17

NOTEWORTHY = (
    NoteCode.NOT_COMPARABLE,
    NoteCode.REPEATS,
    NoteCode.REPEATS_DISAGREE,
    NoteCode.REPEAT_LOST,
    NoteCode.HICCUP,
    NoteCode.HICCUPS_OFTEN,
    NoteCode.BUILD_UNKNOWN,
    NoteCode.ATTEMPTS,
    NoteCode.SEGMENTS,
    NoteCode.SLOWEST_ATTEMPT,
    NoteCode.NEWER_JOB,
    NoteCode.ORDER_FILE_TIME,
    NoteCode.ORDER_MIXED,
    NoteCode.STEPS,
    NoteCode.OTHER_RELEASE,
    NoteCode.REPEAT_DISAGREES,
    NoteCode.FEWER_RUNS,
    NoteCode.TORN,
    NoteCode.OVER_BUDGET,
    NoteCode.DRIFT,
    NoteCode.RECORDED_DRIFT,
    NoteCode.ACKNOWLEDGED,
    NoteCode.ACKNOWLEDGEMENT_IDLE,
    NoteCode.ACKNOWLEDGEMENT_EXPIRED,
)
"""Notes that stand under a green line too: what was judged is not all that there was."""

OF_RECORDED = (
    NoteCode.RECORDED_REPLACED,
    NoteCode.RECORDED_AGAINST_PUBLISHED,
    NoteCode.RECORDED_LEVELS,
    NoteCode.RECORDED_FEW_GROUPS,
)
"""Notes that stand under the line of what was recorded."""
BY_DOCUMENT = "timed as the documents do, to compare with their tables: no verdict of the gate"
"""What stands behind the count of a session with --llmb-timed=document."""

UNSURE = ("INCONCLUSIVE", "REGRESSION", "SLOWER")
"""Verdicts of outcomes that are not green where they passed: they cannot tell, or nobody asked them to fail."""


def summary(
    described: Sequence[dict[str, Any]],
    remarks: Sequence[str],
    verbosity: int = 0,
    cautions: Sequence[Caution] = (),
) -> Iterator[Line]:
    """Yield the lines of the summary: verdicts, remarks, what to do next, cautions, and the count by verdict last.

    They are 80 columns wide, but for the names of files, which are whole, to be copied. A `verbosity` below 0 shows
    what is red and the remarks, above 0 the id of everything without a run.
    """
    described = ordered(worst(described))
    shown = described if verbosity >= 0 else [one for one in described if one["status"] == "failed"]
    yield from _table([one for one in shown if one["kind"] == "configuration"], verbosity)
    for one in shown:
        if one["kind"] == "stray":
            yield from _row(one, f"{one['reason'].upper():<14} {one['id']}")
    yield from _checks([one for one in shown if one["kind"] == "check"])
    for remark in remarks:
        yield from map(Line, wrapped(remark, "  "))
    if verbosity >= 0:
        yield from next_steps(described)
    for text in all_texts(described, cautions):
        yield from _marked(wrapped(f"caution: {text}", "  "), "caution:", "yellow")
    yield from (Line(line, colour(described)) for line in wrapped(count(described), "  "))


def colour(described: Sequence[dict[str, Any]]) -> str:
    """Return the colour of outcomes together: red where one is, green where all of those that are not skipped pass
    without a doubt, yellow otherwise."""
    if any(one["status"] == "failed" for one in described):
        return "red"
    judged = [one for one in described if one["status"] != "skipped"]
    return "green" if judged and all(one.get("verdict") not in UNSURE for one in judged) else "yellow"


def timed(one: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the step time of a configuration, and the logarithm of its ratio to the baseline's, None where they mean
    nothing."""
    if one["verdict"] not in TIMED or one["problems"]:
        return None, None
    return one["metrics"].get("step_time_seconds", {}).get("value"), one["log_difference"]


def timing(one: dict[str, Any]) -> tuple[str, str]:
    """Return what `timed` returns as texts, `-` for None."""
    seconds, difference = timed(one)
    return formatting.format_seconds(seconds), formatting.format_difference(
        None if difference is None else formatting.bounded_exp(difference)
    )


def why_nothing(described: Sequence[dict[str, Any]]) -> str:
    """Return why nothing was judged; empty where something was."""
    return next((str(one["context"]) for one in described if one.get("context")), "")


def ordered(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outcomes as a reader wants them: configurations by verdict, those of which nothing was seen last, then
    runs without one, then checks."""
    return sorted(described, key=_place)


def _place(one: dict[str, Any]) -> tuple[int, int, bool, str]:
    if one["kind"] == "configuration":
        absent = _is_absent(one)
        return 0, ORDER.index(one["verdict"]), absent, "" if absent else one["id"]
    return (1 if one["kind"] == "stray" else 2), 0, False, ""


def _table(configurations: Sequence[dict[str, Any]], verbosity: int) -> Iterator[Line]:
    """Yield the table of configurations; those of which nothing was seen have a line for each reason."""
    if verbosity >= 0:
        yield Line(f"{'verdict':<14} {'configuration':<39} {'step time':>9} {'diff':>7} {'age':>5}", "")
    for one in configurations:
        if not _is_absent(one):
            yield from _lines(one)
    for (why, status), ids in _absent(configurations).items():
        named = formatting.join_first(ids, len(ids) if verbosity > 0 else 5)
        lines = wrapped(f"{'MISSING':<14} {len(ids)} {why}: {named}", " " * 15)
        yield from _marked(lines, "MISSING", "red" if status == "failed" else "yellow")


def _is_absent(one: dict[str, Any]) -> bool:
    """Whether nothing of it was seen, not even a job."""
    return one["verdict"] == "MISSING" and not one["run"] and not one.get("jobs")


def _absent(configurations: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the ids of what has neither a run nor a job, by the reason in words and the status, red first."""
    ids: dict[tuple[str, str], list[str]] = {}
    for one in sorted(filter(_is_absent, configurations), key=lambda one: one["status"] != "failed"):
        told = f"{ABSENT.get(one['reason'], one['reason'])} ({one['text']})"
        why = "without a run" if one["reason"] == "no-run" else told
        ids.setdefault((why, one["status"]), []).append(one["id"])
    return ids


def _checks(described: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """Yield a line for each kind of check, and the texts of those that found something."""
    for kind in dict.fromkeys(one["check"] for one in described):
        of_kind = [one for one in described if one["check"] == kind]
        verdicts = Counter(one["verdict"] for one in of_kind)
        told = ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items(), key=_rank))
        label = f"{kind}{' [as documented]' if of_kind[0].get('timed') == 'document' else ''}"
        yield Line(f"{label}: {told}", colour(of_kind), len(label) + 1)
        for one in of_kind:
            if one["verdict"] not in QUIET:
                yield from map(Line, wrapped(f"{named(one)}: {one['text']}", " " * 6, first="  "))


def counts(described: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many there are of each verdict: `{"green": {"PASS": 17}, "red": {}, "skipped": {"MISSING": 3}}`.

    Of each id the worst counts. A check that passed is none of them.
    """
    told = counting(worst(described))
    found = {}
    for status, label in (("passed", "green"), ("failed", "red"), ("skipped", "skipped")):
        names = Counter(_counted_as(one) for one in told if one["status"] == status)
        found[label] = dict(sorted(names.items(), key=_rank))
    return found


def counting(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outcomes that are counted: a check that passed is none of them."""
    return [one for one in described if one["kind"] != "check" or one["status"] == "failed"]


def count(described: Sequence[dict[str, Any]]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 2 REGRESSION, 1 UNMATCHED; 4 skipped: 4 MISSING`."""
    parts = []
    for label, names in counts(described).items():
        if names:
            told = ", ".join(f"{number} {name}" for name, number in names.items())
            parts.append(f"{sum(names.values())} {label}: {told}")
    checks = sum(one["kind"] == "check" and one["status"] == "passed" for one in described)
    if parts and any(one.get("timed") == "document" for one in described):
        parts.append(BY_DOCUMENT)
    return "; ".join(parts) or (f"{formatting.count_noun(checks, 'check')} passed" if checks else "nothing judged")


def _counted_as(one: dict[str, Any]) -> str:
    return one["reason"].upper() if one["kind"] != "configuration" else str(one["verdict"])


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return (ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)), item[0]


def worst(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one outcome for each suite and id, the worst: several tests of a user may be about one configuration."""
    by_name = {_name(one): one for one in sorted(described, key=lambda one: SEVERITY.get(one["status"], len(SEVERITY)))}
    return [by_name[name] for name in dict.fromkeys(map(_name, described))]


def _name(one: dict[str, Any]) -> tuple[str, str]:
    return one["suite"], one["id"]


def _lines(one: dict[str, Any]) -> Iterator[Line]:
    step_time, change = timing(one)
    age = one["run"]["age"] if one["run"] else "-"
    yield from _row(one, f"{one['verdict']:<14} {named(one)}", f"{step_time:>9} {change:>7} {age:>5}")
    remarks = [note["text"] for note in one["notes"] if note["code"] in NOTEWORTHY]
    if one["reason"] in DOUBTFUL:
        remarks.insert(0, one["text"].partition("; ")[2])
    if one["reason"] in ("over-budget", "drifted"):  # its step time may be near what was recorded
        remarks.insert(0, one["text"])
    if one["reason"] == "recorded":
        remarks = [note["text"] for note in one["notes"] if note["code"] in OF_RECORDED]
    told = [_clipped(remark, 120) for remark in (remarks if one["verdict"] in JUDGED else [one["text"]])]
    for remark in filter(None, (*told, jobs.brief(one), jobs.finding(one))):
        yield from map(Line, wrapped(remark, INDENT, first=INDENT))
    for file in jobs.files(one)[: jobs.MOST_FILES]:  # whole, to be copied
        yield Line(f"{INDENT}{file}")


def _row(one: dict[str, Any], head: str, numbers: str = "") -> Iterator[Line]:
    """Yield a verdict with its id and, at the right, its numbers: on a line of their own behind a long id."""
    verdict = head.partition(" ")[0]
    if numbers and width(head) + len(numbers) < WIDTH:
        yield from _marked([f"{head}{numbers:>{WIDTH - 1 - width(head)}}"], verdict, colour([one]))
        return
    yield from _marked(wrapped(head, " " * 15), verdict, colour([one]))
    if numbers:
        yield Line(f"{numbers:>{WIDTH - 1}}")


def _marked(lines: Sequence[str], verdict: str, shade: str) -> Iterator[Line]:
    yield Line(lines[0], shade, len(verdict))
    yield from map(Line, lines[1:])


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
