"""What a reader of a session should know before a green light is believed: the one
place where cautions are made.

What weakens the gate is told wherever it was written; what was not typed for this
session is told too where it only differs, because nobody who reads the verdicts has
seen it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

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
from pytest_llmbench.session.absences import list_absence_cautions, name_without_verdict
from pytest_llmbench.session.catalog import Catalog, select_drift_budget
from pytest_llmbench.session.outcomes import (
    SessionResults,
    find_red_results,
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

# A recorded baseline that is slower than the published one by more lets pass what the
# default tolerance would not.
FAR = 0.05

Subject = tuple[str, str]
"""What an item is about: the name of the built-in test, and the id of the case."""

TEST = "test_performance"
"""The built-in test of the configurations."""

LOST_TIME = (
    NoteCode.WALL_CLOCK,
    NoteCode.SLOW_OUTSIDE_UNCOMPARED,
    NoteCode.SLOW_WARM_UP,
)
"""The notes of time outside the step time that would be red beside a recording, or is
more than recorded runs lost."""

NAMED = 3
"""Red items that a line names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What became of everything that has an item. `kept` holds the subjects of each
    selected item by its node id; `left_out` is what pytest's own selection knows no
    better, `deselected` what somebody took out on purpose."""

    kept: Mapping[str, tuple[Subject, ...]]
    left_out: tuple[Subject, ...] = ()
    deselected: tuple[Subject, ...] = ()

    def list_without(self, nodes: Collection[str]) -> tuple[Subject, ...]:
        """Return what was selected and is about none of these items (node ids)."""
        done = set(
            chain.from_iterable(
                subjects for node, subjects in self.kept.items() if node in nodes
            )
        )
        return tuple(
            subject
            for subject in dict.fromkeys(chain.from_iterable(self.kept.values()))
            if subject not in done
        )


@dataclass(frozen=True, slots=True)
class JudgedSession:
    """What a session judged, under which settings, and what hooks saw meanwhile."""

    described: Sequence[OutcomeDocument]
    """The outcomes of its items."""
    results: SessionResults
    settings: Settings
    catalog: Catalog
    today: date
    noticed: Sequence[Caution]
    unjudged: Sequence[str]
    """Node ids of items that were skipped before there was a verdict."""

    def get_origin(self, flag: str) -> Origin:
        """Return where the value of an option was written."""
        return find_origin(self.settings.origins, flag) or Origin(Written.TYPED, flag)


def find_cautions(session: JudgedSession) -> Iterator[Caution]:
    """Yield the cautions of a session: what it found and did not fail for, what hooks
    noticed, what weakens the gate, and what has no verdict."""
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
    """Yield the judgements that rest on a run, those against further baselines too."""
    for result in results:
        yield from (
            judgement
            for judgement in (result.judgement, *result.others)
            if judgement.verdict in JUDGED
        )


# --- how it was judged ----------------------------------------------------------------


def _list_tolerance_cautions(
    judgements: Sequence[Judgement], settings: Settings
) -> Iterator[Caution]:
    """Yield the tolerances that are not the default, but for a stricter one that was
    typed."""
    expected = CERTIFIED if settings.certify else DEFAULT_TOLERANCE
    of_tolerance: dict[tuple[Tolerance, str], int] = {}
    for judgement in judgements:
        tolerance = judgement.tolerance
        if math.isclose(tolerance.factor, expected.factor) or _is_typed_and_stricter(
            tolerance, expected, settings
        ):
            continue
        file = Path(judgement.baseline.source.file).name
        named = tolerance, str(_find_tolerance_origin(tolerance, settings) or file)
        of_tolerance[named] = of_tolerance.get(named, 0) + 1
    for (tolerance, origin), number in of_tolerance.items():
        of_some = (
            ""
            if number == len(judgements)
            else f", of {number} of {len(judgements)} verdicts"
        )
        yield Caution(
            CautionCode.TOLERANCE,
            f"tolerance {tolerance}, not {expected} ({origin}){of_some}",
        )


def _is_typed_and_stricter(
    tolerance: Tolerance, expected: Tolerance, settings: Settings
) -> bool:
    origin = _find_tolerance_origin(tolerance, settings)
    return origin is not None and origin.typed and tolerance.factor < expected.factor


def _find_tolerance_origin(tolerance: Tolerance, settings: Settings) -> Origin | None:
    """Return where a tolerance was written; None for one of a baseline file."""
    return settings.origins.get(
        "llmb_tolerance"
        if tolerance.source == ToleranceSource.INI
        else tolerance.source
    )


def _list_acknowledgement_cautions(
    judgements: Sequence[Judgement], session: JudgedSession
) -> Iterator[Caution]:
    """Yield how many accepted changes moved the level of a run, and the largest
    level."""
    from pytest_llmbench.judge.acknowledged import LARGEST

    levels = {
        judgement.baseline.key: _select_in_force(judgement, session)
        for judgement in judgements
    }
    yield from _list_accepted_reasons(judgements)
    entries = {entry.place for entries in levels.values() for entry in entries}
    if not entries:
        return
    largest = max(
        math.prod(1 + entry.fraction for entry in those)
        for those in levels.values()
        if those
    )
    changes = formatting.count_noun(len(entries), "acknowledged change")
    text = f"{changes} in force, up to {formatting.format_difference(min(largest, 1 + LARGEST))}"
    yield Caution(CautionCode.ACKNOWLEDGED, text)


def _list_accepted_reasons(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield which configurations would be red for a reason that somebody accepted."""
    accepted: dict[str, list[str]] = {}
    for judgement in judgements:
        for note in judgement.notes:
            if (
                note.code is NoteCode.ACKNOWLEDGED
                and note.acknowledgement
                and note.acknowledgement.accepts
            ):
                accepted.setdefault(note.acknowledgement.accepts, []).append(
                    judgement.baseline.key.id
                )
    for reason, names in accepted.items():
        text = f"{reason} is accepted for {formatting.join_first(list(dict.fromkeys(names)))}"
        yield Caution(CautionCode.ACKNOWLEDGED, text)


def _list_changed_settings(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield what runs state otherwise than the recorded ones without being of another
    configuration."""
    changed: dict[str, list[str]] = {}
    for judgement in judgements:
        for note in judgement.notes:
            if note.code is NoteCode.SETTING_CHANGED:
                changed.setdefault(phrase(note), []).append(judgement.baseline.key.id)
    for text, names in changed.items():
        yield Caution(
            CautionCode.SETTING_CHANGED,
            f"{formatting.join_first(list(dict.fromkeys(names)), NAMED)}: {text}",
        )


def _list_lost_time(judgements: Sequence[Judgement]) -> Iterator[Caution]:
    """Yield the runs that lost time outside their step time without being red for
    it."""
    texts = dict.fromkeys(
        f"{judgement.baseline.key.id}: {phrase(note)}"
        for judgement in judgements
        if judgement.verdict is not Verdict.INVALID
        for note in judgement.notes
        if note.code in LOST_TIME
    )
    for text in list(texts)[:NAMED]:
        yield Caution(CautionCode.TIME_LOST, text)
    if len(texts) > NAMED:
        text = f"{len(texts) - NAMED} more losses of time outside the step time"
        yield Caution(CautionCode.TIME_LOST, text)


def _select_in_force(
    judgement: Judgement, session: JudgedSession
) -> list[Acknowledgement]:
    from pytest_llmbench.judge.acknowledged import select_covering

    if not any(note.code is NoteCode.ACKNOWLEDGED for note in judgement.notes):
        return []
    of_key = select_covering(judgement.baseline.key.id, session.catalog.acknowledged)
    return [entry for entry in of_key if entry.since <= session.today <= entry.expires]


def _list_baseline_cautions(
    judgements: Sequence[Judgement], session: JudgedSession
) -> Iterator[Caution]:
    """Yield how far recorded baselines are above the published ones, and how far they
    may drift."""
    recorded = _find_recorded(judgements, session.catalog)
    ratios = {
        baseline.key.id: baseline.step_seconds / baseline.published_seconds
        for baseline in recorded
        if baseline.published_seconds
    }
    far = {name: ratio for name, ratio in ratios.items() if ratio > 1 + FAR}
    if far:
        slowest = _join_largest(far)
        slower = f"{(max(far.values()) - 1) * 100:.0f} % slower than published"
        several = "baselines are up to " if len(far) > 1 else ""
        text = f"recorded {several}{slower}: {slowest}"
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
    """Find the recorded baselines that decided, with the values of their files."""
    recorded = []
    for judgement in judgements:
        decided = judgement.baseline
        if decided.kind is BaselineKind.RECORDED:
            of_key = catalog.baselines.get(decided.key, ())
            in_files = (
                baseline
                for baseline in of_key
                if baseline.kind is BaselineKind.RECORDED
            )
            recorded.append(next(in_files, decided))
    return recorded


def _list_moved_baselines(
    recorded: Sequence[Baseline], settings: Settings
) -> Iterator[Caution]:
    """Yield how far accepted values of recorded baselines lie above the first ones, if
    by more than the budget."""
    moved = {
        baseline.key.id: recording.trimmed_mean_seconds / origin.seconds
        for baseline in recorded
        if (recording := baseline.recording) is not None
        and (origin := find_starting_value(recording)) != find_reference(recording)
        and is_beyond(
            recording.trimmed_mean_seconds,
            origin,
            select_drift_budget(settings, baseline),
        )
    }
    if moved:
        change = formatting.format_difference(max(moved.values()))
        text = f"recorded values moved {change} since the first: {_join_largest(moved)}"
        yield Caution(CautionCode.RECORDED_MOVED, text)


def _join_largest(ratios: Mapping[str, float]) -> str:
    """Return the name of the largest ratio, and how many more there are."""
    names = sorted(ratios, key=lambda name: ratios[name], reverse=True)
    return formatting.join_first(names, 1)


def _list_settings_cautions(session: JudgedSession) -> Iterator[Caution]:
    """Yield the options that let pass what the defaults would not, and those that
    nobody typed for this session."""
    for code, text in _describe_options(session):
        yield Caution(code, f"{text} ({session.get_origin(f'--llmb-{code}')})")
    for code, text in _describe_selection(session):
        origin = session.get_origin(f"--llmb-{code}")
        if not origin.typed:
            yield Caution(code, f"{text} ({origin})")
    origins = session.settings.origins
    for flag in session.settings.overridden:
        name = name_destination(flag)
        text = f"{origins.get(name, name)} is replaced by {session.get_origin(flag)}"
        yield Caution(CautionCode.OVERRIDDEN, text)


def _describe_options(session: JudgedSession) -> Iterator[tuple[CautionCode, str]]:
    """Yield the options that let pass what the defaults would not; an option has the
    name of its code."""
    settings = session.settings
    if settings.unmatched == "list":
        unmatched = len(session.results.unmatched)
        of_them = f", {unmatched} of them" if unmatched else ""
        yield CautionCode.UNMATCHED, f"unmatched runs fail nothing{of_them}"
    if settings.inconclusive == "skip":
        yield CautionCode.INCONCLUSIVE, "INCONCLUSIVE is skipped"
    # The default is not so lenient as the option.
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
    """Yield the options that leave runs or baselines out."""
    settings = session.settings
    if _ignores_recorded(session):
        yield CautionCode.AGAINST, "recorded baselines are not looked at"
    if settings.since:
        yield CautionCode.SINCE, f"runs before {settings.since:%Y-%m-%d} left out"
    if settings.repeat_window:
        window = formatting.format_age(settings.repeat_window)
        yield CautionCode.REPEAT_WINDOW, f"runs within {window} are averaged"


def _ignores_recorded(session: JudgedSession) -> bool:
    there = any(
        recipe.kind is BaselineKind.RECORDED for recipe in session.catalog.recipes
    )
    return (
        there
        and not session.settings.certify
        and session.settings.against == "published"
    )


def _format_percent(fraction: float) -> str:
    return f"{fraction * 100:.4g} %"


# --- what was not judged --------------------------------------------------------------


def _list_outcome_cautions(
    configurations: Sequence[ConfigurationOutcome], session: JudgedSession
) -> Iterator[Caution]:
    """Yield what was selected and has no verdict."""
    stale = sum(outcome.reason == Reason.TOO_OLD for outcome in configurations)
    origin, limit = (
        find_origin(session.settings.origins, "--llmb-max-age"),
        session.settings.max_age,
    )
    if stale and limit and origin and not origin.typed:
        yield Caution(
            CautionCode.MAX_AGE,
            f"{stale} stale, older than {formatting.format_age(limit)} ({origin})",
        )
    if session.unjudged and not any(
        caution.code is CautionCode.SKIPPED_ITEMS for caution in session.noticed
    ):
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
    """Yield the configurations without a verdict: the user's own by name, the
    documented ones without a run together, the others counted."""
    from pytest_llmbench.report.verdicts import count_documented, list_documented_absent

    absences = {
        outcome.id: absence
        for outcome in configurations
        if (absence := _describe_absence(outcome))
    }
    yield from name_without_verdict(configurations, absences)
    together = list_documented_absent(configurations)
    if together:
        yield Caution(CautionCode.WITHOUT_VERDICT, count_documented(together))
    named = {
        outcome.id
        for outcome in (*together, *filter(attrgetter("own"), configurations))
    }
    others = Counter(absence for name, absence in absences.items() if name not in named)
    if others:
        counts = ", ".join(
            f"{number} {name}" for name, number in sorted(others.items())
        )
        text = f"{others.total()} of {len(configurations)} selected have no verdict: {counts}"
        yield Caution(CautionCode.WITHOUT_VERDICT, text)


def _describe_absence(outcome: ConfigurationOutcome) -> str:
    """Return what a configuration has in the place of a verdict; empty where it is
    judged, red, or not to be judged."""
    unknown = (
        outcome.status == "passed" and outcome.overruled in ABSENT
    )  # a test that did not ask
    skipped = outcome.status == "skipped" and outcome.reason != Reason.PURPOSE_DONE
    return outcome.overruled or outcome.verdict if unknown or skipped else ""


# --- what the selection left out, and what somebody deselected ------------------------


def list_subjects(
    results: SessionResults, settings: Settings, failing: Collection[UnmatchedRun]
) -> dict[Subject, str]:
    """Return everything of which something was found, whether it was selected or not:
    what is red with its verdict and id, all else with an empty text. A recording has
    nothing red."""
    with_run = (
        result
        for result in results.configurations.values()
        if result.judgement.measurement is not None
    )
    labels = {(TEST, result.case.id): "" for result in with_run}
    labels |= {
        _make_subject(check): f"{check.kind} {check.id}" if check.failed else ""
        for check in results.checks
    }
    if settings.record is not None:
        return labels
    red = {
        result.case.id: str(result.judgement.verdict)
        for result in find_red_results(results, settings)
    }
    labels |= {
        (TEST, identifier): f"{verdict} {identifier}"
        for identifier, verdict in red.items()
    }
    return labels | {
        ("test_unmatched_run", stray.id): f"{stray.reason.upper()} {stray.id}"
        for stray in failing
    }


def _make_subject(check: Check) -> Subject:
    return check.kind.test_name, check.id


def caution_skipped(
    selection: Selection,
    ran: Collection[str],
    skipped: Collection[str],
    seen: Mapping[Subject, str],
    by: str,
) -> Iterator[Caution]:
    """Yield what a session did not look at, of what was `seen`.

    `ran` and `skipped` are node ids, the last of items that ended before there was a
    verdict. `by` names the options that select, empty where they chose what to launch
    or to record, and only what is red needs a word.
    """
    not_run = selection.list_without(ran)
    unjudged = set(
        selection.list_without([node for node in ran if node not in skipped])
    ).difference(not_run)
    parts = (
        (CautionCode.NOT_RUN, "did not run", not_run, False),
        (CautionCode.SKIPPED_ITEMS, "skipped before a verdict", unjudged, True),
        (
            CautionCode.DESELECTED,
            "deselected by --deselect, a conftest or a plugin",
            selection.deselected,
            False,
        ),
        (
            CautionCode.LEFT_OUT,
            f"left out by {by or 'the selection'}",
            selection.left_out,
            not by,
        ),
    )
    for code, what, subjects, only_red in parts:
        labels = [seen[subject] for subject in sorted(subjects) if subject in seen]
        red = list(filter(None, labels))
        if red or (labels and not only_red):
            named = (
                f"{len(red)} red: {formatting.join_first(red, NAMED)}"
                if red
                else "none red"
            )
            yield Caution(
                code,
                formatting.escape(
                    f"{what}: {formatting.count_noun(len(labels), 'item')}, {named}"
                ),
            )


def caution_newer(
    results: SessionResults, selection: Selection, untold: Iterable[UnmatchedRun]
) -> Iterator[Caution]:
    """Yield the runs that have no item, and that may be newer runs of what is
    selected."""
    names = (
        name
        for test, name in chain.from_iterable(selection.kept.values())
        if test == TEST
    )
    judged = {
        result.case.key: result.judgement.measurement
        for result in map(results.configurations.__getitem__, names)
    }
    newer = [
        f"{stray.reason.upper()} {stray.id}"
        for stray in untold
        if any(
            key in judged and may_be_newer(stray, judged[key]) for key in stray.about
        )
    ]
    if newer:
        text = f"not judged, and perhaps newer than what was: {formatting.join_first(newer, NAMED)}"
        yield Caution(CautionCode.NEWER_RUN, formatting.escape(text))
