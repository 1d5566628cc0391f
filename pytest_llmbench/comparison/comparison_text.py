"""`llmbench compare` as a dictionary of plain values; and the text of a terminal, which
is made from it alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_llmbench import __version__
from pytest_llmbench.comparison.comparison_records import (
    STARTED,
    ComparedSide,
    SideAnswer,
    SideComparison,
    SideDifferences,
    SideEstimate,
    SideRun,
    SidesCompared,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.core.text import count_columns
from pytest_llmbench.report.explain import name_label, wrap

SCHEMA = 1
"""Raised when a field of the document changes its meaning; fields may be added."""

NOTHING = 3
"""The exit code where nothing could be compared."""

INCOMPLETE = 4
"""That of --strict where something was not compared, or not answered."""

SLOWER = 1

ORDER = tuple(
    map(
        str,
        (
            SideAnswer.SLOWER,
            SideAnswer.CANNOT_TELL,
            SideAnswer.ALIKE,
            SideAnswer.FASTER,
        ),
    )
)
"""Answers, what needs a reader first."""

MANY = 8
"""So many runs that count for nothing, values and names are listed; of more a
number."""

SIDE_BY_SIDE = "to be sure, run both side by side on the same nodes"


def describe(result: SidesCompared, now: datetime, *, strict: bool) -> dict[str, Any]:
    """Return a comparison as plain values, which reports are made from; secrets are
    still in it."""
    comparisons = sorted(map(_describe_comparison, result.comparisons), key=_rank)
    described = {
        "schema": SCHEMA,
        "version": __version__,
        "kind": "comparison",
        "compared": now.isoformat(),
        "exit_code": choose_exit_code(result, strict=strict),
        "margin": result.margin,
        "history": result.history,
        "a": _describe_side(result.a),
        "b": _describe_side(result.b),
        "comparisons": comparisons,
        "not_compared": [
            {
                "configuration": each.configuration,
                "counts_on": each.counts_on,
                "text": each.text,
            }
            for each in result.not_compared
        ],
        "no_data": [
            {
                "side": each.side,
                "run": each.run,
                "configuration": each.configuration,
                "reason": str(each.reason),
                "text": each.text,
                "log": each.log,
            }
            for each in result.no_data
        ],
    }
    escaped: dict[str, Any] = formatting.escape_values(described)
    return escaped


def choose_exit_code(result: SidesCompared, *, strict: bool) -> int:
    """Return 1 where a configuration is slower, 3 where none was compared, else 0; 4
    where a `strict` comparison is not complete."""
    if any(each.estimate.answer is SideAnswer.SLOWER for each in result.comparisons):
        return SLOWER
    if not result.comparisons:
        return NOTHING
    return INCOMPLETE if strict and not result.complete else 0


def _describe_side(side: ComparedSide) -> dict[str, Any]:
    return {
        "label": side.label,
        "place": side.place,
        "runs": side.counted,
        "configurations": len(side.configurations),
        "no_data": len(side.no_data),
    }


def _rank(comparison: Mapping[str, Any]) -> tuple[int, str]:
    return ORDER.index(comparison["answer"]), comparison["configuration"]


def _describe_comparison(comparison: SideComparison) -> dict[str, Any]:
    estimate, window = comparison.estimate, comparison.window
    return {
        "configuration": comparison.configuration,
        "window": {
            "first": window.first,
            "last": window.last,
            "statistic": window.statistic,
            "text": str(window),
        },
        **_describe_estimate(estimate),
        "a": _describe_runs(comparison.a),
        "b": _describe_runs(comparison.b),
        **_describe_differences(comparison.differences),
    }


def _describe_estimate(estimate: SideEstimate) -> dict[str, Any]:
    difference, low, high = (
        formatting.compute_bounded_exp(value) - 1
        for value in (estimate.difference, estimate.low, estimate.high)
    )
    return {
        "answer": str(estimate.answer),
        "difference": difference,
        "low": low,
        "high": high,
        "within_margin": estimate.within_margin,
        "smallest": estimate.smallest,
        "standard_error": estimate.standard_error,
        "rounding": estimate.rounding,
        "degrees_of_freedom": estimate.degrees_of_freedom,
        "noise": {
            "sigma": estimate.noise.sigma,
            "degrees_of_freedom": estimate.noise.degrees_of_freedom,
            "source": estimate.noise.source,
            "measured": estimate.noise.measured,
        },
        "runs": list(estimate.runs),
        "groups": list(estimate.groups),
        "runs_needed": list(estimate.runs_needed),
        "same_nodes": estimate.same_nodes,
    }


def _describe_runs(runs: Sequence[SideRun]) -> dict[str, Any]:
    logarithms = [math.log(run.statistic_seconds) for run in runs]
    return {
        "step_seconds": math.exp(sum(logarithms) / len(logarithms)),
        "runs": [
            {
                "run": run.id,
                "step_seconds": run.statistic_seconds,
                "started": run.started.isoformat() if run.started else None,
                "job_id": run.job_id,
                "nodes": sorted(run.nodes),
                "log": run.log,
            }
            for run in runs
        ],
    }


def _describe_differences(differences: SideDifferences) -> dict[str, Any]:
    return {
        "differs": [
            {"name": fact.name, "a": fact.before, "b": fact.after}
            for fact in differences.between
        ],
        "varies": [
            {"name": fact.name, "a": list(fact.values[0]), "b": list(fact.values[1])}
            for fact in differences.varying
        ],
        "unknown": [
            {"name": name, "sides": sides} for name, sides in differences.unknown
        ],
        "candidate": differences.candidate,
    }


# --- words ----------------------------------------------------------------------------


def format_text(described: Mapping[str, Any]) -> str:
    """Return a comparison for a terminal, 79 columns wide: a line for each
    configuration, then all about each."""
    lines = [line for text in list_remarks(described) for line in wrap(text)]
    lines += [line for label in ("a", "b") for line in _format_side(described[label])]
    lines += [""] if described["comparisons"] else []
    for comparison in described["comparisons"]:
        lines += _format_row(comparison)
    for comparison in described["comparisons"]:
        lines += ["", *wrap(comparison["configuration"], "  ")]
        for name, text in list_facts(comparison, described["margin"]):
            lines += wrap(text, " " * 12, first=f"  {name:<10}")
    for title, texts in (
        (
            "not compared:",
            [
                f"{each['configuration']}: {each['text']}"
                for each in described["not_compared"]
            ],
        ),
        ("no data:", list(map(format_no_data, described["no_data"]))),
    ):
        if texts:
            lines += [
                "",
                title,
                *(
                    line
                    for text in cut(texts)
                    for line in wrap(text, "    ", first="  ")
                ),
            ]
    return "\n".join([*lines, "", *wrap(count_answers(described), "  ")])


def cut(texts: Sequence[str], most: int = MANY) -> list[str]:
    """Return the first of many texts, and how many more there are."""
    return [
        *texts[:most],
        *(
            [f"and {len(texts) - most} more (--json has all)"]
            if len(texts) > most
            else []
        ),
    ]


def _format_side(side: Mapping[str, Any]) -> list[str]:
    counted = formatting.count_noun(side["runs"], "run")
    of = formatting.count_noun(side["configurations"], "configuration")
    without = f", {side['no_data']} without data" if side["no_data"] else ""
    return wrap(
        f"{side['place']}: {counted} of {of}{without}",
        "   ",
        first=f"{side['label']}  ",
    )


def list_remarks(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield what holds for the whole comparison."""
    comparisons = described["comparisons"]
    if comparisons and not any(each["noise"]["measured"] for each in comparisons):
        sigma = format_percent(comparisons[0]["noise"]["sigma"], signed=False)
        yield f"the noise from run to run is assumed ({sigma}): too few runs, nights or others to measure it"
    if described["history"]:
        yield f"history: {described['history']}"
    if comparisons:
        yield f"B beside A; difference of step times with its 95 % interval, alike within {_format_margin(described)}"


def _format_margin(described: Mapping[str, Any]) -> str:
    return f"{100 * described['margin']:.3g} %"


def _format_row(comparison: Mapping[str, Any]) -> list[str]:
    """Return the line of a configuration in the table; its name in one of its own where
    it is too long."""
    difference, low, high = format_interval(comparison)
    answer = comparison["answer"].replace("-", " ")
    head = f"{answer:<11}  {difference:>8}  {f'({low} to {high})':<21}"
    whole = f"{head}  {comparison['configuration']}"
    name = comparison["configuration"]
    return (
        [whole]
        if count_columns(whole) < 80
        else [head.rstrip(), *wrap(name, "    ", first="    ")]
    )


def list_facts(
    comparison: Mapping[str, Any], margin: float
) -> Iterator[tuple[str, str]]:
    """Yield what is said of one configuration: a name and a text each."""
    difference, low, high = format_interval(comparison)
    seconds = (
        formatting.format_seconds(comparison[side]["step_seconds"])
        for side in ("a", "b")
    )
    yield (
        "answer",
        f"{format_answer(comparison, margin)}: {difference} ({low} to {high}), {' -> '.join(seconds)}",
    )
    yield from _list_power(comparison, margin)
    runs, groups = comparison["runs"], comparison["groups"]
    counts = [
        f"{label} {formatting.count_noun(count, 'run')} in {formatting.count_noun(of_side, 'group')}"
        for label, count, of_side in zip("AB", runs, groups, strict=True)
    ]
    yield "runs", f"{', '.join(counts)}; {comparison['window']['text']}"
    noise = comparison["noise"]
    yield (
        "noise",
        f"{format_percent(noise['sigma'], signed=False)} from run to run ({noise['source']})",
    )
    if comparison["rounding"] > comparison["standard_error"]:
        rounding = format_percent(comparison["rounding"], signed=False)
        yield (
            "rounding",
            f"the printed digits may move the difference by {rounding}, however many runs there are",
        )
    yield from _list_node_remarks(comparison)
    yield from _list_differences(comparison)


def format_answer(comparison: Mapping[str, Any], margin: float) -> str:
    """Return `B is slower by less than 1 %`, `alike within 1 %` or `cannot tell`."""
    limit = f"{100 * margin:.3g} %"
    answer = comparison["answer"]
    if answer in (SideAnswer.SLOWER, SideAnswer.FASTER):
        return f"B is {answer}{f' by less than {limit}' if comparison['within_margin'] else ''}"
    return f"alike within {limit}" if answer == SideAnswer.ALIKE else "cannot tell"


def _list_power(
    comparison: Mapping[str, Any], margin: float
) -> Iterator[tuple[str, str]]:
    """Yield what a comparison that shows no difference could have shown."""
    if comparison["answer"] in (SideAnswer.SLOWER, SideAnswer.FASTER):
        return
    smallest = format_percent(comparison["smallest"], signed=False)
    text = f"a difference of {smallest} would have been shown, four times out of five"
    if comparison["answer"] == SideAnswer.CANNOT_TELL:
        more = [
            str(count) if count <= formatting.MANY else f"more than {formatting.MANY}"
            for count in _get_needed(comparison)
        ]
        runs = (
            f"{more[0]} more runs a side"
            if more[0] == more[1]
            else f"{more[0]} more runs of A and {more[1]} of B"
        )
        others = f"would be with {runs}, on other nights or nodes"
        if not any(_get_needed(comparison)):
            others = (
                "would be with no number of runs: the times are printed too coarsely"
            )
        text += f"; one of {100 * margin:.3g} % {others}"
    yield "shows", text


def _get_needed(comparison: Mapping[str, Any]) -> tuple[int, int]:
    a, b = comparison["runs_needed"]
    return a, b


def _list_node_remarks(comparison: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if comparison["groups"] != [1, 1] or comparison["same_nodes"]:
        return
    if comparison["same_nodes"] is None:
        yield (
            "nodes",
            f"nothing says which ones these were: a difference may be the nodes'; {SIDE_BY_SIDE}",
        )
    else:
        yield (
            "nodes",
            f"one set of nodes against another: a difference may be the nodes'; {SIDE_BY_SIDE}",
        )


def _list_differences(comparison: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what differs, what varies and what is unknown; when the runs started has a
    line of its own."""
    differs, varies = (
        [fact for fact in comparison[kind] if fact["name"] != STARTED]
        for kind in ("differs", "varies")
    )
    for fact in differs:
        values = " -> ".join(
            formatting.shorten_setting(fact["name"], fact[side]) for side in ("a", "b")
        )
        yield "differs", f"{name_label(fact['name'])}: {values}"
    if comparison["candidate"]:
        yield (
            "candidate",
            f"{name_label(comparison['candidate'])} is the only thing known that differs",
        )
    days = [_list_days(comparison[side]) for side in ("a", "b")]
    if not differs:
        nothing = (
            "nothing is constant within each side and differs"
            if varies
            else "nothing known differs"
        )
        yield "differs", nothing + (" but the days" if days[0] != days[1] else "")
    for fact in varies:
        values = "; ".join(
            f"{label} {formatting.join_first(fact[side], 3)}"
            for label, side in (("A", "a"), ("B", "b"))
        )
        yield "varies", f"{name_label(fact['name'])}: {values}"
    yield (
        "started",
        "; ".join(
            f"{label} {_format_days(of_side)}"
            for label, of_side in zip("AB", days, strict=True)
        ),
    )
    unknown = [
        f"{name_label(fact['name'])} ({fact['sides']})"
        for fact in comparison["unknown"]
    ]
    if unknown:
        yield "unknown", formatting.join_first(unknown, MANY)


def _list_days(side: Mapping[str, Any]) -> list[str]:
    """Return the days on which the runs of a side started, each once; an empty text for
    one that does not say it."""
    return sorted({(run["started"] or "")[:10] for run in side["runs"]})


def _format_days(days: Sequence[str]) -> str:
    stated = list(filter(None, days))
    span = " to ".join(dict.fromkeys((stated[0], stated[-1]))) if stated else "unknown"
    return f"{span}, some unknown" if stated and len(stated) < len(days) else span


def format_no_data(run: Mapping[str, Any]) -> str:
    """Return why a run counts for nothing."""
    configuration = f" ({run['configuration']})" if run["configuration"] else ""
    return f"{run['run']}{configuration}: {run['reason']}: {run['text']}"


def count_answers(described: Mapping[str, Any]) -> str:
    """Return `3 configurations compared: 1 slower, 2 alike; 1 not compared; 2 runs
    without data`."""
    counts = Counter(each["answer"] for each in described["comparisons"])
    answers = ", ".join(
        f"{counts[name]} {name.replace('-', ' ')}" for name in ORDER if counts[name]
    )
    compared = formatting.count_noun(len(described["comparisons"]), "configuration")
    parts = [
        f"{compared} compared: {answers}" if answers else _explain_nothing(described)
    ]
    if described["not_compared"]:
        parts.append(f"{len(described['not_compared'])} not compared")
    if described["no_data"]:
        parts.append(
            f"{formatting.count_noun(len(described['no_data']), 'run')} without data"
        )
    return "; ".join(parts)


def _explain_nothing(described: Mapping[str, Any]) -> str:
    empty = [
        described[side]["label"] for side in ("a", "b") if not described[side]["runs"]
    ]
    why = (
        f"{' and '.join(empty)} without any run that counts"
        if empty
        else "no configuration has runs on both sides"
    )
    return f"nothing is comparable: {why}"


def format_interval(comparison: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the difference and both ends of its interval, with as many digits."""
    values = [comparison[name] for name in ("difference", "low", "high")]
    digits = 2 if all(abs(value) < 0.01 for value in values) else 1
    difference, low, high = (format_percent(value, digits) for value in values)
    return difference, low.removesuffix(" %"), high


def format_percent(fraction: float, digits: int = 2, *, signed: bool = True) -> str:
    """Return `+5.0 %`; without a sign `0.43 %` and, of what is larger than 10 %, `12
    %`."""
    percent = 100 * fraction
    if not signed:
        return f"{percent:.2g} %" if abs(percent) < 100 else f"{percent:.0f} %"
    shown = f"{percent:+.{digits}f} %"
    return shown if float(shown.removesuffix(" %")) else f"{0:.{digits}f} %"
