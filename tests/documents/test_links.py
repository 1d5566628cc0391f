"""Every file and module that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_llmbench.core.options import JUDGING_OPTIONS, LAUNCH_OPTIONS, REPLACEMENTS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").rglob("*.md"))]
LEAST_LINKS = {"README.md": 8, "index.md": 20}
"""Pages that lead to others, with their least number of links: if the pattern found no
links at all, the test would pass."""

USERS_FILES = {"NAME.py", "NAME_command.py", "test_KIND.py", "test_mine.py"}
"""Files that a page asks the reader to write."""


def name_page(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_linked_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://)([^)#]+)[)#]", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert len(links) >= LEAST_LINKS.get(page.name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_python_files_named_on_a_page_exist(page: Path) -> None:
    folders = ("pytest_llmbench", "tests", "examples", "benchmarks", "scripts")
    files = (file for folder in folders for file in (CHECKOUT / folder).rglob("*.py"))
    modules = {file.name for file in files} | {"conftest.py", "conf.py"}
    text = page.read_text(encoding="utf-8")
    named = {Path(name).name for name in re.findall(r"`([\w./-]*?\w\.py)`", text)}
    assert named - modules - USERS_FILES == set()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_command_line_options_named_on_a_page_exist(page: Path) -> None:
    options = {option.flag for option in (*JUDGING_OPTIONS, *LAUNCH_OPTIONS)}
    if page.name == "CHANGELOG.md":
        options |= set(REPLACEMENTS)
    named = re.findall(
        r"(?<![\w-])--llmb-[a-z-]+[a-z]", page.read_text(encoding="utf-8")
    )
    assert set(named) - options == set()
