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

REMARK_INDENT = " " * 17
ROW_INDENT = " " * 15
ADVICE_INDENT = " " * 6
CHECK_INDENT = " " * 6

VERDICT_WIDTH = 14
"""Columns for the verdict at the beginning of a row."""

LONGEST_REMARK = 120
"""Maximum number of characters of a remark on a configuration."""

MOST_ABSENT = 5
"""Maximum number of ids in a line of configurations without a run."""

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
    shown = outcomes
    if verbosity < 0:
        shown = [outcome for outcome in outcomes if outcome.status == "failed"]
    # The guard, which reports a session without judged runs, gets no line.
    checks = [check for check in select_checks(shown) if not is_guard(check)]
    yield from _tabulate(select_configurations(shown), verbosity)
    yield from _list_unmatched(select_unmatched(shown), verbosity)
    yield from _list_checks(checks)
    for remark in remarks:
        yield from map(TerminalLine, wrap(remark, "  "))
    if verbosity >= 0:
        yield from list_next_steps(outcomes)
    for text in list_all_texts(outcomes, cautions):
        yield from _mark(wrap(f"caution: {text}", "  "), "caution:", "yellow")
    colour = choose_common_colour(outcomes)
    for line in wrap(format_counts(outcomes), "  "):
        yield TerminalLine(line, colour)


def _list_unmatched(
    unmatched: Sequence[UnmatchedOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield a line for each of the first unmatched runs, and a count of the others."""
    most_rows = len(unmatched) if verbosity > 0 else MOST_UNMATCHED
    for outcome in unmatched[:most_rows]:
        yield from _format_row(outcome, outcome.reason.upper())
    omitted = unmatched[most_rows:]
    if omitted:
        count_by_reason = Counter(outcome.reason.upper() for outcome in omitted)
        counts = ", ".join(
            f"{count:,} {reason}" for reason, count in count_by_reason.most_common()
        )
        text = f"{counts} more; -v or --llmb-json lists all"
        yield from map(TerminalLine, _wrap_row("...", text))


def _tabulate(
    configurations: Sequence[ConfigurationOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield the table of configurations.

    Configurations with neither a run nor a job are grouped: one line for each reason,
    and one for the documented configurations that no custom baseline file contains.
    """
    if verbosity >= 0:
        names = f"{'verdict':<{VERDICT_WIDTH}} {'configuration':<34}"
        numbers = f"{'step time':>9} {'MFU %':>5} {'diff':>7} {'age':>5}"
        yield TerminalLine(f"{names} {numbers}")
    for outcome in configurations:
        if not is_absent(outcome):
            yield from _format_configuration(outcome, verbosity)
    if legend := explain_mfu(configurations):
        yield TerminalLine(f"{legend:>{WIDTH - 1}}")
    documented = list_documented_absent(configurations)
    documented_ids = {outcome.id for outcome in documented}
    others = [outcome for outcome in configurations if outcome.id not in documented_ids]
    for (reason, status), ids in _group_absent(others).items():
        most_ids = len(ids) if verbosity > 0 else MOST_ABSENT
        text = f"{len(ids)} {reason}: {formatting.join_first(ids, most_ids)}"
        colour = "red" if status == "failed" else "yellow"
        yield from _mark(_wrap_row("MISSING", text), "MISSING", colour)
    if documented:
        text = count_documented(documented)
        if verbosity > 0:
            text += f": {', '.join(outcome.id for outcome in documented)}"
        yield from _mark(_wrap_row("MISSING", text), "MISSING", "yellow")


def _group_absent(
    configurations: Sequence[ConfigurationOutcome],
) -> dict[tuple[str, str], list[str]]:
    """Group the ids of configurations with neither a run nor a job.

    The keys are (reason in words, status); failed ones come first.
    """
    absent = list(filter(is_absent, configurations))
    absent.sort(key=lambda outcome: outcome.status != "failed")
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in absent:
        reason = f"{ABSENT.get(outcome.reason, outcome.reason)} ({outcome.text})"
        if outcome.reason == "no-run":
            reason = "without a run"
        groups.setdefault((reason, outcome.status), []).append(outcome.id)
    return groups


def _list_checks(outcomes: Sequence[CheckOutcome]) -> Iterator[TerminalLine]:
    """Yield a line for each kind of check, and the texts of checks with findings."""
    checks_by_kind: dict[str, list[CheckOutcome]] = {}
    for outcome in outcomes:
        checks_by_kind.setdefault(outcome.check, []).append(outcome)
    for kind, checks in checks_by_kind.items():
        label = kind
        if checks[0].timed == "document":  # checks of a session are timed alike
            label += " [as documented]"
        verdicts = Counter(check.verdict for check in checks)
        counts = join_counts(sorted(verdicts.items(), key=rank_count))
        colour = choose_common_colour(checks)
        yield TerminalLine(f"{label}: {counts}", colour, marked=len(f"{label}:"))
        for check in checks:
            if check.verdict not in QUIET:
                text = f"{name_outcome(check)}: {check.text}"
                yield from map(TerminalLine, wrap(text, CHECK_INDENT, first="  "))


def _format_configuration(
    outcome: ConfigurationOutcome, verbosity: int
) -> Iterator[TerminalLine]:
    """Yield the row of a configuration, its remarks and the files of its jobs."""
    step_time, change = format_step_time(outcome)
    age, _ = jobs.find_age(outcome)
    numbers = f"{step_time:>9} {format_mfu(outcome):>5} {change:>7} {age:>5}"
    yield from _format_row(outcome, outcome.verdict, numbers)
    remarks = _list_remarks(outcome, verbosity)
    texts = [formatting.clip(remark, LONGEST_REMARK) for remark in remarks]
    for text in (*texts, jobs.summarize(outcome), outcome.nodes):
        if text:
            yield from map(TerminalLine, wrap(text, REMARK_INDENT, first=REMARK_INDENT))
    for file in jobs.list_files(outcome)[: jobs.MOST_FILES]:
        # Not wrapped, so that the name can be copied.
        yield TerminalLine(f"{REMARK_INDENT}{file}")


def _list_remarks(outcome: ConfigurationOutcome, verbosity: int) -> list[str]:
    """Return the remarks below the row of a configuration; a remark may be ""."""
    remarks = [note.text for note in outcome.notes if note.code in NOTEWORTHY]
    if outcome.reason in DOUBTFUL:
        # `remainder` is the verdict's text without the comparison with the baseline,
        # which the numbers of the row show.
        remarks.insert(0, outcome.remainder or "")
    if outcome.reason in ("over-budget", "drifted"):
        # The step time of the row does not explain the failure.
        remarks.insert(0, outcome.text)
    # Other notes are about a verdict; a recorded run has none.
    if outcome.reason == "recorded":
        remarks = [note.text for note in outcome.notes if note.code in OF_RECORDED]
    # The numbers of the row do not explain other verdicts, so their text is the only
    # remark.
    if outcome.verdict not in JUDGED:
        remarks = [outcome.text]
    throughput = outcome.get_metric("tokens_per_second_per_gpu")
    step_seconds, _ = get_step_time(outcome)
    if verbosity > 0 and throughput is not None and step_seconds is not None:
        remarks.insert(0, f"{throughput:,.1f} tokens/s per GPU")
    return remarks


def _format_row(
    outcome: OutcomeDocument, verdict: str, numbers: str = ""
) -> Iterator[TerminalLine]:
    """Yield a verdict with its id and its numbers, right-aligned.

    After a long id the numbers get their own line.
    """
    colour = choose_common_colour([outcome])
    name = name_outcome(outcome)
    head = f"{verdict:<{VERDICT_WIDTH}} {name}"
    head_width = count_columns(head)
    # An id of more than 34 characters would push the numbers out of their columns.
    if numbers and head_width + len(numbers) < WIDTH:
        row = f"{head}{numbers:>{WIDTH - 1 - head_width}}"
        yield TerminalLine(row, colour, marked=len(verdict))
        return
    yield from _mark(_wrap_row(verdict, name), verdict, colour)
    if numbers:
        yield TerminalLine(f"{numbers:>{WIDTH - 1}}")


def _wrap_row(verdict: str, text: str) -> list[str]:
    """Wrap a row that begins with a verdict."""
    return wrap(f"{verdict:<{VERDICT_WIDTH}} {text}", ROW_INDENT)


def _mark(lines: Sequence[str], label: str, colour: str) -> Iterator[TerminalLine]:
    """Yield lines, with `label` at the beginning of the first line in colour."""
    first, *others = lines
    yield TerminalLine(first, colour, marked=len(label))
    yield from map(TerminalLine, others)


def list_next_steps(outcomes: Sequence[OutcomeDocument]) -> Iterator[TerminalLine]:
    """Yield the next steps for outcomes, which must be sorted as by `sort_outcomes`.

    Yields nothing for a session that judged nothing: its context, the explanation by
    the session, contains the advice.
    """
    judged = [
        outcome for outcome in outcomes if not outcome.context and not is_guard(outcome)
    ]
    advised = list_advice(judged)
    for group, text in advised[:MOST_ADVICE]:
        yield from _format_advice(f"{_name_group(group)}: {text}")
        example = group[0]
        if example.status == "failed" and example.log:
            # Not wrapped, so that the path can be copied.
            yield TerminalLine(f"{ADVICE_INDENT}log: {locate_log(example)}")
    configurations = select_configurations(outcomes)
    launched = any(outcome.jobs for outcome in configurations)
    # A session that only collects has a command to resume it, which needs no --lf.
    collected = any(outcome.resume for outcome in configurations)
    # After a launch, --lf is not suggested for checks alone.
    failed_outcomes = [
        outcome
        for outcome in judged
        if outcome.status == "failed"
        and not (launched and isinstance(outcome, CheckOutcome))
    ]
    if failed_outcomes and not collected:
        yield from _format_advice(
            "to judge only the failed items again, add --lf to the same command"
        )
    documented_ids = {outcome.id for outcome in list_documented_absent(judged)}
    # Configurations without a run get a step only if nothing else does.
    absent = [
        outcome
        for outcome in judged
        if outcome.reason == "no-run" and outcome.id not in documented_ids
    ]
    if absent and not advised:
        launch = (
            f"launch it with pytest -k {absent[0].id} --llmb-launch; "
            "--llmb-dry-run shows what that takes"
        )
        yield from _format_advice(f"{_name_group(absent)} without a run: {launch}")


def _name_group(group: Sequence[OutcomeDocument]) -> str:
    """Return the first id and the number of the others: `grok1-25.05 and 3 more`."""
    names = [name_outcome(outcome) for outcome in group]
    return formatting.join_first(names, limit=1)


def _format_advice(text: str) -> Iterator[TerminalLine]:
    """Yield the lines of a next step, with a bold `next:`."""
    first, *others = wrap(f"next: {text}", ADVICE_INDENT)
    yield TerminalLine(first, "bold", marked=len("next:"))
    for line in others:
        yield TerminalLine(line, "bold", marked=0)
