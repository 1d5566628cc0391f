"""The chart of a weak-scaling check: a family's throughput per GPU by its size."""

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
"""GPUs of a size, and its throughput per GPU as a share of the reference's."""


DRAWN = {
    "measured": ("line", "dot", "measured", "\N{BLACK CIRCLE}"),
    "recorded": ("recorded", "triangle", "hollow", "\N{WHITE UP-POINTING TRIANGLE}"),
    "documented": ("documented", "diamond", "hollow", "\N{WHITE DIAMOND}"),
}
"""Of a curve: the kind of its line, the symbol and kind of its points, and the symbol
in the key."""


def draw_curve(
    check: CheckOutcome, by_id: Mapping[str, ConfigurationOutcome], name: str
) -> Chart | None:
    """Return the chart of a weak-scaling check; None for other checks, and where
    nothing was compared.

    `by_id` are the outcomes of the session. Those of its members that were not compared
    show what is documented.
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
    """Return what the baselines say of the compared sizes, and of the others where
    their outcomes are there; beside recorded ones what is documented, too."""
    kind, reference = rows[0].baseline, by_id.get(rows[0].reference)
    members = [by_id[name] for name in check.members if name in by_id]

    def get_expected(outcome: ConfigurationOutcome) -> float | None:
        return outcome.expected_seconds if outcome.baseline.kind == kind else None

    own = _compute_shares(members, reference, get_expected) | {
        row.gpus: row.documented for row in rows if row.documented
    }
    if kind != "recorded":
        return {"documented": own}
    return {
        "recorded": own,
        "documented": _compute_shares(members, reference, _get_published_seconds),
    }


def _get_published_seconds(outcome: ConfigurationOutcome) -> float | None:
    seconds: float | None = outcome.baseline.published_seconds
    return outcome.expected_seconds if outcome.baseline.kind == "published" else seconds


def _compute_shares(
    members: Sequence[ConfigurationOutcome],
    reference: ConfigurationOutcome | None,
    seconds: Callable[[ConfigurationOutcome], float | None],
) -> dict[int, float]:
    """Return by GPUs the throughput per GPU of the members as a share of the
    reference's, where both have a time."""
    whole = seconds(reference) if reference else None
    times = (
        {outcome.configuration.gpus: seconds(outcome) for outcome in members}
        if whole
        else {}
    )
    return {gpus: whole / time for gpus, time in times.items() if whole and time}


def _draw(expected: Mapping[str, Shares], measured: Shares, name: str) -> Chart | None:
    """Draw the throughput per GPU of a family's sizes, measured and what is told of
    them by who tells it."""
    curves = {"measured": measured, **expected}
    sizes = sorted({size for shares in curves.values() for size, _ in shares})
    places = {size: float(at) for at, size in enumerate(sizes)}
    x = Scale(-0.5, len(sizes) - 0.5, [(places[size], str(size)) for size in sizes])
    y = make_number_scale(
        *pad([share for shares in curves.values() for _, share in shares], 0.2),
        percent=True,
    )
    picture = Picture(x, y, "GPUs", "of the smallest")
    for label, shares in reversed(curves.items()):
        line, symbol, points, _ = DRAWN[label]
        placed = [(places[size], share) for size, share in shares]
        picture.draw_line(placed, line)
        picture.draw_points(placed, symbol, points)
    key = ", ".join(f"{DRAWN[label][3]} {label}" for label in curves)
    return Chart(
        name,
        "Throughput per GPU",
        _describe_scaling(expected, measured),
        picture.make_svg(name),
        key,
    )


def _describe_scaling(expected: Mapping[str, Shares], measured: Shares) -> str:
    by_size = {label: dict(shares) for label, shares in expected.items()}
    texts = []
    for size, share in measured:
        beside = ", ".join(
            f"{label} {shares[size]:.1%}"
            for label, shares in by_size.items()
            if size in shares
        )
        texts.append(f"{size} GPUs {share:.1%}" + (f" ({beside})" if beside else ""))
    return make_sentence(
        [f"Against the smallest size that was compared: {', '.join(texts)}"]
    )
