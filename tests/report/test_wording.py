"""The sentence of each statement code, with examples."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_llmbench
from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Budget,
    Contradiction,
    Window,
)
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import RequiredRuns
from pytest_llmbench.core.log_records import CheckpointAction
from pytest_llmbench.core.run_records import Acknowledgement, Clock, Problem
from pytest_llmbench.core.statements import (
    CodedStatement,
    DriftLimits,
    LogLine,
    OrderedRun,
    ShiftReference,
    SlowestSteps,
    SlowStep,
    StatementCode,
    StepList,
    StepSpan,
)
from pytest_llmbench.report.wording import CHANGES, SENTENCES, phrase

C = StatementCode
PACKAGE = Path(pytest_llmbench.__file__).parent
BEGAN = datetime(2025, 11, 20, 3, 30, tzinfo=UTC)
DAYS = timedelta(days=9)

ESTIMATE: Any = SimpleNamespace(
    difference=0.0770, low=0.0554, high=0.0980, threshold_only=False
)
PROBLEM = Problem(Reason.DIVERGED, "the loss is nan")
OLDER = CodedStatement(C.OLDER_RUNS, runs=1)
LAST = CodedStatement(C.LAST_VALID_RUN, days=2, age=DAYS, started=BEGAN, job_id="7")
LAST_TEXT = "last valid run 2 days ago (2025-11-20 03:30, job 7)"
ENTRY = Acknowledgement(
    "oak*", 0.05, date(2025, 11, 1), date(2025, 12, 1), "new image", "ann", "ok.yaml:3"
)
ENTRY_TEXT = "acknowledged: +5.0 % by ann until 2025-12-01: new image"
STEPS = StepList((StepSpan(12, 12, 1), StepSpan(20, 24, 5)), more=2, count=8)
STEPS_TEXT = "steps 12, 20 to 24 and 2 more"
SLOWEST = SlowestSteps(
    StepList((StepSpan(12, 12, 1),), 0, 1), 2.5, averaged=False, smoothed=False
)
SLOWEST_TEXT = "step 12 took 2.5 x the median"
SLOW_STEPS = (SlowStep(12, 120, 2.5), SlowStep(13, 0, 2.0))
SLOW_STEPS_TEXT = (
    "step 12 (line 120) took 2.5 x the median, step 13 took 2 x the median"
)
FIRST = AcceptedValue("2025-11-01", 7.3)
MOVED = "7.665 s is +5.0 % from 7.300 s, accepted on 2025-11-01"
LIMITS = DriftLimits(0.05, "+5 %")  # type: ignore[arg-type]
LIMITS_TEXT = "(drift budget 5 %, tolerance +5 %)"
BUDGET = Budget("checkpoint_save_seconds", 30.0, "own.yaml:7")
BUDGET_TEXT = "the budget is 30 s (own.yaml:7)"
NEWEST = OrderedRun("a/1", "7", BEGAN, Clock.LOG, Verdict.PASS)
RIVAL = OrderedRun("b/2", "", None, Clock.UNKNOWN, Verdict.REGRESSION)
REQUIRED = RequiredRuns(3, "suite.py:4")
BASELINE = SimpleNamespace(
    cells=(("step_time", "7.7"),),
    step_seconds=7.7,
    source=SimpleNamespace(file="own.yaml", line=3),
)

EXAMPLES: list[tuple[StatementCode, dict[str, Any], str]] = [
    (
        C.STEP_TIME,
        {"measured": 7.9, "expected": 7.3, "estimate": ESTIMATE},
        "step time 7.900 s, +8.0 % against the baseline 7.300 s (+5.7 to +10.3 %)",
    ),
    (C.ALLOWED_TIME, {"seconds": 7.7}, "the limit is 7.700 s"),
    (
        C.TIMED_AS_DOCUMENT,
        {"assumed": True, "window": Window(9, 9), "statement": OLDER},
        "measured as its document does, presumably (step 9): "
        "1 older run of this configuration",
    ),
    (
        C.TIMED_AS_DOCUMENT,
        {"assumed": False, "window": Window(9, 9), "statement": OLDER},
        "measured as its document does (step 9): 1 older run of this configuration",
    ),
    (
        C.RUNS_NEEDED,
        {"runs": 1, "needed": 3},
        "1 run cannot decide; about 3 runs would",
    ),
    (
        C.RUNS_NEEDED,
        {"runs": 2, "needed": 101},
        "2 runs cannot decide; more than 100 runs would",
    ),
    (
        C.NO_RUNS_SUFFICE,
        {"runs": 1},
        "1 run cannot decide, nor would more runs: the step time is at the limit",
    ),
    (
        C.COARSE_TIME,
        {"seconds": 7.0, "slowest": 7.5},
        "the log prints times too coarsely: 7.000 s may be up to 7.500 s, "
        "and repeats would not help",
    ),
    (
        C.FEW_MEANS,
        {"means": 2, "steps": 20},
        "the log prints only 2 means for 20 steps: means would hide a warm-up or a "
        "stall, and how much the steps vary",
    ),
    (
        C.FEW_TIMES,
        {"times": 1},
        "1 step time cannot distinguish a slow run from a slow step",
    ),
    (
        C.OTHER_STATISTIC,
        {"trimmed": True, "beyond": True, "difference": 0.077, "expected": 7.3},
        "the 20 % trimmed mean is above the limit (+8.0 % against the expected 7.300 s): "
        "a few steps decide the verdict",
    ),
    (
        C.OTHER_STATISTIC,
        {"trimmed": False, "beyond": False, "difference": 0.0, "expected": 7.3},
        "the mean is within the limit (0.0 % against the expected 7.300 s): "
        "a few steps decide the verdict",
    ),
    (
        C.SLOW_MEAN,
        {"difference": 0.077, "expected": 7.3, "forgiven": 2},
        "the mean of all steps is above the limit although 2 transient stalls are "
        "left out (+8.0 % against the expected 7.300 s)",
    ),
    (
        C.SLOW_MEAN,
        {"difference": 0.077, "expected": 7.3, "forgiven": 0},
        "the mean of all steps is above the limit (+8.0 % against the expected 7.300 s)",
    ),
    (
        C.WIDE_INTERVAL,
        {"low": -0.1, "high": 0.2, "tolerances": 4},
        "the steps vary so much that the difference from the baseline may be -9.5 % to "
        "+22.1 %, a range of more than 4 times the tolerance",
    ),
    (C.UNIFORM_SHIFT, {}, "all steps shifted uniformly"),
    (
        C.SHIFT_BESIDES,
        {"shape": (OLDER, "text")},
        "all steps shifted uniformly; in addition, "
        "1 older run of this configuration; text",
    ),
    (
        C.IMPLAUSIBLE_TIME,
        {"share": 0.15, "near": ("a", "b"), "unverified": (OLDER,)},
        "more than 15 % faster: probably another configuration, "
        "since it is as fast as a, b; 1 older run of this configuration",
    ),
    (
        C.IMPLAUSIBLE_TIME,
        {"share": 0.15, "near": (), "unverified": ()},
        "more than 15 % faster: probably another configuration",
    ),
    (C.RUNS_APART, {}, "the runs differ too much to be averaged"),
    (
        C.UNCONFIRMED_RUNS,
        {"runs": 1},
        "1 run above the limit may be a slow node or slow software: not confirmed",
    ),
    (
        C.POOLED_DAYS,
        {"days": 3, "estimate": ESTIMATE},
        "inconclusive on 3 days in a row, but decided by their runs together: "
        "+5.7 to +10.3 %",
    ),
    (
        C.BEYOND_ACCEPTED_LEVEL,
        {},
        "faster than the acknowledged level by more than the tolerance",
    ),
    (
        C.FASTER_AS_TIMED,
        {},
        "faster by the step that the document timed (--llmb-timed=document); the time of a single step is never recorded as a baseline",
    ),
    (
        C.REFRESH_BASELINE,
        {},
        "refresh the baseline, or it will hide the next regression",
    ),
    (
        C.COMPARED_WITHOUT_ERROR,
        {},
        "too few steps and no history: compared with the limit without an error",
    ),
    (
        C.BASELINE_ROUNDING,
        {"fraction": 0.013},
        "the rounding of the baseline (1.3%) exceeds a tenth of the tolerance",
    ),
    (
        C.NOISY_RUNS,
        {"sigma": 0.034, "assumed": 0.01},
        "earlier runs differ by 3.4%, more than the assumed 1.0%: "
        "the interval is wider until the history has 8 daily runs (--llmb-history)",
    ),
    (
        C.NOISY_STEPS,
        {"error": 0.02, "sigma": 0.01},
        "the steps vary so much that their mean is uncertain by 2.0%, more than the "
        "1.0% assumed between runs: the interval is wider",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 1, "groups": 1, "grouped": False, "recommended": 5},
        "the baseline was recorded from 1 run; record 5 runs on different days or "
        "nodes",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 4, "groups": 1, "grouped": False, "recommended": 5},
        "the 4 runs of the baseline count as one: their days or nodes are unknown; "
        "record 5 runs on different days or nodes",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 4, "groups": 2, "grouped": True, "recommended": 5},
        "the 4 runs of the baseline count as 2: they share days and nodes; "
        "record 5 runs on different days or nodes",
    ),
    (
        C.BASELINE_CONTRADICTS,
        {
            "baseline": BASELINE,
            "contradiction": Contradiction("tokens_per_second", "900", 7.0),
        },
        "the baseline contradicts itself (own.yaml:3: step_time 7.7, but "
        "tokens_per_second 900 means 7.000 s: +10.0 %)",
    ),
    (
        C.LAST_VALID_RUN,
        {"days": 0, "age": timedelta(hours=5), "started": BEGAN, "job_id": ""},
        "last valid run 5h ago (2025-11-20 03:30)",
    ),
    (C.LAST_VALID_RUN, LAST.values, LAST_TEXT),
    (
        C.STALE_RUN,
        {"age": DAYS, "limit": timedelta(days=2), "last_valid": LAST},
        f"stale: the newest run is 9d old, at most 2d is allowed; {LAST_TEXT}",
    ),
    (
        C.STALE_RUN,
        {"age": DAYS, "limit": timedelta(hours=3), "last_valid": None},
        "stale: the newest run is 9d old, at most 3h is allowed; no valid run is known",
    ),
    (
        C.UNUSABLE_RUN,
        {"run": "a/1", "runs": 1, "problem": PROBLEM, "last_valid": LAST},
        f"the loss is nan; {LAST_TEXT}",
    ),
    (
        C.UNUSABLE_RUN,
        {"run": "a/1", "runs": 2, "problem": PROBLEM, "last_valid": None},
        "a/1, one of 2 judged runs: the loss is nan",
    ),
    (
        C.NOTHING_TO_COMPARE,
        {"seconds": (7.3, None)},
        "no baseline to compare with yet: measured 7.300 s, -; "
        "record it with --llmb-record=DIR",
    ),
    (
        C.UNDATED_RUN,
        {"run": "a/1", "source": "no stamp"},
        "the start time of a/1 is unknown: no stamp",
    ),
    (
        C.MISSING_RUN,
        {"stale": True, "last_valid": LAST},
        f"stale: no run of this configuration; {LAST_TEXT}",
    ),
    (
        C.MISSING_RUN,
        {"stale": False, "last_valid": None},
        "no run of this configuration",
    ),
    (
        C.ONLY_EXCLUDED,
        {"problem": PROBLEM, "last_valid": None},
        "only diverged runs: the loss is nan",
    ),
    (
        C.NEWER_RUNS,
        {"runs": 2, "problem": PROBLEM},
        "2 newer runs cannot be compared: the loss is nan",
    ),
    (C.OLDER_RUNS, {"runs": 2}, "2 older runs of this configuration"),
    (
        C.REPEATS,
        {"runs": 2, "seconds": (7.3, 7.4)},
        "the mean of 2 repeats: 7.300 s, 7.400 s",
    ),
    (
        C.REPEATS_DIFFER,
        {"runs": 2, "seconds": (7.3, 8.4)},
        "2 repeats differ too much to be averaged, so the newest decides: "
        "7.300 s, 8.400 s",
    ),
    (
        C.LOST_REPEAT,
        {"problem": PROBLEM},
        "a repeat cannot be judged: the loss is nan",
    ),
    (
        C.BUILD_UNKNOWN,
        {},
        "its build is unknown, so no other run counts as its repeat",
    ),
    (
        C.HICCUP,
        {"steps": SLOW_STEPS, "mean": 7.5, "usual": 7.3},
        f"transient stalls left out: {SLOW_STEPS_TEXT}; the mean is 7.500 s, "
        "or 7.300 s if each stall takes as long as the next slowest step",
    ),
    (
        C.HICCUPS_OFTEN,
        {"runs": 3, "steps": SLOW_STEPS, "mean": 7.5, "usual": 7.3},
        "transient stalls are counted, because 3 runs in seven days had some: "
        f"{SLOW_STEPS_TEXT}; the mean is 7.500 s, "
        "and would be 7.300 s if each stall took as long as the next slowest step",
    ),
    (
        C.NEWEST_BY_FILE_TIME,
        {},
        "only file times show that this run is the newest, and copying may change them",
    ),
    (
        C.NEWEST_BY_MIXED_CLOCKS,
        {},
        "only clocks that may disagree show that this run is the newest",
    ),
    (
        C.AMBIGUOUS_ORDER,
        {"newest": NEWEST, "rival": RIVAL, "doubt": "a reason"},
        "the newest run is ambiguous: "
        "a/1 (job 7, 2025-11-20 03:30 by the first time stamp in the log, PASS) or "
        "b/2 (start unknown, REGRESSION); a reason",
    ),
    (
        C.ORDER_BY_JOB,
        {"rival": 8, "newest": 7},
        "the job ids give the opposite order: 8 after 7",
    ),
    (
        C.ORDER_BY_FILE,
        {
            "rival": "b/2",
            "rival_written": BEGAN,
            "newest": "a/1",
            "newest_written": None,
        },
        "the file times give the opposite order: b/2 was written on "
        "2025-11-20 03:30, a/1 at an unknown time",
    ),
    (
        C.ORDER_BY_LAUNCH,
        {"rival": "b/2", "launched": BEGAN},
        "b/2 was launched 2025-11-20 03:30, after the first time stamp in its log",
    ),
    (C.TOO_FEW_STEPS, {}, "too few steps to show a pattern"),
    (C.EVEN_STEPS, {"averaged": False}, "no single step stands out"),
    (C.EVEN_STEPS, {"averaged": True}, "no mean of several steps stands out"),
    (
        C.ONE_SPIKE,
        {"slowest": SLOWEST, "line": 120},
        f"one spike: {SLOWEST_TEXT} (line 120)",
    ),
    (C.ONE_SPIKE, {"slowest": SLOWEST, "line": 0}, f"one spike: {SLOWEST_TEXT}"),
    (
        C.SPIKES,
        {"steps": STEPS, "slowest": SLOWEST, "line": 120},
        f"spikes: {STEPS_TEXT}; {SLOWEST_TEXT} (line 120)",
    ),
    (
        C.PERIODIC_STEPS,
        {"period": 3, "excess": 0.2, "steps": STEPS},
        f"every 3rd step is slow, 20 % above the others ({STEPS_TEXT})",
    ),
    (
        C.SLOW_STRETCH,
        {"steps": STEPS, "upper": 8.0, "lower": 7.0},
        f"slow stretch: {STEPS_TEXT} at 8.000 s, the others at 7.000 s",
    ),
    (
        C.TWO_LEVELS,
        {
            "count": 8,
            "total": 34,
            "averaged": False,
            "level": 8.0,
            "other": 7.0,
            "steps": STEPS,
        },
        f"two levels: 8 of 34 steps at 8.000 s, the others at 7.000 s ({STEPS_TEXT})",
    ),
    (
        C.DRIFTING_STEPS,
        {"change": 0.062},
        "drift: +6.2 % from the first to the last step",
    ),
    (
        C.SAVE_IN_STEP,
        {
            "step": 20,
            "seconds": 9.5,
            "save_seconds": 2.25,
            "line": 7,
            "held": 1,
            "slow": 1,
        },
        "step 20 includes the checkpoint save of line 7 (2.25 of 9.5 s)",
    ),
    (
        C.SAVE_IN_STEP,
        {
            "step": 20,
            "seconds": 9.5,
            "save_seconds": None,
            "line": 7,
            "held": 1,
            "slow": 3,
        },
        "1 of 3 slow steps includes a save: "
        "step 20 includes the checkpoint save of line 7",
    ),
    (
        C.STRAGGLERS,
        {
            "count": 8,
            "averaged": False,
            "share": 0.25,
            "added": 0.05,
            "steps": STEPS,
            "slowest": SLOWEST,
            "moving_mean": 5,
        },
        f"8 stragglers (25 % of the time, +5 % on the mean): {STEPS_TEXT}; "
        f"{SLOWEST_TEXT}; one slow step raises 5 values",
    ),
    (
        C.STRAGGLERS,
        {
            "count": 1,
            "averaged": True,
            "share": 0.25,
            "added": 0.05,
            "steps": SLOWEST.steps,
            "slowest": SLOWEST,
            "moving_mean": 1,
        },
        f"1 slow mean (25 % of the time, +5 % on the mean): {SLOWEST_TEXT}",
    ),
    (
        C.STEP_DRIFT,
        {"change": 0.062, "first": 11, "last": 44, "p": 0.00123},
        "drift: +6.2 % from step 11 to step 44 (p 0.001)",
    ),
    (
        C.WARM_UP_STEPS,
        {"first": 11, "last": 20, "excess": 0.062, "z": 1234.5},
        "warm-up not finished: steps 11 to 20 are 6.2 % slower than the later steps "
        "(z 99)",
    ),
    (
        C.MEAN_AND_TRIMMED,
        {"mean": 7.5, "trimmed": 7.3, "slow": True},
        "mean 7.500 s, 20 % trimmed mean 7.300 s: slow steps drive the mean",
    ),
    (
        C.MOVING_MEANS,
        {"steps": 5, "values": 34, "independent": 6},
        "the log prints means of 5 steps: 34 values, about 6 of them independent",
    ),
    (
        C.ACCEPTED_REASON,
        {"statement": PROBLEM, "entry": ENTRY},
        f"the loss is nan ({ENTRY_TEXT})",
    ),
    (
        C.ACCEPTED_IN_ALL,
        {"change": 0.14},
        "acknowledged changes add up to +15.0 %; only +10.0 % of it is accepted",
    ),
    (
        C.IDLE_CERTIFIED,
        {"entry": ENTRY},
        f"no effect under --llmb-certify: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_EXPIRED,
        {"entry": ENTRY},
        f"no effect, expired on 2025-12-01: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_RECORDED,
        {"entry": ENTRY, "recorded": "2025-11-19"},
        "no effect, because the baseline was recorded from runs up to 2025-11-19 and "
        f"may include it already: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_FASTER,
        {"entry": ENTRY},
        "no effect, faster than the acknowledged level by more than the tolerance; "
        f"remove the entry: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.VALUE_DRIFT,
        {"tonight": (7.665, FIRST), "recorded": 1.02, "limits": LIMITS},
        f"this run: {MOVED}; the recorded values changed by +2.0 % since then {LIMITS_TEXT}",
    ),
    (
        C.DRIFTED_RUN,
        {"tonight": (7.665, FIRST), "allowed": 7.6, "limits": LIMITS},
        f"this run: {MOVED}; the limit is 7.600 s {LIMITS_TEXT}",
    ),
    (
        C.DRIFTED_RECORDING,
        {"recorded": (7.665, FIRST), "limits": LIMITS},
        f"the recorded value moved too far: {MOVED} {LIMITS_TEXT}",
    ),
    (
        C.AGAINST_RECORDED,
        {"statements": (OLDER, "text")},
        "against the recorded value: 1 older run of this configuration; text",
    ),
    (
        C.MOVED_RECORDING,
        {"recorded": (7.665, FIRST), "moves": 2},
        f"recorded values: {MOVED} after 2 accepted moves",
    ),
    (
        C.OVER_BUDGET,
        {
            "action": CheckpointAction.SAVE,
            "budget": BUDGET,
            "seconds": 31.5,
            "dispatched": True,
            "place": LogLine("x.out", 7),
        },
        f"checkpoint save took 31.5 s until it was dispatched (x.out:7); {BUDGET_TEXT}",
    ),
    (
        C.OVER_BUDGET,
        {
            "action": CheckpointAction.LOAD,
            "budget": BUDGET,
            "seconds": 31.5,
            "dispatched": False,
            "place": LogLine("", 7),
        },
        f"checkpoint load took 31.5 s (line 7); {BUDGET_TEXT}",
    ),
    (
        C.BUDGET_UNKNOWN,
        {
            "action": CheckpointAction.SAVE,
            "budget": BUDGET,
            "doubt": CodedStatement(C.SYNCHRONOUS),
            "place": LogLine("", 7),
        },
        "checkpoint save cannot be judged: it is synchronous, so no dispatch was "
        f"timed (line 7); {BUDGET_TEXT}",
    ),
    (C.TIME_TRUNCATED, {}, "the time of this save or load is truncated"),
    (C.TIME_MISSING, {}, "the log prints no time for this save or load"),
    (
        C.DISPATCH_ONLY,
        {},
        "it is or may be asynchronous, so only its dispatch was timed: "
        "use the budget checkpoint_save_dispatch_seconds",
    ),
    (
        C.RECORDS_UNREAD,
        {"records": 12},
        "12 checkpoints of the log were not kept",
    ),
    (C.SYNCHRONOUS, {}, "it is synchronous, so no dispatch was timed"),
    (
        C.UNSTATED_CHECKPOINT,
        {"action": CheckpointAction.SAVE, "budget": BUDGET, "meant": "it saves"},
        f"the log prints no checkpoint save, though it saves; {BUDGET_TEXT}",
    ),
    (
        C.UNSTATED_CHECKPOINT,
        {"action": CheckpointAction.SAVE, "budget": BUDGET, "meant": ""},
        f"the log prints no checkpoint save; {BUDGET_TEXT}",
    ),
    (C.ERROR_UNKNOWN, {}, "the standard error is unknown"),
    (C.NOT_CERTIFIED, {"doubt": "a doubt"}, "a doubt: not certified"),
    (
        C.OTHER_BASELINE_KIND,
        {"asked": "published", "kind": "recorded"},
        "there is no published baseline, only a recorded one",
    ),
    (
        C.NEWER_UNMATCHED,
        {"run": "a/1", "text": "no model"},
        "a newer run may be of this configuration: a/1: no model",
    ),
    (
        C.TOO_FEW_RUNS,
        {"valid": 1, "required": REQUIRED, "statements": (OLDER,)},
        "1 valid run, suite.py:4 requires 3; the newest: "
        "1 older run of this configuration",
    ),
    (
        C.FEWER_RUNS,
        {"valid": 2, "required": REQUIRED, "repeats": 1},
        "2 valid runs, suite.py:4 requires 3 (--llmb-repeats=1)",
    ),
    (
        C.SLOWER_BEYOND_CHANCE,
        {"p": 0.01234, "count": 82},
        "within the tolerance, but significantly slower than the baseline "
        "(p = 0.012, adjusted for 82 configurations)",
    ),
    (
        C.SLOW_RANK,
        {"log": "x.err", "lines": (("rank 3", 7), ("rank 4", 8))},
        'x.err reports a slow rank: "rank 3" (line 7), "rank 4" (line 8)',
    ),
    (
        C.SLOW_RANK,
        {"log": "", "lines": (("rank 3", 7),)},
        'the log reports a slow rank: "rank 3" (line 7)',
    ),
]


@pytest.mark.parametrize(
    ("code", "values", "sentence"),
    EXAMPLES,
    ids=[f"{number}-{code.name}" for number, (code, _, _) in enumerate(EXAMPLES)],
)
def test_coded_statement_is_phrased_as_a_sentence(
    code: StatementCode, values: dict[str, Any], sentence: str
) -> None:
    assert phrase(CodedStatement(code, **values)) == sentence
    assert set(values) == list_fields(code)


def test_each_statement_code_has_a_sentence_and_an_example() -> None:
    assert set(SENTENCES) == set(StatementCode)
    assert {code for code, _, _ in EXAMPLES} == set(StatementCode)
    assert set(CHANGES) == set(ShiftReference)


def list_fields(code: StatementCode) -> set[str]:
    """Return the names of the values that a sentence needs."""
    sentence = SENTENCES[code]
    if not isinstance(sentence, str):
        return set(inspect.signature(sentence).parameters)
    fields = (field for _, field, _, _ in Formatter().parse(sentence))
    return {field.partition(".")[0] for field in fields if field is not None}


def list_statements() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call in the package that creates a statement."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "CodedStatement(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "CodedStatement"
            ):
                yield f"{path.name}:{node.lineno}", node


def test_each_statement_in_the_source_has_the_values_of_its_sentence() -> None:
    made = set()
    for place, call in list_statements():
        code = StatementCode[ast.unparse(call.args[0]).removeprefix("StatementCode.")]
        names = {str(keyword.arg) for keyword in call.keywords}
        assert len(call.args) == 1, place
        assert names == list_fields(code), place
        made.add(code)
    assert made == set(StatementCode)


def test_phrasing_an_object_without_a_sentence_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"no sentence for StepSpan"):
        phrase(StepSpan(1, 2, 2))
