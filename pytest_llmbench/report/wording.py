"""The sentences of verdicts: one template for each `StatementCode`, in one table.

A field of a template names a value of the statement; `{problem.text}` is an attribute
of a value. The format after the colon is a Python format (`.1%`), a key of `KINDS`, or
one of these, which take an argument:

    {runs:count valid run}      2 valid runs
    {beyond:if beyond|within}   the first text if the value is true, else the second
    {line:optional  (line *)}   the text, with the value for *; empty without a value
    {log:or the log}            the sentence of the value; this text without a value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.formatting import (
    MANY,
    compute_bounded_exp,
    count_noun,
    fold_nodes,
    format_age,
    format_difference,
    format_exclude_option,
    format_fraction,
    format_nodes_option,
    format_ordinal,
    format_seconds,
    join_first,
    shorten_setting,
)
from pytest_llmbench.core.judgement_records import ChangeKind, Judgement, LevelChange
from pytest_llmbench.core.outcome_records import CheckKind
from pytest_llmbench.core.run_records import Acknowledgement, Clock, Note, Problem
from pytest_llmbench.core.statements import (
    CodedStatement,
    NodeCause,
    NodeFinding,
    SharedShift,
    ShiftReference,
    StatementCode,
)
from pytest_llmbench.core.tolerance import describe_move

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pytest_llmbench.core.baseline_records import (
        Baseline,
        Budget,
        Contradiction,
        Key,
    )
    from pytest_llmbench.core.configuration_comparisons import (
        ComparisonRow,
        ConfigurationComparison,
    )
    from pytest_llmbench.core.judgement_records import Estimate
    from pytest_llmbench.core.run_records import VerdictStatement
    from pytest_llmbench.core.statements import (
        DriftLimits,
        LogLine,
        OrderedRun,
        RunOnNodes,
        SlowestSteps,
        SlowStep,
        StepList,
        StepSpan,
    )

    Statements = VerdictStatement | tuple[VerdictStatement, ...]


@singledispatch
def phrase(statement: Statements | LevelChange | Judgement) -> str:
    """Return the sentence of a statement, or all sentences of a judgement."""
    raise TypeError(f"no sentence for {statement!r}")


@phrase.register(tuple)
def phrase_all(statements: Iterable[VerdictStatement]) -> str:
    """Join the sentences of several statements with semicolons."""
    return "; ".join(map(phrase, statements))


@phrase.register(str)
def _(text: str) -> str:
    return text


@phrase.register(Judgement)
def _(judgement: Judgement) -> str:
    return phrase_all(judgement.statements)


@phrase.register(Note)
def _(note: Note) -> str:
    return phrase(note.statement)


@phrase.register(Problem)
def _(problem: Problem) -> str:
    return problem.text


@phrase.register(Acknowledgement)
def _(entry: Acknowledgement) -> str:
    """Return `acknowledged: +5.0 % by alice until 2026-01-31: new driver`."""
    details = f"by {entry.by} until {entry.expires}: {entry.reason}"
    if entry.accepts is not None:
        return f"accepted: {entry.accepts} {details}"
    return f"acknowledged: {format_fraction(entry.fraction)} {details}"


@phrase.register(CodedStatement)
def _(statement: CodedStatement) -> str:
    """Fill in the template for the code, or call its function with the values."""
    sentence = SENTENCES[statement.code]
    if not isinstance(sentence, str):
        return sentence(**statement.values)
    values = {name: _Value(value) for name, value in statement.values.items()}
    return sentence.format_map(values)


# --- formats of values ----------------------------------------------------------------


class _Value:
    """A value of a template that understands the formats of `KINDS`."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> _Value:
        """Wrap an attribute, so that templates can contain `{entry.place}`."""
        return _Value(getattr(self._value, name))

    def __format__(self, spec: str) -> str:
        """Format the value for a placeholder `{name:spec}`."""
        value = self._value
        if spec in KINDS:  # {change:percent}
            return KINDS[spec](value)
        kind, _, text = spec.partition(" ")
        match kind:
            case "count":  # {values:count value}: `3 values`
                return count_noun(value, text)
            case "if":  # {slow:if slow|fast}: `slow` if the value is true, else `fast`
                if_true, _, if_false = text.partition("|")
                return if_true if value else if_false
            case "optional":  # {meant:optional , though *}: "" if the value is empty
                joined = join_first(value) if isinstance(value, tuple) else str(value)
                return text.replace("*", joined) if value else ""
            case "or":  # {log:or the log}: `the log` if the value is empty
                return phrase(value) if value else text
            case _:  # {seconds:.4g}
                return format(value, spec)


def format_interval(estimate: Estimate) -> str:
    """Format the confidence interval of a difference: `+5.7 to +10.3 %`."""
    if estimate.threshold_only:
        return "threshold only: the standard error is unknown"
    bounds = (estimate.low, estimate.high)
    low, high = (format_difference(compute_bounded_exp(bound)) for bound in bounds)
    if low.endswith("%") and high.endswith("%"):
        low = low.removesuffix(" %")
    return f"{low} to {high}"


def format_steps(steps: StepList) -> str:
    """Format step numbers with ranges: `steps 12, 20 to 24, 30 and 7 more`."""
    noun = "step" if steps.count == 1 else "steps"
    more = f" and {steps.more} more" if steps.more else ""
    return f"{noun} {', '.join(map(_format_span, steps.spans))}{more}"


def _format_span(span: StepSpan) -> str:
    """Return `12`, `12, 13` or `20 to 24`."""
    if span.count == 1:
        return f"{span.first}"
    if span.count == 2:
        return f"{span.first}, {span.last}"
    return f"{span.first} to {span.last}"


def _format_slowest(slowest: SlowestSteps) -> str:
    """Return `steps 12, 20 took up to 3.4 x the median`.

    A smoothed value is a moving mean, so the slowest step itself is only bounded.
    """
    at_most = "up to " if slowest.smoothed else ""
    average = " on average" if slowest.averaged else ""
    steps = format_steps(slowest.steps)
    return f"{steps} took {at_most}{slowest.ratio:.3g} x the median{average}"


def _list_slow_steps(steps: Iterable[SlowStep]) -> str:
    return join_first(list(map(_format_slow_step, steps)))


def _format_slow_step(step: SlowStep) -> str:
    """Return `step 12 (line 831) took 3.4 x the median`."""
    line = f" (line {step.line})" if step.line else ""
    return f"step {step.number}{line} took {step.ratio:.3g} x the median"


def _format_log_change(logarithm: float) -> str:
    """Return a difference of logarithms as a signed percentage."""
    return format_difference(math.exp(logarithm))


def _format_percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"


def _list_seconds(seconds: Iterable[float | None]) -> str:
    return join_first(list(map(format_seconds, seconds)))


def _format_needed(runs: int) -> str:
    return f"about {runs}" if runs <= MANY else f"more than {MANY}"


def _format_score(z: float) -> str:
    """Format a z score; larger scores than 99 are shown as 99."""
    return f"{min(z, 99):.3g}"


def _append_statements(statements: Statements | None) -> str:
    """Return the sentences after a semicolon, or "" without statements."""
    return f"; {phrase(statements)}" if statements else ""


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def _format_file_time(written: datetime | None) -> str:
    return f"on {_format_time(written)}" if written else "at an unknown time"


CLOCKS = {
    Clock.METADATA: "launch time in the metadata",
    Clock.FOLDER_NAME: "folder name",
    Clock.LOG: "first time stamp in the log",
    Clock.FOLDER_ABOVE: "name of a parent folder",
    Clock.FILE_TIME: "file time",
    Clock.MIXED: "first known time",
}


def _format_run(run: OrderedRun) -> str:
    """Return `x_1 (job 12, 2025-11-20 02:00 by the folder name, PASS)`."""
    job = f"job {run.job_id}, " if run.job_id else ""
    clock = CLOCKS.get(run.clock, "order of the runs")
    started = "start unknown"
    if run.started:
        started = f"{_format_time(run.started)} by the {clock}"
    return f"{run.id} ({job}{started}, {run.verdict})"


def _format_limits(limits: DriftLimits) -> str:
    budget = f"drift budget {limits.budget * 100:.10g} %"
    return f"{budget}, tolerance {limits.tolerance}"


def _format_budget(budget: Budget) -> str:
    source = f" ({budget.place})" if budget.place else ""
    return f"the budget is {budget.largest:g} s{source}"


def _format_log_line(line: LogLine) -> str:
    """Return `log.out:831`, or `line 831` if the log is known from the context."""
    return f"{line.log}:{line.line}" if line.log else f"line {line.line}"


def _quote_lines(lines: Iterable[tuple[str, int]]) -> str:
    """Return `"text" (line 831), ...` for pairs of text and line number."""
    return ", ".join(f'"{text}" (line {line})' for text, line in lines)


KINDS: dict[str, Callable[[Any], str]] = {
    "age": format_age,
    "append": _append_statements,
    "budget": _format_budget,
    "change": format_fraction,  # of a fraction
    "interval": format_interval,
    "limits": _format_limits,
    "log_change": _format_log_change,  # of a difference of logarithms
    "move": lambda move: describe_move(*move),  # seconds, and the accepted value
    "needed": _format_needed,
    "ordinal": format_ordinal,
    "percent": _format_percent,
    "phrase": phrase,
    "place": _format_log_line,
    "quoted": _quote_lines,
    "ratio": format_difference,
    "run": _format_run,
    "score": _format_score,
    "seconds": format_seconds,
    "slow_steps": _list_slow_steps,
    "slowest": _format_slowest,
    "steps": format_steps,
    "time": _format_time,
    "times": _list_seconds,
    "written": _format_file_time,
}


# --- sentences with several forms -----------------------------------------------------


def _phrase_few_recorded(
    runs: int, groups: float, grouped: bool, recommended: int
) -> str:
    """Phrase that the baseline was recorded from too few independent runs.

    Runs on the same day and nodes form one of the `groups`. `grouped` is false if the
    days or nodes of the runs are unknown.
    """
    independent = "as one" if groups == 1 else f"as {groups:.0f}"
    noun = count_noun(runs, "run")
    text = f"the baseline was recorded from {noun}"
    if not grouped and runs > 1:
        text = (
            f"the {noun} of the baseline count as one: their days or nodes are unknown"
        )
    elif runs > groups:
        text = (
            f"the {noun} of the baseline count {independent}: they share days and nodes"
        )
    return f"{text}; record {recommended} runs on different days or nodes"


def _phrase_last_valid(
    days: int, age: timedelta, started: datetime, job_id: str
) -> str:
    job = f", job {job_id}" if job_id else ""
    ago = count_noun(days, "day") if days > 0 else format_age(age)
    return f"last valid run {ago} ago ({_format_time(started)}{job})"


def _phrase_unusable(
    run: str, runs: int, problem: Problem, last_valid: CodedStatement | None
) -> str:
    """Phrase the problem of a run, one of `runs`, and the last valid run if known."""
    subject = f"{run}, one of {runs} judged runs: " if runs > 1 else ""
    return f"{subject}{problem.text}{_append_statements(last_valid)}"


def _phrase_save(
    *,
    step: int,
    seconds: float,
    save_seconds: float | None,
    line: int,
    held: int,
    slow: int,
) -> str:
    """Phrase that `held` of the `slow` steps include a checkpoint save.

    `step` is the step of the slowest save. It took `seconds`, the save `save_seconds`.
    """
    took = ""
    if save_seconds is not None:
        took = f" ({save_seconds:.5g} of {seconds:.4g} s)"
    text = f"step {step} includes the checkpoint save of line {line}{took}"
    if slow > 1:
        including = "includes" if held == 1 else "include"
        steps = f"{held} of {count_noun(slow, 'slow step')} {including} a save"
        return f"{steps}: {text}"
    return text


def _phrase_stragglers(
    *,
    count: int,
    averaged: bool,
    share: float,
    added: float,
    steps: StepList,
    slowest: SlowestSteps,
    moving_mean: int,
) -> str:
    """Phrase the number of slow steps and their effect on the mean.

    `share` is their fraction of the time, `added` the fraction by which they raise the
    mean. If the log prints moving means, one slow step raises `moving_mean` values.
    """
    # The slowest steps are not repeated if they are all slow steps.
    listed, worst = format_steps(steps), _format_slowest(slowest)
    others = "" if worst.startswith(listed) else f"{listed}; "
    spread = ""
    if moving_mean > 1:
        spread = f"; one slow step raises {moving_mean} values"
    noun = count_noun(count, "slow mean" if averaged else "straggler")
    time, mean = _format_percent(share), _format_percent(added)
    effect = f"{time} of the time, +{mean} on the mean"
    return f"{noun} ({effect}): {others}{worst}{spread}"


def _phrase_contradiction(baseline: Baseline, contradiction: Contradiction) -> str:
    """Phrase that another cell of a baseline implies another step time.

    The step time is quoted as the baseline file prints it.
    """
    cell = dict(baseline.cells).get("step_time")
    printed = cell or f"{baseline.step_seconds:.10g}"
    source = baseline.source
    location = f"{source.file}:{source.line}: " if source.file else ""
    change = format_difference(baseline.step_seconds / contradiction.seconds)
    return (
        f"the baseline contradicts itself ({location}step_time {printed}, "
        f"but {contradiction.cell} {contradiction.printed} means "
        f"{format_seconds(contradiction.seconds)}: {change})"
    )


# --- all sentences --------------------------------------------------------------------

BEYOND_ACCEPTED_LEVEL = "faster than the acknowledged level by more than the tolerance"
TOO_FEW = "{valid:count valid run}, {required.place} requires {required.runs}"

SENTENCES: dict[StatementCode, str | Callable[..., str]] = {
    # the comparison with the baseline
    StatementCode.STEP_TIME: (
        "step time {measured:seconds}, {estimate.difference:log_change} "
        "against the baseline {expected:seconds} ({estimate:interval})"
    ),
    StatementCode.ALLOWED_TIME: "the limit is {seconds:seconds}",
    StatementCode.TIMED_AS_DOCUMENT: (
        "measured as its document does{assumed:if , presumably|} "
        "({window}): {statement:phrase}"
    ),
    StatementCode.RUNS_NEEDED: (
        "{runs:count run} cannot decide; {needed:needed} runs would"
    ),
    StatementCode.NO_RUNS_SUFFICE: (
        "{runs:count run} cannot decide, nor would more runs: "
        "the step time is at the limit"
    ),
    StatementCode.COARSE_TIME: (
        "the log prints times too coarsely: {seconds:seconds} may be up to "
        "{slowest:seconds}, and repeats would not help"
    ),
    StatementCode.FEW_MEANS: (
        "the log prints only {means:count mean} for {steps} steps: means would hide a "
        "warm-up or a stall, and how much the steps vary"
    ),
    StatementCode.FEW_TIMES: (
        "{times:count step time} cannot distinguish a slow run from a slow step"
    ),
    StatementCode.OTHER_STATISTIC: (
        "the {trimmed:if 20 % trimmed mean|mean} is {beyond:if above|within} the limit "
        "({difference:log_change} against the expected {expected:seconds}): "
        "a few steps decide the verdict"
    ),
    StatementCode.SLOW_MEAN: (
        "the mean of all steps is above the limit"
        "{forgiven:optional  although * transient stalls are left out} "
        "({difference:log_change} against the expected {expected:seconds})"
    ),
    StatementCode.WIDE_INTERVAL: (
        "the steps vary so much that the difference from the baseline may be "
        "{low:log_change} to {high:log_change}, a range of more than {tolerances} "
        "times the tolerance"
    ),
    StatementCode.UNIFORM_SHIFT: "all steps shifted uniformly",
    StatementCode.SHIFT_BESIDES: (
        "all steps shifted uniformly; in addition, {shape:phrase}"
    ),
    StatementCode.IMPLAUSIBLE_TIME: (
        "more than {share:percent} faster: probably another configuration"
        "{near:optional , since it is as fast as *}{unverified:append}"
    ),
    StatementCode.RUNS_APART: "the runs differ too much to be averaged",
    StatementCode.UNCONFIRMED_RUNS: (
        "{runs:count run} above the limit may be a slow node or slow software: "
        "not confirmed"
    ),
    StatementCode.POOLED_DAYS: (
        "inconclusive on {days} days in a row, but decided by their runs together: "
        "{estimate:interval}"
    ),
    StatementCode.BEYOND_ACCEPTED_LEVEL: BEYOND_ACCEPTED_LEVEL,
    StatementCode.FASTER_AS_TIMED: (
        "faster by the step that the document timed (--llmb-timed=document); the time "
        "of a single step is never recorded as a baseline"
    ),
    StatementCode.REFRESH_BASELINE: (
        "refresh the baseline, or it will hide the next regression"
    ),
    StatementCode.COMPARED_WITHOUT_ERROR: (
        "too few steps and no history: compared with the limit without an error"
    ),
    StatementCode.BASELINE_ROUNDING: (
        "the rounding of the baseline ({fraction:.1%}) exceeds a tenth of the tolerance"
    ),
    StatementCode.NOISY_RUNS: (
        "earlier runs differ by {sigma:.1%}, more than the assumed {assumed:.1%}: "
        "the interval is wider until the history has 8 daily runs (--llmb-history)"
    ),
    StatementCode.NOISY_STEPS: (
        "the steps vary so much that their mean is uncertain by {error:.1%}, more than "
        "the {sigma:.1%} assumed between runs: the interval is wider"
    ),
    StatementCode.FEW_RECORDED: _phrase_few_recorded,
    StatementCode.BASELINE_CONTRADICTS: _phrase_contradiction,
    # the runs that were compared, or not
    StatementCode.LAST_VALID_RUN: _phrase_last_valid,
    StatementCode.STALE_RUN: (
        "stale: the newest run is {age:age} old, at most {limit:age} is allowed; "
        "{last_valid:or no valid run is known}"
    ),
    StatementCode.UNUSABLE_RUN: _phrase_unusable,
    StatementCode.NOTHING_TO_COMPARE: (
        "no baseline to compare with yet: measured {seconds:times}; "
        "record it with --llmb-record=DIR"
    ),
    StatementCode.UNDATED_RUN: "the start time of {run} is unknown: {source}",
    StatementCode.MISSING_RUN: (
        "{stale:if stale: |}no run of this configuration{last_valid:append}"
    ),
    StatementCode.ONLY_EXCLUDED: (
        "only {problem.reason} runs: {problem.text}{last_valid:append}"
    ),
    StatementCode.NEWER_RUNS: (
        "{runs:count newer run} cannot be compared: {problem.text}"
    ),
    StatementCode.OLDER_RUNS: "{runs:count older run} of this configuration",
    StatementCode.REPEATS: "the mean of {runs} repeats: {seconds:times}",
    StatementCode.REPEATS_DIFFER: (
        "{runs} repeats differ too much to be averaged, so the newest decides: "
        "{seconds:times}"
    ),
    StatementCode.LOST_REPEAT: "a repeat cannot be judged: {problem.text}",
    StatementCode.BUILD_UNKNOWN: (
        "its build is unknown, so no other run counts as its repeat"
    ),
    StatementCode.HICCUP: (
        "transient stalls left out: {steps:slow_steps}; the mean is {mean:seconds}, "
        "or {usual:seconds} if each stall takes as long as the next slowest step"
    ),
    StatementCode.HICCUPS_OFTEN: (
        "transient stalls are counted, because {runs} runs in seven days had some: "
        "{steps:slow_steps}; the mean is {mean:seconds}, and would be {usual:seconds} "
        "if each stall took as long as the next slowest step"
    ),
    StatementCode.NEWEST_BY_FILE_TIME: (
        "only file times show that this run is the newest, and copying may change them"
    ),
    StatementCode.NEWEST_BY_MIXED_CLOCKS: (
        "only clocks that may disagree show that this run is the newest"
    ),
    StatementCode.AMBIGUOUS_ORDER: (
        "the newest run is ambiguous: {newest:run} or {rival:run}; {doubt:phrase}"
    ),
    StatementCode.ORDER_BY_JOB: (
        "the job ids give the opposite order: {rival} after {newest}"
    ),
    StatementCode.ORDER_BY_FILE: (
        "the file times give the opposite order: {rival} was written "
        "{rival_written:written}, {newest} {newest_written:written}"
    ),
    StatementCode.ORDER_BY_LAUNCH: (
        "{rival} was launched {launched:time}, after the first time stamp in its log"
    ),
    # the pattern of the steps in a window
    StatementCode.TOO_FEW_STEPS: "too few steps to show a pattern",
    StatementCode.EVEN_STEPS: (
        "no {averaged:if mean of several steps|single step} stands out"
    ),
    StatementCode.ONE_SPIKE: "one spike: {slowest:slowest}{line:optional  (line *)}",
    StatementCode.SPIKES: (
        "spikes: {steps:steps}; {slowest:slowest}{line:optional  (line *)}"
    ),
    StatementCode.PERIODIC_STEPS: (
        "every {period:ordinal} step is slow, {excess:percent} above the others "
        "({steps:steps})"
    ),
    StatementCode.SLOW_STRETCH: (
        "slow stretch: {steps:steps} at {upper:seconds}, the others at {lower:seconds}"
    ),
    StatementCode.TWO_LEVELS: (
        "two levels: {count} of {total} {averaged:if means|steps} at {level:seconds}, "
        "the others at {other:seconds} ({steps:steps})"
    ),
    StatementCode.DRIFTING_STEPS: (
        "drift: {change:change} from the first to the last step"
    ),
    StatementCode.SAVE_IN_STEP: _phrase_save,
    StatementCode.STRAGGLERS: _phrase_stragglers,
    StatementCode.STEP_DRIFT: (
        "drift: {change:change} from step {first} to step {last} (p {p:.1g})"
    ),
    StatementCode.WARM_UP_STEPS: (
        "warm-up not finished: steps {first} to {last} are {excess:percent} slower "
        "than the later steps (z {z:score})"
    ),
    StatementCode.MEAN_AND_TRIMMED: (
        "mean {mean:seconds}, 20 % trimmed mean {trimmed:seconds}: "
        "{slow:if slow|fast} steps drive the mean"
    ),
    StatementCode.MOVING_MEANS: (
        "the log prints means of {steps} steps: {values:count value}, "
        "about {independent} of them independent"
    ),
    # what was accepted, recorded and budgeted
    StatementCode.ACCEPTED_REASON: "{statement:phrase} ({entry:phrase})",
    StatementCode.ACCEPTED_IN_ALL: (
        "acknowledged changes add up to {change:log_change}; only +10.0 % of it is accepted"
    ),
    StatementCode.IDLE_CERTIFIED: (
        "no effect under --llmb-certify: {entry:phrase} ({entry.place})"
    ),
    StatementCode.IDLE_EXPIRED: (
        "no effect, expired on {entry.expires}: {entry:phrase} ({entry.place})"
    ),
    StatementCode.IDLE_RECORDED: (
        "no effect, because the baseline was recorded from runs up to {recorded} "
        "and may include it already: {entry:phrase} ({entry.place})"
    ),
    StatementCode.IDLE_FASTER: (
        f"no effect, {BEYOND_ACCEPTED_LEVEL}; remove the entry: "
        "{entry:phrase} ({entry.place})"
    ),
    StatementCode.VALUE_DRIFT: (
        "this run: {tonight:move}; the recorded values changed by {recorded:ratio} "
        "since then ({limits:limits})"
    ),
    StatementCode.DRIFTED_RUN: (
        "this run: {tonight:move}; the limit is {allowed:seconds} ({limits:limits})"
    ),
    StatementCode.DRIFTED_RECORDING: (
        "the recorded value moved too far: {recorded:move} ({limits:limits})"
    ),
    StatementCode.AGAINST_RECORDED: "against the recorded value: {statements:phrase}",
    StatementCode.MOVED_RECORDING: (
        "recorded values: {recorded:move} after {moves:count accepted move}"
    ),
    StatementCode.OVER_BUDGET: (
        "checkpoint {action} took {seconds:.10g} s"
        "{dispatched:if  until it was dispatched|} ({place:place}); {budget:budget}"
    ),
    StatementCode.BUDGET_UNKNOWN: (
        "checkpoint {action} cannot be judged: {doubt:phrase} ({place:place}); "
        "{budget:budget}"
    ),
    StatementCode.TIME_TRUNCATED: "the time of this save or load is truncated",
    StatementCode.TIME_MISSING: "the log prints no time for this save or load",
    StatementCode.DISPATCH_ONLY: (
        "it is or may be asynchronous, so only its dispatch was timed: "
        "use the budget checkpoint_save_dispatch_seconds"
    ),
    StatementCode.RECORDS_UNREAD: "{records} checkpoints of the log were not kept",
    StatementCode.SYNCHRONOUS: "it is synchronous, so no dispatch was timed",
    StatementCode.UNSTATED_CHECKPOINT: (
        "the log prints no checkpoint {action}{meant:optional , though *}; "
        "{budget:budget}"
    ),
    # what a session adds
    StatementCode.ERROR_UNKNOWN: "the standard error is unknown",
    StatementCode.NOT_CERTIFIED: "{doubt:phrase}: not certified",
    StatementCode.OTHER_BASELINE_KIND: (
        "there is no {asked} baseline, only a {kind} one"
    ),
    StatementCode.NEWER_UNMATCHED: (
        "a newer run may be of this configuration: {run}: {text}"
    ),
    StatementCode.TOO_FEW_RUNS: f"{TOO_FEW}; the newest: {{statements:phrase}}",
    StatementCode.FEWER_RUNS: f"{TOO_FEW} (--llmb-repeats={{repeats}})",
    StatementCode.SLOWER_BEYOND_CHANCE: (
        "within the tolerance, but significantly slower than the baseline "
        "(p = {p:.2g}, adjusted for {count} configurations)"
    ),
    StatementCode.SLOW_RANK: "{log:or the log} reports a slow rank: {lines:quoted}",
}


# --- several configurations, and the nodes of their runs ------------------------------

CAUSES = "driver, image, fabric, power, file system"
CHANGES = {
    ShiftReference.LAST_RUNS: "a cluster-wide change",
    ShiftReference.BASELINES: "the cluster differs from the baselines' cluster",
}


@phrase.register(SharedShift)
def _(shared: SharedShift) -> str:
    """Phrase that most of the `shared.of` compared configurations have shifted."""
    moved_count = len(shared.configurations)
    direction = "slower" if shared.shift > 0 else "faster"
    # Percentages; a change to faster is printed as a positive number.
    factor = math.copysign(100, shared.shift)
    shift = factor * shared.shift
    low, high = sorted((factor * shared.low, factor * shared.high))
    together = "" if moved_count == shared.of else f"; all {shared.of} together"
    workloads = ", not a change of one workload" if shared.several_workloads else ""
    return (
        f"{moved_count} of {shared.of} configurations are "
        f"{direction} than {shared.against}{together} "
        f"by {shift:.1f} % ({low:.1f} to {high:.1f} %): "
        f"{CHANGES[shared.against]} ({CAUSES}){workloads}"
    )


@phrase.register(NodeFinding)
def _(found: NodeFinding) -> str:
    """Phrase whether the nodes explain the slow runs; "" if the cause is unknown."""
    match found.cause:
        case None:
            return ""
        case NodeCause.ALWAYS_SLOW:
            runs = "; ".join(map(_describe_run_on_nodes, found.slow))
            cause = "the software or the whole cluster is slow"
            return f"slow on different nodes ({runs}): {cause}"
        case NodeCause.SHARED_NODES:
            node_sets = [set(run.nodes) for run in found.slow]
            shared_nodes = fold_nodes(set.intersection(*node_sets))
            cause = "the software or these nodes are slow"
            return f"slow each time, each time with {shared_nodes}: {cause}"
        case NodeCause.SAME_NODES:
            times = f"{_list_times(found.slow)}, {_list_times(found.fast)}"
            cause = "the nodes alone are not the cause, exclude none"
            return f"slow and fast on the same nodes ({times}): {cause}"
        case NodeCause.SLOW_NODES:
            return "; ".join(_describe_slow_nodes(found))


def _describe_run_on_nodes(run: RunOnNodes) -> str:
    return f"{format_seconds(run.seconds)} on {fold_nodes(run.nodes)}"


def _describe_slow_nodes(found: NodeFinding) -> Iterator[str]:
    """Yield the sentences on nodes to exclude and on suspects.

    Nodes to exclude were slow in several runs, suspects in a single run. `found.again`
    contains the nodes for another run, which confirms or clears the suspects.
    """
    slow = _list_times(found.slow)
    sound = fold_nodes({node for run in found.fast for node in run.nodes})
    fast = f"{_list_times(found.fast)} on {sound}"
    # A finding without suspects is about nodes to exclude.
    if found.exclude or not found.suspects:
        option = format_exclude_option(found.exclude)
        nodes = _name_nodes(found.exclude, "is", "are")
        yield f"{nodes} slow each time ({slow}; {fast}): exclude with {option}"
    if found.suspects:
        option = format_nodes_option("--llmb-nodelist", found.again)
        nodes = _name_nodes(found.suspects, "may be", "may be")
        text = f"{nodes} slow ({slow} there, {fast})"
        yield f"{text}: one run proves nothing, confirm with {option}"
    if found.fast_beyond_bound:
        yield (
            "the other nodes are above the limit too: "
            "the software or the whole cluster is slow"
        )


def _list_times(runs: Iterable[RunOnNodes]) -> str:
    return _list_seconds(run.seconds for run in runs)


def _name_nodes(nodes: Sequence[str], singular: str, plural: str) -> str:
    """Return `the node n7 is` or `the nodes n[7-8] are`, with the given verbs."""
    if len(nodes) == 1:
        return f"the node {nodes[0]} {singular}"
    return f"the nodes {fold_nodes(nodes)} {plural}"


@phrase.register(LevelChange)
def _(change: LevelChange) -> str:
    return "; ".join(_describe_change(change))


def _describe_change(change: LevelChange) -> Iterator[str]:
    """Yield the sentences on a level change: size, settings, acknowledgement, end."""
    bounds = (format_difference(1 + bound) for bound in (change.low, change.high))
    low, high = (bound.removesuffix(" %") for bound in bounds)
    size = f"{format_fraction(change.difference)} ({low} to {high} %)"
    drifted = "" if change.kind is ChangeKind.STEP else "drifted "
    yield f"{size} {drifted}since {change.started:%Y-%m-%d}"
    if change.environment:
        yield join_first(
            [_describe_setting(*setting) for setting in change.environment]
        )
    elif change.kind is ChangeKind.STEP:
        yield "no known setting differs"
    if change.acknowledged:
        yield phrase(change.acknowledged)
    elif change.expired:
        entry = change.expired
        size = format_difference(1 + entry.fraction)
        expired = f"the acknowledgement expired on {entry.expires}"
        yield f"{expired}: {size} by {entry.by}: {entry.reason}"
    if not change.stands:
        yield "reverted since"
    elif change.partly_taken_back:
        yield f"{format_difference(1 + change.lasting)} of it remains"


def _describe_setting(name: str, before: str, after: str) -> str:
    """Return `nccl 2.26.6 -> 2.27.3`."""
    return f"{name} {shorten_setting(name, before)} -> {shorten_setting(name, after)}"


def phrase_scaling(comparison: ConfigurationComparison) -> str:
    """Describe a comparison of configurations with each other."""
    return "; ".join(_describe_scaling(comparison))


def _describe_scaling(comparison: ConfigurationComparison) -> Iterator[str]:
    """Yield the sentences on a weak-scaling or FP8 comparison."""
    kind, worst = comparison.kind, comparison.worst
    if worst is None:
        members = _list_members(kind, comparison.members)
        yield f"fewer than two of {members} were judged against baselines of one kind"
        return
    yield _describe_row(kind, worst)
    yield _describe_work(comparison)
    if worst.verdict is Verdict.PASS and worst.measured < worst.bound:
        yield (
            "no loss: the run meets its baseline, and only the run that it is compared "
            "with is faster than documented"
        )
    if comparison.regressed is not None:
        name = _name_member(kind, comparison.regressed)
        yield f"{name} is itself a regression, so the others look better than they are"
    if any(row.threshold_only for row in comparison.rows):
        yield "threshold only: the error of some numbers is unknown"
    compared = comparison.compared
    missing = [key for key in comparison.members if key not in compared]
    if missing:
        yield f"not compared: {_list_members(kind, missing)}"


def _list_members(kind: CheckKind, keys: Iterable[Key]) -> str:
    return join_first([_name_member(kind, key) for key in keys])


def _name_member(kind: CheckKind, key: Key) -> str:
    """Return what distinguishes a configuration in its check: `64 GPUs` or `FP8`."""
    return f"{key.gpus} GPUs" if kind is CheckKind.WEAK_SCALING else key.dtype.upper()


def _describe_row(kind: CheckKind, row: ComparisonRow) -> str:
    """Phrase the measured ratio of one configuration, with its interval and limit."""
    ratios = (row.measured, row.documented, row.bound)
    if kind is CheckKind.FP8_SPEEDUP:
        measured, documented, limit = (f"{ratio:.3f}" for ratio in ratios)
        text = f"FP8 is {measured} times as fast as BF16"
    else:
        measured, documented, limit = (f"{ratio * 100:.1f} %" for ratio in ratios)
        reference = f"{row.reference.gpus} GPUs"
        text = f"{row.key.gpus} GPUs reach {measured} of the per-GPU throughput of {reference}"
    changes = (row.low, row.high, row.difference)
    low, high, difference = (format_difference(1 + change) for change in changes)
    interval = f"{difference} ({low} to {high})"
    expected = f"{row.baseline} {documented}"
    return f"{text}, {expected}: {interval}; at least {limit} is required"


def _describe_work(comparison: ConfigurationComparison) -> str:
    """Phrase the work that the compared configurations have in common."""
    first, last = comparison.configurations[0], comparison.configurations[-1]
    length, layers = first.architecture.sequence_length, first.architecture.layers
    model = f"sequence length {length}, {layers} layers"
    batch = first.global_batch_size
    if comparison.kind is CheckKind.WEAK_SCALING:
        sizes = len(comparison.compared)
        per_gpu = f"{batch / first.key.gpus:.6g}"
        return f"the lowest of {sizes} sizes, GBS {per_gpu} per GPU, {model}"
    is_same_layout = (
        first.parallelism == last.parallelism
        and first.micro_batch_size == last.micro_batch_size
    )
    differing = "" if is_same_layout else ", different parallelism"
    return f"step times at GBS {batch}, {model}{differing}"
