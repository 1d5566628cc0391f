"""What the hooks of one pytest session share: settings, baselines, and everything
judged, each made once on demand."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.outcome_records import CheckKind, Finding
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.core.stop_signals import StopSignals

if TYPE_CHECKING:
    from pytest_llmbench.core.outcome_records import (
        Case,
        Caution,
        Check,
        Outcome,
        UnmatchedRun,
    )
    from pytest_llmbench.launch.launch_session import LaunchSession
    from pytest_llmbench.launch.launch_settings import LaunchSettings
    from pytest_llmbench.launch.plan.planner import Host
    from pytest_llmbench.logs.reading.run_reader import ReadCounts
    from pytest_llmbench.report.outcome_documents import (
        CheckOutcome,
        ConfigurationOutcome,
        OutcomeDocument,
        UnmatchedOutcome,
    )
    from pytest_llmbench.session.catalog import Catalog
    from pytest_llmbench.session.cautions import Selection
    from pytest_llmbench.session.outcomes import SessionResults
    from pytest_llmbench.session.session_history import SessionHistory
    from pytest_llmbench.session.settings import Settings

# From this many failing items on, each message takes three lines.
SHORT_FROM = 6

# Unmatched runs that have an item of their own: pytest compares each failed item with
# the reports of all.
MOST_UNMATCHED = 1000

SOUND = ("PASS", "IMPROVEMENT", "REGRESSION", "INCONCLUSIVE", "RECORDED")
"""The verdicts of a session that did its work, whatever a user's own test made of
them."""


class Session:
    """What one pytest session judges, and what it keeps for its reports.

    Each thing is made once, in this order: the settings; the catalog and the history,
    before anything is collected (`prepare`); the results, when the items are collected,
    which a launch replaces once its jobs have ended; the outcomes of the selected
    items, before the first of them runs (`decide_outcomes`).
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime],
        directory: Path,
        *,
        launching: LaunchSettings | None = None,
        results: SessionResults | None = None,
    ) -> None:
        """Take the resolved settings, the source of the time, the folder that paths are
        shown relative to, and the results where they are known: in a worker they are
        those of the controller, which alone reads logs."""
        self.settings = settings
        self.launching = launching
        self.directory = directory
        self.command: tuple[str, ...] = ()
        """The arguments of pytest, for the history."""
        self.tell_reading: Callable[[ReadCounts], None] | None = None
        self.stop = StopSignals()
        """What was received of Ctrl-C, SIGTERM and SIGHUP; a worker leaves them to the
        controller."""
        self.interrupted = False
        self._clock = clock
        self._results = results
        self._outcomes: dict[str, tuple[Outcome, ConfigurationOutcome]] = {}
        self._short = False

        # What a launch tells of itself.
        self.ended_early = False
        self._launched = False
        self._recording = False
        self._recorded: tuple[Path, ...] = ()
        self.problems = False
        self.secrets: frozenset[str] = frozenset()
        self.redactor = make_redactor().without(
            results.configurations if results else ()
        )
        """Hides secrets in whatever is said, or left in a file."""

        # What hooks see while items run.
        self.selection: Selection | None = None
        self.ran: set[str] = set()
        self.used = False
        """Whether an item used a fixture of ours."""
        self.unjudged: list[str] = []
        """Node ids of items that were skipped before there was a verdict."""
        self.noticed: list[Caution] = []
        self._handed_over = False

        # What reports are made from.
        self.reported: dict[str, OutcomeDocument] = {}
        """The outcomes on reports that this process made, by node id."""
        self.described: list[OutcomeDocument] = []
        """The outcomes of the items that ended."""
        self.context: tuple[str, ...] = ()
        """That nothing was judged, and why, where nothing was."""
        self.written: list[str] = []
        self.failures: list[str] = []
        """What made the session red besides its items, and what was not written:
        printed at any verbosity."""
        self.summarised = False

    @classmethod
    def from_options(cls, values: Mapping[str, Any], directory: Path) -> Session:
        """Resolve option values; relative paths are below `directory`. Raises
        SettingsError."""
        from pytest_llmbench.launch.launch_settings import resolve_launch
        from pytest_llmbench.session.settings import LaunchRequest, resolve

        launching = resolve_launch(values, directory)
        request = (
            LaunchRequest(launching.launcher, launching.cluster) if launching else None
        )
        settings = resolve(values, directory, request)
        return cls(settings, lambda: datetime.now(UTC), directory, launching=launching)

    def prepare(self) -> None:
        """Read the baselines and the history now, so that what is wrong is told before
        anything else happens."""
        if self._results is None:
            _ = self.catalog, self.history

    @cached_property
    def now(self) -> datetime:
        """The time of the session."""
        return self._clock()

    @cached_property
    def catalog(self) -> Catalog:
        """The baselines in use."""
        from pytest_llmbench.session.catalog import load

        catalog = load(self.settings)
        if self.settings.acknowledged is None:
            return catalog
        from pytest_llmbench.session.acknowledgements import with_acknowledged

        return with_acknowledged(catalog, self.settings.acknowledged, self.now.date())

    @cached_property
    def history(self) -> SessionHistory | None:
        """What the history knows, None without one; HistoryError where it cannot be
        used."""
        place = self.settings.history
        if place is None:
            return None
        from pytest_llmbench.session.session_history import SessionHistory

        return SessionHistory(place, self.catalog.baselines)

    @property
    def results(self) -> SessionResults:
        """Everything found and judged; the first use reads the logs. Before a launch
        nothing is."""
        if self._results is None:
            from pytest_llmbench.core.runtime import pause_garbage_collection

            with (
                pause_garbage_collection()
            ):  # of 100 runs hardly ten objects are in cycles
                self._results = self._complete(self._gather())
            gc.freeze()  # they stay to the end
        return self._results

    def _gather(self) -> SessionResults:
        if self.settings.launch is not None:
            from pytest_llmbench.launch.launch_session import build_unlaunched_results

            return build_unlaunched_results(self.settings, self.catalog)
        from pytest_llmbench.session.catalog import add_tables
        from pytest_llmbench.session.evaluate import gather

        results = gather(
            self.settings, self.catalog, self.now, self.tell_reading, self.history
        )
        self.catalog = add_tables(self.catalog, results.tables, self.settings)
        return results

    def launch(self, selected: Collection[str], tell: Callable[[str], None]) -> bool:
        """Launch the selected items (ids) and judge them; whether the session ends
        without running them.

        Raises LaunchError for what is in the way, Interrupted when somebody stops it.
        """
        launching = self._begin_launch(tell)
        keys = [
            self.results.configurations[identifier].case.key for identifier in selected
        ]
        self._launched = (
            True  # from here on the launch itself says what becomes of its jobs
        )
        self.ended_early = launching.run(keys)
        self.problems = launching.problems
        self.secrets = launching.secrets
        self.redactor = self.redactor.with_values(self.secrets)
        self.noticed += launching.list_cautions()
        self._results = self._complete(launching.results)
        return self.ended_early

    def describe_unlaunched(self) -> str:
        """Return what to know of the jobs of a session that was interrupted before its
        launch; empty for others."""
        if self.launching is None or self._launched:
            return ""
        from pytest_llmbench.launch.continuation import describe_early_interrupt

        return self.redactor.redact(
            describe_early_interrupt(self.launching, self._make_host(lambda line: None))
        )

    def _begin_launch(self, tell: Callable[[str], None]) -> LaunchSession:
        from pytest_llmbench.launch.launch_session import LaunchSession

        if self.launching is None:
            raise ValueError("the session launches nothing")
        past = self.history.past if self.history else None
        return LaunchSession(
            self.settings, self.launching, self.catalog, self._make_host(tell), past
        )

    def _make_host(self, tell: Callable[[str], None]) -> Host:
        import sys
        import time

        from pytest_llmbench.core.commands import run
        from pytest_llmbench.launch.jobs.journal import FOLDER
        from pytest_llmbench.launch.plan.planner import Host

        return Host(
            self._clock,
            time.sleep,
            run,
            {
                "PYTHON": sys.executable,
                **os.environ,
            },  # for recipes that ask for an interpreter
            tell,
            (self.launching and self.launching.journal) or self.directory / FOLDER,
            self.directory,
            self.settings.cache / "sessions.jsonl" if self.settings.cache else None,
            self.command,
            lambda cluster, ids: (
                self.history.read_noise(cluster, ids) if self.history else {}
            ),
        )

    def decide_outcomes(
        self, selected: Collection[str], *, guarded: bool = False
    ) -> None:
        """Decide what becomes of the selected items (ids), or record baselines from
        them; `guarded`: an item of its own says whether anything was judged."""
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.report.job_text import list_files
        from pytest_llmbench.session.outcomes import decide_guard, decide_outcomes

        if self.settings.record is None:
            outcomes = decide_outcomes(
                self.results, selected, self.settings, guarded=guarded
            )
        else:
            from pytest_llmbench.session.record_baselines import record

            author, self._recording = self._find_author(), True
            recorded = record(
                self.results,
                selected,
                self.settings,
                self.catalog,
                self.now,
                author=author,
                guarded=guarded,
            )
            outcomes, self._recorded = recorded.outcomes, recorded.files
            self.noticed += recorded.cautions
            self.written += [
                f"wrote {formatting.format_path(path, self.directory)}"
                for path in self._recorded
            ]
        if guarded:
            self._results = replace(
                self.results, checks=decide_guard(self.results.checks, outcomes)
            )
        self._short = (
            sum(outcome.failed for outcome in outcomes) + len(self.failing_unmatched)
            >= SHORT_FROM
        )
        self.context = next(
            (outcome.context for outcome in outcomes if outcome.context), ()
        )
        for outcome in outcomes:
            described = self._describe(outcome)
            texts = f"{described.verdict} ({described.reason})", described.text
            line = ": ".join(
                filter(None, (*texts, formatting.join_first(list_files(described))))
            )
            message = line if outcome.skipped else explain(described, short=self._short)
            self._outcomes[outcome.case.id] = (
                replace(outcome, message=message),
                described,
            )

    def describe_recorded(self) -> str:
        """Return what a session had recorded when it was interrupted; empty for one
        that records nothing."""
        if self.settings.record is None:
            return ""
        if self._recorded:
            files = formatting.join_first(
                [
                    formatting.format_path(path, self.directory)
                    for path in self._recorded
                ]
            )
            return f"recorded before it was interrupted: {files}"
        if self._recording:
            place = formatting.format_path(self.settings.record, self.directory)
            return (
                f"each file in {place} is whole, as it was or as recorded: record again"
            )
        return "nothing was recorded"

    def _find_author(self) -> str:
        import socket

        from pytest_llmbench.core.commands import run
        from pytest_llmbench.session.record_baselines import find_author

        return find_author(self.directory, os.environ, socket.gethostname(), run)

    def _describe(self, outcome: Outcome) -> ConfigurationOutcome:
        """Make the document of an outcome as every report, file and store sees it:
        printable, and without secrets."""
        from pytest_llmbench.report.describe_outcome import describe, redact

        own = outcome.case.key in self.results.own
        described = describe(
            outcome, self.now, self.directory, self.settings.commit, own=own
        )
        return redact(described, self.redactor)

    def _complete(self, results: SessionResults) -> SessionResults:
        """Return results with what the history has of last good runs; strays, named by
        their paths, show no secret."""
        results = self.history.with_details(results) if self.history else results
        self.redactor = self.redactor.without(results.configurations)
        unmatched = tuple(
            replace(run, id=self.redactor.redact(run.id)) for run in results.unmatched
        )
        return replace(results, unmatched=unmatched)

    def get_outcome(self, case: Case) -> tuple[Outcome, ConfigurationOutcome]:
        """Return the outcome of a selected item, and its document."""
        return self._outcomes[case.id]

    def add_reported(self, node: str, plain: dict[str, Any]) -> None:
        """Add the outcome of a report that arrived."""
        outcome = self.reported.pop(node, None)
        if outcome is None:  # another process made the report
            from pytest_llmbench.report.outcome_documents import restore_outcome

            outcome = restore_outcome(plain)
        self.described.append(outcome)

    def describe_unmatched(
        self, run: UnmatchedRun
    ) -> tuple[UnmatchedRun, UnmatchedOutcome]:
        """Return a run of no known configuration with the message of its item, and its
        document."""
        from pytest_llmbench.report.describe_outcome import (
            describe_unmatched_run,
            redact,
        )
        from pytest_llmbench.report.explain import explain

        described = redact(
            describe_unmatched_run(run, self.directory, self.settings.logs),
            self.redactor,
        )
        return replace(run, message=explain(described, short=self._short)), described

    def describe_check(self, check: Check) -> tuple[Check, CheckOutcome]:
        """Return a check with the message of its item, and its document."""
        from pytest_llmbench.report.describe_outcome import describe_check, redact
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.session.absences import advise_no_judged_run

        # What the selection has decided since its item was collected counts.
        check = next(
            (
                one
                for one in self.results.checks
                if (one.kind, one.id) == (check.kind, check.id)
            ),
            check,
        )
        guards = check.verdict == Finding.NOTHING_JUDGED
        advice = (
            advise_no_judged_run(self.results, self.settings, self.directory)
            if guards
            else ""
        )
        described = redact(describe_check(check, advice), self.redactor)
        message = (
            described.text if check.skipped else explain(described, short=self._short)
        )
        return replace(check, message=message), described

    @property
    def cases(self) -> dict[str, tuple[Any, ...]]:
        """What has items, by the name of the built-in test, in the order in which they
        run."""
        checks = self.results.checks
        return {
            "test_performance": tuple(
                result.case for result in self.results.configurations.values()
            ),
            "test_unmatched_run": self.failing_unmatched,
            **{
                kind.test_name: tuple(check for check in checks if check.kind is kind)
                for kind in CheckKind
            },
        }

    @property
    def failing_unmatched(self) -> tuple[UnmatchedRun, ...]:
        """The unmatched runs with an item, at most MOST_UNMATCHED, of which the last
        then joins all others.

        None if they are only listed. A recording has those of unreadable marks: what it
        records may be a run of an A/B.
        """
        if self.settings.unmatched != "fail":
            return ()
        recording = self.settings.record is not None
        runs = [
            run
            for run in self.results.unmatched
            if not recording or run.reason is Reason.MARK_UNREADABLE
        ]
        if len(runs) > MOST_UNMATCHED:
            from pytest_llmbench.session.unmatched import join_unmatched

            # What cannot be read comes first: it is rarer, and may hide any run.
            runs.sort(
                key=lambda run: (
                    run.reason not in (Reason.UNREADABLE, Reason.MARK_UNREADABLE)
                )
            )
            runs = [
                *runs[: MOST_UNMATCHED - 1],
                join_unmatched(runs[MOST_UNMATCHED - 1 :]),
            ]
        return tuple(runs)

    def pack_for_workers(self) -> bytes:
        """Return what an xdist worker needs to settle items without reading a log."""
        results = replace(self.results, measurements={}, tables=())
        settings = self.settings.replace(
            history=None
        )  # the controller's, and its URL may hold a password
        return pickle.dumps((settings, self.directory, self.now, results))

    @classmethod
    def unpack_from_controller(cls, pickled: bytes) -> Session:
        """Return the session of the controller, from `pack_for_workers`."""
        settings, directory, now, results = pickle.loads(pickled)  # noqa: S301 (comes from our own controller)
        return cls(settings, lambda: now, directory, results=results)

    def pop_selection(self) -> dict[str, Any] | None:
        """Return what a worker selected as plain values, once."""
        from dataclasses import asdict

        if self.selection is None or self._handed_over:
            return None
        self._handed_over = True
        return asdict(self.selection)

    def notice_left_out(self, options: str) -> None:
        """Keep as cautions what the selection (`options`) left out, what did not run,
        newer runs without an item."""
        from pytest_llmbench.session.cautions import (
            caution_newer,
            caution_skipped,
            list_subjects,
        )

        if self.selection is None:
            return
        labels = list_subjects(self.results, self.settings, self.failing_unmatched)
        chosen = (
            self.settings.launch or self.settings.record
        )  # what to launch or to record is chosen by selecting it
        by = "" if chosen else options or "the selection"
        self.noticed += caution_skipped(
            self.selection, self.ran, self.unjudged, labels, by
        )
        if self.settings.record is None:
            reported = {item.id for item in self.described if item.kind == "stray"}
            left_out = {
                name
                for _, name in (*self.selection.left_out, *self.selection.deselected)
            }
            untold = (
                run
                for run in self.results.unmatched
                if run.id not in reported | left_out
            )
            self.noticed += caution_newer(self.results, self.selection, untold)

    @property
    def judged(self) -> bool:
        """Whether any item ended with a verdict that rests on a run, or with a
        recording, or red."""
        return any(map(_is_judged, self.described))

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What a reader of the verdicts should know besides; empty where there is
        nothing to say."""
        from pytest_llmbench.session.cautions import JudgedSession, find_cautions

        if not self.described:
            return ()
        session = JudgedSession(
            self.described,
            self.results,
            self.settings,
            self.catalog,
            self.now.date(),
            noticed=tuple(self.noticed),
            unjudged=tuple(self.unjudged),
        )
        return tuple(
            replace(caution, text=self.redactor.redact(caution.text))
            for caution in find_cautions(session)
        )

    def describe_crash(self, nodeid: str, error: str) -> list[OutcomeDocument]:
        """Return the outcome of an item that ended without one: its worker crashed."""
        from msgspec import structs

        from pytest_llmbench.core.outcome_records import (
            ConfigurationResult,
            Outcome,
            Status,
        )

        result = self.results.configurations.get(formatting.get_item_id(nodeid))
        if result is None:
            return []
        described = self._describe(
            Outcome(ConfigurationResult(result.case, result.judgement), Status.FAILED)
        )
        text = f"the item did not end: {formatting.escape(error.strip().partition(chr(10))[0])}"
        change = {
            "verdict": "TEST_FAILED",
            "reason": "test-failed",
            "text": self.redactor.redact(text),
        }
        return [structs.replace(described, **change)]


def _is_judged(described: OutcomeDocument) -> bool:
    from pytest_llmbench.core.codes import Reason

    if described.status == "failed":
        return True
    if described.kind == "check":
        return described.decides
    if described.reason == Reason.PURPOSE_DONE:  # a profile, say, that was asked for
        return True
    verdict = described.overruled or described.verdict
    return verdict in SOUND and not (
        described.status == "skipped" and verdict == "INCONCLUSIVE"
    )
