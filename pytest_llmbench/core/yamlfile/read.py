"""A document through its description: the entry, or one error with every problem in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import BaselineError, LlmbenchError
from pytest_llmbench.core.yamlfile.schema import Entry, Fields, Report

if TYPE_CHECKING:
    import yaml

SHOWN_PROBLEMS = 10


def read_entry(
    path: Path,
    root: yaml.MappingNode,
    fields: Fields,
    *,
    complete: Callable[[Entry], Entry] = lambda entry: entry,
    check: Callable[[Entry, Report], None] = lambda entry, report: None,
    raises: type[LlmbenchError] = BaselineError,
) -> Entry:
    """Return the values of a document; `complete` adds defaults, and `check` sees what passed `fields` and `complete`.

    Raises `raises` with up to ten problems, each with its line, and a count of the rest.
    """
    problems: list[tuple[int, str]] = []

    def report(line: int, problem: str) -> None:
        problems.append((line, problem))

    entry: Entry | None = fields.read(root, report)
    if entry is not None and not problems:
        entry = complete(entry)
        check(entry, report)
    if entry is None or problems:
        raise raises(_listed(path, sorted(problems)))
    return entry


def _listed(path: Path, problems: Sequence[tuple[int, str]]) -> str:
    lines = [f"{path}:{line}: {problem}" for line, problem in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - SHOWN_PROBLEMS
    return "\n".join([*lines, *([f"and {more} more problems in this file"] if more > 0 else [])])
