"""The README shows what the commands print; every page is there and linked."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def normal(line: str) -> str:
    """Ages grow."""
    return re.sub(r"\b[\d.]+[mhdy]( old)?$", "AGE", line.rstrip())


@pytest.mark.slow
def test_the_run_that_is_shown_prints_what_is_shown() -> None:
    (block,) = re.findall(r"```\n\$ pytest (.*?)```", README, re.DOTALL)
    command, *shown = block.splitlines()
    arguments = [
        sys.executable,
        "-Im",
        "pytest",
        "-p",
        "no:cacheprovider",
        *shlex.split(command),
    ]
    done = subprocess.run(
        arguments,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed = [normal(line) for line in done.stdout.splitlines()]
    for part in "\n".join(shown).split("...\n"):  # only what stands for it is left out
        wanted = [normal(line) for line in part.splitlines()]
        starts = [
            start
            for start, line in enumerate(printed)
            if wanted and is_shown(line, wanted[0])
        ]
        assert not wanted or any(
            matches(printed[start:], wanted) for start in starts
        ), part


def matches(printed: list[str], wanted: list[str]) -> bool:
    return len(printed) >= len(wanted) and all(map(is_shown, printed, wanted))


def is_shown(printed: str, wanted: str) -> bool:
    """The folders of a path may be left out: `/.../`."""
    head, elided, tail = wanted.partition("/.../")
    return (
        printed.startswith(head) and printed.endswith(tail)
        if elided
        else printed == wanted
    )


PAGES = (
    CHECKOUT / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "SECURITY.md",
    *sorted((CHECKOUT / "docs").glob("*.md")),
)


HUBS = {"README.md": 12, "index.md": 20}
"""The pages that lead to others, with how many links they have at least: a pattern that
finds none proves nothing."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_that_is_linked_is_there(page: Path) -> None:
    links = re.findall(
        r"\]\((?!https?://)([^)#]+)[)#]", page.read_text(encoding="utf-8")
    )
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert len(links) >= HUBS.get(page.name, 0)


USERS_FILES = {"NAME.py", "NAME_command.py", "test_KIND.py", "test_mine.py"}
"""Files that a page tells the reader to make."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    folders = ("pytest_llmbench", "tests", "examples", "benchmarks", "scripts")
    modules = {
        file.name for folder in folders for file in (CHECKOUT / folder).rglob("*.py")
    } | {"conftest.py"}
    named = {
        Path(name).name
        for name in re.findall(r"`([\w./-]*?\w\.py)`", page.read_text(encoding="utf-8"))
    }
    assert named - modules - USERS_FILES == set()
    assert page.name != "statistics.md" or len(named) >= 12


def test_every_page_is_in_the_index() -> None:
    index = CHECKOUT / "docs" / "index.md"
    linked = set(re.findall(r"\]\(([^)#/]+\.md)\)", index.read_text(encoding="utf-8")))
    assert linked == {page.name for page in index.parent.glob("*.md")} - {index.name}
