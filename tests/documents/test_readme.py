"""The README shows what the commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from pytest_llmbench.core.options import OPTIONS

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def normal(line: str) -> str:
    """Ages grow."""
    return re.sub(r"\b[\d.]+[mhdy]( old)?$", "AGE", line.rstrip())


def test_the_run_that_is_shown_prints_what_is_shown() -> None:
    (block,) = re.findall(r"```\n\$ pytest (.*?)```", README, re.DOTALL)
    command, *shown = block.splitlines()
    arguments = [sys.executable, "-Im", "pytest", "-p", "no:cacheprovider", *shlex.split(command)]
    done = subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    printed = [normal(line) for line in done.stdout.splitlines()]
    for part in "\n".join(shown).split("...\n"):  # only what stands for it is left out
        wanted = [normal(line) for line in part.splitlines()]
        starts = [start for start, line in enumerate(printed) if wanted and is_shown(line, wanted[0])]
        assert not wanted or any(matches(printed[start:], wanted) for start in starts), part


def matches(printed: list[str], wanted: list[str]) -> bool:
    return len(printed) >= len(wanted) and all(map(is_shown, printed, wanted))


def is_shown(printed: str, wanted: str) -> bool:
    """The folders of a path may be left out: `/.../`."""
    head, elided, tail = wanted.partition("/.../")
    return printed.startswith(head) and printed.endswith(tail) if elided else printed == wanted


def test_every_option_is_in_the_table() -> None:
    for option in OPTIONS:
        follows = "`" if option.is_flag else "[=" if option.alone else "="
        assert f"`{option.flag}{follows}" in README, option.flag


def test_every_page_that_is_linked_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (CHECKOUT / link).exists()] == []
