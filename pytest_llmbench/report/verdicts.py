"""Order, colours and counts of a session's outcomes, and its non-failing findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec.structs import asdict

from pytest_llmbench.core import formatting
from pytest_llmbench.core.outcome_records import Caution, CautionCode, Finding
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    LogAttempt,
    OutcomeDocument,
    ReportedCaution,
    VerdictCounts,
    select_checks,
    select_configurations,
)

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
"""The verdicts in the order in which reports list them."""

JUDGED = ("REGRESSION", "INCONCLUSIVE", "IMPROVEMENT", "PASS", "RECORDED")
"""Verdicts that the numbers of a summary line explain."""

TIMED = (*JUDGED, "TEST_FAILED", "NOT_ASSERTED")
"""Verdicts with a meaningful step time."""

UNSURE = ("INCONCLUSIVE", "REGRESSION", "SLOWER")
"""Verdicts that are shown as unclear, not green, if their item passed."""

SLOWER = ("SLOWER", "REGRESSION")
"""Verdicts of checks that found a slowdown, even if the check is only reported."""

RED = (
    *SLOWER,
    "INVALID",
    "INCONCLUSIVE",
    "UNMATCHED",
    "AMBIGUOUS",
    "UNREADABLE",
    "SURVIVED",
)
"""Verdicts that a user's test should have failed for."""

SEVERITY = {"passed": 0, "skipped": 1}
"""Severity by status; an unlisted status is a failure and the most severe."""

BY_DOCUMENT = (
    "timed like the documents, to compare with their tables: not a gate verdict"
)
"""Follows the counts of a session with --llmb-timed=document."""

LEAST = 0.01
"""Smallest slowdown, as a fraction, that a trend can fail for."""

MFU_LOGGED = "* FLOPs as counted by the framework"
"""Legend for the asterisk after an MFU."""

FINDINGS = (CautionCode.REPORTED_ONLY, CautionCode.NOT_ASSERTED)
"""Cautions that the headline of a report contains: findings about the runs, not about
how they were judged."""


# --- one outcome ----------------------------------------------------------------------


def name_outcome(outcome: OutcomeDocument) -> str:
    """Return the id of an outcome, marked if it was timed like its document.

    The mark is `[last step]` if the document timed one step, else `[as documented]`.
    """
    if outcome.timed != "document":
        return outcome.id
    mark = "as documented"
    if isinstance(outcome, ConfigurationOutcome):
        window = outcome.window
        if window.first == window.last:
            mark = "last step"
    return f"{outcome.id} [{mark}]"


def name_verdict(outcome: OutcomeDocument) -> str:
    """Return the verdict of an outcome; for an unmatched run its reason in capitals."""
    return outcome.verdict or outcome.reason.upper()


def make_headline(outcome: OutcomeDocument) -> str:
    """Return `REGRESSION  grok1_314b-25.05-gb200-bf16-128 (slower-than-bound)`.

    The headline of a check begins with its kind: `SLOW-NODE SLOW_NODE  nodes`.
    """
    headline = f"{name_verdict(outcome)}  {name_outcome(outcome)}"
    if isinstance(outcome, CheckOutcome) and not is_guard(outcome):
        return f"{outcome.check.upper()} {headline}"
    if isinstance(outcome, ConfigurationOutcome):
        return f"{headline} ({outcome.reason})"
    return headline


def is_guard(outcome: OutcomeDocument) -> bool:
    """True if the outcome is the check that reports a session without judged runs."""
    return outcome.verdict == Finding.NOTHING_JUDGED


def locate_log(source: OutcomeDocument | LogAttempt) -> str:
    """Return the log, and its relevant line if known: `run/log.out:123`."""
    line = source.line if isinstance(source, ConfigurationOutcome | LogAttempt) else 0
    return f"{source.log}:{line}" if line else str(source.log)


def is_absent(outcome: ConfigurationOutcome) -> bool:
    """True if a configuration has neither a run nor a job."""
    return outcome.verdict == "MISSING" and not outcome.run and not outcome.jobs


def list_documented_absent(
    outcomes: Iterable[OutcomeDocument],
) -> list[ConfigurationOutcome]:
    """Return the documented configurations that reports summarise in one line.

    These are configurations without a run that were not required and that no baseline
    file of the user contains. Returns no configurations if the user has no baseline
    files.
    """
    configurations = select_configurations(outcomes)
    # `own` is true if a baseline file of the user contains the configuration.
    if not any(outcome.own for outcome in configurations):
        return []
    return [
        outcome
        for outcome in configurations
        if is_absent(outcome)
        and outcome.reason == "no-run"
        and outcome.status == "skipped"
        and not outcome.own
    ]


def count_documented(absent: Sequence[ConfigurationOutcome]) -> str:
    """Return `82 documented configurations have no run`."""
    verb = "has" if len(absent) == 1 else "have"
    return f"{formatting.count_noun(len(absent), 'documented configuration')} {verb} no run"


def get_step_time(outcome: ConfigurationOutcome) -> tuple[float | None, float | None]:
    """Return the step time of a configuration, and ln(step time / baseline).

    Both are None if the step time is meaningless: no report shows such a number.
    """
    if outcome.verdict not in TIMED or outcome.problems:
        return None, None
    return outcome.get_metric("step_time_seconds"), outcome.log_difference


def format_step_time(outcome: ConfigurationOutcome) -> tuple[str, str]:
    """Format step time and difference of `get_step_time`; `-` if unknown."""
    seconds, difference = get_step_time(outcome)
    ratio = None if difference is None else formatting.compute_bounded_exp(difference)
    return formatting.format_seconds(seconds), formatting.format_difference(ratio)


def get_mfu(outcome: ConfigurationOutcome) -> tuple[float | None, bool]:
    """Return the MFU as a fraction, and True if the framework counted the FLOPs.

    The MFU is None if it is unknown or the step time is meaningless.
    """
    step_seconds, _ = get_step_time(outcome)
    if step_seconds is None:
        return None, False
    computed, logged = outcome.get_metric("mfu"), outcome.get_metric("mfu_logged")
    if computed is None and logged is not None:
        return logged, True
    return computed, False


def format_mfu(outcome: ConfigurationOutcome) -> str:
    """Format an MFU in percent: `41.5`, `41.5*` (FLOPs of the framework), or `-`."""
    mfu, by_framework = get_mfu(outcome)
    if mfu is None:
        return "-"
    asterisk = "*" if by_framework else ""
    return f"{mfu * 100:.1f}{asterisk}"


def explain_mfu(outcomes: Iterable[OutcomeDocument]) -> str:
    """Return the legend for the asterisk of `format_mfu`, or "" if none is shown."""
    for outcome in select_configurations(outcomes):
        _, by_framework = get_mfu(outcome)
        if by_framework:
            return MFU_LOGGED
    return ""


# --- all of them ----------------------------------------------------------------------


def select_worst(outcomes: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Return the worst outcome for each suite and id.

    Several tests of a user may judge the same configuration.
    """
    worst: dict[tuple[str, str], OutcomeDocument] = {}
    for outcome in outcomes:
        key = outcome.suite, outcome.id
        worst_so_far = worst.setdefault(key, outcome)
        # Of equally severe outcomes the last counts.
        if _rate_severity(outcome) >= _rate_severity(worst_so_far):
            worst[key] = outcome
    return list(worst.values())


def _rate_severity(outcome: OutcomeDocument) -> int:
    """Return 0 for a passed outcome, 1 for a skipped one, 2 for a failure."""
    return SEVERITY.get(outcome.status, len(SEVERITY))


def sort_outcomes(outcomes: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Sort outcomes for reports: configurations, then unmatched runs, then checks.

    Configurations are sorted by `ORDER`; those with neither a run nor a job come last
    within their verdict.
    """
    return sorted(outcomes, key=_rank_outcome)


def _rank_outcome(outcome: OutcomeDocument) -> tuple[int, int, bool, str]:
    """Return the sort key of an outcome: kind, verdict, absence, id.

    Absent configurations, unmatched runs and checks keep their order.
    """
    if isinstance(outcome, ConfigurationOutcome):
        absent = is_absent(outcome)
        return 0, ORDER.index(outcome.verdict), absent, "" if absent else outcome.id
    if isinstance(outcome, CheckOutcome):
        return 2, 0, False, ""
    return 1, 0, False, ""


def choose_colour(status: str, verdict: str) -> str:
    """Choose the colour of an outcome: red, skipped, unclear or green.

    Passed outcomes with a verdict in `UNSURE` are unclear.
    """
    if status == "failed":
        return "red"
    if status == "skipped":
        return "skipped"
    return "unclear" if verdict in UNSURE else "green"


def choose_common_colour(outcomes: Sequence[OutcomeDocument]) -> str:
    """Choose the terminal colour of several outcomes.

    Red if any outcome is red; green if all outcomes that were not skipped are green and
    there is at least one; else yellow.
    """
    colours = {choose_colour(outcome.status, outcome.verdict) for outcome in outcomes}
    if "red" in colours:
        return "red"
    if colours - {"skipped"} == {"green"}:
        return "green"
    return "yellow"


def explain_no_judged_run(outcomes: Sequence[OutcomeDocument]) -> str:
    """Return the reason the session judged no run, or "" if it judged one."""
    return next((outcome.context for outcome in outcomes if outcome.context), "")


def select_counted(outcomes: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Select the outcomes to count: all except checks that passed."""
    return [
        outcome
        for outcome in outcomes
        if outcome.kind != "check" or outcome.status == "failed"
    ]


def count_verdicts(outcomes: Sequence[OutcomeDocument]) -> VerdictCounts:
    """Count verdicts by the status of their items.

    Each id counts once, with its worst outcome. Checks that passed are not counted.
    """
    counted = select_counted(select_worst(outcomes))
    return VerdictCounts(
        green=_count_verdicts(counted, "passed"),
        red=_count_verdicts(counted, "failed"),
        skipped=_count_verdicts(counted, "skipped"),
    )


def _count_verdicts(outcomes: Sequence[OutcomeDocument], status: str) -> dict[str, int]:
    """Count the outcomes with a status by label, in the order of reports."""
    counts = Counter(
        _get_count_label(outcome) for outcome in outcomes if outcome.status == status
    )
    return dict(sorted(counts.items(), key=rank_count))


def _get_count_label(outcome: OutcomeDocument) -> str:
    """Return the label under which an outcome counts: its verdict or its reason."""
    if outcome.kind == "configuration" or is_guard(outcome):
        return outcome.verdict
    return outcome.reason.upper()


def rank_count(label_and_count: tuple[str, int]) -> tuple[int, str]:
    """Return the sort key of a label and its count.

    Verdicts have the order of `ORDER`. Other labels follow; the last is the finding
    that nothing was judged.
    """
    label, _ = label_and_count
    if label in ORDER:
        return ORDER.index(label), label
    if label == Finding.NOTHING_JUDGED:
        return len(ORDER) + 1, label
    return len(ORDER), label


def format_counts(outcomes: Sequence[OutcomeDocument]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 3 INVALID; 4 skipped: ...`."""
    texts = []
    for colour, counts in asdict(count_verdicts(outcomes)).items():
        if counts:
            total = sum(counts.values())
            texts.append(f"{total} {colour}: {join_counts(counts.items())}")
    if texts:
        # These counts are not the verdict of the gate if runs are timed like documents.
        if any(outcome.timed == "document" for outcome in outcomes):
            texts.append(BY_DOCUMENT)
        return "; ".join(texts)
    passed_checks = sum(
        outcome.kind == "check" and outcome.status == "passed" for outcome in outcomes
    )
    if passed_checks:
        return f"{formatting.count_noun(passed_checks, 'check')} passed"
    return "nothing judged"


def join_counts(counts: Iterable[tuple[str, int]]) -> str:
    """Join labels and their counts: `74 PASS, 8 INCONCLUSIVE`."""
    return ", ".join(f"{count} {label}" for label, count in counts)


# --- findings that do not fail --------------------------------------------------------


def list_findings(outcomes: Sequence[OutcomeDocument]) -> Iterator[Caution]:
    """Yield slowdowns that did not fail the session: `trend: 6 SLOWER`.

    `not asserted: 1 REGRESSION` counts verdicts that a user's test let pass. `outcomes`
    contains each id once. `outcome.overruled` is the verdict that such a test replaced.
    """
    not_failed = [outcome for outcome in outcomes if outcome.status != "failed"]
    counts_by_check: dict[str, Counter[str]] = {}
    for outcome in select_checks(not_failed):
        if not outcome.overruled and outcome.verdict in SLOWER:
            counts_by_check.setdefault(outcome.check, Counter())[outcome.verdict] += 1
    # Without a trend item, nothing else reports a lasting slowdown.
    for _ in _find_trends_without_item(outcomes):
        counts_by_check.setdefault("trend", Counter())["SLOWER"] += 1
    for check, counts in counts_by_check.items():
        text = f"{check}: {join_counts(sorted(counts.items()))}"
        yield Caution(CautionCode.REPORTED_ONLY, text)
    overruled = Counter(
        outcome.overruled for outcome in not_failed if outcome.overruled in RED
    )
    if overruled:
        yield Caution(
            CautionCode.NOT_ASSERTED,
            f"not asserted: {join_counts(sorted(overruled.items()))}",
        )


def _find_trends_without_item(outcomes: Sequence[OutcomeDocument]) -> set[str]:
    """Return the ids of configurations with a lasting slowdown but no trend item.

    The trend item is missing if the user's own tests do not use it, or if the selection
    excludes it. Configurations that failed are left out.
    """
    # The id of a trend item is the id of its configuration.
    with_item = {
        outcome.id for outcome in select_checks(outcomes) if outcome.check == "trend"
    }
    slower = {
        outcome.configuration.id
        for outcome in select_configurations(outcomes)
        if outcome.status != "failed" and _has_become_slower(outcome)
    }
    return slower - with_item


def _has_become_slower(outcome: ConfigurationOutcome) -> bool:
    """True if unacknowledged lasting slowdowns add up to at least `LEAST`."""
    lasting = [
        change
        for change in outcome.changes
        if change.stands and change.acknowledged is None
    ]
    # A speed-up does not compensate for a slowdown; several small slowdowns add up.
    slowdowns = [
        float(change.difference) for change in lasting if change.difference > 0
    ]
    return math.prod(1 + slowdown for slowdown in slowdowns) >= 1 + LEAST


class SessionState(StrEnum):
    """How a session ended."""

    GREEN = "green"
    RED = "red"
    INTERRUPTED = "interrupted"
    ERROR = "error"


def format_findings(state: SessionState, outcomes: Sequence[OutcomeDocument]) -> str:
    """Format slowdowns to follow the state of a session: `, but trend: 6 SLOWER`."""
    texts = [finding.text for finding in list_findings(outcomes)]
    separator = ", but " if state is SessionState.GREEN else ", "
    return f"{separator}{', '.join(texts)}" if texts else ""


def list_caution_texts(cautions: Sequence[Caution | ReportedCaution]) -> list[str]:
    """Return the texts of all cautions except findings, which the headline contains."""
    return [caution.text for caution in cautions if caution.code not in FINDINGS]


def list_all_texts(
    outcomes: Sequence[OutcomeDocument], cautions: Sequence[Caution]
) -> list[str]:
    """Return the texts of non-failing slowdowns, then those of all other cautions."""
    return [
        *(finding.text for finding in list_findings(outcomes)),
        *list_caution_texts(cautions),
    ]
