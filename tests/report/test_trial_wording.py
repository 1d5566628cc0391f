"""The sentences of a bisect result."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    BisectOutcome,
    BuildRange,
    LocatedChange,
    PairedEstimate,
)
from pytest_llmbench.report.trial_wording import describe_search

NAMES = [f"c{number}" for number in range(9)]
ENDS = PairedEstimate(
    0.0005,
    -0.002,
    0.003,
    0.036,
    0.01,
    0.001,
    6.0,
    Noise(0.002, 6.0, "", measured=True),
    (4, 4),
)
CHANGE = LocatedChange(5, 5, 0.9987, 0.0208, 0.016, 0.0257, 0.98)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            BisectAnswer(BisectOutcome.FOUND, ENDS, 13, changes=(CHANGE,)),
            "first slow: c5: +2.10 % (95 %: +1.61 % to +2.60 %), 99.8 % sure, 98 % of the difference between the ends; 13 runs",
        ),
        (
            BisectAnswer(
                BisectOutcome.FOUND,
                ENDS,
                13,
                skipped=(4,),
                changes=(
                    LocatedChange(
                        4, 5, 0.96, 0.01, 0.008, 0.012, 0.5, rest_before=0.01
                    ),
                ),
            ),
            "first slow: one of c4 to c5: +1.01 % (95 %: +0.80 % to +1.21 %), 96 % sure, 50 % of the difference between the ends; "
            "another +1.01 % occurred before it; 13 runs; do not run: c4",
        ),
        (
            BisectAnswer(
                BisectOutcome.RANGE, ENDS, 36, ranges=(BuildRange(3, 6, 0.9999),)
            ),
            "the first slow build is one of c3 to c6, 99.9 % sure; stopped at the maximum number of runs; 36 runs",
        ),
        (
            BisectAnswer(BisectOutcome.NO_CHANGE_BETWEEN_ENDS, ENDS, 8),
            "no change between c0 and c8, so there is nothing to search (92.8 %: -0.20 % to +0.30 %); 8 runs",
        ),
        (
            BisectAnswer(BisectOutcome.LOST, None, 1),
            "two jobs in a row were lost; 1 run",
        ),
    ],
)
def test_result_of_a_build_search_is_described_in_one_sentence(
    answer: BisectAnswer, text: str
) -> None:
    """A probability is never rounded to certainty."""
    assert describe_search(answer, NAMES, None) == text
