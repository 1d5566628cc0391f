"""What a session of the plugin said, for tests to look at."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Judged:
    """What a session said: by test id its outcome and its dictionary, and the whole
    result."""

    def __init__(self, record: pytest.HookRecorder) -> None:
        self.ret = record.ret
        reports: list[Any] = record.getreports("pytest_runtest_logreport")  # type: ignore[assignment]
        every = [report for report in reports if hasattr(report, "llmb")]
        self.reports: list[dict[str, Any]] = json.loads(
            json.dumps([report.llmb for report in every])
        )
        told = [report for report in every if report.llmb["kind"] != "check"]
        self.described = {
            plain["id"]: plain for plain in self.reports if plain["kind"] != "check"
        }
        self.verdicts = {
            identifier: plain.get("verdict") or plain["reason"]
            for identifier, plain in self.described.items()
        }
        self.statuses = {one.llmb["id"]: one.outcome for one in told}
        self.findings = [
            report["verdict"] for report in self.reports if report["kind"] == "check"
        ]
        self.nodeids = [one.nodeid for one in told]
        self.properties = {one.llmb["id"]: dict(one.user_properties) for one in told}
        self.messages = {one.llmb["id"]: str(one.longrepr) for one in told}


Judge = Callable[..., Judged]
"""Run pytest with these arguments in this process."""

Write = Callable[..., Path]
"""Write a run of a configuration (id, options of the generator) and return the folder
of all of them."""


def until(condition: Callable[[], object], seconds: float = 180) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


Moment = tuple[ModuleType | type, str]
"""A function, by what it stands in and its name."""


def signal_at(
    patch: pytest.MonkeyPatch, moment: Moment, number: int, calls: int = 1
) -> None:
    """Send this process a signal when a function is called for the `calls`-th time, as
    timeout(1) does: twice."""
    owner, name = moment
    original: Callable[..., Any] = getattr(owner, name)
    left = calls

    def interrupted(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(number)
            signal.raise_signal(number)
        return original(*given, **named)

    patch.setattr(owner, name, interrupted)
