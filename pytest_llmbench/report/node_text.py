"""`llmbench nodes` as a dictionary of plain values; and the text of a terminal, which is made from it alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.node_records import NodeAnswer, NodeDoubt, NodeSearch, Suspect
from pytest_llmbench.report.explain import wrap

SCHEMA = 1
"""Raised when a field of the document changes its meaning; fields may be added."""

EXIT_CODES = {NodeAnswer.NAMED: 1, NodeAnswer.EVIDENT: 0, NodeAnswer.NONE: 0, NodeAnswer.NOTHING_TO_TELL: 3}

DOUBTS = {
    NodeDoubt.NOTHING_FAST_SINCE: "; nothing was fast without it since",
    NodeDoubt.NEIGHBOURS: "; too few of its slow nights have a fast run without it between them",
    NodeDoubt.ONE_SOFTWARE: "; its slow runs had software that no fast run had",
}

SHOWN = 8
"""So many runs of a node, and so many suspects, are listed; the JSON document has all."""


def describe(search: NodeSearch) -> dict[str, Any]:
    """Return a search as plain values, which reports are made from; secrets are still in it."""
    evidence = search.evidence
    nights = sorted({run.started.date() for run in search.runs.values()})
    described = {
        "schema": SCHEMA,
        "version": __version__,
        "kind": "nodes",
        "exit_code": EXIT_CODES[search.answer],
        "answer": str(search.answer),
        "history": search.history,
        "since": search.since.isoformat() if search.since else None,
        "first_night": nights[0].isoformat() if nights else None,
        "last_night": nights[-1].isoformat() if nights else None,
        "nights": evidence.nights,
        "runs": evidence.runs,
        "runs_with_nodes": evidence.runs_with_nodes,
        "node_count": evidence.nodes,
        "cleared": evidence.cleared,
        "log_likelihood_ratio": formatting.make_finite(evidence.log_ratio),
        "named": [_describe_suspect(suspect, search) for suspect in evidence.named],
        "suspects": [_describe_suspect(suspect, search) for suspect in evidence.suspects],
        "too_few_nights": list(search.too_few),
        "fewest_nights": search.fewest_nights,
    }
    escaped: dict[str, Any] = formatting.escape_values(described)
    return escaped


def _describe_suspect(suspect: Suspect, search: NodeSearch) -> dict[str, Any]:
    return {
        "nodes": list(suspect.nodes),
        "probability": suspect.probability,
        "slowness": suspect.slowness,
        "low": suspect.low,
        "high": suspect.high,
        "compared": suspect.doubt != NodeDoubt.NOTHING_FAST_SINCE,
        "doubt": str(suspect.doubt) if suspect.doubt else None,
        "exclude": formatting.format_exclude_option(suspect.nodes),
        "slow_runs": [_describe_run(run, search) for run in suspect.slow_runs],
        "fast_runs": [_describe_run(run, search) for run in suspect.fast_runs],
    }


def _describe_run(name: str, search: NodeSearch) -> dict[str, Any]:
    run = search.runs[name]
    return {
        "number": run.number or None,
        "configuration": run.configuration,
        "started": run.started.isoformat(),
        "job_id": run.job_id,
        "step_seconds": run.seconds,
        "difference": (search.evidence.differences or {})[name],
        "nodes": sorted(run.nodes),
    }


# --- words -------------------------------------------------------------------------------------------------


def format_text(described: Mapping[str, Any]) -> str:
    """Return a search for a terminal, 79 columns wide."""
    lines = wrap(format_coverage(described), "  ")
    if described["too_few_nights"]:
        fewer = f"of fewer than {described['fewest_nights']} nights, and not looked at"
        lines += wrap(f"{fewer}: {formatting.join_first(described['too_few_nights'])}", "  ")
    for suspect in described["named"]:
        lines += ["", *wrap(format_suspect(suspect), "  "), *format_facts(suspect, described)]
    if not described["named"]:
        lines += ["", *wrap(format_answer(described), "  "), *format_suspects(described)]
    return "\n".join(lines)


def format_facts(suspect: Mapping[str, Any], described: Mapping[str, Any]) -> list[str]:
    """Return the lines below the name of a node: the runs that show it, and how to leave it out."""
    facts = _list_facts(suspect, described)
    return [line for name, text in facts for line in wrap(text, " " * 12, first=f"  {name:<10}")]


def format_suspects(described: Mapping[str, Any]) -> list[str]:
    """Return a line for each suspect."""
    return [line for text in _list_suspects(described) for line in wrap(text, "    ", first="  ")]


def format_coverage(described: Mapping[str, Any]) -> str:
    """Return what was looked at: `history.db: 60 runs of 30 nights, ...; nodes are known of 58 of 60 runs`."""
    counted = f"nodes are known of {described['runs_with_nodes']} of {formatting.count_noun(described['runs'], 'run')}"
    if not described["runs"]:
        return f"{described['history']}: {counted if described['too_few_nights'] else 'no run with nodes to look at'}"
    span = " to ".join(dict.fromkeys((described["first_night"], described["last_night"])))
    nights = formatting.count_noun(described["nights"], "night")
    nodes = formatting.count_noun(described["node_count"], "node")
    return f"{described['history']}: {nights}, {span}; {nodes}; {counted}"


def format_answer(described: Mapping[str, Any]) -> str:
    """Return the answer in a sentence."""
    answer = described["answer"]
    if answer == NodeAnswer.NAMED:
        return "; ".join(map(format_suspect, described["named"]))
    if answer == NodeAnswer.NOTHING_TO_TELL:
        since = f" since {described['since']}" if described.get("since") else ""
        return (
            f"nothing to tell: there is no run{since} with nodes to compare; the history knows those of jobs that "
            "--llmb-launch started"
        )
    if answer == NodeAnswer.NONE:
        return "no node is evident; that does not mean that all are sound"
    count = sum(len(suspect["nodes"]) for suspect in described["suspects"])
    suspects = f"{formatting.count_noun(count, 'suspect')}, {described['cleared']} cleared"
    return f"a slow node is evident, which one cannot be told yet: {suspects}"


def format_suspect(suspect: Mapping[str, Any]) -> str:
    """Return `n7 is slow: +9.8 % (+9.1 % to +10.6 %), confidence 99.9 %`."""
    several = len(suspect["nodes"]) > 1
    nodes = formatting.fold_nodes(suspect["nodes"])
    slow = f"one of {nodes}, always in the same runs, is slow" if several else f"{nodes} is slow"
    return f"{slow}: {_format_slowness(suspect)}, confidence {_format_probability(suspect)}"


def _format_slowness(suspect: Mapping[str, Any]) -> str:
    slowness, low, high = (formatting.format_difference(1 + suspect[name]) for name in ("slowness", "low", "high"))
    return f"{slowness} ({low} to {high})"


def _format_probability(suspect: Mapping[str, Any]) -> str:
    """Return a probability in percent; it is never rounded to certainty."""
    return f"{math.floor(1000 * min(suspect['probability'], 0.999)) / 10:g} %"


def _list_facts(suspect: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is said of a named node: a name and a text each."""
    yield "shown by", _count_slow(suspect)
    for run in _pick_runs(suspect):
        yield "", _format_run(run)
    for run in suspect["fast_runs"]:
        if not run["number"]:  # of this session: it may have been mended, or be slow on some nights only
            yield "but fast", _format_run(run)
    cleared = formatting.count_noun(described["cleared"], "node")
    yield "cleared", f"{cleared} of {described['node_count']}, by fast runs with them"
    yield "leave out", f"{suspect['exclude']}, of Slurm --exclude={','.join(suspect['nodes'])}"


def _count_slow(suspect: Mapping[str, Any]) -> str:
    slow, fast = len(suspect["slow_runs"]), len(suspect["fast_runs"])
    return f"{slow} of {formatting.count_noun(slow + fast, 'run')} with it were slow"


def _pick_runs(suspect: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the last runs that were slow, the newest first."""
    return list(suspect["slow_runs"][: -SHOWN - 1 : -1])


def _format_run(run: Mapping[str, Any]) -> str:
    difference = formatting.format_difference(1 + run["difference"])
    name = f"run {run['number']}" if run["number"] else f"job {run['job_id']}"
    return f"{run['started'][:10]} {difference:>8}  {name}  {run['configuration']}"


def _list_suspects(described: Mapping[str, Any]) -> list[str]:
    suspects = described["suspects"]
    texts = [
        f"{formatting.fold_nodes(suspect['nodes'])}  {_format_probability(suspect)}, {_format_slowness(suspect)}; "
        f"{_count_slow(suspect)}{DOUBTS.get(suspect['doubt'], '')}"
        for suspect in suspects[:SHOWN]
    ]
    return [*texts, *([f"and {len(suspects) - SHOWN} more (--json has all)"] if len(suspects) > SHOWN else [])]
