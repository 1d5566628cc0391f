"""The commands on the pages run, and print what the pages show.

A block ```` ```console ```` contains commands after `$ ` and their output. The blocks of a
page run in order, in one folder that contains `examples/`. In the output, a line `...`
stands for any lines, `/.../` for folders of a path, and ages may differ.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AGE = re.compile(r"\b\d+(\.\d+)?[mhdwy]\b|\bin \d+\.\d+s\b")
ANY_LINES = "..."


@dataclass(frozen=True)
class ShownCommand:
    """A command of a page, with the lines that the page shows as its output."""

    text: str
    output: list[str]


def list_commands(page: Path) -> list[ShownCommand]:
    """List the commands of all console blocks of a page."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [command for block in blocks for command in split_block(block)]


def split_block(block: str) -> Iterator[ShownCommand]:
    """Split a block at its prompts. A command has as many lines as bash needs to
    complete it, so it may contain a here-document or a loop."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = text.splitlines()
        end = 1
        while end < len(lines) and not is_complete("\n".join(lines[:end])):
            end += 1
        yield ShownCommand("\n".join(lines[:end]), lines[end:])


def is_complete(command: str) -> bool:
    """True if bash expects no further line."""
    check = subprocess.run(
        ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
    )
    return not (check.returncode or check.stderr or command.endswith("\\"))


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a shell, as a user in a terminal of 80 columns does."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "COLUMNS": "80",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def matches(shown: list[str], printed: list[str]) -> bool:
    """True if the shown lines match all printed lines."""
    if not shown:
        return not printed
    if shown[0] == ANY_LINES:
        ends = range(len(printed) + 1)
        return any(matches(shown[1:], printed[end:]) for end in ends)
    return (
        bool(printed)
        and is_line_shown(shown[0], printed[0])
        and matches(shown[1:], printed[1:])
    )


def is_line_shown(shown: str, printed: str) -> bool:
    """True if a printed line matches a shown line, apart from ages and folders."""
    pattern = re.escape(normalise(shown)).replace(re.escape("/.../"), "/.*/")
    return re.fullmatch(pattern, normalise(printed)) is not None


def normalise(line: str) -> str:
    return AGE.sub("AGE", line.rstrip())


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if list_commands(page)],
    ids=lambda page: str(page.relative_to(CHECKOUT)),
)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(CHECKOUT / "examples", folder / "examples")
    for command in list_commands(page):
        done = run(command.text, folder)
        printed = done.stdout.splitlines()
        if command.output:
            assert matches(command.output, printed), f"$ {command.text}\n{done.stdout}"
        else:
            assert done.returncode == 0, f"$ {command.text}\n{done.stdout}"


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        (["a", "...", "c"], ["a", "b", "b", "c"], True),
        (["a", "...", "c"], ["a", "b"], False),
        (["..."], [], True),
        (["a"], ["a", "b"], False),
        (["log: x/.../y.out"], ["log: x/1/2/y.out"], True),
        (["3d old"], ["1.4y old"], True),
        (["3 runs"], ["4 runs"], False),
        (["3.10 s"], ["3.11 s"], False),
    ],
)
def test_ellipses_and_ages_on_a_page_match_any_printed_text(
    shown: list[str], printed: list[str], expected: bool
) -> None:
    assert matches(shown, printed) is expected


def test_shell_command_on_a_page_may_span_continuation_lines_and_a_heredoc() -> None:
    block = "$ a \\\n  b\nout\n$ c\n$ d <<EOF\ntext\nEOF\n"
    assert list(split_block(block)) == [
        ShownCommand("a \\\n  b", ["out"]),
        ShownCommand("c", []),
        ShownCommand("d <<EOF\ntext\nEOF", []),
    ]
