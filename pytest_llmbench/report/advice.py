"""Advice for the user: the next step for each reason of a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedLastGood,
    ReportedResumption,
)

SINCE_LAST_GOOD = (
    "find what made it slower since the last good run: {differs}run both builds alternately on the same nodes "
    "(--llmb-ab), or search the builds between them (--llmb-bisect)"
)
KNOWN_CHANGE = (
    "; if the change is intended, acknowledge it in the file of --llmb-acknowledged"
)
OTHER_CLUSTER = "; if this cluster differs from the documented one, record your own baseline with --llmb-record=DIR"

UNKNOWN_NOISE = "; to measure the noise, keep a history of 8 daily runs or record a baseline from several runs"

EXPIRED = (
    "find what made it slower; if you accept it for longer, set a later `expires` date in its entry in the file of "
    "--llmb-acknowledged"
)

ONE_STEP = "judge the window of the run, without --llmb-timed=document: one step is weak evidence"
COLLECTED = (
    "--llmb-collect starts no jobs. To run the missing jobs and judge all runs of this session together{secrets} run: "
    "`{command}`"
)
NOT_ONE_LEVEL = (
    "find what differs between the runs: nodes, steps, other jobs at that time; record only runs of one level, or, if "
    "they are at most 10 % apart, state in `accept: levels` in the file of --llmb-acknowledged why all of them count"
)

SLOW_NODES = "exclude the nodes that are slow each time (--llmb-exclude, with the list next to it) and launch it again"

RECORD_OWN = "record each unmatched run as your own configuration, then judge with --llmb-baselines=own: `{command}`"
LOST = "point --llmb-logs at the folder with the runs, or inspect its contents with: llmbench summary PATH"
FOUND = (
    "fix what keeps these runs from being judged, or select their configurations with -k; to list the runs: "
    "llmbench summary PATH{baselines}"
)
"""Advice for a session that judged nothing: FOUND if it found runs, else LOST."""

SLOW_HERE = frozenset(("slower-than-bound", "cannot-tell", "repeats-disagree"))
"""Reasons that other work on the machine of a local launch may explain."""

RAN_HERE = "its runs on this machine took {times} per step: {first}; if that does not help, {then}"
BESIDE = "another program may have run at the same time; check with uptime and nvidia-smi, and run it alone"
ALIKE = "all alike, so look for a permanent load (uptime, nvidia-smi), the power limit and the clocks"

ACCEPT = (
    "accept it for a limited time with `accept: {}` in the file of --llmb-acknowledged"
)

ADVICE = {
    "slower-than-bound": "judge older runs of it as well, or keep a history (--llmb-history=URL), to see since when it "
    "has been slow",
    "drifted": "find what made it slower, day by day; if you accept the new level, record it with --llmb-record=DIR "
    "and `accept: drift` in the file of --llmb-acknowledged, or allow more with --llmb-drift-budget",
    "faster-than-baseline": "record a new baseline with --llmb-record=DIR",
    "did-not-train": "check the data, the learning rate and its warm-up, the loss scale and frozen layers, then run it "
    "again: a run that learns nothing does not measure training",
    "implausibly-fast": "look for the cause: a smaller batch, a shorter sequence, fewer layers, a lower precision, more "
    "or other GPUs than the run states; if the speed is real, accept it with --llmb-improvement=pass or an entry "
    "`faster:` in the file of --llmb-acknowledged, and record it with --llmb-record=DIR",
    "diverged": "find the cause at the first bad step, then run it again: the step time of a diverged run is meaningless",
    "incomplete": "run it again: a run counts only if it reached its last step",
    "still-running": "judge it again when the job has ended",
    "no-steps": "read the end of the log; with `dialect: regex`, compare `find` and `pattern` with it; then run it again",
    "window-incomplete": "print every step of the window, look for lost or truncated lines in the log, or run it again",
    "loss-missing": "check the log format: without a loss, nothing shows that the run trained",
    "impossible-sample": "check the unit of the step times, and the GPU type, precision and number of GPUs of the run",
    "wrong-configuration": "compare the settings of the run with: llmbench baselines show {id} (with "
    "--baselines=DIR for your own); if they agree and the framework counts FLOPs differently, add a "
    "logged_tflops_factor to the baseline file",
    "copied": "find the log that the job itself wrote and remove the copy, or run it again",
    "no-run": "point --llmb-logs at a folder with a run of it, launch it (pytest -k {id} --llmb-launch) if its baseline "
    "file describes how, or select fewer configurations with -k",
    "start-unknown": "correct the clock or the file time, or put the start time into the folder name",
    "too-old": "run it again, or raise --llmb-max-age",
    "too-few-runs": "run it again until it has as many valid runs as the suite requires; a launch counts earlier runs "
    "in --llmb-logs",
    "profiled": "run it again without profiling",
    "traced": "run it again without the NCCL trace; to read the trace: llmbench nccl LOG",
    "asynchronous-dispatch": "judge a window after the steps whose dispatch alone was timed",
    "checkpoint-load": "nothing to do: this run only tests that a checkpoint loads",
    "only-not-comparable": "run it again without profiling, tracing or loading a checkpoint",
    "unmatched": "if only its release differs, judge it against another one with --llmb-baseline-release; to tolerate "
    f"such runs, add --llmb-unmatched=list; otherwise {RECORD_OWN}",
    "ambiguous": "add the missing facts: release and GPU type with --llmb-release and --llmb-gpu, others in the name of "
    "the folder or log (pretrain_<recipe>_<size>_<precision>_<GPUs>) or in the metadata; correct contradictions; or "
    "tolerate such runs with --llmb-unmatched=list",
    "within-tolerance": "nothing to do",
    "cannot-tell": "run it again, and set `llmb_repeat_window` to judge the runs together",
    "warming-up": "run more steps before the window, or run it again",
    "few-steps-decide": "look at the slow steps in the log: a stall of a node, a checkpoint, an evaluation; then run it "
    "again",
    "wall-clock": "look for untimed work between the steps: data loading, logging, a hang that recovered; "
    f"{ACCEPT.format('wall-clock')}",
    "slow-outside-window": "look at the listed steps: throttling, a hang, another job on the nodes; "
    f"{ACCEPT.format('slow-outside-window')}",
    "less-work": "check the work per step: batch size, sequence length, packing; if you changed it on purpose, record "
    f"a new baseline, or {ACCEPT.format('less-work')}",
    "times-disagree": f"find out why the two times differ before you trust either; {ACCEPT.format('times-disagree')}",
    "order-ambiguous": f"correct the clock, or remove the run that should not count; {ACCEPT.format('order-ambiguous')}",
    "baseline-contradicts": "correct the baseline file (llmbench baselines lint DIR); "
    f"{ACCEPT.format('baseline-contradicts')}",
    "interval-too-wide": "run it again, and set `llmb_repeat_window` to judge the runs together; "
    f"{ACCEPT.format('interval-too-wide')}",
    "mark-unreadable": "remove or restore the file; until then the runs in its folder are judged as if it did not exist",
    "test-failed": "read the test",
    "cluster-change": "check what all nodes share: driver, fabric, power and clocks, file system, image",
    "weak-scaling": "compare the communication of the larger run with the smaller one's: fabric, topology, placement",
    "fp8-speedup": "check that the FP8 run used FP8 kernels, and compare both runs with older ones",
    "trend": "look at what differs since that day, also at what logs do not show: firmware, clocks, fabric; if you "
    "accept the change, acknowledge it in the file of --llmb-acknowledged, which begins with `schema: 1` and "
    "`acknowledged:`",
    "slow-node": "exclude it from launches with that option until it is repaired, then list it under `repaired:` in the "
    "file of --llmb-acknowledged; `llmbench nodes` lists all of its runs",
    "selftest": "do not rely on the gate for such runs: check which of the damage is visible in the log",
    "not-asserted": "make the test act on llmb_verdict.failed and llmb_verdict.skipped",
    "recorded": "judge later runs against it with {baselines}",
    "repeats-disagree": "find what differs between the runs: nodes, steps, other jobs at that time; then run it again",
    "unconfirmed": "launch it again, on other nodes with --llmb-exclude: two slow runs on different nodes show that the "
    "software is slow",
    "no-baseline": "record it with --llmb-record=DIR, then judge later runs with --llmb-baselines=DIR",
    "not-on-cluster": "nothing to do; if it should run here, correct the options or cluster.yaml",
    "not-launched": "launch it with --llmb-launch",
    "not-submitted": "fix what the launcher reports; --llmb-dry-run prints the command",
    "never-started": "look at the reason in the queue, the partition and its limits; then run it again",
    "job-failed": "fix the error in its log, then run it again",
    "failed-step": "the job succeeded but one of its Slurm steps failed: read the log of that step, then run it again",
    "cancelled": "run it again",
    "hung": "launch it again (more time does not help), and find where it hangs: py-spy dump --pid PID on each node, or "
    "an NCCL trace (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1); if it hangs on the same node each "
    "time, exclude that node with --llmb-exclude; if on any node, compare with the software that last worked",
    "job-lost": "look for the job with sacct, and for its log, before you run it again",
    "log-missing": "look in the folder of the job: its log may have another name or location",
    "over-budget": "check the file system and its other users at that time; the budget is in the baseline file",
    "budget-unknown": "set a budget that its log can answer: checkpoint_save_seconds for a synchronous save, "
    "checkpoint_save_dispatch_seconds for an asynchronous one; or remove the budget from the baseline file",
    "nothing-left": "check in its log whether it did its work, and check its variables with --llmb-dry-run",
    "not-judged": "nothing to do: such a run is not judged for speed; look at its files",
    "variant": "nothing to do: it counts for its A/B only",
    "no-change-between-ends": "look at what else differs since the last good run: nodes, driver, file system; "
    "`llmbench compare` lists the differences in the logs",
    "range": "resume its session (--llmb-resume --llmb-session=ID) with a higher `most_runs` in the file of builds, "
    "or compare some of the builds with --llmb-ab",
    "slower-variant": "look at the settings in which the variants differ: everything else is the same",
    "unreadable": "make it readable, move it elsewhere, or tolerate it with --llmb-unmatched=list",
}

NO_ANSWER = "read the errors of its jobs; fix them, or wait until their nodes are back; then start it again"
"""Advice for an A/B or a bisect search that ended without an answer."""

ANY_CHECK = "look at the configurations that it covers"
"""Advice for a kind of check without an entry in `ADVICE`."""

NOTHING_TO_DO = frozenset(
    ("checkpoint-load", "within-tolerance", "not-on-cluster", "not-judged", "variant")
)
"""Reasons without a next step; the summary skips them."""

UNFINISHED = ("NOT_ASSERTED", "INCONCLUSIVE", "IMPROVEMENT", "RECORDED")
"""Verdicts that need a next step although the item did not fail."""

Advice = tuple[list[OutcomeDocument], str]
"""The items with the same reason, and the advice for them."""


def advise(outcome: OutcomeDocument) -> str:
    """Return the advice for an item."""
    if isinstance(outcome, ConfigurationOutcome):
        return _advise_on_configuration(outcome)
    if isinstance(outcome, CheckOutcome):
        return outcome.next or _fill_in(ADVICE.get(outcome.reason, ANY_CHECK), outcome)
    return _fill_in(ADVICE[outcome.reason], outcome, logs=outcome.logs)


def _advise_on_configuration(outcome: ConfigurationOutcome) -> str:
    """Return the advice for a configuration.

    A resumption, slow nodes and an A/B without an answer have their own advice; all
    other advice depends on the reason of the verdict.
    """
    # The session only collected results, and jobs are still missing.
    if outcome.resume and outcome.resume.due:
        return _advise_resumption(outcome.resume)
    if outcome.slow_nodes and outcome.verdict == "INCONCLUSIVE":
        return SLOW_NODES
    # An A/B or a bisect search that ended without an answer.
    if outcome.trials and outcome.reason == "nothing-left":
        return NO_ANSWER
    advice = _fill_in(_choose_advice(outcome), outcome, folders=outcome.baselines)
    if outcome.reason in SLOW_HERE:
        return _advise_on_machine(outcome, advice)
    return advice


def _fill_in(
    advice: str,
    outcome: OutcomeDocument,
    *,
    folders: Sequence[str] = (),
    logs: Sequence[str] = (),
) -> str:
    """Replace `{id}`, `{baselines}` and `{command}` in an advice.

    `{baselines}` becomes an option --llmb-baselines for each of `folders` (default:
    `--llmb-baselines=DIR`), `{command}` the command that records the runs in `logs`.
    """
    options = [
        f"--llmb-baselines={shlex.quote(folder)}" for folder in folders or ("DIR",)
    ]
    baselines = " ".join(options)
    return advice.format(
        id=outcome.id, baselines=baselines, command=make_record_command(logs)
    )


def make_record_command(logs: Iterable[str]) -> str:
    """Build the command that records the runs in `logs` as the user's own baselines."""
    return shlex.join(
        ["pytest", *(f"--llmb-logs={path}" for path in logs), "--llmb-record=own"]
    )


def _advise_on_machine(outcome: ConfigurationOutcome, advice: str) -> str:
    """Return `advice`, preceded by advice about other load on this machine.

    Returns `advice` unchanged unless several runs were launched locally. If their step
    times differ by more than the tolerance, another program may have run at the same
    time. If all runs are equally slow, the cause is permanent.
    """
    seconds = [
        job.step_seconds for job in jobs.list_last_attempts(outcome) if job.step_seconds
    ]
    if len(seconds) < 2 or outcome.run is None or outcome.run.launcher != "local":
        return advice
    limit, expected = outcome.bound_seconds, outcome.expected_seconds
    allowed_ratio = limit / expected if limit and expected else 1
    differ = (
        outcome.reason == "repeats-disagree"
        or max(seconds) / min(seconds) > allowed_ratio
    )
    *first_times, last_time = map(formatting.format_seconds, seconds)
    times = f"{', '.join(first_times)} and {last_time}"
    return RAN_HERE.format(times=times, first=BESIDE if differ else ALIKE, then=advice)


def _advise_resumption(resume: ReportedResumption) -> str:
    """Advise to resume a collected session, with the secrets that its jobs need."""
    secrets = f", set {', '.join(resume.secrets)} and" if resume.secrets else ","
    return COLLECTED.format(secrets=secrets, command=resume.command)


def _choose_advice(outcome: ConfigurationOutcome) -> str:
    """Choose the advice for a configuration by its reason and its evidence."""
    reason = outcome.reason
    # Timed like its document (--llmb-timed=document), which often timed a single step.
    if outcome.timed == "document" and reason in (
        "slower-than-bound",
        "faster-than-baseline",
        "cannot-tell",
    ):
        return ONE_STEP
    if reason == "slower-than-bound":
        if any(note.code == NoteCode.ACKNOWLEDGEMENT_EXPIRED for note in outcome.notes):
            return EXPIRED
        since_last_good = _advise_since(outcome.last_good)
        return since_last_good + _advise_on_baseline(outcome.baseline.kind)
    advice = _choose_by_reason(reason, outcome.verdict)
    if reason == "cannot-tell":
        estimate = outcome.estimate
        if estimate is None or not estimate.run_to_run.measured:
            advice += UNKNOWN_NOISE
    return advice


def _choose_by_reason(reason: str, verdict: str) -> str:
    """Return the entry of `ADVICE` for a reason.

    Disagreeing repeats get another advice when a baseline is recorded from them.
    """
    # Only a session that records gives disagreeing repeats the verdict INVALID.
    if reason == "repeats-disagree" and verdict == "INVALID":
        return NOT_ONE_LEVEL
    return ADVICE[reason]


def _advise_on_baseline(kind: str) -> str:
    """Return what to add for a slow run: accept the change, or record a baseline.

    `kind` is the kind of its baseline, such as "recorded".
    """
    return KNOWN_CHANGE if kind == "recorded" else OTHER_CLUSTER


def advise_on_stored(
    configuration: str, reason: str, verdict: str, baseline: str
) -> str:
    """Return the advice for a stored verdict.

    `baseline` is the kind of its baseline. The advice on unknown noise is left out,
    because a history exists.
    """
    addition = _advise_on_baseline(baseline) if reason == "slower-than-bound" else ""
    advice = f"{_choose_by_reason(reason, verdict)}{addition}"
    return advice.format(
        id=configuration,
        baselines="--llmb-baselines=DIR",
        command=make_record_command(()),
    )


def _advise_since(last: ReportedLastGood | None) -> str:
    """Return the advice for finding the cause of a regression."""
    if last is None:
        return ADVICE["slower-than-bound"]
    differences = "check the differences since then, or " if _differs(last) else ""
    return SINCE_LAST_GOOD.format(differs=differences)


def _differs(last: ReportedLastGood) -> bool:
    """True if software or settings differ, or the last good run lacked a node."""
    if last.software.differs or last.settings.differs:
        return True
    return last.nodes is not None and not set(last.nodes.now) <= set(last.nodes.before)


def count_repeats_needed(outcome: ConfigurationOutcome) -> str:
    """Return the number of runs that would decide an inconclusive item: `3 runs`.

    Returns "" if the item is decided or needs more than `MANY` runs.
    """
    estimate = outcome.estimate
    if outcome.verdict != "INCONCLUSIVE" or not estimate:
        return ""
    needed = estimate.repeats_needed
    if not needed or needed > formatting.MANY:
        return ""
    # More runs cannot decide about a drift or about slow nodes.
    if outcome.reason == "drifted" or outcome.slow_nodes:
        return ""
    # The present runs were not sufficient, so at least one more is needed.
    return formatting.count_noun(max(needed, estimate.runs + 1), "run")


def list_advice(outcomes: Iterable[OutcomeDocument]) -> list[Advice]:
    """Group unfinished outcomes by reason and return the advice for each group.

    Failed outcomes come first; otherwise the order of `outcomes` is kept. Reasons
    without a next step are left out.
    """
    unfinished = list(filter(_is_unfinished, outcomes))
    # Sorting is stable: failed and other outcomes each keep their order.
    unfinished.sort(key=lambda outcome: outcome.status != "failed")
    groups: dict[tuple[str, bool], list[OutcomeDocument]] = {}
    for outcome in unfinished:
        if outcome.reason in NOTHING_TO_DO:
            continue
        # Slow nodes change the advice for a reason.
        has_slow_nodes = isinstance(outcome, ConfigurationOutcome) and bool(
            outcome.slow_nodes
        )
        groups.setdefault((outcome.reason, has_slow_nodes), []).append(outcome)
    advice = []
    for group in groups.values():
        example = group[0]
        advice.append((group, f"{advise(example)}{advise_repeats(example)}"))
    return advice


def _is_unfinished(outcome: OutcomeDocument) -> bool:
    """True if the item failed, or its verdict needs a next step anyway."""
    return outcome.status == "failed" or (
        isinstance(outcome, ConfigurationOutcome) and outcome.verdict in UNFINISHED
    )


def advise_repeats(outcome: OutcomeDocument) -> str:
    """Return `; about 3 runs would decide` for an inconclusive item, else ""."""
    if not isinstance(outcome, ConfigurationOutcome):
        return ""
    if outcome.resume and outcome.resume.due:  # the resume command makes the runs
        return ""
    runs = count_repeats_needed(outcome)
    return f"; about {runs} would decide" if runs else ""
