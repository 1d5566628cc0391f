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
    """The interval lies below the limit."""
    SLOWER_THAN_BOUND = "slower-than-bound"
    """The interval lies above the limit."""
    FASTER_THAN_BASELINE = "faster-than-baseline"
    """The interval lies below baseline / (1 + tolerance)."""
    IMPLAUSIBLY_FAST = "implausibly-fast"
    """More than 15 % faster: probably another configuration."""
    CANNOT_TELL = "cannot-tell"
    """The limit lies inside the interval; while recording, the runs drift too much."""
    WARMING_UP = "warming-up"
    """The first third of the window is slower than the rest."""
    FEW_STEPS_DECIDE = "few-steps-decide"
    """Mean and trimmed mean lead to different verdicts."""
    DIVERGED = "diverged"
    """A loss or gradient norm is NaN, or the loss rose far above its start."""
    DID_NOT_TRAIN = "did-not-train"
    """Learning rate, gradient norm, loss or skipped updates show that nothing was
    learned."""
    LOSS_MISSING = "loss-missing"
    """The log prints no loss, although the recorded runs print one."""
    INCOMPLETE = "incomplete"
    """The log ends before the last step."""
    STILL_RUNNING = "still-running"
    """The job still writes its log."""
    NO_STEPS = "no-steps"
    """The log contains no step."""
    WINDOW_INCOMPLETE = "window-incomplete"
    """Steps of the window are missing, or printed means cross its ends."""
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    """A step in the window is faster than 100 % MFU, or has no time."""
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    """Times in the window are those of the dispatch, not of the GPU."""
    COPIED = "copied"
    """The steps are those of another job."""
    WRONG_CONFIGURATION = "wrong-configuration"
    """GPUs, precision, batch, model or work of a step differ from the configuration."""
    PROFILED = "profiled"
    """The run was profiled."""
    TRACED = "traced"
    """The run was traced with NCCL_DEBUG."""
    CHECKPOINT_LOAD = "checkpoint-load"
    """The run only loads a checkpoint."""
    NO_RUN = "no-run"
    """No run of the configuration was found."""
    TOO_OLD = "too-old"
    """The newest run is older than `--llmb-max-age`."""
    TOO_FEW_RUNS = "too-few-runs"
    """A suite file requires more valid runs."""
    START_UNKNOWN = "start-unknown"
    """The run is undated, so it may be older than `--llmb-since` or `--llmb-max-age`."""
    ONLY_NOT_COMPARABLE = "only-not-comparable"
    """All runs are profiled, traced, or load a checkpoint."""
    UNMATCHED = "unmatched"
    """The run fits no baseline."""
    AMBIGUOUS = "ambiguous"
    """The run fits several baselines, or a newer unmatched run may be of this
    configuration."""
    UNREADABLE = "unreadable"
    """A file or folder cannot be read."""
    REPEATS_DISAGREE = "repeats-disagree"
    """The runs of a launch, or of a recording, differ too much."""
    UNCONFIRMED = "unconfirmed"
    """One launched run is slow, and no second run confirms it."""
    NO_BASELINE = "no-baseline"
    """The baseline file has no step time for the configuration yet."""
    NOT_ON_CLUSTER = "not-on-cluster"
    """The configuration does not fit this cluster."""
    NOT_LAUNCHED = "not-launched"
    """The session launched nothing for the configuration."""
    NOT_SUBMITTED = "not-submitted"
    """The job could not be submitted."""
    NEVER_STARTED = "never-started"
    """The job waited too long, or for something that never comes."""
    JOB_FAILED = "job-failed"
    """The job ended with an error of its own, or of the infrastructure."""
    FAILED_STEP = "failed-step"
    """A step of the job failed, although the job ended well."""
    CANCELLED = "cancelled"
    """Somebody cancelled the job."""
    HUNG = "hung"
    """The job printed no sign of life for longer than its limit."""
    JOB_LOST = "job-lost"
    """The scheduler does not know the job any more."""
    LOG_MISSING = "log-missing"
    """The job ended and left no log."""
    OVER_BUDGET = "over-budget"
    """A checkpoint took longer than its budget."""
    BUDGET_UNKNOWN = "budget-unknown"
    """A checkpoint budget cannot be checked."""
    DRIFTED = "drifted"
    """The run, or the recorded value, is beyond the drift budget."""
    PURPOSE_DONE = "not-judged"
    """The job did what it was for: a profile, a trace, a checkpoint, an A/B run."""
    PURPOSE_MISSED = "nothing-left"
    """The job left no profile, trace or checkpoint, or no answer."""
    VARIANT = "variant"
    """The run belongs to an A/B test or a search."""
    VARIANT_SLOWER = "slower-variant"
    """A variant is slower than the reference."""
    NO_CHANGE_BETWEEN_ENDS = "no-change-between-ends"
    """A search found no difference between its ends."""
    RANGE = "range"
    """A search ended with a range of builds."""
    WALL_CLOCK = "wall-clock"
    """Time stamps advance more than the step times, or pauses outside the window are
    too long."""
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    """Steps outside the window are much slower than inside."""
    LESS_WORK = "less-work"
    """Steps contain fewer samples or tokens than recorded, or fewer than at the start."""
    TIMES_DISAGREE = "times-disagree"
    """Step times contradict printed rates or time stamps."""
    ORDER_AMBIGUOUS = "order-ambiguous"
    """Two runs may be the newest, and only one of them fails."""
    BASELINE_CONTRADICTS = "baseline-contradicts"
    """The step time of the baseline contradicts its other values."""
    INTERVAL_TOO_WIDE = "interval-too-wide"
    """The steps do not determine the step time well enough."""
    MARK_UNREADABLE = "mark-unreadable"
    """A marker file of an A/B test cannot be read."""


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

REFUSING_RECORDINGS = frozenset(
    {
        Reason.CANNOT_TELL,
        Reason.FEW_STEPS_DECIDE,
        Reason.REPEATS_DISAGREE,
        Reason.WARMING_UP,
    }
)
"""Reasons that make a recording INVALID."""

INVALIDATING = REFUSING_RECORDINGS | frozenset(
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
    }
)
"""Reasons that make a run or a recording INVALID."""


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
    """An accepted change or reason applies."""
    ACKNOWLEDGEMENT_EXPIRED = "acknowledgement-expired"
    """An accepted change has expired."""
    ACKNOWLEDGEMENT_IDLE = "acknowledgement-idle"
    """An accepted change has no effect, or can be removed."""
    ASSUMED = "assumed"
    """Release or GPU type were assumed."""
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    """Times of dispatch outside the window were ignored."""
    ATTEMPTS = "attempts"
    """The logs contain several attempts; names the judged one."""
    BASELINE_CONTRADICTS = "baseline-contradicts"
    """The baseline contradicts itself; accepted."""
    BEGUN_AGAIN = "begun-again"
    """The steps begin again in the log."""
    BUDGET_UNKNOWN = "budget-unknown"
    """A checkpoint budget cannot be checked."""
    BUDGET_UNUSED = "budget-unused"
    """The run saved or loaded no checkpoint."""
    BUILD_UNKNOWN = "build-unknown"
    """The build is unknown, so the run has no repeats."""
    CHECKPOINT_MISSING = "checkpoint-missing"
    """The log names a checkpoint that is not there."""
    CHECKPOINT_SAVED = "checkpoint-saved"
    """The run saved a checkpoint in the window."""
    CLOCK_RESTARTED = "clock-restarted"
    """The elapsed time restarted; steps without a time were ignored."""
    CLOCK_SET = "clock-set"
    """The clock was set; the jump is removed from the times."""
    COARSE_BASELINE = "coarse-baseline"
    """The baseline's rounding exceeds a tenth of the margin."""
    DRIFT = "drift"
    """The steps drift over the window."""
    FEW_RECORDED = "few-recorded"
    """The baseline was recorded from fewer than three days or sets of nodes."""
    FEWER_RUNS = "fewer-runs"
    """Fewer runs were made than the suite file asks for."""
    HICCUP = "hiccup"
    """A transient stall was replaced by the next slowest step."""
    HICCUPS_OFTEN = "hiccups-often"
    """Transient stalls occurred too often and are not forgiven."""
    IMPOSSIBLE_STEPS = "impossible-steps"
    """Impossible times outside the window were ignored."""
    INTERLEAVED = "interleaved"
    """Two processes wrote into one record."""
    INTERVAL_MEAN = "interval-mean"
    """The log prints means of several steps."""
    LEFT_OUT = "left-out"
    """Steps were left out."""
    LOSS_MISSING_BEFORE = "loss-missing-before"
    """The loss is missing before the window."""
    LOSS_STANDS_STILL = "loss-stands-still"
    """The printed loss does not move."""
    MEAN_AND_TRIMMED = "mean-and-trimmed"
    """Mean and trimmed mean differ by more than 1 %."""
    MORE_WORK = "more-work"
    """Steps contain more samples or tokens than recorded."""
    MOVING_MEAN = "moving-mean"
    """The log prints moving means of the last steps."""
    MOVING_MEAN_WARM_UP = "moving-mean-warm-up"
    """The window's moving means contain warm-up steps."""
    NEWER_JOB = "newer-job"
    """A newer job has not written a log yet."""
    NOISIER = "noisier"
    """Runs or steps vary more than assumed."""
    NORM_UNKNOWN = "norm-unknown"
    """The gradient norm is 0 or missing while the loss moves."""
    NOT_COMPARABLE = "not-comparable"
    """A newer run cannot be compared."""
    OLDER_RUNS = "older-runs"
    """Number of older runs of the configuration."""
    ORDER_AMBIGUOUS = "order-ambiguous"
    """Two runs may be the newest; both have the same result."""
    ORDER_FILE_TIME = "order-file-time"
    """Only file times tell which run is the newest."""
    ORDER_MIXED = "order-mixed"
    """The runs have no common clock."""
    OTHER_DIALECT = "other-dialect"
    """Records of another log format were ignored."""
    OTHER_RANK = "other-rank"
    """Steps of other ranks were ignored."""
    OTHER_RECORDS = "other-records"
    """Further records of the same steps were ignored."""
    OTHER_RELEASE = "other-release"
    """The run is judged against another release."""
    OTHER_UNIT = "other-unit"
    """Times are in another unit than the time stamps suggest."""
    OVER_BUDGET = "over-budget"
    """A checkpoint took longer than its budget."""
    PADDED = "padded"
    """Steps contain padding."""
    PARTLY_TIMED = "partly-timed"
    """Some steps have no time."""
    PATH_MASKED = "path-masked"
    """A path is not printed as it is, because it looks like a secret."""
    PAUSES = "pauses"
    """The log contains pauses between steps."""
    PROFILER_REPORT = "profiler-report"
    """A profiler report may belong to this run."""
    RAMPED_UP = "ramped-up"
    """Steps with a growing batch were ignored."""
    RATE_OF_SAMPLES = "rate-of-samples"
    """Rates of samples or tokens were read as rates of steps."""
    RECORDED_AGAINST_PUBLISHED = "recorded-against-published"
    """The recorded value next to the published one."""
    RECORDED_DRIFT = "recorded-drift"
    """The recorded value moved by more than half of the drift budget."""
    RECORDED_DRIFT_LITTLE = "recorded-drift-little"
    """The recorded value moved a little."""
    RECORDED_FEW_GROUPS = "recorded-few-groups"
    """The recording has fewer than three days or sets of nodes."""
    RECORDED_GROUPS = "recorded-groups"
    """Days or sets of nodes of the recording."""
    RECORDED_LEVELS = "recorded-levels"
    """The recording is the mean of several levels; accepted."""
    RECORDED_MOVED = "recorded-moved"
    """Accepted moves of the recorded value add up to more than the budget."""
    RECORDED_REPLACED = "recorded-replaced"
    """The recording replaces an earlier value."""
    REPEAT_DISAGREES = "repeat-disagrees"
    """A step was printed again with another time."""
    REPEAT_LOST = "repeat-lost"
    """A repeat cannot be judged."""
    REPEATED = "repeated"
    """Steps were printed again."""
    REPEATS = "repeats"
    """The verdict is based on the mean of several runs."""
    REPEATS_DISAGREE = "repeats-disagree"
    """The repeats differ too much."""
    RUNNING_AVERAGE = "running-average"
    """Running averages were ignored."""
    SAME_STEPS = "same-steps"
    """Another run has the same steps; too few to prove a copy."""
    SETTING_CHANGED = "setting-changed"
    """A setting differs from the recorded runs."""
    SETTING_ONE_SIDED = "setting-one-sided"
    """Only the run or only the baseline states a setting."""
    SEGMENTS = "segments"
    """The log contains several runs; names the judged one."""
    SKIPPED_STEPS = "skipped-steps"
    """Updates were skipped."""
    SLOW_RANK = "slow-rank"
    """The log reports a slow rank."""
    SLOW_OUTSIDE_UNCOMPARED = "slow-outside-uncompared"
    """Slow steps outside the window; no recording shows whether that is usual."""
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    """Slow steps outside the window, within the recorded amount."""
    SLOW_WARM_UP = "slow-warm-up"
    """The warm-up is slower than recorded."""
    SLOWER_THAN_BASELINE = "slower-than-baseline"
    """Slower than the baseline beyond chance, within the tolerance."""
    SLOWEST_ATTEMPT = "slowest-attempt"
    """Of several finished attempts, the slowest is judged."""
    STEPS = "steps"
    """The run has another number of steps."""
    STRAGGLERS = "stragglers"
    """Slow steps in the window."""
    THRESHOLD_ONLY = "threshold-only"
    """Compared with the limit without an interval."""
    TIME_FROM_TOKENS = "time-from-tokens"
    """Step times were computed from tokens/s."""
    TIMES_DISAGREE = "times-disagree"
    """Printed times disagree outside the window."""
    TORN = "torn"
    """Truncated records were ignored."""
    TWO_LEVELS = "two-levels"
    """The steps are on two levels."""
    TWO_WRITERS = "two-writers"
    """Two processes wrote to the log."""
    UNKNOWN_STEP = "unknown-step"
    """Records without a certain step number were ignored."""
    UNTIMED_STEPS = "untimed-steps"
    """Steps without a time outside the window."""
    UNVERIFIED_BATCH = "unverified-batch"
    """Nothing in the log confirms the batch size."""
    UNVERIFIED_LOSS = "unverified-loss"
    """Nothing in the log confirms that the run trained."""
    WALL_CLOCK = "wall-clock"
    """Time stamps and step times differ; not enough to fail."""
    WARM_UP = "warm-up"
    """The warm-up is not over in the window."""
