"""`Step Time` lines, which say no step number, beside the iteration lines of the same steps, or alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_llmbench.ingest.parse.dropped import REPEAT_DISAGREES, TORN, UNKNOWN_STEP, Tally
from pytest_llmbench.ingest.parse.records import StepRecord
from pytest_llmbench.ingest.parse.repeats import show_same_time

UNNUMBERED = 0
"""The step of a record that says none."""

REACH = 3
"""How many records apart the two lines of a step may stand: ranks print at the same time, in any order."""

STRAY = 2
"""So many step times at the end may have lost their iteration lines; more are a run that prints none."""


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
        tally.add(TORN if torn else UNKNOWN_STEP, record.origin.line, _describe(record))
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
            tally.add(TORN, record.origin.line, _describe(record))
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
    tally.add(REPEAT_DISAGREES, step_time.origin.line, text)
    slower = max(iteration, step_time, key=lambda record: record.seconds)
    return slower._replace(
        origin=iteration.origin,
        step=iteration.step,
        total=iteration.total,
        loss=iteration.loss,
        grad_norm=iteration.grad_norm,
        tokens=iteration.tokens,
        batch=iteration.batch,
        stamp=iteration.stamp,
    )


def _describe(record: StepRecord) -> str:
    return "a step time that is cut" if math.isnan(record.seconds) else f"Step Time {record.seconds:g} s"
