"""The environment of measured processes."""

from __future__ import annotations

import os

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name != "PYTHONDONTWRITEBYTECODE"
}
"""With this variable every session would compile the package, and pytest rewrite its
assertions, anew."""
