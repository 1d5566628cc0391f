"""Runs of variants of a configuration on the same nodes: what each was, and the run that follows from all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.pipeline.launch.configuration_progress import ConfigurationProgress, get_nodes, join_texts
from pytest_llmbench.pipeline.launch.named_nodes import pin_nodes

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Blame, Job, JobEnd, JobSpec, Purpose
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.log_records import VARIANT_MARK
from pytest_llmbench.core.outcome_records import Case
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.core.trial_records import NextTrial, Trial, TrialOutcome, TrialReport
from pytest_llmbench.pipeline.launch.rerun_policy import LaunchProgress
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.launch.follow import NextJob
    from pytest_llmbench.launch.preflight.allocation import AllocationPlan
    from pytest_llmbench.launch.preflight.plan import PlannedJob

    from pytest_llmbench.launch.launch_settings import LaunchSettings

MOST_ALLOCATIONS = 3  # that ended before their runs did; each further run is a job of its own

# whose failure it was that a job left no run: the variant's own, and every other is made again
OWN = (Blame.RUN, Blame.HUNG)


class TrialAnswer(NamedTuple):
    """What the runs say in the end."""

    text: str
    reason: Reason  # PURPOSE_DONE where nothing is red
    failed: bool = False  # the last run that failed says why
    report: TrialReport | None = None


@dataclass(slots=True)
class SharedNodes:
    """The allocations of a configuration's runs."""

    plan: AllocationPlan | None = None  # None: each run is a job of its own, from the first one or from now on
    because: str = ""  # why
    newest: int = 0  # its number
    ended: set[int] = field(default_factory=set)

    def choose(self) -> int | None:
        """Return the number of the allocation of the next run, which may be a new one."""
        if self.plan is None or len(self.ended) >= MOST_ALLOCATIONS:
            return None
        return self.newest + 1 if self.newest in self.ended else self.newest


class TrialProgress(LaunchProgress, ABC):
    """The progress of runs of variants, for each launched configuration: each that ended decides which one follows.

    A run is a trial by the number that its job has as a repeat; what is to follow is a function of the jobs alone, so
    a session that goes on takes the same next step. No run of it is judged against a baseline, or kept as a night.
    """

    what = ""
    """What it is called."""

    def __init__(
        self,
        variants: Mapping[str, Sequence[JobSpec]],
        *further: Any,
        allocations: Mapping[str, AllocationPlan] = MappingProxyType({}),
        most: Mapping[str, int] = MappingProxyType({}),
        release: Callable[[str], None] = lambda _case: None,
        cluster: str = "",
        earlier: Mapping[str, Noise] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Take the jobs of the variants by configuration id, in their order, what every launch takes, how the runs get
        their nodes, how many there are at most, and what gives back the allocation of a configuration; the name of the
        cluster, and by configuration id what earlier A/Bs say of the noise on it."""
        super().__init__([specs[0] for specs in variants.values()], *further, **settings)
        self._cluster, self._earlier = cluster, earlier
        self._variants = variants
        self._most, self._release = most, release
        self._shared = {case: _share_nodes(allocations.get(case)) for case in variants}
        self._trials: dict[str, dict[int, Trial]] = {case: {} for case in variants}
        self._problems: dict[str, dict[int, str]] = {case: {} for case in variants}

    @abstractmethod
    def choose_step(
        self,
        trials: Sequence[Trial],
        names: Sequence[str],
        allocation: int | None = None,
        earlier: Noise | None = None,
    ) -> NextTrial | TrialAnswer:
        """Return which variant runs next, in an allocation or without, or what all of the trials say; `earlier` is the
        noise of earlier A/Bs."""

    def take_ended(self, job: Job, end: JobEnd) -> list[NextJob]:
        """Take a run that ended, and return which one follows; or an allocation, which the next run asks for anew."""
        if job.spec.purpose is not Purpose.ALLOCATION:
            return super().take_ended(job, end)
        self._budget.settle(job)
        shared, progress = self._shared.get(job.spec.case_id), self.configurations.get(job.spec.case_id)
        if shared is None or progress is None:
            return []
        progress.jobs.append((job, end))
        shared.ended.add(job.repeat)
        failed = end.blame is Blame.RUN and job.status is not None and job.status.state == "FAILED"
        if failed or not get_nodes(job):  # another one would not do either
            shared.plan, shared.because = None, f"no nodes could be held: {job.problem or end.text}"
        elif len(shared.ended) >= MOST_ALLOCATIONS:
            shared.because = f"{len(shared.ended)} allocations ended too early; {end.text}"
        return []

    def _start_again(self, job: Job, end: JobEnd, run: Run | None) -> NextJob | None:
        """Return nothing: what was lost is a trial, after which the order of the runs says what follows."""
        del job, end, run
        return None

    def _take(self, progress: ConfigurationProgress, job: Job, end: JobEnd, run: Run | None) -> None:
        super()._take(progress, job, end, run)
        kept, failure = progress.runs.pop(job.repeat, None), progress.failures.pop(job.repeat, None)
        case, names = job.spec.case_id, self._list_names(job.spec.case_id)
        if job.spec.variant not in names:  # a build that was taken out of the list since
            return
        if job.refused and job.spec.allocation in self._shared[case].ended:  # it came too late, and is no run at all
            return
        self._follow_nodes(job)
        outcome, milliseconds, problem = TrialOutcome.LOST, None, failure.text if failure else ""
        rounding = 0.0
        if kept is not None:
            _mark(kept)
            seconds, problem, rounding = self._judge.measure_trial(job.spec.key, kept)
            outcome = TrialOutcome.MEASURED if seconds else TrialOutcome.DOES_NOT_RUN
            if seconds and (elsewhere := _describe_other_nodes(get_nodes(job), self._find_nodes(progress))):
                outcome, seconds, problem = TrialOutcome.LOST, None, elsewhere
            milliseconds = seconds * 1000 if seconds else None
        elif _ended_with_allocation(job, end):
            problem = f"its allocation ended: {problem}"
        elif job.spec.allocation and failure and failure.reason is Reason.LOG_MISSING:
            # the next run in it has the same job id, and may go on in that log, where it is only not seen yet
            self._shared[case].ended.add(job.spec.allocation)
        elif end.blame in OWN or (failure and failure.reason is Reason.WRONG_CONFIGURATION):
            outcome = TrialOutcome.DOES_NOT_RUN
        variant, spec = names.index(job.spec.variant), job.spec
        self._trials[case][job.repeat] = Trial(variant, outcome, milliseconds, spec.warm_up, spec.allocation, rounding)
        self._problems[case][job.repeat] = problem

    def _follow_nodes(self, job: Job) -> None:
        """Note how a run got its nodes: a session that goes on learns of allocations by their runs."""
        shared = self._shared[job.spec.case_id]
        shared.newest = max(shared.newest, job.spec.allocation)
        if not job.spec.allocation:
            shared.plan = None

    def _list_names(self, case: str) -> list[str]:
        return [spec.variant for spec in self._variants[case]]

    def _decide(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return the run that is due; where none is, keep what all of them say."""
        case = progress.spec.case_id
        trials, allocation = self._trials[case], self._shared[case].choose()
        made = [trials[number] for number in sorted(trials)]
        step = self.choose_step(made, self._list_names(case), allocation, self._earlier.get(case))
        nodes = self._find_nodes(progress)
        if isinstance(step, TrialAnswer):
            self._conclude(progress, step, nodes)
            return []
        number = max(job.repeat for job in _list_runs(progress)) + 1
        following = self._plan_run(progress, step, number, allocation)
        if not self._reserve(following, f"the {self.what} has no end"):
            text = f"the {self.what} has no end: a further run was not started"
            self._conclude(progress, TrialAnswer(text, Reason.PURPOSE_MISSED), nodes)
            return []
        progress.waiting = {number}
        return following

    def _plan_run(
        self, progress: ConfigurationProgress, step: NextTrial, number: int, allocation: int | None
    ) -> list[NextJob]:
        """Return a run, behind its allocation where that is a new one."""
        from pytest_llmbench.judge.trials import is_measured
        from pytest_llmbench.launch.follow import NextJob
        from pytest_llmbench.launch.preflight.allocation import place_run

        case, nodes = progress.spec.case_id, self._find_nodes(progress)
        spec, shared = self._variants[case][step.variant], self._shared[case]
        if allocation is None or shared.plan is None:
            self._release(case)
            return [NextJob(_pin(spec, nodes), 1, number)]
        run = NextJob(place_run(spec, allocation, warm_up=step.discarded), 1, number)
        counted = sum(is_measured(trial, (trial.variant,)) for trial in self._trials[case].values())
        held = shared.plan.size(max(self._most.get(case, 1) - counted, 1))
        if allocation == shared.newest or held is None:
            return [run]
        shared.newest = allocation
        self._release(case)
        return [NextJob(_pin(held, nodes), 1, allocation), run]

    def _find_nodes(self, progress: ConfigurationProgress) -> tuple[str, ...]:
        """Return the nodes of the first run that counts; none before it."""
        trials = self._trials[progress.spec.case_id]
        jobs = {job.repeat: job for job in _list_runs(progress)}
        counted = (jobs[number] for number in sorted(trials) if trials[number].outcome is TrialOutcome.MEASURED)
        return next((get_nodes(job) for job in counted), ())

    def _list_allocations(self, case: str) -> set[int]:
        """Return the numbers of those in which a run was measured."""
        measured = (trial for trial in self._trials[case].values() if trial.outcome is TrialOutcome.MEASURED)
        return {trial.allocation for trial in measured} - {0}

    def _conclude(self, progress: ConfigurationProgress, answer: TrialAnswer, nodes: Sequence[str]) -> None:
        key, shared = progress.spec.key, self._shared[progress.spec.case_id]
        self._release(key.id)
        allocations = len(self._list_allocations(key.id))
        where = [f"on {formatting.fold_nodes(nodes)}"] if nodes else []
        where += [f"in {formatting.count_noun(allocations, 'allocation')}"] if allocations else []
        text = f"{answer.text} ({', '.join(where)})" if where else answer.text
        if shared.newest and shared.because:
            progress.notes = join_texts(progress.notes, f"the last runs were jobs of their own: {shared.because}")
        if answer.failed:
            problems = [problem for problem in self._problems[key.id].values() if problem]
            text = join_texts(text, *problems[-1:])
        missed = answer.reason is Reason.PURPOSE_MISSED
        judgement = self._judge.judge_invalid(key, Reason.PURPOSE_MISSED if missed else Reason.PURPOSE_DONE, text, None)
        judgement = dataclasses.replace(judgement, reason=answer.reason)
        report = answer.report and dataclasses.replace(
            answer.report,
            nodes=tuple(nodes),
            allocations=allocations,
            separate_because=shared.because,
            cluster=self._cluster,
            earlier=self._earlier.get(key.id),
        )
        done = "" if missed else text
        progress.result = ConfigurationResult(Case(key.id, key), judgement, done=done, trials=report)

    def _add_jobs(self, progress: ConfigurationProgress) -> ConfigurationResult:
        result, case = super()._add_jobs(progress), progress.spec.case_id
        jobs, allocations = [], []
        for described, (job, _) in zip(result.jobs, progress.jobs, strict=True):
            if job.spec.purpose is Purpose.ALLOCATION:
                useful = job.repeat in self._list_allocations(case)
                cost = dataclasses.replace(described.cost, loss=None) if useful else described.cost
                allocations.append(dataclasses.replace(described, cost=cost))
                continue
            trial = self._trials[case].get(job.repeat)
            seconds = trial.step_time_ms / 1000 if trial and trial.step_time_ms else None
            name = f"{job.spec.variant}, to warm up" if job.spec.warm_up else job.spec.variant
            text = join_texts(name, self._problems[case].get(job.repeat, "") or described.text)
            jobs.append(dataclasses.replace(described, step_seconds=seconds, text=text))
        return dataclasses.replace(result, jobs=(*jobs, *allocations))


def _share_nodes(plan: AllocationPlan | None) -> SharedNodes:
    if plan is None or plan.spec is None:
        return SharedNodes(because=plan.because if plan else "")
    return SharedNodes(plan, newest=1)


def _list_runs(progress: ConfigurationProgress) -> list[Job]:
    """Return the jobs of a configuration that are runs."""
    return [job for job, _ in progress.jobs if job.spec.purpose is not Purpose.ALLOCATION]


def _ended_with_allocation(job: Job, end: JobEnd) -> bool:
    """Whether a run has no exit code of its own, and did not stand still either."""
    return bool(job.spec.allocation and job.status and not job.status.exit_code) and end.blame is not Blame.HUNG


def digest_variants(variants: Mapping[str, Sequence[PlannedJob]]) -> dict[str, dict[str, str]]:
    """Return by configuration and name what tells a variant from another one of its name: directory, command and the
    variables of a job of it, but for those of the caller's shell."""
    from pytest_llmbench.launch.recipe import PASSED

    def digest(spec: JobSpec) -> str:
        environment = [(name, value) for name, value in spec.environment if name not in (*PASSED, *spec.secrets)]
        return hashlib.sha256(
            repr((spec.directory, spec.command, environment, *filter(None, [spec.build]))).encode()
        ).hexdigest()

    return {case: {job.spec.variant: digest(job.spec) for job in jobs} for case, jobs in variants.items()}


def digest_scripts(variants: Mapping[str, Sequence[PlannedJob]]) -> dict[str, str]:
    """Return by path what the scripts hold that the jobs of variants run: empty where one cannot be read. Those in a
    folder where a build may make them are left out."""
    from pytest_llmbench.launch.preflight.plan import digest_script, find_script

    scripts = {find_script(job) for jobs in variants.values() for job in jobs if not job.spec.build}
    return {str(script): digest_script(script) for script in sorted(filter(None, scripts))}


def refuse_changed(
    variants: Mapping[str, Sequence[PlannedJob]], noted: Mapping[str, Any], launch: LaunchSettings, session: str
) -> None:
    """Refuse variants that are others than a session noted when it began, by their jobs or by their scripts: their runs
    would count for these. The builds of a search may come and go; what one of them is may not change. A session of an
    earlier version noted no scripts."""
    for case, now in digest_variants(variants).items():
        before = noted.get("variants", {}).get(case, {})
        changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
        if changed or (launch.ab and before.keys() != now.keys()):
            raise LaunchError(
                f"{launch.ab or launch.bisect}: found other variants than when session {session} "
                f"began{f': {changed[0]}' if changed else ''}"
            )
    scripts = noted.get("scripts", {})
    for path, digest in digest_scripts(variants).items():
        if scripts.get(path) and scripts[path] != digest:
            raise LaunchError(
                f"{path}: another script than when session {session} began, and its runs would be taken for those of "
                "that one: put that back, or start anew"
            )


def note_noise(noise: Mapping[str, Noise]) -> dict[str, list[float | str]]:
    """Return what a session notes of the noise that it uses: one that goes on uses the same, or its next run would be
    another one where an A/B has ended since."""
    return {case: [each.sigma, each.degrees_of_freedom, each.source] for case, each in noise.items()}


def restore_noise(noted: Mapping[str, tuple[float, float, str]]) -> dict[str, Noise]:
    """Return the noise that a session noted; ValueError, TypeError or AttributeError for what none did."""
    noise = {
        case: Noise(float(sigma), float(freedom), str(source), measured=True)
        for case, (sigma, freedom, source) in noted.items()
    }
    if not all(0 < number < math.inf for each in noise.values() for number in (each.sigma, each.degrees_of_freedom)):
        raise ValueError(f"the noise is {noted!r:.40}")
    return noise


def describe_noise(noise: Noise | None) -> list[str]:
    """Return what is said of the noise of earlier A/Bs, if there was any: `noise: of 3 earlier A/Bs, 10 degrees`."""
    if noise is None:
        return []
    return [f"noise: of {noise.source}, {formatting.count_noun(round(noise.degrees_of_freedom), 'degree')}"]


def format_change(logarithm: float) -> str:
    """Return a difference of logarithms as `+2.10 %`."""
    return f"{math.expm1(logarithm):+.2%}".replace("%", " %")


def _describe_other_nodes(nodes: Sequence[str], first: Sequence[str]) -> str:
    """Return why a run does not stand beside those on the nodes of the first one; empty where it does."""
    if not nodes:
        return "nothing says on which nodes it ran"
    if first and set(nodes) != set(first):
        return f"it ran on {formatting.fold_nodes(nodes)}, not on the nodes of the first run"
    return ""


def _pin(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that gets exactly these nodes; as it is without any, and on this machine."""
    if not nodes or spec.via == "local":
        return spec
    return dataclasses.replace(pin_nodes(spec, nodes), exclude=())


def _mark(run: Run) -> None:
    """Leave a mark beside each log of a run, so that whoever reads them later takes it for no night of its recipe."""
    for attempt in run.attempts:
        log = attempt.files.log
        mark = log.with_name(log.name + VARIANT_MARK)
        try:
            mark.touch()
        except OSError as error:
            raise OSError(error.errno, f"{mark}: {error.strerror}") from error
