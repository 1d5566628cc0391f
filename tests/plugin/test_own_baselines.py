"""Custom baselines: record a folder of runs, then judge later runs against it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.next_day import make_next_day, rename
from support.sessions import Judge
from support.shared_data import shared
from support.titan_runs import MESH, START, write_run

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.cli.main import main


@pytest.mark.slow
def test_slower_run_fails_against_the_baseline_recorded_from_an_unlabelled_folder(
    judged: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "first", 1)
    recorded = judged(
        f"--llmb-logs={tmp_path / 'first'}", f"--llmb-record={tmp_path / 'own'}"
    )
    assert {
        name: verdict
        for name, verdict in recorded.verdicts.items()
        if verdict != "MISSING"
    } == {"oak_14b-own-h100-unknown-8": "RECORDED"}
    printed = capsys.readouterr().out
    recording = printed[printed.index("oak_14b-own-h100-unknown-8: 1 run") :].partition(
        "\n="
    )[0]
    assert max(map(len, recording.splitlines())) <= 80
    text = " ".join(recording.split())
    for said in (
        "oak_14b-own-h100-unknown-8: 1 run at oak/run_#/train.log",
        "gpus 8 (line 2)",
        "global batch size 32 (line 4)",
        "model oak_14B (line 1)",
        "unknown: dtype; runs with other values cannot be distinguished",
    ):
        assert said in text
    for day, slower, expected in (
        (2, 1.0, {"PASS", "INCONCLUSIVE"}),
        (3, 1.12, {"REGRESSION"}),
    ):
        write_run(tmp_path / f"night{day}", day, seconds=2 * slower)
        session = judged(
            f"--llmb-logs={tmp_path / f'night{day}'}",
            f"--llmb-baselines={tmp_path / 'own'}",
            "-k",
            "oak",
        )
        assert set(session.verdicts.values()) <= expected
        assert set(session.statuses.values()) == {"passed" if day == 2 else "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", ["link/../runs", "link", "runs/oak/run_1/train.log"], ids=str
)
def test_recorded_path_is_relative_to_any_form_of_given_path(
    judged: Judge, tmp_path: Path, given: str
) -> None:
    write_run(tmp_path / "runs", 1)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    logs = f"--llmb-logs={tmp_path / given}"
    judged(logs, f"--llmb-record={tmp_path / 'own'}")
    (file,) = (tmp_path / "own").rglob("*.yaml")
    (path,) = re.findall(r"^ +path: (.*)$", file.read_text(), re.MULTILINE)
    assert path in ("oak/run_#/train.log", "run_#/train.log")
    session = judged(logs, f"--llmb-baselines={tmp_path / 'own'}", "-k", "oak")
    assert set(session.verdicts.values()) == {"PASS"}


@pytest.mark.slow
def test_selftest_catches_all_damage_of_recorded_runs(
    judged: Judge, tmp_path: Path
) -> None:
    for day in (1, 2, 3):
        write_run(tmp_path / "runs", day, learning=0.12)
    logs = f"--llmb-logs={tmp_path / 'runs'}"
    judged(logs, f"--llmb-record={tmp_path / 'own'}")
    session = judged(
        logs, f"--llmb-baselines={tmp_path / 'own'}", "--llmb-selftest", "-k", "oak"
    )
    assert session.ret == 0


OTHERS: dict[str, tuple[dict[str, object], str]] = {
    "GPUs": (
        {"mesh": MESH.replace("dp_shard=8", "dp_shard=16"), "gbs": 64},
        "gpus 16 (line 2), not 8",
    ),
    "batch": ({"mbs": 8, "gbs": 64}, "global batch size 64 (line 4), not 32"),
    "precision": (
        {"more": "Float8 training active with recipe rowwise\n"},
        "quantization fp8 (line 5)",
    ),
    "layout": (
        {"mesh": "pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1"},
        "parallelism",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_run_of_another_configuration_at_a_recorded_path_is_unmatched(
    judged: Judge, tmp_path: Path, other: str
) -> None:
    differs, said = OTHERS[other]
    write_run(tmp_path / "first", 1)
    judged(f"--llmb-logs={tmp_path / 'first'}", f"--llmb-record={tmp_path / 'own'}")
    write_run(tmp_path / "second", 2, **differs)  # type: ignore[arg-type]
    session = judged(
        f"--llmb-logs={tmp_path / 'second'}", f"--llmb-baselines={tmp_path / 'own'}"
    )
    assert "UNMATCHED" in {
        str(verdict).upper() for verdict in session.verdicts.values()
    }
    assert not {"PASS", "INCONCLUSIVE", "REGRESSION", "IMPROVEMENT"} & set(
        session.verdicts.values()
    )
    (text,) = [
        outcome["text"]
        for outcome in session.described.values()
        if outcome["kind"] == "stray"
    ]
    assert "another configuration than oak_14b-own-h100-unknown-8: " in text
    assert said in text


@pytest.mark.slow
def test_run_matches_a_recorded_baseline_without_model_size_facts(
    judged: Judge, tmp_path: Path
) -> None:
    """Its runs stay its own, now that their logs are known to say it; one that says
    another size of it never is."""
    sizes = " hidden_size: 5120\n num_attention_heads: 40\n"
    write_run(tmp_path / "first", 1, more=sizes)
    judged(f"--llmb-logs={tmp_path / 'first'}", f"--llmb-record={tmp_path / 'own'}")
    (file,) = (tmp_path / "own").rglob("*.yaml")
    recorded = file.read_text()
    old, count = re.subn(
        r"(hidden size|attention heads|gpu memory): '?[\w ]+'?,\s+", "", recorded
    )
    assert count == 3
    for text, more, verdicts in (
        (old, sizes, {"PASS", "INCONCLUSIVE"}),
        (recorded, sizes.replace("5120", "4096"), {"UNMATCHED"}),
    ):
        file.write_text(text)
        write_run(tmp_path / "second", 2, more=more)
        session = judged(
            f"--llmb-logs={tmp_path / 'second'}", f"--llmb-baselines={tmp_path / 'own'}"
        )
        found = {str(verdict).upper() for verdict in session.verdicts.values()} - {
            "MISSING"
        }
        assert found <= verdicts
        assert found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "counts"),
    [("run_{night}", True), ("result_{night}", True), ("tp{night}", False)],
)
def test_logs_of_steps_alone_match_unless_their_folder_names_another_parallelism(
    judged: Judge, tmp_path: Path, folder: str, *, counts: bool
) -> None:
    """A log that prints nothing but steps says as little of itself on every night."""

    def write(number: int) -> str:
        path = write_run(
            tmp_path / f"night{number}", number, name=f"oak/{folder}/train.log"
        )
        path.write_text(
            "".join(path.read_text().splitlines(keepends=True)[4:])
        )  # the steps alone
        return f"--llmb-logs={path.parents[2]}"

    judged(write(1), f"--llmb-record={tmp_path / 'own'}")
    session = judged(write(2), f"--llmb-baselines={tmp_path / 'own'}")
    texts = [
        outcome["text"]
        for outcome in session.described.values()
        if outcome["kind"] == "stray"
    ]
    offsets = [folder.format(night=day) for day in (2, 1)]
    expected = "its path oak/{}/train.log, not oak/{}/train.log".format(*offsets)
    assert [expected in text for text in texts] == ([] if counts else [True])


@pytest.mark.slow
def test_configurations_of_one_folder_get_distinct_names(
    judged: Judge, tmp_path: Path
) -> None:
    for day in (1, 2, 3):
        write_run(tmp_path / "runs", day)
        write_run(
            tmp_path / "runs",
            day,
            name="big/run_{night}/train.log",
            seconds=4.0,
            mbs=8,
            gbs=64,
        )
        name, more = (
            "oak_fp8/night_{night}.log",
            "Float8 training active with recipe rowwise\n",
        )
        write_run(tmp_path / "runs", day, name=name, seconds=1.5, more=more)
    recorded = judged(
        f"--llmb-logs={tmp_path / 'runs'}", f"--llmb-record={tmp_path / 'own'}"
    )
    names = {
        name for name, verdict in recorded.verdicts.items() if verdict == "RECORDED"
    }
    assert names == {
        "oak_14b-own-h100-unknown-8",
        "oak_14b-own-h100-unknown-8-gbs32-mbs4-seq2048-dp8",
        "oak_14b-own-h100-fp8-8",
    }
    session = judged(
        f"--llmb-logs={tmp_path / 'runs'}",
        f"--llmb-baselines={tmp_path / 'own'}",
        "-k",
        "oak",
    )
    assert {session.verdicts[name] for name in names} <= {"PASS", "INCONCLUSIVE"}


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_second_recording_keeps_existing_baselines(
    judged: Judge, tmp_path: Path, named: bool
) -> None:
    write_run(tmp_path / "runs", 1)
    recorded = tmp_path / "own"
    judged(f"--llmb-logs={tmp_path / 'runs'}", f"--llmb-record={recorded}")
    (file,) = recorded.rglob("*.yaml")
    before = read_recipe(file).baselines
    write_run(tmp_path / "others", 2, name="other/run_{night}/train.log", seconds=3.0)
    told = (f"--llmb-baselines={recorded}",) if named else ()
    judged(f"--llmb-logs={tmp_path / 'others'}", f"--llmb-record={recorded}", *told)
    after = read_recipe(file).baselines
    assert len(after) == 2
    assert [baseline.recording for baseline in before] == [
        baseline.recording for baseline in after if baseline.key == before[0].key
    ]


@pytest.mark.slow
def test_log_without_steps_in_a_known_folder_is_invalid(
    judged: Judge, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs", 1)
    judged(f"--llmb-logs={tmp_path / 'runs'}", f"--llmb-record={tmp_path / 'own'}")
    died = write_run(tmp_path / "runs", 2)
    died.write_text(
        START.format(night=2, mesh=MESH, mbs=4, gbs=32)
        + "Segmentation fault (core dumped)\n"
    )
    session = judged(
        f"--llmb-logs={tmp_path / 'runs'}",
        f"--llmb-baselines={tmp_path / 'own'}",
        "-k",
        "oak",
    )
    assert session.verdicts == {"oak_14b-own-h100-unknown-8": "INVALID"}


@pytest.mark.slow
def test_runs_match_the_baseline_recorded_from_a_draft_with_stated_facts(
    judged: Judge, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs", 1)
    runs, drafts = f"--llmb-logs={tmp_path / 'runs'}", tmp_path / "drafts"
    stated = ("--model=Elm", "--size=7b", "--dtype=bf16", "--gpus=16")
    assert (
        main(["baselines", "draft", str(tmp_path / "runs"), "-o", str(drafts), *stated])
        == 0
    )
    recorded = judged(
        runs, f"--llmb-baselines={drafts}", f"--llmb-record={tmp_path / 'own'}"
    )
    assert (
        recorded.verdicts["elm_7b-own-h100-bf16-8"] == "RECORDED"
    )  # 8 GPUs: the log states them
    session = judged(
        f"--llmb-logs={tmp_path / 'runs'}",
        f"--llmb-baselines={tmp_path / 'own'}",
        "-k",
        "elm",
    )
    assert set(session.verdicts) == {"elm_7b-own-h100-bf16-8"}


REAL: dict[str, str] = {
    "megatron/2624605.out": "gdn/slurm-2624605.out",
    "megatron/four_clock_runs.out": "lock_clock/power_tp2pp2dp4_pred50_20260315_161856.log",
    "torchtitan/two_ranks_print.out": "titan/mosaic/out.log",
    "torchtitan/cpu_0_3_0_50_steps.out": "titan/debug/2026-11-20/train.log",
    "maxtext/llama2_commented_excerpt.out": "maxtext/run_1/train.log",
    "nemo1/stale_bars_dllogger.out": "nemo1/qwen3-30b-32gpu-tp1-pp1-cp1-vp1-ep8-gbs256-mbs4.log",
    "nemo1/carriage_returns.out": "nemo1/qwen2-5-32b-16gpu-sptrue-tp2-pp2-cp1-vp32-gbs512-mbs1.log",
    "nemo2/geneformer_500_steps.out": "geneformer/slurm-881234.out",
    "megatron_bridge/llama_20_iterations.out": "mbridge/llama/out1.log",
    "megatron/primus_instant_average.out": "primus/dsv2_lite_fp8_mi355x_20260511T024914Z_baseline/train.log",
    "today/axolotl_final_excerpt.log": "axolotl/train.log",
    "today/mlperf51_llama31_8b_dell.txt": "mlperf/dell/result.log",
    "today/mlperf51_llama31_8b_amd.txt": "mlperf/amd/result.log",
    "today/msswift_logging.jsonl": "swift/deepclima/console.log",
    "today/deepspeed_chat_reward.log": "deepspeed/reward/training.log",
    "today/automodel_llama31_8b.jsonl": "automodel/llama/golden.log",
}
NIGHTS: dict[float, set[str]] = {
    1.0: {"PASS", "INCONCLUSIVE"},
    1.12: {"REGRESSION"},
}


def read(log: str) -> str:
    with shared(f"logs/{log}").open(
        encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:
        return file.read()


@pytest.mark.slow
def test_real_logs_pass_against_their_own_recording_and_fail_if_slower(
    judged: Judge, tmp_path: Path
) -> None:
    """Recorded on one day; the next run passes, and one that is 12 % slower is a
    REGRESSION."""

    def write(folder: str, change: Callable[[str], str], days: int) -> str:
        for log, name in REAL.items():
            path = tmp_path.joinpath(
                folder, *(rename(part, days) for part in name.split("/"))
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                change(read(log)),
                encoding="utf-8",
                errors="surrogateescape",
                newline="",
            )
        return f"--llmb-logs={tmp_path / folder}"

    recorded = judged(write("first", str, 0), f"--llmb-record={tmp_path / 'own'}")
    names = [
        name for name, verdict in recorded.verdicts.items() if verdict == "RECORDED"
    ]
    assert len(names) == len(REAL)
    for days, (slower, expected) in enumerate(NIGHTS.items(), start=1):
        logs = write(
            f"night{days}",
            lambda text, slower=slower, days=days: make_next_day(text, slower, days),  # type: ignore[misc]
            days,
        )
        session = judged(
            logs, f"--llmb-baselines={tmp_path / 'own'}", "--llmb-unmatched=fail"
        )
        assert {
            name: session.verdicts[name] in expected for name in names
        } == dict.fromkeys(names, True)
        assert {session.statuses[name] for name in names} == {
            "passed" if slower == 1 else "failed"
        }
        assert not [
            name
            for name, outcome in session.described.items()
            if outcome["kind"] == "stray"
        ]
