"""Plan a launch: the cluster, the jobs of configurations, and their GPU-hours."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.commands import Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.gpus import read_gpu_type
from pytest_llmbench.core.job_records import (
    TRIALS,
    Cluster,
    InstalledRecipe,
    JobSpec,
    LaunchFacts,
    Purpose,
)
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import Variant
from pytest_llmbench.launch.launch_settings import COMMITS, LaunchSettings
from pytest_llmbench.launch.plan.cluster_file import (
    describe_machine,
    read_cluster,
)
from pytest_llmbench.launch.plan.fit import (
    DEFAULT_HOURS,
    explain_unfit,
    find_installed,
    read_facts,
    refuse_hours,
)
from pytest_llmbench.launch.plan.job_spec import build_job, build_node_check
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.purpose import (
    build_variables,
    explain_ineffective,
    parse_profile,
)
from pytest_llmbench.launch.plan.suspect_nodes import SuspectNodes
from pytest_llmbench.launch.plan.trial_plans import (
    MAX_WARM_UPS,
    count_trials,
    estimate_hours,
    plan_allocations,
)
from pytest_llmbench.launch.plan.variants import (
    Builds,
    find_checkout,
    find_without_script,
    install_variant,
    list_commits,
    read_builds,
    read_variants,
    refuse_ineffective,
    refuse_same,
)
from pytest_llmbench.launch.preflight.dry_run import Reruns
from pytest_llmbench.launch.preflight.launch_checks import check_launch
from pytest_llmbench.launch.preflight.problems import LaunchProblem, describe_overruled
from pytest_llmbench.launch.schedulers.registry import Schedulers
from pytest_llmbench.launch.schedulers.shared_allocation import (
    AllocationPlan,
    place_run,
)
from pytest_llmbench.launch.schedulers.submission import SchedulerAway, Tools
from pytest_llmbench.session.catalog import Catalog

ReadNoise = Callable[[str, Collection[str]], Mapping[str, Noise]]
"""Looks up the run-to-run noise that earlier A/Bs of configurations measured.

Called with the name of the cluster and the ids of the configurations; returns the
noise by id.
"""


class Host(Struct, frozen=True):
    """The environment of a session: clock, commands, terminal and folders."""

    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    run: Runner  # runs short commands
    environment: Mapping[str, str]  # of the shell that started pytest
    tell: Callable[[str], None]  # prints a line to the terminal
    folder: Path  # the folder of the journal
    directory: Path = Path()  # where pytest was started
    index: Path | None = None  # the file that lists the folders of sessions
    command: tuple[str, ...] = ()  # the arguments of pytest
    # reads the noise of earlier A/Bs from the history
    read_noise: ReadNoise = lambda _cluster, _ids: {}


class Plan(Struct, frozen=True):
    """The jobs of a launch, with their limits."""

    jobs: tuple[PlannedJob, ...]
    # the selected configurations that are not launched, with the reason
    skipped: Mapping[Key, str]
    hours: float  # estimated GPU-hours of all jobs
    limit: float  # GPU-hours that the session may use
    # The following mappings are keyed by configuration id.
    # the number of runs, if a suite file requires more than one; for an A/B or a
    # search the maximum
    runs: Mapping[str, int] = field(default_factory=dict)
    # the jobs of the variants of an A/B or a search
    variants: Mapping[str, tuple[PlannedJob, ...]] = field(default_factory=dict)
    # nodes that the history suspects; a run on them comes before all other jobs
    suspects: tuple[SuspectNodes, ...] = ()
    noise: Mapping[str, Noise] = field(default_factory=dict)  # from earlier A/Bs
    # how the runs of the variants get their nodes
    allocations: Mapping[str, AllocationPlan] = field(default_factory=dict)

    @property
    def every_job(self) -> tuple[PlannedJob, ...]:
        """All jobs that may be submitted.

        A configuration with variants contributes the jobs of its variants.
        """
        every_job: list[PlannedJob] = []
        for job in self.jobs:
            every_job += self.variants.get(job.spec.case_id, (job,))
        return tuple(every_job)

    @property
    def first_run_specs(self) -> list[JobSpec]:
        """The specifications of the first runs, one for each configuration.

        With variants: that of a run of the first variant.
        """
        return [self._find_first_run(job) for job in self.jobs]

    def _find_first_run(self, job: PlannedJob) -> JobSpec:
        """Return the job itself, or the job of its configuration's first variant."""
        (first, *_) = self.variants.get(job.spec.case_id, (job,))
        return first.spec

    @property
    def first_specs(self) -> list[JobSpec]:
        """The specifications of the jobs to submit first.

        If the runs of a configuration share an allocation, the job of the allocation
        precedes the first run.
        """
        specs = []
        for job in self.jobs:
            case = job.spec.case_id
            first_run = self._find_first_run(job)
            allocation_plan = self.allocations.get(case)
            allocation = None
            if allocation_plan:
                allocation = allocation_plan.size(self.runs.get(case, 1))
            if allocation:
                # the first run in an allocation is a warm-up
                specs += [allocation, place_run(first_run, 1, warm_up=True)]
            else:
                specs.append(first_run)
        return specs

    def describe_allocations(self) -> Iterator[str]:
        """Yield a line about each configuration's shared allocation or the lack of one."""
        for case, plan in self.allocations.items():
            variants = self.variants[case]
            warm_ups = min(len(variants), MAX_WARM_UPS[variants[0].spec.purpose])
            if text := plan.describe(self.runs.get(case, 1), warm_ups):
                yield _wrap(f"{case}: {text}")


class Planner:
    """Plans the launch of one session."""

    def __init__(
        self,
        launch: LaunchSettings,
        gpu: str,
        catalog: Catalog,
        host: Host,
        selected: Sequence[Key],
    ) -> None:
        """`gpu` is the GPU type given by an option, or ""."""
        self.launch = launch
        self.gpu = gpu
        self.catalog = catalog
        self.host = host
        self.overruled: tuple[str, ...] = ()
        self._needs_gpus = any(key.gpu != "cpu" for key in selected)

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster to launch on.

        Read from the cluster file if there is one, else taken from this machine or from
        its scheduler; options override single values. Raises LaunchError.
        """
        launch = self.launch
        if launch.cluster:
            cluster = read_cluster(launch.cluster)
        else:
            cluster = self._describe_cluster(describe_machine(self.host.run))
        installed_by_options = [
            _read_installed(name, folder) for name, folder in launch.recipes
        ]
        excluded_by_option = [launch.exclude] if launch.exclude else []
        return replace(
            cluster,
            gpu=self.gpu or cluster.gpu,
            largest=launch.largest or cluster.largest,
            gpus_per_node=launch.gpus_per_node or cluster.gpus_per_node,
            gpu_hours=launch.gpu_hours or cluster.gpu_hours,
            exclude=(*cluster.exclude, *excluded_by_option),
            nodelist=launch.nodelist or cluster.nodelist,
            installed=(*installed_by_options, *cluster.installed),
        )

    def _describe_cluster(self, machine: Cluster) -> Cluster:
        """Describe the cluster if there is no cluster file. Returns

        1. the cluster of a scheduler that has GPUs, if this machine has none and needs
           them, and the launcher is not `local`;
        2. only the GPU type of this machine, if options give another type or more GPUs:
           then they describe another cluster;
        3. this machine otherwise.
        """
        launch = self.launch
        if machine.gpu == "cpu" and self._needs_gpus and launch.launcher != "local":
            learned = self._learn_cluster()
            if learned:
                return learned
        has_other_type = self.gpu and read_gpu_type(self.gpu) != machine.gpu
        is_larger = max(launch.largest, launch.gpus_per_node) > machine.largest
        if has_other_type or is_larger:
            return Cluster(gpu=machine.gpu)
        return machine

    def _learn_cluster(self) -> Cluster | None:
        """Return the cluster that a scheduler describes, and print its description.

        None without a scheduler or GPUs.
        """
        try:
            learned = self.schedulers.learn_cluster(self.gpu)
        except SchedulerAway:
            # no scheduler here; if it only fails to answer, preflight reports that
            return None
        if learned is None:
            return None
        description = f"no cluster file; {learned.scheduler} has {learned.describe()}"
        self.host.tell(_wrap(f"{description} (`llmbench cluster` writes it down)"))
        return replace(learned.cluster, name=f"the cluster of this {learned.scheduler}")

    def list_variants(self, job: PlannedJob) -> tuple[Variant, ...]:
        """List the variants of an A/B or the builds of a search, in order.

        The first variant is the reference. Empty for any other launch. Raises
        LaunchError.
        """
        commits = self.builds.commits
        # list_commits refuses `git:` without a range
        if commits or self.launch.bisect.startswith(COMMITS):
            return list_commits(commits, job.spec.directory, self.host.run)
        return self.builds.variants

    @cached_property
    def builds(self) -> Builds:
        """The variants of an A/B or a search, as their file describes them.

        Empty for any other launch. Raises LaunchError.
        """
        if self.launch.ab:
            return read_variants(self.host.directory / self.launch.ab)
        bisect = self.launch.bisect  # `git:GOOD..BAD`, a file, or ""
        if not bisect or bisect.startswith(COMMITS):
            return Builds(commits=bisect.removeprefix(COMMITS))
        return read_builds(self.host.directory / bisect)

    @cached_property
    def facts(self) -> Mapping[tuple[str, str], LaunchFacts]:
        """Launch facts by (recipe, release)."""
        launch_facts = (read_facts(recipe) for recipe in self.catalog.recipes)
        return {
            (facts.recipe, facts.release): facts
            for facts in launch_facts
            if facts is not None
        }

    def plan(self, selected: Sequence[Key]) -> Plan:
        """Plan the jobs of the selected configurations that this cluster can run.

        Raises LaunchError if it can run none of them, or if they need too many
        GPU-hours.
        """
        # 1. one job for each configuration that fits the cluster
        skipped: dict[Key, str] = {}
        jobs: list[PlannedJob] = []
        for key in selected:
            (baseline, *_) = self.catalog.baselines[key]
            facts = self.facts.get((key.recipe, key.release))
            reason = explain_unfit(
                baseline.configuration, facts, self.cluster, self.launch.launcher
            )
            if reason:
                skipped[key] = reason
            else:
                jobs.append(self.plan_job(key, self.launch.purpose))
        if not jobs:
            raise LaunchError(_explain_nothing_fits(skipped, self.cluster))
        # 2. the variants of an A/B or a search
        variants = self.plan_variants(jobs)
        allocations = plan_allocations(
            variants, self.launch, self.builds, self.schedulers
        )
        # 3. the number of runs, and their GPU-hours
        runs = self._find_requested_runs(selected)
        if variants:
            runs = count_trials(variants, self.launch, self.builds, allocations)
        hours_by_case = dict(
            estimate_hours(job.spec, runs.get(job.spec.case_id, 1)) for job in jobs
        )
        if not self.launch.dry_run:
            refuse_hours(hours_by_case, self.cluster.gpu_hours)
        # 4. the noise that earlier A/Bs on this cluster measured
        noise: Mapping[str, Noise] = {}
        if variants:
            cluster_name = self.find_cluster_name(jobs)
            noise = self.host.read_noise(cluster_name, variants.keys())
        return Plan(
            jobs=tuple(jobs),
            skipped=skipped,
            hours=sum(hours_by_case.values()),
            limit=self.limit,
            runs=runs,
            variants=variants,
            noise=noise,
            allocations=allocations,
        )

    def _find_requested_runs(self, selected: Sequence[Key]) -> dict[str, int]:
        """Return the runs that suite files require, by configuration id, if several.

        The number is capped at `--llmb-repeats`.
        """
        if self.launch.purpose is not Purpose.MEASURE:
            return {}
        runs = {}
        for key in selected:
            if key in self.catalog.required_runs:
                required = self.catalog.required_runs[key].runs
                runs[key.id] = min(required, self.launch.repeats)
        return {case: count for case, count in runs.items() if count > 1}

    @property
    def limit(self) -> float:
        """The GPU-hours that one session may use."""
        return self.cluster.gpu_hours or DEFAULT_HOURS

    def restore_job(self, spec: JobSpec) -> PlannedJob:
        """Rebuild the planned job of a specification that an earlier session submitted.

        Raises LaunchError if no baseline file describes its launch any more.
        """
        facts = self.facts.get((spec.key.recipe, spec.key.release))
        if facts is None:
            raise LaunchError(
                f"{spec.case_id}: no baseline file contains its launch command (any more): add the folder of the file with --llmb-baselines"
            )
        return PlannedJob(spec, facts)

    def plan_job(self, key: Key, purpose: Purpose) -> PlannedJob:
        """Plan the job of a configuration.

        Raises LaunchError if the recipe does not support `purpose`.
        """
        (baseline, *_) = self.catalog.baselines[key]
        facts = self.facts[key.recipe, key.release]
        # the options belong to the purpose of the launch; any other job, such as the
        # profile of a regression, uses the defaults
        launch = self.launch if purpose is self.launch.purpose else LaunchSettings()
        checkpoint = None  # the folder to load
        if launch.checkpoint:
            checkpoint = self.host.directory / launch.checkpoint
        profile = parse_profile(launch.profile if purpose is Purpose.PROFILE else "")
        variables = build_variables(
            facts, purpose, key, profile=profile, checkpoint=checkpoint
        )
        spec = build_job(
            baseline,
            facts,
            self.cluster,
            caller=self.host.environment,
            purpose=purpose,
            variables=variables,
            launcher=self.launch.launcher,
        )
        return PlannedJob(self.schedulers.find(spec).adapt_command(spec), facts)

    def plan_variants(
        self, jobs: Sequence[PlannedJob]
    ) -> dict[str, tuple[PlannedJob, ...]]:
        """Plan a job for each variant of each configuration, in variant order.

        Empty if the launch has no variants. Raises LaunchError.
        """
        if self.launch.purpose not in TRIALS:
            return {}
        variant_jobs: dict[str, tuple[PlannedJob, ...]] = {}
        for job in jobs:
            variants = tuple(
                self._plan_variant(job, variant) for variant in self.list_variants(job)
            )
            refuse_same(variants)
            variant_jobs[job.spec.case_id] = variants
        return variant_jobs

    def _plan_variant(self, job: PlannedJob, variant: Variant) -> PlannedJob:
        """Plan the job of a variant, as if the variant were installed on the cluster."""
        original_cluster = self.cluster
        try:
            # plan_job reads the installed recipe from self.cluster
            self.cluster = install_variant(
                variant,
                job,
                original_cluster,
                journal=self.host.folder,
                run=self.host.run,
            )
            spec = self.plan_job(job.spec.key, self.launch.purpose).spec
            refuse_ineffective(variant, spec, self.host.environment)
            (installed, *_) = self.cluster.installed  # the variant comes first
            folder = installed.folder
            if self.builds.build and folder:
                spec = replace(
                    spec,
                    build=self.builds.build,
                    checkout=find_checkout(folder, self.host.folder),
                )
        finally:
            self.cluster = original_cluster
        command = (*spec.command, *variant.arguments)
        return replace(job, spec=replace(spec, variant=variant.name, command=command))

    def list_reruns(self, plan: Plan) -> Reruns:
        """Summarise the jobs that a session may start after the first runs of its plan."""
        launch = self.launch
        profile_hours = 0.0
        if launch.profile_on_regression:
            profile_hours = sum(
                self._estimate_profile(job.spec.key) for job in plan.jobs
            )
        hours_by_case = {job.spec.case_id: job.spec.gpu_hours for job in plan.jobs}
        suspect_hours = sum(hours_by_case[suspect.case] for suspect in plan.suspects)
        return Reruns(
            repeats=launch.repeats,
            retries=launch.retries,
            profile_hours=profile_hours,
            node_checks=bool(launch.node_checks),
            suspect_hours=suspect_hours,
        )

    def _estimate_profile(self, key: Key) -> float:
        """Return the GPU-hours of a profile, or 0 if the recipe cannot be profiled."""
        try:
            return self.plan_job(key, Purpose.PROFILE).spec.gpu_hours
        except LaunchError:
            return 0.0

    def plan_node_check(self, spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
        """Build the job of the site's node check on suspect nodes."""
        return build_node_check(self.launch.node_checks, spec, self.cluster, nodes)

    def list_node_remarks(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Return the scheduler's remarks on nodes out of service, by node name.

        Empty if no scheduler answers: remarks only annotate a verdict.
        """
        try:
            return self.schedulers.list_node_remarks(nodes)
        except LaunchError:
            return {}

    def find_problems(self, plan: Plan) -> tuple[LaunchProblem, ...]:
        """Find the problems that would make the plan fail.

        Problems of a check that the user ignores (--llmb-ignore) are printed instead of
        returned, and the name of the check is kept in `overruled`. Also prints
        variables without effect, and the builds of a search that have no script: these
        builds are not checked, but count as failed runs.
        """
        without_script = find_without_script(plan.variants, self.host.folder)
        for job in without_script:
            skipped = f"{job.spec.variant} has no script in {job.spec.directory}"
            self.host.tell(_wrap(f"{skipped}: skipped, as a failed run"))
        jobs = [job for job in plan.every_job if job not in without_script]
        problems = check_launch(jobs, self.cluster, self.schedulers)
        ignored = self.launch.ignored
        overruled = [problem for problem in problems if problem.check in ignored]
        self.overruled = tuple(
            dict.fromkeys(str(problem.check) for problem in overruled)
        )
        for line in self._list_ineffective(plan):
            self.host.tell(line)
        for problem in overruled:
            self.host.tell(describe_overruled(problem))
        return tuple(problem for problem in problems if problem not in overruled)

    def _list_ineffective(self, plan: Plan) -> Iterator[str]:
        """Yield a line for each profile, trace or checkpoint variable without effect."""
        lines: list[str] = []
        for job in plan.jobs:
            installed = find_installed(job.spec.key, self.cluster)
            pairs = self.cluster.environment
            if installed:
                pairs = (*pairs, *installed.environment)
            names = [*self.host.environment, *(name for name, _ in pairs)]
            lines += explain_ineffective(
                job.facts, job.spec.purpose, dict.fromkeys(names)
            )
        return map(_wrap, dict.fromkeys(lines))  # without duplicates

    def find_cluster_name(self, jobs: Sequence[PlannedJob]) -> str:
        """Return the name of the cluster under which the noise of these jobs is stored.

        The name of this host for local jobs; "" if unknown.
        """
        try:
            return self.schedulers.find_cluster_name(jobs)
        except LaunchError:
            return ""

    @cached_property
    def schedulers(self) -> Schedulers:
        """The schedulers that this machine can reach."""
        return Schedulers(Tools(self.host.run, self.host.environment))


def _read_installed(name: str, folder: Path) -> InstalledRecipe:
    """Read `grok1-25.05` or `grok1`, the name of an installed recipe in an option."""
    recipe, _, release = name.partition("-")
    return InstalledRecipe(recipe, release, folder)


def _explain_nothing_fits(skipped: Mapping[Key, str], cluster: Cluster) -> str:
    """Explain why no selected configuration fits, with the configurations per reason."""
    by_reason: dict[str, list[str]] = {}
    for key, reason in skipped.items():
        by_reason.setdefault(reason, []).append(key.id)
    target = cluster.name or "this machine"
    hint = "describe the cluster in cluster.yaml (docs/reference/cluster.md), or give llmb-run's folder with --llmb-cluster=DIR"
    if cluster.source:
        target = cluster.source.name
        hint = f"see {cluster.source}"
    subject = "the selected configuration does not fit"
    if len(skipped) > 1:
        subject = f"none of the {len(skipped)} selected configurations fits"
    lines = [f"nothing was launched: {subject} {target}:"]
    lines += [
        f"  {formatting.count_noun(len(ids), 'configuration')}: {reason}"
        for reason, ids in by_reason.items()
    ]
    return "\n".join(_wrap(line) for line in (*lines, hint))


def _wrap(line: str) -> str:
    """Wrap a line to the terminal; continuation lines are indented."""
    return textwrap.fill(
        line,
        79,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
