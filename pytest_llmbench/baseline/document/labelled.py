"""One cell beside its label: the metric or the columns of a configuration that it states."""

from __future__ import annotations

from typing import NamedTuple

from pytest_llmbench.baseline.document import printed
from pytest_llmbench.baseline.document.captions import Facts, dtypes, read_caption, size

KEY = ("size", "gpu", "dtype", "gpus")


class Value(NamedTuple):
    """A cell with its label and its line."""

    label: str
    text: str
    line: int


class Statement(NamedTuple):
    """What one cell states: the text of a metric in a baseline file, or configuration columns; nothing where the
    document gives no value. `is_proxy`: it marks its model size so."""

    metric: str = ""
    text: str = ""
    facts: Facts = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    is_proxy: bool = False


def is_known(label: str) -> bool:
    """Whether a label names a metric or a column of a configuration."""
    return bool(printed.field(label) or printed.metric(label))


def read_value(value: Value) -> Statement:
    """Return what a cell states; ValueError, with the reason, where a baseline file has no place for it."""
    metric, field = printed.metric(value.label), printed.field(value.label)
    if metric is not None:
        return Statement(metric=metric[0], text=printed.cell(*metric, value.label, value.text))
    if value.text in printed.ABSENT:
        return Statement()
    if not field:
        raise ValueError("no such row or column is known")
    if field == "size":
        return _size(value.text)
    return Statement(facts=_dtype(value.text) if field == "dtype" else _number(field, value.text))


def _size(text: str) -> Statement:
    found = size(text)
    if found is None:
        raise ValueError("it is no model size such as 70b")
    return Statement(facts={"size": found[0]}, is_proxy=found[1])


def _dtype(text: str) -> Facts:
    if not dtypes(text):
        raise ValueError("it is no precision such as BF16 or BF16/FP8")
    return {"dtype": "/".join(dtypes(text))}


def _number(field: str, text: str) -> Facts:
    """Return the number of a column, the GPU type, or both of `8x H100`."""
    caption = read_caption(text)
    if field == "gpu" or (field == "gpus" and "gpus" in caption.facts):
        known = {name: value for name, value in caption.facts.items() if name in ("gpu", "gpus") and value}
        if field not in known or known != caption.facts or caption.rest:
            raise ValueError("it is no GPU type such as H100" if field == "gpu" else "it is no number of GPUs")
        return known
    number = printed.whole(text)
    return {} if number is None else {field: number}
