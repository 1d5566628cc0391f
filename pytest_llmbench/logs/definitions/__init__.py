"""Shipped dialect definitions, one TOML file per framework.

A file has the keys of `log` in a baseline file. The definitions are tried on logs in
which no other dialect finds a step.
"""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf

NAMES = (
    "automodel",
    "deepspeed",
    "llm_c",
    "modded_nanogpt",
    "nanochat",
    "nanotron",
    "olmo",
    "prime_rl",
    "verl",
)


@cache
def load_definitions() -> dict[str, RegexDialect]:
    """Return the shipped dialects by name."""
    return {name: _load(name) for name in NAMES}


def _load(name: str) -> RegexDialect:
    """Read the dialect of a file in this folder."""
    data = pkgutil.get_data(__name__, f"{name}.toml") or b""
    values = tomllib.loads(data.decode())
    times_of = TimesOf(values.pop("averages", TimesOf.SINGLE))
    return RegexDialect(name, averages=times_of, shipped=True, **values)
