"""Facts of a run that matches no baseline, with their sources and contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from pytest_llmbench.core.baseline_records import Parallelism
from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.runs.discover.run_facts import (
    BATCH_OF_STEPS,
    RunFact,
    collect_facts,
)

UNKNOWN = "unknown"
"""Placeholder in a key for an unknown value."""

UNSIZED = "unsized"
"""Placeholder in a key for an unknown size."""

STATED = {
    "gpus": (StatedField.GPUS,),
    "gpu": (StatedField.GPU_TYPE,),
    "layers": (StatedField.LAYERS,),
    "sequence_length": (StatedField.SEQUENCE,),
    "global_batch_size": (BATCH_OF_STEPS, StatedField.BATCH),
    "micro_batch_size": (StatedField.MICRO_BATCH,),
}
"""Facts of a log that give each field, the most reliable first."""

NEEDED = ("gpu", "dtype", "gpus", "global_batch_size", "sequence_length")
"""Fields that determine the speed of a run and should be known."""

_PRECISIONS = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
}
_RECIPES = {
    "fp8_recipe: tensorwise": "cs",
    "fp8_recipe: mxfp8": "mx",
    "fp8_recipe: blockwise": "sc",
}
_SIZE = re.compile(
    r"(?:^|[_/ -])(\d+(?:\.\d+)?[bmt](?:[_-]a\d+(?:\.\d+)?b)?|\d+x\d+(?:\.\d+)?b)(?=$|[_/ .-])"
)
_GROUPS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "data": "dp",
}
_GROUP = re.compile(
    r"(tensor|pipeline|context|expert|data)[-_ ](?:model[-_ ])?parallel[-_ ]size: (\d{1,7})"
)
_AXIS = re.compile(r"(?<![a-z_])(pp|cp|tp|ep|etp|dp_replicate|dp_shard)=(\d{1,7})")
_GENERIC = re.compile(
    r"(?:logs?|outs?|outputs?|results?|runs?|train(?:ing)?|trainer|experiments?|slurm|stdout|stderr|jobs?|main|test|nemo"
    r"|data|tmp|night|day|version|attempt|default|pretrain(?:ing)?|model|file|console|txt|err|rank"
    r"|tensorboard|tb|events?|tfevents|lightning|metrics|state|logging)+"
)


# The wildcards of a path pattern, including the separators in a timestamp.
_OPEN = re.compile(r"[#*](?:[tz:.-]*[#*])*z?(?![a-z])|[#*]")


@dataclass(frozen=True, slots=True)
class StatedNames:
    """Names that the user gives to unidentified runs; "" if not given."""

    model: str = ""
    size: str = ""
    dtype: str = ""
    gpus: str = ""


NO_NAMES = StatedNames()


@dataclass(frozen=True, slots=True)
class StatedRun:
    """The values of a run by field, their sources, and the contradictions between
    sources."""

    values: Mapping[str, str]
    taken: tuple[str, ...]  # each value with its source, in words
    conflicts: tuple[str, ...]
    models: tuple[str, ...]  # names of its model, the most reliable first
    parallelism: Parallelism

    def get_text(self, field: str, default: str = UNKNOWN) -> str:
        """Return a value for use in a key."""
        return self.values.get(field, default)

    def get_number(self, field: str) -> int | None:
        """Return a whole number above 0, or None if it is unknown or invalid."""
        text = self.values.get(field, "").replace(",", "").removesuffix(".0")
        return int(text) or None if text.isdecimal() and len(text) < 10 else None

    def list_unknown(self) -> list[str]:
        """Return the unknown fields that determine the speed of a run."""
        return [field.replace("_", " ") for field in NEEDED if field not in self.values]

    def summarise(self) -> str:
        """Return the sizes in short form, to distinguish configurations:
        `gbs96-mbs3-seq2048-tp2`."""
        abbreviations = {
            "global_batch_size": "gbs",
            "micro_batch_size": "mbs",
            "sequence_length": "seq",
        }
        sizes = [
            (abbreviation, self.get_number(field))
            for field, abbreviation in abbreviations.items()
        ]
        groups = [
            (field.name, getattr(self.parallelism, field.name))
            for field in fields(Parallelism)
        ]
        return "-".join(
            f"{name}{size}"
            for name, size in (*sizes, *groups)
            if size and (size > 1 or name == "gbs")
        )


def describe_run(run: Run, gpu: str = "", stated: StatedNames = NO_NAMES) -> StatedRun:
    """Describe a run by its log, metadata, names and the user's names, in this order of
    trust.

    `gpu` is the value of --llmb-gpu.
    """
    facts = {
        fact.name: fact
        for fact in collect_facts(run.found, [attempt.log for attempt in run.attempts])
    }
    values_by_field: dict[str, list[tuple[str, str]]] = {}
    for field, value, source in (
        *_read_log(facts),
        *_read_hints(run),
        *_read_stated(gpu, stated),
    ):
        values_by_field.setdefault(field, []).append((value, source))
    values = {field: pairs[0][0] for field, pairs in values_by_field.items()}
    conflicts = [
        f"{field.replace('_', ' ')}: {' but '.join(f'{value} ({source})' for value, source in pairs)}"
        for field, pairs in values_by_field.items()
        if len({value.casefold() for value, _ in pairs}) > 1
        and field not in ("recipe", "model", "task")
    ]
    sources = [
        f"{field.replace('_', ' ')} {pairs[0][0]} ({pairs[0][1]})"
        for field, pairs in values_by_field.items()
    ]
    models = [
        value
        for field in ("model", "recipe")
        for value, _ in values_by_field.get(field, ())
    ]
    return StatedRun(
        {field: value for field, value in values.items() if field != "model"},
        tuple(sources),
        tuple(conflicts),
        (*([stated.model] if stated.model else []), *models),
        _read_layout(facts, values),
    )


def _read_log(facts: Mapping[str, RunFact]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, source) for each fact that the logs print."""
    for field, names in STATED.items():
        fact = next((facts[str(name)] for name in names if str(name) in facts), None)
        if fact is not None:
            yield field, fact.last, fact.source
    quantized, numbers = (
        facts.get(str(field))
        for field in (StatedField.QUANTIZATION, StatedField.NUMBERS)
    )
    if (
        quantized
        and len(quantized.values) == 1
        and quantized.last not in ("none", "not fp8")
    ):
        recipes = (
            [_RECIPES[value] for value in numbers.values if value in _RECIPES]
            if numbers
            else []
        )
        yield "dtype", "_".join((quantized.last, *recipes[:1])), quantized.source
    elif numbers and not (quantized and len(quantized.values) > 1):
        floats = {
            _PRECISIONS[value] for value in numbers.values if value in _PRECISIONS
        }
        if len(floats) == 1:
            yield "dtype", floats.pop(), numbers.source
    models = facts.get(str(StatedField.MODEL))
    for value in (models.last, *reversed(models.values)) if models else ():
        name = value.rstrip("/").rpartition("/")[2]
        # Optimizers and schedules have names as well, but a single name is the model's.
        if _SIZE.search(name.lower()) or (
            len(models.values) == 1 and not _is_generic(name) if models else False
        ):
            yield "model", name, models.source if models else ""


def _read_hints(run: Run) -> Iterator[tuple[str, str, str]]:
    for hint in run.found.hints:
        yield hint.field, hint.value.casefold(), hint.source


def _read_stated(gpu: str, stated: StatedNames) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, option) for each value that the user stated."""
    for field in ("size", "dtype", "gpus"):
        if value := getattr(stated, field):
            yield field, value, f"--{field}"
    if gpu:
        yield "gpu", gpu, "--llmb-gpu"


def _read_layout(
    facts: Mapping[str, RunFact], values: Mapping[str, str]
) -> Parallelism:
    """Return the parallelism that the facts and the device layout state."""
    texts = {field.name: values.get(field.name, "") for field in fields(Parallelism)}
    sizes = {
        name: int(text)
        for name, text in texts.items()
        if text.isdecimal() and len(text) < 8
    }
    layout = facts.get(str(StatedField.LAYOUT))
    text = "; ".join(layout.values) if layout else ""
    sizes |= {_GROUPS[name]: int(size) for name, size in _GROUP.findall(text)}
    axes = {name: int(size) for name, size in _AXIS.findall(text)}
    if axes:
        sizes["dp"] = axes.pop("dp_replicate", 1) * axes.pop("dp_shard", 1)
    return Parallelism(
        **{name: size for name, size in (sizes | axes).items() if size > 0}
    )


def name_model(described: StatedRun, path: str, dialect: str) -> tuple[str, str]:
    """Return a name and a size for the model of a run.

    Uses the known facts, else the folders or the log's name, else the dialect.
    """
    size = described.values.get("size", "")
    for text in (*described.models, *_list_names(path)):
        match = _SIZE.search(text.lower())
        name = _make_slug(
            text.lower()[: match.start()] if match and match.start() else text
        )
        size = size or (_make_slug(match[1]) if match else "")
        if name:
            return name, size or UNSIZED
    return dialect, size or UNSIZED


def _list_names(path: str) -> Sequence[str]:
    """Return the components of a path pattern that may name the model.

    The innermost folder comes first, the log last.
    """
    *folders, log = path.split("/")
    names = (*reversed(folders), log.partition(".")[0])
    return [name for name in names if not _is_generic(name)]


def _is_generic(name: str) -> bool:
    word = re.sub(r"[^a-z]+", "", name.lower())
    return len(word) < 2 or _GENERIC.fullmatch(word) is not None


def _make_slug(text: str) -> str:
    """Return a text in the form of a recipe name or size; may be ""."""
    filled = _OPEN.sub("_", text.lower())
    return re.sub(r"[^a-z0-9.+]+", "_", filled)[:60].strip("_.+-")
