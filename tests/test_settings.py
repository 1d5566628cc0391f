"""What option values mean, and what a wrong one is told."""

from __future__ import annotations

import os
from collections import ChainMap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SettingsError
from pytest_llmbench.models import Tolerance
from pytest_llmbench.option_values import cache_folder, parse_age
from pytest_llmbench.options import OPTIONS, destination
from pytest_llmbench.settings import CERTIFIED, Settings, parse_moment, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "file.txt").write_text("grok1*  # all of it\n\nllama3.1_8b-25.04-h100-bf16-8\n")
    return tmp_path


def test_nothing_given_is_the_default(folder: Path) -> None:
    default = Settings(cache=cache_folder(os.environ))
    assert resolve({}, folder) == default
    assert resolve({destination(option.flag): [] if option.repeats else None for option in OPTIONS}, folder) == default


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_age", "36h", timedelta(hours=36)),
        ("max_age", "1.5d", timedelta(hours=36)),
        ("unmatched", "list", "list"),
        ("runs", "each", "each"),
        ("against", "both", "both"),
        ("release", " 25.05 ", "25.05"),
        ("gpu", "GB200", "gb200"),
        ("since", "2025-11-20T06:00+00:00", datetime(2025, 11, 20, 6, tzinfo=UTC)),
        ("inconclusive", "skip", "skip"),
        ("improvement", "fail", "fail"),
        ("scaling", "fail", "fail"),
        ("repeat_window", "2h", timedelta(hours=2)),
        ("repeat_window", "0", None),
        ("repeat_window", "0h", None),
        ("assumed_cv", "0.5%", 0.005),
        ("assumed_cv", "0.02", 0.02),
        ("assumed_cv", "50%", 0.5),
        ("certify", True, True),
        ("selftest", True, True),
        ("require", ["all"], ("all",)),
        ("require", ["file.txt", "x*"], ("grok1*", "llama3.1_8b-25.04-h100-bf16-8", "x*")),
    ],
)
def test_a_value_means_what_it_says(folder: Path, name: str, value: Any, expected: Any) -> None:
    assert getattr(resolve({f"llmb_{name}": value}, folder), name) == expected


def both(typed: dict[str, Any], ini: dict[str, Any]) -> ChainMap[str, Any]:
    """Return options as the plugin hands them over."""
    return ChainMap(
        {f"llmb_{name}": value for name, value in typed.items()}, {f"llmb_{name}": value for name, value in ini.items()}
    )


@pytest.mark.parametrize(
    ("typed", "ini", "expected"),
    [
        ("5%", "", [("5 %", "--llmb-tolerance")]),
        ("", "5%", [("5 %", "ini")]),
        ("perf:8%", "5%", [("8 % of performance (+8.7 % time)", "--llmb-tolerance")]),
        ("mfu:3%", "5%", [("5 %", "ini"), ("3 % of mfu (+3.09 % time)", "--llmb-tolerance")]),
        ("7%", "5%, mfu:3%", [("7 %", "--llmb-tolerance"), ("3 % of mfu (+3.09 % time)", "ini")]),
        ("", "", []),
    ],
)
def test_a_typed_tolerance_replaces_that_of_the_ini_file_metric_by_metric(
    folder: Path, typed: str, ini: str, expected: list[tuple[str, str]]
) -> None:
    settings = resolve(both({"tolerance": typed} if typed else {}, {"tolerance": ini}), folder)
    assert [(str(one), one.source) for one in settings.tolerances] == expected


def test_what_is_typed_beats_the_ini_file(folder: Path) -> None:
    settings = resolve(both({"inconclusive": "skip"}, {"inconclusive": "fail", "scaling": "fail"}), folder)
    assert (settings.inconclusive, settings.scaling) == ("skip", "fail")


def test_a_wrong_tolerance_in_the_ini_file_is_told_even_where_another_is_typed(folder: Path) -> None:
    with pytest.raises(SettingsError, match="fiv%"):
        resolve(both({"tolerance": "5%"}, {"tolerance": "fiv%"}), folder)


# --- certify ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "ini", "name", "expected"),
    [
        ({}, {}, "tolerances", (CERTIFIED,)),
        ({}, {"tolerance": "3%"}, "tolerances", (Tolerance(0.03, source="ini"),)),
        ({"tolerance": "2%"}, {"tolerance": "3%"}, "tolerances", (Tolerance(0.02, source="--llmb-tolerance"),)),
        (
            {"tolerance": "mfu:2%"},
            {},
            "tolerances",
            (CERTIFIED, Tolerance(0.02, "mfu", larger_is_better=True, source="--llmb-tolerance")),
        ),
        ({}, {}, "require", ("all",)),
        ({"require": ["grok1*"]}, {}, "require", ("grok1*", "all")),
        ({}, {}, "against", "published"),
        ({"against": "both"}, {}, "against", "both"),
        ({}, {"against": "recorded"}, "against", "recorded"),
        ({}, {}, "inconclusive", "fail"),
        ({"inconclusive": "fail"}, {}, "inconclusive", "fail"),
        ({}, {"inconclusive": "skip"}, "inconclusive", "fail"),
        ({}, {}, "improvement", "pass"),
        ({}, {"scaling": "fail"}, "scaling", "fail"),
    ],
)
def test_what_a_certificate_rests_on(
    folder: Path, typed: dict[str, Any], ini: dict[str, Any], name: str, expected: Any
) -> None:
    settings = resolve(both({"certify": True, **typed}, ini), folder)
    assert settings.certify
    assert getattr(settings, name) == expected


@pytest.mark.parametrize("mode", ["literal", "skip"])
def test_a_certificate_does_not_rest_on_a_run_that_cannot_tell(folder: Path, mode: str) -> None:
    told = f"--llmb-inconclusive={mode} with --llmb-certify: .* cannot tell; leave it out"
    with pytest.raises(SettingsError, match=told):
        resolve({"llmb_certify": True, "llmb_inconclusive": mode}, folder)


@pytest.mark.parametrize("flag", ["certify", "selftest"])
def test_a_session_that_records_judges_nothing(folder: Path, flag: str) -> None:
    with pytest.raises(SettingsError, match=f"--llmb-{flag} with --llmb-record: .* judges nothing"):
        resolve({f"llmb_{flag}": True, "llmb_record": "new"}, folder)


def test_paths_are_below_the_folder_of_the_call(folder: Path) -> None:
    settings = resolve({"llmb_logs": ["experiments"], "llmb_record": "new/deep", "llmb_junit": "out/x.xml"}, folder)
    assert settings.logs == (folder / "experiments",)
    assert settings.record == folder / "new/deep"
    assert settings.junit == folder / "out/x.xml"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("logs", ["broken"], "a broken link, to nowhere"),
        ("logs", ["experiment"], "has no 'experiment' (did you mean 'experiments'?)"),
        ("logs", [""], "--llmb-logs= is empty"),
        ("logs", ["nowhere/deep"], "has no 'nowhere'"),
        ("baselines", ["file.txt"], "is a file; give the folder that holds it"),
        ("tolerance", "fiv%", "--llmb-tolerance=fiv%"),
        ("tolerance", "500%", "--llmb-tolerance=500%"),
        ("tolerance", "-1%", "--llmb-tolerance=-1%"),
        ("tolerance", "nan", "--llmb-tolerance=nan"),
        ("tolerance", "mfuu:5%", "did you mean 'mfu'?"),
        ("inconclusive", "pass", "expected literal, fail or skip"),
        ("improvement", "skip", "expected pass or fail"),
        ("scaling", "fial", "expected report or fail (did you mean 'fail'?)"),
        ("repeat_window", "2", "expected a number above 0 with m, h, d or w"),
        ("repeat_window", "-1h", "expected a number above 0"),
        ("repeat_window", "99999999999d", "found a number that is too large"),
        ("assumed_cv", "0", "expected above 0 and at most 50 %"),
        ("assumed_cv", "51%", "expected above 0 and at most 50 %"),
        ("assumed_cv", "1", "write 1% for 1 percent"),
        ("assumed_cv", "one", "--llmb-assumed-cv=one: found 'one', expected a percentage such as 1%"),
        ("max_age", "36", "expected a number above 0 with m, h, d or w"),
        ("max_age", "99999999999d", "found a number that is too large"),
        ("max_age", "0h", "expected a number above 0"),
        ("since", "yesterday", "expected a date such as 2025-11-20"),
        ("unmatched", "lst", "expected fail or list (did you mean 'list'?)"),
        ("runs", "all", "expected newest or each"),
        ("against", "record", "expected recorded, published or both (did you mean 'recorded'?)"),
        ("require", [""], "--llmb-require= is empty"),
        ("record", "file.txt", "is a file"),
        ("record", "file.txt/x", "cannot write below"),
        ("junit", "experiments", "is a folder"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(folder: Path, name: str, value: Any, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({f"llmb_{name}": value}, folder)
    assert told in str(caught.value)


def test_a_file_of_requirements_that_names_nothing_is_refused(folder: Path) -> None:
    (folder / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SettingsError, match="names no configuration"):
        resolve({"llmb_require": ["empty.txt"]}, folder)


@pytest.mark.parametrize("text", ["90m", "36h", "7d", "2w"])
def test_ages(text: str) -> None:
    units = {"m": 1, "h": 60, "d": 1440, "w": 10080}
    assert parse_age(text) == timedelta(minutes=int(text[:-1]) * units[text[-1]])


def test_a_moment_without_a_zone_is_local_time() -> None:
    assert parse_moment("2025-11-20") == datetime(2025, 11, 20).astimezone()


def test_every_help_text_begins_with_a_capital_and_shows_the_default() -> None:
    for option in OPTIONS:
        assert option.help[0].isupper(), option.flag
        assert "(default: " in option.help, option.flag
