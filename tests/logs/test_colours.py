"""Colours inside records.

Consoles and log viewers write them around keys, numbers and bars.
"""

from __future__ import annotations

import re

import pytest
from support.written_logs import bar, dll, dropped, maxtext_run, nemo2_run, parse, steps

from pytest_llmbench.core.log_records import ParsedLog

PAXML = "[PAX STATUS]: Starting training loop\n" + "".join(
    f"[PAX STATUS]: train_step() took {7.11 + step / 100:.2f} seconds.\n"
    for step in range(10)
)
LOGS = {
    "nemo1": "".join(
        bar(step + 1, f"{step}.000", f"2.{step}00") + "\n" for step in range(10)
    ),
    "nemo1-dllogger": "".join(
        bar(step + 1, f"{step}.000", "2.000") + dll(step, f"2.000{step}123") + "\n"
        for step in range(10)
    ),
    "nemo2": nemo2_run(0, 9),
    "maxtext": "Config param steps: 10\n" + maxtext_run(0, 9),
    "paxml": PAXML,
}
PAINTS = {
    "numbers": (r"(?<![\w.])(\d[\d.e+-]*)(?![\d:/])", "\x1b[1;36m\\1\x1b[0m"),
    "keys": (
        r"(reduced_train_loss|global_step|seconds|completed step|loss)(?=[:=])",
        "\x1b[38;2;54;234;195m\\1\x1b[39m",
    ),
    "cursor": (r"(, | \| )", "\\1\x1b[K\x1b[?25l"),
}


def list_values(log: ParsedLog) -> list[list[str]]:
    """List the steps with their times and losses."""
    columns = [
        column
        for segment in log.segments
        for column in (segment.steps.index, segment.steps.seconds, segment.steps.loss)
    ]
    return [list(map(str, column.tolist())) for column in columns]


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("paint", PAINTS)
def test_colours_around_values_are_ignored(paint: str, name: str) -> None:
    plain, painted = parse(LOGS[name]), parse(re.sub(*PAINTS[paint], LOGS[name]))
    assert steps(plain) == [list(range(10))]
    assert list_values(painted) == list_values(plain)
    assert dropped(painted).keys() <= {"repeated"}


@pytest.mark.parametrize(
    "code", ["\x1b[31m", "\x1b[K", "\x1b"], ids=["colour", "cursor", "escape alone"]
)
@pytest.mark.parametrize(
    ("name", "number"),
    [("nemo1", "2.500"), ("nemo2", "6.061"), ("maxtext", "7.908"), ("paxml", "7.15")],
)
def test_record_with_a_colour_code_inside_a_number_is_dropped_as_truncated(
    name: str, number: str, code: str
) -> None:
    """The digits before and after the code may belong to different records."""
    log = parse(LOGS[name].replace(number, number[:3] + code + number[3:], 1))
    assert dropped(log) == {"torn": 1}
    assert float(number[:3]) not in log.segments[0].steps.seconds
