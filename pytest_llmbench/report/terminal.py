"""The summary at the end of a session: a line for each configuration, made from their
documents."""

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
"""The verdicts of checks that need no line of their own; a self-test tells what each
run would have shown."""


DOUBTFUL = ("few-steps-decide", "warming-up", "repeats-disagree", "implausibly-fast")
"""Reasons that stand under a line whatever its colour."""

ABSENT = {"not-on-cluster": "not on this cluster", "not-launched": "not launched"}
"""Why a configuration has no run, in words; other reasons stand as they are."""

INDENT, ADVICE_INDENT = " " * 17, " " * 6

MOST_STRAYS = 20
"""Runs of no known configuration that are listed, each on a line; reports list all."""

MOST_ADVICE = 2
"""Groups of items of which the summary tells; the message of each red one has its own
step."""

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
"""Notes that stand under a green line too: what was judged is not all that there
was."""

OF_RECORDED = (
    NoteCode.RECORDED_REPLACED,
    NoteCode.RECORDED_AGAINST_PUBLISHED,
    NoteCode.RECORDED_LEVELS,
    NoteCode.RECORDED_FEW_GROUPS,
)
"""Notes that stand under the line of what was recorded."""


class TerminalLine(str):
    """A line of the terminal. Its first `marked` signs have the colour: red, yellow,
    green, or none."""

    __slots__ = ("colour", "marked")
    colour: str
    marked: int

    def __new__(
        cls, text: str, colour: str = "", marked: int | None = None
    ) -> TerminalLine:
        """Return the line; without `marked` all of it has the colour."""
        line = super().__new__(cls, escape_commands(text))
        line.colour = colour
        line.marked = len(line) if marked is None else marked
        return line


def render_summary(
    described: Sequence[OutcomeDocument],
    remarks: Sequence[str],
    verbosity: int = 0,
    cautions: Sequence[Caution] = (),
) -> Iterator[TerminalLine]:
    """Yield the lines of the summary: verdicts, remarks, what to do next, cautions, and
    the count by verdict last.

    They are 80 columns wide, but for the names of files, which are whole, to be copied.
    A `verbosity` below 0 shows what is red and the remarks, above 0 the id of
    everything without a run.
    """
    described = sort_outcomes(select_worst(described))
    shown = (
        described
        if verbosity >= 0
        else [outcome for outcome in described if outcome.status == "failed"]
    )
    yield from _tabulate(select_configurations(shown), verbosity)
    yield from _list_strays(select_unmatched(shown), verbosity)
    yield from _list_checks(
        [check for check in select_checks(shown) if not is_guard(check)]
    )
    for remark in remarks:
        yield from map(TerminalLine, wrap(remark, "  "))
    if verbosity >= 0:
        yield from list_next_steps(described)
    for text in list_all_texts(described, cautions):
        yield from _mark(wrap(f"caution: {text}", "  "), "caution:", "yellow")
    yield from (
        TerminalLine(line, choose_common_colour(described))
        for line in wrap(format_counts(described), "  ")
    )


def _list_strays(
    strays: Sequence[UnmatchedOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield a line for each run of no known configuration, of many for the first ones
    and one for the others."""
    most = len(strays) if verbosity > 0 or len(strays) <= MOST_STRAYS else MOST_STRAYS
    for outcome in strays[:most]:
        yield from _format_row(outcome, outcome.reason.upper())
    if left := strays[most:]:
        reasons = Counter(outcome.reason.upper() for outcome in left)
        counts = ", ".join(
            f"{number:,} {reason}" for reason, number in reasons.most_common()
        )
        text = f"{'...':<14} {counts} more, not listed; -v or --llmb-json lists all"
        yield from map(TerminalLine, wrap(text, " " * 15))


def _tabulate(
    configurations: Sequence[ConfigurationOutcome], verbosity: int
) -> Iterator[TerminalLine]:
    """Yield the table of configurations; those of which nothing was seen have a line
    for each reason."""
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
    together = list_documented_absent(configurations)
    counted = {outcome.id for outcome in together}
    others = [outcome for outcome in configurations if outcome.id not in counted]
    for (why, status), ids in _group_absent(others).items():
        named = formatting.join_first(ids, len(ids) if verbosity > 0 else 5)
        lines = wrap(f"{'MISSING':<14} {len(ids)} {why}: {named}", " " * 15)
        yield from _mark(lines, "MISSING", "red" if status == "failed" else "yellow")
    if together:
        listed = (
            f": {', '.join(outcome.id for outcome in together)}"
            if verbosity > 0
            else ""
        )
        yield from _mark(
            wrap(f"{'MISSING':<14} {count_documented(together)}{listed}", " " * 15),
            "MISSING",
            "yellow",
        )


def _group_absent(
    configurations: Sequence[ConfigurationOutcome],
) -> dict[tuple[str, str], list[str]]:
    """Return the ids of what has neither a run nor a job, by the reason in words and
    the status, red first."""
    ids: dict[tuple[str, str], list[str]] = {}
    for outcome in sorted(
        filter(is_absent, configurations),
        key=lambda outcome: outcome.status != "failed",
    ):
        reason = f"{ABSENT.get(outcome.reason, outcome.reason)} ({outcome.text})"
        why = "without a run" if outcome.reason == "no-run" else reason
        ids.setdefault((why, outcome.status), []).append(outcome.id)
    return ids


def _list_checks(described: Sequence[CheckOutcome]) -> Iterator[TerminalLine]:
    """Yield a line for each kind of check, and the texts of those that found
    something."""
    for kind in dict.fromkeys(outcome.check for outcome in described):
        of_kind = [outcome for outcome in described if outcome.check == kind]
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
    step_time, change = format_step_time(outcome)
    age, _ = jobs.find_age(outcome)
    yield from _format_row(
        outcome,
        outcome.verdict,
        f"{step_time:>9} {format_mfu(outcome):>5} {change:>7} {age:>5}",
    )
    remarks = [note.text for note in outcome.notes if note.code in NOTEWORTHY]
    if outcome.reason in DOUBTFUL:
        # The comparison before it stands in the numbers of the line already.
        remarks.insert(0, outcome.remainder or "")
    if outcome.reason in (
        "over-budget",
        "drifted",
    ):  # its step time may be near what was recorded
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
    for file in jobs.list_files(outcome)[: jobs.MOST_FILES]:  # whole, to be copied
        yield TerminalLine(f"{INDENT}{file}")


def _format_row(
    outcome: OutcomeDocument, verdict: str, numbers: str = ""
) -> Iterator[TerminalLine]:
    """Yield a verdict with its id and, at the right, its numbers: on a line of their
    own behind a long id."""
    head = f"{verdict:<14} {name_outcome(outcome)}"
    # An id of more than 34 signs would push the numbers out of their columns.
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


def _mark(lines: Sequence[str], verdict: str, shade: str) -> Iterator[TerminalLine]:
    yield TerminalLine(lines[0], shade, len(verdict))
    yield from map(TerminalLine, lines[1:])


def list_next_steps(described: Sequence[OutcomeDocument]) -> Iterator[TerminalLine]:
    """Yield the lines of what to do about outcomes that stand in the order of their
    importance.

    Nothing is yielded about items of a session that judged nothing: their context says
    what to do.
    """
    judged = [
        outcome
        for outcome in described
        if not outcome.context and not is_guard(outcome)
    ]
    # Where nothing was judged the context of the items says what to do, once.
    advised = list_advice(judged)
    for group, text in advised[:MOST_ADVICE]:
        yield from _format_advice(f"{_name_group(group)}: {text}")
        if group[0].status == "failed" and group[0].log:
            yield TerminalLine(
                f"{ADVICE_INDENT}log: {locate_log(group[0])}"
            )  # whole, to be copied
    red = [outcome for outcome in judged if outcome.status == "failed"]
    configurations = select_configurations(described)
    launched = any(outcome.jobs for outcome in configurations)
    collected = any(
        outcome.resume for outcome in configurations
    )  # its session is judged again by its name alone
    if (
        any(not (launched and isinstance(outcome, CheckOutcome)) for outcome in red)
        and not collected
    ):
        yield from _format_advice("only what is red again: the same command with --lf")
    counted = {outcome.id for outcome in list_documented_absent(judged)}
    absent = [
        outcome
        for outcome in judged
        if outcome.reason == "no-run" and outcome.id not in counted
    ]
    if absent and not advised:
        launch = f"pytest -k {absent[0].id} --llmb-launch launches it, --llmb-dry-run says what that takes"
        yield from _format_advice(f"{_name_group(absent)} without a run: {launch}")


def _name_group(group: Sequence[OutcomeDocument]) -> str:
    return formatting.join_first([name_outcome(outcome) for outcome in group], 1)


def _format_advice(text: str) -> Iterator[TerminalLine]:
    for number, line in enumerate(wrap(f"next: {text}", ADVICE_INDENT)):
        yield TerminalLine(line, "bold", 0 if number else len("next:"))
