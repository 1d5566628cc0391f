"""Who records a baseline, for the file that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.formatting import escape

if TYPE_CHECKING:
    from pytest_llmbench.launch.slurm.runner import Runner

SECONDS = 5
"""Git answers at once, or its folder hangs."""


def author(directory: Path, environment: Mapping[str, str], host: str, run: Runner) -> str:
    """Return `alice@example.com on login1`: the e-mail address that git knows in this folder, else the user's name."""
    done = run(["git", "-C", str(directory), "config", "user.email"], timeout=SECONDS)
    stated = done.out.strip() if done.code == 0 else ""
    names = (stated, environment.get("USER", ""), environment.get("LOGNAME", ""))
    who = next((name.strip() for name in names if name.strip()), "somebody")
    return escape(f"{who} on {host}" if host else who)
