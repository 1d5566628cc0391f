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
    first_row = check.compared[0]
    # A chart shows one kind of baseline.
    rows = [row for row in check.compared if row.baseline == first_row.baseline]
    smallest = (first_row.reference_gpus, 1.0)  # by definition
    larger = [(row.gpus, row.measured) for row in rows if row.measured]
    measured = sorted([smallest, *larger])
    if len(measured) < FEWEST:
        return None
    expected = {
        label: sorted({smallest, *shares.items()})
        for label, shares in _collect_shares(check, rows, by_id).items()
        if shares
    }
    return _draw(expected, measured, name)


def _collect_shares(
    check: CheckOutcome,
    rows: Sequence[ReportedComparison],
    by_id: Mapping[str, ConfigurationOutcome],
) -> dict[str, dict[int, float]]:
    """Return the expected shares by size, for each kind of baseline to draw.

    A share is a throughput per GPU, as a fraction of that of the smallest size.
    Recorded shares are accompanied by the documented ones. Sizes that were not compared
    are included if their outcomes are in `by_id`.
    """
    # All rows have the same kind of baseline and the same reference.
    kind, reference = rows[0].baseline, by_id.get(rows[0].reference)
    members = [by_id[name] for name in check.members if name in by_id]

    def get_expected_seconds(outcome: ConfigurationOutcome) -> float | None:
        """Return the step time of a baseline of the drawn kind, or None."""
        return outcome.expected_seconds if outcome.baseline.kind == kind else None

    expected = _compute_shares(members, reference, get_expected_seconds)
    # The shares in the check replace those computed from baselines.
    for row in rows:
        if row.documented:
            expected[row.gpus] = row.documented
    if kind != "recorded":
        return {"documented": expected}
    return {
        "recorded": expected,
        "documented": _compute_shares(members, reference, _get_published_seconds),
    }


def _get_published_seconds(outcome: ConfigurationOutcome) -> float | None:
    """Return the step time in the document of a published or recorded baseline."""
    if outcome.baseline.kind == "published":
        return outcome.expected_seconds
    seconds: float | None = outcome.baseline.published_seconds
    return seconds


def _compute_shares(
    members: Sequence[ConfigurationOutcome],
    reference: ConfigurationOutcome | None,
    get_seconds: Callable[[ConfigurationOutcome], float | None],
) -> dict[int, float]:
    """Return the throughput per GPU by size, as a fraction of the reference's.

    Members without a time are left out. Returns {} if the reference has no time.
    """
    reference_seconds = get_seconds(reference) if reference else None
    if not reference_seconds:
        return {}
    seconds_by_size = {
        outcome.configuration.gpus: get_seconds(outcome) for outcome in members
    }
    return {
        gpus: reference_seconds / seconds
        for gpus, seconds in seconds_by_size.items()
        if seconds
    }


def _draw(expected: Mapping[str, Shares], measured: Shares, name: str) -> Chart | None:
    """Draw the measured and the expected throughput per GPU of all sizes."""
    curves = {"measured": measured, **expected}
    sizes = sorted({size for shares in curves.values() for size, _ in shares})
    positions = {size: float(index) for index, size in enumerate(sizes)}
    ticks = [(positions[size], str(size)) for size in sizes]
    x = Scale(-0.5, len(sizes) - 0.5, ticks)
    all_shares = [share for shares in curves.values() for _, share in shares]
    low, high = pad(all_shares, share=0.2)
    y = make_number_scale(low, high, percent=True)
    picture = Picture(x, y, x_name="GPUs", y_name="of the smallest")
    for label, shares in reversed(curves.items()):
        line_kind, symbol, point_kind, _key_symbol = STYLES[label]
        points = [(positions[size], share) for size, share in shares]
        picture.draw_line(points, line_kind)
        picture.draw_points(points, symbol, point_kind)
    key_entries = []
    for label in curves:
        *_, key_symbol = STYLES[label]
        key_entries.append(f"{key_symbol} {label}")
    return Chart(
        name,
        "Throughput per GPU",
        _describe_scaling(expected, measured),
        picture.make_svg(name),
        ", ".join(key_entries),
    )


def _describe_scaling(expected: Mapping[str, Shares], measured: Shares) -> str:
    """Describe the chart of scaling in a sentence."""
    texts = []
    for size, share in measured:
        text = f"{size} GPUs {share:.1%}"
        expected_texts = []
        for label, expected_shares in expected.items():
            share_by_size = dict(expected_shares)
            if size in share_by_size:
                expected_texts.append(f"{label} {share_by_size[size]:.1%}")
        if expected_texts:
            text += f" ({', '.join(expected_texts)})"
        texts.append(text)
    return make_sentence(
        [f"Relative to the smallest compared size: {', '.join(texts)}"]
    )
