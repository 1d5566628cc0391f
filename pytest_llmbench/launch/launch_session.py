"""One launch session: plan the jobs, submit and follow them, judge their runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from msgspec import structs

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    BESIDE,
    TRIALS,
    JobSpec,
    PlannedHours,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import DecisionRule, Noise
from pytest_llmbench.core.option import LARGEST_SEQUENCE
from pytest_llmbench.core.outcome_records import (
    Case,
    Caution,
    CautionCode,
    ConfigurationResult,
)
from pytest_llmbench.core.redaction import MASK
from pytest_llmbench.core.run_records import StoredRun
from pytest_llmbench.launch.continuation import (
    Interrupted,
    add_resumptions,
    describe_early_interrupt,
    format_collect_command,
    format_resume_command,
    report_running_jobs,
    stop_jobs,
)
from pytest_llmbench.launch.hours_budget import HoursBudget, measure_running
from pytest_llmbench.launch.job_secrets import find_secret_values
from pytest_llmbench.launch.jobs import watch
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.jobs.job_engine import Engine
from pytest_llmbench.launch.jobs.journal import Journal, require_journal
from pytest_llmbench.launch.jobs.progress import Progress
from pytest_llmbench.launch.jobs.submitter import Submitter
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.launched_runs import LaunchedRuns, skip_judgement
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.planner import Host, Plan, Planner
from pytest_llmbench.launch.plan.suspect_nodes import (
    find_suspect_nodes,
    restore_suspects,
    select_suspects,
)
from pytest_llmbench.launch.plan.trial_plans import (
    count_trials,
    digest_scripts,
    digest_variants,
    plan_allocations,
    record_noise,
    refuse_changed,
    refuse_more_trials,
    restore_noise,
)
from pytest_llmbench.launch.policies import ab_policy, repeat_policy, search_policy
from pytest_llmbench.launch.policies.repeat_policy import (
    choose_decision_rule,
    plan_repeats,
)
from pytest_llmbench.launch.policies.trial_ledger import TrialPlan
from pytest_llmbench.launch.preflight import dry_run as text
from pytest_llmbench.launch.preflight.dry_run import (
    estimate_most,
    format_budget,
)
from pytest_llmbench.launch.preflight.problems import describe_problems
from pytest_llmbench.launch.run_engine import Policy, RunEngine
from pytest_llmbench.launch.running_logs import RunningLogs
from pytest_llmbench.launch.schedulers.registry import Schedulers, name_jobs_inquiries
from pytest_llmbench.launch.schedulers.shared_allocation import release
from pytest_llmbench.launch.schedulers.submission import Tools
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.evaluate import add_fleet_findings
from pytest_llmbench.session.fleet import with_efficiencies
from pytest_llmbench.session.outcomes import SessionResults, apply_requirements
from pytest_llmbench.session.settings import Settings

PLAN = "plan"  # the name of the journal value with the plan of a session

ALL_JOBS = 1_000_000  # without --llmb-max-jobs, all jobs are submitted at once

NEVER_SUBMITTED = (
    "not submitted before the session was interrupted. Submit it with --llmb-resume"
)


def build_unlaunched_results(settings: Settings, catalog: Catalog) -> SessionResults:
    """Build the results before the launch: each configuration is MISSING."""
    return SessionResults(
        configurations={
            key.id: _build_missing(
                key, Reason.NOT_LAUNCHED, "not launched", settings, catalog
            )
            for key in catalog.select((), settings).baselines
        },
        unmatched=(),
        runs_found=0,
        runs_before_since=0,
        ignored=(),
        measurements={},
        required=frozenset(catalog.required_runs),
    )


def _build_missing(
    key: Key, reason: Reason, text: str, settings: Settings, catalog: Catalog
) -> ConfigurationResult:
    """Build a configuration's result with the verdict MISSING.

    `text` explains the `reason`.
    """
    judgement = skip_judgement(
        Verdict.MISSING, reason, text, catalog.baselines[key][0], settings
    )
    return ConfigurationResult(Case(key.id, key), judgement)


class LaunchSession:
    """One session that launches jobs.

    `results` are the results at its end, `secrets` the values to mask in reports.
    `problems` is True if the command must fail: preflight failed in a dry run, or a
    job was not submitted. `overruled` names the preflight problems that were ignored.
    """

    def __init__(
        self,
        settings: Settings,
        launch: LaunchSettings,
        catalog: Catalog,
        host: Host,
        past: Mapping[Key, Sequence[StoredRun]] | None = None,
    ) -> None:
        """`past` are the stored runs of the history, by configuration."""
        self.settings = settings
        self.launch = launch
        self.catalog = catalog
        self.host = host
        self.past = past
        self.planner: Planner  # created when the selection is known
        self.results = build_unlaunched_results(settings, catalog)
        self.session = ""
        self.problems = False
        self.overruled: tuple[str, ...] = ()
        self.secrets: frozenset[str] = frozenset()
        self._cases: set[str] = set()  # configuration ids that belong to the session
        self._noise: Mapping[str, Noise] = {}
        self._engine: Engine | None = None

    def run(self, selected: Sequence[Key]) -> bool:
        """Launch the selected configurations and judge their runs.

        Returns True if the session ends without running its items (dry run, or submit
        only). Raises LaunchError for problems found before submission (nothing is
        submitted then), and Interrupted if the user stops the session.
        """
        if not selected:  # every item is skipped
            return False
        try:
            return self._run(selected)
        except KeyboardInterrupt:
            raise Interrupted(
                describe_early_interrupt(self.launch, self.host)
            ) from None

    def _run(self, selected: Sequence[Key]) -> bool:
        """Plan and launch the selected configurations, or continue an earlier session.

        Returns whether the session ends without judging anything.
        """
        self.planner = Planner(
            self.launch, self.settings.gpu, self.catalog, self.host, selected
        )
        if self.launch.dry_run:
            return self._print_plan(self._plan(selected))
        plan = None if self.launch.continues else self._plan_checked(selected)
        with self._open_journal() as journal:
            try:
                if plan is None:
                    self._resume_session(journal)
                    plan = self._restore_plan(journal, selected)
                else:
                    self._begin_session(plan, journal)
                self._follow(plan, journal)
            except KeyboardInterrupt:
                if not journal.session:  # nothing was submitted
                    raise
                # a new engine only cancels jobs, for which it needs no GPU-hours
                engine = self._engine or self._build_engine(journal, HoursBudget(0.0))
                raise Interrupted(
                    stop_jobs(engine, journal, self.launch, self.host)
                ) from None
        return self.launch.submit_only

    def _plan(self, selected: Sequence[Key]) -> Plan:
        """Plan a new session, with the nodes that the history suspects."""
        plan = self.planner.plan(selected)
        suspects = find_suspect_nodes(
            plan.jobs, self.launch, self.settings, self.catalog, self.host.tell
        )
        return structs.replace(plan, suspects=suspects)

    def _plan_checked(self, selected: Sequence[Key]) -> Plan:
        """Plan a new session. Raises LaunchError if preflight finds problems."""
        plan = self._plan(selected)
        problems = self.planner.find_problems(plan)
        if problems:
            raise LaunchError(describe_problems(problems))
        return plan

    def _restore_plan(self, journal: Journal, selected: Sequence[Key]) -> Plan:
        """Restore the plan of an earlier session for the `selected` configurations.

        A session that only collects needs nothing but the journal: no token, no recipe.
        A selected configuration that was not part of the session is skipped.
        """
        recorded = self._restore_recorded(journal)
        self._refuse_unjudgeable()
        submitted = [job.spec for job in reversed(journal.list_jobs())]
        jobs, skipped = self._restore_jobs(submitted, selected)
        variants = self.planner.plan_variants(jobs)  # of an A/B or a search
        refuse_changed(variants, recorded, self.launch, self.session)
        # a session that only collects submits no run to confirm suspect nodes: it keeps
        # only the suspects with a submitted run
        submitted_before = submitted if self.launch.collect else None
        suspects = select_suspects(recorded["named"], jobs, submitted_before)
        allocations = plan_allocations(
            variants,
            self.launch,
            self.planner.builds,
            self.planner.schedulers,
            submitted,
        )
        runs = recorded.get("runs", {})  # by configuration id
        if variants:  # a search may have more builds now, and so more runs
            runs_now = count_trials(
                variants, self.launch, self.planner.builds, allocations
            )
            refuse_more_trials(variants, runs_now, runs, self.planner.cluster.gpu_hours)
            runs = runs_now
        return Plan(
            jobs=tuple(jobs),
            skipped=skipped,
            hours=sum(job.spec.gpu_hours for job in jobs),
            # a session that only collects submits nothing
            limit=0.0 if self.launch.collect else self.planner.limit,
            runs=runs,
            variants=variants,
            suspects=suspects,
            noise=self._noise,
            allocations=allocations,
        )

    def _refuse_unjudgeable(self) -> None:
        """Raise LaunchError if the session's runs could not be judged.

        An A/B or a search cannot be collected without submitting its next runs, and a
        configuration cannot be judged without its baseline file.
        """
        if self.launch.collect and self.launch.purpose in TRIALS:
            raise LaunchError(
                f"session {self.session}: runs of an A/B or a search cannot only be collected, "
                "since each run decides the next one. Use --llmb-resume"
            )
        cases_without_baseline = self._cases - {
            key.id for key in self.catalog.baselines
        }
        # their submitted jobs could never be judged
        if cases_without_baseline:
            names = formatting.join_first(sorted(cases_without_baseline))
            raise LaunchError(
                f"session {self.session}: no baseline file contains {names} any more. Pass its folder with --llmb-baselines=DIR"
            )

    def _restore_jobs(
        self, specs: Sequence[JobSpec], selected: Sequence[Key]
    ) -> tuple[list[PlannedJob], dict[Key, str]]:
        """Restore the jobs of the selected configurations that belong to the session.

        `specs` are the submitted jobs, newest first. To collect a session, its oldest
        job of each configuration is restored, which is the first run; to resume it, the
        job is planned again. Returns the jobs, and the reason for each skipped
        configuration. Raises LaunchError if no job is left.
        """
        # the dictionary keeps the last spec of a configuration, which is the oldest
        specs_by_case = {
            spec.case_id: spec for spec in specs if spec.purpose not in BESIDE
        }
        jobs, skipped = [], {}
        for key in selected:
            if self.launch.collect and key.id in specs_by_case:
                jobs.append(self.planner.restore_job(specs_by_case[key.id]))
            elif not self.launch.collect and key.id in self._cases:
                jobs.append(self.planner.plan_job(key, self.launch.purpose))
            else:
                skipped[key] = "not part of the resumed session"
        if not jobs:
            raise LaunchError(
                f"session {self.session} contains none of the selected configurations. It contains {_format_cases(self._cases)}"
            )
        return jobs, skipped

    def _restore_recorded(self, journal: Journal) -> dict[str, Any]:
        """Restore the settings that the session recorded in its journal when it began.

        Sets the launch settings, the GPU, the configuration ids, the noise and the
        ignored problems. Returns the recorded plan, with its suspect nodes decoded
        (`named`). Raises LaunchError if the plan cannot be read.
        """
        try:
            recorded = dict(json.loads(journal.read_journal_value(PLAN) or "{}"))
            self.launch = self.planner.launch = self.launch.restore_recorded(recorded)
            if not self.planner.gpu:
                self.planner.gpu = str(recorded.get("gpu", ""))
            self._cases = set(map(str, recorded.get("cases", ())))
            recorded["named"] = restore_suspects(recorded.get("named", ()))
            self._noise = restore_noise(recorded.get("noise", {}))
            self.overruled = tuple(map(str, recorded.get("overruled", ())))
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise LaunchError(
                f"{journal.folder}: cannot read the plan of session {self.session} ({error}): another version of "
                "pytest-llmbench wrote it, or the file is damaged. Cancel its jobs manually "
                f"({name_jobs_inquiries()}), and start a new session"
            ) from None
        return recorded

    def _print_plan(self, plan: Plan) -> bool:
        """Print the plan of a dry run. Returns True, because nothing is judged."""
        problems = self.planner.find_problems(plan)
        reruns = self.planner.list_reruns(plan)
        for line in plan.describe_allocations():
            self.host.tell(line)
        self.host.tell(
            text.format_plan(
                plan.jobs, problems, plan.limit, reruns, plan.runs, shown=plan.every_job
            )
        )
        self._print_skipped(plan)
        self.problems = bool(problems) or plan.hours > plan.limit
        return True

    def list_cautions(self) -> Iterator[Caution]:
        """Yield a caution if preflight checks failed and were ignored."""
        if self.overruled:
            text = f"ignored preflight problems: {', '.join(self.overruled)} (--llmb-ignore)"
            yield Caution(CautionCode.PREFLIGHT, text)

    def _print_planned_hours(self, plan: Plan) -> PlannedHours:
        """Print the GPU-hours of a plan before its first job, and return them."""
        reruns = self.planner.list_reruns(plan)
        for line in plan.describe_allocations():
            self.host.tell(line)
        for line in format_budget(plan.jobs, plan.limit, reruns, plan.runs):
            self.host.tell(line)
        hours_with_reruns = estimate_most((job.spec for job in plan.jobs), reruns)
        # for an A/B or a search, only `plan.hours` counts all runs
        most_hours = max(hours_with_reruns, plan.hours)
        return PlannedHours(plan.hours, most_hours, plan.limit)

    def _print_skipped(self, plan: Plan) -> None:
        """Print the number of skipped configurations for each reason."""
        reasons = Counter(plan.skipped.values())
        for reason, count in reasons.items():
            self.host.tell(
                f"not launched: {formatting.count_noun(count, 'configuration')}: {reason}"
            )

    @contextmanager
    def _open_journal(self) -> Iterator[Journal]:
        """Open the journal, and close it at the end of the block.

        Raises LaunchError if an earlier session is to continue and there is no journal.
        """
        if self.launch.continues:
            require_journal(self.host.index, self.launch.session, self.host.folder)
        with closing(Journal(self.host.folder, self.host.index)) as journal:
            yield journal

    def _begin_session(self, plan: Plan, journal: Journal) -> None:
        """Begin a new session in the journal, and record its plan there.

        First prints the earlier sessions that left unfinished jobs.
        """
        for earlier in journal.list_unfinished():
            is_running = earlier.is_locked  # a process follows its jobs
            if earlier.unfinished_jobs and not is_running:
                jobs = formatting.count_noun(earlier.unfinished_jobs, "job")
                self.host.tell(
                    f"llmbench: session {earlier.session} left {jobs} unfinished. Resume it with --llmb-resume"
                )
        self._cases = {job.spec.case_id for job in plan.jobs}
        self.overruled = self.planner.overruled
        recorded = {
            "cases": sorted(self._cases),
            "variants": digest_variants(plan.variants),
            "runs": plan.runs,
            "gpu": self.settings.gpu,
            **self.launch.to_journal(),
            "scripts": digest_scripts(plan.variants),
            "noise": record_noise(plan.noise),
            "named": [structs.asdict(suspect) for suspect in plan.suspects],
            "overruled": self.overruled,
        }
        self.session = journal.begin(
            "llmbench", self.host.now(), {PLAN: json.dumps(recorded)}
        )

    def _resume_session(self, journal: Journal) -> None:
        """Resume the session that the options name, or the newest unfinished one."""
        self.session = journal.resume(self.launch.session)
        self.host.tell(f"llmbench: resuming session {self.session}")

    def _follow(self, plan: Plan, journal: Journal) -> None:
        """Submit and follow the jobs of a plan, and judge their runs.

        Sets `secrets` and `results`. If an error stops the session, prints the jobs
        that may still run.
        """
        self.secrets = frozenset(
            value for job in plan.every_job for value in find_secret_values(job.spec)
        )
        if not self.launch.collect:
            self.results = structs.replace(
                self.results, planned_hours=self._print_planned_hours(plan)
            )

        def choose_rule(key: Key) -> DecisionRule:
            """Choose the decision rule of a configuration by its number of runs."""
            required_runs = plan.runs.get(key.id, 1)
            return choose_decision_rule(plan_repeats(self.launch, required_runs))

        def build_profile(spec: JobSpec) -> JobSpec:
            """Build the profile run of the configuration that `spec` runs."""
            return self.planner.plan_job(spec.key, Purpose.PROFILE).spec

        runs = LaunchedRuns(
            self.settings,
            self.catalog,
            self.session,
            choose_rule,
            self.host.now,
            facts={job.spec.case_id: job.facts for job in plan.jobs},
            past=self.past,
        )
        budget = self._build_budget(plan, journal)
        node_check = self.planner.plan_node_check if self.launch.node_checks else None
        self._engine = self._build_engine(journal, budget)
        run_engine = RunEngine(
            self._choose_policies(plan),
            plan.first_run_specs,
            runs,
            self.launch,
            budget=budget,
            build_profile=build_profile,
            build_check=node_check,
            suspects=plan.suspects,
            # only runs of variants share an allocation
            release=partial(release, journal) if plan.variants else lambda _case: None,
        )
        try:
            self._run_jobs(self._engine, plan, journal, run_engine)
        except Exception:
            report_running_jobs(journal, self.launch, self.host)
            raise
        run_engine.add_node_remarks(self.planner.list_node_remarks)
        if runs.has_unknown_secrets:
            # MASK stands for values that cannot be masked: reports then quote no logs
            self.secrets |= {MASK}
        self.results = self._build_results(plan, run_engine, runs)

    def _choose_policies(self, plan: Plan) -> dict[str, Policy]:
        """Choose the policy that decides the next runs, by configuration id."""
        if plan.variants:
            return self._choose_trial_policies(plan)
        # a recorded baseline needs all runs, whatever the first run shows
        records_baseline = self.settings.record is not None
        policies: dict[str, Policy] = {}
        for job in plan.jobs:
            case = job.spec.case_id
            policy = plan_repeats(
                self.launch, plan.runs.get(case, 1), always=records_baseline
            )
            policies[case] = partial(repeat_policy.next_runs, policy=policy)
        return policies

    def _choose_trial_policies(self, plan: Plan) -> dict[str, Policy]:
        """Build the policy of each configuration that an A/B or a search runs."""
        cluster = self.planner.find_cluster_name(plan.jobs)
        next_runs = ab_policy.next_runs if self.launch.ab else search_policy.next_runs
        policies: dict[str, Policy] = {}
        for case, jobs in plan.variants.items():
            specs = tuple(job.spec for job in jobs)
            most_runs = plan.runs.get(case, 1)
            trials = TrialPlan(
                specs,
                plan.allocations.get(case),
                most_runs,
                self.planner.builds.most_runs,
                cluster,
                plan.noise.get(case),
            )
            policies[case] = partial(next_runs, policy=trials)
        return policies

    def _run_jobs(
        self, engine: Engine, plan: Plan, journal: Journal, run_engine: RunEngine
    ) -> None:
        """Submit the first jobs, then follow all jobs until every configuration ended.

        With --llmb-submit-only, returns after the submissions. Finishes the session in
        the journal if all of its configurations were judged.
        """
        if self.launch.submit_only:
            self._submit_only(engine, plan, journal)
            return
        follow = engine.resume if self.launch.continues else engine.run
        # confirmation runs on suspect nodes precede the first jobs of the plan
        begin = run_engine.begin if plan.suspects else None
        follow(plan.first_specs, run_engine.add_ended, begin)
        judged = {key.id for key in run_engine.list_results()}
        # if the session was finished before, its other configurations were judged then
        has_unjudged = bool(self._cases - judged) and not journal.was_finished
        if has_unjudged or not journal.finish(self.host.now()):
            self.host.tell(
                f"llmbench: session {self.session} is not finished. Resume it with --llmb-resume"
            )

    def _submit_only(self, engine: Engine, plan: Plan, journal: Journal) -> None:
        """Submit the first jobs, and print the command that collects them.

        Sets `problems` if a job was not submitted.
        """
        unsubmitted = engine.submit_only(
            plan.first_specs, resumed=self.launch.continues
        )
        # a superseded job was submitted again as another job
        has_refused = any(
            job.refused and job.submission is not SubmissionState.SUPERSEDED
            for job in journal.list_jobs()
        )
        self.problems = bool(unsubmitted) or has_refused
        for spec in unsubmitted:
            self.host.tell(f"not submitted, no free slot: {spec.case_id}")
        collect_command = format_collect_command(
            self.session,
            self.host.folder,
            self.settings.baselines,
            self.host.command,
        )
        self.host.tell(
            f"llmbench: submitted. To follow and judge the jobs, run this from any folder:\n{collect_command}"
        )

    def _build_engine(self, journal: Journal, budget: HoursBudget) -> Engine:
        """Build the engine that submits and follows the jobs of this session."""
        host = self.host
        schedulers = Schedulers(Tools(host.run, host.environment, journal, host.sleep))
        submitter = Submitter(
            schedulers, Builder(journal.session, host.sleep, host.tell)
        )
        limits = watch.Limits(
            max_jobs=self.launch.max_jobs or ALL_JOBS,
            pending_seconds=self.launch.pending_limit.total_seconds(),
            stalls=self.launch.stall_limit,
        )
        logs = RunningLogs(self.catalog, host.now)
        return Engine(
            journal,
            submitter,
            host.tell,
            host.now,
            host.sleep,
            limits,
            progress=Progress(host.tell, logs.read_last_step),
            read_progress=logs.read_progress,
            follow_only=self.launch.collect,
            admit=budget.admit,
        )

    def _build_budget(self, plan: Plan, journal: Journal) -> HoursBudget:
        """Build the GPU-hours budget, with the hours used before an interruption.

        Prints these hours, unless the session only collects.
        """
        budget = HoursBudget(
            plan.limit, lambda: measure_running(journal, self.host.now())
        )
        live_numbers = {job.number for job in journal.list_live()}
        budget.add_resumed(journal.list_jobs(), live_numbers)
        budget.reserve_first(plan.first_specs)
        if budget.used and not self.launch.collect:
            self.host.tell(
                f"{formatting.format_hours(budget.used)} GPU-hours were used before the interruption"
            )
        return budget

    def _build_results(
        self, plan: Plan, run_engine: RunEngine, runs: LaunchedRuns
    ) -> SessionResults:
        """Build the results of all configurations: judged, skipped and never submitted."""
        results = dict(self.results.configurations)
        # skipped configurations: a resumed session skips those that it never contained,
        # a new session those that the cluster cannot run
        skip_reason = (
            Reason.NOT_LAUNCHED if self.launch.continues else Reason.NOT_ON_CLUSTER
        )
        for key, message in plan.skipped.items():
            results[key.id] = _build_missing(
                key, skip_reason, message, self.settings, self.catalog
            )
        # judged configurations: suite files may require more runs than were made; fewer
        # are accepted if the user chose them (the default is LARGEST_SEQUENCE)
        has_fewer_runs = (
            self.launch.repeats < LARGEST_SEQUENCE and not self.settings.certify
        )
        repeats = self.launch.repeats if has_fewer_runs else None
        with_requirements = apply_requirements(
            runs.gather_results(run_engine.list_results()),
            self.catalog.required_runs,
            repeats,
        )
        judged, checks = add_fleet_findings(
            with_requirements,
            self.settings,
            self.catalog,
            self.host.now(),
            self.past or {},
        )
        results |= with_efficiencies(judged, self.catalog.configurations).results
        # configurations without a result: the session was interrupted before their
        # submission
        unjudged_cases = (self._cases & results.keys()) - judged.by_id.keys()
        for case_id in sorted(unjudged_cases):
            case = results[case_id].case
            first_baseline, *_ = self.catalog.baselines[case.key]
            judgement = skip_judgement(
                Verdict.INVALID,
                Reason.NOT_SUBMITTED,
                NEVER_SUBMITTED,
                first_baseline,
                self.settings,
            )
            results[case.id] = ConfigurationResult(case, judgement)
        if self.launch.collect:
            results = add_resumptions(
                results,
                run_engine,
                format_resume_command(self.session, self.host.command),
            )
        runs_by_key = run_engine.list_runs()
        measurements = {}
        for key, runs_of_key in runs_by_key.items():
            # the measurements against the first baseline
            measurements[key], *_ = runs.measure_runs(key, runs_of_key)
        return structs.replace(
            self.results,
            configurations=results,
            runs_found=sum(map(len, runs_by_key.values())),
            measurements=measurements,
            checks=checks,
        )


def _format_cases(cases: Collection[str]) -> str:
    """Format the first of some configuration ids, or `no job` if there are none."""
    return formatting.join_first(sorted(cases)) or "no job"
