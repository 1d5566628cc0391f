"""Sessions of the plugin over generated runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.__main__ import shipped

from pytest_llmbench.models import Baseline

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
def generated(tmp_path: Path, baselines: dict[str, Baseline]) -> Callable[..., Path]:
    """Write a run of a configuration (id, options of the generator) below one folder, and return the folder."""
    folder = tmp_path / "runs"
    folder.mkdir()

    def write(identifier: str, **options: Any) -> Path:
        write_run(folder, baselines[identifier], **options)
        return folder

    return write


class Judged:
    """What a session said: by test id its outcome and its dictionary, and the whole result."""

    def __init__(self, record: pytest.HookRecorder) -> None:
        self.ret = record.ret  # type: ignore[attr-defined]
        reports: list[Any] = record.getreports("pytest_runtest_logreport")  # type: ignore[assignment]
        told = [report for report in reports if hasattr(report, "llmb")]
        self.verdicts = {one.llmb["id"]: one.llmb.get("verdict", one.llmb["reason"]) for one in told}
        self.described = {one.llmb["id"]: one.llmb for one in told}
        self.statuses = {one.llmb["id"]: one.outcome for one in told}
        self.nodeids = [one.nodeid for one in told]
        self.properties = {one.llmb["id"]: dict(one.user_properties) for one in told}
        self.messages = {one.llmb["id"]: str(one.longrepr) for one in told}


@pytest.fixture
def judged(pytester: pytest.Pytester) -> Callable[..., Judged]:
    """Run pytest in this process and return what it said."""

    def run(*arguments: str) -> Judged:
        return Judged(pytester.inline_run("-p", "no:cacheprovider", *arguments))

    return run
