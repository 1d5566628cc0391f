"""What becomes of the items of a session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_llmbench.core.baseline_records import TimedBy
from pytest_llmbench.core.codes import JUDGED

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import BaselineKind, Key
    from pytest_llmbench.core.codes import Reason, Verdict
    from pytest_llmbench.core.job_records import LaunchedJob, Resumption
    from pytest_llmbench.core.judgement_records import Judgement
    from pytest_llmbench.core.trial_records import TrialReport


@dataclass(frozen=True, slots=True)
class Case:
    """What one test item is about."""

    id: str
    key: Key
    run_id: str = ""  # where every run has an item of its own


@dataclass(frozen=True, slots=True)
class ComparedConfiguration:
    """A configuration beside its reference: the efficiency or speed-up, a ratio of step
    times."""

    key: Key
    reference: Key
    baseline: BaselineKind  # the kind of the baselines that say what is documented
    measured: float  # the step time of the reference over that of the configuration
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
    NOTHING_JUDGED = "NOTHING_JUDGED"
    SLOW_NODE = "SLOW_NODE"
    SUSPECT_NODES = (
        "SUSPECT_NODES"  # a slow node is evident, and which one cannot be told yet
    )
    NO_NODE = "NO_NODE"  # none is evident
    NOTHING_TO_TELL = "NOTHING_TO_TELL"


class CheckKind(StrEnum):
    """What an item besides the configurations is about; in this order they run."""

    CLUSTER_CHANGE = "cluster-change"
    WEAK_SCALING = "weak-scaling"
    FP8_SPEEDUP = "fp8-speedup"
    TREND = "trend"
    SLOW_NODE = "slow-node"
    SELFTEST = "selftest"
    SOMETHING_JUDGED = "something-was-judged"
    """Whether any configuration was: what the selection leaves decides it."""

    @property
    def test_name(self) -> str:
        """The name of its test in the built-in suite, and of the file:
        `test_weak_scaling`."""
        return f"test_{self.replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class Check:
    """What one item besides the configurations says: of several of them together, or of
    the gate itself."""

    kind: CheckKind
    id: str
    status: Status
    verdict: Verdict | Finding
    text: str
    lines: tuple[str, ...] = ()  # the rows of its table
    decides: bool = False  # False where it only reports
    message: str = ""  # the text of the item
    members: tuple[Key, ...] = ()  # all that could be compared
    compared: tuple[ComparedConfiguration, ...] = ()  # those that were
    timed: str = TimedBy.WINDOW  # the value of --llmb-timed
    about: tuple[
        Key, ...
    ] = ()  # a selection of one of these configurations selects the item

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
    """A run that no baseline fits, or an entry that could not be read: an item that
    fails unless it is allowed."""

    id: str
    reason: Reason
    text: str
    path: Path
    candidates: tuple[
        Key, ...
    ] = ()  # the configurations of which an older run must not stand for it
    nearest: tuple[Key, ...] = ()  # those that differ least
    started: datetime | None = None
    message: str = ""  # the text of its item
    about: tuple[
        Key, ...
    ] = ()  # all that it may be a run of: a selection of one of them selects it
    summary: str = ""  # the text as a list of runs shows it
    advice: str = ""  # the options that would match it


@dataclass(frozen=True, slots=True)
class Silence:
    """A configuration without a run since its turn, though others have one."""

    key: Key
    last: datetime  # when it ran last
    others: datetime  # when the others did


class Status(StrEnum):
    """What becomes of the item of a verdict."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what follows from it in this session."""

    case: Case
    status: Status
    judgement: Judgement
    others: tuple[Judgement, ...] = ()  # the verdicts against further baselines
    context: tuple[
        str, ...
    ] = ()  # the sentences that the whole session adds: first that nothing was judged, then why
    recorded: str = ""  # what was written instead of judging
    recorded_seconds: float | None = None
    message: str = ""  # the text of the item
    jobs: tuple[LaunchedJob, ...] = ()  # those that were launched for it, in order
    nodes: str = ""  # what the jobs tell of the nodes
    slow_nodes: tuple[
        str, ...
    ] = ()  # those that were slow each time, while others were not
    resumption: Resumption | None = (
        None  # how to go on with its session, where that only collected
    )
    trials: TrialReport | None = None  # what an A/B or a search over builds says
    baselines: tuple[
        Path, ...
    ] = ()  # the folders with which later sessions judge against what was recorded

    @property
    def judged(self) -> bool:
        """Whether the verdict rests on a valid run, and nothing in the session puts it
        in doubt."""
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

    # a check found a change to slower that fails nothing because nobody asked it to
    REPORTED_ONLY = "reported-only"
    # a user's test passed, or was skipped, though the verdict on it is red
    NOT_ASSERTED = "not-asserted"
    # a selection left out items that are about several configurations
    LEFT_OUT = "left-out-by-selection"
    DESELECTED = "deselected"  # items that were deselected by id, or by a conftest
    NOT_RUN = "not-run"  # selected items that did not run
    # items that a mark or a conftest skipped before there was a verdict
    SKIPPED_ITEMS = "skipped-items"
    # runs without a configuration, in files that are not read, or in the history alone,
    # which are or may be newer ones of what was judged
    NEWER_RUN = "newer-run-not-judged"
    # configurations that run regularly and missed their turn, though others had theirs
    SILENT = "silent"
    RETRIED = "retried"  # most runs of a night are bad, and the last one is good
    WITHOUT_VERDICT = (
        "without-verdict"  # selected configurations about which nothing is known
    )
    TOLERANCE = "tolerance"
    RECORDED_SLOWER = "recorded-slower-than-published"
    # accepted values of a recorded baseline add up to more than the drift budget
    RECORDED_MOVED = "recorded-moved"
    # a value was recorded beyond the drift budget, since an entry accepts it
    DRIFT_ACCEPTED = "drift-accepted"
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
    # a run states a setting otherwise that makes it no other configuration
    SETTING_CHANGED = "setting-changed"
    # a run lost time outside its step time, and nothing recorded shows how much is
    # usual
    TIME_LOST = "time-lost"
    # a launch went on although a check before it had found something
    PREFLIGHT = "preflight-overruled"
    # a stricter value of the ini file does not count, because another was given
    # elsewhere
    OVERRIDDEN = "overridden"


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that a reader should know before a green light is believed."""

    code: CautionCode
    text: str  # fits a line of a terminal
