"""Settings that a second process in a log states."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from generator import lines
from support.written_logs import parse

from pytest_llmbench.core.log_records import StatedField

STEPS = "".join(
    lines.megatron_line(
        datetime(2025, 6, 1, 2, 0, step, tzinfo=UTC),
        step,
        30,
        7.3,
        batch=128,
        tflops=611.9,
        loss=2.5,
    )
    + "\n"
    for step in range(1, 30)
)


@pytest.mark.parametrize(
    "start", ["using world size: 16 and model-parallel size: 8\n", "NVIDIA H100\n"]
)
def test_start_of_a_process_without_a_value_begins_its_settings(start: str) -> None:
    """Early versions of Megatron-LM print no comma after the world size."""
    parameters = " > number of parameters on model parallel rank 0: 12345\n"
    log = parse((start + parameters + STEPS) * 2)
    assert [
        [
            statement.line
            for statement in segment.stated
            if statement.field is StatedField.PARAMETERS
        ]
        for segment in log.segments
    ] == [[2], [33]]


@pytest.mark.parametrize("namespace", ["", "n" * 150])
def test_mlperf_settings_are_read_after_a_long_text(namespace: str) -> None:
    record = lines.mlperf_record("global_batch_size", 128)
    named = record.replace('"namespace": ""', f'"namespace": "{namespace}"')
    assert namespace in named
    stated = [
        (statement.field, statement.value)
        for statement in parse(f"{named}\n{STEPS}").segments[0].stated
    ]
    assert (StatedField.BATCH, "128") in stated
