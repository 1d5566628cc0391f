"""The environment of measured processes."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name != "PYTHONDONTWRITEBYTECODE"
}
"""With this variable every session would compile the package, and pytest rewrite its
assertions, anew."""


def use_package(tree: Path) -> dict[str, str]:
    """Return the environment in which the package of a tree is imported."""
    return ENVIRONMENT | {"PYTHONPATH": str(tree)}
