"""Read `llmb-config_<job>.yaml`, the launcher's record of a job.

The file is not trusted, and never fatal. All values are kept as text (`25.10` is a
release, not a number); a repeated key or an alias is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import Hint
from pytest_llmbench.logs.sources.stores import Stores

if TYPE_CHECKING:
    from yaml.events import Event

    from pytest_llmbench.core.job_records import Pairs

    NextEvent = Callable[[], Event]

SIZE_LIMIT = 256 * 1024
DEPTH_LIMIT = 20
# Limit of characters of an environment value.
LONGEST = 200
# Limit of characters of other values, which appear in ids and messages.
LONGEST_VALUE = 1000
# `llmb-config_1234.yaml`: job 1234
FILE_NAME = compile_on_use(r"llmb-config_(.+)\.ya?ml", re.IGNORECASE)

# section and key of each field
_TEXT_FIELDS = {
    "recipe": ("model_info", "model_name"),
    "size": ("model_info", "model_size"),
    "dtype": ("model_info", "dtype"),
    "gpus": ("model_info", "scale"),
    "gpu": ("model_info", "gpu_type"),
    "release": ("workload_info", "gsw_version"),
    "gpus_per_node": ("cluster_info", "gpus_per_node"),
}
_NUMBERS = ("gpus", "gpus_per_node")
_SECTIONS = (
    "job_info",
    "workload_info",
    "model_info",
    "cluster_info",
    "container_info",
    "job_config",
)
# `version`, `fw_version`, `nemo_commit`
_VERSION = compile_on_use(r"(?:.*_)?(?:version|commit)")
_EXCLUDING_VARIABLES = {
    "ENABLE_PROFILE": Reason.PROFILED,
    "ENABLE_NCCLTRACE": Reason.TRACED,
    "ENABLE_NCCL_TRACE": Reason.TRACED,
    "LOAD_CHECKPOINT_PATH": Reason.CHECKPOINT_LOAD,
}
_PATHS = ("LOAD_CHECKPOINT_PATH",)  # their values are paths, not flags
_SAVES = "ENABLE_CHECKPOINT"
_YES, _NO = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")
_EMPTY = ("", "null", "none", "~")

# A value that YAML takes as it is printed, a quoted value, or an empty collection.
_SCALAR = r"([\w./][\w./#+@=,%~:-]*(?<!:)|'[ -&(-~]*'|\{\}|\[\])"
# `key: value`, `key:` or `- value`, as launchers write them.
_SIMPLE_LINE = compile_on_use(
    rf"^( *)(?:([A-Za-z_]\w{{0,99}}):(?: {_SCALAR})?|- {_SCALAR})$",
    re.ASCII | re.MULTILINE,
)

Tree = Mapping[str, object]
_Block = tuple[int, dict[str, object] | list[object]]
"""The indent of the lines of a mapping or list, and its contents."""


class Metadata(Struct, frozen=True):
    """The contents of a job's metadata file."""

    job: str
    hints: tuple[Hint, ...]
    started: datetime | None = None
    zoned: bool = False  # True if the launch time has a zone
    excluded: Reason | None = None
    excluded_because: str = ""
    problems: tuple[str, ...] = ()  # unusable values with reasons
    # "key=value" of versions and container images, except the release, which is a hint
    build: tuple[str, ...] = ()
    launcher: str = ""  # the launcher's name in the file
    saves: str = ""  # the setting that requested to save a checkpoint, or ""
    # container, versions and commits, by the names used in reports
    environment: Pairs = ()


NO_METADATA = Metadata("", ())


def read_metadata(
    path: Path, read: Callable[[Path, int], bytes] | None = None
) -> Metadata:
    """Read a metadata file. Raises LogError if the file cannot be used.

    `read` returns up to the given number of first bytes of a file; by default it reads
    a local file.
    """
    data = (read or Stores().read_small)(path, SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise LogError(
            f"larger than {SIZE_LIMIT // 1024} KiB: not a launcher's record of a job"
        )
    name_match = FILE_NAME.fullmatch(path.name)
    return interpret(parse(data), path.name, name_match[1] if name_match else "")


def parse(data: bytes) -> Tree:
    """Parse a YAML mapping with all values as text. Raises LogError for anything else."""
    tree = parse_simple_blocks(data)
    return parse_yaml(data) if tree is None else tree


def parse_yaml(data: bytes) -> Tree:
    """Parse any YAML mapping, like `parse`, which first tries the simple notation."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # Read events instead of nodes: composing deeply nested YAML with the C loader
    # crashes the interpreter.
    try:
        next_event = loader(data).get_event
        node_events = (
            event
            for event in iter(next_event, None)
            if isinstance(event, yaml.NodeEvent)
        )
        first_event = next(node_events, None)
        # reads the events of the whole first document
        tree = _build_node(first_event, next_event, 0) if first_event else None
        next_document = next(node_events, None)
    except yaml.YAMLError as error:
        raise LogError(f"not valid YAML: {' '.join(str(error).split())}") from error
    if first_event is None:
        raise LogError("empty")
    if next_document is not None or not isinstance(tree, dict):
        raise LogError("expected one YAML document with sections such as `model_info:`")
    return tree


def parse_simple_blocks(data: bytes) -> Tree | None:
    """Parse a mapping of simple lines, several times faster than YAML's parser.

    Returns the same tree as `parse_yaml`, or None if a line has another notation.
    """
    if not data.isascii():
        return None
    text = data.decode("ascii").removesuffix("\n")
    lines = _SIMPLE_LINE.findall(text)
    if len(lines) != text.count("\n") + 1:
        return None
    root: dict[str, object] = {}
    blocks: list[_Block] = [(0, root)]
    # the previous line, if it has no value: its indent, mapping and key
    last: tuple[int, dict[str, object], str] | None = None
    for blanks, key, value, item in lines:
        indent = len(blanks)
        # the items of a list need no deeper indent than its key
        if last and (indent > last[0] or (item and indent == last[0])):
            new_block: dict[str, object] | list[object] = [] if item else {}
            _, parent, parent_key = last
            parent[parent_key] = new_block
            blocks.append((indent, new_block))
        block = _close_blocks(blocks, indent, list if item else dict)
        last = None
        if isinstance(block, list):
            block.append(_read_simple_value(item))
        elif block is not None and key not in block:
            block[key] = _read_simple_value(value)
            last = None if value else (indent, block, key)
        else:
            return None
    return root


def _close_blocks(
    blocks: list[_Block], indent: int, kind: type
) -> dict[str, object] | list[object] | None:
    """Close the blocks that end above a line; return the line's block.

    `blocks` are the open blocks, outermost first; `indent` and `kind` are those of the
    line's block. Returns None if there is no such block, or if too many are open.
    """
    while blocks and len(blocks) < DEPTH_LIMIT:
        block_indent, block = blocks[-1]
        if block_indent == indent and isinstance(block, kind):
            return block
        if block_indent < indent:
            return None
        blocks.pop()
    return None


def _read_simple_value(text: str) -> object:
    """Return the value of a simple line: a text, or an empty mapping or list."""
    if text == "{}":
        return {}
    if text == "[]":
        return []
    return text.strip("'")


def interpret(tree: Tree, name: str, job: str) -> Metadata:
    """Convert the sections of a metadata file to hints, evidence and a start time.

    `name` is the file's name and `job` the job id in it. Raises LogError if the file
    contains another id.
    """
    problems = [
        f"{key} is not a section" for key in _SECTIONS if not _is_section(tree, key)
    ]
    job_in_file = _read_text(tree, "job_info", "job_id", problems)
    if job and job_in_file not in ("", job):
        raise LogError(f"is named for job {job}, but contains job_id {job_in_file!r}")
    pairs = [*_read_fields(tree, problems), *_read_modes(tree, problems)]
    hints = tuple(Hint(field, value, name) for field, value in pairs)
    launched = _read_text(tree, "job_info", "launch_time", problems)
    started = _read_timestamp(launched)
    if launched and started is None:
        problems.append(
            f"job_info.launch_time is {launched!r}, which is not a date and time"
        )
    excluded, excluded_because = None, ""
    exclusions = list(_find_exclusions(tree, problems))
    if exclusions:
        excluded, setting = exclusions[0]  # the first of several
        excluded_because = f"{name}: {setting}"
    build = (
        *_list_versions(tree, problems),
        *_flatten("container", _get_section(tree, "container_info")),
    )
    return Metadata(
        job or job_in_file,
        hints,
        started=started,
        zoned=_is_zoned(launched),
        excluded=excluded,
        excluded_because=excluded_because,
        problems=tuple(problems),
        build=build,
        launcher=_read_text(tree, "job_info", "launcher_type", problems=[]),
        saves=f"{name}: {_SAVES}=true" if _is_saving(tree) else "",
        environment=_read_environment(tree),
    )


# The functions that read values add a message to `problems` for each unusable value.


def _read_fields(tree: Tree, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of `_TEXT_FIELDS` with their values, and the task unless it is
    pretraining."""
    for field, (section, key) in _TEXT_FIELDS.items():
        value = _read_text(tree, section, key, problems)
        if field in _NUMBERS and value and not value.isdecimal():
            problems.append(f"{section}.{key} is {value!r}, not a number")
        elif value:
            yield field, value
    task = _read_text(tree, "workload_info", "workload_type", problems)
    if task and not task.lower().startswith("pretrain"):
        yield "task", task


def _list_versions(tree: Tree, problems: list[str]) -> Iterator[str]:
    """Yield the versions and commits, except the release, which is a hint."""
    for key in _get_section(tree, "workload_info"):
        if key == "gsw_version" or not _VERSION.fullmatch(key):
            continue
        value = _read_text(tree, "workload_info", key, problems)
        if value:
            yield f"{key}={value}"


def _read_environment(tree: Tree) -> Pairs:
    """Return the container, framework, recipe, versions and commits, if printable.

    Records no problems: other functions record the problems of the same values.
    """
    versions = dict(entry.split("=", 1) for entry in _list_versions(tree, problems=[]))
    framework = _read_text(tree, "workload_info", "framework", problems=[])
    framework_version = versions.pop("fw_version", "")
    images = _get_section(tree, "container_info").get("images", [])
    image_list = images if isinstance(images, list) else [images]
    image_names = [image.strip() for image in image_list if isinstance(image, str)]
    environment: dict[str, str] = {}
    for name, version in versions.items():
        # `version` and `commit` alone are the workload's
        environment[name if "_" in name else f"workload_{name}"] = version
    environment["container"] = ", ".join(
        image for image in image_names if image.lower() not in _EMPTY
    )
    if framework_version:
        environment["framework"] = " ".join(
            filter(None, (framework, framework_version))
        )
    environment["recipe"] = _read_text(
        tree, "workload_info", "gsw_version", problems=[]
    )
    printable = [
        (name, value)
        for name, value in environment.items()
        if _is_printable(name) and _is_printable(value)
    ]
    return tuple(sorted(printable))


def _is_printable(text: str) -> bool:
    """True if a text is not empty, not too long, and printable."""
    return 0 < len(text) <= LONGEST and text.isprintable()


def _flatten(name: str, value: object) -> Iterator[str]:
    """Yield every nested text as "key=value", such as `container.images=nemo:25.02`.

    The entries of a list have the key of the list. A mapping in a list is one entry, as
    JSON.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for entry in value:
            is_text = isinstance(entry, str)
            text = entry if is_text else json.dumps(entry, sort_keys=True)
            yield from _flatten(name, text)
    elif isinstance(value, str) and value.strip().lower() not in _EMPTY:
        yield f"{name}={value.strip()}"


def _read_modes(tree: Tree, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the proxy and scaling modes, if stated, and any overrides of the model."""
    proxy = _read_flag(tree, "proxy", problems)
    strong = _read_flag(tree, "strong_scaling", problems)
    if proxy is not None:
        yield "proxy", str(proxy).lower()
    if strong is not None:
        yield "scaling", "strong" if strong else "weak"
    overrides = _read_job_config(tree, "model_overrides", problems)
    if overrides:
        yield (
            "model_overrides",
            ", ".join(f"{key}={value}" for key, value in overrides.items()),
        )


def _find_exclusions(tree: Tree, problems: list[str]) -> Iterator[tuple[Reason, str]]:
    """Yield each reason to exclude the run from judging, with the setting."""
    if _read_flag(tree, "profile_enabled", problems):
        yield Reason.PROFILED, "profile_enabled is true"
    environment = _read_job_config(tree, "env_overrides", problems)
    for variable, reason in _EXCLUDING_VARIABLES.items():
        value, name = environment.get(variable, ""), f"env_overrides.{variable}"
        if not isinstance(value, str):
            problems.append(f"job_config.{name} is not a single value")
            continue
        is_set = (
            _names_a_path(value)
            if variable in _PATHS
            else _read_truth(value, name, problems)
        )
        if is_set:
            yield reason, f"{variable}={value.strip()}"


def _is_saving(tree: Tree) -> bool:
    """True if the environment overrides request to save a checkpoint."""
    environment = _get_section(_get_section(tree, "job_config"), "env_overrides")
    value = environment.get(_SAVES)
    return isinstance(value, str) and value.strip().lower() in _YES


def _read_flag(tree: Tree, key: str, problems: list[str]) -> bool | None:
    """Return a flag of the job's configuration, None if not stated or unusable."""
    return _read_truth(_read_text(tree, "job_config", key, problems), key, problems)


def _read_truth(text: str, name: str, problems: list[str]) -> bool | None:
    """Parse a boolean, None if it is empty or unusable. `name` is used in problems."""
    value = text.strip().lower()
    if value in _YES:
        return True
    if value in _NO:
        return False
    if value not in _EMPTY:
        problems.append(f"job_config.{name} is {value!r}, neither true nor false")
    return None


def _names_a_path(text: str) -> bool:
    """True if a value is neither empty nor a negation."""
    return text.strip().lower() not in (*_NO, *_EMPTY)


def _read_job_config(tree: Tree, key: str, problems: list[str]) -> Tree:
    """Return a section of the job's configuration, empty if it is not a section."""
    config = _get_section(tree, "job_config")
    if not _is_section(config, key):
        problems.append(f"job_config.{key} is not a section")
    return _get_section(config, key)


def _read_text(tree: Tree, section: str, key: str, problems: list[str]) -> str:
    """Return a value as text, "" if it is empty, absent or unusable."""
    value = _get_section(tree, section).get(key, "")
    if not isinstance(value, str):
        problems.append(f"{section}.{key} is not a single value")
        return ""
    if len(value) > LONGEST_VALUE:
        problems.append(
            f"{section}.{key} has {len(value)} characters, more than {LONGEST_VALUE}"
        )
        return ""
    text = value.strip()
    return "" if text.lower() in _EMPTY else text


def _is_section(tree: Tree, key: str) -> bool:
    """True if a section is a mapping, empty or absent, not another kind of value."""
    value = tree.get(key, "")
    return (
        isinstance(value, dict)
        or value == []
        or (isinstance(value, str) and value.lower() in _EMPTY)
    )


def _get_section(tree: Tree, key: str) -> Tree:
    """Return a section, empty if it is absent or not a mapping."""
    section = tree.get(key)
    return section if isinstance(section, dict) else {}


def _read_timestamp(text: str) -> datetime | None:
    """Convert an ISO time to UTC; None if it is invalid."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_zoned(text: str) -> bool:
    """True if an ISO time has a zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _build_node(event: Event, next_event: NextEvent, depth: int) -> object:
    """Build the value that begins with `event` from the following events.

    Returns a text, list or mapping. Raises LogError for an alias, a repeated key, or
    more than `DEPTH_LIMIT` levels.
    """
    import yaml

    if isinstance(event, yaml.ScalarEvent):
        return event.value
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent) or depth == DEPTH_LIMIT:
        raise LogError(
            f"line {line}: an alias, or nested too deeply; no launcher writes that"
        )
    nodes: list[object] = []  # the keys and values of a mapping, in turn
    inner_event = next_event()
    while not isinstance(inner_event, yaml.CollectionEndEvent):
        if isinstance(inner_event, yaml.ScalarEvent):
            nodes.append(inner_event.value)
        else:
            nodes.append(_build_node(inner_event, next_event, depth + 1))
        inner_event = next_event()
    if isinstance(event, yaml.MappingStartEvent):
        return _build_mapping(nodes, line)
    return nodes


def _build_mapping(nodes: list[object], line: int) -> dict[str, object]:
    """Build a mapping from its keys and values, which alternate in `nodes`."""
    keys = [key for key in nodes[::2] if isinstance(key, str)]
    values = nodes[1::2]
    if len(set(keys)) != len(values):
        raise LogError(
            f"line {line}: a mapping with a repeated key, or with a key that is not text"
        )
    return dict(zip(keys, values, strict=True))
