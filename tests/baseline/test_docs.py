"""docs/baselines.md agrees with the code: its examples are read and no key is
missing."""

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


def test_example_lints_clean(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert example
    path = tmp_path / "example.yaml"
    path.write_text(example[1])
    report = lint_file(read_file(path))
    assert (report.derived, report.reproduced, report.findings) == (3, 3, ())


def test_launch_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(read_examples()["schema"] + read_examples()["launch"])
    assert dict(read_file(path).recipe.launch)["kind"] == "script"


def test_dialect_example_reads_its_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(
        read_examples()["schema"].replace(
            "dialect: nemo2 ", f"{read_examples()['dialect']}#"
        )
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


def read_examples() -> dict[str, str]:
    """Return the examples of the page by their first key."""
    return {
        text.partition(":")[0]: text
        for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    }


def render_table(definitions: Sequence[KeyDefinition], title: str) -> str:
    """Render the table of keys that the page must contain."""
    lines = [f"| {title} | needed | what it is |", "|---|---|---|"]
    for name, group in groupby(definitions, lambda key: key.name):
        keys = list(group)
        needed = [
            kind for kind in KINDS if any(kind in key.required_in for key in keys)
        ]
        required = "yes" if needed == list(KINDS) else " and ".join(needed)
        lines.append(f"| `{name}` | {required} | {keys[0].meaning} |")
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
def test_key_tables_match_the_schema(
    title: str, definitions: Sequence[KeyDefinition]
) -> None:
    assert render_table(definitions, title) in PAGE
