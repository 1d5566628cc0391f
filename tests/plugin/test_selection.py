"""Selection, node ids, xdist, last-failed, ini file and the user's own tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.sessions import Judge

import pytest_llmbench

SUITE = "pytest_llmbench/suite/test_performance.py::test_performance"
ID = "grok1_314b-25.05-gb200-bf16-128"
NODE = f"{SUITE}[{ID}]"
NOTHING_JUDGED = "nothing was judged: no test with a verdict was finished"

Run = Callable[..., pytest.RunResult]
"""Run pytest over the example runs with these arguments."""


def logs(path: Path) -> str:
    return f"--llmb-logs={path}"


@pytest.fixture
def run(pytester: pytest.Pytester, examples: Path) -> Run:
    return lambda *arguments: pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", logs(examples), *arguments
    )


@pytest.mark.slow
def test_keyword_selection_changes_no_verdict_of_the_selected_configurations(
    judged: Judge, examples: Path
) -> None:
    everything, some = (
        judged(logs(examples)),
        judged(logs(examples), "-k", "grok1 and fp8"),
    )
    assert len(some.verdicts) == 14
    assert some.verdicts == {
        name: everything.verdicts[name]
        for name in everything.verdicts
        if name in some.verdicts
    }
    assert all("grok1" in name and "fp8" in name for name in some.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("llmb(gpus=128)", 14 + 4),
        ("llmb(model='llama3.1', size='8b')", 10),
        ("not llmb", 0),
    ],
)
def test_llmb_mark_selects_configurations(
    judged: Judge, examples: Path, expression: str, count: int
) -> None:
    """An unmatched run comes with the configuration that it may be of; -m includes the
    rows of tables."""
    described = judged(logs(examples), "-m", expression).described.values()
    assert (
        len([outcome for outcome in described if outcome["kind"] == "configuration"])
        == count
    )


@pytest.mark.slow
def test_item_ids_do_not_depend_on_the_installation_path(
    tmp_path: Path, examples: Path
) -> None:
    """A copy of the package in a virtual environment below the project's root is what
    pytest imports here."""
    project = tmp_path / "project"
    site = project / "venv" / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (project / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (project / "pytest.ini").write_text("[pytest]\n")
    source = Path(pytest_llmbench.__file__).parent
    shutil.copytree(
        source, site / "pytest_llmbench", ignore=shutil.ignore_patterns("__pycache__")
    )
    if not (source / "baselines").exists():
        shutil.copytree(
            source.parent / "baselines", site / "pytest_llmbench" / "baselines"
        )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        logs(examples),
        "-k",
        "gb200-bf16-128",
        "--junitxml=junit.xml",
        "-rA",
    ]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    process = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"PASSED {SUITE}[{ID}]" in process.stdout, process.stdout + process.stderr
    report = (project / "junit.xml").read_text()
    assert 'classname="pytest_llmbench.suite.test_performance"' in report
    assert 'name="test_performance[grok1_314b-25.05-gb200-bf16-128]"' in report


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_built_in_suite_is_collected_despite_python_files_patterns_of_the_user(
    pytester: pytest.Pytester, run: Run, mode: str
) -> None:
    pytester.makeini(
        "[pytest]\ntestpaths = mine\npython_files = check_*.py\npython_functions = check_*\nfilterwarnings = error\n"
        f"xfail_strict = true\naddopts = --strict-markers --strict-config --import-mode={mode}\n"
    )
    pytester.mkdir("mine").joinpath("check_mine.py").write_text(
        "def check_mine(): assert False\n"
    )
    result = run("-k", "25.05-gb200-bf16-128", "-rA")
    result.assert_outcomes(passed=4, deselected=86)  # with its scaling and its speed-up
    result.stdout.fnmatch_lines([f"PASSED {SUITE}?{ID}?"])


@pytest.mark.slow
def test_two_workers_give_the_same_verdicts_and_read_no_log(
    pytester: pytest.Pytester, judged: Judge, examples: Path
) -> None:
    pytest.importorskip("xdist")
    alone = judged(logs(examples))
    pytester.makeconftest(
        """
        import pytest_llmbench.plugin.session_state
        from pytest_llmbench.plugin.session_state import Session

        def pytest_configure(config):
            if hasattr(config, "workerinput"):
                import pytest_llmbench.logs.log_reader as read
                read.read_log = None  # a worker that reads a log fails
        """
    )
    together = judged(logs(examples), "-n2")
    assert together.verdicts == alone.verdicts
    assert together.statuses == alone.statuses
    assert sorted(together.nodeids) == sorted(alone.nodeids)
    assert together.properties == alone.properties


@pytest.mark.slow
def test_last_failed_option_selects_items_that_failed_before(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytester.runpytest_inprocess(logs(examples)).assert_outcomes(
        passed=25, failed=5, skipped=60
    )
    result = pytester.runpytest_inprocess(logs(examples), "--lf")
    result.assert_outcomes(
        failed=5, passed=2, deselected=83
    )  # with the scaling of what failed


@pytest.mark.slow
def test_collect_only_lists_items_without_judging(run: Run) -> None:
    result = run("--collect-only", "-q")
    result.stdout.fnmatch_lines(
        [f"{SUITE}?llama3.1_405b-25.04-h100-bf16-1024?", "355 tests collected*"]
    )
    result.stdout.no_fnmatch_line("*green*")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["--help", "--setup-plan", "--fixtures", "--markers", "--cache-show"]
)
def test_informational_session_does_not_fail(run: Run, option: str) -> None:
    assert run("-p", "cacheprovider", option).ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_log_folder_name_that_is_not_utf8_does_not_break_xdist_workers(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytest.importorskip("xdist")
    shutil.copytree(
        examples / "workloads",
        os.fsdecode(os.fsencode(pytester.path) + b"/runs/name-\xff"),
    )
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--llmb-logs=runs", "-n1", "-q"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str()


# --- node ids -------------------------------------------------------------------------


@pytest.mark.slow
def test_printed_node_id_runs_that_item_again(
    pytester: pytest.Pytester,
    judged: Judge,
    examples: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also from a folder below the root of the project, relative to which ids are
    printed."""
    assert judged(logs(examples), NODE).nodeids == [NODE]
    assert (
        len(
            [
                node
                for node in judged(logs(examples), SUITE).nodeids
                if node.startswith(SUITE)
            ]
        )
        == 82
    )
    pytester.makeini("[pytest]\n")
    monkeypatch.chdir(pytester.mkdir("below"))
    assert judged(logs(examples), f"../{NODE}").nodeids == [NODE]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_mistyped_node_id_is_refused(run: Run, workers: tuple[str, ...]) -> None:
    result = run(NODE, f"{SUITE}[nosuch]", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: not found: *nosuch*"])


def test_node_ids_and_paths_cannot_be_mixed(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(test_mine="def test_plain(): pass")
    result = run(NODE, "test_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *run ids of built-in tests and other paths in separate sessions"]
    )


# --- tests of the user ----------------------------------------------------------------


@pytest.mark.slow
def test_custom_test_checks_mfu_with_the_measurement_fixture_and_no_verdict_fixture(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        test_mine="""
        import pytest

        def test_efficiency_or_so(llmb_measurement, llmb_baseline, llmb_run, llmb_case):
            assert llmb_measurement.metric("mfu").value > 0.2
            assert llmb_baseline.key == llmb_case.key
            assert llmb_run.found.job_id or llmb_run.found.folder

        def test_plain():
            pass
        """
    )
    outcomes = run("test_mine.py", "-k", "grok1 or plain").parseoutcomes()
    assert outcomes["errors"] == 2  # diverged, killed: the fixture fails
    assert outcomes["passed"] == 8 + 1
    assert sum(outcomes.values()) == 82 + 1


@pytest.mark.slow
def test_logs_option_is_refused_if_no_selected_test_uses_it(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_mine="def test_plain(): pass")
    result = run("test_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no selected test uses --llmb-logs*"])
    assert run("test_mine.py", "-n1").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_tests_without_llmb_fixtures_run_if_the_logs_option_is_in_addopts(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytester.makeini(f"[pytest]\naddopts = {logs(examples)}\n")
    pytester.makepyfile(test_mine="def test_plain(): pass")
    pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "test_mine.py"
    ).assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_session_of_skipped_tests_fails_if_the_logs_option_is_in_addopts(
    pytester: pytest.Pytester, examples: Path, workers: tuple[str, ...]
) -> None:
    pytester.makeini(f"[pytest]\naddopts = {logs(examples)}\n")
    pytester.makepyfile(
        test_mine="import pytest\n@pytest.mark.skip\ndef test_it(llmb_verdict): pass"
    )
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "test_mine.py", *workers
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_custom_test_fails_without_logs(pytester: pytest.Pytester) -> None:
    uses = ("llmb_trend", "llmb_verdict", "llmb_baseline", "llmb_weak_scaling")
    pytester.makepyfile(
        test_mine="\n".join(f"def test_{name}({name}): pass" for name in uses)
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=len(uses))
    words = "no runs to judge: add --llmb-logs=PATH"
    assert sum(words in line for line in result.outlines) >= len(uses)


@pytest.mark.slow
def test_failing_custom_test_fails_although_the_verdict_passes(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        test_mine="def test_mine(llmb_verdict): raise ValueError('\\x1b[31m red \\u202e')"
    )
    result = run(
        "test_mine.py",
        "-k",
        "gb200-bf16-128",
        "--llmb-junit=junit.xml",
        "--llmb-json=a.json",
    )
    result.assert_outcomes(failed=1, deselected=81)
    result.stdout.fnmatch_lines([f"TEST_FAILED    {ID}*", "1 red: 1 TEST_FAILED"])
    assert 'failures="1"' in pytester.path.joinpath("junit.xml").read_text()
    (outcome,) = json.loads(pytester.path.joinpath("a.json").read_bytes())["outcomes"]
    assert (
        outcome["text"]
        == "PASS, but the test failed: ValueError: \\x1b[31m red \\u202e"
    )  # it may quote a log


@pytest.mark.slow
def test_summary_names_a_custom_test_that_ignores_a_failed_verdict(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(test_mine="def test_mfu(llmb_verdict): pass")
    result = run("test_mine.py", "-k", "70b-25.04-h100-fp8-256", "--llmb-junit=j.xml")
    result.assert_outcomes(passed=1, deselected=81)
    result.stdout.fnmatch_lines(
        [
            "NOT_ASSERTED   llama3.1_70b*",
            "*INCONCLUSIVE, but the test passed without checking the verdict*",
        ]
    )
    assert (
        "make the test act on llmb_verdict.failed and llmb_verdict.skipped"
        in " ".join(result.stdout.str().split())
    )
    assert 'failures="0"' in pytester.path.joinpath("j.xml").read_text()


@pytest.mark.slow
def test_custom_test_of_an_unmatched_run_is_reported(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        test_mine="def test_it(llmb_unmatched): pass\ndef test_too(llmb_verdict): pass"
    )
    result = run(
        "test_mine.py", "-k", "test_it or gb200-bf16-128", "--llmb-junit=j.xml"
    )
    result.assert_outcomes(passed=2, deselected=81)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert (
        "UNMATCHED, but the test passed" in pytester.path.joinpath("j.xml").read_text()
    )


# --- sessions that must not be green --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_session_fails_if_every_item_is_skipped(
    pytester: pytest.Pytester, run: Run, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items: item.add_marker(pytest.mark.skip)\n"
    )
    result = run(*workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOTHING_JUDGED])


@pytest.mark.slow
def test_session_without_runs_fails_although_custom_tests_pass(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile(test_mine="def test_it(llmb_verdict): pass")
    (tmp_path / "empty").mkdir()
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "test_mine.py", logs(tmp_path / "empty")
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOTHING_JUDGED])


CRASHES = {
    "suite": {
        "conftest": f"import os\ndef pytest_runtest_call(item):\n    if '{ID}' in item.nodeid: os._exit(3)\n"
    },
    "user": {"test_mine": "import os\ndef test_it(llmb_verdict): os._exit(3)"},
}


@pytest.mark.slow
@pytest.mark.parametrize("whose", CRASHES)
def test_crashed_worker_is_in_every_report(
    pytester: pytest.Pytester, run: Run, whose: str
) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(**CRASHES[whose])
    arguments = ("test_mine.py",) if whose == "user" else ()
    result = run(*arguments, "-n1", "-k", "gb200-bf16-128", "--llmb-junit=j.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"TEST_FAILED    {ID}*"])
    report = pytester.path.joinpath("j.xml").read_text()
    assert 'failures="1"' in report
    assert "the test process crashed" in report


@pytest.mark.slow
def test_failure_of_a_test_without_llmb_fixtures_adds_no_failed_verdict(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        test_mine="import pytest\n"
        "def test_a(llmb_verdict): assert not llmb_verdict.failed\n"
        f"@pytest.mark.parametrize('x', ['{ID}'])\n"
        "def test_b(x): assert 0\n"
    )
    result = run("test_mine.py", "-k", "gb200-bf16-128")
    result.assert_outcomes(passed=1, failed=1, deselected=81)
    result.stdout.fnmatch_lines(["1 green: 1 PASS"])
