"""Files that people write: their text, and one YAML document as nodes with their lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import BaselineError, LlmbenchError

if TYPE_CHECKING:
    import yaml


LARGEST_TEXT_BYTES = 1 << 24
"""Of a file that people write by hand."""


def read_text(path: Path, what: str, most_bytes: int, raises: type[LlmbenchError]) -> str:
    """Return the text of a file, without a byte order mark; `what` it is called in messages.

    Raises `raises` for what cannot be read, is larger than `most_bytes`, a number of MiB, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise raises(f"{path}: {error.strerror or error}, expected a readable {what}") from error
    if len(data) > most_bytes:
        raise raises(f"{path}: found more than {most_bytes >> 20} MiB, expected a {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise raises(f"{path}:{line}: found byte 0x{byte:02x}, expected UTF-8 text") from error


def read_start(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a file; none of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def read_text_if_file(path: Path, what: str, raises: type[LlmbenchError]) -> str | None:
    """Return the text of a file that a user may have meant; None where there is no file of that name.

    Raises `raises` where there is one that may not be read, or that is no text; `what` names it in the message.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (PermissionError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "not UTF-8")
        raise raises(f"{what}: {why}, expected a file of configurations, one a line") from error
    except OSError:  # no file, a folder, or longer than a name may be
        return None


LARGEST_YAML_BYTES = 4 * 1024 * 1024
DEEPEST = 8


_OPENING = ("MappingStartEvent", "SequenceStartEvent")
_CLOSING = ("MappingEndEvent", "SequenceEndEvent")


def read_document(
    path: Path, *, what: str = "baseline file", raises: type[LlmbenchError] = BaselineError
) -> yaml.MappingNode:
    """Return the root mapping of the only document in a file; `what` it is called in messages.

    Raises `raises` with file and line for what cannot be read, is not UTF-8, no YAML, empty, no mapping,
    several documents, and for tabs, anchors, aliases, tags and deep nesting: such a file needs none of them.
    """
    text = _read_yaml_text(path, what, raises)
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_extras(path, yaml.parse(text, loader), raises)
        root: object = yaml.compose(text, loader)
    except yaml.MarkedYAMLError as error:
        raise raises(_format_syntax_error(path, error, text)) from error
    except yaml.YAMLError as error:
        raise raises(f"{path}: found {' '.join(str(error).split())}, expected YAML") from error
    if not isinstance(root, yaml.MappingNode):
        content = "an empty file" if root is None else f"a {getattr(root, 'id', 'file')}"
        raise raises(f"{path}:1: found {content}, expected a mapping of keys to values")
    return root


def _read_yaml_text(path: Path, what: str, raises: type[LlmbenchError]) -> str:
    if os.path.exists(path) and not path.is_file():  # a path that may not be looked at is told below
        raise raises(f"{path}: found something that is no regular file, expected a {what}")
    return read_text(path, what, LARGEST_YAML_BYTES, raises)


def _refuse_extras(path: Path, events: Any, raises: type[LlmbenchError]) -> None:
    """Raise for the first event of YAML's that no file of ours needs."""
    # One by one, so that a bomb is refused before a node is built: deep nesting crashes libyaml.
    depth = documents = 0
    for event in events:
        name = type(event).__name__
        documents += name == "DocumentStartEvent"
        depth += name in _OPENING
        depth -= name in _CLOSING
        extra = _find_extra(event, name, depth, documents)
        if extra:
            line = event.start_mark.line + 1
            raise raises(f"{path}:{line}: found {extra}; write every value where it belongs")


def _find_extra(event: Any, name: str, depth: int, documents: int) -> str:
    if name == "AliasEvent" or getattr(event, "anchor", None):
        mark = "*" if name == "AliasEvent" else "&"
        return f"the {'alias' if mark == '*' else 'anchor'} {mark}{event.anchor}, expected no anchors or aliases"
    if getattr(event, "tag", None):
        return f"the tag {event.tag!r}, expected no tags"
    if documents > 1:
        return "a second document ('---'), expected one document in a file"
    return f"more than {DEEPEST} levels of nesting, expected fewer" if depth > DEEPEST else ""


def _format_syntax_error(path: Path, error: Any, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{path}: found {error.problem}, expected YAML"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or line[mark.column : mark.column + 1] == "\t":
        return f"{path}:{mark.line + 1}: found a tab, expected spaces"
    problem = " ".join(filter(None, (error.context, error.problem)))
    hint = "; in single quotes a backslash stands for itself" if "escape character" in problem else ""
    return f"{path}:{mark.line + 1}: found a syntax error ({problem}), expected YAML{hint}"
