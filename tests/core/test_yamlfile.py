"""Nodes of YAML files, against the composer of PyYAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.baseline.read import list_shipped_baselines
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.yamlfile import read_root

TEXTS = (
    "",
    "# only a comment\n",
    "---\n",
    "text",
    "[]",
    "- - a\n  - b: 1\n-\n  c:\n  - 010\n  - '010'\n",
    "? {a: [1, {b: c}]}\n: x\n",
    'a: "\\u00e9\\n"\nb: |\n  x\n  y\nc: >-\n  z\n"": ~\nd: yes\n',
    "a: 1\na: 2\n...\n",
)


def describe_mark(mark: Any) -> tuple[int, int, int]:
    return mark.index, mark.line, mark.column


def describe(node: Any) -> Any:
    """Return everything that a node contains, except the text of the file."""
    if node is None:
        return None
    if node.id == "scalar":
        content, style = node.value, node.style
    elif node.id == "sequence":
        content, style = list(map(describe, node.value)), node.flow_style
    else:
        content = [(describe(key), describe(value)) for key, value in node.value]
        style = node.flow_style
    marks = describe_mark(node.start_mark), describe_mark(node.end_mark)
    return node.id, node.tag, style, marks, content


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize("text", TEXTS)
def test_nodes_equal_those_of_pyyaml(
    text: str, loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    if not hasattr(yaml, loader):
        pytest.skip("PyYAML was built without libyaml")
    expected = yaml.compose(text, getattr(yaml, loader))
    monkeypatch.setattr(yaml, "CSafeLoader", getattr(yaml, loader))
    root = read_root(path, what="baseline file", raises=BaselineError)
    assert describe(root) == describe(expected)


def test_nodes_of_shipped_baselines_equal_those_of_pyyaml() -> None:
    paths = list_shipped_baselines()
    assert paths
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in paths:
        root = read_root(path, what="baseline file", raises=BaselineError)
        expected = yaml.compose(path.read_text(encoding="utf-8"), loader)
        assert describe(root) == describe(expected)
