"""What a reader of a green session should know besides: in a line each, in every report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CautionCode(StrEnum):
    """What a caution is about: stable, for programs that read the JSON document."""

    REPORTED_ONLY = "reported-only"
    """A check found a change to slower that fails nothing because nobody asked it to."""
    NOT_ASSERTED = "not-asserted"
    """A test of the user passed, or was skipped, though the verdict on its configuration is red."""
    LEFT_OUT = "left-out-by-selection"
    """A selection left out items that are about several configurations."""
    DESELECTED = "deselected"
    """Items that were deselected by id, or by a conftest."""
    NOT_RUN = "not-run"
    """Selected items that did not run."""
    SKIPPED_ITEMS = "skipped-items"
    """Items that a mark or a conftest skipped before there was a verdict."""
    NEWER_RUN = "newer-run-not-judged"
    """Runs that fit no configuration and have no item, and may be newer runs of what was judged."""
    WITHOUT_VERDICT = "without-verdict"
    """Selected configurations about which nothing is known."""
    TOLERANCE = "tolerance"
    RECORDED_SLOWER = "recorded-slower-than-published"
    ACKNOWLEDGED = "acknowledged"
    UNMATCHED = "unmatched"
    INCONCLUSIVE = "inconclusive"
    IMPROVEMENT = "improvement"
    BASELINE_RELEASE = "baseline-release"
    AGAINST = "against"
    ASSUMED_CV = "assumed-cv"
    SINCE = "since"
    MAX_AGE = "max-age"
    REPEAT_WINDOW = "repeat-window"
    DRIFT_BUDGET = "drift-budget"
    OVERRIDDEN = "overridden"
    """A stricter value of the ini file does not count, because another was given elsewhere."""


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that a reader should know before a green light is believed; `text` fits a line of a terminal."""

    code: CautionCode
    text: str
