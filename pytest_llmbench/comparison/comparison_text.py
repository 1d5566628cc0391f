"""Format a comparison for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_llmbench.comparison.comparison_document import (
    ORDER,
    ComparisonDocument,
    ReportedConfiguration,
    ReportedInput,
    ReportedSide,
)
from pytest_llmbench.comparison.comparison_records import STARTED, NoData, SideAnswer
from pytest_llmbench.core import formatting
from pytest_llmbench.core.text import count_columns
from pytest_llmbench.report.explain import name_label, wrap

MANY = 8
"""Largest number of listed runs, values or names; further ones are counted."""

SIDE_BY_SIDE = "to be sure, run both side by side on the same nodes"


def format_text(document: ComparisonDocument) -> str:
    """Format a comparison for a terminal of 79 columns.

    One line per configuration, followed by a section with its details.
    """
    lines = [line for text in list_remarks(document) for line in wrap(text)]
    lines += [*_format_side(document.a), *_format_side(document.b)]
    if document.comparisons:
        lines.append("")
    for comparison in document.comparisons:
        lines += _format_row(comparison)
    for comparison in document.comparisons:
        lines += ["", *wrap(comparison.configuration, "  ")]
        for name, text in list_facts(comparison, document.margin):
            lines += wrap(text, " " * 12, first=f"  {name:<10}")
    lines += _format_list("not compared:", list_not_compared(document))
    lines += _format_list("no data:", list(map(format_no_data, document.no_data)))
    return "\n".join([*lines, "", *wrap(count_answers(document), "  ")])


def list_not_compared(document: ComparisonDocument) -> list[str]:
    """List the configurations that were not compared, with reasons."""
    return [f"{pair.configuration}: {pair.text}" for pair in document.not_compared]


def _format_list(title: str, texts: Sequence[str]) -> list[str]:
    """Format a titled list of at most MANY texts; empty without texts."""
    if not texts:
        return []
    lines = ["", title]
    for text in texts[:MANY]:
        lines += wrap(text, "    ", first="  ")
    if len(texts) > MANY:
        lines.append(f"  and {len(texts) - MANY} more (--json has all)")
    return lines


def _format_side(side: ReportedInput) -> list[str]:
    counted = formatting.count_noun(side.runs, "run")
    of = formatting.count_noun(side.configurations, "configuration")
    without = f", {side.no_data} without data" if side.no_data else ""
    return wrap(
        f"{side.place}: {counted} of {of}{without}",
        "   ",
        first=f"{side.label}  ",
    )


def list_remarks(document: ComparisonDocument) -> Iterator[str]:
    """Yield remarks on the whole comparison."""
    comparisons = document.comparisons
    if comparisons and not any(comparison.noise.measured for comparison in comparisons):
        sigma = format_percent(comparisons[0].noise.sigma, signed=False)
        yield f"the noise from run to run is assumed ({sigma}): too few runs, daily runs or configurations to measure it"
    if document.history:
        yield f"history: {document.history}"
    if comparisons:
        yield f"B relative to A: difference of step times, 95 % interval, alike within {_format_margin(document)}"


def _format_margin(document: ComparisonDocument) -> str:
    return f"{100 * document.margin:.3g} %"


def _format_row(comparison: ReportedConfiguration) -> list[str]:
    """Format the table row of a configuration.

    A long name is moved to a second line.
    """
    difference, low, high = format_interval(comparison)
    answer = comparison.answer.replace("-", " ")
    head = f"{answer:<11}  {difference:>8}  {f'({low} to {high})':<21}"
    whole = f"{head}  {comparison.configuration}"
    name = comparison.configuration
    return (
        [whole]
        if count_columns(whole) < 80
        else [head.rstrip(), *wrap(name, "    ", first="    ")]
    )


def list_facts(
    comparison: ReportedConfiguration, margin: float
) -> Iterator[tuple[str, str]]:
    """Yield the details of one configuration as (label, text) pairs."""
    difference, low, high = format_interval(comparison)
    seconds = (
        formatting.format_seconds(side.step_seconds) for side in comparison.sides
    )
    yield (
        "answer",
        f"{format_answer(comparison, margin)}: {difference} ({low} to {high}), {' -> '.join(seconds)}",
    )
    yield from _list_power(comparison, margin)
    runs, groups = comparison.runs, comparison.groups
    counts = [
        f"{label} {formatting.count_noun(count, 'run')} in {formatting.count_noun(group_count, 'group')}"
        for label, count, group_count in zip("AB", runs, groups, strict=True)
    ]
    yield "runs", f"{', '.join(counts)}; {comparison.window.text}"
    noise = comparison.noise
    yield (
        "noise",
        f"{format_percent(noise.sigma, signed=False)} from run to run ({noise.source})",
    )
    if comparison.rounding > comparison.standard_error:
        rounding = format_percent(comparison.rounding, signed=False)
        yield (
            "rounding",
            f"the printed digits may move the difference by {rounding}, however many runs there are",
        )
    yield from _list_node_remarks(comparison)
    yield from _list_differences(comparison)


def format_answer(comparison: ReportedConfiguration, margin: float) -> str:
    """Return `B is slower by less than 1 %`, `alike within 1 %` or `cannot tell`."""
    limit = f"{100 * margin:.3g} %"
    answer = comparison.answer
    if answer in (SideAnswer.SLOWER, SideAnswer.FASTER):
        return f"B is {answer}{f' by less than {limit}' if comparison.within_margin else ''}"
    return f"alike within {limit}" if answer == SideAnswer.ALIKE else "cannot tell"


def _list_power(
    comparison: ReportedConfiguration, margin: float
) -> Iterator[tuple[str, str]]:
    """Yield the detectable difference of a comparison that shows none."""
    if comparison.answer in (SideAnswer.SLOWER, SideAnswer.FASTER):
        return
    smallest = format_percent(comparison.smallest, signed=False)
    text = f"a difference of {smallest} would have been shown, four times out of five"
    if comparison.answer == SideAnswer.CANNOT_TELL:
        more = [
            str(count) if count <= formatting.MANY else f"more than {formatting.MANY}"
            for count in comparison.runs_needed
        ]
        runs = (
            f"{more[0]} more runs a side"
            if more[0] == more[1]
            else f"{more[0]} more runs of A and {more[1]} of B"
        )
        condition = f"would be with {runs}, on other days or nodes"
        if not any(comparison.runs_needed):
            condition = (
                "would be with no number of runs: the times are printed too coarsely"
            )
        text += f"; one of {100 * margin:.3g} % {condition}"
    yield "shows", text


def _list_node_remarks(comparison: ReportedConfiguration) -> Iterator[tuple[str, str]]:
    """Yield a warning if the difference of two runs may come from their nodes."""
    if comparison.groups != (1, 1) or comparison.same_nodes:
        return
    if comparison.same_nodes is None:
        yield (
            "nodes",
            f"the nodes are unknown and may cause the difference; {SIDE_BY_SIDE}",
        )
    else:
        yield (
            "nodes",
            f"A and B used different nodes, which may cause the difference; {SIDE_BY_SIDE}",
        )


def _list_differences(comparison: ReportedConfiguration) -> Iterator[tuple[str, str]]:
    """Yield differing, varying and unknown facts, and the start days."""
    differs = [fact for fact in comparison.differs if fact.name != STARTED]
    varies = [fact for fact in comparison.varies if fact.name != STARTED]
    for fact in differs:
        values = " -> ".join(
            formatting.shorten_setting(fact.name, value) for value in (fact.a, fact.b)
        )
        yield "differs", f"{name_label(fact.name)}: {values}"
    if comparison.candidate:
        yield (
            "candidate",
            f"{name_label(comparison.candidate)} is the only known difference",
        )
    days = [_list_days(side) for side in comparison.sides]
    if not differs:
        nothing = (
            "no fact is constant within each side and differs"
            if varies
            else "nothing known differs"
        )
        yield "differs", nothing + (" but the days" if days[0] != days[1] else "")
    for varying in varies:
        values_a, values_b = (
            formatting.join_first(values, 3) for values in (varying.a, varying.b)
        )
        yield "varies", f"{name_label(varying.name)}: A {values_a}; B {values_b}"
    yield (
        "started",
        "; ".join(
            f"{label} {_format_days(side_days)}"
            for label, side_days in zip("AB", days, strict=True)
        ),
    )
    unknown = [f"{name_label(fact.name)} ({fact.sides})" for fact in comparison.unknown]
    if unknown:
        yield "unknown", formatting.join_first(unknown, MANY)


def _list_days(side: ReportedSide) -> list[str]:
    """Return the distinct start days of a side; "" for undated runs."""
    return sorted({(run.started or "")[:10] for run in side.runs})


def _format_days(days: Sequence[str]) -> str:
    known_days = list(filter(None, days))
    span = (
        " to ".join(dict.fromkeys((known_days[0], known_days[-1])))
        if known_days
        else "unknown"
    )
    return (
        f"{span}, some unknown" if known_days and len(known_days) < len(days) else span
    )


def format_no_data(run: NoData) -> str:
    """Format a run that is not used, with the reason."""
    configuration = f" ({run.configuration})" if run.configuration else ""
    return f"{run.run}{configuration}: {run.reason}: {run.text}"


def count_answers(document: ComparisonDocument) -> str:
    """Return a summary line such as `3 configurations compared: 1 slower, 2 alike; 1
    not compared; 2 runs without data`."""
    counts = Counter(comparison.answer for comparison in document.comparisons)
    answers = ", ".join(
        f"{counts[name]} {name.replace('-', ' ')}" for name in ORDER if counts[name]
    )
    compared = formatting.count_noun(len(document.comparisons), "configuration")
    counted = [
        f"{compared} compared: {answers}" if answers else _explain_nothing(document)
    ]
    if document.not_compared:
        counted.append(f"{len(document.not_compared)} not compared")
    if document.no_data:
        counted.append(
            f"{formatting.count_noun(len(document.no_data), 'run')} without data"
        )
    return "; ".join(counted)


def _explain_nothing(document: ComparisonDocument) -> str:
    empty = [side.label for side in (document.a, document.b) if not side.runs]
    reason = (
        f"{' and '.join(empty)} without any usable run"
        if empty
        else "no configuration has runs on both sides"
    )
    return f"nothing to compare: {reason}"


def format_interval(comparison: ReportedConfiguration) -> tuple[str, str, str]:
    """Return the difference and both ends of its interval, equally rounded."""
    values = (comparison.difference, comparison.low, comparison.high)
    digits = 2 if all(abs(value) < 0.01 for value in values) else 1
    difference, low, high = (format_percent(value, digits) for value in values)
    return difference, low.removesuffix(" %"), high


def format_percent(fraction: float, digits: int = 2, *, signed: bool = True) -> str:
    """Return a percentage such as `+5.0 %`.

    Without a sign `0.43 %`, and `12 %` above 10 %.
    """
    percent = 100 * fraction
    if not signed:
        return f"{percent:.2g} %" if abs(percent) < 100 else f"{percent:.0f} %"
    formatted = f"{percent:+.{digits}f} %"
    return formatted if float(formatted.removesuffix(" %")) else f"{0:.{digits}f} %"
