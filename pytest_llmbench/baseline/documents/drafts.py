"""The draft of a baseline file: configurations of tables, completed by what the text beside them states (peaks, model
sizes, FLOPs, the window, the number of steps)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pytest_llmbench.baseline.documents.labels import DTYPE, GPU, METRICS, read_caption
from pytest_llmbench.baseline.documents.markdown import MarkdownTable, list_shown_lines
from pytest_llmbench.baseline.documents.table_configurations import DocumentConfiguration, UnreadCell
from pytest_llmbench.baseline.schema import COLUMNS, FORMULA_NEEDS, NO_PEAK, SHAPE
from pytest_llmbench.core import formatting
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.gpus import find_peak
from pytest_llmbench.logs.dialect_table import DIALECTS

_PEAKS = re.compile(rf"\b(?:({GPU})\b|({DTYPE})\s+(?:GPUs?\s+)?(?:is|=)\s+(\d+(?:\.\d+)?)\s*([TP])FLOPS)", re.ASCII)
_CONSTANT = re.compile(r"model flops for .{0,200}? is (\d\.\d+[eE]\+?\d+)", re.ASCII)
_ATTENTION = (
    r"attention flops = 12 \* (?P<layers>\d+) \* (?P<hidden_size>\d+)\^2 \* \(1 \+ (?P<query_groups>\d+)/"
    r"(?P<attention_heads>\d+) \+ (?P<sequence_length>\d+)/(?P=hidden_size)%s\) = (?P<worked_attention>[\d,]+)"
)
_MODEL_LINES = tuple(
    (formula, re.compile(pattern))
    for formula, pattern in (
        ("", r"sequence length = (?P<sequence_length>\d+)"),
        ("", r"number of layers = (?P<layers>\d+)"),
        ("", r"hidden size = (?P<hidden_size>\d+)"),
        ("", r"vocab(?:ulary)? size = (?P<vocabulary_size>\d+)"),
        ("llama", _ATTENTION % ""),
        # Grok's document counts half of the score matrix, because attention is causal; the others count all of it.
        ("grok", _ATTENTION % "/2"),
        (
            "nemotron",
            r"attention flops = 24 \* (?P<layers>\d+) \* (?P<hidden_size>\d+)\^2 \+ 12 \* (?P=layers)"
            r" \* (?P=hidden_size) \* (?P<sequence_length>\d+) = (?P<worked_attention>[\d,]+)",
        ),
        ("", r"mlp flops = 18 \* \d+ \* (?P<ffn_size>\d+) \* \d+(?: \* (?P<top_k>\d+))? = (?P<worked_mlp>[\d,]+)"),
        ("", r"mlp flops = 48 \* \d+ \* \d+\^2 = (?P<worked_mlp>[\d,]+)"),
        ("", r"embedding flops = 6 \* (?P<vocabulary_size>\d+) \* \d+ = (?P<worked_embedding>[\d,]+)"),
        ("", r"model flops = .{0,500} = (?P<worked_flops>(?a:\d\.\d+[eE]\+?\d+))"),
    )
)
"""The lines that state a model, with the formula that they show; a group is called as the key that it becomes."""

_WINDOW = re.compile(r"(?:iterations|steps) (\d+)(?:[-\u2013]| to )(\d+)\b.*\bmean\b", re.ASCII)
_STEPS = re.compile(
    r"training\b.{0,200} (?:will run|runs) for the first (\d+) steps|will run for the first (\d+) steps", re.ASCII
)
_FRAMEWORKS = (
    ("NeMo AutoModel", "automodel", re.compile(r"\bNeMo[- ]AutoModel\b")),
    ("Megatron-Bridge", "megatron", re.compile(r"\bMegatron[- ]Bridge\b")),
)
"""The frameworks that a document is about where it names them, and how they log."""

_LAUNCHED_BY = {"nemo1": "NeMo Framework Launcher", "nemo2": "NeMo-Run", "maxtext": "MaxText", "paxml": "Paxml"}
"""What writes such logs, where the document names no framework."""

_DIALECTS = {name: re.compile(dialect.documented) for name, dialect in DIALECTS.items() if dialect.documented}


@dataclass(frozen=True, slots=True)
class ProseValue:
    """A value with its line."""

    value: str
    line: int


ProseValues = Mapping[str, ProseValue]


@dataclass(frozen=True, slots=True)
class Prose:
    """What the text states, each with its line."""

    values: Mapping[tuple[str, str, str], ProseValue]
    """By kind, what it is of, and what it is: `peak`, GPU type and precision (in TFLOP/s); `model`, size (empty where
    none is named) and a size of the architecture, `formula`, `printed_flops` or a sum of a worked example, such as
    `worked attention`; `about`, nothing, and `timed`, `first`, `last`, `steps` or `dialect`."""

    unread: Sequence[UnreadCell] = ()
    """The values that contradict each other, none of which is taken."""

    def select(self, kind: str, owner: str = "") -> ProseValues:
        """Return what is stated of one GPU type, one model, or the measurement."""
        return {what: value for (other, name, what), value in self.values.items() if (other, name) == (kind, owner)}


def read_prose(text: str, of_peaks: Iterable[MarkdownTable] = ()) -> Prose:
    """Return what the text of a document and its tables of peaks state; what stands in a comment it does not."""
    values_of: dict[tuple[str, str, str], list[ProseValue]] = defaultdict(list)
    in_tables = (stated for table in of_peaks for stated in _read_peaks(table))
    for name, stated in (*_find_values(text), *in_tables):
        values_of[name].append(stated)
    # Which of several values counts nobody knows, so none is taken.
    agreed = {name: values[0] for name, values in values_of.items() if len({value.value for value in values}) == 1}
    odd = ((name, values) for name, values in values_of.items() if name not in agreed)
    return Prose(agreed, [value for name, values in odd for value in _find_contradictory_values(name, values)])


def _find_contradictory_values(name: tuple[str, str, str], values: Sequence[ProseValue]) -> Iterator[UnreadCell]:
    both = formatting.join_first(list(dict.fromkeys(value.value for value in values)))
    what = " ".join(filter(None, name)).removeprefix("about ")
    for value in dict.fromkeys(values):
        yield UnreadCell(value.line, value.value, f"the text gives several values of {what}: {both}")


def _find_values(text: str) -> Iterator[tuple[tuple[str, str, str], ProseValue]]:
    """Yield what each line states: `peak`, GPU type and precision, `model`, size and what of it, or `about`."""
    size = ""
    for number, line in enumerate(list_shown_lines(text), 1):
        # Numbers with TFLOPS stand in lines about what was measured, too.
        if "peak" in line:
            yield from ((("peak", *key), ProseValue(value, number)) for key, value in _find_peaks(line))
        # A worked example names its model in its first line only.
        named = str(read_caption(line).facts.get("size", ""))
        size = named if line.rstrip().endswith("calculation:") else size
        if constant := _CONSTANT.search(line):
            yield ("model", named, "printed_flops"), ProseValue(constant[1], number)
        yield from (
            (("model", size, name), ProseValue(value, number)) for name, value in _find_model_values(line.strip())
        )
        yield from ((("about", "", name), ProseValue(value, number)) for name, value in _find_measurement_values(line))


def _read_peaks(table: MarkdownTable) -> Iterator[tuple[tuple[str, str, str], ProseValue]]:
    """Yield the peaks of a table with a column for each GPU type and a row for each precision, or the other way."""
    around = " ".join((table.heading, table.lead, *table.header.cells))
    unit = re.search(r"\b([TP])FLOP", around, re.IGNORECASE)
    for row in table.rows if unit else ():
        for label, cell in zip(table.header.cells[1:], row.cells[1:], strict=False):
            named = [{**read_caption(text).facts, "rest": read_caption(text).rest} for text in (label, row.cells[0])]
            facts = {name: value for each in named for name, value in each.items() if value}
            # Anything else in them, such as `sparse`, makes it another number.
            if facts.keys() == {"gpu", "dtype"} and re.fullmatch(r"\d+(\.\d+)?", cell, re.ASCII) and unit:
                key = "peak", str(facts["gpu"]), str(facts["dtype"])
                yield key, ProseValue(_to_tera(cell, unit[1]), row.line)


def _to_tera(number: str, prefix: str) -> str:
    return f"{(Decimal(number) * (1000 if prefix.upper() == 'P' else 1)).normalize():f}"


def _find_peaks(line: str) -> Iterator[tuple[tuple[str, str], str]]:
    gpu = ""
    for match in _PEAKS.finditer(line):
        if match[1]:
            gpu = match[1].lower()
        elif gpu:
            yield (gpu, match[2].lower()), _to_tera(match[3], match[4])


def _find_model_values(line: str) -> Iterator[tuple[str, str]]:
    for formula, pattern in _MODEL_LINES:
        if match := pattern.fullmatch(line):
            yield from (("formula", formula),) if formula else ()
            # `worked attention` is what messages call it; no group can be called so.
            stated = {name: value for name, value in match.groupdict().items() if value}
            yield from ((name.replace("worked_", "worked "), value) for name, value in stated.items())


def _find_measurement_values(line: str) -> Iterator[tuple[str, str]]:
    window = _WINDOW.search(line)
    if window:
        yield from (("timed", "mean"), ("first", window[1]), ("last", window[2]))
    elif "the last training step" in line:
        yield "timed", "last_step"
    if steps := _STEPS.search(line):
        yield "steps", steps[1] or steps[2]
    yield from (("dialect", name) for name, pattern in _DIALECTS.items() if pattern.search(line))
    for framework, dialect, pattern in _FRAMEWORKS:
        if pattern.search(line):
            yield from (("framework", framework), ("dialect", dialect))


# --- as a file ------------------------------------------------------------------------------------------

FILL_IN = "# fill in:"
NOT_STATED = "# not stated"
USUAL = f"{NOT_STATED}: the usual"
USUAL_WINDOW = "{statistic: mean, first: 11, last: 44}"
SUMS = ("attention", "mlp", "embedding")
SIZES = ("hidden_size", "attention_heads", "query_groups", "ffn_size", "top_k", "vocabulary_size", "printed_flops")
HINTS = {
    "dialect": "that of the log: nemo1, nemo2, maxtext, megatron, torchtitan, ...",
}


@dataclass(frozen=True, slots=True)
class BaselineDraft:
    """A baseline file of one recipe, which can be read once every line of `fill_in` is complete."""

    recipe: str
    release: str
    text: str
    configurations: int
    cells: int

    @property
    def fill_in(self) -> tuple[tuple[int, str], ...]:
        """The lines to complete, 1-based, and what is missing there."""
        lines = enumerate(self.text.splitlines(), 1)
        return tuple((number, line.partition(FILL_IN)[2].strip()) for number, line in lines if FILL_IN in line)

    @property
    def assumed(self) -> tuple[tuple[int, str], ...]:
        """The lines with what the document does not state, 1-based, and what stands there."""
        lines = enumerate(self.text.splitlines(), 1)
        return tuple((number, line.partition(NOT_STATED)[0].strip()) for number, line in lines if NOT_STATED in line)


def make_draft(entries: Sequence[DocumentConfiguration], prose: Prose, document: str, release: str) -> BaselineDraft:
    """Return the file of the configurations of one recipe; `document` is the name of what they were read from."""
    recipe, cells = entries[0].recipe, sum(len(entry.cells) for entry in entries)
    timed = cells > 0
    sizes = tuple(dict.fromkeys(str(entry.facts["size"]) for entry in entries))
    models = {size: _select_model(prose, size, alone=len(sizes) == 1) for size in sizes}
    lines = [*_render_head(recipe, release, document, prose, timed=timed)]
    lines += _render_peaks(entries, prose)
    if any(models.values()):
        lines += ["", "models:", *(line for size in sizes for line in _render_model(size, models[size]))]
    lines += ["", "configurations:"]
    for number, entry in enumerate(entries):
        if number == 0 or (entry.table, entry.line) != (entries[number - 1].table, entries[number - 1].line):
            lines.append(f"  # {escape(entry.table)} (line {entry.line} of the document)")
        lines += _render_row(entry, models[str(entry.facts["size"])])
    return BaselineDraft(recipe, release, "\n".join(lines) + "\n", len(entries), cells)


def _render_head(recipe: str, release: str, document: str, prose: Prose, *, timed: bool) -> Iterator[str]:
    about = prose.select("about")
    yield f"# Drafted from {escape(document)} by llmbench baselines import; docs/baselines.md explains the keys."
    yield "schema: 1"
    yield f"kind: {'published' if timed else 'recipe'}"
    yield f"recipe: {_quote(recipe)}"
    yield f"release: {json.dumps(release)}"
    yield f"title: {_quote(f'{recipe} {release}')}"
    yield _render_framework(about)
    yield f"names: [{_quote(recipe)}]"
    yield _render_value("dialect", about.get("dialect"))
    yield f"source: {{document: {_quote(document)}}}"
    yield ""
    if timed or "timed" in about:
        yield _render_value("timed", about["timed"]) if "timed" in about else f"timed: mean   {USUAL}"
    if "first" in about:
        first, last = about["first"], about["last"]
        yield f"window: {{statistic: mean, first: {first.value}, last: {last.value}}}   # line {first.line}"
    else:
        yield f"window: {USUAL_WINDOW}   {USUAL}"
    if timed or "steps" in about:
        yield _render_value("steps", about["steps"]) if "steps" in about else f"steps: 50   {USUAL}"


def _render_framework(about: ProseValues) -> str:
    dialect = about.get("dialect")
    if "framework" in about or dialect is None or dialect.value not in _LAUNCHED_BY:
        stated = about.get("framework")
        return _render_value("framework", stated) if stated else f"framework: unknown   {NOT_STATED}"
    return f"framework: {_LAUNCHED_BY[dialect.value]}   # by the log of line {dialect.line}"


def _render_value(name: str, stated: ProseValue | None, indent: str = "", text: str = "") -> str:
    """Return a key with its value and where it stands, or one to fill in."""
    # `null` is refused by the schema, so nobody judges against what the document does not complete.
    if stated is None:
        return f"{indent}{name}: null   {FILL_IN} {name}{f', {HINTS[name]}' if name in HINTS else ''}"
    return f"{indent}{name}: {text or stated.value}   # line {stated.line}"


def _render_peaks(entries: Sequence[DocumentConfiguration], prose: Prose) -> Iterator[str]:
    yield "peak_tflops:"
    pairs = dict.fromkeys((str(entry.facts["gpu"]), str(entry.facts["dtype"])) for entry in entries)
    for gpu in dict.fromkeys(gpu for gpu, _ in pairs):
        peaks = prose.select("peak", gpu)
        yield f"  {gpu}:"
        for dtype in (dtype for other, dtype in pairs if other == gpu):
            if dtype in peaks:
                yield _render_value(dtype, peaks[dtype], "    ", json.dumps(peaks[dtype].value))
            else:
                peak = find_peak(gpu, dtype)
                yield f'    {dtype}: "{peak or NO_PEAK}"   {NOT_STATED}{": the vendor gives it" if peak else ""}'


def _select_model(prose: Prose, size: str, *, alone: bool) -> ProseValues:
    """Return what is stated of a model; what names no size is about the only one, where it is alone."""
    # Beside a second model nobody knows which of them such a line is about.
    return {**(prose.select("model") if alone else {}), **prose.select("model", size)}


def _render_model(size: str, model: ProseValues) -> Iterator[str]:
    formula, constant = model.get("formula"), model.get("printed_flops")
    yield f"  {_quote(size)}:"
    if formula is None:
        yield f"    formula: none   {NOT_STATED}: docs/flops.md has those for MFU"
        for name in (name for name in SIZES if name in model):
            text = model[name].value
            yield _render_value(name, model[name], "    ", text if text.isdigit() else json.dumps(text))
        return
    # A document rounds its constant before it multiplies; with all digits its own tables would not reproduce.
    digits = f":{len(constant.value.lower().partition('e')[0]) - 1}" if constant else ""
    yield _render_value("formula", formula, "    ", f"{formula.value}{digits}")
    for name in ("hidden_size", *FORMULA_NEEDS[formula.value], "vocabulary_size"):
        yield _render_value(name, model.get(name), "    ")
    if constant:
        yield _render_value("printed_flops", constant, "    ", json.dumps(constant.value))
    yield from _render_worked_example(model)


def _render_worked_example(model: ProseValues) -> Iterator[str]:
    sums = [model.get(f"worked {name}") for name in SUMS]
    shape = [model.get(name) for name in ("sequence_length", "layers")]
    # Half an example cannot be computed again.
    if None in sums or None in shape:
        return
    yield "    worked:"
    for name, stated in zip(("sequence_length", "layers", *SUMS), (*shape, *sums), strict=True):
        if stated is not None:
            yield _render_value(name, stated, "      ", json.dumps(stated.value) if name in SUMS else "")
    if flops := model.get("worked flops"):
        yield _render_value("flops", flops, "      ", json.dumps(flops.value))


def _render_row(entry: DocumentConfiguration, model: ProseValues) -> Iterator[str]:
    names = ("size", "gpu", "dtype", "task", "variant")
    key = ", ".join(f"{name}: {_quote(str(entry.facts[name]))}" for name in names if name in entry.facts)
    title = f", table: {_quote(entry.table)}" if entry.table else ""
    yield f"  - {{{key}, gpus: {entry.facts['gpus']}{title},"
    worked = {name: model[name].value for name in ("sequence_length", "layers") if name in model}
    columns = {name: entry.facts.get(name, worked.get(name)) for name in COLUMNS}
    needed = [name for name in SHAPE if columns[name] is None and "formula" in model]
    keys = [f"{name}: {value}" for name, value in columns.items() if value is not None]
    keys += [f"{name}: null" for name in needed] + ["proxy: true"] * entry.proxy
    keys += [f"logged_tflop: {entry.facts['logged_tflop']}"] if "logged_tflop" in entry.facts else []
    cells = ", ".join(f"{name}: {json.dumps(entry.cells[name])}" for name in METRICS if name in entry.cells)
    places = [f"{name}: line {model[name].line}" for name in worked if name not in entry.facts]
    notes = [*([f"# {', '.join(places)}"] if places else []), *([f"{FILL_IN} {', '.join(needed)}"] if needed else [])]
    end = "".join(f"   {note}" for note in notes)
    if keys:
        yield f"     {', '.join(keys)},{end}"
    yield f"     cells: {{{cells}}}}}" if cells else "    }"


def _quote(text: str) -> str:
    """Return a text as YAML reads it back: plain where it is a simple word."""
    # YAML 1.1 reads these as truth values or nothing, `no` and `on` too.
    words = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    if re.fullmatch(r"[a-z][a-z0-9_.]*", text) and text not in words:
        return text
    return json.dumps(escape(text), ensure_ascii=False)
