"""Shell completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from pytest_llmbench.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"


def complete(folder: Path, line: str, program: str = PROGRAM) -> list[str]:
    """Return the completions that argcomplete gives to the shell for a line."""
    answer = folder / "answer"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SHELL": "fish",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    return (
        [line.split("\t")[0].strip() for line in answer.read_text().splitlines()]
        if answer.exists()
        else []
    )


@pytest.mark.slow
def test_commands_options_and_formats_are_completed(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    assert complete(tmp_path, "llmbench hi") == ["history"]
    assert {"list", "show", "export", "prune", "add"} <= set(
        complete(tmp_path, "llmbench history ")
    )
    assert complete(tmp_path, "llmbench history export --form") == ["--format"]
    assert set(complete(tmp_path, "llmbench history export --format ")) == {
        "csv",
        "parquet",
        "json",
        "jsonl",
    }


@pytest.mark.slow
def test_completion_without_the_extra_has_no_effect(
    tmp_path: Path,
) -> None:
    """The shell must see neither a traceback nor the output of a command."""
    hidden = f"import sys; sys.modules['argcomplete'] = None; {PROGRAM}"
    assert complete(tmp_path, "llmbench history list", hidden) == []


# --- the shells themselves ------------------------------------------------------------

FISH = """\
register-python-argcomplete --shell fish llmbench | source
complete -C 'llmbench hi'
complete -C 'llmbench history export --form'
complete -C 'llmbench history export --format '
"""

ZSH = """\
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=READY_; autoload -Uz compinit; compinit -u -d dump; eval "$(register-python-argcomplete llmbench)"; pwd'
zpty -r -m z answer "*$PWD*READY_*"
zpty -w -n z $'llmbench history export --form\t'
zpty -r -m z answer '*--format*'
print -r -- "$answer"
"""
"""A line that is typed into a zsh in a terminal of its own, up to the Tab key; the file
stands behind compinit."""

BASH = """\
eval "$(register-python-argcomplete llmbench)"
COMP_LINE='llmbench history export --form' COMP_POINT=30 COMP_TYPE=9
_python_argcomplete llmbench --form export
echo "${COMPREPLY[@]}"
"""


def type_into(shell: str, folder: Path, script: str) -> str:
    """Return what a script of a shell prints, with the commands of this environment;
    skipped where it is missing."""
    pytest.importorskip("argcomplete")
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}, which is not installed")
    commands = Path(sys.executable).parent
    if (
        not (commands / "llmbench").exists()
        or not (commands / "register-python-argcomplete").exists()
    ):
        pytest.skip(f"needs llmbench and register-python-argcomplete in {commands}")
    (folder / "script").write_text(script)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
    }
    plain = {"zsh": ["-f"], "bash": ["--norc"], "fish": ["--no-config"]}[shell]
    process = subprocess.run(
        [program, *plain, "script"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_fish_completion_works_as_documented(tmp_path: Path) -> None:
    lines = [
        line.split("\t")[0] for line in type_into("fish", tmp_path, FISH).splitlines()
    ]
    assert lines[:2] == ["history", "--format"]
    assert set(lines[2:]) == {"csv", "parquet", "json", "jsonl"}


@pytest.mark.slow
def test_zsh_completion_works_as_documented(tmp_path: Path) -> None:
    assert "--format" in type_into("zsh", tmp_path, ZSH)


@pytest.mark.slow
def test_bash_completion_works_as_documented(tmp_path: Path) -> None:
    assert type_into("bash", tmp_path, BASH).split() == ["--format"]
