"""The sentences of statements: every code has one, and every statement its values."""

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
LAST_TEXT = "last valid run 2 nights ago (2025-11-20 03:30, job 7)"
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
        "7.900 s is +8.0 % against 7.300 s (+5.7 to +10.3 %)",
    ),
    (C.ALLOWED_TIME, {"seconds": 7.7}, "the bound is 7.700 s"),
    (
        C.TIMED_AS_DOCUMENT,
        {"assumed": True, "window": Window(9, 9), "statement": OLDER},
        "timed as is assumed of its document (step 9): 1 older run of this configuration",
    ),
    (
        C.TIMED_AS_DOCUMENT,
        {"assumed": False, "window": Window(9, 9), "statement": OLDER},
        "timed as its document does (step 9): 1 older run of this configuration",
    ),
    (
        C.RUNS_NEEDED,
        {"runs": 1, "needed": 3},
        "1 run cannot tell; about 3 would",
    ),
    (
        C.RUNS_NEEDED,
        {"runs": 2, "needed": 101},
        "2 runs cannot tell; more than 100 would",
    ),
    (
        C.NO_RUNS_SUFFICE,
        {"runs": 1},
        "1 run cannot tell, and no number would: it lies at the bound",
    ),
    (
        C.COARSE_TIME,
        {"seconds": 7.0, "slowest": 7.5},
        "printed too coarsely: 7.000 s may be up to 7.500 s, "
        "which no repeat would show",
    ),
    (
        C.FEW_MEANS,
        {"means": 2, "steps": 20},
        "2 printed means of 20 steps: within them a warm-up or a stall stays unseen, "
        "and how much they vary",
    ),
    (
        C.FEW_TIMES,
        {"times": 1},
        "1 time cannot tell a slow run from a slow step",
    ),
    (
        C.OTHER_STATISTIC,
        {"trimmed": True, "beyond": True, "difference": 0.077, "expected": 7.3},
        "the 20 % trimmed mean is beyond the bound (+8.0 % against 7.300 s): "
        "few steps decide",
    ),
    (
        C.OTHER_STATISTIC,
        {"trimmed": False, "beyond": False, "difference": 0.0, "expected": 7.3},
        "the mean is within the bound (0.0 % against 7.300 s): few steps decide",
    ),
    (
        C.SLOW_MEAN,
        {"difference": 0.077, "expected": 7.3, "forgiven": 2},
        "the mean of all steps is beyond the bound after 2 transient stalls are "
        "forgiven (+8.0 % against 7.300 s)",
    ),
    (
        C.SLOW_MEAN,
        {"difference": 0.077, "expected": 7.3, "forgiven": 0},
        "the mean of all steps is beyond the bound (+8.0 % against 7.300 s)",
    ),
    (
        C.WIDE_INTERVAL,
        {"low": -0.1, "high": 0.2, "tolerances": 4},
        "the steps fix the step time to between -9.5 % and +22.1 % only, "
        "wider than 4 tolerances",
    ),
    (C.UNIFORM_SHIFT, {}, "uniform shift"),
    (
        C.SHIFT_BESIDES,
        {"shape": (OLDER, "text")},
        "uniform shift; besides, 1 older run of this configuration; text",
    ),
    (
        C.IMPLAUSIBLE_TIME,
        {"share": 0.15, "near": ("a", "b"), "unverified": (OLDER,)},
        "more than 15 % faster is more likely another configuration; "
        "it is as fast as a, b; 1 older run of this configuration",
    ),
    (
        C.IMPLAUSIBLE_TIME,
        {"share": 0.15, "near": (), "unverified": ()},
        "more than 15 % faster is more likely another configuration",
    ),
    (C.RUNS_APART, {}, "the runs differ too much to be of one state"),
    (
        C.UNCONFIRMED_RUNS,
        {"runs": 1},
        "1 run beyond it: a slow node or slow software, no telling",
    ),
    (
        C.POOLED_DAYS,
        {"days": 3, "estimate": ESTIMATE},
        "3 nights running could not tell; together they do: +5.7 to +10.3 %",
    ),
    (
        C.BEYOND_ACCEPTED_LEVEL,
        {},
        "faster than the acknowledged level by more than the tolerance",
    ),
    (C.FASTER_AS_TIMED, {}, "by what its document timed, which is never recorded"),
    (
        C.REFRESH_BASELINE,
        {},
        "refresh the baseline, or it will hide the next regression",
    ),
    (
        C.COMPARED_WITHOUT_ERROR,
        {},
        "too few steps and no history: compared with the bound as it is",
    ),
    (
        C.BASELINE_ROUNDING,
        {"fraction": 0.013},
        "the baseline's rounding (1.3%) is more than a tenth of the margin",
    ),
    (
        C.NOISY_RUNS,
        {"sigma": 0.034, "assumed": 0.01},
        "earlier runs differ by 3.4%, more than the 1.0% that is assumed between runs: "
        "the interval is wider until 8 nights are known (--llmb-history)",
    ),
    (
        C.NOISY_STEPS,
        {"error": 0.02, "sigma": 0.01},
        "the steps of the run fix its mean to 2.0% only, less well than the 1.0% that "
        "is assumed from run to run: the interval is wider",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 1, "groups": 1, "grouped": False, "recommended": 5},
        "the baseline is of 1 run; 5 on as many nights or sets of nodes are "
        "recommended",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 4, "groups": 1, "grouped": False, "recommended": 5},
        "nothing says on how many nights or nodes the 4 runs of the baseline were: "
        "they count as one; 5 on as many nights or sets of nodes are recommended",
    ),
    (
        C.FEW_RECORDED,
        {"runs": 4, "groups": 2, "grouped": True, "recommended": 5},
        "the 4 runs of the baseline count as 2: they share nights and nodes; "
        "5 on as many nights or sets of nodes are recommended",
    ),
    (
        C.BASELINE_CONTRADICTS,
        {
            "baseline": BASELINE,
            "contradiction": Contradiction("tokens_per_second", "900", 7.0),
        },
        "the baseline contradicts itself (own.yaml:3: step_time 7.7 beside "
        "tokens_per_second 900, which is 7.000 s: the step time is +10.0 %)",
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
        "a/1, one of 2 runs that count: the loss is nan",
    ),
    (
        C.NOTHING_TO_COMPARE,
        {"seconds": (7.3, None)},
        "nothing to compare with yet: 7.300 s, - measured; "
        "record it with --llmb-record=DIR",
    ),
    (
        C.UNDATED_RUN,
        {"run": "a/1", "source": "no stamp"},
        "nothing says when a/1 started: no stamp",
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
        "2 repeats differ too much, the newest decides: 7.300 s, 8.400 s",
    ),
    (
        C.LOST_REPEAT,
        {"problem": PROBLEM},
        "a repeat cannot be judged: the loss is nan",
    ),
    (
        C.BUILD_UNKNOWN,
        {},
        "nothing says which build it is of, so it has no repeats",
    ),
    (
        C.HICCUP,
        {"steps": SLOW_STEPS, "mean": 7.5, "usual": 7.3},
        f"a hiccup: {SLOW_STEPS_TEXT}; the mean is 7.500 s, "
        "7.300 s with the next slowest in their place",
    ),
    (
        C.HICCUPS_OFTEN,
        {"runs": 3, "steps": SLOW_STEPS, "mean": 7.5, "usual": 7.3},
        "3 runs in seven nights had such steps: a hiccup is forgiven no more; "
        f"{SLOW_STEPS_TEXT}; the mean is 7.500 s, "
        "7.300 s with the next slowest in their place",
    ),
    (
        C.NEWEST_BY_FILE_TIME,
        {},
        "that it is the newest run, only the times of the files say, "
        "which copying may change",
    ),
    (
        C.NEWEST_BY_MIXED_CLOCKS,
        {},
        "that it is the newest run, only clocks say that cannot be compared",
    ),
    (
        C.AMBIGUOUS_ORDER,
        {"newest": NEWEST, "rival": RIVAL, "doubt": "a reason"},
        "which run is the newest is ambiguous: "
        "a/1 (job 7, 2025-11-20 03:30 by the first time stamp of its log, PASS) or "
        "b/2 (an unknown time by the order, REGRESSION); a reason",
    ),
    (
        C.ORDER_BY_JOB,
        {"rival": 8, "newest": 7},
        "the job ids order them otherwise: 8 after 7",
    ),
    (
        C.ORDER_BY_FILE,
        {
            "rival": "b/2",
            "rival_written": BEGAN,
            "newest": "a/1",
            "newest_written": None,
        },
        "the times of their files order them otherwise: b/2 was written on "
        "2025-11-20 03:30, a/1 at an unknown time",
    ),
    (
        C.ORDER_BY_LAUNCH,
        {"rival": "b/2", "launched": BEGAN},
        "b/2 was launched 2025-11-20 03:30, after the first stamp of its own log",
    ),
    (C.TOO_FEW_STEPS, {}, "too few steps to show a shape"),
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
        f"every 3rd step slow, 20 % above the others ({STEPS_TEXT})",
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
        "step 20 holds the save of line 7 (2.25 of 9.5 s)",
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
        "1 of 3 slow steps hold a save: step 20 holds the save of line 7",
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
        f"8 stragglers, 25 % of the time, +5 % on the mean: {STEPS_TEXT}; "
        f"{SLOWEST_TEXT}; one slow step shows in 5 values",
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
        f"1 slow mean, 25 % of the time, +5 % on the mean: {SLOWEST_TEXT}",
    ),
    (
        C.STEP_DRIFT,
        {"change": 0.062, "first": 11, "last": 44, "p": 0.00123},
        "drift: +6.2 % from step 11 to step 44 (p 0.001)",
    ),
    (
        C.WARM_UP_STEPS,
        {"first": 11, "last": 20, "excess": 0.062, "z": 1234.5},
        "warm-up not over: steps 11 to 20 are 6.2 % slower than the rest (z 99)",
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
    (C.ACCEPTED_IN_ALL, {"change": 0.14}, "of +15.0 % in all +10.0 % count"),
    (
        C.IDLE_CERTIFIED,
        {"entry": ENTRY},
        f"without effect under --llmb-certify: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_EXPIRED,
        {"entry": ENTRY},
        f"expired on 2025-12-01, without effect: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_RECORDED,
        {"entry": ENTRY, "recorded": "2025-11-19"},
        "without effect, the baseline was recorded from runs up to 2025-11-19 and may "
        f"hold it already: {ENTRY_TEXT} (ok.yaml:3)",
    ),
    (
        C.IDLE_FASTER,
        {"entry": ENTRY},
        f"{ENTRY_TEXT}: faster than the acknowledged level by more than the "
        "tolerance: it can go (ok.yaml:3)",
    ),
    (
        C.VALUE_DRIFT,
        {"tonight": (7.665, FIRST), "recorded": 1.02, "limits": LIMITS},
        f"tonight {MOVED}; recorded since: +2.0 % {LIMITS_TEXT}",
    ),
    (
        C.DRIFTED_RUN,
        {"tonight": (7.665, FIRST), "allowed": 7.6, "limits": LIMITS},
        f"tonight {MOVED}; at most 7.600 s is allowed {LIMITS_TEXT}",
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
        f"recorded values: {MOVED}, in 2 accepted moves",
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
        f"checkpoint save took 31.5 s until it was handed over (x.out:7), "
        f"{BUDGET_TEXT}",
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
        f"checkpoint load took 31.5 s (line 7), {BUDGET_TEXT}",
    ),
    (
        C.BUDGET_UNKNOWN,
        {
            "action": CheckpointAction.SAVE,
            "budget": BUDGET,
            "doubt": CodedStatement(C.SYNCHRONOUS),
            "place": LogLine("", 7),
        },
        "checkpoint save cannot be judged: it is synchronous, so its time is no "
        f"dispatch (line 7); {BUDGET_TEXT}",
    ),
    (C.TIME_TRUNCATED, {}, "its time is cut off"),
    (C.TIME_MISSING, {}, "no time is stated for it"),
    (
        C.DISPATCH_ONLY,
        {},
        "it is or may be asynchronous, its time is that of the dispatch only, for "
        "which checkpoint_save_dispatch_seconds is the budget",
    ),
    (C.RECORDS_UNREAD, {"records": 12}, "12 more records than are kept"),
    (C.SYNCHRONOUS, {}, "it is synchronous, so its time is no dispatch"),
    (
        C.UNSTATED_CHECKPOINT,
        {"action": CheckpointAction.SAVE, "budget": BUDGET, "meant": "it saves"},
        f"the log states no checkpoint save, though it saves; {BUDGET_TEXT}",
    ),
    (
        C.UNSTATED_CHECKPOINT,
        {"action": CheckpointAction.SAVE, "budget": BUDGET, "meant": ""},
        f"the log states no checkpoint save; {BUDGET_TEXT}",
    ),
    (C.ERROR_UNKNOWN, {}, "nothing is known of the error"),
    (C.NOT_CERTIFIED, {"doubt": "a doubt"}, "a doubt: not certified"),
    (
        C.OTHER_BASELINE_KIND,
        {"asked": "published", "kind": "recorded"},
        "there is no published baseline, only one that was recorded here",
    ),
    (
        C.NEWER_UNMATCHED,
        {"run": "a/1", "text": "no model"},
        "a newer run may be of this configuration: a/1: no model",
    ),
    (
        C.TOO_FEW_RUNS,
        {"valid": 1, "required": REQUIRED, "statements": (OLDER,)},
        "1 valid run, suite.py:4 asks for 3; the newest: "
        "1 older run of this configuration",
    ),
    (
        C.FEWER_RUNS,
        {"valid": 2, "required": REQUIRED, "repeats": 1},
        "2 valid runs, suite.py:4 asks for 3 (--llmb-repeats=1)",
    ),
    (
        C.SLOWER_BEYOND_CHANCE,
        {"p": 0.01234, "count": 82},
        "slower than its baseline beyond chance, within the tolerance "
        "(p = 0.012, adjusted for 82)",
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
def test_statement_has_its_sentence(
    code: StatementCode, values: dict[str, Any], sentence: str
) -> None:
    assert phrase(CodedStatement(code, **values)) == sentence
    assert set(values) == list_fields(code)


def test_code_has_a_sentence_and_an_example() -> None:
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
    """Yield each place of the package that makes a statement."""
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


def test_statement_is_made_with_the_values_of_its_sentence() -> None:
    made = set()
    for place, call in list_statements():
        code = StatementCode[ast.unparse(call.args[0]).removeprefix("StatementCode.")]
        names = {str(keyword.arg) for keyword in call.keywords}
        assert len(call.args) == 1, place
        assert names == list_fields(code), place
        made.add(code)
    assert made == set(StatementCode)


def test_record_without_a_sentence_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"no sentence for StepSpan"):
        phrase(StepSpan(1, 2, 2))
