"""Slow steps that contain a checkpoint save."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import measurement

from pytest_llmbench.core.log_records import (
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
)
from pytest_llmbench.judge.pattern import find_save
from pytest_llmbench.judge.shape import find_shape
from pytest_llmbench.report.wording import phrase_all

SECONDS = (2.0, 2.01, 1.99, 40.0, 2.0, 2.01, 1.99, 2.0, 2.0)
LINES = (10, 11, 12, 15, 16, 17, 18, 19, 20)


def describe(*records: CheckpointRecord, seconds: tuple[float, ...] = SECONDS) -> str:
    run = measurement(
        2.0,
        window_seconds=seconds,
        window_steps=tuple(range(11, 20)),
        window_lines=LINES,
        checkpoints=Checkpoints(records),
    )
    return phrase_all(filter(None, [find_save(run, np.array(seconds) > 3)]))


def make_save(line: int, seconds: float | None) -> CheckpointRecord:
    return CheckpointRecord(CheckpointAction.SAVE, line, seconds)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            make_save(14, 37.95),
            "step 14 includes the checkpoint save of line 14 (37.95 of 40 s)",
        ),
        (make_save(13, None), "step 14 includes the checkpoint save of line 13"),
        (make_save(14, 0.5), ""),  # too short to explain the step
        (make_save(14, 300.0), ""),  # it ran asynchronously
        (make_save(17, 37.95), ""),  # of another step
        (CheckpointRecord(CheckpointAction.LOAD, 14, 37.95), ""),
    ],
)
def test_checkpoint_save_that_explains_a_slow_step_is_described(
    record: CheckpointRecord, text: str
) -> None:
    assert describe(record) == text


def test_note_on_several_slow_steps_counts_their_checkpoint_saves() -> None:
    seconds = (2.0, 2.01, 1.99, 40.0, 2.0, 2.01, 1.99, 39.0, 2.0)
    lines = (make_save(14, 38.0),)
    assert (
        describe(*lines, seconds=seconds)
        == "1 of 2 slow steps includes a save: step 14 includes the checkpoint save of line 14 (38 of 40 s)"
    )


def test_note_on_a_slow_step_names_the_checkpoint_save_in_this_step() -> None:
    run = measurement(
        2.0,
        window_seconds=SECONDS,
        window_steps=tuple(range(11, 20)),
        window_lines=LINES,
        checkpoints=Checkpoints((make_save(14, 37.95),)),
    )
    assert phrase_all(find_shape(run).statements).endswith(
        "; step 14 includes the checkpoint save of line 14 (37.95 of 40 s)"
    )
