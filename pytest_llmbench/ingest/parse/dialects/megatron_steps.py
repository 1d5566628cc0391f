"""What only the neighbours of a Megatron record tell: its step number, and how many steps its time is the mean of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.core.models import DropReason
from pytest_llmbench.ingest.parse.records import StepRecord, Tally, show_same_time

# The step of a record that says none.
UNNUMBERED = 0

# How many records apart the two lines of a step may stand: ranks print at the same time, in any order.
REACH = 3

# So many step times at the end may have lost their iteration lines; more are a run that prints none.
STRAY = 2


def pair(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the iteration records, with the TFLOP/s of the step times that belong to them.

    Both print the same number, rounded differently, so that lines in the same order, or near each other, whose times
    agree are of one step (or of two steps that took the same time, where it does not matter). Two lines side by side
    that are left over and contradict each other are one step too: the slower time counts. Other step times are of an
    unknown step.
    """
    steps = list(records)
    partners = _find_partners(records)
    for place, near in partners.items():
        steps[near] = _join_pair(records[near], records[place], tally)
    left = [record for place, record in enumerate(records) if record.step == UNNUMBERED and place not in partners]
    last = max(record.origin.offset for record in records if record.step != UNNUMBERED)
    behind = [record for record in left if record.origin.offset > last]
    numbered = number(behind, tally) if len(behind) > STRAY else []
    for record in left[: len(left) - len(behind)] if numbered else left:
        torn = math.isnan(record.seconds)
        tally.add(DropReason.TORN if torn else DropReason.UNKNOWN_STEP, record.origin.line, _describe(record))
    return [record for record in steps if record.step != UNNUMBERED] + numbered


def number(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return step times numbered from 1 for each rank, as uncertain: `renumber` does it anew for each attempt.

    One that is cut keeps its number, with NaN seconds, so that the others keep theirs.
    """
    counts: Counter[str] = Counter()
    numbered = []
    for record in records:
        counts[record.origin.rank] += 1
        numbered.append(record._replace(step=counts[record.origin.rank], rounded=True))
        if math.isnan(record.seconds):
            tally.add(DropReason.TORN, record.origin.line, _describe(record))
    return numbered


def renumber(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, those that were counted now counted from its first one on."""
    if not (records and records[0].rounded):
        return list(records)
    before = records[0].step - 1
    return [record._replace(step=record.step - before, rounded=False) for record in records]


def _find_partners(records: Sequence[StepRecord]) -> dict[int, int]:
    """Return the places of step times, each with that of its iteration record.

    Of a whole log the first with the first, and so on, for one rank's lines may come in a block. Else the nearest that
    agrees, then any beside it.
    """
    numbered = [place for place, record in enumerate(records) if record.step != UNNUMBERED]
    bare = [place for place, record in enumerate(records) if record.step == UNNUMBERED and record.possible]
    pairs = zip(bare, numbered, strict=False)
    if len(bare) == len(numbered) and all(_is_same_number(records[near], records[place]) for place, near in pairs):
        return dict(zip(bare, numbered, strict=True))
    partners: dict[int, int] = {}
    free = set(numbered)
    for reach, contradicting in (*((reach, False) for reach in range(1, REACH + 1)), (1, True)):
        for place in bare:
            near = [
                each
                for each in (place - reach, place + reach)
                if each in free and (contradicting or _is_same_number(records[each], records[place]))
            ]
            if near and place not in partners:
                partners[place] = near[0]
                free.remove(near[0])
    return partners


def _is_same_number(record: StepRecord, other: StepRecord) -> bool:
    """Tell whether two times are one number, rounded to different places."""
    return abs(record.seconds - other.seconds) <= 0.51 * (record.resolution + other.resolution)


def _join_pair(iteration: StepRecord, step_time: StepRecord, tally: Tally) -> StepRecord:
    tflops = step_time.tflops if math.isnan(iteration.tflops) else iteration.tflops
    if not iteration.possible or _is_same_number(iteration, step_time) or show_same_time(iteration, step_time):
        return iteration._replace(tflops=tflops)
    text = f"step {iteration.step}: {iteration.seconds:g} s in line {iteration.origin.line}, but {_describe(step_time)}"
    tally.add(DropReason.REPEAT_DISAGREES, step_time.origin.line, text)
    slower = max(iteration, step_time, key=lambda record: record.seconds)
    return iteration._replace(seconds=slower.seconds, resolution=slower.resolution, tflops=slower.tflops)


def _describe(record: StepRecord) -> str:
    return "a step time that is cut" if math.isnan(record.seconds) else f"Step Time {record.seconds:g} s"


# So many equal gaps show an interval: fewer may be lost lines.
LEAST_GAPS = 3

# How much of the time between two lines is not spent in steps, at most, where lines are to tell what a time is of.
CLOCK_SHARE = 0.05


def add_means(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, in their order, with `mean_of`.

    An interval of n shows by prints at multiples of n only. A gap in a log of every step is lost lines, never a mean.
    """
    every = find_interval([record.step for record in records])
    means = [every] * len(records)
    if means and records[0].step % every:
        means[0] = 1
    if len(records) > 1:
        means[1] = _count_steps_of_second(records[0], records[1], every)
    return [record._replace(mean_of=mean) for record, mean in zip(records, means, strict=True)]


def find_interval(steps: Sequence[int]) -> int:
    """Return every how many steps a log prints, from the ascending steps it prints; 1 where that cannot be told.

    The first print may be out of turn: versions of 2026 print the first step of a process, whatever the interval.
    """
    gap = min((after - before for before, after in pairwise(steps[1:])), default=1)
    turns = [step for step in steps if step % gap == 0]
    if gap == 1 or not turns or len(steps) - len(turns) > bool(steps[0] % gap):
        return 1
    gaps = [after - before for before, after in pairwise([0, *turns] if turns[0] == gap else turns)]
    equal = gaps.count(gap)
    return gap if equal >= LEAST_GAPS and 2 * equal > len(gaps) else 1


def _count_steps_of_second(first: StepRecord, second: StepRecord, every: int) -> int:
    """Return how many steps the second print of a process is of.

    Versions of 2026 print the first step of a process and go on summing, so that the second print is the mean of that
    step too. Where the first print was out of turn, it was such a one. Else the time between the two lines tells; where
    it does not, and every step is printed, the fraction of a second in the time stamps, which came with those versions.
    """
    steps = second.step - first.step
    if steps > every:
        return every
    if first.step % every:
        return steps + 1
    if not (first.possible and second.possible) or (steps + 1) * second.seconds <= first.seconds:
        return steps
    passed = second.stamp - first.stamp
    if math.isnan(passed):
        return steps
    fractions = bool(first.stamp % 1 or second.stamp % 1)
    newer = fractions and every == 1
    slack = CLOCK_SHARE * passed + (0 if fractions else 1)
    alone = abs(steps * second.seconds - passed) <= slack
    together = abs((steps + 1) * second.seconds - first.seconds - passed) <= slack
    return steps + (together if alone != together else newer)
