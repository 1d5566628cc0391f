"""Decide after each ended job which runs follow, or conclude its configuration.

The policy of a configuration decides, from the history of its runs. The engine reads
the log of an ended job, reserves GPU-hours, and builds the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field, structs

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
    JobIdentity,
    JobSpec,
    LaunchedJob,
    Loss,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.outcome_records import Case, ConfigurationResult
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.launch.hours_budget import HoursBudget, measure_cost
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.launched_runs import LaunchedRuns
from pytest_llmbench.launch.plan.suspect_nodes import SuspectNodes
from pytest_llmbench.launch.policies import node_policy
from pytest_llmbench.launch.policies.run_history import (
    Conclusion,
    EndedJob,
    NeedsVerdict,
    NextRuns,
    RunHistory,
    TrialFacts,
    get_nodes,
    list_nodes_by_run,
)
from pytest_llmbench.launch.policies.trial_ledger import NAMES
from pytest_llmbench.report.wording import phrase

Policy = Callable[[RunHistory], NextRuns | NeedsVerdict | Conclusion]
"""A policy with its settings: `next_runs` of a module in `policies`."""

NOT_STARTED = {
    Purpose.MEASURE: "not repeated",
    Purpose.PROFILE: "not profiled",
    Purpose.CONFIRM_NODES: "not confirmed",
    Purpose.CHECK_NODES: "not checked",
    **{purpose: f"the {name} is incomplete" for purpose, name in NAMES.items()},
}
"""The note for a run that exceeds the remaining GPU-hours, by purpose."""


class _Configuration(Struct):
    """The state of one launched configuration.

    `result` is None until its conclusion.
    """

    history: RunHistory
    notes: list[str] = field(default_factory=list)
    conclusion: Conclusion | None = None
    result: ConfigurationResult | None = None
    follow_ups: set[Purpose] = field(default_factory=set)
    """The purposes of the jobs started in addition to the judged runs."""


class RunEngine:
    """The runs of all launched configurations."""

    def __init__(
        self,
        policies: Mapping[str, Policy],  # by configuration id
        specs: Iterable[JobSpec],  # the first run of each configuration
        judge: LaunchedRuns,
        settings: LaunchSettings,
        *,
        budget: HoursBudget,
        build_profile: Callable[[JobSpec], JobSpec],
        build_check: Callable[[JobSpec, Sequence[str]], JobSpec] | None = None,
        suspects: Sequence[SuspectNodes] = (),
        release: Callable[[str], None] = lambda _case: None,
    ) -> None:
        """Start with a history without ended jobs for each configuration.

        `build_profile` may raise LaunchError. `build_check` builds the site's own check
        of some nodes. `suspects` are nodes that the history names as slow; runs on them
        confirm this before all other jobs. `release` ends the allocation of a
        configuration.
        """
        self._policies = policies
        self._configurations = {
            spec.case_id: _Configuration(RunHistory(spec, (NextJob(spec),)))
            for spec in specs
        }
        self._judge = judge
        self._settings = settings
        self._budget = budget
        self._build_profile = build_profile
        self._build_check = build_check
        self._release = release
        # confirmation runs that have not ended, with the nodes that they confirm
        self._confirmations: dict[JobIdentity, tuple[NextJob, SuspectNodes]] = {}
        for number, suspect in enumerate(suspects, 1):
            spec = self._configurations[suspect.case].history.spec
            job_nodes = (*suspect.nodes, *suspect.others)
            job = NextJob(
                node_policy.build_confirmation(spec, job_nodes),
                attempt=1,
                repeat=number,
            )
            self._confirmations[job.identity] = job, suspect
        # the repeat number of jobs on nodes that a verdict makes suspect
        self._node_job_number = len(suspects) + 1
        self._confirmed_nodes: tuple[str, ...] = ()  # nodes that were slow again
        self._has_begun = False  # True once the first runs were returned

    # --- first jobs -------------------------------------------------------------------

    def begin(self) -> list[NextJob]:
        """Return the first jobs: confirmation runs on suspect nodes, else first runs.

        A confirmation run that the remaining GPU-hours do not cover is dropped.
        """
        # in a resumed session, ended confirmation runs may have started the first runs
        if not self._has_begun:
            for identity, (job, suspect) in list(self._confirmations.items()):
                configuration = self._configurations[suspect.case]
                note_if_refused = f"{suspect.text}; not confirmed"
                if not self._reserve(configuration, [job], note_if_refused):
                    del self._confirmations[identity]
        confirmation_jobs = [job for job, _ in self._confirmations.values()]
        return confirmation_jobs or self._begin_configurations()

    def _begin_configurations(self) -> list[NextJob]:
        """Return the first run of each configuration, excluding confirmed slow nodes.

        Returns nothing from the second call on.
        """
        if self._has_begun:
            return []
        self._has_begun = True
        first_runs = []
        for configuration in self._configurations.values():
            history = structs.replace(
                configuration.history, excluded=self._confirmed_nodes
            )
            configuration.history = history
            first_runs.append(NextJob(history.run_spec))
        return first_runs

    # --- ended jobs -------------------------------------------------------------------

    def add_ended(self, job: Job, end: JobEnd) -> list[NextJob]:
        """Record a job that ended, and return the jobs to submit next."""
        self._budget.add_ended(job)
        configuration = self._configurations.get(job.spec.case_id)
        if configuration is None:  # a resumed session may select fewer configurations
            return []
        if _is_withdrawn(job):
            return self._withdraw(configuration, job)
        history = configuration.history
        _, suspect = self._confirmations.get(job.identity, (None, None))
        ended = self._judge.examine(
            job,
            end,
            ended_before=history.ended,
            suspect_nodes=suspect.nodes if suspect else (),
        )
        configuration.history = history.with_ended(ended)
        if job.spec.purpose in BESIDE:
            return self._add_node_job(configuration, ended)
        if not history.is_policy_job(job.spec):  # an allocation, or a profile
            return []
        return self._advance(configuration)

    def _withdraw(self, configuration: _Configuration, job: Job) -> list[NextJob]:
        """Drop a planned run that the remaining GPU-hours no longer cover.

        Returns the jobs to submit next.
        """
        configuration.history = configuration.history.without(job)
        # an earlier attempt of the run has ended, and counts instead
        is_retry = job.repeat in configuration.history.counted
        if is_retry:
            configuration.notes.append(job.problem)
        if configuration.history.pending or configuration.result:
            return []
        return self._advance(configuration)

    def _add_node_job(
        self, configuration: _Configuration, ended: EndedJob
    ) -> list[NextJob]:
        """Record the end of a confirmation run or of a node check.

        The first runs of all configurations wait for the confirmation runs that the
        history requested. Returns these first runs after the last such confirmation run,
        else nothing.
        """
        job = ended.job
        # None for jobs that a verdict started
        _, suspect = self._confirmations.pop(job.identity, (None, None))
        if job.spec.purpose is Purpose.CHECK_NODES:
            printed = "" if job.refused else self._judge.read_check(job)
            configuration.notes.append(node_policy.describe_check(ended, printed))
        else:
            evidence = suspect.text if suspect else ""
            configuration.notes += node_policy.describe_confirmation(ended, evidence)
            is_confirmed = ended.confirmation and ended.confirmation.confirmed
            if suspect and is_confirmed:
                self._confirmed_nodes += suspect.nodes
            if ended.problem is None:
                self._judge_nodes(configuration)
        if suspect and not self._confirmations:
            return self._begin_configurations()
        return []

    # --- next runs --------------------------------------------------------------------

    def _advance(self, configuration: _Configuration) -> list[NextJob]:
        """Apply the policy until it starts runs, waits for running jobs, or concludes."""
        policy = self._policies[configuration.history.spec.case_id]
        while True:
            step = policy(configuration.history)
            if isinstance(step, Conclusion):
                return self._conclude(configuration, step)
            if isinstance(step, NeedsVerdict):
                self._judge_runs(configuration)
            elif self._start(configuration, step):
                return list(step.runs)
            else:
                # the runs cannot start: the policy must decide without them, and without
                # retries. If a new run could not start, no other new run can.
                is_retry = step.runs[0].attempt > 1
                configuration.history = structs.replace(
                    configuration.history, may_retry=False, may_start=is_retry
                )

    def _judge_runs(self, configuration: _Configuration) -> None:
        """Judge the runs of a configuration, and add the verdict to its history."""
        runs = configuration.history.runs
        newest_first = (runs[repeat].dated_run for repeat in sorted(runs, reverse=True))
        key = configuration.history.spec.key
        verdict = self._judge.judge(key, [run for run in newest_first if run])
        configuration.history = structs.replace(configuration.history, verdict=verdict)

    def _start(self, configuration: _Configuration, step: NextRuns) -> bool:
        """Start the runs of a step; return False if they cannot start.

        They cannot start if too few GPU-hours are left. They also cannot start in a
        session that only collects: it records them in `held_back`, the runs that are
        left to a resumed session.
        """
        if step.on_excluded_nodes:
            self._use_excluded_nodes(configuration, step.runs[0].spec)
        if self._settings.collect:
            runs = {(run.repeat, run.attempt) for run in step.runs}
            history = configuration.history
            configuration.history = structs.replace(
                history, held_back=history.held_back | runs
            )
            return not runs  # a step without runs only waits for running jobs
        # a run `on_excluded_nodes` replaces a run that the scheduler refused, which used
        # none of its reserved hours
        if step.runs and not step.on_excluded_nodes:
            last_run = step.runs[-1]
            is_retry = last_run.attempt > 1
            note_if_refused = (
                "not retried"
                if is_retry
                else NOT_STARTED.get(last_run.spec.purpose, "")
            )
            if not self._reserve(configuration, step.runs, note_if_refused):
                return False
        if step.releases:  # the runs get another allocation, or are separate jobs
            self._release(configuration.history.spec.case_id)
        history = configuration.history.with_planned(step.runs)
        # too few other nodes: from now on, repeats may reuse nodes of earlier runs
        any_nodes = history.any_nodes or step.on_excluded_nodes
        configuration.history = structs.replace(history, any_nodes=any_nodes)
        return True

    def _use_excluded_nodes(self, configuration: _Configuration, spec: JobSpec) -> None:
        """Stop excluding confirmed slow nodes if the next run needs them, and note this.

        `spec` is the next run. It does not need them if it only drops the nodes that
        earlier attempts excluded in addition.
        """
        history = configuration.history
        needs_slow_nodes = spec.exclude != history.run_spec.exclude
        if needs_slow_nodes:
            configuration.history = structs.replace(history, excluded=())
            nodes = formatting.fold_nodes(history.excluded)
            configuration.notes.append(
                f"{nodes} not excluded here: too few other nodes"
            )

    def _reserve(
        self,
        configuration: _Configuration,
        runs: Sequence[NextJob],
        note_if_refused: str,
    ) -> bool:
        """Reserve the GPU-hours of runs.

        If too few are left, adds a note with the reason and returns False.
        """
        reason = self._budget.reserve(runs)
        if reason:
            configuration.notes.append(f"{note_if_refused}: {reason}")
        return not reason

    # --- conclusion -------------------------------------------------------------------

    def _conclude(
        self, configuration: _Configuration, conclusion: Conclusion
    ) -> list[NextJob]:
        """Record the conclusion on a configuration.

        Returns the follow-up jobs: node checks if the verdict names slow nodes, and a
        profile after a regression.
        """
        self._release(configuration.history.spec.case_id)
        configuration.conclusion = conclusion
        configuration.notes.append(conclusion.note)
        if conclusion.verdict is None:
            key = configuration.history.spec.key
            configuration.result = self._build_unjudged(key, conclusion)
            return []
        configuration.result = conclusion.verdict
        self._judge_nodes(configuration)
        if self._settings.collect:
            return []
        checks = self._check_nodes(configuration) if conclusion.names_nodes else []
        return [*checks, *self._profile(configuration, conclusion.verdict)]

    def _build_unjudged(self, key: Key, conclusion: Conclusion) -> ConfigurationResult:
        """Build the result of runs that could not or should not be judged."""
        # runs that served their purpose are not invalid, whatever their reason
        reason = Reason.PURPOSE_DONE if conclusion.done else conclusion.reason
        text = conclusion.text
        judgement = self._judge.judge_invalid(key, reason, text, conclusion.run)
        # else keep the reason of the judgement: a checkpoint budget may have set it
        has_specific_reason = reason is not conclusion.reason
        if has_specific_reason:
            judgement = structs.replace(judgement, reason=conclusion.reason)
        return ConfigurationResult(
            Case(key.id, key),
            judgement,
            done=text if conclusion.done else "",
            trials=conclusion.report,
        )

    def _judge_nodes(self, configuration: _Configuration) -> None:
        """Compare all judged runs by their nodes, and add the finding to the history.

        Does nothing before a verdict.
        """
        history, conclusion = configuration.history, configuration.conclusion
        if conclusion is None or conclusion.verdict is None:
            return
        confirmations = history.confirmations
        nodes = list_nodes_by_run([*history.runs.values(), *confirmations])
        runs = [ended.run for ended in confirmations if ended.run]
        finding = self._judge.judge_nodes(
            conclusion.verdict, nodes, runs, self._confirmed_nodes
        )
        configuration.history = structs.replace(history, finding=finding)

    def _check_nodes(self, configuration: _Configuration) -> list[NextJob]:
        """Return the jobs that check the suspect nodes of a verdict, at most once."""
        history = configuration.history
        suspects = node_policy.list_suspects(history)
        if not suspects or Purpose.CONFIRM_NODES in configuration.follow_ups:
            return []
        configuration.follow_ups.add(Purpose.CONFIRM_NODES)
        site_check = None
        if self._build_check:
            site_check = self._build_check(history.run_spec, suspects)
        policy = node_policy.NodePolicy(self._node_job_number, site_check)
        step = node_policy.next_runs(history, policy)
        runs = step.runs if isinstance(step, NextRuns) else ()
        return [run for run in runs if self._reserve_follow_up(configuration, run)]

    def _profile(
        self, configuration: _Configuration, result: ConfigurationResult
    ) -> list[NextJob]:
        """Return the profile run of a regression, at most once.

        A checkpoint over its budget is not profiled: its steps are not slower.
        """
        judgement = result.judgement
        regressed = judgement.verdict is Verdict.REGRESSION
        if not (regressed and self._settings.profile_on_regression):
            return []
        is_profiled = Purpose.PROFILE in configuration.follow_ups
        if is_profiled or judgement.reason is Reason.OVER_BUDGET:
            return []
        configuration.follow_ups.add(Purpose.PROFILE)
        try:
            profile = NextJob(self._build_profile(configuration.history.run_spec))
        except LaunchError as error:  # its document has no profiles
            configuration.notes.append(f"not profiled: {error}")
            return []
        is_reserved = self._reserve_follow_up(configuration, profile)
        return [profile] if is_reserved else []

    def _reserve_follow_up(self, configuration: _Configuration, job: NextJob) -> bool:
        """Reserve the GPU-hours of a follow-up job; return False if too few are left."""
        return self._reserve(configuration, [job], NOT_STARTED[job.spec.purpose])

    # --- results ----------------------------------------------------------------------

    def add_node_remarks(
        self, list_remarks: Callable[[Collection[str]], Mapping[str, str]]
    ) -> None:
        """Add remarks of the scheduler and the GPU drivers on doubtful nodes.

        Doubtful nodes are slow, suspect, or had an infrastructure failure.
        `list_remarks` is called once, with all doubtful nodes, and returns the remark of
        the scheduler by node. The errors of the GPU drivers come from the logs.
        """
        doubtful = [
            (configuration, node_policy.list_doubtful(configuration.history))
            for configuration in self._configurations.values()
        ]
        all_nodes = sorted({node for _, nodes in doubtful for node in nodes})
        remarks = list_remarks(all_nodes) if all_nodes else {}
        for configuration, nodes in doubtful:
            for node in sorted(nodes & remarks.keys()):
                configuration.notes.append(formatting.escape(remarks[node]))
            history = configuration.history
            for ended in [*_list_judged(history), *history.confirmations]:
                was_on_doubtful_nodes = not nodes.isdisjoint(get_nodes(ended.job))
                if ended.run and was_on_doubtful_nodes:
                    errors = self._judge.find_driver_errors(ended.job, ended.run)
                    configuration.notes.append(errors)

    @property
    def histories(self) -> dict[str, RunHistory]:
        """The run histories by configuration id."""
        items = self._configurations.items()
        return {case: configuration.history for case, configuration in items}

    def list_runs(self) -> dict[Key, list[Run]]:
        """List the runs that can be judged, by configuration."""
        return {
            history.spec.key: [
                ended.dated_run for ended in _list_judged(history) if ended.dated_run
            ]
            for history in self.histories.values()
        }

    def list_results(self) -> dict[Key, ConfigurationResult]:
        """List the results with their jobs; unfinished configurations are missing."""
        configurations = self._configurations.values()
        return {
            configuration.history.spec.key: _add_jobs(configuration)
            for configuration in configurations
            if configuration.result
        }


def _is_withdrawn(job: Job) -> bool:
    """True if a planned run was not submitted because the GPU-hours were used up.

    The first run of a configuration is never withdrawn: its failure is the result.
    """
    if job.spec.purpose in (*BESIDE, Purpose.ALLOCATION):
        return False
    is_first_run = job.attempt == 1 and job.repeat == 1
    return job.submission is SubmissionState.UNAFFORDABLE and not is_first_run


def _list_judged(history: RunHistory) -> list[EndedJob]:
    """List the runs to judge against a baseline.

    Runs of variants, which have a measured `time`, are only compared with each other.
    """
    return [ended for ended in history.runs.values() if ended.time is None]


# --- jobs of a result, for reports ----------------------------------------------------


def _add_jobs(configuration: _Configuration) -> ConfigurationResult:
    """Return the result of a configuration with its jobs and node findings."""
    history, conclusion = configuration.history, configuration.conclusion
    if configuration.result is None or conclusion is None:
        raise ValueError(f"{history.spec.case_id} has not ended")
    finding = history.finding
    finding_text = phrase(finding) if finding else ""
    return structs.replace(
        configuration.result,
        jobs=_describe_jobs(history, conclusion, configuration.result),
        nodes=formatting.join_clauses(finding_text, *configuration.notes),
        slow_nodes=finding.exclude if finding else (),
    )


def _describe_jobs(
    history: RunHistory, conclusion: Conclusion, result: ConfigurationResult
) -> tuple[LaunchedJob, ...]:
    """Describe the jobs in the order in which they ended, allocations last."""
    described = [
        _describe_job(history, ended, conclusion, result) for ended in history.ended
    ]
    if conclusion.trials is None:  # neither an A/B nor a search
        return tuple(described)
    jobs, allocations = [], []
    for ended, job in zip(history.ended, described, strict=True):
        if job.purpose is Purpose.ALLOCATION:
            allocations.append(_describe_allocation(job, conclusion.trials))
        else:
            jobs.append(_describe_trial(job, ended, conclusion.trials))
    return (*jobs, *allocations)


def _describe_job(
    history: RunHistory,
    ended: EndedJob,
    conclusion: Conclusion,
    result: ConfigurationResult,
) -> LaunchedJob:
    """Build the record of an ended job for the reports."""
    job, status = ended.job, ended.job.status
    files = (*history.files, *conclusion.files)
    loss = _find_loss_reason(history, ended, conclusion)
    return LaunchedJob(
        job_id=job.job_id,
        purpose=job.spec.purpose,
        attempt=job.attempt,
        repeat=job.repeat,
        state=status.state if status else "",
        nodes=get_nodes(job),
        step_seconds=_find_step_seconds(ended, result),
        text=job.problem or ended.end.text,
        # a measured run leaves only its log
        files=files if job.spec.purpose is not Purpose.MEASURE else (),
        submission=job.submission,
        ended_by=status.ended_by if status else EndedBy.OTHERS,
        # without nodes the job never ran, although a start time may be recorded
        started=status.started if status and status.nodes else None,
        cost=structs.replace(measure_cost(job), loss=loss),
    )


def _find_step_seconds(ended: EndedJob, result: ConfigurationResult) -> float | None:
    """Return the step time of a job's newest judged run, or of its confirmation run."""
    job_id = ended.job.job_id
    for measurement in reversed(result.judgement.runs):
        if measurement.run.found.job_id == job_id:
            return measurement.statistic_seconds
    return ended.confirmation.step_seconds if ended.confirmation else None


def _find_loss_reason(
    history: RunHistory, ended: EndedJob, conclusion: Conclusion
) -> Loss | None:
    """Return the reason the GPU-hours of a job were lost, or None.

    They are lost if a later attempt replaced the job, or if its run was not judged. The
    hours of a follow-up job are lost if the job failed.
    """
    job = ended.job
    if history.is_policy_job(job.spec):
        was_replaced = any(
            later.job.repeat == job.repeat and later.job.attempt > job.attempt
            for later in history.ended
        )
        is_lost = was_replaced or job.repeat in conclusion.lost
    else:
        is_lost = ended.end.blame is not Blame.NONE
    if not is_lost:
        return None
    return Loss.HUNG if ended.end.blame is Blame.HUNG else Loss.FAILED


def _describe_allocation(job: LaunchedJob, facts: TrialFacts) -> LaunchedJob:
    """Describe an allocation. Its hours are not lost if a run in it was measured."""
    # the repeat of an allocation job is the number of the allocation
    has_measured_run = job.repeat in facts.allocations
    if not has_measured_run:
        return job
    return structs.replace(job, cost=structs.replace(job.cost, loss=None))


def _describe_trial(
    job: LaunchedJob, ended: EndedJob, facts: TrialFacts
) -> LaunchedJob:
    """Describe a run of a variant by its step time and a text.

    The text contains the name of the variant and the problem of the run, if any: `new,
    to warm up; node n1 failed`.
    """
    trial, spec = facts.trials.get(job.repeat), ended.job.spec
    seconds = trial.step_time_ms / 1000 if trial and trial.step_time_ms else None
    name = f"{spec.variant}, to warm up" if spec.warm_up else spec.variant
    problem = facts.problems.get(job.repeat, "") or job.text
    return structs.replace(
        job, step_seconds=seconds, text=formatting.join_clauses(name, problem)
    )
