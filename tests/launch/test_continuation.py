"""The commands that collect or resume a session."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pytest_llmbench.launch.continuation import (
    format_collect_command,
    format_resume_command,
)

SESSION = "20261121-0545-3f9a"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["--llmb-submit-only"], []),
        (
            ["-k", "grok1 and fp8", "--llmb-submit-only", "--llmb-gpu=h100"],
            ["-k", "grok1 and fp8", "--llmb-gpu=h100"],
        ),
        (
            [
                "--llmb-tolerance=1%",
                "--llmb-certify",
                "--llmb-submit-only",
                "--llmb-inconclusive",
                "fail",
                "-q",
            ],
            ["--llmb-tolerance=1%", "--llmb-certify", "--llmb-inconclusive", "fail"],
        ),
        (
            ["--llmb-acknowledged", "/ci/known.yaml", "--llmb-submit-only"],
            ["--llmb-acknowledged=/ci/known.yaml"],
        ),
        (
            ["-o", "llmb_assumed_cv=5%", "-o", "llmb_history=x.db"],
            ["-o", "llmb_assumed_cv=5%"],
        ),
        (["-ollmb_tolerance=1%", "-olog_level=INFO"], ["-ollmb_tolerance=1%"]),
        (
            [
                "--llmb-json=out.json",
                "--llmb-logs=logs",
                "--llmb-max-jobs=8",
                "--llmb-submit-only",
            ],
            [],
        ),
        (
            ["-kgrok1", "-m", "llmb(gpus=128)", "--llmb-resume"],
            ["-kgrok1", "-m", "llmb(gpus=128)"],
        ),
    ],
)
def test_collect_command_works_from_any_folder(
    command: list[str], words: list[str]
) -> None:
    command_text = format_collect_command(
        SESSION, Path("/lustre/the journal"), [Path("/lustre/" + 40 * "b")], command
    )
    assert shlex.split(command_text.replace("\\\n", "")) == [
        "pytest",
        *words,
        "--llmb-collect",
        f"--llmb-session={SESSION}",
        "--llmb-journal=/lustre/the journal",
        f"--llmb-baselines=/lustre/{40 * 'b'}",
    ]
    assert all(len(line) < 80 for line in command_text.splitlines())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["--llmb-collect", "-k", "fake", "--junitxml=a b.xml"],
            ["-k", "fake", "--junitxml=a b.xml"],
        ),
        (["--llmb-collect", f"--llmb-session={SESSION}", "-q"], ["-q"]),
        (["--llmb-collect", "--llmb-session", SESSION, "-q"], ["-q"]),
        (
            ["--llmb-collect", "--llmb-history=postgresql://me:pw@db/x"],
            ["--llmb-history=postgresql://me:***@db/x"],
        ),
    ],
)
def test_resume_command_keeps_the_options(command: list[str], words: list[str]) -> None:
    assert shlex.split(format_resume_command(SESSION, command)) == [
        "pytest",
        *words,
        "--llmb-resume",
        f"--llmb-session={SESSION}",
    ]
