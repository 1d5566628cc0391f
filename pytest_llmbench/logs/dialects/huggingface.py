"""Hugging Face Trainer: one record for a whole run.

`{'train_runtime': 2577.7505, ..., 'train_steps_per_second': 0.745, 'train_loss': 1.5}`

While it trains, Trainer prints progress records without step and time:

`{'loss': 1.23, 'grad_norm': 0.45, 'learning_rate': 1e-05, 'epoch': 0.1}`

`merge_records` combines the progress records of a run with its final record.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_llmbench.core.log_records import DropReason, ProgressRecord
from pytest_llmbench.core.patterns import compile_on_use
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
    have_same_time,
)

RESUMING = b"ing training from "
# The word around it is `Continuing` up to Trainer 4.x, `Resuming` from 5.0 on.
WORD = compile_on_use(rb"(?:Continu|(Resum))\Z")
# "Continuing training from global step 1500" (up to 4.x)
# "Resuming training from checkpoint with epoch 3 and global step 1500" (from 5.0 on)
RESUMED = compile_on_use(
    RESUMING
    + rb"(checkpoint with epoch \d{1,9} and )?global step (\d{1,15})[ \t]*[\r\n]"
)
# "  Total optimization steps = 1,875"
PLANNED = compile_on_use(
    rb"Total optimization steps = (\d{1,15}(?:,\d{3}){0,4})[ \t]*[\r\n]"
)
# "'train_runtime': 2577.7505," or "\"epoch\": \"3\"}": quote, name, value, separator
FIELD = compile_on_use(
    rb"\s*(['\"])([A-Za-z][ !#-&(-z|~]{0,99})\1: ('[^'\r\n]{0,99}'|\"[^\"\r\n]{0,99}\"|[^\s,{}'\"]{1,40})\s*([,}])"
)
FINITE = compile_on_use(rb"\d{1,18}(?:\.\d{1,40})?(?:e[+-]\d\d)?")
NUMBER = compile_on_use(rb"-?(?:%b|%b)" % (FINITE.pattern, NOT_FINITE))
QUOTES = b"'\""
# The step of the record: before the time in trainer_state.json, after it in ms-swift.
STEP_BEFORE = compile_on_use(rb"\{[^{}]*?\"step\": (\d{1,15}),[^{}]*\Z")
LOSS_BEFORE = compile_on_use(rb"\{[^{}]*?\"train_loss\": ([^\s,]{1,40}),[^{}]*\Z")
STEP_AFTER = b"global_step/max_steps"  # its value: '500/1000'
STEP_OF = compile_on_use(rb"['\"](\d{1,15})/(\d{1,15})['\"]")

RUNTIME, RATE, LOSS = b"train_runtime", b"train_steps_per_second", b"train_loss"
SAMPLES, TOKENS = b"train_samples_per_second", b"train_tokens_per_second"
# The tokens of the run so far, in Trainer and in TRL.
SEEN = (b"num_input_tokens_seen", b"num_tokens")
SEEN_PRINTED = compile_on_use(
    rb"'(?:num_input_tokens_seen|num_tokens)': '?(\d{1,18}(?:\.\d{1,9})?(?:e\+\d\d)?)'?(?:,|\Z)"
)
# The units to which Trainer rounds numbers. Newer versions print the rounded number as
# a text of four significant digits.
UNITS = {RUNTIME: 0.0001, RATE: 0.001}
DIGITS = 4

# Lines between the records that several processes print of one run. Bars would appear
# between two runs.
MAX_LINES_APART = 1

# Seconds by which a bar may lag, because it is not drawn at every step.
LATE_SECONDS = 1.0

# Tolerance between the runtime and the whole seconds of the bar: absolute, and as a
# share.
SAME_SECONDS, SAME_SHARE = 2.0, 0.02

# Share of the steps that a new bar may lack, because it is not drawn at every step.
UNDRAWN = 0.02
# A new bar may show this many steps, and this share of all, as done although its
# process did not run them.
FEW_SKIPPED, SKIPPED_SHARE = 2.0, 0.005

LEARNING_RATE = b"'learning_rate': "
LEARNING_RATE_OF_STATE = b'"learning_rate": '

EPOCH_BEFORE = compile_on_use(rb"\{[^{}]*?\"epoch\": (\d{1,9}(?:\.\d{1,40})?),[^{}]*\Z")
# Trainer rounds epochs to two decimals, or more.
EPOCH_UNIT = 0.01
EPOCH = compile_on_use(rb"'epoch': ('?\d{1,9}(?:\.\d{1,40})?)\b")

# A number; newer versions print it quoted.
VALUE = rb"'?(-?(?:\d{1,18}(?:\.\d{1,40})?(?:e[+-]?\d{1,3})?|%b))'?" % NOT_FINITE
BEFORE = compile_on_use(
    rb"\{'loss': %b, (?:[^{}\r\n]*?'grad_norm': %b, )?[^{}\r\n]*\Z" % (VALUE, VALUE)
)
AFTER = compile_on_use(rb"'learning_rate': %b[,}]([^{}\r\n]*)" % VALUE)
PROGRESS = (b"loss", b"grad_norm", b"learning_rate")
# Keys that occur only in training on rewards or preferences.
REWARD_NAMES = compile_on_use(rb"(?:rewards?(?:_std)?|objective|logps)(?:/|\Z)")
REWARDS = compile_on_use(rb"'(?:rewards?(?:_std)?|objective|logps)['/]")

# The mean of all losses may be this share of the mean of the printed losses, which are
# rounded, minus half a unit.
LOSS_TOLERANCE = 0.97
LOSS_ROUNDING = 0.00005

# Final records with non-finite values that prove divergence; a single one may be a
# skipped step.
LAST_NON_FINITE = 2


class Span(NamedTuple):
    """The range of step counts that rounded numbers allow."""

    least: float
    most: float


class PrintedLoss(NamedTuple):
    """The loss of a progress record."""

    epoch: float
    loss: float
    unit: float  # of the last digit of the epoch


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse a progress record, a record of a state file, or the final record of a run.

    A progress record has no time, so its `mean_of` is 0 (`_build_progress`). See
    `_read_run` for the final record.
    """
    if text.startswith(LEARNING_RATE_OF_STATE, start):
        return _read_state(text, start, end, origin)
    if not text.startswith(LEARNING_RATE, start):
        return _read_run(text, start, end, origin)
    # A record contains no other brace: it begins at the last one.
    begin = text.rfind(b"{", max(0, start - REACH_BACK), start)
    before = BEFORE.match(text[begin:start]) if begin >= 0 else None
    after = AFTER.match(text, start, end)
    if before is None or after is None:
        return None
    loss, grad_norm = before.groups()
    learning_rate, following = after.groups()
    epoch, tokens_seen = EPOCH.search(following), SEEN_PRINTED.search(following)
    return _build_progress(
        origin,
        loss,
        grad_norm,
        epoch[1] if epoch else b"",
        tokens_seen[1] if tokens_seen else b"",
        rate=float(learning_rate),
        rewards=any(map(REWARDS.search, (before[0], following))),
    )


def _build_progress(
    origin: RecordOrigin,
    loss: bytes,
    grad_norm: bytes | None,
    epoch: bytes,
    tokens_seen: bytes,
    *,
    rate: float,
    rewards: bool,
) -> StepRecord:
    """Build a progress record; missing values are empty texts.

    `consumed` of the record is the epoch, `resolution` the unit of the epoch, and
    `step_tokens` the tokens of the run so far.
    """
    return StepRecord(
        origin,
        0,
        resolution=_get_epoch_unit(epoch) if epoch else 0.0,
        loss=float(loss),
        grad_norm=None if grad_norm is None else float(grad_norm),
        mean_of=0,
        consumed=float(epoch.strip(QUOTES)) if epoch else NAN,
        rate=rate,
        step_tokens=float(tokens_seen) if tokens_seen else NAN,
        rewards=rewards,
    )


def _get_epoch_unit(text: bytes) -> float:
    """Return the unit of the last digit of an epoch.

    Newer versions print a quoted number with four significant digits.
    """
    number = text.strip(QUOTES)
    is_quoted = number != text
    rounding_unit = (
        get_significant_unit(float(number), DIGITS) if is_quoted else EPOCH_UNIT
    )
    return min(rounding_unit, get_printed_unit(number))


def _read_state(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | None:
    """Parse a progress record of trainer_state.json or of a JSON lines file.

    The record surrounds `text[start]`. Returns None if it has no loss, or if a value is
    not a number.
    """
    begin = text.rfind(b"{", max(0, start - REACH_BACK), start)
    values = read_fields(text, begin + 1, end) if begin >= 0 else None
    if values is None:
        return None
    unquoted = {name: value.strip(QUOTES) for name, value in values.items()}
    numbers = {name: unquoted[name] for name in PROGRESS if name in unquoted}
    if b"loss" not in numbers or not all(map(NUMBER.fullmatch, numbers.values())):
        return None
    epoch = values.get(b"epoch", b"")
    tokens_seen = next((unquoted[name] for name in SEEN if name in unquoted), b"")
    return _build_progress(
        origin,
        numbers[b"loss"],
        numbers.get(b"grad_norm"),
        epoch if FINITE.fullmatch(epoch) else b"",
        tokens_seen if FINITE.fullmatch(tokens_seen) else b"",
        rate=float(numbers.get(b"learning_rate", b"nan")),
        rewards=any(map(REWARD_NAMES.match, values)),
    )


def merge_records(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record per run, combined with its progress records.

    The record has a `doubt` if the log contradicts the time of the run.
    """
    runs = _merge_runs([record for record in records if record.mean_of], tally)
    merged = []
    # Progress records, and the first bars of processes.
    records_without_time = [record for record in records if not record.mean_of]
    offsets = [record.origin.offset for record in records_without_time]
    end_before = -1
    for run in runs:
        first = bisect_right(offsets, end_before)
        after_last = bisect_left(offsets, run.origin.offset)
        run_records = records_without_time[first:after_last]
        end_before = run.origin.offset
        progress = [record for record in run_records if record.bar is None]
        doubt = run.doubt or _explain_contradiction(run, run_records, progress)
        checked = run._replace(doubt=doubt, bar=None, since=None, stamp=NAN)
        complete = _add_progress(checked, progress) if progress else checked
        # cleared: it contained the epochs of the run
        merged.append(complete._replace(consumed=NAN))
    return merged


def _explain_contradiction(
    run: StepRecord, records: Sequence[StepRecord], progress: Sequence[StepRecord]
) -> str:
    """Return the reason to doubt that a run's time covers all its steps.

    Compares the time with progress bars and losses. Returns "" if there is no
    contradiction.
    """
    # The log prints the step at which the run was resumed, so the time was corrected.
    if run.mean_of < run.step:
        return ""
    first_bars = [record for record in records if record.bar is not None]
    contradiction = _explain_bars(run, first_bars)
    return contradiction or _explain_losses(run, _find_last_start(progress))


def _find_last_start(records: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the records since the epoch last went back.

    Earlier records belong to a run that crashed.
    """
    restarts = (
        index
        for index in range(len(records) - 1, 0, -1)
        if records[index].consumed < records[index - 1].consumed
    )
    return records[next(restarts, 0) :]


def _explain_bars(run: StepRecord, first_bars: Sequence[StepRecord]) -> str:
    """Describe a contradiction between a run and the first bars of its processes.

    The latest bar that counts as many steps as the run decides. Returns "" if its
    process ran all these steps.
    """
    steps, tolerance = run.total or run.step, _get_count_width(run) / 2 + 1
    for first in reversed(first_bars):
        skipped = _count_skipped(first, run.stamp)
        counts_same_steps = abs((first.total or 0) - steps) <= tolerance
        if counts_same_steps:
            if skipped > max(FEW_SKIPPED, SKIPPED_SHARE * steps):
                return (
                    f"the bar begins at step {first.step} of {first.total}: the run was resumed, "
                    f"so the time covers the last steps only, but the rate counts all"
                )
            return ""
        if run.bar is None:
            continue
        # The same bar was drawn at the end of the run, and counts more steps.
        _, last_total = run.bar
        if last_total == first.total and skipped + FEW_SKIPPED < first.total - steps:
            return (
                f"the rate counts {steps} steps, the bar {first.total} in the same time"
            )
    return ""


def _count_skipped(first: StepRecord, runtime: float) -> float:
    """Estimate the steps that a bar shows as done but its process did not run.

    A resumed process starts its bar at the step from which it resumed. `first` is the
    first drawing of the bar, `runtime` the time of the run in seconds.
    """
    # The first bar of a process shows `done` steps, its next drawing `following`.
    done, following = first.bar or (0, 0)
    remaining = (first.total or 0) - done
    # seconds per step after the first drawing
    seconds = (runtime - first.stamp) / remaining if remaining > 0 else NAN
    # steps possible before it; the bar shows whole seconds, so one more may have passed
    run_steps = (first.stamp + 1) / seconds if seconds > 0 else NAN
    skipped = max(0.0, done - run_steps) if math.isfinite(run_steps) else 0.0
    # If the next drawing is not the next step, the bar is not drawn at every step.
    return min(skipped, done - 1.0) if following == done + 1 else skipped


def _explain_losses(run: StepRecord, records: Sequence[StepRecord]) -> str:
    """Describe a contradiction between the losses and the counted steps.

    Returns "" if there is none. Trainer up to 5.18 divides the losses since its start
    by all steps, including the steps of earlier processes.
    """
    printed = [
        PrintedLoss(epoch=record.consumed, loss=record.loss, unit=record.resolution)
        for record in records
        if record.loss is not None
    ]
    losses = [loss for _, loss, _ in printed]
    if run.loss is None or not all(map(math.isfinite, losses)):
        return ""
    if not printed:
        if run.since is None:  # not a trainer_state.json
            return ""
        return "trainer_state.json has no loss that shows whether the run was resumed and the time covers the last steps only"
    least_mean = _compute_least_mean(run, printed)
    # Written so that a non-finite mean of the run is no contradiction.
    if least_mean <= 0 or not run.loss < LOSS_TOLERANCE * least_mean - LOSS_ROUNDING:
        return ""
    mean = sum(losses) / len(losses)
    return f"train_loss {run.loss:g}, but printed losses of {mean:g}: the run was resumed, so the time covers the last steps only"


def _compute_least_mean(run: StepRecord, printed: Sequence[PrintedLoss]) -> float:
    """Return the lowest mean loss that the printed losses allow, 0 if unknown.

    Each loss is the mean of the steps since the previous loss. The first loss may be
    that of a single step or, in a resumed run, the mean of the usual number of steps.
    The steps after the last printed loss may have had no loss.
    """
    losses = [loss for _, loss, _ in printed]
    if min(losses) <= 0:
        return 0.0
    # The losses cover equally many steps, but for the first loss or the steps after the
    # last one.
    equal_weights = min(sum(losses) / (len(losses) + 1), sum(losses[1:]) / len(losses))
    end, steps = run.consumed, _count_all_steps(run)
    has_valid_epochs = end > 0 and all(
        0 < epoch <= end * (1 + UNDRAWN) for epoch, _, _ in printed
    )
    if not has_valid_epochs:
        return equal_weights if steps <= run.step else 0.0
    # The position of a loss is its share of the steps of this process: 0 is its first
    # step, 1 its last one.
    begin = 1 - run.step / steps  # another process made the steps before `begin`
    positions = [
        (min(epoch / end, 1.0) - begin) / (1 - begin) for epoch, _, _ in printed
    ]
    rows = [row for row, position in enumerate(positions) if position > 0]
    if not rows:
        return 0.0
    positions, losses = [positions[row] for row in rows], [losses[row] for row in rows]
    gaps = [after - before for before, after in pairwise(positions)]
    # Each sum is weighted by the share of the steps that a loss covers.
    later_sum = sum(gap * loss for gap, loss in zip(gaps, losses[1:], strict=True))
    first_position, first_loss = positions[0], losses[0]
    means = [first_position * first_loss + later_sum]
    if gaps:
        usual_gap = min(first_position, find_median(gaps))
        covered = usual_gap + 1 - first_position
        if covered > 0:  # 0 if all losses were printed at the end of the run
            means.append((usual_gap * first_loss + later_sum) / covered)
    epoch_unit = min(unit for _, _, unit in printed)
    error = epoch_unit / end / (1 - begin) * max(losses)
    by_epochs = min(means) - error
    return by_epochs if len(rows) < len(printed) else max(equal_weights, by_epochs)


def _count_all_steps(run: StepRecord) -> int:
    """Return the number of the last step.

    The rate of a resumed run may count only the remaining steps.
    """
    planned = 0
    if run.since:  # the step that trainer_state.json prints
        planned, _ = run.since
    elif run.bar:
        _, planned = run.bar
    return max(run.step, planned)


def _get_count_width(run: StepRecord) -> float:
    """Return the width of the range of step counts that the printed digits allow.

    Returns 0 if the width is at most one step.
    """
    width = run.resolution / run.seconds * run.step if run.possible else 0.0
    return width if width > 1 else 0.0


def _add_progress(run: StepRecord, records: Sequence[StepRecord]) -> StepRecord:
    """Add the progress records to the record of their run.

    Adds the largest learning rate, the gradient norm, and a non-finite loss at the end.
    Trainer counts a non-finite loss as 0, so that the mean of the run looks normal.
    """
    has_diverged = _ends_non_finite([record.loss for record in records])
    norms = [record.grad_norm for record in records if record.grad_norm is not None]
    last_records = _find_last_start(records)
    return run._replace(
        loss=NAN if has_diverged else run.loss,
        grad_norm=_combine_norms(norms),
        rate=max(record.rate for record in records),
        rewards=any(record.rewards for record in records),
        progress=tuple(map(_make_progress, last_records)),
        step_tokens=_count_tokens(run, last_records),
    )


def _make_progress(record: StepRecord) -> ProgressRecord:
    """Convert a progress record; missing numbers become NaN."""
    loss, norm = record.loss, record.grad_norm
    return ProgressRecord(
        record.origin.line,
        NAN if loss is None else loss,
        NAN if norm is None else norm,
        record.rate,
    )


def _count_tokens(run: StepRecord, records: Sequence[StepRecord]) -> float:
    """Return the tokens per step.

    Uses the number that the run prints, otherwise the last progress record with tokens.
    NaN if unknown.
    """
    # The tokens so far of a resumed run include those of earlier processes.
    is_resumed = run.mean_of < run.step
    if not math.isnan(run.step_tokens) or is_resumed:
        return run.step_tokens
    with_tokens = [
        record for record in records if record.step_tokens > 0 and record.consumed > 0
    ]
    if not with_tokens:
        return NAN
    last = with_tokens[-1]
    is_complete = run.consumed >= last.consumed  # False if the epoch of the run is NaN
    if not is_complete:
        return NAN
    # The last record may precede the end by some steps; its share of the epochs is its
    # share of the steps.
    return last.step_tokens / (run.step * last.consumed / run.consumed)


def _combine_norms(norms: Sequence[float]) -> float | None:
    """Combine gradient norms into one.

    Returns NaN if the last norms are not finite, otherwise the largest finite norm;
    None if there are none.
    """
    if not norms:
        return None
    if _ends_non_finite(norms):
        return NAN
    return max(norm for norm in norms if math.isfinite(norm))


def _ends_non_finite(values: Sequence[float | None]) -> bool:
    """True if all of the last LAST_NON_FINITE values are NaN or infinite."""
    last = values[-LAST_NON_FINITE:]
    return all(value is not None and not math.isfinite(value) for value in last)


def _read_run(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the final record of a run: its last step and its mean step time.

    The number of steps is time x rate. If the digits of the rate leave several numbers,
    the progress bar before the record decides; without a bar the resolution of the time
    covers all of these numbers. Trainer divides all planned steps by the time, even if
    the run stopped early. If the bar shows an early stop, the segment is not finished.

    In the result, `stamp` is the runtime, `consumed` the epoch, `total` the planned
    steps, and `since` is set for a trainer_state.json, which prints the step.
    """
    if text.startswith(RESUMING, start):
        return _read_resumed(text, start, end, origin)
    values = _read_values(text, start, end)
    if values is None:
        return TruncatedRecord(origin, text[start : find_line_stop(text, start, end)])
    runtime, unit = _parse_printed(values[RUNTIME], UNITS[RUNTIME])
    rate, rate_unit = _parse_printed(values[RATE], UNITS[RATE])
    # the numbers of steps that the rounded time and rate allow
    planned = Span(
        (runtime - unit / 2) * (rate - rate_unit / 2),
        (runtime + unit / 2) * (rate + rate_unit / 2),
    )
    before = text[max(0, start - REACH_BACK) : start]
    printed_step = 0
    step_before = STEP_BEFORE.search(before)
    step_after = STEP_OF.fullmatch(values.get(STEP_AFTER, b""))
    if step_before:
        printed_step = int(step_before[1])
    elif step_after and planned.least <= int(step_after[2]) <= planned.most:
        printed_step = int(step_after[1])
    done, total, is_certain = _count_steps(before, runtime, planned, printed_step)
    if runtime <= 0 or done <= 0:
        return TruncatedRecord(origin, text[start : find_line_stop(text, start, end)])
    seconds = runtime / done
    resolution = unit / done
    if not is_certain:
        resolution = seconds * (planned.most - planned.least) / total
    bar = _find_bar(before, runtime)
    planned_samples_rate = _read_rate(values, SAMPLES)
    planned_tokens_rate = _read_rate(values, TOKENS)
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
        since=(int(step_before[1]), NAN) if step_before else None,
        bar=(bar.done, bar.total) if bar else None,
        doubt=_compare_bar(bar, runtime, planned),
        # Trainer also divides the planned samples by the time.
        samples=planned_samples_rate * done / total,
        step_tokens=planned_tokens_rate * runtime / total,
    )


def _read_resumed(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | None:
    """Parse the step at which a run resumes, and the planned steps if printed.

    The record has `rounded` set. `precise` means that the rate counts all steps;
    Trainer from 5.19 on counts the remaining steps.
    """
    earliest = max(0, start - REACH_BACK)
    word = WORD.search(text, earliest, start)
    resumed = RESUMED.match(text, start, end)
    if word is None or resumed is None:
        return None
    is_new_version = word[1] is not None
    has_epoch = resumed[1] is not None
    if is_new_version != has_epoch:  # no version of Trainer prints this
        return None
    planned = PLANNED.findall(text, earliest, start)
    total = int(planned[-1].replace(b",", b"")) if planned else None
    return StepRecord(
        origin, int(resumed[2]), total=total, rounded=True, precise=not is_new_version
    )


def _read_epoch(values: dict[bytes, bytes], before: bytes) -> float:
    """Return the epoch at the end of a run, 0 if missing.

    In a trainer_state.json the epoch precedes the time.
    """
    text = values.get(b"epoch", b"").strip(QUOTES)
    if FINITE.fullmatch(text):
        return float(text)
    in_state = EPOCH_BEFORE.search(before)
    return float(in_state[1]) if in_state else 0.0


def _find_bar(before: bytes, runtime: float) -> Bar | None:
    """Return the last bar before a record that shows at least its runtime."""
    least_seconds = runtime * (1 - SAME_SHARE) - SAME_SECONDS
    for bar in reversed(list_bars(before)):
        if bar.done > 0 and bar.seconds >= least_seconds:
            return bar
    return None


def _compare_bar(bar: Bar | None, runtime: float, planned: Span) -> str:
    """Describe a contradiction between a run's summary and its progress bar.

    The progress bar may show more time or fewer steps. Returns "" if both agree.
    """
    if bar is None:
        return ""
    most_seconds = runtime * (1 + SAME_SHARE) + SAME_SECONDS
    if bar.seconds > most_seconds and planned.least <= bar.total <= planned.most:
        return f"train_runtime is {runtime:g} s, the bar shows {bar.seconds:g} s"
    if bar.seconds <= most_seconds and 0 < bar.total < planned.least:
        return f"train_runtime x train_steps_per_second is {planned.least:.6g} steps or more, the bar has {bar.total}"
    return ""


def _merge_runs(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record per run, and count repeated records in the tally.

    The rate of a resumed run counts all steps, but the time covers the later steps
    only: the mean of such a run is corrected.
    """
    runs: list[StepRecord] = []
    last: StepRecord | None = None  # the last record of the last run
    resumed: StepRecord | None = None
    for record in records:
        if (
            record.rounded
        ):  # from `_read_resumed`: the step at which the next run begins
            resumed = record
        elif last and _is_same_run(last, record):
            text = f"run of {record.step} steps repeated: {record.seconds:g} s"
            tally.add(DropReason.REPEATED, record.origin.line, text)
            last = last._replace(origin=record.origin)
        else:
            step_before = _find_end_before(last, record)
            if step_before:
                runs.append(_divide_after(record, step_before))
            else:
                runs.append(_divide_resumed(record, resumed))
            last, resumed = record, None
    return runs


def _find_end_before(old: StepRecord | None, new: StepRecord) -> int:
    """Return the last step of the run that `new` resumed, or 0.

    A trainer_state.json contains the records of both runs.
    """
    if old is None or old.since is None or new.since is None:
        return 0  # not a trainer_state.json
    return old.step if old.step < new.step else 0


def _count_steps(
    before: bytes, runtime: float, planned: Span, step: int
) -> tuple[int, int, bool]:
    """Return the finished steps, the planned steps, and True if both are certain.

    `planned` is the range of planned steps that the rounded numbers allow. The step
    that the record prints decides (`step`, 0 if none), then a bar whose total is in
    this range, then the middle of the range.
    """
    middle = round((planned.least + planned.most) / 2)
    if 0 < step <= planned.most:
        total = step if step >= planned.least else middle
        return step, total, True
    for bar in reversed(list_bars(before)):
        if planned.least <= bar.total <= planned.most and bar.done <= bar.total:
            # the last steps of a finished run may not be drawn
            undrawn_seconds = (bar.total - bar.done) * runtime / bar.total
            done = bar.total if undrawn_seconds <= LATE_SECONDS else bar.done
            return done, bar.total, True
    is_only_number = math.ceil(planned.least) == math.floor(planned.most) == middle
    return middle, middle, is_only_number


def _divide_resumed(record: StepRecord, resumed: StepRecord | None) -> StepRecord:
    """Correct the mean of a resumed run to its remaining steps.

    The rate of Trainer up to 5.18 counts all steps, the rate of later versions only the
    remaining steps. The planned number of steps decides between the two. Without this
    number, the rate after a `Continuing ...` line counts all steps. After the line of
    newer versions both are possible, and the record gets a doubt.
    """
    if resumed is None:
        return record
    first, total = resumed.step, resumed.total
    if total is None and record.bar:
        _, bar_total = record.bar
        if bar_total > first:
            total = bar_total
    if total is not None and total > first:
        return _divide_planned(record, first, total)
    if resumed.precise:
        return _divide_after(record, first)
    if record.step <= first:
        return record
    doubt = (
        f"resumed at step {first}: the rate may count all steps or the remaining ones"
    )
    return _divide_after(record, first)._replace(doubt=record.doubt or doubt)


def _divide_planned(record: StepRecord, first: int, total: int) -> StepRecord:
    """Correct the mean of a run that resumed after step `first` of `total`."""
    counted, tolerance = record.total or record.step, _get_count_width(record) / 2 + 1
    if abs(total - counted) <= tolerance:  # the rate counts all steps
        has_stopped_early = record.step < counted
        if not has_stopped_early:
            record = _set_steps(record, total)
        return _divide_after(record, first)
    if abs(total - first - counted) <= tolerance:  # the rate counts the remaining steps
        return _set_steps(record, total - first)
    doubt = f"resumed at step {first} of {total}, but the rate counts {counted} steps"
    return record._replace(doubt=record.doubt or doubt)


def _set_steps(record: StepRecord, steps: int) -> StepRecord:
    """Return a run with `steps` steps, one of the numbers that its digits allow."""
    if steps == record.step:
        return record
    unit = get_significant_unit(record.stamp, DIGITS)
    seconds = record.stamp / steps
    return record._replace(
        step=steps, total=steps, mean_of=steps, seconds=seconds, resolution=unit / steps
    )


def _divide_after(record: StepRecord, first: int) -> StepRecord:
    """Correct the mean of a run to the steps after `first`.

    The framework divided the time of these steps by the number of all steps. So the
    step time is scaled up, and the samples per second are scaled down. The time becomes
    NaN if there are no steps after `first`.
    """
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
    """True if the records `old` and `new` are of the same run.

    A run may be printed as a dictionary and as JSON (with fewer digits of the loss), or
    on the next line by another process that took nearly as long.
    """
    if old.step != new.step:
        return False
    lines_apart = new.origin.line - old.origin.line
    if lines_apart <= MAX_LINES_APART and old.possible and have_same_time(old, new):
        return True
    if old.seconds != new.seconds:
        return False
    if repr(old.loss) == repr(new.loss):  # also if both are NaN
        return True
    if old.loss is None or new.loss is None:
        return False
    return math.isclose(old.loss, new.loss, rel_tol=1e-6)


def _read_values(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from the marker to the end of the record.

    Adds the loss, which precedes the marker in a trainer_state.json. Returns None if
    the record is truncated.
    """
    values = read_fields(text, start, end)
    if values is None:
        return None
    before = LOSS_BEFORE.search(text, max(0, start - REACH_BACK), start)
    if before and LOSS not in values:
        values[LOSS] = before[1]
    for name in (RUNTIME, RATE):
        if not FINITE.fullmatch(values.get(name, b"").strip(QUOTES)):
            return None
    if LOSS in values and not NUMBER.fullmatch(values[LOSS].strip(QUOTES)):
        return None
    return values


def read_fields(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from `start` to the end of the record.

    Returns None if the record is truncated.
    """
    values: dict[bytes, bytes] = {}
    closing = b","
    while closing == b",":
        field = FIELD.match(text, start, end)
        if field is None:
            return None
        _quote, name, value, closing = field.groups()
        if name in values:
            return None
        values[name] = value
        start = field.end()
    return values


def _parse_printed(value: bytes, unit: float) -> tuple[float, float]:
    """Return a number and the unit of its last digit.

    Trailing zeros are not printed, so the unit follows from Trainer's rounding.
    """
    text = value.strip(QUOTES)
    number = float(text)
    is_quoted = text != value  # newer versions also round to significant digits
    if is_quoted:
        unit = max(unit, get_significant_unit(number, DIGITS))
    return number, min(unit, get_printed_unit(text))


def _read_rate(values: dict[bytes, bytes], name: bytes) -> float:
    """Return a rate of the record, NaN if it is missing or 0.

    Trainer prints 0 for a rate that it does not count.
    """
    text = values.get(name, b"").strip(QUOTES)
    rate = float(text) if FINITE.fullmatch(text) else 0.0
    return rate if rate > 0 else NAN


def _read_loss(values: dict[bytes, bytes]) -> float | None:
    """Return the mean loss of a run, or None."""
    return float(values[LOSS].strip(QUOTES)) if LOSS in values else None
