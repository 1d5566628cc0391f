"""Cautions: what a reader should know before trusting a passed session.

All cautions are made here. Options that weaken the gate are always reported. Options
that were not typed for this session are also reported if they merely differ from the
default, since a reader of the verdicts has not seen them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Tolerance,
    ToleranceSource,
)
from pytest_llmbench.core.codes import ABSENT, JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.option import Origin, Written, find_origin, name_destination
from pytest_llmbench.core.outcome_records import (
    Caution,
    CautionCode,
    Check,
    ConfigurationResult,
    UnmatchedRun,
)
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.core.tolerance import (
    DRIFT_BUDGET,
    find_reference,
    find_starting_value,
    is_beyond,
)
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.session.absences import (
    caution_without_verdict,
    list_absence_cautions,
)
from pytest_llmbench.session.catalog import Catalog, select_drift_budget
from pytest_llmbench.session.outcomes import (
    SessionResults,
    find_failed_results,
    may_be_newer,
)
from pytest_llmbench.session.settings import (
    ASSUMED_CV,
    CERTIFIED,
    DEFAULT_TOLERANCE,
    Settings,
)

if TYPE_CHECKING:
    from pytest_llmbench.report.outcome_documents import (
        ConfigurationOutcome,
        OutcomeDocument,
    )

MUCH_SLOWER = 0.05
"""Caution about recorded baselines that are slower than published ones by more.

They pass runs that the default tolerance would fail.
"""

Subject = tuple[str, str]
"""The subject of an item: the name of the built-in test, and the id of the case."""

PERFORMANCE_TEST = "test_performance"
"""The built-in test of the configurations."""

LOST_TIME = (
    NoteCode.WALL_CLOCK,
    NoteCode.SLOW_OUTSIDE_UNCOMPARED,
    NoteCode.SLOW_WARM_UP,
)
"""Notes on time lost outside of the steps.

The loss exceeds that of recorded runs, or would fail if a recording were available.
"""

MOST_NAMES = 3
"""Maximum number of names in a line."""


class Selection(Struct, frozen=True):
    """The selected and deselected items.

    `kept` maps the node id of each selected item to its subjects. `left_out` contains
    the subjects that pytest's selection (-k, -m) dropped, `deselected` those that
    --deselect, a conftest or a plugin removed.
    """

    kept: Mapping[str, tuple[Subject, ...]]
    left_out: tuple[Subject, ...] = ()
    deselected: tuple[Subject, ...] = ()

    def list_without(self, nodes: Collection[str]) -> tuple[Subject, ...]:
        """Return the selected subjects that belong to none of the items `nodes`."""
        covered_subjects = set(
            chain.from_iterable(
                subjects for node, subjects in self.kept.items() if node in nodes
            )
        )
        return tuple(
            subject
            for subject in dict.fromkeys(chain.from_iterable(self.kept.values()))
            if subject not in covered_subjects
        )


class JudgedSession(Struct, frozen=True):
    """A judged session with its settings and the observations of the pytest hooks."""

    described: Sequence[OutcomeDocument]
    """The outcome documents of the items."""
    results: SessionResults
    settings: Settings
    catalog: Catalog
    today: date
    noticed: Sequence[Caution]
    """Cautions that the pytest hooks observed."""
    unjudged: Sequence[str]
    """Node ids of items that were skipped before they had a verdict."""

    def get_origin(self, flag: str) -> Origin:
        """Return the origin of an option's value; by default, it was typed."""
        return find_origin(self.settings.origins, flag) or Origin(Written.TYPED, flag)


def find_cautions(session: JudgedSession) -> Iterator[Caution]:
    """Yield all cautions of a session.

    They report findings that do not fail, observations of the hooks, settings that
    weaken the gate, and items without a verdict. A session that records judges nothing,
    so that only findings and observations are reported.
    """
    from pytest_llmbench.report.outcome_documents import select_configurations
    from pytest_llmbench.report.verdicts import list_findings, select_worst

    outcomes = select_worst(session.described)
    yield from list_findings(outcomes)
    yield from session.noticed
    if session.settings.record is not None:  # nothing is judged
        return
    results = session.results.configurations
    configurations = select_configurations(outcomes)
    selected = [
        results[outcome.id] for outcome in configurations if outcome.id in results
    ]
    judgements = list(_list_judgements(selected))
    if judgements:
        yield from _list_tolerance_cautions(judgements, session.settings)
        yield from _list_acknowledgement_cautions(judgements, session)
        yield from _list_baseline_cautions(judgements, session)
        yield from _list_settings_cautions(session)
        yield from _list_changed_settings(judgements)
        yield from _list_lost_time(judgements)
    yield from list_absence_cautions(session.results, selected)
    yield from _list_outcome_cautions(configurations, session)


def _list_judgements(results: Sequence[ConfigurationResult]) -> Iterator[Judgement]:
    """Yield all judgements that are based on a run, for each baseline of a result."""
    for result in results:
        yield from (
            judgement
            for judgement in (result.judgement, *result.others)
            if judgement.verdict in JUDGED
        )


# --- settings and baselines -----------------------------------------------------------


def _list_tolerance_cautions(
    judgements: Sequence[Judgement], settings: Settings
) -> Iterator[Caution]:
    """Yield the tolerances that differ from the default.

    A tolerance that is stricter and was typed on the command line needs no caution.
    """
    expected = CERTIFIED if settings.certify else DEFAULT_TOLERANCE
    counts: dict[tuple[Tolerance, str], int] = {}
    for judgement in judgements:
        tolerance = judgement.tolerance
        if math.isclose(tolerance.factor, expected.factor) or _is_typed_and_stricter(
            tolerance, expected, settings
        ):
            continue
        file = Path(judgement.baseline.source.file).name
        origin = str(_find_tolerance_origin(tolerance, settings) or file)
        counts[tolerance, origin] = counts.get((tolerance, origin), 0) + 1
    for (tolerance, origin), count in counts.items():
        share = (
            ""
            if count == len(judgements)
            else f", for {count} of {len(judgements)} verdicts"
        )
        yield Caution(
            CautionCode.TOLERANCE,
            f"tolerance {tolerance}, not {expected} ({origin}){share}",
        )


def _is_typed_and_stricter(
    tolerance: Tolerance, expected: Tolerance, settings: Settings
) -> bool:
    origin = _find_tolerance_origin(tolerance, settings)
    return origin is not None and origin.typed and tolerance.factor < expected.factor


def _find_tolerance_origin(tolerance: Tolerance, settings: Settings) -> Origin | None:
    """Return the origin of a tolerance, or None if it is from a baseline file."""
    # The sources of other tolerances are names of options, which are keys of `origins`.
    return settings.origins.get(
        "llmb_tolerance"
        if tolerance.source == ToleranceSource.INI
        else tolerance.source
    )


def _list_acknowledgement_cautions(
    judgements: Sequence[Judgement], session: JudgedSession
) -> Iterator[Caution]:
    """Yield the accepted reasons, then the number of accepted changes in force.

    The number is followed by the largest sum of accepted slowdowns of a configuration.
    """
    from pytest_llmbench.judge.acknowledged import LARGEST

    in_force_by_key = {
        judgement.baseline.key: _select_in_force(judgement, session)
        for judgement in judgements
    }
    yield from _list_accepted_reasons(judgements)
    # One entry (file and line) may cover many configurations.
    entry_positions = {
        entry.place for in_force in in_force_by_key.values() for entry in in_force
    }
    if not entry_positions:
        return
    largest = max(
        math.prod(1 + entry.fraction for entry in in_force)
        for in_force in in_force_by_key.values()
        if in_force
    )
    changes = formatting.count_noun(len(entry_positions), "acknowledged change")
    # Together, the entries raise a level by at most LARGEST.
    text = f"{changes} in force, up to {formatting.format_difference(min(largest, 1 + LARGEST))}"
    yield Caution(CautionCode.ACKNOWLEDGED, text)


def _list_accepted_reasons(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield each accepted reason with the configurations that fail without it."""
    names_by_reason: dict[str, list[str]] = {}
    for judgement in judgements:
        for note in judgement.notes:
            if (
                note.code is NoteCode.ACKNOWLEDGED
                and note.acknowledgement
                and note.acknowledgement.accepts
            ):
                names_by_reason.setdefault(note.acknowledgement.accepts, []).append(
                    judgement.baseline.key.id
                )
    for reason, names in names_by_reason.items():
        text = f"{reason} is accepted for {formatting.join_first(list(dict.fromkeys(names)))}"
        yield Caution(CautionCode.ACKNOWLEDGED, text)


def _list_changed_settings(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield each changed setting with the configurations whose run was recorded with
    another value."""
    names_by_text: dict[str, list[str]] = {}
    for judgement in judgements:
        for note in judgement.notes:
            if note.code is NoteCode.SETTING_CHANGED:
                names_by_text.setdefault(phrase(note), []).append(
                    judgement.baseline.key.id
                )
    for text, names in names_by_text.items():
        yield Caution(
            CautionCode.SETTING_CHANGED,
            f"{formatting.join_first(list(dict.fromkeys(names)), MOST_NAMES)}: {text}",
        )


def _list_lost_time(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield the runs that lost time outside of their steps but are not INVALID.

    The first MOST_NAMES get a caution each; the others are counted.
    """
    texts = dict.fromkeys(
        f"{judgement.baseline.key.id}: {phrase(note)}"
        for judgement in judgements
        if judgement.verdict is not Verdict.INVALID
        for note in judgement.notes
        if note.code in LOST_TIME
    )
    for text in list(texts)[:MOST_NAMES]:
        yield Caution(CautionCode.TIME_LOST, text)
    if len(texts) > MOST_NAMES:
        text = f"{len(texts) - MOST_NAMES} more losses of time outside the step time"
        yield Caution(CautionCode.TIME_LOST, text)


def _select_in_force(
    judgement: Judgement, session: JudgedSession
) -> list[Acknowledgement]:
    """Return the acknowledgements that affect a judgement today."""
    from pytest_llmbench.judge.acknowledged import select_covering

    if not any(note.code is NoteCode.ACKNOWLEDGED for note in judgement.notes):
        return []
    covering_entries = select_covering(
        judgement.baseline.key.id, session.catalog.acknowledged
    )
    return [
        entry
        for entry in covering_entries
        if entry.since <= session.today <= entry.expires
    ]


def _list_baseline_cautions(
    judgements: Sequence[Judgement], session: JudgedSession
) -> Iterator[Caution]:
    """Yield recorded baselines that are slow or moved, and large drift budgets.

    A slow baseline is far slower than the published one.
    """
    recorded = _find_recorded(judgements, session.catalog)
    ratios = {
        baseline.key.id: baseline.step_seconds / baseline.published_seconds
        for baseline in recorded
        if baseline.published_seconds
    }
    slower_ratios = {
        name: ratio for name, ratio in ratios.items() if ratio > 1 + MUCH_SLOWER
    }
    if slower_ratios:
        slowest = _join_largest(slower_ratios)
        percent = (max(slower_ratios.values()) - 1) * 100
        subject = (
            "recorded baselines are up to" if len(slower_ratios) > 1 else "recorded"
        )
        text = f"{subject} {percent:.0f} % slower than published: {slowest}"
        yield Caution(CautionCode.RECORDED_SLOWER, text)
    yield from _list_moved_baselines(recorded, session.settings)
    budgets = {select_drift_budget(session.settings, baseline) for baseline in recorded}
    if budgets and max(budgets) > DRIFT_BUDGET:
        has_option = session.settings.drift_budget is not None
        origin = (
            session.get_origin("--llmb-drift-budget") if has_option else "baseline file"
        )
        usual = f"not {_format_percent(DRIFT_BUDGET)}"
        yield Caution(
            CautionCode.DRIFT_BUDGET,
            f"drift budget {_format_percent(max(budgets))}, {usual} ({origin})",
        )


def _find_recorded(judgements: Sequence[Judgement], catalog: Catalog) -> list[Baseline]:
    """Return the recorded baselines that decided, as they are in their files.

    An acknowledged change moves the baseline of a judgement, but not the file.
    """
    recorded = []
    for judgement in judgements:
        deciding = judgement.baseline
        if deciding.kind is BaselineKind.RECORDED:
            key_baselines = catalog.baselines.get(deciding.key, ())
            in_files = (
                baseline
                for baseline in key_baselines
                if baseline.kind is BaselineKind.RECORDED
            )
            recorded.append(next(in_files, deciding))
    return recorded


def _list_moved_baselines(
    recorded: Sequence[Baseline], settings: Settings
) -> Iterator[Caution]:
    """Yield one caution on baselines that moved beyond the drift budget in total.

    Such a baseline was recorded several times. Each value is within the budget of the
    value before it or was accepted, but the sum of the changes exceeds the budget.
    """
    ratios = {}
    for baseline in recorded:
        recording = baseline.recording
        if recording is None:
            continue
        seconds, first = recording.trimmed_mean_seconds, find_starting_value(recording)
        # If drift is counted from the first value, the recording itself checked it.
        was_accepted = first != find_reference(recording)
        budget = select_drift_budget(settings, baseline)
        if was_accepted and is_beyond(seconds, first, budget):
            ratios[baseline.key.id] = seconds / first.seconds
    if ratios:
        change = formatting.format_difference(max(ratios.values()))
        text = (
            f"recorded values moved {change} since the first: {_join_largest(ratios)}"
        )
        yield Caution(CautionCode.RECORDED_MOVED, text)


def _join_largest(ratios: Mapping[str, float]) -> str:
    """Return the name with the largest ratio, and the number of the other names."""
    names = sorted(ratios, key=lambda name: ratios[name], reverse=True)
    return formatting.join_first(names, 1)


def _list_settings_cautions(session: JudgedSession) -> Iterator[Caution]:
    """Yield cautions on options.

    These are options that weaken the gate, options of an ini file or variable that
    leave out runs or baselines, and options that override a stricter ini key.
    """
    for code, text in _describe_options(session):
        yield Caution(code, f"{text} ({session.get_origin(f'--llmb-{code}')})")
    for code, text in _describe_selection(session):
        origin = session.get_origin(f"--llmb-{code}")
        if not origin.typed:
            yield Caution(code, f"{text} ({origin})")
    origins = session.settings.origins
    for flag in session.settings.overridden:
        name = name_destination(flag)
        text = f"{origins.get(name, name)} is overridden by {session.get_origin(flag)}"
        yield Caution(CautionCode.OVERRIDDEN, text)


def _describe_options(session: JudgedSession) -> Iterator[tuple[CautionCode, str]]:
    """Yield (code, text) of each option that weakens the gate.

    The code is the name of the option without `--llmb-`.
    """
    settings = session.settings
    if settings.unmatched == "list":
        unmatched = len(session.results.unmatched)
        count = f", {unmatched} found" if unmatched else ""
        yield CautionCode.UNMATCHED, f"unmatched runs do not fail{count}"
    if settings.inconclusive == "skip":
        yield CautionCode.INCONCLUSIVE, "INCONCLUSIVE is skipped"
    # An improvement of any size passes only if the option was given: the default fails
    # implausibly large ones.
    if settings.improvement == "pass" and find_origin(
        settings.origins, "--llmb-improvement"
    ):
        yield CautionCode.IMPROVEMENT, "improvements pass, however large"
    if release := settings.baseline_release:
        yield CautionCode.BASELINE_RELEASE, f"judged against release {release}"
    if settings.assumed_cv != ASSUMED_CV:
        assumed = _format_percent(settings.assumed_cv)
        yield CautionCode.ASSUMED_CV, f"assumed variation {assumed}, not 1 %"


def _describe_selection(session: JudgedSession) -> Iterator[tuple[CautionCode, str]]:
    """Yield (code, text) of each option that leaves out or averages runs or baselines.

    The code is the name of the option without `--llmb-`.
    """
    settings = session.settings
    if _ignores_recorded(session):
        yield CautionCode.AGAINST, "recorded baselines are ignored"
    if settings.since:
        yield CautionCode.SINCE, f"runs before {settings.since:%Y-%m-%d} not judged"
    if settings.repeat_window:
        window = formatting.format_age(settings.repeat_window)
        yield CautionCode.REPEAT_WINDOW, f"runs within {window} are averaged"


def _ignores_recorded(session: JudgedSession) -> bool:
    has_recorded = any(
        recipe.kind is BaselineKind.RECORDED for recipe in session.catalog.recipes
    )
    return (
        has_recorded
        and not session.settings.certify
        and session.settings.against == "published"
    )


def _format_percent(fraction: float) -> str:
    return f"{fraction * 100:.4g} %"


# --- items without a verdict ----------------------------------------------------------


def _list_outcome_cautions(
    configurations: Sequence[ConfigurationOutcome], session: JudgedSession
) -> Iterator[Caution]:
    """Yield the selected items without a verdict: stale, skipped, or without a run."""
    # The reader of the command line knows a limit that was typed.
    stale_count = sum(outcome.reason == Reason.TOO_OLD for outcome in configurations)
    origin = find_origin(session.settings.origins, "--llmb-max-age")
    limit = session.settings.max_age
    if stale_count and limit and origin and not origin.typed:
        yield Caution(
            CautionCode.MAX_AGE,
            f"{stale_count} stale, older than {formatting.format_age(limit)} ({origin})",
        )
    is_reported = any(
        caution.code is CautionCode.SKIPPED_ITEMS for caution in session.noticed
    )
    if session.unjudged and not is_reported:
        names = sorted(
            formatting.get_item_id(nodeid) or nodeid for nodeid in session.unjudged
        )
        items = formatting.count_noun(len(names), "item")
        yield Caution(
            CautionCode.SKIPPED_ITEMS,
            f"{items} skipped before a verdict: {formatting.join_first(names, 1)}",
        )
    yield from _list_without_verdict(configurations)


def _list_without_verdict(
    configurations: Sequence[ConfigurationOutcome],
) -> Iterator[Caution]:
    """Yield up to three cautions about the configurations without a verdict.

    The first names the user's configurations, the second summarises the documented ones
    without a run, the third counts the others by their status.
    """
    from pytest_llmbench.report.verdicts import count_documented, list_documented_absent

    absences = {
        outcome.id: absence
        for outcome in configurations
        if (absence := _get_absence(outcome))
    }
    yield from caution_without_verdict(configurations, absences)
    documented_outcomes = list_documented_absent(configurations)
    if documented_outcomes:
        yield Caution(
            CautionCode.WITHOUT_VERDICT, count_documented(documented_outcomes)
        )
    reported_ids = {
        outcome.id
        for outcome in (
            *documented_outcomes,
            *filter(attrgetter("own"), configurations),
        )
    }
    counts_by_absence = Counter(
        absence for name, absence in absences.items() if name not in reported_ids
    )
    if counts_by_absence:
        counts = ", ".join(
            f"{number} {name}" for name, number in sorted(counts_by_absence.items())
        )
        text = f"{counts_by_absence.total()} of {len(configurations)} selected have no verdict: {counts}"
        yield Caution(CautionCode.WITHOUT_VERDICT, text)


def _get_absence(outcome: ConfigurationOutcome) -> str:
    """Return the verdict of a configuration that was not judged, such as MISSING.

    "" if the configuration was judged, failed, or ran for another purpose such as a
    profile.
    """
    # A user's test may pass without looking at the verdict.
    is_ignored = outcome.status == "passed" and outcome.overruled in ABSENT
    is_skipped = outcome.status == "skipped" and outcome.reason != Reason.PURPOSE_DONE
    if is_ignored or is_skipped:
        return outcome.overruled or outcome.verdict
    return ""


# --- deselected items -----------------------------------------------------------------


def label_subjects(
    results: SessionResults,
    settings: Settings,
    failing_unmatched: Collection[UnmatchedRun],
) -> dict[Subject, str]:
    """Return a label for each subject with a run, selected or not.

    The label of a subject that fails consists of its verdict and id, such as
    `REGRESSION grok1_314b-25.05-gb200-bf16-128`. The label of a passed subject is "".
    Only checks can fail in a session that records.
    """
    with_run = (
        result
        for result in results.configurations.values()
        if result.judgement.measurement is not None
    )
    labels = {(PERFORMANCE_TEST, result.case.id): "" for result in with_run}
    labels |= {
        _make_subject(check): f"{check.kind} {check.id}" if check.failed else ""
        for check in results.checks
    }
    if settings.record is not None:
        return labels
    labels |= {
        (
            PERFORMANCE_TEST,
            result.case.id,
        ): f"{result.judgement.verdict} {result.case.id}"
        for result in find_failed_results(results, settings)
    }
    return labels | {
        ("test_unmatched_run", run.id): f"{run.reason.upper()} {run.id}"
        for run in failing_unmatched
    }


def _make_subject(check: Check) -> Subject:
    return check.kind.test_name, check.id


def caution_unjudged_items(
    selection: Selection,
    ran: Collection[str],
    skipped: Collection[str],
    labels_by_subject: Mapping[Subject, str],
    selecting_options: str,
) -> Iterator[Caution]:
    """Yield cautions about the items that were not selected or did not run.

    `ran` and `skipped` are node ids; `skipped` items ended before they had a verdict.
    `labels_by_subject` is the result of `label_subjects`. `selecting_options` are
    options such as `-k`, or "" if the selection chose what to launch or record. With "",
    only failing subjects are reported as left out.
    """
    not_run = selection.list_without(ran)
    judging_items = [node for node in ran if node not in skipped]
    without_verdict = set(selection.list_without(judging_items)).difference(not_run)
    groups = (
        (CautionCode.NOT_RUN, "did not run", not_run, False),
        (CautionCode.SKIPPED_ITEMS, "skipped before a verdict", without_verdict, True),
        (
            CautionCode.DESELECTED,
            "deselected by --deselect, a conftest or a plugin",
            selection.deselected,
            False,
        ),
        (
            CautionCode.LEFT_OUT,
            f"left out by {selecting_options or 'the selection'}",
            selection.left_out,
            not selecting_options,
        ),
    )
    for code, description, subjects, only_if_failing in groups:
        labels = [
            labels_by_subject[subject]
            for subject in sorted(subjects)
            if subject in labels_by_subject
        ]
        failing_labels = list(filter(None, labels))
        if failing_labels or (labels and not only_if_failing):
            summary = (
                f"{len(failing_labels)} would fail: {formatting.join_first(failing_labels, MOST_NAMES)}"
                if failing_labels
                else "none would fail"
            )
            yield Caution(
                code,
                formatting.escape(
                    f"{description}: {formatting.count_noun(len(labels), 'item')}, {summary}"
                ),
            )


def caution_newer(
    results: SessionResults, selection: Selection, without_item: Iterable[UnmatchedRun]
) -> Iterator[Caution]:
    """Yield one caution that names the possibly newer runs that have no item.

    These are runs in `without_item` that may be runs of a selected configuration, newer
    than the judged run.
    """
    names = (
        name
        for test, name in chain.from_iterable(selection.kept.values())
        if test == PERFORMANCE_TEST
    )
    judged_by_key = {
        result.case.key: result.judgement.measurement
        for result in map(results.configurations.__getitem__, names)
    }
    newer_labels = [
        f"{run.reason.upper()} {run.id}"
        for run in without_item
        if any(
            key in judged_by_key and may_be_newer(run, judged_by_key[key])
            for key in run.about
        )
    ]
    if newer_labels:
        text = f"not judged, but possibly newer than the judged runs: {formatting.join_first(newer_labels, MOST_NAMES)}"
        yield Caution(CautionCode.NEWER_RUN, formatting.escape(text))
