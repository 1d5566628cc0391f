"""Facts of a run that matches no baseline, with their sources and contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_llmbench.core.baseline_records import Parallelism
from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.core.patterns import compile_on_use
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
_SUFFIXES = {
    "fp8_recipe: tensorwise": "cs",
    "fp8_recipe: mxfp8": "mx",
    "fp8_recipe: blockwise": "sc",
}
_SIZE = compile_on_use(
    r"(?:^|[_/ -])(\d+(?:\.\d+)?[bmt](?:[_-]a\d+(?:\.\d+)?b)?|\d+x\d+(?:\.\d+)?b)(?=$|[_/ .-])"
)
_PARALLELISM_FIELDS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "data": "dp",
}
_PARALLEL_SIZE = compile_on_use(
    r"(tensor|pipeline|context|expert|data)[-_ ](?:model[-_ ])?parallel[-_ ]size: (\d{1,7})"
)
_PARALLEL_AXIS = compile_on_use(
    r"(?<![a-z_])(pp|cp|tp|ep|etp|dp_replicate|dp_shard)=(\d{1,7})"
)
_GENERIC_WORDS = compile_on_use(
    r"(?:logs?|outs?|outputs?|results?|runs?|train(?:ing)?|trainer|experiments?|slurm|stdout|stderr|jobs?|main|test|nemo"
    r"|data|tmp|night|day|version|attempt|default|pretrain(?:ing)?|model|file|console|txt|err|rank"
    r"|tensorboard|tb|events?|tfevents|lightning|metrics|state|logging)+"
)


# The wildcards of a path pattern, including the separators in a timestamp.
_WILDCARDS = compile_on_use(r"[#*](?:[tz:.-]*[#*])*z?(?![a-z])|[#*]")


class StatedNames(Struct, frozen=True):
    """Names that the user gives to unidentified runs; "" if not given."""

    model: str = ""
    size: str = ""
    dtype: str = ""
    gpus: str = ""


NO_NAMES = StatedNames()


class StatedRun(Struct, frozen=True):
    """The values of a run by field, their sources, and the contradictions between
    sources."""

    values: Mapping[str, str]
    found: tuple[str, ...]  # each value with its source, in words
    conflicts: tuple[str, ...]
    models: tuple[str, ...]  # names of its model, the most reliable first
    parallelism: Parallelism

    def get_text(self, field: str, default: str = UNKNOWN) -> str:
        """Return a value for use in a key."""
        return self.values.get(field, default)

    def get_number(self, field: str) -> int | None:
        """Return a value as a whole number above 0; None if it is unknown or invalid."""
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
        parallel_sizes = [
            (name, getattr(self.parallelism, name))
            for name in Parallelism.__struct_fields__
        ]
        # A size of 1 is the usual one, except of the global batch.
        return "-".join(
            f"{name}{size}"
            for name, size in (*sizes, *parallel_sizes)
            if size and (size > 1 or name == "gbs")
        )


def describe_run(run: Run, gpu: str = "", stated: StatedNames = NO_NAMES) -> StatedRun:
    """Collect the values of a run and their sources, the most reliable source first.

    Sources are the log, the metadata and names of folders, then the names in `stated`
    and `gpu`, the value of --llmb-gpu. Values that differ are listed as conflicts.
    """
    facts = {
        fact.name: fact
        for fact in collect_facts(run.found, [attempt.log for attempt in run.attempts])
    }
    values_by_field: dict[str, list[tuple[str, str]]] = {}
    for field, value, source in (
        *_list_log_values(facts),
        *_list_hint_values(run),
        *_list_stated_values(gpu, stated),
    ):
        values_by_field.setdefault(field, []).append((value, source))
    values: dict[str, str] = {}  # of the most reliable source
    found: list[str] = []
    conflicts: list[str] = []
    for field, pairs in values_by_field.items():
        name = field.replace("_", " ")
        value, source = pairs[0]
        values[field] = value
        found.append(f"{name} {value} ({source})")
        different_values = {value.casefold() for value, _ in pairs}
        # Sources may call a recipe, a model or a task by different names.
        if len(different_values) > 1 and field not in ("recipe", "model", "task"):
            all_values = [f"{value} ({source})" for value, source in pairs]
            conflicts.append(f"{name}: {' but '.join(all_values)}")
    model_pairs = values_by_field.get("model", []) + values_by_field.get("recipe", [])
    models = [value for value, _ in model_pairs]
    return StatedRun(
        values={field: value for field, value in values.items() if field != "model"},
        found=tuple(found),
        conflicts=tuple(conflicts),
        models=(stated.model, *models) if stated.model else tuple(models),
        parallelism=_read_parallelism(facts, values),
    )


def _list_precision(
    quantization: RunFact | None, numbers: RunFact | None
) -> Iterator[tuple[str, str, str]]:
    """Yield ("dtype", value, source) if the log states one precision.

    `numbers` are the stated number formats, such as bfloat16. A quantization such as fp8
    takes precedence and gets the suffix of its recipe: fp8 with the recipe mxfp8 gives
    fp8_mx. Several quantizations, or several floating-point formats, give no value.
    """
    number_values = numbers.values if numbers else ()
    is_contradictory = quantization is not None and len(quantization.values) > 1
    if is_contradictory:
        return
    if quantization and quantization.last not in ("none", "not fp8"):
        suffixes = [_SUFFIXES[value] for value in number_values if value in _SUFFIXES]
        precision = "_".join((quantization.last, *suffixes[:1]))
        yield "dtype", precision, quantization.source
        return
    formats = {_PRECISIONS[value] for value in number_values if value in _PRECISIONS}
    if numbers and len(formats) == 1:
        yield "dtype", formats.pop(), numbers.source


def _list_log_values(facts: Mapping[str, RunFact]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, source) of a log's facts: sizes, precision, model names."""
    for field, names in STATED.items():
        fact = next((facts[str(name)] for name in names if str(name) in facts), None)
        if fact is not None:
            yield field, fact.last, fact.source
    yield from _list_precision(
        quantization=facts.get(str(StatedField.QUANTIZATION)),
        numbers=facts.get(str(StatedField.NUMBERS)),
    )
    models = facts.get(str(StatedField.MODEL))
    if models is None:
        return
    for value in (models.last, *reversed(models.values)):
        name = value.rstrip("/").rpartition("/")[2]
        # Optimizers and schedules have names as well: a name without a size is the
        # model's only if there is no other.
        is_only_name = len(models.values) == 1 and not _is_generic(name)
        if _SIZE.search(name.lower()) or is_only_name:
            yield "model", name, models.source


def _list_hint_values(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, source) of the run's metadata, folders and file names."""
    for hint in run.found.hints:
        yield hint.field, hint.value.casefold(), hint.source


def _list_stated_values(
    gpu: str, stated: StatedNames
) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, option) of the values that the user gave."""
    for field in ("size", "dtype", "gpus"):
        if value := getattr(stated, field):
            yield field, value, f"--{field}"
    if gpu:
        yield "gpu", gpu, "--llmb-gpu"


def _read_parallelism(
    facts: Mapping[str, RunFact], values: Mapping[str, str]
) -> Parallelism:
    """Return the parallel sizes: of the log, else of the metadata or names.

    A log states them as text (`tensor model parallel size: 8`) or as axes (`tp=8`).
    """
    texts = {name: values.get(name, "") for name in Parallelism.__struct_fields__}
    sizes = {
        name: int(text)
        for name, text in texts.items()
        if text.isdecimal() and len(text) < 8
    }
    layout = facts.get(str(StatedField.LAYOUT))
    text = "; ".join(layout.values) if layout else ""
    sizes |= {
        _PARALLELISM_FIELDS[name]: int(size)
        for name, size in _PARALLEL_SIZE.findall(text)
    }
    axes = {name: int(size) for name, size in _PARALLEL_AXIS.findall(text)}
    if axes:
        # The data-parallel size is that of the replicas times that of the shards.
        sizes["dp"] = axes.pop("dp_replicate", 1) * axes.pop("dp_shard", 1)
    return Parallelism(
        **{name: size for name, size in (sizes | axes).items() if size > 0}
    )


def name_model(described: StatedRun, path: str, dialect: str) -> tuple[str, str]:
    """Return (name, size) of a run's model, for use in a key: ("llama3", "70b").

    The name is from the run's values, else from the folders or the log in `path`, else
    the dialect. The size may be UNSIZED.
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
    """Return the folders and the log of a path pattern, without generic names.

    The innermost folder comes first, the log last.
    """
    *folders, log = path.split("/")
    names = (*reversed(folders), log.partition(".")[0])
    return [name for name in names if not _is_generic(name)]


def _is_generic(name: str) -> bool:
    """True for a name that cannot be that of a model, such as `logs` or `train_2`."""
    word = re.sub(r"[^a-z]+", "", name.lower())
    return len(word) < 2 or _GENERIC_WORDS.fullmatch(word) is not None


def _make_slug(text: str) -> str:
    """Return a text in the form of a recipe name or size; may be ""."""
    without_wildcards = _WILDCARDS.sub("_", text.lower())
    return re.sub(r"[^a-z0-9.+]+", "_", without_wildcards)[:60].strip("_.+-")
