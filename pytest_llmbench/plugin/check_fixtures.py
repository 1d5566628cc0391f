"""The fixtures of the checks over several configurations: one for each row of `CHECKS`.

They are registered where runs are judged or somebody asks for one: the table costs an idle session a third of all that
the plugin does in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.pipeline.session_checks import CHECKS
from pytest_llmbench.plugin.fixtures import get_case
from pytest_llmbench.plugin.stash import DESCRIBED, MESSAGE, get_session

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Check


def _make_fixture(name: str, meaning: str) -> object:
    def describe_check(request: pytest.FixtureRequest) -> Check:
        case = get_case(request)
        check, described = get_session(request.config).describe_check(case)
        if DESCRIBED not in request.node.stash:  # the verdict on a configuration comes first
            request.node.stash[DESCRIBED], request.node.stash[MESSAGE] = described, check.message
        return check

    # `pytest --fixtures` shows the docstring of the function.
    describe_check.__doc__ = meaning
    return pytest.fixture(name=name)(describe_check)


# pytest finds the fixtures of a plugin among the names of its module.
for _kind, (_, _meaning) in CHECKS.items():
    _name = _kind.test_name.replace("test_", "llmb_")
    globals()[_name] = _make_fixture(_name, _meaning)
