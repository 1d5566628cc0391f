"""The page about the file format is true: its example is read and lints clean, and no
key is left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import read_file
from pytest_llmbench.baseline.schema import (
    CELLS,
    COMMAND,
    CONFIGURATION,
    ERRATUM,
    FILE,
    KINDS,
    LAUNCH,
    LOG,
    MODEL,
    RECORDED,
    KeyDefinition,
)
from pytest_llmbench.logs.log_reader import parse_blocks

PAGE = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text()


def test_the_example_lints_clean(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert example
    path = tmp_path / "example.yaml"
    path.write_text(example[1])
    report = lint_file(read_file(path))
    assert (report.derived, report.reproduced, report.findings) == (3, 3, ())


def test_the_launch_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(examples()["schema"] + examples()["launch"])
    assert dict(read_file(path).recipe.launch)["kind"] == "script"


def test_the_example_of_a_dialect_reads_the_line_that_it_is_made_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(
        examples()["schema"].replace("dialect: nemo2 ", f"{examples()['dialect']}#")
    )
    definition = read_file(path).recipe.log
    assert definition
    log = parse_blocks(
        [b"[rank3]: step    9/50 | loss 2.5 | 7,325.5 ms |\n"], [definition]
    )
    assert (log.segments[0].steps.index[0], log.segments[0].steps.seconds[0]) == (
        9,
        7.3255,
    )


def examples() -> dict[str, str]:
    """The examples of the page by their first key."""
    return {
        text.partition(":")[0]: text
        for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    }


def table_of(definitions: Sequence[KeyDefinition], title: str) -> str:
    """The table of keys as the page has to hold it."""
    lines = [f"| {title} | needed | what it is |", "|---|---|---|"]
    for name, group in groupby(definitions, lambda key: key.name):
        keys = list(group)
        needed = [
            kind for kind in KINDS if any(kind in key.required_in for key in keys)
        ]
        where = "yes" if needed == list(KINDS) else " and ".join(needed)
        lines.append(f"| `{name}` | {where} | {keys[0].meaning} |")
    return "\n".join(lines)


TABLES = {
    "of a file": FILE,
    "of a configuration": CONFIGURATION,
    "of `cells`": CELLS,
    "of `recorded`": RECORDED,
    "of a model": MODEL,
    "of an erratum": ERRATUM,
    "of `log`": LOG,
    "of `launch`": LAUNCH,
    "of a command": COMMAND,
}


@pytest.mark.parametrize(("title", "definitions"), TABLES.items(), ids=TABLES)
def test_the_tables_of_keys_are_those_of_the_schema(
    title: str, definitions: Sequence[KeyDefinition]
) -> None:
    assert table_of(definitions, title) in PAGE
