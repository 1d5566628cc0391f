"""Rows of Megatron-Bridge's tables: each run is judged by its own row only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (its compiled parts cannot be imported twice, as pytester would)
from generator.bridge import (
    CONFIGURATION,
    METADATA,
    SCRIPT,
    BridgeRun,
    write_bridge_run,
)
from msgspec.structs import replace
from support.sessions import Judge, JudgedSession

from pytest_llmbench.baseline.read import find_shipped_tables, read_recipes
from pytest_llmbench.core.baseline_records import Baseline

COARSEST = "megatron_bridge_nemotron_3_5_lightning-26.08-gb200-fp8_mx-8"


@cache
def read_rows() -> dict[str, Baseline]:
    """Every row of every release, by id."""
    recipes = read_recipes([find_shipped_tables()])
    return {
        baseline.key.id: baseline for recipe in recipes for baseline in recipe.baselines
    }


@pytest.fixture
def rows() -> dict[str, Baseline]:
    return read_rows()


def write_all(folder: Path, runs: Iterator[BridgeRun]) -> Path:
    """Write each run below a folder of its own, whose name says nothing."""
    for number, run in enumerate(runs):
        write_bridge_run(folder / f"n{number}", run)
    return folder


def find_strays(session: JudgedSession) -> dict[str, str]:
    """The text of each unmatched run, by the first folder of its id."""
    strays = (
        outcome for outcome in session.described.values() if outcome["kind"] == "stray"
    )
    return {outcome["id"].partition("/")[0]: outcome["text"] for outcome in strays}


def of_tables(session: JudgedSession) -> dict[str, str]:
    return {
        name: verdict
        for name, verdict in session.verdicts.items()
        if name.startswith("megatron_bridge")
    }


@pytest.mark.slow
def test_run_at_the_published_value_passes(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    session = judged(
        f"--llmb-logs={write_all(tmp_path / 'runs', map(BridgeRun, rows.values()))}"
    )
    assert of_tables(session) == dict.fromkeys(rows, "PASS")
    for name, baseline in rows.items():
        logged = session.described[name]["metrics"]["logged_tflops_per_gpu"]["value"]
        coarse = baseline.resolution_seconds / baseline.step_seconds
        assert logged == pytest.approx(
            float(dict(baseline.cells)["tflops_per_gpu"]), rel=1e-3 + coarse / 2
        ), name


@pytest.mark.slow
def test_run_eight_percent_slower_fails(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    """The step time of `COARSEST` is known to 3.6 % only: its run fails by the rule as
    written, and is labelled."""
    chosen = [COARSEST, *list(rows)[::4]]
    runs = (BridgeRun(rows[name], factor=1.08) for name in chosen)
    session = judged(f"--llmb-logs={write_all(tmp_path / 'runs', runs)}")
    assert {name: session.statuses[name] for name in chosen} == dict.fromkeys(
        chosen, "failed"
    )
    assert of_tables(session) == dict.fromkeys(chosen, "REGRESSION") | {
        COARSEST: "INCONCLUSIVE"
    }


def find_sibling(baseline: Baseline, rows: dict[str, Baseline]) -> dict[str, str]:
    """Return what a run of the same name but for its precision says: that of a row, or
    one of which there is none."""
    others = ("bf16", "fp8_cs", "fp8_mx", "nvfp4")
    like = [
        replace(baseline.key, dtype=dtype)
        for dtype in others
        if dtype != baseline.key.dtype
    ]
    there = next((key.dtype for key in like if key.id in rows), like[0].dtype)
    return {"dtype": there, "family": "fp8" if there.startswith("fp8") else there}


@pytest.mark.slow
def test_run_of_another_precision_matches_no_table_row(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    """Half of the runs say it in all places, which makes them runs of another row, or
    of none; the other half in the name and the script alone: the configuration that was
    written contradicts them."""
    runs = []
    for number, baseline in enumerate(list(rows.values())[::3]):
        changed = find_sibling(baseline, rows)
        files = (CONFIGURATION, SCRIPT) if number % 2 else (SCRIPT,)
        runs.append(BridgeRun(baseline, changed=changed, files=files))
    session = judged(f"--llmb-logs={write_all(tmp_path / 'runs', iter(runs))}")
    strays = find_strays(session)
    rows_of = {
        outcome["run"]["id"].partition("/")[0]: outcome["configuration"]
        for outcome in session.described.values()
        if outcome.get("run")
    }
    for number, run in enumerate(runs):
        row = rows_of.get(f"n{number}")
        assert row is None or (row["dtype"], row["id"] != run.baseline.key.id) == (
            run.changed["dtype"],
            True,
        )
        assert (row is None) == (f"n{number}" in strays)
    assert 33 < len(strays) < len(runs)


def write_one(folder: Path, run: BridgeRun) -> Path:
    return write_all(folder / "runs", iter([run]))


ROW = "megatron_bridge_llama3_70b-26.04-gb300-fp8_cs-64"


TUNED = "megatron_bridge_llama3_70b-26.06-gb300-fp8_cs-8-lora"

ATTRIBUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "metadata": (
        ROW,
        {
            "files": (METADATA,),
            "changed": {"name": "llama3.1", "size": "70b", "container": "26.04.00"},
        },
    ),
    "tuning": (
        TUNED,
        {
            "files": (METADATA,),
            "changed": {"task": "finetune"},
            "name": "lora_llama3_70b_fp8_cs_gpus8",
        },
    ),
    "script": (ROW, {"name": "friday"}),
    "options": (ROW, {"files": ()}),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ATTRIBUTED)
def test_run_matches_its_table_row(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline], source: str
) -> None:
    """Metadata contain `fp8`, llama3.1 and `finetune`: the name states which FP8 and
    tuning."""
    row, run = ATTRIBUTED[source]
    folder = write_one(tmp_path, BridgeRun(rows[row], **run))
    options = (
        ("--llmb-gpu=gb300", "--llmb-release=26.04") if source == "options" else ()
    )
    assert of_tables(judged(f"--llmb-logs={folder}", *options)) == {row: "PASS"}


UNMATCHED: tuple[tuple[dict[str, str], tuple[str, ...], str], ...] = (
    ({}, (), "not stated: gpu, release"),
    ({"gpu": "h100"}, (SCRIPT,), "no baseline fits"),
    ({"container": "26.05"}, (SCRIPT,), "release 26.05 has no baseline"),
    ({"gbs": "512"}, (CONFIGURATION, SCRIPT), "no baseline fits"),
    ({"vp": "4"}, (CONFIGURATION, SCRIPT), "no baseline fits"),
    ({"task": "sft"}, (SCRIPT,), "no baseline fits"),
)


@pytest.mark.slow
def test_reason_of_an_unmatched_run_names_its_missing_or_different_fact(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    runs = (
        BridgeRun(rows[ROW], changed=changed, files=files, job=str(number), days=number)
        for number, (changed, files, _) in enumerate(UNMATCHED, 1)
    )
    session = judged(f"--llmb-logs={write_all(tmp_path / 'runs', runs)}")
    assert of_tables(session) == {}
    strays = find_strays(session)
    assert sorted(strays) == [f"n{number}" for number in range(len(UNMATCHED))]
    for number, (*_, reason) in enumerate(UNMATCHED):
        assert reason in strays[f"n{number}"]


FURTHER_TOKENS = {
    "deepseek_v3-25.11-gb200-fp8_mx-256-without_mtp": ("null", "1"),
    "deepseek_v3-26.04-gb300-fp8_mx-256": ("1", "0"),
    "nemotron_3_super-26.08-gb300-nvfp4-64": ("2", "1"),
}
OTHER_FSDP = {
    "gpt_oss_120b-26.08-gb300-fp8_mx-64": "true",
    "nemotron_3_ultra-26.08-gb200-fp8_mx-256": "false",
}


def write_pair(root: Path, row: Baseline) -> None:
    """Write a run of a row, and a newer one that differs in what the configuration of
    the row's release sets."""
    name = row.key.id.removeprefix("megatron_bridge_")
    changed = {"fsdp": OTHER_FSDP[name]} if name in OTHER_FSDP else {}
    log = write_bridge_run(root / f"row-{name}", BridgeRun(row))
    other = write_bridge_run(
        root / f"other-{name}", BridgeRun(row, changed=changed, job="7", days=1)
    )
    for path, further in zip((log, other), FURTHER_TOKENS.get(name, ()), strict=False):
        configuration = path.parent / "configs" / "ConfigContainer.yaml"
        text = configuration.read_text().replace(
            "model:\n", f"model:\n  mtp_num_layers: {further}\n"
        )
        configuration.write_text(text)


@pytest.mark.slow
def test_run_whose_unlogged_settings_differ_matches_no_table_row(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    """Further tokens are 4 % of the work of DeepSeek V3: the tolerance of logged
    TFLOP/s would not detect them."""
    names = [*FURTHER_TOKENS, *OTHER_FSDP]
    for name in names:
        write_pair(tmp_path, rows[f"megatron_bridge_{name}"])
    session = judged(f"--llmb-logs={tmp_path}")
    assert of_tables(session) == {f"megatron_bridge_{name}": "PASS" for name in names}
    assert set(find_strays(session)) == {f"other-{name}" for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 1.556])
def test_lora_is_judged_by_step_time_only(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline], times: float
) -> None:
    """By the version that packed the data, as of LoRA or as of full training."""
    for folder, factor, verdict in (("n0", 1.0, "PASS"), ("n1", 1.08, "REGRESSION")):
        log = write_bridge_run(tmp_path / folder, BridgeRun(rows[TUNED], factor=factor))
        pattern = r"(?<=GPU utilization: )[\d.]+"
        log.write_text(
            re.sub(
                pattern, lambda match: f"{float(match[0]) * times:.1f}", log.read_text()
            )
        )
        assert of_tables(judged(f"--llmb-logs={tmp_path / folder}")) == {TUNED: verdict}


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["{launch}/acct-llm.other_sbatch.sh", "{launch}/{experiment}/scripts/other.sh"],
)
def test_run_with_two_possible_launch_scripts_matches_no_table_row(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline], place: str
) -> None:
    """The submitted one says the release, and the one that it runs the GPU type: nobody
    knows which of two ran."""
    log = write_bridge_run(tmp_path / "n0", BridgeRun(rows[ROW]))
    assert of_tables(judged(f"--llmb-logs={tmp_path}")) == {ROW: "PASS"}
    Path(place.format(launch=log.parent.parent, experiment=log.parent.name)).write_text(
        "true\n"
    )
    session = judged(f"--llmb-logs={tmp_path}")
    assert of_tables(session) == {}
    missing = "release" if "sbatch" in place else "gpu"
    assert f"not stated: {missing}" in str(session.described)


@pytest.mark.slow
def test_document_timing_averages_the_same_steps_as_the_recipe(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    folder = write_one(tmp_path, BridgeRun(rows[ROW]))
    session = judged(f"--llmb-logs={folder}", "--llmb-timed=document")
    assert of_tables(session) == {ROW: "PASS"}
    window = session.described[ROW]["window"]
    assert (window["first"], window["last"]) == (35, 44)


@pytest.mark.slow
def test_table_rows_without_a_run_share_one_terminal_line(
    judged: Judge,
    tmp_path: Path,
    rows: dict[str, Baseline],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_one(tmp_path, BridgeRun(rows[ROW]))
    some = judged(f"--llmb-logs={folder}", "-k", "nemotron_3_ultra")
    assert set(of_tables(some)) == {name for name in rows if "nemotron_3_ultra" in name}
    for words in (
        "not nemotron4",
        "70b and fp8",
    ):  # of which ids of other documents have each
        assert set(of_tables(judged(f"--llmb-logs={folder}", "-k", words))) == {ROW}
    required = judged(
        f"--llmb-logs={folder}", "--llmb-require=megatron_bridge_kimi_k2-26.06-*"
    )
    assert sorted(of_tables(required).values()) == ["MISSING", "PASS"]
    assert (
        "no run of 263 configurations of Megatron-Bridge's tables"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_require_all_option_fails_an_inconclusive_table_row(
    judged: Judge, tmp_path: Path, rows: dict[str, Baseline]
) -> None:
    """Too near the bound to tell: whoever requires all, asks for an answer here,
    too."""
    folder = write_one(tmp_path, BridgeRun(rows[ROW], factor=1.045))
    options = (
        f"--llmb-logs={folder}",
        "--llmb-tolerance=4.6%",
        "--llmb-inconclusive=skip",
        "-k",
        ROW,
    )
    assert judged(*options).statuses[ROW] == "skipped"
    required = judged(*options, "-k", "llama3_70b", "--llmb-require=all")
    assert (required.verdicts[ROW], required.statuses[ROW]) == (
        "INCONCLUSIVE",
        "failed",
    )
    assert {required.statuses[name] for name in of_tables(required) if name != ROW} == {
        "skipped"
    }


@pytest.mark.slow
def test_last_failed_option_selects_a_failed_table_row_without_its_log(
    pytester: pytest.Pytester, rows: dict[str, Baseline]
) -> None:
    write_bridge_run(pytester.path / "runs" / "n0", BridgeRun(rows[ROW], factor=1.2))
    assert (
        pytester.runpytest_inprocess("--llmb-logs=runs").parseoutcomes()["failed"] == 1
    )
    (pytester.path / "runs").rename(pytester.path / "away")
    (pytester.path / "runs").mkdir()
    result = pytester.runpytest_inprocess("--llmb-logs=runs", "--lf")
    result.assert_outcomes(
        failed=1, skipped=1, deselected=82
    )  # it is there, and nothing was judged
