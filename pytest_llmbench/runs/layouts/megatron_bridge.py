"""Read the facts of an NVIDIA Megatron-Bridge run.

Sources are its names, the launcher's metadata, the submitted script and the
configuration written next to the log. None suffices alone, and none overrides another.
Names up to version 0.5 lack the GPU type, later names lack parallelism and batch size.
Metadata contain `fp8` for every FP8 recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Recipe
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.log_records import ParsedLog, StatedField
from pytest_llmbench.core.run_records import Hint, RunFiles
from pytest_llmbench.logs.sources.archive import SCRIPT
from pytest_llmbench.logs.sources.listing import FolderEntry
from pytest_llmbench.runs.discover import names

LAYERS = {
    "llama3_8b": 32,
    "llama3_70b": 80,
    "llama31_405b": 126,
    "deepseek_v3": 61,
    "deepseek_v4_flash": 0,  # unknown
    "gpt_oss_120b": 36,
    "kimi_k2": 61,
    "qwen3_30b_a3b": 48,
    "qwen3_235b_a22b": 94,
    "nemotron_3_nano": 52,
    "nemotron_3_super": 88,
    "nemotron_3_ultra": 0,
    "nemotron_3_5_lightning": 0,
}
"""The models of the tables by Megatron-Bridge's names, with their number of layers.

A run with fewer layers is a proxy.
"""

ALIASES = {
    "llama3170b": "llama3_70b",  # llmb-run calls both Llama 3.1
    "llama318b": "llama3_8b",
    "qwen330b": "qwen3_30b_a3b",
    "qwen3235b": "qwen3_235b_a22b",
    "nemotron330b": "nemotron_3_nano",
    "nemotron3120b": "nemotron_3_super",
    "deepseekv3671b": "deepseek_v3",
    "kimik21t": "kimi_k2",
}
_MODELS_BY_LETTERS = {name.replace("_", ""): name for name in LAYERS} | ALIASES

_NAME = re.compile(
    rf"(?:^|[._-])(?:(?P<task>pretrain|sft|lora|peft)_)?(?P<model>{'|'.join(sorted(LAYERS, key=len, reverse=True))})_",
    re.IGNORECASE,
)
_DTYPE = re.compile(r"bf16|nvfp4|mxfp8|fp8(?:cs|mx|sc|ds)?", re.IGNORECASE)
_TASKS = {"pretrain": "pretrain", "sft": "sft", "lora": "lora", "peft": "lora"}
_IGNORED_TOKEN = re.compile(r"llm|\d+|gpus|(?:tp|pp|cp|ep|etp)None", re.IGNORECASE)
TRUNCATED_LENGTHS = (33, 37)
"""Lengths to which DGX Cloud and Kubeflow truncate names: a final number is incomplete.
"""

_CONTAINER = re.compile(
    r"nemo[:+_.-]v?(\d\d\.\d\d(?:\.\d{1,2})?(?:[.-]?(?:rc|alpha|beta)\w*)?)(?!\d)"
)

READ_LIMIT = 1 << 20
"""Limit of bytes to read from a file next to a log; configurations have about 10 KB."""

CONFIGURATION = ("configs", "ConfigContainer.yaml")
SUBMITTED = "_sbatch.sh"

Read = Callable[[Path, int], bytes]
Scan = Callable[[Path], Sequence[FolderEntry]]
Pairs = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Companions:
    """The contents of the files next to a log, "" for missing files."""

    script: str = ""
    configuration: str = ""


class Tables:
    """The tables of Megatron-Bridge, and the files next to a run's log, read on demand."""

    def __init__(
        self, load: Callable[[], tuple[Recipe, ...]], read: Read, scan: Scan
    ) -> None:
        """`load` reads the tables, `read` a file, and `scan` a folder."""
        self._load, self._read, self._scan = load, read, scan
        self._scripts: dict[Path, Path | None] = {}
        self.recipes: tuple[Recipe, ...] = ()
        """The tables, empty until `read_recipes` is called."""

    def read_recipes(self) -> tuple[Recipe, ...]:
        """Return the tables, read once."""
        self.recipes = self.recipes or self._load()
        return self.recipes

    def read_companions(self, run: RunFiles) -> Companions:
        """Read the submitted script, the script that it runs, and the configuration of
        a run.

        The submitted script is in the parent folder, the others are in subfolders.
        Empty for a remote run: the requests for its files would mostly fail.
        """
        if is_remote(run.folder):
            return Companions()
        parent = run.folder.parent
        if parent not in self._scripts:  # thousands of runs may lie in one folder
            self._scripts[parent] = _find_only_script(parent, SUBMITTED, self._scan)
        paths = [
            self._scripts[parent],
            _find_only_script(run.folder / "scripts", SCRIPT, self._scan),
        ]
        texts = (
            _read_text(path, self._read) if path else ""
            for path in (*paths, run.folder.joinpath(*CONFIGURATION))
        )
        return Companions(f"{next(texts)}\n{next(texts)}", next(texts))


def _find_only_script(folder: Path, ending: str, scan: Scan) -> Path | None:
    """Return the script of a launch, None if there are several: the used one is
    unknown."""
    try:
        scripts = [entry.name for entry in scan(folder) if entry.name.endswith(ending)]
    except OSError:
        return None
    return folder / scripts[0] if len(scripts) == 1 else None


def _read_text(path: Path, read: Read) -> str:
    try:
        return read(path, READ_LIMIT).decode("utf-8", "replace")
    except (LogError, OSError):
        return ""


def find_model(recipe: str, size: str = "") -> str:
    """Return the table's model for a recipe and size in any spelling, or ""."""
    for text in (recipe + size, recipe):
        if name := _MODELS_BY_LETTERS.get(re.sub(r"[^a-z0-9]+", "", text.lower())):
            return name
    return ""


def is_readable(logs: Sequence[ParsedLog]) -> bool:
    """True if Megatron-Bridge may have written all logs; logs without a dialect are
    ignored."""
    return all("megatron" in log.dialects for log in logs if log.dialect)


def names_model(run: RunFiles, companions: Companions) -> bool:
    """True if any source of a run names a model of the tables."""
    hints = (*_read_names(run), *_read_metadata(run), *_read_script(companions.script))
    return any(hint.field == "size" for hint in hints)


def collect_hints(
    run: RunFiles,
    logs: Sequence[ParsedLog],
    companions: Companions,
    releases: Collection[str],
) -> tuple[Hint, ...]:
    """Return the hints from all sources of a run, in the vocabulary of the tables."""
    script = list(_read_script(companions.script))
    hints = [
        *_read_names(run),
        *_read_metadata(run),
        *(hint for hint in script if hint.field != "fsdp"),
    ]
    hints += _read_configuration(
        companions.configuration, [hint.value for hint in hints if hint.field == "gpus"]
    )
    stated_fields = {hint.field for hint in hints}
    # Parallelism in a script, parent folders, and defaults in the log are used only for
    # fields that are missing otherwise.
    hints += [
        hint
        for hint in (*script, *_read_fallbacks(run, logs))
        if hint.field not in stated_fields
    ]
    tags = _read_containers(run, companions)
    releases_from_tags = [
        Hint("release", name_release(hint.value, releases), hint.source)
        for hint in tags
    ]
    releases_from_names = [
        hint for hint in run.hints if hint.field == "release" and run.metadata is None
    ]
    return (
        Hint("recipe", MEGATRON_BRIDGE, "its names"),
        *_reconcile(hints),
        *(releases_from_tags or releases_from_names),
    )


def _reconcile(hints: Sequence[Hint]) -> Iterator[Hint]:
    """Drop hints on layers that equal the model's; others become model overrides.

    Also drops the metadata's task `finetune` if names contain the more specific sft or
    lora.
    """
    model = next((hint.value for hint in hints if hint.field == "size"), "")
    has_tuning_task = any(
        hint.field == "task" and hint.value in ("sft", "lora") for hint in hints
    )
    for hint in hints:
        if hint.field != "layers" and not (
            has_tuning_task
            and hint.field == "task"
            and hint.value.startswith("finetun")
        ):
            yield hint
        elif (
            hint.field == "layers"
            and LAYERS.get(model)
            and hint.value != str(LAYERS[model])
        ):
            yield Hint("model_overrides", f"layers={hint.value}", hint.source)


def name_release(tag: str, releases: Collection[str]) -> str:
    """Return the table's release for a container tag.

    `26.04.00` becomes `26.04`. Another patch release becomes its main release if the
    tables contain that release without patches. Other tags, such as `26.04.rc3`, are
    returned unchanged and match nothing.
    """
    text = tag.removesuffix(".00")
    major = ".".join(text.split(".")[:2])
    is_distinct = not text.replace(".", "").isdecimal() or any(
        release.startswith(f"{major}.") for release in releases
    )
    return text if text in releases or major not in releases or is_distinct else major


def _read_names(run: RunFiles) -> Iterator[Hint]:
    """Yield the hints in the innermost matching folder name and in the log's name."""
    parts = run.attempts[0].log.parts if run.attempts else (*run.folder.parts, "")
    folders = ((f"folder {name}", read_name(name)) for name in reversed(parts[:-1]))
    log = names.strip_suffix(names.strip_compression(parts[-1]))
    parsed = [
        next((pair for pair in folders if pair[1]), ("", {})),
        (f"file {parts[-1]}", read_name(log)),
    ]
    for source, pairs in parsed:
        yield from (Hint(field, value, source) for field, value in pairs.items())


def read_name(text: str) -> Mapping[str, str]:
    """Parse an experiment's name; empty if it has no model, or nothing but a model."""
    match = _NAME.search(text)
    if match is None:
        return {}
    pairs = {"size": match["model"].lower()}
    if match["task"]:
        pairs["task"] = _TASKS[match["task"].lower()]
    tokens = text[match.end() :].split("_")
    if len(text) in TRUNCATED_LENGTHS and tokens[-1].lower().startswith("gpus"):
        tokens.pop()
    variant_tokens = [
        token for token in _join_precision(tokens) if not _add_token(token, pairs)
    ]
    if not {"dtype", "gpus"} & pairs.keys():
        return {}
    return pairs | ({"variant": "_".join(variant_tokens)} if variant_tokens else {})


def _join_precision(tokens: Sequence[str]) -> Iterator[str]:
    """Yield the tokens of a name, with `fp8` and `mx` joined."""
    pending = ""
    for token in tokens:
        if pending and token.lower() in names.RECIPES:
            yield f"{pending}_{token}"
            pending = ""
            continue
        yield from filter(None, [pending])
        pending = token if token.lower() == "fp8" else ""
        if not pending:
            yield token
    yield from filter(None, [pending])


def _add_token(token: str, pairs: dict[str, str]) -> bool:
    """Add a token's field to `pairs`. Returns False if the token is unknown."""
    lower = token.lower()
    if _IGNORED_TOKEN.fullmatch(token):
        return True
    if lower == "vpnone":  # in 116 row names, all without virtual stages
        pairs.setdefault("vp", "1")
    elif lower in _TASKS:
        pairs.setdefault("task", _TASKS[lower])
    elif _DTYPE.fullmatch(lower.replace("_", "")):
        pairs.setdefault("dtype", _name_dtype(lower))
    elif setting := names.read_setting(lower):
        pairs.setdefault(*setting)
    else:
        return False
    return True


def _name_dtype(text: str) -> str:
    """Return `fp8_mx` for `fp8mx` and `mxfp8`; other dtypes unchanged."""
    return next(
        (
            f"fp8_{recipe}"
            for recipe, spelled in names.RECIPES.items()
            if text in spelled
        ),
        text,
    )


def _read_metadata(run: RunFiles) -> Iterator[Hint]:
    """Yield the hints in the llmb-config file, except the launcher's own release."""
    if run.metadata is None or not any(
        name == "framework" and "bridge" in text for name, text in run.environment
    ):
        return
    file_hints = [hint for hint in run.hints if hint.source == run.metadata.name]
    values = {hint.field: hint.value for hint in file_hints}
    model = find_model(values.get("recipe", ""), values.get("size", ""))
    if model:
        yield Hint("size", model, run.metadata.name)
    for hint in file_hints:
        if hint.field == "dtype":
            yield Hint("dtype", _name_dtype(hint.value.lower()), hint.source)
        elif hint.field == "task":
            yield Hint("task", _TASKS.get(hint.value.lower(), hint.value), hint.source)
        elif hint.field not in ("recipe", "size", "release"):
            yield hint


def _read_containers(run: RunFiles, companions: Companions) -> Iterator[Hint]:
    """Yield the release tags of the containers in metadata and script."""
    source = run.metadata.name if run.metadata else ""
    for name, text in run.environment if run.metadata else ():
        if name == "container":
            yield from (
                Hint("release", tag, source) for tag in _CONTAINER.findall(text)
            )
        elif name == "framework" and (
            version := re.fullmatch(r"(?=\S*bridge)\S+ (\d\d\.\d\d[\d.]*)", text)
        ):
            yield Hint("release", version[1], source)
    images = re.findall(r"--container[-_]image[\"' =]+([^\s\"']+)", companions.script)
    yield from (
        Hint("release", tag, "the submitted script")
        for image in images
        for tag in _CONTAINER.findall(image)
    )


_NUMBER = re.compile(r"[1-9]\d{0,8}")
_COUNT = re.compile(r"\d{1,9}|None|null")
_ARGUMENTS = (
    ("gpu", re.compile(names.GPU, re.IGNORECASE), ("gpu", "g")),
    (
        "dtype",
        re.compile(r"(?i:bf16|nvfp4|fp8(?:_(?:cs|mx|sc|ds))?)"),
        ("compute_dtype", "c"),
    ),
    ("task", re.compile("|".join(_TASKS)), ("task",)),
    ("gpus", _NUMBER, ("num_gpus", "ng")),
    (
        "global_batch_size",
        _NUMBER,
        ("global_batch_size", "gb", "train.global_batch_size"),
    ),
    ("micro_batch_size", _NUMBER, ("micro_batch_size", "mb", "train.micro_batch_size")),
    ("sequence_length", _NUMBER, ("seq_length", "sl", "model.seq_length")),
    ("layers", _NUMBER, ("num_layers", "model.num_layers")),
    (
        "tp",
        _NUMBER,
        ("tensor_model_parallel_size", "tp", "model.tensor_model_parallel_size"),
    ),
    (
        "pp",
        _NUMBER,
        ("pipeline_model_parallel_size", "pp", "model.pipeline_model_parallel_size"),
    ),
    ("cp", _NUMBER, ("context_parallel_size", "cp", "model.context_parallel_size")),
    (
        "vp",
        _COUNT,
        (
            "virtual_pipeline_model_parallel_size",
            "vp",
            "model.virtual_pipeline_model_parallel_size",
        ),
    ),
    ("mtp", _COUNT, ("model.mtp_num_layers",)),
    (
        "ep",
        _NUMBER,
        ("expert_model_parallel_size", "ep", "model.expert_model_parallel_size"),
    ),
    (
        "fsdp",
        re.compile(r"(?i:true|false)"),
        ("use_megatron_fsdp", "ddp.use_megatron_fsdp"),
    ),
)
"""Arguments of `setup_experiment.py`: field, pattern of its value, names.

A name with a dot is a setting of the configuration.
"""
_SIZES = {
    name: field
    for field, _, arguments in _ARGUMENTS
    for name in arguments
    if "." in name
}
# Arguments with leading dashes, and configuration settings without.
_STATED = re.compile(
    r"(?<!\S)[\"']?(?:-{1,2}|\+{0,2}(?=(?:model|train|ddp)\.\w+=))([\w.]+)[\"']?[ =]+[\"']?([\w.]+)"
)


def _read_script(text: str) -> Iterator[Hint]:
    """Yield the hints in a submitted script: its arguments, and nodes x tasks as GPUs."""
    stated: dict[str, str] = dict(_STATED.findall(text))
    pairs = {
        field: stated[name].lower()
        for field, value, arguments in _ARGUMENTS
        for name in arguments
        if name in stated and value.fullmatch(stated[name])
    }
    if not {"gpu", "dtype"} & pairs.keys():
        return
    recipe, name, size = (
        stated.get(long, stated.get(short, ""))
        for long, short in (
            ("model_recipe_name", "mr"),
            ("model_name", "m"),
            ("model_size", "s"),
        )
    )
    model = find_model(recipe) or find_model(name, size)
    pairs |= {"size": model} if model else {}
    if pairs.get("dtype") == "fp8" and "fp8_recipe" in stated:
        pairs["dtype"] = _name_dtype(f"fp8_{stated['fp8_recipe']}")
    if "task" in pairs:
        pairs["task"] = _TASKS[pairs["task"]]
    nodes, tasks = (
        re.search(rf"#SBATCH --{name}[= ](\d{{1,7}})", text)
        for name in ("nodes", "ntasks-per-node")
    )
    if nodes and tasks and "gpus" not in pairs:
        pairs["gpus"] = str(int(nodes[1]) * int(tasks[1]))
    pairs |= {
        name: size
        for name, size in (("vp", "1"), ("mtp", "0"))
        if pairs.get(name) in ("none", "null")
    }
    if "fsdp" in pairs:  # in the tables, an FSDP group contains all GPUs
        pairs["fsdp"] = pairs.get("gpus", "0") if pairs["fsdp"] == "true" else "1"
    yield from (
        Hint(field, value, "the submitted script") for field, value in pairs.items()
    )


_SCALINGS = {
    "tensorwise": "fp8_cs",
    "mxfp8": "fp8_mx",
    "blockwise": "fp8_sc",
    "delayed": "fp8_ds",
}
_EMPTY = ("", "null", "none", "false", "~")


def _read_configuration(text: str, gpus: Sequence[str]) -> Iterator[Hint]:
    """Yield the hints in ConfigContainer.yaml.

    `gpus` are the GPU counts from other sources, used for the size of the FSDP group.
    """
    stated = dict(_list_values(text))
    if "model.tensor_model_parallel_size" not in stated:
        return
    sizes = {
        field: stated[name]
        for name, field in _SIZES.items()
        if _NUMBER.fullmatch(stated.get(name, ""))
    }
    pairs = {"vp": "1", **sizes, **dict(_read_precision(stated))}
    if mtp := stated.get("model.mtp_num_layers", "").lower():
        pairs["mtp"] = "0" if mtp in _EMPTY else mtp
    if stated.get("peft._target_") or stated.get("peft", "null").lower() not in _EMPTY:
        pairs["task"] = "lora"
    ranks = stated.get("comm_overlap.data_parallel_size", "")
    groups = [int(pairs.get(name, "1")) for name in ("tp", "pp", "cp")]
    if _NUMBER.fullmatch(ranks):
        pairs["gpus"] = str(int(ranks) * groups[0] * groups[1] * groups[2])
    if fsdp := stated.get("ddp.use_megatron_fsdp", "").lower():
        count = next(
            (
                value
                for value in (pairs.get("gpus", ""), *gpus)
                if _NUMBER.fullmatch(value)
            ),
            "0",
        )
        pairs["fsdp"] = (
            str(int(count) // (groups[0] * groups[1])) if fsdp == "true" else "1"
        )
    yield from (Hint(field, value, CONFIGURATION[-1]) for field, value in pairs.items())


def _list_values(text: str) -> Pairs:
    """Yield `section.key` and value of the first two levels of a YAML text.

    Deeper levels and lists are skipped.
    """
    section = ""
    for line in text.splitlines():
        match = re.match(r"( {0,2})([\w-]{1,80}):(?=\s|\Z)", line)
        if match is None or len(match[1]) == 1:
            continue
        value = line[match.end() :].strip(" \t\"'")
        if not match[1]:
            section = match[2]
            yield section, value
        else:
            yield f"{section}.{match[2]}", value


def _read_precision(stated: Mapping[str, str]) -> Pairs:
    """Yield the precision from an object, or from a word such as
    `bf16_with_mxfp8_mixed`."""
    word = stated.get("mixed_precision", "").lower()
    words = (
        ("nvfp4", "nvfp4"),
        ("mxfp8", "fp8_mx"),
        ("current_scaling", "fp8_cs"),
        ("subchannel", "fp8_sc"),
    )
    if word not in _EMPTY:
        dtype_of_word = next(
            (dtype for fragment, dtype in words if fragment in word),
            "" if "fp8" in word else word.split("_")[0],
        )
        yield from [("dtype", dtype_of_word)] if dtype_of_word else []
    elif stated.get("mixed_precision.fp4", "").lower() not in _EMPTY:
        yield "dtype", "nvfp4"
    elif stated.get("mixed_precision.fp8", "").lower() not in _EMPTY:
        yield (
            "dtype",
            _SCALINGS.get(stated.get("mixed_precision.fp8_recipe", "").lower(), "fp8"),
        )
    elif stated.get("mixed_precision.bf16", "").lower() == "true":
        yield "dtype", "bf16"


_LOGGED = {
    name.removeprefix("model."): field
    for name, field in _SIZES.items()
    if field in ("tp", "pp", "cp", "ep")
}


def _read_fallbacks(run: RunFiles, logs: Sequence[ParsedLog]) -> Iterator[Hint]:
    """Yield fallback hints: the GPU type in a parent folder, and the layout in the log."""
    yield from (hint for hint in run.hints if hint.field == "gpu")
    stated: dict[str, Hint] = {}
    for statement in (
        logged for log in logs for segment in log.segments for logged in segment.stated
    ):
        name, _, value = statement.value.partition(": ")
        if (
            statement.field is StatedField.LAYOUT
            and name in _LOGGED
            and value.isdecimal()
        ):
            stated[_LOGGED[name]] = Hint(
                _LOGGED[name], value, f"log line {statement.line}"
            )
        elif statement.field is StatedField.MICRO_BATCH and statement.value.isdecimal():
            stated["mbs"] = Hint(
                "micro_batch_size", statement.value, f"log line {statement.line}"
            )
    yield from stated.values()
