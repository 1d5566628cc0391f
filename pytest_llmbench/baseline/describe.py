"""Baselines as text for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from pytest_llmbench.baseline.lint import LintReport, recompute_cell, round_as_printed
from pytest_llmbench.baseline.schema import NOT_GIVEN
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.models import Baseline, Erratum, Recipe, Recording
from pytest_llmbench.core.tolerance import describe_move, find_reference

LABELS = {
    "step_time": ("step time", "s"),
    "tokens_per_second": ("throughput", "tokens/s"),
    "mfu": ("MFU", ""),
    "days_to_1t": ("1T tokens", "days"),
}


def format_table(baselines: Sequence[Baseline]) -> str:
    """Return one line for each baseline: id, expected step time, printed MFU and kind."""
    wide = max([len("configuration"), *(len(baseline.key.id) for baseline in baselines)])
    lines = [f"{'configuration':<{wide}}  {'step time':>10}  {'MFU':>7}  kind"]
    for baseline in baselines:
        cells = dict(baseline.cells)
        # As the document prints it: its digits say how exact it is.
        printed = cells.get("step_time") or _format_number(baseline.step_seconds, "#.4g")
        step = printed if printed == "-" else f"{printed} s"
        lines.append(f"{baseline.key.id:<{wide}}  {step:>10}  {cells.get('mfu', '-'):>7}  {baseline.kind}")
    return "\n".join([*lines, count_noun(len(baselines), "configuration")])


def format_page(recipe: Recipe, baseline: Baseline, width: int) -> str:
    """Return everything that is known of one baseline: expectation, model, groups, derived metrics, errata, source."""
    errata = [erratum for erratum in recipe.errata if erratum.configuration in ("", baseline.key.id)]
    facts = [*_describe_expectation(baseline), *_describe_shape(baseline), *_describe_origin(recipe, baseline)]
    lines = [baseline.key.id, *_format_facts(facts, width), "", *_format_metrics(baseline)]
    if errata:
        lines += ["", "errata", *_format_errata(errata, width)]
    return "\n".join(lines)


def format_lint_page(reports: Sequence[LintReport], width: int) -> str:
    """Return the counts of every file and of all of them, every erratum with its reason, and the findings last."""
    lines = [line for report in reports for line in (str(report.path), *_wrap(_format_counts([report]), width, "  "))]
    lines += ["all files", *_wrap(_format_counts(reports), width, "  ")]
    for report in reports:
        if report.errata:
            lines += [
                "",
                f"errata of {report.path.parent.name} {report.path.stem}",
                *_format_errata(report.errata, width),
            ]
    findings = [finding for report in reports for finding in report.findings]
    lines += [
        "",
        count_noun(len(findings), "finding"),
        *(line for text in findings for line in _wrap(text, width, "  ")),
    ]
    return "\n".join(lines)


def _format_counts(reports: Sequence[LintReport]) -> str:
    configurations = count_noun(sum(report.configurations for report in reports), "configuration")
    cells, numbers = sum(report.cells for report in reports), sum(report.numbers for report in reports)
    derived, reproduced = sum(report.derived for report in reports), sum(report.reproduced for report in reports)
    listed = sum(bool(erratum.configuration) for report in reports for erratum in report.errata)
    prose = sum(not erratum.configuration for report in reports for erratum in report.errata)
    return (
        f"{configurations}, {cells} cells ({numbers} numbers), {derived} derived: {reproduced} reproduce, "
        f"{derived - reproduced} do not; errata: {listed} in tables, {prose} in the text"
    )


def _describe_expectation(baseline: Baseline) -> Iterator[tuple[str, str]]:
    printed = f", printed to {baseline.resolution_seconds:g} s" if baseline.resolution_seconds else ""
    yield "kind", baseline.kind
    timed = not math.isnan(baseline.step_seconds)
    yield "expected", f"{baseline.step_seconds:.10g} s a step{printed}" if timed else "nothing yet: record a baseline"
    yield "judged by", f"{baseline.window}, of {baseline.steps} steps"
    yield "timed", {"last_step": "the last step of a run"}.get(baseline.timed, baseline.timed.replace("_", " "))
    yield "tolerance", ", ".join(map(str, baseline.tolerances)) or "that of the session"
    if baseline.budgets:
        yield "budgets", ", ".join(f"{budget.metric} {budget.largest:g} s" for budget in baseline.budgets)
    recording = baseline.recording
    if recording:
        spread = f"mean {recording.mean_seconds:.6g} s, standard deviation {recording.standard_deviation_seconds:.3g} s"
        groups = f" of {count_noun(recording.groups, 'night')} or sets of nodes" if recording.groups else ""
        yield "recorded", f"{recording.date}, {count_noun(recording.runs, 'run')}{groups}, {spread}"
        yield "runs", ", ".join(f"{seconds:.6g} s" for seconds in recording.run_seconds)
        yield from _describe_recording(recording)


def _describe_recording(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield who recorded a value, in what environment, what it replaced, and how far it is from what counts."""
    if recording.by:
        yield "by", recording.by
    if recording.environment:
        yield "ran in", ", ".join(f"{name} {value}" for name, value in recording.environment)
    for value in recording.earlier:
        why = f": {value.reason}" if value.reason else ""
        yield "earlier", f"{value.seconds:.6g} s, {value.date}{f', {value.by}' if value.by else ''}{why}"
    if recording.reason:
        yield "accepted", recording.reason
    if recording.levels:
        yield "levels", f"several, accepted: {recording.levels}"
    if recording.earlier:
        yield "drift", describe_move(recording.trimmed_mean_seconds, find_reference(recording))


def _describe_shape(baseline: Baseline) -> Iterator[tuple[str, str]]:
    configuration = baseline.configuration
    architecture = asdict(configuration.architecture)
    named = (f"{name.replace('_', ' ')} {value}" for name, value in architecture.items() if value is not None)
    groups = {name.upper(): value for name, value in asdict(configuration.parallelism).items() if value is not None}
    yield "model", ", ".join(named) + (" (a proxy: not the full model)" if configuration.proxy else "")
    yield "groups", ", ".join(f"{name} {size}" for name, size in groups.items()) or "not stated"
    batch = {
        "GBS": configuration.global_batch_size,
        "MBS": configuration.micro_batch_size,
        "GA": configuration.gradient_accumulation,
    }
    yield "batch", ", ".join(f"{name} {size}" for name, size in batch.items() if size is not None)
    peak = "not stated" if math.isnan(baseline.peak_tflops) else f"{baseline.peak_tflops:.10g} TFLOP/s per GPU"
    yield "peak", peak
    if baseline.logged_tflops_factor:
        yield "logged", f"{baseline.logged_tflops_factor:.6g} x the computed TFLOP/s"


def _describe_origin(recipe: Recipe, baseline: Baseline) -> Iterator[tuple[str, str]]:
    source = baseline.source
    yield "framework", f"{recipe.framework or 'not stated'} (log dialect {baseline.dialect})"
    yield "document", source.document + (f", table {source.table}" if source.table else "")
    yield "file", f"{source.file}:{source.line}"
    launch: dict[str, Any] = dict(recipe.launch)
    if launch:
        command: dict[str, Any] = dict(dict(launch["commands"])[launch["kind"]])
        variables = "".join(f"{name}={value} " for name, value in command.get("fixed", ()))
        yield "launch", variables + str(command["command"])


def _format_facts(facts: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    for name, text in facts:
        yield from _wrap(text, width, f"  {name:<10} ", " " * 13)


def _format_metrics(baseline: Baseline) -> Iterator[str]:
    """Yield a table of what is printed and what follows from the step time and the stated constants."""
    printed = dict(baseline.cells)
    yield f"  {'metric':<22} {'printed':>12}  {'computed':>12}"
    for name, (label, unit) in LABELS.items():
        cell = printed.get(name, "-")
        if name == "step_time":
            computed = _format_number(baseline.step_seconds, ".10g")
        else:
            computed = _format_computed(baseline, recompute_cell(baseline, name), name, cell)
        what = f"{label} ({unit})" if unit else label
        yield f"  {what:<22} {cell:>12}  {computed:>12}"
    tflops = metric_definitions.compute_tflops_per_gpu(baseline.configuration, baseline.step_seconds)
    yield f"  {'TFLOP/s per GPU':<22} {'-':>12}  {_format_number(tflops, '.2f'):>12}"


def _format_number(value: float, digits: str) -> str:
    return "-" if math.isnan(value) else f"{value:{digits}}"


def _format_computed(baseline: Baseline, value: float | None, name: str, cell: str) -> str:
    if value is None:
        return "none (proxy)" if name == "days_to_1t" and baseline.configuration.proxy else "-"
    if cell != "-" and cell not in NOT_GIVEN:
        return round_as_printed(value, cell)
    return f"{value * 100:.2f}%" if name == "mfu" else f"{value:.2f}"


def _format_errata(errata: Sequence[Erratum], width: int) -> Iterator[str]:
    """Yield errata, those of one place and reason together."""
    for (where, reason), group in groupby(errata, lambda erratum: (erratum.where, erratum.reason)):
        yield from _wrap(where, width, "  ")
        for erratum in group:
            change = f"{erratum.printed} -> {erratum.corrected}"
            text = f"{erratum.configuration}: {erratum.cell} {change}" if erratum.configuration else change
            yield from _wrap(text, width, "    ", "      ")
        yield from _wrap(reason, width, "    because ", "      ")


def _wrap(text: str, width: int, first: str, rest: str | None = None) -> list[str]:
    # An id is not broken at its hyphens: it is there to be copied.
    following = first if rest is None else rest
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=following, break_on_hyphens=False, break_long_words=False
    )
