"""MLPerf: JSON records with step times, rates and sample counts.

`:::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 0.55},
"metadata": {"step": 31.0}}`

`step` counts steps, samples or tokens. Some records contain the mean of a block of
steps between two evaluations.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.step_records import (
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    find_line_stop,
)

MARKER = b":::MLLOG "
KEY = compile_on_use(rb'[^\r\n]{0,200}?"key": ?"([a-z_]{1,60})"')
DECODER = json.JSONDecoder()
# No count of samples or tokens is larger; a float represents all of them exactly.
LARGEST = 10**15

# Kinds of records, stored as their step number until `resolve_steps` numbers them. A
# single step:
SINGLE = -1
# Means of a block: with its number of samples; with the samples at its beginning; with
# the samples at its end.
BLOCK, BLOCK_FROM, BLOCK_TO = -2, -3, -4
# Records without times: samples per step, tokens per sample, begin and end of blocks,
# evaluations, begin and end of runs, a loss.
BATCH = -5
SEQUENCE = -6
BLOCK_BEGINS = -7
BLOCK_ENDS = -8
EVALUATION = -9
RUN_BEGINS = -10
RUN_ENDS = -11
LOSS = -12
# The result of an evaluation, kept only if it is not finite.
BAD_RESULT = -13
TIMED = (SINGLE, BLOCK, BLOCK_FROM, BLOCK_TO)

KINDS = {
    b"global_batch_size": BATCH,
    b"max_sequence_length": SEQUENCE,
    b"block_start": BLOCK_BEGINS,
    b"block_stop": BLOCK_ENDS,
    b"eval_start": EVALUATION,
    b"run_start": RUN_BEGINS,
    b"run_stop": RUN_ENDS,
    b"train_loss": LOSS,
    b"eval_accuracy": BAD_RESULT,
    b"eval_loss": BAD_RESULT,
}
STATISTICS = b"tracked_stats"
# Factor by which the wall time of a block may exceed its steps.
STEP_TOLERANCE = 2
# Factor by which half of the blocks may differ from their steps: they contain no
# evaluation. The first block is skipped, because some logs do not count the startup of
# the run.
BLOCK_TOLERANCE, FEWEST_BLOCKS = 1.1, 2
# Number of single steps that are compared with the clock.
FEWEST_SINGLES, MOST_SINGLES = 5, 100
TIMES = ("train_step_time", "train_step_timing in s")
LOSSES = ("reduced_train_loss", "train_loss")


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Parse the record at `text[start]`; `resolve_steps` numbers it.

    `step` of the result is a kind of record, such as SINGLE. Returns None if the record
    is not about steps.
    """
    key = KEY.match(text, start, end)
    if key is None or not (key[1] == STATISTICS or key[1] in KINDS):
        return None
    stop = find_line_stop(text, start, end)
    try:
        record, _ = DECODER.raw_decode(
            text[start + len(MARKER) : stop].decode("utf-8", "replace").lstrip()
        )
    except (ValueError, RecursionError):
        return TruncatedRecord(origin, text[start:stop])
    metadata = record.get("metadata", {}) if isinstance(record, dict) else None
    if not isinstance(metadata, dict):
        return TruncatedRecord(origin, text[start:stop])
    value = record.get("value")
    stamp = _read_count(record, "time_ms") / 1000
    if key[1] == STATISTICS:
        if not isinstance(value, dict):
            return None
        return _read_statistics(origin, value, metadata, stamp)
    return _read_marker(origin, KINDS[key[1]], value, metadata, stamp)


def _read_marker(
    origin: RecordOrigin,
    kind: int,
    value: object,
    metadata: Mapping[str, Any],
    stamp: float,
) -> StepRecord | None:
    """Parse a record without times.

    `consumed` of the result contains samples, `targets` the number in the field `step`,
    `since` the time stamp, and `batch` the value of a batch size or sequence length.
    Returns None for an evaluation result that is a finite number.
    """
    number = _read_number(value)
    if kind == BAD_RESULT:
        is_bad = number is not None and not math.isfinite(number)
        return StepRecord(origin, kind, bad_validation=True) if is_bad else None
    record = StepRecord(
        origin,
        kind,
        NAN,
        0.0,
        consumed=_read_count(metadata, "samples_count"),
        since=(0, stamp),
    )
    if kind in (BATCH, SEQUENCE):
        return record._replace(batch=_parse_count(value) or NAN)
    return record._replace(
        loss=number if kind == LOSS and not math.isnan(record.consumed) else None,
        targets=_read_count(metadata, "step"),
    )


def _read_statistics(
    origin: RecordOrigin,
    value: Mapping[str, Any],
    metadata: Mapping[str, Any],
    stamp: float,
) -> StepRecord | None:
    """Parse tracked statistics.

    `consumed` contains samples, `targets` the number in the field `step`.
    """
    seconds = next((_read_number(value[name]) for name in TIMES if name in value), None)
    loss = next((_read_number(value[name]) for name in LOSSES if name in value), None)
    throughput = _read_number(value.get("throughput"))
    step = _read_count(metadata, "step")
    consumed = _read_count(metadata, "samples_count")
    if throughput is not None:
        # With a step time, `step` is the beginning of the block, otherwise its end.
        kind = BLOCK_TO if seconds is None else BLOCK_FROM
        consumed = step
    elif seconds is not None:
        kind = SINGLE if "step" in metadata else BLOCK
    elif loss is not None:
        kind = LOSS
    else:
        return None
    return StepRecord(
        origin,
        kind,
        NAN if seconds is None else seconds,
        0.0,
        loss=loss,
        tokens=NAN if throughput is None else throughput,
        stamp=stamp,
        consumed=consumed,
        targets=step,
    )


def _read_number(value: object) -> float | None:
    """Return a number, infinite from LARGEST on; None for other values."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return None
    if abs(value) >= LARGEST:
        return math.inf if value > 0 else -math.inf
    return float(value)


def _read_count(values: Mapping[str, Any], name: str) -> float:
    """Return a non-negative integer, NaN if it is missing or a fraction of an epoch."""
    return _parse_count(values.get(name))


def _parse_count(value: object) -> float:
    """Return a non-negative integer, NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return NAN
    return float(value) if 0 <= value < LARGEST and value == int(value) else NAN


def merge_records(records: Sequence[StepRecord], _tally: Tally) -> list[StepRecord]:
    """Copy run-wide records of other processes to the ranks that print times."""
    timed_ranks = {record.origin.rank for record in records if record.step in TIMED}
    all_ranks = {record.origin.rank for record in records}
    if not timed_ranks or all_ranks == timed_ranks:
        return list(records)
    merged = []
    for record in records:
        if record.origin.rank in timed_ranks:
            merged.append(record)
            continue
        merged += (
            record._replace(origin=record.origin._replace(rank=rank))
            for rank in sorted(timed_ranks)
        )
    return merged


def resolve_steps(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one rank, numbered from 0.

    If single steps cover most of the run, they are kept; otherwise the means of blocks,
    which cover all steps. The other records are counted in the tally.
    """
    steps: list[StepRecord] = []
    next_batch = next_sequence = NAN
    for run in _split_runs(records):
        batch, next_batch = _find_size(run, BATCH, next_batch)
        sequence, next_sequence = _find_size(run, SEQUENCE, next_sequence)
        steps += _number_run(run, batch, sequence, tally)
    return steps


def _split_runs(records: Sequence[StepRecord]) -> list[list[StepRecord]]:
    """Divide records into runs.

    A run begins after the end of the previous run, or at a `run_start` that follows a
    printed time.
    """
    runs: list[list[StepRecord]] = [[]]
    ended = timed = False  # whether the current run has an end, and a time
    for record in records:
        if ended or (timed and record.step == RUN_BEGINS):
            runs.append([])
            timed = False
        ended = record.step == RUN_ENDS
        timed = timed or record.step in TIMED
        runs[-1].append(record)
    return runs


def _find_size(
    run: Sequence[StepRecord], kind: int, before: float
) -> tuple[float, float]:
    """Return the batch size (or sequence length) of a run, NaN if it changes.

    Also returns the size with which the next run begins; `before` is the size with
    which this run begins.
    """
    timed = [index for index, record in enumerate(run) if record.step in TIMED]
    # A size printed after the last time belongs to the next run.
    until_last_time = run[: timed[-1] + 1] if timed else ()
    sizes = {record.batch for record in until_last_time if record.step == kind}
    if not sizes:
        sizes = {before}
    size = sizes.pop() if len(sizes) == 1 else NAN
    last = _find_last(run, kind)
    next_size = size if last is None else last.batch
    return size, next_size


def _find_last(run: Sequence[StepRecord], kind: int) -> StepRecord | None:
    """Return the last record of a kind, or None."""
    return next((record for record in reversed(run) if record.step == kind), None)


def _number_run(
    run: Sequence[StepRecord], batch: float, sequence: float, tally: Tally
) -> list[StepRecord]:
    """Return the numbered steps of one run: single steps, or means of blocks.

    `batch` is the number of samples per step, `sequence` the tokens per sample. Records
    that are not returned, and times that contradict the log, are counted in the tally.
    """
    if _counts_from_start(run, batch):
        run = [
            _make_single(record, batch) if record.step == BLOCK else record
            for record in run
        ]
    unnumbered = [record for record in run if record.step == SINGLE]
    singles = list(_number_singles(unnumbered, batch, sequence, tally))
    blocks = list(_number_blocks(run, batch, tally))
    if not blocks:
        use_singles = True
    elif not singles:
        use_singles = False
    else:
        # single steps are kept if they cover most of the run
        covered_steps = singles[-1].step - singles[0].step + 1
        use_singles = 2 * len(singles) > covered_steps
    kept, dropped = (singles, blocks) if use_singles else (blocks, singles)
    if dropped:
        first_dropped = dropped[0]
        text = (
            f"mean of {first_dropped.mean_of} steps"
            if use_singles
            else "the time of a single step"
        )
        tally.add(
            DropReason.OTHER_RECORDS,
            first_dropped.origin.line,
            f"step {first_dropped.step}: {text}",
            len(dropped),
        )
    doubt = _describe_sample_conflict(run, kept, batch) or _describe_clock_conflict(
        run, kept, single=use_singles
    )
    if doubt:
        tally.add(
            DropReason.TIMES_DISAGREE,
            kept[0].origin.line,
            doubt,
            len(kept),
            last_line=kept[-1].origin.line,
        )
    return kept


def _counts_from_start(run: Sequence[StepRecord], batch: float) -> bool:
    """True if block times count the samples since the start of the run.

    Then each time is that of a single step, as in MaxText. Otherwise the samples are
    those of a block, and the time is its mean. Decided by `block_stop` records, which
    contain both counts; without them by the samples of the whole run, or by a regular
    growth of the counts.
    """
    counts = [record.consumed for record in run if record.step == BLOCK]
    if not counts:
        return False
    # 1 if a time has the samples since the start of the run, -1 if it has the samples
    # of its block, 0 if both are equal or neither fits.
    votes = [
        int(stop.targets * batch == time.consumed) - int(stop.consumed == time.consumed)
        for time, stop in _pair_with_stops(run)
    ]
    if any(votes):
        return sum(votes) > 0
    end = _find_last(run, RUN_ENDS)
    if end is not None and math.isfinite(end.consumed):
        # The samples of blocks would add up to those of the run.
        return counts[-1] == end.consumed < sum(counts)
    # 64, 128, 192, ...: samples since the start, after steps of 64 samples
    regular_counts = [counts[0] * (index + 1) for index in range(len(counts))]
    return len(counts) > STEP_TOLERANCE and counts == regular_counts


def _pair_with_stops(
    run: Sequence[StepRecord],
) -> Iterator[tuple[StepRecord, StepRecord]]:
    """Yield (time, stop) for each block: its time and its `block_stop` record.

    The `block_stop` follows the time, or precedes it if the block ends with an
    evaluation.
    """
    time: StepRecord | None = None
    stop: StepRecord | None = None
    for record in run:
        if record.step == BLOCK:
            time = record
        elif record.step == BLOCK_ENDS:
            stop = record
        elif record.step in (*TIMED, BLOCK_BEGINS):  # belongs to another block
            time = stop = None
        if time is not None and stop is not None:
            yield time, stop
            time = stop = None


def _make_single(record: StepRecord, batch: float) -> StepRecord:
    """Return the time of a block as the time of a single step.

    The step is numbered from 0 by the samples consumed since the start of the run.
    """
    return record._replace(step=SINGLE, targets=record.consumed / batch - 1)


def _describe_sample_conflict(
    run: Sequence[StepRecord], kept: Sequence[StepRecord], batch: float
) -> str:
    """Describe a contradiction between the steps and the samples of a run.

    Returns "" if there is none.
    """
    end = _find_last(run, RUN_ENDS)
    if not kept or end is None:
        return ""
    last_step = kept[-1].step
    # False if a number is NaN
    has_conflict = (last_step + 1) * batch > end.consumed
    if not has_conflict:
        return ""
    return (
        f"step {last_step}, but the run ended with {end.consumed:g} samples, "
        f"{batch:g} per step"
    )


def _describe_clock_conflict(
    run: Sequence[StepRecord], kept: Sequence[StepRecord], *, single: bool
) -> str:
    """Describe a contradiction between most times and the time stamps.

    Returns "" if there is none, or if there are too few times. Means of blocks have to
    agree within BLOCK_TOLERANCE. A single step may differ by the factor STEP_TOLERANCE,
    because other work happens between two stamps.
    """
    walls = _list_single_walls(run, kept) if single else _list_block_walls(run, kept)
    tolerance, fewest = (
        (STEP_TOLERANCE, FEWEST_SINGLES) if single else (BLOCK_TOLERANCE, FEWEST_BLOCKS)
    )
    if len(walls) < fewest:
        return ""
    ratio = median(wall / record.seconds for record, wall in walls)
    if 1 / tolerance <= ratio <= tolerance:
        return ""
    seconds = median(record.seconds for record, _ in walls)
    wall = median(wall for _, wall in walls)
    return (
        f"a step of {seconds:.4g} s, but {wall:.4g} s by the time stamps of the records"
    )


def _list_single_walls(
    run: Sequence[StepRecord], kept: Sequence[StepRecord]
) -> list[tuple[StepRecord, float]]:
    """Return single steps with their wall times since the step before.

    Skips steps after an evaluation or a start. Of many steps, a sample from the whole
    run is returned.
    """
    # lines between two steps that take time themselves
    breaks = [
        record.origin.line for record in run if record.step in (EVALUATION, RUN_BEGINS)
    ]
    walls: list[tuple[StepRecord, float]] = []
    stride = max(1, len(kept) // MOST_SINGLES)
    for index in range(1, len(kept), stride):
        before, step = kept[index - 1], kept[index]
        breaks_before = bisect_left(breaks, before.origin.line)
        has_break = bisect_left(breaks, step.origin.line) != breaks_before
        if not has_break:
            steps = max(1, step.step - before.step)
            _add_wall(walls, step, (step.stamp - before.stamp) / steps)
    return walls


def _list_block_walls(
    run: Sequence[StepRecord], kept: Sequence[StepRecord]
) -> list[tuple[StepRecord, float]]:
    """Return the mean of each block with the wall time per step of the block.

    Skips the first block.
    """
    by_offset = {record.origin.offset: record for record in kept}
    walls: list[tuple[StepRecord, float]] = []
    begin = end = NAN
    for record in run:
        if record.step in (BLOCK_BEGINS, BLOCK_ENDS) and record.since:
            _, stamp = record.since
            if record.step == BLOCK_BEGINS:
                begin, end = stamp, NAN
            else:
                end = stamp
        step = by_offset.get(record.origin.offset)
        if step is not None and record.step in (BLOCK, BLOCK_TO):
            # without a `block_stop`, the block ends at its time
            stop = record.stamp if math.isnan(end) else end
            _add_wall(walls, step, (stop - begin) / step.mean_of)
            begin = end = NAN
    return walls[1:]


def _add_wall(
    walls: list[tuple[StepRecord, float]], step: StepRecord, wall: float
) -> None:
    """Add a step with its wall time, if both times are positive and finite."""
    if step.possible and 0 < wall < math.inf:
        walls.append((step, wall))


def _number_singles(
    records: Sequence[StepRecord], batch: float, sequence: float, tally: Tally
) -> Iterator[StepRecord]:
    """Yield the records of single steps with their step numbers.

    If a record also has a count of samples, its field `step` is the step number.
    Otherwise the field counts samples, or tokens if all numbers are multiples of the
    tokens per step. Records that cannot be numbered are counted in the tally.
    """
    numbers = [record.targets for record in records if math.isnan(record.consumed)]
    step_tokens = batch * sequence
    counts_tokens = bool(numbers) and not any(
        number % step_tokens for number in numbers
    )
    unit = step_tokens if counts_tokens else batch
    for record in records:
        size, step = batch, record.targets
        if not math.isnan(record.consumed):
            size = record.consumed / (step + 1)
            is_certain = math.isfinite(size) and size == int(size) and size > 0
            # The record contradicts the batch size: then `step` must count samples.
            if is_certain and not math.isnan(batch) and size != batch:
                is_certain = step == record.consumed and step % batch == 0
                size = batch
                step = step / batch - 1
        else:
            is_certain = unit > 0 and step % unit == 0 and step > 0
            step = step / unit - 1
        if is_certain:
            consumed = (step + 1) * size
            yield record._replace(
                step=int(step), batch=size, consumed=consumed, targets=NAN
            )
        else:
            tally.add(
                DropReason.UNKNOWN_STEP,
                record.origin.line,
                f"an unnumbered step of {record.seconds:g} s",
            )


def _number_blocks(
    run: Sequence[StepRecord], batch: float, tally: Tally
) -> Iterator[StepRecord]:
    """Yield a record for each block: its last step, its mean time and its last loss.

    Blocks whose steps are unknown are counted in the tally.
    """
    done = 0.0  # samples up to the end of the block before
    losses: list[float] = []
    for index, record in enumerate(run):
        if record.loss is not None:
            losses.append(record.loss)
        if record.step not in (BLOCK, BLOCK_FROM, BLOCK_TO):
            continue
        if record.step == BLOCK_TO and record.consumed % batch > 0:
            continue  # `step` counts epochs in this benchmark, not samples
        begin, end = _find_bounds(run, index, done, batch)
        steps, last = (end - begin) / batch, end / batch
        if record.step == BLOCK_TO:  # prints its rate instead of its time
            seconds = _compute_seconds(batch, record.tokens)
            printed = f"{record.tokens:g} samples/s"
        else:
            seconds = record.seconds
            printed = f"{record.seconds:g} s"
        # False if a number is NaN
        is_certain = steps > 0 and last == int(last) and steps == int(steps)
        if not is_certain or not _fits_clock(run, index, seconds * steps):
            tally.add(
                DropReason.UNKNOWN_STEP,
                record.origin.line,
                f"a block of steps: {printed}",
            )
            continue
        yield record._replace(
            step=int(last) - 1,
            seconds=seconds,
            tokens=NAN,
            loss=_choose_loss(losses),
            batch=batch,
            consumed=end,
            targets=NAN,
            mean_of=int(steps),
            since=_find_beginning(run, index),
        )
        done = end
        losses.clear()


def _fits_clock(run: Sequence[StepRecord], index: int, seconds: float) -> bool:
    """True if the time of a block fits the time stamps of its records.

    Only checked for blocks with a rate. The rate of a single GPU is wrong by a factor,
    and so is a `step` that does not count samples.
    """
    record = run[index]
    if record.step != BLOCK_TO or math.isnan(record.stamp):
        return True
    begin = NAN
    for earlier in reversed(run[:index]):
        if earlier.step in (BLOCK_TO, BLOCK_BEGINS, RUN_BEGINS) and earlier.since:
            _, begin = earlier.since
            break
    passed = record.stamp - begin
    # False if the beginning is unknown (NaN), as after the end of a run: the rate may be
    # the token rate of that whole run.
    return passed <= 0 or passed / STEP_TOLERANCE < seconds < passed * STEP_TOLERANCE


def _find_beginning(run: Sequence[StepRecord], index: int) -> tuple[int, float] | None:
    """Return the clock at the beginning of a block.

    Returns (0, seconds). None if no marker of a beginning is between this block and the
    block before.
    """
    for earlier in reversed(run[:index]):
        if earlier.step in (BLOCK_BEGINS, RUN_BEGINS):
            return earlier.since
        if earlier.step in (BLOCK, BLOCK_FROM, BLOCK_TO):
            break
    return None


def _find_bounds(
    run: Sequence[StepRecord], index: int, done: float, batch: float
) -> tuple[float, float]:
    """Return the samples consumed before a block and at its end, NaN if unknown.

    `done` is the number of samples at the end of the block before. It is used as the
    beginning only if the log prints no other: after a lost block it is too low.
    """
    record = run[index]
    if record.step == BLOCK_FROM:  # prints its beginning; a later record has its end
        later_counts = (
            later.consumed
            for later in run[index + 1 :]
            if later.step in (EVALUATION, RUN_ENDS, BLOCK_FROM)
        )
        end = next((count for count in later_counts if count > record.consumed), NAN)
        return record.consumed, end
    if record.step == BLOCK:  # prints its size; a `block_stop` has the last step
        following = run[index + 1] if index + 1 < len(run) else record
        end = following.targets * batch if following.step == BLOCK_ENDS else NAN
        if end >= record.consumed:  # False if a number is NaN
            return end - record.consumed, end
        return done, done + record.consumed
    # BLOCK_TO prints its end; a `block_start` after the block before has its beginning.
    for earlier in reversed(run[:index]):
        if earlier.step == BLOCK_BEGINS and done <= earlier.consumed < record.consumed:
            return earlier.consumed, record.consumed
        if earlier.step == BLOCK_TO:
            break
    return done, record.consumed


def _compute_seconds(samples: float, rate: float) -> float:
    """Return the seconds for `samples` at a rate per second, infinite for rate 0."""
    return samples / rate if rate else math.inf


def _choose_loss(losses: Sequence[float]) -> float | None:
    """Return the last loss of a block, NaN if a loss is not finite.

    Returns None without losses.
    """
    if not losses:
        return None
    return losses[-1] if all(map(math.isfinite, losses)) else NAN
