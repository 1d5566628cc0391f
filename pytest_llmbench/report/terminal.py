"""The terminal summary at the end of a session: one line for each configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.outcome_records import Caution
from pytest_llmbench.core.text import WIDTH, count_columns
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.advice import list_advice
from pytest_llmbench.report.explain import escape_commands, wrap
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    UnmatchedOutcome,
    select_checks,
    select_configurations,
    select_unmatched,
)
from pytest_llmbench.report.verdicts import (
    JUDGED,
    choose_common_colour,
    count_documented,
    explain_mfu,
    format_counts,
    format_mfu,
    format_step_time,
    get_step_time,
    is_absent,
    is_guard,
    join_counts,
    list_all_texts,
    list_documented_absent,
    locate_log,
    name_outcome,
    rank_count,
    select_worst,
    sort_outcomes,
)

QUIET = ("PASS", "MISSING")
"""Check verdicts whose text is not printed."""


DOUBTFUL = ("few-steps-decide", "warming-up", "repeats-disagree", "implausibly-fast")
"""Reasons that are explained below the line of a configuration even if it passed."""

ABSENT = {"not-on-cluster": "not on this cluster", "not-launched": "not launched"}
"""The reasons for a missing run, in words; other reasons are printed unchanged."""

INDENT, ADVICE_INDENT = " " * 17, " " * 6

MOST_UNMATCHED = 20
"""Maximum number of unmatched runs that the summary lists; reports list all."""

MOST_ADVICE = 2
"""Maximum number of next steps; the message of each failed item has its own."""

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
    NoteCode.ORDER_AMBIGUOUS,
    NoteCode.BASELINE_CONTRADICTS,
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
    NoteCode.RECORDED_MOVED,
    NoteCode.ACKNOWLEDGED,
    NoteCode.ACKNOWLEDGEMENT_IDLE,
    NoteCode.ACKNOWLEDGEMENT_EXPIRED,
)
"""Notes that are printed below the line of a configuration even if it passed."""

OF_RECORDED = (
    NoteCode.RECORDED_REPLACED,
    NoteCode.RECORDED_AGAINST_PUBLISHED,
    NoteCode.RECORDED_LEVELS,
    NoteCode.RECORDED_FEW_GROUPS,
)
"""Notes that are printed below the line of a recorded configuration."""


class TerminalLine(str):
    """A line of the terminal whose first `marked` characters are coloured.

    The colour is a markup name of pytest's terminal writer, or "".
    """

    __slots__ = ("colour", "marked")
    colour: str
    marked: int

    def __new__(
        cls, text: str, colour: str = "", marked: int | None = None
    ) -> TerminalLine:
        """Create a line; without `marked` the whole line is coloured."""
        line = super().__new__(cls, escape_commands(text))
        line.colour = colour
        line.marked = len(line) if marked is None else marked
        return line


def render_summary(
    outcomes: Sequence[OutcomeDocument],
    remarks: Sequence[str],
    verbosity: int = 0,
    cautions: Sequence[Caution] = (),
) -> Iterator[TerminalLine]:
    """Yield the lines of the summary.

    The order is: verdicts, remarks, next steps, cautions, counts. Lines are at most 80
    columns wide, except for file names, which are not wrapped so that they can be
    copied. A `verbosity` below 0 omits items that did not fail, and the next steps; a
    `verbosity` above 0 lists every configuration without a run.
    """
    outcomes = sort_outcomes(select_worst(outcomes))
    shown = (
        outcomes
        if verbosity >= 0
        else [outcome for outcome in outcomes if outcome.status == "failed"]
    )
    yield from _tabulate(select_configurations(shown), verbosity)
    yield from _list_unmatched(select_unmatched(shown), verbosity)
    yield from _list_checks(
        [check for check in select_checks(shown) if not is_guard(check)]
    )
    for remark in remarks:
        yield from map(TerminalLine, wrap(remark, "  "))
    if verbosity >= 0:
        yield from list_next_steps(outcomes)
    for text in list_all_texts(outcomes, cautions):
        yield from _mark(wrap(f"caution: {text}", "  "), "caution:", "yellow")
    yield from (
        TerminalLine(line, choose_common_colour(outcomes))
        for line in wrap(format_counts(outcomes), "  ")
    )


def _list_unmatched(
    unmatched: Sequence[UnmatchedOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield a line for each of the first unmatched runs, and a count of the others."""
    shown = len(unmatched)
    if verbosity <= 0 and len(unmatched) > MOST_UNMATCHED:
        shown = MOST_UNMATCHED
    for outcome in unmatched[:shown]:
        yield from _format_row(outcome, outcome.reason.upper())
    if hidden := unmatched[shown:]:
        reasons = Counter(outcome.reason.upper() for outcome in hidden)
        counts = ", ".join(
            f"{number:,} {reason}" for reason, number in reasons.most_common()
        )
        text = f"{'...':<14} {counts} more; -v or --llmb-json lists all"
        yield from map(TerminalLine, wrap(text, " " * 15))


def _tabulate(
    configurations: Sequence[ConfigurationOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield the table of configurations.

    Configurations with neither a run nor a job are grouped: one line for each reason.
    """
    if verbosity >= 0:
        yield TerminalLine(
            f"{'verdict':<14} {'configuration':<34} {'step time':>9} {'MFU %':>5} {'diff':>7} {'age':>5}",
            "",
        )
    for outcome in configurations:
        if not is_absent(outcome):
            yield from _format_configuration(outcome, verbosity)
    if legend := explain_mfu(configurations):
        yield TerminalLine(f"{legend:>{WIDTH - 1}}")
    documented = list_documented_absent(configurations)
    counted = {outcome.id for outcome in documented}
    others = [outcome for outcome in configurations if outcome.id not in counted]
    for (reason, status), ids in _group_absent(others).items():
        names = formatting.join_first(ids, len(ids) if verbosity > 0 else 5)
        lines = wrap(f"{'MISSING':<14} {len(ids)} {reason}: {names}", " " * 15)
        yield from _mark(lines, "MISSING", "red" if status == "failed" else "yellow")
    if documented:
        listed = (
            f": {', '.join(outcome.id for outcome in documented)}"
            if verbosity > 0
            else ""
        )
        yield from _mark(
            wrap(f"{'MISSING':<14} {count_documented(documented)}{listed}", " " * 15),
            "MISSING",
            "yellow",
        )


def _group_absent(
    configurations: Sequence[ConfigurationOutcome],
) -> dict[tuple[str, str], list[str]]:
    """Group the ids of configurations with neither a run nor a job.

    The keys are (reason in words, status); failed ones come first.
    """
    ids: dict[tuple[str, str], list[str]] = {}
    for outcome in sorted(
        filter(is_absent, configurations),
        key=lambda outcome: outcome.status != "failed",
    ):
        reason = f"{ABSENT.get(outcome.reason, outcome.reason)} ({outcome.text})"
        if outcome.reason == "no-run":
            reason = "without a run"
        ids.setdefault((reason, outcome.status), []).append(outcome.id)
    return ids


def _list_checks(outcomes: Sequence[CheckOutcome]) -> Iterator[TerminalLine]:
    """Yield a line for each kind of check, and the texts of checks that did not pass."""
    for kind in dict.fromkeys(outcome.check for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.check == kind]
        verdicts = Counter(outcome.verdict for outcome in of_kind)
        numbers = join_counts(sorted(verdicts.items(), key=rank_count))
        label = f"{kind}{' [as documented]' if of_kind[0].timed == 'document' else ''}"
        yield TerminalLine(
            f"{label}: {numbers}", choose_common_colour(of_kind), len(label) + 1
        )
        for outcome in of_kind:
            if outcome.verdict not in QUIET:
                yield from map(
                    TerminalLine,
                    wrap(
                        f"{name_outcome(outcome)}: {outcome.text}", " " * 6, first="  "
                    ),
                )


def _format_configuration(
    outcome: ConfigurationOutcome, verbosity: int
) -> Iterator[TerminalLine]:
    """Yield the row of a configuration, its remarks and the files of its jobs."""
    step_time, change = format_step_time(outcome)
    age, _ = jobs.find_age(outcome)
    yield from _format_row(
        outcome,
        outcome.verdict,
        f"{step_time:>9} {format_mfu(outcome):>5} {change:>7} {age:>5}",
    )
    remarks = [note.text for note in outcome.notes if note.code in NOTEWORTHY]
    if outcome.reason in DOUBTFUL:
        # The numbers of the line already show the comparison with the baseline.
        remarks.insert(0, outcome.remainder or "")
    if outcome.reason in ("over-budget", "drifted"):
        # The step time of the line does not explain the failure.
        remarks.insert(0, outcome.text)
    if outcome.reason == "recorded":
        remarks = [note.text for note in outcome.notes if note.code in OF_RECORDED]
    if outcome.verdict not in JUDGED:
        remarks = [outcome.text]
    rate = outcome.get_metric("tokens_per_second_per_gpu")
    if verbosity > 0 and rate is not None and get_step_time(outcome)[0] is not None:
        remarks.insert(0, f"{rate:,.1f} tokens/s per GPU")
    texts = [formatting.clip(remark, 120) for remark in remarks]
    for remark in filter(None, (*texts, jobs.summarize(outcome), outcome.nodes)):
        yield from map(TerminalLine, wrap(remark, INDENT, first=INDENT))
    for file in jobs.list_files(outcome)[: jobs.MOST_FILES]:
        # Not wrapped, so that the name can be copied.
        yield TerminalLine(f"{INDENT}{file}")


def _format_row(
    outcome: OutcomeDocument, verdict: str, numbers: str = ""
) -> Iterator[TerminalLine]:
    """Yield a verdict with its id and its numbers, right-aligned.

    After a long id the numbers get their own line.
    """
    head = f"{verdict:<14} {name_outcome(outcome)}"
    # An id of more than 34 characters would push the numbers out of their columns.
    if numbers and count_columns(head) + len(numbers) < WIDTH:
        yield from _mark(
            [f"{head}{numbers:>{WIDTH - 1 - count_columns(head)}}"],
            verdict,
            choose_common_colour([outcome]),
        )
        return
    yield from _mark(wrap(head, " " * 15), verdict, choose_common_colour([outcome]))
    if numbers:
        yield TerminalLine(f"{numbers:>{WIDTH - 1}}")


def _mark(lines: Sequence[str], verdict: str, colour: str) -> Iterator[TerminalLine]:
    yield TerminalLine(lines[0], colour, len(verdict))
    yield from map(TerminalLine, lines[1:])


def list_next_steps(outcomes: Sequence[OutcomeDocument]) -> Iterator[TerminalLine]:
    """Yield the next steps for outcomes, which must be sorted as by `sort_outcomes`.

    Yields nothing for a session that judged nothing: its context contains the advice.
    """
    judged = [
        outcome for outcome in outcomes if not outcome.context and not is_guard(outcome)
    ]
    advised = list_advice(judged)
    for group, text in advised[:MOST_ADVICE]:
        yield from _format_advice(f"{_name_group(group)}: {text}")
        if group[0].status == "failed" and group[0].log:
            # Not wrapped, so that the path can be copied.
            yield TerminalLine(f"{ADVICE_INDENT}log: {locate_log(group[0])}")
    failed = [outcome for outcome in judged if outcome.status == "failed"]
    configurations = select_configurations(outcomes)
    launched = any(outcome.jobs for outcome in configurations)
    # A collected session is judged again by its session id, without --lf.
    collected = any(outcome.resume for outcome in configurations)
    if (
        any(not (launched and isinstance(outcome, CheckOutcome)) for outcome in failed)
        and not collected
    ):
        yield from _format_advice(
            "to judge only the failed items again, add --lf to the same command"
        )
    counted = {outcome.id for outcome in list_documented_absent(judged)}
    absent = [
        outcome
        for outcome in judged
        if outcome.reason == "no-run" and outcome.id not in counted
    ]
    if absent and not advised:
        launch = (
            f"launch it with pytest -k {absent[0].id} --llmb-launch; "
            "--llmb-dry-run shows what that takes"
        )
        yield from _format_advice(f"{_name_group(absent)} without a run: {launch}")


def _name_group(group: Sequence[OutcomeDocument]) -> str:
    return formatting.join_first([name_outcome(outcome) for outcome in group], 1)


def _format_advice(text: str) -> Iterator[TerminalLine]:
    for number, line in enumerate(wrap(f"next: {text}", ADVICE_INDENT)):
        yield TerminalLine(line, "bold", 0 if number else len("next:"))
