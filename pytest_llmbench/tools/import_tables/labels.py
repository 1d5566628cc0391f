"""Parse the texts of table cells with the words of a mapping: labels, values, facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from msgspec import Struct

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.tools.import_tables.mappings import (
    IGNORED,
    SHARED_COLUMNS,
    TEXT_COLUMNS,
    DocumentMapping,
    normalize,
)

LONGEST_LABEL = 200
"""Limit of characters in a label."""

PRETRAINING = "pretrain"
"""The task of a configuration whose key names no task."""

ABSENT = ("", "-", "--", "\u2013", "\u2014", "NA", "N/A", "n/a", "na", "None", "none")
"""The texts that documents use for a missing value."""

_KEPT_ABSENT = {"NA": "NA", "na": "NA", "N/A": "n/a", "n/a": "n/a"}
"""The texts of missing metrics (_MAY_BE_ABSENT), as a baseline file writes them."""

_MAY_BE_ABSENT = ("tokens_per_second", "mfu", "days_to_1t")
_THROUGHPUTS = ("tokens_per_second", "tokens_per_second_per_gpu")
_PERCENT_UNITS = ("%", "percent")

# `7.325`
_NUMBER = compile_on_use(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)
# `85,459` or `1,085,459.5`
_THOUSANDS = compile_on_use(r"\d{1,3}(?:,\d{3})+(?:\.\d{1,12})?", re.ASCII)
# `85.459`
_POINT_OR_THOUSANDS = compile_on_use(r"[1-9]\d{0,2}\.\d{3}", re.ASCII)
# `7.325 s`, `85,459 (84,120)` or a number without a unit
_WITH_UNIT = compile_on_use(r"([\d.,]+)\s*([^\d\s.,].*)?", re.ASCII)
# the unit of `85,459 (84,120)`
_SECOND_NUMBER = compile_on_use(r"\([\d.,]+\)", re.ASCII)
# `sequence length: 4096` or `tp=4`
_NAMED_NUMBER = compile_on_use(
    r"\b(sequence length|seq len|global batch size|micro batch size|gradient accumulation|[a-z_]+)"
    r"\s*[=:]\s*(\d{1,9})(?![\d.,]*\d)",
    re.IGNORECASE | re.ASCII,
)
_FOOTNOTE_MARKS = "*\u2020\u2021\u00a7 \t"

Facts = dict[str, int | str]
"""Values by name: columns, metrics (as texts), `recipe`, `model` and `proxy`.

A value is "" if the document states several. `proxy` is 1 for the proxy of a model.
"""


class UnreadCell(NamedTuple):
    """A cell that no draft contains, with the reason."""

    line: int
    text: str
    reason: str
    decisive: bool = True
    """False if the table of the cell is not about performance or configurations.

    Only a decisive unread cell makes the import incomplete (exit code 1).
    """


class Metric(NamedTuple):
    """The metric that a label names, with its unit."""

    name: str
    unit: str
    units: Mapping[str, int]
    """All units of the metric, as powers of ten."""

    @property
    def power(self) -> int:
        """The power of ten of the unit; 0 without a unit."""
        return self.units.get(self.unit, 0)


class Caption(NamedTuple):
    """The facts of a text, and its other words."""

    facts: Facts
    before: str
    """The words before the first fact."""

    rest: str
    """All words that are not facts."""


class Cell(Struct, frozen=True):
    """A cell of a table, parsed as a label, as a caption and as a number."""

    text: str
    line: int
    metric: Metric | None
    """The metric that the text names, if the cell is a label."""

    column: str
    """The column that the text names, if the cell is a label; else ""."""

    caption: Caption
    number: str
    """The printed number; "" if the text is not a number with an optional unit."""

    unit: str
    """The text after the number, in lower case."""

    @property
    def facts(self) -> Facts:
        """The facts in the text, such as `8x H100`."""
        return self.caption.facts

    @property
    def is_label(self) -> bool:
        """True if the text names a metric or a column."""
        return bool(self.column or self.metric)

    @property
    def is_absent(self) -> bool:
        """True if the text marks a missing value."""
        return self.text in ABSENT

    def refuse(self, reason: str, *, decisive: bool = True) -> UnreadCell:
        """Convert the cell to an unread cell: a cell that no draft contains.

        `decisive` is False if the table is not about performance or configurations.
        Such a cell is listed, but only a decisive unread cell makes the import
        incomplete (exit code 1).
        """
        return UnreadCell(self.line, self.text, reason, decisive)


class LabelledCell(NamedTuple):
    """A cell with its label."""

    label: Cell
    cell: Cell

    def refuse(self, reason: str) -> UnreadCell:
        """Convert the cell to an unread cell, with its label in the reason."""
        return self.cell.refuse(f"{self.label.text!r}: {reason}")


def parse_cell(mapping: DocumentMapping, text: str, line: int) -> Cell:
    """Parse the text of a cell as a label, as a caption and as a number."""
    match = _WITH_UNIT.fullmatch(text.rstrip(_FOOTNOTE_MARKS))
    return Cell(
        text=text,
        line=line,
        metric=parse_metric_label(mapping, text),
        column=parse_column_label(mapping, text),
        caption=read_caption(mapping, text),
        number=match[1] if match else "",
        unit=(match[2] or "").lower() if match else "",
    )


# --- labels ---------------------------------------------------------------------------


def parse_metric_label(mapping: DocumentMapping, label: str) -> Metric | None:
    """Return the metric that a label names, or None.

    Text in parentheses must be a unit of the metric. A throughput needs a unit, or the
    word `token`. The headers of a user's mapping file are literal and override patterns.
    """
    header = mapping.headers.get(normalize(label), "")
    if header:
        name, _, unit = header.partition(" ")
        metric = mapping.metrics.get(name)
        return Metric(name, unit, metric.units) if metric else None
    bare, unit = _split_label(label)
    for name, metric in mapping.metrics.items():
        is_named = metric.pattern.fullmatch(bare)
        if is_named and _has_valid_unit(name, bare, unit, metric.units):
            return Metric(name, unit, metric.units)
    return None


def parse_column_label(mapping: DocumentMapping, label: str) -> str:
    """Return the column that a label names, or ""; IGNORED for a column to skip."""
    text = normalize(label)
    header = mapping.headers.get(text, "")
    if header:
        return header if header in (*mapping.columns, *TEXT_COLUMNS, IGNORED) else ""
    text = text.rstrip(":")
    for name, pattern in mapping.columns.items():
        if pattern.fullmatch(text):
            return name
    return ""


def _has_valid_unit(name: str, bare: str, unit: str, units: Mapping[str, int]) -> bool:
    """True if the unit of a label fits the metric `name`; `bare` is the rest of the label."""
    # `Model FLOPs utilization (MFU)`: the parentheses contain the metric's name.
    if unit and unit not in units and unit != name:
        return False
    if unit:
        return True
    # Without a unit, a throughput may be per GPU or in total.
    if name in _THROUGHPUTS:
        return "token" in bare
    # Without a unit, a time may be in hours.
    if name == "days_to_1t":
        return "days" in bare
    return True


def _split_label(label: str) -> tuple[str, str]:
    """Split `Step time (ms)`, `Step time [ms]` or `Step time, ms` into name and unit.

    Both are in lower case; the unit may be "".
    """
    text = normalize(label).rstrip(":")
    if len(text) > LONGEST_LABEL:
        return text, ""
    match = re.fullmatch(
        r"(?P<name>.*?)\s*(?:[(\[](?P<bracketed>.*?)[)\]]|, ?(?P<after_comma>\S+))",
        text,
    )
    if not match:
        return text, ""
    unit = match["bracketed"] or match["after_comma"] or ""
    return match["name"], unit.strip()


def is_unit(mapping: DocumentMapping, text: str) -> bool:
    """True if a text is only a unit: `ms`, `(tokens/s)`."""
    bare = text.strip("()[] ").lower()
    return any(bare in metric.units for metric in mapping.metrics.values())


def is_shifted(mapping: DocumentMapping, labelled: LabelledCell) -> bool:
    """True if the unit of a cell belongs to another metric than its label."""
    metric, unit = labelled.label.metric, labelled.cell.unit
    if metric is None or not unit or unit in metric.units:
        return False
    return any(unit in other.units for other in mapping.metrics.values())


# --- values ---------------------------------------------------------------------------


def read_value(mapping: DocumentMapping, labelled: LabelledCell) -> Facts:
    """Read a cell: a metric in the form of a baseline file, or columns.

    Returns {} for a missing value and for an ignored column. Raises ValueError with the
    reason if a baseline file cannot contain the cell.
    """
    label, cell = labelled
    if label.metric:
        text = read_metric(label.metric, cell)
        return {label.metric.name: text} if text else {}
    field = label.column
    if field == IGNORED or cell.is_absent:
        return {}
    if not field:
        raise ValueError("the row or column of the value is unknown")
    # The mapping file may replace the literal text of the cell by columns.
    replacement = mapping.values.get(field, {}).get(normalize(cell.text))
    if replacement:
        return dict(replacement)
    return _read_column(mapping, field, labelled)


def _read_column(mapping: DocumentMapping, field: str, labelled: LabelledCell) -> Facts:
    """Read a cell of the column `field`. Raises ValueError with the reason."""
    label, cell = labelled
    if field == "size":
        return _read_size(mapping, label, cell)
    if field == "gpu" or (field == "gpus" and "gpus" in cell.facts):
        return _read_gpus(mapping, field, cell)
    if field == "dtype":
        return {field: _read_dtype(mapping, cell)}
    if field in ("task", *TEXT_COLUMNS):
        return {field: _read_name(mapping, field, cell)}
    if field == "fsdp" and cell.text == "0":  # not sharded
        return {}
    return {field: parse_integer(cell.text)}


def read_metric(metric: Metric, cell: Cell) -> str:
    """Read a metric in the form of a baseline file: all digits, no unit, no commas.

    Returns "" for a missing value. Raises ValueError with the reason if the text is not
    a number or is ambiguous.
    """
    name, unit = metric.name, cell.unit
    if cell.is_absent:
        return _KEPT_ABSENT.get(cell.text, "") if name in _MAY_BE_ABSENT else ""
    if not cell.number:
        raise ValueError("the value is not a number")
    if _SECOND_NUMBER.fullmatch(unit):
        raise ValueError(
            "the value contains two values, and the second is not explained"
        )
    if unit and unit not in metric.units:
        raise ValueError(f"found unit {unit!r}, expected {', '.join(metric.units)}")
    # The unit of the cell takes precedence over the unit of the label.
    power = metric.units[unit] if unit else metric.power
    is_usually_large = name in _THROUGHPUTS or power < 0  # milliseconds
    digits = _read_digits(name, cell.number, large=is_usually_large)
    if Decimal(digits) <= 0:
        raise ValueError("the value is not above 0")
    if name == "mfu":
        return _read_percentage(
            digits,
            in_cell=bool(unit),
            in_label=metric.unit in _PERCENT_UNITS,
        )
    return digits if power == 0 else f"{Decimal(digits).scaleb(power):f}"


def _read_digits(name: str, number: str, *, large: bool) -> str:
    """Return a number without commas.

    `large`: values of 1,000 and more are usual. Raises ValueError if a comma or point
    is ambiguous.
    """
    # `85.459` tokens/s may be 85,459; a step time of `7,325` may be 7.325 s or 7325 s.
    if large and _POINT_OR_THOUSANDS.fullmatch(number):
        raise ValueError("the point of the value may separate thousands")
    if _NUMBER.fullmatch(number):
        return number
    # A comma before a point, and the first of several commas, is not a decimal comma.
    has_thousands = name in _THROUGHPUTS or "." in number or number.count(",") > 1
    if _THOUSANDS.fullmatch(number) and has_thousands:
        return number.replace(",", "")
    if "," in number:
        raise ValueError("the comma may be a decimal comma")
    raise ValueError("the value is not a number")


def _read_percentage(digits: str, *, in_cell: bool, in_label: bool) -> str:
    """Return a percentage. Raises ValueError if the value may be a fraction.

    `in_cell`, `in_label`: the percent sign is in the cell or in the label.
    """
    # 0.47 under `MFU %` may be a fraction, or half a percent.
    if not in_cell and (not in_label or Decimal(digits) < 1):
        raise ValueError("the value may be a percentage or a fraction")
    if Decimal(digits) > 100:
        raise ValueError("the value is above 100 %")
    return f"{digits}%"


def parse_integer(text: str) -> int:
    """Parse an integer above 0, with optional commas. Raises ValueError."""
    digits = text.replace(",", "")
    is_number = _THOUSANDS.fullmatch(text) or _NUMBER.fullmatch(text)
    if not is_number or "." in text or int(digits) == 0:
        raise ValueError("the value is not a whole number above 0")
    return int(digits)


def _read_size(mapping: DocumentMapping, label: Cell, cell: Cell) -> Facts:
    """Read the size of a model; in a column `Model`, read the model's name, too."""
    match = mapping.size_cell.fullmatch(cell.text)
    is_size_column = "size" in label.text.lower()
    # `Llama 70B` in a column `Model size` is a size, in a column `Model` a name.
    if match and (is_size_column or not match["before"]):
        facts: Facts = {"size": match["size"].lower()}
        if match["proxy"]:
            facts["proxy"] = 1
        return facts
    if is_size_column:
        raise ValueError("the value is not a model size such as 70b")
    model = read_model_name(mapping, cell.text)
    if not model:
        raise ValueError("the value is not the name of a model")
    return model


def _read_gpus(mapping: DocumentMapping, field: str, cell: Cell) -> Facts:
    """Read a GPU type, a number of GPUs, or both from `8x H100`."""
    facts = {
        name: value
        for name, value in cell.facts.items()
        if name in ("gpu", "gpus") and value
    }
    # `8x H100 BF16` states another fact, too.
    has_only_gpu_facts = field in facts and facts == cell.facts
    if not has_only_gpu_facts or find_unknown_words(mapping, cell.caption):
        expected = "GPU type such as H100" if field == "gpu" else "number of GPUs"
        raise ValueError(f"the value is not a {expected}")
    return facts


def _read_dtype(mapping: DocumentMapping, cell: Cell) -> str:
    """Read one or several precisions, joined by `/`. Raises ValueError."""
    dtypes = parse_dtypes(mapping, cell.text)
    if not dtypes:
        raise ValueError("the value is not a precision such as BF16 or BF16/FP8")
    return "/".join(dtypes)


def _read_name(mapping: DocumentMapping, field: str, cell: Cell) -> str:
    """Read a task, or another name in lower case with underscores."""
    task = parse_task(mapping, cell.text) if field == "task" else None
    name = task or _make_name(cell.text)
    if not name:
        raise ValueError(f"the value is not the name of a {field}")
    return name


# --- headers and titles ---------------------------------------------------------------


def join_facts(statements: Iterable[Facts]) -> Facts:
    """Merge facts; a fact with several values becomes ""."""
    joined: Facts = {}
    for facts in statements:
        for name, value in facts.items():
            is_contradictory = name in joined and joined[name] != value
            joined[name] = "" if is_contradictory else value
    return joined


def read_caption(mapping: DocumentMapping, text: str) -> Caption:
    """Read the facts of a header or title, such as `8x H100 GPUs`."""
    facts_with_match = list(_find_facts(mapping, text))
    # The text with blanks in place of the facts, so that offsets stay valid.
    other_words = text
    first_fact = len(text)
    for _, match in facts_with_match:
        start, end = match.span()
        other_words = other_words[:start] + " " * (end - start) + other_words[end:]
        first_fact = min(first_fact, start)
    return Caption(
        facts=join_facts(facts for facts, _ in facts_with_match),
        before=text[:first_fact].strip(" (|,-"),
        rest=" ".join(other_words.split()),
    )


def _find_facts(
    mapping: DocumentMapping, text: str
) -> Iterator[tuple[Facts, re.Match[str]]]:
    """Yield the facts in a text, each with its match; matches may overlap."""
    # A GPU type in lower case counts only if it is the whole text: `h100` within a text
    # may be part of a name.
    whole = mapping.gpu.fullmatch(text)
    if whole:
        yield {"gpu": text.lower()}, whole
        return
    for match in _NAMED_NUMBER.finditer(text):
        name = parse_column_label(mapping, match[1].strip())
        # These columns are not numbers.
        if name and name not in (*SHARED_COLUMNS, *TEXT_COLUMNS, IGNORED):
            yield {name: int(match[2])}, match
    for match in mapping.counts.finditer(text):
        yield {"gpus": int(match["count"].replace(",", ""))}, match
        gpu = match["first"] or match["second"]
        if gpu:
            yield {"gpu": gpu.lower()}, match
    for name, pattern in mapping.words:
        for match in pattern.finditer(text):
            yield {name: match[0].lower()}, match
            if name != "size":
                continue
            proxy = mapping.proxy.match(text, match.end())  # `314b-proxy`
            if proxy:
                yield {"proxy": 1}, proxy


def find_unknown_words(mapping: DocumentMapping, column: Caption) -> str:
    """Return the unknown words of a column header, and the facts with several values.

    Known words are facts, fillers and tasks. An unknown word may describe another
    configuration or measurement: `(previous release)`.
    """
    words = re.findall(r"\w+|~~", column.rest)  # `~~`: struck out
    unknown = [
        word
        for word in words
        if word.lower() not in mapping.fillers and not parse_task(mapping, word)
    ]
    contradictory = [name for name, value in column.facts.items() if value == ""]
    return " ".join([*unknown, *contradictory])


def make_recipe_name(mapping: DocumentMapping, before: str) -> str:
    """Convert the words of a title to a recipe name: `Llama 3.1` becomes llama3.1.

    Drops a release. Returns "" if the words are not a name.
    """
    words = " ".join(mapping.headings["release"].sub("", before).split())
    # Join a number to the word before it: `Llama 3.1` becomes `Llama3.1`.
    return _make_name(re.sub(r"\s(?=\d)", "", words))


def _make_name(words: str) -> str:
    """Convert words to a name in lower case with underscores; "" if that is invalid."""
    name = re.sub(r"[^a-z0-9.]+", "_", words.lower()).strip("_.")
    return name if re.fullmatch(r"[a-z0-9][a-z0-9._]{0,99}", name) else ""


def read_labelled_model(mapping: DocumentMapping, heading: str) -> Facts:
    """Read the model of a heading such as `Model: LLAMA3_70B`; {} for other headings."""
    match = mapping.headings["model"].fullmatch(heading)
    return read_model_name(mapping, match["model"]) if match else {}


def read_model_name(mapping: DocumentMapping, text: str) -> Facts:
    """Read recipe, size and model name from the name of a model; {} for other texts.

    `LLAMA3.1_405B` gives recipe llama3.1 and size 405b. If the text is not a recipe
    followed by a size, such as `DeepSeekV3 (w/o MTP)`, the whole name is the recipe. The
    size is then the size at the end of the name, or the whole name without such a size.
    """
    caption = read_caption(mapping, text)
    # `w/o MTP` becomes `without MTP`, `w/ MTP` becomes `with MTP`.
    spelled_out = re.sub(
        r"\bw/(o\b)?", lambda match: "without " if match[1] else "with ", text
    )
    name = _make_name(spelled_out)
    if not name or not caption.facts.keys() <= {"size", "proxy"}:
        return {}
    recipe = make_recipe_name(mapping, caption.before)
    size = caption.facts.get("size")
    # `Llama 3 8B Instruct` is another model than Llama 3 8B: text follows the size.
    ends_with_size = caption.rest.strip("_ ") == caption.before.strip("_ ")
    if size and recipe and ends_with_size:
        return {"recipe": recipe, "size": size, "model": name}
    size_match = mapping.size_cell.fullmatch(name)
    size = size_match["size"].lower() if size_match else name
    return {"recipe": name, "size": size, "model": name}


def parse_dtypes(mapping: DocumentMapping, text: str) -> tuple[str, ...]:
    """Parse one or several precisions, such as `BF16/FP8`, to lower case; () if invalid."""
    if not mapping.dtypes.fullmatch(text):
        return ()
    return tuple(mapping.dtype.findall(text.lower().replace("-", "_")))


def parse_release(mapping: DocumentMapping, headings: Sequence[str]) -> str:
    """Return the release in the innermost heading that names one, or ""."""
    for heading in reversed(headings):
        match = mapping.headings["release"].search(heading)
        if match:
            return match["release"]
    return ""


def parse_task(mapping: DocumentMapping, text: str) -> str | None:
    """Return the task that a text names, such as lora, or None."""
    for name, pattern in mapping.tasks.items():
        match = pattern.search(text)
        if match:
            return name or match[0].lower()
    return None
