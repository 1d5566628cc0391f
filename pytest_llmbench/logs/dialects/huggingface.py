"""Hugging Face Trainer: `{'train_runtime': 2577.7505, ..., 'train_steps_per_second':
0.745, 'train_loss': 1.5}`.

While it trains it prints `{'loss': 1.23, 'grad_norm': 0.45, 'learning_rate': 1e-05,
'epoch': 0.1}`: such a record has no step and no time. What all of a run say together
stands in the record of the whole run.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_llmbench.core.log_records import DropReason, ProgressRecord
from pytest_llmbench.logs.progress_bars import Bar, list_bars
from pytest_llmbench.logs.scan import REACH_BACK
from pytest_llmbench.logs.step_records import (
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    find_line_stop,
    find_median,
    get_printed_unit,
    get_significant_unit,
    show_same_time,
)

RESUMING = b"ing training from "
# What stands before and behind it, of Trainer to 4.x, and from 5.0 on.
WORD = re.compile(rb"(?:Continu|(Resum))\Z")
RESUMED = re.compile(
    RESUMING
    + rb"(checkpoint with epoch \d{1,9} and )?global step (\d{1,15})[ \t]*[\r\n]"
)
PLANNED = re.compile(
    rb"Total optimization steps = (\d{1,15}(?:,\d{3}){0,4})[ \t]*[\r\n]"
)
FIELD = re.compile(
    rb"\s*(['\"])([A-Za-z][ !#-&(-z|~]{0,99})\1: ('[^'\r\n]{0,99}'|\"[^\"\r\n]{0,99}\"|[^\s,{}'\"]{1,40})\s*([,}])"
)
FINITE = re.compile(rb"\d{1,18}(?:\.\d{1,40})?(?:e[+-]\d\d)?")
NUMBER = re.compile(rb"-?(?:%b|%b)" % (FINITE.pattern, NOT_FINITE))
QUOTES = b"'\""
# The step of the record, in trainer_state.json before and in ms-swift behind its time.
STEP_BEFORE = re.compile(rb"\{[^{}]*?\"step\": (\d{1,15}),[^{}]*\Z")
LOSS_BEFORE = re.compile(rb"\{[^{}]*?\"train_loss\": ([^\s,]{1,40}),[^{}]*\Z")
STEP_BEHIND = b"global_step/max_steps"
STEP_OF = re.compile(rb"['\"](\d{1,15})/(\d{1,15})['\"]")

RUNTIME, RATE, LOSS = b"train_runtime", b"train_steps_per_second", b"train_loss"
SAMPLES, TOKENS = b"train_samples_per_second", b"train_tokens_per_second"
# The tokens of the run so far: of Trainer, and of TRL.
SEEN = (b"num_input_tokens_seen", b"num_tokens")
SEEN_PRINTED = re.compile(
    rb"'(?:num_input_tokens_seen|num_tokens)': '?(\d{1,18}(?:\.\d{1,9})?(?:e\+\d\d)?)'?(?:,|\Z)"
)
# To what Trainer rounds a number; newer versions then print it as a text of four
# significant digits.
UNITS = {RUNTIME: 0.0001, RATE: 0.001}
DIGITS = 4

# So many lines apart processes print their records of one run: bars of another run
# would stand between them.
CLOSE = 1

# What a bar may be behind: it is not drawn at every step.
LATE_SECONDS = 1.0

# How far the bar's whole seconds may be from the runtime, of which they are no more
# than a part.
SAME_SECONDS, SAME_SHARE = 2.0, 0.02

# The share of the steps that a bar may lack at its beginning: it is not drawn at every
# step.
UNDRAWN = 0.02
# So many steps, and this share of all, a bar may have drawn at its beginning though its
# process did not make them.
FEW_SKIPPED, SKIPPED_SHARE = 2.0, 0.005

LEARNING_RATE = b"'learning_rate': "
LEARNING_RATE_OF_STATE = b'"learning_rate": '

EPOCH_BEFORE = re.compile(rb"\{[^{}]*?\"epoch\": (\d{1,9}(?:\.\d{1,40})?),[^{}]*\Z")
# Trainer rounds it to two digits behind the point, or more.
EPOCH_UNIT = 0.01
EPOCH = re.compile(rb"'epoch': ('?\d{1,9}(?:\.\d{1,40})?)\b")

# A number; newer versions print it as a text.
VALUE = rb"'?(-?(?:\d{1,18}(?:\.\d{1,40})?(?:e[+-]?\d{1,3})?|%b))'?" % NOT_FINITE
BEFORE = re.compile(
    rb"\{'loss': %b, (?:[^{}\r\n]*?'grad_norm': %b, )?[^{}\r\n]*\Z" % (VALUE, VALUE)
)
AFTER = re.compile(rb"'learning_rate': %b[,}]([^{}\r\n]*)" % VALUE)
PROGRESS = (b"loss", b"grad_norm", b"learning_rate")
# Keys that only training on rewards or preferences has.
REWARD_NAMES = re.compile(rb"(?:rewards?(?:_std)?|objective|logps)(?:/|\Z)")
REWARDS = re.compile(rb"'(?:rewards?(?:_std)?|objective|logps)['/]")

# How much smaller the mean of all losses may be than that of the printed ones, which
# are rounded; and half a unit.
ALIKE = 0.97
LOSS_ROUNDING = 0.00005

# So many last records without a number are a run that diverged; a single one may be a
# step that was skipped.
LAST_BAD = 2


class Span(NamedTuple):
    """How many steps there can be, by what is printed in few digits."""

    least: float
    most: float


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return what a record says, with mean_of 0 where it is of no whole run; see
    `_read_run`."""
    if text.startswith(LEARNING_RATE_OF_STATE, start):
        return _read_state(text, start, end, origin)
    if not text.startswith(LEARNING_RATE, start):
        return _read_run(text, start, end, origin)
    before, after = (
        BEFORE.search(text[max(0, start - REACH_BACK) : start]),
        AFTER.match(text, start, end),
    )
    if before is None or after is None:
        return None
    epoch, seen = EPOCH.search(after[2]), SEEN_PRINTED.search(after[2])
    record = _build_progress(
        origin,
        before[1],
        before[2],
        epoch[1] if epoch else b"",
        seen[1] if seen else b"",
    )
    rewards = any(map(REWARDS.search, (before[0], after[2])))
    return record._replace(rate=float(after[1]), rewards=rewards)


def _build_progress(
    origin: RecordOrigin,
    loss: bytes,
    grad_norm: bytes | None,
    epoch: bytes,
    tokens_seen: bytes,
) -> StepRecord:
    """Build a record that is printed while a run trains; texts are empty if absent."""
    return StepRecord(
        origin,
        0,
        resolution=_get_epoch_unit(epoch) if epoch else 0.0,
        loss=float(loss),
        grad_norm=None if grad_norm is None else float(grad_norm),
        mean_of=0,
        consumed=float(epoch.strip(QUOTES)) if epoch else NAN,
        step_tokens=float(tokens_seen) if tokens_seen else NAN,
    )


def _get_epoch_unit(text: bytes) -> float:
    """Return one unit in the last place of an epoch; newer versions print a text of
    four significant digits."""
    number = text.strip(QUOTES)
    rounded = (
        EPOCH_UNIT if number == text else get_significant_unit(float(number), DIGITS)
    )
    return min(rounded, get_printed_unit(number))


def _read_state(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | None:
    """Return the record around `text[start]` of a state, over several lines, or of a
    file with one on each line."""
    begin = text.rfind(b"{", max(0, start - REACH_BACK), start)
    values = (read_fields(text, begin + 1, end) if begin >= 0 else None) or {}
    plain = {name: value.strip(QUOTES) for name, value in values.items()}
    numbers = {name: plain[name] for name in PROGRESS if name in plain}
    if b"loss" not in numbers or not all(map(NUMBER.fullmatch, numbers.values())):
        return None
    epoch = values.get(b"epoch", b"")
    seen = next((plain[name] for name in SEEN if name in plain), b"")
    record = _build_progress(
        origin,
        numbers[b"loss"],
        numbers.get(b"grad_norm"),
        epoch if FINITE.fullmatch(epoch) else b"",
        seen if FINITE.fullmatch(seen) else b"",
    )
    return record._replace(
        rate=float(numbers.get(b"learning_rate", b"nan")),
        rewards=any(map(REWARD_NAMES.match, values)),
    )


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return each run once, with what the records before its own say together, and what
    contradicts its time."""
    runs = _join_runs([record for record in records if record.mean_of], tally)
    joined = []
    others = [record for record in records if not record.mean_of]
    offsets = [record.origin.offset for record in others]
    before = -1
    for run in runs:
        own = others[
            bisect_right(offsets, before) : bisect_left(offsets, run.origin.offset)
        ]
        before = run.origin.offset
        progress = [record for record in own if record.bar is None]
        doubt = run.doubt or _explain_contradiction(run, own, progress)
        sound = run._replace(doubt=doubt, bar=None, since=None, stamp=NAN)
        whole = _add_progress(sound, progress) if progress else sound
        joined.append(whole._replace(consumed=NAN))  # it has held the epochs of the run
    return joined


def _explain_contradiction(
    run: StepRecord, own: Sequence[StepRecord], progress: Sequence[StepRecord]
) -> str:
    """Return what in the log shows that the time of a run is not that of all its steps;
    empty if nothing does."""
    if run.mean_of < run.step:  # the log prints from which step on it was resumed
        return ""
    beginning = [record for record in own if record.bar is not None]
    return _explain_bars(run, beginning) or _explain_losses(
        run, _find_last_start(progress)
    )


def _find_last_start(own: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the records since the epoch went back: those before are of a run that
    died."""
    back = (
        place
        for place in range(len(own) - 1, 0, -1)
        if own[place].consumed < own[place - 1].consumed
    )
    return own[next(back, 0) :]


def _explain_bars(run: StepRecord, beginning: Sequence[StepRecord]) -> str:
    """Return that a run counts other steps than its bar draws, by how the bar began;
    empty if they agree."""
    steps, tolerance = run.total or run.step, _get_width(run) / 2 + 1
    for first in reversed(beginning):
        skipped = _count_skipped(first, run.stamp)
        if abs((first.total or 0) - steps) <= tolerance:
            if skipped > max(FEW_SKIPPED, SKIPPED_SHARE * steps):
                return (
                    f"the bar begins at step {first.step} of {first.total}: resumed, its time is that of the last "
                    f"steps only, and its rate counts all"
                )
            return ""
        if (
            run.bar
            and run.bar[1] == first.total
            and skipped + FEW_SKIPPED < first.total - steps
        ):
            return f"the rate is of {steps} steps, the bar of {first.total} in the same time"
    return ""


def _count_skipped(first: StepRecord, runtime: float) -> float:
    """Return how many steps a bar shows as done at its first drawing that its process
    did not make."""
    done, following = first.bar or (0, 0)
    left = (first.total or 0) - done
    seconds = (runtime - first.stamp) / left if left > 0 else NAN
    made = (first.stamp + 1) / seconds if seconds > 0 else NAN
    skipped = max(0.0, done - made) if math.isfinite(made) else 0.0
    return (
        min(skipped, done - 1.0) if following == done + 1 else skipped
    )  # else it is not drawn at every step


def _explain_losses(run: StepRecord, own: Sequence[StepRecord]) -> str:
    """Return that the losses are those of fewer steps than the rate counts; empty if
    they agree.

    Trainer, to 5.18, divides the losses since it was started by all steps, also by
    those that were done before.
    """
    printed = [
        (record.consumed, record.loss, record.resolution)
        for record in own
        if record.loss is not None
    ]
    if run.loss is None or not all(math.isfinite(loss) for _, loss, _ in printed):
        return ""
    if not printed:
        if run.since is None:
            return ""
        return "no loss in trainer_state.json shows whether it was resumed, and its time that of the last steps only"
    least = _compute_least_mean(run, printed)
    if least <= 0 or not run.loss < ALIKE * least - LOSS_ROUNDING:
        return ""
    mean = sum(loss for _, loss, _ in printed) / len(printed)
    return f"train_loss {run.loss:g} beside losses of {mean:g}: resumed, its time is that of the last steps only"


def _compute_least_mean(
    run: StepRecord, printed: Sequence[tuple[float, float, float]]
) -> float:
    """Return the lowest mean of all losses that epochs, printed losses and units of the
    epoch allow.

    The steps behind the last printed loss may have had none. Each loss is the mean of
    the steps since the one before; the first one may be that of a single step, or of
    the usual number in a run that was resumed.
    """
    losses = [loss for _, loss, _ in printed]
    if min(losses) <= 0:
        return 0.0
    alike = min(sum(losses) / (len(losses) + 1), sum(losses[1:]) / len(losses))
    end, steps = run.consumed, _count_all_steps(run)
    if not end > 0 or any(
        not 0 < epoch <= end * (1 + UNDRAWN) for epoch, _, _ in printed
    ):
        return alike if steps <= run.step else 0.0
    begin = 1 - run.step / steps  # before it, another process made the steps
    places = [(min(epoch / end, 1.0) - begin) / (1 - begin) for epoch, _, _ in printed]
    kept = [row for row, place in enumerate(places) if place > 0]
    if not kept:
        return 0.0
    places, losses = [places[row] for row in kept], [losses[row] for row in kept]
    gaps = [after - before for before, after in pairwise(places)]
    later = sum(gap * loss for gap, loss in zip(gaps, losses[1:], strict=True))
    lowest = [places[0] * losses[0] + later]
    if gaps:
        usual = min(places[0], find_median(gaps))
        lowest.append((usual * losses[0] + later) / (usual + 1 - places[0]))
    error = min(unit for _, _, unit in printed) / end / (1 - begin) * max(losses)
    by_epochs = min(lowest) - error
    return by_epochs if len(kept) < len(printed) else max(alike, by_epochs)


def _count_all_steps(run: StepRecord) -> int:
    """Return the number of the last step: that of all, if a resumed run counts those
    that were left alone."""
    named = run.since[0] if run.since else run.bar[1] if run.bar else 0
    return max(run.step, named)


def _get_width(run: StepRecord) -> float:
    """Return how many numbers of steps the digits of a run leave; 0 for one."""
    width = run.resolution / run.seconds * run.step if run.possible else 0.0
    return width if width > 1 else 0.0


def _add_progress(run: StepRecord, own: Sequence[StepRecord]) -> StepRecord:
    """Return the record of a run with its largest learning rate, its gradient norm, and
    a loss that is none at the end.

    Trainer counts a loss that is no number as 0: the mean of the whole run looks sound.
    """
    return run._replace(
        loss=NAN if _ends_badly([record.loss for record in own]) else run.loss,
        grad_norm=_combine_norms(
            [record.grad_norm for record in own if record.grad_norm is not None]
        ),
        rate=max(record.rate for record in own),
        rewards=any(record.rewards for record in own),
        progress=tuple(map(_make_progress, _find_last_start(own))),
        step_tokens=_count_tokens(run, _find_last_start(own)),
    )


def _make_progress(record: StepRecord) -> ProgressRecord:
    loss, norm = record.loss, record.grad_norm
    return ProgressRecord(
        record.origin.line,
        NAN if loss is None else loss,
        NAN if norm is None else norm,
        record.rate,
    )


def _count_tokens(run: StepRecord, own: Sequence[StepRecord]) -> float:
    """Return the tokens of a step: those that the run prints, else those seen by the
    last record that counts them."""
    if not math.isnan(run.step_tokens) or run.mean_of < run.step:
        return run.step_tokens
    counting = [
        record for record in own if record.step_tokens > 0 and record.consumed > 0
    ]
    if not counting or not run.consumed >= counting[-1].consumed:
        return NAN
    # The last record may be some steps before the end: its share of the epochs tells
    # how many it counts.
    return counting[-1].step_tokens / (run.step * counting[-1].consumed / run.consumed)


def _combine_norms(norms: Sequence[float]) -> float | None:
    """Return one gradient norm for many: NaN where the last ones are none, else the
    largest that is a number."""
    if not norms:
        return None
    return (
        NAN
        if _ends_badly(norms)
        else max(norm for norm in norms if math.isfinite(norm))
    )


def _ends_badly(values: Sequence[float | None]) -> bool:
    last = values[-LAST_BAD:]
    return all(value is not None and not math.isfinite(value) for value in last)


def _read_run(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return the mean of a whole run as one record: its last step, the mean of all its
    steps.

    The number of steps is time x rate, which leaves a choice where the rate has few
    digits: then the progress bar before it decides, and without one the time of a step
    is as uncertain as that. Trainer divides all steps that were planned by the time,
    even if it stopped early; where the bar shows that, the segment is not finished.
    """
    if text.startswith(RESUMING, start):
        return _read_resumed(text, start, end, origin)
    values = _read_values(text, start, end)
    if values is None:
        return TruncatedRecord(origin, text[start : find_line_stop(text, start, end)])
    (runtime, unit), (rate, rate_unit) = (
        _parse_printed(values[name], UNITS[name]) for name in (RUNTIME, RATE)
    )
    planned = Span(
        (runtime - unit / 2) * (rate - rate_unit / 2),
        (runtime + unit / 2) * (rate + rate_unit / 2),
    )
    before = text[max(0, start - REACH_BACK) : start]
    in_state = STEP_BEFORE.search(before)
    behind = STEP_OF.fullmatch(values.get(STEP_BEHIND, b""))
    step = in_state or (
        behind if behind and planned.least <= int(behind[2]) <= planned.most else None
    )
    done, total, is_certain = _count_steps(
        before, runtime, planned, int(step[1]) if step else 0
    )
    if runtime <= 0 or done <= 0:
        return TruncatedRecord(origin, text[start : find_line_stop(text, start, end)])
    seconds = runtime / done
    resolution = (
        unit / done if is_certain else seconds * (planned.most - planned.least) / total
    )
    own = _find_bar(before, runtime)
    samples, tokens = (_read_rate(values, name) for name in (SAMPLES, TOKENS))
    return StepRecord(
        origin,
        done,
        seconds,
        resolution,
        total,
        loss=_read_loss(values),
        mean_of=done,
        stamp=runtime,
        consumed=_read_epoch(values, before) or NAN,
        since=(int(in_state[1]), NAN) if in_state else None,
        bar=(own.done, own.total) if own else None,
        doubt=_explain_own_bar(own, runtime, planned),
        samples=samples
        * done
        / total,  # Trainer divides the samples that were planned by the time, too
        step_tokens=tokens * runtime / total,
    )


def _read_resumed(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | None:
    """Return the step that a run goes on from, with the number of all if that stands
    before it.

    `rounded` marks it, and `precise` that the rate counts all steps: Trainer from 5.19
    on counts those that are left.
    """
    word, resumed = (
        WORD.search(text, max(0, start - REACH_BACK), start),
        RESUMED.match(text, start, end),
    )
    if word is None or resumed is None or bool(word[1]) != bool(resumed[1]):
        return None
    planned = PLANNED.findall(text, max(0, start - REACH_BACK), start)
    total = int(planned[-1].replace(b",", b"")) if planned else None
    return StepRecord(
        origin, int(resumed[2]), total=total, rounded=True, precise=word[1] is None
    )


def _read_epoch(values: dict[bytes, bytes], before: bytes) -> float:
    """Return the epoch at the end of a run, which stands before its time in a state; 0
    without any."""
    text = values.get(b"epoch", b"").strip(QUOTES)
    if FINITE.fullmatch(text):
        return float(text)
    in_state = EPOCH_BEFORE.search(before)
    return float(in_state[1]) if in_state else 0.0


def _find_bar(before: bytes, runtime: float) -> Bar | None:
    """Return the last bar before a record that shows its runtime, or more than that."""
    shown = (bar for bar in reversed(list_bars(before)) if bar.done > 0)
    return next(
        (
            bar
            for bar in shown
            if bar.seconds >= runtime * (1 - SAME_SHARE) - SAME_SECONDS
        ),
        None,
    )


def _explain_own_bar(bar: Bar | None, runtime: float, planned: Span) -> str:
    """Return that the bar of a run shows more time than its record, or fewer steps;
    empty if it does not."""
    if bar is None:
        return ""
    if (
        bar.seconds > runtime * (1 + SAME_SHARE) + SAME_SECONDS
        and planned.least <= bar.total <= planned.most
    ):
        return f"train_runtime is {runtime:g} s, the bar shows {bar.seconds:g} s"
    if (
        bar.seconds <= runtime * (1 + SAME_SHARE) + SAME_SECONDS
        and 0 < bar.total < planned.least
    ):
        return f"train_runtime x train_steps_per_second is {planned.least:.6g} steps or more, the bar has {bar.total}"
    return ""


def _join_runs(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return each run once; the mean of one that was resumed is of the steps that were
    left to it.

    Its rates are of all steps, but its time is that of the later ones only.
    """
    runs: list[StepRecord] = []
    seen: StepRecord | None = None
    resumed: StepRecord | None = None
    for record in records:
        if record.rounded:
            resumed = record
        elif seen and _is_same_run(seen, record):
            text = f"run of {record.step} steps again: {record.seconds:g} s"
            tally.add(DropReason.REPEATED, record.origin.line, text)
            seen = seen._replace(origin=record.origin)
        else:
            before = _find_end_before(seen, record)
            runs.append(
                _divide_after(record, before)
                if before
                else _divide_resumed(record, resumed)
            )
            seen, resumed = record, None
    return runs


def _find_end_before(old: StepRecord | None, new: StepRecord) -> int:
    """Return the last step of the run that another one went on from, 0 for none: a
    state holds the records of both."""
    both = old is not None and old.since is not None and new.since is not None
    return old.step if both and old and old.step < new.step else 0


def _count_steps(
    before: bytes, runtime: float, planned: Span, step: int
) -> tuple[int, int, bool]:
    """Return the steps that were done, those that were planned, and whether that is
    certain.

    `step` is the one that the record itself names, 0 where it names none.
    """
    if 0 < step <= planned.most:
        return (
            step,
            step
            if step >= planned.least
            else round((planned.least + planned.most) / 2),
            True,
        )
    for bar in reversed(list_bars(before)):
        if planned.least <= bar.total <= planned.most and bar.done <= bar.total:
            late = (bar.total - bar.done) * runtime / bar.total <= LATE_SECONDS
            return bar.total if late else bar.done, bar.total, True
    total = round((planned.least + planned.most) / 2)
    return total, total, math.floor(planned.most) == math.ceil(planned.least) == total


def _divide_resumed(record: StepRecord, resumed: StepRecord | None) -> StepRecord:
    """Return a run over the steps that were left when it was resumed, if it was.

    Its rate counts all steps, or from Trainer 5.19 on those that were left: the number
    of all tells which. Where the log does not hold that, the rate of `Continuing ...`
    counts all; of the newer line either may be true.
    """
    if resumed is None:
        return record
    first, total = resumed.step, resumed.total
    if total is None and record.bar and record.bar[1] > first:
        total = record.bar[1]
    if total is not None and total > first:
        return _divide_planned(record, first, total)
    if resumed.precise:
        return _divide_after(record, first)
    if record.step <= first:
        return record
    doubt = f"resumed at step {first}: the rate may be of all steps, or of those that were left"
    return _divide_after(record, first)._replace(doubt=record.doubt or doubt)


def _divide_planned(record: StepRecord, first: int, total: int) -> StepRecord:
    """Return a run that was resumed behind step `first` of `total` over the steps that
    were left to it."""
    counted, tolerance = record.total or record.step, _get_width(record) / 2 + 1
    if abs(total - counted) <= tolerance:
        stopped = record.step < counted
        return _divide_after(record if stopped else _set_steps(record, total), first)
    if abs(total - first - counted) <= tolerance:
        return _set_steps(record, total - first)
    doubt = f"resumed at step {first} of {total}, and the rate is of {counted} steps"
    return record._replace(doubt=record.doubt or doubt)


def _set_steps(record: StepRecord, steps: int) -> StepRecord:
    """Return a run with a number of steps that its digits allow, now that it is
    certain."""
    if steps == record.step:
        return record
    unit = get_significant_unit(record.stamp, DIGITS)
    seconds = record.stamp / steps
    return record._replace(
        step=steps, total=steps, mean_of=steps, seconds=seconds, resolution=unit / steps
    )


def _divide_after(record: StepRecord, first: int) -> StepRecord:
    done = record.step - first
    if done <= 0:
        return record._replace(seconds=NAN)
    return record._replace(
        seconds=record.seconds * record.step / done,
        resolution=record.resolution * record.step / done,
        mean_of=done,
        samples=record.samples * done / record.step,
        step_tokens=record.step_tokens if done == record.step else NAN,
    )


def _is_same_run(old: StepRecord, new: StepRecord) -> bool:
    """Tell whether a run is printed again: as a dictionary and as JSON perhaps, its
    loss with fewer digits; or by another process, at once, which took nearly as
    long."""
    lines = new.origin.line - old.origin.line
    if (
        new.step == old.step
        and lines <= CLOSE
        and old.possible
        and show_same_time(old, new)
    ):
        return True
    return (old.step, old.seconds) == (new.step, new.seconds) and (
        repr(old.loss) == repr(new.loss)
        or (
            old.loss is not None
            and new.loss is not None
            and math.isclose(old.loss, new.loss, rel_tol=1e-6)
        )
    )


def _read_values(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from the marker to the end of the record, and the loss of a
    state, which stands before it; None if it is torn."""
    values = read_fields(text, start, end)
    if values is None:
        return None
    before = LOSS_BEFORE.search(text, max(0, start - REACH_BACK), start)
    if before and LOSS not in values:
        values[LOSS] = before[1]
    whole = all(
        FINITE.fullmatch(values.get(name, b"").strip(QUOTES))
        for name in (RUNTIME, RATE)
    )
    return (
        values
        if whole
        and (LOSS not in values or NUMBER.fullmatch(values[LOSS].strip(QUOTES)))
        else None
    )


def read_fields(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from a place to the end of the record; None if it is torn."""
    values: dict[bytes, bytes] = {}
    closing = b","
    while closing == b",":
        field = FIELD.match(text, start, end)
        if field is None or field[2] in values:
            return None
        values[field[2]] = field[3]
        start, closing = field.end(), field[4]
    return values


def _parse_printed(value: bytes, unit: float) -> tuple[float, float]:
    """Return a number and one unit in its last place, which is not printed where it is
    a zero."""
    text = value.strip(QUOTES)
    number = float(text)
    rounded = unit if text == value else max(unit, get_significant_unit(number, DIGITS))
    return number, min(rounded, get_printed_unit(text))


def _read_rate(values: dict[bytes, bytes], name: bytes) -> float:
    """Return a number of the record, NaN if it is not printed, or 0 as where nothing
    was counted."""
    text = values.get(name, b"").strip(QUOTES)
    return float(text) or NAN if FINITE.fullmatch(text) else NAN


def _read_loss(values: dict[bytes, bytes]) -> float | None:
    return float(values[LOSS].strip(QUOTES)) if LOSS in values else None
