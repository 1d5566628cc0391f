"""What a session says on the terminal besides its verdicts: what decides, before, and what was left out, after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import TimedBy

if TYPE_CHECKING:
    from pytest_llmbench.pipeline.settings import Settings
    from pytest_llmbench.plugin.session import Session
    from pytest_llmbench.report.columns import TerminalLine

LOST = "give --llmb-logs the folder that holds the runs, or look at what is in it with: llmbench summary PATH"
FOUND = (
    "correct what keeps these runs from being judged, or select what they are of with -k; all of them are shown by: "
    "llmbench summary PATH"
)
"""What to do when nothing was judged, without and with runs."""


def header(session: Session) -> Iterator[str]:
    """Yield what decides: for the head of the session's output, and for reports."""
    settings = session.settings
    yield f"baselines: {session.catalog.describe()}"
    for path in settings.baselines:
        yield f"baselines: {formatting.format_place(path, session.directory)}"
    if settings.baselines:
        yield f"judged against: {settings.against or 'recorded where there are any'}"
    for tolerance in tolerances(settings):
        yield f"tolerance: {tolerance}"
    for path in settings.logs:
        yield f"{'history' if settings.launch else 'logs'}: {formatting.format_place(path, session.directory)}"
    if session.history:
        yield f"history in {session.history.describe()}"
    yield from _rules(session)


def _rules(session: Session) -> Iterator[str]:
    """Yield what is not as ever."""
    settings = session.settings
    if settings.launch is not None:
        yield from settings.launch.told(session.directory)
    if settings.certify:
        yield f"certifying against {settings.against} baselines: INCONCLUSIVE and MISSING fail"
    elif settings.inconclusive != "literal":
        yield f"inconclusive runs: {settings.inconclusive}"
    if settings.repeat_window:
        yield f"repeats: runs of one build within {formatting.format_age(settings.repeat_window)} of the newest"
    if settings.acknowledged:
        count = formatting.count_noun(len(session.catalog.acknowledged), "acknowledged change")
        yield f"{count}: {formatting.format_place(settings.acknowledged, session.directory)}"
    if settings.timed == TimedBy.DOCUMENT:
        yield "timed as the documents do, to compare with their tables: nothing is recorded, kept or certified"
    if settings.baseline_release:
        yield f"every run is judged against release {settings.baseline_release}"
    if settings.record:
        yield f"recording to {formatting.format_place(settings.record, session.directory)}; nothing is judged"


def summary(session: Session, verbosity: int = 0) -> list[TerminalLine]:
    """Return the lines of the summary, more of them for a higher verbosity (pytest's -q is -1, -v is 1)."""
    from pytest_llmbench.report.columns import TerminalLine, wrap
    from pytest_llmbench.report.terminal import render_summary

    if not session.described:
        return [TerminalLine(line, "red") for failure in session.failures for line in wrap(failure, "  ")]
    remarks = [*_remarks(session), *_describe_skipped(session, verbosity > 0), *session.written]
    lines = [*(remarks if verbosity >= 0 else _nothing_judged(session)), *session.failures]
    return [*render_summary(session.described, list(map(formatting.escape, lines)), verbosity, session.cautions)]


def _remarks(session: Session) -> list[str]:
    """Return what the summary adds to the verdicts: runs left out or only listed, files that are no logs."""
    from pytest_llmbench.pipeline.outcomes import shorten_reason

    results, since = session.results, session.settings.since
    remarks = []
    if results.runs_before_since and since:
        left_out = formatting.count_noun(results.runs_before_since, "run")
        remarks.append(f"{left_out} left out: started before {since:%Y-%m-%d %H:%M} UTC (--llmb-since)")
    remarks += [*_nothing_judged(session), *results.remarks]
    reported = {outcome["id"] for outcome in session.described if outcome["kind"] == "stray"}
    untold = [stray for stray in results.unmatched if stray.id not in reported]
    remarks += [
        f"{stray.reason.upper()}, not judged: {stray.id}: {'; '.join(shorten_reason(stray.text))}"
        for stray in untold[:5]
    ]
    if len(untold) > 5:
        remarks.append(f"{len(untold) - 5} more runs were not judged: --llmb-unmatched=fail makes an item of each")
    return remarks


def _nothing_judged(session: Session) -> Iterator[str]:
    """Yield why nothing was judged, where nothing was, and what to do about it."""
    if session.context:
        own = "".join(
            f" --baselines {formatting.format_place(path, session.directory)}" for path in session.settings.baselines
        )
        next_step = f". Next: {FOUND if session.results.runs_found else LOST}{own}"
        yield f"{session.context.removesuffix('.')}{'' if session.settings.launch else next_step}"


def _describe_skipped(session: Session, verbose: bool) -> Iterator[str]:
    ignored = session.results.ignored
    if verbose or len(ignored) == 1:
        yield from (f"skipped {file}" for file in ignored)
    elif ignored:
        yield f"{len(ignored)} files skipped (-v tells all of them), first {ignored[0]}"


def tolerances(settings: Settings) -> Iterator[str]:
    """Yield the tolerances of a session, with where each was given."""
    from pytest_llmbench.core.tolerance import TIME, get_slot
    from pytest_llmbench.pipeline.settings import DEFAULT_TOLERANCE

    for tolerance in settings.tolerances:
        yield f"{tolerance} ({tolerance.source})"
    if not any(get_slot(tolerance) == TIME for tolerance in settings.tolerances):
        yield f"{DEFAULT_TOLERANCE} unless a baseline says otherwise"
