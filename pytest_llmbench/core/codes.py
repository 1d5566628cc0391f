"""Stable codes of verdicts, of their reasons and of their notes."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on one configuration."""

    PASS = "PASS"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MISSING = "MISSING"


JUDGED = frozenset(
    {Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE}
)
"""Verdicts that are based on a valid run."""

MAY_PASS = (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE)
"""Verdicts whose item may pass, depending on the options of the session."""

ABSENT = (Verdict.MISSING, Verdict.NOT_COMPARABLE)
"""Verdicts without a comparison."""


class Reason(StrEnum):
    """The reason for a verdict: stable codes for machines."""

    WITHIN_TOLERANCE = "within-tolerance"
    SLOWER_THAN_BOUND = "slower-than-bound"
    FASTER_THAN_BASELINE = "faster-than-baseline"
    IMPLAUSIBLY_FAST = "implausibly-fast"
    CANNOT_TELL = "cannot-tell"
    WARMING_UP = "warming-up"
    FEW_STEPS_DECIDE = "few-steps-decide"
    DIVERGED = "diverged"
    DID_NOT_TRAIN = "did-not-train"
    LOSS_MISSING = "loss-missing"
    INCOMPLETE = "incomplete"
    STILL_RUNNING = "still-running"
    NO_STEPS = "no-steps"
    WINDOW_INCOMPLETE = "window-incomplete"
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    COPIED = "copied"
    WRONG_CONFIGURATION = "wrong-configuration"
    PROFILED = "profiled"
    TRACED = "traced"
    CHECKPOINT_LOAD = "checkpoint-load"
    NO_RUN = "no-run"
    TOO_OLD = "too-old"
    TOO_FEW_RUNS = "too-few-runs"
    START_UNKNOWN = "start-unknown"
    ONLY_NOT_COMPARABLE = "only-not-comparable"
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    UNREADABLE = "unreadable"
    REPEATS_DISAGREE = "repeats-disagree"
    UNCONFIRMED = "unconfirmed"
    NO_BASELINE = "no-baseline"
    NOT_ON_CLUSTER = "not-on-cluster"
    NOT_LAUNCHED = "not-launched"
    NOT_SUBMITTED = "not-submitted"
    NEVER_STARTED = "never-started"
    JOB_FAILED = "job-failed"
    FAILED_STEP = "failed-step"
    CANCELLED = "cancelled"
    HUNG = "hung"
    JOB_LOST = "job-lost"
    LOG_MISSING = "log-missing"
    OVER_BUDGET = "over-budget"
    BUDGET_UNKNOWN = "budget-unknown"
    DRIFTED = "drifted"
    PURPOSE_DONE = "not-judged"  # the job had another purpose, such as a profile
    PURPOSE_MISSED = "nothing-left"  # the job did not produce, say, its profile
    VARIANT = "variant"
    VARIANT_SLOWER = "slower-variant"
    NO_CHANGE_BETWEEN_ENDS = "no-change-between-ends"
    RANGE = "range"
    WALL_CLOCK = "wall-clock"
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    LESS_WORK = "less-work"
    TIMES_DISAGREE = "times-disagree"
    ORDER_AMBIGUOUS = "order-ambiguous"
    BASELINE_CONTRADICTS = "baseline-contradicts"
    INTERVAL_TOO_WIDE = "interval-too-wide"
    MARK_UNREADABLE = "mark-unreadable"


ACCEPTABLE = frozenset(
    {
        Reason.BASELINE_CONTRADICTS,
        Reason.DID_NOT_TRAIN,
        Reason.DIVERGED,
        Reason.FEW_STEPS_DECIDE,
        Reason.INTERVAL_TOO_WIDE,
        Reason.LESS_WORK,
        Reason.LOSS_MISSING,
        Reason.ORDER_AMBIGUOUS,
        Reason.SLOW_OUTSIDE_WINDOW,
        Reason.TIMES_DISAGREE,
        Reason.WALL_CLOCK,
    }
)
"""Reasons that an `accept:` entry in the file of acknowledged changes may name.

The run is then judged by its step time as if the reason did not apply.
"""

EXCLUDING = frozenset(
    {Reason.PROFILED, Reason.TRACED, Reason.CHECKPOINT_LOAD, Reason.VARIANT}
)
"""Reasons that make a run NOT_COMPARABLE."""

INVALIDATING = frozenset(
    {
        # of a single run
        Reason.ASYNCHRONOUS_DISPATCH,
        Reason.COPIED,
        Reason.DID_NOT_TRAIN,
        Reason.DIVERGED,
        Reason.IMPOSSIBLE_SAMPLE,
        Reason.INCOMPLETE,
        Reason.LESS_WORK,
        Reason.LOSS_MISSING,
        Reason.NO_STEPS,
        Reason.SLOW_OUTSIDE_WINDOW,
        Reason.STILL_RUNNING,
        Reason.TIMES_DISAGREE,
        Reason.UNREADABLE,
        Reason.WALL_CLOCK,
        Reason.WINDOW_INCOMPLETE,
        Reason.WRONG_CONFIGURATION,
        # of its job
        Reason.CANCELLED,
        Reason.FAILED_STEP,
        Reason.HUNG,
        Reason.JOB_FAILED,
        Reason.JOB_LOST,
        Reason.LOG_MISSING,
        Reason.NEVER_STARTED,
        Reason.NOT_SUBMITTED,
        Reason.PURPOSE_MISSED,
        # of a run compared with other runs or with its baseline
        Reason.AMBIGUOUS,
        Reason.BASELINE_CONTRADICTS,
        Reason.BUDGET_UNKNOWN,
        Reason.NO_BASELINE,
        Reason.ORDER_AMBIGUOUS,
        Reason.START_UNKNOWN,
        # of the runs of a recording
        Reason.CANNOT_TELL,
        Reason.FEW_STEPS_DECIDE,
        Reason.REPEATS_DISAGREE,
        Reason.WARMING_UP,
    }
)
"""Reasons that make a result INVALID; the last four only the result of a recording."""


class Observed(StrEnum):
    """Values that a recorded baseline stores in addition to the step time.

    Later runs are compared with them.
    """

    # wall-clock time of the window over the sum of its step times
    WALL_CLOCK_RATIO = "wall_clock_ratio"
    # the same ratio for all steps after the warm-up, without the longest gaps
    RUN_CLOCK_RATIO = "run_clock_ratio"
    # gaps between steps outside the window, as a fraction of the run's step time
    OUTSIDE_GAPS = "outside_gaps"
    # time lost by slow steps outside the window, as a fraction of the run's step time
    OUTSIDE_LOSS = "outside_loss"
    # how much slower the median step outside the window is than the window
    OUTSIDE_LEVEL = "outside_level"
    # duration of the warm-up minus that of as many steps of the window, in seconds
    WARM_UP_LOSS = "warm_up_loss"
    # seconds between two steps in addition to the step time
    LONGEST_EVALUATION = "longest_evaluation"
    LONGEST_SAVE = "longest_save"
    # a pause at a fixed interval of steps that the log does not explain
    LONGEST_REGULAR_PAUSE = "longest_regular_pause"
    # the printed rate x the time between the timestamps of the lines
    WORK_PER_STEP = "work_per_step"
    FIRST_LOSS = "first_loss"  # the median of the first losses of the run
    LAST_LOSS = "last_loss"  # the median of the last losses of the window
    GRADIENT_NORM = "gradient_norm"  # the median over the window
    SAMPLES_PER_STEP = "samples_per_step"  # as counted by the log
    TOKENS_PER_STEP = "tokens_per_step"  # as counted by the log
    TARGETS_PER_STEP = "targets_per_step"  # the tokens of a step with a loss
    SAMPLES_BY_RATE = "samples_by_rate"  # the printed samples/s x the printed step time
    # the printed tokens/s of a GPU x the printed step time
    TOKENS_BY_RATE = "tokens_by_rate"


class NoteCode(StrEnum):
    """The subject of a note: stable codes for machines."""

    ACKNOWLEDGED = "acknowledged"
    ACKNOWLEDGEMENT_EXPIRED = "acknowledgement-expired"
    ACKNOWLEDGEMENT_IDLE = "acknowledgement-idle"
    ASSUMED = "assumed"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    ATTEMPTS = "attempts"
    BASELINE_CONTRADICTS = "baseline-contradicts"
    BEGUN_AGAIN = "begun-again"
    BUDGET_UNKNOWN = "budget-unknown"
    BUDGET_UNUSED = "budget-unused"
    BUILD_UNKNOWN = "build-unknown"
    CHECKPOINT_MISSING = "checkpoint-missing"
    CHECKPOINT_SAVED = "checkpoint-saved"
    CLOCK_RESTARTED = "clock-restarted"
    CLOCK_SET = "clock-set"
    COARSE_BASELINE = "coarse-baseline"
    DRIFT = "drift"
    FEW_RECORDED = "few-recorded"
    FEWER_RUNS = "fewer-runs"
    HICCUP = "hiccup"
    HICCUPS_OFTEN = "hiccups-often"
    IMPOSSIBLE_STEPS = "impossible-steps"
    INTERLEAVED = "interleaved"
    INTERVAL_MEAN = "interval-mean"
    LEFT_OUT = "left-out"
    LOSS_MISSING_BEFORE = "loss-missing-before"
    LOSS_STANDS_STILL = "loss-stands-still"
    MEAN_AND_TRIMMED = "mean-and-trimmed"
    MORE_WORK = "more-work"
    MOVING_MEAN = "moving-mean"
    MOVING_MEAN_WARM_UP = "moving-mean-warm-up"
    NEWER_JOB = "newer-job"
    NOISIER = "noisier"
    NORM_UNKNOWN = "norm-unknown"
    NOT_COMPARABLE = "not-comparable"
    OLDER_RUNS = "older-runs"
    ORDER_AMBIGUOUS = "order-ambiguous"
    ORDER_FILE_TIME = "order-file-time"
    ORDER_MIXED = "order-mixed"
    OTHER_DIALECT = "other-dialect"
    OTHER_RANK = "other-rank"
    OTHER_RECORDS = "other-records"
    OTHER_RELEASE = "other-release"
    OTHER_UNIT = "other-unit"
    OVER_BUDGET = "over-budget"
    PADDED = "padded"
    PARTLY_TIMED = "partly-timed"
    PATH_MASKED = "path-masked"
    PAUSES = "pauses"
    PROFILER_REPORT = "profiler-report"
    RAMPED_UP = "ramped-up"
    RATE_OF_SAMPLES = "rate-of-samples"
    RECORDED_AGAINST_PUBLISHED = "recorded-against-published"
    RECORDED_DRIFT = "recorded-drift"
    RECORDED_DRIFT_LITTLE = "recorded-drift-little"
    RECORDED_FEW_GROUPS = "recorded-few-groups"
    RECORDED_GROUPS = "recorded-groups"
    RECORDED_LEVELS = "recorded-levels"
    RECORDED_MOVED = "recorded-moved"
    RECORDED_REPLACED = "recorded-replaced"
    REPEAT_DISAGREES = "repeat-disagrees"
    REPEAT_LOST = "repeat-lost"
    REPEATED = "repeated"
    REPEATS = "repeats"
    REPEATS_DISAGREE = "repeats-disagree"
    RUNNING_AVERAGE = "running-average"
    SAME_STEPS = "same-steps"
    SETTING_CHANGED = "setting-changed"
    SETTING_ONE_SIDED = "setting-one-sided"
    SEGMENTS = "segments"
    SKIPPED_STEPS = "skipped-steps"
    SLOW_RANK = "slow-rank"
    # slow outside the window, but no recording shows the usual level
    SLOW_OUTSIDE_UNCOMPARED = "slow-outside-uncompared"
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    SLOW_WARM_UP = "slow-warm-up"
    SLOWER_THAN_BASELINE = "slower-than-baseline"
    SLOWEST_ATTEMPT = "slowest-attempt"
    STEPS = "steps"
    STRAGGLERS = "stragglers"
    THRESHOLD_ONLY = "threshold-only"
    TIME_FROM_TOKENS = "time-from-tokens"
    TIMES_DISAGREE = "times-disagree"
    TORN = "torn"
    TWO_LEVELS = "two-levels"
    TWO_WRITERS = "two-writers"
    UNKNOWN_STEP = "unknown-step"
    UNTIMED_STEPS = "untimed-steps"
    UNVERIFIED_BATCH = "unverified-batch"
    UNVERIFIED_LOSS = "unverified-loss"
    WALL_CLOCK = "wall-clock"
    WARM_UP = "warm-up"
