"""`llmbench replay`: judge the same runs again and list the verdicts that change.

Runs are judged under other settings, or compared with the verdicts of a history.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.formatting import count_noun, format_difference, join_first
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.run_records import make_run_keys
from pytest_llmbench.tools.command_line import (
    WIDTH,
    Output,
    Subparsers,
    add_log_arguments,
    rename_flags,
    resolve_settings,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.outcome_records import Outcome
    from pytest_llmbench.core.run_records import StoredRun
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.session.outcomes import SessionResults
    from pytest_llmbench.session.settings import Settings

WHAT_IF = (
    "--llmb-tolerance",
    "--llmb-inconclusive",
    "--llmb-improvement",
    "--llmb-against",
    "--llmb-baseline-release",
    "--llmb-max-age",
    "llmb_repeat_window",
    "llmb_assumed_cv",
    "--llmb-drift-budget",
    "--llmb-certify",
)
"""Options and ini keys of pytest that affect verdicts but not which runs are read."""


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench replay`."""
    from pytest_llmbench.core.options import OPTIONS

    parser = commands.add_parser(
        "replay",
        help="Judge the same runs under other settings and list the verdicts that change.",
    )
    add_log_arguments(parser)
    for option in OPTIONS:
        if option.flag not in WHAT_IF:
            continue
        keywords: dict[str, Any] = {"metavar": option.metavar}
        if option.is_flag:
            # None instead of False distinguishes an option that was not given.
            keywords = {"action": "store_true", "default": None}
        parser.add_argument(
            _name_flag(option.flag), dest=option.dest, help=option.help, **keywords
        )
    parser.add_argument(
        "--history",
        metavar="URL",
        help="Judge all runs again and list the verdicts that differ from this history, for example after an upgrade.",
    )
    parser.set_defaults(command=_run)


def _name_flag(name: str) -> str:
    """Convert an option or ini key of pytest to the flag of this command.

    `--llmb-max-age` becomes `--max-age`, `llmb_assumed_cv` becomes `--assumed-cv`.
    """
    return "--" + name.removeprefix("--").replace("_", "-").removeprefix("llmb-")


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench replay`. The exit code is 1 if no run was judged."""
    from pytest_llmbench.core.option import name_destination

    # The given options among those that may be changed; None means not given.
    destinations = map(name_destination, WHAT_IF)
    values = {name: getattr(arguments, name) for name in destinations}
    changed = {name: value for name, value in values.items() if value is not None}
    if not all(str(value).strip() for value in changed.values()):
        raise SettingsError("an option is empty: give it a value or leave it out")
    if arguments.history is not None:
        return _run_against_history(arguments, changed)
    if not changed:
        flags = ", ".join(map(_name_flag, WHAT_IF))
        raise SettingsError(f"no setting to change: give one of {flags}, or --history")
    with rename_flags():
        replayed = replay(
            resolve_settings(arguments),
            resolve_settings(arguments, **changed),
            datetime.now(UTC),
        )
    return Output(format_replay(replayed), code=0 if replayed.judged else 1)


def _run_against_history(
    arguments: argparse.Namespace, changed: Mapping[str, object]
) -> Output:
    """Judge the runs again and compare the verdicts with those of a history.

    `changed` are the changed settings. The exit code is 1 if the history has no verdict
    on the runs.
    """
    from pytest_llmbench.tools.history_options import locate_history

    store = locate_history(arguments.history)
    with rename_flags():
        settings = resolve_settings(arguments, llmb_runs="each", **changed)
        replayed = replay_history(settings, store, datetime.now(UTC))
    return Output(format_replayed(replayed), code=0 if replayed else 1)


# --- verdicts under two settings ------------------------------------------------------


class VerdictChange(Struct, frozen=True):
    """A configuration whose verdict or test outcome changed."""

    id: str
    before: Outcome | None
    """The outcome under the old settings; None without an item."""

    after: Outcome | None
    """The outcome under the new settings; None without an item."""

    @property
    def failed(self) -> tuple[bool, bool]:
        """The pair (fails under the old settings, fails under the new settings)."""
        return _is_failed(self.before), _is_failed(self.after)


class Replay(Struct, frozen=True):
    """The result of judging runs under two settings."""

    judged: int
    """Items with a verdict under either settings."""

    items: int
    changes: tuple[VerdictChange, ...]


def replay(before: Settings, after: Settings, now: datetime) -> Replay:
    """Judge the runs of `before.logs` under two settings.

    The runs are read again only if `after` assigns them to another release.
    """
    from pytest_llmbench.session.catalog import load
    from pytest_llmbench.session.collect_runs import ingest
    from pytest_llmbench.session.evaluate import evaluate_runs

    # Another release assigns the runs to other configurations, so read them again.
    catalog = load(before)
    runs = ingest(before, catalog, now)
    outcomes_before = _decide(evaluate_runs(runs, before, catalog, now), before)
    catalog_after = load(after)
    if after.baseline_release != before.baseline_release:
        runs = ingest(after, catalog_after, now)
    outcomes_after = _decide(evaluate_runs(runs, after, catalog_after, now), after)
    pairs = [
        VerdictChange(name, outcomes_before.get(name), outcomes_after.get(name))
        for name in sorted({*outcomes_before, *outcomes_after})
    ]
    changes = tuple(
        pair for pair in pairs if _get_verdict(pair.before) != _get_verdict(pair.after)
    )
    judged = sum(_is_judged(pair.before) or _is_judged(pair.after) for pair in pairs)
    return Replay(judged, len(pairs), changes)


def format_replay(replayed: Replay) -> str:
    """Format the changed verdicts and a count, 79 columns wide.

    Items that newly fail come first, then items that no longer fail, then the others.
    """
    if not replayed.judged:
        return "nothing was judged: the given paths contain no valid run of a known configuration"
    lines: list[str] = []
    counts: list[str] = []
    for label, changes in _group_by_effect(replayed.changes):
        counts.append(f"{len(changes)} {label}")
        remark = " (fail before and after, or neither)" if label == OTHERWISE else ""
        lines.append(f"{label}{remark}:")
        lines += [_format_change(change) for change in changes if _has_run(change)]
        lines += _list_without_run(changes)
    total = (
        f"{len(replayed.changes)} of {count_noun(replayed.items, 'item')} would change"
    )
    if counts:
        total += f": {', '.join(counts)}"
    return "\n".join([*lines, total])


OTHERWISE = "change otherwise"

Change = TypeVar("Change", "VerdictChange", "ReplayedRun")


def _group_by_effect(changes: Sequence[Change]) -> Iterator[tuple[str, list[Change]]]:
    """Group changes by their effect on the test: newly fail, no longer fail, others."""
    # The keys are pairs (fails before, fails after), as in `failed`.
    labels = {(False, True): "newly fail", (True, False): "no longer fail"}
    # In the printed order.
    groups: dict[str, list[Change]] = {"newly fail": [], "no longer fail": []}
    for change in changes:
        label = labels.get(change.failed, OTHERWISE)
        groups.setdefault(label, []).append(change)
    return ((label, group) for label, group in groups.items() if group)


def _has_run(change: VerdictChange) -> bool:
    """True if a run was measured under either settings."""
    return any(
        outcome is not None and outcome.judgement.measurement is not None
        for outcome in (change.before, change.after)
    )


def _list_without_run(changes: Sequence[VerdictChange]) -> list[str]:
    """Format the configurations without a run as one wrapped line."""
    ids = [change.id for change in changes if not _has_run(change)]
    if not ids:
        return []
    return textwrap.wrap(
        f"{len(ids)} without a run: {join_first(ids)}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _format_change(change: VerdictChange) -> str:
    """Format a change: `  CONFIG_ID  PASS -> REGRESSION  +7.0 %`."""
    verdicts = " -> ".join(
        str(outcome.judgement.verdict) if outcome else "none"
        for outcome in (change.before, change.after)
    )
    newest = change.after or change.before
    log_difference = newest.judgement.log_difference if newest else None
    difference = ""
    if log_difference is not None:
        difference = format_difference(math.exp(log_difference))
    skipped = " (skipped)" if change.after is not None and change.after.skipped else ""
    return f"  {change.id:<38} {verdicts:<28} {difference:>7}{skipped}"


def _decide(results: SessionResults, settings: Settings) -> dict[str, Outcome]:
    """Return the outcome of each item by its id."""
    from pytest_llmbench.session.outcomes import decide_outcomes

    return {
        outcome.case.id: outcome
        for outcome in decide_outcomes(results, list(results.configurations), settings)
    }


def _get_verdict(outcome: Outcome | None) -> object:
    """Return (verdict, status) of an outcome, to compare outcomes; None without one."""
    if outcome is None:
        return None
    return outcome.judgement.verdict, outcome.status


def _is_judged(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.judged


def _is_failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.failed


# --- verdicts of a history ------------------------------------------------------------


class ReplayedRun(Struct, frozen=True):
    """A run with its verdict in a history and its current verdict."""

    started: datetime
    configuration: str
    job_id: str
    before: StoredRun
    after: Outcome

    @property
    def texts(self) -> tuple[str, str]:
        """The stored and the current verdict: `PASS (within-tolerance)`."""
        judgement = self.after.judgement
        return (
            f"{self.before.verdict} ({self.before.reason})",
            f"{judgement.verdict} ({judgement.reason})",
        )

    @property
    def failed(self) -> tuple[bool, bool]:
        """The pair (failed in the history, fails now)."""
        return self.before.status == Status.FAILED, self.after.failed

    @property
    def has_changed(self) -> bool:
        """True if its verdict, its reason or the outcome of its item changed."""
        stored_text, current_text = self.texts
        failed_before, fails_now = self.failed
        return stored_text != current_text or failed_before != fails_now


def replay_history(
    settings: Settings, store: StoreLocation, now: datetime
) -> list[ReplayedRun]:
    """Judge the runs of `settings.logs` that have a verdict in a history.

    Returns them oldest first. Raises HistoryError if the history cannot be read.
    """
    from pytest_llmbench.history.queries import read_stored_runs
    from pytest_llmbench.session.catalog import load
    from pytest_llmbench.session.collect_runs import ingest
    from pytest_llmbench.session.evaluate import evaluate_runs

    catalog = load(settings)
    runs = ingest(settings, catalog, now)
    keys = {run.identity.key for run in runs.runs if run.identity.key is not None}
    runs_by_id = read_stored_runs(store, [key.id for key in keys])
    earlier_runs = {key: runs_by_id[key.id] for key in keys if key.id in runs_by_id}
    # Stored runs with a verdict, by configuration id and each of their run keys.
    stored: dict[tuple[str, tuple[str, str | datetime]], StoredRun] = {}
    for configuration, stored_runs in runs_by_id.items():
        for run in stored_runs:
            if run.verdict:
                for run_key in make_run_keys(run.job_id, run.logs, run.started):
                    stored[configuration, run_key] = run
    results = evaluate_runs(runs, settings, catalog, now, earlier_runs)
    replayed = []
    for outcome in _decide(results, settings).values():
        measurement = outcome.judgement.measurement
        if measurement is None:
            continue
        configuration = outcome.case.key.id
        candidates = (
            stored.get((configuration, run_key))
            for run_key in measurement.run.same_run_keys
        )
        before = next(filter(None, candidates), None)
        if before is not None:
            job_id = measurement.run.found.job_id
            replayed.append(
                ReplayedRun(before.started, configuration, job_id, before, outcome)
            )
    return sorted(
        replayed, key=lambda run: (run.started, run.configuration, run.job_id)
    )


def format_replayed(replayed: Sequence[ReplayedRun]) -> str:
    """Format the runs whose verdict changed and a count, 79 columns wide.

    Runs that newly fail come first.
    """
    from pytest_llmbench.report.wording import phrase

    if not replayed:
        return "nothing to compare: the history has no verdict on any run of the given paths"
    changed = [run for run in replayed if run.has_changed]
    lines = []
    for label, runs in _group_by_effect(changed):
        lines.append(f"{label}:")
        for run in runs:
            job = f"  job {run.job_id}" if run.job_id else ""
            lines.append(f"  {run.started:%Y-%m-%d %H:%M}{job}  {run.configuration}")
            stored_text, current_text = run.texts
            lines.append(f"    {stored_text} -> {current_text}")
            lines += textwrap.wrap(
                phrase(run.after.judgement),
                WIDTH,
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
    count = (
        f"{len(changed)} of {count_noun(len(replayed), 'stored verdict')} would change"
    )
    return "\n".join([*lines, count])
