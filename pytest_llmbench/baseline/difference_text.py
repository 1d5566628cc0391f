"""Differences between baselines, as text of 80 columns and as JSON-able records."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.baseline.difference import PARTS, Difference, Utilization
from pytest_llmbench.core import formatting

WIDE = 38
SMALLEST = 0.0005
"""Of the parts of MFU those that round to 0.1 % or more are told."""

ROUNDING = 0.005
"""A printed MFU is rounded: what it says beyond its step time is told from here on."""


def text(differences: Sequence[Difference], before: str, after: str) -> str:
    """Return a line for each configuration that changed, with what moved its MFU and what else is another; what is on
    one side only; and a count. `before` and `after` are the names of the sides."""
    changed = [one for one in differences if one.before and one.after and one.is_change]
    lines = [line for one in changed for line in _lines(one)]
    if lines:
        lines.insert(0, f"{'configuration':<{WIDE}} {'before':>10} {'after':>10} {'step time':>9} {'MFU':>8}")
    removed = [one.id for one in differences if one.after is None]
    added = [one.id for one in differences if one.before is None]
    for side, alone in ((before, removed), (after, added)):
        if alone:
            told = f"only in {side}: {len(alone)}: {formatting.join_first(alone)}"
            lines += textwrap.wrap(told, 79, subsequent_indent="  ", break_on_hyphens=False)
    shared = sum(map(_is_shared, differences))
    lines.append(f"{formatting.count_noun(shared, 'configuration')} in both, {len(changed)} of them changed")
    return "\n".join(lines)


def records(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return every configuration of either side; times in seconds, MFU as a fraction, parts as log ratios."""
    return [_record(one) for one in differences]


def _is_shared(one: Difference) -> bool:
    return one.before is not None and one.after is not None


def _lines(one: Difference) -> Iterator[str]:
    moved = one.utilization
    seconds = [formatting.format_seconds(side.step_seconds if side else None) for side in (one.before, one.after)]
    change = formatting.format_difference(one.step_time_ratio)
    mfu = formatting.format_difference(moved.after / moved.before) if moved else "-"
    row = f"{seconds[0]:>10} {seconds[1]:>10} {change:>9} {mfu:>8}"
    yield from [one.id, f"{'':<{WIDE}} {row}"] if len(one.id) > WIDE else [f"{one.id:<{WIDE}} {row}"]
    told = [_told(moved)] if moved and (_parts(moved) or mfu != "0.0 %") else []
    for name, before, after in one.facts:
        told.append(f"{name}: {before} -> {after}")
    for line in told:
        yield from textwrap.wrap(line, 79, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _told(moved: Utilization) -> str:
    """Return `MFU 41.5% -> 54.2%, by step time +30.7 %`."""
    parts = _parts(moved)
    how = "" if moved.printed else " (computed)"
    return f"MFU {moved.before:.2%} -> {moved.after:.2%}{how}, by {', '.join(parts) or 'rounding'}"


def _parts(moved: Utilization) -> list[str]:
    return [
        f"{name} {formatting.format_difference(math.exp(share))}"
        for name, share in moved.parts.items()
        if abs(share) >= (ROUNDING if name == PARTS[-1] else SMALLEST)
    ]


def _record(one: Difference) -> dict[str, Any]:
    sides = {"before": one.before, "after": one.after}
    moved = one.utilization
    return {
        "id": one.id,
        "changed": one.is_change,
        **{name: None if side is None else side.key.id for name, side in sides.items()},
        "step_seconds": [
            None if side is None else formatting.finite_or_none(side.step_seconds) for side in sides.values()
        ],
        "step_time_change": None if one.step_time_ratio is None else one.step_time_ratio - 1,
        "mfu": None if moved is None else [moved.before, moved.after],
        "mfu_printed": None if moved is None else moved.printed,
        "mfu_log_parts": None if moved is None else dict(moved.parts),
        "facts": {name: [before, after] for name, before, after in one.facts},
    }
