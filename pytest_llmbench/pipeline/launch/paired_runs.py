"""A/B of a configuration: its runs in the order of `judge.paired`, on the same nodes, and what they say in the end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Case, NextTrial, PairedAnswer, PairedOutcome, Reason, Run, Trial, TrialOutcome
from pytest_llmbench.core.models.jobs import Blame, Job, JobEnd, JobSpec
from pytest_llmbench.ingest.discover.names import VARIANT_MARK
from pytest_llmbench.pipeline.launch.configuration_progress import ConfigurationProgress, get_nodes, join_texts
from pytest_llmbench.pipeline.launch.node_checks import NODELIST
from pytest_llmbench.pipeline.launch.rerun_policy import LaunchProgress
from pytest_llmbench.pipeline.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.launch.follow import NextJob

WORDS = {
    PairedOutcome.SLOWER: "slower than",
    PairedOutcome.FASTER: "faster than",
    PairedOutcome.ALIKE: "alike within {margin} with",
    PairedOutcome.CANNOT_TELL: "cannot be told from",
    PairedOutcome.DOES_NOT_RUN: "does not run, and is not compared with",
    PairedOutcome.REFERENCE_DOES_NOT_RUN: "is not compared, for want of a run of",
    PairedOutcome.LOST: "is not compared, since two starts in a row failed, with",
}

WITHOUT_ANSWER = (PairedOutcome.DOES_NOT_RUN, PairedOutcome.REFERENCE_DOES_NOT_RUN, PairedOutcome.LOST)

# whose failure it was that a job left no run: the variant's own, and every other is made again
OWN = (Blame.RUN, Blame.HUNG)


class PairedProgress(LaunchProgress):
    """The progress of A/Bs, one for each launched configuration: each run that ended decides which one follows.

    A run is a trial by the number that its job has as a repeat; what is to follow is a function of the jobs alone, so
    a session that goes on takes the same next step. No run of it is judged against a baseline, or kept as a night.
    """

    def __init__(self, arms: Mapping[str, Sequence[JobSpec]], *further: Any, **settings: Any) -> None:
        """Take the jobs of the arms by configuration id, the reference first, and what every launch takes."""
        super().__init__([specs[0] for specs in arms.values()], *further, **settings)
        self._arms = arms
        self._trials: dict[str, dict[int, Trial]] = {case: {} for case in arms}
        self._problems: dict[str, dict[int, str]] = {case: {} for case in arms}

    def _start_again(self, job: Job, end: JobEnd, run: Run | None) -> NextJob | None:
        """Return nothing: what was lost is a trial, after which the order of the runs says what follows."""
        del job, end, run
        return None

    def _take(self, progress: ConfigurationProgress, job: Job, end: JobEnd, run: Run | None) -> None:
        super()._take(progress, job, end, run)
        kept, failure = progress.runs.pop(job.repeat, None), progress.failures.pop(job.repeat, None)
        case, names = job.spec.case_id, [spec.variant for spec in self._arms[job.spec.case_id]]
        outcome, milliseconds, problem = TrialOutcome.LOST, None, failure.text if failure else ""
        if kept is not None:
            _mark(kept)
            seconds, problem = self._judge.measure_trial(job.spec.key, kept)
            milliseconds = seconds * 1000 if seconds else None
            outcome = TrialOutcome.MEASURED if seconds else TrialOutcome.DOES_NOT_RUN
        elif end.blame in OWN or (failure and failure.reason is Reason.WRONG_CONFIGURATION):
            outcome = TrialOutcome.DOES_NOT_RUN
        self._trials[case][job.repeat] = Trial(names.index(job.spec.variant), outcome, milliseconds)
        self._problems[case][job.repeat] = problem

    def _decide(self, progress: ConfigurationProgress) -> list[NextJob]:
        """Return the run that is due; where none is, keep what the A/B says."""
        from pytest_llmbench.judge.paired import PairedSettings, next_step
        from pytest_llmbench.launch.follow import NextJob

        case = progress.spec.case_id
        arms, trials = self._arms[case], self._trials[case]
        step = next_step([trials[number] for number in sorted(trials)], PairedSettings(len(arms)))
        if not isinstance(step, NextTrial):
            self._conclude(progress, step)
            return []
        number = max(trials, default=0) + 1
        following = NextJob(_pin(arms[step.variant], self._find_nodes(progress)), 1, number)
        if not self._reserve([following], "the A/B has no end"):
            self._give_up(progress, "it has no end: a further run was not started")
            return []
        progress.waiting = {number}
        return [following]

    def _find_nodes(self, progress: ConfigurationProgress) -> tuple[str, ...]:
        """Return the nodes of the first run that counts; none before it."""
        trials = self._trials[progress.spec.case_id]
        jobs = {job.repeat: job for job, _ in progress.jobs}
        counted = (jobs[number] for number in sorted(trials) if trials[number].outcome is TrialOutcome.MEASURED)
        return next((get_nodes(job) for job in counted), ())

    def _conclude(self, progress: ConfigurationProgress, answers: Sequence[PairedAnswer]) -> None:
        case = progress.spec.case_id
        names = [spec.variant for spec in self._arms[case]]
        nodes = self._find_nodes(progress)
        where = f" on {formatting.fold_nodes(nodes)}" if nodes else ""
        text = "; ".join(f"{describe_answer(answer, names)}{where}" for answer in answers)
        if any(answer.outcome in WITHOUT_ANSWER for answer in answers):
            problems = [problem for problem in self._problems[case].values() if problem]
            self._give_up(progress, join_texts(text, *problems[-1:]))
            return
        slower = any(answer.outcome is PairedOutcome.SLOWER for answer in answers)
        judgement = self._judge.judge_invalid(progress.spec.key, Reason.PURPOSE_DONE, text, None)
        if slower:
            judgement = dataclasses.replace(judgement, reason=Reason.VARIANT_SLOWER)
        self._keep(progress, judgement, text)

    def _give_up(self, progress: ConfigurationProgress, text: str) -> None:
        judgement = self._judge.judge_invalid(progress.spec.key, Reason.PURPOSE_MISSED, f"A/B: {text}", None)
        self._keep(progress, judgement, "")

    def _keep(self, progress: ConfigurationProgress, judgement: Any, done: str) -> None:
        key = progress.spec.key
        progress.result = ConfigurationResult(Case(key.id, key), judgement, done=done)

    def _add_jobs(self, progress: ConfigurationProgress) -> ConfigurationResult:
        result, case = super()._add_jobs(progress), progress.spec.case_id
        jobs = []
        for described, (job, _) in zip(result.jobs, progress.jobs, strict=True):
            trial = self._trials[case].get(job.repeat)
            seconds = trial.step_time_ms / 1000 if trial and trial.step_time_ms else None
            text = join_texts(job.spec.variant, self._problems[case].get(job.repeat, "") or described.text)
            jobs.append(dataclasses.replace(described, step_seconds=seconds, text=text))
        return dataclasses.replace(result, jobs=tuple(jobs))


def describe_answer(answer: PairedAnswer, names: Sequence[str]) -> str:
    """Return what is said of an arm beside the reference, as `new is slower than good: +2.1 % (...), 3 pairs`."""
    from pytest_llmbench.judge.paired import MARGIN, REFERENCE

    words = WORDS[answer.outcome].format(margin=f"{MARGIN:.3g}".replace("0.01", "1 %"))
    verb = "" if words.startswith(("is ", "does ", "cannot ")) else "is "
    text = f"{names[answer.variant]} {verb}{words} {names[REFERENCE]}"
    estimate = answer.estimate
    if estimate is None:
        return text
    low, middle, high = (_format_change(value) for value in (estimate.low, estimate.difference, estimate.high))
    sure = f"{100 * (1 - 2 * estimate.level):.3g} %"
    pairs = formatting.count_noun(answer.pairs, "pair")
    smallest = f"; {estimate.smallest:.1%} would be shown in 4 of 5 A/Bs".replace("%", " %")
    return f"{text}: {middle} ({sure}: {low} to {high}), {pairs}" + (
        smallest if answer.outcome is PairedOutcome.CANNOT_TELL else ""
    )


def _format_change(logarithm: float) -> str:
    return f"{math.expm1(logarithm):+.2%}".replace("%", " %")


def _pin(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that gets exactly these nodes; as it is without any, and on this machine."""
    if not nodes or spec.via == "local" or len(nodes) != spec.nodes:
        return spec
    options = [option for option in spec.sbatch_options if not option.startswith(NODELIST)]
    return dataclasses.replace(spec, exclude=(), sbatch_options=(*options, f"{NODELIST}{','.join(nodes)}"))


def _mark(run: Run) -> None:
    """Leave a mark beside each log of a run, so that whoever reads them later takes it for no night of its recipe."""
    for attempt in run.attempts:
        log = attempt.files.log
        mark = log.with_name(log.name + VARIANT_MARK)
        try:
            mark.touch()
        except OSError as error:
            raise OSError(error.errno, f"{mark}: {error.strerror}") from error
