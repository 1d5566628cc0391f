"""Records of a session's outcomes: results, checks, unmatched runs and cautions."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

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


class Case(Struct, frozen=True):
    """The subject of one test item."""

    id: str
    key: Key
    run_id: str = ""  # set if every run has its own item


class ComparedConfiguration(Struct, frozen=True):
    """A configuration compared with its reference.

    `measured` and `documented` are ratios of step times: an efficiency or a speed-up.
    """

    key: Key
    reference: Key
    baseline: BaselineKind  # the kind of the baselines behind `documented`
    measured: float  # the step time of the reference over that of the configuration
    documented: float
    verdict: Verdict


class Finding(StrEnum):
    """The result of a check, if the result is not a verdict."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    ON_BOUND = "ON_BOUND"
    CAUGHT = "CAUGHT"
    SURVIVED = "SURVIVED"
    NOTHING_JUDGED = "NOTHING_JUDGED"
    SLOW_NODE = "SLOW_NODE"
    SUSPECT_NODES = "SUSPECT_NODES"  # a node is slow, but it is not identified yet
    NO_NODE = "NO_NODE"  # there is no evidence of a slow node
    NOTHING_TO_TELL = "NOTHING_TO_TELL"


class CheckKind(StrEnum):
    """The subject of a check; checks run in this order."""

    CLUSTER_CHANGE = "cluster-change"
    WEAK_SCALING = "weak-scaling"
    FP8_SPEEDUP = "fp8-speedup"
    TREND = "trend"
    SLOW_NODE = "slow-node"
    SELFTEST = "selftest"
    SOMETHING_JUDGED = "something-was-judged"
    """Checks that at least one of the selected configurations was judged."""

    @property
    def test_name(self) -> str:
        """The name of its test in the built-in suite and of its file:
        `test_weak_scaling`."""
        return f"test_{self.replace('-', '_')}"


class Check(Struct, frozen=True):
    """The result of a check on several configurations, or on the gate itself."""

    kind: CheckKind
    id: str
    status: Status
    verdict: Verdict | Finding
    text: str
    lines: tuple[str, ...] = ()  # the rows of its table
    decides: bool = False  # False for a check that only reports
    members: tuple[Key, ...] = ()  # the configurations that could be compared
    compared: tuple[ComparedConfiguration, ...] = ()  # those that were compared
    timed: str = TimedBy.WINDOW  # the value of --llmb-timed
    # selecting one of these configurations also selects the item
    about: tuple[Key, ...] = ()

    @property
    def failed(self) -> bool:
        """True if the item must fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """True if the item must be skipped."""
        return self.status is Status.SKIPPED


class UnmatchedRun(Struct, frozen=True):
    """A run that matches no baseline, or an unreadable entry.

    Its item fails unless unmatched runs are allowed.
    """

    id: str
    reason: Reason
    text: str
    path: Path
    # the configurations for which an older run must not be judged in its place
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()  # the configurations that differ least
    started: datetime | None = None
    message: str = ""  # the text of the item
    # its possible configurations; selecting one of them also selects the item
    about: tuple[Key, ...] = ()
    summary: str = ""  # the short text for lists of runs
    advice: str = ""  # the options that would match the run


class Silence(Struct, frozen=True):
    """A configuration that did not run when it was due, although others did."""

    key: Key
    last: datetime  # the start of its last run
    others: datetime  # the start of the others' last run


class Status(StrEnum):
    """The status of a test item."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class ConfigurationResult(Struct, frozen=True):
    """The deciding verdict of an item, its verdicts against other baselines, and its
    jobs."""

    case: Case
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    jobs: tuple[LaunchedJob, ...] = ()
    nodes: str = ""
    """A sentence on the nodes that the jobs ran on."""
    slow_nodes: tuple[str, ...] = ()
    """Nodes that were slow in all their runs, while all other nodes were fast."""
    done: str = ""
    """The result of a job with another purpose, such as a profile; "" for other jobs.
    """
    trials: TrialReport | None = None
    resumption: Resumption | None = None
    """The command to resume the session, if it only collected."""

    def pick_deciding(self, evidence: Sequence[Evidence]) -> Evidence:
        """Return the evidence of the deciding verdict.

        `evidence` contains the evidence for each baseline.
        """
        deciding_baseline = self.judgement.baseline
        return next(item for item in evidence if item.baseline is deciding_baseline)


class Outcome(Struct, frozen=True):
    """A result and its consequences in this session."""

    result: ConfigurationResult
    status: Status
    context: tuple[str, ...] = ()
    """Sentences added by the session: that nothing was judged, followed by the reason.
    """
    recorded: str = ""
    """A description of the values that were recorded instead of judged."""
    recorded_seconds: float | None = None
    baselines: tuple[Path, ...] = ()
    """The baseline folders that later sessions need to judge against the recorded
    values."""

    @property
    def case(self) -> Case:
        """The test case that the outcome belongs to: a configuration or a check."""
        return self.result.case

    @property
    def judgement(self) -> Judgement:
        """The deciding verdict."""
        return self.result.judgement

    @property
    def judged(self) -> bool:
        """True if the verdict is based on a valid run.

        False if the session judged nothing; `context` then states the reason.
        """
        return self.judgement.verdict in JUDGED and not self.context

    @property
    def failed(self) -> bool:
        """True if the item must fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """True if the item must be skipped."""
        return self.status is Status.SKIPPED


class CautionCode(StrEnum):
    """The subject of a caution: stable codes for programs that read the JSON document."""

    REPORTED_ONLY = "reported-only"
    """A check found a slowdown but did not fail: `trend: 6 SLOWER`."""
    NOT_ASSERTED = "not-asserted"
    """A test of the user passed or was skipped although its verdict fails."""
    LEFT_OUT = "left-out-by-selection"
    """The selection (-k, -m, ids) left out tests that have a run; while launching or
    recording, only failing ones are reported."""
    DESELECTED = "deselected"
    """`--deselect`, a conftest or a plugin deselected tests that have a run."""
    NOT_RUN = "not-run"
    """Selected tests that have a run were not executed."""
    SKIPPED_ITEMS = "skipped-items"
    """Tests were skipped before they had a verdict."""
    NEWER_RUN = "newer-run-not-judged"
    """Runs or files that are, or may be, newer than the judged runs were not judged."""
    SILENT = "silent"
    """Configurations did not run when they were due, although others did."""
    RETRIED = "retried"
    """Most runs within 12 hours were invalid or slow, and the last one is good."""
    WITHOUT_VERDICT = "without-verdict"
    """Selected configurations have no verdict."""
    TOLERANCE = "tolerance"
    """Another tolerance than 5 % decided; stricter tolerances on the command line are
    not reported."""
    RECORDED_SLOWER = "recorded-slower-than-published"
    """A recorded baseline is more than 5 % slower than the published value."""
    RECORDED_MOVED = "recorded-moved"
    """Accepted moves of recorded values add up to more than the drift budget."""
    DRIFT_ACCEPTED = "drift-accepted"
    """A value beyond the drift budget was recorded, because an entry accepts it."""
    ACKNOWLEDGED = "acknowledged"
    """Accepted changes or accepted reasons to fail are in force."""
    UNMATCHED = "unmatched"
    """Unmatched runs do not fail (`--llmb-unmatched=list`)."""
    INCONCLUSIVE = "inconclusive"
    """INCONCLUSIVE runs are skipped (`--llmb-inconclusive=skip`)."""
    IMPROVEMENT = "improvement"
    """Improvements pass, however large (`--llmb-improvement=pass`)."""
    BASELINE_RELEASE = "baseline-release"
    """Runs are judged against another release (`--llmb-baseline-release`)."""
    AGAINST = "against"
    """Recorded baselines are ignored (`--llmb-against=published`), set in a file or in
    PYTEST_ADDOPTS."""
    ASSUMED_CV = "assumed-cv"
    """The assumed run-to-run variation is not 1 %."""
    SINCE = "since"
    """Runs before a date are not judged (`--llmb-since`), set in a file or in PYTEST_ADDOPTS."""
    MAX_AGE = "max-age"
    """Configurations are stale (`--llmb-max-age`), set in a file or in PYTEST_ADDOPTS."""
    REPEAT_WINDOW = "repeat-window"
    """Runs are averaged (`llmb_repeat_window`), set in a file or in PYTEST_ADDOPTS."""
    DRIFT_BUDGET = "drift-budget"
    """The drift budget is larger than 5 %."""
    SETTING_CHANGED = "setting-changed"
    """A setting of a run differs from the recorded runs."""
    TIME_LOST = "time-lost"
    """A run lost time outside its step times, more than recorded or without a recording
    to compare with, but does not fail."""
    PREFLIGHT = "preflight-overruled"
    """Failed preflight checks were ignored (`--llmb-ignore`)."""
    OVERRIDDEN = "overridden"
    """A stricter ini key is overridden, or is in a file that pytest ignores."""


class Caution(Struct, frozen=True):
    """A limitation that a reader should know before trusting a passed session."""

    code: CautionCode
    text: str  # fits a line of a terminal
