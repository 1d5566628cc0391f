"""The decision of `python -m benchmarks.speed`, without measuring anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from speed import gate
from speed.counting import Count
from speed.gate import (
    Slowdown,
    Values,
    compare,
    keep_lower,
    list_slow_jobs,
    lower_values,
    read_values,
    write_values,
)
from speed.jobs import JOBS

VALUES = Path(__file__).parents[2] / "benchmarks" / "speed" / "values.yaml"
DONE = "2000 steps"


def values(*accepted: Slowdown, instructions: int = 1_000_000) -> Values:
    """Return the values of a job `read` with a million instructions."""
    return Values({"python": "3.11.7"}, {"read": Count(instructions, DONE)}, accepted)


def accept(percent: float, job: str = "read") -> Slowdown:
    """Return an accepted slowdown."""
    return Slowdown(job, percent, "a new field is read", "the column reader")


def test_benchmark_passes_up_to_three_percent_above_its_recorded_instructions() -> None:
    assert compare(values(), {"read": Count(1_030_000, DONE)}).faults == []


def test_benchmark_fails_above_three_percent_more_instructions_than_recorded() -> None:
    (fault,) = compare(values(), {"read": Count(1_030_001, DONE)}).faults
    assert fault.startswith(
        "read: 3.00 % more instructions than its value; 3 % are allowed, and 0 % are accepted."
    )


def test_lower_of_two_counts_decides_if_a_benchmark_is_too_slow() -> None:
    recorded = values(accept(2))
    first = {"read": Count(1_060_000, DONE), "new": Count(1, DONE)}
    assert list_slow_jobs(recorded, first) == ["read"]
    counts = keep_lower(first, {"read": Count(1_040_000, DONE)})
    assert counts == {"read": Count(1_040_000, DONE), "new": Count(1, DONE)}
    assert list_slow_jobs(recorded, counts) == []
    assert keep_lower(counts, first) == counts


def test_accepted_slowdown_raises_the_instruction_limit_of_its_benchmark_only() -> None:
    slower = {"read": Count(1_050_000, DONE)}
    assert compare(values(accept(2)), slower).faults == []
    recorded = Values(
        {},
        {"read": Count(1_000_000, DONE), "site": Count(1, DONE)},
        [accept(2, "site")],
    )
    assert len(compare(recorded, slower).faults) == 1


def test_benchmark_fails_beyond_its_accepted_slowdown() -> None:
    (fault,) = compare(values(accept(2)), {"read": Count(1_060_000, DONE)}).faults
    assert "and 2 % are accepted" in fault


def test_sum_of_accepted_slowdowns_fails_above_its_limit() -> None:
    unchanged = {"read": Count(1_000_000, DONE)}
    assert compare(values(accept(30), accept(15)), unchanged).faults == []
    report = compare(values(accept(30), accept(15.1)), unchanged)
    assert report.faults == ["the accepted slowdowns add up to 45.1 %, more than 45 %"]
    assert report.rows[-1] == "accepted slowdowns in all: 45.1 % (at most 45 %)"


def test_benchmark_that_did_different_work_fails_although_faster() -> None:
    report = compare(values(), {"read": Count(10, "0 steps")})
    assert report.faults == ["read: did '0 steps'; its value is of '2000 steps'"]
    assert report.lower == []


def test_benchmark_without_a_recorded_instruction_count_fails() -> None:
    (fault,) = compare(Values(), {"read": Count(1, DONE)}).faults
    assert fault.startswith("read: no value is recorded.")


def test_benchmark_with_far_fewer_instructions_may_lower_its_recorded_count() -> None:
    assert compare(values(), {"read": Count(960_000, DONE)}).lower == ["read"]
    assert compare(values(), {"read": Count(980_000, DONE)}).lower == []


def test_lowering_recorded_instruction_counts_never_raises_one() -> None:
    recorded = Values(
        {},
        {"read": Count(100, DONE), "site": Count(100, DONE)},
        [accept(3), accept(1, "site")],
    )
    lowered = lower_values(
        recorded, {"read": Count(90, DONE), "site": Count(110, DONE)}
    )
    assert lowered.jobs == {"read": Count(90, DONE), "site": Count(100, DONE)}
    assert lowered.accepted == [accept(1, "site")]


def test_recorded_instruction_counts_are_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("# a comment\n")
    write_values(path, values(accept(2)))
    assert path.read_text().startswith("# a comment\nenvironment:\n")
    assert read_values(path) == Values(
        {"python": "3.11.7"}, {"read": Count(1_000_000, DONE)}, [accept(2)]
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{job: site, percent: 1, why: a, until: b}", "no job is named 'site'"),
        (
            "{job: read, percent: 1, why: '', until: b}",
            "read needs a percent above 0, `why` and `until`",
        ),
        (
            "{job: read, percent: 0, why: a, until: b}",
            "read needs a percent above 0, `why` and `until`",
        ),
        ("{job: read, percent: 1, why: a}", "until"),
    ],
)
def test_unusable_accepted_slowdown_is_refused(
    tmp_path: Path, entry: str, message: str
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        f"environment: {{}}\njobs: {{read: {{instructions: 1, done: a}}}}\naccepted: [{entry}]\n"
    )
    with pytest.raises(gate.ValuesError, match=message):
        read_values(path)


def test_every_benchmark_has_a_recorded_instruction_count() -> None:
    assert set(read_values(VALUES).jobs) == set(JOBS)
