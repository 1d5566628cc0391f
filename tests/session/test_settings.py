"""Resolution of option values, and the messages for invalid ones."""

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


def test_resolve_returns_defaults_without_options(folder: Path) -> None:
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
def test_settings_convert_durations_dates_and_percentages(
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
def test_commit_is_read_from_ci_variables(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve({}, folder).commit == expected


def make_values(typed: dict[str, Any], ini: dict[str, Any]) -> OptionValues:
    """Return option values as the plugin passes them."""
    return OptionValues(
        {f"llmb_{name}": value for name, value in typed.items()},
        {f"llmb_{name}": value for name, value in ini.items()},
    )


def test_overridden_settings_list_lenient_options_that_replace_strict_ini_keys(
    folder: Path,
) -> None:
    """All options with the mode `fail`, except those with their own caution."""
    modes = {
        row.dest.removeprefix("llmb_"): row.choices
        for row in list_rows(Settings).values()
        if "fail" in row.choices
    }
    lenient = {
        name: next(choice for choice in choices if choice != "fail")
        for name, choices in modes.items()
    }
    resolved = resolve(make_values(lenient, dict.fromkeys(modes, "fail")), folder)
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
def test_typed_tolerance_overrides_ini_tolerance_by_metric(
    folder: Path, typed: str, ini: str, expected: list[tuple[str, str]]
) -> None:
    settings = resolve(
        make_values({"tolerance": typed} if typed else {}, {"tolerance": ini}), folder
    )
    assert [
        (str(tolerance), tolerance.source) for tolerance in settings.tolerances
    ] == expected


def test_invalid_ini_tolerance_is_refused_despite_typed_one(
    folder: Path,
) -> None:
    with pytest.raises(SettingsError, match="fiv%"):
        resolve(make_values({"tolerance": "5%"}, {"tolerance": "fiv%"}), folder)


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
def test_certification_overrides_lenient_settings(
    folder: Path, typed: dict[str, Any], ini: dict[str, Any], name: str, expected: Any
) -> None:
    settings = resolve(make_values({"certify": True, **typed}, ini), folder)
    assert settings.certify
    assert getattr(settings, name) == expected


@pytest.mark.parametrize("mode", ["literal", "skip"])
def test_certify_refuses_lenient_inconclusive_modes(folder: Path, mode: str) -> None:
    message = f"--llmb-inconclusive={mode} with --llmb-certify: .* inconclusive runs; leave the option out"
    with pytest.raises(SettingsError, match=message):
        resolve({"llmb_certify": True, "llmb_inconclusive": mode}, folder)


@pytest.mark.parametrize("flag", ["certify", "selftest"])
def test_recording_refuses_options_that_judge(folder: Path, flag: str) -> None:
    with pytest.raises(
        SettingsError, match=f"--llmb-{flag} with --llmb-record: .* does not judge"
    ):
        resolve({f"llmb_{flag}": True, "llmb_record": "new"}, folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
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
def test_error_on_an_invalid_option_value_states_the_expected_value(
    folder: Path, name: str, value: Any, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({f"llmb_{name}": value}, folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("json", "html"),
        ("junit", "json"),
        ("history", "json"),
        ("acknowledged", "html"),
        ("logs", "junit"),
    ],
)
def test_same_output_file_for_two_options_is_refused(
    folder: Path, first: str, second: str
) -> None:
    """A report would overwrite the history; a link counts as the same file."""
    (folder / "x").touch()
    (folder / "link").symlink_to("x")
    values = {
        f"llmb_{first}": ["x"] if first == "logs" else "x",
        f"llmb_{second}": "link",
    }
    with pytest.raises(
        SettingsError, match=rf"--llmb-\w+=.*: --llmb-{first}.* is the same file"
    ):
        resolve(values, folder)
    assert resolve({**values, f"llmb_{second}": "y"}, folder)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("require", "required.txt"),
        ("require", "suite.yml"),
        ("baselines", "own/mine.yaml"),
    ],
)
def test_report_does_not_overwrite_input_files(
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


def test_report_does_not_overwrite_the_cluster_file(folder: Path) -> None:
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
    ("name", "message"),
    [
        (
            "notes.md",
            "notes.md: an existing file of another kind .* is not replaced: use another name, or remove it",
        ),
        ("link", "link: a link to the file .*/empty: use the path of the file itself"),
        (
            "experiments/log-x_1_0.out",
            "the file is in a folder of --llmb-logs and would be read as a log: give it ano",
        ),
        ("experiments/a/run.LOG.gz", "read as a log"),
        ("experiments/night.tar.gz", "read as a log"),
        ("also/x_stdout.txt", "read as a log"),
        (
            "given.txt",
            "--llmb-logs=.*given.txt is the same file, and one would overwrite the other",
        ),
    ],
)
def test_report_does_not_overwrite_user_files_or_logs(
    folder: Path, name: str, message: str
) -> None:
    """Neither existing files, nor files that the next session would read."""
    (folder / "notes.md").write_text("mine")
    (folder / "empty").touch()
    (folder / "link").symlink_to("empty")
    (folder / "also").symlink_to("experiments")
    (folder / "given.txt").write_text("step 1")
    with pytest.raises(SettingsError, match=f"^--llmb-json=.*{message}"):
        resolve({"llmb_logs": ["experiments", "given.txt"], "llmb_json": name}, folder)


@pytest.mark.parametrize(
    "name",
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
def test_report_may_be_new_empty_or_a_stream(folder: Path, name: str) -> None:
    (folder / "also").symlink_to("experiments")
    (folder / "mktemp").touch()
    (folder / "nowhere").symlink_to("gone")
    os.mkfifo(folder / "pipe")
    settings = resolve({"llmb_logs": ["experiments"], "llmb_json": name}, folder)
    assert settings.json == folder / name


def test_history_file_named_like_a_log_is_refused(folder: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"--llmb-history=.*history.log: the file is in a folder of --llmb-logs .*, such as history.db, or",
    ):
        resolve(
            {"llmb_logs": ["experiments"], "llmb_history": "experiments/history.log"},
            folder,
        )
    assert resolve(
        {"llmb_logs": ["experiments"], "llmb_history": "experiments/history.db"}, folder
    ).history


def test_two_reports_may_be_written_to_the_same_device(folder: Path) -> None:
    assert resolve(
        {"llmb_json": "/dev/null", "llmb_junit": "/dev/null"}, folder
    ).json == Path("/dev/null")


def test_report_path_may_be_a_symbolic_link_loop(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    assert (
        resolve({"llmb_json": "loop", "llmb_html": "x.html"}, folder).json
        == folder / "loop"
    )


@pytest.mark.parametrize(
    ("other", "launch", "message"),
    [
        ({"record": "new"}, None, "with --llmb-record: a session"),
        ({}, LaunchRequest(), "with a launch needs earlier"),
    ],
)
def test_trend_option_fail_is_refused_in_a_session_without_earlier_runs(
    folder: Path, other: dict[str, Any], launch: LaunchRequest | None, message: str
) -> None:
    with pytest.raises(SettingsError, match=f"--llmb-trend=fail {message}"):
        resolve(make_values({"trend": "fail", **other}, {}), folder, launch)
    assert (
        resolve(make_values(other, {"trend": "fail"}), folder, launch).trend == "fail"
    )


@pytest.mark.parametrize("source", [{"logs": ["."]}, {"history": "history.db"}])
def test_launch_accepts_the_trend_option_with_logs_or_history(
    folder: Path, source: dict[str, Any]
) -> None:
    settings = resolve(
        make_values({"trend": "fail", **source}, {}), folder, LaunchRequest()
    )
    assert settings.trend == "fail"


def test_pattern_longer_than_a_file_name_is_accepted(folder: Path) -> None:
    assert resolve({"llmb_require": ["x" * 300]}, folder).require == ("x" * 300,)


def test_binary_pattern_file_is_refused(folder: Path) -> None:
    (folder / "wanted").write_bytes(b"grok1\xff")
    with pytest.raises(
        SettingsError,
        match="--llmb-require=wanted: not UTF-8, expected a file of configurations",
    ):
        resolve({"llmb_require": ["wanted"]}, folder)


@pytest.mark.slow
def test_endless_pattern_file_is_refused(folder: Path) -> None:
    """A device is endless, and reading a FIFO waits for a writer."""
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


def test_suite_files_are_separated_from_patterns(folder: Path) -> None:
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


def test_ini_file_allows_one_acknowledged_file(folder: Path) -> None:
    (folder / "known.yaml").write_text("schema: 1\nacknowledged: []\n")
    assert (
        resolve(
            make_values({}, {"acknowledged": [folder / "known.yaml"]}), folder
        ).acknowledged
        == folder / "known.yaml"
    )
    with pytest.raises(SettingsError, match="found 2 paths, expected one"):
        resolve(make_values({}, {"acknowledged": ["known.yaml", "known.yaml"]}), folder)


def test_empty_pattern_file_is_refused(folder: Path) -> None:
    (folder / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SettingsError, match="contains no configuration"):
        resolve({"llmb_require": ["empty.txt"]}, folder)


def test_timestamp_without_zone_is_local_time() -> None:
    assert parse_timestamp("2025-11-20") == datetime(2025, 11, 20).astimezone()


def test_every_help_text_shows_the_default() -> None:
    for option in OPTIONS:
        assert option.help[0].isupper(), option.flag
        assert "(default: " in option.help, option.flag


def test_every_settings_field_is_named_like_its_option() -> None:
    """Exceptions are listed here, because their options are harder to find."""
    names = {
        row.flag: name
        for kind in (Settings, LaunchSettings)
        for name, row in list_rows(kind).items()
    }
    assert names.keys() == {option.flag for option in OPTIONS}
    exceptions = {
        flag: name
        for flag, name in names.items()
        if flag not in (f"--llmb-{name.replace('_', '-')}", f"llmb_{name}")
    }
    assert exceptions == {
        "--llmb-logs": "log_paths",
        "--llmb-tolerance": "tolerances",
        "--llmb-history": "history_url",
        "--llmb-ignore": "ignored",
        "--llmb-load-checkpoint": "checkpoint",
    }


def test_settings_are_frozen_and_reject_unknown_fields() -> None:
    settings = Settings(gpu="h100")
    assert settings.replace(gpu="").gpu == ""
    assert settings == pickle.loads(pickle.dumps(settings)) != Settings()  # noqa: S301 (made here)
    assert repr(settings) == "Settings(gpu='h100')"
    with pytest.raises(AttributeError, match="Settings is frozen"):
        settings.gpu = "a100"  # type: ignore[misc]
    with pytest.raises(TypeError, match="Settings has no field gpuu"):
        settings.replace(gpuu="a100")


def test_every_output_option_is_checked_for_conflicts() -> None:
    written = {
        option.flag for option in OPTIONS if option.find in (find_output, find_page)
    }
    assert (
        written - {"--llmb-record"} | {"--llmb-history"}
        == list_outputs(Settings()).keys()
    )
