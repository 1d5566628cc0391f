"""What follows when a launched job has ended: start it again, repeat the run, or give the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench.judge.stop_rule import GREEN, count_next_runs
from pytest_llmbench.pipeline.launch.configuration_progress import (
    ConfigurationProgress,
    describe_hung,
    describe_job,
    get_nodes,
    has_stepped,
    join_texts,
)
from pytest_llmbench.pipeline.launch.costs import HoursBudget
from pytest_llmbench.pipeline.launch.named_nodes import NamedNodes
from pytest_llmbench.pipeline.launch.node_checks import NodeChecks, NodeJudge, avoid_nodes

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    BESIDE,
    Blame,
    EndedBy,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.outcome_records import Case
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.launch.follow import NextJob

    from pytest_llmbench.launch.launch_settings import LaunchSettings

# why a run is invalid by the state in which its job ended; job-failed for every other
REASONS = {
    "TIMEOUT": Reason.INCOMPLETE,
    "COMPLETED": Reason.FAILED_STEP,
    "CANCELLED": Reason.CANCELLED,
}


class RunJudge(NodeJudge, Protocol):
    """What `LaunchProgress` asks about the runs of jobs that have ended."""

    def find_run(self, job: Job) -> Run | None:
        """Return the run of a job, None without a log of its own."""

    def judge(self, key: Key, runs: Sequence[Run]) -> ConfigurationResult:
        """Return the verdict on the runs of a configuration, newest first."""

    def judge_invalid(self, key: Key, reason: Reason, text: str, run: Run | None) -> Judgement:
        """Return what is said of a job whose speed was not judged."""

    def measure_trial(self, key: Key, run: Run) -> TrialTime:
        """Return the step time of a run that stands for itself; the reason where it has none."""

    def list_files(self, job: Job) -> tuple[Path, ...]:
        """Return the files that a job left besides its log."""

    def read_ending(self, job: Job, run: Run) -> tuple[Blame, str]:
        """Return whose failure the end of a run is, and what its log says of it."""

    def name_failed_nodes(self, job: Job, run: Run) -> tuple[str, ...]:
        """Return the nodes of a job that its log itself says failed; empty where it names none."""


class LaunchProgress:
    """The progress of all launched configurations: `take_ended` gets each job that ended once, in any order.

    A failed verdict is never retried: it is repeated, and every run counts.
    """

    def __init__(
        self,
        specs: Sequence[JobSpec],
        judge: RunJudge,
        settings: LaunchSettings,
        *,
        budget: HoursBudget,
        profile: Callable[[JobSpec], JobSpec],
        always: bool = False,
        asked: Mapping[str, int] = MappingProxyType({}),
        build_check: Callable[[JobSpec, Sequence[str]], JobSpec] | None = None,
        named: Sequence[NamedNodes] = (),
    ) -> None:
        """Take the jobs that start, what judges them, the GPU-hours that are left, and how to profile a configuration;
        with `always` all runs are made whatever the first says, as recording needs it, with `asked` (by configuration
        id) so many; `build_check` makes the job of the site's own check of nodes, and `named` are nodes that the
        history names."""
        self.configurations = {spec.case_id: ConfigurationProgress(spec, {1}) for spec in specs}
        self._always = always
        self._asked = asked
        self._judge = judge
        self._settings = settings
        self._budget = budget
        self._profile = profile
        self._node_checks = NodeChecks(self.configurations, judge, self._reserve, build_check, named)

    def begin(self) -> list[NextJob]:
        """Return what starts first."""
        return self._node_checks.begin()

    def take_ended(self, job: Job, end: JobEnd) -> list[NextJob]:
        """Take a job that ended, and return what has to be started now."""
        self._budget.settle(job)
        progress = self.configurations.get(job.spec.case_id)
        if progress is None:
            return []
        beside = job.spec.purpose in BESIDE
        if job.submission is SubmissionState.UNAFFORDABLE and (job.attempt, job.repeat) != (1, 1) and not beside:
            return self._take_unaffordable(progress, job)
        has_run = job.job_id and job.spec.purpose is not Purpose.CHECK_NODES
        run = self._judge.find_run(job) if has_run else None
        end = self._explain(job, end, run)
        progress.jobs.append((job, end))
        progress.files += self._judge.list_files(job)
        if beside:
            problem = self._find_problem(job, end, run)
            return self._node_checks.take(progress, job, end, run, problem[1] if problem else "")
        if job.spec.purpose is not progress.spec.purpose:  # the profile of a configuration that regressed
            return []
        again = self._start_again(job, end, run)
        if again is not None:
            return [again]
        self._take(progress, job, end, run)
        return [] if progress.waiting else self._decide(progress)

    def _explain(self, job: Job, end: JobEnd, run: Run | None) -> JobEnd:
        """Return how a job ended with what its log says of it; a cause of the infrastructure there is one."""
        if run is None or end.blame is Blame.NONE:
            return end
        blame, text = self._judge.read_ending(job, run)
        # by us, for that; or its last line is a step that is told
        told = blame is Blame.CANCELLED or (blame is Blame.NONE and has_stepped(job))
        if end.blame is Blame.HUNG and told:
            return end
        blame = blame if end.blame is Blame.RUN and blame is Blame.INFRASTRUCTURE else end.blame
        return dataclasses.replace(end, blame=blame, text=join_texts(end.text, text))

    def _start_again(self, job: Job, end: JobEnd, run: Run | None) -> NextJob | None:
        """Return the same job once more, on other nodes, where the infrastructure failed: without the node that its log
        names, else without all of them."""
        from pytest_llmbench.launch.follow import NextJob
        from pytest_llmbench.launch.slurm.statuses import is_refused

        if job.submission is SubmissionState.UNCERTAIN:
            return None
        progress = self.configurations[job.spec.case_id]
        refused = job.refused or (job.status is not None and (is_refused(job.status) or _is_given_up(job.status)))
        if refused and job.spec.exclude == progress.spec.exclude:  # without those that were confirmed
            self._node_checks.give_back(progress)
        own = progress.spec.exclude
        elsewhere = refused and job.spec.exclude != own
        may = elsewhere or self._may_retry(job, end)
        if not may or self._holds_back(job.spec, {(job.repeat, job.attempt + 1)}):
            return None
        if elsewhere:
            progress.nowhere_else = True
            return NextJob(dataclasses.replace(job.spec, exclude=own), job.attempt + 1, job.repeat)
        named = self._judge.name_failed_nodes(job, run) if run and end.blame is Blame.INFRASTRUCTURE else ()
        again = NextJob(avoid_nodes(job.spec, named or get_nodes(job)), job.attempt + 1, job.repeat)
        return again if self._reserve([again], "not started again") else None

    def _reserve(self, following: Sequence[NextJob], otherwise: str) -> bool:
        """Whether GPU-hours are left for jobs that are to follow; where not, say `otherwise` with the numbers."""
        why = self._budget.reserve(following)
        if why:
            progress = self.configurations[following[0].spec.case_id]
            progress.notes = join_texts(progress.notes, f"{otherwise}: {why}")
        return not why

    def _take_unaffordable(self, progress: ConfigurationProgress, job: Job) -> list[NextJob]:
        """Take a job that was planned and not submitted, since those before it used more than was estimated: what is
        known without it stands."""
        before = [(other, end) for other, end in progress.jobs if other.repeat == job.repeat]
        for last, end in before[-1:]:  # it was to take the place of this one
            progress.notes = join_texts(progress.notes, job.problem)
            self._take(progress, last, end, self._judge.find_run(last) if last.job_id else None)
        progress.waiting.discard(job.repeat)
        return [] if progress.waiting or progress.result else self._decide(progress)

    def _may_retry(self, job: Job, end: JobEnd) -> bool:
        """Whether what ended a job is tried again: failures of the infrastructure as often as was allowed for each run,
        the first of the configuration's jobs that stood still, and no other."""
        ends = self.configurations[job.spec.case_id].jobs
        if end.blame is Blame.HUNG:  # a second one is no accident: new software deadlocks, too
            return self._settings.retries > 0 and sum(other.blame is Blame.HUNG for _, other in ends) == 1
        failures = [other for tried, other in ends if tried.repeat == job.repeat and other.blame is end.blame]
        return end.blame is Blame.INFRASTRUCTURE and len(failures) <= self._settings.retries

    def _holds_back(self, spec: JobSpec, following: set[tuple[int, int]]) -> bool:
        """Whether the session only collects: these jobs (repeat and attempt) are left to one that goes on with it."""
        if self._settings.collect:
            self.configurations[spec.case_id].held_back |= following
        return self._settings.collect

    def _take(self, progress: ConfigurationProgress, job: Job, end: JobEnd, run: Run | None) -> None:
        key = job.spec.key
        progress.waiting.discard(job.repeat)
        if (job.repeat, job.attempt) in progress.held_back:  # it was made before: the failure that it followed is over
            progress.failures.pop(job.repeat, None)
        problem = self._find_problem(job, end, run)
        if problem is not None or run is None:
            reason, text = problem or (Reason.LOG_MISSING, "no log")
            dated = run and _date_run(run, job)  # how old it is, its job tells
            progress.failures[job.repeat] = self._judge.judge_invalid(key, reason, text, dated)
            return
        progress.runs[job.repeat] = _date_run(run, job)
        progress.nodes[run.id] = get_nodes(job)

    def _find_problem(self, job: Job, end: JobEnd, run: Run | None) -> tuple[Reason, str] | None:
        """Return why a job has no run that could be judged."""
        if job.refused:
            return Reason.NOT_SUBMITTED, job.problem.replace(f"{job.spec.case_id}: ", "", 1)
        if end.blame is Blame.HUNG:
            return Reason.HUNG, describe_hung(self.configurations[job.spec.case_id])
        if end.blame is not Blame.NONE and not _is_purged(job):
            reason = REASONS.get(job.status.state if job.status else "", Reason.JOB_FAILED)
            never = reason is Reason.CANCELLED and not get_nodes(job)  # sacct gives it a start all the same
            return (Reason.NEVER_STARTED if never else reason), end.text
        if run is None:
            reason = Reason.JOB_LOST if _is_purged(job) else Reason.LOG_MISSING
            places = formatting.join_first([str(place) for place in (job.log_folder, *job.spec.log_folders) if place])
            return reason, f"job {job.job_id} left no log of its own under {places or job.spec.directory}"
        key = run.identity.key
        if key != job.spec.key:
            actual = key.id if key else run.identity.because
            return Reason.WRONG_CONFIGURATION, f"launched as {job.spec.case_id}, but its log says: {actual}"
        return None

    def _decide(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return the repeats that a verdict needs; without any, keep the verdict."""
        key = progress.spec.key
        if not progress.runs or progress.spec.purpose is not Purpose.MEASURE:
            judgement = next(iter(progress.failures.values()), None)
            progress.result = (
                self._conclude_purpose(progress)
                if judgement is None
                else ConfigurationResult(Case(key.id, key), judgement)
            )
            return []
        runs = [progress.runs[repeat] for repeat in sorted(progress.runs, reverse=True)]
        result = self._judge.judge(key, runs)
        more = self._plan_repeats(progress, result)
        if more:
            return more
        judgement = result.judgement
        progress.unjudged = judgement.verdict is Verdict.INVALID and judgement.reason is not Reason.NO_BASELINE
        progress.result = _add_failures(result, progress.failures)
        self._node_checks.judge(progress)
        alone = progress.failures or self._settings.collect or self._always
        return [*([] if alone else self._node_checks.plan(progress)), *self._plan_profile(progress)]

    def _conclude_purpose(self, progress: ConfigurationProgress) -> ConfigurationResult:
        """Return the result of a job that was not to be judged: it did what it was for, or it is invalid."""
        key, run = progress.spec.key, next(iter(progress.runs.values()))
        proof = _find_proof(progress.spec.purpose, progress.files, run)
        if proof and not progress.files:
            progress.files += [attempt.files.log for attempt in run.attempts]  # the log is what was asked for
        progress.unjudged = not proof
        reason = Reason.PURPOSE_DONE if proof else Reason.PURPOSE_MISSED
        text = f"{progress.spec.purpose}: {proof or 'the job ended well, but left no sign of it'}; not judged for speed"
        if progress.spec.purpose is Purpose.SAVE_CHECKPOINT:
            facts = dataclasses.replace(run.found, saves="it was launched to save one")
            run = dataclasses.replace(run, found=facts)
        judgement = self._judge.judge_invalid(key, reason, text, run)
        return ConfigurationResult(Case(key.id, key), judgement, done=text if proof else "")

    def _plan_repeats(self, progress: ConfigurationProgress, result: ConfigurationResult) -> list[NextJob]:
        from pytest_llmbench.launch.follow import NextJob

        done = len(progress.runs) + len(progress.failures)
        wanted = range(done + 1, done + self._count_next_runs(progress, result, done) + 1)
        if progress.failures or self._holds_back(progress.spec, {(repeat, 1) for repeat in wanted}) or not wanted:
            return []
        used = [node for run in progress.runs.values() for node in progress.nodes[run.id]]
        nothing_to_learn = self._always or result.judgement.verdict in GREEN  # of its nodes
        anywhere = nothing_to_learn or progress.nowhere_else
        spec = progress.spec if anywhere else avoid_nodes(progress.spec, used)
        made = progress.runs.keys() | progress.failures.keys()
        free = (number for number in count(1) if number not in made)  # one that was not submitted left a gap
        repeats = [NextJob(spec, 1, number) for number in islice(free, len(wanted))]
        if not self._reserve(repeats, "not repeated"):
            return []
        progress.waiting = {each.repeat for each in repeats}
        return repeats

    def _count_next_runs(self, progress: ConfigurationProgress, result: ConfigurationResult, done: int) -> int:
        if self._always:
            return self._settings.repeats - 1 if done == 1 else 0
        plan = self._settings.plan_runs(self._asked.get(progress.spec.case_id, 1))
        return count_next_runs(plan, result.judgement, done)

    def _plan_profile(self, progress: ConfigurationProgress) -> list[NextJob]:
        from pytest_llmbench.launch.follow import NextJob

        result = progress.result
        regressed = (
            result is not None and result.judgement.verdict is Verdict.REGRESSION and not _is_over_budget(result)
        )
        if not regressed or progress.profiled or not self._settings.profile_on_regression or self._settings.collect:
            return []
        progress.profiled = True
        try:
            spec = self._profile(progress.spec)
        except LaunchError as error:  # its document has no profiles; the verdict stands all the same
            progress.notes = join_texts(progress.notes, f"not profiled: {error}")
            return []
        profile = NextJob(spec, 1, 1)
        return [profile] if self._reserve([profile], "not profiled") else []

    def add_node_remarks(self, list_reasons: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        """Add what is known of the nodes that are named; `list_reasons` is asked once, for all of them."""
        self._node_checks.add_remarks(list_reasons)

    def list_held_back(self) -> frozenset[str]:
        """Return the ids of the configurations for which a session that goes on with this one would start a job."""
        return frozenset(
            case
            for case, progress in self.configurations.items()
            if progress.held_back - {(job.repeat, job.attempt) for job, _ in progress.jobs}
        )

    def list_results(self) -> dict[Key, ConfigurationResult]:
        """Return the verdicts with the jobs behind them; a configuration that was cut short has none."""
        return {
            progress.spec.key: self._add_jobs(progress)
            for progress in self.configurations.values()
            if progress.result is not None
        }

    def _add_jobs(self, progress: ConfigurationProgress) -> ConfigurationResult:
        result = progress.result
        if result is None:
            raise ValueError(f"{progress.spec.case_id} has not ended")
        jobs = tuple(describe_job(progress, job, end, result) for job, end in progress.jobs)
        finding, slow = (progress.finding.text, progress.finding.exclude) if progress.finding else ("", ())
        return dataclasses.replace(result, jobs=jobs, nodes=join_texts(finding, progress.notes), slow_nodes=slow)


def _find_proof(purpose: Purpose, files: Sequence[Path], run: Run) -> str:
    """Return what shows that a job did what it was for: its files, or a line of its log; empty where nothing does."""
    logs = [attempt.log for attempt in run.attempts]
    if purpose is Purpose.LOAD_CHECKPOINT:
        line = max(log.checkpoints.load_line for log in logs)
        return f"the log says so in line {line}" if line else ""
    if purpose is Purpose.NCCL_TRACE:
        line = max(log.nccl_line for log in logs)
        return f"the trace begins in line {line} of the log" if line else ""
    noun = "checkpoint" if purpose is Purpose.SAVE_CHECKPOINT else "file"
    return f"left {formatting.count_noun(len(files), noun)}" if files else ""


def _is_over_budget(result: ConfigurationResult) -> bool:
    """Whether a checkpoint took too long, of which neither a repeat nor a profile of the steps tells more."""
    return result.judgement.reason is Reason.OVER_BUDGET


def _is_purged(job: Job) -> bool:
    """Whether the record of a job is gone, which does not mean that the job failed: its log tells."""
    return job.status is not None and job.status.phase is Phase.UNKNOWN


def _is_given_up(status: JobStatus) -> bool:
    """Whether a job was cancelled by this session before it started."""
    return status.ended_by is EndedBy.PYTEST and status.state == "CANCELLED" and not status.nodes


def _date_run(run: Run, job: Job) -> Run:
    """Return a run that started when its job did, so that the order of repeats is certain."""
    started = job.status.started if job.status else None
    if started is None:
        return run
    return dataclasses.replace(run, started=started, started_from=f"job {job.job_id}")


def _add_failures(result: ConfigurationResult, failures: Mapping[int, Judgement]) -> ConfigurationResult:
    """Return a result that is red where a repeat failed: what failed counts, too. An inconclusive one can be green."""
    hung = [failure for failure in failures.values() if failure.reason is Reason.HUNG]
    if not failures or result.judgement.verdict is Verdict.INVALID:
        return result
    if result.judgement.verdict is Verdict.REGRESSION and not hung:
        return result
    first = next(iter(hung), failures[min(failures)])
    sentences = (*first.sentences, f"{result.judgement.text} without it")
    judgement = dataclasses.replace(result.judgement, verdict=Verdict.INVALID, reason=first.reason, sentences=sentences)
    return dataclasses.replace(result, judgement=judgement)
