"""Options without a value, and errors of misused options."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.options import TYPED_OPTIONS


def test_path_after_an_option_without_value_is_a_test_path(
    pytester: pytest.Pytester,
) -> None:
    """`--llmb-logs PATH` is refused for what pytest does with the path; a flag takes
    none."""
    pytester.makepyfile(test_mine="def test_it(llmb_case): pass")
    config = pytester.parseconfigure(
        "-p", "no:cacheprovider", "--llmb-logs=.", "--llmb-certify", "test_mine.py"
    )
    assert config.args == ["test_mine.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--llmb-certify"],
            "--llmb-certify has no effect without runs: add --llmb-logs=PATH",
        ),
        (["--llmb-logs=" + "x" * 300], "File name too long"),
        (["--llmb-logs=.", "--llmb-certify=yes"], "ignored explicit argument 'yes'"),
        (
            ["--llmb-logs=.", "--llmb-certify", "--llmb-record=own"],
            "--llmb-certify with --llmb-record",
        ),
    ],
)
def test_misused_option_is_reported_in_one_line(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_option_missing_from_the_command_line_has_the_value_none(
    pytester: pytest.Pytester,
) -> None:
    """An idle session is known by it."""
    config = pytester.parseconfig()
    assert {
        config.getoption(name_destination(option.flag)) for option in TYPED_OPTIONS
    } == {None}
