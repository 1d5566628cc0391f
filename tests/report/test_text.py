"""Golden texts: the message of an item and the summary."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps
from support.outcomes import make_job, with_fields

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import Ending, EndingCode, Quote
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
    UnmatchedRun,
)
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.advice import ADVICE, advise
from pytest_llmbench.report.describe_outcome import (
    describe,
    describe_unmatched_run,
    list_properties,
    list_property_names,
)
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    ReportedMetric,
)
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.report.verdicts import format_counts
from pytest_llmbench.runs.measure.measurement import measure

FOLDER = Path("/runs")


def outcome(
    content: Run | None, status: Status = Status.FAILED, context: tuple[str, ...] = ()
) -> ConfigurationOutcome:
    """Make the outcome of a run."""
    measurements = () if content is None else (measure(content, BASELINE, NOW),)
    return describe(
        Outcome(
            ConfigurationResult(Case(KEY.id, KEY), judge(evidence(*measurements))),
            status,
            context=context,
        ),
        NOW,
        FOLDER,
    )


SLOW = run(log(segment(steps([7.911] * 49 + [9.0]))), started=NOW - timedelta(hours=3))

REGRESSION = """\
REGRESSION  grok1_314b-25.05-gb200-bf16-128 (slower-than-bound)
step time 7.911 s, +8.0 % against the baseline 7.325 s (+5.7 to +10.3 %); the
limit is 7.691 s; all steps shifted uniformly; no single step stands out
log: log-x_1_0.out
next: judge older runs of it as well, or keep a history (--llmb-history=URL),
      to see since when it has been slow; if this cluster differs from the
      documented one, record your own baseline with --llmb-record=DIR

                            measured        baseline   difference
  step time                  7.911 s         7.325 s       +8.0 %
  tokens/s                   265,093         286,301       -7.4 %
  MFU                         44.06%          47.59%       -7.4 %
  TFLOP/s per GPU            1,079.5         1,165.9       -7.4 %
  days to 1T tokens            43.66           40.43       +8.0 %

  limit     7.691 s = 7.325 s x 1.05 (tolerance 5 %)
  rule      measured <= limit is not met
  interval  +5.7 % to +10.3 % from 1 run, 95 % confidence at each end
  noise     1.00 % between runs (assumed, nothing was measured), 0.00 % within
            the run (34 independent steps)
  detects   a slowdown of +8.3 % or more
  baseline  published: Grok1 314b BF16, 25.05.yaml:42
  window    mean of steps 11 to 44 (34 found, sd 0 s, trimmed mean 7.911 s);
            last step 9.000 s
  run       job 1, started 2025-11-20 03:00 (folder name), 3h old"""


def test_message_lists_the_software_of_the_run() -> None:
    said = (("nccl", "2.26.6+cuda12.8"), ("container", "of the log"))
    recorded = (
        ("container", "nvcr.io#nvidia/nemo:25.04.01"),
        ("framework", "nemo2 25.04.01"),
    )
    content = replace(SLOW.attempts[0].log, environment=said)
    judgement = judge(
        evidence(measure(run(content, environment=recorded), BASELINE, NOW))
    )
    shown_outcome = Outcome(
        ConfigurationResult(Case(KEY.id, KEY), judgement), Status.FAILED
    )
    described = describe(shown_outcome, NOW, FOLDER, "1a2b3c4d5e6f70819")
    assert described.environment == {
        "commit": "1a2b3c4d5e6f70819",
        "container": "nvcr.io#nvidia/nemo:25.04.01",
        "framework": "nemo2 25.04.01",
        "nccl": "2.26.6+cuda12.8",
    }
    message = explain(described, short=False)
    lines = message.splitlines()
    first = next(index for index, line in enumerate(lines) if line[:5] == "  run")
    assert lines[first:] == [
        "  run       job 1, started 2025-11-20 03:00 (folder name), 3h old",
        "  software  commit 1a2b3c4d5e6f, container nvcr.io#nvidia/nemo:25.04.01,",
        "            framework nemo2 25.04.01, NCCL 2.26.6+cuda12.8",
    ]
    assert "software" not in explain(described, short=True)
    assert explain(with_fields(described, environment={}), short=False) == REGRESSION


def test_short_message_has_verdict_text_and_log() -> None:
    assert explain(outcome(SLOW), short=True).splitlines() == [
        *REGRESSION.splitlines()[:4],
    ]


def test_message_of_invalid_run_shows_no_metrics() -> None:
    loss = np.where(np.arange(50) < 31, 12.0, np.nan)
    text = explain(outcome(run(log(segment(steps(loss=loss))))), short=False)
    assert "loss is nan from step 31 on (19 steps)" in text
    assert "log: log-x_1_0.out:131" in text
    assert "tokens/s" not in text


def test_message_contains_the_reason_for_missing_verdicts() -> None:
    text = explain(
        outcome(None, context=("nothing was judged: no run was found",)), short=False
    )
    assert "nothing was judged: no run was found" in text


def test_each_verdict_reason_has_advice_on_the_next_step() -> None:
    assert {str(reason) for reason in Reason} <= set(ADVICE)


def test_recorded_baseline_gets_no_advice_to_record() -> None:
    described = outcome(SLOW)
    assert "record your own baseline" in advise(described)
    own = advise(
        with_fields(described, baseline=replaced(described.baseline, kind="recorded"))
    )
    assert own.endswith("acknowledge it in the file of --llmb-acknowledged")


def test_expired_acknowledgement_gets_advice_to_extend_it() -> None:
    gone = {
        "code": "acknowledgement-expired",
        "text": "expired on 2025-11-19",
        "line": 0,
    }
    assert "a later `expires` date" in advise(with_fields(outcome(SLOW), notes=[gone]))


@pytest.mark.parametrize("measured", [True, False])
def test_unknown_noise_gets_advice_to_measure_it(
    measured: bool,
) -> None:
    described = outcome(SLOW)
    assert described.estimate is not None
    noise = replaced(described.estimate.run_to_run, measured=measured)
    advice = advise(
        with_fields(
            described,
            reason="cannot-tell",
            estimate=replaced(described.estimate, run_to_run=noise),
        )
    )
    assert ("to measure the noise" in advice) is not measured


def test_collected_session_prints_its_complete_resume_command() -> None:
    command = "pytest -k 'grok1 and fp8' --llmb-resume --llmb-session=20261121-0545-3f9a --junitxml=/reports/junit.xml"
    resume = {"command": command, "due": True, "secrets": ["HF_TOKEN"]}
    changed_outcome = with_fields(outcome(SLOW), resume=resume)
    lines = explain(changed_outcome, short=False).splitlines()
    assert f"      {command}" in lines
    assert "HF_TOKEN" in advise(changed_outcome)
    assert advise(changed_outcome).endswith(f": `{command}`")
    assert command not in explain(
        with_fields(changed_outcome, resume=resume | {"due": False}), short=False
    )


def test_summary_lists_verdicts_next_steps_and_counts() -> None:
    passed = with_fields(outcome(run(), Status.PASSED), id="passed")
    missing = with_fields(outcome(None, Status.SKIPPED), id="missing")
    killed = with_fields(
        outcome(run(log(segment(steps([7.3] * 47), finished=False)))), id="killed"
    )
    stray = describe_unmatched_run(
        UnmatchedRun(
            "pretrain_x/9", Reason.UNMATCHED, "no baseline", FOLDER / "log.out"
        ),
        FOLDER,
    )
    assert (
        "\n".join(
            render_summary(
                [passed, missing, killed, outcome(SLOW), stray], ["remark " * 15]
            )
        )
        == """\
verdict        configuration                      step time MFU %    diff   age
REGRESSION     grok1_314b-25.05-gb200-bf16-128     7.911 s  44.1  +8.0 %    3h
INVALID        killed                                    -     -       -    3h
                 stopped after step 46 of 50; the log shows no cause
PASS           passed                              7.325 s  47.6   0.0 %    3h
MISSING        1 without a run: missing
UNMATCHED      pretrain_x/9
remark remark remark remark remark remark remark remark remark remark remark
  remark remark remark remark
next: grok1_314b-25.05-gb200-bf16-128: judge older runs of it as well, or keep
      a history (--llmb-history=URL), to see since when it has been slow; if
      this cluster differs from the documented one, record your own baseline
      with --llmb-record=DIR
      log: log-x_1_0.out
next: killed: run it again: a run counts only if it reached its last step
      log: log-x_1_0.out:146
next: to judge only the failed items again, add --lf to the same command
1 green: 1 PASS; 3 red: 1 REGRESSION, 1 INVALID, 1 UNMATCHED; 1 skipped: 1
  MISSING"""
    )


def test_mfu_of_logged_flops_is_marked_and_explained() -> None:
    """The framework may count FLOPs that the formula omits."""
    changed_outcome = outcome(run(), Status.PASSED)
    metrics = {
        name: metric
        for name, metric in changed_outcome.metrics.items()
        if name != "mfu"
    }
    mfu = ReportedMetric(value=0.3127, standard_deviation=None, unit="")
    logged = replaced(changed_outcome, metrics={**metrics, "mfu_logged": mfu})
    lines = list(render_summary([logged], []))
    assert "31.3*" in lines[1].split()
    assert lines[2].strip() == "* FLOPs as counted by the framework"
    assert "* FLOPs" not in "\n".join(render_summary([changed_outcome], []))


def test_verbose_summary_shows_tokens_per_gpu() -> None:
    changed_outcome = outcome(run(), Status.PASSED)
    assert "tokens/s per GPU" not in "\n".join(render_summary([changed_outcome], []))
    assert (
        list(render_summary([changed_outcome], [], 1))[2].strip()
        == "2,236.7 tokens/s per GPU"
    )


def test_passed_line_mentions_unjudged_runs_of_the_log() -> None:
    twice = log(segment(steps([7.3] * 15), total=15), segment())
    lines = list(render_summary([outcome(run(twice), Status.PASSED)], []))
    assert lines[2].strip() == "2 runs in the log; the last, from line 1, is judged"


KILLED = Ending(EndingCode.TIME_LIMIT, Quote("JOB 1 CANCELLED DUE TO TIME LIMIT"), 300)
REQUEUED = run(
    log(segment(steps([7.3] * 13), finished=False), ending=KILLED), log(segment())
)


def test_passed_line_mentions_failed_attempts() -> None:
    changed_outcome = outcome(REQUEUED, Status.PASSED)
    lines = list(render_summary([changed_outcome], []))
    assert [line.strip() for line in lines[2:4]] == [
        "restarted: 2 attempts in 2 files; the last, from line 1 of",
        "file 2, is judged; 1 stopped after step 12 (time limit)",
    ]
    assert (
        dict(list_properties(changed_outcome))["log_attempts"]
        == "1 stopped after step 12 (time limit); 2 finished, judged"
    )


def test_failure_lists_all_attempts_with_log_positions() -> None:
    again = replace(REQUEUED, attempts=(*REQUEUED.attempts[:1], *SLOW.attempts))
    lines = [
        line
        for line in explain(outcome(again), short=False).splitlines()
        if "attempt " in line
    ]
    assert lines == [
        "  attempt   1: steps 0 to 12, stopped after step 12 (time limit)",
        "  attempt   2: steps 0 to 49, finished, judged (log-x_1_0.out:1)",
    ]


def test_verdict_count_of_a_session_without_verdicts_is_nothing_judged() -> None:
    assert format_counts([]) == "nothing judged"


@pytest.mark.parametrize(
    "content",
    [
        run(log(segment(steps([7.3] * 28), finished=False))),
        run(excluded=Reason.PROFILED),
    ],
)
def test_incomplete_or_profiled_run_has_no_step_time_property(content: Run) -> None:
    properties = dict(list_properties(outcome(content)))
    assert {"expected_seconds", "window", "verdict", "reason", "log"} <= set(properties)
    assert not {
        "step_time_seconds",
        "mfu",
        "tokens_per_second",
        "tflops_per_gpu",
    } & set(properties)


def test_properties_are_strings_with_all_digits() -> None:
    properties = dict(list_properties(outcome(SLOW)))
    assert tuple(properties) == tuple(
        name
        for name in list_property_names()
        if name not in ("log_attempts", "mfu_logged")
    )
    assert all(isinstance(value, str) for value in properties.values())
    assert float(properties["bound_seconds"]) == 7.325 * 1.05
    assert properties["window"] == "mean of steps 11 to 44"


def run_here(
    *seconds: float | None, launcher: str = "local", **fields: Any
) -> ConfigurationOutcome:
    """Create an outcome of several jobs with two attempts each; the second counts."""
    jobs = [
        make_job(
            repeat=number, attempt=attempt, step_seconds=value if attempt == 2 else 9.0
        )
        for number, value in enumerate(seconds, 1)
        for attempt in (1, 2)
    ]
    described = outcome(SLOW)
    assert described.run is not None
    values = {
        "jobs": jobs,
        "run": replaced(described.run, launcher=launcher),
        "expected_seconds": 1.0,
        "bound_seconds": 1.05,
    }
    return with_fields(described, **{**values, **fields})


def test_advice_excludes_slow_nodes_first() -> None:
    advice = advise(
        run_here(reason="repeats-disagree", verdict="INCONCLUSIVE", slow_nodes=["n2"])
    )
    assert "--llmb-exclude" in advice
    assert "--llmb-exclude" not in advise(
        run_here(reason="repeats-disagree", verdict="INCONCLUSIVE")
    )


@pytest.mark.parametrize(
    ("described", "times", "cause"),
    [
        (
            run_here(1.3, 1.06, 1.9),
            "1.300 s, 1.060 s and 1.900 s",
            "another program may have run at the same time",
        ),
        (
            run_here(1.0, None, 1.3, reason="cannot-tell"),
            "1.000 s and 1.300 s",
            "another program may have run",
        ),
    ],
)
def test_advice_for_slow_local_runs_lists_their_times(
    described: ConfigurationOutcome, times: str, cause: str
) -> None:
    advice = advise(described)
    assert advice.startswith(f"its runs on this machine took {times} per step: {cause}")
    assert "uptime" in advice
    assert advice.endswith(advise(with_fields(described, jobs=[])))


@pytest.mark.parametrize(
    "described",
    [
        run_here(1.3),
        run_here(1.3, 1.06, 1.9, launcher="sbatch"),
        run_here(1.3, 1.06, 1.9, reason="diverged"),
    ],
)
def test_advice_for_single_or_cluster_runs_does_not_mention_this_machine(
    described: ConfigurationOutcome,
) -> None:
    assert "this machine" not in advise(described)
