"""Runs with equal steps are duplicates, unless different runs could print equal steps."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import NOW, log, run, segment, steps, without

from pytest_llmbench.core.log_records import ParsedLog, Steps
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.runs import duplicates
from pytest_llmbench.runs.duplicates import (
    find_equal_steps,
    hash_steps,
    is_equal_enough,
    mark_duplicates,
)


def print_steps(
    seconds: float, spread: float, decimals: int, averaged: int, seed: int
) -> list[float]:
    """Return the printed times of a run: rounded means of the last steps."""
    noise = np.random.default_rng(seed).standard_normal(50)
    single = seconds * (1 + spread * noise)
    means = [
        single[max(0, step + 1 - averaged) : step + 1].mean() for step in range(50)
    ]
    return [float(value) for value in np.round(means, decimals)]


FINE = print_steps(7.325, 0.003, 3, 1, seed=1)


def make_run(*contents: Steps | list[float], job: str = "1", **fields: Any) -> Run:
    """Return a run of one log with these segments; job 2 starts a day after job 1."""
    segments = [
        segment(
            segment_steps if isinstance(segment_steps, Steps) else steps(segment_steps)
        )
        for segment_steps in contents
    ]
    started = NOW - timedelta(days=9 - int(job))
    facts = {"id": fields.pop("id")} if "id" in fields else {}
    return run(
        log(*segments, **fields),
        started=started,
        job_id=job,
        folder_text=f"/{job}",
        **facts,
    )


def classify_duplicate(old: Run, new: Run, *others: Run) -> bool | None:
    """Return True for a duplicate, False for a possible duplicate, None for another
    run."""
    marked, left_out = mark_duplicates([new, old, *others])
    assert not left_out
    duplicate_of = marked[0].duplicate_of
    return duplicate_of.certain if duplicate_of else None


CHANGED = [*FINE[:30], FINE[30] + 0.001, *FINE[31:]]
PAIRS: dict[str, tuple[Steps | list[float], Steps | list[float], bool | None]] = {
    "fine-times": (FINE, FINE, True),
    "cut-at-its-end": (FINE, FINE[:44], True),
    "excerpt": (
        FINE,
        steps(FINE[20:45], first=20, loss=12 - 0.01 * np.arange(20, 45)),
        True,
    ),
    "lines-lost": (FINE, without(steps(FINE), 5, 17, 33), True),
    "one-time-differs": (FINE, CHANGED, None),
    "one-loss-differs": (
        FINE,
        steps(FINE, loss=np.append(12 - 0.01 * np.arange(49), 11.0)),
        None,
    ),
    "same-seed-other-times": (FINE, print_steps(7.325, 0.003, 3, 1, seed=2), None),
    "constant": ([1.2] * 50, [1.2] * 50, False),
    "seven-times-mostly-one": (
        [1.2] * 20 + [1.3, 1.4, 1.5, 1.6, 1.7, 1.8] + [1.2] * 24,
    )
    * 2
    + (False,),
    "three-times-unevenly": ([1.2, 1.3, 1.2, 1.4, 1.2] * 10,) * 2 + (False,),
    "seven-times-in-turn": ([1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8] * 7,) * 2 + (True,),
    "four-times-in-few-steps": ([1.2, 1.3, 1.4, 1.5] * 5,) * 2 + (False,),
    "eight-times": ([1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8] * 7,) * 2 + (True,),
    "warm-up-alone": ([9.9 - step / 2 for step in range(9)] + [5.2] * 41,) * 2
    + (False,),
    "seven-steps": (FINE[:7], FINE[:7], False),
    "ten-steps": (FINE[:10], FINE[:10], True),
    "no-times": (steps([np.nan] * 50), steps([np.nan] * 50), False),
    "rates-alone": (
        steps([np.nan] * 50, tokens_per_second_per_gpu=np.array(FINE) * 1000),
        steps([np.nan] * 50, tokens_per_second_per_gpu=np.array(FINE) * 1000),
        True,
    ),
    "half-is-shared": (FINE[:30], FINE, True),
}


@pytest.mark.parametrize(("old", "new", "expected"), PAIRS.values(), ids=PAIRS)
def test_equal_step_times_prove_a_duplicate(
    old: Steps | list[float], new: Steps | list[float], expected: bool | None
) -> None:
    assert classify_duplicate(make_run(old), make_run(new, job="2")) is expected


def test_identical_text_with_timestamps_is_duplicate() -> None:
    stamped: dict[str, Any] = {"started": NOW}
    old = make_run([1.2] * 50, **stamped)
    assert classify_duplicate(old, make_run([1.2] * 50, job="2", **stamped)) is True
    other = make_run([1.2] * 50, job="2", **stamped)
    attempt = other.attempts[0]
    retyped: ParsedLog = replace(attempt.log, fingerprint="00fe")
    other = replace(other, attempts=(replace(attempt, log=retyped),))
    assert classify_duplicate(old, other) is False


def test_step_times_that_a_third_run_repeats_prove_no_duplicate() -> None:
    """A third run of the configuration prints most of the times, too."""
    third = [*FINE[:20], FINE[20] + 0.001, *FINE[21:]]
    old, new = make_run(FINE), make_run(FINE, job="2")
    assert classify_duplicate(
        old, new, make_run(print_steps(7.3, 0.003, 3, 1, seed=2), job="3")
    )
    assert classify_duplicate(old, new, make_run(third, job="3")) is False


@pytest.mark.parametrize(
    ("seconds", "spread", "decimals", "averaged"),
    [(12.39, 0.002, 2, 1), (7.908, 0.0003, 3, 1)],
)
def test_steps_printed_with_many_digits_suffice_to_prove_a_duplicate(
    seconds: float, spread: float, decimals: int, averaged: int
) -> None:
    runs = (
        print_steps(seconds, spread, decimals, averaged, seed) for seed in range(50)
    )
    proven = [proves_duplicate(make_run(values), averaged) for values in runs]
    assert sum(proven) >= 48


def proves_duplicate(run: Run, averaged: int = 1) -> bool:
    """True if another run with the same steps would be a duplicate."""
    equal = [
        equal_steps._replace(averaged=averaged)
        for equal_steps in find_equal_steps(run, run)
    ]
    return is_equal_enough(equal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "spread", "decimals", "averaged"),
    [(24.0, 0.002, 1, 5), (24.0, 0.001, 1, 1), (1.2, 0.01, 1, 5)],
)
def test_independent_runs_are_no_duplicates(
    seconds: float, spread: float, decimals: int, averaged: int
) -> None:
    """Simulates many pairs with few distinct times."""
    runs: dict[tuple[float, ...], int] = defaultdict(int)
    for seed in range(3000):
        runs[tuple(print_steps(seconds, spread, decimals, averaged, seed))] += 1
    equal = [list(values) for values, count in runs.items() if count > 1]
    assert equal
    assert not any(proves_duplicate(make_run(values), averaged) for values in equal)


def test_overlapping_moving_means_are_not_counted_as_independent_times() -> None:
    """NeMo 1 prints means of five steps: one slow step is in five of them."""
    checkpoints = np.tile([*[1.2] * 9, 1.6], 20) + np.linspace(0, 0.002, 200)
    means = np.convolve(checkpoints, np.full(5, 0.2), mode="valid").round(1)
    assert not proves_duplicate(make_run(list(means)), averaged=5)


def test_run_with_unmatched_segment_is_no_duplicate() -> None:
    first, second, third = (print_steps(7.3, 0.003, 3, 1, seed) for seed in range(3))
    both, swapped = make_run(first, second), make_run(second, first)
    assert len(find_equal_steps(both, swapped)) == 2
    assert find_equal_steps(make_run(first, third), both) == []
    assert len(find_equal_steps(make_run(first), both)) == 1


def test_duplicate_with_lost_lines_shares_a_hash_of_steps_with_the_whole_log() -> None:
    whole = dataclasses.replace(steps(FINE), loss=np.linspace(12, 11, 50))
    for lost in (range(30, 50), range(20), (5, 17, 33)):
        ((all_steps, samples),) = hash_steps([whole])
        ((fewer_steps, fewer_samples),) = hash_steps([without(whole, *lost)])
        assert set(samples) & set(fewer_samples)
        assert all_steps != fewer_steps
    assert hash_steps([steps([7.3])]) != hash_steps([steps([7.4])])


def test_duplicates_are_found_among_runs_hashed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "HASHED_TOGETHER", 2)
    longer = [*FINE, 7.31, 7.32]
    runs = [
        make_run(times, job=str(number), id=f"x_{number}")
        for number, times in enumerate((FINE, CHANGED, longer, [7.4, *FINE], FINE), 1)
    ]
    marked, _ = mark_duplicates(runs[::-1])
    newest = marked[0].duplicate_of
    assert newest is not None
    assert (newest.job_id, newest.steps) == ("1", 50)


def test_hashes_of_a_segment_do_not_depend_on_the_others() -> None:
    absent = np.full(50, np.nan)
    rates = steps(
        absent.tolist(), tokens_per_second_per_gpu=np.linspace(900.0, 950.0, 50)
    )
    segments = [
        steps(FINE),
        rates,
        dataclasses.replace(steps(FINE), loss=absent),
        dataclasses.replace(
            steps(FINE), seconds=np.where(np.arange(50) % 7, FINE, np.nan)
        ),
        steps(FINE, first=3),
    ]
    alone = [hashes for segment in segments for hashes in hash_steps([segment])]
    assert hash_steps(segments) == alone
    assert len({hashes.whole for hashes in alone}) == len(segments)
    assert hash_steps([rates, rates]) == [alone[1], alone[1]]
