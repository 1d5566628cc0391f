"""Colours inside records: consoles and log viewers write them around keys, numbers and bars."""

from __future__ import annotations

import re

import pytest
from written_logs import bar, dll, dropped, maxtext_run, nemo2_run, parse, steps

from pytest_llmbench.core.models import ParsedLog

PAXML = "[PAX STATUS]: Starting training loop\n" + "".join(
    f"[PAX STATUS]: train_step() took {7.11 + step / 100:.2f} seconds.\n" for step in range(10)
)
LOGS = {
    "nemo1": "".join(bar(step + 1, f"{step}.000", f"2.{step}00") + "\n" for step in range(10)),
    "nemo1-dllogger": "".join(
        bar(step + 1, f"{step}.000", "2.000") + dll(step, f"2.000{step}123") + "\n" for step in range(10)
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


def values(log: ParsedLog) -> list[list[list[str]]]:
    """Every step with its time and loss."""
    return [
        [list(map(str, column.tolist())) for column in (part.steps.index, part.steps.seconds, part.steps.loss)]
        for part in log.segments
    ]


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("paint", PAINTS)
def test_colours_change_nothing_that_a_record_says(paint: str, name: str) -> None:
    plain, painted = LOGS[name], re.sub(*PAINTS[paint], LOGS[name])
    assert values(parse(painted)) == values(parse(plain))
    assert dropped(parse(painted)).keys() <= {"repeated"}
    assert steps(parse(plain)) == [list(range(10))]


@pytest.mark.parametrize("name", ["nemo1", "nemo2", "maxtext", "paxml"])
@pytest.mark.parametrize("code", ["\x1b[31m", "\x1b[0m\x1b[1;32m", "\x1b[K"])
def test_a_code_inside_a_number_makes_the_record_torn(name: str, code: str) -> None:
    """What stands before it and behind it may be of two records."""
    number = {"nemo1": "2.500", "nemo2": "6.061", "maxtext": "7.908", "paxml": "7.15"}[name]
    text = LOGS[name].replace(number, number[:3] + code + number[3:], 1)
    assert dropped(parse(text)) == {"torn": 1}
    assert number[:3] not in {value for part in values(parse(text)) for value in part[1]}


def test_an_escape_that_is_no_colour_ends_no_reading() -> None:
    assert dropped(parse(nemo2_run(0, 3).replace("6.061", "6.061\x1b", 1))) == {"torn": 1}
    for log in LOGS.values():
        parse(log.replace(" ", " \x1b", 40))
