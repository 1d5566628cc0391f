"""What becomes of the items of a session."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_llmbench.core.baseline_records import TimedBy
from pytest_llmbench.core.codes import JUDGED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import BaselineKind, Key
    from pytest_llmbench.core.codes import Reason, Verdict
    from pytest_llmbench.core.job_records import LaunchedJob, Resumption
    from pytest_llmbench.core.judgement_records import Evidence, Judgement
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
class ConfigurationResult:
    """The verdict that decides an item, those against further baselines, and the jobs
    that it was launched as."""

    case: Case
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    jobs: tuple[LaunchedJob, ...] = ()
    nodes: str = ""
    """What is said of the nodes on which the jobs ran."""
    slow_nodes: tuple[str, ...] = ()
    """Those that were slow each time, and no other node was."""
    done: str = ""
    """What a job did that was not to be judged, such as a profile; empty for all
    others."""
    trials: TrialReport | None = None
    resumption: Resumption | None = None
    """How to go on with its session, where that only collected."""

    def pick_deciding(self, evidence: Sequence[Evidence]) -> Evidence:
        """Return which evidence, of that against each baseline, the verdict that
        decides was reached from."""
        return next(
            of_baseline
            for of_baseline in evidence
            if of_baseline.baseline is self.judgement.baseline
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result and what follows from it in this session."""

    result: ConfigurationResult
    status: Status
    context: tuple[str, ...] = ()
    """The sentences that the whole session adds: first that nothing was judged, then
    why."""
    recorded: str = ""
    """What was written instead of judging."""
    recorded_seconds: float | None = None
    message: str = ""
    """The text of the item."""
    baselines: tuple[Path, ...] = ()
    """The folders with which later sessions judge against what was recorded."""

    @property
    def case(self) -> Case:
        """The case that was judged."""
        return self.result.case

    @property
    def judgement(self) -> Judgement:
        """The verdict that decides."""
        return self.result.judgement

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
