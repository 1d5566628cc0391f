"""Define the document of `llmbench compare --json`.

The terminal text and the page are rendered from this document. Fields are ordered as in
the JSON; `comparison.schema.json` describes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import msgspec

from pytest_llmbench import __version__
from pytest_llmbench.comparison.comparison_records import (
    ComparedSide,
    FactDifference,
    NoData,
    NotCompared,
    SideAnswer,
    SideComparison,
    SideRun,
    SidesCompared,
    UnknownFact,
    VaryingFact,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.core.redaction import IDENTIFYING, make_redactor
from pytest_llmbench.report.outcome_documents import (
    Document,
    ReportedNoise,
    ReportedWindow,
)

SCHEMA = 1
"""Increased when a field changes its meaning. New fields do not change it."""

NOTHING = 3
"""Exit code if no configuration could be compared."""

INCOMPLETE = 4
"""Exit code of --strict if a configuration was not compared or has no answer."""

SLOWER = 1

ORDER = (
    SideAnswer.SLOWER,
    SideAnswer.CANNOT_TELL,
    SideAnswer.ALIKE,
    SideAnswer.FASTER,
)
"""Answers in display order, most urgent first."""


class ReportedInput(Document, frozen=True, kw_only=True):
    """Input of one side, with its number of usable runs."""

    label: str
    place: str
    runs: int
    configurations: int
    no_data: int


class ReportedSideRun(Document, frozen=True, kw_only=True):
    """A usable run of one side."""

    run: str
    step_seconds: float
    started: str | None
    job_id: str
    nodes: tuple[str, ...]
    log: str


class ReportedSide(Document, frozen=True, kw_only=True):
    """Usable runs of a configuration on one side, with their geometric mean."""

    step_seconds: float
    runs: tuple[ReportedSideRun, ...]


class ReportedConfiguration(Document, frozen=True, kw_only=True):
    """One configuration on both sides.

    Differences are fractions; positive if B is slower.
    """

    configuration: str
    window: ReportedWindow
    answer: str
    difference: float
    low: float
    high: float
    within_margin: bool
    smallest: float
    standard_error: float
    rounding: float
    degrees_of_freedom: float
    noise: ReportedNoise
    runs: tuple[int, int]
    groups: tuple[int, int]
    runs_needed: tuple[int, int]
    same_nodes: bool | None
    a: ReportedSide
    b: ReportedSide
    differs: tuple[FactDifference, ...]
    varies: tuple[VaryingFact, ...]
    unknown: tuple[UnknownFact, ...]
    candidate: str

    @property
    def sides(self) -> tuple[ReportedSide, ReportedSide]:
        """Return A and B."""
        return self.a, self.b


class ComparisonDocument(Document, frozen=True, kw_only=True):
    """Comparison of two sides, as printed by `llmbench compare --json`."""

    schema: int
    version: str
    kind: str
    compared: str
    exit_code: int
    margin: float
    history: str
    a: ReportedInput
    b: ReportedInput
    comparisons: tuple[ReportedConfiguration, ...]
    not_compared: tuple[NotCompared, ...]
    no_data: tuple[NoData, ...]


def describe(
    result: SidesCompared, now: datetime, *, strict: bool
) -> ComparisonDocument:
    """Build the document of a comparison, printable and without secrets."""
    comparisons = map(_describe_comparison, result.comparisons)
    document = ComparisonDocument(
        schema=SCHEMA,
        version=__version__,
        kind="comparison",
        compared=now.isoformat(),
        exit_code=choose_exit_code(result, strict=strict),
        margin=result.margin,
        history=result.history,
        a=_describe_place(result.a),
        b=_describe_place(result.b),
        comparisons=tuple(sorted(comparisons, key=_rank)),
        not_compared=result.not_compared,
        no_data=result.no_data,
    )
    plain = msgspec.to_builtins(document)
    redacted = make_redactor().redact_values(plain, IDENTIFYING, printable=True)
    return msgspec.convert(redacted, ComparisonDocument)


def choose_exit_code(result: SidesCompared, *, strict: bool) -> int:
    """Return the exit code of a comparison.

    1 if a configuration is slower, 3 if none was compared, 4 if a `strict` comparison
    is incomplete, otherwise 0.
    """
    answers = [comparison.estimate.answer for comparison in result.comparisons]
    if SideAnswer.SLOWER in answers:
        return SLOWER
    if not answers:
        return NOTHING
    if strict and not result.complete:
        return INCOMPLETE
    return 0


def _describe_place(side: ComparedSide) -> ReportedInput:
    """Build the record of one side: its path, days or session, and its counts."""
    return ReportedInput(
        label=side.label,
        place=side.place,
        runs=side.counted,
        configurations=len(side.configurations),
        no_data=len(side.no_data),
    )


def _rank(comparison: ReportedConfiguration) -> tuple[int, str]:
    """Return the sort key of a comparison: its answer, then its configuration."""
    return ORDER.index(SideAnswer(comparison.answer)), comparison.configuration


def _describe_comparison(comparison: SideComparison) -> ReportedConfiguration:
    """Build the record of one compared configuration. Differences become fractions."""
    estimate, window = comparison.estimate, comparison.window
    noise, differences = estimate.noise, comparison.differences
    return ReportedConfiguration(
        configuration=comparison.configuration,
        window=ReportedWindow(
            first=window.first,
            last=window.last,
            statistic=window.statistic,
            text=str(window),
        ),
        answer=str(estimate.answer),
        difference=formatting.compute_bounded_exp(estimate.difference) - 1,
        low=formatting.compute_bounded_exp(estimate.low) - 1,
        high=formatting.compute_bounded_exp(estimate.high) - 1,
        within_margin=estimate.within_margin,
        smallest=estimate.smallest,
        standard_error=estimate.standard_error,
        rounding=estimate.rounding,
        degrees_of_freedom=estimate.degrees_of_freedom,
        noise=ReportedNoise(
            sigma=noise.sigma,
            degrees_of_freedom=noise.degrees_of_freedom,
            source=noise.source,
            measured=noise.measured,
        ),
        runs=estimate.runs,
        groups=estimate.groups,
        runs_needed=estimate.runs_needed,
        same_nodes=estimate.same_nodes,
        a=_describe_side(comparison.a),
        b=_describe_side(comparison.b),
        differs=differences.between,
        varies=differences.varying,
        unknown=differences.unknown,
        candidate=differences.candidate,
    )


def _describe_side(runs: Sequence[SideRun]) -> ReportedSide:
    """Build the record of the runs of one side, with their geometric mean."""
    logarithms = [math.log(run.statistic_seconds) for run in runs]
    return ReportedSide(
        step_seconds=math.exp(sum(logarithms) / len(logarithms)),
        runs=tuple(
            ReportedSideRun(
                run=run.id,
                step_seconds=run.statistic_seconds,
                started=run.started.isoformat() if run.started else None,
                job_id=run.job_id,
                nodes=tuple(sorted(run.nodes)),
                log=run.log,
            )
            for run in runs
        ),
    )
