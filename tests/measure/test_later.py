"""Values that are made when they are first looked at: once, and like the tuple that they are."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest
from builders import BASELINE, NOW, run

from pytest_llmbench.measure import measurement as measuring
from pytest_llmbench.measure import metrics, notes
from pytest_llmbench.measure.measurement import Later


def test_they_are_made_once_and_not_before_they_are_looked_at() -> None:
    made: list[int] = []

    def make() -> Iterable[int]:
        made.append(1)
        return iter((1, 2))

    values = Later(make)
    assert made == []
    assert (len(values), list(values), values[0], values[-1:]) == (2, [1, 2], 1, (2,))
    assert made == [1]


@pytest.mark.parametrize(
    "look",
    [
        lambda values: values == (1, 2),
        lambda values: (1, 2) == values,  # noqa: SIM300 (the other side asks first)
        lambda values: values == Later(lambda: (1, 2)),
        lambda values: values != (1, 3),
        lambda values: (*values, 3) == (1, 2, 3),
        lambda values: repr(values) == "(1, 2)",
        lambda values: hash(values) == hash((1, 2)),
        lambda values: 2 in values,
        lambda values: type(pickle.loads(pickle.dumps(values))) is tuple,  # noqa: S301 (made here)
    ],
)
def test_they_are_what_the_tuple_is(look: Callable[[Sequence[int]], bool]) -> None:
    assert look(Later(lambda: (1, 2)))


def test_what_fails_to_be_made_fails_again() -> None:
    values: Later[float] = Later(lambda: [1 / 0])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            len(values)


def test_measuring_a_run_computes_no_metric_and_writes_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of older runs only the step time and what is wrong with them count."""
    asked: list[str] = []

    def spied(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def spy(*arguments: object) -> object:
            asked.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, spy)

    spied(metrics, "compute_window_metrics")
    spied(metrics, "expect_metrics")
    spied(notes, "list_notes")
    measured = measuring.measure(run(), BASELINE, NOW)
    assert measured.valid
    assert asked == []
    assert measured.metric("step_time_seconds").value == pytest.approx(7.325)
    assert [one.name for one in measured.expected][:1] == ["step_time_seconds"]
    assert measured.notes == replace(measured).notes
    assert asked == ["compute_window_metrics", "expect_metrics", "list_notes"]


def test_what_crosses_to_another_process_is_complete() -> None:
    measured = measuring.measure(run(), BASELINE, NOW)
    copy = pickle.loads(pickle.dumps(measured))  # noqa: S301 (made here)
    assert (type(copy.metrics), copy.metrics) == (tuple, measured.metrics)
    assert (copy.notes, copy.expected, copy.attempts) == (measured.notes, measured.expected, measured.attempts)
