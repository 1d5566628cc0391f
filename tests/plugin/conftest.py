"""Sessions of the plugin over generated runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.__main__ import shipped
from sessions import Judge, Judged, Write

# pytester forgets what a session imported, but its package does not: a second one would compare enums of two modules
import pytest_llmbench.judge.decide  # noqa: F401
from pytest_llmbench.core.models import Baseline

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "experiments"


@pytest.fixture
def examples() -> Path:
    """The committed example runs."""
    return EXAMPLES


@pytest.fixture(scope="session")
def baselines() -> dict[str, Baseline]:
    """The shipped baselines by id."""
    return shipped()


@pytest.fixture
def generated(tmp_path: Path, baselines: dict[str, Baseline]) -> Write:
    """Write a run of a configuration (id, options of the generator) below one folder, and return the folder."""
    folder = tmp_path / "runs"
    folder.mkdir()

    def write(identifier: str, **options: Any) -> Path:
        write_run(folder, baselines[identifier], **options)
        return folder

    return write


@pytest.fixture
def judged(pytester: pytest.Pytester) -> Judge:
    """Run pytest in this process and return what it said."""

    def run(*arguments: str) -> Judged:
        return Judged(pytester.inline_run("-p", "no:cacheprovider", *arguments))

    return run
