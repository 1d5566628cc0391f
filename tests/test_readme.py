"""The README shows what the commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from pytest_llmbench.options import OPTIONS

CHECKOUT = Path(__file__).resolve().parents[1]
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
    for line in (line for line in shown if line.strip("= .")):
        head, elided, tail = line.partition("/.../")
        if elided:
            assert any(other.startswith(head) and other.endswith(tail) for other in printed), line
        else:
            assert normal(line) in printed, line


def test_every_option_is_in_the_table() -> None:
    for option in OPTIONS:
        follows = "`" if option.is_flag else "[=" if option.alone else "="
        assert f"`{option.flag}{follows}" in README, option.flag


def test_every_page_that_is_linked_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (CHECKOUT / link).exists()] == []
