"""Sessions without judged runs: one item fails, or all without that item."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from generator import write_run
from support.titan_runs import write_run as write_titan_run

from pytest_llmbench.core.baseline_records import Baseline

SUITE = "pytest_llmbench/suite"
GUARD = f"{SUITE}/test_something_was_judged.py::test_something_was_judged[session]"
ONE, OTHER = "grok1_314b-25.05-gb200-bf16-128", "grok1_314b-25.05-gb200-bf16-256"
ITEM = f"{SUITE}/test_performance.py::test_performance[{ONE}]"


@pytest.fixture
def empty(pytester: pytest.Pytester) -> str:
    """The option for a folder without a run."""
    return f"--llmb-logs={pytester.mkdir('empty')}"


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        ([], 82),
        (["-k", ONE], 1),
        (["-m", "llmb(model='grok1', gpu='gb200')"], 6),
        ([ITEM], 1),
        ([f"--deselect={GUARD}"], 82),
        (["-k", ONE, f"--deselect={SUITE}/test_something_was_judged.py"], 1),
        pytest.param(["-n1", "-k", ONE], 1, marks=pytest.mark.slow),
    ],
    ids=["all", "-k", "-m", "node id", "deselected", "-k and deselected", "xdist"],
)
def test_session_without_judged_runs_has_one_failed_item(
    pytester: pytest.Pytester, empty: str, arguments: list[str], selected: int
) -> None:
    result = pytester.runpytest_inprocess(empty, "--llmb-json=out.json", *arguments)
    result.assert_outcomes(
        failed=1,
        skipped=selected,
        deselected=result.parseoutcomes().get("deselected", 0),
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["NOTHING_JUDGED  session", "nothing was judged: no valid run of the *"]
    )
    result.stdout.fnmatch_lines(
        [f"1 red: 1 NOTHING_JUDGED; {selected} skipped: {selected} MISSING"]
    )
    document = json.loads(Path("out.json").read_text())
    assert not document["green"]
    assert [
        item["verdict"] for item in document["outcomes"] if item["status"] == "failed"
    ] == ["NOTHING_JUDGED"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--lf", "--sw"])
def test_last_failed_option_judges_runs_added_after_a_session_without_runs(
    pytester: pytest.Pytester, empty: str, option: str, baselines: dict[str, Baseline]
) -> None:
    pytester.runpytest_inprocess(empty, "-k", ONE, option)
    write_run(pytester.path / "empty", baselines[ONE])
    result = pytester.runpytest_inprocess(empty, option)
    result.assert_outcomes(passed=2, skipped=81)
    result.stdout.fnmatch_lines(["1 green: 1 PASS; 81 skipped: 81 MISSING"])


@pytest.mark.slow
def test_recording_without_runs_has_one_failed_item(
    pytester: pytest.Pytester, empty: str, baselines: dict[str, Baseline]
) -> None:
    """Somebody who records an own run is not told 82 times that others have none."""
    result = pytester.runpytest_inprocess(empty, "--llmb-record=own")
    result.assert_outcomes(failed=1, skipped=82)
    result.stdout.fnmatch_lines(
        ["NOTHING_JUDGED  session", "nothing was recorded: no valid run was found"]
    )
    path = write_run(pytester.path / "empty", baselines[ONE])
    complete = path.read_bytes()
    path.write_bytes(complete[: len(complete) // 2])
    invalid = pytester.runpytest_inprocess(empty, "--llmb-record=own")
    invalid.assert_outcomes(failed=1, skipped=82)
    invalid.stdout.fnmatch_lines([f"INVALID  {ONE} *", "1 red: 1 INVALID; *"])
    assert not Path("own").exists()
    path.write_bytes(complete)
    pytester.runpytest_inprocess(empty, "--llmb-record=own").assert_outcomes(
        passed=1, skipped=82
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook",
    [
        "def pytest_collection_modifyitems(items):\n"
        "    items[:] = [item for item in items if 'something' not in item.name]",
        "import pytest\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
        "        if 'something' in item.name:\n            item.add_marker(pytest.mark.skip)",
    ],
    ids=["taken out, as by a shard", "marked"],
)
def test_missing_configurations_fail_if_a_conftest_deselects_the_nothing_judged_item(
    pytester: pytest.Pytester, empty: str, hook: str
) -> None:
    pytester.makeconftest(hook)
    result = pytester.runpytest_inprocess(empty, "-k", "grok1 and gb200")
    assert result.parseoutcomes()["failed"] == 6
    result.stdout.fnmatch_lines(["6 red: 6 MISSING*"])


@pytest.mark.slow
def test_session_without_runs_fails_if_its_nothing_judged_item_is_skipped(
    pytester: pytest.Pytester, empty: str
) -> None:
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(autouse=True)\ndef skip(request):\n"
        "    if 'something' in request.node.name:\n        pytest.skip('not today')"
    )
    result = pytester.runpytest_inprocess(empty, "-k", ONE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*nothing was judged: no test with a verdict was finished*"]
    )


@pytest.mark.slow
def test_summary_begins_with_unmatched_runs_and_the_command_to_record_them(
    pytester: pytest.Pytester, empty: str, baselines: dict[str, Baseline]
) -> None:
    """Another model of another framework is near to nothing."""
    write_titan_run(pytester.path / "empty", 1, name="mine/train.log")
    result = pytester.runpytest_inprocess(
        empty, "-k", "gb200 or unmatched", "--llmb-json=out.json"
    )
    output = result.stdout.str()
    assert "nearest" not in output
    assert output.index("UNMATCHED  mine") < output.index("NOTHING_JUDGED  session")
    result.stdout.fnmatch_lines(
        [
            "  pytest --llmb-logs=*empty --llmb-record=own",
            "2 red: 1 UNMATCHED, 1 NOTHING_JUDGED; *",
        ]
    )
