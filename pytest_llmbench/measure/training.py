"""Whether a run trained: a loss, a gradient and a learning rate that move the weights.

Without it a run computes the same and is as fast, or faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.dialects import get_dialect
from pytest_llmbench.core.models import Baseline, Note, NoteCode, Problem, Reason, Run, StatedField, Steps
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.measure.attempts import Choice
from pytest_llmbench.measure.window import Timing

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

ENOUGH_DIGITS = 6  # a loss that stands still in so many digits stands still
FEWEST_EQUAL = 3  # fewer equal values may be chance

DOUBLES = 1.9  # a loss that grows by so much in every step, doubles: it is printed in few digits
# How much larger than at its beginning a loss may be at the end of the window, where a guess would do better
GREW = 10.0
MOST_SKIPPED = 0.5  # with a larger share of skipped steps the window is none of training

REWARDED = re.compile(r"(?:^|[^a-z0-9])(?:dpo|grpo|orpo|simpo|ppo|kto|rloo|rlhf)(?:[^a-z0-9]|$)")
"""Training on rewards or preferences, in the names of a run: its loss may be 0 or negative."""


class WindowValues(NamedTuple):
    """What the window prints of one quantity: its values, and whether each step prints it."""

    values: Floats
    whole: bool

    def are_all(self, value: float) -> bool:
        """Whether every step of the window prints this value."""
        return self.whole and bool((self.values == value).all())

    @property
    def stand_still(self) -> bool:
        """Whether every step of the window prints the same, and there are enough to tell."""
        return len(self.values) >= FEWEST_EQUAL and self.are_all(float(self.values[0]))


def find_problems(run: Run, choice: Choice, timed: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield why the window is none of training; nothing where the log prints no loss, gradient norm or rate."""
    window = timed.window
    if not len(window):
        return
    texts = [*_find_no_update(choice, window), *_find_bad_loss(run, choice, window, baseline)]
    yield from (Problem(Reason.DID_NOT_TRAIN, text, int(window.line[0])) for text in texts)


def list_notes(run: Run, choice: Choice, timed: Timing, baseline: Baseline) -> Iterator[Note]:
    """Yield what looks like a run that did not train, and is none or cannot be told."""
    window = timed.window
    if not len(window):
        return
    line = int(window.line[0])
    loss, norm = _select_losses(choice, window), _select_norms(window)
    if norm.are_all(0.0) and _is_stated(choice, StatedField.ENGINE):  # DeepSpeed keeps the norm to itself
        yield Note(
            NoteCode.NORM_UNKNOWN,
            "the gradient norm is printed as 0 in every step: DeepSpeed does not hand it on",
            line,
        )
    if loss.whole and not is_rewarded(run, choice, baseline) and (loss.are_all(0.0) or loss.stand_still):
        text = f"the loss is {loss.values[0]:g} in every step of the window, in few digits: it does not show training"
        yield Note(NoteCode.LOSS_STANDS_STILL, text, line)
    elif not loss.whole and _is_of_another_stage(choice, window):
        yield Note(NoteCode.UNVERIFIED_LOSS, "this rank prints no loss: it would not show that the run diverged", line)
    skipped, every = _count_skipped(window)
    if skipped:
        text = f"{skipped} of {formatting.count_noun(every, 'step')} in the window were skipped: they moved no weight"
        yield Note(NoteCode.SKIPPED_STEPS, text, line)


def is_rewarded(run: Run, choice: Choice, baseline: Baseline) -> bool:
    """Whether a run learns from rewards or preferences, where a loss of 0 and below is an ordinary one."""
    if choice.segment.rewards or _is_stated(choice, StatedField.OBJECTIVE):
        return True
    key, files = baseline.key, choice.attempt.files
    names = (key.recipe, key.task, key.variant, files.log.name, files.log.parent.name, run.found.folder.name)
    return any(REWARDED.search(name.casefold()) for name in names)


def _find_no_update(choice: Choice, window: Steps) -> Iterator[str]:
    """Yield why no step of the window moved the weights."""
    if _select_norms(window).are_all(0.0) and not _is_stated(choice, StatedField.ENGINE):
        yield "the gradient norm is 0 in every step of the window: nothing was learned"
    if _select_finite(window.learning_rate).are_all(0.0):
        yield "the learning rate is 0 in every step of the window: nothing was learned"
    skipped, every = _count_skipped(window)
    if skipped > MOST_SKIPPED * every:
        yield f"{skipped} of {formatting.count_noun(every, 'step')} in the window were skipped: they moved no weight"


def _find_bad_loss(run: Run, choice: Choice, window: Steps, baseline: Baseline) -> Iterator[str]:
    """Yield why the losses of the window are none of a language model that learns."""
    loss = _select_losses(choice, window)
    if not len(loss.values):
        return
    negative = bool((loss.values < 0).any())
    # Who is rewarded is asked last: it takes longer than all the rest, and few losses are odd.
    if (negative or _is_certain(loss, choice, window)) and not is_rewarded(run, choice, baseline):
        if negative:
            yield f"the loss is {loss.values.min():g}: a cross-entropy is never negative"
        else:
            yield f"the loss is {loss.values[0]:g} in every step of the window"
    if text := _find_explosion(loss.values, baseline):
        yield text


def _is_certain(loss: WindowValues, choice: Choice, window: Steps) -> bool:
    """Whether a loss of 0, or one that stands still, is one by its digits, or the gradient norm agrees."""
    # On synthetic data a loss of four digits stands still though it trains.
    if not (loss.are_all(0.0) or loss.stand_still):
        return False
    exact = loss.are_all(0.0) and get_dialect(choice.attempt.log.dialect).exact_zero
    return exact or choice.segment.loss_digits >= ENOUGH_DIGITS or _select_norms(window).stand_still


def _find_explosion(loss: Floats, baseline: Baseline) -> str:
    """Return that the loss grows beyond that of a guess, empty where it does not."""
    if len(loss) < FEWEST_EQUAL or loss[0] <= 0:
        return ""
    if (loss[1:] >= DOUBLES * loss[:-1]).all():
        return f"the loss doubles in every step of the window, from {loss[0]:g} to {loss[-1]:g}"
    quarter = -(-len(loss) // 4)
    first, last = compute_median(loss[:quarter]), compute_median(loss[-quarter:])
    words = baseline.configuration.architecture.vocabulary_size
    guess = math.log(words) if words else math.inf  # the cross-entropy of equally likely words
    if last > guess and last >= GREW * first:
        return f"the loss grows from {first:g} to {last:g} in the window; a guess has {guess:.3g}"
    return ""


def _select_losses(choice: Choice, window: Steps) -> WindowValues:
    """Return the losses of the window; none where the rank that prints has none."""
    if not choice.attempt.log.prints_loss or _is_of_another_stage(choice, window):
        return WindowValues(window.loss[:0], whole=False)
    return _make_values(window.loss, bool(window.has_loss.all()))


def _is_of_another_stage(choice: Choice, window: Steps) -> bool:
    absent = get_dialect(choice.attempt.log.dialect).absent_loss
    return absent is not None and bool((window.loss == absent).all())


def _select_norms(window: Steps) -> WindowValues:
    return _make_values(window.grad_norm, bool(window.has_grad_norm.all()))


def _select_finite(values: Floats) -> WindowValues:
    return _make_values(values, bool(np.isfinite(values).all()))


def _make_values(values: Floats, whole: bool) -> WindowValues:
    finite = values[np.isfinite(values)]
    return WindowValues(finite, whole and len(finite) == len(values) > 0)


def _count_skipped(window: Steps) -> tuple[int, int]:
    """Return how many steps of the window were skipped, and of how many that is known."""
    counted = np.isfinite(window.skipped_steps)
    return int(window.skipped_steps[counted].sum()), int(window.mean_of[counted].sum())


def _is_stated(choice: Choice, field: StatedField) -> bool:
    return any(statement.field == field for statement in choice.segment.stated)
