"""Check a baseline file for contradictions.

Derived cells, constants and group sizes are computed again and compared with the
printed values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.baseline.read import RecipeFile, StatedModel
from pytest_llmbench.baseline.schema import COLUMNS, CONFIGURATION, DERIVED, NOT_GIVEN
from pytest_llmbench.core.baseline_records import (
    Architecture,
    Baseline,
    Contradiction,
    Erratum,
)
from pytest_llmbench.core.flops import count_flops_per_token, count_model_flops
from pytest_llmbench.core.formatting import count_noun, escape
from pytest_llmbench.core.metric_definitions import METRICS, uses_logged_flops
from pytest_llmbench.core.text import wrap
from pytest_llmbench.core.tolerance import (
    DRIFT_BUDGET,
    describe_move,
    find_reference,
    is_beyond,
)


class LintReport(Struct, frozen=True):
    """Counts and findings of one file."""

    path: Path
    configurations: int
    cells: int
    numbers: int
    derived: int
    """Printed numbers that can be computed again (`_is_derived`)."""

    reproduced: int
    """Derived numbers that follow from the step time and the stated constants."""

    errata: tuple[Erratum, ...]
    findings: tuple[str, ...]
    """Empty if the file may be shipped."""


class _Mismatch(NamedTuple):
    """A cell or column whose printed value is wrong.

    `expected` is None if the value cannot be computed.
    """

    baseline: Baseline
    cell: str
    printed: str
    expected: str | None


def lint_file(file: RecipeFile) -> LintReport:
    """Check one file, and recompute its derived cells.

    A derived cell, such as MFU, follows from the step time. Reports contradictions
    without an erratum, errata without a contradiction, wrong model constants, and
    recorded values beyond the drift budget.
    """
    recipe = file.recipe
    cells: list[str] = []
    derived = 0
    wrong_cells: list[_Mismatch] = []
    wrong_columns: list[_Mismatch] = []
    for baseline in recipe.baselines:
        for name, text in baseline.cells:
            cells.append(text)
            derived += _is_derived(baseline, name, text)
        wrong_cells += _find_wrong_cells(baseline)
        wrong_columns += _find_contradicting_columns(
            baseline, dp_excludes_ep=recipe.dp_excludes_ep
        )
    mismatches = [*wrong_cells, *wrong_columns]
    findings = [
        *_find_unlisted_mismatches(file, mismatches),
        *_find_unfounded_errata(file, mismatches),
        *_find_wrong_constants(file),
        *_find_hidden_drift(file),
    ]
    return LintReport(
        path=recipe.path,
        configurations=len(recipe.baselines),
        cells=len(cells),
        numbers=sum(text not in NOT_GIVEN for text in cells),
        derived=derived,
        reproduced=derived - len(wrong_cells),
        errata=recipe.errata,
        findings=tuple(f"{recipe.path}{finding}" for finding in findings),
    )


def round_as_printed(value: float, printed: str) -> str:
    """Format a value with the decimals of a printed cell.

    Half a unit is rounded up; a percent sign is kept.
    """
    _, unit, factor = _parse_printed(printed)
    # Python's `round` rounds half to even, the documents' spreadsheets round half up.
    scaled = (Decimal(repr(value)) * factor).quantize(unit, ROUND_HALF_UP)
    percent_sign = "%" if printed.endswith("%") else ""
    return f"{scaled}{percent_sign}"


def _parse_printed(printed: str) -> tuple[Decimal, Decimal, int]:
    """Parse a printed cell.

    Returns its number, one unit in the last place, and the factor of its unit: 100 for
    percentages, otherwise 1.
    """
    digits = Decimal(printed.rstrip("%"))
    exponent = digits.as_tuple().exponent
    # The exponent is a letter for NaN and infinity, which no file prints.
    unit = Decimal(1).scaleb(exponent if isinstance(exponent, int) else 0)
    factor = 100 if printed.endswith("%") else 1
    return digits, unit, factor


def recompute_cell(baseline: Baseline, cell: str) -> float | None:
    """Compute a derived cell from the printed step time.

    None if it cannot be computed: the days of a proxy, MFU without a peak, and every
    cell without a step time.
    """
    # A derived cell may have another name than its metric: `days_to_1t`.
    formula = METRICS[DERIVED.get(cell, cell)].formula
    if formula is None or math.isnan(baseline.step_seconds):
        return None
    return formula(baseline, baseline.step_seconds)


def find_contradiction(
    baseline: Baseline, errata: Iterable[Erratum]
) -> Contradiction | None:
    """Return the derived cell that contradicts the printed step time most.

    That is the cell that implies the shortest step time, if it is shorter than printed.
    Otherwise it is the cell that implies the longest, if longer than printed. Cells
    with an erratum are ignored. Differences within the rounding of both numbers are no
    contradiction.
    """
    name_in_errata = baseline.key.id
    listed_cells = {
        erratum.cell for erratum in errata if erratum.configuration == name_in_errata
    }
    # A step time printed as 7.325 was between 7.3245 and 7.3255.
    half_unit = baseline.resolution_seconds / 2
    smallest_printed = baseline.step_seconds - half_unit
    largest_printed = baseline.step_seconds + half_unit
    shorter: list[Contradiction] = []
    longer: list[Contradiction] = []
    for name, text in baseline.cells:
        if name in listed_cells or not _is_derived(baseline, name, text):
            continue
        shortest, longest = _compute_implied(baseline, name, text)
        if 0 < longest < smallest_printed:
            shorter.append(Contradiction(name, text, longest))
        elif largest_printed < shortest < math.inf:
            longer.append(Contradiction(name, text, shortest))
    if shorter:
        return min(shorter, key=attrgetter("seconds"))
    return max(longer, key=attrgetter("seconds"), default=None)


def _compute_implied(
    baseline: Baseline, name: str, printed: str
) -> tuple[float, float]:
    """Return the shortest and longest step times that a derived cell implies.

    Both are NaN if the cell cannot be computed from the printed step time.
    """
    computed = recompute_cell(baseline, name)
    digits, unit, factor = _parse_printed(printed)
    # An MFU printed as 47.59% was between 0.47585 and 0.47595.
    low = float(digits - unit / 2) / factor
    high = float(digits + unit / 2) / factor
    if computed is None or not (low > 0 and computed > 0):
        return math.nan, math.nan
    if METRICS[DERIVED[name]].larger_is_better:
        # Inversely proportional to the step time, such as throughput.
        shortest_ratio, longest_ratio = computed / high, computed / low
    else:
        # Proportional to the step time, such as days.
        shortest_ratio, longest_ratio = low / computed, high / computed
    return baseline.step_seconds * shortest_ratio, baseline.step_seconds * longest_ratio


def _is_derived(baseline: Baseline, name: str, text: str) -> bool:
    """True if a cell with the printed `text` can be computed from the step time.

    MFU needs counted FLOPs and a known peak.
    """
    if name == "mfu" and recompute_cell(baseline, name) is None:
        return False
    return name in DERIVED and text not in NOT_GIVEN


def _find_wrong_cells(baseline: Baseline) -> Iterator[_Mismatch]:
    """Yield the derived cells that the printed step time does not reproduce."""
    for name, printed in baseline.cells:
        if _is_derived(baseline, name, printed):
            value = recompute_cell(baseline, name)
            expected = None if value is None else round_as_printed(value, printed)
            if expected != printed:
                yield _Mismatch(baseline, name, printed, expected)


def _find_unlisted_mismatches(
    file: RecipeFile, mismatches: Sequence[_Mismatch]
) -> Iterator[str]:
    """Yield a finding for each mismatch without an erratum."""
    # Of the 213 derived cells of the five documents 30 do not reproduce: 11 use a BF16
    # peak of 989.5 instead of 989, 12 use 16 query groups instead of 8, 4 use half of
    # the batch, and 3 are rounded at another digit.
    listed_cells = {
        (erratum.configuration, erratum.cell) for erratum in file.recipe.errata
    }
    for baseline, cell, printed, expected in mismatches:
        if (baseline.key.id, cell) not in listed_cells:
            yield (
                f":{baseline.source.line}: {baseline.key.id}: found {cell} {printed}, "
                f"expected {expected or 'none'}; correct it, or list it under errata with the reason"
            )


def _find_unfounded_errata(
    file: RecipeFile, mismatches: Sequence[_Mismatch]
) -> Iterator[str]:
    """Yield a finding for each erratum that does not match a mismatch."""
    by_cell = {
        (mismatch.baseline.key.id, mismatch.cell): mismatch for mismatch in mismatches
    }
    for erratum in file.recipe.errata:
        # An erratum without a configuration is about the text of the document.
        if not erratum.configuration:
            continue
        prefix = f": erratum: {erratum.cell} of {erratum.configuration}"
        mismatch = by_cell.get((erratum.configuration, erratum.cell))
        if mismatch is None:
            yield f"{prefix}: the cell reproduces, so remove the erratum"
        elif mismatch.printed != erratum.printed:
            yield f"{prefix}: found printed {erratum.printed}, expected {mismatch.printed} as in the configuration"
        elif mismatch.expected != erratum.corrected:
            yield f"{prefix}: found corrected {erratum.corrected}, expected {mismatch.expected}"


def correct_columns(published: Baseline, errata: Iterable[Erratum]) -> Baseline:
    """Replace the misprinted columns of a published baseline by those of its errata.

    Used for a recorded baseline made from it, which states the actual configuration of
    the runs. The published file keeps its columns as the document prints them.
    """
    # "dp" is stored in `configuration.parallelism.dp`.
    fields = {key.name: key.field for key in CONFIGURATION if key.name in COLUMNS}
    for erratum in errata:
        field = fields.get(erratum.cell)
        if field is None or erratum.configuration != published.key.id:
            continue
        is_positive = re.fullmatch(r"[1-9]\d{0,8}", erratum.corrected, re.ASCII)
        stored = str(attrgetter(field)(published))
        if is_positive and stored == erratum.printed:
            published = _replace_field(published, field, int(erratum.corrected))
    return published


def _replace_field(record: Any, path: str, value: object) -> Any:
    """Return a copy of a record with another value at a dotted path.

    `path` is for example `configuration.parallelism.dp`.
    """
    name, _, remaining_path = path.partition(".")
    if remaining_path:
        value = _replace_field(getattr(record, name), remaining_path, value)
    return replace(record, **{name: value})


def _find_wrong_constants(file: RecipeFile) -> Iterator[str]:
    """Yield printed FLOPs and worked examples that the formula does not reproduce."""
    # Only full models: the documents print no FLOPs of a proxy.
    for size, model in file.models:
        configurations = [
            baseline.configuration
            for baseline in file.recipe.baselines
            if baseline.configuration.key.size == size
        ]
        full_architectures = {
            configuration.architecture
            for configuration in configurations
            if not (configuration.proxy or uses_logged_flops(configuration))
        }
        for architecture in full_architectures:
            flops = count_model_flops(architecture)
            if model.printed_flops and not _is_same_flops(flops, model.printed_flops):
                yield f": model {size}: found FLOPs {model.printed_flops}, expected {flops:.6g}"
        if model.worked:
            # The example replaces layers and sequence length, so any architecture of
            # the model serves.
            first_architecture = configurations[0].architecture
            example_base = next(iter(full_architectures), first_architecture)
            yield from _find_wrong_worked_example(size, model, example_base)


def _find_wrong_worked_example(
    size: str, model: StatedModel, architecture: Architecture
) -> Iterator[str]:
    """Yield the FLOPs of a worked example that differ from the formula.

    A worked example is a calculation that the document prints, with its own sequence
    length and number of layers. All other sizes are those of `architecture`.
    """
    worked = dict(model.worked)
    example = replace(
        architecture,
        sequence_length=int(worked["sequence_length"]),
        layers=int(worked["layers"]),
    )
    token_flops = count_flops_per_token(example)
    terms = ("attention", "mlp", "embedding")
    for name, expected in zip(terms, token_flops, strict=True):
        # Printed with commas: "104,689,827,840".
        if int(str(worked[name]).replace(",", "")) != expected:
            yield f": model {size}: found {name} FLOPs {worked[name]}, expected {expected:,}"
    flops = example.sequence_length * sum(token_flops)
    if "flops" in worked and not _is_same_flops(flops, str(worked["flops"])):
        yield f": model {size}: found worked FLOPs {worked['flops']}, expected {flops:.6g}"


def _find_hidden_drift(file: RecipeFile) -> Iterator[str]:
    """Yield recorded values beyond the drift budget, and removed earlier values."""
    # Recording refuses such a value, so the file was edited.
    budget = file.drift_budget or DRIFT_BUDGET
    for baseline in file.recipe.baselines:
        recording = baseline.recording
        if recording is None:
            continue
        prefix = f":{baseline.source.line}: {baseline.key.id}"
        if recording.reason and not recording.earlier:
            reason = f"found the reason {recording.reason!r} and no earlier value"
            yield f"{prefix}: {reason}, expected the replaced values: they were removed"
        seconds = recording.trimmed_mean_seconds
        reference = find_reference(recording)
        if is_beyond(seconds, reference, budget):
            drift = describe_move(seconds, reference)
            expected = f"expected at most {budget * 100:.10g} %, or a reason"
            yield f"{prefix}: found that {drift}, {expected}"


def _is_same_flops(flops: float, printed: str) -> bool:
    """True if FLOPs round to the printed FLOPs, which have fewer digits."""
    mantissa, _, _ = printed.lower().partition("e")
    decimals = len(mantissa) - len("4.")  # "4.27E+15": 2
    return float(f"{flops:.{decimals}e}") == float(printed)


# --- consistency of group sizes, batch sizes and GPUs ---------------------------------


def _find_contradicting_columns(
    baseline: Baseline, *, dp_excludes_ep: bool
) -> Iterator[_Mismatch]:
    """Yield the columns that contradict each other.

    GPUs = TP x PP x CP x DP, GBS = MBS x GA x DP, and FSDP groups divide the GPUs.
    Columns that the document does not print are not checked. With `dp_excludes_ep`, DP
    counts replicas of all the experts, so that GPUs = TP x PP x CP x EP x DP.
    """
    groups, gpus = baseline.configuration.parallelism, baseline.key.gpus
    if groups.fsdp is not None and gpus % groups.fsdp:
        yield _Mismatch(baseline, "fsdp", str(groups.fsdp), None)
    # Expert parallelism divides the data-parallel ranks, so it is not a factor here.
    model_parallel = (groups.tp or 1) * (groups.pp or 1) * (groups.cp or 1)
    if gpus % model_parallel:
        yield _Mismatch(baseline, "tp", str(groups.tp), None)
        return
    ranks = gpus // model_parallel
    experts = (groups.ep or 1) if dp_excludes_ep else 1
    if groups.dp is not None and groups.dp * experts != ranks:
        yield _Mismatch(baseline, "dp", str(groups.dp), _divide_exactly(ranks, experts))
    yield from _find_wrong_batch(baseline, ranks)


def _find_wrong_batch(baseline: Baseline, ranks: int) -> Iterator[_Mismatch]:
    """Yield the accumulation or batch size if GBS is not MBS x GA x `ranks`.

    Without a printed GA, any multiple of MBS x `ranks` is accepted, because documents
    omit GA. A document with FSDP groups alone (MaxText) does not accumulate gradients,
    so its GBS must be exactly MBS x `ranks`.
    """
    configuration, groups = baseline.configuration, baseline.configuration.parallelism
    batch, micro = configuration.global_batch_size, configuration.micro_batch_size
    accumulation = configuration.gradient_accumulation
    if not batch or micro is None or batch == micro * (accumulation or 1) * ranks:
        return
    if accumulation is not None:
        yield _Mismatch(
            baseline, "ga", str(accumulation), _divide_exactly(batch, micro * ranks)
        )
        return
    prints_only_fsdp = groups.fsdp is not None and groups.tp is None
    if prints_only_fsdp or batch % (micro * ranks):
        yield _Mismatch(baseline, "gbs", str(batch), str(micro * ranks))


def _divide_exactly(numerator: int, denominator: int) -> str | None:
    """Return the quotient as text, or None if there is a remainder."""
    return None if numerator % denominator else str(numerator // denominator)


# --- text -----------------------------------------------------------------------------


def format_lint_page(reports: Sequence[LintReport], width: int) -> str:
    """Format the counts of all files, their errata and the findings."""
    sections = [(str(report.path), [report]) for report in reports]
    sections.append(("all files", list(reports)))
    lines: list[str] = []
    for title, counted_reports in sections:
        lines += [title, *wrap_text(_format_counts(counted_reports), width, "  ")]
    for report in reports:
        if report.errata:
            title = f"errata of {report.path.parent.name} {report.path.stem}"
            lines += ["", title, *format_errata(report.errata, width)]
    findings = [finding for report in reports for finding in report.findings]
    lines += ["", count_noun(len(findings), "finding")]
    for text in findings:
        lines += wrap_text(text, width, "  ")
    return "\n".join(lines)


def _format_counts(reports: Sequence[LintReport]) -> str:
    """Return the sums of the counts of these files in one sentence."""
    configurations = sum(report.configurations for report in reports)
    cells = sum(report.cells for report in reports)
    numbers = sum(report.numbers for report in reports)
    derived = sum(report.derived for report in reports)
    reproduced = sum(report.reproduced for report in reports)
    errata = [erratum for report in reports for erratum in report.errata]
    # Only an erratum of a table names a configuration.
    in_tables = sum(bool(erratum.configuration) for erratum in errata)
    in_text = len(errata) - in_tables
    return (
        f"{count_noun(configurations, 'configuration')}, {cells} cells ({numbers} numbers), {derived} derived: "
        f"{reproduced} reproduce, {derived - reproduced} do not; errata: {in_tables} in tables, {in_text} in the text"
    )


def format_errata(errata: Sequence[Erratum], width: int) -> Iterator[str]:
    """Format errata, grouped by location and reason."""
    groups = groupby(errata, lambda erratum: (erratum.where, erratum.reason))
    for (location, reason), group in groups:
        yield from wrap_text(location, width, "  ")
        for erratum in group:
            text = f"{erratum.printed} -> {erratum.corrected}"
            if erratum.configuration:
                text = f"{erratum.configuration}: {erratum.cell} {text}"
            yield from wrap_text(text, width, "    ", "      ")
        yield from wrap_text(reason, width, "    because ", "      ")


def wrap_text(text: str, width: int, first: str, rest: str | None = None) -> list[str]:
    """Wrap a text into lines.

    `first` is the indentation of the first line, `rest` of the others; by default, both
    are `first`.
    """
    if rest is None:
        rest = first
    return wrap(escape(text), width, first=first, rest=rest, whole_words=True)
