"""Check that a run trained: its losses, gradients and learning rates, over the whole
run.

A run that does not train computes the same and is as fast or faster. Losses are
compared with the run's first losses and with the recorded runs, never with an absolute
level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.log_records import StatedField, Steps
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.robust import NORMAL, compute_median
from pytest_llmbench.core.run_records import Note, Problem, Run
from pytest_llmbench.logs.dialect_table import get_dialect
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.window import Timing, get_first_steps

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

ENOUGH_DIGITS = 6  # a loss that is equal in this many digits is constant
FEWEST_EQUAL = 3  # fewer equal values may be chance

# largest share of steps without a weight update, in a run or a window that trains
LARGEST_IDLE_SHARE = 0.5
# steps that half precision may skip while it searches for its loss scale
LEADING = 20
MOST_SKIPPED = 0.1  # the share of later steps that may be skipped

GROWTH = 2.0  # largest ratio of a run's last losses to its first losses
END_SHARE = 0.1  # the share of a run's losses at each end that are compared
FEWEST_LOSSES = 3  # at least this many losses at each end are compared
# with at least this many losses the noise is that of the calmer half of the run, since
# the other half may diverge
ENOUGH_FOR_HALVES = 20
DEVIATIONS = 4  # medians that differ by this many standard deviations differ for sure

LARGEST_EXPONENT = 700.0  # the exponential of more overflows

# the share of its first value, and of the recorded fall, that a loss has to lose in
# order not to be stuck
STUCK = 0.1
# a larger loss that falls to 0 at once does not learn; a smaller one may be rounded
COLLAPSED_FROM = 0.1
# the loss is lost if it is missing for this many times its longest gap
SILENCE = 3

# matches "llama3_8b_dpo" and "grpo-qwen"
REWARDED = compile_on_use(
    r"(?:^|[^a-z0-9])(?:dpo|grpo|orpo|simpo|ppo|kto|rloo|rlhf)(?:[^a-z0-9]|$)"
)
"""Matches training on rewards or preferences in run names: the loss may be negative."""


class WindowValues(NamedTuple):
    """The printed values of one quantity in the window.

    `complete` is true if every step prints it.
    """

    values: Floats
    complete: bool

    def is_always(self, value: float) -> bool:
        """True if every step of the window prints `value`."""
        return self.complete and bool((self.values == value).all())

    @property
    def is_constant(self) -> bool:
        """True if every step prints the same value, and there are at least
        FEWEST_EQUAL."""
        return len(self.values) >= FEWEST_EQUAL and self.is_always(
            float(self.values[0])
        )


class Curve(NamedTuple):
    """The columns that a run prints, over all of its records; NaN if not printed."""

    loss: Floats
    grad_norm: Floats
    learning_rate: Floats
    line: Integers


class Ends(NamedTuple):
    """Medians of a run's first and last losses.

    `noise` is the standard deviation of the logarithm of a single loss.
    """

    first: float
    last: float
    noise: float
    line: int  # of the first of the last losses

    def exceeds(self, reference: float) -> bool:
        """True if the last losses exceed `reference` by more than GROWTH and the noise."""
        exponent = min(DEVIATIONS * self.noise, LARGEST_EXPONENT)
        return self.last > reference * max(GROWTH, math.exp(exponent))


def find_problems(
    run: Run, choice: Choice, timing: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield the evidence that a run did not train.

    If the log prints no loss, gradient norm or learning rate, the only possible problem
    is LOSS_MISSING.
    """
    window = timing.window
    if not len(window):
        return
    curve, recorded = _make_curve(choice, timing.steps), baseline.observed
    first_line = int(window.line[0])
    for text in (
        *_find_no_update(choice, timing, curve, recorded),
        *_find_bad_loss(run, choice, window, baseline, recorded),
        *_find_collapse(run, choice, curve, baseline),
        *_find_lost_loss(choice, timing.steps),
    ):
        yield Problem(Reason.DID_NOT_TRAIN, text, first_line)
    yield from _find_divergence(run, choice, curve, baseline, recorded)
    if _lacks_recorded_loss(run, choice, timing.steps, baseline):
        yield Problem(
            Reason.LOSS_MISSING,
            "the log prints no loss during training, unlike the recorded runs: a divergence would go unnoticed",
            first_line,
        )


def list_notes(
    run: Run, choice: Choice, timing: Timing, baseline: Baseline
) -> Iterator[Note]:
    """Yield notes on signs of a run that did not train, if they are inconclusive."""
    window = timing.window
    if not len(window):
        return
    line = int(window.line[0])
    loss, norm = _select_losses(choice, window), _select_norms(window)
    # the search for a zero norm ignores the recorded norm: `{}`
    if norm.is_always(0.0) and not any(
        _find_zero_norm(choice, timing, _make_curve(choice, timing.steps), {})
    ):
        text = "the gradient norm is printed as 0 in every step, although the loss changes: it is not reported, or rounded"
        if _is_stated(choice, StatedField.ENGINE):  # DeepSpeed keeps the norm to itself
            text = "the gradient norm is printed as 0 in every step: DeepSpeed does not report it"
        yield Note(NoteCode.NORM_UNKNOWN, text, line)
    stands_still = loss.is_always(0.0) or loss.is_constant
    if loss.complete and stands_still and not is_rewarded(run, choice, baseline):
        text = f"the loss is {loss.values[0]:g} in every step of the window; with so few digits it does not prove training"
        yield Note(NoteCode.LOSS_STANDS_STILL, text, line)
    elif not loss.complete and _is_of_another_stage(choice, window):
        yield Note(
            NoteCode.UNVERIFIED_LOSS,
            "this rank prints no loss, so a divergence would go unnoticed",
            line,
        )
    skipped, total = _count_skipped(window)
    if skipped:
        text = f"{skipped} of {formatting.count_noun(total, 'step')} in the window were skipped: they updated no weights"
        yield Note(NoteCode.SKIPPED_STEPS, text, line)


def observe(
    run: Run, choice: Choice, timing: Timing, baseline: Baseline
) -> Iterator[tuple[Observed, float]]:
    """Yield losses and gradient norms, to be recorded with a baseline.

    The losses of training on rewards are not recorded.
    """
    if not len(timing.window):
        return
    curve, window = _make_curve(choice, timing.steps), timing.window
    if choice.segment.progress:  # one record of all steps: all values before it count
        in_window = np.ones(len(curve.loss), dtype=np.bool_)
    else:
        index = timing.steps.index
        in_window = (index >= get_first_steps(window)[0]) & (index <= window.index[-1])
    norms = curve.grad_norm[in_window & np.isfinite(curve.grad_norm)]
    if len(norms):
        yield Observed.GRADIENT_NORM, compute_median(norms)
    ends = _compare_ends(curve.loss, curve.line)
    window_losses = curve.loss[in_window & (curve.loss > 0)]
    if ends and len(window_losses) and not is_rewarded(run, choice, baseline):
        last_losses = window_losses[-count_ends(len(window_losses)) :]
        yield Observed.FIRST_LOSS, ends.first
        yield Observed.LAST_LOSS, compute_median(last_losses)


def is_rewarded(run: Run, choice: Choice, baseline: Baseline) -> bool:
    """True if a run trains on rewards or preferences: its loss may be 0 or negative."""
    if choice.segment.rewards or _is_stated(choice, StatedField.OBJECTIVE):
        return True
    key, files = baseline.key, choice.attempt.files
    names = (
        key.recipe,
        key.task,
        key.variant,
        files.log.name,
        files.log.parent.name,
        run.found.folder.name,
    )
    return any(REWARDED.search(name.casefold()) for name in names)


# --- steps without a weight update ----------------------------------------------------


def _find_no_update(
    choice: Choice, timing: Timing, curve: Curve, recorded: Mapping[str, float]
) -> Iterator[str]:
    """Yield the evidence that most steps of the run or window updated no weights."""
    yield from _find_zero_norm(choice, timing, curve, recorded)
    yield from _find_zero_rate(timing.window, curve)
    skipped, total = _count_skipped(timing.window)
    if skipped > LARGEST_IDLE_SHARE * total:
        yield f"{skipped} of {formatting.count_noun(total, 'step')} in the window were skipped: they updated no weights"
    else:
        yield from _find_skipped(timing.steps)


def _find_zero_norm(
    choice: Choice, timing: Timing, curve: Curve, recorded: Mapping[str, float]
) -> Iterator[str]:
    """Yield a gradient norm of 0 in most steps.

    Yields nothing if the loss moves, or if the recorded norm was 0, too.
    """
    zeros = curve.grad_norm == 0
    if (
        not zeros.any()
        # DeepSpeed, which the log then states, prints every norm as 0
        or _is_stated(choice, StatedField.ENGINE)
        or recorded.get(Observed.GRADIENT_NORM) == 0
    ):
        return
    in_window = timing.window.grad_norm == 0
    if in_window.mean() <= LARGEST_IDLE_SHARE and zeros.mean() <= LARGEST_IDLE_SHARE:
        return
    if not _has_moving_loss(curve):
        extent = f"{zeros.sum()} of {len(zeros)} records of the run"
        if in_window.all():
            extent = "every step of the window"
        yield f"the gradient norm is 0 in {extent}: nothing was learned"


def _find_zero_rate(window: Steps, curve: Curve) -> Iterator[str]:
    """Yield a learning rate of 0 in most steps of the run or window."""
    rates = curve.learning_rate
    if not (rates == 0).any():
        return
    # a warm-up may begin with 0, and a schedule may end with 0
    inner_rates = rates[1:-1]
    is_zero = window.learning_rate == 0
    is_long_enough = len(is_zero) >= FEWEST_EQUAL
    if is_long_enough and is_zero.all():
        yield "the learning rate is 0 in every step of the window: nothing was learned"
    elif len(inner_rates) and (inner_rates == 0).mean() > LARGEST_IDLE_SHARE:
        yield f"the learning rate is 0 in {(rates == 0).sum()} of {len(rates)} records of the run: they updated no weights"
    elif is_long_enough and is_zero.mean() > LARGEST_IDLE_SHARE:
        yield f"the learning rate is 0 in {is_zero.sum()} of {len(is_zero)} records of the window: they updated no weights"


def _find_skipped(steps: Steps) -> Iterator[str]:
    """Yield a message if too many steps after the search for a loss scale were skipped."""
    is_known = np.isfinite(steps.skipped_steps)
    skipped = steps.skipped_steps[is_known]
    if not skipped.any():
        return
    first_steps = get_first_steps(steps)
    step_counts = steps.mean_of[is_known]
    # the steps of each record that belong to the search, which ends before `search_end`
    search_end = first_steps[0] + LEADING
    search_steps = np.clip(search_end - first_steps[is_known], 0, step_counts)
    late_skipped = int(np.maximum(skipped - search_steps, 0).sum())
    late_total = int((step_counts - search_steps).sum())
    if late_skipped > MOST_SKIPPED * late_total:
        yield (
            f"{late_skipped} of {formatting.count_noun(late_total, 'step')} after the first {LEADING} were skipped: "
            "they updated no weights"
        )


# --- losses that show no learning -----------------------------------------------------


def _find_bad_loss(
    run: Run,
    choice: Choice,
    window: Steps,
    baseline: Baseline,
    recorded: Mapping[str, float],
) -> Iterator[str]:
    """Yield a negative, stuck or constant loss of the window."""
    loss = _select_losses(choice, window)
    if not len(loss.values):
        return
    is_negative = bool((loss.values < 0).any())
    stuck = _describe_stuck_loss(loss, recorded)
    is_constant = bool(stuck) or _is_constant_loss_certain(loss, choice, window)
    # is_rewarded is called last: it is slow, and few losses are odd.
    if not (is_negative or is_constant) or is_rewarded(run, choice, baseline):
        return
    if is_negative:
        yield f"the loss is {loss.values.min():g}: a cross-entropy is never negative"
    else:
        yield f"the loss is {loss.values[0]:g} in every step of the window{stuck}"


def _describe_stuck_loss(loss: WindowValues, recorded: Mapping[str, float]) -> str:
    """Describe the difference of a constant loss from the recorded losses, or ""."""
    first, last = recorded.get(Observed.FIRST_LOSS), recorded.get(Observed.LAST_LOSS)
    if first is None or last is None or not loss.is_constant:
        return ""
    value = float(loss.values[0])
    recorded_fall = first - last
    # The recorded loss fell, and this loss is still far above its last value.
    if recorded_fall > STUCK * first and value - last > STUCK * recorded_fall:
        return f"; in the recorded runs it falls from {first:.4g} to {last:.4g}"
    # The loss is 0, but the recorded loss did not end near 0.
    if value == 0 and last >= COLLAPSED_FROM:
        return f"; in the recorded runs it is {last:.4g} there"
    return ""


def _is_constant_loss_certain(
    loss: WindowValues, choice: Choice, window: Steps
) -> bool:
    """True if a loss is certainly 0 or constant: by its digits, or by a constant norm."""
    # On synthetic data a loss of four digits may be constant although the run trains.
    if not (loss.is_always(0.0) or loss.is_constant):
        return False
    # some dialects print a 0 only for an exact zero, and not for a small number
    exact = loss.is_always(0.0) and get_dialect(choice.attempt.log.dialect).exact_zero
    return (
        exact
        or choice.segment.loss_digits >= ENOUGH_DIGITS
        or _select_norms(window).is_constant
    )


def _find_collapse(
    run: Run, choice: Choice, curve: Curve, baseline: Baseline
) -> Iterator[str]:
    """Yield a loss that falls to exactly 0 at once and stays there.

    Some programs print an overflow as 0.
    """
    rows = np.flatnonzero(np.isfinite(curve.loss))
    losses = curve.loss[rows]
    is_zero = losses == 0
    if not is_zero.any() or is_zero[0]:
        return
    begin = int(np.argmax(is_zero))
    loss_before, is_zero_after = float(losses[begin - 1]), is_zero[begin:]
    if (
        loss_before < COLLAPSED_FROM
        or len(is_zero_after) < 2
        or is_zero_after.mean() <= LARGEST_IDLE_SHARE
        or is_rewarded(run, choice, baseline)
    ):
        return
    line = int(curve.line[rows[begin]])
    yield (
        f"the loss is {loss_before:g}, and from line {line} on exactly 0 in "
        f"{is_zero_after.sum()} of {len(is_zero_after)} records"
    )


def _find_lost_loss(choice: Choice, steps: Steps) -> Iterator[str]:
    """Yield a message if a log stops printing losses.

    Applies to dialects that do not print the loss of each step.
    """
    # `validity._find_missing_losses` checks logs that print the loss in each step
    if choice.attempt.log.prints_loss or steps.has_loss[-1]:
        return
    rows = np.flatnonzero(steps.has_loss)
    if len(rows) < FEWEST_LOSSES:
        return
    last_row = int(rows[-1])
    longest_gap = max(int(np.diff(rows).max()), int(rows[0]) + 1)
    without_loss = len(steps) - 1 - last_row
    if without_loss > SILENCE * longest_gap:
        yield (
            f"the loss is printed up to step {steps.index[last_row]}, but in none of the {without_loss} records after it: "
            "some programs omit it once it is not finite"
        )


def _lacks_recorded_loss(
    run: Run, choice: Choice, steps: Steps, baseline: Baseline
) -> bool:
    """True if a run prints at most one loss although the recorded runs printed several."""
    if Observed.LAST_LOSS not in baseline.observed:
        return False
    if is_rewarded(run, choice, baseline):
        return False
    if choice.attempt.log.prints_loss and not steps.has_loss.all():
        return False  # `validity._find_missing_losses` names the steps
    # If one record summarises all steps, the losses printed before it are counted.
    loss_count = len(choice.segment.progress) or np.count_nonzero(steps.has_loss)
    return bool(loss_count <= 1)


def _find_divergence(
    run: Run,
    choice: Choice,
    curve: Curve,
    baseline: Baseline,
    recorded: Mapping[str, float],
) -> Iterator[Problem]:
    """Yield a non-finite validation loss, and last losses that are far too large.

    The last losses are compared with the run's first losses and with the recorded ones.
    """
    if choice.segment.bad_validation_line:
        line = choice.segment.bad_validation_line
        yield Problem(Reason.DIVERGED, "a validation loss is NaN or infinite", line)
    if _is_of_another_stage(choice, curve):
        return
    ends = _compare_ends(curve.loss, curve.line)
    if ends is None:
        return
    text = _describe_divergence(ends, recorded)
    if text and not is_rewarded(run, choice, baseline):
        yield Problem(Reason.DIVERGED, text, ends.line)


def _describe_divergence(ends: Ends, recorded: Mapping[str, float]) -> str:
    """Describe last losses that exceed the first or the recorded losses, or ""."""
    if ends.exceeds(ends.first):
        return f"the loss grows from {ends.first:.4g} at the beginning of the run to {ends.last:.4g} at its end"
    first, last = recorded.get(Observed.FIRST_LOSS), recorded.get(Observed.LAST_LOSS)
    if first is None or last is None or last <= 0:
        return ""
    # If the recorded loss falls far, twice its last value may still be small: the loss
    # must also be more than half of the recorded fall above it.
    if ends.exceeds(last) and ends.last - last > abs(first - last) / 2:
        return f"the loss is {ends.last:.4g} at the end of the run; in the recorded runs it falls to {last:.4g}"
    return ""


def _compare_ends(loss: Floats, line: Integers) -> Ends | None:
    """Return the medians of the first and last losses, None for too few positive
    losses."""
    rows = np.flatnonzero((loss > 0) & (loss < math.inf))
    count = count_ends(len(rows))
    if len(rows) < 2 * count:
        return None
    losses = loss[rows]
    changes = np.abs(np.diff(np.log(losses)))
    usual_change = compute_median(changes)
    if len(losses) >= ENOUGH_FOR_HALVES:  # the calmer half: the other may diverge
        middle = len(changes) // 2
        usual_change = min(
            compute_median(changes[:middle]), compute_median(changes[middle:])
        )
    return Ends(
        first=compute_median(losses[:count]),
        last=compute_median(losses[-count:]),
        # a change has sqrt(2) times the noise of a loss
        noise=NORMAL / math.sqrt(2) * usual_change,
        line=int(line[rows[-count]]),
    )


def count_ends(losses: int) -> int:
    """Return the number of losses to compare at each end of a run with `losses`."""
    return max(FEWEST_LOSSES, math.ceil(END_SHARE * losses))


def _has_moving_loss(curve: Curve) -> bool:
    """True if the losses change from beginning to end by more than noise.

    If there are too few losses for this, each loss must be below the previous loss.
    """
    ends = _compare_ends(curve.loss, curve.line)
    if ends is None:
        changes = np.diff(curve.loss[np.isfinite(curve.loss)])
        return len(changes) > 0 and bool((changes < 0).all())
    change = abs(math.log(ends.last / ends.first))
    return change > DEVIATIONS * ends.noise


# --- columns --------------------------------------------------------------------------


def _make_curve(choice: Choice, steps: Steps) -> Curve:
    """Return the columns of the whole run.

    If one record summarises all steps, the values printed before it are used.
    """
    progress = choice.segment.progress
    if not progress:
        return Curve(steps.loss, steps.grad_norm, steps.learning_rate, steps.line)
    rows = ((entry.loss, entry.grad_norm, entry.learning_rate) for entry in progress)
    loss, norm, rate = np.array(list(rows), dtype=float).T
    line = np.array([entry.line for entry in progress], dtype=np.int64)
    return Curve(loss=loss, grad_norm=norm, learning_rate=rate, line=line)


def _select_losses(choice: Choice, window: Steps) -> WindowValues:
    """Return the losses of the window.

    If the dialect does not print the loss of each step, only the printed losses are
    returned. A rank of another pipeline stage has no losses.
    """
    if _is_of_another_stage(choice, window):
        return WindowValues(window.loss[:0], complete=False)
    if not choice.attempt.log.prints_loss:
        printed = window.loss[window.has_loss]
        return _make_window_values(printed, complete=len(printed) >= FEWEST_LOSSES)
    return _make_window_values(window.loss, complete=bool(window.has_loss.all()))


def _is_of_another_stage(choice: Choice, values: Steps | Curve) -> bool:
    """True if all losses are those of a rank of another pipeline stage.

    Some dialects print a fixed number there, the dialect's `absent_loss`.
    """
    absent_loss = get_dialect(choice.attempt.log.dialect).absent_loss
    return absent_loss is not None and bool((values.loss == absent_loss).all())


def _select_norms(window: Steps) -> WindowValues:
    """Return the gradient norms of the window."""
    complete = bool(window.has_grad_norm.all())
    return _make_window_values(window.grad_norm, complete=complete)


def _make_window_values(values: Floats, *, complete: bool) -> WindowValues:
    """Select the finite values; not complete if a value is missing or not finite."""
    finite = values[np.isfinite(values)]
    all_finite = len(finite) == len(values) > 0
    return WindowValues(finite, complete and all_finite)


def _count_skipped(window: Steps) -> tuple[int, int]:
    """Return the number of skipped steps in the window, and of steps for which it is
    known."""
    is_known = np.isfinite(window.skipped_steps)
    skipped = int(window.skipped_steps[is_known].sum())
    return skipped, int(window.mean_of[is_known].sum())


def _is_stated(choice: Choice, field: StatedField) -> bool:
    """True if the log of the judged segment states a field, with any value."""
    return any(statement.field == field for statement in choice.segment.stated)
