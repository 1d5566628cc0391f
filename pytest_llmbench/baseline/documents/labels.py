"""One label or cell of a table: what it is called in a baseline file, and its text there."""

from __future__ import annotations

import re
from decimal import Decimal

from pytest_llmbench.baseline.schema import GROUPS

_TOKENS_PER_SECOND = r"tokens?\s*(?:/|per)\s*s(?:ec(?:onds?)?)?"
METRICS = {
    "step_time": r"(?:mean |average |avg\.? )?(?:train(?:ing)? )?(?:step|iteration)[ _]time(?: mean)?|"
    r"(?:time|seconds) per (?:training )?(?:step|iteration)",
    "tokens_per_second": rf"(?:training )?throughput(?:,? (?:in )?{_TOKENS_PER_SECOND})?|{_TOKENS_PER_SECOND}",
    "mfu": r"(?:model flops? utili[sz]ation(?: mfu)?|mfu)",
    "days_to_1t": r"(?:time|days) to train (?:with |on )?1t tokens(?: in days)?|days to (?:train )?1t(?: tokens)?",
}
"""The whole label without what stands in parentheses: a deviation, a percentile, a value per GPU is another metric."""

_UNITS = {
    "step_time": {"seconds per step": 0, "s/step": 0, "seconds": 0, "second": 0, "sec": 0, "s": 0, "ms": -3},
    "tokens_per_second": {"tokens per second": 0, "tokens/s": 0, "tokens/sec": 0, "tokens/second": 0, "tok/s": 0},
    "mfu": {"%": 0, "percent": 0},
    "days_to_1t": {"days": 0, "day": 0, "d": 0},
}
"""The units of each metric, as a power of ten."""

_FIELDS = {
    "gpus": r"(?:# ?|no\.? of |num(?:ber)?[ _]?(?:of )?)?gpus",
    "size": r"(?:model )?size|model",
    "dtype": r"precision|dtype|data type",
    "gpu": r"gpu(?:[ _]type)?",
    "sequence_length": r"seq(?:uence)?\.?[ _]?len(?:gth)?",
    "layers": r"(?:# ?|num(?:ber)?[ _]?(?:of )?)?layers",
    "gbs": r"gbs|global[ _]batch[ _]size",
    "mbs": r"mbs|micro[ _]?batch[ _]size",
    "ga": r"ga|gradient[ _]accumulation(?:[ _]steps)?",
    **{name: name for name in GROUPS},
}
"""The columns of a configuration table; `gpus` and the three after it are part of the key."""

ABSENT = ("", "-", "--", "\u2013", "\u2014", "NA", "N/A", "n/a", "na", "None", "none")
"""How a document says that there is no value."""

_NOT_GIVEN = {"NA": "NA", "na": "NA", "N/A": "n/a", "n/a": "n/a"}
"""Those that a baseline file keeps."""

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d{1,12})?", re.ASCII)
_POINT_OR_THOUSANDS = re.compile(r"[1-9]\d{0,2}\.\d{3}", re.ASCII)
_FOOTNOTE = re.compile(r"\s*[*\u2020\u2021\u00a7]+$")


def parse_metric_label(label: str) -> tuple[str, int] | None:
    """Return the metric that a label names, and the power of ten of its unit; None for any other label.

    A throughput needs its unit (it may be one per GPU), and what stands in parentheses has to be a unit of the metric.
    """
    bare, unit = _split_label(label)
    for name, pattern in METRICS.items():
        if re.fullmatch(pattern, bare):
            return _check_unit(name, bare, unit)
    return None


def parse_column_label(label: str) -> str:
    """Return the configuration column that a label names, empty for any other label."""
    bare = " ".join(label.lower().split()).rstrip(":")
    return next((name for name, pattern in _FIELDS.items() if re.fullmatch(pattern, bare)), "")


def parse_metric_cell(name: str, power: int, label: str, text: str) -> str:
    """Return the text of a metric's cell as a baseline file keeps it: all its digits, no unit and no thousands.

    Empty where the document gives none. Raises ValueError, with the reason, for what is no number, or may be two.
    """
    if text in ABSENT:
        return "" if name == "step_time" else _NOT_GIVEN.get(text, "")
    number, unit = _split_number(_FOOTNOTE.sub("", text))
    if unit and unit not in _UNITS[name]:
        raise ValueError(f"the unit {unit!r} is none of {', '.join(_UNITS[name])}")
    power = _UNITS[name][unit] if unit else power
    digits = _read_digits(name, number, large=name == "tokens_per_second" or power < 0)
    if Decimal(digits) <= 0:
        raise ValueError("it is not above 0")
    if name == "mfu":
        return _read_percentage(digits, bool(unit), "%" in label or "percent" in label.lower())
    return digits if power == 0 else f"{Decimal(digits).scaleb(power):f}"


def is_unit(text: str) -> bool:
    """Whether a cell is a unit and nothing else: `ms`, `(tokens/s)`."""
    return any(text.strip("()[] ").lower() in units for units in _UNITS.values())


def has_unit_of_another_metric(name: str, text: str) -> bool:
    """Whether a cell has the unit of another metric: it, and perhaps what is beside it, stands in the wrong place."""
    match = re.fullmatch(r"[\d.,]+\s*([^\d\s.,].*)", _FOOTNOTE.sub("", text), re.ASCII)
    unit = match[1].lower() if match else ""
    return unit not in _UNITS[name] and any(unit in units for units in _UNITS.values())


def parse_whole_number(text: str) -> int | None:
    """Return a cell of a configuration table, None where the document gives none; ValueError for any other text."""
    if text in ABSENT:
        return None
    if not (_THOUSANDS.fullmatch(text) or _NUMBER.fullmatch(text)) or "." in text or int(text.replace(",", "")) == 0:
        raise ValueError("it is no whole number above 0")
    return int(text.replace(",", ""))


def _check_unit(name: str, bare: str, unit: str) -> tuple[str, int] | None:
    if unit and unit not in _UNITS[name] and unit != name:
        return None
    if name == "tokens_per_second" and not unit and "token" not in bare:
        return None
    if name == "days_to_1t" and not unit and "days" not in bare:
        return None
    return name, _UNITS[name].get(unit, 0)


def _split_label(label: str) -> tuple[str, str]:
    """Return a label in lower case, and its unit: `Step time (ms)`, `Step time [ms]`, `Step time, ms`."""
    text = " ".join(label.lower().split()).rstrip(":")
    match = re.fullmatch(r"(.*?)\s*(?:[(\[](.*?)[)\]]|, ?(\S+))", text)
    return (match[1], (match[2] or match[3] or "").strip()) if match else (text, "")


def _split_number(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\d.,]+)\s*([^\d\s.,].*)?", text, re.ASCII)
    if match is None:
        raise ValueError("it is no number")
    return match[1], (match[2] or "").lower()


def _read_digits(name: str, number: str, *, large: bool) -> str:
    """Return a number without commas; ValueError for one that may be read in two ways. `large`: tokens/s and ms are."""
    # `85.459` tokens/s may be 85,459, and a step time of `7,325` may be 7.325 s or 7325 s: nobody guesses.
    if large and _POINT_OR_THOUSANDS.fullmatch(number):
        raise ValueError("its point may be one for thousands")
    if _NUMBER.fullmatch(number):
        return number
    if _THOUSANDS.fullmatch(number) and (name == "tokens_per_second" or "." in number or number.count(",") > 1):
        return number.replace(",", "")
    raise ValueError("its comma may be a decimal one" if "," in number else "it is no number")


def _read_percentage(digits: str, in_cell: bool, in_label: bool) -> str:
    if not (in_cell or in_label) or (not in_cell and Decimal(digits) < 1):
        raise ValueError("nothing says whether it is a percentage or a fraction")
    if Decimal(digits) > 100:
        raise ValueError("it is above 100 %")
    return f"{digits}%"
