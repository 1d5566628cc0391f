"""The examples of docs/reference/baseline-files.md are read."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import read_file

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "baseline-files.md"


def test_example_baseline_file_has_no_lint_findings(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(read_examples()["schema"])
    report = lint_file(read_file(path))
    assert (report.derived, report.reproduced, report.findings) == (3, 3, ())


def test_launch_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    smallest, complete = read_all_examples("launch")
    for example in (smallest, complete):
        path.write_text(read_examples()["schema"] + example)
        assert dict(read_file(path).recipe.launch)["kind"] == "script"


def test_budgets_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(read_examples()["schema"] + read_examples()["budgets"])
    budgets = read_file(path).budgets
    assert [budget.largest for budget in budgets] == [120, 5, 60]


def read_examples() -> dict[str, str]:
    """Return the first example with each first key."""
    examples: dict[str, str] = {}
    for text in list_examples():
        examples.setdefault(text.partition(":")[0], text)
    return examples


def read_all_examples(key: str) -> list[str]:
    """Return the examples that begin with a key."""
    return [text for text in list_examples() if text.startswith(f"{key}:")]


def list_examples() -> list[str]:
    """Return the YAML examples of the page."""
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
