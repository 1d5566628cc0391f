"""Whether a run trained: losses, gradients and learning rates that move the weights,
over the whole run.

Without it a run computes the same and is as fast, or faster. Losses are compared with
the run's own first ones and with those of the recorded runs, never with an absolute
level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.log_records import StatedField, Steps
from pytest_llmbench.core.robust import NORMAL, compute_median
from pytest_llmbench.core.run_records import Note, Problem, Run
from pytest_llmbench.logs.dialect_table import get_dialect
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.window import Timing, begins

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

ENOUGH_DIGITS = 6  # a loss that stands still in so many digits stands still
FEWEST_EQUAL = 3  # fewer equal values may be chance

# with a larger share of steps that move no weight, a run or a window does not train
MOST = 0.5
LEADING = (
    20  # steps in which half precision searches for its loss scale, and skips them
)
MOST_SKIPPED = 0.1  # the share of later steps that may be skipped

GREW = 2.0  # how much larger than its first losses the last ones of a run may be
TAIL = 0.1  # the share of a run's losses that are its first ones, and its last ones
FEWEST = 3  # so many losses are the first ones at least
# from so many losses on the calmer half of the run shows the noise: the other one may
# diverge
HALVES = 20
DEVIATIONS = 4  # by so many deviations of single losses medians differ by no chance

# the share of its first value, and of the recorded fall, that a loss has to lose so as
# not to stand still
STUCK = 0.1
# a loss that falls from here to 0 at once does not learn; a smaller one may be rounded
# to 0
COLLAPSED_FROM = 0.1
SILENCE = (
    3  # a loss that is printed no more is missing for so many times its longest gap
)

REWARDED = re.compile(
    r"(?:^|[^a-z0-9])(?:dpo|grpo|orpo|simpo|ppo|kto|rloo|rlhf)(?:[^a-z0-9]|$)"
)
"""Training on rewards or preferences, in the names of a run: its loss may be 0 or
negative."""


class WindowValues(NamedTuple):
    """What the window prints of one quantity: its values, and whether each step prints
    it."""

    values: Floats
    whole: bool

    def are_all(self, value: float) -> bool:
        """Whether every step of the window prints this value."""
        return self.whole and bool((self.values == value).all())

    @property
    def are_values_constant(self) -> bool:
        """Whether every step of the window prints the same, and there are enough to
        tell."""
        return len(self.values) >= FEWEST_EQUAL and self.are_all(float(self.values[0]))


class Curve(NamedTuple):
    """What a run prints from its first to its last record; NaN for what a record does
    not print."""

    loss: Floats
    grad_norm: Floats
    learning_rate: Floats
    line: Integers


class Ends(NamedTuple):
    """The medians of the first and the last losses of a run, and the noise of a single
    one in logarithms."""

    first: float
    last: float
    noise: float
    line: int  # of the first of the last losses

    def exceed(self, reference: float) -> bool:
        """Whether the last losses are larger than a reference by more than a factor and
        chance."""
        return self.last > reference * max(
            GREW, math.exp(min(DEVIATIONS * self.noise, 700.0))
        )


def find_problems(
    run: Run, choice: Choice, timed: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield the evidence that a run did not train; nothing if the log prints no loss,
    gradient norm or rate."""
    window = timed.window
    if not len(window):
        return
    curve, recorded = _make_curve(choice, timed.steps), baseline.observed
    texts = [
        *_find_no_update(choice, timed, curve, recorded),
        *_find_bad_loss(run, choice, window, baseline, recorded),
        *_find_collapse(run, choice, curve, baseline),
        *_find_lost_loss(choice, timed.steps),
    ]
    yield from (
        Problem(Reason.DID_NOT_TRAIN, text, int(window.line[0])) for text in texts
    )
    yield from _find_divergence(run, choice, curve, baseline, recorded)
    if _lacks_recorded_loss(run, choice, timed.steps, baseline):
        yield Problem(
            Reason.LOSS_MISSING,
            "the log prints no loss on its way, the recorded runs printed theirs: it would not show that the run diverged",
            int(window.line[0]),
        )


def list_notes(
    run: Run, choice: Choice, timed: Timing, baseline: Baseline
) -> Iterator[Note]:
    """Yield what looks like a run that did not train, and is none or cannot be told."""
    window = timed.window
    if not len(window):
        return
    line = int(window.line[0])
    loss, norm = _select_losses(choice, window), _select_norms(window)
    if norm.are_all(0.0) and not any(
        _find_zero_norm(choice, timed, _make_curve(choice, timed.steps), {})
    ):
        text = "the gradient norm is printed as 0 in every step, though the loss moves: it is not handed on, or rounded"
        if _is_stated(choice, StatedField.ENGINE):  # DeepSpeed keeps the norm to itself
            text = "the gradient norm is printed as 0 in every step: DeepSpeed does not hand it on"
        yield Note(NoteCode.NORM_UNKNOWN, text, line)
    if (
        loss.whole
        and not is_rewarded(run, choice, baseline)
        and (loss.are_all(0.0) or loss.are_values_constant)
    ):
        text = f"the loss is {loss.values[0]:g} in every step of the window, in few digits: it does not show training"
        yield Note(NoteCode.LOSS_STANDS_STILL, text, line)
    elif not loss.whole and _is_of_another_stage(choice, window):
        yield Note(
            NoteCode.UNVERIFIED_LOSS,
            "this rank prints no loss: it would not show that the run diverged",
            line,
        )
    skipped, every = _count_skipped(window)
    if skipped:
        text = f"{skipped} of {formatting.count_noun(every, 'step')} in the window were skipped: they moved no weight"
        yield Note(NoteCode.SKIPPED_STEPS, text, line)


def observe(
    run: Run, choice: Choice, timed: Timing, baseline: Baseline
) -> Iterator[tuple[Observed, float]]:
    """Yield what a recording keeps of losses and gradients; no loss of training on
    rewards."""
    if not len(timed.window):
        return
    curve, window = _make_curve(choice, timed.steps), timed.window
    if choice.segment.progress:
        inside = np.ones(len(curve.loss), dtype=np.bool_)
    else:
        index = timed.steps.index
        inside = (index >= begins(window)[0]) & (index <= window.index[-1])
    norms = curve.grad_norm[inside & np.isfinite(curve.grad_norm)]
    if len(norms):
        yield Observed.GRADIENT_NORM, compute_median(norms)
    ends, of_window = (
        _compare_ends(curve.loss, curve.line),
        curve.loss[inside & (curve.loss > 0)],
    )
    if ends and len(of_window) and not is_rewarded(run, choice, baseline):
        yield Observed.FIRST_LOSS, ends.first
        yield (
            Observed.LAST_LOSS,
            compute_median(of_window[-_count_ends(len(of_window)) :]),
        )


def is_rewarded(run: Run, choice: Choice, baseline: Baseline) -> bool:
    """Whether a run learns from rewards or preferences, where a loss of 0 and below is
    an ordinary one."""
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


# --- steps that move no weight --------------------------------------------------------


def _find_no_update(
    choice: Choice, timed: Timing, curve: Curve, recorded: Mapping[str, float]
) -> Iterator[str]:
    """Yield the evidence that most steps of the run or of the window moved no
    weight."""
    yield from _find_zero_norm(choice, timed, curve, recorded)
    yield from _find_zero_rate(timed.window, curve)
    skipped, every = _count_skipped(timed.window)
    if skipped > MOST * every:
        yield f"{skipped} of {formatting.count_noun(every, 'step')} in the window were skipped: they moved no weight"
    else:
        yield from _find_skipped(timed.steps)


def _find_zero_norm(
    choice: Choice, timed: Timing, curve: Curve, recorded: Mapping[str, float]
) -> Iterator[str]:
    """Yield a gradient norm of 0 in most steps, if the loss does not move either and
    recorded runs had a norm."""
    zeros = curve.grad_norm == 0
    if (
        not zeros.any()
        or _is_stated(choice, StatedField.ENGINE)
        or recorded.get(Observed.GRADIENT_NORM) == 0
    ):
        return
    in_window = timed.window.grad_norm == 0
    if in_window.mean() <= MOST and zeros.mean() <= MOST:
        return
    if not _moves(curve):
        where = (
            "every step of the window"
            if in_window.all()
            else f"{zeros.sum()} of {len(zeros)} records of the run"
        )
        yield f"the gradient norm is 0 in {where}: nothing was learned"


def _find_zero_rate(window: Steps, curve: Curve) -> Iterator[str]:
    """Yield a learning rate of 0 in most steps of the run or of the window."""
    rates = curve.learning_rate
    if not (rates == 0).any():
        return
    inner, inside = (
        rates[1:-1],
        window.learning_rate,
    )  # a warm-up may begin with 0, and a schedule end with it
    if len(inside) >= FEWEST_EQUAL and (inside == 0).all():
        yield "the learning rate is 0 in every step of the window: nothing was learned"
    elif len(inner) and (inner == 0).mean() > MOST:
        yield f"the learning rate is 0 in {(rates == 0).sum()} of {len(rates)} records of the run: they moved no weight"
    elif len(inside) >= FEWEST_EQUAL and (inside == 0).mean() > MOST:
        zeros = (inside == 0).sum()
        yield f"the learning rate is 0 in {zeros} of {len(inside)} records of the window: they moved no weight"


def _find_skipped(steps: Steps) -> Iterator[str]:
    """Yield that too many steps were skipped after those in which a loss scale is
    searched for."""
    counted = np.isfinite(steps.skipped_steps)
    skipped = steps.skipped_steps[counted]
    if not skipped.any():
        return
    first, several = begins(steps)[counted], steps.mean_of[counted]
    leading = np.clip(begins(steps)[0] + LEADING - first, 0, several)
    late, every = (
        int(np.maximum(skipped - leading, 0).sum()),
        int((several - leading).sum()),
    )
    if late > MOST_SKIPPED * every:
        yield (
            f"{late} of {formatting.count_noun(every, 'step')} after the first {LEADING} were skipped: "
            "they moved no weight"
        )


# --- losses that are none of a model that learns --------------------------------------


def _find_bad_loss(
    run: Run,
    choice: Choice,
    window: Steps,
    baseline: Baseline,
    recorded: Mapping[str, float],
) -> Iterator[str]:
    """Yield why the losses of the window are none of a language model that learns."""
    loss = _select_losses(choice, window)
    if not len(loss.values):
        return
    negative = bool((loss.values < 0).any())
    # Who is rewarded is asked last: it takes longer than all the rest, and few losses
    # are odd.
    stuck = _describe_stuck_loss(loss, recorded)
    if (negative or stuck or _is_certain(loss, choice, window)) and not is_rewarded(
        run, choice, baseline
    ):
        if negative:
            yield f"the loss is {loss.values.min():g}: a cross-entropy is never negative"
        else:
            yield f"the loss is {loss.values[0]:g} in every step of the window{stuck}"


def _describe_stuck_loss(loss: WindowValues, recorded: Mapping[str, float]) -> str:
    """Return how a loss that stands still differs from that of the recorded runs, empty
    if it need not differ."""
    first, last = recorded.get(Observed.FIRST_LOSS), recorded.get(Observed.LAST_LOSS)
    if first is None or last is None or not loss.are_values_constant:
        return ""
    value = float(loss.values[0])
    fell = first - last
    if fell > STUCK * first and value - last > STUCK * fell:
        return f", that of the recorded runs falls from {first:.4g} to {last:.4g}"
    if value == 0 and last >= COLLAPSED_FROM:
        return f", that of the recorded runs is {last:.4g} there"
    return ""


def _is_certain(loss: WindowValues, choice: Choice, window: Steps) -> bool:
    """Whether a loss of 0, or one that stands still, is one by its digits, or the
    gradient norm agrees."""
    # On synthetic data a loss of four digits stands still though it trains.
    if not (loss.are_all(0.0) or loss.are_values_constant):
        return False
    exact = loss.are_all(0.0) and get_dialect(choice.attempt.log.dialect).exact_zero
    return (
        exact
        or choice.segment.loss_digits >= ENOUGH_DIGITS
        or _select_norms(window).are_values_constant
    )


def _find_collapse(
    run: Run, choice: Choice, curve: Curve, baseline: Baseline
) -> Iterator[str]:
    """Yield a loss that falls to exactly 0 at once and stays there: an overflow that
    was counted as 0."""
    printed = np.flatnonzero(np.isfinite(curve.loss))
    loss = curve.loss[printed]
    zeros = loss == 0
    if not zeros.any() or zeros[0]:
        return
    begin = int(np.argmax(zeros))
    before, after = float(loss[begin - 1]), zeros[begin:]
    if (
        before < COLLAPSED_FROM
        or len(after) < 2
        or after.mean() <= MOST
        or is_rewarded(run, choice, baseline)
    ):
        return
    line = int(curve.line[printed[begin]])
    yield f"the loss is {before:g}, and from line {line} on exactly 0 in {after.sum()} of {len(after)} records"


def _find_lost_loss(choice: Choice, steps: Steps) -> Iterator[str]:
    """Yield a loss that is printed for a while and then no more, in a log that need not
    print it at each step."""
    if (
        choice.attempt.log.prints_loss or steps.has_loss[-1]
    ):  # else `_find_unprinted_losses` of `validity` finds it
        return
    rows = np.flatnonzero(steps.has_loss)
    if len(rows) < FEWEST:
        return
    longest = max(int(np.diff(rows).max()), int(rows[0]) + 1)
    silent = len(steps) - 1 - int(rows[-1])
    if silent > SILENCE * longest:
        yield (
            f"the loss is printed up to step {steps.index[rows[-1]]}, and in none of the {silent} records after it: "
            "some programs leave it out once it is no number"
        )


def _lacks_recorded_loss(
    run: Run, choice: Choice, steps: Steps, baseline: Baseline
) -> bool:
    """Whether a run prints no loss on its way, though the recorded ones did: at most
    that of all steps at its end, which is no course."""
    if Observed.LAST_LOSS not in baseline.observed or is_rewarded(
        run, choice, baseline
    ):
        return False
    if choice.attempt.log.prints_loss and not steps.has_loss.all():
        return False  # `_find_unprinted_losses` of `validity` names the steps
    printed = len(choice.segment.progress) or np.count_nonzero(steps.has_loss)
    return bool(printed <= 1)


def _find_divergence(
    run: Run,
    choice: Choice,
    curve: Curve,
    baseline: Baseline,
    recorded: Mapping[str, float],
) -> Iterator[Problem]:
    """Yield last losses far above the run's first ones or the recorded ones, and a
    validation loss without a number."""
    if choice.segment.bad_validation_line:
        line = choice.segment.bad_validation_line
        yield Problem(Reason.DIVERGED, "a validation loss is NaN or infinite", line)
    ends = (
        None
        if _is_of_another_stage(choice, curve)
        else _compare_ends(curve.loss, curve.line)
    )
    if ends is None:
        return
    text = _describe_divergence(ends, recorded)
    if text and not is_rewarded(run, choice, baseline):
        yield Problem(Reason.DIVERGED, text, ends.line)


def _describe_divergence(ends: Ends, recorded: Mapping[str, float]) -> str:
    """Return how the last losses exceed those that they are compared with, empty if
    they do not."""
    if ends.exceed(ends.first):
        return f"the loss grows from {ends.first:.4g} at the beginning of the run to {ends.last:.4g} at its end"
    first, last = recorded.get(Observed.FIRST_LOSS), recorded.get(Observed.LAST_LOSS)
    if first is None or last is None or last <= 0:
        return ""
    # Where the recorded loss falls by much, twice its last value may be little: it has
    # to lose half of the fall, too.
    if ends.exceed(last) and ends.last - last > abs(first - last) / 2:
        return f"the loss is {ends.last:.4g} at the end of the run, that of the recorded runs falls to {last:.4g}"
    return ""


def _compare_ends(loss: Floats, line: Integers) -> Ends | None:
    """Return the first and last losses of a run, None if it prints too few that are
    positive numbers."""
    rows = np.flatnonzero((loss > 0) & (loss < math.inf))
    count = _count_ends(len(rows))
    if len(rows) < 2 * count:
        return None
    values = loss[rows]
    changes = np.abs(np.diff(np.log(values)))
    middle = len(changes) // 2
    parts = (
        (changes[:middle], changes[middle:]) if len(values) >= HALVES else (changes,)
    )
    noise = NORMAL / math.sqrt(2) * min(compute_median(part) for part in parts)
    return Ends(
        compute_median(values[:count]),
        compute_median(values[-count:]),
        noise,
        int(line[rows[len(rows) - count]]),
    )


def _count_ends(losses: int) -> int:
    """Return how many of so many losses are the first ones of a run, and the last
    ones."""
    return max(FEWEST, math.ceil(TAIL * losses))


def _moves(curve: Curve) -> bool:
    """Whether the losses change from the beginning to the end by more than chance; of
    few each has to fall."""
    ends = _compare_ends(curve.loss, curve.line)
    if ends is None:
        changes = np.diff(curve.loss[np.isfinite(curve.loss)])
        return len(changes) > 0 and bool((changes < 0).all())
    change, noise = abs(math.log(ends.last / ends.first)), DEVIATIONS * ends.noise
    return change > noise


# --- columns --------------------------------------------------------------------------


def _make_curve(choice: Choice, steps: Steps) -> Curve:
    """Return what the whole run prints; of a single record of all steps what was
    printed before it."""
    progress = choice.segment.progress
    if not progress:
        return Curve(steps.loss, steps.grad_norm, steps.learning_rate, steps.line)
    rows = ((each.loss, each.grad_norm, each.learning_rate) for each in progress)
    loss, norm, rate = np.array(list(rows), dtype=float).T
    return Curve(
        loss, norm, rate, np.array([each.line for each in progress], dtype=np.int64)
    )


def _select_losses(choice: Choice, window: Steps) -> WindowValues:
    """Return the losses of the window, those of some steps where a log need not print
    all; none where the rank that prints has none."""
    if _is_of_another_stage(choice, window):
        return WindowValues(window.loss[:0], whole=False)
    if not choice.attempt.log.prints_loss:
        printed = window.loss[window.has_loss]
        return _make_values(printed, len(printed) >= FEWEST)
    return _make_values(window.loss, bool(window.has_loss.all()))


def _is_of_another_stage(choice: Choice, values: Steps | Curve) -> bool:
    absent = get_dialect(choice.attempt.log.dialect).absent_loss
    return absent is not None and bool((values.loss == absent).all())


def _select_norms(window: Steps) -> WindowValues:
    return _make_values(window.grad_norm, bool(window.has_grad_norm.all()))


def _make_values(values: Floats, whole: bool) -> WindowValues:
    finite = values[np.isfinite(values)]
    return WindowValues(finite, whole and len(finite) == len(values) > 0)


def _count_skipped(window: Steps) -> tuple[int, int]:
    """Return how many steps of the window were skipped, and of how many that is
    known."""
    counted = np.isfinite(window.skipped_steps)
    return int(window.skipped_steps[counted].sum()), int(window.mean_of[counted].sum())


def _is_stated(choice: Choice, field: StatedField) -> bool:
    return any(statement.field == field for statement in choice.segment.stated)
