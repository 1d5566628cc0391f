"""What the hooks of one pytest session share: settings, baselines, and everything judged, each made once on demand."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import wording

if TYPE_CHECKING:
    from pytest_llmbench.batch import Batch
    from pytest_llmbench.catalogue import Catalogue
    from pytest_llmbench.launching import Launching
    from pytest_llmbench.models import Case, Check, Outcome, Stray
    from pytest_llmbench.reading import Done
    from pytest_llmbench.settings import Settings

SHORT_FROM = 6
"""From this many failing items on, each message takes three lines."""

LOST = "give --llmb-logs the folder that holds the runs, or look at what is in it with: llmbench summary PATH"
FOUND = "correct what keeps these runs from being judged; all of them are shown by: llmbench summary PATH"
"""What to do when nothing was judged, without and with runs."""

KINDS = ("cluster-change", "weak-scaling", "fp8-speedup", "selftest")
"""The checks, each with a test of its own."""

SOUND = ("PASS", "IMPROVEMENT", "REGRESSION", "INCONCLUSIVE", "RECORDED")
"""The verdicts of a session that did its work, whatever a user's own test made of them."""


class Session:
    """Lazily read and judged runs. `described` collects the outcome dictionaries that reports are made from."""

    def __init__(self, settings: Settings, clock: Callable[[], datetime], directory: Path) -> None:
        """Take the resolved settings, the source of the time, and the folder that paths are shown relative to."""
        self.settings = settings
        self.directory = directory
        self.described: list[dict[str, Any]] = []
        self.written: list[str] = []
        self.failures: list[str] = []
        self.used = False
        self.ended_early = False
        self.problems = False
        self.tell_reading: Callable[[Done], None] | None = None
        self._clock = clock
        self._settled: dict[str, tuple[Outcome, dict[str, Any]]] = {}
        self._short = False
        self._context = ""

    @classmethod
    def from_options(cls, values: Mapping[str, Any], directory: Path) -> Session:
        """Resolve option values; relative paths are below `directory`. Raises SettingsError."""
        from pytest_llmbench.settings import resolve

        return cls(resolve(values, directory), lambda: datetime.now(UTC), directory)

    def prepare(self) -> None:
        """Read the baselines now, so that a bad file or option is told before anything else happens."""
        if "batch" not in self.__dict__:
            _ = self.catalogue

    @cached_property
    def now(self) -> datetime:
        """The time of the session."""
        return self._clock()

    @cached_property
    def catalogue(self) -> Catalogue:
        """The baselines in use."""
        from pytest_llmbench.catalogue import load

        return load(self.settings)

    @cached_property
    def batch(self) -> Batch:
        """Everything found and judged; the first use reads the logs. Before a launch nothing is."""
        from pytest_llmbench.launching import unlaunched
        from pytest_llmbench.pipeline import gather

        if self.settings.launch is not None:
            return unlaunched(self.settings, self.catalogue)
        return gather(self.settings, self.catalogue, self.now, self.tell_reading)

    def launch(self, selected: Collection[str], tell: Callable[[str], None]) -> bool:
        """Launch the selected items (ids) and judge them; whether the session ends without running them.

        Raises LaunchError for what is in the way, Interrupted when somebody stops it.
        """
        launching = self._launching(tell)
        keys = [self.batch.results[identifier].case.key for identifier in selected]
        self.ended_early = launching.run(keys)
        self.problems = launching.problems
        self.__dict__["batch"] = launching.batch
        return self.ended_early

    def _launching(self, tell: Callable[[str], None]) -> Launching:
        import os
        import sys
        import time

        from pytest_llmbench.launch.runner import run
        from pytest_llmbench.launch_plan import Host
        from pytest_llmbench.launching import Launching

        if self.settings.launch is None:
            raise ValueError("the session launches nothing")
        environment = {"PYTHON": sys.executable, **os.environ}  # for recipes that ask for an interpreter
        host = Host(self._clock, time.sleep, run, environment, tell, self.directory / ".llmbench")
        return Launching(self.settings, self.settings.launch, self.catalogue, host)

    def settle(self, selected: Collection[str]) -> None:
        """Decide what becomes of the selected items (ids), or record baselines from them."""
        from pytest_llmbench.recording import record
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.report.jobs import files
        from pytest_llmbench.settling import settle

        if self.settings.record is None:
            outcomes = settle(self.batch, selected, self.settings)
        else:
            outcomes, paths = record(self.batch, selected, self.settings, self.now)
            self.written += [f"wrote {wording.place(path, self.directory)}" for path in paths]
        self._short = sum(outcome.failed for outcome in outcomes) + len(self.failing_strays) >= SHORT_FROM
        self._context = next((outcome.context for outcome in outcomes if outcome.context), "")
        for outcome in outcomes:
            told = self._told(outcome)
            named = ": ".join(filter(None, (told["text"], wording.listed(files(told)))))
            one_line = f"{told['verdict']} ({told['reason']}): {named}"
            message = one_line if outcome.skipped else explain(told, short=self._short)
            self._settled[outcome.case.id] = replace(outcome, message=message), told

    def _told(self, outcome: Outcome) -> dict[str, Any]:
        from pytest_llmbench.report.outcome import describe

        told: dict[str, Any] = wording.printable_values(describe(outcome, self.now, self.directory))
        return told

    def outcome(self, case: Case) -> tuple[Outcome, dict[str, Any]]:
        """Return the outcome of a selected item, and its dictionary."""
        return self._settled[case.id]

    def stray(self, stray: Stray) -> tuple[Stray, dict[str, Any]]:
        """Return a stray with the message of its item, and its dictionary."""
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.report.outcome import describe_stray

        told = wording.printable_values(describe_stray(stray, self.directory))
        return replace(stray, message=explain(told, short=self._short)), told

    def check(self, check: Check) -> tuple[Check, dict[str, Any]]:
        """Return a check with the message of its item, and its dictionary."""
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.report.outcome import describe_check

        told = wording.printable_values(describe_check(check))
        message = check.text if check.skipped else explain(told, short=self._short)
        return replace(check, message=message), told

    @cached_property
    def cases(self) -> dict[str, tuple[Any, ...]]:
        """What has items, by the name of the built-in test, in the order in which they run."""
        of_kind = {kind: tuple(check for check in self.batch.checks if check.kind == kind) for kind in KINDS}
        return {
            "test_performance": tuple(result.case for result in self.batch.results.values()),
            "test_unmatched_run": self.failing_strays,
            **{f"test_{kind.replace('-', '_')}": checks for kind, checks in of_kind.items()},
        }

    @property
    def failing_strays(self) -> tuple[Stray, ...]:
        """The strays that have an item of their own: none where they are only listed, or nothing is judged."""
        judging = self.settings.unmatched == "fail" and self.settings.record is None
        return self.batch.strays if judging else ()

    def for_workers(self) -> bytes:
        """Return what an xdist worker needs to settle items without reading a log."""
        batch = replace(self.batch, measurements={})
        return pickle.dumps((self.settings, self.directory, self.now, batch))

    @classmethod
    def in_worker(cls, pickled: bytes) -> Session:
        """Return the session of the controller, from `for_workers`."""
        settings, directory, now, batch = pickle.loads(pickled)  # noqa: S301 (comes from our own controller)
        session = cls(settings, lambda: now, directory)
        session.__dict__["batch"] = batch
        return session

    @property
    def judged(self) -> bool:
        """Whether any item ended with a verdict that rests on a run, or with a recording, or red."""
        return any(map(_is_judged, self.described))

    def crashed(self, nodeid: str, error: str) -> list[dict[str, Any]]:
        """Return the outcome of an item that ended without one: its worker crashed."""
        from pytest_llmbench.models import Outcome, Status

        result = self.batch.results.get(nodeid.partition("[")[2].removesuffix("]"))
        if result is None:
            return []
        told = self._told(Outcome(result.case, Status.FAILED, result.judgement))
        text = f"the item did not end: {error.strip().partition(chr(10))[0]}"
        return [{**told, "verdict": "TEST_FAILED", "reason": "test-failed", "text": text}]

    def header(self) -> list[str]:
        """Return what decides, for the head of the session's output."""
        return [f"llmbench: {line}" for line in self._header()]

    def _header(self) -> Iterator[str]:
        settings = self.settings
        yield f"baselines: {self.catalogue.describe()}"
        for path in settings.baselines:
            yield f"baselines: {wording.place(path, self.directory)}"
        if settings.baselines:
            yield f"judged against: {settings.against or 'recorded where there are any'}"
        for tolerance in _tolerances(settings):
            yield f"tolerance: {tolerance}"
        for path in settings.logs:
            yield f"{'history' if settings.launch else 'logs'}: {wording.place(path, self.directory)}"
        yield from self._rules()

    def _rules(self) -> Iterator[str]:
        """Yield what is not as ever."""
        settings = self.settings
        if settings.launch is not None:
            yield from settings.launch.told(self.directory)
        if settings.certify:
            yield f"certifying against {settings.against} baselines: inconclusive and missing configurations fail"
        elif settings.inconclusive != "literal":
            yield f"inconclusive runs: {settings.inconclusive}"
        if settings.repeat_window:
            yield f"repeats: runs of one build within {wording.age(settings.repeat_window)} of the newest"
        if settings.baseline_release:
            yield f"every run is judged against release {settings.baseline_release}"
        if settings.record:
            yield f"recording to {wording.place(settings.record, self.directory)}; nothing is judged"

    def write_reports(self) -> bool:
        """Write the report files that were asked for; False, with the reason kept for the summary, where one failed."""
        if self.settings.junit is None:
            return True
        from pytest_llmbench.report.junit import write_junit

        try:
            write_junit(self.settings.junit, self.described, self.now)
        except OSError as error:
            self.failures.append(f"--llmb-junit={self.settings.junit}: the report was not written: {error.strerror}")
            return False
        self.written.append(f"JUnit report: {wording.place(self.settings.junit, self.directory)}")
        return True

    def summary(self, verbose: bool = False) -> list[str]:
        """Return the lines of the summary, with all files that were skipped where `verbose`; empty where no item had an
        outcome."""
        from pytest_llmbench.report.terminal import summary

        if not self.described:
            return self.failures
        return [*summary(self.described, [*self._remarks(), *self._skipped(verbose), *self.written, *self.failures])]

    def _remarks(self) -> list[str]:
        """Return what the summary adds to the verdicts: runs left out or only listed, files that are no logs."""
        from pytest_llmbench.strays import briefly

        batch, since = self.batch, self.settings.since
        remarks = []
        if batch.runs_before_since and since:
            left_out = wording.counted(batch.runs_before_since, "run")
            remarks.append(f"{left_out} left out: started before {since:%Y-%m-%d %H:%M} UTC (--llmb-since)")
        if self._context:
            own = "".join(f" --baselines {wording.place(path, self.directory)}" for path in self.settings.baselines)
            next_step = f". Next: {FOUND if batch.runs_found else LOST}{own}"
            remarks.append(f"{self._context.removesuffix('.')}{'' if self.settings.launch else next_step}")
        told = {one["id"] for one in self.described if one["kind"] == "stray"}
        untold = [stray for stray in batch.strays if stray.id not in told]
        remarks += [
            f"{stray.reason.upper()}, not judged: {stray.id}: {'; '.join(briefly(stray.text))}" for stray in untold[:5]
        ]
        if len(untold) > 5:
            remarks.append(f"{len(untold) - 5} more runs were not judged: --llmb-unmatched=fail makes an item of each")
        return remarks

    def _skipped(self, verbose: bool) -> Iterator[str]:
        ignored = self.batch.ignored
        if verbose or len(ignored) == 1:
            yield from (f"skipped {one}" for one in ignored)
        elif ignored:
            yield f"{len(ignored)} files skipped (-v tells all of them), first {ignored[0]}"


def _is_judged(one: dict[str, Any]) -> bool:
    from pytest_llmbench.models import Reason

    if one["status"] == "failed":
        return True
    if one["kind"] == "check":
        return bool(one["decides"])
    if one["reason"] == Reason.PURPOSE_DONE:  # a profile, say, that was asked for
        return True
    verdict = one.get("overruled") or one.get("verdict")
    return verdict in SOUND and not (one["status"] == "skipped" and verdict == "INCONCLUSIVE")


def _tolerances(settings: Settings) -> Iterator[str]:
    from pytest_llmbench.settings import DEFAULT_TOLERANCE
    from pytest_llmbench.tolerance import TIME, slot

    for tolerance in settings.tolerances:
        yield f"{tolerance} ({tolerance.source})"
    if not any(slot(tolerance) == TIME for tolerance in settings.tolerances):
        yield f"{DEFAULT_TOLERANCE} unless a baseline says otherwise"
