"""Read the facts of an NVIDIA Megatron-Bridge run.

Sources are its names, the launcher's metadata, the submitted script and the
configuration written next to the log. None suffices alone, and none overrides another.
Names up to version 0.5 lack the GPU type, later names lack parallelism and batch size.
Metadata contain `fp8` for every FP8 recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Recipe
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.log_records import ParsedLog, StatedField
from pytest_llmbench.core.patterns import compile_on_use
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

# `pretrain_llama3_8b_`; the tokens of the name follow
_NAME = compile_on_use(
    rf"(?:^|[._-])(?:(?P<task>pretrain|sft|lora|peft)_)?(?P<model>{'|'.join(sorted(LAYERS, key=len, reverse=True))})_",
    re.IGNORECASE,
)
_DTYPE = compile_on_use(r"bf16|nvfp4|mxfp8|fp8(?:cs|mx|sc|ds)?", re.IGNORECASE)
_TASKS = {"pretrain": "pretrain", "sft": "sft", "lora": "lora", "peft": "lora"}
# tokens without a fact: `llm`, a job id, `gpus` of a truncated name, `tpNone`
_IGNORED_TOKEN = compile_on_use(r"llm|\d+|gpus|(?:tp|pp|cp|ep|etp)None", re.IGNORECASE)
TRUNCATED_LENGTHS = (33, 37)
"""Lengths to which DGX Cloud and Kubeflow truncate names: a final number is incomplete.
"""

# `nemo:25.11.01`, `nemo-v26.04.rc3`
_CONTAINER = compile_on_use(
    r"nemo[:+_.-]v?(\d\d\.\d\d(?:\.\d{1,2})?(?:[.-]?(?:rc|alpha|beta)\w*)?)(?!\d)"
)

READ_LIMIT = 1 << 20
"""Limit of bytes to read from a file next to a log; configurations have about 10 KB."""

CONFIGURATION = ("configs", "ConfigContainer.yaml")
SUBMITTED = "_sbatch.sh"

Read = Callable[[Path, int], bytes]
Scan = Callable[[Path], Sequence[FolderEntry]]
Pairs = Iterator[tuple[str, str]]


class Companions(Struct, frozen=True):
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
        if parent not in self._scripts:  # thousands of runs may be in one folder
            self._scripts[parent] = _find_only_script(parent, SUBMITTED, self._scan)
        submitted_path = self._scripts[parent]
        inner_path = _find_only_script(run.folder / "scripts", SCRIPT, self._scan)
        submitted_script = _read_text(submitted_path, self._read)
        inner_script = _read_text(inner_path, self._read)
        return Companions(
            script=f"{submitted_script}\n{inner_script}",
            configuration=_read_text(run.folder.joinpath(*CONFIGURATION), self._read),
        )


def _find_only_script(folder: Path, suffix: str, scan: Scan) -> Path | None:
    """Return the only file with that suffix in a folder.

    None if there are several, because the used one is unknown.
    """
    try:
        scripts = [entry.name for entry in scan(folder) if entry.name.endswith(suffix)]
    except OSError:
        return None
    return folder / scripts[0] if len(scripts) == 1 else None


def _read_text(path: Path | None, read: Read) -> str:
    """Read the start of a file, "" without a file or if the file is unreadable."""
    if path is None:
        return ""
    try:
        return read(path, READ_LIMIT).decode("utf-8", "replace")
    except (LogError, OSError):
        return ""


def find_model(recipe: str, size: str = "") -> str:
    """Return the table's model for a recipe and size in any spelling, or "".

    `Llama3.1` with `405B`, and `llama31-405b`, are `llama31_405b`.
    """
    for text in (recipe + size, recipe):
        letters = re.sub(r"[^a-z0-9]+", "", text.lower())
        if letters in _MODELS_BY_LETTERS:
            return _MODELS_BY_LETTERS[letters]
    return ""


def is_readable(logs: Sequence[ParsedLog]) -> bool:
    """True if Megatron-Bridge may have written all logs; logs without a dialect are
    ignored."""
    return all("megatron" in log.dialects for log in logs if log.dialect)


def names_model(run: RunFiles, companions: Companions) -> bool:
    """True if any source of a run names a model of the tables.

    The model is the field `size`: all rows of the tables have the same recipe.
    """
    hints = (*_read_names(run), *_read_metadata(run), *_read_script(companions.script))
    return any(hint.field == "size" for hint in hints)


def collect_hints(
    run: RunFiles,
    logs: Sequence[ParsedLog],
    companions: Companions,
    releases: Collection[str],
) -> tuple[Hint, ...]:
    """Return the hints from all sources of a run, in the vocabulary of the tables.

    `releases` are the releases of the tables.
    """
    script_hints = list(_read_script(companions.script))
    hints = [
        *_read_names(run),
        *_read_metadata(run),
        *(hint for hint in script_hints if hint.field != "fsdp"),
    ]
    gpu_counts = [hint.value for hint in hints if hint.field == "gpus"]
    hints += _read_configuration(companions.configuration, gpu_counts)
    stated_fields = {hint.field for hint in hints}
    # FSDP in a script, parent folders, and defaults in the log are used only for fields
    # that are missing otherwise.
    hints += [
        hint
        for hint in (*script_hints, *_read_fallbacks(run, logs))
        if hint.field not in stated_fields
    ]
    releases_from_tags = [
        Hint("release", name_release(hint.value, releases), hint.source)
        for hint in _read_containers(run, companions)
    ]
    # metadata contain the launcher's own release, not that of Megatron-Bridge
    releases_from_names = [
        hint for hint in run.hints if hint.field == "release" and run.metadata is None
    ]
    return (
        Hint("recipe", MEGATRON_BRIDGE, "its names"),
        *_reconcile(hints),
        *(releases_from_tags or releases_from_names),
    )


def _reconcile(hints: Sequence[Hint]) -> Iterator[Hint]:
    """Yield the hints without those that repeat or generalise other hints.

    A number of layers that equals the model's is dropped; another number becomes a
    model override. The metadata's task `finetune` is dropped if another source states
    the more specific sft or lora.
    """
    model = next((hint.value for hint in hints if hint.field == "size"), "")
    has_tuning_task = any(
        hint.field == "task" and hint.value in ("sft", "lora") for hint in hints
    )
    model_layers = LAYERS.get(model, 0)  # 0 if unknown
    for hint in hints:
        if hint.field == "layers":
            if model_layers and hint.value != str(model_layers):
                yield Hint("model_overrides", f"layers={hint.value}", hint.source)
        elif (
            hint.field == "task"
            and hint.value.startswith("finetun")
            and has_tuning_task
        ):
            continue
        else:
            yield hint


def name_release(tag: str, releases: Collection[str]) -> str:
    """Return the table's release for a container tag.

    `26.04.00` becomes `26.04`. Another patch release becomes its main release if the
    tables contain that release without patches. Other tags, such as `26.04.rc3`, are
    returned unchanged and match nothing.
    """
    name = tag.removesuffix(".00")
    if name in releases or not name.replace(".", "").isdecimal():
        return name
    main_release = ".".join(name.split(".")[:2])  # `26.04` of `26.04.01`
    has_patches = any(release.startswith(f"{main_release}.") for release in releases)
    if main_release in releases and not has_patches:
        return main_release
    return name


def _read_names(run: RunFiles) -> Iterator[Hint]:
    """Yield the hints in the innermost matching folder name and in the log's name."""
    log = run.attempts[0].log if run.attempts else None
    folder = log.parent if log else run.folder
    for name in reversed(folder.parts):
        pairs = read_name(name)
        if pairs:
            for field, value in pairs.items():
                yield Hint(field, value, f"folder {name}")
            break
    if log:
        stem = names.strip_suffix(names.strip_compression(log.name))
        for field, value in read_name(stem).items():
            yield Hint(field, value, f"file {log.name}")


def read_name(text: str) -> Mapping[str, str]:
    """Parse an experiment's name into values by field.

    Empty if the name contains no model, or neither a precision nor a number of GPUs.
    """
    match = _NAME.search(text)
    if match is None:
        return {}
    pairs = {"size": match["model"].lower()}
    if match["task"]:
        pairs["task"] = _TASKS[match["task"].lower()]
    tokens = text[match.end() :].split("_")
    is_truncated = len(text) in TRUNCATED_LENGTHS
    if is_truncated and tokens[-1].lower().startswith("gpus"):
        tokens.pop()  # `gpus51` may be `gpus512`
    variant_tokens = [
        token for token in _join_precision(tokens) if not _add_token(token, pairs)
    ]
    if not {"dtype", "gpus"} & pairs.keys():
        return {}
    if variant_tokens:
        pairs["variant"] = "_".join(variant_tokens)
    return pairs


def _join_precision(tokens: Sequence[str]) -> Iterator[str]:
    """Yield the tokens of a name, with `fp8` and `mx` joined."""
    fp8_token = ""  # the previous token if it is `fp8`, not yet yielded
    for token in tokens:
        if fp8_token and token.lower() in names.RECIPES:
            yield f"{fp8_token}_{token}"
            fp8_token = ""
            continue
        if fp8_token:
            yield fp8_token
            fp8_token = ""
        if token.lower() == "fp8":
            fp8_token = token
        else:
            yield token
    if fp8_token:
        yield fp8_token


def _add_token(token: str, pairs: dict[str, str]) -> bool:
    """Add a token's field to `pairs`, unless an earlier token stated the field.

    Returns False if the token is unknown.
    """
    lower_token = token.lower()
    if _IGNORED_TOKEN.fullmatch(token):
        return True
    if lower_token == "vpnone":  # in 116 row names, all without virtual stages
        pairs.setdefault("vp", "1")
    elif lower_token in _TASKS:
        pairs.setdefault("task", _TASKS[lower_token])
    elif _DTYPE.fullmatch(lower_token.replace("_", "")):
        pairs.setdefault("dtype", _name_dtype(lower_token))
    else:
        setting = names.read_setting(lower_token)
        if setting is None:
            return False
        field, value = setting
        pairs.setdefault(field, value)
    return True


def _name_dtype(text: str) -> str:
    """Return `fp8_mx` for `fp8mx` and `mxfp8`; other dtypes unchanged."""
    for recipe, spellings in names.RECIPES.items():
        if text in spellings:
            return f"fp8_{recipe}"
    return text


def _read_metadata(run: RunFiles) -> Iterator[Hint]:
    """Yield the hints in the llmb-config file, except the launcher's own release.

    Only of a run whose framework is Megatron-Bridge, according to that file.
    """
    if run.metadata is None:
        return
    is_bridge = any(
        name == "framework" and "bridge" in value for name, value in run.environment
    )
    if not is_bridge:
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


# `megatron-bridge 25.11.00`
_BRIDGE_VERSION = compile_on_use(r"(?=\S*bridge)\S+ (\d\d\.\d\d[\d.]*)")
# `--container-image nvcr.io#nvidia/nemo:25.11`
_IMAGE_ARGUMENT = compile_on_use(r"--container[-_]image[\"' =]+([^\s\"']+)")


def _read_containers(run: RunFiles, companions: Companions) -> Iterator[Hint]:
    """Yield the release tags of the containers in metadata and script."""
    if run.metadata:
        source = run.metadata.name
        for name, value in run.environment:
            if name == "container":
                for tag in _CONTAINER.findall(value):
                    yield Hint("release", tag, source)
            elif name == "framework":
                version = _BRIDGE_VERSION.fullmatch(value)
                if version:
                    yield Hint("release", version[1], source)
    for image in _IMAGE_ARGUMENT.findall(companions.script):
        for tag in _CONTAINER.findall(image):
            yield Hint("release", tag, "the submitted script")


_NUMBER = compile_on_use(r"[1-9]\d{0,8}")
_COUNT = compile_on_use(r"\d{1,9}|None|null")
_ARGUMENTS = (
    ("gpu", compile_on_use(names.GPU, re.IGNORECASE), ("gpu", "g")),
    (
        "dtype",
        compile_on_use(r"(?i:bf16|nvfp4|fp8(?:_(?:cs|mx|sc|ds))?)"),
        ("compute_dtype", "c"),
    ),
    ("task", compile_on_use("|".join(_TASKS)), ("task",)),
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
        compile_on_use(r"(?i:true|false)"),
        ("use_megatron_fsdp", "ddp.use_megatron_fsdp"),
    ),
)
"""Arguments of `setup_experiment.py`: field, pattern of its value, names.

A name with a dot is a setting of the configuration.
"""
# the field of each setting of the configuration
_FIELD_BY_SETTING = {
    name: field
    for field, _, argument_names in _ARGUMENTS
    for name in argument_names
    if "." in name
}
# Arguments with leading dashes, and configuration settings without: `--num_gpus 64`,
# `-ng=64`, `model.seq_length=8192`.
_STATED = compile_on_use(
    r"(?<!\S)[\"']?(?:-{1,2}|\+{0,2}(?=(?:model|train|ddp)\.\w+=))([\w.]+)[\"']?[ =]+[\"']?([\w.]+)"
)


def _read_arguments(stated: Mapping[str, str]) -> dict[str, str]:
    """Return the values of fields from arguments by name, without invalid values."""
    pairs: dict[str, str] = {}
    for field, value_pattern, argument_names in _ARGUMENTS:
        for name in argument_names:  # the last name takes precedence
            if name in stated and value_pattern.fullmatch(stated[name]):
                pairs[field] = stated[name].lower()
    return pairs


def _read_script(text: str) -> Iterator[Hint]:
    """Yield the hints in a submitted script: its arguments, and nodes x tasks as GPUs."""
    stated: dict[str, str] = dict(_STATED.findall(text))
    pairs = _read_arguments(stated)
    if not {"gpu", "dtype"} & pairs.keys():  # not a script of Megatron-Bridge
        return
    recipe_name = stated.get("model_recipe_name", stated.get("mr", ""))
    model_name = stated.get("model_name", stated.get("m", ""))
    model_size = stated.get("model_size", stated.get("s", ""))
    model = find_model(recipe_name) or find_model(model_name, model_size)
    if model:
        pairs["size"] = model
    if pairs.get("dtype") == "fp8" and "fp8_recipe" in stated:
        pairs["dtype"] = _name_dtype(f"fp8_{stated['fp8_recipe']}")
    if "task" in pairs:
        pairs["task"] = _TASKS[pairs["task"]]
    nodes = re.search(r"#SBATCH --nodes[= ](\d{1,7})", text)
    tasks_per_node = re.search(r"#SBATCH --ntasks-per-node[= ](\d{1,7})", text)
    if nodes and tasks_per_node and "gpus" not in pairs:
        pairs["gpus"] = str(int(nodes[1]) * int(tasks_per_node[1]))
    # `None` means no virtual stages, or no prediction layers
    for field, absent_value in (("vp", "1"), ("mtp", "0")):
        if pairs.get(field) in ("none", "null"):
            pairs[field] = absent_value
    if "fsdp" in pairs:  # in the tables, an FSDP group contains all GPUs
        pairs["fsdp"] = pairs.get("gpus", "0") if pairs["fsdp"] == "true" else "1"
    for field, value in pairs.items():
        yield Hint(field, value, "the submitted script")


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
    if "model.tensor_model_parallel_size" not in stated:  # missing or another file
        return
    pairs = {"vp": "1"}  # without virtual stages, the setting is `null`
    for name, field in _FIELD_BY_SETTING.items():
        if _NUMBER.fullmatch(stated.get(name, "")):
            pairs[field] = stated[name]
    pairs |= dict(_read_precision(stated))
    # fields that follow from several settings, or from the absence of one
    mtp_layers = stated.get("model.mtp_num_layers", "").lower()
    if mtp_layers:
        pairs["mtp"] = "0" if mtp_layers in _EMPTY else mtp_layers
    if stated.get("peft._target_") or stated.get("peft", "null").lower() not in _EMPTY:
        pairs["task"] = "lora"
    tp, pp, cp = (int(pairs.get(field, "1")) for field in ("tp", "pp", "cp"))
    data_parallel_size = stated.get("comm_overlap.data_parallel_size", "")
    if _NUMBER.fullmatch(data_parallel_size):
        pairs["gpus"] = str(int(data_parallel_size) * tp * pp * cp)
    fsdp = stated.get("ddp.use_megatron_fsdp", "").lower()
    if fsdp == "true":
        # the first known number of GPUs; the group contains all GPUs of a stage
        counts = [
            int(count)
            for count in (pairs.get("gpus", ""), *gpus)
            if _NUMBER.fullmatch(count)
        ]
        gpu_count = counts[0] if counts else 0
        pairs["fsdp"] = str(gpu_count // (tp * pp))
    elif fsdp:
        pairs["fsdp"] = "1"
    _, file_name = CONFIGURATION
    for field, value in pairs.items():
        yield Hint(field, value, file_name)


def _list_values(text: str) -> Pairs:
    """Yield `section.key` and value of the first two levels of a YAML text.

    The first level yields `section` and its value. Deeper levels and lists are skipped.
    """
    section = ""
    for line in text.splitlines():
        # `model:`, `  seq_length: 8192`
        match = re.match(r"( {0,2})([\w-]{1,80}):(?=\s|\Z)", line)
        if match is None:
            continue
        indent, key = match.groups()
        value = line[match.end() :].strip(" \t\"'")
        if not indent:
            section = key
            yield section, value
        elif len(indent) == 2:
            yield f"{section}.{key}", value


def _read_precision(stated: Mapping[str, str]) -> Pairs:
    """Yield the precision from an object, or from a word such as
    `bf16_with_mxfp8_mixed`."""
    word = stated.get("mixed_precision", "").lower()
    if word not in _EMPTY:
        dtype = _read_precision_word(word)
        if dtype:
            yield "dtype", dtype
    elif stated.get("mixed_precision.fp4", "").lower() not in _EMPTY:
        yield "dtype", "nvfp4"
    elif stated.get("mixed_precision.fp8", "").lower() not in _EMPTY:
        scaling = stated.get("mixed_precision.fp8_recipe", "").lower()
        yield "dtype", _SCALINGS.get(scaling, "fp8")
    elif stated.get("mixed_precision.bf16", "").lower() == "true":
        yield "dtype", "bf16"


def _read_precision_word(word: str) -> str:
    """Return the precision in a word such as `bf16_with_mxfp8_mixed`.

    "" if the word contains `fp8` without a known scaling.
    """
    dtype_by_fragment = {
        "nvfp4": "nvfp4",
        "mxfp8": "fp8_mx",
        "current_scaling": "fp8_cs",
        "subchannel": "fp8_sc",
    }
    for fragment, dtype in dtype_by_fragment.items():
        if fragment in word:
            return dtype
    if "fp8" in word:
        return ""
    first_token, *_ = word.split("_")  # `bf16_mixed`
    return first_token


# the fields of the parallelism that logs print, such as `tensor_model_parallel_size`
_LOGGED = {
    name.removeprefix("model."): field
    for name, field in _FIELD_BY_SETTING.items()
    if field in ("tp", "pp", "cp", "ep")
}


def _read_fallbacks(run: RunFiles, logs: Sequence[ParsedLog]) -> Iterator[Hint]:
    """Yield fallback hints: the GPU type in a parent folder, and the parallelism and
    micro-batch size in the log.

    If the log states a field several times, the last value counts.
    """
    yield from (hint for hint in run.hints if hint.field == "gpu")
    hint_by_field: dict[str, Hint] = {}
    segments = [segment for log in logs for segment in log.segments]
    for segment in segments:
        for statement in segment.stated:
            source = f"log line {statement.line}"
            if statement.field is StatedField.LAYOUT:
                # `tensor_model_parallel_size: 4`
                name, _, value = statement.value.partition(": ")
                if name in _LOGGED and value.isdecimal():
                    field = _LOGGED[name]
                    hint_by_field[field] = Hint(field, value, source)
            elif statement.field is StatedField.MICRO_BATCH:
                value = statement.value
                if value.isdecimal():
                    field = "micro_batch_size"
                    hint_by_field[field] = Hint(field, value, source)
    yield from hint_by_field.values()
