"""Ineffective keys in pytest's configuration are refused with their location."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.sessions import Judge

from pytest_llmbench.core.ini_file import INI_KEYS
from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.options import REPLACEMENTS

PLAIN = "-k=grok1_314b-25.05-gb200-bf16-128"


Refused = Callable[..., str]


@pytest.fixture
def refused(pytester: pytest.Pytester, examples: Path) -> Refused:
    """Judge the examples, which has to be a usage error, and return its message."""

    def run(*arguments: str) -> str:
        result = pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", f"--llmb-logs={examples}", PLAIN, *arguments
        )
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        return " ".join(str(result.stderr).split())

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\n{key} = {value}\n"),
        ("tox.ini", "[pytest]\n{key} = {value}\n"),
        ("setup.cfg", "[tool:pytest]\n{key} = {value}\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\n{key} = "{value}"\n'),
        ("pyproject.toml", '[tool.pytest]\n{key} = "{value}"\n'),
        ("pytest.toml", '[pytest]\n{key} = "{value}"\n'),
    ],
    ids=[
        "pytest.ini",
        "tox.ini",
        "setup.cfg",
        "ini_options",
        "tool.pytest",
        "pytest.toml",
    ],
)
def test_unknown_ini_key_or_wrong_value_is_refused_in_every_config_format(
    refused: Refused, pytester: pytest.Pytester, name: str, text: str
) -> None:
    native = "ini_options" not in text and name.endswith(".toml")
    if native and int(pytest.__version__.partition(".")[0]) < 9:
        pytest.skip("pytest reads such a table from 9.0 on")
    path = pytester.path / name
    path.write_text(text.format(key="llmb_tolerence", value="4%"), encoding="utf-8")
    assert (
        f"{name}: there is no ini key llmb_tolerence (did you mean 'llmb_tolerance'?)"
        in refused()
    )
    path.write_text(text.format(key="llmb_tolerance", value="4x"), encoding="utf-8")
    assert f"{name}: llmb_tolerance = 4x: found '4x', expected a tolerance" in refused()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            "llmb_required = all",
            "there is no ini key llmb_required (did you mean 'llmb_require'?)",
        ),
        ("LLMB_TREND = fail", "there is no ini key LLMB_TREND"),
        (
            "llmbtrend = fail",
            "there is no ini key llmbtrend (did you mean 'llmb_trend'?)",
        ),
        (
            "llmb_certify = true",
            "llmb_certify is not an ini key; add --llmb-certify to addopts",
        ),
        ("llmb_require =", "llmb_require is empty: give a value, or leave the key out"),
        (
            "llmb_trend = fial",
            "llmb_trend = fial: expected report or fail (did you mean 'fail'?)",
        ),
        (
            "llmb_require = nightly.txt",
            "llmb_require = nightly.txt: neither a file nor a configuration",
        ),
        ("llmb_baselines = nowhere", "nowhere does not exist: "),
        ("llmb_no_cache = maybe", "maybe"),
        (
            "addopts = --llmb-trend=fial",
            "addopts: --llmb-trend=fial: expected report or fail",
        ),
    ],
)
def test_ineffective_key_is_refused(
    refused: Refused, pytester: pytest.Pytester, key: str, told: str
) -> None:
    pytester.makefile(".ini", pytest=f"[pytest]\n{key}\n")
    message = refused()
    assert told in message
    assert "pytest.ini: " in message or "llmb_no_cache" in key
    assert "--llmb-tolerance" not in message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "pytest.ini",
            "[tool:pytest]\nllmb_trend = fail\n",
            "llmb_trend is in [tool:pytest], which pytest",
        ),
        (
            "pytest.ini",
            "[llmbench]\nllmb_trend = fail\n[pytest]\n",
            "is in [llmbench], which pytest does not read",
        ),
        (
            "pyproject.toml",
            '[pytest]\nllmb_trend = "fail"\n',
            "llmb_trend is in [pytest], which pytest",
        ),
    ],
)
def test_key_in_an_ignored_table_is_refused(
    refused: Refused, pytester: pytest.Pytester, name: str, text: str, message: str
) -> None:
    pytester.path.joinpath(name).write_text(text, encoding="utf-8")
    assert message in refused()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-o", "llmb_trned=fail"],
            "-o: there is no ini key llmb_trned (did you mean 'llmb_trend'?)",
        ),
        (["--override-ini=llmb_tolerance=4x"], "-o llmb_tolerance=4x: found '4x'"),
    ],
)
def test_ini_key_error_names_the_override_ini_option_as_its_source(
    refused: Refused, arguments: list[str], message: str
) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize("flag", REPLACEMENTS)
def test_error_on_a_removed_option_names_its_replacement(
    refused: Refused,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
) -> None:
    told = f"{flag} was removed: {REPLACEMENTS[flag]}"
    assert told in refused(f"{flag}=1")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{flag}=1")
    assert told in refused()
    monkeypatch.delenv("PYTEST_ADDOPTS")
    pytester.path.joinpath("pytest.ini").write_text(
        f"[pytest]\naddopts = {flag}=1\n", encoding="utf-8"
    )
    assert told in refused()


@pytest.mark.parametrize(
    "flag", [flag for flag in REPLACEMENTS if name_destination(flag) not in INI_KEYS]
)
def test_removed_option_is_no_ini_key(
    refused: Refused, pytester: pytest.Pytester, flag: str
) -> None:
    key = name_destination(flag)
    assert f"-o: {key} was removed: {REPLACEMENTS[flag]}" in refused("-o", f"{key}=1")
    pytester.path.joinpath("pytest.ini").write_text(
        f"[pytest]\n{key} = 1\n", encoding="utf-8"
    )
    assert f"pytest.ini: {key} was removed: {REPLACEMENTS[flag]}" in refused()


def test_error_names_the_environment_as_source(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--llmb-tolerance=4x")
    assert "PYTEST_ADDOPTS: --llmb-tolerance=4x: found '4x'" in refused()


def test_errors_are_the_same_with_workers(
    refused: Refused, pytester: pytest.Pytester
) -> None:
    pytest.importorskip("xdist")
    pytester.makefile(".ini", pytest="[pytest]\nllmb_tolerence = 4%\n")
    assert "pytest.ini: there is no ini key llmb_tolerence" in refused("-n2")


@pytest.mark.slow
def test_keys_of_other_plugins_are_left_alone(
    judged: Judge, examples: Path, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser): parser.addini('llmb_mine', 'a key of mine')"
    )
    pytester.makefile(".ini", pytest="[pytest]\nllmb_mine = 1\nsome_other_plugin = 2\n")
    assert judged(f"--llmb-logs={examples}", PLAIN).ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_plugin_does_nothing_without_llmb_options(pytester: pytest.Pytester) -> None:
    """Nothing is judged, so nothing is judged too mildly: pytest's own warning is
    enough."""
    pytester.makefile(".ini", pytest="[pytest]\nllmb_tolerence = 4%\n")
    pytester.makepyfile("def test_plain(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, warnings=1)
