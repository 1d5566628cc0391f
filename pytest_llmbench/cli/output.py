"""What a subcommand prints, and how it is printed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple, TypeAlias

WIDTH = 79

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a subcommand adds its own parser."""


class Output(NamedTuple):
    """What a subcommand prints, also to standard error (`aside`), and its exit code: 1 where something is wrong."""

    text: str
    code: int = 0
    aside: str = ""


def tell(text: str) -> None:
    """Print, and be quiet when the reader (`| head`) has gone."""
    try:
        print(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Python flushes standard output again at exit, and would print the error there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
