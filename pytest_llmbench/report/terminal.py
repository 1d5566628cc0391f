"""The summary at the end of a session: a line for each configuration, made from outcome dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Caution, NoteCode
from pytest_llmbench.report import jobs
from pytest_llmbench.report.cautions import list_all_texts
from pytest_llmbench.report.columns import WIDTH, TerminalLine, count_columns, wrap
from pytest_llmbench.report.explain import name_outcome
from pytest_llmbench.report.next_steps import list_next_steps

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


def render_summary(
    described: Sequence[dict[str, Any]],
    remarks: Sequence[str],
    verbosity: int = 0,
    cautions: Sequence[Caution] = (),
) -> Iterator[TerminalLine]:
    """Yield the lines of the summary: verdicts, remarks, what to do next, cautions, and the count by verdict last.

    They are 80 columns wide, but for the names of files, which are whole, to be copied. A `verbosity` below 0 shows
    what is red and the remarks, above 0 the id of everything without a run.
    """
    described = sort_outcomes(select_worst(described))
    shown = described if verbosity >= 0 else [outcome for outcome in described if outcome["status"] == "failed"]
    yield from _tabulate([outcome for outcome in shown if outcome["kind"] == "configuration"], verbosity)
    for outcome in shown:
        if outcome["kind"] == "stray":
            yield from _format_row(outcome, f"{outcome['reason'].upper():<14} {outcome['id']}")
    yield from _list_checks([outcome for outcome in shown if outcome["kind"] == "check"])
    for remark in remarks:
        yield from map(TerminalLine, wrap(remark, "  "))
    if verbosity >= 0:
        yield from list_next_steps(described)
    for text in list_all_texts(described, cautions):
        yield from _mark(wrap(f"caution: {text}", "  "), "caution:", "yellow")
    yield from (TerminalLine(line, choose_colour(described)) for line in wrap(format_counts(described), "  "))


def choose_colour(described: Sequence[dict[str, Any]]) -> str:
    """Return the colour of outcomes together: red where one is, green where all of those that are not skipped pass
    without a doubt, yellow otherwise."""
    if any(outcome["status"] == "failed" for outcome in described):
        return "red"
    judged = [outcome for outcome in described if outcome["status"] != "skipped"]
    return "green" if judged and all(outcome.get("verdict") not in UNSURE for outcome in judged) else "yellow"


def get_step_time(outcome: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the step time of a configuration, and the logarithm of its ratio to the baseline's, None where they mean
    nothing."""
    if outcome["verdict"] not in TIMED or outcome["problems"]:
        return None, None
    return outcome["metrics"].get("step_time_seconds", {}).get("value"), outcome["log_difference"]


def format_step_time(outcome: dict[str, Any]) -> tuple[str, str]:
    """Return what `get_step_time` returns as texts, `-` for None."""
    seconds, difference = get_step_time(outcome)
    return formatting.format_seconds(seconds), formatting.format_difference(
        None if difference is None else formatting.bounded_exp(difference)
    )


def explain_nothing_judged(described: Sequence[dict[str, Any]]) -> str:
    """Return why nothing was judged; empty where something was."""
    return next((str(outcome["context"]) for outcome in described if outcome.get("context")), "")


def sort_outcomes(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outcomes as a reader wants them: configurations by verdict, those of which nothing was seen last, then
    runs without one, then checks."""
    return sorted(described, key=_rank_outcome)


def _rank_outcome(outcome: dict[str, Any]) -> tuple[int, int, bool, str]:
    if outcome["kind"] == "configuration":
        absent = _is_absent(outcome)
        return 0, ORDER.index(outcome["verdict"]), absent, "" if absent else outcome["id"]
    return (1 if outcome["kind"] == "stray" else 2), 0, False, ""


def _tabulate(configurations: Sequence[dict[str, Any]], verbosity: int) -> Iterator[TerminalLine]:
    """Yield the table of configurations; those of which nothing was seen have a line for each reason."""
    if verbosity >= 0:
        yield TerminalLine(f"{'verdict':<14} {'configuration':<39} {'step time':>9} {'diff':>7} {'age':>5}", "")
    for outcome in configurations:
        if not _is_absent(outcome):
            yield from _format_configuration(outcome)
    for (why, status), ids in _group_absent(configurations).items():
        named = formatting.join_first(ids, len(ids) if verbosity > 0 else 5)
        lines = wrap(f"{'MISSING':<14} {len(ids)} {why}: {named}", " " * 15)
        yield from _mark(lines, "MISSING", "red" if status == "failed" else "yellow")


def _is_absent(outcome: dict[str, Any]) -> bool:
    """Whether nothing of it was seen, not even a job."""
    return outcome["verdict"] == "MISSING" and not outcome["run"] and not outcome.get("jobs")


def _group_absent(configurations: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the ids of what has neither a run nor a job, by the reason in words and the status, red first."""
    ids: dict[tuple[str, str], list[str]] = {}
    for outcome in sorted(filter(_is_absent, configurations), key=lambda outcome: outcome["status"] != "failed"):
        reason = f"{ABSENT.get(outcome['reason'], outcome['reason'])} ({outcome['text']})"
        why = "without a run" if outcome["reason"] == "no-run" else reason
        ids.setdefault((why, outcome["status"]), []).append(outcome["id"])
    return ids


def _list_checks(described: Sequence[dict[str, Any]]) -> Iterator[TerminalLine]:
    """Yield a line for each kind of check, and the texts of those that found something."""
    for kind in dict.fromkeys(outcome["check"] for outcome in described):
        of_kind = [outcome for outcome in described if outcome["check"] == kind]
        verdicts = Counter(outcome["verdict"] for outcome in of_kind)
        numbers = ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items(), key=_rank_verdict))
        label = f"{kind}{' [as documented]' if of_kind[0].get('timed') == 'document' else ''}"
        yield TerminalLine(f"{label}: {numbers}", choose_colour(of_kind), len(label) + 1)
        for outcome in of_kind:
            if outcome["verdict"] not in QUIET:
                yield from map(TerminalLine, wrap(f"{name_outcome(outcome)}: {outcome['text']}", " " * 6, first="  "))


def count_verdicts(described: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many there are of each verdict: `{"green": {"PASS": 17}, "red": {}, "skipped": {"MISSING": 3}}`.

    Of each id the worst counts. A check that passed is none of them.
    """
    chosen = select_counted(select_worst(described))
    of_label = {}
    for status, label in (("passed", "green"), ("failed", "red"), ("skipped", "skipped")):
        names = Counter(_name_verdict(outcome) for outcome in chosen if outcome["status"] == status)
        of_label[label] = dict(sorted(names.items(), key=_rank_verdict))
    return of_label


def select_counted(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outcomes that are counted: a check that passed is none of them."""
    return [outcome for outcome in described if outcome["kind"] != "check" or outcome["status"] == "failed"]


def format_counts(described: Sequence[dict[str, Any]]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 2 REGRESSION, 1 UNMATCHED; 4 skipped: 4 MISSING`."""
    parts = []
    for label, names in count_verdicts(described).items():
        if names:
            numbers = ", ".join(f"{number} {name}" for name, number in names.items())
            parts.append(f"{sum(names.values())} {label}: {numbers}")
    checks = sum(outcome["kind"] == "check" and outcome["status"] == "passed" for outcome in described)
    if parts and any(outcome.get("timed") == "document" for outcome in described):
        parts.append(BY_DOCUMENT)
    return "; ".join(parts) or (f"{formatting.count_noun(checks, 'check')} passed" if checks else "nothing judged")


def _name_verdict(outcome: dict[str, Any]) -> str:
    return outcome["reason"].upper() if outcome["kind"] != "configuration" else str(outcome["verdict"])


def _rank_verdict(item: tuple[str, int]) -> tuple[int, str]:
    return (ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)), item[0]


def select_worst(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one outcome for each suite and id, the worst: several tests of a user may be about one configuration."""
    by_name = {
        _identify(outcome): outcome
        for outcome in sorted(described, key=lambda outcome: SEVERITY.get(outcome["status"], len(SEVERITY)))
    }
    return [by_name[name] for name in dict.fromkeys(map(_identify, described))]


def _identify(outcome: dict[str, Any]) -> tuple[str, str]:
    return outcome["suite"], outcome["id"]


def _format_configuration(outcome: dict[str, Any]) -> Iterator[TerminalLine]:
    step_time, change = format_step_time(outcome)
    age = outcome["run"]["age"] if outcome["run"] else "-"
    yield from _format_row(
        outcome, f"{outcome['verdict']:<14} {name_outcome(outcome)}", f"{step_time:>9} {change:>7} {age:>5}"
    )
    remarks = [note["text"] for note in outcome["notes"] if note["code"] in NOTEWORTHY]
    if outcome["reason"] in DOUBTFUL:
        remarks.insert(0, outcome["text"].partition("; ")[2])
    if outcome["reason"] in ("over-budget", "drifted"):  # its step time may be near what was recorded
        remarks.insert(0, outcome["text"])
    if outcome["reason"] == "recorded":
        remarks = [note["text"] for note in outcome["notes"] if note["code"] in OF_RECORDED]
    texts = [_clip(remark, 120) for remark in (remarks if outcome["verdict"] in JUDGED else [outcome["text"]])]
    for remark in filter(None, (*texts, jobs.summarize(outcome), jobs.find_node_text(outcome))):
        yield from map(TerminalLine, wrap(remark, INDENT, first=INDENT))
    for file in jobs.list_files(outcome)[: jobs.MOST_FILES]:  # whole, to be copied
        yield TerminalLine(f"{INDENT}{file}")


def _format_row(outcome: dict[str, Any], head: str, numbers: str = "") -> Iterator[TerminalLine]:
    """Yield a verdict with its id and, at the right, its numbers: on a line of their own behind a long id."""
    verdict = head.partition(" ")[0]
    if numbers and count_columns(head) + len(numbers) < WIDTH:
        yield from _mark([f"{head}{numbers:>{WIDTH - 1 - count_columns(head)}}"], verdict, choose_colour([outcome]))
        return
    yield from _mark(wrap(head, " " * 15), verdict, choose_colour([outcome]))
    if numbers:
        yield TerminalLine(f"{numbers:>{WIDTH - 1}}")


def _mark(lines: Sequence[str], verdict: str, shade: str) -> Iterator[TerminalLine]:
    yield TerminalLine(lines[0], shade, len(verdict))
    yield from map(TerminalLine, lines[1:])


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
