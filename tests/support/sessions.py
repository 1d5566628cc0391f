"""Results of plugin sessions, for tests to inspect."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class JudgedSession:
    """The result of a session: its exit code, and outcomes by configuration id."""

    def __init__(self, record: pytest.HookRecorder) -> None:
        self.ret = record.ret
        reports: list[Any] = record.getreports("pytest_runtest_logreport")  # type: ignore[assignment]
        item_reports = [report for report in reports if hasattr(report, "llmb")]
        self.reports: list[dict[str, Any]] = json.loads(
            json.dumps([report.llmb for report in item_reports])
        )
        configuration_reports = [
            report for report in item_reports if report.llmb["kind"] != "check"
        ]
        self.described = {
            plain["id"]: plain for plain in self.reports if plain["kind"] != "check"
        }
        self.verdicts = {
            identifier: plain.get("verdict") or plain["reason"]
            for identifier, plain in self.described.items()
        }
        self.statuses = {
            report.llmb["id"]: report.outcome for report in configuration_reports
        }
        self.findings = [
            report["verdict"] for report in self.reports if report["kind"] == "check"
        ]
        self.nodeids = [report.nodeid for report in configuration_reports]
        self.properties = {
            report.llmb["id"]: dict(report.user_properties)
            for report in configuration_reports
        }
        self.messages = {
            report.llmb["id"]: str(report.longrepr) for report in configuration_reports
        }


Judge = Callable[..., JudgedSession]
"""Run pytest with these arguments in this process."""

Write = Callable[..., Path]
"""Write a run of a configuration and return the folder of all runs. The arguments are
an id and options of the generator."""


def wait_until(condition: Callable[[], object], seconds: float = 180) -> None:
    """Wait until `condition` returns a true value."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


Function = tuple[ModuleType | type, str]
"""A function: the module or class that contains it, and its name."""


def signal_at(
    patch: pytest.MonkeyPatch, function: Function, number: int, calls: int = 1
) -> None:
    """Raise a signal twice in the `calls`-th call of a function, as timeout(1) does."""
    owner, name = function
    original: Callable[..., Any] = getattr(owner, name)
    remaining = calls

    def interrupted(*positional: Any, **keywords: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            signal.raise_signal(number)
            signal.raise_signal(number)
        return original(*positional, **keywords)

    patch.setattr(owner, name, interrupted)
