"""Options without a value, and how the command line and the ini file reach the settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.options import OPTIONS
from pytest_llmbench.pipeline.settings import CERTIFIED, Settings
from pytest_llmbench.plugin.stash import SESSION

INI = (
    "[pytest]\nllmb_tolerance = 6%, mfu:3%\nllmb_repeat_window = 2h\nllmb_assumed_cv = 0.5%\nllmb_inconclusive = skip\n"
)


def settings_of(pytester: pytest.Pytester, *arguments: str) -> Settings:
    config = pytester.parseconfigure("-p", "no:cacheprovider", "--llmb-logs=.", *arguments)
    return config.stash[SESSION].settings


@pytest.mark.slow
def test_flags_are_off_until_they_are_typed(pytester: pytest.Pytester) -> None:
    settings = settings_of(pytester)
    assert (settings.certify, settings.selftest) == (False, False)
    settings = settings_of(pytester, "--llmb-certify", "--llmb-selftest")
    assert (settings.certify, settings.selftest) == (True, True)
    assert settings.tolerances == (CERTIFIED,)


def test_the_ini_file_decides_where_nothing_is_typed(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    settings = settings_of(pytester)
    assert [(str(one), one.source) for one in settings.tolerances] == [
        ("6 %", "ini"),
        ("3 % of mfu (+3.09 % time)", "ini"),
    ]
    assert (settings.repeat_window, settings.assumed_cv) == (timedelta(hours=2), 0.005)
    assert settings.inconclusive == "skip"


@pytest.mark.slow
def test_what_is_typed_replaces_what_the_ini_file_says_of_the_same(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    settings = settings_of(pytester, "--llmb-tolerance=perf:8%", "--llmb-repeat-window=0")
    assert [one.source for one in settings.tolerances] == ["--llmb-tolerance", "ini"]
    assert settings.repeat_window is None
    assert settings_of(pytester, "--llmb-certify").inconclusive == "fail", "an ini file is no reason to skip"


def test_a_path_behind_a_flag_is_a_path(pytester: pytest.Pytester) -> None:
    """`--llmb-logs PATH` is refused for what pytest does with the path; a flag takes none."""
    pytester.makepyfile(test_mine="def test_it(llmb_case): pass")
    config = pytester.parseconfigure("-p", "no:cacheprovider", "--llmb-logs=.", "--llmb-certify", "test_mine.py")
    assert config.args == ["test_mine.py"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--llmb-certify"], "--llmb-certify has no runs to work on: add --llmb-logs=PATH"),
        (["--llmb-selftest"], "--llmb-selftest has no runs to work on: add --llmb-logs=PATH"),
        (["--llmb-logs=" + "x" * 300], "File name too long"),
        (["--llmb-logs=.", "--llmb-certify=yes"], "ignored explicit argument 'yes'"),
        (["--llmb-logs=.", "--llmb-certify", "--llmb-record=own"], "--llmb-certify with --llmb-record"),
        (["--llmb-logs=.", "--llmb-certify", "--llmb-inconclusive=literal"], "a certificate does not rest on"),
        (["--llmb-logs=.", "--llmb-assumed-cv=0"], "--llmb-assumed-cv=0: found '0', that is 0 %"),
        (["--llmb-logs=.", "--llmb-tolerance=peak_memory_bytes:5%"], "it does not follow from the step time"),
    ],
)
def test_misuse_is_one_message(pytester: pytest.Pytester, arguments: list[str], told: str) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_an_option_that_is_not_typed_has_no_value(pytester: pytest.Pytester) -> None:
    """An idle session is known by it."""
    config = pytester.parseconfig()
    assert {config.getoption(name_destination(option.flag)) for option in OPTIONS} == {None}


def test_flags_in_addopts_are_fine_where_nothing_uses_them(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --llmb-certify\n")
    pytester.makepyfile("def test_plain(): pass")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
