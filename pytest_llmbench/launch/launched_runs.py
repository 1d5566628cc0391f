"""Find and judge the runs that launched jobs left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from msgspec import structs

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.job_records import (
    STEPLESS,
    TRIALS,
    Blame,
    Job,
    JobEnd,
    JobSpec,
    LaunchFacts,
    Phase,
    Purpose,
)
from pytest_llmbench.core.judgement_records import DecisionRule, Evidence, Judgement
from pytest_llmbench.core.log_records import VARIANT_MARK, Quote
from pytest_llmbench.core.node_records import MeasuredRun
from pytest_llmbench.core.outcome_records import Case, ConfigurationResult
from pytest_llmbench.core.run_records import Measurement, Run, RunKeys, StoredRun
from pytest_llmbench.core.stall_limits import StallPosition
from pytest_llmbench.core.statements import NodeFinding
from pytest_llmbench.core.trial_records import TrialTime
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.judge.budgets import apply_checkpoint_budgets
from pytest_llmbench.judge.estimate import bound_run_rounding
from pytest_llmbench.judge.node_findings import judge_nodes
from pytest_llmbench.judge.run_selection import find_unusable
from pytest_llmbench.launch.job_secrets import has_unknown_secrets, hide_in_quote
from pytest_llmbench.launch.plan.job_spec import CHECK_OUTPUT, find_container_image
from pytest_llmbench.launch.plan.purpose import find_outputs
from pytest_llmbench.launch.policies.run_history import (
    Confirmation,
    EndedJob,
    RunProblem,
    describe_hung,
    get_nodes,
)
from pytest_llmbench.launch.schedulers.job_states import find_blame
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import (
    has_logs_in_folder,
    keep_logs,
)
from pytest_llmbench.launch.schedulers.submission import estimate_submission
from pytest_llmbench.logs.quoted_lines import DRIVER_ERROR, find_lines, read_last_lines
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.session.catalog import Catalog, select_tolerance
from pytest_llmbench.session.collect_runs import ingest, ingest_job
from pytest_llmbench.session.evaluate import (
    Measured,
    apply_acknowledged_levels,
    collect_evidence,
    measure_runs,
)
from pytest_llmbench.session.node_history import compare_with_history
from pytest_llmbench.session.outcomes import JudgedConfigurations, judge_case
from pytest_llmbench.session.settings import Settings

# the reason a run is invalid, by the final state of its job; other states: job-failed
REASONS = {
    "TIMEOUT": Reason.INCOMPLETE,
    "COMPLETED": Reason.FAILED_STEP,
    "CANCELLED": Reason.CANCELLED,
}


CURRENT_RUN = 0  # the number of a run that the history has not stored

QUOTED_LINES = 3  # lines quoted from driver errors and node checks

# the purposes of jobs that leave no files to list, such as profiles or checkpoints
WITHOUT_FILES = (Purpose.MEASURE, *TRIALS, *STEPLESS, Purpose.CONFIRM_NODES)

# the variables that name the folder of a recipe's results
STAGES = ("LLMB_WORKLOAD", "STAGE_PATH")


def skip_judgement(
    verdict: Verdict, reason: Reason, text: str, baseline: Baseline, settings: Settings
) -> Judgement:
    """Build the judgement of a configuration whose speed is not judged.

    `text` explains the `reason`. `baseline` provides only the limit and the tolerance.
    """
    tolerance = select_tolerance(settings, baseline)
    return Judgement(
        verdict,
        reason,
        (text,),
        baseline,
        baseline.step_seconds * tolerance.factor,
        tolerance,
    )


class LaunchedRuns:
    """Finds and judges the runs of one session's jobs.

    Runs with the same `session` and configuration are repeats of each other.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        session: str,
        choose_decision_rule: Callable[[Key], DecisionRule],
        now: Callable[[], datetime],
        *,
        facts: Mapping[str, LaunchFacts] = MappingProxyType({}),
        past: Mapping[Key, Sequence[StoredRun]] | None = None,
    ) -> None:
        """`facts` are by configuration id; `past` are the stored runs of the history."""
        self.settings = settings
        self.catalog = catalog
        self.session = session
        self.choose_decision_rule = choose_decision_rule
        self.now = now
        self.facts = facts
        self.past = past or {}
        self._evidence: dict[Key, tuple[Evidence, ...]] = {}
        self._launched_keys: RunKeys = frozenset()
        self.has_unknown_secrets = False
        """True if a log was found whose secrets are unknown."""

    def examine(
        self,
        job: Job,
        end: JobEnd,
        ended_before: Sequence[EndedJob] = (),
        suspect_nodes: Sequence[str] = (),
    ) -> EndedJob:
        """Build the record of an ended job, from its end and its log.

        The record contains the run, or the problem that prevents judging it. A run of
        an A/B or a bisection is also measured here, and its logs are marked on disk, so
        that no later session judges them. A run that was to confirm `suspect_nodes` as
        slow is compared with the history. `ended_before` are the earlier ended jobs of
        the configuration.
        """
        has_run = job.job_id and job.spec.purpose not in STEPLESS
        run = self.find_run(job) if has_run else None
        end = self._explain_end(job, end, run)
        ended = EndedJob(job, end, run, files=self.list_files(job))
        problem = _find_problem([*ended_before, ended])
        ended = structs.replace(ended, problem=problem)
        if run and end.blame is Blame.INFRASTRUCTURE:
            failed_nodes = self.list_failed_nodes(job, run)
            ended = structs.replace(ended, failed_nodes=failed_nodes)
        if run is None or ended.problem:
            return ended
        if job.spec.purpose in TRIALS:
            _mark_as_variant(run)
            time = self.measure_trial(job.spec.key, run)
            return structs.replace(ended, time=time)
        if suspect_nodes:
            confirmation = self.judge_suspect(job, run, suspect_nodes)
            return structs.replace(ended, confirmation=confirmation)
        return ended

    def _explain_end(self, job: Job, end: JobEnd, run: Run | None) -> JobEnd:
        """Complete the end of a failed job with the error line or last line of its log.

        If the log blames the infrastructure, the run is not to blame.
        """
        if run is None or end.blame is Blame.NONE:
            return end
        blame_in_log, quoted_line = self.read_ending(job, run)
        if end.blame is Blame.HUNG and _adds_nothing_to_stall(job, blame_in_log):
            return end
        blame = end.blame
        if end.blame is Blame.RUN and blame_in_log is Blame.INFRASTRUCTURE:
            blame = Blame.INFRASTRUCTURE
        return JobEnd(blame, formatting.join_clauses(end.text, quoted_line))

    def find_run(self, job: Job) -> Run | None:
        """Find the run with the job id of `job`, or None.

        The secrets in its quoted lines are masked. Logs of a run in a shared allocation
        are moved to the folder of the job first.
        """
        since = estimate_submission(job)
        if job.spec.allocation:
            _keep_logs(job, self.facts[job.spec.case_id].log, since)
        paths = [job.folder] if job.spec.allocation else list_log_paths(job)
        run = ingest_job(
            paths,
            job.scheduler_id,
            job.spec.key,
            self.catalog,
            self.now(),
            since=since,
        )
        if run is None:
            return None
        # else the same logs under --llmb-logs would count again, as an older run
        self._launched_keys |= run.same_run_keys
        run = _hide_quotes(run, job.spec)
        self.has_unknown_secrets |= has_unknown_secrets(job.spec)
        # if the log does not print the container image, that of the job
        environment = {**find_container_image(job.spec), **dict(run.found.environment)}
        found = structs.replace(
            run.found,
            launch=f"{self.session} {job.spec.case_id}",  # equal for all repeats
            modified=None,  # the job has ended: no file changes any more
            environment=tuple(environment.items()),
        )
        return structs.replace(run, found=found)

    @cached_property
    def _older_measurements(self) -> Measured:
        """The measurements of older runs under --llmb-logs, to estimate the noise."""
        now = self.now()
        runs = (
            ingest(self.settings, self.catalog, now).runs if self.settings.logs else ()
        )
        return measure_runs(runs, self.catalog, now)

    def judge(self, key: Key, runs: Sequence[Run]) -> ConfigurationResult:
        """Judge launched runs, newest first, with the configuration's decision rule.

        An acknowledged level, a change of step time that the user accepted, replaces
        the step time of the baseline.
        """
        evidence = apply_acknowledged_levels(
            self._gather_evidence({key: runs})[key], self.settings, self.catalog
        )
        decision_rule = self.choose_decision_rule(key)
        self._evidence[key] = tuple(
            structs.replace(baseline_evidence, decision_rule=decision_rule)
            for baseline_evidence in evidence
        )
        return judge_case(Case(key.id, key), self._evidence[key])

    def _gather_evidence(
        self, runs: Mapping[Key, Sequence[Run]]
    ) -> dict[Key, tuple[Evidence, ...]]:
        """Build the evidence for each baseline from launched runs and all older runs.

        The older runs supply the noise.
        """
        # other configurations, too: their older runs (under --llmb-logs, or in the
        # stored history `past`) estimate the noise of the cluster
        measured = {
            key: older_runs
            for key, older_runs in self._older_measurements.items()
            if any(older_runs) or key in self.past
        }
        for key, launched_runs in runs.items():
            measured[key] = self.measure_runs(key, launched_runs)
        return collect_evidence(
            measured, self.settings, self.catalog, self.now(), self.past
        )

    def gather_results(
        self, results: Mapping[Key, ConfigurationResult]
    ) -> JudgedConfigurations:
        """Return the results by configuration id, each with its evidence.

        Configurations that were not judged get the evidence of their older runs, as far
        as the noise needs it: no acknowledged levels are applied, because the noise does
        not depend on the level.
        """
        evidence = dict(self._evidence)
        unjudged = {key: () for key in results if key not in self._evidence}
        if unjudged:
            evidence = self._gather_evidence(unjudged) | evidence
        return JudgedConfigurations(
            {key.id: (result, evidence[key]) for key, result in results.items()}
        )

    def measure_runs(
        self, key: Key, runs: Sequence[Run]
    ) -> tuple[tuple[Measurement, ...], ...]:
        """Measure launched runs against each baseline, followed by older runs.

        Returns one tuple per baseline. Logs of this launch that are under --llmb-logs
        are not older runs: they would count twice.
        """
        now = self.now()
        by_baseline = []
        for baseline, older_measurements in zip(
            self.catalog.baselines[key], self._older_measurements[key], strict=True
        ):
            # as a fraction: 0.05 for 5 %
            tolerance = select_tolerance(self.settings, baseline).factor - 1
            launched_measurements = [
                measure(run, baseline, now, tolerance=tolerance) for run in runs
            ]
            earlier_measurements = [
                measurement
                for measurement in older_measurements
                if measurement.run.same_run_keys.isdisjoint(self._launched_keys)
            ]
            by_baseline.append((*launched_measurements, *earlier_measurements))
        return tuple(by_baseline)

    def judge_invalid(
        self, key: Key, reason: Reason, text: str, run: Run | None
    ) -> Judgement:
        """Build the judgement of a job whose speed is not judged.

        The verdict is INVALID, unless the job did what it was launched for
        (PURPOSE_DONE), such as saving a checkpoint. Then the verdict is NOT_COMPARABLE,
        or that of the time budgets for checkpoints in the baseline file.
        """
        baseline, *further_baselines = self.catalog.baselines[key]
        is_done = reason is Reason.PURPOSE_DONE
        if is_done:  # use the first baseline with budgets, if there is one
            candidates = (baseline, *further_baselines)
            with_budgets = (candidate for candidate in candidates if candidate.budgets)
            baseline = next(with_budgets, baseline)
        verdict = Verdict.NOT_COMPARABLE if is_done else Verdict.INVALID
        judgement = skip_judgement(verdict, reason, text, baseline, self.settings)
        if run is None or not run.attempts:
            return judgement
        measurement = measure(run, baseline, self.now())
        judgement = structs.replace(judgement, measurement=measurement)
        if is_done:
            return apply_checkpoint_budgets(judgement, [measurement])
        return judgement

    def measure_trial(self, key: Key, run: Run) -> TrialTime:
        """Measure the step time of one run of a variant.

        Without a measurement, the trial time contains the reason.
        """
        # in a resumed session the logs are marked already, which excludes the run
        if run.found.excluded is Reason.VARIANT:
            found = structs.replace(run.found, excluded=None, excluded_because="")
            run = structs.replace(run, found=found)
        first_baseline, *_ = self.catalog.baselines[key]
        measurement = measure(run, first_baseline, self.now(), step_time_only=True)
        problem = find_unusable(measurement)
        if problem:
            return TrialTime(None, problem.text)
        return TrialTime(
            measurement.statistic_seconds, rounding=bound_run_rounding(measurement)
        )

    def judge_nodes(
        self,
        result: ConfigurationResult,
        nodes: Mapping[str, tuple[str, ...]],
        confirmations: Sequence[Run] = (),
        confirmed_nodes: Collection[str] = (),
    ) -> NodeFinding:
        """Find slow and suspect nodes by comparing the judged runs of a verdict.

        `nodes` are the nodes of each run, by run id. `confirmations` are runs on suspect
        nodes, which are not judged. `confirmed_nodes` are the nodes that the history and
        a confirmation show to be slow.
        """
        evidence = result.pick_deciding(self._evidence[result.case.key])
        measured_confirmations = [
            measure(run, evidence.baseline, self.now()) for run in confirmations
        ]
        return judge_nodes(
            result.judgement,
            evidence,
            nodes,
            measured_confirmations,
            frozenset(confirmed_nodes),
        )

    def judge_suspect(self, job: Job, run: Run, nodes: Sequence[str]) -> Confirmation:
        """Compare a run on suspect nodes with the history that names them.

        A run that cannot be compared confirms nothing; the text contains the reason.
        """
        job_text = f"job {job.job_id} on these nodes"
        started = job.status.started if job.status else None
        if self.settings.history is None or started is None:
            return Confirmation(
                False, f"{job_text} was not compared: no history or start time"
            )
        # the history uses the window of one of the baselines: try each of them
        for baseline in self.catalog.baselines[job.spec.key]:
            measurement = measure(run, baseline, self.now())
            problem, seconds = find_unusable(measurement), measurement.statistic_seconds
            if problem or not seconds:
                reason = problem.text if problem else "no step time"
                return Confirmation(False, f"{job_text}: {reason}")
            measured_run = MeasuredRun(
                CURRENT_RUN,
                job.spec.case_id,
                baseline.window,
                started,
                job.job_id,
                seconds,
                frozenset(get_nodes(job)),
                frozenset(measurement.environment.items()),
            )
            try:
                comparison = compare_with_history(
                    self.settings.history, self.catalog.last_repair, measured_run, nodes
                )
            except HistoryError as error:
                return Confirmation(False, str(error), seconds)
            if comparison:  # else the history has no comparable days
                slowdown, is_confirmed = comparison
                difference = formatting.format_difference(1 + slowdown)
                text = f"{difference} in {job_text}"
                return Confirmation(is_confirmed, text, seconds)
        return Confirmation(
            False, f"{job_text} was not compared: no comparable run in the history"
        )

    def list_files(self, job: Job) -> tuple[Path, ...]:
        """List the profiles or checkpoints that a job was launched for."""
        spec = job.spec
        if spec.purpose in WITHOUT_FILES or not job.job_id:
            return ()
        submitted = job.status.submitted if job.status else None
        since = submitted.timestamp() if submitted else None  # skips older files
        folders = [*spec.log_folders, *_list_local_folders(job)]
        if job.log_folder:
            folders.insert(0, job.log_folder)
        # keys of a dictionary: in order, without duplicates
        files: dict[Path, None] = {}
        for folder in dict.fromkeys(folders):
            facts = self.facts[spec.case_id]
            outputs = find_outputs(folder, spec.purpose, facts, job.job_id, since)
            files |= dict.fromkeys(outputs)
        return tuple(files)

    def read_ending(self, job: Job, run: Run) -> tuple[Blame, str]:
        """Read how a run ended from its last log.

        Returns the blame, and a text that quotes the error line. Without an error line,
        returns `Blame.NONE`, and quotes the last line of the log.
        """
        attempt = run.attempts[-1]
        log, ending = attempt.files.log, attempt.log.ending
        if ending is None:
            last_line = "".join(
                hide_in_quote(line, job.spec) for line in read_last_lines(log, 1)
            )
            text = f"{log.name} is empty"
            if last_line:
                text = f"the last line of {log.name}: {last_line}"
            return Blame.NONE, text
        # if steps follow the error line, it is only a warning: the run is to blame
        blame = Blame.RUN if ending.went_on else find_blame(ending.code)
        return blame, formatting.describe_ending(ending, log.name)

    def list_failed_nodes(self, job: Job, run: Run) -> tuple[str, ...]:
        """List the job's nodes that its log reports as failed."""
        ending = run.attempts[-1].log.ending if run.attempts else None
        nodes_of_job = job.status.nodes if job.status else ()
        if not ending or not nodes_of_job:
            return ()
        # the log may report a folded list, such as `n[1-3]`
        nodes_in_log = load_scheduler(job.spec.via).expand_nodes(ending.nodes)
        return tuple(node for node in nodes_in_log if node in nodes_of_job)

    def find_driver_errors(self, job: Job, run: Run) -> str:
        """Quote the last GPU driver errors in the logs of a run, with line numbers."""
        logs = [attempt.files.log for attempt in run.attempts]
        lines = [
            (log, number, text)
            for log in logs
            for number, text in find_lines(log, DRIVER_ERROR, QUOTED_LINES)
        ]
        return "; ".join(
            f"{log.name}:{number}: {hide_in_quote(text, job.spec)}"
            for log, number, text in lines[-QUOTED_LINES:]
        )

    def read_check(self, job: Job) -> str:
        """Quote the last lines that a node check printed."""
        file = job.spec.directory / CHECK_OUTPUT.format(job=job.job_id)
        lines = read_last_lines(file, QUOTED_LINES)
        return " | ".join(hide_in_quote(line, job.spec) for line in lines)


def _keep_logs(job: Job, template: str, since: datetime) -> None:
    """Move the logs of a run in a shared allocation to the job's own folder.

    Later runs in the allocation would overwrite the logs. `template` is the end of a
    log's path (`logs/{job}/run.log`); the moved logs keep as many components of their
    paths. Files that are older than `since` belong to another run.
    """
    if has_logs_in_folder(job):  # moved before
        return
    runs = find_runs([path for path in job.spec.log_folders if path_exists(path)]).runs
    runs_of_job = [
        run
        for run in runs
        if run.job_id == job.scheduler_id
        and not (run.modified and run.modified < since)
    ]
    files = []
    for run in runs_of_job:
        for attempt in run.attempts:
            files += [path for path in (attempt.log, attempt.err) if path]
    kept_components = template.count("/") + 1
    keep_logs(job, dict.fromkeys(files), kept_components)


def _hide_quotes(run: Run, spec: JobSpec) -> Run:
    """Mask the secrets of a job in all lines quoted from its logs."""

    def hide(quote: Quote) -> Quote:
        return hide_in_quote(quote, spec)

    attempts = (
        structs.replace(attempt, log=attempt.log.with_quotes(hide))
        for attempt in run.attempts
    )
    return structs.replace(run, attempts=tuple(attempts))


def _list_local_folders(job: Job) -> tuple[Path, ...]:
    """List the folders where a job on this machine may leave files.

    For a cluster job the folders are unknown.
    """
    if not load_scheduler(job.spec.via).is_local:
        return ()
    stages = (
        Path(value) for name, value in job.spec.environment if name in STAGES and value
    )
    return (*stages, job.spec.directory)


def list_log_paths(job: Job) -> list[Path]:
    """List the folders and files that may contain a job's log.

    The file that the scheduler itself writes comes last.
    """
    output = load_scheduler(job.spec.via).find_output(job)
    paths = [job.log_folder, *job.spec.log_folders, job.folder, output]
    return list(dict.fromkeys(path for path in paths if path is not None))


# --- run problems ---------------------------------------------------------------------


def _adds_nothing_to_stall(job: Job, blame_in_log: Blame) -> bool:
    """True if the end of a hung job's log need not be quoted.

    That is the case if the log only shows that we cancelled the job, or if it shows no
    error after a step. Before the first step, the last line of the log may explain the
    stall.
    """
    if blame_in_log is Blame.CANCELLED:
        return True
    stall = job.status.stall if job.status else None
    has_stepped = stall is not None and stall.place is not StallPosition.START
    return blame_in_log is Blame.NONE and has_stepped


def _find_problem(ended: Sequence[EndedJob]) -> RunProblem | None:
    """Return the reason the last of these jobs has no run to judge, or None.

    The jobs before it are earlier jobs of its configuration.
    """
    *_, last = ended
    job, end, run = last.job, last.end, last.run
    if job.refused:
        # drop the configuration id, which the report shows anyway
        text = job.problem.replace(f"{job.spec.case_id}: ", "", 1)
        return RunProblem(Reason.NOT_SUBMITTED, text)
    if end.blame is Blame.HUNG:
        return RunProblem(Reason.HUNG, describe_hung(ended))
    # the scheduler purged the record of the job: only its log shows whether it failed
    is_record_lost = job.status is not None and job.status.phase is Phase.UNKNOWN
    if end.blame is not Blame.NONE and not is_record_lost:
        return RunProblem(_find_reason(job), end.text)
    if run is None:
        reason = Reason.JOB_LOST if is_record_lost else Reason.LOG_MISSING
        return RunProblem(reason, _describe_missing_log(job))
    key = run.identity.key
    if key != job.spec.key:
        actual = key.id if key else run.identity.because
        text = f"launched as {job.spec.case_id}, but its log shows: {actual}"
        return RunProblem(Reason.WRONG_CONFIGURATION, text)
    return None


def _find_reason(job: Job) -> Reason:
    """Return the reason code of a failed job, from its final state and its nodes."""
    reason = REASONS.get(job.status.state if job.status else "", Reason.JOB_FAILED)
    if reason is Reason.CANCELLED and not get_nodes(job):
        # without nodes it never ran, although accounting records a start time
        return Reason.NEVER_STARTED
    return reason


def _describe_missing_log(job: Job) -> str:
    folders = filter(None, (job.log_folder, *job.spec.log_folders))
    names = formatting.join_first([str(folder) for folder in folders])
    location = names or job.spec.directory
    return f"job {job.job_id} left no log under {location}"


def _mark_as_variant(run: Run) -> None:
    """Create a marker file next to each log of a variant's run.

    The markers keep later sessions from judging the run.
    """
    for attempt in run.attempts:
        log = attempt.files.log
        marker = log.with_name(log.name + VARIANT_MARK)
        try:
            marker.touch()
        except OSError as error:
            raise OSError(error.errno, f"{marker}: {error.strerror}") from error
