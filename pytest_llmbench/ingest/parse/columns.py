"""Steps as columns: from the records of a segment to numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.models import Steps
from pytest_llmbench.ingest.parse.records import NAN, StepRecord

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats


def build_steps(records: Iterable[StepRecord]) -> Steps:
    """Return the columns of a segment, ordered by step; every step may stand in `records` once."""
    rows = sorted(records, key=lambda record: record.step)
    return Steps(
        index=np.array([row.step for row in rows], dtype=np.int64),
        seconds=_to_floats(row.seconds for row in rows),
        resolution_seconds=_to_floats(row.resolution for row in rows),
        line=np.array([row.origin.line for row in rows], dtype=np.int64),
        mean_of=np.array([row.mean_of for row in rows], dtype=np.int64),
        asynchronous=np.array([row.asynchronous for row in rows], dtype=np.bool_),
        loss=_to_floats(NAN if row.loss is None else row.loss for row in rows),
        has_loss=np.array([row.loss is not None for row in rows], dtype=np.bool_),
        grad_norm=_to_floats(NAN if row.grad_norm is None else row.grad_norm for row in rows),
        has_grad_norm=np.array([row.grad_norm is not None for row in rows], dtype=np.bool_),
        tflops_per_gpu=_to_floats(row.tflops for row in rows),
        tokens_per_second_per_gpu=_to_floats(row.tokens for row in rows),
        global_batch_size=_to_floats(row.batch for row in rows),
        peak_memory_bytes=_to_floats(row.memory for row in rows),
        learning_rate=_to_floats(row.rate for row in rows),
        consumed_samples=_to_floats(row.consumed for row in rows),
        target_tokens=_to_floats(row.targets for row in rows),
        skipped_steps=_to_floats(row.skipped for row in rows),
    )


def _to_floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
