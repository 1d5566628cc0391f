"""What the text of a document states beside its tables: peaks, model sizes, FLOPs, the window, the number of steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pytest_llmbench.baseline.documents.labels import DTYPE, GPU, read_caption
from pytest_llmbench.baseline.documents.markdown import list_shown_lines
from pytest_llmbench.baseline.documents.table_configurations import UnreadCell
from pytest_llmbench.core import formatting
from pytest_llmbench.core.dialects import DIALECTS

_PEAKS = re.compile(rf"\b(?:({GPU})\b|({DTYPE})\s+(?:GPUs?\s+)?(?:is|=)\s+(\d+(?:\.\d+)?)\s*([TP])FLOPS)", re.ASCII)
_CONSTANT = re.compile(r"model flops for .*? is (\d\.\d+[eE]\+?\d+)", re.ASCII)
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
        ("", r"model flops = .* = (?P<worked_flops>(?a:\d\.\d+[eE]\+?\d+))"),
    )
)
"""The lines that state a model, with the formula that they show; a group is called as the key that it becomes."""

_WINDOW = re.compile(r"(?:iterations|steps) (\d+)(?:-| to )(\d+)\b.*\bmean\b", re.ASCII)
_STEPS = re.compile(
    r"training\b.* (?:will run|runs) for the first (\d+) steps|will run for the first (\d+) steps", re.ASCII
)
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

    peaks: Mapping[tuple[str, str], ProseValue]
    """In TFLOP/s, by GPU type and precision."""

    models: Mapping[str, ProseValues]
    """By size, empty where none is named: the sizes of the architecture, `formula`, `printed_flops`, and the sums of a
    worked example as `worked attention` and so on."""

    about: ProseValues
    """`timed`, `first`, `last`, `steps` and `dialect`."""

    unread: Sequence[UnreadCell] = ()
    """The values that contradict each other, none of which is taken."""


def read_prose(text: str) -> Prose:
    """Return what the text of a document states; what stands in a comment it does not."""
    values_of: dict[tuple[str, str, str], list[ProseValue]] = defaultdict(list)
    for name, stated in _find_values(text):
        values_of[name].append(stated)
    # Which of several values counts nobody knows, so none is taken.
    agreed = {name: values[0] for name, values in values_of.items() if len({value.value for value in values}) == 1}
    models: dict[str, dict[str, ProseValue]] = defaultdict(dict)
    for (kind, size, what), stated in agreed.items():
        if kind == "model":
            models[size][what] = stated
    return Prose(
        peaks={(gpu, dtype): stated for (kind, gpu, dtype), stated in agreed.items() if kind == "peak"},
        models=models,
        about={what: stated for (kind, _, what), stated in agreed.items() if kind == "about"},
        unread=[
            value
            for name, values in values_of.items()
            if name not in agreed
            for value in _find_contradictory_values(name, values)
        ],
    )


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


def _find_peaks(line: str) -> Iterator[tuple[tuple[str, str], str]]:
    gpu = ""
    for match in _PEAKS.finditer(line):
        if match[1]:
            gpu = match[1].lower()
        elif gpu:
            tera = Decimal(match[3]) * (1000 if match[4] == "P" else 1)
            yield (gpu, match[2].lower()), f"{tera.normalize():f}"


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
