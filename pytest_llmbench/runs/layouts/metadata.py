"""`llmb-config_<job>.yaml`, the launcher's own record of a job: read as text,
distrusted, never fatal.

Every value stays the text that was written (`25.10` is a release, no number); a
repeated key or an alias is an error.
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
# Letters of a value of the environment.
LONGEST = 200
# Letters of any other value that counts: it stands in ids and messages.
LONGEST_VALUE = 1000
FILE_NAME = re.compile(r"llmb-config_(.+)\.ya?ml", re.IGNORECASE)

_TEXTS = {
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
_EVIDENCE = {
    "ENABLE_PROFILE": Reason.PROFILED,
    "ENABLE_NCCLTRACE": Reason.TRACED,
    "ENABLE_NCCL_TRACE": Reason.TRACED,
    "LOAD_CHECKPOINT_PATH": Reason.CHECKPOINT_LOAD,
}
_PATHS = ("LOAD_CHECKPOINT_PATH",)
_SAVES = "ENABLE_CHECKPOINT"
_YES, _NO = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")
_NOTHING = ("", "null", "none", "~")

Tree = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a metadata file says of its job."""

    job: str
    hints: tuple[Hint, ...]
    started: datetime | None = None
    zoned: bool = False  # the launch time names its zone
    excluded: Reason | None = None
    excluded_because: str = ""
    odd: tuple[str, ...] = ()  # values that could not be used, each with the reason
    build: tuple[
        str, ...
    ] = ()  # "key=value" of versions and container images, but for the release, which is a hint
    launcher: str = ""  # the file's own word for what started the job
    saves: str = ""  # says that the job was to save a checkpoint
    # container, versions and commits by the names of the reports
    environment: Pairs = ()


NO_METADATA = Metadata("", ())


def read_metadata(
    path: Path, read: Callable[[Path, int], bytes] | None = None
) -> Metadata:
    """Read a metadata file; LogError says why none of it can be used.

    `read` returns the first bytes of a file, at most as many as it is told; by default
    it opens one of this machine.
    """
    data = (read or Stores().read_small)(path, SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise LogError(
            f"larger than {SIZE_LIMIT // 1024} KiB: this is no launcher's record of a job"
        )
    named = FILE_NAME.fullmatch(path.name)
    return interpret(parse(data), path.name, named[1] if named else "")


def parse(data: bytes) -> Tree:
    """Return a YAML mapping with all values as text; LogError for anything else."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # Events are read, not nodes: composing deeply nested YAML with the C loader crashes
    # the interpreter.
    try:
        following = loader(data).get_event
        nodes = (
            event
            for event in iter(following, None)
            if isinstance(event, yaml.NodeEvent)
        )
        first = next(nodes, None)
        tree = _build_node(first, following, 0) if first else None
        more = next(nodes, None)
    except yaml.YAMLError as error:
        raise LogError(f"not valid YAML: {' '.join(str(error).split())}") from error
    if first is None:
        raise LogError("empty")
    if more is not None or not isinstance(tree, dict):
        raise LogError("expected one mapping of sections")
    return tree


def interpret(tree: Tree, name: str, job: str) -> Metadata:
    """Turn the sections of a metadata file into hints, evidence and a start time. `job`
    is the id in its name."""
    odd = [f"{key} is not a section" for key in _SECTIONS if not _is_section(tree, key)]
    inside = _read_text(tree, "job_info", "job_id", odd)
    if job and inside not in ("", job):
        raise LogError(f"is named for job {job}, but says job_id {inside!r} inside")
    hints = tuple(
        Hint(field, value, name)
        for field, value in (*_read_fields(tree, odd), *_read_modes(tree, odd))
    )
    launched = _read_text(tree, "job_info", "launch_time", odd)
    started = _read_timestamp(launched)
    if launched and started is None:
        odd.append(f"job_info.launch_time is {launched!r}, which is no date and time")
    excluded, because = next(iter([*_find_exclusions(tree, odd)]), (None, ""))
    build = (
        *_list_versions(tree, odd),
        *_flatten("container", _get_section(tree, "container_info")),
    )
    excluded_because = because and f"{name}: {because}"
    launcher = _read_text(tree, "job_info", "launcher_type", [])
    saves = f"{name}: {_SAVES}=true" if _is_saving(tree) else ""
    return Metadata(
        job or inside,
        hints,
        started,
        _is_zoned(launched),
        excluded,
        excluded_because,
        tuple(odd),
        build,
        launcher,
        saves,
        _read_environment(tree),
    )


def _read_fields(tree: Tree, odd: list[str]) -> Iterator[tuple[str, str]]:
    for field, (section, key) in _TEXTS.items():
        value = _read_text(tree, section, key, odd)
        if field in _NUMBERS and value and not value.isdecimal():
            odd.append(f"{section}.{key} is {value!r}, not a number")
        elif value:
            yield field, value
    task = _read_text(tree, "workload_info", "workload_type", odd)
    if task and not task.lower().startswith("pretrain"):
        yield "task", task


def _list_versions(tree: Tree, odd: list[str]) -> Iterator[str]:
    """Yield the versions and commits that are named, but for the release, which is a
    hint."""
    for key in _get_section(tree, "workload_info"):
        if (
            _VERSION.fullmatch(key)
            and key != "gsw_version"
            and (value := _read_text(tree, "workload_info", key, odd))
        ):
            yield f"{key}={value}"


def _read_environment(tree: Tree) -> Pairs:
    """Return container, framework, recipe and further versions and commits, but for
    what no line could show."""
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
    named = {
        **{
            name if "_" in name else f"workload_{name}": text
            for name, text in versions.items()
        },
        "container": ", ".join(text for text in texts if text.lower() not in _NOTHING),
        "framework": " ".join(filter(None, framework)) if framework[1] else "",
        "recipe": _read_text(tree, "workload_info", "gsw_version", []),
    }
    return tuple(sorted(pair for pair in named.items() if all(map(_is_shown, pair))))


def _is_shown(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isprintable()


def _flatten(name: str, value: object) -> Iterator[str]:
    """Yield every value of any nesting as one "key=value"; of a list, in which entries
    have no names, each entry."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for entry in value:
            yield from _flatten(
                name,
                entry if isinstance(entry, str) else json.dumps(entry, sort_keys=True),
            )
    elif isinstance(value, str) and value.strip().lower() not in _NOTHING:
        yield f"{name}={value.strip()}"


def _read_modes(tree: Tree, odd: list[str]) -> Iterator[tuple[str, str]]:
    proxy, strong = (
        _read_flag(tree, "proxy", odd),
        _read_flag(tree, "strong_scaling", odd),
    )
    if proxy is not None:
        yield "proxy", str(proxy).lower()
    if strong is not None:
        yield "scaling", "strong" if strong else "weak"
    overrides = _read_job_config(tree, "model_overrides", odd)
    if overrides:
        yield (
            "model_overrides",
            ", ".join(f"{key}={value}" for key, value in overrides.items()),
        )


def _find_exclusions(tree: Tree, odd: list[str]) -> Iterator[tuple[Reason, str]]:
    if _read_flag(tree, "profile_enabled", odd):
        yield Reason.PROFILED, "profile_enabled is true"
    environment = _read_job_config(tree, "env_overrides", odd)
    for variable, reason in _EVIDENCE.items():
        value, name = environment.get(variable, ""), f"env_overrides.{variable}"
        if not isinstance(value, str):
            odd.append(f"job_config.{name} is not a single value")
        elif (
            _names_a_path(value)
            if variable in _PATHS
            else _read_truth(value, name, odd)
        ):
            yield reason, f"{variable}={value.strip()}"


def _is_saving(tree: Tree) -> bool:
    value = _get_section(_get_section(tree, "job_config"), "env_overrides").get(_SAVES)
    return isinstance(value, str) and value.strip().lower() in _YES


def _read_flag(tree: Tree, key: str, odd: list[str]) -> bool | None:
    return _read_truth(_read_text(tree, "job_config", key, odd), key, odd)


def _read_truth(text: str, name: str, odd: list[str]) -> bool | None:
    value = text.strip().lower()
    if value not in (*_YES, *_NO, *_NOTHING):
        odd.append(f"job_config.{name} is {value!r}, neither true nor false")
    return True if value in _YES else False if value in _NO else None


def _names_a_path(text: str) -> bool:
    return text.strip().lower() not in (*_NO, *_NOTHING)


def _read_job_config(tree: Tree, key: str, odd: list[str]) -> Tree:
    config = _get_section(tree, "job_config")
    if not _is_section(config, key):
        odd.append(f"job_config.{key} is not a section")
    return _get_section(config, key)


def _read_text(tree: Tree, section: str, key: str, odd: list[str]) -> str:
    value = _get_section(tree, section).get(key, "")
    if isinstance(value, str) and len(value) <= LONGEST_VALUE:
        return "" if value.strip().lower() in _NOTHING else value.strip()
    what = (
        f"has {len(value)} letters, more than {LONGEST_VALUE}"
        if isinstance(value, str)
        else "is not a single value"
    )
    odd.append(f"{section}.{key} {what}")
    return ""


def _is_section(tree: Tree, key: str) -> bool:
    """Whether a section is there, absent, or empty; not a value of another kind."""
    value = tree.get(key, "")
    return (
        isinstance(value, dict)
        or value == []
        or (isinstance(value, str) and value.lower() in _NOTHING)
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


def _build_node(event: Event, following: NextEvent, depth: int) -> object:
    """Build the value that begins with an event from those that follow it."""
    import yaml

    if isinstance(event, yaml.ScalarEvent):
        return event.value
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent) or depth == DEPTH_LIMIT:
        raise LogError(
            f"line {line}: an alias, or nested too deeply; no launcher writes that"
        )
    values: list[object] = []
    while not isinstance(inner := following(), yaml.CollectionEndEvent):
        values.append(
            inner.value
            if isinstance(inner, yaml.ScalarEvent)
            else _build_node(inner, following, depth + 1)
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
            f"line {line}: a mapping that repeats a key, or with a key that is no text"
        )
    return dict(zip(keys, values[1::2], strict=True))
