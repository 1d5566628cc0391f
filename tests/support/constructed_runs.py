"""Synthetic days for tests of the gate: hidden slowdowns, and odd but healthy runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from generator import write_run

from pytest_llmbench.core.baseline_records import Baseline

NEMO2 = "llama3.1_8b-25.04-h100-fp8-16"
BF16 = "llama3.1_8b-25.04-h100-bf16-16"
NEMO2_LAUNCHER = "grok1_314b-25.05-gb200-bf16-128"
NEMO1 = "nemotron4_340b-25.01-h100-bf16-128"
GROK = "grok1_314b-24.11-h100-bf16-64"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-128"

Edit = Callable[[str], str]
"""Return an edited copy of a log text."""


@dataclass
class RunFolder:
    """A folder to which tests add runs.

    The newest run began three hours ago, and earlier runs whole days before.
    """

    folder: Path
    baselines: Mapping[str, Baseline]
    newest: datetime = field(
        default_factory=lambda: (
            datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
        )
    )
    number: int = 5000

    def write(
        self,
        identifier: str = NEMO2,
        *,
        days: float = 0,
        edit: Edit | None = None,
        **options: Any,
    ) -> Path:
        """Write a run that began `days` before the newest run, and return its log."""
        self.number += 1
        defaults = {
            "started": self.newest - timedelta(days=days),
            "job_id": str(self.number + 1000 * (9 - int(days))),
        }
        path = write_run(self.folder, self.baselines[identifier], **defaults | options)
        if edit is not None:
            rewrite(path, edit)
        return path

    def good(self, identifier: str = NEMO2, *, days: float = 1, **options: Any) -> Path:
        """Write a healthy run of an earlier day."""
        return self.write(identifier, days=days, **options)


def rewrite(path: Path, edit: Edit) -> None:
    """Edit a file's text and keep its modification time."""
    import os

    stamp = path.stat().st_mtime
    path.write_bytes(edit(path.read_bytes().decode("utf-8")).encode("utf-8"))
    os.utime(path, (stamp, stamp))


def replace(
    pattern: str, by: str | Callable[[re.Match[str]], str], count: int = 0
) -> Edit:
    """Build the edit that replaces the matches of a regular expression."""
    return lambda text: re.sub(pattern, by, text, count=count)


def change_steps(
    change: Callable[[int, str], str | None], name: str = "iteration"
) -> Edit:
    """Build the edit that applies `change` to each NeMo 2 step line.

    `change` gets the step number and the line, and returns the new line or None to drop
    it.
    """

    def edit(text: str) -> str:
        lines = []
        for line in text.splitlines(keepends=True):
            match = re.search(rf"{name} (\d+)/", line)
            changed = change(int(match.group(1)), line) if match else line
            lines.append(changed or "")
        return "".join(lines)

    return edit


def change_times(
    scale: Callable[[int, float], str], first: int = 0, last: int = 10**9
) -> Edit:
    """Build the edit that rewrites the step times from step `first` to `last`."""

    def change(step: int, line: str) -> str:
        if not first <= step <= last:
            return line
        return re.sub(
            r"(?<=timing in s: )[\d.]+",
            lambda match: scale(step, float(match.group())),
            line,
        )

    return change_steps(change)
