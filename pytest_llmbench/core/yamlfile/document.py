"""One YAML document as nodes with their lines, and nothing that YAML can do beyond that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import BaselineError, LlmbenchError
from pytest_llmbench.core.yamlfile.text import read_text

if TYPE_CHECKING:
    import yaml

LARGEST_BYTES = 4 * 1024 * 1024
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
    text = _text(path, what, raises)
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_extras(path, yaml.parse(text, loader), raises)
        root: object = yaml.compose(text, loader)
    except yaml.MarkedYAMLError as error:
        raise raises(_syntax(path, error, text)) from error
    except yaml.YAMLError as error:
        raise raises(f"{path}: found {' '.join(str(error).split())}, expected YAML") from error
    if not isinstance(root, yaml.MappingNode):
        found = "an empty file" if root is None else f"a {getattr(root, 'id', 'file')}"
        raise raises(f"{path}:1: found {found}, expected a mapping of keys to values")
    return root


def _text(path: Path, what: str, raises: type[LlmbenchError]) -> str:
    if os.path.exists(path) and not path.is_file():  # a path that may not be looked at is told below
        raise raises(f"{path}: found something that is no regular file, expected a {what}")
    return read_text(path, what, LARGEST_BYTES, raises)


def _refuse_extras(path: Path, events: Any, raises: type[LlmbenchError]) -> None:
    """Look at the events one by one, so that a bomb is refused before a node is built (nesting crashes libyaml)."""
    depth = documents = 0
    for event in events:
        name = type(event).__name__
        documents += name == "DocumentStartEvent"
        depth += name in _OPENING
        depth -= name in _CLOSING
        extra = _extra(event, name, depth, documents)
        if extra:
            line = event.start_mark.line + 1
            raise raises(f"{path}:{line}: found {extra}; write every value where it belongs")


def _extra(event: Any, name: str, depth: int, documents: int) -> str:
    if name == "AliasEvent" or getattr(event, "anchor", None):
        mark = "*" if name == "AliasEvent" else "&"
        return f"the {'alias' if mark == '*' else 'anchor'} {mark}{event.anchor}, expected no anchors or aliases"
    if getattr(event, "tag", None):
        return f"the tag {event.tag!r}, expected no tags"
    if documents > 1:
        return "a second document ('---'), expected one document in a file"
    return f"more than {DEEPEST} levels of nesting, expected fewer" if depth > DEEPEST else ""


def _syntax(path: Path, error: Any, text: str) -> str:
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
