"""What option values mean, and what a wrong one is told."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.baseline_records import Tolerance
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.option import (
    OptionValues,
    find_output,
    find_page,
    list_rows,
    name_destination,
    parse_timestamp,
)
from pytest_llmbench.core.options import OPTIONS
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.session.settings import (
    CERTIFIED,
    LaunchRequest,
    Settings,
    cache_folder,
    list_outputs,
    resolve,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "file.txt").write_text(
        "grok1*  # all of it\n\nllama3.1_8b-25.04-h100-bf16-8\n"
    )
    return tmp_path


def test_nothing_given_is_the_default(folder: Path) -> None:
    default = Settings(cache=cache_folder(os.environ))
    assert resolve({}, folder) == default
    assert (
        resolve(
            {
                name_destination(option.flag): [] if option.repeats else None
                for option in OPTIONS
            },
            folder,
        )
        == default
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_age", "36h", timedelta(hours=36)),
        ("max_age", "1.5d", timedelta(hours=36)),
        ("max_age", "2w", timedelta(weeks=2)),
        ("max_age", "90m", timedelta(minutes=90)),
        ("release", " 25.05 ", "25.05"),
        ("gpu", "GB200", "gb200"),
        ("since", "2025-11-20T06:00+00:00", datetime(2025, 11, 20, 6, tzinfo=UTC)),
        ("repeat_window", "2h", timedelta(hours=2)),
        ("repeat_window", "0", None),
        ("assumed_cv", "0.5%", 0.005),
        ("assumed_cv", "50%", 0.5),
        ("require", ["all"], ("all",)),
        (
            "require",
            ["file.txt", "x*"],
            ("grok1*", "llama3.1_8b-25.04-h100-bf16-8", "x*"),
        ),
    ],
)
def test_a_value_means_what_it_says(
    folder: Path, name: str, value: Any, expected: Any
) -> None:
    assert getattr(resolve({f"llmb_{name}": value}, folder), name) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GITHUB_SHA": "1a2b3c4d"}, "1a2b3c4d"),
        ({"CI_COMMIT_SHA": " 1A2B3C4D\n"}, "1A2B3C4D"),
        ({"BUILDKITE_COMMIT": "HEAD", "GIT_COMMIT": "f" * 40}, "f" * 40),
        ({"GITHUB_SHA": "", "CI_COMMIT_SHA": "no commit"}, ""),
        ({"GITHUB_SHA": "abc"}, ""),
    ],
)
def test_the_commit_that_a_ci_names(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve({}, folder).commit == expected


def both(typed: dict[str, Any], ini: dict[str, Any]) -> OptionValues:
    """Return options as the plugin hands them over."""
    return OptionValues(
        {f"llmb_{name}": value for name, value in typed.items()},
        {f"llmb_{name}": value for name, value in ini.items()},
    )


def test_lenient_option_over_strict_ini_key_is_overridden(folder: Path) -> None:
    """Each option with the mode `fail`, but for those whose caution has its own text
    anyway."""
    modes = {
        row.dest.removeprefix("llmb_"): row.choices
        for row in list_rows(Settings).values()
        if "fail" in row.choices
    }
    lenient = {
        name: next(choice for choice in choices if choice != "fail")
        for name, choices in modes.items()
    }
    resolved = resolve(both(lenient, dict.fromkeys(modes, "fail")), folder)
    assert modes.keys() >= {"improvement", "unmatched"}
    assert set(resolved.overridden) == {
        f"--llmb-{name}" for name in modes.keys() - {"improvement", "unmatched"}
    }
    assert "--llmb-trend" in resolved.overridden


@pytest.mark.parametrize(
    ("typed", "ini", "expected"),
    [
        ("", "5%", [("5 %", "ini")]),
        (
            "mfu:3%",
            "5%",
            [("5 %", "ini"), ("3 % of mfu (+3.09 % time)", "--llmb-tolerance")],
        ),
        (
            "7%",
            "5%, mfu:3%",
            [("7 %", "--llmb-tolerance"), ("3 % of mfu (+3.09 % time)", "ini")],
        ),
    ],
)
def test_a_typed_tolerance_replaces_that_of_the_ini_file_metric_by_metric(
    folder: Path, typed: str, ini: str, expected: list[tuple[str, str]]
) -> None:
    settings = resolve(
        both({"tolerance": typed} if typed else {}, {"tolerance": ini}), folder
    )
    assert [(str(one), one.source) for one in settings.tolerances] == expected


def test_a_wrong_tolerance_in_the_ini_file_is_told_even_where_another_is_typed(
    folder: Path,
) -> None:
    with pytest.raises(SettingsError, match="fiv%"):
        resolve(both({"tolerance": "5%"}, {"tolerance": "fiv%"}), folder)


# --- certify --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "ini", "name", "expected"),
    [
        ({}, {}, "tolerances", (CERTIFIED,)),
        ({}, {"tolerance": "3%"}, "tolerances", (Tolerance(0.03, source="ini"),)),
        (
            {"tolerance": "mfu:2%"},
            {},
            "tolerances",
            (
                CERTIFIED,
                Tolerance(
                    0.02, "mfu", larger_is_better=True, source="--llmb-tolerance"
                ),
            ),
        ),
        ({"require": ["grok1*"]}, {}, "require", ("grok1*", "all")),
        ({}, {}, "against", "published"),
        ({}, {"against": "recorded"}, "against", "recorded"),
        ({}, {}, "inconclusive", "fail"),
        ({}, {"inconclusive": "skip"}, "inconclusive", "fail"),
    ],
)
def test_what_a_certificate_rests_on(
    folder: Path, typed: dict[str, Any], ini: dict[str, Any], name: str, expected: Any
) -> None:
    settings = resolve(both({"certify": True, **typed}, ini), folder)
    assert settings.certify
    assert getattr(settings, name) == expected


@pytest.mark.parametrize("mode", ["literal", "skip"])
def test_a_certificate_does_not_rest_on_a_run_that_cannot_tell(
    folder: Path, mode: str
) -> None:
    told = (
        f"--llmb-inconclusive={mode} with --llmb-certify: .* cannot tell; leave it out"
    )
    with pytest.raises(SettingsError, match=told):
        resolve({"llmb_certify": True, "llmb_inconclusive": mode}, folder)


@pytest.mark.parametrize("flag", ["certify", "selftest"])
def test_a_session_that_records_judges_nothing(folder: Path, flag: str) -> None:
    with pytest.raises(
        SettingsError, match=f"--llmb-{flag} with --llmb-record: .* judges nothing"
    ):
        resolve({f"llmb_{flag}": True, "llmb_record": "new"}, folder)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("logs", ["broken"], "a broken link to nowhere"),
        ("logs", ["experiment"], "has no 'experiment' (did you mean 'experiments'?)"),
        ("logs", [""], "--llmb-logs= is empty"),
        ("baselines", ["file.txt"], "is a file; give the folder that contains it"),
        ("tolerance", "fiv%", "--llmb-tolerance=fiv%"),
        ("tolerance", "mfuu:5%", "did you mean 'mfu'?"),
        ("inconclusive", "pass", "expected literal, fail or skip"),
        ("repeat_window", "2", "expected a number above 0 with a unit"),
        ("assumed_cv", "0", "expected above 0 and at most 50 %"),
        ("assumed_cv", "51%", "expected above 0 and at most 50 %"),
        ("max_age", "36", "expected a number above 0 with a unit"),
        ("since", "yesterday", "expected a date such as 2025-11-20"),
        ("unmatched", "lst", "expected fail or list (did you mean 'list'?)"),
        ("require", [""], "--llmb-require= is empty"),
        ("record", "file.txt", "is a file"),
        ("record", "file.txt/x", "file.txt; give another path, or ask for write"),
        ("junit", "experiments", "is a folder"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(
    folder: Path, name: str, value: Any, told: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({f"llmb_{name}": value}, folder)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("json", "html"),
        ("junit", "json"),
        ("history", "json"),
        ("acknowledged", "html"),
        ("logs", "junit"),
    ],
)
def test_a_file_that_would_replace_another_is_refused(
    folder: Path, one: str, other: str
) -> None:
    """A report in the place of the history would end it; a link is the same file."""
    (folder / "x").touch()
    (folder / "link").symlink_to("x")
    values = {f"llmb_{one}": ["x"] if one == "logs" else "x", f"llmb_{other}": "link"}
    with pytest.raises(
        SettingsError, match=rf"--llmb-\w+=.*: --llmb-{one}.* is the same file"
    ):
        resolve(values, folder)
    assert resolve({**values, f"llmb_{other}": "y"}, folder)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("require", "required.txt"),
        ("require", "suite.yml"),
        ("baselines", "own/mine.yaml"),
    ],
)
def test_a_report_does_not_replace_what_the_next_session_reads(
    folder: Path, flag: str, name: str
) -> None:
    (folder / "own").mkdir()
    (folder / name).write_text("grok1*\n")
    values = {
        f"llmb_{flag}": ["own" if flag == "baselines" else name],
        "llmb_json": name,
    }
    with pytest.raises(
        SettingsError, match=rf"--llmb-json=.*: --llmb-{flag}=.* is the same file"
    ):
        resolve(values, folder)
    assert resolve({**values, "llmb_json": "own/night.json"}, folder)


def test_a_report_does_not_replace_the_cluster_file(folder: Path) -> None:
    (folder / "cluster.yaml").touch()
    with pytest.raises(
        SettingsError, match=r"--llmb-html=.*: --llmb-cluster is the same file"
    ):
        resolve(
            {"llmb_html": "cluster.yaml"},
            folder,
            LaunchRequest(cluster=folder / "cluster.yaml"),
        )


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (
            "notes.md",
            "notes.md: an existing file of another kind .* is not replaced: use another name, or remove it",
        ),
        ("link", "link: a link to the file .*/empty: use the path of the file itself"),
        (
            "experiments/log-x_1_0.out",
            "below --llmb-logs a file of this name is read as a log: give it another name, s",
        ),
        ("experiments/a/run.LOG.gz", "read as a log"),
        ("experiments/night.tar.gz", "read as a log"),
        ("also/x_stdout.txt", "read as a log"),
        (
            "given.txt",
            "--llmb-logs=.*given.txt is the same file, one would replace the other",
        ),
    ],
)
def test_a_report_replaces_nothing_of_the_user(
    folder: Path, place: str, told: str
) -> None:
    """Neither what is there, nor what the next session would read."""
    (folder / "notes.md").write_text("mine")
    (folder / "empty").touch()
    (folder / "link").symlink_to("empty")
    (folder / "also").symlink_to("experiments")
    (folder / "given.txt").write_text("step 1")
    with pytest.raises(SettingsError, match=f"^--llmb-json=.*{told}"):
        resolve({"llmb_logs": ["experiments", "given.txt"], "llmb_json": place}, folder)


@pytest.mark.parametrize(
    "place",
    [
        "experiments/report.html",
        "experiments/new/report.xml",
        "experiments/.night.out",
        "also/report.json",
        "elsewhere/log-x_1_0.out",
        "mktemp",
        "/dev/stdout",
        "nowhere",
        "pipe",
    ],
)
def test_a_report_may_be_new_empty_or_no_file_at_all(folder: Path, place: str) -> None:
    (folder / "also").symlink_to("experiments")
    (folder / "mktemp").touch()
    (folder / "nowhere").symlink_to("gone")
    os.mkfifo(folder / "pipe")
    settings = resolve({"llmb_logs": ["experiments"], "llmb_json": place}, folder)
    assert settings.json == folder / place


def test_a_store_that_would_be_read_as_a_log_is_refused(folder: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"--llmb-history=.*history.log: below --llmb-logs .*, such as history.db, or",
    ):
        resolve(
            {"llmb_logs": ["experiments"], "llmb_history": "experiments/history.log"},
            folder,
        )
    assert resolve(
        {"llmb_logs": ["experiments"], "llmb_history": "experiments/history.db"}, folder
    ).history


def test_devices_may_be_shared(folder: Path) -> None:
    assert resolve(
        {"llmb_json": "/dev/null", "llmb_junit": "/dev/null"}, folder
    ).json == Path("/dev/null")


def test_a_loop_of_links_is_no_crash(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    assert (
        resolve({"llmb_json": "loop", "llmb_html": "x.html"}, folder).json
        == folder / "loop"
    )


@pytest.mark.parametrize(
    ("other", "launch", "told"),
    [
        ({"record": "new"}, None, "with --llmb-record: a session"),
        ({}, LaunchRequest(), "with a launch that knows of no earlier"),
    ],
)
def test_a_trend_that_nothing_searches_for_is_refused_where_it_was_typed(
    folder: Path, other: dict[str, Any], launch: LaunchRequest | None, told: str
) -> None:
    with pytest.raises(SettingsError, match=f"--llmb-trend=fail {told}"):
        resolve(both({"trend": "fail", **other}, {}), folder, launch)
    assert resolve(both(other, {"trend": "fail"}), folder, launch).trend == "fail"


@pytest.mark.parametrize("nights", [{"logs": ["."]}, {"history": "history.db"}])
def test_a_launch_that_knows_of_earlier_nights_may_fail_for_their_trend(
    folder: Path, nights: dict[str, Any]
) -> None:
    settings = resolve(both({"trend": "fail", **nights}, {}), folder, LaunchRequest())
    assert settings.trend == "fail"


def test_a_pattern_may_be_longer_than_the_name_of_a_file(folder: Path) -> None:
    assert resolve({"llmb_require": ["x" * 300]}, folder).require == ("x" * 300,)


def test_a_file_of_patterns_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "wanted").write_bytes(b"grok1\xff")
    with pytest.raises(
        SettingsError,
        match="--llmb-require=wanted: not UTF-8, expected a file of configurations",
    ):
        resolve({"llmb_require": ["wanted"]}, folder)


@pytest.mark.slow
def test_what_has_no_end_is_no_file_of_patterns(folder: Path) -> None:
    """A device never ends, and a FIFO waits for somebody who writes it."""
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(
            SettingsError,
            match=f"--llmb-require={name}: not a regular file, expected a file",
        ):
            resolve({"llmb_require": [name]}, folder)
    (folder / "large").write_bytes(b"x\n" * (1 << 24))
    with pytest.raises(
        SettingsError, match="--llmb-require=large: more than 16 MiB, expected a file"
    ):
        resolve({"llmb_require": ["large"]}, folder)


def test_suite_files_are_told_from_patterns(folder: Path) -> None:
    (folder / "exemplar.yaml").write_text("config: {}\n")
    settings = resolve({"llmb_require": ["grok1*", "exemplar.yaml"]}, folder)
    assert (settings.require, settings.suites) == (
        ("grok1*",),
        (folder / "exemplar.yaml",),
    )
    with pytest.raises(
        SettingsError, match=r"has no 'exemplary.yaml' \(did you mean 'exemplar.yaml'"
    ):
        resolve({"llmb_require": ["exemplary.yaml"]}, folder)


def test_an_ini_file_names_one_file_of_acknowledged_changes(folder: Path) -> None:
    (folder / "known.yaml").write_text("schema: 1\nacknowledged: []\n")
    assert (
        resolve(
            both({}, {"acknowledged": [folder / "known.yaml"]}), folder
        ).acknowledged
        == folder / "known.yaml"
    )
    with pytest.raises(SettingsError, match="found 2 paths, expected one"):
        resolve(both({}, {"acknowledged": ["known.yaml", "known.yaml"]}), folder)


def test_a_file_of_requirements_that_names_nothing_is_refused(folder: Path) -> None:
    (folder / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SettingsError, match="contains no configuration"):
        resolve({"llmb_require": ["empty.txt"]}, folder)


def test_a_moment_without_a_zone_is_local_time() -> None:
    assert parse_timestamp("2025-11-20") == datetime(2025, 11, 20).astimezone()


def test_every_help_text_begins_with_a_capital_and_shows_the_default() -> None:
    for option in OPTIONS:
        assert option.help[0].isupper(), option.flag
        assert "(default: " in option.help, option.flag


def test_every_row_is_a_field_of_its_own_name() -> None:
    """A field that is called otherwise is listed here: its option is harder to find."""
    names = {
        row.flag: name
        for kind in (Settings, LaunchSettings)
        for name, row in list_rows(kind).items()
    }
    assert names.keys() == {option.flag for option in OPTIONS}
    others = {
        flag: name
        for flag, name in names.items()
        if flag not in (f"--llmb-{name.replace('_', '-')}", f"llmb_{name}")
    }
    assert others == {
        "--llmb-logs": "log_paths",
        "--llmb-tolerance": "tolerances",
        "--llmb-history": "history_url",
        "--llmb-ignore": "ignored",
        "--llmb-load-checkpoint": "checkpoint",
    }


def test_settings_are_frozen_and_know_their_fields() -> None:
    settings = Settings(gpu="h100")
    assert settings.replace(gpu="").gpu == ""
    assert settings == pickle.loads(pickle.dumps(settings)) != Settings()  # noqa: S301 (our own)
    assert repr(settings) == "Settings(gpu='h100')"
    with pytest.raises(AttributeError, match="Settings is frozen"):
        settings.gpu = "a100"  # type: ignore[misc]
    with pytest.raises(TypeError, match="Settings has no field gpuu"):
        settings.replace(gpuu="a100")


def test_every_file_that_a_session_writes_is_compared_with_the_others() -> None:
    written = {
        option.flag for option in OPTIONS if option.find in (find_output, find_page)
    }
    assert (
        written - {"--llmb-record"} | {"--llmb-history"}
        == list_outputs(Settings()).keys()
    )
