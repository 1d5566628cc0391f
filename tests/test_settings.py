"""What option values mean, and what a wrong one is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SettingsError
from pytest_llmbench.models import Tolerance
from pytest_llmbench.options import OPTIONS, destination
from pytest_llmbench.settings import Settings, parse_age, parse_moment, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "file.txt").write_text("grok1*  # all of it\n\nllama3.1_8b-25.04-h100-bf16-8\n")
    return tmp_path


def test_nothing_given_is_the_default(folder: Path) -> None:
    assert resolve({}, folder) == Settings()
    assert (
        resolve({destination(option.flag): [] if option.repeats else None for option in OPTIONS}, folder) == Settings()
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tolerance", "5%", Tolerance(0.05)),
        ("tolerance", "2.5%", Tolerance(0.025)),
        ("tolerance", "0.025", Tolerance(0.025)),
        ("tolerance", "perf:5%", Tolerance(0.05, "performance")),
        ("max_age", "36h", timedelta(hours=36)),
        ("max_age", "1.5d", timedelta(hours=36)),
        ("unmatched", "list", "list"),
        ("runs", "each", "each"),
        ("against", "both", "both"),
        ("release", " 25.05 ", "25.05"),
        ("gpu", "GB200", "gb200"),
        ("since", "2025-11-20T06:00+00:00", datetime(2025, 11, 20, 6, tzinfo=UTC)),
        ("require", ["all"], ("all",)),
        ("require", ["file.txt", "x*"], ("grok1*", "llama3.1_8b-25.04-h100-bf16-8", "x*")),
    ],
)
def test_a_value_means_what_it_says(folder: Path, name: str, value: Any, expected: Any) -> None:
    assert getattr(resolve({f"llmb_{name}": value}, folder), name) == expected


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
