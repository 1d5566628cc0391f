"""What to do next about an item, by its reason."""

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
    "find what made it slower since the last good run: {differs}run both in turn on the same nodes (--llmb-ab), or "
    "search the builds between them (--llmb-bisect)"
)
KNOWN_CHANGE = (
    "; a change that is known and meant goes into the file of --llmb-acknowledged"
)
OTHER_CLUSTER = "; if this cluster is known to differ from the document, record its own baseline with --llmb-record=DIR"

UNKNOWN_NOISE = "; a history of 8 nights or a recorded baseline of several runs makes the noise known"

EXPIRED = (
    "find what made it slower; if it is to stay so for longer, give its entry in the file of --llmb-acknowledged a "
    "later day after `expires`"
)

ONE_STEP = (
    "one step says little of a run: judge its window, without --llmb-timed=document"
)
COLLECTED = (
    "collecting starts nothing; what goes on with this session{secrets} makes the runs that are due, and judges "
    "them together with these: `{command}`"
)
NOT_ONE_LEVEL = (
    "find what differs between the runs: nodes, steps, what else ran there; record those of one level, or say why all "
    "count, if they are at most 10 % apart, with `accept: levels` in the file of --llmb-acknowledged"
)

SLOW_NODES = "leave the nodes out that are slow each time (--llmb-exclude, with the list beside it), and launch it again"

RECORD_OWN = (
    "make each run that no baseline fits a configuration of your own, which --llmb-baselines=own judges from then on: "
    "`{command}`"
)
LOST = "give --llmb-logs the folder that holds the runs, or look at what is in it with: llmbench summary PATH"
FOUND = (
    "correct what keeps these runs from being judged, or select what they are of with -k; all of them are shown by: "
    "llmbench summary PATH{baselines}"
)
"""What to do when nothing was judged, without and with runs."""

SLOW_HERE = frozenset(("slower-than-bound", "cannot-tell", "repeats-disagree"))
"""Reasons for which other work on the machine that ran the jobs may be to blame."""

RAN_HERE = (
    "its runs on this machine took {times} a step: {first}; if it stays so, {then}"
)
BESIDE = "something else may have run beside them; look what (uptime, nvidia-smi), and run it alone"
ALIKE = "all alike, so look at what runs here all the time (uptime, nvidia-smi), at power limit and clocks"

ACCEPT = "accept it for a while with `accept: {}` in the file of --llmb-acknowledged"

ADVICE = {
    "slower-than-bound": "judge older runs of it, too, or keep a history (--llmb-history=URL): they tell since when it "
    "is slow",
    "drifted": "find what made it slower since, night by night; if that is meant to be, record it with "
    "--llmb-record=DIR and `accept: drift` in the file of --llmb-acknowledged, or allow more with "
    "--llmb-drift-budget",
    "faster-than-baseline": "record a new baseline with --llmb-record=DIR",
    "did-not-train": "a run that learns nothing is no measure of one that does: look at the data, the learning rate "
    "and its warm-up, the loss scale and what is frozen, then run it again",
    "implausibly-fast": "look for what would explain it: a smaller batch, a shorter sequence, fewer layers, a lower "
    "precision, more or other GPUs than the run says; if it is really so fast, accept it with --llmb-improvement=pass "
    "or an entry `faster:` in the file of --llmb-acknowledged, and record it with --llmb-record=DIR",
    "diverged": "the step time of a diverged run means nothing: look at the first bad step, then run it again",
    "incomplete": "run it again; a run counts only when it reached its last step",
    "still-running": "judge it again when the job has ended",
    "no-steps": "read the end of the log, and with `dialect: regex` compare `find` and `pattern` with it; run it again",
    "window-incomplete": "the window must be whole; have every step printed, look for lost or torn "
    "lines in the log, or run it again",
    "loss-missing": "without its loss nobody knows that a run trained; check the log's format",
    "impossible-sample": "check the unit, and that GPU type, precision and number of GPUs are those of the run",
    "wrong-configuration": "compare the run's settings with: llmbench baselines show {id} (with "
    "--baselines=DIR for your own); if they agree and the framework counts FLOPs in another way, give the baseline "
    "file a logged_tflops_factor",
    "copied": "find the log that the job itself wrote, remove the copy, or run it again",
    "no-run": "give --llmb-logs a folder that holds a run of it, launch it (pytest -k {id} --llmb-launch) where its "
    "file says how, or select fewer with -k",
    "start-unknown": "correct the clock or the file's time, or name its folder by the time of its start",
    "too-old": "run it again, or raise --llmb-max-age",
    "too-few-runs": "run it again until there are as many valid runs as the suite asks for; a launch counts "
    "earlier ones below --llmb-logs",
    "profiled": "run it again without profiling",
    "traced": "run it again without the NCCL trace; llmbench nccl LOG says what the trace holds",
    "asynchronous-dispatch": "judge a window after the steps that were only dispatched when their time was taken",
    "checkpoint-load": "nothing: it only verifies that a checkpoint loads",
    "only-not-comparable": "run it again without profiling, tracing or loading a checkpoint",
    "unmatched": "where only its release differs judge it against another one with --llmb-baseline-release, or allow "
    f"it with --llmb-unmatched=list; else {RECORD_OWN}",
    "ambiguous": "say what nothing in the run says: release and GPU type with --llmb-release and --llmb-gpu, the rest "
    "in the name of its folder or log (pretrain_<recipe>_<size>_<precision>_<GPUs>) or in its metadata; correct what "
    "contradicts itself; or allow it with --llmb-unmatched=list",
    "within-tolerance": "nothing",
    "cannot-tell": "run it again, and judge the runs together with `llmb_repeat_window`",
    "warming-up": "run more steps before the window, or run it again",
    "few-steps-decide": "look at the slow steps in the log: a stall of the node, a checkpoint, an evaluation; run it "
    "again",
    "wall-clock": "look for untimed work between the steps: data loading, logging, a hang that recovered; "
    f"{ACCEPT.format('wall-clock')}",
    "slow-outside-window": "look at the steps that are named: throttling, a hang, another job on the nodes; "
    f"{ACCEPT.format('slow-outside-window')}",
    "less-work": "look at what a step holds: batch size, sequence length, packing; record it again if that was changed "
    f"on purpose, or {ACCEPT.format('less-work')}",
    "times-disagree": f"trust neither number before it is clear why they differ; {ACCEPT.format('times-disagree')}",
    "order-ambiguous": f"correct the clock, or remove the run that does not count; {ACCEPT.format('order-ambiguous')}",
    "baseline-contradicts": "correct the baseline file (llmbench baselines lint DIR); "
    f"{ACCEPT.format('baseline-contradicts')}",
    "interval-too-wide": "run it again, and judge the runs together with `llmb_repeat_window`; "
    f"{ACCEPT.format('interval-too-wide')}",
    "mark-unreadable": "remove the file, or restore it; the runs in its folder are judged as if it did not exist",
    "test-failed": "read the test",
    "cluster-change": "look at what all nodes share: driver, fabric, power and clocks, file system, image",
    "weak-scaling": "compare the communication of the larger run with the smaller one's: fabric, topology, placement",
    "fp8-speedup": "check that the FP8 run used FP8 kernels, and compare both runs with older ones",
    "trend": "look at what differs since that night, also at what no log tells: firmware, clocks, fabric; if it is "
    "known and accepted, say so in the file of --llmb-acknowledged, which begins with `schema: 1` and `acknowledged:`",
    "slow-node": "leave it out of launches with that option until it is repaired, and say so then below `repaired:` in "
    "the file of --llmb-acknowledged; `llmbench nodes` lists all of its runs",
    "selftest": "do not trust the gate with such runs: look at what of the damage the log shows",
    "not-asserted": "let the test act on llmb_verdict.failed and llmb_verdict.skipped",
    "recorded": "judge against it with {baselines}",
    "repeats-disagree": "find what differs between the runs: nodes, steps, what else ran there; then run it again",
    "unconfirmed": "launch it again, on other nodes with --llmb-exclude: only two runs that agree tell slow software "
    "from a slow node",
    "no-baseline": "record it with --llmb-record=DIR, judge later runs with --llmb-baselines=DIR",
    "not-on-cluster": "nothing, or correct what the options and cluster.yaml say of this cluster",
    "not-launched": "launch it with --llmb-launch",
    "not-submitted": "correct what the launcher complains of; --llmb-dry-run shows the command",
    "never-started": "look at the reason that the queue gives, at partition and limits; then run it again",
    "job-failed": "correct what its log says, then run it again",
    "failed-step": "the job ended well, but a part of it did not: read that part's log, then run it again",
    "cancelled": "run it again",
    "hung": "more time will not help: launch it again, and while it stands still look where (py-spy dump --pid PID on "
    "each node), or let NCCL record it (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1); on the same "
    "node each time --llmb-exclude it, on any compare with the software that last ran",
    "job-lost": "look for the job with sacct, and for its log, before it is run again",
    "log-missing": "look into the folder of the job: its log may have another name or place",
    "over-budget": "look at the file system and at what else used it then; the budget is in the baseline file",
    "budget-unknown": "budget what its log can state: checkpoint_save_seconds of a synchronous save, "
    "checkpoint_save_dispatch_seconds of an asynchronous one; or take the budget out of the baseline file",
    "nothing-left": "look in its log whether it did what it was for, and at its variables with --llmb-dry-run",
    "not-judged": "nothing: such a run is not judged for speed; look at its files",
    "variant": "nothing: it counts for its A/B alone",
    "no-change-between-ends": "look at what else differs since the last good night: nodes, driver, file system; "
    "`llmbench compare` lists what the runs tell",
    "range": "go on with its session (--llmb-resume --llmb-session=ID) and a higher `most_runs` in the file of builds, "
    "or run some of them beside each other with --llmb-ab",
    "slower-variant": "look at what differs between the variants, which is all that their runs differ in",
    "unreadable": "make it readable, move it elsewhere, or allow it with --llmb-unmatched=list",
}

NO_ANSWER = "its jobs say why: correct that, or wait until their nodes are back, and start it again"
"""For an A/B or a search that ended without an answer."""

ANY_CHECK = "look at the configurations that it is about"
"""For a kind of check of which nothing more is known here."""

NOTHING_TO_DO = frozenset(
    ("checkpoint-load", "within-tolerance", "not-on-cluster", "not-judged", "variant")
)
"""Reasons that leave nothing to do: a summary does not list them."""

UNFINISHED = ("NOT_ASSERTED", "INCONCLUSIVE", "IMPROVEMENT", "RECORDED")
"""Verdicts that leave something to do where nothing is red."""

Advice = tuple[list[OutcomeDocument], str]
"""Items with one reason, and what to do about them."""


def advise(outcome: OutcomeDocument) -> str:
    """Advise what to do next about an item."""
    if isinstance(outcome, ConfigurationOutcome):
        return _advise_on_configuration(outcome)
    if isinstance(outcome, CheckOutcome):
        return outcome.next or _fill(ADVICE.get(outcome.reason, ANY_CHECK), outcome)
    return _fill(ADVICE[outcome.reason], outcome, logs=outcome.logs)


def _advise_on_configuration(outcome: ConfigurationOutcome) -> str:
    if outcome.resume and outcome.resume.due:
        return _advise_resumption(outcome.resume)
    if outcome.slow_nodes and outcome.verdict == "INCONCLUSIVE":
        return SLOW_NODES
    if outcome.trials and outcome.reason == "nothing-left":
        return NO_ANSWER
    advice = _fill(_choose_advice(outcome), outcome, folders=outcome.baselines)
    return (
        _advise_on_machine(outcome, advice) if outcome.reason in SLOW_HERE else advice
    )


def _fill(
    advice: str,
    outcome: OutcomeDocument,
    *,
    folders: Sequence[str] = (),
    logs: Sequence[str] = (),
) -> str:
    """Fill in the id, the folders of what was recorded, and the command that records
    the runs in `logs`."""
    baselines = " ".join(
        f"--llmb-baselines={shlex.quote(folder)}" for folder in folders or ("DIR",)
    )
    return advice.format(
        id=outcome.id, baselines=baselines, command=make_record_command(logs)
    )


def make_record_command(logs: Iterable[str]) -> str:
    """Return what makes configurations of one's own of the runs in these places."""
    return shlex.join(
        ["pytest", *(f"--llmb-logs={place}" for place in logs), "--llmb-record=own"]
    )


def _advise_on_machine(described: ConfigurationOutcome, advice: str) -> str:
    """Return advice on what several runs of a launch on this machine took, before the
    usual one; that one elsewhere."""
    seconds = [
        job.step_seconds
        for job in jobs.list_last_attempts(described)
        if job.step_seconds
    ]
    if len(seconds) < 2 or described.run is None or described.run.launcher != "local":
        return advice
    bound, expected = described.bound_seconds, described.expected_seconds
    apart = described.reason == "repeats-disagree" or max(seconds) / min(seconds) > (
        bound / expected if bound and expected else 1
    )
    times = " and ".join(
        ", ".join(map(formatting.format_seconds, seconds)).rsplit(", ", 1)
    )
    return RAN_HERE.format(times=times, first=BESIDE if apart else ALIKE, then=advice)


def _advise_resumption(resume: ReportedResumption) -> str:
    secrets = f", with {', '.join(resume.secrets)} set," if resume.secrets else ""
    return COLLECTED.format(secrets=secrets, command=resume.command)


def _choose_advice(outcome: ConfigurationOutcome) -> str:
    reason = outcome.reason
    if outcome.timed == "document" and reason in (
        "slower-than-bound",
        "faster-than-baseline",
        "cannot-tell",
    ):
        return ONE_STEP
    if reason == "slower-than-bound":
        if any(note.code == NoteCode.ACKNOWLEDGEMENT_EXPIRED for note in outcome.notes):
            return EXPIRED
        return _advise_since(outcome.last_good) + _advise_on_baseline(
            outcome.baseline.kind
        )
    is_noise_measured = (
        outcome.estimate is not None and outcome.estimate.run_to_run.measured
    )
    more = UNKNOWN_NOISE if reason == "cannot-tell" and not is_noise_measured else ""
    return _choose_by_reason(reason, outcome.verdict) + more


def _choose_by_reason(reason: str, verdict: str) -> str:
    # Only a recording refuses repeats that disagree.
    return (
        NOT_ONE_LEVEL
        if reason == "repeats-disagree" and verdict == "INVALID"
        else ADVICE[reason]
    )


def _advise_on_baseline(kind: str) -> str:
    return KNOWN_CHANGE if kind == "recorded" else OTHER_CLUSTER


def advise_on_stored(
    configuration: str, reason: str, verdict: str, baseline: str
) -> str:
    """Advise what to do about a stored verdict, by the kind of its baseline; its nights
    make the noise known."""
    more = _advise_on_baseline(baseline) if reason == "slower-than-bound" else ""
    advice = f"{_choose_by_reason(reason, verdict)}{more}"
    return advice.format(
        id=configuration,
        baselines="--llmb-baselines=DIR",
        command=make_record_command(()),
    )


def _advise_since(last: ReportedLastGood | None) -> str:
    """Advise how to find what made a run slower than its bound."""
    if last is None:
        return ADVICE["slower-than-bound"]
    return SINCE_LAST_GOOD.format(
        differs="look at what differs, else " if _differs(last) else ""
    )


def _differs(last: ReportedLastGood) -> bool:
    others = set(last.nodes.now) - set(last.nodes.before) if last.nodes else ()
    return bool(last.software.differs or last.settings.differs or others)


def count_repeats_needed(outcome: ConfigurationOutcome) -> str:
    """Count the runs that would decide what is inconclusive, as `3 runs`; "" if that is
    too many to start."""
    estimate = outcome.estimate
    needed = estimate.repeats_needed if estimate else None
    if (
        outcome.verdict != "INCONCLUSIVE"
        or not estimate
        or not needed
        or needed > formatting.MANY
    ):
        return ""
    # they would settle how far it is from another value, or tell the same of the nodes
    if outcome.reason == "drifted" or outcome.slow_nodes:
        return ""
    return formatting.count_noun(max(needed, estimate.runs + 1), "run")


def list_advice(described: Iterable[OutcomeDocument]) -> list[Advice]:
    """Return what to do about outcomes that stand in the order of their importance: red
    ones first, those that leave nothing to do left out."""
    groups: dict[tuple[str, bool], list[OutcomeDocument]] = {}
    # Sorting is stable: within red and not red the order of importance stays.
    for outcome in sorted(
        filter(_is_unfinished, described),
        key=lambda outcome: outcome.status != "failed",
    ):
        slow_nodes = isinstance(outcome, ConfigurationOutcome) and bool(
            outcome.slow_nodes
        )
        groups.setdefault((outcome.reason, slow_nodes), []).append(outcome)
    return [
        (group, f"{advise(group[0])}{advise_repeats(group[0])}")
        for (reason, _), group in groups.items()
        if reason not in NOTHING_TO_DO
    ]


def _is_unfinished(outcome: OutcomeDocument) -> bool:
    """Whether it is red, or a configuration that leaves something to do though it is
    not."""
    return outcome.status == "failed" or (
        isinstance(outcome, ConfigurationOutcome) and outcome.verdict in UNFINISHED
    )


def advise_repeats(outcome: OutcomeDocument) -> str:
    """Count the runs that would decide what is inconclusive, as the end of a sentence;
    "" if no number would."""
    if not isinstance(outcome, ConfigurationOutcome) or (
        outcome.resume and outcome.resume.due
    ):
        return ""
    runs = count_repeats_needed(outcome)
    return f"; about {runs} would settle it" if runs else ""
