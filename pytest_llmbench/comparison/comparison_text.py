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
    lines = []
    for remark in list_remarks(document):
        lines += wrap(remark)
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
    """Return `A  results: 12 runs of 4 configurations, 1 without data`, wrapped."""
    runs = formatting.count_noun(side.runs, "run")
    configurations = formatting.count_noun(side.configurations, "configuration")
    text = f"{side.place}: {runs} of {configurations}"
    if side.no_data:
        text += f", {side.no_data} without data"
    return wrap(text, "   ", first=f"{side.label}  ")


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
    row = f"{head}  {comparison.configuration}"
    if count_columns(row) < 80:
        return [row]
    return [head.rstrip(), *wrap(comparison.configuration, "    ", first="    ")]


def list_facts(
    comparison: ReportedConfiguration, margin: float
) -> Iterator[tuple[str, str]]:
    """Yield the details of one configuration as (label, text) pairs."""
    difference, low, high = format_interval(comparison)
    answer = format_answer(comparison, margin)
    seconds_a = formatting.format_seconds(comparison.a.step_seconds)
    seconds_b = formatting.format_seconds(comparison.b.step_seconds)
    times = f"{seconds_a} -> {seconds_b}"
    yield "answer", f"{answer}: {difference} ({low} to {high}), {times}"
    yield from _list_power(comparison, margin)
    counts = []
    for label, run_count, group_count in zip(
        "AB", comparison.runs, comparison.groups, strict=True
    ):
        runs = formatting.count_noun(run_count, "run")
        groups = formatting.count_noun(group_count, "group")
        counts.append(f"{label} {runs} in {groups}")
    yield "runs", f"{', '.join(counts)}; {comparison.window.text}"
    noise = comparison.noise
    yield (
        "noise",
        f"{format_percent(noise.sigma, signed=False)} from run to run ({noise.source})",
    )
    # Rounding matters more than noise.
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
        extent = f" by less than {limit}" if comparison.within_margin else ""
        return f"B is {answer}{extent}"
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
        needed_a, needed_b = (
            str(count) if count <= formatting.MANY else f"more than {formatting.MANY}"
            for count in comparison.runs_needed
        )
        runs = f"{needed_a} more runs of A and {needed_b} of B"
        if needed_a == needed_b:
            runs = f"{needed_a} more runs a side"
        condition = f"would be with {runs}, on other days or nodes"
        if not any(comparison.runs_needed):
            condition = (
                "would be with no number of runs: the times are printed too coarsely"
            )
        text += f"; one of {100 * margin:.3g} % {condition}"
    yield "shows", text


def _list_node_remarks(comparison: ReportedConfiguration) -> Iterator[tuple[str, str]]:
    """Yield a warning if the nodes may cause the difference of the sides."""
    # Several groups are from different days or nodes, so the noise covers the nodes.
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
    days_a, days_b = _list_days(comparison.a), _list_days(comparison.b)
    if not differs:
        text = "nothing known differs"
        if varies:
            text = "no fact is constant within each side and differs"
        if days_a != days_b:
            text += " but the days"
        yield "differs", text
    for varying in varies:
        values_a, values_b = (
            formatting.join_first(values, 3) for values in (varying.a, varying.b)
        )
        yield "varies", f"{name_label(varying.name)}: A {values_a}; B {values_b}"
    yield "started", f"A {_format_days(days_a)}; B {_format_days(days_b)}"
    unknown = [f"{name_label(fact.name)} ({fact.sides})" for fact in comparison.unknown]
    if unknown:
        yield "unknown", formatting.join_first(unknown, MANY)


def _list_days(side: ReportedSide) -> list[str]:
    """Return the distinct start days of a side; "" for undated runs."""
    return sorted({(run.started or "")[:10] for run in side.runs})


def _format_days(days: Sequence[str]) -> str:
    """Return `2025-11-20 to 2025-11-24`, `2025-11-20, some unknown` or `unknown`.

    `days` are sorted; an unknown day is "".
    """
    known_days = [day for day in days if day]
    if not known_days:
        return "unknown"
    first, last = known_days[0], known_days[-1]
    span = first if first == last else f"{first} to {last}"
    return f"{span}, some unknown" if len(known_days) < len(days) else span


def format_no_data(run: NoData) -> str:
    """Format a run that is not used, with the reason."""
    configuration = f" ({run.configuration})" if run.configuration else ""
    return f"{run.run}{configuration}: {run.reason}: {run.text}"


def count_answers(document: ComparisonDocument) -> str:
    """Return a summary line such as `3 configurations compared: 1 slower, 2 alike; 1
    not compared; 2 runs without data`."""
    texts = []
    if document.comparisons:
        compared = formatting.count_noun(len(document.comparisons), "configuration")
        counts = Counter(comparison.answer for comparison in document.comparisons)
        answers = ", ".join(
            f"{counts[answer]} {answer.replace('-', ' ')}"
            for answer in ORDER
            if counts[answer]
        )
        texts.append(f"{compared} compared: {answers}")
    else:
        texts.append(_explain_nothing(document))
    if document.not_compared:
        texts.append(f"{len(document.not_compared)} not compared")
    if document.no_data:
        runs = formatting.count_noun(len(document.no_data), "run")
        texts.append(f"{runs} without data")
    return "; ".join(texts)


def _explain_nothing(document: ComparisonDocument) -> str:
    """Return the reason no configuration was compared."""
    labels = [side.label for side in (document.a, document.b) if not side.runs]
    if labels:
        return f"nothing to compare: {' and '.join(labels)} without any usable run"
    return "nothing to compare: no configuration has runs on both sides"


def format_interval(comparison: ReportedConfiguration) -> tuple[str, str, str]:
    """Return the difference and both ends of its interval, equally rounded."""
    values = (comparison.difference, comparison.low, comparison.high)
    digits = 2 if all(abs(value) < 0.01 for value in values) else 1
    difference, low, high = (format_percent(value, digits) for value in values)
    return difference, low.removesuffix(" %"), high


def format_percent(fraction: float, digits: int = 2, *, signed: bool = True) -> str:
    """Return a percentage such as `+5.0 %`.

    Without a sign `0.43 %`, and `12 %` above 10 %; `digits` is then ignored.
    """
    percent = 100 * fraction
    if not signed:
        return f"{percent:.2g} %" if abs(percent) < 100 else f"{percent:.0f} %"
    number = f"{percent:+.{digits}f}"
    if float(number) == 0:
        number = f"{0:.{digits}f}"  # without a sign
    return f"{number} %"
