"""Read `llmb-config_<job>.yaml`, the launcher's record of a job.

The file is not trusted, and never fatal. All values are kept as text (`25.10` is a
release, not a number); a repeated key or an alias is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
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
FILE_NAME = re.compile(r"llmb-config_(.+)\.ya?ml", re.IGNORECASE)

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
_VERSION = re.compile(r"(?:.*_)?(?:version|commit)")
_EXCLUDING_VARIABLES = {
    "ENABLE_PROFILE": Reason.PROFILED,
    "ENABLE_NCCLTRACE": Reason.TRACED,
    "ENABLE_NCCL_TRACE": Reason.TRACED,
    "LOAD_CHECKPOINT_PATH": Reason.CHECKPOINT_LOAD,
}
_PATHS = ("LOAD_CHECKPOINT_PATH",)
_SAVES = "ENABLE_CHECKPOINT"
_YES, _NO = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")
_EMPTY = ("", "null", "none", "~")

Tree = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Metadata:
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
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # Read events instead of nodes: composing deeply nested YAML with the C loader
    # crashes the interpreter.
    try:
        next_event = loader(data).get_event
        nodes = (
            event
            for event in iter(next_event, None)
            if isinstance(event, yaml.NodeEvent)
        )
        first = next(nodes, None)
        tree = _build_node(first, next_event, 0) if first else None
        extra = next(nodes, None)
    except yaml.YAMLError as error:
        raise LogError(f"not valid YAML: {' '.join(str(error).split())}") from error
    if first is None:
        raise LogError("empty")
    if extra is not None or not isinstance(tree, dict):
        raise LogError("expected one mapping of sections")
    return tree


def interpret(tree: Tree, name: str, job: str) -> Metadata:
    """Convert the sections of a metadata file to hints, evidence and a start time.

    `job` is the job id in the file's name. Raises LogError if the file contains another
    id.
    """
    problems = [
        f"{key} is not a section" for key in _SECTIONS if not _is_section(tree, key)
    ]
    job_in_file = _read_text(tree, "job_info", "job_id", problems)
    if job and job_in_file not in ("", job):
        raise LogError(f"is named for job {job}, but contains job_id {job_in_file!r}")
    hints = tuple(
        Hint(field, value, name)
        for field, value in (
            *_read_fields(tree, problems),
            *_read_modes(tree, problems),
        )
    )
    launched = _read_text(tree, "job_info", "launch_time", problems)
    started = _read_timestamp(launched)
    if launched and started is None:
        problems.append(
            f"job_info.launch_time is {launched!r}, which is not a date and time"
        )
    excluded, explanation = next(iter([*_find_exclusions(tree, problems)]), (None, ""))
    build = (
        *_list_versions(tree, problems),
        *_flatten("container", _get_section(tree, "container_info")),
    )
    excluded_because = explanation and f"{name}: {explanation}"
    launcher = _read_text(tree, "job_info", "launcher_type", [])
    saves = f"{name}: {_SAVES}=true" if _is_saving(tree) else ""
    return Metadata(
        job or job_in_file,
        hints,
        started,
        _is_zoned(launched),
        excluded,
        excluded_because,
        tuple(problems),
        build,
        launcher,
        saves,
        _read_environment(tree),
    )


def _read_fields(tree: Tree, problems: list[str]) -> Iterator[tuple[str, str]]:
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
        if (
            _VERSION.fullmatch(key)
            and key != "gsw_version"
            and (value := _read_text(tree, "workload_info", key, problems))
        ):
            yield f"{key}={value}"


def _read_environment(tree: Tree) -> Pairs:
    """Return the container, framework, recipe, versions and commits, if printable."""
    versions = dict(entry.split("=", 1) for entry in _list_versions(tree, []))
    framework = (
        _read_text(tree, "workload_info", "framework", []),
        versions.pop("fw_version", ""),
    )
    images = _get_section(tree, "container_info").get("images", [])
    texts = (
        entry.strip()
        for entry in (images if isinstance(images, list) else [images])
        if isinstance(entry, str)
    )
    values = {
        **{
            name if "_" in name else f"workload_{name}": text
            for name, text in versions.items()
        },
        "container": ", ".join(text for text in texts if text.lower() not in _EMPTY),
        "framework": " ".join(filter(None, framework)) if framework[1] else "",
        "recipe": _read_text(tree, "workload_info", "gsw_version", []),
    }
    return tuple(
        sorted(pair for pair in values.items() if all(map(_is_printable, pair)))
    )


def _is_printable(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isprintable()


def _flatten(name: str, value: object) -> Iterator[str]:
    """Yield every nested value as "key=value"; list entries have no names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for entry in value:
            yield from _flatten(
                name,
                entry if isinstance(entry, str) else json.dumps(entry, sort_keys=True),
            )
    elif isinstance(value, str) and value.strip().lower() not in _EMPTY:
        yield f"{name}={value.strip()}"


def _read_modes(tree: Tree, problems: list[str]) -> Iterator[tuple[str, str]]:
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
        elif (
            _names_a_path(value)
            if variable in _PATHS
            else _read_truth(value, name, problems)
        ):
            yield reason, f"{variable}={value.strip()}"


def _is_saving(tree: Tree) -> bool:
    value = _get_section(_get_section(tree, "job_config"), "env_overrides").get(_SAVES)
    return isinstance(value, str) and value.strip().lower() in _YES


def _read_flag(tree: Tree, key: str, problems: list[str]) -> bool | None:
    return _read_truth(_read_text(tree, "job_config", key, problems), key, problems)


def _read_truth(text: str, name: str, problems: list[str]) -> bool | None:
    value = text.strip().lower()
    if value not in (*_YES, *_NO, *_EMPTY):
        problems.append(f"job_config.{name} is {value!r}, neither true nor false")
    return True if value in _YES else False if value in _NO else None


def _names_a_path(text: str) -> bool:
    return text.strip().lower() not in (*_NO, *_EMPTY)


def _read_job_config(tree: Tree, key: str, problems: list[str]) -> Tree:
    config = _get_section(tree, "job_config")
    if not _is_section(config, key):
        problems.append(f"job_config.{key} is not a section")
    return _get_section(config, key)


def _read_text(tree: Tree, section: str, key: str, problems: list[str]) -> str:
    value = _get_section(tree, section).get(key, "")
    if isinstance(value, str) and len(value) <= LONGEST_VALUE:
        return "" if value.strip().lower() in _EMPTY else value.strip()
    problem = (
        f"has {len(value)} characters, more than {LONGEST_VALUE}"
        if isinstance(value, str)
        else "is not a single value"
    )
    problems.append(f"{section}.{key} {problem}")
    return ""


def _is_section(tree: Tree, key: str) -> bool:
    """True if a section is a mapping, empty or absent, not another kind of value."""
    value = tree.get(key, "")
    return (
        isinstance(value, dict)
        or value == []
        or (isinstance(value, str) and value.lower() in _EMPTY)
    )


def _get_section(tree: Tree, key: str) -> Tree:
    section = tree.get(key)
    return section if isinstance(section, dict) else {}


def _read_timestamp(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_zoned(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _build_node(event: Event, next_event: NextEvent, depth: int) -> object:
    """Build the value that begins with `event` from the following events."""
    import yaml

    if isinstance(event, yaml.ScalarEvent):
        return event.value
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent) or depth == DEPTH_LIMIT:
        raise LogError(
            f"line {line}: an alias, or nested too deeply; no launcher writes that"
        )
    values: list[object] = []
    while not isinstance(inner := next_event(), yaml.CollectionEndEvent):
        values.append(
            inner.value
            if isinstance(inner, yaml.ScalarEvent)
            else _build_node(inner, next_event, depth + 1)
        )
    return (
        _build_mapping(values, line)
        if isinstance(event, yaml.MappingStartEvent)
        else values
    )


def _build_mapping(values: list[object], line: int) -> dict[str, object]:
    keys = [key for key in values[::2] if isinstance(key, str)]
    if len(set(keys)) != len(values) // 2:
        raise LogError(
            f"line {line}: a mapping with a repeated key, or with a key that is not text"
        )
    return dict(zip(keys, values[1::2], strict=True))
