"""Real logs and documents that stand beside the checkout and never inside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("LLMB_SHARED", Path(__file__).resolve().parents[3] / "shared")
)


def shared(name: str) -> Path:
    """Return a shared file or folder; where it is absent skip the test, or fail it
    under LLMB_REQUIRE_SHARED."""
    path = SHARED / name
    if path.exists():
        return path
    message = f"needs {name} of the shared data, which is not at {SHARED}"
    if os.environ.get("LLMB_REQUIRE_SHARED"):
        pytest.fail(message)
    pytest.skip(message)
