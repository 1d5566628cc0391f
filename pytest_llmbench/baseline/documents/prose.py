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

_PEAKS = re.compile(rf"\b(?:({GPU})\b|({DTYPE})\s+(?:GPUs?\s+)?(?:is|=)\s+(\d+(?:\.\d+)?)\s*([TP])FLOPS)", re.ASCII)
_CONSTANT = re.compile(r"model flops for .*? is (\d\.\d+[eE]\+?\d+)", re.ASCII)
_SIZES = {
    "sequence_length": re.compile(r"sequence length = (\d+)"),
    "layers": re.compile(r"number of layers = (\d+)"),
    "hidden_size": re.compile(r"hidden size = (\d+)"),
    "vocabulary_size": re.compile(r"vocab(?:ulary)? size = (\d+)"),
}
_ATTENTION = re.compile(
    r"attention flops = 12 \* (\d+) \* (\d+)\^2 \* \(1 \+ (\d+)/(\d+) \+ (\d+)/\2(/2)?\) = ([\d,]+)"
)
_NEMOTRON = re.compile(r"attention flops = 24 \* (\d+) \* (\d+)\^2 \+ 12 \* \1 \* \2 \* (\d+) = ([\d,]+)")
_MLP = re.compile(r"mlp flops = 18 \* \d+ \* (\d+) \* \d+(?: \* (\d+))? = ([\d,]+)")
_NEMOTRON_MLP = re.compile(r"mlp flops = 48 \* \d+ \* \d+\^2 = ([\d,]+)")
_EMBEDDING = re.compile(r"embedding flops = 6 \* (\d+) \* \d+ = ([\d,]+)")
_SUM = re.compile(r"model flops = .* = (\d\.\d+[eE]\+?\d+)", re.ASCII)
_WINDOW = re.compile(r"(?:iterations|steps) (\d+)(?:-| to )(\d+)\b.*\bmean\b", re.ASCII)
_STEPS = re.compile(
    r"training\b.* (?:will run|runs) for the first (\d+) steps|will run for the first (\d+) steps", re.ASCII
)
_DIALECTS = {
    "nemo1": re.compile(r"train_step_timing in s=\d"),
    "nemo2": re.compile(r"train_step_timing in s: \d|parse_train_timing"),
    "maxtext": re.compile(r"completed step: \d+, seconds: "),
}


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
        if "peak" in line:
            yield from ((("peak", *key), ProseValue(value, number)) for key, value in _find_peaks(line))
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
    for name, pattern in _SIZES.items():
        if match := pattern.fullmatch(line):
            yield name, match[1]
    if match := _ATTENTION.fullmatch(line):
        yield "formula", "grok" if match[6] else "llama"
        names = ("layers", "hidden_size", "query_groups", "attention_heads", "sequence_length")
        yield from zip(names, match.groups()[:5], strict=True)
        yield "worked attention", match[7]
    elif match := _NEMOTRON.fullmatch(line):
        yield "formula", "nemotron"
        yield from zip(("layers", "hidden_size", "sequence_length", "worked attention"), match.groups(), strict=True)
    elif match := _MLP.fullmatch(line):
        yield "ffn_size", match[1]
        yield from (("top_k", match[2]),) if match[2] else ()
        yield "worked mlp", match[3]
    elif match := _NEMOTRON_MLP.fullmatch(line):
        yield "worked mlp", match[1]
    elif match := _EMBEDDING.fullmatch(line):
        yield from zip(("vocabulary_size", "worked embedding"), match.groups(), strict=True)
    elif match := _SUM.fullmatch(line):
        yield "worked flops", match[1]


def _find_measurement_values(line: str) -> Iterator[tuple[str, str]]:
    window = _WINDOW.search(line)
    if window:
        yield from (("timed", "mean"), ("first", window[1]), ("last", window[2]))
    elif "the last training step" in line:
        yield "timed", "last_step"
    if steps := _STEPS.search(line):
        yield "steps", steps[1] or steps[2]
    yield from (("dialect", name) for name, pattern in _DIALECTS.items() if pattern.search(line))
