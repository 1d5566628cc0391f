"""Launching from a pytest session: when nothing must be launched, and what somebody who stops it is told."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.plugin.collection import PERFORMANCE, add_checks
from pytest_llmbench.plugin.stash import INFORMATION, SESSION, SUITE_ID, checked, selected


def launched(session: pytest.Session) -> bool:
    """Launch what is selected, if anything may be; whether the session ends with that."""
    return _may_launch(session) and _launch(session)


def _may_launch(session: pytest.Session) -> bool:
    """Whether a session does more than to tell something, and could collect everything."""
    return not session.testsfailed and not any(session.config.getoption(name, None) for name in INFORMATION)


def _launch(session: pytest.Session) -> bool:
    """Launch what is selected; whether the session ends with that."""
    from pytest_llmbench.pipeline.launch.stopping import Interrupted

    config = session.config
    _refuse_all_failed(session)
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)
            reporter.flush()  # a CI log is no terminal: lines would stay in the buffer for hours

    tell("")
    try:
        ends: bool = checked(lambda: config.stash[SESSION].launch(list(selected(session.items)), tell))
    except Interrupted as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.INTERRUPTED)
    if not ends:
        add_checks(session)
    return ends


def _refuse_all_failed(session: pytest.Session) -> None:
    """Refuse --lf where no selected item is known to have failed: pytest would run all, and all would be launched."""
    cache = getattr(session.config, "cache", None)
    if not session.config.getoption("lf", False) or cache is None:
        return
    failed = cache.get("cache/lastfailed", {})
    if any(item.nodeid in failed for item in session.items):
        return
    told = "--lf: none of the selected items is known to have failed, so nothing is launched"
    raise pytest.UsageError(f"{told}{_failed_checks(failed)}")


def _failed_checks(failed: Collection[str]) -> str:
    """Return what to do where items failed that only a launch has; empty without such."""
    own = (node for node in failed if node.startswith(f"{SUITE_ID}/") and f"/{PERFORMANCE}.py::" not in node)
    names = [node.rpartition("::")[2] for node in own]
    if not names:
        return ""
    return f"; {join_first(names)} failed, and follows from what was launched: leave out --lf to launch it again"
