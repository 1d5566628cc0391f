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
    path.write_text(read_examples()["schema"] + read_examples()["launch"])
    assert dict(read_file(path).recipe.launch)["kind"] == "script"


def test_budgets_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(read_examples()["schema"] + read_examples()["budgets"])
    budgets = read_file(path).budgets
    assert [budget.largest for budget in budgets] == [120, 5, 60]


def read_examples() -> dict[str, str]:
    """Read the examples of the page, by their first key."""
    blocks = re.findall(
        r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return {text.partition(":")[0]: text for text in blocks}
