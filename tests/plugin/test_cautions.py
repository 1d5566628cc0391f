"""Cautions of a green session: weak settings, unjudged runs, slowdowns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from generator import write_run
from support.accepted_recordings import accept_recordings
from support.sessions import Judge, Write

from pytest_llmbench.cli.main import main
from pytest_llmbench.core.baseline_records import Baseline

GROK = "grok1_314b-25.05-gb200-bf16-128"
TODAY = datetime.now(UTC).date()

Cautions = Callable[..., dict[str, str]]


@pytest.fixture
def cautions(judged: Judge, pytester: pytest.Pytester) -> Cautions:
    """Judge the runs of a folder, and return the cautions of the document by code."""

    def run(folder: Path, *arguments: str) -> dict[str, str]:
        judged(
            f"--llmb-logs={folder}",
            "--llmb-json=night.json",
            *(arguments or ("-k", GROK)),
        )
        document = json.loads(
            pytester.path.joinpath("night.json").read_text(encoding="utf-8")
        )
        return {caution["code"]: caution["text"] for caution in document["cautions"]}

    return run


def told_in(text: str) -> list[str]:
    return [
        line.removeprefix("caution: ")
        for line in text.splitlines()
        if line.startswith("caution: ")
    ]


# --- settings -------------------------------------------------------------------------


@pytest.mark.slow
def test_ordinary_session_has_no_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.makeini(
        f"[pytest]\nllmb_require = {GROK}\nllmb_max_age = 9000d\nllmb_tolerance = 5%\nllmb_trend = fail\n"
    )
    folder = generated(GROK)
    assert cautions(folder) == {}
    assert (
        cautions(
            folder, "-k", GROK, "--llmb-tolerance=3%", "-o", "llmb_repeat_window=2h"
        )
        == {}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ini", "option", "code", "text"),
    [
        (
            "tolerance = 3%",
            "",
            "tolerance",
            "tolerance 3 %, not 5 % (llmb_tolerance in tox.ini)",
        ),
        (
            "unmatched = list",
            "",
            "unmatched",
            "unmatched runs do not fail (llmb_unmatched in tox.ini)",
        ),
        (
            "inconclusive = skip",
            "",
            "inconclusive",
            "INCONCLUSIVE is skipped (llmb_inconclusive in tox.ini)",
        ),
        (
            "improvement = pass",
            "",
            "improvement",
            "improvements pass, however large (llmb_improvement in tox.ini)",
        ),
        (
            "baseline_release = 25.05",
            "",
            "baseline-release",
            "judged against release 25.05 (llmb_baseline_release in tox.ini)",
        ),
        (
            "assumed_cv = 5%",
            "",
            "assumed-cv",
            "assumed variation 5 %, not 1 % (llmb_assumed_cv in tox.ini)",
        ),
        (
            "repeat_window = 2h",
            "",
            "repeat-window",
            "runs within 2h are averaged (llmb_repeat_window in tox.ini)",
        ),
        (
            "",
            "--llmb-tolerance=40%",
            "tolerance",
            "tolerance 40 %, not 5 % (--llmb-tolerance)",
        ),
        (
            "",
            "-ollmb_assumed_cv=5%",
            "assumed-cv",
            "assumed variation 5 %, not 1 % (-o llmb_assumed_cv)",
        ),
        (
            "",
            "-ollmb_tolerance=40%",
            "tolerance",
            "tolerance 40 %, not 5 % (-o llmb_tolerance)",
        ),
        (
            "trend = fail",
            "--llmb-trend=report",
            "overridden",
            "llmb_trend in tox.ini is overridden by --llmb-trend",
        ),
        (
            "require = all",
            f"--llmb-require={GROK}",
            "overridden",
            "llmb_require in tox.ini is overridden by --llmb-require",
        ),
    ],
)
def test_option_that_weakens_the_verdicts_is_a_caution(
    cautions: Cautions,
    generated: Write,
    pytester: pytest.Pytester,
    *,
    ini: str,
    option: str,
    code: str,
    text: str,
) -> None:
    """A typed option counts only if it weakens the gate, an ini key whenever it differs
    from the default."""
    pytester.makefile(".ini", tox=f"[pytest]\nllmb_{ini}\n" if ini else "[pytest]\n")
    assert cautions(generated(GROK), "-k", GROK, *([option] if option else [])) == {
        code: text
    }


@pytest.mark.slow
def test_option_in_addopts_is_printed_as_a_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.makefile(".ini", tox="[pytest]\naddopts = --llmb-since=2020-01-01\n")
    text = "runs before 2020-01-01 not judged (--llmb-since in addopts of tox.ini)"
    assert cautions(generated(GROK)) == {"since": text}


@pytest.mark.slow
def test_option_in_the_pytest_addopts_variable_is_printed_as_a_caution(
    cautions: Cautions,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--llmb-tolerance=40% --llmb-trend=report")
    text = "tolerance 40 %, not 5 % (--llmb-tolerance in PYTEST_ADDOPTS)"
    assert cautions(generated(GROK, factor=1.3), "-k", GROK, "-q") == {
        "tolerance": text
    }
    *_, caution, count = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("caution", "1 "))
    ][:2]
    assert (caution, count) == (f"caution: {text}", "1 green: 1 PASS")


@pytest.mark.slow
def test_ini_keys_in_a_config_file_that_pytest_ignores_are_a_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    """An empty pytest.ini makes pytest ignore pyproject.toml."""
    pytester.makefile(".ini", pytest="[pytest]\n")
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nllmb_require = ["all"]\n')
    text = "llmb_require in pyproject.toml is ignored: pytest reads pytest.ini"
    assert cautions(generated(GROK)) == {"overridden": text}


@pytest.mark.slow
def test_option_set_by_a_conftest_is_a_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        "def pytest_configure(config): config.option.llmb_tolerance = '40%'"
    )
    text = "tolerance 40 %, not 5 % (--llmb-tolerance from a conftest or an @file)"
    assert cautions(generated(GROK)) == {"tolerance": text}


# --- baselines ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "far"), [(1.3, True), (1.04, False)])
def test_recorded_baseline_far_above_published_is_a_caution(
    cautions: Cautions,
    judged: Judge,
    baselines: dict[str, Baseline],
    tmp_path: Path,
    *,
    factor: float,
    far: bool,
) -> None:
    for day in range(3):
        started = datetime(2025, 7, 1 + day, tzinfo=UTC)
        write_run(
            tmp_path / "old",
            baselines[GROK],
            factor=factor,
            started=started,
            job_id=str(day),
        )
        recording = [
            f"--llmb-logs={tmp_path / 'old'}",
            "-k",
            GROK,
            f"--llmb-record={tmp_path / 'own'}",
        ]
    assert judged(*recording).ret == pytest.ExitCode.OK
    write_run(
        tmp_path / "new",
        baselines[GROK],
        factor=factor * 1.01,
        started=datetime(2025, 7, 9, tzinfo=UTC),
    )
    texts = cautions(
        tmp_path / "new", "-k", GROK, f"--llmb-baselines={tmp_path / 'own'}"
    )
    expected = {
        "recorded-slower-than-published": f"recorded 30 % slower than published: {GROK}"
    }
    assert texts == (expected if far else {})


@pytest.mark.slow
def test_accepted_baseline_drifts_are_summed_in_a_caution(
    cautions: Cautions, judged: Judge, baselines: dict[str, Baseline], tmp_path: Path
) -> None:
    """A script accepts each move: 1.00, 1.06, 1.12 and 1.13."""
    recorded = tmp_path / "own"
    results = []
    for month, factor in enumerate((1.0, 1.06, 1.12, 1.13), start=1):
        folder, started = tmp_path / str(month), datetime(2025, month, 1, tzinfo=UTC)
        write_run(
            folder, baselines[GROK], factor=factor, started=started, job_id=str(month)
        )
        arguments = (
            ("-k", GROK, f"--llmb-baselines={recorded}") if month > 1 else ("-k", GROK)
        )
        recording = (
            f"--llmb-logs={folder}",
            f"--llmb-record={recorded}",
            f"--llmb-acknowledged={accept_recordings(tmp_path, 'drift', f'month {month}')}",
            *arguments,
        )
        assert judged(*recording).ret == pytest.ExitCode.OK
        results.append(
            cautions(folder, "-k", GROK, f"--llmb-baselines={recorded}").get(
                "recorded-moved"
            )
        )
    sums = [
        f"recorded values moved {change} since the first: {GROK}"
        for change in ("+6.0 %", "+12.1 %", "+13.0 %")
    ]
    assert results == [None, *sums]


@pytest.mark.slow
def test_tolerance_of_a_baseline_file_is_a_caution(
    cautions: Cautions, judged: Judge, generated: Write, tmp_path: Path
) -> None:
    recorded = tmp_path / "own"
    folder = generated(GROK)
    assert (
        judged(f"--llmb-logs={folder}", "-k", GROK, f"--llmb-record={recorded}").ret
        == pytest.ExitCode.OK
    )
    (file,) = recorded.rglob("*.yaml")
    file.write_text(
        f"{file.read_text()}tolerance: 8%\ndrift_budget: 9%\n", encoding="utf-8"
    )
    assert cautions(folder, "-k", GROK, f"--llmb-baselines={recorded}") == {
        "tolerance": f"tolerance 8 %, not 5 % ({file.name})",
        "drift-budget": "drift budget 9 %, not 5 % (baseline file)",
    }


@pytest.mark.slow
def test_acknowledged_changes_in_force_are_a_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    started = datetime.now(UTC) - timedelta(hours=5)
    entry = (
        f"  - configuration: grok1*\n    slower: 6%\n    since: {TODAY - timedelta(days=9)}\n"
        f"    expires: {TODAY + timedelta(days=9)}\n    reason: a fix\n    by: A. Person\n"
    )
    pytester.path.joinpath("a.yaml").write_text(
        f"schema: 1\nacknowledged:\n{entry}", encoding="utf-8"
    )
    folder = generated(GROK, factor=1.06, started=started)
    text = "1 acknowledged change in force, up to +6.0 %"
    assert cautions(folder, "-k", GROK, "--llmb-acknowledged=a.yaml") == {
        "acknowledged": text
    }
    needless = generated(
        GROK, factor=1.0, started=started + timedelta(hours=1), job_id="2"
    )
    assert cautions(needless, "-k", GROK, "--llmb-acknowledged=a.yaml") == {}


# --- what was not judged --------------------------------------------------------------


@pytest.mark.slow
def test_caution_counts_selected_configurations_without_a_verdict(
    cautions: Cautions, generated: Write
) -> None:
    texts = cautions(generated(GROK), "-k", "grok1_314b-25.05-gb200-bf16")
    assert texts == {"without-verdict": "2 of 3 selected have no verdict: 2 MISSING"}


@pytest.mark.slow
def test_ini_max_age_prints_a_caution_for_a_stale_configuration(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\nllmb_max_age = 20h\n")
    generated(
        GROK.replace("bf16", "fp8"), started=datetime.now(UTC) - timedelta(hours=1)
    )
    folder = generated(GROK, factor=1.3, started=datetime.now(UTC) - timedelta(days=2))
    texts = cautions(folder, "-k", "grok1_314b-25.05-gb200 and 128")
    assert texts == {
        "max-age": "1 stale, older than 20h (llmb_max_age in tox.ini)",
        "without-verdict": "1 of 2 selected have no verdict: 1 MISSING",
    }


CONFTEST = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if "fp8-128" in item.name:
                item.add_marker(pytest.mark.{mark})
"""


@pytest.mark.slow
def test_items_skipped_by_a_conftest_are_a_caution(
    cautions: Cautions, generated: Write, pytester: pytest.Pytester
) -> None:
    fp8 = GROK.replace("bf16", "fp8")
    generated(fp8, factor=1.3)
    pytester.makeconftest(CONFTEST.format(mark='skip(reason="flaky")'))
    texts = cautions(
        generated(GROK),
        "-k",
        "test_performance and grok1_314b-25.05-gb200 and 128",
        "-n1",
    )
    assert (
        texts["skipped-items"]
        == f"skipped before a verdict: 1 item, 1 would fail: REGRESSION {fp8}"
    )


@pytest.mark.slow
def test_regression_hidden_by_a_conftest_xfail_is_reported_first(
    cautions: Cautions,
    generated: Write,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generated(GROK.replace("bf16", "fp8"), factor=1.3)
    pytester.makeconftest(CONFTEST.format(mark="xfail(strict=False)"))
    texts = cautions(
        generated(GROK),
        "-k",
        "test_performance and grok1_314b-25.05-gb200 and 128",
        "-q",
    )
    assert texts["not-asserted"] == "not asserted: 1 REGRESSION"
    assert "not asserted: 1 REGRESSION" in told_in(capsys.readouterr().out)[:2]


# --- what is known to be slower -------------------------------------------------------


def write_month(folder: Path, baseline: Baseline, slower: float) -> Path:
    """Write 30 daily runs; the last ten take `slower` times as long."""
    first = datetime.now(UTC) - timedelta(days=30)
    for day in range(30):
        factor = (slower if day >= 20 else 1.0) * (1 + 0.002 * ((day * 7) % 5 - 2))
        write_run(
            folder,
            baseline,
            factor=factor,
            started=first + timedelta(days=day),
            job_id=str(1000 + day),
        )
    return folder


@pytest.fixture(scope="module")
def months(
    tmp_path_factory: pytest.TempPathFactory, baselines: dict[str, Baseline]
) -> Path:
    """A month whose last ten runs are 3 % slower."""
    return write_month(tmp_path_factory.mktemp("months"), baselines[GROK], 1.03)


@pytest.mark.slow
def test_summaries_of_a_passing_session_begin_with_an_unfailed_slower_trend(
    judged: Judge,
    months: Path,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    reports = ("--llmb-json=night.json", "--llmb-html=night.html")
    session = judged(f"--llmb-logs={months}", "-k", GROK, "-q", *reports, "-n1")
    assert session.ret == pytest.ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    count = lines.index("1 green: 1 PASS")
    assert lines[count - 1] == "caution: trend: 1 SLOWER"
    assert (
        (pytester.path / "summary.md")
        .read_text()
        .startswith("### llmbench: green, but trend: 1 SLOWER\n")
    )
    assert (
        "<title>trend: 1 SLOWER, 1 green - llmbench</title>"
        in (pytester.path / "night.html").read_text()
    )
    assert main(["chat", "night.json"]) == 0
    assert capsys.readouterr().out.startswith("llmbench GREEN, but trend: 1 SLOWER, ")
    second_session = judged(
        f"--llmb-logs={months}", "-k", GROK, "-q", "--llmb-trend=fail", "-n1"
    )
    assert second_session.ret == pytest.ExitCode.TESTS_FAILED
    assert "caution" not in capsys.readouterr().out


@pytest.mark.slow
def test_slower_trend_is_a_caution_in_a_session_of_custom_tests(
    cautions: Cautions, months: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_mine="def test_it(llmb_verdict): assert not llmb_verdict.failed"
    )
    assert cautions(months, "test_mine.py", "-k", GROK) == {
        "reported-only": "trend: 1 SLOWER"
    }


@pytest.mark.slow
def test_trend_too_large_to_acknowledge_asks_for_a_new_baseline(
    judged: Judge, baselines: dict[str, Baseline], tmp_path: Path
) -> None:
    write_month(tmp_path, baselines[GROK], 1.14)
    session = judged(
        f"--llmb-logs={tmp_path}", "-k", f"test_trend and {GROK}", "--llmb-trend=fail"
    )
    (check,) = [report for report in session.reports if report.get("check") == "trend"]
    assert check["lines"] == [
        "it is more than the 10 % that an entry may accept; record a new baseline for a larger change, with `accept: drift` "
        "in the file of --llmb-acknowledged"
    ]


# --- marks ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-k", GROK], ["--llmb-record=own"]])
def test_unreadable_ab_test_marker_file_fails_the_session(
    judged: Judge, generated: Write, options: list[str]
) -> None:
    """This includes recordings, whose run may belong to an A/B."""
    folder = generated(GROK)
    path = next(folder.rglob("log-*.out")).parent.parent
    (path / ".llmbench-ab").write_text("abc")
    session = judged(f"--llmb-logs={folder}", *options)
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert session.verdicts[f"unreadable-{path.name}/.llmbench-ab"] == "mark-unreadable"
    assert session.verdicts[GROK] in ("PASS", "RECORDED")
