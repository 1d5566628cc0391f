"""The state that the hooks of a pytest session share: settings, baselines, results."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

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
    from pytest_llmbench.plugin.messages import DescribedCheck, DescribedOutcome
    from pytest_llmbench.report.outcome_documents import (
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

# Maximum number of items for unmatched runs: pytest's time for failed items grows with
# the square of their number.
MOST_UNMATCHED = 1000

JUDGED_VERDICTS = ("PASS", "IMPROVEMENT", "REGRESSION", "INCONCLUSIVE", "RECORDED")
"""The verdicts that count as judged, whatever the user's own test did with them."""


class Session:
    """The settings, results and outcomes of one pytest session.

    They are created in this order: the settings; the catalog and the history, before
    collection (`prepare`); the results, at collection; the outcomes of the selected
    items, before the first of them runs (`decide_outcomes`). A launch replaces the
    results when its jobs have ended.
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
        """Initialise the state of a session.

        Reports show paths relative to `directory`. `results` are given in an xdist
        worker: only the controller reads logs.
        """
        self.settings = settings
        self.launching = launching
        self.directory = directory
        self.command: tuple[str, ...] = ()
        """The arguments of pytest, for the history."""
        self.report_reading: Callable[[ReadCounts], None] | None = None
        self.stop = StopSignals()
        """Received Ctrl-C, SIGTERM and SIGHUP; only the controller handles them."""
        self.interrupted = False
        self._clock = clock
        self._results = results
        self._outcomes: dict[str, DescribedOutcome] = {}
        self._is_short = False  # messages of failing items take three lines

        # The state of a launch.
        self.ended_early = False
        self._launched = False
        self._recording = False
        self._recorded: tuple[Path, ...] = ()
        self.has_launch_problems = False
        self.secrets: frozenset[str] = frozenset()
        self.redactor = make_redactor().without(
            results.configurations if results else ()
        )
        """Redacts secrets in all output and files."""

        # The state of the running items.
        self.selection: Selection | None = None
        self.finished_ids: set[str] = set()
        """Node ids of the items that ran."""
        self.has_plugin_items = False
        """True if an item used a fixture of this plugin."""
        self.unjudged_ids: list[str] = []
        """Node ids of items that were skipped before they had a verdict."""
        self.noticed: list[Caution] = []
        """Cautions that are known before the outcomes are examined."""
        self._is_selection_sent = False

        # The contents of reports.
        self.reported: dict[str, OutcomeDocument] = {}
        """The outcomes of test reports from this process, by node id."""
        self.finished_outcomes: list[OutcomeDocument] = []
        """The outcomes of the finished items."""
        self.absence_reasons: tuple[str, ...] = ()
        """The reasons why nothing was judged; empty if something was."""
        self.written: list[str] = []
        """Lines of the summary that name the written files."""
        self.failures: list[str] = []
        """Failures of the session itself, printed at any verbosity."""
        self.has_summary = False

    @classmethod
    def from_options(cls, values: Mapping[str, Any], directory: Path) -> Session:
        """Create a session from option values; relative paths start at `directory`.

        Raises SettingsError for an invalid value.
        """
        from pytest_llmbench.launch.launch_settings import resolve_launch
        from pytest_llmbench.session.settings import LaunchRequest, resolve

        launching = resolve_launch(values, directory)
        request = (
            LaunchRequest(launching.launcher, launching.cluster) if launching else None
        )
        settings = resolve(values, directory, request)
        return cls(settings, lambda: datetime.now(UTC), directory, launching=launching)

    def prepare(self) -> None:
        """Read the baselines and the history now, so that errors are reported early."""
        if self._results is None:
            _ = self.catalog, self.history

    @cached_property
    def now(self) -> datetime:
        """The start time of the session."""
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
        """The history, or None without one; raises HistoryError if it is unusable."""
        location = self.settings.history
        if location is None:
            return None
        from pytest_llmbench.session.session_history import SessionHistory

        return SessionHistory(location, self.catalog.baselines)

    @property
    def results(self) -> SessionResults:
        """All runs and their judgements; the first access reads the logs.

        Before a launch no configuration has a run.
        """
        if self._results is None:
            from pytest_llmbench.core.runtime import pause_garbage_collection

            # Hardly any of these objects are in cycles, and they live until the end.
            with pause_garbage_collection():
                self._results = self._complete(self._gather_results())
                # Not after the context: a collection would first visit all of them.
                gc.freeze()
        return self._results

    def _gather_results(self) -> SessionResults:
        """Judge the runs on disk, or build results without runs before a launch.

        Adds tables found next to the logs to the catalog.
        """
        if self.settings.launch is not None:
            from pytest_llmbench.launch.launch_session import build_unlaunched_results

            return build_unlaunched_results(self.settings, self.catalog)
        from pytest_llmbench.session.catalog import add_tables
        from pytest_llmbench.session.evaluate import gather

        results = gather(
            self.settings, self.catalog, self.now, self.report_reading, self.history
        )
        self.catalog = add_tables(self.catalog, results.tables, self.settings)
        return results

    def launch(self, selected: Collection[str], tell: Callable[[str], None]) -> bool:
        """Launch the selected items (ids) and judge their runs.

        Returns True if the session must end without running the items. Raises
        LaunchError if a job cannot be launched, Interrupted if the user stops it.
        """
        launching = self._make_launch_session(tell)
        keys = [
            self.results.configurations[identifier].case.key for identifier in selected
        ]
        # From now on the launch itself reports its jobs if it is interrupted.
        self._launched = True
        self.ended_early = launching.run(keys)
        self.has_launch_problems = launching.problems
        self.secrets = launching.secrets
        self.redactor = self.redactor.with_values(self.secrets)
        self.noticed += launching.list_cautions()
        self._results = self._complete(launching.results)
        return self.ended_early

    def describe_unlaunched(self) -> str:
        """Describe the running jobs of a session interrupted before its launch.

        Returns "" for other sessions.
        """
        if self.launching is None or self._launched:
            return ""
        from pytest_llmbench.launch.continuation import describe_early_interrupt

        return self.redactor.redact(
            describe_early_interrupt(self.launching, self._make_host(lambda line: None))
        )

    def _make_launch_session(self, tell: Callable[[str], None]) -> LaunchSession:
        """Create the launch, which prints its lines with `tell`."""
        from pytest_llmbench.launch.launch_session import LaunchSession

        if self.launching is None:
            raise ValueError("not a launching session")
        past = self.history.past if self.history else None
        return LaunchSession(
            self.settings, self.launching, self.catalog, self._make_host(tell), past
        )

    def _make_host(self, tell: Callable[[str], None]) -> Host:
        """Return the functions and folders of this machine that a launch uses."""
        import sys
        import time

        from pytest_llmbench.core.commands import run
        from pytest_llmbench.launch.jobs.journal import FOLDER
        from pytest_llmbench.launch.plan.planner import Host

        return Host(
            now=self._clock,
            sleep=time.sleep,
            run=run,
            environment={
                "PYTHON": sys.executable,  # for recipes that need an interpreter
                **os.environ,
            },
            tell=tell,
            folder=(self.launching and self.launching.journal)
            or self.directory / FOLDER,
            directory=self.directory,
            index=self.settings.cache / "sessions.jsonl"
            if self.settings.cache
            else None,
            command=self.command,
            read_noise=lambda cluster, ids: (
                self.history.read_noise(cluster, ids) if self.history else {}
            ),
        )

    def decide_outcomes(
        self, selected: Collection[str], *, guarded: bool = False
    ) -> None:
        """Decide the outcomes of the selected items (ids), or record their baselines.

        `guarded` is true if the session has an item that checks that something was
        judged.
        """
        from pytest_llmbench.plugin.messages import DescribedOutcome
        from pytest_llmbench.session.outcomes import decide_guard, decide_outcomes

        if self.settings.record is None:
            outcomes = decide_outcomes(
                self.results, selected, self.settings, guarded=guarded
            )
        else:
            from pytest_llmbench.session.record_baselines import record

            author = self._find_author()
            # From now on an interruption may leave some of the files written.
            self._recording = True
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
        self._is_short = (
            sum(outcome.failed for outcome in outcomes) + len(self.failing_unmatched)
            >= SHORT_FROM
        )
        self.absence_reasons = next(
            (outcome.context for outcome in outcomes if outcome.context), ()
        )
        for outcome in outcomes:
            self._outcomes[outcome.case.id] = DescribedOutcome(
                **asdict(outcome),
                document=self._describe(outcome),
                is_short=self._is_short,
            )

    def describe_recorded(self) -> str:
        """Describe the baselines that an interrupted session had recorded.

        Returns "" if the session does not record.
        """
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
            folder = formatting.format_path(self.settings.record, self.directory)
            return (
                "interrupted while recording: each file in "
                f"{folder} is either unchanged or complete; record again"
            )
        return "nothing was recorded"

    def _find_author(self) -> str:
        """Return the name that recorded baselines state as their author."""
        import socket

        from pytest_llmbench.core.commands import run
        from pytest_llmbench.session.record_baselines import find_author

        return find_author(self.directory, os.environ, socket.gethostname(), run)

    def _describe(self, outcome: Outcome) -> ConfigurationOutcome:
        """Convert an outcome into its document, with secrets redacted."""
        from pytest_llmbench.report.describe_outcome import describe, redact

        is_own = outcome.case.key in self.results.user_keys
        document = describe(
            outcome, self.now, self.directory, self.settings.commit, own=is_own
        )
        return redact(document, self.redactor)

    def _complete(self, results: SessionResults) -> SessionResults:
        """Add last good runs from the history, and redact the ids of unmatched runs."""
        results = self.history.with_details(results) if self.history else results
        self.redactor = self.redactor.without(results.configurations)
        unmatched = tuple(
            replace(run, id=self.redactor.redact(run.id)) for run in results.unmatched
        )
        return replace(results, unmatched=unmatched)

    def get_outcome(self, case: Case) -> DescribedOutcome:
        """Return the outcome of a selected item."""
        return self._outcomes[case.id]

    def add_outcome(self, node: str, plain: dict[str, Any]) -> None:
        """Add the outcome of a finished item, from its test report."""
        outcome = self.reported.pop(node, None)
        if outcome is None:  # the report is from another process
            from pytest_llmbench.report.outcome_documents import restore_outcome

            outcome = restore_outcome(plain)
        self.finished_outcomes.append(outcome)

    def describe_unmatched(
        self, run: UnmatchedRun
    ) -> tuple[UnmatchedRun, UnmatchedOutcome]:
        """Return an unmatched run with the message of its item, and its document."""
        from pytest_llmbench.report.describe_outcome import (
            describe_unmatched_run,
            redact,
        )
        from pytest_llmbench.report.explain import explain

        document = redact(
            describe_unmatched_run(run, self.directory, self.settings.logs),
            self.redactor,
        )
        return replace(run, message=explain(document, short=self._is_short)), document

    def describe_check(self, check: Check) -> DescribedCheck:
        """Return a check with its document."""
        from pytest_llmbench.plugin.messages import DescribedCheck
        from pytest_llmbench.report.describe_outcome import describe_check, redact
        from pytest_llmbench.session.absences import advise_no_judged_run

        # The selection may have changed the check since its item was collected.
        check = next(
            (
                current
                for current in self.results.checks
                if (current.kind, current.id) == (check.kind, check.id)
            ),
            check,
        )
        advice = (
            advise_no_judged_run(self.results, self.settings, self.directory)
            if check.verdict == Finding.NOTHING_JUDGED
            else ""
        )
        document = redact(describe_check(check, advice), self.redactor)
        return DescribedCheck(
            **asdict(check), document=document, is_short=self._is_short
        )

    @property
    def cases(self) -> dict[str, tuple[Any, ...]]:
        """The cases that have items, by name of the built-in test, in running order."""
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
        """The unmatched runs with an item, at most MOST_UNMATCHED.

        If there are more, the last item represents all others. Empty under
        --llmb-unmatched=list. When baselines are recorded, only the unreadable marker
        files of A/B tests have items: without them, runs of a test may be recorded.
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

            # Unreadable paths come first: they are rare and may hide any run.
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
        """Pickle the state that an xdist worker needs, so that it reads no logs."""
        results = replace(self.results, measurements={}, tables=())
        # Only the controller uses the history, whose URL may contain a password.
        settings = self.settings.replace(history=None)
        return pickle.dumps((settings, self.directory, self.now, results))

    @classmethod
    def unpack_from_controller(cls, pickled: bytes) -> Session:
        """Restore a session from `pack_for_workers`."""
        settings, directory, now, results = pickle.loads(pickled)  # noqa: S301 (comes from our own controller)
        return cls(settings, lambda: now, directory, results=results)

    def pop_selection(self) -> dict[str, Any] | None:
        """Return the selection of a worker as plain values; None after the first call."""
        if self.selection is None or self._is_selection_sent:
            return None
        self._is_selection_sent = True
        return asdict(self.selection)

    def add_selection_cautions(self, options: str) -> None:
        """Add cautions about failures and newer runs that the session did not show.

        These are items that the selection left out, items that did not run, and newer
        unmatched runs. `options` are the selecting options, such as `-k and -m`.
        """
        from pytest_llmbench.session.cautions import (
            caution_newer,
            caution_unjudged_items,
            label_subjects,
        )

        if self.selection is None:
            return
        labels = label_subjects(self.results, self.settings, self.failing_unmatched)
        # A launch or a recording is meant to select some configurations only.
        is_partial = self.settings.launch or self.settings.record
        selected_by = "" if is_partial else options or "the selection"
        self.noticed += caution_unjudged_items(
            self.selection, self.finished_ids, self.unjudged_ids, labels, selected_by
        )
        if self.settings.record is None:
            reported_ids = {
                item.id for item in self.finished_outcomes if item.kind == "stray"
            }
            left_out_ids = {
                name
                for _, name in (*self.selection.left_out, *self.selection.deselected)
            }
            unreported_runs = (
                run
                for run in self.results.unmatched
                if run.id not in reported_ids | left_out_ids
            )
            self.noticed += caution_newer(self.results, self.selection, unreported_runs)

    @property
    def has_judged(self) -> bool:
        """True if any item failed, judged a run, or recorded a baseline."""
        return any(map(_is_judged, self.finished_outcomes))

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """The cautions about the verdicts of the session."""
        from pytest_llmbench.session.cautions import JudgedSession, find_cautions

        if not self.finished_outcomes:
            return ()
        session = JudgedSession(
            self.finished_outcomes,
            self.results,
            self.settings,
            self.catalog,
            self.now.date(),
            noticed=tuple(self.noticed),
            unjudged=tuple(self.unjudged_ids),
        )
        return tuple(
            replace(caution, text=self.redactor.redact(caution.text))
            for caution in find_cautions(session)
        )

    def describe_crash(self, nodeid: str, error: str) -> list[OutcomeDocument]:
        """Return the outcome of an item whose xdist worker crashed.

        Returns no outcome if the item is not about a configuration.
        """
        from msgspec import structs

        from pytest_llmbench.core.outcome_records import (
            ConfigurationResult,
            Outcome,
            Status,
        )

        result = self.results.configurations.get(formatting.get_item_id(nodeid))
        if result is None:
            return []
        document = self._describe(
            Outcome(ConfigurationResult(result.case, result.judgement), Status.FAILED)
        )
        text = f"the test process crashed: {formatting.escape(error.strip().partition(chr(10))[0])}"
        changes = {
            "verdict": "TEST_FAILED",
            "reason": "test-failed",
            "text": self.redactor.redact(text),
        }
        return [structs.replace(document, **changes)]


def _is_judged(outcome: OutcomeDocument) -> bool:
    """True if an outcome failed, is about a judged run, or recorded a baseline."""
    from pytest_llmbench.core.codes import Reason

    if outcome.status == "failed":
        return True
    if outcome.kind == "check":
        return outcome.decides
    if outcome.reason == Reason.PURPOSE_DONE:  # for example a requested profile
        return True
    verdict = outcome.overruled or outcome.verdict
    return verdict in JUDGED_VERDICTS and not (
        outcome.status == "skipped" and verdict == "INCONCLUSIVE"
    )
