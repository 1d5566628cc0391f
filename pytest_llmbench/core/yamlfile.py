"""Parsing and validation of YAML files written by users.

A document is parsed to nodes with line numbers, and specs define the allowed nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field

from pytest_llmbench.core.errors import BaselineError, LlmbenchError, did_you_mean
from pytest_llmbench.core.userfile import read_text

if TYPE_CHECKING:
    import yaml

LARGEST_YAML_BYTES = 4 * 1024 * 1024
DEEPEST = 8  # levels of nesting

SHOWN_PROBLEMS = 10


def read_document(
    path: Path,
    *,
    what: str = "baseline file",
    raises: type[LlmbenchError] = BaselineError,
) -> yaml.MappingNode:
    """Return the root mapping of a file with one document.

    `what` is the description of the file in messages. Raises `raises` like `read_root`,
    and if the root is not a mapping.
    """
    import yaml

    root = read_root(path, what=what, raises=raises)
    if not isinstance(root, yaml.MappingNode):
        node_type = getattr(root, "id", "file")  # "sequence", "scalar"
        content = "an empty file" if root is None else f"a {node_type}"
        raise raises(f"{path}:1: found {content}, expected a mapping of keys to values")
    return root


def read_root(
    path: Path, *, what: str, raises: type[LlmbenchError]
) -> yaml.Node | None:
    """Return the root node of a file with one document, or None for an empty file.

    Raises `raises` with file and line if the file cannot be read, is not UTF-8 or not
    YAML. Several documents, tabs, anchors, aliases, tags and deep nesting are refused
    as well, since configuration files do not need them.
    """
    text = read_text(path, what, LARGEST_YAML_BYTES, raises)
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _compose(path, loader(text), raises)
    except yaml.MarkedYAMLError as error:
        raise raises(_format_syntax_error(path, error, text)) from error
    except yaml.YAMLError as error:
        raise raises(
            f"{path}: found {' '.join(str(error).split())}, expected YAML"
        ) from error


class _OpenCollection(NamedTuple):
    """A mapping or sequence whose end is not reached, and the nodes before it."""

    node: Any
    siblings: list[Node]


def _compose(path: Path, parser: Any, raises: type[LlmbenchError]) -> yaml.Node | None:
    """Build the nodes of a document from its YAML events, or return None without any.

    Raises `raises` for the first event that configuration files do not need. The
    composer of PyYAML is not used: deep nesting crashes libyaml, so that all events
    would have to be parsed and checked before.
    """
    import yaml

    resolve = cache(parser.resolve)  # many keys and values repeat
    mapping, sequence = yaml.MappingStartEvent, yaml.SequenceStartEvent
    starts = {mapping: yaml.MappingNode, sequence: yaml.SequenceNode}
    ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
    open_collections: list[_OpenCollection] = []
    nodes: list[Node] = []  # of the innermost open collection
    documents = 0
    for event in iter(parser.get_event, None):
        kind = type(event)
        if kind in ends:
            node, siblings = open_collections.pop()
            _close_collection(node, nodes, event.end_mark)
            nodes = siblings
            continue
        documents += kind is yaml.DocumentStartEvent
        depth = len(open_collections) + (kind in starts)
        start, end = event.start_mark, event.end_mark
        extra = _find_extra(event, kind.__name__, depth, documents)
        if extra:
            location = f"{path}:{start.line + 1}"
            raise raises(f"{location}: found {extra}; use plain keys and values only")
        if kind is yaml.ScalarEvent:
            value = event.value
            tag = resolve(yaml.ScalarNode, value, event.implicit)
            nodes.append(yaml.ScalarNode(tag, value, start, end, event.style))
        elif kind in starts:
            node_type = starts[kind]
            tag = resolve(node_type, None, event.implicit)
            node = node_type(tag, [], start, None, event.flow_style)
            nodes.append(node)
            open_collections.append(_OpenCollection(node, nodes))
            nodes = []
    return nodes[0] if nodes else None


def _close_collection(node: Any, nodes: list[Node], end_mark: Any) -> None:
    """Set the content and the end of a mapping or sequence."""
    if node.id == "mapping":  # keys and values alternate
        node.value = list(zip(nodes[::2], nodes[1::2], strict=True))
    else:
        node.value = nodes
    node.end_mark = end_mark


def _find_extra(event: Any, name: str, depth: int, documents: int) -> str:
    """Describe a YAML feature that is not accepted, or return "".

    `name` is the type of the event. `depth` and `documents` include the event.
    """
    if name == "AliasEvent":
        return f"the alias *{event.anchor}, expected no anchors or aliases"
    if getattr(event, "anchor", None):
        return f"the anchor &{event.anchor}, expected no anchors or aliases"
    if getattr(event, "tag", None):
        return f"the tag {event.tag!r}, expected no tags"
    if documents > 1:
        return "a second document ('---'), expected one document in a file"
    if depth > DEEPEST:
        return f"more than {DEEPEST} levels of nesting, expected fewer"
    return ""


def _format_syntax_error(path: Path, error: Any, text: str) -> str:
    """Format a syntax error with its line and a hint.

    `text` is the content of the file.
    """
    position = error.problem_mark or error.context_mark
    if position is None:
        return f"{path}: found {error.problem}, expected YAML"
    location = f"{path}:{position.line + 1}"
    lines = text.splitlines()
    line = lines[position.line] if position.line < len(lines) else ""
    indentation = line[: len(line) - len(line.lstrip())]
    character = line[position.column : position.column + 1]
    if "\t" in indentation or character == "\t":
        return f"{location}: found a tab, expected spaces"
    problem = " ".join(filter(None, (error.context, error.problem)))
    hint = ""
    if "escape character" in problem:
        hint = "; write a backslash in single quotes"
    return f"{location}: found a syntax error ({problem}), expected YAML{hint}"


# --- specs of nodes -------------------------------------------------------------------

Node = Any
"""A yaml.Node.

The type stubs lack `id` ("scalar", "sequence", "mapping") and `style`.
"""

Report = Callable[[int, str], None]
"""Called for every problem with the 1-based line and `found ..., expected ...`."""

_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"


class Spec(Protocol):
    """The specification of a node.

    `read` returns the value, or None after reporting a problem.
    """

    def read(self, node: Node, report: Report) -> Any: ...


class YamlMapping(Struct, frozen=True):
    """A parsed mapping: its values and lines by key, and its own line."""

    line: int
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an optional key."""
        return self.values.get(key, default)


class Text(Struct, frozen=True):
    """A scalar that YAML reads as text.

    A text that looks like a number must be quoted.
    """

    expected: str = "text"
    pattern: str = r".*\S.*"
    choices: tuple[str, ...] = ()
    accept: Callable[[str], bool] = field(default=lambda _: True)

    def read(self, node: Node, report: Report) -> Any:
        """Return the text, or None after reporting a problem."""
        if node.id != "scalar" or node.tag == _NULL_TAG:
            return _report_wrong(node, self.expected, report)
        is_text = node.tag == _TEXT_TAG  # YAML reads an unquoted 25.10 as a number
        if self.choices:
            if is_text and node.value in self.choices:
                return str(node.value)
            hint = did_you_mean(node.value, self.choices) if is_text else ""
            return _report_wrong(node, " or ".join(self.choices), report, hint=hint)
        if not is_text:
            quoted = f'write "{node.value}" in quotes to keep its digits'
            expected = f"{self.expected} as text: {quoted}"
            return _report_wrong(node, expected, report, what="{} without quotes")
        has_pattern = re.fullmatch(self.pattern, node.value, re.DOTALL)
        if not has_pattern or not self.accept(node.value):
            return _report_wrong(node, self.expected, report)
        return str(node.value)


class Number(Struct, frozen=True):
    """A plain decimal number from `low` to `high`, both included.

    With `whole`, only integers are accepted.
    """

    low: float
    high: float
    whole: bool = False

    def read(self, node: Node, report: Report) -> Any:
        """Return the number, or None after reporting a problem."""
        # YAML 1.1 reads 010 as eight and 1:30 as ninety; both are refused here.
        pattern = (
            r"0|[1-9][0-9]{0,17}"
            if self.whole
            else r"[0-9]{1,18}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?"
        )
        value, expected = str(node.value), self._describe_range()
        if node.id != "scalar" or not re.fullmatch(pattern, value):
            return _report_wrong(node, expected, report)
        if node.style in ("'", '"'):
            hint = " without quotes"
            return _report_wrong(node, expected, report, what="{} in quotes", hint=hint)
        number = int(value) if self.whole else float(value)
        if not self.low <= number <= self.high:
            return _report_wrong(node, expected, report)
        return number

    def _describe_range(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        number = "a whole number" if self.whole else "a number"
        return f"{number} from {self.low:g} to {self.high:.15g}"


class Flag(Struct, frozen=True):
    """`true` or `false`."""

    def read(self, node: Node, report: Report) -> Any:
        """Return the truth value, or None after reporting a problem."""
        # YAML 1.1 also accepts yes, on, ..., which YAML 1.2 reads as text.
        is_plain = node.id == "scalar" and node.style not in ("'", '"')
        if not is_plain or node.value not in ("true", "false"):
            return _report_wrong(node, "true or false", report)
        return bool(node.value == "true")


class ConvertedScalar(Struct, frozen=True):
    """A scalar that is converted by a function, which raises ValueError with the
    message."""

    convert: Callable[[str], object]

    def read(self, node: Node, report: Report) -> object:
        """Return the converted value, or None after reporting a problem."""
        if node.id != "scalar":
            return _report_wrong(node, "a single value", report)
        try:
            return self.convert(str(node.value))
        except ValueError as error:
            report(_line_of(node), str(error))
            return None


class Items(Struct, frozen=True):
    """A list whose items have one spec; the value is a tuple."""

    item: Spec
    least: int = 1
    most: int | None = None

    def read(self, node: Node, report: Report) -> Any:
        """Return the values of the items, or None after reporting a problem."""
        if node.id != "sequence":
            return _report_wrong(node, "a list", report)
        if len(node.value) < self.least:
            expected = (
                "a list with at least one entry"
                if self.least == 1
                else f"a list with at least {self.least} entries"
            )
            return _report_wrong(node, expected, report)
        if self.most is not None and len(node.value) > self.most:
            report(
                _line_of(node),
                f"found a list of {len(node.value)}, expected at most {self.most} entries",
            )
            return None
        return tuple(self.item.read(child, report) for child in node.value)


class Names(Struct, frozen=True):
    """A mapping with arbitrary keys."""

    value: Spec
    key: Text = field(default_factory=Text)

    def read(self, node: Node, report: Report) -> Any:
        """Return the mapping with its values read; report problems."""

        def find_spec(key: Node) -> Spec | None:
            """Return the spec of all values, or None after reporting an invalid key."""
            is_valid_key = self.key.read(key, report) is not None
            return self.value if is_valid_key else None

        return _read_mapping(node, report, find_spec)


class Nullable(Struct, frozen=True):
    """A value that may be empty, which gives None."""

    spec: Spec

    def read(self, node: Node, report: Report) -> Any:
        if node.id == "scalar" and node.tag == _NULL_TAG:
            return None
        return self.spec.read(node, report)


class Fields(Struct, frozen=True):
    """A mapping with known keys."""

    required: Mapping[str, Spec]
    optional: Mapping[str, Spec] = field(default_factory=dict)
    closed: bool = True
    """False for a file of another program, whose unknown keys are ignored."""

    def read(self, node: Node, report: Report) -> Any:
        """Return the mapping with its values read; report unknown and missing keys."""
        specs = {**self.required, **self.optional}

        def find_spec(key: Node) -> Spec | None:
            """Return the spec of a known key, else None; report refused keys."""
            if key.id == "scalar" and key.value in specs:
                return specs[key.value]
            if not self.closed:
                return None
            # Ignoring a misspelled key could silently weaken the gate.
            hint = did_you_mean(key.value, specs) if key.id == "scalar" else ""
            _report_wrong(
                key,
                ", ".join(sorted(specs)),
                report,
                what="the unknown key {}",
                hint=hint,
            )
            return None

        entry = _read_mapping(node, report, find_spec)
        if entry is not None:
            missing = [repr(name) for name in self.required if name not in entry.lines]
            if missing:
                expected = "that key" if len(missing) == 1 else "them"
                report(
                    entry.line, f"found no {', '.join(missing)}, expected {expected}"
                )
        return entry


def _read_mapping(
    node: Node, report: Report, find_spec: Callable[[Node], Spec | None]
) -> Any:
    """Read a mapping, each value by the spec of its key; report duplicate keys.

    `find_spec` returns the spec for a key node. If it returns None, the value is not
    read, but the line of the key is kept.
    """
    if node.id != "mapping":
        return _report_wrong(node, "a mapping of keys to values", report)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        name = str(key.value) if key.id == "scalar" else ""
        if name in lines:
            report(
                _line_of(key),
                f"found the key {name!r} again (first in line {lines[name]}), expected it once",
            )
            continue
        lines[name] = _line_of(key)
        key_spec = find_spec(key)
        if key_spec is not None:
            values[name] = key_spec.read(value, report)
    return YamlMapping(_line_of(node), values, lines)


def _line_of(node: Node) -> int:
    """Return the 1-based line of a node."""
    return int(node.start_mark.line) + 1


def _report_wrong(
    node: Node, expected: str, report: Report, *, what: str = "{}", hint: str = ""
) -> Any:
    """Report an unexpected node, and return None as its value.

    In `what`, `{}` is replaced by the description of the node.
    """
    report(
        _line_of(node),
        f"found {what.format(_describe(node))}, expected {expected}{hint}",
    )
    return None


def _describe(node: Node) -> str:
    """Describe a node in a message: `a list`, `nothing`, `'text'` or `4.5`."""
    if node.id != "scalar":
        return "a list" if node.id == "sequence" else "a mapping"
    if node.tag == _NULL_TAG and node.style not in ("'", '"'):
        return "nothing"
    text = node.value if len(node.value) <= 60 else node.value[:57] + "..."
    return repr(text) if node.tag == _TEXT_TAG else str(text)


def read_entry(
    path: Path,
    root: yaml.MappingNode,
    fields: Fields,
    *,
    complete: Callable[[YamlMapping], YamlMapping] = lambda entry: entry,
    check: Callable[[YamlMapping, Report], None] = lambda entry, report: None,
    raises: type[LlmbenchError] = BaselineError,
) -> YamlMapping:
    """Return the values of a document.

    `complete` adds defaults. `check` is called with the entry after `fields` and
    `complete` succeeded. Raises `raises` with up to ten problems, each with its line,
    and a count of further problems.
    """
    problems: list[tuple[int, str]] = []

    def report(line: int, problem: str) -> None:
        """Add a problem; reading continues, so that all problems are found."""
        problems.append((line, problem))

    entry: YamlMapping | None = fields.read(root, report)
    if entry is not None and not problems:
        entry = complete(entry)
        check(entry, report)
    if entry is None or problems:
        raise raises(_format_problems(path, sorted(problems)))
    return entry


def _format_problems(path: Path, problems: Sequence[tuple[int, str]]) -> str:
    """Format the first SHOWN_PROBLEMS problems, and the number of further problems."""
    lines = [f"{path}:{line}: {problem}" for line, problem in problems[:SHOWN_PROBLEMS]]
    hidden = len(problems) - SHOWN_PROBLEMS
    if hidden > 0:
        lines.append(f"and {hidden} more problems in this file")
    return "\n".join(lines)
