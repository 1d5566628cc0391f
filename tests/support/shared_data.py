"""Real logs and documents in the folder next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("LLMB_SHARED", Path(__file__).resolve().parents[3] / "shared")
)


def shared(name: str) -> Path:
    """Return the path of a shared file or folder, or skip the test if it is missing.

    Under LLMB_REQUIRE_SHARED the test fails instead.
    """
    path = SHARED / name
    if path.exists():
        return path
    message = f"needs {name} of the shared data, which is not at {SHARED}"
    if os.environ.get("LLMB_REQUIRE_SHARED"):
        pytest.fail(message)
    pytest.skip(message)
