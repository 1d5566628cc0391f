"""The document of `llmbench nodes`; and the text of a terminal, which is made from it
alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType, convert, to_builtins

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.node_records import NodeAnswer, NodeDoubt, NodeSearch, Suspect
from pytest_llmbench.report.explain import wrap

SCHEMA = 1
"""Raised when a field of the document changes its meaning; fields may be added."""

EXIT_CODES = {
    NodeAnswer.NAMED: 1,
    NodeAnswer.EVIDENT: 0,
    NodeAnswer.NONE: 0,
    NodeAnswer.NOTHING_TO_TELL: 3,
}

DOUBTS = {
    NodeDoubt.NOTHING_FAST_SINCE: "; nothing was fast without it since",
    NodeDoubt.NEIGHBOURS: "; too few of its slow nights have a fast run without it between them",
    NodeDoubt.ONE_SOFTWARE: "; its slow runs had software that no fast run had",
}

SHOWN = 8
"""So many runs of a node, and so many suspects, are listed; the JSON document has
all."""


class SuspectRun(Struct, frozen=True, kw_only=True):
    """A run on a node that may be slow; `number` is that in the history, None for a run
    of this session."""

    number: int | None
    configuration: str
    started: str
    job_id: str
    step_seconds: float
    difference: float
    nodes: tuple[str, ...]


class ReportedSuspect(Struct, frozen=True, kw_only=True):
    """Nodes that may be slow, how slow they are, and the runs that show it."""

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
    """The document of a search for slow nodes; its fields stand in the order of their
    keys in JSON."""

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
    """Make the document of a search, which reports are made from; secrets are still in
    it."""
    evidence = search.evidence
    nights = sorted({run.started.date() for run in search.runs.values()})
    document = NodesDocument(
        exit_code=EXIT_CODES[search.answer],
        answer=str(search.answer),
        history=search.history,
        since=search.since.isoformat() if search.since else None,
        first_night=nights[0].isoformat() if nights else None,
        last_night=nights[-1].isoformat() if nights else None,
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
    return ReportedSuspect(
        nodes=tuple(suspect.nodes),
        probability=suspect.probability,
        slowness=suspect.slowness,
        low=suspect.low,
        high=suspect.high,
        compared=suspect.doubt != NodeDoubt.NOTHING_FAST_SINCE,
        doubt=str(suspect.doubt) if suspect.doubt else None,
        exclude=formatting.format_exclude_option(suspect.nodes),
        slow_runs=tuple(_describe_run(run, search) for run in suspect.slow_runs),
        fast_runs=tuple(_describe_run(run, search) for run in suspect.fast_runs),
    )


def _describe_run(name: str, search: NodeSearch) -> SuspectRun:
    run = search.runs[name]
    return SuspectRun(
        number=run.number or None,
        configuration=run.configuration,
        started=run.started.isoformat(),
        job_id=run.job_id,
        step_seconds=run.seconds,
        difference=(search.evidence.differences or {})[name],
        nodes=tuple(sorted(run.nodes)),
    )


# --- words ----------------------------------------------------------------------------


def format_text(document: NodesDocument) -> str:
    """Return a search for a terminal, 79 columns wide."""
    lines = wrap(format_coverage(document), "  ")
    if document.too_few_nights:
        fewer = f"of fewer than {document.fewest_nights} nights, and not looked at"
        lines += wrap(
            f"{fewer}: {formatting.join_first(document.too_few_nights)}", "  "
        )
    for suspect in document.named:
        lines += [
            "",
            *wrap(format_suspect(suspect), "  "),
            *format_facts(suspect, document),
        ]
    if not document.named:
        lines += ["", *wrap(format_answer(document), "  "), *format_suspects(document)]
    return "\n".join(lines)


def format_facts(suspect: ReportedSuspect, document: NodesDocument) -> list[str]:
    """Return the lines below the name of a node: the runs that show it, and how to
    leave it out."""
    facts = _list_facts(suspect, document)
    return [
        line
        for name, text in facts
        for line in wrap(text, " " * 12, first=f"  {name:<10}")
    ]


def format_suspects(document: NodesDocument) -> list[str]:
    """Return a line for each suspect."""
    return [
        line
        for text in _list_suspects(document)
        for line in wrap(text, "    ", first="  ")
    ]


def format_coverage(document: NodesDocument) -> str:
    """Return what was looked at: `history.db: 60 runs of 30 nights, ...; nodes are
    known of 58 of 60 runs`."""
    counted = f"nodes are known of {document.runs_with_nodes} of {formatting.count_noun(document.runs, 'run')}"
    if not document.runs:
        return f"{document.history}: {counted if document.too_few_nights else 'no run with nodes to look at'}"
    span = " to ".join(
        dict.fromkeys(filter(None, (document.first_night, document.last_night)))
    )
    nights = formatting.count_noun(document.nights, "night")
    nodes = formatting.count_noun(document.node_count, "node")
    return f"{document.history}: {nights}, {span}; {nodes}; {counted}"


def format_answer(document: NodesDocument) -> str:
    """Return the answer in a sentence."""
    answer = document.answer
    if answer == NodeAnswer.NAMED:
        return "; ".join(map(format_suspect, document.named))
    if answer == NodeAnswer.NOTHING_TO_TELL:
        since = f" since {document.since}" if document.since else ""
        return (
            f"nothing to tell: there is no run{since} with nodes to compare; the history knows those of jobs that "
            "--llmb-launch started"
        )
    if answer == NodeAnswer.NONE:
        return "no node is evident; that does not mean that all are sound"
    count = sum(len(suspect.nodes) for suspect in document.suspects)
    suspects = f"{formatting.count_noun(count, 'suspect')}, {document.cleared} cleared"
    return f"a slow node is evident, which one cannot be told yet: {suspects}"


def format_suspect(suspect: ReportedSuspect) -> str:
    """Return `n7 is slow: +9.8 % (+9.1 % to +10.6 %), confidence 99.9 %`."""
    several = len(suspect.nodes) > 1
    nodes = formatting.fold_nodes(suspect.nodes)
    slow = (
        f"one of {nodes}, always in the same runs, is slow"
        if several
        else f"{nodes} is slow"
    )
    return f"{slow}: {_format_slowness(suspect)}, confidence {_format_probability(suspect)}"


def _format_slowness(suspect: ReportedSuspect) -> str:
    slowness, low, high = (
        formatting.format_difference(1 + value)
        for value in (suspect.slowness, suspect.low, suspect.high)
    )
    return f"{slowness} ({low} to {high})"


def _format_probability(suspect: ReportedSuspect) -> str:
    """Return a probability in percent; it is never rounded to certainty."""
    return f"{math.floor(1000 * min(suspect.probability, 0.999)) / 10:g} %"


def _list_facts(
    suspect: ReportedSuspect, document: NodesDocument
) -> Iterator[tuple[str, str]]:
    """Yield what is said of a named node: a name and a text each."""
    yield "shown by", _count_slow(suspect)
    for run in _pick_runs(suspect):
        yield "", _format_run(run)
    for run in suspect.fast_runs:
        if (
            not run.number
        ):  # of this session: it may have been mended, or be slow on some nights only
            yield "but fast", _format_run(run)
    cleared = formatting.count_noun(document.cleared, "node")
    yield "cleared", f"{cleared} of {document.node_count}, by fast runs with them"
    yield (
        "leave out",
        f"{suspect.exclude}, of Slurm --exclude={','.join(suspect.nodes)}",
    )


def _count_slow(suspect: ReportedSuspect) -> str:
    slow, fast = len(suspect.slow_runs), len(suspect.fast_runs)
    return f"{slow} of {formatting.count_noun(slow + fast, 'run')} with it were slow"


def _pick_runs(suspect: ReportedSuspect) -> Sequence[SuspectRun]:
    """Return the last runs that were slow, the newest first."""
    return list(suspect.slow_runs[: -SHOWN - 1 : -1])


def _format_run(run: SuspectRun) -> str:
    difference = formatting.format_difference(1 + run.difference)
    name = f"run {run.number}" if run.number else f"job {run.job_id}"
    return f"{run.started[:10]} {difference:>8}  {name}  {run.configuration}"


def _list_suspects(document: NodesDocument) -> list[str]:
    suspects = document.suspects
    texts = [
        f"{formatting.fold_nodes(suspect.nodes)}  {_format_probability(suspect)}, {_format_slowness(suspect)}; "
        f"{_count_slow(suspect)}{DOUBTS.get(NodeDoubt(suspect.doubt), '') if suspect.doubt else ''}"
        for suspect in suspects[:SHOWN]
    ]
    return [
        *texts,
        *(
            [f"and {len(suspects) - SHOWN} more (--json has all)"]
            if len(suspects) > SHOWN
            else []
        ),
    ]
