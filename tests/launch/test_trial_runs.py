"""Runs of variants in the run engine: logs, hours, allocations and reports.

tests/launch/policies contains the tests of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, KEY, NOW, run
from support.job_specs import job_spec

from pytest_llmbench.core.baseline_records import Key, Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import (
    Blame,
    Job,
    JobEnd,
    JobIdentity,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
)
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.launch.hours_budget import HoursBudget
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.launched_runs import LaunchedRuns
from pytest_llmbench.launch.policies import ab_policy
from pytest_llmbench.launch.policies.trial_ledger import TrialPlan
from pytest_llmbench.launch.run_engine import RunEngine
from pytest_llmbench.launch.schedulers.shared_allocation import (
    AllocationPlan,
    place_run,
)
from pytest_llmbench.report.wording import phrase

SPEC = job_spec(
    Path("/recipe"),
    case_id=KEY.id,
    key=KEY,
    purpose=Purpose.COMPARE_VARIANTS,
    via="sbatch",
    command=("sbatch", "./launch.sh"),
    nodes=2,
    gpus=8,
    gpu_hours=1.0,
    exclude=("n9",),
    scheduler_options=("--qos=high", "--nodelist=n[1-9]"),
)
VARIANTS = [replace(SPEC, variant=name) for name in ("good", "new")]

HELD = AllocationPlan(
    replace(
        SPEC,
        purpose=Purpose.ALLOCATION,
        command=("sbatch", "--no-requeue", "./launch.sh"),
    ),
    "",
    600.0,
    limit_option="--time=",
)

WELL = JobEnd(Blame.NONE)
HUNG = JobEnd(Blame.HUNG, "it stood still")


class Course(LaunchedRuns):
    """An A/B whose jobs end one by one, on the nodes that they request."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        hours: float = 100.0,
        variants: Sequence[JobSpec] = VARIANTS,
        held: AllocationPlan | None = None,
        used: Callable[[], Mapping[JobIdentity, float]] = dict,
        **settings: Any,
    ) -> None:
        self.folder = tmp_path
        self.seconds: float | None = None
        self.budget = HoursBudget(hours, used)
        self.budget.reserve_first([variants[0]])
        self.released: list[str] = []
        policy = TrialPlan(tuple(variants), held, 10, **settings)
        self.engine = RunEngine(
            {KEY.id: partial(ab_policy.next_runs, policy=policy)},
            [variants[0]],
            self,
            LaunchSettings(ab="v.yaml"),
            budget=self.budget,
            build_profile=lambda spec: spec,
            release=self.released.append,
        )
        self.next = (
            place_run(variants[0], 1, warm_up=True) if held else variants[0],
            1,
        )
        self.allocations: list[NextJob] = []
        self.made: list[str] = []
        self.nodes: tuple[str, ...] = ("n1", "n2")

    def end(
        self, seconds: float | None, end: JobEnd = WELL, **fields: Any
    ) -> JobSpec | None:
        """End the due job, and return the job that follows."""
        spec, number = self.next
        self.seconds = seconds
        self.made.append(spec.variant)
        status = JobStatus(
            Phase.ENDED, "COMPLETED", nodes=self.nodes, started=NOW, elapsed_seconds=3.0
        )
        job = Job(
            number,
            "token",
            spec,
            Path("/jobs"),
            repeat=number,
            job_id=str(number),
            status=status,
        )
        following = self.engine.add_ended(replace(job, **fields), end)
        if not following:
            return None
        *allocations, due = following
        self.allocations += allocations
        assert (due.attempt, due.repeat) == (1, number + 1)
        self.next = (due.spec, due.repeat)
        return due.spec

    def end_allocation(self, number: int, end: JobEnd, **fields: Any) -> None:
        """End an allocation; the run in it is reported separately."""
        assert HELD.spec is not None
        status = JobStatus(
            Phase.ENDED,
            "CANCELLED",
            nodes=self.nodes,
            started=NOW,
            elapsed_seconds=3600.0,
        )
        held = Job(
            99,
            "token",
            HELD.spec,
            Path("/jobs"),
            repeat=number,
            job_id="4711",
            status=status,
        )
        assert not self.engine.add_ended(replace(held, **fields), end)

    def end_all(self, *seconds: float, **fields: Any) -> JobSpec | None:
        """End jobs with these step times one by one, and return the job that follows."""
        for step_seconds in seconds:
            following = self.end(step_seconds, **fields)
        return following

    def run_variants(self, **ends: tuple[float | None, JobEnd]) -> None:
        """End each due job with the result of its variant, until no job is due."""
        while self.end(*ends[self.next[0].variant]):
            pass

    @property
    def text(self) -> str:
        return phrase(self.result.judgement)

    @property
    def result(self) -> ConfigurationResult:
        return self.engine.list_results()[KEY]

    # --- the interface of LaunchedRuns

    def find_run(self, job: Job) -> Run | None:
        log = self.folder / f"log-{job.job_id}.out"
        log.touch()
        created = run(id=f"run-{job.job_id}", job_id=job.job_id)
        attempt = created.attempts[0]
        files = replace(attempt.files, folder_text=str(log.parent), log_name=log.name)
        return (
            None
            if self.seconds is None
            else replace(created, attempts=(replace(attempt, files=files),))
        )

    def measure_trial(self, _key: Key, _run: Run) -> TrialTime:
        return (
            TrialTime(self.seconds)
            if self.seconds
            else TrialTime(None, "the loss diverged")
        )

    def judge_invalid(
        self, _key: Key, reason: Reason, text: str, _run: Run | None
    ) -> Judgement:
        verdict = (
            Verdict.NOT_COMPARABLE if reason is Reason.PURPOSE_DONE else Verdict.INVALID
        )
        return Judgement(verdict, reason, (text,), BASELINE, 7.7, Tolerance(0.05))

    def read_ending(self, _job: Job, _run: Run) -> tuple[Blame, str]:
        return Blame.NONE, ""

    def list_files(self, _job: Job) -> tuple[Path, ...]:
        return ()


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def test_compared_variants_alternate_on_the_nodes_of_the_first_run(
    course: Course, tmp_path: Path
) -> None:
    pinned = course.end(1.0)
    assert pinned is not None
    assert (pinned.scheduler_options, pinned.exclude) == (
        ("--qos=high", "--nodelist=n1,n2"),
        (),
    )
    assert [path.name for path in tmp_path.glob("*.ab")] == ["log-1.out.ab"], (
        "marked as no run to judge"
    )
    assert course.end_all(1.05, 1.05, 1.0) is None
    assert course.made == ["good", "new", "new", "good"]
    assert course.result.judgement.reason is Reason.VARIANT_SLOWER
    assert (
        course.text
        == "new is slower than good: +5.00 % (97.6 %: +2.04 % to +8.05 %), 2 pairs (on n[1-2])"
    )
    assert [(job.step_seconds, job.text) for job in course.result.jobs] == [
        (1.0, "good"),
        (1.05, "new"),
        (1.05, "new"),
        (1.0, "good"),
    ]


def test_variant_that_hangs_twice_is_a_failure(course: Course) -> None:
    course.run_variants(good=(1.0, WELL), new=(None, HUNG))
    assert (course.result.judgement.verdict, course.result.judgement.reason) == (
        Verdict.INVALID,
        Reason.PURPOSE_MISSED,
    )
    assert course.text == (
        "new does not run, so it was not compared with good (on n[1-2]); job 2 on n[1-2]: it stood still; "
        "job 3 on n[1-2]: it stood still"
    )
    assert not course.result.done


def test_comparison_without_remaining_gpu_hours_has_no_answer(tmp_path: Path) -> None:
    course = Course(tmp_path, hours=1.5)
    used = JobStatus(
        Phase.ENDED, "COMPLETED", nodes=("n1", "n2"), started=NOW, elapsed_seconds=450.0
    )
    assert course.end(1.0, status=used) is None
    assert (
        course.text
        == "the A/B is incomplete: a further run was not started (on n[1-2])"
    )
    assert "of the 1.5 allowed are used" in course.result.nodes


# --- allocations ----------------------------------------------------------------------

GONE = JobStatus(Phase.ENDED, "CANCELLED", nodes=("n1", "n2"), started=NOW)
"""Of a run that its allocation took with it: it has no exit code."""


@pytest.fixture
def shared(tmp_path: Path) -> Course:
    return Course(tmp_path, held=HELD)


def end_well(course: Course, *seconds: float) -> None:
    course.end_all(*seconds, status=replace(GONE, state="COMPLETED", exit_code="0:0"))


def test_first_run_of_each_variant_warms_up(shared: Course) -> None:
    end_well(shared, 3.0, 2.0, 1.0, 1.05, 1.05, 1.0)
    assert shared.made == ["good", "new", "good", "new", "new", "good"]
    assert shared.text.startswith("new is slower than good: +5.00 %")
    assert shared.text.endswith("(on n[1-2], in 1 allocation)")
    assert [job.text for job in shared.result.jobs][:3] == [
        "good, to warm up",
        "new, to warm up",
        "good",
    ]
    assert (shared.released, shared.allocations) == ([KEY.id], [])
    assert shared.result.trials is not None
    assert (
        shared.result.trials.allocations,
        shared.result.trials.separate_because,
    ) == (1, "")


def test_run_in_an_allocation_adds_no_gpu_hours(shared: Course) -> None:
    end_well(shared, 1.0, 1.05, 1.0, 1.05, 1.05, 1.0)
    assert shared.budget.used == 0.0
    shared.end_allocation(
        1, WELL, status=replace(GONE, state="COMPLETED", elapsed_seconds=3600.0)
    )
    assert shared.budget.used == SPEC.gpus
    assert shared.result.jobs[-1].purpose is Purpose.ALLOCATION


def test_allocation_is_released_if_the_next_run_exceeds_the_gpu_hours(
    tmp_path: Path,
) -> None:
    used = iter((1.0, 2.0))
    course = Course(
        tmp_path,
        hours=2.5,
        held=HELD,
        used=lambda: {(KEY.id, "allocation", 1, 1): next(used)},
    )
    end_well(course, 1.0, 1.0)
    assert (course.made, course.released) == (["good", "new"], [KEY.id])
    text = "the A/B is incomplete: a further run was not started (on n[1-2], in 1 allocation)"
    assert course.text == text
    text = "the A/B is incomplete: 1 run takes 1.0 GPU-hours, but 2.0 of the 2.5 allowed are used"
    assert course.result.nodes == text
