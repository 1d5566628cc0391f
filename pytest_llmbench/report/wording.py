"""The sentences of verdicts: one template for each `StatementCode`, in one table.

A field of a template is a value of the statement, `{problem.text}` an attribute of it.
After the colon stands the kind of the value: a format of Python (`.1%`), a key of
`KINDS`, or a kind with an argument:

    {runs:count valid run}      2 valid runs
    {beyond:if beyond|within}   the first text if the value is true, else the second
    {line:given  (line *)}      the text with the value for *; nothing without a value
    {log:or the log}            the text without a value
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
    """Return the sentence of a statement, or all those of a judgement."""
    raise TypeError(f"no sentence for {statement!r}")


@phrase.register(tuple)
def phrase_all(statements: Iterable[VerdictStatement]) -> str:
    """Return the sentences of several statements as one."""
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
    who = f"by {entry.by} until {entry.expires}: {entry.reason}"
    if entry.accepts is not None:
        return f"accepted: {entry.accepts} {who}"
    return f"acknowledged: {_format_change(entry.fraction)} {who}"


@phrase.register(CodedStatement)
def _(statement: CodedStatement) -> str:
    sentence = SENTENCES[statement.code]
    if not isinstance(sentence, str):
        return sentence(**statement.values)
    values = {name: _Value(value) for name, value in statement.values.items()}
    return sentence.format_map(values)


# --- values by their kind -------------------------------------------------------------


class _Value:
    """A value of a template, formatted by its kind."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> _Value:
        return _Value(getattr(self._value, name))

    def __format__(self, kind: str) -> str:
        value = self._value
        if kind in KINDS:
            return KINDS[kind](value)
        name, _, text = kind.partition(" ")
        match name:
            case "count":
                return count_noun(value, text)
            case "if":
                chosen, _, other = text.partition("|")
                return chosen if value else other
            case "given":
                shown = join_first(value) if isinstance(value, tuple) else str(value)
                return text.replace("*", shown) if value else ""
            case "or":
                return phrase(value) if value else text
            case _:
                return format(value, kind)


def format_interval(estimate: Estimate) -> str:
    """Return the bounds of the difference: `+5.7 to +10.3 %`."""
    if estimate.threshold_only:
        return "threshold only: nothing is known of the error"
    bounds = (estimate.low, estimate.high)
    low, high = (format_difference(compute_bounded_exp(bound)) for bound in bounds)
    if low.endswith("%") and high.endswith("%"):
        low = low.removesuffix(" %")
    return f"{low} to {high}"


def format_steps(steps: StepList) -> str:
    """Return steps, consecutive ones as one: `steps 12, 20 to 24, 30 and 7 more`."""
    noun = "step" if steps.count == 1 else "steps"
    more = f" and {steps.more} more" if steps.more else ""
    return f"{noun} {', '.join(map(_format_span, steps.spans))}{more}"


def _format_span(span: StepSpan) -> str:
    if span.count == 1:
        return f"{span.first}"
    if span.count == 2:
        return f"{span.first}, {span.last}"
    return f"{span.first} to {span.last}"


def _format_slowest(slowest: SlowestSteps) -> str:
    most = "up to " if slowest.smoothed else ""
    average = " on average" if slowest.averaged else ""
    steps = format_steps(slowest.steps)
    return f"{steps} took {most}{slowest.ratio:.3g} x the median{average}"


def _list_slow_steps(steps: Iterable[SlowStep]) -> str:
    return join_first(list(map(_format_slow_step, steps)))


def _format_slow_step(step: SlowStep) -> str:
    line = f" (line {step.line})" if step.line else ""
    return f"step {step.number}{line} took {step.ratio:.3g} x the median"


def _format_change(fraction: float) -> str:
    return format_difference(1 + fraction)


def _format_log_change(logarithm: float) -> str:
    return format_difference(math.exp(logarithm))


def _format_percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"


def _list_seconds(seconds: Iterable[float | None]) -> str:
    return join_first(list(map(format_seconds, seconds)))


def _format_needed(runs: int) -> str:
    return f"about {runs}" if runs <= MANY else f"more than {MANY}"


def _format_score(z: float) -> str:
    return f"{min(z, 99):.3g}"


def _add_statements(statements: Statements | None) -> str:
    return f"; {phrase(statements)}" if statements else ""


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _format_written(written: datetime | None) -> str:
    return f"on {_format_time(written)}" if written else "at an unknown time"


CLOCKS = {
    Clock.METADATA: "launch time in its metadata",
    Clock.FOLDER_NAME: "name of its folder",
    Clock.LOG: "first time stamp of its log",
    Clock.FOLDER_ABOVE: "name of a folder above",
    Clock.FILE_TIME: "time of its file",
    Clock.MIXED: "first time that it states",
}


def _format_run(run: OrderedRun) -> str:
    job = f"job {run.job_id}, " if run.job_id else ""
    began = _format_time(run.started) if run.started else "an unknown time"
    clock = CLOCKS.get(run.clock, "order")
    return f"{run.id} ({job}{began} by the {clock}, {run.verdict})"


def _format_limits(limits: DriftLimits) -> str:
    budget = f"drift budget {limits.budget * 100:.10g} %"
    return f"{budget}, tolerance {limits.tolerance}"


def _format_budget(budget: Budget) -> str:
    place = f" ({budget.place})" if budget.place else ""
    return f"the budget is {budget.largest:g} s{place}"


def _format_place(place: LogLine) -> str:
    return f"{place.log}:{place.line}" if place.log else f"line {place.line}"


def _quote_lines(lines: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f'"{text}" (line {line})' for text, line in lines)


KINDS: dict[str, Callable[[Any], str]] = {
    "age": format_age,
    "also": _add_statements,
    "budget": _format_budget,
    "change": _format_change,  # of a fraction
    "interval": format_interval,
    "limits": _format_limits,
    "log_change": _format_log_change,  # of a difference of logarithms
    "move": lambda move: describe_move(*move),  # seconds, and the accepted value
    "needed": _format_needed,
    "ordinal": format_ordinal,
    "percent": _format_percent,
    "place": _format_place,
    "quoted": _quote_lines,
    "ratio": format_difference,
    "run": _format_run,
    "said": phrase,
    "score": _format_score,
    "seconds": format_seconds,
    "slow_steps": _list_slow_steps,
    "slowest": _format_slowest,
    "steps": format_steps,
    "time": _format_time,
    "times": _list_seconds,
    "written": _format_written,
}


# --- sentences with several forms -----------------------------------------------------


def _phrase_few_recorded(
    runs: int, groups: float, grouped: bool, recommended: int
) -> str:
    counted = "as one" if groups == 1 else f"as {groups:.0f}"
    noun = count_noun(runs, "run")
    text = f"the baseline is of {noun}"
    if not grouped and runs > 1:
        text = f"nothing says on how many nights or nodes the {noun} of the baseline were: they count as one"
    elif runs > groups:
        text = (
            f"the {noun} of the baseline count {counted}: they share nights and nodes"
        )
    return f"{text}; {recommended} on as many nights or sets of nodes are recommended"


def _phrase_last_valid(
    days: int, age: timedelta, started: datetime, job_id: str
) -> str:
    job = f", job {job_id}" if job_id else ""
    ago = count_noun(days, "night") if days > 0 else format_age(age)
    return f"last valid run {ago} ago ({_format_time(started)}{job})"


def _phrase_unusable(
    run: str, runs: int, problem: Problem, last_valid: CodedStatement | None
) -> str:
    whose = f"{run}, one of {runs} runs that count: " if runs > 1 else ""
    return f"{whose}{problem.text}{_add_statements(last_valid)}"


def _phrase_save(
    *,
    step: int,
    seconds: float,
    save_seconds: float | None,
    line: int,
    held: int,
    slow: int,
) -> str:
    took = ""
    if save_seconds is not None:
        took = f" ({save_seconds:.5g} of {seconds:.4g} s)"
    text = f"step {step} holds the save of line {line}{took}"
    if slow > 1:
        return f"{held} of {count_noun(slow, 'slow step')} hold a save: {text}"
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
    listed, worst = format_steps(steps), _format_slowest(slowest)
    which = "" if worst.startswith(listed) else f"{listed}; "
    several = ""
    if moving_mean > 1:
        several = f"; one slow step shows in {moving_mean} values"
    noun = count_noun(count, "slow mean" if averaged else "straggler")
    time, mean = _format_percent(share), _format_percent(added)
    return f"{noun}, {time} of the time, +{mean} on the mean: {which}{worst}{several}"


def _phrase_contradiction(baseline: Baseline, contradiction: Contradiction) -> str:
    cell = dict(baseline.cells).get("step_time")
    printed = cell or f"{baseline.step_seconds:.10g}"
    source = baseline.source
    place = f"{source.file}:{source.line}: " if source.file else ""
    change = format_difference(baseline.step_seconds / contradiction.seconds)
    return (
        f"the baseline contradicts itself ({place}step_time {printed} "
        f"beside {contradiction.cell} {contradiction.printed}, "
        f"which is {format_seconds(contradiction.seconds)}: the step time is {change})"
    )


# --- all sentences --------------------------------------------------------------------

BEYOND_ACCEPTED_LEVEL = "faster than the acknowledged level by more than the tolerance"
TOO_FEW = "{valid:count valid run}, {required.place} asks for {required.runs}"

SENTENCES: dict[StatementCode, str | Callable[..., str]] = {
    # the comparison with the baseline
    StatementCode.STEP_TIME: (
        "{measured:seconds} is {estimate.difference:log_change} "
        "against {expected:seconds} ({estimate:interval})"
    ),
    StatementCode.ALLOWED_TIME: "the bound is {seconds:seconds}",
    StatementCode.TIMED_AS_DOCUMENT: (
        "timed as {assumed:if is assumed of its document|its document does} "
        "({window}): {statement:said}"
    ),
    StatementCode.RUNS_NEEDED: "{runs:count run} cannot tell; {needed:needed} would",
    StatementCode.NO_RUNS_SUFFICE: (
        "{runs:count run} cannot tell, and no number would: it lies at the bound"
    ),
    StatementCode.COARSE_TIME: (
        "printed too coarsely: {seconds:seconds} may be up to {slowest:seconds}, "
        "which no repeat would show"
    ),
    StatementCode.FEW_MEANS: (
        "{means:count printed mean} of {steps} steps: within them a warm-up or a stall "
        "stays unseen, and how much they vary"
    ),
    StatementCode.FEW_TIMES: (
        "{times:count time} cannot tell a slow run from a slow step"
    ),
    StatementCode.OTHER_STATISTIC: (
        "the {trimmed:if 20 % trimmed mean|mean} is {beyond:if beyond|within} the bound "
        "({difference:log_change} against {expected:seconds}): few steps decide"
    ),
    StatementCode.SLOW_MEAN: (
        "the mean of all steps is beyond the bound"
        "{forgiven:given  after * transient stalls are forgiven} "
        "({difference:log_change} against {expected:seconds})"
    ),
    StatementCode.WIDE_INTERVAL: (
        "the steps fix the step time to between {low:log_change} and "
        "{high:log_change} only, wider than {tolerances} tolerances"
    ),
    StatementCode.UNIFORM_SHIFT: "uniform shift",
    StatementCode.SHIFT_BESIDES: "uniform shift; besides, {shape:said}",
    StatementCode.IMPLAUSIBLE_TIME: (
        "more than {share:percent} faster is more likely another configuration"
        "{near:given ; it is as fast as *}{unverified:also}"
    ),
    StatementCode.RUNS_APART: "the runs differ too much to be of one state",
    StatementCode.UNCONFIRMED_RUNS: (
        "{runs:count run} beyond it: a slow node or slow software, no telling"
    ),
    StatementCode.POOLED_DAYS: (
        "{days} nights running could not tell; together they do: {estimate:interval}"
    ),
    StatementCode.BEYOND_ACCEPTED_LEVEL: BEYOND_ACCEPTED_LEVEL,
    StatementCode.FASTER_AS_TIMED: (
        "by what its document timed, which is never recorded"
    ),
    StatementCode.REFRESH_BASELINE: (
        "refresh the baseline, or it will hide the next regression"
    ),
    StatementCode.COMPARED_WITHOUT_ERROR: (
        "too few steps and no history: compared with the bound as it is"
    ),
    StatementCode.BASELINE_ROUNDING: (
        "the baseline's rounding ({fraction:.1%}) is more than a tenth of the margin"
    ),
    StatementCode.NOISY_RUNS: (
        "earlier runs differ by {sigma:.1%}, more than the {assumed:.1%} that is "
        "assumed between runs: "
        "the interval is wider until 8 nights are known (--llmb-history)"
    ),
    StatementCode.NOISY_STEPS: (
        "the steps of the run fix its mean to {error:.1%} only, less well than the "
        "{sigma:.1%} that is assumed from run to run: the interval is wider"
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
        "nothing to compare with yet: {seconds:times} measured; "
        "record it with --llmb-record=DIR"
    ),
    StatementCode.UNDATED_RUN: "nothing says when {run} started: {source}",
    StatementCode.MISSING_RUN: (
        "{stale:if stale: |}no run of this configuration{last_valid:also}"
    ),
    StatementCode.ONLY_EXCLUDED: (
        "only {problem.reason} runs: {problem.text}{last_valid:also}"
    ),
    StatementCode.NEWER_RUNS: (
        "{runs:count newer run} cannot be compared: {problem.text}"
    ),
    StatementCode.OLDER_RUNS: "{runs:count older run} of this configuration",
    StatementCode.REPEATS: "the mean of {runs} repeats: {seconds:times}",
    StatementCode.REPEATS_DIFFER: (
        "{runs} repeats differ too much, the newest decides: {seconds:times}"
    ),
    StatementCode.LOST_REPEAT: "a repeat cannot be judged: {problem.text}",
    StatementCode.BUILD_UNKNOWN: (
        "nothing says which build it is of, so it has no repeats"
    ),
    StatementCode.HICCUP: (
        "a hiccup: {steps:slow_steps}; the mean is {mean:seconds}, {usual:seconds} "
        "with the next slowest in their place"
    ),
    StatementCode.HICCUPS_OFTEN: (
        "{runs} runs in seven nights had such steps: a hiccup is forgiven no more; "
        "{steps:slow_steps}; the mean is {mean:seconds}, {usual:seconds} "
        "with the next slowest in their place"
    ),
    StatementCode.NEWEST_BY_FILE_TIME: (
        "that it is the newest run, only the times of the files say, "
        "which copying may change"
    ),
    StatementCode.NEWEST_BY_MIXED_CLOCKS: (
        "that it is the newest run, only clocks say that cannot be compared"
    ),
    StatementCode.AMBIGUOUS_ORDER: (
        "which run is the newest is ambiguous: {newest:run} or {rival:run}; "
        "{doubt:said}"
    ),
    StatementCode.ORDER_BY_JOB: (
        "the job ids order them otherwise: {rival} after {newest}"
    ),
    StatementCode.ORDER_BY_FILE: (
        "the times of their files order them otherwise: {rival} was written "
        "{rival_written:written}, {newest} {newest_written:written}"
    ),
    StatementCode.ORDER_BY_LAUNCH: (
        "{rival} was launched {launched:time}, after the first stamp of its own log"
    ),
    # the shape of a window
    StatementCode.TOO_FEW_STEPS: "too few steps to show a shape",
    StatementCode.EVEN_STEPS: (
        "no {averaged:if mean of several steps|single step} stands out"
    ),
    StatementCode.ONE_SPIKE: "one spike: {slowest:slowest}{line:given  (line *)}",
    StatementCode.SPIKES: (
        "spikes: {steps:steps}; {slowest:slowest}{line:given  (line *)}"
    ),
    StatementCode.PERIODIC_STEPS: (
        "every {period:ordinal} step slow, {excess:percent} above the others "
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
        "warm-up not over: steps {first} to {last} are {excess:percent} slower than "
        "the rest (z {z:score})"
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
    StatementCode.ACCEPTED_REASON: "{statement:said} ({entry:said})",
    StatementCode.ACCEPTED_IN_ALL: "of {change:log_change} in all +10.0 % count",
    StatementCode.IDLE_CERTIFIED: (
        "without effect under --llmb-certify: {entry:said} ({entry.place})"
    ),
    StatementCode.IDLE_EXPIRED: (
        "expired on {entry.expires}, without effect: {entry:said} ({entry.place})"
    ),
    StatementCode.IDLE_RECORDED: (
        "without effect, the baseline was recorded from runs up to {recorded} "
        "and may hold it already: {entry:said} ({entry.place})"
    ),
    StatementCode.IDLE_FASTER: (
        f"{{entry:said}}: {BEYOND_ACCEPTED_LEVEL}: it can go ({{entry.place}})"
    ),
    StatementCode.VALUE_DRIFT: (
        "tonight {tonight:move}; recorded since: {recorded:ratio} ({limits:limits})"
    ),
    StatementCode.DRIFTED_RUN: (
        "tonight {tonight:move}; at most {allowed:seconds} is allowed ({limits:limits})"
    ),
    StatementCode.DRIFTED_RECORDING: (
        "the recorded value moved too far: {recorded:move} ({limits:limits})"
    ),
    StatementCode.AGAINST_RECORDED: "against the recorded value: {statements:said}",
    StatementCode.MOVED_RECORDING: (
        "recorded values: {recorded:move}, in {moves:count accepted move}"
    ),
    StatementCode.OVER_BUDGET: (
        "checkpoint {action} took {seconds:.10g} s"
        "{dispatched:if  until it was handed over|} ({place:place}), {budget:budget}"
    ),
    StatementCode.BUDGET_UNKNOWN: (
        "checkpoint {action} cannot be judged: {doubt:said} ({place:place}); "
        "{budget:budget}"
    ),
    StatementCode.TIME_TRUNCATED: "its time is cut off",
    StatementCode.TIME_MISSING: "no time is stated for it",
    StatementCode.DISPATCH_ONLY: (
        "it is or may be asynchronous, its time is that of the dispatch only, "
        "for which checkpoint_save_dispatch_seconds is the budget"
    ),
    StatementCode.RECORDS_UNREAD: "{records} more records than are kept",
    StatementCode.SYNCHRONOUS: "it is synchronous, so its time is no dispatch",
    StatementCode.UNSTATED_CHECKPOINT: (
        "the log states no checkpoint {action}{meant:given , though *}; {budget:budget}"
    ),
    # what a session adds
    StatementCode.ERROR_UNKNOWN: "nothing is known of the error",
    StatementCode.NOT_CERTIFIED: "{doubt:said}: not certified",
    StatementCode.OTHER_BASELINE_KIND: (
        "there is no {asked} baseline, only one that was {kind} here"
    ),
    StatementCode.NEWER_UNMATCHED: (
        "a newer run may be of this configuration: {run}: {text}"
    ),
    StatementCode.TOO_FEW_RUNS: f"{TOO_FEW}; the newest: {{statements:said}}",
    StatementCode.FEWER_RUNS: f"{TOO_FEW} (--llmb-repeats={{repeats}})",
    StatementCode.SLOWER_BEYOND_CHANCE: (
        "slower than its baseline beyond chance, within the tolerance "
        "(p = {p:.2g}, adjusted for {count})"
    ),
    StatementCode.SLOW_RANK: "{log:or the log} reports a slow rank: {lines:quoted}",
}


# --- several configurations, and the nodes of their runs ------------------------------

CAUSES = "driver, image, fabric, power, file system"
CHANGES = {
    ShiftReference.LAST_RUNS: "a cluster-wide change",
    ShiftReference.BASELINES: "the cluster differs from that of the baselines",
}


@phrase.register(SharedShift)
def _(shared: SharedShift) -> str:
    moved, sign = len(shared.configurations), math.copysign(100, shared.shift)
    shift, low, high = (
        sign * bound for bound in (shared.shift, shared.low, shared.high)
    )
    together = "" if moved == shared.of else f"; all {shared.of} together"
    workloads = ", not a change of one workload" if shared.several_workloads else ""
    return (
        f"{moved} of {shared.of} configurations are "
        f"{'slower' if shared.shift > 0 else 'faster'} than {shared.against}{together} "
        f"by {shift:.1f} % ({min(low, high):.1f} to {max(low, high):.1f} %): "
        f"{CHANGES[shared.against]} ({CAUSES}){workloads}"
    )


@phrase.register(NodeFinding)
def _(found: NodeFinding) -> str:
    match found.cause:
        case None:
            return ""
        case NodeCause.ALWAYS_SLOW:
            where = "; ".join(map(_describe_run_on_nodes, found.slow))
            return (
                f"slow on different nodes ({where}): the software, or the whole cluster"
            )
        case NodeCause.SHARED_NODES:
            nodes = set.intersection(*(set(nodes) for _, _, nodes in found.slow))
            return f"slow each time, each time with {fold_nodes(nodes)}: the software, or these nodes"
        case NodeCause.SAME_NODES:
            times = f"{_list_times(found.slow)}, {_list_times(found.fast)}"
            return f"slow and fast on the same nodes ({times}): not the nodes alone, nothing to leave out"
        case NodeCause.SLOW_NODES:
            return "; ".join(_describe_slow_nodes(found))


def _describe_run_on_nodes(run: RunOnNodes) -> str:
    _, seconds, nodes = run
    return f"{format_seconds(seconds)} on {fold_nodes(nodes)}"


def _describe_slow_nodes(found: NodeFinding) -> Iterator[str]:
    slow = _list_times(found.slow)
    sound = fold_nodes({node for _, _, nodes in found.fast for node in nodes})
    fast = f"{_list_times(found.fast)} on {sound}"
    if found.exclude or not found.suspects:
        option = format_exclude_option(found.exclude)
        nodes = _name_nodes(found.exclude, "is", "are")
        yield f"{nodes} slow each time ({slow}; {fast}): {option}"
    if found.suspects:
        option = format_nodes_option("--llmb-nodelist", found.again)
        nodes = _name_nodes(found.suspects, "may be", "may be")
        text = f"{nodes} slow ({slow} there, {fast})"
        yield f"{text}: one run does not tell, {option} confirms it"
    if found.fast_beyond_bound:
        yield "the others are slow as well: the software, or the whole cluster"


def _list_times(runs: Iterable[RunOnNodes]) -> str:
    return _list_seconds(seconds for _, seconds, _ in runs)


def _name_nodes(nodes: Sequence[str], singular: str, plural: str) -> str:
    if len(nodes) == 1:
        return f"the node {nodes[0]} {singular}"
    return f"the nodes {fold_nodes(nodes)} {plural}"


@phrase.register(LevelChange)
def _(change: LevelChange) -> str:
    return "; ".join(_describe_change(change))


def _describe_change(change: LevelChange) -> Iterator[str]:
    bounds = (format_difference(1 + bound) for bound in (change.low, change.high))
    low, high = (bound.removesuffix(" %") for bound in bounds)
    size = f"{format_difference(1 + change.difference)} ({low} to {high} %)"
    drifted = "" if change.kind is ChangeKind.STEP else "drifted "
    yield f"{size} {drifted}since {change.started:%Y-%m-%d}"
    if change.environment:
        yield join_first(
            [_describe_setting(*setting) for setting in change.environment]
        )
    elif change.kind is ChangeKind.STEP:
        yield "nothing known differs"
    if change.acknowledged:
        yield phrase(change.acknowledged)
    elif change.expired:
        gone = change.expired
        size = format_difference(1 + gone.fraction)
        expired = f"the acknowledgement expired on {gone.expires}"
        yield f"{expired}: {size} by {gone.by}: {gone.reason}"
    if not change.stands:
        yield "taken back since"
    elif change.partly_taken_back:
        yield f"{format_difference(1 + change.lasting)} of it is left"


def _describe_setting(name: str, before: str, after: str) -> str:
    return f"{name} {shorten_setting(name, before)} -> {shorten_setting(name, after)}"


def phrase_scaling(comparison: ConfigurationComparison) -> str:
    """Return the sentences of a comparison of configurations with each other."""
    return "; ".join(_describe_scaling(comparison))


def _describe_scaling(comparison: ConfigurationComparison) -> Iterator[str]:
    kind, worst = comparison.kind, comparison.worst
    if worst is None:
        members = _list_members(kind, comparison.members)
        yield f"fewer than two of {members} were judged against baselines of one kind"
        return
    yield _describe_row(kind, worst)
    yield _describe_work(comparison)
    if worst.verdict is Verdict.PASS and worst.measured < worst.bound:
        yield (
            "not slower than its own baseline, so no loss: its reference is faster than documented"
        )
    if comparison.regressed is not None:
        name = _name_member(kind, comparison.regressed)
        yield f"{name} is a regression itself, which flatters what is compared with it"
    if any(row.threshold_only for row in comparison.rows):
        yield "threshold only: of some of the numbers the error is unknown"
    compared = comparison.compared
    missing = [key for key in comparison.members if key not in compared]
    if missing:
        yield f"not compared: {_list_members(kind, missing)}"


def _list_members(kind: CheckKind, keys: Iterable[Key]) -> str:
    return join_first([_name_member(kind, key) for key in keys])


def _name_member(kind: CheckKind, key: Key) -> str:
    return f"{key.gpus} GPUs" if kind is CheckKind.WEAK_SCALING else key.dtype.upper()


def _describe_row(kind: CheckKind, row: ComparisonRow) -> str:
    ratios = (row.measured, row.documented, row.bound)
    if kind is CheckKind.FP8_SPEEDUP:
        measured, documented, bound = (f"{ratio:.3f}" for ratio in ratios)
        what = f"FP8 is {measured} times as fast as BF16"
    else:
        measured, documented, bound = (f"{ratio * 100:.1f} %" for ratio in ratios)
        what = f"{row.key.gpus} GPUs have {measured} of the throughput per GPU of {row.reference.gpus}"
    changes = (row.low, row.high, row.difference)
    low, high, apart = (format_difference(1 + change) for change in changes)
    interval = f"{apart} ({low} to {high})"
    return f"{what}, {row.baseline} {documented}: {interval}; at least {bound} passes"


def _describe_work(comparison: ConfigurationComparison) -> str:
    first, other = comparison.configurations[0], comparison.configurations[-1]
    length, layers = first.architecture.sequence_length, first.architecture.layers
    model = f"sequence length {length}, {layers} layers"
    batch = first.global_batch_size
    if comparison.kind is CheckKind.WEAK_SCALING:
        sizes = len(comparison.compared)
        per_gpu = f"{batch / first.key.gpus:.6g}"
        return f"the lowest of {sizes} sizes, GBS {per_gpu} per GPU, {model}"
    layouts = [(each.parallelism, each.micro_batch_size) for each in (first, other)]
    apart = "" if layouts[0] == layouts[1] else ", another parallelism"
    return f"step times at GBS {batch}, {model}{apart}"
