"""Results of a session, and the outcomes of the selected configurations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

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


MOST_REASONS = 5
"""Maximum number of reasons in the explanation of a session without a judged run."""


class JudgedConfigurations(Struct, frozen=True):
    """The results of a session, with the evidence for each baseline.

    Later stages that compare all configurations return a changed copy (`map`,
    `map_newest`).
    """

    by_id: Mapping[str, tuple[ConfigurationResult, tuple[Evidence, ...]]]
    """The result and the evidence by item id.

    The newest run of a configuration comes first.
    """
    shift: SharedShift | None = None
    """The shift shared by most configurations, once it has been searched for."""

    @property
    def results(self) -> dict[str, ConfigurationResult]:
        """The results by item id."""
        return {name: result for name, (result, _) in self.by_id.items()}

    @property
    def newest(self) -> dict[Key, tuple[ConfigurationResult, Evidence]]:
        """The result of each key's newest run, with the evidence for the baseline that
        decided."""
        newest: dict[Key, tuple[ConfigurationResult, Evidence]] = {}
        for result, evidence in self.by_id.values():
            if result.case.key not in newest:
                newest[result.case.key] = (result, result.pick_deciding(evidence))
        return newest

    @property
    def judgements(self) -> dict[Key, tuple[Judgement, ...]]:
        """The judgements of each key's newest run, the deciding one first."""
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
        """Return a copy with each result changed; the evidence is kept."""
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
        """Return a copy in which the deciding judgement of each newest run is changed."""
        newest = {result.case.id for result, _ in self.newest.values()}

        def change_newest(
            result: ConfigurationResult, evidence: tuple[Evidence, ...]
        ) -> ConfigurationResult:
            """Change the judgement of a newest run; return other results unchanged."""
            if result.case.id not in newest:
                return result
            return replace(
                result,
                judgement=change(result.judgement, result.pick_deciding(evidence)),
            )

        return self.map(change_newest)


class SessionResults(Struct, frozen=True):
    """Results by item id, and the runs behind them."""

    configurations: Mapping[str, ConfigurationResult]
    unmatched: tuple[UnmatchedRun, ...]
    runs_found: int
    runs_before_since: int
    ignored: tuple[IgnoredFile, ...]
    measurements: Mapping[Key, tuple[Measurement, ...]]
    """All runs of each configuration against the deciding baseline, newest first.

    Only the process that read the logs has them; xdist workers do not.
    """
    checks: tuple[Check, ...] = ()
    """Checks on several configurations, or on the gate itself."""
    remarks: tuple[str, ...] = ()
    """Lines for the summary."""
    drafted: tuple[Recipe, ...] = ()
    """Baselines that a recording session drafted for unmatched runs."""
    tables: tuple[Recipe, ...] = ()
    """The shipped tables that were read because a run may belong to them."""
    keys_only_in_tables: frozenset[Key] = frozenset()
    """Configurations of tables; `--llmb-require=all` does not require runs of them."""
    required: frozenset[Key] = frozenset()
    """Configurations required by a suite file."""
    user_keys: frozenset[Key] = frozenset()
    """Configurations in the user's files, even if a shipped file contains them, too."""
    silences: tuple[Silence, ...] = ()
    """Configurations that did not run when they were due."""
    newer_stored: Mapping[Key, StoredRun] = field(default_factory=dict)
    """The newest stored run of each configuration whose judged run is older."""
    hidden: tuple[IgnoredFile, ...] = ()
    """Files that were not read although they are newer than the runs next to them."""
    planned_hours: PlannedHours | None = None
    """GPU-hours estimated before a launch; None without a launch or with
    --llmb-collect."""


# --- outcomes of items ----------------------------------------------------------------


def decide_outcomes(
    results: SessionResults,
    selected: Collection[str],
    settings: Settings,
    *,
    guarded: bool = False,
) -> tuple[Outcome, ...]:
    """Return the outcome of each selected item.

    If no selected item was judged, and no job served another purpose, all items fail.
    With `guarded`, the check SOMETHING_JUDGED fails instead (see `decide_guard`), and
    skipped items remain skipped.
    """
    selected_results = [results.configurations[identifier] for identifier in selected]
    judged_keys = _list_judged_keys(selected_results)
    checked_results = [
        invalidate_if_newer_unmatched(result, results.unmatched, settings)
        for result in selected_results
    ]
    # A job that served another purpose, such as a profile, needs no verdict.
    has_result = judged_keys or any(result.done for result in selected_results)
    explanation = (
        ()
        if has_result
        else _explain_no_judged_run(results, len(checked_results), settings)
    )
    outcomes = []
    for result in checked_results:
        status = _decide_status(result, judged_keys, results, settings)
        if explanation and not (guarded and status is Status.SKIPPED):
            status = Status.FAILED
        outcomes.append(Outcome(result, status, explanation))
    return tuple(outcomes)


def decide_guard(
    checks: Sequence[Check], outcomes: Sequence[Outcome]
) -> tuple[Check, ...]:
    """Return the checks with the status of SOMETHING_JUDGED decided.

    The check fails if nothing was judged or selected. It is skipped instead if an
    INVALID run fails the session already.
    """
    # `decide_outcomes` gives outcomes a context only if nothing was judged.
    explanation = next((outcome.context for outcome in outcomes if outcome.context), ())
    if outcomes and not explanation:
        return tuple(checks)
    text = (
        formatting.join_sentences(explanation)
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


def find_failed_results(
    results: SessionResults, settings: Settings
) -> Iterator[ConfigurationResult]:
    """Yield the results whose own verdict fails, selected or not."""
    judged_keys = _list_judged_keys(results.configurations.values())
    for result in results.configurations.values():
        current = invalidate_if_newer_unmatched(result, results.unmatched, settings)
        if _decide_status(current, judged_keys, results, settings) is Status.FAILED:
            yield current


def _list_judged_keys(results: Iterable[ConfigurationResult]) -> set[Key]:
    return {result.case.key for result in results if result.judgement.verdict in JUDGED}


def _decide_status(
    result: ConfigurationResult,
    judged_keys: Collection[Key],
    results: SessionResults,
    settings: Settings,
) -> Status:
    """Return the status of an item; `judged_keys` are the keys with a judged run.

    A required item fails if its configuration has no judged run or is INCONCLUSIVE.
    """
    key = result.case.key
    has_no_answer = (
        key not in judged_keys or result.judgement.verdict is Verdict.INCONCLUSIVE
    )
    # `--llmb-require=all` does not require runs of the configurations of tables.
    is_exempt = (
        key in results.keys_only_in_tables and result.judgement.measurement is None
    )
    patterns = [
        pattern for pattern in settings.require if pattern != "all" or not is_exempt
    ]
    required = key in results.required or is_required(key, patterns)
    return decide_status(
        result.judgement, settings.rules, required=required and has_no_answer
    )


def judge_case(case: Case, evidence: Sequence[Evidence]) -> ConfigurationResult:
    """Judge a case against each baseline; the worst verdict decides."""
    from pytest_llmbench.judge.final_verdict import judge_evidence

    alone = bool(case.run_id)
    judgements = [
        judge_evidence(baseline_evidence, alone=alone) for baseline_evidence in evidence
    ]
    return ConfigurationResult(case, *pick_worst(judgements, evidence[0].rules))


def _explain_no_judged_run(
    results: SessionResults, selected: int, settings: Settings
) -> tuple[str, ...]:
    """Return sentences on why nothing was judged: no runs, all too old, or others.

    `selected` is the number of selected configurations.
    """
    beginning = f"nothing was judged: no valid run of the {formatting.count_noun(selected, 'selected configuration')}"
    if settings.launch is not None:
        return (f"{beginning}.",)
    if results.runs_found and results.runs_found == results.runs_before_since:
        return (
            beginning,
            f"All of the {formatting.count_noun(results.runs_found, 'run')} started before --llmb-since.",
        )
    if not results.runs_found:
        other_files = (
            f", only {formatting.count_noun(len(results.ignored), 'other file')}"
            if results.ignored
            else ""
        )
        return (
            beginning,
            f"There is no log (.out or .log) with a training step under the given paths{other_files}.",
        )
    return (
        beginning,
        f"{formatting.count_noun(results.runs_found, 'run')} found: {_describe_runs(results)}.",
    )


def _describe_runs(results: SessionResults) -> str:
    """Name the runs, grouped by the reason for which they were not judged.

    Only the first MOST_REASONS reasons are listed; the other runs are counted.
    """
    ids_by_reason: dict[str, list[str]] = {}
    for unmatched in results.unmatched:
        nearest = f"nearest {unmatched.nearest[0].id}" if unmatched.nearest else ""
        ids_by_reason.setdefault(
            formatting.join_clauses(unmatched.summary, nearest, unmatched.advice), []
        ).append(unmatched.id)
    for judgement in (result.judgement for result in results.configurations.values()):
        if judgement.measurement:
            ids_by_reason.setdefault(
                f"{judgement.baseline.key.id}: {judgement.verdict}", []
            ).append(judgement.measurement.run.id)
    texts = [
        f"{formatting.join_first(names)} ({reason})"
        for reason, names in list(ids_by_reason.items())[:MOST_REASONS]
    ]
    remaining = sum(len(names) for names in list(ids_by_reason.values())[MOST_REASONS:])
    return ", ".join(texts) + (f" and {remaining} more" if remaining else "")


def invalidate_if_newer_unmatched(
    result: ConfigurationResult, unmatched: Sequence[UnmatchedRun], settings: Settings
) -> ConfigurationResult:
    """Return an INVALID result if a newer unmatched run may belong to the
    configuration.

    Otherwise, an older run would be judged in place of the unmatched run.
    """
    measurement = result.judgement.measurement
    # With --llmb-runs=each, a result is about one run and not about the newest one.
    is_about_one_run = bool(result.case.run_id)
    if measurement is None or is_about_one_run or settings.unmatched == "list":
        return result
    for run in unmatched:
        is_candidate = result.case.key in run.candidates
        if is_candidate and may_be_newer(run, measurement):
            doubt = CodedStatement(
                StatementCode.NEWER_UNMATCHED, run=run.id, text=run.text
            )
            invalid = result.judgement.overrule(
                Verdict.INVALID, Reason.AMBIGUOUS, doubt
            )
            return replace(result, judgement=invalid)
    return result


def may_be_newer(unmatched: UnmatchedRun, judged: Measurement | None) -> bool:
    """Return True unless an unmatched run is known to be older than the judged run."""
    started = judged.run.started if judged else None
    return unmatched.started is None or started is None or unmatched.started > started


# --- the number of runs that suite files require --------------------------------------


def apply_requirements(
    judged: JudgedConfigurations,
    required: Mapping[Key, RequiredRuns],
    fewer: int | None = None,
) -> JudgedConfigurations:
    """Apply the number of runs that suite files require.

    A verdict that may pass becomes MISSING if there are fewer valid runs. Only runs
    within `max_age` count. `fewer` is a smaller number of runs that the user chose for a
    launch: if there are as many, the verdict is kept with a note.
    """
    return judged.map(
        lambda result, evidence: _overrule_if_too_few(
            result, required.get(result.case.key), evidence[0], fewer
        )
    )


def _overrule_if_too_few(
    result: ConfigurationResult,
    required: RequiredRuns | None,
    evidence: Evidence,
    fewer: int | None,
) -> ConfigurationResult:
    """Overrule a pass with MISSING if there are fewer valid runs than required.

    Adds only a note if there are at least `fewer` runs, the number chosen by the user.
    """
    judgement = result.judgement
    if required is None or judgement.verdict not in MAY_PASS:
        return result
    valid = sum(_is_countable(run, evidence) for run in evidence.measurements)
    if valid >= required.runs:
        return result
    if fewer is not None and valid >= fewer:
        allowed = CodedStatement(
            StatementCode.FEWER_RUNS, valid=valid, required=required, repeats=fewer
        )
        note = Note(NoteCode.FEWER_RUNS, allowed)
        return replace(result, judgement=judgement.add_notes(note))
    too_few = CodedStatement(
        StatementCode.TOO_FEW_RUNS,
        valid=valid,
        required=required,
        statements=judgement.statements,
    )
    short = judgement.overrule(Verdict.MISSING, Reason.TOO_FEW_RUNS, too_few)
    return replace(result, judgement=short)


def _is_countable(run: Measurement, evidence: Evidence) -> bool:
    """True for a valid run within `max_age`; if there is no `max_age`, of any date."""
    is_dated = run.run.started is not None or evidence.max_age is None
    return run.valid and is_dated and not evidence.is_too_old(run.run.started)
