"""The sentences of verdicts: every record and code of `core/statements`, phrased."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core import statements as states
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
    BudgetDoubtCode,
    Figure,
    IdleCause,
    NodeCause,
    NodeFinding,
    Remark,
    ShiftReference,
)
from pytest_llmbench.core.tolerance import describe_move

if TYPE_CHECKING:
    from datetime import datetime

    from pytest_llmbench.core.baseline_records import Budget, Key
    from pytest_llmbench.core.configuration_comparisons import (
        ComparisonRow,
        ConfigurationComparison,
    )
    from pytest_llmbench.core.judgement_records import Estimate
    from pytest_llmbench.core.run_records import VerdictStatement
    from pytest_llmbench.core.statements import RunOnNodes


@singledispatch
def phrase(statement: VerdictStatement | LevelChange | Judgement) -> str:
    """Return the sentence of a statement, or all those of a judgement."""
    raise TypeError(f"no sentence for {statement!r}")


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


REMARKS = {
    Remark.RUNS_APART: "the runs differ too much to be of one state",
    Remark.REPEAT_BUILD_UNKNOWN: "nothing says which build it is of, so it has no repeats",
    Remark.BEYOND_ACCEPTED_LEVEL: (
        "faster than the acknowledged level by more than the tolerance"
    ),
    Remark.FASTER_AS_TIMED: "by what its document timed, which is never recorded",
    Remark.REFRESH_BASELINE: (
        "refresh the baseline, or it will hide the next regression"
    ),
    Remark.UNIFORM_SHIFT: "uniform shift",
    Remark.TOO_FEW_STEPS: "too few steps to show a shape",
    Remark.COMPARED_WITHOUT_ERROR: (
        "too few steps and no history: compared with the bound as it is"
    ),
    Remark.ERROR_UNKNOWN: "nothing is known of the error",
    Remark.NEWEST_BY_FILE_TIME: (
        "that it is the newest run, only the times of the files say, which copying may change"
    ),
    Remark.NEWEST_BY_MIXED_CLOCKS: (
        "that it is the newest run, only clocks say that cannot be compared"
    ),
}


@phrase.register(Remark)
def _(remark: Remark) -> str:
    return REMARKS[remark]


FIGURES: dict[Figure, Callable[[Any], str]] = {
    Figure.ALLOWED_TIME: lambda seconds: f"the bound is {format_seconds(seconds)}",
    Figure.UNCONFIRMED_RUNS: lambda runs: (
        f"{count_noun(runs, 'run')} beyond it: a slow node or slow software, no telling"
    ),
    Figure.FEW_TIMES: lambda times: (
        f"{count_noun(times, 'time')} cannot tell a slow run from a slow step"
    ),
    Figure.BASELINE_ROUNDING: lambda fraction: (
        f"the baseline's rounding ({fraction:.1%}) is more than a tenth of the margin"
    ),
    Figure.OLDER_RUNS: lambda runs: (
        f"{count_noun(runs, 'older run')} of this configuration"
    ),
    Figure.DRIFTING_STEPS: lambda change: (
        f"drift: {format_difference(1 + change)} from the first to the last step"
    ),
    Figure.ACCEPTED_IN_ALL: lambda logarithm: (
        f"of {_format_change(logarithm)} in all +10.0 % count"
    ),
}


@phrase.register(states.FigureStatement)
def _(figure: states.FigureStatement) -> str:
    return FIGURES[figure.of](figure.value)


# --- the comparison with the baseline -------------------------------------------------


@phrase.register(states.StepTimeComparison)
def _(comparison: states.StepTimeComparison) -> str:
    slower = _format_change(comparison.estimate.difference)
    expected = format_seconds(comparison.expected)
    interval = format_interval(comparison.estimate)
    measured = format_seconds(comparison.measured)
    return f"{measured} is {slower} against {expected} ({interval})"


def format_interval(estimate: Estimate) -> str:
    """Return the bounds of the difference: `+5.7 to +10.3 %`."""
    if estimate.threshold_only:
        return "threshold only: nothing is known of the error"
    bounds = (estimate.low, estimate.high)
    low, high = (format_difference(compute_bounded_exp(bound)) for bound in bounds)
    if low.endswith("%") and high.endswith("%"):
        low = low.removesuffix(" %")
    return f"{low} to {high}"


def _format_change(logarithm: float) -> str:
    return format_difference(math.exp(logarithm))


@phrase.register(states.TimedStatement)
def _(timed: states.TimedStatement) -> str:
    how = "is assumed of its document" if timed.assumed else "its document does"
    return f"timed as {how} ({timed.window}): {phrase(timed.statement)}"


@phrase.register(states.RunsNeeded)
def _(wanted: states.RunsNeeded) -> str:
    runs = count_noun(wanted.runs, "run")
    if wanted.needed is None:
        return f"{runs} cannot tell, and no number would: it lies at the bound"
    enough = f"about {wanted.needed}" if wanted.needed <= MANY else f"more than {MANY}"
    return f"{runs} cannot tell; {enough} would"


@phrase.register(states.CoarseTime)
def _(time: states.CoarseTime) -> str:
    shown, slowest = format_seconds(time.seconds), format_seconds(time.slowest)
    return f"printed too coarsely: {shown} may be up to {slowest}, which no repeat would show"


@phrase.register(states.FewMeans)
def _(few: states.FewMeans) -> str:
    means = count_noun(few.means, "printed mean")
    return f"{means} of {few.steps} steps: within them a warm-up or a stall stays unseen, and how much they vary"


@phrase.register(states.OtherStatistic)
def _(other: states.OtherStatistic) -> str:
    name = "20 % trimmed mean" if other.trimmed else "mean"
    side = "beyond" if other.beyond else "within"
    slower, expected = _format_change(other.difference), format_seconds(other.expected)
    return f"the {name} is {side} the bound ({slower} against {expected}): few steps decide"


@phrase.register(states.SlowMean)
def _(mean: states.SlowMean) -> str:
    slower, against = _format_change(mean.difference), format_seconds(mean.expected)
    forgiven = f" after {mean.forgiven} transient stalls are forgiven"
    return f"the mean of all steps is beyond the bound{forgiven if mean.forgiven else ''} ({slower} against {against})"


@phrase.register(states.WideInterval)
def _(wide: states.WideInterval) -> str:
    low, high = _format_change(wide.low), _format_change(wide.high)
    return f"the steps fix the step time to between {low} and {high} only, wider than {wide.tolerances} tolerances"


@phrase.register(states.ShiftBesides)
def _(shift: states.ShiftBesides) -> str:
    return f"uniform shift; besides, {phrase_all(shift.shape)}"


@phrase.register(states.ImplausibleTime)
def _(time: states.ImplausibleTime) -> str:
    share = f"{time.share * 100:.3g} %"
    reasons = [f"more than {share} faster is more likely another configuration"]
    if time.near:
        reasons.append(f"it is as fast as {join_first(time.near)}")
    return "; ".join((*reasons, *map(phrase, time.unverified)))


@phrase.register(states.PooledDays)
def _(pooled: states.PooledDays) -> str:
    interval = format_interval(pooled.estimate)
    return f"{pooled.days} nights running could not tell; together they do: {interval}"


@phrase.register(states.NoisyRuns)
def _(noisy: states.NoisyRuns) -> str:
    return (
        f"earlier runs differ by {noisy.sigma:.1%}, more than the {noisy.assumed:.1%} "
        "that is assumed between runs: "
        "the interval is wider until 8 nights are known (--llmb-history)"
    )


@phrase.register(states.NoisySteps)
def _(noisy: states.NoisySteps) -> str:
    return (
        f"the steps of the run fix its mean to {noisy.error:.1%} only, "
        f"less well than the {noisy.sigma:.1%} that is assumed from run to run: "
        "the interval is wider"
    )


@phrase.register(states.FewRecorded)
def _(few: states.FewRecorded) -> str:
    runs = count_noun(few.runs, "run")
    counted = "as one" if few.groups == 1 else f"as {few.groups:.0f}"
    if not few.grouped and few.runs > 1:
        text = f"nothing says on how many nights or nodes the {runs} of the baseline were: they count as one"
    elif few.runs > few.groups:
        text = (
            f"the {runs} of the baseline count {counted}: they share nights and nodes"
        )
    else:
        text = f"the baseline is of {runs}"
    return (
        f"{text}; {few.recommended} on as many nights or sets of nodes are recommended"
    )


# --- runs that were not compared ------------------------------------------------------


@phrase.register(states.LastValidRun)
def _(last: states.LastValidRun) -> str:
    job = f", job {last.job_id}" if last.job_id else ""
    ago = count_noun(last.days, "night") if last.days > 0 else format_age(last.age)
    return f"last valid run {ago} ago ({last.started:%Y-%m-%d %H:%M}{job})"


def _add_last_valid(text: str, last: states.LastValidRun | None) -> str:
    return text if last is None else f"{text}; {phrase(last)}"


@phrase.register(states.StaleRun)
def _(stale: states.StaleRun) -> str:
    age, limit = format_age(stale.age), format_age(stale.limit)
    last = "no valid run is known"
    if stale.last_valid is not None:
        last = phrase(stale.last_valid)
    return f"stale: the newest run is {age} old, at most {limit} is allowed; {last}"


@phrase.register(states.UnusableRun)
def _(unusable: states.UnusableRun) -> str:
    whose = f"{unusable.run}, one of {unusable.runs} runs that count: "
    text = (whose if unusable.runs > 1 else "") + unusable.problem.text
    return _add_last_valid(text, unusable.last_valid)


@phrase.register(states.NothingToCompare)
def _(nothing: states.NothingToCompare) -> str:
    measured = _list_seconds(nothing.seconds)
    return f"nothing to compare with yet: {measured} measured; record it with --llmb-record=DIR"


def _list_seconds(seconds: Iterable[float | None]) -> str:
    return join_first(list(map(format_seconds, seconds)))


@phrase.register(states.UndatedRun)
def _(undated: states.UndatedRun) -> str:
    return f"nothing says when {undated.run} started: {undated.source}"


@phrase.register(states.MissingRun)
def _(missing: states.MissingRun) -> str:
    stale = "stale: " if missing.stale else ""
    text = f"{stale}no run of this configuration"
    return _add_last_valid(text, missing.last_valid)


@phrase.register(states.OnlyExcluded)
def _(only: states.OnlyExcluded) -> str:
    kinds, problem = "runs that cannot be compared", only.problem
    if problem is not None:
        kinds = f"{problem.reason} runs: {problem.text}"
    return _add_last_valid(f"only {kinds}", only.last_valid)


@phrase.register(states.NewerRuns)
def _(newer: states.NewerRuns) -> str:
    runs = count_noun(newer.count, "newer run")
    return f"{runs} cannot be compared: {newer.problem.text}"


@phrase.register(states.Repeats)
def _(repeats: states.Repeats) -> str:
    shown, count = _list_seconds(repeats.seconds), len(repeats.seconds)
    if repeats.apart:
        return f"{count} repeats differ too much, the newest decides: {shown}"
    return f"the mean of {count} repeats: {shown}"


@phrase.register(states.LostRepeat)
def _(lost: states.LostRepeat) -> str:
    return f"a repeat cannot be judged: {lost.problem.text}"


@phrase.register(states.Hiccup)
def _(hiccup: states.Hiccup) -> str:
    steps = join_first(list(map(_describe_slow_step, hiccup.steps)))
    usual, mean = format_seconds(hiccup.usual), format_seconds(hiccup.mean)
    begin = "a hiccup: "
    if hiccup.runs:
        begin = f"{hiccup.runs} runs in seven nights had such steps: a hiccup is forgiven no more; "
    return f"{begin}{steps}; the mean is {mean}, {usual} with the next slowest in their place"


def _describe_slow_step(step: states.SlowStep) -> str:
    line = f" (line {step.line})" if step.line else ""
    return f"step {step.number}{line} took {step.ratio:.3g} x the median"


@phrase.register(states.AmbiguousOrder)
def _(order: states.AmbiguousOrder) -> str:
    newest, rival = _describe_run(order.newest), _describe_run(order.rival)
    doubt = _describe_order(order.doubt)
    return f"which run is the newest is ambiguous: {newest} or {rival}; {doubt}"


CLOCKS = {
    Clock.METADATA: "launch time in its metadata",
    Clock.FOLDER_NAME: "name of its folder",
    Clock.LOG: "first time stamp of its log",
    Clock.FOLDER_ABOVE: "name of a folder above",
    Clock.FILE_TIME: "time of its file",
    Clock.MIXED: "first time that it states",
}


def _describe_run(run: states.OrderedRun) -> str:
    job = f"job {run.job_id}, " if run.job_id else ""
    began = _format_time(run.started) if run.started else "an unknown time"
    clock = CLOCKS.get(run.clock, "order")
    return f"{run.id} ({job}{began} by the {clock}, {run.verdict})"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _describe_order(
    doubt: states.OrderByJob | states.OrderByFile | states.OrderByLaunch,
) -> str:
    if isinstance(doubt, states.OrderByJob):
        return f"the job ids order them otherwise: {doubt.rival} after {doubt.newest}"
    if isinstance(doubt, states.OrderByLaunch):
        launched = _format_time(doubt.launched)
        return f"{doubt.rival} was launched {launched}, after the first stamp of its own log"
    rival, newest = map(_format_written, (doubt.rival_written, doubt.newest_written))
    return f"the times of their files order them otherwise: {doubt.rival} was written {rival}, {doubt.newest} {newest}"


def _format_written(written: datetime | None) -> str:
    return f"on {_format_time(written)}" if written else "at an unknown time"


# --- the shape of a window ------------------------------------------------------------


def format_steps(steps: states.StepList) -> str:
    """Return steps, consecutive ones as one: `steps 12, 20 to 24, 30 and 7 more`."""
    noun = "step" if steps.count == 1 else "steps"
    more = f" and {steps.more} more" if steps.more else ""
    return f"{noun} {', '.join(map(_format_span, steps.spans))}{more}"


def _format_span(span: states.StepSpan) -> str:
    if span.count == 1:
        return f"{span.first}"
    if span.count == 2:
        return f"{span.first}, {span.last}"
    return f"{span.first} to {span.last}"


def _describe_slowest(slowest: states.SlowestSteps) -> str:
    most = "up to " if slowest.smoothed else ""
    average = " on average" if slowest.averaged else ""
    steps = format_steps(slowest.steps)
    return f"{steps} took {most}{slowest.ratio:.3g} x the median{average}"


def _format_percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"


@phrase.register(states.EvenSteps)
def _(even: states.EvenSteps) -> str:
    noun = "mean of several steps" if even.averaged else "single step"
    return f"no {noun} stands out"


@phrase.register(states.SlowSteps)
def _(slow: states.SlowSteps) -> str:
    line = f" (line {slow.line})" if slow.line else ""
    text = _describe_slowest(slow.slowest) + line
    if slow.single:
        return f"one spike: {text}"
    return f"spikes: {format_steps(slow.steps)}; {text}"


@phrase.register(states.PeriodicSteps)
def _(periodic: states.PeriodicSteps) -> str:
    each, excess = format_ordinal(periodic.period), _format_percent(periodic.excess)
    steps = format_steps(periodic.steps)
    return f"every {each} step slow, {excess} above the others ({steps})"


@phrase.register(states.SlowStretch)
def _(stretch: states.SlowStretch) -> str:
    steps = format_steps(stretch.steps)
    upper, lower = format_seconds(stretch.upper), format_seconds(stretch.lower)
    return f"slow stretch: {steps} at {upper}, the others at {lower}"


@phrase.register(states.TwoLevels)
def _(two: states.TwoLevels) -> str:
    values = "means" if two.averaged else "steps"
    level, other = format_seconds(two.level), format_seconds(two.other)
    steps = format_steps(two.steps)
    return f"two levels: {two.count} of {two.total} {values} at {level}, the others at {other} ({steps})"


@phrase.register(states.SaveInStep)
def _(save: states.SaveInStep) -> str:
    took = ""
    if save.save_seconds is not None:
        took = f" ({save.save_seconds:.5g} of {save.seconds:.4g} s)"
    text = f"step {save.step} holds the save of line {save.line}{took}"
    if save.slow > 1:
        steps = count_noun(save.slow, "slow step")
        return f"{save.held} of {steps} hold a save: {text}"
    return text


@phrase.register(states.Stragglers)
def _(slow: states.Stragglers) -> str:
    steps, worst = format_steps(slow.steps), _describe_slowest(slow.slowest)
    which = "" if worst.startswith(steps) else f"{steps}; "
    several = ""
    if slow.moving_mean > 1:
        several = f"; one slow step shows in {slow.moving_mean} values"
    noun = count_noun(slow.count, "slow mean" if slow.averaged else "straggler")
    share, added = _format_percent(slow.share), _format_percent(slow.added)
    return f"{noun}, {share} of the time, +{added} on the mean: {which}{worst}{several}"


@phrase.register(states.StepDrift)
def _(drift: states.StepDrift) -> str:
    change = format_difference(1 + drift.change)
    return f"drift: {change} from step {drift.first} to step {drift.last} (p {drift.p:.1g})"


@phrase.register(states.WarmUpSteps)
def _(warm_up: states.WarmUpSteps) -> str:
    return (
        f"warm-up not over: steps {warm_up.first} to {warm_up.last} are "
        f"{_format_percent(warm_up.excess)} slower than the rest "
        f"(z {min(warm_up.z, 99):.3g})"
    )


@phrase.register(states.MeanAndTrimmed)
def _(means: states.MeanAndTrimmed) -> str:
    driver = "slow steps" if means.mean > means.trimmed else "fast steps"
    mean, trimmed = format_seconds(means.mean), format_seconds(means.trimmed)
    return f"mean {mean}, 20 % trimmed mean {trimmed}: {driver} drive the mean"


@phrase.register(states.MovingMeans)
def _(means: states.MovingMeans) -> str:
    values = count_noun(means.values, "value")
    return f"the log prints means of {means.steps} steps: {values}, about {means.independent} of them independent"


# --- what was accepted, recorded and budgeted -----------------------------------------


@phrase.register(Acknowledgement)
def _(entry: Acknowledgement) -> str:
    who = f"by {entry.by} until {entry.expires}: {entry.reason}"
    if entry.accepts is not None:
        return f"accepted: {entry.accepts} {who}"
    return f"acknowledged: {format_difference(1 + entry.fraction)} {who}"


@phrase.register(states.AcceptedReason)
def _(accepted: states.AcceptedReason) -> str:
    return f"{phrase(accepted.statement)} ({phrase(accepted.entry)})"


@phrase.register(states.IdleAcknowledgement)
def _(idle: states.IdleAcknowledgement) -> str:
    entry, place = phrase(idle.entry), idle.entry.place
    match idle.cause:
        case IdleCause.CERTIFIED:
            return f"without effect under --llmb-certify: {entry} ({place})"
        case IdleCause.EXPIRED:
            expires = idle.entry.expires
            return f"expired on {expires}, without effect: {entry} ({place})"
        case IdleCause.RECORDED:
            runs = f"the baseline was recorded from runs up to {idle.recorded}"
            return f"without effect, {runs} and may hold it already: {entry} ({place})"
        case IdleCause.FASTER:
            faster = REMARKS[Remark.BEYOND_ACCEPTED_LEVEL]
            return f"{entry}: {faster}: it can go ({place})"


def _describe_limits(limits: states.DriftLimits) -> str:
    budget = f"drift budget {limits.budget * 100:.10g} %"
    return f"{budget}, tolerance {limits.tolerance}"


@phrase.register(states.ValueDrift)
def _(drift: states.ValueDrift) -> str:
    recorded = format_difference(drift.recorded / drift.first.seconds)
    return (
        f"tonight {describe_move(drift.seconds, drift.first)}; "
        f"recorded since: {recorded} ({_describe_limits(drift.limits)})"
    )


@phrase.register(states.DriftedRun)
def _(drifted: states.DriftedRun) -> str:
    return (
        f"tonight {describe_move(drifted.seconds, drifted.first)}; "
        f"at most {format_seconds(drifted.allowed)} is allowed "
        f"({_describe_limits(drifted.limits)})"
    )


@phrase.register(states.DriftedRecording)
def _(drifted: states.DriftedRecording) -> str:
    distance = describe_move(drifted.recorded, drifted.first)
    limits = _describe_limits(drifted.limits)
    return f"the recorded value moved too far: {distance} ({limits})"


@phrase.register(states.AgainstRecorded)
def _(against: states.AgainstRecorded) -> str:
    return f"against the recorded value: {phrase_all(against.statements)}"


@phrase.register(states.MovedRecording)
def _(moved: states.MovedRecording) -> str:
    moves = count_noun(moved.moves, "accepted move")
    return f"recorded values: {describe_move(moved.recorded, moved.origin)}, in {moves}"


def _describe_budget(budget: Budget) -> str:
    place = f" ({budget.place})" if budget.place else ""
    return f"the budget is {budget.largest:g} s{place}"


def _format_line(place: states.LogPlace) -> str:
    return f"{place.log}:{place.line}" if place.log else f"line {place.line}"


@phrase.register(states.OverBudget)
def _(over: states.OverBudget) -> str:
    until = " until it was handed over" if over.dispatched else ""
    return (
        f"checkpoint {over.action} took {over.seconds:.10g} s{until} "
        f"({_format_line(over.place)}), {_describe_budget(over.budget)}"
    )


BUDGET_DOUBTS = {
    BudgetDoubtCode.TRUNCATED: "its time is cut off",
    BudgetDoubtCode.UNTIMED: "no time is stated for it",
    BudgetDoubtCode.DISPATCH_ONLY: (
        "it is or may be asynchronous, its time is that of the dispatch only, "
        "for which checkpoint_save_dispatch_seconds is the budget"
    ),
    BudgetDoubtCode.UNREAD: "{} more records than are kept",
    BudgetDoubtCode.SYNCHRONOUS: "it is synchronous, so its time is no dispatch",
}


@phrase.register(states.BudgetDoubt)
def _(doubt: states.BudgetDoubt) -> str:
    why = BUDGET_DOUBTS[doubt.code].format(doubt.unread)
    return (
        f"checkpoint {doubt.action} cannot be judged: {why} "
        f"({_format_line(doubt.place)}); {_describe_budget(doubt.budget)}"
    )


@phrase.register(states.UnstatedCheckpoint)
def _(unstated: states.UnstatedCheckpoint) -> str:
    meant = f", though {unstated.meant}" if unstated.meant else ""
    budget = _describe_budget(unstated.budget)
    return f"the log states no checkpoint {unstated.action}{meant}; {budget}"


@phrase.register(states.BaselineContradiction)
def _(found: states.BaselineContradiction) -> str:
    baseline, contradiction = found.baseline, found.contradiction
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


# --- what a session adds to a verdict -------------------------------------------------


@phrase.register(states.NotCertified)
def _(uncertain: states.NotCertified) -> str:
    return f"{phrase(uncertain.doubt)}: not certified"


@phrase.register(states.OtherBaselineKind)
def _(other: states.OtherBaselineKind) -> str:
    return f"there is no {other.asked} baseline, only one that was {other.kind} here"


@phrase.register(states.NewerUnmatched)
def _(newer: states.NewerUnmatched) -> str:
    return f"a newer run may be of this configuration: {newer.run}: {newer.text}"


def _count_required(few: states.TooFewRuns | states.FewerRuns) -> str:
    runs, required = count_noun(few.valid, "valid run"), few.required
    return f"{runs}, {required.place} asks for {required.runs}"


@phrase.register(states.TooFewRuns)
def _(few: states.TooFewRuns) -> str:
    return f"{_count_required(few)}; the newest: {phrase_all(few.statements)}"


@phrase.register(states.FewerRuns)
def _(fewer: states.FewerRuns) -> str:
    return f"{_count_required(fewer)} (--llmb-repeats={fewer.repeats})"


@phrase.register(states.SlowerBeyondChance)
def _(slower: states.SlowerBeyondChance) -> str:
    chance = f"(p = {slower.p:.2g}, adjusted for {slower.count})"
    return f"slower than its baseline beyond chance, within the tolerance {chance}"


@phrase.register(states.SlowRankReport)
def _(report: states.SlowRankReport) -> str:
    quoted = ", ".join(f'"{text}" (line {line})' for text, line in report.lines)
    return f"{report.log or 'the log'} reports a slow rank: {quoted}"


# --- several configurations, and the nodes of their runs ------------------------------

CAUSES = "driver, image, fabric, power, file system"
CHANGES = {
    ShiftReference.LAST_RUNS: "a cluster-wide change",
    ShiftReference.BASELINES: "the cluster differs from that of the baselines",
}


@phrase.register(states.SharedShift)
def _(shared: states.SharedShift) -> str:
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
