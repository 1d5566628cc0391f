"""Selections: failures of selected configurations stay, left-out items are counted."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generator import write_run
from msgspec import convert
from support.sessions import Judge

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.plugin import session_state as session
from pytest_llmbench.report.notifications import make_message
from pytest_llmbench.report.outcome_documents import SessionDocument

SUITE = "pytest_llmbench/suite"
PERFORMANCE = f"{SUITE}/test_performance.py::test_performance"
GROK = tuple(
    f"grok1_314b-25.05-gb200-{dtype}-{gpus}"
    for dtype in ("bf16", "fp8")
    for gpus in (256, 512)
)
LLAMA = ("llama3.1_8b-25.04-h100-bf16-16", "llama3.1_8b-25.04-h100-fp8-16")
FAIL = ("--llmb-trend=fail", "--llmb-scaling=fail")


def write_nights(
    folder: Path,
    baselines: dict[str, Baseline],
    days: int,
    factor: Callable[[str, int], float],
) -> Path:
    """Six configurations with one run each day and a spread of 0.2 %."""
    start = datetime.now(UTC).replace(
        hour=3, minute=0, second=0, microsecond=0
    ) - timedelta(days=days)
    random = np.random.default_rng(7)
    for index, name in enumerate((*GROK, *LLAMA)):
        for day in range(days):
            slower = factor(name, day) * (1 + 0.002 * float(random.standard_normal()))
            started = start + timedelta(days=day, minutes=index)
            write_run(
                folder,
                baselines[name],
                factor=slower,
                started=started,
                job_id=str(10_000 + 1000 * index + day),
            )
    return folder


@pytest.fixture(scope="module")
def fortnight(
    tmp_path_factory: pytest.TempPathFactory, baselines: dict[str, Baseline]
) -> Path:
    """14 days, 3 % slower from day 8 on: all PASS, with six trends."""
    folder = tmp_path_factory.mktemp("fortnight")
    return write_nights(folder, baselines, 14, lambda _, day: 1.03 if day >= 8 else 1.0)


@pytest.fixture(scope="module")
def week(
    tmp_path_factory: pytest.TempPathFactory, baselines: dict[str, Baseline]
) -> Path:
    """Seven days, and a day on which everything is 4 % slower."""
    folder = tmp_path_factory.mktemp("week")
    return write_nights(folder, baselines, 8, lambda _, day: 1.04 if day == 7 else 1.0)


def red(
    folder: Path, pytester: pytest.Pytester, *options: str
) -> tuple[int, list[str], dict[str, Any]]:
    """Return the exit code, the red outcomes as `test[id]` and the JSON document."""
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        f"--llmb-logs={folder}",
        "--llmb-json=llmb.json",
        *FAIL,
        *options,
    )
    document = json.loads((pytester.path / "llmb.json").read_bytes())
    names = [
        f"{outcome.get('check', outcome['kind'])} {outcome['id']}"
        for outcome in document["outcomes"]
        if outcome["status"] == "failed"
    ]
    return int(result.ret), names, document


def caution(document: dict[str, Any], code: str) -> str:
    return next(
        (
            outcome["text"]
            for outcome in document["cautions"]
            if outcome["code"] == code
        ),
        "",
    )


# --- what is about a selected configuration stays -------------------------------------


@pytest.mark.slow
def test_every_slower_trend_fails_without_a_selection(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    code, names, document = red(fortnight, pytester)
    assert (code, sorted(names)) == (
        1,
        sorted(f"trend {name}" for name in (*GROK, *LLAMA)),
    )
    assert [outcome["code"] for outcome in document["cautions"]] == ["without-verdict"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("-m", 'llmb(gpu="gb200")', "-n1"),
        ("-k", "grok1 and not trend"),
        tuple(f"{PERFORMANCE}[{name}]" for name in GROK),
    ],
    ids=["mark-with-workers", "keyword", "node-ids"],
)
def test_slower_trend_fails_if_its_configuration_is_selected(
    fortnight: Path, pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    code, names, document = red(fortnight, pytester, *options)
    assert (code, sorted(names)) == (1, sorted(f"trend {name}" for name in GROK))
    text = caution(document, "left-out-by-selection")
    assert text.endswith(f"items, 2 would fail: trend {LLAMA[0]}, trend {LLAMA[1]}")


@pytest.mark.slow
def test_selecting_a_configuration_leaves_out_the_trends_of_others(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    code, names, document = red(
        fortnight,
        pytester,
        "-m",
        "llmb(gpu='h100', dtype='fp8', gpus=16, model='llama3.1')",
    )
    assert (code, names) == (1, [f"trend {LLAMA[1]}"])
    assert caution(document, "left-out-by-selection").startswith("left out by -m: ")
    assert ", 5 would fail: " in caution(document, "left-out-by-selection")


@pytest.mark.slow
def test_mark_expression_selects_trends_of_one_gpu_type(
    judged: Judge, fortnight: Path
) -> None:
    """Trends of one GPU type can be selected with -m."""
    session = judged(
        f"--llmb-logs={fortnight}", "-m", "llmb(check='trend') and llmb(gpu='gb200')"
    )
    assert {report["id"] for report in session.reports} == set(GROK)
    assert {report["kind"] for report in session.reports} == {"check"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "stays"),
    [
        (("-k", GROK[0]), True),
        (("-k", "not cluster_change"), True),
        ((f"{PERFORMANCE}[{LLAMA[0]}]",), True),
        (("-k", "nemotron4"), False),
    ],
    ids=["one-configuration", "not-the-check", "node-id", "another-recipe"],
)
def test_shared_shift_is_reported_if_one_of_its_configurations_is_selected(
    week: Path, pytester: pytest.Pytester, options: tuple[str, ...], stays: bool
) -> None:
    code, names, document = red(week, pytester, *options)
    assert ("cluster-change slower" in names) is stays
    assert code == 1  # also where nothing was judged
    assert (
        "cluster-change slower" in caution(document, "left-out-by-selection")
    ) is not stays


# --- --lf, --ff, --nf, --sw -----------------------------------------------------------


def arguments(folder: Path, *extra_options: str) -> tuple[str, ...]:
    return (f"--llmb-logs={folder}", "--llmb-json=llmb.json", *FAIL, *extra_options)


def failed(pytester: pytest.Pytester) -> list[str]:
    document = json.loads((pytester.path / "llmb.json").read_bytes())
    return [
        f"{outcome.get('check', outcome['kind'])} {outcome['id']}"
        for outcome in document["outcomes"]
        if outcome["status"] == "failed"
    ]


@pytest.mark.slow
def test_caution_counts_failures_left_out_by_the_last_failed_option(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    pytester.runpytest_inprocess(*arguments(fortnight, "-k", LLAMA[0]))
    assert failed(pytester) == [f"trend {LLAMA[0]}"]
    result = pytester.runpytest_inprocess(*arguments(fortnight, "--lf"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failed(pytester) == [f"trend {LLAMA[0]}"]
    document = json.loads((pytester.path / "llmb.json").read_bytes())
    assert ", 5 would fail: " in caution(document, "left-out-by-selection")
    assert caution(document, "left-out-by-selection").startswith("left out by --lf: ")


@pytest.mark.slow
def test_slower_trend_fails_if_last_failed_selects_its_configuration(
    fortnight: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item failed for another reason; that its trend is red was nobody's wish
    before."""
    name = LLAMA[0]
    pytester.runpytest_inprocess(
        f"--llmb-logs={fortnight}", "-k", name, "--llmb-tolerance=1%"
    )
    result = pytester.runpytest_inprocess(*arguments(fortnight, "--lf"))
    assert failed(pytester) == [f"trend {name}"]
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_caution_of_a_stepwise_session_counts_failing_items_not_yet_run(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest_inprocess(*arguments(fortnight, "--sw"))
    document = json.loads((pytester.path / "llmb.json").read_bytes())
    assert "5 would fail" in caution(document, "not-run")
    assert result.ret != pytest.ExitCode.OK
    pytester.runpytest_inprocess(
        *arguments(fortnight, "--sw", f"{PERFORMANCE}[{LLAMA[0]}]")
    )
    assert failed(pytester) == [f"trend {LLAMA[0]}"]


# --- the user's word ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection",
    [("-k", LLAMA[0]), (f"{PERFORMANCE}[{LLAMA[0]}]",)],
    ids=["keyword", "node-id"],
)
def test_deselected_trend_is_left_out_with_a_caution(
    fortnight: Path, pytester: pytest.Pytester, selection: tuple[str, ...]
) -> None:
    node = f"{SUITE}/test_trend.py::test_trend[{LLAMA[0]}]"
    _, names, document = red(fortnight, pytester, *selection, "--deselect", node)
    assert f"trend {LLAMA[0]}" not in names
    assert (
        caution(document, "deselected")
        == f"deselected by --deselect, a conftest or a plugin: 1 item, 1 would fail: trend {LLAMA[0]}"
    )


CONFTESTS = {
    "silent": (
        "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if 'test_trend' not in i.nodeid]"
    ),
    "told": (
        "def pytest_collection_modifyitems(config, items):\n"
        "    gone = [i for i in items if 'test_trend' in i.nodeid]\n"
        "    items[:] = [i for i in items if i not in gone]\n"
        "    config.hook.pytest_deselected(items=gone)"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conftest", "selection"),
    [("silent", ()), ("told", (f"{PERFORMANCE}[{LLAMA[0]}]",))],
    ids=["silent", "told"],
)
def test_trends_deselected_by_a_conftest_are_a_caution(
    fortnight: Path,
    pytester: pytest.Pytester,
    conftest: str,
    selection: tuple[str, ...],
) -> None:
    pytester.makeconftest(CONFTESTS[conftest])
    code, names, document = red(fortnight, pytester, *selection)
    assert (code, names) == (0, [])
    assert "6 items, 6 would fail: trend " in caution(document, "deselected")
    assert (
        "caution: deselected by --deselect, a conftest or a plugin: 6 items, 6 would fail"
        in make_message(convert(document, SessionDocument))
    )


# --- what did not run -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [("-x",), ("-x", "-n2")], ids=["alone", "workers"])
def test_caution_of_a_session_stopped_at_first_failure_counts_failing_unrun_items(
    fortnight: Path, pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    _, names, document = red(fortnight, pytester, *options)
    text = caution(document, "not-run")
    assert text.startswith("did not run: ")
    assert f", {6 - len(names)} would fail: trend " in text


# --- runs without a configuration -----------------------------------------------------


@pytest.fixture
def good(tmp_path: Path, baselines: dict[str, Baseline]) -> Path:
    """A good run of yesterday, of two configurations."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    for name in (GROK[2], LLAMA[1]):
        write_run(
            tmp_path / "runs",
            baselines[name],
            started=yesterday,
            job_id="100" + name[0].replace("g", "1"),
        )
    return tmp_path / "runs"


@pytest.fixture
def other_gpu(good: Path, baselines: dict[str, Baseline]) -> Path:
    """A newer and slow run of the first, whose metadata name another GPU type."""
    log = write_run(
        good,
        baselines[GROK[2]],
        factor=1.3,
        started=datetime.now(UTC) - timedelta(hours=2),
        job_id="200",
    )
    files = [
        path
        for path in log.parent.rglob("*")
        if path.suffix in (".yaml", ".yml", ".json")
    ]
    assert files
    for path in files:
        path.write_text(path.read_text().replace("gb200", "b300"))
    return good


SELECTIONS = {
    "everything": (),
    "keyword-with-a-worker": ("-k", GROK[2], "-n1"),
    "node-id": (f"{PERFORMANCE}[{GROK[2]}]",),
}


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_newer_run_of_another_gpu_type_is_unmatched(
    other_gpu: Path,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
    selection: tuple[str, ...],
) -> None:
    capsys.readouterr()
    code, names, document = red(other_gpu, pytester, *selection)
    assert code == 1
    (name,) = names
    assert name.startswith("stray pretrain_grok1_314b_fp8_256")
    assert "UNMATCHED pretrain_grok1_314b_fp8_256" in make_message(
        convert(document, SessionDocument)
    )
    assert "UNMATCHED" in capsys.readouterr().out


@pytest.mark.slow
def test_keyword_selection_fails_on_unmatched_runs_beyond_the_item_limit(
    other_gpu: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "Training epoch 0, iteration 0/0 | global_step: 0 | reduced_train_loss: 11.0 | train_step_timing in s: 7.3"
    newer = int((datetime.now(UTC) - timedelta(hours=1)).timestamp())
    for number in range(4):
        unknown = other_gpu / f"pretrain_model{number}_7b_bf16_gpus8_{newer + number}"
        unknown.mkdir()
        (unknown / f"log-account.pretrain_{number}_0.out").write_text(
            f"{line}{number}\n"
        )
    monkeypatch.setattr(session, "MOST_UNMATCHED", 2)
    code, names, document = red(other_gpu, pytester, "-k", GROK[2])
    assert code == 1
    assert names == ["stray other-unmatched-runs"]
    (outcome,) = [
        outcome for outcome in document["outcomes"] if outcome["kind"] == "stray"
    ]
    assert outcome["text"].startswith("4 more unmatched runs")


@pytest.mark.slow
def test_unmatched_run_outside_the_selection_is_a_caution(
    other_gpu: Path, pytester: pytest.Pytester
) -> None:
    code, names, document = red(other_gpu, pytester, "-k", "llama3.1_8b")
    assert (code, names) == (0, [])
    assert "1 would fail: UNMATCHED pretrain_grok1_314b_fp8_256" in caution(
        document, "left-out-by-selection"
    )


@pytest.mark.slow
def test_newer_unmatched_run_of_a_selected_recipe_is_a_caution_if_listed(
    other_gpu: Path, pytester: pytest.Pytester
) -> None:
    code, _, document = red(other_gpu, pytester, "-k", "grok1", "--llmb-unmatched=list")
    assert code == 0
    assert "UNMATCHED pretrain_grok1_314b_fp8_256" in caution(
        document, "newer-run-not-judged"
    )
    assert not caution(
        red(other_gpu, pytester, "-k", "llama3.1_8b", "--llmb-unmatched=list")[2],
        "newer-run-not-judged",
    )


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Take the permission from a new folder, also from root, who may read every one."""

    def lock(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        scandir = os.scandir

        def refusing(place: Any) -> Any:
            if str(place) == str(path):
                raise PermissionError(errno.EACCES, "Permission denied")
            return scandir(place)

        monkeypatch.setattr(os, "scandir", refusing)

    return lock


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("folder", ["experiments/pretrain_grok1_314b_fp8_256", "lost"])
def test_selection_fails_on_an_unreadable_folder_that_may_contain_its_runs(
    good: Path,
    lock: Callable[[Path], None],
    pytester: pytest.Pytester,
    folder: str,
    selection: tuple[str, ...],
) -> None:
    lock(good / folder)
    code, names, document = red(good, pytester, *selection)
    assert (code, names) == (1, [f"stray unreadable-{Path(folder).name}"])
    assert f"UNREADABLE unreadable-{Path(folder).name}" in make_message(
        convert(document, SessionDocument)
    )


@pytest.mark.slow
def test_unmatched_run_of_an_unknown_recipe_fails_only_without_selection(
    good: Path, baselines: dict[str, Baseline], pytester: pytest.Pytester
) -> None:
    """It is red in a session of everything, and named where a selection leaves it
    out."""
    log = write_run(good, baselines[LLAMA[1]], started=datetime.now(UTC), job_id="300")
    mine = good / "experiments" / "pretrain_mine_13b_fp8_gpus16" / "1"
    mine.mkdir(parents=True)
    (mine / "log-mine_300_0.out").write_bytes(log.read_bytes())
    assert red(good, pytester, "-k", "grok1 or llama3.1")[:2] == (0, [])
    assert red(good, pytester)[0] == 1


# --- a user's own tests ---------------------------------------------------------------


@pytest.mark.slow
def test_custom_tests_do_not_hide_a_failing_trend(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_mine="def test_it(llmb_verdict): assert not llmb_verdict.failed"
    )
    code, names, _ = red(fortnight, pytester, "test_mine.py", "-k", LLAMA[0])
    assert (code, names) == (1, [f"trend {LLAMA[0]}"])
    node = f"{SUITE}/test_trend.py::test_trend[{LLAMA[0]}]"
    code, names, document = red(
        fortnight, pytester, "test_mine.py", "-k", LLAMA[0], "--deselect", node
    )
    assert (code, names) == (0, [])
    assert f"trend {LLAMA[0]}" in caution(document, "deselected")


@pytest.mark.slow
def test_caution_names_a_regression_that_node_ids_of_custom_tests_leave_out(
    tmp_path: Path, baselines: dict[str, Baseline], pytester: pytest.Pytester
) -> None:
    """They leave items out before there are any."""
    write_run(tmp_path / "runs", baselines[LLAMA[0]])
    write_run(tmp_path / "runs", baselines[GROK[3]], factor=1.3)
    pytester.makepyfile(
        test_mine="def test_it(llmb_verdict): assert not llmb_verdict.failed"
    )
    options = (
        "-p",
        "no:cacheprovider",
        f"--llmb-logs={tmp_path / 'runs'}",
        "--llmb-json=llmb.json",
    )
    result = pytester.runpytest_inprocess(
        *options, f"test_mine.py::test_it[{LLAMA[0]}]"
    )
    assert result.ret == pytest.ExitCode.OK
    document = json.loads((pytester.path / "llmb.json").read_bytes())
    assert (
        caution(document, "left-out-by-selection")
        == f"left out by node ids: 1 item, 1 would fail: REGRESSION {GROK[3]}"
    )


@pytest.mark.slow
def test_custom_tests_run_without_built_in_items_by_default(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_mine="def test_it(llmb_verdict): assert not llmb_verdict.failed"
    )
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "test_mine.py",
        f"--llmb-logs={fortnight}",
        "-k",
        LLAMA[0],
    )
    result.assert_outcomes(passed=1, deselected=81)


@pytest.mark.slow
def test_custom_trend_test_replaces_the_built_in_test(
    fortnight: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_mine=(
            "def test_it(llmb_verdict): assert not llmb_verdict.failed\n"
            "def test_level(llmb_trend): assert not llmb_trend.failed, llmb_trend.message\n"
            "def test_level_too(llmb_trend): assert not llmb_trend.failed, llmb_trend.message\n"
        )
    )
    base = ("-p", "no:cacheprovider", "test_mine.py", f"--llmb-logs={fortnight}", *FAIL)
    pytester.runpytest_inprocess(
        *base, "-m", "llmb(model='llama3.1', size='8b', gpus=16)"
    ).assert_outcomes(passed=2, failed=4, deselected=353)
    pytester.runpytest_inprocess(
        *base, "-k", f"test_level_too and {LLAMA[0]}"
    ).assert_outcomes(failed=1, deselected=93)


@pytest.mark.parametrize(
    "workers", ["-n0", pytest.param("-n2", marks=pytest.mark.slow)]
)
def test_unmatched_runs_beyond_the_item_limit_are_counted_in_the_last_item(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Unreadable files come first. `-n2` runs other processes, with the limit that
    ships."""
    if workers == "-n0":
        monkeypatch.setattr(session, "MOST_UNMATCHED", 3)
    line = "Training epoch 0, iteration 0/0 | global_step: 0 | reduced_train_loss: 11.0 | train_step_timing in s: 7.3"
    runs = pytester.mkdir("runs")
    (runs / "new").mkdir()
    (runs / "old").mkdir()
    for number in range(10):
        (runs / "new" / f"log-account.pretrain_mine_{number}_0.out").write_text(
            f"{line}{number}\n"
        )
    (runs / "old" / "cut.tar").write_bytes(bytes(20480))
    result = pytester.runpytest_inprocess(
        workers, f"--llmb-logs={runs}", "--llmb-json=o.json", "-p", "no:cacheprovider"
    )
    outcomes = json.loads(Path("o.json").read_text())["outcomes"]
    reasons = [outcome["reason"] for outcome in outcomes if outcome["kind"] == "stray"]
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert reasons.count("unreadable") == 1
    text = " ".join(result.stdout.str().split())
    if workers == "-n0":
        assert len(reasons) == 3
        assert (
            "4 more runs were not judged: at most 3 have an item, the last one for all others; `llmbench summary`"
            in text
        )
        assert "9 more unmatched runs, " in text
    else:
        assert len(reasons) == 11
        assert "more runs were not judged" not in text
