"""The text of one item: what a reader of a red test needs to know, on one screen of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from pytest_llmbench import wording
from pytest_llmbench.report import jobs, tries

WIDTH = 79
"""Columns of a message: a terminal of 80 without wrapping."""

MANY = 100
"""From this many runs on nobody would start them."""

MOST_FILES = 5

ROWS = (
    ("step time", "step_time_seconds", "{:#.4g} s"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("MFU", "mfu", "{:.2%}"),
    ("TFLOP/s per GPU", "tflops_per_gpu", "{:,.1f}"),
    ("days to 1T tokens", "days_to_1t_tokens", "{:,.2f}"),
)

ADVICE = {
    "slower-than-bound": "compare with an older run of this configuration; if this cluster is known to differ from the "
    "document, record its own baseline with --llmb-record=DIR",
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
    "no-run": "give --llmb-logs a folder that holds a run of it, or select fewer with -k",
    "start-unknown": "correct the clock or the file's time, or name its folder by the time of its start",
    "too-old": "run it again, or raise --llmb-max-age",
    "profiled": "run it again without profiling",
    "traced": "run it again without the NCCL trace; llmbench nccl LOG says what the trace holds",
    "asynchronous-dispatch": "judge a window after the steps that were only dispatched when their time was taken",
    "checkpoint-load": "nothing: it only verifies that a checkpoint loads",
    "only-not-comparable": "run it again without profiling, tracing or loading a checkpoint",
    "unmatched": "judge it against another release with --llmb-baseline-release, add a baseline with "
    "--llmb-baselines=DIR, or allow it with --llmb-unmatched=list",
    "ambiguous": "say what nothing in the run says: release and GPU type with --llmb-release and --llmb-gpu, the rest "
    "in the name of its folder or log (pretrain_<recipe>_<size>_<precision>_<GPUs>) or in its metadata; correct what "
    "contradicts itself; or allow it with --llmb-unmatched=list",
    "within-tolerance": "nothing",
    "cannot-tell": "run it again, and judge the runs together with --llmb-repeat-window; a history of 8 nights or a "
    "recorded baseline of several runs makes the noise known",
    "warming-up": "run more steps before the window, or run it again",
    "few-steps-decide": "look at the slow steps in the log: a stall of the node, a checkpoint, an evaluation; run it "
    "again",
    "test-failed": "read the test",
    "cluster-change": "look at what all nodes share: driver, fabric, power and clocks, file system, image",
    "weak-scaling": "compare the communication of the larger run with the smaller one's: fabric, topology, placement",
    "fp8-speedup": "check that the FP8 run used FP8 kernels, and compare both runs with older ones",
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
    lines = [headline(described), *_wrapped(described["text"]), *described.get("lines", [])]
    if short and context and described["reason"] == "no-run":
        lines = [headline(described), *_wrapped(textwrap.shorten(context, 2 * WIDTH - 20, placeholder=" ..."))]
    if not short:
        lines += [*_wrapped(context), *_table(described), *_facts(described), *_notes(described)]
    if described["log"]:
        lines.append(f"log: {where(described)}")
    if not short:
        lines += _wrapped(f"next: {ADVICE[described['reason']].format(id=described['id'])}", "      ")
    return "\n".join(lines)


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
    metrics, expected = described.get("metrics", {}), described.get("expected_metrics", {})
    unjudged = described.get("verdict") in ("NOT_COMPARABLE", "MISSING") or described["reason"] == "nothing-left"
    if described.get("problems") or unjudged:
        return  # a step time that means nothing is not shown beside one that does
    rows = [(label, metrics[name]["value"], expected.get(name), form) for label, name, form in ROWS if name in metrics]
    if rows:
        yield ""
        yield f"  {'':<18}{'measured':>16}{'baseline':>16}{'difference':>13}"
    for label, measured, wanted, form in rows:
        change = wording.difference(measured / wanted if wanted else None)
        yield f"  {label:<18}{form.format(measured):>16}{form.format(wanted) if wanted else '-':>16}{change:>13}"
    if rows:
        yield ""


def _facts(described: dict[str, Any]) -> Iterator[str]:
    run, baseline = described.get("run"), described.get("baseline")
    if baseline and described["bound_seconds"] is not None:
        factor = described["bound_seconds"] / described["expected_seconds"]
        source = described["tolerance_source"]
        tolerance = described["tolerance"] + (f", {source}" if source not in ("", "default") else "")
        yield from _fact(
            "bound",
            f"{wording.seconds(described['bound_seconds'])} = "
            f"{wording.seconds(described['expected_seconds'])} x {factor:.6g} (tolerance {tolerance})",
        )
        yield from _statistics(described)
        yield from _fact(
            "baseline",
            f"{baseline['kind']}: {baseline['table'] or baseline['document']}, {baseline['file']}:{baseline['line']}",
        )
    if "step_time_seconds" in described.get("metrics", {}) and described["window_seconds"]:
        found = _found(described)
        deviation = described["metrics"]["step_time_seconds"]["standard_deviation"]
        last = wording.seconds(described["last_step_seconds"])
        other = _other_statistic(described)
        yield from _fact(
            "window",
            f"{described['window']['text']} ({found}, sd {deviation:.3g} s{other}); last step {last}",
        )
    if run:
        job = f"job {run['job_id']}, " if run["job_id"] else ""
        started = (run["started"] or "at an unknown time")[:16].replace("T", " ")
        yield from _fact("run", f"{job}started {started} ({run['started_from']}), {run['age']} old")
    yield from _jobs(described)
    for line in tries.lines(described):
        yield from _fact("attempt", line)
    for problem in described.get("problems", [])[1:]:
        yield from _fact("also", problem["text"] + (f" (line {problem['line']})" if problem["line"] else ""))
    for other in described.get("others", []):
        yield from _fact(
            "also", f"{other['verdict']} against the {other['baseline']['kind']} baseline: {other['text']}"
        )


def _found(described: dict[str, Any]) -> str:
    """Return `34 found`, or `4 means of 40 steps found`."""
    values, steps = len(described["window_seconds"]), sum(described["window_mean_of"])
    return f"{wording.counted(values, 'mean')} of {steps} steps found" if steps else f"{values} found"


def _jobs(described: dict[str, Any]) -> Iterator[str]:
    """Yield where the runs were, what that tells of the nodes, each job where there are several, and their files."""
    for told in filter(None, (jobs.ran_on(described), jobs.finding(described))):
        yield from _fact("nodes", told)
    launched, files = described.get("jobs", ()), jobs.files(described)
    for job in launched if len(launched) > 1 else ():
        yield from _fact("job", jobs.line(described, job))
    for file in files[:MOST_FILES]:
        yield f"  {'file':<10}{file}"
    if len(files) > MOST_FILES:
        yield f"  {'file':<10}{len(files) - MOST_FILES} more"


def _statistics(described: dict[str, Any]) -> Iterator[str]:
    """Yield how well the difference is known, and what the rule as written says."""
    estimate = described.get("estimate")
    if estimate is None:
        return
    meets = "holds" if described["meets_point"] else "does not hold"
    yield f"  rule      as written, measured <= bound: {meets}"
    if estimate["threshold_only"]:
        return
    low, high = (wording.difference(1 + estimate[name]) for name in ("low", "high"))
    runs, sure = wording.counted(estimate["runs"], "run"), (1 - estimate["level"]) * 100
    yield from _fact("interval", f"{low} to {high} from {runs}, {sure:.3g} % sure of each end")
    noise, within = estimate["run_to_run"], estimate["within_run_error"]
    yield from _fact(
        "noise",
        f"run to run {noise['sigma'] * 100:.2f} % ({noise['source']}), within the run {within * 100:.2f} % "
        f"({estimate['effective_sample_size']:.0f} independent {'means' if described['window_mean_of'] else 'steps'})",
    )
    needed = estimate["repeats_needed"]
    settles = described["verdict"] == "INCONCLUSIVE" and needed and needed <= MANY
    more = wording.counted(max(needed, estimate["runs"] + 1), "run") if settles else ""
    settle = f"; about {more} would settle it" if settles else ""
    detectable = wording.difference(1 + estimate["detectable"])
    yield from _fact("power", f"such a run shows a slowdown of {detectable} or more{settle}")


def _other_statistic(described: dict[str, Any]) -> str:
    """Return the mean beside a trimmed mean, and the other way round."""
    trimmed = described["window"]["statistic"] == "trimmed_mean"
    name, label = ("mean", "mean") if trimmed else ("trimmed_mean", "trimmed mean")
    metric = described["metrics"].get(f"step_time_{name}_seconds")
    return f", {label} {wording.seconds(metric['value'])}" if metric else ""


def _notes(described: dict[str, Any]) -> Iterator[str]:
    listed = ("attempts", "segments") if tries.lines(described) else ()  # each of them has a line of its own
    notes = [note for note in described.get("notes", []) if note["code"] not in listed]
    for note in notes[:5]:
        yield from _fact("note", note["text"] + (f" (line {note['line']})" if note["line"] else ""))
    if len(notes) > 5:
        yield from _fact("note", f"{len(notes) - 5} more notes in the JUnit report")


def _fact(label: str, text: str) -> list[str]:
    return _wrapped(f"  {label:<10}{text}", " " * 12)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
