"""The outcomes of a session together: their order, which of them count, how many there
are, and what stands beside a green light."""

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
"""The verdicts in the order in which a reader wants them."""

JUDGED = ("REGRESSION", "INCONCLUSIVE", "IMPROVEMENT", "PASS", "RECORDED")
"""Those that need no word of explanation under their line."""

TIMED = (*JUDGED, "TEST_FAILED", "NOT_ASSERTED")
"""Those with a step time that means something."""

UNSURE = ("INCONCLUSIVE", "REGRESSION", "SLOWER")
"""Verdicts of outcomes that are not green where they passed: they cannot tell, or
nobody asked them to fail."""

SLOWER = ("SLOWER", "REGRESSION")
"""Verdicts of checks that know of something slower: where their item passed, nobody
asked it to fail."""

RED = (
    *SLOWER,
    "INVALID",
    "INCONCLUSIVE",
    "UNMATCHED",
    "AMBIGUOUS",
    "UNREADABLE",
    "SURVIVED",
)
"""Verdicts of which a test that did not fail says nothing."""

SEVERITY = {"passed": 0, "skipped": 1}
"""The least severe first; a status that is not listed is a failure."""

BY_DOCUMENT = (
    "timed as the documents do, to compare with their tables: no verdict of the gate"
)
"""What stands behind the count of a session with --llmb-timed=document."""

LEAST = 0.01
"""A smaller change to slower, as a fraction, fails nothing where a change is to
fail."""

MFU_LOGGED = "* FLOPs as its framework counts them"
"""What the mark behind an MFU means."""

FINDINGS = (CautionCode.REPORTED_ONLY, CautionCode.NOT_ASSERTED)
"""Cautions that the headline of a report names: what is known of these runs, and not
how they were judged."""


# --- one outcome ----------------------------------------------------------------------


def name_outcome(described: OutcomeDocument) -> str:
    """Return the id of an outcome, and behind it that its time is what a document
    timed, where that is so."""
    if described.timed != "document":
        return described.id
    window = described.window if isinstance(described, ConfigurationOutcome) else None
    last_step = window is not None and window.first == window.last
    return f"{described.id} [{'last step' if last_step else 'as documented'}]"


def name_verdict(described: OutcomeDocument) -> str:
    """Return the verdict of an outcome; a run without a configuration has none, its
    reason stands for it."""
    return described.verdict or described.reason.upper()


def make_headline(described: OutcomeDocument) -> str:
    """Return `REGRESSION  grok1_314b-25.05-gb200-bf16-128 (slower-than-bound)`."""
    headline = f"{name_verdict(described)}  {name_outcome(described)}"
    if isinstance(described, CheckOutcome) and not is_guard(described):
        return f"{described.check.upper()} {headline}"
    return (
        f"{headline} ({described.reason})"
        if described.kind == "configuration"
        else headline
    )


def is_guard(outcome: OutcomeDocument) -> bool:
    """Whether it says that nothing was judged, as the context of the configurations
    does."""
    return outcome.verdict == Finding.NOTHING_JUDGED


def locate_log(logged: OutcomeDocument | LogAttempt) -> str:
    """Return the log and, if a line is to blame, its line: `run/log.out:123`."""
    line = logged.line if isinstance(logged, ConfigurationOutcome | LogAttempt) else 0
    return f"{logged.log}:{line}" if line else str(logged.log)


def is_absent(outcome: ConfigurationOutcome) -> bool:
    """Whether nothing of a configuration was seen, not even a job."""
    return outcome.verdict == "MISSING" and not outcome.run and not outcome.jobs


def list_documented_absent(
    outcomes: Iterable[OutcomeDocument],
) -> list[ConfigurationOutcome]:
    """Return the documented configurations without a run, which reports give one line
    if the user has own baselines."""
    configurations = select_configurations(outcomes)
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
    have = "has" if len(absent) == 1 else "have"
    return f"{formatting.count_noun(len(absent), 'documented configuration')} {have} no run"


def get_step_time(outcome: ConfigurationOutcome) -> tuple[float | None, float | None]:
    """Return the step time of a configuration, and the logarithm of its ratio to the
    baseline's, None where they mean nothing."""
    # A number that means nothing is not shown beside one that does.
    if outcome.verdict not in TIMED or outcome.problems:
        return None, None
    return outcome.get_metric("step_time_seconds"), outcome.log_difference


def format_step_time(outcome: ConfigurationOutcome) -> tuple[str, str]:
    """Return what `get_step_time` returns as texts, `-` for None."""
    seconds, difference = get_step_time(outcome)
    ratio = None if difference is None else formatting.compute_bounded_exp(difference)
    return formatting.format_seconds(seconds), formatting.format_difference(ratio)


def get_mfu(outcome: ConfigurationOutcome) -> tuple[float | None, bool]:
    """Return the MFU of a configuration as a fraction, None where it means nothing, and
    whether its framework has counted the FLOPs."""
    if get_step_time(outcome)[0] is None:
        return None, False
    own, logged = outcome.get_metric("mfu"), outcome.get_metric("mfu_logged")
    return (logged, True) if own is None and logged is not None else (own, False)


def format_mfu(outcome: ConfigurationOutcome) -> str:
    """Return what `get_mfu` returns in percent: `41.5`, `41.5*` where the framework has
    counted, `-` for None."""
    mfu, logged = get_mfu(outcome)
    return "-" if mfu is None else f"{mfu * 100:.1f}{'*' * logged}"


def explain_mfu(outcomes: Iterable[OutcomeDocument]) -> str:
    """Return what the mark of `format_mfu` means, where one of the configurations has
    it."""
    marked = any(get_mfu(outcome)[1] for outcome in select_configurations(outcomes))
    return MFU_LOGGED if marked else ""


# --- all of them ----------------------------------------------------------------------


def select_worst(described: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Return one outcome for each suite and id, the worst: several tests of a user may
    be about one configuration."""
    worst: dict[tuple[str, str], OutcomeDocument] = {}
    for outcome in described:
        before = worst.setdefault((outcome.suite, outcome.id), outcome)
        if _rate_severity(outcome) >= _rate_severity(before):
            worst[outcome.suite, outcome.id] = outcome
    return list(worst.values())


def _rate_severity(outcome: OutcomeDocument) -> int:
    return SEVERITY.get(outcome.status, len(SEVERITY))


def sort_outcomes(described: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Return the outcomes as a reader wants them: configurations by verdict, those of
    which nothing was seen last, then runs without one, then checks."""
    return sorted(described, key=_rank_outcome)


def _rank_outcome(outcome: OutcomeDocument) -> tuple[int, int, bool, str]:
    if isinstance(outcome, ConfigurationOutcome):
        absent = is_absent(outcome)
        return 0, ORDER.index(outcome.verdict), absent, "" if absent else outcome.id
    return (1 if outcome.kind == "stray" else 2), 0, False, ""


def choose_colour(status: str, verdict: str) -> str:
    """Choose the colour of an outcome: red if it failed, skipped if it was skipped,
    unclear if it passed with a verdict of `UNSURE`, else green."""
    if status == "failed":
        return "red"
    if status == "skipped":
        return "skipped"
    return "unclear" if verdict in UNSURE else "green"


def choose_common_colour(described: Sequence[OutcomeDocument]) -> str:
    """Choose the terminal's colour of several outcomes: red if any is red; green if
    some are not skipped and all of these are green; else yellow."""
    colours = {choose_colour(outcome.status, outcome.verdict) for outcome in described}
    if "red" in colours:
        return "red"
    return "green" if colours - {"skipped"} == {"green"} else "yellow"


def explain_no_judged_run(described: Sequence[OutcomeDocument]) -> str:
    """Return why nothing was judged; empty where something was."""
    return next((outcome.context for outcome in described if outcome.context), "")


def select_counted(described: Sequence[OutcomeDocument]) -> list[OutcomeDocument]:
    """Return the outcomes that are counted: a check that passed is none of them."""
    return [
        outcome
        for outcome in described
        if outcome.kind != "check" or outcome.status == "failed"
    ]


def count_verdicts(described: Sequence[OutcomeDocument]) -> VerdictCounts:
    """Count the verdicts by what became of their items, each id with its worst outcome,
    without checks that passed."""
    chosen = select_counted(select_worst(described))
    return VerdictCounts(
        green=_count_verdicts(chosen, "passed"),
        red=_count_verdicts(chosen, "failed"),
        skipped=_count_verdicts(chosen, "skipped"),
    )


def _count_verdicts(outcomes: Sequence[OutcomeDocument], status: str) -> dict[str, int]:
    names = Counter(
        _name_count(outcome) for outcome in outcomes if outcome.status == status
    )
    return dict(sorted(names.items(), key=rank_count))


def _name_count(outcome: OutcomeDocument) -> str:
    if outcome.kind == "configuration" or is_guard(outcome):
        return outcome.verdict
    return outcome.reason.upper()


def rank_count(item: tuple[str, int]) -> tuple[int, str]:
    """Return by what verdicts and their numbers are ordered."""
    return (
        ORDER.index(item[0])
        if item[0] in ORDER
        else len(ORDER) + (item[0] == Finding.NOTHING_JUDGED)
    ), item[0]


def format_counts(described: Sequence[OutcomeDocument]) -> str:
    """Return `82 green: 74 PASS, 8 INCONCLUSIVE; 3 red: 2 REGRESSION, 1 UNMATCHED; 4
    skipped: 4 MISSING`."""
    parts = []
    for label, names in asdict(count_verdicts(described)).items():
        if names:
            parts.append(f"{sum(names.values())} {label}: {join_counts(names.items())}")
    checks = sum(
        outcome.kind == "check" and outcome.status == "passed" for outcome in described
    )
    # Who reads only the last line must not take it for the gate's verdict.
    if parts and any(outcome.timed == "document" for outcome in described):
        parts.append(BY_DOCUMENT)
    return "; ".join(parts) or (
        f"{formatting.count_noun(checks, 'check')} passed"
        if checks
        else "nothing judged"
    )


def join_counts(numbers: Iterable[tuple[str, int]]) -> str:
    """Return `74 PASS, 8 INCONCLUSIVE`."""
    return ", ".join(f"{number} {name}" for name, number in numbers)


# --- what fails nothing ---------------------------------------------------------------


def list_findings(outcomes: Sequence[OutcomeDocument]) -> Iterator[Caution]:
    """Yield what is known to be worse and fails nothing: `trend: 6 SLOWER`, `not
    asserted: 1 REGRESSION`.

    `outcomes` are those of a session, each id once.
    """
    passed = [outcome for outcome in outcomes if outcome.status != "failed"]
    verdicts: dict[str, Counter[str]] = {}
    for outcome in select_checks(passed):
        if not outcome.overruled and outcome.verdict in SLOWER:
            verdicts.setdefault(outcome.check, Counter())[outcome.verdict] += 1
    # Its item would have said SLOWER; without one it must not be green in silence.
    for _ in _find_trends_without_item(outcomes):
        verdicts.setdefault("trend", Counter())["SLOWER"] += 1
    for kind, of_kind in verdicts.items():
        yield Caution(
            CautionCode.REPORTED_ONLY, f"{kind}: {join_counts(sorted(of_kind.items()))}"
        )
    overruled = Counter(
        outcome.overruled for outcome in passed if outcome.overruled in RED
    )
    if overruled:
        yield Caution(
            CautionCode.NOT_ASSERTED,
            f"not asserted: {join_counts(sorted(overruled.items()))}",
        )


def _find_trends_without_item(outcomes: Sequence[OutcomeDocument]) -> set[str]:
    """Return the configurations that did not fail though they became slower for good,
    and whose nights have no item: a user's own tests need none, and a selection may
    leave it out."""
    items = {
        outcome.id for outcome in select_checks(outcomes) if outcome.check == "trend"
    }
    passed = (
        outcome
        for outcome in select_configurations(outcomes)
        if outcome.status != "failed"
    )
    return {
        outcome.configuration.id for outcome in passed if _has_become_slower(outcome)
    } - items


def _has_become_slower(outcome: ConfigurationOutcome) -> bool:
    standing = [
        change
        for change in outcome.changes
        if change.stands and change.acknowledged is None
    ]
    # A change to faster does not make up for one to slower.
    slower = [float(change.difference) for change in standing if change.difference > 0]
    # Several small changes to slower add up to one that nobody would accept.
    return math.prod(1 + difference for difference in slower) >= 1 + LEAST


class SessionState(StrEnum):
    """How a session ended."""

    GREEN = "green"
    RED = "red"
    INTERRUPTED = "interrupted"
    ERROR = "error"


def format_findings(state: SessionState, outcomes: Sequence[OutcomeDocument]) -> str:
    """Return what is known to be worse, to stand behind how a session ended: `, but
    trend: 6 SLOWER`."""
    texts = [finding.text for finding in list_findings(outcomes)]
    joined = ", but " if state is SessionState.GREEN else ", "
    return f"{joined}{', '.join(texts)}" if texts else ""


def list_caution_texts(cautions: Sequence[Caution | ReportedCaution]) -> list[str]:
    """Return the texts of the cautions that a headline does not name."""
    return [caution.text for caution in cautions if caution.code not in FINDINGS]


def list_all_texts(
    outcomes: Sequence[OutcomeDocument], cautions: Sequence[Caution]
) -> list[str]:
    """Return the texts of what a headline names and of all other cautions, in the order
    in which they are read."""
    return [
        *(finding.text for finding in list_findings(outcomes)),
        *list_caution_texts(cautions),
    ]
