"""What becomes of the items of a session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_llmbench.core.models.baselines import TimedBy
from pytest_llmbench.core.models.judgements import JUDGED

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.models.baselines import BaselineKind, Key
    from pytest_llmbench.core.models.jobs import LaunchedJob
    from pytest_llmbench.core.models.judgements import Judgement, Reason, Verdict


@dataclass(frozen=True, slots=True)
class Case:
    """What one test item is about: a configuration, with `run_id` where every run has an item of its own."""

    id: str
    key: Key
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class ComparedConfiguration:
    """A configuration beside its reference: the efficiency or speed-up that was measured, and that of the baselines of
    a kind (`baseline`); both are step times of the reference over those of the configuration."""

    key: Key
    reference: Key
    baseline: BaselineKind
    measured: float
    documented: float
    verdict: Verdict


class Finding(StrEnum):
    """What an item besides the configurations says where that is no verdict."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    ON_BOUND = "ON_BOUND"
    CAUGHT = "CAUGHT"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Check:
    """What one item besides the configurations says: of several of them together, or of the gate itself.

    `lines` are the rows of its table, `message` the text of the item. `decides` is False where it only reports.
    `members` are all that could be compared, `compared` those that were. A selection of one of the configurations in
    `about` selects the item.
    """

    kind: str  # that of its row in pipeline.checks, which is all that declares a check
    id: str
    status: Status
    verdict: Verdict | Finding
    text: str
    lines: tuple[str, ...] = ()
    decides: bool = False
    message: str = ""
    members: tuple[Key, ...] = ()
    compared: tuple[ComparedConfiguration, ...] = ()
    timed: str = TimedBy.WINDOW  # the value of --llmb-timed
    about: tuple[Key, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the item has to fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """Whether the item has to be skipped."""
        return self.status is Status.SKIPPED


@dataclass(frozen=True, slots=True)
class UnmatchedRun:
    """A run that no baseline fits, or an entry that could not be read: an item that fails unless it is allowed.

    `candidates` are the configurations of which an older run must not stand for it, `nearest` those that differ least,
    `message` is the text of its item. `about` are all that it may be a run of: a selection of one of them selects it.
    """

    id: str
    reason: Reason
    text: str
    path: Path
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()
    started: datetime | None = None
    message: str = ""
    about: tuple[Key, ...] = ()


class Status(StrEnum):
    """What becomes of the item of a verdict."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what follows from it in this session.

    `others` are the verdicts against further baselines, `context` is what the whole session adds ("nothing was
    judged"), `recorded` and `recorded_seconds` what was written instead of judging, `message` the text of the item.
    `jobs` are those that were launched for it, in order, and `nodes` says what they tell of the nodes. `baselines` are
    the folders with which later sessions judge against what was recorded.
    """

    case: Case
    status: Status
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    context: str = ""
    recorded: str = ""
    recorded_seconds: float | None = None
    message: str = ""
    jobs: tuple[LaunchedJob, ...] = ()
    nodes: str = ""
    baselines: tuple[Path, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether the verdict rests on a valid run, and nothing in the session puts it in doubt."""
        return self.judgement.verdict in JUDGED and not self.context

    @property
    def failed(self) -> bool:
        """Whether the item has to fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """Whether the item has to be skipped."""
        return self.status is Status.SKIPPED


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
