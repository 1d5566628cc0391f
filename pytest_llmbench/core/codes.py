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
    """The interval lies below the limit; with too few values for an interval, the
    measured value does."""
    SLOWER_THAN_BOUND = "slower-than-bound"
    """The interval lies above the limit."""
    FASTER_THAN_BASELINE = "faster-than-baseline"
    """The interval lies below baseline / (1 + tolerance)."""
    IMPLAUSIBLY_FAST = "implausibly-fast"
    """The interval lies beyond the largest plausible speed-up (15 %): probably another
    configuration."""
    CANNOT_TELL = "cannot-tell"
    """The limit lies inside the interval, or the log prints too few or too coarse
    times. Of a recording: half of its runs drift by more than the tolerance."""
    WARMING_UP = "warming-up"
    """The first third of the window is slower than the rest. Of a recording: in half of
    its runs, by more than the tolerance."""
    FEW_STEPS_DECIDE = "few-steps-decide"
    """Mean and trimmed mean lead to different verdicts. Of a recording: stalls raise
    the mean of a run."""
    DIVERGED = "diverged"
    """A loss, validation loss or gradient norm is NaN or infinite, or the last losses
    are far above the first or the recorded ones."""
    DID_NOT_TRAIN = "did-not-train"
    """The learning rate, gradient norm, loss or skipped updates show that the run
    learned nothing."""
    LOSS_MISSING = "loss-missing"
    """Steps print no loss from the window on, or the log prints none although the
    recorded runs do."""
    INCOMPLETE = "incomplete"
    """The log ends before the last step, or a later process in it died before its first
    step."""
    STILL_RUNNING = "still-running"
    """The log ends early, but was written minutes ago."""
    NO_STEPS = "no-steps"
    """The log contains no step, or the job left no log."""
    WINDOW_INCOMPLETE = "window-incomplete"
    """Steps or times of the window are missing, printed means cross its bounds, or two
    processes write to the log."""
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    """A step in the window is faster than 100 % MFU, or its time is 0."""
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    """Times in the window measure only the dispatch of the step to the GPU."""
    COPIED = "copied"
    """The run is a duplicate: another job has the same steps."""
    WRONG_CONFIGURATION = "wrong-configuration"
    """GPUs, precision, batch, model or the work of a step contradict the
    configuration."""
    PROFILED = "profiled"
    """The metadata, names, reports or the log show that the run was profiled."""
    TRACED = "traced"
    """The metadata, names or the log show that the run traced NCCL."""
    CHECKPOINT_LOAD = "checkpoint-load"
    """The metadata or the log show that the run only loaded a checkpoint."""
    NO_RUN = "no-run"
    """No run of the configuration was found."""
    TOO_OLD = "too-old"
    """The newest run is older than `--llmb-max-age`."""
    TOO_FEW_RUNS = "too-few-runs"
    """The configuration has fewer valid runs than a suite file requires."""
    START_UNKNOWN = "start-unknown"
    """The run is undated, so its age cannot be compared with `--llmb-max-age`."""
    ONLY_NOT_COMPARABLE = "only-not-comparable"
    """All runs were profiled, traced, only loaded a checkpoint, or belong to an A/B or
    bisection."""
    UNMATCHED = "unmatched"
    """The run matches no baseline."""
    AMBIGUOUS = "ambiguous"
    """The run may belong to several configurations. Of a configuration: a newer
    unmatched run may belong to it."""
    UNREADABLE = "unreadable"
    """A log, file or folder cannot be read."""
    REPEATS_DISAGREE = "repeats-disagree"
    """The runs of a launch or of a recording differ too much."""
    UNCONFIRMED = "unconfirmed"
    """Fewer launched runs are slow than a REGRESSION requires."""
    NO_BASELINE = "no-baseline"
    """The baseline has no step time yet."""
    NOT_ON_CLUSTER = "not-on-cluster"
    """The configuration does not fit this cluster."""
    NOT_LAUNCHED = "not-launched"
    """The session launched nothing for the configuration."""
    NOT_SUBMITTED = "not-submitted"
    """The job could not be submitted, or the session ended before."""
    NEVER_STARTED = "never-started"
    """The job was cancelled before it started, for example because it waited too
    long."""
    JOB_FAILED = "job-failed"
    """The job ended with an error of its own or of the infrastructure."""
    FAILED_STEP = "failed-step"
    """A step of the job failed, although the job succeeded."""
    CANCELLED = "cancelled"
    """The job was cancelled."""
    HUNG = "hung"
    """The log did not grow for too long before the job was cancelled or ended."""
    JOB_LOST = "job-lost"
    """The scheduler does not know the job any more, and there is no log."""
    LOG_MISSING = "log-missing"
    """The job ended and left no log."""
    OVER_BUDGET = "over-budget"
    """Saving or loading a checkpoint took longer than its budget."""
    BUDGET_UNKNOWN = "budget-unknown"
    """A checkpoint was saved or loaded, or should have been, but its time is
    unknown."""
    DRIFTED = "drifted"
    """The run, or the recorded value, is slower than the accepted value by more than
    the drift budget, or the tolerance if that is larger."""
    PURPOSE_DONE = "not-judged"
    """The job served another purpose than a measurement: a profile, a trace, a
    checkpoint, an A/B or a bisection."""
    PURPOSE_MISSED = "nothing-left"
    """The job left no profile, trace or checkpoint, or the A/B or bisection has no
    answer."""
    VARIANT = "variant"
    """The run belongs to an A/B or a bisection."""
    VARIANT_SLOWER = "slower-variant"
    """A variant of an A/B is slower than the reference."""
    NO_CHANGE_BETWEEN_ENDS = "no-change-between-ends"
    """A bisection found no difference between the first and the last build."""
    RANGE = "range"
    """A bisection found a range of builds, not a single one."""
    WALL_CLOCK = "wall-clock"
    """More time passed between the steps than in the recorded runs, outside of all step
    times."""
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    """Steps outside the window lost more time than in the recorded runs."""
    LESS_WORK = "less-work"
    """Steps contain fewer samples or tokens than recorded, or than at the start of the
    window."""
    TIMES_DISAGREE = "times-disagree"
    """Other numbers in the log (rates, timestamps) contradict the step times."""
    ORDER_AMBIGUOUS = "order-ambiguous"
    """Two runs may be the newest, and only one of them fails."""
    BASELINE_CONTRADICTS = "baseline-contradicts"
    """Another value of the baseline implies a shorter step time than the one it
    states."""
    INTERVAL_TOO_WIDE = "interval-too-wide"
    """The steps of the run determine its step time too inaccurately."""
    MARK_UNREADABLE = "mark-unreadable"
    """The marker file of an A/B cannot be read, so the runs of the A/B in its folder
    are unknown."""


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
    """An accepted change or an accepted reason to fail is in force."""
    ACKNOWLEDGEMENT_EXPIRED = "acknowledgement-expired"
    """The entry of an accepted change or reason has expired."""
    ACKNOWLEDGEMENT_IDLE = "acknowledgement-idle"
    """The entry of an accepted change or reason has no effect on this verdict."""
    ASSUMED = "assumed"
    """The run does not state its release or GPU type; they were assumed."""
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    """Steps outside the window that measure only the dispatch were ignored."""
    ATTEMPTS = "attempts"
    """The run was restarted; names the attempt that is judged."""
    BASELINE_CONTRADICTS = "baseline-contradicts"
    """The baseline contradicts itself, too little to matter, or the verdict fails
    anyway."""
    BEGUN_AGAIN = "begun-again"
    """A process started after the last step and logged no step."""
    BUDGET_UNKNOWN = "budget-unknown"
    """A checkpoint was saved or loaded, or should have been, but its time is
    unknown."""
    BUDGET_UNUSED = "budget-unused"
    """The log prints no checkpoint save or load to compare with its budget."""
    BUILD_UNKNOWN = "build-unknown"
    """The build of the run is unknown, so no other run counts as its repeat."""
    CHECKPOINT_MISSING = "checkpoint-missing"
    """The log reports a saved checkpoint, but its folder contains no `*.distcp`
    file."""
    CHECKPOINT_SAVED = "checkpoint-saved"
    """The run saved a checkpoint; counts its files."""
    CLOCK_RESTARTED = "clock-restarted"
    """The elapsed time began anew in a resumed run, although no step was repeated."""
    CLOCK_SET = "clock-set"
    """The clock was changed by an hour, which is corrected, or was set back."""
    COARSE_BASELINE = "coarse-baseline"
    """The rounding of the baseline exceeds a tenth of the tolerance."""
    DRIFT = "drift"
    """The step times rise or fall over the window."""
    FEW_RECORDED = "few-recorded"
    """The baseline was recorded on fewer than three days or sets of nodes."""
    FEWER_RUNS = "fewer-runs"
    """`--llmb-repeats` allowed fewer runs than a suite file requires."""
    HICCUP = "hiccup"
    """Transient stalls were set to the time of the next slowest step."""
    HICCUPS_OFTEN = "hiccups-often"
    """Several runs in seven days had transient stalls, so the stalls count."""
    IMPOSSIBLE_STEPS = "impossible-steps"
    """Steps faster than 100 % MFU were ignored."""
    INTERLEAVED = "interleaved"
    """Two processes write into the log at once."""
    INTERVAL_MEAN = "interval-mean"
    """Printed times of the window are means of several steps."""
    LEFT_OUT = "left-out"
    """The time of a test or checkpoint was subtracted from step times."""
    LOSS_MISSING_BEFORE = "loss-missing-before"
    """Steps before the window print no loss."""
    LOSS_STANDS_STILL = "loss-stands-still"
    """The loss is the same in every step of the window."""
    MEAN_AND_TRIMMED = "mean-and-trimmed"
    """Mean and 20 % trimmed mean differ by more than 1 %."""
    MFU_PEAK = "mfu-peak"
    """The framework computed its MFU with a peak that the GPU does not have."""
    MORE_WORK = "more-work"
    """Steps contain more samples or tokens than recorded."""
    MOVING_MEAN = "moving-mean"
    """The log prints moving means of several steps."""
    MOVING_MEAN_WARM_UP = "moving-mean-warm-up"
    """Moving means in the window include the first step of the run."""
    NEWER_JOB = "newer-job"
    """A newer job was launched and has not written a log yet."""
    NOISIER = "noisier"
    """The runs, or the steps of a run, vary more than assumed, so the interval is
    wider."""
    NORM_UNKNOWN = "norm-unknown"
    """The gradient norm is printed as 0 in every step: it is not reported, or
    rounded to 0."""
    NOT_COMPARABLE = "not-comparable"
    """Newer runs cannot be compared."""
    OLDER_RUNS = "older-runs"
    """Counts the older runs of the configuration."""
    ORDER_AMBIGUOUS = "order-ambiguous"
    """Two runs may be the newest, but the verdict does not depend on it or fails
    anyway."""
    ORDER_FILE_TIME = "order-file-time"
    """Only file times show that this run is the newest."""
    ORDER_MIXED = "order-mixed"
    """Only clocks that may disagree show that this run is the newest."""
    OTHER_DIALECT = "other-dialect"
    """Records of another log format were ignored."""
    OTHER_RANK = "other-rank"
    """Steps of other ranks were ignored."""
    OTHER_RECORDS = "other-records"
    """Less detailed records of the same steps were ignored."""
    OTHER_RELEASE = "other-release"
    """The run is judged against another release, as requested."""
    OTHER_UNIT = "other-unit"
    """Step times were converted to seconds, because timestamps show another unit."""
    OVER_BUDGET = "over-budget"
    """Saving or loading a checkpoint took longer than its budget."""
    PADDED = "padded"
    """Many tokens of a step are padding."""
    PARTLY_TIMED = "partly-timed"
    """A printed time covers only the steps after a validation."""
    PATH_MASKED = "path-masked"
    """A path is not printed as it is, because it looks like a secret."""
    PAUSES = "pauses"
    """The log contains gaps around evaluations or saves, or at regular intervals."""
    PROFILER_REPORT = "profiler-report"
    """A profiler report without a job id may belong to this run."""
    RAMPED_UP = "ramped-up"
    """Steps with a growing batch were ignored."""
    RATE_OF_SAMPLES = "rate-of-samples"
    """Rates of samples or tokens were read as rates of steps."""
    RECORDED_AGAINST_PUBLISHED = "recorded-against-published"
    """Compares the recorded value with the published one."""
    RECORDED_DRIFT = "recorded-drift"
    """The run or the recorded value is slower than the accepted value by more than half
    of the drift budget."""
    RECORDED_DRIFT_LITTLE = "recorded-drift-little"
    """Compares the run and the recorded value with the accepted value; within half of
    the drift budget."""
    RECORDED_FEW_GROUPS = "recorded-few-groups"
    """The recording contains fewer than three days or sets of nodes."""
    RECORDED_GROUPS = "recorded-groups"
    """Counts the days or sets of nodes of the recording."""
    RECORDED_LEVELS = "recorded-levels"
    """The recording is the mean of several levels, as accepted."""
    RECORDED_MOVED = "recorded-moved"
    """Accepted moves of the recorded value add up to more than the budget."""
    RECORDED_REPLACED = "recorded-replaced"
    """The recording replaces an earlier value."""
    REPEAT_DISAGREES = "repeat-disagrees"
    """A step was printed again with another time; the slower one counts."""
    REPEAT_LOST = "repeat-lost"
    """A repeat cannot be judged."""
    REPEATED = "repeated"
    """Steps were printed again with the same time."""
    REPEATS = "repeats"
    """The verdict is based on the mean of several runs."""
    REPEATS_DISAGREE = "repeats-disagree"
    """The repeats differ too much to be averaged, so the newest decides."""
    RUNNING_AVERAGE = "running-average"
    """The times may be means since the start of the run, which hide slow steps."""
    SAME_STEPS = "same-steps"
    """Another run has the same steps, but too few different times to prove a
    duplicate."""
    SETTING_CHANGED = "setting-changed"
    """A setting of the run differs from the recorded runs."""
    SETTING_ONE_SIDED = "setting-one-sided"
    """Only the run, or only the baseline, states a setting."""
    SEGMENTS = "segments"
    """The log contains several runs; names the one that is judged."""
    SKIPPED_STEPS = "skipped-steps"
    """Steps in the window were skipped: they updated no weights."""
    SLOW_RANK = "slow-rank"
    """The log reports a slow rank."""
    SLOW_OUTSIDE_UNCOMPARED = "slow-outside-uncompared"
    """Steps outside the window are slow, and no recording shows whether that is
    usual."""
    SLOW_OUTSIDE_WINDOW = "slow-outside-window"
    """Steps outside the window are slow, but not enough to fail."""
    SLOW_WARM_UP = "slow-warm-up"
    """The warm-up takes much longer than recorded."""
    SLOWER_THAN_BASELINE = "slower-than-baseline"
    """The run is within the tolerance, but significantly slower than the baseline."""
    SLOWEST_ATTEMPT = "slowest-attempt"
    """Several finished attempts cover the window; the slowest is judged."""
    STEPS = "steps"
    """The number of steps differs from the recipe's, or the log's rounded values leave
    it open."""
    STRAGGLERS = "stragglers"
    """Single steps in the window are slow."""
    THRESHOLD_ONLY = "threshold-only"
    """The run is compared with the limit without an interval: too few steps and no
    history."""
    TIME_FROM_TOKENS = "time-from-tokens"
    """Step times are not printed, but computed from tokens/s."""
    TIMES_DISAGREE = "times-disagree"
    """Other numbers in the log contradict step times outside the window."""
    TORN = "torn"
    """Truncated records were ignored."""
    TWO_LEVELS = "two-levels"
    """The steps of the window are on two levels, in a stretch or periodically."""
    TWO_WRITERS = "two-writers"
    """A second process printed the steps again with other times; the slower ones
    count."""
    UNKNOWN_STEP = "unknown-step"
    """Records without a certain step number were ignored."""
    UNTIMED_STEPS = "untimed-steps"
    """Steps without a time were ignored."""
    UNVERIFIED_BATCH = "unverified-batch"
    """The log prints no batch size; that of the configuration is assumed."""
    UNVERIFIED_LOSS = "unverified-loss"
    """The log prints no loss, so a divergence would go unnoticed."""
    WALL_CLOCK = "wall-clock"
    """Time passed between the steps, too little to fail or without a recording to
    compare with."""
    WARM_UP = "warm-up"
    """The first third of the window is slower than the rest."""
