"""Hugging Face Trainer while it trains: `{'loss': 1.23, 'grad_norm': 0.45, 'learning_rate': 1e-05, 'epoch': 0.1}`.

Such a record has no step and no time. What all of a run say together stands in the record of the whole run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pytest_llmbench.ingest.parse.dialects import huggingface
from pytest_llmbench.ingest.parse.dropped import Tally
from pytest_llmbench.ingest.parse.records import NAN, NOT_FINITE, RecordOrigin, StepRecord, Torn
from pytest_llmbench.ingest.parse.scan import REACH_BACK

RATE = b"'learning_rate': "

VALUE = rb"'?(-?(?:\d{1,18}(?:\.\d{1,40})?(?:e[+-]?\d{1,3})?|%b))'?" % NOT_FINITE
"""A number; newer versions print it as a text."""
BEFORE = re.compile(rb"\{'loss': %b, (?:[^{}\r\n]*?'grad_norm': %b, )?[^{}\r\n]*\Z" % (VALUE, VALUE))
AFTER = re.compile(rb"'learning_rate': %b[,}]([^{}\r\n]*)" % VALUE)
REWARDS = re.compile(rb"'(?:rewards?(?:_std)?|objective|logps)['/]")
"""Keys that only training on rewards or preferences has."""

LAST_BAD = 2
"""So many last records without a number are a run that diverged; a single one may be a step that was skipped."""


def read_step(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | Torn | None:
    """Return what a record says, with mean_of 0 where it is of no whole run; see `huggingface.read_step`."""
    if not text.startswith(RATE, start):
        return huggingface.read_step(text, start, end, origin)
    before, after = BEFORE.search(text[max(0, start - REACH_BACK) : start]), AFTER.match(text, start, end)
    if before is None or after is None:
        return None
    return StepRecord(
        origin,
        0,
        NAN,
        0.0,
        loss=float(before[1]),
        grad_norm=float(before[2]) if before[2] else None,
        rate=float(after[1]),
        mean_of=0,
        rewards=any(map(REWARDS.search, (before[0], after[2]))),
    )


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return each run once, with what the records before its own say together."""
    runs = huggingface.join([record for record in records if record.mean_of], tally)
    joined = []
    before = -1
    for run in runs:
        own = [record for record in records if not record.mean_of and before < record.origin.offset < run.origin.offset]
        joined.append(_add_progress(run, own) if own else run)
        before = run.origin.offset
    return joined


def _add_progress(run: StepRecord, own: Sequence[StepRecord]) -> StepRecord:
    """Return the record of a run with its largest learning rate, its gradient norm, and a loss that is none at the end.

    Trainer counts a loss that is no number as 0: the mean of the whole run looks sound.
    """
    return run._replace(
        loss=NAN if _ends_badly([record.loss for record in own]) else run.loss,
        grad_norm=_combine_norms([record.grad_norm for record in own if record.grad_norm is not None]),
        rate=max(record.rate for record in own),
        rewards=any(record.rewards for record in own),
    )


def _combine_norms(norms: Sequence[float]) -> float | None:
    """Return one gradient norm for many: NaN where the last ones are none, else the largest that is a number."""
    if not norms:
        return None
    return NAN if _ends_badly(norms) else max(norm for norm in norms if math.isfinite(norm))


def _ends_badly(values: Sequence[float | None]) -> bool:
    last = values[-LAST_BAD:]
    return all(value is not None and not math.isfinite(value) for value in last)
