"""The document of `llmbench nodes`, and its text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType, convert, to_builtins

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.node_records import NodeAnswer, NodeDoubt, NodeSearch, Suspect
from pytest_llmbench.report.explain import wrap

SCHEMA = 1
"""Increased when a field of the document changes its meaning; fields may be added."""

EXIT_CODES = {
    NodeAnswer.NAMED: 1,
    NodeAnswer.EVIDENT: 0,
    NodeAnswer.NONE: 0,
    NodeAnswer.NOTHING_TO_TELL: 3,
}

DOUBTS = {
    NodeDoubt.NOTHING_FAST_SINCE: "; no run without it was fast since",
    NodeDoubt.NEIGHBOURS: "; too few of its slow days are separated by a fast run without it",
    NodeDoubt.ONE_SOFTWARE: "; its slow runs used software that no fast run used",
}

SHOWN = 8
"""Maximum number of runs of a node, and of suspects, in the text; JSON has all."""


class SuspectRun(Struct, frozen=True, kw_only=True):
    """A run on a possibly slow node.

    `number` is its number in the history; None for a run of the current session.
    """

    number: int | None
    configuration: str
    started: str
    job_id: str
    step_seconds: float
    difference: float
    nodes: tuple[str, ...]


class ReportedSuspect(Struct, frozen=True, kw_only=True):
    """Possibly slow nodes, their estimated slowness, and the runs on them."""

    nodes: tuple[str, ...]
    probability: float
    slowness: float
    low: float
    high: float
    compared: bool
    doubt: str | None
    exclude: str
    slow_runs: tuple[SuspectRun, ...]
    fast_runs: tuple[SuspectRun, ...]


class NodesDocument(Struct, frozen=True, kw_only=True):
    """The document of a search for slow nodes; fields are in the order of the JSON."""

    schema: int = SCHEMA
    version: str = __version__
    kind: str = "nodes"
    exit_code: int
    answer: str
    history: str
    since: str | None
    first_night: str | None
    last_night: str | None
    nights: int
    runs: int
    runs_with_nodes: int
    node_count: int
    cleared: int
    log_likelihood_ratio: float | None
    named: tuple[ReportedSuspect, ...]
    suspects: tuple[ReportedSuspect, ...]
    too_few_nights: tuple[str, ...]
    fewest_nights: int
    searched: str | UnsetType = UNSET


def describe(search: NodeSearch) -> NodesDocument:
    """Convert a search for slow nodes into its document.

    `named` contains the nodes that are slow beyond doubt, `suspects` all nodes that may
    be slow. Unprintable characters are escaped; secrets are not redacted yet.
    """
    evidence = search.evidence
    dates = sorted({run.started.date() for run in search.runs.values()})
    document = NodesDocument(
        exit_code=EXIT_CODES[search.answer],
        answer=str(search.answer),
        history=search.history,
        since=search.since.isoformat() if search.since else None,
        first_night=dates[0].isoformat() if dates else None,
        last_night=dates[-1].isoformat() if dates else None,
        nights=evidence.nights,
        runs=evidence.runs,
        runs_with_nodes=evidence.runs_with_nodes,
        node_count=evidence.nodes,
        cleared=evidence.cleared,
        log_likelihood_ratio=formatting.make_finite(evidence.log_ratio),
        named=tuple(_describe_suspect(suspect, search) for suspect in evidence.named),
        suspects=tuple(
            _describe_suspect(suspect, search) for suspect in evidence.suspects
        ),
        too_few_nights=tuple(search.too_few),
        fewest_nights=search.fewest_nights,
    )
    return convert(formatting.escape_values(to_builtins(document)), NodesDocument)


def _describe_suspect(suspect: Suspect, search: NodeSearch) -> ReportedSuspect:
    """Build the record of a node that may be slow, or of nodes always used together."""
    return ReportedSuspect(
        nodes=tuple(suspect.nodes),
        probability=suspect.probability,
        slowness=suspect.slowness,
        low=suspect.low,
        high=suspect.high,
        # False if there are hardly any later fast runs to compare with
        compared=suspect.doubt != NodeDoubt.NOTHING_FAST_SINCE,
        doubt=str(suspect.doubt) if suspect.doubt else None,
        exclude=formatting.format_exclude_option(suspect.nodes),
        slow_runs=tuple(_describe_run(run, search) for run in suspect.slow_runs),
        fast_runs=tuple(_describe_run(run, search) for run in suspect.fast_runs),
    )


def _describe_run(name: str, search: NodeSearch) -> SuspectRun:
    """Build the record of a run by its name in the search."""
    run = search.runs[name]
    differences = search.evidence.differences or {}
    return SuspectRun(
        number=run.number or None,
        configuration=run.configuration,
        started=run.started.isoformat(),
        job_id=run.job_id,
        step_seconds=run.seconds,
        difference=differences[name],
        nodes=tuple(sorted(run.nodes)),
    )


# --- text -----------------------------------------------------------------------------


def format_text(document: NodesDocument) -> str:
    """Format a search for the terminal, 79 columns wide."""
    lines = wrap(format_coverage(document), "  ")
    if document.too_few_nights:
        configurations = formatting.join_first(document.too_few_nights)
        lines += wrap(
            f"skipped, fewer than {document.fewest_nights} daily runs: {configurations}",
            "  ",
        )
    for suspect in document.named:
        lines.append("")
        lines += wrap(format_suspect(suspect), "  ")
        lines += format_facts(suspect, document)
    if not document.named:
        lines.append("")
        lines += wrap(format_answer(document), "  ")
        lines += format_suspects(document)
    return "\n".join(lines)


def format_facts(suspect: ReportedSuspect, document: NodesDocument) -> list[str]:
    """Return the lines with the evidence for a slow node and the excluding option."""
    lines = []
    for label, text in _list_facts(suspect, document):
        lines += wrap(text, " " * 12, first=f"  {label:<10}")
    return lines


def format_suspects(document: NodesDocument) -> list[str]:
    """Return the first suspects and the number of the others, as wrapped lines."""
    lines = []
    for text in _list_suspects(document):
        lines += wrap(text, "    ", first="  ")
    return lines


def format_coverage(document: NodesDocument) -> str:
    """Describe the searched runs: `history.db: 30 days, ...; 64 nodes; ...`."""
    runs = formatting.count_noun(document.runs, "run")
    coverage = f"nodes known for {document.runs_with_nodes} of {runs}"
    # `too_few_nights` are configurations with runs, but on too few days to compare them.
    if not document.runs:
        text = coverage if document.too_few_nights else "no run with known nodes"
        return f"{document.history}: {text}"
    dates = [date for date in (document.first_night, document.last_night) if date]
    span = " to ".join(dict.fromkeys(dates))  # a single day once
    days = formatting.count_noun(document.nights, "day")
    nodes = formatting.count_noun(document.node_count, "node")
    return f"{document.history}: {days}, {span}; {nodes}; {coverage}"


def format_answer(document: NodesDocument) -> str:
    """Return the answer in a sentence."""
    answer = document.answer
    if answer == NodeAnswer.NAMED:
        return "; ".join(map(format_suspect, document.named))
    if answer == NodeAnswer.NOTHING_TO_TELL:
        since = f" since {document.since}" if document.since else ""
        return (
            f"no answer: no run{since} has known nodes to compare; the history only stores the nodes of jobs that "
            "--llmb-launch started"
        )
    if answer == NodeAnswer.NONE:
        return "no slow node found; that does not prove that all nodes are sound"
    count = sum(len(suspect.nodes) for suspect in document.suspects)
    suspects = f"{formatting.count_noun(count, 'suspect')}, {document.cleared} cleared"
    return f"at least one node is slow, not yet identified: {suspects}"


def format_suspect(suspect: ReportedSuspect) -> str:
    """Return `n7 is slow: +9.8 % (+9.1 % to +10.6 %), confidence 99.9 %`."""
    finding = f"{formatting.fold_nodes(suspect.nodes)} is slow"
    if len(suspect.nodes) > 1:
        nodes = formatting.fold_nodes(suspect.nodes)
        finding = f"one of {nodes}, always in the same runs, is slow"
    slowness, confidence = _format_slowness(suspect), _format_probability(suspect)
    return f"{finding}: {slowness}, confidence {confidence}"


def _format_slowness(suspect: ReportedSuspect) -> str:
    """Return the estimated slowness and its interval: `+9.8 % (+9.1 % to +10.6 %)`."""
    slowness, low, high = (
        formatting.format_difference(1 + value)
        for value in (suspect.slowness, suspect.low, suspect.high)
    )
    return f"{slowness} ({low} to {high})"


def _format_probability(suspect: ReportedSuspect) -> str:
    """Format a probability in percent, rounded down to one decimal, at most 99.9 %."""
    permille = math.floor(1000 * min(suspect.probability, 0.999))
    return f"{permille / 10:g} %"


def _list_facts(
    suspect: ReportedSuspect, document: NodesDocument
) -> Iterator[tuple[str, str]]:
    """Yield the evidence for a slow node as labels and texts."""
    yield "shown by", _count_slow(suspect)
    for run in _pick_runs(suspect):
        yield "", _format_run(run)
    for run in suspect.fast_runs:
        is_of_this_session = not run.number
        if is_of_this_session:  # the node may be repaired, or only slow at times
            yield "but fast", _format_run(run)
    cleared = formatting.count_noun(document.cleared, "node")
    yield "cleared", f"{cleared} of {document.node_count}, by fast runs with them"
    yield (
        "exclude",
        f"{suspect.exclude}, in Slurm --exclude={','.join(suspect.nodes)}",
    )


def _count_slow(suspect: ReportedSuspect) -> str:
    """Return `5 of 7 runs with it were slow`."""
    slow = len(suspect.slow_runs)
    runs = formatting.count_noun(slow + len(suspect.fast_runs), "run")
    return f"{slow} of {runs} with it were slow"


def _pick_runs(suspect: ReportedSuspect) -> Sequence[SuspectRun]:
    """Return the last slow runs, newest first."""
    return suspect.slow_runs[-SHOWN:][::-1]


def _format_run(run: SuspectRun) -> str:
    """Return `2025-11-20   +9.8 %  run 71  grok1_314b-25.05-gb200-bf16-128`."""
    difference = formatting.format_fraction(run.difference)
    name = f"run {run.number}" if run.number else f"job {run.job_id}"
    return f"{run.started[:10]} {difference:>8}  {name}  {run.configuration}"


def _list_suspects(document: NodesDocument) -> list[str]:
    """Return a text for each of the first suspects, and the number of the others."""
    texts = [_format_unnamed(suspect) for suspect in document.suspects[:SHOWN]]
    omitted_count = len(document.suspects) - SHOWN
    if omitted_count > 0:
        texts.append(f"and {omitted_count} more (--json has all)")
    return texts


def _format_unnamed(suspect: ReportedSuspect) -> str:
    """Describe a suspect that was not named: probability, slowness, runs, doubt."""
    nodes = formatting.fold_nodes(suspect.nodes)
    evidence = f"{_format_probability(suspect)}, {_format_slowness(suspect)}"
    doubt = DOUBTS.get(NodeDoubt(suspect.doubt), "") if suspect.doubt else ""
    return f"{nodes}  {evidence}; {_count_slow(suspect)}{doubt}"
