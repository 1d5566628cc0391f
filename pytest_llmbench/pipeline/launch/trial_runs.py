"""Runs of variants of a configuration on the same nodes: what each was, and the run that follows from all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Case, NextTrial, Noise, Reason, Run, Trial, TrialOutcome, TrialReport
from pytest_llmbench.core.models.jobs import Blame, Job, JobEnd, JobSpec
from pytest_llmbench.core.models.trials import VARIANT_MARK
from pytest_llmbench.pipeline.launch.configuration_progress import ConfigurationProgress, get_nodes, join_texts
from pytest_llmbench.pipeline.launch.named_nodes import pin_nodes
from pytest_llmbench.pipeline.launch.rerun_policy import LaunchProgress
from pytest_llmbench.pipeline.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.launch.follow import NextJob
    from pytest_llmbench.launch.preflight.plan import PlannedJob

# whose failure it was that a job left no run: the variant's own, and every other is made again
OWN = (Blame.RUN, Blame.HUNG)


class TrialAnswer(NamedTuple):
    """What the runs say in the end."""

    text: str
    reason: Reason  # PURPOSE_DONE where nothing is red
    failed: bool = False  # the last run that failed says why
    report: TrialReport | None = None


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
        cluster: str = "",
        earlier: Mapping[str, Noise] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Take the jobs of the variants by configuration id, in their order, and what every launch takes; the name of
        the cluster, and by configuration id what earlier A/Bs say of the noise on it."""
        super().__init__([specs[0] for specs in variants.values()], *further, **settings)
        self._cluster, self._earlier = cluster, earlier
        self._variants = variants
        self._trials: dict[str, dict[int, Trial]] = {case: {} for case in variants}
        self._problems: dict[str, dict[int, str]] = {case: {} for case in variants}

    @abstractmethod
    def choose_step(
        self, trials: Sequence[Trial], names: Sequence[str], earlier: Noise | None = None
    ) -> NextTrial | TrialAnswer:
        """Return which variant runs next, or what all of the trials say; `earlier` is the noise of earlier A/Bs."""

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
        outcome, milliseconds, problem = TrialOutcome.LOST, None, failure.text if failure else ""
        if kept is not None:
            _mark(kept)
            seconds, problem = self._judge.measure_trial(job.spec.key, kept)
            outcome = TrialOutcome.MEASURED if seconds else TrialOutcome.DOES_NOT_RUN
            if seconds and (elsewhere := _describe_other_nodes(get_nodes(job), self._find_nodes(progress))):
                outcome, seconds, problem = TrialOutcome.LOST, None, elsewhere
            milliseconds = seconds * 1000 if seconds else None
        elif end.blame in OWN or (failure and failure.reason is Reason.WRONG_CONFIGURATION):
            outcome = TrialOutcome.DOES_NOT_RUN
        self._trials[case][job.repeat] = Trial(names.index(job.spec.variant), outcome, milliseconds)
        self._problems[case][job.repeat] = problem

    def _list_names(self, case: str) -> list[str]:
        return [spec.variant for spec in self._variants[case]]

    def _decide(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return the run that is due; where none is, keep what all of them say."""
        from pytest_llmbench.launch.follow import NextJob

        case = progress.spec.case_id
        trials = self._trials[case]
        in_order = [trials[number] for number in sorted(trials)]
        step = self.choose_step(in_order, self._list_names(case), self._earlier.get(case))
        nodes = self._find_nodes(progress)
        if isinstance(step, TrialAnswer):
            self._conclude(progress, step, nodes)
            return []
        number = max(job.repeat for job, _ in progress.jobs) + 1
        following = NextJob(_pin(self._variants[case][step.variant], nodes), 1, number)
        if not self._reserve([following], f"the {self.what} has no end"):
            text = f"the {self.what} has no end: a further run was not started"
            self._conclude(progress, TrialAnswer(text, Reason.PURPOSE_MISSED), nodes)
            return []
        progress.waiting = {number}
        return [following]

    def _find_nodes(self, progress: ConfigurationProgress) -> tuple[str, ...]:
        """Return the nodes of the first run that counts; none before it."""
        trials = self._trials[progress.spec.case_id]
        jobs = {job.repeat: job for job, _ in progress.jobs}
        counted = (jobs[number] for number in sorted(trials) if trials[number].outcome is TrialOutcome.MEASURED)
        return next((get_nodes(job) for job in counted), ())

    def _conclude(self, progress: ConfigurationProgress, answer: TrialAnswer, nodes: Sequence[str]) -> None:
        key = progress.spec.key
        text = f"{answer.text} (on {formatting.fold_nodes(nodes)})" if nodes else answer.text
        if answer.failed:
            problems = [problem for problem in self._problems[key.id].values() if problem]
            text = join_texts(text, *problems[-1:])
        missed = answer.reason is Reason.PURPOSE_MISSED
        judgement = self._judge.judge_invalid(key, Reason.PURPOSE_MISSED if missed else Reason.PURPOSE_DONE, text, None)
        judgement = dataclasses.replace(judgement, reason=answer.reason)
        report = answer.report
        if report:
            earlier = self._earlier.get(key.id)
            report = dataclasses.replace(report, nodes=tuple(nodes), cluster=self._cluster, earlier=earlier)
        done = "" if missed else text
        progress.result = ConfigurationResult(Case(key.id, key), judgement, done=done, trials=report)

    def _add_jobs(self, progress: ConfigurationProgress) -> ConfigurationResult:
        result, case = super()._add_jobs(progress), progress.spec.case_id
        jobs = []
        for described, (job, _) in zip(result.jobs, progress.jobs, strict=True):
            trial = self._trials[case].get(job.repeat)
            seconds = trial.step_time_ms / 1000 if trial and trial.step_time_ms else None
            text = join_texts(job.spec.variant, self._problems[case].get(job.repeat, "") or described.text)
            jobs.append(dataclasses.replace(described, step_seconds=seconds, text=text))
        return dataclasses.replace(result, jobs=tuple(jobs))


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
