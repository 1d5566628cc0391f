"""The text of one item: what a reader of a red test needs to know, on one screen of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pytest_llmbench import wording
from pytest_llmbench.report import environment, jobs, tries
from pytest_llmbench.report.columns import WIDTH, harmless, width, wrapped

MANY = 100
"""From this many runs on nobody would start them."""

ROWS = (
    ("step time", "step_time_seconds", "{:#.4g} s"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("MFU", "mfu", "{:.2%}"),
    ("TFLOP/s per GPU", "tflops_per_gpu", "{:,.1f}"),
    ("days to 1T tokens", "days_to_1t_tokens", "{:,.2f}"),
)

SLOWER_THAN_RECORDED = (
    "compare with an older run of this configuration; a change that is known and meant goes into the file of "
    "--llmb-acknowledged"
)

UNKNOWN_NOISE = "; a history of 8 nights or a recorded baseline of several runs makes the noise known"

EXPIRED = (
    "find what made it slower; if it is to stay so for longer, give its entry in the file of --llmb-acknowledged a "
    "later day after `expires`"
)

ADVICE = {
    "slower-than-bound": "compare with an older run of this configuration; if this cluster is known to differ from the "
    "document, record its own baseline with --llmb-record=DIR",
    "drifted": "find what made it slower since, night by night; if that is meant to be, record it with "
    '--llmb-record=DIR --llmb-accept-drift="the reason"',
    "faster-than-baseline": "record a new baseline with --llmb-record=DIR",
    "diverged": "the step time of a diverged run means nothing: look at the first bad step, then run it again",
    "incomplete": "run it again; a run counts only when it reached its last step",
    "still-running": "judge it again when the job has ended",
    "no-steps": "read the end of the log, and with `dialect: regex` compare `find` and `pattern` with it; run it again",
    "window-incomplete": "the window must be whole; look for lost or torn lines in the log, or run it again",
    "loss-missing": "without its loss nobody knows that a run trained; check the log's format",
    "impossible-sample": "check the unit, and that GPU type, precision and number of GPUs are those of the run",
    "wrong-configuration": "compare the run's settings with: llmbench baselines show {id} (with "
    "--baselines=DIR for your own); if they agree and the framework counts FLOPs in another way, give the baseline "
    "file a logged_tflops_factor",
    "no-run": "give --llmb-logs a folder that holds a run of it, launch it (pytest -k {id} --llmb-launch), or select "
    "fewer with -k",
    "start-unknown": "correct the clock or the file's time, or name its folder by the time of its start",
    "too-old": "run it again, or raise --llmb-max-age",
    "too-few-runs": "run it again until there are as many valid runs as the suite asks for; a launch counts "
    "earlier ones below --llmb-logs",
    "profiled": "run it again without profiling",
    "traced": "run it again without the NCCL trace; llmbench nccl LOG says what the trace holds",
    "asynchronous-dispatch": "judge a window after the steps that were only dispatched when their time was taken",
    "checkpoint-load": "nothing: it only verifies that a checkpoint loads",
    "only-not-comparable": "run it again without profiling, tracing or loading a checkpoint",
    "unmatched": "add a baseline with --llmb-baselines=DIR, where only the release differs judge it against another "
    "one with --llmb-baseline-release, or allow it with --llmb-unmatched=list",
    "ambiguous": "say what nothing in the run says: release and GPU type with --llmb-release and --llmb-gpu, the rest "
    "in the name of its folder or log (pretrain_<recipe>_<size>_<precision>_<GPUs>) or in its metadata; correct what "
    "contradicts itself; or allow it with --llmb-unmatched=list",
    "within-tolerance": "nothing",
    "cannot-tell": "run it again, and judge the runs together with --llmb-repeat-window",
    "warming-up": "run more steps before the window, or run it again",
    "few-steps-decide": "look at the slow steps in the log: a stall of the node, a checkpoint, an evaluation; run it "
    "again",
    "test-failed": "read the test",
    "cluster-change": "look at what all nodes share: driver, fabric, power and clocks, file system, image",
    "weak-scaling": "compare the communication of the larger run with the smaller one's: fabric, topology, placement",
    "fp8-speedup": "check that the FP8 run used FP8 kernels, and compare both runs with older ones",
    "trend": "look at what differs since that night, also at what no log tells: firmware, clocks, fabric; if it is "
    "known and accepted, say so in the file of --llmb-acknowledged, which begins with `schema: 1` and `acknowledged:`",
    "selftest": "do not trust the gate with such runs: look at what of the damage the log shows",
    "not-asserted": "let the test act on llmb_verdict.failed and llmb_verdict.skipped",
    "recorded": "judge against it with --llmb-baselines=DIR",
    "repeats-disagree": "find what differs between the runs: nodes, steps, what else ran there; then run it again",
    "no-baseline": "record it with --llmb-record=DIR, judge later runs with --llmb-baselines=DIR",
    "not-on-cluster": "nothing, or correct what the options and cluster.yaml say of this cluster",
    "not-launched": "launch it with --llmb-launch",
    "not-submitted": "correct what the launcher complains of; --llmb-dry-run shows the command",
    "never-started": "look at the reason that the queue gives, at partition and limits; then run it again",
    "job-failed": "correct what its log says, then run it again",
    "failed-step": "the job ended well, but a part of it did not: read that part's log, then run it again",
    "cancelled": "run it again",
    "job-lost": "look for the job with sacct, and for its log, before it is run again",
    "log-missing": "look into the folder of the job: its log may have another name or place",
    "over-budget": "look at the file system and at what else used it then; the budget is in the baseline file",
    "budget-unknown": "budget what its log can state: checkpoint_save_seconds of a synchronous save, "
    "checkpoint_save_dispatch_seconds of an asynchronous one; or take the budget out of the baseline file",
    "nothing-left": "look in its log whether it did what it was for, and at its variables with --llmb-dry-run",
    "not-judged": "nothing: such a run is not judged for speed; look at its files",
    "unreadable": "make it readable, move it elsewhere, or allow it with --llmb-unmatched=list",
}


def explain(described: dict[str, Any], *, short: bool) -> str:
    """Return the message of an item from its dictionary: one screen, or three lines where many items fail."""
    context = described.get("context") or ""
    title = headline(described)
    head = [title] if width(title) <= WIDTH else wrapped(title, " " * 12)
    lines = [*head, *wrapped(described["text"]), *([] if short else described.get("lines", []))]
    if short and context and described["reason"] == "no-run":
        lines = [*head, *wrapped(context.partition(". ")[0])]  # the summary has all of it, once
    if not short:
        lines += [*wrapped(context), *_table(described)]
        lines += chain.from_iterable(_fact(*one) for one in (*facts(described), *_notes(described)))
    if described["log"]:
        lines.append(f"log: {where(described)}")
    if not short:
        lines += wrapped(f"next: {advice(described)}", "      ")
    return harmless("\n".join(lines))


def advice(described: dict[str, Any]) -> str:
    """Return what to do next about an item."""
    return _advice(described).format(id=described["id"])


def _advice(described: dict[str, Any]) -> str:
    reason = described["reason"]
    if reason == "slower-than-bound":
        if any(note["code"] == "acknowledgement-expired" for note in described.get("notes", ())):
            return EXPIRED
        recorded = (described.get("baseline") or {}).get("kind") == "recorded"
        return SLOWER_THAN_RECORDED if recorded else ADVICE[reason]
    known = (described.get("estimate") or {}).get("run_to_run", {}).get("measured", False)
    return ADVICE[reason] + (UNKNOWN_NOISE if reason == "cannot-tell" and not known else "")


def headline(described: dict[str, Any]) -> str:
    """Return `REGRESSION  grok1_314b-25.05-gb200-bf16-128 (slower-than-bound)`."""
    if described["kind"] == "stray":
        return f"{described['reason'].upper()}  {described['id']}"
    if described["kind"] == "check":
        return f"{described['check'].upper()} {described['verdict']}  {described['id']}"
    return f"{described['verdict']}  {described['id']} ({described['reason']})"


def where(described: dict[str, Any]) -> str:
    """Return the log and, where one is to blame, its line: `run/log.out:123`."""
    return f"{described['log']}:{described['line']}" if described.get("line") else str(described["log"])


def _table(described: dict[str, Any]) -> Iterator[str]:
    rows = compared(described)
    if rows:
        yield ""
        yield f"  {'':<18}{'measured':>16}{'baseline':>16}{'difference':>13}"
    for label, measured, wanted, change in rows:
        yield f"  {label:<18}{measured:>16}{wanted:>16}{change:>13}"
    if rows:
        yield ""


def compared(described: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return of each metric its label, what was measured, the baseline's value and the difference, as texts.

    Nothing where the step time means nothing: it is not shown beside one that does.
    """
    metrics, expected = described.get("metrics", {}), described.get("expected_metrics", {})
    unjudged = described.get("verdict") in ("NOT_COMPARABLE", "MISSING") or described["reason"] == "nothing-left"
    if described.get("problems") or unjudged:
        return []
    return [_compared(row, metrics[row[1]]["value"], expected.get(row[1])) for row in ROWS if row[1] in metrics]


def _compared(row: tuple[str, str, str], measured: float, wanted: float | None) -> tuple[str, str, str, str]:
    label, _, form = row
    change = wording.difference(measured / wanted if wanted else None)
    return label, form.format(measured), form.format(wanted) if wanted else "-", change


def facts(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of what the verdict rests on: bound, statistics, baseline, window, run, jobs, attempts."""
    run, baseline = described.get("run"), described.get("baseline")
    if baseline and described["bound_seconds"] is not None:
        factor = described["bound_seconds"] / described["expected_seconds"]
        source = described["tolerance_source"]
        tolerance = described["tolerance"] + (f", {source}" if source not in ("", "default") else "")
        yield (
            "bound",
            f"{wording.seconds(described['bound_seconds'])} = "
            f"{wording.seconds(described['expected_seconds'])} x {factor:.6g} (tolerance {tolerance})",
        )
        yield from _statistics(described)
        yield (
            "baseline",
            f"{baseline['kind']}: {baseline['table'] or baseline['document']}, {baseline['file']}:{baseline['line']}"
            + _recorded(baseline.get("recorded")),
        )
    if "step_time_seconds" in described.get("metrics", {}) and described["window_seconds"]:
        found = _found(described)
        deviation = described["metrics"]["step_time_seconds"]["standard_deviation"]
        spread = "" if deviation is None else f", sd {deviation:.3g} s"
        last = wording.seconds(described["last_step_seconds"])
        found += f"{spread}{_other_statistic(described)}"
        yield "window", f"{described['window']['text']} ({found}); last step {last}"
    if run:
        job = f"job {run['job_id']}, " if run["job_id"] else ""
        started = run["started"][:16].replace("T", " ") if run["started"] else "at an unknown time"
        yield "run", f"{job}started {started} ({run['started_from']}), {run['age']} old"
    if ran_on := environment.line(described.get("environment") or {}):
        yield "software", ran_on
    for change in described.get("changes", []):
        if change["stands"]:
            yield "change", change["text"]
    yield from _jobs(described)
    for line in tries.lines(described):
        yield "attempt", line
    for problem in described.get("problems", [])[1:]:
        yield "also", problem["text"] + (f" (line {problem['line']})" if problem["line"] else "")
    for other in described.get("others", []):
        yield ("also", f"{other['verdict']} against the {other['baseline']['kind']} baseline: {other['text']}")


def _recorded(recorded: dict[str, Any] | None) -> str:
    """Return `, of 2025-11-20 by alice on login1` for a recorded baseline."""
    if not recorded:
        return ""
    return f", of {recorded['date']}" + (f" by {recorded['by']}" if recorded["by"] else "")


def _found(described: dict[str, Any]) -> str:
    """Return `34 found`, or `4 means of 40 steps found`."""
    values, steps = len(described["window_seconds"]), sum(described["window_mean_of"])
    return f"{wording.counted(values, 'mean')} of {steps} steps found" if steps else f"{values} found"


def _jobs(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where the runs were, what that tells of the nodes, each job where there are several, and their files."""
    for told in filter(None, (jobs.ran_on(described), jobs.finding(described))):
        yield "nodes", told
    launched, files = described.get("jobs", ()), jobs.files(described)
    for job in launched if len(launched) > 1 else ():
        yield "job", jobs.line(described, job)
    for file in files[: jobs.MOST_FILES]:
        yield "file", file
    if len(files) > jobs.MOST_FILES:
        yield "file", f"{len(files) - jobs.MOST_FILES} more"


def _statistics(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how well the difference is known, and what the rule as written says."""
    estimate = described.get("estimate")
    if estimate is None:
        return
    meets = "holds" if described["meets_point"] else "does not hold"
    yield "rule", f"as written, measured <= bound: {meets}"
    if estimate["threshold_only"]:
        return
    low, high = (wording.difference(1 + estimate[name]) for name in ("low", "high"))
    runs, sure = wording.counted(estimate["runs"], "run"), (1 - estimate["level"]) * 100
    yield "interval", f"{low} to {high} from {runs}, {sure:.3g} % sure of each end"
    noise, within = estimate["run_to_run"], estimate["within_run_error"]
    yield (
        "noise",
        f"run to run {noise['sigma'] * 100:.2f} % ({noise['source']}), within the run {within * 100:.2f} % "
        f"({estimate['effective_sample_size']:.0f} independent {'means' if described['window_mean_of'] else 'steps'})",
    )
    runs_needed = repeats(described)
    settle = f"; about {runs_needed} would settle it" if runs_needed else ""
    detectable = wording.difference(1 + estimate["detectable"])
    yield "power", f"such a run shows a slowdown of {detectable} or more{settle}"


def repeats(described: dict[str, Any]) -> str:
    """Return how many runs would settle what is inconclusive, `3 runs`; empty where nobody would start so many."""
    estimate = described.get("estimate") or {}
    needed = estimate.get("repeats_needed")
    if described.get("verdict") != "INCONCLUSIVE" or not needed or needed > MANY:
        return ""
    return wording.counted(max(needed, estimate["runs"] + 1), "run")


def _other_statistic(described: dict[str, Any]) -> str:
    """Return the mean beside a trimmed mean, and the other way round."""
    trimmed = described["window"]["statistic"] == "trimmed_mean"
    name, label = ("mean", "mean") if trimmed else ("trimmed_mean", "trimmed mean")
    metric = described["metrics"].get(f"step_time_{name}_seconds")
    return f", {label} {wording.seconds(metric['value'])}" if metric else ""


def _notes(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    listed = ("attempts", "segments") if tries.lines(described) else ()  # each of them has a line of its own
    told = described["text"]  # may say it already
    notes = [one for one in described.get("notes", []) if one["code"] not in listed and one["text"] not in told]
    for note in notes[:5]:
        yield "note", note["text"] + (f" (line {note['line']})" if note["line"] else "")
    if len(notes) > 5:
        yield "note", f"{len(notes) - 5} more notes in the JUnit report"


def _fact(label: str, text: str) -> list[str]:
    if label == "file":
        return [f"  {label:<10}{text}"]  # whole, to be copied
    return wrapped(f"  {label:<10}{text}", " " * 12)
