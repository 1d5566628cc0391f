"""The chart of a weak-scaling check: throughput per GPU by number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_llmbench.report.html.charts import FEWEST, Chart, make_sentence
from pytest_llmbench.report.html.drawing import Picture, Scale, make_number_scale, pad
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    ReportedComparison,
)

Shares = Sequence[tuple[int, float]]
"""(GPUs, throughput per GPU as a fraction of the reference's) pairs."""


STYLES = {
    "measured": ("line", "dot", "measured", "\N{BLACK CIRCLE}"),
    "recorded": ("recorded", "triangle", "hollow", "\N{WHITE UP-POINTING TRIANGLE}"),
    "documented": ("documented", "diamond", "hollow", "\N{WHITE DIAMOND}"),
}
"""By curve: line class, point symbol, point class, and the symbol in the key."""


def draw_curve(
    check: CheckOutcome, by_id: Mapping[str, ConfigurationOutcome], name: str
) -> Chart | None:
    """Draw the chart of a weak-scaling check; None for other checks.

    `by_id` contains the outcomes of the session: members that were not compared still
    have an expected value. Returns None if fewer than `FEWEST` sizes were compared.
    """
    if check.check != "weak-scaling" or not check.compared:
        return None
    rows = [row for row in check.compared if row.baseline == check.compared[0].baseline]
    smallest = (rows[0].reference_gpus, 1.0)  # by definition
    measured = sorted(
        [smallest, *((row.gpus, row.measured) for row in rows if row.measured)]
    )
    expected = {
        label: sorted({smallest, *shares.items()})
        for label, shares in _collect_shares(check, rows, by_id).items()
        if shares
    }
    return _draw(expected, measured, name) if len(measured) >= FEWEST else None


def _collect_shares(
    check: CheckOutcome,
    rows: Sequence[ReportedComparison],
    by_id: Mapping[str, ConfigurationOutcome],
) -> dict[str, dict[int, float]]:
    """Return the expected shares by size, for each kind of baseline to draw.

    Recorded shares are accompanied by the documented ones. Sizes that were not compared
    are included if their outcomes are in `by_id`.
    """
    kind, reference = rows[0].baseline, by_id.get(rows[0].reference)
    members = [by_id[name] for name in check.members if name in by_id]

    def get_expected(outcome: ConfigurationOutcome) -> float | None:
        return outcome.expected_seconds if outcome.baseline.kind == kind else None

    expected = _compute_shares(members, reference, get_expected) | {
        row.gpus: row.documented for row in rows if row.documented
    }
    if kind != "recorded":
        return {"documented": expected}
    return {
        "recorded": expected,
        "documented": _compute_shares(members, reference, _get_published_seconds),
    }


def _get_published_seconds(outcome: ConfigurationOutcome) -> float | None:
    seconds: float | None = outcome.baseline.published_seconds
    return outcome.expected_seconds if outcome.baseline.kind == "published" else seconds


def _compute_shares(
    members: Sequence[ConfigurationOutcome],
    reference: ConfigurationOutcome | None,
    get_seconds: Callable[[ConfigurationOutcome], float | None],
) -> dict[int, float]:
    """Return the throughput per GPU by size, as a fraction of the reference's.

    Members without a time are left out.
    """
    base = get_seconds(reference) if reference else None
    times = (
        {outcome.configuration.gpus: get_seconds(outcome) for outcome in members}
        if base
        else {}
    )
    return {gpus: base / time for gpus, time in times.items() if base and time}


def _draw(expected: Mapping[str, Shares], measured: Shares, name: str) -> Chart | None:
    """Draw the measured and the expected throughput per GPU of all sizes."""
    curves = {"measured": measured, **expected}
    sizes = sorted({size for shares in curves.values() for size, _ in shares})
    positions = {size: float(index) for index, size in enumerate(sizes)}
    ticks = [(positions[size], str(size)) for size in sizes]
    x = Scale(-0.5, len(sizes) - 0.5, ticks)
    y = make_number_scale(
        *pad([share for shares in curves.values() for _, share in shares], 0.2),
        percent=True,
    )
    picture = Picture(x, y, "GPUs", "of the smallest")
    for label, shares in reversed(curves.items()):
        line_kind, symbol, point_kind, _ = STYLES[label]
        points = [(positions[size], share) for size, share in shares]
        picture.draw_line(points, line_kind)
        picture.draw_points(points, symbol, point_kind)
    key = ", ".join(f"{STYLES[label][3]} {label}" for label in curves)
    return Chart(
        name,
        "Throughput per GPU",
        _describe_scaling(expected, measured),
        picture.make_svg(name),
        key,
    )


def _describe_scaling(expected: Mapping[str, Shares], measured: Shares) -> str:
    """Describe the chart of scaling in a sentence."""
    by_size = {label: dict(shares) for label, shares in expected.items()}
    texts = []
    for size, share in measured:
        references = ", ".join(
            f"{label} {shares[size]:.1%}"
            for label, shares in by_size.items()
            if size in shares
        )
        note = f" ({references})" if references else ""
        texts.append(f"{size} GPUs {share:.1%}{note}")
    return make_sentence(
        [f"Relative to the smallest compared size: {', '.join(texts)}"]
    )
