"""What a session judged, and what becomes of each selected configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Key, Recipe
from pytest_llmbench.core.codes import JUDGED, MAY_PASS, NoteCode, Reason, Verdict
from pytest_llmbench.core.job_records import PlannedHours
from pytest_llmbench.core.judgement_records import Evidence, Judgement, RequiredRuns
from pytest_llmbench.core.outcome_records import (
    Case,
    Check,
    CheckKind,
    ConfigurationResult,
    Finding,
    Outcome,
    Silence,
    Status,
    UnmatchedRun,
)
from pytest_llmbench.core.run_records import IgnoredFile, Measurement, Note, StoredRun
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.item_status import decide_status, pick_worst
from pytest_llmbench.session.catalog import is_required
from pytest_llmbench.session.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.core.statements import SharedShift


@dataclass(frozen=True, slots=True)
class JudgedConfigurations:
    """The results of a session, each with the evidence against each of its baselines.

    The passes that look at all configurations together return a changed copy (`map`,
    `map_newest`).
    """

    by_id: Mapping[str, tuple[ConfigurationResult, tuple[Evidence, ...]]]
    """By item id; of several runs of one configuration the newest comes first."""
    shift: SharedShift | None = None
    """What most of them have in common, once somebody has looked for it."""

    @property
    def results(self) -> dict[str, ConfigurationResult]:
        """The results by item id."""
        return {name: result for name, (result, _) in self.by_id.items()}

    @property
    def newest(self) -> dict[Key, tuple[ConfigurationResult, Evidence]]:
        """For each key the result of its newest run, and the evidence that its deciding
        verdict was reached from."""
        newest: dict[Key, tuple[ConfigurationResult, Evidence]] = {}
        for result, evidence in self.by_id.values():
            if result.case.key not in newest:
                newest[result.case.key] = (result, result.pick_deciding(evidence))
        return newest

    @property
    def judgements(self) -> dict[Key, tuple[Judgement, ...]]:
        """For each key the judgements of its newest run, that which decides first."""
        return {
            key: (result.judgement, *result.others)
            for key, (result, _) in self.newest.items()
        }

    def map(
        self,
        change: Callable[
            [ConfigurationResult, tuple[Evidence, ...]], ConfigurationResult
        ],
    ) -> JudgedConfigurations:
        """Return these configurations with each result changed; the evidence stays."""
        return replace(
            self,
            by_id={
                name: (change(result, evidence), evidence)
                for name, (result, evidence) in self.by_id.items()
            },
        )

    def map_newest(
        self, change: Callable[[Judgement, Evidence], Judgement]
    ) -> JudgedConfigurations:
        """Return these configurations with the deciding judgement of each one's newest
        run changed."""
        newest = {result.case.id for result, _ in self.newest.values()}

        def change_newest(
            result: ConfigurationResult, evidence: tuple[Evidence, ...]
        ) -> ConfigurationResult:
            if result.case.id not in newest:
                return result
            return replace(
                result,
                judgement=change(result.judgement, result.pick_deciding(evidence)),
            )

        return self.map(change_newest)


@dataclass(frozen=True, slots=True)
class SessionResults:
    """Results by item id, and the runs behind them."""

    configurations: Mapping[str, ConfigurationResult]
    unmatched: tuple[UnmatchedRun, ...]
    runs_found: int
    runs_before_since: int
    ignored: tuple[IgnoredFile, ...]
    measurements: Mapping[Key, tuple[Measurement, ...]]
    """Newest first, every run of a configuration against the baseline that decides.
    They stay with the process that read the logs: a worker gets none."""
    checks: tuple[Check, ...] = ()
    """What is said of several configurations together, or of the gate itself."""
    remarks: tuple[str, ...] = ()
    """Lines for the summary."""
    drafted: tuple[Recipe, ...] = ()
    """In a session that records, the baselines that it made for runs that matched
    none."""
    tables: tuple[Recipe, ...] = ()
    """The shipped tables that were read since a run may be of them."""
    on_demand: frozenset[Key] = frozenset()
    """The configurations of tables, which `all` does not require without a run."""
    required: frozenset[Key] = frozenset()
    """The configurations that a suite file asks for."""
    own: frozenset[Key] = frozenset()
    """The configurations that files of the user hold, not only those that are
    shipped."""
    silences: tuple[Silence, ...] = ()
    """The configurations that missed their turn."""
    newer_stored: Mapping[Key, StoredRun] = field(default_factory=dict)
    """For each configuration whose judged run is older the newest run that only the
    history knows."""
    hidden: tuple[IgnoredFile, ...] = ()
    """Files that are not read, and newer than the runs around them."""
    planned_hours: PlannedHours | None = None
    """The GPU-hours that were known before a launch; None without one, and for one that
    is only collected."""


# --- what becomes of an item ----------------------------------------------------------


def decide_outcomes(
    results: SessionResults,
    selected: Collection[str],
    settings: Settings,
    *,
    guarded: bool = False,
) -> tuple[Outcome, ...]:
    """Return what becomes of each selected item id; if none of them has a valid run,
    none of them is green.

    All of them fail then; where an item of its own says it (`guarded`), see
    `decide_guard`, only what is red by itself.
    """
    chosen_results = [results.configurations[identifier] for identifier in selected]
    judged = _list_judged_keys(chosen_results)
    chosen = [
        invalidate_if_newer_unmatched(result, results.unmatched, settings)
        for result in chosen_results
    ]
    done = judged or any(result.done for result in chosen_results)
    nothing = () if done else _explain_no_judged_run(results, len(chosen), settings)
    outcomes = []
    for result in chosen:
        status = _decide_status(result, judged, results, settings)
        if nothing and not (guarded and status is Status.SKIPPED):
            status = Status.FAILED
        outcomes.append(Outcome(result, status, nothing))
    return tuple(outcomes)


def decide_guard(
    checks: Sequence[Check], outcomes: Sequence[Outcome]
) -> tuple[Check, ...]:
    """Return checks with what that one says which is about nothing else than whether
    anything was judged: red where nothing was, unless runs are red themselves."""
    context = next((outcome.context for outcome in outcomes if outcome.context), ())
    if not context and outcomes:
        return tuple(checks)
    text = (
        formatting.join_sentences(context)
        or "nothing was judged: no configuration is selected"
    )
    invalid = [
        outcome
        for outcome in outcomes
        if outcome.failed and outcome.judgement.verdict is Verdict.INVALID
    ]
    status = Status.SKIPPED if invalid else Status.FAILED
    return tuple(
        replace(check, status=status, verdict=Finding.NOTHING_JUDGED, text=text)
        if check.kind is CheckKind.SOMETHING_JUDGED
        else check
        for check in checks
    )


def find_red_results(
    results: SessionResults, settings: Settings
) -> Iterator[ConfigurationResult]:
    """Yield the results that are red by themselves, whether their items are selected or
    not."""
    judged = _list_judged_keys(results.configurations.values())
    for result in results.configurations.values():
        shown = invalidate_if_newer_unmatched(result, results.unmatched, settings)
        if _decide_status(shown, judged, results, settings) is Status.FAILED:
            yield shown


def _list_judged_keys(results: Iterable[ConfigurationResult]) -> set[Key]:
    return {result.case.key for result in results if result.judgement.verdict in JUDGED}


def _decide_status(
    result: ConfigurationResult,
    judged: Collection[Key],
    results: SessionResults,
    settings: Settings,
) -> Status:
    """Return what becomes of an item, where `judged` are the configurations of which
    there is a verdict."""
    key = result.case.key
    in_doubt = key not in judged or result.judgement.verdict is Verdict.INCONCLUSIVE
    absent = key in results.on_demand and result.judgement.measurement is None
    patterns = [
        pattern for pattern in settings.require if pattern != "all" or not absent
    ]
    required = (key in results.required or is_required(key, patterns)) and in_doubt
    return decide_status(result.judgement, settings.rules, required=required)


def judge_case(case: Case, evidence: Sequence[Evidence]) -> ConfigurationResult:
    """Return the verdict on a case, the worst of those against each of its
    baselines."""
    from pytest_llmbench.judge.final_verdict import judge_evidence

    alone = bool(case.run_id)
    judgements = [judge_evidence(of_baseline, alone=alone) for of_baseline in evidence]
    return ConfigurationResult(case, *pick_worst(judgements, evidence[0].rules))


def _explain_no_judged_run(
    results: SessionResults, selected: int, settings: Settings
) -> tuple[str, ...]:
    """Say that nothing is green, and why: which runs were found, and what would match
    them."""
    begin = f"nothing was judged: no valid run of the {formatting.count_noun(selected, 'selected configuration')}"
    if settings.launch is not None:
        return (f"{begin}.",)
    if results.runs_found and results.runs_found == results.runs_before_since:
        return (
            begin,
            f"All of the {formatting.count_noun(results.runs_found, 'run')} started before --llmb-since.",
        )
    if not results.runs_found:
        others = (
            f", only {formatting.count_noun(len(results.ignored), 'other file')}"
            if results.ignored
            else ""
        )
        return (
            begin,
            f"There is no log (.out or .log) with a training step under the given paths{others}.",
        )
    return (
        begin,
        f"{formatting.count_noun(results.runs_found, 'run')} found: {_describe_runs(results)}.",
    )


def _describe_runs(results: SessionResults) -> str:
    """Return the runs with what keeps each from being judged, those of which the same
    is to be said together."""
    ids: dict[str, list[str]] = {}
    for stray in results.unmatched:
        near = f"nearest {stray.nearest[0].id}" if stray.nearest else ""
        ids.setdefault(
            "; ".join(filter(None, (stray.summary, near, stray.advice))), []
        ).append(stray.id)
    for judgement in (result.judgement for result in results.configurations.values()):
        if judgement.measurement:
            ids.setdefault(
                f"{judgement.baseline.key.id}: {judgement.verdict}", []
            ).append(judgement.measurement.run.id)
    shown = [
        f"{formatting.join_first(named)} ({why})"
        for why, named in list(ids.items())[:5]
    ]
    rest = sum(len(named) for named in list(ids.values())[5:])
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def invalidate_if_newer_unmatched(
    result: ConfigurationResult, unmatched: Sequence[UnmatchedRun], settings: Settings
) -> ConfigurationResult:
    """Return a result, INVALID where a newer run may be of its configuration: an older
    one must not stand for it."""
    measurement = result.judgement.measurement
    if measurement is None or result.case.run_id or settings.unmatched == "list":
        return result
    for stray in unmatched:
        is_candidate = result.case.key in stray.candidates
        if is_candidate and may_be_newer(stray, measurement):
            doubt = CodedStatement(
                StatementCode.NEWER_UNMATCHED, run=stray.id, text=stray.text
            )
            invalid = result.judgement.overrule(
                Verdict.INVALID, Reason.AMBIGUOUS, doubt
            )
            return replace(result, judgement=invalid)
    return result


def may_be_newer(stray: UnmatchedRun, judged: Measurement | None) -> bool:
    """Return True unless an unmatched run is known to be older than the judged run."""
    started = judged.run.started if judged else None
    return stray.started is None or started is None or stray.started > started


# --- how many runs a suite file asks for ----------------------------------------------


def apply_requirements(
    judged: JudgedConfigurations,
    required: Mapping[Key, RequiredRuns],
    fewer: int | None = None,
) -> JudgedConfigurations:
    """Return the results; one with fewer valid runs than a suite asks for is MISSING,
    unless it is red anyway.

    The runs of its evidence count that are not older than `max_age` allows. Where a
    launch was told to make `fewer`, and so many are there, the verdict stands, with a
    note of what is missing.
    """
    return judged.map(
        lambda result, evidence: _check_run_count(
            result, required.get(result.case.key), evidence[0], fewer
        )
    )


def _check_run_count(
    result: ConfigurationResult,
    asked: RequiredRuns | None,
    evidence: Evidence,
    fewer: int | None,
) -> ConfigurationResult:
    judgement = result.judgement
    if asked is None or judgement.verdict not in MAY_PASS:
        return result
    valid = sum(_is_countable(run, evidence) for run in evidence.measurements)
    if valid >= asked.runs:
        return result
    if fewer is not None and valid >= fewer:
        allowed = CodedStatement(
            StatementCode.FEWER_RUNS, valid=valid, required=asked, repeats=fewer
        )
        note = Note(NoteCode.FEWER_RUNS, allowed)
        return replace(result, judgement=judgement.add_notes(note))
    too_few = CodedStatement(
        StatementCode.TOO_FEW_RUNS,
        valid=valid,
        required=asked,
        statements=judgement.statements,
    )
    short = judgement.overrule(Verdict.MISSING, Reason.TOO_FEW_RUNS, too_few)
    return replace(result, judgement=short)


def _is_countable(run: Measurement, evidence: Evidence) -> bool:
    """Return True for a valid run that is not older than allowed; an undated one may
    be."""
    dated = run.run.started is not None or evidence.max_age is None
    return run.valid and dated and not evidence.is_too_old(run.run.started)
